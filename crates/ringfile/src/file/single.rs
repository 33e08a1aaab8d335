//! One operation of a task that moves no data, from its first poll to its end.
//!
//! Invariant: it moves no data, so nothing decides on descriptors or pieces, and no request begins again.

use std::borrow::Borrow;
use std::task::{Context, Poll, ready};

use super::ask::Asked;
use super::io::Operation;
use super::{File, OpenOptions, check};
use crate::driver::{Ended, Request};
use crate::error::Result;
use crate::memory::Held;

/// One operation of a task. Dropping it cancels the operation if the kernel still can.
pub(crate) struct Single<'a, F = &'a File>(pub(super) Operation<'a, F>);

impl<F> Single<'_, F> {
    pub(crate) fn file(&self) -> &F {
        &self.0.file
    }

    /// Returns the parts of an operation that was not started, to be started elsewhere.
    pub(crate) fn into_parts(mut self) -> (F, Request, Held) {
        let held = self.0.take_held();
        (self.0.file, self.0.request, held)
    }
}

impl<F: Borrow<File>> Single<'_, F> {
    /// Returns what to add to a batch or a queue, which opens a file with these options if it does.
    pub(crate) fn ask<R>(self, opens: Option<Box<OpenOptions>>, add: impl FnOnce(&File, Asked) -> R) -> R {
        let (file, request, held) = self.into_parts();
        add(file.borrow(), Asked { opens, ..Asked::new(request, held) })
    }
}

impl<'a, F: Borrow<File> + Clone + Send + Sync + Unpin + 'a> Single<'a, F> {
    /// `file` is the placeholder for a path if the operation names one.
    pub(crate) fn new(file: F, request: Request, held: Held) -> Self {
        Self(Operation::new(file, request, held))
    }

    /// Starts the operation, or continues it; returns what it held. Polling it after it has ended does nothing.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Held>> {
        ready!(if self.0.is_new() { self.begin(context) } else { self.0.poll(context) });
        let result = self.0.result();
        let held = self.0.take_held();
        Poll::Ready(match result? {
            Ended { errno: 0, .. } => Ok(held),
            Ended { errno, .. } => {
                Err(check::why_not_done(self.file().borrow(), &self.0.request, &held, errno))
            }
        })
    }

    fn begin(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match check::fits_without_data(self.file().borrow(), &self.0.request, self.0.held.get()) {
            Ok(()) => self.0.start(context),
            Err(error) => self.0.fail(error),
        }
    }
}
