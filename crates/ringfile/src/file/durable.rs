//! Durable writes: see [`durability`](super::durability).

use std::marker::PhantomData;
use std::task::{Context, Poll, ready};

use super::File;
use super::durability::{AfterWrite, SYNC};
use super::op::{OperationFuture, Output, Product};
use crate::error::{BufError, BufResult, Result};
use crate::memory::{IoBuf, IoMemory};

/// The buffer of a durable write, as the `T` of its [`Op`](crate::Op): see [`File::write_durable_at`].
pub struct Durable<B>(PhantomData<fn() -> B>);

/// Creates the sync of a file's data.
fn sync_of(file: &File) -> OperationFuture<&File> {
    OperationFuture::new(file, SYNC, IoMemory::None)
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

impl OperationFuture<&File> {
    /// Makes the write durable, as the file's [`durability`](super::durability) decides.
    pub(super) fn durable(mut self) -> Self {
        self.record.rest = self.file.durability().decide(&mut self.record.request);
        self
    }
}

/// How a durable write is carried out.
pub struct DurableState<'f, B> {
    has_begun: bool,
    linked: Option<LinkedSync<'f, B>>,
}

impl<B> Default for DurableState<'_, B> {
    fn default() -> Self {
        Self { has_begun: false, linked: None }
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
            && let Poll::Ready(written) = write.poll_transfer(context, B::release_part)
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

impl<B: IoBuf> Output for Durable<B> {
    type Result = BufResult<B>;
    type File<'f> = &'f File;
    type State<'f> = DurableState<'f, B>;

    fn poll<'f>(
        write: &mut OperationFuture<&'f File>,
        state: &mut DurableState<'f, B>,
        context: &mut Context<'_>,
    ) -> Poll<BufResult<B>> {
        if !std::mem::replace(&mut state.has_begun, true) {
            state.linked = LinkedSync::begin(write, context);
        }
        match &mut state.linked {
            Some(linked) => linked.poll(write, context),
            None => write.poll_transfer(context, B::release_part),
        }
    }

    /// The buffer itself is there.
    fn take(_: &mut Product) -> Option<Self> {
        None
    }
}
