//! Checks whether the system uses a file or block device, and finds the block device of an NVMe character device.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use super::{Intent, mounts};
use crate::error::{Failure, cant, refuse};
use crate::sys;

/// Refuses a device that is mounted or otherwise in use: through a partition, as swap, or as part of a volume. Refuses a
/// file or device that a loop device shows, and a file that is used as swap.
pub fn check_unused(path: &Path, metadata: &Metadata) -> Result<(), Failure> {
    if let Some(device) = loop_device_over(metadata) {
        let device = device.display();
        let advice =
            format!("unmount that and detach it (losetup --detach {device}), or name another --file");
        return refuse(path, format!("is the backing file of {device}: {advice}"));
    }
    if metadata.is_file() {
        let swaps = std::fs::read("/proc/swaps").unwrap_or_default();
        if is_among_swaps(&swaps, metadata) {
            return refuse(path, "is used as swap: free it (swapoff), or name another --file");
        }
        return Ok(());
    }
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

/// Returns a loop device that shows this file.
fn loop_device_over(metadata: &Metadata) -> Option<PathBuf> {
    std::fs::read_dir("/sys/block").ok()?.filter_map(Result::ok).find_map(|entry| {
        let name = std::fs::read(entry.path().join("loop/backing_file")).ok()?;
        let device = Path::new("/dev").join(entry.file_name());
        // The device knows its file even if the name that it was made with is gone or lies in another mount namespace.
        // Users who may not ask it have only that name.
        let known = File::open(&device).and_then(|device| sys::backing_file(&device)).ok();
        let name = Path::new(OsStr::from_bytes(name.strip_suffix(b"\n").unwrap_or(&name)));
        let [dev, ino, rdev] = known.or_else(|| identity(name))?;
        let is_it = [dev, ino] == [metadata.dev(), metadata.ino()];
        let shares_it = metadata.file_type().is_block_device() && rdev != 0 && overlap(rdev, metadata.rdev());
        (is_it || shares_it).then_some(device)
    })
}

/// Returns whether two numbers are those of one block device, or of a disk and a partition of it.
fn overlap(one: u64, other: u64) -> bool {
    let place = |number: u64| {
        std::fs::canonicalize(format!("/sys/dev/block/{}:{}", major(number), minor(number))).ok()
    };
    let nested = |one: PathBuf, other: PathBuf| one.starts_with(&other) || other.starts_with(&one);
    one == other || place(one).zip(place(other)).is_some_and(|(one, other)| nested(one, other))
}

/// Returns whether the text of /proc/swaps lists the file.
fn is_among_swaps(text: &[u8], metadata: &Metadata) -> bool {
    let lines = text.split(|&byte| byte == b'\n').skip(1);
    let names = lines.filter_map(|line| line.split(u8::is_ascii_whitespace).next());
    let mut files =
        names.map(mounts::unescape).filter_map(|name| identity(Path::new(OsStr::from_bytes(&name))));
    files.any(|[dev, ino, _]| [dev, ino] == [metadata.dev(), metadata.ino()])
}

/// Returns device and inode of the file that a path leads to, and its number if it is a device.
fn identity(path: &Path) -> Option<[u64; 3]> {
    let metadata = std::fs::metadata(path).ok()?;
    Some([metadata.dev(), metadata.ino(), metadata.rdev()])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_file_is_found_by_any_of_its_names() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let [swap, link, other] = ["swap file", "link", "other"].map(|name| folder.path().join(name));
        std::fs::write(&swap, "").expect("write");
        std::fs::write(&other, "").expect("write");
        std::fs::hard_link(&swap, &link).expect("link");
        let name = swap.to_string_lossy().replace(' ', "\\040");
        let text = format!("Filename\tType\tSize\n/dev/none  partition\t8\t0\t-2\n{name}  file\t8\t0\t-3\n");
        let is_swap = |path: &Path| is_among_swaps(text.as_bytes(), &path.metadata().expect("metadata"));
        assert_eq!([&swap, &link, &other].map(|path| is_swap(path)), [true, true, false]);
    }
}
