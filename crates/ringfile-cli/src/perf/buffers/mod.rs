//! `ringfile perf buffers`: what registered and vectored buffers are worth on this file, and what to set for it.
//!
//! What must hold: everything that can be refused is refused before the first byte is read or written; what was measured is
//! printed and saved however the command ends.

mod asked;
mod grid;
mod processes;
mod profile;
mod session;
pub mod worker;

use std::time::{Duration, Instant};

pub use processes::WORKER;

use asked::{Access, Asked};
use grid::Grid;
use session::Session;

use super::session::command_line;
use crate::advice::{self, text};
use crate::cli::{BuffersArgs, Cache, Executor, OutputArgs};
use crate::counters;
use crate::engine::Engine;
use crate::error::{Failure, usage};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::report::behind::cells_behind;
use crate::report::buffers as tables;
use crate::report::output::{self, OutputFile};
use crate::report::outputs::Outputs;
use crate::report::profile as profiles;
use crate::report::results::{Kind, Machine, Params, Results, Run, SCHEMA};
use crate::terminal;
use crate::testfile::{DefaultPlace, Intent, TestFile, leftover};
use crate::values::{self, Bytes};
use crate::whole::why_no_memory_bandwidth;

/// Carries out the command.
pub fn run(args: &BuffersArgs) -> Result<(), Failure> {
    let began = Instant::now();
    leftover::tell(args.output.quiet);
    let files = Files::check(args)?;
    let asked = Asked::of(args)?;
    let interrupt = Interrupt::catch_signals()?;
    let Asked { test_file, mut grid, access, runs, limit } = asked;
    let mut intent = Intent {
        block: grid.largest_block(),
        writes: grid.rw.iter().any(|rw| rw.writes()),
        direct: false,
        verify: false,
        default_place: DefaultPlace::Disk,
    };
    let mut test_file = TestFile::open(&test_file, intent, &interrupt)?;
    fit(&mut grid, access, &mut test_file)?;
    intent.direct = grid.direct;

    let (left, whole) = session::time(&grid, &runs);
    let mut progress = Progress::new(left + super::session::fill_time(&test_file), args.output.quiet);
    progress.say(&announcement(&grid, left, whole, args));
    for note in &test_file.notes {
        progress.warn(note);
    }
    let mut notes = Vec::new();
    if let Some(why) = args.counters.then(counters::why_not).flatten() {
        progress.warn(&format!("--counters: {why}"));
        notes.push(format!("cycles and instructions were not counted: {why}"));
    }
    progress.begin(super::session::fill_time(&test_file));
    // Where all is measured, only what follows from it is to be had.
    let filled = if left.is_zero() && !args.profile {
        Ok(None)
    } else {
        test_file.prepare(intent, &mut |_| progress.tick(&["preparing the file".into()]))
    };
    let mut session = Session {
        grid: &grid,
        test_file: &test_file,
        interrupt: &interrupt,
        counters: args.counters,
        deadline: limit.map(|limit| began + limit),
        progress,
        runs,
        checkpoint: files.outputs.json(),
        notes,
    };
    let ended = filled.and_then(|_| session.measure(&|runs| results(&grid, &test_file, runs, true)));
    let profiles = match &ended {
        Ok(()) if args.profile => session.profile(),
        _ => Vec::new(),
    };
    session.progress.finish();
    let Session { runs, notes, .. } = session;
    let mut results = results(&grid, &test_file, &runs, matches!(ended, Err(Failure::Interrupted)));
    results.profile = profiles;
    results.notes.extend(notes);
    results.advice = advice::advise(&results);
    let printed = print(&args.output, &results);
    let saved = files.write(&results);
    ended.and(printed).and(saved)
}

/// Where results go beside the terminal, and the configuration that they advise.
struct Files {
    outputs: Outputs,
    config: Option<OutputFile>,
}

impl Files {
    fn check(args: &BuffersArgs) -> Result<Files, Failure> {
        let (output, measured) = (&args.output, args.test_file.file.as_deref());
        let outputs = match &args.resume {
            Some(resumed) => Outputs::check_resumed(resumed, output, measured)?,
            None => Outputs::check(output, measured)?,
        };
        let config = args.emit_config.as_deref();
        let config = config.map(|path| OutputFile::check(path, output.force)).transpose()?;
        if let Some(config) = &config {
            measured.map_or(Ok(()), |measured| config.check_apart_from(measured))?;
            outputs.check_apart(config, "where other results go: name another for the configuration")?;
        }
        Ok(Files { outputs, config })
    }

    fn write(&self, results: &Results) -> Result<(), Failure> {
        let written = self.outputs.write(results);
        let configured = match &self.config {
            Some(config) if !results.advice.is_empty() => config.write_text(&text::config(results)),
            Some(config) => usage(format!(
                "{} is not written: too little was measured for any advice",
                config.path().display()
            )),
            None => Ok(()),
        };
        written.and(configured)
    }
}

/// Makes the grid what the file can: direct or not, and in blocks that fit its alignment.
fn fit(grid: &mut Grid, access: Access, test_file: &mut TestFile) -> Result<(), Failure> {
    grid.direct = false;
    if access != Access::Buffered {
        match test_file.direct_alignment() {
            Ok(alignment) => {
                grid.direct = true;
                grid.alignment = alignment;
            }
            Err(why) if access == Access::Direct => {
                return usage(format!("{why}; leave out --direct or name another --file"));
            }
            Err(why) => test_file.notes.push(format!("measured through the page cache, for {why}")),
        }
    }
    let odd = grid.block_sizes.iter().find(|block| !block.is_multiple_of(grid.alignment));
    if let Some(odd) = odd {
        return usage(format!(
            "--bs {odd}: direct I/O on {} needs multiples of {}; change --bs or use --buffered",
            test_file.path.display(),
            grid.alignment
        ));
    }
    let small =
        test_file.size() < grid.processes.iter().max().map_or(1, |&most| most as u64) * grid.largest_block();
    if small {
        return usage(format!(
            "{} is too small for blocks of {}: raise --size or name a larger --file",
            test_file.path.display(),
            Bytes(grid.largest_block())
        ));
    }
    Ok(())
}

/// What will be done, and how long it takes.
fn announcement(grid: &Grid, left: Duration, whole: Duration, args: &BuffersArgs) -> String {
    let rough =
        |time: Duration| humantime::format_duration(Duration::from_secs(time.as_secs().max(1))).to_string();
    let cells = grid.processes.len() * grid.rw.len() * grid.block_sizes.len() * grid.depths.len();
    let mut text = format!("{cells} cells in {} rounds, about {}", grid.rounds, rough(whole));
    if left < whole {
        text += &format!(", of which {} are left", rough(left));
    }
    text += match (&args.resume, &args.output.json, args.quick) {
        (Some(_), _, _) => "; Ctrl-C stops it, and it can be resumed again",
        (_, Some(_), _) => "; Ctrl-C stops it, --resume goes on",
        (_, None, true) => "",
        (_, None, false) => "; with --json it could be stopped and resumed",
    };
    text
}

/// All that was measured so far, as `--json` has it.
fn results(grid: &Grid, test_file: &TestFile, runs: &[Run], interrupted: bool) -> Results {
    let params = Params {
        file: test_file.path.to_string_lossy().into_owned(),
        file_created: test_file.created,
        size_bytes: test_file.size(),
        block_size_bytes: grid.block_sizes[0],
        block_sizes_bytes: grid.block_sizes.clone(),
        processes: grid.processes.clone(),
        rate_limit_bytes: None,
        parts: Some(grid.parts),
        duration_s: grid.duration.as_secs_f64(),
        io_size_bytes: None,
        iodepth_batch_submit: None,
        iodepth_batch_complete: None,
        iodepth_low: None,
        warmup_s: grid.warmup.as_secs_f64(),
        numjobs: vec![1],
        iodepth: grid.depths.clone(),
        batch: Vec::new(),
        inflight: Vec::new(),
        rw: grid.rw.clone(),
        buffers: grid.buffers.clone(),
        direct: grid.direct,
        cache: vec![if grid.direct { Cache::Keep } else { Cache::Warm }],
        route: vec![grid.route],
        ring_flags: grid.ring_flags.iter().flatten().copied().collect(),
        executor: vec![Executor::Ringfile],
        against: if grid.by_hand { vec![Engine::ByHand] } else { Vec::new() },
        rounds: grid.rounds,
        verify: false,
    };
    let behind = cells_behind(runs);
    let said = behind.iter().map(|behind| behind.note.clone());
    Results {
        schema: SCHEMA,
        kind: Some(Kind::Buffers),
        command: command_line(),
        interrupted,
        machine: Machine::here(test_file.filesystem.clone(), ringfile::ring_features().ok()),
        params,
        notes: said.chain(notes(grid, test_file, runs)).collect(),
        behind,
        runs: runs.to_vec(),
        advice: Vec::new(),
        profile: Vec::new(),
    }
}

fn notes(grid: &Grid, test_file: &TestFile, runs: &[Run]) -> Vec<String> {
    let time = humantime::format_duration;
    let created = if test_file.created { ", made for this run and removed" } else { "" };
    let sizes: Vec<String> = grid.block_sizes.iter().map(|&block| Bytes(block).to_string()).collect();
    let mut notes = vec![
        format!(
            "{} on {}: {} in blocks of {}, {}{created}",
            test_file.path.display(),
            test_file.filesystem,
            Bytes(test_file.size()),
            sizes.join(", "),
            if grid.direct { "direct" } else { "through the page cache" },
        ),
        format!(
            "{} a run after {} of warm-up, {}, route {}; each process on a core of its own",
            time(grid.duration),
            time(grid.warmup),
            super::notes::rounds(grid.rounds),
            values::name(&grid.route)
        ),
        super::notes::machine(),
        "ratios are paired within rounds, with the least and the most; a star: every round is outside the noise, which A/A runs measure"
            .into(),
        "latencies in µs from hand-in to completion; user and sys: CPU time in per cent of a core, kernel workers included; \
         CPU µs, sw (context switches) and calls (system calls) for one operation"
            .into(),
        "whole machine: CPU time of all cores in per cent of one, whoever used it: own is that of the processes that measured, irq \
         that of interrupts, idle with waiting for I/O; irqs: interrupts for one operation"
            .into(),
    ];
    notes.extend(why_no_memory_bandwidth().map(|why| format!("no memory bandwidth: {why}")));
    notes.extend(rings(grid));
    notes.extend(test_file.notes.iter().cloned());
    let without: Vec<String> = grid
        .block_sizes
        .iter()
        .filter(|&&block| {
            grid.buffers.iter().any(|buffers| buffers.vectored()) && grid.parts_of(block).is_none()
        })
        .map(|&block| Bytes(block).to_string())
        .collect();
    if !without.is_empty() {
        notes.push(format!(
            "no vectored rows for {}: the file's alignment of {} allows no two parts",
            without.join(", "),
            grid.alignment
        ));
    }
    notes.extend(super::notes::routes(runs));
    notes.extend(super::notes::registered(runs));
    notes
}

/// What the rings are that the figures are of, where that was asked for.
fn rings(grid: &Grid) -> Option<String> {
    let by_hand = "by hand: a loop over a ring with file and ring registered, and the same buffers";
    let flags = "ring flags: none (neither COOP_TASKRUN nor DEFER_TASKRUN), coop (COOP_TASKRUN), defer (DEFER_TASKRUN and \
                 SINGLE_ISSUER), sqpoll (a kernel thread submits, on any core); a ring of the library's has SINGLE_ISSUER and \
                 NO_SQARRAY always";
    match (grid.ring_flags != [None], grid.by_hand) {
        (true, true) => Some(format!("{by_hand}; {flags}")),
        (true, false) => Some(flags.into()),
        (false, true) => {
            Some(format!("{by_hand}, with SINGLE_ISSUER and DEFER_TASKRUN where there are such"))
        }
        (false, false) => None,
    }
}

fn print(output: &OutputArgs, results: &Results) -> Result<(), Failure> {
    if results.runs.is_empty() {
        return Ok(());
    }
    let width = terminal::width();
    let mut all = String::new();
    for table in tables::tables(results) {
        all += &table.text_of_width(width);
        all.push('\n');
    }
    if !results.profile.is_empty() {
        for table in [profiles::table(&results.profile), profiles::apart(&results.profile)] {
            if !table.is_empty() {
                all += &table.text_of_width(width);
                all.push('\n');
            }
        }
    }
    all += &text::block(results, width);
    all.push('\n');
    if !output.quiet {
        all += &terminal::notes(&results.notes, width);
    }
    output::print(&all)
}
