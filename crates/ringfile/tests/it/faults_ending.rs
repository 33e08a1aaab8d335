//! The library called while a thread ends: from destructors of its locals and of pthread keys (F41).

use crate::support::handles::Handles as _;
use std::cell::RefCell;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Waker};

use crate::support;
use crate::support::forms::routes;
use crate::support::{
    Folder, assert_content, content, in_child, in_child_with, must_end, open_descriptors, poll_once,
};
use ringfile::fs::AllocateMode;
use ringfile::{Batch, Durability, File, OpenOptions, Pool, Queue, Route, block_on, spawn};

const PAGE: usize = 4096;
/// Long enough that a worker still writes it when its thread ends.
const LENT: usize = 128 << 20;

fn open(path: &Path, route: Route, durability: Durability) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).route(route).durability(durability).open_blocking(path).unwrap()
}

/// Returns an executor that needs no thread-locals.
fn poll_on<F: Future + Unpin>(mut future: F) -> F::Output {
    loop {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut context) {
            return output;
        }
        std::thread::yield_now();
    }
}

/// Uses everything that a thread may ask for.
fn use_all(path: &Path, route: Route) {
    for durability in [Durability::Dsync, Durability::Fsync] {
        let file = open(path, route, durability);
        let pool = Pool::new(16 * PAGE);
        block_on(async {
            assert_content(&file.read_exact_at(pool.get(PAGE).unwrap(), 0).await.unwrap(), 0);
            file.write_durable_at(content(0, PAGE), 0).await.unwrap();
            file.sync_all().await.unwrap();
            file.allocate(AllocateMode::Extend, 0, PAGE as u64).await.unwrap();
            file.set_len(4 * PAGE as u64).await.unwrap();
            let parts = vec![Vec::with_capacity(100), Vec::with_capacity(1000)];
            let parts = file.read_exact_vectored_at(parts, 5).await.unwrap();
            assert_content(&parts.concat(), 5);
            let (other, rest) = (file.clone(), pool.clone());
            let task = spawn(async move { other.read_exact_at(rest.get(PAGE).unwrap(), 0).await.unwrap() });
            assert_content(&task.await.unwrap(), 0);
            let mut reader = file.reader(&pool).block(PAGE);
            assert_content(&reader.next().await.unwrap().unwrap(), 0);
            // Left in flight when the loop ends.
            let _ = poll_once(&mut Box::pin(file.read_at(Vec::with_capacity(PAGE), 0))).await;
        });
        let mut batch = Batch::new();
        batch.add(file.read_at(Vec::with_capacity(PAGE), 0));
        assert_content(batch.run()[0].buffer.as_ref().unwrap(), 0);
        let mut reads = Queue::new();
        let read = reads.add(file.read_at(Vec::with_capacity(PAGE), 0), 0);
        assert_content(&reads.wait_for(read).unwrap().buffer.unwrap(), 0);
        let mut queue = Queue::new();
        queue.add(file.read_at(Vec::with_capacity(PAGE), 0), 9);
        assert_content(queue.end().buffer.as_ref().unwrap(), 0);
        assert_content(&poll_on(Box::pin(file.read_at(Vec::with_capacity(PAGE), 0))).unwrap(), 0);
    }
}

/// Uses the library when it is dropped, and reports success. A panic there ends the process.
struct AtTheEnd(PathBuf, Route, Sender<()>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        use_all(&self.0, self.1);
        let _ = self.2.send(());
    }
}

thread_local! {
    static BEFORE: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
    static AFTER: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
}

extern "C" fn end(value: *mut c_void) {
    // SAFETY: made by `at_the_end_of_keys`, and destroyed once.
    drop(unsafe { Box::from_raw(value.cast::<AtTheEnd>()) });
}

/// Makes the destructor of a pthread key drop the value, after the thread's locals.
fn at_the_end_of_keys(value: AtTheEnd) {
    let mut key = 0;
    // SAFETY: the destructor fits the value.
    unsafe {
        assert_eq!(libc::pthread_key_create(&mut key, Some(end)), 0);
        assert_eq!(libc::pthread_setspecific(key, Box::into_raw(Box::new(value)).cast()), 0);
    }
}

fn thread_ends(path: &Path, route: Route, used_before: bool) {
    let (done, ends) = channel();
    let at_the_end = move |path: &Path| AtTheEnd(path.to_owned(), route, done.clone());
    let path = path.to_owned();
    must_end("a thread that uses the library as it ends", move || {
        // The order in which a thread drops its thread-locals is not specified: here before and after the library's.
        BEFORE.set(Some(at_the_end(&path)));
        at_the_end_of_keys(at_the_end(&path));
        if used_before {
            use_all(&path, route);
        }
        AFTER.set(Some(at_the_end(&path)));
        at_the_end_of_keys(at_the_end(&path));
    });
    assert_eq!(ends.iter().count(), 4);
}

#[test]
fn f41_destructors_of_thread_locals_and_pthread_keys_may_use_the_library() {
    if !in_child("f41_destructors_of_thread_locals_and_pthread_keys_may_use_the_library") {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 4 * PAGE));
    for route in routes() {
        for used_before in [true, false] {
            thread_ends(&path, route, used_before);
        }
    }
    // I/O threads, workers and their descriptors exist now; a new thread adds nothing that stays.
    let before = open_descriptors();
    for _ in 0..5 {
        routes().for_each(|route| thread_ends(&path, route, true));
    }
    support::wait_for("the descriptors", || open_descriptors() <= before);
    assert_eq!(ringfile::metrics().stray, 0);
}

#[test]
fn f41_a_thread_that_uses_the_library_only_as_it_ends_leaves_nothing() {
    // glibc never frees what it allocates for a thread-local that is first used in a key's destructor: a leak checker
    // would report it.
    let no_leaks = |command: &mut std::process::Command| _ = command.env("ASAN_OPTIONS", "detect_leaks=0");
    if !in_child_with("f41_a_thread_that_uses_the_library_only_as_it_ends_leaves_nothing", no_leaks) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 4 * PAGE));
    let only_in_keys = |route| {
        let (path, (done, ends)) = (path.clone(), channel());
        must_end("a thread", move || at_the_end_of_keys(AtTheEnd(path, route, done)));
        assert_eq!(ends.iter().count(), 1);
    };
    routes().for_each(only_in_keys);
    let before = open_descriptors();
    for _ in 0..5 {
        routes().for_each(only_in_keys);
    }
    support::wait_for("the descriptors", || open_descriptors() <= before);
}

/// Memory of a write that says when nothing uses it any more.
struct Lent(Vec<u8>, Arc<AtomicBool>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

thread_local! {
    static QUEUE: RefCell<Option<Queue>> = const { RefCell::new(None) };
}

/// The thread drops its driver first, which does not know what workers carry out.
#[test]
fn f41_a_queue_that_ends_with_its_thread_waits_for_workers() {
    let folder = Folder::inside(Path::new("/dev/shm"));
    let path = folder.path().join("data");
    let written = path.clone();
    let is_free = Arc::new(AtomicBool::new(false));
    let lent = Lent(vec![7; LENT], Arc::clone(&is_free));
    must_end("a thread that leaves a queue", move || {
        // The first use of this local comes before the first use of the driver, so it is dropped after the driver.
        QUEUE.set(Some(Queue::new()));
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).route(Route::Workers).open_blocking(&written).unwrap();
        QUEUE.with_borrow_mut(|queue| {
            let queue = queue.as_mut().unwrap();
            queue.add(file.write_at(bytes::Bytes::from_owner(lent), 0), 0);
            queue.submit();
        });
        support::wait_for("the worker", || std::fs::metadata(&written).is_ok_and(|data| data.len() > 0));
    });
    assert!(is_free.load(Ordering::SeqCst), "the thread ended while a worker read the memory");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), LENT as u64);
}
