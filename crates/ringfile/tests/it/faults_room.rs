//! Full disks, quotas and limits on files: what is refused for want of room is no failed sync (F68, F51).

use std::future::IntoFuture;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use crate::support::forms::routes;
use crate::support::fuse::{Act, Op, Server};
use crate::support::mounts::{Mount, fill_up};
use crate::support::{Folder, content, in_child, needs_ring, skip, wait_for};
use ringfile::{Appender, Batch, Buffer, Durability, Error, File, OpenOptions, Pool, Queue, Route, block_on};

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;
const EVERYWHERE: std::ops::Range<u64> = 0..u64::MAX;

/// The ways to write durably.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Loop,
    Executor,
    Batch,
    Awaited,
    Queue,
}

const WAYS: [Way; 5] = [Way::Loop, Way::Executor, Way::Batch, Way::Awaited, Way::Queue];
const DURABILITIES: [Durability; 3] = [Durability::Dsync, Durability::Fsync, Durability::Auto];

impl Way {
    fn write(self, file: &File, len: usize, offset: u64) -> Result<(), Error> {
        let write = || file.write_durable_at(filled(&content(offset, len)), offset);
        let batch = || {
            let mut batch = Batch::new();
            batch.add(write());
            batch
        };
        match self {
            Self::Loop => Ok(block_on(write()).map(drop)?),
            Self::Executor => Ok(futures::executor::block_on(write()).map(drop)?),
            Self::Batch => batch().run().remove(0).result.map(drop),
            Self::Awaited => futures::executor::block_on(batch().into_future()).remove(0).result.map(drop),
            Self::Queue => {
                let mut queue = Queue::new();
                let token = queue.add(write(), 0);
                queue.wait_for(token)?.result.map(drop)
            }
        }
    }
}

/// Returns memory with this content that direct I/O takes.
fn filled(content: &[u8]) -> Buffer {
    static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(16 << 20));
    let mut buffer = POOL.get(content.len()).unwrap();
    buffer.extend_from_slice(content);
    buffer
}

/// A file for each way to write, on each route.
struct Files(Vec<(File, Way, String)>);

impl Files {
    fn inside(folder: &Path, direct: bool) -> Self {
        let mut files = Vec::new();
        for (route, durability) in routes().flat_map(|route| DURABILITIES.map(|choice| (route, choice))) {
            for way in WAYS {
                let how = format!("{route:?}, {durability:?}, {way:?}");
                let mut options = OpenOptions::new();
                options
                    .read(true)
                    .write(true)
                    .create(true)
                    .route(route)
                    .durability(durability)
                    .direct(direct);
                let file = options.buffered_fallback(true).open_blocking(folder.join(&how)).unwrap();
                files.push((file, way, how));
            }
        }
        Self(files)
    }

    /// Asserts that a durable write is refused there with this errno, again and again, and that syncs go on.
    #[track_caller]
    fn assert_refused(&self, offset: u64, errno: i32) {
        for (file, way, how) in self.0.iter().chain(&self.0) {
            let refused = way.write(file, PAGE, offset).expect_err(how);
            assert_eq!(refused.errno(), Some(errno), "{how}: {refused}");
            let text = refused.to_string();
            assert!(!text.contains("open the file again"), "{how}: {text}");
            assert!(
                text.contains(if errno == libc::EFBIG { "RLIMIT_FSIZE" } else { "room" }),
                "{how}: {text}"
            );
            assert!(file.failed_sync().is_none(), "{how}: {refused}");
            block_on(file.sync_data()).unwrap_or_else(|error| panic!("{how}: {error}"));
        }
    }

    #[track_caller]
    fn assert_works(&self, offset: u64) {
        for (file, way, how) in &self.0 {
            way.write(file, PAGE, offset).unwrap_or_else(|error| panic!("{how}: {error}"));
            let read = block_on(file.read_at(filled(&[0; PAGE]), offset)).unwrap();
            assert_eq!(&read[..], content(offset, PAGE), "{how}");
            block_on(file.sync_all()).unwrap_or_else(|error| panic!("{how}: {error}"));
        }
    }
}

/// Fills a file system until nothing more can be written to it, and returns the file that fills it.
fn fill(disk: &Mount) -> std::path::PathBuf {
    let path = disk.path().join("fill");
    fill_up(&path, 0);
    let mut file = std::fs::File::options().append(true).open(&path).unwrap();
    while std::io::Write::write_all(&mut file, &[7; PAGE]).is_ok() {}
    let _ = file.sync_all();
    path
}

fn make_room(filled: &Path, disk: &Mount) {
    std::fs::remove_file(filled).unwrap();
    // The blocks are free once the journal says so, and no child that another test has just forked has the file open.
    let folder = std::fs::File::open(disk.path()).unwrap();
    folder.sync_all().unwrap();
    wait_for("room", || {
        let free = rustix::fs::fstatvfs(&folder).unwrap();
        free.f_bfree * free.f_frsize >= 2 * MIB
    });
}

/// Returns a file system of this kind; none if it cannot be made here.
fn disk(name: &str, kind: &str) -> Option<Mount> {
    match kind {
        "tmpfs" => Mount::tmpfs(name, 4 * MIB),
        "xfs" => Mount::on_loop(name, kind, 320 * MIB),
        kind => Mount::on_loop(name, kind, 16 * MIB),
    }
}

#[test]
fn f68_a_full_disk_is_no_failed_sync() {
    let name = "f68_a_full_disk_is_no_failed_sync";
    for (kind, direct) in [("tmpfs", false), ("ext4", false), ("ext4", true), ("xfs", false), ("xfs", true)] {
        let Some(disk) = disk(name, kind) else { continue };
        let files = Files::inside(disk.path(), direct);
        let filled = fill(&disk);
        files.assert_refused(0, libc::ENOSPC);
        make_room(&filled, &disk);
        files.assert_works(0);
    }
}

#[test]
fn f68_a_full_disk_is_no_failed_sync_of_a_file_that_is_appended_to() {
    let name = "f68_a_full_disk_is_no_failed_sync_of_a_file_that_is_appended_to";
    for kind in ["tmpfs", "ext4", "xfs"] {
        let Some(disk) = disk(name, kind) else { continue };
        let mut files = Vec::new();
        for (route, durability) in
            routes().flat_map(|route| [Durability::Fsync, Durability::Auto].map(|choice| (route, choice)))
        {
            let path = disk.path().join(format!("{route:?}{durability:?}"));
            let mut options = OpenOptions::new();
            options.route(route).durability(durability);
            files.extend(WAYS.map(|way| {
                let file = std::fs::File::options().read(true).append(true).create(true).open(&path).unwrap();
                (options.from_std(file).unwrap(), way, format!("{kind}, {route:?}, {durability:?}, {way:?}"))
            }));
        }
        let filled = fill(&disk);
        for (file, way, how) in &files {
            let refused = way.write(file, PAGE, 0).expect_err(how);
            assert_eq!(refused.errno(), Some(libc::ENOSPC), "{how}: {refused}");
            assert!(file.failed_sync().is_none(), "{how}: {refused}");
        }
        make_room(&filled, &disk);
        for (file, way, how) in &files {
            let before = file.size().unwrap();
            way.write(file, PAGE, 0).unwrap_or_else(|error| panic!("{how}: {error}"));
            assert_eq!(file.size().unwrap(), before + PAGE as u64, "{how}: appended once");
            block_on(file.sync_all()).unwrap_or_else(|error| panic!("{how}: {error}"));
        }
    }
}

/// A part of it has become durable, or will with the next sync.
#[test]
fn f68_a_disk_that_is_full_after_a_part_of_a_durable_write_is_no_failed_sync() {
    let name = "f68_a_disk_that_is_full_after_a_part_of_a_durable_write_is_no_failed_sync";
    for kind in ["tmpfs", "ext4"] {
        let Some(disk) = disk(name, kind) else { continue };
        let files = Files::inside(disk.path(), false);
        for (file, way, how) in &files.0 {
            let filled = disk.path().join("fill");
            fill_up(&filled, 64 * PAGE as u64);
            let error = way.write(file, MIB as usize, 0).expect_err(how);
            assert_eq!(error.errno(), Some(libc::ENOSPC), "{kind}, {how}: {error}");
            assert!(file.failed_sync().is_none(), "{kind}, {how}: {error}");
            block_on(file.sync_data()).unwrap();
            make_room(&filled, &disk);
            way.write(file, MIB as usize, 0).unwrap_or_else(|error| panic!("{kind}, {how}: {error}"));
            block_on(file.set_len(0)).unwrap();
        }
    }
}

#[test]
fn f68_a_limit_on_files_is_no_failed_sync() {
    let name = "f68_a_limit_on_files_is_no_failed_sync";
    if !in_child(name) {
        return;
    }
    let mut usual = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let limit = |limit: &libc::rlimit| {
        // SAFETY: the call reads the limits.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, limit) }, 0);
    };
    // SAFETY: the call fills in the limits; the signal is ignored.
    unsafe {
        libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut usual);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    for folder in [Folder::new(), Folder::inside(Path::new("/dev/shm"))] {
        let files = Files::inside(folder.path(), false);
        let mut flags = Vec::new();
        for flag in [libc::O_APPEND, libc::O_DSYNC, libc::O_SYNC] {
            let path = folder.file(&flag.to_string(), &content(0, 2 * PAGE));
            let mut options = OpenOptions::new();
            flags.push(options.read(true).write(true).custom_flags(flag).open_blocking(path).unwrap());
        }
        limit(&libc::rlimit { rlim_cur: 2 * PAGE as u64, ..usual });
        files.assert_refused(2 * PAGE as u64, libc::EFBIG);
        for file in &flags {
            let refused = Way::Loop.write(file, PAGE, 2 * PAGE as u64).unwrap_err();
            assert_eq!(refused.errno(), Some(libc::EFBIG), "{refused}");
            block_on(file.sync_data()).unwrap();
        }
        limit(&usual);
        files.assert_works(2 * PAGE as u64);
    }
    // A server, too, has refused nothing then.
    let Some(server) = Server::or_skip(name, vec![0; PAGE]) else { return };
    for durability in DURABILITIES {
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).durability(durability).open_blocking(server.path()).unwrap();
        limit(&libc::rlimit { rlim_cur: 2 * PAGE as u64, ..usual });
        let refused = Way::Loop.write(&file, PAGE, 2 * PAGE as u64).unwrap_err();
        assert_eq!(refused.errno(), Some(libc::EFBIG), "{durability:?}: {refused}");
        block_on(file.sync_data()).unwrap();
        limit(&usual);
        Way::Loop.write(&file, PAGE, 0).unwrap();
    }
}

#[test]
fn f68_a_quota_is_no_failed_sync() {
    let name = "f68_a_quota_is_no_failed_sync";
    const NOBODY: u32 = 65534;
    let Some(disk) = Mount::on_loop_with(name, "xfs", 320 * MIB, "loop,uquota") else { return };
    let quota = |limit: &str| {
        let limit = format!("limit bhard={limit} {NOBODY}");
        let set = Command::new("xfs_quota").args(["-x", "-c", &limit]).arg(disk.path()).output();
        set.map_err(|error| error.to_string()).and_then(|set| {
            set.status
                .success()
                .then_some(())
                .ok_or_else(|| String::from_utf8_lossy(&set.stderr).into_owned())
        })
    };
    let files = Files::inside(disk.path(), false);
    for (.., how) in &files.0 {
        std::os::unix::fs::chown(disk.path().join(how), Some(NOBODY), None).unwrap();
    }
    let full = disk.path().join("full");
    std::fs::write(&full, content(0, MIB as usize)).unwrap();
    std::os::unix::fs::chown(&full, Some(NOBODY), None).unwrap();
    if let Err(why) = quota("1m") {
        return skip(name, why);
    }
    files.assert_refused(0, libc::EDQUOT);
    quota("0").unwrap();
    files.assert_works(0);
}

/// The write has room in the page cache, and the disk has none.
#[test]
fn f51_a_sync_without_room_is_remembered_though_a_write_has_room() {
    let name = "f51_a_sync_without_room_is_remembered_though_a_write_has_room";
    for (route, durability) in routes().flat_map(|route| DURABILITIES.map(|choice| (route, choice))) {
        let Some(below) = Mount::tmpfs(name, 16 * MIB) else { return };
        let image = below.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(64 * MIB).unwrap();
        let Some(thin) = Mount::over_file(name, "ext4", &image) else { return };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).route(route).durability(durability);
        let file = options.open_blocking(thin.path().join("data")).unwrap();
        block_on(file.sync_all()).unwrap();
        fill(&below);
        let how = format!("{route:?}, {durability:?}");
        let failed = Way::Loop.write(&file, MIB as usize, 0).expect_err(&how);
        assert!(matches!(failed.errno(), Some(libc::ENOSPC | libc::EIO | libc::EROFS)), "{how}: {failed}");
        assert!(failed.to_string().contains("open the file again"), "{how}: {failed}");
        std::fs::remove_file(below.path().join("fill")).unwrap();
        assert_eq!(block_on(file.sync_all()).expect_err(&how).errno(), failed.errno(), "{how}");
    }
}

/// Where a server answers, it is not known whose the failure is.
#[test]
fn f51_a_failure_of_a_server_for_want_of_room_is_remembered_if_it_may_be_that_of_a_sync() {
    let name = "f51_a_failure_of_a_server_for_want_of_room_is_remembered_if_it_may_be_that_of_a_sync";
    for (route, errno) in
        routes().flat_map(|route| [libc::ENOSPC, libc::EDQUOT, libc::EFBIG].map(|e| (route, e)))
    {
        let fails = |durability, op| {
            let server = Server::or_skip(name, vec![0; 4 * PAGE])?;
            let mut options = OpenOptions::new();
            options.read(true).write(true).route(route).durability(durability);
            let file = options.open_blocking(server.path()).unwrap();
            server.rule(op, EVERYWHERE, 1, Act::Fail(errno));
            let failed = Way::Loop.write(&file, PAGE, 0).unwrap_err();
            assert_eq!(failed.errno(), Some(errno), "{failed}");
            let again = block_on(file.sync_data()).err().map(|error| error.errno());
            assert!(again.is_none_or(|again| again == Some(errno)));
            Some(again.is_some())
        };
        let Some(by_sync) = fails(Durability::Fsync, Op::Sync) else { return };
        assert!(by_sync, "{route:?}, {errno}");
        assert_eq!(fails(Durability::Dsync, Op::Write), Some(true), "{route:?}, {errno}");
        let is_remembered = errno == libc::EFBIG;
        assert_eq!(fails(Durability::Fsync, Op::Write), Some(is_remembered), "{route:?}, {errno}");
    }
}

#[test]
fn f68_an_appender_on_a_full_disk_names_the_cause_and_its_file_can_be_appended_to_again() {
    let name = "f68_an_appender_on_a_full_disk_names_the_cause_and_its_file_can_be_appended_to_again";
    for (kind, direct) in [("tmpfs", false), ("ext4", false), ("ext4", true)] {
        for route in routes() {
            let Some(disk) = disk(name, kind) else { continue };
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).direct(direct).route(route);
            let file = options.open_blocking(disk.path().join("log")).unwrap();
            let pool = Pool::new(16 << 20);
            let how = format!("{kind}, {direct}, {route:?}");
            block_on(async {
                let log = Appender::open(&file, &pool, 0).fill_ahead(0).await.unwrap();
                log.append(&content(0, 3000)).await.unwrap();
                log.sync().await.unwrap();
                let filled = fill(&disk);
                let mut len = 3000;
                let failed = loop {
                    let appended = log.append(&content(len, 3000)).await;
                    match appended.and(log.sync().await) {
                        Ok(()) => len += 3000,
                        Err(error) => break error,
                    }
                };
                assert_eq!(failed.errno(), Some(libc::ENOSPC), "{how}: {failed}");
                let again = log.sync().await.unwrap_err();
                let text = again.to_string();
                assert_eq!(again.errno(), Some(libc::ENOSPC), "{how}: {text}");
                assert!(!text.contains("earlier"), "{how}: {text}");
                assert!(file.failed_sync().is_none(), "{how}: {failed}");
                let durable = log.durable();
                assert!(durable >= len, "{how}");
                drop(log);
                make_room(&filled, &disk);
                let log = Appender::open(&file, &pool, durable).await.unwrap();
                log.append(&content(durable, 100_000)).await.unwrap();
                log.sync().await.unwrap_or_else(|error| panic!("{how}: {error}"));
                log.close().await.unwrap_or_else(|error| panic!("{how}: {error}"));
                let written = std::fs::read(disk.path().join("log")).unwrap();
                assert_eq!(written, content(0, durable as usize + 100_000), "{how}");
            });
        }
    }
}

/// The kernel's answer is the same for a thread that waits alone, and for one with other operations.
#[test]
fn f68_a_refused_write_among_others_fails_alone() {
    let name = "f68_a_refused_write_among_others_fails_alone";
    if !needs_ring(name) {
        return;
    }
    let Some(disk) = disk(name, "ext4") else { return };
    for durability in DURABILITIES {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).durability(durability).route(Route::Ring);
        let file = options.open_blocking(disk.path().join(format!("{durability:?}"))).unwrap();
        block_on(file.write_durable_at(content(0, PAGE), 0)).unwrap();
        let filled = fill(&disk);
        let mut batch = Batch::new();
        for page in 0..16 {
            batch.add(file.write_durable_at(content(0, PAGE), page % 2 * 64 * PAGE as u64));
        }
        for (page, done) in batch.run().into_iter().enumerate() {
            let errno = done.result.err().and_then(|error| error.errno());
            let expected = if page % 2 == 0 { None } else { Some(libc::ENOSPC) };
            assert_eq!(errno, expected, "{durability:?}, {page}");
        }
        assert!(file.failed_sync().is_none(), "{durability:?}");
        make_room(&filled, &disk);
    }
}

#[test]
fn f68_a_write_that_a_seal_forbids_is_no_failed_sync() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let sealed = memfd_create("sealed", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&sealed, 4096).unwrap();
    fcntl_add_seals(&sealed, SealFlags::GROW).unwrap();
    let file = ringfile::File::from(std::fs::File::from(sealed));
    ringfile::block_on(async {
        let refused = file.write_durable_at(vec![1; 4096], 4096).await.unwrap_err();
        assert_eq!(refused.error().errno(), Some(libc::EPERM));
        file.write_durable_at(vec![2; 4096], 0).await.unwrap();
        file.sync_data().await.unwrap();
    });
}
