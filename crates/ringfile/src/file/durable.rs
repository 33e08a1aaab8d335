//! Durable writes: see [`durability`](super::durability).

use std::future::Future;
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::File;
use super::ask::{AnyMemory, Ask, Asked};
use super::durability::{AfterWrite, SYNC};
use super::io::{Io, OperationFuture};
use crate::error::{BufError, BufResult, Result};
use crate::memory::{Held, IoBuf};

pin_project! {
    /// A durable write: see [`File::write_durable_at`]. Await it, or [add](crate::Operation) it to a batch or a queue.
    #[must_use = "nothing is written until it is awaited, or added to a batch or a queue"]
    pub struct WriteDurable<'a, B> {
        write: OperationFuture<&'a File>,
        has_begun: bool,
        linked: Option<LinkedSync<'a, B>>,
        #[pin]
        pinned: PhantomPinned,
    }
}

/// Creates the sync of a file's data.
fn sync_of(file: &File) -> OperationFuture<&File> {
    OperationFuture::new(file, SYNC, Held::None)
}

/// A sync that was submitted with its write. It began when the write had ended, or was cancelled because the write was
/// short.
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
    pub(super) fn new(Io { operation: mut write, .. }: Io<'a, B>) -> Self {
        write.record.rest = write.file.durability().decide(&mut write.record.request);
        Self { write, has_begun: false, linked: None, pinned: PhantomPinned }
    }
}

impl<'a, B: IoBuf> LinkedSync<'a, B> {
    /// Submits a write and its sync together, if both go to this thread's ring. Otherwise the sync follows when the
    /// write has ended, as the write's record says.
    fn begin(write: &mut OperationFuture<&'a File>, context: &Context<'_>) -> Option<Self> {
        let mut sync = sync_of(write.file);
        if !write.record.request.synced || !write.start_with(&mut sync, context) {
            return None;
        }
        let mut rest = std::mem::take(&mut write.record.rest);
        rest.begin();
        Some(Self { sync, synced: None, is_again: false, written: None, rest })
    }

    fn poll(
        &mut self,
        write: &mut OperationFuture<&'a File>,
        context: &mut Context<'_>,
    ) -> Poll<BufResult<B>> {
        if self.written.is_none()
            && let Poll::Ready(written) = write.poll_transfer(context, B::release)
        {
            self.written = Some(written?);
        }
        loop {
            let synced = match self.synced.take() {
                Some(synced) => synced,
                None => ready!(self.sync.poll_control(context)),
            };
            let Some(buffer) = self.written.take() else {
                self.synced = Some(synced);
                return Poll::Pending;
            };
            return Poll::Ready(match synced {
                Ok(_) => {
                    write.file.durability().note(&write.record.request, self.rest);
                    Ok(buffer)
                }
                Err(error) if error.errno() == Some(libc::ECANCELED) && !self.is_again => {
                    (self.sync, self.is_again, self.written) = (sync_of(write.file), true, Some(buffer));
                    continue;
                }
                Err(error) => Err(BufError::new(error, buffer)),
            });
        }
    }
}

impl<B: IoBuf> Future for WriteDurable<'_, B> {
    type Output = BufResult<B>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if !std::mem::replace(this.has_begun, true) {
            *this.linked = LinkedSync::begin(this.write, context);
        }
        match this.linked {
            Some(linked) => linked.poll(this.write, context),
            None => this.write.poll_transfer(context, B::release),
        }
    }
}

impl<B: AnyMemory> Ask for WriteDurable<'_, B> {
    fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        self.write.ask(add)
    }
}
