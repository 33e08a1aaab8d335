//! The calls that a simulated disk answers instead of the kernel.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use super::content::{Change, Data};
use super::disk::{Contents, Inode, names_folder};
use super::faults::{Call, Drawn};
use super::world::{NEXT_OPEN, OpenFile, OpenNumber, OpenRef, World, with};

/// Runs `act` on the world, and the file; `EBADF` if it is not open there.
fn on_file<R>(
    file: OpenNumber,
    act: impl FnOnce(&mut World, Inode, i32) -> Result<R, i32>,
) -> Result<R, i32> {
    with(|world| match world.open.get(&file) {
        Some(open) => {
            let (inode, flags) = (open.inode, open.flags);
            act(world, inode, flags)
        }
        None => Err(libc::EBADF),
    })
    .unwrap_or(Err(libc::EBADF))
}

fn on_disk<R>(act: impl FnOnce(&mut Contents) -> Result<R, i32>) -> Result<R, i32> {
    with(|world| act(&mut world.disk)).unwrap_or(Err(libc::EBADF))
}

/// Reads; `take` gets the bytes, a piece after the other.
pub(crate) fn read(
    file: OpenNumber,
    offset: u64,
    len: usize,
    mut take: impl FnMut(&[u8]),
) -> Result<usize, i32> {
    on_file(file, |world, inode, flags| {
        if flags & libc::O_ACCMODE == libc::O_WRONLY {
            return Err(libc::EBADF);
        }
        let (faults, random) = (&world.faults, &mut world.random);
        match faults.draw(Call::Read, len, random) {
            Drawn::Fails { errno, .. } => Err(errno),
            Drawn::Moves(len) => {
                world.disk.read(inode, offset, len, |bytes| match faults.flipped(bytes, random) {
                    Some(flipped) => take(&flipped),
                    None => take(bytes),
                })
            }
        }
    })
}

/// The largest size of a file: offsets are signed.
const LARGEST: u64 = i64::MAX as u64;

/// What is asked of a write.
#[derive(Clone, Copy)]
pub(crate) struct HowToWrite {
    /// It is durable when it has ended.
    pub is_durable: bool,
    /// A power cut leaves all of it or nothing.
    pub is_atomic: bool,
}

/// Writes; `fill` gives the bytes, a piece after the other.
pub(crate) fn write(
    file: OpenNumber,
    offset: u64,
    len: usize,
    fill: impl FnMut(&mut [u8]),
    how: HowToWrite,
) -> Result<usize, i32> {
    on_file(file, |world, inode, flags| {
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(libc::EBADF);
        }
        let offset = if flags & libc::O_APPEND != 0 { world.disk.size(inode) } else { offset };
        if offset.checked_add(len as u64).is_none_or(|end| end > LARGEST) {
            return Err(libc::EFBIG);
        }
        let drawn = world.faults.draw(Call::Write, len, &mut world.random);
        let (mut data, mut failed) = (Data::new(offset, len, fill), None);
        data.is_atomic = how.is_atomic;
        match drawn {
            Drawn::Moves(_) if how.is_atomic => {}
            Drawn::Moves(len) => data.truncate(len),
            Drawn::Fails { errno, after } => {
                data.truncate(if how.is_atomic { 0 } else { after });
                failed = Some(errno);
            }
        }
        let done = world.disk.fitting(inode, offset, data.len());
        if done < data.len() && (done == 0 || how.is_atomic) {
            return Err(libc::ENOSPC);
        }
        data.truncate(done);
        if how.is_durable
            && failed.is_none()
            && let Drawn::Fails { errno, .. } = world.faults.draw(Call::Sync, 0, &mut world.random)
        {
            world.disk.change_in_vain(inode, &Change::Write(data))?;
            world.report_failures(file);
            return Err(errno);
        }
        if done > 0 {
            data.is_durable = how.is_durable && failed.is_none() && !world.is_off;
            world.disk.change(inode, Change::Write(data))?;
        }
        failed.map_or(Ok(done), Err)
    })
}

pub(crate) fn sync(file: OpenNumber, data_only: bool) -> Result<(), i32> {
    on_file(file, |world, inode, _| {
        let mark = world.mark;
        if let Drawn::Fails { errno, .. } = world.faults.draw(Call::Sync, 0, &mut world.random) {
            world.disk.lose(inode, mark, &mut world.random);
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
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(libc::EBADF);
        }
        if len == 0 {
            return Err(libc::EINVAL);
        }
        let end = offset.checked_add(len).filter(|end| *end <= LARGEST).ok_or(libc::EFBIG)?;
        let size = world.disk.size(inode);
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
            world.disk.change(inode, Change::Zero(offset..end.min(size).max(offset)))?;
        } else if mode & !libc::FALLOC_FL_KEEP_SIZE != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && end > size {
            world.disk.change(inode, Change::Size(end))?;
        }
        Ok(())
    })
}

pub(crate) fn size(file: OpenNumber) -> Result<u64, i32> {
    on_file(file, |world, inode, _| Ok(world.disk.size(inode)))
}

/// Opens a file, and returns a descriptor that stands for it. Dropping the [`OpenRef`] closes the file.
pub(crate) fn open(path: &[u8], flags: i32) -> Result<(OwnedFd, OpenRef), i32> {
    let stand_in = rustix::fs::memfd_create(c"ringfile-simulated", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(rustix::io::Errno::raw_os_error)?;
    let number = with(|world| {
        if flags & libc::O_CREAT != 0 && names_folder(path) {
            return world.disk.parent(path).and(Err(libc::EISDIR));
        }
        let inode = match world.disk.look_up(path) {
            Ok(_) if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 => return Err(libc::EEXIST),
            Err(libc::ENOENT) if flags & libc::O_CREAT != 0 => world.disk.create(path, false)?,
            found => found?,
        };
        match (world.disk.is_folder(inode), flags & libc::O_DIRECTORY != 0) {
            (true, _) if flags & libc::O_ACCMODE != libc::O_RDONLY => return Err(libc::EISDIR),
            (false, true) => return Err(libc::ENOTDIR),
            _ => {}
        }
        if flags & libc::O_TRUNC != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY {
            world.disk.change(inode, Change::Size(0))?;
        }
        let number = NEXT_OPEN.fetch_add(1, Ordering::Relaxed);
        let reported = world.disk.failures(inode);
        world.open.insert(number, OpenFile { inode, flags, reported });
        world.stand_ins.insert(stand_in.as_raw_fd(), number);
        Ok(number)
    })
    .unwrap_or(Err(libc::EBADF))?;
    Ok((stand_in, OpenRef(number)))
}

/// Renames; `flags` as for `renameat2(2)`.
pub(crate) fn rename(from: &[u8], to: &[u8], flags: u32) -> Result<(), i32> {
    with(|world| {
        if let Some(replaced) = world.disk.rename(from, to, flags)? {
            world.forget_unused(replaced);
        }
        Ok(())
    })
    .unwrap_or(Err(libc::EBADF))
}

pub(crate) fn link(from: &[u8], to: &[u8]) -> Result<(), i32> {
    on_disk(|disk| disk.link(from, to))
}

/// Returns the names in a folder, in any order, and which of them are folders.
pub(crate) fn list(path: &[u8]) -> Result<Vec<(Vec<u8>, bool)>, i32> {
    with(|world| {
        let mut names = world.disk.list(path)?;
        for at in (1..names.len()).rev() {
            names.swap(at, world.random.below(at as u64 + 1) as usize);
        }
        Ok(names)
    })
    .unwrap_or(Err(libc::EBADF))
}

/// Creates a folder and those above it.
pub(crate) fn create_dirs(path: &[u8]) -> Result<(), i32> {
    on_disk(|disk| {
        let ends = (1..=path.len()).filter(|end| path.get(*end).is_none_or(|next| *next == b'/'));
        for end in ends {
            match disk.create(&path[..end], true) {
                Ok(_) => {}
                Err(libc::EEXIST) if disk.look_up(&path[..end]).is_ok_and(|inode| disk.is_folder(inode)) => {}
                // A file is above it.
                Err(libc::EEXIST) if path[end..].iter().any(|byte| *byte != b'/') => {
                    return Err(libc::ENOTDIR);
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    })
}

pub(crate) fn remove(path: &[u8], is_folder: bool) -> Result<(), i32> {
    with(|world| {
        let inode = world.disk.look_up(path)?;
        world.disk.remove(path, is_folder)?;
        world.forget_unused(inode);
        Ok(())
    })
    .unwrap_or(Err(libc::EBADF))
}

pub(crate) fn create_dir(path: &[u8]) -> Result<(), i32> {
    on_disk(|disk| disk.create(path, true).map(drop))
}

/// What `statx(2)` tells of a file.
pub(crate) struct Status {
    pub inode: u64,
    pub size: u64,
    pub allocated: u64,
    pub links: u32,
    pub is_folder: bool,
}

/// Returns the status of the file at a path, or without one of the open file that a descriptor stands for.
pub(crate) fn status(stand_in: RawFd, path: &[u8]) -> Result<Status, i32> {
    with(|world| {
        let inode = if path.is_empty() && stand_in != libc::AT_FDCWD {
            let number = world.stand_ins.get(&stand_in);
            number.and_then(|number| world.open.get(number)).map(|open| open.inode).ok_or(libc::EBADF)?
        } else {
            world.disk.look_up(path)?
        };
        Ok(Status {
            inode,
            size: world.disk.size(inode),
            allocated: world.disk.allocated(inode),
            links: world.disk.links(inode) as u32,
            is_folder: world.disk.is_folder(inode),
        })
    })
    .unwrap_or(Err(libc::EBADF))
}
