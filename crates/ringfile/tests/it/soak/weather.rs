//! Events outside the program: signals, a file that shrinks and grows, a full disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfile::{File, OpenOptions, block_on};

use super::actor::Shared;
use super::model::{PAGE, assert_of_any_generation, page};
use crate::support::Random;
use crate::support::forms::routes;

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn note(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Counts the signals so far.
pub fn signals() -> u64 {
    SIGNALS.load(Ordering::Relaxed)
}

/// Interrupts some thread every millisecond, possibly one of the library; the handler makes no system call restart.
pub fn storm(shared: &Shared, mut random: Random) {
    // SAFETY: the record is valid and zero where not set; the handler only adds to an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    while !shared.over.load(Ordering::Relaxed) {
        let threads = std::fs::read_dir("/proc/self/task").map(|all| {
            all.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse::<i32>().ok())
                .collect::<Vec<_>>()
        });
        for _ in 0..16 {
            let Ok(threads) = threads.as_ref() else { break };
            let thread = threads[random.below(threads.len() as u64) as usize];
            // SAFETY: sends a signal that has a handler to a thread of this process; one that has ended is an error.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

const LONGEST: usize = 64;
const SEED: u64 = 77 << 40;

/// A file that one thread truncates and extends while others read it in every way.
pub fn shrinking_file(folder: &Path, shared: &Arc<Shared>, mut random: Random) {
    let path = folder.join("shrinking");
    let file = OpenOptions::new().read(true).write(true).create(true).open_blocking(&path).unwrap();
    std::thread::scope(|scope| {
        for route in routes() {
            let mut options = OpenOptions::new();
            let file = options.read(true).route(route).direct(random.below(2) == 0).buffered_fallback(true);
            let file = file.open_blocking(&path).unwrap();
            scope.spawn(move || read_while_it_shrinks(&file, shared));
        }
        let mut generation = 1_u16;
        while !shared.over.load(Ordering::Relaxed) {
            let pages = random.below(LONGEST as u64);
            generation = generation % 200 + 1;
            block_on(async {
                file.set_len(pages * PAGE as u64 + random.below(500) * 8).await.unwrap();
                for _ in 0..random.below(20) {
                    let offset = random.below(LONGEST as u64) * PAGE as u64;
                    file.write_at(page(SEED, offset, generation), offset).await.unwrap();
                }
            });
        }
    });
}

fn read_while_it_shrinks(file: &File, shared: &Shared) {
    while !shared.over.load(Ordering::Relaxed) {
        let whole = futures::executor::block_on(file.read_at(shared.pool.get(LONGEST * PAGE).unwrap(), 0));
        let whole = whole.unwrap();
        assert_of_any_generation(SEED, 0, &whole, "the file that shrinks");
        let mut batch = ringfile::Batch::new();
        for page in 0..LONGEST {
            batch.add(file.read_at(Vec::with_capacity(PAGE), (page * PAGE) as u64));
        }
        for (page, done) in batch.run().into_iter().enumerate() {
            let buffer = done.buffer.unwrap();
            assert_eq!(done.result.unwrap(), buffer.len());
            assert_of_any_generation(SEED, (page * PAGE) as u64, &buffer, "the file that shrinks");
        }
        shared.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Fills a small file system, on every route, and checks that exactly the data reported as written is there.
pub fn full_disk(folder: &Path, shared: &Arc<Shared>, mut random: Random) {
    const SEED: u64 = 78 << 40;
    let mut round = 0;
    while !shared.over.load(Ordering::Relaxed) {
        for route in routes() {
            let path = folder.join(format!("full-{route:?}"));
            let mut options = OpenOptions::new();
            let file =
                options.read(true).write(true).create(true).truncate(true).route(route).open_blocking(&path);
            let file = file.unwrap();
            round = round % 60_000 + 1;
            let write = async {
                let mut at = 0;
                loop {
                    let pages = 1 + random.below(64);
                    let content: Vec<u8> =
                        (0..pages).flat_map(|i| page(SEED, at + i * PAGE as u64, round)).collect();
                    match file.write_at(content, at).await {
                        Ok(written) => at += written.len() as u64,
                        Err(failed) => {
                            assert_eq!(failed.errno(), Some(libc::ENOSPC), "{failed}");
                            return at + failed.done() as u64;
                        }
                    }
                }
            };
            let in_loop = round % 2 == 0;
            let end = if in_loop { block_on(write) } else { futures::executor::block_on(write) };
            let there = std::fs::read(&path).unwrap();
            assert!(there.len() as u64 >= end, "{} bytes of {end}", there.len());
            for (i, bytes) in there[..end as usize / PAGE * PAGE].chunks_exact(PAGE).enumerate() {
                assert!(
                    bytes == page(SEED, (i * PAGE) as u64, round),
                    "page {i} on the full disk ({route:?})"
                );
            }
            std::fs::remove_file(&path).unwrap();
            shared.steps.fetch_add(1, Ordering::Relaxed);
        }
    }
}
