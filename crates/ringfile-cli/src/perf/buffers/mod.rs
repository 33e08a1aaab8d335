//! `ringfile perf buffers`: what registered and vectored buffers are worth on this file, and what to set for it.
//!
//! Invariants: everything that can be refused is refused before the first byte is read or written; what was measured is
//! printed and saved however the command ends.

mod asked;
mod profile;

use std::time::{Duration, Instant};

use asked::{Asked, AskedOpen};

use super::outputs::{self, Outputs};
use super::plan::Grid;
use super::request::Request;
use super::session::Session;
use crate::advice::{self, text};
use crate::cli::BuffersArgs;
use crate::error::{Failure, refuse, usage};
use crate::interrupt::Interrupt;
use crate::model::{Cache, Kind, Open};
use crate::report::output::{self, OutputFile};
use crate::testfile::{DefaultPlace, Intent, TestFile};
use crate::values::Bytes;

/// Carries out the command.
pub fn run(args: &BuffersArgs) -> Result<(), Failure> {
    let began = Instant::now();
    let output = args.output();
    let (outputs, config) = check_outputs(args)?;
    let Asked { test_file: wanted, mut grid, timing, access, limit } = Asked::of(args)?;
    let interrupt = Interrupt::catch_signals()?;
    let mut intent = Intent {
        block: grid.largest_block(),
        writes: grid.rw.iter().any(|rw| rw.writes()),
        direct: false,
        verify: false,
        default_place: DefaultPlace::Disk,
    };
    let mut test_file = TestFile::open(&wanted, intent, &interrupt)?;
    fit(&mut grid, access, &mut test_file)?;
    intent.direct = grid.is_direct();

    let request =
        Request { kind: Kind::Buffers, test_file: wanted, timing, output: &output, verify: false, grid };
    let mut session = Session::new(request, test_file, interrupt);
    session.deadline = limit.map(|limit| began + limit);
    session.progress.say(&announcement(&session.request.grid, session.whole()));
    let ended = session.prepare(intent).and_then(|_| session.measure(None, outputs.json.as_ref()));
    let profiles = match &ended {
        Ok(()) if args.profile => profile::of(&mut session),
        Ok(()) | Err(_) => Vec::new(),
    };
    let mut results = session.into_results(matches!(ended, Err(Failure::Interrupted)));
    results.profile = profiles;
    results.advice = advice::advise(&results);
    let concluded = outputs::conclude(ended, &output, &outputs, &results);
    concluded.and(match &config {
        Some(config) if !results.advice.is_empty() => {
            let written = config.write_text(&text::config(&results));
            output::tell([config].into_iter().filter(|_| !args.output.quiet));
            written
        }
        Some(config) => refuse(config.path(), "is not written: too little was measured for any advice"),
        None => Ok(()),
    })
}

/// Checks the output files, and the file for the advised configuration.
fn check_outputs(args: &BuffersArgs) -> Result<(Outputs, Option<OutputFile>), Failure> {
    let (output, measured) = (&args.output, args.test_file.file.as_deref());
    let outputs = Outputs::check(output, measured)?;
    let config = args.emit_config.as_deref();
    let config = config.map(|path| OutputFile::check(path, output.force)).transpose()?;
    if let Some(config) = &config {
        measured.map_or(Ok(()), |measured| config.check_apart_from(measured))?;
        let what = "also the file for other results: name another one for the configuration";
        outputs.check_apart(config, what)?;
    }
    Ok((outputs, config))
}

/// Adapts the grid to the file: whether direct I/O is used, and blocks that fit its alignment.
fn fit(grid: &mut Grid, access: AskedOpen, test_file: &mut TestFile) -> Result<(), Failure> {
    (grid.open, grid.cache) = (vec![Open::Buffered], vec![Cache::Warm]);
    if access != AskedOpen::Buffered {
        match test_file.direct_alignment() {
            Ok(alignment) => {
                (grid.open, grid.cache) = (vec![Open::Direct], vec![Cache::Keep]);
                grid.alignment = alignment;
            }
            Err(why) if access == AskedOpen::Direct => {
                return usage(format!("{why}; leave out --direct or name another --file"));
            }
            Err(why) => test_file.notes.push(format!("measured through the page cache: {why}")),
        }
    }
    let odd = grid.blocks.iter().find(|block| !block.is_multiple_of(grid.alignment));
    if let Some(odd) = odd {
        let (path, alignment) = (test_file.path.display(), grid.alignment);
        return usage(format!(
            "--bs {odd}: direct I/O on {path} needs multiples of {alignment}; change --bs or use --buffered"
        ));
    }
    if test_file.size() < grid.most().0 * grid.largest_block() {
        let largest = Bytes(grid.largest_block());
        let why = format!("is too small for blocks of {largest}: raise --size or name a larger --file");
        return refuse(&test_file.path, why);
    }
    Ok(())
}

/// Returns what will be measured, and how long it will take.
fn announcement(grid: &Grid, length: Duration) -> String {
    let rough = humantime::format_duration(Duration::from_secs(length.as_secs().max(1)));
    let cells = grid.numjobs.len() * grid.rw.len() * grid.blocks.len() * grid.depths.len();
    format!("{cells} cells in {} rounds, about {rough}", grid.rounds)
}
