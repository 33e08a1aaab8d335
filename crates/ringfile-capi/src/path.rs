//! Operations on paths, and their additional results: an open file, metadata.
//!
//! Invariant: an additional result is written where the header says when the operation's result is delivered, and never
//! otherwise: to memory that the caller may have released, nothing is written.

use std::ffi::c_char;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ringfile::fs::{self, Metadata};
use ringfile::{Completion, File, Op};

use crate::error::{Fault, Result, number_or_errno};
use crate::file::{self, ringfile_file, ringfile_open_options};
use crate::memory;
use crate::raw::{self, Growing};

/// Metadata of a file. Filled by RINGFILE_OP_STATX. Times are nanoseconds since 1970, INT64_MIN if the file system
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

/// Where the additional result of an operation must be written.
pub(crate) enum Room {
    File(*mut *mut ringfile_file),
    Metadata(*mut ringfile_metadata),
}

// SAFETY: it is an address; the caller of `fill` promises that it may be written to.
unsafe impl Send for Room {}

impl Room {
    /// Writes the additional result of an operation, if it has one.
    ///
    /// # Safety
    /// The memory that the operation's caller named may be written to.
    #[cold]
    pub(crate) unsafe fn fill(self, done: &mut Completion) -> Result<()> {
        let taken = std::mem::take(done);
        (done.token, done.user_data) = (taken.token, taken.user_data);
        match self {
            Self::File(to) => match taken.take() {
                Ok(opened) => {
                    let handle = file::add(opened)?;
                    // SAFETY: by this function's contract.
                    unsafe { raw::put(to, handle, "the pointer to the file's handle")? };
                }
                Err(failed) => *done = failed,
            },
            Self::Metadata(to) => match taken.take() {
                // SAFETY: by this function's contract.
                Ok(metadata) => unsafe { raw::give(to, &record(&metadata), "ringfile_metadata")? },
                Err(failed) => *done = failed,
            },
        }
        Ok(())
    }
}

/// Writes an operation's additional result to the memory that its caller named for one; returns the number of the result,
/// or the negative errno.
///
/// # Safety
/// As [`Room::fill`].
#[inline]
pub(crate) unsafe fn deliver(room: Option<Room>, done: &mut Completion) -> i64 {
    // SAFETY: by this function's contract.
    if let Some(Err(fault)) = room.map(|room| unsafe { room.fill(done) }) {
        return fault.note();
    }
    memory::keep_list(done);
    number_or_errno(&done.result)
}

/// An operation on paths that was not started.
pub(crate) enum OnPath {
    Open(Op<'static, File>, Room),
    Change(Op<'static, ()>),
    Stat(Op<'static, Metadata>, Room),
}

/// # Safety
/// As [`raw::path`] and [`raw::options`].
pub(crate) unsafe fn open(
    path: *const c_char,
    options: *const ringfile_open_options,
    opened: *mut *mut ringfile_file,
) -> Result<OnPath> {
    // SAFETY: by this function's contract.
    let (path, given) = unsafe { (raw::path(path)?, raw::options(options, "ringfile_open_options")?) };
    if opened.is_null() {
        return Err(Fault::null("the pointer to the file's handle"));
    }
    Ok(OnPath::Open(file::open_options(&given)?.open(path), Room::File(opened)))
}

/// Makes a change that names two paths.
///
/// # Safety
/// As [`raw::path`], for both.
pub(crate) unsafe fn two<'a>(
    path: *const c_char,
    to: *const c_char,
    change: impl FnOnce(&'a Path, &'a Path) -> Op<'static, ()>,
) -> Result<OnPath> {
    // SAFETY: by this function's contract.
    let (path, to) = unsafe { (raw::path(path)?, raw::path(to)?) };
    Ok(OnPath::Change(change(path, to)))
}

pub(crate) fn permissions(flags: u32) -> Result<Permissions> {
    if flags > 0o7777 {
        return Err(Fault::invalid(format!("flags is {flags:#o}: use permission bits, at most 07777")));
    }
    Ok(Permissions::from_mode(flags))
}

/// # Safety
/// As [`raw::path`].
pub(crate) unsafe fn change<'a>(
    path: *const c_char,
    change: impl FnOnce(&'a Path) -> Op<'static, ()>,
) -> Result<OnPath> {
    // SAFETY: by this function's contract.
    Ok(OnPath::Change(change(unsafe { raw::path(path) }?)))
}

/// # Safety
/// As [`raw::path`] and [`raw::room`].
pub(crate) unsafe fn metadata(path: *const c_char, to: *mut ringfile_metadata) -> Result<OnPath> {
    // SAFETY: by this function's contract.
    let path = unsafe {
        raw::room(to, "ringfile_metadata")?;
        raw::path(path)?
    };
    Ok(OnPath::Stat(fs::metadata(path), Room::Metadata(to)))
}

/// # Safety
/// As [`raw::room`].
pub(crate) unsafe fn metadata_of(file: &File, to: *mut ringfile_metadata) -> Result<OnPath> {
    // SAFETY: by this function's contract.
    unsafe { raw::room(to, "ringfile_metadata") }?;
    Ok(OnPath::Stat(fs::metadata_of(file), Room::Metadata(to)))
}
