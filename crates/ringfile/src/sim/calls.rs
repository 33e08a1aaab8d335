//! The calls that a simulated disk answers instead of the kernel.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use super::content::{Change, Data, PAGE};
use super::faults::{DiskCall, Drawn, Misplaced};
use super::script::Moment;
use super::tree::Inode;
use super::world::{NEXT_OPEN, OpenFile, OpenNumber, OpenRef, World};
use crate::descriptor::above_standard;
use crate::driver::WRITTEN;

/// The largest size of a file: offsets are signed.
const LARGEST: u64 = i64::MAX as u64;

/// [`WRITTEN`], as `mode`.
const ZEROS: i32 = WRITTEN.cast_signed();

/// A copy reads this much at once.
const STEP: usize = 1 << 20;

/// Refuses a call on a file that was opened for `access` alone.
fn refuse(access: i32, flags: i32) -> Result<(), i32> {
    if flags & libc::O_ACCMODE == access { Err(libc::EBADF) } else { Ok(()) }
}

/// Returns a descriptor to which nothing can be written: outside of the simulation, a copy to the file fails.
fn stand_in() -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let stand_in = above_standard(rustix::fs::memfd_create(c"ringfile-simulated", flags)?)?;
    rustix::fs::fcntl_add_seals(&stand_in, SealFlags::GROW | SealFlags::WRITE)?;
    Ok(stand_in)
}

/// Paths are bytes, without a NUL. Errors are errnos.
impl World {
    // ---- Files ----

    /// Opens a file, and returns a descriptor that stands for it. Dropping the [`OpenRef`] closes the file.
    /// `mode`: the permissions of a file that is created.
    pub(crate) fn open(&mut self, path: &[u8], flags: i32, mode: u32) -> Result<(OwnedFd, OpenRef), i32> {
        let stand_in = stand_in().map_err(rustix::io::Errno::raw_os_error)?;
        let inode = self.disk.open(path, flags, mode)?;
        if flags & libc::O_TRUNC != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY {
            self.disk.change(inode, Change::Size(0))?;
        }
        let number = NEXT_OPEN.fetch_add(1, Ordering::Relaxed);
        let reported = self.disk.failures(inode);
        let path = String::from_utf8_lossy(path).into();
        self.open.insert(number, OpenFile { inode, flags, path, reported });
        self.stand_ins.insert(stand_in.as_raw_fd(), number);
        Ok((stand_in, OpenRef::new(number, &self.dropped)))
    }

    /// Returns an open file, and the flags with which it was opened.
    fn opened(&self, file: OpenNumber) -> Result<(Inode, i32), i32> {
        self.open.get(&file).map(|open| (open.inode, open.flags)).ok_or(libc::EBADF)
    }

    /// Returns the open file that a descriptor stands for.
    fn stands_for(&self, stand_in: RawFd) -> Option<(OpenNumber, Inode, i32)> {
        let number = *self.stand_ins.get(&stand_in)?;
        self.opened(number).ok().map(|(inode, flags)| (number, inode, flags))
    }

    /// Reads; `take` gets the bytes, a piece after the other.
    pub(crate) fn read(
        &mut self,
        file: OpenNumber,
        offset: u64,
        len: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Result<usize, i32> {
        let (inode, flags) = self.opened(file)?;
        refuse(libc::O_WRONLY, flags)?;
        let len = match self.draw(DiskCall::Read, file, offset, len) {
            Drawn::Moves(len) => len,
            Drawn::Fails { errno, .. } => return Err(errno),
        };
        let Some((place, mut random)) = self.chance(Moment::Flip) else {
            return self.disk.read(inode, offset, len, take);
        };
        let (faults, mut flips) = (&self.faults, 0);
        let done = self.disk.read(inode, offset, len, |bytes| match faults.flipped(bytes, &mut random) {
            Some(flipped) => {
                flips += 1;
                take(&flipped);
            }
            None => take(bytes),
        });
        if flips > 0 {
            let path = self.path_of(Some(file));
            self.went_wrong(place, || format!("a read at byte {offset} of {path} gets {flips} flipped bits"));
        }
        done
    }

    /// Writes, with the flags of `pwritev2(2)`; `fill` gives the bytes, a piece after the other.
    pub(crate) fn write(
        &mut self,
        file: OpenNumber,
        offset: u64,
        len: usize,
        how: i32,
        fill: impl FnMut(&mut [u8]),
    ) -> Result<usize, i32> {
        let (inode, flags) = self.opened(file)?;
        refuse(libc::O_RDONLY, flags)?;
        let offset = if flags & libc::O_APPEND != 0 { self.disk.size(inode) } else { offset };
        if offset.checked_add(len as u64).is_none_or(|end| end > LARGEST) {
            return Err(libc::EFBIG);
        }
        let drawn = self.draw(DiskCall::Write, file, offset, len);
        let mut data = Data::new(offset, len, fill);
        data.is_atomic = how & libc::RWF_ATOMIC != 0;
        self.note(data.sample());
        self.put((file, inode), data, drawn, how & libc::RWF_DSYNC != 0)
    }

    /// Writes as much of the data as a fault has left, and as there is room for.
    fn put(
        &mut self,
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
        let writable = self.disk.writable(inode, &data.range());
        if writable < data.len() {
            if writable == 0 || data.is_atomic {
                return Err(libc::EIO);
            }
            data.truncate(writable);
        }
        let done = self.disk.fitting(inode, data.range().start, data.len());
        if done < data.len() && (done == 0 || data.is_atomic) {
            return Err(libc::ENOSPC);
        }
        data.truncate(done);
        if is_durable
            && failed.is_none()
            && let Drawn::Fails { errno, .. } = self.draw(DiskCall::Sync, file, 0, 0)
        {
            self.disk.write_in_vain(inode, data, &mut self.loss())?;
            self.report_failures(file);
            return Err(errno);
        }
        if done > 0 {
            data.is_durable = is_durable && failed.is_none() && !self.is_off;
            self.misplace((file, inode), &mut data)?;
            self.disk.change(inode, Change::Write(data))?;
        }
        failed.map_or(Ok(done), Err)
    }

    /// Makes a drive lose some writes, or write them to another place. The place where they belong keeps what it has.
    fn misplace(&mut self, (file, inode): (OpenNumber, Inode), data: &mut Data) -> Result<(), i32> {
        let Some((at, mut random)) = self.chance(Moment::Drive) else { return Ok(()) };
        let range = data.range();
        let (place, how) = match self.faults.draw_misplaced(&mut random) {
            None => return Ok(()),
            Some(Misplaced::Lost) => (None, "is lost"),
            Some(Misplaced::Elsewhere) => (self.disk.any_page(&mut random), "goes elsewhere"),
        };
        self.went_wrong(at, || {
            format!("a write at byte {} of {} {how}", range.start, self.path_of(Some(file)))
        });
        let mut written = self.disk.peek(inode, range.clone())?;
        (written.is_atomic, written.is_durable) = (data.is_atomic, data.is_durable);
        let written = std::mem::replace(data, written);
        if let Some((other, page, size)) = place
            && (other, page) != (inode, range.start / PAGE)
        {
            let moved = written.moved_to(page, size);
            if moved.len() > 0 {
                self.disk.change(other, Change::Write(moved))?;
            }
        }
        Ok(())
    }

    /// Refuses a copy that the kernel would refuse. Returns where the source ends: the copy itself may make it longer.
    pub(crate) fn begin_copy(
        &mut self,
        source: OpenNumber,
        offset: u64,
        to: RawFd,
        at: u64,
        len: u64,
    ) -> Result<u64, i32> {
        let (inode, flags) = self.opened(source)?;
        // It was opened elsewhere.
        let (_, into, to_flags) = self.stands_for(to).ok_or(libc::EOPNOTSUPP)?;
        refuse(libc::O_WRONLY, flags)?;
        refuse(libc::O_RDONLY, to_flags)?;
        if to_flags & libc::O_APPEND != 0 {
            return Err(libc::EBADF);
        }
        if inode == into && offset.abs_diff(at) < len {
            return Err(libc::EINVAL);
        }
        Ok(self.disk.size(inode))
    }

    /// Copies a hole, or at most `len` bytes. Returns how many it has copied. [`begin_copy`](Self::begin_copy) has
    /// succeeded.
    pub(crate) fn copy(
        &mut self,
        source: OpenNumber,
        offset: u64,
        to: RawFd,
        at: u64,
        len: usize,
    ) -> Result<usize, i32> {
        let (inode, _) = self.opened(source)?;
        let (file, into, _) = self.stands_for(to).ok_or(libc::EOPNOTSUPP)?;
        let (hole, data) = self.disk.hole_at(inode, offset, len);
        let drawn = self.draw(DiskCall::Write, file, at, if hole > 0 { hole } else { data.min(STEP) });
        if let (1.., Drawn::Fails { errno, .. }) = (hole, &drawn) {
            return Err(*errno);
        }
        if hole > 0 {
            let size = self.disk.size(into);
            self.disk.change(into, Change::Zero(at.min(size)..(at + hole as u64).min(size)))?;
            if data == 0 && at + hole as u64 > size {
                // As the library does: it allocates the last byte.
                self.extend(into, at + hole as u64 - 1..at + hole as u64)?;
            }
            return Ok(hole);
        }
        let mut bytes = Vec::with_capacity(data.min(STEP));
        self.disk.read(inode, offset, data.min(STEP), |piece| bytes.extend_from_slice(piece))?;
        self.put((file, into), Data::of(at, &bytes), drawn, false)
    }

    /// Reserves a range, and makes the file reach to its end.
    fn extend(&mut self, inode: Inode, range: Range<u64>) -> Result<(), i32> {
        let end = range.end;
        self.disk.reserve(inode, range)?;
        if end > self.disk.size(inode) {
            self.disk.change(inode, Change::Size(end))?;
        }
        Ok(())
    }

    /// Makes the file durable, or only its data.
    pub(crate) fn sync(&mut self, file: OpenNumber, data_only: bool) -> Result<(), i32> {
        let ((inode, _), mark) = (self.opened(file)?, self.mark);
        if let Drawn::Fails { errno, .. } = self.draw(DiskCall::Sync, file, 0, 0) {
            self.disk.lose(inode, mark, &mut self.loss());
            self.report_failures(file);
            return Err(errno);
        }
        self.disk.sync(inode, mark, data_only);
        if self.report_failures(file) { Err(libc::EIO) } else { Ok(()) }
    }

    pub(crate) fn resize(&mut self, file: OpenNumber, size: u64) -> Result<(), i32> {
        let (inode, flags) = self.opened(file)?;
        match flags & libc::O_ACCMODE {
            libc::O_RDONLY => Err(libc::EINVAL),
            _ if size > LARGEST => Err(libc::EINVAL),
            _ => self.disk.change(inode, Change::Size(size)),
        }
    }

    /// Allocates, zeroes or frees a range; `mode` as for `fallocate(2)`.
    pub(crate) fn allocate(&mut self, file: OpenNumber, mode: i32, offset: u64, len: u64) -> Result<(), i32> {
        let (inode, flags) = self.opened(file)?;
        refuse(libc::O_RDONLY, flags)?;
        if len == 0 {
            return Err(libc::EINVAL);
        }
        let end = offset.checked_add(len).filter(|end| *end <= LARGEST).ok_or(libc::EFBIG)?;
        let size = self.disk.size(inode);
        // Behind the end of the file there is nothing, except for the rest of a page.
        let there = offset..end.min(size.next_multiple_of(PAGE)).max(offset);
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            libc::FALLOC_FL_PUNCH_HOLE if keeps_size => {
                return self.disk.change(inode, Change::Zero(there));
            }
            libc::FALLOC_FL_ZERO_RANGE | ZEROS if there.is_empty() => {}
            libc::FALLOC_FL_ZERO_RANGE | ZEROS => self.disk.change(inode, Change::Zero(there))?,
            0 => {}
            _ => return Err(libc::EOPNOTSUPP),
        }
        if keeps_size { self.disk.reserve(inode, offset..end) } else { self.extend(inode, offset..end) }
    }

    pub(crate) fn size(&self, file: OpenNumber) -> Result<u64, i32> {
        self.opened(file).map(|(inode, _)| self.disk.size(inode))
    }

    // ---- Paths ----

    /// Renames; `flags` as for `renameat2(2)`.
    pub(crate) fn rename(&mut self, from: &[u8], to: &[u8], flags: u32) -> Result<(), i32> {
        if let Some(replaced) = self.disk.rename(from, to, flags)? {
            self.forget_unused(replaced);
        }
        Ok(())
    }

    /// Removes a file, or a folder.
    pub(crate) fn remove(&mut self, path: &[u8], is_folder: bool) -> Result<(), i32> {
        let inode = self.disk.remove(path, is_folder)?;
        self.forget_unused(inode);
        Ok(())
    }

    /// Returns the names in a folder, in any order, and the kind of each: `S_IF…`.
    pub(crate) fn list(&mut self, path: &[u8]) -> Result<Vec<(Vec<u8>, u32)>, i32> {
        let mut names = self.disk.list(path)?;
        for at in (1..names.len()).rev() {
            names.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        Ok(names)
    }

    /// Fills in the status of the file at a path, with the flags of `statx(2)`; without a path, of the open file that a
    /// descriptor stands for.
    pub(crate) fn status(
        &self,
        stand_in: RawFd,
        path: &[u8],
        flags: i32,
        to: &mut libc::statx,
    ) -> Result<(), i32> {
        let inode = if path.is_empty() && stand_in != libc::AT_FDCWD {
            self.stands_for(stand_in).ok_or(libc::EBADF)?.1
        } else {
            self.disk.look_up(path, flags & libc::AT_SYMLINK_NOFOLLOW == 0)?
        };
        to.stx_mask = libc::STATX_BASIC_STATS;
        to.stx_mode = self.disk.mode(inode) as u16;
        to.stx_ino = inode;
        to.stx_size = self.disk.size(inode);
        to.stx_blocks = self.disk.allocated(inode) / 512;
        to.stx_nlink = self.disk.links(inode) as u32;
        Ok(())
    }
}
