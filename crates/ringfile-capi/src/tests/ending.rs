//! Calls from destructors of pthread keys, while a thread ends (F41).

use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::iovec;

use super::ops::*;
use super::*;
use crate::batch::*;
use crate::cache::*;
use crate::control::*;
use crate::file::*;
use crate::io::*;
use crate::pool::*;
use crate::queue::*;

static PANICS: AtomicUsize = AtomicUsize::new(0);
/// The results of the destructors' calls: the call, the expected result, the actual one.
static GOT: Mutex<Vec<(&str, i64, i64)>> = Mutex::new(Vec::new());

fn got(call: &'static str, right: usize, result: impl Into<i64>) {
    GOT.lock().unwrap().push((call, right as i64, result.into()));
}

extern "C" fn end(file: *mut c_void) {
    let file: *mut ringfile_file = file.cast();
    let (mut memory, mut batch) = (content(4), ptr::null_mut());
    let (data, half) = (memory.as_mut_ptr().cast::<c_void>(), 2 * PAGE);
    // SAFETY: memory that is here, and pointers to local values.
    unsafe {
        let parts =
            [iovec { iov_base: data, iov_len: PAGE }, iovec { iov_base: data.add(PAGE), iov_len: PAGE }];
        got("write", half, ringfile_write(file, data, half, 0));
        got("read", half, ringfile_read(file, data, half, 0));
        got("writev", half, ringfile_writev(file, parts.as_ptr(), 2, 0));
        got("readv", half, ringfile_readv(file, parts.as_ptr(), 2, 0));
        got("write_durable", half, ringfile_write_durable(file, data, half, 0));
        got("truncate", 0, ringfile_truncate(file, 4 * PAGE as u64));
        got("allocate", 0, ringfile_allocate(file, RINGFILE_ALLOCATE_EXTEND, 0, PAGE as u64));
        got("advise", 0, ringfile_advise(file, 0, 0, RINGFILE_ADVICE_NORMAL));
        got("sync_data", 0, ringfile_sync_data(file));
        got("sync_all", 0, ringfile_sync_all(file));
        got("sync_range", 0, ringfile_sync_range(file, 0, 0, RINGFILE_SYNC_RANGE_WRITE));
        got("sync_directory", 0, ringfile_sync_directory(c"/tmp".as_ptr()));
        got("size", 4 * PAGE, ringfile_size(file));
        let mut request = ringfile_read_request { offset: 0, data, length: PAGE, result: 0 };
        got("read_many", 0, ringfile_read_many(file, &mut request, 1));
        got("one of many", PAGE, request.result);
        let mut request = ringfile_write_request { offset: 0, data, length: half, result: 0 };
        got("write_many", 0, ringfile_write_many(file, &mut request, 1));
        got("one write of many", half, request.result);
        got("batch_create", 0, ringfile_batch_create(ptr::null(), &mut batch));
        got("batch_read", 0, ringfile_batch_add(batch, ringfile_op_read(file, data, PAGE, 0), 0));
        got("batch_run", 0, ringfile_batch_run(batch));
        got("batch_free", 0, ringfile_batch_free(batch));
        let (mut shared, mut read) = (ptr::null_mut(), 0);
        got("a shared queue", 0, ringfile_queue_create(1, RINGFILE_QUEUE_SHARED, &mut shared));
        got("queue_read", 0, ringfile_queue_add(shared, ringfile_op_read(file, data, PAGE, 0), 0, &mut read));
        got("queue_wait_for", PAGE, ringfile_queue_wait_for(shared, read));
        got("queue_free", 0, ringfile_queue_free(shared));
        let (mut pool, mut buffer) = (ptr::null_mut(), ptr::null_mut());
        got("pool_create", 0, ringfile_pool_create(&pool_options(), &mut pool));
        got("buffer_get", 0, ringfile_buffer_get(pool, PAGE, &mut buffer));
        got("buffer_read", PAGE, ringfile_buffer_read(file, buffer, 0));
        got("buffer_write", PAGE, ringfile_buffer_write(file, buffer, 0));
        got("buffer_release", 0, ringfile_buffer_release(buffer));
        got("pool_free", 0, ringfile_pool_free(pool));
        let options = ringfile_cache_options { bytes: 1 << 20, ..std::mem::zeroed() };
        let options = ringfile_cache_options { size: size_of::<ringfile_cache_options>(), ..options };
        let (mut cache, mut cached) = (ptr::null_mut(), ptr::null_mut());
        let mut page: ringfile_cached_page = std::mem::zeroed();
        got("cache_create", 0, ringfile_cache_create(&options, &mut cache));
        got("cache_open", 0, ringfile_cache_open(cache, file, PAGE, &mut cached));
        got("cache_read_many", 0, ringfile_cache_read_many(cached, &0, 1, &mut page));
        got("a page", PAGE, page.length as i64);
        got("cache_release", 0, ringfile_cache_release(&mut page));
        got("cache_get", 1, ringfile_cache_get(cached, 0, &mut page));
        got("cache_release again", 0, ringfile_cache_release(&mut page));
        got("cache_write", 0, ringfile_cache_write(cached, 0, data, PAGE));
        got("cache_close", 0, ringfile_cache_close(cached));
        got("cache_free", 0, ringfile_cache_free(cache));
        got("error", usize::MAX, if ringfile_read(ptr::null(), data, 1, 0) < 0 { -1 } else { 0 });
        assert!(!ringfile_last_error().is_null());
        // Anything that would outlive the call is refused, or closed with the thread.
        let mut queue = ptr::null_mut();
        let made = ringfile_queue_create(8, 0, &mut queue);
        got("queue_create", usize::from(made != 0), if made == -libc::EPERM { 1 } else { made });
    }
}

#[test]
fn f41_every_call_works_or_says_why_not_while_a_thread_ends() {
    if !apart("tests::ending::f41_every_call_works_or_says_why_not_while_a_thread_ends", &[]) {
        return;
    }
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        told(panic);
    }));
    let folder = tempfile::tempdir().unwrap();
    for route in [RINGFILE_ROUTE_DEFAULT, ring(), RINGFILE_ROUTE_INLINE, RINGFILE_ROUTE_WORKERS] {
        for used_before in [true, false] {
            let flags = RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE;
            let file = open(&folder.path().join("data"), flags, route);
            let handle = file.addr();
            let thread = std::thread::spawn(move || {
                let file: *mut ringfile_file = ptr::without_provenance_mut(handle);
                let mut key = 0;
                // SAFETY: the destructor takes a file.
                unsafe {
                    assert_eq!(libc::pthread_key_create(&mut key, Some(end)), 0);
                    assert_eq!(libc::pthread_setspecific(key, file.cast_const().cast()), 0);
                }
                if used_before {
                    end(file.cast());
                }
            });
            thread.join().unwrap();
            let all = std::mem::take(&mut *GOT.lock().unwrap());
            assert!(all.len() >= 39, "{} calls", all.len());
            for (call, right, result) in all {
                assert_eq!(result, right, "{call}, route {route}, used before: {used_before}");
            }
            well(ringfile_close(file));
        }
    }
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}
