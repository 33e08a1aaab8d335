//! Queues: operations that a program with its own loop adds, submits and collects.

use crate::support::handles::Handles as _;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::forms::routes;
use crate::support::random::Random;
use crate::support::{
    Folder, assert_content, content, in_child, must_end, needs_ring, open_on_ring, reads_without_waiting,
    skip,
};
use ringfile::{Buffer, File, OpenOptions, Pool, Queue, RegisteredMemory, Route, thread_metrics};

const PAGE: usize = 4096;

#[test]
fn each_operation_gives_one_result_with_its_number_on_every_route() {
    for route in routes() {
        let folder = Folder::new();
        let path = folder.file("data", &content(0, 64 * PAGE));
        let file = OpenOptions::new().read(true).route(route).open_blocking(path).unwrap();
        let pool = Pool::new(1 << 20);
        let mut queue = Queue::with_capacity(16);
        let (mut begun, mut seen) = (0, vec![false; 300]);
        loop {
            while begun < 300 && queue.len() < 16 {
                queue.add(file.read_at(pool.get(PAGE).unwrap(), begun * 37 % 64 * PAGE as u64), begun);
                begun += 1;
            }
            if queue.is_empty() {
                break;
            }
            queue.submit();
            queue.settle(1);
            while let Some(done) = queue.next() {
                let number = done.user_data;
                assert_eq!(done.result.unwrap(), PAGE, "{route:?}");
                assert_content(&done.buffer.unwrap(), number * 37 % 64 * PAGE as u64);
                assert!(!std::mem::replace(&mut seen[number as usize], true), "{number} twice, {route:?}");
            }
        }
        assert!(seen.into_iter().all(|seen| seen), "{route:?}");
        assert!(queue.ends(1).is_empty() && queue.next().is_none(), "{route:?}");
        assert_eq!(pool.metrics().in_use, 0, "{route:?}");
    }
}

#[test]
fn writes_and_syncs_go_through_it_and_a_failure_is_the_one_operations_result() {
    for route in routes() {
        let folder = Folder::new();
        let path = folder.path().join("log");
        let file = OpenOptions::new().write(true).create(true).route(route).open_blocking(&path).unwrap();
        let mut queue = Queue::new();
        queue.add(file.write_at(content(0, PAGE), 0), 1);
        queue.add(file.write_at(content(PAGE as u64, PAGE), PAGE as u64), 2);
        queue.add(file.read_at(vec![0; 10], 0), 3);
        for done in queue.end_all(3) {
            let number = done.user_data;
            match number {
                3 => assert_eq!(done.result.unwrap_err().errno(), Some(libc::EBADF), "{route:?}"),
                _ => assert_eq!(done.result.unwrap(), PAGE, "{route:?}"),
            }
        }
        queue.add(file.sync_data(), 4);
        queue.add(file.sync_all(), 5);
        let mut synced: Vec<u64> = (queue.end_all(2).into_iter())
            .map(|done| {
                assert_eq!(done.result.unwrap(), 0, "{route:?}");
                done.user_data
            })
            .collect();
        synced.sort_unstable();
        assert_eq!(synced, [4, 5], "{route:?}");
        assert_content(&std::fs::read(&path).unwrap(), 0);
    }
}

#[test]
fn a_wait_ends_in_time_and_the_operation_continues() {
    must_end("a wait with a timeout", || {
        for file in ["ring", "workers"] {
            let (ours, mut theirs) = std::io::pipe().unwrap();
            let route =
                if file == "workers" || support::is_without_ring() { Route::Workers } else { Route::Ring };
            let ours = std::fs::File::from(std::os::fd::OwnedFd::from(ours));
            let pipe = OpenOptions::new().route(route).from_std(ours).unwrap();
            let mut queue = Queue::new();
            queue.add(pipe.read_at(vec![0; 100], 0), 7);
            let began = Instant::now();
            let mut ended = Vec::new();
            assert_eq!(queue.wait(1..=9, Some(Duration::from_millis(20)), &mut ended), 0, "{file}");
            assert!(began.elapsed() >= Duration::from_millis(20), "{file}");
            assert_eq!((queue.wait(1..=9, Some(Duration::ZERO), &mut ended), queue.len()), (0, 1), "{file}");
            theirs.write_all(b"content").unwrap();
            assert_eq!(queue.wait(1..=9, Some(Duration::from_secs(3600)), &mut ended), 1, "{file}");
            let done = ended.remove(0);
            assert_eq!(
                (done.user_data, done.result.unwrap(), &done.buffer.unwrap()[..]),
                (7, 7, &b"content"[..]),
                "{file}"
            );
        }
    });
}

#[test]
fn dropping_a_queue_waits_for_the_kernel_and_returns_the_memory() {
    must_end("a queue's drop", || {
        let (ours, _theirs) = std::io::pipe().unwrap();
        let pipe = File::from(std::fs::File::from(std::os::fd::OwnedFd::from(ours)));
        let pool = Pool::new(1 << 20);
        let mut queue = Queue::new();
        queue.add(pipe.read_at(pool.get(PAGE).unwrap(), 0), 1);
        queue.submit();
        queue.add(pipe.read_at(pool.get(PAGE).unwrap(), 0), 2);
        drop(queue);
        support::wait_for("the memory's return", || pool.metrics().in_use == 0);
    });
}

#[test]
fn in_a_loop_of_ringfiles_operations_are_added_and_awaited() {
    for route in routes() {
        let folder = Folder::new();
        let path = folder.file("data", &content(0, 64 * PAGE));
        let file = OpenOptions::new().read(true).route(route).open_blocking(path).unwrap();
        ringfile::block_on(async {
            let mut queue = Queue::new();
            for page in 0..64 {
                queue.add(file.read_at(Vec::with_capacity(PAGE), page * PAGE as u64), page);
            }
            let beside = file.read_at(Vec::with_capacity(PAGE), 0);
            let mut seen = 0;
            while queue.ready().await > 0 {
                while let Some(done) = queue.next() {
                    let page = done.user_data;
                    assert_content(&done.buffer.unwrap(), page * PAGE as u64);
                    seen += 1;
                }
            }
            assert_eq!((seen, queue.len()), (64, 0), "{route:?}");
            assert_content(&beside.await.unwrap(), 0);
            // The loop waits for operations that were dropped in flight.
            queue.add(file.read_at(Vec::with_capacity(PAGE), 0), 0);
            queue.submit();
        });
    }
}

#[test]
fn memory_of_others_and_shares_of_registered_memory_are_read_into_in_place() {
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 8 * PAGE)));
    let mut plain = vec![0_u8; 8 * PAGE];
    let registered = RegisteredMemory::new(vec![0_u8; 8 * PAGE]);
    let whole = registered.lend(..).unwrap();
    let mut queue = Queue::new();
    for page in 0..8 {
        let at = page * PAGE;
        // SAFETY: the vector exists until the queue is empty, and is not accessed before.
        let buffer = unsafe { Buffer::from_raw(plain.as_mut_ptr().add(at), PAGE) };
        queue.add(file.read_at(buffer, at as u64), 0);
        // SAFETY: the shares do not overlap, and the whole is accessed only after all were dropped.
        queue.add(file.read_at(unsafe { whole.share(at, PAGE) }, at as u64), 1);
    }
    assert!(whole.is_shared());
    let before = ringfile::thread_metrics();
    while !queue.is_empty() {
        for done in queue.ends(1) {
            assert_eq!(done.result.unwrap(), PAGE);
        }
    }
    assert!(!whole.is_shared());
    assert_content(&plain, 0);
    assert_content(&whole, 0);
    let counts = ringfile::thread_metrics() - before;
    if !support::is_without_ring() && counts.refused_registrations == 0 {
        assert_eq!((counts.ops, counts.fixed_ops), (16, 8));
    }
}

#[test]
fn cached_reads_that_are_submitted_together_go_to_the_ring_and_single_ones_do_not() {
    let name = "cached_reads_that_are_submitted_together_go_to_the_ring_and_single_ones_do_not";
    if !support::needs_ring(name) {
        return;
    }
    let disk = Folder::inside(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")));
    let path = disk.file("data", &content(0, 64 * PAGE));
    let (file, pool) = (File::open_blocking(path).unwrap(), Pool::new(1 << 20));
    let inline_of = |together: u64| {
        let mut queue = Queue::new();
        let before = ringfile::thread_metrics();
        for page in 0..64 {
            queue.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64), page);
            if (page + 1) % together != 0 {
                continue;
            }
            queue.submit();
            for done in queue.end_all(together as usize) {
                let page = done.user_data;
                assert_eq!(done.result.unwrap(), PAGE);
                assert_content(&done.buffer.unwrap(), page * PAGE as u64);
            }
        }
        (ringfile::thread_metrics() - before).inline_ops
    };
    let began = Instant::now();
    loop {
        match (inline_of(1), inline_of(16)) {
            (64, 0) => return,
            (64, 64) => return skip(name, "the file system of the target folder has no non-blocking reads"),
            // A page was evicted; or calls are timed on this file system, and one took long on a busy machine.
            other => assert!(began.elapsed() < support::patience(), "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A single operation that is waited for is a plain call; one of two, or a submitted one, takes the ring.
#[test]
fn a_single_operation_that_is_waited_for_is_a_plain_call() {
    let name = "a_single_operation_that_is_waited_for_is_a_plain_call";
    // Other tests' threads release registered memory, of which every ring is notified: that wakes a waiting thread.
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let file = match OpenOptions::new().read(true).direct(true).open_blocking(path) {
        Ok(file) => file,
        Err(error) => return skip(name, error),
    };
    // Otherwise the duration of calls decides the route.
    if let Err(why) = reads_without_waiting(&file) {
        return skip(name, why);
    }
    let pool = Pool::new(1 << 20);
    let mut queue = Queue::new();
    let mut inline_and_enters = |pages: &[u64], submits: bool| {
        let before = thread_metrics();
        for &page in pages {
            queue.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64), page);
        }
        if submits {
            queue.submit();
        }
        for done in queue.end_all(pages.len()) {
            let page = done.user_data;
            assert_eq!(done.result.unwrap(), PAGE);
            assert_content(&done.buffer.unwrap(), page * PAGE as u64);
        }
        let counts = thread_metrics() - before;
        (counts.inline_ops, counts.enters)
    };
    // With the first read the file learns that a queue uses it, except on some routes.
    inline_and_enters(&[0], false);
    if inline_and_enters(&[1, 2], false).0 > 0 {
        return skip(name, "direct reads are plain calls here");
    }
    assert_eq!(inline_and_enters(&[3], false), (1, 0));
    assert_eq!(inline_and_enters(&[4], true).0, 0);
    // One system call submits all and waits for all.
    assert_eq!(inline_and_enters(&[5, 6, 7], false), (0, 1));
}

fn ends_of_a_pipe() -> (File, File) {
    let (reader, writer) = std::io::pipe().unwrap();
    let adopt = |end: std::os::fd::OwnedFd| File::from(std::fs::File::from(end));
    (adopt(reader.into()), adopt(writer.into()))
}

#[test]
fn a_write_that_a_pipe_takes_in_pieces_feeds_the_reads_that_are_waited_for_with_it() {
    must_end("a wait for both ends of a pipe", || {
        let (reader, writer) = ends_of_a_pipe();
        let (mut one, mut other) = (Queue::new(), Queue::new());
        // A new pipe holds 64 KiB.
        one.add(writer.write_at(vec![7; 256 << 10], 0), 0);
        (1..=4).for_each(|number| _ = one.add(reader.read_at(vec![0; 64 << 10], 0), number));
        assert_eq!(one.ends(5).len(), 5, "in one queue");
        other.add(writer.write_at(vec![7; 256 << 10], 0), 0);
        other.submit();
        (1..=4).for_each(|number| _ = one.add(reader.read_at(vec![0; 64 << 10], 0), number));
        assert_eq!(one.ends(4).len(), 4, "in two");
        other.end_all(1);
    });
}

#[test]
fn a_file_that_another_thread_closes_meanwhile_is_closed_though_several_results_are_waited_for() {
    must_end("a wait for the end of a pipe", || {
        let (reader, writer) = ends_of_a_pipe();
        let mut queue = Queue::new();
        queue.add(writer.write_at(vec![7], 0), 0);
        queue.add(reader.read_at(vec![0], 0), 0);
        queue.end_all(2);
        queue.add(reader.read_at(vec![0; 64], 0), 1);
        queue.add(reader.read_at(vec![0; 64], 0), 2);
        let closes = std::thread::spawn(move || {
            // Time for this thread to wait; threads are not simulated.
            std::thread::sleep(Duration::from_millis(50));
            drop(writer);
        });
        assert_eq!(queue.end_all(2)[0].result.as_ref().unwrap(), &0);
        closes.join().unwrap();
    });
}

#[test]
fn open_operations_of_a_queue_survive_a_loop_of_the_thread() {
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 64 * PAGE)));
    let pool = Pool::new(4 << 20);
    let mut queue = Queue::new();
    // More operations than one turn of the loop returns results for.
    for number in 0..200 {
        queue.add(file.read_at(pool.get(PAGE).unwrap(), number % 64 * PAGE as u64), number);
    }
    queue.submit();
    ringfile::block_on(async {});
    for done in queue.end_all(200) {
        let number = done.user_data;
        assert_eq!(done.result.unwrap(), PAGE);
        assert_content(&done.buffer.unwrap(), number % 64 * PAGE as u64);
    }
}

#[test]
fn waits_that_are_over_at_once_come_to_an_end_too() {
    must_end("waits of a nanosecond", || {
        let folder = Folder::new();
        let file = open_on_ring(folder.file("data", &content(0, 4 * PAGE)));
        let mut queue = Queue::new();
        // More operations than one turn of the loop returns results for.
        (0..300)
            .for_each(|number| _ = queue.add(file.read_at(vec![0; PAGE], number % 4 * PAGE as u64), number));
        queue.submit();
        let mut ended = Vec::new();
        while ended.len() < 300 {
            queue.wait(300..=300, Some(Duration::from_nanos(1)), &mut ended);
        }
    });
}

#[test]
fn waits_for_all_of_many_reads_give_each_its_result() {
    const PAGES: u64 = 64;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGES as usize * PAGE + 100));
    let mut random = Random::new();
    for route in routes() {
        let file = OpenOptions::new().read(true).route(route).open_blocking(&path).unwrap();
        let other = OpenOptions::new().read(true).write(true).route(route).open_blocking(&path).unwrap();
        let (pool, mut queue) = (Pool::new(4 << 20), Queue::new());
        let (mut open, mut next) = (BTreeMap::new(), 0);
        for _ in 0..100 {
            // Mostly nothing but reads of one file, and often results of the round before that were not taken.
            let mixed = random.below(4) == 0;
            for _ in 0..random.below(20) {
                next += 1;
                let page = random.below(PAGES + 2);
                let kind = random.below(if mixed { 4 } else { 1 });
                let (at, len) =
                    if kind == 3 { (page * PAGE as u64 + 1, 3 * PAGE) } else { (page * PAGE as u64, PAGE) };
                let token = match kind {
                    0 | 3 => queue.add(file.read_at(pool.get(len).unwrap(), at), next),
                    1 => queue.add(other.read_at(vec![0; len], at), next),
                    _ => queue.add(other.sync_data(), next),
                };
                let is_cancelled = mixed && random.below(4) == 0 && queue.cancel(token);
                open.insert(next, (token, at, len, is_cancelled));
            }
            let all = open.len();
            queue.settle(all);
            for _ in 0..random.below(all as u64 + 1) {
                let done = queue.next().unwrap();
                let (expected, at, len, is_cancelled) = open.remove(&done.user_data).unwrap();
                assert_eq!(done.token, expected, "{route:?}");
                if is_cancelled {
                    assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED), "{route:?}");
                } else if let Some(buffer) = done.buffer {
                    let left = (PAGES * PAGE as u64 + 100).saturating_sub(at) as usize;
                    assert_eq!(done.result.unwrap(), left.min(len), "{route:?} at {at}");
                    assert_content(&buffer, at);
                }
            }
        }
        drop(queue);
        assert_eq!(pool.metrics().in_use, 0, "{route:?}");
    }
}

#[test]
fn a_wait_submits_though_results_are_there_already() {
    must_end("what a queue wrote to a pipe", || {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let pipe = File::from(std::fs::File::from(std::os::fd::OwnedFd::from(writer)));
        let folder = Folder::new();
        let file = open_on_ring(folder.file("data", &content(0, PAGE)));
        let mut queue = Queue::new();
        (0..2).for_each(|number| _ = queue.add(file.read_at(vec![0; 10], 0), number));
        queue.settle(2);
        queue.add(pipe.write_at(vec![7; 10], 0), 2);
        assert!(queue.ends(1).len() >= 2);
        let mut bytes = [0; 10];
        reader.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [7; 10]);
    });
}

#[test]
fn system_calls_are_counted_by_how_much_they_submit_and_collect() {
    if !needs_ring("system_calls_are_counted_by_how_much_they_submit_and_collect") {
        return;
    }
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 64 * PAGE)));
    let pool = Pool::new(1 << 20);
    let mut queue = Queue::new();
    let mut round = |reads: u64| {
        let before = thread_metrics();
        for page in 0..reads {
            queue.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64), page);
        }
        queue.submit();
        while !queue.is_empty() {
            for done in queue.ends(1) {
                assert_eq!(done.result.unwrap(), PAGE);
            }
        }
        thread_metrics() - before
    };
    round(1);
    for (reads, bucket) in [(20, 5), (2, 2)] {
        let counted = round(reads);
        assert_eq!(counted.submitted_per_enter.iter().sum::<u64>(), counted.enters, "{counted:?}");
        assert_eq!(counted.completed_per_enter.iter().sum::<u64>(), counted.enters, "{counted:?}");
        assert_eq!(counted.submitted_per_enter[bucket], 1, "{reads} reads in one call: {counted:?}");
    }
}

#[test]
fn waiting_for_one_submits_and_waits_in_one_system_call() {
    let name = "waiting_for_one_submits_and_waits_in_one_system_call";
    // Alone: memory that another test frees interrupts a wait, so that there is another call.
    if !needs_ring(name) || !support::in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 16 << 12));
    let Ok(file) = OpenOptions::new().read(true).direct(true).route(Route::Ring).open_blocking(&path) else {
        return support::skip(name, "no direct I/O here");
    };
    let (pool, mut queue) = (Pool::new(1 << 20), Queue::new());
    let mut enters = Vec::new();
    for page in 0..16_u64 {
        let before = ringfile::thread_metrics().enters;
        let token = queue.add(file.read_at(pool.get(4096).unwrap(), page << 12), page);
        let done = queue.wait_for(token).unwrap();
        assert_content(&done.buffer.unwrap(), page << 12);
        enters.push(ringfile::thread_metrics().enters - before);
    }
    // The first few register the memory and the file.
    assert_eq!(enters[10..], [1; 6], "{enters:?}");
}
