//! Compares figures with those of other programs for the same run: CPU time with that of `time`, operations with the
//! device's counters.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::{
    Loop, disk_folder, file_with, installed, measured, ringfile, runs, saved, skip, wait_until,
};

/// Reads at one depth, by two threads if there are two cores, and nothing else.
const READS: &str =
    "--bs 4k --iodepth 32 --rw randread --buffers normal,fixed --rounds 1 --warmup 0s --direct";

/// Returns bytes to fill a file with.
fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at / 7) as u8).collect()
}

fn number(run: &Value, field: &str) -> f64 {
    run[field].as_f64().unwrap_or_else(|| panic!("{field} in {run}"))
}

/// Returns the results of runs of this length, the CPU time that they report, and the CPU time that `time` measured, in
/// seconds; `None` without direct I/O.
fn told_and_seen(data: &Path, times: &Path, duration: &str) -> Option<(Value, f64, f64)> {
    let mut command = Command::new("/usr/bin/time");
    command.arg("-v").arg("-o").arg(times).arg(env!("CARGO_BIN_EXE_ringfile")).args(["perf", "buffers"]);
    command.args(READS.split(' ')).args(["--duration", duration, "--file"]).arg(data);
    let (finished, results) = saved(&mut command);
    if finished.stderr.contains("--direct") {
        return None;
    }
    finished.ok();
    let text = std::fs::read_to_string(times).expect("what time saw");
    let seconds = |title: &str| -> f64 {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(title)).expect("a line of time -v");
        line.trim_start_matches(':').trim().parse().expect("seconds")
    };
    let seen = seconds("User time (seconds)") + seconds("System time (seconds)");
    let told = runs(&results).iter().map(|run| number(run, "cpu_us_per_io") * number(run, "ops") / 1e6).sum();
    Some((results, told, seen))
}

#[test]
fn cpu_time_is_what_time_sees() {
    if !installed("/usr/bin/time") {
        return skip("/usr/bin/time is not installed");
    }
    let folder = disk_folder();
    let (data, times) = (file_with(&folder, &pattern(32 << 20)), folder.path().join("times"));
    // Only the figure of `time` includes starting processes and filling their buffers, which takes as long in a short
    // run.
    let Some((_, told, seen)) = told_and_seen(&data, &times, "20ms") else {
        return skip("the target folder has no direct I/O");
    };
    let around = seen - told;
    assert!(around >= -0.1, "{told} s are reported, `time` measured {seen} s in a short run");
    let (results, told, seen) = told_and_seen(&data, &times, "2s").expect("as before");
    assert!(
        told <= seen * 1.05 + 0.1 && seen <= told * 1.05 + 2.0 * around.max(0.0) + 0.15,
        "{told} s are reported, `time` measured {seen} s, of which about {around} s are outside of the runs"
    );
    for run in runs(&results) {
        let per_cent = number(run, "user_percent") + number(run, "system_percent");
        let per_io = number(run, "user_us_per_io") + number(run, "system_us_per_io");
        assert!((per_io - number(run, "cpu_us_per_io")).abs() < 0.01, "{run}");
        assert!((per_cent - per_io * number(run, "iops") / 1e4).abs() < 0.5, "{run}");
    }
}

/// Returns the reads that a device completed, merged ones included.
fn reads(device: &Path) -> u64 {
    let name = device.file_name().expect("a name").to_string_lossy().into_owned();
    let text = std::fs::read_to_string(format!("/sys/block/{name}/stat")).expect("counts");
    text.split_whitespace().take(2).map(|word| word.parse::<u64>().expect("a count")).sum()
}

/// Returns [`reads`] once nothing else reads the device: services of the machine examine each new one.
fn reads_before(device: &Path) -> u64 {
    let mut last = None;
    wait_until("others go on reading the device", || {
        let before = last.replace(reads(device));
        std::thread::sleep(Duration::from_millis(500));
        before == last
    });
    last.expect("it was read")
}

#[test]
fn operations_are_what_the_device_counts() {
    let Some(device) = Loop::with(&pattern(32 << 20), &["--direct-io=on"]) else { return };
    let before = reads_before(&device.path);
    let mut command = ringfile(&format!("perf buffers {READS} --duration 300ms --file"));
    let (_, results) = measured(command.arg(&device.path));
    let counted = (reads(&device.path) - before) as f64;
    let told: f64 = runs(&results).iter().map(|run| number(run, "ops")).sum();
    // Operations in flight when the time of a run was over are not reported.
    let left: f64 = runs(&results).iter().map(|run| number(run, "iodepth") * number(run, "numjobs")).sum();
    assert!(
        (counted - told).abs() < told * 0.02 + left,
        "{told} are reported, the device counted {counted}, and {left} may have been in flight"
    );
}

#[test]
fn system_calls_are_what_strace_counts() {
    if !installed("strace") {
        return skip("strace is not installed");
    }
    const CALLS: [&str; 3] = ["io_uring_enter", "pread64", "preadv2"];
    let folder = disk_folder();
    let (data, trace) = (file_with(&folder, &pattern(8 << 20)), folder.path().join("trace"));
    let arguments = "--bs 4k --iodepth 8 --rw randread --buffers normal --rounds 1 --warmup 0s --buffered \
                     --numjobs 1 --duration 300ms --file";
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-e", &format!("trace={}", CALLS.join(",")), "-o"]).arg(&trace);
    command.arg(env!("CARGO_BIN_EXE_ringfile")).args(["perf", "buffers"]).args(arguments.split(' '));
    let (finished, results) = saved(command.arg(&data));
    if finished.code != Some(0) || finished.stderr.contains("ptrace") {
        return skip(finished.stderr.trim());
    }
    let text = std::fs::read_to_string(&trace).expect("counts");
    let of_calls = text.lines().filter(|line| CALLS.iter().any(|call| line.trim_end().ends_with(call)));
    let calls: u64 = of_calls.filter_map(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok()).sum();
    let told: u64 = runs(&results).iter().filter_map(|run| run["system_calls"].as_u64()).sum();
    // Only the figure of strace includes reading the file in, and calls before and after the measurement.
    assert!(told <= calls && calls <= told + told / 10 + 200, "{told} are reported, strace counted {calls}");
}
