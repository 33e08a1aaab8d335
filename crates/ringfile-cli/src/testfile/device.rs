//! Block devices: whether the system uses one.

use std::fs::{Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::sys::stat::{major, minor};

use super::mounts;
use crate::error::{Failure, errno_text, usage};

/// Refuses a device that is mounted, or that the system holds in another way: through one of its partitions,
/// as swap, as part of a volume.
pub fn check_unused(path: &Path, metadata: &Metadata) -> Result<(), Failure> {
    let number = format!("{}:{}", major(metadata.rdev()), minor(metadata.rdev()));
    if let Some(mount) = mounts::all().iter().find(|mount| mount.device == number) {
        return usage(format!(
            "{} is mounted on {}: unmount it, or name a --file in there",
            path.display(),
            mount.point.display()
        ));
    }
    // Without O_CREAT the kernel takes O_EXCL on a device as "only if nobody else claims it", which covers what
    // is mounted in another namespace, partitions and holders.
    match OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => usage(format!(
            "{} is in use (mounted, swap, or part of a volume): free it, or name another --file",
            path.display()
        )),
        Err(error) => {
            usage(format!("can't open {}: {}; name another --file", path.display(), errno_text(&error)))
        }
    }
}
