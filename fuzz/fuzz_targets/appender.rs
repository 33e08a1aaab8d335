//! A log: whatever file an `Appender` finds, and whatever is done with it, the bytes that count are those of a plain
//! vector, before and after it is opened again.

#![no_main]

use std::sync::LazyLock;

use bytes::BufMut;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ringfile::{Appender, File, OpenOptions, Pool, block_on};
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| TempDir::new_in("/dev/shm").expect("a folder"));
static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(16 << 20));

#[derive(Arbitrary, Debug)]
struct Input {
    /// What the file has at first, and how much of it counts.
    found: Vec<u8>,
    valid: u16,
    openings: Vec<Opening>,
}

#[derive(Arbitrary, Debug)]
struct Opening {
    direct: bool,
    recycle: bool,
    blocks: u8,
    depth: u8,
    fill_ahead: u16,
    keep_tail: u16,
    write_behind: u16,
    steps: Vec<Step>,
    close: bool,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Append(u16, u8),
    TryAppend(u8, u8),
    AppendWith(u8),
    Flush,
    Sync,
    Truncate(u16),
    /// Appends, and drops the future after a look.
    Abandon(u8),
    /// Reads what is kept in memory, from some place on.
    Tail(u16),
}

fuzz_target!(|input: Input| {
    let path = FOLDER.path().join("log");
    std::fs::write(&path, &input.found).expect("a file");
    let valid = usize::from(input.valid).min(input.found.len());
    let mut model = input.found[..valid].to_vec();
    for opening in input.openings.iter().take(4) {
        let mut options = OpenOptions::new();
        options.read(true).write(true).direct(opening.direct).buffered_fallback(true);
        let file = options.open_blocking(&path).expect("it exists");
        block_on(work(&file, opening, &mut model));
        drop(file);
        let bytes = std::fs::read(&path).expect("it exists");
        assert!(bytes.len() >= model.len(), "{} bytes of {}", bytes.len(), model.len());
        assert!(bytes[..model.len()] == model[..]);
        if opening.close && !opening.recycle {
            assert_eq!(bytes.len(), model.len(), "a closed log ends where it ends");
        }
    }
});

async fn work(file: &File, opening: &Opening, model: &mut Vec<u8>) {
    let log = Appender::open(file, &POOL, model.len() as u64)
        .block(4096 << (opening.blocks % 3))
        .depth(1 + usize::from(opening.depth % 4))
        .recycle(opening.recycle)
        .fill_ahead(u64::from(opening.fill_ahead))
        .keep_tail(usize::from(opening.keep_tail))
        .write_behind(u64::from(opening.write_behind));
    let log = log.await.expect("opened");
    for step in opening.steps.iter().take(64) {
        match *step {
            Step::Append(len, byte) => {
                let record = vec![byte; usize::from(len)];
                let at = log.append(&record).await.expect("appended");
                assert_eq!(at, model.len() as u64);
                model.extend_from_slice(&record);
            }
            Step::TryAppend(len, byte) => {
                let record = vec![byte; usize::from(len)];
                if let Some(at) = log.try_append(&record) {
                    assert_eq!(at.expect("appended"), model.len() as u64);
                    model.extend_from_slice(&record);
                }
            }
            Step::AppendWith(len) => {
                let len = usize::from(len);
                let at = log.append_with(len, |record| {
                    for index in 0..len {
                        record.put_u8(index as u8);
                    }
                });
                assert_eq!(at.await.expect("appended"), model.len() as u64);
                model.extend((0..len).map(|index| index as u8));
            }
            Step::Flush => log.flush().await.expect("flushed"),
            Step::Sync => {
                log.sync().await.expect("synced");
                assert_eq!(log.durable(), model.len() as u64);
            }
            Step::Truncate(len) => {
                let len = usize::from(len).min(model.len());
                log.truncate(len as u64).await.expect("cut");
                model.truncate(len);
            }
            Step::Abandon(len) => {
                let record = vec![7; usize::from(len)];
                let mut append = std::pin::pin!(log.append(&record));
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                if append.as_mut().poll(&mut context).is_ready() {
                    model.extend_from_slice(&record);
                } else {
                    // It has not begun, or a part of it would be in the log: nothing of it may be there.
                    let _ = append;
                }
            }
            Step::Tail(from) => {
                let from = usize::from(from).min(model.len());
                let mut tail = log.tail().from(from as u64);
                let mut read = from;
                while read < model.len() {
                    let bytes = tail.next().await.expect("more").expect("read");
                    assert!(!bytes.is_empty() && bytes[..] == model[read..read + bytes.len()]);
                    read += bytes.len();
                }
            }
        }
        assert_eq!(log.len(), model.len() as u64);
    }
    if opening.close {
        log.close().await.expect("closed");
    } else {
        log.flush().await.expect("flushed");
    }
}
