//! Registered memory as a user sees it: registered buffers on every thread, pinned once, and released with the pool;
//! I/O continues if registration is refused.

use std::os::unix::process::CommandExt;
use std::sync::{Arc, Barrier};

use crate::support;
use crate::support::{
    TempPath, again, assert_ran, comes_true, in_child, must_end, needs_registered_buffers, needs_ring,
    open_on_ring, status_kib, yields,
};
use ringfile::{File, Pool, RegisteredMemory, Runtime, block_on, metrics, thread_metrics};

fn pinned_kib() -> u64 {
    status_kib("VmPin")
}

fn file_of(name: &str, len: usize) -> (TempPath, File) {
    let path = TempPath::on_disk(name);
    std::fs::write(&path, vec![7; len]).unwrap();
    let file = open_on_ring(&path);
    (path, file)
}

/// Returns whether the kernel counts the memory that rings pin (6.18 does, 7.2 does not); prints that `test` is skipped
/// if not.
fn counts_pins(test: &str) -> bool {
    let (_path, file) = file_of("counted", 4096);
    let (pool, before) = (Pool::new(2 << 20), pinned_kib());
    let pinned = block_on(async {
        file.read_at(pool.get(4096).unwrap(), 0).await.unwrap();
        pinned_kib() > before
    });
    drop(pool);
    comes_true(|| pinned_kib() == before);
    if !pinned {
        support::skip(test, "this kernel counts in VmPin nothing that rings pin");
    }
    pinned
}

/// Returns whether this kernel lets all threads share one pin (Linux 6.13).
fn can_clone() -> bool {
    ringfile::metrics::ring_features().unwrap().iter().any(|name| name == "clone_buffers")
}

#[test]
fn every_thread_has_fixed_io_and_the_memory_is_pinned_once() {
    if !needs_ring("every_thread_has_fixed_io_and_the_memory_is_pinned_once") {
        return;
    }
    if !in_child("every_thread_has_fixed_io_and_the_memory_is_pinned_once") {
        return;
    }
    if !can_clone() {
        return support::skip(
            "every_thread_has_fixed_io_and_the_memory_is_pinned_once",
            "this kernel can't clone registrations",
        );
    }
    if !counts_pins("every_thread_has_fixed_io_and_the_memory_is_pinned_once") {
        return;
    }
    must_end("every_thread_has_fixed_io_and_the_memory_is_pinned_once", || {
        let (_path, file) = file_of("pinned-once", 64 << 10);
        let pool = Pool::new(2 << 20);
        let before = pinned_kib();
        let read = |file: &File, pool: &Pool| {
            let (file, pool) = (file.clone(), pool.clone());
            async move {
                let earlier = thread_metrics();
                for at in 0..16 {
                    let buffer = file.read_exact_at(pool.get(4096).unwrap(), at * 4096).await.unwrap();
                    assert!(buffer.iter().all(|&byte| byte == 7));
                }
                let counts = thread_metrics() - earlier;
                assert_eq!((counts.ops, counts.fixed_ops), (16, 16));
            }
        };
        // The threads stay in their loops: leaving one releases its share.
        let (first_is_done, pinned_by_one) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let (all_are_done, end) = (Arc::new(Barrier::new(5)), Arc::new(Barrier::new(5)));
        let threads: Vec<_> = (0..4)
            .map(|index| {
                let (first_is_done, pinned_by_one) = (Arc::clone(&first_is_done), Arc::clone(&pinned_by_one));
                let (all_are_done, end) = (Arc::clone(&all_are_done), Arc::clone(&end));
                let reads = read(&file, &pool);
                let thread = std::thread::spawn(move || {
                    block_on(async {
                        reads.await;
                        if index == 0 {
                            first_is_done.wait();
                            pinned_by_one.wait();
                        }
                        all_are_done.wait();
                        end.wait();
                    });
                });
                if index == 0 { (thread, Some(())) } else { (thread, None) }
            })
            .map(|(thread, is_first)| {
                if is_first.is_some() {
                    first_is_done.wait();
                    assert_eq!(pinned_kib() - before, 2 << 10, "the pool's one region");
                    pinned_by_one.wait();
                }
                thread
            })
            .collect();
        all_are_done.wait();
        assert_eq!(pinned_kib() - before, 2 << 10, "no more for four threads");
        assert_eq!(pool.metrics().registered_bytes, 2 << 20);
        end.wait();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        drop(pool);
        assert!(comes_true(|| pinned_kib() == before));
    });
}

#[test]
fn memory_of_a_dropped_pool_is_unpinned_while_threads_sleep() {
    let name = "memory_of_a_dropped_pool_is_unpinned_while_threads_sleep";
    if !in_child(name) {
        return;
    }
    if !needs_ring(name) || !needs_registered_buffers(name) {
        return;
    }
    if !counts_pins(name) {
        return;
    }
    must_end("memory_of_a_dropped_pool_is_unpinned_while_threads_sleep", || {
        let (_path, file) = file_of("given-back", 64 << 10);
        let before = pinned_kib();
        let runtime = Runtime::builder().threads(2).build().unwrap();
        for round in 0..10 {
            let pool = Pool::new(2 << 20);
            for thread in 0..2 {
                let (file, pool) = (file.clone(), pool.clone());
                let read = runtime.spawn_on(thread, move || async move {
                    let earlier = thread_metrics();
                    file.read_at(pool.get(4096).unwrap(), 0).await.unwrap();
                    assert_eq!((thread_metrics() - earlier).fixed_ops, 1);
                });
                read.join().unwrap();
            }
            assert!(pinned_kib() >= before + (2 << 10));
            if round % 2 == 0 {
                drop(pool);
            } else {
                // The pool is dropped on one of the threads, in a task.
                runtime.spawn_on(0, move || async move { drop(pool) }).join().unwrap();
            }
            assert!(
                comes_true(|| pinned_kib() == before),
                "round {round}: {} KiB left",
                pinned_kib() - before
            );
        }
        runtime.shutdown();
    });
}

#[test]
fn memory_that_is_lent_is_registered_and_given_back_too() {
    let name = "memory_that_is_lent_is_registered_and_given_back_too";
    if !in_child(name) {
        return;
    }
    if !needs_ring(name) || !needs_registered_buffers(name) {
        return;
    }
    if !counts_pins(name) {
        return;
    }
    must_end("memory_that_is_lent_is_registered_and_given_back_too", || {
        let (_path, file) = file_of("lent", 64 << 10);
        let before = pinned_kib();
        let memory = RegisteredMemory::new(vec![0_u8; 1 << 20]);
        block_on(async {
            let earlier = thread_metrics();
            let page = file.read_exact_at(memory.lend(4096..8192).unwrap(), 0).await.unwrap();
            assert!(page.iter().all(|&byte| byte == 7));
            let pair = vec![memory.lend(0..100).unwrap(), memory.lend(100..200).unwrap()];
            file.read_exact_vectored_at(pair, 0).await.unwrap();
            let counts = thread_metrics() - earlier;
            let vectored =
                ringfile::metrics::ring_features().unwrap().iter().any(|name| name == "readv_fixed");
            assert_eq!((counts.ops, counts.fixed_ops), (2, 1 + u64::from(vectored)));
            assert!(pinned_kib() > before);
            drop(page);
            drop(memory);
            yields(2).await;
            // Before Linux 6.13, up to a second later.
            assert!(comes_true(|| pinned_kib() == before));
        });
    });
}

#[test]
fn a_vectored_read_is_fixed_only_within_one_registration() {
    let name = "a_vectored_read_is_fixed_only_within_one_registration";
    if !in_child(name) {
        return;
    }
    if !needs_ring(name) || !needs_registered_buffers(name) {
        return;
    }
    let path = TempPath::on_disk("across");
    let content: Vec<u8> = (0..5 * 4096_u32).map(|at| (at / 100) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let file = open_on_ring(&path);
    let pools = [Pool::new(2 << 20), Pool::new(2 << 20)];
    let has_form = ringfile::metrics::ring_features().unwrap().iter().any(|name| name == "readv_fixed");
    let read = |parts: Vec<ringfile::Buffer>, fixed: bool| {
        let before = thread_metrics();
        let parts = block_on(file.read_vectored_at(parts, 0)).unwrap();
        let counts = thread_metrics() - before;
        assert_eq!((counts.ops, counts.fixed_ops), (1, u64::from(fixed)));
        let read: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
        let room: usize = parts.iter().map(ringfile::Buffer::capacity).sum();
        assert_eq!(read, content[..room.min(content.len())]);
    };
    let mut rest = pools[0].get(4 * 4096).unwrap();
    read((0..4).map(|_| rest.split_to(4096)).collect(), has_form);
    read([0, 1, 1, 0].map(|pool| pools[pool].get(4096).unwrap()).into(), false);
    // The file ends in the first pool's part, then in the second's.
    read([0, 1].map(|pool| pools[pool].get(6 * 4096).unwrap()).into(), false);
    read([0, 1].map(|pool| pools[pool].get(3 * 4096).unwrap()).into(), false);
}

#[test]
fn an_unregistered_pool_is_never_pinned() {
    if !in_child("an_unregistered_pool_is_never_pinned") {
        return;
    }
    let (_path, file) = file_of("never", 4096);
    let pool = Pool::builder().capacity(2 << 20).registered(false).build().unwrap();
    let before = pinned_kib();
    let ops = if support::is_without_ring() { 0 } else { 1 };
    block_on(async {
        let earlier = thread_metrics();
        file.read_at(pool.get(4096).unwrap(), 0).await.unwrap();
        let counts = thread_metrics() - earlier;
        assert_eq!((counts.ops, counts.fixed_ops, counts.refused_registrations), (ops, 0, 0));
    });
    assert_eq!(pinned_kib(), before);
}

const IN_CHILD: &str = "RINGFILE_TEST_FILE_OF_UNPRIVILEGED_CHILD";

/// In its own process: the limit is per process, and root has none.
#[test]
fn io_continues_after_a_refused_registration_with_one_warning() {
    let name = "io_continues_after_a_refused_registration_with_one_warning";
    if !needs_ring(name) || !needs_registered_buffers(name) {
        return;
    }
    if let Ok(path) = std::env::var(IN_CHILD) {
        return without_registration(&path);
    }
    let (path, _file) = file_of("refused", 64 << 10);
    let mut child = again(name);
    child.env(IN_CHILD, &*path);
    if rustix::process::geteuid().is_root() {
        // A user that no other process has: locked memory is counted over all processes of a user.
        child.uid(70_000 + std::process::id()).gid(65_534);
    }
    assert_ran(&child.output().unwrap());
}

fn without_registration(path: &str) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    // The limit is enough for rings, but not for 2 MiB.
    let limit = Some(512 << 10);
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).unwrap();
    let warnings = support::record_warnings();
    let pool = Pool::new(16 << 20);
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (file, pool) = (open_on_ring(path), pool.clone());
            std::thread::spawn(move || {
                block_on(async {
                    for at in 0..16 {
                        let buffer = file.read_exact_at(pool.get(4096).unwrap(), at * 4096).await.unwrap();
                        assert!(buffer.iter().all(|&byte| byte == 7));
                    }
                    assert_eq!((thread_metrics().ops, thread_metrics().fixed_ops), (16, 0));
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(warnings.lock().unwrap().len(), 1, "{warnings:?}");
    if !support::has_shared_registrations() {
        assert_eq!(metrics().refused_registrations, 3, "requested once by each thread's ring");
        return;
    }
    assert_eq!(metrics().refused_registrations, 1, "requested once, by the first thread");
    let pool = pool.metrics();
    assert_eq!((pool.refused_registrations, pool.registered_regions), (1, 0));
}

/// Sharing the pool's registration, and giving it back, are two more system calls for a loop's only operation.
#[test]
fn loops_of_one_operation_stop_taking_shares_that_each_would_give_back() {
    let name = "loops_of_one_operation_stop_taking_shares_that_each_would_give_back";
    if !in_child(name) {
        return;
    }
    if !needs_ring(name) || !needs_registered_buffers(name) {
        return;
    }
    let counts = counts_pins(name);
    let before = pinned_kib();
    let (_path, file) = file_of("shared", 64 << 10);
    let pool = Pool::new(2 << 20);
    // A thread that panics drops its ends.
    let (done, is_done) = std::sync::mpsc::channel();
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let thread = {
        let pool = pool.clone();
        std::thread::spawn(move || {
            let read = |times: u64| {
                let earlier = thread_metrics();
                block_on(async {
                    for _ in 0..times {
                        let buffer = file.read_exact_at(pool.get(4096).unwrap(), 0).await.unwrap();
                        assert!(buffer.iter().all(|&byte| byte == 7));
                    }
                });
                let counts = thread_metrics() - earlier;
                assert_eq!(counts.ops, times);
                counts.fixed_ops
            };
            let short: Vec<u64> = (0..20).map(|_| read(1)).collect();
            assert_eq!((short[0], &short[10..]), (1, &[0; 10][..]), "{short:?}");
            let long = read(100);
            assert!((50..100).contains(&long), "{long}");
            assert_eq!(read(100), 100, "the loop before has shown that it pays");
            drop((file, pool));
            done.send(()).unwrap();
            // The thread stays, outside of any loop.
            let _ = ends.recv();
        })
    };
    is_done.recv().unwrap();
    drop(pool);
    if counts {
        assert!(comes_true(|| pinned_kib() == before), "{} KiB are still pinned", pinned_kib());
    }
    drop(end);
    thread.join().unwrap();
}

#[test]
fn memory_that_is_registered_now_is_pinned_before_any_operation() {
    let name = "memory_that_is_registered_now_is_pinned_before_any_operation";
    if !in_child(name) {
        return;
    }
    if !needs_ring(name) || !needs_registered_buffers(name) {
        return;
    }
    if !counts_pins(name) {
        return;
    }
    let (_path, file) = file_of("now", 4096);
    let memory = RegisteredMemory::new(vec![0_u8; 8 << 20]);
    let before = pinned_kib();
    if !can_clone() {
        let refused = ringfile::buf::register(&memory).unwrap_err();
        return assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported, "{refused}");
    }
    ringfile::buf::register(&memory).unwrap();
    let pinned = pinned_kib() - before;
    assert!((8 << 10..=(8 << 10) + 64).contains(&pinned), "{pinned} KiB");
    ringfile::buf::register(&memory).unwrap();
    block_on(async {
        let counts = thread_metrics();
        let buffer = file.read_at(memory.lend(4096..8192).unwrap(), 0).await.unwrap();
        assert_eq!((buffer[0], (thread_metrics() - counts).fixed_ops), (7, 1));
    });
    let reads = || block_on(async { file.read_at(memory.lend(..4096).unwrap(), 0).await.unwrap()[0] });
    assert_eq!(std::thread::scope(|scope| scope.spawn(reads).join().unwrap()), 7);
    assert_eq!(pinned_kib() - before, pinned, "another thread pins nothing");
    drop(memory);
    assert!(comes_true(|| pinned_kib() <= before), "{} KiB are pinned", pinned_kib());
    // Also if this thread enters no loop after that.
    for _ in 0..3 {
        let memory = RegisteredMemory::new(vec![0_u8; 8 << 20]);
        ringfile::buf::register(&memory).unwrap();
        drop(memory);
        assert!(comes_true(|| pinned_kib() <= before), "{} KiB are pinned", pinned_kib());
    }
}
