//! The calls of operations that move no data, where a simulated disk answers instead of the kernel.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;

use linux_raw_sys::general::STATX_BASIC_STATS;

use super::control::{ControlKind, mode};
use super::path::PathKind;
use super::request::{Family, Request};
use crate::memory::{Found, Held, Left, Listing, Paths};
use crate::port::{self, OpenNumber, Port};

/// Makes the call. A file that it opened is kept in `held`.
pub(super) fn call(file: OpenNumber, request: &Request, held: &mut Held) -> Result<usize, i32> {
    let port = port::here().ok_or(libc::EBADF)?;
    let done = match (request.kind.family(), held) {
        (Family::Control(kind), _) => control(port, kind, file, request),
        (Family::Path(kind), Held::Paths(paths)) => on_path(port, kind, request.op_flags, paths),
        (Family::Path(_), _) => Err(libc::EFAULT),
        (Family::Copy | Family::Read | Family::Write, _) => Err(libc::EOPNOTSUPP),
    };
    done.map(|()| 0)
}

fn control(port: &Port, kind: ControlKind, file: OpenNumber, request: &Request) -> Result<(), i32> {
    match kind {
        ControlKind::Sync => (port.sync)(file, request.op_flags != 0),
        ControlKind::SyncRange | ControlKind::Advise => Ok(()),
        ControlKind::Truncate => (port.resize)(file, request.offset),
        ControlKind::Allocate => {
            (port.allocate)(file, mode(request.op_flags).cast_signed(), request.offset, request.want as u64)
        }
    }
}

fn on_path(port: &Port, kind: PathKind, op_flags: u32, paths: &mut Paths) -> Result<(), i32> {
    let path = paths.path().to_bytes();
    let to = paths.to().map_or(b"".as_slice(), |to| to.to_bytes());
    match kind {
        PathKind::Open => {
            let (stand_in, opened) = (port.open)(path, op_flags.cast_signed())?;
            paths.left = Left::Simulated(stand_in, opened);
            Ok(())
        }
        PathKind::Rename => (port.rename)(path, to, op_flags),
        PathKind::HardLink => (port.link)(path, to),
        PathKind::Remove => (port.remove)(path, op_flags != 0),
        PathKind::CreateDir => (port.create_dir)(path),
        PathKind::CreateDirs => (port.create_dirs)(path),
        PathKind::SetMode => (port.status)(paths.from(), path).map(drop),
        PathKind::ReadDir => {
            let entries = (port.list)(path)?.into_iter().map(|(name, is_folder)| Found {
                name: OsString::from_vec(name),
                kind: if is_folder { libc::S_IFDIR } else { libc::S_IFREG },
            });
            paths.left = Left::Listing(Listing::of(entries.collect()));
            Ok(())
        }
        PathKind::Stat => stat(port, paths.from(), path, paths),
        PathKind::Symlink | PathKind::ReadLink => Err(libc::EOPNOTSUPP),
    }
}

fn stat(port: &Port, stand_in: RawFd, path: &[u8], paths: &Paths) -> Result<(), i32> {
    let status = (port.status)(stand_in, path)?;
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
