//! The memory of an appender: data that was appended and not yet passed to a write.
//!
//! Knows buffers, not files. Invariants: a chunk begins at a block boundary of the file; the memory of a write is split
//! off and never touched again, so the first bytes of the block in which it ends are copied to the next chunk; a record
//! that is given up, because its code panics, leaves no trace.

use std::collections::VecDeque;

use bytes::buf::UninitSlice;
use bytes::{BufMut, Bytes};

use super::kept::Kept;
use super::plan::Plan;
use crate::memory::Buffer;

pub(super) struct Chunks {
    /// The size of the chunks to [add](Self::add), in bytes.
    pub size: usize,
    block: usize,
    current: Option<Buffer>,
    /// The first bytes of the block that the next chunk begins with. Empty while there is a current chunk.
    carried: Vec<u8>,
    /// Memory that is not used yet.
    spare: Vec<Buffer>,
    /// Full chunks, for the plan's full pieces in the same order.
    full: VecDeque<Buffer>,
    /// What readers of the tail find.
    pub kept: Kept,
}

/// Returns a second owner of some of a chunk's bytes, which were appended: nobody writes to them any more.
fn share(chunk: &Buffer, at: usize, len: usize) -> Bytes {
    debug_assert!(at + len <= chunk.len(), "they were appended");
    // SAFETY: bytes that were appended are only read from here on, by readers and by writes: appending and padding write
    // behind them, and whoever gets the chunk or a part of it appends behind its length, too, writes it, or drops it.
    Bytes::from_owner(unsafe { chunk.share(at, len) })
}

impl Chunks {
    pub fn new(size: usize, block: usize, depth: usize, carried: &[u8], kept: Kept) -> Self {
        let mut memory = Vec::with_capacity(block);
        memory.extend_from_slice(carried);
        let (spare, full) = (Vec::with_capacity(2), VecDeque::with_capacity(depth + 2));
        Self { size, block, current: None, carried: memory, spare, full, kept }
    }

    /// Returns bytes of the log, which ends at `end`, from `position` on, at most up to `limit`. If they are not kept,
    /// returns where the part begins that is: everything before is in the file.
    pub fn at(&self, position: u64, limit: u64, end: u64) -> Result<Bytes, u64> {
        let current = self.current.as_ref().filter(|_| self.kept.keeps());
        let current = current.map(|current| (current, end - current.len() as u64));
        if let Some((chunk, start)) = current.filter(|(_, start)| *start <= position) {
            return Ok(share(chunk, (position - start) as usize, (limit - position) as usize));
        }
        let start = self.kept.start().or(current.map(|(_, start)| start));
        self.kept.at(position, limit).ok_or(start.unwrap_or(u64::MAX))
    }

    /// Keeps a chunk that ends at `end` in the log, and whose memory takes `unused` bytes with it.
    fn keep(&mut self, chunk: &Buffer, unused: usize, end: u64) {
        if self.kept.keeps() {
            let memory = chunk.capacity() + unused;
            self.kept.add(end - chunk.len() as u64, share(chunk, 0, chunk.len()), memory);
        }
    }

    /// Returns whether there is memory for `bytes` more.
    pub fn has_memory(&self, bytes: usize) -> bool {
        let spare: usize = self.spare.iter().map(Buffer::capacity).sum();
        let current = self.current.as_ref().map_or(0, |current| current.capacity() - current.len());
        bytes == 0 || bytes + self.carried.len() <= current + spare
    }

    pub fn add(&mut self, chunk: Buffer) {
        self.spare.push(chunk);
    }

    /// Appends the record that `fill` writes, of at most `most` bytes and not more than a chunk. The caller has checked that
    /// there is memory. Returns whether it has filled a chunk.
    pub fn append(&mut self, most: usize, plan: &mut Plan, fill: impl FnOnce(&mut Reservation<'_>)) -> bool {
        if most > 0 && self.current.is_none() {
            self.begin_chunk();
        }
        let (full, before) = (self.full.len(), Some(self.current.as_ref().map_or(0, Buffer::len)));
        let mut record =
            Reservation { offset: plan.appended(), room: most, before, first: None, chunks: self };
        fill(&mut record);
        record.keep(plan);
        self.full.len() > full
    }

    /// Makes unused memory the current chunk.
    fn begin_chunk(&mut self) {
        let next = self.spare.pop();
        debug_assert!(next.is_some(), "memory for all of it is there");
        self.current = next;
        if let Some(chunk) = &mut self.current {
            chunk.extend_from_slice(&self.carried);
            self.carried.clear();
        }
    }

    /// Begins again at another offset, whose block begins with these bytes. Everything appended before was passed to
    /// writes. The caller drops the returned value without the lock.
    #[must_use]
    pub fn restart(&mut self, carried: &[u8]) -> Option<Buffer> {
        self.carried.clear();
        self.carried.extend_from_slice(carried);
        self.current.take()
    }

    /// Makes a chunk, up to whose end the plan has been told of all bytes, a full one.
    fn seal(&mut self, chunk: Buffer, plan: &mut Plan) {
        plan.seal_full();
        self.keep(&chunk, 0, plan.appended());
        self.full.push_back(chunk);
    }

    /// Takes the memory of the next write: the first full chunk, or the data since the last one, padded with zeros up
    /// to a block. Appending continues after it in this chunk, or in the next one, which gets a copy of the last
    /// block's content. The write ends at `end`.
    pub fn take(&mut self, end: u64) -> Option<Buffer> {
        if let Some(full) = self.full.pop_front() {
            return Some(full);
        }
        let mut rest = self.current.take()?;
        let (len, block) = (rest.len(), self.block);
        let mut next = rest.split_off(len.next_multiple_of(block));
        let last_block = &rest[len - len % block..];
        // If little of the chunk is left, using it would split the next group into two writes, which would need a separate
        // sync.
        let mut unused = next.capacity();
        if unused >= self.size / 2 {
            next.extend_from_slice(last_block);
            self.current = Some(next);
            unused = 0;
        } else {
            // `rest` keeps the chunk's memory, so that dropping `next` returns no memory under the appender's lock.
            self.carried.extend_from_slice(last_block);
        }
        self.keep(&rest, unused, end);
        rest.resize(rest.capacity(), 0);
        Some(rest)
    }
}

/// Room for a record in an appender's memory, in which [`Appender::append_with`](super::Appender::append_with) lets it be written.
///
/// Write it with the methods of [`bytes::BufMut`] (which panic if there is too little room) or [`std::io::Write`] (whose
/// `write_all` fails).
pub struct Reservation<'a> {
    chunks: &'a mut Chunks,
    offset: u64,
    room: usize,
    /// How full the current chunk was when the record began, until the record is kept.
    before: Option<usize>,
    /// The chunk in which the record began, once it is full and the record continues in the next one.
    first: Option<Buffer>,
}

impl Reservation<'_> {
    /// Returns the offset in the file at which the record begins, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the chunk with room for the next bytes; `None` if the record has no room.
    #[inline]
    fn chunk(&mut self) -> Option<&mut Buffer> {
        if self.room == 0 {
            return None;
        }
        if self.chunks.current.as_ref().is_some_and(is_full) {
            self.first = self.chunks.current.take();
            self.chunks.begin_chunk();
        }
        self.chunks.current.as_mut()
    }

    /// Copies as much of `data` as there is room for in one chunk; returns the length.
    #[inline]
    fn copy(&mut self, data: &[u8]) -> usize {
        let room = self.room;
        let Some(chunk) = self.chunk() else { return 0 };
        let len = data.len().min(chunk.capacity() - chunk.len()).min(room);
        chunk.extend_from_slice(&data[..len]);
        self.room -= len;
        len
    }

    /// Makes the record part of what was appended.
    fn keep(mut self, plan: &mut Plan) {
        let Some(mut before) = self.before.take() else { return };
        if let Some(first) = self.first.take() {
            plan.append(first.len() - std::mem::take(&mut before));
            self.chunks.seal(first, plan);
        }
        if let Some(current) = &self.chunks.current {
            plan.append(current.len() - before);
            if is_full(current)
                && let Some(full) = self.chunks.current.take()
            {
                self.chunks.seal(full, plan);
            }
        }
    }
}

impl std::fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reservation")
            .field("offset", &self.offset)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

fn is_full(chunk: &Buffer) -> bool {
    chunk.len() == chunk.capacity()
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        if let Some(first) = self.first.take()
            && let Some(mut unused) = self.chunks.current.replace(first)
        {
            unused.clear();
            self.chunks.spare.push(unused);
        }
        if let Some(current) = &mut self.chunks.current {
            current.truncate(before);
        }
    }
}

// SAFETY: `chunk_mut` gives memory of a chunk, between its length and its capacity, and `advance_mut` takes no more than
// that.
unsafe impl BufMut for Reservation<'_> {
    /// Returns how many more bytes the record may have.
    fn remaining_mut(&self) -> usize {
        self.room
    }

    unsafe fn advance_mut(&mut self, n: usize) {
        let room = self.room;
        let Some(chunk) = self.chunk() else {
            assert!(n == 0, "can't advance by {n} bytes: the record is full");
            return;
        };
        assert!(n <= room, "can't advance by {n} bytes: the record has room for {room}");
        // SAFETY: the caller has written the bytes that `chunk_mut` gave.
        unsafe { chunk.advance_mut(n) };
        self.room -= n;
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        let room = self.room;
        let Some(chunk) = self.chunk() else { return UninitSlice::new(&mut []) };
        let len = room.min(chunk.capacity() - chunk.len());
        &mut chunk.chunk_mut()[..len]
    }

    #[inline]
    fn put_slice(&mut self, mut data: &[u8]) {
        let (len, room) = (data.len(), self.room);
        assert!(len <= room, "can't write {len} bytes: the record has room for {room}");
        while !data.is_empty() {
            data = &data[self.copy(data)..];
        }
    }
}

impl std::io::Write for Reservation<'_> {
    #[inline]
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        Ok(self.copy(data))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
