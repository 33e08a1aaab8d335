//! A batch that runs: which operation starts when, and how each ends.
//!
//! Knows drivers as where operations are dispatched to. What always holds: whoever ends an operation starts the next, so
//! that nothing waits for a thread that does not know it, and there is no recursion ([`super::progress`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use super::op::{NONE, Op, Stage};
use super::progress::{Progress, Work};
use super::{Batch, Done, merge, with_refused};
use crate::driver::{self, Aftermath, Called, Finished, Order, Request, Sink, Target, dispatch, try_calls};
use crate::memory::Held;
use crate::ring::fork;

const STOPPED: &str = "an operation of the batch failed, and the batch stops on errors";
const BARRIER: &str = "an operation before the barrier failed";

/// See the module.
pub(super) struct Running {
    progress: Progress<Plan>,
    /// Nobody wants the results any more.
    closed: AtomicBool,
    /// The thread that made it waits for it, and turns its driver meanwhile.
    blocking: bool,
    /// How many results there will be.
    len: usize,
    process: fork::Mark,
}

/// The operations, and how far they are.
struct Plan {
    ops: Vec<Op>,
    results: Vec<Done>,
    refused: usize,
    /// Before which operations all earlier ones must have ended, the next first.
    barriers: std::vec::IntoIter<u32>,
    /// Where the next barrier is, or the end.
    border: u32,
    /// The first operation that was not looked at yet.
    next: u32,
    /// Operations to begin once more.
    again: Vec<u32>,
    /// Begun, and given back to be carried out later. Counts as in flight.
    given_back: Option<Begun>,
    in_flight: usize,
    most: usize,
    ended: usize,
    failed: bool,
    stop_on_error: bool,
    stopped: Option<&'static str>,
    merge: Option<usize>,
}

/// An operation on its way to a driver.
struct Begun {
    index: u32,
    request: Request,
    held: Held,
}

impl Running {
    pub(super) fn new(batch: Batch, blocking: bool) -> Arc<Self> {
        let len = batch.len();
        let mut plan = Plan {
            results: batch.results,
            refused: batch.refused,
            barriers: batch.barriers.into_iter(),
            border: 0,
            next: 0,
            again: Vec::new(),
            given_back: None,
            in_flight: 0,
            most: batch.most,
            ended: 0,
            failed: false,
            stop_on_error: batch.stop_on_error,
            stopped: None,
            merge: batch.merge,
            ops: batch.ops,
        };
        plan.pass_border();
        let (progress, closed) = (Progress::new(plan), AtomicBool::new(false));
        Arc::new(Self { progress, closed, blocking, len, process: fork::Mark::current() })
    }

    /// Starts what may be started, and returns the results if the batch is over; else `waker` is woken when it is.
    pub(super) fn poll(self: &Arc<Self>, waker: &Waker) -> Option<Vec<Done>> {
        if !self.process.is_current() {
            return Some(self.give_up_inherited());
        }
        self.progress.register(waker);
        self.start();
        let Plan { ops, mut results, refused, .. } = self.progress.take()?;
        results.extend(ops.into_iter().map(Op::into_done));
        Some(with_refused(results, refused))
    }

    /// In a forked child: the operations, and what they hold, are the parent's, and so may the lock be.
    #[cold]
    fn give_up_inherited(&self) -> Vec<Done> {
        (0..self.len).map(|_| Done { result: Err(driver::after_fork()), buffer: None }).collect()
    }

    /// Starts nothing more, and cancels what is in flight where the kernel still can; that keeps its buffers until it has
    /// ended.
    pub(super) fn close(self: &Arc<Self>) {
        if !self.process.is_current() {
            // A thread of the parent may have been changing it; leaked.
            std::mem::forget(Arc::clone(self));
            return;
        }
        self.closed.store(true, Ordering::Release);
        let Some(plan) = self.progress.close() else { return };
        let in_flight = plan.in_flight - usize::from(plan.given_back.is_some());
        drop(plan);
        if in_flight > 0 {
            driver::cancel_all(&(Arc::clone(self) as Arc<dyn Sink>));
        }
    }

    /// Starts what may be started, unless another thread, or this one further up, does so already.
    fn start(self: &Arc<Self>) {
        if !self.progress.begin_starting() {
            return;
        }
        // That of the operation before; most batches read one file.
        let mut target: Option<Arc<Target>> = None;
        let mut after = Aftermath::default();
        while let Some(mut begun) = self.progress.next(|plan| plan.next_of(&mut target)) {
            let Some(target) = &target else { return };
            match try_calls(target, &begun.request, &mut begun.held, self.blocking) {
                Called::Over(ended) => self.progress.end(|plan| {
                    plan.end(begun.index, Finished { held: begun.held, ended });
                }),
                Called::Later => return self.progress.pause(|plan| plan.given_back = Some(begun)),
                Called::Left(choice) => {
                    dispatch(self.order(begun, target), choice, self.blocking, &mut after);
                }
            }
        }
    }

    fn order(self: &Arc<Self>, begun: Begun, target: &Arc<Target>) -> Order {
        let Begun { index, request, held } = begun;
        let sink = Arc::clone(self) as Arc<dyn Sink>;
        Order::new(Arc::clone(target), request, held, sink, index)
    }
}

impl Sink for Running {
    fn done(self: Arc<Self>, index: u32, finished: Finished) {
        if self.process.is_current() {
            self.progress.end(|plan| plan.end(index, finished));
            self.start();
        }
    }

    fn is_wanted(&self, _: u32) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    fn outlives_loops(&self) -> bool {
        self.blocking
    }

    fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}

impl Work for Plan {
    fn is_over(&self) -> bool {
        self.ended == self.ops.len()
    }
}

impl Plan {
    /// Goes on to the operations behind a barrier.
    fn pass_border(&mut self) {
        let end = self.ops.len() as u32;
        self.border = self.barriers.find(|&barrier| barrier > self.next).unwrap_or(end);
        if let Some(gap) = self.merge {
            merge::plan(&mut self.ops, self.next..self.border, gap);
        }
    }

    /// As [`next`](Self::next), with the operation's file in `target`.
    fn next_of(&mut self, target: &mut Option<Arc<Target>>) -> Option<Begun> {
        let begun = self.next()?;
        let wanted = self.ops[begun.index as usize].file.target();
        if !target.as_ref().is_some_and(|target| Arc::ptr_eq(target, wanted)) {
            *target = Some(Arc::clone(wanted));
        }
        Some(begun)
    }

    /// The next operation that may start; ends those that need no start.
    fn next(&mut self) -> Option<Begun> {
        if self.given_back.is_some() {
            return self.given_back.take();
        }
        while self.in_flight < self.most {
            let index = self.next_index()?;
            if let Some((request, held)) = self.begin(index) {
                self.in_flight += 1;
                return Some(Begun { index, request, held });
            }
        }
        None
    }

    fn next_index(&mut self) -> Option<u32> {
        if let Some(index) = self.again.pop() {
            return Some(index);
        }
        if let Some(why) = self.stopped {
            self.cancel_rest(why);
            return None;
        }
        if self.next == self.border {
            if self.next as usize >= self.ops.len() || self.ended < self.next as usize {
                return None;
            }
            if self.failed {
                self.cancel_rest(BARRIER);
                return None;
            }
            self.pass_border();
        }
        self.next += 1;
        Some(self.next - 1)
    }

    fn begin(&mut self, index: u32) -> Option<(Request, Held)> {
        let op = &mut self.ops[index as usize];
        match op.stage {
            Stage::Waiting if op.next != NONE => merge::begin(&mut self.ops, index, &mut self.again),
            Stage::Waiting => {
                let begun = op.begin();
                if begun.is_none() {
                    self.count(index);
                }
                begun
            }
            // It was begun, or is over, with its group; or it is twice among those to begin once more.
            _ => None,
        }
    }

    /// Takes the result of an operation that was begun.
    fn end(&mut self, index: u32, finished: Finished) {
        self.in_flight -= 1;
        if self.ops[index as usize].next != NONE {
            let ended = merge::end(&mut self.ops, index, finished, &mut self.again);
            self.have_ended(ended);
            return;
        }
        if self.ops[index as usize].end(finished) {
            self.count(index);
        } else {
            self.again.push(index);
        }
    }

    fn have_ended(&mut self, count: usize) {
        self.ended += count;
        if self.is_over() {
            // Who takes the results finds them counted.
            driver::publish_counts();
        }
    }

    /// Counts an operation that is over.
    fn count(&mut self, index: u32) {
        self.have_ended(1);
        if self.ops[index as usize].has_failed() {
            self.failed = true;
            if self.stop_on_error {
                self.stopped = Some(STOPPED);
            }
        }
    }

    /// Cancels what was not begun. What is merged with an operation that was ends with it.
    fn cancel_rest(&mut self, why: &'static str) {
        let from = std::mem::replace(&mut self.next, self.ops.len() as u32);
        self.border = self.next;
        for index in from..self.next {
            let ended = merge::cancel(&mut self.ops, index, why);
            self.have_ended(ended);
        }
    }
}
