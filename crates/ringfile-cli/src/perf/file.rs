//! `ringfile perf file`: one file or device, and every combination of the requested values.

use super::plan::{Depth, Grid, every_way};
use super::request::Request;
use super::session;
use super::{default_cache, default_numjobs, has_ring, mixed, opened};
use crate::cli::FileArgs;
use crate::error::Failure;
use crate::model::{Buffers, Cache, Engine, Kind, Open, Route, Rw};
use crate::values::{self, List};

/// Carries out the command.
pub fn run(args: &FileArgs) -> Result<(), Failure> {
    if args.cache.as_ref().is_some_and(|list| list.values().contains(&Cache::Mixed)) {
        return mixed::run(args);
    }
    session::run(Request { verify: args.verify, ..Request::new(Kind::File, &args.run, grid(args)) })
}

fn grid(args: &FileArgs) -> Grid {
    let against = args.against.iter().flat_map(|list| list.values());
    let open = values::listed(&args.open, &[opened(args.direct)]);
    Grid {
        numjobs: values::listed(&args.numjobs, &default_numjobs()),
        blocks: vec![args.bs],
        depths: args.iodepth.values().iter().map(|&iodepth| Depth::of(iodepth)).collect(),
        rw: values::listed(&args.rw, &[Rw::RandRead, Rw::RandWrite]),
        cache: default_cache(&args.cache, open == [Open::Direct]),
        open,
        ways: ways(args, has_ring()),
        engines: std::iter::once(&Engine::Ringfile).chain(against).copied().collect(),
        rounds: args.run.timing.rounds,
        ..Grid::plain()
    }
}

/// Returns the requested routes and buffers. The default compares both kinds of buffers on the ring, since they differ
/// only there, and adds the library's own choice with the memory that a program gets from a pool: registered.
fn ways(args: &FileArgs, has_ring: bool) -> Vec<(Route, Buffers)> {
    let asked = args.buffers.as_ref().map(List::values);
    let buffers = asked.unwrap_or(&Buffers::WHOLE);
    let direct = args.direct || args.open.as_ref().is_some_and(|open| open.values().contains(&Open::Direct));
    match (&args.route, asked, direct) {
        (Some(routes), ..) => every_way(routes.values(), buffers),
        (None, _, true) if has_ring => every_way(&[Route::Ring], buffers),
        (None, None, false) if has_ring => {
            let mut ways = every_way(&[Route::Ring], buffers);
            ways.push((Route::Auto, Buffers::Fixed));
            ways
        }
        (None, ..) => every_way(&[Route::Auto], buffers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::PerfCommand;
    use crate::cli::tests::perf;

    fn asked(options: &str, has_ring: bool) -> Vec<(Route, Buffers)> {
        let PerfCommand::File(args) = perf(&format!("file {options}")) else { panic!("another command") };
        ways(&args, has_ring)
    }

    #[test]
    fn without_options_the_ring_shows_what_registering_is_worth_and_auto_stands_beside_it() {
        use {Buffers::*, Route::*};
        for (options, ways) in [
            ("", &[(Ring, Normal), (Ring, Fixed), (Auto, Fixed)][..]),
            ("--direct", &[(Ring, Normal), (Ring, Fixed)]),
            ("--buffers normal,fixed", &[(Auto, Normal), (Auto, Fixed)]),
            ("--buffers normal --direct", &[(Ring, Normal)]),
            ("--route auto", &[(Auto, Normal), (Auto, Fixed)]),
            ("--route inline --buffers normal", &[(Inline, Normal)]),
            ("--route auto,ring --direct", &[(Auto, Normal), (Auto, Fixed), (Ring, Normal), (Ring, Fixed)]),
        ] {
            assert_eq!(asked(options, true), ways, "{options:?}");
        }
        assert_eq!(asked("", false), [(Auto, Normal), (Auto, Fixed)]);
        assert_eq!(asked("--direct", false), [(Auto, Normal), (Auto, Fixed)]);
    }
}
