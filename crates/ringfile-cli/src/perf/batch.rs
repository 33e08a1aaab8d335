//! `ringfile perf batch`: random reads in batches, several batches in flight for each thread.

use super::plan::{Depth, Grid, Timing, every_way};
use super::session::{self, Request};
use super::{default_numjobs, engines, opened};
use crate::cli::BatchArgs;
use crate::error::Failure;
use crate::job::BatchSettings;
use crate::model::{Cache, Engine, Kind};
use crate::values;

/// The engines, in the order of the table.
const ENGINES: [Engine; 4] =
    [Engine::RingfileBlocking, Engine::RingfileTokio, Engine::RingfileQueue, Engine::Fio];

/// Carries out the command.
pub fn run(args: &BatchArgs) -> Result<(), Failure> {
    let sizes = values::listed(&args.reads.batch, &[64]);
    let depths = sizes.iter().flat_map(|&size| {
        args.inflight.values().iter().map(move |&inflight| Depth::of_batches(size, inflight))
    });
    let default_cache = if args.reads.direct { Cache::Keep } else { Cache::Cold };
    session::run(Request {
        kind: Kind::Batch,
        test_file: args.test_file.clone(),
        timing: Timing::of(&args.timing),
        work: args.reads.work,
        settings: BatchSettings {
            submit: args.queue.iodepth_batch_submit.map(|count| count as usize),
            complete: args.queue.iodepth_batch_complete.map(|count| count as usize),
            low: args.queue.iodepth_low.map(|count| count as usize),
        },
        output: &args.output,
        verify: false,
        counters: false,
        grid: Grid {
            numjobs: values::listed(&args.numjobs, &default_numjobs()),
            depths: depths.collect(),
            blocks: vec![args.bs],
            open: vec![opened(args.reads.direct)],
            cache: values::listed(&args.reads.cache, &[default_cache]),
            ways: every_way(args.reads.route.values(), args.reads.buffers.values()),
            engines: engines(args.reads.engines.as_ref(), &ENGINES)?,
            rounds: args.timing.rounds,
            ..Grid::plain()
        },
    })
}
