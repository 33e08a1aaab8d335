//! Reads with handles: start, poll, wait, abort.

use std::ffi::{c_int, c_void};

use ringfile::{AsyncReads, ReadHandle};

use crate::error::{Fault, call, done};
use crate::file::{self, ringfile_file};
use crate::io::{number, number_or_errno};
use crate::{local, memory, raw};

/// Reads that go on while the thread does something else.
pub struct ringfile_reads {
    _opaque: [u8; 0],
}

/// Makes a set of reads for the calling thread. `*reads` gets the handle, to be closed with ringfile_reads_free, or with
/// the thread.
///
/// The thread alone may use it, beside queues, batches and blocking calls of its own. Does not block.
///
/// Pointers: `reads` points to where the handle is to go.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_reads_create(reads: *mut *mut ringfile_reads) -> c_int {
    done(|| {
        if reads.is_null() {
            return Err(Fault::null("where the reads are to go"));
        }
        let handle = local::add(AsyncReads::new())?;
        // SAFETY: as the header says.
        unsafe { raw::put(reads, handle, "where the reads are to go") }
    })
}

/// Starts a read of `length` bytes from `offset` into `data`. `*read` gets its number, which is of no other read and never
/// 0. The memory is the library's until the read's result was taken.
///
/// The reads' own thread. Does not block, except for a file whose route is a plain call. What is wrong with the read
/// itself is its result.
///
/// Pointers: `length` bytes at `data` until the result was taken, as at the top of this file; `read` points to where the number is
/// to go.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_reads_start(
    reads: *mut ringfile_reads,
    file: *const ringfile_file,
    data: *mut c_void,
    length: usize,
    offset: u64,
    read: *mut u64,
) -> c_int {
    done(|| {
        if read.is_null() {
            return Err(Fault::null("where the number of the read is to go"));
        }
        let file = file::get(file)?;
        local::with(reads, |own: &mut AsyncReads| {
            // SAFETY: the memory is there and the read's alone until its result was taken, says the header.
            let buffer = unsafe { memory::at(data, length) }?;
            let number = own.start(&file, buffer, offset).to_u64();
            // SAFETY: as the header says.
            unsafe { raw::put(read, number, "where the number of the read is to go") }
        })
    })
}

/// How many reads have ended whose results were not taken. With `wait` not 0, waits until that is `at_least` so many, or
/// all that were started.
///
/// The reads' own thread. Blocks only with `wait`.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_reads_poll(reads: *mut ringfile_reads, at_least: usize, wait: c_int) -> i64 {
    call(|| local::with(reads, |own: &mut AsyncReads| Ok(own.poll(at_least, wait != 0) as i64)))
}

/// Whether a read has ended, by what was last polled or waited for: 1 or 0; 0 for a number that is of none. The reads' own
/// thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_reads_is_done(reads: *const ringfile_reads, read: u64) -> c_int {
    let read = ReadHandle::from_u64(read);
    call(|| local::with(reads, |own: &mut AsyncReads| Ok(i64::from(own.is_done(read))))) as c_int
}

/// Waits for a read, and takes its result: the bytes read, fewer than wanted only at the end of the file, or a negative
/// errno. Its memory is the caller's again, and its number names nothing any more.
///
/// The reads' own thread. Blocks. -EINVAL, and an error text that says so: the number is of no read here, or its result
/// was taken.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_reads_wait(reads: *mut ringfile_reads, read: u64) -> i64 {
    let read = ReadHandle::from_u64(read);
    call(|| local::with(reads, |own: &mut AsyncReads| number(own.wait(read)?)))
}

/// Takes the result of a read that has ended, as ringfile_reads_wait. -EAGAIN where it has not ended, or the number is of
/// no read here.
///
/// The reads' own thread. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_reads_take(reads: *mut ringfile_reads, read: u64) -> i64 {
    let read = ReadHandle::from_u64(read);
    call(|| {
        local::with(reads, |own: &mut AsyncReads| match own.take(read) {
            Some(done) => Ok(number_or_errno(done)),
            None => Err(Fault::new(libc::EAGAIN, "the read has not ended, or the number is of no read here")),
        })
    })
}

/// Cancels a read where the kernel still can, and takes its result when the kernel is done with its memory, which is the
/// caller's again. What was read, or -ECANCELED.
///
/// The reads' own thread. Blocks: most disks can't cancel, and the read runs to its end. Else as ringfile_reads_wait.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_reads_abort(reads: *mut ringfile_reads, read: u64) -> i64 {
    let read = ReadHandle::from_u64(read);
    call(|| local::with(reads, |own: &mut AsyncReads| number(own.abort(read)?)))
}

/// Aborts what has not ended, waits until the kernel is done with the memory, and closes the handle.
///
/// The reads' own thread. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_reads_free(reads: *mut ringfile_reads) -> c_int {
    done(|| local::remove::<AsyncReads, _>(reads).map(drop))
}
