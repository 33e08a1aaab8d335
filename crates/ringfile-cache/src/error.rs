//! Errors of a read or write that several tasks wait for.

use std::fmt;
use std::io;
use std::sync::Arc;

/// Why a page could not be read or written: the error of the file, which all who waited for the page share.
#[derive(Clone)]
pub(crate) struct Failure(Arc<ringfile::Error>);

impl Failure {
    pub(crate) fn new(error: ringfile::Error) -> Self {
        Self(Arc::new(error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        io::Error::new(failure.0.kind(), failure)
    }
}

/// Returns the error of a call that the user got wrong.
pub(crate) fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
