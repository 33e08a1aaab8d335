//! The turn of a driver: handing entries over, collecting completions, and going on with what is not complete.
//!
//! What always holds: an operation ends exactly once, in [`Driver::end`]; whatever the kernel answers to `enter`,
//! the driver can be used afterwards.

use std::io;

use linux_raw_sys::io_uring as uapi;

use super::op::{Step, keep_opened};
use super::prepare::{IGNORED, WAKEUP};
use super::refused::{REFUSED_REMOTES, Refused, warn_of_no_ring};
use super::shared::Mail;
use super::slot::{Key, Owner, State};
use super::target::Target;
use super::wake::Wake;
use super::{
    ActiveTasks, Deferred, Driver, Finished, Handler, LocalHandler, Metrics, RemoteRequest, Rings, Route,
    Waiting,
};
use crate::event;
use crate::ring::{Cqe, Until};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long a kernel that takes nothing (EAGAIN, EBUSY, ENOMEM) is asked again before that is the answer.
const REFUSED_PATIENCE: Duration = Duration::from_secs(1);
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

/// Entries that one `enter` hands over at most on a thread that has other tasks: a device takes about 3 µs for each, and
/// the tasks wait meanwhile. A thread that waits for these operations alone hands all over at once.
pub(super) const SLICE: u32 = 128;

impl Driver {
    /// Puts an operation into the submission queue, or at the end of those that wait for room.
    #[inline]
    pub(super) fn submit(&mut self, key: Key) {
        if !self.waiting.is_empty() || !self.push(key) {
            // The queue is full: the next turns hand it over, a slice in each.
            self.waiting.push_back(Waiting::Operation(key));
        }
    }

    /// Submits what waits, as far as there is room.
    pub(super) fn submit_waiting(&mut self) {
        while let Some(next) = self.waiting.front() {
            let pushed = match *next {
                // Withdrawn meanwhile: nothing is left to do.
                Waiting::Operation(key) if self.slots.get(key).is_none() => true,
                Waiting::Operation(key) => self.push(key),
                Waiting::Cancellation(key) => self.push_cancellation(key),
            };
            if !pushed {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// One turn: see [`super::turn`].
    pub(super) fn turn(
        &mut self,
        may_sleep: bool,
        deadline: Option<Instant>,
        wanted: u32,
        deferred: &mut Deferred,
    ) {
        self.active_tasks = ActiveTasks { last: None, tasks: 0, before: self.active_tasks.tasks };
        if self.rings.as_ref().is_some_and(|rings| rings.main.is_ours()) {
            self.submit_waiting();
            if self.can_sleep_in_ring() {
                self.arm_wakeup();
            }
            let wanted = if may_sleep && self.can_sleep_in_ring() { wanted } else { 0 };
            self.enter(wanted, deadline, deferred);
            self.collect(deferred);
        } else {
            self.disown(deferred);
        }
        self.read_mail(deferred);
        self.publish_counts();
    }

    /// Publishes the counts as of this turn. A thread that waits turns many times for each operation, and most turns end none.
    #[inline]
    pub(super) fn publish_counts(&mut self) {
        if self.in_loop || self.published_ops != self.counts.ops {
            self.published_ops = self.counts.ops;
            self.shared.counters.publish(&self.current_counts());
        }
    }

    /// In a forked child, ends what the parent has in flight: its answers come to the parent, into the parent's memory,
    /// of which this process has a copy. Does nothing in the process that made the ring.
    #[cold]
    pub(super) fn disown(&mut self, deferred: &mut Deferred) {
        let is_ours = self.rings.as_ref().is_none_or(|rings| rings.main.is_ours());
        if is_ours || self.in_flight == 0 && self.waiting.is_empty() {
            return;
        }
        self.waiting.clear();
        let open: Vec<Key> = self.slots.unanswered().collect();
        self.in_flight = open.len();
        for key in open {
            self.slots.at(key.slot).errno = libc::ECANCELED as u16;
            self.end(key, false, deferred);
        }
    }

    /// Sleeps until there are so many completions, where none is there; not at all for 0.
    fn enter(&mut self, wanted: u32, deadline: Option<Instant>, deferred: &mut Deferred) {
        self.on_streams &= self.in_flight > 0;
        let wanted = if self.on_streams { wanted.min(1) } else { wanted };
        let (answer, polled_answer, cut_off) = {
            let Some(rings) = self.rings.as_mut() else { return };
            let spins = rings.polled_in_flight > 0;
            let polled_answer = match rings.polled.as_mut() {
                Some(polled) if spins => polled.enter(Until::Collected, SLICE, None),
                _ => Ok(()),
            };
            let idle = !rings.main.has_completions() && self.waiting.is_empty();
            // Without the wake-up descriptor, where the queue was too full to arm it, nobody could wake us.
            let awaited = rings.wakeup_armed && !rings.have_released();
            let sleeps =
                wanted > 0 && idle && !spins && awaited && self.shared.sleep.about_to_sleep_in_ring();
            let until = if sleeps {
                // More than there will be would never come.
                let to_come = (self.in_flight - rings.polled_in_flight) as u32;
                Until::Completed(wanted.min(to_come).max(1))
            } else if rings.main.has_deferred() || rings.main.waiting() > 0 {
                Until::Collected
            } else {
                Until::Submitted
            };
            rings.main.reset_completion_signal();
            let most = if self.guards > 0 && !self.in_loop { u32::MAX } else { SLICE };
            let before = rings.main.enters();
            let at_most = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let answer = rings.main.enter(until, most, at_most);
            let entered = rings.main.enters() != before;
            rings.shut &= answer.is_err() || !entered;
            if entered {
                let (submitted, completed) = rings.main.enter_sizes();
                self.shared.counters.entered(submitted, completed);
            }
            if sleeps {
                self.shared.sleep.woke();
            }
            (answer, polled_answer, rings.main.take_cut_off(IGNORED))
        };
        if let Some(user_data) = cut_off {
            self.end_cut_off(Key::from_user_data(user_data), deferred);
        }
        if answer.is_ok() && polled_answer.is_ok() {
            self.refused_since = None;
            return;
        }
        self.deal_with(answer, false, deferred);
        self.deal_with(polled_answer, true, deferred);
    }

    /// Ends an operation that was to wait for another one, where the kernel took that and not this: begun now it would not
    /// wait, and a sync would succeed without the write that it is for. It is as if the other had cancelled it, upon which
    /// a durable write syncs once more when the write has ended. The kernel takes entries in order, so it never takes the
    /// second without the first.
    #[cold]
    fn end_cut_off(&mut self, key: Key, deferred: &mut Deferred) {
        if let Some(slot) = self.slots.get(key).filter(|slot| slot.state == State::InFlight) {
            slot.errno = libc::ECANCELED as u16;
            self.end(key, false, deferred);
        }
    }

    /// EINTR needs nothing but the next turn, and so does, for a while, a kernel that is short of something. Anything
    /// else is the answer to every operation that was not taken.
    #[cold]
    fn deal_with(&mut self, answer: io::Result<()>, polled: bool, deferred: &mut Deferred) {
        let Err(error) = answer else { return };
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        match errno {
            libc::EINTR | libc::ETIME => return,
            libc::EBUSY | libc::EAGAIN | libc::ENOMEM if self.may_ask_again() => return,
            _ => {}
        }
        let shut =
            self.rings.as_mut().is_some_and(|rings| !polled && std::mem::replace(&mut rings.shut, true));
        if !shut {
            event::defer(move || {
                tracing::warn!(%error, "io_uring_enter failed, so do the operations that it did not take");
            });
        }
        self.refused_since = None;
        let mut refused = Vec::new();
        if let Some(rings) = self.rings.as_mut()
            && let Some(ring) = if polled { rings.polled.as_mut() } else { Some(&mut rings.main) }
        {
            ring.take_back(|user_data| refused.push(user_data));
        }
        for user_data in refused {
            let key = Key::from_user_data(user_data);
            if let Some(slot) = self.slots.get(key) {
                slot.errno = errno as u16;
                self.end(key, polled, deferred);
            } else if user_data == WAKEUP
                && let Some(rings) = self.rings.as_mut()
            {
                rings.wakeup_armed = false;
            }
        }
    }

    /// Whether a kernel that refused to take operations is to be asked again: after what has completed was collected,
    /// else after a pause, so that the thread does not spin.
    fn may_ask_again(&mut self) -> bool {
        let has_completions = self.rings.as_ref().is_some_and(Rings::have_completions);
        let since = *self.refused_since.get_or_insert_with(Instant::now);
        if has_completions {
            return true;
        }
        std::thread::sleep(REFUSED_PAUSE);
        since.elapsed() < REFUSED_PATIENCE
    }

    fn collect(&mut self, deferred: &mut Deferred) {
        loop {
            let Some(rings) = self.rings.as_mut() else { return };
            let Some(cqe) = rings.main.complete() else { break };
            self.completed(cqe, false, deferred);
        }
        while let Some(polled) = self.rings.as_mut().and_then(|rings| rings.polled.as_mut())
            && let Some(cqe) = polled.complete()
        {
            self.completed(cqe, true, deferred);
        }
        if let Some(rings) = self.rings.as_mut() {
            rings.main.forget_released();
            if let Some(polled) = rings.polled.as_mut() {
                polled.forget_released();
            }
        }
    }

    #[inline]
    fn completed(&mut self, cqe: Cqe, polled: bool, deferred: &mut Deferred) {
        let key = Key::from_user_data(cqe.user_data);
        let Some(slot) = self.slots.get(key).filter(|slot| slot.state == State::InFlight) else {
            return self.not_an_operation(cqe);
        };
        let all_at_once =
            slot.progress.done() == 0 && cqe.result > 0 && cqe.result as usize == slot.request.want;
        if all_at_once && slot.request.kind.moves_data() {
            slot.progress.all_done(slot.request.want);
        } else if !self.is_over(key, cqe.result, polled) {
            return;
        }
        if self.slots.at(key.slot).request.is_sync() {
            self.settle_sync(key);
        }
        self.end(key, polled, deferred);
    }

    /// Has the file remember a sync that failed.
    #[cold]
    fn settle_sync(&mut self, key: Key) {
        let slot = self.slots.at(key.slot);
        if let Some(target) = self.files.target(slot.file) {
            slot.errno = target.settle_sync(slot.errno.into()) as u16;
        }
    }

    #[cold]
    fn not_an_operation(&mut self, cqe: Cqe) {
        match cqe.user_data {
            IGNORED => {}
            WAKEUP => {
                let Some(rings) = self.rings.as_mut() else { return };
                if cqe.flags & uapi::IORING_CQE_F_MORE == 0 {
                    rings.wakeup_armed = false;
                    rings.wakeup_repeats &= cqe.result >= 0;
                    self.shared.reset_wakeup();
                }
            }
            user_data => {
                self.counts.stray += 1;
                event::defer(move || {
                    tracing::error!(
                        user_data,
                        result = cqe.result,
                        "a completion that belongs to no operation"
                    );
                });
            }
        }
    }

    /// Whether what the kernel answered is the end of the operation; where it is a part, the rest is submitted.
    #[cold]
    fn is_over(&mut self, key: Key, result: i32, polled: bool) -> bool {
        let slot = self.slots.at(key.slot);
        let answer = usize::try_from(result).map_err(|_| -result);
        // SAFETY: the answer is the kernel's to the entry of this request.
        unsafe { keep_opened(&slot.request, &mut slot.held, answer) };
        let Some(target) = self.files.target(slot.file) else { return true };
        let wanted = slot.owner != Owner::Nobody && !slot.cancelled;
        match slot.progress.answered(&slot.request, target, answer, || wanted) {
            Step::Over(errno) => {
                slot.errno = errno as u16;
                true
            }
            Step::GoOn => {
                self.go_on(key, polled);
                false
            }
        }
    }

    /// Submits the rest of an operation.
    #[cold]
    fn go_on(&mut self, key: Key, polled: bool) {
        self.counts.resubmitted += 1;
        self.no_longer_in_flight(polled);
        let slot = self.slots.at(key.slot);
        slot.state = State::Waiting;
        slot.request.linked = false;
        self.submit(key);
    }

    /// The one place where an operation ends.
    #[inline(always)]
    pub(super) fn end(&mut self, key: Key, polled: bool, deferred: &mut Deferred) {
        self.no_longer_in_flight(polled);
        let slot = self.slots.at(key.slot);
        let (file, owner) = (slot.file, slot.owner);
        self.counts.ops += 1;
        self.counts.fixed_ops += u64::from(slot.fixed);
        self.counts.failed += u64::from(slot.errno != 0);
        let (kind, done) = (slot.request.kind, slot.progress.done() as u64);
        if kind.is_read() {
            self.counts.bytes_read += done;
        } else if kind.is_write() {
            self.counts.bytes_written += done;
        }
        slot.state = State::Done;
        if kind.is_read() {
            // SAFETY: the kernel has written `done` bytes from `start` on; what comes before was there already, since
            // only the library's own reads begin past 0, and they fill memory in order.
            unsafe { slot.held.filled(slot.request.start + slot.progress.done()) };
        }
        match std::mem::take(&mut slot.wake) {
            Wake::Handler(handler, index) => self.end_by_handler(key, handler, index, deferred),
            Wake::Local(handler, index) => self.end_local(key, handler, index, deferred),
            wake => deferred.wake(wake),
        }
        if owner != Owner::Here {
            self.end_elsewhere(key, owner, deferred);
        }
        if let Some(closed) = self.leave_file(file) {
            deferred.files.push(closed);
        }
    }

    /// Ends an operation whose handler the driver knows by number. Where the thread turns its driver for that handler, the
    /// results lie in what the turn leaves; where for another, they are handed over.
    #[inline]
    fn end_local(&mut self, key: Key, handler: u32, index: u32, deferred: &mut Deferred) {
        let finished = self.take_finished(key.slot);
        if deferred.own == Some(LocalHandler(handler)) {
            deferred.own_results.push((index, finished));
        } else if let Some(handler) = self.local_handlers.get(handler) {
            deferred.ended.push((Arc::clone(handler), index, finished));
        } else {
            deferred.buffers.push(finished.held);
        }
    }

    fn end_by_handler(&mut self, key: Key, handler: Arc<dyn Handler>, index: u32, deferred: &mut Deferred) {
        let finished = self.take_finished(key.slot);
        deferred.ended.push((handler, index, finished));
    }

    /// Starts a remote request on this thread's ring; where it has none, the workers get it.
    pub(super) fn start_remote(&mut self, mut remote: RemoteRequest, deferred: &mut Deferred) {
        if !remote.is_wanted() {
            return deferred.remotes.push((remote, Some(libc::ECANCELED)));
        }
        match self.may_start(&remote.target, remote.request.kind, false) {
            Ok(()) => {
                let Some(handler) = remote.take_handler() else { return };
                let wake = Wake::Handler(handler, remote.index);
                self.queue(&remote.target, &remote.request, &mut remote.held, wake);
                if remote.target.is_closed() {
                    // Nobody will tell us any more: the file is given up with this operation.
                    self.files.close(remote.target.number);
                }
            }
            Err(Refused::Unsupported) => deferred.remotes.push((remote, None)),
            Err(Refused::NoRing(error)) if remote.target.lanes.route() != Route::Ring => {
                warn_of_no_ring(&error);
                deferred.remotes.push((remote, None));
            }
            Err(refused) => {
                let for_want_of_a_ring = matches!(refused, Refused::NoRing(_));
                // Without an errno: a forked child has no use of its parent's ring, see `why_refused`.
                let errno = refused.into_error().errno().unwrap_or(libc::EOPNOTSUPP);
                if for_want_of_a_ring {
                    REFUSED_REMOTES.store(errno, Ordering::Relaxed);
                }
                deferred.remotes.push((remote, Some(errno)));
            }
        }
    }

    #[cold]
    fn end_elsewhere(&mut self, key: Key, owner: Owner, deferred: &mut Deferred) {
        match owner {
            Owner::Here => {}
            Owner::Afar => self.hand_over(key, deferred),
            Owner::Nobody => deferred.buffers.push(self.take_finished(key.slot).held),
        }
    }

    /// Leaves a result where a future that moved to another thread finds it.
    #[cold]
    fn hand_over(&mut self, key: Key, deferred: &mut Deferred) {
        let finished = self.take_finished(key.slot);
        let mut inner = self.shared.lock();
        inner.finished.insert(key, finished);
        deferred.wakers.extend(inner.wakers.remove(&key));
    }

    fn read_mail(&mut self, deferred: &mut Deferred) {
        if !self.shared.sleep.take_mail_flag() {
            return;
        }
        let mut remotes = std::mem::take(&mut self.spare_remotes);
        let mail = {
            let mut inner = self.shared.lock();
            std::mem::swap(&mut remotes, &mut inner.remotes);
            std::mem::take(&mut inner.mail)
        };
        for remote in remotes.drain(..) {
            self.start_remote(remote, deferred);
        }
        self.spare_remotes = remotes;
        mail.into_iter().for_each(|letter| self.read_letter(letter, deferred));
    }

    fn read_letter(&mut self, letter: Mail, deferred: &mut Deferred) {
        match letter {
            Mail::Watch(key) => self.watch(key, deferred),
            Mail::Cancel(key) => self.cancel_for_afar(key, deferred),
            Mail::CancelOrders(handler) => {
                self.cancel_handler(&handler, deferred);
                deferred.handlers.push(handler);
            }
            Mail::CancelHeld(driver) => self.cancel_held_on_streams(driver, deferred),
            Mail::Close(number) => {
                // Another file may have the number by now, if this driver gave the file up on the way of the letter.
                let is_closed = self.files.target(number).is_some_and(Target::is_closed);
                if let Some(closed) = is_closed.then(|| self.files.close(number)).flatten() {
                    self.unregister(&closed);
                    deferred.files.push(closed);
                }
            }
        }
    }

    fn cancel_for_afar(&mut self, key: Key, deferred: &mut Deferred) {
        let Some(slot) = self.slots.get(key) else {
            // Its result was handed over on the way of this letter.
            let finished = self.shared.lock().finished.remove(&key);
            return deferred.buffers.extend(finished.map(|finished| finished.held));
        };
        slot.owner = Owner::Here;
        if let Some((held, wake, closed)) = self.cancel(key) {
            deferred.buffers.push(held);
            deferred.wake(wake);
            deferred.files.extend(closed);
        }
    }

    fn watch(&mut self, key: Key, deferred: &mut Deferred) {
        let Some(slot) = self.slots.get(key) else {
            // The future came back and took its result on the way of this letter.
            return deferred.wakers.extend(self.shared.lock().wakers.remove(&key));
        };
        slot.owner = Owner::Afar;
        deferred.wake(std::mem::take(&mut slot.wake));
        if slot.state == State::Done {
            self.hand_over(key, deferred);
        }
    }

    /// Whether something must be waited for before the thread leaves.
    pub(super) fn must_drain(&mut self) -> bool {
        let ours = self.rings.as_ref().is_some_and(|rings| rings.main.is_ours());
        if ours {
            // What was withdrawn, or has ended, may be all that waits: nothing would come for it.
            self.submit_waiting();
        }
        ours && (self.in_flight > 0 || !self.waiting.is_empty())
    }

    /// Whether all that must be waited for are reads which the thread itself holds open.
    pub(super) fn only_lasting(&mut self) -> bool {
        self.slots.of_loop().next().is_none()
    }

    /// Gives everything up that the thread need not keep until its next loop. The wakers of futures on other threads,
    /// which find their results now.
    pub(super) fn deactivate(&mut self, deferred: &mut Deferred) -> Vec<Waker> {
        self.disown(deferred);
        self.read_mail(deferred);
        let done: Vec<Key> = self.slots.done().collect();
        let results: Vec<(Key, Finished)> =
            done.into_iter().map(|key| (key, self.take_finished(key.slot))).collect();
        self.in_loop = false;
        let (mail, wakers) = {
            let mut inner = self.shared.lock();
            inner.in_loop = false;
            inner.finished.extend(results);
            let wakers = inner.wakers.drain().map(|(_, waker)| waker).collect();
            (std::mem::take(&mut inner.mail), wakers)
        };
        // What was posted since: a dropped future's result is in `finished` now, and an open read may keep a closed file.
        mail.into_iter().for_each(|letter| self.read_letter(letter, deferred));
        self.give_up_files(deferred);
        // An entry that was not handed over yet names memory by its place among the registered.
        let may_forget = self.in_flight == 0;
        if let Some(rings) = self.rings.as_mut().filter(|rings| may_forget && rings.main.is_ours()) {
            rings.main.forget_buffers();
            if let Some(polled) = rings.polled.as_mut() {
                polled.forget_buffers();
            }
        }
        self.shared.counters.publish(&self.current_counts());
        wakers
    }

    /// Gives up every file that no operation uses.
    pub(super) fn give_up_files(&mut self, deferred: &mut Deferred) {
        let files = self.files.give_up_idle();
        files.iter().for_each(|closed| self.unregister(closed));
        deferred.files.extend(files);
    }

    pub(super) fn current_counts(&self) -> Metrics {
        let mut counts = self.counts;
        let rings = self.rings.iter().flat_map(|rings| std::iter::once(&rings.main).chain(&rings.polled));
        for ring in rings {
            counts.enters += ring.enters();
            counts.refused_registrations += ring.refused_registrations();
        }
        counts
    }
}
