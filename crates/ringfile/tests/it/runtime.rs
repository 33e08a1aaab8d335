//! The runtime as a user sees it: tasks, handles, threads, and futures that move between threads.

#![allow(clippy::async_yields_async, reason = "what waits is handed out on purpose")]

use std::cell::RefCell;
use std::future::Future;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::support;
use crate::support::{
    TempPath, comes_true, keep, must_end, needs_ring, open_on_ring, pipe, poll_once, ring_options, sent,
    yields,
};
use ringfile::runtime::{JoinError, TaskRun};
use ringfile::{File, OpenOptions, Pool, Runtime, block_on, spawn, thread_metrics};

fn file_of(name: &str, content: &[u8]) -> (TempPath, File) {
    let path = TempPath::on_disk(name);
    std::fs::write(&path, content).unwrap();
    let file = open_on_ring(&path);
    (path, file)
}

/// Makes a file that exists as long as the program, so that futures on it are `'static`.
fn file_for_good(name: &str, content: &[u8]) -> (TempPath, &'static File) {
    let (path, file) = file_of(name, content);
    (path, keep(file))
}

/// Is never ready, and counts its drops.
struct Never(Arc<AtomicUsize>);

impl Future for Never {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for Never {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn block_on_returns_the_result_and_runs_spawned_tasks() {
    let result = block_on(async {
        let shared = Rc::new(20);
        let mine = Rc::clone(&shared);
        spawn(async move { *mine + 1 }).await.unwrap() + spawn(async move { *shared + 1 }).await.unwrap()
    });
    assert_eq!(result, 42);
}

#[test]
fn block_on_can_be_called_again_and_again() {
    let (_path, file) = file_of("again", b"0123456789");
    for at in 0..10 {
        let byte = block_on(file.read_at(Vec::with_capacity(1), at)).unwrap();
        assert_eq!(byte, [b'0' + at as u8]);
    }
}

#[test]
fn block_on_drops_tasks_that_have_not_ended() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let handle = block_on(async {
        let handle = spawn(Never(Arc::clone(&dropped)));
        drop(spawn(Never(Arc::clone(&dropped))));
        yields(1).await;
        // Never polled.
        drop(spawn(Never(Arc::clone(&dropped))));
        handle
    });
    assert_eq!(dropped.load(Ordering::SeqCst), 3);
    assert!(handle.is_finished());
    assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
}

#[test]
fn a_panic_is_the_tasks_error_and_the_loop_continues() {
    block_on(async {
        let failed = spawn(async { panic!("on purpose") }).await;
        let Err(JoinError::Panicked(panic)) = failed else { panic!("{failed:?}") };
        assert_eq!(panic.message(), "on purpose");
        assert_eq!(panic.into_payload().downcast_ref::<&str>(), Some(&"on purpose"));
        assert_eq!(spawn(async { 1 }).await.unwrap(), 1);
    });
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let error = runtime.spawn(async { panic!("there") }).join().unwrap_err();
    assert_eq!(error.to_string(), "the task panicked: there");
    let error = runtime.spawn_on(0, || -> std::future::Ready<()> { panic!("in make") }).join().unwrap_err();
    assert_eq!(error.to_string(), "the task panicked: in make");
    assert_eq!(runtime.spawn(async { 2 }).join().unwrap(), 2);
}

/// Panics when dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a destructor");
    }
}

#[test]
fn a_panicking_destructor_takes_no_thread_down() {
    must_end("a_panicking_destructor_takes_no_thread_down", || {
        let runtime = Runtime::builder().threads(1).build().unwrap();
        // In the future, in the result that nobody takes, and in a task that is dropped with its loop.
        let error = runtime.spawn(async { poll_fn_once(Bomb).await }).join().unwrap_err();
        assert!(matches!(error, JoinError::Panicked(_)), "{error:?}");
        // If the task has ended already, this drops the result with the handle.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(runtime.spawn(async { Bomb }))));
        assert_eq!(runtime.spawn(async { 3 }).join().unwrap(), 3);
        let (started, starts) = mpsc::channel();
        let bomb = runtime.spawn(async move {
            let _bomb = Bomb;
            started.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        let dropped = Arc::new(AtomicUsize::new(0));
        let other = runtime.spawn(Never(Arc::clone(&dropped)));
        starts.recv().unwrap();
        drop(runtime);
        assert!(matches!(bomb.join(), Err(JoinError::Cancelled)));
        assert!(matches!(other.join(), Err(JoinError::Cancelled)));
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    });
}

/// Returns a future that ends at once, and whose destructor is that of `held`.
fn poll_fn_once<T>(held: T) -> impl Future<Output = ()> {
    std::future::poll_fn(move |_| {
        let _ = &held;
        Poll::Ready(())
    })
}

#[test]
fn join_on_a_ringfile_thread_would_block() {
    block_on(async {
        let handle = spawn(async { 1 });
        assert!(matches!(handle.join(), Err(JoinError::WouldBlock)));
    });
}

#[test]
fn a_task_continues_without_its_handle() {
    let done = Arc::new(AtomicBool::new(false));
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let flag = Arc::clone(&done);
    drop(runtime.spawn(async move {
        yields(3).await;
        flag.store(true, Ordering::SeqCst);
    }));
    runtime.shutdown();
    assert!(done.load(Ordering::SeqCst));
}

#[test]
fn handles_are_awaited_on_other_threads() {
    let runtime = Runtime::builder().threads(2).build().unwrap();
    let (go, goes) = sent::<u32>();
    let first = runtime.spawn_on(0, move || goes);
    let second = runtime.spawn_on(1, move || async move { first.await.unwrap() + 1 });
    assert!(!second.is_finished());
    go.send(1);
    assert_eq!(second.join().unwrap(), 2);
}

#[test]
fn a_runtime_spreads_tasks_and_pins_its_threads() {
    let runtime = Runtime::builder().threads(3).pin(true).build().unwrap();
    assert_eq!(runtime.threads(), 3);
    let name = || std::thread::current().name().unwrap().to_owned();
    let mut names: Vec<String> =
        (0..3).map(|_| runtime.spawn(async move { name() }).join().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["ringfile-0", "ringfile-1", "ringfile-2"]);
    let cpus = runtime
        .spawn_on(4, move || async move {
            assert_eq!(name(), "ringfile-1");
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
        })
        .join()
        .unwrap();
    assert!(cpus.parse::<usize>().is_ok(), "one core, not {cpus}");
}

#[test]
fn tasks_that_are_not_send_run_where_they_were_made() {
    let runtime = Runtime::builder().threads(2).build().unwrap();
    let (_path, file) = file_of("not-send", &[5; 4096]);
    let handle = runtime.spawn_on(1, move || {
        let sum = Rc::new(std::cell::Cell::new(0));
        async move {
            let parts = (0..4).map(|part| {
                let (file, sum) = (file.clone(), Rc::clone(&sum));
                spawn(async move {
                    let bytes = file.read_at(Vec::with_capacity(1024), part * 1024).await.unwrap();
                    sum.set(sum.get() + bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>());
                })
            });
            for part in parts.collect::<Vec<_>>() {
                part.await.unwrap();
            }
            sum.get()
        }
    });
    assert_eq!(handle.join().unwrap(), 5 * 4096);
}

#[test]
fn shutdown_waits_for_every_task_and_its_io() {
    must_end("shutdown_waits_for_every_task_and_its_io", || {
        let path = TempPath::on_disk("drains");
        let file = ring_options().write(true).create(true).truncate(true).open_blocking(&path).unwrap();
        let runtime = Runtime::builder().threads(2).build().unwrap();
        for index in 0..64_u64 {
            let file = file.clone();
            drop(runtime.spawn(async move {
                yields(index as usize % 5).await;
                file.write_at(vec![index as u8 + 1; 512], index * 512).await.unwrap();
                let file = file.clone();
                // Started by a task that does not await it.
                drop(spawn(async move {
                    file.write_at(vec![index as u8 + 1; 512], (64 + index) * 512).await.unwrap();
                }));
            }));
        }
        runtime.shutdown();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 128 * 512);
        for (index, block) in bytes.chunks(512).enumerate() {
            assert!(block.iter().all(|&byte| byte == index as u8 % 64 + 1), "block {index}");
        }
    });
}

/// Repeated, because a message that arrives just before the loop goes to sleep is the hard case.
#[test]
fn dropping_a_runtime_does_not_wait_for_tasks_that_never_end() {
    must_end("dropping_a_runtime_does_not_wait_for_tasks_that_never_end", || {
        let dropped = Arc::new(AtomicUsize::new(0));
        for round in 0..200 {
            let runtime = Runtime::builder().threads(2).build().unwrap();
            for _ in 0..4 {
                drop(runtime.spawn(Never(Arc::clone(&dropped))));
            }
            // With a task that is always ready, too.
            drop(runtime.spawn(async { yields(usize::MAX).await }));
            if round % 2 == 0 {
                runtime.spawn(async {}).join().unwrap();
            }
            drop(runtime);
        }
        assert_eq!(dropped.load(Ordering::SeqCst), 800);
    });
}

#[test]
fn a_task_that_is_given_to_a_runtime_just_before_it_is_dropped_is_not_polled_after() {
    // The drop may be late to begin, but hardly five times.
    assert!((0..5).any(|_| polls_after_a_drop() == 0), "polled in each of five rounds");
}

/// Gives a busy thread a task, and drops its runtime before the thread looks. Returns how often the task was polled.
fn polls_after_a_drop() -> usize {
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let (begins, begun) = mpsc::channel();
    let (ends, end) = mpsc::channel();
    drop(runtime.spawn(async move {
        begins.send(()).unwrap();
        end.recv().unwrap();
    }));
    begun.recv().unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&polls);
    drop(runtime.spawn(async move {
        counted.fetch_add(1, Ordering::SeqCst);
    }));
    let drops = std::thread::spawn(move || drop(runtime));
    // Time in which the other thread must not return; threads are not simulated.
    std::thread::sleep(Duration::from_millis(50));
    ends.send(()).unwrap();
    drops.join().unwrap();
    polls.load(Ordering::SeqCst)
}

#[test]
fn dropping_a_runtime_cancels_reads_that_would_never_end() {
    if !needs_ring("dropping_a_runtime_cancels_reads_that_would_never_end") {
        return;
    }
    must_end("dropping_a_runtime_cancels_reads_that_would_never_end", || {
        let pool = Pool::new(1 << 20);
        let (file, writer) = pipe();
        let runtime = Runtime::builder().threads(1).build().unwrap();
        let (started, starts) = mpsc::channel();
        let buffer = pool.get(4096).unwrap();
        let handle = runtime.spawn(async move {
            let mut read = Box::pin(file.read_at(buffer, 0));
            assert!(poll_once(&mut read).await.is_pending());
            started.send(()).unwrap();
            read.await.map(|buffer| buffer.len())
        });
        starts.recv().unwrap();
        drop(runtime);
        assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
        assert_eq!(pool.metrics().in_use, 0, "the buffer came back");
        drop(writer);
    });
}

#[test]
fn a_small_ring_takes_any_number_of_operations() {
    must_end("a_small_ring_takes_any_number_of_operations", || {
        let content: Vec<u8> = (0..1000_u32).flat_map(u32::to_le_bytes).collect();
        let (_path, file) = file_of("small-ring", &content);
        let runtime = Runtime::builder().threads(1).entries(8).build().unwrap();
        let handle = runtime.spawn(async move {
            let reads = (0..1000).map(|at| file.read_exact_at(Vec::with_capacity(4), at * 4));
            for (at, read) in support::all(reads.collect()).await.into_iter().enumerate() {
                assert_eq!(read.unwrap(), (at as u32).to_le_bytes());
            }
        });
        handle.join().unwrap();
    });
}

/// The queue is full of operations that never end when the loop wants to arm its wake-up.
#[test]
fn a_thread_whose_queue_was_full_is_woken_by_others() {
    if !needs_ring("a_thread_whose_queue_was_full_is_woken_by_others") {
        return;
    }
    must_end("a_thread_whose_queue_was_full_is_woken_by_others", || {
        let runtime = Runtime::builder().threads(1).entries(8).build().unwrap();
        let (file, mut writer) = pipe();
        let (go, goes) = sent::<()>();
        let (started, starts) = mpsc::channel();
        let handle = runtime.spawn(async move {
            let mut reads: Vec<_> =
                (0..8).map(|_| Box::pin(file.read_at(Vec::with_capacity(1), 0))).collect();
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
            started.send(()).unwrap();
            goes.await;
            writer.write_all(b"12345678").unwrap();
            support::all(reads).await.into_iter().map(|read| read.unwrap()[0]).map(u32::from).sum::<u32>()
        });
        starts.recv().unwrap();
        // Time for the runtime's thread to sleep; threads are not simulated.
        std::thread::sleep(Duration::from_millis(50));
        go.send(());
        assert_eq!(handle.join().unwrap(), (b'1'..=b'8').map(u32::from).sum::<u32>());
    });
}

#[test]
fn a_kernel_thread_submits_if_requested() {
    if !needs_ring("a_kernel_thread_submits_if_requested") {
        return;
    }
    must_end("a_kernel_thread_submits_if_requested", || {
        let content: Vec<u8> = (0..64).collect();
        let (_path, file) = file_of("sqpoll", &content);
        let runtime = Runtime::builder().threads(1).sqpoll(Some(Duration::from_millis(5))).build().unwrap();
        let (go, goes) = sent::<()>();
        let handle = runtime.spawn(async move {
            for at in 0..64 {
                let byte = file.read_at(Vec::with_capacity(1), at).await.unwrap();
                assert_eq!(byte, [at as u8]);
            }
            let features = ringfile::metrics::ring_features().unwrap();
            // Takes long enough for the kernel's thread to go to sleep.
            goes.await;
            for at in 0..64 {
                let byte = file.read_at(Vec::with_capacity(1), at).await.unwrap();
                assert_eq!(byte, [at as u8]);
            }
            features
        });
        // Time for the kernel's thread to sleep, which is not simulated.
        std::thread::sleep(Duration::from_millis(50));
        go.send(());
        let features = handle.join().unwrap();
        assert!(features.iter().any(|name| name == "sqpoll"), "{features:?}");
    });
}

#[test]
fn operations_complete_whenever_the_kernel_finishes_them() {
    if !needs_ring("operations_complete_whenever_the_kernel_finishes_them") {
        return;
    }
    must_end("operations_complete_whenever_the_kernel_finishes_them", || {
        let content: Vec<u8> = (0..64).collect();
        for task_run in [TaskRun::Interrupt, TaskRun::Cooperative, TaskRun::Deferred] {
            let (_path, file) = file_of("completions", &content);
            let runtime = Runtime::builder().threads(1).task_run(task_run).build().unwrap();
            let handle = runtime.spawn(async move {
                let reads = (0..64).map(|at| {
                    let file = file.clone();
                    spawn(async move { (at, file.read_at(Vec::with_capacity(1), at).await.unwrap()) })
                });
                for read in reads.collect::<Vec<_>>() {
                    let (at, byte) = read.await.unwrap();
                    assert_eq!(byte, [at as u8]);
                }
                ringfile::metrics::ring_features().unwrap()
            });
            let features = handle.join().unwrap();
            let deferred = features.iter().any(|name| name == "defer_taskrun");
            assert!(task_run == TaskRun::Deferred || !deferred, "{task_run:?}: {features:?}");
        }
    });
}

#[test]
fn outside_a_ringfile_thread_operations_are_carried_out_by_another() {
    must_end("outside_a_ringfile_thread_operations_are_carried_out_by_another", || {
        let (path, file) = file_of("outside", b"content");
        assert_eq!(park_on(file.read_at(Vec::with_capacity(7), 0)).unwrap(), b"content");
        park_on(file.sync_all()).unwrap();
        let failed = park_on(file.read_exact_at(Vec::with_capacity(7), 3)).unwrap_err();
        assert_eq!((failed.kind(), failed.done()), (std::io::ErrorKind::UnexpectedEof, 4));
        assert!(failed.to_string().contains(path.to_str().unwrap()), "{failed}");
        assert_eq!(failed.into_buffer(), b"tent");
    });
}

#[test]
fn a_thread_that_waits_for_an_operation_makes_the_call_itself() {
    if support::workers_are_forced() {
        return support::skip("a_thread_that_waits", "RINGFILE_DISABLE makes workers carry out everything");
    }
    let path = TempPath::on_disk("waits");
    std::fs::write(&path, b"content").unwrap();
    for adaptive in [false, true] {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).adaptive(adaptive).open_blocking(&path).unwrap();
        // A thread that has no driver yet.
        let waits = move || {
            for _ in 0..40 {
                assert_eq!(file.read_at(Vec::with_capacity(7), 0).wait().unwrap(), b"content");
            }
            file.write_at(b"content".to_vec(), 0).wait().unwrap();
            file.sync_all().wait().unwrap();
            thread_metrics()
        };
        let counts = std::thread::spawn(waits).join().unwrap();
        assert_eq!((counts.ops, counts.inline_ops, counts.enters), (42, 42, 0), "adaptive: {adaptive}");
    }
}

#[test]
fn a_thread_that_waits_for_a_pipe_is_woken() {
    must_end("a_thread_that_waits_for_a_pipe_is_woken", || {
        let (reader, mut writer) = pipe();
        let writing = std::thread::spawn(move || writer.write_all(b"content").unwrap());
        assert_eq!(reader.read_at(Vec::with_capacity(7), 0).wait().unwrap(), b"content");
        writing.join().unwrap();
    });
}

#[test]
fn a_loop_inside_a_loop_is_refused_with_a_reason_at_the_callers_line() {
    thread_local!(static PLACE: RefCell<String> = const { RefCell::new(String::new()) });
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PLACE.replace(info.location().map_or_else(String::new, |place| place.file().to_owned()));
        before(info);
    }));
    let nested = std::panic::catch_unwind(|| block_on(async { block_on(async {}) })).unwrap_err();
    let text = nested.downcast_ref::<String>().unwrap();
    assert!(text.contains("inside a ringfile thread"), "{text}");
    assert_eq!(PLACE.take(), file!());
    let file = File::open_blocking("/proc/self/exe").unwrap();
    let waiting = || block_on(async { file.read_at(Vec::with_capacity(7), 0).wait().map(drop) });
    let waiting = std::panic::catch_unwind(AssertUnwindSafe(waiting)).unwrap_err();
    assert!(waiting.downcast_ref::<String>().unwrap().contains("inside a ringfile thread"));
    assert_eq!(PLACE.take(), file!());
    assert_eq!(block_on(async { 7 }), 7, "the thread can be used as before");
    let outside = std::panic::catch_unwind(|| spawn(async {})).unwrap_err();
    let text = outside.downcast_ref::<String>().unwrap();
    assert!(text.contains("outside a ringfile thread"), "{text}");
    assert_eq!(PLACE.take(), file!());
}

#[test]
fn channels_and_other_threads_wake_tasks() {
    must_end("channels_and_other_threads_wake_tasks", || {
        block_on(async {
            for round in 0..100 {
                let (sender, value) = sent();
                let thread = std::thread::spawn(move || sender.send(round));
                assert_eq!(value.await, round);
                thread.join().unwrap();
            }
        });
    });
}

/// Another thread wakes every step just when the loop goes to sleep: with a ring and without, for tasks and for the
/// future of `block_on`.
fn wake_ups(steps: usize, with_ring: bool, in_task: bool) {
    let (_path, file) = file_of("wake-ups", b"x");
    let (sender, receiver) = mpsc::channel::<(Waker, usize)>();
    let turn = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&turn);
    let waking = std::thread::spawn(move || {
        for (waker, step) in receiver {
            // Varies whether the wake-up comes before, after or while the thread goes to sleep.
            for _ in 0..step % 97 {
                std::hint::spin_loop();
            }
            theirs.store(step + 1, Ordering::Release);
            waker.wake();
        }
    });
    let steps_taken = async move {
        let mut taken = 0;
        for step in 0..steps {
            let mut asked = false;
            std::future::poll_fn(|context| {
                if turn.load(Ordering::Acquire) == step + 1 {
                    return Poll::Ready(());
                }
                if !std::mem::replace(&mut asked, true) {
                    sender.send((context.waker().clone(), step)).unwrap();
                }
                Poll::Pending
            })
            .await;
            taken += 1;
        }
        taken
    };
    let taken = block_on(async {
        if with_ring {
            file.read_at(Vec::with_capacity(1), 0).await.unwrap();
        }
        if in_task { spawn(steps_taken).await.unwrap() } else { steps_taken.await }
    });
    assert_eq!(taken, steps);
    waking.join().unwrap();
}

/// A million in release builds; a tenth of it in debug builds, where a wake-up costs several times as much.
#[test]
fn f24_no_wake_up_is_lost_as_the_ring_goes_to_sleep() {
    let steps = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    must_end("f24_no_wake_up_is_lost_as_the_ring_goes_to_sleep", move || {
        wake_ups(steps * 7 / 10, true, true);
        wake_ups(steps / 10, true, false);
        wake_ups(steps / 10, false, true);
        wake_ups(steps / 10, false, false);
    });
}

/// The same with I/O that completes at the same time as the remote wake-up.
#[test]
fn f24_wake_ups_and_completions_together() {
    let steps = if cfg!(debug_assertions) { 20_000 } else { 200_000 };
    must_end("f24_wake_ups_and_completions_together", move || {
        let (_path, file) = file_of("wake-and-complete", &[9; 4096]);
        let (sender, receiver) = mpsc::channel::<support::Sender<usize>>();
        let waking = std::thread::spawn(move || {
            for (step, sender) in receiver.into_iter().enumerate() {
                sender.send(step);
            }
        });
        block_on(async {
            for step in 0..steps {
                let (send, receive) = sent();
                sender.send(send).unwrap();
                let read = file.read_at(Vec::with_capacity(64), (step % 64) as u64);
                let (bytes, got) = support::both(read, receive).await;
                assert_eq!((bytes.unwrap().len(), got), (64, step));
            }
            drop(sender);
        });
        waking.join().unwrap();
    });
}

/// Runs `main` as the future of `block_on` on its own thread, and then keeps that loop until told to end. The loop
/// takes notifications right after it has polled that future, so a notification during the poll is the hard case: it is
/// gone by the time the loop goes to sleep.
fn in_block_on<F: Future<Output = ()>>(
    main: impl FnOnce() -> F + Send + 'static,
) -> (std::thread::JoinHandle<()>, support::Sender<()>) {
    let (end, ends) = sent();
    let thread = std::thread::spawn(|| {
        block_on(async {
            main().await;
            ends.await;
        })
    });
    (thread, end)
}

#[test]
fn f24_a_result_awaited_on_another_thread_wakes_a_sleeping_thread() {
    if !needs_ring("f24_a_result_awaited_on_another_thread_wakes_a_sleeping_thread") {
        return;
    }
    must_end("f24_a_result_awaited_on_another_thread_wakes_a_sleeping_thread", || {
        let (_path, file) = file_for_good("slept-over", b"result");
        let (over, comes_over) = mpsc::channel();
        let (polled, was_polled) = mpsc::channel();
        let (home, end) = in_block_on(move || async move {
            let mut read = Box::pin(file.read_at(Vec::with_capacity(64), 0));
            assert!(poll_once(&mut read).await.is_pending());
            // Completed, but not taken.
            yields(3).await;
            over.send(read).unwrap();
            // Blocks the thread until the other one has asked for the result.
            was_polled.recv().unwrap();
        });
        let result = block_on(async {
            let mut read = comes_over.recv().unwrap();
            assert!(poll_once(&mut read).await.is_pending());
            polled.send(()).unwrap();
            read.await.unwrap()
        });
        assert_eq!(result, b"result");
        end.send(());
        home.join().unwrap();
    });
}

#[test]
fn f24_a_cancellation_on_another_thread_wakes_a_sleeping_thread() {
    if !needs_ring("f24_a_cancellation_on_another_thread_wakes_a_sleeping_thread") {
        return;
    }
    must_end("f24_a_cancellation_on_another_thread_wakes_a_sleeping_thread", || {
        let pool = Pool::new(1 << 20);
        let (file, writer) = pipe();
        let file = keep(file);
        let (over, comes_over) = mpsc::channel();
        let (dropped, was_dropped) = mpsc::channel();
        let buffer = pool.get(4096).unwrap();
        let (home, end) = in_block_on(move || async move {
            let mut read = Box::pin(file.read_at(buffer, 0));
            assert!(poll_once(&mut read).await.is_pending());
            yields(3).await;
            over.send(read).unwrap();
            was_dropped.recv().unwrap();
        });
        drop(comes_over.recv().unwrap());
        assert_ne!(pool.metrics().in_use, 0, "the kernel has the buffer still");
        dropped.send(()).unwrap();
        assert!(comes_true(|| pool.metrics().in_use == 0), "the buffer comes back");
        end.send(());
        home.join().unwrap();
        drop(writer);
    });
}

#[test]
fn f24_a_file_closed_on_another_thread_wakes_a_sleeping_thread() {
    must_end("f24_a_file_closed_on_another_thread_wakes_a_sleeping_thread", || {
        let (path, file) = file_of("closed-elsewhere", b"x");
        let open = move || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap();
            all.filter(|fd| {
                fd.as_ref().is_ok_and(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == *path))
            })
            .count()
        };
        let (dropped, was_dropped) = mpsc::channel();
        let (read, was_read) = mpsc::channel();
        let theirs = file.clone();
        let (home, end) = in_block_on(move || async move {
            theirs.read_at(Vec::with_capacity(1), 0).await.unwrap();
            drop(theirs);
            read.send(()).unwrap();
            was_dropped.recv().unwrap();
        });
        was_read.recv().unwrap();
        assert_eq!(open(), 2, "the user's descriptor and the one for I/O");
        drop(file);
        dropped.send(()).unwrap();
        assert!(comes_true(|| open() == 0), "{} descriptors left", open());
        end.send(());
        home.join().unwrap();
    });
}

/// A future that moves between the loops of several threads, at random moments.
#[test]
fn futures_move_between_threads() {
    must_end("futures_move_between_threads", || {
        let content: Vec<u8> = (0..4096_u32).flat_map(u32::to_le_bytes).collect();
        let (_path, file) = file_for_good("moving", &content);
        let pool = Pool::new(8 << 20);
        let runtime = Arc::new(Runtime::builder().threads(3).build().unwrap());
        let mut rng = support::Random::new();
        for round in 0..300_u64 {
            let at = (round * 37 % 4000) * 4;
            let mut read = Box::pin(file.read_exact_at(pool.get(64).unwrap(), at));
            let mut result = None;
            for _ in 0..=rng.index(4) {
                let (thread, polls) = (rng.index(3), rng.index(3));
                let (back, got) = runtime
                    .spawn_on(thread, move || async move {
                        for _ in 0..=polls {
                            if let Poll::Ready(done) = poll_once(&mut read).await {
                                return (read, Some(done));
                            }
                            yields(1).await;
                        }
                        (read, None)
                    })
                    .join()
                    .unwrap();
                read = back;
                if got.is_some() {
                    result = got;
                    break;
                }
            }
            let bytes = match result {
                Some(done) => done.unwrap(),
                None if rng.chance(3) => {
                    drop(read);
                    continue;
                }
                None => runtime.spawn_on(rng.index(3), move || read).join().unwrap().unwrap(),
            };
            assert_eq!(bytes[..], content[at as usize..at as usize + 64], "round {round}");
        }
        assert!(comes_true(|| pool.metrics().in_use == 0), "every buffer comes back");
        assert_eq!(ringfile::metrics().stray, 0);
    });
}

#[test]
fn a_future_outlives_the_loop_and_the_thread_it_began_on() {
    must_end("a_future_outlives_the_loop_and_the_thread_it_began_on", || {
        let (_path, file) = file_for_good("outlives", b"survives");
        let pool = Pool::new(1 << 20);
        let begin = |count: usize| {
            let buffers: Vec<_> = (0..count).map(|_| pool.get(8).unwrap()).collect();
            move || {
                block_on(async {
                    let mut reads: Vec<_> =
                        buffers.into_iter().map(|buffer| Box::pin(file.read_at(buffer, 0))).collect();
                    for read in &mut reads {
                        assert!(poll_once(read).await.is_pending());
                    }
                    reads
                })
            }
        };
        // The same thread in its next loop; another thread after the first has ended; dropped there.
        for read in begin(2)() {
            assert_eq!(block_on(read).unwrap()[..], b"survives"[..]);
        }
        let mut reads = std::thread::spawn(begin(3)).join().unwrap();
        drop(reads.pop());
        for read in reads {
            assert_eq!(block_on(read).unwrap()[..], b"survives"[..]);
        }
        assert_eq!(pool.metrics().in_use, 0);
    });
}

#[test]
fn a_started_future_can_be_awaited_in_any_executor() {
    must_end("a_started_future_can_be_awaited_in_any_executor", || {
        let (file, mut writer) = pipe();
        let file = keep(file);
        let runtime = Runtime::builder().threads(1).build().unwrap();
        let begun = runtime
            .spawn(async move {
                let mut read = Box::pin(file.read_at(Vec::with_capacity(4), 0));
                assert!(poll_once(&mut read).await.is_pending());
                read
            })
            .join()
            .unwrap();
        let writing = std::thread::spawn(move || {
            // Time for the awaiting thread to sleep; threads are not simulated.
            std::thread::sleep(Duration::from_millis(20));
            writer.write_all(b"pipe").unwrap();
        });
        assert_eq!(park_on(begun).unwrap(), b"pipe");
        writing.join().unwrap();
    });
}

/// Returns a minimal executor that is not ringfile's.
fn park_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

#[test]
fn querying_ring_features_leaves_no_ring_behind() {
    if !needs_ring("querying_ring_features_leaves_no_ring_behind") {
        return;
    }
    std::thread::spawn(|| {
        // A thread may have 16 registered rings, so a ring that stayed registered would show, if rings are registered
        // (Linux 5.18).
        let first = ringfile::metrics::ring_features().unwrap();
        for _ in 0..40 {
            assert_eq!(ringfile::metrics::ring_features().unwrap(), first);
        }
    })
    .join()
    .unwrap();
}

#[test]
fn a_runtime_without_threads_is_an_error() {
    let error = Runtime::builder().threads(0).build().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn a_task_that_is_always_ready_starves_no_io_and_is_not_starved() {
    let (_path, file) = file_for_good("busy", &[7; 1 << 16]);
    must_end("a_task_that_is_always_ready_starves_no_io_and_is_not_starved", move || {
        block_on(async {
            let done = Rc::new(std::cell::Cell::new(0));
            for task in 0..4_u64 {
                let done = Rc::clone(&done);
                drop(spawn(async move {
                    for i in 0..200 {
                        let got =
                            file.read_exact_at(vec![0; 512], (task * 31 + i * 17) % 65_000).await.unwrap();
                        assert_eq!(got, [7; 512]);
                    }
                    done.set(done.get() + 1);
                }));
            }
            while done.get() < 4 {
                yields(1).await;
            }
        });
    });
    must_end("a_task_that_is_always_ready_starves_no_io_and_is_not_starved", move || {
        block_on(async {
            let stop = Rc::new(std::cell::Cell::new(false));
            let readers: Vec<_> = (0..64_u64)
                .map(|task| {
                    let stop = Rc::clone(&stop);
                    spawn(async move {
                        while !stop.get() {
                            file.read_exact_at(vec![0; 512], task * 512).await.unwrap();
                        }
                    })
                })
                .collect();
            yields(1000).await;
            stop.set(true);
            for reader in readers {
                reader.await.unwrap();
            }
        });
    });
}

#[test]
fn a_runtime_whose_last_handle_is_dropped_on_its_own_thread_ends() {
    for shut_down in [false, true] {
        let (ended, ends) = mpsc::channel();
        let runtime = Arc::new(Runtime::builder().threads(3).build().unwrap());
        let dropped = Arc::new(AtomicUsize::new(0));
        let never = Never(Arc::clone(&dropped));
        if !shut_down {
            drop(runtime.spawn_on(1, || never));
        } else {
            drop(never);
        }
        let own = Arc::clone(&runtime);
        let task = runtime.spawn_on(0, move || async move {
            while Arc::strong_count(&own) > 1 {
                yields(1).await;
            }
            let runtime = Arc::into_inner(own).unwrap();
            if shut_down {
                runtime.shutdown();
            } else {
                drop(runtime);
            }
            ended.send(()).unwrap();
        });
        drop(runtime);
        ends.recv_timeout(support::patience()).expect("it ends, and its task continues");
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        assert!(task.join().is_ok());
    }
}

/// A waker with the same data pointer as the task's; only its functions differ.
#[test]
fn a_waker_that_shares_its_data_with_the_tasks_is_called_itself() {
    if !needs_ring("a_waker_that_shares_its_data_with_the_tasks_is_called_itself") {
        return;
    }
    use std::task::{RawWaker, RawWakerVTable};
    static CALLED: AtomicUsize = AtomicUsize::new(0);
    fn clone(data: *const ()) -> RawWaker {
        RawWaker::new(data, &VTABLE)
    }
    fn wake(_: *const ()) {
        CALLED.fetch_add(1, Ordering::SeqCst);
    }
    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake, |_| ());
    let (_path, file) = file_for_good("waker", &[7; 4096]);
    block_on(async {
        let mut read = Box::pin(file.read_at(vec![0; 100], 0));
        std::future::poll_fn(|context| {
            // SAFETY: the functions use no data.
            let waker = unsafe { Waker::new(context.waker().data(), &VTABLE) };
            assert!(Pin::new(&mut read).poll(&mut Context::from_waker(&waker)).is_pending());
            Poll::Ready(())
        })
        .await;
        let before = ringfile::thread_metrics().ops;
        while ringfile::thread_metrics().ops == before {
            yields(1).await;
        }
        assert_eq!(CALLED.load(Ordering::SeqCst), 1);
        assert_eq!(read.await.unwrap(), [7; 100]);
    });
}
