//! The faults of files, devices and the kernel in every form and on every route: futures in ringfile's own threads and
//! in other executors, batches that block and that are awaited, reads with handles (F06, F07, F11 to F16, F18, F29,
//! F30).

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use crate::support;
use crate::support::forms::{Ended, READING, WRITING, routes};
use crate::support::fuse::{Act, Op, Server};
use crate::support::mounts::{Loop, Mount};
use crate::support::{Folder, assert_content, content, in_child, must_end, skip};
use ringfile::{Buffer, File, OpenOptions, Pool, Route, Runtime, metrics};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const EVERYWHERE: std::ops::Range<u64> = 0..u64::MAX;

fn open(path: &Path, route: Route) -> File {
    OpenOptions::new().read(true).write(true).create(true).route(route).open_blocking(path).unwrap()
}

/// Returns a read for each of the file's first `pages` pages.
fn pages(pool: &Pool, pages: u64) -> Vec<(Buffer, u64)> {
    (0..pages).map(|page| (pool.get(PAGE).unwrap(), page * PAGE as u64)).collect()
}

/// Returns a write for each of `count` pieces of `len` bytes, with the content that belongs there.
fn pieces(pool: &Pool, count: u64, len: usize) -> Vec<(Buffer, u64)> {
    let piece = |i| {
        let (mut buffer, offset) = (pool.get(len).unwrap(), i * len as u64);
        buffer.extend_from_slice(&content(offset, len));
        (buffer, offset)
    };
    (0..count).map(piece).collect()
}

#[track_caller]
fn assert_whole(ended: Vec<Ended>, len: usize, how: impl std::fmt::Debug) {
    for (i, (buffer, error)) in ended.into_iter().enumerate() {
        assert!(error.is_none(), "{how:?}, {i}: {}", error.unwrap());
        assert_eq!(buffer.len(), len, "{how:?}, {i}");
        assert_content(&buffer, (i * len) as u64);
    }
}

#[test]
fn f06_f07_batches_larger_than_the_queues_are_done_in_any_ring() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    for (entries, in_flight) in [(1, 1), (1, 5000), (8, 5000), (8, 16), (256, 5000)] {
        for route in routes() {
            let file = open(&path, route);
            let runtime = Runtime::builder().threads(1).entries(entries).build().unwrap();
            let task = runtime.spawn(async move {
                let mut batch = ringfile::Batch::new().depth(in_flight);
                for i in 0..3000_u64 {
                    batch.add(file.read_at(Vec::with_capacity(64), i % 512 * 512));
                }
                for (i, done) in batch.await.into_iter().enumerate() {
                    assert_eq!(done.result.unwrap(), 64);
                    assert_content(&done.buffer.unwrap(), i as u64 % 512 * 512);
                }
                assert_eq!(ringfile::thread_metrics().stray, 0);
            });
            must_end("a batch larger than the queues", move || task.join().unwrap());
        }
    }
}

#[test]
fn f11_interrupted_operations_are_done_again_in_every_form() {
    let name = "f11_interrupted_operations_are_done_again_in_every_form";
    for route in routes() {
        let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
        let (file, pool) = (open(&server.path(), route), Pool::new(MIB));
        for form in READING {
            server.rule(Op::Read, EVERYWHERE, 20, Act::Fail(libc::EINTR));
            assert_whole(form.read(&file, pages(&pool, 32)), PAGE, (form, route));
            assert_eq!(server.faults_left(), 0, "{form:?}, {route:?}");
        }
        for form in WRITING {
            server.rule(Op::Write, EVERYWHERE, 20, Act::Fail(libc::EINTR));
            assert_whole(form.write(&file, pieces(&pool, 32, PAGE)), PAGE, (form, route));
            assert_eq!(server.faults_left(), 0, "{form:?}, {route:?}");
        }
        assert_eq!(server.data(), content(0, 64 * PAGE));
        assert_eq!(pool.metrics().in_use, 0);
    }
}

#[test]
fn f12_eagain_and_large_direct_reads_that_stop_half_way_are_continued_in_every_form() {
    let name = "f12_eagain_and_large_direct_reads_that_stop_half_way_are_continued_in_every_form";
    let half = (3 * MIB / 2) as u64;
    for route in routes() {
        let Some(server) = Server::or_skip(name, content(0, 2 * MIB)) else { return };
        let may_answer_eagain = server.may_answer_eagain(name);
        let file =
            OpenOptions::new().read(true).direct(true).route(route).open_blocking(server.path()).unwrap();
        let pool = Pool::new(16 * MIB);
        for (i, form) in READING.into_iter().enumerate() {
            // Ends between two blocks, within one, and at a block.
            for cut in if i % 2 == 0 { [PAGE + 1, 0] } else { [17, 0] } {
                if cut == 0 && !may_answer_eagain {
                    continue;
                }
                let act = if cut == 0 { Act::Fail(libc::EAGAIN) } else { Act::Short(cut) };
                server.rule(Op::Read, half..half + 1, 1, act);
                assert_whole(form.read(&file, vec![(pool.get(2 * MIB).unwrap(), 0)]), 2 * MIB, (form, cut));
                assert_eq!(server.faults_left(), 0, "{form:?}, {route:?}");
            }
        }
        let aligned = server.log().iter().all(|&(_, offset, _)| offset % PAGE as u64 == 0);
        assert!(aligned, "{route:?}: an unaligned direct read");
    }
}

#[test]
fn f13_reads_that_end_early_are_continued_in_every_form() {
    let name = "f13_reads_that_end_early_are_continued_in_every_form";
    for route in routes() {
        let Some(server) = Server::or_skip(name, content(0, 16 * PAGE)) else { return };
        let (file, pool) = (open(&server.path(), route), Pool::new(MIB));
        for form in READING {
            for most in [1, 100, PAGE, 3 * PAGE] {
                server.rule(Op::Read, EVERYWHERE, 4, Act::Short(most));
                let read = vec![(pool.get(16 * PAGE).unwrap(), 0)];
                assert_whole(form.read(&file, read), 16 * PAGE, (form, route, most));
                assert_eq!(server.faults_left(), 0, "{form:?}, {route:?}, {most}");
            }
        }
    }
}

#[test]
fn f13_the_tail_of_a_file_is_a_short_result_in_every_form() {
    let folder = Folder::new();
    let pool = Pool::new(4 * MIB);
    for len in [0, 511, 4096, 10_000] {
        let path = folder.file("data", &content(0, len));
        for route in routes() {
            for direct in [false, true] {
                let mut options = OpenOptions::new();
                options.read(true).direct(direct).buffered_fallback(true).route(route);
                let file = options.open_blocking(&path).unwrap();
                for form in READING {
                    let offsets = [0_usize, 1, 512, 4095, 9_999, 10_000, 1 << 40];
                    // Filled with a byte that the file does not have.
                    let stale = |&offset: &usize| {
                        let mut buffer = pool.get(8192).unwrap();
                        buffer.resize(8192, 0xEE);
                        buffer.clear();
                        (buffer, offset as u64)
                    };
                    let ended = form.read(&file, offsets.iter().map(stale).collect());
                    for ((buffer, error), offset) in ended.into_iter().zip(offsets) {
                        let how = format!("{form:?}, {route:?}, direct {direct}, {len} bytes from {offset}");
                        assert!(error.is_none(), "{how}: {}", error.unwrap());
                        assert_eq!(buffer.len(), len.saturating_sub(offset).min(8192), "{how}");
                        assert_content(&buffer, offset as u64);
                    }
                }
            }
        }
    }
}

#[test]
fn f13_a_file_that_shrinks_during_a_read_gives_what_is_left_in_every_form() {
    let name = "f13_a_file_that_shrinks_during_a_read_gives_what_is_left_in_every_form";
    for route in routes() {
        for form in READING {
            let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
            server.rule(Op::Read, EVERYWHERE, 1, Act::Short(3 * PAGE));
            server.rule(Op::Read, EVERYWHERE, 1, Act::Hold);
            let file = open(&server.path(), route);
            let read = std::thread::spawn(move || {
                form.read(&file, vec![(Pool::new(MIB).get(8 * PAGE).unwrap(), 0)])
            });
            server.wait_held(1);
            server.cut(5 * PAGE + 100);
            server.release();
            assert_whole(read.join().unwrap(), 5 * PAGE + 100, (form, route));
        }
    }
}

#[test]
fn f14_a_full_disk_is_reported_with_the_bytes_written_in_every_form() {
    let name = "f14_a_full_disk_is_reported_with_the_bytes_written_in_every_form";
    let Some(disk) = Mount::tmpfs(name, MIB as u64) else { return };
    let path = disk.path().join("data");
    let pool = Pool::new(8 * MIB);
    for route in routes() {
        for form in WRITING {
            let _ = std::fs::remove_file(&path);
            let file = open(&path, route);
            let ended = form.write(&file, pieces(&pool, 32, 100_000));
            let (mut written, mut failed) = (0, 0);
            for (i, (buffer, error)) in ended.into_iter().enumerate() {
                assert_eq!(buffer.len(), 100_000, "the buffer comes back whole");
                let done = match &error {
                    None => buffer.len(),
                    Some(error) => {
                        assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
                        failed += 1;
                        error.done()
                    }
                };
                written += done;
                let mut there = vec![0; done];
                let is = std::fs::File::open(&path).unwrap();
                std::os::unix::fs::FileExt::read_exact_at(&is, &mut there, i as u64 * 100_000).unwrap();
                assert_content(&there, i as u64 * 100_000);
            }
            assert!(written <= MIB && written > MIB / 2, "{form:?}, {route:?}: {written} bytes");
            assert!((20..32).contains(&failed), "{form:?}, {route:?}: {failed} failed");
            // Once there is room again, the file is as usable as before.
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
            assert_whole(form.write(&file, pieces(&pool, 1, 10)), 10, (form, route));
        }
    }
}

#[test]
fn f14_short_writes_are_continued_in_every_form() {
    let name = "f14_short_writes_are_continued_in_every_form";
    for route in routes() {
        for form in WRITING {
            let Some(server) = Server::blocking_or_skip(name, vec![0; 16 * PAGE]) else { return };
            let (file, pool) = (open(&server.path(), route), Pool::new(MIB));
            server.rule(Op::Write, EVERYWHERE, 12, Act::Short(1000));
            assert_whole(form.write(&file, pieces(&pool, 4, 10_000)), 10_000, (form, route));
            assert_eq!(server.faults_left(), 0, "{form:?}, {route:?}");
            assert_eq!(server.data()[..40_000], content(0, 40_000), "{form:?}, {route:?}");
        }
    }
}

#[test]
fn f16_direct_refused_at_io_is_an_error_or_turns_buffered_in_every_form() {
    let name = "f16_direct_refused_at_io_is_an_error_or_turns_buffered_in_every_form";
    for route in routes() {
        for form in READING {
            for fallback in [false, true] {
                let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
                server.direct_rule(Op::Read, EVERYWHERE, usize::MAX, Act::Fail(libc::EINVAL));
                let mut options = OpenOptions::new();
                options.read(true).direct(true).buffered_fallback(fallback).route(route);
                let (file, pool) = (options.open_blocking(server.path()).unwrap(), Pool::new(MIB));
                let ended = form.read(&file, pages(&pool, 16));
                if fallback {
                    assert_whole(ended, PAGE, (form, route));
                    assert!(!file.is_direct());
                    continue;
                }
                for (buffer, error) in ended {
                    let error = error.unwrap();
                    assert_eq!((error.errno(), buffer.len()), (Some(libc::EINVAL), 0), "{form:?}: {error}");
                    assert!(error.to_string().contains("buffered_fallback"), "{form:?}, {route:?}: {error}");
                }
            }
        }
    }
}

#[test]
fn f18_unaligned_direct_io_is_bounced_or_refused_in_every_form() {
    let folder = Folder::new();
    let size = 300_000;
    let path = folder.file("data", &content(0, size));
    for route in routes() {
        let mut options = OpenOptions::new();
        options.read(true).write(true).direct(true).buffered_fallback(true).route(route);
        let (file, pool) = (options.open_blocking(&path).unwrap(), Pool::new(4 * MIB));
        if !file.is_direct() {
            return skip("f18_direct_io_that_does_not_fit", "the temporary folder has no direct I/O");
        }
        for form in READING {
            let asked = [(1, 10), (511, 5000), (100_001, 100_003), (299_990, 100)];
            let ended = form.read(&file, asked.map(|(offset, len)| (pool.get(len).unwrap(), offset)).into());
            for ((buffer, error), (offset, len)) in ended.into_iter().zip(asked) {
                assert!(error.is_none(), "{form:?}, {route:?}: {}", error.unwrap());
                assert_eq!(buffer.len(), len.min(size - offset as usize), "{form:?}, {route:?}");
                assert_content(&buffer, offset);
            }
        }
        for form in WRITING {
            let error = form.write(&file, pieces(&pool, 1, 100)).remove(0).1.unwrap();
            assert!(error.to_string().contains("multiples of"), "{form:?}, {route:?}: {error}");
        }
    }
    assert_eq!(std::fs::read(&path).unwrap(), content(0, size));
}

#[test]
fn f29_a_descriptor_replaced_by_others_disturbs_no_form() {
    let name = "f29_a_descriptor_replaced_by_others_disturbs_no_form";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let other = std::fs::File::open(folder.file("other", &[0; 64 * PAGE])).unwrap();
    let pool = Pool::new(MIB);
    for route in routes() {
        for form in READING {
            let file = open(&path, route);
            let shown = file.as_fd().as_raw_fd();
            for round in 0..4 {
                if round == 1 {
                    // SAFETY: replaces what the number names; nothing here relies on it naming the old file.
                    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), shown) }, shown);
                }
                assert_whole(form.read(&file, pages(&pool, 64)), PAGE, (form, route, round));
            }
        }
    }
}

#[test]
fn f30_a_device_that_fails_in_part_gives_the_rest_in_every_form() {
    let name = "f30_a_device_that_fails_in_part_gives_the_rest_in_every_form";
    let Some(device) = Loop::over(name, &content(0, 4 * MIB)) else { return };
    let pool = Pool::new(8 * MIB);
    // The device keeps its size; reads beyond the end of its file fail.
    std::fs::File::options().write(true).open(&device.backing).unwrap().set_len(2 * MIB as u64).unwrap();
    if !device.fails_at(2 * MIB as u64) {
        return support::skip(name, "on this kernel (before 6.12) a loop device reads zeros beyond its file");
    }
    let step = MIB as u64 / 16;
    let before = metrics().stray;
    for route in routes() {
        let mut options = OpenOptions::new();
        let file = options.read(true).direct(true).route(route).open_blocking(device.device()).unwrap();
        for form in READING {
            let reads = (0..64).map(|i| (pool.get(PAGE).unwrap(), i * step)).collect();
            for (i, (buffer, error)) in form.read(&file, reads).into_iter().enumerate() {
                let offset = i as u64 * step;
                let how = format!("{form:?}, {route:?}, offset {offset}");
                if offset < 2 * MIB as u64 {
                    assert!(error.is_none(), "{how}: {}", error.unwrap());
                    assert_eq!(buffer.len(), PAGE, "{how}");
                    assert_content(&buffer, offset);
                } else {
                    let error = error.unwrap_or_else(|| panic!("{how}: read what is not there"));
                    assert_eq!((error.errno(), error.done()), (Some(libc::EIO), 0), "{how}");
                    assert_eq!(
                        (error.offset(), error.path()),
                        (Some(offset), Some(device.device())),
                        "{how}"
                    );
                }
            }
        }
        // Merged: the one read fails, and then each part has its own result.
        let mut batch = ringfile::Batch::new().merge_reads(step as usize);
        for i in 0..64 {
            batch.add(file.read_at(pool.get(PAGE).unwrap(), i * step));
        }
        for (i, done) in batch.run().into_iter().enumerate() {
            match done.result {
                Ok(len) => assert!(i < 32 && len == PAGE, "{route:?}, merged, {i}"),
                Err(error) => assert!(i >= 32 && error.errno() == Some(libc::EIO), "{route:?}, {i}: {error}"),
            }
        }
    }
    assert_eq!((metrics().stray, pool.metrics().in_use), (before, 0));
}
