//! `ringfile perf file --cache mixed`: repeated reads during a scan of the file, with memory for a quarter of the file if
//! the process may make a control group.
//!
//! Compares policies for what stays in memory: the library's (adaptive), the kernel's (buffered) and none (direct).

use super::check::SMALLEST_MIXED;
use super::plan::{Depth, Grid};
use super::request::Request;
use super::session;
use crate::cli::FileArgs;
use crate::engine::mixed::SCAN;
use crate::error::{Failure, usage};
use crate::model::{Buffers, Cache, Kind, Open, Route};

/// The ways to open the file that are compared, in this order.
const COMPARED: [Open; 3] = [Open::Adaptive, Open::Buffered, Open::Direct];

/// Carries out the command.
pub fn run(args: &FileArgs) -> Result<(), Failure> {
    check(args)?;
    let route = args.route.as_ref().map_or(Route::Auto, |list| list.values()[0]);
    let grid = Grid {
        cache: vec![Cache::Mixed],
        blocks: vec![args.bs],
        depths: vec![Depth::of(args.iodepth.values()[0])],
        open: COMPARED.to_vec(),
        ways: vec![(route, Buffers::Normal)],
        rounds: args.run.timing.rounds,
        ..Grid::plain()
    };
    session::run(Request::new(Kind::Mixed, &args.run, grid))
}

/// Refuses options that do not apply.
fn check(args: &FileArgs) -> Result<(), Failure> {
    if args.cache.as_ref().is_none_or(|list| list.values().len() != 1) {
        return usage("--cache mixed stands alone: leave out other states");
    }
    let given = [
        ("--numjobs", args.numjobs.is_some()),
        ("--rw", args.rw.is_some()),
        ("--buffers", args.buffers.is_some()),
        ("--direct", args.direct),
        ("--open", args.open.is_some()),
        ("--against", args.against.is_some()),
        ("--verify", args.verify),
    ];
    if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
        return usage(format!("--cache mixed is one fixed mix of reads: leave out {option}"));
    }
    if args.run.test_file.size() < SMALLEST_MIXED || args.bs > SCAN {
        return usage("--cache mixed needs --size 256m at least, and --bs 128k at most");
    }
    Ok(())
}
