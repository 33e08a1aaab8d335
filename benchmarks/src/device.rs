//! What the kernel reports about the file under test: the counters of its device, and how much of it is cached.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfile_cli::shared::check_unused;

/// Returns whether the metadata are those of a block device.
pub fn is_block_device(metadata: &Metadata) -> bool {
    metadata.file_type().is_block_device()
}

/// The kernel's count of reads that a block device has completed since boot.
#[derive(Debug)]
pub struct ReadCounter {
    stat: PathBuf,
    /// Whether the file is the device itself, which nothing else should be reading.
    pub exclusive: bool,
}

impl ReadCounter {
    /// Returns the counter of the device, or of the device that holds the file; `None` if there is no such device
    /// (tmpfs, overlayfs, network).
    pub fn of(path: &Path) -> io::Result<Option<ReadCounter>> {
        let metadata = path.metadata()?;
        let exclusive = is_block_device(&metadata);
        let device = if exclusive { metadata.rdev() } else { metadata.dev() };
        let stat = format!("/sys/dev/block/{}:{}/stat", libc::major(device), libc::minor(device));
        let stat = PathBuf::from(stat);
        Ok(stat.exists().then_some(ReadCounter { stat, exclusive }))
    }

    /// Returns the count now.
    pub fn read(&self) -> io::Result<u64> {
        self.field(0)
    }

    /// Returns how many bytes these reads have read.
    pub fn bytes(&self) -> io::Result<u64> {
        // The kernel counts sectors of 512 bytes, whatever the device's sector size is.
        Ok(self.field(2)? * 512)
    }

    fn field(&self, index: usize) -> io::Result<u64> {
        let text = std::fs::read_to_string(&self.stat)?;
        text.split_whitespace()
            .nth(index)
            .and_then(|field| field.parse().ok())
            .ok_or_else(|| io::Error::other(format!("{} holds {text:?}, not counters", self.stat.display())))
    }
}

/// Opens a file or device for filling. One that the system uses is refused: mounted, behind a loop device, used for swap,
/// or otherwise claimed.
pub fn open_for_fill(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true);
    match path.metadata() {
        Ok(metadata) if is_block_device(&metadata) || metadata.is_file() => {
            check_unused(path, &metadata).map_err(|failure| io::Error::other(failure.to_string()))?;
            if is_block_device(&metadata) {
                // O_EXCL without O_CREAT claims a device until it is closed. The kernel refuses a device that something
                // else has claimed.
                options.custom_flags(libc::O_EXCL);
            }
        }
        Ok(_) => {
            return Err(io::Error::other(format!("{} is neither a file nor a block device", path.display())));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            options.create_new(true);
        }
        Err(error) => return Err(error),
    }
    options.open(path).map_err(|error| {
        let what = if error.raw_os_error() == Some(libc::EBUSY) { " is in use" } else { "" };
        io::Error::new(error.kind(), format!("{}{what}: {error}", path.display()))
    })
}

/// Returns the length of a file or block device in bytes.
pub fn length(file: &File) -> io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    let mut file = file;
    file.seek(SeekFrom::End(0))
}

/// Reads the first `size` bytes once, which puts them into the page cache.
pub fn read_in(file: &File, size: u64) -> io::Result<()> {
    let mut chunk = vec![0; 1 << 20];
    let mut at = 0;
    while at < size {
        let len = chunk.len().min((size - at) as usize);
        file.read_exact_at(&mut chunk[..len], at)?;
        at += len as u64;
    }
    Ok(())
}

/// Drops what the page cache holds of a file, after its first `size` bytes were in it. A virtual machine may have given
/// memory that was free for seconds back to its host, and each page of it then costs several µs when it is first used: a run
/// would be ten times slower after one that used no cache than after one that did.
pub fn drop_cache(file: &File, size: u64) -> io::Result<()> {
    file.sync_data()?;
    read_in(file, size)?;
    ringfile_cli::shared::drop_cache(file)
}

/// Returns the share of the first `size` bytes in the page cache, 0 to 1, by mincore(2). Unlike cachestat(2) it sees
/// the pages of the file behind an overlayfs file.
pub fn resident_share(file: &File, size: u64) -> io::Result<f64> {
    let len = size as usize;
    // SAFETY: sysconf reads a constant.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let mut resident = vec![0_u8; len.div_ceil(page)];
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
    let map = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the range is the mapping just made, and `resident` has a byte for each of its pages.
    let result = unsafe { libc::mincore(map, len, resident.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    // SAFETY: the mapping was made above and nothing refers to it.
    unsafe { libc::munmap(map, len) };
    if result != 0 {
        return Err(error);
    }
    let pages = resident.iter().filter(|&&state| state & 1 != 0).count();
    Ok(pages as f64 / resident.len() as f64)
}
