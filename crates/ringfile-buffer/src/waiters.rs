//! Waiting for memory: first come, first served, for futures and blocked threads alike.
//!
//! Knows pools, the core, and what its lock guards, with the queue (`queue.rs`). Invariants: only the first request in
//! the queue is served; while there is one, all gets and returns take the lock, so no get overtakes it and no return is
//! missed; a buffer for a future that was dropped goes to the next request; in a forked child, the parent's blocked
//! threads have no place in the queue. No waker is cloned, called or dropped, and no buffer dropped, under the lock.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, Weak};
use std::task::{Context, Poll, Waker};

use super::block::Block;
use super::buffer::Buffer;
use super::core::{Core, WhenFull};
use super::error::PoolError;
use super::inner::{PoolInner, Spare};
use super::pool::Pool;
use super::queue::{Served, Waiter, wake_all};
use crate::blocking::block_on;
use crate::event;
use crate::fork;

thread_local! {
    static MUST_NOT_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// Sets whether this thread runs tasks, so that a blocking get fails instead of sleeping. Returns the previous value.
pub fn set_thread_must_not_block(runs_tasks: bool) -> bool {
    MUST_NOT_BLOCK.replace(runs_tasks)
}

/// Adds something that is asked for memory when a request would fail or wait.
pub fn add_spare(pool: &Pool, spare: Weak<dyn Spare>) {
    let spares = &mut pool.core().lock_waiters().spares;
    spares.retain(|other| other.strong_count() > 0);
    spares.push(spare);
}

/// Returns whether requests wait for memory.
pub fn is_wanted(pool: &Pool) -> bool {
    pool.core().lock_waiters().waiters.any()
}

impl Core {
    /// Asks whatever keeps memory to give it up. Returns whether something was given up.
    fn ask_spares(&self, inner: MutexGuard<'_, PoolInner>) -> bool {
        let spares: Vec<_> = inner.spares.iter().filter_map(Weak::upgrade).collect();
        drop(inner);
        spares.iter().fold(false, |any, spare| spare.give_up() | any)
    }

    /// Returns a free block when nothing is cached, as the settings allow.
    // It returns no buffer, since moving 32 bytes through memory costs more than the rest of a get.
    #[cold]
    pub(super) fn get_slow(&self, pool: &Pool, n: usize) -> Result<NonNull<Block>, PoolError> {
        let answer = self.try_get_slow(n);
        event::emit_deferred();
        let full = match answer {
            Err(full @ PoolError::Full { .. }) => full,
            answer => return answer,
        };
        let refused = match self.options.when_full {
            WhenFull::Wait if !MUST_NOT_BLOCK.get() => {
                return block_on(GetBuffer::new(pool, n, true)).map(Buffer::into_block);
            }
            WhenFull::Wait => PoolError::WouldDeadlock { requested: n },
            WhenFull::Error | WhenFull::Outside { .. } => full,
        };
        self.counters.failures.fetch_add(1, Ordering::Relaxed);
        Err(refused)
    }

    /// Returns a free block when nothing is cached, without waiting for one: [`PoolError::Full`] if there is none.
    #[cold]
    pub(super) fn try_get_slow(&self, n: usize) -> Result<NonNull<Block>, PoolError> {
        loop {
            let (inner, found) = self.look(n)?;
            if let Some(block) = found {
                return Ok(block);
            }
            let full = PoolError::Full {
                requested: n,
                capacity: self.options.capacity,
                in_use: self.in_use(&inner),
                outside_limit: self.options.when_full.outside_limit(),
            };
            if !self.ask_spares(inner) {
                return Err(full);
            }
        }
    }

    /// Returns a free block, unless other requests wait or there is none; also the lock under which that is so.
    fn look(&self, n: usize) -> Result<(MutexGuard<'_, PoolInner>, Option<NonNull<Block>>), PoolError> {
        self.check_size(n)?;
        self.counters.misses.fetch_add(1, Ordering::Relaxed);
        let mut inner = self.lock_waiters();
        let found = if inner.waiters.any() { None } else { self.try_get(&mut inner, n)? };
        Ok((inner, found))
    }

    /// Takes the lock. In a forked child, first ends the requests of threads that only the parent has.
    pub(super) fn lock_waiters(&self) -> MutexGuard<'_, PoolInner> {
        let mut inner = self.lock();
        let Some(inherited) = inner.waiters.take_inherited() else { return inner };
        if !inner.waiters.any() {
            self.unmark_all_waiting();
        }
        // They may have delayed the ones behind them.
        let wakers = self.serve_queue(&mut inner);
        drop(inner);
        wake_all(wakers.into_iter());
        drop(inherited);
        self.lock()
    }

    /// Serves the queue from its head while there is memory. Returns the wakers to call after the lock is released.
    #[must_use]
    pub(super) fn serve_queue(&self, inner: &mut PoolInner) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(n) = inner.waiters.queue.front().map(|first| first.n) {
            let Some(answer) = self.try_get(inner, n).transpose() else { break };
            // SAFETY: the block is free, has room for `n` bytes, and belongs to this call.
            let answer = answer.map(|block| unsafe { Buffer::first(block, n) });
            if let Some(first) = inner.waiters.queue.pop_front() {
                inner.waiters.served.insert(first.ticket, Served { answer, blocks: first.blocks });
                wakers.push(first.waker);
            }
        }
        if !wakers.is_empty() && !inner.waiters.any() {
            self.unmark_all_waiting();
        }
        wakers
    }

    /// Empties the queue at the end of the pool: futures that were leaked may have left their places in it.
    pub(super) fn dismiss_waiters(&self) {
        let left = std::mem::take(&mut self.lock().waiters);
        self.unmark_all_waiting();
        drop(left);
    }
}

/// Waiting, as a future.
impl Pool {
    /// Returns a buffer as [`Pool::get`] does, but waits for memory if the pool is full, and the memory outside of it
    /// that [`WhenFull`] allows is used up.
    ///
    /// Waiting futures (from their first poll) and blocked threads are served in order of arrival. A large request
    /// delays smaller ones behind it. Works in any executor. The future may be dropped at any time.
    ///
    /// # Errors
    /// Those of [`Pool::get`], except that it never fails for a full pool.
    ///
    /// ```
    /// # fn block_on<T>(future: impl Future<Output = T>) -> T {
    /// #     let mut future = std::pin::pin!(future);
    /// #     loop {
    /// #         let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    /// #         if let std::task::Poll::Ready(it) = future.as_mut().poll(&mut cx) { return it }
    /// #     }
    /// # }
    /// let pool = ringfile_buffer::Pool::new(64 << 10);
    /// let only = pool.get(64 << 10)?;
    /// std::thread::spawn(move || drop(only));
    /// let next = block_on(pool.get_async(64 << 10))?;
    /// assert_eq!(next.capacity(), 64 << 10);
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    #[inline]
    pub fn get_async(&self, n: usize) -> GetBuffer<'_> {
        GetBuffer::new(self, n, false)
    }
}

/// The future of [`Pool::get_async`], which returns a buffer.
///
/// Does nothing until polled. May be dropped at any time: the next request in the queue then gets its turn, or the buffer
/// that this future was given but has not returned.
#[must_use = "futures do nothing unless polled"]
pub struct GetBuffer<'a> {
    pool: &'a Pool,
    n: usize,
    /// The place in the queue, if this request is or was in it and has no result yet.
    ticket: Option<u64>,
    /// Whether a thread blocks until this is ready.
    blocks: bool,
}

impl<'a> GetBuffer<'a> {
    pub(super) fn new(pool: &'a Pool, n: usize, blocks: bool) -> Self {
        GetBuffer { pool, n, ticket: None, blocks }
    }

    fn poll_first(&mut self, waker: &Waker) -> Poll<Result<Buffer, PoolError>> {
        let (core, n) = (self.pool.core(), self.n);
        // SAFETY: each block that this gets is free, has room for `n` bytes, and belongs to this call.
        let first = |block| Poll::Ready(Ok(unsafe { Buffer::first(block, n) }));
        if let Some(block) = core.get_cached(n) {
            return first(block);
        }
        // Cloned before taking the lock, and dropped after releasing it: a waker runs user code.
        let own = waker.clone();
        let (mut inner, found) = core.look(n)?;
        if let Some(block) = found {
            return first(block);
        }
        core.counters.waits.fetch_add(1, Ordering::Relaxed);
        inner.waiters.tickets += 1;
        let ticket = inner.waiters.tickets;
        if !inner.waiters.any() {
            core.mark_all_waiting(&inner);
        }
        if self.blocks {
            inner.waiters.process = Some(fork::Mark::current());
        }
        inner.waiters.queue.push_back(Waiter { ticket, n, waker: own, blocks: self.blocks });
        // Blocks returned without the lock before the marks were set are found now; later ones take the lock.
        let wakers = core.serve_queue(&mut inner);
        let answer = inner.waiters.served.remove(&ticket);
        drop(inner);
        wake_all(wakers.into_iter().filter(|other| !other.will_wake(waker)));
        if let Some(served) = answer {
            return Poll::Ready(served.answer);
        }
        self.ticket = Some(ticket);
        // What they give up serves the queue.
        if core.ask_spares(core.lock_waiters()) { self.poll_again(ticket, waker) } else { Poll::Pending }
    }

    fn poll_again(&mut self, ticket: u64, waker: &Waker) -> Poll<Result<Buffer, PoolError>> {
        let mut own = None;
        loop {
            // Dropped before `own`.
            let mut inner = self.pool.core().lock_waiters();
            if let Some(served) = inner.waiters.served.remove(&ticket) {
                self.ticket = None;
                return Poll::Ready(served.answer);
            }
            let place = inner.waiters.place(ticket);
            let kept = place.map(|at| &mut inner.waiters.queue[at].waker);
            match (kept.filter(|kept| !kept.will_wake(waker)), &mut own) {
                (None, _) => return Poll::Pending,
                (Some(kept), Some(own)) => {
                    std::mem::swap(kept, own);
                    return Poll::Pending;
                }
                (Some(_), None) => {}
            }
            drop(inner);
            own = Some(waker.clone());
        }
    }
}

impl Future for GetBuffer<'_> {
    type Output = Result<Buffer, PoolError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match self.ticket {
            None => self.poll_first(cx.waker()),
            Some(ticket) => self.poll_again(ticket, cx.waker()),
        };
        event::emit_deferred();
        answer
    }
}

impl Drop for GetBuffer<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let core = self.pool.core();
        let mut inner = core.lock_waiters();
        let served = inner.waiters.served.remove(&ticket);
        let waiter = inner.waiters.place(ticket).and_then(|at| inner.waiters.queue.remove(at));
        let mut wakers = Vec::new();
        if waiter.is_some() {
            if !inner.waiters.any() {
                core.unmark_all_waiting();
            }
            // This request may have delayed the ones behind it.
            wakers = core.serve_queue(&mut inner);
        }
        drop(inner);
        wake_all(wakers.into_iter());
        // If it was already served, returning its buffer serves the next request.
        drop((served, waiter));
    }
}

impl fmt::Debug for GetBuffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetBuffer").field("bytes", &self.n).field("queued", &self.ticket.is_some()).finish()
    }
}
