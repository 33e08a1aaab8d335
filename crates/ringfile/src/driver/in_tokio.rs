//! Runtimes of tokio whose threads submit and collect their operations themselves: each has a [`Joint`], whose
//! keeper is one of its tasks.

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

use super::joint::Joint;
use super::shared::{RemoteRequest, Shared};
use crate::error::Error;
use crate::lock::Lock;
use ringfile_buffer::internal::fork;

static RUNTIMES: Lock<Vec<(Id, Arc<Joint>)>> = Lock::new(Vec::new());
/// Whether there was ever a runtime, so that programs without one do not search.
static ANY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The runtime in which this thread has last sent an operation.
    static LAST: RefCell<Option<(Id, Weak<Joint>)>> = const { RefCell::new(None) };
}

/// Makes the threads of the current tokio runtime submit and collect their operations that have to wait, instead of
/// passing them to an I/O thread of the library.
///
/// Call it once in each runtime, for instance first in `main`; further calls do nothing. It spawns a task, which
/// ends with the runtime. Operations on pipes and sockets, and those of polled files and NVMe namespaces, still go
/// to an I/O thread. If all threads of the runtime are busy or blocked, another thread collects completions, one or
/// two milliseconds later, and up to five if a device has had all that is in flight for long.
///
/// Whichever thread has its turn submits for the others, too. So all threads of the runtime, those of `spawn_blocking`
/// included, must be alike to the kernel: in their credentials (`setfsuid`), their tables of descriptors and working
/// folders (`unshare`), and in what a seccomp filter lets them do. The kernel ends an operation on the thread that
/// submitted it: a completion waits while that thread is in an uninterruptible sleep, and it interrupts that
/// thread's system calls. Those that the kernel does not restart then fail with `EINTR`, for instance a `read` of a
/// socket with a timeout (`SO_RCVTIMEO`).
///
/// Does not wait, unless the kernel lacks memory for the ring: then up to 0.2 s.
///
/// # Errors
/// If there is no io_uring, or none that threads can use in turn (before Linux 5.19), and why; `EIO` if the runtime
/// has ended. Operations then go on as without this call, so a program may ignore the error.
///
/// # Panics
/// Outside a tokio runtime, and in one without I/O ([`enable_io`](tokio::runtime::Builder::enable_io)), as tokio's
/// own types do.
///
/// # Examples
/// ```
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let _ = ringfile::attach_to_tokio();
///     let file = ringfile::File::open("Cargo.toml")?;
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
    let joint = Joint::new()?;
    #[allow(deprecated, reason = "the function that replaces it is younger than tokio 1.49")]
    let signal = AsyncFd::with_interest(Arc::clone(&joint.signal), Interest::READABLE).map_err(|error| {
        Error::from_errno(error.raw_os_error().unwrap_or(libc::EIO), "attaching to tokio")
    })?;
    let mut list = RUNTIMES.lock();
    if list.iter().all(|(known, _)| *known != id) {
        list.push((id, Arc::clone(&joint)));
        ANY.store(true, Ordering::Release);
        drop(list);
        handle.spawn(Keeper { joint, signal, id, has_waited: false });
    }
    Ok(())
}

/// Gives a remote request to the runtime of this thread, and returns the shared part of its driver. Returns the
/// request if there is none that takes it. For `at_once` see [`Joint::send`].
pub(super) fn send(remote: RemoteRequest, at_once: bool) -> Result<Arc<Shared>, RemoteRequest> {
    match current().filter(|joint| joint.takes(&remote.target, &remote.request)) {
        Some(joint) => joint.send(remote, at_once),
        None => Err(remote),
    }
}

fn current() -> Option<Arc<Joint>> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    let id = Handle::try_current().ok()?.id();
    LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        if let Some((known, joint)) = &*last
            && *known == id
        {
            return joint.upgrade();
        }
        let joint =
            RUNTIMES.lock().iter().find(|(known, _)| *known == id).map(|(_, joint)| Arc::clone(joint))?;
        *last = Some((id, Arc::downgrade(&joint)));
        Some(joint)
    })
    .ok()?
}

/// The task of a runtime that collects completions while no other of its tasks does.
struct Keeper {
    joint: Arc<Joint>,
    signal: AsyncFd<Arc<OwnedFd>>,
    id: Id,
    /// Whether other tasks have run since it was woken.
    has_waited: bool,
}

impl Future for Keeper {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { joint, signal, has_waited, .. } = self.get_mut();
        // A forked child must not touch the driver, nor drop it.
        if joint.shared.is_inherited() {
            return Poll::Pending;
        }
        // An executor may run a task first that another has just woken.
        *has_waited = !*has_waited && joint.has_enough();
        if *has_waited {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        joint.keeper_runs(context.waker());
        // Cleared before the work, so that a later signal is not missed.
        if let Poll::Ready(ready) = signal.poll_read_ready(context) {
            match ready {
                Ok(mut guard) => guard.clear_ready(),
                // The runtime shuts down.
                Err(_) => return Poll::Ready(()),
            }
        }
        joint.work();
        if signal.poll_read_ready(context).is_ready() || !joint.shared.sleep.about_to_wait() {
            // Other tasks run first.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.joint.shared.is_inherited() {
            // A thread of the parent may have been using the driver, which therefore stays in the list.
            return std::mem::forget(Arc::clone(&self.joint));
        }
        self.joint.set_keeper(None);
        let mut list = RUNTIMES.lock();
        let place = list.iter().position(|(known, _)| *known == self.id);
        let removed = place.map(|place| list.swap_remove(place));
        drop(list);
        drop(removed);
    }
}
