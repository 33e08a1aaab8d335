//! Started batches, which report their end to a function, for programs without a Rust executor.
//!
//! An I/O thread polls the batch's future, and calls the function. Invariants: one thread polls a batch, with no lock
//! held; the function is called once, on that thread, after the kernel has finished with all memory of the batch.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::{Batch, BatchRun, Done};
use crate::driver::{self, Shared};
use crate::error::Result;

/// A batch that [`Batch::start`] has started. Dropping this changes nothing: the batch continues, and reports its end.
#[derive(Clone)]
pub struct StartedBatch(Arc<Started>);

struct Started {
    /// The I/O thread.
    thread: Arc<Shared>,
    /// Whether the I/O thread was asked to poll the batch.
    posted: AtomicBool,
    cancelled: AtomicBool,
    /// `None` while the batch is polled, and after it has ended.
    running: Mutex<Option<Running>>,
}

struct Running {
    run: BatchRun,
    done: Box<dyn FnOnce(Vec<Done>) + Send>,
}

impl Batch {
    /// Starts the batch and returns. One of the library's I/O threads ([`set_io_threads`](crate::set_io_threads)) calls
    /// `done` at the end, with the results in the order of adding. For programs whose threads belong to another
    /// runtime.
    ///
    /// `done` is called exactly once, never inside this call, and after the kernel has finished with all buffers. It
    /// may start operations and other batches, but must not block: blocking calls of this library fail
    /// ([`run`](Self::run)) or panic ([`block_on`](crate::block_on)) there. A panic of `done` is logged and not
    /// propagated.
    ///
    /// The I/O thread does all the work: with a single I/O thread, one thread copies all cached blocks. Does not block;
    /// allocates a few hundred bytes for the batch, and nothing per operation.
    ///
    /// When a process ends, `done` of running batches is not called. In a forked child no batch ends.
    ///
    /// # Errors
    /// `Unsupported` in a child of a process that has used I/O threads, and if no thread can be started (`EAGAIN`).
    /// Nothing was started then, `done` is not called, and the buffers are dropped.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let file = ringfile::File::open("/proc/self/exe")?;
    /// let mut batch = ringfile::Batch::new();
    /// batch.read(&file, Vec::with_capacity(4), 0);
    /// let (reports, reported) = std::sync::mpsc::channel();
    /// batch.start(move |done| reports.send(done).unwrap())?;
    /// let done = reported.recv().unwrap();
    /// assert_eq!(&done[0].buffer.as_ref().unwrap()[..], b"\x7fELF");
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(self, done: impl FnOnce(Vec<Done>) + Send + 'static) -> Result<StartedBatch> {
        let started = Arc::new(Started {
            thread: driver::choose_io_thread()?,
            posted: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            running: Mutex::new(Some(Running { run: self.into_future(), done: Box::new(done) })),
        });
        started.post();
        Ok(StartedBatch(started))
    }
}

impl StartedBatch {
    /// Cancels operations that have not finished, as far as the kernel can, from any thread and without waiting. The
    /// end is still reported: operations that had not started, or that the kernel cancelled, end with `ECANCELED`. What
    /// a disk has begun runs to its end.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::SeqCst);
        self.0.post();
    }
}

impl Started {
    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the I/O thread poll the batch.
    fn post(self: &Arc<Self>) {
        if !self.posted.swap(true, Ordering::SeqCst) {
            let started = Arc::clone(self);
            driver::call_on(&self.thread, Box::new(move || started.poll()));
        }
    }

    /// Polls the batch, on the I/O thread.
    fn poll(self: Arc<Self>) {
        // The flag is cleared before its causes are checked.
        self.posted.store(false, Ordering::SeqCst);
        let taken = self.lock().take();
        let Some(Running { mut run, done }) = taken else { return };
        if self.cancelled.swap(false, Ordering::SeqCst) {
            run.cancel();
        }
        let waker = Waker::from(Arc::clone(&self));
        match Pin::new(&mut run).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(results) => done(results),
            Poll::Pending => *self.lock() = Some(Running { run, done }),
        }
    }
}

impl Wake for Started {
    fn wake(self: Arc<Self>) {
        self.post();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.post();
    }
}

impl std::fmt::Debug for StartedBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartedBatch").finish_non_exhaustive()
    }
}
