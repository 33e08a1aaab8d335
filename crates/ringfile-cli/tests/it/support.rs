//! What the tests share: running the program, and reading its results.

#[path = "../../../ringfile/tests/it/support/skip.rs"]
#[allow(dead_code, reason = "shared with the tests of the library")]
mod skip;

use std::ffi::CString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use tempfile::TempDir;

/// Options that make a run short: one cell of 100 ms on 4 MiB.
pub const SHORT: &str = "--size 4m --duration 100ms --warmup 10ms --numjobs 1 --iodepth 2 --rw randread";

/// Returns the program with these arguments, which are separated by blanks.
pub fn ringfile(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfile"));
    // Files that the user's own runs left behind must not affect the tests.
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    // The tests look at the tables, too.
    let commands = ["perf file", "perf batch", "perf multiread", "perf pool"];
    match commands.iter().find_map(|perf| Some((perf, arguments.strip_prefix(perf)?.strip_prefix(' ')?))) {
        Some((perf, rest)) => command.args(perf.split(' ')).arg("--tables").args(rest.split(' ')),
        None => command.args(arguments.split(' ')),
    };
    command
}

/// Returns `ringfile perf file` with these arguments and those of [`SHORT`].
pub fn short(arguments: &str) -> Command {
    ringfile(format!("perf file {SHORT} {arguments}").trim_end())
}

/// Runs the program to its end.
pub fn run(command: &mut Command) -> Finished {
    Finished::from(command.output().expect("the program starts"))
}

/// Runs a command to its end, and returns its output and the JSON that it saved; `null` if there is none.
#[track_caller]
pub fn saved(command: &mut Command) -> (Finished, Value) {
    let folder = folder();
    let out = folder.path().join("out.json");
    let finished = run(command.arg("--json").arg(&out));
    let saved = if out.exists() { json(&out) } else { Value::Null };
    (finished, saved)
}

/// Runs a command to its successful end, and returns its output and the JSON that it saved.
#[track_caller]
pub fn measured(command: &mut Command) -> (Finished, Value) {
    let (finished, saved) = saved(command);
    (finished.ok(), saved)
}

/// Starts the program; its output is kept for [`end`].
pub fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

/// Waits for the end of a program.
pub fn end(child: Child) -> Finished {
    Finished::from(child.wait_with_output().expect("the program ends"))
}

/// Returns the file that a program measures if none is named.
pub fn default_file(child: &Child) -> PathBuf {
    PathBuf::from(format!("/dev/shm/ringfile-perf-{}.bin", child.id()))
}

/// The output of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; `None` if it was killed.
    pub code: Option<i32>,
    /// Standard output, without the verdict.
    pub stdout: String,
    /// The lines before the tables.
    pub verdict: String,
    /// Standard error, without the lines about files that were written.
    pub stderr: String,
    /// Those lines, which come last but for an error.
    pub wrote: String,
}

impl From<Output> for Finished {
    fn from(output: Output) -> Finished {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is text");
        let all = text(output.stderr);
        let (wrote, stderr) = all.split_inclusive('\n').partition(|line| line.starts_with("wrote "));
        let (verdict, stdout) = apart(text(output.stdout));
        Finished { code: output.status.code(), stdout, verdict, stderr, wrote }
    }
}

/// Returns the lines of a verdict, which come before the first table, and the rest.
fn apart(stdout: String) -> (String, String) {
    match stdout.split_once("\n\n|") {
        // A comparison of sessions has a title, and no verdict.
        Some((verdict, rest))
            if !["|", "\nAdvice for ", " beside "].iter().any(|it| verdict.contains(it)) =>
        {
            (verdict.to_owned(), format!("|{rest}"))
        }
        _ => (String::new(), stdout),
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

    /// Asserts failure with one line on standard error that contains all these texts.
    #[track_caller]
    pub fn fails_with(self, code: i32, texts: &[&str]) {
        let error = self.fails(code);
        assert!(texts.iter().all(|text| error.contains(text)), "{texts:?}: {error}");
    }

    /// Asserts that standard output contains all these texts.
    #[track_caller]
    pub fn says(&self, texts: &[&str]) {
        for text in texts {
            assert!(self.stdout.contains(text), "{text}: {}", self.stdout);
        }
    }

    /// Returns whether the file system has no direct I/O.
    pub fn lacks_direct_io(&self) -> bool {
        self.code == Some(2) && self.stderr.contains("leave out --direct")
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

/// Shortens a file that a program is using.
pub fn truncate(path: &Path, length: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("open");
    file.set_len(length).expect("truncate");
}

/// Makes a program of this text.
pub fn script(path: &Path, text: &str) {
    let source = path.with_extension("source");
    std::fs::write(&source, format!("#!/bin/sh\n{text}\n")).expect("write");
    copy_program(&source, path);
    std::fs::remove_file(source).expect("it is there");
}

/// Copies a program, in a process of its own: if this one had it open for writing, a child that another test starts at that
/// moment would too, and nobody could start the program until that child has started its own ("text file busy").
fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().expect("cp").success());
    permit(to, 0o755);
}

/// Sets the permissions of a file or folder.
pub fn permit(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("permissions");
}

/// Returns how many files a folder has.
#[track_caller]
pub fn files_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).expect("the folder is there").count()
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

/// Asserts that a run of `perf file` or of batches succeeded, and has all its figures, which agree with each other.
#[track_caller]
pub fn assert_run(run: &Value) {
    for key in ["round", "numjobs", "iodepth", "block_size_bytes", "ops", "errors"] {
        assert!(run[key].is_u64(), "{key} is an integer in {run}");
    }
    for key in ["mean", "p50", "p95", "p99", "p999", "max"] {
        assert!(run["latency_ns"][key].is_u64(), "{key} is an integer in {run}");
    }
    for key in ["duration_s", "iops", "bw_bytes", "cpu_us_per_io"] {
        assert!(run[key].is_f64(), "{key} has a fraction in {run}");
    }
    for key in ["engine", "role", "rw", "buffers", "cache"] {
        assert!(run[key].is_string(), "{key} is a word in {run}");
    }
    for key in ["direct", "cached_before", "cached_after"] {
        assert!(run.get(key).is_some(), "{key} is missing in {run}");
    }
    let number = |key: &str| run[key].as_f64().expect("checked above");
    assert!(number("ops") > 0.0 && run["errors"] == 0, "{run}");
    assert!((number("iops") - number("ops") / number("duration_s")).abs() <= 1.0, "{run}");
    assert!((number("bw_bytes") - number("iops") * number("block_size_bytes")).abs() <= 1.0, "{run}");
    let at = |key: &str| run["latency_ns"][key].as_u64().expect("checked above");
    assert!(at("p50") <= at("p95") && at("p95") <= at("p99") && at("p999") <= at("max"), "{run}");
    if run["engine"] == "by-hand" {
        return;
    }
    if !run["engine"].as_str().is_some_and(|engine| engine.starts_with("ringfile")) {
        for key in ["enters", "fixed_ops", "route", "route_ops"] {
            assert!(run.get(key).is_some_and(Value::is_null), "{key} in {run}");
        }
        return;
    }
    assert!(run["enters"].is_u64() && run["route"].is_string(), "{run}");
    assert_eq!(Some(all_routes(run)), run["ops"].as_u64(), "{run}");
    if let Some(route) = run["route"].as_str().filter(|&route| route != "auto" && !ring_is_forbidden()) {
        assert_eq!(run["route_ops"][route], run["ops"], "{run}");
    }
    let fixed = if run["buffers"] == "fixed" { &run["route_ops"]["ring"] } else { &Value::from(0) };
    assert_eq!(&run["fixed_ops"], fixed, "{run}");
}

/// Returns the number of operations on all routes.
pub fn all_routes(run: &Value) -> u64 {
    ["ring", "inline", "workers", "aio"]
        .map(|route| run["route_ops"][route].as_u64().expect("a count"))
        .iter()
        .sum()
}

/// Returns the titles and cells of the first row of a printed table that begins with this text.
pub fn cells<'a>(stdout: &'a str, start: &str) -> Vec<(&'a str, &'a str)> {
    let titles = stdout.lines().next().expect("titles").split('|').map(str::trim);
    let row = stdout.lines().find(|line| line.starts_with(start)).expect("a row");
    titles.zip(row.split('|').map(str::trim)).collect()
}

/// Prints that the running test cannot run here, and why.
pub fn skip(why: impl std::fmt::Display) {
    skip_part("", why);
}

/// Prints that a part of the running test, such as ` with --direct`, cannot run here.
pub fn skip_part(part: &str, why: impl std::fmt::Display) {
    // The test harness names each thread after its test.
    let thread = std::thread::current();
    let test = thread.name().and_then(|name| name.rsplit("::").next()).unwrap_or("a_test");
    skip::skip(&format!("{test}{part}"), why);
}

/// Returns whether a program can be run.
pub fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Returns whether the environment keeps the library from using io_uring.
pub fn ring_is_forbidden() -> bool {
    std::env::var("RINGFILE_DISABLE")
        .is_ok_and(|disabled| matches!(disabled.as_str(), "io_uring" | "io_uring,aio"))
}

/// Returns the routes that can be requested.
pub fn routes() -> &'static [&'static str] {
    if ring_is_forbidden() { &["auto", "inline", "workers"] } else { &["auto", "inline", "ring", "workers"] }
}

/// Returns whether the user is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a folder that everybody may use, with the program in it, because the build folder may be closed to other
/// users. Skips the test if the program can't be run as another user here.
pub fn for_other_users() -> Option<(TempDir, PathBuf)> {
    if !is_root() || !installed("setpriv") || !installed("prlimit") {
        skip("needs root, setpriv and prlimit");
        return None;
    }
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder for everybody");
    let program = folder.path().join("ringfile");
    copy_program(Path::new(env!("CARGO_BIN_EXE_ringfile")), &program);
    permit(folder.path(), 0o777);
    Some((folder, program))
}

/// The first of the users that have nothing, and no other process.
pub const USERS: u32 = 5_000_000;

/// Returns the program as one of those users, which may lock this many bytes of memory. Each call takes another user,
/// and no other process of tests takes it: the kernel counts over all processes of a user, and memory of rings that have ended only some time later.
pub fn unprivileged(memlock: &str, program: &Path, arguments: &str) -> Command {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = std::process::id().wrapping_mul(16) + NEXT.fetch_add(1, Ordering::Relaxed);
    let user = (USERS + number).to_string();
    let mut command = Command::new("prlimit");
    command.arg(format!("--memlock={memlock}:{memlock}"));
    command.args(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]).arg(program);
    command.args(arguments.split(' '));
    command
}

/// Returns whether the runner gives the test the machine for itself, as `.config/nextest.toml` says. Otherwise skips a part with
/// little memory that may be locked: beside other tests, the kernel returns that of closed rings too late.
pub fn has_the_machine() -> bool {
    let has = std::env::var("NEXTEST_EXECUTION_MODE").is_ok_and(|mode| mode == "process-per-test");
    if !has {
        skip_part(
            " with 64 KiB of locked memory",
            "the kernel returns that of rings late beside other tests",
        );
    }
    has
}

/// Makes the kernel answer a system call with `answer` (`SECCOMP_RET_…`) in that process and its children; with
/// `second`, only calls whose second argument that is.
pub fn filtered(command: &mut Command, call: i64, second: Option<u32>, answer: u32) -> &mut Command {
    let instruction = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let load = |offset| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0);
    let compare = |with, skip| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, with, skip);
    let answer_with = |action| instruction(libc::BPF_RET | libc::BPF_K, action, 0);
    // The call's number is at offset 0, its second argument at offset 24.
    let mut program = vec![load(0), compare(call as u32, if second.is_some() { 3 } else { 1 })];
    program.extend(second.into_iter().flat_map(|value| [load(24), compare(value, 1)]));
    program.extend([answer_with(answer), answer_with(libc::SECCOMP_RET_ALLOW)]);
    let deny = move || {
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: sets a flag of this process, and hands over a valid program that the kernel copies.
        let set = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
        };
        if set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec it makes two system calls and allocates nothing.
    unsafe { command.pre_exec(deny) }
}

/// Waits until something holds; `what` says what is wrong if it never does.
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a process has a thread of that name, which shows the engine that is running.
#[track_caller]
pub fn wait_for_thread(process: u32, name: &str) {
    let runs = || tasks_of(process).any(|task| comm(&task).trim() == name);
    wait_until(&format!("no thread {name} came up"), runs);
}

/// Waits until a process has a thread of that name, and has then used enough CPU time to finish some operations, if
/// nothing makes them wait.
#[track_caller]
pub fn wait_for_work(process: u32, name: &str) {
    wait_for_thread(process, name);
    let used = || tasks_of(process).map(|task| ticks(&task)).sum::<u64>();
    let before = used();
    wait_until(&format!("process {process} does not work"), || used() >= before + 20);
}

/// Waits until a process has a child that lasts, and returns that: a fio that only prints its version or calibrates
/// ends sooner.
#[track_caller]
pub fn wait_for_fio(process: u32) -> u32 {
    let mut fio = None;
    wait_until("no fio was started", || {
        fio = children_of(process).first().copied().filter(|child| {
            std::thread::sleep(Duration::from_millis(900));
            children_of(process).contains(child)
        });
        fio.is_some()
    });
    fio.expect("it was waited for")
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
    kill_process(Pid::from_child(&child), signal).expect("the signal is sent");
    let start = Instant::now();
    let finished = end(child);
    assert!(start.elapsed() < Duration::from_secs(120), "it ends long before the run would");
    finished
}

/// Returns the processes that a process has started.
pub fn children_of(process: u32) -> Vec<u32> {
    let children =
        std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// A loop device over a file on a disk, detached when it is dropped.
pub struct Loop {
    /// The device.
    pub path: PathBuf,
    /// The file.
    pub backing: PathBuf,
    _folder: TempDir,
}

impl Loop {
    /// Makes one over a file with this content, with these options of losetup. Skips the test if that is not possible.
    pub fn with(content: &[u8], options: &[&str]) -> Option<Loop> {
        let folder = disk_folder();
        let backing = file_with(&folder, content);
        let made = is_root().then(|| {
            let mut losetup = Command::new("losetup");
            losetup.args(["--find", "--show"]).args(options).arg(&backing).output().ok()
        });
        match made.flatten().filter(|output| output.status.success()) {
            Some(output) => {
                let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
                Some(Loop { path, backing, _folder: folder })
            }
            None => {
                skip("no loop device can be made here");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // If detaching fails, the device stays visible; the test's own result matters more.
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

/// Returns both sides of a new terminal of 50 lines: the one that shows what a person would see, and the program's.
pub fn terminal(columns: u16) -> (File, OwnedFd) {
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&screen).and_then(|()| unlockpt(&screen)).expect("its other side");
    let side = ioctl_tiocgptpeer(&screen, OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("its other side");
    let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&side, size).expect("its size");
    (File::from(screen), side)
}

/// A mount, detached when it is dropped.
pub struct Mounted(PathBuf);

impl Mounted {
    /// Mounts a file system at a folder. Skips the test if this user or kernel cannot.
    pub fn at(
        folder: &Path,
        filesystem: &str,
        source: &Path,
        flags: MountFlags,
        options: &str,
    ) -> Option<Mounted> {
        let options = CString::new(options).expect("no NUL");
        match mount(source, folder, filesystem, flags, options.as_c_str()) {
            Ok(()) => Some(Mounted(folder.to_path_buf())),
            Err(error) => {
                skip(format!("{filesystem} can't be mounted here: {error}"));
                None
            }
        }
    }

    /// Mounts a tmpfs. Skips the test if that is not possible.
    pub fn tmpfs(folder: &Path, flags: MountFlags, options: &str) -> Option<Mounted> {
        Mounted::at(folder, "tmpfs", Path::new("none"), flags, options)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Detached, because the kernel closes the files of a ring a moment after the program has ended. If that fails,
        // the mount stays visible; the test's own result matters more.
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}
