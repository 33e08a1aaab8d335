//! Tasks: a running future, and the handle to its result.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;

use super::executor;
use crate::caught::caught;
use crate::driver::Shared;
use crate::lock::Lock;
use ringfile_buffer::internal::{blocking::block_on, fork, panics};

/// A handle to a task's result. Awaiting it, or [`join`](Self::join), returns the result or the task's panic. Dropping
/// it does not stop the task.
pub struct JoinHandle<T> {
    state: Arc<Lock<TaskState<T>>>,
    /// The process of the task, if the task is on another thread, which does not exist in a forked child.
    process: Option<fork::Mark>,
}

enum TaskState<T> {
    Running(Option<Waker>),
    /// `Cancelled` once the result was taken.
    Ended(Result<T, JoinError>),
}

/// The reason why a task has no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// The task panicked, with this payload.
    Panicked(Panic),
    /// The task was dropped with its thread's loop.
    Cancelled,
    /// [`JoinHandle::join`] was called on a ringfile thread, which has tasks to run and can't block: await the handle. Or
    /// the handle was awaited in a tokio runtime inside a simulated program.
    WouldBlock,
}

/// The payload of a task's panic.
pub struct Panic {
    message: String,
    /// Wrapped in a mutex, so that the error is `Sync`.
    payload: Mutex<Box<dyn Any + Send>>,
}

impl Panic {
    fn new(payload: Box<dyn Any + Send>) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self { message: text.unwrap_or("a value that is not text").to_owned(), payload: Mutex::new(payload) }
    }

    /// Returns the panic's message, if it is text.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the panic's payload, for [`std::panic::resume_unwind`].
    #[must_use]
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.payload.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.message)
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(panic) => write!(f, "the task panicked: {}", panic.message),
            Self::Cancelled => f.write_str("the task was dropped when its thread left its loop"),
            Self::WouldBlock => f.write_str(
                "waiting would block a thread that has tasks to run: await the handle in a task of that thread",
            ),
        }
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for std::io::Error {
    fn from(error: JoinError) -> Self {
        std::io::Error::other(error.to_string())
    }
}

/// So that `?` works in a function that returns [`Result`](crate::Result), as in `handle.await??`.
impl From<JoinError> for crate::Error {
    fn from(error: JoinError) -> Self {
        Self::new(std::io::ErrorKind::Other, "awaiting a task").because(error.to_string())
    }
}

impl<T> JoinHandle<T> {
    /// Returns whether this is a forked child, and the task's thread, which may have held the lock, exists only in the
    /// parent.
    fn is_inherited(&self) -> bool {
        self.process.is_some_and(|process| !process.is_current())
    }

    /// Returns whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.is_inherited() || !matches!(*self.state.lock(), TaskState::Running(_))
    }

    /// Blocks the calling thread until the task has ended.
    ///
    /// # Errors
    /// The task's panic; [`JoinError::Cancelled`] if it was dropped; [`JoinError::WouldBlock`] on a ringfile thread.
    pub fn join(self) -> Result<T, JoinError> {
        if executor::is_in_loop() {
            return Err(JoinError::WouldBlock);
        }
        block_on(self)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_inherited() {
            return Poll::Ready(Err(JoinError::Cancelled));
        }
        if self.process.is_none() && crate::sim::is_in_another_runtime() && !self.is_finished() {
            return Poll::Ready(Err(JoinError::WouldBlock));
        }
        // Wakers may run user code and own anything, so none is cloned or dropped under the lock.
        let waker = context.waker().clone();
        let mut state = self.state.lock();
        let next = match *state {
            TaskState::Running(_) => TaskState::Running(Some(waker)),
            TaskState::Ended(_) => TaskState::Ended(Err(JoinError::Cancelled)),
        };
        let before = std::mem::replace(&mut *state, next);
        drop(state);
        match before {
            TaskState::Running(_) => Poll::Pending,
            TaskState::Ended(result) => Poll::Ready(result),
        }
    }
}

/// The other end of a handle. It always reports how the task ended, even if it is dropped.
struct Completer<T>(Arc<Lock<TaskState<T>>>);

impl<T> Completer<T> {
    fn end(&self, result: Result<T, JoinError>) {
        let mut state = self.0.lock();
        let TaskState::Running(waker) = &mut *state else { return };
        let waker = waker.take();
        *state = TaskState::Ended(result);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        self.end(Err(JoinError::Cancelled));
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("finished", &self.is_finished()).finish()
    }
}

pin_project! {
    /// A task's future, whose result or panic goes to its handle. Not an `async fn`, which would reserve room for the
    /// future twice, so that each poll would touch more memory.
    struct Guarded<F: Future> {
        #[pin]
        future: Option<F>,
        completer: Option<Completer<F::Output>>,
    }
}

impl<F: Future> Future for Guarded<F> {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(future) = self.as_mut().project().future.as_pin_mut() else { return Poll::Pending };
        let result = match catch_unwind(AssertUnwindSafe(|| future.poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(payload) => Err(JoinError::Panicked(Panic::new(payload))),
        };
        self.end(result);
        Poll::Ready(())
    }
}

impl<F: Future> Guarded<F> {
    /// Delivers the result to the handle.
    #[cold]
    fn end(self: Pin<&mut Self>, mut result: Result<F::Output, JoinError>) {
        let mut this = self.project();
        // The future is dropped before its result is delivered, so that a joining thread finds its resources released.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| this.future.set(None))) {
            let before = std::mem::replace(&mut result, Err(JoinError::Panicked(Panic::new(payload))));
            let _ = panics::catch(|| drop(before));
        }
        // In a simulation, a panic that nobody can ask for fails the run.
        if crate::sim::is_here()
            && this.completer.as_ref().is_some_and(|completer| Arc::strong_count(&completer.0) == 1)
            && let Err(JoinError::Panicked(panic)) = result
        {
            std::panic::resume_unwind(panic.into_payload());
        }
        // A result without a handle is dropped here.
        let completer = this.completer.take();
        let end = || completer.map(|completer| completer.end(result));
        caught("a task's result, or the waker of its handle, panicked", end);
    }
}

fn handle<T>(process: Option<fork::Mark>) -> (JoinHandle<T>, Completer<T>) {
    let state = Arc::new(Lock::new(TaskState::Running(None)));
    (JoinHandle { state: Arc::clone(&state), process }, Completer(state))
}

/// Starts a task on the calling ringfile thread. It need not be `Send`.
///
/// Allocates the task. The task starts running when the calling one yields.
///
/// # Panics
/// Outside a ringfile thread, since no loop would run the task. Use [`Runtime::spawn`](crate::Runtime::spawn) there.
///
/// ```
/// use std::rc::Rc;
/// ringfile::block_on(async {
///     let shared = Rc::new(5);
///     let mine = Rc::clone(&shared);
///     assert_eq!(ringfile::spawn(async move { *mine + 1 }).await.unwrap(), 6);
/// });
/// ```
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let (handle, completer) = handle(None);
    let task = Guarded { future: Some(future), completer: Some(completer) };
    if crate::sim::is_here() {
        crate::sim::spawn(Box::pin(task));
        return handle;
    }
    let here = executor::current()
        .expect("ringfile::spawn was called outside a ringfile thread: use Runtime::spawn, or block_on");
    executor::add_task(task, here);
    handle
}

/// Starts a task on a thread that is in a loop; `make` runs there.
pub(super) fn spawn_there<M, F>(make: M, thread: &Arc<Shared>) -> JoinHandle<F::Output>
where
    M: FnOnce() -> F + Send + 'static,
    F: Future + 'static,
    F::Output: Send + 'static,
{
    let (handle, completer) = handle(Some(fork::Mark::current()));
    let there = Arc::clone(thread);
    let start = move || match catch_unwind(AssertUnwindSafe(make)) {
        Ok(future) => {
            executor::add_task(Guarded { future: Some(future), completer: Some(completer) }, there);
        }
        Err(payload) => completer.end(Err(JoinError::Panicked(Panic::new(payload)))),
    };
    executor::call_on(thread, Box::new(start));
    handle
}
