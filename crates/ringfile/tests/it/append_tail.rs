//! Readers of a log's tail: every byte once and in order, from memory or from the file, and no part of a record.

use std::future::Future;
use std::io::ErrorKind;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::support;
use crate::support::forms::routes;
use crate::support::fuse::{Act, Op, Server};
use crate::support::logs::{folder, kinds, options};
use crate::support::{Random, assert_content, content, in_child, must_end, wait_for, yield_now};
use bytes::Bytes;
use ringfile::log::TailReader;
use ringfile::{Appender, Pool, Route, Runtime, WhenFull, block_on};

const PAGE: usize = 4096;

/// Opens a log in a file of its own, with blocks of one page.
fn open(folder: &support::Folder, name: &str, keep: usize) -> (Pool, Appender) {
    let file = options(Route::Auto, false).open_blocking(folder.path().join(name)).unwrap();
    let pool = Pool::new(4 << 20);
    let log = block_on(async { Appender::open(&file, &pool, 0).block(PAGE).keep_tail(keep).await }).unwrap();
    (pool, log)
}

fn poll(tail: &mut TailReader) -> Poll<Option<ringfile::Result<Bytes>>> {
    pin!(tail.next()).poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns what there is without waiting.
fn look(tail: &mut TailReader) -> Option<Bytes> {
    match poll(tail) {
        Poll::Ready(Some(piece)) => Some(piece.unwrap()),
        Poll::Ready(None) => panic!("the log has ended"),
        Poll::Pending => None,
    }
}

/// Returns the error of the reader, which is its last word.
fn error_of(tail: &mut TailReader) -> ringfile::Error {
    let error = block_on(tail.next()).expect("an error").expect_err("an error");
    assert!(block_on(tail.next()).is_none(), "nothing follows {error}");
    error
}

#[test]
fn what_was_appended_is_there_before_it_is_written() {
    let folder = folder();
    let (pool, log) = open(&folder, "log", 1 << 20);
    let mut tail = log.tail();
    assert!(look(&mut tail).is_none());
    block_on(log.append(b"one ")).unwrap();
    let first = look(&mut tail).unwrap();
    assert_eq!((&first[..], log.written(), tail.position()), (&b"one "[..], 0, 4));
    block_on(log.append(&content(0, 3 * PAGE))).unwrap();
    let second = look(&mut tail).unwrap();
    assert_eq!(second.len(), PAGE - 4, "a piece ends with its block");
    assert_eq!(second.as_ptr(), first.as_ptr().wrapping_add(4), "the appender's memory, not a copy of it");
    // The memory stays as it was, and belongs to nobody else.
    assert!(pool.thaw(first.clone()).is_err());
    block_on(log.append(&content(0, PAGE))).unwrap();
    block_on(log.close()).unwrap();
    assert_eq!(&first[..], b"one ");
    assert_content(&second, 0);
    drop((log, tail));
    assert!(pool.metrics().in_use > 0, "what was read still has its memory");
    drop((first, second));
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn a_reader_sees_no_part_of_a_record() {
    let Some(server) = Server::or_skip("a_reader_sees_no_part_of_a_record", Vec::new()) else { return };
    let file = ringfile::OpenOptions::new()
        .read(true)
        .write(true)
        .route(Route::Workers)
        .open_blocking(server.path())
        .unwrap();
    let open =
        async { Appender::open(&file, &Pool::new(1 << 20), 0).block(PAGE).depth(1).keep_tail(1 << 20).await };
    let log = futures::executor::block_on(open).unwrap();
    let mut tail = log.tail();
    server.rule(Op::Write, 0..u64::MAX, 1, Act::Hold);
    let long = content(8, 5 * PAGE);
    futures::executor::block_on(log.append(b"complete")).unwrap();
    let mut append = pin!(log.append(&long));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(append.as_mut().poll(context).is_pending(), "there is room for two blocks");
    assert!(log.len() > PAGE as u64);
    assert_eq!(look(&mut tail).unwrap(), "complete");
    assert!(look(&mut tail).is_none(), "the record is not complete");
    server.wait_held(1);
    server.release();
    futures::executor::block_on(append).unwrap();
    let mut read = 0;
    while read < long.len() {
        let piece = futures::executor::block_on(tail.next()).unwrap().unwrap();
        assert_content(&piece, (8 + read) as u64);
        read += piece.len();
    }
    futures::executor::block_on(log.close()).unwrap();
}

#[test]
fn what_memory_has_lost_comes_from_the_file() {
    let folder = folder();
    for keep in [0, PAGE, 1 << 20] {
        let (pool, log) = open(&folder, &keep.to_string(), keep);
        let mut late = log.tail();
        let mut durable = log.tail().durable(true);
        block_on(async {
            log.append(&content(0, 40 * PAGE + 100)).await.unwrap();
            assert!(look(&mut durable).is_none(), "nothing is durable yet");
            log.sync().await.unwrap();
            assert!(pool.metrics().in_use <= keep + 6 * PAGE, "{:?}", pool.metrics());
            log.append(&content(log.len(), 100)).await.unwrap();
            log.flush().await.unwrap();
            let mut at = 0;
            while at < log.len() {
                let piece = late.next().await.unwrap().unwrap();
                assert_content(&piece, at);
                at += piece.len() as u64;
            }
            let mut at = 0;
            while let Poll::Ready(piece) = poll(&mut durable) {
                let piece = piece.unwrap().unwrap();
                assert_content(&piece, at);
                at += piece.len() as u64;
                yield_now().await;
            }
            log.close().await.unwrap();
            while let Some(piece) = durable.next().await {
                let piece = piece.unwrap();
                assert_content(&piece, at);
                at += piece.len() as u64;
            }
            assert_eq!(at, log.len());
            assert!(late.next().await.is_none());
        });
    }
}

#[test]
fn readers_of_all_kinds_read_the_whole_log() {
    let name = "readers_of_all_kinds_read_the_whole_log";
    let folder = folder();
    let seed = Random::new().below(1 << 30);
    for direct in kinds(name, &folder) {
        for route in routes() {
            let path = folder.path().join("log");
            let _ = std::fs::remove_file(&path);
            let file = options(route, direct).open_blocking(&path).unwrap();
            must_end(name, move || {
                let mut random = Random::from_seed(seed);
                let (keep, behind) =
                    ([0, 3 * PAGE, 1 << 20][random.below(3) as usize], random.below(1 << 20));
                let pool = Pool::builder().capacity(8 << 20).when_full(WhenFull::Wait).build().unwrap();
                let opening = async {
                    Appender::open(&file, &pool, 0).block(4 * PAGE).keep_tail(keep).write_behind(behind).await
                };
                let log = futures::executor::block_on(opening).unwrap();
                let read_all = |mut tail: TailReader, slow: bool| async move {
                    let mut at = 0;
                    while let Some(piece) = tail.next().await {
                        let piece = piece.unwrap();
                        assert_content(&piece, at);
                        at += piece.len() as u64;
                        assert_eq!(at, tail.position());
                        if slow {
                            yield_now().await;
                        }
                    }
                    at
                };
                let runtime = Runtime::builder().threads(2).build().unwrap();
                let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
                let own: Vec<_> = (0..3)
                    .map(|number| {
                        let tail = log.tail().durable(number == 1);
                        runtime.spawn(async move { read_all(tail, number == 2).await })
                    })
                    .collect();
                let others: Vec<_> = (0..2)
                    .map(|number| tokio.spawn(read_all(log.tail().durable(number == 1), number == 0)))
                    .collect();
                let threads: Vec<_> = (0..2)
                    .map(|number| {
                        let tail = log.tail().durable(number == 1);
                        std::thread::spawn(move || futures::executor::block_on(read_all(tail, false)))
                    })
                    .collect();
                let write = async {
                    for _ in 0..300 {
                        let most = [10, 1000, 40_000][random.below(3) as usize];
                        // One writer, so that the content follows from the offset.
                        let record = content(log.len(), random.below(most) as usize);
                        log.append(&record).await.unwrap();
                        match random.below(6) {
                            0 => log.sync().await.unwrap(),
                            1 => log.flush().await.unwrap(),
                            _ => {}
                        }
                    }
                    log.close().await.unwrap();
                };
                block_on(write);
                let len = log.len();
                drop(log);
                let read = own.into_iter().map(|task| task.join().unwrap());
                let read = read.chain(others.into_iter().map(|task| tokio.block_on(task).unwrap()));
                let read = read.chain(threads.into_iter().map(|thread| thread.join().unwrap()));
                assert!(read.into_iter().all(|read| read == len), "seed {seed}, keep {keep}");
                // A thread that has just woken a task may still be about to drop the appender.
                wait_for("the memory to come back", || pool.metrics().in_use == 0);
            });
        }
    }
}

#[test]
fn what_an_appender_keeps_goes_to_whoever_needs_memory_of_the_pool() {
    for elsewhere in [false, true] {
        must_end("requests for memory that an idle appender keeps", move || {
            let folder = folder();
            let pool = Pool::new(64 * PAGE);
            let [keeper, other] = ["keeper", "other"].map(|name| {
                let file = options(Route::Auto, false).open_blocking(folder.path().join(name)).unwrap();
                let open = Appender::open(&file, &pool, 0).block(PAGE).depth(1).keep_tail(1 << 20);
                block_on(open.into_future()).unwrap()
            });
            let records = content(0, 50 * PAGE);
            let fill = || {
                block_on(async {
                    keeper.truncate(0).await.unwrap();
                    keeper.append(&records).await.unwrap();
                    keeper.flush().await.unwrap();
                    assert!(pool.metrics().in_use >= 50 * PAGE, "it keeps all of it");
                })
            };
            // A request that would fail, one that waits, and another appender's.
            fill();
            drop(pool.get(32 * PAGE).unwrap());
            fill();
            drop(block_on(pool.get_async(32 * PAGE)).unwrap());
            fill();
            let append = async {
                other.append(&records).await.unwrap();
                other.flush().await.unwrap();
            };
            if elsewhere {
                futures::executor::block_on(append)
            } else {
                block_on(append)
            }
            let mut tail = keeper.tail().from(0);
            let mut read = 0;
            while read < records.len() {
                let piece = block_on(tail.next()).unwrap().unwrap();
                assert_content(&piece, read as u64);
                read += piece.len();
            }
        });
    }
}

#[test]
fn a_full_pool_takes_what_is_kept() {
    let folder = folder();
    for route in routes() {
        let path = folder.path().join("log");
        let _ = std::fs::remove_file(&path);
        let file = options(route, false).open_blocking(&path).unwrap();
        must_end("appends with a pool that readers' memory has filled", move || {
            let pool = Pool::builder().capacity(4 * PAGE).when_full(WhenFull::Wait).build().unwrap();
            let open = async { Appender::open(&file, &pool, 0).block(PAGE).keep_tail(1 << 20).await };
            let log = futures::executor::block_on(open).unwrap();
            let mut tail = log.tail();
            for _ in 0..40 {
                futures::executor::block_on(log.append(&content(log.len(), 1000))).unwrap();
            }
            assert!(pool.metrics().in_use <= 4 * PAGE);
            // Writes may be in flight, and nobody else collects them.
            let mut at = 0;
            while at < log.len() {
                let piece = futures::executor::block_on(tail.next()).unwrap().unwrap();
                assert_content(&piece, at);
                at += piece.len() as u64;
            }
            futures::executor::block_on(log.close()).unwrap();
        });
    }
}

#[test]
fn what_is_written_behind_reaches_the_file_though_the_task_never_waits() {
    let folder = folder();
    for route in routes() {
        let path = folder.path().join("log");
        let _ = std::fs::remove_file(&path);
        let file = options(route, false).open_blocking(&path).unwrap();
        block_on(async {
            let pool = Pool::new(64 << 20);
            let log =
                Appender::open(&file, &pool, 0).block(PAGE).depth(1).write_behind(32 << 20).await.unwrap();
            // Two blocks, so that the first has ended before the second can begin. The task never waits.
            while log.written() <= PAGE as u64 {
                log.append(&content(log.len(), 1000)).await.unwrap();
                assert_eq!(log.metrics().waits, 0, "{route:?}");
            }
            log.close().await.unwrap();
        });
        assert_content(&std::fs::read(&path).unwrap(), 0);
    }
}

#[test]
fn a_cut_log_ends_the_readers_that_were_behind_the_cut() {
    let folder = folder();
    for keep in [0, 1 << 20] {
        let (_, log) = open(&folder, &keep.to_string(), keep);
        let (mut before, mut ahead, mut waits) = (log.tail(), log.tail(), log.tail().from(5000));
        block_on(async {
            log.append(&content(0, 3 * PAGE)).await.unwrap();
            log.flush().await.unwrap();
            while ahead.position() < 2 * PAGE as u64 {
                ahead.next().await.unwrap().unwrap();
            }
            assert!(!ahead.next().await.unwrap().unwrap().is_empty());
            assert_content(&waits.next().await.unwrap().unwrap(), 5000);
            log.truncate(100).await.unwrap();
        });
        for reader in [&mut ahead, &mut waits] {
            let error = error_of(reader);
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.to_string().contains("cut to 100 bytes"), "{error}");
        }
        block_on(async {
            log.append(&content(1000, 2 * PAGE)).await.unwrap();
            log.flush().await.unwrap();
            let mut read = Vec::new();
            while before.position() < log.len() {
                read.extend_from_slice(&before.next().await.unwrap().unwrap());
            }
            assert_content(&read[..100], 0);
            assert_content(&read[100..], 1000);
            log.close().await.unwrap();
        });
    }
}

#[test]
fn readers_beside_truncations_see_no_byte_that_was_cut() {
    let name = "readers_beside_truncations_see_no_byte_that_was_cut";
    let folder = folder();
    for (keep, recycle) in [(0, false), (0, true), (2 * PAGE, false), (1 << 20, true)] {
        let path = folder.path().join(format!("{keep} {recycle}"));
        let file = options(Route::Auto, false).open_blocking(&path).unwrap();
        must_end(name, move || {
            let pool = Pool::new(4 << 20);
            let opening =
                async { Appender::open(&file, &pool, 0).block(PAGE).keep_tail(keep).recycle(recycle).await };
            let log = block_on(opening).unwrap();
            // Returns the whole log, unless it was cut meanwhile.
            let read = |mut tail: TailReader| async move {
                let mut all = Vec::new();
                while let Some(piece) = tail.next().await {
                    all.extend_from_slice(&piece.ok()?);
                }
                Some(all)
            };
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let mut tails: Vec<_> = (0..200).map(|_| log.tail().from(0)).collect();
                    std::thread::spawn(move || {
                        let mut times = 1;
                        loop {
                            let tail = tails.pop().expect("not cut so often");
                            match futures::executor::block_on(read(tail)) {
                                Some(all) => return (all, times),
                                None => times += 1,
                            }
                        }
                    })
                })
                .collect();
            let mut random = Random::new();
            block_on(async {
                for cuts in 0..100_u8 {
                    for _ in 0..random.below(2000) {
                        log.append(&[cuts; 7]).await.unwrap();
                        if random.below(100) == 0 {
                            log.flush().await.unwrap();
                        }
                    }
                    log.truncate(log.len() * random.below(100) / 100).await.unwrap();
                }
                log.close().await.unwrap();
            });
            let right = std::fs::read(&path).unwrap();
            let right = &right[..log.len() as usize];
            drop(log);
            for reader in readers {
                let (all, times) = reader.join().unwrap();
                assert!(all == right, "after {times} times, keep {keep}, recycle {recycle}");
            }
        });
    }
}

#[test]
fn a_reader_ends_with_its_log_and_says_if_that_was_not_closed() {
    let folder = folder();
    let (_, log) = open(&folder, "dropped", 1 << 20);
    let mut tail = log.tail();
    let waits = std::thread::spawn({
        let mut tail = log.tail();
        move || futures::executor::block_on(tail.next()).unwrap().unwrap_err().to_string()
    });
    block_on(log.sync()).unwrap();
    drop(log);
    for error in [error_of(&mut tail).to_string(), waits.join().unwrap()] {
        assert!(error.contains("dropped without `close`"), "{error}");
    }
    let (_, log) = open(&folder, "closed", 1 << 20);
    let (mut tail, mut other) = (log.tail(), log.tail());
    block_on(log.append(b"last")).unwrap();
    block_on(log.close()).unwrap();
    drop(log);
    assert_eq!(block_on(tail.next()).unwrap().unwrap(), "last");
    assert!(block_on(tail.next()).is_none());
    let mut beyond = other.from(u64::MAX);
    assert!(block_on(beyond.next()).is_none());
    other = beyond.from(2);
    assert!(block_on(other.next()).is_none(), "a stream that has ended");
}

#[test]
fn f51_what_is_durable_is_read_before_the_failure() {
    let name = "f51_what_is_durable_is_read_before_the_failure";
    let Some(server) = Server::or_skip(name, Vec::new()) else { return };
    let file = ringfile::OpenOptions::new().read(true).write(true).open_blocking(server.path()).unwrap();
    let open = async { Appender::open(&file, &Pool::new(1 << 20), 0).block(PAGE).keep_tail(1 << 20).await };
    let log = block_on(open).unwrap();
    let mut tail = log.tail();
    block_on(async {
        log.append(&content(0, 100)).await.unwrap();
        log.sync().await.unwrap();
    });
    server.rule(Op::Write, 0..u64::MAX, 1, Act::Fail(libc::EIO));
    block_on(async {
        log.append(&content(100, 100)).await.unwrap();
        log.flush().await.unwrap_err();
    });
    let piece = block_on(tail.next()).unwrap().unwrap();
    assert_content(&piece, 0);
    assert_eq!(piece.len(), 100);
    assert_eq!(error_of(&mut tail).errno(), Some(libc::EIO));
}

#[test]
fn after_a_failed_cut_a_reader_has_right_bytes_up_to_its_length() {
    let name = "after_a_failed_cut_a_reader_has_right_bytes_up_to_its_length";
    let Some(server) = Server::or_skip(name, vec![0xEE; 1 << 20]) else { return };
    let file = options(Route::Auto, true).open_blocking(server.path()).unwrap();
    block_on(async {
        let log =
            Appender::open(&file, &Pool::new(4 << 20), 0).recycle(true).keep_tail(1 << 20).await.unwrap();
        let mut tail = log.tail().from(4200);
        log.append(&content(0, 5000)).await.unwrap();
        log.sync().await.unwrap();
        server.direct_rule(Op::Write, 4096..8192, 1, Act::Fail(libc::EIO));
        assert_eq!(log.truncate(4500).await.unwrap_err().errno(), Some(libc::EIO));
        let piece = tail.next().await.unwrap().unwrap();
        assert_eq!(piece.len(), 300);
        assert_content(&piece, 4200);
        assert_eq!(tail.next().await.unwrap().unwrap_err().errno(), Some(libc::EIO));
    });
}

#[test]
fn f22_in_a_forked_child_a_reader_fails() {
    if !in_child("f22_in_a_forked_child_a_reader_fails") {
        return;
    }
    let folder = folder();
    let (_, log) = open(&folder, "log", 1 << 20);
    let mut tail = log.tail();
    block_on(log.append(b"one")).unwrap();
    let child = support::forks::fork(|| {
        let error = block_on(tail.next()).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let mut other = log.tail();
        assert!(block_on(other.next()).unwrap().is_err());
    });
    support::assert_passed(child);
    let (_, log) = open(&folder, "other", 1 << 20);
    let mut tail = log.tail();
    block_on(log.append(b"one")).unwrap();
    assert_eq!(block_on(tail.next()).unwrap().unwrap(), "one");
    block_on(log.close()).unwrap();
}

#[test]
fn a_reader_in_the_loop_that_carries_out_a_truncation_lets_it_turn() {
    let folder = folder();
    let (_, log) = open(&folder, "log", 0);
    let read = must_end("a reader beside a truncation", move || {
        block_on(async {
            log.append(&content(0, 25 * PAGE)).await.unwrap();
            log.flush().await.unwrap();
            let mut tail = log.tail().from(0);
            let mut truncation = pin!(log.truncate(10 * PAGE as u64));
            assert!(futures::poll!(&mut truncation).is_pending());
            let read = async {
                let mut read = Vec::new();
                while read.len() < 10 * PAGE {
                    read.extend_from_slice(&tail.next().await.unwrap().unwrap());
                }
                read
            };
            let (read, truncated) = futures::join!(read, truncation);
            truncated.unwrap();
            read
        })
    });
    assert_eq!(read.len(), 10 * PAGE);
    assert_content(&read, 0);
}

#[test]
fn a_reader_gets_the_error_of_an_appender_that_failed_before_it_could_cut() {
    let name = "a_reader_gets_the_error_of_an_appender_that_failed_before_it_could_cut";
    let Some(server) = Server::or_skip(name, Vec::new()) else { return };
    let file = options(Route::Auto, false).open_blocking(server.path()).unwrap();
    must_end("a reader of an appender that has failed", move || {
        block_on(async {
            let log = Appender::open(&file, &Pool::new(4 << 20), 0).block(PAGE).await.unwrap();
            log.append(&content(0, 10_000)).await.unwrap();
            log.sync().await.unwrap();
            let mut tail = log.tail().from(5000);
            server.rule(Op::Write, 8192..u64::MAX, 1, Act::Fail(libc::EIO));
            log.append(&content(10_000, PAGE)).await.unwrap();
            assert_eq!(log.truncate(100).await.unwrap_err().errno(), Some(libc::EIO));
            let mut read = Vec::new();
            let error = loop {
                match tail.next().await.unwrap() {
                    Ok(piece) => read.extend_from_slice(&piece),
                    Err(error) => break error,
                }
            };
            assert_eq!((read.len(), error.errno()), (5000, Some(libc::EIO)));
            assert_content(&read, 5000);
        });
    });
}

#[test]
fn a_reader_that_is_told_so_late_gives_only_what_is_durable() {
    let folder = folder();
    let (_, log) = open(&folder, "log", 0);
    block_on(async {
        log.append(&content(0, PAGE)).await.unwrap();
        log.sync().await.unwrap();
        log.append(&content(PAGE as u64, 8 * PAGE)).await.unwrap();
        log.flush().await.unwrap();
        let mut tail = log.tail().from(0);
        let first = tail.next().await.unwrap().unwrap();
        let mut tail = tail.durable(true);
        let mut position = first.len();
        while position < PAGE {
            position += tail.next().await.unwrap().unwrap().len();
        }
        assert!(poll(&mut tail).is_pending(), "nothing behind {position} is durable");
        log.close().await.unwrap();
    });
}

#[test]
fn appends_of_one_loop_keep_their_order_when_it_turns() {
    let folder = folder();
    let (_, log) = open(&folder, "log", 0);
    block_on(async {
        for round in 0..64 {
            // A full block starts a write, and lets the loop turn at the next append.
            log.append(&content(log.len(), PAGE)).await.unwrap();
            let (one, other) = futures::join!(log.append(b"a"), log.append(b"b"));
            assert!(one.unwrap() < other.unwrap(), "round {round}");
            log.append(&content(log.len(), PAGE)).await.unwrap();
            let (appended, cut) = futures::join!(log.append(b"a"), log.truncate(4));
            assert!(appended.unwrap() > 4, "round {round}");
            cut.unwrap();
            assert_eq!(log.len(), 4, "round {round}");
        }
        log.close().await.unwrap();
    });
}
