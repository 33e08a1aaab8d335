//! Examines a file that may be the character device of a namespace.
//!
//! Blocks while the drive carries out two Identify commands. Invariants: every property of a returned namespace is
//! known, and one that may be written is in no other use.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::Waker;

use linux_raw_sys::io_uring::io_uring_op;

use super::device::{Access, CommandLimits, Namespace};
use super::identify::{self, About, Controller, Format};
use crate::descriptor::above_standard;
use crate::driver::refused::{self, Lack};
use crate::driver::target::port_kind::PortKind;
use crate::error::Error;
use crate::ring::{Ring, RingOptions};

/// One command counts its blocks in 16 bits.
const MOST_BLOCKS: u64 = 1 << 16;
/// One range counts its blocks in 32 bits.
const MOST_IN_RANGE: u64 = u32::MAX as u64;
/// The unit in which the kernel counts segments: a page is never split between two.
const PAGE: usize = 4096;

/// Returns the namespace whose character device `file` is; `None` for any other file.
///
/// # Errors
/// `InvalidInput` if it is opened for writing without permission for that; `Unsupported` if commands cannot be sent
/// from here, or the drive reports an unknown property of the namespace; `ResourceBusy` if it is opened for writing and
/// its block device is in use.
pub(crate) fn look(
    file: &fs::File,
    access: Access,
    may_be_written: bool,
) -> Result<Option<Namespace>, Error> {
    let Some(device) = device_of(file) else { return Ok(None) };
    if access.write && !may_be_written {
        return Err(Error::new(io::ErrorKind::InvalidInput, OPENING).because(
            "writing to a namespace, past every file system on it, needs allow_raw_nvme_writes(true)",
        ));
    }
    let asking = |error: io::Error| {
        let why = match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => "before Linux 6.2 this needs CAP_SYS_ADMIN",
            _ => "the drive does not say how the namespace is formatted (Identify)",
        };
        Error::from_io(&error, OPENING).because(why)
    };
    let id = identify::number(file).map_err(asking)?;
    let format = identify::identify(file, id, About::Namespace).map_err(asking)?;
    let controller = identify::identify(file, id, About::Controller).map_err(asking)?;
    let Format { blocks, shift } = Format::read(&format).map_err(not_understood)?;
    let queue = QueueLimits::read(&device, id)?;
    can_send()?;
    let claim = if access.write { Some(claim(&device)?) } else { None };
    let limits = queue.limits(Controller::read(&controller), shift);
    let (most, fixed) = (AtomicUsize::new(limits.most), AtomicBool::new(true));
    Ok(Some(Namespace { id, shift, blocks, access, limits, most, fixed, _claim: claim }))
}

const OPENING: &str = "opening for NVMe commands";

#[cold]
fn not_understood(why: String) -> Error {
    Error::new(io::ErrorKind::Unsupported, OPENING).because(format!("{why}; use its block device"))
}

/// Returns the sysfs directory of the block device that belongs to the character device `file`.
fn device_of(file: &fs::File) -> Option<PathBuf> {
    let facts = file.metadata().ok().filter(|facts| facts.file_type().is_char_device())?;
    let (major, minor) = (rustix::fs::major(facts.rdev()), rustix::fs::minor(facts.rdev()));
    let device = fs::canonicalize(format!("/sys/dev/char/{major}:{minor}")).ok()?;
    let class = fs::canonicalize(device.join("subsystem")).ok()?;
    if class.file_name()? != "nvme-generic" {
        return None;
    }
    // The two have the same numbers: ng0n1 and nvme0n1.
    let numbers = device.file_name()?.to_str()?.strip_prefix("ng")?;
    Some(device.parent()?.join(format!("nvme{numbers}")))
}

/// The limits that the kernel has for the block device.
#[derive(Clone, Copy)]
struct QueueLimits {
    max_hw_sectors_kb: u64,
    max_segments: u64,
    discard_max_hw_bytes: u64,
    write_zeroes_max_bytes: u64,
}

impl QueueLimits {
    fn read(device: &Path, id: u32) -> Result<Self, Error> {
        let text = |name: &str| fs::read_to_string(device.join(name));
        let number = |name: &str| {
            let text = text(name)?;
            text.trim().parse::<u64>().map_err(io::Error::other)
        };
        // A namespace of a kind that the kernel does not know has no block device, or one that it hides.
        if !device.join("queue").exists() || number("hidden").is_ok_and(|hidden| hidden != 0) {
            return Err(not_understood("the kernel does not know this kind of namespace".into()));
        }
        if number("nsid").is_ok_and(|nsid| nsid != u64::from(id)) {
            return Err(not_understood(format!("{} belongs to another namespace", device.display())));
        }
        if text("queue/zoned").is_ok_and(|zoned| zoned.trim() != "none") {
            return Err(not_understood("the namespace is zoned".into()));
        }
        let known = |name: &str| {
            number(name)
                .map_err(|error| Error::from_io(&error, format!("reading {}", device.join(name).display())))
        };
        Ok(Self {
            max_hw_sectors_kb: known("queue/max_hw_sectors_kb")?,
            max_segments: known("queue/max_segments")?,
            // 0 if the drive does not support it, or has a defect that the kernel knows.
            discard_max_hw_bytes: known("queue/discard_max_hw_bytes").unwrap_or(0),
            write_zeroes_max_bytes: known("queue/write_zeroes_max_bytes").unwrap_or(0),
        })
    }

    /// Returns the limits of one command: the smaller of the drive's and the kernel's, in whole blocks.
    fn limits(self, drive: Controller, shift: u32) -> CommandLimits {
        let whole = |bytes: u64, blocks: u64| {
            let bytes = bytes.min(blocks << shift) >> shift << shift;
            usize::try_from(bytes).unwrap_or(usize::MAX >> shift << shift)
        };
        let most = (self.max_hw_sectors_kb << 10).min(drive.most as u64);
        // Data that begins within a page has one segment more.
        let scattered = self.max_segments.saturating_sub(1).max(1) * PAGE as u64;
        let (most, scattered) = (whole(most, MOST_BLOCKS), whole(most.min(scattered), MOST_BLOCKS));
        CommandLimits {
            // Each command must move at least one block.
            most: most.max(1 << shift),
            scattered: scattered.max(1 << shift),
            discard: if drive.discards { whole(self.discard_max_hw_bytes, MOST_IN_RANGE) } else { 0 },
            zeros: if drive.writes_zeros { whole(self.write_zeroes_max_bytes, MOST_BLOCKS) } else { 0 },
        }
    }
}

/// Checks that a ring for commands can be created.
fn can_send() -> Result<(), Error> {
    if let Some(lack) = Lack::forbidden() {
        return Err(lack.into_error());
    }
    let options = RingOptions { entries: 1, ..PortKind::Commands.options(&RingOptions::default()) };
    let old = || {
        Error::new(io::ErrorKind::Unsupported, OPENING)
            .because("this kernel does not accept NVMe commands through io_uring; it needs Linux 5.19")
    };
    match Ring::new(&options, Waker::noop().clone()) {
        Ok(ring) if ring.supports(io_uring_op::IORING_OP_URING_CMD as u8) => Ok(()),
        Ok(_) => Err(old()),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(old()),
        Err(error) => Err(refused::set_up_failed(refused::set_up_errno(&error))),
    }
}

/// Claims the block device: neither it nor a partition of it is mounted or part of a volume, nor can become so while
/// the descriptor is open.
fn claim(device: &Path) -> Result<OwnedFd, Error> {
    let unchecked = |why: String| {
        Error::new(io::ErrorKind::Unsupported, "opening for writing by NVMe commands")
            .because(format!("cannot find out whether the namespace is in use: {why}"))
    };
    let name = device.file_name().unwrap_or_default();
    let node = Path::new("/dev").join(name);
    let number = fs::read_to_string(device.join("dev")).map_err(|error| unchecked(error.to_string()))?;
    // Without O_CREAT the kernel takes O_EXCL on a device as "only if nobody else claims it".
    let block = match fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&node) {
        Ok(block) => block,
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(Error::from_io(&error, "opening for writing by NVMe commands").because(format!(
                "{} is in use (mounted, swap, part of a volume, or claimed by another program)",
                node.display()
            )));
        }
        Err(error) => return Err(unchecked(format!("{}: {error}", node.display()))),
    };
    let facts = block.metadata().map_err(|error| unchecked(error.to_string()))?;
    let found = format!("{}:{}", rustix::fs::major(facts.rdev()), rustix::fs::minor(facts.rdev()));
    if found != number.trim() || !facts.file_type().is_block_device() {
        return Err(unchecked(format!("{} is another device", node.display())));
    }
    above_standard(block.into()).map_err(|errno| unchecked(errno.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVE: Controller = Controller { most: 512 << 10, discards: true, writes_zeros: true };
    const QUEUE: QueueLimits = QueueLimits {
        max_hw_sectors_kb: 1024,
        max_segments: 33,
        discard_max_hw_bytes: u64::MAX,
        write_zeroes_max_bytes: 131_072,
    };

    #[test]
    fn f48_a_command_is_limited_by_the_drive_and_by_the_kernel() {
        let limits = QUEUE.limits(DRIVE, 9);
        let expected = CommandLimits {
            most: 512 << 10,
            scattered: 32 * 4096,
            discard: (u32::MAX as usize) << 9,
            zeros: 131_072,
        };
        assert_eq!(limits, expected);
        let limits = QueueLimits { max_hw_sectors_kb: 127, ..QUEUE }.limits(DRIVE, 12);
        assert_eq!((limits.most, limits.scattered), (124 << 10, 124 << 10), "whole blocks");
        let unlimited = QueueLimits { max_hw_sectors_kb: u64::MAX >> 10, max_segments: 65535, ..QUEUE };
        let limits = unlimited.limits(Controller { most: usize::MAX, ..DRIVE }, 9);
        assert_eq!(limits.most, 65536 << 9, "the number of blocks has 16 bits");
        let tiny = QueueLimits { max_hw_sectors_kb: 4, max_segments: 1, ..QUEUE };
        assert_eq!(tiny.limits(DRIVE, 16).most, 65536, "no less than a block");
        let limits = QUEUE.limits(Controller { discards: false, writes_zeros: false, ..DRIVE }, 9);
        assert_eq!((limits.discard, limits.zeros), (0, 0));
    }

    #[test]
    fn other_files_are_no_namespaces() {
        let access = Access { read: true, write: false };
        for path in ["/dev/null", "/dev/zero", "/proc/self/exe", "/"] {
            let file = fs::File::open(path).unwrap();
            assert!(look(&file, access, false).unwrap().is_none(), "{path}");
        }
    }
}
