//! What the kernel looks at when a thread names a path: its credentials, as far as they can be compared cheaply.
//!
//! Threads of one process may differ in them (`setfsuid`, and raw calls of `setresuid`, `setgroups` or `capset`). Landlock,
//! seccomp filters, namespaces, the root and working directories and the umask are not compared.

use rustix::fs::fstat;
use rustix::process::{Gid, getgroups};
use rustix::thread::{CapabilitySet, capabilities};

/// The rights of a thread on paths.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Rights {
    fsuid: u32,
    fsgid: u32,
    groups: Vec<Gid>,
    capabilities: CapabilitySet,
}

impl Rights {
    /// Returns the rights of the calling thread; `None` if they cannot be found out, for instance for want of descriptors.
    ///
    /// A new pipe belongs to its thread's fsuid and fsgid (`get_pipe_inode`). `setfsuid(-1)` returns them too, but the
    /// filters of Android and of systemd's `~@privileged` kill a process for that call.
    pub(crate) fn of_this_thread() -> Option<Self> {
        let (pipe, _) = std::io::pipe().ok()?;
        let owned = fstat(&pipe).ok()?;
        let (groups, capabilities) = (getgroups().ok()?, capabilities(None).ok()?.effective);
        Some(Self { fsuid: owned.st_uid, fsgid: owned.st_gid, groups, capabilities })
    }

    /// Returns whether the calling thread is known to have these.
    pub(crate) fn are_of_this_thread(&self) -> bool {
        Self::of_this_thread().as_ref() == Some(self)
    }
}
