//! The reason why registering memory was refused, kept for warnings and `refused_registration`.
//!
//! It is derived from the errno and from what was requested; no kernel version is compared. The last refusal of the
//! process is one atomic number, so that a fork needs no lock.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The reason why memory was not registered with io_uring. Its text names the cause, and what to do about it, if
/// anything.
///
/// See [`refused_registration`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrationRefused {
    what: What,
    errno: i32,
}

/// The kinds of request to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A table with empty places for memory to be registered in.
    Table = 1,
    /// Memory for a place in the table.
    Memory,
    /// A place in the table, which has none left.
    Place,
}

/// The last refusal: [`What`] as a number, and the errno; 0 if there was none.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns why io_uring last refused to register memory in this process, on any thread; `None` if it never did.
///
/// I/O on such memory continues unregistered: [`Metrics::refused_registrations`](crate::metrics::Metrics::refused_registrations)
/// counts the refusals, and the first one causes a warning through `tracing`. Neither blocks nor allocates.
///
/// ```
/// if let Some(refused) = ringfile::buf::refused_registration() {
///     println!("memory is not registered: {refused}");
/// }
/// ```
#[must_use]
pub fn refused_registration() -> Option<RegistrationRefused> {
    let last = LAST.load(Ordering::Relaxed);
    let what =
        [What::Table, What::Memory, What::Place].into_iter().find(|what| *what as u64 == last >> 32)?;
    Some(RegistrationRefused { what, errno: last as u32 as i32 })
}

impl RegistrationRefused {
    /// Returns the refusal for an answer of the kernel.
    pub(crate) fn new(what: What, error: &io::Error) -> Self {
        Self { what, errno: error.raw_os_error().unwrap_or(0) }
    }

    /// Stores it as the last refusal of the process.
    pub(crate) fn note(self) {
        LAST.store((self.what as u64) << 32 | u64::from(self.errno as u32), Ordering::Relaxed);
    }

    /// Returns the kernel's errno.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.errno
    }
}

impl fmt::Display for RegistrationRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.what, self.errno) {
            (What::Place, _) => f.write_str("all places for registered memory are taken: use fewer, larger pools"),
            (_, libc::ENOMEM) => f.write_str("RLIMIT_MEMLOCK leaves no room: raise it (ulimit -l)"),
            (_, libc::EPERM | libc::EACCES | libc::ENOSYS) => {
                write!(f, "io_uring_register is not allowed here, perhaps by a seccomp filter (errno {})", self.errno)
            }
            (What::Table, libc::EINVAL) => f.write_str(
                "this kernel has no sparse tables of registered memory (IORING_RSRC_REGISTER_SPARSE, since Linux \
                 5.19)",
            ),
            (What::Memory, libc::EOPNOTSUPP | libc::EFAULT) => {
                write!(f, "this kernel does not register memory of this kind (errno {})", self.errno)
            }
            (What::Table | What::Memory, errno) => {
                write!(f, "io_uring_register fails: {}", io::Error::from_raw_os_error(errno))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_its_cause() {
        let text = |what, errno| RegistrationRefused { what, errno }.to_string();
        for what in [What::Table, What::Memory] {
            assert!(text(what, libc::ENOMEM).contains("RLIMIT_MEMLOCK"));
            assert!(text(what, libc::EPERM).contains("seccomp"));
            assert!(text(what, libc::EBUSY).contains("os error 16"));
        }
        let old = text(What::Table, libc::EINVAL);
        assert!(old.contains("this kernel has no sparse tables") && !old.contains("MEMLOCK"), "{old}");
        assert!(text(What::Memory, libc::EOPNOTSUPP).contains("of this kind"));
        assert!(text(What::Place, libc::ENOSPC).contains("places"));
    }

    #[test]
    fn the_last_refusal_is_kept_whole() {
        let error = io::Error::from_raw_os_error(libc::EINVAL);
        for what in [What::Table, What::Memory, What::Place] {
            let refused = RegistrationRefused::new(what, &error);
            refused.note();
            assert_eq!(refused_registration(), Some(refused));
        }
        assert_eq!(RegistrationRefused::new(What::Table, &error).errno(), libc::EINVAL);
    }
}
