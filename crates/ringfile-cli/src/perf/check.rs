//! Refuses requests that cannot be measured, before anything is read or written.

use super::request::Request;
use crate::engine::fio;
use crate::error::{Failure, refuse, usage};
use crate::machine;
use crate::model::{Access, Cache, Engine, Kind, Open, Route};
use crate::testfile::{DefaultPlace, Intent, TestFile};
use crate::values::Bytes;
use crate::verify;

/// The smallest file for `--cache mixed`: a quarter of it also holds the program.
pub const SMALLEST_MIXED: u64 = 256 << 20;

/// Returns what will be done to the file; refuses requests that no file could satisfy.
pub fn intent(request: &Request<'_>) -> Result<Intent, Failure> {
    let (grid, size) = (&request.grid, request.test_file.size());
    let (block, mixed) = (grid.largest_block(), request.kind == Kind::Mixed);
    let direct = grid.is_direct() && !mixed;
    check_block(block, size)?;
    if !grid.open.iter().all(|&open| open == Open::Direct)
        && grid.ways.iter().any(|(route, _)| *route == Route::Aio)
    {
        return usage("--route aio is for direct I/O: add --direct, or leave out aio");
    }
    if request.verify && block < verify::SMALLEST_BLOCK {
        let least = verify::SMALLEST_BLOCK;
        return usage(format!("--verify needs blocks of at least {least} bytes: raise --bs"));
    }
    if request.verify && grid.engines.iter().any(|engine| engine.is_fio()) {
        return usage("--verify can't check what fio reads and writes: leave fio out of --against");
    }
    let iodepth = grid.most().1;
    let advice = "fewer threads, less depth, or smaller blocks";
    check_memory(grid.memory(), " with the most threads", advice)?;
    if iodepth > fio::MOST_IN_FLIGHT as u64 && grid.engines.contains(&Engine::Fio) {
        return usage(format!(
            "fio can't have {iodepth} reads in flight, {} at most: use a smaller --batch or --inflight, or leave fio \
             out of --engines",
            fio::MOST_IN_FLIGHT
        ));
    }
    let writes = request.verify || grid.rw.iter().any(|rw| rw.writes());
    Ok(Intent {
        block,
        writes,
        direct,
        verify: request.verify,
        // A file in memory cannot be dropped from memory.
        default_place: match mixed || grid.cache.contains(&Cache::Cold) && !direct {
            true => DefaultPlace::Disk,
            false => DefaultPlace::Memory,
        },
    })
}

/// Refuses blocks that are larger than the part of the file to use.
pub fn check_block(block: u64, size: u64) -> Result<(), Failure> {
    if block <= size {
        return Ok(());
    }
    let (block, size) = (Bytes(block), Bytes(size));
    usage(format!("--bs {block} is more than --size {size}: use smaller blocks or a larger size"))
}

/// Refuses buffers that the machine has no room for.
pub fn check_memory(bytes: u64, when: &str, advice: &str) -> Result<(), Failure> {
    if !machine::is_too_much(bytes) {
        return Ok(());
    }
    let bytes = Bytes(bytes);
    usage(format!("buffers for all that is in flight{when} would take {bytes}: use {advice}"))
}

/// Refuses a file that is too small: each thread with its own part needs a block, and with `--verify` each task.
pub fn fit(request: &Request<'_>, test_file: &TestFile) -> Result<(), Failure> {
    let grid = &request.grid;
    if request.kind == Kind::Mixed && test_file.size() < SMALLEST_MIXED {
        let why = "has less than 256 MiB for --cache mixed: name a --file that is larger, or a new one";
        return refuse(&test_file.path, why);
    }
    if test_file.block_device.is_some() && !grid.engines.iter().all(|engine| engine.takes_namespaces()) {
        let why =
            "accepts only NVMe commands, which pread and fio's psync can't send: leave them out of --against";
        return refuse(&test_file.path, why);
    }
    let (numjobs, iodepth) = grid.most();
    let sequential = grid.rw.iter().any(|rw| !rw.random());
    let once = grid.cache.iter().any(|&cache| request.access(cache) == Access::Once);
    let needed = match (request.verify, sequential || once) {
        (true, _) => numjobs * iodepth,
        (false, true) => numjobs,
        (false, false) => 1,
    };
    if test_file.blocks >= needed {
        return Ok(());
    }
    let (blocks, block) = (test_file.blocks, Bytes(test_file.block));
    let has = format!("has {blocks} blocks of {block}, but this run needs {needed}");
    refuse(&test_file.path, format!("{has}: raise --size, or lower --numjobs or --iodepth"))
}
