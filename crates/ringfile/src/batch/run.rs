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
use crate::driver::{self, Aftermath, Called, Finished, Order, Request, Sink, Target, dispatch, try_calls};
use crate::memory::Held;

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
    /// Begun, and given back to be carried out later. Counts as in flight.
    given_back: Option<Begun>,
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

/// An operation on its way to a driver.
struct Begun {
    index: u32,
    request: Request,
    held: Held,
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
        // That of the operation before; most batches read one file.
        let mut target: Option<Arc<Target>> = None;
        let mut after = Aftermath::default();
        loop {
            let begun = if self.is_closed() { None } else { inner.next() };
            let Some(mut begun) = begun else {
                inner.starting = false;
                let over = inner.is_over();
                let waker = if over { inner.waker.take() } else { None };
                if over {
                    driver::publish_counts();
                }
                drop(inner);
                return waker.into_iter().for_each(Waker::wake);
            };
            let wanted = inner.ops[begun.index as usize].file.target();
            let target = match &mut target {
                Some(target) if Arc::ptr_eq(target, wanted) => target,
                other => other.insert(Arc::clone(wanted)),
            };
            drop(inner);
            match try_calls(target, &begun.request, &mut begun.held) {
                Called::Over(ended) => {
                    inner = self.lock();
                    inner.in_flight -= 1;
                    if self.is_closed() {
                        return self.drop_late(inner, begun.held);
                    }
                    inner.end(begun.index, Finished { held: begun.held, ended });
                }
                Called::Later => return self.give_back(begun),
                Called::Left(choice) => {
                    dispatch(self.order(begun, target), choice, &mut after);
                    inner = self.lock();
                }
            }
        }
    }

    fn order(self: &Arc<Self>, begun: Begun, target: &Arc<Target>) -> Order {
        let Begun { index, request, held } = begun;
        let sink = Arc::clone(self) as Arc<dyn Sink>;
        Order::new(Arc::clone(target), request, held, sink, index)
    }

    /// What came for a batch that nobody waits for any more. A buffer's destructor may be anybody's.
    fn drop_late(&self, mut inner: MutexGuard<'_, Inner>, held: Held) {
        inner.starting = false;
        drop(inner);
        drop(held);
    }

    /// Leaves the rest to whoever waits for the batch, so that what else this thread does has its turn.
    fn give_back(&self, begun: Begun) {
        let mut inner = self.lock();
        if self.is_closed() {
            inner.in_flight -= 1;
            return self.drop_late(inner, begun.held);
        }
        inner.starting = false;
        inner.given_back = Some(begun);
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
