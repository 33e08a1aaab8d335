//! Results as a page: one HTML file that needs no other files, no network and no script.
//!
//! Knows results, not how they were measured. Invariants: text from outside (file names, command lines, notes) is
//! escaped; the page fits windows of 360 pixels and more without scrolling sideways.

mod bars;
pub mod drawing;
mod layout;
mod marks;
mod overview;
mod page;
mod plot;
mod scale;
mod sections;
mod tables;

use maud::html;

use crate::model::Results;

/// Returns the page of one session.
pub fn write(results: &Results) -> String {
    let title = sections::title(results);
    let body = html! {
        (sections::header(results))
        (sections::advice(results))
        @if results.runs.is_empty() { p.note { "Nothing was measured: the command ended before its first run." } }
        (sections::plots(results))
        (sections::profile(results))
        (tables::section(results))
        (sections::notes(results))
    };
    page::page(&title, &body)
}

/// Estimates the width of a text in a drawing. No font is measured, so the estimate is on the wide side.
fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.7
}

#[cfg(test)]
mod tests {
    use super::drawing::{self, Look, What};
    use super::*;
    use crate::latency::Latency;
    use crate::model::{Buffers, Cache, Engine, Kind, Machine, Memory, Params, Role, Route, Run};
    use crate::model::{Rw, Setup, Side, WholeMachine};

    fn session(kind: Kind, runs: Vec<Run>) -> Results {
        let params = Params { file: "<script>".into(), ..Params::default() };
        Results::new(kind, "ringfile".into(), Machine::default(), params, runs)
    }

    /// Returns a run as of files that know neither p90 nor p99.99.
    fn run(setup: Setup) -> Run {
        let [mean, p50, p95, p99, p999, max] = [1000, 900, 2000, 3000, 4000, 9000];
        let latency_ns = Some(Latency { mean, p50, p95, p99, p999, max, ..Latency::default() });
        let run =
            Run { ops: 10, duration_s: 1.0, iops: 1000.0, bw_bytes: 4096e3, latency_ns, ..Run::default() };
        let idle = WholeMachine { user_percent: 50.0, idle_percent: 150.0, ..WholeMachine::default() };
        Run { cpu_us_per_io: Some(2.0), whole_machine: Some(idle), round: 1, setup, ..run }
    }

    /// Returns the number of points in the plots of a kind.
    fn points(results: &Results, what: What) -> usize {
        let pictures = drawing::plots(&Look::of(results), what);
        let drawn = pictures.iter().map(|picture| picture.svg.clone().into_string());
        drawn.map(|svg| svg.matches("class=\"m\"").count() + svg.matches("class=\"d\"").count()).sum()
    }

    #[test]
    fn every_run_is_in_a_plot() {
        let plain = Setup { cache: Cache::Warm, ..Setup::default() };
        let deep = Setup { iodepth: 16, ..plain };
        let setups = [
            plain,
            deep,
            Setup { buffers: Buffers::Fixed, ..deep },
            Setup { rw: Rw::RandWrite, numjobs: 2, ..deep },
            Setup { engine: Engine::Pread, route: None, ..plain },
            Setup { cache: Cache::Cold, ..plain },
        ];
        let again = Run { role: Role::Aa, ..run(plain) };
        let file = session(Kind::File, setups.map(run).into_iter().chain([again]).collect());
        assert_eq!(points(&file, What::Iops), 6, "A/A runs are in the rounds");
        assert_eq!(points(&file, What::Cpu), 6);
        assert_eq!(points(&file, What::Latency), 6 * 2, "without percentiles of too few samples");
        assert_eq!(points(&file, What::Bandwidth), 0, "with one block size");
        let producer =
            Setup { side: Some(Side::Producer), memory: Some(Memory::Pool), rw: Rw::Write, ..plain };
        let consumer = Setup { side: Some(Side::Consumer), memory: Some(Memory::Vec), rw: Rw::Read, ..plain };
        let second = Run { round: 2, ..run(producer) };
        let pool = session(Kind::Pool, vec![run(producer), second, run(consumer)]);
        assert_eq!(points(&pool, What::Iops), 2, "a bar for each kind and side");
        let ring = Setup { route: Some(Route::Ring), ..plain };
        let others = [Setup { block: 65536, ..ring }, Setup { route: Some(Route::Inline), ..ring }];
        let buffers = session(Kind::Buffers, [ring].into_iter().chain(others).map(run).collect());
        assert_eq!(points(&buffers, What::Bandwidth), 2);
        assert_eq!((points(&buffers, What::Idle), points(&file, What::Idle)), (2, 0));
        let page = write(&buffers);
        assert!(page.contains("and which route") && page.contains("inline"), "beside the grid");
    }

    #[test]
    fn the_page_begins_with_auto_if_auto_is_surely_behind() {
        use crate::advice::tests::recorded::{Truth, World};
        let truth = |job: Setup| Truth {
            iops: if job.route == Some(Route::Auto) { 866_000.0 } else { 1_052_000.0 },
            cpu_us: 1.0,
        };
        let mut results = World { direct: false, ..World::new(truth).quick() }.session(1);
        results.behind = crate::report::behind::cells_behind(&results.runs);
        let page = write(&results);
        let (said, figures) = (page.find("auto is behind"), page.find("<svg"));
        assert!(said.is_some() && said < figures, "{said:?} {figures:?}");
        results.behind.clear();
        assert!(!write(&results).contains("auto is behind"));
    }

    #[test]
    fn the_advice_mentions_a_busy_machine() {
        use crate::advice::advise;
        use crate::advice::tests::recorded::{World, disk};
        for (noise, is_busy) in [(0.02, false), (0.6, true)] {
            let mut results = World { noise: (noise, noise), ..World::new(disk).quick() }.session(1);
            results.advice = advise(&results);
            assert_eq!(write(&results).contains("the machine was busy"), is_busy, "{noise}");
        }
    }

    #[test]
    fn results_without_runs_are_a_page() {
        let page = write(&session(Kind::Batch, Vec::new()));
        assert!(page.contains("Nothing was measured") && page.ends_with("</html>"));
    }
}
