//! Syncs and durable writes that fail, and disks that become full in the middle of a direct write (F42, F43, F51).

use crate::support::handles::Handles as _;
use std::cell::{Cell, RefCell};
use std::future::{Future, IntoFuture};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use crate::support;
use crate::support::forms::{WRITING, routes};
use crate::support::fuse::{Act, Op, Server};
use crate::support::mounts::{Loop, Mount, fill_up};
use crate::support::{Folder, assert_content, content, must_end};
use ringfile::fs::RangeSync;
use ringfile::{Batch, Durability, Error, File, OpenOptions, Pool, Queue, Route, Runtime, block_on};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const EVERYWHERE: std::ops::Range<u64> = 0..u64::MAX;

/// The ways to sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Loop,
    LoopData,
    Executor,
    Runtime,
    Blocking,
    Awaited,
    Queue,
    /// The two forms of a durable write.
    Durable(Durability),
    DurableElsewhere(Durability),
    DurableInBatch(Durability),
    DurableInQueue(Durability),
}

const WAYS: [Way; 15] = [
    Way::Loop,
    Way::LoopData,
    Way::Executor,
    Way::Runtime,
    Way::Blocking,
    Way::Awaited,
    Way::Queue,
    Way::Durable(Durability::Dsync),
    Way::Durable(Durability::Fsync),
    Way::DurableElsewhere(Durability::Dsync),
    Way::DurableElsewhere(Durability::Fsync),
    Way::DurableInBatch(Durability::Dsync),
    Way::DurableInBatch(Durability::Fsync),
    Way::DurableInQueue(Durability::Dsync),
    Way::DurableInQueue(Durability::Fsync),
];

fn open(path: &Path, route: Route, way: Way) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).route(route);
    if let Some(durability) = way.durability() {
        options.durability(durability);
    }
    options.open_blocking(path).unwrap()
}

impl Way {
    /// Returns which request of a FUSE server fails: the kernel sends it no sync after a write with `RWF_DSYNC`.
    fn fails_with(self) -> Op {
        if self.durability() == Some(Durability::Dsync) { Op::Write } else { Op::Sync }
    }

    fn durability(self) -> Option<Durability> {
        match self {
            Self::Durable(durability)
            | Self::DurableElsewhere(durability)
            | Self::DurableInBatch(durability)
            | Self::DurableInQueue(durability) => Some(durability),
            _ => None,
        }
    }

    fn sync(self, file: &File) -> Result<(), Error> {
        let page = || vec![7; PAGE];
        match self {
            Self::Loop => block_on(file.sync_all()),
            Self::LoopData => block_on(file.sync_data()),
            Self::Executor => futures::executor::block_on(file.sync_all()),
            Self::Runtime => {
                let (runtime, file) = (Runtime::builder().threads(1).build().unwrap(), file.clone());
                runtime.spawn(async move { file.sync_data().await }).join().unwrap()
            }
            Self::Blocking | Self::Awaited => {
                let mut batch = Batch::new();
                batch.add(file.sync_all());
                let done = match self {
                    Self::Blocking => batch.run(),
                    _ => futures::executor::block_on(batch.into_future()),
                };
                done.into_iter().next().unwrap().result.map(drop)
            }
            Self::Queue => {
                let mut queue = Queue::new();
                queue.add(file.sync_data(), 0);
                queue.end().result.map(drop)
            }
            Self::Durable(_) => Ok(block_on(file.write_durable_at(page(), 0)).map(drop)?),
            Self::DurableElsewhere(_) => {
                Ok(futures::executor::block_on(file.write_durable_at(page(), 0)).map(drop)?)
            }
            Self::DurableInBatch(_) => {
                let mut batch = Batch::new();
                batch.add(file.write_durable_at(page(), 0));
                batch.run().remove(0).result.map(drop)
            }
            Self::DurableInQueue(_) => {
                let mut queue = Queue::new();
                let token = queue.add(file.write_durable_at(page(), 0), 0);
                queue.wait_for(token).unwrap().result.map(drop)
            }
        }
    }
}

#[test]
fn f51_a_failed_sync_is_remembered_by_every_clone_until_the_file_is_opened_again() {
    let name = "f51_a_failed_sync_is_remembered_by_every_clone_until_the_file_is_opened_again";
    for route in routes() {
        for way in WAYS {
            let Some(server) = Server::or_skip(name, vec![0; 4 * PAGE]) else { return };
            let how = format!("{way:?}, {route:?}");
            let file = open(&server.path(), route, way);
            let clone = file.clone();
            way.sync(&file).unwrap_or_else(|error| panic!("{how}: {error}"));
            block_on(file.write_at(content(0, PAGE), 0)).unwrap();
            server.rule(way.fails_with(), EVERYWHERE, 1, Act::Fail(libc::EIO));
            let failed = way.sync(&file).expect_err(&how);
            assert_eq!(failed.errno(), Some(libc::EIO), "{how}: {failed}");
            assert_eq!(server.faults_left(), 0, "{how}");
            let asked = server.log().len();
            // From here on the server would succeed.
            for later in WAYS {
                for file in [&file, &clone, &file.clone()] {
                    let failed = later.sync(file).expect_err(&format!("{how}, then {later:?}"));
                    assert_eq!(failed.errno(), Some(libc::EIO), "{how}, then {later:?}: {failed}");
                    assert!(failed.to_string().contains("open the file again"), "{failed}");
                }
            }
            assert_eq!(server.log().len(), asked, "{how}: nothing is begun any more");
            // Plain reads and writes continue, and the file can be synced again once it is reopened.
            block_on(clone.write_at(content(0, PAGE), 0)).unwrap();
            assert_content(&block_on(clone.read_at(vec![0; PAGE], 0)).unwrap(), 0);
            let again = open(&server.path(), route, way);
            for way in WAYS {
                way.sync(&again).unwrap_or_else(|error| panic!("{how}, opened again, {way:?}: {error}"));
            }
            assert!(way.sync(&file).is_err(), "{how}: the file that failed stays so");
        }
    }
}

/// Seccomp filters refuse calls with these errnos, but NFS also reports lost pages with them.
#[test]
fn f51_a_sync_is_remembered_though_a_filter_could_have_refused_it() {
    let name = "f51_a_sync_is_remembered_though_a_filter_could_have_refused_it";
    for route in routes() {
        for (way, errno) in WAYS.into_iter().flat_map(|way| [(way, libc::EPERM), (way, libc::EACCES)]) {
            let Some(server) = Server::or_skip(name, vec![0; 4 * PAGE]) else { return };
            let file = open(&server.path(), route, way);
            server.rule(way.fails_with(), EVERYWHERE, 1, Act::Fail(errno));
            for _ in 0..2 {
                let failed = way.sync(&file).expect_err(&format!("{way:?}, {route:?}"));
                assert_eq!(failed.errno(), Some(errno), "{way:?}, {route:?}: {failed}");
            }
        }
    }
}

#[test]
fn f51_a_durable_write_that_fails_is_remembered() {
    let name = "f51_a_durable_write_that_fails_is_remembered";
    for route in routes() {
        for durability in [Durability::Dsync, Durability::Fsync, Durability::Auto] {
            let Some(server) = Server::or_skip(name, vec![0; 4 * PAGE]) else { return };
            let file = open(&server.path(), route, Way::Durable(durability));
            server.rule(Op::Write, EVERYWHERE, 1, Act::Fail(libc::EIO));
            let failed = block_on(file.write_durable_at(content(0, PAGE), 0)).unwrap_err();
            assert_eq!(failed.errno(), Some(libc::EIO));
            for later in WAYS {
                let failed = later.sync(&file).expect_err(&format!("{route:?}, {durability:?}, {later:?}"));
                assert_eq!(failed.errno(), Some(libc::EIO), "{route:?}, {durability:?}, {later:?}");
            }
        }
    }
}

/// Each write to such a file is a durable one.
#[test]
fn f51_a_write_that_fails_on_a_file_opened_with_o_dsync_is_remembered() {
    let name = "f51_a_write_that_fails_on_a_file_opened_with_o_dsync_is_remembered";
    for route in routes() {
        for (flag, in_batch) in [(libc::O_DSYNC, false), (libc::O_SYNC, true)] {
            let Some(server) = Server::or_skip(name, vec![0; 4 * PAGE]) else { return };
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(flag).route(route);
            let file = options.open_blocking(server.path()).unwrap();
            let write = || {
                if !in_batch {
                    return block_on(file.write_at(content(0, PAGE), 0)).map(drop).map_err(Error::from);
                }
                let mut batch = Batch::new();
                batch.add(file.write_at(content(0, PAGE), 0));
                batch.run().remove(0).result.map(drop)
            };
            write().unwrap();
            server.rule(Op::Write, EVERYWHERE, 1, Act::Fail(libc::EIO));
            for _ in 0..2 {
                assert_eq!(write().unwrap_err().errno(), Some(libc::EIO), "{route:?}, {in_batch}");
            }
            for later in WAYS {
                let failed = later.sync(&file).expect_err(&format!("{route:?}, {later:?}"));
                assert_eq!(failed.errno(), Some(libc::EIO), "{route:?}, {later:?}");
            }
        }
    }
}

#[test]
fn f51_a_sync_whose_future_is_dropped_is_remembered_too() {
    let name = "f51_a_sync_whose_future_is_dropped_is_remembered_too";
    for route in routes() {
        let Some(server) = Server::or_skip(name, vec![0; 4 * PAGE]) else { return };
        let file = open(&server.path(), route, Way::Loop);
        if route == Route::Inline {
            // The first poll makes the call and has its result.
            continue;
        }
        server.rule(Op::Sync, EVERYWHERE, 1, Act::HoldFail(libc::EIO));
        block_on(async {
            let mut sync = Box::pin(file.sync_all());
            assert!(support::poll_once(&mut sync).await.is_pending());
            while server.held() == 0 {
                support::yield_now().await;
            }
            drop(sync);
            server.release();
        });
        support::wait_for("the answer", || server.held() == 0);
        support::wait_for(
            "the sync to be remembered",
            || matches!(block_on(file.sync_all()), Err(error) if error.errno() == Some(libc::EIO)),
        );
    }
}

#[test]
fn f51_a_sync_that_was_not_tried_is_not_remembered() {
    let name = "f51_a_sync_that_was_not_tried_is_not_remembered";
    for route in routes() {
        let Some(server) = Server::or_skip(name, vec![0; 4 * PAGE]) else { return };
        for durability in [Durability::Dsync, Durability::Fsync] {
            // A file that is not open for writing.
            let mut options = OpenOptions::new();
            let file =
                options.read(true).durability(durability).route(route).open_blocking(server.path()).unwrap();
            let failed = block_on(file.write_durable_at(content(0, PAGE), 0)).unwrap_err();
            assert_eq!(failed.errno(), Some(libc::EBADF));
            block_on(file.sync_all()).unwrap();
            // A write that is not aligned.
            let file = options.write(true).direct(true).open_blocking(server.path()).unwrap();
            assert!(block_on(file.write_durable_at(content(0, 100), 0)).is_err());
            block_on(file.sync_all()).unwrap();
        }
    }
}

#[test]
fn f43_a_full_disk_after_a_part_of_a_direct_write_is_reported_as_such() {
    let name = "f43_a_full_disk_after_a_part_of_a_direct_write_is_reported_as_such";
    let pool = Pool::new(64 * MIB);
    for kind in ["ext4", "xfs"] {
        let Some(disk) =
            Mount::on_loop(name, kind, if kind == "xfs" { 320 * MIB as u64 } else { 16 * MIB as u64 })
        else {
            continue;
        };
        let path = disk.path().join("data");
        std::fs::write(&path, b"").unwrap();
        fill_up(&disk.path().join("fill"), 40 * PAGE as u64);
        for route in routes() {
            for form in WRITING {
                let mut options = OpenOptions::new();
                options.read(true).write(true).truncate(true).direct(true).route(route);
                let file = options.open_blocking(&path).unwrap();
                let mut buffer = pool.get(2 * MIB).unwrap();
                buffer.extend_from_slice(&content(0, 2 * MIB));
                let (_, error) = form.write(&file, vec![(buffer, 0)]).remove(0);
                let error = error.unwrap();
                assert_eq!(error.errno(), Some(libc::ENOSPC), "{kind}, {form:?}, {route:?}: {error}");
                let read = block_on(file.read_at(pool.get(2 * MIB).unwrap(), 0)).unwrap();
                assert!(read.len() >= error.done(), "{kind}, {form:?}, {route:?}");
                assert_content(&read[..error.done()], 0);
            }
        }
    }
}

#[test]
fn f43_a_direct_write_over_the_end_of_a_device_is_reported_as_such() {
    let name = "f43_a_direct_write_over_the_end_of_a_device_is_reported_as_such";
    let pool = Pool::new(64 * MIB);
    // The second length ends with a partial page.
    for len in [MIB, MIB + 3 * 512] {
        let Some(device) = Loop::over(name, &vec![0; len]) else { return };
        for route in routes() {
            for form in WRITING {
                let mut options = OpenOptions::new();
                let file = options
                    .read(true)
                    .write(true)
                    .direct(true)
                    .route(route)
                    .open_blocking(device.device())
                    .unwrap();
                let end = file.size().unwrap();
                let mut buffer = pool.get(2 * MIB).unwrap();
                buffer.extend_from_slice(&content(0, 2 * MIB));
                let (_, error) = form.write(&file, vec![(buffer, 0)]).remove(0);
                let error = error.unwrap();
                assert_eq!(error.errno(), Some(libc::ENOSPC), "{form:?}, {route:?}: {error}");
                assert_eq!(error.done() as u64, end, "{form:?}, {route:?}: {error}");
                assert_content(&block_on(file.read_at(pool.get(2 * MIB).unwrap(), 0)).unwrap(), 0);
            }
        }
    }
}

#[test]
fn f43_a_direct_write_that_stops_inside_a_block_continues_at_that_block() {
    let name = "f43_a_direct_write_that_stops_inside_a_block_continues_at_that_block";
    // Not through io_uring: Linux 6.18 itself continues a short direct write of FUSE there, at the wrong offset. The
    // ring's operations continue by the same rule, `Target::goes_on_at`.
    for route in [Route::Inline, Route::Workers] {
        for form in WRITING {
            for cut in [17, 1000, PAGE + 1, 2 * PAGE] {
                let Some(server) = Server::blocking_or_skip(name, vec![0; 4 * PAGE]) else { return };
                let mut options = OpenOptions::new();
                let file =
                    options.write(true).direct(true).route(route).open_blocking(server.path()).unwrap();
                let pool = Pool::new(MIB);
                let write = || {
                    let mut buffer = pool.get(4 * PAGE).unwrap();
                    buffer.extend_from_slice(&content(0, 4 * PAGE));
                    vec![(buffer, 0)]
                };
                server.rule(Op::Write, EVERYWHERE, 1, Act::Short(cut));
                server.rule(Op::Write, EVERYWHERE, 1, Act::Fail(libc::ENOSPC));
                let (_, error) = form.write(&file, write()).remove(0);
                let how = format!("{form:?}, {route:?}, {cut}");
                let error = error.unwrap_or_else(|| panic!("{how}: {:?}", server.log()));
                assert_eq!((error.errno(), error.done()), (Some(libc::ENOSPC), cut), "{how}: {error}");
                // If there is room after all, every byte is there.
                server.rule(Op::Write, EVERYWHERE, 1, Act::Short(cut));
                let (_, error) = form.write(&file, write()).remove(0);
                assert!(error.is_none(), "{how}: {error:?}");
                let log = server.log();
                assert!(server.data() == content(0, 4 * PAGE), "{how}: {log:?}");
                let aligned = log.iter().all(|&(_, offset, _)| offset % PAGE as u64 == 0);
                assert!(aligned, "{how}: a real file system would refuse this: {log:?}");
            }
        }
    }
}

#[test]
fn f51_a_sync_failure_outside_of_the_library_can_be_noted() {
    let folder = support::Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    for route in routes() {
        let file = open(&path, route, Way::Loop);
        file.poison_sync(libc::EINTR);
        block_on(file.sync_all()).unwrap();
        file.poison_sync(libc::EIO);
        file.poison_sync(libc::ENOSPC);
        for way in WAYS {
            assert_eq!(way.sync(&file).unwrap_err().errno(), Some(libc::EIO), "the first, {way:?}");
        }
    }
}

thread_local! {
    static CLONES: Cell<usize> = const { Cell::new(0) };
    /// A file whose sync the waker begins when it is cloned for the second time, and that sync.
    static TO_SYNC: Cell<Option<&'static File>> = const { Cell::new(None) };
    static BEGUN: RefCell<Option<Pin<Box<ringfile::Op<'static, ()>>>>> = const { RefCell::new(None) };
}

/// Returns a waker that begins a sync when it is cloned for the second time, and does nothing else.
fn waker_that_begins_a_sync() -> Waker {
    fn clone(data: *const ()) -> RawWaker {
        CLONES.set(CLONES.get() + 1);
        if CLONES.get() == 2
            && let Some(file) = TO_SYNC.take()
        {
            let mut sync = Box::pin(file.sync_data());
            if Pin::new(&mut sync).poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                BEGUN.set(Some(sync));
            }
        }
        RawWaker::new(data, &TABLE)
    }
    fn nothing(_: *const ()) {}
    static TABLE: RawWakerVTable = RawWakerVTable::new(clone, nothing, nothing, nothing);
    // SAFETY: the functions use no data.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &TABLE)) }
}

/// A link connects an entry of the ring with whichever comes next. Between a write and its sync, user code must not be
/// able to put another.
#[test]
fn f42_an_operation_begun_by_a_waker_does_not_take_the_link_of_a_durable_write() {
    let folder = Folder::new();
    for route in routes() {
        let (to_write, to_sync) = (folder.file("written", &[1; 8192]), folder.file("synced", &[1; 8192]));
        let open = |path: &Path, write: bool| {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(write)
                .route(route)
                .durability(Durability::Fsync)
                .open_blocking(path)
                .unwrap()
        };
        // Not open for writing: the write fails, which cancels whatever is linked to it.
        let file = open(&to_write, false);
        let owned = Box::into_raw(Box::new(open(&to_sync, true)));
        // SAFETY: it is dropped at the end, after the sync that refers to it.
        let other: &'static File = unsafe { &*owned };
        block_on(async {
            other.sync_data().await.unwrap();
            CLONES.set(0);
            TO_SYNC.set(Some(other));
            let mut durable = Box::pin(file.write_durable_at(vec![2; PAGE], 0));
            let waker = waker_that_begins_a_sync();
            let written = match Pin::new(&mut durable).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(written) => written,
                Poll::Pending => durable.await,
            };
            assert_eq!(written.unwrap_err().errno(), Some(libc::EBADF), "{route:?}");
            if let Some(sync) = BEGUN.take() {
                sync.await.unwrap_or_else(|error| panic!("{route:?}: {error}"));
            }
            TO_SYNC.take();
        });
        // SAFETY: made from a box above; nothing refers to it any more.
        drop(unsafe { Box::from_raw(owned) });
    }
}

#[test]
fn f51_a_range_is_not_synced_either_after_a_failed_sync() {
    let name = "f51_a_range_is_not_synced_either_after_a_failed_sync";
    for route in routes() {
        let Some(server) = Server::or_skip(name, vec![0; 4 * PAGE]) else { return };
        let file = open(&server.path(), route, Way::Loop);
        let batch = || {
            let mut batch = Batch::new();
            batch.add(file.sync_range(0, 0, RangeSync::Finish));
            batch
        };
        let ways = || {
            let of_batch = |mut done: Vec<ringfile::Completion>| done.remove(0).result.map(drop);
            let mut queue = Queue::new();
            queue.add(file.sync_range(0, 0, RangeSync::Start), 0);
            queue.settle(1);
            [
                block_on(file.sync_range(0, 0, RangeSync::Start)),
                futures::executor::block_on(file.sync_range(0, 0, RangeSync::Finish)),
                of_batch(batch().run()),
                of_batch(futures::executor::block_on(batch().into_future())),
                queue.next().unwrap().result.map(drop),
            ]
        };
        assert!(file.failed_sync().is_none());
        ways().into_iter().for_each(|result| result.unwrap_or_else(|error| panic!("{route:?}: {error}")));
        server.rule(Op::Sync, EVERYWHERE, 1, Act::Fail(libc::EIO));
        assert!(block_on(file.sync_all()).is_err());
        for (way, result) in ways().into_iter().chain([Err(file.failed_sync().unwrap())]).enumerate() {
            let failed = result.expect_err(&format!("{route:?}, {way}"));
            assert_eq!(failed.errno(), Some(libc::EIO), "{route:?}, {way}: {failed}");
            assert!(failed.to_string().contains("open the file again"), "{failed}");
        }
    }
}

#[test]
fn f42_a_durable_write_of_a_queue_or_batch_ends_once_and_with_its_sync() {
    let name = "f42_a_durable_write_of_a_queue_or_batch_ends_once_and_with_its_sync";
    let wal = Way::DurableInQueue(Durability::Fsync);
    for route in routes() {
        // Cancelled during its sync, it has one result, and the buffer comes back.
        let Some(server) = Server::or_skip(name, vec![0; 4 * PAGE]) else { return };
        let file = open(&server.path(), route, wal);
        must_end("a durable write that is cancelled", move || {
            server.rule(Op::Sync, EVERYWHERE, 1, Act::Delay(std::time::Duration::from_millis(50)));
            let mut queue = Queue::new();
            let token = queue.add(file.write_durable_at(content(0, PAGE), 0), 7);
            queue.submit();
            queue.cancel(token);
            let done = queue.wait_for(token).unwrap();
            assert_eq!(&done.buffer.unwrap()[..], content(0, PAGE));
            let error = done.result.err();
            assert!(error.is_none_or(|error| error.errno() == Some(libc::ECANCELED)), "{route:?}");
            assert!(queue.is_empty() && queue.next().is_none());
            // A queue that is dropped meanwhile waits for the kernel.
            queue.add(file.write_durable_at(content(0, PAGE), 0), 8);
            queue.submit();
        });
        // What follows a barrier starts after the sync.
        let Some(server) = Server::or_skip(name, vec![0; 4 * PAGE]) else { return };
        let file = open(&server.path(), route, wal);
        let failed = must_end("a durable write before a barrier", move || {
            server.rule(Op::Sync, EVERYWHERE, 1, Act::Fail(libc::EIO));
            let mut batch = Batch::new();
            batch.add(file.write_durable_at(content(0, PAGE), 0));
            batch.barrier();
            batch.add(file.write_at(content(0, PAGE), PAGE as u64));
            batch.run().into_iter().map(|done| done.result.unwrap_err().errno()).collect::<Vec<_>>()
        });
        assert_eq!(failed, [Some(libc::EIO), Some(libc::ECANCELED)], "{route:?}");
    }
}

/// Returns how many pages of a file have to be written; `None` if the kernel does not tell.
fn dirty_pages(file: &std::fs::File) -> Option<u64> {
    // The same on every architecture; libc does not have it everywhere.
    const CACHESTAT: libc::c_long = 451;
    let (all, mut stat) = ([0_u64; 2], [0_u64; 5]);
    // SAFETY: the kernel reads a range of two numbers, and writes five numbers.
    let answer = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), all.as_ptr(), stat.as_mut_ptr(), 0) };
    (answer == 0 && stat[0] > 0).then_some(stat[1] + stat[2])
}

/// With an offset, the kernel's sync would cover one page: the length of its entry is 0.
#[test]
fn f42_the_sync_of_a_durable_write_covers_all_of_it() {
    const LEN: usize = 16 * PAGE;
    let (folder, name) = (Folder::new(), "f42_the_sync_of_a_durable_write_covers_all_of_it");
    for route in routes() {
        let path = folder.path().join(format!("{route:?}"));
        std::fs::write(&path, content(0, LEN)).unwrap();
        let plain = std::fs::File::open(&path).unwrap();
        if dirty_pages(&plain).is_none_or(|pages| pages == 0) {
            return support::skip(name, "cachestat does not show what was written");
        }
        plain.sync_all().unwrap();
        let file = open(&path, route, Way::DurableInQueue(Durability::Fsync));
        let mut offset = PAGE as u64;
        let mut is_written = |what: &str, write: &mut dyn FnMut(Vec<u8>, u64)| {
            write(content(0, LEN), offset);
            assert_eq!(dirty_pages(&plain), Some(0), "{route:?}, {what} at {offset}");
            offset += LEN as u64;
        };
        is_written("a future", &mut |data, offset| {
            drop(block_on(file.write_durable_at(data, offset)).unwrap())
        });
        is_written("a batch", &mut |data, offset| {
            let mut batch = Batch::new();
            batch.add(file.write_durable_at(data, offset));
            assert_eq!(batch.run().remove(0).result.unwrap(), LEN);
        });
        is_written("a queue", &mut |data, offset| {
            let mut queue = Queue::new();
            let token = queue.add(file.write_durable_at(data, offset), 0);
            assert_eq!(queue.wait_for(token).unwrap().result.unwrap(), LEN);
        });
    }
}
