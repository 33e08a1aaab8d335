//! Threads that come and go, hold pages of several caches, send them to each other, and close the files meanwhile.
//!
//! `RINGFILE_TEST_STRESS_SECONDS` makes it longer.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ringfile::{OpenOptions, block_on};
use ringfile_cache::{Cache, CachedFile, Page};

use crate::support::in_child;

const PAGE: usize = 4096;
const PAGES: u64 = 24;
/// More than have numbers of their own at times.
const THREADS: u64 = 70;

/// A page's bytes all have its number; the last page has 100 bytes.
fn check(number: u64, bytes: &[u8]) {
    assert!(bytes.iter().all(|&byte| byte == number as u8), "page {number}: {:?}", &bytes[..8]);
    assert_eq!(bytes.len(), if number == PAGES - 1 { 100 } else { PAGE }, "page {number}");
}

enum Kept {
    Page(u64, Page),
    Bytes(u64, Bytes),
}

impl Drop for Kept {
    fn drop(&mut self) {
        match self {
            Self::Page(number, page) => check(*number, page),
            Self::Bytes(number, bytes) => check(*number, bytes),
        }
    }
}

struct World {
    path: std::path::PathBuf,
    caches: Vec<Cache>,
    files: Vec<Mutex<CachedFile>>,
    sent: Mutex<Vec<Kept>>,
    end: Instant,
    started: AtomicU64,
    done: AtomicU64,
}

impl World {
    fn open(&self, number: usize) -> CachedFile {
        let mut options = OpenOptions::new();
        options.read(true).write(true).direct(true).buffered_fallback(true);
        self.caches[number % 3]
            .open(options.open_blocking(&self.path).expect("opened"), PAGE)
            .expect("opened")
    }

    fn live(&self) {
        let mut seed = self.started.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |most: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 20) % most
        };
        let mut kept: Vec<Kept> = Vec::new();
        for _ in 0..below(3000) {
            self.done.fetch_add(1, Ordering::Relaxed);
            let (which, number) = (below(6) as usize, below(PAGES));
            let file = self.files[which].lock().expect("no panic").clone();
            match below(200) {
                0 => {
                    let new = self.open(which);
                    drop(std::mem::replace(&mut *self.files[which].lock().expect("no panic"), new));
                }
                1 => self.caches[which % 3].set_budget((2 + below(16) as usize) * PAGE).expect("set"),
                2..6 => file.invalidate(number..number + 4),
                6..8 if number < PAGES - 1 => {
                    kept.clear();
                    self.sent.lock().expect("no panic").clear();
                    let _ = block_on(file.write(number, &[number as u8; PAGE]));
                }
                8..30 => kept.clear(),
                30..60 => file.prefetch(&[number]),
                60..90 => self.sent.lock().expect("no panic").extend(kept.pop()),
                90..120 => {
                    let got = self.sent.lock().expect("no panic").pop();
                    drop(got);
                }
                120..150 => {
                    // Waits only while it has none, and others drop theirs.
                    kept.clear();
                    self.sent.lock().expect("no panic").drain(..).for_each(drop);
                    if let Ok(page) = block_on(file.read(number)) {
                        check(number, &page);
                    }
                }
                _ => {
                    let Some(page) = file.get(number) else { continue };
                    check(number, &page);
                    kept.push(match below(4) {
                        0 => Kept::Bytes(number, page.into()),
                        1 => Kept::Page(number, page.clone()),
                        _ => Kept::Page(number, page),
                    });
                    if kept.len() > 9 {
                        kept.swap_remove(below(9) as usize);
                    }
                }
            }
        }
    }
}

#[test]
fn threads_come_and_go_with_pages_of_each_other() -> io::Result<()> {
    // With so many threads at once, no thread of another test would have holds.
    if !in_child("threads_come_and_go_with_pages_of_each_other") {
        return Ok(());
    }
    let seconds =
        std::env::var("RINGFILE_TEST_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    let mut content: Vec<u8> = (0..PAGES).flat_map(|page| [page as u8; PAGE]).collect();
    content.truncate((PAGES as usize - 1) * PAGE + 100);
    std::fs::write(&path, content)?;
    let caches = (0..3).map(|_| Cache::new(8 * PAGE)).collect::<io::Result<Vec<_>>>()?;
    let mut world = World {
        path,
        caches,
        files: Vec::new(),
        sent: Mutex::default(),
        end: Instant::now() + Duration::from_secs(seconds),
        started: AtomicU64::new(0),
        done: AtomicU64::new(0),
    };
    world.files = (0..6).map(|number| Mutex::new(world.open(number))).collect();
    let world = &world;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while Instant::now() < world.end {
                    std::thread::scope(|scope| scope.spawn(|| world.live()).join()).expect("no panic");
                }
                world.sent.lock().expect("no panic").clear();
            });
        }
        scope.spawn(|| {
            // Nobody waits for ever.
            let mut before = 0;
            while Instant::now() < world.end {
                std::thread::sleep(
                    Duration::from_secs(10).min(world.end.saturating_duration_since(Instant::now())),
                );
                let now = world.done.load(Ordering::Relaxed);
                assert!(now > before || Instant::now() > world.end, "stands still");
                before = now;
            }
        });
    });
    eprintln!(
        "{} steps of {} threads",
        world.done.load(Ordering::Relaxed),
        world.started.load(Ordering::Relaxed)
    );
    for cache in &world.caches {
        let metrics = cache.metrics();
        assert!(metrics.pinned == 0 && metrics.bytes <= cache.budget(), "{metrics:?}");
    }
    Ok(())
}
