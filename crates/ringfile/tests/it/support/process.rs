//! Tests in processes of their own. The tests of other crates include this file too.

use std::io::Read;
use std::panic::Location;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::patience::patience;
use super::skip;

/// The environment variable that names the test that a process was started for.
const CHILD: &str = "RINGFILE_TEST_CHILD";

/// Returns whether the test runner has given each test a process of its own, as cargo-nextest does.
fn every_test_has_a_process() -> bool {
    std::env::var("NEXTEST_EXECUTION_MODE").is_ok_and(|mode| mode == "process-per-test")
}

/// Returns whether this process was started by [`in_child`] or its relatives for the test called `name`.
pub fn is_child(name: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|child| child == name)
}

/// Returns whether the test called `name` has a process of its own, where it may change global state. If not, runs it again
/// in one, and returns false once it has passed there.
#[track_caller]
pub fn in_child(name: &str) -> bool {
    every_test_has_a_process() || in_child_with(name, |_| ())
}

/// Runs a test in a process of its own, which `set_up` has prepared. Returns as [`in_child`] does.
#[track_caller]
pub fn in_child_with(name: &str, set_up: impl FnOnce(&mut Command)) -> bool {
    is_child(name) || run_child(name, 6 * patience(), set_up)
}

/// Runs a test as [`in_child`] does that takes up to this long, and shows its output.
#[track_caller]
pub fn in_child_for(name: &str, how_long: Duration) -> bool {
    every_test_has_a_process() || is_child(name) || run_child(name, how_long, |_| ())
}

/// Returns a command that runs the test called `name`, of the file that calls this, alone in another process.
#[track_caller]
pub fn again(name: &str) -> Command {
    // The file of a test tells its module: the thread that runs a test has its whole name, but not with `--test-threads=1`.
    let whole = match Location::caller().file().rsplit_once("tests/it/") {
        Some((_, file)) => {
            let module = file.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
            format!("{module}::{name}")
        }
        // The only file of another program.
        None => name.to_owned(),
    };
    // Under this name, a user without access to the executable's folder can run it too.
    let mut command = Command::new("/proc/self/exe");
    command.args([&*whole, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

/// Asserts that a process that [`again`] describes has run its test, and that it has passed.
#[track_caller]
pub fn assert_ran(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "in another process: {}\n{text}",
        output.status
    );
}

#[track_caller]
fn run_child(name: &str, how_long: Duration, set_up: impl FnOnce(&mut Command)) -> bool {
    let mut command = again(name);
    command.env(CHILD, name);
    set_up(&mut command);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut output, mut errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let errors = std::thread::spawn(move || read_all(&mut errors));
    let output = std::thread::spawn(move || read_all(&mut output));
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > how_long {
            child.kill().unwrap();
            break child.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let (stdout, stderr) = (output.join().unwrap(), errors.join().unwrap());
    print!("{}", String::from_utf8_lossy(&stdout));
    skip::repeat(&String::from_utf8_lossy(&stderr));
    assert_ran(&Output { status, stdout, stderr });
    false
}

fn read_all(pipe: &mut impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = pipe.read_to_end(&mut all);
    all
}
