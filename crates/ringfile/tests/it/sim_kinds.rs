//! A random program on a simulated disk with every fault that the library hides, against a plain model: each read gives
//! what was written last, and after a power cut each block has a version from the last sync on. Symbolic links and
//! permissions have versions too, beside those of blocks.

use std::cell::RefCell;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;
use std::time::Duration;

use crate::support::seeds::seeds;
use ringfile::fs::{self, AllocateMode};
use ringfile::sim::{Disk, Faults, Simulation, Strictness, for_each_seed};
use ringfile::{Batch, Buffer, File, OpenOptions, Pool, Queue};

const BLOCK: u64 = 512;
const BLOCKS: u64 = 64;
const TASKS: u64 = 4;
/// Operations of a task, with its syncs: a thousand for all.
const OPERATIONS: u64 = 250;

/// The versions of a block, from the one that is durable to the newest.
#[derive(Clone)]
struct Versions(Vec<u64>);

impl Default for Versions {
    fn default() -> Self {
        Self(vec![0])
    }
}

impl Versions {
    fn newest(&self) -> u64 {
        self.0[self.0.len() - 1]
    }

    /// Notes that a sync has covered the version that was the `count`th.
    fn synced(&mut self, count: usize) {
        self.0.drain(..count - 1);
    }
}

type Model = Rc<RefCell<Vec<Versions>>>;

/// Writes where the links point and what permissions files have; returns the newest version of each.
struct Names {
    disk: Disk,
    model: Model,
}

const LINKS: u64 = 4;
const MODES: u64 = 4;

impl Names {
    fn first() -> usize {
        (TASKS * BLOCKS) as usize
    }

    async fn change(&self, version: u64) {
        let number = self.disk.random_below(LINKS + MODES);
        let place = Self::first() + number as usize;
        // What is on its way may be there after a cut.
        if number < LINKS {
            self.model.borrow_mut()[place].0.push(version);
            fs::symlink(version.to_string(), "names/new").await.unwrap();
            fs::rename("names/new", format!("names/link{number}")).await.unwrap();
        } else {
            self.model.borrow_mut()[place].0.push(version & 0o777);
            let permissions = Permissions::from_mode((version & 0o777) as u32);
            // Through a folder's link.
            fs::set_permissions(format!("again/file{}", number - LINKS), permissions).await.unwrap();
        }
    }

    async fn sync(&self) {
        let counts: Vec<usize> =
            self.model.borrow()[Self::first()..].iter().map(|versions| versions.0.len()).collect();
        fs::sync_dir("again").await.unwrap();
        for file in 0..MODES {
            File::open_blocking(format!("names/file{file}")).unwrap().sync_all().await.unwrap();
        }
        for (versions, count) in self.model.borrow_mut()[Self::first()..].iter_mut().zip(counts) {
            versions.synced(count);
        }
    }

    /// Returns the versions that are there.
    async fn found() -> Vec<u64> {
        let mut found = Vec::new();
        for link in 0..LINKS {
            let to = fs::read_link(format!("again/link{link}")).await.unwrap();
            found.push(to.to_str().unwrap().parse().unwrap());
        }
        for file in 0..MODES {
            let mode = fs::metadata(format!("names/file{file}")).await.unwrap().mode;
            found.push(u64::from(mode & 0o7777));
        }
        found
    }

    async fn create() {
        fs::create_dir("names").await.unwrap();
        fs::symlink("./names/", "again").await.unwrap();
        for link in 0..LINKS {
            fs::symlink("0", format!("again/link{link}")).await.unwrap();
        }
        for file in 0..MODES {
            let mut options = options(false);
            let file = options.mode(0).open(format!("again/file{file}")).await.unwrap();
            file.sync_all().await.unwrap();
        }
        fs::sync_dir("names").await.unwrap();
    }

    async fn run(self) {
        for version in 1..=OPERATIONS {
            match self.disk.random_below(8) {
                0 => {
                    let newest: Vec<u64> =
                        self.model.borrow()[Self::first()..].iter().map(Versions::newest).collect();
                    assert_eq!(Self::found().await, newest);
                }
                1 => self.sync().await,
                _ => self.change(version).await,
            }
        }
    }
}

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
        let expected = || bytes((first..first + count).map(|block| model.borrow()[here(block)].newest()));
        let written = |version| {
            for block in first..first + count {
                model.borrow_mut()[here(block)].0.push(version);
            }
        };
        let len = (count * BLOCK) as usize;
        let mut buffer = pool.get(len).unwrap();
        // What is on its way may be there after a cut: from now on, it is the newest.
        match disk.random_below(11) {
            0 | 1 => {
                let before = expected();
                assert_eq!(file.read_at(buffer, at(first)).await.unwrap()[..], before);
            }
            2 => {
                let mut queue = Queue::new();
                queue.add(file.read_at(buffer, at(first)), 7);
                while queue.ready().await == 0 {}
                assert_eq!(queue.next().unwrap().take::<Buffer>().unwrap()[..], expected());
            }
            3 => {
                let counts: Vec<usize> =
                    model.borrow()[here(0)..here(BLOCKS)].iter().map(|versions| versions.0.len()).collect();
                file.sync_data().await.unwrap();
                for (versions, count) in model.borrow_mut()[here(0)..].iter_mut().zip(counts) {
                    versions.synced(count);
                }
            }
            4 => {
                buffer.extend_from_slice(&bytes_of(step).repeat(count as usize));
                written(step);
                file.write_durable_at(buffer, at(first)).await.unwrap();
                for versions in &mut model.borrow_mut()[here(first)..here(first + count)] {
                    versions.synced(versions.0.len());
                }
            }
            5 => {
                let half = (count / 2 * BLOCK) as usize;
                let mut rest = pool.get(len - half).unwrap();
                buffer.extend_from_slice(&bytes_of(step).repeat(half / BLOCK as usize));
                rest.extend_from_slice(&bytes_of(step).repeat((len - half) / BLOCK as usize));
                written(step);
                let mut batch = Batch::new();
                batch.add(file.write_at(buffer, at(first)));
                batch.add(file.write_at(rest, at(first) + half as u64));
                for done in batch.await {
                    done.result.unwrap();
                }
            }
            6 => {
                // From another place of the task, as far as that does not overlap.
                let from = disk.random_below(BLOCKS);
                let count = count.min(from.abs_diff(first)).min(BLOCKS - from);
                for block in 0..count {
                    let version = model.borrow()[here(from + block)].newest();
                    model.borrow_mut()[here(first + block)].0.push(version);
                }
                let copied = file.copy_range(at(from), &file, at(first), count * BLOCK).await.unwrap();
                assert_eq!(copied, count * BLOCK);
            }
            7 => {
                let modes = [AllocateMode::PunchHole, AllocateMode::ZeroRange];
                written(0);
                let mode = modes[disk.random_below(2) as usize];
                file.allocate(mode, at(first), len as u64).await.unwrap();
            }
            8 => {
                let modes = [AllocateMode::Extend, AllocateMode::KeepSize];
                let mode = modes[disk.random_below(2) as usize];
                file.allocate(mode, at(first), len as u64).await.unwrap();
            }
            _ => {
                buffer.extend_from_slice(&bytes_of(step).repeat(count as usize));
                written(step);
                file.write_at(buffer, at(first)).await.unwrap();
            }
        }
    }
}

async fn program(disk: Disk, is_direct: bool, model: Model) {
    let file = options(is_direct).open("blocks").await.unwrap();
    file.set_len(TASKS * BLOCKS * BLOCK).await.unwrap();
    file.sync_all().await.unwrap();
    Names::create().await;
    fs::sync_dir("/").await.unwrap();
    model.borrow_mut().resize(Names::first() + (LINKS + MODES) as usize, Versions::default());
    let pool = Pool::new(4 << 20);
    let start =
        |number| ringfile::spawn(task(disk.clone(), file.clone(), pool.clone(), number, Rc::clone(&model)));
    let names = Names { disk: disk.clone(), model: Rc::clone(&model) };
    let mut tasks: Vec<_> = (0..TASKS).map(start).collect();
    tasks.push(ringfile::spawn(names.run()));
    for ended in tasks {
        ended.await.unwrap();
    }
}

async fn check(model: Vec<Versions>) {
    let Ok(file) = File::open_blocking("blocks") else { return assert!(model.is_empty()) };
    let found = file.read_at(Vec::with_capacity(1 << 20), 0).await.unwrap();
    if model.is_empty() {
        return;
    }
    // A write may have ended inside a block when the power was cut, since the kernel had moved a part.
    for (at, word) in found.chunks_exact(8).enumerate() {
        let Versions(versions) = &model[at * 8 / BLOCK as usize];
        let version = u64::from_ne_bytes(word.try_into().unwrap());
        assert!(versions.contains(&version), "byte {}: {version}, not one of {versions:?}", at * 8);
    }
    assert_eq!(found.len() as u64, TASKS * BLOCKS * BLOCK);
    for (number, (version, Versions(versions))) in
        Names::found().await.iter().zip(&model[Names::first()..]).enumerate()
    {
        assert!(versions.contains(version), "name {number}: {version}, not one of {versions:?}");
    }
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
        let outcome = simulation.power_cut_within(12_000).run(|disk| program(disk, seed % 3 == 0, told));
        outcome.disk().run(|_| check(model.take())).into_result().unwrap();
    });
}
