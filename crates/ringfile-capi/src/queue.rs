//! Queues: submission and completion as separate steps, for a program with its own loop.

use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::time::Duration;

use libc::iovec;
use ringfile::{File, Queue, Token};

use crate::batch::ringfile_result;
use crate::error::{Fault, Result, call, done, done_in_memory};
use crate::file::{self, ringfile_file};
use crate::memory::Span;
use crate::{control, io, local, path, raw};

/// A queue of operations that are added, submitted together, and collected as they finish.
pub struct ringfile_queue {
    _opaque: [u8; 0],
}

/// Creates a queue for the calling thread, with room for `depth` open operations; it grows when more are added.
/// `*queue` gets the handle, to be closed with ringfile_queue_free, or with the thread.
///
/// Only this thread may use it, together with other queues, batches and blocking calls. Operations use that thread's
/// ring, or workers (see RINGFILE_ROUTE_WORKERS) for what a ring cannot do. None allocates once the queue has grown to
/// its depth. Does not block. -EINVAL: `depth` is more than 2^20. -EDEADLK inside the function of a started batch.
///
/// Pointers: `queue` points to memory for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_create(depth: usize, queue: *mut *mut ringfile_queue) -> c_int {
    done(|| {
        if queue.is_null() {
            return Err(Fault::null("the pointer to the queue's handle"));
        }
        if depth > 1 << 20 {
            return Err(Fault::invalid(format!("a depth of {depth} is too large: use at most 2^20")));
        }
        // Freeing a queue waits for its operations.
        local::may_wait()?;
        let handle = local::add(Queue::with_capacity(depth))?;
        // SAFETY: by the contract in the header.
        unsafe { raw::put(queue, handle, "the pointer to the queue's handle") }
    })
}

/// Adds an operation, and writes its token to `token` if that is not null.
///
/// # Safety
/// `token` is null, or may be written to.
#[inline]
unsafe fn add(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    token: *mut u64,
    add: impl FnOnce(&mut Queue, &File) -> Result<Token>,
) -> c_int {
    done_in_memory(|| {
        let added = local::with(queue, |own| file::with(file, |file| add(own, file))?)?;
        if !token.is_null() {
            // SAFETY: it may be written to, by this function's contract.
            unsafe { token.write(added.to_u64()) };
        }
        Ok(())
    })
}

/// Adds a read of `length` bytes from `offset` into `data`. It starts with ringfile_queue_submit or a wait. The memory
/// belongs to the library until the result was taken.
///
/// `user_data` is returned with the result. If `token` is not NULL, `*token` gets the number, never 0, that names the
/// operation in this queue until its result was taken.
///
/// The queue's own thread. Does not block.
///
/// Pointers: `length` bytes at `data` until the result was taken, as at the top of this file; `token` is NULL or points
/// to memory for the token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_read(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    data: *mut c_void,
    length: usize,
    offset: u64,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    // SAFETY: by the contract in the header, the token may be written to, the memory is valid, and nothing else
    // accesses it, until the result was taken.
    unsafe {
        add(queue, file, token, |queue, file| {
            let memory = Span::new(data, length)?;
            Ok(queue.add(file.read_at(memory.buffer(), offset), user_data))
        })
    }
}

/// Adds a write of `length` bytes from `data` at `offset`; otherwise as ringfile_queue_read.
///
/// Pointers: as ringfile_queue_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_write(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    data: *const c_void,
    length: usize,
    offset: u64,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    // SAFETY: by the contract in the header, the token may be written to, and the memory is valid and unchanged until
    // the result was taken.
    unsafe {
        add(queue, file, token, |queue, file| {
            let memory = Span::new(data.cast_mut(), length)?;
            Ok(queue.add(file.write_at(memory.buffer(), offset), user_data))
        })
    }
}

/// Adds a write that is durable when it has finished, see ringfile_write_durable; otherwise as ringfile_queue_write. A
/// failure is remembered, see ringfile_sync_data.
///
/// Pointers: as ringfile_queue_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_write_durable(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    data: *const c_void,
    length: usize,
    offset: u64,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    // SAFETY: as for `ringfile_queue_write`.
    unsafe {
        add(queue, file, token, |queue, file| {
            let memory = Span::new(data.cast_mut(), length)?;
            Ok(queue.add(file.write_durable_at(memory.buffer(), offset), user_data))
        })
    }
}

/// Adds an atomic write (RWF_ATOMIC), of which a power cut leaves all or nothing, see ringfile_write_atomic; otherwise
/// as ringfile_queue_write.
///
/// Pointers: as ringfile_queue_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_write_atomic(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    data: *const c_void,
    length: usize,
    offset: u64,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    // SAFETY: as for `ringfile_queue_write`.
    unsafe {
        add(queue, file, token, |queue, file| {
            let memory = Span::new(data.cast_mut(), length)?;
            Ok(queue.add(file.write_atomic_at(memory.buffer(), offset), user_data))
        })
    }
}

/// Adds a read from `offset` into several parts, one after another; otherwise as ringfile_queue_read. The array of
/// parts is copied, and may be freed when this returns. Allocates.
///
/// Pointers: `count` parts at `parts`, and memory for each until the result was taken, as at the top of this file; `token` as
/// ringfile_queue_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_readv(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    parts: *const iovec,
    count: usize,
    offset: u64,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    // SAFETY: as for a read, with the memory of each part.
    unsafe {
        add(queue, file, token, |queue, file| {
            Ok(queue.add(file.read_vectored_at(io::buffers(parts, count)?.0, offset), user_data))
        })
    }
}

/// Adds a write of several parts, one after another, at `offset`; otherwise as ringfile_queue_readv.
///
/// Pointers: as ringfile_queue_readv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_writev(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    parts: *const iovec,
    count: usize,
    offset: u64,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    // SAFETY: as for a write, with the memory of each part.
    unsafe {
        add(queue, file, token, |queue, file| {
            Ok(queue.add(file.write_vectored_at(io::buffers(parts, count)?.0, offset), user_data))
        })
    }
}

/// Adds an fdatasync, which covers the writes that have finished when it is submitted. `token` as ringfile_queue_read.
/// The queue's own thread; does not block.
///
/// Pointers: `token` is NULL or points to memory for the token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_sync_data(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    // SAFETY: by the contract in the header.
    unsafe { add(queue, file, token, |queue, file| Ok(queue.add(file.sync_data(), user_data))) }
}

/// Adds an fsync; otherwise as ringfile_queue_sync_data.
///
/// Pointers: as ringfile_queue_sync_data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_sync_all(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    // SAFETY: by the contract in the header.
    unsafe { add(queue, file, token, |queue, file| Ok(queue.add(file.sync_all(), user_data))) }
}

/// Adds the writeback of a range's dirty pages, as ringfile_sync_range. `flags`: RINGFILE_SYNC_RANGE_WRITE starts it,
/// all three RINGFILE_SYNC_RANGE_... wait until the pages are written; others are -EINVAL. Otherwise as
/// ringfile_queue_sync_data.
///
/// Pointers: as ringfile_queue_sync_data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_sync_range(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    offset: u64,
    length: u64,
    flags: u32,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    let sync = |queue: &mut Queue, file: &File| {
        Ok(queue.add(file.sync_range(offset, length, control::range_sync(flags)?), user_data))
    };
    // SAFETY: by the contract in the header.
    unsafe { add(queue, file, token, sync) }
}

/// Adds an allocation of a range's blocks, or a hole, as ringfile_allocate, by `mode` (RINGFILE_ALLOCATE_...);
/// otherwise as ringfile_queue_sync_data.
///
/// Pointers: as ringfile_queue_sync_data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_allocate(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    mode: u32,
    offset: u64,
    length: u64,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    let allocate = |queue: &mut Queue, file: &File| {
        Ok(queue.add(file.allocate(control::allocate_mode(mode)?, offset, length), user_data))
    };
    // SAFETY: by the contract in the header.
    unsafe { add(queue, file, token, allocate) }
}

/// Adds a change of the file's size, as ringfile_truncate; otherwise as ringfile_queue_sync_data.
///
/// Pointers: as ringfile_queue_sync_data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_truncate(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    length: u64,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    // SAFETY: by the contract in the header.
    unsafe { add(queue, file, token, |queue, file| Ok(queue.add(file.set_len(length), user_data))) }
}

/// Adds advice for the page cache, as ringfile_advise (RINGFILE_ADVICE_...); otherwise as ringfile_queue_sync_data.
///
/// Pointers: as ringfile_queue_sync_data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_advise(
    queue: *mut ringfile_queue,
    file: *const ringfile_file,
    offset: u64,
    length: u64,
    advice: u32,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    let advise = |queue: &mut Queue, file: &File| {
        Ok(queue.add(file.advise(offset, length, control::advice(advice)?), user_data))
    };
    // SAFETY: by the contract in the header.
    unsafe { add(queue, file, token, advise) }
}

/// Submits the operations that were added, with one system call if they fit into the ring, and collects those that have
/// finished. An error of an operation is its result.
///
/// The queue's own thread. Does not wait; operations whose route is a plain call are carried out here.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_submit(queue: *mut ringfile_queue) -> c_int {
    done(|| {
        local::with(queue, |own| {
            own.submit();
            Ok(())
        })
    })
}

/// Submits the operations that were added, and waits until `at_least` operations have finished, or all, or `timeout_ns`
/// nanoseconds have passed (negative: no limit; 0: does not wait). Stores up to `room` results in `results`, in the
/// order in which they finished. Returns how many: 0 if none has finished in time, or none is open.
///
/// The queue's own thread. Blocks as described. `at_least` above `room` counts as `room`.
///
/// Pointers: `results` points to an array of `room` results.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_wait(
    queue: *mut ringfile_queue,
    results: *mut ringfile_result,
    room: usize,
    at_least: usize,
    timeout_ns: i64,
) -> i64 {
    call(|| {
        // SAFETY: by the contract in the header.
        let results = unsafe { raw::array_mut(results, room, "the pointer to the results") }?;
        let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        local::with_rooms(queue, |own| {
            own.queue.wait(at_least.min(room), timeout);
            let mut taken = 0;
            for to in results {
                // SAFETY: by the contract in the header.
                let Some((user_data, result)) = (unsafe { path::take(own) }) else { break };
                *to = ringfile_result { user_data, result };
                taken += 1;
            }
            Ok(taken)
        })
    })
}

fn names_none() -> Fault {
    Fault::invalid("the token names no operation of this queue, or its result was taken")
}

/// Submits the operations that were added, waits for one of them, and returns its result: the number or the negative
/// errno as in ringfile_result. The memory belongs to the caller again, and the token is no longer valid.
///
/// The queue's own thread. Blocks. -EINVAL, and an error text that says so: the token names no operation of this queue, or
/// its result was taken.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_wait_for(queue: *mut ringfile_queue, token: u64) -> i64 {
    let token = Token::from_u64(token);
    call(|| {
        local::with_rooms(queue, |own| {
            let done = own.queue.wait_by(token)?;
            // SAFETY: by the contract in the header.
            Ok(unsafe { path::deliver(own, token, done) })
        })
    })
}

/// Returns the result of one operation that has finished, as ringfile_queue_wait_for. -EAGAIN, without effect, if it
/// has not finished. The result itself can be -EAGAIN, if the kernel lacks a resource for the operation, such as a
/// thread: after ringfile_queue_is_done has returned 1, it is the result.
///
/// The queue's own thread. Does not block, and submits nothing: see ringfile_queue_submit.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_take(queue: *mut ringfile_queue, token: u64) -> i64 {
    let token = Token::from_u64(token);
    call(|| {
        local::with_rooms(queue, |own| match own.queue.take_by(token) {
            // SAFETY: by the contract in the header.
            Some(done) => Ok(unsafe { path::deliver(own, token, done) }),
            None if own.queue.contains(token) => {
                Err(Fault::new(libc::EAGAIN, "the operation has not finished"))
            }
            None => Err(names_none()),
        })
    })
}

/// Returns whether an operation has finished: 1 or 0. -EINVAL as ringfile_queue_wait_for. The queue's own thread; does
/// not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_is_done(queue: *mut ringfile_queue, token: u64) -> c_int {
    let token = Token::from_u64(token);
    call(|| {
        local::with(queue, |own| {
            if !own.contains(token) {
                return Err(names_none());
            }
            Ok(i64::from(own.is_done(token)))
        })
    }) as c_int
}

/// Cancels an operation, if the kernel still can. Returns 1, or 0 if it has finished. Its result still arrives, exactly
/// once: what was done by then, or -ECANCELED. Until it was taken, the memory belongs to the library.
///
/// An operation that was not submitted is never carried out. One that waits for a pipe or a socket, or has not begun,
/// is cancelled; what a disk has begun runs to its end.
///
/// The queue's own thread. Does not block; ringfile_queue_wait_for waits. -EINVAL as for ringfile_queue_wait_for.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_cancel(queue: *mut ringfile_queue, token: u64) -> c_int {
    let token = Token::from_u64(token);
    call(|| {
        local::with(queue, |own| {
            if !own.contains(token) {
                return Err(names_none());
            }
            Ok(i64::from(own.cancel(token)))
        })
    }) as c_int
}

/// Returns a descriptor that is readable whenever a result can be taken without waiting: a source for epoll(7), poll(2)
/// or another io_uring, beside sockets and timers. When it is readable, call ringfile_queue_wait with a timeout of 0,
/// or ringfile_queue_submit and ringfile_queue_take.
///
/// It is level-triggered. It may be readable although there is no result, but it is always readable if there is one,
/// even if other queues or batches of the thread collect the completion. It announces only operations that were
/// submitted. There is nothing to read from it. Each call returns a new descriptor with FD_CLOEXEC, which belongs to
/// the caller: close(2) it before or after the queue is closed. For a closed queue it announces nothing.
///
/// The queue's own thread. Does not block. Errors are those of epoll_create1(2) and eventfd(2).
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_descriptor(queue: *mut ringfile_queue) -> c_int {
    call(|| local::with(queue, |own| Ok(i64::from(own.descriptor()?.into_raw_fd())))) as c_int
}

/// Returns the number of operations whose results were not taken. The queue's own thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_open(queue: *const ringfile_queue) -> i64 {
    call(|| local::with(queue, |own| Ok(own.len() as i64)))
}

/// Cancels the operations that the kernel still can cancel, waits until it has finished with all memory, and closes the
/// handle. Results that were not taken are lost.
///
/// The queue's own thread. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_free(queue: *mut ringfile_queue) -> c_int {
    done(|| {
        local::may_wait()?;
        local::remove(queue).map(drop)
    })
}
