//! The output and results of a successful run.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::support::{
    SHORT, disk_folder, folder, installed, json, perf_file, ring_is_forbidden, routes, run, runs, skip,
};

const RUN_KEYS: [&str; 24] = [
    "engine",
    "round",
    "role",
    "numjobs",
    "iodepth",
    "rw",
    "buffers",
    "direct",
    "cache",
    "block_size_bytes",
    "ops",
    "errors",
    "duration_s",
    "iops",
    "bw_bytes",
    "latency_ns",
    "cpu_us_per_io",
    "enters",
    "fixed_ops",
    "route",
    "executor",
    "route_ops",
    "cached_before",
    "cached_after",
];

/// Asserts that every key exists; integers are integers, all others numbers; a successful run has no error.
#[track_caller]
fn assert_run(run: &Value) {
    for key in RUN_KEYS {
        assert!(run.get(key).is_some(), "{key} is missing in {run}");
    }
    for key in ["round", "numjobs", "iodepth", "block_size_bytes", "ops", "errors"] {
        assert!(run[key].is_u64(), "{key} is an integer in {run}");
    }
    for key in ["mean", "p50", "p95", "p99", "p999", "max"] {
        assert!(run["latency_ns"][key].is_u64(), "{key} is an integer in {run}");
    }
    for key in ["duration_s", "iops", "bw_bytes", "cpu_us_per_io"] {
        assert!(run[key].is_f64(), "{key} has a fraction in {run}");
    }
    assert!(run["ops"].as_u64() > Some(0), "{run}");
    assert_eq!(run["errors"], 0, "{run}");
    let number = |key: &str| run[key].as_f64().expect("checked above");
    let (ops, seconds) = (run["ops"].as_u64().expect("checked above") as f64, number("duration_s"));
    assert!((number("iops") - ops / seconds).abs() <= 1.0, "{run}");
    assert!(
        (number("bw_bytes") - number("iops") * run["block_size_bytes"].as_f64().expect("checked above"))
            .abs()
            <= 1.0
    );
    let at = |key: &str| run["latency_ns"][key].as_u64().expect("checked above");
    assert!(at("p50") <= at("p95") && at("p95") <= at("p99") && at("p999") <= at("max"), "{run}");
    if run["engine"] == "ringfile" {
        assert!(run["enters"].is_u64(), "{run}");
        assert!(run["route"].is_string() && run["executor"].is_string(), "{run}");
        let expected = if run["buffers"] == "fixed" { &run["route_ops"]["ring"] } else { &Value::from(0) };
        assert_eq!(&run["fixed_ops"], expected, "{run}");
        let went = |route: &str| run["route_ops"][route].as_u64().expect("a count");
        assert_eq!(
            went("ring") + went("inline") + went("workers") + went("aio"),
            run["ops"].as_u64().expect("a count"),
            "{run}"
        );
    } else {
        for key in ["enters", "fixed_ops", "route", "executor", "route_ops"] {
            assert!(run[key].is_null(), "{key} in {run}");
        }
    }
}

#[test]
fn json_has_every_key_and_every_cell() {
    let folder = folder();
    let out = folder.path().join("out.json");
    let mut command = perf_file();
    command.args("--size 4m --duration 30ms --warmup 5ms --numjobs 1,2 --iodepth 1,4".split(' '));
    command.args("--rw read,write,randread,randwrite,randrw --rounds 2 --against pread --json".split(' '));
    let finished = run(command.arg(&out)).ok();
    assert_eq!(finished.stderr, "", "no progress where there is no terminal");

    let results = json(&out);
    let keys: BTreeSet<&str> = results.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = [
        "schema",
        "kind",
        "command",
        "interrupted",
        "machine",
        "params",
        "runs",
        "notes",
        "behind",
        "advice",
        "profile",
    ];
    assert_eq!(keys, BTreeSet::from(expected));
    assert_eq!((&results["schema"], &results["interrupted"]), (&Value::from(1), &Value::from(false)));
    assert!(
        results["command"]
            .as_str()
            .is_some_and(|command| command.starts_with("ringfile perf file --size 4m"))
    );
    for key in ["kernel", "cpu_model", "cpus", "filesystem", "ring_features"] {
        assert!(results["machine"].get(key).is_some(), "{key}");
    }
    assert!(
        results["machine"]["ring_features"].as_array().is_some_and(|all| all.iter().all(Value::is_string))
    );

    runs(&results).iter().for_each(assert_run);
    // For each numjobs and mode, twice: two depths of normal, fixed, auto if there is a ring, and A/A; pread once.
    let cells: BTreeSet<String> = runs(&results)
        .iter()
        .map(|run| {
            ["engine", "round", "role", "numjobs", "iodepth", "rw", "buffers", "route"]
                .map(|key| run[key].to_string())
                .join(" ")
        })
        .collect();
    let of_depth = if ring_is_forbidden() { 3 } else { 4 };
    assert_eq!(runs(&results).len(), 2 * 5 * 2 * (2 * of_depth + 1));
    assert_eq!(cells.len(), runs(&results).len(), "no run twice");
}

#[test]
fn every_route_in_every_executor_is_the_one_asked_for() {
    let folder = disk_folder();
    for extra in [&[][..], &["--direct"]] {
        let has_aio = !extra.is_empty() && std::env::var("RINGFILE_BACKEND").as_deref() != Ok("workers");
        let routes = [routes(), if has_aio { &["aio"] } else { &[] }].concat();
        let (path, out) = (folder.path().join("routes.bin"), folder.path().join("out.json"));
        let mut command = perf_file();
        command
            .args("--size 4m --duration 50ms --warmup 10ms --numjobs 2 --iodepth 4 --rw randrw".split(' '));
        command.args("--executor ringfile,tokio --verify --force --route".split(' ')).arg(routes.join(","));
        command.args(extra).arg("--file").arg(&path).arg("--json").arg(&out);
        let finished = run(&mut command);
        if finished.code == Some(2) && finished.stderr.contains("leave out --direct") {
            skip("every_route_in_every_executor with --direct", format!("{} has none", path.display()));
            continue;
        }
        let finished = finished.ok();
        for title in ["|route", "|executor"] {
            assert_eq!(finished.stdout.matches(title).count(), 2, "{title} in both: {}", finished.stdout);
        }
        let results = json(&out);
        runs(&results).iter().for_each(assert_run);
        assert_eq!(runs(&results).len(), routes.len() * 2 * 2 + 1);
        for run in runs(&results) {
            if let Some(route) =
                run["route"].as_str().filter(|&route| route != "auto" && !ring_is_forbidden())
            {
                assert_eq!(run["route_ops"][route], run["ops"], "{run}");
            }
        }
        assert_eq!(results["params"]["route"], serde_json::json!(routes));
        assert_eq!(results["params"]["executor"], serde_json::json!(["ringfile", "tokio"]));
    }
}

#[test]
fn usual_routes_and_executors_have_no_column() {
    let finished = run(perf_file().args(SHORT.split(' ')).args(["--route", "auto"])).ok();
    assert!(!finished.stdout.contains("|route") && !finished.stdout.contains("|executor"));
    let finished = run(perf_file().args(SHORT.split(' ')).args(["--route", "inline"])).ok();
    assert!(finished.stdout.contains("|route") && !finished.stdout.contains("|executor"));
}

/// Without options the command must show the gain from registered buffers, which exists only on the ring, on a file
/// that `auto` reads with plain calls.
#[test]
fn without_options_the_worth_of_registered_buffers_is_shown_beside_auto() {
    if ring_is_forbidden() {
        skip(
            "without_options_the_worth_of_registered_buffers_is_shown_beside_auto",
            "RINGFILE_BACKEND=workers forbids rings",
        );
        return;
    }
    let folder = folder();
    let out = folder.path().join("out.json");
    let finished = run(perf_file().args(SHORT.split(' ')).arg("--json").arg(&out)).ok();
    let results = json(&out);
    let measured: Vec<String> = runs(&results)
        .iter()
        .map(|run| ["route", "buffers", "role"].map(|key| run[key].as_str().expect("a word")).join(" "))
        .collect();
    assert_eq!(
        measured,
        ["ring normal measure", "ring fixed measure", "auto normal measure", "ring normal aa"]
    );
    for run in runs(&results).iter().filter(|run| run["route"] == "ring") {
        assert_eq!(run["route_ops"]["ring"], run["ops"], "{run}");
        assert_eq!(run["fixed_ops"] == run["ops"], run["buffers"] == "fixed", "{run}");
    }
    for start in ["|fixed/normal|", "|auto/ring", "|A/A"] {
        let row = finished.stdout.lines().find(|line| line.starts_with(start));
        let row = row.unwrap_or_else(|| panic!("{start}: {}", finished.stdout));
        assert!(
            row.contains(" → ") && (row.contains("|+") || row.contains("|-") || row.contains(" +")),
            "{row}"
        );
    }
}

#[test]
fn the_tables_are_markdown_and_fit_a_terminal() {
    let finished = run(perf_file().args(SHORT.split(' ')).args("--against pread --rounds 2".split(' '))).ok();
    let tables: Vec<&str> = finished.stdout.lines().filter(|line| line.starts_with('|')).collect();
    assert!(tables[0].starts_with("|engine") && tables[0].contains("|CPU µs|"), "{}", finished.stdout);
    // The table of changes is wider with several rounds, and folded if the terminal is narrower.
    for row in tables.iter().take_while(|row| !row.starts_with("|change")) {
        assert!(row.chars().count() <= 100, "{row}");
    }
    for start in
        ["|ringfile", "|pread", "|change in %", "|fixed/normal", "|normal/pread", "|fixed/pread", "|A/A"]
    {
        assert!(tables.iter().any(|row| row.starts_with(start)), "{start}: {}", finished.stdout);
    }
    assert!(["median", "min", "max"].iter().all(|part| finished.stdout.contains(part)));
    assert!(
        finished.stdout.contains("- /dev/shm/ringfile-perf-"),
        "the notes name the file: {}",
        finished.stdout
    );
}

#[test]
fn more_threads_than_cores_show_their_tails() {
    let many = format!("--numjobs {}", 2 * std::thread::available_parallelism().map_or(1, usize::from));
    let finished = run(perf_file().args(SHORT.replace("--numjobs 1", &many).split(' '))).ok();
    let title = finished.stdout.lines().next().unwrap_or_default();
    assert!(title.contains("|p99.9|p99.99|") && title.contains("max"), "{}", finished.stdout);
}

#[test]
fn quiet_prints_tables_alone() {
    let finished = run(perf_file().args(SHORT.split(' ')).arg("--quiet")).ok();
    assert_eq!(finished.stderr, "");
    assert!(
        finished.stdout.lines().all(|line| line.is_empty() || line.starts_with('|')),
        "{}",
        finished.stdout
    );
}

#[test]
fn the_default_file_is_removed() {
    let child = perf_file()
        .args(SHORT.split(' '))
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("the program starts");
    let path = format!("/dev/shm/ringfile-perf-{}.bin", child.id());
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(output.status.code(), Some(0));
    assert!(!Path::new(&path).exists());
}

#[test]
fn a_small_dev_shm_gives_a_smaller_file() {
    let folder = folder();
    let out = folder.path().join("out.json");
    // A mount in its own mount namespace, which no other process sees.
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c"]);
    command.arg("mount -t tmpfs -o size=16m tmpfs /dev/shm || exit 77; exec \"$@\"").arg("sh");
    command
        .arg(env!("CARGO_BIN_EXE_ringfile"))
        .args("perf file --duration 20ms --warmup 0s --numjobs 1".split(' '));
    command.args("--iodepth 1 --rw randread --json".split(' ')).arg(&out);
    let Some(finished) =
        installed("unshare").then(|| run(&mut command)).filter(|finished| finished.code.is_some())
    else {
        skip("a_small_dev_shm_gives_a_smaller_file", "there is no unshare");
        return;
    };
    if finished.code == Some(77) || finished.stderr.starts_with("unshare:") {
        skip("a_small_dev_shm_gives_a_smaller_file", format!("nothing can be mounted: {}", finished.stderr));
        return;
    }
    let finished = finished.ok();
    assert!(finished.stderr.contains("/dev/shm has room for 16 MiB only"), "{}", finished.stderr);
    assert_eq!(json(&out)["params"]["size_bytes"], 12 << 20);
}

#[test]
fn direct_is_direct() {
    let folder = disk_folder();
    let (path, out) = (folder.path().join("direct.bin"), folder.path().join("out.json"));
    let mut command = perf_file();
    command
        .args(SHORT.split(' '))
        .args("--direct --against pread --file".split(' '))
        .arg(&path)
        .arg("--json")
        .arg(&out);
    let finished = run(&mut command);
    if finished.code == Some(2) && finished.stderr.contains("leave out --direct") {
        skip("direct_is_direct", format!("{} has no direct I/O", path.display()));
        return;
    }
    finished.ok();
    let results = json(&out);
    runs(&results).iter().for_each(assert_run);
    for run in runs(&results) {
        assert_eq!((&run["direct"], &run["cache"]), (&Value::from(true), &Value::from("keep")));
        // Reads through the page cache would have left the file in it.
        assert!(run["cached_after"].as_f64().is_none_or(|fraction| fraction < 0.5), "{run}");
    }
    assert!(!path.exists(), "a file that was made is removed");
}

#[test]
fn cold_is_cold() {
    let folder = disk_folder();
    let (path, out) = (folder.path().join("cold.bin"), folder.path().join("out.json"));
    let mut command = perf_file();
    command
        .args(SHORT.split(' '))
        .args(["--cache", "warm,cold", "--file"])
        .arg(&path)
        .arg("--json")
        .arg(&out);
    run(&mut command).ok();
    for run in runs(&json(&out)) {
        match (run["cache"].as_str(), run["cached_before"].as_f64()) {
            (_, None) => {
                eprintln!("cold_is_cold asserts nothing: this kernel does not report what is cached")
            }
            (Some("warm"), Some(fraction)) => assert_eq!(fraction, 1.0, "{run}"),
            (Some("cold"), Some(fraction)) => assert!(fraction < 0.5, "{run}"),
            (other, _) => panic!("cache {other:?} was not asked for"),
        }
    }
}

#[test]
fn fio_that_is_missing_is_told_and_left_out() {
    let folder = folder();
    let out = folder.path().join("out.json");
    let mut command = perf_file();
    command.args(SHORT.split(' ')).args(["--against", "fio,fio-batch,fio-psync,pread", "--json"]).arg(&out);
    let finished = run(command.env("PATH", folder.path())).ok();
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    assert!(finished.stderr.contains("apt-get install fio"), "{}", finished.stderr);
    let results = json(&out);
    let engines: BTreeSet<String> = runs(&results).iter().map(|run| run["engine"].to_string()).collect();
    assert_eq!(engines, BTreeSet::from(["\"ringfile\"".to_string(), "\"pread\"".to_string()]));
    assert_eq!(results["params"]["against"], serde_json::json!(["pread"]));
}

#[test]
fn fio_takes_part() {
    if !installed("fio") {
        skip("fio_takes_part", "fio is not installed");
        return;
    }
    let folder = folder();
    let out = folder.path().join("out.json");
    let mut command = perf_file();
    command.args("--size 4m --duration 50ms --warmup 5ms --numjobs 2 --iodepth 1,4".split(' '));
    command.args("--rw randrw,write --against fio,fio-batch,fio-psync --json".split(' ')).arg(&out);
    run(&mut command).ok();
    let results = json(&out);
    runs(&results).iter().for_each(assert_run);
    let count = |engine: &str, buffers: &str| {
        runs(&results).iter().filter(|run| run["engine"] == engine && run["buffers"] == buffers).count()
    };
    for engine in ["fio", "fio-batch"] {
        assert_eq!((count(engine, "normal"), count(engine, "fixed")), (4, 4), "{engine}");
    }
    assert_eq!((count("fio-psync", "normal"), count("fio-psync", "fixed")), (2, 0));
    assert!(results["machine"]["fio"].as_str().is_some_and(|version| version.starts_with("fio")));
}

#[test]
fn mixed_reads_are_measured_adaptively_buffered_and_directly() {
    let folder = disk_folder();
    let path = folder.path().join("mixed.bin");
    let options = ["--cache", "mixed", "--size", "256m", "--bs", "64k", "--iodepth", "4"];
    let (out, page) = (folder.path().join("out.json"), folder.path().join("out.html"));
    let times = ["--duration", "300ms", "--warmup", "100ms", "--file"];
    let mut command = perf_file();
    command.args(options).args(times).arg(&path).arg("--json").arg(&out).arg("--report").arg(&page);
    let finished = run(&mut command);
    if finished.stderr.contains("can't be read adaptively") {
        return skip("mixed_reads", finished.stderr);
    }
    let finished = finished.ok();
    for part in ["|adaptive", "|buffered", "|direct", "|A/A", "|adaptive/buffered", "scan MiB/s"] {
        assert!(finished.stdout.contains(part), "{part}: {}", finished.stdout);
    }
    let results = json(&out);
    assert_eq!(results["kind"], "mixed");
    let ways: Vec<_> =
        runs(&results).iter().map(|run| (run["direct"] == true, run["adaptive"] == true)).collect();
    assert_eq!(ways, [(false, true), (false, false), (true, false), (false, true)]);
    for run in runs(&results) {
        assert!(run["ops"].as_u64() > Some(0) && run["mixed"]["scan_bw_bytes"].as_f64() > Some(0.0), "{run}");
    }
    assert!(std::fs::read_to_string(&page).expect("the page is there").contains("adaptive"));
    assert!(!path.exists());
}

#[test]
fn files_are_opened_in_every_way_asked_for() {
    let folder = disk_folder();
    let (path, out) = (folder.path().join("data.bin"), folder.path().join("out.json"));
    let mut command = perf_file();
    command.args(SHORT.split(' ')).args([
        "--open",
        "buffered,adaptive",
        "--route",
        "auto",
        "--buffers",
        "normal",
    ]);
    let finished = run(command.arg("--file").arg(&path).arg("--json").arg(&out));
    if finished.stderr.contains("can't be read adaptively") {
        return skip("files_are_opened_in_every_way_asked_for", finished.stderr);
    }
    let finished = finished.ok();
    assert!(finished.stdout.contains("|adaptive/buffered"), "{}", finished.stdout);
    let adaptive: Vec<bool> = runs(&json(&out)).iter().map(|run| run["adaptive"] == true).collect();
    assert_eq!(adaptive, [false, true, false], "the first once more");
}
