//! `ringfile perf multiread`: blocking reads of many blocks at once, from several threads.

use super::plan::{Depth, Grid, Timing, every_way};
use super::session::{self, Request};
use super::{default_cache, engines, opened};
use crate::cli::MultireadArgs;
use crate::error::Failure;
use crate::job::BatchSettings;
use crate::model::{Engine, Kind};
use crate::values;

/// The engines, in the order of the table.
const ENGINES: [Engine; 5] =
    [Engine::Ringfile, Engine::TwoRings, Engine::SubmitOnly, Engine::Pread, Engine::Fio];

/// Carries out the command.
pub fn run(args: &MultireadArgs) -> Result<(), Failure> {
    let sizes = values::listed(&args.reads.batch, &[10, 250, 1000]);
    session::run(Request {
        kind: Kind::Multiread,
        test_file: args.test_file.clone(),
        timing: Timing::of(&args.timing),
        work: args.reads.work,
        settings: BatchSettings::default(),
        output: &args.output,
        verify: false,
        counters: false,
        grid: Grid {
            numjobs: args.numjobs.values().to_vec(),
            depths: sizes.iter().map(|&size| Depth::of_batches(size, 1)).collect(),
            blocks: vec![args.bs],
            open: vec![opened(args.reads.direct)],
            cache: default_cache(&args.reads.cache, args.reads.direct),
            ways: every_way(args.reads.route.values(), args.reads.buffers.values()),
            engines: engines(args.reads.engines.as_ref(), &ENGINES)?,
            rounds: args.timing.rounds,
            ..Grid::plain()
        },
    })
}
