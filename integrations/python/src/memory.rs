//! Memory that Python and the kernel share.
//!
//! Python code may read and write its objects at any time, also while the kernel does. So their memory is never a Rust reference
//! here: it becomes a [`Buffer`] by address, which the library hands to the kernel and does not look into. Invariants: an object
//! stays exported ([`Export`]), so that it is neither resized nor freed, until the operation on it has ended; a `bytes` that is
//! being filled is known to nobody else.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use pyo3::exceptions::{PyBufferError, PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringfile::{Buffer, Pool, WhenFull};

use crate::error;

/// The memory of an object, exported for as long as this exists.
pub struct Export(Option<Box<ffi::Py_buffer>>);

// SAFETY: a view may be released by any thread that is attached to the interpreter.
unsafe impl Send for Export {}
// SAFETY: its fields are only read.
unsafe impl Sync for Export {}

impl Export {
    /// Exports an object's memory to be written to a file.
    pub fn readable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get(object, ffi::PyBUF_SIMPLE)
    }

    /// Exports an object's memory to be read into.
    pub fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get(object, ffi::PyBUF_WRITABLE)
    }

    fn get(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let py = object.py();
        let view = new_view(object, flags).or_else(|failed| {
            // A tensor has no buffer protocol, but shares its memory with an array, and is not resized while that exists.
            match py.import("ringfile._io")?.call_method1("as_array", (object,))? {
                array if array.is_none() => Err(failed),
                array => new_view(&array, flags),
            }
        })?;
        Ok(Self(Some(view)))
    }

    fn view(&self) -> Option<&ffi::Py_buffer> {
        self.0.as_deref()
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.view().map_or(0, |view| view.len as usize)
    }

    fn start(&self) -> *mut u8 {
        self.view().map_or(std::ptr::null_mut(), |view| view.buf.cast())
    }

    /// Returns a part of the memory as a buffer: registered memory of a pool if it lies there.
    ///
    /// # Safety
    /// This stays until the buffer is gone, and the part lies within the memory.
    pub unsafe fn part(&self, at: usize, len: usize) -> Buffer {
        // SAFETY: by this function's contract.
        let start = unsafe { self.start().add(at) };
        // SAFETY: as above.
        arrays::find(start, len).unwrap_or_else(|| unsafe { buffer_at(start, len) })
    }
}

fn new_view(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Box<ffi::Py_buffer>> {
    let mut view = Box::new(ffi::Py_buffer::new());
    // SAFETY: the object is alive, and the view is written by the call.
    match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } {
        -1 => Err(PyErr::fetch(object.py())),
        _ => Ok(view),
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let Some(mut view) = self.0.take() else { return };
        // After the interpreter has ended there is nobody to release it to.
        if Python::try_attach(|_| {
            // SAFETY: the view was filled by `PyObject_GetBuffer`, and is released once.
            unsafe { ffi::PyBuffer_Release(&raw mut *view) };
        })
        .is_none()
        {
            std::mem::forget(view);
        }
    }
}

/// Returns memory as a buffer. An empty part may be anywhere.
///
/// # Safety
/// As `Buffer::from_raw`, except that Python may access the bytes meanwhile: only the kernel does with the buffer.
unsafe fn buffer_at(start: *mut u8, len: usize) -> Buffer {
    if len == 0 || start.is_null() {
        return Buffer::default();
    }
    // SAFETY: by this function's contract.
    unsafe { Buffer::from_raw(start, len) }
}

/// A `bytes` object that is being filled, and its memory.
pub struct NewBytes {
    object: Py<PyBytes>,
    start: *mut u8,
    len: usize,
}

// SAFETY: the object belongs to this value alone until it is finished.
unsafe impl Send for NewBytes {}

impl NewBytes {
    /// Makes a `bytes` of this length, whose content is not set.
    pub fn new(py: Python<'_>, len: usize) -> PyResult<Self> {
        let size = ffi::Py_ssize_t::try_from(len).map_err(|_| PyMemoryError::new_err(()))?;
        // SAFETY: without content to copy, the call makes an object of that size.
        let object = unsafe {
            let object = ffi::PyBytes_FromStringAndSize(std::ptr::null::<c_char>(), size);
            Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>()
        };
        // SAFETY: it is a `bytes`.
        let start = unsafe { ffi::PyBytes_AsString(object.as_ptr()) };
        Ok(Self { object: object.unbind(), start: start.cast(), len })
    }

    /// Returns its memory.
    ///
    /// # Safety
    /// This value stays until the buffer is gone.
    pub unsafe fn buffer(&self) -> Buffer {
        // SAFETY: the object has so many bytes, and nobody else knows it.
        unsafe { buffer_at(self.start, self.len) }
    }

    /// Returns the object, whose first `len` bytes were filled.
    pub fn finish(self, py: Python<'_>, len: usize) -> Bound<'_, PyBytes> {
        if len == self.len {
            return self.object.into_bound(py);
        }
        // SAFETY: these were filled, and nobody writes to them any more.
        PyBytes::new(py, unsafe { std::slice::from_raw_parts(self.start, len.min(self.len)) })
    }
}

/// The pool of all memory that ringfile gives to Python. It grows as needed: a limit is the program's own business.
pub fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| {
        // SAFETY: a plain call.
        let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) }.max(1 << 16) as usize;
        let builder = Pool::builder().capacity(pages / 4 * 4096);
        builder
            .when_full(WhenFull::Outside { limit: usize::MAX })
            .build()
            .unwrap_or_else(|_| Pool::new(1 << 30))
    })
}

/// Gets memory of the pool with this capacity.
pub fn pooled(len: usize) -> PyResult<Buffer> {
    pool().get(len).map_err(|failed| error::raise(&failed.into(), None))
}

/// Memory that a read has filled, with the buffer protocol: `memoryview(x)`, `numpy.frombuffer(x, dtype)`, `bytes(x)`. It goes
/// back to ringfile's pool when this and all its views are gone.
#[pyclass(frozen, module = "ringfile")]
pub struct Memory {
    start: usize,
    len: usize,
    is_array: bool,
    /// Keeps the memory.
    _buffer: Buffer,
}

impl Memory {
    /// Makes an object of what a read has filled.
    pub fn new(mut buffer: Buffer) -> Self {
        Self { start: buffer.as_mut_ptr() as usize, len: buffer.len(), is_array: false, _buffer: buffer }
    }

    /// Makes an object of memory that reads and writes will find by its address.
    pub fn array(len: usize) -> PyResult<Self> {
        let mut buffer = pooled(len)?;
        buffer.resize(len, 0);
        // SAFETY: only the kernel accesses what is found there, and only while the array is exported.
        arrays::add(unsafe { buffer.share(0, len) });
        let mut memory = Self::new(buffer);
        memory.is_array = true;
        Ok(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.is_array {
            arrays::remove(self.start);
        }
    }
}

#[pymethods]
impl Memory {
    fn __len__(&self) -> usize {
        self.len
    }

    fn __repr__(&self) -> String {
        format!("<ringfile.Memory of {} bytes>", self.len)
    }

    /// Fills a view of the memory, which keeps this object.
    ///
    /// # Safety
    /// As the slot `bf_getbuffer`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let (start, len) = (slf.get().start as *mut c_void, slf.get().len as ffi::Py_ssize_t);
        // SAFETY: the memory stays as long as the object, to which the view has a reference.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 0, flags) } {
            -1 => Err(PyErr::fetch(slf.py())),
            _ => Ok(()),
        }
    }
}

/// Memory of [`Memory::array`], found by its address: views of it come from other objects.
mod arrays {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{BTreeMap, Buffer, Mutex, PoisonError};

    static ARRAYS: Mutex<BTreeMap<usize, Buffer>> = Mutex::new(BTreeMap::new());
    static COUNT: AtomicUsize = AtomicUsize::new(0);

    pub(super) fn add(buffer: Buffer) {
        let mut arrays = ARRAYS.lock().unwrap_or_else(PoisonError::into_inner);
        arrays.insert(buffer.as_ptr() as usize, buffer);
        COUNT.store(arrays.len(), Ordering::Relaxed);
    }

    pub(super) fn remove(start: usize) {
        let mut arrays = ARRAYS.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = arrays.remove(&start);
        COUNT.store(arrays.len(), Ordering::Relaxed);
        drop(arrays);
        drop(removed);
    }

    /// Returns a part of such memory; `None` if the bytes are elsewhere.
    pub(super) fn find(start: *mut u8, len: usize) -> Option<Buffer> {
        if len == 0 || COUNT.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let arrays = ARRAYS.lock().unwrap_or_else(PoisonError::into_inner);
        let (base, buffer) = arrays.range(..=start as usize).next_back()?;
        let at = start as usize - base;
        // SAFETY: only the kernel accesses it, and the caller keeps the array exported meanwhile.
        (at + len <= buffer.len()).then(|| unsafe { buffer.share(at, len) })
    }
}

/// Memory of the pool, for `Pool.array`.
#[pyfunction]
pub fn array_memory(len: i64) -> PyResult<Memory> {
    crate::fork::check()?;
    let len = usize::try_from(len).map_err(|_| PyValueError::new_err("an array has no negative size"))?;
    Memory::array(len)
}
