//! Operations: one record for all kinds, which a batch, a queue or a blocking call carries out.
//!
//! The only file that knows the kinds of operations on files. [`check`] reads the caller's record once, and refuses
//! what does not belong to its kind; what it returns needs no more checks. Invariant: after an error nothing was
//! started, and the memory of the operation still belongs to the caller.

use std::ffi::c_void;
use std::path::Path;

use ringfile::fs;
use ringfile::fs::{Advice, AllocateMode, RangeSync};
use ringfile::{Batch, Buffer, File, Op, Output, Queue, SharedQueue, Token};

use crate::control;
use crate::error::{Fault, Result, call};
use crate::file::{self, ringfile_file};
use crate::local;
use crate::memory::{self, Parts, Span};
use crate::path::{self, OnPath, Room};
use crate::recent::Found;

/// ringfile_op.kind: reads up to `length` bytes from `offset` of `file` into `data`. Result: the bytes read, fewer than
/// `length` only at the end of the file.
pub const RINGFILE_OP_READ: u32 = 1;
/// Writes all of `length` bytes from `data` at `offset` of `file`. Result: `length`.
pub const RINGFILE_OP_WRITE: u32 = 2;
/// As RINGFILE_OP_WRITE; when it has finished, the write is durable, as with ringfile_write_durable.
pub const RINGFILE_OP_WRITE_DURABLE: u32 = 3;
/// As RINGFILE_OP_WRITE; a power cut leaves all of the write or nothing, as with ringfile_write_atomic.
pub const RINGFILE_OP_WRITE_ATOMIC: u32 = 4;
/// As RINGFILE_OP_READ, into the `length` pieces of memory in the array at `data`, one after another. The array
/// is copied, and may be freed when the call returns. It is a fixed read only if
/// all pieces lie in one buffer's memory or in one registration; if some lie in another one, or a part of them in none,
/// it stays a plain READV. Except in a batch it allocates nothing, once the thread has taken the results of as many
/// operations with up to 64 pieces as are in flight.
pub const RINGFILE_OP_READV: u32 = 5;
/// As RINGFILE_OP_WRITE, from several pieces of memory, as RINGFILE_OP_READV.
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
/// Copies `length` bytes from `offset` of `file` to `to_offset` of the file `other`, or of the same file (copy_file_range(2)). The
/// file system shares blocks or copies on the server if it can; holes stay holes. Where the kernel cannot copy, as
/// between file systems, the library reads and writes. Not durable: sync `other`. Result: the bytes copied, fewer than
/// `length` only if `file` ends earlier. After an error or a cancellation, ringfile_last_error() says how much was
/// copied. -EINVAL: the ranges overlap in one file, or end beyond 2^63 - 1.
pub const RINGFILE_OP_COPY_RANGE: u32 = 13;
/// Opens the file at the path `data` with the options `other`, as ringfile_open, without blocking the thread that a queue belongs to: the
/// kernel or a worker looks the path up, and cuts the file for RINGFILE_TRUNCATE. Result: 0, and `*result` has the
/// handle.
pub const RINGFILE_OP_OPEN: u32 = 14;
/// Renames the file or the directory at the path `data` to the path `other` (renameat2(2)), and replaces an existing file. `flags`: 0 or one
/// of RINGFILE_RENAME_..., which some file systems lack (-EINVAL). Result: 0.
pub const RINGFILE_OP_RENAME: u32 = 15;
/// Removes the file at the path `data` (unlink(2)). Another thread carries it out, so that freeing the blocks of a large file
/// does not block this one. The blocks of a file that is still open are freed by the thread that closes it last.
/// Result: 0.
pub const RINGFILE_OP_UNLINK: u32 = 16;
/// Removes the empty directory at the path `data` (rmdir(2)). Result: 0.
pub const RINGFILE_OP_RMDIR: u32 = 17;
/// Creates a directory at the path `data` (mkdir(2), with mode 0777 less the umask). Result: 0.
pub const RINGFILE_OP_MKDIR: u32 = 18;
/// Reads the metadata (statx(2)) of the file at the path `data`, following symbolic links, or of the open `file`, without a path.
/// Result: 0, and `*result` is filled.
pub const RINGFILE_OP_STATX: u32 = 19;
/// Gives the file at the path `data` the name `other` too (link(2)). Result: 0.
pub const RINGFILE_OP_LINK: u32 = 20;
/// Creates a symbolic link at the path `data` that points to `other` (symlink(2)). Result: 0.
pub const RINGFILE_OP_SYMLINK: u32 = 21;
/// Creates a directory at the path `data`, as RINGFILE_OP_MKDIR, and those above it that do not exist. Result: 0, also if it exists.
pub const RINGFILE_OP_MKDIR_ALL: u32 = 22;
/// Sets the permissions of the file at the path `data` (chmod(2)), following symbolic links. `flags`: the permission bits. Result: 0.
pub const RINGFILE_OP_CHMOD: u32 = 23;

/// RINGFILE_OP_RENAME: fails with -EEXIST if the new path exists.
pub const RINGFILE_RENAME_NO_REPLACE: u32 = 1;
/// RINGFILE_OP_RENAME: exchanges what is at the two paths; both must exist.
pub const RINGFILE_RENAME_EXCHANGE: u32 = 2;

/// An operation: its kind, and what that kind needs. ringfile_ops.h has a function for each kind that returns one, such as
/// ringfile_op_read. Fields that the kind does not use must be 0: otherwise -EINVAL, as for an unknown kind.
///
/// Operations on paths copy the path and the options. A relative path starts at the process's working directory when
/// the operation is carried out. They allocate a few hundred bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_op {
    /// RINGFILE_OP_...
    pub kind: u32,
    /// RINGFILE_SYNC_RANGE_..., RINGFILE_ALLOCATE_..., RINGFILE_ADVICE_..., RINGFILE_RENAME_... or permissions, by kind.
    pub flags: u32,
    /// The file; for RINGFILE_OP_COPY_RANGE the one to copy from.
    pub file: *const ringfile_file,
    /// The memory to read into or to write, see MEMORY at the top of this file. RINGFILE_OP_READV,
    /// RINGFILE_OP_WRITEV: an array of struct iovec, pieces of such memory. Operations on paths: the path, NUL-terminated.
    pub data: *const c_void,
    /// Bytes. RINGFILE_OP_READV, RINGFILE_OP_WRITEV: the number of pieces.
    pub length: u64,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// RINGFILE_OP_COPY_RANGE: the file to copy to. RINGFILE_OP_RENAME, RINGFILE_OP_LINK: the new path; RINGFILE_OP_SYMLINK:
    /// where it points, NUL-terminated. RINGFILE_OP_OPEN: a struct ringfile_open_options whose `size` is set.
    pub other: *const c_void,
    /// RINGFILE_OP_COPY_RANGE: where in the file to copy to, in bytes.
    pub to_offset: u64,
    /// RINGFILE_OP_OPEN: where to store the handle, a ringfile_file **. RINGFILE_OP_STATX: a struct ringfile_metadata whose
    /// `size` is set, to be filled. Written when the result is taken from a queue, before a run of a batch returns, or before
    /// the end of a started batch is reported: never otherwise, nor after an error. Valid until then.
    pub result: *mut c_void,
}

// It is passed by value; like the kernel's own entry, it does not grow.
const _: () = assert!(size_of::<ringfile_op>() == 64);

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
const FIELDS: [&str; 8] = ["flags", "file", "data", "length", "offset", "other", "to_offset", "result"];

/// Sets of [`FIELDS`], joined by `|`.
mod fields {
    pub(super) const FLAGS: u32 = 1;
    pub(super) const FILE: u32 = 1 << 1;
    pub(super) const DATA: u32 = 1 << 2;
    pub(super) const LENGTH: u32 = 1 << 3;
    pub(super) const OFFSET: u32 = 1 << 4;
    pub(super) const OTHER: u32 = 1 << 5;
    pub(super) const TO_OFFSET: u32 = 1 << 6;
    pub(super) const RESULT: u32 = 1 << 7;
}

impl ringfile_op {
    #[inline(always)]
    fn values(&self) -> [u64; FIELDS.len()] {
        [
            u64::from(self.flags),
            self.file.addr() as u64,
            self.data.addr() as u64,
            self.length,
            self.offset,
            self.other.addr() as u64,
            self.to_offset,
            self.result.addr() as u64,
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
        // SAFETY: by this function's contract.
        self.add_with(unsafe { self.memory.buffer() }, file, list)
    }

    /// Adds the operation, whose memory is that buffer, to a list.
    #[inline(always)]
    fn add_with<A: Add>(self, buffer: Buffer, file: &File, list: &mut A) -> A::Added {
        let Self { how, offset, .. } = self;
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

    fn add(&mut self, op: Op<'_, impl Output>) -> Self::Added;
}

impl Add for Batch {
    type Added = usize;

    #[inline(always)]
    fn add(&mut self, op: Op<'_, impl Output>) -> usize {
        Batch::add(self, op)
    }
}

/// A queue, and the number that comes back with the result.
impl Add for (&mut Queue, u64) {
    type Added = Token;

    #[inline(always)]
    fn add(&mut self, op: Op<'_, impl Output>) -> Token {
        self.0.add(op, self.1)
    }
}

/// As above, for a queue that threads share.
impl Add for (&SharedQueue, u64) {
    type Added = Token;

    fn add(&mut self, op: Op<'_, impl Output>) -> Token {
        self.0.add(op, self.1)
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

/// A record that needs no more checks: a read or a write of one piece of memory, the most frequent operations.
#[derive(Clone, Copy)]
pub(crate) struct Plain<'a> {
    op: &'a ringfile_op,
    how: How,
}

impl<'a> Plain<'a> {
    /// Returns `None` for records of other operations, and for those that are not right: [`check`] is for them.
    #[inline(always)]
    pub(crate) fn new(op: &'a ringfile_op) -> Option<Self> {
        if op.other.addr() as u64 | op.to_offset | op.result.addr() as u64 != 0 {
            return None;
        }
        if !Span::is_possible(op.data, op.length as usize) {
            return None;
        }
        How::of(u64::from(op.flags) << 32 | u64::from(op.kind)).map(|how| Self { op, how })
    }

    #[inline(always)]
    pub(crate) fn file(self) -> *const ringfile_file {
        self.op.file
    }

    /// Adds the operation to a queue that has found its file and its memory, or looks them up.
    ///
    /// # Safety
    /// As [`OnFile::add_to`].
    #[inline(always)]
    pub(crate) unsafe fn add_to<A: Add>(self, found: &mut Found, list: &mut A) -> Result<A::Added> {
        let transfer = self.transfer();
        let memory = transfer.memory;
        let (file, buffer) = found.find(
            self.file().addr(),
            || file::get(self.file()),
            memory.range(),
            // SAFETY: by this function's contract.
            |kept, at| unsafe { memory.share_of(kept, at) },
            // SAFETY: as above.
            || unsafe { memory.look_up() },
        )?;
        Ok(transfer.add_with(buffer, file, list))
    }

    #[inline(always)]
    pub(crate) fn transfer(self) -> Transfer {
        let Self { op, how } = self;
        // SAFETY: `new` has checked the memory.
        let memory = unsafe { Span::new_unchecked(op.data, op.length as usize) };
        Transfer { how, memory, offset: op.offset }
    }
}

/// Checks a record from C.
///
/// # Safety
/// What the record points to is there, as the header says; its memory is as [`OnFile::add_to`] says.
#[inline(always)]
pub(crate) unsafe fn check<P: Parts>(op: &ringfile_op) -> Result<Checked<P>> {
    use fields::*;
    let (offset, length) = (op.offset, op.length);
    if let Some(how) = How::of(op.kind.into()) {
        op.has_only(FILE | DATA | LENGTH | OFFSET)?;
        let memory = Span::new(op.data, length as usize)?;
        return Ok(Checked::OnFile(op.file, OnFile::Transfer(Transfer { how, memory, offset })));
    }
    let on_file = match op.kind {
        RINGFILE_OP_READV | RINGFILE_OP_WRITEV => {
            op.has_only(FILE | DATA | LENGTH | OFFSET)?;
            // SAFETY: by this function's contract.
            let parts = unsafe { P::of(memory::parts(op.data.cast(), op.length as usize)?) }?;
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
            op.has_only(FILE | OFFSET | LENGTH | OTHER | TO_OFFSET)?;
            OnFile::Copy { offset, length, to: file::get(op.other.cast())?, at: op.to_offset }
        }
        _ => {
            let (path, other) = (op.data.cast(), op.other.cast());
            // SAFETY: by this function's contract.
            let on_path = unsafe {
                match op.kind {
                    RINGFILE_OP_OPEN => {
                        op.has_only(DATA | OTHER | RESULT)?;
                        path::open(path, op.other.cast(), op.result.cast())
                    }
                    RINGFILE_OP_RENAME => {
                        op.has_only(DATA | OTHER | FLAGS)?;
                        path::two(path, other, renaming(op.flags)?)
                    }
                    RINGFILE_OP_LINK => {
                        op.has_only(DATA | OTHER)?;
                        path::two(path, other, fs::hard_link)
                    }
                    RINGFILE_OP_SYMLINK => {
                        op.has_only(DATA | OTHER)?;
                        path::two(path, other, |link, to| fs::symlink(to, link))
                    }
                    RINGFILE_OP_UNLINK => {
                        op.has_only(DATA)?;
                        path::change(path, fs::remove_file)
                    }
                    RINGFILE_OP_RMDIR => {
                        op.has_only(DATA)?;
                        path::change(path, fs::remove_dir)
                    }
                    RINGFILE_OP_MKDIR => {
                        op.has_only(DATA)?;
                        path::change(path, fs::create_dir)
                    }
                    RINGFILE_OP_MKDIR_ALL => {
                        op.has_only(DATA)?;
                        path::change(path, fs::create_dir_all)
                    }
                    RINGFILE_OP_CHMOD => {
                        op.has_only(DATA | FLAGS)?;
                        let permissions = path::permissions(op.flags)?;
                        path::change(path, |path| fs::set_permissions(path, permissions))
                    }
                    RINGFILE_OP_STATX if op.file.is_null() => {
                        op.has_only(DATA | RESULT)?;
                        path::metadata(path, op.result.cast())
                    }
                    RINGFILE_OP_STATX => {
                        op.has_only(FILE | RESULT)?;
                        path::metadata_of(&file::get(op.file)?, op.result.cast())
                    }
                    other => Err(Fault::invalid(format!("kind is {other}: use one of RINGFILE_OP_..."))),
                }
            };
            return Ok(Checked::OnPath(Box::new(on_path?)));
        }
    };
    Ok(Checked::OnFile(op.file, on_file))
}

/// Returns the meaning of a RINGFILE_RENAME_...
fn renaming<'a>(flags: u32) -> Result<fn(&'a Path, &'a Path) -> Op<'static, ()>> {
    Ok(match flags {
        0 => fs::rename,
        RINGFILE_RENAME_NO_REPLACE => fs::rename_no_replace,
        RINGFILE_RENAME_EXCHANGE => fs::rename_exchange,
        other => {
            return Err(Fault::invalid(format!("flags is {other}: use 0 or one of RINGFILE_RENAME_...")));
        }
    })
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
/// errno. An additional result (`result`) is written before it returns.
///
/// Any thread. Blocks. The functions for single kinds (ringfile_read, ringfile_sync_data, ...) do the same. A sync
/// range that must not use a ring, as in a forked child, is ringfile_sync_range.
///
/// Pointers: the fields of `op` are valid as RINGFILE_OP_... says, until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_run(op: ringfile_op) -> i64 {
    call(|| {
        // SAFETY: by the contract in the header, here and below; the call waits for the operation.
        let checked = unsafe { check::<Vec<Buffer>>(&op) }?;
        local::blocking(|queue| {
            let (token, room) = match checked {
                Checked::OnFile(file, on_file) => {
                    // SAFETY: as above.
                    (unsafe { on_file.add_to(&file::get(file)?, &mut (&mut *queue, 0)) }, None)
                }
                Checked::OnPath(on_path) => add_on_path(*on_path, &mut (&mut *queue, 0)),
            };
            let mut completion = local::wait_for(queue, token)?;
            if let Some(room) = room {
                // SAFETY: as above.
                unsafe { room.fill(&mut completion) }?;
            }
            memory::keep_list(&mut completion);
            Ok(completion.result? as i64)
        })
    })
}
