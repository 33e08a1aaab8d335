//! Events outside the program: signals, a file that is truncated and punched, forks.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringfile::fs::AllocateMode;
use ringfile::{Batch, File, OpenOptions, Route, block_on};

use super::World;
use super::model::{PAGE, Place, assert_written, page};
use crate::support::forms::routes;
use crate::support::{Folder, Random, patience};

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn note(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Counts the signals so far.
pub fn signals() -> u64 {
    SIGNALS.load(Ordering::Relaxed)
}

/// Interrupts some thread, possibly one of the library; the handler makes no system call restart.
pub fn interrupt(world: &World, mut random: Random) {
    // SAFETY: the record is valid and zero where not set; the handler only adds to an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
    }
    while !world.is_over() {
        let Ok(threads) = std::fs::read_dir("/proc/self/task") else { continue };
        let threads: Vec<i32> =
            threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok()).collect();
        for _ in 0..20 {
            let thread = threads[random.below(threads.len() as u64) as usize];
            // SAFETY: sends a signal that has a handler to a thread of this process; one that has ended is an error.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR2) };
            std::thread::sleep(Duration::from_micros(500 + random.below(1000)));
        }
    }
}

/// The number of pages that stay; those after them come and go.
const FIXED: usize = 16;
const LONGEST: usize = 80;
const SEED: u64 = 91 << 40;
const CUT: &str = "cut";

/// Makes the file that is truncated.
pub fn make_file(folder: &Folder) {
    let fixed: Vec<u8> = (0..FIXED).flat_map(|index| page(SEED, (index * PAGE) as u64, 1)).collect();
    folder.file(CUT, &fixed);
}

/// Truncates a file, punches holes into it and rewrites it behind its first pages, while others read it.
pub fn cut(world: &Arc<World>, mut random: Random) {
    let path = world.folder.path().join(CUT);
    let file = OpenOptions::new().read(true).write(true).open_blocking(&path).unwrap();
    std::thread::scope(|scope| {
        for (index, route) in routes().enumerate() {
            let mut options = OpenOptions::new();
            options.read(true).route(route).direct(index % 2 == 0).buffered_fallback(true);
            let (file, random) =
                (options.open_blocking(&path).unwrap(), Random::from_seed(random.below(1 << 40)));
            let what = format!("a read of the file that is cut, {route:?}, direct {}", index % 2 == 0);
            scope.spawn(move || read_what_is_cut(world, &file, &what, random));
        }
        let mut version = 1;
        while !world.is_over() {
            version = version % 60_000 + 1;
            let at = (FIXED + random.below((LONGEST - FIXED) as u64) as usize) * PAGE;
            block_on(async {
                match random.below(4) {
                    0 => file.set_len(at as u64 + 8 * random.below(512)).await.unwrap(),
                    1 => {
                        let len = (1 + random.below(8)) * PAGE as u64;
                        let _ = file.allocate(AllocateMode::PunchHole, at as u64, len).await;
                    }
                    _ => {
                        let content: Vec<u8> = page(SEED, at as u64, version).collect();
                        file.write_at(content, at as u64).await.unwrap();
                    }
                }
            });
        }
    });
}

/// Checks bytes read from `offset`: the fixed part is complete, and the rest is of some version, or zeros.
fn assert_cut(offset: u64, bytes: &[u8], wanted: usize, what: &str) {
    let fixed = ((FIXED * PAGE) as u64).saturating_sub(offset).min(wanted as u64) as usize;
    assert!(bytes.len() >= fixed, "{what}: {} bytes of {fixed} that are always there", bytes.len());
    let whole = bytes.len() / 8 * 8;
    assert_written(SEED, offset, &bytes[..whole], what);
    let zeros = bytes[..fixed / 8 * 8].chunks_exact(8).any(|word| word == [0; 8]);
    assert!(!zeros, "{what}: zeros where nobody wrote any");
}

fn read_what_is_cut(world: &Arc<World>, file: &File, what: &str, mut random: Random) {
    let mut any = || {
        let offset = 8 * random.below((LONGEST * PAGE / 8) as u64);
        (offset, 8 * (1 + random.below(3 * PAGE as u64 / 2)) as usize)
    };
    while !world.is_over() {
        let (offset, len) = any();
        let read = file.read_at(world.pool.get(len).unwrap(), offset);
        let read = if len % 16 == 0 { block_on(read) } else { futures::executor::block_on(read) };
        assert_cut(offset, &read.unwrap(), len, what);
        let (mut batch, mut asked) = (Batch::new().merge_reads(PAGE), Vec::new());
        for _ in 0..20 {
            let (offset, len) = any();
            batch.add(file.read_at(world.pool.get(len).unwrap(), offset));
            asked.push((offset, len));
        }
        for (done, (offset, len)) in batch.run().into_iter().zip(asked) {
            let buffer = done.buffer.unwrap();
            assert_eq!(done.result.unwrap(), buffer.len());
            assert_cut(offset, &buffer, len, what);
        }
        world.counts.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Forks now and then, beside everything that the other threads do. The child uses memory and makes plain calls.
pub fn fork(world: &Arc<World>, mut random: Random) {
    let place = world.places.iter().find(|place| place.name.contains("Inline")).unwrap_or(&world.places[0]);
    while !world.is_over() {
        std::thread::sleep(Duration::from_millis(5 + random.below(30)));
        let things: Vec<_> = (0..4).filter_map(|_| world.things.take(&mut random)).collect();
        let ways = random.below(1 << 20);
        // SAFETY: the child calls what a forked child may call of the library, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
        if child == 0 {
            let wrong = std::panic::catch_unwind(AssertUnwindSafe(|| {
                let whole = things.iter().all(|thing| thing.is_whole());
                drop(things);
                if whole { in_child(world, place, ways) } else { Some("a thing") }
            }));
            let text = wrong.unwrap_or(Some("no panic"));
            // SAFETY: writes a text to standard error without a lock, and ends the process.
            unsafe {
                let text = text.inspect(|text| _ = libc::write(2, text.as_ptr().cast(), text.len()));
                libc::_exit(i32::from(text.is_some()))
            };
        }
        let status = wait_for_child(child);
        assert_eq!(status, 0, "the forked child has printed what is wrong");
        things.iter().for_each(|thing| thing.assert());
        things.into_iter().for_each(|thing| world.things.put(thing, &mut random));
        world.counts.forks.fetch_add(1, Ordering::Relaxed);
    }
}

fn wait_for_child(child: i32) -> i32 {
    let began = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: waits for a child of this process, and writes to a local variable.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
            return status;
        }
        if began.elapsed() > patience() {
            // SAFETY: it is a child of this process that was not waited for.
            unsafe { libc::kill(child, libc::SIGABRT) };
            panic!("the forked child {child} hangs");
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Returns what is wrong in the child. Nothing may hang.
fn in_child(world: &Arc<World>, place: &Arc<Place>, ways: u64) -> Option<&'static str> {
    let mut random = Random::from_seed(ways);
    let pool = ringfile::Pool::new(1 << 20);
    let Ok(mut own) = pool.get(5000) else { return Some("memory of its own") };
    own.resize(5000, 3);
    if pool.thaw(own.freeze()).is_err() {
        return Some("its own memory, thawed");
    }
    // Pools that other threads had locked.
    for pool in world.pools.iter().chain([&world.pool]) {
        let _ = pool.get(1 + random.below(100_000) as usize);
        let _ = pool.metrics();
    }
    let _ = (ringfile::metrics(), ringfile::thread_metrics());
    // A new file, and one of the parent's: an answer or an error.
    let path = world.folder.path().join(CUT);
    let Ok(own) = OpenOptions::new().read(true).route(Route::Inline).open_blocking(path) else {
        return Some("a file of its own");
    };
    for file in [&own, &place.file] {
        let mut batch = Batch::new();
        batch.add(file.read_at(Vec::with_capacity(64), 0));
        if batch.run().iter().any(|done| done.result.as_ref().is_ok_and(|&len| len != 64)) {
            return Some("all of a read in a batch");
        }
        let read = file.read_at(Vec::with_capacity(64), 0);
        let read = if random.below(2) == 0 { block_on(read) } else { futures::executor::block_on(read) };
        if read.is_ok_and(|read| read.len() != 64) {
            return Some("all of a read");
        }
    }
    None
}
