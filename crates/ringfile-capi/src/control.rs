//! Operations that move no data: syncing, allocating, cutting, advising.

use std::ffi::{c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};

use ringfile::fs::{Advice, AllocateMode, RangeSync};

use crate::error::{Fault, Result, done};
use crate::file::{self, ringfile_file};
use crate::local::{self, block_on};
use crate::raw;

/// ringfile_allocate: allocates blocks for the range. The file grows to hold it.
pub const RINGFILE_ALLOCATE_EXTEND: u32 = 0;
/// Allocates blocks for the range. The file keeps its size.
pub const RINGFILE_ALLOCATE_KEEP_SIZE: u32 = 1;
/// Frees the range's blocks, so that it reads as zeros. The file keeps its size.
pub const RINGFILE_ALLOCATE_PUNCH_HOLE: u32 = 2;
/// Fills the range with zeros, and keeps its blocks. The file grows to hold it.
pub const RINGFILE_ALLOCATE_ZERO_RANGE: u32 = 3;
/// Discards the range's content, which may read as anything afterwards: an NVMe namespace deallocates it; elsewhere as
/// RINGFILE_ALLOCATE_PUNCH_HOLE.
pub const RINGFILE_ALLOCATE_DISCARD: u32 = 4;
/// Fills the range with zeros that are written, so that later writes change nothing but the data. The file grows to hold it.
pub const RINGFILE_ALLOCATE_WRITTEN: u32 = 5;

/// ringfile_advise: no advice.
pub const RINGFILE_ADVICE_NORMAL: u32 = 0;
/// The range will be read from front to back.
pub const RINGFILE_ADVICE_SEQUENTIAL: u32 = 1;
/// The range will be read at random.
pub const RINGFILE_ADVICE_RANDOM: u32 = 2;
/// The range will be read soon: start reading it in.
pub const RINGFILE_ADVICE_WILL_NEED: u32 = 3;
/// The range will not be read: drop its clean pages.
pub const RINGFILE_ADVICE_DONT_NEED: u32 = 4;

/// ringfile_sync_range: wait for the range's pages that are being written.
pub const RINGFILE_SYNC_RANGE_WAIT_BEFORE: u32 = 1;
/// Start writing the range's dirty pages.
pub const RINGFILE_SYNC_RANGE_WRITE: u32 = 2;
/// Wait for those.
pub const RINGFILE_SYNC_RANGE_WAIT_AFTER: u32 = 4;

fn sync(file: *const ringfile_file, all: bool) -> Result<()> {
    let file = file::get(file)?;
    local::blocking(|queue| {
        let token = if all { queue.add(file.sync_all(), 0) } else { queue.add(file.sync_data(), 0) };
        queue.submit();
        Ok(local::wait_for(queue, token)?.result.map(drop)?)
    })
}

/// Waits until all data of the file that were written, and what is needed to read them back, are on stable storage
/// (fdatasync).
///
/// Any thread. Blocks. Does not wait for writes in flight. Errors are those of fdatasync(2). A failure is remembered:
/// data that was not synced may be lost, although the kernel would let the next sync succeed. So each later sync and
/// ringfile_write_durable of this file, by any function and thread, fails with the same errno without being tried;
/// other reads and writes continue. To sync again, close the file and open it again, and check or rewrite what was
/// written since the last successful sync. A durable write that a full disk, a quota or RLIMIT_FSIZE refuses (-ENOSPC,
/// -EDQUOT, -EFBIG) is not remembered, unless it may have been its sync that had no room.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_sync_data(file: *const ringfile_file) -> c_int {
    done(|| sync(file, false))
}

/// Waits as ringfile_sync_data does, and for all metadata (fsync).
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_sync_all(file: *const ringfile_file) -> c_int {
    done(|| sync(file, true))
}

/// Starts writing a range's dirty pages to the disk, or waits for them, by `flags` (RINGFILE_SYNC_RANGE_...); `length`
/// 0 means to the end (sync_file_range). Makes nothing durable: neither metadata nor the disk's cache are written.
///
/// Any thread. Blocks as sync_file_range(2), whose errors it has; -EINVAL if the range ends beyond 2^63 - 1 bytes. A
/// failure is remembered, and one that was remembered is the answer: see ringfile_sync_data.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_sync_range(
    file: *const ringfile_file,
    offset: u64,
    length: u64,
    flags: u32,
) -> c_int {
    done(|| {
        local::may_wait()?;
        let file = file::get(file)?;
        if let Some(failed) = file.failed_sync() {
            return Err(failed.into());
        }
        let (Ok(from), Ok(len)) = (i64::try_from(offset), i64::try_from(length)) else {
            return Err(Fault::invalid("the range is beyond 2^63 bytes"));
        };
        // SAFETY: no memory is passed.
        if unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), from, len, flags) } == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        let path = file.path().map(|path| format!(" of {path:?}")).unwrap_or_default();
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        // The kernel reports a failed write only once, and would not report it to the next sync.
        file.poison_sync(errno);
        Err(Fault::new(errno, format!("syncing {length} bytes at offset {offset}{path}: {error}")))
    })
}

/// Returns the meaning of RINGFILE_SYNC_RANGE_... in an operation of a queue or a batch.
pub(crate) fn range_sync(flags: u32) -> Result<RangeSync> {
    const FINISH: u32 =
        RINGFILE_SYNC_RANGE_WAIT_BEFORE | RINGFILE_SYNC_RANGE_WRITE | RINGFILE_SYNC_RANGE_WAIT_AFTER;
    Ok(match flags {
        RINGFILE_SYNC_RANGE_WRITE => RangeSync::Start,
        FINISH => RangeSync::Finish,
        other => {
            let text = format!(
                "flags are {other}: use RINGFILE_SYNC_RANGE_WRITE alone, or all RINGFILE_SYNC_RANGE_... \
                    together"
            );
            return Err(Fault::invalid(text));
        }
    })
}

/// Returns the meaning of a RINGFILE_ALLOCATE_...
pub(crate) fn allocate_mode(mode: u32) -> Result<AllocateMode> {
    Ok(match mode {
        RINGFILE_ALLOCATE_EXTEND => AllocateMode::Extend,
        RINGFILE_ALLOCATE_KEEP_SIZE => AllocateMode::KeepSize,
        RINGFILE_ALLOCATE_PUNCH_HOLE => AllocateMode::PunchHole,
        RINGFILE_ALLOCATE_ZERO_RANGE => AllocateMode::ZeroRange,
        RINGFILE_ALLOCATE_DISCARD => AllocateMode::Discard,
        RINGFILE_ALLOCATE_WRITTEN => AllocateMode::Written,
        other => return Err(Fault::invalid(format!("mode is {other}: use one of RINGFILE_ALLOCATE_..."))),
    })
}

/// Returns the meaning of a RINGFILE_ADVICE_...
pub(crate) fn advice(advice: u32) -> Result<Advice> {
    Ok(match advice {
        RINGFILE_ADVICE_NORMAL => Advice::Normal,
        RINGFILE_ADVICE_SEQUENTIAL => Advice::Sequential,
        RINGFILE_ADVICE_RANDOM => Advice::Random,
        RINGFILE_ADVICE_WILL_NEED => Advice::WillNeed,
        RINGFILE_ADVICE_DONT_NEED => Advice::DontNeed,
        other => return Err(Fault::invalid(format!("advice is {other}: use one of RINGFILE_ADVICE_..."))),
    })
}

/// Allocates or frees the blocks of a range of bytes, by `mode` (RINGFILE_ALLOCATE_...).
///
/// Any thread. Blocks. Errors are those of fallocate(2): -ENOSPC, or -EOPNOTSUPP if the file system does not support
/// the mode.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_allocate(
    file: *const ringfile_file,
    mode: u32,
    offset: u64,
    length: u64,
) -> c_int {
    done(|| {
        let mode = allocate_mode(mode)?;
        Ok(block_on(file::get(file)?.allocate(mode, offset, length))??)
    })
}

/// Sets the file's size in bytes: cuts it, or extends it with zeros.
///
/// Any thread. Blocks. Errors are those of ftruncate(2).
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_truncate(file: *const ringfile_file, length: u64) -> c_int {
    done(|| Ok(block_on(file::get(file)?.set_len(length))??))
}

/// Tells the page cache what to expect of a range of bytes (RINGFILE_ADVICE_...); `length` 0 means to the end.
///
/// Any thread. Blocks as posix_fadvise(2), whose errors it has.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_advise(
    file: *const ringfile_file,
    offset: u64,
    length: u64,
    advice: u32,
) -> c_int {
    done(|| {
        let advice = self::advice(advice)?;
        Ok(block_on(file::get(file)?.advise(offset, length, advice))??)
    })
}

/// Syncs a directory, so that creating, renaming and removing files in it survives a crash.
///
/// Any thread. Blocks. Errors are those of open(2) and fsync(2).
///
/// Pointers: `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_sync_directory(path: *const c_char) -> c_int {
    done(|| {
        // SAFETY: by the contract in the header.
        let path = unsafe { raw::path(path) }?;
        Ok(block_on(ringfile::fs::sync_dir(path))??)
    })
}
