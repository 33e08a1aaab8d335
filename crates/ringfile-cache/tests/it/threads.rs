//! Threads that read, keep, write, prefetch and invalidate the same pages: no stale byte after a write has returned, no
//! mix of two pages or of two versions of one, no page that changes while it is used, and never more memory than the
//! budget.
//!
//! `RINGFILE_TEST_STRESS_SECONDS` makes it longer, `RINGFILE_TEST_SEED` repeats the choices (not the threads' order).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::threads::Thread;
use crate::support::{Known, PAGE, Random, bytes, skip};
use bytes::Bytes;
use ringfile::{OpenOptions, block_on};
use ringfile_cache::{Cache, CachedFile, Page};

const PAGES: u64 = 200;
const THREADS: u64 = 4;

struct World {
    cache: Cache,
    pages: CachedFile,
    known: Vec<Known>,
    is_over: AtomicBool,
    budget: AtomicU64,
    done: AtomicU64,
}

/// Checks what is left of a page that a thread keeps.
enum Kept {
    Page(u64, u64, Page),
    Bytes(u64, u64, Bytes),
}

impl World {
    fn read(&self, random: &mut Random, page: u64) -> Page {
        let known = &self.known[page as usize];
        let at_least = known.at_least();
        let found = match self.pages.get(page) {
            Some(found) => found,
            None if random.chance(4) => block_on(self.pages.read_many(&[page])).unwrap().remove(0),
            None => block_on(self.pages.read(page)).unwrap(),
        };
        known.check(page, at_least, &found, false);
        found
    }

    fn run(&self, me: u64, mut random: Random) {
        let mut kept = VecDeque::new();
        while !self.is_over.load(Ordering::Relaxed) {
            // Few pages often, the rest seldom.
            let page = if random.chance(2) { random.below(20) } else { random.below(PAGES) };
            match random.below(20) {
                0..3 => {
                    let page = page / THREADS * THREADS + me;
                    let known = &self.known[page as usize];
                    let (version, data) = known.begin(page);
                    block_on(self.pages.write(page, &data)).unwrap();
                    known.end(version, true);
                }
                3 => self.pages.prefetch(&[page, page + 1, page + 2]),
                4 => self.pages.invalidate(page..page + 3),
                5 => {
                    let at_least: Vec<u64> = (page..PAGES.min(page + 3))
                        .map(|page| self.known[page as usize].at_least())
                        .collect();
                    let range = block_on(self.pages.read_range(page * PAGE as u64, 3 * PAGE)).unwrap();
                    for ((page, at_least), found) in (page..).zip(at_least).zip(range.chunks(PAGE)) {
                        self.known[page as usize].check(page, at_least, found, false);
                    }
                }
                6 if me == 0 => {
                    let budget = (40 + random.below(80)) * PAGE as u64;
                    self.budget.fetch_max(budget, Ordering::SeqCst);
                    self.cache.set_budget(budget as usize).unwrap();
                }
                7..10 => {
                    let found = self.read(&mut random, page);
                    let version = u64::from_le_bytes(found[..8].try_into().unwrap()) & ((1 << 40) - 1);
                    kept.push_back(match random.chance(2) {
                        true => Kept::Page(page, version, found.clone()),
                        false => Kept::Bytes(page, version, found.into()),
                    });
                }
                _ => drop(self.read(&mut random, page)),
            }
            // Fewer by all threads than the smallest budget.
            if kept.len() > 8 {
                match kept.pop_front().unwrap() {
                    Kept::Page(page, version, found) => assert_eq!(*found, bytes(page, version)),
                    Kept::Bytes(page, version, found) => assert_eq!(found, bytes(page, version)),
                }
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn threads_see_whole_pages_that_are_never_stale() {
    let seconds = std::env::var("RINGFILE_TEST_STRESS_SECONDS").map_or(3, |seconds| seconds.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, (0..PAGES).flat_map(|page| bytes(page, 0)).collect::<Vec<u8>>()).unwrap();
    let cache = Cache::new(60 * PAGE).unwrap();
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).direct(true).buffered_fallback(true).open_blocking(&path).unwrap();
    let world = World {
        pages: cache.open(file, PAGE).unwrap(),
        cache,
        known: (0..PAGES).map(|_| Known::default()).collect(),
        is_over: AtomicBool::new(false),
        budget: AtomicU64::new(60 * PAGE as u64),
        done: AtomicU64::new(0),
    };
    let mut random = Random::new();
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            let (world, random) = (&world, Random::from_seed(random.below(u64::MAX) + 1));
            scope.spawn(move || {
                // The others end if this one panics.
                struct Over<'a>(&'a World);
                impl Drop for Over<'_> {
                    fn drop(&mut self) {
                        self.0.is_over.store(true, Ordering::Relaxed);
                    }
                }
                let over = Over(world);
                over.0.run(me, random);
            });
        }
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end && !world.is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            let bytes = world.cache.metrics().bytes as u64;
            assert!(bytes <= world.budget.load(Ordering::SeqCst), "{bytes} bytes");
        }
        world.is_over.store(true, Ordering::Relaxed);
    });
    let metrics = world.cache.metrics();
    println!("{} calls, {metrics:?}", world.done.load(Ordering::Relaxed));
    assert_eq!(metrics.pinned, 0);
    assert!(metrics.hits > 0 && metrics.evictions > 0, "{metrics:?}");
    world.pages.invalidate(0..PAGES);
    let on_disk = std::fs::read(&path).unwrap();
    for (page, known) in world.known.iter().enumerate() {
        let (page, at_least) = (page as u64, known.at_least());
        known.check(page, at_least, &on_disk[page as usize * PAGE..][..PAGE], false);
        known.check(page, at_least, &block_on(world.pages.read(page)).unwrap(), false);
    }
    assert!(world.cache.metrics().bytes <= world.cache.budget());
}

#[test]
fn f63_the_thread_that_watches_the_pressure_blocks_all_signals_but_faults() {
    match Cache::builder(1 << 20).pressure(true).build() {
        Ok(_cache) => _ = Thread::wait_for("ringfile-pressu", Thread::blocks_all_but_faults),
        Err(error) => {
            skip("f63_the_thread_that_watches_the_pressure_blocks_all_signals_but_faults", error);
        }
    }
}
