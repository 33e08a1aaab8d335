//! Records that are written in place: what was written is appended, whole, or nothing of it.

use std::future::{Future, IntoFuture};
use std::io::{ErrorKind, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

use crate::support::{Folder, Random, content};
use bytes::BufMut;
use ringfile::log::Reservation;
use ringfile::{Appender, OpenOptions, Pool, block_on};

const BLOCK: usize = 4096;

/// Opens an empty log with blocks of [`BLOCK`] bytes, direct if possible.
fn log() -> (Folder, PathBuf, Appender) {
    let folder = Folder::inside(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let path = folder.path().join("log");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(true).buffered_fallback(true);
    let file = options.open_blocking(&path).unwrap();
    let log = block_on(Appender::open(&file, &Pool::new(1 << 20), 0).block(BLOCK).into_future()).unwrap();
    (folder, path, log)
}

/// The three ways to write into a record.
fn write(record: &mut Reservation<'_>, data: &[u8], way: u64) {
    match way {
        0 => record.put_slice(data),
        1 => record.write_all(data).unwrap(),
        _ => record.put(data),
    }
}

#[test]
fn a_record_written_in_place_is_appended_and_one_that_panics_leaves_nothing() {
    let mut random = Random::new();
    let (_folder, path, log) = log();
    let mut expected = Vec::new();
    let mut panics = 0;
    for _ in 0..500 {
        let most = random.below(BLOCK as u64 + 1) as usize;
        let data = content(random.below(1000), random.below(most as u64 + 1) as usize);
        let (way, fails) = (random.below(3), random.below(4) == 0);
        let appended = catch_unwind(AssertUnwindSafe(|| {
            let append = log.append_with(most, |record| {
                assert_eq!((record.offset(), record.remaining_mut()), (expected.len() as u64, most));
                for part in data.chunks(1 + most / 3) {
                    write(record, part, way);
                }
                assert_eq!(record.remaining_mut(), most - data.len());
                assert!(!fails, "fails on purpose");
            });
            block_on(append).unwrap()
        }));
        assert_eq!(appended.is_err(), fails);
        panics += u32::from(fails);
        if let Ok(at) = appended {
            assert_eq!(at, expected.len() as u64);
            expected.extend_from_slice(&data);
        }
        if random.below(10) == 0 {
            block_on(log.sync()).unwrap();
            assert!(std::fs::read(&path).unwrap()[..expected.len()] == expected);
        }
        assert_eq!(log.len(), expected.len() as u64);
    }
    block_on(log.close()).unwrap();
    assert!(std::fs::read(&path).unwrap() == expected);
    assert!(panics > 0 && log.metrics().appends == 500 - u64::from(panics));
}

#[test]
fn a_record_has_no_more_room_than_was_asked_for() {
    let (_folder, path, log) = log();
    let too_long = block_on(log.append_with(BLOCK + 1, |_| panic!("it is not called"))).unwrap_err();
    assert_eq!(too_long.kind(), ErrorKind::InvalidInput);
    assert!(too_long.to_string().contains("larger block"), "{too_long}");
    let fill = |record: &mut Reservation<'_>| {
        record.put_u32(1);
        assert_eq!(record.write(b"abcdef").unwrap(), 4);
        assert_eq!(record.write_all(b"x").unwrap_err().kind(), ErrorKind::WriteZero);
        assert_eq!((record.remaining_mut(), record.chunk_mut().len()), (0, 0));
    };
    assert_eq!(block_on(log.append_with(8, fill)).unwrap(), 0);
    for most in [0, 3] {
        let panic =
            catch_unwind(AssertUnwindSafe(|| block_on(log.append_with(most, |record| record.put_u32(0)))));
        assert!(panic.is_err());
    }
    assert_eq!(block_on(log.append_with(0, |_| {})).unwrap(), 8);
    assert_eq!(block_on(log.append_with(BLOCK, |record| record.put_bytes(b'z', BLOCK))).unwrap(), 8);
    block_on(log.close()).unwrap();
    let expected = [&b"\0\0\0\x01abcd"[..], &[b'z'; BLOCK]].concat();
    assert!(std::fs::read(&path).unwrap() == expected);
}

#[test]
fn a_record_that_waits_is_written_once_there_is_room() {
    let folder = Folder::new();
    let file = OpenOptions::new().write(true).create(true).open_blocking(folder.path().join("log")).unwrap();
    let pool = Pool::new(4 * BLOCK);
    let log = block_on(Appender::open(&file, &pool, 0).block(BLOCK).depth(1).into_future()).unwrap();
    let held: Vec<_> = std::iter::from_fn(|| pool.get(BLOCK).ok()).collect();
    let calls = AtomicUsize::new(0);
    let fill = |record: &mut Reservation<'_>| {
        calls.fetch_add(1, Ordering::Relaxed);
        record.put_slice(b"written");
    };
    let context = &mut Context::from_waker(Waker::noop());
    let mut dropped = Box::pin(log.append_with(10, fill));
    assert!(dropped.as_mut().poll(context).is_pending(), "there is no memory");
    drop(dropped);
    let mut waits = Box::pin(log.append_with(10, fill));
    assert!(waits.as_mut().poll(context).is_pending(), "there is no memory");
    drop(held);
    assert_eq!(block_on(waits).unwrap(), 0);
    assert_eq!(calls.into_inner(), 1, "once, and not for the one that was dropped");
    block_on(log.close()).unwrap();
    assert_eq!(std::fs::read(folder.path().join("log")).unwrap(), b"written");
}

#[test]
fn a_record_that_panics_after_a_wait_leaves_its_turn_to_the_next() {
    let folder = Folder::new();
    let file = OpenOptions::new().write(true).create(true).open_blocking(folder.path().join("log")).unwrap();
    let pool = Pool::new(4 * BLOCK);
    let log = block_on(Appender::open(&file, &pool, 0).block(BLOCK).depth(1).into_future()).unwrap();
    let held: Vec<_> = std::iter::from_fn(|| pool.get(BLOCK).ok()).collect();
    let context = &mut Context::from_waker(Waker::noop());
    let mut panics = Box::pin(log.append_with(10, |_| panic!("on purpose")));
    assert!(panics.as_mut().poll(context).is_pending(), "there is no memory");
    let mut next = Box::pin(log.append_with(4, |record| record.put_slice(b"next")));
    assert!(next.as_mut().poll(context).is_pending(), "it is not its turn");
    drop(held);
    assert!(catch_unwind(AssertUnwindSafe(|| block_on(panics.as_mut()))).is_err());
    // The future that has panicked is kept.
    assert_eq!(block_on(next).unwrap(), 0);
    drop(panics);
    block_on(log.close()).unwrap();
    assert_eq!(std::fs::read(folder.path().join("log")).unwrap(), b"next");
}

#[test]
fn using_the_appender_inside_is_a_panic() {
    let (_folder, path, log) = log();
    let inside = catch_unwind(AssertUnwindSafe(|| {
        block_on(log.append_with(10, |_| drop(futures::executor::block_on(log.append(b"inside")))))
    }));
    let message = inside.unwrap_err();
    assert!(message.downcast_ref::<&str>().unwrap().contains("in place"), "{message:?}");
    let fill = |record: &mut Reservation<'_>| record.put_u8(b'0' + log.len() as u8);
    assert_eq!(block_on(log.append_with(1, fill)).unwrap(), 0);
    block_on(log.close()).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), b"0");
}
