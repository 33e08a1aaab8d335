//! Operations on paths that block no thread of the program: rename, link and remove files, create, list and sync
//! directories, read and change metadata. [`OpenOptions::open`](crate::OpenOptions::open), which is one of them, opens a file.
//!
//! These operations may take long: a cold directory is read from the disk, and the blocks of a large file are freed one
//! extent after another, which may take seconds. A loop with other tasks, or connections to serve, must not call them
//! directly. Here they are futures, like the operations of a [`File`], and can be added to a [`Queue`](crate::Queue) or
//! a [`Batch`](crate::Batch).
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let (new, old) = (folder.path().join("table.new"), folder.path().join("table"));
//! use ringfile::{File, fs};
//! ringfile::block_on(async {
//!     // Replace a file so that after a crash there is either the old one or the new one.
//!     let file = File::create(&new).await?;
//!     file.write_at(b"content".to_vec(), 0).await?;
//!     file.sync_all().await?;
//!     fs::rename(&new, &old).await?;
//!     fs::sync_dir(folder.path()).await?;
//!     assert_eq!(fs::metadata(&old).await?.size, 7);
//!     fs::remove_file(&old).await
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! # How they are carried out
//!
//! They go through the calling thread's own ring if it has one with the operation (opening and metadata since Linux 5.6,
//! renaming and removing since 5.11, creating directories and links since 5.15), otherwise to a
//! [worker](crate::Route::Workers). No ring reads links and directories, sets permissions, or creates a
//! directory together with those above it: workers do that. Opening a cached path by a ring takes about as long as the
//! plain call. The kernel passes everything else to one of its threads, which costs 5 to 60 µs more, as a worker does: if
//! paths are known to be cached and files to be small, [`std::fs`] is cheaper. Routes of files and
//! [`set_default_route`](crate::set_default_route) do not apply here.
//!
//! A relative path starts at the working directory that the process has when the operation is carried out. Each
//! operation allocates a few hundred bytes for its paths. Files are opened with `O_CLOEXEC`. In a forked child the
//! operations are plain calls, which block.
//!
//! **Closing still blocks.** The thread that closes the last descriptor of a removed file frees its blocks: remove a
//! large file while nothing has it open, or free its blocks before, in steps, with [`File::set_len`] or with holes
//! ([`File::allocate`] and [`AllocateMode::PunchHole`]).
//!
//! # Rights
//!
//! Threads of one process may differ in their credentials. A path is looked up with those of the thread that first polls
//! the operation, runs or starts its batch, submits its queue, or adds it to a [`SharedQueue`](crate::SharedQueue). On the
//! thread's own ring they are those that it has when it next submits: await an operation before you change them. A worker
//! carries an operation out only if it was started with the same fsuid, fsgid, groups and capabilities. **If workers have
//! others, the thread makes the call itself, which blocks it.** Operations on open files go anywhere.
//!
//! Landlock, seccomp filters, namespaces (`setns`), the root, the working directory (`unshare(CLONE_FS)`) and the umask are
//! not compared. In a worker they are those of the thread that started it: use [`std::fs`] in threads that differ in them.
//!
//! # Dropping and cancelling
//!
//! An operation starts when its future is first polled. Dropping the future cancels the operation if neither the kernel
//! nor a worker has begun it; otherwise it is carried out. A file that was opened for a dropped future is closed. As elsewhere, leaving
//! a loop waits for operations in flight.
//!
//! # Errors
//!
//! An [`Error`] has the errno of the system call, the path, and what was being done. `InvalidInput` for a path that contains a
//! NUL byte.

mod change;
mod metadata;
mod read_dir;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

pub use crate::driver::{Alignment, AtomicLimits};
pub use crate::file::{Advice, AllocateMode, Durable, Next, Pieces, RangeSync};
use change::{change, change_of_two};
pub use change::{hard_link, read_link, symlink};
pub use metadata::{FileType, Metadata};
pub use read_dir::{DirEntry, ReadDir, read_dir};

use crate::driver::Kind;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::file::op::{Op, OperationFuture};
use crate::file::{File, OpenOptions};
use crate::memory::Paths;

/// Permission bits of a directory that is created; the umask applies.
const DIRECTORY: u32 = 0o777;

/// Renames a file or a directory (`rename`), and replaces a file at the new path, in one step. Other processes always
/// see one or the other. After a crash this is true only if the directory was [synced](sync_dir).
///
/// # Errors
/// Those of `rename(2)`: `EXDEV` for another file system, `ENOENT`, `ENOTEMPTY`. Nothing has changed if it fails. The
/// error's path is `from`; its text names both.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let (from, to) = (folder.path().join("a"), folder.path().join("b"));
/// std::fs::write(&from, "content")?;
/// ringfile::block_on(ringfile::fs::rename(&from, &to))?;
/// assert_eq!(std::fs::read(&to)?, b"content");
/// # Ok(())
/// # }
/// ```
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Op<'static, ()> {
    change_of_two(Kind::Rename, 0, from.as_ref(), to.as_ref())
}

/// Renames a file or a directory if nothing has the new path yet (`renameat2` with `RENAME_NOREPLACE`), in one step: of
/// several renames to one path, one succeeds.
///
/// # Errors
/// `EEXIST` if `to` exists; `EINVAL` on file systems that have no such rename (NFS, some FUSE servers). Otherwise those of
/// [`rename`]; nothing has changed if it fails.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let (from, to) = (folder.path().join("a"), folder.path().join("b"));
/// use ringfile::fs;
/// std::fs::write(&from, "new")?;
/// std::fs::write(&to, "old")?;
/// let refused = ringfile::block_on(fs::rename_no_replace(&from, &to)).unwrap_err();
/// assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists);
/// assert_eq!(std::fs::read(&to)?, b"old");
/// # Ok(())
/// # }
/// ```
pub fn rename_no_replace(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Op<'static, ()> {
    change_of_two(Kind::Rename, libc::RENAME_NOREPLACE, from.as_ref(), to.as_ref())
}

/// Exchanges the files or directories at two paths (`renameat2` with `RENAME_EXCHANGE`), in one step: other processes
/// never see a path without a file. They may differ in kind.
///
/// # Errors
/// `ENOENT` if one of them does not exist; `EINVAL` on file systems that have no such rename (NFS, some FUSE servers).
/// Otherwise those of [`rename`]; nothing has changed if it fails.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let (one, other) = (folder.path().join("a"), folder.path().join("b"));
/// std::fs::write(&one, "1")?;
/// std::fs::write(&other, "2")?;
/// ringfile::block_on(ringfile::fs::rename_exchange(&one, &other))?;
/// assert_eq!((std::fs::read(&one)?, std::fs::read(&other)?), (b"2".to_vec(), b"1".to_vec()));
/// # Ok(())
/// # }
/// ```
pub fn rename_exchange(one: impl AsRef<Path>, other: impl AsRef<Path>) -> Op<'static, ()> {
    change_of_two(Kind::Rename, libc::RENAME_EXCHANGE, one.as_ref(), other.as_ref())
}

/// Removes a file (`unlink`), or a symbolic link itself. If nothing has the file open, its blocks are free when
/// the future is ready.
///
/// # Errors
/// Those of `unlink(2)`: `ENOENT`, `EISDIR` for a directory, `EACCES`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("segment");
/// std::fs::write(&path, vec![7; 1 << 20])?;
/// ringfile::block_on(ringfile::fs::remove_file(&path))?;
/// assert!(!path.exists());
/// # Ok(())
/// # }
/// ```
pub fn remove_file(path: impl AsRef<Path>) -> Op<'static, ()> {
    change(Kind::Remove, 0, path.as_ref(), 0)
}

/// Removes an empty directory (`rmdir`).
///
/// # Errors
/// Those of `rmdir(2)`: `ENOTEMPTY`, `ENOTDIR`, `ENOENT`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("shard");
/// use ringfile::fs;
/// ringfile::block_on(async {
///     fs::create_dir(&path).await?;
///     fs::remove_dir(&path).await
/// })?;
/// assert!(!path.exists());
/// # Ok(())
/// # }
/// ```
pub fn remove_dir(path: impl AsRef<Path>) -> Op<'static, ()> {
    change(Kind::Remove, libc::AT_REMOVEDIR.cast_unsigned(), path.as_ref(), 0)
}

/// Creates a directory (`mkdir`) with mode `0o777`, to which the umask applies. Its parent must exist.
///
/// # Errors
/// Those of `mkdir(2)`: `EEXIST`, `ENOENT`, `ENOSPC`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("shard");
/// ringfile::block_on(ringfile::fs::create_dir(&path))?;
/// assert!(path.is_dir());
/// # Ok(())
/// # }
/// ```
pub fn create_dir(path: impl AsRef<Path>) -> Op<'static, ()> {
    change(Kind::CreateDir, 0, path.as_ref(), DIRECTORY)
}

/// Creates a directory, and those above it that do not exist (`mkdir`), with mode `0o777`, to which the umask applies. If
/// it exists, also as a symbolic link to a directory, nothing is done. Several of these may run at once.
///
/// # Errors
/// Those of `mkdir(2)`: `EEXIST` if something else has the path, or a symbolic link above it leads
/// nowhere, `ENOTDIR` if a file is above it, `ENOSPC`. Directories
/// that were created before the failure, or before it was cancelled, stay.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("table/year=2026/month=11");
/// ringfile::block_on(ringfile::fs::create_dir_all(&path))?;
/// assert!(path.is_dir());
/// # Ok(())
/// # }
/// ```
pub fn create_dir_all(path: impl AsRef<Path>) -> Op<'static, ()> {
    change(Kind::CreateDirs, 0, path.as_ref(), DIRECTORY)
}

/// Sets the permissions of the file or directory at a path (`chmod`), following symbolic links. The umask does not apply.
///
/// # Errors
/// Those of `chmod(2)`: `EPERM` for the file of another user, `ENOENT`, `EROFS`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("key");
/// use std::{fs::Permissions, os::unix::fs::PermissionsExt};
/// std::fs::write(&path, "secret")?;
/// ringfile::block_on(ringfile::fs::set_permissions(&path, Permissions::from_mode(0o600)))?;
/// assert_eq!(std::fs::metadata(&path)?.permissions().mode() & 0o777, 0o600);
/// # Ok(())
/// # }
/// ```
pub fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> Op<'static, ()> {
    change(Kind::SetMode, 0, path.as_ref(), permissions.mode())
}

/// Reads the metadata of the file at a path (`statx`), following symbolic links.
///
/// # Errors
/// Those of `statx(2)`: `ENOENT`, `ENOTDIR`, `EACCES`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// std::fs::write(&path, "content")?;
/// let metadata = ringfile::block_on(ringfile::fs::metadata(&path))?;
/// assert_eq!((metadata.size, metadata.file_type), (7, ringfile::fs::FileType::File));
/// # Ok(())
/// # }
/// ```
pub fn metadata(path: impl AsRef<Path>) -> Op<'static, Metadata> {
    metadata_with(0, path.as_ref(), Paths::new(path.as_ref()))
}

/// Reads the metadata of the file at a path (`statx`); of a symbolic link, that of the link itself.
///
/// # Errors
/// Those of `statx(2)`: `ENOENT`, `ENOTDIR`, `EACCES`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let metadata = ringfile::block_on(ringfile::fs::symlink_metadata("/proc/self/exe"))?;
/// assert_eq!(metadata.file_type, ringfile::fs::FileType::Symlink);
/// # Ok(())
/// # }
/// ```
pub fn symlink_metadata(path: impl AsRef<Path>) -> Op<'static, Metadata> {
    metadata_with(libc::AT_SYMLINK_NOFOLLOW, path.as_ref(), Paths::new(path.as_ref()))
}

fn metadata_with(flags: i32, path: &Path, paths: Option<Box<Paths>>) -> Op<'static, Metadata> {
    Op::new(OperationFuture::on_path(Kind::Stat, flags.cast_unsigned(), path, paths.map(Paths::with_stat)))
}

/// Reads the metadata of an open file, as [`metadata`] does by path: also of a file that was removed. It can be added to
/// a batch or a queue; [`File::metadata`] is a plain call.
///
/// # Errors
/// Those of `statx(2)`, such as `EIO` and `ESTALE`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// std::fs::write(&path, "content")?;
/// let file = ringfile::File::open_blocking(&path)?;
/// std::fs::remove_file(&path)?;
/// let metadata = ringfile::block_on(ringfile::fs::metadata_of(&file))?;
/// assert_eq!((metadata.size, metadata.links), (7, 0));
/// # Ok(())
/// # }
/// ```
pub fn metadata_of(file: &File) -> Op<'static, Metadata> {
    let paths = Paths::of_file(Arc::clone(file.target()) as _);
    metadata_with(libc::AT_EMPTY_PATH, file.path().unwrap_or(Path::new("")), Some(paths))
}

/// Syncs a directory, so that creating, renaming and removing files in it survives a crash.
///
/// # Errors
/// Those of `open(2)` and `fsync(2)`; `ENOTDIR` if it is not a directory.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// ringfile::block_on(ringfile::fs::sync_dir(std::env::temp_dir()))?;
/// # Ok(())
/// # }
/// ```
pub async fn sync_dir(path: impl AsRef<Path>) -> Result<()> {
    let mut options = OpenOptions::new();
    let directory = options.read(true).custom_flags(libc::O_DIRECTORY).open(path).await?;
    directory.sync_all().await
}
