//! Adaptive files: cached data is read from the page cache, the rest past it, and data that is read again gets cached.

use crate::support::handles::Handles as _;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::support;
use crate::support::cache::{Cached, cache, cached_pages, cached_pages_of, drop_cache, is_read_ahead};
use crate::support::mounts::Loop;
use crate::support::{Folder, Random, assert_content, content, in_child, in_child_with, page_size, skip};
use ringfile::internal::assume_memory_is_free;
use ringfile::metrics::Metrics;
use ringfile::queue::ReadRequest;
use ringfile::{Batch, File, OpenOptions, Pool, Queue, block_on, metrics, thread_metrics};

const LEN: usize = 8 << 20;
const PAGE: usize = 4096;
const CACHESTAT: libc::c_long = 451;

/// Returns a folder in the build folder, which is usually on a disk.
fn folder() -> Folder {
    Folder::inside(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// Opens an adaptive file of which nothing is cached, or `None` if this machine has none. From now on the process takes
/// memory for full.
fn cold(test: &str, folder: &Folder, name: &str) -> Option<(File, PathBuf)> {
    open_cold(test, folder.file(name, &content(0, LEN)))
}

fn open_cold(test: &str, path: PathBuf) -> Option<(File, PathBuf)> {
    assume_memory_is_free(Some(false));
    drop_cache(&path);
    let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
    if !file.is_adaptive() {
        skip(test, "this kernel or file system has no adaptive files");
        return None;
    }
    assert_eq!(cached_pages(&path), 0, "the cache could not be dropped");
    Some((file, path))
}

/// Opens a file of several times the content, which no test changes, as [`cold`] does, and waits until data of it that is
/// read ahead is trusted. All such files are made at once, so that the tests wait once together. They have no names, so
/// nothing is left of them.
fn quiet(test: &str, times: usize) -> Option<(File, PathBuf)> {
    const TIMES: [usize; 3] = [1, 12, 16];
    static FILES: OnceLock<[std::fs::File; TIMES.len()]> = OnceLock::new();
    let files = FILES.get_or_init(|| {
        let folder = folder();
        let path = |times: usize| folder.file(&times.to_string(), &content(0, LEN).repeat(times));
        TIMES.map(|times| std::fs::File::open(path(times)).unwrap())
    });
    let at = TIMES.iter().position(|&each| each == times).unwrap();
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), files[at].as_raw_fd()));
    if !is_read_ahead(&path) {
        skip(test, "nothing is read ahead on this file system");
        return None;
    }
    let_it_be(&path);
    open_cold(test, path)
}

/// Waits until the file has been unchanged for so long (5 s) that data read ahead of its use is trusted.
fn let_it_be(path: &Path) {
    let is_quiet = || {
        let of = std::fs::metadata(path).unwrap();
        let changed = Duration::new(of.ctime() as u64, of.ctime_nsec() as u32);
        std::time::UNIX_EPOCH.elapsed().unwrap().saturating_sub(changed) > Duration::from_millis(5100)
    };
    support::wait_for("the file to be unchanged for long enough", is_quiet);
}

/// Returns hits, misses and admissions of all threads. Each test of this file runs in its own process.
fn counts() -> [u64; 3] {
    let Metrics { cache_hits, cache_misses, cache_admitted, .. } = metrics();
    [cache_hits, cache_misses, cache_admitted]
}

fn since(before: [u64; 3]) -> [u64; 3] {
    let now = counts();
    std::array::from_fn(|at| now[at] - before[at])
}

/// Asserts that `counted` hits and misses stand for `reads`. The kernel may read ahead, and after a series of hits one in 16
/// is checked and counts for all, so the last ones may be missing.
fn assert_nearly_all_counted(reads: u64, counted: u64) {
    assert!(reads.abs_diff(counted) < 16, "{counted} of {reads} reads were counted");
}

fn pool() -> Pool {
    Pool::new(16 << 20)
}

fn read(file: &File, offset: usize, len: usize) {
    let buffer = block_on(file.read_exact_at(Vec::with_capacity(len), offset as u64)).unwrap();
    assert_eq!(buffer.len(), len);
    assert_content(&buffer, offset as u64);
}

#[test]
fn large_random_reads_leave_a_full_cache_alone_until_the_fifth_of_a_block() {
    if !in_child("large_random_reads_leave_a_full_cache_alone_until_the_fifth_of_a_block") {
        return;
    }
    let folder = folder();
    let Some((file, path)) = cold("large_random_reads_leave", &folder, "data") else { return };
    for _ in 0..4 {
        let before = counts();
        // Backwards, so that the reads form no stream.
        (0..LEN).step_by(128 << 10).rev().for_each(|offset| read(&file, offset, 128 << 10));
        assert_eq!(since(before), [0, 64, 0]);
        assert_eq!(cached_pages(&path), 0);
    }
    let before = counts();
    (0..LEN).step_by(128 << 10).rev().for_each(|offset| read(&file, offset, 128 << 10));
    let [hits, misses, admitted] = since(before);
    assert_eq!(admitted, misses);
    assert_nearly_all_counted(64, hits + misses);
    // The kernel may have evicted a part of it.
    assert!(cached_pages(&path) > LEN / PAGE * 9 / 10);
    let _cached = Cached::new(&path, 0, LEN);
    let before = counts();
    (0..LEN).step_by(128 << 10).rev().for_each(|offset| read(&file, offset, 128 << 10));
    // After that many misses, only some of the reads check the cache.
    assert!(since(before)[1] < 16);
}

#[test]
fn large_reads_in_order_leave_a_full_cache_alone_until_the_third_of_a_block() {
    if !in_child("large_reads_in_order_leave_a_full_cache_alone_until_the_third_of_a_block") {
        return;
    }
    let folder = folder();
    let Some((file, path)) = cold("large_reads_in_order_leave", &folder, "data") else { return };
    for is_third in [false, false, true] {
        let before = counts();
        let mut queue = Queue::new();
        for offset in (0..LEN).step_by(128 << 10) {
            queue.add(file.read_at(Vec::with_capacity(128 << 10), offset as u64), 0);
        }
        queue.ends(usize::MAX);
        let [hits, misses, admitted] = since(before);
        // The first goes on nowhere.
        assert_eq!(admitted, if is_third { misses - 1 } else { 0 });
        assert_nearly_all_counted(64, hits + misses);
        assert!((cached_pages(&path) > LEN / PAGE * 9 / 10) == is_third);
    }
}

#[test]
fn while_memory_is_free_small_reads_fill_the_cache_at_once_and_large_ones_when_they_repeat() {
    if !in_child("while_memory_is_free_small_reads_fill_the_cache_at_once_and_large_ones_when_they_repeat") {
        return;
    }
    let folder = folder();
    for way in 0..WAYS {
        fill_free_memory(&folder, way);
    }
}

fn fill_free_memory(folder: &Folder, way: u32) {
    let Some((file, path)) = cold("while_memory_is_free", folder, "data") else { return };
    assume_memory_is_free(Some(true));
    // Larger reads are admitted after about 70 that read data again.
    let larger = [(16 << 10, 16 << 10, 1), (128 << 10, 128 << 10, 2)];
    for (len, step, passes_before) in
        [(PAGE, 256 << 10, 0), (12 << 10, 256 << 10, 0)].into_iter().chain(larger)
    {
        drop_cache(&path);
        let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
        for pass in 0..=passes_before {
            let before = counts();
            // Backwards, so that the reads form no stream.
            for offset in (0..LEN).step_by(step).rev() {
                assert_content(&read_by(way, &file, offset, len), offset as u64);
            }
            let (reads, cached) = (LEN / step, cached_pages(&path));
            let [hits, misses, admitted] = since(before);
            // One small read in 16 is checked.
            assert_nearly_all_counted(reads as u64, hits + misses);
            if pass < passes_before {
                // A stream might begin at the first byte.
                let most = reads * len / PAGE / 10;
                assert!(admitted <= 1 && cached <= most, "{cached} pages after pass {pass} with {len}");
                continue;
            }
            // The kernel may have evicted a part of it.
            let least = if passes_before == 0 { reads * 9 / 10 } else { reads * 3 / 4 };
            assert!(cached >= least * len / PAGE, "{cached} pages after {reads} reads of {len}");
            assert!(admitted as usize + 1 >= if passes_before == 0 { misses as usize } else { least });
        }
    }
    // When memory becomes full, reads go past the cache again.
    assume_memory_is_free(Some(false));
    drop_cache(&path);
    (0..LEN).step_by(256 << 10).rev().for_each(|offset| read(&file, offset, PAGE));
    assert_eq!(cached_pages(&path), 0);
}

/// The length of a file larger than twice the memory of any machine that runs tests: 8 TiB.
const VAST: u64 = 8 << 40;

/// Makes the file a hole of this length, and opens it.
fn hole(test: &str, path: &Path, len: u64) -> Option<File> {
    if std::fs::File::create(path).unwrap().set_len(len).is_err() {
        skip(test, "the file system has no files of 8 TiB");
        return None;
    }
    Some(OpenOptions::new().read(true).adaptive(true).open_blocking(path).unwrap())
}

#[test]
fn small_reads_of_a_file_larger_than_memory_are_admitted_only_while_they_read_data_again() {
    let name = "small_reads_of_a_file_larger_than_memory";
    if !in_child("small_reads_of_a_file_larger_than_memory_are_admitted_only_while_they_read_data_again") {
        return;
    }
    let folder = folder();
    let Some((_, path)) = cold(name, &folder, "data") else { return };
    assume_memory_is_free(Some(true));
    let Some(file) = hole(name, &path, VAST) else { return };
    let mut random = Random::new();
    let mut read_among = |pages: u64, reads: u64| {
        let before = counts();
        for _ in 0..reads {
            let read = file.read_exact_at(Vec::with_capacity(PAGE), (random.below(pages) + 1) * PAGE as u64);
            assert!(block_on(read).unwrap().iter().all(|byte| *byte == 0));
        }
        since(before)
    };
    let all = VAST / PAGE as u64 - 2;
    let [_, _, admitted] = read_among(all, 1000);
    assert!(admitted <= 10, "{admitted} of 1000 that read nothing again");
    let [hits, ..] = read_among(64, 1500);
    assert!(hits >= 1000, "{hits} hits in 1500 reads of 64 pages");
    let [_, _, admitted] = read_among(all, 3000);
    assert!(admitted <= 1000, "{admitted} of 3000 that read nothing again");
}

#[test]
fn while_memory_is_free_large_reads_are_admitted_in_a_second_pass_or_the_fifth_time() {
    let name = "while_memory_is_free_large_reads";
    if !in_child("while_memory_is_free_large_reads_are_admitted_in_a_second_pass_or_the_fifth_time") {
        return;
    }
    let folder = folder();
    let Some((_, path)) = cold(name, &folder, "data") else { return };
    assume_memory_is_free(Some(true));
    // Backwards, so that the reads form no stream. Returns how many were admitted.
    let read = |file: &File, blocks: &mut dyn Iterator<Item = u64>| {
        let before = counts();
        for at in blocks {
            let read = file.read_exact_at(Vec::with_capacity(128 << 10), at << 18);
            assert!(block_on(read).unwrap().iter().all(|byte| *byte == 0));
        }
        since(before)[2]
    };
    let Some(file) = hole(name, &path, 1 << 30) else { return };
    assert_eq!(read(&file, &mut (0..200).rev()), 0, "what is read once");
    let admitted = read(&file, &mut (0..200).rev());
    assert!(admitted >= 120, "{admitted} of 200 reads of a second pass");
    // Each third read is a repeat.
    let Some(file) = hole(name, &path, 1 << 30) else { return };
    let admitted = read(&file, &mut (1..2000).rev().flat_map(|at| [2 * at, 2 * at + 1, 2 * at]));
    assert!(admitted <= 20, "{admitted} of 2000 repeats");
    let Some(file) = hole(name, &path, VAST) else { return };
    for pass in 1..=5 {
        let admitted = read(&file, &mut (0..64).rev());
        assert_eq!(admitted, if pass < 5 { 0 } else { 64 }, "pass {pass}");
    }
}

#[test]
fn while_memory_is_free_streams_are_read_ahead_until_they_repeat() {
    if !in_child("while_memory_is_free_streams_are_read_ahead_until_they_repeat") {
        return;
    }
    let Some((file, path)) = quiet("while_memory_is_free_streams", 1) else { return };
    assume_memory_is_free(Some(true));
    for len in [16 << 10, 128 << 10] {
        let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
        drop_cache(&path);
        let before = ahead();
        let pass = || {
            block_on(async {
                for offset in (0..LEN).step_by(len) {
                    let buffer = file.read_exact_at(Vec::with_capacity(len), offset as u64).await.unwrap();
                    assert_content(&buffer, offset as u64);
                }
            });
        };
        // Small reads of a stream are admitted the third time, large ones the second time.
        let passes = if len < 64 << 10 { 2 } else { 1 };
        (0..passes).for_each(|_| pass());
        let [used, _] = ahead_since(before);
        assert!(used > passes * (7 << 20), "{used} bytes were there when they were wanted");
        // The sketch may take a few blocks for others that were read.
        assert!(cached_pages(&path) < LEN / PAGE / 20);
        pass();
        let cached = cached_pages(&path);
        assert!(cached > LEN / PAGE / 2, "{cached} pages after another pass with {len}");
    }
    drop(file);
}

/// Reads a file of several times `LEN` bytes in order, with eight reads of a page in flight.
fn scan_by_eight(file: &File, len: usize) {
    const AT_ONCE: usize = 8;
    block_on(async {
        for offset in (0..len).step_by(AT_ONCE * PAGE) {
            let read = |at: usize| {
                let (file, offset) = (file.clone(), (offset + at * PAGE) as u64);
                ringfile::spawn(async move {
                    let buffer = file.read_exact_at(Vec::with_capacity(PAGE), offset).await.unwrap();
                    assert_content(&buffer, offset % LEN as u64);
                })
            };
            let reads: Vec<_> = (0..AT_ONCE).map(read).collect();
            for read in reads {
                read.await.unwrap();
            }
        }
    });
}

#[test]
fn while_memory_is_free_a_scan_with_several_small_reads_in_flight_fills_the_cache_at_once() {
    if !in_child("while_memory_is_free_a_scan_with_several_small_reads_in_flight_fills_the_cache_at_once") {
        return;
    }
    let folder = folder();
    let Some((file, path)) = cold("while_memory_is_free_a_scan", &folder, "data") else { return };
    assume_memory_is_free(Some(true));
    scan_by_eight(&file, LEN);
    let cached = cached_pages(&path);
    assert!(cached > LEN / PAGE / 2, "{cached} pages");
}

#[test]
fn a_scan_with_several_small_reads_in_flight_passes_through_a_full_cache_and_leaves_it() {
    let name = "a_scan_with_several_small_reads_in_flight_passes_through_a_full_cache_and_leaves_it";
    if !in_child(name) {
        return;
    }
    const TIMES: usize = 12;
    let Some((_, path)) = quiet(name, TIMES) else { return };
    // Something is cached near the end, and stays.
    const KEPT: usize = 64;
    let kept_at = (TIMES - 2) * LEN;
    cache(&path, kept_at, KEPT * PAGE);
    assert_eq!(cached_pages(&path), KEPT);
    let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
    let misses = counts()[1];
    scan_by_eight(&file, TIMES * LEN);
    let (cached, misses) = (cached_pages(&path), counts()[1] - misses);
    assert!(cached < TIMES * LEN / PAGE / 4, "{cached} pages");
    assert!(misses < (TIMES * LEN / PAGE) as u64 / 2, "{misses} reads went past the cache");
    // The kernel may have evicted some of it.
    let kept = cached_pages_of(&path, kept_at..kept_at + KEPT * PAGE);
    assert!(kept > KEPT / 2, "{kept} of {KEPT} pages that were cached before stayed");
    let _cached = Cached::new(&path, kept_at, KEPT * PAGE);
    // A file that has read nothing yet checks its first read.
    let again = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
    let before = counts();
    let kept = block_on(again.read_exact_at(Vec::with_capacity(KEPT * PAGE), kept_at as u64)).unwrap();
    assert_content(&kept, 0);
    assert_eq!(since(before), [1, 0, 0]);
}

#[test]
fn a_scan_goes_past_a_full_cache_again_after_a_part_that_is_cached() {
    if !in_child("a_scan_goes_past_a_full_cache_again_after_a_part_that_is_cached") {
        return;
    }
    let Some((file, path)) = quiet("a_scan_goes_past_a_full_cache_again", 1) else { return };
    const KEPT: usize = 200;
    cache(&path, 1 << 20, KEPT * PAGE);
    assert_eq!(cached_pages(&path), KEPT);
    for offset in (0..LEN).step_by(PAGE) {
        read(&file, offset, PAGE);
    }
    // The kernel reads ahead of a few reads that are not checked, and may evict a page for another process.
    let cached = cached_pages(&path);
    assert!((KEPT - 16..KEPT + 100).contains(&cached), "{cached} pages");
}

#[test]
fn while_memory_is_free_one_pass_of_small_reads_admits_nothing() {
    if !in_child("while_memory_is_free_one_pass_of_small_reads_admits_nothing") {
        return;
    }
    // Long enough for the sketch to take some pages for others that were read.
    const LONG: usize = 16 * LEN;
    let Some((file, path)) = quiet("while_memory_is_free_one_pass", LONG / LEN) else { return };
    assume_memory_is_free(Some(true));
    let before = counts();
    block_on(async {
        for offset in (0..LONG).step_by(4 << 10) {
            let buffer = file.read_exact_at(Vec::with_capacity(4 << 10), offset as u64).await.unwrap();
            assert_content(&buffer, (offset % LEN) as u64);
        }
    });
    assert_eq!(since(before)[2], 0, "reads admitted");
    assert_eq!(cached_pages(&path), 0);
}

#[test]
fn cached_data_is_read_from_the_cache() {
    if !in_child("cached_data_is_read_from_the_cache") {
        return;
    }
    let folder = folder();
    let Some((file, path)) = cold("what_is_cached", &folder, "data") else { return };
    let _cached = Cached::new(&path, 1 << 20, 1 << 20);
    let before = counts();
    for offset in ((1 << 20)..(2 << 20)).step_by(64 << 10) {
        read(&file, offset, 64 << 10);
        read(&file, offset + 123, 456);
    }
    assert_eq!(since(before), [32, 0, 0]);
    // After that many hits in a row, only one read in 16 checks the cache, so a miss is noticed within 16 reads.
    for _ in 0..64 {
        read(&file, 1 << 20, PAGE);
    }
    assert_eq!(since(before), [96, 0, 0]);
    for offset in ((2 << 20)..LEN).rev().step_by(64 << 10) {
        read(&file, offset & !0xffff, 64 << 10);
    }
    let cached = cached_pages(&path);
    assert!(cached <= (1 << 20) / PAGE + 16 * 32, "{cached} pages are cached, among them pages of the scan");
    assert!(since(before)[1] >= 80);
}

/// The number of ways of [`read_by`].
const WAYS: u32 = 7;

/// Reads through a single call, a batch or a queue, in place if that is possible.
fn read_by(way: u32, file: &File, offset: usize, len: usize) -> Vec<u8> {
    let done = match way {
        0 => return block_on(file.read_exact_at(Vec::with_capacity(len), offset as u64)).unwrap(),
        1 | 2 => {
            let mut batch = Batch::new();
            match way {
                1 => batch.add(file.read_at(Vec::with_capacity(len), offset as u64)),
                _ => batch.add(file.read_at(pool().get(len).unwrap(), offset as u64)),
            };
            batch.run().remove(0)
        }
        3 | 4 => {
            let mut queue = Queue::new();
            match way {
                3 => queue.add(file.read_at(Vec::with_capacity(len), offset as u64), 0),
                _ => queue.add(file.read_at(pool().get(len).unwrap(), offset as u64), 0),
            };
            queue.end()
        }
        5 => {
            let mut requests = [ReadRequest::new(pool().get(len).unwrap(), offset as u64)];
            Queue::new().read_many(file, &mut requests).unwrap();
            let [ReadRequest { result, buffer, .. }] = requests;
            assert_eq!(result.unwrap(), len);
            return buffer.to_vec();
        }
        _ => {
            let mut memory = vec![0; len];
            let mut requests = [ReadRequest::new(&mut memory[..], offset as u64)];
            Queue::new().read_many(file, &mut requests).unwrap();
            assert_eq!(*requests[0].result.as_ref().unwrap(), len);
            return memory;
        }
    };
    assert_eq!(done.result.unwrap(), len);
    done.buffer.unwrap()[..len].to_vec()
}

#[test]
fn the_cached_beginning_is_taken_and_the_rest_read_past_the_cache() {
    if !in_child("the_cached_beginning_is_taken_and_the_rest_read_past_the_cache") {
        return;
    }
    let folder = folder();
    for way in 0..WAYS {
        take_the_cached_beginning(&folder, way);
    }
}

fn take_the_cached_beginning(folder: &Folder, way: u32) {
    let Some((file, path)) = cold("the_cached_beginning", folder, "data") else { return };
    let page = page_size();
    let _cached = [Cached::new(&path, 0, 5 * page), Cached::new(&path, 10 * page, page)];
    assert_eq!(cached_pages(&path), 6 * page / PAGE);
    let (before, partial) = (counts(), metrics().cache_partial);
    for (offset, len) in
        [(0, 16 * page), (100, 12 * page), (4 * page, 64 * page), (4 * page + 7, 3 * page + 1)]
    {
        assert_content(&read_by(way, &file, offset, len), offset as u64);
        assert_eq!(cached_pages(&path), 6 * page / PAGE, "{len} bytes at {offset}");
    }
    assert_eq!(since(before), [0, 4, 0]);
    assert_eq!(metrics().cache_partial - partial, 4);
    // Changes the cache only, so the content shows which descriptor a read used.
    let changed = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&changed, &vec![0; page], 2 * page as u64).unwrap();
    let buffer = read_by(way, &file, 0, 16 * page);
    assert_content(&buffer[..2 * page], 0);
    assert_eq!(buffer[2 * page..3 * page], vec![0; page]);
    assert_content(&buffer[3 * page..], 3 * page as u64);
    // Reads stop at the end of the file.
    for len in [4 * page, 14 * page] {
        changed.set_len(len as u64).unwrap();
        let mut batch = Batch::new();
        batch.add(file.read_at(Vec::with_capacity(16 * page), 0));
        batch.add(file.read_at(Vec::with_capacity(LEN), 5));
        let done: Vec<_> = batch.run().into_iter().map(|done| done.result.unwrap()).collect();
        assert_eq!(done, [len, len - 5]);
    }
}

#[test]
fn reads_end_with_the_file_cached_or_not() {
    if !in_child("reads_end_with_the_file_cached_or_not") {
        return;
    }
    let folder = folder();
    let path = folder.file("short", &content(0, 3 * PAGE + 100));
    let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
    for cached in [false, true] {
        drop_cache(&path);
        if cached {
            cache(&path, 0, 3 * PAGE + 100);
        }
        for offset in [0, 1, PAGE, 3 * PAGE, 3 * PAGE + 99] {
            let buffer = block_on(file.read_at(Vec::with_capacity(64 << 10), offset as u64)).unwrap();
            assert_eq!(buffer.len(), 3 * PAGE + 100 - offset);
            assert_content(&buffer, offset as u64);
            let error =
                block_on(file.read_exact_at(Vec::with_capacity(64 << 10), offset as u64)).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
            assert_eq!(error.done(), 3 * PAGE + 100 - offset);
        }
        for offset in [3 * PAGE + 100, 1 << 30] {
            assert_eq!(block_on(file.read_at(Vec::with_capacity(8192), offset as u64)).unwrap(), b"");
        }
    }
}

#[test]
fn batches_queues_and_vectored_reads_use_both_descriptors() {
    if !in_child("batches_queues_and_vectored_reads_use_both_descriptors") {
        return;
    }
    let folder = folder();
    let Some((file, path)) = cold("batches_queues_and_vectored", &folder, "data") else { return };
    let pool = Pool::new(16 << 20);
    let _cached = Cached::new(&path, 0, 1 << 20);
    let before_pages = cached_pages(&path);
    let before = counts();
    for merge in [None, Some(64 << 10)] {
        let mut batch = Batch::new();
        if let Some(gap) = merge {
            batch = batch.merge_reads(gap);
        }
        let offsets: Vec<usize> = (0..64).map(|at| at * (96 << 10)).collect();
        offsets.iter().for_each(|&offset| {
            batch.add(file.read_at(pool.get(64 << 10).unwrap(), offset as u64));
        });
        batch.add(file.read_at(pool.get(1000).unwrap(), (5 << 20) + 3));
        for (done, offset) in batch.run().into_iter().zip(offsets.into_iter().chain([(5 << 20) + 3])) {
            let len = done.result.unwrap();
            let buffer = done.buffer.unwrap();
            assert!(len == 1000 || len == 64 << 10);
            assert_content(&buffer, offset as u64);
        }
        assert_eq!(cached_pages(&path), before_pages);
    }
    // Opens the file again: data that is read twice would get cached.
    let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
    let mut queue = Queue::new();
    for at in 0..32_u64 {
        queue.add(file.read_at(pool.get(100_000).unwrap(), at * 200_001), at);
    }
    for _ in 0..32 {
        let done = queue.end();
        let at = done.user_data;
        assert_eq!(done.result.unwrap(), 100_000);
        assert_content(&done.buffer.unwrap(), at * 200_001);
    }
    assert_eq!(cached_pages(&path), before_pages);
    let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
    block_on(async {
        for offset in [0, 512 << 10, 3 << 20] {
            let buffers = (0..4).map(|_| pool.get(16 << 10).unwrap()).collect();
            let all = file.read_exact_vectored_at(buffers, offset).await.unwrap();
            all.iter().zip(0..).for_each(|(buffer, at)| assert_content(buffer, offset + at * (16 << 10)));
        }
    });
    assert_eq!(cached_pages(&path), before_pages, "aligned buffers go past the cache");
    block_on(async {
        let all = file
            .read_exact_vectored_at(vec![Vec::with_capacity(5), Vec::with_capacity(7)], 4 << 20)
            .await
            .unwrap();
        assert_content(&all.concat(), 4 << 20);
    });
    let [hits, misses, _] = since(before);
    assert!(hits > 10 && misses > 50, "{hits} hits, {misses} misses");
}

#[test]
fn one_read_many_takes_cached_uncached_partly_cached_and_unaligned_ranges() {
    let folder = folder();
    let name = "one_read_many_takes_cached_uncached_partly_cached_and_unaligned_ranges";
    if !in_child(name) {
        return;
    }
    let Some((_, path)) = cold(name, &folder, "data") else { return };
    let _cached = Cached::new(&path, 0, 1 << 20);
    let mut ranges = Vec::new();
    for at in 0..16 {
        let uncached = (2 << 20) + at * (256 << 10);
        ranges.extend([
            (at * (64 << 10), PAGE),
            (uncached, 2 * PAGE),
            (uncached + (128 << 10) + 5, 1000 + at),
        ]);
    }
    // One begins in the cache; one ends with the file, one beyond it, and one begins there.
    ranges.extend([
        ((1 << 20) - PAGE, 3 * PAGE),
        (LEN - PAGE, PAGE),
        (LEN - 3 * PAGE - 1, 4 * PAGE),
        (LEN + PAGE, PAGE),
    ]);
    for (way, from_pool) in [("batch", true), ("read_many", true), ("read_many", false)] {
        // Opened again: data that is read twice would get cached.
        let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
        let (pool, mut queue, before) = (pool(), Queue::new(), (counts(), metrics().cache_partial));
        let check = |(offset, len): (usize, usize), read: usize, content: &[u8]| {
            assert_eq!(read, len.min(LEN.saturating_sub(offset)), "{way}: {len} bytes at {offset}");
            assert_content(&content[..read], offset as u64);
        };
        if way == "batch" {
            let mut batch = Batch::new();
            ranges.iter().for_each(|&(offset, len)| {
                batch.add(file.read_at(pool.get(len).unwrap(), offset as u64));
            });
            for (range, done) in ranges.iter().zip(batch.run()) {
                check(*range, done.result.unwrap(), &done.buffer.unwrap());
            }
        } else if from_pool {
            let read =
                |&(offset, len): &(usize, usize)| ReadRequest::new(pool.get(len).unwrap(), offset as u64);
            let mut requests: Vec<_> = ranges.iter().map(read).collect();
            queue.read_many(&file, &mut requests).unwrap();
            for (range, read) in ranges.iter().zip(requests) {
                check(*range, read.result.unwrap(), &read.buffer);
            }
        } else {
            let mut memory: Vec<Vec<u8>> = ranges.iter().map(|&(_, len)| vec![0; len]).collect();
            let read =
                |(range, memory): (&(usize, usize), _)| ReadRequest::<&mut [u8]>::new(memory, range.0 as u64);
            let mut requests: Vec<_> =
                ranges.iter().zip(memory.iter_mut().map(|memory| &mut memory[..])).map(read).collect();
            queue.read_many(&file, &mut requests).unwrap();
            for (range, read) in ranges.iter().zip(requests) {
                check(*range, read.result.unwrap(), read.buffer);
            }
        }
        // Each read has chosen once, in whatever way it was carried out.
        let [hits, misses, admitted] = since(before.0);
        let partial = metrics().cache_partial - before.1;
        let all = ranges.len() as u64;
        assert_eq!((hits + misses, partial, admitted), (all, 1, 0), "{way}, {from_pool}");
        assert!(hits >= 16 && misses >= 32, "{way}, {from_pool}: {hits} hits, {misses} misses");
    }
}

#[test]
fn cached_and_uncached_reads_of_a_small_read_many_go_together() {
    let name = "cached_and_uncached_reads_of_a_small_read_many_go_together";
    if !in_child(name) {
        return;
    }
    if !support::needs_ring(name) {
        return;
    }
    let folder = folder();
    let Some((file, path)) = cold(name, &folder, "data") else { return };
    let _cached = Cached::new(&path, 0, 1 << 20);
    let (pool, mut queue) = (pool(), Queue::new());
    let mut read = |offsets: [usize; 4]| {
        let mut requests = offsets.map(|at| ReadRequest::new(pool.get(PAGE).unwrap(), at as u64));
        queue.read_many(&file, &mut requests).unwrap();
        for (offset, read) in offsets.iter().zip(requests) {
            assert_eq!(read.result.unwrap(), PAGE);
            assert_content(&read.buffer, *offset as u64);
        }
    };
    // Reads that are neighbours would be merged.
    let uncached = |at: usize| (2 << 20) + 3 * at * PAGE;
    // The file's routes are known after some reads.
    (0..40).for_each(|at| read([at, at + 50, at + 100, at + 150].map(|at| at * PAGE)));
    (0..40).for_each(|at| read([4 * at, 4 * at + 1, 4 * at + 2, 4 * at + 3].map(uncached)));
    let before = thread_metrics();
    read([uncached(200), uncached(201), uncached(202), uncached(203)]);
    if (thread_metrics() - before).inline_ops > 0 {
        return skip(name, "direct reads are plain calls here");
    }
    let (before, misses) = (thread_metrics(), counts()[1]);
    for at in 0..64 {
        read([2 * at * PAGE, uncached(300 + 2 * at), (2 * at + 128) * PAGE, uncached(301 + 2 * at)]);
    }
    let counts_of_reads = thread_metrics() - before;
    // While a file is cold, only one read in eight is checked; what is found cached must not be read by a call of its
    // own.
    assert!(counts()[1] - misses < 4 * 64, "nothing was found in the cache");
    assert_eq!((counts_of_reads.ops, counts_of_reads.inline_ops), (4 * 64, 0), "{counts_of_reads:?}");
}

/// Returns the bytes that were read ahead and used, and those that were read ahead in vain.
fn ahead() -> [u64; 2] {
    [metrics().ahead_used, metrics().ahead_unused]
}

fn ahead_since(before: [u64; 2]) -> [u64; 2] {
    let now = ahead();
    std::array::from_fn(|at| now[at] - before[at])
}

#[test]
fn streams_are_read_ahead_past_the_cache_and_random_reads_are_not() {
    if !in_child("streams_are_read_ahead_past_the_cache_and_random_reads_are_not") {
        return;
    }
    let Some((file, path)) = quiet("streams_are_read_ahead", 1) else { return };
    let before = ahead();
    // Two streams, alternately.
    block_on(async {
        for at in 0..60 {
            for start in [0, 4 << 20] {
                let offset = start + at * (64 << 10);
                let buffer = file.read_exact_at(Vec::with_capacity(64 << 10), offset).await.unwrap();
                assert_content(&buffer, offset);
            }
        }
    });
    let [used, _] = ahead_since(before);
    assert!(used > 2 * 54 * (64 << 10), "{used} bytes were there when they were wanted");
    assert_eq!(cached_pages(&path), 0);
    let before = ahead();
    let mut random = support::Random::new();
    for _ in 0..100 {
        read(&file, random.below((LEN - 8192) as u64) as usize, 8192);
    }
    drop(file);
    let [used, unused] = ahead_since(before);
    assert!(used < 1 << 20 && unused <= 5 << 20, "{used} and {unused}");
    // Reads pieces of an odd length, in another executor, up to the end and beyond.
    let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
    let before = ahead();
    let mut offset = 12_345;
    while offset < LEN {
        let buffer =
            futures::executor::block_on(file.read_at(Vec::with_capacity(99_999), offset as u64)).unwrap();
        assert_eq!(buffer.len(), 99_999.min(LEN - offset));
        assert_content(&buffer, offset as u64);
        offset += buffer.len();
    }
    let [used, unused] = ahead_since(before);
    assert!(used > 7 << 20, "{used} and {unused}");
}

/// A thread's loop starts reading ahead, and then waits for another thread, which reads what the first has in flight.
#[test]
fn a_reader_does_not_depend_on_the_loop_that_has_read_ahead() {
    if !in_child("a_reader_does_not_depend_on_the_loop_that_has_read_ahead") {
        return;
    }
    let Some((file, _)) = quiet("a_reader_does_not_depend", 1) else { return };
    const STEP: usize = 64 << 10;
    block_on(async {
        // After each of these reads, other pieces are in flight.
        for at in 0..24 {
            let buffer = file.read_exact_at(Vec::with_capacity(STEP), (at * STEP) as u64).await.unwrap();
            assert_content(&buffer, (at * STEP) as u64);
            let other = file.clone();
            let next = (at + 1) * STEP;
            support::must_end("a read of another thread, while the loop stands still", move || {
                read(&other, next, STEP);
            });
        }
    });
}

#[test]
fn f49_data_read_ahead_is_dropped_when_the_file_changes() {
    let folder = folder();
    // Made while other tests run, which is a part of the wait.
    let path = folder.file("data", &content(0, LEN));
    if !in_child("f49_data_read_ahead_is_dropped_when_the_file_changes") {
        return;
    }
    let_it_be(&path);
    let Some((file, path)) = open_cold("what_was_read_ahead", path) else { return };
    let writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // After the first round the file has been unchanged for long enough again.
    for (start, wait) in [(0, true), (4 << 20, false)] {
        let before = ahead();
        (0..8).for_each(|at| read(&file, start + (at << 16), 1 << 16));
        let [used, _] = ahead_since(before);
        std::os::unix::fs::FileExt::write_all_at(&writer, &[0; 100], (start as u64) + (8 << 16) + 50)
            .unwrap();
        drop_cache(&path);
        if wait {
            let_it_be(&path);
        }
        let offset = start as u64 + (8 << 16);
        let buffer = block_on(file.read_exact_at(Vec::with_capacity(1 << 16), offset)).unwrap();
        assert_eq!(buffer[50..150], [0; 100]);
        let [used_now, unused] = ahead_since(before);
        assert_eq!(used_now, used, "nothing of what was read before the write");
        assert!(!is_read_ahead(&path) || (used > 0 && unused > 0), "{used} and {unused}");
    }
}

#[test]
fn adaptive_files_work_in_any_executor_and_from_many_threads() {
    if !in_child("adaptive_files_work_in_any_executor_and_from_many_threads") {
        return;
    }
    let folder = folder();
    let Some((file, path)) = cold("it_works_in_any_executor", &folder, "data") else { return };
    let _cached = Cached::new(&path, 1 << 20, 2 << 20);
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let file = file.clone();
            std::thread::spawn(move || {
                let reads = (0..200).map(|at| {
                    let (file, offset) = (file.clone(), (thread * 7919 + at * 104_729) % (LEN - 70_000));
                    async move {
                        let len = [1, 512, 4096, 65_536][at % 4];
                        let buffer =
                            file.read_exact_at(Vec::with_capacity(len), offset as u64).await.unwrap();
                        assert_content(&buffer, offset as u64);
                    }
                });
                futures::executor::block_on(futures::future::join_all(reads));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn options_that_contradict_it_are_refused_and_files_without_o_direct_are_buffered() {
    let folder = folder();
    let path = folder.file("data", b"content");
    for direct in [true, false] {
        let error = OpenOptions::new()
            .read(true)
            .adaptive(true)
            .direct(direct)
            .dont_cache(!direct)
            .open_blocking(&path)
            .unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
    let in_memory = Folder::inside(Path::new("/dev/shm"));
    for path in [in_memory.file("data", b"content"), PathBuf::from("/dev/zero")] {
        let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
        assert!(!file.is_adaptive());
        block_on(file.read_exact_at(Vec::with_capacity(7), 0)).unwrap();
    }
    let file = OpenOptions::new().write(true).adaptive(true).open_blocking(&path).unwrap();
    assert!(!file.is_adaptive(), "it can't be read");
    block_on(file.write_at(&b"new"[..], 0)).unwrap();
}

#[test]
fn f49_the_second_descriptor_is_of_the_file_that_was_opened_not_of_its_path() {
    if !in_child("f49_the_second_descriptor_is_of_the_file_that_was_opened_not_of_its_path") {
        return;
    }
    let folder = folder();
    let Some((file, path)) = cold("f49_the_second_descriptor", &folder, "data") else { return };
    let open = || std::fs::File::open(&path).unwrap();
    let (replaced, removed) = (open(), folder.path().join("removed"));
    std::fs::rename(folder.file("beside", &[0; LEN]), &path).unwrap();
    let unlinked = open();
    std::fs::rename(&path, &removed).unwrap();
    std::fs::remove_file(&removed).unwrap();
    let before = counts();
    for (std, is_zero) in [(replaced, false), (unlinked, true)] {
        let adopted = OpenOptions::new().adaptive(true).from_std(std).unwrap();
        assert!(adopted.is_adaptive());
        rustix::fs::fdatasync(&adopted).unwrap();
        rustix::fs::fadvise(&adopted, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let buffer = block_on(adopted.read_exact_at(Vec::with_capacity(128 << 10), 1 << 20)).unwrap();
        match is_zero {
            true => assert_eq!(buffer, [0; 128 << 10]),
            false => assert_content(&buffer, 1 << 20),
        }
    }
    assert_eq!(since(before), [0, 2, 0], "both are read past the cache");
    read(&file, 3 << 20, 128 << 10);
}

#[test]
fn a_file_that_may_not_be_opened_again_is_buffered() {
    let name = "a_file_that_may_not_be_opened_again_is_buffered";
    // Root may open any file.
    let unprivileged = |command: &mut Command| {
        if support::is_root() {
            std::os::unix::process::CommandExt::uid(command, 65_534);
        }
    };
    if !in_child_with(name, unprivileged) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, LEN));
    let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
    if !file.is_adaptive() {
        return skip(name, "this kernel or file system has no adaptive files");
    }
    let std = std::fs::File::open(&path).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o0)).unwrap();
    assert!(std::fs::File::open(&path).is_err());
    let adopted = OpenOptions::new().adaptive(true).from_std(std).unwrap();
    assert!(!adopted.is_adaptive());
    read(&adopted, 12_345, 99_999);
    assert_eq!(counts(), [0; 3]);
}

/// Returns whether any process, this one among them, has a record lock on the file.
fn is_locked(probe: &std::fs::File) -> bool {
    // SAFETY: zeros are a valid record, for the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    // SAFETY: one valid record.
    assert_eq!(unsafe { libc::fcntl(probe.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) }, 0);
    lock.l_type != libc::F_UNLCK as libc::c_short
}

/// Closing any descriptor of a file drops the process's record locks on it.
#[test]
fn opening_files_and_asking_for_sizes_drops_no_record_locks() {
    let name = "opening_files_and_asking_for_sizes_drops_no_record_locks";
    let (disk, in_memory) = (folder(), Folder::inside(Path::new("/dev/shm")));
    let device = Loop::over(name, &content(0, 1 << 20));
    let mut paths = vec![disk.file("data", &content(0, PAGE)), in_memory.file("data", &content(0, PAGE))];
    paths.extend(device.iter().map(|device| device.device().to_owned()));
    for path in &paths {
        let locked = std::fs::File::options().read(true).write(true).open(path).unwrap();
        let probe = std::fs::File::options().read(true).write(true).open(path).unwrap();
        // SAFETY: zeros are a valid record, for the whole file.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as _;
        // SAFETY: one valid record.
        assert_eq!(unsafe { libc::fcntl(locked.as_raw_fd(), libc::F_SETLK, &raw const lock) }, 0);
        assert!(is_locked(&probe));
        let file = OpenOptions::new().read(true).adaptive(true).open_blocking(path).unwrap();
        assert!(is_locked(&probe), "{path:?}: opening it has dropped the lock");
        let is_device = device.as_ref().is_some_and(|device| device.device() == path.as_path());
        assert_eq!(file.size().unwrap(), if is_device { 1 << 20 } else { PAGE as u64 });
        assert!(is_locked(&probe), "{path:?}: querying its size has dropped the lock");
    }
}

#[test]
fn without_cachestat_files_are_buffered() {
    if !in_child("without_cachestat_files_are_buffered") {
        return;
    }
    let folder = folder();
    let path = folder.file("data", &content(0, LEN));
    support::filters::deny(CACHESTAT, libc::ENOSYS);
    let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
    assert!(!file.is_adaptive());
    read(&file, 12_345, 99_999);
    assert_eq!(counts(), [0; 3]);
}
