//! Registers memory before the first operation uses it.

use std::io::ErrorKind;

use ringfile_buffer::internal::{event, fork, regions};

use super::refused::{Lack, after_fork};
use super::turn::counts::ring_features;
use crate::error::Error;
use crate::memory::RegisteredMemory;
use crate::ring::{can_clone, register_now};

const REGISTERING: &str = "registering memory with io_uring";

/// Registers memory with io_uring now, and pins its pages, which otherwise the first operation on each GiB does: for 1 GiB it
/// takes tens of milliseconds. Also says whether it is registered, where an operation goes on without.
///
/// The memory is pinned once for the process, until it is dropped, and each ring gets a share of that at its first operation,
/// which is quick. Before Linux 6.13 there is nothing to do in advance: each ring pins the memory for itself. Blocks for as
/// long as the kernel needs; does no I/O.
///
/// Once the kernel has refused a piece of memory it is not asked again: after raising the limit, make another
/// `RegisteredMemory` of it.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let cache = ringfile::RegisteredMemory::new(vec![0_u8; 1 << 20]);
/// if let Err(error) = ringfile::buf::register(&cache) {
///     eprintln!("I/O on the cache will work, but take more time: {error}");
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errno with which the kernel refuses: `ENOMEM` if `RLIMIT_MEMLOCK` is too low. `Unsupported` before Linux 6.13, in a
/// child that was forked after its parent had registered memory, and where the environment forbids io_uring; where no ring can
/// be made, the reason. What was registered before the error stays so until the memory is dropped.
pub fn register(memory: &RegisteredMemory) -> Result<(), Error> {
    if let Some(lack) = Lack::forbidden() {
        return Err(lack.into_error());
    }
    if !can_clone() {
        // Known once there was a ring.
        ring_features()?;
    }
    let unsupported = |why| Error::new(ErrorKind::Unsupported, REGISTERING).because(why);
    if !can_clone() {
        return Err(unsupported(
            "before Linux 6.13, each ring pins the memory for itself at its first operation",
        ));
    }
    for region in regions(memory) {
        match register_now(region) {
            Ok(true) => {}
            Ok(false) if fork::is_child() => return Err(after_fork()),
            Ok(false) => {
                return Err(unsupported("the process has no ring that others could take their share from"));
            }
            Err(why) => {
                event::emit_deferred();
                return Err(Error::from_errno(why.errno(), REGISTERING).because(why.to_string()));
            }
        }
    }
    Ok(())
}
