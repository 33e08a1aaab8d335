//! The write of a part of an upload, which the part's future and the upload's `complete` poll.
//!
//! Invariants: wakers are called, cloned and dropped with no lock held, since they may panic or poll inline; one
//! of the two polls the write at a time, and the other is woken afterwards; each has its own place for a waker, so that a waker
//! which panics costs the other nothing; the write's own waker does not keep it alive.

use std::io::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::{BoxFuture, join_all, poll_fn};
use futures_util::task::AtomicWaker;

/// See the module.
pub(crate) struct Part {
    state: Mutex<State>,
    wakers: Arc<Wakers>,
}

enum State {
    Idle(BoxFuture<'static, Result<()>>),
    /// It is being polled, and whether the other one came meanwhile.
    Polled(bool),
    /// The result, until the part's future takes it.
    Ended(Option<Result<()>>),
}

/// The wakers of those who poll the write, by [`Who`].
struct Wakers([AtomicWaker; 2]);

/// One that polls the write.
#[derive(Clone, Copy)]
enum Who {
    Part,
    Complete,
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        let [part, complete] = &self.0;
        let woken = catch_unwind(AssertUnwindSafe(|| part.wake()));
        complete.wake();
        woken.unwrap_or_else(|panic| resume_unwind(panic));
    }
}

impl Part {
    pub(crate) fn new(write: BoxFuture<'static, Result<()>>) -> Arc<Self> {
        let wakers = Arc::new(Wakers([AtomicWaker::new(), AtomicWaker::new()]));
        Arc::new(Self { state: Mutex::new(State::Idle(write)), wakers })
    }

    /// Writes the part, and returns the result. Dropping this future cancels the write, unless [`finish`] has it.
    pub(crate) async fn write(self: Arc<Self>) -> Result<()> {
        poll_fn(|context| self.poll(Who::Part, context)).await;
        let result = if let State::Ended(result) = &mut *self.state() { result.take() } else { None };
        result.unwrap_or(Ok(()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self, who: Who, context: &Context<'_>) -> Poll<()> {
        self.wakers.0[who as usize].register(context.waker());
        let taken = {
            let mut state = self.state();
            match &mut *state {
                State::Ended(_) => return Poll::Ready(()),
                State::Polled(came) => {
                    *came = true;
                    return Poll::Pending;
                }
                State::Idle(_) => std::mem::replace(&mut *state, State::Polled(false)),
            }
        };
        let State::Idle(mut write) = taken else { return Poll::Pending };
        let mut polled = Polled { part: self, who, after: Some(State::Ended(Some(Err(panicked())))) };
        let ended = write.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&self.wakers))));
        let (result, after) = match ended {
            Poll::Ready(result) => (Poll::Ready(()), State::Ended(Some(result))),
            Poll::Pending => (Poll::Pending, State::Idle(write)),
        };
        polled.after = Some(after);
        drop(polled);
        result
    }
}

/// Finishes writes, also those whose futures nobody polls any more.
pub(crate) async fn finish(parts: &[Weak<Part>]) {
    // Held together, so that a part whose future is dropped from now on is written too.
    let parts: Vec<Arc<Part>> = parts.iter().filter_map(Weak::upgrade).collect();
    join_all(parts.iter().map(|part| poll_fn(|context| part.poll(Who::Complete, context)))).await;
}

fn panicked() -> Error {
    Error::other("writing a part of the upload panicked")
}

/// Ends a poll, even if it panics.
struct Polled<'a> {
    part: &'a Part,
    who: Who,
    after: Option<State>,
}

impl Drop for Polled<'_> {
    fn drop(&mut self) {
        let Some(after) = self.after.take() else { return };
        let has_ended = matches!(after, State::Ended(_));
        let before = std::mem::replace(&mut *self.part.state(), after);
        if has_ended || matches!(before, State::Polled(true)) {
            let other = match self.who {
                Who::Part => Who::Complete,
                Who::Complete => Who::Part,
            };
            // A panic of the other's waker does not concern this one.
            let _ = catch_unwind(AssertUnwindSafe(|| self.part.wakers.0[other as usize].wake()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A part whose first poll comes while `complete` polls it too, and ends as `after` says.
    fn met_by_complete(count: &Arc<Count>, after: fn() -> Poll<Result<()>>) -> Arc<Part> {
        let (other, waker) = (Arc::new(Mutex::new(Weak::<Part>::new())), Waker::from(Arc::clone(count)));
        let met = Arc::clone(&other);
        let write = poll_fn(move |_| {
            let part = met.lock().expect("its lock").upgrade().expect("it is polled");
            let _ = part.poll(Who::Complete, &Context::from_waker(&waker));
            after()
        });
        let part = Part::new(write.boxed());
        *other.lock().expect("its lock") = Arc::downgrade(&part);
        part
    }

    #[test]
    fn a_caller_that_comes_while_another_polls_is_woken_afterwards() {
        let count = Arc::new(Count::default());
        let waits = met_by_complete(&count, || Poll::Pending);
        assert!(waits.write().now_or_never().is_none());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        let ends = met_by_complete(&count, || Poll::Ready(Err(Error::from_raw_os_error(5))));
        let result = Arc::clone(&ends).write().now_or_never().expect("it has ended");
        assert_eq!(result.expect_err("it has failed").raw_os_error(), Some(5));
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        finish(&[Arc::downgrade(&ends)]).now_or_never().expect("it has ended");
    }

    #[test]
    fn a_write_that_panics_has_failed_for_both() {
        let count = Arc::new(Count::default());
        let part = met_by_complete(&count, || panic!("a defect"));
        let own = Arc::clone(&part);
        assert!(catch_unwind(AssertUnwindSafe(|| own.write().now_or_never())).is_err());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        finish(&[Arc::downgrade(&part)]).now_or_never().expect("it has ended");
        part.write().now_or_never().expect("it has ended").expect_err("it has failed");
    }
}
