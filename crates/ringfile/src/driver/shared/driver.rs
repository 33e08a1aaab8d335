//! A driver that belongs to no thread: several use it, one at a time.
//!
//! Knows drivers and their rings, and nothing of what the operations are for ([`User`]). Invariants:
//!
//! - a thread has its own driver again when [`run`](SharedDriver::run) ends, even if user code panics in it;
//! - a thread that sleeps without the driver ([`LeaderSleep`]) touches nothing of it but descriptors, which it keeps open.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::exclusive::{Exclusive, ExclusiveState, Outside, Subject};
use super::sync::MutexGuard;
use crate::driver::mail::shared::Shared;
use crate::driver::ports::SleepIn;
use crate::driver::turn::state::{Driver, with};
use crate::driver::turn::threads::{SwappedIn, is_swapped_in};

/// How long a thread waits before it asks again, if the kernel has refused operations, or nothing would wake the thread.
const PAUSE: Duration = Duration::from_millis(1);

/// What the threads use together with the driver.
pub(crate) trait User {
    /// Returns a number that changes whenever something has ended that a thread may wait for.
    fn open(&self) -> usize;

    /// Returns whether operations are in flight elsewhere than in the driver.
    fn has_some_elsewhere(&self) -> bool;

    /// Makes the ends of those operations wake this thread, which has the driver; false if one has ended already.
    fn listen(&mut self) -> bool;

    /// Drops what is left, on a thread that has the driver.
    fn clear(&mut self);
}

/// See the module.
pub(crate) struct SharedDriver<T: User>(Exclusive<WithDriver<T>, Arc<Shared>>);

struct WithDriver<T: User> {
    user: T,
    /// `None` while it is in place of a thread's own.
    driver: Option<Box<Driver>>,
    /// Whether completions of the ring wake the leader, and whether the ends of operations elsewhere do.
    hears_ring: bool,
    hears_others: bool,
}

impl<T: User> SharedDriver<T> {
    pub(crate) fn new(user: T) -> Self {
        let mut driver = Driver::for_threads();
        driver.signal_ends();
        let shared = Arc::clone(driver.shared());
        let contents = WithDriver { user, driver: Some(driver), hears_ring: false, hears_others: false };
        Self(Exclusive::new(contents, shared))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.outside
    }

    /// Waits until no other thread uses the driver.
    pub(crate) fn lock(&self) -> LockedDriver<'_, T> {
        LockedDriver { of: &self.0, state: self.0.lock() }
    }

    /// Does what [`lock`](Self::lock) does, but does not wait.
    pub(crate) fn try_lock(&self) -> Option<LockedDriver<'_, T>> {
        Some(LockedDriver { of: &self.0, state: self.0.try_lock()? })
    }

    /// Runs `act` while this is the calling thread's driver, and no other thread uses it.
    pub(crate) fn run<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        self.lock().run(act)
    }

    /// Calls `ready` as [`run`](Self::run) does until it returns something, and sleeps meanwhile, for all that wait. `None` if it may not
    /// wait, or the deadline has passed.
    pub(crate) fn wait_until<R>(
        &self,
        may_wait: bool,
        deadline: Option<Instant>,
        mut ready: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<R> {
        self.0.wait_until(may_wait, deadline, |contents| contents.run(&mut ready))
    }
}

/// A driver that no other thread uses.
pub(crate) struct LockedDriver<'a, T: User> {
    of: &'a Exclusive<WithDriver<T>, Arc<Shared>>,
    state: MutexGuard<'a, ExclusiveState<WithDriver<T>>>,
}

impl<T: User> LockedDriver<'_, T> {
    pub(crate) fn user(&mut self) -> &mut T {
        &mut self.state.subject.user
    }

    /// Runs `act` while this is the calling thread's driver.
    pub(crate) fn run<R>(&mut self, act: impl FnOnce(&mut T) -> R) -> R {
        self.of.collect(&mut self.state, |contents| contents.run(act))
    }
}

impl<T: User> WithDriver<T> {
    /// Afterwards, other threads can wake the leader that sleeps in the ring, if this one has taken the last message that the
    /// ring was told to expect.
    fn run<R>(&mut self, act: impl FnOnce(&mut T) -> R) -> R {
        let _swapped = SwappedIn::begin(&mut self.driver);
        act(&mut self.user)
    }
}

impl<T: User> Subject for WithDriver<T> {
    type Outside = Arc<Shared>;
    type Sleep = LeaderSleep;

    fn open(&self) -> usize {
        self.user.open()
    }

    fn prepare_sleep(&mut self) -> Option<LeaderSleep> {
        let sleep = self.run(|user| if user.listen() { LeaderSleep::prepare() } else { None })?;
        (self.hears_ring, self.hears_others) = (sleep.is_in_ring(), self.user.has_some_elsewhere());
        Some(sleep)
    }

    fn must_look(&self) -> bool {
        let is_deaf = self.user.has_some_elsewhere() && !self.hears_others;
        is_deaf || self.driver.as_ref().is_some_and(|driver| driver.must_look(self.hears_ring))
    }

    fn sleep(sleep: LeaderSleep, deadline: Option<Instant>) {
        sleep.sleep(deadline);
    }
}

const INSIDE: &str = "a shared queue was used by user code that it runs itself: a subscriber of events, or the destructor \
    of a buffer";
const FORKED: &str = "this is a forked child, and a thread of its parent was using the shared queue at the fork: make a new \
    queue in the child";

impl Outside for Arc<Shared> {
    fn assert_may_block(&self) {
        assert!(!is_swapped_in(self), "{INSIDE}");
        assert!(!self.is_inherited(), "{FORKED}");
    }

    fn begin_look(&self) {
        self.sleep.take_notification();
    }

    fn was_told(&self) -> bool {
        self.sleep.is_notified()
    }

    fn wake(&self) {
        self.ring_wakeup();
    }
}

impl<T: User> Drop for WithDriver<T> {
    fn drop(&mut self) {
        self.run(T::clear);
    }
}

/// Where a thread sleeps without the driver until that has something to do.
struct LeaderSleep {
    shared: Arc<Shared>,
    sleep_in: SleepIn,
    /// When to look even if nothing has happened.
    latest: Option<Instant>,
}

impl LeaderSleep {
    /// Returns where to sleep; `None` if there is something to do first. Called after a turn of it, in place of the thread's own.
    fn prepare() -> Option<Self> {
        with(|driver| {
            let (sleep_in, latest) = driver.about_to_sleep()?;
            Some(Self { shared: Arc::clone(driver.shared()), sleep_in, latest })
        })
        .flatten()
    }

    /// Returns whether completions of the ring end the sleep.
    fn is_in_ring(&self) -> bool {
        matches!(self.sleep_in, SleepIn::Ring(_))
    }

    /// Sleeps until the driver has something to do, or until the deadline.
    fn sleep(self, deadline: Option<Instant>) {
        let latest = self.latest.into_iter().chain(deadline).min();
        let at_most = latest.map(|latest| latest.saturating_duration_since(Instant::now()));
        match &self.sleep_in {
            // The caller looks in any case.
            SleepIn::Ring(ring) => match ring.sleep(at_most).map_err(|error| error.raw_os_error()) {
                Ok(()) | Err(Some(libc::EINTR | libc::ETIME)) => {}
                // The ring cannot be entered, for instance since a sandbox forbids it now.
                Err(_) => std::thread::sleep(PAUSE),
            },
            SleepIn::Poll(wakeup) => {
                let timeout = at_most.and_then(|at_most| Timespec::try_from(at_most).ok());
                let _ = poll(&mut [PollFd::new(wakeup, PollFlags::IN)], timeout.as_ref());
                // Before the next look, which finds all that was signalled.
                self.shared.reset_wakeup();
            }
            SleepIn::Pause => std::thread::sleep(at_most.unwrap_or(PAUSE).min(PAUSE)),
        }
        self.shared.sleep.woke();
    }
}
