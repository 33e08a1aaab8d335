//! A piece of an adaptive file that is read ahead, by the direct descriptor, into memory of the library.
//!
//! Decides nothing: [`ReadAhead`](super::ahead::ReadAhead) says which pieces are read, and when they may be used.

use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::streams::Id;
use crate::counters::CacheEvent;
use crate::driver::{
    self, Kind, Lend, Loan, OpResult, RemoteOperation, Request, Started, SubmitHint, Target, Ticket,
};
use crate::memory::{Buffer, IoMemory};

/// The change time of a file, in seconds and nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Changed(pub i64, pub u64);

/// A piece whose read is in flight or has finished.
pub(super) struct AheadPiece {
    pub stream: Id,
    pub range: Range<u64>,
    /// When the file was last changed, as of the start of the read.
    pub changed: Changed,
    direct: Arc<Target>,
    memory: Loan,
    carrier: Carrier,
    /// The data; `None` if the read failed.
    content: Option<Buffer>,
    used: u64,
}

/// What carries out the read of a piece.
enum Carrier {
    /// It was not started.
    Nobody,
    Ring(Ticket),
    AnotherThread(RemoteOperation),
    /// It has ended.
    Done,
}

impl AheadPiece {
    pub fn new(
        direct: &Arc<Target>,
        stream: Id,
        range: Range<u64>,
        changed: Changed,
        memory: Buffer,
    ) -> Self {
        let (direct, memory) = (Arc::clone(direct), Loan::of(IoMemory::Pooled(memory), true));
        Self { stream, range, changed, direct, memory, carrier: Carrier::Nobody, content: None, used: 0 }
    }

    /// Starts the read, and drives it to its end.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let ended = match &mut self.carrier {
            Carrier::Nobody => {
                let Range { start: offset, end } = self.range;
                let read = Request { offset, want: (end - offset) as usize, ..Request::of(Kind::Read) };
                self.carrier =
                    match driver::start(&self.direct, &read, &mut self.memory, context, SubmitHint::ONE) {
                        Ok(Started::Done(ended)) => return self.end(ended),
                        Ok(Started::Queued(place)) => Carrier::Ring(Ticket::new(place)),
                        Ok(Started::Elsewhere(operation)) => Carrier::AnotherThread(operation),
                        Ok(Started::Yield) => {
                            context.waker().wake_by_ref();
                            Carrier::Nobody
                        }
                        Err(_) => return self.end(OpResult { done: 0, errno: libc::EIO }),
                    };
                return Poll::Pending;
            }
            Carrier::Ring(ticket) => ready!(ticket.poll(context, &mut self.memory)),
            Carrier::AnotherThread(operation) => ready!(operation.poll(context, &mut self.memory)),
            Carrier::Done => return Poll::Ready(()),
        };
        self.end(ended)
    }

    fn end(&mut self, ended: OpResult) -> Poll<()> {
        self.carrier = Carrier::Done;
        // An error is ignored here: the read that needs the data will get the same error.
        if let IoMemory::Pooled(buffer) = self.memory.take()
            && ended.errno == 0
        {
            self.content = Some(buffer);
        }
        Poll::Ready(())
    }

    /// Returns whether the read ends only when another thread runs its loop, which may be waiting for this one.
    pub fn needs_another_loop(&self) -> bool {
        matches!(&self.carrier, Carrier::Ring(ticket) if ticket.needs_another_loop())
    }

    /// Returns the piece's content from `offset`, at most `most` bytes, fewer at the end of the file. Counts them as
    /// used.
    pub fn use_at(&mut self, offset: u64, most: usize) -> &[u8] {
        let skipped = (offset - self.range.start) as usize;
        let content = self.content.as_deref().and_then(|content| content.get(skipped..)).unwrap_or_default();
        let content = &content[..content.len().min(most)];
        self.used += content.len() as u64;
        driver::count_cache(CacheEvent::AheadUsed, content.len() as u64);
        content
    }
}

impl Drop for AheadPiece {
    fn drop(&mut self) {
        let unused = (self.range.end - self.range.start).saturating_sub(self.used);
        if unused > 0 {
            driver::count_cache(CacheEvent::AheadUnused, unused);
        }
    }
}
