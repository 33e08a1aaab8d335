//! Durable writes: see [`durability`](super::durability).

use std::future::Future;
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::File;
use super::ask::{AnyMemory, Ask, Asked};
use super::durability::{AfterWrite, SYNC};
use super::io::{Io, OperationFuture, Transfer};
use crate::error::{BufError, BufResult, Result};
use crate::memory::{Held, IoBuf};

pin_project! {
    /// A durable write: see [`File::write_durable_at`]. Await it, or [add](crate::Operation) it to a batch or a queue.
    #[must_use = "nothing is written until it is awaited, or added to a batch or a queue"]
    pub struct WriteDurable<'a, B> {
        steps: Steps<'a, B>,
        #[pin]
        pinned: PhantomPinned,
    }
}

/// The write, and the sync that was submitted with it.
struct Steps<'a, B> {
    write: Transfer<'a, B>,
    has_begun: bool,
    linked: Option<LinkedSync<'a, B>>,
}

/// Creates the sync of a file's data.
fn sync_of(file: &File) -> OperationFuture<&File> {
    OperationFuture::new(file, SYNC, Held::None)
}

/// A sync that began when the write had ended, or was cancelled because the write was short.
struct LinkedSync<'a, B> {
    sync: OperationFuture<&'a File>,
    /// The sync's result, if it ended before the write's result was seen.
    synced: Option<Result<usize>>,
    /// Whether the sync was submitted again.
    is_again: bool,
    /// The write's result, while the sync is in flight.
    written: Option<B>,
    rest: AfterWrite,
}

impl<'a, B: IoBuf> WriteDurable<'a, B> {
    pub(super) fn new(write: Io<'a, B>) -> Self {
        let mut write = write.transfer;
        let file = write.file();
        let rest = file.durability().decide(write.request());
        *write.rest() = rest;
        Self { steps: Steps { write, has_begun: false, linked: None }, pinned: PhantomPinned }
    }
}

impl<'a, B: IoBuf> Steps<'a, B> {
    /// Submits the write and its sync together, if both go to this thread's ring. Otherwise the sync follows when the write
    /// has ended, as the write's record says.
    fn link(&mut self, context: &Context<'_>) {
        if self.write.request().synced {
            let mut sync = sync_of(self.write.file());
            if self.write.start_with(&mut sync, context) {
                let mut rest = std::mem::take(self.write.rest());
                rest.begin();
                self.linked = Some(LinkedSync { sync, synced: None, is_again: false, written: None, rest });
            }
        }
    }
}

impl<'a, B: IoBuf> LinkedSync<'a, B> {
    fn poll(&mut self, write: &mut Transfer<'a, B>, context: &mut Context<'_>) -> Poll<BufResult<B>> {
        if self.written.is_none() {
            match write.poll(context) {
                Poll::Ready(written) => self.written = Some(written?),
                Poll::Pending => {
                    if self.synced.is_none()
                        && let Poll::Ready(synced) = self.sync.poll_control(context)
                    {
                        self.synced = Some(synced);
                    }
                    return Poll::Pending;
                }
            }
        }
        loop {
            let synced = match self.synced.take() {
                Some(synced) => synced,
                None => ready!(self.sync.poll_control(context)),
            };
            match synced {
                Err(error) if error.errno() == Some(libc::ECANCELED) && !self.is_again => {
                    self.is_again = true;
                    self.sync = sync_of(write.file());
                }
                synced => {
                    let Some(buffer) = self.written.take() else { return Poll::Pending };
                    return Poll::Ready(match synced {
                        Ok(_) => {
                            write.file().durability().note(write.request(), self.rest);
                            Ok(buffer)
                        }
                        Err(error) => Err(BufError::new(error, buffer)),
                    });
                }
            }
        }
    }
}

impl<B: IoBuf> Future for WriteDurable<'_, B> {
    type Output = BufResult<B>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let steps = self.project().steps;
        if !std::mem::replace(&mut steps.has_begun, true) {
            steps.link(context);
        }
        match &mut steps.linked {
            Some(linked) => linked.poll(&mut steps.write, context),
            None => steps.write.poll(context),
        }
    }
}

impl<B: AnyMemory> Ask for WriteDurable<'_, B> {
    fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        self.steps.write.ask(add)
    }
}
