//! `ringfile perf file`: one file or device, every combination of what was asked for.

use super::plan::{Depth, Grid};
use super::session::{self, Request};
use super::{default_cache, default_numjobs, has_ring};
use crate::cli::{Against, FileArgs, Route};
use crate::engine::Engine;
use crate::error::Failure;
use crate::job::BatchSettings;
use crate::report::results::Kind;

/// Carries out the command.
pub fn run(args: &FileArgs) -> Result<(), Failure> {
    session::run(Request {
        kind: Kind::File,
        test_file: &args.test_file,
        timing: &args.timing,
        work: args.work,
        settings: BatchSettings::default(),
        output: &args.output,
        block: args.bs,
        direct: args.direct,
        verify: args.verify,
        grid: grid(args),
    })
}

fn grid(args: &FileArgs) -> Grid {
    let default_route = if args.direct && has_ring() { Route::Ring } else { Route::Auto };
    let against = args.against.iter().flat_map(|list| list.values());
    Grid {
        numjobs: args.numjobs.as_ref().map_or_else(default_numjobs, |list| list.values().to_vec()),
        depths: args.iodepth.values().iter().map(|&iodepth| Depth::of(iodepth)).collect(),
        rw: args.rw.values().to_vec(),
        buffers: args.buffers.values().to_vec(),
        cache: default_cache(args.cache.as_ref(), args.direct),
        route: args.route.as_ref().map_or(vec![default_route], |list| list.values().to_vec()),
        executor: args.executor.values().to_vec(),
        engines: std::iter::once(Engine::Ringfile)
            .chain(against.map(|&against| engine_of(against)))
            .collect(),
        rounds: args.timing.rounds,
    }
}

fn engine_of(against: Against) -> Engine {
    match against {
        Against::Fio => Engine::Fio,
        Against::FioBatch => Engine::FioBatch,
        Against::FioPsync => Engine::FioPsync,
        Against::Pread => Engine::Pread,
    }
}
