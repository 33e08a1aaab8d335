//! A namespace of an NVMe drive, opened by its character device, with the limits of its commands.
//!
//! Knows what was found at opening ([`look`](look())) and what the kernel has refused since. Invariant: `most` only shrinks, so
//! an answer never counts as more bytes than were submitted.

mod device;
#[cfg(fuzzing)]
pub mod fuzzing;
mod identify;
mod look;
mod status;

pub(crate) use device::{Access, Namespace};
pub(crate) use look::look;
pub(crate) use status::{Status, errno_of};

#[cfg(test)]
pub(crate) use device::testing;
