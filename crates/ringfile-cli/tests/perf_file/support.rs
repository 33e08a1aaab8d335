//! What the tests share: running the program, and reading what it left.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// Options that make a run short: one cell of 100 ms on 4 MiB.
pub const SHORT: &str = "--size 4m --duration 100ms --warmup 10ms --numjobs 1 --iodepth 2 --rw randread";

/// The program, about to measure.
pub fn perf_file() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfile"));
    // What runs of the user's left behind is no matter of the tests.
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.args(["perf", "file"]);
    command
}

/// Runs the program to its end.
pub fn run(command: &mut Command) -> Finished {
    let output = command.output().expect("the program starts");
    Finished::from(output)
}

/// What a program that ended left on its outputs.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; `None` when killed.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl From<Output> for Finished {
    fn from(output: Output) -> Finished {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is text");
        Finished { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Finished {
    /// Asserts success.
    #[track_caller]
    pub fn ok(self) -> Finished {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// Asserts failure with one line on standard error, and gives it.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert_eq!(self.stderr.lines().count(), 1, "one line of error: {self:#?}");
        assert!(self.stderr.starts_with("error: "), "{self:#?}");
        self.stderr
    }
}

/// A folder that goes with the test.
pub fn folder() -> TempDir {
    tempfile::tempdir().expect("temporary folder")
}

/// A folder on a disk's file system, for direct I/O, that goes with the test.
pub fn disk_folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("temporary folder")
}

/// A file with known contents.
pub fn file_with(folder: &TempDir, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join("data.bin");
    std::fs::write(&path, bytes).expect("write");
    path
}

/// The JSON that a run wrote.
#[track_caller]
pub fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("the JSON is there")).expect("it is JSON")
}

/// The runs in it.
pub fn runs(results: &Value) -> &Vec<Value> {
    results["runs"].as_array().expect("runs is a list")
}

/// Says that a test can't run here, and why. Straight to standard error: what goes through `eprintln!` is only shown where a
/// test fails.
pub fn skip(test: &str, why: impl std::fmt::Display) {
    let line = format!("skipped {test}: {why}\n");
    std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).expect("standard error");
}

/// Whether a program can be run.
pub fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Whether the environment keeps the library from io_uring.
pub fn ring_is_forbidden() -> bool {
    std::env::var("RINGFILE_BACKEND").is_ok_and(|backend| matches!(backend.as_str(), "workers" | "aio"))
}

/// The routes that can be asked for.
pub fn routes() -> &'static [&'static str] {
    if ring_is_forbidden() { &["auto", "inline", "workers"] } else { &["auto", "inline", "ring", "workers"] }
}

/// Whether this is root.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Waits until a process has a thread of that name: which engine is at work shows there.
#[track_caller]
pub fn wait_for_thread(process: u32, name: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !threads_of(process).any(|thread| thread.trim() == name) {
        assert!(Instant::now() < deadline, "no thread {name} came up");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn threads_of(process: u32) -> impl Iterator<Item = String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    // A thread may end between the two looks.
    tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
}

/// Sends a signal and waits for the end.
pub fn interrupt(child: Child, signal: Signal) -> Finished {
    kill(Pid::from_raw(child.id().cast_signed()), signal).expect("the signal is sent");
    let start = Instant::now();
    let output = child.wait_with_output().expect("the program ends");
    assert!(start.elapsed() < Duration::from_secs(120), "it ends long before the run would");
    Finished::from(output)
}

/// The processes that one started.
pub fn children_of(process: u32) -> Vec<u32> {
    let children =
        std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// A loop device over a file, given back at the end.
pub struct Loop(pub PathBuf);

impl Loop {
    /// With these options of losetup. `None` where none can be made.
    pub fn over(file: &Path, options: &[&str]) -> Option<Loop> {
        let losetup =
            || Command::new("losetup").args(["--find", "--show"]).args(options).arg(file).output().ok();
        let output = is_root().then(losetup)??;
        let device = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        output.status.success().then_some(Loop(device))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // A device that stays is seen by whoever looks; the test's own result matters more.
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
