//! Threads that were cancelled (pthread_cancel) when they make a call: the call does its work, and leaves the
//! cancellation to the program.

use std::ffi::{c_int, c_void};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::AtomicU8;

use super::ops::*;
use super::*;
use crate::batch::*;
use crate::cancel;
use crate::file::*;
use crate::info::*;
use crate::io::*;
use crate::op::ringfile_result;
use crate::queue::*;

unsafe extern "C" {
    // libc has it for other systems only.
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
}

/// What a cancelled thread does, and its results: of each call, the expected one and the actual one.
struct Thread {
    act: fn(&mut Thread),
    pipe: std::io::PipeReader,
    route: u32,
    got: Vec<(i64, i64)>,
    /// Whether the thread can be cancelled afterwards.
    state: c_int,
}

impl Thread {
    fn got(&mut self, right: usize, result: impl Into<i64>) {
        self.got.push((right as i64, result.into()));
    }

    fn open(&mut self) -> *mut ringfile_file {
        let (options, mut file) = (options(0, self.route), ptr::null_mut());
        // SAFETY: the pointers are to local values.
        let opened = unsafe { ringfile_open_fd(self.pipe.as_raw_fd(), &options, &mut file) };
        self.got(0, opened);
        file
    }
}

extern "C" fn run(context: *mut c_void) -> *mut c_void {
    // SAFETY: the test waits for this thread. A thread may cancel itself: that waits for a cancellation point.
    unsafe {
        let own = &mut *context.cast::<Thread>();
        pthread_cancel(libc::pthread_self());
        (own.act)(own);
        own.state = cancel::set_state(cancel::ENABLE);
    }
    ptr::null_mut()
}

/// Runs the thread's calls while it ends.
extern "C" fn run_at_the_end(context: *mut c_void) -> *mut c_void {
    extern "C" fn end(context: *mut c_void) {
        run(context);
    }
    let mut key = 0;
    // SAFETY: the destructor takes the context, and the pointer is to a local value.
    unsafe {
        assert_eq!(libc::pthread_key_create(&mut key, Some(end)), 0);
        assert_eq!(libc::pthread_setspecific(key, context), 0);
    }
    ptr::null_mut()
}

fn cancelled(name: &str, act: fn(&mut Thread)) {
    cancelled_in(name, run, act);
}

fn cancelled_in(name: &str, run: extern "C" fn(*mut c_void) -> *mut c_void, act: fn(&mut Thread)) {
    if !apart(name, &[]) {
        return;
    }
    // SAFETY: it only changes this process, whose failure is to hang.
    unsafe { libc::alarm(60) };
    for route in [RINGFILE_ROUTE_AUTO, ring(), RINGFILE_ROUTE_INLINE, RINGFILE_ROUTE_WORKERS] {
        let (pipe, mut theirs) = std::io::pipe().unwrap();
        theirs.write_all(&[7; 8]).unwrap();
        let mut own = Thread { act, pipe, route, got: Vec::new(), state: -1 };
        let (mut thread, mut value) = (0, ptr::dangling_mut());
        // SAFETY: the pointers are to local values, and the thread is waited for.
        unsafe {
            let context = (&raw mut own).cast();
            assert_eq!(libc::pthread_create(&mut thread, ptr::null(), run, context), 0);
            assert_eq!(libc::pthread_join(thread, &mut value), 0);
        }
        assert_eq!((value, own.state), (ptr::null_mut(), cancel::ENABLE), "route {route}");
        assert!(own.got.len() >= 2 && own.got.iter().all(|(right, got)| right == got), "{:?}", own.got);
    }
}

#[test]
fn a_blocking_read_of_a_cancelled_thread_does_its_work() {
    cancelled("tests::cancelled::a_blocking_read_of_a_cancelled_thread_does_its_work", |own| {
        let (file, mut byte) = (own.open(), 0_u8);
        // SAFETY: the memory is valid during the call.
        own.got(1, unsafe { ringfile_read(file, (&raw mut byte).cast(), 1, 0) });
        own.got(0, ringfile_close(file));
        own.got(7, i64::from(byte));
        own.got(0, ringfile_thread_release());
    });
}

#[test]
fn a_blocking_read_of_a_cancelled_thread_that_is_ending_does_its_work() {
    let name = "tests::cancelled::a_blocking_read_of_a_cancelled_thread_that_is_ending_does_its_work";
    cancelled_in(name, run_at_the_end, |own| {
        let (file, mut byte) = (own.open(), 0_u8);
        // SAFETY: the memory is valid during the call.
        own.got(1, unsafe { ringfile_read(file, (&raw mut byte).cast(), 1, 0) });
        own.got(0, ringfile_close(file));
    });
}

#[test]
fn objects_of_a_cancelled_thread_are_closed_at_its_end() {
    static BYTES: [AtomicU8; 2] = [const { AtomicU8::new(0) }; 2];
    cancelled("tests::cancelled::objects_of_a_cancelled_thread_are_closed_at_its_end", |own| {
        let (file, mut queue) = (own.open(), ptr::null_mut());
        // SAFETY: the memory is valid until the process ends.
        unsafe {
            own.got(1, ringfile_read(file, BYTES[0].as_ptr().cast(), 1, 0));
            own.got(0, ringfile_queue_create(2, 0, &mut queue));
            own.got(
                0,
                ringfile_queue_add(
                    queue,
                    ringfile_op_read(file, BYTES[1].as_ptr().cast(), 1, 0),
                    0,
                    ptr::null_mut(),
                ),
            );
        }
        own.got(0, ringfile_queue_submit(queue));
        own.got(0, ringfile_close(file));
    });
}

#[test]
fn a_queue_of_a_cancelled_thread_does_its_work() {
    cancelled("tests::cancelled::a_queue_of_a_cancelled_thread_does_its_work", |own| {
        let (file, mut bytes, mut queue) = (own.open(), [0_u8; 2], ptr::null_mut());
        let mut results = [ringfile_result { user_data: 0, result: 0 }; 2];
        // SAFETY: the memory is valid until the queue is closed.
        unsafe {
            own.got(0, ringfile_queue_create(2, 0, &mut queue));
            for byte in &mut bytes {
                let data = ptr::from_mut(byte).cast();
                own.got(0, ringfile_queue_add(queue, ringfile_op_read(file, data, 1, 0), 0, ptr::null_mut()));
            }
            own.got(0, ringfile_queue_submit(queue));
            own.got(2, ringfile_queue_wait(queue, results.as_mut_ptr(), 2, 2, -1));
        }
        own.got(0, ringfile_queue_free(queue));
        own.got(0, ringfile_close(file));
        own.got(2, results.iter().map(|result| result.result).sum::<i64>());
        own.got(14, bytes.iter().map(|&byte| i64::from(byte)).sum::<i64>());
    });
}

#[test]
fn a_batch_of_a_cancelled_thread_does_its_work() {
    cancelled("tests::cancelled::a_batch_of_a_cancelled_thread_does_its_work", |own| {
        let (file, mut byte, mut batch) = (own.open(), 0_u8, ptr::null_mut());
        // SAFETY: the memory is valid until the batch was run.
        unsafe {
            own.got(0, ringfile_batch_create(ptr::null(), &mut batch));
            own.got(0, ringfile_batch_add(batch, ringfile_op_read(file, (&raw mut byte).cast(), 1, 0), 0));
        }
        own.got(0, ringfile_batch_run(batch));
        own.got(7, i64::from(byte));
        own.got(0, ringfile_batch_free(batch));
        own.got(0, ringfile_close(file));
    });
}
