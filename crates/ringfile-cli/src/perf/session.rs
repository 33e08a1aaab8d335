//! A measurement in progress, of any command: the test file, the runs, and the results.
//!
//! Invariants: everything that can be refused is refused before the first byte is read or written; what was measured is printed and saved however the
//! command ends.

use std::path::absolute;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::outputs::{self, Outputs};
use super::plan::Step;
use super::request::Request;
use super::{check, notes};
use crate::engine::Fio;
use crate::engine::{Bench, Outcome};
use crate::error::{Failure, errno_text};
use crate::interrupt::Interrupt;
use crate::job::Job;
use crate::memory_group::MemoryGroup;
use crate::model::{Batching, Buffers, Cache, Engine, Kind, Machine, Params, Results, Run};
use crate::progress::Progress;
use crate::report::behind::cells_behind;
use crate::report::cold;
use crate::report::output::OutputFile;
use crate::sys;
use crate::testfile::{Intent, TestFile};
use crate::values;
use crate::verify::Verifier;

/// How often results are saved while measuring: if the process is killed, no more than this is lost.
const CHECKPOINT: Duration = Duration::from_secs(20);

/// Carries out a command.
pub fn run(request: Request<'_>) -> Result<(), Failure> {
    let intent = check::intent(&request)?;
    let output = request.output;
    let outputs = Outputs::check(output, request.test_file.file.as_deref())?;
    let interrupt = Interrupt::catch_signals()?;
    let test_file = TestFile::open(&request.test_file, intent, &interrupt)?;
    check::fit(&request, &test_file)?;

    let mut session = Session::new(request, test_file, interrupt);
    let ended = session.prepare(intent).and_then(|verifier| {
        let _group = session.limit_memory()?;
        session.measure(verifier.as_ref(), None)
    });
    let results = session.into_results(matches!(ended, Err(Failure::Interrupted)));
    outputs::conclude(ended, output, &outputs, &results)
}

/// A command in progress.
pub struct Session<'a> {
    /// The request.
    pub request: Request<'a>,
    /// The file that is measured.
    pub test_file: TestFile,
    /// Tells whether the user interrupted the command.
    pub interrupt: Interrupt,
    /// The progress bar.
    pub progress: Progress,
    /// The runs so far.
    pub runs: Vec<Run>,
    /// Notes for the reader of the figures.
    pub notes: Vec<String>,
    /// When to stop and leave out the remaining runs.
    pub deadline: Option<Instant>,
    /// fio, if it takes part.
    pub fio: Option<Fio>,
    /// Kinds of runs that are skipped since the first one failed.
    left_out: Vec<(Engine, Buffers)>,
    /// The requested state of the page cache in the previous run.
    cache_before: Option<Cache>,
}

/// Returns about how long filling the file takes, at 500 MiB per second.
fn fill_time(test_file: &TestFile) -> Duration {
    if test_file.unfilled { Duration::from_millis(test_file.size() >> 19) } else { Duration::ZERO }
}

impl<'a> Session<'a> {
    /// Returns a session without runs.
    pub fn new(request: Request<'a>, test_file: TestFile, interrupt: Interrupt) -> Session<'a> {
        let length = request.length(&request.grid.steps());
        let progress = Progress::new(length + fill_time(&test_file), request.output.quiet);
        Session {
            request,
            test_file,
            interrupt,
            progress,
            runs: Vec::new(),
            notes: Vec::new(),
            deadline: None,
            fio: None,
            left_out: Vec::new(),
            cache_before: None,
        }
    }

    /// Returns how long all runs take together.
    pub fn whole(&self) -> Duration {
        self.request.length(&self.request.grid.steps())
    }

    /// Fills the file if it has to be.
    pub fn prepare(&mut self, intent: Intent) -> Result<Option<Arc<Verifier>>, Failure> {
        for note in &self.test_file.notes {
            self.progress.warn(note);
        }
        self.progress.begin(fill_time(&self.test_file));
        let progress = &self.progress;
        self.test_file.prepare(intent, &mut |_| progress.tick(&["preparing the file".into()]))
    }

    /// Limits the memory of this process to a quarter of the file, if the command is about that.
    fn limit_memory(&mut self) -> Result<Option<MemoryGroup>, Failure> {
        if self.request.kind != Kind::Mixed {
            return Ok(None);
        }
        self.test_file.settle(Cache::Mixed)?;
        let group = MemoryGroup::enter(self.test_file.size() / 4);
        match &group {
            Ok(_) => self.notes.push("memory: a quarter of the file".into()),
            Err(why) => {
                let why = errno_text(why);
                self.note(format!("memory was not limited, for want of a control group: {why}"));
            }
        }
        Ok(group.ok())
    }

    /// Makes all runs, and saves them to `checkpoint` from time to time.
    pub fn measure(
        &mut self,
        verifier: Option<&Arc<Verifier>>,
        checkpoint: Option<&OutputFile>,
    ) -> Result<(), Failure> {
        self.find_fio();
        let timing = self.request.timing;
        let mut saved = Instant::now();
        let steps = self.request.grid.steps();
        for (index, step) in steps.iter().enumerate() {
            if self.interrupt.asked() {
                return Err(Failure::Interrupted);
            }
            if self.deadline.is_some_and(|deadline| Instant::now() + timing.length(step) > deadline) {
                let left = steps.len() - index;
                self.note(format!("{left} runs are left out, so that --quick ends within two minutes"));
                return Ok(());
            }
            self.progress.begin(timing.length(step));
            self.step(step, verifier)?;
            if let Some(file) = checkpoint.filter(|_| saved.elapsed() >= CHECKPOINT) {
                file.write_json(&self.results(true))?;
                saved = Instant::now();
            }
        }
        Ok(())
    }

    /// Prints a note now, and again below the tables.
    pub fn note(&mut self, note: String) {
        self.progress.warn(&note);
        self.notes.push(note);
    }

    fn find_fio(&mut self) {
        let grid = &mut self.request.grid;
        let engines = &mut grid.engines;
        if !grid.fio && !engines.iter().any(|engine| engine.is_fio()) {
            return;
        }
        match Fio::find() {
            Ok(Some(fio)) => self.fio = Some(fio),
            Ok(None) => self.progress.warn(
                "fio is not installed, its rows are left out; get it with apt-get install fio, dnf install fio \
                 or from https://github.com/axboe/fio",
            ),
            // Ctrl-C on the terminal also ends fio; the interruption is reported elsewhere.
            Err(_) if self.interrupt.asked() => {}
            Err(failure) => self.progress.warn(&format!("{failure}; its rows are left out")),
        }
        if self.fio.is_none() {
            engines.retain(|engine| !engine.is_fio());
            grid.fio = false;
        }
    }

    fn step(&mut self, step: &Step, verifier: Option<&Arc<Verifier>>) -> Result<(), Failure> {
        let setup = step.setup;
        let kind = (setup.engine, setup.buffers);
        if self.left_out.contains(&kind) {
            return Ok(());
        }
        let job = Job { verify: verifier.cloned(), ..self.job(step) };
        let cached_before = self.settle(step)?;
        let brought_in = self.test_file.brought_in();
        let (outcome, refused) = match self.carry_out(step, &job) {
            Ok(done) => done,
            // If another engine cannot run here, the measurement continues without it.
            Err(Failure::Io(why)) if setup.engine.may_be_left_out() => {
                let name = format!("{} with {} buffers", values::name(&kind.0), values::name(&kind.1));
                self.progress.warn(&format!("{why}; {name} is left out"));
                self.left_out.push(kind);
                return Ok(());
            }
            Err(failure) => return Err(self.test_file.naming(failure)),
        };
        // An interrupted run is kept as far as it got.
        if outcome.ops > 0 || outcome.errors > 0 {
            let mut run = outcome.run(step.setup, step.round, step.role, &job);
            run.parts = step.parts;
            run.cached_before = cached_before;
            run.cached_after = self.test_file.cached();
            run.cache_hits = brought_in.and_then(|before| self.cache_hits(&run, before));
            run.refused = refused.filter(|_| run.not_fixed() > 0);
            self.runs.push(run);
        }
        outcome.failure.map_or(Ok(()), |failure| Err(self.test_file.naming(failure)))
    }

    /// Makes one run. Also returns why memory was not registered, if that was refused.
    pub fn carry_out(&self, step: &Step, job: &Job) -> Result<(Outcome, Option<String>), Failure> {
        let label = label(step);
        let mut tick = || self.progress.tick(&label);
        let bench = Bench {
            path: &self.test_file.reopened,
            namespace: self.test_file.block_device.is_some(),
            interrupt: &self.interrupt,
            fio: self.fio.as_ref(),
        };
        let outcome = bench.run(step.setup.engine, job, &mut tick)?;
        Ok((outcome, ringfile::buf::refused_registration().map(|refused| refused.to_string())))
    }

    /// Brings the page cache into the state that a step requires. A grid with other choices measures the same file in
    /// several ways; before direct I/O, all its pages are dropped from the cache, whatever was measured earlier.
    pub fn settle(&mut self, step: &Step) -> Result<Option<f64>, Failure> {
        let wanted = step.setup.cache;
        let first = self.cache_before.replace(wanted) != Some(Cache::Keep);
        let drops = self.request.grid.choices && wanted == Cache::Keep && first;
        self.test_file.settle(if drops { Cache::Cold } else { wanted })
    }

    /// Returns the fraction of a cold run's reads that hit the cache. `before` is what [`TestFile::brought_in`]
    /// returned before the run.
    fn cache_hits(&self, run: &Run, before: u64) -> Option<f64> {
        let setup = &run.setup;
        let applies = setup.cache == Cache::Cold && !setup.rw.writes() && !setup.direct;
        let brought_in = self.test_file.brought_in().filter(|_| applies)?.saturating_sub(before);
        cold::hits(run.ops, setup.block, sys::page_size(), brought_in)
    }

    /// Returns a step as the job for an engine.
    pub fn job(&self, step: &Step) -> Job {
        let (request, setup) = (&self.request, step.setup);
        Job {
            setup,
            parts: step.parts.unwrap_or(1),
            blocks: self.test_file.size() / setup.block,
            warmup: request.timing.warmup_of(&setup),
            duration: request.timing.duration,
            access: request.access(setup.cache),
            pinned: self.request.kind == Kind::Buffers,
            verify: None,
        }
    }

    /// Returns the results. Removes the file if this session created it.
    pub fn into_results(self, interrupted: bool) -> Results {
        self.progress.finish();
        self.results(interrupted)
    }

    fn results(&self, interrupted: bool) -> Results {
        let behind = cells_behind(&self.runs);
        let mut machine = Machine::here(self.test_file.filesystem.clone());
        let fio = self.fio.as_ref().filter(|_| self.runs.iter().any(|run| run.setup.engine.is_fio()));
        machine.fio = fio.map(|fio| fio.version.clone());
        let command = outputs::command_line();
        let mut results = Results::new(self.request.kind, command, machine, self.params(), self.runs.clone());
        results.interrupted = interrupted;
        results.notes = behind.iter().map(|behind| behind.note.clone()).collect();
        results.notes.extend(notes::of(&self.request, &self.test_file, self.fio.as_ref(), &results));
        results.notes.extend(self.notes.iter().cloned());
        results.behind = behind;
        results
    }

    fn params(&self) -> Params {
        let (request, test_file) = (&self.request, &self.test_file);
        let (timing, grid) = (request.timing, &request.grid);
        let took_part = |engine| self.runs.iter().any(|run| run.setup.engine == engine);
        let others = grid.engines.iter().copied().filter(|engine| !engine.is_ours());
        Params {
            file: absolute(&test_file.path).unwrap_or(test_file.path.clone()).to_string_lossy().into_owned(),
            file_created: test_file.created,
            size_bytes: test_file.size(),
            duration_s: timing.duration.as_secs_f64(),
            warmup_s: timing.warmup.as_secs_f64(),
            against: others.filter(|&engine| took_part(engine)).collect(),
            verify: request.verify,
            ..grid.params()
        }
    }
}

/// Returns a step in a few words, for the progress bar.
fn label(step: &Step) -> Vec<String> {
    let setup = &step.setup;
    let jobs = format!("jobs {}", setup.numjobs);
    let depth = match setup.batching() {
        Some(Batching { size, inflight }) => format!("{inflight} × {size} in flight"),
        None => format!("{} depth {}", values::short_size(setup.block), setup.iodepth),
    };
    let flags =
        setup.ring_flags.as_ref().map(|flags| format!(" {}", values::name(flags))).unwrap_or_default();
    let (engine, rw, buffers) =
        (values::name(&setup.engine), values::name(&setup.rw), values::name(&setup.buffers));
    vec![format!("{engine}{flags} {rw} {buffers}"), depth, jobs]
}
