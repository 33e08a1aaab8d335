//! A measurement under way, whatever the command: the test file, the runs in turn, tables and JSON.
//!
//! What must hold: everything that can be refused is refused before the first byte is read or written; what
//! was measured is printed and saved however the command ends.

use std::sync::Arc;
use std::time::Duration;

use super::notes;
use super::plan::{Grid, Step};
use crate::cli::{Access, Buffers, Cache, IoSize, OutputArgs, Route, TestFileArgs, TimingArgs, WorkArgs};
use crate::engine::fio::{self, Fio};
use crate::engine::{Bench, Engine, Outcome};
use crate::error::{Failure, usage};
use crate::interrupt::Interrupt;
use crate::job::{BatchSettings, Batching, Job};
use crate::machine;
use crate::progress::Progress;
use crate::report::behind::cells_behind;
use crate::report::output;
use crate::report::outputs::Outputs;
use crate::report::results::{Kind, Machine, Params, Results, Run, RunLabel, SCHEMA};
use crate::report::table::Table;
use crate::report::{batches, change, cold, enters, summary};
use crate::sys;
use crate::terminal;
use crate::testfile::{DefaultPlace, Intent, TestFile, leftover};
use crate::values::{self, Bytes};
use crate::verify::{self, Verifier};

/// The smallest unit of any direct I/O.
const SECTOR: u64 = 512;

/// What a command asks for.
pub struct Request<'a> {
    /// Which command.
    pub kind: Kind,
    /// The file.
    pub test_file: &'a TestFileArgs,
    /// How long.
    pub timing: &'a TimingArgs,
    /// Which blocks, and how much.
    pub work: WorkArgs,
    /// When a queue's loop submits and collects.
    pub settings: BatchSettings,
    /// Where results go.
    pub output: &'a OutputArgs,
    /// Bytes of each operation.
    pub block: u64,
    /// O_DIRECT.
    pub direct: bool,
    /// Contents are checked.
    pub verify: bool,
    /// What is measured.
    pub grid: Grid,
}

/// Carries a command out.
pub fn run(request: Request<'_>) -> Result<(), Failure> {
    leftover::tell(request.output.quiet);
    let intent = intent(&request)?;
    let output = request.output;
    let outputs = Outputs::check(output, request.test_file.file.as_deref())?;
    let interrupt = Interrupt::catch_signals()?;
    let test_file = TestFile::open(request.test_file, intent, &interrupt)?;
    check_fit(&request, &test_file)?;

    let mut session = Session::new(request, test_file, interrupt);
    let ended = session.measure(intent);
    session.progress.finish();
    // Whatever ended it: what was measured is not lost.
    let results = session.into_results(matches!(ended, Err(Failure::Interrupted)));
    let printed = print(output, &results);
    let saved = outputs.write(&results);
    ended.and(printed).and(saved)
}

/// What will be done to the file; refuses what no file would make possible.
fn intent(request: &Request<'_>) -> Result<Intent, Failure> {
    let (grid, size) = (&request.grid, request.test_file.size);
    if request.block > size {
        let (block, size) = (Bytes(request.block), Bytes(size));
        return usage(format!(
            "--bs {block} is more than --size {size}: use smaller blocks or a larger size"
        ));
    }
    if request.direct && !request.block.is_multiple_of(SECTOR) {
        return usage(format!(
            "--bs {} with --direct: direct I/O needs multiples of {SECTOR}; use --bs 4k or leave out --direct",
            request.block
        ));
    }
    if !request.direct && grid.ways.iter().any(|(route, _)| *route == Route::Aio) {
        return usage("--route aio is for direct I/O: add --direct, or leave out aio");
    }
    if request.verify && request.block < verify::SMALLEST_BLOCK {
        return usage(format!(
            "--verify needs blocks of at least {} bytes: raise --bs",
            verify::SMALLEST_BLOCK
        ));
    }
    if request.verify && grid.engines.iter().any(|engine| engine.is_fio()) {
        return usage("--verify can't check what fio reads and writes: leave fio out of --against");
    }
    let (numjobs, iodepth) = grid.most();
    let memory = request.block.saturating_mul(numjobs * iodepth);
    if machine::is_too_much(memory) {
        return usage(format!(
            "buffers for all that is in flight with the most threads would take {}: use fewer threads, less depth, or \
             smaller blocks",
            Bytes(memory)
        ));
    }
    if iodepth > fio::MOST_IN_FLIGHT as u64 && grid.engines.contains(&Engine::Fio) {
        return usage(format!(
            "fio can't have {iodepth} reads in flight, {} at most: use a smaller --batch or --inflight, or leave fio \
             out of --engines",
            fio::MOST_IN_FLIGHT
        ));
    }
    if request.verify && request.work.access == Some(Access::Once) {
        return usage("--verify lets each task visit its own blocks again: leave out --access once");
    }
    let writes = request.verify || grid.rw.iter().any(|rw| rw.writes());
    Ok(Intent {
        block: request.block,
        writes,
        direct: request.direct,
        verify: request.verify,
        // What lies in memory can't be dropped from it.
        default_place: match grid.cache.contains(&Cache::Cold) && !request.direct {
            true => DefaultPlace::Disk,
            false => DefaultPlace::Memory,
        },
    })
}

/// Every thread needs a block where it has a part of its own, every task one where contents are checked.
fn check_fit(request: &Request<'_>, test_file: &TestFile) -> Result<(), Failure> {
    check_amount(request, test_file)?;
    let grid = &request.grid;
    if test_file.block_device.is_some() && !grid.engines.iter().all(|engine| engine.takes_namespaces()) {
        return usage(format!(
            "{} takes NVMe commands only, which pread and fio's psync can't send: leave them out of --against",
            test_file.path.display()
        ));
    }
    let (numjobs, iodepth) = grid.most();
    let sequential = grid.rw.iter().any(|rw| !rw.random());
    let once = grid.cache.iter().any(|&cache| access(request, cache) == Access::Once);
    let needed = match (request.verify, sequential || once) {
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

/// Returns which blocks random operations visit in runs with this state of the page cache.
fn access(request: &Request<'_>, cache: Cache) -> Access {
    let once = cache == Cache::Cold || request.work.io_size == Some(IoSize::All);
    match request.work.access {
        Some(access) => access,
        None if once && !request.verify => Access::Once,
        None => Access::Any,
    }
}

/// Returns the number of operations of each run, if `--io-size` fixes it.
fn amount(request: &Request<'_>, test_file: &TestFile) -> Option<u64> {
    request.work.io_size.map(|io_size| match io_size {
        IoSize::All => test_file.blocks,
        IoSize::Bytes(bytes) => bytes / test_file.block,
    })
}

/// Refuses an `--io-size` that is not whole blocks, gives a thread no block, or is larger than the file with `--access once`.
fn check_amount(request: &Request<'_>, test_file: &TestFile) -> Result<(), Failure> {
    let (Some(io_size), Some(amount)) = (request.work.io_size, amount(request, test_file)) else {
        return Ok(());
    };
    let numjobs = request.grid.most().0;
    let once = request.grid.cache.iter().any(|&cache| access(request, cache) == Access::Once);
    let asked = Bytes(match io_size {
        IoSize::All => test_file.size(),
        IoSize::Bytes(bytes) => bytes,
    });
    if matches!(io_size, IoSize::Bytes(bytes) if !bytes.is_multiple_of(test_file.block)) {
        return usage(format!(
            "--io-size {asked} is no whole number of blocks of {}",
            Bytes(test_file.block)
        ));
    }
    if amount < numjobs {
        return usage(format!("--io-size {asked} is not a block for each of {numjobs} threads: raise it"));
    }
    if once && amount > test_file.blocks {
        return usage(format!(
            "--io-size {asked} is more than the {} of the file, and each block is visited once: raise --size, or add --access \
             any",
            Bytes(test_file.size())
        ));
    }
    Ok(())
}

/// Estimates the time of a run without its warm-up: a fixed amount at 500 MiB a second.
fn run_time(request: &Request<'_>, test_file: &TestFile) -> Duration {
    match amount(request, test_file) {
        Some(amount) => Duration::from_millis((amount.saturating_mul(test_file.block)) >> 19),
        None => request.timing.duration,
    }
}

/// A command under way.
struct Session<'a> {
    request: Request<'a>,
    test_file: TestFile,
    interrupt: Interrupt,
    fio: Option<Fio>,
    /// Kinds of runs that can't be made here, after the first one failed.
    left_out: Vec<(Engine, Buffers)>,
    progress: Progress,
    runs: Vec<Run>,
}

impl<'a> Session<'a> {
    fn new(request: Request<'a>, test_file: TestFile, interrupt: Interrupt) -> Session<'a> {
        let run_time = run_time(&request, &test_file);
        let length = |step: &Step| step.length(request.timing.warmup, run_time);
        let total = request.grid.steps().iter().map(length).sum::<Duration>() + fill_time(&test_file);
        let progress = Progress::new(total, request.output.quiet);
        Session { request, test_file, interrupt, fio: None, left_out: Vec::new(), progress, runs: Vec::new() }
    }

    fn measure(&mut self, intent: Intent) -> Result<(), Failure> {
        for note in &self.test_file.notes {
            self.progress.warn(note);
        }
        self.progress.begin(fill_time(&self.test_file));
        let progress = &self.progress;
        let verifier =
            self.test_file.prepare(intent, &mut |_| progress.tick(&["preparing the file".into()]))?;
        self.find_fio();
        for step in self.request.grid.steps() {
            if self.interrupt.asked() {
                return Err(Failure::Interrupted);
            }
            self.step(step, verifier.as_ref())?;
        }
        Ok(())
    }

    fn find_fio(&mut self) {
        let engines = &mut self.request.grid.engines;
        if !engines.iter().any(|engine| engine.is_fio()) {
            return;
        }
        match Fio::find() {
            Ok(Some(fio)) => self.fio = Some(fio),
            Ok(None) => self.progress.warn(
                "fio is not installed, its rows are left out; get it with apt-get install fio, dnf install fio \
                 or from https://github.com/axboe/fio",
            ),
            // Ctrl-C on the terminal ends it too; that is told in another place.
            Err(_) if self.interrupt.asked() => {}
            Err(failure) => self.progress.warn(&format!("{failure}; its rows are left out")),
        }
        if self.fio.is_none() {
            engines.retain(|engine| !engine.is_fio());
        }
    }

    fn step(&mut self, step: Step, verifier: Option<&Arc<Verifier>>) -> Result<(), Failure> {
        let run_time = run_time(&self.request, &self.test_file);
        self.progress.begin(step.length(self.request.timing.warmup, run_time));
        if self.left_out.contains(&(step.engine, step.buffers)) {
            return Ok(());
        }
        let job = self.job(step, verifier);
        let cached_before = self.test_file.settle(step.cache)?;
        let brought_in = self.test_file.brought_in();
        let bench = Bench {
            path: &self.test_file.path,
            namespace: self.test_file.block_device.is_some(),
            interrupt: &self.interrupt,
            fio: self.fio.as_ref(),
        };
        let label = label(step);
        let progress = &self.progress;
        let outcome = match bench.run(step.engine, &job, &mut || progress.tick(&label)) {
            Ok(outcome) => outcome,
            // That another can't is no failure of what is measured here.
            Err(Failure::Io(why)) if step.engine.may_be_left_out() => {
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
            let cache_hits = brought_in.and_then(|before| self.cache_hits(step, &outcome, before));
            let label = RunLabel { engine, round, role, cache, cached_before, cached_after, cache_hits };
            let mut run = Run::new(label, &job, &outcome);
            run.refused = notes::refused(&run, ringfile::refused_registration());
            self.runs.push(run);
        }
        outcome.failure.map_or(Ok(()), Err)
    }

    /// Returns the fraction of cache hits of a cold run. `before` is what [`TestFile::brought_in`] returned before it.
    fn cache_hits(&self, step: Step, outcome: &Outcome, before: u64) -> Option<f64> {
        let applies = step.cache == Cache::Cold && !step.rw.writes() && !self.request.direct;
        let brought_in = self.test_file.brought_in().filter(|_| applies)?.saturating_sub(before);
        cold::hits(outcome.ops, self.test_file.block, sys::page_size()?, brought_in)
    }

    fn job(&self, step: Step, verifier: Option<&Arc<Verifier>>) -> Job {
        Job {
            rw: step.rw,
            block: self.test_file.block,
            blocks: self.test_file.blocks,
            numjobs: step.numjobs,
            iodepth: step.iodepth,
            buffers: step.buffers,
            parts: 1,
            seed: 0,
            batching: step.batching,
            settings: self.request.settings,
            access: access(&self.request, step.cache),
            amount: amount(&self.request, &self.test_file),
            route: step.route,
            ring_flags: None,
            executor: step.executor,
            direct: self.request.direct,
            // A warm-up would warm the page cache too.
            warmup: if step.cache == Cache::Cold { Duration::ZERO } else { self.request.timing.warmup },
            duration: if self.request.work.io_size.is_some() {
                values::LONGEST
            } else {
                self.request.timing.duration
            },
            verify: verifier.cloned(),
        }
    }

    /// What was measured. The file is gone after this, if it was made here.
    fn into_results(self, interrupted: bool) -> Results {
        let behind = cells_behind(&self.runs);
        let mut notes: Vec<String> = behind.iter().map(|behind| behind.note.clone()).collect();
        notes.extend(notes::of(&self.test_file, &self.request, self.fio.as_ref(), &self.runs));
        let io_size_bytes =
            amount(&self.request, &self.test_file).map(|amount| amount * self.test_file.block);
        let (request, test_file) = (self.request, &self.test_file);
        let (timing, grid) = (request.timing, request.grid);
        let batches = || grid.depths.iter().filter_map(|depth| depth.batching);
        let mut machine = Machine::here(test_file.filesystem.clone(), ringfile::ring_features().ok());
        let took_part = |engine| self.runs.iter().any(|run| run.engine == engine);
        let fio = self.fio.as_ref().filter(|_| self.runs.iter().any(|run| run.engine.is_fio()));
        machine.fio = fio.map(|fio| fio.version.clone());
        let params = Params {
            file: test_file.path.to_string_lossy().into_owned(),
            file_created: test_file.created,
            size_bytes: test_file.size(),
            block_size_bytes: test_file.block,
            block_sizes_bytes: vec![test_file.block],
            processes: Vec::new(),
            rate_limit_bytes: None,
            parts: None,
            duration_s: if io_size_bytes.is_some() { 0.0 } else { timing.duration.as_secs_f64() },
            io_size_bytes,
            iodepth_batch_submit: request.settings.submit,
            iodepth_batch_complete: request.settings.complete,
            iodepth_low: request.settings.low,
            warmup_s: timing.warmup.as_secs_f64(),
            numjobs: grid.numjobs,
            iodepth: distinct(grid.depths.iter().map(|depth| depth.iodepth)),
            batch: distinct(batches().map(|batch| batch.size)),
            inflight: distinct(batches().map(|batch| batch.inflight)),
            rw: grid.rw,
            buffers: distinct(grid.ways.iter().map(|&(_, buffers)| buffers)),
            direct: request.direct,
            cache: grid.cache,
            route: distinct(grid.ways.iter().map(|&(route, _)| route)),
            ring_flags: Vec::new(),
            executor: grid.executor,
            against: grid
                .engines
                .into_iter()
                .filter(|&engine| !engine.is_ours() && took_part(engine))
                .collect(),
            rounds: grid.rounds,
            verify: request.verify,
        };
        Results {
            schema: SCHEMA,
            kind: Some(request.kind),
            command: command_line(),
            interrupted,
            machine,
            params,
            behind,
            runs: self.runs,
            notes,
            advice: Vec::new(),
            profile: Vec::new(),
        }
    }
}

fn print(output: &OutputArgs, results: &Results) -> Result<(), Failure> {
    let in_batches = results.runs.iter().any(|run| run.batch.is_some());
    let table = if in_batches { batches::table(&results.runs) } else { summary::table(&results.runs) };
    print_tables(output, results, &table, &[change::table(&results.runs), enters::table(&results.runs)])
}

/// Prints the tables and the notes of a session that has runs.
pub fn print_tables(
    output: &OutputArgs,
    results: &Results,
    table: &Table,
    others: &[Table],
) -> Result<(), Failure> {
    if results.runs.is_empty() {
        return Ok(());
    }
    let width = terminal::width();
    let mut text = table.text_of_width(width);
    for other in others.iter().filter(|other| !other.is_empty()) {
        text += &format!("\n{}", other.text_of_width(width));
    }
    if !output.quiet {
        text.push('\n');
        text += &terminal::notes(&results.notes, width);
    }
    output::print(&text)
}

/// Each value once, in their order.
pub fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    values.for_each(|value| {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    });
    distinct
}

/// About how long the file takes to fill: 500 MiB a second.
pub fn fill_time(test_file: &TestFile) -> Duration {
    if test_file.unfilled { Duration::from_millis(test_file.size() >> 19) } else { Duration::ZERO }
}

fn label(step: Step) -> Vec<String> {
    let mode = match step.batching {
        Some(_) => values::name(&step.buffers),
        None => format!("{} {}", values::name(&step.rw), values::name(&step.buffers)),
    };
    let depth = match step.batching {
        Some(Batching { size, inflight }) => format!("{inflight} × {size} in flight"),
        None => format!("depth {}", step.iodepth),
    };
    vec![format!("{} {mode}", values::name(&step.engine)), format!("jobs {}", step.numjobs), depth]
}

/// The command line, as a shell would take it.
pub fn command_line() -> String {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| values::shell_word(&argument)).collect();
    format!("ringfile {}", arguments.join(" "))
}
