//! The memory of an appender: data that was appended and not yet passed to a write.
//!
//! Knows buffers, not files. Invariants: a chunk begins at a block boundary of the file; the memory of a write is split
//! off and never touched again, so the first bytes of the block in which it ends are copied to the next chunk.

use std::collections::VecDeque;

use super::plan::Plan;
use crate::memory::Buffer;

pub(super) struct Chunks {
    /// The size of a new chunk in bytes.
    size: usize,
    block: usize,
    current: Option<Buffer>,
    /// The first bytes of the block that the next chunk begins with. Empty while there is a current chunk.
    carried: Vec<u8>,
    /// Memory that is not used yet.
    spare: Vec<Buffer>,
    /// Full chunks, for the plan's full pieces in the same order.
    full: VecDeque<Buffer>,
}

impl Chunks {
    pub fn new(size: usize, block: usize, depth: usize, carried: &[u8]) -> Self {
        let mut memory = Vec::with_capacity(block);
        memory.extend_from_slice(carried);
        let (spare, full) = (Vec::with_capacity(2), VecDeque::with_capacity(depth + 2));
        Self { size, block, current: None, carried: memory, spare, full }
    }

    /// Returns the size of the chunks to [add](Self::add), in bytes.
    pub fn size(&self) -> usize {
        self.size
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

    /// Copies `data` behind the data appended before. The caller has checked that there is memory.
    pub fn append(&mut self, mut data: &[u8], plan: &mut Plan) {
        while !data.is_empty() {
            let current = match &mut self.current {
                Some(current) => current,
                none => {
                    let Some(mut chunk) = self.spare.pop() else {
                        debug_assert!(false, "memory for all of it is there");
                        return;
                    };
                    chunk.extend_from_slice(&self.carried);
                    self.carried.clear();
                    none.insert(chunk)
                }
            };
            let (now, later) = data.split_at(data.len().min(current.capacity() - current.len()));
            current.extend_from_slice(now);
            plan.append(now.len());
            if current.len() == current.capacity() {
                plan.seal_full();
                self.full.extend(self.current.take());
            }
            data = later;
        }
    }

    /// Takes the memory of the first full piece.
    pub fn take_full(&mut self) -> Option<Buffer> {
        self.full.pop_front()
    }

    /// Takes the memory of the data since the last full piece, padded with zeros up to a block. Appending continues after it
    /// in this chunk, or in the next one, which gets a copy of the last block's content.
    pub fn take_rest(&mut self) -> Option<Buffer> {
        let mut rest = self.current.take()?;
        let (len, block) = (rest.len(), self.block);
        let mut next = rest.split_off(len.next_multiple_of(block));
        let last_block = &rest[len - len % block..];
        // If little of the chunk is left, using it would split the next group into two writes, which would need a separate
        // sync.
        if next.capacity() >= self.size / 2 {
            next.extend_from_slice(last_block);
            self.current = Some(next);
        } else {
            // `rest` keeps the chunk's memory, so that dropping `next` returns no memory under the appender's lock.
            self.carried.extend_from_slice(last_block);
        }
        rest.resize(rest.capacity(), 0);
        Some(rest)
    }
}
