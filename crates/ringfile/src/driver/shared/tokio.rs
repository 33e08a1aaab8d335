//! Runtimes of tokio whose threads submit and collect their operations themselves: each has a [`TokioDriver`], whose
//! collector is one of its tasks.

use std::cell::RefCell;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};

use super::tokio_driver::TokioDriver;
use crate::driver::elsewhere::iothreads;
use crate::driver::mail::shared::{RemoteRequest, Shared};
use crate::error::Error;
use crate::lock::Lock;
use ringfile_buffer::internal::fork;

static RUNTIMES: Lock<Vec<(Id, Arc<TokioDriver>)>> = Lock::new(Vec::new());
/// Whether there was ever a runtime, so that programs without one do not search.
static ANY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The runtime in which this thread has last sent an operation.
    static LAST: RefCell<Option<(Id, Weak<TokioDriver>)>> = const { RefCell::new(None) };
}

/// Makes the threads of the current tokio runtime submit and collect their operations that have to wait, instead of
/// passing them to an I/O thread of the library. Call it once in each runtime; further calls do nothing. Operations on
/// pipes, sockets, polled files and NVMe namespaces still go to an I/O thread, and most others while all threads compute.
///
/// All threads of the runtime must be alike to the kernel (descriptors, seccomp filters), since each submits for the
/// others. A system call of such a thread that the kernel does not restart may fail with `EINTR`, for instance a
/// `read` of a socket with a timeout. Does not wait, unless the kernel lacks memory for the ring (up to 0.2 s).
///
/// # Errors
/// If there is no io_uring for it (before Linux 5.19), and why; `EIO` if the runtime has ended. Operations then go on
/// as without this call, so a program may ignore the error.
///
/// # Panics
/// Outside a tokio runtime, and in one without I/O ([`enable_io`](tokio::runtime::Builder::enable_io)).
/// ```
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let _ = ringfile::attach_to_tokio();
///     let file = ringfile::File::open("Cargo.toml").await?;
///     let content = file.read_at(Vec::with_capacity(4096), 0).await?;
///     assert!(content.starts_with(b"[package]"));
///     Ok(())
/// }
/// ```
pub fn attach_to_tokio() -> Result<(), Error> {
    fork::hold_over_forks(&fork::RUNTIMES, || Box::new(RUNTIMES.lock()));
    let handle = Handle::current();
    let id = handle.id();
    if RUNTIMES.lock().iter().any(|(known, _)| *known == id) {
        return Ok(());
    }
    let driver = TokioDriver::new()?;
    #[allow(deprecated, reason = "the function that replaces it is younger than tokio 1.49")]
    let signal = AsyncFd::with_interest(Arc::clone(&driver.signal), Interest::READABLE).map_err(|error| {
        Error::from_errno(error.raw_os_error().unwrap_or(libc::EIO), "attaching to tokio")
    })?;
    let mut list = RUNTIMES.lock();
    if list.iter().all(|(known, _)| *known != id) {
        list.push((id, Arc::clone(&driver)));
        ANY.store(true, Ordering::Release);
        drop(list);
        handle.spawn(Collector { driver, signal, id, has_waited: false });
    }
    Ok(())
}

/// Gives a remote request to the runtime of this thread, and returns the shared part of its driver. Returns the
/// request if there is none that takes it. For `at_once` see [`TokioDriver::send`].
pub(crate) fn send(remote: RemoteRequest, at_once: bool) -> Result<Arc<Shared>, RemoteRequest> {
    match current() {
        Some(driver) if driver.takes(&remote.target, &remote.request) => return driver.send(remote, at_once),
        Some(_) => {}
        None => {
            let what = "an operation goes from a tokio runtime to an I/O thread: `attach_to_tokio` lets the \
                runtime's threads submit it themselves, which takes less CPU time";
            iothreads::tell_of_first(what, || Handle::try_current().is_ok());
        }
    }
    Err(remote)
}

fn current() -> Option<Arc<TokioDriver>> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    let id = Handle::try_current().ok()?.id();
    LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        if let Some((known, driver)) = &*last
            && *known == id
        {
            return driver.upgrade();
        }
        let driver =
            RUNTIMES.lock().iter().find(|(known, _)| *known == id).map(|(_, driver)| Arc::clone(driver))?;
        *last = Some((id, Arc::downgrade(&driver)));
        Some(driver)
    })
    .ok()?
}

/// The task of a runtime that collects completions while no other of its tasks does.
struct Collector {
    driver: Arc<TokioDriver>,
    signal: AsyncFd<Arc<OwnedFd>>,
    id: Id,
    /// Whether other tasks have run since it was woken.
    has_waited: bool,
}

impl Future for Collector {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { driver, signal, has_waited, .. } = self.get_mut();
        // A forked child must not touch the driver, nor drop it.
        if driver.shared.is_inherited() {
            return Poll::Pending;
        }
        // An executor may run a task first that another has just woken.
        *has_waited = !*has_waited && driver.has_enough();
        if *has_waited {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        driver.collector_runs(context.waker());
        // Cleared before the work, so that a later signal is not missed.
        if let Poll::Ready(ready) = signal.poll_read_ready(context) {
            match ready {
                Ok(mut guard) => guard.clear_ready(),
                // The runtime shuts down.
                Err(_) => return Poll::Ready(()),
            }
        }
        driver.work();
        if signal.poll_read_ready(context).is_ready() || !driver.shared.sleep.about_to_wait() {
            // Other tasks run first.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if self.driver.shared.is_inherited() {
            // A thread of the parent may have been using the driver, which therefore stays in the list.
            return std::mem::forget(Arc::clone(&self.driver));
        }
        self.driver.set_collector(None);
        let mut list = RUNTIMES.lock();
        let place = list.iter().position(|(known, _)| *known == self.id);
        let removed = place.map(|place| list.swap_remove(place));
        drop(list);
        drop(removed);
    }
}
