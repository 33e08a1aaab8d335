//! `compare get-ranges`: compares `get_ranges` with object_store's `LocalFileSystem`, with 32 ranges of 128 KiB in each
//! call.
//!
//! A run requests no range twice. Ratios are formed within a round. `LocalFileSystem` runs twice (A/A), which shows the
//! noise. Each page of each range is checked to be the one that belongs at its offset.

use std::io;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, path};
use ringfile_object_store::{Caching, RingfileStore};
use tokio::runtime::{Builder, Runtime};

use super::{Cache, Run, Trial, cells, ratios, runs_in_turn};
use crate::data::{self, PAGE, Place};
use crate::table::spread;

const RANGE: u64 = 128 << 10;
const RANGES: usize = 32;

/// The stores that are compared; `None` stands for `LocalFileSystem`.
const SIDES: [(&str, Option<Caching>); 5] = [
    ("LocalFileSystem", None),
    ("ringfile adaptive", Some(Caching::Adaptive)),
    ("ringfile buffered", Some(Caching::Buffered)),
    ("ringfile direct", Some(Caching::Direct)),
    ("A/A", None),
];

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
    /// The most calls of a run; no part of the file is read twice
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    calls: usize,
    /// How many calls run at the same time
    #[arg(long, default_value_t = 1)]
    in_flight: usize,
}

/// Prints the table.
pub fn compare(options: &Options) -> io::Result<()> {
    options.place.clean_up_after(compare_all(options))
}

fn compare_all(options: &Options) -> io::Result<()> {
    let place = &options.place;
    let size = place.prepare(RANGE * RANGES as u64)?;
    let runtime = Builder::new_multi_thread().worker_threads(2).build()?;
    println!(
        "| cache | side | MiB/s median [min..max] | CPU ms/GB | device MiB a run | over LocalFileSystem |"
    );
    println!("|---|---|--:|--:|--:|--:|");
    let names = SIDES.map(|(name, _)| name);
    for (cache, what) in [(Cache::Empty, "cold"), (Cache::Full, "warm")] {
        let runs = runs_in_turn(what, place.rounds, &names, |side| {
            let trial = Trial::prepare(place, size, cache)?;
            let store = store(&place.file, SIDES[side].1)?;
            trial.measure(|| read(options, &store, &runtime, size))
        })?;
        for (name, side) in names.iter().zip(&runs) {
            let over = spread(ratios(side, &runs[0], Run::mib_per_second), 2);
            println!("| {what} | {name} | {} | {over} |", cells(side));
        }
    }
    Ok(())
}

fn store(file: &Path, caching: Option<Caching>) -> io::Result<Arc<dyn ObjectStore>> {
    let folder = file.canonicalize()?;
    let folder = folder.parent().ok_or_else(|| io::Error::other("a file in a folder is needed"))?;
    Ok(match caching {
        None => Arc::new(LocalFileSystem::new_with_prefix(folder)?),
        Some(caching) => Arc::new(RingfileStore::builder().prefix(folder).caching(caching).build()?),
    })
}

/// Makes all calls, and returns the number of bytes that they read.
fn read(options: &Options, store: &Arc<dyn ObjectStore>, runtime: &Runtime, size: u64) -> io::Result<u64> {
    let name = options.place.file.file_name().and_then(|name| name.to_str());
    let name = path::Path::from(name.ok_or_else(|| io::Error::other("the file's name is not UTF-8"))?);
    let blocks = data::shuffled(size / RANGE, options.place.seed);
    let calls = blocks.chunks(RANGES).take(options.calls);
    let call = |blocks: &[u64]| {
        let ranges: Vec<_> = blocks.iter().map(|block| block * RANGE..(block + 1) * RANGE).collect();
        let (store, name) = (Arc::clone(store), name.clone());
        tokio::spawn(async move {
            let given = store.get_ranges(&name, &ranges).await?;
            ranges.iter().zip(&given).try_for_each(|(range, bytes)| check(range.start, bytes))?;
            Ok(given.iter().map(|bytes| bytes.len() as u64).sum::<u64>())
        })
    };
    runtime.block_on(async {
        let calls = futures::stream::iter(calls).map(call).buffer_unordered(options.in_flight.max(1));
        calls
            .map_err(io::Error::other)
            .try_fold(0, async |sum, bytes: io::Result<u64>| Ok(sum + bytes?))
            .await
    })
}

fn check(offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut pages = (offset..).step_by(PAGE).zip(bytes.chunks(PAGE));
    let is_right = pages.all(|(offset, page)| data::claimed_offset(page) == Some(offset));
    if is_right && bytes.len() as u64 == RANGE {
        return Ok(());
    }
    Err(io::Error::other(format!("the range at {offset} is short, or has bytes of another offset")))
}
