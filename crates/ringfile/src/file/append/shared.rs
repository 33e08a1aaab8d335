//! The state that an appender's handles share. Any task that polls one of its futures drives its operations.
//!
//! Invariants: no waker, buffer or operation is called, polled or dropped under the lock (but the function that writes
//! a record in place, which must neither wait nor use this appender); one task at a time has the
//! lanes, and a task that finds them taken sets a flag; a task registers its waker before it checks whether it must
//! wait. A completion wakes one waiting task, which drives, and a timer wakes all others if it does not: a future that is
//! kept without being polled must not stop writes, syncs and the tasks that wait for these. Later appends do wait for it,
//! until it is dropped: records are appended in order of arrival.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use super::chunks::Chunks;
use super::filler::{self, FileId, FillPiece, Filled};
use super::lanes::{AppendLanes, Job};
use super::plan::{AppendStep, Pace, Plan};
use super::positions::Positions;
use super::waiters::{WaiterPlace, Waiters, Wakers, this_thread};
use crate::driver::{Target, is_main_polled};
use crate::error::{Error, Result};
use crate::file::File;
use crate::lock::Lock;
use crate::memory::{Buffer, Pool};
use crate::timer::{self, Timer};
use bytes::Bytes;
use ringfile_buffer::internal::{Spare, add_spare, fork, is_wanted, panics};

/// How long a task that was woken has time to drive, before all are woken.
const PATIENCE: Duration = Duration::from_millis(5);

/// How often one task polls the lanes in a row while other tasks add work.
const MOST_TURNS: usize = 64;

/// Counters of an [`Appender`](super::Appender) since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct AppenderMetrics {
    /// Records appended.
    pub appends: u64,
    /// Appends that had to wait for their turn, for room or for memory.
    pub waits: u64,
    /// Writes started, durable ones included.
    pub writes: u64,
    /// Syncs started: durable writes, and separate syncs.
    pub syncs: u64,
    /// Bytes of zeros written ahead; see [`OpenAppender::fill_ahead`](super::OpenAppender::fill_ahead).
    pub filled: u64,
}

pub(super) struct AppenderShared {
    pub file: File,
    pub pool: Pool,
    /// The size of a chunk in bytes.
    pub chunk: usize,
    process: fork::Mark,
    /// The file, for the thread that fills it ahead.
    inode: FileId,
    /// Itself, for that thread.
    this: Weak<AppenderShared>,
    state: Lock<AppenderState>,
    /// The thread that calls a function under the lock, as [`this_thread`] names it; otherwise 0.
    filling: AtomicUsize,
    /// See [`end_of`](Self::end_of).
    ends: [AtomicU64; 3],
}

pub(super) struct AppenderState {
    pub plan: Plan,
    pub chunks: Chunks,
    pub waiters: Waiters,
    pub positions: Positions,
    pub metrics: AppenderMetrics,
    /// `None` while a task polls them.
    lanes: Option<AppendLanes>,
    /// Lanes that have a job.
    busy: usize,
    depth: usize,
    /// Whether a lane must be polled, or there is more work for the task that has the lanes.
    stirred: bool,
    /// The first failure of a write or a sync.
    failure: Option<Error>,
    /// When the last sync started, if there is such a time.
    synced: Option<Instant>,
    /// Called when a pause is over.
    pause_over: Waker,
    /// The end of the current pause.
    timer: Option<Timer>,
    /// Called when the task that was woken may not have driven.
    overdue: Waker,
    /// When that is called.
    watch: Option<Timer>,
}

/// A waker that calls a function of the appender, but not in a forked child: no task waits there for operations of the
/// parent.
struct Call<F>(Weak<AppenderShared>, F);

fn waker<F: Fn(&AppenderShared) + Send + Sync + 'static>(
    shared: &Weak<AppenderShared>,
    function: F,
) -> Waker {
    Waker::from(Arc::new(Call(Weak::clone(shared), function)))
}

impl<F: Fn(&AppenderShared) + Send + Sync> Wake for Call<F> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.0.upgrade().filter(|shared| shared.is_ours()) {
            (self.1)(&shared);
        }
    }
}

impl AppenderShared {
    pub fn new(file: File, inode: FileId, pool: Pool, depth: usize, plan: Plan, chunks: Chunks) -> Arc<Self> {
        let (chunk, len, keeps) = (chunks.size, plan.appended(), chunks.kept.keeps());
        let shared = Arc::new_cyclic(|shared: &Weak<Self>| {
            let lanes = AppendLanes::new(depth, &file, |woken| {
                waker(shared, move |shared| {
                    // Stored before `stirred` takes its lock: the task that has the lanes reads it after taking that
                    // lock.
                    woken.store(true, Ordering::SeqCst);
                    shared.stirred();
                })
            });
            let state = AppenderState {
                plan,
                chunks,
                waiters: Waiters::default(),
                positions: Positions::default(),
                metrics: AppenderMetrics::default(),
                lanes: Some(lanes),
                busy: 0,
                depth,
                stirred: false,
                failure: None,
                synced: None,
                pause_over: waker(shared, Self::pause_is_over),
                timer: None,
                overdue: waker(shared, Self::is_overdue),
                watch: None,
            };
            let (process, state) = (fork::Mark::current(), Lock::new(state));
            let ends = [len; 3].map(AtomicU64::new);
            let (filling, this) = (AtomicUsize::new(0), shared.clone());
            Self { file, pool, chunk, process, inode, this, state, filling, ends }
        });
        if keeps {
            add_spare(&shared.pool, shared.this.clone());
        }
        shared
    }

    /// Returns whether this thread calls the function that writes a record in place.
    #[inline]
    pub fn is_filled_here(&self) -> bool {
        let filling = self.filling.load(Ordering::Relaxed);
        filling != 0 && filling == this_thread()
    }

    /// # Panics
    /// If this thread writes a record in place: waiting for the lock would never end.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, AppenderState> {
        assert!(
            !self.is_filled_here(),
            "an appender was used by the function that writes a record of it in place"
        );
        self.state.lock()
    }

    /// Notes that this thread, which has the lock, calls the function that writes a record in place, until the
    /// result is dropped. Drop it before the lock.
    pub fn begin_filling(&self) -> Filling<'_> {
        self.filling.store(this_thread(), Ordering::Relaxed);
        Filling(self, FILLS.replace(true))
    }

    /// Returns whether this process opened the appender. In a forked child, a thread that does not exist there may hold
    /// the lock.
    pub fn is_ours(&self) -> bool {
        self.process.is_current()
    }

    /// # Errors
    /// If this is a forked child.
    #[inline]
    pub fn check_process(&self, what: &'static str) -> Result<()> {
        const WHY: &str = "this is a forked child: the appender belongs to the process that opened it";
        if self.is_ours() { Ok(()) } else { Err(self.error(ErrorKind::Unsupported, what, WHY)) }
    }

    #[cold]
    pub fn error(&self, kind: ErrorKind, what: &'static str, why: impl Into<Cow<'static, str>>) -> Error {
        Error::new(kind, what).on(self.file.path()).because(why)
    }

    /// Returns the end of the appended (0), the written (1) or the durable (2) bytes.
    pub fn end_of(&self, which: usize) -> u64 {
        self.ends[which].load(Ordering::Acquire)
    }

    /// Takes the oldest bytes that are kept for readers, if they are in the file, and if that is too much or the pool's
    /// memory is wanted for something else. The caller drops them without the lock.
    fn take_kept(&self, is_wanted: bool) -> Option<Bytes> {
        let mut state = self.lock();
        let written = state.plan.written();
        let kept = &mut state.chunks.kept;
        if is_wanted || kept.is_over() { kept.take_oldest(written) } else { None }
    }

    /// Gives up all that [`take_kept`](Self::take_kept) finds. Returns whether that is any.
    fn give_up_kept(&self, is_wanted: bool) -> bool {
        std::iter::from_fn(|| self.take_kept(is_wanted)).count() > 0
    }

    /// Called when the last handle is dropped in this process. Readers may still be there.
    pub fn abandoned(&self) {
        let mut state = self.lock();
        if !state.plan.is_closed() {
            let why = "the last handle of the appender was dropped without `close`";
            state.failure.get_or_insert(Error::new(ErrorKind::Other, "appending to a file").because(why));
        }
        drop(state);
        self.wake(true);
    }

    pub fn publish_appended(&self, state: &AppenderState) {
        self.ends[0].store(state.plan.appended(), Ordering::Release);
    }

    /// Returns the error with which every call fails now, if there is one.
    pub fn refusal(&self, state: &AppenderState, what: &'static str) -> Option<Error> {
        let why = state.final_failure()?;
        let without_errno = || Error::new(why.kind(), what);
        let error = why.errno().map_or_else(without_errno, |errno| Error::from_errno(errno, what));
        let durable = state.plan.durable();
        Some(error.on(self.file.path()).because(format!(
            "this appender has failed ({why}) and accepts no more: data behind byte {durable} of the file may be \
             lost; check it, and open the file and the appender again"
        )))
    }

    /// Wakes one task that waits, which drives. If there are others, a timer makes sure of that.
    fn wake_one(&self, mut state: MutexGuard<'_, AppenderState>) {
        let Some((waker, has_more)) = state.waiters.take_one() else { return };
        if has_more && state.watch.is_none() {
            state.watch = timer::wake_at(timer::now() + PATIENCE, state.overdue.clone());
        }
        let is_watched = !has_more || state.watch.is_some();
        drop(state);
        // See `wake`.
        let _ = panics::catch(|| waker.wake());
        if !is_watched {
            self.wake(true);
        }
    }

    /// Called by a timer thread.
    fn is_overdue(&self) {
        let mut state = self.lock();
        // Dropping its waker runs no code of a program.
        state.watch = None;
        let is_overdue = state.needs_a_task();
        drop(state);
        if is_overdue {
            self.wake(true);
        }
    }

    /// Lets another task drive what is left, if there is one: a task that was woken to drive is dropped.
    pub fn pass_on(&self) {
        let state = self.lock();
        if state.needs_a_task() {
            self.wake_one(state);
        }
    }

    /// Drives what is left, for a task that has left the list and is ready. If its loop may end, another task that waits
    /// does so: a loop ends only after the operations that it has started.
    pub fn hand_over(&self) {
        let state = self.lock();
        let has_work = state.has_work();
        if has_work && is_main_polled() && state.waiters.has_wakers() {
            self.wake_one(state);
        } else if has_work {
            drop(state);
            self.drive(false);
        }
    }

    /// Removes a task from the list. If it was the first that waited to append, the next one is woken. Returns false in
    /// a forked child, and does nothing.
    pub fn leave(&self, place: &mut WaiterPlace) -> bool {
        let is_ours = self.is_ours();
        if is_ours {
            let waker = self.lock().waiters.leave(place);
            drop(waker);
            self.wake(false);
        }
        is_ours
    }

    /// Wakes every task, or those that have reached their goals.
    pub fn wake(&self, everyone: bool) {
        let (mut cursor, mut more) = (0, true);
        while more {
            let mut wakers = Wakers::default();
            let mut state = self.lock();
            let AppenderState { waiters, plan, .. } = &mut *state;
            more = waiters.take(&mut cursor, everyone, plan, &mut wakers);
            drop(state);
            for waker in wakers.into_iter().flatten() {
                // The panic hook has reported a waker that panics. It concerns neither the task that drives nor the
                // other waiting tasks.
                let _ = panics::catch(|| waker.wake());
            }
        }
    }

    /// Called when a lane must be polled, by a waiting task or by the one that has the lanes.
    fn stirred(&self) {
        let mut state = self.lock();
        if state.lanes.is_some() {
            state.stirred = true;
            self.wake_one(state);
        }
    }

    /// Called by a timer thread.
    fn pause_is_over(&self) {
        let mut state = self.lock();
        state.plan.pace = Pace::Open;
        // The task that has the lanes goes on, or a waiting one drives.
        state.stirred = true;
        drop(state);
        self.wake(true);
    }

    /// Starts the steps that can start, and collects those that have ended; with `first_ends` only until the first has
    /// ended. Returns false if nothing has ended and a waiting task will be woken.
    pub fn drive(&self, first_ends: bool) -> bool {
        let mut progress = false;
        for _ in 0..MOST_TURNS {
            let Some(mut lanes) = self.begin() else { return progress };
            lanes.poll();
            let (ended, again) = self.end(lanes);
            progress |= ended;
            if !ended && !again || ended && first_ends {
                return progress;
            }
        }
        // Other tasks continue to append: one of them, or a waiting one, drives next.
        self.stirred();
        progress
    }

    /// Takes the lanes, with jobs for idle ones, or sets the flag for the task that has them.
    fn begin(&self) -> Option<AppendLanes> {
        let mut state = self.lock();
        let lanes = state.lanes.take();
        state.stirred = lanes.is_none();
        let mut lanes = lanes?;
        while lanes.give(|| state.next_job()) {
            state.busy += 1;
        }
        let fills = !state.has_failed() && state.plan.begins_to_fill();
        drop(state);
        if fills && !filler::ask(self.inode, self.this.clone()) {
            self.lock().plan.ahead.stop();
        }
        Some(lanes)
    }

    /// Handles the results of polling the lanes once. Returns whether a step has ended, and whether there is more work.
    fn end(&self, mut lanes: AppendLanes) -> (bool, bool) {
        // Dropped after the lock.
        let (mut unused, mut cut) = (None, None);
        let mut state = self.lock();
        let mut ended = false;
        for (step, result) in lanes.ended() {
            ended = true;
            state.busy -= 1;
            if let AppendStep::Truncate { len, .. } = step {
                // After a failure, what follows is not there for readers either.
                unused = state.chunks.restart(result.as_deref().unwrap_or_default());
                if result.is_ok() {
                    cut = Some(state.chunks.kept.cut(len));
                    state.positions.cut(len);
                } else {
                    state.plan.was_not_truncated(len);
                }
            }
            match result {
                Ok(_) => state.plan.ended(step),
                Err(error) => {
                    state.failure.get_or_insert(error);
                }
            }
        }
        let stirred = lanes.is_woken();
        let again = std::mem::replace(&mut state.stirred, stirred);
        state.lanes = Some(lanes);
        self.ends[2].store(state.plan.durable(), Ordering::Release);
        self.ends[1].store(state.plan.written(), Ordering::Release);
        self.publish_appended(&state);
        let failed = state.final_failure().is_some();
        let keeps = state.chunks.kept.keeps();
        drop(state);
        drop((unused, cut));
        if keeps {
            // What could not be given up when somebody asked for memory is in the file now.
            self.give_up_kept(ended && is_wanted(&self.pool));
        }
        if ended {
            self.wake(failed);
        }
        if stirred {
            self.wake_one(self.lock());
        }
        (ended, again)
    }
}

impl Filled for AppenderShared {
    fn begin_piece(&self) -> Option<(Arc<Target>, FillPiece)> {
        let mut state = self.lock();
        if state.has_failed() {
            state.plan.ahead.stop();
        }
        let fill = state.plan.next_fill()?;
        Some((Arc::clone(self.file.target()), fill))
    }

    fn end_piece(&self, result: rustix::io::Result<u64>) -> bool {
        let mut state = self.lock();
        state.metrics.filled += result.unwrap_or(0);
        // A program may still be able to append what it needs, and learns of errors then.
        let more = state.plan.ahead.ended(result.is_ok());
        // Steps may have waited for the end of the piece, or only the end of closing.
        let is_over = state.has_failed() || state.plan.is_closed();
        let waits = is_over || state.plan.peek().is_some();
        state.stirred |= waits;
        if is_over {
            drop(state);
            self.wake(true);
        } else if waits {
            self.wake_one(state);
        }
        more
    }
}

impl Spare for AppenderShared {
    fn give_up(&self) -> bool {
        // A function that writes a record in place may ask for memory: its thread has the lock of an appender.
        !FILLS.get() && self.is_ours() && self.give_up_kept(true)
    }
}

thread_local! {
    /// Whether this thread calls a function that writes a record in place.
    static FILLS: Cell<bool> = const { Cell::new(false) };
}

/// See [`AppenderShared::begin_filling`].
pub(super) struct Filling<'a>(&'a AppenderShared, bool);

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.0.filling.store(0, Ordering::Relaxed);
        FILLS.set(self.1);
    }
}

impl AppenderState {
    /// Returns whether polling the lanes would achieve anything.
    pub fn has_work(&self) -> bool {
        self.stirred && self.lanes.is_some()
            || self.failure.is_none()
                && self.busy < self.depth
                && (self.plan.wants_pause() || self.plan.peek().is_some())
    }

    /// Returns whether there is something to do, and no task is doing it.
    fn needs_a_task(&self) -> bool {
        self.lanes.is_some() && self.has_work()
    }

    /// Returns where a truncation that was asked for will cut the log; `None` if there is none, or none any more.
    pub fn will_end_at(&self) -> Option<u64> {
        self.plan.truncating().filter(|_| self.final_failure().is_none())
    }

    /// Returns the failure, once nothing is in flight: nothing more is started after it.
    fn final_failure(&self) -> Option<&Error> {
        self.failure.as_ref().filter(|_| self.busy == 0 && !self.plan.ahead.is_filling())
    }

    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Begins a pause if a sync has to wait for one, and the time is not over already.
    fn pause(&mut self) {
        if !self.plan.wants_pause() {
            return;
        }
        let until = self.synced.map(|synced| synced + self.plan.sync_interval);
        let until = until.filter(|until| *until > timer::now());
        // Dropping the waker of this timer, or of the one before, runs no code of a program.
        self.timer = until.and_then(|until| timer::wake_at(until, self.pause_over.clone()));
        self.plan.pace = if self.timer.is_some() { Pace::Pausing } else { Pace::Open };
    }

    fn next_job(&mut self) -> Option<Job> {
        if self.has_failed() {
            return None;
        }
        self.pause();
        let step = self.plan.next()?;
        let mut buffer = Buffer::default();
        if let AppendStep::Write { piece, .. } = step {
            buffer = self.chunks.take(piece.end)?;
            self.metrics.writes += 1;
        }
        if step.is_sync() && !self.plan.sync_interval.is_zero() {
            self.synced = Some(timer::now());
        }
        self.metrics.syncs += u64::from(step.is_sync());
        Some((step, buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Poll;

    use crate::file::OpenOptions;
    use crate::file::append::kept::Kept;

    fn shared(depth: usize, sync_interval: Duration) -> (tempfile::TempDir, Arc<AppenderShared>) {
        let folder = tempfile::tempdir().unwrap();
        let file =
            OpenOptions::new().write(true).create(true).open_blocking(folder.path().join("log")).unwrap();
        let mut plan = Plan::new(1, 1 << 20, depth, 0, true);
        plan.sync_interval = sync_interval;
        let chunks = Chunks::new(4096, 1, depth, &[], Kept::default());
        (folder, AppenderShared::new(file, (0, 0), Pool::new(1 << 20), depth, plan, chunks))
    }

    #[test]
    fn a_panic_of_a_lane_is_reported_after_the_other_lanes_have_ended() {
        let (_folder, shared) = shared(2, Duration::ZERO);
        let release = Arc::new(std::sync::atomic::AtomicBool::new(false));
        {
            let mut state = shared.lock();
            let mut lanes = state.lanes.take().unwrap();
            lanes.occupy(async { panic!("a defect") });
            let released = Arc::clone(&release);
            lanes.occupy(async move {
                let is_over = || released.load(Ordering::SeqCst);
                std::future::poll_fn(|_| if is_over() { Poll::Ready(()) } else { Poll::Pending }).await;
            });
            state.lanes = Some(lanes);
            state.busy = 2;
        }
        shared.drive(false);
        let state = shared.lock();
        assert!(state.has_failed());
        assert!(shared.refusal(&state, "appending").is_none(), "an operation is in flight");
        drop(state);
        release.store(true, Ordering::SeqCst);
        shared.lock().lanes.as_mut().unwrap().stir();
        shared.drive(false);
        let error = shared.refusal(&shared.lock(), "appending").unwrap();
        assert!(error.to_string().contains("panicked"), "{error}");
    }
    /// A waker that counts its references.
    struct Nothing;

    impl Wake for Nothing {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn dropping_an_appender_takes_its_pause_out_of_the_timers() {
        let (_folder, shared) = shared(1, Duration::from_secs(3600));
        let waker = Arc::new(Nothing);
        let references = Arc::downgrade(&waker);
        let mut state = shared.lock();
        state.pause_over = Waker::from(waker);
        state.plan.append(100);
        state.plan.want_durable();
        let synced = state.plan.next().unwrap();
        state.plan.ended(synced);
        state.synced = Some(timer::now());
        state.plan.append(100);
        state.plan.want_durable();
        state.pause();
        drop(state);
        assert_eq!(references.strong_count(), 2, "the pause has not begun");
        drop(shared);
        assert_eq!(references.strong_count(), 0);
    }
}
