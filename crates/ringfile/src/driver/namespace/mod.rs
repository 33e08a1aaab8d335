//! A namespace of an NVMe drive, opened by its character device, with the limits of its commands.
//!
//! Knows what was found at opening ([`look`]) and what the kernel has refused since. Invariant: `most` only shrinks, so
//! an answer never counts as more bytes than were submitted.

mod identify;
mod look;
mod status;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub(crate) use look::{Access, look};
pub(crate) use status::Status;

pub(crate) struct Namespace {
    pub id: u32,
    /// Bytes in a block: 2 to the power of this.
    pub shift: u32,
    /// The size of the namespace in blocks.
    pub blocks: u64,
    pub access: Access,
    pub limits: Limits,
    /// The most bytes that one command can move, as far as is known.
    most: AtomicUsize,
    /// Whether the kernel accepts registered memory.
    fixed: AtomicBool,
    /// The claimed block device: nobody can mount it while this is open for writing.
    _claim: Option<OwnedFd>,
}

/// Returns the errno of a failed operation, whose number may encode a drive's [`Status`].
pub(crate) fn errno_of(errno: i32) -> i32 {
    Status::of_errno(errno).map_or(errno, Status::errno)
}

/// The limits of one command, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// The limit for data in contiguous pages.
    pub most: usize,
    /// The limit for data in scattered pages, of which the kernel also limits the number of segments.
    pub scattered: usize,
    /// The limit for deallocating; 0 if the drive does not support it.
    pub discard: usize,
    /// The limit for writing zeros; 0 if the drive does not support it.
    pub zeros: usize,
}

impl Namespace {
    /// Returns its size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.blocks << self.shift
    }

    pub(crate) fn block(&self) -> usize {
        1 << self.shift
    }

    /// Returns the largest number of bytes that one command moves.
    pub(in crate::driver) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Returns whether to name registered memory by its index.
    #[inline]
    pub(in crate::driver) fn takes_fixed(&self) -> bool {
        self.fixed.load(Ordering::Relaxed)
    }

    /// Returns whether to retry in a simpler form an operation with `left` bytes left, which the kernel has refused
    /// `attempts` times in a row.
    ///
    /// The kernel returns `EINVAL` for memory in more segments than the drive supports, and before Linux 6.12 for
    /// registered memory of which an operation uses a part (`blk_rq_map_user_bvec`). Two refusals are allowed, since the
    /// refused submission may be older than another operation's discovery of that. A drive's status is not an errno.
    #[cold]
    pub(in crate::driver) fn asks_less(&self, errno: i32, left: usize, attempts: u8) -> bool {
        if errno != libc::EINVAL || attempts > 2 {
            return false;
        }
        if attempts == 1 && left > self.limits.scattered {
            self.most.fetch_min(self.limits.scattered, Ordering::Relaxed);
        } else {
            self.fixed.store(false, Ordering::Relaxed);
        }
        true
    }
}

#[cfg(test)]
pub(in crate::driver) mod testing {
    use super::*;

    pub(in crate::driver) const BOTH: Access = Access { read: true, write: true };
    pub(in crate::driver) const LIMITS: Limits =
        Limits { most: 65536, scattered: 16384, discard: 1 << 20, zeros: 1 << 20 };

    /// 1000 blocks of 4096 bytes.
    pub(in crate::driver) fn namespace(access: Access) -> Namespace {
        Namespace {
            id: 3,
            shift: 12,
            blocks: 1000,
            access,
            limits: LIMITS,
            most: AtomicUsize::new(LIMITS.most),
            fixed: AtomicBool::new(true),
            _claim: None,
        }
    }

    #[test]
    fn f48_what_the_kernel_refuses_is_asked_for_in_another_way_twice_at_most() {
        let namespace = namespace(BOTH);
        assert!(!namespace.asks_less(libc::EIO, 65536, 1));
        assert!(!namespace.asks_less(Status::to_errno(2), 65536, 1), "the drive's answer");
        assert!(namespace.asks_less(libc::EINVAL, 65536, 1));
        assert_eq!((namespace.takes_fixed(), namespace.most()), (true, 16384));
        assert!(namespace.asks_less(libc::EINVAL, 65536, 2));
        assert_eq!((namespace.takes_fixed(), namespace.most()), (false, 16384));
        assert!(!namespace.asks_less(libc::EINVAL, 65536, 3));
        assert!(namespace.asks_less(libc::EINVAL, 4096, 1), "it may have been submitted before");
    }
}
