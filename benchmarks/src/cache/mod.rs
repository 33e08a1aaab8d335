//! `compare cache`: ringfile's page cache beside mmap, the kernel's page cache, and other caches over direct files.
//!
//! `hits` and `misses` measure one side each of what a read costs, `working_set` both in their proportion, and
//! `hit_rates` only counts. This file knows the command line, and the mapping that two of them use.

mod hit_rates;
mod hits;
mod misses;
mod policies;
mod sides;
mod traces;
mod working_set;

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;

use clap::{Args, Subcommand};

pub use working_set::{One, measure};

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Pages that are all in memory, one thread and two: mmap, plain calls, and caches
    Hits(hits::Options),
    /// Pages of which none is in memory: direct files, and caches over them
    Misses(misses::Options),
    /// A working set larger than the memory, with 64 tasks, alone and beside a scan (root, for the limit on memory)
    WorkingSet(working_set::Options),
    /// Hit rates in generated orders: the optimum, policies, and ringfile's page cache
    HitRates(hit_rates::Options),
}

/// Prints the tables of one comparison.
pub fn compare(options: &Options) -> io::Result<()> {
    match &options.what {
        What::Hits(options) => hits::compare(options),
        What::Misses(options) => misses::compare(options),
        What::WorkingSet(options) => working_set::compare(options),
        What::HitRates(options) => hit_rates::compare(options),
    }
}

/// A file that is mapped for reading. Nothing shortens the file meanwhile: it is the benchmark's own.
struct Mapping {
    start: *const u8,
    len: usize,
}

// SAFETY: the mapping is read-only memory, which any thread may read and unmap.
unsafe impl Send for Mapping {}
// SAFETY: the same.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes, MAP_SHARED, with these other flags.
    fn new(file: &File, len: u64, flags: libc::c_int) -> io::Result<Mapping> {
        let len = len as usize;
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED | flags);
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { start: start.cast(), len })
    }

    /// Keeps the kernel from reading ahead when a page is missing.
    fn advise_random(&self) -> io::Result<()> {
        // SAFETY: the range is the mapping's, and the advice does not change its content.
        match unsafe { libc::madvise(self.start.cast_mut().cast(), self.len, libc::MADV_RANDOM) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has this length until it is dropped, and nobody writes to the file.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new`, and nothing borrows from it any more.
        unsafe { libc::munmap(self.start.cast_mut().cast(), self.len) };
    }
}
