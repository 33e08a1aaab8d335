//! Queues: submissions and completions apart, for a program with a loop of its own.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use ringfile::{File, Queue};

use crate::batch::ringfile_result;
use crate::error::{Fault, Result, call, done};
use crate::file::{self, ringfile_file};
use crate::io::number_or_errno;
use crate::{local, memory, raw};

/// Reads, writes and syncs that are added, submitted together, and collected as they end.
pub struct ringfile_queue {
    _opaque: [u8; 0],
}

/// Makes a queue for the calling thread, with room for `depth` open operations; more make it grow. `*queue` gets the
/// handle, to be closed with ringfile_queue_free, or with the thread.
///
/// The thread alone may use it, beside other queues, reads, batches and blocking calls of its own. Operations go through
/// that thread's ring, and through no other thread. None allocates once as many were open together as ever are. Does not
/// block.
///
/// Pointers: `queue` points to where the handle is to go.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_create(depth: usize, queue: *mut *mut ringfile_queue) -> c_int {
    done(|| {
        if queue.is_null() {
            return Err(Fault::null("where the queue is to go"));
        }
        if depth > 1 << 20 {
            return Err(Fault::invalid(format!("a depth of {depth} fills no device: 4096 is plenty")));
        }
        let handle = local::add(Queue::with_capacity(depth))?;
        // SAFETY: as the header says.
        unsafe { raw::put(queue, handle, "where the queue is to go") }
    })
}

#[inline]
fn add(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    add: impl FnOnce(&mut Queue, &File) -> Result<()>,
) -> c_int {
    done(|| local::with(queue, |own: &mut Queue| file::with(file, |file| add(own, file))?))
}

/// Adds a read of `length` bytes from `offset` into `data`. Nothing is begun before ringfile_queue_submit or
/// ringfile_queue_wait. The memory is the library's until the result was taken.
///
/// The queue's own thread. Does not block.
///
/// Pointers: `length` bytes at `data` until the result was taken, as at the top of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_read(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    data: *mut c_void,
    length: usize,
    offset: u64,
    user_data: u64,
) -> c_int {
    add(queue, file, |queue, file| {
        // SAFETY: the memory is there and the operation's alone until its result was taken, says the header.
        queue.read(file, unsafe { memory::at(data, length) }?, offset, user_data);
        Ok(())
    })
}

/// Adds a write of `length` bytes from `data` at `offset`; in all else as ringfile_queue_read.
///
/// Pointers: `length` bytes at `data` until the result was taken, as at the top of this file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_write(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    data: *const c_void,
    length: usize,
    offset: u64,
    user_data: u64,
) -> c_int {
    add(queue, file, |queue, file| {
        // SAFETY: the memory is there and nobody changes it until its result was taken, says the header.
        queue.write(file, unsafe { memory::at(data.cast_mut(), length) }?, offset, user_data);
        Ok(())
    })
}

/// Adds an fdatasync, which covers the writes that have ended when it is submitted. The queue's own thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_sync_data(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    user_data: u64,
) -> c_int {
    add(queue, file, |queue, file| {
        queue.sync_data(file, user_data);
        Ok(())
    })
}

/// Adds an fsync; in all else as ringfile_queue_sync_data.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_sync_all(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    user_data: u64,
) -> c_int {
    add(queue, file, |queue, file| {
        queue.sync_all(file, user_data);
        Ok(())
    })
}

/// Begins what was added, in one system call where that is many, and takes in what has ended. What is wrong with an
/// operation is its result.
///
/// The queue's own thread. Does not wait; files whose route is a plain call are read and written here.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_submit(queue: *mut ringfile_queue) -> c_int {
    done(|| {
        local::with(queue, |own: &mut Queue| {
            own.submit();
            Ok(())
        })
    })
}

/// Begins what was added, and waits until `at_least` operations have ended, or all, or `timeout_ns` nanoseconds are over
/// (negative: without end; 0: not at all). Takes up to `room` results to `results`, in the order in which they ended. How
/// many were taken: 0 where none has ended in time, or none is open.
///
/// The queue's own thread. Blocks as said. `at_least` above `room` counts as `room`.
///
/// Pointers: `results` has room for so many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_wait(
    queue: *mut ringfile_queue,
    results: *mut ringfile_result,
    room: usize,
    at_least: usize,
    timeout_ns: i64,
) -> i64 {
    call(|| {
        // SAFETY: as the header says.
        let results = unsafe { raw::array_mut(results, room, "where the results are to go") }?;
        let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        local::with(queue, |own: &mut Queue| {
            own.wait(at_least.min(room), timeout);
            let mut taken = 0;
            for to in results {
                let Some((user_data, done)) = own.take() else { break };
                *to = ringfile_result { user_data, result: number_or_errno(done) };
                taken += 1;
            }
            Ok(taken)
        })
    })
}

/// How many operations were added whose results were not taken. The queue's own thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_open(queue: *const ringfile_queue) -> i64 {
    call(|| local::with(queue, |own: &mut Queue| Ok(own.len() as i64)))
}

/// Cancels what the kernel still can, waits until it is done with all memory, and closes the handle. Results that were not
/// taken are lost.
///
/// The queue's own thread. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_free(queue: *mut ringfile_queue) -> c_int {
    done(|| local::remove::<Queue, _>(queue).map(drop))
}
