//! The output: complete pages, and comparisons that say what differs.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::samples::{self, batch, buffers, pool, with_others};
use crate::support::{Finished, disk_folder, folder, interrupt, ringfile, run, short, start, wait_for_work};

/// Returns a command that reports.
pub fn report() -> Command {
    ringfile("report")
}

/// Returns the page of a sample.
pub fn page_of(folder: &Path, sample: &Value) -> PathBuf {
    let out = folder.join("out.html");
    let json = samples::write(folder, "sample.json", sample);
    let finished = run(report().arg(json).arg("--force").arg("--out").arg(&out)).ok();
    assert_eq!(finished.wrote, format!("wrote {}\n", out.display()));
    out
}

/// Returns the text of the page of a sample; asserts that the page stands alone.
#[track_caller]
fn page(sample: &Value) -> String {
    let folder = folder();
    let page = text(&page_of(folder.path(), sample));
    assert_stands_alone(&page);
    page
}

/// Compares two samples of these names.
#[track_caller]
fn compared((first, one): (&str, &Value), (other, two): (&str, &Value)) -> Finished {
    let folder = folder();
    let one = samples::write(folder.path(), &format!("{first}.json"), one);
    let two = samples::write(folder.path(), &format!("{other}.json"), two);
    run(report().args([one, two])).ok()
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).expect("the page is there")
}

/// Asserts that a page fetches and runs nothing.
fn assert_stands_alone(page: &str) {
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"), "a whole page");
    for foreign in ["<script", "http://", "https://", "@import", "url(", "src=\"/"] {
        assert!(!page.contains(foreign), "{foreign} in the page");
    }
}

/// Runs a command to its end with `--json` and `--report`, and returns the page; asserts that it has all these words.
#[track_caller]
fn run_with_page(folder: &Path, command: &mut Command, words: &[&str]) -> String {
    let (json, html) = (folder.join("r.json"), folder.join("r.html"));
    run(command.arg("--json").arg(&json).arg("--report").arg(&html)).ok();
    let page = text(&html);
    assert_stands_alone(&page);
    for word in words {
        assert!(page.contains(word), "{word}");
    }
    page
}

#[test]
fn a_run_leaves_its_page_and_its_json() {
    let folder = folder();
    let headings = ["Operations a second", "CPU time for one operation", "Latency", "Tables", "Notes"];
    let page = run_with_page(folder.path(), &mut short("--rounds 2"), &headings);
    let again = folder.path().join("again.html");
    run(report().arg(folder.path().join("r.json")).arg("--out").arg(&again)).ok();
    assert_eq!(text(&again), page, "the page of the JSON is the page of the run");
}

#[test]
fn perf_buffers_leaves_its_page_too() {
    let folder = disk_folder();
    let short =
        "perf buffers --size 4m --duration 10ms --warmup 1ms --rounds 1 --bs 4k --iodepth 1,4 --rw randread";
    let mut command = ringfile(&format!("{short} --numjobs 1 --file"));
    command.arg(folder.path().join("data.bin"));
    run_with_page(folder.path(), &mut command, &["What to set here", "Operations a second"]);
    // An output that another argument uses already.
    let json = folder.path().join("r.json");
    let mut command = ringfile(&format!("{short} --force --json"));
    run(command.arg(&json).arg("--report").arg(&json)).fails_with(2, &["--report"]);
}

#[test]
fn perf_pool_leaves_its_page_too() {
    let (folder, out) = (disk_folder(), folder());
    let short = "--duration 100ms --warmup 10ms --producers 1 --consumers 1 --memory pool,malloc --folder";
    let mut command = ringfile(&format!("perf pool {short}"));
    run_with_page(out.path(), command.arg(folder.path()), &["Producer", "malloc"]);
}

#[test]
fn an_interrupted_run_leaves_its_page() {
    let folder = folder();
    let html = folder.path().join("r.html");
    let options = "--size 8m --duration 10m --warmup 0s --numjobs 1 --rw randread --iodepth 4 --report";
    let child = start(ringfile(&format!("perf file {options}")).arg(&html));
    wait_for_work(child.id(), "ringfile-0");
    interrupt(child, Signal::TERM).fails(130);
    let page = text(&html);
    assert_stands_alone(&page);
    assert!(page.contains("Interrupted: only a part"));
}

#[test]
fn a_quick_grid_is_small_and_has_its_figures() {
    let page = page(&buffers(1, 1.0, 1.03));
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
    for heading in ["Random reads, 1 thread", "Random writes, 2 threads"] {
        // IOPS, CPU, bandwidth, latency.
        assert_eq!(page.matches(&format!("<h3>{heading}</h3>")).count(), 4, "{heading}");
    }
    let words =
        ["What to set here", "buffers = fixed", "inside the noise", "Direct or buffered", "vectored-fixed"];
    for words in words {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn the_page_begins_with_each_way_of_opening_a_file() {
    let page = page(&with_others(buffers(1, 1.0, 1.03)));
    let first = page.split("<section>").nth(1).expect("a section");
    assert_eq!(first.matches("<svg").count(), 2, "cold and warm: {first}");
    for bar in
        [">direct: 1", ">adaptive: 143k", ">buffered: 9.", ">fio, direct: 141k", ">fio, buffered: 402k"]
    {
        assert!(first.contains(bar), "{bar} in {first}");
    }
    assert!(page.matches("fio").count() > first.matches("fio").count(), "among the choices too");
}

#[test]
fn pages_of_batches_and_pools() {
    for (sample, words) in
        [(batch(), ["ringfile-tokio", "% of fio", "2 threads"]), (pool(), ["producer", "malloc", "500"])]
    {
        let page = page(&sample);
        for word in words {
            assert!(page.contains(word), "{word}");
        }
    }
}

#[test]
fn hostile_names_stay_text() {
    let mut sample = buffers(1, 1.0, 1.0);
    let hostile = "/tmp/<script>alert(1)</script>&\"'\u{1b}[2J\n.bin";
    sample["params"]["file"] = json!(hostile);
    sample["machine"]["kernel"] = json!(hostile);
    sample["command"] = json!(hostile);
    sample["notes"] = json!([hostile]);
    sample["advice"][0]["because"] = json!(hostile);
    let one = page(&sample);
    assert!(
        one.contains("&lt;script&gt;") && one.contains("&lt;/script&gt;&amp;") && !one.contains('\u{1b}')
    );
    let finished = compared(("<b>x", &sample), ("<i>y", &sample));
    assert!(!finished.stdout.contains('\u{1b}'));
}

#[test]
fn a_change_is_named_and_noise_is_not() {
    let (before, after) = (buffers(1, 1.0, 1.0), buffers(2, 1.3, 1.0));
    let finished = compared(("before", &before), ("after", &after));
    assert!(finished.stdout.starts_with("after beside before: "), "{}", finished.stdout);
    finished.says(&["outside the spread", "|IOPS"]);
    let finished = compared(("before", &before), ("same", &buffers(7, 1.0, 1.0)));
    finished.says(&["same beside before: 0 of "]);
}

/// Returns the runs of a sample, to be changed.
fn runs_of(sample: &mut Value) -> &mut Vec<Value> {
    sample["runs"].as_array_mut().expect("a list")
}

/// Returns a sample with only the direct runs on the ring.
fn on_the_ring(mut sample: Value) -> Value {
    runs_of(&mut sample).retain(|run| run["direct"] == json!(true) && run["route"] == json!("ring"));
    sample
}

/// Multiplies the IOPS of a run.
fn multiply(run: &mut Value, factor: f64) {
    run["iops"] = json!(run["iops"].as_f64().expect("a number") * factor);
}

#[test]
fn other_differences_than_figures_are_listed() {
    let (before, mut after) = (buffers(1, 1.0, 1.0), buffers(2, 1.0, 1.0));
    after["machine"]["kernel"] = json!("6.1.0");
    after["machine"]["filesystem"] = json!("xfs");
    let after = on_the_ring(after);
    let finished = compared(("before", &before), ("after", &after));
    finished.says(&["kernel: 6.18.2 / 6.1.0", "filesystem: ext4 / xfs", "only in before: 12 cells"]);
}

#[test]
fn sessions_that_differ_in_one_choice_are_compared() {
    let (ring, mut workers) = (on_the_ring(buffers(1, 1.0, 1.0)), on_the_ring(buffers(2, 0.5, 1.0)));
    for run in runs_of(&mut workers) {
        run["route"] = json!("workers");
    }
    let finished = compared(("ring", &ring), ("workers", &workers));
    finished.says(&["differ outside the spread"]);
    assert!(!finished.stdout.contains("only in"), "{}", finished.stdout);
}

/// The A/A runs of a cell follow each other at once and agree; differences between rounds count as noise all the same.
#[test]
fn figures_that_vary_between_rounds_claim_nothing_between_sessions() {
    let wandering = |mut sample: Value| {
        let is_even = |run: &Value| run["round"].as_u64().expect("a number").is_multiple_of(2);
        let wanders = |run: &&mut Value| run["iodepth"] != json!(16) && is_even(run);
        runs_of(&mut sample).iter_mut().filter(wanders).for_each(|run| multiply(run, 0.6));
        sample
    };
    let compared = |before: &Value, after: &Value| compared(("before", before), ("after", after)).stdout;
    let slower = |mut sample: Value| {
        let is_deep = |run: &&mut Value| run["iodepth"] == json!(16);
        runs_of(&mut sample).iter_mut().filter(is_deep).for_each(|run| multiply(run, 0.75));
        sample
    };
    let named =
        |text: &str| text.lines().filter(|line| line.contains("depth 16") && line.contains("IOPS")).count();
    let quiet = compared(&buffers(1, 1.0, 1.0), &slower(buffers(2, 1.0, 1.0)));
    assert!(named(&quiet) > 0, "{quiet}");
    let noisy = compared(&wandering(buffers(1, 1.0, 1.0)), &slower(wandering(buffers(2, 1.0, 1.0))));
    assert_eq!(named(&noisy), 0, "{noisy}");
}

#[test]
fn one_round_claims_nothing() {
    let one = |mut sample: Value| {
        runs_of(&mut sample).retain(|run| run["round"] == json!(1));
        sample
    };
    let finished = compared(("a", &one(buffers(1, 1.0, 1.0))), ("b", &one(buffers(2, 3.0, 1.0))));
    finished.says(&["nothing can be claimed: fewer than 3 rounds"]);
}

#[test]
fn odd_values_make_a_page_too() {
    let folder = folder();
    let mut sample = buffers(1, 1.0, 1.0);
    for (index, run) in runs_of(&mut sample).iter_mut().enumerate() {
        match index % 6 {
            0 => run["iops"] = json!(0.0),
            1 => run["latency_ns"] = Value::Null,
            2 => run["cpu_us_per_io"] = Value::Null,
            3 => run["iops"] = json!(9e14),
            4 => run["ops"] = json!(0),
            _ => run["latency_ns"] = json!({"p50": 0, "max": u64::MAX}),
        }
    }
    let out = page_of(folder.path(), &sample);
    let page = text(&out);
    assert_stands_alone(&page);
    for wrong in ["NaN", "inf"] {
        let drawn = page.split(" d=\"").skip(1).filter_map(|part| part.split('"').next());
        assert!(drawn.into_iter().all(|path| !path.contains(wrong)), "{wrong} in a path");
    }
    compared(("a", &sample), ("b", &sample));
    for (field, figure) in [("iops", 1e300), ("iops", -5.0), ("cpu_us_per_io", -0.1), ("cached_after", 1e16)]
    {
        let mut sample = buffers(1, 1.0, 1.0);
        sample["runs"][4][field] = json!(figure);
        let saved = samples::write(folder.path(), "odd.json", &sample);
        run(report().arg(&saved).arg("--force").arg("--out").arg(&out))
            .fails_with(2, &["figures in run 4 that no machine gives"]);
        assert!(text(&out).len() > 1000, "the page that was there stays");
    }
}
