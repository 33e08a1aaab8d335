//! Tasks: a future on its way, and the handle to its result.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use async_task::{FallibleTask, Runnable};

use super::executor::{self, Remote, Started};

type Caught<T> = Result<T, Box<dyn Any + Send>>;

/// The handle to a task's result. Awaiting it, or [`join`](Self::join), gives the result or the task's panic; dropping
/// it lets the task go on alone.
pub struct JoinHandle<T>(Option<FallibleTask<Caught<T>>>);

/// Why a task has no result.
#[non_exhaustive]
pub enum JoinError {
    /// The task panicked; this is what it panicked with.
    Panicked(Box<dyn Any + Send>),
    /// The task was dropped with the loop of its thread.
    Cancelled,
    /// [`JoinHandle::join`] was called on a ringfile thread, which has tasks to run and can't block: await the handle.
    WouldBlock,
}

impl JoinError {
    /// The text of the panic, where it has one.
    fn text(&self) -> &str {
        match self {
            Self::Panicked(payload) => payload
                .downcast_ref::<&str>()
                .copied()
                .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
                .unwrap_or("the task panicked"),
            Self::Cancelled => "the task was dropped with the loop of its thread",
            Self::WouldBlock => "join would block a ringfile thread: await the handle instead",
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(_) => write!(f, "Panicked({:?})", self.text()),
            Self::Cancelled => f.write_str("Cancelled"),
            Self::WouldBlock => f.write_str("WouldBlock"),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(_) => write!(f, "the task panicked: {}", self.text()),
            _ => f.write_str(self.text()),
        }
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for std::io::Error {
    fn from(error: JoinError) -> Self {
        std::io::Error::other(error.to_string())
    }
}

impl<T> JoinHandle<T> {
    fn new(task: FallibleTask<Caught<T>>) -> Self {
        Self(Some(task))
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(FallibleTask::is_finished)
    }

    /// Blocks the calling thread until the task has ended.
    ///
    /// # Errors
    /// The task's panic; [`JoinError::Cancelled`] where it was dropped; [`JoinError::WouldBlock`] on a ringfile
    /// thread.
    pub fn join(self) -> Result<T, JoinError> {
        if executor::is_in_loop() {
            return Err(JoinError::WouldBlock);
        }
        struct Unpark(Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut handle = pin!(self);
        loop {
            if let Poll::Ready(result) = handle.as_mut().poll(&mut context) {
                return result;
            }
            std::thread::park();
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(task) = self.0.as_mut() else { return Poll::Ready(Err(JoinError::Cancelled)) };
        let result = match Pin::new(task).poll(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(value))) => Ok(value),
            Poll::Ready(Some(Err(payload))) => Err(JoinError::Panicked(payload)),
            Poll::Ready(None) => Err(JoinError::Cancelled),
        };
        self.0 = None;
        Poll::Ready(result)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("finished", &self.is_finished()).finish()
    }
}

/// The future of a task: known to its loop from its first poll to its end, and its panic is a result.
async fn guarded<F: Future>(future: F) -> Caught<F::Output> {
    let _started = poll_fn(|context| Poll::Ready(Started::new(context.waker()))).await;
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(payload) => Poll::Ready(Err(payload)),
    })
    .await
}

fn scheduler(remote: Arc<Remote>) -> impl Fn(Runnable) + Send + Sync + 'static {
    move |runnable| remote.schedule(runnable)
}

/// A task on the calling thread, whose loop `remote` is.
pub(super) fn spawn_here<F>(future: F, remote: Arc<Remote>) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let (runnable, task) = async_task::spawn_local(guarded(future), scheduler(remote));
    runnable.schedule();
    JoinHandle::new(task.fallible())
}

/// A task on the thread whose loop `remote` is.
pub(super) fn spawn_there<F>(future: F, remote: Arc<Remote>) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let (runnable, task) = async_task::spawn(guarded(future), scheduler(remote));
    runnable.schedule();
    JoinHandle::new(task.fallible())
}
