//! Hands operations to the port of a simulated disk, instead of a worker.
//!
//! The port decides when an operation is carried out, by plain calls that end at the port again. Invariant: an operation
//! on a simulated file is never carried out elsewhere, and none on a real file in a simulation.

use super::op::Ended;
use super::remote::RemoteRequest;
use crate::memory::Held;
use crate::port::{self, CarriedOut, Operation};

struct InFlight {
    remote: RemoteRequest,
    ended: Ended,
}

impl Operation for InFlight {
    fn is_wanted(&self) -> bool {
        self.remote.is_wanted()
    }

    fn describe(&self) -> String {
        let RemoteRequest { target, request, held, .. } = &self.remote;
        let path = match held {
            Held::Paths(paths) => Some(paths.as_path()),
            _ => target.path(),
        };
        let path = path.map_or_else(String::new, |path| format!(" of {}", path.display()));
        let at = if request.want > 0 { format!(" at byte {}", request.offset) } else { String::new() };
        format!("{}{path}{at}", request.kind.verb(request.op_flags))
    }

    fn carry_out(&mut self) -> CarriedOut {
        self.ended = self.remote.carry_out();
        let (request, Ended { done, errno }) = (&self.remote.request, self.ended);
        CarriedOut {
            verb: request.kind.verb(request.op_flags),
            kind: request.kind as u8,
            offset: request.offset,
            want: request.want,
            done,
            errno,
        }
    }

    fn end(self: Box<Self>) {
        self.remote.end(self.ended);
    }

    fn refuse(self: Box<Self>, errno: i32) {
        self.remote.refuse(errno);
    }
}

/// Hands an operation over; returns it if neither its file nor this thread is simulated.
pub(super) fn take(remote: RemoteRequest) -> Result<(), RemoteRequest> {
    match (port::here(), remote.target.simulated()) {
        (None, None) => return Err(remote),
        // The file was opened elsewhere.
        (Some(_), None) => remote.refuse(libc::EOPNOTSUPP),
        // The simulation of this file is over, or is another thread's.
        (None, Some(_)) => remote.refuse(libc::EBADF),
        (Some(port), Some(file)) => {
            let ended = Ended { done: 0, errno: libc::EIO };
            (port.start)(file, Box::new(InFlight { remote, ended }));
        }
    }
    Ok(())
}
