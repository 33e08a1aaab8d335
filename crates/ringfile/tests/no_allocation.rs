//! Counts heap allocations during operations: ten thousand operations must not allocate more often than five hundred. And
//! refuses large ones, as a machine without memory does.
//!
//! Counts the allocations of all threads, so each test has a separate process: the harness allocates too, to start
//! tests and to report which ended or take long.

#![allow(clippy::unwrap_used, reason = "a test panics on anything unexpected")]

#[path = "it/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the tests of `it`")]
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ringfile::metrics::Latencies;
use ringfile::queue::{ReadRequest, WriteRequest};
use ringfile::runtime::set_worker_threads;
use ringfile::{
    Appender, Batch, Completion, Durability, File, OpenOptions, Pool, Queue, Route, block_on, thread_metrics,
};
use support::forms::routes;
use support::handles::Handles as _;
use support::{Folder, assert_content, content, has_registered_buffers, in_child_for, patience};

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);
/// The size of the largest block that can be had.
static LARGEST: AtomicUsize = AtomicUsize::new(usize::MAX);

// SAFETY: the system's allocator does everything, but for blocks that are refused; the numbers are atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        if layout.size() > LARGEST.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is the one that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        if size > LARGEST.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PAGE: usize = 4096;
const PAGES: u64 = 64;
const FEW: u64 = 500;
/// How often `Route::Auto` may change the route of a file while operations are counted.
const CHANGES: usize = 20;
/// The allocations of any run, whatever its length: results, the batch itself, and a message to a driver.
const OF_A_RUN: u64 = 24;

/// Runs a test in a separate process: tens of thousands of operations take minutes on a slow and busy machine. Few
/// workers: each allocates for itself when it starts, and that is when there is more work than idle workers.
fn alone(test: &str) -> bool {
    set_worker_threads(2);
    in_child_for(test, 30 * patience())
}

/// Returns the number of allocations during `run`, and its result.
fn allocations<T>(run: impl FnOnce() -> T) -> (u64, T) {
    let before = COUNT.load(Ordering::Relaxed);
    let result = run();
    (COUNT.load(Ordering::Relaxed) - before, result)
}

fn batch(file: &File, pool: &Pool, reads: u64, in_flight: usize) -> Batch {
    let mut batch = Batch::with_capacity(reads as usize).depth(in_flight);
    for i in 0..reads {
        batch.add(file.read_at(pool.get(PAGE).unwrap(), i * 7 % PAGES * PAGE as u64));
    }
    batch
}

fn assert_read(results: Vec<Completion>, reads: u64) {
    assert_eq!(results.len(), reads as usize);
    for (i, done) in results.into_iter().enumerate() {
        assert_eq!(done.result.unwrap(), PAGE);
        // The first bytes of a page are its number.
        assert_content(&done.buffer.unwrap()[..16], i as u64 * 7 % PAGES * PAGE as u64);
    }
}

fn files(path: &std::path::Path) -> Vec<(String, Route, File)> {
    let mut files = Vec::new();
    for route in routes() {
        for direct in [false, true] {
            let mut options = OpenOptions::new();
            let file =
                options.read(true).direct(direct).buffered_fallback(true).route(route).open_blocking(path);
            files.push((format!("{route:?}, direct {direct}"), route, file.unwrap()));
        }
        // All of it is cached.
        let file = OpenOptions::new().read(true).adaptive(true).route(route).open_blocking(path);
        files.push((format!("{route:?}, adaptive"), route, file.unwrap()));
        // Every operation is timed, and none is reported.
        let mut options = OpenOptions::new();
        let never = std::time::Duration::from_secs(86400);
        let file = options
            .read(true)
            .route(route)
            .latencies(&Latencies::new())
            .slow_after(never)
            .open_blocking(path);
        files.push((format!("{route:?}, timed"), route, file.unwrap()));
    }
    files
}

/// Counts after a first run of the larger size, in which reusable memory grows.
///
/// `Route::Auto` times plain calls, and uses the ring instead if they wait, as on a disk that is busy for a while.
/// The thread then creates its ring, and memory for the operations in flight there: 14 allocations, once, in a run of any
/// length. So if there are more, and not all operations of both runs went the same way, both are repeated, up to a limit.
fn few_and_many(route: Route, many: u64, mut run: impl FnMut(u64) -> u64) -> (u64, u64) {
    run(many);
    let mut run_and_ways = |operations| {
        let before = thread_metrics();
        let count = run(operations);
        let counts = thread_metrics() - before;
        (count, [counts.inline_ops > 0, counts.ops > counts.inline_ops])
    };
    let mut left = CHANGES;
    loop {
        left -= 1;
        let (few, many) = (run_and_ways(FEW), run_and_ways(many));
        let is_more = few.0 > growth(route) || many.0 > few.0;
        let changed = few.1 != many.1 || few.1 == [true; 2];
        if route != Route::Auto || !is_more || !changed || left == 0 {
            return (few.0, many.0);
        }
        println!("allocations, and whether there were plain calls, and others: {few:?}, then {many:?}");
    }
}

fn is_carried_by_workers(route: Route) -> bool {
    route == Route::Workers || support::is_without_ring()
}

/// Returns how many more allocations a longer run may have: lists double now and then, and workers start under load.
fn growth(route: Route) -> u64 {
    if is_carried_by_workers(route) { 32 } else { 8 }
}

#[test]
fn a_blocking_batch_allocates_for_itself_and_not_for_its_operations() {
    if !alone("a_blocking_batch_allocates_for_itself_and_not_for_its_operations") {
        return;
    }
    const MANY: u64 = 10_000;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGES as usize * PAGE));
    let pool = Pool::new(64 << 20);
    for (name, route, file) in files(&path) {
        for in_flight in [128, MANY as usize] {
            let (few, many) = few_and_many(route, MANY, |reads| {
                let batch = batch(&file, &pool, reads, in_flight);
                let (count, results) = allocations(|| batch.run());
                assert_read(results, reads);
                count
            });
            println!("{name}, {in_flight} in flight: {few} and {many} allocations");
            let growth = growth(route);
            assert!(few <= OF_A_RUN + growth, "{name}, {in_flight} in flight: {few} for {FEW} reads");
            assert!(
                many <= few + growth,
                "{name}, {in_flight} in flight: {few} for {FEW} reads, {many} for {MANY}"
            );
        }
    }
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn an_awaited_batch_and_reads_of_a_loop_allocate_for_themselves_alone() {
    if !alone("an_awaited_batch_and_reads_of_a_loop_allocate_for_themselves_alone") {
        return;
    }
    const MANY: u64 = 3000;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGES as usize * PAGE));
    let pool = Pool::new(64 << 20);
    for (name, route, file) in files(&path) {
        let growth = growth(route);
        let (few, many) = few_and_many(route, MANY, |reads| {
            let batch = batch(&file, &pool, reads, 128);
            let (count, results) = allocations(|| block_on(async { batch.await }));
            assert_read(results, reads);
            count
        });
        println!("{name}, awaited: {few} and {many} allocations");
        assert!(many <= few + growth, "{name}, awaited batch: {few} for {FEW} reads, {many} for {MANY}");
        // A future that waits for a worker allocates what the worker reports to.
        if is_carried_by_workers(route) {
            continue;
        }
        let (few, many) = few_and_many(route, MANY, |reads| {
            let (count, ()) = allocations(|| {
                block_on(async {
                    let mut buffer = pool.get(PAGE).unwrap();
                    for i in 0..reads {
                        buffer = file.read_at(buffer, i % PAGES * PAGE as u64).await.unwrap();
                    }
                });
            });
            count
        });
        println!("{name}, one by one: {few} and {many} allocations");
        assert!(many <= few + growth, "{name}, one by one: {few} for {FEW} reads, {many} for {MANY}");
    }
}

#[test]
fn a_queue_allocates_nothing_once_it_has_room_for_its_operations() {
    if !alone("a_queue_allocates_nothing_once_it_has_room_for_its_operations") {
        return;
    }
    const MANY: u64 = 3000;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGES as usize * PAGE));
    let pool = Pool::new(64 << 20);
    for (name, route, file) in files(&path) {
        let growth = growth(route);
        let (mut queue, mut completions) = (Queue::with_capacity(32), Vec::with_capacity(32));
        let (few, many) = few_and_many(route, MANY, |count| {
            allocations(|| {
                let mut begun = 0;
                while begun < count || !queue.is_empty() {
                    while begun < count && queue.len() < 32 {
                        queue.add(file.read_at(pool.get(PAGE).unwrap(), begun % PAGES * PAGE as u64), begun);
                        begun += 1;
                    }
                    queue.wait(1..=32, None, &mut completions);
                    for done in completions.drain(..) {
                        assert_content(&done.buffer.unwrap()[..16], done.user_data % PAGES * PAGE as u64);
                    }
                }
            })
            .0
        });
        println!("{name}, queue: {few} and {many} allocations");
        assert!(many <= few + growth, "{name}, queue: {few} for {FEW} reads, {many} for {MANY}");
    }
}

#[test]
fn requests_of_borrowed_memory_allocate_nothing_once_there_was_room_for_them() {
    if !alone("requests_of_borrowed_memory_allocate_nothing_once_there_was_room_for_them") {
        return;
    }
    const MANY: u64 = 3000;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGES as usize * PAGE));
    for (route, adaptive) in routes().flat_map(|route| [(route, false), (route, true)]) {
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).adaptive(adaptive).route(route).open_blocking(&path).unwrap();
        // A worker allocates what it reports to.
        if is_carried_by_workers(route) {
            continue;
        }
        let (mut queue, mut memory) = (Queue::new(), vec![0; PAGES as usize * PAGE]);
        let (few, many) = few_and_many(route, MANY, |count| {
            let mut sum = 0;
            for _ in 0..count / PAGES {
                let pages = memory.chunks_mut(PAGE).zip(0..);
                let mut reads: Vec<_> =
                    pages.map(|(page, at)| ReadRequest::new(page, at * PAGE as u64)).collect();
                sum += allocations(|| queue.read_many(&file, &mut reads).unwrap()).0;
                assert!(reads.iter().all(|read| matches!(read.result, Ok(PAGE))));
                drop(reads);
                let pages = memory.chunks(PAGE).zip(0..);
                let mut writes: Vec<_> =
                    pages.map(|(page, at)| WriteRequest::new(page, at * PAGE as u64)).collect();
                sum += allocations(|| queue.write_many(&file, &mut writes).unwrap()).0;
                assert!(writes.iter().all(|write| matches!(write.result, Ok(PAGE))));
            }
            sum
        });
        println!("{route:?}, {adaptive}: {few} and {many} allocations");
        assert!(many <= few + growth(route), "{route:?}, {adaptive}: {few} and {many}");
    }
}

#[test]
fn durable_writes_of_parts_in_a_queue_allocate_nothing_once_there_was_room_for_them() {
    if !alone("durable_writes_of_parts_in_a_queue_allocate_nothing_once_there_was_room_for_them") {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 16 * PAGE));
    let pool = Pool::new(1 << 20);
    for route in routes() {
        // A worker allocates what it reports to.
        if is_carried_by_workers(route) {
            continue;
        }
        let mut options = OpenOptions::new();
        let file =
            options.write(true).durability(Durability::Fsync).route(route).open_blocking(&path).unwrap();
        let mut queue = Queue::new();
        let (few, many) = few_and_many(route, 2 * FEW, |count| {
            let mut buffer = Some(pool.get(4 * PAGE).unwrap());
            buffer.as_mut().unwrap().resize(4 * PAGE, 7);
            allocations(|| {
                for _ in 0..count {
                    let whole = buffer.take().unwrap();
                    let token = queue.add(
                        file.write_durable_at(ringfile::IoBuf::slice(whole, PAGE..2 * PAGE), PAGE as u64),
                        0,
                    );
                    let done = queue.wait_for(token).unwrap();
                    assert_eq!(done.result.unwrap(), PAGE);
                    buffer = done.buffer.unwrap().into_pooled();
                }
            })
            .0
        });
        println!("{route:?}: {few} and {many} allocations");
        assert!(many <= few + growth(route), "{route:?}: {few} and {many}");
    }
}

#[test]
fn reads_with_handles_allocate_nothing_once_there_is_room_for_them() {
    if !alone("reads_with_handles_allocate_nothing_once_there_is_room_for_them") {
        return;
    }
    const MANY: u64 = 3000;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGES as usize * PAGE));
    let pool = Pool::new(64 << 20);
    for (name, route, file) in files(&path) {
        let growth = growth(route);
        let mut reads = Queue::new();
        let (few, many) = few_and_many(route, MANY, |count| {
            let mut handles = std::collections::VecDeque::with_capacity(64);
            allocations(|| {
                for i in 0..count {
                    if handles.len() == 32 {
                        let (handle, offset) = handles.pop_front().unwrap();
                        let done = reads.wait_for(handle).unwrap();
                        assert_content(&done.buffer.unwrap()[..16], offset);
                    }
                    let offset = i % PAGES * PAGE as u64;
                    handles.push_back((reads.start(&file, pool.get(PAGE).unwrap(), offset), offset));
                }
                for (handle, _) in handles.drain(..) {
                    assert_eq!(reads.wait_for(handle).unwrap().result.unwrap(), PAGE);
                }
            })
            .0
        });
        println!("{name}, handles: {few} and {many} allocations");
        assert!(many <= few + growth, "{name}, handles: {few} for {FEW} reads, {many} for {MANY}");
        assert!(few <= growth, "{name}, handles: {few} for {FEW} reads");
    }
}

#[test]
fn results_that_are_taken_by_tokens_leave_nothing_beside_one_that_is_never_taken() {
    if !alone("results_that_are_taken_by_tokens_leave_nothing_beside_one_that_is_never_taken") {
        return;
    }
    const MANY: u64 = 3000;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGES as usize * PAGE));
    let pool = Pool::new(1 << 20);
    for (name, route, file) in files(&path) {
        // The workers' own queue may grow.
        if is_carried_by_workers(route) {
            continue;
        }
        let mut queue = Queue::with_capacity(32);
        let left = queue.add(file.read_at(pool.get(PAGE).unwrap(), 0), 0);
        while !queue.is_done(left) {
            queue.submit();
        }
        let mut read = |count: u64| {
            allocations(|| {
                for i in 0..count {
                    let token = queue.add(file.read_at(pool.get(PAGE).unwrap(), i % PAGES * PAGE as u64), i);
                    assert_eq!(queue.wait_for(token).unwrap().result.unwrap(), PAGE);
                }
            })
            .0
        };
        let (_, many) = few_and_many(route, MANY, &mut read);
        assert_eq!(many, 0, "{name}: {many} allocations for {MANY}");
    }
}

#[test]
fn appends_and_syncs_allocate_nothing_while_the_pool_has_memory() {
    if !alone("appends_and_syncs_allocate_nothing_while_the_pool_has_memory") {
        return;
    }
    const MANY: u64 = 3000;
    let folder = Folder::new();
    let path = folder.path().join("log");
    let record = content(0, 1000);
    for route in routes().filter(|&route| !is_carried_by_workers(route)) {
        for direct in [false, true] {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).direct(direct).buffered_fallback(true).route(route);
            let file = options.open_blocking(&path).unwrap();
            let pool = Pool::new(8 << 20);
            let (few, many) = few_and_many(route, MANY, |records| {
                block_on(async {
                    let log = Appender::open(&file, &pool, 0).block(16 * PAGE).await.unwrap();
                    let before = COUNT.load(Ordering::Relaxed);
                    for number in 0..records {
                        assert_eq!(log.append(&record).await.unwrap(), number * 1000);
                        if number % 50 == 0 {
                            log.sync().await.unwrap();
                        }
                    }
                    let count = COUNT.load(Ordering::Relaxed) - before;
                    log.close().await.unwrap();
                    count
                })
            });
            println!("{route:?}, direct {direct}, appends: {few} and {many} allocations");
            let growth = growth(route);
            assert!(
                many <= few + growth,
                "{route:?}, direct {direct}: {few} for {FEW} records, {many} for {MANY}"
            );
        }
    }
}

/// Makes all kinds of writes from shared bytes, which are cloned and cut without an allocation.
fn write_bytes(file: &File, sources: &[bytes::Bytes], count: u64) {
    block_on(async {
        for i in 0..count {
            let bytes = sources[i as usize % sources.len()].slice(i as usize % 8 * 512..);
            drop(file.write_at(bytes, i % PAGES * PAGE as u64).await.unwrap());
        }
    });
    let (mut queue, mut completions) = (Queue::with_capacity(32), Vec::with_capacity(32));
    for i in 0..count {
        if queue.len() == 32 {
            queue.wait(1..=32, None, &mut completions);
            completions.drain(..).for_each(|done| _ = done.result.unwrap());
        }
        queue.add(file.write_at(sources[i as usize % sources.len()].clone(), i % PAGES * PAGE as u64), i);
    }
    while !queue.is_empty() {
        queue.wait(1..=32, None, &mut completions);
        completions.drain(..).for_each(|done| _ = done.result.unwrap());
    }
}

#[test]
fn writes_of_shared_bytes_allocate_nothing_in_one_region_or_several_or_outside_of_pools() {
    if !alone("writes_of_shared_bytes_allocate_nothing_in_one_region_or_several_or_outside_of_pools") {
        return;
    }
    const MANY: u64 = 3000;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGES as usize * PAGE));
    let pool = Pool::new(64 << 20);
    let frozen = |len| {
        let mut buffer = pool.get(len).unwrap();
        buffer.resize(len, 7);
        buffer.freeze().slice(..2 * PAGE)
    };
    // In three regions, of 2, 4 and 8 MiB.
    let in_pools = [frozen(2 * PAGE), frozen(3 << 20), frozen(5 << 20)];
    assert_eq!(pool.metrics().regions, 3);
    let outside = [bytes::Bytes::from(vec![7; 2 * PAGE]), bytes::Bytes::from_static(&[7; 2 * PAGE])];
    for route in routes() {
        let file = OpenOptions::new().read(true).write(true).route(route).open_blocking(&path).unwrap();
        // A future that waits for a worker allocates what the worker reports to.
        if is_carried_by_workers(route) {
            continue;
        }
        for (what, sources) in
            [("one region", &in_pools[..1]), ("several", &in_pools), ("outside", &outside[..])]
        {
            let (few, many) = few_and_many(route, MANY, |count| {
                let before = thread_metrics();
                let (allocations, ()) = allocations(|| write_bytes(&file, sources, count));
                let counts = thread_metrics() - before;
                let is_fixed = route == Route::Ring && what != "outside" && has_registered_buffers();
                let fixed = if is_fixed { counts.ops } else { 0 };
                assert!(route == Route::Auto || counts.fixed_ops == fixed, "{route:?}, {what}: {counts:?}");
                allocations
            });
            println!("{route:?}, {what}: {few} and {many} allocations");
            assert!(
                many <= few + growth(route),
                "{route:?}, {what}: {few} for {FEW} writes, {many} for {MANY}"
            );
        }
    }
    drop(in_pools);
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn operations_for_which_there_is_no_memory_are_refused_and_the_others_done() {
    if !alone("operations_for_which_there_is_no_memory_are_refused_and_the_others_done") {
        return;
    }
    const ASKED: usize = 50_000;
    let folder = Folder::new();
    let file = File::open_blocking(folder.file("data", &content(0, PAGE))).unwrap();
    let mut batch = Batch::new();
    LARGEST.store(1 << 20, Ordering::Relaxed);
    for i in 0..ASKED {
        assert_eq!(batch.add(file.read_at(Vec::new(), 0)), i);
    }
    // The results need a block too.
    LARGEST.store(usize::MAX, Ordering::Relaxed);
    assert_eq!(batch.len(), ASKED);
    let results = batch.run();
    assert_eq!(results.len(), ASKED);
    let done = results.iter().take_while(|done| done.result.is_ok()).count();
    assert!(done > 1000 && done < ASKED, "{done} of {ASKED}");
    for refused in &results[done..] {
        let error = refused.result.as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(refused.buffer.is_none());
    }
    let error = results[done].result.as_ref().unwrap_err().to_string();
    assert!(error.contains("run several batches"), "{error}");
}
