//! Appenders: what `examples/c/log.c` cannot show, in forked children, inside other calls, and while one is closed.

use std::sync::atomic::{AtomicBool, Ordering};

use super::forks::in_a_child;
use super::*;
use crate::append::*;
use crate::file::*;
use crate::pool::*;

const RECORD: usize = 100;

fn open_log(file: *const ringfile_file, change: impl FnOnce(&mut ringfile_appender_options)) -> usize {
    // SAFETY: it consists of integers and a raw pointer only.
    let mut options: ringfile_appender_options = unsafe { std::mem::zeroed() };
    options.size = size_of::<ringfile_appender_options>();
    change(&mut options);
    let mut log = ptr::null_mut();
    // SAFETY: the pointers are to local values.
    well(unsafe { ringfile_appender_open(file, 0, &options, &mut log) });
    log.addr()
}

fn append(log: usize, record: &[u8], flags: u32) -> i64 {
    // SAFETY: the memory is valid during the call.
    unsafe {
        ringfile_appender_append(ptr::without_provenance(log), record.as_ptr().cast(), record.len(), flags)
    }
}

fn close(log: usize) -> i32 {
    ringfile_appender_close(ptr::without_provenance_mut(log))
}

fn writable(folder: &tempfile::TempDir) -> (std::path::PathBuf, *mut ringfile_file) {
    let path = folder.path().join("log");
    let file = open(&path, RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE, 0);
    (path, file)
}

#[test]
fn a_forked_child_may_not_append_and_its_parent_goes_on() {
    let name = "tests::appends::a_forked_child_may_not_append_and_its_parent_goes_on";
    if !apart(name, &[]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = writable(&folder);
    let log = open_log(file, |_| {});
    well(append(log, &[1; RECORD], 0));
    // Forks at any time of a thread that appends.
    let stop = AtomicBool::new(false);
    let appended = std::thread::scope(|scope| {
        let appending = scope.spawn(|| {
            let mut count = 1;
            while !stop.load(Ordering::Relaxed) {
                let flags = if count % 10 == 0 { RINGFILE_APPEND_SYNC } else { 0 };
                assert_eq!(well(append(log, &[1; RECORD], flags)), count * RECORD as i64);
                count += 1;
            }
            count as usize
        });
        for _ in 0..20 {
            in_a_child(|| {
                assert!(well(append(log, &[], 0)) >= RECORD as i64, "the end at the fork");
                for flags in [0, RINGFILE_APPEND_FLUSH, RINGFILE_APPEND_SYNC] {
                    fails(append(log, &[2; RECORD], flags), libc::EOPNOTSUPP, "forked child");
                }
                fails(append(log, &[], RINGFILE_APPEND_SYNC), libc::EOPNOTSUPP, "forked child");
                fails(close(log), libc::EOPNOTSUPP, "forked child");
                fails(close(log), libc::EBADF, "the handle was closed");
            });
        }
        stop.store(true, Ordering::Relaxed);
        appending.join().unwrap()
    });
    well(close(log));
    assert!(std::fs::read(&path).unwrap() == vec![1; appended * RECORD], "other bytes than were appended");
    well(ringfile_close(file));
}

#[test]
fn a_call_inside_another_one_does_not_wait_and_leaves_the_appender_open() {
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = writable(&folder);
    let log = open_log(file, |_| {});
    crate::local::block_on(async {
        for flags in [0, RINGFILE_APPEND_FLUSH, RINGFILE_APPEND_SYNC] {
            fails(append(log, b"x", flags), libc::EDEADLK, "inside another call");
        }
        fails(append(log, b"", RINGFILE_APPEND_SYNC), libc::EDEADLK, "inside another call");
        fails(close(log), libc::EDEADLK, "inside another call");
        assert_eq!(append(log, b"", 0), 0);
    })
    .unwrap_or_else(|fault| panic!("{}", fault.text));
    well(append(log, b"afterwards", 0));
    well(close(log));
    assert_eq!(std::fs::read(&path).unwrap(), b"afterwards");
    well(ringfile_close(file));
}

#[test]
fn an_appender_keeps_its_file_and_pool_and_what_was_appended_before_it_was_closed_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = writable(&folder);
    let pool = pool(1 << 20);
    let log = open_log(file, |options| {
        (options.pool, options.block, options.depth) = (pool, 16 << 10, 2);
        options.sync_interval = 1_000_000;
    });
    well(ringfile_close(file));
    well(ringfile_pool_free(pool));
    let long = vec![9; 50_000];
    assert_eq!(well(append(log, &long, 0)), 0, "it is longer than a block");
    let all = std::thread::scope(|scope| {
        let threads = [1, 2, 3].map(|number| {
            scope.spawn(move || {
                let record = [number; RECORD];
                let flags = if number == 3 { RINGFILE_APPEND_SYNC } else { 0 };
                let mut offsets = Vec::new();
                loop {
                    let at = append(log, &record, flags);
                    match -i32::try_from(at.min(0)).unwrap() {
                        0 => offsets.push(at as usize),
                        libc::EBADF | libc::EINVAL => return (number, offsets),
                        _ => panic!("{at}: {}", said()),
                    }
                }
            })
        });
        while append(log, &[], 0) < 300_000 {
            std::thread::yield_now();
        }
        well(close(log));
        threads.map(|thread| thread.join().unwrap())
    });
    let found = std::fs::read(&path).unwrap();
    assert!(found[..long.len()] == long, "the first record");
    let mut length = long.len();
    for (number, offsets) in all {
        for at in &offsets {
            assert_eq!(found[*at..*at + RECORD], [number; RECORD], "at {at}");
        }
        length += offsets.len() * RECORD;
    }
    assert_eq!(found.len(), length, "all that was reported as appended, and no more");
}

#[test]
fn a_recycled_file_keeps_its_length() {
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = writable(&folder);
    std::fs::write(&path, content(4)).unwrap();
    let log =
        open_log(file, |options| options.flags = RINGFILE_APPENDER_RECYCLE | RINGFILE_APPENDER_NO_ZEROS);
    well(append(log, &[9; RECORD], RINGFILE_APPEND_FLUSH));
    assert_eq!(std::fs::read(&path).unwrap()[..RECORD], [9; RECORD], "flushed, so others can read it");
    well(close(log));
    let found = std::fs::read(&path).unwrap();
    assert_eq!(
        (found.len(), &found[..RECORD], &found[RECORD..]),
        (4 * PAGE, &[9; RECORD][..], &content(4)[RECORD..])
    );
    well(ringfile_close(file));
}
