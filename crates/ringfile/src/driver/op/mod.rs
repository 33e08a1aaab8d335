//! Operations: for each family, its submission entry and its plain call side by side, and the meaning of a short count.
//!
//! Knows files as [`Target`]s, memory as [`Held`], and no ring, slot or thread. Invariants: no match over [`Kind`]
//! has a wildcard, so that a new operation does not compile before every place handles it.

mod cached;
pub(super) mod command;
mod control;
mod copy;
mod path;
pub(super) mod plain;
mod progress;
mod transfer;

use std::ops::{Bound, RangeBounds};

use linux_raw_sys::general::RWF_DSYNC;
use linux_raw_sys::io_uring::io_uring_op as op;

use super::target::Target;
use crate::memory::Held;
use crate::ring::Sqe;

pub(crate) use cached::cached_pages;
pub(super) use control::device_size;
pub(super) use path::keep_opened;
pub(super) use progress::{NO_THREAD, Progress, Rules, Step};
pub(crate) use transfer::MOST_AT_ONCE;
pub(super) use transfer::piece;

/// Memory that a submission entry points to besides the operation's buffers: kept with the slot until the answer.
#[derive(Default)]
pub(super) struct Parts {
    /// The addresses of a vectored operation's parts.
    addresses: transfer::Addresses,
    /// The range that a namespace deallocates.
    ranges: Vec<command::Range>,
}

/// The [`Parts`] of an operation, which are made when they are first needed.
pub(super) struct PartsOf<'a> {
    pub all: &'a mut Vec<Parts>,
    /// The slot of the operation.
    pub index: u32,
}

impl<'a> PartsOf<'a> {
    #[inline]
    fn get(self) -> &'a mut Parts {
        let index = self.index as usize;
        if self.all.len() <= index {
            self.all.resize_with(index + 1, Parts::default);
        }
        &mut self.all[index]
    }
}

/// `include/uapi/linux/fs.h`, Linux 6.11.
pub(crate) const RWF_ATOMIC: u32 = libc::RWF_ATOMIC.cast_unsigned();

/// The kind of an operation, with the fields of [`Request`] that it uses in a particular way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    ReadVectored,
    Write,
    WriteVectored,
    /// A write of which all or nothing reaches the disk. `op_flags`: [`RWF_ATOMIC`].
    WriteAtomic,
    /// `op_flags`: `FSYNC_DATASYNC` or 0.
    Sync,
    /// `op_flags`: `SYNC_FILE_RANGE_…`; `want`: the length.
    SyncRange,
    /// `op_flags`: the mode; `want`: the length.
    Allocate,
    /// `offset`: the length.
    Truncate,
    /// `op_flags`: the advice; `want`: the length.
    Advise,
    /// `op_flags`: `O_…`.
    Open,
    Rename,
    /// `op_flags`: `AT_REMOVEDIR` or 0.
    Remove,
    CreateDir,
    /// Reads the metadata.
    Stat,
    /// `want`: the length.
    Copy,
}

/// The families of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    Read,
    Write,
    /// They change or sync an open file, and move no data.
    Control,
    /// They name paths, and no open file.
    Path,
    /// They move data from one file to another.
    Copy,
}

impl Kind {
    #[inline]
    fn family(self) -> Family {
        match self {
            Self::Read | Self::ReadVectored => Family::Read,
            Self::Write | Self::WriteVectored | Self::WriteAtomic => Family::Write,
            Self::Sync | Self::SyncRange | Self::Allocate | Self::Truncate | Self::Advise => Family::Control,
            Self::Open | Self::Rename | Self::Remove | Self::CreateDir | Self::Stat => Family::Path,
            Self::Copy => Family::Copy,
        }
    }

    #[inline]
    pub(crate) fn is_read(self) -> bool {
        self.family() == Family::Read
    }

    #[inline]
    pub(crate) fn is_write(self) -> bool {
        self.family() == Family::Write
    }

    /// Returns whether it is done in parts, although it moves no data between a file and memory.
    pub(super) fn is_copy(self) -> bool {
        self.family() == Family::Copy
    }

    /// Returns whether it names paths instead of an open file.
    pub(crate) fn names_paths(self) -> bool {
        self.family() == Family::Path
    }

    #[inline]
    pub(crate) fn moves_data(self) -> bool {
        self.is_read() || self.is_write()
    }

    /// Returns whether it has a form for registered memory. Linux 6.18 refuses atomic writes from registered memory
    /// with EINVAL (`generic_atomic_write_valid`).
    #[inline]
    pub(super) fn has_fixed_form(self) -> bool {
        self.moves_data() && self != Self::WriteAtomic
    }

    /// Returns the ring's opcode for memory that is not registered.
    pub(super) fn opcode(self) -> u8 {
        let code = match self {
            Self::Read => op::IORING_OP_READ,
            Self::Write | Self::WriteAtomic => op::IORING_OP_WRITE,
            Self::ReadVectored => op::IORING_OP_READV,
            Self::WriteVectored => op::IORING_OP_WRITEV,
            Self::Sync => op::IORING_OP_FSYNC,
            Self::SyncRange => op::IORING_OP_SYNC_FILE_RANGE,
            Self::Allocate => op::IORING_OP_FALLOCATE,
            Self::Truncate => op::IORING_OP_FTRUNCATE,
            Self::Advise => op::IORING_OP_FADVISE,
            Self::Open => op::IORING_OP_OPENAT,
            Self::Rename => op::IORING_OP_RENAMEAT,
            Self::Remove => op::IORING_OP_UNLINKAT,
            Self::CreateDir => op::IORING_OP_MKDIRAT,
            Self::Stat => op::IORING_OP_STATX,
            Self::Copy => return copy::NO_OPCODE,
        };
        code as u8
    }

    /// Returns the operation's name in words.
    pub(crate) fn verb(self, op_flags: u32) -> &'static str {
        match self {
            Self::Read | Self::ReadVectored => "read",
            Self::Write | Self::WriteVectored => "write",
            Self::WriteAtomic => "atomic write",
            Self::Sync if op_flags == 0 => "syncing",
            Self::Sync => "syncing the data",
            Self::SyncRange => "syncing a range",
            Self::Allocate => "allocating",
            Self::Truncate => "setting the size",
            Self::Advise => "advising",
            Self::Open => "opening",
            Self::Rename => "renaming",
            Self::Remove if op_flags == 0 => "removing",
            Self::Remove => "removing the directory",
            Self::CreateDir => "making the directory",
            Self::Stat => "reading the metadata",
            Self::Copy => "copying",
        }
    }
}

/// The parameters of an operation, without the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub kind: Kind,
    /// The operation submitted next waits for this one, and is cancelled if it fails or is short. Set by
    /// [`start_linked`](super::start_linked) alone.
    pub linked: bool,
    /// A write that its caller makes durable with a sync of its own: its failure counts as that of the sync.
    pub synced: bool,
    /// Whether moving fewer bytes than wanted is an error.
    pub exact: bool,
    /// `RWF_…`, or the flags that [`Kind`] names.
    pub op_flags: u32,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Offset of the data in the buffer, in bytes.
    pub start: usize,
    /// Bytes to move.
    pub want: usize,
}

impl Request {
    /// Returns an operation of this kind at offset 0 that wants nothing and has no flags.
    pub(crate) const fn of(kind: Kind) -> Self {
        Self { kind, linked: false, synced: false, exact: false, op_flags: 0, offset: 0, start: 0, want: 0 }
    }

    /// Restricts a write to a part of its buffer. One that reaches beyond the buffer fails when it begins.
    pub(crate) fn take_part(&mut self, part: impl RangeBounds<usize>) {
        let start = match part.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match part.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.want.max(start),
        };
        // The length of a range that ends before it starts fits no buffer.
        (self.start, self.want) = (start, end.checked_sub(start).unwrap_or(usize::MAX));
    }

    /// Returns whether a failure means that data was lost which should have become durable: a sync, or a durable write.
    #[inline]
    pub(crate) fn is_sync(&self) -> bool {
        match self.kind {
            Kind::Sync | Kind::SyncRange => true,
            Kind::Write | Kind::WriteVectored | Kind::WriteAtomic => {
                self.synced || self.op_flags & RWF_DSYNC != 0
            }
            Kind::Read
            | Kind::ReadVectored
            | Kind::Allocate
            | Kind::Truncate
            | Kind::Advise
            | Kind::Open
            | Kind::Rename
            | Kind::Remove
            | Kind::CreateDir
            | Kind::Stat
            | Kind::Copy => false,
        }
    }

    /// Returns whether a ring's entry can name all of it. Before Linux 6.12 the length of advice has 32 bits there.
    #[inline]
    pub(crate) fn fits_an_entry(&self) -> bool {
        self.kind != Kind::Advise || u32::try_from(self.want).is_ok()
    }

    /// Returns whether it is done at once or not at all.
    #[inline]
    pub(crate) fn is_atomic(&self) -> bool {
        self.kind == Kind::WriteAtomic
    }
}

// A larger one takes longer to copy.
const _: () = assert!(size_of::<Request>() == 32);

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    /// Bytes moved.
    pub done: usize,
    /// 0 after success.
    pub errno: i32,
}

/// Writes the submission entry of the operation from byte `began` on. `base` has its descriptor, user data, offset and
/// flags; `index` is the registered index of the buffer's memory, if the ring has a fixed form of the operation.
///
/// The entry names memory that `held` or `parts` owns.
#[inline(always)]
pub(super) fn fill(
    request: &Request,
    held: &Held,
    began: usize,
    index: Option<u16>,
    parts: PartsOf<'_>,
    base: Sqe,
    sqe: &mut Sqe,
) {
    if let Kind::Read | Kind::Write = request.kind {
        // Each field is written once: an entry made on the stack and copied costs a failed store forwarding.
        *sqe = transfer::entry(request, held, began, index, base);
        return;
    }
    *sqe = base;
    match request.kind.family() {
        Family::Read | Family::Write => {
            transfer::fill_vectored(request, held, began, index, &mut parts.get().addresses, sqe);
        }
        Family::Control => control::fill(request, sqe),
        Family::Path => path::fill(request, held, sqe),
        // No ring supports it.
        Family::Copy => {}
    }
}

/// How far a plain call may go.
#[derive(Clone, Copy)]
struct Bounds {
    /// `RWF_NOWAIT` for a read or write that must not wait, or 0.
    nowait: u32,
    /// The bytes that a read or write moves at most.
    most: usize,
}

/// Makes one plain call for the operation from byte `began` on. Returns what the ring would answer: the number of bytes
/// moved, the descriptor opened, or the errno.
fn call(
    target: &Target,
    request: &Request,
    held: &mut Held,
    began: usize,
    bounds: Bounds,
) -> Result<usize, i32> {
    if target.namespace().is_some() {
        return Err(libc::EOPNOTSUPP);
    }
    match request.kind.family() {
        Family::Read | Family::Write => transfer::call(target, request, held, began, bounds),
        Family::Control => control::call(target, request).map(|()| 0),
        Family::Path => path::call(request, held),
        Family::Copy => copy::call(target, request, held, began),
    }
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
