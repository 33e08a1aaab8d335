//! A stress test of everything that crosses threads: futures that start on one thread, are polled on another without a
//! wake-up, and are dropped on a third; runtimes dropped half way; memory that is split, frozen, thawed and lent
//! meanwhile; batches with merged reads, barriers and errors; queues, of one thread and of all; forks, signals, and a file that is truncated.
//!
//! The soak (`tests/soak`) gives each actor its own part of the files; here any thread may use any page, and the claims
//! on pages ([`model`]) tell what each read has to return. A page is not used while a dropped write may still reach it,
//! and used again as soon as the library has dropped that write's memory. Dropped memory is kept for a while, to see
//! that nobody writes to it.
//!
//! It runs in rounds, each of which starts and ends all its threads; after each, there are as many descriptors, threads
//! and bytes of memory as after the first. `RINGFILE_TEST_STRESS_SECONDS` says how long (default: 5); `RINGFILE_TEST_SEED`
//! repeats a run as far as threads allow.

mod job;
mod memory;
mod model;
mod plain;
mod plan;
mod tracked;
mod wakers;
mod weather;

use crate::support::handles::Handles as _;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringfile::runtime::TaskRun;
use ringfile::{OpenOptions, Pool, Queue, Route, Runtime, WhenFull, metrics};

use crate::support;
use crate::support::forms::routes;
use crate::support::{Folder, Random, in_child_for, open_descriptors, patience, wait_for};
use job::Job;
use model::Place;
use tracked::Graves;

const NAME: &str = "data_that_crosses_threads_stays_intact";
const ROUND: Duration = Duration::from_secs(5);
/// Returns the time after which a thread that was told to end counts as hanging.
fn end() -> Duration {
    4 * patience()
}
/// The size of the small pool: not enough for all threads.
const SMALL: usize = 512 << 10;
/// Jobs that any thread may take.
const MOST_JOBS: usize = 100;
/// The bytes that the heap may have grown by since the first rounds.
const SLACK: usize = 16 << 20;

/// The state that all threads share.
pub(crate) struct World {
    pub(crate) places: Vec<Arc<Place>>,
    /// A pool that is large enough for all.
    pub(crate) pool: Pool,
    /// A pool that is too small for all, so they wait.
    pub(crate) small: Pool,
    /// Pools of several kinds, for programs over memory alone.
    pub(crate) pools: Vec<Pool>,
    pub(crate) things: memory::Things,
    pub(crate) bag: Bag,
    pub(crate) shared: plain::Shared,
    pub(crate) graves: Arc<Graves>,
    pub(crate) counts: Counts,
    pub(crate) folder: Folder,
    over: AtomicBool,
    _memory: Option<Folder>,
}

/// Counts of what was done.
#[derive(Default, Debug)]
pub(crate) struct Counts {
    pub(crate) steps: AtomicU64,
    pub(crate) polls: AtomicU64,
    pub(crate) results: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) memory: AtomicU64,
    pub(crate) forks: AtomicU64,
    pub(crate) runtimes: AtomicU64,
}

/// Jobs that any thread may take.
#[derive(Default)]
pub(crate) struct Bag(Mutex<VecDeque<Job>>);

impl Bag {
    /// Adds a job. If there are too many, waits for the oldest one.
    pub(crate) fn put(&self, job: Job) {
        let oldest = {
            let mut jobs = self.0.lock().unwrap();
            jobs.push_back(job);
            if jobs.len() > MOST_JOBS { jobs.pop_front() } else { None }
        };
        // Also on a thread that runs tasks: any executor will do, since nothing that it waits for is a task of this
        // thread.
        if let Some(job) = oldest {
            drop_or_wait(job);
        }
    }

    pub(crate) fn take(&self, random: &mut Random) -> Option<Job> {
        let mut jobs = self.0.lock().unwrap();
        let at = random.below(jobs.len().max(1) as u64) as usize;
        jobs.swap_remove_back(at)
    }
}

fn drop_or_wait(job: Job) {
    if !job.may_be_dropped {
        LATER.lock().unwrap().push(job);
    }
}

/// Takes out the jobs that must be waited for at the end of the round.
static LATER: Mutex<Vec<Job>> = Mutex::new(Vec::new());

impl World {
    fn new(random: &mut Random) -> Arc<Self> {
        let folder = Folder::new();
        weather::make_file(&folder);
        let memory = Path::new("/dev/shm").is_dir().then(|| Folder::inside(Path::new("/dev/shm")));
        let pool = |capacity| Pool::builder().capacity(capacity);
        let align = 512 << random.below(6);
        Arc::new(Self {
            places: places(&folder, memory.as_ref()),
            pool: pool(1 << 30).build().unwrap(),
            small: pool(SMALL).when_full(WhenFull::Wait).build().unwrap(),
            pools: vec![
                pool(1 << 20).build().unwrap(),
                pool(8 << 20).alignment(align).registered(false).build().unwrap(),
                pool(256 << 10).when_full(WhenFull::Outside { limit: 1 << 20 }).build().unwrap(),
            ],
            things: memory::Things::default(),
            bag: Bag::default(),
            shared: plain::Shared::default(),
            graves: Arc::default(),
            counts: Counts::default(),
            folder,
            over: AtomicBool::new(false),
            _memory: memory,
        })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(crate) fn place(&self, random: &mut Random) -> &Arc<Place> {
        &self.places[random.below(self.places.len() as u64) as usize]
    }
}

/// Opens the files: on a disk, direct and buffered, and in memory, on every route.
fn places(disk: &Folder, memory: Option<&Folder>) -> Vec<Arc<Place>> {
    let mut places = Vec::new();
    let mut add = |folder: &Folder, kind: &str, direct: bool, route: Route| {
        let seed = (places.len() as u64 + 1) << 40;
        let path = folder.path().join(format!("{kind}-{route:?}"));
        std::fs::write(&path, Place::content(seed)).unwrap();
        let mut options = OpenOptions::new();
        options.write(true).direct(direct).buffered_fallback(true).route(route);
        let write_only = options.open_blocking(&path).unwrap();
        let file = options.read(true).open_blocking(&path).unwrap();
        let name = format!("{} (direct {})", path.display(), file.is_direct());
        places.push(Place::new(file, write_only, name, seed));
    };
    for route in routes() {
        add(disk, "buffered", false, route);
        add(disk, "direct", true, route);
        if let Some(memory) = memory {
            add(memory, "memory", false, route);
        }
    }
    places
}

/// A program in an executor, which runs until the round is over.
async fn program(world: Arc<World>, mut random: Random) {
    while !world.is_over() {
        match random.below(10) {
            0..5 => {
                if let Some(job) = job::any(&world, &mut random) {
                    job.await;
                }
            }
            5 | 6 => {
                let Some(mut job) = job::any(&world, &mut random) else { continue };
                if !job.poll_alone(&world, &mut random) {
                    world.bag.put(job);
                }
            }
            7 | 8 => {
                if let Some(job) = world.bag.take(&mut random) {
                    job.await;
                }
            }
            _ => plain::poll_by_hand(&world, &mut random),
        }
        world.counts.steps.fetch_add(1, Ordering::Relaxed);
        support::yield_now().await;
    }
}

/// Drops runtimes, or shuts them down, while programs are half way.
fn drop_runtimes(world: &Arc<World>, mut random: Random) {
    while !world.is_over() {
        let entries = [2, 8, 256][random.below(3) as usize];
        let idle = (random.below(4) == 0).then(|| Duration::from_millis(1 + random.below(5)));
        let all = [TaskRun::Deferred, TaskRun::Cooperative, TaskRun::Interrupt];
        let task_run = all[random.below(3) as usize];
        let builder = Runtime::builder().threads(1 + random.below(2) as usize).entries(entries).sqpoll(idle);
        let builder = builder.task_run(task_run);
        let Ok(runtime) = builder.build() else { continue };
        let tasks = (0..4).map(|_| {
            let random = Random::from_seed(random.below(1 << 40));
            runtime.spawn(program(Arc::clone(world), random))
        });
        let tasks: Vec<_> = tasks.collect();
        std::thread::sleep(Duration::from_millis(random.below(80)));
        drop(runtime);
        for task in tasks {
            match task.join() {
                Ok(()) | Err(ringfile::runtime::JoinError::Cancelled) => {}
                Err(error) => panic!("{error}"),
            }
        }
        world.counts.runtimes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Drops other executors while tasks are half way.
fn drop_tokio(world: &Arc<World>, mut random: Random) {
    while !world.is_over() {
        let mut tokio = match random.below(2) {
            0 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        };
        let tokio = tokio.worker_threads(2).enable_all().build().unwrap();
        #[cfg(feature = "tokio")]
        if random.below(4) > 0 {
            let _inside = tokio.enter();
            // Refused without a ring.
            let _ = ringfile::attach_to_tokio();
        }
        let how_long = Duration::from_millis(random.below(80));
        tokio.block_on(async {
            let tasks = (0..3).map(|_| {
                let random = Random::from_seed(random.below(1 << 40));
                tokio::spawn(program(Arc::clone(world), random))
            });
            let tasks: Vec<_> = tasks.collect();
            tokio::time::sleep(how_long).await;
            for task in tasks {
                if task.is_finished() {
                    task.await.unwrap();
                }
            }
        });
        drop(tokio);
        world.counts.runtimes.fetch_add(1, Ordering::Relaxed);
    }
}

/// The calling thread's own loop, with tasks.
fn own_loop(world: &Arc<World>, mut random: Random) {
    while !world.is_over() {
        let how_long = Duration::from_millis(20 + random.below(200));
        let began = Instant::now();
        ringfile::block_on(async {
            let tasks = (0..3).map(|_| {
                let random = Random::from_seed(random.below(1 << 40));
                ringfile::spawn(program(Arc::clone(world), random))
            });
            let tasks: Vec<_> = tasks.collect();
            while began.elapsed() < how_long && !world.is_over() {
                support::yield_now().await;
            }
            for task in tasks {
                // Awaits those that have ended; the others are dropped with the loop.
                if task.is_finished() {
                    task.await.unwrap();
                }
            }
        });
    }
}

/// Runs everything at once for a while; then nothing of it may be left.
fn round(random: &mut Random, how_long: Duration) {
    let world = World::new(random);
    let mut seed = || Random::from_seed(random.below(1 << 40));
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut start = |run: fn(&Arc<World>, Random), random: Random| {
            let world = &world;
            threads.push(scope.spawn(move || run(world, random)));
        };
        for _ in 0..2 {
            start(|world, random| memory::run(world, random), seed());
            start(plain::run, seed());
            start(plain::only_poll, seed());
        }
        start(|world, random| weather::interrupt(world, random), seed());
        start(weather::cut, seed());
        start(weather::fork, seed());
        start(drop_runtimes, seed());
        start(drop_tokio, seed());
        start(own_loop, seed());
        start(|world, random| futures::executor::block_on(program(Arc::clone(world), random)), seed());
        let began = Instant::now();
        // A thread that fails ends earlier; the others are told to end.
        while began.elapsed() < how_long && threads.iter().all(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        world.over.store(true, Ordering::Relaxed);
        let told = Instant::now();
        while threads.iter().any(|thread| !thread.is_finished()) {
            empty(&world, &mut seed());
            if told.elapsed() > end() {
                eprintln!("the stress hangs: {:?}, {:?}", world.counts, metrics());
                std::process::abort();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    finish(&world, &mut seed());
}

/// Ends the remaining jobs: others may be waiting for their memory.
fn empty(world: &Arc<World>, random: &mut Random) {
    while let Some(mut job) = LATER.lock().unwrap().pop().or_else(|| world.bag.take(random)) {
        if !job.poll_alone(world, random) {
            return world.bag.put(job);
        }
    }
}

fn finish(world: &Arc<World>, random: &mut Random) {
    let left = std::mem::take(&mut *LATER.lock().unwrap());
    left.into_iter().for_each(futures::executor::block_on);
    while let Some(job) = world.bag.take(random) {
        futures::executor::block_on(job);
    }
    world.things.clear();
    let pools = || world.pools.iter().chain([&world.pool, &world.small]);
    wait_for("memory to come back to the pools", || {
        pools().all(|pool| pool.metrics().in_use == 0 && pool.metrics().outside_bytes == 0)
    });
    let whole = Pool::get(&world.small, SMALL);
    assert_eq!(whole.unwrap().capacity(), SMALL, "all of the small pool is there");
    world.graves.assert_all();
    // Read through a descriptor that the library does not have.
    for place in &world.places {
        place.assert_all(&std::fs::read(place.file.path().unwrap()).unwrap());
    }
    println!("{:?}", world.counts);
}

fn duration() -> Duration {
    let given = std::env::var("RINGFILE_TEST_STRESS_SECONDS").ok();
    Duration::from_secs(
        given.map_or(5, |seconds| seconds.parse().expect("RINGFILE_TEST_STRESS_SECONDS is a number")),
    )
}

/// Returns the bytes of the heap that are in use. AddressSanitizer's allocator does not tell.
fn heap() -> usize {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call only returns figures of the allocator.
    let info = unsafe { libc::mallinfo2() };
    #[cfg(target_env = "gnu")]
    return info.uordblks + info.hblkhd;
    #[cfg(not(target_env = "gnu"))]
    return 0;
}

/// Returns the threads other than workers, which end by themselves some time after they were used.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() != "ringfile-worker").count()
}

/// Returns a thread that used a queue once, and then does nothing until it is told to end.
fn idle_thread() -> std::sync::mpsc::Sender<()> {
    let (end, ended) = std::sync::mpsc::channel();
    let (used, is_used) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let folder = Folder::new();
        let path = folder.file("idle", b"content");
        let file = ringfile::File::open_blocking(path).unwrap();
        let mut queue = Queue::new();
        queue.add(file.read_at(Vec::with_capacity(7), 0), 1);
        queue.end();
        used.send(()).unwrap();
        let _ = ended.recv();
    });
    is_used.recv().unwrap();
    end
}

#[test]
fn data_that_crosses_threads_stays_intact() {
    let duration = duration();
    // In its own process, so that descriptors, threads and memory are those of this test.
    if !in_child_for(NAME, 3 * duration + 4 * end()) {
        return;
    }
    let mut random = Random::new();
    let _idle = idle_thread();
    // A second round, so that everything that the library keeps for reuse has been allocated before the count.
    round(&mut random, Duration::from_secs(1));
    round(&mut random, Duration::from_secs(1));
    let (descriptors, others, at_first) = (open_descriptors(), threads(), heap());
    let began = Instant::now();
    let mut rounds = 0;
    // Longer on a machine that is too slow to have done some of everything by then.
    let is_enough = || {
        let so_far = began.elapsed();
        so_far >= duration && (has_done_some_of_everything() || so_far >= duration + end())
    };
    while rounds == 0 || !is_enough() {
        round(&mut random, ROUND.min(duration));
        rounds += 1;
        wait_for("descriptors to be closed", || open_descriptors() <= descriptors);
        wait_for("threads to end", || threads() <= others);
        println!("round {rounds}: {} bytes, at first {at_first}", heap());
        assert!(heap() < at_first + SLACK, "memory grows");
    }
    let counts = metrics();
    println!("{rounds} rounds, {} signals, {counts:?}", weather::signals());
    assert_eq!(counts.stray, 0, "completions that belong to no operation");
    assert!(has_done_some_of_everything());
}

fn has_done_some_of_everything() -> bool {
    let counts = metrics();
    counts.ops > 1000 && counts.worker_ops > 100 && weather::signals() > 100
}
