//! The results: every block checked, every buffer returned, figures of both sides, nothing left behind.

use serde_json::Value;

use super::{direct, perf_pool, short};
use crate::support::{all_routes, disk_folder, files_in, folder, measured, ring_is_forbidden, runs, skip};

#[track_caller]
fn check_run(run: &Value) {
    let (ops, latency, pool) = (&run["ops"], &run["latency_ns"], &run["pool"]);
    assert!(ops.as_u64() > Some(0) && run["errors"] == 0, "{run}");
    for percentile in ["p50", "p90", "p95", "p99", "p999", "p9999", "max"] {
        assert!(latency[percentile].as_u64() > Some(0), "{percentile}: {run}");
    }
    assert!(latency["stddev"].is_u64() && pool["late_ns"]["p99"].is_u64(), "{run}");
    assert!(pool["written_blocks"].as_u64() >= ops.as_u64(), "{run}");
    assert_eq!(pool["written_blocks"], pool["checked_blocks"], "{run}");
    assert_eq!(Some(all_routes(run)), ops.as_u64(), "{run}");
    assert_eq!(run["direct"], run["memory"] != "vec", "{run}");
    let metrics = &pool["metrics"];
    assert_eq!(metrics.is_null(), run["memory"] != "pool", "{run}");
    if metrics.is_null() {
        return;
    }
    for zero in ["in_use_bytes", "outside_allocations", "waits"] {
        assert_eq!(metrics[zero], 0, "{zero}: {run}");
    }
    // Each block has one buffer when it is written, and one when it is read.
    assert_eq!(metrics["gets"].as_u64(), pool["written_blocks"].as_u64().map(|blocks| 2 * blocks), "{run}");
    let registered = metrics["registered_regions"].as_u64() > Some(0);
    assert!(!registered || run["fixed_ops"] == run["route_ops"]["ring"], "{run}");
    assert!(
        registered || ring_is_forbidden() || metrics["refused_registrations"].as_u64() > Some(0),
        "{run}"
    );
}

#[test]
fn all_kinds_and_both_sides() {
    let folder = disk_folder();
    if let Err(why) = direct(folder.path()) {
        return skip(why);
    }
    let (finished, results) = measured(&mut short(folder.path(), "--rounds 2 --rate-limit 8MiB"));
    finished.says(&["|producer|pool", "|producer|malloc", "|consumer|vec", "pool/malloc", "A/A"]);
    finished.says(&["p99.99", "stddev", "in use at the end 0 bytes"]);
    assert_eq!((&results["kind"], &results["interrupted"]), (&"pool".into(), &false.into()));
    assert_eq!(results["params"]["rate_limit_bytes"], 4 << 20, "each side has half");
    finished.says(&["8 MiB a second requested of both sides together, 4 MiB of each"]);
    assert_eq!(runs(&results).len(), 2 * 4 * 2);
    let first = runs(&results)[..8].iter();
    let found: Vec<[Value; 3]> =
        first.map(|run| ["side", "memory", "role"].map(|key| run[key].clone())).collect();
    let kinds = [("pool", "measure"), ("malloc", "measure"), ("vec", "measure"), ("pool", "aa")];
    let sides = |(memory, role)| ["producer", "consumer"].map(|side| [side, memory, role].map(Value::from));
    let expected: Vec<[Value; 3]> = kinds.into_iter().flat_map(sides).collect();
    assert_eq!(found, expected);
    for run in runs(&results) {
        check_run(run);
        let backlog = &run["pool"]["backlog_ops"];
        assert_eq!(backlog.is_u64(), run["side"] == "producer", "{run}");
        // Never faster than requested, except for the batch that is due at once.
        assert!(run["ops"].as_u64() <= Some((4 << 20) / 10 / 4096 + 2 * 4 + 4 * 100), "{run}");
    }
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn any_number_of_each_side() {
    let folder = folder();
    for (producers, consumers, batch) in [(1, 1, 1), (1, 5, 3), (5, 1, 2), (3, 2, 300)] {
        let options = "--memory vec --bs 512 --size 8m --duration 50ms --warmup 0s --quiet";
        let threads = format!("--producers {producers} --consumers {consumers} --batch {batch}");
        let (finished, results) = measured(&mut perf_pool(folder.path(), &format!("{options} {threads}")));
        assert_eq!(finished.stderr, "");
        assert!(!finished.stdout.contains("- "), "only tables: {}", finished.stdout);
        assert_eq!(runs(&results).len(), 4);
        for run in runs(&results) {
            check_run(run);
            let threads = if run["side"] == "producer" { producers } else { consumers };
            assert_eq!((&run["numjobs"], &run["batch"]), (&threads.into(), &batch.into()));
            assert!(run["pool"]["backlog_ops"].is_null(), "{run}");
        }
    }
    assert_eq!(files_in(folder.path()), 0);
}

/// MB is a power of 1000, and producers alone have all of the rate.
#[test]
fn producers_alone_have_the_whole_rate() {
    let folder = folder();
    let options =
        "--consumers 0 --memory vec --bs 4k --size 8m --duration 200ms --warmup 0s --rate-limit 4MB";
    let (_, results) = measured(&mut perf_pool(folder.path(), options));
    assert_eq!(results["params"]["rate_limit_bytes"], 4_000_000);
    for run in runs(&results) {
        // 200 ms at this rate are 49 batches of 4 × 4 KiB; they are never begun early.
        assert!((1..=49 * 4).contains(&run["ops"].as_u64().expect("a count")), "{run}");
    }
}

/// Segments of a few batches, so that each producer fills many and waits for room.
#[test]
fn segments_are_rolled_over_and_their_room_comes_back() {
    // The segments are in memory, so that there is time for many even if the machine is busy.
    let folder = tempfile::tempdir_in("/dev/shm").expect("temporary folder");
    let arguments = "--memory vec --bs 4k --batch 4 --size 256k --duration 500ms --warmup 0s";
    let (_, results) = measured(&mut perf_pool(folder.path(), arguments));
    for run in runs(&results) {
        check_run(run);
        let written = run["pool"]["written_blocks"].as_u64();
        assert!(written > Some((256 << 10) / 4096), "more than there is room for: {run}");
    }
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn a_rate_that_is_not_reached_is_reported() {
    let folder = folder();
    let (finished, results) = measured(&mut short(folder.path(), "--memory vec --rate-limit 1t"));
    finished.says(&["the rate was NOT carried"]);
    for run in runs(&results) {
        check_run(run);
        if run["side"] == "producer" {
            assert!(run["pool"]["backlog_ops"].as_u64() > Some(1_000_000), "{run}");
            // The last batch had been due since the start.
            assert!(run["latency_ns"]["max"].as_u64() > Some(90_000_000), "{run}");
        }
    }
}

#[test]
fn a_log_of_messages_and_producers_alone() {
    let folder = folder();
    for (arguments, sides) in [
        ("--message-size 1000 --sync --memory pool-buffered,vec", &["producer", "consumer"][..]),
        ("--message-size 100 --consumers 0 --memory pool-buffered", &["producer"]),
    ] {
        let options = format!("--duration 100ms --warmup 20ms --size 8m {arguments} --producers 2");
        let (finished, results) = measured(&mut perf_pool(folder.path(), &options));
        assert!(!finished.stdout.contains("doctor"), "{arguments}: {}", finished.stdout);
        for run in runs(&results) {
            assert!(sides.contains(&run["side"].as_str().expect("a side")), "{arguments}: {run}");
            assert!(run["ops"].as_u64() > Some(0) && run["errors"] == 0, "{arguments}: {run}");
            if arguments.contains("message-size 1000") {
                assert_eq!(
                    (&run["block_size_bytes"], run["route_ops"].is_null()),
                    (&1000.into(), true),
                    "{run}"
                );
            }
        }
    }
    assert_eq!(files_in(folder.path()), 0);
}
