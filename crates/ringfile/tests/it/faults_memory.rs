//! Pool memory that safe code tries to get twice, and callbacks that call the library: `Bytes` of other owners (F33),
//! forks (F38), subscribers of `tracing` (F40), wakers (F44), huge pages that the kernel refuses (F67). F34 needs the inside of
//! a block: `src/memory/block.rs`.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use crate::support;
use crate::support::hugetlb::HugePageLimit;
use crate::support::{
    Folder, assert_content, assert_passed, content, fork, in_child_with, is_child, is_without_ring, must_end,
    needs_ring, open_on_ring, page_size, ring_options, skip,
};
use bytes::Bytes;
use ringfile::buf::{GetBuffer, HugePages, PoolBuilder, PoolError};
use ringfile::{Batch, Buffer, File, Pool, RegisteredMemory, Route, WhenFull, block_on, thread_metrics};

const PAGE: usize = 4096;

/// Returns a buffer of one page, full of `byte`.
fn page(pool: &Pool, byte: u8) -> Buffer {
    let mut buffer = pool.get(PAGE).unwrap();
    buffer.resize(PAGE, byte);
    buffer
}

/// An owner that shares its memory with the user.
struct Shared<T>(Arc<T>);

impl<T: AsRef<[u8]>> AsRef<[u8]> for Shared<T> {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

#[test]
fn f33_bytes_of_a_foreign_owner_come_back_untouched() {
    let pool = Pool::new(1 << 20);
    let buffer = Arc::new(page(&pool, 1));
    let foreign = Bytes::from_owner(Shared(Arc::clone(&buffer)));
    let address = foreign.as_ptr();
    let foreign = pool.thaw(foreign).unwrap_err();
    assert_eq!((foreign.as_ptr(), foreign.len()), (address, PAGE));
    assert_eq!(Arc::strong_count(&buffer), 2, "their owner is there still");
    let buffer = Arc::try_unwrap(buffer).unwrap_err();
    drop(foreign);
    let mut buffer = Arc::try_unwrap(buffer).unwrap();
    buffer.fill(2);

    // An owner that is a buffer itself.
    let foreign = pool.thaw(Bytes::from_owner(buffer)).unwrap_err();
    assert_eq!((foreign.as_ptr(), foreign.len(), foreign[0]), (address, PAGE, 2));
    drop(foreign);
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn f33_a_buffer_behind_a_foreign_owner_is_not_taken_for_frozen_parts_beside_it() {
    let pool = Pool::new(1 << 20);
    let mut middle = pool.get(3 * PAGE).unwrap();
    middle.resize(3 * PAGE, 3);
    let before = middle.split_to(PAGE);
    let after = middle.split_off(PAGE);
    let frozen = [before.freeze(), after.freeze()];
    let middle = Arc::new(middle);
    let foreign = Bytes::from_owner(Shared(Arc::clone(&middle)));
    let foreign = pool.thaw(foreign).unwrap_err();
    assert_eq!(Arc::strong_count(&middle), 2);
    drop(foreign);
    Arc::try_unwrap(middle).unwrap().fill(4);
    for bytes in frozen {
        let address = bytes.as_ptr();
        let buffer = pool.thaw(bytes).unwrap();
        assert_eq!((buffer.as_ptr(), buffer.len(), buffer[0]), (address, PAGE, 3));
    }
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn f33_frozen_bytes_behind_a_foreign_owner_are_never_writable_beside_it() {
    let pool = Pool::new(1 << 20);
    let frozen = page(&pool, 5).freeze();
    let foreign = Bytes::from_owner(Shared(Arc::new(frozen.clone())));
    let view = pool.thaw(foreign).unwrap_err();
    assert_eq!((view.as_ptr(), view.len()), (frozen.as_ptr(), PAGE));
    // Each keeps the other from becoming writable.
    let frozen = pool.thaw(frozen).unwrap_err();
    let view = pool.thaw(view).unwrap_err();
    drop(frozen);
    assert_eq!(pool.thaw(view).unwrap()[..], [5; PAGE]);
    assert_eq!(pool.metrics().in_use, 0);
}

/// Uses memory as a thread or a child may: on the slow path, which takes a lock.
fn use_memory(pool: &Pool, lent: &RegisteredMemory) {
    let mut buffer = pool.get(PAGE).unwrap();
    buffer.resize(PAGE, 1);
    let rest = buffer.split_off(100);
    let bytes = buffer.freeze();
    drop((pool.metrics(), rest));
    drop(pool.thaw(bytes).unwrap());
    // A different size class each time, of which nothing is cached.
    drop(pool.get(64 << 10).unwrap());
    if let Ok(part) = lent.lend(..PAGE) {
        drop((lent.lent(), part));
    }
    drop((Pool::new(PAGE).get(PAGE).unwrap(), RegisteredMemory::new(vec![0; PAGE]).lend(..).unwrap()));
}

#[test]
fn f38_a_child_finds_no_lock_of_memory_taken() {
    let name = "f38_a_child_finds_no_lock_of_memory_taken";
    if !in_child_with(name, |_| ()) {
        return;
    }
    let pool = Pool::new(1 << 20);
    let lent = RegisteredMemory::new(vec![0; 1 << 20]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    use_memory(&pool, &lent);
                }
            });
        }
        for round in 0..200 {
            // SAFETY: the child has only this thread, and the C library's allocator supports that; it ends with
            // `_exit`, so that no destructor of the parent runs twice.
            let child = unsafe { libc::fork() };
            if child == 0 {
                support::end_if_it_hangs();
                use_memory(&pool, &lent);
                // SAFETY: as above.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: one valid number to write to.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            if status != 0 {
                over.store(true, Ordering::Relaxed);
                panic!("the child of round {round} failed, or hung (14): {status}");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

static MEDDLES_WITH: OnceLock<(Pool, Vec<File>)> = OnceLock::new();
static EVENTS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MEDDLING: Cell<bool> = const { Cell::new(false) };
}

/// Does what a subscriber of `tracing` may do with each event: reads a file on every route that this thread has, and
/// takes memory from the pool.
fn meddle() {
    let Some((pool, files)) = MEDDLES_WITH.get() else { return };
    // A thread that runs tasks may not block, so these reads are polled once and dropped in flight.
    for file in files {
        let mut read = pin!(file.read_at(pool.get(PAGE).unwrap(), 0).into_future());
        let _ = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    let whole = || {
        for file in files {
            let mut batch = Batch::new();
            batch.add(file.read_at(pool.get(PAGE).unwrap(), 0));
            for done in batch.run() {
                assert_eq!(done.result.unwrap(), PAGE);
            }
        }
    };
    // Ignores events of the new thread: before Linux 6.13 each new thread has one, and would start another thread.
    let whole = || {
        MEDDLING.set(true);
        whole();
    };
    std::thread::scope(|scope| scope.spawn(whole).join().unwrap());
    drop((pool.get(3 * PAGE).unwrap(), pool.metrics(), thread_metrics(), ringfile::metrics::ring_features()));
    drop(
        ringfile::OpenOptions::new()
            .read(true)
            .direct(true)
            .buffered_fallback(true)
            .open_blocking("/proc/self/exe"),
    );
}

/// Reads a file while a subscriber does as [`meddle`]; returns how many events there were.
fn read_while_a_subscriber_meddles(folder: &Folder) -> usize {
    let path = folder.path().join("data");
    let pool = Pool::new(16 << 20);
    let files = [Route::Auto, Route::Inline, Route::Workers, Route::Ring].map(|route| {
        ring_options()
            .read(true)
            .route(if is_without_ring() { Route::Auto } else { route })
            .open_blocking(&path)
            .unwrap()
    });
    assert!(MEDDLES_WITH.set((pool.clone(), files.into())).is_ok());
    support::on_events(|event| {
        if event.metadata().target().starts_with("ringfile") {
            EVENTS.fetch_add(1, Ordering::SeqCst);
            if !MEDDLING.replace(true) {
                meddle();
                MEDDLING.set(false);
            }
        }
    });
    must_end("reading while a subscriber does I/O", move || {
        let file = open_on_ring(&path);
        let plain = File::open_blocking(&path).unwrap();
        block_on(async {
            for file in [&file, &plain] {
                assert_content(&file.read_exact_at(pool.get(2 * PAGE).unwrap(), 0).await.unwrap(), 0);
            }
        });
        // From a thread without a loop: an I/O thread or a worker carries out the read.
        let mut read = pin!(file.read_exact_at(pool.get(PAGE).unwrap(), 0).into_future());
        futures::executor::block_on(async { assert_content(&read.as_mut().await.unwrap(), 0) });
        meddle();
    });
    EVENTS.load(Ordering::SeqCst)
}

#[test]
fn f40_a_subscriber_does_io_and_takes_memory_when_registration_is_refused() {
    use std::os::unix::process::CommandExt;
    let name = "f40_a_subscriber_does_io_and_takes_memory_when_registration_is_refused";
    if !needs_ring(name) {
        return;
    }
    let unprivileged = |command: &mut std::process::Command| {
        if support::is_root() {
            // A user that no other process has: locked memory is counted over all processes of a user.
            command.uid(170_000 + std::process::id()).gid(65_534);
        }
    };
    if !in_child_with(name, unprivileged) {
        return;
    }
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = Some(512 << 10);
    if getrlimit(Resource::Memlock).maximum.is_some_and(|most| Some(most) < limit) {
        // 64 KiB before Linux 5.16, which also charges rings to this limit.
        return support::skip(name, "RLIMIT_MEMLOCK leaves no room for rings");
    }
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).unwrap();
    let folder = Folder::new();
    folder.file("data", &content(0, 16 * PAGE));
    assert!(read_while_a_subscriber_meddles(&folder) > 0);
}

#[test]
fn f40_a_subscriber_does_io_when_the_environment_makes_no_sense() {
    let name = "f40_a_subscriber_does_io_when_the_environment_makes_no_sense";
    if !is_child(name) && is_without_ring() {
        return support::skip(name, "it sets RINGFILE_DISABLE to something else");
    }
    if in_child_with(name, |command| {
        command.env("RINGFILE_DISABLE", "nonsense");
    }) {
        let folder = Folder::new();
        folder.file("data", &content(0, 16 * PAGE));
        assert!(read_while_a_subscriber_meddles(&folder) > 0);
    }
}

/// A waker whose clone, wake and drop all call the pool.
struct Callback {
    pool: Pool,
    calls: AtomicUsize,
}

impl Callback {
    fn waker(self: &Arc<Self>) -> Waker {
        // SAFETY: the pointer is that of an `Arc`, counted by the functions.
        unsafe { Waker::from_raw(Self::raw(Arc::clone(self))) }
    }

    fn raw(this: Arc<Self>) -> RawWaker {
        static TABLE: RawWakerVTable =
            RawWakerVTable::new(Callback::clone, Callback::wake, Callback::wake_by_ref, Callback::gone);
        RawWaker::new(Arc::into_raw(this).cast(), &TABLE)
    }

    fn call(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        drop(self.pool.metrics());
        // Joins the pool's queue, and leaves it again.
        let mut get = pin!(self.pool.get_async(PAGE));
        let _ = get.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }

    unsafe fn clone(this: *const ()) -> RawWaker {
        // SAFETY: of `raw`; the reference is not given up.
        let this = std::mem::ManuallyDrop::new(unsafe { Arc::from_raw(this.cast::<Self>()) });
        this.call();
        Self::raw(Arc::clone(&this))
    }

    unsafe fn wake(this: *const ()) {
        // SAFETY: of `raw`.
        unsafe { Arc::from_raw(this.cast::<Self>()) }.call();
    }

    unsafe fn wake_by_ref(this: *const ()) {
        // SAFETY: of `raw`; the reference is not given up.
        std::mem::ManuallyDrop::new(unsafe { Arc::from_raw(this.cast::<Self>()) }).call();
    }

    unsafe fn gone(this: *const ()) {
        // SAFETY: of `raw`.
        unsafe { Arc::from_raw(this.cast::<Self>()) }.call();
    }
}

#[test]
fn f44_wakers_of_tasks_that_wait_for_memory_may_use_the_pool() {
    must_end("waiting for memory with wakers that use the pool", || {
        let page = page_size();
        let pool = Pool::new(page);
        let callback = |calls| Arc::new(Callback { pool: pool.clone(), calls: AtomicUsize::new(calls) });
        let (first, second) = (callback(0), callback(0));
        let poll = |get: &mut Pin<&mut GetBuffer<'_>>, callback: &Arc<Callback>| {
            get.as_mut().poll(&mut Context::from_waker(&callback.waker()))
        };
        let only = pool.get(page).unwrap();
        {
            let (mut one, mut two) = (pin!(pool.get_async(page)), pin!(pool.get_async(page)));
            assert!(poll(&mut one, &first).is_pending());
            assert!(poll(&mut two, &first).is_pending());
            // Another waker replaces the previous one.
            assert!(poll(&mut one, &second).is_pending());
            drop(only);
            let Poll::Ready(Ok(buffer)) = poll(&mut one, &second) else { panic!("the first is served") };
            assert!(poll(&mut two, &second).is_pending());
            drop(buffer);
        }
        assert!(pool.get(page).is_ok(), "the memory meant for the dropped future is available again");
        assert!(first.calls.load(Ordering::SeqCst) > 0 && second.calls.load(Ordering::SeqCst) > 0);
    });
}

#[test]
fn f44_a_waker_that_panics_does_not_keep_others_from_being_woken() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    struct Counts(AtomicUsize);
    impl std::task::Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let page = page_size();
    let (pool, counts) = (Pool::new(2 * page), Arc::new(Counts(AtomicUsize::new(0))));
    let whole = pool.get(2 * page).unwrap();
    let (mut one, mut two) = (pin!(pool.get_async(page)), pin!(pool.get_async(page)));
    let (panics, wakes) = (Waker::from(Arc::new(Panics)), Waker::from(Arc::clone(&counts)));
    assert!(one.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
    assert!(two.as_mut().poll(&mut Context::from_waker(&wakes)).is_pending());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(whole))).is_err());
    assert_eq!(counts.0.load(Ordering::SeqCst), 1, "the second was served too");
    assert!(two.as_mut().poll(&mut Context::from_waker(&wakes)).is_ready());
}

/// Runs `check` in a child that may use `allowed` of eight huge pages. It gets a builder of a pool that needs them all, and the
/// size of one.
fn with_huge_pages(name: &str, allowed: usize, check: impl FnOnce(PoolBuilder, usize)) {
    let limit = match HugePageLimit::new(8, allowed) {
        Ok(limit) => limit,
        Err(why) => return skip(name, why),
    };
    assert_passed(fork(|| {
        limit.enter();
        check(Pool::builder().capacity(8 * limit.page).huge_pages(HugePages::Require), limit.page);
    }));
}

fn assert_names_the_limit(error: &PoolError) {
    assert!(matches!(error, PoolError::NoHugePages { errno: libc::ENOMEM, .. }), "{error:?}");
    assert!(error.to_string().contains("control group"), "{error}");
}

#[test]
fn f67_a_pool_whose_huge_pages_are_refused_is_not_built() {
    let name = "f67_a_pool_whose_huge_pages_are_refused_is_not_built";
    with_huge_pages(name, 0, |pool, _| assert_names_the_limit(&pool.build().unwrap_err()));
}

#[test]
fn f67_memory_beyond_a_limit_of_huge_pages_is_an_error_and_the_rest_can_be_used() {
    let name = "f67_memory_beyond_a_limit_of_huge_pages_is_an_error_and_the_rest_can_be_used";
    for (allowed, when_full) in
        [(1, WhenFull::Error), (3, WhenFull::Error), (3, WhenFull::Outside { limit: 1 << 30 })]
    {
        with_huge_pages(name, allowed, |pool, page| {
            let pool = pool.when_full(when_full).build().unwrap();
            for _ in 0..2 {
                let mut buffers = Vec::new();
                let error = loop {
                    match pool.get(page) {
                        Ok(mut buffer) => {
                            buffer.resize(page, 7);
                            buffers.push(buffer);
                        }
                        Err(error) => break error,
                    }
                };
                assert_names_the_limit(&error);
                assert_eq!(buffers.len(), allowed);
                assert!(buffers.iter().flat_map(|buffer| buffer.iter()).all(|&byte| byte == 7));
            }
            assert_names_the_limit(&pool.get(page * (allowed + 1)).unwrap_err());
            assert_eq!(pool.metrics().in_use, 0);
        });
    }
}

#[test]
fn f67_huge_pages_within_a_limit_are_zero_and_used_as_before() {
    let name = "f67_huge_pages_within_a_limit_are_zero_and_used_as_before";
    with_huge_pages(name, 8, |pool, page| {
        let pool = pool.build().unwrap();
        let mut buffer = pool.get(8 * page).unwrap();
        buffer.set_len(8 * page);
        assert!(buffer.iter().all(|&byte| byte == 0));
        assert!(matches!(pool.get(1), Err(PoolError::Full { .. })));
    });
}
