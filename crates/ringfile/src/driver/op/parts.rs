//! What the entries and calls of several families need, besides the request and the buffer.

use crate::driver::target::timing::Timed;

/// One submission moves at most this much: the length field has 32 bits, and the kernel stops at 2 GiB less a page.
pub(crate) const MOST_AT_ONCE: usize = 1 << 30;

/// The addresses of a vectored operation's parts.
pub(super) type Addresses = Vec<libc::iovec>;

/// One range of a Dataset Management command, as the drive reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub attributes: u32,
    pub blocks: u32,
    pub first: u64,
}

/// What few operations need besides a slot: memory that a submission entry points to besides the operation's buffers, kept
/// until the answer, and the time.
#[derive(Default)]
pub(crate) struct SlotParts {
    /// The addresses of a vectored operation's parts.
    pub(super) addresses: Addresses,
    /// The range that a namespace deallocates.
    pub(super) ranges: Vec<Range>,
    /// When the operation began, if it is timed.
    pub timed: Option<Timed>,
}

// SAFETY: the addresses are those of the slot's buffer, which may itself move to another thread.
unsafe impl Send for SlotParts {}

/// The [`SlotParts`] of an operation, created when they are first needed.
pub(crate) struct PartsOf<'a> {
    pub all: &'a mut Vec<SlotParts>,
    /// The slot of the operation.
    pub index: u32,
}

impl<'a> PartsOf<'a> {
    /// Lends it, to use it again.
    pub(crate) fn reborrow(&mut self) -> PartsOf<'_> {
        PartsOf { all: self.all, index: self.index }
    }

    #[inline]
    pub(crate) fn get(self) -> &'a mut SlotParts {
        let index = self.index as usize;
        if self.all.len() <= index {
            self.all.resize_with(index + 1, SlotParts::default);
        }
        &mut self.all[index]
    }
}

/// How far a plain call may go.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// `RWF_NOWAIT` for a read or write that must not wait, or 0.
    pub nowait: u32,
    /// The bytes that a read or write moves at most.
    pub most: usize,
}

pub(super) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Returns whether a filter refuses this call with these flags, or the kernel lacks it, rather than the file's file system: if not,
/// a descriptor that does not exist is `EBADF`. Called after `EPERM`, `ENOSYS`, or the `EOPNOTSUPP` into which glibc turns the
/// latter.
#[cold]
pub(super) fn is_refused(call: libc::c_long, flags: i32) -> bool {
    let (no_file, nothing) = (-1_i64, 0_i64);
    // SAFETY: without a file, the kernel uses none of these.
    let answer =
        unsafe { libc::syscall(call, no_file, nothing, nothing, nothing, nothing, i64::from(flags)) };
    answer < 0 && last_errno() != libc::EBADF
}
