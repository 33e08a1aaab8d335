//! kill -9: the test file stays behind, and the next start of any command reports it, with the command that removes it.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::support::{self, folder, interrupt, run, wait_for_thread, wait_until};

/// Returns the program's command, with a new folder for its state, and one for unnamed files.
fn ringfile(arguments: &str, folder: &Path) -> Command {
    let mut command = support::ringfile(arguments);
    command.env("XDG_STATE_HOME", folder.join("state")).env("TMPDIR", folder);
    command
}

/// Returns every command that measures, each as short as possible.
fn commands(folder: &Path) -> Vec<Command> {
    let timing = "--duration 20ms --warmup 0s --rounds 1 --size 1m";
    let reads = "--numjobs 1 --batch 4 --cache keep --engines";
    let commands = [
        format!("perf file {timing} --numjobs 1 --iodepth 1 --rw randread --file"),
        format!("perf batch {timing} {reads} ringfile-blocking --inflight 1 --file"),
        format!("perf multiread {timing} {reads} ringfile --file"),
        format!(
            "perf buffers {timing} --processes 1 --bs 4k --iodepth 2 --rw randread --buffers normal --file"
        ),
        format!("perf pool {timing} --bs 4k --batch 4 --memory vec --folder"),
    ];
    let with_place = |arguments: String| {
        let mut command = ringfile(&arguments, folder);
        command.arg(if arguments.ends_with("--file") { folder.join("short.bin") } else { folder.into() });
        command
    };
    commands.map(with_place).into()
}

/// Returns what the next start of every command says about files that were left behind.
fn said(folder: &Path) -> Vec<String> {
    let left_behind = |mut command: Command| {
        let finished = run(&mut command).ok();
        let lines = finished.stderr.lines().filter(|line| line.contains("left behind"));
        lines.map(|line| line.to_string() + "\n").collect()
    };
    commands(folder).into_iter().map(left_behind).collect()
}

/// Starts a run of ten minutes, and waits for a thread of it.
fn under_way(mut command: Command, thread: &str) -> Child {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
    wait_for_thread(child.id(), thread);
    child
}

#[test]
fn a_file_that_a_killed_run_left_behind_is_named_by_every_command_until_it_is_gone() {
    let folder = folder();
    let file = folder.path().join("it is mine.bin");
    let arguments = "--size 4m --duration 10m --warmup 0s --numjobs 1 --rw randread --route inline --file";
    let mut command = ringfile(&format!("perf file {arguments}"), folder.path());
    command.arg(&file);
    let child = under_way(command, "ringfile-0");
    assert!(said(folder.path()).iter().all(String::is_empty), "its run is under way");
    interrupt(child, Signal::KILL);
    assert!(file.exists(), "no process was there to remove it");
    for said in said(folder.path()) {
        let remove = format!("rm '{}'", file.display());
        let expected = format!(
            "warning: {} (4 MiB) was left behind by a run that was killed; to remove it: {remove}\n",
            file.display()
        );
        assert_eq!(said, expected);
        assert!(file.exists(), "it is only named");
    }
    let quiet = run(commands(folder.path())[0].arg("--quiet")).ok();
    assert_eq!(quiet.stderr, "");
    // The command in the message removes the file.
    let told = said(folder.path()).remove(0);
    let command = told.split("to remove it: ").nth(1).expect("a command");
    assert!(Command::new("sh").args(["-c", command]).status().expect("a shell").success());
    assert!(!file.exists());
    // A file of the user's in its place is not one that a run made.
    std::fs::write(&file, "mine").expect("written");
    assert!(said(folder.path()).iter().all(String::is_empty));
    assert_eq!(std::fs::read(&file).expect("it stays"), b"mine");
    let records = std::fs::read_dir(folder.path().join("state/ringfile")).expect("a folder").count();
    assert_eq!(records, 0, "no record is kept of a file that was removed");
}

#[test]
fn files_without_a_name_of_the_users_are_found_and_what_looks_like_them_is_not() {
    let folder = folder();
    // A file that looks like one of a killed run, but is not.
    std::fs::write(folder.path().join("ringfile-perf-4000000.bin"), "mine").expect("written");
    let arguments =
        "--size 4m --duration 10m --warmup 0s --processes 1 --bs 4k --iodepth 1 --rw randread --buffered";
    let child = under_way(ringfile(&format!("perf buffers {arguments}"), folder.path()), "signals");
    let path = folder.path().join(format!("ringfile-perf-{}.bin", child.id()));
    let state = folder.path().join("state/ringfile");
    // The record is made before the file, and removed after it.
    let has_both = || path.exists() && std::fs::read_dir(&state).is_ok_and(|records| records.count() > 0);
    wait_until("no file, or no record, is made", has_both);
    interrupt(child, Signal::KILL);
    for said in said(folder.path()) {
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(&format!("rm {}\n", path.display())), "{said}");
    }
}
