//! A log that is opened again: `cargo run --example reopen_log [FILE]` counts its records and appends three.
//!
//! A record is a length, a checksum and the data. What is valid ends at the first record that is incomplete, or whose
//! checksum is wrong: `Appender::open` cuts off the rest, which a crash may have left.

use std::path::{Path, PathBuf};

use ringfile::{Appender, OpenOptions, Pool};

const HEADER: usize = 8;

/// FNV-1a. It does not start at 0, so zeros behind the last record are no record.
fn checksum(data: &[u8]) -> u32 {
    data.iter().fold(0x811c_9dc5, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn record(data: &[u8]) -> Vec<u8> {
    let header = [data.len() as u32, checksum(data)].map(u32::to_le_bytes);
    [&header.concat(), data].concat()
}

/// Returns the length of the first record's data; `None` if there is no whole one.
fn first(log: &[u8]) -> Option<usize> {
    let number = |at: usize| Some(u32::from_le_bytes(log.get(at..at + 4)?.try_into().ok()?));
    let length = number(0)? as usize;
    let data = log.get(HEADER..HEADER + length)?;
    (number(4)? == checksum(data)).then_some(length)
}

/// Returns how many records are valid, and their length in bytes.
fn valid(log: &[u8]) -> (usize, u64) {
    let (mut records, mut end) = (0, 0);
    while let Some(length) = first(&log[end..]) {
        records += 1;
        end += HEADER + length;
    }
    (records, end as u64)
}

/// Opens the log, and appends records that are durable when this returns. Returns how many there were before.
async fn append(path: &Path, pool: &Pool, data: &[&str]) -> std::io::Result<usize> {
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).create(true).direct(true).buffered_fallback(true).open(path).await?;
    let (records, end) = valid(&std::fs::read(path)?); // of a large log: `file.reader(pool)`
    let log = Appender::open(&file, pool, end).await?;
    for data in data {
        log.append(&record(data.as_bytes())).await?;
    }
    log.close().await?;
    Ok(records)
}

fn main() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map_or_else(|| folder.path().join("example.log"), PathBuf::from);
    ringfile::block_on(async {
        let pool = Pool::new(4 << 20);
        let before = append(&path, &pool, &["one", "two", "three"]).await?;
        // As a crash leaves it: with a part of a record, and zeros.
        let mut torn = record(b"lost");
        torn.truncate(HEADER + 2);
        torn.resize(4096, 0);
        std::io::Write::write_all(&mut std::fs::OpenOptions::new().append(true).open(&path)?, &torn)?;
        let after = append(&path, &pool, &[]).await?;
        println!("{before} records before, {after} now");
        assert_eq!(after, before + 3);
        Ok(())
    })
}
