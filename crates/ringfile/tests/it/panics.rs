//! Wakers and buffers that panic when ringfile calls them: no other operation is affected.

use std::future::IntoFuture;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use crate::support;
use crate::support::fuse::{Act, Op, Server};
use crate::support::{
    Folder, all, assert_content, content, in_child, is_without_ring, keep, must_end, pipe, poll_once,
    ring_options, yield_until,
};
use ringfile::{Appender, Batch, IoBuf, IoBufMut, OpenOptions, Pool, Queue, Route, Runtime, block_on};

const PAGE: usize = 4096;

/// A buffer that panics when it is dropped.
struct Bomb(Vec<u8>);

// SAFETY: the vector's memory is on the heap, and stays there when the value moves.
unsafe impl IoBuf for Bomb {
    fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

// SAFETY: as above; the vector owns its memory alone.
unsafe impl IoBufMut for Bomb {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    unsafe fn set_len(&mut self, len: usize) {
        // SAFETY: by this function's contract.
        unsafe { self.0.set_len(len) };
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a buffer that panics");
        }
    }
}

/// Returns the routes on which another thread drops the buffer of a future that is gone.
fn routes() -> impl Iterator<Item = Route> {
    [Route::Ring, Route::Workers].into_iter().filter(|&route| route == Route::Workers || !is_without_ring())
}

#[test]
fn a_loop_ends_though_a_buffer_panicked_on_a_worker() {
    let name = "a_loop_ends_though_a_buffer_panicked_on_a_worker";
    let Some(server) = Server::or_skip(name, content(0, PAGE)) else { return };
    server.rule(Op::Read, 0..u64::MAX, 1, Act::Hold);
    let file = OpenOptions::new().read(true).route(Route::Workers).open_blocking(server.path()).unwrap();
    must_end("a loop whose buffer panicked on another thread", move || {
        block_on(async {
            let mut read = Box::pin(file.read_at(Bomb(Vec::with_capacity(100)), 0));
            assert!(poll_once(&mut read).await.is_pending());
            yield_until("a request at the server", || server.held() > 0).await;
            drop(read);
            server.release();
        });
        assert_content(&block_on(file.read_exact_at(vec![0; 100], 1)).unwrap(), 1);
    });
}

#[test]
fn threads_of_the_library_continue_though_a_buffer_panicked_on_them() {
    let name = "threads_of_the_library_continue_though_a_buffer_panicked_on_them";
    for route in routes() {
        let Some(server) = Server::or_skip(name, content(0, PAGE)) else { return };
        let file = OpenOptions::new().read(true).route(route).open_blocking(server.path()).unwrap();
        must_end("reads after a buffer that panicked", move || {
            for _ in 0..20 {
                server.rule(Op::Read, 0..u64::MAX, 1, Act::Hold);
                let mut read = Box::pin(file.read_at(Bomb(Vec::with_capacity(100)), 0));
                assert!(futures::executor::block_on(poll_once(&mut read)).is_pending());
                server.wait_held(1);
                drop(read);
                server.release();
                let read = file.read_exact_at(vec![0; 100], 1);
                assert_content(&futures::executor::block_on(read).unwrap(), 1);
            }
        });
    }
}

struct PanicWaker;

impl Wake for PanicWaker {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

#[test]
fn a_waker_that_panics_costs_other_tasks_nothing() {
    let folder = Folder::new();
    let file = ring_options().read(true).open_blocking(folder.file("data", &content(0, 64 * PAGE))).unwrap();
    must_end("reads beside a waker that panics", move || {
        let waker = Waker::from(Arc::new(PanicWaker));
        for _ in 0..50 {
            let mut bad = Box::pin(file.read_at(Vec::with_capacity(PAGE), 0));
            let _ = Pin::new(&mut bad).poll(&mut Context::from_waker(&waker));
            let good = (0..64).map(|page| file.read_exact_at(vec![0; PAGE], page * PAGE as u64)).collect();
            for (page, result) in futures::executor::block_on(all(good)).into_iter().enumerate() {
                assert_content(&result.unwrap(), (page * PAGE) as u64);
            }
        }
    });
}

#[test]
fn a_waker_that_panics_costs_an_appenders_other_tasks_nothing() {
    let folder = Folder::new();
    let path = folder.file("log", b"");
    let file = OpenOptions::new().read(true).write(true).open_blocking(path).unwrap();
    must_end("syncs beside one whose waker panics", move || {
        let pool = Pool::new(1 << 20);
        let log = futures::executor::block_on(async { Appender::open(&file, &pool, 0).await }).unwrap();
        let waker = Waker::from(Arc::new(PanicWaker));
        for _ in 0..20 {
            futures::executor::block_on(log.append(b"record")).unwrap();
            let mut bad = log.sync();
            let _ = catch_unwind(AssertUnwindSafe(|| {
                Pin::new(&mut bad).poll(&mut Context::from_waker(&waker)).is_pending()
            }));
            // There are more tasks than are woken at once; the bad one is among the first.
            let good = (0..40).map(|_| log.sync()).collect();
            futures::executor::block_on(all(good)).into_iter().for_each(|synced| synced.map(drop).unwrap());
        }
    });
}

#[test]
fn other_tasks_of_a_runtime_continue_though_a_waker_panicked_on_their_thread() {
    let ((bad, mut word), (good, mut later)) = (pipe(), pipe());
    must_end("a task beside a waker that panics", move || {
        let runtime = Runtime::builder().threads(1).build().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let _bad = runtime.spawn(async move {
            let waker = Waker::from(Arc::new(PanicWaker));
            let mut read = Box::pin(bad.read_at(vec![0; 4], 0));
            assert!(Pin::new(&mut read).poll(&mut Context::from_waker(&waker)).is_pending());
            tell.send(()).unwrap();
            std::future::pending::<()>().await;
            drop(read);
        });
        let good = runtime.spawn(async move { good.read_at(vec![0; 4], 0).await.unwrap() });
        told.recv().unwrap();
        word.write_all(b"word").unwrap();
        later.write_all(b"more").unwrap();
        assert_eq!(good.join().unwrap(), b"more");
        assert_eq!(runtime.spawn(async { 7 }).join().unwrap(), 7);
    });
}

#[test]
fn a_batch_that_is_cancelled_ends_though_its_waker_panicked() {
    let (pipe, _writer) = pipe();
    must_end("a batch whose waker panicked", move || {
        block_on(async {
            // With more to start, the waker is called before all have ended.
            let mut batch = Batch::new().depth(16);
            for _ in 0..64 {
                batch.add(pipe.read_at(vec![0; 4], 0));
            }
            let mut run = batch.into_future();
            let waker = Waker::from(Arc::new(PanicWaker));
            assert!(Pin::new(&mut run).poll(&mut Context::from_waker(&waker)).is_pending());
            let _ = catch_unwind(AssertUnwindSafe(|| run.cancel()));
            assert!(run.await.into_iter().all(|done| done.result.is_err()));
        });
    });
}

#[test]
fn a_thread_ends_though_the_waker_of_a_queue_that_it_leaked_panics() {
    let name = "a_thread_ends_though_the_waker_of_a_queue_that_it_leaked_panics";
    if !in_child(name) {
        return;
    }
    let (pipe, _writer) = pipe();
    must_end("a thread with a leaked queue", move || {
        let mut queue = Queue::new();
        queue.add(pipe.read_at(Vec::with_capacity(4), 0), 0);
        block_on(async {
            let waker = Waker::from(Arc::new(PanicWaker));
            let ready = pin!(queue.ready());
            assert!(ready.poll(&mut Context::from_waker(&waker)).is_pending());
        });
        keep(queue);
    });
}

/// A buffer whose `set_len` does whatever the test wants.
struct Hooked {
    bytes: Vec<u8>,
    hook: fn(),
}

impl Hooked {
    fn new(hook: fn()) -> Self {
        Self { bytes: Vec::with_capacity(PAGE), hook }
    }
}

// SAFETY: the vector's memory is on the heap, and stays there when the value moves.
unsafe impl IoBuf for Hooked {
    fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }
}

// SAFETY: as above; the vector owns its memory alone.
unsafe impl IoBufMut for Hooked {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    unsafe fn set_len(&mut self, len: usize) {
        (self.hook)();
        // SAFETY: by this function's contract.
        unsafe { self.bytes.set_len(len) };
    }
}

/// The file that the test's hooks read.
const ANY: &str = "/proc/self/exe";

#[test]
fn a_set_len_runs_where_its_future_is_polled() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 2 * PAGE));
    for route in routes().chain([Route::Auto, Route::Inline]) {
        let file = OpenOptions::new().read(true).route(route).open_blocking(&path).unwrap();
        must_end("reads whose set_len panics, or uses the library", move || {
            let read = || file.read_at(Hooked::new(|| panic!("a set_len that panics")), 0);
            let own = catch_unwind(AssertUnwindSafe(|| block_on(read()).is_ok()));
            assert!(own.is_err(), "{route:?}: in a loop");
            let foreign = catch_unwind(AssertUnwindSafe(|| futures::executor::block_on(read()).is_ok()));
            assert!(foreign.is_err(), "{route:?}: in another executor");
            let uses_the_library = || {
                let file = ringfile::File::open_blocking(ANY).unwrap();
                let mut batch = ringfile::Batch::new();
                batch.add(file.read_at(Vec::with_capacity(4), 0));
                assert_eq!(*batch.run()[0].result.as_ref().unwrap(), 4);
            };
            let read = file.read_at(Hooked::new(uses_the_library), 1);
            assert_content(&futures::executor::block_on(read).unwrap().bytes, 1);
            assert_content(&block_on(file.read_exact_at(vec![0; PAGE], 1)).unwrap(), 1);
        });
    }
}

/// How many warnings there were.
static WARNINGS: AtomicUsize = AtomicUsize::new(0);

/// Panics in every event of this process.
fn let_events_panic() {
    support::on_events(|event| {
        WARNINGS.fetch_add(usize::from(support::is_warning(event)), Ordering::Relaxed);
        panic!("a subscriber that panics");
    });
}

/// Counts how often it was dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn tasks_of_a_runtime_continue_though_a_subscriber_panicked_on_their_thread() {
    let name = "tasks_of_a_runtime_continue_though_a_subscriber_panicked_on_their_thread";
    if !in_child(name) {
        return;
    }
    let_events_panic();
    must_end("tasks beside a subscriber that panics", || {
        let runtime = Runtime::builder().threads(1).build().unwrap();
        let all_ended = runtime.spawn(async {
            let mut ends = Vec::new();
            for number in 0..10 {
                // One task was polled before the event, and others are ready after it.
                ends.push(ringfile::spawn(async move {
                    for _ in 0..10 {
                        support::yield_now().await;
                    }
                    number
                }));
                // Nobody takes the result, which panics when it is dropped; the library reports that in an event.
                drop(ringfile::spawn(async { Bomb(Vec::new()) }));
            }
            for (number, end) in ends.into_iter().enumerate() {
                assert_eq!(end.await.unwrap(), number);
            }
        });
        all_ended.join().unwrap();
        runtime.shutdown();
    });
    assert_eq!(WARNINGS.load(Ordering::Relaxed), 10);
}

#[test]
fn a_loop_drops_its_tasks_though_a_subscriber_panics() {
    let name = "a_loop_drops_its_tasks_though_a_subscriber_panics";
    if !in_child(name) {
        return;
    }
    let_events_panic();
    let dropped = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&dropped);
    must_end("a loop that ends beside a subscriber that panics", move || {
        let (pipe, _writer) = pipe();
        block_on(async {
            for _ in 0..5 {
                let (counted, pipe) = (Counted(Arc::clone(&counter)), pipe.clone());
                drop(ringfile::spawn(async move {
                    let _kept = (counted, Bomb(Vec::new()));
                    let _ = pipe.read_at(vec![0; 4], 0).await;
                }));
            }
            support::yield_now().await;
        });
        assert_eq!(counter.load(Ordering::Relaxed), 5);
        // The thread has left its loop.
        assert_eq!(block_on(async { ringfile::spawn(async { 7 }).await.unwrap() }), 7);
    });
    assert_eq!(WARNINGS.load(Ordering::Relaxed), 5);
}

#[test]
fn threads_of_the_library_continue_though_a_subscriber_panicked_on_them() {
    let name = "threads_of_the_library_continue_though_a_subscriber_panicked_on_them";
    if !in_child(name) {
        return;
    }
    let_events_panic();
    for route in routes() {
        let Some(server) = Server::or_skip(name, content(0, PAGE)) else { return };
        let file = OpenOptions::new().read(true).route(route).open_blocking(server.path()).unwrap();
        must_end("reads after a subscriber that panicked", move || {
            // More than there are workers.
            for _ in 0..50 {
                server.rule(Op::Read, 0..u64::MAX, 1, Act::Hold);
                let mut read = Box::pin(file.read_at(Bomb(Vec::with_capacity(100)), 0));
                assert!(futures::executor::block_on(poll_once(&mut read)).is_pending());
                server.wait_held(1);
                drop(read);
                server.release();
                let read = file.read_exact_at(vec![0; 100], 1);
                assert_content(&futures::executor::block_on(read).unwrap(), 1);
            }
        });
    }
    // A worker reports the last panic while the next one reads.
    support::wait_for("the reports of all panics", || WARNINGS.load(Ordering::Relaxed) >= 50);
}

/// The first operation reports that the setting is ignored.
#[test]
fn an_operation_ends_though_a_subscriber_panicked_when_it_began() {
    let name = "an_operation_ends_though_a_subscriber_panicked_when_it_began";
    if !support::in_child_with(name, |command| _ = command.env("RINGFILE_DISABLE", "unknown")) {
        return;
    }
    let_events_panic();
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let file = OpenOptions::new().read(true).route(Route::Ring).open_blocking(path).unwrap();
    let pool = Pool::new(1 << 20);
    let read = block_on(file.read_at(pool.get(PAGE).unwrap(), 0)).unwrap();
    assert_content(&read, 0);
    drop(read);
    assert_eq!(pool.metrics().in_use, 0);
    assert!(WARNINGS.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_runtime_starts_its_tasks_though_a_waker_panicked_beside_them() {
    must_end("tasks beside the waker of a handle that panics", || {
        let runtime = Runtime::builder().threads(1).build().unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = std::sync::mpsc::channel();
        let blocks = runtime.spawn(async move {
            begin.send(()).unwrap();
            released.recv().unwrap();
        });
        begun.recv().unwrap();
        // All of these arrive together, after the thread was blocked.
        let mut bad: ringfile::JoinHandle<()> =
            runtime.spawn_on(0, || -> std::future::Ready<()> { panic!("a task that is not made") });
        let waker = Waker::from(Arc::new(PanicWaker));
        assert!(Pin::new(&mut bad).poll(&mut Context::from_waker(&waker)).is_pending());
        let good: Vec<_> = (0..3).map(|number| runtime.spawn(async move { number })).collect();
        release.send(()).unwrap();
        blocks.join().unwrap();
        for (number, task) in good.into_iter().enumerate() {
            assert_eq!(task.join().unwrap(), number);
        }
        runtime.shutdown();
    });
}

#[test]
fn a_loop_whose_waker_panicked_drops_its_tasks_and_can_be_entered_again() {
    let folder = Folder::new();
    let file = ring_options().read(true).open_blocking(folder.file("data", &content(0, PAGE))).unwrap();
    let (pipe, mut writer) = pipe();
    must_end("a loop whose waker panicked", move || {
        let dropped = Arc::new(AtomicUsize::new(0));
        let pool = Pool::new(1 << 20);
        let run = || {
            block_on(async {
                for _ in 0..5 {
                    let (counted, file, pool) = (Counted(Arc::clone(&dropped)), file.clone(), pool.clone());
                    drop(ringfile::spawn(async move {
                        let _kept = counted;
                        loop {
                            file.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap();
                        }
                    }));
                }
                let waker = Waker::from(Arc::new(PanicWaker));
                let mut bad = Box::pin(pipe.read_at(vec![0; 4], 0));
                assert!(Pin::new(&mut bad).poll(&mut Context::from_waker(&waker)).is_pending());
                writer.write_all(b"word").unwrap();
                std::future::pending::<()>().await;
            });
        };
        // On a worker, a panic stays there, and the loop would not end.
        if !is_without_ring() {
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            assert_eq!((dropped.load(Ordering::Relaxed), pool.metrics().in_use), (5, 0));
        }
        let read = async move { file.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap() };
        assert_content(&block_on(async { ringfile::spawn(read).await.unwrap() }), 0);
    });
}

/// A panic's payload that panics when it is dropped, with another one.
struct Endless;

impl Drop for Endless {
    fn drop(&mut self) {
        std::panic::panic_any(Endless);
    }
}

/// A panic's payload that starts a read when it is dropped.
struct Reads(ringfile::File);

impl Drop for Reads {
    fn drop(&mut self) {
        let mut read = Box::pin(self.0.read_at(vec![0; 100], 0));
        let _ = Pin::new(&mut read).poll(&mut Context::from_waker(Waker::noop()));
    }
}

/// Panics with the payload that the function returns.
struct PayloadWaker<F>(F);

impl<P: Send + 'static, F: Fn() -> P> Wake for PayloadWaker<F> {
    fn wake(self: Arc<Self>) {
        std::panic::panic_any((self.0)());
    }
}

/// Reads with a waker that panics on the thread that ends the read, and then once more.
fn read_after<P: Send + 'static>(file: &ringfile::File, payload: impl Fn() -> P + Send + Sync + 'static) {
    let waker = Waker::from(Arc::new(PayloadWaker(payload)));
    let file = file.clone();
    must_end("a read after a waker that panicked", move || {
        // More than one thread for each kind of work.
        for _ in 0..5 {
            let mut bad = Box::pin(file.read_at(vec![0; 100], 0));
            assert!(Pin::new(&mut bad).poll(&mut Context::from_waker(&waker)).is_pending());
            let good = futures::executor::block_on(file.read_exact_at(vec![0; 100], 1)).unwrap();
            assert_content(&good, 1);
        }
    });
}

#[test]
fn a_worker_continues_though_the_payload_of_a_panic_panics_or_uses_the_worker() {
    let name = "a_worker_continues_though_the_payload_of_a_panic_panics_or_uses_the_worker";
    if !in_child(name) {
        return;
    }
    ringfile::runtime::set_worker_threads(1);
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let file = OpenOptions::new().read(true).route(Route::Workers).open_blocking(path).unwrap();
    let reads = file.clone();
    read_after(&file, move || Reads(reads.clone()));
    read_after(&file, || Endless);
}

#[test]
fn an_io_thread_continues_though_the_payload_of_a_panic_panics() {
    let name = "an_io_thread_continues_though_the_payload_of_a_panic_panics";
    if is_without_ring() || !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let file = OpenOptions::new().read(true).route(Route::Ring).open_blocking(path).unwrap();
    read_after(&file, || Endless);
}

#[test]
fn a_loop_is_left_though_the_payload_of_a_panic_panics() {
    let (pipe, _writer) = pipe();
    must_end("a loop whose waker panicked while it was left", move || {
        let mut read = Box::pin(pipe.read_at(vec![0; 4], 0));
        let waker = Waker::from(Arc::new(PayloadWaker(|| Endless)));
        let left = catch_unwind(AssertUnwindSafe(|| {
            block_on(async {
                assert!(Pin::new(&mut read).poll(&mut Context::from_waker(&waker)).is_pending());
            });
        }));
        assert!(left.map_err(std::mem::forget).is_ok());
        assert_eq!(block_on(async { ringfile::spawn(async { 7 }).await.unwrap() }), 7);
    });
}

#[test]
fn a_task_ends_though_the_payloads_of_its_panics_panic() {
    struct Both;
    impl Future for Both {
        type Output = ();

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> std::task::Poll<()> {
            std::panic::panic_any(Endless);
        }
    }
    impl Drop for Both {
        fn drop(&mut self) {
            std::panic::panic_any(Endless);
        }
    }
    must_end("tasks beside one whose payloads panic", || {
        let runtime = Runtime::builder().threads(1).build().unwrap();
        // Nobody takes this one's result.
        runtime.spawn(async { drop(ringfile::spawn(Both)) }).join().unwrap();
        let both = runtime.spawn_on(0, || Both);
        let Err(ringfile::runtime::JoinError::Panicked(panic)) = both.join() else {
            unreachable!("it has panicked")
        };
        // Only the payload, so that nothing leaks.
        std::mem::forget(panic.into_payload());
        assert_eq!(runtime.spawn(async { 7 }).join().unwrap(), 7);
        runtime.shutdown();
    });
}
