//! Checks whether the system uses a block device, and finds the block device of an NVMe character device.

use std::fs::{Metadata, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};

use super::{Intent, mounts};
use crate::error::{Failure, cant, refuse};

/// Refuses a device that is mounted or otherwise in use: through a partition, as swap, or as part of a volume.
pub fn check_unused(path: &Path, metadata: &Metadata) -> Result<(), Failure> {
    let number = format!("{}:{}", major(metadata.rdev()), minor(metadata.rdev()));
    if let Some(mount) = mounts::all().iter().find(|mount| mount.device == number) {
        let point = mount.point.display();
        return refuse(path, format!("is mounted on {point}: unmount it, or name a --file in it"));
    }
    // On a block device, O_EXCL without O_CREAT fails with EBUSY if the device is in use (man 2 open). That includes
    // mounts in other namespaces, partitions and holders.
    match OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            refuse(path, "is in use (mounted, swap, or part of a volume): free it, or name another --file")
        }
        Err(error) => Err(cant("open", path, &error, super::ANOTHER)),
    }
}

/// Returns the block device of the NVMe namespace whose character device `path` is (`/dev/ng0n1`); `None` for any other
/// file.
pub fn block_device_of(path: &Path, metadata: &Metadata) -> Option<PathBuf> {
    if !metadata.file_type().is_char_device() {
        return None;
    }
    let number = format!("{}:{}", major(metadata.rdev()), minor(metadata.rdev()));
    let device = std::fs::canonicalize(Path::new("/sys/dev/char").join(number)).ok()?;
    let class = std::fs::canonicalize(device.join("subsystem")).ok()?;
    let numbers = device.file_name()?.to_str()?.strip_prefix("ng")?;
    let block = path.canonicalize().ok()?.with_file_name(format!("nvme{numbers}"));
    (class.file_name()? == "nvme-generic" && block.exists()).then_some(block)
}

/// Refuses a namespace whose block device is in use, or that cannot be measured as asked.
pub fn check_namespace(path: &Path, device: &Path, intent: Intent) -> Result<(), Failure> {
    if !intent.direct {
        return refuse(path, "takes NVMe commands, past the page cache: add --direct");
    }
    let metadata =
        std::fs::metadata(device).map_err(|error| cant("look at", device, &error, super::ANOTHER))?;
    check_unused(device, &metadata)
}
