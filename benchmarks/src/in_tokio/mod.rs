//! `compare tokio`: reads awaited in tokio's runtimes: through ringfile, through `spawn_blocking`, and through rings
//! that tokio's own threads drive.
//!
//! Each measurement is a separate process (this program again), since a process makes ringfile's I/O threads only once.
//! This file knows the sides and the table; [`one`] is what such a process does.

mod driven;
mod one;

use std::io;

use clap::ValueEnum;

use crate::job::{Job, Tally};
use crate::rounds::{Outcome, Spread};
use crate::sides::Side;
use crate::table;

pub use one::{One, measure};

/// How the reads are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    Auto,
    IoThread,
    TwoIoThreads,
    SpawnBlocking,
    Driven,
    DrivenAtOnce,
}

/// The runtime of tokio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Flavor {
    Current,
    Multi,
}

const BLOCKING: &str = "spawn-blocking";
const DRIVEN: &str = "driven";

const CURRENT: &[Side] = &[
    Side { name: "ringfile", settings: "Route::Auto", run: |job| one::run(Way::Auto, Flavor::Current, job) },
    Side {
        name: "io-thread",
        settings: "ringfile, Route::Ring",
        run: |job| one::run(Way::IoThread, Flavor::Current, job),
    },
    Side {
        name: "io-threads-2",
        settings: "the same, set_io_threads(2)",
        run: |job| one::run(Way::TwoIoThreads, Flavor::Current, job),
    },
    Side {
        name: BLOCKING,
        settings: "one pread each",
        run: |job| one::run(Way::SpawnBlocking, Flavor::Current, job),
    },
    Side {
        name: DRIVEN,
        settings: "SINGLE_ISSUER DEFER_TASKRUN, registered file and buffers, eventfd in AsyncFd",
        run: |job| one::run(Way::Driven, Flavor::Current, job),
    },
    Side {
        name: "A/A",
        settings: "ringfile once more",
        run: |job| one::run(Way::Auto, Flavor::Current, job),
    },
];

const MULTI: &[Side] = &[
    Side { name: "ringfile", settings: "Route::Auto", run: |job| one::run(Way::Auto, Flavor::Multi, job) },
    Side {
        name: "io-thread",
        settings: "ringfile, Route::Ring",
        run: |job| one::run(Way::IoThread, Flavor::Multi, job),
    },
    Side {
        name: "io-threads-2",
        settings: "the same, set_io_threads(2)",
        run: |job| one::run(Way::TwoIoThreads, Flavor::Multi, job),
    },
    Side {
        name: BLOCKING,
        settings: "one pread each",
        run: |job| one::run(Way::SpawnBlocking, Flavor::Multi, job),
    },
    Side {
        name: DRIVEN,
        settings: "one ring under a lock, COOP_TASKRUN, registered file and buffers, eventfd in AsyncFd",
        run: |job| one::run(Way::Driven, Flavor::Multi, job),
    },
    Side {
        name: "driven-at-once",
        settings: "the same; each read submits itself",
        run: |job| one::run(Way::DrivenAtOnce, Flavor::Multi, job),
    },
    Side { name: "A/A", settings: "ringfile once more", run: |job| one::run(Way::Auto, Flavor::Multi, job) },
];

/// Measures both runtimes with `job.depth` tasks, and prints a table for each.
pub fn compare(job: &Job, rounds: usize) -> io::Result<()> {
    for (runtime, sides) in [("current-thread", CURRENT), ("multi-thread, 2 workers", MULTI)] {
        let outcomes = crate::rounds::measure(sides, job, rounds)?;
        print(runtime, sides, &outcomes, job);
    }
    Ok(())
}

fn print(runtime: &str, sides: &[Side], outcomes: &[Vec<Outcome>], job: &Job) {
    let cache = if job.direct { "O_DIRECT" } else { "cached" };
    println!(
        "\n### In tokio ({runtime}), {} tasks, random reads of {} bytes, {cache}: {}\n",
        job.depth,
        job.block,
        job.path.display()
    );
    println!(
        "| side | settings | kIOPS median [min..max] | side / {BLOCKING} | side / {DRIVEN} | CPU µs/op | mean µs |"
    );
    println!("|---|---|--:|--:|--:|--:|--:|");
    let over = |rounds: &[Outcome], name: &str| {
        let base = sides.iter().zip(outcomes).find(|(side, _)| side.name == name);
        base.map_or_else(|| "–".to_owned(), |(_, base)| table::spread(Spread::of_ratios(rounds, base), 2))
    };
    for (side, rounds) in sides.iter().zip(outcomes) {
        let total = |of: fn(&Outcome) -> f64| rounds.iter().map(of).sum::<f64>();
        println!(
            "| {} | {} | {} | {} | {} | {:.2} | {:.1} |",
            side.name,
            side.settings,
            table::spread(Spread::of(rounds.iter().map(|outcome| outcome.iops() / 1e3)), 1),
            over(rounds, BLOCKING),
            over(rounds, DRIVEN),
            total(|outcome| outcome.cpu.as_secs_f64()) / total(|outcome| outcome.tally.all_ops as f64) * 1e6,
            total(|outcome| outcome.tally.latency_sum_ns as f64)
                / total(|outcome| outcome.tally.ops as f64)
                / 1e3,
        );
    }
    table::footnote(outcomes, job);
    let last = sides.len() - 1;
    println!(
        "ringfile over itself (A/A): {}.",
        table::spread(Spread::of_ratios(&outcomes[0], &outcomes[last]), 3)
    );
}

/// What a process reports to the one that started it.
fn to_line(tally: &Tally) -> String {
    let numbers = [
        tally.ops,
        tally.all_ops,
        tally.all_bytes,
        tally.checked_whole,
        tally.checksum,
        tally.latency_sum_ns,
        tally.latency_max_ns,
        tally.span.as_nanos() as u64,
    ];
    numbers.map(|number| number.to_string()).join(" ")
}

fn from_line(line: &str) -> Option<Tally> {
    let numbers = line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?;
    let [ops, all_ops, all_bytes, checked_whole, checksum, latency_sum_ns, latency_max_ns, span] =
        numbers[..]
    else {
        return None;
    };
    let span = std::time::Duration::from_nanos(span);
    Some(Tally { ops, all_ops, all_bytes, checked_whole, checksum, latency_sum_ns, latency_max_ns, span })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_survive_the_way_between_processes() {
        let span = std::time::Duration::from_nanos(8);
        let tally = Tally {
            ops: 1,
            all_ops: 2,
            all_bytes: 3,
            checked_whole: 4,
            checksum: u64::MAX,
            latency_sum_ns: 6,
            latency_max_ns: 7,
            span,
        };
        let back = from_line(&to_line(&tally)).unwrap();
        assert_eq!(to_line(&back), to_line(&tally));
        assert!(from_line("1 2 3").is_none() && from_line("").is_none());
    }
}
