//! The calls of operations that move no data, where a simulated disk answers instead of the kernel.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;

use linux_raw_sys::general::STATX_BASIC_STATS;

use super::DISCARD;
use super::control::PUNCH_HOLE;
use super::request::{Kind, Request};
use crate::memory::{Found, Held, Left, Listing, Paths};
use crate::sim::{self, OpenNumber};

/// Makes the call. A file that it opened is kept in `held`.
pub(super) fn call(file: OpenNumber, request: &Request, held: &mut Held) -> Result<usize, i32> {
    match request.kind {
        Kind::Sync => sim::sync(file, request.op_flags != 0).map(|()| 0),
        Kind::SyncRange | Kind::Advise => Ok(0),
        Kind::Truncate => sim::resize(file, request.offset).map(|()| 0),
        Kind::Allocate => {
            let mode = if request.op_flags == DISCARD { PUNCH_HOLE } else { request.op_flags };
            sim::allocate(file, mode.cast_signed(), request.offset, request.want as u64).map(|()| 0)
        }
        Kind::Open
        | Kind::Rename
        | Kind::HardLink
        | Kind::Symlink
        | Kind::ReadLink
        | Kind::SetMode
        | Kind::Remove
        | Kind::CreateDir
        | Kind::CreateDirs
        | Kind::ReadDir
        | Kind::Stat => match held {
            Held::Paths(paths) => on_path(request, paths),
            _ => Err(libc::EFAULT),
        },
        Kind::Copy
        | Kind::Read
        | Kind::ReadVectored
        | Kind::Write
        | Kind::WriteVectored
        | Kind::WriteAtomic => Err(libc::EOPNOTSUPP),
    }
}

fn on_path(request: &Request, paths: &mut Paths) -> Result<usize, i32> {
    let path = paths.path().to_bytes();
    let to = paths.to().map_or(b"".as_slice(), |to| to.to_bytes());
    let done = match request.kind {
        Kind::Open => {
            let (stand_in, opened) = sim::open(path, request.op_flags.cast_signed())?;
            paths.left = Left::Simulated(stand_in, opened);
            Ok(())
        }
        Kind::Rename => sim::rename(path, to, request.op_flags),
        Kind::HardLink => sim::link(path, to),
        Kind::Remove => sim::remove(path, request.op_flags != 0),
        Kind::CreateDir => sim::create_dir(path),
        Kind::CreateDirs => sim::create_dirs(path),
        Kind::SetMode => sim::status(paths.from(), path).map(drop),
        Kind::ReadDir => {
            let entries = sim::list(path)?.into_iter().map(|(name, is_folder)| Found {
                name: OsString::from_vec(name),
                kind: if is_folder { libc::S_IFDIR } else { libc::S_IFREG },
            });
            paths.left = Left::Listing(Listing::of(entries.collect()));
            Ok(())
        }
        Kind::Stat => stat(paths.from(), path, paths),
        _ => Err(libc::EOPNOTSUPP),
    };
    done.map(|()| 0)
}

fn stat(stand_in: RawFd, path: &[u8], paths: &Paths) -> Result<(), i32> {
    let status = sim::status(stand_in, path)?;
    let mode = if status.is_folder { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
    let to = paths.stat_address();
    if to.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the room belongs to `paths`, is initialised, and is accessed through this address alone.
    let to = unsafe { &mut *to };
    to.stx_mask = STATX_BASIC_STATS;
    to.stx_mode = mode as u16;
    to.stx_ino = status.inode;
    to.stx_size = status.size;
    to.stx_blocks = status.allocated / 512;
    to.stx_nlink = status.links;
    Ok(())
}
