//! `OpenAppender::sync_interval`: syncs that come within the interval wait and share one; nothing else waits.

#![allow(clippy::unwrap_used, reason = "a test panics on anything unexpected")]

mod support;

use std::future::IntoFuture;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfile::{Appender, OpenOptions, Pool, Route, block_on};
use support::forms::routes;
use support::fuse::{Act, Op, Server};
use support::{Folder, all, assert_content, content, must_end, poll_once};

const BLOCK: usize = 4096;
/// No test waits for so long.
const LONG: Duration = Duration::from_secs(3600);

/// Opens an empty log, direct if possible.
fn log(route: Route, interval: Duration) -> (Folder, PathBuf, Appender) {
    let folder = Folder::inside(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let path = folder.path().join("log");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(true).buffered_fallback(true).route(route);
    let file = options.open(&path).unwrap();
    let open = Appender::open(&file, &Pool::new(1 << 20), 0).block(BLOCK).sync_interval(interval);
    let log = block_on(open.into_future()).unwrap();
    (folder, path, log)
}

/// Appends 100 bytes so many times, and syncs after each.
async fn append(log: &Appender, times: u64) {
    for _ in 0..times {
        let end = log.append(&[7; 100]).await.unwrap() + 100;
        log.sync().await.unwrap();
        assert!(log.durable() >= end);
    }
}

/// Starts a second sync, which has to wait for the interval, and calls `then` while it waits.
fn while_one_waits(route: Route, then: impl FnOnce(PathBuf, Appender) + Send + 'static) {
    let (folder, path, log) = log(route, LONG);
    must_end("a call beside a sync that waits", move || {
        block_on(append(&log, 1));
        then(path, log);
        drop(folder);
    });
}

#[test]
fn syncs_start_no_earlier_than_the_interval_allows() {
    const INTERVAL: Duration = Duration::from_millis(20);
    for route in routes() {
        for way in ["tasks of one loop", "threads with a loop for each call", "another executor"] {
            let (_folder, path, log) = log(route, INTERVAL);
            let began = Instant::now();
            let on_threads = |append: fn(&Appender)| {
                std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| append(&log)))));
            };
            match way {
                "tasks of one loop" => {
                    let _ = block_on(all((0..4).map(|_| Box::pin(append(&log, 5))).collect()));
                }
                "another executor" => on_threads(|log| futures::executor::block_on(append(log, 5))),
                _ => on_threads(|log| (0..5).for_each(|_| block_on(append(log, 1)))),
            }
            let most = began.elapsed().as_millis() / INTERVAL.as_millis() + 1;
            let counts = log.metrics();
            assert!(u128::from(counts.syncs) <= most, "{route:?}, {way}: {counts:?}, at most {most}");
            assert!((5..=20).contains(&counts.syncs), "{route:?}, {way}: {counts:?}");
            block_on(log.close().into_future()).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), [7; 2000], "{route:?}");
        }
    }
}

#[test]
fn only_syncs_wait_for_the_interval() {
    for route in routes() {
        while_one_waits(route, |path, log| {
            block_on(async {
                let bytes = content(100, 10 * BLOCK);
                let mut waits = log.sync();
                assert_eq!(log.append(&bytes).await.unwrap(), 100);
                assert!(poll_once(&mut waits).await.is_pending());
                // Full blocks are written while the sync waits: there is room for more than the appender holds.
                for part in 1..10 {
                    log.append(&content(100 + part * bytes.len() as u64, bytes.len())).await.unwrap();
                }
                log.flush().await.unwrap();
                assert!(poll_once(&mut waits).await.is_pending());
                assert_eq!((log.written(), log.durable()), (log.len(), 100));
                assert_content(&std::fs::read(&path).unwrap()[100..log.len() as usize], 100);
                assert_eq!(log.metrics().syncs, 1);
                log.close().await.unwrap();
                waits.await.unwrap();
                assert_eq!(log.durable(), log.len());
            });
        });
    }
}

#[test]
fn a_loop_or_an_appender_ends_while_a_sync_waits() {
    for route in routes() {
        while_one_waits(route, |_, log| {
            block_on(async {
                log.append(&[7; 100]).await.unwrap();
                assert!(poll_once(&mut log.sync()).await.is_pending());
            });
            futures::executor::block_on(log.close()).unwrap();
            assert_eq!(log.durable(), 200);
        });
        while_one_waits(route, |path, log| {
            futures::executor::block_on(async {
                log.append(&[7; 100]).await.unwrap();
                assert!(poll_once(&mut log.sync()).await.is_pending());
            });
            drop(log);
            assert_eq!(std::fs::read(&path).unwrap()[..100], [7; 100]);
        });
    }
}

#[test]
fn f51_a_failure_is_reported_though_a_sync_waits() {
    let name = "f51_a_failure_is_reported_though_a_sync_waits";
    for route in routes() {
        let Some(server) = Server::or_skip(name, Vec::new()) else { return };
        let file = OpenOptions::new().read(true).write(true).route(route).open(server.path()).unwrap();
        let open = Appender::open(&file, &Pool::new(1 << 20), 0).block(BLOCK).sync_interval(LONG);
        let log = block_on(open.into_future()).unwrap();
        block_on(append(&log, 1));
        server.rule(Op::Write, 0..u64::MAX, 1, Act::Fail(libc::EIO));
        must_end("the failure", move || {
            block_on(async {
                log.append(&[7; 100]).await.unwrap();
                let mut waits = log.sync();
                assert!(poll_once(&mut waits).await.is_pending());
                let failed = log.flush().await.unwrap_err();
                assert_eq!(failed.errno(), Some(libc::EIO), "{route:?}");
                assert_eq!(waits.await.unwrap_err().errno(), Some(libc::EIO), "{route:?}");
                assert_eq!(log.durable(), 100);
            });
        });
    }
}
