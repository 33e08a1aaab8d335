//! A cache over a file of a simulated disk, with faults and any order of completion. `RINGFILE_SIM_SEEDS` sets how many
//! seeds are tried.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use crate::support::seeds::seeds;
use crate::support::{Known, PAGE, bytes, in_child};
use ringfile::sim::{Disk, Faults, Simulation, for_each_seed, sleep};
use ringfile::{OpenOptions, fs, spawn};
use ringfile_cache::{Cache, CachedFile, Page, WhenPinned};

const PAGES: u64 = 40;

async fn open() -> CachedFile {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(true);
    let file = options.open("file").await.unwrap();
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

/// Cuts a file while its pages are read, and drops the call at any time.
async fn dropped_truncates() {
    let pages = open().await;
    let disk = Disk::current().unwrap();
    for _ in 0..8 {
        for page in 0..PAGES {
            pages.file().write_at(bytes(page, 0), page * PAGE as u64).await.unwrap();
        }
        pages.invalidate(0..PAGES);
        let (reader, len) = (pages.clone(), disk.random_below(PAGES) * PAGE as u64);
        let reads = spawn(async move {
            for _ in 0..30 {
                let disk = Disk::current().unwrap();
                drop(reader.read(disk.random_below(PAGES)).await.unwrap());
                sleep(Duration::from_micros(disk.random_below(100))).await;
            }
        });
        let mut truncate = Box::pin(pages.truncate(len));
        let _ = poll_fn(|context| Poll::Ready(truncate.as_mut().poll(context))).await;
        sleep(Duration::from_micros(disk.random_below(1000))).await;
        drop(truncate);
        reads.await.unwrap();
        // All that was begun has ended then.
        sleep(Duration::from_secs(10)).await;
        let size = fs::metadata_of(pages.file()).await.unwrap().size;
        assert_eq!(size, len);
        let behind = (len / PAGE as u64..PAGES).find(|&page| pages.get(page).is_some());
        assert_eq!(behind, None, "of a file of {} pages", len / PAGE as u64);
    }
}

#[test]
fn f70_a_truncate_that_is_dropped_at_any_time_leaves_no_page_behind_the_end() {
    for_each_seed(seeds(), |seed| {
        Simulation::new(seed).run(|_| dropped_truncates());
    });
}

type Call = Pin<Box<dyn Future<Output = io::Result<Vec<Page>>>>>;

/// Calls for several pages, of which up to two are never polled again. Together these keep eight of twelve pages at most.
async fn abandoned_calls() {
    let pages = open().await;
    for page in 0..PAGES {
        pages.file().write_at(bytes(page, 0), page * PAGE as u64).await.unwrap();
    }
    let abandoned: Rc<RefCell<Vec<Call>>> = Rc::default();
    let call = |pages: CachedFile, abandoned: Rc<RefCell<Vec<Call>>>| async move {
        let disk = Disk::current().unwrap();
        for _ in 0..20 {
            let numbers: Vec<u64> = (0..=disk.random_below(4)).map(|_| disk.random_below(PAGES)).collect();
            let (reader, asked) = (pages.clone(), numbers.clone());
            let mut call: Call = Box::pin(async move { reader.read_many(&asked).await });
            if disk.random_below(8) == 0 && numbers.len() <= 4 && abandoned.borrow().len() < 2 {
                let polled = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
                if polled.is_pending() && abandoned.borrow().len() < 2 {
                    abandoned.borrow_mut().push(call);
                }
                continue;
            }
            let found = call.await.unwrap();
            sleep(Duration::from_micros(disk.random_below(300))).await;
            for (page, found) in numbers.into_iter().zip(found) {
                assert_eq!(*found, bytes(page, 0));
            }
        }
    };
    let tasks: Vec<_> = (0..4).map(|_| spawn(call(pages.clone(), Rc::clone(&abandoned)))).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[test]
fn f55_calls_that_are_never_polled_again_block_no_other() {
    // Caches tell each other of free memory, across threads, and simulations do not wait for other threads.
    if !in_child("f55_calls_that_are_never_polled_again_block_no_other") {
        return;
    }
    for seed in seeds() {
        Simulation::new(seed).run(|_| abandoned_calls());
    }
}
