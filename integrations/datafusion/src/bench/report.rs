//! The results as Markdown.

use std::fmt::Write;
use std::time::Duration;

use super::{CEILING, CONTENDERS, Plan, Run, State};

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
         the rounds of local / this. `local again` is LocalFileSystem once more: what differs there is noise.{}\n",
        plan.data.scale,
        size >> 20,
        plan.rounds,
        if plan.limit_memory {
            ", memory limited to what the query needs plus a quarter of the files' size"
        } else {
            ""
        },
        if plan.cache {
            " `cached` is ringfile with direct I/O and a cache as large as the files that memory has room for; `ceiling` \
             reads nothing, since it has all files in memory."
        } else {
            ""
        },
    );
    for state in State::ALL {
        let runs: Vec<_> = runs.iter().filter(|run| run.state == state).collect();
        if runs.is_empty() {
            continue;
        }
        totals(&mut text, plan, state, &runs);
        for figure in &FIGURES {
            table(&mut text, plan, state, figure, &runs);
        }
    }
    text
}

/// Appends the sums of all queries' times: in each round, and how far of the way from local to the ceiling.
fn totals(text: &mut String, plan: &Plan, state: State, runs: &[&Run]) {
    let time = |contender: usize, round: u32| {
        let of = runs.iter().filter(|run| (run.contender, run.round) == (contender, round));
        of.map(|run| millis(run.time)).sum::<f64>()
    };
    let each = |digits, figure: &dyn Fn(u32) -> f64| range(digits, (0..plan.rounds).map(figure).collect());
    let _ = writeln!(
        text,
        "\n### {state}: all queries, median [min..max] of the rounds\n\n\
         | store | time, ms | local / this | of the way to the ceiling |\n|---|--:|--:|--:|"
    );
    for &contender in plan.contenders() {
        let sums = each(0, &|round| time(contender, round));
        let ratios = each(3, &|round| time(0, round) / time(contender, round));
        let way = |round| {
            let (from, to) = (time(0, round), time(CEILING, round));
            (from - time(contender, round)) / (from - to)
        };
        let way = if plan.cache { each(2, &way) } else { "–".into() };
        let _ = writeln!(text, "| {} | {sums} | {ratios} | {way} |", CONTENDERS[contender].0);
    }
}

fn table(text: &mut String, plan: &Plan, state: State, figure: &Figure, runs: &[&Run]) {
    let contenders = plan.contenders();
    let names: Vec<_> = contenders.iter().map(|&contender| CONTENDERS[contender].0).collect();
    let _ = writeln!(
        text,
        "\n### {state}: {}\n\n| query | {} |\n|---|{}",
        figure.name,
        names.join(" | "),
        "--:|".repeat(contenders.len())
    );
    let mut sums = vec![0.0; contenders.len()];
    let mut logarithms = vec![0.0; contenders.len()];
    for &query in &plan.data.queries.0 {
        let values = |contender: usize| -> Vec<f64> {
            let of = runs.iter().filter(|run| run.query == query && run.contender == contender);
            of.map(|run| (figure.of)(run)).collect()
        };
        let local = values(0);
        let _ = write!(text, "| {query} |");
        for (at, &contender) in contenders.iter().enumerate() {
            let values = values(contender);
            let value = median(values.clone());
            sums[at] += value;
            let _ = write!(text, " {value:.0}");
            if figure.has_ratio {
                let ratio = median(local.iter().zip(&values).map(|(local, value)| local / value).collect());
                logarithms[at] += ratio.ln();
                let _ = write!(text, " ({ratio:.2})");
            }
            text.push_str(" |");
        }
        text.push('\n');
    }
    let cells = |values: &[f64], cell: fn(f64) -> String| -> String {
        values.iter().map(|&value| cell(value)).collect::<Vec<_>>().join(" | ")
    };
    let _ = writeln!(text, "| sum | {} |", cells(&sums, |sum| format!("{sum:.0}")));
    if figure.has_ratio {
        let count = plan.data.queries.0.len() as f64;
        logarithms.iter_mut().for_each(|sum| *sum = (*sum / count).exp());
        let _ =
            writeln!(text, "| geometric mean | {} |", cells(&logarithms, |mean| format!("**{mean:.3}**")));
    }
}

/// Returns the median with the least and the most.
fn range(digits: usize, values: Vec<f64>) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.digits$} [{least:.digits$}..{most:.digits$}]", median(values))
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
        let plan = Plan { data, rounds: 3, limit_memory: true, cache: false };
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

        let plan = Plan { cache: true, ..plan };
        for (store, millis) in [(5, 40), (CEILING, 20)] {
            runs.iter_mut().filter(|run| run.contender == store).for_each(|run| {
                run.time = Duration::from_millis(millis * (1 + u64::from(run.round)));
            });
        }
        let text = markdown(&plan, 1 << 30, &runs);
        assert!(text.contains("| query | local | local again | adaptive | cached | ceiling |"), "{text}");
        // Of two queries: 1000, 80 and 40 ms in the first round.
        assert!(
            text.contains("| cached | 160 [80..240] | 12.500 [12.500..12.500] | 0.96 [0.96..0.96] |"),
            "{text}"
        );
        assert!(
            text.contains("| ceiling | 80 [40..120] | 25.000 [25.000..25.000] | 1.00 [1.00..1.00] |"),
            "{text}"
        );
    }
}
