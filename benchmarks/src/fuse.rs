//! `compare fuse`: a FUSE file system of one file, `data`, that passes every read and write on to another file.
//!
//! The kernel may cache its pages, as it does for most FUSE file systems. It serves until it is unmounted.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, WriteFlags,
};

const DATA: INodeNo = INodeNo(2);
/// How long the kernel may cache names and attributes: nothing else changes the file.
const LONG: Duration = Duration::from_secs(3600);
const THREADS: usize = 2;

struct Served {
    file: File,
    size: u64,
}

/// Serves `backing` as `folder/data` until it is unmounted.
pub fn serve(folder: &Path, backing: &Path) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(backing)?;
    let size = file.metadata()?.len();
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("ringfile-compare".into()), MountOption::RW];
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    fuser::mount(Served { file, size }, folder, &config)
}

impl Served {
    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let is_root = ino == INodeNo::ROOT;
        let size = if is_root { 0 } else { self.size };
        let then = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino,
            size,
            blocks: size.div_ceil(512),
            atime: then,
            mtime: then,
            ctime: then,
            crtime: then,
            kind: if is_root { FileType::Directory } else { FileType::RegularFile },
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

impl Filesystem for Served {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without this flag, direct I/O through a ring waits for each answer in the submitting call.
        let missing = |_| io::Error::other("this kernel has no asynchronous direct I/O over FUSE");
        config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).map_err(missing)
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == "data" {
            reply.entry(&LONG, &self.attributes(DATA), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&LONG, &self.attributes(ino));
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_KEEP_CACHE
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(1), flags);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; self.size.saturating_sub(offset).min(size.into()) as usize];
        match self.file.read_exact_at(&mut bytes, offset) {
            Ok(()) => reply.data(&bytes),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        bytes: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if offset + bytes.len() as u64 > self.size {
            return reply.error(Errno::ENOSPC);
        }
        match self.file.write_all_at(bytes, offset) {
            Ok(()) => reply.written(bytes.len() as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        // A benchmark's file need not survive a crash.
        reply.ok();
    }
}
