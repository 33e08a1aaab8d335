//! Callers that do unexpected things: they poll without a wake-up, drop tens of thousands of operations in flight, and
//! call the library from their wakers (F35, F37, F44).

use std::cell::Cell;
use std::future::{Future, IntoFuture};
use std::io::Write;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use crate::support::handles::Handles as _;
use crate::support::{
    Folder, assert_content, content, in_child, in_child_with, is_without_ring, keep, must_end, needs_ring,
    open_on_ring, page_size, poll_once, wait_for, yield_now,
};
use ringfile::{Batch, File, OpenOptions, Pool, Queue, Route, Runtime, block_on, thread_metrics};

const PAGE: usize = 4096;

/// Makes a pipe without data.
fn pipe() -> (File, std::io::PipeWriter) {
    let (theirs, ours) = std::io::pipe().unwrap();
    (File::from(std::fs::File::from(std::os::fd::OwnedFd::from(theirs))), ours)
}

#[test]
fn f35_a_batch_with_merged_reads_may_be_polled_without_having_been_woken() {
    let name = "f35_a_batch_with_merged_reads_may_be_polled_without_having_been_woken";
    // A worker or an I/O thread would panic, so the panics of the whole process are counted.
    if !in_child(name) {
        return;
    }
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(info);
    }));
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 8 * 512));
    let pool = Pool::new(1 << 20);
    let context = &mut Context::from_waker(Waker::noop());
    for route in [Route::Workers, Route::Ring] {
        if route == Route::Ring && is_without_ring() {
            continue;
        }
        let file = OpenOptions::new().read(true).route(route).open_blocking(&path).unwrap();
        for _ in 0..5_000 {
            let mut batch = Batch::new().depth(1).merge_reads(0);
            for i in 0..8 {
                batch.add(file.read_at(pool.get(512).unwrap(), i * 512));
            }
            let mut run = batch.into_future();
            let results = loop {
                if let Poll::Ready(results) = Pin::new(&mut run).poll(context) {
                    break results;
                }
            };
            assert_eq!(results.len(), 8);
            for (i, done) in results.into_iter().enumerate() {
                assert_eq!(done.result.unwrap(), 512);
                assert_content(&done.buffer.unwrap(), i as u64 * 512);
            }
        }
    }
    wait_for("the memory", || pool.metrics().in_use == 0);
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "a thread of the library panicked");
}

/// Returns the process's resident memory, in KiB.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn f37_operations_dropped_in_flight_leave_nothing_on_an_idle_thread() {
    let name = "f37_operations_dropped_in_flight_leave_nothing_on_an_idle_thread";
    // AddressSanitizer keeps freed memory for a while, which is not what this test measures.
    let frees = |command: &mut std::process::Command| _ = command.env("ASAN_OPTIONS", "quarantine_size_mb=1");
    if !in_child_with(name, frees) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let ((used, is_used), (end, ends)) = (mpsc::channel(), mpsc::channel::<()>());
    let idle = std::thread::spawn(move || {
        let (mut queue, file) = (Queue::new(), open_on_ring(&path));
        let read = |queue: &mut Queue| {
            queue.add(file.read_at(Vec::with_capacity(PAGE), 0), 0);
            assert_content(&queue.end().buffer.unwrap(), 0);
        };
        read(&mut queue);
        used.send(()).unwrap();
        ends.recv().unwrap_err();
        read(&mut queue);
    });
    is_used.recv().unwrap();
    let (pipe, _silent) = pipe();
    let context = &mut Context::from_waker(Waker::noop());
    let pool = Pool::new(1 << 20);
    let mut drop_many = |count: usize| {
        for i in 0..count {
            let mut batch = Batch::new();
            batch.add(pipe.read_at(pool.get(16).unwrap(), 0));
            let (mut run, mut read) = (batch.into_future(), Box::pin(pipe.read_at(pool.get(16).unwrap(), 0)));
            assert!(Pin::new(&mut run).poll(context).is_pending());
            assert!(Pin::new(&mut read).poll(context).is_pending());
            drop((run, read));
            if i % 100 == 0 {
                wait_for("the thread that carries them out", || pool.metrics().in_use == 0);
            }
        }
    };
    drop_many(5_000);
    let before = resident();
    drop_many(55_000);
    let grown = resident().saturating_sub(before);
    assert!(grown < 8 << 10, "{grown} KiB more for 55,000 batches and as many futures");
    drop(end);
    idle.join().unwrap();
}

/// A waker whose clone, wake and drop each call `act`.
struct CallsBack<F>(F);

impl<F: Fn() + Send + Sync + 'static> CallsBack<F> {
    const TABLE: RawWakerVTable = RawWakerVTable::new(Self::clone, Self::wake, Self::wake_by_ref, Self::drop);

    fn waker(act: F) -> Waker {
        // SAFETY: the table's functions take a pointer from `Arc::into_raw`, and count its references.
        unsafe { Waker::from_raw(RawWaker::new(Arc::into_raw(Arc::new(Self(act))).cast(), &Self::TABLE)) }
    }

    unsafe fn clone(data: *const ()) -> RawWaker {
        // SAFETY: the caller's reference keeps it alive.
        let it = unsafe { &*data.cast::<Self>() };
        (it.0)();
        // SAFETY: as above; the new waker gets a reference of its own.
        unsafe { Arc::increment_strong_count(data.cast::<Self>()) };
        RawWaker::new(data, &Self::TABLE)
    }

    unsafe fn wake(data: *const ()) {
        // SAFETY: the caller gives its reference away.
        unsafe {
            Self::wake_by_ref(data);
            Self::drop(data);
        }
    }

    unsafe fn wake_by_ref(data: *const ()) {
        // SAFETY: the caller's reference keeps it alive.
        unsafe { ((*data.cast::<Self>()).0)() };
    }

    unsafe fn drop(data: *const ()) {
        // SAFETY: the caller gives its reference away.
        let it = unsafe { Arc::from_raw(data.cast::<Self>()) };
        (it.0)();
    }
}

thread_local! {
    /// Whether a waker's callback is running: the callback must not recurse.
    static CALLS: Cell<bool> = const { Cell::new(false) };
}

fn once_at_a_time(act: impl FnOnce()) {
    if !CALLS.replace(true) {
        act();
        CALLS.set(false);
    }
}

#[test]
fn f44_a_waker_may_wait_for_the_threads_that_carry_its_operation_out() {
    must_end("a waker that reads files by itself", || {
        let folder = Folder::new();
        let path = folder.file("data", &content(0, PAGE));
        let routes = [Route::Workers, Route::Ring];
        for route in routes.into_iter().filter(|&route| route == Route::Workers || !is_without_ring()) {
            let file = OpenOptions::new().read(true).route(route).open_blocking(&path).unwrap();
            for of_batch in [false, true] {
                let (theirs, ours) = std::io::pipe().unwrap();
                let theirs = std::fs::File::from(std::os::fd::OwnedFd::from(theirs));
                let pipe = OpenOptions::new().route(route).from_std(theirs).unwrap();
                let file = file.clone();
                // Ends the operation itself, then waits for a thread that may be ending it. A waker that an I/O thread
                // calls must not do that, as the crate's documentation says.
                let here = std::thread::current().id();
                let waker = CallsBack::waker(move || {
                    if std::thread::current().id() != here {
                        return;
                    }
                    once_at_a_time(|| {
                        (&ours).write_all(b"x").unwrap();
                        for _ in 0..20 {
                            let got = futures::executor::block_on(file.read_at(vec![0; PAGE], 0)).unwrap();
                            assert_content(&got, 0);
                        }
                    });
                });
                let mut batch = Batch::new();
                batch.add(pipe.read_at(Vec::with_capacity(1), 0));
                let mut run = batch.into_future();
                let mut read = Box::pin(pipe.read_at(Vec::with_capacity(1), 0));
                let mut poll = |context: &mut Context<'_>| match of_batch {
                    true => Pin::new(&mut run).poll(context).map(|mut results| {
                        assert_eq!(results.remove(0).result.unwrap(), 1);
                    }),
                    false => Pin::new(&mut read).poll(context).map(|got| assert_eq!(got.unwrap().len(), 1)),
                };
                assert!(poll(&mut Context::from_waker(Waker::noop())).is_pending());
                wait_for("the operation", || poll(&mut Context::from_waker(&waker)).is_ready());
            }
        }
    });
}

#[test]
fn f44_a_waker_may_use_its_own_thread_s_driver() {
    let name = "f44_a_waker_may_use_its_own_thread_s_driver";
    if !needs_ring(name) {
        return;
    }
    must_end("a waker that uses the driver", || {
        let folder = Folder::new();
        let file = open_on_ring(folder.file("data", &content(0, PAGE)));
        let (pipe, mut writer) = pipe();
        let other: &'static File = keep(file.clone());
        block_on(async {
            file.read_at(vec![0; PAGE], 0).await.unwrap();
            let calls = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&calls);
            let waker = CallsBack::waker(move || {
                once_at_a_time(|| {
                    count.fetch_add(1, Ordering::Relaxed);
                    // A driver that is borrowed further up the stack shows no counts.
                    let before = thread_metrics();
                    assert_ne!(before.ops, 0, "the driver is borrowed");
                    let mut read = Box::pin(other.read_at(vec![0; PAGE], 0));
                    assert!(Pin::new(&mut read).poll(&mut Context::from_waker(Waker::noop())).is_pending());
                    drop(read);
                    assert_eq!((thread_metrics() - before).cancelled, 1, "it was not on this thread's ring");
                });
            });
            let mut read = Box::pin(pipe.read_at(Vec::with_capacity(8), 0));
            let context = &mut Context::from_waker(&waker);
            assert!(Pin::new(&mut read).poll(context).is_pending());
            assert!(poll_once(&mut read).await.is_pending());
            assert!(Pin::new(&mut read).poll(context).is_pending());
            writer.write_all(b"x").unwrap();
            while Pin::new(&mut read).poll(context).is_pending() {
                yield_now().await;
            }
            assert!(calls.load(Ordering::Relaxed) >= 4);
        });
    });
}

#[test]
fn f44_a_waker_of_a_future_that_moved_may_poll_another_of_that_thread() {
    let name = "f44_a_waker_of_a_future_that_moved_may_poll_another_of_that_thread";
    if !needs_ring(name) {
        return;
    }
    must_end("a waker that polls another future", || {
        let ((sender, futures), (end, ends)) = (mpsc::channel(), mpsc::channel::<()>());
        let (pipe, mut writer) = pipe();
        let pipe: &'static File = keep(pipe);
        let owner = std::thread::spawn(move || {
            block_on(async {
                for _ in 0..2 {
                    let mut read = Box::pin(pipe.read_at(Vec::with_capacity(1), 0));
                    assert!(poll_once(&mut read).await.is_pending());
                    sender.send(read).unwrap();
                }
                while ends.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                    yield_now().await;
                }
            });
        });
        let (mut read, other) = (futures.recv().unwrap(), futures.recv().unwrap());
        let other = std::sync::Mutex::new(other);
        let waker = CallsBack::waker(move || {
            once_at_a_time(|| {
                let context = &mut Context::from_waker(Waker::noop());
                let _ = Pin::new(&mut *other.lock().unwrap()).poll(context).is_pending();
            });
        });
        let context = &mut Context::from_waker(&waker);
        assert!(Pin::new(&mut read).poll(context).is_pending());
        writer.write_all(b"xx").unwrap();
        wait_for("the read", || Pin::new(&mut read).poll(context).is_ready());
        drop(waker);
        drop(end);
        owner.join().unwrap();
    });
}

#[test]
fn f44_a_waker_of_a_task_s_handle_may_wait_for_that_task_s_thread() {
    must_end("a waker that waits for a task", || {
        let runtime = Arc::new(Runtime::builder().threads(1).build().unwrap());
        let (end, ends) = task();
        let mut handle = runtime.spawn(ends);
        assert!(Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let (spawner, end) = (Arc::clone(&runtime), std::sync::Mutex::new(Some(end)));
        let waker = CallsBack::waker(move || {
            once_at_a_time(|| {
                if let Some(end) = end.lock().unwrap().take() {
                    drop(end);
                    // The first task ends before this one begins.
                    spawner.spawn(async { yield_now().await }).join().unwrap();
                    spawner.spawn(async {}).join().unwrap();
                }
            });
        });
        wait_for("the task", || Pin::new(&mut handle).poll(&mut Context::from_waker(&waker)).is_ready());
    });
}

/// Returns a future that becomes ready when the sender is dropped.
fn task() -> (futures::channel::oneshot::Sender<()>, impl Future<Output = ()> + Send) {
    let (sender, receiver) = futures::channel::oneshot::channel();
    (sender, async move {
        let _ = receiver.await;
    })
}

#[test]
fn a_future_that_a_waker_polls_while_its_thread_leaves_a_loop_is_carried_out() {
    let name = "a_future_that_a_waker_polls_while_its_thread_leaves_a_loop_is_carried_out";
    if !needs_ring(name) {
        return;
    }
    must_end("a future polled at the end of a loop", || {
        let folder = Folder::new();
        let file = open_on_ring(folder.file("data", &content(0, PAGE)));
        let file: &'static File = keep(file);
        let pool = Pool::new(page_size());
        let ((first, _silent), (second, _silent_too)) = (pipe(), pipe());
        let (mut queue, mut reads) = (Queue::new(), Queue::new());
        reads.start(&first, Vec::with_capacity(1), 0);
        queue.add(second.read_at(pool.get(page_size()).unwrap(), 0), 0);
        queue.submit();
        let begun = Arc::new(std::sync::Mutex::new(None));
        let slot = Arc::clone(&begun);
        let waker = CallsBack::waker(move || {
            once_at_a_time(|| {
                let mut read = Box::pin(file.read_at(vec![0; PAGE], 0));
                assert!(Pin::new(&mut read).poll(&mut Context::from_waker(Waker::noop())).is_pending());
                *slot.lock().unwrap() = Some(read);
            });
        });
        let mut get = Box::pin(pool.get_async(page_size()));
        CALLS.set(true);
        assert!(get.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        CALLS.set(false);
        // At its end the loop waits for the queue's operation, and the memory that comes back wakes the waiting `get`.
        block_on(async { drop(queue) });
        CALLS.set(true);
        assert!(begun.lock().unwrap().is_some(), "the memory came back in the loop");
        reads.submit();
        let read = begun.lock().unwrap().take().unwrap();
        assert_content(&futures::executor::block_on(read).unwrap(), 0);
    });
}
