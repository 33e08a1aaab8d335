//! `OpenAppender::fill_ahead`: zeros behind the log, which never get into it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::support::forms::routes;
use crate::support::logs::options;
use crate::support::mounts::Mount;
use crate::support::{Folder, assert_content, content, in_child, skip, wait_for};
use ringfile::log::OpenAppender;
use ringfile::{Appender, Pool, Route, block_on};

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
            let file = options(route, direct).open_blocking(&path).unwrap();
            let how = format!("{route:?}, direct {direct}, ahead {ahead:?}");
            block_on(async {
                let open = Appender::open(&file, &Pool::new(1 << 20), 0).block(16 << 10);
                let open = if let Some(bytes) = ahead { open.fill_ahead(bytes) } else { open };
                let log = open.await.unwrap();
                // The first zeros go up to twice 64 KiB, and the log stays below that until they are there.
                append_until(&log, 80 * KIB).await.unwrap();
                wait_for("zeros", || log.metrics().filled > 0);
                append_until(&log, 100 * KIB).await.unwrap();
                let most = ahead.unwrap_or(4 << 20).min(log.len());
                let rest = assert_log(&path, log.len());
                assert!(rest > 4096 && rest <= most, "{how}: {rest} bytes behind the log");
                // Larger than what is filled.
                let more = content(log.len(), 3 << 20);
                log.append(&more).await.unwrap();
                log.close().await.unwrap();
                assert_eq!(assert_log(&path, log.len()), 0, "{how}: the length is exact");
                assert!(log.metrics().filled >= 32 * KIB, "{how}");
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
    let cases: [(&str, &Mount, bool, Set); 3] = [
        ("buffered", &mount, false, |open| open),
        ("switched off", &mount, true, |open| open.fill_ahead(0)),
        ("tmpfs", &memory, false, |open| open.fill_ahead(BUDGET)),
    ];
    for (how, mount, direct, set) in cases {
        let path = mount.path().join("log");
        let _ = std::fs::remove_file(&path);
        let file = options(Route::Auto, direct).open_blocking(&path).unwrap();
        block_on(async {
            let log = set(Appender::open(&file, &Pool::new(1 << 20), 0)).await.unwrap();
            append_until(&log, 300 * KIB).await.unwrap();
            log.close().await.unwrap();
            assert_eq!((assert_log(&path, log.len()) < 4096, log.metrics().filled), (true, 0), "{how}");
        });
    }
    // Large syncs, and none.
    let path = mount.path().join("large");
    let file = options(Route::Auto, true).open_blocking(&path).unwrap();
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
fn a_recycled_file_is_filled_behind_its_end_once_the_log_has_passed_that() {
    let name = "a_recycled_file_is_filled_behind_its_end_once_the_log_has_passed_that";
    let Some(mount) = mounted(name) else { return };
    let path = mount.path().join("log");
    for (direct, ahead) in [(true, None), (false, Some(BUDGET))] {
        // New, and used before.
        for (route, old) in routes().flat_map(|route| [(route, 0), (route, 150 * KIB + 512)]) {
            let how = format!("{route:?}, direct {direct}, {old} bytes before");
            std::fs::write(&path, vec![0xff; old as usize]).unwrap();
            let file = options(route, direct).open_blocking(&path).unwrap();
            let open = || {
                let open = Appender::open(&file, &Pool::new(1 << 20), 0).block(16 << 10).recycle(true);
                if let Some(bytes) = ahead { open.fill_ahead(bytes) } else { open }
            };
            let len = || std::fs::metadata(&path).unwrap().len();
            block_on(async {
                let log = open().await.unwrap();
                append_until(&log, old.saturating_sub(8 * KIB)).await.unwrap();
                assert_eq!((log.metrics().filled, len()), (0, old), "{how}");
                assert!(std::fs::read(&path).unwrap().ends_with(&vec![0xff; (old / 50) as usize]), "{how}");
                append_until(&log, old + 80 * KIB).await.unwrap();
                // At least up to twice 64 KiB behind the end.
                wait_for("zeros", || log.metrics().filled > 0);
                let rest = assert_log(&path, log.len());
                assert!(rest > 4096, "{how}: {rest} bytes behind the log");
                append_until(&log, old + 160 * KIB).await.unwrap();
                assert_log(&path, log.len());
                // Cut back, it keeps its length, and there is nothing to fill.
                log.truncate(1000).await.unwrap();
                let (filled, before) = (log.metrics().filled, len());
                append_until(&log, 70 * KIB).await.unwrap();
                log.close().await.unwrap();
                assert_log(&path, log.len());
                assert_eq!((log.metrics().filled, len()), (filled, before), "{how}: it is not cut");
                let again = open().await.unwrap();
                append_until(&again, 140 * KIB).await.unwrap();
                again.close().await.unwrap();
                assert_eq!((again.metrics().filled, len()), (0, before), "{how}: it is long enough");
            });
        }
    }
}

#[test]
fn a_recycled_file_is_filled_again_after_a_log_of_odd_length_was_truncated() {
    let name = "a_recycled_file_is_filled_again_after_a_log_of_odd_length_was_truncated";
    let Some(mount) = mounted(name) else { return };
    for (number, route) in routes().enumerate() {
        let path = mount.path().join(number.to_string());
        let file = options(route, true).open_blocking(&path).unwrap();
        block_on(async {
            let open = Appender::open(&file, &Pool::new(1 << 20), 0).recycle(true).fill_ahead(BUDGET);
            let log = open.await.unwrap();
            log.append(&content(0, 100_001)).await.unwrap();
            log.truncate(40_000).await.unwrap();
            assert_eq!(log.metrics().filled, 0, "{route:?}");
            append_until(&log, 110_000).await.unwrap();
            wait_for("zeros", || log.metrics().filled > 0);
            append_until(&log, 200_000).await.unwrap();
            assert!(assert_log(&path, log.len()) > 4096, "{route:?}: filling goes on");
            log.close().await.unwrap();
        });
    }
}

/// Returns how many transactions the journal of an ext4 has committed; `None` if the kernel does not tell.
fn commits(mount: &Mount) -> Option<u64> {
    let device = std::fs::metadata(mount.path()).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let name = device.file_name()?.to_string_lossy().into_owned();
    let info = std::fs::read_to_string(format!("/proc/fs/jbd2/{name}-8/info")).ok()?;
    info.split_whitespace().next()?.parse().ok()
}

#[test]
fn syncs_of_a_new_file_that_is_recycled_do_not_wait_for_the_journal() {
    let name = "syncs_of_a_new_file_that_is_recycled_do_not_wait_for_the_journal";
    let Some(mount) = mounted(name) else { return };
    if commits(&mount).is_none() {
        return skip(name, "the kernel does not tell how often a journal commits");
    }
    let run = |recycle: bool, ahead: u64| {
        let path = mount.path().join("log");
        let _ = std::fs::remove_file(&path);
        let file = options(Route::Auto, true).open_blocking(&path).unwrap();
        block_on(async {
            let open = Appender::open(&file, &Pool::new(1 << 20), 0).recycle(recycle).fill_ahead(ahead);
            let log = open.await.unwrap();
            append_until(&log, 80 * KIB).await.unwrap();
            wait_for("zeros", || ahead == 0 || log.metrics().filled > 0);
            let before = commits(&mount).unwrap();
            append_until(&log, 120 * KIB).await.unwrap();
            commits(&mount).unwrap() - before
        })
    };
    // One every few seconds has another cause.
    let all @ [new, without, recycled] = [run(false, BUDGET), run(true, 0), run(true, BUDGET)];
    println!("commits of 40 syncs, filled / recycled / recycled and filled: {all:?}");
    assert!(2 * new < without && 2 * recycled < without, "{all:?}");
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
        let file = options(Route::Auto, true).open_blocking(&path).unwrap();
        block_on(async {
            let log = Appender::open(&file, &Pool::new(1 << 20), 0).fill_ahead(ahead).await.unwrap();
            append_until(&log, 80 * KIB).await.unwrap();
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
    let file = options(Route::Auto, true).open_blocking(&path).unwrap();
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
        let file = options(Route::Auto, true).open_blocking(&path).unwrap();
        block_on(async {
            let log = Appender::open(&file, &Pool::new(1 << 20), 0).fill_ahead(4 << 20).await.unwrap();
            append_until(&log, (80 + 13 * round) * KIB).await.unwrap();
        });
        let file = options(Route::Auto, true).open_blocking(&path).unwrap();
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
    let file = match options.open_blocking(&path) {
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
