//! Batches: operations on any files, carried out together, each with its own result.
//!
//! Invariants: nothing starts before the batch is run or started; everything has finished when the run returns, or the
//! end is reported. A batch is locked only for a moment, and not while its operations are carried out, unless the call
//! that starts them does that itself (RIGHTS in the header): calls wait for the lock, and `State::in_use` decides which of
//! them fail with -EBUSY.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use ringfile::queue::StartedBatch;
use ringfile::{Batch, Completion, File};

use crate::error::{Fault, Result, call, done, remember};
use crate::file;
use crate::fork::{self, Lock};
use crate::memory::{self, Span};
use crate::op::{self, Checked, OnFile, Plain, ringfile_op, ringfile_result};
use crate::path::{OnPath, Room};
use crate::raw::{self, Growing};
use crate::table::Table;
use crate::{local, log};

/// Operations that are carried out together.
pub struct ringfile_batch {
    _opaque: [u8; 0],
}

/// Options of a batch. A field that is 0 selects the default; only `size` must be set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_batch_options {
    /// sizeof(ringfile_batch_options).
    pub size: usize,
    /// Operations in flight at once; 0 for 128, more than 4096 counts as 4096.
    pub depth: usize,
    /// Not 0: the first error stops the batch; operations that have not started end with -ECANCELED.
    pub stop_on_error: u32,
    /// Not 0: reads of a file with at most `merge_gap` bytes between them are merged.
    pub merge_reads: u32,
    /// See `merge_reads`.
    pub merge_gap: usize,
}

// SAFETY: it consists of integers only, with the size first.
unsafe impl Growing for ringfile_batch_options {}

// Forks lock the table, but not the batches.
static BATCHES: Table<Arc<Whole>> = Table::new("ringfile_batch", 13, Lock::Batches, || BATCHES.hold());

struct Whole {
    state: Mutex<State>,
    /// The process that last locked the state, by [`fork::generation`].
    process: AtomicU32,
}

struct State {
    options: ringfile_batch_options,
    steps: Vec<Step>,
    /// Operations among the steps.
    operations: usize,
    /// Where additional results must be written, by the index of the result.
    rooms: Vec<(usize, Room)>,
    results: Vec<ringfile_result>,
    errors: Vec<(usize, CString)>,
    in_use: InUse,
}

/// What keeps a batch from being used.
enum InUse {
    No,
    /// A thread carries out its operations, and waits for them.
    Running,
    /// It was started, and its end was not reported yet.
    Started(StartedBatch),
}

/// What a batch keeps until it is run. The memory of operations is looked up only then.
enum Step {
    OnFile {
        on_file: OnFile<Vec<Span>>,
        file: File,
        user_data: u64,
    },
    /// Boxed, so that the others stay small.
    OnPath {
        on_path: Box<OnPath>,
        user_data: u64,
    },
    Barrier,
}

impl Whole {
    /// Locks the state, for a moment.
    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        let process = fork::generation();
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // A function for messages may run while this thread has the lock.
            Err(TryLockError::WouldBlock) if log::is_inside() => return Err(log::inside()),
            Err(TryLockError::WouldBlock) if self.process.load(Ordering::Relaxed) != process => {
                return Err(Fault::new(
                    libc::EBUSY,
                    "a thread of the parent used the batch when this process was forked: create another one",
                ));
            }
            Err(TryLockError::WouldBlock) => self.wait_for_lock(),
        };
        self.process.store(process, Ordering::Relaxed);
        Ok(state)
    }

    /// Locks the state where no thread that has it can be missing: in the process that last locked it.
    fn wait_for_lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns an error if the batch is in use.
    fn may_be_used(&self) -> Result<()> {
        let why = match self.in_use {
            InUse::No => return Ok(()),
            InUse::Running => {
                "another thread is running the batch: wait for it, or create a batch for each thread"
            }
            InUse::Started(_) => "the batch was started, and its end was not reported yet: wait for that",
        };
        Err(Fault::new(libc::EBUSY, why))
    }
}

fn with<R>(batch: *const ringfile_batch, act: impl FnOnce(&mut State) -> Result<R>) -> Result<R> {
    let batch = BATCHES.get(batch)?;
    let mut state = batch.lock()?;
    state.may_be_used()?;
    act(&mut state)
}

/// Creates a batch. `*batch` gets the handle, to be closed with ringfile_batch_free. `options` may be NULL.
///
/// Any thread. Does not block.
///
/// Pointers: `options` is NULL or points to a struct whose `size` is set; `batch` points to memory for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_batch_create(
    options: *const ringfile_batch_options,
    batch: *mut *mut ringfile_batch,
) -> c_int {
    done(|| {
        // SAFETY: by the contract in the header.
        let options = unsafe { raw::options(options, "ringfile_batch_options") }?;
        if batch.is_null() {
            return Err(Fault::null("the pointer to the batch's handle"));
        }
        let state = State {
            options,
            steps: Vec::new(),
            operations: 0,
            rooms: Vec::new(),
            results: Vec::new(),
            errors: Vec::new(),
            in_use: InUse::No,
        };
        file::heed();
        let process = AtomicU32::new(fork::generation());
        let handle = BATCHES.add(Arc::new(Whole { state: Mutex::new(state), process }))?;
        // SAFETY: by the contract in the header.
        unsafe { raw::put(batch, handle, "the pointer to the batch's handle") }
    })
}

/// Adds an operation. Returns the index of its result. After an error nothing was added.
///
/// A sync covers the writes that have finished when it starts: put a ringfile_batch_barrier between the batch's writes
/// and their sync.
///
/// Any thread. Does not block; does no I/O. -EINVAL: an unknown kind, or a field that it does not use is not 0. The
/// memory is used when the batch is run, and must exist then. Errors of the operation itself are its result.
///
/// Pointers: the fields of `op` are valid as RINGFILE_OP_... says, memory for I/O and for additional results while the
/// batch is run, or from ringfile_batch_start until the end was reported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_batch_add(
    batch: *mut ringfile_batch,
    op: ringfile_op,
    user_data: u64,
) -> i64 {
    call(|| {
        with(batch, |state| {
            state.steps.push(match Plain::new(&op) {
                Some(plain) => Step::OnFile {
                    on_file: OnFile::Transfer(plain.transfer()),
                    file: file::with(plain.file(), File::clone)?,
                    user_data,
                },
                // SAFETY: by the contract in the header.
                None => unsafe { checked(&op, user_data) }?,
            });
            state.operations += 1;
            Ok(state.operations as i64 - 1)
        })
    })
}

/// Returns an operation of any kind, as a batch keeps it.
///
/// # Safety
/// As [`op::check`].
#[inline(never)]
unsafe fn checked(op: &ringfile_op, user_data: u64) -> Result<Step> {
    // SAFETY: by this function's contract.
    Ok(match unsafe { op::check(op) }? {
        Checked::OnFile(file, on_file) => {
            Step::OnFile { on_file, file: file::with(file, File::clone)?, user_data }
        }
        Checked::OnPath(on_path) => Step::OnPath { on_path, user_data },
    })
}

/// Operations added after the barrier start only once all earlier ones have finished. If one of those failed, the later
/// ones do not start, and end with -ECANCELED. Any thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_batch_barrier(batch: *mut ringfile_batch) -> c_int {
    done(|| {
        with(batch, |state| {
            state.steps.push(Step::Barrier);
            Ok(())
        })
    })
}

/// Carries out all operations, blocking the calling thread. Returns how many failed; each has its result
/// (ringfile_batch_results). Afterwards the batch is empty, and can be filled and run again. Results of an earlier run
/// are discarded.
///
/// Any thread, one at a time. Blocks. -EBUSY: another thread is running the batch, or it was started.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_batch_run(batch: *mut ringfile_batch) -> i64 {
    call(|| {
        local::may_wait()?;
        let whole = BATCHES.get(batch)?;
        let mut state = whole.lock()?;
        state.may_be_used()?;
        let batch = state.begin();
        state.in_use = InUse::Running;
        drop(state);
        let running = Running(&whole);
        let done = batch.run();
        let failed = whole.wait_for_lock().end(done);
        drop(running);
        Ok(failed)
    })
}

/// Makes a batch free when its run has ended, even by a panic.
struct Running<'a>(&'a Whole);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.wait_for_lock().in_use = InUse::No;
    }
}

/// The function that is called when a batch has ended, with its context and the number of operations that failed.
pub type ringfile_batch_done = Option<unsafe extern "C" fn(context: *mut c_void, failed: i64)>;

/// Starts the batch and returns. When all operations have finished, one of the library's threads calls `done` with
/// `context` and the number of operations that failed: exactly once, never inside this call, and after the memory of
/// all operations belongs to the caller again. The results are then available (ringfile_batch_results).
///
/// `done` may use this batch and others, add to them and start them. It must be quick, must return (no longjmp, no C++
/// exception), and must not block: calls of this library that wait for an operation or for memory of a pool return
/// -EDEADLK there. It runs with all signals blocked. ringfile_last_error() describes the operation that failed last.
///
/// The memory must stay valid until `done` is called, `context` for as long as `done` uses it. From the start until
/// immediately before `done` is called, the batch is in use: all calls on it return -EBUSY, except
/// ringfile_batch_cancel and ringfile_batch_free. Another thread may therefore find it usable while `done` runs, or
/// shortly before. A batch that is freed meanwhile continues: its end is still reported, and its results are lost. If
/// the process ends first, or in a forked child, no end is reported; in the child the batch stays -EBUSY.
///
/// Any thread. Does not block, except as RIGHTS says. If this fails, nothing was started, and `done` is not called.
/// -EOPNOTSUPP in a child of a process that has used the library's threads, -EAGAIN if no thread can be started: the
/// batch is empty then. After -EBUSY (it is in use) and -EFAULT (`done` is NULL) it is as before.
///
/// Pointers: `done` is a function; the memory of each operation is there until the end is reported, as at the top of this
/// file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_batch_start(
    batch: *mut ringfile_batch,
    done: ringfile_batch_done,
    context: *mut c_void,
) -> c_int {
    self::done(|| {
        let callback = done.ok_or_else(|| Fault::null("the function to call at the end"))?;
        let context = Context(context);
        start(batch, move |failed| {
            // The closure must capture the whole struct: the pointer inside could not be sent to the thread.
            let context = context;
            // SAFETY: by the contract in the header, the function accepts its context on any thread.
            local::report(|| unsafe { callback(context.0, failed) });
        })
    })
}

struct Context(*mut c_void);

// SAFETY: the pointer is only passed to the caller's function, and not dereferenced here.
unsafe impl Send for Context {}

/// Starts the batch as ringfile_batch_start does, with an eventfd(2) instead of the function: at the end 1 is added to
/// it, which makes it readable. When it is readable, the batch is no longer in use, and its results show which
/// operations failed. Nothing is added to an eventfd whose count is at its limit, which is readable already.
///
/// The descriptor is duplicated. It still belongs to the caller, who may close it at any time; the library closes its
/// duplicate at the end.
///
/// Any thread. Does not block, except as RIGHTS says. -EBADF: `eventfd` is not a descriptor; -EMFILE: no room for the
/// duplicate. In both cases nothing was started, and the batch is as before. Otherwise as ringfile_batch_start.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_batch_start_eventfd(batch: *mut ringfile_batch, eventfd: c_int) -> c_int {
    done(|| {
        // SAFETY: the call takes only a number.
        let own = unsafe { libc::fcntl(eventfd, libc::F_DUPFD_CLOEXEC, 3) };
        if own < 0 {
            let error = std::io::Error::last_os_error();
            let text = format!("duplicating the eventfd {eventfd}: {error}");
            return Err(Fault::new(error.raw_os_error().unwrap_or(libc::EBADF), text));
        }
        // SAFETY: the descriptor was just created, and nothing else owns it.
        let own = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(own) });
        start(batch, move |_| {
            if has_room(&own) {
                let _ = (&own).write(&1_u64.to_ne_bytes());
            }
        })
    })
}

/// Returns whether adding to an eventfd would not wait for a reader, with all I/O of the library's thread.
fn has_room(eventfd: &std::fs::File) -> bool {
    let mut asked = libc::pollfd { fd: eventfd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: the kernel accesses the one record during the call, which does not wait.
    let answers = unsafe { libc::poll(&raw mut asked, 1, 0) };
    answers < 0 || asked.revents & libc::POLLOUT != 0
}

fn start(batch: *mut ringfile_batch, report: impl FnOnce(i64) + Send + 'static) -> Result<()> {
    let whole = BATCHES.get(batch)?;
    with(batch, |state| {
        let started = state.begin().start(move |done| {
            // Waits at most for the start itself, or for a call of another thread.
            let mut state = whole.wait_for_lock();
            let failed = state.end(done);
            state.in_use = InUse::No;
            drop(state);
            report(failed);
        });
        match started {
            Ok(started) => state.in_use = InUse::Started(started),
            Err(error) => {
                state.results.clear();
                state.rooms.clear();
                return Err(error.into());
            }
        }
        Ok(())
    })
}

/// Cancels a started batch, as far as the kernel can. Its end is still reported: operations that had not started, or
/// that wait for a pipe or a socket, end with -ECANCELED; what a disk has begun runs to its end. No effect if the batch
/// has ended, or was not started.
///
/// Any thread. Does not block, and does not make calls of other threads fail. -EBUSY: ringfile_batch_run is carrying it
/// out, which cannot be cancelled.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_batch_cancel(batch: *mut ringfile_batch) -> c_int {
    done(|| {
        let batch = BATCHES.get(batch)?;
        let state = batch.lock()?;
        let started = match &state.in_use {
            InUse::Started(started) => started.clone(),
            InUse::No => return Ok(()),
            InUse::Running => return state.may_be_used(),
        };
        // Cancelling wakes threads, so it is done without the lock.
        drop(state);
        started.cancel();
        Ok(())
    })
}

impl State {
    /// Returns the added operations as a batch, and makes room for their results.
    fn begin(&mut self) -> Batch {
        let mut batch = Batch::with_capacity(self.operations).stop_on_error(self.options.stop_on_error != 0);
        if self.options.depth != 0 {
            batch = batch.depth(self.options.depth);
        }
        if self.options.merge_reads != 0 {
            batch = batch.merge_reads(self.options.merge_gap);
        }
        self.results.clear();
        self.errors.clear();
        self.rooms.clear();
        for step in self.steps.drain(..) {
            let user_data = match step {
                Step::OnFile { on_file, file, user_data } => {
                    // SAFETY: by the contract in the header, the memory is valid, and nothing else accesses it, until
                    // the batch was carried out; for a write it is only read.
                    unsafe { on_file.add_to(&file, &mut batch) };
                    user_data
                }
                Step::OnPath { on_path, user_data } => {
                    let (index, room) = op::add_on_path(*on_path, &mut batch);
                    self.rooms.extend(room.map(|room| (index, room)));
                    user_data
                }
                Step::Barrier => {
                    batch.barrier();
                    continue;
                }
            };
            // This value stays if a defect ends the run.
            self.results.push(ringfile_result { user_data, result: -i64::from(libc::ECANCELED) });
        }
        self.operations = 0;
        batch
    }

    /// Keeps the results of the operations, and writes the additional ones. Returns how many failed.
    fn end(&mut self, mut done: Vec<Completion>) -> i64 {
        let mut faults = Vec::new();
        for (index, room) in self.rooms.drain(..) {
            if let Some(done) = done.get_mut(index)
                // SAFETY: by the contract in the header, it may be written to until the end was reported.
                && let Err(fault) = unsafe { room.fill(done) }
            {
                faults.push((index, fault));
            }
        }
        for (index, (result, mut done)) in self.results.iter_mut().zip(done).enumerate() {
            memory::keep_list(&mut done);
            result.result = match done.result {
                Ok(bytes) => bytes as i64,
                Err(error) => {
                    faults.push((index, error.into()));
                    0
                }
            };
        }
        for (index, fault) in faults {
            remember(fault.text.as_str());
            self.errors.push((index, CString::new(fault.text).unwrap_or_default()));
            if let Some(result) = self.results.get_mut(index) {
                result.result = -i64::from(fault.errno);
            }
        }
        self.results.iter().filter(|result| result.result < 0).count() as i64
    }
}

/// Returns the number of results of the last run. `*results` gets the address of the results, in the order of adding.
/// They belong to the batch, until it is run or started again, reset or closed.
///
/// Any thread. Does not block. -EBUSY while the batch is in use, see ringfile_batch_start.
///
/// Pointers: `results` points to memory for the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_batch_results(
    batch: *const ringfile_batch,
    results: *mut *const ringfile_result,
) -> i64 {
    call(|| {
        with(batch, |state| {
            // SAFETY: by the contract in the header.
            unsafe { raw::put(results, state.results.as_ptr(), "the pointer to the results") }?;
            Ok(state.results.len() as i64)
        })
    })
}

/// Returns why an operation of the last run failed, by the index of its result; an empty text if it did not fail. Never
/// NULL. The text belongs to the batch, until it is run or started again, reset or closed. Any thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_batch_error(batch: *const ringfile_batch, index: usize) -> *const c_char {
    let mut text = c"".as_ptr();
    call(|| {
        with(batch, |state| {
            if let Some((_, error)) = state.errors.iter().find(|(of, _)| *of == index) {
                text = error.as_ptr();
            }
            Ok(0)
        })
    });
    text
}

/// Removes operations that were added and not run, and the results of the last run. The batch keeps its memory for the
/// next use. Any thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_batch_reset(batch: *mut ringfile_batch) -> c_int {
    done(|| {
        with(batch, |state| {
            state.steps.clear();
            state.operations = 0;
            state.results.clear();
            state.errors.clear();
            Ok(())
        })
    })
}

/// Closes a batch. Operations that were added and not run are not carried out; a batch that was started continues, see
/// ringfile_batch_start. Any thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_batch_free(batch: *mut ringfile_batch) -> c_int {
    done(|| BATCHES.remove(batch).map(drop))
}
