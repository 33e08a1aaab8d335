//! How failures are reported to C: a negative errno, and a text that the thread can query.
//!
//! Invariant: a panic does not leave this file, not even one of the payload's destructor; it becomes an error of the
//! function that was called. Neither does a cancellation of the thread, which is delayed.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ringfile::Error;
use ringfile::buf::PoolError;

use crate::cancel::Delayed;

/// Why a function failed.
pub(crate) struct Fault {
    pub(crate) errno: i32,
    pub(crate) text: String,
}

pub(crate) type Result<T> = std::result::Result<T, Fault>;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

impl Fault {
    pub(crate) fn new(errno: i32, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, text)
    }

    pub(crate) fn null(what: &str) -> Self {
        Self::new(libc::EFAULT, format!("{what} is NULL"))
    }

    /// Keeps the text for `ringfile_last_error`, and returns the negative errno.
    pub(crate) fn note(self) -> i64 {
        remember(self.text);
        -i64::from(self.errno)
    }
}

/// Keeps a text for `ringfile_last_error`.
pub(crate) fn remember(text: impl Into<Vec<u8>>) {
    let mut text: Vec<u8> = text.into();
    text.retain(|&byte| byte != 0);
    let _ = LAST.try_with(|last| {
        if let (Ok(mut last), Ok(text)) = (last.try_borrow_mut(), CString::new(text)) {
            *last = text;
        }
    });
}

/// Returns the errno of an error that may have none of its own.
pub(crate) fn errno(error: &Error) -> i32 {
    error.errno().unwrap_or_else(|| errno_of(error.kind()))
}

fn errno_of(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        ErrorKind::WouldBlock => libc::EDEADLK,
        ErrorKind::ResourceBusy => libc::EBUSY,
        ErrorKind::WriteZero | ErrorKind::StorageFull => libc::ENOSPC,
        _ => libc::EIO,
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::new(errno(&error), error.to_string())
    }
}

/// The errors of a page cache: those of ringfile, inside what all who waited for the page share.
impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        let inner = error.get_ref();
        let own = inner.and_then(|inner| inner.downcast_ref::<Error>());
        let own = own.or_else(|| inner?.source()?.downcast_ref());
        let errno = error.raw_os_error().or_else(|| own.map(errno));
        Self::new(errno.unwrap_or_else(|| errno_of(error.kind())), error.to_string())
    }
}

impl From<PoolError> for Fault {
    fn from(error: PoolError) -> Self {
        let text = error.to_string();
        let errno = match error {
            PoolError::WouldDeadlock { .. } => libc::EDEADLK,
            PoolError::Invalid { .. } => libc::EINVAL,
            PoolError::Lent { .. } => libc::EBUSY,
            PoolError::NoHugePages { errno, .. } | PoolError::System { errno, .. } => errno,
            _ => libc::ENOMEM,
        };
        Self::new(errno, text)
    }
}

/// Returns the number that stands for a result in C, or the negative errno after keeping the error's text.
pub(crate) fn number_or_errno(result: &ringfile::Result<usize>) -> i64 {
    match result {
        Ok(bytes) => *bytes as i64,
        Err(error) => {
            remember(error.to_string());
            -i64::from(errno(error))
        }
    }
}

/// Runs a function, and returns its number or the negative errno.
#[inline]
pub(crate) fn call(act: impl FnOnce() -> Result<i64>) -> i64 {
    let _delayed = Delayed::new();
    call_in_memory(act)
}

/// Runs [`call`] for functions that make no system call, and so have no cancellation point.
#[inline]
fn call_in_memory(act: impl FnOnce() -> Result<i64>) -> i64 {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(number)) => number,
        Ok(Err(fault)) => fault.note(),
        Err(panic) => panicked(panic).note(),
    }
}

/// Runs [`call`] for functions that return only success or failure.
#[inline]
pub(crate) fn done(act: impl FnOnce() -> Result<()>) -> c_int {
    call(|| act().map(|()| 0)) as c_int
}

/// Runs [`done`] for functions that make no system call, and so have no cancellation point.
#[inline]
pub(crate) fn done_in_memory(act: impl FnOnce() -> Result<()>) -> c_int {
    call_in_memory(|| act().map(|()| 0)) as c_int
}

#[cold]
fn panicked(panic: Box<dyn Any + Send>) -> Fault {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    let fault = Fault::new(libc::ENOTRECOVERABLE, format!("a defect of ringfile, please report it: {said}"));
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // Leaked: this payload might panic with another one, and so on.
        std::mem::forget(payload);
    }
    fault
}

/// Returns the last error of this thread in words: which operation on which file failed, why, and what to try. An empty
/// text if no call has failed. Never NULL. The text belongs to the library, and is valid until the next failing call of
/// the same thread.
///
/// If operations of many have failed (batches, queues, ringfile_read_many), the text describes the last failed one
/// whose result was taken. While a thread is ending, in destructors of thread-locals and of pthread keys, the text may
/// say no more than that. Never blocks, never fails.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_last_error() -> *const c_char {
    const NOTHING: &CStr = c"";
    const ENDS: &CStr =
        c"the thread is ending and keeps no error texts: strerror(-result) says what the result means";
    LAST.try_with(|last| last.try_borrow().map_or(NOTHING.as_ptr(), |last| last.as_ptr()))
        .unwrap_or(ENDS.as_ptr())
}
