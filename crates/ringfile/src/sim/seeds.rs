//! Running a test with many seeds, on all cores.

use std::any::Any;
use std::io::{IsTerminal, stderr};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The variable that names one seed.
const ONE: &str = "RINGFILE_SIM_SEED";

/// Runs a test with each seed, on all cores, until one fails, whose seed it prints on standard error. At the end it prints
/// how many seeds there were in a second, and meanwhile too if standard error is a terminal. With `RINGFILE_SIM_SEED` in
/// the environment, only that seed is run, on the calling thread.
///
/// # Panics
/// With the panic of a test that fails. If `RINGFILE_SIM_SEED` is no number.
///
/// ```
/// use ringfile::{OpenOptions, fs, sim};
/// sim::for_each_seed(0..200, |seed| {
///     sim::Simulation::new(seed).run(|_| async {
///         let file = fs::open("x", OpenOptions::new().read(true).write(true).create(true)).await.unwrap();
///         file.write_at(vec![1; 10_000], 0).await.unwrap();
///         assert_eq!(file.size().unwrap(), 10_000);
///     });
/// });
/// ```
pub fn for_each_seed(seeds: Range<u64>, test: impl Fn(u64) + Sync) {
    if let Some(seed) = std::env::var_os(ONE) {
        let seed = seed.to_str().and_then(|seed| seed.parse().ok());
        return test(seed.unwrap_or_else(|| panic!("{ONE} must be a number from 0 to {}", u64::MAX)));
    }
    let run = Run { next: AtomicU64::new(seeds.start), failed: Mutex::new(None), began: Instant::now() };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (run, seeds, test) = (&run, seeds.clone(), &test);
            scope.spawn(move || run.run(&seeds, test, thread == 0 && stderr().is_terminal()));
        }
    });
    let done = run.next.load(Ordering::Relaxed).min(seeds.end).saturating_sub(seeds.start);
    eprintln!("{done} seeds, {:.0} a second", run.rate(done));
    let failed = run.lock().take();
    if let Some((seed, payload)) = failed {
        eprintln!("seed {seed} fails: {ONE}={seed} runs it alone");
        resume_unwind(payload);
    }
}

struct Run {
    next: AtomicU64,
    failed: Mutex<Option<(u64, Box<dyn Any + Send>)>>,
    began: Instant,
}

impl Run {
    fn lock(&self) -> MutexGuard<'_, Option<(u64, Box<dyn Any + Send>)>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rate(&self, done: u64) -> f64 {
        done as f64 / self.began.elapsed().as_secs_f64().max(1e-9)
    }

    /// Runs a thread.
    fn run(&self, seeds: &Range<u64>, test: &impl Fn(u64), tells: bool) {
        let mut told = Instant::now();
        while self.lock().is_none() {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
                self.lock().get_or_insert((seed, payload));
            }
            if tells && told.elapsed() >= Duration::from_millis(200) {
                told = Instant::now();
                let done = seed - seeds.start;
                eprint!("\r{done} of {} seeds, {:.0} a second ", seeds.end - seeds.start, self.rate(done));
            }
        }
    }
}
