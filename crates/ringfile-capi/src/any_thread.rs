//! Single reads that any thread may wait for, no matter which thread started them.
//!
//! Invariants: the memory of a read belongs to the caller again when the call that took its result returns, and never
//! before; a result is taken once.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};

use ringfile::{Batch, BatchRun, Error};

use crate::error::{Fault, Result, call, done};
use crate::file::{self, ringfile_file};
use crate::fork::{self, Lock};
use crate::table::Table;
use crate::{local, memory, raw};

/// A read that any thread may wait for.
pub struct ringfile_async_read {
    _opaque: [u8; 0],
}

static ASYNC_READS: Table<Arc<Under>> =
    Table::new("ringfile_async_read", 15, Lock::AsyncReads, || ASYNC_READS.hold());

/// The maximum number of reads in flight at once. A device completes what it has begun, so the other reads wait in the
/// [`Window`], where cancelling costs nothing. More would not fill a device's queue better.
const MOST_IN_FLIGHT: usize = 128;

static WINDOW: Window = Window { inner: Mutex::new(Reads { in_flight: 0, waiting: VecDeque::new() }) };

/// Starts reads in order of arrival, at most [`MOST_IN_FLIGHT`] at a time. One that a thread waits for starts at once.
struct Window {
    inner: Mutex<Reads>,
}

struct Reads {
    /// Places taken: reads in flight, and those about to start.
    in_flight: usize,
    /// Empty if a place is free. Also holds reads that were cancelled, or started by the thread that waits for them.
    waiting: VecDeque<Arc<Under>>,
}

impl Window {
    fn lock(&self) -> MutexGuard<'_, Reads> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a read, or lets it wait for a place.
    fn enter(&self, under: &Arc<Under>) {
        fork::heed(Lock::Window, || Some(Box::new(WINDOW.lock())));
        let mut reads = self.lock();
        if reads.in_flight == MOST_IN_FLIGHT {
            if reads.waiting.len() == reads.waiting.capacity() {
                // Removes reads whose handles were closed: only this list holds them.
                reads.waiting.retain(|under| Arc::strong_count(under) > 1);
            }
            return reads.waiting.push_back(Arc::clone(under));
        }
        reads.in_flight += 1;
        drop(reads);
        if !under.start() {
            self.leave();
        }
    }

    /// Gives a place to the next unfinished read, or frees it.
    fn leave(&self) {
        loop {
            let mut reads = self.lock();
            let Some(next) = reads.waiting.pop_front() else {
                reads.in_flight -= 1;
                return;
            };
            drop(reads);
            if next.start() {
                return;
            }
        }
    }
}

/// A read that was started.
struct Under {
    state: Mutex<State>,
    /// The process that started it, by [`fork::generation`].
    process: u32,
    alarm: Arc<Alarm>,
}

enum State {
    Running(BatchRun),
    Over(std::result::Result<usize, Error>),
    Taken,
}

/// Signalled when the read should be polled. Separate from its state, which is locked while it is polled.
#[derive(Default)]
struct Alarm {
    bell: Mutex<Bell>,
    changed: Condvar,
}

#[derive(Default)]
struct Bell {
    rung: bool,
    /// The read has a place in the window, and returns it when its wake-up arrives.
    has_place: bool,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

impl Alarm {
    fn lock(&self) -> MutexGuard<'_, Bell> {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        let mut bell = self.lock();
        bell.rung = true;
        let has_left = std::mem::take(&mut bell.has_place);
        drop(bell);
        self.changed.notify_all();
        if has_left {
            WINDOW.leave();
        }
    }

    fn wait(&self) {
        let mut bell = self.changed.wait_while(self.lock(), |bell| !bell.rung);
        bell.as_mut().unwrap_or_else(|poisoned| poisoned.get_mut()).rung = false;
    }

    /// Keeps a place in the window until the wake-up arrives. Returns false if it has already arrived.
    fn keep_place(&self) -> bool {
        let mut bell = self.lock();
        let has_rung = std::mem::take(&mut bell.rung);
        bell.has_place = !has_rung;
        !has_rung
    }
}

impl State {
    /// Continues the read as far as possible without waiting. Returns whether it has finished.
    fn advance(&mut self, alarm: &Arc<Alarm>) -> bool {
        let Self::Running(read) = self else { return true };
        let waker = Waker::from(Arc::clone(alarm));
        match Pin::new(read).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(mut done) => {
                *self = done.pop().map_or(Self::Taken, |done| Self::Over(done.result));
            }
            Poll::Pending => return false,
        }
        true
    }
}

impl Under {
    fn new(read: BatchRun) -> Self {
        Self { state: Mutex::new(State::Running(read)), process: fork::generation(), alarm: Arc::default() }
    }

    /// Locks the state, which no thread holds for long; in a forked child, a thread that does not exist may hold it
    /// forever.
    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if fork::generation() != self.process => Err(Fault::new(
                libc::EOPNOTSUPP,
                "a thread of the parent process was carrying out this read at the fork: wait for it in the parent",
            )),
            Err(TryLockError::WouldBlock) => Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Starts a read that has a place in the window. Returns whether it keeps the place.
    fn start(&self) -> bool {
        let Ok(mut state) = self.lock() else { return false };
        while !state.advance(&self.alarm) {
            if self.alarm.keep_place() {
                return true;
            }
        }
        drop(state);
        // The wake-up that was taken here may have been for a waiting thread.
        self.alarm.ring();
        false
    }

    fn advance(&self) -> Result<bool> {
        Ok(self.lock()?.advance(&self.alarm))
    }

    fn cancel(&self) -> Result<()> {
        if let State::Running(read) = &mut *self.lock()? {
            read.cancel();
        }
        Ok(())
    }

    fn wait(&self) -> Result<i64> {
        while !self.advance()? {
            self.alarm.wait();
        }
        // The wake-up that this thread heard may have come just before the read got a place. In a forked child, a thread
        // that does not exist may hold the bell's lock forever.
        if fork::generation() == self.process && std::mem::take(&mut self.alarm.lock().has_place) {
            WINDOW.leave();
        }
        match std::mem::replace(&mut *self.lock()?, State::Taken) {
            State::Over(result) => Ok(result? as i64),
            State::Running(_) | State::Taken => {
                Err(Fault::new(libc::EBADF, "another thread has taken the result of this read"))
            }
        }
    }
}

/// Starts a read of `length` bytes from `offset` into `data`, that any thread may wait for. `*read` gets its handle, to
/// be closed with ringfile_async_read_wait. The memory belongs to the library until that returns.
///
/// Any thread. Does not wait for a disk: a thread of the library reads uncached data (ringfile_set_io_threads), or, if
/// the file's route is a plain call, this one. A ringfile_queue costs less if a single thread does everything. An error
/// of the read itself is its result.
///
/// At most 128 of these reads are in flight at once in a process. The others start in order as those finish, or when
/// ringfile_async_read_is_done or ringfile_async_read_wait is called for them.
///
/// Pointers: `length` bytes at `data` until the result was taken, as at the top of this file; `read` points to memory
/// for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_async_read_start(
    file: *const ringfile_file,
    data: *mut c_void,
    length: usize,
    offset: u64,
    read: *mut *mut ringfile_async_read,
) -> c_int {
    done(|| {
        if read.is_null() {
            return Err(Fault::null("the pointer to the read's handle"));
        }
        let file = file::get(file)?;
        // SAFETY: by the contract in the header, the memory is valid, and nothing else accesses it, until the result
        // was taken.
        let buffer = unsafe { memory::at(data, length) }?;
        let mut batch = Batch::with_capacity(1);
        batch.add(file.read_at(buffer, offset));
        let under = Arc::new(Under::new(batch.into_future()));
        WINDOW.enter(&under);
        match ASYNC_READS.add(Arc::clone(&under)) {
            // SAFETY: it is not null, and may be written to by the contract in the header.
            Ok(handle) => unsafe { raw::put(read, handle, "the pointer to the read's handle") },
            Err(fault) => {
                // The memory belongs to the caller again when this returns.
                let _ = under.wait();
                Err(fault)
            }
        }
    })
}

/// Returns whether a read has finished: 1 or 0. Starts a read that has not started yet, and so may carry it out, as
/// ringfile_async_read_start. Any thread; otherwise does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_async_read_is_done(read: *const ringfile_async_read) -> c_int {
    call(|| Ok(i64::from(ASYNC_READS.get(read)?.advance()?))) as c_int
}

/// Cancels a read, if the kernel still can. ringfile_async_read_wait still returns its result: the bytes read, or
/// -ECANCELED. Until then, the memory belongs to the library.
///
/// A read that has not started never starts, and one that waits for a pipe or a socket is cancelled; a read that a disk
/// has begun runs to its end. To cancel many reads, cancel all of them, the last first, before waiting for any: the
/// last ones start last.
///
/// Any thread. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_async_read_cancel(read: *const ringfile_async_read) -> c_int {
    done(|| ASYNC_READS.get(read)?.cancel())
}

/// Waits for a read, closes the handle, and returns the result: the bytes read, fewer than requested only at the end of
/// the file, or a negative errno. The memory belongs to the caller again.
///
/// Any thread. Blocks. In the function of a started batch it fails with -EDEADLK, without effect: the handle stays
/// open, and the memory belongs to the library.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_async_read_wait(read: *mut ringfile_async_read) -> i64 {
    call(|| {
        local::may_wait()?;
        ASYNC_READS.remove(read)?.wait()
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    use std::ptr;

    use super::*;
    use crate::file::{
        RINGFILE_READ, ringfile_close, ringfile_open, ringfile_open_fd, ringfile_open_options,
    };

    fn open(bytes: &[u8]) -> *mut ringfile_file {
        let mut named = tempfile::NamedTempFile::new().unwrap();
        named.write_all(bytes).unwrap();
        let path = CString::new(named.path().as_os_str().as_bytes()).unwrap();
        // SAFETY: it consists of integers, for which zero is a valid value.
        let mut options: ringfile_open_options = unsafe { std::mem::zeroed() };
        (options.size, options.flags) = (size_of::<ringfile_open_options>(), RINGFILE_READ);
        let mut file = ptr::null_mut();
        // SAFETY: pointers to locals.
        assert_eq!(unsafe { ringfile_open(path.as_ptr(), &raw const options, &raw mut file) }, 0);
        file
    }

    fn start(file: *const ringfile_file, into: &mut [u8], offset: u64) -> *mut ringfile_async_read {
        let mut read = ptr::null_mut();
        let (data, length) = (into.as_mut_ptr().cast(), into.len());
        // SAFETY: every test waits for the read before it frees the memory.
        let result = unsafe { ringfile_async_read_start(file, data, length, offset, &raw mut read) };
        assert_eq!(result, 0);
        read
    }

    #[test]
    fn is_waited_for_by_another_thread_than_began_it() {
        let file = open(b"0123456789");
        let mut into = [0; 8];
        let read = start(file, &mut into, 4).addr();
        let waits = move || ringfile_async_read_wait(ptr::without_provenance_mut(read));
        assert_eq!(std::thread::spawn(waits).join().unwrap(), 6);
        assert_eq!(&into[..6], b"456789");
        assert_eq!(ringfile_close(file), 0);
    }

    #[test]
    fn outlives_the_thread_that_began_it_and_the_file() {
        let file = open(&[7; 1 << 16]);
        let mut into = vec![0_u8; 1 << 16];
        let (handle, memory) = (file.addr(), into.as_mut_ptr().addr());
        let begins = move || {
            let mut read = ptr::null_mut();
            let file = ptr::without_provenance(handle);
            // SAFETY: the test waits for the read before it frees the memory.
            let result = unsafe {
                ringfile_async_read_start(
                    file,
                    ptr::with_exposed_provenance_mut(memory),
                    1 << 16,
                    0,
                    &raw mut read,
                )
            };
            (result, read.addr())
        };
        into.as_mut_ptr().expose_provenance();
        let (result, read) = std::thread::spawn(begins).join().unwrap();
        assert_eq!(result, 0);
        assert_eq!(ringfile_close(file), 0);
        assert_eq!(ringfile_async_read_wait(ptr::without_provenance_mut(read)), 1 << 16);
        assert!(into.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn result_is_taken_once() {
        let file = open(b"0123456789");
        let mut into = [0; 4];
        let read = start(file, &mut into, 0);
        while ringfile_async_read_is_done(read) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(ringfile_async_read_wait(read), 4);
        assert_eq!(ringfile_async_read_wait(read), -i64::from(libc::EBADF));
        assert_eq!(ringfile_async_read_is_done(read), -libc::EBADF);
        assert_eq!(ringfile_close(file), 0);
    }

    #[test]
    fn is_cancelled_and_waited_for() {
        let (ours, mut theirs) = std::io::pipe().unwrap();
        let mut pipe = ptr::null_mut();
        // SAFETY: the descriptor is duplicated.
        let result = unsafe { ringfile_open_fd(ours.as_raw_fd(), ptr::null(), &raw mut pipe) };
        assert_eq!(result, 0);
        let mut into = [[0; 8]; 3];
        let [first, second, third] = &mut into;
        let reads = [start(pipe, first, 0), start(pipe, second, 0)];
        assert_eq!(reads.map(|read| ringfile_async_read_cancel(read)), [0; 2]);
        for read in reads {
            assert_eq!(ringfile_async_read_wait(read), -i64::from(libc::ECANCELED));
            assert_eq!(ringfile_async_read_cancel(read), -libc::EBADF);
        }
        let third = start(pipe, third, 0);
        theirs.write_all(b"content").unwrap();
        assert_eq!(ringfile_async_read_wait(third), 7);
        assert_eq!(into, [[0; 8], [0; 8], *b"content\0"]);
        // A read that has ended returns its bytes.
        let file = open(b"0123456789");
        let read = start(file, &mut into[0], 0);
        while ringfile_async_read_is_done(read) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(ringfile_async_read_cancel(read), 0);
        assert_eq!(ringfile_async_read_wait(read), 8);
        assert_eq!(ringfile_close(file) + ringfile_close(pipe), 0);
    }

    /// Returns the number of bytes in a pipe.
    fn left_in(pipe: &std::io::PipeReader) -> i32 {
        let mut bytes = 0;
        // SAFETY: the kernel writes one number.
        assert_eq!(unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut bytes) }, 0);
        bytes
    }

    #[test]
    fn more_than_the_window_start_in_turn_and_cancelled_ones_never_do() {
        const READS: usize = 2 * MOST_IN_FLIGHT + 44;
        const KEPT: usize = MOST_IN_FLIGHT + 22;
        let (ours, mut theirs) = std::io::pipe().unwrap();
        let mut pipe = ptr::null_mut();
        // SAFETY: the descriptor is duplicated.
        let result = unsafe { ringfile_open_fd(ours.as_raw_fd(), ptr::null(), &raw mut pipe) };
        assert_eq!(result, 0);
        let file = open(b"0123456789");
        let mut into = [[0; 1]; READS];
        let mut other = [0; 8];
        let reads: Vec<_> = into.iter_mut().map(|into| start(pipe, into, 0)).collect();
        let read = start(file, &mut other, 2);
        // Reads of a pipe may wait forever, but must not delay a read that somebody waits for.
        assert_eq!(ringfile_async_read_wait(read), 8);
        let (kept, cancelled) = reads.split_at(KEPT);
        assert!(cancelled.iter().rev().all(|&read| ringfile_async_read_cancel(read) == 0));
        for &read in cancelled {
            assert_eq!(ringfile_async_read_wait(read), -i64::from(libc::ECANCELED));
        }
        theirs.write_all(&[7; KEPT + 5]).unwrap();
        assert!(kept.iter().all(|&read| ringfile_async_read_wait(read) == 1));
        assert_eq!(left_in(&ours), 5);
        assert!(into[..KEPT].iter().all(|into| into[0] == 7));
        assert!(into[KEPT..].iter().all(|into| into[0] == 0));
        assert_eq!(&other, b"23456789");
        assert_eq!(ringfile_close(file) + ringfile_close(pipe), 0);
    }

    #[test]
    fn place_is_returned_though_the_waiting_thread_heard_the_bell_first() {
        let (ours, mut theirs) = std::io::pipe().unwrap();
        let mut pipe = ptr::null_mut();
        // SAFETY: the descriptor is duplicated.
        let result = unsafe { ringfile_open_fd(ours.as_raw_fd(), ptr::null(), &raw mut pipe) };
        assert_eq!(result, 0);
        let mut into = [0; 7];
        let mut batch = Batch::with_capacity(1);
        // SAFETY: the test waits for the read before it frees the memory.
        let buffer = unsafe { memory::at(into.as_mut_ptr().cast(), into.len()) };
        batch.add(file::get(pipe).ok().unwrap().read_at(buffer.ok().unwrap(), 0));
        let under = Under::new(batch.into_future());
        // The same steps as `enter` and `start`, while another thread waits. Other tests use the window too.
        let has_place = || {
            let mut reads = WINDOW.lock();
            let is_free = reads.in_flight < MOST_IN_FLIGHT;
            reads.in_flight += usize::from(is_free);
            is_free
        };
        while !has_place() {
            std::thread::yield_now();
        }
        let mut state = under.lock().ok().unwrap();
        assert!(!state.advance(&under.alarm));
        theirs.write_all(b"content").unwrap();
        under.alarm.wait();
        assert!(under.alarm.keep_place());
        drop(state);
        assert_eq!(under.wait().ok(), Some(7));
        assert!(!under.alarm.lock().has_place);
        assert_eq!(&into, b"content");
        assert_eq!(ringfile_close(pipe), 0);
    }

    #[test]
    fn error_is_the_result() {
        let file = open(b"0123456789");
        let mut into = [0; 4];
        let read = start(file, &mut into, u64::MAX - 1);
        assert!(ringfile_async_read_wait(read) < 0);
        let mut read = ptr::null_mut();
        // SAFETY: a null pointer is an error.
        let result = unsafe { ringfile_async_read_start(file, ptr::null_mut(), 4, 0, &raw mut read) };
        assert_eq!(result, -libc::EFAULT);
        assert_eq!(ringfile_close(file), 0);
    }
}
