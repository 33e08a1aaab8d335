//! Queues that several threads use.

use crate::support::handles::Handles as _;
use crate::support::handles::one_of;
use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{
    Folder, Random, assert_content, assert_passed, content, fork, in_child, is_without_ring, must_end,
    needs_ring, on_events, open_descriptors, patience, pipe, wait_for,
};
use ringfile::{Completion, File, OpenOptions, Pool, Queue, SharedQueue, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PAGE: usize = 4096;
const PAGES: u64 = 256;

/// Opens a file whose reads have to wait: in the build folder, which is usually on a disk.
fn direct() -> (Folder, File) {
    let folder = Folder::inside(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let path = folder.file("data", &content(0, PAGES as usize * PAGE));
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).direct(true).buffered_fallback(true).open_blocking(path).unwrap();
    (folder, file)
}

fn add(queue: &SharedQueue, file: &File, pool: &Pool, page: u64) -> Token {
    queue.add(file.read_at(pool.get(PAGE).unwrap(), page % PAGES * PAGE as u64), page)
}

#[track_caller]
fn assert_page(page: u64, done: &Completion) {
    assert_eq!(*done.result.as_ref().unwrap(), PAGE);
    assert_content(done.buffer.as_ref().unwrap(), page % PAGES * PAGE as u64);
}

#[test]
fn every_result_reaches_one_thread_whichever_has_added_it() {
    const THREADS: u64 = 4;
    let each = if cfg!(debug_assertions) { 2_000 } else { 20_000 };
    let (_folder, file) = direct();
    let pool = Pool::new(64 << 20);
    let queue = SharedQueue::with_capacity(16);
    let (left, seen) = (AtomicU64::new(THREADS * each), Mutex::new(vec![false; (THREADS * each) as usize]));
    must_end("threads that add and collect", move || {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (queue, file, pool, left, seen) = (&queue, &file, &pool, &left, &seen);
                scope.spawn(move || {
                    let mut random = Random::from_seed(thread);
                    let mut added = 0;
                    let end = |done: Completion| {
                        let page = done.user_data;
                        assert!(!queue.contains(done.token));
                        assert_page(page, &done);
                        assert!(!std::mem::replace(&mut seen.lock().unwrap()[page as usize], true), "twice");
                        left.fetch_sub(1, Ordering::SeqCst);
                    };
                    while added < each {
                        for _ in 0..1 + random.below(8).min(each - added - 1) {
                            add(queue, file, pool, thread * each + added);
                            added += 1;
                        }
                        if random.chance(2) {
                            queue.submit();
                        }
                        match random.below(3) {
                            0 => queue.next().into_iter().for_each(&end),
                            1 => one_of(queue, Some(Duration::from_micros(random.below(200))))
                                .into_iter()
                                .for_each(&end),
                            _ => (0..random.below(12)).filter_map(|_| one_of(queue, None)).for_each(&end),
                        }
                    }
                    while let Some(done) = one_of(queue, None) {
                        end(done);
                    }
                });
            }
        });
        // The last thread may have taken its results while others found none open.
        while let Some(done) = one_of(&queue, None) {
            assert_page(done.user_data, &done);
            left.fetch_sub(1, Ordering::SeqCst);
        }
        assert_eq!((left.into_inner(), queue.len()), (0, 0));
    });
}

#[test]
fn each_thread_waits_for_its_own_operation_while_others_do() {
    const THREADS: u64 = 8;
    let (_folder, file) = direct();
    let pool = Pool::new(16 << 20);
    let queue = SharedQueue::new();
    must_end("threads that wait by token", move || {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (queue, file, pool) = (&queue, &file, &pool);
                scope.spawn(move || {
                    for turn in 0..500 {
                        let pages = [turn * THREADS + thread, turn + thread];
                        let tokens = pages.map(|page| add(queue, file, pool, page));
                        for (token, page) in tokens.into_iter().zip(pages).rev() {
                            assert_page(page, &queue.wait_for(token).unwrap());
                            assert_eq!(
                                queue.wait_for(token).unwrap_err().kind(),
                                std::io::ErrorKind::InvalidInput
                            );
                        }
                    }
                });
            }
        });
        assert!(queue.is_empty());
    });
}

/// A thread that waits for one operation looks again when another thread has collected that one's end, at whatever moment.
#[test]
fn a_thread_is_woken_for_what_another_thread_has_collected() {
    let (_folder, file) = direct();
    let pool = Pool::new(1 << 20);
    let queue = SharedQueue::new();
    let (turns, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    // It collects all the time, and takes nothing.
    let others = {
        let (queue, turns, stop) = (queue.clone(), Arc::clone(&turns), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                queue.submit();
                turns.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    must_end("waiting beside a thread that collects", move || {
        for page in 0..5_000 {
            let token = add(&queue, &file, &pool, page);
            assert_page(page, &queue.wait_for(token).unwrap());
        }
    });
    stop.store(true, Ordering::SeqCst);
    others.join().unwrap();
    assert!(turns.load(Ordering::SeqCst) > 0);
}

/// Starts a thread that waits for one result after another, and sends each.
fn collect_on_a_thread(queue: &SharedQueue) -> (JoinHandle<()>, mpsc::Receiver<Completion>) {
    let (told, tells) = mpsc::channel();
    let queue = queue.clone();
    let thread = std::thread::spawn(move || {
        while let Some(done) = one_of(&queue, None) {
            told.send(done).unwrap();
        }
    });
    (thread, tells)
}

/// Submits a read, whose result that thread sends.
#[track_caller]
fn assert_is_collected(
    queue: &SharedQueue,
    file: &File,
    pool: &Pool,
    page: u64,
    tells: &mpsc::Receiver<Completion>,
) {
    add(queue, file, pool, page);
    queue.submit();
    let done = tells.recv_timeout(patience()).unwrap();
    assert_eq!(done.user_data, page);
    assert_page(page, &done);
}

#[test]
fn a_thread_that_sleeps_takes_what_others_add_and_ends_of_workers_wake_it() {
    let (reader, writer) = pipe();
    let (_folder, file) = direct();
    let pool = Pool::new(1 << 20);
    let queue = SharedQueue::new();
    // Without a ring, a worker waits for the pipe.
    let waits = queue.add(reader.read_at(vec![0; 4], 0), 7);
    let (sleeper, tells) = collect_on_a_thread(&queue);
    for page in 100..110 {
        assert_is_collected(&queue, &file, &pool, page, &tells);
    }
    assert!(queue.contains(waits) && !queue.is_done(waits));
    let mut writer = writer;
    std::io::Write::write_all(&mut writer, b"abcd").unwrap();
    let done = tells.recv_timeout(patience()).unwrap();
    assert_eq!((done.user_data, done.result.unwrap()), (7, 4));
    sleeper.join().unwrap();
    assert!(tells.try_recv().is_err());
}

/// Where the thread sleeps, it would not learn of these: a worker has nothing to do yet, or there is no ring.
#[test]
fn a_thread_that_sleeps_takes_what_others_start_elsewhere() {
    let (folder, direct) = direct();
    let path = folder.file("on-workers", &content(0, PAGES as usize * PAGE));
    let on_workers =
        OpenOptions::new().read(true).route(ringfile::Route::Workers).open_blocking(path).unwrap();
    let pool = Pool::new(1 << 20);
    for (waits_on_worker, file) in [(false, &on_workers), (true, &direct)] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut options = OpenOptions::new();
        let route = if waits_on_worker { ringfile::Route::Workers } else { ring_route() };
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let reader = options.read(true).route(route).open_blocking(path).unwrap();
        let queue = SharedQueue::new();
        queue.add(reader.read_at(vec![0; 4], 0), 7);
        queue.submit();
        let (sleeper, tells) = collect_on_a_thread(&queue);
        for page in 100..110 {
            // Time for the other thread to sleep; threads are not simulated.
            std::thread::sleep(Duration::from_millis(3));
            assert_is_collected(&queue, file, &pool, page, &tells);
        }
        std::io::Write::write_all(&mut writer, b"abcd").unwrap();
        sleeper.join().unwrap();
    }
}

#[test]
fn a_wait_ends_in_time_and_a_cancelled_operation_gives_its_result() {
    let (reader, _writer) = pipe();
    let queue = SharedQueue::new();
    assert!(one_of(&queue, None).is_none(), "nothing is open");
    let token = queue.add(reader.read_at(vec![0; 4], 0), 0);
    let began = Instant::now();
    assert!(one_of(&queue, Some(Duration::from_millis(30))).is_none());
    assert!(began.elapsed() >= Duration::from_millis(30));
    let waiting = {
        let queue = queue.clone();
        std::thread::spawn(move || queue.wait_for(token))
    };
    wait_for("the thread to wait", || queue.contains(token));
    assert!(queue.cancel(token));
    let done = waiting.join().unwrap().unwrap();
    assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED));
    assert!(!queue.cancel(token) && queue.is_empty());
    for _ in 0..3 {
        queue.add(reader.read_at(vec![0; 4], 0), 0);
    }
    queue.submit();
    queue.add(reader.read_at(vec![0; 4], 0), 0);
    queue.cancel_all();
    let ends = std::iter::from_fn(|| one_of(&queue, None)).map(|done| done.result.unwrap_err().errno());
    assert_eq!(ends.collect::<Vec<_>>(), [Some(libc::ECANCELED); 4]);
}

/// Each may end at any moment of the wait, even after it has looked for results.
#[test]
fn a_wait_without_a_limit_gives_a_result_while_operations_are_open() {
    let (folder, _) = direct();
    let path = folder.file("on-workers", &content(0, PAGES as usize * PAGE));
    let file = OpenOptions::new().read(true).route(ringfile::Route::Workers).open_blocking(path).unwrap();
    let pool = Pool::new(1 << 20);
    let queue = SharedQueue::new();
    for turn in 0..if cfg!(debug_assertions) { 10_000 } else { 50_000 } {
        for page in 0..3 {
            add(&queue, &file, &pool, page);
        }
        for taken in 0..3 {
            let done = one_of(&queue, None).unwrap_or_else(|| panic!("{taken} results in turn {turn}"));
            assert_page(done.user_data, &done);
        }
    }
}

#[test]
fn operations_outlive_the_threads_that_submitted_them() {
    let (folder, file) = direct();
    let path = folder.file("buffered", &content(0, PAGES as usize * PAGE));
    let buffered = OpenOptions::new().read(true).route(ring_route()).open_blocking(&path).unwrap();
    let pool = Pool::new(16 << 20);
    for turn in 0..20 {
        support::cache::drop_cache(&path);
        let queue = SharedQueue::new();
        let mut pages = HashMap::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for page in 0..PAGES {
                    let file = if page % 2 == 0 { &file } else { &buffered };
                    pages.insert(add(&queue, file, &pool, page), page);
                }
                queue.submit();
            });
        });
        let mut left = pages.len();
        must_end("collecting what an ended thread has submitted", move || {
            while let Some(done) = one_of(&queue, None) {
                assert_eq!(pages[&done.token], done.user_data);
                assert_page(done.user_data, &done);
                left -= 1;
            }
            assert_eq!(left, 0, "turn {turn}");
        });
    }
}

fn ring_route() -> ringfile::Route {
    if is_without_ring() { ringfile::Route::Workers } else { ringfile::Route::Ring }
}

#[test]
fn a_dropped_queue_releases_its_memory_when_the_kernel_has_finished() {
    let (reader, writer) = pipe();
    let (_folder, file) = direct();
    let pool = Pool::new(4 << 20);
    for on_another_thread in [false, true] {
        let queue = SharedQueue::new();
        for page in 0..100 {
            add(&queue, &file, &pool, page);
        }
        queue.add(reader.read_at(pool.get(8).unwrap(), 0), 0);
        queue.submit();
        if on_another_thread {
            std::thread::spawn(move || drop(queue)).join().unwrap();
        } else {
            ringfile::block_on(async { drop(queue) });
        }
        wait_for("the memory", || pool.metrics().in_use == 0);
    }
    drop(writer);
}

#[test]
fn a_loop_and_other_queues_of_the_thread_stay_its_own() {
    let (_folder, file) = direct();
    let pool = Pool::new(4 << 20);
    let shared = SharedQueue::new();
    let mut own = Queue::new();
    own.add(file.read_at(pool.get(PAGE).unwrap(), 0), 1);
    own.submit();
    let token = add(&shared, &file, &pool, 5);
    assert_page(5, &shared.wait_for(token).unwrap());
    assert_eq!(own.end().user_data, 1);
    drop(own);
    ringfile::block_on(async {
        let token = add(&shared, &file, &pool, 9);
        let read = file.read_at(pool.get(PAGE).unwrap(), PAGE as u64);
        let refused = loop {
            match shared.wait_for(token) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
                taken => break taken,
            }
        };
        assert_page(9, &refused.unwrap());
        assert_content(&read.await.unwrap(), PAGE as u64);
        assert!(one_of(&shared, None).is_none());
    });
}

#[test]
fn a_descriptor_announces_results_to_any_thread() {
    let (_folder, file) = direct();
    let pool = Pool::new(4 << 20);
    let queue = SharedQueue::new();
    let descriptor: OwnedFd = queue.descriptor().unwrap();
    let (submitter, taken) = (queue.clone(), Arc::new(AtomicUsize::new(0)));
    let poller = {
        let taken = Arc::clone(&taken);
        std::thread::spawn(move || {
            while taken.load(Ordering::SeqCst) < 300 {
                let timeout = Timespec::try_from(patience()).unwrap();
                let mut sources = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
                assert_eq!(poll(&mut sources, Some(&timeout)).unwrap(), 1, "nothing was announced");
                queue.submit();
                while let Some(done) = queue.next() {
                    assert_page(done.user_data, &done);
                    taken.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
    };
    for page in 0..300 {
        add(&submitter, &file, &pool, page);
        submitter.submit();
    }
    poller.join().unwrap();
    assert_eq!(taken.load(Ordering::SeqCst), 300);
}

#[test]
fn user_code_that_a_call_runs_must_not_use_the_queue() {
    let name = "user_code_that_a_call_runs_must_not_use_the_queue";
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    let queue = SharedQueue::new();
    let (inside, caught) = (queue.clone(), Arc::new(Mutex::new(Vec::new())));
    let catches = Arc::clone(&caught);
    on_events(move |_| {
        let used = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| inside.len()));
        catches.lock().unwrap().push(used.err().map(|panic| panic.downcast_ref::<String>().cloned()));
    });
    // An operation that the kernel refuses with a warning: the descriptor of a file that only writes.
    let (_folder, file) = direct();
    support::filters::deny(libc::SYS_io_uring_enter, libc::EPERM);
    let token = queue.add(file.read_at(Pool::new(1 << 20).get(PAGE).unwrap(), 0), 0);
    let _ = queue.wait_for(token).unwrap();
    let caught = caught.lock().unwrap();
    let is_refused = |panic: &String| panic.contains("shared queue");
    assert!(caught.iter().flatten().flatten().any(is_refused), "{caught:?}");
}

/// A subscriber of events uses a second shared queue, in whose call it uses the first, and queues of the thread.
#[test]
fn user_code_in_nested_calls_neither_deadlocks_nor_binds_queues_to_them() {
    let name = "user_code_in_nested_calls_neither_deadlocks_nor_binds_queues_to_them";
    if !needs_ring(name) || !in_child(name) {
        return;
    }
    let (folder, file) = direct();
    let path = folder.file("on-workers", &content(0, PAGE));
    let on_workers =
        OpenOptions::new().read(true).route(ringfile::Route::Workers).open_blocking(path).unwrap();
    let read = move |queue: &mut Queue| {
        let token = queue.add(on_workers.read_at(vec![0; 16], 0), 0);
        queue.wait_for(token).map(|done| done.result.unwrap())
    };
    let (outer, inner) = (SharedQueue::new(), SharedQueue::new());
    // Their rings are made before these are refused.
    for queue in [&outer, &inner] {
        let token = queue.add(file.read_at(Pool::new(1 << 20).get(PAGE).unwrap(), 0), 0);
        queue.wait_for(token).unwrap().result.unwrap();
    }
    let (caught, depth) = (Arc::new(Mutex::new(Vec::new())), AtomicUsize::new(0));
    let (used, used_inside, catches) = (outer.clone(), file.clone(), Arc::clone(&caught));
    let reads = read.clone();
    on_events(move |_| {
        match depth.fetch_add(1, Ordering::SeqCst) {
            0 => {
                let token = inner.add(used_inside.read_at(vec![0; 16], 0), 0);
                let _ = inner.wait_for(token);
                assert!(OWN.with_borrow_mut(|own| reads(own)).is_err());
            }
            _ => {
                let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| used.len()));
                catches.lock().unwrap().push(refused.is_err());
            }
        }
        depth.fetch_sub(1, Ordering::SeqCst);
    });
    support::filters::deny(libc::SYS_io_uring_enter, libc::EPERM);
    must_end("a queue that is used in its own call, in between that of another", move || {
        let token = outer.add(file.read_at(Pool::new(1 << 20).get(PAGE).unwrap(), 0), 0);
        let _ = outer.wait_for(token).unwrap();
        assert_eq!(OWN.with_borrow_mut(|own| read(own)).unwrap(), 16);
    });
    assert!(caught.lock().unwrap().contains(&true), "{caught:?}");
}

thread_local! {
    static OWN: RefCell<Queue> = RefCell::default();
}

#[test]
fn a_read_of_a_pipe_outlives_the_thread_that_submitted_it() {
    let (reader, mut writer) = pipe();
    let queue = SharedQueue::new();
    let token = queue.add(reader.read_at(vec![0; 4], 0), 1);
    std::thread::scope(|scope| _ = scope.spawn(|| queue.submit()));
    let waiting = std::thread::spawn(move || queue.wait_for(token).unwrap().result);
    // Time for the other thread to sleep; threads are not simulated.
    std::thread::sleep(Duration::from_millis(50));
    std::io::Write::write_all(&mut writer, b"abcd").unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), 4);
}

#[test]
fn f20_many_queues_leave_no_descriptor() {
    let name = "f20_many_queues_leave_no_descriptor";
    if !in_child(name) {
        return;
    }
    let (_folder, file) = direct();
    let pool = Pool::new(1 << 20);
    let run = || {
        let queue = SharedQueue::new();
        let token = add(&queue, &file, &pool, 3);
        assert_page(3, &queue.wait_for(token).unwrap());
    };
    run();
    let before = open_descriptors();
    // The kernel takes 30 ms to close an AIO context.
    (0..if is_without_ring() { 50 } else { 1000 }).for_each(|_| run());
    assert!(open_descriptors() <= before + 2, "{before} before");
}

#[test]
fn f22_a_forked_child_does_not_wait_for_the_parents_operations() {
    let name = "f22_a_forked_child_does_not_wait_for_the_parents_operations";
    if !in_child(name) {
        return;
    }
    let (reader, writer) = pipe();
    let (_folder, file) = direct();
    let pool = Pool::new(1 << 20);
    let queue = SharedQueue::new();
    let waits = queue.add(reader.read_at(vec![0; 4], 0), 7);
    queue.submit();
    let sleeper = {
        let queue = queue.clone();
        std::thread::spawn(move || queue.wait_for(waits).unwrap())
    };
    // Time for the other thread to wait before the fork; processes are not simulated.
    std::thread::sleep(Duration::from_millis(20));
    let inherited = queue.clone();
    assert_passed(fork(move || {
        assert!(inherited.wait_for(waits).is_err() || inherited.is_empty());
        let new = SharedQueue::new();
        drop(inherited);
        drop(new);
    }));
    let token = add(&queue, &file, &pool, 2);
    assert_page(2, &queue.wait_for(token).unwrap());
    let mut writer = writer;
    std::io::Write::write_all(&mut writer, b"abcd").unwrap();
    assert_eq!(sleeper.join().unwrap().result.unwrap(), 4);
}
