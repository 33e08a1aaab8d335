//! Opening, closing and querying files.

use std::ffi::{c_char, c_int};
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use ringfile::{Durability, File, OpenOptions, Route};

use crate::error::{Fault, Result, call, done};
use crate::fork::Lock;
use crate::raw::{self, Growing};
use crate::recent;
use crate::table::Table;

/// An open file.
pub struct ringfile_file {
    _opaque: [u8; 0],
}

static FILES: Table<File> = Table::new("ringfile_file", 7, Lock::Files, || FILES.hold());

/// Returns the file behind a handle.
#[inline]
pub(crate) fn get(file: *const ringfile_file) -> Result<File> {
    FILES.get(file)
}

/// Creates a handle for a file.
pub(crate) fn add(file: File) -> Result<*mut ringfile_file> {
    FILES.add(file)
}

/// Makes forks hold the lock of the files, as [`with`] requires.
pub(crate) fn heed() {
    FILES.heed();
}

/// Uses the file behind a handle, which cannot be closed meanwhile: only for what does not block, and after [`heed`].
#[inline]
pub(crate) fn with<R>(file: *const ringfile_file, act: impl FnOnce(&File) -> R) -> Result<R> {
    FILES.with_heeded(file, act)
}

/// ringfile_open_options.flags: open for reading.
pub const RINGFILE_READ: u32 = 1;
/// Open for writing.
pub const RINGFILE_WRITE: u32 = 2;
/// Create the file if it does not exist. Needs RINGFILE_WRITE.
pub const RINGFILE_CREATE: u32 = 4;
/// Create the file; -EEXIST if it exists. Needs RINGFILE_WRITE.
pub const RINGFILE_CREATE_NEW: u32 = 8;
/// Cut the file to length 0. Needs RINGFILE_WRITE.
pub const RINGFILE_TRUNCATE: u32 = 16;
/// Direct I/O (O_DIRECT), past the page cache. -EOPNOTSUPP if the file system does not support it.
pub const RINGFILE_DIRECT: u32 = 32;
/// With RINGFILE_DIRECT: use buffered I/O if direct I/O is not available.
pub const RINGFILE_BUFFERED_FALLBACK: u32 = 64;
/// Poll for completions (IOPOLL), on devices with poll queues. Needs RINGFILE_DIRECT.
pub const RINGFILE_IOPOLL: u32 = 128;
/// Buffered I/O that leaves nothing in the page cache (RWF_DONTCACHE), if the file system supports it.
pub const RINGFILE_DONT_CACHE: u32 = 256;
/// With RINGFILE_WRITE, on the character device of an NVMe namespace (/dev/ng0n1): writes go to the drive as its own
/// commands, past every file system. Its block device is claimed until the file is closed; -EBUSY if it is in use.
/// Reading needs no flag. -EOPNOTSUPP if commands cannot be sent, or the namespace's format is not supported.
pub const RINGFILE_ALLOW_RAW_NVME_WRITES: u32 = 512;
/// Read cached data from the page cache and the rest past it (O_DIRECT); data that is read again gets cached. Simply
/// buffered if that is not available. Not with RINGFILE_DIRECT or RINGFILE_DONT_CACHE.
pub const RINGFILE_ADAPTIVE: u32 = 1024;

/// The route of operations: that of ringfile_set_default_route, at first RINGFILE_ROUTE_AUTO.
pub const RINGFILE_ROUTE_DEFAULT: u32 = 0;
/// The cheapest way, learned from the file's first operations, separately for reads and writes.
pub const RINGFILE_ROUTE_AUTO: u32 = 1;
/// io_uring; an error without it.
pub const RINGFILE_ROUTE_RING: u32 = 2;
/// A plain call on the calling thread.
pub const RINGFILE_ROUTE_INLINE: u32 = 3;
/// A plain call on one of a small pool of worker threads.
pub const RINGFILE_ROUTE_WORKERS: u32 = 4;
/// Linux AIO, for files with RINGFILE_DIRECT: opening other files with this route fails with -EINVAL, and if it is the
/// default route, their operations fail. Writes that make the file longer, and syncs, use other ways. An error without
/// AIO. RINGFILE_ROUTE_AUTO uses it for direct I/O if there is no io_uring.
pub const RINGFILE_ROUTE_AIO: u32 = 5;

/// ringfile_open_options.durability, for durable writes of all kinds: the cheaper of the two, found by the first ones.
pub const RINGFILE_DURABILITY_AUTO: u32 = 0;
/// Each write is durable by itself (RWF_DSYNC).
pub const RINGFILE_DURABILITY_DSYNC: u32 = 1;
/// Each write is followed by an fdatasync.
pub const RINGFILE_DURABILITY_FSYNC: u32 = 2;

/// Options for opening a file. A field that is 0 selects the default; only `size` and `flags` must be set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_open_options {
    /// sizeof(ringfile_open_options).
    pub size: usize,
    /// RINGFILE_READ, RINGFILE_WRITE, ..., joined by |.
    pub flags: u32,
    /// The mode of a file that is created, before the umask; 0 for 0666.
    pub mode: u32,
    /// More flags of open(2), such as O_NOFOLLOW; for O_DIRECT see RINGFILE_DIRECT.
    pub custom_flags: i32,
    /// RINGFILE_ROUTE_...
    pub route: u32,
    /// RINGFILE_DURABILITY_...
    pub durability: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: it consists of integers only, with the size first.
unsafe impl Growing for ringfile_open_options {}

/// Returns the route that a number stands for; `None` for the default.
pub(crate) fn route(number: u32) -> Result<Option<Route>> {
    Ok(match number {
        RINGFILE_ROUTE_DEFAULT => None,
        RINGFILE_ROUTE_AUTO => Some(Route::Auto),
        RINGFILE_ROUTE_RING => Some(Route::Ring),
        RINGFILE_ROUTE_INLINE => Some(Route::Inline),
        RINGFILE_ROUTE_WORKERS => Some(Route::Workers),
        RINGFILE_ROUTE_AIO => Some(Route::Aio),
        other => return Err(Fault::invalid(format!("route is {other}: use one of RINGFILE_ROUTE_..."))),
    })
}

pub(crate) fn open_options(from: &ringfile_open_options) -> Result<OpenOptions> {
    const ALL: u32 = RINGFILE_ADAPTIVE * 2 - 1;
    if from.flags & !ALL != 0 {
        return Err(Fault::invalid(format!(
            "flags has unknown bits {:#x}: use RINGFILE_READ, RINGFILE_WRITE and the \
            others",
            from.flags & !ALL
        )));
    }
    if from.reserved != 0 {
        let text = "`reserved` is not 0: this version knows no option there, so use a newer library";
        return Err(Fault::new(libc::E2BIG, text));
    }
    let has = |flag| from.flags & flag != 0;
    let mut options = OpenOptions::new();
    options
        .read(has(RINGFILE_READ))
        .write(has(RINGFILE_WRITE))
        .create(has(RINGFILE_CREATE))
        .create_new(has(RINGFILE_CREATE_NEW))
        .truncate(has(RINGFILE_TRUNCATE))
        .direct(has(RINGFILE_DIRECT))
        .buffered_fallback(has(RINGFILE_BUFFERED_FALLBACK))
        .iopoll(has(RINGFILE_IOPOLL))
        .dont_cache(has(RINGFILE_DONT_CACHE))
        .allow_raw_nvme_writes(has(RINGFILE_ALLOW_RAW_NVME_WRITES))
        .adaptive(has(RINGFILE_ADAPTIVE))
        .dup(false)
        .custom_flags(from.custom_flags)
        .durability(match from.durability {
            RINGFILE_DURABILITY_AUTO => Durability::Auto,
            RINGFILE_DURABILITY_DSYNC => Durability::Dsync,
            RINGFILE_DURABILITY_FSYNC => Durability::Fsync,
            other => {
                return Err(Fault::invalid(format!(
                    "durability is {other}: use one of RINGFILE_DURABILITY_..."
                )));
            }
        });
    if from.mode != 0 {
        options.mode(from.mode);
    }
    if let Some(route) = route(from.route)? {
        options.route(route);
    }
    Ok(options)
}

/// Opens a file. `*file` gets the handle, to be closed with ringfile_close.
///
/// A process's record locks (fcntl(F_SETLK), not F_OFD_SETLK) on the file end with ringfile_close, see there.
///
/// Any thread. Blocks as open(2). Errors are those of open(2); -EOPNOTSUPP: direct I/O is not available, and nothing
/// was created or cut; -EINVAL: options that contradict each other.
///
/// Pointers: `path` is a NUL-terminated string; `options` points to a struct whose `size` is set, and `file` to memory
/// for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_open(
    path: *const c_char,
    options: *const ringfile_open_options,
    file: *mut *mut ringfile_file,
) -> c_int {
    done(|| {
        // SAFETY: by the contract in the header.
        let (path, given) = unsafe { (raw::path(path)?, raw::options(options, "ringfile_open_options")?) };
        if file.is_null() {
            return Err(Fault::null("the pointer to the file's handle"));
        }
        let handle = FILES.add(open_options(&given)?.open_blocking(path)?)?;
        // SAFETY: by the contract in the header.
        unsafe { raw::put(file, handle, "the pointer to the file's handle") }
    })
}

/// Makes a file of a descriptor, which still belongs to the caller: the library uses a duplicate, until ringfile_close.
/// The access mode is that of the descriptor. These options apply: RINGFILE_DIRECT (which switches direct I/O on for
/// the descriptor and all that share it; if it is on it stays on), RINGFILE_BUFFERED_FALLBACK, RINGFILE_IOPOLL,
/// RINGFILE_DONT_CACHE, RINGFILE_ALLOW_RAW_NVME_WRITES, RINGFILE_ADAPTIVE, route and durability. `options` may be NULL.
///
/// Record locks that the process has on the file (fcntl(F_SETLK), not F_OFD_SETLK), by the caller's descriptor too, end with
/// ringfile_close, which closes the duplicate, or when this call fails.
///
/// Any thread. Does not block, except for what it finds out about the file (fstat(2); with RINGFILE_ADAPTIVE also open(2); a
/// few commands to an NVMe namespace). -EBADF: `fd` is not a descriptor; -EMFILE: no room for the duplicate; others as
/// ringfile_open.
///
/// Pointers: `options` is NULL or points to a struct whose `size` is set; `file` points to memory for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_open_fd(
    fd: c_int,
    options: *const ringfile_open_options,
    file: *mut *mut ringfile_file,
) -> c_int {
    done(|| {
        // SAFETY: by the contract in the header.
        let given = unsafe { raw::options(options, "ringfile_open_options") }?;
        if file.is_null() {
            return Err(Fault::null("the pointer to the file's handle"));
        }
        if fd < 0 {
            return Err(Fault::new(libc::EBADF, format!("{fd} is not a file descriptor")));
        }
        // SAFETY: borrowed for one call, which fails if the descriptor is not open.
        let own = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EBADF);
            Fault::new(errno, format!("duplicating descriptor {fd}: {error}"))
        })?;
        let handle = FILES.add(open_options(&given)?.from_std(own.into())?)?;
        // SAFETY: by the contract in the header.
        unsafe { raw::put(file, handle, "the pointer to the file's handle") }
    })
}

/// Closes a file, and returns what close(2) says, such as -EIO, -ENOSPC or -EDQUOT of NFS; the handle is closed even so. If
/// operations on the file are in flight, or their results were not taken, returns 0: the last of them closes it, whatever
/// the threads that have used it do meanwhile, and an error is lost.
///
/// Any thread. Syncs nothing. Blocks as close(2), which is long if that frees the blocks of a large deleted file, or makes a
/// file server write.
///
/// As with any close(2) of a descriptor of the file, this releases all record locks that the process has on it
/// (fcntl(F_SETLK), lockf), through whichever descriptor they were taken: at once, or when the last thread releases the
/// file. Locks of F_OFD_SETLK and flock stay with the caller's descriptors.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_close(file: *mut ringfile_file) -> c_int {
    done(|| {
        let removed = FILES.remove(file)?;
        drop(recent::forget_file(file.addr()));
        let mut closing = pin!(removed.close());
        match closing.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(closed) => Ok(closed?),
            Poll::Pending => Ok(()),
        }
    })
}

/// Returns the size in bytes. Any thread. Blocks as fstat(2).
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_size(file: *const ringfile_file) -> i64 {
    call(|| Ok(i64::try_from(get(file)?.size()?).unwrap_or(i64::MAX)))
}

/// Returns whether I/O on the file is direct: 1 or 0. May change from 1 to 0 with RINGFILE_BUFFERED_FALLBACK. Any
/// thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_is_direct(file: *const ringfile_file) -> c_int {
    call(|| FILES.with(file, |file| i64::from(file.is_direct()))) as c_int
}

/// Returns whether the file is adaptive: 1 or 0. 1 with RINGFILE_ADAPTIVE if a second descriptor could be opened; may
/// change from 1 to 0. Any thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_is_adaptive(file: *const ringfile_file) -> c_int {
    call(|| FILES.with(file, |file| i64::from(file.is_adaptive()))) as c_int
}

/// Stores the required multiples of direct I/O: of offsets and lengths (`*bytes`) and of addresses (`*memory`); 1 for
/// buffered I/O. Either pointer may be NULL. Any thread; does not block.
///
/// Pointers: each pointer is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_alignment(
    file: *const ringfile_file,
    bytes: *mut usize,
    memory: *mut usize,
) -> c_int {
    done(|| {
        let alignment = FILES.with(file, File::alignment)?;
        for (to, value) in [(bytes, alignment.bytes), (memory, alignment.memory)] {
            if !to.is_null() {
                // SAFETY: by the contract in the header.
                unsafe { raw::put(to, value, "the alignment") }?;
            }
        }
        Ok(())
    })
}

/// Stores the limits of atomic writes (ringfile_write_atomic): the shortest and the longest length in bytes, both
/// powers of two, and how many pieces of memory the kernel accepts for one; all 0 if the file does not support them.
/// Each pointer may be NULL. Any thread; does not block.
///
/// Pointers: each pointer is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_atomic_limits(
    file: *const ringfile_file,
    min: *mut usize,
    max: *mut usize,
    segments: *mut usize,
) -> c_int {
    done(|| {
        let limits = FILES.with(file, File::alignment)?.atomic;
        let values = limits.map_or([0; 3], |limits| [limits.min, limits.max, limits.segments]);
        for (to, value) in [min, max, segments].into_iter().zip(values) {
            if !to.is_null() {
                // SAFETY: by the contract in the header.
                unsafe { raw::put(to, value, "the limits") }?;
            }
        }
        Ok(())
    })
}

/// Returns the file's descriptor, for calls that the library does not have. It belongs to the library, which uses it
/// for I/O: do not close it, or put another file in its place. It is closed with the file. Any thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_fd(file: *const ringfile_file) -> c_int {
    call(|| FILES.with(file, |file| i64::from(file.as_fd().as_raw_fd()))) as c_int
}
