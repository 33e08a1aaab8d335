//! Tests that need the inside of a driver: completions that come late, twice or for no operation, small queues.

use std::future::poll_fn;
use std::io::Write;
use std::task::{Context, Poll, Waker};

use futures::{pending, poll};
use linux_raw_sys::io_uring as uapi;
use tempfile::NamedTempFile;

use super::state::{CancelledStreams, Driver, with};
use crate::driver::mail::shared::RemoteRequest;
use crate::driver::ports::entry::SLICE;
use crate::driver::slots::key::Key;
use crate::driver::slots::slot::State;
use crate::driver::target::route::{Backend, backend};
use crate::driver::{Kind, Lend, Loan, OpResult, RemoteOperation, Request, cached_pages};
use crate::memory::IoMemory;
use crate::patience::patience;
use crate::queue::ReadRequest;
use crate::ring::{RingOptions, Sqe, TaskRun, Until};
use crate::runtime::block_on_with;
use crate::skip::skip;
use crate::{Batch, Durability, File, OpenOptions, Pool, Queue, Route, block_on, thread_metrics};

fn temp_file(content: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file
}

/// Returns whether rings are allowed; if the environment switches them off, prints that `test` is skipped.
fn needs_ring(test: &str) -> bool {
    let forced = backend() != Backend::Any;
    if forced {
        skip(test, "it is about the ring, which RINGFILE_DISABLE switches off");
    }
    !forced
}

/// Adopts a file whose operations go to the ring, if `test` [can have one](needs_ring).
fn on_ring(test: &str, file: impl Into<std::fs::File>) -> Option<File> {
    needs_ring(test).then(|| OpenOptions::new().route(Route::Ring).from_std(file.into()).unwrap())
}

/// Returns a file of zeros whose reads complete as they are submitted. Those of a file in the temporary folder do not if its
/// file system has no non-blocking reads, as tmpfs and overlays; those of `/dev/zero` do not before Linux 6.0.
fn zeros(test: &str) -> Option<File> {
    let file = temp_file(&[0; 4096]);
    let mut block = [0; 4096];
    let parts = &mut [std::io::IoSliceMut::new(&mut block)];
    match rustix::io::preadv2(&file, parts, 0, rustix::io::ReadWriteFlags::NOWAIT) {
        Ok(4096) => on_ring(test, file),
        _ => on_ring(test, std::fs::File::open("/dev/zero").unwrap()),
    }
}

/// Returns the ends of a pipe. Reads of it go to the ring.
fn pipe(test: &str) -> Option<(File, std::io::PipeWriter)> {
    let (reader, writer) = std::io::pipe().unwrap();
    Some((on_ring(test, std::os::fd::OwnedFd::from(reader))?, writer))
}

/// Returns a file of 4096 bytes, opened to write durably through the ring.
fn durable(test: &str) -> Option<(NamedTempFile, File)> {
    let data = NamedTempFile::new().unwrap();
    std::fs::write(&data, [7; 4096]).unwrap();
    let mut options = OpenOptions::new();
    options.write(true).route(Route::Ring).durability(Durability::Fsync);
    needs_ring(test).then(|| options.open_blocking(&data).unwrap()).map(|file| (data, file))
}

/// Makes the kernel post a completion with this key, whether or not there is such an operation.
fn forge_answer(driver: &mut Driver, key: Key) {
    let ring = &mut driver.ports.main.as_mut().unwrap().ring;
    let nop = Sqe {
        opcode: uapi::io_uring_op::IORING_OP_NOP as u8,
        user_data: key.to_user_data(),
        ..Sqe::default()
    };
    // SAFETY: the entry names no memory.
    assert!(unsafe { ring.push(nop) }.is_some());
}

async fn own_waker() -> Waker {
    poll_fn(|context| Poll::Ready(context.waker().clone())).await
}

async fn turn_over() {
    own_waker().await.wake();
    pending!();
}

fn live_keys(driver: &mut Driver) -> Vec<Key> {
    driver.slots.unanswered().collect()
}

#[test]
fn f04_a_completion_of_no_operation_is_counted_and_never_used() {
    let name = "f04_a_completion_of_no_operation_is_counted_and_never_used";
    let Some(file) = on_ring(name, temp_file(&[7; 4096])) else { return };
    block_on(async {
        let mut read = Box::pin(file.read_at(Vec::with_capacity(4096), 0));
        assert!(poll!(&mut read).is_pending());
        let old = with(|driver| live_keys(driver)[0]).unwrap();
        assert_eq!(read.await.unwrap(), [7; 4096]);
        // A second answer to an operation that has ended: first its slot is free, then another operation uses it.
        with(|driver| forge_answer(driver, old)).unwrap();
        turn_over().await;
        assert_eq!(thread_metrics().stray, 1);
        with(|driver| forge_answer(driver, old)).unwrap();
        let mut next = Box::pin(file.read_at(Vec::with_capacity(100), 0));
        assert!(poll!(&mut next).is_pending());
        let new = with(|driver| live_keys(driver)[0]).unwrap();
        assert_eq!((new.slot(), new.generation()), (old.slot(), old.generation() + 1));
        assert_eq!(next.await.unwrap(), [7; 100]);
        turn_over().await;
        // An answer to a slot that never existed.
        with(|driver| forge_answer(driver, Key::new(1_000_000, 3))).unwrap();
        turn_over().await;
        assert_eq!((thread_metrics().stray, thread_metrics().failed), (3, 0));
    });
}

#[test]
fn f04_an_operation_that_is_answered_twice_keeps_the_first_result() {
    let Some(file) = zeros("f04_an_operation_that_is_answered_twice_keeps_the_first_result") else { return };
    block_on(async {
        let mut read = Box::pin(file.read_at(Vec::with_capacity(4096), 0));
        assert!(poll!(&mut read).is_pending());
        let key = with(|driver| live_keys(driver)[0]).unwrap();
        with(|driver| forge_answer(driver, key)).unwrap();
        while with(|driver| driver.slots.at(key.slot()).state) != Some(State::Done) {
            turn_over().await;
        }
        turn_over().await;
        assert_eq!(read.await.unwrap(), [0; 4096]);
        assert_eq!((thread_metrics().stray, thread_metrics().ops), (1, 1));
    });
}

#[test]
fn f04_an_operation_ends_once_whether_its_answer_or_its_cancellation_comes_first() {
    let Some(file) = zeros("f04_an_operation_ends_once_whether_its_answer_or_its_cancellation_comes_first")
    else {
        return;
    };
    block_on(async {
        for early in [false, true] {
            let before = thread_metrics();
            let mut read = Box::pin(file.read_at(Vec::with_capacity(4096), 0));
            assert!(poll!(&mut read).is_pending());
            // The read completes as it is submitted, so the kernel has answered; the answer is not collected yet.
            with(|driver| driver.ports.main.as_mut().unwrap().ring.enter(Until::Submitted, SLICE, None))
                .unwrap()
                .unwrap();
            if early {
                with(|driver| driver.ports.main.as_mut().unwrap().ring.enter(Until::Collected, SLICE, None))
                    .unwrap()
                    .unwrap();
            }
            drop(read);
            assert_eq!(with(|driver| live_keys(driver).len()), Some(1), "its buffer is the kernel's still");
            turn_over().await;
            turn_over().await;
            assert_eq!(with(|driver| live_keys(driver).len()), Some(0));
            let counts = thread_metrics() - before;
            assert_eq!((counts.cancelled, counts.ops, counts.stray), (1, 1, 0));
        }
    });
}

#[test]
fn f06_a_completion_queue_that_overflows_loses_nothing() {
    let Some(file) = zeros("f06_a_completion_queue_that_overflows_loses_nothing") else { return };
    let options = RingOptions { entries: 4, completions_per_entry: 1, ..RingOptions::default() };
    std::thread::spawn(move || {
        block_on_with(options, async {
            let mut reads: Vec<_> =
                (0..500).map(|_| Box::pin(file.read_at(Vec::with_capacity(16), 0))).collect();
            for read in &mut reads {
                assert!(poll!(&mut *read).is_pending());
                // Entries are submitted without collecting completions, as happens when the queue is full.
                with(|driver| {
                    driver.submit_waiting();
                    driver.ports.main.as_mut().unwrap().ring.enter(Until::Submitted, SLICE, None).unwrap();
                });
            }
            let overflowed = with(|driver| driver.ports.main.as_ref().unwrap().ring.has_deferred()).unwrap();
            assert!(overflowed, "the queue of 4 did not overflow");
            for read in reads {
                assert_eq!(read.await.unwrap(), [0; 16]);
            }
            let counts = thread_metrics();
            assert_eq!((counts.ops, counts.stray), (500, 0));
        });
    })
    .join()
    .unwrap();
}

/// The kernel may stop between a write and the sync that is linked to it (`io_submit_sqes` without memory for the second):
/// then it would begin the sync by itself, which could end before the write has.
#[test]
fn f42_a_sync_cut_off_from_its_write_is_repeated_after_the_write() {
    let name = "f42_a_sync_cut_off_from_its_write_is_repeated_after_the_write";
    let Some((data, file)) = durable(name) else { return };
    // 0: the kernel takes nothing at first. 1: only the write. 2: both.
    for (taken, syncs, cancelled) in [(0, 1, 0), (1, 2, 1), (2, 1, 0)] {
        block_on(async {
            // This creates the ring.
            file.sync_data().await.unwrap();
            let before = thread_metrics();
            let mut write = Box::pin(file.write_durable_at(vec![taken as u8; 4096], 0));
            assert!(poll!(&mut write).is_pending());
            with(|driver| driver.ports.main.as_mut().unwrap().ring.hand_over_at_most = Some(taken)).unwrap();
            write.await.unwrap();
            let counts = thread_metrics() - before;
            assert_eq!((counts.ops, counts.failed), (1 + syncs, cancelled), "{taken} taken");
            assert_eq!(counts.stray, 0);
        });
        assert_eq!(std::fs::read(&data).unwrap(), [taken as u8; 4096]);
    }
}

/// A kernel thread that takes the entries does not say where it stopped. So the sync is submitted after the write has
/// ended.
#[test]
fn f42_a_ring_with_a_submission_thread_links_no_operations() {
    let name = "f42_a_ring_with_a_submission_thread_links_no_operations";
    let Some((data, file)) = durable(name) else { return };
    let options = RingOptions { sqpoll_idle: Some(10), ..RingOptions::default() };
    std::thread::spawn(move || {
        block_on_with(options, async {
            file.sync_data().await.unwrap();
            let sqpoll = with(|driver| driver.ports.main.as_ref().unwrap().ring.is_sqpoll()).unwrap();
            let before = thread_metrics();
            let mut write = Box::pin(file.write_durable_at(vec![1; 4096], 0));
            assert!(poll!(&mut write).is_pending());
            let open = with(|driver| live_keys(driver).len());
            assert_eq!(open, Some(if sqpoll { 1 } else { 2 }));
            write.await.unwrap();
            assert_eq!((thread_metrics() - before).ops, 2);
        });
    })
    .join()
    .unwrap();
    assert_eq!(std::fs::read(&data).unwrap(), [1; 4096]);
}

#[test]
fn a_remote_request_that_is_dropped_ends_with_an_error() {
    let file = File::from(temp_file(b"data"));
    let request = Request { want: 4, ..Request::of(Kind::Read) };
    let mut memory = Loan::of(IoMemory::Vec(vec![1; 4]), true);
    let context = &mut Context::from_waker(Waker::noop());
    let mut remote = None;
    let mut operation = RemoteOperation::new(context.waker(), |handler| {
        remote = Some(RemoteRequest::new(file.target(), &request, memory.lend(), handler, 0));
        None
    });
    assert!(operation.poll(context, &mut memory).is_pending());
    drop(remote);
    let Poll::Ready(ended) = operation.poll(context, &mut memory) else { panic!("it does not end") };
    assert_eq!(ended, OpResult { done: 0, errno: libc::EIO });
    assert!(matches!(memory.get(), IoMemory::Vec(vec) if vec.is_empty()), "nothing was read");
}

/// A loop runs other tasks before the operations of a dropped queue have ended, so they end without the queue.
#[test]
fn a_queue_dropped_in_a_loop_frees_its_number_with_its_last_operation() {
    let name = "a_queue_dropped_in_a_loop_frees_its_number_with_its_last_operation";
    let Some((pipe, _writer)) = pipe(name) else { return };
    let numbers = || with(|driver| driver.local_handlers.count());
    let mut kept = Queue::new();
    kept.add(pipe.read_at(Vec::with_capacity(8), 0), 0);
    kept.submit();
    for _ in 0..3 {
        let mut queue = Queue::new();
        for _ in 0..2 {
            queue.add(pipe.read_at(Vec::with_capacity(8), 0), 0);
        }
        queue.submit();
        assert_eq!(numbers(), Some(2));
        block_on(async move {
            drop(queue);
            assert_eq!(numbers(), Some(2), "the kernel has not answered");
            let began = std::time::Instant::now();
            while numbers() != Some(1) && began.elapsed() < patience() {
                turn_over().await;
            }
            assert_eq!(numbers(), Some(1));
        });
    }
    drop(kept);
    assert_eq!(numbers(), Some(0));
}

/// A read of a pipe may be in flight for so long that 2^32 entries are submitted after it, and another entry
/// has the same position.
#[test]
fn f04_a_dropped_read_does_not_withdraw_a_later_entry_at_its_position() {
    let name = "f04_a_dropped_read_does_not_withdraw_a_later_entry_at_its_position";
    let Some(file) = on_ring(name, temp_file(&[7; 4096])) else { return };
    let Some((pipe, mut writer)) = pipe(name) else { return };
    block_on(async {
        let mut old = Box::pin(pipe.read_at(Vec::with_capacity(100), 0));
        assert!(poll!(&mut old).is_pending());
        let old_key = with(|driver| live_keys(driver)[0]).unwrap();
        turn_over().await;
        turn_over().await;
        let mut new = Box::pin(file.read_at(Vec::with_capacity(4096), 0));
        assert!(poll!(&mut new).is_pending());
        with(|driver| {
            let keys = live_keys(driver);
            let new_key = keys.into_iter().find(|key| *key != old_key).unwrap();
            driver.slots.at(old_key.slot()).position = driver.slots.at(new_key.slot()).position;
        });
        drop(old);
        assert_eq!(with(|driver| live_keys(driver).len()), Some(2), "the kernel has the memory of both");
        // Ends the read of the pipe if it was not cancelled.
        writer.write_all(b"word").unwrap();
        assert_eq!(new.await.unwrap(), [7; 4096]);
    });
}

/// Kernels before about 5.17 forget a cancellation that arrives just as their thread begins the operation.
#[test]
fn f02_the_kernel_is_asked_again_to_cancel_a_read_that_waits_forever() {
    let name = "f02_the_kernel_is_asked_again_to_cancel_a_read_that_waits_forever";
    let Some((pipe, _writer)) = pipe(name) else { return };
    let mut read = Box::pin(pipe.read_at(Vec::with_capacity(100), 0));
    block_on(async {
        assert!(poll!(&mut read).is_pending());
        turn_over().await;
        with(|driver| {
            let key = live_keys(driver)[0];
            // The driver has asked the kernel, as far as it knows.
            driver.asked = CancelledStreams { keys: vec![key], last: Some(std::time::Instant::now()) };
        });
        let error = (&mut read).await.unwrap_err();
        assert_eq!(error.errno(), Some(libc::ECANCELED));
    });
}

/// A subscriber may pass events to a task of the thread on which they occur.
#[test]
fn an_event_that_wakes_a_task_keeps_its_thread_from_parking() {
    let (ends, end) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // A thread without operations has no ring, and parks.
        block_on(async {
            let waker = own_waker().await;
            ringfile_buffer::internal::event::defer(move || waker.wake());
            pending!();
        });
        ends.send(()).unwrap();
    });
    assert_eq!(end.recv_timeout(patience()), Ok(()));
    thread.join().unwrap();
}

/// The kernel answers a read that meets the end of a file in part, and the rest is another submission. A ring without
/// `DEFER_TASKRUN`, as before Linux 6.1, signals only when a completion is posted, which may be long before it is collected.
#[test]
fn a_descriptor_announces_reads_that_continue_and_those_that_waited_for_room() {
    let name = "a_descriptor_announces_reads_that_continue_and_those_that_waited_for_room";
    // A thread of the kernel reads a file in memory, so completions are posted between the thread's calls.
    let memory = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&memory, &[7; 4096]).unwrap();
    let Some(file) = on_ring(name, memory) else { return };
    let options = RingOptions { entries: 4, task_run: TaskRun::Interrupt, ..RingOptions::default() };
    std::thread::spawn(move || {
        // This creates the thread's ring.
        block_on_with(options, file.read_at(Vec::with_capacity(1), 0)).unwrap();
        let mut queue = Queue::new();
        let descriptor = queue.descriptor().unwrap();
        for reads in std::iter::repeat_n(1, 30).chain([50]) {
            (0..reads).for_each(|read| _ = queue.add(file.read_at(Vec::with_capacity(5000), 0), read));
            queue.submit();
            let mut ended = 0;
            while ended < reads {
                let mut polled = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
                let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
                let announced = rustix::event::poll(&mut polled, Some(&limit)).unwrap();
                assert_eq!(announced, 1, "{ended} of {reads} have ended");
                // Lets further completions arrive; the kernel announces them, so this is not simulated.
                std::thread::sleep(std::time::Duration::from_millis(5));
                queue.submit();
                while let Some(done) = queue.next() {
                    assert_eq!(done.result.unwrap(), 4096);
                    ended += 1;
                }
            }
        }
    })
    .join()
    .unwrap();
}

/// An operation of a batch or a queue has a slot, a read in place has none.
#[test]
fn reads_of_an_adaptive_file_stay_in_place_through_either_descriptor() {
    const PAGE: usize = 4096;
    let name = "reads_of_an_adaptive_file_stay_in_place_through_either_descriptor";
    if !needs_ring(name) {
        return;
    }
    let data = NamedTempFile::new().unwrap();
    let content: Vec<u8> = (0..64 * PAGE).map(|at| (at / PAGE) as u8).collect();
    std::fs::write(&data, content).unwrap();
    data.as_file().sync_all().unwrap();
    // Only the first half is cached. Dropping the other one alone would keep a folio that contains both.
    for advice in [rustix::fs::Advice::DontNeed, rustix::fs::Advice::Random] {
        rustix::fs::fadvise(&data, 0, None, advice).unwrap();
    }
    std::os::unix::fs::FileExt::read_exact_at(data.as_file(), &mut [0; 32 * PAGE], 0).unwrap();
    let file = OpenOptions::new().read(true).route(Route::Ring).adaptive(true).open_blocking(&data).unwrap();
    if !file.is_adaptive() {
        return skip(name, "no adaptive files here");
    }
    let pool = Pool::new(1 << 20);
    let pages = || (0..32).map(|at| at * 61 % 64);
    crate::internal::assume_memory_is_free(Some(false));
    let mut queue = Queue::new();
    for way in ["read_many", "run", "wait"] {
        let before = thread_metrics();
        let mut results = Vec::new();
        match way {
            "read_many" => {
                let read = |page| ReadRequest::new(pool.get(PAGE).unwrap(), (page * PAGE) as u64);
                let mut requests: Vec<_> = pages().map(read).collect();
                queue.read_many(&file, &mut requests).unwrap();
                results.extend(requests.into_iter().map(|read| (read.result, read.buffer.to_vec())));
            }
            "run" => {
                let mut batch = Batch::new();
                pages().for_each(|page| {
                    batch.add(file.read_at(pool.get(PAGE).unwrap(), (page * PAGE) as u64));
                });
                let done = batch.run().into_iter();
                results.extend(done.map(|done| (done.result, done.buffer.unwrap().to_vec())));
            }
            _ => {
                let mut read = |page| {
                    queue.add(file.read_at(pool.get(PAGE).unwrap(), (page * PAGE) as u64), page as u64)
                };
                pages().for_each(|page| _ = read(page));
                let mut done = Vec::new();
                assert_eq!(queue.wait(32..=32, None, &mut done), 32);
                done.sort_by_key(|done| pages().position(|page| page as u64 == done.user_data));
                let done = done.into_iter();
                results.extend(done.map(|done| (done.result, done.buffer.unwrap().to_vec())));
            }
        }
        assert_eq!(results.len(), 32);
        for (page, (result, content)) in pages().zip(results) {
            assert_eq!((result.unwrap(), content), (PAGE, vec![page as u8; PAGE]), "{way}");
        }
        let counts = thread_metrics() - before;
        assert_eq!((counts.ops, counts.inline_ops, counts.fixed_ops > 0), (32, 0, true), "{way}");
        assert!(counts.cache_hits + counts.cache_misses > 0, "{way}: the descriptor was chosen");
        assert_eq!(with(|driver| driver.slots.count()), Some(0), "{way}");
        if way == "read_many" {
            let cached = cached_pages(file.target(), 32 * PAGE as u64, 32 * PAGE as u64);
            assert_eq!(cached, Ok(0), "the second half was read directly");
        }
    }
    crate::internal::assume_memory_is_free(None);
}
