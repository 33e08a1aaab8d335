//! What the fault tests share: folders that go away, content that can be checked, skipping with a reason, and running a
//! test in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod cache;
pub mod filters;
pub mod forms;
pub mod fuse;
pub mod handles;
pub mod machine;
pub mod mounts;

use std::future::Future;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

#[allow(unused_imports, reason = "each test program uses a part of it")]
pub use machine::{has_registered_buffers, has_shared_registrations, needs_registered_buffers, patience};

/// Says on standard error which test is not run, and why: the harness would swallow what `eprintln` prints.
pub fn skip(test: &str, why: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "skipped {test}: {why}");
}

/// Whether `RINGFILE_BACKEND` switches the ring off.
pub fn is_without_ring() -> bool {
    std::env::var("RINGFILE_BACKEND").is_ok_and(|backend| matches!(backend.as_str(), "workers" | "aio"))
}

/// Whether workers carry out everything, so that nothing is inline.
pub fn workers_are_forced() -> bool {
    std::env::var("RINGFILE_BACKEND").is_ok_and(|backend| backend == "workers")
}

/// Whether a test that is about the ring can be run; says that it is skipped where not.
pub fn needs_ring(test: &str) -> bool {
    if is_without_ring() {
        skip(test, "it is about the ring, which RINGFILE_BACKEND switches off");
    }
    !is_without_ring()
}

/// For files on the ring, whose operations are under way after their first poll, not over. Workers have them where
/// those carry everything.
pub fn ring_options() -> ringfile::OpenOptions {
    let mut options = ringfile::OpenOptions::new();
    options.route(if is_without_ring() { ringfile::Route::Workers } else { ringfile::Route::Ring });
    options
}

/// As `File::open`, with [`ring_options`].
pub fn open_on_ring(path: impl AsRef<Path>) -> ringfile::File {
    ring_options().read(true).open(path).unwrap()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A folder of its own, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    /// In the system's temporary folder: on a disk, usually.
    pub fn new() -> Self {
        Self::inside(&std::env::temp_dir())
    }

    pub fn inside(parent: &Path) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("ringfile-fault-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The byte that belongs at `offset` of any test file; never 0, so that zeros show.
pub fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 | 1
}

pub fn content(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(byte_at).collect()
}

/// Fails with the first offset that is wrong.
#[track_caller]
pub fn assert_content(got: &[u8], offset: u64) {
    if let Some(bad) = (0..got.len()).find(|&i| got[i] != byte_at(offset + i as u64)) {
        panic!("byte {bad} of {} (offset {}): {:#x}", got.len(), offset + bad as u64, got[bad]);
    }
}

/// A small generator (xorshift*), seeded from `RINGFILE_SEED` or the clock; the seed is printed.
pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let given = std::env::var("RINGFILE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or(clock.as_nanos() as u64 | 1);
        println!("RINGFILE_SEED={seed}");
        Self(seed)
    }

    /// One of several that follow from another's seed; not 0.
    pub fn from_seed(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % bound
    }
}

/// Polls `future` once.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

/// Lets other tasks and the I/O have a turn.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context: &mut Context<'_>| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// As [`wait_for`], while other tasks and the I/O have their turns.
pub async fn yield_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < patience(), "waited in vain for {what}");
        yield_now().await;
    }
}

/// Awaits all, giving the results in order.
pub async fn all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(move |context| {
        let mut pending = false;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match Pin::new(future).poll(context) {
                    Poll::Ready(value) => *output = Some(value),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            return Poll::Pending;
        }
        Poll::Ready(outputs.iter_mut().map(|output| output.take().unwrap()).collect())
    })
    .await
}

/// Waits until `done` says so; panics with `what` after [`patience`].
#[track_caller]
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < patience(), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `run` on a thread of its own and fails, rather than hangs, where it does not end.
#[track_caller]
pub fn must_end<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(run);
    let began = Instant::now();
    while !thread.is_finished() {
        assert!(began.elapsed() < 3 * patience(), "does not end: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Descriptors that this process has open. Meaningful in a process of its own only.
pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

const CHILD: &str = "RINGFILE_FAULT_CHILD";

/// Whether this process runs only the test called `name`.
pub fn is_child(name: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|child| child == name)
}

/// Runs the test called `name` again in a process of its own, where it may change what the whole process has. True in
/// that process: then do the test; false in the other: then it was done, and passed.
#[track_caller]
pub fn in_child(name: &str) -> bool {
    in_child_with(name, |_| ())
}

/// As [`in_child`], with the process set up by `set_up`.
#[track_caller]
pub fn in_child_with(name: &str, set_up: impl FnOnce(&mut Command)) -> bool {
    is_child(name) || run_child(name, 6 * patience(), set_up)
}

/// As [`in_child`], for a test that takes up to this long; its output is shown.
#[track_caller]
pub fn in_child_for(name: &str, how_long: Duration) -> bool {
    is_child(name) || run_child(name, how_long, |_| ())
}

#[track_caller]
fn run_child(name: &str, how_long: Duration, set_up: impl FnOnce(&mut Command)) -> bool {
    // By this name a user without access to the folder of the executable can run it too.
    let mut command = Command::new("/proc/self/exe");
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, name);
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
    let (output, errors) = (output.join().unwrap(), errors.join().unwrap());
    assert!(
        status.success() && output.contains("1 passed"),
        "{name} in a process of its own: {status}\n{output}\n{errors}"
    );
    print!("{output}");
    for line in errors.lines().filter(|line| line.starts_with("skipped")) {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    false
}

/// Records the warnings of the whole process, from now on.
pub fn record_warnings() -> Arc<Mutex<Vec<String>>> {
    let texts = Arc::new(Mutex::default());
    tracing::subscriber::set_global_default(Warnings(Arc::clone(&texts))).unwrap();
    texts
}

struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}

fn read_all(pipe: &mut impl Read) -> String {
    let mut all = Vec::new();
    let _ = pipe.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}
