//! The engine of batches and queues: starts the operations of a plan, and returns their results to it.
//!
//! Knows the driver, and plans through the trait [`Source`], but no limits, barriers or tokens. [`Engine`] does not wait,
//! and serves an awaited batch wherever it is polled. [`ThreadEngine`] turns the calling thread's own driver: there, an
//! operation takes no lock and touches no shared count. Invariants: an operation that was started gives exactly one
//! result to its source; a buffer is released only when the kernel has finished with it.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::done::Token;
use super::files::Files;
use super::item::{At, Item};
use super::remote::{Message, RemoteResults};
use crate::driver::{
    self, AfterUse, CompletionSignals, Deferred, Finished, Handler, HandlerOf, InPlace, LocalHandler,
    OpResult, RingGuard, Shared, Started, SubmitHint, Targets, ThreadRing,
};
use crate::error::Error;
use crate::memory::IoMemory;
use ringfile_buffer::internal::fork;

/// The end of an operation that was not carried out, or whose result arrives in the process that forked this one.
pub(super) const CANCELLED: OpResult = OpResult { done: 0, errno: libc::ECANCELED };

/// The source of operations, and the receiver of their results.
pub(super) trait Source {
    /// Returns the next operation that may start while so many are in flight. Ends those that need no start.
    fn next(&mut self, in_flight: usize) -> Option<u32>;

    /// Returns an operation from [`next`](Self::next), and the files.
    fn op(&mut self, index: u32) -> (&mut Item, &Files);

    /// Takes a result.
    fn end(&mut self, index: u32, finished: &mut Finished);

    /// Takes back an operation that cannot be carried out, and the reason.
    fn refuse(&mut self, index: u32, error: Error);

    /// Takes back an operation that was not started, to return it again later.
    fn give_back(&mut self, index: u32);

    /// Estimates how many operations may start while so many are in flight.
    fn startable(&self, in_flight: usize) -> usize;

    /// Returns whether a result may let more operations start.
    fn has_more(&self) -> bool;

    /// Returns how many operations have not ended.
    fn open(&self) -> usize;

    /// Ends an operation that was begun, and will not be started.
    #[cold]
    fn end_unstarted(&mut self, index: u32) {
        let (op, files) = self.op(index);
        let memory = std::mem::take(op.begun(files).2);
        self.end(index, &mut Finished { memory, ended: CANCELLED });
    }

    /// Marks the operation of a token as cancelled, and returns it; `None` if it has ended, or the source has no tokens.
    fn mark_cancelled(&mut self, _: Token) -> Option<u32> {
        None
    }

    /// Returns the operations that were started and have not ended.
    fn in_flight(&self) -> impl Iterator<Item = u32>;
}

/// See the module.
pub(super) struct Engine {
    pub(super) remote: Arc<RemoteResults>,
    handler: Arc<dyn Handler>,
    /// The number that this thread's driver has for the handler.
    local: Option<LocalHandler>,
    /// The number of operations that other threads have; `on_ring` is that of operations on a ring.
    elsewhere: usize,
    on_ring: usize,
    /// Whether the thread must submit again: the kernel has refused operations, or is to be asked to cancel some. Nothing
    /// announces that.
    pub(super) must_submit: bool,
    /// The drivers that have, or had, operations of an awaited batch.
    drivers: Vec<u64>,
    /// Room for messages from other threads; empty between calls.
    fetched: Vec<Message>,
    process: fork::Mark,
}

fn note_driver(drivers: &mut Vec<u64>, driver: u64) {
    if !drivers.contains(&driver) {
        drivers.push(driver);
    }
}

impl Engine {
    pub(super) fn new(outlives_loops: bool) -> Self {
        let remote = RemoteResults::new(outlives_loops);
        let handler = Arc::clone(&remote) as Arc<dyn Handler>;
        let (drivers, fetched) = (Vec::new(), Vec::new());
        let process = fork::Mark::current();
        let (local, must_submit) = (None, false);
        Self { remote, handler, local, elsewhere: 0, on_ring: 0, must_submit, drivers, fetched, process }
    }

    /// Returns whether this is a forked child, and the operations in flight belong to its parent.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        !self.process.is_current()
    }

    /// In a forked child, takes the results that arrived before the fork, and the buffers of operations on this
    /// thread's ring. All other results arrive in the parent.
    #[cold]
    pub(super) fn take_in_inherited(&mut self, source: &mut impl Source) {
        driver::disown();
        self.take_in(source);
    }

    /// Takes results, then starts the operations that may start. Returns false if the thread's other tasks must run
    /// first.
    pub(super) fn go_on(&mut self, source: &mut impl Source) -> bool {
        self.take_in(source);
        source.startable(self.in_flight()) == 0 || self.start(source, false)
    }

    /// Takes results from other threads.
    #[inline]
    pub(super) fn take_in(&mut self, source: &mut impl Source) {
        if self.remote.mailbox.has_some() {
            self.fetch(source);
        }
    }

    #[inline(never)]
    fn fetch(&mut self, source: &mut impl Source) {
        let mut fetched = std::mem::take(&mut self.fetched);
        self.remote.mailbox.fetch(&mut fetched);
        for message in fetched.drain(..) {
            match message {
                Message::Ended(index, mut finished) => self.end(source, index, &mut finished),
                Message::Cancel(token) => self.cancel_for_another(source, token),
            }
        }
        self.fetched = fetched;
    }

    #[inline(always)]
    fn end(&mut self, source: &mut impl Source, index: u32, finished: &mut Finished) {
        match source.op(index).0.set_at(At::Nowhere) {
            At::Nowhere => {}
            At::Ring(_) => self.on_ring -= 1,
            At::Elsewhere => {
                self.elsewhere -= 1;
                self.remote.is_over(index);
            }
        }
        source.end(index, finished);
    }

    /// Starts the operations that may start. Returns false if the thread's other tasks must run first.
    fn start(&mut self, source: &mut impl Source, waits: bool) -> bool {
        let together = source.startable(self.in_flight());
        let hint = SubmitHint { together, waits_for_one: waits && source.open() == 1 };
        let Self { handler, local, elsewhere, on_ring, drivers, .. } = self;
        let mut receiver = HandlerOf { handler, index: 0, local: *local };
        while let Some(index) = source.next(*on_ring + *elsewhere) {
            receiver.index = index;
            let (op, files) = source.op(index);
            let (target, request, memory) = op.begun(files);
            match driver::start(target, request, memory, &receiver, hint) {
                Ok(Started::Queued(place)) => {
                    source.op(index).0.set_at(At::Ring(place));
                    *on_ring += 1;
                    if local.is_none() {
                        note_driver(drivers, place.driver);
                    }
                }
                Ok(Started::Done(ended)) => {
                    let memory = std::mem::take(memory);
                    source.end(index, &mut Finished { memory, ended });
                }
                Ok(Started::Elsewhere(driver)) => {
                    source.op(index).0.set_at(At::Elsewhere);
                    *elsewhere += 1;
                    driver.into_iter().for_each(|driver| note_driver(drivers, driver));
                }
                Ok(Started::Yield) => {
                    source.give_back(index);
                    return false;
                }
                Err(error) => source.refuse(index, error),
            }
        }
        true
    }

    /// Returns the number of operations that were started and have not ended.
    #[inline]
    fn in_flight(&self) -> usize {
        self.on_ring + self.elsewhere
    }

    /// Returns how many results to wait for: those of all operations in flight, or of an eighth of them if `source` has
    /// more to start, so that a slow operation does not leave the others' places empty.
    fn enough(&self, source: &impl Source) -> usize {
        let in_flight = self.in_flight();
        (if source.has_more() { in_flight / 8 } else { in_flight }).max(1)
    }

    /// Arranges that the awaiting task is woken when there is work. Returns false if there is work now.
    pub(super) fn wake(&self, source: &impl Source, waker: &Waker) -> bool {
        self.remote.mailbox.wake(waker, self.enough(source))
    }

    /// Cancels all operations in flight, and drops their results.
    pub(super) fn close(&self) {
        if self.is_inherited() {
            // Another thread may have held the locks at the fork, and the operations continue in the parent.
            return;
        }
        self.remote.mailbox.close();
        self.cancel_unwanted(None);
    }

    /// Cancels all operations in flight; each still gives its result.
    pub(super) fn cancel_all(&self, source: &impl Source) {
        source.in_flight().for_each(|index| self.remote.cancel(index));
        self.cancel_unwanted(None);
    }

    /// Cancels the operations that are no longer wanted, or only the one with this index, on whichever thread they are.
    fn cancel_unwanted(&self, only: Option<u32>) {
        driver::withdraw(&*self.remote, only);
        driver::cancel_on_rings(&self.handler, &self.drivers);
    }

    /// Cancels an operation of a queue for another thread.
    #[cold]
    fn cancel_for_another(&mut self, source: &mut impl Source, token: Token) {
        if !self.is_inherited()
            && let Some(index) = source.mark_cancelled(token)
        {
            self.cancel(source, &[index]);
            self.must_submit = true;
        }
    }

    /// Cancels operations; each still gives its result.
    fn cancel(&self, source: &mut impl Source, indices: &[u32]) {
        let mut are_elsewhere = false;
        for &index in indices {
            match source.op(index).0.at() {
                At::Ring(place) => driver::cancel(place),
                At::Elsewhere => {
                    self.remote.cancel(index);
                    are_elsewhere = true;
                }
                At::Nowhere => {}
            }
        }
        if are_elsewhere {
            // Called once for all of them: it visits every request that no worker has begun.
            self.cancel_unwanted(if let [index] = indices { Some(*index) } else { None });
        }
    }
}

/// See the module.
pub(super) struct ThreadEngine {
    pub(super) engine: Engine,
    deferred: Deferred,
    ring: ThreadRing,
    /// Whether this is a queue of one thread, which other threads may order to cancel operations.
    takes_orders: bool,
}

impl ThreadEngine {
    /// Creates an engine. `then` says what becomes of the driver afterwards.
    pub(super) fn new(then: AfterUse) -> Self {
        let ring = ThreadRing::new(then);
        Self {
            engine: Engine::new(true),
            deferred: Deferred::default(),
            ring,
            takes_orders: then == AfterUse::Leave,
        }
    }

    /// Returns whether this is a forked child, and the open operations, or the driver, belong to the parent. If nothing
    /// was started before the fork, everything belongs to the child.
    pub(super) fn is_inherited(&mut self) -> bool {
        let engine = &mut self.engine;
        if engine.is_inherited() && engine.local.is_none() && engine.in_flight() == 0 {
            *engine = Engine::new(true);
        }
        engine.is_inherited()
    }

    /// Starts and submits operations, and takes results, without waiting. Returns false if, in a loop, the thread's
    /// other tasks must run before the rest is started.
    pub(super) fn look(&mut self, source: &mut impl Source) -> bool {
        let inherited = self.is_inherited();
        // If the thread is ending and its driver is gone, the driver has waited for the operations in flight.
        let Some(guard) = self.ring.guard() else {
            self.engine.take_in(source);
            return true;
        };
        let Self { engine, deferred, takes_orders, .. } = self;
        let went_on = if guard.is_in_loop() {
            // The loop submits and collects, and delivers the results to `remote`.
            let went_on = engine.go_on(source);
            engine.must_submit = false;
            went_on
        } else {
            engine.know(deferred, takes_orders.then_some(&guard));
            engine.advance(source, deferred, false);
            engine.must_submit = engine.submit_all(&guard, source, deferred);
            true
        };
        if inherited {
            engine.give_up(source);
        }
        went_on
    }

    /// Waits until the deadline, or until `wanted`, the number of operations that must still end, is 0.
    pub(super) fn wait<S: Source>(
        &mut self,
        source: &mut S,
        deadline: Option<Instant>,
        mut wanted: impl FnMut(&mut S) -> usize,
    ) {
        if self.is_inherited() {
            self.look(source);
            return;
        }
        let Some(guard) = self.ring.guard() else {
            return self.engine.wait_for_others(source, deadline, wanted);
        };
        let Self { engine, deferred, takes_orders, .. } = self;
        engine.know(deferred, takes_orders.then_some(&guard));
        guard.wait(deferred, deadline, |deferred| {
            loop {
                engine.advance(source, deferred, deadline.is_none());
                let more = wanted(source);
                if more == 0 {
                    return None;
                }
                // Starting an operation may have called user code, such as a subscriber of events, which has turned the
                // driver. Then the results are here already.
                if engine.elsewhere == 0 && !engine.remote.mailbox.has_some() {
                    if deadline.is_none() && driver::call_alone(deferred) {
                        continue;
                    }
                    return Some(more.min(engine.enough(source)).try_into().unwrap_or(u32::MAX));
                }
                if engine.remote.mailbox.wake(&guard.waker(), 1) {
                    return Some(1);
                }
            }
        });
        // Completion even if there was nothing to wait for, or no time.
        engine.must_submit = guard.must_turn_again() && engine.submit_all(&guard, source, deferred);
    }

    /// Carries out the reads that go to this thread's ring, into buffers that stay with their caller, and waits for
    /// them: see [`driver::read_in_place`]. The next call takes the results of other operations that arrive meanwhile.
    /// Returns whether the driver must be turned again now, for those other operations.
    pub(super) fn read_in_place(
        &mut self,
        targets: Targets<'_>,
        reads: &mut (impl InPlace + ?Sized),
        most: usize,
    ) -> bool {
        if self.is_inherited() {
            return false;
        }
        let Some(guard) = self.ring.guard().filter(|guard| !guard.is_in_loop()) else { return false };
        driver::read_in_place(&guard, &mut self.deferred, targets, reads, most);
        guard.must_turn_again()
    }

    /// Returns whether operations are in flight elsewhere than on the thread's ring.
    pub(super) fn has_some_elsewhere(&self) -> bool {
        self.engine.elsewhere > 0
    }

    /// Makes the ends of operations in flight elsewhere wake the thread, which has the engine's driver. Returns false if
    /// there is something to do first.
    pub(super) fn listen(&mut self) -> bool {
        let Some(guard) = self.ring.guard() else { return false };
        self.engine.elsewhere == 0 || self.engine.remote.mailbox.wake(&guard.waker(), 1)
    }

    /// Returns the descriptors that are readable while this thread's ring, or AIO, may have completions.
    ///
    /// # Errors
    /// Those of `eventfd(2)`, and of registering the descriptor.
    pub(super) fn completion_signals(&mut self) -> std::io::Result<CompletionSignals> {
        let guard = self.ring.guard();
        guard.map_or_else(|| Ok(CompletionSignals::default()), |_visit| driver::completion_signals())
    }

    /// Cancels operations; each still gives its result. Starts none.
    pub(super) fn cancel(&mut self, source: &mut impl Source, indices: &[u32]) {
        if self.is_inherited() {
            return;
        }
        self.engine.cancel(source, indices);
        if self.engine.on_ring == 0 {
            return;
        }
        let Some(guard) = self.ring.guard() else { return };
        let Self { engine, deferred, .. } = self;
        // The kernel is asked now: the program may wait for the descriptor next.
        while !guard.is_in_loop() && guard.must_turn_again() {
            guard.look(deferred);
            engine.collect(source, deferred);
            if guard.is_refused() {
                engine.must_submit = guard.must_turn_again();
                return;
            }
        }
    }
}

impl Engine {
    /// Adds the handler to this thread's driver, whose thread is told of orders if `orders_to` is some. In turns of this engine, its results stay in `deferred`.
    #[inline]
    fn know(&mut self, deferred: &mut Deferred, orders_to: Option<&RingGuard<'_>>) {
        if self.local.is_none() {
            self.local = driver::add_local(Arc::clone(&self.handler));
            deferred.own = self.local;
            if let Some(guard) = orders_to {
                self.remote.set_thread(guard.thread());
            }
        }
    }

    /// Takes results.
    #[inline]
    fn collect(&mut self, source: &mut impl Source, deferred: &mut Deferred) {
        deferred.take_own_results(|index, finished| self.end(source, index, finished));
        self.take_in(source);
    }

    /// Waits for the operations that other threads have, on a thread that is ending and has no driver any more. When
    /// the driver was dropped, it waited for the operations on its rings.
    #[cold]
    fn wait_for_others<S: Source>(
        &mut self,
        source: &mut S,
        deadline: Option<Instant>,
        mut wanted: impl FnMut(&mut S) -> usize,
    ) {
        // It parks this thread, and belongs to no driver.
        let thread = Arc::new(Shared::new(0));
        loop {
            thread.sleep.take_notification();
            self.take_in(source);
            let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if self.elsewhere == 0 || is_late || wanted(source) == 0 {
                return;
            }
            if self.remote.mailbox.wake(&thread.waker(), 1) {
                thread.park(deadline);
            }
        }
    }

    /// Turns the driver, again and again while there is something to submit: a result may let another operation start,
    /// and the kernel may have done a part of an operation, of this engine or another one. The program may wait for the
    /// descriptor next, so nothing may be left. Returns true if the kernel refuses the rest for now, and the caller
    /// must come back.
    fn submit_all(
        &mut self,
        guard: &RingGuard<'_>,
        source: &mut impl Source,
        deferred: &mut Deferred,
    ) -> bool {
        loop {
            guard.look(deferred);
            self.advance(source, deferred, false);
            if !guard.must_turn_again() {
                return false;
            }
            if guard.is_refused() {
                return true;
            }
        }
    }

    #[inline]
    fn advance(&mut self, source: &mut impl Source, deferred: &mut Deferred, waits: bool) {
        self.collect(source, deferred);
        if source.startable(self.in_flight()) > 0 {
            self.start(source, waits);
            // One turn may collect them all.
            deferred.expect_results(self.on_ring);
        }
    }

    /// Ends started operations in a forked child: their results arrive in the parent, which has the rings and the
    /// threads.
    #[cold]
    fn give_up(&mut self, source: &mut impl Source) {
        self.take_in_inherited(source);
        let in_flight: Vec<u32> = source.in_flight().collect();
        for index in in_flight {
            self.end(source, index, &mut Finished { memory: IoMemory::None, ended: CANCELLED });
        }
    }
}

impl Drop for ThreadEngine {
    fn drop(&mut self) {
        if self.engine.is_inherited() {
            return;
        }
        self.engine.remote.mailbox.close();
        if let Some(local) = self.engine.local.take() {
            driver::remove_local(local, &self.engine.handler);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::entries::Entries;
    use super::*;
    use crate::{Batch, OpenOptions, Route};

    #[test]
    fn a_result_that_arrives_while_others_are_started_is_not_waited_for() {
        let (ends, end) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let is_forced = std::env::var_os("RINGFILE_DISABLE").is_some();
            let route = if is_forced { Route::Workers } else { Route::Ring };
            let file = OpenOptions::new().read(true).route(route).open_blocking("/proc/self/exe").unwrap();
            let mut engine = ThreadEngine::new(AfterUse::Leave);
            let mut entries = Entries::with_capacity(1);
            file.read_at(vec![0_u8; 16], 0).ask(|file, asked| entries.add(file, asked, 0));
            let results = Arc::clone(&engine.engine.remote);
            engine.wait(&mut entries, None, |entries| {
                // Behaves like a subscriber that writes an event to a file: it turns the thread's driver for a batch,
                // until that has collected a result of the queue.
                while entries.open > 0 && !results.mailbox.has_some() {
                    let mut batch = Batch::new();
                    batch.add(file.read_at(Vec::with_capacity(16), 0));
                    assert_eq!(batch.run()[0].result.as_ref().ok(), Some(&16));
                }
                entries.left_until(1)
            });
            ends.send(entries.done).unwrap();
        });
        assert_eq!(end.recv_timeout(crate::patience::patience()), Ok(1));
        thread.join().unwrap();
    }
}
