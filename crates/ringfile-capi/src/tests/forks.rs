//! Forked children: plain calls work, everything else is refused, and no call waits for a lock of the parent.

use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

const REFUSED: i64 = -(libc::EOPNOTSUPP as i64);

/// Forks. The child runs `check` and ends, with an alarm against hanging.
pub(super) fn in_a_child(check: impl FnOnce()) {
    // SAFETY: the child has only this thread, and the C library's allocator supports that; it ends with `_exit`, so
    // that no destructor or exit handler of the parent runs twice.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        // SAFETY: it only changes this process.
        unsafe { libc::alarm(180) };
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_ok();
        // SAFETY: ends this process, and touches no memory.
        unsafe { libc::_exit(if passed { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the pointer is to a local value.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the forked child failed (1 << 8), or hung (14)");
}

fn refused(result: impl Into<i64>) {
    fails(result, libc::EOPNOTSUPP, "forked child");
}

fn a_queue() -> *mut ringfile_queue {
    let mut queue = ptr::null_mut();
    // SAFETY: the pointer is to a local value.
    well(unsafe { ringfile_queue_create(1, 0, &mut queue) });
    queue
}

/// Reads a page through the queue, which has no open operations then; returns the result.
fn by_queue(queue: *mut ringfile_queue, file: *const ringfile_file, page: &mut [u8]) -> i64 {
    let mut result = ringfile_result { user_data: 0, result: 0 };
    // SAFETY: the memory is valid during the call; the queue has nothing of it when this returns.
    unsafe {
        well(ringfile_queue_add(queue, ringfile_op_read(file, place(page, 0), PAGE, 0), 0, ptr::null_mut()));
        assert_eq!(well(ringfile_queue_wait(queue, &mut result, 1, 1, -1)), 1);
    }
    assert_eq!(well(ringfile_queue_len(queue)), 0);
    result.result
}

fn by_token(queue: *mut ringfile_queue, file: *const ringfile_file, page: &mut [u8]) -> i64 {
    let mut token = 0;
    // SAFETY: the memory is valid during the call; the read is waited for.
    unsafe {
        well(ringfile_queue_add(queue, ringfile_op_read(file, place(page, 0), PAGE, 0), 0, &mut token))
    };
    ringfile_queue_wait_for(queue, token)
}

/// A way of reading page 0, which returns the call's result.
type Form<'a> = dyn Fn(&mut [u8]) -> i64 + 'a;

/// Reads page 0 in every form; returns the results, each with whether the page is there.
fn every_read(
    file: *const ringfile_file,
    queue: *mut ringfile_queue,
    tokens: *mut ringfile_queue,
) -> [(i64, bool); 6] {
    let forms: [&Form<'_>; 6] = [
        // SAFETY: the memory is valid until the calls return.
        &|page| unsafe { ringfile_read(file, place(page, 0), PAGE, 0) },
        &|page| {
            let part = iovec { iov_base: place(page, 0), iov_len: PAGE };
            // SAFETY: as above.
            unsafe { ringfile_readv(file, &part, 1, 0) }
        },
        &|page| {
            let data = place(page, 0);
            let mut request = ringfile_read_request { offset: 0, data, length: PAGE, result: 99 };
            // SAFETY: as above.
            let failed = unsafe { ringfile_read_many(file, &mut request, 1) };
            assert_eq!(failed, i32::from(request.result < 0));
            request.result
        },
        &|page| by_queue(queue, file, page),
        &|page| by_queue(a_queue(), file, page),
        &|page| by_token(tokens, file, page),
    ];
    forms.map(|form| {
        let mut page = vec![99; PAGE];
        (form(&mut page), is_page(&page, 0))
    })
}

/// Returns a folder in memory, if there is one.
fn in_memory() -> Option<PathBuf> {
    Some(PathBuf::from("/dev/shm")).filter(|path| path.is_dir())
}

#[test]
fn a_forked_child_makes_plain_calls_and_may_not_use_the_parents_ring() {
    let name = "tests::forks::a_forked_child_makes_plain_calls_and_may_not_use_the_parents_ring";
    if ring() != RINGFILE_ROUTE_RING || !apart(name, &[]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(2)).unwrap();
    let flags = RINGFILE_READ | RINGFILE_WRITE;
    let (file, plain) = (open(&path, flags, ring()), open(&path, flags, RINGFILE_ROUTE_INLINE));
    let by_workers = open(&path, flags, RINGFILE_ROUTE_WORKERS);
    let shared_memory = in_memory().map(|folder| {
        let named = tempfile::NamedTempFile::new_in(folder).unwrap();
        std::fs::write(named.path(), content(2)).unwrap();
        (open(named.path(), flags, RINGFILE_ROUTE_AUTO), named)
    });
    let (queue, tokens) = (a_queue(), a_queue());
    for file in [file, plain, by_workers] {
        assert_eq!(every_read(file, queue, tokens), [(PAGE as i64, true); 6]);
    }
    in_a_child(|| {
        for file in [file, by_workers] {
            assert_eq!(every_read(file, queue, tokens), [(REFUSED, false); 6]);
            refused(ringfile_sync_data(file));
            refused(ringfile_sync_all(file));
            // SAFETY: the memory is valid during the call.
            refused(unsafe { ringfile_write(file, content(1).as_ptr().cast(), PAGE, 0) });
        }
        refused(ringfile_truncate(file, PAGE as u64));
        assert_eq!(every_read(plain, queue, tokens), [(PAGE as i64, true); 6]);
        if let Some((file, _)) = shared_memory {
            assert_eq!(every_read(file, queue, tokens), [(PAGE as i64, true); 6]);
        }
        // SAFETY: the memory is valid during the call.
        well(unsafe { ringfile_write(plain, content(1).as_ptr().cast(), PAGE, PAGE as u64) });
        well(ringfile_sync_data(plain));
        assert_eq!(well(ringfile_size(file)), 2 * PAGE as i64);
        let opened = open(&path, RINGFILE_READ, ring());
        let mut page = vec![99; PAGE];
        // SAFETY: the memory is valid during the call.
        refused(unsafe { ringfile_read(opened, place(&mut page, 0), PAGE, 0) });
        let at = opened.addr();
        // A thread of the child has its own ring.
        let elsewhere = move || {
            // SAFETY: the memory is valid during the call.
            let read =
                unsafe { ringfile_read(ptr::without_provenance(at), place(&mut page, 0), PAGE, PAGE as u64) };
            assert_eq!((well(read), is_page(&page, 0)), (PAGE as i64, true), "what the child wrote");
        };
        std::thread::spawn(elsewhere).join().unwrap();
        well(ringfile_close(opened));
        well(ringfile_queue_free(tokens));
        well(ringfile_queue_free(queue));
        well(ringfile_close(file));
    });
    assert_eq!(every_read(file, queue, tokens), [(PAGE as i64, true); 6], "the parent goes on");
}

#[test]
fn a_child_of_a_parent_with_plain_calls_starts_nothing_that_nobody_waits_for() {
    let name = "tests::forks::a_child_of_a_parent_with_plain_calls_starts_nothing_that_nobody_waits_for";
    if ring() != RINGFILE_ROUTE_RING || !apart(name, &[]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(1)).unwrap();
    let (plain, file) =
        (open(&path, RINGFILE_READ, RINGFILE_ROUTE_INLINE), open(&path, RINGFILE_READ, ring()));
    let (queue, tokens) = (a_queue(), a_queue());
    in_a_child(|| {
        assert_eq!(every_read(file, queue, tokens), [(PAGE as i64, true); 6], "nothing was started before");
    });
    assert_eq!(every_read(plain, queue, tokens), [(PAGE as i64, true); 6]);
    in_a_child(|| {
        // A queue that is made in the child has a ring of its own.
        let (read, with_own_ring) = ((REFUSED, false), (PAGE as i64, true));
        let got = every_read(file, queue, tokens);
        assert!(got.iter().all(|&result| result == read || result == with_own_ring), "{got:?}");
        assert_eq!((got[0], got[3], got[5]), (read, read, read));
        refused(ringfile_sync_data(file));
    });
}

#[test]
fn operations_of_other_threads_end_in_the_child() {
    let name = "tests::forks::operations_of_other_threads_end_in_the_child";
    if !apart(name, &[]) {
        return;
    }
    let (ours, theirs) = std::io::pipe().unwrap();
    let mut options = options(0, RINGFILE_ROUTE_WORKERS);
    options.size = size_of::<ringfile_open_options>();
    let (mut pipe, queue, mut page) = (ptr::null_mut(), a_queue(), vec![0; PAGE]);
    let mut result = ringfile_result { user_data: 0, result: 0 };
    // SAFETY: the memory is valid until the queue was waited for.
    unsafe {
        well(ringfile_open_fd(std::os::fd::AsRawFd::as_raw_fd(&ours), &options, &mut pipe));
        well(ringfile_queue_add(
            queue,
            ringfile_op_read(pipe, place(&mut page, 0), PAGE, 0),
            0,
            ptr::null_mut(),
        ));
        well(ringfile_queue_submit(queue));
    }
    in_a_child(|| {
        // SAFETY: the memory is valid during the call.
        assert_eq!(well(unsafe { ringfile_queue_wait(queue, &mut result, 1, 1, -1) }), 1);
        assert_eq!(result.result, -i64::from(libc::ECANCELED));
        assert_eq!(well(ringfile_queue_len(queue)), 0);
    });
    std::io::Write::write_all(&mut &theirs, b"parent").unwrap();
    // SAFETY: as above.
    assert_eq!(well(unsafe { ringfile_queue_wait(queue, &mut result, 1, 1, -1) }), 1);
    assert_eq!((result.result, &page[..6]), (6, b"parent".as_slice()));
}

/// Checks the result of a read of a page by a plain call: if the environment sends everything to workers, a child
/// cannot make one.
fn is_plain_or_refused(read: i64) -> bool {
    read == PAGE as i64 || read == REFUSED && ring() != RINGFILE_ROUTE_RING
}

/// Creates and closes every kind of handle.
fn make_and_close(path: &Path) {
    let (file, pool) = (open(path, RINGFILE_READ, RINGFILE_ROUTE_INLINE), pool(1 << 20));
    let (queue, mut page) = (a_queue(), vec![99; PAGE]);
    let (mut batch, mut buffer, mut memory) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let mut own = vec![0_u8; PAGE];
    // SAFETY: the memory is valid until the handles that use it are closed.
    unsafe {
        well(ringfile_batch_create(ptr::null(), &mut batch));
        well(ringfile_buffer_get(pool, PAGE, &mut buffer));
        well(ringfile_memory_register(own.as_mut_ptr().cast(), PAGE, &mut memory));
        let read = ringfile_read(file, place(&mut page, 0), PAGE, 0);
        assert!(is_plain_or_refused(read) && is_page(&page, 0) == (read > 0), "{read}: {}", said());
        well(ringfile_memory_unregister(memory));
    }
    assert!(is_plain_or_refused(ringfile_buffer_read(file, buffer, 0)), "{}", said());
    well(ringfile_buffer_release(buffer));
    well(ringfile_batch_free(batch));
    well(ringfile_queue_free(queue));
    well(ringfile_pool_free(pool));
    well(ringfile_close(file));
}

#[test]
fn no_child_waits_for_a_lock_that_a_thread_of_the_parent_s_has() {
    let name = "tests::forks::no_child_waits_for_a_lock_that_a_thread_of_the_parent_s_has";
    if !apart(name, &[]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(1)).unwrap();
    let (over, shared) = (AtomicBool::new(false), open(&path, RINGFILE_READ, ring()).addr());
    let of_all = || ptr::without_provenance_mut::<ringfile_file>(shared);
    let read_what_all_have = || {
        let mut page = vec![99; PAGE];
        // SAFETY: the memory is valid during the call.
        let read = unsafe { ringfile_read(of_all(), place(&mut page, 0), PAGE, 0) };
        assert!(read == REFUSED || (well(read), is_page(&page, 0)) == (PAGE as i64, true));
        well(ringfile_thread_release());
        read
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    make_and_close(&path);
                    assert_eq!(read_what_all_have(), PAGE as i64);
                }
            });
        }
        let forks = std::panic::catch_unwind(|| {
            for _ in 0..200 {
                in_a_child(|| {
                    (0..3).for_each(|_| make_and_close(&path));
                    read_what_all_have();
                    well(ringfile_close(of_all()));
                });
            }
        });
        over.store(true, Ordering::Relaxed);
        forks.unwrap();
    });
}

#[test]
fn no_child_waits_for_a_batch_that_a_thread_of_the_parent_uses() {
    if !apart("tests::forks::no_child_waits_for_a_batch_that_a_thread_of_the_parent_uses", &[]) {
        return;
    }
    let mut batch = ptr::null_mut();
    // SAFETY: the pointer is to a local value.
    well(unsafe { ringfile_batch_create(ptr::null(), &mut batch) });
    let (over, shared) = (AtomicBool::new(false), batch.addr());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                well(ringfile_batch_reset(ptr::without_provenance_mut(shared)));
            }
        });
        let forks = std::panic::catch_unwind(|| {
            for _ in 0..1000 {
                in_a_child(|| {
                    let batch = ptr::without_provenance_mut(shared);
                    let used = ringfile_batch_reset(batch);
                    assert!([0, -libc::EBUSY].contains(&used), "{used}: {}", said());
                    assert_eq!(ringfile_batch_cancel(batch), used);
                    well(ringfile_batch_free(batch));
                });
            }
        });
        over.store(true, Ordering::Relaxed);
        forks.unwrap();
    });
    well(ringfile_batch_free(batch));
}

#[test]
fn f38_a_child_can_rest_its_thread_after_other_threads_closed_its_files() {
    let name = "tests::forks::f38_a_child_can_rest_its_thread_after_other_threads_closed_its_files";
    if !apart(name, &[]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(1)).unwrap();
    let queue = a_queue();
    let (files, closers) = std::sync::mpsc::channel::<usize>();
    std::thread::scope(|scope| {
        // Each thread leaves a message for the forking thread, which has used the file.
        scope.spawn(|| {
            closers.into_iter().for_each(|file| {
                well(ringfile_close(ptr::without_provenance_mut(file)));
            });
        });
        let forks = std::panic::catch_unwind(|| {
            for _ in 0..300 {
                let used = [(); 48].map(|()| {
                    let (file, mut page) = (open(&path, RINGFILE_READ, ring()), vec![99; PAGE]);
                    assert_eq!(by_queue(queue, file, &mut page), PAGE as i64);
                    file.addr()
                });
                used.into_iter().for_each(|file| files.send(file).unwrap());
                in_a_child(|| {
                    well(ringfile_thread_release());
                });
            }
        });
        drop(files);
        forks.unwrap();
    });
}

#[test]
fn a_child_may_not_take_a_read_that_the_parent_waits_for() {
    let name = "tests::forks::a_child_may_not_take_a_read_that_the_parent_waits_for";
    if !apart(name, &[]) {
        return;
    }
    let (ours, theirs) = std::io::pipe().unwrap();
    let (mut pipe, mut queue, mut page) = (ptr::null_mut(), ptr::null_mut(), vec![0; PAGE]);
    let mut read = 0;
    // SAFETY: the memory is valid until the read was waited for.
    unsafe {
        well(ringfile_open_fd(std::os::fd::AsRawFd::as_raw_fd(&ours), ptr::null(), &mut pipe));
        well(ringfile_queue_create(1, RINGFILE_QUEUE_SHARED, &mut queue));
        well(ringfile_queue_add(queue, ringfile_op_read(pipe, place(&mut page, 0), PAGE, 0), 0, &mut read));
    }
    let queue_at = queue.addr();
    let sleeper =
        std::thread::spawn(move || ringfile_queue_wait_for(ptr::without_provenance_mut(queue_at), read));
    // Time for the other thread to wait before the fork; processes are not simulated.
    std::thread::sleep(std::time::Duration::from_millis(20));
    in_a_child(|| {
        fails(ringfile_queue_wait_for(queue, read), libc::EOPNOTSUPP, "make a new one in the child");
        fails(ringfile_queue_submit(queue), libc::EOPNOTSUPP, "make a new one in the child");
        well(ringfile_queue_free(queue));
    });
    std::io::Write::write_all(&mut &theirs, b"parent").unwrap();
    assert_eq!(sleeper.join().unwrap(), 6);
    well(ringfile_queue_free(queue));
    assert_eq!(&page[..6], b"parent");
}

unsafe extern "C" fn count(context: *mut c_void, _failed: i64) {
    // SAFETY: the counter is never freed.
    unsafe { &*context.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_started_batch_ends_only_in_the_parent() {
    static ENDS: AtomicUsize = AtomicUsize::new(0);
    if !apart("tests::forks::a_started_batch_ends_only_in_the_parent", &[]) {
        return;
    }
    let context = (&raw const ENDS).cast_mut().cast();
    let (ours, theirs) = std::io::pipe().unwrap();
    let (mut pipe, mut batch, mut other, mut page) =
        (ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), vec![0; PAGE]);
    // SAFETY: the memory is valid until the end is reported.
    unsafe {
        well(ringfile_open_fd(std::os::fd::AsRawFd::as_raw_fd(&ours), ptr::null(), &mut pipe));
        well(ringfile_batch_create(ptr::null(), &mut batch));
        well(ringfile_batch_create(ptr::null(), &mut other));
        well(ringfile_batch_add(batch, ringfile_op_read(pipe, place(&mut page, 0), PAGE, 0), 0));
        well(ringfile_batch_start(batch, Some(count), context));
    }
    in_a_child(|| {
        fails(ringfile_batch_run(batch), libc::EBUSY, "");
        // SAFETY: no operation is started.
        unsafe {
            well(ringfile_batch_add(other, ringfile_op_read(pipe, place(&mut page, 0), PAGE, 0), 0));
            refused(ringfile_batch_start(other, Some(count), context));
            let mut results = ptr::null();
            assert_eq!(well(ringfile_batch_results(other, &mut results)), 0, "nothing was carried out");
        }
        assert_eq!(well(ringfile_batch_run(other)), 0, "it is empty");
        assert!([0, -libc::EBUSY].contains(&ringfile_batch_cancel(batch)));
        well(ringfile_batch_free(batch));
        assert_eq!(ENDS.load(Ordering::SeqCst), 0);
    });
    std::io::Write::write_all(&mut &theirs, b"parent").unwrap();
    while ENDS.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(&page[..6], b"parent");
    well(ringfile_batch_free(batch));
    well(ringfile_batch_free(other));
    well(ringfile_close(pipe));
}
