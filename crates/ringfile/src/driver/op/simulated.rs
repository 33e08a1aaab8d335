//! The calls of operations that move no data to or from memory, where a simulated disk answers instead of the kernel.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;

use super::control::{ControlKind, mode};
use super::copy::MOST;
use super::path::PathKind;
use super::request::{Family, Request};
use crate::memory::{Destination, Found, Held, Left, Listing, Paths};
use crate::sim::{OpenNumber, ask};

/// Makes the call from byte `began` on. A file that it opened is kept in `held`.
pub(super) fn call(file: OpenNumber, request: &Request, held: &mut Held, began: usize) -> Result<usize, i32> {
    let done = match (request.kind.family(), held) {
        (Family::Control(kind), _) => control(kind, file, request),
        (Family::Path(kind), Held::Paths(paths)) => on_path(kind, request.op_flags, paths),
        (Family::Copy, Held::Destination(to)) => return copy(file, request, to, began),
        (Family::Path(_) | Family::Copy, _) => Err(libc::EFAULT),
        // They do not come here.
        (Family::Read | Family::Write, _) => Err(libc::EINVAL),
    };
    done.map(|()| 0)
}

fn copy(file: OpenNumber, request: &Request, to: &mut Destination, began: usize) -> Result<usize, i32> {
    let into = to.file().as_raw_fd();
    if began == 0 {
        to.end = ask(|world| world.begin_copy(file, request.offset, into, to.offset, request.want as u64))?;
    }
    let (offset, at) = (request.offset + began as u64, to.offset + began as u64);
    let left = to.end.saturating_sub(offset).min((request.want.min(MOST) - began) as u64);
    ask(|world| world.copy(file, offset, into, at, left as usize))
}

fn control(kind: ControlKind, file: OpenNumber, request: &Request) -> Result<(), i32> {
    match kind {
        ControlKind::Sync => ask(|world| world.sync(file, request.op_flags != 0)),
        ControlKind::SyncRange | ControlKind::Advise => Ok(()),
        ControlKind::Truncate => ask(|world| world.resize(file, request.offset)),
        ControlKind::Allocate => ask(|world| {
            world.allocate(file, mode(request.op_flags).cast_signed(), request.offset, request.want as u64)
        }),
    }
}

fn on_path(kind: PathKind, op_flags: u32, paths: &mut Paths) -> Result<(), i32> {
    let path = paths.path().to_bytes();
    let to = paths.to().map_or(b"".as_slice(), |to| to.to_bytes());
    match kind {
        PathKind::Open => {
            let (stand_in, opened) = ask(|world| world.open(path, op_flags.cast_signed(), paths.mode))?;
            paths.left = Left::Simulated(stand_in, opened);
            Ok(())
        }
        PathKind::Rename => ask(|world| world.rename(path, to, op_flags)),
        PathKind::HardLink => ask(|world| world.disk.link(path, to)),
        PathKind::Remove => ask(|world| world.remove(path, op_flags != 0)),
        PathKind::Symlink => ask(|world| world.disk.symlink(to, path)),
        PathKind::ReadLink => {
            let to = ask(|world| world.disk.read_link(path))?;
            paths.left = Left::Link(OsString::from_vec(to).into());
            Ok(())
        }
        PathKind::CreateDir => ask(|world| world.disk.create_dir(path, paths.mode)),
        PathKind::CreateDirs => ask(|world| world.disk.create_dirs(path, paths.mode)),
        PathKind::SetMode => ask(|world| world.disk.set_mode(path, paths.mode)),
        PathKind::ReadDir => {
            let found = |(name, kind)| Found { name: OsString::from_vec(name), kind };
            let entries = ask(|world| world.list(path))?.into_iter().map(found);
            paths.left = Left::Listing(Listing::of(entries.collect()));
            Ok(())
        }
        PathKind::Stat => {
            let room = paths.stat_address();
            // SAFETY: the room belongs to `paths`, is initialised, and is accessed through this address alone.
            let status = unsafe { room.as_mut() }.ok_or(libc::EFAULT)?;
            ask(|world| world.status(paths.from(), path, op_flags.cast_signed(), status))
        }
    }
}
