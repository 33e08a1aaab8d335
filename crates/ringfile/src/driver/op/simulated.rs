//! The calls of operations that move no data to or from memory, where a simulated disk answers instead of the kernel.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStringExt;

use linux_raw_sys::general::STATX_BASIC_STATS;

use super::control::{ControlKind, mode};
use super::copy::MOST;
use super::path::PathKind;
use super::request::{Family, Request};
use crate::memory::{Destination, Found, Held, Left, Listing, Paths};
use crate::port::{self, OpenNumber, Port};

/// Makes the call from byte `began` on. A file that it opened is kept in `held`.
pub(super) fn call(file: OpenNumber, request: &Request, held: &mut Held, began: usize) -> Result<usize, i32> {
    let port = port::here().ok_or(libc::EBADF)?;
    let done = match (request.kind.family(), held) {
        (Family::Control(kind), _) => control(port, kind, file, request),
        (Family::Path(kind), Held::Paths(paths)) => on_path(port, kind, request.op_flags, paths),
        (Family::Copy, Held::Destination(to)) => return copy(port, file, request, to, began),
        (Family::Path(_) | Family::Copy, _) => Err(libc::EFAULT),
        // They do not come here.
        (Family::Read | Family::Write, _) => Err(libc::EINVAL),
    };
    done.map(|()| 0)
}

fn copy(
    port: &Port,
    file: OpenNumber,
    request: &Request,
    to: &mut Destination,
    began: usize,
) -> Result<usize, i32> {
    let into = to.file().as_raw_fd();
    if began == 0 {
        to.end = (port.begin_copy)(file, request.offset, into, to.offset, request.want as u64)?;
    }
    let (offset, at) = (request.offset + began as u64, to.offset + began as u64);
    let left = to.end.saturating_sub(offset).min((request.want.min(MOST) - began) as u64);
    (port.copy)(file, offset, into, at, left as usize)
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
            let (stand_in, opened) = (port.open)(path, op_flags.cast_signed(), paths.mode)?;
            paths.left = Left::Simulated(stand_in, opened);
            Ok(())
        }
        PathKind::Rename => (port.rename)(path, to, op_flags),
        PathKind::HardLink => (port.link)(path, to),
        PathKind::Remove => (port.remove)(path, op_flags != 0),
        PathKind::Symlink => (port.symlink)(to, path),
        PathKind::ReadLink => {
            paths.left = Left::Link(OsString::from_vec((port.read_link)(path)?).into());
            Ok(())
        }
        PathKind::CreateDir => (port.create_dir)(path, paths.mode),
        PathKind::CreateDirs => (port.create_dirs)(path, paths.mode),
        PathKind::SetMode => (port.set_mode)(path, paths.mode),
        PathKind::ReadDir => {
            let found = |(name, kind)| Found { name: OsString::from_vec(name), kind };
            let entries = (port.list)(path)?.into_iter().map(found);
            paths.left = Left::Listing(Listing::of(entries.collect()));
            Ok(())
        }
        PathKind::Stat => stat(port, paths.from(), path, op_flags.cast_signed(), paths),
    }
}

fn stat(port: &Port, stand_in: RawFd, path: &[u8], flags: i32, paths: &Paths) -> Result<(), i32> {
    let status = (port.status)(stand_in, path, flags)?;
    let to = paths.stat_address();
    if to.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the room belongs to `paths`, is initialised, and is accessed through this address alone.
    let to = unsafe { &mut *to };
    to.stx_mask = STATX_BASIC_STATS;
    to.stx_mode = status.mode as u16;
    to.stx_ino = status.inode;
    to.stx_size = status.size;
    to.stx_blocks = status.allocated / 512;
    to.stx_nlink = status.links;
    Ok(())
}
