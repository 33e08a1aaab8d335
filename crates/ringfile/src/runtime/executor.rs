//! One thread's loop: run what is ready, submit once, wait once.
//!
//! Knows the driver and tasks; no I/O. What always holds:
//!
//! - a task runs only on the thread that it was spawned on;
//! - a wake-up from another thread is queued before the thread is notified, and a notified thread does not sleep;
//! - when the loop ends, its tasks are dropped first, then the driver is drained.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use async_task::Runnable;

use crate::driver::{self, Aftermath, Shared};
use crate::ring::RingOptions;

thread_local! {
    /// The driver of the loop that this thread is in; 0 outside.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    static READY: RefCell<VecDeque<Runnable>> = const { RefCell::new(VecDeque::new()) };
    /// Wakers of the tasks that were started and have not ended, so that they can be dropped with the loop.
    static TASKS: RefCell<Tasks> = const { RefCell::new(Tasks { wakers: Vec::new(), free: Vec::new() }) };
    static REMOTE: RefCell<Option<Arc<Remote>>> = const { RefCell::new(None) };
}

struct Tasks {
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
}

/// What a runtime asks of a loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Orders {
    Run,
    /// End when the last task has.
    Finish,
    /// End now.
    Stop,
}

/// The part of a loop that other threads may touch.
pub(super) struct Remote {
    shared: Arc<Shared>,
    ready: Mutex<VecDeque<Runnable>>,
    orders: AtomicU8,
}

impl Remote {
    pub(super) fn push(&self, runnable: Runnable) {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).push_back(runnable);
        self.shared.notify();
    }

    pub(super) fn order(&self, orders: Orders) {
        self.orders.store(orders as u8, Ordering::Release);
        self.shared.notify();
    }

    fn orders(&self) -> Orders {
        match self.orders.load(Ordering::Acquire) {
            0 => Orders::Run,
            1 => Orders::Finish,
            _ => Orders::Stop,
        }
    }

    /// Queues a task that was woken: on this thread, or for that of its loop.
    pub(super) fn schedule(&self, runnable: Runnable) {
        if CURRENT.try_with(Cell::get) == Ok(self.shared.id) {
            READY.with(|ready| ready.borrow_mut().push_back(runnable));
        } else {
            self.push(runnable);
        }
    }
}

/// Where tasks that are spawned on this thread go.
pub(super) fn current() -> Option<Arc<Remote>> {
    REMOTE.with(|remote| remote.borrow().clone())
}

/// Whether this thread is in a loop.
pub(super) fn is_in_loop() -> bool {
    CURRENT.try_with(Cell::get).is_ok_and(|id| id != 0)
}

/// Notes a task as started until it is dropped, so that the loop can drop it.
pub(super) struct Started(usize);

impl Started {
    pub(super) fn new(waker: &Waker) -> Self {
        TASKS.with(|tasks| {
            let mut tasks = tasks.borrow_mut();
            let index = tasks.free.pop().unwrap_or_else(|| {
                tasks.wakers.push(None);
                tasks.wakers.len() - 1
            });
            tasks.wakers[index] = Some(waker.clone());
            Self(index)
        })
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let waker = TASKS.try_with(|tasks| {
            let mut tasks = tasks.borrow_mut();
            tasks.free.push(self.0);
            tasks.wakers[self.0].take()
        });
        drop(waker);
    }
}

fn task_count() -> usize {
    TASKS.with(|tasks| {
        let tasks = tasks.borrow();
        tasks.wakers.len() - tasks.free.len()
    })
}

/// A loop that the calling thread is in.
pub(super) struct Loop {
    remote: Arc<Remote>,
    after: Aftermath,
}

/// Wakes the future of `block_on`, which is no task.
struct Main {
    woken: AtomicBool,
    remote: Arc<Remote>,
}

impl Wake for Main {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        if CURRENT.try_with(Cell::get) != Ok(self.remote.shared.id) {
            self.remote.shared.notify();
        }
    }
}

impl Loop {
    /// Enters a loop on this thread; `None` where it is in one already.
    pub(super) fn enter(options: RingOptions) -> Option<Self> {
        if is_in_loop() {
            return None;
        }
        let shared = driver::enter(options);
        CURRENT.with(|current| current.set(shared.id));
        crate::memory::set_thread_must_not_block(true);
        let orders = AtomicU8::new(Orders::Run as u8);
        let remote = Arc::new(Remote { shared, ready: Mutex::default(), orders });
        REMOTE.with(|slot| *slot.borrow_mut() = Some(Arc::clone(&remote)));
        Some(Self { remote, after: Aftermath::default() })
    }

    pub(super) fn remote(&self) -> Arc<Remote> {
        Arc::clone(&self.remote)
    }

    /// Runs tasks until `future` is ready.
    pub(super) fn run_until<F: Future>(&mut self, mut future: Pin<&mut F>) -> F::Output {
        let main = Arc::new(Main { woken: AtomicBool::new(true), remote: Arc::clone(&self.remote) });
        let waker = Waker::from(Arc::clone(&main));
        let mut context = Context::from_waker(&waker);
        loop {
            if main.woken.load(Ordering::Relaxed)
                && main.woken.swap(false, Ordering::Acquire)
                && let Poll::Ready(output) = future.as_mut().poll(&mut context)
            {
                return output;
            }
            self.run_ready();
            let idle = !main.woken.load(Ordering::Acquire);
            self.turn(idle);
        }
    }

    /// Runs tasks until ordered to end.
    pub(super) fn run_orders(&mut self) {
        loop {
            match self.remote.orders() {
                Orders::Run => {}
                Orders::Finish if task_count() == 0 && self.is_idle() => return,
                Orders::Finish => {}
                Orders::Stop => return,
            }
            self.run_ready();
            let may_sleep = self.remote.orders() == Orders::Run || task_count() > 0;
            self.turn(may_sleep);
        }
    }

    fn is_idle(&self) -> bool {
        let remote = self.remote.ready.lock().unwrap_or_else(PoisonError::into_inner);
        remote.is_empty() && READY.with(|ready| ready.borrow().is_empty())
    }

    /// Runs what is ready now, once: what gets ready meanwhile comes after the I/O.
    fn run_ready(&mut self) {
        if self.remote.shared.take_notification() {
            self.fetch();
        }
        let count = READY.with(|ready| ready.borrow().len());
        for _ in 0..count {
            let Some(runnable) = READY.with(|ready| ready.borrow_mut().pop_front()) else { return };
            runnable.run();
        }
    }

    /// Fetches what other threads woke.
    fn fetch(&self) {
        let mut remote = self.remote.ready.lock().unwrap_or_else(PoisonError::into_inner);
        READY.with(|ready| ready.borrow_mut().extend(remote.drain(..)));
    }

    fn turn(&mut self, may_sleep: bool) {
        let idle = READY.with(|ready| ready.borrow().is_empty());
        driver::turn(may_sleep && idle, &mut self.after);
    }

    /// Drops every task that has not ended.
    fn drop_tasks(&mut self) {
        loop {
            let wakers: Vec<Waker> =
                TASKS.with(|tasks| tasks.borrow().wakers.iter().flatten().cloned().collect());
            wakers.into_iter().for_each(Waker::wake);
            self.fetch();
            let ready = READY.with(|ready| std::mem::take(&mut *ready.borrow_mut()));
            if ready.is_empty() {
                return;
            }
            drop(ready);
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.drop_tasks();
        driver::leave(&mut self.after);
        // What woke tasks while draining has found none; what was spawned meanwhile goes too.
        self.drop_tasks();
        crate::memory::set_thread_must_not_block(false);
        REMOTE.with(|slot| slot.borrow_mut().take());
        CURRENT.with(|current| current.set(0));
    }
}
