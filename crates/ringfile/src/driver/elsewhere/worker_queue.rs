//! The requests that wait for a [worker](super::workers), and how many workers there are.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, OnceLock};

use super::rights::Rights;
use crate::driver::mail::shared::RemoteRequest;
use crate::lock::Lock;
use ringfile_buffer::internal::fork;

/// Workers that take their requests from one queue.
pub(super) struct Pool {
    pub queue: Lock<WorkerQueue>,
    /// Notified when a request has come.
    pub came: Condvar,
}

pub(super) struct WorkerQueue {
    pub remotes: VecDeque<RemoteRequest>,
    pub idle: usize,
    pub threads: usize,
    /// Threads that emit events, during which others may take their places.
    pub emitting: usize,
    /// The rights with which all of `remotes` were sent, if these are operations on paths.
    pub rights: Option<Arc<Rights>>,
    /// Threads that wait for a pipe, a socket or a terminal.
    pub on_streams: usize,
    /// Requests that the poller is to take.
    pub waiting: Vec<RemoteRequest>,
    /// The descriptor that wakes the poller, if it runs.
    pub poller: Option<Arc<OwnedFd>>,
}

/// The process that sent the first remote request. Set under the queue's lock, so that no fork finds it half done.
pub(super) static PROCESS: OnceLock<fork::Mark> = OnceLock::new();

/// The workers for operations on open files.
pub(super) static FILES: Pool = Pool::new();

/// The workers for operations on paths.
pub(super) static PATHS: Pool = Pool::new();

impl Pool {
    const fn new() -> Self {
        let queue = WorkerQueue {
            remotes: VecDeque::new(),
            idle: 0,
            threads: 0,
            emitting: 0,
            rights: None,
            on_streams: 0,
            waiting: Vec::new(),
            poller: None,
        };
        Self { queue: Lock::new(queue), came: Condvar::new() }
    }
}

impl WorkerQueue {
    /// Returns how many threads take requests, or will.
    pub fn working(&self) -> usize {
        self.threads - self.emitting
    }

    /// Returns whether a thread with these rights may give operations on paths to the workers: there is none yet, so that
    /// the thread starts one, or they have the same rights.
    pub fn admits(&mut self, rights: Rights) -> bool {
        if self.threads == 0 {
            self.rights = Some(Arc::new(rights));
            return true;
        }
        self.rights.as_deref() == Some(&rights)
    }
}

/// Locks the queues, for a fork.
pub(crate) fn hold() -> Box<dyn Any> {
    Box::new((FILES.queue.lock(), PATHS.queue.lock()))
}

/// Returns whether the workers belong to another process, so that this is a forked child.
pub(crate) fn are_of_another_process() -> bool {
    PROCESS.get().is_some_and(|process| !process.is_current())
}
