//! Compares what programs find after a power cut on a real file system with what simulations of the same programs give.
//!
//! An outcome is what a program has left, and how many of its steps had returned; the next one may have been under way. The
//! simulation must be able to give each outcome that was seen. It may give others.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::path::Path;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use ringfile::sim::{Simulation, for_each_seed};
use ringfile::{Pool, block_on};
use ringfile_power::programs::{Found, PROGRAMS, Place, Program};
use ringfile_power::promise::Promise;
use ringfile_power::{Random, run_folder};

use crate::Outcome;
use crate::disk::{Disk, Mounted};
use crate::log::Log;
use crate::replay::Replay;

/// How many times as many seeds are tried for outcomes that were not found in the first ones.
const MORE: u64 = 50;

/// What was left after so many steps.
type Left = (usize, Found);

/// The moments between two reports of a program.
struct Window {
    moments: Range<usize>,
    run: u64,
    steps: usize,
}

/// Cuts each program's power so many times, and simulates it with so many seeds. Prints a table, and what the simulation
/// lacks. Returns whether that is nothing.
pub fn compare(
    log: &Log,
    disk: Disk,
    filesystem: &str,
    (cuts, seeds): (usize, u64),
    mut random: Random,
    scratch: &Path,
) -> Outcome<bool> {
    let seen = seen(log, disk, filesystem, cuts, &mut random, scratch)?;
    let simulated = simulate(&seen, seeds);
    println!("\n{:<26}{:>9}{:>12}{:>7}{:>10}", "program", filesystem, "simulated", "both", "missing");
    let mut missing = 0;
    for (number, program) in PROGRAMS.iter().enumerate() {
        let (seen, simulated) = (&seen[number], &simulated[number]);
        let lacks: Vec<_> = seen.iter().filter(|(left, _)| !simulated.contains(left)).collect();
        let both = seen.len() - lacks.len();
        let counts = (seen.len(), simulated.len(), both, lacks.len());
        println!("{:<26}{:>9}{:>12}{:>7}{:>10}", program.name, counts.0, counts.1, counts.2, counts.3);
        missing += lacks.len();
        for ((steps, found), moment) in lacks {
            let last = steps.checked_sub(1).map(|last| program.steps[last]);
            println!("    after {steps} steps (the last: {last:?}; cut at entry {moment}): {found}");
        }
    }
    let all = |of: &mut dyn Iterator<Item = usize>| of.sum::<usize>();
    println!(
        "{filesystem}: {cuts} cuts and {seeds} seeds for each of {} programs: {} outcomes seen, {} simulated, {missing} not \
         simulated",
        PROGRAMS.len(),
        all(&mut seen.iter().map(BTreeMap::len)),
        all(&mut simulated.iter().map(BTreeSet::len)),
    );
    Ok(missing == 0)
}

/// Returns what each program has left on the disk, and a moment at which it had.
fn seen(
    log: &Log,
    disk: Disk,
    filesystem: &str,
    cuts: usize,
    random: &mut Random,
    scratch: &Path,
) -> Outcome<Vec<BTreeMap<Left, usize>>> {
    let mut moments = Vec::new();
    let windows = windows(log)?;
    for (program, windows) in windows.iter().enumerate() {
        for _ in 0..cuts {
            let window = &windows[random.below(windows.len() as u64) as usize];
            let Range { start, end } = window.moments;
            // The last moment of a window has most that can be missing.
            let moment =
                if random.below(2) == 0 { end } else { start + random.below((end - start) as u64) as usize };
            moments.push((moment, program, window));
        }
    }
    moments.sort_by_key(|(moment, ..)| *moment);
    let (mut replay, pool) = (Replay::new(log, disk), Pool::new(1 << 20));
    let mut left = vec![BTreeMap::new(); PROGRAMS.len()];
    for (moment, program, window) in moments {
        let kept = replay.cut_at(moment, random)?;
        let failed = |why| format!("entry {moment}: {why}");
        let mounted = match Mounted::new(&replay.disk, &kept, filesystem, scratch) {
            Ok(mounted) => mounted,
            // XFS does not recover from each torn block of a folder.
            Err(why) if kept.torn > 0 => {
                println!("not compared, with {} torn writes: {}", kept.torn, failed(why));
                continue;
            }
            Err(why) => return Err(failed(why)),
        };
        let at = Place { folder: mounted.path().join(run_folder(window.run)), pool: pool.clone() };
        let found = block_on(Found::look(&at)).map_err(|error| failed(error.to_string()))?;
        left[program].entry((window.steps, found)).or_insert(moment);
    }
    Ok(left)
}

/// Returns the windows of each program.
fn windows(log: &Log) -> Outcome<Vec<Vec<Window>>> {
    let mut windows: Vec<Vec<Window>> = PROGRAMS.iter().map(|_| Vec::new()).collect();
    let reports = log.reports();
    let ends = reports.iter().skip(1).copied().chain([log.len()]);
    for (report, end) in reports.iter().zip(ends) {
        let Some((_, &[Promise::Returned { run, program, steps }])) = log.reports_in(*report..end).next()
        else {
            return Err(format!("entry {report} is not a report of a program"));
        };
        let steps = steps as usize;
        windows[program as usize].push(Window { moments: report + 1..end, run, steps });
    }
    Ok(windows)
}

/// Returns what simulations of each program leave, with so many seeds, or more if that lacks what was seen.
fn simulate(seen: &[BTreeMap<Left, usize>], seeds: u64) -> Vec<BTreeSet<Left>> {
    let all: Vec<_> = PROGRAMS.iter().map(|_| Mutex::new(BTreeSet::new())).collect();
    let pool = Pool::new(1 << 24);
    for tries in 0..MORE {
        let lacks = |number: &usize| {
            let simulated = all[*number].lock().unwrap_or_else(PoisonError::into_inner);
            seen[*number].keys().any(|left| !simulated.contains(left))
        };
        let wanted: Vec<usize> = (0..PROGRAMS.len()).filter(|number| tries == 0 || lacks(number)).collect();
        let count = wanted.len() as u64;
        if count > 0 {
            for_each_seed(tries * seeds * count..(tries + 1) * seeds * count, |seed| {
                let number = wanted[(seed % count) as usize];
                let left = simulated(&PROGRAMS[number], seed / count, &pool);
                all[number].lock().unwrap_or_else(PoisonError::into_inner).insert(left);
            });
        }
    }
    all.into_iter().map(|left| left.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}

/// Simulates a program that ends after some of its steps, or while it takes one, and is cut then.
fn simulated(program: &Program, seed: u64, pool: &Pool) -> Left {
    let at = &Place { folder: ".".into(), pool: pool.clone() };
    let returned = &Cell::new(0);
    let whole = (seed % (program.steps.len() as u64 + 1)) as usize;
    let outcome = Simulation::new(seed).power_cut_within(u64::MAX).run(|disk| async move {
        for (number, step) in (1..).zip(&program.steps[..whole.saturating_add(1).min(program.steps.len())]) {
            let mut polls = if number > whole { disk.random_below(6) } else { u64::MAX };
            let mut step = pin!(step.perform(number, at));
            let done = poll_fn(|context| match polls {
                0 => Poll::Ready(None),
                _ => {
                    polls -= 1;
                    step.as_mut().poll(context).map(Some)
                }
            });
            match done.await {
                Some(done) => done.expect("there are no faults"),
                None => return,
            }
            returned.set(number);
        }
    });
    let found = outcome.disk().run(|_| Found::look(at)).into_result();
    (returned.get(), found.expect("there are no power cuts").expect("there are no faults"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f47_each_program_ends_in_a_simulation_and_what_was_synced_is_never_missing_there() {
        let mut seen = vec![BTreeMap::new(); PROGRAMS.len()];
        let nothing = |steps| (steps, Found::default());
        let all = PROGRAMS[0].steps.len();
        seen[0] = BTreeMap::from([(nothing(0), 0), (nothing(all), 0)]);
        let simulated = simulate(&seen, 50);
        assert!(simulated[0].contains(&nothing(0)));
        assert!(!simulated[0].contains(&nothing(all)));
        for (program, simulated) in PROGRAMS.iter().zip(&simulated) {
            assert!(simulated.iter().any(|(steps, _)| *steps == program.steps.len()), "{}", program.name);
        }
    }
}
