//! One operation of a task that moves no data, from its first poll to its end.
//!
//! Invariant: before the operation starts and after it has ended, its memory is here; in between the driver owns it,
//! even if this is dropped.

use std::borrow::Borrow;
use std::task::{Context, Poll, ready};

use super::{File, check};
use crate::driver::{self, Ended, Kept, Lend, Place, RemoteOperation, Request, Started, SubmitHint, Ticket};
use crate::error::Result;
use crate::memory::Held;

/// One operation of a task. Dropping it cancels the operation if the kernel still can.
pub(crate) struct Single<F> {
    /// The file, or the placeholder for a path.
    pub(crate) file: F,
    request: Request,
    held: Kept,
    stage: Stage,
}

enum Stage {
    Start,
    Running(Ticket),
    Elsewhere(RemoteOperation),
    Ended,
}

impl<F: Borrow<File>> Single<F> {
    pub(crate) fn new(file: F, request: Request, held: Held) -> Self {
        let held = Kept::new(held, request.kind.is_read());
        Self { file, request, held, stage: Stage::Start }
    }

    /// Returns the parts of an operation that was not started, to be started elsewhere.
    pub(crate) fn into_parts(mut self) -> (F, Request, Held) {
        let held = self.held.take();
        (self.file, self.request, held)
    }

    /// Starts the operation, or continues it; returns what it held. Polling it after it has ended does nothing.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Held>> {
        let ended = match &mut self.stage {
            Stage::Start => return self.begin(context),
            Stage::Running(ticket) => ready!(ticket.poll(context, &mut self.held)),
            Stage::Elsewhere(operation) => ready!(operation.poll(context, &mut self.held)),
            Stage::Ended => return Poll::Pending,
        };
        self.end(ended)
    }

    /// Returns the operation, if it was not started yet.
    pub(super) fn not_started(&mut self) -> Option<(&Request, &mut Kept)> {
        matches!(self.stage, Stage::Start).then_some((&self.request, &mut self.held))
    }

    /// Notes that the operation was started elsewhere.
    pub(super) fn was_started(&mut self, place: Place) {
        self.stage = Stage::Running(Ticket::new(place));
    }

    fn begin(&mut self, context: &mut Context<'_>) -> Poll<Result<Held>> {
        let file = self.file.borrow();
        if let Err(error) = check::fits_without_data(file, &self.request, self.held.get()) {
            self.stage = Stage::Ended;
            return Poll::Ready(Err(error));
        }
        match driver::start(&file.0.target, &self.request, &mut self.held, context, SubmitHint::ONE) {
            Ok(Started::Queued(place)) => self.stage = Stage::Running(Ticket::new(place)),
            Ok(Started::Elsewhere(operation)) => self.stage = Stage::Elsewhere(operation),
            Ok(Started::Yield) => context.waker().wake_by_ref(),
            Ok(Started::Done(ended)) => return self.end(ended),
            Err(error) => {
                self.stage = Stage::Ended;
                return Poll::Ready(Err(error.on(file.path())));
            }
        }
        Poll::Pending
    }

    fn end(&mut self, ended: Ended) -> Poll<Result<Held>> {
        self.stage = Stage::Ended;
        let held = self.held.lend();
        Poll::Ready(match ended.errno {
            0 => Ok(held),
            errno => Err(check::why_not_done(self.file.borrow(), &self.request, &held, errno)),
        })
    }
}
