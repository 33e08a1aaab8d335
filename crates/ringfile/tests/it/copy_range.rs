//! Copies from file to file: within a file system and across two, with holes, in every way, and cancelled half way.

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support;
use crate::support::forms::routes;
use crate::support::mounts::Loop;
use crate::support::{Folder, content, in_child, must_end, wait_for, workers_are_forced};
use ringfile::{Batch, File, OpenOptions, Pool, Queue, Route, block_on};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// A folder in memory, which is another file system than the one of [`Folder`].
struct InMemory(PathBuf);

impl InMemory {
    fn new(name: &str) -> Self {
        let folder = PathBuf::from(format!("/dev/shm/ringfile-copy-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

fn both() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

#[test]
fn a_range_arrives_on_every_route_and_in_every_way_within_and_across_file_systems() {
    let (folder, memory) = (Folder::new(), InMemory::new("every"));
    let data = content(0, 3 * MIB + 77);
    let places = [
        (folder.file("here", &data), folder.file("there", b"")),
        (memory.file("here", &data), folder.file("from memory", b"")),
        (folder.file("on disk", &data), memory.file("there", b"")),
        (memory.file("also here", &data), memory.file("also there", b"")),
    ];
    for (from, to) in &places {
        for route in routes() {
            let (from, into) =
                (both().route(route).open_blocking(from).unwrap(), both().open_blocking(to).unwrap());
            for (offset, at, len) in [(0, 0, data.len()), (100, 33, 2 * MIB), (PAGE, PAGE, MIB), (5, 0, 0)] {
                let what = format!("{len} bytes from {offset} to {at} of {} by {route:?}", to.display());
                let copy = || from.copy_range(offset as u64, &into, at as u64, len as u64);
                let check = |copied: u64, how: &str| {
                    assert_eq!(copied, len as u64, "{what} {how}");
                    let got = std::fs::read(to).unwrap();
                    assert!(got[..at].iter().all(|&byte| byte == 0), "{what} {how}");
                    assert_eq!(got[at..], data[offset..offset + len], "{what} {how}");
                    std::fs::write(to, vec![0; at]).unwrap();
                };
                std::fs::write(to, vec![0; at]).unwrap();
                check(block_on(copy()).unwrap(), "in a loop");
                check(futures::executor::block_on(copy()).unwrap(), "elsewhere");
                let mut batch = Batch::new();
                batch.add(copy());
                check(batch.run().remove(0).result.unwrap() as u64, "in a batch");
                let mut queue = Queue::new();
                let token = queue.add(copy(), 0);
                check(queue.wait_for(token).unwrap().result.unwrap() as u64, "in a queue");
            }
        }
    }
}

#[test]
fn a_copy_ends_with_its_source() {
    let folder = Folder::new();
    let (from, to) = (folder.file("from", &content(0, 5000)), folder.file("to", b"longer than that"));
    let (from, into) = (File::open_blocking(from).unwrap(), both().open_blocking(&to).unwrap());
    assert_eq!(block_on(from.copy_range(1000, &into, 0, u64::MAX >> 2)).unwrap(), 4000);
    assert_eq!(std::fs::read(&to).unwrap(), content(1000, 4000));
    assert_eq!(block_on(from.copy_range(5000, &into, 0, 10)).unwrap(), 0);
    // The kernel copies nothing from such files.
    let status = File::open_blocking("/proc/self/status").unwrap();
    let copied = block_on(status.copy_range(0, &into, 0, 1 << 20)).unwrap();
    assert!(copied > 100, "{copied}");
    assert!(std::fs::read(&to).unwrap().starts_with(b"Name:"));
}

/// Makes a file that is a hole but for two pages.
fn sparse(path: &Path, len: usize) {
    let file = std::fs::File::create(path).unwrap();
    file.set_len(len as u64).unwrap();
    file.write_all_at(&content(0, PAGE), MIB as u64).unwrap();
    file.write_all_at(&content(7, PAGE), (len - MIB) as u64).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn holes_stay_holes_and_replace_data() {
    let (folder, memory) = (Folder::new(), InMemory::new("holes"));
    let from = folder.file("from", b"");
    sparse(&from, 64 * MIB);
    let expected = std::fs::read(&from).unwrap();
    for to in [folder.file("to", b""), folder.file("full", &[1; 8 * MIB]), memory.file("to", &[1; 8 * MIB])] {
        let (from, into) = (File::open_blocking(&from).unwrap(), both().open_blocking(&to).unwrap());
        assert_eq!(block_on(from.copy_range(0, &into, 0, 64 * MIB as u64)).unwrap(), 64 * MIB as u64);
        assert!(std::fs::read(&to).unwrap() == expected, "{}", to.display());
        let bytes = std::fs::metadata(&to).unwrap().blocks() * 512;
        assert!(bytes < MIB as u64, "{bytes} bytes of blocks in {}", to.display());
    }
}

#[test]
fn f62_a_copy_moves_no_position_that_the_program_shares() {
    const RECORD: usize = 64;
    const COPIES: usize = 300;
    let memory = InMemory::new("positions");
    for route in routes() {
        let path = memory.file("shared", &content(0, 16 * PAGE));
        let (mut writes, mut reads) = (both_of_std(&path), std::fs::File::open(&path).unwrap());
        writes.set_len(64 * MIB as u64).unwrap();
        // The copies only look for holes, since they copy nothing but them.
        let shared = [writes.try_clone().unwrap(), reads.try_clone().unwrap()];
        let shared = shared.map(|file| OpenOptions::new().route(route).from_std(file).unwrap());
        let into = both().open_blocking(memory.file("to", b"")).unwrap();
        let are_over = AtomicBool::new(false);
        let records = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut records = 0_usize;
                while !are_over.load(Ordering::Relaxed) && records < 32 * MIB / RECORD {
                    writes.write_all(&[records as u8 | 1; RECORD]).unwrap();
                    records += 1;
                }
                records
            });
            let reader = scope.spawn(|| {
                let mut bytes = 0_u64;
                while !are_over.load(Ordering::Relaxed) && bytes < 32 * MIB as u64 {
                    reads.read_exact(&mut [0; RECORD]).unwrap();
                    bytes += RECORD as u64;
                    assert_eq!(reads.stream_position().unwrap(), bytes, "{route:?}");
                }
            });
            for _ in 0..COPIES {
                for source in &shared {
                    block_on(source.copy_range(48 * MIB as u64, &into, 0, MIB as u64)).unwrap();
                }
            }
            are_over.store(true, Ordering::Relaxed);
            reader.join().unwrap();
            writer.join().unwrap()
        });
        assert_eq!(writes.stream_position().unwrap(), (records * RECORD) as u64, "{route:?}");
        let written = std::fs::read(&path).unwrap();
        let is_right = |at: usize| written[at * RECORD..][..RECORD] == [at as u8 | 1; RECORD];
        assert_eq!((0..records).filter(|&at| !is_right(at)).count(), 0, "of {records} records by {route:?}");
    }
}

fn both_of_std(path: &Path) -> std::fs::File {
    std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn f62_a_copy_of_a_file_with_holes_drops_no_record_lock() {
    let folder = Folder::new();
    let path = folder.file("from", b"");
    sparse(&path, 4 * MIB);
    let (holder, other) = (both_of_std(&path), both_of_std(&path));
    // SAFETY: plain numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    // SAFETY: the kernel reads the record during the call.
    assert_eq!(unsafe { libc::fcntl(holder.as_raw_fd(), libc::F_SETLK, &lock) }, 0);
    let (source, into) =
        (File::open_blocking(&path).unwrap(), both().open_blocking(folder.file("to", b"")).unwrap());
    assert_eq!(block_on(source.copy_range(0, &into, 0, 4 * MIB as u64)).unwrap(), 4 * MIB as u64);
    // As another process would: a lock of an open file description is in the way of the process's own.
    // SAFETY: the kernel changes the record during the call.
    assert_eq!(unsafe { libc::fcntl(other.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) }, 0);
    assert_eq!(i32::from(lock.l_type), libc::F_WRLCK, "nobody has a lock");
}

#[test]
fn f62_a_file_that_cannot_be_opened_again_is_copied_with_zeros_for_holes() {
    let name = "f62_a_file_that_cannot_be_opened_again_is_copied_with_zeros_for_holes";
    if workers_are_forced() || !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("from", b"");
    sparse(&path, 4 * MIB);
    let expected = std::fs::read(&path).unwrap();
    let mut user = both_of_std(&path);
    user.seek(SeekFrom::Start(1234)).unwrap();
    let source = OpenOptions::new().route(Route::Inline).from_std(user.try_clone().unwrap()).unwrap();
    let to = folder.file("to", b"");
    let into = both().route(Route::Inline).open_blocking(&to).unwrap();
    support::filters::deny(libc::SYS_openat, libc::EACCES);
    assert_eq!(block_on(source.copy_range(0, &into, 0, 4 * MIB as u64)).unwrap(), 4 * MIB as u64);
    assert_eq!(user.stream_position().unwrap(), 1234);
    assert!(block_on(into.read_exact_at(vec![0; 4 * MIB], 0)).unwrap() == expected);
}

#[test]
fn a_hole_is_not_made_where_it_would_destroy_data() {
    let folder = Folder::new();
    let path = folder.file("from", b"");
    sparse(&path, 4 * MIB);
    let before = std::fs::read(&path).unwrap();
    let file = both().open_blocking(&path).unwrap();
    // The hole in front would be made over the source's own data.
    let overlap = block_on(file.copy_range(0, &file, MIB as u64, 4 * MIB as u64)).unwrap_err();
    assert_eq!((overlap.errno(), overlap.done()), (Some(libc::EINVAL), 0));
    // The copy would make the source longer, and never come to its end.
    let grows = block_on(file.copy_range(0, &file, 4 * MIB as u64, 1 << 40)).unwrap_err();
    assert_eq!((grows.errno(), grows.done()), (Some(libc::EINVAL), 0));
    assert!(std::fs::read(&path).unwrap() == before);
    let log = folder.file("log", b"records");
    let appending = OpenOptions::new().write(true).custom_flags(libc::O_APPEND).open_blocking(&log).unwrap();
    for len in [MIB as u64 / 2, 2 * MIB as u64] {
        let refused = block_on(file.copy_range(0, &appending, 100, len)).unwrap_err();
        assert_eq!((refused.errno(), refused.done()), (Some(libc::EBADF), 0));
    }
    assert_eq!(std::fs::read(&log).unwrap(), b"records");
}

#[test]
fn a_copy_that_is_not_possible_fails_with_a_reason() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 10 * PAGE));
    let (file, other) = (both().open_blocking(&path).unwrap(), folder.file("other", b""));
    let overlap = block_on(file.copy_range(0, &file, 100, 5000)).unwrap_err();
    assert_eq!((overlap.errno(), overlap.done()), (Some(libc::EINVAL), 0));
    assert!(overlap.to_string().contains("overlap"), "{overlap}");
    assert_eq!(block_on(file.copy_range(0, &file, 20 * PAGE as u64, 5000)).unwrap(), 5000);
    let reading = File::open_blocking(&other).unwrap();
    let unwritable = block_on(file.copy_range(0, &reading, 0, 10)).unwrap_err();
    assert_eq!(unwritable.errno(), Some(libc::EBADF));
    assert!(unwritable.to_string().contains("not for writing"), "{unwritable}");
    let writing = OpenOptions::new().write(true).open_blocking(&other).unwrap();
    let refused = |from: &File, to: &File| {
        let refused = block_on(from.copy_range(0, to, 100 * PAGE as u64, 4 * PAGE as u64)).unwrap_err();
        assert_eq!((refused.errno(), refused.done()), (Some(libc::EBADF), 0));
    };
    refused(&writing, &file);
    // Neither if there are only holes.
    std::fs::OpenOptions::new().write(true).open(&other).unwrap().set_len(8 * PAGE as u64).unwrap();
    refused(&writing, &file);
    refused(&reading, &reading);
    std::fs::write(&other, b"").unwrap();
    for (offset, at, len) in [(u64::MAX, 0, 1), (0, u64::MAX, 1), (0, 0, u64::MAX), (0, i64::MAX as u64, 1)] {
        let mut batch = Batch::new();
        batch.add(file.copy_range(offset, &writing, at, len));
        let failed =
            [block_on(file.copy_range(offset, &writing, at, len)), batch.run().remove(0).result.map(|_| 0)];
        for failed in failed {
            assert_eq!(failed.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
    assert_eq!(std::fs::metadata(&other).unwrap().len(), 0);
}

#[test]
fn direct_and_adaptive_files_can_be_copied() {
    let folder = Folder::new();
    let pool = Pool::new(1 << 20);
    let (from, to) = (folder.file("from", &content(0, 9 * PAGE)), folder.file("to", b""));
    for direct in [true, false] {
        let mut options = both();
        options.buffered_fallback(true).direct(direct).adaptive(!direct);
        let (from, into) = (options.open_blocking(&from).unwrap(), options.open_blocking(&to).unwrap());
        assert_eq!(
            block_on(from.copy_range(PAGE as u64, &into, 0, 8 * PAGE as u64)).unwrap(),
            8 * PAGE as u64
        );
        let got = block_on(into.read_at(pool.get(8 * PAGE).unwrap(), 0)).unwrap();
        assert_eq!(got[..], content(PAGE as u64, 8 * PAGE));
    }
}

#[test]
fn a_cancelled_copy_says_how_much_was_copied() {
    const LEN: usize = 256 * MIB;
    let memory = InMemory::new("cancelled");
    let from = memory.file("from", b"");
    let block = content(0, MIB);
    let file = std::fs::File::create(&from).unwrap();
    (0..LEN / MIB).for_each(|at| file.write_all_at(&block, (at * MIB) as u64).unwrap());
    let to = memory.file("to", b"");
    let (from, into) = (File::open_blocking(from).unwrap(), both().open_blocking(&to).unwrap());
    let length = || std::fs::metadata(&to).unwrap().len();
    let begin = || std::fs::File::create(&to).unwrap();
    let has_begun = || length() > 0;
    // A copy may end before this thread comes to cancel it.
    let error = (0..50).find_map(|_| {
        begin();
        let mut queue = Queue::new();
        let token = queue.add(from.copy_range(0, &into, 0, LEN as u64), 0);
        queue.submit();
        wait_for("the copy to begin", has_begun);
        queue.cancel(token);
        queue.wait_for(token).unwrap().result.err()
    });
    let error = error.expect("a copy that is cancelled half way");
    assert_eq!(error.errno(), Some(libc::ECANCELED), "{error}");
    assert!(error.done() > 0 && error.done() < LEN, "{error}");
    assert_eq!(error.done() as u64, length(), "{error}");
    // One that is dropped ends too.
    let was_cut = (0..50).any(|_| {
        begin();
        futures::executor::block_on(async {
            let mut copy = Box::pin(from.copy_range(0, &into, 0, LEN as u64));
            assert!(support::poll_once(&mut copy).await.is_pending());
            wait_for("the copy to begin", has_begun);
        });
        let mut before = 0;
        wait_for("the copy to end", || {
            // The kernel may still be copying: it has ended if the file does not grow.
            std::thread::sleep(std::time::Duration::from_millis(50));
            std::mem::replace(&mut before, length()) == length()
        });
        before < LEN as u64
    });
    assert!(was_cut);
}

#[test]
fn ranges_of_one_device_that_overlap_are_refused() {
    let data = content(0, 4 * MIB);
    let Some(device) = Loop::over("ranges_of_one_device_that_overlap_are_refused", &data) else { return };
    let (file, other) =
        (both().open_blocking(device.device()).unwrap(), both().open_blocking(device.device()).unwrap());
    let overlap = block_on(file.copy_range(0, &other, PAGE as u64, MIB as u64)).unwrap_err();
    assert_eq!((overlap.errno(), overlap.done()), (Some(libc::EINVAL), 0));
    assert_eq!(block_on(file.copy_range(0, &other, MIB as u64, MIB as u64)).unwrap(), MIB as u64);
    let mut now = vec![0; 4 * MIB];
    std::fs::File::open(device.device()).unwrap().read_exact_at(&mut now, 0).unwrap();
    assert!(
        now[..MIB] == data[..MIB] && now[MIB..2 * MIB] == data[..MIB] && now[2 * MIB..] == data[2 * MIB..]
    );
}

#[test]
fn a_copy_within_a_file_ends_where_the_file_ended_before() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 2 * PAGE + 100));
    let file = both().open_blocking(&path).unwrap();
    assert_eq!(
        block_on(file.copy_range(PAGE as u64, &file, MIB as u64, MIB as u64 / 2)).unwrap(),
        PAGE as u64 + 100
    );
    let now = std::fs::read(&path).unwrap();
    assert_eq!(now.len(), MIB + PAGE + 100);
    assert_eq!(now[MIB..], content(PAGE as u64, PAGE + 100));
}

#[test]
fn a_direct_file_gets_the_hole_at_the_end() {
    let folder = Folder::new();
    let (from, to) = (folder.file("from", b""), folder.file("to", b""));
    sparse(&from, 4 * MIB);
    let source = std::fs::OpenOptions::new().write(true).open(&from).unwrap();
    for len in [8 * MIB, 8 * MIB + 100] {
        source.set_len(len as u64).unwrap();
        std::fs::write(&to, b"").unwrap();
        let into = both().direct(true).buffered_fallback(true).open_blocking(&to).unwrap();
        let from = File::open_blocking(&from).unwrap();
        assert_eq!(block_on(from.copy_range(0, &into, 0, u64::MAX >> 2)).unwrap(), len as u64);
        assert!(std::fs::read(&to).unwrap() == std::fs::read(folder.path().join("from")).unwrap());
    }
}

#[test]
fn a_copy_of_a_file_that_is_longer_than_any_data_ends() {
    let memory = InMemory::new("vast");
    let (from, to) = (memory.file("from", b""), memory.file("to", b""));
    std::fs::OpenOptions::new().write(true).open(&from).unwrap().set_len(1 << 60).unwrap();
    let (source, into) = (File::open_blocking(&from).unwrap(), both().open_blocking(&to).unwrap());
    let copied = must_end("a copy", move || block_on(source.copy_range(0, &into, 0, 1 << 61)).unwrap());
    assert!(copied > (1 << 55) && copied < (1 << 56), "{copied}");
    assert_eq!(std::fs::metadata(&to).unwrap().len(), copied);
}

#[test]
fn a_thread_that_is_ending_copies_between_file_systems() {
    /// Copies when the thread's own values are dropped.
    struct AtEnd(File, File);

    impl Drop for AtEnd {
        fn drop(&mut self) {
            let mut copy = std::pin::pin!(self.0.copy_range(0, &self.1, 0, 100));
            let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
            // Inline, so that it ends at once.
            let copied = std::future::Future::poll(copy.as_mut(), context);
            assert!(matches!(copied, std::task::Poll::Ready(Ok(100))));
        }
    }

    thread_local! {
        static LAST: std::cell::RefCell<Option<AtEnd>> = const { std::cell::RefCell::new(None) };
    }

    let name = "a_thread_that_is_ending_copies_between_file_systems";
    // If it fails, the process is aborted.
    if workers_are_forced() || !in_child(name) {
        return;
    }
    let (folder, memory) = (Folder::new(), InMemory::new("ending"));
    let (from, to) = (memory.file("from", &[1; 100]), folder.file("to", b""));
    let source = OpenOptions::new().read(true).route(Route::Inline).open_blocking(&from).unwrap();
    let into = both().open_blocking(&to).unwrap();
    let thread = std::thread::spawn(move || {
        LAST.set(Some(AtEnd(source.clone(), into.clone())));
        // What the library keeps for the thread is made later, and dropped first.
        futures::executor::block_on(source.copy_range(0, &into, 0, 100)).unwrap();
        std::fs::write(&to, b"").unwrap();
        to
    });
    assert_eq!(std::fs::read(thread.join().unwrap()).unwrap(), [1; 100]);
}

#[test]
fn where_the_kernel_does_not_copy_the_same_files_are_refused() {
    let name = "where_the_kernel_does_not_copy_the_same_files_are_refused";
    if workers_are_forced() || !in_child(name) {
        return;
    }
    support::filters::deny(libc::SYS_copy_file_range, libc::ENOSYS);
    let folder = Folder::new();
    let (from, log) = (folder.file("from", &content(0, PAGE)), folder.file("log", b"records"));
    let from = OpenOptions::new().read(true).route(Route::Inline).open_blocking(&from).unwrap();
    let appending = OpenOptions::new().write(true).custom_flags(libc::O_APPEND).open_blocking(&log).unwrap();
    let refused = block_on(from.copy_range(0, &appending, 100, 200)).unwrap_err();
    assert_eq!((refused.errno(), refused.done()), (Some(libc::EBADF), 0));
    assert_eq!(std::fs::read(&log).unwrap(), b"records");
    let writing = OpenOptions::new().write(true).open_blocking(&log).unwrap();
    assert_eq!(block_on(from.copy_range(0, &writing, 0, 200)).unwrap(), 200);
    assert_eq!(std::fs::read(&log).unwrap(), content(0, 200));
}

#[test]
fn others_have_their_turn_during_a_long_copy() {
    let name = "others_have_their_turn_during_a_long_copy";
    if !in_child(name) {
        return;
    }
    const LEN: usize = 256 * MIB;
    ringfile::runtime::set_worker_threads(1);
    let memory = InMemory::new("turns");
    let (from, to) = (memory.file("from", b""), memory.file("to", b""));
    let file = std::fs::File::create(&from).unwrap();
    let block = content(0, MIB);
    (0..LEN / MIB).for_each(|at| file.write_all_at(&block, (at * MIB) as u64).unwrap());
    let (source, into) = (
        OpenOptions::new().read(true).route(Route::Workers).open_blocking(&from).unwrap(),
        both().open_blocking(&to).unwrap(),
    );
    // This thread may sleep for as long as a copy takes.
    let is_between = (0..20).any(|_| {
        let mut queue = Queue::new();
        let copy = queue.add(source.copy_range(0, &into, 0, LEN as u64), 0);
        let read = queue.add(source.read_at(Vec::with_capacity(PAGE), 0), 1);
        assert_eq!(queue.wait_for(read).unwrap().result.unwrap(), PAGE);
        let is_between = !queue.is_done(copy);
        assert_eq!(queue.wait_for(copy).unwrap().result.unwrap(), LEN);
        is_between
    });
    assert!(is_between, "a read waited for a whole copy");
}
