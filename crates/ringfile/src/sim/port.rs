//! The port to the simulation of this thread, which gets its operations instead of a worker.
//!
//! The simulation decides when an operation is carried out, by plain calls, which it answers. Invariant: an operation
//! on a simulated file is never carried out elsewhere, and none on a real file in a simulation.

use std::cell::Cell;
#[cfg(not(feature = "tokio"))]
use std::convert::Infallible as RuntimeId;
use std::ffi::CStr;
use std::os::fd::AsRawFd;
use std::rc::Rc;

#[cfg(feature = "tokio")]
use tokio::runtime::Id as RuntimeId;

use super::trace::Description;
use super::world::{CarriedOut, PendingOperation, World, is_here, start};
use crate::driver::mail::shared::RemoteRequest;
use crate::driver::op::plain::CallOutcome;
use crate::driver::refused::NO_TURNS;
use crate::driver::{Kind, OpResult};
use crate::memory::IoMemory;

impl PendingOperation for RemoteRequest {
    fn is_wanted(&self) -> bool {
        self.is_wanted()
    }

    fn describe(&self, world: &World) -> Description {
        let Self { target, request, memory, .. } = self;
        let text = |path: &CStr| Rc::from(path.to_string_lossy());
        let (path, to) = match memory {
            IoMemory::Paths(paths) if paths.path().is_empty() => {
                (world.path_behind(paths.from().as_raw_fd()), None)
            }
            IoMemory::Paths(paths) => (text(paths.path()), paths.to().map(text)),
            IoMemory::Destination(to) => {
                (world.path_of(target.simulated()), Some(world.path_behind(to.file().as_raw_fd())))
            }
            _ => (world.path_of(target.simulated()), None),
        };
        let size = || format!("{} bytes", request.offset).into();
        let to = if request.kind == Kind::Truncate { Some(size()) } else { to };
        let (verb, offset, want) = (request.kind.verb(request.op_flags), request.offset, request.want);
        Description { verb, path, to, offset, want }
    }

    fn carry_out(mut self: Box<Self>, note: fn(CarriedOut)) {
        let ended = loop {
            if let CallOutcome::Done(ended) = RemoteRequest::carry_out(&mut self) {
                break ended;
            }
        };
        let (request, OpResult { done, errno }) = (&self.request, ended);
        note(CarriedOut {
            kind: request.kind as u8,
            offset: request.offset,
            want: request.want,
            done,
            errno,
        });
        self.end(ended);
    }

    fn refuse(self: Box<Self>, errno: i32) {
        RemoteRequest::refuse(*self, errno);
    }
}

thread_local! {
    /// The runtime in which the simulation of this thread has begun.
    static AROUND: Cell<Option<RuntimeId>> = const { Cell::new(None) };
}

/// Notes that a simulation begins on this thread.
pub(super) fn begins() {
    AROUND.set(runtime_here());
}

#[cfg(feature = "tokio")]
fn runtime_here() -> Option<RuntimeId> {
    tokio::runtime::Handle::try_current().ok().map(|handle| handle.id())
}

/// Stands in for the feature `tokio`.
#[cfg(not(feature = "tokio"))]
fn runtime_here() -> Option<RuntimeId> {
    None
}

/// Returns whether a tokio runtime runs inside the simulated program. It would block this thread until its operations
/// end, which they do only once it has returned.
pub(crate) fn is_in_another_runtime() -> bool {
    is_here() && AROUND.get() != runtime_here()
}

/// Hands an operation over; returns it if neither its file nor this thread is simulated.
pub(crate) fn take(remote: RemoteRequest) -> Result<(), RemoteRequest> {
    match (is_here(), remote.target.simulated()) {
        (false, None) => return Err(remote),
        // The file was opened elsewhere.
        (true, None) => remote.refuse(libc::EOPNOTSUPP),
        // The simulation of this file is over, or is another thread's.
        (false, Some(_)) => remote.refuse(libc::EBADF),
        (true, Some(_)) if is_in_another_runtime() => remote.refuse(NO_TURNS),
        (true, Some(file)) => start(file, Box::new(remote)),
    }
    Ok(())
}
