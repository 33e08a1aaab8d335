//! Markdown tables on standard output.

use ringfile_cli::shared::{Spread, Table};

use crate::job::Job;
use crate::rounds::{Outcome, spread_of, spread_of_ratios};
use crate::sides::Side;

/// Prints one table: all sides of one job. `base` is the row whose ratio to every other row is shown.
pub fn print(sides: &[Side], outcomes: &[Vec<Outcome>], base: usize, job: &Job) {
    let name = sides[base].name;
    println!("\n### {}\n", title(job));
    let table = Table::default().text("side").text("settings").number("kIOPS median [min..max]");
    let table = table.number(format!("{name} / side")).number("mean µs").number("max µs");
    let mut table = table.number("CPU µs/op").number("allocs/op").number("device reads/op");
    for (side, rounds) in sides.iter().zip(outcomes) {
        let total = |of: fn(&Outcome) -> f64| rounds.iter().map(of).sum::<f64>();
        let ops = total(|o| o.tally.ops as f64);
        let all_ops = total(|o| o.tally.all_ops as f64);
        let mean = total(|o| o.tally.latency_sum_ns as f64) / ops / 1e3;
        let max = rounds.iter().map(|o| o.tally.latency_max_ns).max().unwrap_or(0) as f64 / 1e3;
        let device = match rounds.iter().map(|o| o.device_reads).sum::<Option<u64>>() {
            Some(reads) => format!("{:.3}", reads as f64 / all_ops),
            None => "–".to_owned(),
        };
        table.row(vec![
            side.name.into(),
            side.settings.into(),
            spread(spread_of(rounds.iter().map(|o| o.iops() / 1e3)), 1),
            spread(spread_of_ratios(&outcomes[base], rounds), 3),
            format!("{mean:.1}"),
            format!("{max:.0}"),
            format!("{:.2}", total(|o| o.cpu.as_secs_f64()) / all_ops * 1e6),
            format!("{:.3}", total(|o| o.allocations as f64) / all_ops),
            device,
        ]);
    }
    print!("{table}");
    footnote(outcomes, job);
}

fn title(job: &Job) -> String {
    let parts = if job.parts > 1 { format!("{} × ", job.parts) } else { String::new() };
    let depth = match job.in_flight {
        None => format!("depth {}", job.depth),
        Some(most) => format!("batches of {}, {most} in flight", job.depth),
    };
    format!(
        "Random reads of {parts}{} bytes, {}, {depth}, one thread: {}",
        job.part(),
        if job.direct { "O_DIRECT" } else { "cached" },
        job.path.display()
    )
}

/// Prints how reliable the figures are.
pub fn footnote(outcomes: &[Vec<Outcome>], job: &Job) {
    let all = || outcomes.iter().flatten();
    let bytes: u64 = all().map(|o| o.tally.all_bytes).sum();
    let whole: u64 = all().map(|o| o.tally.checked_whole).sum();
    let checksum = all().fold(0_u64, |sum, o| sum.wrapping_add(o.tally.checksum));
    println!(
        "\n{} rounds of {:?} after {:?}; {} bytes read, the offset in every read checked, {whole} reads checked whole; \
         checksum {checksum:016x}.",
        outcomes[0].len(),
        job.duration,
        job.warmup,
        bytes
    );
    let shares = || all().filter_map(|o| o.cached);
    if !job.direct && shares().next().is_some() {
        let least = |of: fn((f64, f64)) -> f64| shares().map(of).fold(1.0, f64::min) * 100.0;
        println!(
            "In the page cache at least {:.1} % before and {:.1} % after each run.",
            least(|c| c.0),
            least(|c| c.1)
        );
    }
}

/// Returns the median, and in brackets the smallest and the largest.
pub fn spread(spread: Spread, digits: usize) -> String {
    format!("{:.digits$} [{:.digits$}..{:.digits$}]", spread.median, spread.min, spread.max)
}
