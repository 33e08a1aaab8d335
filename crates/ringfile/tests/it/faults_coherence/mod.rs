//! F49: an adaptive file is read, past the page cache and through it, while others write, truncate or replace it:
//! buffered and directly, through this file, another one, or another process. A read sees every write that returned
//! before it started.
//!
//! `RINGFILE_TEST_STRESS_SECONDS` says how long the random part takes (default: 10).

mod model;
mod stress;
mod writer;

use std::path::{Path, PathBuf};

use crate::support::cache::{cache, drop_cache};
use crate::support::{Folder, in_child, skip};
use ringfile::fs::AllocateMode;
use ringfile::queue::ReadRequest;
use ringfile::{Batch, File, OpenOptions, Pool, Queue, block_on};
use writer::Writer;

const BLOCK: usize = 4096;
const BLOCKS: usize = 2048;
const LEN: usize = BLOCK * BLOCKS;

/// Each word of a block holds the block's number and version.
fn word(block: usize, version: u64) -> u64 {
    (block as u64 + 1) << 40 | version
}

fn blocks(first: usize, count: usize, version: u64) -> Vec<u8> {
    let words = (first..first + count).flat_map(|block| [word(block, version); BLOCK / 8]);
    words.flat_map(u64::to_le_bytes).collect()
}

fn folder() -> Folder {
    Folder::inside(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

fn new_file(folder: &Folder, name: &str) -> PathBuf {
    folder.file(name, &blocks(0, BLOCKS, 1))
}

/// Opens a file of which only data that is read again goes through the cache, since memory is taken for full.
fn open(path: &Path, write: bool) -> File {
    ringfile::internal::assume_memory_is_free(Some(false));
    OpenOptions::new().read(true).write(write).adaptive(true).open_blocking(path).unwrap()
}

/// Reads blocks and asserts that all have this version.
fn assert_version(file: &File, first: usize, count: usize, version: u64) {
    let buffer =
        block_on(file.read_exact_at(Vec::with_capacity(count * BLOCK), (first * BLOCK) as u64)).unwrap();
    assert!(
        buffer == blocks(first, count, version),
        "blocks {first} to {} are not of version {version}",
        first + count
    );
}

#[test]
fn f49_a_read_sees_every_write_that_has_returned() {
    // Whether memory is taken for free holds for the process.
    if !in_child("f49_a_read_sees_every_write_that_has_returned") {
        return;
    }
    let folder = folder();
    let path = new_file(&folder, "data");
    for own_may_write in [true, false] {
        let file = open(&path, own_may_write);
        if !file.is_adaptive() {
            return skip("f49_a_read_sees_every_write", "this kernel or file system has no adaptive files");
        }
        let mut writers = vec![
            Writer::plain(&path),
            Writer::direct(&path),
            Writer::Own(open(&path, true)),
            Writer::process(&folder, &path),
        ];
        if own_may_write {
            writers.push(Writer::Own(file.clone()));
        }
        for first in [0, 512] {
            // The first reads form one stream; then data ahead of it is overwritten.
            for writer in &mut writers {
                writer.write(first, 128, 2);
                drop_cache(&path);
                (0..4).for_each(|at| assert_version(&file, first + at * 8, 8, 2));
                writer.write(first, 128, 3);
                (4..16).for_each(|at| assert_version(&file, first + at * 8, 8, 3));
                (0..3).for_each(|_| assert_version(&file, first, 128, 3));
                writer.write(first + 7, 1, 4);
                assert_version(&file, first + 7, 1, 4);
                assert_version(&file, first + 8, 100, 3);
            }
        }
    }
}

#[test]
fn f49_reads_in_place_see_every_write_that_has_returned() {
    // Whether memory is taken for free holds for the process.
    if !in_child("f49_reads_in_place_see_every_write_that_has_returned") {
        return;
    }
    let folder = folder();
    let path = new_file(&folder, "data");
    let file = open(&path, true);
    if !file.is_adaptive() {
        return skip(
            "f49_reads_in_place_see_every_write",
            "this kernel or file system has no adaptive files",
        );
    }
    let mut writers = [
        Writer::plain(&path),
        Writer::direct(&path),
        Writer::Own(open(&path, true)),
        Writer::Own(file.clone()),
        Writer::process(&folder, &path),
    ];
    let (pool, mut queue, mut version) = (Pool::new(16 << 20), Queue::new(), 1);
    for round in 0..4 {
        for writer in &mut writers {
            drop_cache(&path);
            // Some of the blocks are cached: clean ones, and those that a buffered write has just changed.
            cache(&path, round * 64 * BLOCK, 32 * BLOCK);
            version += 1;
            writer.write(round * 64 + 16, 32, version);
            let written = version;
            let mut requests: Vec<_> = (0..64)
                .map(|at| (round * 64 + at * 29 % 64) * BLOCK)
                .map(|offset| ReadRequest::new(pool.get(BLOCK).unwrap(), offset as u64))
                .collect();
            queue.read_many(&file, &mut requests).unwrap();
            for ReadRequest { buffer, offset, result, .. } in requests {
                assert_eq!(result.unwrap(), BLOCK);
                let block = offset as usize / BLOCK;
                let version = if (16..48).contains(&(block % 64)) { written } else { 1 };
                assert!(buffer[..] == blocks(block, 1, version), "block {block} is not of version {version}");
            }
        }
    }
}

#[test]
fn f49_a_read_sees_truncation_holes_and_growth() {
    // Whether memory is taken for free holds for the process.
    if !in_child("f49_a_read_sees_truncation_holes_and_growth") {
        return;
    }
    let folder = folder();
    let path = new_file(&folder, "data");
    for round in 0..2 {
        std::fs::write(&path, blocks(0, BLOCKS, 1)).unwrap();
        drop_cache(&path);
        let file = open(&path, true);
        let other = OpenOptions::new().write(true).open_blocking(&path).unwrap();
        let by = if round == 0 { &file } else { &other };
        let read = |first: usize, count: usize| {
            block_on(file.read_at(Vec::with_capacity(count * BLOCK), (first * BLOCK) as u64)).unwrap()
        };
        (0..8).for_each(|at| assert_version(&file, at * 16, 16, 1));
        block_on(by.allocate(AllocateMode::PunchHole, 130 * BLOCK as u64, 10 * BLOCK as u64)).unwrap();
        assert_eq!(read(128, 16)[..2 * BLOCK], blocks(128, 2, 1));
        assert_eq!(read(128, 16)[2 * BLOCK..12 * BLOCK], [0; 10 * BLOCK]);
        block_on(by.set_len((150 * BLOCK + 100) as u64)).unwrap();
        assert_eq!(read(144, 16), blocks(144, 7, 1)[..6 * BLOCK + 100]);
        assert_eq!(read(160, 16), b"");
        block_on(by.set_len(LEN as u64)).unwrap();
        assert_eq!(read(160, 16), [0; 16 * BLOCK]);
        let mut batch = Batch::new();
        batch.add(by.set_len((140 * BLOCK) as u64));
        batch.barrier();
        batch.add(by.write_at(blocks(140, 4, 2), (140 * BLOCK) as u64));
        batch.run().into_iter().for_each(|done| assert!(done.result.is_ok()));
        assert_eq!(read(140, 16), blocks(140, 4, 2));
        // A file that replaces it is a different one.
        let beside = folder.file("beside", &blocks(0, BLOCKS, 3));
        std::fs::rename(beside, &path).unwrap();
        assert_version(&file, 0, 100, 1);
        assert_version(&open(&path, false), 0, 100, 3);
    }
}
