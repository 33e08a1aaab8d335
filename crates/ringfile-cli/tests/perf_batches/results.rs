//! The output and results of a successful run.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::perf;
use crate::support::{
    disk_folder, folder, installed, json as read, ring_is_forbidden, routes, run, runs, skip,
};

/// Asserts the keys that every run has, as in `perf file`, and their types.
#[track_caller]
fn assert_run(run: &Value) {
    for key in ["round", "numjobs", "iodepth", "batch", "inflight", "block_size_bytes", "ops", "errors"] {
        assert!(run[key].is_u64(), "{key} is an integer in {run}");
    }
    for key in ["duration_s", "iops", "bw_bytes", "cpu_us_per_io"] {
        assert!(run[key].is_f64(), "{key} has a fraction in {run}");
    }
    for key in ["mean", "p50", "p95", "p99", "p999", "max"] {
        assert!(run["latency_ns"][key].is_u64(), "{key} is an integer in {run}");
    }
    for key in ["engine", "role", "rw", "buffers", "cache"] {
        assert!(run[key].is_string(), "{key} is a word in {run}");
    }
    let number = |value: &Value| value.as_u64().expect("a count");
    assert!(number(&run["ops"]) > 0 && run["errors"] == 0, "{run}");
    if !run["engine"].as_str().is_some_and(|engine| engine.starts_with("ringfile")) {
        for key in ["enters", "fixed_ops", "route", "executor", "route_ops"] {
            assert!(run.get(key).is_some_and(Value::is_null), "{key} in {run}");
        }
        return;
    }
    let routes = &run["route_ops"];
    let sum =
        ["ring", "inline", "workers", "aio"].map(|route| number(&routes[route])).into_iter().sum::<u64>();
    assert_eq!(sum, number(&run["ops"]), "{run}");
    if let Some(route) = run["route"].as_str().filter(|&route| route != "auto" && !ring_is_forbidden()) {
        assert_eq!(routes[route], run["ops"], "{run}");
    }
    let fixed = if run["buffers"] == "fixed" { &routes["ring"] } else { &Value::from(0) };
    assert_eq!(&run["fixed_ops"], fixed, "{run}");
    if run["engine"] != "ringfile-queue" {
        assert_eq!(number(&run["ops"]) % number(&run["batch"]), 0, "whole batches in {run}");
    }
}

fn names(results: &Value, key: &str) -> BTreeSet<String> {
    runs(results).iter().map(|run| run[key].as_str().unwrap_or("-").to_string()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}

#[test]
fn batch_measures_every_form_in_every_cell() {
    let folder = folder();
    let out = folder.path().join("out.json");
    let mut command = perf("batch");
    command
        .args("--size 4m --duration 40ms --warmup 5ms --numjobs 1,2 --batch 8,64 --inflight 1,3".split(' '));
    command
        .args("--buffers normal,fixed --engines ringfile-blocking,ringfile-tokio,ringfile-queue".split(' '));
    let finished = run(command.arg("--json").arg(&out)).ok();
    assert_eq!(finished.stderr, "");
    let results = read(&out);
    assert_eq!(results["schema"], 1);
    runs(&results).iter().for_each(assert_run);
    assert_eq!(names(&results, "engine"), set(&["ringfile-blocking", "ringfile-queue", "ringfile-tokio"]));
    for run in runs(&results) {
        let executor = if run["engine"] == "ringfile-tokio" { json!("tokio") } else { Value::Null };
        assert_eq!(run["executor"], executor, "{run}");
        let product =
            run["batch"].as_u64().zip(run["inflight"].as_u64()).map(|(batch, inflight)| batch * inflight);
        assert_eq!(run["iodepth"].as_u64(), product, "{run}");
        assert_eq!((&run["cache"], &run["rw"]), (&json!("cold"), &json!("randread")));
    }
    // Cells by forms and buffers, and A/A in each cell.
    assert_eq!(runs(&results).len(), 2 * 2 * 2 * (3 * 2 + 1));
    let params = &results["params"];
    assert_eq!((&params["batch"], &params["inflight"]), (&json!([8, 64]), &json!([1, 3])));
    assert_eq!((&params["block_size_bytes"], &params["against"]), (&json!(4096), &json!([])));
}

#[test]
fn every_route_carries_batches() {
    let folder = disk_folder();
    let (path, out) = (folder.path().join("routes.bin"), folder.path().join("out.json"));
    for extra in [&[][..], &["--direct"]] {
        for (command, engines) in
            [("batch", "ringfile-blocking,ringfile-tokio,ringfile-queue"), ("multiread", "ringfile")]
        {
            let mut program = perf(command);
            program.args("--size 4m --duration 40ms --warmup 10ms --numjobs 2 --batch 16 --force".split(' '));
            program.args(["--route", &routes().join(","), "--engines", engines]).args(extra);
            let finished = run(program.arg("--file").arg(&path).arg("--json").arg(&out));
            if finished.code == Some(2) && finished.stderr.contains("leave out --direct") {
                skip("every_route_carries_batches with --direct", format!("{} has none", path.display()));
                continue;
            }
            assert!(finished.ok().stdout.contains("|route"));
            let results = read(&out);
            runs(&results).iter().for_each(assert_run);
            assert_eq!(names(&results, "route"), set(routes()));
            assert!(!path.exists(), "a file that was made is removed");
        }
    }
}

#[test]
fn multiread_measures_every_form_for_every_batch() {
    let folder = folder();
    let out = folder.path().join("out.json");
    let mut command = perf("multiread");
    // Batches below, at and above the size of a hand-written ring.
    command.args(
        "--size 16m --duration 40ms --warmup 5ms --numjobs 2 --batch 1,7,256,1000 --rounds 2".split(' '),
    );
    command.args("--engines ringfile,two-rings,submit-only,pread --json".split(' '));
    let finished = run(command.arg(&out)).ok();
    let results = read(&out);
    runs(&results).iter().for_each(assert_run);
    let engines = names(&results, "engine");
    if finished.stderr.contains("a ring by hand failed") {
        skip("multiread_measures_every_form_for_every_batch by hand", &finished.stderr);
        return;
    }
    assert_eq!(engines, set(&["pread", "ringfile", "submit-only", "two-rings"]));
    assert_eq!(runs(&results).len(), 4 * 2 * (4 + 1));
    assert_eq!(results["params"]["block_size_bytes"], 16384);
    for run in runs(&results) {
        assert_eq!(run["inflight"], 1, "{run}");
        let depth = if run["engine"] == "pread" { &json!(1) } else { &run["batch"] };
        assert_eq!(&run["iodepth"], depth, "{run}");
        assert_eq!(run["ops"].as_u64().map(|ops| ops > 0), Some(true));
    }
    for part in [
        "% of pread|",
        "|µs/read|",
        "|cores|",
        "|ringfile/pread",
        "|ringfile/two-rings",
        "|ringfile/submit-only",
        "|A/A",
    ] {
        assert!(finished.stdout.contains(part), "{part}: {}", finished.stdout);
    }
}

#[test]
fn fio_is_beside_them_with_its_plain_job() {
    if !installed("fio") {
        skip("fio_is_beside_them_with_its_plain_job", "fio is not installed");
        return;
    }
    let folder = folder();
    let out = folder.path().join("out.json");
    for (command, first) in [("batch", "ringfile-blocking"), ("multiread", "ringfile")] {
        let mut program = perf(command);
        program
            .args("--size 16m --duration 50ms --warmup 5ms --numjobs 1 --batch 8 --force --json".split(' '));
        let finished = run(program.arg(&out)).ok();
        let results = read(&out);
        runs(&results).iter().for_each(assert_run);
        assert_eq!(runs(&results)[0]["engine"], first);
        let fio: Vec<&Value> = runs(&results).iter().filter(|run| run["engine"] == "fio").collect();
        let depth = if command == "batch" { 32 } else { 8 };
        assert_eq!((fio.len(), &fio[0]["buffers"], &fio[0]["iodepth"]), (1, &json!("normal"), &json!(depth)));
        let against = results["params"]["against"].as_array().expect("a list");
        assert!(against.contains(&json!("fio")), "{against:?}");
        let row = finished.stdout.lines().find(|line| line.starts_with("|fio")).expect("a row");
        let titles = finished.stdout.lines().next().expect("titles").split('|').map(str::trim);
        let cells: Vec<(&str, &str)> = titles.zip(row.split('|').map(str::trim)).collect();
        assert!(cells.contains(&("% of fio", "100")), "fio is 100 % of itself: {cells:?}");
        assert!(finished.stdout.contains(&format!("|{first}/fio")), "{}", finished.stdout);
    }
}

#[test]
fn the_tables_fit_a_terminal() {
    let mut command = perf("batch");
    command.args("--size 4m --duration 40ms --warmup 5ms --numjobs 2 --rounds 2".split(' '));
    command.args("--engines ringfile-blocking,ringfile-tokio".split(' '));
    let finished = run(&mut command).ok();
    // The table of io_uring_enter has a column for each size of call that occurred, and a terminal gets it folded.
    let blocks = finished.stdout.split("\n\n").filter(|block| !block.contains("io_uring_enter, %"));
    let table: Vec<&str> = blocks.flat_map(str::lines).filter(|line| line.starts_with('|')).collect();
    assert!(table[0].starts_with("|engine") && table[0].contains("|cores|"), "{}", finished.stdout);
    assert!(!table[0].contains("% of"), "there is no other engine to compare with: {}", finished.stdout);
    for row in table {
        assert!(row.chars().count() <= 110, "{row}");
    }
    assert!(finished.stdout.contains("latencies of engines that submit batches"), "{}", finished.stdout);
}
