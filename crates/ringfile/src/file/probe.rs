//! Finds out what a file is, and what direct I/O on it needs.

use std::os::fd::AsFd;

use linux_raw_sys::general::STATX_WRITE_ATOMIC;
use rustix::fs::{AtFlags, Statx, StatxFlags};

use crate::descriptor;
use crate::driver::{Alignment, AtomicLimits, FileKind, FileSystem};
use crate::error::{Error, Result};

/// The alignment that is assumed if the kernel does not report what direct I/O needs.
const USUAL_ALIGNMENT: u32 = 4096;

/// File systems that accept O_DIRECT and ignore it, because their files are memory (include/uapi/linux/magic.h).
const IN_MEMORY: [(u32, &str); 3] =
    [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs"), (0x9584_58f6, "hugetlbfs")];
const FUSE: u32 = 0x6573_5546;
/// NFS, SMB (three numbers), 9P, Ceph, AFS.
const NETWORK: [u32; 7] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x00c3_6400, 0x5346_414f];

pub(super) const FOR_DIRECT: &str = "opening for direct I/O";
pub(super) const NO_DIRECT: &str = "this file does not support direct I/O";

/// Adds to an error why there is no direct I/O, and what to do.
pub(super) fn no_direct(error: Error, why: &str) -> Error {
    error.because(format!("{why}; open without direct, or with buffered_fallback(true)"))
}

pub(super) fn kind_of(file: impl AsFd) -> FileKind {
    use rustix::fs::FileType;
    match descriptor::status(file).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Ok(FileType::RegularFile) => FileKind::Regular,
        Ok(FileType::BlockDevice) => FileKind::Block,
        _ => FileKind::Other,
    }
}

/// Returns the multiples that direct I/O on the file requires.
pub(super) fn alignment(file: impl AsFd) -> Result<Alignment> {
    let file = file.as_fd();
    let refused = |why: &str| no_direct(Error::new(std::io::ErrorKind::Unsupported, FOR_DIRECT), why);
    let asked = StatxFlags::DIOALIGN | StatxFlags::from_bits_retain(STATX_WRITE_ATOMIC);
    if let Ok(facts) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, asked)
        && facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0
    {
        return match facts.stx_dio_mem_align.max(facts.stx_dio_offset_align) {
            0 => Err(refused(NO_DIRECT)),
            block => Ok(Alignment { atomic: atomic(&facts), ..multiples(block, facts.stx_dio_mem_align) }),
        };
    }
    match kind_of(file) {
        FileKind::Regular => match in_memory(magic(file)) {
            Some(name) => Err(refused(&format!("{name} accepts O_DIRECT but ignores it"))),
            None => Ok(multiples(USUAL_ALIGNMENT, 1)),
        },
        FileKind::Block => Ok(multiples(rustix::fs::ioctl_blksszget(file).unwrap_or(USUAL_ALIGNMENT), 1)),
        // On a pipe this flag selects packet mode.
        FileKind::Other => Err(refused("only regular files and block devices support direct I/O")),
    }
}

/// Returns the magic number of the file system; 0 if it is unknown.
pub(super) fn magic(file: impl AsFd) -> u32 {
    rustix::fs::fstatfs(file).map_or(0, |facts| facts.f_type as u32)
}

/// Returns the name of a file system whose files are memory.
fn in_memory(magic: u32) -> Option<&'static str> {
    IN_MEMORY.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

pub(super) fn file_system(file: impl AsFd) -> FileSystem {
    match magic(file) {
        FUSE => FileSystem::Fuse,
        magic if NETWORK.contains(&magic) => FileSystem::Network,
        magic if in_memory(magic).is_some() => FileSystem::Memory,
        _ => FileSystem::Other,
    }
}

/// Memory is aligned as blocks are, which is safe if the kernel does not say, but to no more than a pool's alignment:
/// since Linux 6.12 blocks may be larger than a page, but a device's address alignment may not (`blk_validate_limits`).
fn multiples(block: u32, memory: u32) -> Alignment {
    let memory = memory.max(block.min(USUAL_ALIGNMENT));
    Alignment { bytes: block as usize, memory: memory as usize, atomic: None }
}

/// Returns the limits of atomic writes: none before Linux 6.11, which leaves the fields 0.
fn atomic(facts: &Statx) -> Option<AtomicLimits> {
    let [min, max] = [facts.stx_atomic_write_unit_min, facts.stx_atomic_write_unit_max];
    AtomicLimits::of_statx(min, max, facts.stx_atomic_write_segments_max)
}
