//! `Appender::truncate`: the log is cut, durably and in order, and goes on from there.

use std::io::ErrorKind;

use crate::support::forms::routes;
use crate::support::fuse::{Act, Op, Server};
use crate::support::logs::{folder, kinds, options};
use crate::support::{Random, content, poll_once};
use ringfile::{Appender, Pool, Route, block_on};

const PAGE: usize = 4096;

#[test]
fn a_log_that_is_cut_anywhere_has_the_records_before_and_after_the_cut() {
    let name = "a_log_that_is_cut_anywhere_has_the_records_before_and_after_the_cut";
    let (folder, mut random) = (folder(), Random::new());
    let path = folder.path().join("log");
    for direct in kinds(name, &folder) {
        for route in routes() {
            for recycle in [false, true] {
                let how = format!("{route:?}, direct {direct}, recycle {recycle}");
                let before = if recycle { vec![0xEE; 512 << 10] } else { Vec::new() };
                std::fs::write(&path, &before).unwrap();
                let file = options(route, direct).open_blocking(&path).unwrap();
                let mut expected: Vec<u8> = Vec::new();
                // Behind the longest log so far the file is as it was.
                let mut longest = 0;
                block_on(async {
                    let open = Appender::open(&file, &Pool::new(1 << 20), 0);
                    let log = open.block([PAGE, 16 << 10][random.below(2) as usize]).recycle(recycle);
                    let log = log.await.unwrap();
                    for round in 0..40_u64 {
                        for _ in 0..random.below(6) {
                            let record = content(1000 * round + 7, random.below(9000) as usize);
                            assert_eq!(log.append(&record).await.unwrap(), expected.len() as u64, "{how}");
                            expected.extend_from_slice(&record);
                            if random.below(3) == 0 {
                                log.sync().await.unwrap();
                            }
                        }
                        longest = longest.max(expected.len());
                        let to = [0, random.below(2 * PAGE as u64), expected.len() as u64]
                            [random.below(3) as usize];
                        let to = expected.len() - (to as usize).min(expected.len()).min(30_000);
                        log.truncate(to as u64).await.unwrap();
                        expected.truncate(to);
                        let at = to as u64;
                        assert_eq!((log.len(), log.written(), log.durable()), (at, at, at), "{how}");
                        let read = std::fs::read(&path).unwrap();
                        assert!(read[..to] == expected, "{how}, round {round}, cut at {to}");
                        if recycle {
                            let cleared = longest.next_multiple_of(file.alignment().bytes);
                            assert!(read[to..longest].iter().all(|&byte| byte == 0), "{how}: old records");
                            assert!(read[cleared..] == before[cleared..], "{how}");
                        } else {
                            // With direct I/O there may be zeros ahead of the log already.
                            assert!(read[to..].iter().all(|&byte| byte == 0), "{how}");
                            assert!(direct || read.len() == to, "{how}");
                        }
                    }
                    log.close().await.unwrap();
                    let read = std::fs::read(&path).unwrap();
                    assert!(read[..expected.len()] == expected, "{how}");
                    assert_eq!(read.len(), if recycle { before.len() } else { expected.len() }, "{how}");
                });
            }
        }
    }
}

#[test]
fn appends_and_syncs_in_flight_come_before_the_cut_and_later_appends_after() {
    let folder = folder();
    for route in routes() {
        let path = folder.file("log", b"");
        let file = options(route, false).open_blocking(&path).unwrap();
        block_on(async {
            let log = Appender::open(&file, &Pool::new(1 << 20), 0).block(PAGE).await.unwrap();
            log.append(&content(0, 3 * PAGE)).await.unwrap();
            let (sync, cut) = (log.sync(), log.truncate(5000));
            let (synced, cut, at) = futures::join!(sync, cut, async { log.append(&content(0, 100)).await });
            synced.and(cut).unwrap();
            assert_eq!(at.unwrap(), 5000);
            // One that is dropped may be carried out, and stops nothing.
            let mut dropped = Box::pin(log.truncate(10));
            let _ = poll_once(&mut dropped).await;
            drop(dropped);
            log.append(b"more").await.unwrap();
            log.close().await.unwrap();
            assert!([14, 5104].contains(&log.len()), "{}", log.len());
            assert_eq!(file.size().unwrap(), log.len());
        });
    }
}

#[test]
fn a_cut_behind_the_end_or_after_closing_is_refused_and_nothing_is_lost() {
    let folder = folder();
    let path = folder.file("log", b"");
    let file = options(Route::Auto, false).open_blocking(&path).unwrap();
    block_on(async {
        let log = Appender::open(&file, &Pool::new(1 << 20), 0).await.unwrap();
        log.append(&content(0, 100)).await.unwrap();
        assert_eq!(log.truncate(101).await.unwrap_err().kind(), ErrorKind::InvalidInput);
        log.truncate(100).await.unwrap();
        log.append(&content(100, 100)).await.unwrap();
        log.close().await.unwrap();
        assert_eq!(log.truncate(10).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    });
    assert!(std::fs::read(&path).unwrap() == content(0, 200));
}

#[test]
fn a_cut_of_a_recycled_log_durably_removes_its_first_sector_before_the_rest() {
    let name = "a_cut_of_a_recycled_log_durably_removes_its_first_sector_before_the_rest";
    let Some(server) = Server::or_skip(name, vec![0xEE; 1 << 20]) else { return };
    let file = options(Route::Auto, false).open_blocking(server.path()).unwrap();
    block_on(async {
        let log = Appender::open(&file, &Pool::new(4 << 20), 0).recycle(true).await.unwrap();
        for cut in [5000, 5120, 0] {
            log.append(&content(log.len(), 600_000 - log.len() as usize)).await.unwrap();
            log.sync().await.unwrap();
            let before = server.log().len();
            log.truncate(cut).await.unwrap();
            let ops = &server.log()[before..];
            let first = (Op::Write, cut, 512 - cut as usize % 512);
            assert_eq!(ops[0], first, "{ops:?}: a power cut may leave a log that ends between its two ends");
            assert_eq!((ops[1].0, ops[ops.len() - 1].0), (Op::Sync, Op::Sync), "{ops:?}");
            assert!(server.data()[cut as usize..600_000].iter().all(|&byte| byte == 0));
        }
        // A single sector is removed at once.
        log.append(&content(0, 100)).await.unwrap();
        log.sync().await.unwrap();
        let before = server.log().len();
        log.truncate(10).await.unwrap();
        let ops: Vec<Op> = server.log()[before..].iter().map(|op| op.0).collect();
        assert_eq!(ops, [Op::Write, Op::Sync]);
    });
}

#[test]
fn after_a_failed_cut_nothing_beyond_its_length_counts_as_durable() {
    let name = "after_a_failed_cut_nothing_beyond_its_length_counts_as_durable";
    let Some(server) = Server::or_skip(name, vec![0xEE; 1 << 20]) else { return };
    let file = options(Route::Auto, false).open_blocking(server.path()).unwrap();
    block_on(async {
        let log = Appender::open(&file, &Pool::new(4 << 20), 0).recycle(true).await.unwrap();
        log.append(&content(0, 5000)).await.unwrap();
        log.sync().await.unwrap();
        server.rule(Op::Write, 600..5000, 1, Act::Fail(libc::EIO));
        assert_eq!(log.truncate(100).await.unwrap_err().errno(), Some(libc::EIO));
        assert_eq!((log.written(), log.durable()), (100, 100), "zeros were written behind it");
        let error = log.sync().await.unwrap_err().to_string();
        assert!(error.contains("behind byte 100 "), "{error}");
    });
}
