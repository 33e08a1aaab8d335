//! The queue of requests that wait for a pool's memory.
//!
//! Knows buffers, and nothing of the pool that serves the requests (`waiters.rs`). Invariant: requests stand in the
//! order of their tickets.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use super::buffer::Buffer;
use super::error::PoolError;
use crate::fork;
use crate::panics;

/// A request that waits.
pub(super) struct Waiter {
    pub(super) ticket: u64,
    pub(super) n: usize,
    pub(super) waker: Waker,
    pub(super) blocks: bool,
}

/// A request that was served.
pub(super) struct Served {
    pub(super) answer: Result<Buffer, PoolError>,
    pub(super) blocks: bool,
}

/// The waiting requests in order, and those that were served but have not collected their block. Protected by the
/// pool's lock.
#[derive(Default)]
pub(crate) struct WaitingGets {
    pub(super) tickets: u64,
    /// The requests by ticket, which is their order of arrival.
    pub(super) queue: VecDeque<Waiter>,
    pub(super) served: BTreeMap<u64, Served>,
    /// The process of all of these whose `blocks` is set: they belong to threads that are blocked, which a forked child
    /// does not have.
    pub(super) process: Option<fork::Mark>,
}

impl WaitingGets {
    pub(super) fn any(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns the place of a request in the queue.
    pub(super) fn place(&self, ticket: u64) -> Option<usize> {
        self.queue.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }

    /// Removes and returns the requests of blocked threads if this is a forked child and they are its parent's.
    pub(super) fn take_inherited(&mut self) -> Option<(VecDeque<Waiter>, BTreeMap<u64, Served>)> {
        self.process.take_if(|process| !process.is_current())?;
        let gone;
        (gone, self.queue) = std::mem::take(&mut self.queue).into_iter().partition(|waiter| waiter.blocks);
        let served;
        (served, self.served) =
            std::mem::take(&mut self.served).into_iter().partition(|(_, served)| served.blocks);
        Some((gone, served))
    }
}

/// Calls all wakers, even if one panics, because no request is woken twice. Called without a lock.
pub fn wake_all(wakers: impl Iterator<Item = Waker>) {
    struct Unwoken<I: Iterator<Item = Waker>>(I);
    impl<I: Iterator<Item = Waker>> Drop for Unwoken<I> {
        fn drop(&mut self) {
            for waker in self.0.by_ref() {
                // The first panic is propagated.
                let _ = panics::catch(|| waker.wake());
            }
        }
    }
    Unwoken(wakers).0.by_ref().for_each(Waker::wake);
}
