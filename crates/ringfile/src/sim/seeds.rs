//! Running a test with many seeds, on all cores.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, stderr};
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::file_state::Strictness;
use super::script::{self, FaultPlan, Moment, Script};
use super::trace::{End, Past};
use crate::lock::Lock;

/// The variable that names one seed.
const ONE: &str = "RINGFILE_SIM_SEED";

/// Runs a test with each seed, on all cores, until one fails, whose seed it prints on standard error. That one is repeated,
/// without a part of its faults each time, up to a thousand times or a minute: the shortest list of faults with which it still
/// fails at the same line is printed too, for [`replay`], and the last operations before each power cut, with what that has
/// left of them. At the end it prints how many seeds there were in a second, and meanwhile too if standard error is a
/// terminal; and if no disk had [`Strictness::Posix`], that. With `RINGFILE_SIM_SEED` in the environment, only that seed is
/// run, on the calling thread.
///
/// # Panics
/// With the panic of a test that fails. If `RINGFILE_SIM_SEED` is no number.
///
/// ```
/// use ringfile::{OpenOptions, fs, sim};
/// sim::for_each_seed(0..200, |seed| {
///     sim::Simulation::new(seed).run(|_| async {
///         let file = OpenOptions::new().read(true).write(true).create(true).open("x").await.unwrap();
///         file.write_at(vec![1; 10_000], 0).await.unwrap();
///         assert_eq!(file.size().unwrap(), 10_000);
///     });
/// });
/// ```
pub fn for_each_seed(seeds: Range<u64>, test: impl Fn(u64) + Sync) {
    if let Some(seed) = std::env::var_os(ONE) {
        let seed = seed.to_str().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| panic!("{ONE} must be a number from 0 to {}", u64::MAX));
        return run_alone(seed, None, test);
    }
    let run = SeedRun {
        next: AtomicU64::new(seeds.start),
        failed: Lock::default(),
        cuts: Lock::default(),
        began: Instant::now(),
    };
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
        let hint = match *run.cuts.lock() {
            Cuts { journal: true, posix: false } => {
                ", all disks with Strictness::Journal; Strictness::Posix promises less"
            }
            _ => "",
        };
        eprintln!("{done} seeds, {:.0} a second{hint}", run.rate(done));
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
///         let file = OpenOptions::new().read(true).write(true).create(true).open("x").await.unwrap();
///         file.write_at(vec![1; 100], 0).await.unwrap(); // it is continued
///         *content.borrow_mut() = file.read_at(Vec::with_capacity(100), 0).await.unwrap();
///     });
/// });
/// assert_eq!(content.into_inner(), [1; 100]);
/// ```
pub fn replay(seed: u64, faults: &str, test: impl FnOnce(u64)) {
    let Some(only) = Script::parse(faults) else { panic!("no list of faults: {faults:?}") };
    run_alone(seed, Some(only), test);
}

/// Runs a test with a seed, and with these faults or all. If it fails, prints what went wrong.
fn run_alone(seed: u64, only: Option<Script>, test: impl FnOnce(u64)) {
    let before = script::set(Some(FaultPlan::new(only)));
    let result = catch_unwind(AssertUnwindSafe(|| test(seed)));
    let plan = script::set(before).unwrap_or_default();
    if let Err(payload) = result {
        if !is_shrinking() {
            eprintln!("seed {seed} fails:");
            tell(&plan);
        }
        resume_unwind(payload);
    }
}

/// Repeating a test that fails takes at most this many runs, and this long.
const MOST_RUNS: usize = 1000;
const LONGEST: Duration = Duration::from_secs(60);

static HOOK: Once = Once::new();

/// On which disks the power was cut.
#[derive(Clone, Copy, Default)]
struct Cuts {
    journal: bool,
    posix: bool,
}

thread_local! {
    static CUTS: Cell<Cuts> = const { Cell::new(Cuts { journal: false, posix: false }) };
    /// Whether the thread runs seeds of which one that fails is repeated, and its operations are told then.
    static RUNS_SEEDS: Cell<bool> = const { Cell::new(false) };
    static SHRINKS: Cell<bool> = const { Cell::new(false) };
    /// Where this thread has panicked while it shrank.
    static PANICKED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Returns whether the calling thread repeats a test that fails, and should print nothing.
pub(super) fn is_shrinking() -> bool {
    SHRINKS.get()
}

/// Notes that the calling thread has run a simulation on such a disk.
pub(super) fn note_disk(strictness: Strictness, is_cut: bool) {
    let Cuts { journal, posix } = CUTS.get();
    CUTS.set(match strictness {
        Strictness::Journal => Cuts { journal: journal || is_cut, posix },
        Strictness::Posix => Cuts { journal, posix: posix || is_cut },
    });
}

/// Prints that a run has panicked; and its operations and those of the run before its disk lost power, unless they are
/// told later.
pub(super) fn tell_failure(seed: u64, now: Duration, past: &Past, before: Option<&Past>) {
    if is_shrinking() {
        return;
    }
    let Past { run, event, .. } = past;
    eprintln!("a simulation failed: seed {seed}, run {run} on its disk, event {event}, after {now:?}");
    if RUNS_SEEDS.get() || script::with(|_| ()).is_some() {
        return;
    }
    eprint!("{}", past.report("    "));
    if let Some(before) = before {
        let Past { run, event, .. } = before;
        eprintln!("the power was cut before, in run {run} on its disk, after event {event}:");
        eprint!("{}", before.report("    "));
    }
}

/// Prints what went wrong in a test that has failed, and the last operations before each power cut and before the panic.
fn tell(plan: &FaultPlan) {
    const INDENT: &str = "        ";
    let mut pasts = plan.pasts.clone();
    for (place, what) in &plan.happened {
        eprintln!("    {place}: {what}");
        let is_its = |past: &Rc<Past>| past.place == place.run && past.end == End::Cut;
        if place.moment == Moment::Cut
            && let Some(at) = pasts.iter().position(is_its)
        {
            eprint!("{}", pasts.remove(at).report(INDENT));
        }
    }
    for past in pasts {
        let Past { place, event, .. } = &*past;
        match past.end {
            End::CutAfterwards => eprintln!("    the power is cut at the end of run {place}"),
            End::Cut => eprintln!("    the power is cut in run {place} at last, after event {event}"),
            End::Panicked | End::Returned => eprintln!("    run {place} fails in event {event}"),
        }
        eprint!("{}", past.report(INDENT));
    }
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
        Some((FaultPlan { runs: 0, .. }, _)) => {
            eprintln!("no simulation ran on the thread of the test, so its faults are not known")
        }
        Some((plan, all)) => {
            let runs = shrinker.runs;
            let script = Script(plan.happened.iter().map(|(place, _)| *place).collect());
            match plan.happened.len() {
                0 => eprintln!("it fails without any fault"),
                enough => eprintln!("{enough} of {all} faults are enough (found in {runs} runs):"),
            }
            tell(&plan);
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
    fn run(&mut self, only: Option<Script>) -> Option<(String, FaultPlan)> {
        self.runs += 1;
        let before = script::set(Some(FaultPlan::new(only)));
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
    fn shrink(&mut self) -> Option<(FaultPlan, usize)> {
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

struct SeedRun {
    next: AtomicU64,
    failed: Lock<Option<(u64, Box<dyn Any + Send>)>>,
    cuts: Lock<Cuts>,
    began: Instant,
}

impl SeedRun {
    fn rate(&self, done: u64) -> f64 {
        done as f64 / self.began.elapsed().as_secs_f64().max(1e-9)
    }

    /// Runs a thread.
    fn run(&self, seeds: &Range<u64>, test: &impl Fn(u64), tells: bool) {
        let mut told = Instant::now();
        RUNS_SEEDS.set(true);
        while self.failed.lock().is_none() {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
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
        let (here, mut cuts) = (CUTS.get(), self.cuts.lock());
        *cuts = Cuts { journal: cuts.journal || here.journal, posix: cuts.posix || here.posix };
    }
}
