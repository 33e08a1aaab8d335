//! Operations: one record for all kinds, which a batch, a queue or a blocking call carries out.
//!
//! The only file that knows the kinds of operations on files. [`check`] reads the caller's record once, and refuses
//! what does not belong to its kind; what it returns needs no more checks. Invariant: after an error nothing was
//! started, and the memory of the operation still belongs to the caller.

use std::ffi::{c_char, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::ptr;

use libc::iovec;
use ringfile::{Advice, AllocateMode, Batch, Buffer, File, Queue, RangeSync, SharedQueue, Token};

use crate::control;
use crate::error::{Fault, Result, call};
use crate::file::{self, ringfile_file, ringfile_open_options};
use crate::local;
use crate::memory::{self, Parts, Span};
use crate::path::{self, OnPath, Room, ringfile_metadata};
use crate::raw::{self, Growing};

/// ringfile_op.kind: reads up to `length` bytes from `offset` of `file` into `data`. Result: the bytes read, fewer than
/// `length` only at the end of the file.
pub const RINGFILE_OP_READ: u32 = 1;
/// Writes all of `length` bytes from `data` at `offset` of `file`. Result: `length`.
pub const RINGFILE_OP_WRITE: u32 = 2;
/// As RINGFILE_OP_WRITE; when it has finished, the write is durable, as with ringfile_write_durable.
pub const RINGFILE_OP_WRITE_DURABLE: u32 = 3;
/// As RINGFILE_OP_WRITE; a power cut leaves all of the write or nothing, as with ringfile_write_atomic.
pub const RINGFILE_OP_WRITE_ATOMIC: u32 = 4;
/// As RINGFILE_OP_READ, into the `count` pieces of memory at `parts`, one after another, instead of `data`. The array
/// is copied, and may be freed when the call returns. Allocates.
pub const RINGFILE_OP_READV: u32 = 5;
/// As RINGFILE_OP_WRITE, from the `count` pieces of memory at `parts`. The array is copied. Allocates.
pub const RINGFILE_OP_WRITEV: u32 = 6;
/// Syncs `file`, as ringfile_sync_data, which covers the writes that have finished when it starts. Result: 0.
pub const RINGFILE_OP_SYNC_DATA: u32 = 7;
/// Syncs `file` with its metadata, as ringfile_sync_all. Result: 0.
pub const RINGFILE_OP_SYNC_ALL: u32 = 8;
/// Writes back `length` bytes from `offset` of `file`, as ringfile_sync_range. `flags`: RINGFILE_SYNC_RANGE_WRITE
/// starts that, all three RINGFILE_SYNC_RANGE_... wait until it is done; others are -EINVAL. Result: 0.
pub const RINGFILE_OP_SYNC_RANGE: u32 = 9;
/// Allocates or frees blocks of `length` bytes from `offset` of `file`, as ringfile_allocate. `flags`: one of
/// RINGFILE_ALLOCATE_.... Result: 0.
pub const RINGFILE_OP_ALLOCATE: u32 = 10;
/// Sets the size of `file` to `length` bytes, as ringfile_truncate. Result: 0.
pub const RINGFILE_OP_TRUNCATE: u32 = 11;
/// Tells the page cache what to expect of `length` bytes from `offset` of `file`, as ringfile_advise. `flags`: one of
/// RINGFILE_ADVICE_.... Result: 0.
pub const RINGFILE_OP_ADVISE: u32 = 12;
/// Copies `length` bytes from `offset` of `file` to `to_offset` of `to`, or of the same file (copy_file_range(2)). The
/// file system shares blocks or copies on the server if it can; holes stay holes. Where the kernel cannot copy, as
/// between file systems, the library reads and writes. Not durable: sync `to`. Result: the bytes copied, fewer than
/// `length` only if `file` ends earlier. After an error or a cancellation, ringfile_last_error() says how much was
/// copied. -EINVAL: the ranges overlap in one file, or end beyond 2^63 - 1.
pub const RINGFILE_OP_COPY_RANGE: u32 = 13;
/// Opens the file at `path` with `options`, as ringfile_open, without blocking the thread that a queue belongs to: the
/// kernel or a worker looks the path up, and cuts the file for RINGFILE_TRUNCATE. Result: 0, and `*opened` has the
/// handle.
pub const RINGFILE_OP_OPEN: u32 = 14;
/// Renames the file or the directory at `path` to `to_path` (renameat2(2)), and replaces an existing file. `flags`: 0 or one
/// of RINGFILE_RENAME_..., which some file systems lack (-EINVAL). Result: 0.
pub const RINGFILE_OP_RENAME: u32 = 15;
/// Removes the file at `path` (unlink(2)). Another thread carries it out, so that freeing the blocks of a large file
/// does not block this one. The blocks of a file that is still open are freed by the thread that closes it last.
/// Result: 0.
pub const RINGFILE_OP_UNLINK: u32 = 16;
/// Removes the empty directory at `path` (rmdir(2)). Result: 0.
pub const RINGFILE_OP_RMDIR: u32 = 17;
/// Creates a directory at `path` (mkdir(2), with mode 0777 less the umask). Result: 0.
pub const RINGFILE_OP_MKDIR: u32 = 18;
/// Reads the metadata (statx(2)) of the file at `path`, following symbolic links, or of the open `file`, without `path`.
/// Result: 0, and `*metadata` is filled.
pub const RINGFILE_OP_STATX: u32 = 19;
/// Gives the file at `path` the name `to_path` too (link(2)). Result: 0.
pub const RINGFILE_OP_LINK: u32 = 20;
/// Creates a symbolic link at `path` that points to `to_path` (symlink(2)). Result: 0.
pub const RINGFILE_OP_SYMLINK: u32 = 21;
/// Creates a directory at `path`, as RINGFILE_OP_MKDIR, and those above it that do not exist. Result: 0, also if it exists.
pub const RINGFILE_OP_MKDIR_ALL: u32 = 22;
/// Sets the permissions of the file at `path` (chmod(2)), following symbolic links. `flags`: the permission bits. Result: 0.
pub const RINGFILE_OP_CHMOD: u32 = 23;

/// RINGFILE_OP_RENAME: fails with -EEXIST if `to_path` exists.
pub const RINGFILE_RENAME_NO_REPLACE: u32 = 1;
/// RINGFILE_OP_RENAME: exchanges what is at `path` and at `to_path`; both must exist.
pub const RINGFILE_RENAME_EXCHANGE: u32 = 2;

/// An operation: its kind, and what that kind needs, see RINGFILE_OP_READ and the others. All other fields must be 0:
/// otherwise -EINVAL, as for an unknown kind. The record is copied, and may be changed or freed when the call returns.
///
/// Operations on paths copy the path and the options. A relative path starts at the process's working directory when
/// the operation is carried out. They allocate a few hundred bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_op {
    /// sizeof(ringfile_op), or the offset of a field if that and all later ones are unused: those are then not read.
    pub size: usize,
    /// RINGFILE_OP_...
    pub kind: u32,
    /// RINGFILE_SYNC_RANGE_..., RINGFILE_ALLOCATE_..., RINGFILE_ADVICE_..., RINGFILE_RENAME_... or permissions, by kind.
    pub flags: u32,
    /// The file; for RINGFILE_OP_COPY_RANGE the one to copy from.
    pub file: *const ringfile_file,
    /// The memory to read into or to write, see MEMORY FOR I/O at the top of this file.
    pub data: *mut c_void,
    /// Bytes.
    pub length: u64,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// RINGFILE_OP_READV, RINGFILE_OP_WRITEV: an array of pieces of memory.
    pub parts: *const iovec,
    /// The number of pieces at `parts`.
    pub count: usize,
    /// RINGFILE_OP_COPY_RANGE: the file to copy to.
    pub to: *const ringfile_file,
    /// RINGFILE_OP_COPY_RANGE: where in that file, in bytes.
    pub to_offset: u64,
    /// Operations on paths: a NUL-terminated string.
    pub path: *const c_char,
    /// RINGFILE_OP_RENAME, RINGFILE_OP_LINK: the new path, a NUL-terminated string. RINGFILE_OP_SYMLINK: where it points.
    pub to_path: *const c_char,
    /// RINGFILE_OP_OPEN: a struct whose `size` is set.
    pub options: *const ringfile_open_options,
    /// RINGFILE_OP_OPEN: where to store the handle. Written when the result is taken from a queue, before a run of a
    /// batch returns, or before the end of a started batch is reported: never otherwise, nor after an error. Valid
    /// until then.
    pub opened: *mut *mut ringfile_file,
    /// RINGFILE_OP_STATX: a struct whose `size` is set, to be filled. Written and valid as `opened`.
    pub metadata: *mut ringfile_metadata,
}

// SAFETY: it consists of integers and raw pointers only, for which all zeros is a value, with the size first.
unsafe impl Growing for ringfile_op {}

/// The result of one operation of a batch or a queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_result {
    /// The number that was passed with the operation.
    pub user_data: u64,
    /// The operation's result, as its RINGFILE_OP_... says, or a negative errno.
    pub result: i64,
}

/// The fields that only some kinds of operations use.
#[rustfmt::skip]
const FIELDS: [&str; 14] = ["flags", "file", "data", "length", "offset", "parts", "count", "to", "to_offset", "path",
    "to_path", "options", "opened", "metadata"];

/// The place of `parts` in [`FIELDS`], and of all fields after it in a record.
const PARTS_FIELD: usize = 5;

/// Sets of [`FIELDS`], joined by `|`.
mod fields {
    pub(super) const FLAGS: u32 = 1;
    pub(super) const FILE: u32 = 1 << 1;
    pub(super) const DATA: u32 = 1 << 2;
    pub(super) const LENGTH: u32 = 1 << 3;
    pub(super) const OFFSET: u32 = 1 << 4;
    pub(super) const PARTS: u32 = 1 << 5 | 1 << 6;
    pub(super) const TO: u32 = 1 << 7 | 1 << 8;
    pub(super) const PATH: u32 = 1 << 9;
    pub(super) const TO_PATH: u32 = 1 << 10;
    pub(super) const OPENED: u32 = 1 << 11 | 1 << 12;
    pub(super) const METADATA: u32 = 1 << 13;
}

impl ringfile_op {
    #[inline(always)]
    fn values(&self) -> [u64; FIELDS.len()] {
        let address = |at: *const c_void| at.addr() as u64;
        [
            u64::from(self.flags),
            address(self.file.cast()),
            address(self.data),
            self.length,
            self.offset,
            address(self.parts.cast()),
            self.count as u64,
            address(self.to.cast()),
            self.to_offset,
            address(self.path.cast()),
            address(self.to_path.cast()),
            address(self.options.cast()),
            address(self.opened.cast()),
            address(self.metadata.cast()),
        ]
    }

    /// Returns an error if a field that is not among these is set.
    #[inline(always)]
    fn has_only(&self, used: u32) -> Result<()> {
        let values = self.values();
        let mut others = 0;
        for (at, value) in values.into_iter().enumerate() {
            others |= if used & 1 << at == 0 { value } else { 0 };
        }
        if others == 0 { Ok(()) } else { Err(self.unused(used)) }
    }

    #[cold]
    fn unused(&self, used: u32) -> Fault {
        let others = self.values().into_iter().enumerate();
        let mut others = others.filter(|(at, value)| used & 1 << at == 0 && *value != 0);
        let name = others.next().map_or("?", |(at, _)| FIELDS[at]);
        let kind = self.kind;
        Fault::invalid(format!(
            "`{name}` of ringfile_op is not 0: an operation of kind {kind} does not use it"
        ))
    }
}

/// Which way the bytes of a [`Transfer`] go, and how.
#[derive(Clone, Copy)]
enum How {
    Read,
    Write,
    WriteDurable,
    WriteAtomic,
}

/// A read or a write of one piece of memory.
#[derive(Clone, Copy)]
pub(crate) struct Transfer {
    how: How,
    memory: Span,
    offset: u64,
}

impl How {
    /// Takes the kind with the flags above it, which must be 0.
    #[inline(always)]
    fn of(kind_and_flags: u64) -> Option<Self> {
        const READ: u64 = RINGFILE_OP_READ as u64;
        const WRITE: u64 = RINGFILE_OP_WRITE as u64;
        const WRITE_DURABLE: u64 = RINGFILE_OP_WRITE_DURABLE as u64;
        const WRITE_ATOMIC: u64 = RINGFILE_OP_WRITE_ATOMIC as u64;
        match kind_and_flags {
            READ => Some(Self::Read),
            WRITE => Some(Self::Write),
            WRITE_DURABLE => Some(Self::WriteDurable),
            WRITE_ATOMIC => Some(Self::WriteAtomic),
            _ => None,
        }
    }
}

impl Transfer {
    /// Adds the operation to a list.
    ///
    /// # Safety
    /// As [`OnFile::add_to`].
    #[inline(always)]
    pub(crate) unsafe fn add_to<A: Add>(self, file: &File, list: &mut A) -> A::Added {
        let Self { how, memory, offset } = self;
        // SAFETY: by this function's contract.
        let buffer = unsafe { memory.buffer() };
        match how {
            How::Read => list.add(file.read_at(buffer, offset)),
            How::Write => list.add(file.write_at(buffer, offset)),
            How::WriteDurable => list.add(file.write_durable_at(buffer, offset)),
            How::WriteAtomic => list.add(file.write_atomic_at(buffer, offset)),
        }
    }
}

/// An operation on an open file. `P`: the parts of a vectored one.
pub(crate) enum OnFile<P> {
    Transfer(Transfer),
    Readv { parts: P, offset: u64 },
    Writev { parts: P, offset: u64 },
    SyncData,
    SyncAll,
    SyncRange { offset: u64, length: u64, what: RangeSync },
    Allocate { mode: AllocateMode, offset: u64, length: u64 },
    Truncate { length: u64 },
    Advise { offset: u64, length: u64, advice: Advice },
    Copy { offset: u64, length: u64, to: File, at: u64 },
}

/// An operation whose record was checked.
pub(crate) enum Checked<P> {
    OnFile(*const ringfile_file, OnFile<P>),
    /// Boxed, so that the others stay small.
    OnPath(Box<OnPath>),
}

/// The list that an operation is added to.
pub(crate) trait Add {
    type Added;

    fn add(&mut self, operation: impl ringfile::Operation) -> Self::Added;
}

impl Add for Batch {
    type Added = usize;

    #[inline(always)]
    fn add(&mut self, operation: impl ringfile::Operation) -> usize {
        Batch::add(self, operation)
    }
}

/// A queue, and the number that comes back with the result.
impl Add for (&mut Queue, u64) {
    type Added = Token;

    #[inline(always)]
    fn add(&mut self, operation: impl ringfile::Operation) -> Token {
        self.0.add(operation, self.1)
    }
}

/// As above, for a queue that threads share.
impl Add for (&SharedQueue, u64) {
    type Added = Token;

    fn add(&mut self, operation: impl ringfile::Operation) -> Token {
        self.0.add(operation, self.1)
    }
}

impl<P: Parts> OnFile<P> {
    /// Adds the operation to a list.
    ///
    /// # Safety
    /// The operation's memory is valid, and nothing else accesses it, until the operation has ended; for a write others
    /// may read it.
    #[inline(always)]
    pub(crate) unsafe fn add_to<A: Add>(self, file: &File, list: &mut A) -> A::Added {
        // SAFETY: by this function's contract.
        unsafe {
            match self {
                Self::Transfer(transfer) => transfer.add_to(file, list),
                Self::Readv { parts, offset } => {
                    list.add(file.read_vectored_at(parts.into_buffers(), offset))
                }
                Self::Writev { parts, offset } => {
                    list.add(file.write_vectored_at(parts.into_buffers(), offset))
                }
                Self::SyncData => list.add(file.sync_data()),
                Self::SyncAll => list.add(file.sync_all()),
                Self::SyncRange { offset, length, what } => list.add(file.sync_range(offset, length, what)),
                Self::Allocate { mode, offset, length } => list.add(file.allocate(mode, offset, length)),
                Self::Truncate { length } => list.add(file.set_len(length)),
                Self::Advise { offset, length, advice } => list.add(file.advise(offset, length, advice)),
                Self::Copy { offset, length, to, at } => list.add(file.copy_range(offset, &to, at, length)),
            }
        }
    }
}

/// The size of a record without the fields that reads and writes of one piece of memory do not use.
const SHORT: usize = offset_of!(ringfile_op, parts);
/// The size of a record without the fields that vectored operations do not use either.
const VECTORED: usize = offset_of!(ringfile_op, to);
const FULL: usize = size_of::<ringfile_op>();

/// Returns a record whose size is [`SHORT`], or [`VECTORED`] if there are parts, with 0 in the other fields.
///
/// # Safety
/// The record has the fields within that size.
#[inline(always)]
unsafe fn completed(op: *const ringfile_op, has_parts: bool) -> ringfile_op {
    // SAFETY: by this function's contract; no reference to the whole record is made.
    unsafe {
        ringfile_op {
            size: FULL,
            kind: (*op).kind,
            flags: (*op).flags,
            file: (*op).file,
            data: (*op).data,
            length: (*op).length,
            offset: (*op).offset,
            parts: if has_parts { (*op).parts } else { ptr::null() },
            count: if has_parts { (*op).count } else { 0 },
            to: ptr::null(),
            to_offset: 0,
            path: ptr::null(),
            to_path: ptr::null(),
            options: ptr::null(),
            opened: ptr::null_mut(),
            metadata: ptr::null_mut(),
        }
    }
}

/// A record that needs no more checks: a read or a write of one piece of memory, the most frequent operations. Its
/// fields are read when they are needed, which costs least.
#[derive(Clone, Copy)]
pub(crate) struct Plain {
    op: *const ringfile_op,
    how: How,
}

impl Plain {
    /// Returns `None` for records of other operations, and for those that are not right: [`check`] is for them.
    ///
    /// # Safety
    /// As [`check`]. The record stays while this value is used.
    #[inline(always)]
    pub(crate) unsafe fn new(op: *const ringfile_op) -> Option<Self> {
        if op.is_null() {
            return None;
        }
        // SAFETY: by this function's contract, the record has the fields within its size.
        unsafe {
            if (*op).size != SHORT && !has_no_rest(op) {
                return None;
            }
            if !Span::is_possible((*op).data, (*op).length as usize) {
                return None;
            }
            let kind_and_flags = u64::from((*op).flags) << 32 | u64::from((*op).kind);
            How::of(kind_and_flags).map(|how| Self { op, how })
        }
    }

    #[inline(always)]
    pub(crate) fn file(self) -> *const ringfile_file {
        // SAFETY: the record is there, by the contract of `new`.
        unsafe { (*self.op).file }
    }

    #[inline(always)]
    pub(crate) fn transfer(self) -> Transfer {
        let Self { op, how } = self;
        // SAFETY: the record is there, by the contract of `new`, which has checked the memory.
        unsafe {
            let memory = Span::new_unchecked((*op).data, (*op).length as usize);
            Transfer { how, memory, offset: (*op).offset }
        }
    }
}

/// Returns whether a record has the size that this version knows, and no field after those of [`SHORT`].
///
/// # Safety
/// As [`check`].
#[cold]
#[inline(never)]
unsafe fn has_no_rest(op: *const ringfile_op) -> bool {
    // SAFETY: by this function's contract.
    unsafe { (*op).size == FULL && (*op).values()[PARTS_FIELD..].iter().all(|value| *value == 0) }
}

/// Checks a record from C.
///
/// # Safety
/// The record is null, or as the header says; its memory is as [`OnFile::add_to`] says.
#[inline(always)]
pub(crate) unsafe fn check<P: Parts>(op: *const ringfile_op) -> Result<Checked<P>> {
    use fields::*;
    if op.is_null() {
        return Err(Fault::null("the operation"));
    }
    let mut copied = MaybeUninit::uninit();
    // SAFETY: by this function's contract.
    let op = unsafe {
        match (*op).size {
            FULL => &*op,
            SHORT => copied.write(completed(op, false)),
            VECTORED => copied.write(completed(op, true)),
            _ => copied.write(raw::options(op, "ringfile_op")?),
        }
    };
    let (offset, length) = (op.offset, op.length);
    if let Some(how) = How::of(op.kind.into()) {
        op.has_only(FILE | DATA | LENGTH | OFFSET)?;
        let memory = Span::new(op.data, length as usize)?;
        return Ok(Checked::OnFile(op.file, OnFile::Transfer(Transfer { how, memory, offset })));
    }
    let on_file = match op.kind {
        RINGFILE_OP_READV | RINGFILE_OP_WRITEV => {
            op.has_only(FILE | PARTS | OFFSET)?;
            // SAFETY: by this function's contract.
            let parts = unsafe { P::of(memory::parts(op.parts, op.count)?.0) }?;
            if op.kind == RINGFILE_OP_READV {
                OnFile::Readv { parts, offset }
            } else {
                OnFile::Writev { parts, offset }
            }
        }
        RINGFILE_OP_SYNC_DATA => {
            op.has_only(FILE)?;
            OnFile::SyncData
        }
        RINGFILE_OP_SYNC_ALL => {
            op.has_only(FILE)?;
            OnFile::SyncAll
        }
        RINGFILE_OP_SYNC_RANGE => {
            op.has_only(FILE | FLAGS | OFFSET | LENGTH)?;
            OnFile::SyncRange { offset, length, what: control::range_sync(op.flags)? }
        }
        RINGFILE_OP_ALLOCATE => {
            op.has_only(FILE | FLAGS | OFFSET | LENGTH)?;
            OnFile::Allocate { mode: control::allocate_mode(op.flags)?, offset, length }
        }
        RINGFILE_OP_TRUNCATE => {
            op.has_only(FILE | LENGTH)?;
            OnFile::Truncate { length }
        }
        RINGFILE_OP_ADVISE => {
            op.has_only(FILE | FLAGS | OFFSET | LENGTH)?;
            OnFile::Advise { offset, length, advice: control::advice(op.flags)? }
        }
        RINGFILE_OP_COPY_RANGE => {
            op.has_only(FILE | OFFSET | LENGTH | TO)?;
            OnFile::Copy { offset, length, to: file::get(op.to)?, at: op.to_offset }
        }
        _ => {
            // SAFETY: by this function's contract.
            let on_path = unsafe {
                match op.kind {
                    RINGFILE_OP_OPEN => {
                        op.has_only(PATH | OPENED)?;
                        path::open(op.path, op.options, op.opened)
                    }
                    RINGFILE_OP_RENAME => {
                        op.has_only(PATH | TO_PATH | FLAGS)?;
                        path::two(op.path, op.to_path, path::renaming(op.flags)?)
                    }
                    RINGFILE_OP_LINK => {
                        op.has_only(PATH | TO_PATH)?;
                        path::two(op.path, op.to_path, ringfile::fs::hard_link)
                    }
                    RINGFILE_OP_SYMLINK => {
                        op.has_only(PATH | TO_PATH)?;
                        path::two(op.path, op.to_path, |link, to| ringfile::fs::symlink(to, link))
                    }
                    RINGFILE_OP_UNLINK => {
                        op.has_only(PATH)?;
                        path::change(op.path, ringfile::fs::remove_file)
                    }
                    RINGFILE_OP_RMDIR => {
                        op.has_only(PATH)?;
                        path::change(op.path, ringfile::fs::remove_dir)
                    }
                    RINGFILE_OP_MKDIR => {
                        op.has_only(PATH)?;
                        path::change(op.path, ringfile::fs::create_dir)
                    }
                    RINGFILE_OP_MKDIR_ALL => {
                        op.has_only(PATH)?;
                        path::change(op.path, ringfile::fs::create_dir_all)
                    }
                    RINGFILE_OP_CHMOD => {
                        op.has_only(PATH | FLAGS)?;
                        let permissions = path::permissions(op.flags)?;
                        path::change(op.path, |path| ringfile::fs::set_permissions(path, permissions))
                    }
                    RINGFILE_OP_STATX if op.file.is_null() => {
                        op.has_only(PATH | METADATA)?;
                        path::metadata(op.path, op.metadata)
                    }
                    RINGFILE_OP_STATX => {
                        op.has_only(FILE | METADATA)?;
                        path::metadata_of(&file::get(op.file)?, op.metadata)
                    }
                    other => Err(Fault::invalid(format!("kind is {other}: use one of RINGFILE_OP_..."))),
                }
            };
            return Ok(Checked::OnPath(Box::new(on_path?)));
        }
    };
    Ok(Checked::OnFile(op.file, on_file))
}

/// Adds an operation on a path to a list, and returns where its additional result must be written.
pub(crate) fn add_on_path<A: Add>(on_path: OnPath, list: &mut A) -> (A::Added, Option<Room>) {
    match on_path {
        OnPath::Open(operation, room) => (list.add(operation), Some(room)),
        OnPath::Change(operation) => (list.add(operation), None),
        OnPath::Stat(operation, room) => (list.add(operation), Some(room)),
    }
}

/// Carries out one operation, blocking the calling thread. Returns its result: what RINGFILE_OP_... says, or a negative
/// errno. Additional results (`opened`, `metadata`) are written before it returns.
///
/// Any thread. Blocks. The functions for single kinds (ringfile_read, ringfile_sync_data, ...) do the same. A sync
/// range that must not use a ring, as in a forked child, is ringfile_sync_range.
///
/// Pointers: `op` points to a struct whose `size` is set, and its fields are valid as RINGFILE_OP_... says, until this
/// returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_run(op: *const ringfile_op) -> i64 {
    call(|| {
        // SAFETY: by the contract in the header, here and below; the call waits for the operation.
        let checked = unsafe { check::<Vec<Buffer>>(op) }?;
        local::blocking(|queue| {
            let mut room = None;
            match checked {
                Checked::OnFile(file, on_file) => {
                    // SAFETY: as above.
                    unsafe { on_file.add_to(&file::get(file)?, &mut (&mut *queue, 0)) };
                }
                Checked::OnPath(on_path) => room = add_on_path(*on_path, &mut (&mut *queue, 0)).1,
            }
            let mut done = local::wait_for_one(queue)?;
            if let Some(room) = room {
                // SAFETY: as above.
                unsafe { room.fill(&mut done) }?;
            }
            Ok(done.result? as i64)
        })
    })
}
