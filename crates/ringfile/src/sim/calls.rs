//! The calls that a simulated disk answers instead of the kernel.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use super::content::{Change, Data, PAGE};
use super::disk::Contents;
use super::faults::{Call, Drawn, Misplaced};
use super::script::Moment;
use super::tree::Inode;
use super::world::{NEXT_OPEN, OpenFile, OpenNumber, OpenRef, World, with};

/// Runs `act` on this thread's world; `EBADF` if there is none.
fn on_world<R>(act: impl FnOnce(&mut World) -> Result<R, i32>) -> Result<R, i32> {
    with(act).unwrap_or(Err(libc::EBADF))
}

/// Runs `act` on the world, and the file; `EBADF` if it is not open there.
fn on_file<R>(
    file: OpenNumber,
    act: impl FnOnce(&mut World, Inode, i32) -> Result<R, i32>,
) -> Result<R, i32> {
    on_world(|world| {
        let open = world.open.get(&file).ok_or(libc::EBADF)?;
        let (inode, flags) = (open.inode, open.flags);
        act(world, inode, flags)
    })
}

/// Runs `act` on the disk of this thread's world; `EBADF` if there is none.
pub(crate) fn on_disk<R>(act: impl FnOnce(&mut Contents) -> Result<R, i32>) -> Result<R, i32> {
    on_world(|world| act(&mut world.disk))
}

/// Refuses a call on a file that was opened for `access` alone.
fn refuse(access: i32, flags: i32) -> Result<(), i32> {
    if flags & libc::O_ACCMODE == access { Err(libc::EBADF) } else { Ok(()) }
}

/// Reads; `take` gets the bytes, a piece after the other.
pub(crate) fn read(
    file: OpenNumber,
    offset: u64,
    len: usize,
    mut take: impl FnMut(&[u8]),
) -> Result<usize, i32> {
    on_file(file, |world, inode, flags| {
        refuse(libc::O_WRONLY, flags)?;
        let len = match world.draw(Call::Read, file, offset, len) {
            Drawn::Moves(len) => len,
            Drawn::Fails { errno, .. } => return Err(errno),
        };
        let Some((place, mut random)) = world.chance(Moment::Flip) else {
            return world.disk.read(inode, offset, len, take);
        };
        let (faults, mut flips) = (&world.faults, 0);
        let done = world.disk.read(inode, offset, len, |bytes| match faults.flipped(bytes, &mut random) {
            Some(flipped) => {
                flips += 1;
                take(&flipped);
            }
            None => take(bytes),
        });
        if flips > 0 {
            world.went_wrong(place, || format!("a read at byte {offset} gets {flips} flipped bits"));
        }
        done
    })
}

/// The largest size of a file: offsets are signed.
const LARGEST: u64 = i64::MAX as u64;

/// Writes, with the flags of `pwritev2(2)`; `fill` gives the bytes, a piece after the other.
pub(crate) fn write(
    file: OpenNumber,
    offset: u64,
    len: usize,
    how: i32,
    fill: impl FnMut(&mut [u8]),
) -> Result<usize, i32> {
    on_file(file, |world, inode, flags| {
        refuse(libc::O_RDONLY, flags)?;
        let offset = if flags & libc::O_APPEND != 0 { world.disk.size(inode) } else { offset };
        if offset.checked_add(len as u64).is_none_or(|end| end > LARGEST) {
            return Err(libc::EFBIG);
        }
        let drawn = world.draw(Call::Write, file, offset, len);
        let mut data = Data::new(offset, len, fill);
        data.is_atomic = how & libc::RWF_ATOMIC != 0;
        world.note(data.sample());
        put(world, (file, inode), data, drawn, how & libc::RWF_DSYNC != 0)
    })
}

/// Writes as much of the data as a fault has left, and as there is room for.
fn put(
    world: &mut World,
    (file, inode): (OpenNumber, Inode),
    mut data: Data,
    drawn: Drawn,
    is_durable: bool,
) -> Result<usize, i32> {
    let mut failed = None;
    match drawn {
        Drawn::Moves(_) if data.is_atomic => {}
        Drawn::Moves(len) => data.truncate(len),
        Drawn::Fails { errno, after } => {
            data.truncate(if data.is_atomic { 0 } else { after });
            failed = Some(errno);
        }
    }
    let writable = world.disk.writable(inode, &data.range());
    if writable < data.len() {
        if writable == 0 || data.is_atomic {
            return Err(libc::EIO);
        }
        data.truncate(writable);
    }
    let done = world.disk.fitting(inode, data.range().start, data.len());
    if done < data.len() && (done == 0 || data.is_atomic) {
        return Err(libc::ENOSPC);
    }
    data.truncate(done);
    if is_durable
        && failed.is_none()
        && let Drawn::Fails { errno, .. } = world.draw(Call::Sync, file, 0, 0)
    {
        world.disk.write_in_vain(inode, data, &mut world.loss())?;
        world.report_failures(file);
        return Err(errno);
    }
    if done > 0 {
        data.is_durable = is_durable && failed.is_none() && !world.is_off;
        misplace(world, inode, &mut data)?;
        world.disk.change(inode, Change::Write(data))?;
    }
    failed.map_or(Ok(done), Err)
}

/// Makes a drive lose some writes, or write them to another place. The place where they belong keeps what it has.
fn misplace(world: &mut World, inode: Inode, data: &mut Data) -> Result<(), i32> {
    let Some((at, mut random)) = world.chance(Moment::Drive) else { return Ok(()) };
    let range = data.range();
    let (place, how) = match world.faults.draw_misplaced(&mut random) {
        None => return Ok(()),
        Some(Misplaced::Lost) => (None, "is lost"),
        Some(Misplaced::Elsewhere) => (world.disk.any_page(&mut random), "goes elsewhere"),
    };
    world.went_wrong(at, || format!("a write at byte {} {how}", range.start));
    let mut old = Vec::with_capacity(data.len());
    world.disk.peek(inode, range.start, data.len(), |piece| old.extend_from_slice(piece))?;
    let mut written = Data::of(range.start, &old);
    (written.is_atomic, written.is_durable) = (data.is_atomic, data.is_durable);
    let written = std::mem::replace(data, written);
    if let Some((other, page, size)) = place
        && (other, page) != (inode, range.start / PAGE)
    {
        let moved = written.moved_to(page, size);
        if moved.len() > 0 {
            world.disk.change(other, Change::Write(moved))?;
        }
    }
    Ok(())
}

/// Returns the open file that a descriptor stands for.
fn stands_for(world: &World, stand_in: RawFd) -> Option<(OpenNumber, Inode, i32)> {
    let number = *world.stand_ins.get(&stand_in)?;
    world.open.get(&number).map(|open| (number, open.inode, open.flags))
}

/// Refuses a copy that the kernel would refuse. Returns where the source ends: the copy itself may make it longer.
pub(crate) fn begin_copy(source: OpenNumber, offset: u64, to: RawFd, at: u64, len: u64) -> Result<u64, i32> {
    on_file(source, |world, inode, flags| {
        // It was opened elsewhere.
        let (_, into, to_flags) = stands_for(world, to).ok_or(libc::EOPNOTSUPP)?;
        refuse(libc::O_WRONLY, flags)?;
        refuse(libc::O_RDONLY, to_flags)?;
        if to_flags & libc::O_APPEND != 0 {
            return Err(libc::EBADF);
        }
        if inode == into && offset.abs_diff(at) < len {
            return Err(libc::EINVAL);
        }
        Ok(world.disk.size(inode))
    })
}

/// Copies a hole, or at most `len` bytes. Returns how many it has copied. [`begin_copy`] has succeeded.
pub(crate) fn copy(source: OpenNumber, offset: u64, to: RawFd, at: u64, len: usize) -> Result<usize, i32> {
    on_file(source, |world, inode, _| {
        let (file, into, _) = stands_for(world, to).ok_or(libc::EOPNOTSUPP)?;
        let (hole, data) = world.disk.hole_at(inode, offset, len);
        let drawn = world.draw(Call::Write, file, at, if hole > 0 { hole } else { data.min(STEP) });
        if let (1.., Drawn::Fails { errno, .. }) = (hole, &drawn) {
            return Err(*errno);
        }
        if hole > 0 {
            let size = world.disk.size(into);
            world.disk.change(into, Change::Zero(at.min(size)..(at + hole as u64).min(size)))?;
            if data == 0 && at + hole as u64 > size {
                // As the library does: it allocates the last byte.
                extend(world, into, at + hole as u64 - 1..at + hole as u64)?;
            }
            return Ok(hole);
        }
        let mut bytes = Vec::with_capacity(data.min(STEP));
        world.disk.read(inode, offset, data.min(STEP), |piece| bytes.extend_from_slice(piece))?;
        put(world, (file, into), Data::of(at, &bytes), drawn, false)
    })
}

/// A copy reads this much at once.
const STEP: usize = 1 << 20;

/// Reserves a range, and makes the file reach to its end.
fn extend(world: &mut World, inode: Inode, range: Range<u64>) -> Result<(), i32> {
    let end = range.end;
    world.disk.reserve(inode, range)?;
    if end > world.disk.size(inode) {
        world.disk.change(inode, Change::Size(end))?;
    }
    Ok(())
}

pub(crate) fn sync(file: OpenNumber, data_only: bool) -> Result<(), i32> {
    on_file(file, |world, inode, _| {
        let mark = world.mark;
        if let Drawn::Fails { errno, .. } = world.draw(Call::Sync, file, 0, 0) {
            world.disk.lose(inode, mark, &mut world.loss());
            world.report_failures(file);
            return Err(errno);
        }
        world.disk.sync(inode, mark, data_only);
        if world.report_failures(file) { Err(libc::EIO) } else { Ok(()) }
    })
}

pub(crate) fn resize(file: OpenNumber, size: u64) -> Result<(), i32> {
    on_file(file, |world, inode, flags| match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Err(libc::EINVAL),
        _ if size > LARGEST => Err(libc::EINVAL),
        _ => world.disk.change(inode, Change::Size(size)),
    })
}

/// Allocates, zeroes or frees a range; `mode` as for `fallocate(2)`.
pub(crate) fn allocate(file: OpenNumber, mode: i32, offset: u64, len: u64) -> Result<(), i32> {
    on_file(file, |world, inode, flags| {
        refuse(libc::O_RDONLY, flags)?;
        if len == 0 {
            return Err(libc::EINVAL);
        }
        let end = offset.checked_add(len).filter(|end| *end <= LARGEST).ok_or(libc::EFBIG)?;
        let size = world.disk.size(inode);
        // Behind the end of the file there is nothing, except for the rest of a page.
        let there = offset..end.min(size.next_multiple_of(PAGE)).max(offset);
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            libc::FALLOC_FL_PUNCH_HOLE if keeps_size => {
                return world.disk.change(inode, Change::Zero(there));
            }
            libc::FALLOC_FL_ZERO_RANGE if there.is_empty() => {}
            libc::FALLOC_FL_ZERO_RANGE => world.disk.change(inode, Change::Zero(there))?,
            0 => {}
            _ => return Err(libc::EOPNOTSUPP),
        }
        if keeps_size { world.disk.reserve(inode, offset..end) } else { extend(world, inode, offset..end) }
    })
}

pub(crate) fn size(file: OpenNumber) -> Result<u64, i32> {
    on_file(file, |world, inode, _| Ok(world.disk.size(inode)))
}

/// Returns a descriptor to which nothing can be written: outside of the simulation, a copy to the file fails.
fn stand_in() -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let stand_in = rustix::fs::memfd_create(c"ringfile-simulated", flags)?;
    rustix::fs::fcntl_add_seals(&stand_in, SealFlags::GROW | SealFlags::WRITE)?;
    Ok(stand_in)
}

/// Opens a file, and returns a descriptor that stands for it. Dropping the [`OpenRef`] closes the file.
/// `mode`: the permissions of a file that is created.
pub(crate) fn open(path: &[u8], flags: i32, mode: u32) -> Result<(OwnedFd, OpenRef), i32> {
    let stand_in = stand_in().map_err(rustix::io::Errno::raw_os_error)?;
    let opened = on_world(|world| {
        let inode = world.disk.open(path, flags, mode)?;
        if flags & libc::O_TRUNC != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY {
            world.disk.change(inode, Change::Size(0))?;
        }
        let number = NEXT_OPEN.fetch_add(1, Ordering::Relaxed);
        let reported = world.disk.failures(inode);
        world.open.insert(number, OpenFile { inode, flags, path: path.into(), reported });
        world.stand_ins.insert(stand_in.as_raw_fd(), number);
        Ok(OpenRef::new(number, &world.dropped))
    })?;
    Ok((stand_in, opened))
}

/// Renames; `flags` as for `renameat2(2)`.
pub(crate) fn rename(from: &[u8], to: &[u8], flags: u32) -> Result<(), i32> {
    on_world(|world| {
        if let Some(replaced) = world.disk.rename(from, to, flags)? {
            world.forget_unused(replaced);
        }
        Ok(())
    })
}

/// Returns the names in a folder, in any order, and the kind of each: `S_IF…`.
pub(crate) fn list(path: &[u8]) -> Result<Vec<(Vec<u8>, u32)>, i32> {
    on_world(|world| {
        let mut names = world.disk.list(path)?;
        for at in (1..names.len()).rev() {
            names.swap(at, world.random.below(at as u64 + 1) as usize);
        }
        Ok(names)
    })
}

pub(crate) fn remove(path: &[u8], is_folder: bool) -> Result<(), i32> {
    on_world(|world| {
        let inode = world.disk.remove(path, is_folder)?;
        world.forget_unused(inode);
        Ok(())
    })
}

/// Fills in the status of the file at a path, with the flags of `statx(2)`; without a path, of the open file that a descriptor
/// stands for.
pub(crate) fn status(stand_in: RawFd, path: &[u8], flags: i32, to: &mut libc::statx) -> Result<(), i32> {
    on_world(|world| {
        let inode = if path.is_empty() && stand_in != libc::AT_FDCWD {
            stands_for(world, stand_in).ok_or(libc::EBADF)?.1
        } else {
            world.disk.look_up(path, flags & libc::AT_SYMLINK_NOFOLLOW == 0)?
        };
        to.stx_mask = libc::STATX_BASIC_STATS;
        to.stx_mode = world.disk.mode(inode) as u16;
        to.stx_ino = inode;
        to.stx_size = world.disk.size(inode);
        to.stx_blocks = world.disk.allocated(inode) / 512;
        to.stx_nlink = world.disk.links(inode) as u32;
        Ok(())
    })
}
