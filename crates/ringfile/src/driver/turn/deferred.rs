//! Work deferred until the driver is no longer borrowed: waking tasks, dropping buffers and files, emitting events,
//! delivering results.
//!
//! Knows tasks, buffers and remote requests, and no ring. The work may run user code, which may call the driver again.
//! Invariant: if user code panics, the rest of the work is done by the next call, or when the list is dropped.

use std::sync::Arc;
use std::task::Waker;

use crate::driver::elsewhere::workers;
use crate::driver::mail::shared::RemoteRequest;
use crate::driver::slots::handler::{Finished, Handler};
use crate::driver::slots::key::LocalHandler;
use crate::driver::slots::wake::{TaskNumber, Wake};
use crate::driver::target::Target;
use crate::memory::IoMemory;
use ringfile_buffer::internal::{event, panics};

/// Results, each with the index of its operation. The places stay allocated when results are taken, and later results
/// are built in them: building a result elsewhere and copying it takes several times as long.
#[derive(Default)]
struct OwnResults {
    places: Vec<(u32, Finished)>,
    /// The number of filled places.
    count: usize,
}

impl Drop for OwnResults {
    fn drop(&mut self) {
        for (_, finished) in std::mem::take(&mut self.places) {
            // A result that was taken has nothing left to drop. Forgetting it saves a call.
            if matches!(finished.memory, IoMemory::None) {
                std::mem::forget(finished);
            }
        }
    }
}

/// Deferred work. The loop keeps it, so that filling it does not allocate.
#[derive(Default)]
pub(crate) struct Deferred {
    /// Tasks of this thread's loop to put back into its queue.
    pub tasks: Vec<TaskNumber>,
    pub(super) wakers: Vec<Waker>,
    pub(super) buffers: Vec<IoMemory>,
    /// Files that nothing uses any more, to close.
    pub(super) files: Vec<Target>,
    /// Handlers to drop: one may be the last reference to a batch.
    pub(super) handlers: Vec<Arc<dyn Handler>>,
    /// Results of remote requests, with their receivers.
    pub(super) ended: Vec<(Arc<dyn Handler>, u32, Finished)>,
    /// The number of the handler that turns the driver, and its results, which it collects itself.
    pub(crate) own: Option<LocalHandler>,
    own_results: OwnResults,
    /// Remote requests that this thread could not carry out, with an errno. Those without one go to workers.
    pub(super) remotes: Vec<(RemoteRequest, Option<i32>)>,
}

impl Deferred {
    #[inline(always)]
    pub(super) fn wake(&mut self, wake: Wake) {
        match wake {
            Wake::Task(task) => self.tasks.push(task),
            Wake::Waker(waker) => self.wakers.push(waker),
            // If a remote request has ended, its handler was taken then. One that still has it was withdrawn.
            Wake::Handler(..) | Wake::Local(..) | Wake::None => {}
        }
    }

    /// Returns whether this work may make a task ready: memory that returns to its pool, or a file that is closed, wakes
    /// tasks that wait for it.
    #[inline]
    pub(crate) fn may_wake_someone(&self) -> bool {
        self.has_something() || self.own_results.count > 0
    }

    #[inline]
    fn has_something(&self) -> bool {
        !(self.tasks.is_empty()
            && self.wakers.is_empty()
            && self.buffers.is_empty()
            && self.files.is_empty()
            && self.ended.is_empty()
            && self.remotes.is_empty())
    }

    /// Makes room for this many results.
    #[inline]
    pub(crate) fn expect_results(&mut self, count: usize) {
        let OwnResults { places, .. } = &mut self.own_results;
        if places.len() < count {
            places.resize_with(count, || (0, Finished::NOTHING));
        }
    }

    /// Returns where to put the result of the operation with this index.
    #[inline]
    pub(super) fn add_own_result(&mut self, index: u32) -> &mut Finished {
        let OwnResults { places, count } = &mut self.own_results;
        if *count == places.len() {
            places.push((index, Finished::NOTHING));
        }
        let (kept, finished) = &mut places[*count];
        *count += 1;
        *kept = index;
        finished
    }

    /// Returns the finished operations of the handler that turns the driver.
    #[inline]
    pub(crate) fn take_own_results(&mut self, mut take: impl FnMut(u32, &mut Finished)) {
        if self.own_results.count > 0 {
            // If delivering one panics, no entry is taken twice.
            let mut results = std::mem::take(&mut self.own_results);
            let filled = results.count;
            results.count = 0;
            results.places[..filled].iter_mut().for_each(|(index, finished)| take(*index, finished));
            self.own_results = results;
        }
    }

    #[inline]
    pub(crate) fn settle(&mut self) {
        if self.has_something() || !self.handlers.is_empty() {
            self.settle_all();
        }
        event::emit_deferred();
    }

    #[inline(never)]
    fn settle_all(&mut self) {
        // First: who learns of a result may rely on the file being closed.
        self.files.clear();
        for_each(&mut self.wakers, Waker::wake);
        self.buffers.clear();
        self.handlers.clear();
        for_each(&mut self.ended, |(handler, index, finished)| handler.done(index, finished));
        for_each(&mut self.remotes, |(remote, errno)| match errno {
            Some(errno) => remote.refuse(errno),
            None => workers::send(remote),
        });
    }
}

impl Drop for Deferred {
    /// Does the work that a panic has interrupted: a task waits for each result and each wake-up.
    fn drop(&mut self) {
        while self.has_something() && panics::catch(|| self.settle_all()).is_err() {}
    }
}

/// Empties a list in order. If one item panics, the others remain for the next time.
fn for_each<T>(list: &mut Vec<T>, mut act: impl FnMut(T)) {
    list.reverse();
    while let Some(item) = list.pop() {
        act(item);
    }
}
