//! Queues: submission and completion as separate steps, for a program with its own loop.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::IntoRawFd;
use std::time::Duration;

use ringfile::{Buffer, Completion, Queue, Token};

use crate::cancel::Delayed;
use crate::error::{Fault, Result, call, done, done_in_memory, number_or_errno};
use crate::local::{self, Own};
use crate::op::{self, Add, Checked, OnFile, Plain, ringfile_op, ringfile_result};
use crate::path::{OnPath, Room};
use crate::{file, memory, path, raw, shared};

/// Runs code on a queue: one of this thread (`own`), or one that threads share (`shared`); or the same code, `used`, on
/// either.
macro_rules! either {
    ($handle:expr, $used:ident => $act:expr) => {
        either!(
            $handle,
            own => {
                let $used = &mut own.queue;
                $act
            },
            shared => {
                let $used = &shared.queue;
                $act
            }
        )
    };
    ($handle:expr, $own:ident => $act:expr, $shared:ident => $other:expr) => {
        if shared::is_one($handle) {
            let $shared = shared::get($handle)?;
            $other
        } else {
            local::with($handle, |$own| $act)
        }
    };
}

/// A queue of operations that are added, submitted together, and collected as they finish.
pub struct ringfile_queue {
    _opaque: [u8; 0],
}

/// ringfile_queue_create: any thread may use the queue, several at once.
pub const RINGFILE_QUEUE_SHARED: u32 = 1;

/// Creates a queue with room for `depth` open operations; it grows when more are added. `*queue` gets the handle, to be
/// closed with ringfile_queue_free.
///
/// `flags` 0: a queue of the calling thread. Only this thread may use it, together with other queues, batches and
/// blocking calls, and it is closed with the thread. Operations use that thread's ring, or workers (see
/// RINGFILE_ROUTE_WORKERS) for what a ring cannot do.
///
/// RINGFILE_QUEUE_SHARED: a queue of all threads, with a ring of its own. Any thread adds and submits operations, waits
/// for them, also those of other threads, and takes their results: each result goes to one thread. A thread that waits
/// does not hinder others. It costs more than a queue of one thread: each call takes a lock, and the ring is not made
/// for one thread. A forked child cannot use it (-EOPNOTSUPP).
///
/// No operation allocates once the queue has grown to its depth. Does not block. -EINVAL: `depth` is more than 2^20, or
/// `flags` are unknown. -EDEADLK inside the function of a started batch.
///
/// Pointers: `queue` points to memory for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_create(
    depth: usize,
    flags: u32,
    queue: *mut *mut ringfile_queue,
) -> c_int {
    done(|| {
        if queue.is_null() {
            return Err(Fault::null("the pointer to the queue's handle"));
        }
        if depth > 1 << 20 {
            return Err(Fault::invalid(format!("a depth of {depth} is too large: use at most 2^20")));
        }
        if flags & !RINGFILE_QUEUE_SHARED != 0 {
            return Err(Fault::invalid(format!("unknown flags {flags:#x}: use 0 or RINGFILE_QUEUE_SHARED")));
        }
        // Freeing a queue waits for its operations.
        local::may_wait()?;
        file::heed();
        let handle = match flags {
            RINGFILE_QUEUE_SHARED => shared::add(depth)?,
            _ => local::add(Queue::with_capacity(depth))?,
        };
        // SAFETY: by the contract in the header.
        unsafe { raw::put(queue, handle, "the pointer to the queue's handle") }
    })
}

/// Adds an operation. It starts with ringfile_queue_submit or a wait. Its memory, and what its additional results are
/// written to, belong to the library until the result was taken.
///
/// `user_data` is returned with the result. If `token` is not NULL, `*token` gets the number, never 0, that names the
/// operation in this queue until its result was taken. After an error nothing was added, and all memory still belongs
/// to the caller.
///
/// A sync covers the writes that have finished when it is submitted. Freeing the queue closes a file that was opened
/// and not taken.
///
/// The queue's own thread, or any if it is shared. Does not block. -EINVAL: an unknown kind, or a field that it does
/// not use is not 0. Errors of the operation itself are its result.
///
/// Pointers: the fields of `op` are valid as RINGFILE_OP_... says, memory for I/O and for additional results until the
/// result was taken; `token` is NULL or points to memory for the token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_add(
    queue: *mut ringfile_queue,
    op: ringfile_op,
    user_data: u64,
    token: *mut u64,
) -> c_int {
    done_in_memory(|| {
        let added = match Plain::new(&op) {
            Some(plain) => either!(
                queue,
                own => {
                    let Own { queue, recent, uses_memory, .. } = own;
                    recent.with(|found| {
                        // SAFETY: by the contract in the header, the memory is valid, and nothing else accesses it, until
                        // the result was taken.
                        let added = unsafe { plain.add_to(found, &mut (queue, user_data)) };
                        *uses_memory |= found.has_memory();
                        added
                    })
                },
                // SAFETY: as above.
                shared => file::with(plain.file(), |file| unsafe {
                    plain.transfer().add_to(file, &mut (&shared.queue, user_data))
                })
            )?,
            // SAFETY: as above.
            None => unsafe { add_checked(queue, &op, user_data) }?,
        };
        if !token.is_null() {
            // SAFETY: it may be written to, by the contract in the header.
            unsafe { token.write(added.to_u64()) };
        }
        Ok(())
    })
}

/// Adds an operation of any kind.
///
/// # Safety
/// As [`op::check`]; the memory is valid until the result was taken.
#[inline(never)]
unsafe fn add_checked(queue: *mut ringfile_queue, op: &ringfile_op, user_data: u64) -> Result<Token> {
    // SAFETY: by this function's contract.
    let checked = unsafe { op::check::<Vec<Buffer>>(op) }?;
    // If it fails, it may drop the last reference to a file that another thread has closed, and close(2) is a
    // cancellation point.
    let holds_file = matches!(checked, Checked::OnFile(_, OnFile::Copy { .. }) | Checked::OnPath(_));
    let _delayed = holds_file.then(Delayed::new);
    match checked {
        Checked::OnFile(file, on_file) => either!(queue, used => {
            // SAFETY: by this function's contract.
            file::with(file, |file| unsafe { on_file.add_to(file, &mut (used, user_data)) })
        }),
        Checked::OnPath(on_path) => either!(
            queue,
            own => Ok(add_on_path(*on_path, (&mut own.queue, user_data), &mut own.rooms)),
            shared => {
                let mut rooms = shared.rooms();
                Ok(add_on_path(*on_path, (&shared.queue, user_data), &mut rooms))
            }
        ),
    }
}

fn add_on_path<A: Add<Added = Token>>(
    on_path: OnPath,
    mut queue: A,
    rooms: &mut HashMap<u64, Room>,
) -> Token {
    let (added, room) = op::add_on_path(on_path, &mut queue);
    if let Some(room) = room {
        rooms.insert(added.to_u64(), room);
    }
    added
}

/// Submits the operations that were added, with one system call if they fit into the ring, and collects those that have
/// finished. An error of an operation is its result.
///
/// The queue's own thread, or any if it is shared. Does not wait; operations whose route is a plain call are carried
/// out here.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_submit(queue: *mut ringfile_queue) -> c_int {
    done(|| {
        either!(queue, used => {
            used.submit();
            Ok(())
        })
    })
}

/// Writes an operation's additional result to the memory that its caller named; returns the number of the result, or
/// the negative errno.
///
/// # Safety
/// The memory that was named for the operation's result may be written to.
#[inline]
unsafe fn deliver(rooms: &mut HashMap<u64, Room>, completion: &mut Completion) -> i64 {
    if rooms.is_empty() {
        memory::keep_list(completion);
        return number_or_errno(&completion.result);
    }
    let room = rooms.remove(&completion.token.to_u64());
    // SAFETY: by this function's contract.
    unsafe { path::deliver(room, completion) }
}

impl Own {
    /// Moves the taken results to the caller's. Returns how many.
    ///
    /// # Safety
    /// As [`deliver`], for each operation of the queue.
    #[inline]
    pub(crate) unsafe fn hand_over(&mut self, results: &mut [ringfile_result]) -> i64 {
        let count = self.taken.len();
        if self.uses_memory && count > 0 {
            self.recent.with(|found| found.take_back(&mut self.taken));
        }
        // Not moved out: a copy would be made in other pieces than the value was stored in.
        for (to, completion) in results.iter_mut().zip(&mut self.taken) {
            // SAFETY: by this function's contract.
            let result = unsafe { deliver(&mut self.rooms, completion) };
            *to = ringfile_result { user_data: completion.user_data, result };
        }
        self.taken.clear();
        count as i64
    }
}

/// Takes the result of the operation that finished first. Returns 1, or 0 if there is none.
///
/// The queue's own thread, or any if it is shared. Does not block, and submits and collects nothing: see
/// ringfile_queue_submit.
///
/// Pointers: `result` points to memory for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_queue_next(
    queue: *mut ringfile_queue,
    result: *mut ringfile_result,
) -> c_int {
    call(|| {
        // SAFETY: by the contract in the header.
        let result = unsafe { raw::array_mut(result, 1, "the pointer to the result") }?;
        either!(
            queue,
            own => {
                own.taken.extend(own.queue.next());
                // SAFETY: by the contract in the header.
                Ok(unsafe { own.hand_over(result) })
            },
            // SAFETY: by the contract in the header.
            shared => Ok(unsafe { shared.take(result, |queue, taken| taken.extend(queue.next())) })
        )
    }) as c_int
}

/// Submits the operations that were added, and waits until `at_least` operations have finished, or all, or `timeout_ns`
/// nanoseconds have passed (negative: no limit; 0: does not wait). Stores up to `room` results in `results`, in the
/// order in which they finished. Returns how many: 0 if none has finished in time, or none is open.
///
/// With a shared queue, it waits until it has taken `at_least` results itself: each goes to one of the threads that wait.
///
/// The queue's own thread, or any if it is shared. Blocks as described. `at_least` above `room` counts as `room`.
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
        either!(
            queue,
            own => {
                own.queue.wait(at_least.min(room)..=room, timeout, &mut own.taken);
                // SAFETY: by the contract in the header.
                Ok(unsafe { own.hand_over(results) })
            },
            shared => {
                if at_least.min(room) > 0 && timeout != Some(Duration::ZERO) {
                    local::may_wait()?;
                }
                // SAFETY: by the contract in the header.
                Ok(unsafe {
                    shared.take(results, |queue, taken| _ = queue.wait(at_least.min(room)..=room, timeout, taken))
                })
            }
        )
    })
}

fn names_none() -> Fault {
    Fault::invalid("the token names no operation of this queue, or its result was taken")
}

/// Submits the operations that were added, waits for one of them, and returns its result: the number or the negative
/// errno as in ringfile_result. The memory belongs to the caller again, and the token is no longer valid.
///
/// The queue's own thread, or any if it is shared. Blocks. -EINVAL, and an error text that says so: the token names no
/// operation of this queue, or its result was taken.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_wait_for(queue: *mut ringfile_queue, token: u64) -> i64 {
    let token = Token::from_u64(token);
    call(|| {
        either!(
            queue,
            own => {
                let mut completion = own.queue.wait_for(token)?;
                if own.uses_memory {
                    own.recent.with(|found| found.take_back(std::slice::from_mut(&mut completion)));
                }
                // SAFETY: by the contract in the header.
                Ok(unsafe { deliver(&mut own.rooms, &mut completion) })
            },
            shared => {
                local::may_wait()?;
                let mut completion = shared.queue.wait_for(token)?;
                // SAFETY: by the contract in the header.
                Ok(unsafe { shared.deliver(&mut completion) })
            }
        )
    })
}

/// Returns whether an operation has finished: 1 or 0. -EINVAL as ringfile_queue_wait_for. The queue's own thread, or
/// any if it is shared. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_is_done(queue: *mut ringfile_queue, token: u64) -> c_int {
    let token = Token::from_u64(token);
    call(|| {
        either!(queue, used => {
            let is_done = used.is_done(token);
            if !is_done && !used.contains(token) {
                return Err(names_none());
            }
            Ok(i64::from(is_done))
        })
    }) as c_int
}

/// Cancels an operation, if the kernel still can. Returns 1, or 0 if it has finished. Its result still arrives, exactly
/// once: its own if it ended before, or -ECANCELED. Until it was taken, the memory belongs to the library.
///
/// An operation that was not submitted is never carried out. One that waits for a pipe or a socket, or has not begun,
/// is cancelled; what a disk has begun runs to its end.
///
/// Any thread. Does not block; ringfile_queue_wait_for waits. -EINVAL as for ringfile_queue_wait_for. If the queue belongs
/// to another thread, this returns 1, and that thread cancels the operation: at once if it waits in a call with this queue,
/// otherwise in its next one, for which the queue's descriptor is readable.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_cancel(queue: *mut ringfile_queue, token: u64) -> c_int {
    let token = Token::from_u64(token);
    call(|| {
        if !shared::is_one(queue)
            && let Some(canceller) = local::canceller(queue)?
        {
            return if canceller.cancel(token) { Ok(1) } else { Err(shared::inherited()) };
        }
        either!(queue, used => {
            let is_cancelled = used.cancel(token);
            if !is_cancelled && !used.contains(token) {
                return Err(names_none());
            }
            Ok(i64::from(is_cancelled))
        })
    }) as c_int
}

/// Cancels all operations, as ringfile_queue_cancel does. Each still gives its result. The queue's own thread, or any if it
/// is shared. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_cancel_all(queue: *mut ringfile_queue) -> c_int {
    done(|| {
        either!(queue, used => {
            used.cancel_all();
            Ok(())
        })
    })
}

/// Returns a descriptor that is readable whenever a result can be taken without waiting: a source for epoll(7), poll(2)
/// or another io_uring, beside sockets and timers. When it is readable, call ringfile_queue_wait with a timeout of 0,
/// or ringfile_queue_submit and ringfile_queue_next.
///
/// It is level-triggered. It may be readable although there is no result, but it is always readable if there is one,
/// even if other queues or batches of the thread collect the completion. It announces only operations that were
/// submitted. There is nothing to read from it. Each call returns a new descriptor with FD_CLOEXEC, which belongs to
/// the caller: close(2) it before or after the queue is closed. For a closed queue it announces nothing.
///
/// The queue's own thread, or any if it is shared. Does not block. Errors are those of epoll_create1(2) and eventfd(2).
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_descriptor(queue: *mut ringfile_queue) -> c_int {
    call(|| either!(queue, used => Ok(i64::from(used.descriptor()?.into_raw_fd())))) as c_int
}

/// Returns the number of operations whose results were not taken. The queue's own thread, or any if it is shared. Does
/// not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_len(queue: *const ringfile_queue) -> i64 {
    call(|| either!(queue, used => Ok(used.len() as i64)))
}

/// Cancels the operations that the kernel still can cancel, waits until it has finished with all memory, and closes the
/// handle. Results that were not taken are lost. For a shared queue, it waits until calls of other threads with this
/// queue have returned; those that wait find no operation open.
///
/// The queue's own thread, or any if it is shared. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_queue_free(queue: *mut ringfile_queue) -> c_int {
    done(|| {
        local::may_wait()?;
        if shared::is_one(queue) { shared::remove(queue) } else { local::remove(queue).map(drop) }
    })
}
