//! `Appender`: records reach the file complete and in order, and are durable once it says so.

use std::future::Future;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;
use std::pin::{Pin, pin};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::support;
use crate::support::forms::routes;
use crate::support::fuse::{Act, Op, Server};
use crate::support::logs::{folder, kinds, options};
use crate::support::{
    Random, again, assert_content, content, in_child, is_without_ring, must_end, page_size, poll_once,
    wait_for, yield_now,
};
use bytes::BufMut;
use ringfile::{Appender, Durability, File, OpenOptions, Pool, Route, Runtime, WhenFull, block_on};

const PAGE: usize = 4096;
const EVERYWHERE: std::ops::Range<u64> = 0..u64::MAX;

#[test]
fn an_append_that_would_wait_appends_nothing_if_it_only_tries() {
    let folder = folder();
    for route in routes() {
        let path = folder.path().join("log");
        let file = options(route, false).open_blocking(&path).unwrap();
        let pool = Pool::builder().capacity(1 << 20).when_full(WhenFull::Error).build().unwrap();
        let log = block_on(async { Appender::open(&file, &pool, 0).block(64 << 10).depth(2).await }).unwrap();
        // Nothing is left of the pool for a while.
        let taken: Vec<_> = std::iter::from_fn(|| pool.get(64 << 10).ok()).collect();
        assert!(log.try_append(&content(0, 3000)).is_none(), "{route:?}");
        assert_eq!(log.len(), 0, "{route:?}");
        drop(taken);
        // There is room for a part of it.
        assert!(log.try_append(&content(0, 160 << 10)).is_none(), "{route:?}");
        assert_eq!(log.len(), 0, "{route:?}");
        let mut len = 0;
        while len < 4 << 20 {
            let bytes = content(len, 3000);
            match log.try_append(&bytes) {
                Some(appended) => {
                    assert_eq!(appended.unwrap(), len, "{route:?}");
                    len += 3000;
                }
                None => block_on(log.flush()).unwrap(),
            }
        }
        block_on(log.close()).unwrap();
        assert_eq!(log.try_append(b"more").unwrap().unwrap_err().kind(), ErrorKind::InvalidInput);
        let written = std::fs::read(&path).unwrap();
        assert_eq!(written.len() as u64, len, "{route:?}");
        assert_content(&written, 0);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn appends_of_every_length_are_in_the_file_in_order_and_exact() {
    let name = "appends_of_every_length_are_in_the_file_in_order_and_exact";
    let (folder, mut random) = (folder(), Random::new());
    let path = folder.path().join("log");
    for direct in kinds(name, &folder) {
        for route in routes() {
            for round in 0..6 {
                let _ = std::fs::remove_file(&path);
                let file = options(route, direct).open_blocking(&path).unwrap();
                let pool = Pool::new(1 << 20);
                let block = [100, PAGE, 3 * PAGE, 64 << 10][random.below(4) as usize];
                let depth = 1 + random.below(4) as usize;
                // In the other rounds there may be more zeros behind the log.
                let (ahead, filled) = if round % 2 == 0 { (0, 0) } else { (256 << 10, 256 << 10) };
                let how = format!("{direct}, {route:?}, round {round}, block {block}, depth {depth}");
                block_on(async {
                    let mut len = 0;
                    for _ in 0..3 {
                        let open = Appender::open(&file, &pool, len).block(block).depth(depth);
                        let log =
                            open.fill_ahead(ahead).await.unwrap_or_else(|error| panic!("{how}: {error}"));
                        assert_eq!((log.len(), log.written(), log.durable()), (len, len, len), "{how}");
                        for _ in 0..60 {
                            match random.below(8) {
                                0 => log.flush().await.unwrap(),
                                1 => log.sync().await.unwrap(),
                                kind => {
                                    let most = [1, 20, 600, 5000, 3 * block as u64][kind as usize % 5];
                                    let bytes = content(len, random.below(most + 1) as usize);
                                    assert_eq!(log.append(&bytes).await.unwrap(), len, "{how}");
                                    len += bytes.len() as u64;
                                    continue;
                                }
                            }
                            assert_eq!(log.written(), len, "{how}");
                            let read = std::fs::read(&path).unwrap();
                            let (valid, padding) = read.split_at(len as usize);
                            assert_content(valid, 0);
                            let alignment = file.alignment().bytes;
                            assert!(
                                padding.len() < alignment + filled && padding.iter().all(|&byte| byte == 0),
                                "{how}"
                            );
                        }
                        if random.below(3) > 0 {
                            log.close().await.unwrap();
                            log.close().await.unwrap();
                            log.sync().await.unwrap();
                            let refused = log.append(b"more").await.unwrap_err();
                            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
                            assert_eq!(log.durable(), len, "{how}");
                            let read = std::fs::read(&path).unwrap();
                            assert_eq!(read.len() as u64, len, "{how}");
                            assert_content(&read, 0);
                        } else {
                            log.flush().await.unwrap();
                        }
                        // The program opens the file again with a shorter valid length.
                        len -= random.below(len / 2 + 1);
                    }
                });
                drop(file);
                assert_eq!(pool.metrics().in_use, 0, "{how}");
            }
        }
    }
}

/// Returns the routes on which an operation that the server holds back does not block the thread that started it.
fn held_routes() -> impl Iterator<Item = Route> {
    [Route::Ring, Route::Workers].into_iter().filter(|&route| route == Route::Workers || !is_without_ring())
}

/// Returns a record: its length, writer and number, then bytes that follow from these.
fn record(writer: u64, number: u64, len: usize) -> Vec<u8> {
    let seed = writer * 1_000_003 + number * 7919;
    [&(len as u64).to_le_bytes()[..], &seed.to_le_bytes(), &content(seed, len)].concat()
}

/// Asserts that the file has each record at its offset, and nothing between them.
fn assert_records(path: &Path, mut all: Vec<(u64, Vec<u8>)>) {
    let read = std::fs::read(path).unwrap();
    all.sort_by_key(|(at, _)| *at);
    let mut end = 0;
    for (at, record) in all {
        assert_eq!(at, end);
        end += record.len() as u64;
        assert!(read[at as usize..end as usize] == record, "the record at {at}");
    }
    assert_eq!(read.len() as u64, end);
}

async fn write_some(log: Appender, writer: u64, seed: u64) -> Vec<(u64, Vec<u8>)> {
    let mut random = Random::from_seed(seed + writer);
    let mut all = Vec::new();
    for number in 0..60 {
        let most = [10, 1000, 20_000][random.below(3) as usize];
        let record = record(writer, number, random.below(most) as usize);
        let at = match random.below(2) {
            // Up to the block of 4 pages.
            0 if record.len() <= 4 * PAGE => {
                let more = (4 * PAGE - record.len()).min(random.below(100) as usize);
                let fill = |place: &mut ringfile::log::Reservation<'_>| {
                    for part in record.chunks(1 + record.len() / 3) {
                        place.put_slice(part);
                    }
                };
                log.append_with(record.len() + more, fill).await.unwrap()
            }
            _ => log.append(&record).await.unwrap(),
        };
        let end = at + record.len() as u64;
        match random.below(4) {
            0 => {
                log.sync().await.unwrap();
                assert!(log.durable() >= end);
            }
            1 => {
                log.flush().await.unwrap();
                assert!(log.written() >= end);
            }
            _ => {}
        }
        all.push((at, record));
    }
    all
}

#[test]
fn tasks_and_threads_append_at_once() {
    let name = "tasks_and_threads_append_at_once";
    let folder = folder();
    let path = folder.path().join("log");
    let seed = Random::new().below(1 << 30);
    for direct in kinds(name, &folder) {
        for route in routes() {
            let _ = std::fs::remove_file(&path);
            let file = options(route, direct).open_blocking(&path).unwrap();
            let open = move || {
                let pool = Pool::new(4 << 20);
                block_on(async { Appender::open(&file, &pool, 0).block(4 * PAGE).depth(3).await }).unwrap()
            };
            let all = must_end(name, move || {
                let log = open();
                let runtime = Runtime::builder().threads(2).build().unwrap();
                let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
                let in_runtime: Vec<_> = (0..4)
                    .map(|writer| {
                        let log = log.clone();
                        runtime.spawn(async move { write_some(log, writer, seed).await })
                    })
                    .collect();
                let in_tokio: Vec<_> =
                    (4..8).map(|writer| tokio.spawn(write_some(log.clone(), writer, seed))).collect();
                let threads: Vec<_> = (8..10)
                    .map(|writer| {
                        let log = log.clone();
                        std::thread::spawn(move || futures::executor::block_on(write_some(log, writer, seed)))
                    })
                    .collect();
                let here = block_on(write_some(log.clone(), 10, seed));
                let mut all = here;
                all.extend(in_runtime.into_iter().flat_map(|task| task.join().unwrap()));
                all.extend(in_tokio.into_iter().flat_map(|task| tokio.block_on(task).unwrap()));
                all.extend(threads.into_iter().flat_map(|thread| thread.join().unwrap()));
                futures::executor::block_on(log.close()).unwrap();
                all
            });
            assert_records(&path, all);
        }
    }
}

#[test]
fn futures_are_dropped_at_any_point() {
    let name = "futures_are_dropped_at_any_point";
    let folder = folder();
    let path = folder.path().join("log");
    let mut random = Random::new();
    for direct in kinds(name, &folder) {
        for route in routes() {
            let _ = std::fs::remove_file(&path);
            let file = options(route, direct).open_blocking(&path).unwrap();
            let pool = Pool::builder().capacity(1 << 20).when_full(WhenFull::Error).build().unwrap();
            block_on(async {
                let log = Appender::open(&file, &pool, 0).block(2 * PAGE).depth(2).await.unwrap();
                let mut all = Vec::new();
                for number in 0..400 {
                    let record = record(1, number, random.below(6000) as usize);
                    let before = log.len();
                    let mut append = log.append(&record);
                    let polls = random.below(4);
                    for _ in 0..polls {
                        if let Poll::Ready(at) = poll_once(&mut append).await {
                            assert_eq!(at.unwrap(), before);
                            all.push((before, record.clone()));
                            break;
                        }
                        yield_now().await;
                    }
                    drop(append);
                    assert_eq!(log.len(), all.last().map_or(0, |(at, record)| at + record.len() as u64));
                    let sync = random.below(2) == 0;
                    let mut settle =
                        Box::pin(async { if sync { log.sync().await } else { log.flush().await } });
                    for _ in 0..random.below(4) {
                        if poll_once(&mut settle).await.is_ready() {
                            break;
                        }
                        yield_now().await;
                    }
                }
                log.close().await.unwrap();
                assert_records(&path, all);
            });
            assert_eq!(pool.metrics().in_use, 0);
        }
    }
}

#[test]
fn dropping_the_appender_discards_and_gives_memory_back() {
    let folder = folder();
    let path = folder.path().join("log");
    for route in routes() {
        let pool = Pool::new(1 << 20);
        let file = options(route, false).open_blocking(&path).unwrap();
        block_on(async {
            let log = Appender::open(&file, &pool, 0).block(PAGE).await.unwrap();
            log.append(&content(0, 3 * PAGE + 100)).await.unwrap();
            let mut sync = log.sync();
            let _ = poll_once(&mut sync).await;
            drop(sync);
        });
        wait_for("the memory", || pool.metrics().in_use == 0);
        block_on(async {
            let log = Appender::open(&file, &pool, 0).await.unwrap();
            assert_eq!(file.size().unwrap(), 0);
            log.close().await.unwrap();
        });
    }
}

/// Counts its wake-ups.
#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn an_unpolled_future_stops_no_other() {
    let name = "an_unpolled_future_stops_no_other";
    for route in held_routes() {
        let Some(server) = Server::or_skip(name, Vec::new()) else { return };
        let file =
            OpenOptions::new().read(true).write(true).route(route).open_blocking(server.path()).unwrap();
        let log = futures::executor::block_on(async { Appender::open(&file, &Pool::new(1 << 20), 0).await })
            .unwrap();
        futures::executor::block_on(log.append(&content(0, 100))).unwrap();
        server.rule(Op::Write, EVERYWHERE, 1, Act::Hold);
        // The future starts the write, and is not polled again.
        let calls = Arc::new(Calls::default());
        let waker = Waker::from(Arc::clone(&calls));
        let mut held = pin!(log.sync());
        assert!(held.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let other = log.clone();
        let thread = std::thread::spawn(move || futures::executor::block_on(other.sync()));
        server.wait_held(1);
        server.release();
        must_end("the other's sync", move || thread.join().unwrap().unwrap());
        assert!(calls.0.load(Ordering::SeqCst) > 0);
        futures::executor::block_on(held).unwrap();
    }
}

#[test]
fn an_append_that_waits_for_memory_keeps_its_turn_until_it_is_dropped() {
    let folder = folder();
    let file = options(Route::Auto, false).open_blocking(folder.path().join("log")).unwrap();
    let pool = Pool::new(4 * PAGE);
    let log = block_on(Appender::open(&file, &pool, 0).block(PAGE).depth(1).into_future()).unwrap();
    let mut held = Vec::new();
    while let Ok(buffer) = pool.get(PAGE) {
        held.push(buffer);
    }
    let context = &mut Context::from_waker(Waker::noop());
    let mut first = Box::pin(log.append(b"first"));
    assert!(first.as_mut().poll(context).is_pending(), "there is no memory");
    drop(held);
    let count = Arc::new(Calls::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut second = Box::pin(log.append(b"second"));
    assert!(
        second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(),
        "it is the first one's turn"
    );
    block_on(log.sync()).unwrap();
    drop(first);
    assert!(count.0.load(Ordering::SeqCst) > 0);
    assert_eq!(block_on(second).unwrap(), 0);
    block_on(log.close()).unwrap();
    assert_eq!(std::fs::read(folder.path().join("log")).unwrap(), b"second");
}

#[test]
fn closing_ends_appends_that_wait_though_everything_is_durable() {
    let folder = folder();
    let file = options(Route::Auto, false).open_blocking(folder.path().join("log")).unwrap();
    let pool = Pool::new(4 * PAGE);
    let log = block_on(Appender::open(&file, &pool, 0).block(PAGE).depth(1).into_future()).unwrap();
    let held: Vec<_> = std::iter::from_fn(|| pool.get(PAGE).ok()).collect();
    let count = Arc::new(Calls::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut waiting = [Box::pin(log.append(b"first")), Box::pin(log.append(b"second"))];
    for append in &mut waiting {
        let polled = append.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "there is no memory");
    }
    block_on(log.close()).unwrap();
    for (before, append) in waiting.iter_mut().enumerate() {
        assert!(count.0.load(Ordering::SeqCst) > before, "it was not woken");
        let Poll::Ready(result) = append.as_mut().poll(&mut Context::from_waker(&waker)) else {
            panic!("it still waits");
        };
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    }
    drop(held);
}

#[test]
fn a_loop_that_ends_leaves_its_writes_to_the_next_one() {
    let folder = folder();
    for route in routes() {
        for start_elsewhere in [false, true] {
            let path = folder.file("log", b"");
            let file = options(route, false).open_blocking(&path).unwrap();
            let log =
                block_on(async { Appender::open(&file, &Pool::new(1 << 20), 0).block(PAGE).await }).unwrap();
            for round in 0..20 {
                // Full blocks and a sync are started on a loop that ends before they do.
                let started = log.clone();
                let start = move || {
                    block_on(async {
                        started.append(&content(round * 9000, 9000)).await.unwrap();
                        let _ = poll_once(&mut started.sync()).await;
                    });
                };
                if start_elsewhere {
                    std::thread::spawn(start).join().unwrap();
                } else {
                    start();
                }
                let log = log.clone();
                must_end("the sync on another loop", move || match round % 3 {
                    0 => futures::executor::block_on(log.sync()).unwrap(),
                    1 => block_on(log.sync()).unwrap(),
                    _ => {}
                });
            }
            block_on(log.close()).unwrap();
            let read = std::fs::read(&path).unwrap();
            assert_eq!(read.len(), 20 * 9000);
            assert_content(&read, 0);
        }
    }
}

#[test]
fn memory_is_bounded_and_appends_wait_for_room_in_order() {
    let name = "memory_is_bounded_and_appends_wait_for_room_in_order";
    for route in held_routes() {
        let Some(server) = Server::or_skip(name, Vec::new()) else { return };
        let file =
            OpenOptions::new().read(true).write(true).route(route).open_blocking(server.path()).unwrap();
        let pool = Pool::new(1 << 20);
        let log =
            futures::executor::block_on(async { Appender::open(&file, &pool, 0).block(PAGE).depth(2).await })
                .unwrap();
        server.rule(Op::Write, EVERYWHERE, usize::MAX, Act::Hold);
        let records: Vec<Vec<u8>> = (0..40).map(|number| vec![number + 1; 1000]).collect();
        let mut waiting: Vec<_> = records.iter().map(|record| Box::pin(log.append(record))).collect();
        let context = &mut Context::from_waker(Waker::noop());
        let begun = waiting.iter_mut().filter_map(|append| match append.as_mut().poll(context) {
            Poll::Ready(at) => Some(at.unwrap()),
            Poll::Pending => None,
        });
        assert!(begun.eq((0..12).map(|number| number * 1000)), "three blocks hold 12 records, {route:?}");
        assert!(pool.metrics().in_use <= 4 * PAGE as u64 as usize, "{:?}", pool.metrics());
        assert!(log.metrics().waits > 0);
        server.release();
        let mut rest = waiting.into_iter().skip(12);
        let offsets: Vec<u64> = futures::executor::block_on(async {
            let mut offsets = Vec::new();
            for append in rest.by_ref().take(10) {
                offsets.push(append.await.unwrap());
            }
            offsets
        });
        assert!(offsets.into_iter().eq((12..22).map(|number| number * 1000)));
        drop(rest);
        futures::executor::block_on(log.append(b"end")).unwrap();
        futures::executor::block_on(log.close()).unwrap();
        let data = server.data();
        assert_eq!(data.len(), 22 * 1000 + 3);
        assert!(data.chunks(1000).take(22).enumerate().all(|(i, chunk)| chunk == vec![i as u8 + 1; 1000]));
    }
}

#[test]
fn a_pool_of_two_blocks_is_enough_for_an_appender() {
    let folder = folder();
    let path = folder.path().join("log");
    for route in routes() {
        for elsewhere in [false, true] {
            let _ = std::fs::remove_file(&path);
            let file = options(route, false).open_blocking(&path).unwrap();
            let path = path.clone();
            must_end("appends with little memory", move || {
                let pool =
                    Pool::builder().capacity(2 * page_size()).when_full(WhenFull::Wait).build().unwrap();
                let run = async {
                    let log = Appender::open(&file, &pool, 0).block(page_size()).depth(4).await.unwrap();
                    let mut len = 0;
                    for bytes in [1, 5000, 4096, 4095, 30_000, 3, 8192, 100, 4096] {
                        assert_eq!(log.append(&content(len, bytes)).await.unwrap(), len);
                        len += bytes as u64;
                    }
                    log.close().await.unwrap();
                    assert_content(&std::fs::read(&path).unwrap(), 0);
                };
                if elsewhere { futures::executor::block_on(run) } else { block_on(run) }
            });
        }
    }
}

/// Asserts what every call returns after one has failed.
fn assert_failed(log: &Appender, errno: i32, how: &str) {
    let calls: [Pin<Box<dyn Future<Output = ringfile::Result<()>>>>; 4] = [
        Box::pin(async { log.append(b"more").await.map(drop) }),
        Box::pin(log.flush()),
        Box::pin(log.sync()),
        Box::pin(log.close()),
    ];
    for call in calls {
        let error = futures::executor::block_on(call).expect_err(how);
        assert_eq!(error.errno(), Some(errno), "{how}: {error}");
        assert!(error.to_string().contains("open the file and the appender again"), "{error}");
    }
}

#[test]
fn f51_a_failed_write_or_sync_is_final() {
    let name = "f51_a_failed_write_or_sync_is_final";
    for route in routes() {
        for (op, durability) in
            [(Op::Write, Durability::Dsync), (Op::Write, Durability::Fsync), (Op::Sync, Durability::Fsync)]
        {
            for large in [false, true] {
                let Some(server) = Server::or_skip(name, Vec::new()) else { return };
                let how = format!("{route:?}, {op:?}, {durability:?}, large: {large}");
                let mut options = OpenOptions::new();
                options.read(true).write(true).route(route).durability(durability);
                let file = options.open_blocking(server.path()).unwrap();
                let pool = Pool::new(1 << 20);
                let log = block_on(async { Appender::open(&file, &pool, 0).block(PAGE).await }).unwrap();
                block_on(async {
                    log.append(&content(0, 100)).await.unwrap();
                    log.sync().await.unwrap();
                });
                server.rule(op, EVERYWHERE, 1, Act::Fail(libc::EIO));
                let failed = block_on(async {
                    // One of many full blocks fails.
                    let appended = log.append(&content(100, if large { 9 * PAGE } else { 50 })).await;
                    let (first, second) = (log.sync(), log.sync());
                    let both = support::all(vec![first, second]).await;
                    assert!(both.iter().all(Result::is_err), "{how}");
                    appended.map(drop).and(both.into_iter().next().unwrap())
                });
                let failed = failed.expect_err(&how);
                assert_eq!(failed.errno(), Some(libc::EIO), "{how}: {failed}");
                assert_eq!(log.durable(), 100, "{how}");
                assert_failed(&log, libc::EIO, &how);
                let asked = server.log().len();
                assert_failed(&log, libc::EIO, &how);
                assert_eq!(server.log().len(), asked, "{how}: nothing is attempted any more");
            }
        }
    }
}

#[test]
fn a_file_that_may_not_grow_is_an_error() {
    if !in_child("a_file_that_may_not_grow_is_an_error") {
        return;
    }
    // SAFETY: it only changes this process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let limit = libc::rlimit { rlim_cur: 3 * PAGE as u64, rlim_max: libc::RLIM_INFINITY };
    let folder = folder();
    let direct = kinds("a_file_that_may_not_grow_is_an_error", &folder);
    let path = folder.path().join("log");
    // SAFETY: one valid record.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    for direct in direct {
        for route in routes() {
            let _ = std::fs::remove_file(&path);
            let file = options(route, direct).open_blocking(&path).unwrap();
            block_on(async {
                let log = Appender::open(&file, &Pool::new(1 << 20), 0).block(PAGE).await.unwrap();
                log.append(&content(0, 2 * PAGE + 10)).await.unwrap();
                log.sync().await.unwrap();
                let appended = log.append(&content(2 * PAGE as u64 + 10, 2 * PAGE)).await;
                let failed = appended.map(drop).and(log.sync().await).unwrap_err();
                assert_eq!(failed.errno(), Some(libc::EFBIG), "{route:?}, {direct}: {failed}");
                assert_eq!(log.durable(), 2 * PAGE as u64 + 10);
                assert_failed(&log, libc::EFBIG, "after it");
            });
            // The program opens the appender again at the durable length, and continues.
            block_on(async {
                let log = Appender::open(&file, &Pool::new(1 << 20), 2 * PAGE as u64 + 10).await.unwrap();
                log.append(&content(2 * PAGE as u64 + 10, 20)).await.unwrap();
                log.close().await.unwrap();
            });
            let read = std::fs::read(&path).unwrap();
            assert_eq!(read.len(), 2 * PAGE + 30);
            assert_content(&read, 0);
        }
    }
}

#[test]
fn a_recycled_file_keeps_its_length_and_what_follows() {
    let name = "a_recycled_file_keeps_its_length_and_what_follows";
    let folder = folder();
    for direct in kinds(name, &folder) {
        for route in routes() {
            let path = folder.file("used", &[0xEE; 10 * PAGE + 100]);
            let file = options(route, direct).open_blocking(&path).unwrap();
            let pool = Pool::new(1 << 20);
            block_on(async {
                let valid = 100;
                let log = Appender::open(&file, &pool, valid as u64).block(PAGE).recycle(true).await.unwrap();
                assert_eq!(log.append(&content(valid as u64, 5000)).await.unwrap(), valid as u64);
                log.sync().await.unwrap();
                log.close().await.unwrap();
                let read = std::fs::read(&path).unwrap();
                assert_eq!(read.len(), 10 * PAGE + 100);
                assert!(read[..valid].iter().all(|&byte| byte == 0xEE));
                assert_content(&read[valid..5100], valid as u64);
                let padded = 5100_usize.next_multiple_of(file.alignment().bytes);
                assert!(read[5100..padded].iter().all(|&byte| byte == 0));
                assert!(read[padded..].iter().all(|&byte| byte == 0xEE));
            });
        }
    }
}

#[test]
fn files_that_cannot_be_appended_to_are_refused_at_once() {
    let folder = folder();
    let path = folder.file("log", &content(0, 100));
    let pool = Pool::new(1 << 20);
    let refused = |file: &File, valid: u64, why: &str| {
        let error = block_on(async { Appender::open(file, &pool, valid).await }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    };
    let file = options(Route::Auto, false).open_blocking(&path).unwrap();
    refused(&file, 101, "the file has 100");
    refused(&File::open_blocking("/dev/null").unwrap(), 0, "a regular file");
    let appending = options(Route::Auto, false).custom_flags(libc::O_APPEND).open_blocking(&path).unwrap();
    refused(&appending, 100, "O_APPEND");
    let read_only = File::open_blocking(&path).unwrap();
    assert!(block_on(async { Appender::open(&read_only, &pool, 50).await }).is_err());
    assert_eq!(std::fs::read(&path).unwrap().len(), 100);
    block_on(async {
        let small = Pool::new(4 * PAGE);
        let log = Appender::open(&file, &small, 100).block(1 << 20).await.unwrap();
        let error = log.append(b"a block never fits").await.unwrap_err();
        assert!(error.to_string().contains("pool"), "{error}");
        // Only this record fails.
        log.sync().await.unwrap();
        log.close().await.unwrap();
    });
    assert_content(&std::fs::read(&path).unwrap(), 0);
}

#[test]
fn settings_above_the_limits_become_the_limits() {
    let folder = folder();
    let file = options(Route::Auto, false).open_blocking(folder.path().join("log")).unwrap();
    let pool = Pool::new(1 << 20);
    block_on(async {
        let log = Appender::open(&file, &pool, 0).depth(usize::MAX).await.unwrap();
        log.append(b"record").await.unwrap();
        log.close().await.unwrap();
        // No pool has blocks that large, and the error says so.
        let log = Appender::open(&file, &pool, 6).depth(usize::MAX).block(usize::MAX).await.unwrap();
        let error = log.append(b"record").await.unwrap_err();
        assert!(error.to_string().contains("1073741824"), "{error}");
    });
}

#[test]
fn f22_in_a_forked_child_every_call_fails() {
    if !in_child("f22_in_a_forked_child_every_call_fails") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("log");
    let file = options(Route::Auto, false).open_blocking(&path).unwrap();
    block_on(async {
        let log = Appender::open(&file, &Pool::new(1 << 20), 0).await.unwrap();
        log.append(&content(0, 100)).await.unwrap();
        // SAFETY: the child has only this thread, and ends with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            support::end_if_it_hangs();
            let append = log.append(b"child").await.map(drop);
            let all = [append, log.flush().await, log.sync().await, log.close().await];
            let told = all.into_iter().all(|result| {
                result.is_err_and(|error| {
                    error.kind() == ErrorKind::Unsupported && error.to_string().contains("fork")
                })
            });
            drop(log);
            // SAFETY: ends this process, and touches no memory.
            unsafe { libc::_exit(i32::from(!told)) };
        }
        support::assert_passed(child);
        log.append(&content(100, 100)).await.unwrap();
        log.close().await.unwrap();
    });
    let read = std::fs::read(&path).unwrap();
    assert_eq!(read.len(), 200);
    assert_content(&read, 0);
}

const LOG_OF_CHILD: &str = "RINGFILE_TEST_APPENDER_CHILD";

/// Appends without end, and prints how much is durable.
fn append_until_killed(setup: &str) {
    let (direct, path) = setup.split_once(' ').unwrap();
    let file = options(Route::Auto, direct == "true").open_blocking(path).unwrap();
    let mut random = Random::new();
    block_on(async {
        let valid = file.size().unwrap();
        let log = Appender::open(&file, &Pool::new(1 << 20), valid).block(4 * PAGE).depth(4).await.unwrap();
        loop {
            for _ in 0..random.below(12) {
                let most = [100, 1000, 30_000][random.below(3) as usize];
                let bytes = random.below(most);
                log.append(&content(log.len(), bytes as usize)).await.unwrap();
            }
            log.sync().await.unwrap();
            println!("\ndurable {}", log.durable());
        }
    });
}

#[test]
fn a_writer_that_is_killed_has_lost_nothing_that_was_durable() {
    let name = "a_writer_that_is_killed_has_lost_nothing_that_was_durable";
    if let Ok(setup) = std::env::var(LOG_OF_CHILD) {
        return append_until_killed(&setup);
    }
    let (folder, mut random) = (folder(), Random::new());
    for direct in kinds(name, &folder) {
        let path = folder.file("killed", b"");
        // Ten times each for buffered and direct I/O.
        for _ in 0..10 {
            let mut command = again(name);
            command.env(LOG_OF_CHILD, format!("{direct} {}", path.display()));
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
            let mut durable = 0;
            let mut told = |line: String| {
                let at = line.strip_prefix("durable ").and_then(|at| at.parse().ok());
                durable = at.unwrap_or(durable);
                at.is_some()
            };
            let mut left = 1 + random.below(40);
            while left > 0 {
                left -= u64::from(told(lines.next().expect("the child continues until it is killed")));
            }
            child.kill().unwrap();
            // Lines that it printed before it was killed count too.
            lines.for_each(|line| {
                told(line);
            });
            child.wait().unwrap();
            let read = std::fs::read(&path).unwrap();
            assert!(
                read.len() as u64 >= durable,
                "{durable} bytes were durable, and {} are there",
                read.len()
            );
            let (valid, later) = read.split_at(durable as usize);
            assert_content(valid, 0);
            for (i, &byte) in later.iter().enumerate() {
                assert!(
                    byte == 0 || byte == support::byte_at(durable + i as u64),
                    "neither zero nor appended"
                );
            }
            let file = options(Route::Auto, direct).open_blocking(&path).unwrap();
            block_on(async {
                let log = Appender::open(&file, &Pool::new(1 << 20), durable).await.unwrap();
                assert_eq!(file.size().unwrap(), durable);
                log.append(&content(durable, 1234)).await.unwrap();
                log.close().await.unwrap();
            });
            let read = std::fs::read(&path).unwrap();
            assert_eq!(read.len() as u64, durable + 1234);
            assert_content(&read, 0);
        }
    }
}
