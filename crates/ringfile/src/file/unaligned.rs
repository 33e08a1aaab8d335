//! Reads in pieces, for futures, batches and queues: direct reads that are not aligned, which return exactly the
//! requested bytes, and reads whose beginning is in the page cache.
//!
//! Invariants: exactly the blocks that the range touches are read, each once. All data that can be read directly into
//! the user's memory is; the rest goes through a small reserve of the library, never through the user's pool, which may
//! be full.

use super::adaptive::Descriptor;
use crate::driver::{Alignment, Finished, Kind, OpResult, Request};
use crate::error::Error;
use crate::memory::{IoMemory, reserve};

/// The largest read into the reserve.
const CHUNK: usize = 256 << 10;

/// The progress of such a read. It starts nothing itself: its driver begins a piece, carries it out, and ends it.
#[derive(Default)]
pub(crate) struct ReadInPieces {
    done: usize,
    /// How many bytes the last piece reads directly into the user's memory, unless it goes through the reserve.
    want: usize,
    /// If the last piece reads blocks into the reserve: how many bytes at their beginning were not requested. The
    /// number is kept here, since the file may become buffered meanwhile.
    skipped: Option<usize>,
    /// The descriptor for everything except the cached beginning.
    descriptor: Descriptor,
    /// The file's own descriptor reads this many bytes, since the page cache has them.
    cached: usize,
}

impl ReadInPieces {
    /// Reads what follows the first `done` bytes, which are there, through this descriptor; but from the page cache,
    /// through the file's own, what is among the first `cached` bytes.
    pub(crate) fn new(done: usize, cached: usize, descriptor: Descriptor) -> Self {
        Self { done, cached, descriptor, ..Self::default() }
    }

    /// Returns the descriptor for the next piece.
    pub(crate) fn descriptor(&self) -> Descriptor {
        if self.done < self.cached { Descriptor::Own } else { self.descriptor }
    }

    /// Returns the number of bytes read so far.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Begins the next piece of `request`, where `alignment` is that of [`descriptor`](Self::descriptor): returns what
    /// to read, and the memory to read it into, which may be `memory`.
    ///
    /// # Errors
    /// No memory for the reserve.
    pub(crate) fn begin(
        &mut self,
        request: &Request,
        alignment: Alignment,
        memory: &mut IoMemory,
    ) -> Result<(Request, IoMemory), Error> {
        let Alignment { bytes: block, memory: multiple, .. } = alignment;
        let at = request.offset + self.done as u64;
        let end = if self.done < self.cached { self.cached } else { request.want };
        let left = end - self.done;
        let skipped = (at % block as u64) as usize;
        let start = request.start + self.done;
        let memory_fits = memory.count() == 1
            && memory.part(0).is_some_and(|part| (part.ptr.addr() + start).is_multiple_of(multiple));
        let body = left - left % block;
        if skipped == 0 && memory_fits && body > 0 {
            (self.want, self.skipped) = (body, None);
            let piece = Request { kind: Kind::Read, offset: at, start, want: body, ..*request };
            return Ok((piece, std::mem::take(memory)));
        }
        let want = (skipped + left).next_multiple_of(block).min(CHUNK.max(block));
        let blocks = reserve().try_get(want).map_err(|error| {
            self.show_done(request, memory);
            Error::from(error).after(self.done)
        })?;
        self.skipped = Some(skipped);
        let piece = Request { kind: Kind::Read, offset: at - skipped as u64, start: 0, want, ..*request };
        Ok((piece, IoMemory::Pooled(blocks)))
    }

    /// Takes the result of the piece; returns that of the whole read if this was the last piece.
    pub(crate) fn end(
        &mut self,
        request: &Request,
        memory: &mut IoMemory,
        finished: Finished,
    ) -> Option<OpResult> {
        let Finished { memory: piece_memory, ended: OpResult { done, errno } } = finished;
        let left = request.want - self.done;
        let (moved, asked) = match (self.skipped, piece_memory) {
            (None, piece_memory) => {
                *memory = piece_memory;
                (done, self.want)
            }
            (Some(skipped), IoMemory::Pooled(blocks)) => {
                let got = blocks.get(skipped..).unwrap_or_default();
                let moved = got.len().min(left);
                memory.copy_in(request.start + self.done, &got[..moved]);
                (moved, left.min(blocks.capacity() - skipped))
            }
            // In a forked child, the blocks belong to the parent.
            (Some(_), _) => (0, left),
        };
        self.done += moved;
        let is_over = errno != 0 || moved < asked || self.done == request.want;
        is_over.then(|| {
            self.show_done(request, memory);
            OpResult { done: self.done, errno }
        })
    }

    /// Takes back the memory of a piece that could not be carried out.
    pub(crate) fn give_back(&self, request: &Request, memory: &mut IoMemory, piece_memory: IoMemory) {
        if self.skipped.is_none() {
            *memory = piece_memory;
        }
        self.show_done(request, memory);
    }

    /// Sets the buffer's length to what was read.
    fn show_done(&self, request: &Request, memory: &mut IoMemory) {
        memory.copy_in(request.start + self.done, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Buffer, Pool};
    use crate::random::Random;

    const BLOCK: usize = 512;
    const ALIGNMENT: Alignment = Alignment { bytes: BLOCK, memory: BLOCK, atomic: None };

    /// Reads from `file` as the kernel would. Returns the buffer, the bytes that it has, and how many pieces went right into
    /// it.
    fn read(file: &[u8], offset: usize, buffer: Buffer) -> (Buffer, usize, usize) {
        let want = buffer.capacity();
        let request = Request { offset: offset as u64, want, ..Request::of(Kind::Read) };
        let (mut memory, mut pieces) = (IoMemory::Pooled(buffer), ReadInPieces::default());
        let (mut into, mut seen) = (0, offset / BLOCK * BLOCK);
        loop {
            let (piece, mut piece_memory) = pieces.begin(&request, ALIGNMENT, &mut memory).unwrap();
            let at = piece.offset as usize;
            assert_eq!((at, piece.want % BLOCK), (seen, 0), "each block once");
            let address = piece_memory.part(0).unwrap().ptr.addr() + piece.start;
            assert_eq!(address % BLOCK, 0);
            into += usize::from(matches!(memory, IoMemory::None));
            let got = &file[at.min(file.len())..(at + piece.want).min(file.len())];
            piece_memory.copy_in(piece.start, got);
            seen = at + piece.want;
            let finished = Finished { memory: piece_memory, ended: OpResult { done: got.len(), errno: 0 } };
            if let Some(ended) = pieces.end(&request, &mut memory, finished) {
                let IoMemory::Pooled(buffer) = memory else { panic!("the buffer is gone") };
                return (buffer, ended.done, into);
            }
        }
    }

    #[test]
    fn without_memory_for_the_reserve_the_length_is_what_was_read() {
        // No pool has such a block.
        let huge = Alignment { bytes: 1 << 50, ..ALIGNMENT };
        let request = Request { offset: 1, want: 8, ..Request::of(Kind::Read) };
        for done in [0, 4] {
            let mut memory = IoMemory::Vec(b"readmore".to_vec());
            let mut pieces = ReadInPieces { done, ..ReadInPieces::default() };
            assert!(pieces.begin(&request, huge, &mut memory).is_err());
            assert!(matches!(memory, IoMemory::Vec(bytes) if bytes == b"readmore"[..done]));
        }
    }

    #[test]
    fn pieces_give_just_the_bytes_asked_for_wherever_the_memory_is() {
        let mut random = Random::new();
        let file: Vec<u8> = (0..600_000_usize).map(|at| (at / 7 % 251) as u8).collect();
        let pool = Pool::new(4 << 20);
        for _ in 0..500 {
            let offset = random.below(file.len() as u64 + 1000) as usize;
            let most = if random.below(10) == 0 { 500_000 } else { 3000 };
            let want = 1 + random.below(most) as usize;
            let odd = [0, 0, BLOCK, 1, 100][random.below(5) as usize];
            let mut whole = pool.get(odd + want).unwrap();
            whole.resize(odd, 0);
            let buffer = if odd == 0 { whole } else { whole.split_off(odd) };
            let want = buffer.capacity();
            let (buffer, done, into) = read(&file, offset, buffer);
            let expected = &file[offset.min(file.len())..(offset + want).min(file.len())];
            assert_eq!((&buffer[..], done), (expected, expected.len()), "{want} bytes at {offset}");
            let at_block =
                usize::from(offset.is_multiple_of(BLOCK) && odd.is_multiple_of(BLOCK) && want >= BLOCK);
            assert!(into >= at_block, "aligned blocks need no copy");
        }
        assert_eq!(pool.metrics().in_use, 0);
    }
}
