//! Cuts the power at many moments of a run that qemu has logged, and checks the disk after each cut. Needs root, to mount.
//!
//! `power-replay IMAGE LOG DRIVE CONSOLE FILESYSTEM CUTS SEED SCRATCH [SEEDS]`
//!
//! With SEEDS, the run was one of the programs that are compared with simulations: see `compare.rs`.
//!
//! IMAGE is the file system before the run, LOG the file that qemu's blklogwrites has written, DRIVE the drive after
//! the run, and CONSOLE the output of the guest. A moment is a position in the log. A power cut there leaves everything
//! before the last flush, and any part of what came later. A quarter of the moments are right after a report, where
//! missing data is noticed at once, a quarter right before a flush, where most data can be missing, a quarter right
//! after a write, which may be torn, and the others anywhere.

mod check;
mod compare;
mod disk;
mod log;
mod replay;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use disk::{Disk, Mounted};
use log::Log;
use replay::Replay;
use ringfile_power::Random;

type Outcome<T> = Result<T, String>;

/// The number of cuts for which the program describes the first loss.
const TOLD: usize = 20;

#[derive(Default)]
struct Figures {
    cuts: usize,
    cuts_with_losses: usize,
    losses: usize,
    checked: usize,
    left_out: usize,
    torn: usize,
}

fn run(arguments: &[String]) -> Outcome<bool> {
    let [image, log, drive, console, filesystem, cuts, seed, scratch, seeds @ ..] = arguments else {
        return Err("usage: power-replay IMAGE LOG DRIVE CONSOLE FILESYSTEM CUTS SEED SCRATCH [SEEDS]".into());
    };
    let number = |text: &String| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    let (cuts, seed) = (number(cuts)? as usize, number(seed)?);
    let disk = Disk::read(Path::new(image))?;
    let log = Log::read(Path::new(log), disk.len())?;
    agrees_with_the_console(&log, Path::new(console))?;
    disk.becomes(&log, Path::new(drive))?;
    println!(
        "{filesystem}: {} writes, {} flushes and {} reports were logged",
        log.writes().len(),
        log.flushes().len(),
        log.reports().len()
    );
    let mut random = Random(seed);
    if let [seeds] = seeds {
        return compare::compare(&log, disk, filesystem, (cuts, number(seeds)?), random, Path::new(scratch));
    }
    let (mut figures, mut replay) = (Figures::default(), Replay::new(&log, disk));
    for moment in moments(&log, cuts, &mut random)? {
        let kept = replay.cut_at(moment, &mut random)?;
        figures.left_out += kept.left_out;
        figures.torn += kept.torn;
        let losses = match Mounted::new(&replay.disk, &kept, filesystem, Path::new(scratch)) {
            Ok(mounted) => replay.expected.check(mounted.path(), &mut figures.checked),
            Err(why) => vec![format!("the file system cannot be mounted: {why}")],
        };
        figures.cuts += 1;
        figures.cuts_with_losses += usize::from(!losses.is_empty());
        figures.losses += losses.len();
        if let Some(first) = losses.first().filter(|_| figures.cuts_with_losses <= TOLD) {
            let (flushed, more) = (log.last_flush_before(moment), losses.len() - 1);
            println!("  LOSS at entry {moment} (last flush: {flushed}): {first}, and {more} more");
        }
    }
    println!(
        "{filesystem}: {} cuts, {} promises checked, {} writes left out, {} torn; losses: {} in {} cuts (seed {seed})",
        figures.cuts,
        figures.checked,
        figures.left_out,
        figures.torn,
        figures.losses,
        figures.cuts_with_losses
    );
    Ok(figures.losses == 0)
}

/// Checks that the log has every report that came over the serial port, in the same order. Otherwise positions in the log
/// would say nothing about time.
fn agrees_with_the_console(log: &Log, console: &Path) -> Outcome<()> {
    let text = std::fs::read_to_string(console).map_err(|error| format!("{}: {error}", console.display()))?;
    let said = text.lines().filter_map(|line| line.trim().strip_prefix("durable ")?.parse::<u64>().ok());
    let logged = log.reports_in(0..log.len()).map(|(number, _)| number);
    if !said.eq(logged) {
        return Err("the reports on the console and in the log are not the same".into());
    }
    Ok(())
}

/// Returns the positions in the log at which the power is cut, in order.
fn moments(log: &Log, cuts: usize, random: &mut Random) -> Outcome<BTreeSet<usize>> {
    let reports = log.reports();
    let first = *reports.first().ok_or("nothing was reported")?;
    let behind_reports: Vec<usize> = reports.iter().map(|report| report + 1).collect();
    let before_flushes: Vec<usize> = log.flushes().into_iter().filter(|&flush| flush > first).collect();
    let behind_writes: Vec<usize> =
        log.writes().into_iter().filter(|&write| write > first).map(|write| write + 1).collect();
    let anywhere: Vec<usize> = (first + 1..=log.len()).collect();
    if cuts > anywhere.len() {
        return Err(format!("the log has only {} moments", anywhere.len()));
    }
    let mut moments = BTreeSet::new();
    for from in [&behind_reports, &before_flushes, &behind_writes].into_iter().cycle().take(cuts / 4 * 3) {
        moments.extend(from.get(random.below(from.len() as u64) as usize));
    }
    while moments.len() < cuts {
        moments.insert(anywhere[random.below(anywhere.len() as u64) as usize]);
    }
    Ok(moments)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("power-replay: {why}");
            ExitCode::from(2)
        }
    }
}
