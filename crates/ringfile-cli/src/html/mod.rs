//! Results as a page: one HTML file that needs no other files, no network and no script.
//!
//! Knows results, not how they were measured. Invariants: text from outside (file names, command lines, notes) is
//! escaped; the page fits windows of 360 pixels and more without scrolling sideways.

pub mod compare;
pub mod drawing;
mod layout;
mod marks;
mod page;
mod plot;
mod rounds;
mod scale;
pub mod sections;
pub mod standalone;
mod strip;
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
        (rounds::section(results))
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
    use serde_json::{Value, json};

    use super::drawing::{self, Look, What};
    use super::*;

    /// Returns a session with runs that differ from one run in some fields.
    fn session(kind: &str, differences: &[Value]) -> Results {
        let run = json!({
            "engine": "ringfile", "round": 1, "role": "measure", "numjobs": 1, "iodepth": 1, "batch": null, "inflight": null,
            "rw": "randread", "buffers": "normal", "direct": false, "cache": "warm", "route": "auto", "executor": "ringfile",
            "block_size_bytes": 4096, "ops": 10, "errors": 0, "duration_s": 1.0, "iops": 1000.0, "bw_bytes": 4096000.0,
            "latency_ns": {"mean": 1000, "p50": 900, "p95": 2000, "p99": 3000, "p999": 4000, "max": 9000},
            "cpu_us_per_io": 2.0, "enters": null, "fixed_ops": null, "route_ops": null, "cached_before": null,
            "cached_after": null
        });
        let runs: Vec<Value> = differences
            .iter()
            .map(|difference| {
                let mut run = run.clone();
                for (field, value) in difference.as_object().expect("an object") {
                    run[field] = value.clone();
                }
                run
            })
            .collect();
        let results = json!({
            "schema": 1, "kind": kind, "command": "ringfile", "interrupted": false, "runs": runs,
            "machine": {"kernel": null, "cpu_model": null, "cpus": 1, "filesystem": "tmpfs", "ring_features": null, "fio": null},
            "params": {
                "file": "<script>", "file_created": true, "size_bytes": 4096, "block_size_bytes": 4096, "duration_s": 1.0,
                "warmup_s": 0.0, "numjobs": [], "iodepth": [], "batch": [], "inflight": [], "rw": [], "buffers": [],
                "direct": false, "cache": [], "route": [], "executor": [], "against": [], "rounds": 1, "verify": false
            }
        });
        serde_json::from_value(results).expect("results")
    }

    /// Returns the number of points in the plots of a kind.
    fn points(results: &Results, what: What) -> usize {
        let pictures = drawing::plots(&Look::of(results), what);
        let drawn = pictures.iter().map(|picture| picture.drawing.clone().into_string());
        drawn.map(|svg| svg.matches("class=\"m\"").count() + svg.matches("class=\"d\"").count()).sum()
    }

    #[test]
    fn every_run_is_in_a_plot() {
        let file = session(
            "file",
            &[
                json!({}),
                json!({"iodepth": 16}),
                json!({"iodepth": 16, "buffers": "fixed"}),
                json!({"iodepth": 16, "rw": "randwrite", "numjobs": 2}),
                json!({"engine": "pread", "route": null, "executor": null}),
                json!({"cache": "cold"}),
                json!({"executor": "tokio"}),
                json!({"role": "aa"}),
            ],
        );
        assert_eq!(points(&file, What::Iops), 7, "A/A runs are in the rounds");
        assert_eq!(points(&file, What::Cpu), 7);
        assert_eq!(points(&file, What::Latency), 7 * 5, "of files that know p90 and p99.99, seven");
        assert_eq!(points(&file, What::Bandwidth), 0, "with one block size");
        let pool = session(
            "pool",
            &[
                json!({"side": "producer", "memory": "pool", "rw": "write"}),
                json!({"side": "producer", "memory": "pool", "rw": "write", "round": 2}),
                json!({"side": "consumer", "memory": "vec", "rw": "read"}),
            ],
        );
        assert_eq!(points(&pool, What::Iops), 3, "a dot for each round");
        let buffers = session(
            "buffers",
            &[
                json!({"route": "ring", "processes": 1}),
                json!({"route": "ring", "processes": 1, "block_size_bytes": 65536}),
                json!({"route": "inline", "processes": 1}),
            ],
        );
        assert_eq!(points(&buffers, What::Bandwidth), 2);
        let page = write(&buffers);
        assert!(page.contains("and which route") && page.contains("warm cache, inline"), "beside the grid");
    }

    #[test]
    fn auto_that_is_surely_behind_is_said_at_the_top() {
        use crate::advice::recorded::{Truth, World};
        use crate::model::Setup;
        let truth = |job: Setup| Truth {
            iops: if job.route == Some(crate::model::Route::Auto) { 866_000.0 } else { 1_052_000.0 },
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
    fn results_without_runs_are_a_page() {
        let page = write(&session("batch", &[]));
        assert!(page.contains("Nothing was measured") && page.ends_with("</html>"));
    }
}
