//! Copies from one file to another (`copy_file_range`). io_uring has no opcode for it, so workers make the calls.
//!
//! Each call copies at most [`STEP`] bytes, so that a cancelled copy ends soon. Holes of the source become holes. Where the
//! kernel cannot copy between two files, this reads and writes.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;

use rustix::fs::{FallocateFlags, FileType, OFlags, SeekFrom, Stat};
use rustix::io::{Errno, retry_on_intr};

use super::progress::MOST_DONE;
use super::request::Request;
use crate::descriptor;
use crate::driver::target::Target;
use crate::memory::{Destination, IoMemory, page_size};

/// A call copies at most this much: 4 to 20 ms on a drive that reads and writes 1 to 4 GB/s.
const STEP: usize = 16 << 20;
/// A copy ends here, as if its source did. A hole may be longer than any data.
pub(crate) const MOST: usize = MOST_DONE - MOST_DONE % STEP;
/// The memory through which this copies where the kernel does not.
const PIECE: usize = 256 << 10;

/// Makes one call for the copy from byte `began` on. Returns the number of bytes copied; 0 at the end of the source.
pub(super) fn call(
    source: &Target,
    request: &Request,
    memory: &mut IoMemory,
    began: usize,
) -> Result<usize, i32> {
    let IoMemory::Destination(to) = memory else { return Err(libc::EFAULT) };
    let copied = copy(source, request, to, began);
    copied.map_err(Errno::raw_os_error)
}

fn copy(file: &Target, request: &Request, to: &mut Destination, began: usize) -> Result<usize, Errno> {
    let source = file.as_fd();
    let (offset, at) = (request.offset + began as u64, to.offset + began as u64);
    let (status, into) = (descriptor::status(source)?, descriptor::status(to.file())?);
    if began == 0 {
        check_access(source, to.file())?;
    }
    if are_same(&status, &into) {
        // The kernel would find that out only of each call, not where this makes holes, and not of a block device.
        if offset.abs_diff(at) < request.want as u64 {
            return Err(Errno::INVAL);
        }
        if began == 0 && FileType::from_raw_mode(status.st_mode) == FileType::RegularFile {
            to.end = status.st_size.cast_unsigned();
        }
    }
    let left = to.end.saturating_sub(offset).min((request.want.min(MOST) - began) as u64);
    let copied = copy_step(file, &status, offset, to, &into, at, left as usize)?;
    if copied == 0 && began > 0 {
        // The source ends earlier than it did, perhaps right behind a hole that was not made.
        make_end(to.file(), &into, at)?;
    }
    Ok(copied)
}

fn copy_step(
    file: &Target,
    status: &Stat,
    offset: u64,
    to: &Destination,
    into: &Stat,
    at: u64,
    rest: usize,
) -> Result<usize, Errno> {
    let (source, mut left) = (file.as_fd(), rest.min(STEP));
    if let Some(found) = hole_at(file, status, offset, rest) {
        match found {
            (0, data) => left = left.min(data),
            (hole, data) if make_hole(to.file(), into, at, hole, data == 0)? => return Ok(hole),
            // The destination cannot have holes: zeros are copied.
            (hole, _) => left = left.min(hole),
        }
    }
    let (mut from, mut behind) = (offset, at);
    match retry_on_intr(|| {
        rustix::fs::copy_file_range(source, Some(&mut from), to.file(), Some(&mut behind), left)
    }) {
        Ok(moved) if moved > 0 => Ok(moved),
        // For files of /proc and the like the kernel reports the end at once.
        Ok(_) => by_hand(source, offset, to.file(), at, left),
        // A file that refuses the copy refuses the write too.
        Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::INVAL) => {
            by_hand(source, offset, to.file(), at, left)
        }
        Err(errno) => Err(errno),
    }
}

/// Returns the length of the hole at `offset`, and of the data behind it, within `most` bytes. `None` if the file has
/// no holes, or its file system does not report them, or it cannot be opened again: then zeros are copied.
fn hole_at(file: &Target, status: &Stat, offset: u64, most: usize) -> Option<(usize, usize)> {
    let size = u64::try_from(status.st_size).ok()?;
    let is_sparse = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile
        && (status.st_blocks.cast_unsigned()).saturating_mul(512) < size;
    if !is_sparse || offset >= size {
        return None;
    }
    // Several copies may seek in it at once: each takes the answer of its own call, not the position.
    let source = file.for_seeking()?;
    let end = size.min(offset.saturating_add(most as u64));
    let data = match rustix::fs::seek(source, SeekFrom::Data(offset)) {
        Ok(data) => Some(data.clamp(offset, end)),
        // No data follows.
        Err(Errno::NXIO) => Some(end),
        Err(_) => None,
    };
    data.map(|data| {
        let hole = rustix::fs::seek(source, SeekFrom::Hole(data)).map_or(end, |hole| hole.clamp(data, end));
        ((data - offset) as usize, (hole - data) as usize)
    })
}

/// Makes a range of the destination read as zeros, without blocks. Beyond its end nothing needs to be done, unless no data
/// follows (`last`). Returns false if it can have no holes.
fn make_hole(to: BorrowedFd<'_>, status: &Stat, at: u64, len: usize, last: bool) -> Result<bool, Errno> {
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Ok(false);
    }
    let (end, size) = (at + len as u64, status.st_size.cast_unsigned());
    if at < size {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| rustix::fs::fallocate(to, mode, at, end.min(size) - at)) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => return Ok(false),
            Err(errno) => return Err(errno),
        }
    }
    if last { make_end(to, status, end) } else { Ok(true) }
}

/// Makes the destination reach to `end`, if it does not. Returns false if that cannot be done without writing all that is
/// missing.
fn make_end(to: BorrowedFd<'_>, status: &Stat, end: u64) -> Result<bool, Errno> {
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile
        || end <= status.st_size.cast_unsigned()
    {
        return Ok(true);
    }
    // Setting the size would cut off what another writer has appended meanwhile.
    match retry_on_intr(|| rustix::fs::fallocate(to, FallocateFlags::empty(), end - 1, 1)) {
        Ok(()) => return Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    match retry_on_intr(|| rustix::io::pwrite(to, &[0], end - 1)) {
        Ok(written) => Ok(written == 1),
        // Direct I/O.
        Err(Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Refuses files that the kernel would refuse, since this makes holes, and may read and write itself: with `O_APPEND`,
/// a write goes to the end.
fn check_access(source: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    let (from, into) = (rustix::fs::fcntl_getfl(source)?, rustix::fs::fcntl_getfl(to)?);
    let is_refused = from & OFlags::RWMODE == OFlags::WRONLY
        || into & OFlags::RWMODE == OFlags::RDONLY
        || into.contains(OFlags::APPEND);
    if is_refused { Err(Errno::BADF) } else { Ok(()) }
}

/// Returns whether both are the same file, or the same device.
fn are_same(source: &Stat, into: &Stat) -> bool {
    let is_block = |status: &Stat| FileType::from_raw_mode(status.st_mode) == FileType::BlockDevice;
    (source.st_dev, source.st_ino) == (into.st_dev, into.st_ino)
        || is_block(source) && is_block(into) && source.st_rdev == into.st_rdev
}

thread_local! {
    static MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads a piece and writes it. Memory and length fit direct I/O where the offsets do.
fn by_hand(
    source: BorrowedFd<'_>,
    offset: u64,
    to: BorrowedFd<'_>,
    at: u64,
    left: usize,
) -> Result<usize, Errno> {
    let copy = |memory: &mut Vec<u8>| {
        let page = page_size();
        memory.resize(PIECE + page, 0);
        let start = memory.as_ptr().addr().wrapping_neg() % page;
        let piece = &mut memory[start..start + left.min(PIECE)];
        let read = retry_on_intr(|| rustix::io::pread(source, &mut *piece, offset))?;
        let mut written = 0;
        while written < read {
            match retry_on_intr(|| rustix::io::pwrite(to, &piece[written..read], at + written as u64)) {
                Ok(more) if more > 0 => written += more,
                Err(errno) if written == 0 => return Err(errno),
                _ => break,
            }
        }
        Ok(written)
    };
    // A thread that is ending has no reusable memory.
    let kept = MEMORY.try_with(|memory| copy(&mut memory.borrow_mut()));
    kept.unwrap_or_else(|_| copy(&mut Vec::new()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use super::super::request::Kind;
    use super::*;

    #[test]
    fn a_source_that_is_cut_behind_a_hole_leaves_the_hole() {
        const HOLE: usize = 1 << 20;
        let (source, to) = (tempfile::tempfile().unwrap(), Arc::new(tempfile::tempfile().unwrap()));
        source.write_all_at(&[1; 4096], HOLE as u64).unwrap();
        let mut destination = Destination::new(Arc::clone(&to) as _, 0);
        let request = Request { want: 2 * HOLE, ..Request::of(Kind::Copy) };
        let file = crate::File::from(source.try_clone().unwrap());
        let mut copy = |began| copy(file.target(), &request, &mut destination, began);
        let first = copy(0).unwrap();
        assert!(first <= HOLE);
        source.set_len(first as u64).unwrap();
        assert_eq!(copy(first), Ok(0));
        assert_eq!(to.metadata().unwrap().len(), first as u64);
    }
}
