//! Reads into buffers that stay with their caller, who waits for all of them.

use crate::support::handles::Handles as _;
use std::cell::RefCell;
use std::future::Future;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::support;
use crate::support::forms::routes;
use crate::support::fuse::{Act, Op, Server};
use crate::support::random::Random;
use crate::support::{
    Folder, assert_content, content, must_end, needs_ring, open_on_ring, pipe, reads_without_waiting, skip,
    wait_for, workers_are_forced,
};
use ringfile::queue::{ReadRequest, WriteRequest};
use ringfile::{
    Batch, Buffer, File, OpenOptions, Pool, Queue, RegisteredMemory, Route, block_on, thread_metrics,
};

const PAGE: usize = 4096;

fn requests(pool: &Pool, offsets: impl IntoIterator<Item = u64>) -> Vec<ReadRequest> {
    offsets.into_iter().map(|offset| ReadRequest::new(pool.get(PAGE).unwrap(), offset)).collect()
}

#[track_caller]
fn assert_all_read(requests: &[ReadRequest]) {
    for request in requests {
        assert_eq!(*request.result.as_ref().unwrap(), PAGE);
        assert_content(&request.buffer, request.offset);
    }
}

#[test]
fn each_read_has_its_own_result_on_every_route() {
    const SIZE: usize = 300 * PAGE + 100;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, SIZE));
    let mut random = Random::new();
    for route in routes() {
        for direct in [false, true] {
            let options = OpenOptions::new().read(true).route(route).clone();
            let file = if direct {
                options.clone().direct(true).open_blocking(&path)
            } else {
                options.open_blocking(&path)
            };
            let Ok(file) = file else {
                skip("each_read_has_its_own_result_on_every_route", "no direct I/O here");
                continue;
            };
            let (pool, mut queue) = (Pool::new(16 << 20), Queue::new());
            for round in 0..8 {
                // More than a ring has room for, and fewer.
                let count = if round % 2 == 0 { 700 } else { random.below(20) as usize };
                let mut requests: Vec<_> = (0..count)
                    .map(|_| {
                        let aligned = random.below(2) == 0;
                        let at = random.below(SIZE as u64 + 2 * PAGE as u64);
                        let offset = if aligned { at / PAGE as u64 * PAGE as u64 } else { at };
                        let len = if aligned { PAGE } else { random.below(3 * PAGE as u64) as usize };
                        let offset = if random.below(50) == 0 { u64::MAX - offset } else { offset };
                        ReadRequest::new(pool.get(len.max(1)).unwrap(), offset)
                    })
                    .collect();
                let places: Vec<_> =
                    requests.iter().map(|read| (read.buffer.as_ptr(), read.offset)).collect();
                queue.read_many(&file, &mut requests).unwrap();
                for (request, place) in requests.iter().zip(places) {
                    let ReadRequest { buffer, offset, result, .. } = request;
                    assert_eq!((buffer.as_ptr(), *offset), place, "{route:?}");
                    if *offset > i64::MAX as u64 {
                        let error = result.as_ref().unwrap_err();
                        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{route:?}");
                        continue;
                    }
                    let expected = buffer.capacity().min(SIZE.saturating_sub(*offset as usize));
                    assert_eq!(*result.as_ref().unwrap(), expected, "{route:?} at {offset}");
                    assert_eq!(buffer.len(), expected, "{route:?} at {offset}");
                    assert_content(buffer, *offset);
                }
                drop(requests);
                assert_eq!((pool.metrics().in_use, queue.len()), (0, 0), "{route:?}");
            }
        }
    }
}

#[test]
fn many_reads_are_one_system_call_and_use_registered_memory() {
    let name = "many_reads_are_one_system_call_and_use_registered_memory";
    // Alone: memory that another test frees interrupts a wait, so that there is another call.
    if !needs_ring(name) || !support::in_child(name) {
        return;
    }
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 256 * PAGE)));
    if let Err(why) = reads_without_waiting(&file) {
        return skip(name, why);
    }
    let (pool, mut queue) = (Pool::new(4 << 20), Queue::new());
    let memory = RegisteredMemory::new(vec![0_u8; 64 * PAGE]);
    let lent = (0..64).map(|page| memory.lend(page * PAGE..(page + 1) * PAGE).unwrap());
    let lent = lent.zip(0..).map(|(buffer, page)| ReadRequest::new(buffer, page * PAGE as u64)).collect();
    for mut requests in [requests(&pool, (0..64).map(|page| page * PAGE as u64)), lent] {
        queue.read_many(&file, &mut requests).unwrap();
        let before = thread_metrics();
        queue.read_many(&file, &mut requests).unwrap();
        let after = thread_metrics();
        assert_all_read(&requests);
        assert_eq!(after.ops - before.ops, 64);
        assert_eq!(after.bytes_read - before.bytes_read, 64 * PAGE as u64);
        assert_eq!(after.enters - before.enters, 1);
        if support::has_registered_buffers() {
            assert_eq!(after.fixed_ops - before.fixed_ops, 64);
        }
    }
}

#[test]
fn an_error_is_that_of_its_read() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    for route in routes() {
        let file = OpenOptions::new().write(true).route(route).open_blocking(&path).unwrap();
        let pool = Pool::new(1 << 20);
        let mut requests = requests(&pool, [0, 0, 0]);
        Queue::new().read_many(&file, &mut requests).unwrap();
        for request in requests {
            assert_eq!(request.result.unwrap_err().errno(), Some(libc::EBADF), "{route:?}");
            assert_eq!((request.buffer.len(), request.buffer.capacity()), (0, PAGE), "{route:?}");
        }
    }
    let Some(server) = Server::or_skip("an_error_is_that_of_its_read", content(0, 8 * PAGE)) else { return };
    for route in routes() {
        server.rule(Op::Read, 4 * PAGE as u64..5 * PAGE as u64, 1, Act::Fail(libc::EIO));
        server.rule(Op::Read, PAGE as u64..2 * PAGE as u64, 1, Act::Short(100));
        let file = OpenOptions::new().read(true).route(route).open_blocking(server.path()).unwrap();
        let pool = Pool::new(1 << 20);
        let mut requests = requests(&pool, (0..8).map(|page| page * PAGE as u64));
        Queue::new().read_many(&file, &mut requests).unwrap();
        assert_eq!(server.faults_left(), 0, "{route:?}");
        let failed = &requests[4];
        assert_eq!(failed.result.as_ref().unwrap_err().errno(), Some(libc::EIO), "{route:?}");
        assert!(failed.result.as_ref().unwrap_err().to_string().contains("16384"), "{route:?}");
        assert_all_read(&requests[..4]);
        assert_all_read(&requests[5..]);
    }
}

/// Reads these pages at once, one of which the server answers only after all others.
fn read_beside_a_slow_one(server: &Server, file: &File, pages: [u64; 4], slow: usize) {
    let offsets = pages.map(|page| page * PAGE as u64);
    server.rule(Op::Read, offsets[slow]..offsets[slow] + 1, 1, Act::Hold);
    let had = server.log().len();
    let pool = Pool::new(1 << 20);
    let mut requests = requests(&pool, offsets);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_for("answers to the other reads", || server.log().len() - had >= pages.len() - 1);
            server.wait_held(1);
            server.release();
        });
        Queue::new().read_many(file, &mut requests).unwrap();
    });
    assert_all_read(&requests);
}

#[test]
fn a_slow_read_holds_up_no_other_read_of_its_call() {
    let name = "a_slow_read_holds_up_no_other_read_of_its_call";
    // Far apart, so that the kernel does not read one ahead with another.
    const PAGES: [u64; 4] = [5, 21, 37, 53];
    for mount in [Server::mount, Server::caching] {
        let server = match mount(content(0, 64 * PAGE)) {
            Ok(server) => server,
            Err(why) => return skip(name, why),
        };
        for (direct, adaptive) in [(true, false), (false, false), (false, true)] {
            if !direct && !server.shows_its_cache() {
                skip(name, "buffered: before Linux 6.5, the first calls are made to time them");
                continue;
            }
            for slow in 0..PAGES.len() {
                let options = OpenOptions::new().read(true).direct(direct).adaptive(adaptive).clone();
                // Nothing is known of it yet, and opening it empties the cache.
                let file = options.open_blocking(server.path()).unwrap();
                read_beside_a_slow_one(&server, &file, PAGES, slow);
            }
        }
    }
}

#[test]
fn cached_reads_of_a_servers_file_are_plain_calls() {
    let server = match Server::caching(content(0, 8 * PAGE)) {
        Ok(server) if server.shows_its_cache() => server,
        Ok(_) => return skip("cached_reads_of_a_servers_file_are_plain_calls", "no cachestat"),
        Err(why) => return skip("cached_reads_of_a_servers_file_are_plain_calls", why),
    };
    let file = File::open_blocking(server.path()).unwrap();
    let (pool, mut queue) = (Pool::new(1 << 20), Queue::new());
    let mut read = |pages: [u64; 2]| {
        let mut requests = requests(&pool, pages.map(|page| page * PAGE as u64));
        let before = thread_metrics();
        queue.read_many(&file, &mut requests).unwrap();
        assert_all_read(&requests);
        (thread_metrics() - before).inline_ops
    };
    assert_eq!(read([2, 6]), 0);
    let asked = server.log();
    if !workers_are_forced() {
        assert_eq!(read([6, 2]), 2);
    }
    assert_eq!(server.log(), asked);
}

#[test]
fn operations_of_the_queue_keep_their_results() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    for route in routes() {
        let file = OpenOptions::new().read(true).route(route).open_blocking(&path).unwrap();
        let (pool, mut queue) = (Pool::new(1 << 20), Queue::new());
        for page in 0..10 {
            queue.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64), page);
        }
        queue.submit();
        for page in 10..20 {
            queue.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64), page);
        }
        let mut requests = requests(&pool, (20..60).map(|page| page * PAGE as u64));
        queue.read_many(&file, &mut requests).unwrap();
        assert_all_read(&requests);
        let mut pages: Vec<_> = (queue.end_all(20).into_iter())
            .map(|done| {
                assert_content(&done.buffer.unwrap(), done.user_data * PAGE as u64);
                done.user_data
            })
            .collect();
        pages.sort_unstable();
        assert_eq!(pages, (0..20).collect::<Vec<_>>(), "{route:?}");
    }
}

#[test]
fn a_task_does_not_block_its_thread() {
    let folder = Folder::new();
    let file = File::open_blocking(folder.file("data", &content(0, PAGE))).unwrap();
    let pool = Pool::new(1 << 20);
    let mut requests = requests(&pool, [0]);
    let error = block_on(async { Queue::new().read_many(&file, &mut requests).unwrap_err() });
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(requests[0].buffer.capacity(), PAGE);
}

/// A waker that does something.
struct Acting(Mutex<Box<dyn FnMut() + Send>>);

impl Wake for Acting {
    fn wake(self: Arc<Self>) {
        (self.0.lock().unwrap())();
    }
}

/// Reads what a server holds back, while another queue of the thread calls `act` as a waker. Returns how that went, and
/// how many results the other queue has. `release` is called when
/// the waker has been.
fn read_beside(
    server: &Server,
    act: impl FnMut() + Send + 'static,
    requests: &mut [ReadRequest],
    release: impl FnMut() + Send,
) -> (std::thread::Result<()>, usize) {
    let held = requests.len();
    wait_beside(server, act, held, |file| Queue::new().read_many(file, requests).unwrap(), release)
}

/// As [`read_beside`], with any reads.
fn wait_beside(
    server: &Server,
    act: impl FnMut() + Send + 'static,
    held: usize,
    read: impl FnOnce(&File),
    mut release: impl FnMut() + Send,
) -> (std::thread::Result<()>, usize) {
    let file =
        OpenOptions::new().read(true).direct(true).route(Route::Ring).open_blocking(server.path()).unwrap();
    let (piped, mut writer) = pipe();
    let mut other = Queue::new();
    other.add(piped.read_at(vec![0; 1], 0), 0);
    let waker = Waker::from(Arc::new(Acting(Mutex::new(Box::new(act)))));
    other.submit();
    assert!(pin!(other.ready()).poll(&mut Context::from_waker(&waker)).is_pending());
    let read = std::thread::scope(|scope| {
        scope.spawn(move || {
            server.wait_held(held);
            writer.write_all(b"x").unwrap();
            release();
            server.release();
        });
        catch_unwind(AssertUnwindSafe(|| read(&file)))
    });
    (read, other.wait(1..=9, Some(support::patience()), &mut Vec::new()))
}

#[test]
fn f02_a_panic_does_not_give_up_buffers_that_the_kernel_has() {
    let name = "f02_a_panic_does_not_give_up_buffers_that_the_kernel_has";
    if !needs_ring(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 16 * PAGE)) else { return };
    must_end("reads beside a waker that panics", move || {
        server.rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Hold);
        let pool = Pool::new(1 << 20);
        let mut requests = requests(&pool, (0..4).map(|page| page * PAGE as u64));
        let (panicked, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let note = Arc::clone(&panicked);
        let act = move || {
            note.store(true, Ordering::SeqCst);
            panic!("a waker that panics");
        };
        let (has_panicked, has_ended) = (Arc::clone(&panicked), Arc::clone(&ended));
        let (read, ended_beside) = read_beside(&server, act, &mut requests, move || {
            support::wait_for("the waker", || has_panicked.load(Ordering::SeqCst));
            // Time in which the other thread must not unwind; threads are not simulated.
            std::thread::sleep(Duration::from_millis(100));
            assert!(!has_ended.load(Ordering::SeqCst), "it unwound while the kernel had the buffers");
        });
        ended.store(true, Ordering::SeqCst);
        assert!(read.is_err());
        assert_eq!(ended_beside, 1);
        assert_all_read(&requests);
    });
}

#[test]
fn f02_after_a_panic_each_read_of_a_queue_has_one_result() {
    let name = "f02_after_a_panic_each_read_of_a_queue_has_one_result";
    if !needs_ring(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 16 * PAGE)) else { return };
    must_end("reads of a queue beside a waker that panics", move || {
        // The third read is short, and so is repeated by the queue.
        server.rule(Op::Read, 2 * PAGE as u64..3 * PAGE as u64, 1, Act::Short(100));
        server.rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Hold);
        let (pool, mut queue) = (Pool::new(1 << 20), Queue::new());
        let panicked = Arc::new(AtomicBool::new(false));
        let (note, has_panicked) = (Arc::clone(&panicked), Arc::clone(&panicked));
        let act = move || {
            note.store(true, Ordering::SeqCst);
            panic!("a waker that panics");
        };
        let add = |queue: &mut Queue, file: &File, page: u64| {
            queue.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64), page);
        };
        let mut file_of_reads = None;
        let wait = |file: &File| {
            file_of_reads = Some(file.clone());
            (0..4).for_each(|page| add(&mut queue, file, page));
            queue.settle(4);
        };
        let (waited, ended_beside) = wait_beside(&server, act, 3, wait, move || {
            support::wait_for("the waker", || has_panicked.load(Ordering::SeqCst));
        });
        assert!(waited.is_err());
        assert_eq!(ended_beside, 1);
        let file = file_of_reads.unwrap();
        let mut pages = Vec::new();
        let mut take = |queue: &mut Queue| {
            let done = queue.next().unwrap();
            let page = done.user_data;
            assert_eq!(done.result.unwrap(), PAGE);
            assert_content(&done.buffer.unwrap(), page * PAGE as u64);
            pages.push(page);
        };
        // New operations take the places of results, and must not be started twice.
        take(&mut queue);
        (4..12).for_each(|page| add(&mut queue, &file, page));
        queue.settle(11);
        (0..11).for_each(|_| take(&mut queue));
        pages.sort_unstable();
        assert_eq!(pages, (0..12).collect::<Vec<_>>());
        assert_eq!((queue.len(), pool.metrics().in_use), (0, 0));
    });
}

#[test]
fn a_waker_may_read_meanwhile() {
    let name = "a_waker_may_read_meanwhile";
    if !needs_ring(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 16 * PAGE)) else { return };
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 64 * PAGE)));
    must_end("reads inside a waker", move || {
        server.rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Hold);
        let pool = Pool::new(4 << 20);
        let mut outer = requests(&pool, (0..4).map(|page| page * PAGE as u64));
        let calls = Arc::new(AtomicU32::new(0));
        let (called, pool) = (Arc::clone(&calls), pool.clone());
        let act = move || {
            let mut inner = requests(&pool, (0..40).map(|page| page * PAGE as u64));
            Queue::new().read_many(&file, &mut inner).unwrap();
            assert_all_read(&inner);
            let read = block_on(file.read_exact_at(vec![0; 100], 1)).unwrap();
            assert_content(&read, 1);
            let mut batch = Batch::new();
            for page in 0..40 {
                batch.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
            }
            for (page, done) in (0..).zip(batch.run()) {
                assert_content(&done.buffer.unwrap(), page * PAGE as u64);
            }
            called.fetch_add(1, Ordering::SeqCst);
        };
        let called = Arc::clone(&calls);
        let (read, ended_beside) = read_beside(&server, act, &mut outer, move || {
            support::wait_for("the waker", || called.load(Ordering::SeqCst) > 0);
        });
        assert!(read.is_ok());
        assert_eq!(ended_beside, 1);
        assert_all_read(&outer);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn memory_that_is_lent_stays_lent() {
    let folder = Folder::new();
    let file = File::open_blocking(folder.file("data", &content(0, 8 * PAGE))).unwrap();
    let memory = RegisteredMemory::new(vec![0_u8; 8 * PAGE]);
    let buffers: Vec<Buffer> = (0..8).map(|at| memory.lend(at * PAGE..(at + 1) * PAGE).unwrap()).collect();
    let mut requests: Vec<_> =
        buffers.into_iter().zip(0..).map(|(buffer, at)| ReadRequest::new(buffer, at * PAGE as u64)).collect();
    Queue::new().read_many(&file, &mut requests).unwrap();
    assert_all_read(&requests);
    assert_eq!(memory.lent(), 8 * PAGE);
    drop(requests);
    assert_eq!(memory.lent(), 0);
    assert_content(&memory.lend(..).unwrap(), 0);
}

/// Calls a function when it is dropped.
struct AtEnd(Option<Box<dyn FnOnce()>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.take().unwrap()();
    }
}

thread_local! {
    static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
}

/// There the loop that the waker leaves drops the thread's driver, with the ring.
#[test]
fn f41_a_waker_may_leave_a_loop_on_a_thread_that_ends() {
    let name = "f41_a_waker_may_leave_a_loop_on_a_thread_that_ends";
    if !needs_ring(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 16 * PAGE)) else { return };
    must_end("a thread that reads at its end", move || {
        std::thread::spawn(move || {
            let at_end = move || {
                server.rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Hold);
                let pool = Pool::new(1 << 20);
                let mut requests = requests(&pool, (0..4).map(|page| page * PAGE as u64));
                // Not called on Linux 5.10.
                let act = || block_on(async {});
                // The result beside may be lost with the driver.
                assert!(read_beside(&server, act, &mut requests, || {}).0.is_ok());
                for request in requests {
                    if request.result.is_ok() {
                        assert_content(&request.buffer, request.offset);
                    }
                }
            };
            // Dropped after the library's own locals, which are made later.
            AT_END.set(Some(AtEnd(Some(Box::new(at_end)))));
            block_on(async {});
        })
        .join()
        .unwrap();
    });
}

/// The call must return the memory even if nothing can be started any more; otherwise it would end the process.
#[test]
fn f41_borrowed_memory_comes_back_on_a_thread_that_ends() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 16 * PAGE));
    let written = folder.file("written", b"");
    must_end("a thread that reads into borrowed memory at its end", move || {
        for route in routes() {
            for direct in [false, true] {
                let (path, written) = (path.clone(), written.clone());
                std::thread::spawn(move || {
                    let at_end = move || {
                        let mut options = OpenOptions::new();
                        options.read(true).route(route).direct(direct).buffered_fallback(direct);
                        let file = options.open_blocking(&path).unwrap();
                        let mut memory = vec![0; 4 * PAGE];
                        // Not aligned: no direct read of these is made in place.
                        let mut requests: Vec<_> = memory
                            .chunks_mut(PAGE - 1)
                            .enumerate()
                            .map(|(at, chunk)| ReadRequest::new(chunk, (at * PAGE) as u64 + 1))
                            .collect();
                        Queue::new().read_many(&file, &mut requests).unwrap();
                        for request in requests {
                            if request.result.is_ok() {
                                assert_content(request.buffer, request.offset);
                            }
                        }
                        let file =
                            OpenOptions::new().write(true).route(route).open_blocking(&written).unwrap();
                        let bytes = content(0, PAGE);
                        let mut requests = [WriteRequest::new(&bytes[..], 0)];
                        Queue::new().write_many(&file, &mut requests).unwrap();
                    };
                    AT_END.set(Some(AtEnd(Some(Box::new(at_end)))));
                    // Makes the thread's driver, whose end comes first.
                    block_on(async {});
                    let mut byte = [0];
                    let file = File::open_blocking("/proc/self/exe").unwrap();
                    Queue::new().read_many(&file, &mut [ReadRequest::new(&mut byte[..], 0)]).unwrap();
                })
                .join()
                .unwrap();
            }
        }
    });
}

#[test]
fn borrowed_memory_is_read_and_written_on_every_route() {
    const SIZE: usize = 100 * PAGE + 100;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, SIZE));
    let mut random = Random::new();
    for route in routes() {
        for form in ["buffered", "direct", "adaptive"] {
            let mut options = OpenOptions::new();
            options.read(true).write(true).route(route).buffered_fallback(true);
            options.direct(form == "direct").adaptive(form == "adaptive");
            let Ok(file) = options.open_blocking(&path) else {
                skip("borrowed_memory_is_read_and_written_on_every_route", form);
                continue;
            };
            let (pool, mut queue) = (Pool::new(16 << 20), Queue::new());
            let mut pooled = pool.get(1 << 20).unwrap();
            pooled.resize(1 << 20, 0);
            let mut plain = vec![0; 1 << 20];
            for round in 0..6 {
                let count = if round % 2 == 0 { 400 } else { random.below(20) as usize };
                let memory = if round < 3 { &mut plain[..] } else { &mut pooled[..] };
                memory.fill(0xee);
                let mut rest = memory;
                let mut requests = Vec::new();
                for _ in 0..count {
                    let aligned = random.below(2) == 0;
                    let len = if aligned { PAGE } else { random.below(2 * PAGE as u64) as usize };
                    let Some((one, others)) = rest.split_at_mut_checked(len) else { break };
                    rest = others;
                    let at = random.below(SIZE as u64 + PAGE as u64);
                    let at = if aligned { at / PAGE as u64 * PAGE as u64 } else { at };
                    let at = if random.below(50) == 0 { u64::MAX - at } else { at };
                    requests.push(ReadRequest::new(one, at));
                }
                queue.read_many(&file, &mut requests).unwrap();
                for ReadRequest { buffer, offset, result, .. } in requests {
                    if offset > i64::MAX as u64 {
                        assert!(result.is_err() || buffer.is_empty(), "{route:?}, {form}");
                        continue;
                    }
                    let expected = buffer.len().min(SIZE.saturating_sub(offset as usize));
                    assert_eq!(result.unwrap(), expected, "{route:?}, {form}, at {offset}");
                    assert_content(&buffer[..expected], offset);
                }
                queue.read_many::<Buffer>(&file, &mut []).unwrap();
                // The same bytes are written where they are.
                let memory = if round < 3 { &mut plain[..] } else { &mut pooled[..] };
                memory[..64 * PAGE].copy_from_slice(&content(0, 64 * PAGE));
                let pages = memory[..64 * PAGE].chunks(PAGE).zip(0..);
                let mut requests: Vec<_> =
                    pages.map(|(page, at)| WriteRequest::new(page, at * PAGE as u64)).collect();
                queue.write_many(&file, &mut requests).unwrap();
                for request in requests {
                    match request.result {
                        Ok(written) => assert_eq!(written, PAGE),
                        // A vector's memory may lie anywhere.
                        Err(error) => {
                            assert_eq!((form, round < 3), ("direct", true), "{error}");
                            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
                        }
                    }
                }
                assert_eq!(std::fs::read(&path).unwrap(), content(0, SIZE), "{route:?}, {form}");
                assert_eq!(queue.len(), 0);
            }
        }
    }
}

#[test]
fn borrowed_memory_of_a_pool_is_used_registered_with_one_system_call() {
    let name = "borrowed_memory_of_a_pool_is_used_registered_with_one_system_call";
    if !needs_ring(name) || !support::in_child(name) {
        return;
    }
    let folder = Folder::new();
    let file = open_on_ring(folder.file("data", &content(0, 64 * PAGE)));
    if let Err(why) = reads_without_waiting(&file) {
        return skip(name, why);
    }
    let (pool, mut queue) = (Pool::new(4 << 20), Queue::new());
    let mut memory = pool.get(64 * PAGE).unwrap();
    memory.resize(64 * PAGE, 0);
    for round in 0..2 {
        let pages = memory.chunks_mut(PAGE).zip(0..);
        let mut requests: Vec<_> = pages.map(|(page, at)| ReadRequest::new(page, at * PAGE as u64)).collect();
        let before = thread_metrics();
        queue.read_many(&file, &mut requests).unwrap();
        let after = thread_metrics();
        assert_eq!(after.ops - before.ops, 64);
        if round == 1 {
            assert_eq!(after.enters - before.enters, 1);
        }
        if support::has_registered_buffers() {
            assert_eq!(after.fixed_ops - before.fixed_ops, 64);
        }
    }
    assert_content(&memory, 0);
}

/// Reads and writes of borrowed memory that do not stay in place.
#[test]
fn f02_f57_a_panic_does_not_give_up_borrowed_memory_of_operations_with_a_slot() {
    let name = "f02_f57_a_panic_does_not_give_up_borrowed_memory_of_operations_with_a_slot";
    if !needs_ring(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 16 * PAGE)) else { return };
    must_end("unaligned reads beside a waker that panics", move || {
        server.rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Hold);
        // Unaligned, so each goes through memory of the library.
        let mut memory = vec![0; 4 * PAGE];
        let mut requests: Vec<_> = memory
            .chunks_mut(PAGE)
            .zip(0..)
            .map(|(page, at)| ReadRequest::new(page, at * PAGE as u64 + 1))
            .collect();
        let (panicked, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let note = Arc::clone(&panicked);
        let act = move || {
            note.store(true, Ordering::SeqCst);
            panic!("a waker that panics");
        };
        let (has_panicked, has_ended) = (Arc::clone(&panicked), Arc::clone(&ended));
        let read = |file: &File| Queue::new().read_many(file, &mut requests).unwrap();
        let (read, ended_beside) = wait_beside(&server, act, 4, read, move || {
            support::wait_for("the waker", || has_panicked.load(Ordering::SeqCst));
            // Time in which the other thread must not unwind; threads are not simulated.
            std::thread::sleep(Duration::from_millis(100));
            assert!(!has_ended.load(Ordering::SeqCst), "it unwound while the kernel had the memory");
        });
        ended.store(true, Ordering::SeqCst);
        assert!(read.is_err());
        assert_eq!(ended_beside, 1);
        for request in requests {
            assert_eq!(request.result.unwrap(), PAGE);
            assert_content(request.buffer, request.offset);
        }
    });
}

/// The child has its own copy of the memory, which the kernel does not write to; the parent gets its data.
#[test]
fn f22_a_fork_in_the_middle_leaves_the_parents_reads_alone_and_ends_those_of_the_child() {
    let name = "f22_a_fork_in_the_middle_leaves_the_parents_reads_alone_and_ends_those_of_the_child";
    if !needs_ring(name) {
        return;
    }
    // Unaligned reads go through memory of the library, aligned ones of a pool's memory stay in place.
    for shift in [1, 0] {
        let Some(server) = Server::or_skip(name, content(0, 16 * PAGE)) else { return };
        must_end("reads beside a waker that forks", move || {
            server.rule(Op::Read, 0..u64::MAX, usize::MAX, Act::Hold);
            let pool = Pool::new(1 << 20);
            let mut memory = pool.get(4 * PAGE).unwrap();
            memory.resize(4 * PAGE, 0);
            let mut requests: Vec<_> = memory
                .chunks_mut(PAGE)
                .zip(0..)
                .map(|(page, at)| ReadRequest::new(page, at * PAGE as u64 + shift))
                .collect();
            let child = Arc::new(AtomicU32::new(0));
            let note = Arc::clone(&child);
            let act = move || {
                // SAFETY: the child only returns from the call that it is in, and ends.
                match unsafe { libc::fork() } {
                    0 => {
                        // SAFETY: it ends the child if that hangs.
                        unsafe { libc::alarm(30) };
                    }
                    id => note.store(id.cast_unsigned(), Ordering::SeqCst),
                }
            };
            let parent = std::process::id();
            let read = |file: &File| {
                let read = catch_unwind(AssertUnwindSafe(|| Queue::new().read_many(file, &mut requests)));
                if std::process::id() != parent {
                    let is_right = read.is_ok_and(|read| read.is_ok())
                        && requests.iter().all(|request| match &request.result {
                            Ok(read) => request.buffer[..*read] == content(request.offset, *read),
                            Err(_) => true,
                        });
                    // SAFETY: ends the child, without the destructors of what the parent goes on using.
                    unsafe { libc::_exit(if is_right { 0 } else { 1 }) };
                }
                read.unwrap().unwrap();
            };
            let has_forked = Arc::clone(&child);
            let (read, ended_beside) = wait_beside(&server, act, 4, read, move || {
                support::wait_for("the fork", || has_forked.load(Ordering::SeqCst) != 0);
            });
            assert!(read.is_ok());
            assert_eq!(ended_beside, 1);
            for request in requests {
                assert_eq!(request.result.unwrap(), PAGE);
                assert_content(request.buffer, request.offset);
            }
            let (child, mut status) = (child.load(Ordering::SeqCst).cast_signed(), 0);
            // SAFETY: the status is written to a local value.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child's calls have ended, with what it can know");
        });
    }
}
