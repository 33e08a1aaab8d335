//! Direct I/O: refused, accepted but ignored, unaligned, and polled where polling is not supported (F16 to F19).

use crate::support::handles::Handles as _;
use std::io::ErrorKind;

use crate::support::fuse::{Act, Op, Server};
use crate::support::mounts::{Loop, Mount};
use crate::support::{
    Folder, Random, all, assert_content, content, is_without_ring, must_end, needs_ring, poll_once,
    ring_options, skip,
};
use ringfile::fs::{self, AllocateMode};
use ringfile::{Batch, File, OpenOptions, Pool, Queue, block_on, thread_metrics};

const PAGE: usize = 4096;

/// Opens a direct file in the temporary folder; `None` if its file system has no direct I/O.
fn direct(test: &str, folder: &Folder, bytes: &[u8]) -> Option<File> {
    let path = folder.file("data", bytes);
    let opened = ring_options().read(true).write(true).direct(true).open_blocking(path);
    opened.map_err(|error| skip(test, error)).ok()
}

#[test]
fn f16_direct_refused_at_open_is_a_clear_error_or_buffered_where_allowed() {
    for path in ["/proc/self/status", "/dev/zero"] {
        let error = ring_options().read(true).direct(true).open_blocking(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        assert!(text.contains(path) && text.contains("direct"), "{text}");
        let file =
            ring_options().read(true).direct(true).buffered_fallback(true).open_blocking(path).unwrap();
        assert!(!file.is_direct() && file.alignment().bytes == 1);
        let got = block_on(file.read_at(Vec::with_capacity(100), 0)).unwrap();
        assert!(!got.is_empty());
    }
}

#[test]
fn f16_direct_refused_at_io_is_a_clear_error() {
    let name = "f16_direct_refused_at_io_is_a_clear_error";
    let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
    server.direct_rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Fail(libc::EINVAL));
    server.direct_rule(Op::Write, 0..u64::MAX, usize::MAX, Act::Fail(libc::EINVAL));
    let file = ring_options().read(true).write(true).direct(true).open_blocking(server.path()).unwrap();
    let pool = Pool::new(1 << 20);
    block_on(async {
        let failed = file.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap_err();
        assert_eq!(failed.errno(), Some(libc::EINVAL));
        assert!(failed.to_string().contains("buffered_fallback"), "{failed}");
        let failed = file.read_at(vec![0; 100], 7).await.unwrap_err();
        assert_eq!(failed.errno(), Some(libc::EINVAL));
        let mut buffer = pool.get(PAGE).unwrap();
        buffer.resize(PAGE, 1);
        let failed = file.write_at(buffer, 0).await.unwrap_err();
        assert_eq!(failed.errno(), Some(libc::EINVAL));
        assert!(failed.to_string().contains("open without direct"), "{failed}");
    });
    assert!(file.is_direct());
    assert_eq!(server.data(), content(0, 64 * PAGE));
}

#[test]
fn f16_direct_refused_at_io_turns_buffered_where_allowed_for_all_in_flight() {
    let name = "f16_direct_refused_at_io_turns_buffered_where_allowed_for_all_in_flight";
    let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
    server.direct_rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Fail(libc::EINVAL));
    let mut options = ring_options();
    let file = options.read(true).direct(true).buffered_fallback(true).open_blocking(server.path()).unwrap();
    assert!(file.is_direct());
    let pool = Pool::new(1 << 20);
    block_on(async {
        let reads = (0..32).map(|page| file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64)).collect();
        for (page, result) in all(reads).await.into_iter().enumerate() {
            assert_content(&result.unwrap(), (page * PAGE) as u64);
        }
        assert!(!file.is_direct());
        assert_content(&file.read_at(vec![0; 100], 3).await.unwrap(), 3);
    });
}

#[test]
fn f16_unaligned_reads_turn_buffered_where_allowed() {
    let name = "f16_unaligned_reads_turn_buffered_where_allowed";
    let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
    server.direct_rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Fail(libc::EINVAL));
    let mut options = ring_options();
    let file = options.read(true).direct(true).buffered_fallback(true).open_blocking(server.path()).unwrap();
    block_on(async {
        let reads = (0..8_u64).map(|i| file.read_at(Vec::with_capacity(10_000), i * 777 + 1)).collect();
        for (i, result) in all(reads).await.into_iter().enumerate() {
            let got = result.unwrap();
            assert_eq!(got.len(), 10_000);
            assert_content(&got, i as u64 * 777 + 1);
        }
    });
}

#[test]
fn f16_a_read_near_the_largest_offset_leaves_the_file_direct() {
    let name = "f16_a_read_near_the_largest_offset_leaves_the_file_direct";
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let mut options = ring_options();
    let options = options.read(true).direct(true).buffered_fallback(true);
    let file = options.open_blocking(path).unwrap();
    if !file.is_direct() {
        return skip(name, "no direct I/O here");
    }
    let pool = Pool::new(1 << 20);
    let end_of_blocks = (1 << 63) - file.alignment().bytes as u64;
    for offset in [i64::MAX as u64 - 10, i64::MAX as u64 - 100, end_of_blocks] {
        let failed = block_on(file.read_at(pool.get(10).unwrap(), offset)).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::InvalidInput, "{failed}");
        let mut batch = ringfile::Batch::new();
        batch.add(file.read_at(pool.get(10).unwrap(), offset));
        let error = batch.run().remove(0).result.unwrap_err();
        assert_eq!(error.to_string(), failed.error().to_string());
        let mut queue = ringfile::Queue::new();
        queue.add(file.read_at(pool.get(10).unwrap(), offset), 0);
        let error = queue.end().result.unwrap_err();
        assert_eq!(error.to_string(), failed.error().to_string());
        assert!(file.is_direct(), "the offset is refused, not direct I/O");
    }
    // The last offset at which every kind of read works.
    assert!(block_on(file.read_at(pool.get(10).unwrap(), end_of_blocks - 10)).unwrap().is_empty());
    assert!(file.is_direct());
}

#[test]
fn f16_an_invalid_allocation_leaves_the_file_direct() {
    let folder = Folder::new();
    if direct("f16_an_invalid_allocation_leaves_the_file_direct", &folder, &content(0, PAGE)).is_none() {
        return;
    }
    let mut options = ring_options();
    let options = options.write(true).direct(true).buffered_fallback(true);
    let file = options.open_blocking(folder.path().join("data")).unwrap();
    let failed = block_on(file.allocate(AllocateMode::Extend, 0, 0)).unwrap_err();
    assert_eq!(failed.errno(), Some(libc::EINVAL));
    let mut batch = Batch::new();
    batch.add(file.allocate(AllocateMode::Extend, 0, 0));
    let failed = batch.run().remove(0).result.unwrap_err();
    assert_eq!(failed.errno(), Some(libc::EINVAL));
    assert!(file.is_direct());
}

#[test]
fn a_reader_takes_any_number_of_bytes_for_a_block() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 3 * PAGE));
    for direct in [false, true] {
        let mut options = ring_options();
        let file = options.read(true).direct(direct).buffered_fallback(true).open_blocking(&path).unwrap();
        let pool = Pool::new(1 << 20);
        for block in [usize::MAX, usize::MAX / 2, (1 << 30) + 1, 0] {
            block_on(async {
                let mut reader = file.reader(&pool).block(block).depth(1).range(1..3 * PAGE as u64);
                let mut got = Vec::new();
                while let Some(piece) = reader.next().await {
                    got.extend_from_slice(&piece.unwrap());
                    if block == 0 && got.len() > 100 {
                        return;
                    }
                }
                assert_eq!(got.len(), 3 * PAGE - 1, "{block}");
                assert_content(&got, 1);
                if block > 0 {
                    let error = file.reader(&pool).block(block).next().await.unwrap().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::InvalidInput, "the pool is smaller: {error}");
                }
            });
        }
    }
}

#[test]
fn f17_direct_io_on_tmpfs_is_refused_or_becomes_buffered() {
    let name = "f17_direct_io_on_tmpfs_is_refused_or_becomes_buffered";
    let Some(disk) = Mount::tmpfs(name, 1 << 20) else { return };
    let path = disk.path().join("data");
    std::fs::write(&path, content(0, 2 * PAGE)).unwrap();
    let error =
        ring_options().read(true).write(true).direct(true).truncate(true).open_blocking(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("tmpfs"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), content(0, 2 * PAGE), "a refused open costs no data");
    let file = ring_options().read(true).direct(true).buffered_fallback(true).open_blocking(&path).unwrap();
    assert!(!file.is_direct());
    assert_content(&block_on(file.read_exact_at(vec![0; 5000], 77)).unwrap(), 77);
    // A descriptor opened elsewhere with O_DIRECT, which Linux accepts here since 6.6, is no more direct than that.
    use std::os::unix::fs::OpenOptionsExt;
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    let Ok(std) = opened.inspect_err(|error| assert_eq!(error.raw_os_error(), Some(libc::EINVAL))) else {
        return;
    };
    let file = File::from(std);
    assert!(!file.is_direct());
    assert_content(&block_on(file.read_exact_at(vec![0; 5000], 77)).unwrap(), 77);
}

#[test]
fn f17_a_file_that_cannot_be_direct_is_not_created() {
    let name = "f17_a_file_that_cannot_be_direct_is_not_created";
    let Some(disk) = Mount::tmpfs(name, 1 << 20) else { return };
    let names = || {
        std::fs::read_dir(disk.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    let folder = Folder::new();
    let link = folder.path().join("link");
    // Where it points decides.
    std::os::unix::fs::symlink(disk.path().join("linked"), &link).unwrap();
    let mut create = ring_options();
    create.write(true).create(true).direct(true);
    let mut create_new = ring_options();
    create_new.write(true).create_new(true).direct(true);
    for (options, path) in
        [(&create, disk.path().join("data")), (&create_new, disk.path().join("data")), (&create, link)]
    {
        let queued = || {
            let mut queue = Queue::new();
            queue.add(options.open(&path), 0);
            Ok(queue.end().take::<File>()?)
        };
        for opened in [options.open_blocking(&path), block_on(options.open(&path)), queued()] {
            let error = opened.unwrap_err();
            assert_eq!((error.kind(), error.path()), (ErrorKind::Unsupported, Some(&*path)));
            assert!(error.to_string().contains("tmpfs"), "{error}");
            assert!(names().is_empty(), "{:?}", names());
        }
    }
    // Files that are there are opened, or refused, as without direct I/O.
    let there = disk.path().join("there");
    std::fs::write(&there, b"content").unwrap();
    for opened in [create_new.open_blocking(&there), block_on(create_new.open(&there))] {
        assert_eq!(opened.unwrap_err().errno(), Some(libc::EEXIST));
    }
    for opened in [create.open_blocking(&there), block_on(create.open(&there))] {
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::Unsupported);
    }
    let missing = disk.path().join("none/data");
    for opened in [create.open_blocking(&missing), block_on(create_new.open(&missing))] {
        assert_eq!(opened.unwrap_err().errno(), Some(libc::ENOENT));
    }
}

#[test]
fn a_direct_file_is_created_where_its_file_system_has_direct_io() {
    let folder = Folder::new();
    let path = folder.path().join("data");
    let mut options = ring_options();
    options.read(true).write(true).create(true).truncate(true).direct(true).mode(0o640);
    std::fs::write(&path, b"old").unwrap();
    if let Err(error) = options.open_blocking(&path) {
        return skip("a_direct_file_is_created_where_its_file_system_has_direct_io", error);
    }
    let mut new = options.clone();
    new.truncate(false).create_new(true);
    for options in [&options, &new] {
        let opens: [&dyn Fn() -> ringfile::Result<File>; 2] =
            [&|| options.open_blocking(&path), &|| block_on(options.open(&path))];
        for open in opens {
            std::fs::remove_file(&path).unwrap();
            let file = open().unwrap();
            assert!(file.is_direct());
            assert_eq!(block_on(fs::metadata(&path)).unwrap().mode & 0o777, 0o640);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }
    // A symbolic link that points nowhere yet.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("linked", &link).unwrap();
    assert!(options.open_blocking(&link).unwrap().is_direct());
    assert!(folder.path().join("linked").exists());
    assert_eq!(block_on(new.open(&link)).unwrap_err().errno(), Some(libc::EEXIST));
}

#[test]
fn f18_unaligned_direct_reads_give_just_the_bytes_asked_for() {
    let name = "f18_unaligned_direct_reads_give_just_the_bytes_asked_for";
    let folder = Folder::new();
    let len = 3 * (1 << 20) + 1234;
    let Some(file) = direct(name, &folder, &content(0, len)) else { return };
    let mut random = Random::new();
    // The pool is full, so the library's own memory is used.
    let pool = Pool::new(1 << 20);
    let buffer = pool.get(1 << 20).unwrap();
    assert!(pool.get(PAGE).is_err());
    drop(buffer);
    let before = block_on(async { thread_metrics() });
    let mut wanted_bytes = 0;
    block_on(async {
        for round in 0..300 {
            let most = if round % 10 == 0 { 1 << 20 } else { 20_000 };
            let (offset, want) = (random.below(len as u64 + 5000), 1 + random.below(most) as usize);
            let expected = (len as u64).saturating_sub(offset).min(want as u64) as usize;
            let got = match random.below(3) {
                // A buffer at an odd address.
                0 => {
                    let mut buffer = pool.get(want.next_multiple_of(PAGE).min(1 << 20)).unwrap();
                    let odd = 1 + random.below(600) as usize;
                    buffer.resize(buffer.capacity(), 0xEE);
                    let tail = buffer.split_off(odd.min(buffer.len() - 1));
                    let asked = tail.capacity();
                    let got = file.read_at(tail, offset).await.unwrap();
                    assert_eq!(got.len(), (len as u64).saturating_sub(offset).min(asked as u64) as usize);
                    wanted_bytes += asked as u64;
                    assert_content(&got, offset);
                    continue;
                }
                1 => file.read_at(Vec::with_capacity(want), offset).await.unwrap(),
                _ => {
                    let parts = [want / 3, want / 3, want - 2 * (want / 3)];
                    let parts = parts.iter().map(|&part| Vec::with_capacity(part)).collect();
                    file.read_vectored_at(parts, offset).await.unwrap().concat()
                }
            };
            wanted_bytes += want as u64;
            assert!(got.len() >= expected, "{} of {expected} bytes at {offset}", got.len());
            assert_content(&got, offset);
        }
    });
    assert_eq!(pool.metrics().in_use, 0);
    // At most the two blocks at its edges are read in addition.
    let moved = (thread_metrics() - before).bytes_read;
    assert!(moved <= wanted_bytes + 300 * 2 * PAGE as u64, "{moved} bytes read for {wanted_bytes}");
}

#[test]
fn f18_an_unaligned_read_does_not_wait_for_others_whose_futures_nobody_polls() {
    let name = "f18_an_unaligned_read_does_not_wait_for_others_whose_futures_nobody_polls";
    let folder = Folder::new();
    let len = 1 << 20;
    let Some(file) = direct(name, &folder, &content(0, len)) else { return };
    must_end("all of the library's own memory is with reads that have ended", move || {
        block_on(async {
            let mut begun = Vec::new();
            for _ in 0..100 {
                let mut read = Box::pin(file.read_exact_at(vec![0; 300_000], 77));
                assert!(poll_once(&mut read).await.is_pending());
                begun.push(read);
            }
            // The last read is polled first: the others continue only when they are polled.
            while let Some(read) = begun.pop() {
                assert_content(&read.await.unwrap(), 77);
            }
        });
    });
}

#[test]
fn f18_blocks_larger_than_a_page_are_read_and_written() {
    let name = "f18_blocks_larger_than_a_page_are_read_and_written";
    const BLOCK: usize = 16 << 10;
    let Some(device) = Loop::with_blocks(name, &content(0, 1 << 20), BLOCK) else { return };
    let file = ring_options().read(true).write(true).direct(true).open_blocking(device.device()).unwrap();
    assert_eq!(file.alignment().bytes, BLOCK);
    must_end("direct I/O with blocks of 16 KiB", move || {
        block_on(async {
            let pool = Pool::new(8 << 20);
            for (offset, len) in [(0, BLOCK), (0, 4 * BLOCK), (77, 100_000), (4096, 4096), (BLOCK as u64, 3)]
            {
                let read = file.read_exact_at(pool.get(len).unwrap(), offset).await.unwrap();
                assert_content(&read, offset);
                assert_content(&file.read_exact_at(vec![0; len], offset).await.unwrap(), offset);
            }
            // The default alignment of a pool must be enough for a write of whole blocks.
            for _ in 0..8 {
                let mut block = pool.get(BLOCK + PAGE).unwrap().split_off(PAGE);
                block.resize(BLOCK, 9);
                let block = file.write_at(block, BLOCK as u64).await.unwrap();
                let back = file.read_exact_at(pool.get(BLOCK).unwrap(), BLOCK as u64).await.unwrap();
                assert_eq!(back[..], block[..]);
            }
            let refused = file.write_at(pool.get(100).unwrap(), 4096).await;
            assert!(refused.is_ok(), "nothing to write");
            let refused = file.write_at(vec![1; BLOCK], 4096).await.unwrap_err();
            assert!(refused.to_string().contains("16384"), "{refused}");
        });
    });
}

#[test]
fn f18_unaligned_direct_writes_name_the_alignment_and_change_nothing() {
    let name = "f18_unaligned_direct_writes_name_the_alignment_and_change_nothing";
    let folder = Folder::new();
    let Some(file) = direct(name, &folder, &content(0, 8 * PAGE)) else { return };
    let pool = Pool::new(1 << 20);
    let block = file.alignment().bytes;
    assert!(block >= 512);
    let filled = |len: usize| {
        let mut buffer = pool.get(len).unwrap();
        buffer.resize(len, 9);
        buffer
    };
    block_on(async {
        let mut odd = filled(2 * PAGE);
        let odd = {
            let mut tail = odd.split_off(8);
            tail.truncate(PAGE);
            tail
        };
        for (what, buffer, offset) in [
            ("offset", filled(PAGE), 1),
            ("length", filled(PAGE - 1), 0),
            ("memory", odd, 0),
            ("half a block", filled(block), (block / 2) as u64),
        ] {
            let len = buffer.len();
            let failed = file.write_at(buffer, offset).await.unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::InvalidInput, "{what}");
            let text = failed.to_string();
            assert!(text.contains(&block.to_string()) && text.contains("data"), "{what}: {text}");
            assert_eq!(failed.into_buffer().len(), len);
        }
        let failed = file.write_vectored_at(vec![filled(PAGE), filled(100)], 0).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::InvalidInput);
        let failed = file.write_durable_at(filled(100), 0).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::InvalidInput);
        assert_content(&file.read_exact_at(pool.get(8 * PAGE).unwrap(), 0).await.unwrap(), 0);
        file.write_at(filled(block), block as u64).await.unwrap();
    });
}

#[test]
fn f19_files_without_non_blocking_io_are_read_and_written_all_the_same() {
    let name = "f19_files_without_non_blocking_io_are_read_and_written_all_the_same";
    let Some(disk) = Mount::tmpfs(name, 8 << 20) else { return };
    let path = disk.path().join("data");
    for inline in [false, true] {
        let mut options = if inline { OpenOptions::new() } else { ring_options() };
        let file = options.read(true).write(true).create(true).truncate(true).open_blocking(&path).unwrap();
        block_on(async {
            let before = thread_metrics();
            let writes =
                (0..64_u64).map(|i| file.write_at(content(i * PAGE as u64, PAGE), i * PAGE as u64)).collect();
            assert!(all(writes).await.into_iter().all(|result| result.is_ok()));
            assert_content(&file.read_exact_at(Vec::with_capacity(64 * PAGE), 0).await.unwrap(), 0);
            if !is_without_ring() {
                let counts = thread_metrics() - before;
                let expected = if inline { 65 } else { 0 };
                assert_eq!((counts.ops, counts.inline_ops), (65, expected), "its files are memory");
            }
        });
    }
}

#[test]
fn f19_polling_on_a_file_without_it_is_a_clear_error() {
    let name = "f19_polling_on_a_file_without_it_is_a_clear_error";
    if !needs_ring(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 8 * PAGE)) else { return };
    let polled = ring_options().read(true).direct(true).iopoll(true).open_blocking(server.path()).unwrap();
    let plain = ring_options().read(true).direct(true).open_blocking(server.path()).unwrap();
    let pool = Pool::new(1 << 20);
    block_on(async {
        for _ in 0..3 {
            let failed = polled.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap_err();
            assert_eq!(failed.errno(), Some(libc::EOPNOTSUPP), "{failed}");
            assert!(failed.to_string().contains("open without poll"), "{failed}");
            assert_content(&plain.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap(), 0);
        }
    });
    assert_eq!(pool.metrics().in_use, 0);
}
