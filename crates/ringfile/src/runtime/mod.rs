//! Runs futures: [`block_on`] on one thread, [`Runtime`] on a thread per core.
//!
//! A thread's loop runs ready tasks, submits all their I/O with one system call, and sleeps in that same call until
//! something completes or another thread wakes it. Tasks stay on their thread; threads do not steal tasks. Any future runs
//! here, even those of crates that have their own reactor thread.
//!
//! Wakers and callbacks that the library's own threads call run with all signals blocked; threads of a [`Runtime`] have the mask
//! of the thread that builds it.

mod executor;
mod task;
mod threads;

use std::future::IntoFuture;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

pub use crate::driver::{set_io_threads, set_worker_threads};
pub use crate::ring::TaskRun;
pub use task::{JoinError, JoinHandle, Panic, spawn};
pub use threads::{Runtime, RuntimeBuilder};

use crate::ring::RingOptions;
use executor::Loop;
pub(crate) use executor::{is_in_loop, note_started, should_turn};

/// Runs `future`, or what becomes one, such as a [`Batch`](crate::Batch), on the calling thread until it is ready,
/// together with the tasks that it [`spawn`]s.
///
/// Before it returns, tasks that have not ended are dropped, and operations in flight end or are cancelled; those on
/// pipes, sockets and terminals fail with `ECANCELED`. A future that still exists keeps its result for its next poll.
///
/// A sync or a durable write that is the only operation is a plain call of the thread itself, with
/// [`Auto`](crate::Route::Auto): other futures, such as a timer of another crate, may be seen late.
///
/// # Panics
/// On a thread that is already inside `block_on` or a [`Runtime`]. Panics of `future`, and of wakers and buffers that
/// its operations call, are propagated, after operations have ended. A task's panic is its result.
///
/// ```
/// let sum = ringfile::block_on(async {
///     let handle = ringfile::spawn(async { 40 });
///     handle.await.unwrap() + 2
/// });
/// assert_eq!(sum, 42);
/// ```
#[track_caller]
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    block_on_with(RingOptions::default(), future)
}

/// As [`block_on`]; `options` apply only if the thread has no ring yet.
#[track_caller]
pub(crate) fn block_on_with<F: IntoFuture>(options: RingOptions, future: F) -> F::Output {
    let mut thread = Loop::enter(options)
        .expect("ringfile::block_on was called inside a ringfile thread: await the future instead");
    thread.run_until(pin!(future.into_future()))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future on a thread that is in no loop, and parks the thread while it is pending. What is ready at once costs no
/// waker.
pub(crate) fn park_until_ready<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return output;
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}
