//! The doctor writes to nothing and leaves nothing behind, whatever happens.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{doctor, report};
use crate::support::{children_of, disk_folder, file_with, files_in, folder, permit, run, wait_until};

/// Shows whether somebody wrote to a file: its bytes, times, size and blocks. Reads change none of these.
fn state(path: &Path) -> (Vec<u8>, [i64; 8]) {
    let metadata = std::fs::metadata(path).expect("it is there");
    let numbers = [
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec(),
        metadata.atime_nsec(),
        metadata.len().cast_signed(),
        metadata.blocks().cast_signed(),
        i64::from(metadata.mode()),
    ];
    (if metadata.is_file() { std::fs::read(path).expect("read") } else { Vec::new() }, numbers)
}

#[test]
fn a_file_stays_as_it_was() {
    for folder in [disk_folder(), folder()] {
        let path = file_with(&folder, &[3; 100_000]);
        // Reading the file for the comparison may change its access time.
        state(&path);
        let (file, around) = (state(&path), state(folder.path()));
        report(&path);
        assert_eq!(state(&path), file);
        report(folder.path());
        assert_eq!(state(folder.path()), around, "no name was made in the folder, even for a moment");
        assert_eq!(files_in(folder.path()), 1);
    }
}

#[test]
fn a_file_that_this_user_may_not_write_is_examined_all_the_same() {
    let folder = disk_folder();
    let path = file_with(&folder, &[3; 8192]);
    permit(&path, 0o400);
    permit(folder.path(), 0o500);
    let found = report(&path);
    assert_eq!(found["file"]["answered"], true);
    permit(folder.path(), 0o700);
}

#[test]
fn killed_at_any_time_it_leaves_nothing() {
    let folder = disk_folder();
    for milliseconds in [1, 3, 5, 8, 12, 20, 40, 80] {
        let mut command = doctor(folder.path());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(milliseconds));
        let process = child.id();
        let others = children_of(process);
        // It may have finished already.
        let _ = kill_process(Pid::from_child(&child), Signal::KILL);
        child.wait().expect("it ends");
        assert_eq!(files_in(folder.path()), 0);
        for other in others {
            wait_until("the process that examines the path outlives the command", || !runs_still(other));
        }
    }
}

/// Returns whether a process exists and is no zombie.
fn runs_still(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let folder = folder();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let finished = run(doctor(folder.path()).arg("--json").stdout(writer));
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    assert!(finished.stderr.is_empty());
}
