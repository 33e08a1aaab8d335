//! A random program on a simulated disk, against a plain model: each read gives what was written last, and after a power
//! cut each block has a version from the last sync on. With faults that the library hides, and with errors.

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

use crate::support::seeds::seeds;
use ringfile::sim::{Disk, Faults, Simulation, Strictness, for_each_seed};
use ringfile::{Batch, BufResult, Buffer, Error, File, Op, OpenOptions, Output, Pool, Queue, fs};

const BLOCK: u64 = 512;
const BLOCKS: u64 = 64;
const TASKS: u64 = 4;
/// Operations of a task in a session, with its syncs: a thousand for all.
const OPERATIONS: u64 = 250;
/// The sessions of a seed end when it had this many operations.
const ENOUGH: u64 = TASKS * OPERATIONS;

/// The versions of a task's block: the last that was begun to be written, the last that was written as a whole or read, and
/// the last that a sync has covered.
#[derive(Clone, Copy, Default)]
struct Versions {
    newest: u64,
    written: u64,
    durable: u64,
}

/// One for all seeds: making one takes as long as a hundred operations.
static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(4 << 20));

/// What is known outside of the simulation, which a power cut ends.
#[derive(Default)]
struct Model {
    blocks: RefCell<Vec<Versions>>,
    /// How many operations there were in all sessions.
    operations: Cell<u64>,
}

fn bytes_of(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(BLOCK as usize / 8)
}

/// Returns the words of a block, or one of them if all are the same.
fn distinct_words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let are_same = bytes[8..] == bytes[..bytes.len() - 8];
    let bytes = if are_same { &bytes[..8] } else { bytes };
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()))
}

/// What a program meets.
#[derive(Clone, Copy)]
struct Weather {
    is_direct: bool,
    /// Each write makes itself durable.
    is_dsync: bool,
    has_errors: bool,
}

impl Weather {
    /// Fails if the error is none that there may be.
    fn fails(self, errno: Option<i32>) {
        assert!(self.has_errors && errno == Some(libc::EIO), "errno {errno:?}");
    }
}

fn options(weather: Weather) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(weather.is_direct);
    options.custom_flags(if weather.is_dsync { libc::O_DSYNC } else { 0 });
    options
}

/// Carries out a read or a write: alone, in a batch or in a queue.
async fn run(
    disk: &Disk,
    operation: Op<'_, impl Output<Result = BufResult<Buffer>>>,
) -> Result<Buffer, Option<i32>> {
    let done = match disk.random_below(3) {
        0 => return operation.await.map_err(|error| error.errno()),
        1 => {
            let mut batch = Batch::new();
            batch.add(operation);
            batch.await.remove(0)
        }
        _ => {
            let mut queue = Queue::new();
            queue.add(operation, 7);
            while queue.ready().await == 0 {}
            queue.next().unwrap()
        }
    };
    done.take::<Buffer>().map_err(|done| done.result.unwrap_err().errno())
}

async fn task(disk: Disk, file: File, weather: Weather, number: u64, before: u64, model: Rc<Model>) {
    let at = |block: u64| (number * BLOCKS + block) * BLOCK;
    let here = |block: u64| (number * BLOCKS + block) as usize;
    for step in before + 1..=before + OPERATIONS {
        if model.operations.get() == ENOUGH {
            return;
        }
        model.operations.set(model.operations.get() + 1);
        let first = disk.random_below(BLOCKS);
        let count = 1 + disk.random_below((BLOCKS - first).min(8));
        let blocks = here(first)..here(first + count);
        let begins = || {
            model.blocks.borrow_mut()[blocks.clone()]
                .iter_mut()
                .for_each(|block| block.newest = block.newest.max(step))
        };
        let written = |is_durable: bool| {
            for block in &mut model.blocks.borrow_mut()[blocks.clone()] {
                block.written = step;
                block.durable = if is_durable || weather.is_dsync { step } else { block.durable };
            }
        };
        let len = (count * BLOCK) as usize;
        let mut buffer = POOL.get(len).unwrap();
        match disk.random_below(8) {
            0..3 => match run(&disk, file.read_at(buffer, at(first))).await {
                Ok(read) => {
                    assert_eq!(read.len(), len);
                    let blocks = &mut model.blocks.borrow_mut()[blocks.clone()];
                    is_between(&read, blocks, |block| block.written);
                    // A sync covers what was read, also if its write has failed.
                    for (block, bytes) in blocks.iter_mut().zip(read.chunks_exact(BLOCK as usize)) {
                        block.written = distinct_words(bytes).min().unwrap();
                    }
                }
                Err(errno) => weather.fails(errno),
            },
            3 => {
                let all: Vec<Versions> = model.blocks.borrow()[here(0)..here(BLOCKS)].to_vec();
                let synced = if disk.random_below(2) == 0 { file.sync_data() } else { file.sync_all() };
                match synced.await {
                    Ok(()) => {
                        for (block, versions) in all.iter().enumerate() {
                            let block = &mut model.blocks.borrow_mut()[here(block as u64)];
                            block.durable = block.durable.max(versions.written);
                        }
                    }
                    Err(error) => weather.fails(error.errno()),
                }
            }
            4 => {
                buffer.extend_from_slice(&bytes_of(step).repeat(count as usize));
                begins();
                match run(&disk, file.write_durable_at(buffer, at(first))).await {
                    Ok(_) => written(true),
                    Err(errno) => weather.fails(errno),
                }
            }
            5 => {
                let half = (count / 2 * BLOCK) as usize;
                let mut rest = POOL.get(len - half).unwrap();
                buffer.extend_from_slice(&bytes_of(step).repeat(half / BLOCK as usize));
                rest.extend_from_slice(&bytes_of(step).repeat((len - half) / BLOCK as usize));
                begins();
                let mut batch = Batch::new();
                batch.add(file.write_at(buffer, at(first)));
                batch.add(file.write_at(rest, at(first) + half as u64));
                let failed: Vec<Error> =
                    batch.await.into_iter().filter_map(|done| done.result.err()).collect();
                failed.iter().for_each(|error| weather.fails(error.errno()));
                if failed.is_empty() {
                    written(false);
                }
            }
            _ => {
                buffer.extend_from_slice(&bytes_of(step).repeat(count as usize));
                begins();
                match run(&disk, file.write_at(buffer, at(first))).await {
                    Ok(_) => written(false),
                    Err(errno) => weather.fails(errno),
                }
            }
        }
    }
}

/// Fails if a word of the blocks is older than `oldest` says, or newer than what was written. A write may have ended inside a
/// block when it failed or the power was cut, since the kernel had moved a part.
fn is_between(found: &[u8], blocks: &[Versions], oldest: impl Fn(&Versions) -> u64) {
    for (at, (bytes, block)) in found.chunks_exact(BLOCK as usize).zip(blocks).enumerate() {
        let versions = oldest(block)..=block.newest;
        for version in distinct_words(bytes) {
            let is_possible = versions.contains(&version) || is_torn(version, versions.clone());
            assert!(is_possible, "block {at}: {version}, not {versions:?}");
        }
    }
}

async fn session(disk: Disk, weather: Weather, before: u64, model: Rc<Model>) {
    let file = options(weather).open("blocks").await.unwrap();
    file.set_len(TASKS * BLOCKS * BLOCK).await.unwrap();
    if file.sync_all().await.is_err() || fs::sync_dir("/").await.is_err() {
        return;
    }
    model.blocks.borrow_mut().resize((TASKS * BLOCKS) as usize, Versions::default());
    let start = |number| {
        ringfile::spawn(task(disk.clone(), file.clone(), weather, number, before, Rc::clone(&model)))
    };
    for ended in (0..TASKS).map(start).collect::<Vec<_>>() {
        ended.await.unwrap();
    }
}

/// Returns whether a word begins as one of these versions and ends as another.
fn is_torn(word: u64, versions: RangeInclusive<u64>) -> bool {
    (1..8).any(|bits| {
        let first = (1_u64 << (bits * 8)) - 1;
        let has = |mask: u64| versions.clone().any(|version| version & mask == word & mask);
        has(first) && has(!first)
    })
}

/// Checks what a cut has left, and returns what the next session begins with.
async fn check(blocks: Vec<Versions>) -> Vec<Versions> {
    let Ok(file) = File::open_blocking("blocks") else {
        assert!(blocks.is_empty());
        return blocks;
    };
    let found = file.read_at(Vec::with_capacity(1 << 20), 0).await.unwrap();
    if blocks.is_empty() {
        return blocks;
    }
    is_between(&found, &blocks, |block| block.durable);
    assert_eq!(found.len() as u64, blocks.len() as u64 * BLOCK);
    let left = found.chunks_exact(BLOCK as usize).map(|block| {
        let (oldest, newest) = (distinct_words(block).min().unwrap(), distinct_words(block).max().unwrap());
        Versions { newest, written: oldest, durable: oldest }
    });
    left.collect()
}

/// Cuts the power again and again, until there were enough operations.
fn run_seed(seed: u64, weather: Weather, faults: Faults) {
    let faults = faults.short_transfers(0.1).interrupted(0.1).stuck(0.01, Duration::from_millis(50));
    let strictness = if seed.is_multiple_of(2) { Strictness::Journal } else { Strictness::Posix };
    let mut simulation = Simulation::new(seed).strictness(strictness);
    let model = Rc::new(Model::default());
    let mut before = 0;
    while model.operations.get() < ENOUGH {
        let told = Rc::clone(&model);
        let simulated = simulation.faults(faults.clone()).power_cut_within(8000);
        let outcome = simulated.run(|disk| session(disk, weather, before, told));
        let checked = outcome.disk().run(|_| check(model.blocks.take()));
        simulation = checked.disk();
        *model.blocks.borrow_mut() = checked.into_result().unwrap();
        before += OPERATIONS;
    }
}

#[test]
fn each_read_gives_what_was_written_and_each_cut_leaves_what_was_synced() {
    for_each_seed(seeds(), |seed| {
        let weather = Weather { is_direct: seed % 3 == 0, is_dsync: false, has_errors: false };
        run_seed(seed, weather, Faults::none());
    });
}

#[test]
fn what_was_reported_holds_with_errors_before_and_after_it() {
    for_each_seed(seeds(), |seed| {
        let weather = Weather { is_direct: seed % 3 == 0, is_dsync: seed % 4 < 2, has_errors: true };
        run_seed(seed, weather, Faults::none().read_errors(0.02).write_errors(0.02).sync_errors(0.01));
    });
}
