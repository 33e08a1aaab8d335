//! Runtimes of tokio whose threads submit and collect by themselves.

use std::future::{IntoFuture, poll_fn};
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::support;
use crate::support::cache::drop_cache;
use crate::support::{
    Folder, assert_content, assert_passed, content, fork, in_child, keep, must_end, needs_ring,
    open_descriptors, skip, wait_for,
};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use ringfile::{Batch, File, OpenOptions, Pool, attach_to_tokio, metrics};
use tokio::runtime::{Builder, Handle, Runtime};

const PAGE: usize = 4096;
const PAGES: u64 = 256;

/// Returns a folder in the build folder, which is usually on a disk.
fn folder() -> Folder {
    Folder::inside(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// Makes an attached runtime with this many threads, 0 for one that runs on the thread that blocks on it. `None` if there
/// is no ring for it here.
fn runtime(test: &str, threads: usize) -> Option<Runtime> {
    if !needs_ring(test) {
        return None;
    }
    let mut builder = if threads == 0 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    let runtime = builder.worker_threads(threads.max(1)).enable_all().build().unwrap();
    let attached = {
        let _inside = runtime.enter();
        attach_to_tokio()
    };
    match attached {
        Ok(()) => Some(runtime),
        Err(error) => {
            assert_eq!(error.errno(), Some(libc::EOPNOTSUPP), "{error}");
            skip(test, error);
            None
        }
    }
}

/// Opens a file of [`PAGES`] whose reads have to wait.
fn direct(folder: &Folder) -> File {
    let path = folder.file("data", &content(0, PAGES as usize * PAGE));
    OpenOptions::new().read(true).write(true).direct(true).open_blocking(path).unwrap()
}

async fn read(file: &File, pool: &Pool, page: u64) {
    let offset = page % PAGES * PAGE as u64;
    let buffer = file.read_at(pool.get(PAGE).unwrap(), offset).await.unwrap();
    assert_eq!(buffer.len(), PAGE);
    assert_content(&buffer, offset);
}

#[test]
fn the_threads_of_an_attached_runtime_submit() {
    let name = "the_threads_of_an_attached_runtime_submit";
    if !in_child(name) {
        return;
    }
    let folder = folder();
    let file = direct(&folder);
    let pool = Pool::new(8 << 20);
    let mut expected = 0;
    for threads in [0, 1, 2, 4] {
        let Some(runtime) = runtime(name, threads) else { return };
        // One task alone, and more than are submitted one by one.
        for tasks in [1, 16, 200] {
            expected += tasks * 50;
            runtime.block_on(async {
                let all = (0..tasks).map(|task| {
                    let (file, pool) = (file.clone(), pool.clone());
                    tokio::spawn(async move {
                        for round in 0..50 {
                            read(&file, &pool, task * 50 + round).await;
                        }
                    })
                });
                for task in all.collect::<Vec<_>>() {
                    task.await.unwrap();
                }
            });
        }
    }
    assert_eq!(metrics().ops, expected);
    // Some, if the runtime's threads had no processor for long.
    assert!(metrics().io_thread_ops < expected / 2, "{} of {expected}", metrics().io_thread_ops);
}

#[test]
fn groups_of_operations_syncs_and_paths_end_in_an_attached_runtime() {
    let name = "groups_of_operations_syncs_and_paths_end";
    let folder = folder();
    let file = direct(&folder);
    let pool = Pool::new(8 << 20);
    for threads in [0, 2] {
        let Some(runtime) = runtime(name, threads) else { return };
        runtime.block_on(async {
            let mut reads: FuturesUnordered<_> =
                (0..100).map(|page| file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64)).collect();
            while let Some(result) = reads.next().await {
                assert_eq!(result.unwrap().len(), PAGE);
            }
            let mut batch = Batch::new();
            for page in 0..100 {
                batch.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
            }
            for (page, done) in batch.into_future().await.into_iter().enumerate() {
                assert_content(&done.buffer.unwrap(), (page * PAGE) as u64);
            }
            let mut page = pool.get(PAGE).unwrap();
            page.extend_from_slice(&content(0, PAGE));
            file.write_durable_at(page, 0).await.unwrap();
            file.sync_all().await.unwrap();
            let (from, to) = (folder.path().join("from"), folder.path().join("to"));
            std::fs::write(&from, b"named").unwrap();
            ringfile::fs::rename(&from, &to).await.unwrap();
            assert_eq!(ringfile::fs::metadata(&to).await.unwrap().size, 5);
        });
    }
}

#[test]
fn reads_end_in_every_place_where_a_runtime_runs_code() {
    let name = "reads_end_in_every_place_where_a_runtime_runs_code";
    let folder = folder();
    let file = direct(&folder);
    let pool = Pool::new(8 << 20);
    // One after the other in this thread, as tests of a program make them.
    for threads in [0, 2, 0, 2] {
        let Some(runtime) = runtime(name, threads) else { return };
        let (file, pool) = (file.clone(), pool.clone());
        runtime.block_on(async {
            read(&file, &pool, 0).await;
            let local = tokio::task::LocalSet::new();
            local
                .run_until(async {
                    let reads: Vec<_> = (0..20)
                        .map(|page| {
                            let (file, pool) = (file.clone(), pool.clone());
                            tokio::task::spawn_local(async move { read(&file, &pool, page).await })
                        })
                        .collect();
                    for read in reads {
                        read.await.unwrap();
                    }
                })
                .await;
            let outside = {
                let (file, pool) = (file.clone(), pool.clone());
                tokio::task::spawn_blocking(move || {
                    (0..20).for_each(|page| Handle::current().block_on(read(&file, &pool, page)));
                })
            };
            outside.await.unwrap();
            if threads > 0 {
                let in_place = tokio::spawn(async move {
                    tokio::task::block_in_place(|| {
                        (0..20).for_each(|page| Handle::current().block_on(read(&file, &pool, page)));
                    });
                    read(&file, &pool, 20).await;
                });
                in_place.await.unwrap();
            }
        });
    }
}

/// The kernel interrupts the call of a thread that has submitted an operation, once that has completed.
#[test]
fn no_call_of_a_runtime_that_is_not_attached_is_interrupted() {
    let name = "no_call_of_a_runtime_that_is_not_attached_is_interrupted";
    if !in_child(name) || !needs_ring(name) {
        return;
    }
    let folder = folder();
    let file = keep(direct(&folder));
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (_keeps, mut silent) = std::os::unix::net::UnixStream::pair().unwrap();
    silent.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let reads = runtime.spawn(async move {
        for page in 0..20 {
            let read = file.read_at(Vec::with_capacity(PAGE), page * PAGE as u64);
            let mut read = Box::pin(read.into_future());
            let polled = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
            let received = tokio::task::block_in_place(|| silent.read(&mut [0]));
            assert_eq!(received.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
            match polled {
                Poll::Ready(ended) => drop(ended.unwrap()),
                Poll::Pending => drop(read.await.unwrap()),
            }
        }
    });
    runtime.block_on(reads).unwrap();
}

#[test]
fn operations_of_a_runtime_whose_threads_compute_go_to_an_io_thread() {
    let name = "operations_of_a_runtime_whose_threads_compute_go_to_an_io_thread";
    if !in_child(name) {
        return;
    }
    let folder = folder();
    let file = keep(direct(&folder));
    let Some(runtime) = runtime(name, 0) else { return };
    must_end("a read that an I/O thread carries out", move || {
        runtime.block_on(async {
            let is_elsewhere = || metrics().io_thread_ops > 0;
            for page in (0..PAGES).cycle().take_while(|_| !is_elsewhere()) {
                let is_over = Arc::new(AtomicBool::new(false));
                let waker = Waker::from(Arc::new(Sets(Arc::clone(&is_over))));
                let read = file.read_at(Vec::with_capacity(PAGE), page * PAGE as u64);
                let mut read = Box::pin(read.into_future());
                let mut polled = read.as_mut().poll(&mut Context::from_waker(&waker));
                while polled.is_pending() {
                    while !is_over.swap(false, Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                    polled = read.as_mut().poll(&mut Context::from_waker(&waker));
                }
            }
        });
    });
}

/// A waker that only says that it was called.
struct Sets(Arc<AtomicBool>);

impl std::task::Wake for Sets {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn dropped_reads_are_cancelled_or_end_and_their_memory_comes_back() {
    let name = "dropped_reads_are_cancelled_or_end";
    let folder = folder();
    let file = direct(&folder);
    let pool = Pool::new(4 << 20);
    for threads in [0, 2] {
        let Some(runtime) = runtime(name, threads) else { return };
        runtime.block_on(async {
            for round in 0..100 {
                let mut reads: Vec<_> = (0..8)
                    .map(|page| {
                        Box::pin(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64).into_future())
                    })
                    .collect();
                poll_fn(|context| {
                    reads.iter_mut().for_each(|read| drop(read.as_mut().poll(context)));
                    Poll::Ready(())
                })
                .await;
                drop(reads);
                read(&file, &pool, round).await;
            }
        });
        wait_for("all memory", || pool.metrics().in_use == 0);
    }
}

#[test]
fn reads_end_elsewhere_though_their_runtime_and_the_thread_that_has_submitted_them_have_gone() {
    let name = "reads_end_elsewhere_though_their_runtime";
    let folder = folder();
    // So many pages that the threads end before all are there.
    const COLD: u64 = 16 * PAGES;
    let path = folder.file("cold", &content(0, COLD as usize * PAGE));
    let buffered: (&File, u64) = (keep(OpenOptions::new().read(true).open_blocking(&path).unwrap()), COLD);
    let direct: (&File, u64) = (keep(direct(&folder)), PAGES);
    for threads in [0, 2] {
        for (file, pages) in [direct, buffered, direct, buffered, buffered, buffered, buffered] {
            let Some(runtime) = runtime(name, threads) else { return };
            drop_cache(&path);
            let begin = async move {
                // Backwards, so that the kernel does not read ahead.
                let begun = (0..pages).rev().step_by(4).map(|page| {
                    let read = file.read_at(Vec::with_capacity(PAGE), page * PAGE as u64);
                    let mut read = Box::pin(read.into_future());
                    let polled = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    (page, read, polled)
                });
                begun.collect::<Vec<_>>()
            };
            let begun = runtime.block_on(runtime.spawn(begin)).unwrap();
            runtime.shutdown_background();
            must_end("all reads", move || {
                for (page, read, polled) in begun {
                    let result = match polled {
                        Poll::Ready(result) => result,
                        Poll::Pending => futures::executor::block_on(read),
                    };
                    assert_content(&result.unwrap(), page * PAGE as u64);
                }
            });
        }
    }
}

#[test]
fn a_waker_that_panics_harms_no_other_task() {
    struct Panics(AtomicUsize);
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("a waker that panics");
        }
    }
    let name = "a_waker_that_panics_harms_no_other_task";
    let folder = folder();
    let file = keep(direct(&folder));
    let pool = Pool::new(1 << 20);
    for threads in [0, 2] {
        let Some(runtime) = runtime(name, threads) else { return };
        let panics = Arc::new(Panics(AtomicUsize::new(0)));
        let wakers = Arc::clone(&panics);
        let tasks = (0..8).map(|task| {
            let (pool, waker) = (pool.clone(), Waker::from(Arc::clone(&wakers)));
            async move {
                for page in 0..20 {
                    let mut other = Box::pin(file.read_at(Vec::with_capacity(PAGE), 0).into_future());
                    let polled = other.as_mut().poll(&mut Context::from_waker(&waker));
                    read(file, &pool, task * 20 + page).await;
                    if polled.is_pending() {
                        assert_content(&other.await.unwrap(), 0);
                    }
                }
            }
        });
        runtime.block_on(async {
            for task in tasks.map(tokio::spawn).collect::<Vec<_>>() {
                task.await.unwrap();
            }
        });
        assert!(panics.0.load(Ordering::Relaxed) > 0, "no waker was called");
    }
}

#[test]
fn a_runtime_whose_only_thread_is_blocked_collects() {
    let name = "a_runtime_whose_only_thread_is_blocked";
    let folder = folder();
    let file = direct(&folder);
    let pool = Pool::new(1 << 20);
    for threads in [0, 1] {
        let Some(runtime) = runtime(name, threads) else { return };
        let (file, pool) = (file.clone(), pool.clone());
        must_end("reads that block the runtime's thread", move || {
            runtime.block_on(async {
                let blocked = async move {
                    (0..20).for_each(|page| futures::executor::block_on(read(&file, &pool, page)));
                };
                tokio::spawn(blocked).await.unwrap();
            });
        });
    }
}

#[test]
fn reads_end_while_the_thread_that_has_submitted_them_computes() {
    let name = "reads_end_while_the_thread_that_has_submitted_them_computes";
    let folder = folder();
    let file: &'static File = keep(direct(&folder));
    let Some(runtime) = runtime(name, 2) else { return };
    must_end("a read of a thread that computes", move || {
        runtime.block_on(async {
            for page in 0..20 {
                let (to_other, from_one) = mpsc::channel();
                let is_over = Arc::new(AtomicBool::new(false));
                let over = Arc::clone(&is_over);
                let one = tokio::spawn(async move {
                    let read = file.read_at(Vec::with_capacity(PAGE), page * PAGE as u64);
                    let mut read = Box::pin(read.into_future());
                    let polled = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
                    match polled {
                        Poll::Ready(_) => drop(to_other),
                        Poll::Pending => {
                            to_other.send(read).unwrap();
                            // No system call, and no point where another task could run.
                            while !over.load(Ordering::Relaxed) {
                                std::hint::spin_loop();
                            }
                        }
                    }
                });
                let other = std::thread::spawn(move || {
                    if let Ok(read) = from_one.recv() {
                        assert_eq!(futures::executor::block_on(read).unwrap().len(), PAGE);
                    }
                    is_over.store(true, Ordering::Relaxed);
                });
                one.await.unwrap();
                other.join().unwrap();
            }
        });
    });
}

#[test]
fn runtimes_come_and_go_while_others_read() {
    let name = "runtimes_come_and_go";
    let folder = folder();
    let file = direct(&folder);
    let pool = Pool::new(8 << 20);
    if runtime(name, 0).is_none() {
        return;
    }
    let begun = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for threads in [0, 1, 2] {
            let (file, pool, begun) = (&file, &pool, &begun);
            scope.spawn(move || {
                for _ in 0..30 {
                    // Another test may have used up what the kernel allows.
                    let Some(runtime) = runtime(name, threads) else { return };
                    let tasks = (0..8).map(|task| {
                        let (file, pool, begun) = (file.clone(), pool.clone(), Arc::clone(begun));
                        runtime.spawn(async move {
                            for page in 0.. {
                                begun.fetch_add(1, Ordering::Relaxed);
                                read(&file, &pool, task * 7 + page).await;
                            }
                        })
                    });
                    let tasks: Vec<_> = tasks.collect();
                    runtime.block_on(tokio_sleep());
                    assert!(tasks.iter().all(|task| !task.is_finished()), "a task has failed");
                }
            });
        }
    });
    assert!(begun.load(Ordering::Relaxed) > 0);
    drop(file);
    wait_for("all memory", || pool.metrics().in_use == 0);
}

async fn tokio_sleep() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

#[test]
fn a_forked_child_uses_neither_the_ring_nor_the_locks_of_its_parents_runtime() {
    let name = "a_forked_child_uses_neither";
    if !in_child("a_forked_child_uses_neither_the_ring_nor_the_locks_of_its_parents_runtime") {
        return;
    }
    let folder = folder();
    let file = direct(&folder);
    let pool = Pool::new(1 << 20);
    let Some(runtime) = runtime(name, 2) else { return };
    let reads = {
        let (file, pool) = (file.clone(), pool.clone());
        runtime.spawn(async move {
            for page in 0.. {
                read(&file, &pool, page).await;
            }
        })
    };
    let _inside = runtime.enter();
    for _ in 0..50 {
        assert_passed(fork(|| {
            // Either another thread or a plain call reads, or the error says that a child cannot.
            match futures::executor::block_on(file.read_at(Vec::with_capacity(PAGE), 0)) {
                Ok(buffer) => assert_eq!(buffer, content(0, PAGE)),
                Err(error) => assert_eq!(error.errno(), Some(libc::EOPNOTSUPP)),
            }
        }));
    }
    assert!(!reads.is_finished());
}

#[test]
#[should_panic(expected = "there is no reactor running")]
fn attaching_outside_a_runtime_panics_as_tokios_own_types_do() {
    let _ = attach_to_tokio();
}

#[test]
fn attaching_again_does_nothing() {
    let name = "attaching_again_does_nothing";
    if !in_child(name) {
        return;
    }
    let Some(runtime) = runtime(name, 1) else { return };
    let _inside = runtime.enter();
    let before = support::open_descriptors();
    attach_to_tokio().unwrap();
    assert_eq!(support::open_descriptors(), before);
}

#[test]
fn threads_that_attach_a_runtime_at_once_attach_it() {
    let name = "threads_that_attach_a_runtime_at_once_attach_it";
    if !in_child(name) || runtime(name, 1).is_none() {
        return;
    }
    for _ in 0..100 {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let together = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let _inside = runtime.enter();
                    together.wait();
                    attach_to_tokio().unwrap();
                });
            }
        });
        let before = open_descriptors();
        let _inside = runtime.enter();
        attach_to_tokio().unwrap();
        assert_eq!(open_descriptors(), before, "it was not attached before");
    }
}

#[test]
fn a_file_is_closed_although_nobody_drives_the_runtime() {
    let name = "a_file_is_closed_although_nobody_drives_the_runtime";
    if !in_child(name) {
        return;
    }
    let Some(runtime) = runtime(name, 0) else { return };
    let (folder, pool) = (folder(), Pool::new(1 << 20));
    for pause in [Duration::ZERO, Duration::from_millis(100)] {
        let file = direct(&folder);
        runtime.block_on(async {
            for page in 0..20 {
                read(&file, &pool, page).await;
            }
        });
        // Time for the runtime's threads to sleep; threads are not simulated.
        std::thread::sleep(pause);
        drop(file);
        support::wait_closed(folder.path().join("data"));
    }
}

#[test]
fn f09_without_a_timer_thread_operations_go_on_as_in_other_runtimes() {
    let name = "f09_without_a_timer_thread_operations_go_on_as_in_other_runtimes";
    if !in_child(name) {
        return;
    }
    let Some(runtime) = runtime(name, 0) else { return };
    let (folder, pool) = (folder(), Pool::new(1 << 20));
    let file = direct(&folder);
    support::filters::deny(libc::SYS_clone3, libc::EAGAIN);
    support::filters::deny(libc::SYS_clone, libc::EAGAIN);
    support::end_if_it_hangs();
    runtime.block_on(async {
        // The runtime's only thread blocks on the reads, so none of its tasks collects.
        (0..3).for_each(|page| futures::executor::block_on(read(&file, &pool, page)));
    });
}

#[test]
fn f22_a_forked_child_that_drives_its_parents_runtime_does_not_touch_the_ring() {
    let name = "f22_a_forked_child_that_drives_its_parents_runtime_does_not_touch_the_ring";
    if !in_child(name) {
        return;
    }
    let Some(runtime) = runtime(name, 0) else { return };
    let (folder, pool) = (folder(), Pool::new(1 << 20));
    let file = direct(&folder);
    runtime.block_on(read(&file, &pool, 0));
    let mut reads: Vec<_> = (0..32).map(|page| Box::pin(read(&file, &pool, page))).collect();
    {
        let _inside = runtime.enter();
        let mut context = Context::from_waker(Waker::noop());
        reads.iter_mut().for_each(|read| _ = read.as_mut().poll(&mut context));
    }
    assert_passed(fork(|| {
        let before = metrics().ops;
        runtime.block_on(async {
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(metrics().ops, before, "the child has carried out operations of its parent");
    }));
    runtime.block_on(futures::future::join_all(reads));
}
