//! Calls of an event loop: started on its thread, and collected when a descriptor that it watches is readable.
//!
//! Invariant: the file and the memory of a call stay in [`Engine`] until its operations have ended, whether or not anybody still
//! waits for it.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use ringfile::{Completion, SharedQueue, Token};

use crate::call::{Call, Plan, number};
use crate::drive::{Direction, Outcome};
use crate::error;
use crate::file::PyFile;
use crate::fork;

/// The calls of one event loop.
#[pyclass(frozen, module = "ringfile.asyncio", weakref)]
pub struct Engine {
    queue: SharedQueue,
    descriptor: OwnedFd,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    calls: HashMap<u64, Started>,
    last: u64,
}

/// A call whose operations have not all ended.
struct Started {
    call: Call,
    file: Py<PyFile>,
    /// `None` until the call must be waited for.
    future: Option<Py<PyAny>>,
    tokens: Vec<Token>,
    outcomes: Vec<Outcome>,
    left: usize,
}

/// The most operations of one call: the number of each is one half of its `user_data`.
const PLACES: u64 = 1 << 32;

impl Engine {
    /// Locked for moments only, in which no code of Python runs.
    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a call. Returns its number and a future of `event_loop`; 0 and its value if it has ended at once.
    fn start<'py>(
        &self,
        file: &Bound<'py, PyFile>,
        event_loop: &Bound<'py, PyAny>,
        plan: Plan,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = file.py();
        let Plan { call, direction, requests } = plan;
        let of_ringfile = file.get().get()?;
        let left = requests.len();
        let mut outcomes = Vec::with_capacity(left);
        outcomes.resize_with(left, || Outcome { result: Ok(0), buffer: None });
        let at_once = |value| (0, value).into_pyobject(py).map(Bound::into_any);
        if left == 0 {
            return at_once(call.finish(py, file.get().name(), outcomes)?);
        }
        let number = {
            let mut running = self.running();
            running.last += 1;
            let number = running.last;
            let mut tokens = Vec::with_capacity(left);
            for (at, request) in requests.into_iter().enumerate() {
                let user_data = number * PLACES + at as u64;
                let (offset, buffer) = (request.offset, request.buffer);
                tokens.push(match direction {
                    Direction::Read => self.queue.add(of_ringfile.read_at(buffer, offset), user_data),
                    Direction::Write => self.queue.add(of_ringfile.write_at(buffer, offset), user_data),
                    Direction::Sync => self.queue.add(of_ringfile.sync_all(), user_data),
                });
            }
            let file = file.clone().unbind();
            running.calls.insert(number, Started { call, file, future: None, tokens, outcomes, left });
            number
        };
        py.detach(|| self.queue.submit());
        if let Some(Started { call, file, outcomes, .. }) = self.take_results(py, number) {
            return at_once(call.finish(py, file.get().name(), outcomes)?);
        }
        let future = event_loop.call_method0(intern!(py, "create_future"))?;
        if let Some(started) = self.running().calls.get_mut(&number) {
            started.future = Some(future.clone().unbind());
        }
        (number, future).into_pyobject(py).map(Bound::into_any)
    }

    /// Takes the results that are there, and ends the calls that are complete, but returns the one of this number.
    fn take_results(&self, py: Python<'_>, number: u64) -> Option<Started> {
        let mut own = None;
        loop {
            let mut ended = None;
            {
                let mut running = self.running();
                while let Some(completion) = self.queue.next() {
                    ended = running.take(completion);
                    if ended.is_some() {
                        break;
                    }
                }
            }
            match ended {
                None => return own,
                Some((ended, started)) if ended == number => {
                    own = Some(started);
                    continue;
                }
                Some((_, started)) => {
                    if let Err(failed) = started.end(py) {
                        failed.write_unraisable(py, None);
                    }
                }
            }
        }
    }
}

impl Running {
    /// Takes a result, and returns its call, with the number, if that is complete.
    fn take(&mut self, completion: Completion) -> Option<(u64, Started)> {
        let number = completion.user_data / PLACES;
        let started = self.calls.get_mut(&number)?;
        let buffer = completion.buffer.and_then(ringfile::AnyBuffer::into_pooled);
        if let Some(outcome) = started.outcomes.get_mut((completion.user_data % PLACES) as usize) {
            *outcome = Outcome { result: completion.result, buffer };
        }
        started.left -= 1;
        if started.left > 0 {
            return None;
        }
        self.calls.remove(&number).map(|started| (number, started))
    }
}

impl Started {
    /// Gives the future its result, if it was not cancelled.
    fn end(self, py: Python<'_>) -> PyResult<()> {
        let Self { call, file, future, outcomes, .. } = self;
        // Only the call that is being started has none, and it is not ended here.
        let Some(future) = future else { return Ok(()) };
        let future = future.bind(py);
        let value = call.finish(py, file.get().name(), outcomes);
        if future.call_method0(intern!(py, "done"))?.is_truthy()? {
            return Ok(());
        }
        match value {
            Ok(value) => future.call_method1(intern!(py, "set_result"), (value,))?,
            Err(failed) => future.call_method1(intern!(py, "set_exception"), (failed.into_value(py),))?,
        };
        Ok(())
    }
}

#[pymethods]
impl Engine {
    #[new]
    fn new() -> PyResult<Self> {
        fork::check()?;
        let queue = SharedQueue::new();
        let descriptor = queue.descriptor().map_err(|failed| error::raise(&failed, None))?;
        Ok(Self { queue, descriptor, running: Mutex::default() })
    }

    /// Returns the descriptor that is readable when [`collect`](Self::collect) has something to do.
    fn fileno(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    /// Collects results, and wakes the tasks that wait for them.
    fn collect(&self, py: Python<'_>) -> PyResult<()> {
        fork::check()?;
        py.detach(|| self.queue.submit());
        self.take_results(py, 0);
        Ok(())
    }

    /// Cancels a call, as far as the kernel can. Its memory stays exported until the kernel has finished with it.
    fn cancel(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        fork::check()?;
        let tokens = match self.running().calls.get_mut(&number) {
            Some(started) => std::mem::take(&mut started.tokens),
            None => return Ok(()),
        };
        py.detach(|| tokens.into_iter().for_each(|token| _ = self.queue.cancel(token)));
        self.collect(py)
    }

    fn read_at<'py>(
        &self,
        file: &Bound<'py, PyFile>,
        event_loop: &Bound<'py, PyAny>,
        offset: i64,
        length: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (offset, length) = (number(offset, "offset")?, number(length, "length")? as usize);
        let length = file.get().limit(offset, length)?;
        self.start(file, event_loop, Plan::read_at(file.py(), offset, length)?)
    }

    fn read_into<'py>(
        &self,
        file: &Bound<'py, PyFile>,
        event_loop: &Bound<'py, PyAny>,
        buffer: &Bound<'py, PyAny>,
        offset: i64,
        exact: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.start(file, event_loop, Plan::transfer(buffer, Direction::Read, offset, exact)?)
    }

    fn read_ranges<'py>(
        &self,
        file: &Bound<'py, PyFile>,
        event_loop: &Bound<'py, PyAny>,
        ranges: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        exact: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let plan = file.get().plan_ranges(ranges, out, exact)?;
        self.start(file, event_loop, plan)
    }

    fn write_at<'py>(
        &self,
        file: &Bound<'py, PyFile>,
        event_loop: &Bound<'py, PyAny>,
        data: &Bound<'py, PyAny>,
        offset: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.start(file, event_loop, Plan::transfer(data, Direction::Write, offset, false)?)
    }

    fn sync<'py>(
        &self,
        file: &Bound<'py, PyFile>,
        event_loop: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.start(file, event_loop, Plan::sync())
    }
}
