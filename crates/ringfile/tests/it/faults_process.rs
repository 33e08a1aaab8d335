//! What happens around operations: descriptors that others close, futures that are leaked, leaks (F03, F29).

use std::future::Future;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::sync::OnceLock;

use crate::support;
use crate::support::fuse::{Act, Op, Server};
use crate::support::{
    Folder, assert_content, content, in_child, is_without_ring, must_end, needs_ring, open_descriptors,
    open_on_ring, poll_once, ring_options, wait_closed, yield_now, yield_until,
};
use ringfile::{File, Pool, Runtime, block_on, metrics, thread_metrics};

const PAGE: usize = 4096;

#[test]
fn f29_a_descriptor_closed_or_replaced_by_others_disturbs_no_operation() {
    let name = "f29_a_descriptor_closed_or_replaced_by_others_disturbs_no_operation";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let other = std::fs::File::open(folder.file("other", &[0; 64 * PAGE])).unwrap();
    let given = std::fs::File::open(&path).unwrap();
    let given_number = given.as_raw_fd();
    let route = if is_without_ring() { ringfile::Route::Workers } else { ringfile::Route::Ring };
    ringfile::set_default_route(route);
    let files = [open_on_ring(&path), File::from(given)];
    assert_eq!(files[1].as_fd().as_raw_fd(), given_number, "the user's own descriptor is what AsFd shows");
    let pool = Pool::new(1 << 20);
    for file in &files {
        block_on(async {
            for round in 0..64_u64 {
                let offset = round % 64 * PAGE as u64;
                let mut read = Box::pin(file.read_exact_at(pool.get(PAGE).unwrap(), offset));
                assert!(poll_once(&mut read).await.is_pending());
                let shown = file.as_fd().as_raw_fd();
                if round == 10 {
                    // SAFETY: replaces what the number names; nothing here relies on it naming the old file.
                    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), shown) }, shown);
                }
                assert_content(&read.await.unwrap(), offset);
            }
        });
    }
    for file in &files {
        use std::os::unix::fs::MetadataExt;
        let (shown, truth) = (file.metadata().unwrap(), std::fs::metadata(&path).unwrap());
        assert_eq!(
            shown.ino(),
            truth.ino(),
            "the file's metadata, not those of the file that took its number"
        );
    }
    // Closed by somebody else, and its number is reused for another file.
    let file = &files[0];
    let shown = file.as_fd().as_raw_fd();
    block_on(async {
        let mut read = Box::pin(file.read_exact_at(pool.get(PAGE).unwrap(), 0));
        assert!(poll_once(&mut read).await.is_pending());
        // SAFETY: what the file would close later is replaced below, so that no number is closed that is another's.
        assert_eq!(unsafe { libc::close(shown) }, 0);
        assert_content(&read.await.unwrap(), 0);
        for page in 0..64_u64 {
            let offset = page * PAGE as u64;
            assert_content(&file.read_exact_at(pool.get(PAGE).unwrap(), offset).await.unwrap(), offset);
        }
    });
    // SAFETY: restores an open descriptor under this number.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), shown) }, shown);
}

#[test]
fn f03_descriptors_and_memory_are_all_given_back() {
    let name = "f03_descriptors_and_memory_are_all_given_back";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let round = || {
        let pool = Pool::new(4 << 20);
        let runtime = Runtime::builder().threads(3).build().unwrap();
        let file = open_on_ring(&path);
        let tasks: Vec<_> = (0..30_u64)
            .map(|i| {
                let (file, pool) = (file.clone(), pool.clone());
                runtime.spawn(async move {
                    for page in 0..20 {
                        let mut read = Box::pin(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
                        if (i + page) % 5 == 0 {
                            let _ = poll_once(&mut read).await;
                            continue;
                        }
                        assert_content(&read.await.unwrap(), page * PAGE as u64);
                    }
                    assert!(i % 7 != 0, "a task that panics with memory and a file");
                })
            })
            .collect();
        for (i, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.join().is_err(), i % 7 == 0);
        }
        runtime.shutdown();
        assert_eq!(pool.metrics().in_use, 0);
        drop(file);
        wait_closed(&path);
    };
    round();
    let before = open_descriptors();
    for _ in 0..10 {
        round();
    }
    assert_eq!(open_descriptors(), before);
    assert_eq!(metrics().stray, 0);
}

#[test]
fn f03_threads_that_end_again_and_again_with_operations_in_flight_leave_nothing() {
    let name = "f03_threads_that_end_again_and_again_with_operations_in_flight_leave_nothing";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 256 * PAGE));
    let file = open_on_ring(&path);
    let pool = Pool::new(16 << 20);
    let thread = |which: u64| {
        let (file, pool) = (file.clone(), pool.clone());
        std::thread::spawn(move || {
            for round in 0..20_u64 {
                let moved = block_on(async {
                    let mut kept = Vec::new();
                    for i in 0..64 {
                        let mut read = Box::pin(
                            file.read_exact_at(pool.get(PAGE).unwrap(), (which * 7 + i + round) * 4096),
                        );
                        assert!(poll_once(&mut read).await.is_pending());
                        match i % 3 {
                            0 => drop(read),
                            1 => kept.push((i, read)),
                            _ => assert_content(&read.await.unwrap(), (which * 7 + i + round) * 4096),
                        }
                    }
                    kept
                });
                // Awaited in a different loop from the one where they started.
                for (i, read) in moved {
                    assert_content(&block_on(read).unwrap(), (which * 7 + i + round) * 4096);
                }
            }
        })
    };
    let round = || {
        (0..8).map(thread).collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(pool.metrics().in_use, 0);
    };
    round();
    let before = open_descriptors();
    round();
    assert_eq!(open_descriptors(), before);
    assert_eq!((metrics().stray, metrics().failed), (0, 0));
}

#[test]
fn f29_thousands_of_files_are_never_confused() {
    let name = "f29_thousands_of_files_are_never_confused";
    if !in_child(name) {
        return;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one valid record for each call.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    // A file has two descriptors. There must be more files than the 1024 that a ring registers.
    let want = 10_000.min(limit.rlim_max.saturating_sub(100) / 2);
    if want < 1500 {
        return support::skip(name, format_args!("{} descriptors are too few", limit.rlim_max));
    }
    let folder = Folder::new();
    let number = |file: u64| (file * 0x0123_4567_89AB) as u32;
    let paths: Vec<_> = (0..want).map(|i| folder.file(&i.to_string(), &number(i).to_ne_bytes())).collect();
    let read = async |file: &File, i: u64| {
        let got = file.read_exact_at(Vec::with_capacity(4), 0).await.unwrap();
        assert_eq!(u32::from_ne_bytes(got[..].try_into().unwrap()), number(i));
    };
    block_on(async {
        let before = open_descriptors();
        for round in 0..2 {
            // The second time, other files get the descriptor numbers of the first.
            let which = |i: u64| if round == 0 { i } else { want - 1 - i };
            let files: Vec<_> = (0..want).map(|i| open_on_ring(&paths[which(i) as usize])).collect();
            for i in 0..want {
                read(&files[i as usize], which(i)).await;
            }
            // So often that they are registered, if their numbers are below the limit; some are above.
            for i in (0..want).step_by(97) {
                for _ in 0..12 {
                    read(&files[i as usize], which(i)).await;
                }
            }
            drop(files);
            yield_now().await;
        }
        assert_eq!(thread_metrics().failed, 0);
        // The ring and the eventfd were made by the first read. A worker may be about to close its last file.
        yield_until("the files to be closed", || open_descriptors() <= before + 3).await;
    });
}

#[test]
fn f03_a_panic_of_the_main_future_drains_and_leaves_the_thread_usable() {
    let name = "f03_a_panic_of_the_main_future_drains_and_leaves_the_thread_usable";
    if !needs_ring(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 8 * PAGE)) else { return };
    server.rule(Op::Read, 0..4096, 4, Act::Delay(std::time::Duration::from_millis(100)));
    let file = ring_options().read(true).open_blocking(server.path()).unwrap();
    let pool = Pool::new(1 << 20);
    let thrown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        block_on(async {
            let mut reads: Vec<_> =
                (0..4).map(|_| Box::pin(file.read_at(pool.get(PAGE).unwrap(), 0))).collect();
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
            yield_now().await;
            std::panic::panic_any(17);
        })
    }));
    assert_eq!(thrown.unwrap_err().downcast_ref(), Some(&17));
    assert_eq!(pool.metrics().in_use, 0);
    assert_content(&block_on(file.read_exact_at(pool.get(PAGE).unwrap(), 4096)).unwrap(), 4096);
}

#[test]
fn f03_futures_that_are_leaked_harm_nobody() {
    let folder = Folder::new();
    // Kept in a static, where a leak checker finds it.
    static FILE: OnceLock<File> = OnceLock::new();
    let file = FILE.get_or_init(|| open_on_ring(folder.file("data", &content(0, 8 * PAGE))));
    let pool = Pool::new(1 << 20);
    let memory = pool.clone();
    must_end("a thread whose futures were leaked", move || {
        block_on(async {
            for _ in 0..100 {
                let mut read = Box::pin(file.read_at(memory.get(PAGE).unwrap(), 0));
                assert!(poll_once(&mut read).await.is_pending());
                support::keep(read);
            }
            assert_content(&file.read_at(memory.get(PAGE).unwrap(), 0).await.unwrap(), 0);
        });
    });
    // The library cannot know that these futures are gone, so it never reuses their memory.
    assert_eq!(pool.metrics().in_use, 100 * PAGE);
}

#[test]
fn f01_a_future_goes_through_several_loops() {
    if !needs_ring("f01_a_future_goes_through_several_loops") {
        return;
    }
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 8 * PAGE)));
    let mut read = pin!(file.read_exact_at(vec![0; PAGE], 0));
    for _ in 0..2 {
        let polled =
            block_on(std::future::poll_fn(|context| std::task::Poll::Ready(read.as_mut().poll(context))));
        if let std::task::Poll::Ready(result) = polled {
            return assert_content(&result.unwrap(), 0);
        }
    }
    panic!("a loop that was left drains its operations: the next poll has the result");
}

thread_local! {
    static ENDS: std::cell::Cell<Option<std::sync::mpsc::Sender<()>>> = const { std::cell::Cell::new(None) };
}

fn ring_route() -> ringfile::Route {
    if support::is_without_ring() { ringfile::Route::Workers } else { ringfile::Route::Ring }
}

#[test]
fn f03_a_runtime_is_dropped_with_more_reads_than_its_queue_has_room_for() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 16 * PAGE));
    must_end("a runtime with a short queue", move || {
        let file = ringfile::OpenOptions::new().read(true).route(ring_route()).open_blocking(path).unwrap();
        let runtime = std::sync::Arc::new(std::sync::Mutex::new(Some(
            ringfile::Runtime::builder().threads(1).entries(2).build().unwrap(),
        )));
        let own = std::sync::Arc::clone(&runtime);
        let (ends, ended) = std::sync::mpsc::channel::<()>();
        let guard = runtime.lock().unwrap();
        guard.as_ref().unwrap().spawn(async move {
            // Dropped when the thread ends, after it has left its loop.
            ENDS.set(Some(ends));
            static FILE: OnceLock<ringfile::File> = OnceLock::new();
            let file = FILE.get_or_init(|| file);
            let mut reads: Vec<_> = (0..16)
                .map(|page| Box::pin(file.read_at(Vec::with_capacity(PAGE), page * PAGE as u64)))
                .collect();
            let mut polls = 0;
            std::future::poll_fn(move |context| {
                polls += 1;
                if polls == 1 {
                    for read in &mut reads {
                        assert!(std::pin::Pin::new(read).poll(context).is_pending());
                    }
                    context.waker().wake_by_ref();
                } else if polls == 2 {
                    // On the loop's own thread: the remaining reads wait for room, and are withdrawn with the task.
                    drop(own.lock().unwrap().take());
                }
                std::task::Poll::<()>::Pending
            })
            .await;
        });
        drop(guard);
        assert!(ended.recv().is_err());
    });
}
