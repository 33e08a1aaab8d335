//! What the user asked `perf buffers` for, by the command line or by the file of an interrupted measurement; and the
//! refusal of what no machine could carry out.

use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::check::{SECTOR, check_block, check_memory};
use super::super::plan::{Depth, Grid, Timing, every_way};
use crate::cli::{BuffersArgs, MOST_DEPTH, MOST_PARTS, MOST_PROCESSES, MOST_ROUNDS, TestFileArgs};
use crate::engine::fio::Fio;
use crate::engine::hand_ring;
use crate::error::{Failure, cant, errno_text, refuse, usage};
use crate::machine;
use crate::model::{Buffers, Engine, Kind, Params, Results, RingFlags, Route, Run, Rw};
use crate::numbers::counted;
use crate::perf::has_ring;
use crate::report::saved;
use crate::testfile::{DefaultPlace, default_name};
use crate::values::{self, List, listed};

/// The longest accepted run in seconds: 24 hours.
const LONGEST_RUN: f64 = 86_400.0;

/// What to measure, on which file, and which runs are there already.
#[derive(Debug)]
pub struct Asked {
    /// The file.
    pub test_file: TestFileArgs,
    /// All runs. Whether they use direct I/O is decided when the file is known.
    pub grid: Grid,
    /// How long each run is.
    pub timing: Timing,
    /// Whether to use O_DIRECT.
    pub access: Access,
    /// Runs of the interrupted measurement.
    pub runs: Vec<Run>,
    /// Time from the start after which remaining runs are left out.
    pub limit: Option<Duration>,
}

/// Whether to bypass the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
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
    /// Reads the command line and, with `--resume`, the saved results.
    pub fn of(args: &BuffersArgs) -> Result<Asked, Failure> {
        let asked = match &args.resume {
            Some(path) => Asked::resumed(args, path)?,
            None => Asked::anew(args),
        };
        asked.check()?;
        Ok(asked)
    }

    fn anew(args: &BuffersArgs) -> Asked {
        let ms = Duration::from_millis;
        let (blocks, depths, duration, warmup, rounds, processes): (&[u64], &[usize], _, _, _, _) =
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
            processes: listed(&args.processes, &(1..=machine::cpus().min(processes)).collect::<Vec<usize>>()),
            rw: listed(&args.rw, &default_rw),
            ring_flags: flags(args.ring_flags.as_ref().map_or(&[], List::values)),
            engines: engines(args.by_hand),
            choices: true,
            fio: has_fio(),
            has_ring,
            rounds: args.rounds.unwrap_or(rounds),
            ..Grid::plain()
        };
        let timing =
            Timing { warmup: args.warmup.unwrap_or(warmup), duration: args.duration.unwrap_or(duration) };
        let access = match (args.direct, args.buffered) {
            (true, _) => Access::Direct,
            (_, true) => Access::Buffered,
            _ => Access::DirectIfPossible,
        };
        let test_file = args.test_file();
        Asked { test_file, grid, timing, access, runs: Vec::new(), limit: args.quick.then_some(QUICK_LIMIT) }
    }

    fn resumed(args: &BuffersArgs, path: &Path) -> Result<Asked, Failure> {
        let Results { kind, params, runs, .. } = saved::read(path)?;
        if kind != Some(Kind::Buffers) {
            let why = "is not of ringfile perf buffers, so it cannot be resumed: name another file";
            return refuse(path, why);
        }
        let lacks = |what: &str| refuse(path, format!("names no {what}: start again with --json"));
        if let Some(what) = out_of_bounds(&params) {
            return refuse(path, format!("names a {what} that can't be measured: start again with --json"));
        }
        let Params { file, file_created, file_inode, size_bytes, duration_s, warmup_s, .. } = params;
        let (Ok(duration), Ok(warmup)) =
            (Duration::try_from_secs_f64(duration_s), Duration::try_from_secs_f64(warmup_s))
        else {
            return lacks("length of its runs");
        };
        let Params { block_sizes_bytes: blocks, iodepth, buffers, processes, rw, .. } = params;
        let has_none = blocks.is_empty() || iodepth.is_empty() || buffers.is_empty();
        let has_none = has_none || processes.is_empty() || rw.is_empty();
        let Some(&route) = params.route.first().filter(|_| !has_none) else { return lacks("grid") };
        let mut file = PathBuf::from(file);
        if file_created {
            file.set_file_name(default_name());
        } else {
            check_same(&file, file_inode, size_bytes)?;
            if rw.iter().any(|rw| rw.writes()) && !args.test_file.overwrite {
                return refuse(&file, "is written to again: add --overwrite, or start again with --json");
            }
        }
        let grid = Grid {
            blocks,
            depths: iodepth.into_iter().map(Depth::of).collect(),
            ways: every_way(&[route], &buffers),
            parts: params.parts.unwrap_or(1),
            processes,
            rw,
            ring_flags: flags(&params.ring_flags),
            engines: engines(params.against.contains(&Engine::ByHand)),
            choices: true,
            fio: has_fio(),
            has_ring: has_ring(),
            rounds: params.rounds,
            ..Grid::plain()
        };
        let timing = Timing { warmup, duration };
        let test_file = TestFileArgs { file: Some(file), asked_size: Some(size_bytes), ..args.test_file() };
        let access = if params.direct { Access::Direct } else { Access::Buffered };
        Ok(Asked { test_file, grid, timing, access, runs, limit: None })
    }

    fn check(&self) -> Result<(), Failure> {
        let grid = &self.grid;
        let file = self.test_file.file.clone().unwrap_or_else(|| DefaultPlace::Disk.folder());
        if file.to_str().is_none() {
            return refuse(
                &file,
                "is no UTF-8 text, as results and orders to processes must be: name another --file",
            );
        }
        check_block(grid.largest_block(), self.test_file.size())?;
        let odd = grid.blocks.iter().find(|block| !block.is_multiple_of(SECTOR));
        if let Some(odd) = odd.filter(|_| self.access == Access::Direct) {
            return usage(format!(
                "--bs {odd} with --direct: direct I/O needs multiples of {SECTOR}; use --bs 4k or --buffered"
            ));
        }
        let most = grid.processes.iter().max().copied().unwrap_or(1);
        let cores = machine::cpus();
        if most > cores {
            let cores = counted(cores, "core");
            let why = format!("{most} processes need a core each, and this process may use {cores}");
            return usage(format!("{why}: lower --processes"));
        }
        check_rings(grid)?;
        let advice = "less --iodepth, smaller --bs, or fewer --processes";
        check_memory(grid.memory(), " at the largest depth", advice)
    }
}

/// Refuses a file that is not the one measured before the interruption: results of two files must not be mixed.
fn check_same(path: &Path, inode: Option<u64>, size: u64) -> Result<(), Failure> {
    let advice = "put that one back, or start again with --json";
    let metadata = metadata(path).map_err(|error| cant("look at", path, &error, advice))?;
    // The inode of a device lasts only until the next boot.
    let is_another = inode.is_some_and(|inode| inode != metadata.ino());
    if metadata.is_file() && (is_another || metadata.len() < size) {
        return refuse(path, format!("is not the file that was measured, or is smaller now: {advice}"));
    }
    Ok(())
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

/// Returns whether fio can be measured beside the library: without it, nothing is missing from the advice.
fn has_fio() -> bool {
    has_ring() && Fio::find().is_ok_and(|fio| fio.is_some())
}

fn engines(by_hand: bool) -> Vec<Engine> {
    if by_hand { vec![Engine::Ringfile, Engine::ByHand] } else { vec![Engine::Ringfile] }
}

fn flags(asked: &[RingFlags]) -> Vec<Option<RingFlags>> {
    if asked.is_empty() { vec![None] } else { asked.iter().copied().map(Some).collect() }
}

/// Returns the first saved parameter that the command line would have refused: the file may have been edited.
fn out_of_bounds(params: &Params) -> Option<&'static str> {
    let within = |values: &[usize], most: usize| values.iter().all(|value| (1..=most).contains(value));
    let once = [
        has_each_once(&params.block_sizes_bytes),
        has_each_once(&params.iodepth),
        has_each_once(&params.buffers),
        has_each_once(&params.processes),
        has_each_once(&params.rw),
        has_each_once(&params.ring_flags),
    ];
    [
        ("list with the same twice", once.iter().all(|&once| once)),
        ("block size", params.block_sizes_bytes.iter().all(|&block| block > 0)),
        ("depth", within(&params.iodepth, MOST_DEPTH)),
        ("number of parts", within(params.parts.as_slice(), MOST_PARTS as usize)),
        ("number of processes", within(&params.processes, MOST_PROCESSES)),
        ("number of rounds", (1..=MOST_ROUNDS).contains(&params.rounds)),
        ("length of its runs", (0.001..=LONGEST_RUN).contains(&params.duration_s)),
        ("length of warm-up", (0.0..=LONGEST_RUN).contains(&params.warmup_s)),
    ]
    .into_iter()
    .find_map(|(what, fits)| (!fits).then_some(what))
}

fn has_each_once<T: PartialEq>(values: &[T]) -> bool {
    values.iter().enumerate().all(|(at, value)| !values[..at].contains(value))
}
