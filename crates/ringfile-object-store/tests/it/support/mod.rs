//! What the tests share.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use fuser::{BackgroundSession, Config, FileAttr, FileType, Filesystem, INodeNo};
use tempfile::TempDir;

#[path = "../../../../ringfile/tests/it/support/filters.rs"]
#[allow(dead_code, reason = "shared with the tests of the library")]
pub mod filters;
#[path = "../../../../ringfile/tests/it/support/patience.rs"]
mod patience;
#[path = "../../../../ringfile/tests/it/support/process.rs"]
#[allow(dead_code, reason = "as above")]
mod process;
#[cfg(feature = "sim")]
#[path = "../../../../ringfile/tests/it/support/seeds.rs"]
pub mod seeds;
#[path = "../../../../ringfile/tests/it/support/skip.rs"]
mod skip;
#[cfg(feature = "object-store-014")]
#[path = "../../../../ringfile/tests/it/support/threads.rs"]
#[allow(dead_code, reason = "shared with the tests of the library")]
pub mod threads;

pub use patience::patience;
pub use process::in_child;
pub use skip::skip;

/// The attributes of the root folder, or of a file of this size, last changed at this time.
pub fn attributes(ino: INodeNo, size: u64, changed: SystemTime) -> FileAttr {
    let is_root = ino == INodeNo::ROOT;
    FileAttr {
        ino,
        size: if is_root { 0 } else { size },
        blocks: 0,
        atime: changed,
        mtime: changed,
        ctime: changed,
        crtime: changed,
        kind: if is_root { FileType::Directory } else { FileType::RegularFile },
        perm: 0o777,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// Mounts a file system, or says why that is not possible here.
pub fn mount(server: impl Filesystem) -> Option<(TempDir, BackgroundSession)> {
    let folder = tempfile::tempdir().expect("a folder");
    match fuser::spawn_mount(server, folder.path(), &Config::default()) {
        Ok(session) if Path::new("/dev/fuse").exists() => Some((folder, session)),
        _ => {
            eprintln!("SKIPPED: no FUSE file system can be mounted here");
            None
        }
    }
}

/// Waits until no file in this folder is open, as files that a store has read are closed after its answer, and
/// unmounts it.
pub fn unmount(session: BackgroundSession, folder: &Path) {
    let began = Instant::now();
    while is_open_in(folder) {
        assert!(began.elapsed() < patience(), "a file in {} stays open", folder.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    session.umount_and_join().expect("a file system that nothing uses");
}

fn is_open_in(folder: &Path) -> bool {
    let open = std::fs::read_dir("/proc/self/fd").expect("the list of open files");
    open.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|file| file.starts_with(folder)))
}
