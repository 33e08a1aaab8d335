//! The calls of the store that wait for the file system: those of the kernel, or in a simulation (feature `sim`) those of
//! [`ringfile::fs`].
//!
//! Only this file and [`Store::open`](crate::store::Store::open) know which. Invariant: outside of a simulation, each of
//! these futures is ready at its first poll, for which it waits as a system call does. So a change of names, which is three to
//! ten such calls, goes to a thread for blocking work once, by [`blocking`]; each call of `ringfile::fs` would go to another
//! thread by itself.

use std::fs;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::FutureExt;
use ringfile::fs::{FileType, Metadata};
use ringfile::{File, OpenOptions};
use rustix::fs::OFlags;

/// How many symbolic links a path may lead through, as in the kernel.
const MOST_LINKS: usize = 40;

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

/// Renames a file, and replaces another one.
pub(crate) async fn rename(from: &Path, to: &Path) -> Result<()> {
    either(|| ringfile::fs::rename(from, to), || fs::rename(from, to)).await
}

/// Renames a file if nothing has the new name. Fails with `InvalidInput` on file systems without such a rename.
pub(crate) async fn rename_no_replace(from: &Path, to: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let real = || Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?);
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
    folders_only().open(&path)?;
    Ok(path)
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

// ---- Open files ----

fn folders_only() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::DIRECTORY.bits().cast_signed()).one_descriptor(true);
    options
}

pub(crate) async fn open_folder(path: &Path) -> Result<File> {
    open(path, &folders_only()).await
}

pub(crate) async fn open(path: &Path, options: &OpenOptions) -> Result<File> {
    either(|| ringfile::fs::open(path, options), || Ok(options.open(path)?)).await
}

pub(crate) async fn sync(file: &File) -> Result<()> {
    let real = || Ok(rustix::io::retry_on_intr(|| rustix::fs::fsync(file))?);
    either(|| file.sync_all(), real).await
}
