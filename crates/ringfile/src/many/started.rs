//! Started batches, which report their end to a function, for programs without a Rust executor.
//!
//! An I/O thread polls the batch's future, and calls the function. Invariants: one thread polls a batch, with no lock
//! held; the function is called once, on that thread, after the kernel has finished with all memory of the batch, even
//! if polling panics.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::batch::{Abandoned, Batch, BatchRun};
use super::done::Done;
use crate::driver::{self, Shared};
use crate::error::Error;
use crate::lock::Lock;
use ringfile_buffer::internal::{event, panics};

const PANICKED: &str = "the batch was abandoned, because polling it panicked";

/// A batch that [`Batch::start`] has started. Dropping this changes nothing: the batch continues, and reports its end.
#[derive(Clone)]
pub struct StartedBatch(Arc<StartedRun>);

struct StartedRun {
    /// The I/O thread.
    thread: Arc<Shared>,
    /// Whether the I/O thread was asked to poll the batch.
    posted: AtomicBool,
    cancelled: AtomicBool,
    /// The number of operations.
    len: usize,
    /// `None` while the batch is polled, and after it has ended.
    running: Lock<Option<Running>>,
}

struct Running {
    /// `Err` if polling has panicked.
    run: Result<BatchRun, Abandoned>,
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
    /// propagated. If user code that the batch runs panics instead (a buffer's destructor), the batch is cancelled, and
    /// operations without a result end with `ECANCELED`; buffers that were in flight are dropped.
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
    /// batch.add(file.read_at(Vec::with_capacity(4), 0));
    /// let (reports, reported) = std::sync::mpsc::channel();
    /// batch.start(move |done| reports.send(done).unwrap())?;
    /// let done = reported.recv().unwrap();
    /// assert_eq!(&done[0].buffer.as_ref().unwrap()[..], b"\x7fELF");
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(self, done: impl FnOnce(Vec<Done>) + Send + 'static) -> crate::error::Result<StartedBatch> {
        let started = Arc::new(StartedRun {
            thread: driver::choose_io_thread()?,
            posted: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            len: self.len(),
            running: Lock::new(Some(Running { run: Ok(self.into_future()), done: Box::new(done) })),
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

impl StartedRun {
    /// Makes the I/O thread poll the batch.
    fn post(self: &Arc<Self>) {
        if !self.posted.swap(true, Ordering::SeqCst) {
            let started = Arc::clone(self);
            driver::call_on(&self.thread, Box::new(move || started.poll()));
        }
    }

    /// Polls the batch, on the I/O thread.
    fn poll(self: Arc<Self>) {
        // The flag is cleared first, so that a later wake-up posts again.
        self.posted.store(false, Ordering::SeqCst);
        let taken = self.running.lock().take();
        let Some(Running { run, done }) = taken else { return };
        let waker = Waker::from(Arc::clone(&self));
        let run = match run {
            Ok(mut run) => match panics::catch(|| self.poll_run(&mut run, &waker)) {
                Ok(Poll::Ready(results)) => return done(results),
                Ok(Poll::Pending) => Ok(run),
                Err(_) => {
                    event::emit(|| tracing::error!("a batch was abandoned, because polling it panicked"));
                    Err(Abandoned::new(run, waker))
                }
            },
            abandoned => abandoned,
        };
        match run {
            Err(abandoned) if abandoned.is_over() => done(self.results_of(abandoned)),
            run => *self.running.lock() = Some(Running { run, done }),
        }
    }

    fn poll_run(&self, run: &mut BatchRun, waker: &Waker) -> Poll<Vec<Done>> {
        if self.cancelled.swap(false, Ordering::SeqCst) {
            run.cancel();
        }
        Pin::new(run).poll(&mut Context::from_waker(waker))
    }

    /// Returns a result for each operation, even if the batch's plan was lost in the panic.
    fn results_of(&self, abandoned: Abandoned) -> Vec<Done> {
        let mut results = panics::catch(|| abandoned.into_results(PANICKED)).unwrap_or_default();
        let error = || Error::from_errno(libc::ECANCELED, "carrying out a batch").because(PANICKED);
        results.resize_with(self.len, || Done { result: Err(error()), ..Done::NOTHING });
        results
    }
}

impl Wake for StartedRun {
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

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::mpsc;

    use super::*;
    use crate::patience::patience;
    use crate::{File, Pool};

    #[test]
    fn a_batch_reports_its_end_once_though_polling_panicked() {
        let (reader, writer) = std::io::pipe().unwrap();
        let pipe = File::from(std::fs::File::from(OwnedFd::from(reader)));
        let file = File::open("/proc/self/exe").unwrap();
        let pool = Pool::new(1 << 20);
        let mut batch = Batch::new();
        // Stays in flight, because the pipe is empty.
        batch.add(pipe.read_at(pool.get(4096).unwrap(), 0));
        batch.add(file.read_at(Vec::with_capacity(4), 0));
        // A defect: the operation is merged with one that does not exist.
        batch.0.ops[1].next = 1000;
        let (tell, told) = mpsc::channel();
        let metrics = pool.clone();
        let end = move |done| tell.send((done, metrics.metrics().in_use)).unwrap();
        let started = batch.start(end).unwrap();
        let (mut done, in_use): (Vec<Done>, usize) = told.recv_timeout(patience()).unwrap();
        assert_eq!(in_use, 0, "an operation still has its memory");
        assert_eq!(done.len(), 2);
        for done in &done {
            let error = done.result.as_ref().unwrap_err();
            assert_eq!(error.errno(), Some(libc::ECANCELED));
            assert!(error.to_string().contains("panicked"), "{error}");
        }
        assert_eq!(done.pop().unwrap().buffer.unwrap().into_vec().unwrap().capacity(), 4);
        started.cancel();
        // The function was dropped after its call.
        assert!(matches!(told.recv_timeout(patience()), Err(mpsc::RecvTimeoutError::Disconnected)));
        drop(writer);
    }
}
