//! The runs of `perf buffers`, one after the other, and what was measured saved now and then.

use std::time::{Duration, Instant};

use super::grid::{Grid, Kind, Step};
use super::processes;
use super::profile::{self, Profiler};
use super::worker::Order;
use crate::cli::{Access, Cache, Executor};
use crate::engine::Outcome;
use crate::error::Failure;
use crate::interrupt::Interrupt;
use crate::job::{BatchSettings, Job};
use crate::progress::Progress;
use crate::report::buffers as report;
use crate::report::output::OutputFile;
use crate::report::profile::Profile;
use crate::report::results::{Results, Run, RunLabel};
use crate::sys;
use crate::testfile::TestFile;
use crate::values::{self, Bytes};

/// How often what was measured is saved meanwhile: what ends the process at once costs no more than that.
const CHECKPOINT: Duration = Duration::from_secs(20);

/// How long each kind is profiled at least: some hundred samples.
const PROFILED: Duration = Duration::from_secs(2);

/// A measurement under way.
pub struct Session<'a> {
    /// What is measured.
    pub grid: &'a Grid,
    /// On what.
    pub test_file: &'a TestFile,
    /// Ctrl-C.
    pub interrupt: &'a Interrupt,
    /// Whether cycles and instructions are counted.
    pub counters: bool,
    /// When to end though not all is measured.
    pub deadline: Option<Instant>,
    /// What the user sees meanwhile.
    pub progress: Progress,
    /// What was measured.
    pub runs: Vec<Run>,
    /// Where it is saved now and then.
    pub checkpoint: Option<&'a OutputFile>,
    /// What to know about it.
    pub notes: Vec<String>,
}

/// How long the runs take that are left to make, and how long all of them.
pub fn time(grid: &Grid, runs: &[Run]) -> (Duration, Duration) {
    let steps = grid.steps();
    let left = steps.iter().filter(|step| !runs.iter().any(|run| step.made(run)));
    (left.map(|step| grid.length(step)).sum(), steps.iter().map(|step| grid.length(step)).sum())
}

impl Session<'_> {
    /// Makes all runs that were not made before.
    pub fn measure(&mut self, results: &dyn Fn(&[Run]) -> Results) -> Result<(), Failure> {
        let cores = sys::allowed_cores();
        let mut saved = Instant::now();
        let mut cache = None;
        let steps: Vec<Step> = self.grid.steps().into_iter().filter(|step| !self.is_made(step)).collect();
        for (index, step) in steps.iter().enumerate() {
            if self.interrupt.asked() {
                return Err(Failure::Interrupted);
            }
            if self.deadline.is_some_and(|deadline| Instant::now() + self.grid.length(step) > deadline) {
                let left = steps.len() - index;
                let note =
                    format!("{left} runs are left out: --quick ends within two minutes, whatever is slow");
                self.progress.warn(&note);
                self.notes.push(note);
                return Ok(());
            }
            self.step(step, &cores, &mut cache)?;
            if let Some(file) = self.checkpoint.filter(|_| saved.elapsed() >= CHECKPOINT) {
                file.write_json(&results(&self.runs))?;
                saved = Instant::now();
            }
        }
        Ok(())
    }

    /// Where CPU time goes with each kind of buffers; what is in the way is noted, and no failure.
    pub fn profile(&mut self) -> Vec<Profile> {
        let mut profiles = Vec::new();
        let left_out = |session: &mut Self, why: String| {
            session.progress.warn(&format!("--profile: {why}"));
            session.notes.push(format!("no profile: {why}"));
        };
        let profiler = match Profiler::find() {
            Ok(profiler) => profiler,
            Err(why) => {
                left_out(self, why);
                return profiles;
            }
        };
        let Some(&core) = sys::allowed_cores().first() else { return profiles };
        for step in profile::steps(self.grid) {
            match self.profile_of(&step, &profiler, core) {
                Ok(profile) => profiles.push(profile),
                Err(_) if self.interrupt.asked() => return profiles,
                Err(why) => left_out(
                    self,
                    format!("{} {}: {why}", values::name(&step.kind.buffers), Bytes(step.block)),
                ),
            }
        }
        profiles
    }

    fn profile_of(&mut self, step: &Step, profiler: &Profiler, core: usize) -> Result<Profile, String> {
        self.settle(step, &mut None).map_err(|failure| failure.to_string())?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = profiler.record();
        command.arg(program).arg(processes::WORKER);
        let mut order = self.order(step, 0, core);
        order.duration = order.duration.max(PROFILED);
        let label = ["profile".to_string(), values::name(&step.kind.buffers), Bytes(step.block).to_string()];
        let progress = &self.progress;
        processes::run(vec![(command, order)], self.interrupt, &mut || progress.tick(&label))
            .map_err(|failure| failure.to_string())?;
        profiler.profile(step)
    }

    fn is_made(&self, step: &Step) -> bool {
        self.runs.iter().any(|run| step.made(run))
    }

    fn step(&mut self, step: &Step, cores: &[usize], cache: &mut Option<Cache>) -> Result<(), Failure> {
        self.progress.begin(self.grid.length(step));
        let cached_before = self.settle(step, cache)?;
        let orders = cores.iter().take(step.processes).enumerate();
        let orders = orders.map(|(number, &core)| (processes::command(), self.order(step, number, core)));
        let label = label(step);
        let progress = &self.progress;
        let (outcome, refused) =
            processes::run(orders.collect(), self.interrupt, &mut || progress.tick(&label))?;
        self.take(step, outcome, refused, cached_before)
    }

    /// Brings the page cache into the state that the step wants. Direct I/O finds no page of the file there, of whatever
    /// was measured before.
    fn settle(&self, step: &Step, before: &mut Option<Cache>) -> Result<Option<f64>, Failure> {
        let wanted = step.kind.cache;
        let cache = if wanted == Cache::Keep && *before != Some(Cache::Keep) { Cache::Cold } else { wanted };
        *before = Some(wanted);
        self.test_file.settle(cache)
    }

    fn take(
        &mut self,
        step: &Step,
        outcome: Outcome,
        refused: Option<String>,
        cached_before: Option<f64>,
    ) -> Result<(), Failure> {
        // A run that was cut short is none: it would be made again when the measurement is resumed.
        if outcome.failure.is_none() && !self.interrupt.asked() {
            let label = RunLabel {
                engine: step.kind.engine,
                round: step.round,
                role: step.role,
                cache: step.kind.cache,
                cached_before,
                cached_after: self.test_file.cached(),
                cache_hits: None,
            };
            let mut run = Run::new(label, &self.job(step), &outcome);
            run.processes = Some(step.processes);
            run.refused = refused.filter(|_| run.not_fixed() > 0);
            self.runs.push(run);
        }
        outcome.failure.map_or(Ok(()), Err)
    }

    fn order(&self, step: &Step, number: usize, core: usize) -> Order {
        let job = self.job(step);
        Order {
            path: self.test_file.path.clone(),
            rw: job.rw,
            block: job.block,
            blocks: job.blocks,
            depth: job.iodepth,
            buffers: job.buffers,
            parts: job.parts,
            route: job.route,
            engine: step.kind.engine,
            ring_flags: job.ring_flags,
            direct: job.direct,
            warmup: job.warmup,
            duration: job.duration,
            core,
            number,
            counters: self.counters,
        }
    }

    fn job(&self, step: &Step) -> Job {
        Job {
            rw: step.rw,
            block: step.block,
            blocks: self.test_file.size() / step.block,
            numjobs: 1,
            iodepth: step.depth,
            buffers: step.kind.buffers,
            parts: step.kind.parts,
            batching: None,
            settings: BatchSettings::default(),
            access: Access::Any,
            amount: None,
            route: step.kind.route,
            ring_flags: step.kind.ring_flags,
            executor: Executor::Ringfile,
            direct: step.kind.direct,
            warmup: self.grid.warmup_of(step),
            duration: self.grid.duration,
            verify: None,
            seed: 0,
        }
    }
}

fn label(step: &Step) -> Vec<String> {
    let Kind { buffers, engine, ring_flags, .. } = step.kind;
    let side = report::ring(engine, ring_flags).map(|side| format!(" {side}")).unwrap_or_default();
    vec![
        format!("{} {}{side}", values::name(&step.rw), values::name(&buffers)),
        format!("{} depth {}", Bytes(step.block), step.depth),
        format!("round {}", step.round),
    ]
}
