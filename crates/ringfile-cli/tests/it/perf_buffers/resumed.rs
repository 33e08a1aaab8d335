//! Stopping a run, and resuming it.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{
    children_of, disk_folder, file_with, files_in, interrupt, json as read, ringfile, run, runs, start,
    truncate, wait_until,
};

/// Eight cells of four kinds and A/A, three rounds, without the runs for advice.
const GRID: &str =
    "--size 8m --duration 60ms --warmup 1ms --processes 1 --bs 16k,64k --iodepth 2,4 --rounds 3 --parts 4";

/// Returns a command that resumes the measurement that these results are of.
fn resume(out: &Path) -> std::process::Command {
    let mut command = ringfile("perf buffers --resume");
    command.arg(out);
    command
}

fn identity(run: &Value) -> String {
    let fields = "processes rw block_size_bytes iodepth buffers route direct cache role round".split(' ');
    fields.map(|field| run[field].to_string()).collect::<Vec<_>>().join(" ")
}

/// Starts to measure the grid, interrupts that after a while, and returns the saved results.
fn stopped_after(wait: Duration, folder: &Path, out: &Path) -> Value {
    let mut command = ringfile(&format!("perf buffers {GRID} --json"));
    let page = out.with_extension("html");
    let child = start(command.arg(out).arg("--report").arg(&page).env("TMPDIR", folder));
    std::thread::sleep(wait);
    let children = children_of(child.id());
    let stopped = interrupt(child, Signal::SIGINT);
    assert_eq!(stopped.wrote, format!("wrote {}\nwrote {}\n", out.display(), page.display()));
    let (way, page) = (format!("--resume {}", out.display()), std::fs::read_to_string(page).expect("a page"));
    assert!(stopped.code == Some(130) && stopped.stderr.contains(&way), "{stopped:#?}");
    assert!(page.contains(" of 3 rounds"), "the page says how far it came");
    for process in children {
        let is_gone = || !Path::new(&format!("/proc/{process}")).exists();
        wait_until("a process that it started goes on", is_gone);
    }
    let saved = read(out);
    assert_eq!(saved["interrupted"], true);
    saved
}

#[test]
fn a_stopped_session_is_completed_and_its_measurements_stay() {
    let folder = disk_folder();
    let out = folder.path().join("grid.json");
    let mut wait = Duration::from_millis(1500);
    let mut before = stopped_after(wait, folder.path(), &out);
    // A busy machine may not get as far as the first run.
    while runs(&before).is_empty() {
        wait *= 2;
        assert!(wait < Duration::from_secs(60), "nothing was measured in half of that time");
        for file in [out.clone(), out.with_extension("html")] {
            std::fs::remove_file(file).expect("remove");
        }
        before = stopped_after(wait, folder.path(), &out);
    }

    let finished = run(resume(&out).env("TMPDIR", folder.path())).ok();
    assert!(finished.stderr.contains("are left"), "{}", finished.stderr);
    let after = read(&out);
    assert_eq!(after["interrupted"], false);
    assert_eq!(&runs(&after)[..runs(&before).len()], &runs(&before)[..], "what was measured stays");
    let mut identities: Vec<String> = runs(&after).iter().map(identity).collect();
    let all = identities.len();
    identities.sort();
    identities.dedup();
    assert_eq!(identities.len(), all, "nothing is measured twice");
    assert_eq!(all, 2 * 2 * 2 * 5 * 3, "and nothing is missing");

    // A third run has nothing left to do.
    run(resume(&out).env("TMPDIR", folder.path())).ok();
    assert_eq!(runs(&read(&out)), runs(&after));
    assert_eq!(files_in(folder.path()), 2, "no test file is left");
}

#[test]
fn a_file_that_is_written_to_needs_overwrite_again() {
    let folder = disk_folder();
    let data = file_with(&folder, &vec![5; 1 << 20]);
    let out = folder.path().join("grid.json");
    let short = "--bs 16k --iodepth 2 --processes 1 --rounds 1 --duration 20ms --warmup 1ms --rw randwrite --overwrite";
    let mut command = ringfile(&format!("perf buffers {short} --file"));
    run(command.arg(&data).arg("--json").arg(&out)).ok();
    std::fs::write(&data, vec![6; 1 << 20]).expect("write");
    let error = run(&mut resume(&out)).fails(2);
    assert!(error.contains("add --overwrite") && !error.contains("--rw"), "{error}");
    assert!(std::fs::read(&data).expect("read").iter().all(|&byte| byte == 6), "it was written to");
}

#[test]
fn only_the_file_that_was_measured_is_measured_again() {
    let (folder, elsewhere) = (disk_folder(), disk_folder());
    let data = file_with(&folder, &vec![5; 1 << 20]);
    let out = folder.path().join("grid.json");
    let short = "--bs 16k --iodepth 2 --processes 1 --rounds 1 --duration 20ms --warmup 1ms --rw randread";
    let mut command = ringfile(&format!("perf buffers {short} --file data.bin --json"));
    run(command.arg(&out).current_dir(&folder)).ok();
    run(resume(&out).current_dir(&elsewhere)).ok();
    let saved = read(&out);
    assert_eq!(saved["params"]["file"], data.to_str().expect("text"));
    assert_eq!(saved["params"]["file_created"], false);

    let refused = |part: &str| {
        let text = std::fs::read_to_string(&out).expect("read");
        run(&mut resume(&out)).fails_with(2, &["data.bin", part, "start again with --json"]);
        assert_eq!(std::fs::read_to_string(&out).expect("read"), text);
    };
    let size = std::fs::metadata(&data).expect("it is there").len();
    truncate(&data, size / 2);
    refused("not the file that was measured");
    truncate(&data, size);
    run(&mut resume(&out)).ok();
    let kept = folder.path().join("kept.bin");
    std::fs::rename(&data, &kept).expect("rename");
    std::fs::write(&data, vec![5; 1 << 20]).expect("write");
    refused("not the file that was measured");
    std::fs::remove_file(&data).expect("remove");
    refused("No such file");
    assert!(!data.exists());
}

#[test]
fn a_new_file_is_created_where_the_first_one_was() {
    let (folder, elsewhere) = (disk_folder(), disk_folder());
    let out = elsewhere.path().join("grid.json");
    let short =
        "--size 1m --bs 16k --iodepth 2 --processes 1 --rounds 1 --duration 20ms --warmup 1ms --rw randread";
    let mut command = ringfile(&format!("perf buffers {short} --file"));
    run(command.arg(folder.path().join("new.bin")).arg("--json").arg(&out)).ok();
    run(resume(&out).env("TMPDIR", elsewhere.path())).ok();
    let file = read(&out)["params"]["file"].as_str().expect("text").to_string();
    assert!(Path::new(&file).starts_with(&folder), "{file}");
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn results_that_cannot_be_resumed_are_named_and_stay_as_they_are() {
    let folder = disk_folder();
    let path = folder.path().join("saved.json");
    for (text, part) in [
        ("{\"schema\": 1, \"command\"", "not whole JSON"),
        ("[]", "no schema number"),
        ("{\"schema\": 2}", "schema 2"),
        ("{\"schema\": 1}", "no results"),
    ] {
        std::fs::write(&path, text).expect("write");
        run(&mut resume(&path)).fails_with(2, &[part]);
        assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
    }
    let other = folder.path().join("other.json");
    let options = "--size 1m --duration 10ms --warmup 1ms --numjobs 1 --iodepth 1 --rw randread --json";
    run(ringfile(&format!("perf file {options}")).arg(&other)).ok();
    run(&mut resume(&other)).fails_with(2, &["not of ringfile perf buffers"]);
    run(&mut resume(&folder.path().join("missing.json"))).fails_with(2, &["missing.json"]);
    let error = run(resume(&other).args(["--bs", "4k"])).fails(2);
    assert!(error.contains("--resume") || error.contains("--bs"), "{error}");
}

/// Each of these saved values would make the command panic, run out of memory or never end.
#[test]
fn saved_settings_are_held_to_the_limits_of_the_command_line() {
    let folder = disk_folder();
    let path = folder.path().join("saved.json");
    let options =
        "--size 1m --duration 5ms --warmup 0s --processes 1 --bs 4k --iodepth 1 --rounds 1 --rw randread";
    let mut command = ringfile(&format!("perf buffers {options} --json"));
    run(command.arg(&path).env("TMPDIR", folder.path())).ok();
    let saved = read(&path);
    for (name, value, part) in [
        ("block_sizes_bytes", json!([0]), "block size"),
        ("iodepth", json!([0]), "depth"),
        ("iodepth", json!([1, 1]), "list with the same twice"),
        ("parts", json!(1_000_000_000_000_u64), "number of parts"),
        ("processes", json!([0]), "number of processes"),
        ("rounds", json!(u32::MAX), "number of rounds"),
        ("duration_s", json!(1e18), "length of its runs"),
        ("warmup_s", json!(-1), "length of warm-up"),
    ] {
        let mut odd = saved.clone();
        odd["params"][name] = value;
        let text = odd.to_string();
        std::fs::write(&path, &text).expect("write");
        run(&mut resume(&path)).fails_with(2, &[part]);
        assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
    }
}
