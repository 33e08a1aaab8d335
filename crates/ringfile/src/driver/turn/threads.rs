//! What the driver needs that several threads use ([`crate::driver::shared`]): its ring is made for it, and a thread may sleep
//! without it.

use std::cell::Cell;
#[cfg(feature = "tokio")]
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

#[cfg(feature = "tokio")]
use super::deferred::Deferred;
use super::forks::new_driver;
use super::leave::THREAD_RINGS;
use super::state::{DRIVER, Driver, with};
#[cfg(feature = "tokio")]
use crate::driver::mail::shared::RemoteRequest;
use crate::driver::mail::shared::Shared;
use crate::driver::ports::SleepIn;
#[cfg(feature = "tokio")]
use crate::driver::refused::Lack;
#[cfg(feature = "tokio")]
use crate::error::Error;
use crate::ring::RingOptions;

impl Driver {
    /// Creates a driver that belongs to no thread.
    pub(crate) fn for_threads() -> Box<Self> {
        new_driver(RingOptions::shared())
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Makes ends of operations signal the descriptor that a queue's user waits for. A failure shows when that is needed.
    pub(crate) fn signal_ends(&mut self) {
        let _ = self.ports.signal_ends();
    }

    /// Makes the ring, whose completions signal the wake-up descriptor from then on, and begins a loop that never ends. Returns
    /// the descriptor, which a collector waits for.
    ///
    /// # Errors
    /// If there is no ring, or if its completions would interrupt the thread that has submitted the operation (before
    /// Linux 5.19), which costs more than an I/O thread.
    #[cfg(feature = "tokio")]
    pub(crate) fn make_collected(&mut self) -> Result<Arc<OwnedFd>, Error> {
        let ports = &mut self.ports;
        ports.make_main().map_err(Lack::into_error)?;
        let no_ring = || {
            Error::from_errno(libc::EOPNOTSUPP, "attaching to a runtime")
                .because("there is no io_uring here that threads can use in turn, which needs Linux 5.19")
        };
        let signal = ports.wakeup.clone().ok_or_else(no_ring)?;
        let main = ports.main.as_mut().ok_or_else(no_ring)?;
        if !main.ring.is_cooperative() || main.ring.signal_through(&signal).is_err() {
            return Err(no_ring());
        }
        // The collector waits for the descriptor, so that the ring need not.
        main.wakeup_armed = true;
        self.in_loop = true;
        self.shared.lock().in_loop = true;
        Ok(signal)
    }

    /// Starts what was sent and `remote`, whose future is being polled, submits, and collects completions. Returns the number of
    /// operations in flight, whether another turn has something to do at once, and whether operations have ended.
    #[cfg(feature = "tokio")]
    #[inline]
    pub(crate) fn turn_with_mail(
        &mut self,
        remote: Option<RemoteRequest>,
        deferred: &mut Deferred,
    ) -> (usize, bool, bool) {
        let ended = self.counts.ops;
        self.read_mail(deferred);
        if let Some(remote) = remote {
            self.start_wanted(remote, deferred);
        }
        self.turn(false, None, 1, deferred);
        let must_turn_again = self.must_turn_again() && !self.ports.are_refused();
        (self.in_flight, must_turn_again, self.counts.ops != ended)
    }

    /// Returns where a thread sleeps without the driver until that has something to do, and when it looks although nothing has
    /// happened. `None` if there is something to do first. Called after a turn.
    pub(crate) fn about_to_sleep(&self) -> Option<(SleepIn, Option<Instant>)> {
        let sleep_in = self.ports.sleep_in(!self.waiting.is_empty())?;
        let sleeps = self.ports.are_refused() || self.shared.sleep.about_to_sleep_in_ring();
        sleeps.then(|| (sleep_in, self.asked.limit(None)))
    }

    /// Returns whether a thread that sleeps must look although nothing has ended: it does not sleep `in_ring` and there is a
    /// ring now, or the driver has to go on with something that nothing announces.
    pub(crate) fn must_look(&self, in_ring: bool) -> bool {
        self.ports.main.is_some() != in_ring
            || self.ports.are_refused()
            || !self.asked.keys.is_empty()
            || self.must_turn_again()
            || self.ports.aio.keeps_awake()
    }
}

/// How many shared drivers a thread may use at a time, one in user code that runs in calls of another.
const MOST_NESTED: usize = 8;

thread_local! {
    /// The shared drivers that the thread uses, by id, the outermost first; then 0. Without a destructor, so that it can be
    /// used as long as [`DRIVER`].
    static SWAPPED_IN: Cell<[u64; MOST_NESTED]> = const { Cell::new([0; MOST_NESTED]) };
}

/// Returns whether the thread's own driver is not in its place.
pub(super) fn is_own_swapped_out() -> bool {
    SWAPPED_IN.get()[0] != 0
}

/// Returns whether the calling thread uses this driver.
pub(crate) fn is_swapped_in(shared: &Shared) -> bool {
    SWAPPED_IN.get().contains(&shared.id)
}

/// A period in which a thread has a shared driver in place of its own.
pub(crate) struct SwappedIn<'a> {
    place: &'a mut Option<Box<Driver>>,
    /// Its place in the [list](SWAPPED_IN).
    depth: usize,
}

impl<'a> SwappedIn<'a> {
    /// Called with no driver borrowed. The shared driver is in `place`.
    pub(crate) fn begin(place: &'a mut Option<Box<Driver>>) -> Self {
        let mut list = SWAPPED_IN.get();
        let depth = list.iter().position(|&id| id == 0);
        let depth = depth.expect("shared queues are used inside each other's calls too deeply");
        list[depth] = place.as_ref().map_or(0, |driver| driver.id);
        SWAPPED_IN.set(list);
        swap(place);
        // User code may run a batch meanwhile, and must not release this driver with it.
        let _ = THREAD_RINGS.try_with(|count| count.set(count.get() + 1));
        Self { place, depth }
    }
}

impl Drop for SwappedIn<'_> {
    fn drop(&mut self) {
        with(Driver::listen);
        let _ = THREAD_RINGS.try_with(|count| count.set(count.get() - 1));
        swap(self.place);
        let mut list = SWAPPED_IN.get();
        list[self.depth] = 0;
        SWAPPED_IN.set(list);
    }
}

fn swap(place: &mut Option<Box<Driver>>) {
    DRIVER.with(|cell| std::mem::swap(&mut *cell.borrow_mut(), place));
}
