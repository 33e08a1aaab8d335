//! `OpenAppender::fill_ahead`: zeros behind the log, which never get into it.

use std::path::Path;

use crate::support::forms::routes;
use crate::support::logs::options;
use crate::support::mounts::Mount;
use crate::support::{Folder, assert_content, content, in_child, skip, wait_for};
use ringfile::{Appender, OpenAppender, Pool, Route, block_on};

const KIB: u64 = 1 << 10;
const RECORD: usize = 1000;
const BUDGET: u64 = 512 * KIB;

/// Mounts an ext4, where the file is filled ahead.
fn mounted(test: &str) -> Option<Mount> {
    Mount::ext4(test, 48 << 20)
}

/// Appends and syncs records until so much is appended. Returns the first error.
async fn append_until(log: &Appender, len: u64) -> ringfile::Result<()> {
    while log.len() < len {
        log.append(&content(log.len(), RECORD)).await?;
        log.sync().await?;
    }
    Ok(())
}

/// Checks that the file has the log, and then only zeros.
fn assert_log(path: &Path, len: u64) -> u64 {
    let read = std::fs::read(path).unwrap();
    let (log, rest) = read.split_at(len as usize);
    assert_content(log, 0);
    assert!(rest.iter().all(|&byte| byte == 0));
    rest.len() as u64
}

#[test]
fn small_syncs_go_into_zeros_written_ahead_and_closing_cuts_the_rest_off() {
    let name = "small_syncs_go_into_zeros_written_ahead_and_closing_cuts_the_rest_off";
    let Some(mount) = mounted(name) else { return };
    for (direct, ahead) in [(true, None), (true, Some(BUDGET)), (false, Some(BUDGET))] {
        for route in routes() {
            let path = mount.path().join("log");
            let _ = std::fs::remove_file(&path);
            let file = options(route, direct).open(&path).unwrap();
            let how = format!("{route:?}, direct {direct}, ahead {ahead:?}");
            block_on(async {
                let open = Appender::open(&file, &Pool::new(1 << 20), 0).block(16 << 10);
                let open = if let Some(bytes) = ahead { open.fill_ahead(bytes) } else { open };
                let log = open.await.unwrap();
                append_until(&log, 300 * KIB).await.unwrap();
                wait_for("zeros", || log.metrics().filled > 0);
                append_until(&log, 400 * KIB).await.unwrap();
                let most = ahead.unwrap_or(4 << 20).min(log.len());
                let rest = assert_log(&path, log.len());
                assert!(rest > 4096 && rest <= most, "{how}: {rest} bytes behind the log");
                // Larger than what is filled.
                let more = content(log.len(), 3 << 20);
                log.append(&more).await.unwrap();
                log.close().await.unwrap();
                assert_eq!(assert_log(&path, log.len()), 0, "{how}: the length is exact");
                assert!(log.metrics().filled >= 64 * KIB, "{how}");
            });
        }
    }
}

#[test]
fn files_that_would_not_gain_from_zeros_are_not_filled() {
    let name = "files_that_would_not_gain_from_zeros_are_not_filled";
    let Some(mount) = mounted(name) else { return };
    let Some(memory) = Mount::tmpfs(name, 16 << 20) else { return };
    type Set = fn(OpenAppender) -> OpenAppender;
    let cases: [(&str, &Mount, bool, Set); 4] = [
        ("buffered", &mount, false, |open| open),
        ("switched off", &mount, true, |open| open.fill_ahead(0)),
        ("recycled", &mount, true, |open| open.recycle(true).fill_ahead(BUDGET)),
        ("tmpfs", &memory, false, |open| open.fill_ahead(BUDGET)),
    ];
    for (how, mount, direct, set) in cases {
        let path = mount.path().join("log");
        let _ = std::fs::remove_file(&path);
        let file = options(Route::Auto, direct).open(&path).unwrap();
        block_on(async {
            let log = set(Appender::open(&file, &Pool::new(1 << 20), 0)).await.unwrap();
            append_until(&log, 300 * KIB).await.unwrap();
            log.close().await.unwrap();
            assert_eq!((assert_log(&path, log.len()) < 4096, log.metrics().filled), (true, 0), "{how}");
        });
    }
    // Large syncs, and none.
    let path = mount.path().join("large");
    let file = options(Route::Auto, true).open(&path).unwrap();
    block_on(async {
        let log = Appender::open(&file, &Pool::new(2 << 20), 0).await.unwrap();
        for sync in [true, false] {
            for _ in 0..20 {
                log.append(&content(log.len(), 200_000)).await.unwrap();
                if sync {
                    log.sync().await.unwrap();
                }
            }
        }
        log.close().await.unwrap();
        assert_eq!((assert_log(&path, log.len()), log.metrics().filled), (0, 0));
    });
}

#[test]
fn a_full_disk_stops_filling_and_no_append_that_has_room() {
    let name = "a_full_disk_stops_filling_and_no_append_that_has_room";
    let Some(mount) = mounted(name) else { return };
    let path = mount.path().join("log");
    // So that only a little is left.
    let other = std::fs::File::create(mount.path().join("other")).unwrap();
    let free = rustix::fs::statvfs(mount.path()).unwrap();
    let taken = free.f_bavail * free.f_frsize - 1536 * KIB;
    rustix::fs::fallocate(&other, rustix::fs::FallocateFlags::empty(), 0, taken).unwrap();
    let run = |ahead: u64| {
        let _ = std::fs::remove_file(&path);
        let file = options(Route::Auto, true).open(&path).unwrap();
        block_on(async {
            let log = Appender::open(&file, &Pool::new(1 << 20), 0).fill_ahead(ahead).await.unwrap();
            append_until(&log, 300 * KIB).await.unwrap();
            wait_for("zeros", || ahead == 0 || log.metrics().filled > 0);
            let error = append_until(&log, 100 << 20).await.unwrap_err();
            assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
            (log.durable(), log.metrics().filled)
        })
    };
    let (without, none) = run(0);
    let (with, filled) = run(BUDGET);
    assert_eq!(none, 0);
    assert!(filled > 0);
    // The file system's own blocks may take a little more or less.
    assert!(with + 64 * KIB >= without, "{with} bytes with filling, {without} without");
    assert!(without > 1 << 20, "{without}");
}

#[test]
fn a_limit_of_the_files_size_stops_filling_and_sends_no_signal() {
    let name = "a_limit_of_the_files_size_stops_filling_and_sends_no_signal";
    if !in_child(name) {
        return;
    }
    let Some(mount) = mounted(name) else { return };
    let limit = libc::rlimit { rlim_cur: 300 * KIB, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: one valid record.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    let path = mount.path().join("log");
    let file = options(Route::Auto, true).open(&path).unwrap();
    block_on(async {
        let log = Appender::open(&file, &Pool::new(1 << 20), 0).fill_ahead(BUDGET).await.unwrap();
        append_until(&log, 295 * KIB).await.unwrap();
        log.close().await.unwrap();
        assert_eq!(assert_log(&path, log.len()), 0);
    });
}

#[test]
fn appenders_that_are_dropped_while_they_fill_leave_the_next_ones_log_alone() {
    let name = "appenders_that_are_dropped_while_they_fill_leave_the_next_ones_log_alone";
    let Some(mount) = mounted(name) else { return };
    let path = mount.path().join("log");
    for round in 0..20 {
        let file = options(Route::Auto, true).open(&path).unwrap();
        block_on(async {
            let log = Appender::open(&file, &Pool::new(1 << 20), 0).fill_ahead(4 << 20).await.unwrap();
            append_until(&log, (80 + 13 * round) * KIB).await.unwrap();
        });
        let file = options(Route::Auto, true).open(&path).unwrap();
        block_on(async {
            let log = Appender::open(&file, &Pool::new(1 << 20), 3000).await.unwrap();
            log.append(&content(3000, 2 << 20)).await.unwrap();
            log.close().await.unwrap();
            assert_eq!(assert_log(&path, log.len()), 0, "round {round}");
        });
    }
}

#[test]
fn a_file_whose_blocks_are_not_overwritten_in_place_is_appended_to_all_the_same() {
    let name = "a_file_whose_blocks_are_not_overwritten_in_place_is_appended_to_all_the_same";
    let folder = Folder::new();
    let mut options = options(Route::Auto, true);
    options.buffered_fallback(true);
    let path = folder.path().join("log");
    let file = match options.open(&path) {
        Ok(file) => file,
        Err(why) => return skip(name, why),
    };
    block_on(async {
        let log = Appender::open(&file, &Pool::new(1 << 20), 0).fill_ahead(BUDGET).await.unwrap();
        append_until(&log, 200 * KIB).await.unwrap();
        log.close().await.unwrap();
        assert_eq!(assert_log(&path, log.len()), 0);
    });
}
