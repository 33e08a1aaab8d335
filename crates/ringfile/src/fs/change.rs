//! Operations that change what is at paths, and symbolic links.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

use crate::driver::Kind;
use crate::error::Result;
use crate::file::File;
use crate::file::op::{Op, OperationFuture, Output, Product};
use crate::memory::Paths;

/// Creates a change of what is at a path, which uses these permission bits if it sets any.
pub(super) fn change(kind: Kind, op_flags: u32, path: &Path, mode: u32) -> Op<'static, ()> {
    let paths = Paths::new(path).map(|paths| paths.with_mode(mode));
    Op::new(OperationFuture::on_path(kind, op_flags, path, paths))
}

/// Creates a change that names two paths.
pub(super) fn change_of_two(kind: Kind, op_flags: u32, path: &Path, to: &Path) -> Op<'static, ()> {
    let paths = Paths::new(path).and_then(|paths| paths.and(to));
    Op::new(OperationFuture::on_path(kind, op_flags, path, paths))
}

/// Where a symbolic link points.
impl Output for PathBuf {
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
        product.memory.paths()?.take_link()
    }
}

/// Gives the file at the path `from` the name `to` too (`link`). A symbolic link at `from` gets the name itself. After a
/// crash the name is there only if its directory was [synced](super::sync_dir).
///
/// # Errors
/// Those of `link(2)`: `EEXIST` if `to` exists, which stays as it is; `EXDEV` for another file system, `ENOENT`, `EPERM`
/// for a directory and for file systems without hard links. The error's path is `from`; its text names both.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let (segment, kept) = (folder.path().join("segment"), folder.path().join("kept"));
/// std::fs::write(&segment, "content")?;
/// ringfile::block_on(ringfile::fs::hard_link(&segment, &kept))?;
/// std::fs::remove_file(&segment)?;
/// assert_eq!(std::fs::read(&kept)?, b"content");
/// # Ok(())
/// # }
/// ```
pub fn hard_link(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Op<'static, ()> {
    change_of_two(Kind::HardLink, 0, from.as_ref(), to.as_ref())
}

/// Creates a symbolic link at the path `link`, which points to `target` (`symlink`). The target need not exist; a relative
/// one begins at the link's directory.
///
/// # Errors
/// Those of `symlink(2)`: `EEXIST` if `link` exists, `ENOENT` if its directory does not. The error's path is `link`; its
/// text names both.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let current = folder.path().join("current");
/// use ringfile::fs;
/// ringfile::block_on(async {
///     fs::symlink("version-7", &current).await?;
///     assert_eq!(fs::read_link(&current).await?.to_str(), Some("version-7"));
///     Ok::<_, std::io::Error>(())
/// })?;
/// # Ok(())
/// # }
/// ```
pub fn symlink(target: impl AsRef<Path>, link: impl AsRef<Path>) -> Op<'static, ()> {
    change_of_two(Kind::Symlink, 0, link.as_ref(), target.as_ref())
}

/// Reads where a symbolic link points (`readlink`), and returns it as it was given to [`symlink`].
///
/// # Errors
/// Those of `readlink(2)`: `EINVAL` if the path is not a symbolic link, `ENOENT`, `EACCES`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let program = ringfile::block_on(ringfile::fs::read_link("/proc/self/exe"))?;
/// assert_eq!(program, std::env::current_exe()?);
/// # Ok(())
/// # }
/// ```
pub fn read_link(path: impl AsRef<Path>) -> Op<'static, PathBuf> {
    let path = path.as_ref();
    Op::new(OperationFuture::on_path(Kind::ReadLink, 0, path, Paths::new(path)))
}
