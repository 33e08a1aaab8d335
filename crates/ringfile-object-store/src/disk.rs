//! The calls of the store that wait for the file system: those of the kernel, or in a simulation (feature `sim`) those of
//! [`ringfile::fs`].
//!
//! Only this file and [`Store::open`](crate::store::Store::open) know which. Invariant: outside of a simulation, each of
//! these futures is ready at its first poll, for which it waits as a system call does. So a change of names, which is three to
//! ten such calls, goes to a thread for blocking work once, by [`blocking`]; each call of `ringfile::fs` would go to another
//! thread by itself.

use std::ffi::OsString;
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::FutureExt;
use ringfile::fs::{FileType, Metadata};
use ringfile::internal::above_standard;
use ringfile::{File, OpenOptions};
use rustix::fs::OFlags;

/// How many symbolic links a path may lead through, as in the kernel.
const MOST_LINKS: usize = 40;

/// Local file systems on which one inode is one file, whichever descriptor reads it, and on which each change of a file or
/// folder changes its time: ext2 to 4, XFS, Btrfs, F2FS (include/uapi/linux/magic.h). A FUSE server may show each
/// descriptor the content that the object had when it was opened, and some file systems give two files the same inode
/// number.
const EXACT_INODES: [u32; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// Returns whether the calling thread runs a simulation.
pub(crate) fn is_simulated() -> bool {
    #[cfg(feature = "sim")]
    return ringfile::sim::Disk::current().is_some();
    #[cfg(not(feature = "sim"))]
    false
}

/// Does one or the other, and waits for it.
async fn either<T, F: Future<Output = ringfile::Result<T>>>(
    simulated: impl FnOnce() -> F,
    real: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if is_simulated() { Ok(simulated().await?) } else { real() }
}

// ---- Threads ----

/// Runs the future that `make` returns, also if the future of this call is dropped meanwhile; in tokio, on a thread for
/// blocking work.
pub(crate) async fn blocking<T, F>(make: impl FnOnce() -> F + Send + 'static) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + 'static,
{
    #[cfg(feature = "sim")]
    if is_simulated() {
        return ringfile::spawn(make()).await?;
    }
    match tokio::runtime::Handle::try_current() {
        Ok(tokio) => tokio.spawn_blocking(|| wait(make())).await.map_err(Error::other)?,
        Err(_) => wait(make()),
    }
}

/// Starts the future that `make` returns, as [`blocking`] does, and does not wait for it to end.
pub(crate) fn in_background<F>(make: impl FnOnce() -> F + Send + 'static)
where
    F: Future<Output = ()> + 'static,
{
    #[cfg(feature = "sim")]
    if is_simulated() {
        return drop(ringfile::spawn(make()));
    }
    match tokio::runtime::Handle::try_current() {
        Ok(tokio) => drop(tokio.spawn_blocking(|| make().now_or_never())),
        Err(_) => _ = make().now_or_never(),
    }
}

/// Returns the error of a store that is used outside of its simulation.
pub(crate) fn outside() -> Error {
    Error::other("a store of a simulation was used outside of it")
}

/// Waits for a future of this file's calls, outside of a simulation.
pub(crate) fn wait<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    future.now_or_never().unwrap_or_else(|| Err(outside()))
}

/// Waits for a time.
pub(crate) async fn pause(time: Duration) {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return ringfile::sim::sleep(time).await;
    }
    std::thread::sleep(time);
}

/// Returns a number that was never used before: of a simulation, so that its seed repeats it.
pub(crate) fn new_number() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    #[cfg(feature = "sim")]
    if let Some(disk) = ringfile::sim::Disk::current() {
        return disk.random_below(u64::MAX);
    }
    // In a forked child too, which has a copy of the random state.
    RandomState::new().hash_one(std::process::id())
}

// ---- Names ----

/// Returns whether the folder no longer exists, or an object has its name by now.
pub(crate) fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Renames a file, and replaces another one.
pub(crate) async fn rename(from: &Path, to: &Path) -> Result<()> {
    either(|| ringfile::fs::rename(from, to), || fs::rename(from, to)).await
}

/// Renames a file if nothing has the new name. Fails with `InvalidInput` on file systems without such a rename, and where
/// `renameat2` is refused or missing.
pub(crate) async fn rename_no_replace(from: &Path, to: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    let rename = |from: &Path, to: &Path| renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE);
    let real = || match rename(from, to) {
        // A call that is not refused finds no file with an empty name.
        Err(Errno::NOSYS | Errno::PERM) if rename(Path::new(""), Path::new("")) != Err(Errno::NOENT) => {
            Err(Errno::INVAL.into())
        }
        renamed => Ok(renamed?),
    };
    either(|| ringfile::fs::rename_no_replace(from, to), real).await
}

pub(crate) async fn hard_link(from: &Path, to: &Path) -> Result<()> {
    either(|| ringfile::fs::hard_link(from, to), || fs::hard_link(from, to)).await
}

pub(crate) async fn remove_file(path: &Path) -> Result<()> {
    either(|| ringfile::fs::remove_file(path), || fs::remove_file(path)).await
}

/// Removes a file, in a simulation soon after this returns.
pub(crate) fn remove_file_soon(path: PathBuf) {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return drop(ringfile::spawn(async move { drop(remove_file(&path).await) }));
    }
    let _ = fs::remove_file(path);
}

pub(crate) async fn remove_dir(path: &Path) -> Result<()> {
    either(|| ringfile::fs::remove_dir(path), || fs::remove_dir(path)).await
}

pub(crate) async fn create_dir_all(path: &Path) -> Result<()> {
    either(|| ringfile::fs::create_dir_all(path), || fs::create_dir_all(path)).await
}

/// Returns a path without symbolic links.
pub(crate) async fn canonicalize(path: &Path) -> Result<PathBuf> {
    if !is_simulated() {
        return fs::canonicalize(path);
    }
    let parts = |path: &Path| path.components().rev().map(|part| PathBuf::from(part.as_os_str())).collect();
    let (mut left, mut found, mut links): (Vec<PathBuf>, _, _) = (parts(path), PathBuf::from("/"), 0);
    while let Some(part) = left.pop() {
        if part.as_os_str() == ".." {
            found.pop();
            continue;
        }
        found.push(part);
        if symlink_metadata(&found).await?.file_type == FileType::Symlink && links < MOST_LINKS {
            links += 1;
            left.append(&mut parts(&ringfile::fs::read_link(&found).await?));
            found.pop();
        }
    }
    Ok(found)
}

/// Returns the path of a store's folder, which must exist.
pub(crate) fn root(path: &Path) -> Result<PathBuf> {
    if !is_simulated() {
        return fs::canonicalize(path);
    }
    let path = Path::new("/").join(path);
    folders_only().open_blocking(&path)?;
    Ok(path)
}

/// The names in a folder, in no order.
pub(crate) enum Names {
    Real(fs::ReadDir),
    Simulated(ringfile::fs::ReadDir),
}

impl Names {
    /// Begins to read a folder; in a simulation, its first name fails where this would.
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        if is_simulated() {
            return Ok(Self::Simulated(ringfile::fs::read_dir(folder)));
        }
        fs::read_dir(folder).map(Self::Real)
    }

    /// Returns the next name. A folder that is gone has none.
    pub(crate) async fn next(&mut self) -> Option<Result<OsString>> {
        let name = match self {
            Self::Real(names) => names.next()?.map(|entry| entry.file_name()),
            Self::Simulated(names) => names.next().await?.map(|entry| entry.name).map_err(Error::from),
        };
        if name.as_ref().is_err_and(is_gone) { None } else { Some(name) }
    }
}

// ---- Metadata ----

pub(crate) async fn metadata(path: &Path) -> Result<Metadata> {
    either(|| ringfile::fs::metadata(path), || Ok((&fs::metadata(path)?).into())).await
}

/// Returns the metadata of a symbolic link itself.
pub(crate) async fn symlink_metadata(path: &Path) -> Result<Metadata> {
    either(|| ringfile::fs::symlink_metadata(path), || Ok((&fs::symlink_metadata(path)?).into())).await
}

pub(crate) async fn metadata_of(file: &File) -> Result<Metadata> {
    either(|| ringfile::fs::metadata_of(file), || Ok((&file.metadata()?).into())).await
}

/// Returns whether a file, while it is open, shares its device and inode with no other, and its metadata show each change.
pub(crate) fn has_exact_inodes(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|facts| EXACT_INODES.contains(&(facts.f_type as u32)))
}

// ---- Open files ----

/// Opens a file without blocking, if the kernel supports that (Linux 5.12) and the directory entries are cached.
pub(crate) fn open_cached(path: &Path) -> Option<Result<std::fs::File>> {
    use rustix::fs::{CWD, Mode, ResolveFlags, openat2};
    use rustix::io::Errno;
    // Opening a FIFO would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Ok(file) => Some(opened_file(file.into())),
        Err(Errno::AGAIN | Errno::NOSYS | Errno::PERM | Errno::INVAL) => None,
        Err(error) => Some(Err(error.into())),
    }
}

/// Opens the object at a path to sync it.
pub(crate) async fn open_to_sync(path: &Path) -> Result<File> {
    if is_simulated() {
        return open(path, OpenOptions::new().read(true)).await;
    }
    Ok(OpenOptions::new().dup(false).from_std(open_to_read(path)?)?)
}

pub(crate) fn open_to_read(path: &Path) -> Result<std::fs::File> {
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let opened = match std::fs::OpenOptions::new().read(true).custom_flags(nonblock).open(path) {
        // If it is not a FIFO, another process has a lease on the file, and this open waits until the lease is released.
        Err(error) if error.kind() == ErrorKind::WouldBlock => std::fs::File::open(path),
        opened => opened,
    };
    opened.and_then(opened_file)
}

/// Makes the file for reads of one that was opened with O_NONBLOCK. With that flag, io_uring calls file systems without
/// non-blocking reads on the submitting thread, one read after the other (`io_file_get_flags` in io_uring/io_uring.c).
fn opened_file(file: std::fs::File) -> Result<std::fs::File> {
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(above_standard(file.into())?.into())
}

fn folders_only() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::DIRECTORY.bits().cast_signed()).dup(false);
    options
}

pub(crate) async fn open_folder(path: &Path) -> Result<File> {
    open(path, &folders_only()).await
}

pub(crate) async fn open(path: &Path, options: &OpenOptions) -> Result<File> {
    either(|| options.open(path), || Ok(options.open_blocking(path)?)).await
}

pub(crate) async fn sync(file: &File) -> Result<()> {
    let real = || Ok(rustix::io::retry_on_intr(|| rustix::fs::fsync(file))?);
    either(|| file.sync_all(), real).await
}
