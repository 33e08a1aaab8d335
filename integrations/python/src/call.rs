//! One call of a file: its operations, the memory that they use, and what it returns. Calls that wait and calls of an event loop
//! are planned and finished here alike.
//!
//! Invariant: whoever carries out a plan's requests keeps its [`Call`] until all of them have ended.

use std::path::Path;

use pyo3::exceptions::{PyEOFError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::drive::{Direction, Outcome, Request};
use crate::error;
use crate::memory::{Export, Memory, NewBytes, pooled};

/// What a call returns, and the memory of its operations.
pub struct Call {
    returns: Returns,
    /// Whether a short read is an error.
    exact: bool,
    /// What was asked for: an offset and a length for each operation.
    ranges: Vec<(u64, usize)>,
}

enum Returns {
    /// What was read.
    Bytes(NewBytes),
    /// An object of pool memory for each operation.
    Memory,
    /// How many bytes were read or written.
    Length {
        _memory: Export,
    },
    /// How many bytes each operation has read.
    Lengths {
        _memory: Vec<Export>,
    },
    Nothing,
}

/// A call that is ready to be carried out.
pub struct Plan {
    pub call: Call,
    pub direction: Direction,
    pub requests: Vec<Request>,
}

/// Returns an offset or a length of a caller.
pub fn number(value: i64, what: &str) -> PyResult<u64> {
    u64::try_from(value).map_err(|_| PyValueError::new_err(format!("{what} {value}: must not be negative")))
}

impl Plan {
    /// Reads one range. `length` is what the file has at most.
    pub fn read_at(py: Python<'_>, offset: u64, length: usize) -> PyResult<Self> {
        let bytes = NewBytes::new(py, length)?;
        // SAFETY: the call keeps the `bytes`.
        let request = Request { file: 0, offset, buffer: unsafe { bytes.buffer() } };
        Ok(Self::new(Direction::Read, Returns::Bytes(bytes), false, vec![(offset, length)], vec![request]))
    }

    /// Reads into an object's memory, or writes it.
    pub fn transfer(
        object: &Bound<'_, PyAny>,
        direction: Direction,
        offset: i64,
        exact: bool,
    ) -> PyResult<Self> {
        let offset = number(offset, "offset")?;
        let memory = match direction {
            Direction::Write => Export::readable(object)?,
            _ => Export::writable(object)?,
        };
        let length = memory.len();
        // SAFETY: the call keeps the export.
        let request = Request { file: 0, offset, buffer: unsafe { memory.part(0, length) } };
        let returns = Returns::Length { _memory: memory };
        Ok(Self::new(direction, returns, exact, vec![(offset, length)], vec![request]))
    }

    /// Reads many ranges into `out`, or into memory of the pool. `limit` says how long a range can be at most.
    pub fn read_ranges(
        ranges: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        exact: bool,
        limit: impl Fn(u64, usize) -> usize,
    ) -> PyResult<Self> {
        let ranges = parse(ranges)?;
        let mut requests = Vec::with_capacity(ranges.len());
        let returns = match out {
            None => {
                for &(offset, length) in &ranges {
                    requests.push(Request { file: 0, offset, buffer: pooled(limit(offset, length))? });
                }
                Returns::Memory
            }
            Some(out) if out.is_instance_of::<PyList>() || out.is_instance_of::<PyTuple>() => {
                let exports = one_for_each(out, &ranges)?;
                for (export, &(offset, length)) in exports.iter().zip(&ranges) {
                    // SAFETY: the call keeps the export, which is long enough.
                    requests.push(Request { file: 0, offset, buffer: unsafe { export.part(0, length) } });
                }
                Returns::Lengths { _memory: exports }
            }
            Some(out) => {
                let export = one_for_all(out, &ranges)?;
                let mut at = 0;
                for &(offset, length) in &ranges {
                    // SAFETY: the call keeps the export, which is long enough.
                    requests.push(Request { file: 0, offset, buffer: unsafe { export.part(at, length) } });
                    at += length;
                }
                Returns::Lengths { _memory: vec![export] }
            }
        };
        Ok(Self::new(Direction::Read, returns, exact, ranges, requests))
    }

    /// Makes what was written durable.
    pub fn sync() -> Self {
        let request = Request { file: 0, offset: 0, buffer: ringfile::Buffer::default() };
        Self::new(Direction::Sync, Returns::Nothing, false, vec![(0, 0)], vec![request])
    }

    fn new(
        direction: Direction,
        returns: Returns,
        exact: bool,
        ranges: Vec<(u64, usize)>,
        requests: Vec<Request>,
    ) -> Self {
        Self { call: Call { returns, exact, ranges }, direction, requests }
    }
}

impl Call {
    /// Returns the value of the call whose operations have ended so.
    pub fn finish<'py>(
        self,
        py: Python<'py>,
        path: &Path,
        mut outcomes: Vec<Outcome>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut lengths = Vec::with_capacity(outcomes.len());
        for (outcome, &(offset, length)) in outcomes.iter_mut().zip(&self.ranges) {
            let done = std::mem::replace(&mut outcome.result, Ok(0));
            let done = done.map_err(|failed| error::raise(&failed, Some(path)))?;
            if self.exact && done < length {
                return Err(PyEOFError::new_err(format!(
                    "{}: {done} of {length} bytes at offset {offset}: the file ends there",
                    path.display()
                )));
            }
            lengths.push(done);
        }
        let first = lengths.first().copied().unwrap_or(0);
        Ok(match self.returns {
            Returns::Bytes(bytes) => bytes.finish(py, first).into_any(),
            Returns::Length { .. } => first.into_pyobject(py)?.into_any(),
            Returns::Lengths { .. } => PyList::new(py, lengths)?.into_any(),
            Returns::Nothing => py.None().into_bound(py),
            Returns::Memory => {
                let all = PyList::empty(py);
                for outcome in outcomes {
                    all.append(Bound::new(py, Memory::new(outcome.buffer.unwrap_or_default()))?)?;
                }
                all.into_any()
            }
        })
    }
}

/// Returns the ranges of a sequence of pairs.
fn parse(ranges: &Bound<'_, PyAny>) -> PyResult<Vec<(u64, usize)>> {
    let mut parsed = Vec::with_capacity(ranges.len().unwrap_or(0));
    for range in ranges.try_iter()? {
        let (offset, length) = range?.extract::<(i64, i64)>()?;
        parsed.push((number(offset, "offset")?, number(length, "length")? as usize));
    }
    Ok(parsed)
}

fn one_for_all(out: &Bound<'_, PyAny>, ranges: &[(u64, usize)]) -> PyResult<Export> {
    let export = Export::writable(out)?;
    // Lengths are below 2^63 each.
    let total: u128 = ranges.iter().map(|range| range.1 as u128).sum();
    if total > export.len() as u128 {
        let room = export.len();
        return Err(PyValueError::new_err(format!(
            "the ranges have {total} bytes, and `out` has room for {room}"
        )));
    }
    Ok(export)
}

fn one_for_each(out: &Bound<'_, PyAny>, ranges: &[(u64, usize)]) -> PyResult<Vec<Export>> {
    let count = out.len()?;
    if count != ranges.len() {
        return Err(PyValueError::new_err(format!("{} ranges, but {count} buffers in `out`", ranges.len())));
    }
    let mut exports = Vec::with_capacity(count);
    for (each, &(offset, length)) in out.try_iter()?.zip(ranges) {
        let export = Export::writable(&each?)?;
        if export.len() < length {
            return Err(PyValueError::new_err(format!(
                "the range of {length} bytes at offset {offset} does not fit into its buffer of {}",
                export.len()
            )));
        }
        exports.push(export);
    }
    // A list may have changed meanwhile, by the code of an object's buffer protocol.
    if exports.len() != ranges.len() {
        return Err(PyValueError::new_err("`out` has changed during the call"));
    }
    Ok(exports)
}
