//! The backend for calls on files and paths: the simulated disk answers them instead of the kernel.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use super::trace::Description;
use super::world::{OpenNumber, OpenRef, ask, ask_at_once, is_here, number_of};
use crate::driver::op::control::{ControlKind, mode};
use crate::driver::op::copy::MOST;
use crate::driver::op::path::PathKind;
use crate::driver::op::request::Family;
use crate::driver::{Request, Target};
use crate::memory::{Destination, Found, IoMemory, Left, Listing, Paths};

/// Opens a file, and truncates it, without an operation. `None` outside a simulation. An error is the errno, and what failed.
#[allow(clippy::type_complexity, reason = "its caller takes it apart at once")]
pub(crate) fn open_at_once(
    path: &[u8],
    flags: i32,
    mode: u32,
    truncates: bool,
) -> Option<Result<(OwnedFd, OpenRef), (i32, &'static str)>> {
    const TRUNCATING: &str = "truncating";
    let call = |what| Description::of(what, path);
    let open = || {
        let opened = ask_at_once(call("opening"), |world| world.open(path, flags, mode));
        let (stand_in, file) = opened.map_err(|errno| (errno, "opening"))?;
        if truncates {
            let cut = ask_at_once(call(TRUNCATING), |world| world.resize(number_of(&file), 0));
            cut.map_err(|errno| (errno, TRUNCATING))?;
        }
        Ok((stand_in, file))
    };
    is_here().then(open)
}

/// Makes the call of an operation that moves no data to or from memory, from byte `began` on. A file that it opened is kept in `memory`.
pub(crate) fn call(
    file: OpenNumber,
    request: &Request,
    memory: &mut IoMemory,
    began: usize,
) -> Result<usize, i32> {
    let done = match (request.kind.family(), memory) {
        (Family::Control(kind), _) => control(kind, file, request),
        (Family::Path(kind), IoMemory::Paths(paths)) => on_path(kind, request.op_flags, paths),
        (Family::Copy, IoMemory::Destination(to)) => return copy(file, request, to, began),
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
            ask(|world| world.status(paths.from().as_raw_fd(), path, op_flags.cast_signed(), status))
        }
    }
}

/// Makes the call of a read or a write, from byte `began` on. The parts are memory of the operation, which the caller owns.
#[cold]
pub(crate) fn transfer(
    target: &Target,
    file: OpenNumber,
    request: &Request,
    began: usize,
    parts: &[libc::iovec],
) -> Result<usize, i32> {
    let offset = request.offset.checked_add(began as u64).ok_or(libc::EINVAL)?;
    let len = parts.iter().map(|part| part.iov_len).sum();
    if let Some(direct) = target.direct() {
        let is_aligned = |part: &libc::iovec| {
            part.iov_len.is_multiple_of(direct.bytes) && part.iov_base.addr().is_multiple_of(direct.memory)
        };
        if !offset.is_multiple_of(direct.bytes as u64) || !parts.iter().all(is_aligned) {
            return Err(libc::EINVAL);
        }
    }
    let mut cursor = Cursor { parts, in_first: 0 };
    if request.kind.is_read() {
        // SAFETY: the caller owns the memory during the call; a read's has this capacity, and no page of the disk is in it.
        let take = |bytes: &[u8]| unsafe {
            cursor.go_on(bytes.len(), |at, to, len| to.copy_from_nonoverlapping(bytes.as_ptr().add(at), len));
        };
        return ask(|world| world.read(file, offset, len, take));
    }
    // SAFETY: as above, and a write's memory is initialised.
    let fill = |bytes: &mut [u8]| unsafe {
        cursor.go_on(bytes.len(), |at, from, len| {
            bytes.as_mut_ptr().add(at).copy_from_nonoverlapping(from, len)
        });
    };
    ask(|world| world.write(file, offset, len, request.op_flags.cast_signed(), fill))
}

/// A place in the memory of a call, from which copies go on.
struct Cursor<'a> {
    parts: &'a [libc::iovec],
    /// How much of the first part is behind.
    in_first: usize,
}

impl Cursor<'_> {
    /// Calls `copy` for each piece of the next `len` bytes, with where it begins among them, its address and its length.
    fn go_on(&mut self, len: usize, mut copy: impl FnMut(usize, *mut u8, usize)) {
        let mut done = 0;
        while let (Some(part), true) = (self.parts.first(), done < len) {
            let here = (part.iov_len - self.in_first).min(len - done);
            copy(done, part.iov_base.cast::<u8>().wrapping_add(self.in_first), here);
            done += here;
            self.in_first += here;
            if self.in_first == part.iov_len {
                (self.parts, self.in_first) = (&self.parts[1..], 0);
            }
        }
    }
}
