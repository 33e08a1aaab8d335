//! Where a copy goes.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The file that a copy writes to, and where. It is not memory, so there are no parts.
#[doc(hidden)]
pub struct Destination {
    file: Arc<dyn AsFd + Send + Sync>,
    pub(crate) offset: u64,
    /// Where the source ended when the copy began, if it is the same file: the copy itself may make it longer.
    pub(crate) end: u64,
}

impl Destination {
    pub(crate) fn new(file: Arc<dyn AsFd + Send + Sync>, offset: u64) -> Box<Self> {
        Box::new(Self { file, offset, end: u64::MAX })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
