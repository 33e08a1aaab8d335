//! Appenders: records of any length at the end of a file, from any number of threads.
//!
//! Invariant: a call keeps the appender while it waits, so any thread may close the handle meanwhile.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use ringfile::log::OpenAppender;
use ringfile::{Appender, File, Pool};

use crate::error::{Fault, Result, call, done};
use crate::file::{self, ringfile_file};
use crate::fork::Lock;
use crate::local::{self, block_on};
use crate::pool::{self, ringfile_pool};
use crate::raw::{self, Growing};
use crate::table::Table;

/// Appends records to a file.
pub struct ringfile_appender {
    _opaque: [u8; 0],
}

static APPENDERS: Table<Appender> = Table::new("ringfile_appender", 9, Lock::Appenders, || APPENDERS.hold());

/// ringfile_appender_options.flags: keep the file's content behind the valid length, and overwrite it; the file is
/// not cut. For a log in a file that was used before, or written with zeros, whose syncs then need not wait for the file
/// system's journal. No record may consist of zeros, and those of an earlier use of the file must differ.
pub const RINGFILE_APPENDER_RECYCLE: u32 = 1;
/// Write no zeros ahead. Otherwise, with direct I/O on ext4 and XFS, a thread of the library may write up to 4 MiB of
/// zeros behind the log and the file's end, so that small syncs need not wait for the file system's journal;
/// ringfile_appender_close cuts what is left of them, unless the file is recycled.
pub const RINGFILE_APPENDER_NO_ZEROS: u32 = 2;

/// ringfile_appender_append: wait until the record, and all before it, are in the file, where others can read them.
pub const RINGFILE_APPEND_FLUSH: u32 = 1;
/// Wait until the record, and all before it, are durable. Threads that wait at the same time share one sync.
pub const RINGFILE_APPEND_SYNC: u32 = 2;

/// Options of an appender. A field that is 0 selects the default; only `size` must be set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_appender_options {
    /// sizeof(ringfile_appender_options).
    pub size: usize,
    /// The pool for records that are not written yet, with room for two blocks of each appender that shares it; may be
    /// closed before the appender. NULL: a pool of the appender's own.
    pub pool: *const ringfile_pool,
    /// The largest write in bytes, at most 1 GiB; 0 for 256 KiB.
    pub block: usize,
    /// How many bytes may be appended and not yet written, before an append waits: at least `depth` + 1 blocks, the
    /// default.
    pub write_behind: u64,
    /// The least time from the start of one sync to the start of the next, in nanoseconds, at most one hour; 0 for
    /// none. All that wait meanwhile share the next one.
    pub sync_interval: u64,
    /// The most operations in flight, at most 1024; 0 for 4.
    pub depth: u32,
    /// RINGFILE_APPENDER_..., joined by |.
    pub flags: u32,
}

// SAFETY: it consists of integers and a raw pointer, for which all zeros is a value, with the size first.
unsafe impl Growing for ringfile_appender_options {}

/// The capacity of an appender's own pool, unless its options need more.
const OWN_POOL: usize = 16 << 20;
/// The library's own defaults.
const BLOCK: usize = 256 << 10;
const DEPTH: u32 = 4;

fn options(file: &File, valid: u64, from: &ringfile_appender_options) -> Result<OpenAppender> {
    const ALL: u32 = RINGFILE_APPENDER_RECYCLE | RINGFILE_APPENDER_NO_ZEROS;
    if from.flags & !ALL != 0 {
        let unknown = from.flags & !ALL;
        return Err(Fault::invalid(format!("unknown flags {unknown:#x}: use RINGFILE_APPENDER_...")));
    }
    let block = if from.block == 0 { BLOCK } else { from.block };
    let depth = if from.depth == 0 { DEPTH } else { from.depth } as usize;
    let pool = if from.pool.is_null() {
        let behind = usize::try_from(from.write_behind).unwrap_or(usize::MAX);
        let most = behind.max(block.saturating_mul(depth + 1));
        // A pool hands out memory in classes of sizes, each at most twice as large as the one before.
        Pool::builder().capacity(most.saturating_mul(2).max(OWN_POOL)).build()?
    } else {
        pool::get(from.pool)?
    };
    let options = Appender::open(file, &pool, valid)
        .block(block)
        .depth(depth)
        .recycle(from.flags & RINGFILE_APPENDER_RECYCLE != 0)
        .sync_interval(Duration::from_nanos(from.sync_interval))
        .write_behind(from.write_behind);
    Ok(if from.flags & RINGFILE_APPENDER_NO_ZEROS != 0 { options.fill_ahead(0) } else { options })
}

/// Opens an appender that continues at `valid`, the length in bytes that the program knows to be valid: 0 for a new
/// file. `*appender` gets the handle, to be closed with ringfile_appender_close.
///
/// The file is cut there and synced, so that all before `valid` is durable. After a crash the file holds at least what
/// was reported durable, and behind that there may be parts of later records, and zeros: the program finds the valid
/// length by lengths and checksums in its records. A file that was opened with RINGFILE_DIRECT needs RINGFILE_READ too
/// if `valid` is inside a block. ringfile_sync_directory makes the entry of a new file durable.
///
/// Nothing else may write to the file at or behind `valid` while the appender is open. `file` may be closed before the
/// appender.
///
/// Any thread. Blocks, also while direct writes of an earlier process are in flight. -EINVAL: not a regular file,
/// opened with O_APPEND, or shorter than `valid`; others are those of read(2), ftruncate(2), fallocate(2) and fsync(2).
///
/// Pointers: `options` is NULL or points to a struct whose `size` is set; `appender` points to memory for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_appender_open(
    file: *const ringfile_file,
    valid: u64,
    options: *const ringfile_appender_options,
    appender: *mut *mut ringfile_appender,
) -> c_int {
    done(|| {
        // SAFETY: by the contract in the header.
        let given = unsafe { raw::options(options, "ringfile_appender_options") }?;
        if appender.is_null() {
            return Err(Fault::null("the pointer to the appender's handle"));
        }
        let opening = self::options(&file::get(file)?, valid, &given)?;
        let handle = APPENDERS.add(block_on(opening.into_future())??)?;
        // SAFETY: by the contract in the header.
        unsafe { raw::put(appender, handle, "the pointer to the appender's handle") }
    })
}

/// Appends a record, and returns its offset in the file. Its bytes are contiguous, and copied: the memory is the
/// caller's again.
///
/// `flags` 0: the bytes may be in the library's memory only, and are lost if the process ends before a call with a
/// flag, or ringfile_appender_close, has returned. RINGFILE_APPEND_FLUSH and RINGFILE_APPEND_SYNC wait for the file,
/// and for the disk.
///
/// `length` 0: appends nothing, and returns the offset at which the next record will begin. With a flag, all that any
/// thread has appended before is then in the file, or durable: see ringfile_appender_flush, _sync and _end in
/// ringfile_ops.h.
///
/// Any thread, several at once. Without a flag it blocks only while too much is appended and not yet written, or the
/// pool is full; records are then appended in order of arrival. Some calls start a write. -EINVAL: unknown flags, or
/// the appender is being closed. Other errors are those of write(2) and fdatasync(2). A failed write or sync is final:
/// that call and each later one fail with the same errno, since data may be lost although a later sync would succeed.
/// Close the appender and the file, open both again, and check what the file has. A forked child cannot use an appender
/// of its parent (-EOPNOTSUPP).
///
/// Pointers: `length` bytes at `data`, which do not change until this returns; `data` may be NULL if `length` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_appender_append(
    appender: *const ringfile_appender,
    data: *const c_void,
    length: usize,
    flags: u32,
) -> i64 {
    call(|| {
        const ALL: u32 = RINGFILE_APPEND_FLUSH | RINGFILE_APPEND_SYNC;
        if flags & !ALL != 0 {
            let unknown = flags & !ALL;
            return Err(Fault::invalid(format!("unknown flags {unknown:#x}: use 0 or RINGFILE_APPEND_...")));
        }
        // SAFETY: by the contract in the header.
        let record = unsafe { raw::array(data.cast::<u8>(), length, "the record") }?;
        let appender = APPENDERS.get(appender)?;
        let offset = if record.is_empty() {
            appender.len()
        } else {
            local::may_wait()?;
            // A loop waits at its end for the writes that it has started, so it is entered only to wait.
            match appender.try_append(record) {
                Some(appended) => appended?,
                None => block_on(appender.append(record))??,
            }
        };
        if flags & RINGFILE_APPEND_SYNC != 0 {
            block_on(appender.sync())??;
        } else if flags & RINGFILE_APPEND_FLUSH != 0 {
            block_on(appender.flush())??;
        }
        Ok(i64::try_from(offset).unwrap_or(i64::MAX))
    })
}

/// Closes an appender: waits until all that was appended is durable and the file has its exact length. Other threads
/// may be inside a call; appends that wait then fail with -EINVAL.
///
/// Any thread. Blocks. After an error data may be lost; the handle is closed nevertheless, except with -EDEADLK. Errors
/// are those of ringfile_appender_append, and of ftruncate(2). In a forked child it closes the handle and returns
/// -EOPNOTSUPP; the parent goes on.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_appender_close(appender: *mut ringfile_appender) -> c_int {
    done(|| {
        local::may_wait()?;
        let appender = APPENDERS.remove(appender)?;
        Ok(block_on(appender.close())??)
    })
}
