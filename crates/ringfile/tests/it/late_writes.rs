//! F52: a process is killed while a direct write of it is in flight. The next process opens the same log, appends, and
//! reports its data durable. Then the old write reaches the drive.
//!
//! The file system is on a loop device over a file of a FUSE server, which holds back the write of the first process.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::fuse::Server;
use crate::support::mounts::Mount;
use crate::support::{again, assert_content, content, must_end, needs_ring, ring_options};
use ringfile::{Appender, File, OpenOptions, Pool, block_on};

const BLOCK: usize = 4096;
/// Whole blocks: XFS waits by itself before it writes a part of one.
const RECORD: usize = 2 * BLOCK;
const OLD: &[u8] = b"a record of the first process";
/// A part of the zeros that are written ahead; file systems write fewer.
static ZEROS: [u8; 32 << 10] = [0; 32 << 10];
const CHILD: &str = "RINGFILE_TEST_LATE_WRITES_CHILD";

/// How the log is opened.
#[derive(Clone, Copy, Debug)]
struct Setup {
    recycle: bool,
    /// The length that is valid when each process opens the log.
    valid: usize,
    /// The length of the file before the first process opens it.
    len: usize,
    /// Whether the write that is held back is of zeros ahead of the log.
    fills: bool,
}

impl Setup {
    /// What the second process appends: up to where the write that was held back lands.
    fn record(self) -> usize {
        if self.fills { 1 << 20 } else { RECORD }
    }
}

fn direct() -> OpenOptions {
    let mut options = ring_options();
    options.read(true).write(true).create(true).direct(true);
    options
}

async fn open(file: &File, setup: Setup) -> Appender {
    let pool = Pool::new(1 << 20);
    Appender::open(file, &pool, setup.valid as u64).block(4 * BLOCK).recycle(setup.recycle).await.unwrap()
}

/// The first process: its write is held back, so this ends only when it is killed.
fn append_and_wait(path: &Path, setup: Setup) {
    block_on(async {
        let log = open(&direct().open_blocking(path).unwrap(), setup).await;
        if setup.fills {
            // Ends when appends reach the zeros that are held back.
            loop {
                log.append(&[1; 1000]).await.unwrap();
                log.sync().await.unwrap();
            }
        }
        log.append(&OLD.repeat(2 * BLOCK / OLD.len())).await.unwrap();
        log.flush().await.unwrap();
    });
}

/// The second process, which here is a thread: to the kernel that makes no difference.
fn append_and_close(path: &Path, setup: Setup) {
    block_on(async {
        let log = open(&direct().open_blocking(path).unwrap(), setup).await;
        log.append(&content(setup.valid as u64, setup.record())).await.unwrap();
        log.sync().await.unwrap();
        log.close().await.unwrap();
    });
}

fn run(name: &str, kind: &str, setup: Setup) {
    if !needs_ring(name) {
        return;
    }
    let size = if kind.starts_with("ext") { 32 << 20 } else { 320 << 20 };
    let Some(server) = Server::or_skip(name, vec![0; size]) else { return };
    let Some(mount) = Mount::over_file(name, kind, &server.path()) else { return };
    let path = mount.path().join("log");
    let before = content(0, setup.len);
    std::fs::write(&path, &before).unwrap();
    File::open_blocking(&path).and_then(|file| block_on(file.sync_all())).unwrap();

    server.hold_write_of(if setup.fills { &ZEROS } else { OLD });
    let given = format!("{} {} {} {} {}", setup.recycle, setup.fills, setup.valid, setup.len, path.display());
    let mut first = again(name).env(CHILD, given).spawn().unwrap();
    server.wait_held(1);
    first.kill().unwrap();

    let second = std::thread::spawn({
        let path = path.clone();
        move || append_and_close(&path, setup)
    });
    // Where opening does not wait for the old write, the second process ends long before it is released.
    let began = Instant::now();
    while !second.is_finished() && began.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.held(), 1, "the write is still held back");
    server.release();
    must_end("the second process", move || second.join().unwrap());
    first.wait().unwrap();

    // Direct I/O: what the drive has, not what the page cache has.
    let file = direct().open_blocking(&path).unwrap();
    let len = file.size().unwrap() as usize;
    let read =
        block_on(async { file.read_at(Pool::new(1 << 20).get(len).unwrap(), 0).await.unwrap().to_vec() });
    let end = setup.valid + setup.record();
    assert_eq!(len, if setup.recycle { setup.len } else { end }, "{kind}, {setup:?}");
    assert_content(&read[..end], 0);
}

fn run_all(name: &str, kind: &str) {
    if let Ok(child) = std::env::var(CHILD) {
        let mut parts = child.splitn(5, ' ');
        let mut next = || parts.next().unwrap();
        let [recycle, fills] = [next(), next()].map(|flag| flag == "true");
        let [valid, len] = [next(), next()].map(|number| number.parse().unwrap());
        return append_and_wait(Path::new(next()), Setup { recycle, valid, len, fills });
    }
    // A recycled file, whose blocks the old write overwrites.
    for valid in [0, BLOCK] {
        run(name, kind, Setup { recycle: true, valid, len: 16 * BLOCK, fills: false });
    }
    // A file that the old write makes longer.
    run(name, kind, Setup { recycle: false, valid: BLOCK, len: BLOCK, fills: false });
    run(name, kind, Setup { recycle: false, valid: 0, len: 0, fills: false });
    // Zeros ahead of the log, which only these file systems get.
    if ["ext4", "xfs"].contains(&kind) {
        run(name, kind, Setup { recycle: false, valid: 0, len: 0, fills: true });
    }
}

#[test]
fn f52_a_killed_processs_write_does_not_reach_a_log_later_on_ext4() {
    run_all("f52_a_killed_processs_write_does_not_reach_a_log_later_on_ext4", "ext4");
}

#[test]
fn f52_a_killed_processs_write_does_not_reach_a_log_later_on_xfs() {
    run_all("f52_a_killed_processs_write_does_not_reach_a_log_later_on_xfs", "xfs");
}

#[test]
fn f52_a_killed_processs_write_does_not_reach_a_log_later_on_btrfs() {
    run_all("f52_a_killed_processs_write_does_not_reach_a_log_later_on_btrfs", "btrfs");
}

#[test]
fn f52_a_killed_processs_write_does_not_reach_a_log_later_on_ext3_which_cannot_allocate() {
    run_all("f52_a_killed_processs_write_does_not_reach_a_log_later_on_ext3_which_cannot_allocate", "ext3");
}
