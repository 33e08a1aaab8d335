//! Every form of reading and writing.

use std::ffi::c_void;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::ptr;

use libc::iovec;

use super::ops::*;
use super::*;
use crate::batch::*;
use crate::control::*;
use crate::file::*;
use crate::info::*;
use crate::io::*;
use crate::memory::*;
use crate::op::ringfile_result;
use crate::pool::*;
use crate::queue::*;

const READ_WRITE: u32 = RINGFILE_READ | RINGFILE_WRITE;

fn counts() -> ringfile_counts {
    // SAFETY: it consists of integers only.
    let mut counts: ringfile_counts = unsafe { std::mem::zeroed() };
    counts.size = size_of::<ringfile_counts>();
    // SAFETY: the pointer is to a local value.
    well(unsafe { ringfile_thread_metrics(&mut counts) });
    counts
}

#[test]
fn f51_no_call_syncs_after_a_sync_has_failed() {
    for route in [RINGFILE_ROUTE_DEFAULT, ring(), RINGFILE_ROUTE_INLINE, RINGFILE_ROUTE_WORKERS] {
        let folder = tempfile::tempdir().unwrap();
        let file = open(&folder.path().join("data"), READ_WRITE | RINGFILE_CREATE, route);
        let page = content(1);
        // SAFETY: the memory is valid, and has the length that is passed.
        let durable = || unsafe { ringfile_write_durable(file, page.as_ptr().cast(), PAGE, 0) };
        well(durable());
        crate::file::get(file).ok().unwrap().poison_sync(libc::EIO);
        let all =
            RINGFILE_SYNC_RANGE_WAIT_BEFORE | RINGFILE_SYNC_RANGE_WRITE | RINGFILE_SYNC_RANGE_WAIT_AFTER;
        for flags in [RINGFILE_SYNC_RANGE_WRITE, RINGFILE_SYNC_RANGE_WAIT_BEFORE, all] {
            fails(ringfile_sync_range(file, 0, 0, flags), libc::EIO, "open the file again");
        }
        fails(ringfile_sync_data(file), libc::EIO, "open the file again");
        fails(ringfile_sync_all(file), libc::EIO, "open the file again");
        fails(durable(), libc::EIO, "open the file again");
        well(ringfile_close(file));
    }
}

#[test]
fn blocking_calls_read_what_they_have_written_on_every_route() {
    for route in [RINGFILE_ROUTE_DEFAULT, ring(), RINGFILE_ROUTE_INLINE, RINGFILE_ROUTE_WORKERS] {
        let folder = tempfile::tempdir().unwrap();
        let file = open(&folder.path().join("data"), READ_WRITE | RINGFILE_CREATE, route);
        let (written, mut read) = (content(8), vec![99; 8 * PAGE]);
        // SAFETY: the memory is valid, and has the length that is passed.
        unsafe {
            assert_eq!(well(ringfile_write(file, written.as_ptr().cast(), 4 * PAGE, 0)), 4 * PAGE as i64);
            let rest = [written[4 * PAGE..6 * PAGE].as_ptr(), written[6 * PAGE..].as_ptr()]
                .map(|data| iovec { iov_base: data.cast_mut().cast(), iov_len: 2 * PAGE });
            let at_four = 4 * PAGE as u64;
            assert_eq!(well(ringfile_writev(file, rest.as_ptr(), 2, at_four)), at_four as i64);
            assert_eq!(well(ringfile_write_durable(file, written.as_ptr().cast(), PAGE, 0)), PAGE as i64);
        }
        well(ringfile_sync_data(file));
        well(ringfile_sync_all(file));
        well(ringfile_sync_range(file, 0, 0, RINGFILE_SYNC_RANGE_WRITE));
        assert_eq!(well(ringfile_size(file)), 8 * PAGE as i64);
        // SAFETY: as above.
        unsafe {
            assert_eq!(well(ringfile_read(file, place(&mut read, 0), 8 * PAGE, 0)), 8 * PAGE as i64);
            assert!(read == written);
            assert_eq!(
                well(ringfile_read(file, place(&mut read, 0), PAGE, 8 * PAGE as u64 - 10)),
                10,
                "the end"
            );
            let parts = [0, 4 * PAGE].map(|from| iovec { iov_base: place(&mut read, from), iov_len: PAGE });
            assert_eq!(well(ringfile_readv(file, parts.as_ptr(), 2, 2 * PAGE as u64)), 2 * PAGE as i64);
            assert!(is_page(&read[..PAGE], 2) && is_page(&read[4 * PAGE..5 * PAGE], 3));
            assert_eq!(well(ringfile_read(file, ptr::null_mut(), 0, 0)), 0);
        }
        // A buffered file does not support atomic writes.
        let mut limits = [9; 3];
        let [min, max, segments] = &mut limits;
        // SAFETY: the pointers are to local values and valid memory.
        unsafe {
            well(ringfile_atomic_limits(file, min, max, segments));
            let data = written.as_ptr().cast();
            fails(ringfile_write_atomic(file, data, PAGE, 0), libc::EOPNOTSUPP, "open with direct(true)");
        }
        assert_eq!(limits, [0; 3]);
        well(ringfile_advise(file, 0, 0, RINGFILE_ADVICE_RANDOM));
        well(ringfile_truncate(file, 100));
        assert_eq!(well(ringfile_size(file)), 100);
        well(ringfile_close(file));
        well(ringfile_thread_release());
    }
}

#[test]
fn a_buffer_is_read_into_and_written_from_and_has_its_length() {
    let folder = tempfile::tempdir().unwrap();
    let (pool, file) =
        (pool(1 << 20), open(&folder.path().join("data"), READ_WRITE | RINGFILE_CREATE, ring()));
    let mut buffer = ptr::null_mut();
    // SAFETY: the pointers are to local values.
    well(unsafe { ringfile_buffer_get(pool, PAGE, &mut buffer) });
    assert_eq!(
        (well(ringfile_buffer_capacity(buffer)), well(ringfile_buffer_length(buffer))),
        (PAGE as i64, 0)
    );
    let data = ringfile_buffer_data(buffer).cast::<u8>();
    // SAFETY: the buffer's memory.
    unsafe { data.write_bytes(7, 100) };
    well(ringfile_buffer_set_length(buffer, 100));
    assert_eq!(well(ringfile_buffer_write(file, buffer, 0)), 100);
    well(ringfile_buffer_set_length(buffer, 0));
    let before = counts();
    assert_eq!(well(ringfile_buffer_read(file, buffer, 40)), 60);
    assert_eq!(well(ringfile_buffer_length(buffer)), 60);
    let after = counts();
    if ring() == RINGFILE_ROUTE_RING && after.refused_registrations == 0 {
        assert_eq!((after.ops - before.ops, after.fixed_ops - before.fixed_ops), (1, 1));
    }
    fails(ringfile_buffer_set_length(buffer, PAGE + 1), libc::EINVAL, "above the buffer's capacity 4096");
    // The pool's memory stays until its last buffer is released.
    well(ringfile_pool_free(pool));
    // SAFETY: the buffer's memory.
    assert_eq!(unsafe { data.read() }, 7);
    well(ringfile_buffer_release(buffer));
    assert!(ringfile_buffer_data(buffer).is_null());
    well(ringfile_close(file));
}

#[test]
fn many_reads_of_one_call_each_have_a_result() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(64)).unwrap();
    for route in [RINGFILE_ROUTE_DEFAULT, ring(), RINGFILE_ROUTE_WORKERS] {
        let file = open(&path, RINGFILE_READ, route);
        let mut memory = vec![99; 1000 * PAGE];
        let mut requests: Vec<_> = (0..1000)
            .map(|i| {
                let offset = (i * 37 % 64 * PAGE) as u64;
                ringfile_read_request { offset, data: place(&mut memory, i * PAGE), length: PAGE, result: 99 }
            })
            .collect();
        requests[500].data = ptr::null_mut();
        requests[600].offset = u64::MAX;
        requests[700].offset = 64 * PAGE as u64 - 1;
        // SAFETY: the memory is valid, and has the length that is passed.
        assert_eq!(well(unsafe { ringfile_read_many(file, requests.as_mut_ptr(), 1000) }), 2);
        for (i, request) in requests.iter().enumerate() {
            match i {
                500 => assert_eq!(request.result, -i64::from(libc::EFAULT)),
                600 => assert_eq!(request.result, -i64::from(libc::EINVAL)),
                700 => assert_eq!(request.result, 1),
                _ => {
                    assert_eq!(request.result, PAGE as i64);
                    assert!(is_page(&memory[i * PAGE..][..PAGE], i * 37 % 64), "{i}");
                }
            }
        }
        // SAFETY: none are read.
        assert_eq!(well(unsafe { ringfile_read_many(file, ptr::null_mut(), 0) }), 0);
        well(ringfile_close(file));
    }
}

#[test]
fn many_writes_of_one_call_each_have_a_result() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    for route in [RINGFILE_ROUTE_DEFAULT, ring(), RINGFILE_ROUTE_WORKERS] {
        std::fs::write(&path, vec![99; 1000 * PAGE]).unwrap();
        let (file, pool) = (open(&path, RINGFILE_READ | RINGFILE_WRITE, route), pool(1 << 20));
        let mut memory = content(1000);
        // Some of it is of a pool.
        let mut buffer = ptr::null_mut();
        // SAFETY: the pointer is to a local value.
        well(unsafe { ringfile_buffer_get(pool, PAGE, &mut buffer) });
        let pooled = ringfile_buffer_data(buffer);
        // SAFETY: a page of its own.
        unsafe { pooled.cast::<u8>().write_bytes(7, PAGE) };
        let mut requests: Vec<_> = (0..1000)
            .map(|i| {
                let (offset, data) = ((i * PAGE) as u64, place(&mut memory, i * PAGE).cast_const());
                let data = if i % 256 == 7 { pooled.cast_const() } else { data };
                ringfile_write_request { offset, data, length: PAGE, result: 99 }
            })
            .collect();
        requests[500].data = ptr::null();
        requests[600].offset = u64::MAX;
        requests[700].length = 1;
        // SAFETY: the memory is valid, and has the length that is passed.
        assert_eq!(well(unsafe { ringfile_write_many(file, requests.as_mut_ptr(), 1000) }), 2);
        let written = std::fs::read(&path).unwrap();
        for (i, request) in requests.iter().enumerate() {
            let page = &written[i * PAGE..][..PAGE];
            let expected = match i {
                500 => -i64::from(libc::EFAULT),
                600 => -i64::from(libc::EINVAL),
                700 => 1,
                _ => PAGE as i64,
            };
            assert_eq!(request.result, expected, "{i}");
            match i {
                500 | 600 => assert!(is_page(page, 99), "{i}"),
                700 => assert!(page[0] == 700_usize as u8 && page[1..].iter().all(|&byte| byte == 99)),
                _ => assert!(is_page(page, i), "{i}"),
            }
        }
        // SAFETY: none are read.
        assert_eq!(well(unsafe { ringfile_write_many(file, ptr::null_mut(), 0) }), 0);
        well(ringfile_buffer_release(buffer));
        well(ringfile_pool_free(pool));
        well(ringfile_close(file));
    }
    let closed = open(&path, RINGFILE_READ, ring());
    let nine = [0_u8; 9];
    let mut request = ringfile_write_request { offset: 0, data: nine.as_ptr().cast(), length: 9, result: 0 };
    // SAFETY: the memory is valid, and has the length that is passed.
    assert_eq!(well(unsafe { ringfile_write_many(closed, &mut request, 1) }), 1);
    assert_eq!(request.result, -i64::from(libc::EBADF), "opened for reading");
    well(ringfile_close(closed));
}

fn results(batch: *const ringfile_batch) -> Vec<(u64, i64)> {
    let mut results = ptr::null();
    // SAFETY: the pointer is to a local value, and then to as many results as were returned.
    let all = unsafe {
        let count = well(ringfile_batch_results(batch, &mut results));
        std::slice::from_raw_parts(results, count as usize)
    };
    all.iter().map(|result| (result.user_data, result.result)).collect()
}

/// If it were refused only when the batch runs, operations behind a barrier would not be affected.
#[test]
fn an_operation_without_memory_is_not_added_to_a_batch() {
    let folder = tempfile::tempdir().unwrap();
    let file = open(&folder.path().join("data"), READ_WRITE | RINGFILE_CREATE, ring());
    let (mut batch, too_long) = (ptr::null_mut(), isize::MAX as usize + 1);
    let none = iovec { iov_base: ptr::null_mut(), iov_len: PAGE };
    // SAFETY: a null pointer and an impossible length are errors; neither is accessed.
    unsafe {
        well(ringfile_batch_create(ptr::null(), &mut batch));
        for added in [
            ringfile_batch_add(batch, ringfile_op_read(file, ptr::null_mut(), PAGE, 0), 0),
            ringfile_batch_add(batch, ringfile_op_write(file, ptr::null(), PAGE, 0), 0),
            ringfile_batch_add(batch, ringfile_op_write_durable(file, ptr::null(), PAGE, 0), 0),
            ringfile_batch_add(batch, ringfile_op_write_atomic(file, ptr::null(), PAGE, 0), 0),
            ringfile_batch_add(batch, ringfile_op_readv(file, &none, 1, 0), 0),
            ringfile_batch_add(batch, ringfile_op_writev(file, &none, 1, 0), 0),
        ] {
            fails(added, libc::EFAULT, "the memory of the operation is NULL");
        }
        let added =
            ringfile_batch_add(batch, ringfile_op_write(file, (&raw const none).cast(), too_long, 0), 0);
        fails(added, libc::EINVAL, "more than any memory has");
        assert_eq!(well(ringfile_batch_add(batch, ringfile_op_write(file, ptr::null(), 0, 0), 7)), 0);
    }
    assert_eq!((well(ringfile_batch_run(batch)), results(batch)), (0, vec![(7, 0)]));
    well(ringfile_batch_free(batch));
    well(ringfile_close(file));
}

#[test]
fn a_batch_runs_again_and_stops_at_the_first_error_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = open(&folder.path().join("data"), READ_WRITE | RINGFILE_CREATE, ring());
    let options = ringfile_batch_options {
        size: size_of::<ringfile_batch_options>(),
        depth: 4,
        stop_on_error: 0,
        merge_reads: 1,
        merge_gap: PAGE,
    };
    let (mut batch, mut memory) = (ptr::null_mut(), content(16));
    // SAFETY: the memory is valid until the batch was run.
    unsafe {
        well(ringfile_batch_create(&options, &mut batch));
        for page in 0..16 {
            let index = ringfile_batch_add(
                batch,
                ringfile_op_write(file, place(&mut memory, page * PAGE), PAGE, (page * PAGE) as u64),
                7,
            );
            assert_eq!(well(index), page as i64);
        }
        well(ringfile_batch_barrier(batch));
        well(ringfile_batch_add(batch, ringfile_op_sync_all(file), 8));
        assert_eq!(well(ringfile_batch_run(batch)), 0);
        let all = results(batch);
        assert!(
            all.len() == 17
                && all[..16].iter().all(|&result| result == (7, PAGE as i64))
                && all[16] == (8, 0)
        );

        memory.fill(99);
        for page in (0..16).step_by(2) {
            ringfile_batch_add(
                batch,
                ringfile_op_read(file, place(&mut memory, page * PAGE), PAGE, (page * PAGE) as u64),
                page as u64,
            );
        }
        ringfile_batch_add(batch, ringfile_op_read(file, place(&mut memory, PAGE), PAGE, u64::MAX), 101);
        well(ringfile_batch_barrier(batch));
        ringfile_batch_add(batch, ringfile_op_sync_data(file), 102);
    }
    assert_eq!(well(ringfile_batch_run(batch)), 2);
    let all = results(batch);
    for (at, page) in (0..16).step_by(2).enumerate() {
        assert_eq!(all[at], (page as u64, PAGE as i64));
        assert!(is_page(&memory[page * PAGE..][..PAGE], page));
    }
    let errnos = [libc::EINVAL, libc::ECANCELED].map(|errno| -i64::from(errno));
    assert_eq!(all[8..], [(101, errnos[0]), (102, errnos[1])]);
    // SAFETY: a NUL-terminated string.
    let text = |index| unsafe { CStr::from_ptr(ringfile_batch_error(batch, index)) }.to_str().unwrap();
    assert!(text(0).is_empty() && text(8).contains("beyond 2^63"), "{}", text(8));
    // SAFETY: no memory is named.
    well(unsafe { ringfile_batch_add(batch, ringfile_op_sync_data(file), 1) });
    well(ringfile_batch_reset(batch));
    assert_eq!((well(ringfile_batch_run(batch)), results(batch).len()), (0, 0));
    well(ringfile_batch_free(batch));
    well(ringfile_close(file));
}

#[test]
fn a_queue_waits_for_a_number_of_results_or_a_timeout() {
    let (ours, mut theirs) = std::io::pipe().unwrap();
    let (mut pipe, mut queue, mut memory) = (ptr::null_mut(), ptr::null_mut(), vec![99; PAGE]);
    let mut results = [ringfile_result { user_data: 0, result: 0 }; 4];
    // SAFETY: the memory is valid until the queue is closed.
    unsafe {
        well(ringfile_open_fd(ours.as_raw_fd(), &options(0, RINGFILE_ROUTE_DEFAULT), &mut pipe));
        well(ringfile_queue_create(4, 0, &mut queue));
        well(ringfile_queue_add(
            queue,
            ringfile_op_read(pipe, place(&mut memory, 0), PAGE, 0),
            5,
            ptr::null_mut(),
        ));
        well(ringfile_queue_submit(queue));
        assert_eq!(well(ringfile_queue_wait(queue, results.as_mut_ptr(), 4, 1, 1_000_000)), 0);
        assert_eq!(well(ringfile_queue_len(queue)), 1);
        theirs.write_all(b"content").unwrap();
        assert_eq!(well(ringfile_queue_wait(queue, results.as_mut_ptr(), 4, 4, -1)), 1, "all there will be");
        assert_eq!((results[0].user_data, results[0].result), (5, 7));
        assert_eq!(&memory[..7], b"content");
        fails(
            ringfile_queue_wait(queue, ptr::null_mut(), 4, 1, -1),
            libc::EFAULT,
            "the pointer to the results is NULL",
        );
    }
    well(ringfile_queue_free(queue));
    well(ringfile_close(pipe));
}

#[test]
fn registered_memory_is_found_by_its_address_and_given_up_only_when_nothing_uses_it() {
    let (ours, mut theirs) = std::io::pipe().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(8)).unwrap();
    let file = open(&path, RINGFILE_READ, ring());
    let mut cache = vec![99; 8 * PAGE];
    let (mut memory, mut second, mut pipe, mut queue) =
        (ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let mut result = ringfile_result { user_data: 0, result: 0 };
    // SAFETY: the memory is valid until it is unregistered.
    unsafe {
        let within: *mut c_void = place(&mut cache, PAGE);
        // Elsewhere there is nothing to register with, or the limit leaves no room.
        let now = if ring() == RINGFILE_ROUTE_RING { RINGFILE_MEMORY_NOW } else { 0 };
        let registered = ringfile_memory_register_with(place(&mut cache, 0), 8 * PAGE, now, &mut memory);
        if registered < 0 {
            assert!([-libc::ENOMEM, -libc::EOPNOTSUPP].contains(&registered), "{registered}");
            well(ringfile_memory_register(place(&mut cache, 0), 8 * PAGE, &mut memory));
        }
        fails(ringfile_memory_register(within, PAGE, &mut second), libc::EEXIST, "registered already");
        let before = counts();
        assert_eq!(well(ringfile_read(file, within, 100, PAGE as u64)), 100);
        let after = counts();
        if ring() == RINGFILE_ROUTE_RING && after.refused_registrations == 0 {
            assert_eq!(after.fixed_ops - before.fixed_ops, 1);
        }
        assert!(cache[PAGE..PAGE + 100].iter().all(|&byte| byte == 1) && cache[PAGE + 100] == 99);

        well(ringfile_open_fd(ours.as_raw_fd(), ptr::null(), &mut pipe));
        well(ringfile_queue_create(1, 0, &mut queue));
        well(ringfile_queue_add(queue, ringfile_op_read(pipe, within, PAGE, 0), 5, ptr::null_mut()));
        assert_eq!(ringfile_memory_is_in_use(memory), 1);
        fails(ringfile_memory_unregister(memory), libc::EBUSY, "has not finished");
        theirs.write_all(b"content").unwrap();
        assert_eq!(well(ringfile_queue_wait(queue, &mut result, 1, 1, -1)), 1);
    }
    assert_eq!(ringfile_memory_is_in_use(memory), 0);
    well(ringfile_memory_unregister(memory));
    fails(ringfile_memory_unregister(memory), libc::EBADF, "closed");
    // SAFETY: as above.
    well(unsafe { ringfile_memory_register(place(&mut cache, 0), 8 * PAGE, &mut memory) });
    well(ringfile_memory_unregister(memory));
    well(ringfile_queue_free(queue));
    well(ringfile_close(pipe));
    well(ringfile_close(file));
}

/// Starts a read of a pipe into these bytes of `memory`, and checks that no registered memory can be unregistered
/// meanwhile.
fn keeps_registered(memory: &mut [u8], bytes: std::ops::Range<usize>, registered: &[std::ops::Range<usize>]) {
    let (ours, mut theirs) = std::io::pipe().unwrap();
    let (mut pipe, mut queue) = (ptr::null_mut(), ptr::null_mut());
    let mut result = ringfile_result { user_data: 0, result: 0 };
    let register = |range: &std::ops::Range<usize>| {
        let mut handle = ptr::null_mut();
        // SAFETY: the memory outlives its registration.
        well(unsafe {
            ringfile_memory_register(memory.as_ptr().add(range.start) as _, range.len(), &mut handle)
        });
        handle
    };
    let handles: Vec<_> = registered.iter().map(register).collect();
    // SAFETY: the memory outlives the operation, and nothing else accesses it.
    unsafe {
        well(ringfile_open_fd(ours.as_raw_fd(), ptr::null(), &mut pipe));
        well(ringfile_queue_create(1, 0, &mut queue));
        well(ringfile_queue_add(
            queue,
            ringfile_op_read(pipe, place(memory, bytes.start), bytes.len(), 0),
            5,
            ptr::null_mut(),
        ));
        well(ringfile_queue_submit(queue));
        for &handle in &handles {
            assert_eq!(ringfile_memory_is_in_use(handle), 1, "{bytes:?} of {registered:?}");
            fails(ringfile_memory_unregister(handle), libc::EBUSY, "has not finished");
        }
        theirs.write_all(&vec![7; bytes.len()]).unwrap();
        assert_eq!(well(ringfile_queue_wait(queue, &mut result, 1, 1, -1)), 1);
    }
    assert_eq!(result.result, bytes.len() as i64);
    assert!(memory[bytes].iter().all(|&byte| byte == 7));
    for handle in handles {
        well(ringfile_memory_unregister(handle));
    }
    well(ringfile_queue_free(queue));
    well(ringfile_close(pipe));
}

#[test]
fn f39_memory_is_not_unregistered_while_any_byte_of_it_is_in_flight() {
    let mut memory = vec![0; 8 * PAGE];
    let registered = 2 * PAGE..4 * PAGE;
    for bytes in [PAGE..3 * PAGE, 3 * PAGE..5 * PAGE, PAGE..5 * PAGE, 4 * PAGE - 1..4 * PAGE + 1] {
        keeps_registered(&mut memory, bytes, std::slice::from_ref(&registered));
    }
    // Across two registrations, and the gap between them.
    keeps_registered(&mut memory, 3 * PAGE..5 * PAGE, &[2 * PAGE..4 * PAGE, 4 * PAGE..6 * PAGE]);
    keeps_registered(&mut memory, 0..7 * PAGE, &[PAGE..2 * PAGE, 2 * PAGE..3 * PAGE, 4 * PAGE..5 * PAGE]);
    drop(memory);
    // Zeroed and mostly untouched, so it takes no memory.
    const GIB: usize = 1 << 30;
    let mut memory = vec![0; GIB + 4 * PAGE];
    let registered = 0..memory.len();
    keeps_registered(&mut memory, GIB - PAGE..GIB + PAGE, std::slice::from_ref(&registered));
}

#[test]
fn file_takes_one_descriptor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let file = open(&path, READ_WRITE | RINGFILE_CREATE, RINGFILE_ROUTE_DEFAULT);
    let of_it = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.and_then(|entry| std::fs::read_link(entry.path())).is_ok_and(|to| to == path)
    };
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    assert_eq!(descriptors.map(of_it).filter(|&is| is).count(), 1);
    assert!(ringfile_fd(file) >= 0);
    well(ringfile_close(file));
}

#[test]
fn aio_takes_direct_io_alone() {
    if std::env::var("RINGFILE_DISABLE").is_ok_and(|disabled| disabled == "io_uring,aio") {
        return;
    }
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    std::fs::write(file.path(), content(8)).unwrap();
    let path = std::ffi::CString::new(file.path().to_str().unwrap()).unwrap();
    let opened = |flags| {
        let mut handle = ptr::null_mut();
        // SAFETY: the pointers are to local values.
        let answer =
            unsafe { ringfile_open(path.as_ptr(), &options(flags, RINGFILE_ROUTE_AIO), &mut handle) };
        (answer, handle)
    };
    assert_eq!(opened(RINGFILE_READ).0, -libc::EINVAL);
    let (answer, direct) = opened(RINGFILE_READ | RINGFILE_DIRECT);
    if answer == -libc::EOPNOTSUPP {
        return;
    }
    well(answer);
    let before = counts();
    let mut read = vec![0; 8 * PAGE];
    // SAFETY: the memory is valid, and has the length that is passed.
    let len = well(unsafe { ringfile_read(direct, read.as_mut_ptr().cast(), 8 * PAGE, 0) });
    assert_eq!(len, 8 * PAGE as i64);
    assert_eq!(read, content(8));
    let counts = counts();
    assert!(counts.aio_ops > before.aio_ops && counts.aio_calls > before.aio_calls);
    well(ringfile_close(direct));
}

#[test]
fn adaptive_files_are_read_past_the_cache_and_through_it() {
    ringfile::internal::assume_memory_is_free(Some(false));
    // A folder in the build folder, which is usually on a disk.
    let data = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    std::fs::write(data.path(), content(8)).unwrap();
    data.as_file().sync_all().unwrap();
    // SAFETY: no memory is named.
    unsafe { libc::posix_fadvise(data.as_file().as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    let file = open(data.path(), RINGFILE_READ | RINGFILE_ADAPTIVE, RINGFILE_ROUTE_DEFAULT);
    let is_adaptive = well(i64::from(ringfile_is_adaptive(file))) == 1;
    let (before, mut read) = (counts(), vec![0; 8 * PAGE]);
    for _ in 0..4 {
        // SAFETY: the memory is valid, and has the length that is passed.
        let len = well(unsafe { ringfile_read(file, read.as_mut_ptr().cast(), 8 * PAGE, 0) });
        assert_eq!(len, 8 * PAGE as i64);
        assert_eq!(read, content(8));
    }
    let now = counts();
    if is_adaptive {
        let of = |counts: &ringfile_counts| [counts.cache_hits, counts.cache_misses, counts.cache_admitted];
        let [hits, misses, admitted] = std::array::from_fn(|at| of(&now)[at] - of(&before)[at]);
        assert_eq!([hits, misses, admitted], [1, 3, 1], "the third fills the cache");
    }
    well(ringfile_close(file));
    let buffered = open(data.path(), RINGFILE_READ, RINGFILE_ROUTE_DEFAULT);
    assert_eq!(ringfile_is_adaptive(buffered), 0);
    well(ringfile_close(buffered));
}
