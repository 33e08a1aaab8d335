//! The results: every cell, on every kind of file, with all its figures; and what stays behind.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{
    disk_folder, file_with, files_in, folder, installed, measured, ring_is_forbidden, ringfile, run, runs,
    skip,
};

/// One block size and depth of 50 ms.
const SHORT: &str = "--size 8m --duration 50ms --warmup 5ms --numjobs 1 --bs 16k --iodepth 4 --rounds 1";

/// Measures with these arguments and, where one is named, this file; returns the results and the output.
fn measure(arguments: &str, file: Option<&Path>) -> (Value, String) {
    let folder = disk_folder();
    let mut command = ringfile(&format!("perf buffers --tables {arguments}"));
    command.env("TMPDIR", folder.path()).args(file.map(|_| "--file")).args(file);
    let (finished, results) = measured(&mut command);
    assert_eq!(files_in(folder.path()), 0, "nothing is left");
    (results, finished.stdout)
}

#[test]
fn every_cell_is_measured_with_all_its_figures() {
    let (results, text) = measure(
        "--size 8m --duration 50ms --warmup 5ms --bs 16k,128k --iodepth 1,4 --rounds 1 --numjobs 1",
        None,
    );
    assert_eq!((&results["kind"], &results["interrupted"]), (&"buffers".into(), &false.into()));
    assert_eq!(results["params"]["file_created"], true);
    let runs = runs(&results);
    let grid: Vec<&Value> = runs.iter().filter(|run| run["cache"] == results["params"]["cache"][0]).collect();
    let kinds = if results["params"]["direct"] == true { 5 } else { 4 };
    assert!(grid.len() >= 2 * 2 * 2 * kinds, "two block sizes, depths and accesses: {}", grid.len());
    for run in runs {
        let number = |field: &str| run[field].as_f64().unwrap_or_else(|| panic!("{field} in {run}"));
        assert!(number("ops") > 0.0 && number("iops") > 0.0 && run["errors"] == 0, "{run}");
        assert_eq!(run["numjobs"], 1, "{run}");
        for field in ["user_us_per_io", "system_us_per_io", "user_percent", "system_percent", "system_calls"]
        {
            assert!(number(field) >= 0.0, "{run}");
        }
        assert!(run["context_switches"].is_u64(), "{run}");
        let whole = &run["whole_machine"];
        let parts =
            ["user_percent", "system_percent", "interrupts_percent", "idle_percent", "stolen_percent"];
        assert!(parts.iter().all(|part| whole[part].as_f64() >= Some(0.0)), "{run}");
        assert!(whole["interrupts"].is_u64(), "{run}");
        let latency =
            |field: &str| run["latency_ns"][field].as_u64().unwrap_or_else(|| panic!("{field} in {run}"));
        let order = ["p50", "p90", "p95", "p99", "p999", "p9999", "max"].map(latency);
        assert!(order.is_sorted(), "{run}");
        let vectored = run["buffers"].as_str().is_some_and(|buffers| buffers.starts_with("vectored"));
        assert_eq!(run["parts"].is_u64(), vectored, "{run}");
        if run["route"] == "ring" {
            assert_eq!(run["route_ops"]["ring"], run["ops"], "{run}");
            let registered = run["buffers"].as_str().is_some_and(|buffers| buffers.ends_with("fixed"));
            let fixed = if registered { run["ops"].as_u64() } else { Some(0) };
            // READV_FIXED is newer than the rest.
            if run["buffers"] != "vectored-fixed" {
                assert_eq!(run["fixed_ops"].as_u64(), fixed, "{run}");
            }
        }
    }
    for part in ["|jobs|mode", "|whole machine", "|way", "vectored ×", "Advice for"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn the_advice_comes_first_and_the_tables_only_on_request() {
    let folder = disk_folder();
    let printed = |options: &str| {
        let mut command = ringfile(format!("perf buffers {SHORT} --rw randread {options}").trim_end());
        run(command.env("TMPDIR", folder.path())).ok().stdout
    };
    let short = printed("");
    assert!(short.starts_with("Best here: ") && short.contains("\n|depth "), "{short}");
    let last =
        "--tables: all figures, and what they mean; --report FILE.html draws them. --explain: the reasons.\n";
    assert!(
        short.ends_with(last) && !short.contains("- depth") && !short.contains("whole machine"),
        "{short}"
    );
    assert!(printed("--explain").contains("\n- depth = 4: "));
    let quiet = printed("--quiet");
    assert!(quiet.starts_with("Best here: ") && !quiet.contains("--tables"), "{quiet}");
    let long = printed("--tables");
    let order = ["Best here: ", "|depth ", "|jobs|mode", "|whole machine", "latencies in µs"];
    let places = order.map(|part| long.find(part).unwrap_or_else(|| panic!("{part} in {long}")));
    assert!(places.is_sorted() && !long.contains("--tables: "), "{long}");
}

#[test]
fn rings_are_measured_with_the_flags_asked_for_and_by_hand() {
    if ring_is_forbidden() || ringfile::metrics::ring_features().is_err() {
        return skip("there is no ring here");
    }
    // At depth 16, other routes without rings are measured beside the grid.
    let arguments = format!("{SHORT} --rw randread --ring-flags none,coop,defer,sqpoll --by-hand")
        .replace("--iodepth 4", "--iodepth 16");
    let (results, text) = measure(&arguments, None);
    assert_eq!(results["params"]["ring_flags"], json!(["none", "coop", "defer", "sqpoll"]));
    for engine in ["ringfile", "by-hand"] {
        for flags in ["none", "coop", "defer", "sqpoll"] {
            for buffers in ["normal", "fixed"] {
                let is =
                    |run: &&Value| (&run["engine"], &run["ring_flags"]) == (&engine.into(), &flags.into());
                let mut of = runs(&results).iter().filter(is).filter(|run| run["buffers"] == buffers);
                let run = of.next().unwrap_or_else(|| panic!("{engine} {flags} {buffers}"));
                assert_eq!(run["route_ops"]["ring"], run["ops"], "{run}");
                let fixed = if buffers == "fixed" { run["ops"].as_u64() } else { Some(0) };
                assert_eq!(run["fixed_ops"].as_u64(), fixed, "{run}");
            }
        }
    }
    for part in ["|by-hand ", "|sqpoll", "fixed: ringfile/by hand"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn an_existing_file_is_only_read() {
    let folder = disk_folder();
    let path = file_with(&folder, &vec![7; 4 << 20]);
    let before = std::fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("a time");
    let (results, _) = measure(&SHORT.replace("--size 8m ", ""), Some(&path));
    assert_eq!(results["params"]["rw"], json!(["randread"]));
    assert_eq!(results["params"]["file_created"], false);
    assert!(std::fs::read(&path).expect("still there").iter().all(|&byte| byte == 7), "it was written to");
    let after = std::fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("a time");
    assert_eq!(before, after);
}

#[test]
fn memory_is_measured_through_the_page_cache_and_the_report_says_so() {
    let path = format!("/dev/shm/ringfile-test-{}.bin", std::process::id());
    let (results, text) = measure(&format!("{SHORT} --rw randread"), Some(Path::new(&path)));
    if results["params"]["direct"] == true {
        skip("/dev/shm does direct I/O here");
    } else {
        assert!(text.contains("measured through the page cache"), "{text}");
        assert!(runs(&results).iter().all(|run| run["direct"] == false));
    }
    assert!(!Path::new(&path).exists(), "what was made is removed");
}

#[test]
fn the_configuration_is_one_that_the_library_reads() {
    let folder = folder();
    let path = folder.path().join("ringfile.toml");
    let arguments = format!(
        "--size 8m --duration 30ms --warmup 5ms --numjobs 1 --bs 4k,64k --iodepth 1,16 --rounds 3 --rw randread --emit-config {}",
        path.display()
    );
    let (results, text) = measure(&arguments, None);
    let config = ringfile::Config::load(&path).expect("it loads");
    assert!(
        config.depth().is_some() && config.block_size().is_some() && config.buffers().is_some(),
        "{config:?}"
    );
    let advice = results["advice"].as_array().expect("a list");
    for piece in advice.iter().filter(|piece| piece["sure"] != "not-compared") {
        let name = piece["name"].as_str().expect("a name");
        let is_in = |form: String| text.contains(&form);
        assert!(is_in(format!("\n|{name} ")) || is_in(format!(" {name} = ")), "{name} in {text}");
    }
}

#[test]
fn a_profile_names_functions_of_every_kind_or_says_why_not() {
    let arguments = format!("{SHORT} --rw randread --profile --buffers normal,fixed,vectored,vectored-fixed")
        .replace("--bs 16k", "--bs 16k,64k");
    let (results, text) = measure(&arguments, None);
    let profiles = results["profile"].as_array().expect("a list");
    if profiles.is_empty() {
        assert!(text.contains("no profile: "), "{text}");
        return skip("perf can't be used here");
    }
    assert!(installed("perf"));
    let kinds: Vec<&str> = profiles.iter().filter_map(|profile| profile["buffers"].as_str()).collect();
    assert!(kinds.starts_with(&["normal", "fixed"]), "{kinds:?}");
    let blocks: Vec<u64> =
        profiles.iter().filter_map(|profile| profile["block_size_bytes"].as_u64()).collect();
    assert!(blocks.contains(&16384) && blocks.contains(&65536), "{blocks:?}");
    for profile in profiles {
        let hot = |side: &str| profile[side].as_array().map_or(0, Vec::len);
        assert!(profile["samples"].as_u64() > Some(0) && profile["ops"].as_u64() > Some(0), "{kinds:?}");
        assert!(hot("user") + hot("kernel") > 0 && hot("user") <= 10 && hot("kernel") <= 10, "{kinds:?}");
        let all = profile["kernel_all"].as_array().map_or(0, Vec::len);
        assert!(all >= hot("kernel") && (hot("kernel") < 10 || all > 10), "{all} functions");
        assert!(profile["flame_graph"].as_str().is_some_and(|svg| svg.contains("<svg")), "{kinds:?}");
    }
}

#[test]
fn without_a_ring_there_are_other_routes() {
    if ring_is_forbidden() {
        return skip("the other tests run so already");
    }
    let folder = disk_folder();
    let mut command = ringfile(&format!("perf buffers {SHORT} --rw randread"));
    let (_, results) = measured(command.env("TMPDIR", folder.path()).env("RINGFILE_DISABLE", "io_uring,aio"));
    assert!(runs(&results).iter().all(|run| run["route_ops"]["ring"] == 0 && run["route"] != "ring"));
}
