//! The output and results of a successful run.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{
    assert_run, default_file, disk_folder, end, folder, installed, measured, ring_is_forbidden, ringfile,
    routes, run, runs, saved, short, skip, skip_part, start,
};

#[track_caller]
fn assert_runs(results: &Value) {
    for run in runs(results) {
        assert_run(run);
    }
}

#[test]
fn json_has_every_key_and_every_cell() {
    let (finished, results) = measured(&mut ringfile(
        "perf file --size 4m --duration 30ms --warmup 5ms --numjobs 1,2 --iodepth 1,4 \
         --rw read,write,randread,randwrite,randrw --rounds 2 --against pread",
    ));
    assert_eq!(finished.stderr, "", "no progress where there is no terminal");
    let keys: BTreeSet<&str> = results.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = "schema kind command interrupted machine params runs notes behind advice profile";
    assert_eq!(keys, expected.split(' ').collect());
    assert_eq!((&results["schema"], &results["interrupted"]), (&json!(1), &json!(false)));
    let command = results["command"].as_str().expect("text");
    assert!(command.starts_with("ringfile perf file --tables --size 4m"), "{command}");
    for key in ["kernel", "cpu_model", "cpus", "filesystem"] {
        assert!(results["machine"].get(key).is_some(), "{key}");
    }
    let features = results["machine"]["ring_features"].as_array();
    assert!(features.is_some_and(|all| all.iter().all(Value::is_string)), "{features:?}");

    assert_runs(&results);
    // For each numjobs and mode, twice: two depths of normal, fixed, auto if there is a ring, and A/A; pread once.
    let identity = ["engine", "round", "role", "numjobs", "iodepth", "rw", "buffers", "route"];
    let cells: BTreeSet<String> =
        runs(&results).iter().map(|run| identity.map(|key| run[key].to_string()).join(" ")).collect();
    let of_depth = if ring_is_forbidden() { 3 } else { 4 };
    assert_eq!(runs(&results).len(), 2 * 5 * 2 * (2 * of_depth + 1));
    assert_eq!(cells.len(), runs(&results).len(), "no run twice");
}

#[test]
fn every_route_is_the_one_asked_for() {
    let folder = disk_folder();
    let path = folder.path().join("routes.bin");
    for extra in ["", " --direct"] {
        let has_aio = !extra.is_empty() && std::env::var("RINGFILE_DISABLE").as_deref() != Ok("io_uring,aio");
        let routes = [routes(), if has_aio { &["aio"] } else { &[] }].concat();
        let arguments = format!(
            "--size 4m --duration 50ms --warmup 10ms --numjobs 2 --iodepth 4 --rw randrw --verify \
             --route {}{extra}",
            routes.join(",")
        );
        let (finished, results) = saved(ringfile(&format!("perf file {arguments} --file")).arg(&path));
        if finished.lacks_direct_io() {
            skip_part(" with --direct", format!("{} has none", path.display()));
            continue;
        }
        let finished = finished.ok();
        assert_eq!(finished.stdout.matches("|route").count(), 2, "in both: {}", finished.stdout);
        assert_runs(&results);
        assert_eq!(runs(&results).len(), routes.len() * 2 + 1);
        assert_eq!(results["params"]["route"], json!(routes));
    }
}

#[test]
fn usual_routes_have_no_column() {
    for (route, shown) in [("auto", false), ("inline", true)] {
        let finished = run(&mut short(&format!("--route {route}"))).ok();
        assert_eq!(finished.stdout.contains("|route"), shown, "{route}: {}", finished.stdout);
    }
}

/// Without options the command must show the gain from registered buffers, which exists only on the ring, on a file
/// that `auto` reads with plain calls; and `auto` with registered memory, which a program gets from a pool.
#[test]
fn without_options_the_worth_of_registered_buffers_is_shown_beside_auto_with_registered_ones() {
    if ring_is_forbidden() {
        return skip("RINGFILE_DISABLE=io_uring,aio forbids rings");
    }
    let (finished, results) = measured(&mut short(""));
    let kind =
        |run: &Value| ["route", "buffers", "role"].map(|key| run[key].as_str().expect("a word")).join(" ");
    let kinds: Vec<String> = runs(&results).iter().map(kind).collect();
    let expected = ["ring normal measure", "ring fixed measure", "auto fixed measure", "ring normal aa"];
    assert_eq!(kinds, expected);
    for run in runs(&results).iter().filter(|run| run["route"] == "ring") {
        assert_eq!(run["route_ops"]["ring"], run["ops"], "{run}");
        assert_eq!(run["fixed_ops"] == run["ops"], run["buffers"] == "fixed", "{run}");
    }
    // Higher percentiles have a row only if there were enough operations.
    for figure in ["IOPS", "MiB/s", "mean", "p50", "CPU µs"] {
        let row = |line: &&str| line.contains(&format!("|{figure:<6}|")) && line.contains(" → ");
        assert_eq!(finished.stdout.lines().filter(row).count(), 3, "{figure}: {}", finished.stdout);
    }
    let auto = runs(&results).iter().find(|run| run["route"] == "auto").expect("a run");
    assert_eq!(auto["fixed_ops"], auto["route_ops"]["ring"], "{auto}");
    for start in ["|fixed/normal|", "|auto/ring", "|A/A"] {
        let row = finished.stdout.lines().find(|line| line.starts_with(start));
        let row = row.unwrap_or_else(|| panic!("{start}: {}", finished.stdout));
        assert!(row.contains("|IOPS") && row.contains(" → "), "{row}");
    }
}

#[test]
fn the_tables_are_markdown_and_fit_a_terminal() {
    let finished = run(&mut short("--against pread --rounds 2")).ok();
    let tables: Vec<&str> = finished.stdout.lines().filter(|line| line.starts_with('|')).collect();
    assert!(tables[0].starts_with("|engine") && tables[0].contains("|CPU µs|"), "{}", finished.stdout);
    for row in &tables {
        assert!(row.chars().count() <= 100, "{row}");
    }
    for start in ["|ringfile", "|pread", "|change", "|fixed/normal", "|normal/pread", "|fixed/pread", "|A/A"]
    {
        assert!(tables.iter().any(|row| row.starts_with(start)), "{start}: {}", finished.stdout);
    }
    let verdict = finished.verdict.lines().count();
    assert!((1..=3).contains(&verdict), "{}", finished.verdict);
    // The notes name the file.
    finished.says(&["before → after", "least..most", "- /dev/shm/ringfile-perf-"]);
    assert!(!finished.stdout.contains("fio"), "it was not measured: {}", finished.stdout);
}

#[test]
fn more_threads_than_cores_show_their_tails() {
    let many = format!("--numjobs {}", 2 * std::thread::available_parallelism().map_or(1, usize::from));
    let mut command = ringfile(&format!("perf file {}", crate::support::SHORT.replace("--numjobs 1", &many)));
    let finished = run(&mut command).ok();
    let title = finished.stdout.lines().next().unwrap_or_default().replace(' ', "");
    assert!(title.contains("|p99.9|p99.99|") && title.contains("max"), "{}", finished.stdout);
}

#[test]
fn quiet_prints_tables_alone() {
    let finished = run(&mut short("--quiet")).ok();
    assert_eq!(finished.stderr, "");
    let is_of_table = |line: &str| line.is_empty() || line.starts_with('|');
    assert!(finished.stdout.lines().all(is_of_table), "{}", finished.stdout);
}

#[test]
fn the_default_file_is_removed() {
    let child = start(&mut short(""));
    let path = default_file(&child);
    end(child).ok();
    assert!(!path.exists());
}

#[test]
fn a_small_dev_shm_gives_a_smaller_file() {
    // A mount in its own mount namespace, which no other process sees.
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c"]);
    command.arg("mount -t tmpfs -o size=16m tmpfs /dev/shm || exit 77; exec \"$@\"").arg("sh");
    command.arg(env!("CARGO_BIN_EXE_ringfile"));
    command.args("perf file --duration 20ms --warmup 0s --numjobs 1 --iodepth 1 --rw randread".split(' '));
    let ran = installed("unshare").then(|| saved(&mut command));
    let Some((finished, results)) = ran.filter(|(finished, _)| finished.code.is_some()) else {
        return skip("there is no unshare");
    };
    if finished.code == Some(77) || finished.stderr.starts_with("unshare:") {
        return skip(format!("nothing can be mounted: {}", finished.stderr));
    }
    let finished = finished.ok();
    assert!(finished.stderr.contains("/dev/shm has room for 16 MiB only"), "{}", finished.stderr);
    assert_eq!(results["params"]["size_bytes"], 12 << 20);
}

#[test]
fn direct_is_direct() {
    let folder = disk_folder();
    let path = folder.path().join("direct.bin");
    let (finished, results) = saved(short("--direct --against pread --file").arg(&path));
    if finished.lacks_direct_io() {
        return skip(format!("{} has no direct I/O", path.display()));
    }
    finished.ok();
    assert_runs(&results);
    for run in runs(&results) {
        assert_eq!((&run["direct"], &run["cache"]), (&json!(true), &json!("keep")));
        // Reads through the page cache would have left the file in it.
        assert!(run["cached_after"].as_f64().is_none_or(|fraction| fraction < 0.5), "{run}");
    }
    assert!(!path.exists(), "a file that was made is removed");
}

#[test]
fn cold_is_cold() {
    let folder = disk_folder();
    let (_, results) = measured(short("--cache warm,cold --file").arg(folder.path().join("cold.bin")));
    for run in runs(&results) {
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
fn fio_that_is_missing_is_reported_and_left_out() {
    let folder = folder();
    let mut command = short("--against fio,fio-batch,fio-psync,pread");
    let (finished, results) = measured(command.env("PATH", folder.path()));
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    assert!(finished.stderr.contains("apt-get install fio"), "{}", finished.stderr);
    let engines: BTreeSet<&str> = runs(&results).iter().filter_map(|run| run["engine"].as_str()).collect();
    assert_eq!(engines, BTreeSet::from(["ringfile", "pread"]));
    assert_eq!(results["params"]["against"], json!(["pread"]));
}

#[test]
fn fio_takes_part() {
    if !installed("fio") {
        return skip("fio is not installed");
    }
    let (_, results) = measured(&mut ringfile(
        "perf file --size 4m --duration 50ms --warmup 5ms --numjobs 2 --iodepth 1,4 --rw randrw,write \
         --against fio,fio-batch,fio-psync",
    ));
    assert_runs(&results);
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
    let (path, page) = (folder.path().join("mixed.bin"), folder.path().join("out.html"));
    let arguments = "--cache mixed --size 256m --bs 64k --iodepth 4 --duration 300ms --warmup 100ms --file";
    let mut command = ringfile(&format!("perf file {arguments}"));
    let (finished, results) = saved(command.arg(&path).arg("--report").arg(&page));
    if finished.stderr.contains("can't be read adaptively") {
        return skip(finished.stderr);
    }
    let finished = finished.ok();
    finished.says(&["|adaptive", "|buffered", "|direct", "|A/A", "|adaptive/buffered", "scan MiB/s"]);
    finished.says(&[
        "256 MiB in blocks of 64 KiB",
        "made for this run and removed",
        "300ms a run",
        "1 round",
    ]);
    assert_eq!(results["kind"], "mixed");
    let ways: Vec<_> =
        runs(&results).iter().map(|run| (run["direct"] == true, run["adaptive"] == true)).collect();
    assert_eq!(ways, [(false, true), (false, false), (true, false), (false, true)]);
    for run in runs(&results) {
        assert!(run["ops"].as_u64() > Some(0) && run["mixed"]["scan_bw_bytes"].as_f64() > Some(0.0), "{run}");
    }
    let limited = results["notes"].to_string().contains("; a quarter of it as memory");
    assert_eq!(limited, !finished.stderr.contains("memory was not limited"), "{finished:#?}");
    assert!(std::fs::read_to_string(&page).expect("the page is there").contains("adaptive"));
    assert!(!path.exists());
}

#[test]
fn files_are_opened_in_every_way_asked_for() {
    let folder = disk_folder();
    let path = folder.path().join("data.bin");
    let mut command = short("--open buffered,adaptive --route auto --buffers normal --file");
    let (finished, results) = saved(command.arg(&path));
    if finished.stderr.contains("can't be read adaptively") {
        return skip(finished.stderr);
    }
    finished.ok().says(&["|adaptive/buffered"]);
    let adaptive: Vec<bool> = runs(&results).iter().map(|run| run["adaptive"] == true).collect();
    assert_eq!(adaptive, [false, true, false], "the first once more");
}
