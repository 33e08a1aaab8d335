//! Stopping a grid.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::{children_of, disk_folder, interrupt, json, ringfile, runs, start, wait_until};

/// Eight cells of four kinds and A/A, three rounds, without the runs for advice.
const GRID: &str =
    "--size 8m --duration 60ms --warmup 1ms --numjobs 1 --bs 16k,64k --iodepth 2,4 --rounds 3 --parts 4";

#[test]
fn a_stopped_grid_is_saved_as_far_as_it_came_and_leaves_no_process() {
    let folder = disk_folder();
    let out = folder.path().join("grid.json");
    let page = out.with_extension("html");
    let mut command = ringfile(&format!("perf buffers {GRID} --force --json"));
    command.arg(&out).arg("--report").arg(&page).env("TMPDIR", folder.path());
    let mut wait = Duration::from_millis(1500);
    loop {
        let child = start(&mut command);
        std::thread::sleep(wait);
        let children = children_of(child.id());
        let stopped = interrupt(child, Signal::INT);
        for process in children {
            let is_gone = || !Path::new(&format!("/proc/{process}")).exists();
            wait_until("a process that it started goes on", is_gone);
        }
        // A busy machine may not get as far as the grid, or the first run.
        wait *= 2;
        assert!(wait < Duration::from_secs(60), "nothing was measured in half of that time");
        if stopped.wrote.is_empty() {
            continue;
        }
        assert_eq!(stopped.wrote, format!("wrote {}\nwrote {}\n", out.display(), page.display()));
        assert!(stopped.code == Some(130) && stopped.stderr.contains("interrupted"), "{stopped:#?}");
        let text = std::fs::read_to_string(&page).expect("a page");
        assert!(text.contains(" of 3"), "the page says how far it came");
        let saved = json(&out);
        assert_eq!(saved["interrupted"], true);
        if !runs(&saved).is_empty() {
            return;
        }
    }
}
