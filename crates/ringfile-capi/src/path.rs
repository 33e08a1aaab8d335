//! Operations on paths, in queues: opening, renaming, removing, creating directories, reading metadata.
//!
//! Invariant: an operation's additional result is written when its result is taken, and a queue that is freed writes
//! nothing. So memory that the caller may have released is never written to.

use std::ffi::{c_char, c_int};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ringfile::fs::Metadata;
use ringfile::{Done, Queue, Token};

use crate::error::{Fault, Result, done};
use crate::file::{self, ringfile_file, ringfile_open_options};
use crate::io::number_or_errno;
use crate::local::{self, Own, Room};
use crate::queue::ringfile_queue;
use crate::raw::{self, Growing};

/// Metadata of a file. Filled by ringfile_queue_statx. Times are nanoseconds since 1970, INT64_MIN if the file system
/// does not record it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_metadata {
    /// sizeof(ringfile_metadata), set by the caller.
    pub size: usize,
    /// The size of the file in bytes.
    pub length: u64,
    /// Allocated storage in bytes.
    pub allocated: u64,
    /// The inode number, unique within the file system.
    pub inode: u64,
    /// The file system, as st_dev.
    pub device: u64,
    /// The kind of file and its permissions, as st_mode.
    pub mode: u32,
    /// Number of hard links.
    pub links: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Time of the last access.
    pub accessed: i64,
    /// Time of the last change of the content.
    pub modified: i64,
    /// Time of the last change of content or metadata.
    pub changed: i64,
    /// Time of creation.
    pub created: i64,
    /// Offsets and lengths of direct I/O must be multiples of this; 0 if the kernel or the file system does not report
    /// it, or the file does not support direct I/O.
    pub direct_bytes: u32,
    /// Addresses of direct I/O must be multiples of this; 0 as above.
    pub direct_memory: u32,
}

// SAFETY: it consists of integers only, with the size first.
unsafe impl Growing for ringfile_metadata {}

/// Converts a time to nanoseconds since 1970. Times more than 292 years away become the nearest value that fits.
fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(-i64::MAX, |before| -before),
    }
}

fn record(metadata: &Metadata) -> ringfile_metadata {
    let (bytes, memory) =
        metadata.direct.map_or((0, 0), |direct| (direct.bytes as u32, direct.memory as u32));
    ringfile_metadata {
        size: 0,
        length: metadata.size,
        allocated: metadata.allocated,
        inode: metadata.inode,
        device: metadata.device,
        mode: metadata.mode,
        links: metadata.links,
        uid: metadata.uid,
        gid: metadata.gid,
        accessed: nanoseconds(metadata.accessed),
        modified: nanoseconds(metadata.modified),
        changed: nanoseconds(metadata.changed),
        created: metadata.created.map_or(i64::MIN, nanoseconds),
        direct_bytes: bytes,
        direct_memory: memory,
    }
}

/// Takes the result of the operation that ended first: its `user_data`, and what [`deliver`] returns.
///
/// # Safety
/// As [`deliver`], for each operation of the queue.
#[inline]
pub(crate) unsafe fn take(own: &mut Own) -> Option<(u64, i64)> {
    if own.rooms.is_empty() {
        // Not moved out: a copy would be made in other pieces than the value was stored in.
        let taken = own.queue.take();
        return taken.as_ref().map(|(user_data, done)| (*user_data, number_or_errno(&done.result)));
    }
    let (token, user_data, done) = own.queue.take_with_token()?;
    // SAFETY: by this function's contract.
    Some((user_data, unsafe { deliver(own, token, done) }))
}

/// Writes an operation's additional result to the memory that its caller named; returns the number of the result, or
/// the negative errno.
///
/// # Safety
/// The memory that was named for the operation's result may be written to.
#[inline]
pub(crate) unsafe fn deliver(own: &mut Own, token: Token, done: Done) -> i64 {
    if own.rooms.is_empty() {
        return number_or_errno(&done.result);
    }
    // SAFETY: by this function's contract.
    unsafe { deliver_to_room(own.rooms.remove(&token.to_u64()), done) }
}

/// As [`deliver`].
///
/// # Safety
/// As [`deliver`].
#[cold]
unsafe fn deliver_to_room(room: Option<Room>, mut done: Done) -> i64 {
    let written = match (room, done.take_file(), done.take_metadata()) {
        (Some(Room::File(to)), Some(opened), _) => file::add(opened).and_then(|handle| {
            // SAFETY: by this function's contract.
            unsafe { raw::put(to, handle, "the pointer to the file's handle") }
        }),
        (Some(Room::Metadata(to)), _, Some(metadata)) => {
            // SAFETY: by this function's contract.
            unsafe { raw::give(to, &record(&metadata), "ringfile_metadata") }
        }
        (Some(_) | None, _, _) => Ok(()),
    };
    match written {
        Ok(()) => number_or_errno(&done.result),
        Err(fault) => fault.note(),
    }
}

/// Adds an operation on a path, and writes its token to `token` if that is not null.
///
/// # Safety
/// `path` is null or a NUL-terminated string; `token` is null, or may be written to.
unsafe fn add(
    queue: *mut ringfile_queue,
    path: *const c_char,
    token: *mut u64,
    room: Option<Room>,
    add: impl FnOnce(&mut Queue, &Path) -> Result<Token>,
) -> c_int {
    done(|| {
        // SAFETY: by this function's contract.
        let path = unsafe { raw::path(path) }?;
        let added = local::with_rooms(queue, |own| {
            let added = add(&mut own.queue, path)?.to_u64();
            if let Some(room) = room {
                own.rooms.insert(added, room);
            }
            Ok(added)
        })?;
        if !token.is_null() {
            // SAFETY: it may be written to, by this function's contract.
            unsafe { token.write(added) };
        }
        Ok(())
    })
}

/// Adds the opening of a file, as ringfile_open, without blocking this thread: the kernel or a worker looks the path
/// up, and cuts the file for RINGFILE_TRUNCATE. If the result is 0, `*file` gets the handle when the result is taken.
/// It is not touched before, nor when the queue is freed, which closes the file.
///
/// `user_data` and `token` as ringfile_queue_read. A relative path starts at the process's working directory when the
/// operation is carried out. The path and the options are copied, and may be freed when this returns. Allocates a few
/// hundred bytes. The queue's own thread; does not block. Errors of open(2) are the operation's result.
///
/// Pointers: `path` is a NUL-terminated string; `options` points to a struct whose `size` is set; `file` points to
/// memory for the handle, which stays valid until the result was taken; `token` is NULL or points to memory for the
/// token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_open_file(
    queue: *mut ringfile_queue,
    path: *const c_char,
    options: *const ringfile_open_options,
    file: *mut *mut ringfile_file,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    let open = |queue: &mut Queue, path: &Path| {
        if file.is_null() {
            return Err(Fault::null("the pointer to the file's handle"));
        }
        // SAFETY: by the contract in the header.
        let given = unsafe { raw::options(options, "ringfile_open_options") }?;
        Ok(queue.add(ringfile::fs::open(path, &file::open_options(&given)?), user_data))
    };
    // SAFETY: by the contract in the header.
    unsafe { add(queue, path, token, Some(Room::File(file)), open) }
}

/// Adds the renaming of a file or a directory (rename(2)), which replaces an existing file. Otherwise as
/// ringfile_queue_unlink.
///
/// Pointers: `from` and `to` are NUL-terminated strings; `token` as ringfile_queue_unlink.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_rename(
    queue: *mut ringfile_queue,
    from: *const c_char,
    to: *const c_char,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    let rename = |queue: &mut Queue, from: &Path| {
        // SAFETY: by the contract in the header.
        let to = unsafe { raw::path(to) }?;
        Ok(queue.add(ringfile::fs::rename(from, to), user_data))
    };
    // SAFETY: by the contract in the header.
    unsafe { add(queue, from, token, None, rename) }
}

/// Adds the removal of a file (unlink(2)). The result is 0, or a negative errno. Another thread carries it out, so that
/// freeing the blocks of a large file does not block this one. The blocks of a file that is still open are freed by the
/// thread that closes it last.
///
/// `user_data` and `token` as ringfile_queue_read. A relative path starts at the process's working directory when the
/// operation is carried out. The path is copied, and may be freed when this returns. Allocates a few hundred bytes. The
/// queue's own thread; does not block.
///
/// Pointers: `path` is a NUL-terminated string; `token` is NULL or points to memory for the token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_unlink(
    queue: *mut ringfile_queue,
    path: *const c_char,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    // SAFETY: by the contract in the header.
    unsafe {
        add(queue, path, token, None, |queue, path| Ok(queue.add(ringfile::fs::remove_file(path), user_data)))
    }
}

/// Adds the removal of an empty directory (rmdir(2)); otherwise as ringfile_queue_unlink.
///
/// Pointers: as ringfile_queue_unlink.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_rmdir(
    queue: *mut ringfile_queue,
    path: *const c_char,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    // SAFETY: by the contract in the header.
    unsafe {
        add(queue, path, token, None, |queue, path| Ok(queue.add(ringfile::fs::remove_dir(path), user_data)))
    }
}

/// Adds the creation of a directory (mkdir(2), with mode 0777 less the umask); otherwise as ringfile_queue_unlink.
///
/// Pointers: as ringfile_queue_unlink.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_mkdir(
    queue: *mut ringfile_queue,
    path: *const c_char,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    // SAFETY: by the contract in the header.
    unsafe {
        add(queue, path, token, None, |queue, path| Ok(queue.add(ringfile::fs::create_dir(path), user_data)))
    }
}

/// Adds the reading of a path's metadata (statx(2)), following symbolic links. If the result is 0, `*metadata` is
/// filled when the result is taken. It is not touched before, nor when the queue is freed. Otherwise as
/// ringfile_queue_unlink.
///
/// Pointers: `metadata` points to a struct whose `size` is set, and stays valid until the result was taken; all else as
/// ringfile_queue_unlink.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_statx(
    queue: *mut ringfile_queue,
    path: *const c_char,
    metadata: *mut ringfile_metadata,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    let stat = |queue: &mut Queue, path: &Path| {
        // SAFETY: by the contract in the header.
        unsafe { raw::room(metadata, "ringfile_metadata") }?;
        Ok(queue.add(ringfile::fs::metadata(path), user_data))
    };
    // SAFETY: by the contract in the header.
    unsafe { add(queue, path, token, Some(Room::Metadata(metadata)), stat) }
}
