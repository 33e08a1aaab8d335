//! Queues by token: every operation, cancelling, and a descriptor to wait on.

use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use libc::iovec;

use super::ops::*;
use super::*;
use crate::batch::*;
use crate::control::*;
use crate::file::*;
use crate::info::{ringfile_counts, ringfile_thread_metrics};
use crate::io::{ringfile_read, ringfile_write_durable};
use crate::memory::{ringfile_memory_is_in_use, ringfile_memory_register, ringfile_memory_unregister};
use crate::op::ringfile_result;
use crate::queue::*;

fn queue() -> *mut ringfile_queue {
    let mut queue = ptr::null_mut();
    // SAFETY: the pointer is to a local value.
    well(unsafe { ringfile_queue_create(8, 0, &mut queue) });
    queue
}

fn new_file(folder: &tempfile::TempDir, pages: usize) -> *mut ringfile_file {
    let path = folder.path().join("data");
    std::fs::write(&path, content(pages)).unwrap();
    open(&path, RINGFILE_READ | RINGFILE_WRITE, ring())
}

/// Returns a pipe: the end to write to, and the end to read.
fn pipe() -> (std::io::PipeWriter, *mut ringfile_file) {
    let (ours, theirs) = std::io::pipe().unwrap();
    let mut pipe = ptr::null_mut();
    // SAFETY: the descriptor is duplicated.
    well(unsafe { ringfile_open_fd(ours.as_raw_fd(), ptr::null(), &mut pipe) });
    (theirs, pipe)
}

/// Adds a read of a page, and returns its token.
fn read(queue: *mut ringfile_queue, file: *const ringfile_file, to: &mut [u8], offset: usize) -> u64 {
    let mut token = 0;
    let (data, length) = (to.as_mut_ptr().cast(), to.len());
    // SAFETY: each test keeps the memory until it has the result, or the queue is closed.
    well(unsafe {
        ringfile_queue_add(queue, ringfile_op_read(file, data, length, offset as u64), 7, &mut token)
    });
    assert_ne!(token, 0);
    token
}

fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut source = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid record.
    unsafe { libc::poll(&mut source, 1, 0) == 1 }
}

#[test]
fn operations_are_waited_for_and_taken_by_token() {
    let folder = tempfile::tempdir().unwrap();
    let (file, queue, mut memory) = (new_file(&folder, 8), queue(), vec![99; 8 * PAGE]);
    let tokens: Vec<u64> =
        memory.chunks_mut(PAGE).enumerate().map(|(page, to)| read(queue, file, to, page * PAGE)).collect();
    assert_eq!(ringfile_queue_is_done(queue, tokens[7]), 0, "nothing was submitted");
    for page in [5, 0, 7] {
        assert_eq!(well(ringfile_queue_wait_for(queue, tokens[page])), PAGE as i64);
        fails(ringfile_queue_wait_for(queue, tokens[page]), libc::EINVAL, "token names no operation");
        fails(ringfile_queue_is_done(queue, tokens[page]), libc::EINVAL, "token names no operation");
        fails(ringfile_queue_cancel(queue, tokens[page]), libc::EINVAL, "token names no operation");
    }
    // SAFETY: no room is passed.
    well(unsafe { ringfile_queue_wait(queue, ptr::null_mut(), 0, 0, 0) });
    for page in [1, 2] {
        while ringfile_queue_is_done(queue, tokens[page]) == 0 {
            well(ringfile_queue_submit(queue));
        }
        assert_eq!(well(ringfile_queue_wait_for(queue, tokens[page])), PAGE as i64);
    }
    assert_eq!(well(ringfile_queue_len(queue)), 3);
    let mut results = [ringfile_result { user_data: 0, result: 0 }; 8];
    // SAFETY: there is room for that many results.
    assert_eq!(well(unsafe { ringfile_queue_wait(queue, results.as_mut_ptr(), 8, 8, -1) }), 3);
    assert!(results[..3].iter().all(|result| (result.user_data, result.result) == (7, PAGE as i64)));
    assert!((0..8).all(|page| is_page(&memory[page * PAGE..][..PAGE], page)));
    well(ringfile_queue_free(queue));
    well(ringfile_close(file));
}

#[test]
fn a_token_of_another_queue_names_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (file, queue, other) = (new_file(&folder, 2), queue(), queue());
    let (mut first, mut second) = (vec![99; PAGE], vec![99; PAGE]);
    let (token, others) = (read(queue, file, &mut first, 0), read(other, file, &mut second, PAGE));
    for wrong in [others, 0, u64::MAX, token ^ 1 << 40] {
        fails(ringfile_queue_wait_for(queue, wrong), libc::EINVAL, "token names no operation");
        fails(ringfile_queue_cancel(queue, wrong), libc::EINVAL, "token names no operation");
    }
    assert_eq!(well(ringfile_queue_wait_for(queue, token)), PAGE as i64);
    assert_eq!(well(ringfile_queue_wait_for(other, others)), PAGE as i64);
    assert!(is_page(&first, 0) && is_page(&second, 1));
    well(ringfile_queue_free(other));
    well(ringfile_queue_free(queue));
    well(ringfile_close(file));
}

#[test]
fn a_cancelled_operation_has_one_result() {
    let folder = tempfile::tempdir().unwrap();
    let (file, queue, (mut theirs, pipe)) = (new_file(&folder, 2), queue(), pipe());
    let (mut page, mut waits, mut goes_on) = (vec![99; PAGE], vec![99; PAGE], vec![99; PAGE]);
    let unsubmitted = read(queue, file, &mut page, 0);
    assert_eq!(well(ringfile_queue_cancel(queue, unsubmitted)), 1);
    fails(ringfile_queue_wait_for(queue, unsubmitted), libc::ECANCELED, "cancelled");
    assert!(page.iter().all(|&byte| byte == 99), "never carried out");
    fails(ringfile_queue_cancel(queue, unsubmitted), libc::EINVAL, "token names no operation");

    let waiting = read(queue, pipe, &mut waits, 0);
    well(ringfile_queue_submit(queue));
    assert_eq!(well(ringfile_queue_cancel(queue, waiting)), 1);
    fails(ringfile_queue_wait_for(queue, waiting), libc::ECANCELED, "cancelled");
    // The memory belongs to the caller again: later data goes elsewhere.
    let next = read(queue, pipe, &mut goes_on, 0);
    theirs.write_all(b"content").unwrap();
    assert_eq!(well(ringfile_queue_wait_for(queue, next)), 7);
    assert_eq!(&goes_on[..7], b"content");
    assert!(waits.iter().all(|&byte| byte == 99));

    let ended = read(queue, file, &mut page, PAGE);
    let mut result = ringfile_result { user_data: 0, result: 0 };
    // SAFETY: no room is passed.
    well(unsafe { ringfile_queue_wait(queue, ptr::null_mut(), 0, 0, 0) });
    while ringfile_queue_is_done(queue, ended) == 0 {
        well(ringfile_queue_submit(queue));
    }
    assert_eq!(ringfile_queue_cancel(queue, ended), 0, "it has ended");
    // SAFETY: there is room for one result.
    assert_eq!(well(unsafe { ringfile_queue_wait(queue, &mut result, 1, 1, -1) }), 1);
    assert_eq!((result.user_data, result.result), (7, PAGE as i64));
    assert_eq!(well(ringfile_queue_len(queue)), 0);
    well(ringfile_queue_free(queue));
    well(ringfile_close(pipe));
    well(ringfile_close(file));
}

#[test]
fn another_thread_cancels_an_operation_of_a_queue_that_waits_for_it() {
    let ((_theirs, pipe), queue) = (pipe(), queue());
    let mut memory = [0; 2 * 16];
    let (first, second) = memory.split_at_mut(16);
    for to in [first, second] {
        let token = read(queue, pipe, to, 0);
        let queue_at = queue.addr();
        let other = std::thread::spawn(move || {
            let queue: *mut ringfile_queue = ptr::without_provenance_mut(queue_at);
            // Time for the waiting thread to sleep; threads are not simulated.
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(well(i64::from(ringfile_queue_cancel(queue, token))), 1);
        });
        fails(ringfile_queue_wait_for(queue, token), libc::ECANCELED, "cancelled");
        other.join().unwrap();
    }
    well(ringfile_queue_free(queue));
    well(ringfile_close(pipe));
}

#[test]
fn all_operations_are_cancelled_and_taken_one_by_one() {
    let ((_theirs, pipe), queue, mut memory) = (pipe(), queue(), [0; 4 * 16]);
    let tokens: Vec<u64> = memory.chunks_mut(16).map(|to| read(queue, pipe, to, 0)).collect();
    let mut result = ringfile_result { user_data: 0, result: 0 };
    // SAFETY: the pointer is to a local value, here and below.
    assert_eq!(well(unsafe { ringfile_queue_next(queue, &mut result) }), 0, "nothing was submitted");
    well(ringfile_queue_submit(queue));
    well(ringfile_queue_cancel_all(queue));
    while tokens.iter().any(|&token| ringfile_queue_is_done(queue, token) == 0) {
        well(ringfile_queue_submit(queue));
    }
    for left in (0..4).rev() {
        // SAFETY: as above.
        assert_eq!(well(unsafe { ringfile_queue_next(queue, &mut result) }), 1);
        assert_eq!((result.user_data, result.result), (7, -i64::from(libc::ECANCELED)));
        assert_eq!(well(ringfile_queue_len(queue)), left);
    }
    // SAFETY: no memory is passed.
    fails(unsafe { ringfile_queue_next(queue, ptr::null_mut()) }, libc::EFAULT, "pointer to the result");
    well(ringfile_queue_free(queue));
    well(ringfile_close(pipe));
}

#[test]
fn a_queue_and_a_batch_obey_the_files_durability() {
    if std::env::var_os("RINGFILE_DISABLE").is_some_and(|disabled| disabled == "io_uring,aio") {
        let name = "a_queue_and_a_batch_obey_the_files_durability";
        return crate::skip::skip(name, "workers count their operations");
    }
    let ops = || {
        let mut metrics = std::mem::MaybeUninit::<ringfile_counts>::zeroed();
        // SAFETY: its fields are integers; the pointer is to a local value.
        unsafe {
            (*metrics.as_mut_ptr()).size = size_of::<ringfile_counts>();
            well(ringfile_thread_metrics(metrics.as_mut_ptr()));
            metrics.assume_init().ops
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let path = CString::new(folder.path().join("data").to_str().unwrap()).unwrap();
    for (durability, each) in [(RINGFILE_DURABILITY_DSYNC, 1), (RINGFILE_DURABILITY_FSYNC, 2)] {
        let flags = RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE;
        let options = ringfile_open_options { durability, ..options(flags, RINGFILE_ROUTE_INLINE) };
        let (mut file, queue, mut batch, mut written) =
            (ptr::null_mut(), queue(), ptr::null_mut(), content(3));
        let mut result = ringfile_result { user_data: 0, result: 0 };
        // SAFETY: the pointers are to local values, which live until the operations have ended.
        unsafe {
            well(ringfile_open(path.as_ptr(), &options, &mut file));
            let before = ops();
            well(ringfile_write_durable(file, place(&mut written, 0), PAGE, 0));
            assert_eq!(ops() - before, each);
            let (page, data) = (PAGE as u64, place(&mut written, PAGE));
            well(ringfile_queue_add(
                queue,
                ringfile_op_write_durable(file, data, PAGE, page),
                7,
                ptr::null_mut(),
            ));
            assert_eq!(well(ringfile_queue_wait(queue, &mut result, 1, 1, -1)), 1);
            assert_eq!((result.user_data, result.result), (7, PAGE as i64));
            assert_eq!(ops() - before, 2 * each);
            well(ringfile_batch_create(ptr::null(), &mut batch));
            well(ringfile_batch_add(
                batch,
                ringfile_op_write_durable(file, place(&mut written, 2 * PAGE), PAGE, 2 * page),
                3,
            ));
            assert_eq!(well(ringfile_batch_run(batch)), 0, "{}", said());
            assert_eq!(ops() - before, 3 * each);
        }
        assert!(std::fs::read(folder.path().join("data")).unwrap() == content(3));
        well(ringfile_batch_free(batch));
        well(ringfile_queue_free(queue));
        well(ringfile_close(file));
    }
}

#[test]
fn every_operation_is_added_to_a_queue_and_to_a_batch() {
    let folder = tempfile::tempdir().unwrap();
    let (file, queue, mut batch) = (new_file(&folder, 4), queue(), ptr::null_mut());
    let (mut written, mut read) = (content(8), vec![99; 8 * PAGE]);
    let part = |memory: &mut [u8], page| iovec { iov_base: place(memory, page * PAGE), iov_len: PAGE };
    let from = [part(&mut written, 6), part(&mut written, 7)];
    let to = [part(&mut read, 1), part(&mut read, 0)];
    let (data, any, page) = (place(&mut written, 5 * PAGE), ptr::null_mut(), PAGE as u64);
    let one = |added: i32| {
        let mut result = ringfile_result { user_data: 0, result: 0 };
        well(added);
        // SAFETY: there is room for one result.
        assert_eq!(well(unsafe { ringfile_queue_wait(queue, &mut result, 1, 1, -1) }), 1);
        (result.user_data, result.result)
    };
    // SAFETY: the memory is valid until the operations have ended.
    unsafe {
        let keep = RINGFILE_ALLOCATE_KEEP_SIZE;
        assert_eq!(one(ringfile_queue_add(queue, ringfile_op_truncate(file, 2 * page), 1, any)), (1, 0));
        assert_eq!(ringfile_size(file), 2 * PAGE as i64);
        assert_eq!(
            one(ringfile_queue_add(queue, ringfile_op_allocate(file, keep, 0, 8 * page), 2, any)),
            (2, 0)
        );
        let durable =
            ringfile_queue_add(queue, ringfile_op_write_durable(file, data, PAGE, 2 * page), 3, any);
        assert_eq!(one(durable), (3, PAGE as i64));
        let atomic = ringfile_queue_add(queue, ringfile_op_write_atomic(file, data, PAGE, 2 * page), 10, any);
        assert_eq!(one(atomic), (10, -i64::from(libc::EOPNOTSUPP)), "a buffered file takes none");
        let writes = ringfile_queue_add(queue, ringfile_op_writev(file, from.as_ptr(), 2, 3 * page), 4, any);
        assert_eq!(one(writes), (4, 2 * PAGE as i64));
        assert_eq!(one(ringfile_queue_add(queue, ringfile_op_sync_data(file), 5, any)), (5, 0));
        assert_eq!(one(ringfile_queue_add(queue, ringfile_op_sync_all(file), 8, any)), (8, 0));
        let (start, finish) = (RINGFILE_SYNC_RANGE_WRITE, 7);
        assert_eq!(
            one(ringfile_queue_add(queue, ringfile_op_sync_range(file, 0, page, start), 9, any)),
            (9, 0)
        );
        assert_eq!(
            one(ringfile_queue_add(queue, ringfile_op_sync_range(file, 0, 0, finish), 9, any)),
            (9, 0)
        );
        fails(
            ringfile_queue_add(queue, ringfile_op_sync_range(file, 0, 0, 1), 0, any),
            libc::EINVAL,
            "SYNC_RANGE_WRITE",
        );
        let advice = RINGFILE_ADVICE_WILL_NEED;
        assert_eq!(one(ringfile_queue_add(queue, ringfile_op_advise(file, 0, 0, advice), 6, any)), (6, 0));
        let reads = ringfile_queue_add(queue, ringfile_op_readv(file, to.as_ptr(), 2, 3 * page), 7, any);
        assert_eq!(one(reads), (7, 2 * PAGE as i64));
        assert!(is_page(&read[PAGE..][..PAGE], 6) && is_page(&read[..PAGE], 7));
        fails(
            ringfile_queue_add(queue, ringfile_op_allocate(file, 9, 0, page), 0, any),
            libc::EINVAL,
            "ALLOCATE_",
        );
        fails(ringfile_queue_add(queue, ringfile_op_advise(file, 0, 0, 9), 0, any), libc::EINVAL, "ADVICE_");
        fails(
            ringfile_queue_add(queue, ringfile_op_readv(file, ptr::null(), 2, 0), 0, any),
            libc::EFAULT,
            "the parts",
        );
        assert_eq!(well(ringfile_queue_len(queue)), 0);

        read.fill(99);
        well(ringfile_batch_create(ptr::null(), &mut batch));
        well(ringfile_batch_add(batch, ringfile_op_truncate(file, 0), 1));
        well(ringfile_batch_barrier(batch));
        well(ringfile_batch_add(batch, ringfile_op_allocate(file, keep, 0, 8 * page), 2));
        well(ringfile_batch_add(batch, ringfile_op_write_durable(file, data, PAGE, 0), 3));
        well(ringfile_batch_add(batch, ringfile_op_writev(file, from.as_ptr(), 2, page), 4));
        well(ringfile_batch_add(batch, ringfile_op_advise(file, 0, 0, advice), 5));
        well(ringfile_batch_barrier(batch));
        well(ringfile_batch_add(batch, ringfile_op_readv(file, to.as_ptr(), 2, page), 6));
        well(ringfile_batch_add(batch, ringfile_op_sync_range(file, 0, 0, finish), 7));
        well(ringfile_batch_add(batch, ringfile_op_write_atomic(file, data, PAGE, 0), 8));
        fails(
            ringfile_batch_add(batch, ringfile_op_sync_range(file, 0, 0, 6), 0),
            libc::EINVAL,
            "SYNC_RANGE_WRITE",
        );
        fails(
            ringfile_batch_add(batch, ringfile_op_allocate(file, 9, 0, page), 0),
            libc::EINVAL,
            "ALLOCATE_",
        );
        fails(ringfile_batch_add(batch, ringfile_op_advise(file, 0, 0, 9), 0), libc::EINVAL, "ADVICE_");
        assert_eq!(well(ringfile_batch_run(batch)), 1, "{}", said());
        let mut results = ptr::null();
        assert_eq!(well(ringfile_batch_results(batch, &mut results)), 8);
        let refused = -i64::from(libc::EOPNOTSUPP);
        let results = std::slice::from_raw_parts(results, 8).iter().map(|result| result.result);
        assert_eq!(
            results.collect::<Vec<_>>(),
            [0, 0, PAGE as i64, 2 * PAGE as i64, 0, 2 * PAGE as i64, 0, refused]
        );
    }
    assert!(is_page(&read[PAGE..][..PAGE], 6) && is_page(&read[..PAGE], 7));
    assert_eq!(ringfile_size(file), 3 * PAGE as i64);
    well(ringfile_batch_free(batch));
    well(ringfile_queue_free(queue));
    well(ringfile_close(file));
}

#[test]
fn the_descriptor_is_readable_while_there_are_results() {
    // A thread that releases registered memory tells every ring of the process.
    if !apart("tests::queues::the_descriptor_is_readable_while_there_are_results", &[]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, queue, (mut theirs, pipe)) = (new_file(&folder, 2), queue(), pipe());
    let (mut page, mut piped) = (vec![99; PAGE], vec![99; PAGE]);
    // SAFETY: the descriptor is this test's.
    let descriptor = unsafe { OwnedFd::from_raw_fd(well(ringfile_queue_descriptor(queue)) as i32) };
    let token = read(queue, pipe, &mut piped, 0);
    well(ringfile_queue_submit(queue));
    assert!(!is_readable(&descriptor), "the pipe is empty");
    theirs.write_all(b"content").unwrap();
    while ringfile_queue_is_done(queue, token) == 0 {
        let mut source = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid record.
        assert_eq!(unsafe { libc::poll(&mut source, 1, -1) }, 1);
        well(ringfile_queue_submit(queue));
    }
    let also = read(queue, file, &mut page, 0);
    assert_eq!(well(ringfile_queue_wait_for(queue, also)), PAGE as i64);
    assert!(is_readable(&descriptor), "the pipe's result was not taken");
    assert_eq!(well(ringfile_queue_wait_for(queue, token)), 7);
    well(ringfile_queue_submit(queue));
    assert!(!is_readable(&descriptor), "all were taken");
    // The descriptor belongs to the caller, and outlives the queue.
    well(ringfile_queue_free(queue));
    fails(ringfile_queue_descriptor(queue), libc::EBADF, "the handle was closed");
    well(ringfile_close(pipe));
    well(ringfile_close(file));
}

/// Returns a queue that threads share.
fn shared() -> *mut ringfile_queue {
    let mut queue = ptr::null_mut();
    // SAFETY: the pointer is to a local value.
    well(unsafe { ringfile_queue_create(8, RINGFILE_QUEUE_SHARED, &mut queue) });
    queue
}

#[test]
fn a_shared_queue_is_used_and_freed_by_any_thread() {
    let folder = tempfile::tempdir().unwrap();
    let (file, queue, mut memory) = (new_file(&folder, 8), shared(), vec![99; 8 * PAGE]);
    let tokens: Vec<u64> =
        memory.chunks_mut(PAGE).enumerate().map(|(page, to)| read(queue, file, to, page * PAGE)).collect();
    let queue_at = queue.addr();
    let other = std::thread::spawn(move || {
        let queue: *mut ringfile_queue = ptr::without_provenance_mut(queue_at);
        assert_eq!(well(ringfile_queue_wait_for(queue, tokens[5])), PAGE as i64);
        fails(ringfile_queue_wait_for(queue, tokens[5]), libc::EINVAL, "token names no operation");
        fails(ringfile_queue_cancel(queue, tokens[5]), libc::EINVAL, "token names no operation");
        while well(ringfile_queue_is_done(queue, tokens[2])) == 0 {
            well(ringfile_queue_submit(queue));
        }
        assert_eq!(well(ringfile_queue_wait_for(queue, tokens[2])), PAGE as i64);
        assert_eq!(well(ringfile_queue_len(queue)), 6);
        let mut results = [ringfile_result { user_data: 0, result: 0 }; 4];
        // SAFETY: the results are four.
        let taken = unsafe { ringfile_queue_wait(queue, results.as_mut_ptr(), 4, 4, -1) };
        assert_eq!(taken, 4);
        assert!(results.iter().all(|result| (result.user_data, result.result) == (7, PAGE as i64)));
        // SAFETY: as above. Only two are open.
        let taken = unsafe { ringfile_queue_wait(queue, results.as_mut_ptr(), 4, 4, -1) };
        assert_eq!(taken, 2);
        // SAFETY: as above.
        assert_eq!(unsafe { ringfile_queue_wait(queue, results.as_mut_ptr(), 4, 1, -1) }, 0, "none is open");
    });
    other.join().unwrap();
    assert_eq!(memory, content(8));
    let (writer, pipe) = pipe();
    let mut place = vec![0; 8];
    let waits = read(queue, pipe, &mut place, 0);
    let waiting = std::thread::spawn(move || {
        let queue: *mut ringfile_queue = ptr::without_provenance_mut(queue_at);
        ringfile_queue_wait_for(queue, waits)
    });
    // Time for the other thread to sleep; threads are not simulated.
    std::thread::sleep(std::time::Duration::from_millis(20));
    let freed = std::thread::spawn(move || ringfile_queue_free(ptr::without_provenance_mut(queue_at)));
    assert_eq!(freed.join().unwrap(), 0);
    // The thread that waited has the result, or the function that freed the queue has taken it.
    assert!([-i64::from(libc::ECANCELED), -i64::from(libc::EINVAL)].contains(&waiting.join().unwrap()));
    fails(ringfile_queue_submit(queue), libc::EBADF, "the handle was closed");
    fails(ringfile_queue_free(queue), libc::EBADF, "the handle was closed");
    drop(writer);
    well(ringfile_close(pipe));
    well(ringfile_close(file));
    let mut made = ptr::null_mut();
    // SAFETY: the pointer is to a local value.
    fails(unsafe { ringfile_queue_create(8, 6, &mut made) }, libc::EINVAL, "unknown flags");
}

#[test]
fn threads_share_a_queue_of_files_that_it_opens() {
    const THREADS: usize = 4;
    let folder = tempfile::tempdir().unwrap();
    let (queue, path) = (shared(), folder.path().join("data"));
    std::fs::write(&path, content(1)).unwrap();
    let (queue_at, path) = (queue.addr(), std::ffi::CString::new(path.to_str().unwrap()).unwrap());
    let path = &path;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(move || {
                let queue: *mut ringfile_queue = ptr::without_provenance_mut(queue_at);
                for _ in 0..100 {
                    let (mut file, mut token, mut page) = (ptr::null_mut(), 0, vec![0; PAGE]);
                    let options = options(RINGFILE_READ, ring());
                    // SAFETY: the pointers are to local values, which stay until the result was taken.
                    unsafe {
                        well(ringfile_queue_add(
                            queue,
                            ringfile_op_open(path.as_ptr(), &options, &mut file),
                            0,
                            &mut token,
                        ));
                    }
                    well(ringfile_queue_wait_for(queue, token));
                    let token = read(queue, file, &mut page, 0);
                    assert_eq!(well(ringfile_queue_wait_for(queue, token)), PAGE as i64);
                    assert_eq!(page, content(1));
                    well(ringfile_close(file));
                }
            });
        }
    });
    assert_eq!(well(ringfile_queue_len(queue)), 0);
    well(ringfile_queue_free(queue));
}

#[test]
fn f61_a_file_is_closed_though_the_threads_that_have_read_it_idle() {
    for through_queue in [false, true] {
        let (mut writer, file) = pipe();
        let address = file.addr();
        let ((tell, told), (end, ends)) = (mpsc::channel(), mpsc::channel::<()>());
        let reader = std::thread::spawn(move || {
            let file = ptr::without_provenance_mut(address);
            let queue = queue();
            for _ in 0..300 {
                let mut byte = [0];
                if through_queue {
                    let token = read(queue, file, &mut byte, 0);
                    assert_eq!(well(ringfile_queue_wait_for(queue, token)), 1);
                } else {
                    // SAFETY: the memory is valid, and has the length that is passed.
                    assert_eq!(well(unsafe { ringfile_read(file, byte.as_mut_ptr().cast(), 1, 0) }), 1);
                }
            }
            tell.send(()).unwrap();
            let _ = ends.recv();
            well(ringfile_queue_free(queue));
        });
        writer.write_all(&[7; 300]).unwrap();
        told.recv().unwrap();
        well(ringfile_close(file));
        // Other tests fork, and a child has each descriptor until it runs another program.
        let began = Instant::now();
        while writer.write_all(b"x").is_ok() {
            assert!(began.elapsed().as_secs() < 60, "the file stays open");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(end);
        reader.join().unwrap();
    }
}

/// Returns whether this process has a descriptor of the file.
fn has_open(path: &Path) -> bool {
    let mut descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    descriptors.any(|one| std::fs::read_link(one.unwrap().path()).is_ok_and(|to| to == path))
}

#[test]
fn a_queue_forgets_what_it_has_found_when_another_thread_closes_or_unregisters_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(4)).unwrap();
    let (file, mut queue, mut handle) =
        (open(&path, RINGFILE_READ, ring()), ptr::null_mut(), ptr::null_mut());
    let mut memory = vec![0_u8; 4 * PAGE];
    let start = memory.as_mut_ptr();
    let (mut token, mut results) = (0, [ringfile_result { user_data: 0, result: 0 }; 4]);
    // SAFETY: the pointers are to local values, and no operation is in flight when the memory is accessed.
    unsafe {
        well(ringfile_queue_create(4, 0, &mut queue));
        well(ringfile_memory_register(start.cast(), 4 * PAGE, &mut handle));
        for round in 0..600 {
            let page = round % 4;
            let data = start.add(page * PAGE);
            let read = ringfile_op_read(file, data.cast(), PAGE, (page * PAGE) as u64);
            well(ringfile_queue_add(queue, read, 1, &mut token));
            if round % 100 == 0 {
                assert_eq!(ringfile_memory_is_in_use(handle), 1);
            }
            if round % 2 == 0 {
                assert_eq!(ringfile_queue_wait_for(queue, token), PAGE as i64);
            } else {
                assert_eq!(ringfile_queue_wait(queue, results.as_mut_ptr(), 4, 1, -1), 1);
                assert_eq!(results[0].result, PAGE as i64);
            }
            if round % 100 == 99 {
                assert_eq!(ringfile_memory_is_in_use(handle), 0);
            }
            assert!(is_page(std::slice::from_raw_parts(data, PAGE), page));
        }
        // In flight: it stays registered. Otherwise, what the queue keeps is no obstacle.
        let read = ringfile_op_read(file, start.cast(), PAGE, 0);
        well(ringfile_queue_add(queue, read, 1, &mut token));
        let [number, of_file] = [handle.addr(), file.addr()];
        let unregister = move || ringfile_memory_unregister(ptr::without_provenance_mut(number));
        std::thread::spawn(move || fails(unregister(), libc::EBUSY, "has not finished")).join().unwrap();
        assert_eq!(ringfile_queue_wait_for(queue, token), PAGE as i64);
        std::thread::spawn(move || well(unregister())).join().unwrap();
        assert!(has_open(&path));
        let close = move || well(ringfile_close(ptr::without_provenance_mut(of_file)));
        std::thread::spawn(close).join().unwrap();
        assert!(!has_open(&path), "a queue that has nothing in flight keeps no file open");
        fails(ringfile_queue_add(queue, read, 1, &mut token), libc::EBADF, "the handle was closed");
        fails(ringfile_memory_is_in_use(handle), libc::EBADF, "closed");
        // The memory is used like any other now, and the number of the file by another one.
        let again = open(&path, RINGFILE_READ, ring());
        well(ringfile_queue_add(queue, ringfile_op_read(again, start.cast(), PAGE, 0), 1, &mut token));
        assert_eq!(ringfile_queue_wait_for(queue, token), PAGE as i64);
        fails(ringfile_queue_add(queue, read, 1, &mut token), libc::EBADF, "the handle was closed");
        well(ringfile_close(again));
        well(ringfile_queue_free(queue));
    }
}

#[test]
fn files_are_closed_and_memory_is_unregistered_while_queues_use_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(1)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (mut queue, mut memory, mut token) = (ptr::null_mut(), vec![0_u8; PAGE], 0);
                // SAFETY: the pointers are to local values, which outlive the operations.
                unsafe {
                    well(ringfile_queue_create(1, 0, &mut queue));
                    while !is_over.load(Ordering::Relaxed) {
                        let (file, mut handle) = (open(&path, RINGFILE_READ, 0), ptr::null_mut());
                        well(ringfile_memory_register(memory.as_mut_ptr().cast(), PAGE, &mut handle));
                        for _ in 0..3 {
                            let read = ringfile_op_read(file, memory.as_mut_ptr().cast(), PAGE, 0);
                            well(ringfile_queue_add(queue, read, 0, &mut token));
                            assert_eq!(ringfile_queue_wait_for(queue, token), PAGE as i64);
                        }
                        well(ringfile_close(file));
                        well(ringfile_memory_unregister(handle));
                    }
                    well(ringfile_queue_free(queue));
                }
            });
        }
        for _ in 0..200 {
            well(ringfile_close(open(&path, RINGFILE_READ, 0)));
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
