//! What the tests that act as a user share: random numbers with a seed that can be given, files that remove
//! themselves, a guard against hanging, futures that other threads wake.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

#[allow(clippy::duplicate_mod, reason = "some tests use both folders of helpers")]
#[path = "../support/machine.rs"]
pub mod machine;
pub mod mount;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[allow(unused_imports, reason = "each test program uses a part of it")]
pub use machine::{has_registered_buffers, has_shared_registrations, needs_registered_buffers, patience};

/// xorshift64*.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    /// From `RINGFILE_SEED`, or the time. Printed, so that a failing test shows it.
    pub fn new(test: &str) -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
        let given = std::env::var("RINGFILE_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(now);
        println!("{test}: RINGFILE_SEED={seed}");
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for chunk in bytes.chunks_mut(8) {
            let random = self.next().to_ne_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
        bytes
    }
}

/// A path in a folder, whose file is removed at the end.
pub struct TempPath(PathBuf);

impl TempPath {
    pub fn new(folder: impl AsRef<Path>, name: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(folder.as_ref().join(format!("ringfile-test-{name}-{}-{number}", std::process::id())))
    }

    /// On the file system that the project is built on.
    pub fn on_disk(name: &str) -> Self {
        Self::new(env!("CARGO_TARGET_TMPDIR"), name)
    }
}

impl std::ops::Deref for TempPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for TempPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs `body` on a thread of its own and fails where it does not end: a lost wake-up must not hang the tests.
pub fn must_end<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ends) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = body();
        let _ = done.send(());
        result
    });
    match ends.recv_timeout(3 * patience()) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload)),
    }
}

/// Whether `condition` comes true within a time that is long enough on any machine.
pub fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !condition() {
        if began.elapsed() > 2 * patience() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// A value that a thread sends to a future.
pub struct Sent<T>(Arc<Mutex<(Option<T>, Option<Waker>)>>);

pub struct Sender<T>(Arc<Mutex<(Option<T>, Option<Waker>)>>);

pub fn sent<T>() -> (Sender<T>, Sent<T>) {
    let both = Arc::new(Mutex::new((None, None)));
    (Sender(Arc::clone(&both)), Sent(both))
}

impl<T> Sender<T> {
    pub fn send(&self, value: T) {
        let waker = {
            let mut both = self.0.lock().unwrap();
            both.0 = Some(value);
            both.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Sent<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut both = self.0.lock().unwrap();
        match both.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                both.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Polls once.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

/// Lets the loop turn `times` times.
pub async fn yields(times: usize) {
    for _ in 0..times {
        let mut yielded = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// Both results, run side by side.
pub async fn both<A: Future + Unpin, B: Future + Unpin>(mut a: A, mut b: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(output) = Pin::new(&mut a).poll(context)
        {
            first = Some(output);
        }
        if second.is_none()
            && let Poll::Ready(output) = Pin::new(&mut b).poll(context)
        {
            second = Some(output);
        }
        if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (first.unwrap(), second.unwrap())
}

/// All results, in order, of futures that run side by side.
pub async fn all<F: Future + Unpin>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Option<F>> = futures.into_iter().map(Some).collect();
    let mut outputs: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in running.iter_mut().zip(&mut outputs) {
            if let Some(running) = future
                && let Poll::Ready(ready) = Pin::new(running).poll(context)
            {
                *output = Some(ready);
                *future = None;
            }
        }
        if running.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// A pipe: a file whose reads wait for as long as one likes.
pub fn pipe() -> (ringfile::File, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let reader = std::fs::File::from(std::os::fd::OwnedFd::from(reader));
    (ringfile::File::from(reader), writer)
}

/// A figure of `/proc/self/status`, in KiB.
pub fn status_kib(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse().unwrap()
}

/// Says that a test can't run here, and why. Straight to standard error: what goes through `println!` is only shown where a
/// test fails.
pub fn skip(test: &str, why: impl std::fmt::Display) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("skipped {test}: {why}\n").as_bytes());
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
