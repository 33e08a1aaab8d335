//! Rings for trying out features, one operation or registration at a time.
//!
//! Invariant: memory that an operation names stays valid until the kernel has answered. A [`TrialRing`]'s memory is
//! never freed, so this holds whatever fails; a command that tries a few things and ends can afford the leak.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{Builder, EnterFlags, IoUring, Probe, Submitter, opcode, squeue, types};

use crate::memory::zeroed;

/// Bytes of each ring's memory.
const MEMORY: usize = 64 << 10;

/// Set if creating a ring would make the kernel kill this process.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Makes every later attempt to create a ring fail without calling the kernel.
pub fn forbid() {
    FORBIDDEN.store(true, Ordering::Relaxed);
}

fn allowed() -> io::Result<()> {
    match FORBIDDEN.load(Ordering::Relaxed) {
        true => Err(io::Error::from_raw_os_error(libc::EPERM)),
        false => Ok(()),
    }
}

/// Creates a small ring with these flags (`IORING_SETUP_…`) and closes it at once.
pub fn try_setup(flags: u32) -> io::Result<()> {
    allowed()?;
    // `struct io_uring_params` is 120 bytes. Its second number is the size of the completion queue (read by the kernel
    // only with IORING_SETUP_CQSIZE), the third the flags.
    let mut params = [0_u32; 30];
    (params[1], params[2]) = (8, flags);
    let entries: libc::c_uint = 2;
    // SAFETY: the kernel reads and writes one `struct io_uring_params`, which is as large as the array, and keeps no
    // pointer to it.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, params.as_mut_ptr()) };
    let fd = RawFd::try_from(fd).ok().filter(|&fd| fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the call succeeded, so this is a new descriptor that nothing else owns.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// An operation to try, always on the start of the ring's own memory.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Nothing.
    Nop,
    /// A read of this many bytes at an offset.
    Read(u32, u64),
    /// A read into registered memory.
    ReadFixed(u32, u64),
    /// A vectored read into two parts of registered memory, each of this many bytes.
    ReadvFixed(u32, u64),
    /// A write of this many bytes at an offset, linked: the next operation starts when it has finished.
    WriteLinked(u32, u64),
    /// An fdatasync.
    Fdatasync,
}

/// A ring with its own memory.
pub struct TrialRing {
    ring: IoUring,
    memory: &'static mut [u8],
    parts: &'static mut [libc::iovec; 2],
    /// Number of runs. A failed run leaves its operations in the queue, and the next run submits them; this number
    /// tells their results from that run's own.
    runs: u64,
}

impl TrialRing {
    /// Creates a plain ring of so many entries.
    pub fn new(entries: u32) -> io::Result<TrialRing> {
        TrialRing::built(entries, &IoUring::builder())
    }

    /// Creates a ring of so many entries with these settings.
    pub fn built(entries: u32, builder: &Builder) -> io::Result<TrialRing> {
        allowed()?;
        let ring = builder.build(entries)?;
        let memory = Box::leak(Box::new(zeroed(MEMORY)));
        let part = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: MEMORY };
        Ok(TrialRing { ring, memory, parts: Box::leak(Box::new([part; 2])), runs: 0 })
    }

    /// Returns the ring's memory, where reads have put their data.
    pub fn bytes(&self) -> &[u8] {
        self.memory
    }

    /// Fills the memory.
    pub fn fill(&mut self, byte: u8) {
        self.memory.fill(byte);
    }

    /// Submits operations on a file together, and returns each one's result: a count or a negative errno.
    pub fn run(&mut self, file: &File, ops: &[Op]) -> io::Result<Vec<i32>> {
        self.run_with(file, ops, EnterFlags::empty(), false)
    }

    /// As [`run`](Self::run), entering the ring by its registered number.
    pub fn run_by_number(&mut self, file: &File, ops: &[Op]) -> io::Result<Vec<i32>> {
        self.run_with(file, ops, EnterFlags::empty(), true)
    }

    /// As [`run`](Self::run), with a wait that does not count as iowait.
    pub fn run_without_iowait(&mut self, file: &File, ops: &[Op]) -> io::Result<Vec<i32>> {
        self.run_with(file, ops, EnterFlags::NO_IOWAIT, false)
    }

    fn run_with(
        &mut self,
        file: &File,
        ops: &[Op],
        flags: EnterFlags,
        by_number: bool,
    ) -> io::Result<Vec<i32>> {
        self.runs += 1;
        let first = self.runs << 32;
        let entries: Vec<squeue::Entry> =
            ops.iter().zip(first..).map(|(&op, number)| self.entry(file, op).user_data(number)).collect();
        let (mut submitter, mut submission, mut completion) = self.ring.split();
        if by_number {
            submitter.register_ring_fd()?;
        }
        // SAFETY: the entries name only this ring's memory and parts, which live as long as the process, and a
        // descriptor of `file`, which is borrowed until the kernel has taken its own reference during the submission
        // below.
        unsafe { submission.push_multiple(&entries) }.map_err(|_| io::ErrorKind::QuotaExceeded)?;
        submission.sync();
        let mut results = vec![None; ops.len()];
        while results.iter().any(Option::is_none) {
            if flags.is_empty() {
                match submitter.submit_and_wait(1) {
                    Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                    _ => {}
                }
            } else {
                let flags = (flags | EnterFlags::GETEVENTS).bits();
                let queued = submission.len() as u32;
                // SAFETY: the entries are as above, and no argument is passed.
                unsafe { submitter.enter::<libc::sigset_t>(queued, 1, flags, None) }?;
            }
            submission.sync();
            completion.sync();
            for answer in &mut completion {
                let index = answer.user_data().checked_sub(first).map(|index| index as usize);
                if let Some(result) = index.and_then(|index| results.get_mut(index)) {
                    *result = Some(answer.result());
                }
            }
        }
        Ok(results.into_iter().flatten().collect())
    }

    fn entry(&mut self, file: &File, op: Op) -> squeue::Entry {
        let fd = types::Fd(file.as_raw_fd());
        let within = |bytes: u32| bytes.min(MEMORY as u32);
        let start = self.memory.as_mut_ptr();
        match op {
            Op::Nop => opcode::Nop::new().build(),
            Op::Read(bytes, offset) => opcode::Read::new(fd, start, within(bytes)).offset(offset).build(),
            Op::ReadFixed(bytes, offset) => {
                opcode::ReadFixed::new(fd, start, within(bytes), 0).offset(offset).build()
            }
            Op::ReadvFixed(bytes, offset) => {
                let half = within(bytes).min(MEMORY as u32 / 2) as usize;
                let part = |bytes: &mut [u8]| libc::iovec {
                    iov_base: bytes.as_mut_ptr().cast(),
                    iov_len: bytes.len(),
                };
                *self.parts = [part(&mut self.memory[..half]), part(&mut self.memory[half..2 * half])];
                opcode::ReadvFixed::new(fd, self.parts.as_ptr(), 2, 0).offset(offset).build()
            }
            Op::WriteLinked(bytes, offset) => {
                let write = opcode::Write::new(fd, start, within(bytes)).offset(offset).build();
                write.flags(squeue::Flags::IO_LINK)
            }
            Op::Fdatasync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }

    /// Registers the start of the ring's memory as buffer 0.
    pub fn register_memory(&self, bytes: usize) -> io::Result<()> {
        let iov_len = bytes.min(MEMORY);
        let part = libc::iovec { iov_base: self.memory.as_ptr().cast_mut().cast(), iov_len };
        // SAFETY: the memory lives as long as the process.
        unsafe { self.ring.submitter().register_buffers(&[part]) }
    }

    /// Registers this much memory and unregisters it again.
    pub fn register_and_forget(&self, bytes: usize) -> io::Result<()> {
        let memory = vec![0_u8; bytes];
        let part = libc::iovec { iov_base: memory.as_ptr().cast_mut().cast(), iov_len: bytes };
        // SAFETY: no operation names the memory; it is unregistered before it is freed, and leaked if that fails.
        let registered = unsafe { self.ring.submitter().register_buffers(&[part]) };
        if registered.is_ok() && self.ring.submitter().unregister_buffers().is_err() {
            std::mem::forget(memory);
        }
        registered
    }

    /// Returns the part of the ring that registers things with the kernel.
    pub fn submitter(&self) -> Submitter<'_> {
        self.ring.submitter()
    }

    /// Takes over the registrations of another ring.
    pub fn clone_registrations(&self, from: &TrialRing) -> io::Result<()> {
        self.ring.submitter().register_buffers_clone(from.ring.as_raw_fd())
    }

    /// Returns the largest number of kernel workers of this ring: for regular files and block devices, and for
    /// everything else.
    pub fn worker_limits(&self) -> io::Result<[u32; 2]> {
        // Zeros leave the limits unchanged and return them.
        let mut limits = [0, 0];
        self.ring.submitter().register_iowq_max_workers(&mut limits)?;
        Ok(limits)
    }

    /// Returns which operations the kernel supports.
    pub fn probe(&self) -> io::Result<Probe> {
        let mut probe = Probe::new();
        self.ring.submitter().register_probe(&mut probe)?;
        Ok(probe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_reads_what_is_there() {
        let Ok(mut ring) = TrialRing::new(8) else {
            return crate::skip::skip("a_ring_reads_what_is_there", "no ring can be created");
        };
        let mut file = tempfile::tempfile().expect("temporary file");
        io::Write::write_all(&mut file, &[7; 8192]).expect("write");
        assert_eq!(ring.run(&file, &[Op::Nop, Op::Read(100, 8142)]).expect("entered"), [0, 50]);
        assert!(ring.bytes()[..50].iter().all(|&byte| byte == 7) && ring.bytes()[50] == 0);
        ring.fill(9);
        assert_eq!(ring.run(&file, &[Op::WriteLinked(10, 0), Op::Fdatasync]).expect("entered"), [10, 0]);
        assert_eq!(ring.run(&file, &[Op::Read(4096, 9000)]).expect("entered"), [0]);
    }
}
