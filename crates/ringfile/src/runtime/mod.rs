//! Runs futures: [`block_on`] on one thread, [`Runtime`] on a thread per core.
//!
//! A thread's loop runs ready tasks, submits all their I/O with one system call, and sleeps in that same call until
//! something completes or another thread wakes it. Tasks stay on their thread; threads do not steal tasks. Any future runs
//! here, even those of crates that have their own reactor thread.

mod executor;
mod task;
mod threads;

use std::future::Future;
use std::pin::pin;

pub use task::{JoinError, JoinHandle, Panic, spawn};
pub use threads::{Runtime, RuntimeBuilder};

use crate::ring::RingOptions;
use executor::Loop;
pub(crate) use executor::{is_in_loop, note_started, should_turn};

/// Runs `future` on the calling thread until it is ready, together with the tasks that it [`spawn`]s.
///
/// Before it returns, tasks that have not ended are dropped, and operations in flight end; those of dropped futures are
/// cancelled if the kernel still can. A future that was polled inside and still exists keeps its result, which its next
/// poll returns, on any thread. Only its operations on a pipe, a socket or a terminal, which might wait forever, are
/// cancelled, and fail with `ECANCELED`. So `block_on` does not wait for another process or a person.
///
/// If a sync or a durable write is the only operation, and there is no spawned task, the thread makes the plain call
/// itself, with [`Auto`](crate::Route::Auto): io_uring would pass it to a kernel thread. Whatever else `future` waits
/// for, such as a timer of another crate, may then be seen late, by the time of one sync.
///
/// The thread's ring is created with the first file operation and kept for the next call. This also works in
/// destructors of thread-locals and of pthread keys, where each call gets a ring of its own.
///
/// # Panics
/// On a thread that is already inside `block_on` or a [`Runtime`], whose tasks could not run meanwhile. Panics of
/// `future` are propagated, and so are those of wakers and buffers of the program that its operations call or drop: the
/// tasks are then dropped, and operations end, as after a return. On a thread of a [`Runtime`] the other tasks continue.
/// A task's panic is its result, and a panic of a `tracing` subscriber in an event of the library ends there.
///
/// ```
/// let sum = ringfile::block_on(async {
///     let handle = ringfile::spawn(async { 40 });
///     handle.await.unwrap() + 2
/// });
/// assert_eq!(sum, 42);
/// ```
#[track_caller]
pub fn block_on<F: Future>(future: F) -> F::Output {
    block_on_with(RingOptions::default(), future)
}

/// As [`block_on`]; `options` apply only if the thread has no ring yet.
#[track_caller]
pub(crate) fn block_on_with<F: Future>(options: RingOptions, future: F) -> F::Output {
    let mut thread = Loop::enter(options)
        .expect("ringfile::block_on was called inside a ringfile thread: await the future instead");
    thread.run_until(pin!(future))
}
