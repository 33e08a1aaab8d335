//! A batch that runs: which operation starts when, and who is told that all have ended.
//!
//! What always holds: one thread at a time starts operations, and never under the lock, as an operation may end before
//! its start returns; whoever ends one starts the next. So there is no recursion, and nothing waits for a thread that
//! does not know it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::op::{NONE, Op, Stage};
use super::{Batch, Done, merge, with_refused};
use crate::driver::{self, Dispatched, Finished, Order, Sink, dispatch};

const STOPPED: &str = "an operation of the batch failed, and the batch stops on errors";
const BARRIER: &str = "an operation before the barrier failed";

/// See the module.
pub(super) struct Running {
    inner: Mutex<Inner>,
    /// Nobody wants the results any more.
    closed: AtomicBool,
}

struct Inner {
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
    /// Made, and given back to be started later. Counts as in flight.
    given_back: Option<Order>,
    in_flight: usize,
    most: usize,
    ended: usize,
    failed: bool,
    stop_on_error: bool,
    stopped: Option<&'static str>,
    merge: Option<usize>,
    /// A thread starts operations.
    starting: bool,
    waker: Option<Waker>,
}

impl Running {
    pub(super) fn new(batch: Batch, waker: Waker) -> Arc<Self> {
        let mut inner = Inner {
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
            starting: false,
            waker: Some(waker),
            ops: batch.ops,
        };
        inner.pass_border();
        Arc::new(Self { inner: Mutex::new(inner), closed: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().is_over()
    }

    /// Says whom to wake from now on. Nobody, where all is over.
    pub(super) fn set_waker(&self, waker: &Waker) {
        let mut inner = self.lock();
        if inner.is_over() || inner.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return;
        }
        let before = inner.waker.replace(waker.clone());
        // Wakers may own anything, so none is dropped under the lock.
        drop(inner);
        drop(before);
    }

    /// The results, of a batch that is over.
    pub(super) fn take(&self) -> Vec<Done> {
        let (ops, mut results, refused) = {
            let mut inner = self.lock();
            (std::mem::take(&mut inner.ops), std::mem::take(&mut inner.results), inner.refused)
        };
        results.extend(ops.into_iter().map(Op::into_done));
        with_refused(results, refused)
    }

    /// Starts nothing more, and cancels what is in flight where the kernel still can; that keeps its buffers until it has
    /// ended.
    pub(super) fn close(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        let mut inner = self.lock();
        let rest = (std::mem::take(&mut inner.ops), inner.given_back.take(), inner.waker.take());
        let in_flight = inner.in_flight - usize::from(rest.1.is_some());
        drop(inner);
        drop(rest);
        if in_flight > 0 {
            driver::cancel_all(&(Arc::clone(self) as Arc<dyn Sink>));
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Starts what may be started, unless another thread, or this one further up, does so already.
    pub(super) fn start(self: &Arc<Self>) {
        let mut inner = self.lock();
        if inner.starting {
            return;
        }
        inner.starting = true;
        loop {
            let order = if self.is_closed() { None } else { inner.next_order(self) };
            let Some(order) = order else {
                inner.starting = false;
                let waker = if inner.is_over() { inner.waker.take() } else { None };
                drop(inner);
                return waker.into_iter().for_each(Waker::wake);
            };
            drop(inner);
            let dispatched = dispatch(order);
            inner = self.lock();
            if let Dispatched::Later(order) = dispatched {
                return self.give_back(inner, order);
            }
        }
    }

    /// Leaves the rest to whoever waits for the batch, so that what else this thread does has its turn.
    fn give_back(&self, mut inner: MutexGuard<'_, Inner>, order: Order) {
        inner.starting = false;
        if self.is_closed() {
            drop(inner);
            return drop(order);
        }
        inner.given_back = Some(order);
        let waker = inner.waker.clone();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Sink for Running {
    fn done(self: Arc<Self>, index: u32, finished: Finished) {
        let mut inner = self.lock();
        inner.in_flight -= 1;
        if self.is_closed() || inner.ops.is_empty() {
            drop(inner);
            return drop(finished);
        }
        inner.end(index, finished);
        drop(inner);
        self.start();
    }

    fn is_wanted(&self, _: u32) -> bool {
        !self.is_closed()
    }

    fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}

impl Inner {
    fn is_over(&self) -> bool {
        self.ended == self.ops.len()
    }

    /// Goes on to the operations behind a barrier.
    fn pass_border(&mut self) {
        let end = self.ops.len() as u32;
        self.border = self.barriers.find(|&barrier| barrier > self.next).unwrap_or(end);
        if let Some(gap) = self.merge {
            merge::plan(&mut self.ops, self.next..self.border, gap);
        }
    }

    /// The next operation that may start; ends those that need no start.
    fn next_order(&mut self, sink: &Arc<Running>) -> Option<Order> {
        if self.given_back.is_some() {
            return self.given_back.take();
        }
        while self.in_flight < self.most {
            let index = self.next_index()?;
            if let Some(order) = self.begin(index, sink) {
                self.in_flight += 1;
                return Some(order);
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

    fn begin(&mut self, index: u32, sink: &Arc<Running>) -> Option<Order> {
        let op = &mut self.ops[index as usize];
        let begun = match op.stage {
            Stage::Waiting if op.next != NONE => merge::begin(&mut self.ops, index, &mut self.again),
            Stage::Waiting => {
                let begun = op.begin();
                if begun.is_none() {
                    self.count(index);
                }
                begun
            }
            // It was begun, or is over, with its group; or it is twice among those to begin once more.
            _ => return None,
        };
        let (request, held) = begun?;
        let target = Arc::clone(self.ops[index as usize].file.target());
        Some(Order { target, request, held, sink: Arc::clone(sink) as Arc<dyn Sink>, index })
    }

    fn end(&mut self, index: u32, finished: Finished) {
        if self.ops[index as usize].next != NONE {
            self.ended += merge::end(&mut self.ops, index, finished, &mut self.again);
            return;
        }
        if self.ops[index as usize].end(finished) {
            self.count(index);
        } else {
            self.again.push(index);
        }
    }

    /// Counts an operation that is over.
    fn count(&mut self, index: u32) {
        self.ended += 1;
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
            self.ended += merge::cancel(&mut self.ops, index, why);
        }
    }
}
