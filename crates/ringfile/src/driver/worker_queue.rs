//! The requests that wait for a [worker](super::workers), and how many workers there are.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use super::shared::RemoteRequest;
use crate::lock::Lock;
use ringfile_buffer::internal::fork;

pub(super) struct WorkerQueue {
    pub remotes: VecDeque<RemoteRequest>,
    pub idle: usize,
    pub threads: usize,
    /// Threads that wait for a pipe, a socket or a terminal.
    pub on_streams: usize,
    /// Requests that the poller is to take.
    pub waiting: Vec<RemoteRequest>,
    /// The descriptor that wakes the poller, if it runs.
    pub poller: Option<Arc<OwnedFd>>,
}

/// The process that sent the first remote request. Set under the queue's lock, so that no fork finds it half done.
pub(super) static PROCESS: OnceLock<fork::Mark> = OnceLock::new();

pub(super) static QUEUE: Lock<WorkerQueue> = Lock::new(WorkerQueue {
    remotes: VecDeque::new(),
    idle: 0,
    threads: 0,
    on_streams: 0,
    waiting: Vec::new(),
    poller: None,
});

/// Returns whether the workers belong to another process, so that this is a forked child.
pub(crate) fn are_of_another_process() -> bool {
    PROCESS.get().is_some_and(|process| !process.is_current())
}
