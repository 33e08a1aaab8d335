//! The part of a driver that other threads may touch: waking its thread, results that wait for a future which moved,
//! and counts.
//!
//! An operation that stays on its thread never comes here. Invariants:
//!
//! - a thread that forks holds every lock here, so that the child finds them free;
//! - a thread that was notified before it slept does not sleep, and one that sleeps is woken ([`SleepState`]);
//! - once a thread has left its loop, every result that was not taken is in `finished`.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, Weak};
use std::task::{Wake, Waker};
use std::time::Instant;

use rustix::thread::futex;

use super::remote::{self, Sender};
use super::sleep::{Asleep, SleepState};
use crate::counters::Counters;
use crate::driver::slots::handler::{Finished, Handler};
use crate::driver::slots::key::Key;
use crate::driver::slots::wake::TaskNumber;
use crate::lock::Lock;
use crate::ring::Ring;
use ringfile_buffer::internal::fork;

/// A message of another thread to a driver, about operations in flight. Only a thread in its loop has such operations; no
/// message is kept for other threads, which might never read it.
pub(crate) enum Mail {
    /// A future is now polled on another thread: its result goes to `finished`.
    Watch(Key),
    /// A future was dropped on another thread.
    Cancel(Key),
    /// Some or all results of this handler's remote requests are no longer wanted.
    CancelRemote(Arc<dyn Handler>),
    /// The driver with this number leaves its loop: operations for it that may wait forever are cancelled.
    CancelGuarded(u64),
}

#[derive(Default)]
pub(crate) struct SharedState {
    /// Whether the thread is in its loop, so that mail gets read.
    pub in_loop: bool,
    pub mail: Vec<Mail>,
    /// Operations that this thread carries out for other threads.
    pub remotes: Vec<RemoteRequest>,
    pub finished: HashMap<Key, Finished>,
    pub wakers: HashMap<Key, Waker>,
    /// Whether the thread has ended.
    pub closed: bool,
}

/// Messages of other threads to the loop of a driver's thread.
#[derive(Default)]
pub(crate) struct LoopMail {
    pub woken: Vec<TaskNumber>,
    pub calls: Vec<PostedCall>,
    /// Whether the loop has ended.
    pub closed: bool,
}

/// A function to run on the thread.
pub(crate) type PostedCall = Box<dyn FnOnce() + Send>;

pub(crate) struct Shared {
    pub id: u64,
    pub sleep: SleepState,
    /// The wake-up descriptor, which the driver owns: results that were not taken may keep this alive much longer than
    /// the thread.
    eventfd: OnceLock<Weak<OwnedFd>>,
    /// The number of times that the thread was woken while it slept without a ring. Not `thread::park`: in the
    /// destructors of pthread keys, an ending thread has no handle, and asking for it panics.
    unparks: AtomicU32,
    /// Operations of this thread's loop that other threads carry out: each must end before the thread leaves the loop.
    remotes: AtomicUsize,
    /// Whether the thread is leaving its loop, and waits for `remotes`.
    pub leaving: AtomicBool,
    process: fork::Mark,
    inner: Lock<SharedState>,
    tasks: Lock<LoopMail>,
    pub counters: Counters,
}

impl Shared {
    pub(crate) fn new(id: u64) -> Self {
        Self {
            id,
            sleep: SleepState::new(),
            eventfd: OnceLock::new(),
            unparks: AtomicU32::new(0),
            remotes: AtomicUsize::new(0),
            leaving: AtomicBool::new(false),
            process: fork::Mark::current(),
            inner: Lock::default(),
            tasks: Lock::default(),
            counters: Counters::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.inner.lock()
    }

    /// Locks the messages to the thread's loop.
    pub(crate) fn tasks(&self) -> MutexGuard<'_, LoopMail> {
        self.tasks.lock()
    }

    /// Posts a message to the thread's loop, and wakes it. `put` is dropped instead, not under the lock, if the loop has
    /// ended, or if its thread exists only in the process that forked this one.
    pub(crate) fn post_to_loop(&self, put: impl FnOnce(&mut LoopMail)) {
        if self.has_gone() {
            return;
        }
        let mut tasks = self.tasks();
        if tasks.closed {
            drop(tasks);
            drop(put);
            return;
        }
        put(&mut tasks);
        drop(tasks);
        self.notify();
    }

    /// Posts a message to the thread, and wakes it.
    pub(crate) fn post(&self, mail: Mail) {
        let mut inner = self.lock();
        self.post_locked(&mut inner, mail);
    }

    /// Does what [`post`](Self::post) does; the caller has locked `inner`.
    pub(crate) fn post_locked(&self, inner: &mut SharedState, mail: Mail) {
        if inner.in_loop && !self.has_gone() {
            inner.mail.push(mail);
            self.sleep.mail_came();
            self.notify();
        }
    }

    /// Keeps the thread in its loop, for a request that it sends.
    pub(crate) fn guard_loop(self: Arc<Self>) -> LoopGuard {
        self.remotes.fetch_add(1, Ordering::Relaxed);
        LoopGuard(self)
    }

    /// Returns whether other threads carry out operations for this one; in a forked child they belong to the parent.
    pub(crate) fn has_remotes(&self) -> bool {
        self.remotes.load(Ordering::SeqCst) > 0 && self.process.is_current()
    }

    /// Returns whether this process is a forked child and the driver belongs to its parent.
    pub(crate) fn is_inherited(&self) -> bool {
        !self.process.is_current()
    }

    /// Returns whether this is a forked child without this driver's thread: a child has only the thread that forked.
    pub(crate) fn has_gone(&self) -> bool {
        self.is_inherited() && self.id != FORKED_BY.load(Ordering::Relaxed)
    }

    /// Makes the thread cancel the remote requests that a handler no longer wants. The message keeps the handler alive
    /// until then, so that no other handler has its address.
    pub(crate) fn post_cancellation(&self, handler: Arc<dyn Handler>) {
        // In a forked child the thread does not exist.
        if !self.is_inherited() {
            self.post(Mail::CancelRemote(handler));
        }
    }

    /// Returns the descriptor that wakes a thread which sleeps in its ring, made once. `own` is the driver's.
    pub(crate) fn eventfd(&self, own: &mut Option<Arc<OwnedFd>>) -> std::io::Result<i32> {
        if let Some(fd) = own {
            return Ok(fd.as_raw_fd());
        }
        let fd = own.insert(Ring::make_signal()?);
        self.eventfd.get_or_init(|| Arc::downgrade(fd));
        Ok(fd.as_raw_fd())
    }

    /// Returns the wake-up descriptor, if it was created and the thread has not ended.
    fn wakeup(&self) -> Option<Arc<OwnedFd>> {
        self.eventfd.get().and_then(Weak::upgrade)
    }

    /// Makes the thread check its mail and queues soon: at once if it sleeps, otherwise before it sleeps.
    pub(crate) fn notify(&self) {
        match self.sleep.notify() {
            Asleep::InRing => self.ring_wakeup(),
            Asleep::Parked => {
                self.unparks.fetch_add(1, Ordering::SeqCst);
                // The call cannot fail for a valid address.
                let _ = futex::wake(&self.unparks, futex::Flags::PRIVATE, 1);
            }
            Asleep::None => {}
        }
    }

    /// Signals the wake-up descriptor, if there is one.
    pub(crate) fn ring_wakeup(&self) {
        if let Some(fd) = self.wakeup() {
            // It cannot block: the counter would have to be near its 64-bit limit.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// Resets the wake-up descriptor, which a poll would otherwise find readable forever.
    pub(crate) fn reset_wakeup(&self) {
        if let Some(fd) = self.wakeup() {
            let _ = rustix::io::read(fd, &mut [0u8; 8]);
        }
    }

    /// Sleeps without a ring until notified, or until the deadline.
    pub(crate) fn park(&self, deadline: Option<Instant>) {
        if !self.sleep.about_to_park() {
            return;
        }
        loop {
            let unparks = self.unparks.load(Ordering::SeqCst);
            if !self.sleep.is_parked() {
                return;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return self.sleep.gave_up_parking();
            }
            let left = left.and_then(|left| futex::Timespec::try_from(left).ok());
            // The thread was woken, timed out, or was interrupted: the check above decides.
            let _ = futex::wait(&self.unparks, futex::Flags::PRIVATE, unparks, left.as_ref());
        }
    }

    /// Returns a waker that only notifies.
    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }
}

/// Keeps a thread from leaving its loop.
pub(crate) struct LoopGuard(Arc<Shared>);

/// A remote request, which keeps the thread that has sent it in its loop.
pub(crate) type RemoteRequest = remote::SentRequest<LoopGuard>;

impl Sender for LoopGuard {
    fn id(&self) -> u64 {
        self.0.id
    }

    fn is_leaving(&self) -> bool {
        self.0.leaving.load(Ordering::Relaxed)
    }
}

impl Drop for LoopGuard {
    fn drop(&mut self) {
        if self.0.remotes.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.notify();
        }
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}

/// Every driver of the process, for futures that moved to another thread.
static ALL: Lock<All> = Lock::new(BTreeMap::new());

type All = BTreeMap<u64, Arc<Shared>>;

/// The driver of the thread that forked last, or 0 if it had none. Set while the list of drivers is locked.
static FORKED_BY: AtomicU64 = AtomicU64::new(0);

/// Locks the list of all drivers, and the shared part of each, for a fork by the thread with the driver `own`.
pub(crate) fn hold(own: u64) -> (MutexGuard<'static, All>, Vec<Box<dyn Any>>) {
    let all = ALL.lock();
    FORKED_BY.store(own, Ordering::Relaxed);
    let memory = all.values().flat_map(|shared| {
        [fork::hold(Arc::clone(shared), Shared::lock), fork::hold(Arc::clone(shared), Shared::tasks)]
    });
    let memory = memory.collect();
    (all, memory)
}

pub(crate) fn register(shared: &Arc<Shared>) {
    ALL.lock().insert(shared.id, Arc::clone(shared));
}

pub(crate) fn find(id: u64) -> Option<Arc<Shared>> {
    ALL.lock().get(&id).cloned()
}

pub(crate) fn everyone() -> Vec<Arc<Shared>> {
    ALL.lock().values().cloned().collect()
}

/// Visits the counters of every thread, then calls `last`; no driver is added or retired meanwhile.
pub(crate) fn for_each_driver(look: impl Fn(&Counters), last: impl FnOnce()) {
    let all = ALL.lock();
    all.values().for_each(|shared| look(&shared.counters));
    last();
}

/// Removes a driver from the list if its thread has ended, and no future waits for a result of it.
pub(crate) fn retire(shared: &Shared) {
    let mut all = ALL.lock();
    let inner = shared.lock();
    if inner.closed && inner.finished.is_empty() && all.remove(&shared.id).is_some() {
        crate::counters::retire(&shared.counters);
    }
}
