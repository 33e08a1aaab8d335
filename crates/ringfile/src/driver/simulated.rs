//! Hands operations to the simulation of this thread, instead of a worker.
//!
//! The simulation decides when an operation is carried out, by plain calls, which it answers. Invariant: an operation
//! on a simulated file is never carried out elsewhere, and none on a real file in a simulation.

use super::op::Ended;
use super::op::plain::Attempt;
use super::shared::RemoteRequest;
use crate::memory::Held;
use crate::sim::{CarriedOut, Operation, is_here, start};

impl Operation for RemoteRequest {
    fn is_wanted(&self) -> bool {
        self.is_wanted()
    }

    fn describe(&self) -> String {
        let Self { target, request, held, .. } = self;
        let path = match held {
            Held::Paths(paths) => Some(paths.as_path()),
            _ => target.path(),
        };
        let path = path.map_or_else(String::new, |path| format!(" of {}", path.display()));
        let at = if request.want > 0 { format!(" at byte {}", request.offset) } else { String::new() };
        format!("{}{path}{at}", request.kind.verb(request.op_flags))
    }

    fn carry_out(mut self: Box<Self>, note: fn(CarriedOut)) {
        let ended = loop {
            if let Attempt::Over(ended) = RemoteRequest::carry_out(&mut self) {
                break ended;
            }
        };
        let (request, Ended { done, errno }) = (&self.request, ended);
        note(CarriedOut {
            verb: request.kind.verb(request.op_flags),
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

/// Hands an operation over; returns it if neither its file nor this thread is simulated.
pub(super) fn take(remote: RemoteRequest) -> Result<(), RemoteRequest> {
    match (is_here(), remote.target.simulated()) {
        (false, None) => return Err(remote),
        // The file was opened elsewhere.
        (true, None) => remote.refuse(libc::EOPNOTSUPP),
        // The simulation of this file is over, or is another thread's.
        (false, Some(_)) => remote.refuse(libc::EBADF),
        (true, Some(file)) => start(file, Box::new(remote)),
    }
    Ok(())
}
