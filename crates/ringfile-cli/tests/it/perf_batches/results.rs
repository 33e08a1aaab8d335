//! The output and results of a successful run.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{
    assert_run, cells, disk_folder, installed, measured, ringfile, routes, run, runs, saved, skip, skip_part,
};

/// Asserts what every run of batches has in addition to those of `perf file`.
#[track_caller]
fn assert_runs(results: &Value) {
    for run in runs(results) {
        assert_run(run);
        let count = |key: &str| run[key].as_u64().unwrap_or_else(|| panic!("{key} is an integer in {run}"));
        assert!(count("batch") > 0 && count("inflight") > 0, "{run}");
        let ours = run["engine"].as_str().is_some_and(|engine| engine.starts_with("ringfile"));
        if ours && run["engine"] != "ringfile-queue" {
            assert_eq!(count("ops") % count("batch"), 0, "whole batches in {run}");
        }
    }
}

fn names<'a>(results: &'a Value, key: &str) -> BTreeSet<&'a str> {
    runs(results).iter().map(|run| run[key].as_str().unwrap_or("-")).collect()
}

#[test]
fn batch_measures_every_form_in_every_cell() {
    let (finished, results) = measured(&mut ringfile(
        "perf batch --size 4m --duration 40ms --warmup 5ms --numjobs 1,2 --batch 8,64 --inflight 1,3 \
         --buffers normal,fixed --engines ringfile-blocking,ringfile-tokio,ringfile-queue",
    ));
    assert_eq!(finished.stderr, "");
    assert_eq!(results["schema"], 1);
    assert_runs(&results);
    assert_eq!(
        names(&results, "engine"),
        BTreeSet::from(["ringfile-blocking", "ringfile-queue", "ringfile-tokio"])
    );
    for run in runs(&results) {
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
    let path = folder.path().join("routes.bin");
    for extra in ["", " --direct"] {
        for engines in [
            "batch --engines ringfile-blocking,ringfile-tokio,ringfile-queue",
            "multiread --engines ringfile",
        ] {
            let options = "--size 4m --duration 40ms --warmup 10ms --numjobs 2 --batch 16";
            let arguments = format!("{engines} {options} --route {}{extra}", routes().join(","));
            let (finished, results) = saved(ringfile(&format!("perf {arguments} --file")).arg(&path));
            if finished.lacks_direct_io() {
                skip_part(" with --direct", format!("{} has none", path.display()));
                continue;
            }
            finished.ok().says(&["|route"]);
            assert_runs(&results);
            assert_eq!(names(&results, "route"), routes().iter().copied().collect());
            assert!(!path.exists(), "a file that was made is removed");
        }
    }
}

#[test]
fn multiread_measures_every_form_for_every_batch() {
    let (finished, results) = measured(&mut ringfile(
        "perf multiread --size 16m --duration 40ms --warmup 5ms --numjobs 2 --batch 1,7,256,1000 --rounds 2 \
         --engines ringfile,by-hand,pread",
    ));
    assert_runs(&results);
    if finished.stderr.contains("a ring by hand failed") {
        return skip_part(" by hand", &finished.stderr);
    }
    assert_eq!(names(&results, "engine"), BTreeSet::from(["pread", "ringfile", "by-hand"]));
    assert_eq!(runs(&results).len(), 4 * 2 * (3 + 1));
    assert_eq!(results["params"]["block_size_bytes"], 16384);
    for run in runs(&results) {
        assert_eq!(run["inflight"], 1, "{run}");
        let depth = if run["engine"] == "pread" { &json!(1) } else { &run["batch"] };
        assert_eq!(&run["iodepth"], depth, "{run}");
    }
    finished.says(&["% of pread|", "|µs/read|", "|cores|", "|A/A"]);
    finished.says(&["|ringfile/pread", "|ringfile/by-hand"]);
}

#[test]
fn fio_is_beside_them_with_its_plain_job() {
    if !installed("fio") {
        return skip("fio is not installed");
    }
    for (command, first, depth) in [("batch", "ringfile-blocking", 32), ("multiread", "ringfile", 8)] {
        let options = "--size 16m --duration 50ms --warmup 5ms --numjobs 1 --batch 8";
        let (finished, results) = measured(&mut ringfile(&format!("perf {command} {options}")));
        assert_runs(&results);
        assert_eq!(runs(&results)[0]["engine"], first);
        let fio: Vec<&Value> = runs(&results).iter().filter(|run| run["engine"] == "fio").collect();
        assert_eq!((fio.len(), &fio[0]["buffers"], &fio[0]["iodepth"]), (1, &json!("normal"), &json!(depth)));
        let against = results["params"]["against"].as_array().expect("a list");
        assert!(against.contains(&json!("fio")), "{against:?}");
        let cells = cells(&finished.stdout, "|fio");
        assert!(cells.contains(&("% of fio", "100")), "fio is 100 % of itself: {cells:?}");
        finished.says(&[&format!("|{first}/fio")]);
    }
}

#[test]
fn the_tables_fit_a_terminal() {
    let arguments = "--size 4m --duration 40ms --warmup 5ms --numjobs 2 --rounds 2";
    let engines = "ringfile-blocking,ringfile-tokio";
    let finished = run(&mut ringfile(&format!("perf batch {arguments} --engines {engines}"))).ok();
    // The table of io_uring_enter has a column for each size of call that occurred, and a terminal gets it folded.
    let blocks = finished.stdout.split("\n\n").filter(|block| !block.contains("io_uring_enter, %"));
    let table: Vec<&str> = blocks.flat_map(str::lines).filter(|line| line.starts_with('|')).collect();
    assert!(table[0].starts_with("|engine") && table[0].contains("|cores|"), "{}", finished.stdout);
    assert!(!table[0].contains("% of"), "there is no other engine to compare with: {}", finished.stdout);
    for row in table {
        assert!(row.chars().count() <= 110, "{row}");
    }
    finished.says(&["latencies of engines that submit batches"]);
}
