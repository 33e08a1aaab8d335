//! A soak: every call from many threads, on every route and in several executors, with futures dropped half way, reads
//! cancelled, signals, a file that shrinks, a full disk and a pool that runs dry. Every byte is checked, and at the end
//! nothing is left over.
//!
//! It runs in rounds, each of which starts and ends all its threads and executors. The first round warms up; each later
//! one must leave exactly what the first left. `RINGFILE_TEST_SOAK_SECONDS` says how long it runs (default: 10);
//! `RINGFILE_TEST_SEED` repeats a run as far as threads allow.

mod actor;
mod model;
mod place;
mod plain;
mod weather;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringfile::buf::PoolBuilder;
use ringfile::{Pool, Runtime, WhenFull, metrics};

use crate::support;
use crate::support::mounts::Mount;
use crate::support::{Random, in_child_for, open_descriptors, patience, skip, wait_for};
use actor::{Actor, Shared};
use place::Places;

const NAME: &str = "every_call_from_many_threads_on_every_route";
/// Actors in each way of running futures, and on threads without an executor.
const ACTORS: usize = 3;
/// Two executors of ringfile, two of tokio, another executor, and plain threads.
const WAYS: usize = 6;
const ROUND: Duration = Duration::from_secs(5);
/// Returns the time after which a thread that was told to end counts as hanging.
fn end() -> Duration {
    3 * patience()
}

fn duration() -> Duration {
    let given = std::env::var("RINGFILE_TEST_SOAK_SECONDS").ok();
    Duration::from_secs(
        given.map_or(10, |seconds| seconds.parse().expect("RINGFILE_TEST_SOAK_SECONDS is a number")),
    )
}

#[test]
fn every_call_from_many_threads_on_every_route() {
    let duration = duration();
    // In its own process, so that descriptors and threads are those of this test.
    if !in_child_for(NAME, 3 * duration + 4 * end()) {
        return;
    }
    let mut random = Random::new();
    // For open files, and for paths.
    let workers = 2 * std::thread::available_parallelism().map_or(1, usize::from).saturating_mul(4).max(16);
    round(&mut random, Duration::from_secs(2));
    let (mut rounds, descriptors, threads) = (0, open_descriptors(), threads());
    let began = Instant::now();
    // Longer on a machine that is too slow to have done some of everything by then.
    let is_enough = || {
        let so_far = began.elapsed();
        so_far >= duration && (has_done_some_of_everything() || so_far >= duration + end())
    };
    while rounds == 0 || !is_enough() {
        round(&mut random, ROUND.min(duration));
        rounds += 1;
        wait_for("descriptors to be closed", || open_descriptors() <= descriptors);
        let now = self::threads();
        assert_eq!(now.get("ringfile-io-0"), threads.get("ringfile-io-0"), "I/O threads: {now:?}");
        assert!(now.get("ringfile-worker").is_none_or(|&count| count <= workers), "workers: {now:?}");
        let others = |all: &BTreeMap<String, usize>| -> usize {
            all.iter().filter(|(name, _)| *name != "ringfile-worker").map(|(_, count)| count).sum()
        };
        wait_for("threads to end", || others(&self::threads()) <= others(&threads));
    }
    let counts = metrics();
    println!("{rounds} rounds, {} signals, {counts:?}", weather::signals());
    assert_eq!(counts.stray, 0, "completions that belong to no operation");
    assert!(has_done_some_of_everything());
}

fn has_done_some_of_everything() -> bool {
    let counts = metrics();
    let of_rings = counts.enters > 100 && counts.inline_ops > 100 && counts.cancelled > 0;
    let of_all = counts.ops > 1000 && counts.worker_ops > 100 && weather::signals() > 100;
    of_all && (support::is_without_ring() || of_rings)
}

/// Returns the threads of this process, by name.
fn threads() -> BTreeMap<String, usize> {
    let mut threads = BTreeMap::new();
    for thread in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        // A thread that has just ended has no name.
        if let Ok(name) = std::fs::read_to_string(thread.path().join("comm")) {
            *threads.entry(name.trim().to_owned()).or_default() += 1;
        }
    }
    threads
}

fn pool(capacity: usize) -> PoolBuilder {
    Pool::builder().capacity(capacity)
}

/// Runs everything at once for a while; then nothing of it may be left.
fn round(random: &mut Random, how_long: Duration) {
    let places = Places::new(WAYS * ACTORS);
    let shared = Arc::new(Shared {
        pool: pool(512 << 20).build().unwrap(),
        dry: pool(128 << 10).when_full(WhenFull::Error).build().unwrap(),
        over: AtomicBool::new(false),
        steps: AtomicU64::new(0),
    });
    let disk = Mount::tmpfs(NAME, 4 << 20);
    if disk.is_none() {
        skip(NAME, "the part with a full disk");
    }
    let mut seed = || Random::from_seed(random.below(u64::MAX >> 33) + 1);
    let mut next = 0;
    let mut actor = || {
        next += 1;
        Actor { regions: places.regions(next - 1), random: seed(), shared: Arc::clone(&shared) }
    };
    let actors: Vec<Vec<Actor>> = (0..WAYS).map(|_| (0..ACTORS).map(|_| actor()).collect()).collect();
    let (storm, shrinking, full) = (seed(), seed(), seed());
    std::thread::scope(|scope| {
        let shared = &shared;
        let mut threads = vec![
            scope.spawn(|| weather::storm(shared, storm)),
            scope.spawn(|| weather::shrinking_file(places.disk.path(), shared, shrinking)),
        ];
        if let Some(disk) = &disk {
            threads.push(scope.spawn(|| weather::full_disk(disk.path(), shared, full)));
        }
        for (way, actors) in actors.into_iter().enumerate() {
            threads.extend(start(scope, way, actors));
        }
        let began = Instant::now();
        // Longer on a machine that is too slow to use up the small pool by then.
        let is_enough = || {
            let (dry, so_far) = (shared.dry.metrics(), began.elapsed());
            so_far >= how_long && (dry.waits + dry.failures > 0 || so_far >= how_long + patience())
        };
        // A thread that fails ends earlier; the others are told to end.
        while !is_enough() && threads.iter().all(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        shared.over.store(true, Ordering::Relaxed);
        let told = Instant::now();
        while threads.iter().any(|thread| !thread.is_finished()) {
            if told.elapsed() > end() {
                eprintln!("the soak hangs: {:?}", self::threads());
                std::process::abort();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for thread in threads {
            if let Err(panic) = thread.join() {
                shared.over.store(true, Ordering::Relaxed);
                std::panic::resume_unwind(panic);
            }
        }
    });
    let dry = shared.dry.metrics();
    println!(
        "{} steps; the small pool: {} waits, {} failures",
        shared.steps.load(Ordering::Relaxed),
        dry.waits,
        dry.failures
    );
    assert!(dry.waits + dry.failures > 0, "the small pool never ran dry");
    wait_for("the pools' memory", || shared.pool.metrics().in_use == 0 && shared.dry.metrics().in_use == 0);
}

type Scoped<'scope> = std::thread::ScopedJoinHandle<'scope, ()>;

/// Starts actors in one way of running them; returns the threads that end with them.
fn start<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    way: usize,
    actors: Vec<Actor>,
) -> Vec<Scoped<'scope>> {
    let one = |run: Box<dyn FnOnce() + Send>| vec![scope.spawn(run)];
    match way {
        // The runtime's threads.
        0 => one(Box::new(move || {
            let runtime = Runtime::builder().threads(2).build().unwrap();
            let tasks: Vec<_> = actors.into_iter().map(|actor| runtime.spawn(actor.run())).collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            runtime.shutdown();
        })),
        // The calling thread.
        1 => one(Box::new(move || {
            ringfile::block_on(async {
                let tasks: Vec<_> = actors.into_iter().map(|actor| ringfile::spawn(actor.run())).collect();
                for task in tasks {
                    task.await.unwrap();
                }
            });
        })),
        2 | 3 => one(Box::new(move || {
            let mut tokio = match way {
                2 => tokio::runtime::Builder::new_current_thread(),
                _ => tokio::runtime::Builder::new_multi_thread(),
            };
            let tokio = tokio.worker_threads(2).enable_io().build().unwrap();
            #[cfg(feature = "tokio")]
            if way == 3 {
                let _inside = tokio.enter();
                // Refused without a ring.
                let _ = ringfile::attach_to_tokio();
            }
            tokio.block_on(async {
                let tasks: Vec<_> = actors.into_iter().map(|actor| tokio::spawn(actor.run())).collect();
                for task in tasks {
                    task.await.unwrap();
                }
            });
        })),
        4 => actors
            .into_iter()
            .map(|actor| scope.spawn(move || futures::executor::block_on(actor.run())))
            .collect(),
        _ => actors.into_iter().map(|actor| scope.spawn(move || actor.run_plain())).collect(),
    }
}
