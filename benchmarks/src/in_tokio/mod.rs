//! `compare tokio`: reads awaited in tokio's runtimes: through ringfile, through `spawn_blocking`, and through rings
//! that tokio's own threads drive; and in plain threads, each with an executor.
//!
//! Each measurement is a separate process (this program again), since a process makes ringfile's I/O threads only once.
//! This file knows the sides and the table; [`one`] is the code of such a process.

mod delay;
mod driven;
mod one;

use std::io;

use ringfile_cli::shared::Table;
use serde::{Deserialize, Serialize};

use crate::job::Job;
use crate::rounds::{Outcome, measure_with, spread_of, spread_of_ratios};
use crate::table::{footnote, spread};

pub use one::{One, measure};

/// How the reads are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Way {
    Auto,
    IoThread,
    TwoIoThreads,
    SpawnBlocking,
    Driven,
    DrivenAtOnce,
    /// A blocking call for each.
    Pread,
    /// In ringfile's loop instead of the executor.
    OwnLoop,
}

/// The executor: a runtime of tokio, or `futures::executor::block_on` in a thread for each task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Flavor {
    Current,
    Multi,
    Threads,
}

/// The name and settings of a side, and how it reads.
type Side = (&'static str, &'static str, Way);

impl Flavor {
    fn title(self) -> &'static str {
        match self {
            Flavor::Current => "In tokio (current-thread)",
            Flavor::Multi => "In tokio (multi-thread, 2 workers)",
            Flavor::Threads => "In threads (futures::executor)",
        }
    }

    /// The names of the sides that all others are compared with.
    fn bases(self) -> [&'static str; 2] {
        match self {
            Flavor::Current | Flavor::Multi => ["spawn-blocking", "driven"],
            Flavor::Threads => ["pread", "own-loop"],
        }
    }

    fn sides(self) -> Vec<Side> {
        let driven = match self {
            Flavor::Threads => {
                return vec![
                    ("ringfile", "Route::Ring", Way::IoThread),
                    ("io-threads-2", "the same, set_io_threads(2)", Way::TwoIoThreads),
                    ("pread", "a plain call in each thread", Way::Pread),
                    ("own-loop", "ringfile::block_on in each thread", Way::OwnLoop),
                    ("A/A", "ringfile once more", Way::IoThread),
                ];
            }
            Flavor::Current => "SINGLE_ISSUER DEFER_TASKRUN, registered file and buffers, eventfd in AsyncFd",
            Flavor::Multi => {
                "one ring under a lock, COOP_TASKRUN, registered file and buffers, eventfd in AsyncFd"
            }
        };
        let mut sides = vec![
            ("ringfile", "attach_to_tokio", Way::Auto),
            ("io-thread", "ringfile, Route::Ring, not attached", Way::IoThread),
            ("io-threads-2", "the same, set_io_threads(2)", Way::TwoIoThreads),
            ("spawn-blocking", "one pread each", Way::SpawnBlocking),
            ("driven", driven, Way::Driven),
        ];
        if self == Flavor::Multi {
            sides.push(("driven-at-once", "the same; each read submits itself", Way::DrivenAtOnce));
        }
        sides.push(("A/A", "ringfile once more", Way::Auto));
        sides
    }
}

/// Measures both runtimes and plain threads with `job.depth` tasks, and prints a table for each.
pub fn compare(job: &Job, rounds: usize) -> io::Result<()> {
    for flavor in [Flavor::Current, Flavor::Multi, Flavor::Threads] {
        let sides = flavor.sides();
        let names: Vec<&str> = sides.iter().map(|(name, ..)| *name).collect();
        let outcomes = measure_with(&names, job, rounds, |side, job| one::run(sides[side].2, flavor, job))?;
        print(flavor, &sides, &outcomes, job);
    }
    Ok(())
}

/// Measures how late the end of a read is seen whose thread computes, and prints a table.
pub fn compare_delays(job: &Job) -> io::Result<()> {
    delay::compare(job)
}

fn print(flavor: Flavor, sides: &[Side], outcomes: &[Vec<Outcome>], job: &Job) {
    let cache = match job.direct {
        true => "O_DIRECT",
        false if job.order.ends() => "not cached, each block three times",
        false => "cached",
    };
    println!(
        "\n### {}, {} tasks, random reads of {} bytes, {cache}: {}\n",
        flavor.title(),
        job.depth,
        job.block,
        job.path.display()
    );
    let table = Table::default().text("side").text("settings").number("kIOPS median [min..max]");
    let bases = flavor.bases();
    let table = table.number(format!("side / {}", bases[0])).number(format!("side / {}", bases[1]));
    let mut table = table.number("CPU µs/op").number("mean µs");
    let over = |rounds: &[Outcome], name: &str| {
        let base = sides.iter().zip(outcomes).find(|((side, ..), _)| *side == name);
        base.map_or_else(|| "–".to_owned(), |(_, base)| spread(spread_of_ratios(rounds, base), 2))
    };
    for (&(name, settings, _), rounds) in sides.iter().zip(outcomes) {
        let total = |of: fn(&Outcome) -> f64| rounds.iter().map(of).sum::<f64>();
        let cpu = total(|outcome| outcome.cpu.as_secs_f64()) / total(|outcome| outcome.tally.all_ops as f64);
        let latencies = total(|outcome| outcome.tally.latency_sum_ns as f64);
        let mean = latencies / total(|outcome| outcome.tally.ops as f64);
        table.row(vec![
            name.into(),
            settings.into(),
            spread(spread_of(rounds.iter().map(|outcome| outcome.iops() / 1e3)), 1),
            over(rounds, bases[0]),
            over(rounds, bases[1]),
            format!("{:.2}", cpu * 1e6),
            format!("{:.1}", mean / 1e3),
        ]);
    }
    print!("{table}");
    footnote(outcomes, job);
    let last = sides.len() - 1;
    println!("ringfile over itself (A/A): {}.", spread(spread_of_ratios(&outcomes[0], &outcomes[last]), 3));
}
