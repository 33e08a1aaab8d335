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
use super::done::Completion;
use super::item::Item;
use crate::driver::{self, Rights, Shared};
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
    /// The rights that the I/O thread must have, if the batch has operations on paths.
    rights: Option<Rights>,
    /// The number of operations.
    len: usize,
    /// `None` while the batch is polled, and after it has ended.
    running: Lock<Option<Running>>,
}

struct Running {
    /// `Err` if polling has panicked.
    run: Result<BatchRun, Abandoned>,
    done: Box<dyn FnOnce(Vec<Completion>) + Send>,
}

impl Batch {
    /// Starts the batch and returns. One of the library's I/O threads
    /// ([`set_io_threads`](crate::runtime::set_io_threads)) does all of the work, and calls `done` at the end with the
    /// results in the order of adding.
    ///
    /// `done` is called exactly once, never inside this call, and after the kernel has finished with all buffers. It
    /// may start operations, but must not block: blocking calls of this library fail or panic there. A panic of `done`
    /// is logged. If other user code panics (a buffer's destructor), the batch is cancelled (`ECANCELED`). When a
    /// process ends, `done` of running batches is not called. Does not block, unless the batch has operations on paths
    /// and the thread has other credentials than the I/O thread.
    ///
    /// # Errors
    /// `Unsupported` in a child of a process that has used I/O threads; `EAGAIN` if no thread can be started. Nothing
    /// was started then, `done` is not called, and the buffers are dropped.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let file = ringfile::File::open_blocking("/proc/self/exe")?;
    /// let mut batch = ringfile::Batch::new();
    /// batch.add(file.read_at(Vec::with_capacity(4), 0));
    /// let (reports, reported) = std::sync::mpsc::channel();
    /// batch.start(move |done| reports.send(done).unwrap())?;
    /// let done = reported.recv().unwrap();
    /// assert_eq!(&done[0].buffer.as_ref().unwrap()[..], b"\x7fELF");
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(
        self,
        done: impl FnOnce(Vec<Completion>) + Send + 'static,
    ) -> crate::error::Result<StartedBatch> {
        let thread = driver::choose_io_thread()?;
        let looks_up_paths = self.0.files.have_paths() && self.0.ops.iter().any(Item::looks_up_paths);
        let rights = if looks_up_paths { driver::rights_in_common(&thread) } else { None };
        let runs_here = looks_up_paths && rights.is_none();
        let started = Arc::new(StartedRun {
            thread,
            rights,
            posted: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            len: self.len(),
            running: Lock::new(None),
        });
        if runs_here {
            let results = self.run();
            driver::call_on(&started.thread, Box::new(move || done(results)));
        } else {
            *started.running.lock() = Some(Running { run: Ok(self.into_future()), done: Box::new(done) });
            started.post();
        }
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

    fn poll_run(&self, run: &mut BatchRun, waker: &Waker) -> Poll<Vec<Completion>> {
        // The I/O thread's may have changed since the start (`seteuid` of the C library), and the caller's back again.
        let has_rights = self.rights.as_ref().is_none_or(driver::still_has);
        if self.cancelled.swap(false, Ordering::SeqCst) || !has_rights {
            run.cancel();
        }
        Pin::new(run).poll(&mut Context::from_waker(waker))
    }

    /// Returns a result for each operation, even if the batch's plan was lost in the panic.
    fn results_of(&self, abandoned: Abandoned) -> Vec<Completion> {
        let mut results = panics::catch(|| abandoned.into_results(PANICKED)).unwrap_or_default();
        let error = || Error::from_errno(libc::ECANCELED, "carrying out a batch").because(PANICKED);
        results.resize_with(self.len, || Completion { result: Err(error()), ..Completion::NOTHING });
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
        let file = File::open_blocking("/proc/self/exe").unwrap();
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
        let (mut done, in_use): (Vec<Completion>, usize) = told.recv_timeout(patience()).unwrap();
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
