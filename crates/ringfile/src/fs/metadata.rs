//! Metadata of a file: converts the kernel's record to the library's types.

use std::borrow::Cow;
use std::os::unix::fs::MetadataExt;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use linux_raw_sys::general::{STATX_BTIME, STATX_DIOALIGN};

use crate::driver::{Alignment, AtomicLimits};
use crate::error::Result;
use crate::file::File;
use crate::file::op::{OperationFuture, Output, Product};

/// The kind of file at a path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link. [`metadata`](super::metadata) follows them, [`symlink_metadata`](super::symlink_metadata) does not.
    Symlink,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharacterDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// None of these.
    Unknown,
}

impl FileType {
    pub(super) fn of(mode: u32) -> Self {
        match mode & libc::S_IFMT {
            libc::S_IFREG => Self::File,
            libc::S_IFDIR => Self::Directory,
            libc::S_IFLNK => Self::Symlink,
            libc::S_IFBLK => Self::BlockDevice,
            libc::S_IFCHR => Self::CharacterDevice,
            libc::S_IFIFO => Self::Fifo,
            libc::S_IFSOCK => Self::Socket,
            _ => Self::Unknown,
        }
    }
}

/// Metadata of a file: the result of [`metadata`](super::metadata).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Metadata {
    /// Size in bytes; 0 for devices.
    pub size: u64,
    /// The kind of file.
    pub file_type: FileType,
    /// The `st_mode` of `stat(2)`: the kind of file, and in the lowest 12 bits (`0o7777`) the permissions.
    pub mode: u32,
    /// Number of hard links: paths that the file has.
    pub links: u32,
    /// The owner's user number.
    pub uid: u32,
    /// The owning group's number.
    pub gid: u32,
    /// The inode number, unique within the file system.
    pub inode: u64,
    /// The file system, as the `st_dev` of `stat(2)`.
    pub device: u64,
    /// Allocated storage, in bytes: less than the size if the file has holes.
    pub allocated: u64,
    /// Time of the last access, if the file system keeps it.
    pub accessed: SystemTime,
    /// Time of the last change of the content, in the file system's resolution, nanoseconds at best.
    pub modified: SystemTime,
    /// Time of the last change of content or metadata.
    pub changed: SystemTime,
    /// Time of creation, if the file system records it.
    pub created: Option<SystemTime>,
    /// The multiples that direct I/O requires. `None` if the kernel (before Linux 6.1) or the file system does not
    /// report them, or if the file does not support direct I/O.
    pub direct: Option<Alignment>,
}

impl Output for Metadata {
    type Result = Result<Self>;
    type File<'f> = Cow<'f, File>;
    type State<'f> = ();

    fn poll<'f>(
        operation: &mut OperationFuture<Cow<'f, File>>,
        (): &mut (),
        context: &mut Context<'_>,
    ) -> Poll<Result<Self>> {
        operation.poll_product(context, Self::take)
    }

    fn take(product: &mut Product) -> Option<Self> {
        product.memory.paths()?.take_stat().map(|stat| Self::new(&stat))
    }
}

impl Metadata {
    fn new(stat: &libc::statx) -> Self {
        let mode = u32::from(stat.stx_mode);
        let tells = |what| stat.stx_mask & what != 0;
        let does_direct = tells(STATX_DIOALIGN) && stat.stx_dio_offset_align != 0;
        let atomic = AtomicLimits::of_statx(
            stat.stx_atomic_write_unit_min,
            stat.stx_atomic_write_unit_max,
            stat.stx_atomic_write_segments_max,
        );
        Self {
            size: stat.stx_size,
            file_type: FileType::of(mode),
            mode,
            links: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            inode: stat.stx_ino,
            device: libc::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            allocated: stat.stx_blocks.saturating_mul(512),
            accessed: time(&stat.stx_atime),
            modified: time(&stat.stx_mtime),
            changed: time(&stat.stx_ctime),
            created: tells(STATX_BTIME).then(|| time(&stat.stx_btime)),
            direct: does_direct.then_some(Alignment {
                bytes: stat.stx_dio_offset_align as usize,
                memory: stat.stx_dio_mem_align as usize,
                atomic,
            }),
        }
    }
}

/// Takes what std has read of a file. It does not tell the alignment of direct I/O.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use ringfile::fs::{FileType, Metadata};
/// let program = Metadata::from(&std::fs::metadata(std::env::current_exe()?)?);
/// assert_eq!(program.file_type, FileType::File);
/// # Ok(())
/// # }
/// ```
impl From<&std::fs::Metadata> for Metadata {
    fn from(of_std: &std::fs::Metadata) -> Self {
        Self {
            size: of_std.size(),
            file_type: FileType::of(of_std.mode()),
            mode: of_std.mode(),
            links: of_std.nlink().try_into().unwrap_or(u32::MAX),
            uid: of_std.uid(),
            gid: of_std.gid(),
            inode: of_std.ino(),
            device: of_std.dev(),
            allocated: of_std.blocks().saturating_mul(512),
            accessed: of_std.accessed().unwrap_or(UNIX_EPOCH),
            modified: of_std.modified().unwrap_or(UNIX_EPOCH),
            changed: time_of(of_std.ctime(), of_std.ctime_nsec() as u32),
            created: of_std.created().ok(),
            direct: None,
        }
    }
}

fn time(time: &libc::statx_timestamp) -> SystemTime {
    time_of(time.tv_sec, time.tv_nsec)
}

/// Converts a time. The nanoseconds are added to the second, even if that is before 1970. A time outside the range of
/// `SystemTime` becomes the epoch.
fn time_of(seconds: i64, nanos: u32) -> SystemTime {
    let since = Duration::from_secs(seconds.unsigned_abs());
    let whole = if seconds < 0 { UNIX_EPOCH.checked_sub(since) } else { UNIX_EPOCH.checked_add(since) };
    let exact = whole.and_then(|whole| whole.checked_add(Duration::from_nanos(nanos.into())));
    exact.unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> libc::statx {
        let paths = crate::memory::Paths::new(std::path::Path::new("x")).unwrap();
        paths.with_stat().take_stat().unwrap()
    }

    #[test]
    fn every_field_comes_over_in_its_unit() {
        let mut stat = record();
        stat.stx_mask = STATX_BTIME | STATX_DIOALIGN;
        (stat.stx_size, stat.stx_blocks, stat.stx_ino) = (5000, 16, 42);
        stat.stx_mode = (libc::S_IFREG | 0o4640) as u16;
        (stat.stx_nlink, stat.stx_uid, stat.stx_gid) = (3, 1000, 100);
        (stat.stx_dio_mem_align, stat.stx_dio_offset_align) = (4, 512);
        stat.stx_mtime.tv_sec = 1;
        stat.stx_mtime.tv_nsec = 999_999_999;
        stat.stx_atime.tv_sec = -2;
        stat.stx_atime.tv_nsec = 250_000_000;
        (stat.stx_atomic_write_unit_min, stat.stx_atomic_write_unit_max) = (4096, 65536);
        stat.stx_atomic_write_segments_max = 1;
        let metadata = Metadata::new(&stat);
        assert_eq!((metadata.size, metadata.allocated, metadata.inode), (5000, 8192, 42));
        assert_eq!((metadata.file_type, metadata.mode), (FileType::File, libc::S_IFREG | 0o4640));
        assert_eq!((metadata.links, metadata.uid, metadata.gid), (3, 1000, 100));
        assert_eq!(metadata.modified, UNIX_EPOCH + Duration::new(1, 999_999_999));
        assert_eq!(metadata.accessed, UNIX_EPOCH - Duration::from_millis(1750));
        assert_eq!(metadata.created, Some(UNIX_EPOCH));
        assert_eq!(
            metadata.direct,
            Some(Alignment { bytes: 512, memory: 4, atomic: AtomicLimits::of_statx(4096, 65536, 1) })
        );
    }

    #[test]
    fn metadata_that_the_kernel_does_not_report_is_none() {
        let metadata = Metadata::new(&record());
        assert_eq!((metadata.created, metadata.direct), (None, None));
        assert_eq!(metadata.file_type, FileType::Unknown);
        let mut cannot = record();
        cannot.stx_mask = STATX_DIOALIGN;
        assert_eq!(Metadata::new(&cannot).direct, None, "0 says that it can't do direct I/O");
    }

    #[test]
    fn what_std_has_read_comes_over_in_the_same_units() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 5000]).unwrap();
        let read = crate::block_on(crate::fs::metadata(file.path())).unwrap();
        let of_std = Metadata::from(&std::fs::metadata(file.path()).unwrap());
        assert_eq!(of_std, Metadata { direct: None, ..read });
    }

    #[test]
    fn times_beyond_the_clock_do_not_panic() {
        let mut stat = record();
        stat.stx_ctime.tv_sec = i64::MIN;
        stat.stx_mtime.tv_sec = i64::MAX;
        stat.stx_mtime.tv_nsec = u32::MAX;
        let _ = Metadata::new(&stat);
    }
}
