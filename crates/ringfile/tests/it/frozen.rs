//! Writes of a pool's frozen `Bytes`: with a registered buffer if their memory is registered, which is found by its
//! address, and with the right content in all other cases.

use crate::support::handles::Handles as _;
use std::io::Read;
use std::os::fd::AsRawFd;

use crate::support;
use crate::support::{
    TempPath, has_registered_buffers, is_root, is_without_ring, must_end, needs_ring, page_size, poll_once,
    ring_options,
};
use bytes::Bytes;
use ringfile::buf::PoolError;
use ringfile::{AnyBuffer, Batch, File, Pool, Queue, RegisteredMemory, block_on, thread_metrics};

const PAGE: usize = 4096;

/// Returns `len` frozen bytes, each `byte`.
fn frozen(pool: &Pool, len: usize, byte: u8) -> Bytes {
    let mut buffer = pool.get(len).unwrap();
    buffer.resize(len, byte);
    buffer.freeze()
}

/// Makes an empty file on the ring.
fn writable(path: &TempPath) -> File {
    ring_options().read(true).write(true).create(true).open_blocking(path).unwrap()
}

/// Returns the number of operations of `run` on this thread, how many of them use a registered buffer, and the result.
fn counted<T>(run: impl FnOnce() -> T) -> (u64, u64, T) {
    let before = thread_metrics();
    let result = run();
    let counts = thread_metrics() - before;
    (counts.ops, counts.fixed_ops, result)
}

/// Asserts the counts of operations, and of those with a registered buffer, if there is a ring.
#[track_caller]
fn assert_counts<T>((ops, fixed, result): (u64, u64, T), expected: (u64, u64)) -> T {
    if !is_without_ring() {
        let expected = (expected.0, if has_registered_buffers() { expected.1 } else { 0 });
        // Users other than root may lock little memory, and all their processes share that limit.
        let is_refused = !is_root() && ringfile::buf::refused_registration().is_some();
        let fixed = if is_refused && fixed < expected.1 { expected.1 } else { fixed };
        assert_eq!((ops, fixed), expected, "operations, and fixed ones");
    }
    result
}

fn has_vectored() -> bool {
    !is_without_ring() && ringfile::metrics::ring_features().unwrap().iter().any(|name| name == "readv_fixed")
}

#[test]
fn frozen_bytes_parts_and_clones_of_them_are_written_fixed_and_thaw_afterwards() {
    must_end("frozen_bytes_parts_and_clones_of_them_are_written_fixed_and_thaw_afterwards", || {
        let path = TempPath::on_disk("frozen");
        let (file, pool) = (writable(&path), Pool::new(16 << 20));
        // In three regions, none of which any operation has used yet.
        let all = [frozen(&pool, PAGE, 1), frozen(&pool, 3 << 20, 2), frozen(&pool, 5 << 20, 3)];
        let written = assert_counts(
            counted(|| {
                block_on(async {
                    let mut written = Vec::new();
                    for (at, bytes) in all.into_iter().enumerate() {
                        written.push(file.write_at(bytes, at as u64 * (8 << 20)).await.unwrap());
                    }
                    // A part, a clone, and a clone of a part, across the regions.
                    for bytes in
                        [written[0].slice(100..200), written[2].clone(), written[1].slice(1..).clone()]
                    {
                        file.write_at(bytes, 32 << 20).await.unwrap();
                    }
                    file.write_durable_at(written[1].slice(..PAGE), 64 << 20).await.unwrap();
                    written
                })
            }),
            (7, 7),
        );
        let content = std::fs::read(&path).unwrap();
        assert_eq!(content.len(), (64 << 20) + PAGE);
        for (at, bytes) in written.iter().enumerate() {
            let start = at * (8 << 20);
            assert!(
                content[start..start + bytes.len()].iter().all(|&byte| byte == at as u8 + 1),
                "part {at}"
            );
        }
        assert!(content[64 << 20..].iter().all(|&byte| byte == 2));
        for bytes in written {
            let (start, len) = (bytes.as_ptr(), bytes.len());
            let buffer = pool.thaw(bytes).unwrap();
            assert_eq!((buffer.as_ptr(), buffer.len()), (start, len));
        }
        assert_eq!(pool.metrics().in_use, 0);
    });
}

#[test]
fn vectored_writes_of_one_region_are_fixed_and_others_are_right() {
    must_end("vectored_writes_of_one_region_are_fixed_and_others_are_right", || {
        let path = TempPath::on_disk("frozen-vectored");
        let (file, pool) = (writable(&path), Pool::new(16 << 20));
        let write = |parts: Vec<Bytes>, fixed: bool| {
            let expected = parts.concat();
            let back = assert_counts(
                counted(|| block_on(file.write_vectored_at(parts.clone(), 0)).unwrap()),
                (1, u64::from(fixed)),
            );
            assert_eq!(back, parts);
            assert_eq!(std::fs::read(&path).unwrap()[..expected.len()], expected);
        };
        let (one, two, far) = (frozen(&pool, PAGE, 4), frozen(&pool, 512, 5), frozen(&pool, 3 << 20, 6));
        let foreign = Bytes::from_static(b"not of a pool");
        write(vec![two.clone()], true);
        write(vec![one.clone(), Bytes::new(), two.slice(7..), one.slice(..1)], has_vectored());
        write(vec![Bytes::new(), far.clone(), far.slice(PAGE..)], has_vectored());
        write(vec![one.clone(), far.clone()], false);
        write(vec![one, foreign.clone()], false);
        write(vec![foreign, two], false);
    });
}

#[test]
fn bytes_of_other_memory_are_written_plain_and_those_of_an_owner_that_has_a_buffer_fixed() {
    struct Owner(ringfile::Buffer);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    must_end("bytes_of_other_memory_are_written_plain_and_those_of_an_owner_that_has_a_buffer_fixed", || {
        let path = TempPath::on_disk("frozen-other");
        let (file, pool) = (writable(&path), Pool::new(2 << 20));
        let write = |bytes: Bytes, fixed: u64| {
            let expected = bytes.clone();
            let back = assert_counts(counted(|| block_on(file.write_at(bytes, 0)).unwrap()), (1, fixed));
            assert_eq!(back.as_ptr(), expected.as_ptr());
            assert_eq!(std::fs::read(&path).unwrap()[..expected.len()], expected);
        };
        let unregistered = Pool::builder().registered(false).build().unwrap();
        let page = page_size();
        let outside =
            Pool::builder().capacity(page).when_full(ringfile::WhenFull::Outside { limit: 1 << 20 });
        let outside = outside.build().unwrap();
        let mut buffer = pool.get(PAGE).unwrap();
        buffer.resize(PAGE, 9);
        for _ in 0..2 {
            write(frozen(&pool, PAGE, 7), 1);
            write(Bytes::from(vec![8; PAGE]), 0);
            write(Bytes::from_static(b"static"), 0);
            write(frozen(&unregistered, PAGE, 1), 0);
            write(frozen(&outside, 2 * page, 2), 0);
        }
        write(Bytes::from_owner(Owner(buffer)), 1);
        assert_counts(counted(|| block_on(file.write_at(Bytes::new(), 0)).unwrap()), (0, 0));
        drop(pool);
        // The addresses of the pool may hold other memory now.
        for byte in 0..10 {
            write(Bytes::from(vec![byte; 2 << 20]), 0);
        }
        write(frozen(&Pool::new(2 << 20), PAGE, 3), 1);
    });
}

/// Makes a full pipe, and returns the bytes that come out of it before the next write.
fn full_pipe() -> (File, std::io::PipeReader, usize) {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let mut full = 0;
    while let Ok(n) = std::io::Write::write(&mut &writer, &[0; PAGE]) {
        full += n;
    }
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let file =
        ring_options().write(true).open_blocking(format!("/proc/self/fd/{}", writer.as_raw_fd())).unwrap();
    (file, reader, full)
}

#[test]
fn the_pool_may_go_while_its_bytes_are_in_flight() {
    must_end("the_pool_may_go_while_its_bytes_are_in_flight", || {
        let (file, mut reader, full) = full_pipe();
        let pool = Pool::new(2 << 20);
        let (bytes, dropped) = (frozen(&pool, PAGE, 5), frozen(&pool, PAGE, 6));
        let back = assert_counts(
            counted(|| {
                block_on(async {
                    let mut write = Box::pin(file.write_at(bytes, 0));
                    assert!(poll_once(&mut write).await.is_pending());
                    // The future of one more write is dropped: its memory stays until the kernel has answered.
                    if !is_without_ring() {
                        let mut second = Box::pin(file.write_at(dropped, 0));
                        assert!(poll_once(&mut second).await.is_pending());
                        support::yields(3).await;
                        drop(second);
                    }
                    support::yields(3).await;
                    drop(pool);
                    // New mappings must not land at the pool's addresses.
                    let others: Vec<_> = (0..8).map(|_| frozen(&Pool::new(2 << 20), 2 << 20, 0xee)).collect();
                    let mut content = vec![0; full + PAGE];
                    let reading = std::thread::spawn(move || {
                        reader.read_exact(&mut content).unwrap();
                        (reader, content)
                    });
                    let back = write.await.unwrap();
                    let (_reader, content) = reading.join().unwrap();
                    assert!(content[full..].iter().all(|&byte| byte == 5));
                    drop(others);
                    back
                })
            }),
            (2, 2),
        );
        assert!(back.iter().all(|&byte| byte == 5));
    });
}

#[test]
fn bytes_of_lent_memory_keep_it_lent_while_they_are_in_flight() {
    must_end("bytes_of_lent_memory_keep_it_lent_while_they_are_in_flight", || {
        let (file, mut reader, full) = full_pipe();
        let memory = RegisteredMemory::new(vec![7_u8; 2 * PAGE]);
        // The last operation used the region of the lent memory, which is not that of the bytes.
        let path = TempPath::on_disk("frozen-lent");
        let data = writable(&path);
        drop(block_on(data.write_at(memory.lend(PAGE..).unwrap(), 0)).unwrap());
        let (ops, fixed, ()) = counted(|| {
            block_on(async {
                let mut write = Box::pin(file.write_at(memory.lend(..PAGE).unwrap().freeze(), 0));
                assert!(poll_once(&mut write).await.is_pending());
                support::yields(3).await;
                assert_eq!(memory.lent(), PAGE);
                assert!(matches!(memory.lend(..1), Err(PoolError::Lent { .. })), "it cannot be unmapped");
                let mut content = vec![0; full + PAGE];
                let reading = std::thread::spawn(move || {
                    reader.read_exact(&mut content).unwrap();
                    content
                });
                drop(write.await.unwrap());
                assert!(reading.join().unwrap()[full..].iter().all(|&byte| byte == 7));
            });
        });
        assert_eq!(memory.lent(), 0);
        if !is_without_ring() {
            assert_eq!((ops, fixed), (1, 0));
        }
    });
}

#[test]
fn batches_and_queues_write_bytes_and_refuse_to_read_into_them() {
    must_end("batches_and_queues_write_bytes_and_refuse_to_read_into_them", || {
        let path = TempPath::on_disk("frozen-many");
        let (file, pool) = (writable(&path), Pool::new(2 << 20));
        let bytes = frozen(&pool, PAGE, 1);
        let mut batch = Batch::new();
        for at in 0..20 {
            batch.add(file.write_at(bytes.slice(at..), at as u64 * PAGE as u64));
        }
        batch.add(file.write_durable_at(bytes.clone(), 20 * PAGE as u64));
        batch.barrier();
        batch.add(file.read_at(AnyBuffer::from(bytes.clone()), 0));
        batch.add(file.read_at(AnyBuffer::from(Bytes::new()), 0));
        batch.add(file.read_at(pool.get(PAGE).unwrap(), 20 * PAGE as u64));
        let results = assert_counts(counted(|| batch.run()), (22, 22));
        for (at, done) in results.into_iter().enumerate() {
            match at {
                0..20 => assert_eq!(done.result.unwrap(), PAGE - at),
                20 | 23 => assert_eq!(done.result.unwrap(), PAGE),
                _ => {
                    let error = done.result.unwrap_err();
                    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
                    assert!(error.to_string().contains("cannot read into"), "{error}");
                }
            }
            let buffer = done.buffer.unwrap();
            assert_eq!(matches!(buffer, AnyBuffer::Bytes(_)), at != 23, "what was given");
            assert!(buffer.iter().all(|&byte| byte == 1));
        }

        let mut queue = Queue::new();
        queue.add(file.write_at(bytes.clone(), 0), 1);
        queue.add(file.read_at(AnyBuffer::from(bytes.clone()), 0), 2);
        let (mut seen, mut all) = (0, Vec::new());
        while !queue.is_empty() {
            for done in queue.ends(1) {
                let number = done.user_data;
                seen += number;
                assert_eq!(done.result.is_ok(), number == 1, "{:?}", done.result);
                all.push(done.buffer.and_then(AnyBuffer::into_bytes).unwrap());
            }
        }
        assert_eq!(seen, 3);
        assert_eq!(all, [bytes.clone(), bytes.clone()]);
        drop(all);
        assert_eq!(pool.thaw(bytes).unwrap().len(), PAGE);
        assert_eq!(pool.metrics().in_use, 0);
    });
}

#[test]
fn threads_that_make_and_drop_pools_disturb_no_write() {
    if !needs_ring("threads_that_make_and_drop_pools_disturb_no_write") {
        return;
    }
    must_end("threads_that_make_and_drop_pools_disturb_no_write", || {
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        let pools = [1, 2, 4].map(|mib| Pool::new(mib << 20));
                        drop(pools.each_ref().map(|pool| frozen(pool, PAGE, 0xee)));
                    }
                });
            }
            let writers: Vec<_> = (0..2_u8)
                .map(|thread| {
                    scope.spawn(move || {
                        let path = TempPath::on_disk("frozen-churn");
                        let (file, kept) = (writable(&path), Pool::new(2 << 20));
                        // In one loop: several short ones would not share the pools' registration.
                        block_on(async {
                            for round in 0..300 {
                                let fresh = Pool::new(1 << 20);
                                for pool in [&kept, &fresh] {
                                    let byte = thread * 100 + (round % 100) as u8;
                                    let before = thread_metrics();
                                    file.write_at(frozen(pool, PAGE, byte), 0).await.unwrap();
                                    let counts = thread_metrics() - before;
                                    assert_counts((counts.ops, counts.fixed_ops, ()), (1, 1));
                                    assert_eq!(std::fs::read(&path).unwrap(), [byte; PAGE]);
                                }
                                file.write_at(Bytes::from(vec![1; 1 << 20]), 0).await.unwrap();
                                file.set_len(0).await.unwrap();
                            }
                        });
                    })
                })
                .collect();
            let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            ended.into_iter().for_each(|writer| writer.unwrap());
        });
    });
}
