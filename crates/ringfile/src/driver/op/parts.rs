//! What the entries and calls of several families need, besides the request and the buffer.

use crate::driver::timing::Timed;

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
pub(crate) struct Parts {
    /// The addresses of a vectored operation's parts.
    pub(super) addresses: Addresses,
    /// The range that a namespace deallocates.
    pub(super) ranges: Vec<Range>,
    /// When the operation began, if it is timed.
    pub timed: Option<Timed>,
}

// SAFETY: the addresses are those of the slot's buffer, which may itself move to another thread.
unsafe impl Send for Parts {}

/// The [`Parts`] of an operation, created when they are first needed.
pub(crate) struct PartsOf<'a> {
    pub all: &'a mut Vec<Parts>,
    /// The slot of the operation.
    pub index: u32,
}

impl<'a> PartsOf<'a> {
    /// Lends it, to use it again.
    pub(crate) fn reborrow(&mut self) -> PartsOf<'_> {
        PartsOf { all: self.all, index: self.index }
    }

    #[inline]
    pub(crate) fn get(self) -> &'a mut Parts {
        let index = self.index as usize;
        if self.all.len() <= index {
            self.all.resize_with(index + 1, Parts::default);
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
