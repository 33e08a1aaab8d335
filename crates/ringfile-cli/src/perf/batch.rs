//! `ringfile perf batch`: random reads in batches, several batches in flight for each thread. `ringfile perf multiread`:
//! blocking reads of many blocks at once, from several threads.

use super::plan::{Depth, Grid, every_way};
use super::request::Request;
use super::{default_numjobs, opened, session};
use crate::cli::{BatchArgs, BatchReadArgs, MultireadArgs};
use crate::error::{Failure, usage};
use crate::model::{Cache, Engine, Kind};
use crate::values::{self, List};

/// Carries out `ringfile perf batch`.
pub fn run(args: &BatchArgs) -> Result<(), Failure> {
    use Engine::{Fio, RingfileBlocking, RingfileQueue, RingfileTokio};
    let sizes = values::listed(&args.reads.batch, &[64]);
    let depths = sizes.iter().flat_map(|&size| {
        args.inflight.values().iter().map(move |&inflight| Depth::of_batches(size, inflight))
    });
    let grid = Grid {
        numjobs: values::listed(&args.numjobs, &default_numjobs()),
        depths: depths.collect(),
        engines: vec![RingfileBlocking, RingfileTokio, RingfileQueue, Fio],
        cache: vec![Cache::Cold],
        blocks: vec![args.bs],
        ..Grid::plain()
    };
    read(Kind::Batch, &args.reads, grid)
}

/// Carries out `ringfile perf multiread`.
pub fn run_multiread(args: &MultireadArgs) -> Result<(), Failure> {
    use Engine::{ByHand, Fio, Pread, Ringfile};
    let sizes = values::listed(&args.reads.batch, &[10, 250, 1000]);
    let grid = Grid {
        numjobs: args.numjobs.values().to_vec(),
        depths: sizes.iter().map(|&size| Depth::of_batches(size, 1)).collect(),
        engines: vec![Ringfile, ByHand, Pread, Fio],
        cache: vec![Cache::Warm],
        blocks: vec![args.bs],
        ..Grid::plain()
    };
    read(Kind::Multiread, &args.reads, grid)
}

/// Carries out a command whose grid has all engines, and the state of the page cache that it begins with by default.
fn read(kind: Kind, args: &BatchReadArgs, grid: Grid) -> Result<(), Failure> {
    let cache = if args.direct { vec![Cache::Keep] } else { grid.cache };
    let grid = Grid {
        open: vec![opened(args.direct)],
        cache: values::listed(&args.cache, &cache),
        ways: every_way(args.route.values(), args.buffers.values()),
        engines: engines(args.engines.as_ref(), &grid.engines)?,
        rounds: args.run.timing.rounds,
        ..grid
    };
    session::run(Request::new(kind, &args.run, grid))
}

/// Returns the requested engines; the first must be one of this library's.
fn engines(asked: Option<&List<Engine>>, all: &[Engine]) -> Result<Vec<Engine>, Failure> {
    let Some(asked) = asked.map(List::values) else { return Ok(all.to_vec()) };
    let names = |engines: &[Engine]| engines.iter().map(values::name).collect::<Vec<_>>().join(", ");
    if let Some(other) = asked.iter().find(|engine| !all.contains(engine)) {
        let (other, known) = (values::name(other), names(all));
        return usage(format!("--engines {other} is not known here; choose from {known}"));
    }
    let (ours, others): (Vec<Engine>, Vec<Engine>) = asked.iter().partition(|engine| engine.is_ours());
    if ours.is_empty() {
        let ours: Vec<Engine> = all.iter().copied().filter(|engine| engine.is_ours()).collect();
        return usage(format!("--engines has nothing of ringfile to compare with: add {}", names(&ours)));
    }
    Ok([ours, others].concat())
}
