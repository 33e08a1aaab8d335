//! The results as Markdown.

use std::fmt::Write;
use std::time::Duration;

use super::{CONTENDERS, Plan, Run, State};

/// A figure of the runs that a table shows.
struct Figure {
    name: &'static str,
    of: fn(&Run) -> f64,
    /// Whether the figure is never 0, so that ratios make sense.
    has_ratio: bool,
}

const FIGURES: [Figure; 4] = [
    Figure { name: "time, ms", of: |run| millis(run.time), has_ratio: true },
    Figure { name: "processor time, ms", of: |run| millis(run.cpu), has_ratio: true },
    Figure { name: "idle time of all processors, ms", of: |run| millis(run.idle), has_ratio: false },
    Figure { name: "read from disks, MiB", of: |run| run.disk as f64 / f64::from(1 << 20), has_ratio: false },
];

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns all tables.
pub(super) fn markdown(plan: &Plan, size: u64, runs: &[Run]) -> String {
    let mut text = format!(
        "TPC-H, scale factor {}, {} MiB of Parquet files, {} rounds{}. Each cell is the median; in parentheses, the median over \
         the rounds of local / this. `local again` is LocalFileSystem once more: what differs there is noise.\n",
        plan.data.scale,
        size >> 20,
        plan.rounds,
        if plan.limit_memory {
            ", memory limited to what the query needs plus a quarter of the files' size"
        } else {
            ""
        },
    );
    for state in State::ALL {
        let runs: Vec<_> = runs.iter().filter(|run| run.state == state).collect();
        if runs.is_empty() {
            continue;
        }
        for figure in &FIGURES {
            table(&mut text, plan, state, figure, &runs);
        }
    }
    text
}

fn table(text: &mut String, plan: &Plan, state: State, figure: &Figure, runs: &[&Run]) {
    let names = CONTENDERS.map(|(name, _)| name).join(" | ");
    let _ = writeln!(
        text,
        "\n### {state}: {}\n\n| query | {names} |\n|---|{}",
        figure.name,
        "--:|".repeat(CONTENDERS.len())
    );
    let mut sums = [0.0; CONTENDERS.len()];
    let mut logarithms = [0.0; CONTENDERS.len()];
    for &query in &plan.data.queries.0 {
        let values = |contender: usize| -> Vec<f64> {
            let of = runs.iter().filter(|run| run.query == query && run.contender == contender);
            of.map(|run| (figure.of)(run)).collect()
        };
        let local = values(0);
        let _ = write!(text, "| {query} |");
        for contender in 0..CONTENDERS.len() {
            let values = values(contender);
            let value = median(values.clone());
            sums[contender] += value;
            let _ = write!(text, " {value:.0}");
            if figure.has_ratio {
                let ratio = median(local.iter().zip(&values).map(|(local, value)| local / value).collect());
                logarithms[contender] += ratio.ln();
                let _ = write!(text, " ({ratio:.2})");
            }
            text.push_str(" |");
        }
        text.push('\n');
    }
    let _ = writeln!(text, "| sum | {} |", sums.map(|sum| format!("{sum:.0}")).join(" | "));
    if figure.has_ratio {
        let mean = |sum: f64| format!("**{:.3}**", (sum / plan.data.queries.0.len() as f64).exp());
        let _ = writeln!(text, "| geometric mean | {} |", logarithms.map(mean).join(" | "));
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tpch::{Data, Queries};

    #[test]
    fn tables_have_medians_of_ratios_and_the_geometric_mean() {
        let data = Data { folder: "none".into(), scale: 1.0, queries: Queries(vec![3, 4]) };
        let plan = Plan { data, rounds: 3, limit_memory: true };
        let mut runs = Vec::new();
        for (query, factor) in [(3, 2), (4, 8)] {
            for round in 0..3 {
                for contender in 0..CONTENDERS.len() {
                    let time = Duration::from_millis(
                        if contender == 2 { 100 } else { 100 * factor } * (1 + u64::from(round)),
                    );
                    let line = Run {
                        query,
                        round,
                        contender,
                        state: State::Cold,
                        time,
                        cpu: time,
                        idle: time,
                        disk: 1 << 20,
                    };
                    runs.push(line.to_string().parse().unwrap());
                }
            }
        }
        let text = markdown(&plan, 1 << 30, &runs);
        assert!(text.contains("| 3 | 400 (1.00) | 400 (1.00) | 200 (2.00) |"), "{text}");
        assert!(text.contains("| geometric mean | **1.000** | **1.000** | **4.000** |"), "{text}");
        assert!(text.contains("| sum | 2 | 2 |") && !text.contains("### warm"), "{text}");
    }
}
