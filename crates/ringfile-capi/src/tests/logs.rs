//! Warnings reach the function that was set, as long as it is set.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::Mutex;

use super::*;
use crate::batch::*;
use crate::file::*;
use crate::io::*;
use crate::log::*;
use crate::queue::*;

#[derive(Default)]
struct Told {
    lines: Mutex<Vec<(c_int, String)>>,
}

unsafe extern "C" fn tell(context: *mut c_void, level: c_int, message: *const std::ffi::c_char) {
    // SAFETY: the tests pass a `Told` that outlives the calls, and the message is a string by the contract in the
    // header.
    let (told, message) = unsafe { (&*context.cast::<Told>(), CStr::from_ptr(message)) };
    let inside = ringfile_set_log(None, ptr::null_mut());
    assert_eq!(inside, -libc::EDEADLK);
    told.lines.lock().unwrap().push((level, message.to_str().unwrap().to_owned()));
}

fn read_a_page(route: u32) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(1)).unwrap();
    let (file, mut page) = (open(&path, RINGFILE_READ, route), vec![99; PAGE]);
    // SAFETY: the memory is valid during the call.
    assert_eq!(well(unsafe { ringfile_read(file, place(&mut page, 0), PAGE, 0) }), PAGE as i64);
    assert!(is_page(&page, 0));
    well(ringfile_close(file));
}

#[test]
fn a_warning_has_a_level_and_one_line() {
    let name = "tests::logs::a_warning_has_a_level_and_one_line";
    if !apart(name, &[("RINGFILE_DISABLE", "no such")]) {
        return;
    }
    let told = Told::default();
    well(ringfile_set_log(Some(tell), (&raw const told).cast_mut().cast()));
    read_a_page(RINGFILE_ROUTE_AUTO);
    well(ringfile_set_log(None, ptr::null_mut()));
    let lines = told.lines.into_inner().unwrap();
    let warnings: Vec<_> = lines.iter().filter(|(level, _)| *level == RINGFILE_LOG_WARNING).collect();
    assert_eq!(warnings.len(), 1, "{lines:?}");
    assert!(warnings[0].1.starts_with("ignoring RINGFILE_DISABLE"), "{lines:?}");
    assert!(warnings[0].1.ends_with("; value: no such"), "{lines:?}");
}

#[test]
fn without_a_function_no_message_is_sent() {
    let name = "tests::logs::without_a_function_no_message_is_sent";
    if !apart(name, &[("RINGFILE_DISABLE", "no such")]) {
        return;
    }
    let told = Told::default();
    well(ringfile_set_log(None, ptr::null_mut()));
    well(ringfile_set_log(Some(tell), (&raw const told).cast_mut().cast()));
    well(ringfile_set_log(None, ptr::null_mut()));
    read_a_page(RINGFILE_ROUTE_AUTO);
    assert_eq!(told.lines.into_inner().unwrap(), []);
}

unsafe extern "C" fn tell_and_fork(context: *mut c_void, level: c_int, message: *const std::ffi::c_char) {
    // SAFETY: the child ends at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(0);
        }
        assert_eq!(libc::waitpid(child, ptr::null_mut(), 0), child);
        tell(context, level, message);
    }
}

#[test]
fn the_function_may_fork() {
    let name = "tests::logs::the_function_may_fork";
    if !apart(name, &[("RINGFILE_DISABLE", "")]) {
        return;
    }
    let told = Told::default();
    well(ringfile_set_log(Some(tell_and_fork), (&raw const told).cast_mut().cast()));
    let file = open(std::path::Path::new("/proc/self/exe"), RINGFILE_READ, RINGFILE_ROUTE_RING);
    // SAFETY: these calls only change this process, which has an alarm against hanging.
    let taken: Vec<c_int> = unsafe {
        libc::alarm(180);
        let most = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &most), 0);
        std::iter::repeat_with(|| libc::dup(0)).take_while(|&other| other >= 0).collect()
    };
    // Enough descriptors for the thread's wake-up and its ring, but not for the holder of registrations. SAFETY: the
    // test owns these descriptors.
    taken.iter().rev().take(2).for_each(|&other| assert_eq!(unsafe { libc::close(other) }, 0));
    let mut page = vec![0; PAGE];
    // SAFETY: the memory is valid during the call.
    assert_eq!(well(unsafe { ringfile_read(file, place(&mut page, 0), PAGE, 0) }), PAGE as i64);
    well(ringfile_set_log(None, ptr::null_mut()));
    let lines = told.lines.into_inner().unwrap();
    assert!(lines.iter().any(|(_, line)| line.starts_with("no holder ring")), "{lines:?}");
}

/// What a function for messages may not use, and what its calls returned.
struct Inside {
    pipe: *mut ringfile_file,
    queue: *mut ringfile_queue,
    batch: *mut ringfile_batch,
    memory: Vec<u8>,
    got: Vec<i64>,
}

unsafe extern "C" fn tell_and_wait(context: *mut c_void, _: c_int, _: *const std::ffi::c_char) {
    // SAFETY: the test has one thread, and keeps the memory until the function was called.
    unsafe {
        let own = &mut *context.cast::<Inside>();
        own.got = vec![
            ringfile_read(own.pipe, place(&mut own.memory, 0), PAGE, 0),
            ringfile_write_durable(own.pipe, place(&mut own.memory, 0), PAGE, 0),
            ringfile_batch_run(own.batch),
            ringfile_queue_free(own.queue).into(),
        ];
    }
}

#[test]
fn calls_that_would_wait_are_refused_in_the_function() {
    let name = "tests::logs::calls_that_would_wait_are_refused_in_the_function";
    if !apart(name, &[("RINGFILE_DISABLE", "no such")]) {
        return;
    }
    // SAFETY: it only changes this process.
    unsafe { libc::alarm(180) };
    let (ours, theirs) = std::io::pipe().unwrap();
    let (mut queue, mut batch) = (ptr::null_mut(), ptr::null_mut());
    let mut pipe = ptr::null_mut();
    // SAFETY: the pointers are to local values.
    unsafe {
        well(ringfile_open_fd(ours.as_raw_fd(), ptr::null(), &mut pipe));
        well(ringfile_queue_create(1, 0, &mut queue));
        well(ringfile_batch_create(ptr::null(), &mut batch));
    }
    let mut own = Inside { pipe, queue, batch, memory: vec![0; PAGE], got: Vec::new() };
    well(ringfile_set_log(Some(tell_and_wait), (&raw mut own).cast()));
    let (file, mut page) = (open(Path::new("/proc/self/exe"), RINGFILE_READ, 0), vec![0; PAGE]);
    let part = libc::iovec { iov_base: place(&mut page, 0), iov_len: PAGE };
    // SAFETY: the memory is valid during the call, which runs a loop of ringfile's.
    assert_eq!(well(unsafe { ringfile_readv(file, &part, 1, 0) }), PAGE as i64);
    well(ringfile_set_log(None, ptr::null_mut()));
    assert_eq!(own.got, [-i64::from(libc::EDEADLK); 4]);
    drop(theirs);
    well(ringfile_queue_free(queue));
    well(ringfile_batch_free(batch));
    well(ringfile_close(file));
    well(ringfile_close(pipe));
}
