//! Carries out many operations and waits for them, with the interpreter's lock released.
//!
//! Invariant: when [`run`] returns, the kernel has finished with all memory, also after an interrupt.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use ringfile::{Buffer, Completion, File, Queue};

/// How often a waiting call looks for signals, so that KeyboardInterrupt comes soon.
const TICK: Duration = Duration::from_millis(40);
/// The most operations in flight: enough for any drive's queue.
const MOST_OPERATIONS: usize = 256;
/// The most bytes in flight. The kernel copies cached data in one call, which no signal interrupts: this takes 10 ms.
const MOST_BYTES: usize = 32 << 20;
/// The largest batch that is added as a whole, and that is not shared by threads.
const SMALL: usize = 4 << 20;

/// One read or write.
pub struct Request {
    /// The index of the file.
    pub file: usize,
    pub offset: u64,
    pub buffer: Buffer,
}

/// How a request has ended: how many bytes were read or written, and its buffer.
pub struct Outcome {
    pub result: ringfile::Result<usize>,
    pub buffer: Option<Buffer>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
    Sync,
}

thread_local! {
    /// The queue of the thread; `None` while a call uses it. A signal handler that calls from inside makes another.
    static QUEUE: Cell<Option<Queue>> = const { Cell::new(None) };
}

fn with_queue<T>(run: impl FnOnce(&mut Queue) -> T) -> T {
    let mut queue = QUEUE.take().unwrap_or_default();
    let done = run(&mut queue);
    QUEUE.set(Some(queue));
    done
}

/// Carries out the requests, and returns their ends in the same order. `files` are those that the requests name. A large
/// batch is shared by several threads: the kernel copies its data, and makes the pages, on the thread that asks.
///
/// # Errors
/// What a signal handler has raised: KeyboardInterrupt. What was in flight is cancelled, as far as the kernel can.
pub fn run(
    py: Python<'_>,
    files: &[&File],
    direction: Direction,
    requests: Vec<Request>,
) -> PyResult<Vec<Outcome>> {
    let bytes: usize = requests.iter().map(|request| request.buffer.capacity()).sum();
    let threads = if direction == Direction::Read { helpers::count().min(bytes / SMALL) } else { 0 };
    py.detach(|| match threads {
        0 => with_queue(|queue| carry_out(queue, files, direction, requests, &mut look)),
        _ => share(files, direction, requests, bytes, threads),
    })
}

/// Runs the handlers of signals that have arrived.
fn look() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}

/// Carries out the requests together with other threads: each gets a part of about as many bytes.
fn share(
    files: &[&File],
    direction: Direction,
    mut requests: Vec<Request>,
    bytes: usize,
    threads: usize,
) -> PyResult<Vec<Outcome>> {
    let mut parts = Vec::with_capacity(threads);
    let each = bytes / (threads + 1);
    for _ in 0..threads {
        let mut sum = 0;
        let first = requests.iter().rposition(|request| {
            sum += request.buffer.capacity();
            sum >= each
        });
        parts.push(requests.split_off(first.unwrap_or(0)));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (report, reported) = mpsc::channel();
    for (number, part) in parts.into_iter().enumerate() {
        let (stop, report) = (Arc::clone(&stop), report.clone());
        let files: Vec<File> = files.iter().map(|&file| file.clone()).collect();
        let work = move || {
            let files: Vec<&File> = files.iter().collect();
            let mut stopped = || match stop.load(Ordering::Relaxed) {
                true => Err(PyRuntimeError::new_err("another part of the batch was interrupted")),
                false => Ok(()),
            };
            let done = with_queue(|queue| carry_out(queue, &files, direction, part, &mut stopped));
            // The caller waits.
            let _ = report.send((number, done));
        };
        helpers::give(number, Box::new(work));
    }
    drop(report);
    // A panic goes on when the helpers have ended.
    let own = catch_unwind(AssertUnwindSafe(|| {
        with_queue(|queue| carry_out(queue, files, direction, requests, &mut look))
    }));
    let (mut own, panic) = match own {
        Ok(own) => (own, None),
        Err(panic) => (Err(PyRuntimeError::new_err("a panic")), Some(panic)),
    };
    let mut others: Vec<_> = (0..threads).map(|_| None).collect();
    // Until no helper has anything left: the memory is the caller's.
    loop {
        match reported.recv_timeout(if own.is_err() { Duration::ZERO } else { TICK }) {
            Ok((number, done)) => others[number] = Some(done),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if own.is_err() => {
                stop.store(true, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
            Err(RecvTimeoutError::Timeout) => own = look().and(own),
        }
    }
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
    let mut outcomes = own?;
    for done in others.into_iter().rev() {
        outcomes
            .extend(done.unwrap_or_else(|| Err(PyRuntimeError::new_err("a thread of ringfile has ended")))?);
    }
    Ok(outcomes)
}

/// Carries out requests on this thread. `look` is called every now and then, and stops it by an error.
fn carry_out(
    queue: &mut Queue,
    files: &[&File],
    direction: Direction,
    mut requests: Vec<Request>,
    look: &mut impl FnMut() -> PyResult<()>,
) -> PyResult<Vec<Outcome>> {
    let lengths: Vec<usize> = requests.iter().map(|request| request.buffer.capacity()).collect();
    let is_small = lengths.iter().sum::<usize>() <= SMALL;
    let mut outcomes: Vec<Outcome> = Vec::new();
    outcomes.resize_with(requests.len(), || Outcome { result: Ok(0), buffer: None });
    let mut completions: Vec<Completion> = Vec::with_capacity(requests.len().min(MOST_OPERATIONS));
    let (mut next, mut bytes, mut looked) = (0, 0, Instant::now());
    let mut stopped = None;
    loop {
        while next < requests.len()
            && (queue.is_empty()
                || is_small
                || (queue.len() < MOST_OPERATIONS && bytes + lengths[next] <= MOST_BYTES))
        {
            let request = &mut requests[next];
            let (file, buffer) = (files[request.file], std::mem::take(&mut request.buffer));
            match direction {
                Direction::Read => queue.add(file.read_at(buffer, request.offset), next as u64),
                Direction::Write => queue.add(file.write_at(buffer, request.offset), next as u64),
                Direction::Sync => queue.add(file.sync_all(), next as u64),
            };
            bytes += lengths[next];
            next += 1;
        }
        if queue.is_empty() {
            break;
        }
        // Waits for a part of them, so that the device always has many.
        let enough = if next == requests.len() { queue.len() } else { queue.len().div_ceil(4) };
        queue.wait(enough..=usize::MAX, Some(TICK), &mut completions);
        for completion in completions.drain(..) {
            let at = completion.user_data as usize;
            bytes -= lengths[at];
            let buffer = completion.buffer.and_then(ringfile::AnyBuffer::into_pooled);
            outcomes[at] = Outcome { result: completion.result, buffer };
        }
        if stopped.is_none() && looked.elapsed() >= TICK {
            stopped = look().err();
            looked = Instant::now();
            if stopped.is_some() {
                queue.cancel_all();
                requests.truncate(next);
            }
        }
    }
    stopped.map_or(Ok(outcomes), Err)
}

/// Carries out one request. If it `ends_soon`, whatever signals come, and is at most [`SMALL`], this is a plain call.
pub fn one(
    py: Python<'_>,
    file: &File,
    direction: Direction,
    offset: u64,
    buffer: Buffer,
    ends_soon: bool,
) -> PyResult<Outcome> {
    if !ends_soon || direction == Direction::Sync || buffer.capacity() > SMALL {
        let request = Request { file: 0, offset, buffer };
        let mut outcomes = run(py, &[file], direction, vec![request])?;
        return Ok(outcomes.pop().unwrap_or(Outcome { result: Ok(0), buffer: None }));
    }
    let done = py.detach(|| match direction {
        Direction::Read => file.read_at(buffer, offset).wait(),
        _ => file.write_at(buffer, offset).wait(),
    });
    Ok(match done {
        Ok(buffer) => Outcome { result: Ok(buffer.len()), buffer: Some(buffer) },
        Err(failed) => {
            let (error, buffer) = failed.into_parts();
            Outcome { result: Err(error), buffer: Some(buffer) }
        }
    })
}

/// Threads that help with large batches. They start with the first one, and stay.
mod helpers {
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Mutex, OnceLock, PoisonError};

    type Work = Box<dyn FnOnce() + Send>;

    /// The most helpers: copies of more threads wait for the same memory.
    const MOST: usize = 3;

    static HELPERS: OnceLock<Vec<Mutex<Sender<Work>>>> = OnceLock::new();

    /// Returns how many helpers there are: one less than there are processors.
    pub(super) fn count() -> usize {
        HELPERS.get_or_init(start).len()
    }

    fn start() -> Vec<Mutex<Sender<Work>>> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut helpers = Vec::new();
        for _ in 1..processors.min(MOST + 1) {
            let (sender, receiver) = channel::<Work>();
            // All signals stay with the threads of Python.
            let started = ringfile::internal::start_thread("ringfile-helper", move || {
                receiver.iter().for_each(|work| work())
            });
            if started.is_ok() {
                helpers.push(Mutex::new(sender));
            }
        }
        helpers
    }

    /// Gives work to a helper. If it has ended, its work is dropped, and the one who waits for it hears of that.
    pub(super) fn give(number: usize, work: Work) {
        if let Some(helper) = HELPERS.get().and_then(|helpers| helpers.get(number)) {
            let _ = helper.lock().unwrap_or_else(PoisonError::into_inner).send(work);
        }
    }
}
