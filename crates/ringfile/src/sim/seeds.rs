//! Running a test with many seeds, on all cores.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, stderr};
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::script::{self, Plan, Script};
use crate::lock::Lock;

/// The variable that names one seed.
const ONE: &str = "RINGFILE_SIM_SEED";

/// Runs a test with each seed, on all cores, until one fails, whose seed it prints on standard error. That one is repeated,
/// without a part of its faults each time, up to a thousand times or a minute: the shortest list of faults with which it still
/// fails at the same line is printed too, for [`replay`]. At the end it prints how many seeds there were in a second, and
/// meanwhile too if standard error is a terminal. With `RINGFILE_SIM_SEED` in the environment, only that seed is run, on the
/// calling thread.
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
    let run = Run { next: AtomicU64::new(seeds.start), failed: Lock::default(), began: Instant::now() };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (run, seeds, test) = (&run, seeds.clone(), &test);
            scope.spawn(move || run.run(&seeds, test, thread == 0 && stderr().is_terminal()));
        }
    });
    let failed = run.failed.lock().take();
    // A test that is repeated may have called this.
    if !is_shrinking() {
        let done = run.next.load(Ordering::Relaxed).min(seeds.end).saturating_sub(seeds.start);
        eprintln!("{done} seeds, {:.0} a second", run.rate(done));
        if let Some((seed, _)) = failed {
            eprintln!("seed {seed} fails: {ONE}={seed} runs it alone");
            shrink(seed, &test);
        }
    }
    if let Some((_, payload)) = failed {
        resume_unwind(payload);
    }
}

/// Runs a test with a seed, in which only these faults happen: those of a line that [`for_each_seed`] has printed for a test
/// that fails. Places that the run does not reach are ignored. Faults that their places say, such as bad sectors and a full
/// disk, happen too. A power cut that is not in the list comes at the latest event at which it could, or when the program ends.
///
/// # Panics
/// With the panic of the test. If the line is none that was printed.
///
/// ```
/// use ringfile::{OpenOptions, fs, sim};
/// let content = std::cell::RefCell::new(Vec::new());
/// sim::replay(7, "1:write1 1:cut30", |seed| {
///     let faults = sim::Faults::none().short_transfers(1.0);
///     sim::Simulation::new(seed).faults(faults).power_cuts(true).run(|_| async {
///         let file = fs::open("x", OpenOptions::new().read(true).write(true).create(true)).await.unwrap();
///         file.write_at(vec![1; 100], 0).await.unwrap(); // it is continued
///         *content.borrow_mut() = file.read_at(Vec::with_capacity(100), 0).await.unwrap();
///     });
/// });
/// assert_eq!(content.into_inner(), [1; 100]);
/// ```
pub fn replay(seed: u64, faults: &str, test: impl FnOnce(u64)) {
    let Some(only) = Script::parse(faults) else { panic!("no list of faults: {faults:?}") };
    let before = script::set(Some(Plan::new(Some(only))));
    let result = catch_unwind(AssertUnwindSafe(|| test(seed)));
    script::set(before);
    result.unwrap_or_else(|payload| resume_unwind(payload));
}

/// Repeating a test that fails takes at most this many runs, and this long.
const MOST_RUNS: usize = 1000;
const LONGEST: Duration = Duration::from_secs(60);

static HOOK: Once = Once::new();

thread_local! {
    static SHRINKS: Cell<bool> = const { Cell::new(false) };
    /// Where this thread has panicked while it shrank.
    static PANICKED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Returns whether the calling thread repeats a test that fails, and should print nothing.
pub(super) fn is_shrinking() -> bool {
    SHRINKS.get()
}

/// Finds few faults with which a test still fails, and prints them.
fn shrink(seed: u64, test: &impl Fn(u64)) {
    // It stays: other threads may shrink at the same time, and a hook that is taken away may be that of another one.
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| match SHRINKS.get() {
            true => PANICKED.set(info.location().map_or_else(String::new, ToString::to_string)),
            false => usual(info),
        }));
    });
    SHRINKS.set(true);
    let mut shrinker = Shrinker { seed, test, runs: 0, began: Instant::now() };
    let found = shrinker.shrink();
    SHRINKS.set(false);
    match found {
        None => {
            eprintln!("the test does not fail when it is repeated, so something else than the seed decides")
        }
        Some((Plan { runs: 0, .. }, _)) => {
            eprintln!("no simulation ran on the thread of the test, so its faults are not known")
        }
        Some((Plan { happened, cut_at_end, .. }, all)) => {
            let runs = shrinker.runs;
            let script = Script(happened.iter().map(|(place, _)| *place).collect());
            match happened.len() {
                0 => eprintln!("it fails without any fault"),
                enough => eprintln!("{enough} of {all} faults are enough (found in {runs} runs):"),
            }
            for (place, what) in happened {
                eprintln!("    {place}: {what}");
            }
            for run in cut_at_end {
                eprintln!("    the power is cut at the end of run {run}");
            }
            eprintln!("ringfile::sim::replay({seed}, \"{script}\", test) runs it with these alone");
        }
    }
}

struct Shrinker<'a, T> {
    seed: u64,
    test: &'a T,
    runs: usize,
    began: Instant,
}

impl<T: Fn(u64)> Shrinker<'_, T> {
    /// Runs the test. Returns where it has panicked, if it has, and what went wrong before.
    fn run(&mut self, only: Option<Script>) -> Option<(String, Plan)> {
        self.runs += 1;
        let before = script::set(Some(Plan::new(only)));
        let result = catch_unwind(AssertUnwindSafe(|| (self.test)(self.seed)));
        let plan = script::set(before).unwrap_or_default();
        result.is_err().then(|| (PANICKED.take(), plan))
    }

    fn may_go_on(&self) -> bool {
        self.runs < MOST_RUNS && self.began.elapsed() < LONGEST
    }

    /// Leaves out parts of the faults, first large ones, and goes on with what is left where the test still fails at the same
    /// place. Returns the last run that has failed, and how many faults there were at first; `None` if it does not
    /// fail.
    fn shrink(&mut self) -> Option<(Plan, usize)> {
        let (failure, mut last) = self.run(None)?;
        let all = last.happened.len();
        let mut size = all;
        while size > 0 && self.may_go_on() {
            let mut at = 0;
            while at < last.happened.len() && self.may_go_on() {
                let left_out = at..(at + size).min(last.happened.len());
                let rest = last.happened.iter().enumerate().filter(|(index, _)| !left_out.contains(index));
                let only = Script(rest.map(|(_, (place, _))| *place).collect());
                match self.run(Some(only)) {
                    // What has not happened any more is left out too.
                    Some((same, fewer)) if same == failure => last = fewer,
                    _ => at += size,
                }
            }
            size = size.min(last.happened.len() + 1) / 2;
        }
        Some((last, all))
    }
}

struct Run {
    next: AtomicU64,
    failed: Lock<Option<(u64, Box<dyn Any + Send>)>>,
    began: Instant,
}

impl Run {
    fn rate(&self, done: u64) -> f64 {
        done as f64 / self.began.elapsed().as_secs_f64().max(1e-9)
    }

    /// Runs a thread.
    fn run(&self, seeds: &Range<u64>, test: &impl Fn(u64), tells: bool) {
        let mut told = Instant::now();
        while self.failed.lock().is_none() {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
                self.failed.lock().get_or_insert((seed, payload));
            }
            if tells && told.elapsed() >= Duration::from_millis(200) {
                told = Instant::now();
                let done = seed - seeds.start;
                eprint!("\r{done} of {} seeds, {:.0} a second ", seeds.end - seeds.start, self.rate(done));
            }
        }
    }
}
