//! What the user asked `perf buffers` for, and the refusal of what no machine could carry out.

use std::path::Path;
use std::time::Duration;

use super::super::check::{check_block, check_memory};
use super::super::plan::{Depth, Grid, Timing, every_way};
use crate::cli::{BuffersArgs, TestFileArgs};
use crate::engine::Fio;
use crate::engine::hand_ring;
use crate::error::{Failure, errno_text, usage};
use crate::machine;
use crate::model::{Buffers, Engine, RingFlags, Route, Rw};
use crate::numbers::counted;
use crate::perf::has_ring;
use crate::values::{self, List, listed};

/// What to measure, and on which file.
#[derive(Debug)]
pub struct Asked {
    /// The file.
    pub test_file: TestFileArgs,
    /// All runs. Whether they use direct I/O is decided when the file is known.
    pub grid: Grid,
    /// How long each run is.
    pub timing: Timing,
    /// Whether to use O_DIRECT.
    pub access: AskedOpen,
    /// Time from the start after which remaining runs are left out.
    pub limit: Option<Duration>,
}

/// Whether to bypass the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedOpen {
    /// If the file supports it.
    DirectIfPossible,
    /// Always; an error if the file does not support it.
    Direct,
    /// Never.
    Buffered,
}

/// Within this time all runs of a quick measurement have ended; printing and saving take less than the rest of two
/// minutes.
const QUICK_LIMIT: Duration = Duration::from_secs(110);

impl Asked {
    /// Reads the command line.
    pub fn of(args: &BuffersArgs) -> Result<Asked, Failure> {
        let ms = Duration::from_millis;
        let (blocks, depths, duration, warmup, rounds, threads): (&[u64], &[usize], _, _, _, _) =
            match args.quick {
                true => (&[4 << 10, 128 << 10], &[1, 16, 128], ms(150), ms(30), 5, 1),
                false => (
                    &[4 << 10, 16 << 10, 32 << 10, 128 << 10, 512 << 10],
                    &[1, 4, 16, 64, 128],
                    ms(1000),
                    ms(200),
                    3,
                    2,
                ),
            };
        let exists = args.test_file.file.as_deref().is_some_and(Path::exists);
        let default_rw = if exists && !args.test_file.overwrite {
            vec![Rw::RandRead]
        } else {
            vec![Rw::RandRead, Rw::RandWrite]
        };
        let has_ring = has_ring();
        let route = args.route.unwrap_or(if has_ring { Route::Ring } else { Route::Auto });
        let grid = Grid {
            blocks: listed(&args.bs, blocks),
            depths: listed(&args.iodepth, depths).into_iter().map(Depth::of).collect(),
            ways: every_way(&[route], &listed(&args.buffers, &Buffers::ALL)),
            parts: args.parts as usize,
            numjobs: listed(&args.numjobs, &(1..=machine::cpus().min(threads)).collect::<Vec<usize>>()),
            rw: listed(&args.rw, &default_rw),
            ring_flags: flags(args.ring_flags.as_ref().map_or(&[], List::values)),
            engines: [Engine::Ringfile].into_iter().chain(args.by_hand.then_some(Engine::ByHand)).collect(),
            choices: true,
            // Without fio, nothing is missing from the advice.
            fio: has_ring && Fio::find().is_ok_and(|fio| fio.is_some()),
            has_ring,
            rounds: args.rounds.unwrap_or(rounds),
            ..Grid::plain()
        };
        let timing =
            Timing { warmup: args.warmup.unwrap_or(warmup), duration: args.duration.unwrap_or(duration) };
        let access = match (args.direct, args.buffered) {
            (true, _) => AskedOpen::Direct,
            (_, true) => AskedOpen::Buffered,
            _ => AskedOpen::DirectIfPossible,
        };
        let test_file = args.test_file();
        let asked = Asked { test_file, grid, timing, access, limit: args.quick.then_some(QUICK_LIMIT) };
        asked.check()?;
        Ok(asked)
    }

    fn check(&self) -> Result<(), Failure> {
        let grid = &self.grid;
        check_block(grid.largest_block(), self.test_file.size())?;
        let most = grid.most().0 as usize;
        let cores = machine::cpus();
        if most > cores {
            let cores = counted(cores, "core");
            let why = format!("{most} threads need a core each, and this process may use {cores}");
            return usage(format!("{why}: lower --numjobs"));
        }
        check_rings(grid)?;
        let advice = "less --iodepth, smaller --bs, or a lower --numjobs";
        check_memory(grid.memory(), " at the largest depth", advice)
    }
}

/// Refuses options of rings if no ring is used or the kernel refuses the flags, so that nothing is measured with other
/// flags.
fn check_rings(grid: &Grid) -> Result<(), Failure> {
    let by_hand = grid.engines.contains(&Engine::ByHand);
    let asked = if by_hand { "--by-hand" } else { "--ring-flags" };
    if !by_hand && grid.ring_flags == [None] {
        return Ok(());
    }
    if let Some((route, _)) = grid.ways.iter().find(|(route, _)| *route != Route::Ring) {
        return usage(format!("{asked} is about rings, and --route {} uses none", values::name(route)));
    }
    for &flags in &grid.ring_flags {
        if let Err(error) = hand_ring::make_ring(flags, 8) {
            let flags = flags.map_or(asked.into(), |flags| format!("--ring-flags {}", values::name(&flags)));
            return usage(format!("{flags}: this kernel refuses such a ring: {}", errno_text(&error)));
        }
    }
    Ok(())
}

fn flags(asked: &[RingFlags]) -> Vec<Option<RingFlags>> {
    if asked.is_empty() { vec![None] } else { asked.iter().copied().map(Some).collect() }
}
