//! `ringfile perf file`: one file or device, every combination of what was asked for.
//!
//! What must hold: everything that can be refused is refused before the first byte is read or written; what
//! was measured is printed and saved however the command ends.

use std::sync::Arc;
use std::time::Duration;

use super::notes;
use super::plan::{Grid, Step};
use crate::cli::{Against, Buffers, Cache, FileArgs, Route};
use crate::engine::fio::Fio;
use crate::engine::{Bench, Engine};
use crate::error::{Failure, errno_text, usage};
use crate::interrupt::Interrupt;
use crate::job::Job;
use crate::machine;
use crate::progress::Progress;
use crate::report::output::{self, OutputFile};
use crate::report::results::{Machine, Params, Results, Run, RunLabel, SCHEMA};
use crate::report::{change, summary};
use crate::testfile::{Intent, TestFile};
use crate::values::{self, Bytes};
use crate::verify::{self, Verifier};

/// The smallest unit of any direct I/O.
const SECTOR: u64 = 512;

/// Carries out the command.
pub fn run(args: &FileArgs) -> Result<(), Failure> {
    let grid = grid(args);
    let intent = intent(args, &grid)?;
    let json =
        args.output.json.as_deref().map(|path| OutputFile::check(path, args.output.force)).transpose()?;
    if let (Some(json), Some(measured)) = (&json, &args.test_file.file) {
        json.check_apart_from(measured)?;
    }
    let interrupt = Interrupt::catch_signals()
        .map_err(|error| Failure::Io(format!("can't catch signals: {}", errno_text(&error))))?;
    let test_file = TestFile::open(&args.test_file, intent, &interrupt)?;
    check_fit(&grid, &test_file, args.verify)?;

    let mut session = Session::new(args, grid, test_file, interrupt);
    let ended = session.measure(intent);
    session.progress.finish();
    // Whatever ended it: what was measured is not lost.
    let results = session.into_results(matches!(ended, Err(Failure::Interrupted)));
    let printed = print(args, &results.0, &results.1);
    let saved = json.map_or(Ok(()), |json| json.write_json(&results.0));
    ended.and(printed).and(saved)
}

fn grid(args: &FileArgs) -> Grid {
    let cores = machine::cpus();
    let default_numjobs = if cores == 1 { vec![1] } else { vec![1, cores] };
    let default_cache = if args.direct { Cache::Keep } else { Cache::Warm };
    let default_route = if args.direct { Route::Ring } else { Route::Auto };
    Grid {
        numjobs: args.numjobs.as_ref().map_or(default_numjobs, |list| list.values().to_vec()),
        iodepth: args.iodepth.values().to_vec(),
        rw: args.rw.values().to_vec(),
        buffers: args.buffers.values().to_vec(),
        cache: args.cache.as_ref().map_or(vec![default_cache], |list| list.values().to_vec()),
        route: args.route.as_ref().map_or(vec![default_route], |list| list.values().to_vec()),
        executor: args.executor.values().to_vec(),
        against: args.against.as_ref().map_or(Vec::new(), |list| list.values().to_vec()),
        rounds: args.timing.rounds,
    }
}

/// What will be done to the file; refuses what no file would make possible.
fn intent(args: &FileArgs, grid: &Grid) -> Result<Intent, Failure> {
    if args.bs > args.test_file.size {
        let (block, size) = (Bytes(args.bs), Bytes(args.test_file.size));
        return usage(format!(
            "--bs {block} is more than --size {size}: use smaller blocks or a larger size"
        ));
    }
    if args.direct && !args.bs.is_multiple_of(SECTOR) {
        return usage(format!(
            "--bs {} with --direct: direct I/O needs multiples of {SECTOR}; use --bs 4k or leave out --direct",
            args.bs
        ));
    }
    if args.verify && args.bs < verify::SMALLEST_BLOCK {
        return usage(format!(
            "--verify needs blocks of at least {} bytes: raise --bs",
            verify::SMALLEST_BLOCK
        ));
    }
    if args.verify && grid.against.iter().any(|&against| against != Against::Pread) {
        return usage("--verify can't check what fio reads and writes: leave fio out of --against");
    }
    let most = |list: &[usize]| list.iter().copied().max().unwrap_or(1) as u64;
    let memory = args.bs.saturating_mul(most(&grid.numjobs) * most(&grid.iodepth));
    if machine::memory_available().is_some_and(|available| memory > available / 2) {
        return usage(format!(
            "buffers for the largest --numjobs and --iodepth would take {}: use fewer, or smaller blocks",
            Bytes(memory)
        ));
    }
    let writes = args.verify || grid.rw.iter().any(|rw| rw.writes());
    Ok(Intent { block: args.bs, writes, direct: args.direct, verify: args.verify })
}

/// Every thread needs a block where access is sequential, every task one where contents are checked.
fn check_fit(grid: &Grid, test_file: &TestFile, verify: bool) -> Result<(), Failure> {
    let most = |list: &[usize]| list.iter().copied().max().unwrap_or(1) as u64;
    let (numjobs, iodepth) = (most(&grid.numjobs), most(&grid.iodepth));
    let sequential = grid.rw.iter().any(|rw| !rw.random());
    let needed = match (verify, sequential) {
        (true, _) => numjobs * iodepth,
        (false, true) => numjobs,
        (false, false) => 1,
    };
    if test_file.blocks >= needed {
        return Ok(());
    }
    usage(format!(
        "{} has {} blocks of {}, but this run needs {needed}: raise --size, or lower --numjobs or --iodepth",
        test_file.path.display(),
        test_file.blocks,
        Bytes(test_file.block)
    ))
}

/// A command under way.
struct Session<'a> {
    args: &'a FileArgs,
    grid: Grid,
    test_file: TestFile,
    interrupt: Interrupt,
    fio: Option<Fio>,
    /// Kinds of runs that can't be made here, after the first one failed.
    left_out: Vec<(Engine, Buffers)>,
    progress: Progress,
    runs: Vec<Run>,
}

impl<'a> Session<'a> {
    fn new(args: &'a FileArgs, grid: Grid, test_file: TestFile, interrupt: Interrupt) -> Session<'a> {
        let length = |step: &Step| step.length(args.timing.warmup, args.timing.duration);
        let total = grid.steps().iter().map(length).sum::<Duration>() + fill_time(&test_file);
        let progress = Progress::new(total, args.output.quiet);
        Session {
            args,
            grid,
            test_file,
            interrupt,
            fio: None,
            left_out: Vec::new(),
            progress,
            runs: Vec::new(),
        }
    }

    fn measure(&mut self, intent: Intent) -> Result<(), Failure> {
        for note in &self.test_file.notes {
            self.progress.warn(note);
        }
        self.progress.begin(fill_time(&self.test_file));
        let progress = &self.progress;
        let verifier = self.test_file.prepare(intent, &mut |_| progress.tick("preparing the file"))?;
        self.find_fio();
        for step in self.grid.steps() {
            if self.interrupt.asked() {
                return Err(Failure::Interrupted);
            }
            self.step(step, verifier.as_ref())?;
        }
        Ok(())
    }

    fn find_fio(&mut self) {
        let asked = |against: &Against| *against != Against::Pread;
        if !self.grid.against.iter().any(asked) {
            return;
        }
        match Fio::find() {
            Ok(Some(fio)) => self.fio = Some(fio),
            Ok(None) => self.progress.warn(
                "fio is not installed, its rows are left out; get it with apt-get install fio, dnf install fio \
                 or from https://github.com/axboe/fio",
            ),
            Err(failure) => self.progress.warn(&format!("{failure}; its rows are left out")),
        }
        if self.fio.is_none() {
            self.grid.against.retain(|against| !asked(against));
        }
    }

    fn step(&mut self, step: Step, verifier: Option<&Arc<Verifier>>) -> Result<(), Failure> {
        self.progress.begin(step.length(self.args.timing.warmup, self.args.timing.duration));
        if self.left_out.contains(&(step.engine, step.buffers)) {
            return Ok(());
        }
        let job = self.job(step, verifier);
        let cached_before = self.test_file.settle(step.cache)?;
        let bench = Bench { path: &self.test_file.path, interrupt: &self.interrupt, fio: self.fio.as_ref() };
        let label = label(step);
        let progress = &self.progress;
        let outcome = match bench.run(step.engine, &job, &mut || progress.tick(&label)) {
            Ok(outcome) => outcome,
            // fio not being able to is no failure of what is measured here.
            Err(Failure::Io(why)) if step.engine.is_fio() => {
                let kind =
                    format!("{} with {} buffers", values::name(&step.engine), values::name(&step.buffers));
                self.progress.warn(&format!("{why}; {kind} is left out"));
                self.left_out.push((step.engine, step.buffers));
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        // A run that was cut short is whole as far as it went, if it did anything. One that was not has its cell.
        let whole = outcome.failure.is_none() && !self.interrupt.asked();
        if whole || outcome.ops > 0 || outcome.errors > 0 {
            let cached_after = self.test_file.cached();
            let Step { engine, round, role, cache, .. } = step;
            let label = RunLabel { engine, round, role, cache, cached_before, cached_after };
            self.runs.push(Run::new(label, &job, &outcome));
        }
        outcome.failure.map_or(Ok(()), Err)
    }

    fn job(&self, step: Step, verifier: Option<&Arc<Verifier>>) -> Job {
        Job {
            rw: step.rw,
            block: self.test_file.block,
            blocks: self.test_file.blocks,
            numjobs: step.numjobs,
            iodepth: step.iodepth,
            buffers: step.buffers,
            route: step.route,
            executor: step.executor,
            direct: self.args.direct,
            warmup: self.args.timing.warmup,
            duration: self.args.timing.duration,
            verify: verifier.cloned(),
        }
    }

    /// What was measured, and the notes on it. The file is gone after this, if it was made here.
    fn into_results(self, interrupted: bool) -> (Results, Vec<String>) {
        let notes = notes::of(&self.test_file, self.args, self.fio.as_ref(), &self.runs);
        let (args, test_file, grid) = (self.args, &self.test_file, self.grid);
        let mut machine = Machine::here(test_file.filesystem.clone(), ringfile::ring_features().ok());
        machine.fio = self.fio.as_ref().map(|fio| fio.version.clone());
        let params = Params {
            file: test_file.path.to_string_lossy().into_owned(),
            file_created: test_file.created,
            size_bytes: test_file.size(),
            block_size_bytes: test_file.block,
            duration_s: args.timing.duration.as_secs_f64(),
            warmup_s: args.timing.warmup.as_secs_f64(),
            numjobs: grid.numjobs,
            iodepth: grid.iodepth,
            rw: grid.rw,
            buffers: grid.buffers,
            direct: args.direct,
            cache: grid.cache,
            route: grid.route,
            executor: grid.executor,
            against: grid.against,
            rounds: grid.rounds,
            verify: args.verify,
        };
        (
            Results {
                schema: SCHEMA,
                command: command_line(),
                interrupted,
                machine,
                params,
                runs: self.runs,
            },
            notes,
        )
    }
}

fn print(args: &FileArgs, results: &Results, notes: &[String]) -> Result<(), Failure> {
    if results.runs.is_empty() {
        return Ok(());
    }
    let mut text = summary::table(&results.runs).to_string();
    let changes = change::table(&results.runs);
    if !changes.is_empty() {
        text += &format!("\n{changes}");
    }
    if !args.output.quiet {
        text.push('\n');
        for note in notes {
            text += &format!("- {note}\n");
        }
    }
    output::print(&text)
}

/// About how long the file takes to fill: 500 MiB a second.
fn fill_time(test_file: &TestFile) -> Duration {
    if test_file.created { Duration::from_millis(test_file.size() >> 19) } else { Duration::ZERO }
}

fn label(step: Step) -> String {
    let (engine, rw, buffers) =
        (values::name(&step.engine), values::name(&step.rw), values::name(&step.buffers));
    format!("{engine} {rw} {buffers}, jobs {}, depth {}", step.numjobs, step.iodepth)
}

fn command_line() -> String {
    let quoted = |argument: std::ffi::OsString| {
        let text = argument.to_string_lossy().into_owned();
        let plain = |c: char| c.is_alphanumeric() || "-_./,=:+@%".contains(c);
        if !text.is_empty() && text.chars().all(plain) {
            text
        } else {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
    };
    let arguments: Vec<String> = std::env::args_os().skip(1).map(quoted).collect();
    format!("ringfile {}", arguments.join(" "))
}
