//! The namespace, and what is known about its limits.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The access mode of a file. The kernel does not check it for a privileged process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    pub read: bool,
    pub write: bool,
}

pub(crate) struct Namespace {
    pub id: u32,
    /// Bytes in a block: 2 to the power of this.
    pub shift: u32,
    /// The size of the namespace in blocks.
    pub blocks: u64,
    pub access: Access,
    pub limits: CommandLimits,
    /// The most bytes that one command can move, as far as is known.
    pub(super) most: AtomicUsize,
    /// Whether the kernel accepts registered memory.
    pub(super) fixed: AtomicBool,
    /// The claimed block device: nobody can mount it while this is open for writing.
    pub(super) _claim: Option<OwnedFd>,
}

/// The limits of one command, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CommandLimits {
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
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Returns whether to name registered memory by its index.
    #[inline]
    pub(crate) fn takes_fixed(&self) -> bool {
        self.fixed.load(Ordering::Relaxed)
    }

    /// Returns whether to retry in a simpler form an operation with `left` bytes left, which the kernel has refused
    /// `attempts` times in a row.
    ///
    /// The kernel returns `EINVAL` for memory in more segments than the drive supports, and before Linux 6.12 for
    /// registered memory of which an operation uses a part (`blk_rq_map_user_bvec`). Allows two refusals: the refused
    /// submission may have been made before another operation found that out. A drive's status is not an errno.
    #[cold]
    pub(crate) fn asks_less(&self, errno: i32, left: usize, attempts: u8) -> bool {
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
pub(crate) mod testing {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use crate::driver::target::namespace::device::{Access, CommandLimits, Namespace};
    use crate::driver::target::namespace::status::Status;

    pub(crate) const BOTH: Access = Access { read: true, write: true };
    pub(crate) const LIMITS: CommandLimits =
        CommandLimits { most: 65536, scattered: 16384, discard: 1 << 20, zeros: 1 << 20 };

    /// 1000 blocks of 4096 bytes.
    pub(crate) fn namespace(access: Access) -> Namespace {
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
    fn f48_a_refused_submission_is_retried_in_another_form_at_most_twice() {
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
