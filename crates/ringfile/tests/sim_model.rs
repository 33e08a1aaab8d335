//! A random program on a simulated disk with every fault that the library hides, against a plain model: each read gives
//! what was written last, and after a power cut each block has a version from the last sync on.

#![allow(clippy::unwrap_used, reason = "a test panics on anything unexpected")]

#[path = "support/seeds.rs"]
mod seeds;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ringfile::sim::{Disk, Faults, Simulation, Strictness, for_each_seed};
use ringfile::{Batch, File, OpenOptions, Pool, Queue, fs};
use seeds::seeds;

const BLOCK: u64 = 512;
const BLOCKS: u64 = 64;
const TASKS: u64 = 4;
/// Operations of a task, with its syncs: a thousand for all.
const OPERATIONS: u64 = 250;

/// The versions of a task's blocks: the last written, and the last that a sync has covered.
#[derive(Clone, Copy, Default)]
struct Versions {
    newest: u64,
    durable: u64,
}

type Model = Rc<RefCell<Vec<Versions>>>;

fn bytes(versions: impl IntoIterator<Item = u64>) -> Vec<u8> {
    versions.into_iter().flat_map(|version| version.to_ne_bytes().repeat(BLOCK as usize / 8)).collect()
}

fn bytes_of(version: u64) -> Vec<u8> {
    bytes([version])
}

fn options(is_direct: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(is_direct);
    options
}

async fn task(disk: Disk, file: File, pool: Pool, number: u64, model: Model) {
    let at = |block: u64| (number * BLOCKS + block) * BLOCK;
    let here = |block: u64| (number * BLOCKS + block) as usize;
    for step in 1..=OPERATIONS {
        let first = disk.random_below(BLOCKS);
        let count = 1 + disk.random_below((BLOCKS - first).min(24));
        let expected = || bytes((first..first + count).map(|block| model.borrow()[here(block)].newest));
        let written = |durable: bool| {
            for block in first..first + count {
                let versions = &mut model.borrow_mut()[here(block)];
                (versions.newest, versions.durable) = (step, if durable { step } else { versions.durable });
            }
        };
        let len = (count * BLOCK) as usize;
        let mut buffer = pool.get(len).unwrap();
        // What is on its way may be there after a cut: from now on, it is the newest.
        match disk.random_below(8) {
            0 | 1 => {
                let before = expected();
                assert_eq!(file.read_at(buffer, at(first)).await.unwrap()[..], before);
            }
            2 => {
                let mut queue = Queue::new();
                queue.add(file.read_at(buffer, at(first)), 7);
                while queue.ready().await == 0 {}
                assert_eq!(queue.take().unwrap().1.into_buffer().unwrap()[..], expected());
            }
            3 => {
                let all: Vec<Versions> = model.borrow()[here(0)..here(BLOCKS)].to_vec();
                file.sync_data().await.unwrap();
                for (block, versions) in all.iter().enumerate() {
                    model.borrow_mut()[here(block as u64)].durable = versions.newest;
                }
            }
            4 => {
                buffer.extend_from_slice(&bytes_of(step).repeat(count as usize));
                written(false);
                file.write_durable_at(buffer, at(first)).await.unwrap();
                written(true);
            }
            5 => {
                let half = (count / 2 * BLOCK) as usize;
                let mut rest = pool.get(len - half).unwrap();
                buffer.extend_from_slice(&bytes_of(step).repeat(half / BLOCK as usize));
                rest.extend_from_slice(&bytes_of(step).repeat((len - half) / BLOCK as usize));
                written(false);
                let mut batch = Batch::new();
                batch.add(file.write_at(buffer, at(first)));
                batch.add(file.write_at(rest, at(first) + half as u64));
                for done in batch.await {
                    done.result.unwrap();
                }
            }
            _ => {
                buffer.extend_from_slice(&bytes_of(step).repeat(count as usize));
                written(false);
                file.write_at(buffer, at(first)).await.unwrap();
            }
        }
    }
}

async fn program(disk: Disk, is_direct: bool, model: Model) {
    let file = fs::open("blocks", &options(is_direct)).await.unwrap();
    file.set_len(TASKS * BLOCKS * BLOCK).await.unwrap();
    file.sync_all().await.unwrap();
    fs::sync_dir("/").await.unwrap();
    model.borrow_mut().resize((TASKS * BLOCKS) as usize, Versions::default());
    let pool = Pool::new(4 << 20);
    let start =
        |number| ringfile::spawn(task(disk.clone(), file.clone(), pool.clone(), number, Rc::clone(&model)));
    for ended in (0..TASKS).map(start).collect::<Vec<_>>() {
        ended.await.unwrap();
    }
}

async fn check(model: Vec<Versions>) {
    let Ok(file) = File::open("blocks") else { return assert!(model.is_empty()) };
    let found = file.read_at(Vec::with_capacity(1 << 20), 0).await.unwrap();
    if model.is_empty() {
        return;
    }
    // A write may have ended inside a block when the power was cut, since the kernel had moved a part.
    for (at, word) in found.chunks_exact(8).enumerate() {
        let Versions { newest, durable } = model[at * 8 / BLOCK as usize];
        let version = u64::from_ne_bytes(word.try_into().unwrap());
        assert!(
            (durable..=newest).contains(&version),
            "byte {}: {version}, not {durable} to {newest}",
            at * 8
        );
    }
    assert_eq!(found.len() as u64, model.len() as u64 * BLOCK);
}

#[test]
fn each_read_gives_what_was_written_and_each_cut_leaves_what_was_synced() {
    for_each_seed(seeds(), |seed| {
        let harmless =
            Faults::none().short_transfers(0.1).interrupted(0.1).stuck(0.01, Duration::from_millis(50));
        let strictness = if seed % 2 == 0 { Strictness::Journal } else { Strictness::Posix };
        let simulation = Simulation::new(seed).faults(harmless).strictness(strictness);
        let model = Model::default();
        let told = Rc::clone(&model);
        // Half of the cuts come late, after the thousand operations.
        let outcome = simulation.power_cut_within(8000).run(|disk| program(disk, seed % 3 == 0, told));
        outcome.disk().run(|_| check(model.take())).into_result().unwrap();
    });
}
