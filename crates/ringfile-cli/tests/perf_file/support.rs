//! What the tests share: running the program, and reading its results.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// Options that make a run short: one cell of 100 ms on 4 MiB.
pub const SHORT: &str = "--size 4m --duration 100ms --warmup 10ms --numjobs 1 --iodepth 2 --rw randread";

/// Returns the measuring command.
pub fn perf_file() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfile"));
    // Files that the user's own runs left behind must not affect the tests.
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.args(["perf", "file"]);
    command
}

/// Runs the program to its end.
pub fn run(command: &mut Command) -> Finished {
    let output = command.output().expect("the program starts");
    Finished::from(output)
}

/// The output of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; `None` if it was killed.
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

    /// Asserts failure with one line on standard error, and returns that line.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert_eq!(self.stderr.lines().count(), 1, "one line of error: {self:#?}");
        assert!(self.stderr.starts_with("error: "), "{self:#?}");
        self.stderr
    }
}

/// Makes a folder that is removed with the test.
pub fn folder() -> TempDir {
    tempfile::tempdir().expect("temporary folder")
}

/// Makes a folder on a disk's file system, for direct I/O, that is removed with the test.
pub fn disk_folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("temporary folder")
}

/// Makes a file with known content.
pub fn file_with(folder: &TempDir, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join("data.bin");
    std::fs::write(&path, bytes).expect("write");
    path
}

/// Reads the JSON that a run wrote.
#[track_caller]
pub fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("the JSON is there")).expect("it is JSON")
}

/// Returns its runs.
pub fn runs(results: &Value) -> &Vec<Value> {
    results["runs"].as_array().expect("runs is a list")
}

/// Prints that a test cannot run here, and why. Writes to standard error directly: output of `eprintln!` is shown only
/// for failing tests.
pub fn skip(test: &str, why: impl std::fmt::Display) {
    let line = format!("skipped {test}: {why}\n");
    std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).expect("standard error");
}

/// Returns whether a program can be run.
pub fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Returns whether the environment keeps the library from using io_uring.
pub fn ring_is_forbidden() -> bool {
    std::env::var("RINGFILE_BACKEND").is_ok_and(|backend| matches!(backend.as_str(), "workers" | "aio"))
}

/// Returns the routes that can be requested.
pub fn routes() -> &'static [&'static str] {
    if ring_is_forbidden() { &["auto", "inline", "workers"] } else { &["auto", "inline", "ring", "workers"] }
}

/// Returns whether the user is root.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The first of the users that have nothing, and no other process.
pub const USERS: u32 = 63_000;

/// Returns the program as one of those users, which may lock this many bytes of memory. Each call takes another user: the
/// kernel counts over all processes of a user, and memory of rings that have ended only some time later.
pub fn unprivileged(memlock: &str, program: &Path) -> Command {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = std::process::id().wrapping_mul(16) + NEXT.fetch_add(1, Ordering::Relaxed);
    let user = (USERS + number % 1900).to_string();
    let mut command = Command::new("prlimit");
    command.arg(format!("--memlock={memlock}:{memlock}"));
    command.args(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]).arg(program);
    command
}

/// Waits until a process has a thread of that name, which shows the engine that is running.
#[track_caller]
pub fn wait_for_thread(process: u32, name: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !tasks_of(process).any(|task| comm(&task).trim() == name) {
        assert!(Instant::now() < deadline, "no thread {name} came up");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a process has a thread of that name, and has then used enough CPU time to finish some operations, if
/// nothing makes them wait.
#[track_caller]
pub fn wait_for_work(process: u32, name: &str) {
    wait_for_thread(process, name);
    let used = || tasks_of(process).map(|task| ticks(&task)).sum::<u64>();
    let (before, deadline) = (used(), Instant::now() + Duration::from_secs(120));
    while used() < before + 20 {
        assert!(Instant::now() < deadline, "process {process} does not work");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn tasks_of(process: u32) -> impl Iterator<Item = PathBuf> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.map(|task| task.path())
}

/// Returns a thread's name; a thread may end between listing and reading it.
fn comm(task: &Path) -> String {
    std::fs::read_to_string(task.join("comm")).unwrap_or_default()
}

/// Returns the processor time of a thread, in ticks of 10 ms.
fn ticks(task: &Path) -> u64 {
    let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Sends a signal and waits for the end of the process.
pub fn interrupt(child: Child, signal: Signal) -> Finished {
    kill(Pid::from_raw(child.id().cast_signed()), signal).expect("the signal is sent");
    let start = Instant::now();
    let output = child.wait_with_output().expect("the program ends");
    assert!(start.elapsed() < Duration::from_secs(120), "it ends long before the run would");
    Finished::from(output)
}

/// Returns the processes that a process has started.
pub fn children_of(process: u32) -> Vec<u32> {
    let children =
        std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// A loop device over a file, detached when it is dropped.
pub struct Loop(pub PathBuf);

impl Loop {
    /// Makes one with these options of losetup; `None` if that is not possible.
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
        // If detaching fails, the device stays visible; the test's own result matters more.
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
