//! What an operation asks for, and how it ended.
//!
//! Invariant: no match over [`Kind`] has a wildcard, so that a new operation does not compile before every place handles it.
//! A new kind that reads, writes or syncs must also be named in [`Kind::is_read`], [`Kind::is_write`] or [`Request::is_sync`].

use linux_raw_sys::general::RWF_DSYNC;

use super::control::{ControlKind, WRITTEN};
use super::path::PathKind;
use crate::latency::OperationKind;
use crate::memory::IoMemory;

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
    /// `op_flags`: `RENAME_…`.
    Rename,
    HardLink,
    Symlink,
    ReadLink,
    /// Sets the permissions.
    SetMode,
    /// `op_flags`: `AT_REMOVEDIR` or 0.
    Remove,
    CreateDir,
    /// Creates a directory and those above it.
    CreateDirs,
    /// Reads the next entries of a directory.
    ReadDir,
    /// Reads the metadata. `op_flags`: `AT_…`.
    Stat,
    /// `want`: the length.
    Copy,
}

/// The families of operations. Computed from the [`Kind`], which has one byte: a kind that contained those of the
/// families would have two, and make each [`Request`] longer by a quarter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Family {
    Read,
    Write,
    /// They change or sync an open file, and move no data.
    Control(ControlKind),
    /// They name paths, and no open file.
    Path(PathKind),
    /// They move data from one file to another.
    Copy,
}

impl Kind {
    #[inline]
    pub(crate) fn family(self) -> Family {
        match self {
            Self::Read | Self::ReadVectored => Family::Read,
            Self::Write | Self::WriteVectored | Self::WriteAtomic => Family::Write,
            Self::Sync => Family::Control(ControlKind::Sync),
            Self::SyncRange => Family::Control(ControlKind::SyncRange),
            Self::Allocate => Family::Control(ControlKind::Allocate),
            Self::Truncate => Family::Control(ControlKind::Truncate),
            Self::Advise => Family::Control(ControlKind::Advise),
            Self::Open => Family::Path(PathKind::Open),
            Self::Rename => Family::Path(PathKind::Rename),
            Self::HardLink => Family::Path(PathKind::HardLink),
            Self::Symlink => Family::Path(PathKind::Symlink),
            Self::ReadLink => Family::Path(PathKind::ReadLink),
            Self::SetMode => Family::Path(PathKind::SetMode),
            Self::Remove => Family::Path(PathKind::Remove),
            Self::CreateDir => Family::Path(PathKind::CreateDir),
            Self::CreateDirs => Family::Path(PathKind::CreateDirs),
            Self::ReadDir => Family::Path(PathKind::ReadDir),
            Self::Stat => Family::Path(PathKind::Stat),
            Self::Copy => Family::Copy,
        }
    }

    /// Returns whether its family is that of reads. Asked several times for each operation, and therefore without the
    /// family, whose match over so many kinds costs about 20 instructions more for each read.
    #[inline]
    pub(crate) fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::ReadVectored)
    }

    /// Returns whether its family is that of writes.
    #[inline]
    pub(crate) fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteVectored | Self::WriteAtomic)
    }

    /// Returns whether it is done in parts, although it moves no data between a file and memory.
    pub(crate) fn is_copy(self) -> bool {
        matches!(self.family(), Family::Copy)
    }

    /// Returns whether it names paths instead of an open file.
    pub(crate) fn names_paths(self) -> bool {
        matches!(self.family(), Family::Path(_))
    }

    #[inline]
    pub(crate) fn moves_data(self) -> bool {
        self.is_read() || self.is_write()
    }

    /// Returns whether it has a form for registered memory. Linux 6.18 refuses atomic writes from registered memory
    /// with EINVAL (`generic_atomic_write_valid`).
    #[inline]
    pub(crate) fn has_fixed_form(self) -> bool {
        self.moves_data() && self != Self::WriteAtomic
    }

    /// Returns the ring's opcode of an operation that moves no data to or from memory. `None` if rings have none, and
    /// for reads and writes, which have several.
    pub(crate) fn opcode(self) -> Option<u8> {
        match self.family() {
            Family::Control(kind) => Some(kind.opcode()),
            Family::Path(kind) => kind.opcode(),
            Family::Read | Family::Write | Family::Copy => None,
        }
    }

    /// Returns the kind for histograms; `None` for one that is not measured.
    pub(crate) fn measured(self) -> Option<OperationKind> {
        match self.family() {
            Family::Read => Some(OperationKind::Read),
            Family::Write => Some(OperationKind::Write),
            Family::Control(ControlKind::Sync | ControlKind::SyncRange) => Some(OperationKind::Sync),
            Family::Control(ControlKind::Allocate | ControlKind::Truncate | ControlKind::Advise) => {
                Some(OperationKind::Other)
            }
            Family::Path(_) | Family::Copy => None,
        }
    }

    /// Returns the operation's name in words.
    pub(crate) fn verb(self, op_flags: u32) -> &'static str {
        match self.family() {
            Family::Read => "read",
            Family::Write if self == Self::WriteAtomic => "atomic write",
            Family::Write => "write",
            Family::Control(kind) => kind.verb(op_flags),
            Family::Path(kind) => kind.verb(op_flags),
            Family::Copy => "copying",
        }
    }
}

/// The parameters of an operation, without the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub kind: Kind,
    /// The operation submitted next waits for this one, and is cancelled if it fails or is short. Set by
    /// [`start_linked`](crate::driver::start_linked) alone.
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

    /// Returns whether a failure means that data was lost which should have become durable: a sync, or a durable write.
    #[inline]
    pub(crate) fn is_sync(&self) -> bool {
        let is_durable = self.synced || self.op_flags & RWF_DSYNC != 0;
        matches!(self.kind, Kind::Sync | Kind::SyncRange) || (self.kind.is_write() && is_durable)
    }

    /// Returns whether the kernel looks up a path for it, for which the rights of a thread count.
    pub(crate) fn looks_up_paths(&self, memory: &IoMemory) -> bool {
        let is_about_open_file = matches!(memory, IoMemory::Paths(paths) if paths.is_about_open_file());
        self.kind.names_paths() && !is_about_open_file
    }

    /// Returns whether a ring's entry can name all of it. Before Linux 6.12 the length of advice has 32 bits there; zeros are
    /// written by several calls.
    #[inline]
    pub(crate) fn fits_an_entry(&self) -> bool {
        match self.kind {
            Kind::Advise => u32::try_from(self.want).is_ok(),
            Kind::Allocate => self.op_flags != WRITTEN,
            _ => true,
        }
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
pub(crate) struct OpResult {
    /// Bytes moved.
    pub done: usize,
    /// 0 after success.
    pub errno: i32,
}
