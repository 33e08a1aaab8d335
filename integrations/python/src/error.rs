//! Errors as Python's exceptions.
//!
//! An errno becomes an `OSError`, whose constructor chooses the class (`FileNotFoundError`), with the file's name. What has no
//! errno gets the one that fits its kind best.

use std::io::ErrorKind;
use std::path::Path;

use pyo3::exceptions::{PyEOFError, PyOSError};
use pyo3::prelude::*;

/// Makes an exception of an error of ringfile. `path` is the name of the file as the caller gave it, if there is one.
pub fn raise(error: &ringfile::Error, path: Option<&Path>) -> PyErr {
    let path = path.or(error.path());
    if error.kind() == ErrorKind::UnexpectedEof {
        return PyEOFError::new_err(error.to_string());
    }
    let errno = error.errno().unwrap_or(match error.kind() {
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        ErrorKind::WouldBlock => libc::EAGAIN,
        ErrorKind::AlreadyExists => libc::EEXIST,
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::InvalidInput => libc::EINVAL,
        _ => libc::EIO,
    });
    with_errno(errno, text(error, path), path)
}

/// Makes an `OSError`, or of the class that the errno stands for.
pub fn with_errno(errno: i32, text: String, path: Option<&Path>) -> PyErr {
    match path {
        Some(path) => PyOSError::new_err((errno, text, path.as_os_str().to_owned())),
        None => PyOSError::new_err((errno, text)),
    }
}

/// Returns the error's text without what an `OSError` shows beside it: the errno, and the file's name at the end.
fn text(error: &ringfile::Error, path: Option<&Path>) -> String {
    let mut text = error.to_string();
    if let Some(errno) = error.errno() {
        text = text.replace(&format!(" (os error {errno})"), "");
    }
    match path {
        Some(path) => text.replacen(&format!(" of {}:", path.display()), ":", 1),
        None => text,
    }
}
