//! `ringfile.open` and `File`.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use ringfile::{File, OpenOptions};

use crate::call::{Plan, number};
use crate::drive::{self, Direction, Request};
use crate::memory::NewBytes;
use crate::{error, fork};

/// The length from which a read looks at the file's size first, to allocate no more than there is.
const LARGE: usize = 256 << 10;

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Options {
    mode: Mode,
    direct: bool,
    adaptive: bool,
    dont_cache: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Read,
    Update,
    Truncate,
    Create,
}

impl Mode {
    fn of(text: &str) -> PyResult<Self> {
        match text {
            "rb" | "r" => Ok(Self::Read),
            "r+b" | "rb+" | "r+" => Ok(Self::Update),
            "wb" | "w" => Ok(Self::Truncate),
            "xb" | "x" => Ok(Self::Create),
            other => Err(PyValueError::new_err(format!(
                "mode {other:?}: must be 'rb', 'r+b', 'wb' or 'xb'; files are binary"
            ))),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Read => "rb",
            Self::Update => "r+b",
            Self::Truncate => "wb",
            Self::Create => "xb",
        }
    }
}

impl Options {
    /// Opens a file. Blocks: call it without the interpreter's lock.
    pub fn open(self, path: &Path) -> Result<File, OpenError> {
        let mut options = OpenOptions::new();
        options.read(self.mode != Mode::Truncate && self.mode != Mode::Create);
        options.write(self.mode != Mode::Read);
        options.create(self.mode == Mode::Truncate).truncate(self.mode == Mode::Truncate);
        options.create_new(self.mode == Mode::Create);
        let is_adaptive = self.adaptive && self.mode == Mode::Read && !self.direct && !self.dont_cache;
        options.direct(self.direct).adaptive(is_adaptive).dont_cache(self.dont_cache);
        options.open_blocking(path).map_err(OpenError)
    }
}

/// Why a file was not opened.
pub struct OpenError(ringfile::Error);

impl OpenError {
    pub fn raise(&self, path: &Path) -> PyErr {
        error::raise(&self.0, Some(path))
    }
}

/// Opens a file for reads and writes at offsets. `mode` is 'rb', 'r+b', 'wb' or 'xb'.
///
/// With `adaptive`, what the page cache has is read from there, and the rest directly from the drive, where the file system can
/// do that; it is for files that are only read. `direct` bypasses the page cache, `dont_cache` leaves nothing there.
///
/// Raises OSError with errno and file name (EOPNOTSUPP: the file system has no direct I/O), ValueError for another mode.
#[pyfunction]
#[pyo3(signature = (path, mode = "rb", *, direct = false, adaptive = true, dont_cache = false))]
pub fn open(
    py: Python<'_>,
    path: PathBuf,
    mode: &str,
    direct: bool,
    adaptive: bool,
    dont_cache: bool,
) -> PyResult<PyFile> {
    fork::check()?;
    let options = Options { mode: Mode::of(mode)?, direct, adaptive, dont_cache };
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(PyValueError::new_err("embedded null byte"));
    }
    let file = py.detach(|| options.open(&path)).map_err(|failed| failed.raise(&path))?;
    let what = file.metadata().map_err(|failed| error::raise(&failed, Some(&path)))?;
    if what.is_dir() {
        return Err(error::with_errno(libc::EISDIR, "Is a directory".into(), Some(&path)));
    }
    let ends_soon = what.is_file();
    Ok(PyFile { file: Mutex::new(Some(file)), path, options, ends_soon })
}

/// An open file, for reads and writes at offsets. Any thread may use it, also several at once.
#[pyclass(frozen, name = "File", module = "ringfile", weakref)]
pub struct PyFile {
    /// `None` after closing.
    file: Mutex<Option<File>>,
    path: PathBuf,
    options: Options,
    /// Whether it is a regular file: reads and writes do not wait for another process.
    ends_soon: bool,
}

impl PyFile {
    /// Returns the file, for one call.
    ///
    /// # Errors
    /// `ValueError` after closing, as Python's own files; `RuntimeError` in a forked child.
    pub fn get(&self) -> PyResult<File> {
        fork::check()?;
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.clone().ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }

    pub fn error(&self, error: &ringfile::Error) -> PyErr {
        error::raise(error, Some(&self.path))
    }

    /// Carries out a call, and waits for it.
    fn run<'py>(&self, py: Python<'py>, plan: Plan) -> PyResult<Bound<'py, PyAny>> {
        let file = self.get()?;
        let Plan { call, direction, mut requests } = plan;
        let outcomes = match requests.pop() {
            Some(Request { offset, buffer, .. }) if requests.is_empty() => {
                vec![drive::one(py, &file, direction, offset, buffer, self.ends_soon)?]
            }
            last => {
                requests.extend(last);
                drive::run(py, &[&file], direction, requests)?
            }
        };
        call.finish(py, &self.path, outcomes)
    }

    pub fn plan_ranges(
        &self,
        ranges: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        exact: bool,
    ) -> PyResult<Plan> {
        let file = self.get()?;
        Plan::read_ranges(ranges, out, exact, |offset, length| self.limit_of(&file, offset, length))
    }

    /// Returns how many bytes a read can give at most.
    pub fn limit(&self, offset: u64, length: usize) -> PyResult<usize> {
        Ok(self.limit_of(&self.get()?, offset, length))
    }

    fn limit_of(&self, file: &File, offset: u64, length: usize) -> usize {
        if length < LARGE || !self.ends_soon {
            return length;
        }
        // If the size cannot be had, the read itself will tell.
        let Ok(size) = file.size() else { return length };
        length.min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX))
    }
}

#[pymethods]
impl PyFile {
    /// Reads `length` bytes from `offset`, in bytes; fewer only at the end of the file.
    ///
    /// Raises OSError if the read fails, ValueError if a number is negative or the file was closed.
    fn read_at<'py>(&self, py: Python<'py>, offset: i64, length: i64) -> PyResult<Bound<'py, PyBytes>> {
        let (file, offset) = (self.get()?, number(offset, "offset")?);
        let length = self.limit_of(&file, offset, number(length, "length")? as usize);
        let bytes = NewBytes::new(py, length)?;
        // SAFETY: `bytes` stays until the call has ended.
        let outcome =
            drive::one(py, &file, Direction::Read, offset, unsafe { bytes.buffer() }, self.ends_soon)?;
        let read = outcome.result.map_err(|failed| self.error(&failed))?;
        Ok(bytes.finish(py, read))
    }

    /// Reads from `offset` into an object's memory, until it is full or the file ends. Returns the number of bytes. The object
    /// cannot be resized meanwhile.
    ///
    /// With `exact`, raises EOFError if the file ends before. Raises TypeError or BufferError if the memory cannot be written to.
    #[pyo3(signature = (buffer, offset, *, exact = false))]
    fn read_into<'py>(
        &self,
        buffer: &Bound<'py, PyAny>,
        offset: i64,
        exact: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.run(buffer.py(), Plan::transfer(buffer, Direction::Read, offset, exact)?)
    }

    /// Reads many ranges, `(offset, length)`, together. Returns an object with the buffer protocol for each; with `out` (one
    /// buffer for each range, or one for all, one range behind the other) it reads into that and returns the lengths.
    ///
    /// A range behind the file's end is short, or with `exact` raises EOFError. Raises ValueError if `out` does not fit.
    #[pyo3(signature = (ranges, out = None, *, exact = false))]
    fn read_ranges<'py>(
        &self,
        ranges: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        exact: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.run(ranges.py(), self.plan_ranges(ranges, out, exact)?)
    }

    /// Writes all of `data` at `offset`, in bytes. Returns the number of bytes. It is durable after `sync`.
    ///
    /// Raises OSError if the write fails; a part may have been written.
    fn write_at<'py>(&self, data: &Bound<'py, PyAny>, offset: i64) -> PyResult<Bound<'py, PyAny>> {
        self.run(data.py(), Plan::transfer(data, Direction::Write, offset, false)?)
    }

    /// Makes all that was written durable.
    fn sync<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.run(py, Plan::sync())
    }

    /// Sets the file's size.
    fn _truncate(&self, py: Python<'_>, size: i64) -> PyResult<()> {
        let (file, size) = (self.get()?, number(size, "size")?);
        py.detach(|| file.set_len(size).wait()).map_err(|failed| self.error(&failed))
    }

    /// Returns the file's size in bytes.
    pub fn size(&self) -> PyResult<u64> {
        self.get()?.size().map_err(|failed| self.error(&failed))
    }

    /// Closes the file. Operations in flight end first.
    fn close(&self, py: Python<'_>) {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(file));
    }

    /// Whether the file was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// The path, as it was given.
    #[getter]
    pub fn name(&self) -> &Path {
        &self.path
    }

    /// The mode, as `open` has it.
    #[getter]
    fn mode(&self) -> &'static str {
        self.options.mode.name()
    }

    /// Returns the file as an `io.RawIOBase`, which has a position of its own, for `io.BufferedReader` and others.
    fn as_io<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("ringfile._io")?.call_method1("RawIO", (slf,))
    }

    fn _fileno(&self) -> PyResult<i32> {
        use std::os::fd::{AsFd, AsRawFd};
        Ok(self.get()?.as_fd().as_raw_fd())
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().get()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_how))]
    fn __exit__(&self, py: Python<'_>, _how: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    /// A file is pickled by its path and options, and opened anew. One that was created is opened to be changed.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.get()?;
        let Options { mode, direct, adaptive, dont_cache } = self.options;
        let mode = if mode == Mode::Read { mode } else { Mode::Update };
        let path = std::path::absolute(&self.path)?;
        let arguments = (path.into_os_string(), mode.name(), direct, adaptive, dont_cache);
        (py.import("ringfile")?.getattr("_reopen")?, arguments).into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<ringfile.File {:?}, {:?}{closed}>", self.path, self.options.mode.name())
    }
}

/// Returns the offset and the length of a range as fsspec has it: either end may be `None`, and negative ones count from the
/// file's end.
fn plan(
    file: &File,
    size: &mut Option<u64>,
    start: Option<i64>,
    end: Option<i64>,
) -> ringfile::Result<Option<(u64, usize)>> {
    // What ends soon behind its start needs no look at the size.
    if let (Some(start @ 0..), Some(end @ 0..)) = (start, end)
        && end - start < LARGE as i64
    {
        return Ok(usize::try_from(end - start).ok().map(|length| (start as u64, length)));
    }
    let size = match *size {
        Some(size) => size as i64,
        None => *size.insert(file.size()?) as i64,
    };
    let start = start.map_or(0, |start| if start < 0 { size.saturating_add(start).max(0) } else { start });
    let end = end.map_or(size.max(start), |end| if end < 0 { size.saturating_add(end) } else { end });
    if end < start {
        return Ok(None);
    }
    Ok(Some((start as u64, (end.min(size) - start).max(0) as usize)))
}

/// Reads ranges of several files together, for `ringfile.fs`. Returns for each a `bytes`, or its exception.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "as Python calls it")]
pub fn cat_ranges<'py>(
    py: Python<'py>,
    paths: Vec<PathBuf>,
    indices: Vec<usize>,
    starts: Vec<Option<i64>>,
    ends: Vec<Option<i64>>,
    direct: bool,
    adaptive: bool,
    dont_cache: bool,
) -> PyResult<Bound<'py, PyList>> {
    fork::check()?;
    let options = Options { mode: Mode::Read, direct, adaptive, dont_cache };
    let opened: Vec<_> = py.detach(|| paths.iter().map(|path| options.open(path)).collect());
    // The indices of the files that were opened, among those alone.
    let mut count = 0..;
    let places: Vec<_> =
        opened.iter().map(|opened| opened.as_ref().ok().and_then(|_| count.next())).collect();
    let mut sizes = vec![None; paths.len()];
    let none = || PyIndexError::new_err("there is no such path");
    let mut requests = Vec::with_capacity(indices.len());
    let mut kept = Vec::with_capacity(indices.len());
    for ((index, start), end) in indices.into_iter().zip(starts).zip(ends) {
        let planned = match opened.get(index).ok_or_else(none)? {
            Err(failed) => Err(failed.raise(&paths[index])),
            Ok(file) => match plan(file, &mut sizes[index], start, end) {
                Ok(Some((offset, length))) => NewBytes::new(py, length).map(|bytes| (offset, bytes)),
                Ok(None) => Err(PyValueError::new_err("the range ends before it starts")),
                Err(failed) => Err(error::raise(&failed, Some(&paths[index]))),
            },
        };
        kept.push(planned.map(|(offset, bytes)| {
            // SAFETY: `kept` has the `bytes` until the call has ended.
            let buffer = unsafe { bytes.buffer() };
            requests.push(Request { file: places[index].unwrap_or_default(), offset, buffer });
            (index, bytes)
        }));
    }
    let files: Vec<&File> = opened.iter().flatten().collect();
    let mut outcomes = drive::run(py, &files, Direction::Read, requests)?.into_iter();
    let results = PyList::empty(py);
    for kept in kept {
        let done = kept.and_then(|(index, bytes)| match outcomes.next().map(|outcome| outcome.result) {
            Some(Ok(read)) => Ok(bytes.finish(py, read)),
            Some(Err(failed)) => Err(error::raise(&failed, Some(&paths[index]))),
            None => Err(none()),
        });
        match done {
            Ok(bytes) => results.append(bytes)?,
            Err(failed) => results.append(failed.into_value(py))?,
        }
    }
    Ok(results)
}
