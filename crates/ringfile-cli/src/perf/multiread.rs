//! `ringfile perf multiread`: blocking reads of many blocks at once, from several threads.

use super::plan::{Depth, Grid, every_way};
use super::session::{self, Request};
use super::{default_cache, engines};
use crate::cli::{Executor, MultireadArgs, Rw};
use crate::engine::Engine;
use crate::error::Failure;
use crate::job::BatchSettings;
use crate::report::results::Kind;

/// What takes part, in this order.
const ENGINES: [Engine; 5] =
    [Engine::Ringfile, Engine::TwoRings, Engine::SubmitOnly, Engine::Pread, Engine::Fio];

/// Carries out the command.
pub fn run(args: &MultireadArgs) -> Result<(), Failure> {
    super::refuse_mixed(args.reads.cache.as_ref())?;
    let sizes = args.reads.batch.as_ref().map_or(vec![10, 250, 1000], |list| list.values().to_vec());
    session::run(Request {
        kind: Kind::Multiread,
        test_file: &args.test_file,
        timing: &args.timing,
        work: args.reads.work,
        settings: BatchSettings::default(),
        output: &args.output,
        block: args.bs,
        direct: args.reads.direct,
        verify: false,
        grid: Grid {
            numjobs: args.numjobs.values().to_vec(),
            depths: sizes.iter().map(|&size| Depth::of_batches(size, 1)).collect(),
            rw: vec![Rw::RandRead],
            cache: default_cache(args.reads.cache.as_ref(), args.reads.direct),
            ways: every_way(args.reads.route.values(), args.reads.buffers.values()),
            executor: vec![Executor::Ringfile],
            engines: engines(args.reads.engines.as_ref(), &ENGINES)?,
            rounds: args.timing.rounds,
        },
    })
}
