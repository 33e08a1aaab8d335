//! Every misuse is an error with a text, and does nothing else.

use std::ffi::{CString, c_char};
use std::ptr;

use super::ops::*;
use super::*;
use crate::batch::*;
use crate::error;
use crate::file::*;
use crate::info::*;
use crate::io::*;
use crate::memory::*;
use crate::pool::*;
use crate::queue::*;

fn queue() -> *mut ringfile_queue {
    let mut queue = ptr::null_mut();
    // SAFETY: the pointer is to a local value.
    well(unsafe { ringfile_queue_create(1, 0, &mut queue) });
    queue
}

#[test]
fn a_handle_that_is_null_closed_or_of_another_kind_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(1)).unwrap();
    let (pool, file, mut page) = (pool(1 << 20), open(&path, RINGFILE_READ, 0), vec![0; PAGE]);
    let true_pointer: *const ringfile_file = page.as_ptr().cast();
    let other_kind: *const ringfile_file = pool.cast();
    well(ringfile_close(file));
    for (handle, why) in [
        (ptr::null(), "it is NULL"),
        (file.cast_const(), "the handle was closed"),
        (other_kind, "of another kind, or no handle"),
        (true_pointer, "of another kind, or no handle"),
        (ptr::without_provenance(usize::MAX), "of another kind, or no handle"),
    ] {
        // SAFETY: the memory is valid during the call; the handle is invalid, which is what is tested.
        fails(unsafe { ringfile_read(handle, place(&mut page, 0), PAGE, 0) }, libc::EBADF, why);
        fails(ringfile_size(handle), libc::EBADF, why);
        fails(ringfile_close(handle.cast_mut()), libc::EBADF, why);
    }
    let reopened = open(&path, RINGFILE_READ, 0);
    assert_ne!(reopened, file, "the same place, and another handle");
    fails(ringfile_size(file), libc::EBADF, "the handle was closed");
    well(ringfile_close(reopened));
    fails(ringfile_pool_free(ptr::null_mut()), libc::EBADF, "ringfile_pool: it is NULL");
    fails(ringfile_batch_run(ptr::null_mut()), libc::EBADF, "ringfile_batch: it is NULL");
    fails(ringfile_queue_submit(ptr::null_mut()), libc::EBADF, "ringfile_queue: it is NULL");
    fails(ringfile_memory_unregister(ptr::null_mut()), libc::EBADF, "ringfile_memory: it is NULL");
    fails(ringfile_buffer_release(ptr::null_mut()), libc::EBADF, "ringfile_buffer: it is NULL");
    well(ringfile_pool_free(pool));
}

#[test]
fn handles_of_a_thread_are_refused_to_others_and_closed_with_it() {
    let queue = queue();
    let queue_at = queue.addr();
    let left_open = std::thread::spawn(move || {
        let queue: *mut ringfile_queue = ptr::without_provenance_mut(queue_at);
        fails(ringfile_queue_submit(queue), libc::EPERM, "belongs to another thread");
        fails(ringfile_queue_free(queue), libc::EPERM, "belongs to another thread");
        fails(ringfile_queue_wait_for(queue, 1), libc::EPERM, "belongs to another thread");
        fails(ringfile_queue_descriptor(queue), libc::EPERM, "belongs to another thread");
        fails(ringfile_queue_cancel_all(queue), libc::EPERM, "belongs to another thread");
        assert_eq!(
            ringfile_queue_cancel(queue, 1),
            1,
            "its thread learns of it, and finds no such operation"
        );
        self::queue().addr()
    });
    let left_open: *mut ringfile_queue = ptr::without_provenance_mut(left_open.join().unwrap());
    fails(ringfile_queue_submit(left_open), libc::EBADF, "the handle was closed");
    fails(ringfile_queue_cancel(left_open, 1), libc::EBADF, "the handle was closed");
    well(ringfile_queue_free(queue));
    fails(ringfile_queue_submit(queue), libc::EBADF, "the handle was closed");
}

#[test]
fn a_panic_is_an_error_of_the_call() {
    fails(error::call(|| panic!("on purpose")), libc::ENOTRECOVERABLE, "please report it: on purpose");
}

#[test]
fn a_panic_whose_payload_panics_when_dropped_is_an_error_of_the_call() {
    struct Payload;
    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    let call = || error::call(|| std::panic::panic_any(Payload));
    fails(call(), libc::ENOTRECOVERABLE, "please report it: no message");
}

#[test]
fn options_of_older_and_newer_headers_are_understood_as_far_as_they_can_be() {
    #[repr(C)]
    struct Newer {
        known: ringfile_pool_options,
        more: u64,
    }
    let mut pool = ptr::null_mut();
    let mut newer = Newer { known: pool_options(), more: 0 };
    newer.known.size = size_of::<Newer>();
    // SAFETY: the pointers are to local values, which have the size that they state.
    unsafe {
        well(ringfile_pool_create((&raw const newer).cast(), &mut pool));
        well(ringfile_pool_free(pool));
        newer.more = 1;
        fails(ringfile_pool_create((&raw const newer).cast(), &mut pool), libc::E2BIG, "does not know");
        // Only size and capacity.
        let older = [16_usize, 1 << 20];
        well(ringfile_pool_create(older.as_ptr().cast(), &mut pool));
        well(ringfile_pool_free(pool));
        let forgotten = ringfile_pool_options { size: 0, ..pool_options() };
        fails(ringfile_pool_create(&forgotten, &mut pool), libc::EINVAL, "set its field `size` to sizeof");
        let nothing = ringfile_pool_options { capacity: 0, ..pool_options() };
        fails(ringfile_pool_create(&nothing, &mut pool), libc::EINVAL, "capacity is 0");
        let wrong = ringfile_pool_options { when_full: 9, ..pool_options() };
        fails(ringfile_pool_create(&wrong, &mut pool), libc::EINVAL, "RINGFILE_WHEN_FULL_");
        let odd = ringfile_pool_options { alignment: 3, ..pool_options() };
        fails(ringfile_pool_create(&odd, &mut pool), libc::EINVAL, "aligned to 3");
        fails(ringfile_pool_create(&pool_options(), ptr::null_mut()), libc::EFAULT, "is NULL");

        let mut small = [8 + 16_usize, 0, 0, 77];
        let full = self::pool(1 << 20);
        well(ringfile_pool_metrics(full, small.as_mut_ptr().cast()));
        assert_eq!((small[0], small[1], small[3]), (24, 1 << 20, 77), "no further than its size");
        let mut buffer = ptr::null_mut();
        fails(ringfile_buffer_get(full, 1 << 30, &mut buffer), libc::ENOMEM, "cannot provide a buffer");
        well(ringfile_pool_free(full));
    }
}

#[test]
fn errors_of_opening_say_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = CString::new(folder.path().join("none").to_str().unwrap()).unwrap();
    let mut file = ptr::null_mut();
    let mut open = |path: *const c_char, flags, route| {
        // SAFETY: the pointers are to local values.
        unsafe { ringfile_open(path, &options(flags, route), &mut file) }
    };
    fails(open(path.as_ptr(), RINGFILE_READ, 0), libc::ENOENT, "none: No such file");
    fails(open(ptr::null(), RINGFILE_READ, 0), libc::EFAULT, "the path is NULL");
    fails(open(path.as_ptr(), 0, 0), libc::EINVAL, "neither read");
    fails(open(path.as_ptr(), RINGFILE_READ | RINGFILE_CREATE, 0), libc::EINVAL, "need write");
    fails(open(path.as_ptr(), 1 << 30, 0), libc::EINVAL, "unknown bits 0x40000000");
    fails(open(path.as_ptr(), RINGFILE_READ, 9), libc::EINVAL, "RINGFILE_ROUTE_");
    let later = ringfile_open_options { reserved: 1, ..options(RINGFILE_READ, 0) };
    // SAFETY: the pointers are to local values.
    let result = unsafe { ringfile_open(path.as_ptr(), &later, &mut file) };
    fails(result, libc::E2BIG, "`reserved` is not 0");
    // SAFETY: the pointers are null, or to local values.
    unsafe {
        fails(ringfile_open_fd(-1, ptr::null(), &mut file), libc::EBADF, "-1 is not a file descriptor");
        fails(ringfile_open_fd(1 << 20, ptr::null(), &mut file), libc::EBADF, "duplicating descriptor");
        fails(ringfile_open(path.as_ptr(), ptr::null(), &mut file), libc::EINVAL, "neither read");
    }
}

#[test]
fn a_batch_is_used_by_one_thread_at_a_time() {
    let (ours, theirs) = std::io::pipe().unwrap();
    let (mut pipe, mut batch, mut memory) = (ptr::null_mut(), ptr::null_mut(), vec![0; PAGE]);
    // SAFETY: the memory is valid until the batch was run.
    unsafe {
        well(ringfile_open_fd(std::os::fd::AsRawFd::as_raw_fd(&ours), ptr::null(), &mut pipe));
        well(ringfile_batch_create(ptr::null(), &mut batch));
        well(ringfile_batch_add(batch, ringfile_op_read(pipe, place(&mut memory, 0), PAGE, 0), 0));
    }
    let at = batch.addr();
    let running = std::thread::spawn(move || ringfile_batch_run(ptr::without_provenance_mut(at)));
    while ringfile_batch_barrier(batch) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let busy = "another thread is running the batch";
    fails(ringfile_batch_run(batch), libc::EBUSY, busy);
    fails(ringfile_batch_cancel(batch), libc::EBUSY, busy);
    drop(theirs);
    assert_eq!(running.join().unwrap(), 0);
    well(ringfile_batch_free(batch));
    well(ringfile_close(pipe));
}

#[test]
fn unmapped_memory_is_not_registered() {
    let (mut own, mut memory) = (vec![0_u8; PAGE], ptr::null_mut());
    let data = own.as_mut_ptr().cast::<c_void>();
    let past_the_end = (1_usize << 56) - data.addr();
    for length in [1 << 46, past_the_end, isize::MAX as usize, usize::MAX - data.addr(), usize::MAX] {
        // SAFETY: no operation uses the memory.
        let registered = unsafe { ringfile_memory_register(data, length, &mut memory) };
        fails(registered, libc::EINVAL, "there is no memory at their end");
    }
    // SAFETY: as above.
    unsafe {
        fails(ringfile_memory_register(data, 0, &mut memory), libc::EINVAL, "cannot register 0 bytes");
        well(ringfile_memory_register(data, PAGE, &mut memory));
    }
    well(ringfile_memory_unregister(memory));
    // SAFETY: as above.
    unsafe {
        let unknown = ringfile_memory_register_with(data, PAGE, 2, &mut memory);
        fails(unknown, libc::EINVAL, "unknown flags 0x2: use 0 or RINGFILE_MEMORY_NOW");
    }
}

#[test]
fn the_library_reports_its_version_and_features() {
    // SAFETY: a NUL-terminated string.
    let version = unsafe { CStr::from_ptr(ringfile_version()) }.to_str().unwrap();
    let parts = [RINGFILE_VERSION_MAJOR, RINGFILE_VERSION_MINOR, RINGFILE_VERSION_PATCH];
    assert_eq!(version, parts.map(|part| part.to_string()).join("."));
    fails(ringfile_set_default_route(9), libc::EINVAL, "RINGFILE_ROUTE_");
    well(ringfile_set_default_route(RINGFILE_ROUTE_DEFAULT));
    fails(ringfile_set_io_threads(1 << 20), libc::EINVAL, "too many");
    let mut text = [1 as c_char; 8];
    // SAFETY: room that is here.
    let len = unsafe { ringfile_ring_features(text.as_mut_ptr(), text.len()) };
    if len >= 0 {
        assert!(len > 8 && text[7] == 0, "as much as there is room for");
    }
}
