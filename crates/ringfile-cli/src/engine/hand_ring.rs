//! A ring driven by hand-written code, and the memory of its operations. All hand-written loops use it, those of
//! `benchmarks/` too.
//!
//! A slot has one block of the memory, and at most one operation in flight. Invariants: memory that the kernel may
//! write to is neither moved nor freed, whatever fails: dropping waits for the operations in flight, and leaks the
//! memory if it cannot.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use bytes::BytesMut;
use io_uring::squeue::{self, PushError};
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, opcode, types};

use super::outcome::whole;
use crate::error::{Failure, errno_text, io_at};
use crate::job::Operation;
use crate::model::{Buffers, RingFlags};

/// A ring, the memory of its slots, and what is in flight.
pub struct HandRing<'a> {
    // `IoUring::submit` makes a new `Submitter` each time and forgets the registered ring, so this one is kept.
    submitter: Submitter<'a>,
    submissions: SubmissionQueue<'a>,
    completions: CompletionQueue<'a>,
    file: &'a File,
    /// The file's descriptor, or its number if it is registered, and the flags that say which.
    target: (types::Fd, squeue::Flags),
    memory: BytesMut,
    /// The first byte of `memory`: a reference to all of it would cover bytes that the kernel writes to.
    start: *mut u8,
    vectors: Vec<libc::iovec>,
    buffers: Buffers,
    block: usize,
    parts: usize,
    in_flight: usize,
    /// System calls so far.
    pub enters: u64,
}

impl<'a> HandRing<'a> {
    /// Makes slots of one block each, which has `parts` parts, in all of `memory`. Nothing is registered yet.
    pub fn new(
        ring: &'a mut IoUring,
        file: &'a File,
        mut memory: BytesMut,
        buffers: Buffers,
        (block, parts): (usize, usize),
    ) -> HandRing<'a> {
        let (submitter, submissions, completions) = ring.split();
        let vectors = memory.chunks_exact_mut(block / parts);
        let vectors = vectors
            .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
            .collect();
        HandRing {
            submitter,
            submissions,
            completions,
            file,
            target: (types::Fd(file.as_raw_fd()), squeue::Flags::empty()),
            start: memory.as_mut_ptr(),
            memory,
            vectors,
            buffers,
            block,
            parts,
            in_flight: 0,
            enters: 0,
        }
    }

    /// Reverses the parts of each block, so that the kernel can't join them.
    pub fn reverse_parts(&mut self) {
        self.vectors.chunks_mut(self.parts).for_each(<[_]>::reverse);
    }

    /// Registers the ring and the file.
    pub fn register_file(&mut self) -> io::Result<()> {
        // Fails before Linux 5.18; the plain descriptor is used then.
        let _ = self.submitter.register_ring_fd();
        self.submitter.register_files(&[self.file.as_raw_fd()])?;
        self.target = (types::Fd(0), squeue::Flags::FIXED_FILE);
        Ok(())
    }

    /// Registers the memory, if its kind is registered.
    pub fn register_memory(&mut self) -> io::Result<()> {
        if !self.buffers.registered() {
            return Ok(());
        }
        let all = libc::iovec { iov_base: self.start.cast(), iov_len: self.memory.len() };
        // SAFETY: the kernel holds the pages themselves, and nothing uses the registration once the memory is freed.
        unsafe { self.submitter.register_buffers(&[all]) }
    }

    /// Queues an operation on the slot's block.
    ///
    /// # Safety
    /// No operation in flight has this slot.
    #[inline]
    pub unsafe fn push(&mut self, slot: usize, offset: u64, write: bool) -> Result<(), PushError> {
        let entry = self.entry(slot, offset, write);
        // SAFETY: the file is borrowed for longer than this lives. No other operation uses the slot's memory, as the
        // caller ensures; memory and vectors last until this operation is over, by the invariant of this type.
        unsafe { self.submissions.push(&entry)? };
        self.in_flight += 1;
        Ok(())
    }

    #[inline]
    fn entry(&self, slot: usize, offset: u64, write: bool) -> squeue::Entry {
        let (file, flags) = self.target;
        let (length, parts) = (self.block as u32, self.parts as u32);
        let start = self.at(slot);
        let vector = self.vectors[slot * self.parts..].as_ptr();
        let entry = match (self.buffers, write) {
            (Buffers::Normal, false) => opcode::Read::new(file, start, length).offset(offset).build(),
            (Buffers::Normal, true) => opcode::Write::new(file, start, length).offset(offset).build(),
            (Buffers::Fixed, false) => opcode::ReadFixed::new(file, start, length, 0).offset(offset).build(),
            (Buffers::Fixed, true) => opcode::WriteFixed::new(file, start, length, 0).offset(offset).build(),
            (Buffers::Vectored, false) => opcode::Readv::new(file, vector, parts).offset(offset).build(),
            (Buffers::Vectored, true) => opcode::Writev::new(file, vector, parts).offset(offset).build(),
            (Buffers::VectoredFixed, false) => {
                opcode::ReadvFixed::new(file, vector, parts, 0).offset(offset).build()
            }
            (Buffers::VectoredFixed, true) => {
                opcode::WritevFixed::new(file, vector, parts, 0).offset(offset).build()
            }
        };
        entry.flags(flags).user_data(slot as u64)
    }

    /// Submits what is queued, waits for this many completions, and sees them.
    #[inline]
    pub fn enter(&mut self, wait_for: usize) -> io::Result<()> {
        self.completions.sync();
        loop {
            self.submissions.sync();
            self.enters += 1;
            let submitted = self.submitter.submit_and_wait(wait_for);
            self.submissions.sync();
            match submitted {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.completions.sync();
        Ok(())
    }

    /// Sees completions that came after the last [`enter`](Self::enter).
    fn look(&mut self) {
        self.completions.sync();
    }

    /// Takes one completion: its slot and its result.
    #[inline]
    pub fn completed(&mut self) -> Option<(usize, i32)> {
        let completion = self.completions.next()?;
        self.in_flight -= 1;
        Some((completion.user_data() as usize, completion.result()))
    }

    /// Returns the number of operations that were queued and whose completion was not taken.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the slot's block.
    ///
    /// # Safety
    /// No operation in flight has this slot.
    #[inline]
    pub unsafe fn block(&self, slot: usize) -> &[u8] {
        // SAFETY: the block lies in the memory, all of which was initialised; the caller keeps the kernel away from it.
        unsafe { std::slice::from_raw_parts(self.at(slot), self.block) }
    }

    #[inline]
    fn at(&self, slot: usize) -> *mut u8 {
        let at = slot * self.block;
        assert!(at + self.block <= self.memory.len(), "slot {slot} of {} bytes", self.memory.len());
        self.start.wrapping_add(at)
    }
}

impl Drop for HandRing<'_> {
    fn drop(&mut self) {
        self.look();
        loop {
            // Nobody needs these results any more.
            while self.completed().is_some() {}
            if self.in_flight == 0 {
                return;
            }
            if self.enter(1).is_err() {
                // Leaked rather than freed under the kernel.
                std::mem::forget(std::mem::take(&mut self.memory));
                std::mem::forget(std::mem::take(&mut self.vectors));
                return;
            }
        }
    }
}

/// Makes a ring with exactly these flags. Without any, makes one with `DEFER_TASKRUN` if this kernel has that (Linux
/// 6.1). Only the thread that makes the ring uses it.
pub fn make_ring(flags: Option<RingFlags>, entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    match flags {
        None => match make_ring(Some(RingFlags::Defer), entries) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => &mut builder,
            made => return made,
        },
        Some(RingFlags::None) => &mut builder,
        Some(RingFlags::Coop) => builder.setup_coop_taskrun().setup_taskrun_flag(),
        Some(RingFlags::Defer) => builder.setup_single_issuer().setup_defer_taskrun(),
        Some(RingFlags::Sqpoll) => builder.setup_sqpoll(RingFlags::SQPOLL_IDLE.as_millis() as u32),
    };
    builder.build(entries)
}

/// Returns an error unless the kernel moved the whole block.
pub fn check(result: i32, operation: Operation, block: usize, path: &Path) -> Result<(), Failure> {
    let failed = |_| io_at(operation.verb(), path, operation.offset, &io::Error::from_raw_os_error(-result));
    whole(operation, usize::try_from(result).map_err(failed), block, path)
}

/// Returns the failure of a hand-driven ring.
pub fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::Io(format!("{what} a ring by hand failed: {}", errno_text(error)))
}

/// Returns the failure of a ring without room for another entry.
pub fn full(_: PushError) -> Failure {
    Failure::Io("a ring by hand is full".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_without_asked_flags_has_one_issuer_where_the_kernel_knows_that() {
        if let (Ok(ring), Ok(features)) = (make_ring(None, 8), ringfile::metrics::ring_features()) {
            let knows = features.iter().any(|name| name == "defer_taskrun");
            assert_eq!(ring.params().is_setup_single_issuer(), knows);
        }
    }
}
