//! Batches that are started: the end is reported once, by a function or an eventfd.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::ops::*;
use super::*;
use crate::batch::*;
use crate::control::*;
use crate::file::*;
use crate::io::*;
use crate::queue::*;

fn batch() -> *mut ringfile_batch {
    let mut batch = ptr::null_mut();
    // SAFETY: the pointer is to a local value.
    well(unsafe { ringfile_batch_create(ptr::null(), &mut batch) });
    batch
}

fn add_read(batch: *mut ringfile_batch, file: *const ringfile_file, to: &mut [u8], offset: usize) {
    let (data, length) = (to.as_mut_ptr().cast(), to.len());
    // SAFETY: each test keeps the memory until the end was reported.
    well(unsafe { ringfile_batch_add(batch, ringfile_op_read(file, data, length, offset as u64), 7) });
}

fn results(batch: *const ringfile_batch) -> Vec<i64> {
    let mut results = ptr::null();
    // SAFETY: the pointer is to a local value, and then to as many results as were returned.
    let all = unsafe {
        let count = well(ringfile_batch_results(batch, &mut results));
        std::slice::from_raw_parts(results, count as usize)
    };
    all.iter().map(|result| result.result).collect()
}

/// What a context points to: the sender of reported ends.
type Ends = mpsc::Sender<(i64, std::thread::ThreadId)>;

unsafe extern "C" fn tell(context: *mut c_void, failed: i64) {
    // SAFETY: each test passes the address of one, and keeps it until the end was reported.
    let ends = unsafe { &*context.cast::<Ends>() };
    // A separate sender: after the test has received the report, its own sender may be gone.
    ends.clone().send((failed, std::thread::current().id())).unwrap();
}

fn start(batch: *mut ringfile_batch, ends: &Ends) {
    // SAFETY: the sender outlives the end.
    well(unsafe { ringfile_batch_start(batch, Some(tell), ptr::from_ref(ends).cast_mut().cast()) });
}

fn new_file(folder: &tempfile::TempDir, pages: usize) -> *mut ringfile_file {
    let path = folder.path().join("data");
    std::fs::write(&path, content(pages)).unwrap();
    open(&path, RINGFILE_READ, ring())
}

fn pipe() -> (std::io::PipeWriter, *mut ringfile_file) {
    let (ours, theirs) = std::io::pipe().unwrap();
    let mut pipe = ptr::null_mut();
    // SAFETY: the descriptor is duplicated.
    well(unsafe { ringfile_open_fd(ours.as_raw_fd(), ptr::null(), &mut pipe) });
    (theirs, pipe)
}

#[test]
fn another_thread_reports_the_end_and_the_batch_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    let (file, batch, mut memory) = (new_file(&folder, 8), batch(), vec![99; 8 * PAGE]);
    let (ends, ended) = mpsc::channel();
    for round in 0..3 {
        memory.fill(99);
        for (page, to) in memory.chunks_mut(PAGE).enumerate() {
            add_read(batch, file, to, page * PAGE);
        }
        let mut beyond = vec![99; PAGE];
        // SAFETY: the memory is valid until the end was reported.
        well(unsafe {
            ringfile_batch_add(batch, ringfile_op_read(file, place(&mut beyond, 0), PAGE, u64::MAX), 0)
        });
        start(batch, &ends);
        let (failed, thread) = ended.recv().unwrap();
        assert_eq!(failed, 1, "round {round}");
        assert_ne!(thread, std::thread::current().id());
        assert_eq!(results(batch)[..8], [PAGE as i64; 8]);
        assert_eq!(results(batch)[8], -i64::from(libc::EINVAL));
        assert!((0..8).all(|page| is_page(&memory[page * PAGE..][..PAGE], page)));
    }
    // Nothing was added.
    start(batch, &ends);
    assert_eq!(ended.recv().unwrap().0, 0);
    // SAFETY: no function is an error.
    let none = unsafe { ringfile_batch_start(batch, None, ptr::null_mut()) };
    fails(none, libc::EFAULT, "is NULL");
    well(ringfile_batch_free(batch));
    well(ringfile_close(file));
    assert!(ended.try_recv().is_err(), "each end was reported once");
}

#[test]
fn a_batch_that_is_under_way_is_busy_and_can_be_cancelled() {
    let ((mut theirs, pipe), batch, mut memory) = (pipe(), batch(), vec![99; 2 * PAGE]);
    let (ends, ended) = mpsc::channel();
    let (first, second) = memory.split_at_mut(PAGE);
    well(ringfile_batch_cancel(batch));
    add_read(batch, pipe, first, 0);
    add_read(batch, pipe, second, 0);
    start(batch, &ends);
    let busy = "its end was not reported";
    fails(ringfile_batch_run(batch), libc::EBUSY, busy);
    fails(ringfile_batch_barrier(batch), libc::EBUSY, busy);
    fails(ringfile_batch_reset(batch), libc::EBUSY, busy);
    fails(ringfile_batch_start_eventfd(batch, 0), libc::EBUSY, busy);
    // SAFETY: the pointer is to a local value.
    fails(unsafe { ringfile_batch_results(batch, &mut ptr::null()) }, libc::EBUSY, busy);
    well(ringfile_batch_cancel(batch));
    assert_eq!(ended.recv().unwrap().0, 2);
    assert_eq!(results(batch), [-i64::from(libc::ECANCELED); 2]);
    // The memory belongs to the caller again.
    let mut next = vec![0; 7];
    add_read(batch, pipe, &mut next, 0);
    start(batch, &ends);
    std::io::Write::write_all(&mut theirs, b"content").unwrap();
    assert_eq!((ended.recv().unwrap().0, next.as_slice()), (0, b"content".as_slice()));
    assert!(memory.iter().all(|&byte| byte == 99));
    well(ringfile_batch_free(batch));
    well(ringfile_close(pipe));
}

/// A batch whose function takes the results.
struct Taken {
    batch: *mut ringfile_batch,
    counts: mpsc::Sender<i64>,
}

unsafe extern "C" fn take_results(context: *mut c_void, _failed: i64) {
    // SAFETY: the test waits for the end, and the pointer is to a local value.
    let (own, count) = unsafe {
        let own = &*context.cast::<Taken>();
        (own, ringfile_batch_results(own.batch, &mut ptr::null()))
    };
    own.counts.clone().send(count).unwrap();
}

#[test]
fn the_function_takes_the_results_while_another_thread_cancels() {
    let folder = tempfile::tempdir().unwrap();
    let (file, mut memory) = (new_file(&folder, 4), vec![99; 4 * PAGE]);
    let (counts, counted) = mpsc::channel();
    let own = Taken { batch: batch(), counts };
    let context = ptr::from_ref(&own).cast_mut().cast();
    let mut cancelled = 0;
    for round in 0..20_000 {
        for (page, to) in memory.chunks_mut(PAGE).enumerate() {
            add_read(own.batch, file, to, page * PAGE);
        }
        // SAFETY: the test waits for the end.
        well(unsafe { ringfile_batch_start(own.batch, Some(take_results), context) });
        let count = loop {
            cancelled = ringfile_batch_cancel(own.batch).min(cancelled);
            if let Ok(count) = counted.try_recv() {
                break count;
            }
        };
        assert_eq!(count, 4, "round {round}: {}", said());
    }
    assert_eq!(cancelled, 0, "{}", said());
    well(ringfile_batch_free(own.batch));
    well(ringfile_close(file));
}

#[test]
fn threads_that_add_at_once_wait_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let (file, batch) = (new_file(&folder, 1), batch());
    let (file_at, batch_at, both) = (file.addr(), batch.addr(), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                both.wait();
                let (file, batch) = (ptr::without_provenance(file_at), ptr::without_provenance_mut(batch_at));
                for _ in 0..20_000 {
                    let advice = ringfile_op_advise(file, 0, 0, RINGFILE_ADVICE_NORMAL);
                    // SAFETY: no memory is named.
                    well(unsafe { ringfile_batch_add(batch, advice, 0) });
                }
            });
        }
    });
    assert_eq!(well(ringfile_batch_barrier(batch)), 0);
    assert_eq!(
        // SAFETY: no memory is named.
        well(unsafe { ringfile_batch_add(batch, ringfile_op_advise(file, 0, 0, RINGFILE_ADVICE_NORMAL), 0) }),
        40_000
    );
    well(ringfile_batch_free(batch));
    well(ringfile_close(file));
}

#[test]
fn a_batch_that_was_freed_reports_its_end() {
    let ((mut theirs, pipe), batch, mut memory) = (pipe(), batch(), vec![0; 7]);
    let (ends, ended) = mpsc::channel();
    add_read(batch, pipe, &mut memory, 0);
    start(batch, &ends);
    well(ringfile_batch_free(batch));
    well(ringfile_close(pipe));
    fails(ringfile_batch_cancel(batch), libc::EBADF, "the handle was closed");
    assert!(ended.try_recv().is_err(), "the pipe is empty");
    std::io::Write::write_all(&mut theirs, b"content").unwrap();
    assert_eq!((ended.recv().unwrap().0, memory.as_slice()), (0, b"content".as_slice()));
}

#[test]
fn an_eventfd_is_signalled_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let (file, batch, mut page) = (new_file(&folder, 2), batch(), vec![99; PAGE]);
    // SAFETY: it takes only numbers; the descriptor belongs to this test.
    let signal = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    for round in 0..3 {
        add_read(batch, file, &mut page, PAGE);
        well(ringfile_batch_start_eventfd(batch, signal.as_raw_fd()));
        let mut count = [0; 8];
        assert_eq!(read_from(&signal, &mut count), 8);
        assert_eq!(u64::from_ne_bytes(count), 1, "round {round}");
        assert_eq!(results(batch), [PAGE as i64]);
        assert!(is_page(&page, 1));
    }
    add_read(batch, file, &mut page, 0);
    fails(ringfile_batch_start_eventfd(batch, -1), libc::EBADF, "duplicating the eventfd -1");
    assert_eq!((well(ringfile_batch_run(batch)), is_page(&page, 0)), (0, true), "nothing was started before");
    well(ringfile_batch_free(batch));
    well(ringfile_close(file));
}

#[test]
fn an_eventfd_with_the_largest_count_stops_no_thread() {
    let folder = tempfile::tempdir().unwrap();
    let (file, mut page) = (new_file(&folder, 1), vec![99; PAGE]);
    // SAFETY: it takes only numbers; the descriptor belongs to this test.
    let signal = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    let most = (u64::MAX - 1).to_ne_bytes();
    // SAFETY: the memory is valid during the call.
    assert_eq!(unsafe { libc::write(signal.as_raw_fd(), most.as_ptr().cast(), 8) }, 8);
    let (first, second) = (batch(), batch());
    add_read(first, file, &mut page, 0);
    well(ringfile_batch_start_eventfd(first, signal.as_raw_fd()));
    // SAFETY: the pointer is to a local value.
    while unsafe { ringfile_batch_results(first, &mut ptr::null()) } < 0 {
        std::thread::yield_now();
    }
    let (ends, ended) = mpsc::channel();
    start(second, &ends);
    let result = ended.recv_timeout(std::time::Duration::from_secs(30));
    let mut count = [0; 8];
    assert_eq!((read_from(&signal, &mut count), count), (8, most));
    if result.is_err() {
        // The thread goes on now, and uses the sender.
        ended.recv().unwrap();
    }
    assert!(result.is_ok(), "the library's thread waited for a reader of the eventfd");
    assert!(is_page(&page, 0));
    well(ringfile_batch_free(first));
    well(ringfile_batch_free(second));
    well(ringfile_close(file));
}

fn read_from(from: &OwnedFd, to: &mut [u8]) -> isize {
    // SAFETY: the memory is valid during the call.
    unsafe { libc::read(from.as_raw_fd(), to.as_mut_ptr().cast(), to.len()) }
}

/// A batch that starts itself again in its callback.
struct Again {
    batch: *mut ringfile_batch,
    file: *const ringfile_file,
    page: Vec<u8>,
    left: usize,
    ends: Ends,
}

unsafe extern "C" fn again(context: *mut c_void, failed: i64) {
    // SAFETY: the test waits for the last end.
    let own = unsafe { &mut *context.cast::<Again>() };
    assert!(failed == 0 && is_page(&own.page, own.left % 2));
    own.left -= 1;
    if own.left == 0 {
        return own.ends.clone().send((failed, std::thread::current().id())).unwrap();
    }
    own.page.fill(99);
    add_read(own.batch, own.file, &mut own.page, own.left % 2 * PAGE);
    // SAFETY: as above.
    well(unsafe { ringfile_batch_start(own.batch, Some(again), context) });
}

#[test]
fn the_function_starts_its_batch_again() {
    let folder = tempfile::tempdir().unwrap();
    let (ends, ended) = mpsc::channel();
    let mut own = Again { batch: batch(), file: new_file(&folder, 2), page: vec![99; PAGE], left: 500, ends };
    add_read(own.batch, own.file, &mut own.page, 0);
    // SAFETY: the test waits for the last end.
    well(unsafe { ringfile_batch_start(own.batch, Some(again), (&raw mut own).cast()) });
    assert_eq!(ended.recv().unwrap().0, 0);
    assert_eq!(own.left, 0);
    well(ringfile_batch_free(own.batch));
    well(ringfile_close(own.file.cast_mut()));
}

/// The results of calls inside the function.
struct Inside {
    file: *mut ringfile_file,
    batch: *mut ringfile_batch,
    got: Vec<i64>,
    /// A queue that threads share.
    shared: *mut ringfile_queue,
    ends: Ends,
}

unsafe extern "C" fn try_to_wait(context: *mut c_void, failed: i64) {
    // SAFETY: the test waits for the end.
    let own = unsafe { &mut *context.cast::<Inside>() };
    let (mut page, mut queue, mut read) = (vec![0; PAGE], ptr::null_mut(), 0);
    // SAFETY: the memory is valid; nothing is started except the read, which another thread waits for.
    unsafe {
        own.got = vec![
            ringfile_read(own.file, place(&mut page, 0), PAGE, 0),
            ringfile_write_durable(own.file, place(&mut page, 0), PAGE, 0),
            ringfile_sync_data(own.file).into(),
            ringfile_sync_range(own.file, 0, 0, RINGFILE_SYNC_RANGE_WRITE).into(),
            ringfile_truncate(own.file, 0).into(),
            ringfile_queue_create(1, 0, &mut queue).into(),
            ringfile_batch_run(own.batch),
        ];
        well(ringfile_queue_add(
            own.shared,
            ringfile_op_read(own.file, place(&mut page, 0), PAGE, 0),
            0,
            &mut read,
        ));
        own.got.push(ringfile_queue_wait_for(own.shared, read));
        own.got.push(ringfile_queue_free(own.shared).into());
    }
    assert!(said().contains("callback must not block"), "{}", said());
    let (shared, page) = (own.shared.addr(), page);
    let other = std::thread::spawn(move || {
        let bytes = ringfile_queue_wait_for(ptr::without_provenance_mut(shared), read);
        drop(page);
        bytes
    });
    assert_eq!(other.join().unwrap(), PAGE as i64);
    own.ends.clone().send((failed, std::thread::current().id())).unwrap();
}

#[test]
fn calls_that_would_wait_are_refused_in_the_function() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(2)).unwrap();
    let file = open(&path, RINGFILE_READ | RINGFILE_WRITE, RINGFILE_ROUTE_INLINE);
    let (ends, ended) = mpsc::channel();
    let mut shared = ptr::null_mut();
    // SAFETY: the pointer is to a local value.
    well(unsafe { ringfile_queue_create(1, RINGFILE_QUEUE_SHARED, &mut shared) });
    let mut own = Inside { file, batch: batch(), got: Vec::new(), shared, ends };
    // SAFETY: the test waits for the end.
    well(unsafe { ringfile_batch_start(own.batch, Some(try_to_wait), (&raw mut own).cast()) });
    assert_eq!(ended.recv().unwrap().0, 0);
    assert_eq!(own.got, [-i64::from(libc::EDEADLK); 9]);
    well(ringfile_queue_free(shared));
    well(ringfile_batch_free(own.batch));
    well(ringfile_close(file));
}

#[test]
fn a_thousand_batches_of_eight_threads_end_once_each() {
    static ENDS: [AtomicUsize; 1000] = [const { AtomicUsize::new(0) }; 1000];
    struct One {
        number: usize,
        batch: usize,
        pages: Vec<u8>,
        ends: mpsc::Sender<Box<One>>,
    }
    unsafe extern "C" fn end(context: *mut c_void, failed: i64) {
        // SAFETY: it was made from a box, and is taken back only once, as the test checks.
        let one = unsafe { Box::from_raw(context.cast::<One>()) };
        ENDS[one.number].fetch_add(1, Ordering::SeqCst);
        assert_eq!(failed, 0);
        one.ends.clone().send(one).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, (ends, ended)) = (new_file(&folder, 16), mpsc::channel());
    let at = file.addr();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let ends = ends.clone();
            scope.spawn(move || {
                for number in thread * 125..(thread + 1) * 125 {
                    let batch = batch();
                    let pages = vec![99; number % 5 * PAGE];
                    let mut one = Box::new(One { number, batch: batch.addr(), pages, ends: ends.clone() });
                    for (index, to) in one.pages.chunks_mut(PAGE).enumerate() {
                        add_read(batch, ptr::without_provenance(at), to, (number + index) % 16 * PAGE);
                    }
                    // SAFETY: the function takes over the box.
                    well(unsafe { ringfile_batch_start(batch, Some(end), Box::into_raw(one).cast()) });
                }
            });
        }
    });
    drop(ends);
    for one in ended {
        let pages = one.pages.chunks(PAGE).enumerate();
        assert!(pages.into_iter().all(|(index, page)| is_page(page, (one.number + index) % 16)));
        well(ringfile_batch_free(ptr::without_provenance_mut(one.batch)));
    }
    assert!(ENDS.iter().all(|ends| ends.load(Ordering::SeqCst) == 1));
    well(ringfile_close(file));
}
