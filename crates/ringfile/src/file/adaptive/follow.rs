//! A read that continues a stream: it takes what was read ahead.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::ahead::ReadAhead;
use super::piece::AheadPiece;
use super::streams::Id;
use crate::driver::{Request, Target};
use crate::memory::IoMemory;
use crate::runtime;

/// Marks a read that continues a stream as in flight until this is dropped, and takes its data from what was read
/// ahead.
pub(crate) struct Follow {
    ahead: Arc<ReadAhead>,
    id: Id,
    /// The piece that the read waits for.
    piece: Option<AheadPiece>,
    /// How many bytes of the read were taken.
    done: usize,
    /// Whether other tasks are to run first.
    yields: bool,
}

impl Follow {
    /// `has_started`: whether reading ahead of the read was just started.
    pub(super) fn new(ahead: Arc<ReadAhead>, id: Id, has_started: bool) -> Self {
        // The loop submits only when all its tasks have run, but this task may find all its data ready and never wait.
        let yields = has_started && runtime::is_in_loop();
        Self { ahead, id, piece: None, done: 0, yields }
    }

    /// Copies what was read ahead of this read into `memory`. Returns for how many bytes; the rest must be read directly.
    pub(crate) fn poll(
        &mut self,
        own: &Target,
        request: &Request,
        memory: &mut IoMemory,
        context: &mut Context<'_>,
    ) -> Poll<usize> {
        if std::mem::take(&mut self.yields) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        while self.done < request.want {
            let offset = request.offset + self.done as u64;
            // This thread must not depend on when another thread runs its loop, so such a piece is dropped.
            let take = || self.ahead.take(offset).filter(|piece| !piece.needs_another_loop());
            let Some(mut piece) = self.piece.take().or_else(take) else { break };
            if piece.poll(context).is_pending() {
                self.piece = Some(piece);
                return Poll::Pending;
            }
            if !self.ahead.is_trusted(&piece, own) {
                break;
            }
            let content = piece.use_at(offset, request.want - self.done);
            memory.copy_in(request.start + self.done, content);
            let moved = content.len();
            self.done += moved;
            self.ahead.put_back(piece, offset + moved as u64);
            if moved == 0 {
                break;
            }
        }
        Poll::Ready(self.done)
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.ahead.ended(self.id);
    }
}
