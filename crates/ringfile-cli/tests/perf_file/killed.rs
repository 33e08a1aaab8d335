//! kill -9: the test file stays behind, and the next start of any command reports it, with the command that removes it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{folder, interrupt, run, wait_for_thread};

/// Returns the program's command, with a new folder for its state, and one for unnamed files.
fn ringfile(arguments: &str, folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfile"));
    command.args(arguments.split(' ')).env("XDG_STATE_HOME", folder.join("state")).env("TMPDIR", folder);
    command
}

/// Returns every command that measures, each as short as possible.
fn commands(folder: &Path) -> Vec<Command> {
    let file = folder.join("short.bin");
    let timing = "--duration 20ms --warmup 0s --rounds 1";
    let reads = "--size 1m --numjobs 1 --batch 4 --cache keep --engines";
    let mut commands: Vec<Command> = [
        format!("perf file {timing} --size 1m --numjobs 1 --iodepth 1 --rw randread"),
        format!("perf batch {timing} {reads} ringfile-blocking --inflight 1"),
        format!("perf multiread {timing} {reads} ringfile"),
        format!(
            "perf buffers {timing} --size 1m --processes 1 --bs 4k --iodepth 2 --rw randread --buffers normal"
        ),
    ]
    .iter()
    .map(|arguments| {
        let mut command = ringfile(arguments, folder);
        command.arg("--file").arg(&file);
        command
    })
    .collect();
    let pool = format!("perf pool {timing} --size 1m --bs 4k --batch 4 --memory vec");
    let mut pool = ringfile(&pool, folder);
    pool.arg("--folder").arg(folder);
    commands.push(pool);
    commands
}

/// Returns what the next start of every command says about files that were left behind.
fn said(folder: &Path) -> Vec<String> {
    commands(folder)
        .into_iter()
        .map(|mut command| {
            let finished = run(&mut command).ok();
            let lines = finished.stderr.lines().filter(|line| line.contains("left behind"));
            lines.map(|line| line.to_string() + "\n").collect()
        })
        .collect()
}

/// Starts a run of ten minutes.
fn under_way(arguments: &str, file: Option<&Path>, folder: &Path, thread: &str) -> Child {
    let mut command = ringfile(arguments, folder);
    if let Some(file) = file {
        command.arg("--file").arg(file);
    }
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
    wait_for_thread(child.id(), thread);
    child
}

#[test]
fn a_file_that_a_killed_run_left_behind_is_named_by_every_command_until_it_is_gone() {
    let folder = folder();
    let file = folder.path().join("it is mine.bin");
    let child = under_way(
        "perf file --size 4m --duration 10m --warmup 0s --numjobs 1 --rw randread --route inline",
        Some(&file),
        folder.path(),
        "ringfile-0",
    );
    assert!(said(folder.path()).iter().all(String::is_empty), "its run is under way");
    interrupt(child, Signal::SIGKILL);
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
    let child = under_way(
        "perf buffers --size 4m --duration 10m --warmup 0s --processes 1 --bs 4k --iodepth 1 --rw randread --buffered",
        None,
        folder.path(),
        "signals",
    );
    let path = folder.path().join(format!("ringfile-perf-{}.bin", child.id()));
    let state = folder.path().join("state/ringfile");
    // The record is removed after the file.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !state.is_dir() || std::fs::read_dir(&state).expect("list").count() == 0 {
        assert!(Instant::now() < deadline, "no record is made");
        std::thread::yield_now();
    }
    interrupt(child, Signal::SIGKILL);
    for said in said(folder.path()) {
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(&format!("rm {}\n", path.display())), "{said}");
    }
}
