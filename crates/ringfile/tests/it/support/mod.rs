//! Shared by the integration tests: folders that remove themselves, content that can be checked, skipping with a
//! reason, and running a test in its own process.

pub mod cache;
pub mod files;
pub mod filters;
pub mod forks;
pub mod forms;
pub mod fuse;
pub mod handles;
pub mod hugetlb;
pub mod logs;
pub mod machine;
pub mod mounts;
pub mod patience;
pub mod process;
pub mod random;
#[cfg(feature = "sim")]
pub mod seeds;
pub mod skip;
pub mod tasks;
pub mod threads;

use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use {
    files::{Folder, TempPath, pipe, reads_without_waiting},
    forks::{assert_passed, end_if_it_hangs, fork},
    machine::{has_registered_buffers, has_shared_registrations, needs_registered_buffers, status_kib},
    patience::patience,
    process::{again, assert_ran, in_child, in_child_for, in_child_with, is_child},
    random::Random,
    ringfile_buffer::internal::page_size,
    skip::skip,
    tasks::{Sender, all, both, poll_once, sent, yield_now, yield_until, yields},
};

/// Returns whether `RINGFILE_DISABLE` switches the ring off.
pub fn is_without_ring() -> bool {
    std::env::var("RINGFILE_DISABLE")
        .is_ok_and(|disabled| matches!(disabled.as_str(), "io_uring" | "io_uring,aio"))
}

/// Returns whether workers carry out everything, so that nothing is inline.
pub fn workers_are_forced() -> bool {
    std::env::var("RINGFILE_DISABLE").is_ok_and(|disabled| disabled == "io_uring,aio")
}

/// Returns whether a test of the ring can run; prints that it is skipped if not.
pub fn needs_ring(test: &str) -> bool {
    if is_without_ring() {
        skip(test, "it is about the ring, which RINGFILE_DISABLE switches off");
    }
    !is_without_ring()
}

/// Options for files on the ring, whose operations are in flight after their first poll, not finished. With
/// `RINGFILE_DISABLE` set, worker threads carry them out.
pub fn ring_options() -> ringfile::OpenOptions {
    let mut options = ringfile::OpenOptions::new();
    options.route(if is_without_ring() { ringfile::Route::Workers } else { ringfile::Route::Ring });
    options
}

/// Opens a file as `File::open` does, with [`ring_options`].
pub fn open_on_ring(path: impl AsRef<Path>) -> ringfile::File {
    ring_options().read(true).open_blocking(path).unwrap()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the byte that belongs at `offset` of any test file; never 0, so that zeros show.
pub fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 | 1
}

/// Length of a piece of the content that is computed once.
const PIECE: usize = 64 << 10;

/// Returns the content from `offset` to the end of its piece, or `None` far from the start of a file. Each piece is
/// computed once: unoptimized tests, and more so those with AddressSanitizer, would otherwise spend most of their time
/// on bytes. Without a lock, which a forked child could find locked for ever.
fn piece_from(offset: u64) -> Option<&'static [u8]> {
    static PIECES: [AtomicPtr<[u8; PIECE]>; 512] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 512];
    let number = offset / PIECE as u64;
    let slot = PIECES.get(usize::try_from(number).ok()?)?;
    let mut piece = slot.load(Ordering::Acquire);
    if piece.is_null() {
        let bytes: Vec<u8> = (0..PIECE as u64).map(|at| byte_at(number * PIECE as u64 + at)).collect();
        let new: Box<[u8; PIECE]> = bytes.try_into().unwrap();
        piece = Box::into_raw(new);
        let set = slot.compare_exchange(std::ptr::null_mut(), piece, Ordering::AcqRel, Ordering::Acquire);
        if let Err(of_another_thread) = set {
            // SAFETY: it was made above, and nobody else has it.
            drop(unsafe { Box::from_raw(piece) });
            piece = of_another_thread;
        }
    }
    // SAFETY: what is in a slot is never changed or freed.
    Some(unsafe { &(&*piece)[(offset % PIECE as u64) as usize..] })
}

pub fn content(offset: u64, len: usize) -> Vec<u8> {
    let mut content = Vec::with_capacity(len);
    while content.len() < len {
        let (at, left) = (offset + content.len() as u64, len - content.len());
        match piece_from(at) {
            Some(piece) => content.extend_from_slice(&piece[..left.min(piece.len())]),
            None => content.extend((at..at + left as u64).map(byte_at)),
        }
    }
    content
}

/// Fails with the first wrong offset.
#[track_caller]
pub fn assert_content(got: &[u8], offset: u64) {
    let mut at = 0;
    while let Some(piece) = piece_from(offset + at as u64).filter(|_| at < got.len()) {
        let end = got.len().min(at + piece.len());
        if got[at..end] != piece[..end - at] {
            break;
        }
        at = end;
    }
    if let Some(bad) = (at..got.len()).find(|&i| got[i] != byte_at(offset + i as u64)) {
        panic!("byte {bad} of {} (offset {}): {:#x}", got.len(), offset + bad as u64, got[bad]);
    }
}

/// Returns whether `condition` becomes true within a time that is long enough on any machine.
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

/// Waits until `done` returns true; panics with `what` after [`patience`].
#[track_caller]
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < patience(), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `run` on its own thread and fails, rather than hangs, if it does not end.
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

/// Returns how many descriptors this process has open. Only meaningful in a test's own process.
pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until no descriptor of this process is open on this file, such as that of a dropped operation.
#[track_caller]
pub fn wait_closed(path: impl AsRef<Path>) {
    wait_for("the file to be closed", || descriptors_of(path.as_ref()) == 0);
}

/// Counts the descriptors of this process that are open files of `path`.
pub fn descriptors_of(path: &Path) -> usize {
    let names = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    names.filter(|name| std::fs::read_link(name.path()).is_ok_and(|target| target == path)).count()
}

/// Leaks a value, and keeps it where a leak checker finds it.
pub fn keep<'kept, T: 'kept>(value: T) -> &'kept T {
    static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let value = Box::leak(Box::new(value));
    KEPT.lock().unwrap().push(std::ptr::from_ref(value).addr());
    value
}

/// Records the warnings of the whole process from now on.
pub fn record_warnings() -> Arc<Mutex<Vec<String>>> {
    let texts: Arc<Mutex<Vec<String>>> = Arc::default();
    let recorded = Arc::clone(&texts);
    on_events(move |event| {
        if is_warning(event) {
            let mut text = Text(String::new());
            event.record(&mut text);
            recorded.lock().unwrap().push(text.0);
        }
    });
    texts
}

/// Calls `act` with every event of the whole process from now on.
pub fn on_events(act: impl Fn(&tracing::Event<'_>) + Send + Sync + 'static) {
    tracing::subscriber::set_global_default(Subscriber(act)).unwrap();
}

/// Returns whether an event is a warning or an error. Which others there are depends on the kernel.
pub fn is_warning(event: &tracing::Event<'_>) -> bool {
    *event.metadata().level() <= tracing::Level::WARN
}

/// Calls a function with every event.
pub struct Subscriber<F>(pub F);

impl<F: Fn(&tracing::Event<'_>) + Send + Sync + 'static> tracing::Subscriber for Subscriber<F> {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        (self.0)(event);
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
