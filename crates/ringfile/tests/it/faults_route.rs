//! Files whose calls are slow, and the route that their operations then take; long submissions (F25, F28, F31, F32).

use std::cell::Cell;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::support;
use crate::support::fuse::{Act, Op, Server};
use crate::support::mounts::Mount;
use crate::support::{Folder, all, assert_content, content, must_end, needs_ring, poll_once, yield_now};
use ringfile::metrics::Metrics;
use ringfile::{File, OpenOptions, Pool, Route, block_on, spawn, thread_metrics};

const PAGE: usize = 4096;
const EVERYWHERE: std::ops::Range<u64> = 0..u64::MAX;

fn writable(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).open_blocking(path).unwrap()
}

/// Returns the counts of the operations of `run`, and how many turns another task of this thread had meanwhile.
async fn beside<F: Future>(run: F) -> (Metrics, usize, F::Output) {
    beside_with(&Arc::default(), run).await
}

/// The same, with a counter of all turns that other threads may read.
async fn beside_with<F: Future>(turns: &Arc<AtomicUsize>, run: F) -> (Metrics, usize, F::Output) {
    let ends = Rc::new(Cell::new(false));
    let (theirs, end) = (Arc::clone(turns), Rc::clone(&ends));
    let other = spawn(async move {
        while !end.get() {
            theirs.fetch_add(1, Ordering::Relaxed);
            yield_now().await;
        }
    });
    yield_now().await;
    let (before, had) = (thread_metrics(), turns.load(Ordering::Relaxed));
    let output = run.await;
    let (counts, had) = (thread_metrics() - before, turns.load(Ordering::Relaxed) - had);
    ends.set(true);
    other.await.unwrap();
    (counts, had, output)
}

#[test]
fn f28_a_write_that_stalls_sends_its_file_back_to_the_ring() {
    let name = "f28_a_write_that_stalls_sends_its_file_back_to_the_ring";
    if !needs_ring(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
    server.rule(Op::Write, EVERYWHERE, 1, Act::Delay(Duration::from_millis(50)));
    must_end(name, move || {
        block_on(async {
            let file = writable(&server.path());
            let before = thread_metrics();
            file.write_at(content(0, PAGE), 0).await.unwrap();
            assert_eq!((thread_metrics() - before).inline_ops, 1, "nothing was known");
            let turns = Arc::default();
            let (counts, _, ()) = beside_with(&turns, async {
                for page in 1..6 {
                    server.rule(Op::Write, EVERYWHERE, 1, Act::Hold);
                    let released = server.release_after_turns(1, &turns);
                    file.write_at(content(page * PAGE as u64, PAGE), page * PAGE as u64).await.unwrap();
                    released.join().unwrap();
                }
            })
            .await;
            assert_eq!((counts.ops, counts.inline_ops), (5, 0), "{counts:?}");
            // The route of reads is learned separately.
            assert_content(&file.read_exact_at(vec![0; 6 * PAGE], 0).await.unwrap(), 0);
        });
    });
}

const FREEZE: libc::Ioctl = 0xC004_5877_u32 as libc::Ioctl;
const THAW: libc::Ioctl = 0xC004_5878_u32 as libc::Ioctl;

/// Freezes a file system, whose writes then block as on an overloaded disk, and thaws it when `wait` returns.
fn freeze(folder: &std::path::Path, wait: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    let folder = std::fs::File::open(folder).unwrap();
    // SAFETY: both calls take a number that they do not use.
    assert_eq!(unsafe { libc::ioctl(folder.as_raw_fd(), FREEZE, 0) }, 0);
    std::thread::spawn(move || {
        wait();
        // SAFETY: as above.
        assert_eq!(unsafe { libc::ioctl(folder.as_raw_fd(), THAW, 0) }, 0);
    })
}

/// Returns whether a thread of this process is blocked in the kernel, where no signal reaches it.
fn is_blocked(thread: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
}

#[test]
fn f28_a_stall_after_many_quick_writes_sends_the_file_back_to_the_ring() {
    let name = "f28_a_stall_after_many_quick_writes_sends_the_file_back_to_the_ring";
    if !needs_ring(name) {
        return;
    }
    let Some(disk) = Mount::ext4(name, 64 << 20) else { return };
    must_end(name, move || {
        block_on(async {
            let file = writable(&disk.path().join("data"));
            // The first calls allocate, and may be so slow that the file uses the ring for a moment.
            let began = std::time::Instant::now();
            let (mut inline, mut is_stalled) = (0, false);
            while !is_stalled {
                let mut last = 0;
                while inline < 1000 || last < 64 {
                    let before = thread_metrics();
                    for page in 0..64 {
                        file.write_at(content(page * PAGE as u64, PAGE), page * PAGE as u64).await.unwrap();
                    }
                    last = (thread_metrics() - before).inline_ops;
                    inline += last;
                    assert!(began.elapsed() < support::patience(), "{inline} inline writes");
                }
                // SAFETY: returns a number.
                let this = unsafe { libc::gettid() };
                let thawed = freeze(disk.path(), move || {
                    let began = std::time::Instant::now();
                    while !is_blocked(this) && began.elapsed() < Duration::from_secs(2) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    // The stall itself. A simulation has no lanes.
                    std::thread::sleep(Duration::from_millis(200));
                });
                let (stalled, _, ()) =
                    beside(async { drop(file.write_at(content(0, PAGE), 0).await.unwrap()) }).await;
                thawed.join().unwrap();
                // On a busy machine the last of the quick writes may have been slow, and this one is not inline.
                is_stalled = (stalled.ops, stalled.inline_ops) == (1, 1);
            }
            // Until the other task has had its turns, or a time that is long enough for them has passed.
            let turns = Arc::new(AtomicUsize::new(0));
            let seen = Arc::clone(&turns);
            let thawed = freeze(disk.path(), move || {
                support::comes_true(|| seen.load(Ordering::Relaxed) > 200);
            });
            let (counts, turns, ()) = beside_with(&turns, async {
                let writes =
                    (0..8).map(|page| file.write_at(content(page * 4096, PAGE), page * 4096)).collect();
                assert!(all(writes).await.into_iter().all(|result| result.is_ok()));
            })
            .await;
            thawed.join().unwrap();
            assert_eq!((counts.ops, counts.inline_ops), (8, 0), "{counts:?}");
            assert!(turns > 100, "another task had {turns} turns while the file system was frozen");
            assert_content(&file.read_exact_at(vec![0; 64 * PAGE], 0).await.unwrap(), 0);
            drop(file);
        });
        drop(disk);
    });
}

/// Starts many reads that complete as they are submitted: a call that submitted all of them would take long.
#[test]
fn f25_many_operations_started_at_once_are_submitted_in_slices() {
    let name = "f25_many_operations_started_at_once_are_submitted_in_slices";
    if !needs_ring(name) {
        return;
    }
    const READS: u64 = 2048;
    /// If more operations than this end between two turns of another task, submission is not sliced.
    const SLICE: u64 = 256;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 512 * PAGE));
    for (direct, in_batch) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut options = OpenOptions::new();
        options.read(true).direct(direct).buffered_fallback(true).route(Route::Ring);
        let file = options.open_blocking(&path).unwrap();
        let pool = Pool::new(16 << 20);
        let before = block_on(async { thread_metrics() });
        let (most, turns) = block_on(async {
            let (submitted, ends) = (Rc::new(Cell::new((0, 0))), Rc::new(Cell::new(false)));
            let (theirs, end) = (Rc::clone(&submitted), Rc::clone(&ends));
            let other = spawn(async move {
                let (mut last, mut most, mut turns) = (thread_metrics().ops, 0, 0);
                while !end.get() {
                    yield_now().await;
                    let now = thread_metrics().ops;
                    most = most.max(now - last);
                    turns += usize::from(now > last);
                    last = now;
                }
                theirs.set((most, turns));
            });
            yield_now().await;
            let read = |i| (pool.get(PAGE).unwrap(), i % 512 * PAGE as u64);
            if in_batch {
                let mut batch = ringfile::Batch::new().depth(READS as usize);
                for (buffer, offset) in (0..READS).map(read) {
                    batch.add(file.read_at(buffer, offset));
                }
                for (i, done) in batch.await.into_iter().enumerate() {
                    assert_eq!(done.result.unwrap(), PAGE);
                    assert_content(&done.buffer.unwrap(), i as u64 % 512 * PAGE as u64);
                }
            } else {
                let reads = (0..READS).map(read).map(|(buffer, offset)| file.read_exact_at(buffer, offset));
                for (i, result) in all(reads.collect()).await.into_iter().enumerate() {
                    assert_content(&result.unwrap(), i as u64 % 512 * PAGE as u64);
                }
            }
            ends.set(true);
            other.await.unwrap();
            submitted.get()
        });
        let how = format!("direct {direct}, batch {in_batch}: {most} ended between two turns, {turns} turns");
        let calls = (block_on(async { thread_metrics() }) - before).submitted_per_enter;
        assert!(calls[9..].iter().all(|&calls| calls == 0), "{how}: a call took {SLICE} entries: {calls:?}");
        // Completions of a drive may arrive all at once, in fewer turns than the submissions took.
        assert!(direct || most <= SLICE && turns as u64 >= READS / SLICE, "{how}");
    }
}

#[test]
fn f28_a_frozen_file_system_holds_up_no_thread_that_leaves_writes_to_others() {
    let name = "f28_a_frozen_file_system_holds_up_no_thread_that_leaves_writes_to_others";
    let Some(disk) = Mount::ext4(name, 16 << 20) else { return };
    let routes = [Route::Workers, Route::Ring];
    for route in &routes[..if support::is_without_ring() { 1 } else { 2 }] {
        let path = disk.path().join("data");
        let route = *route;
        let folder = disk.path().to_owned();
        must_end(name, move || {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).route(route).open_blocking(path).unwrap();
            block_on(async {
                file.write_at(content(0, PAGE), 0).await.unwrap();
                let turns = Arc::new(AtomicUsize::new(0));
                let seen = Arc::clone(&turns);
                let thawed = freeze(&folder, move || {
                    support::comes_true(|| seen.load(Ordering::Relaxed) > 200);
                });
                let write = file.write_at(content(PAGE as u64, PAGE), PAGE as u64);
                let (_, turns, written) = beside_with(&turns, write).await;
                thawed.join().unwrap();
                written.unwrap();
                assert!(turns > 100, "{route:?}: {turns} turns while the file system was frozen");
                assert_content(&file.read_exact_at(vec![0; 2 * PAGE], 0).await.unwrap(), 0);
            });
        });
    }
}

/// Other tasks must run while the kernel makes a write wait.
#[test]
fn f28_dirty_throttling_holds_up_the_writes_and_not_the_other_tasks() {
    let name = "f28_dirty_throttling_holds_up_the_writes_and_not_the_other_tasks";
    if !needs_ring(name) {
        return;
    }
    /// The kernel throttles writes after a few hundred, or not at all.
    const MOST: u64 = 4000;
    /// If the ring carries out this many in a row, the file's writes are no longer inline.
    const ENOUGH: u64 = 100;
    const LEN: usize = 64 << 10;
    const SPAN: u64 = 3000;
    let Some(disk) = Mount::ext4(name, 256 << 20) else { return };
    if let Err(why) = disk.throttle(1 << 20) {
        return support::skip(name, why);
    }
    let throttled = must_end(name, move || {
        let path = disk.path().join("data");
        let file = OpenOptions::new().read(true).write(true).create(true).open_blocking(path).unwrap();
        let throttled = block_on(async {
            let start = thread_metrics();
            let counts = || thread_metrics() - start;
            let offset = |i: u64| i % SPAN * LEN as u64;
            let mut written = 0;
            while counts().ops == counts().inline_ops && written < MOST {
                file.write_at(content(offset(written), LEN), offset(written)).await.unwrap();
                written += 1;
            }
            if written == MOST {
                return false;
            }
            // One slow first call may only have waited for a processor; the kernel's throttling continues.
            loop {
                let before = counts();
                let (after, turns, ()) = beside(async {
                    for i in written..written + ENOUGH {
                        file.write_at(content(offset(i), LEN), offset(i)).await.unwrap();
                    }
                })
                .await;
                written += ENOUGH;
                assert_eq!(after.ops, ENOUGH, "after {before:?}");
                if after.inline_ops == 0 {
                    assert!(turns as u64 > 2 * ENOUGH, "the other task had {turns} turns");
                    break;
                }
                assert!(written < MOST, "calls are still made inline: {after:?} after {before:?}");
            }
            for i in 0..written.min(SPAN) {
                assert_content(&file.read_exact_at(vec![0; LEN], offset(i)).await.unwrap(), offset(i));
            }
            true
        });
        drop((file, disk));
        throttled
    });
    if !throttled {
        support::skip(name, "the kernel did not throttle the disk");
    }
}

#[test]
fn f31_a_slow_file_without_non_blocking_io_is_not_read_inline_after_the_first_measurement() {
    let name = "f31_a_slow_file_without_non_blocking_io_is_not_read_inline_after_the_first_measurement";
    if !needs_ring(name) {
        return;
    }
    for direct in [false, true] {
        let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
        server.rule(Op::Read, EVERYWHERE, 1, Act::Delay(Duration::from_millis(100)));
        must_end(name, move || {
            block_on(async {
                let file = OpenOptions::new().read(true).direct(direct).open_blocking(server.path()).unwrap();
                let pool = Pool::new(1 << 20);
                let before = thread_metrics();
                assert_content(&file.read_exact_at(pool.get(PAGE).unwrap(), 0).await.unwrap(), 0);
                let first = (thread_metrics() - before).inline_ops;
                let is_timed = !direct && !server.shows_its_cache();
                assert_eq!(first, u64::from(is_timed), "a server's answer is waited for only to time it");
                let turns = Arc::default();
                let (counts, _, ()) = beside_with(&turns, async {
                    for page in 0..4 {
                        server.rule(Op::Read, EVERYWHERE, 1, Act::Hold);
                        let released = server.release_after_turns(1, &turns);
                        let read = file.read_exact_at(pool.get(PAGE).unwrap(), page * 4096);
                        assert_content(&read.await.unwrap(), page * 4096);
                        released.join().unwrap();
                    }
                    // Several at a time.
                    server.rule(Op::Read, EVERYWHERE, usize::MAX, Act::Hold);
                    let released = server.release_after_turns(2, &turns);
                    let reads =
                        (0..8).map(|page| file.read_exact_at(pool.get(PAGE).unwrap(), page * 4096)).collect();
                    for (page, result) in all(reads).await.into_iter().enumerate() {
                        assert_content(&result.unwrap(), (page * PAGE) as u64);
                    }
                    released.join().unwrap();
                })
                .await;
                assert_eq!((counts.ops, counts.inline_ops), (12, 0), "{counts:?}");
            });
        });
    }
}

#[test]
fn f32_on_an_overlay_every_byte_is_right_and_cached_reads_are_inline() {
    let name = "f32_on_an_overlay_every_byte_is_right_and_cached_reads_are_inline";
    let layers = Folder::new();
    let Some(overlay) = Mount::overlay(name, &content(0, 256 * PAGE), &layers) else { return };
    block_on(async {
        // One file in the lower layer, one that was copied up, one created in the upper layer.
        let below = File::open_blocking(overlay.path().join("below")).unwrap();
        let made = writable(&overlay.path().join("made"));
        for page in 0..256 {
            made.write_at(content(page * 4096, PAGE), page * 4096).await.unwrap();
        }
        made.sync_all().await.unwrap();
        for file in [&below, &made] {
            // Fills the cache, and completes the first measurement.
            for page in 0..256 {
                assert_content(&file.read_exact_at(vec![0; PAGE], page * 4096).await.unwrap(), page * 4096);
            }
        }
        if !support::is_without_ring() {
            for file in [&below, &made] {
                cached_reads_are_inline(file).await;
            }
        }
        let copied = writable(&overlay.path().join("below"));
        copied.write_at(content(9 * 4096, PAGE), 9 * 4096).await.unwrap();
        copied.write_at(vec![0xEE; 10], 5000).await.unwrap();
        let page = copied.read_exact_at(vec![0; PAGE], 4096).await.unwrap();
        assert_eq!(page[904..914], [0xEE; 10]);
        assert_content(&page[..904], 4096);
        assert_content(&page[914..], 5010);
        drop(copied);
    });
    assert_eq!(std::fs::read(overlay.path().join("made")).unwrap(), content(0, 256 * PAGE));
}

/// Asserts that reads become inline again after a slow first call.
async fn cached_reads_are_inline(file: &File) {
    let began = std::time::Instant::now();
    loop {
        let before = thread_metrics();
        for page in 0..100 {
            assert_content(&file.read_exact_at(vec![0; PAGE], page * 4096).await.unwrap(), page * 4096);
        }
        let counts = thread_metrics() - before;
        if counts.inline_ops == 100 {
            return;
        }
        assert!(began.elapsed() < support::patience(), "{counts:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads and writes 64 pages at a time, three times. Returns how many of 64 reads were finished when they had all been
/// started, at most, and this thread's counts.
async fn read_and_write_together(file: &File, pool: &Pool) -> (u64, Metrics) {
    let (before, mut most) = (thread_metrics(), 0);
    for _ in 0..3 {
        let (mut waiting, mut ended) = (Vec::new(), 0);
        for page in 0..64 {
            let mut read = Box::pin(file.read_exact_at(pool.get(PAGE).unwrap(), page * 4096));
            match poll_once(&mut read).await {
                Poll::Pending => waiting.push((page, read)),
                Poll::Ready(result) => {
                    assert_content(&result.unwrap(), page * 4096);
                    ended += 1;
                }
            }
        }
        most = most.max(ended);
        for (page, read) in waiting {
            assert_content(&read.await.unwrap(), page * 4096);
        }
        let writes = (0..64).map(|page| {
            let mut buffer = pool.get(PAGE).unwrap();
            buffer.extend_from_slice(&content(page * 4096, PAGE));
            file.write_at(buffer, page * 4096)
        });
        assert!(all(writes.collect()).await.into_iter().all(|result| result.is_ok()));
    }
    assert_content(&file.read_exact_at(vec![0; 70_000], 77).await.unwrap(), 77);
    let counts = thread_metrics() - before;
    assert_eq!(counts.failed, 0, "{counts:?}");
    (most, counts)
}

#[test]
fn f32_direct_io_on_an_overlay_keeps_its_depth() {
    let name = "f32_direct_io_on_an_overlay_keeps_its_depth";
    // In the build folder, which is usually on a disk: direct I/O in memory does not wait.
    let layers = Folder::inside(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")));
    let Some(overlay) = Mount::overlay(name, &content(0, 256 * PAGE), &layers) else { return };
    let path = overlay.path().join("below");
    let Ok(file) = OpenOptions::new().read(true).write(true).direct(true).open_blocking(path) else {
        return support::skip(name, "the overlay's upper file system has no direct I/O");
    };
    let pool = Pool::new(4 << 20);
    block_on(async {
        // These calls teach the route how long a call takes in each direction: two dozen slow ones are enough.
        for _ in 0..32 {
            let page = file.read_exact_at(pool.get(PAGE).unwrap(), 0).await.unwrap();
            file.write_at(page, 0).await.unwrap();
        }
        // The route makes inline calls again after a while, to see whether they are still slow; each time it waits
        // twice as long. On a busy machine that happens several times in a round, but ever more rarely.
        let mut busy = Vec::new();
        loop {
            let (most, counts) = read_and_write_together(&file, &pool).await;
            if most <= 16 && counts.inline_ops * 20 <= counts.ops {
                break;
            }
            busy.push((most, counts));
            assert!(busy.len() < 10, "reads of 64 that did not wait together with the others: {busy:?}");
        }
    });
    drop(file);
}
