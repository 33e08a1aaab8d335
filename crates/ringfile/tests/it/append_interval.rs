//! `OpenAppender::sync_interval` on threads: syncs that come within the interval wait and share one. `sim_time.rs` has what
//! needs one thread only.

use std::future::IntoFuture;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::forms::routes;
use crate::support::{Folder, must_end, poll_once};
use ringfile::{Appender, OpenOptions, Pool, Route, block_on};

const BLOCK: usize = 4096;
/// No test waits for so long.
const LONG: Duration = Duration::from_secs(3600);

/// Opens an empty log, direct if possible.
fn log(route: Route, interval: Duration) -> (Folder, PathBuf, Appender) {
    let folder = Folder::inside(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let path = folder.path().join("log");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(true).buffered_fallback(true).route(route);
    let file = options.open_blocking(&path).unwrap();
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
fn syncs_of_threads_start_no_earlier_than_the_interval_allows() {
    const INTERVAL: Duration = Duration::from_millis(20);
    for route in routes() {
        for way in ["threads with a loop for each call", "another executor"] {
            let (_folder, path, log) = log(route, INTERVAL);
            let began = Instant::now();
            let on_threads = |append: fn(&Appender)| {
                std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| append(&log)))));
            };
            match way {
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
