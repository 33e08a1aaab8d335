//! Registers memory before the first operation uses it.

use ringfile_buffer::internal::{Region, regions};

use super::counts::add_to_counts;
use super::refused::{Lack, after_fork};
use super::state::{Driver, with};
use crate::error::Error;
use crate::memory::RegisteredMemory;
use ringfile_buffer::internal::event;

const REGISTERING: &str = "registering memory with io_uring";

/// Registers memory with io_uring now, and pins its pages, which otherwise the first operation on each GiB does: for 1 GiB it
/// takes tens of milliseconds. Also says whether it is registered, where an operation goes on without.
///
/// The memory is pinned once for the process, and each ring gets a share of that at its first operation, which is quick. Before
/// Linux 6.13, each ring pins it: then this does it for the ring of the calling thread alone, and only as long as that
/// thread lives. Makes a ring for the thread if it has none. Blocks for as long as the kernel needs; does no I/O.
///
/// Once the kernel has refused a piece of memory it is not asked again: after raising the limit, make another
/// `RegisteredMemory` of it.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let cache = ringfile::RegisteredMemory::new(vec![0_u8; 1 << 20]);
/// if let Err(error) = ringfile::register_now(&cache) {
///     eprintln!("I/O on the cache will work, but take more time: {error}");
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errno with which the kernel refuses: `ENOMEM` if `RLIMIT_MEMLOCK` is too low. `Unsupported` in a forked child, and where
/// the environment forbids io_uring; where there is no ring, the reason. What was registered before the error stays so.
pub fn register_now(memory: &RegisteredMemory) -> Result<(), Error> {
    // This creates the thread's driver if it has none.
    add_to_counts(|_| {});
    let ending = || Err(Error::from_errno(libc::EBUSY, REGISTERING).because("this thread is ending"));
    let result = with(|driver| driver.register_now(regions(memory))).unwrap_or_else(ending);
    event::emit_deferred();
    result
}

impl Driver {
    fn register_now(&mut self, regions: &[Region]) -> Result<(), Error> {
        if self.shared.is_inherited() {
            return Err(after_fork());
        }
        if self.rings.is_none() {
            self.rings = Some(self.make_rings().map_err(Lack::into_error)?);
        }
        let Some(rings) = &mut self.rings else { return Ok(()) };
        for region in regions {
            let registered = rings.main.buffers.register_now(region);
            registered.map_err(|why| Error::from_errno(why.errno(), REGISTERING).because(why.to_string()))?;
        }
        Ok(())
    }
}
