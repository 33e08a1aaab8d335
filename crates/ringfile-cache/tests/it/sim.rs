//! A cache over a file of a simulated disk, with faults and any order of completion. `RINGFILE_SIM_SEEDS` sets how many
//! seeds are tried.

use std::rc::Rc;
use std::time::Duration;

use crate::support::seeds::seeds;
use crate::support::{Known, PAGE, bytes};
use ringfile::sim::{Disk, Faults, Simulation, for_each_seed, sleep};
use ringfile::{OpenOptions, fs, spawn};
use ringfile_cache::{Cache, CachedFile, WhenPinned};

const PAGES: u64 = 40;

async fn open() -> CachedFile {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(true);
    let file = fs::open("file", &options).await.unwrap();
    let cache = Cache::builder(12 * PAGE).when_pinned(WhenPinned::Wait).build().unwrap();
    cache.open(file, PAGE).unwrap()
}

/// One of several tasks: it writes the pages of its own, and reads all.
async fn work(pages: CachedFile, known: Rc<Vec<Known>>, me: u64) {
    let disk = Disk::current().unwrap();
    for _ in 0..60 {
        let page = disk.random_below(PAGES);
        let facts = &known[page as usize];
        match disk.random_below(10) {
            0 | 1 if page % 4 == me => {
                let (version, data) = facts.begin(page);
                let written = pages.write(page, &data).await;
                facts.end(version, written.is_ok());
            }
            2 => pages.prefetch(&[page, (page + 1) % PAGES]),
            3 => pages.invalidate(page..page + 2),
            4 => sleep(Duration::from_micros(disk.random_below(500))).await,
            _ => {
                let at_least = facts.at_least();
                let was_torn = facts.is_torn();
                // A read that fails leaves nothing behind.
                let Ok(found) = pages.read(page).await else { continue };
                let before = found.to_vec();
                facts.check(page, at_least, &found, was_torn || facts.is_torn());
                sleep(Duration::from_micros(disk.random_below(200))).await;
                assert_eq!(*found, before, "a page changed while it was used");
            }
        }
    }
}

async fn program() {
    let pages = open().await;
    let known: Rc<Vec<Known>> = Rc::new((0..PAGES).map(|_| Known::default()).collect());
    for page in 0..PAGES {
        while pages.file().write_at(bytes(page, 0), page * PAGE as u64).await.is_err() {}
    }
    let tasks: Vec<_> = (0..4).map(|me| spawn(work(pages.clone(), Rc::clone(&known), me))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(pages.metrics().pinned, 0);
    assert!(pages.metrics().bytes <= 12 * PAGE);
}

#[test]
fn pages_are_never_stale_or_mixed_whatever_the_disk_does() {
    for_each_seed(seeds(), |seed| {
        Simulation::new(seed).faults(Faults::everything()).run(|_| program());
    });
}
