//! A driver that belongs to no thread: each thread that uses it has it in place of its own for a while.
//!
//! Knows drivers and their rings, and nothing of what the operations are for. The caller has a lock, so that one thread
//! at a time uses the driver, and gives that lock up while it waits ([`Bed`]). Invariants:
//!
//! - a thread has its own driver again when the [visit](RovingDriver::visit) ends, even if user code panics in it;
//! - a thread that sleeps in a [`Bed`] touches nothing of the driver's but descriptors, which the bed keeps open.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::forks::new_driver;
use super::leave::THREAD_RINGS;
use super::ports::Rest;
use super::shared::Shared;
use super::state::{DRIVER, Driver, with};
use crate::ring::RingOptions;

/// How long a thread waits before it asks again, if the kernel has refused operations, or nothing would wake the thread.
const PAUSE: Duration = Duration::from_millis(1);

/// See the module.
pub(crate) struct RovingDriver {
    /// `None` during a visit.
    driver: Option<Box<Driver>>,
    pub(crate) shared: Arc<Shared>,
}

impl RovingDriver {
    pub(crate) fn new() -> Self {
        let mut driver = new_driver(RingOptions::joint());
        // A failure shows when the descriptor is needed.
        let _ = driver.ports.signal_ends();
        let shared = Arc::clone(&driver.shared);
        Self { driver: Some(driver), shared }
    }

    /// Runs `act` while this is the calling thread's driver.
    ///
    /// Afterwards, other threads can wake the one that sleeps in the ring, if this one has taken the last message that the
    /// ring was told to expect.
    pub(crate) fn visit<R>(&mut self, act: impl FnOnce() -> R) -> R {
        let _visit = Visit::begin(&mut self.driver, self.shared.id);
        act()
    }

    /// Returns whether a thread that sleeps must look although nothing has ended: its bed is not `in_ring` and there is a ring
    /// now, or the driver has to go on with something that nothing announces.
    pub(crate) fn must_look(&self, in_ring: bool) -> bool {
        self.driver.as_ref().is_some_and(|driver| {
            driver.ports.main.is_some() != in_ring
                || driver.ports.are_refused()
                || !driver.asked.keys.is_empty()
                || driver.must_turn_again()
                || driver.ports.aio.keeps_awake()
        })
    }

    /// Returns whether the calling thread is in a visit of this driver.
    pub(crate) fn is_visited_here(shared: &Shared) -> bool {
        VISITED.get().contains(&shared.id)
    }
}

/// How many visits may be nested, one in user code that runs in another.
const MOST_NESTED: usize = 8;

thread_local! {
    /// The drivers that the thread visits, by id, the outermost first; then 0. Without a destructor, so that it can be
    /// used as long as [`DRIVER`].
    static VISITED: Cell<[u64; MOST_NESTED]> = const { Cell::new([0; MOST_NESTED]) };
}

/// Returns whether the thread's own driver is not in its place.
pub(super) fn is_visiting() -> bool {
    VISITED.get()[0] != 0
}

struct Visit<'a> {
    place: &'a mut Option<Box<Driver>>,
    /// Its place among those [visited](VISITED).
    depth: usize,
}

impl<'a> Visit<'a> {
    fn begin(place: &'a mut Option<Box<Driver>>, id: u64) -> Self {
        let mut visited = VISITED.get();
        let depth = visited.iter().position(|&id| id == 0);
        let depth = depth.expect("shared queues are used inside each other's calls too deeply");
        visited[depth] = id;
        VISITED.set(visited);
        swap(place);
        // User code may run a batch meanwhile, and must not release this driver with it.
        let _ = THREAD_RINGS.try_with(|count| count.set(count.get() + 1));
        Self { place, depth }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        with(Driver::listen);
        let _ = THREAD_RINGS.try_with(|count| count.set(count.get() - 1));
        swap(self.place);
        let mut visited = VISITED.get();
        visited[self.depth] = 0;
        VISITED.set(visited);
    }
}

/// Called with no driver borrowed.
fn swap(place: &mut Option<Box<Driver>>) {
    DRIVER.with(|cell| std::mem::swap(&mut *cell.borrow_mut(), place));
}

/// Where a thread sleeps until the driver that it has just visited has something to do.
pub(crate) struct Bed {
    shared: Arc<Shared>,
    rest: Rest,
    /// When to look even if nothing has happened.
    latest: Option<Instant>,
}

/// Returns where to sleep; `None` if there is something to do first. Called in a visit, after a turn.
pub(crate) fn make_bed() -> Option<Bed> {
    with(|driver| {
        let rest = driver.ports.rest(!driver.waiting.is_empty())?;
        let bed = Bed { shared: Arc::clone(&driver.shared), rest, latest: driver.asked.limit(None) };
        (driver.ports.are_refused() || driver.shared.sleep.about_to_sleep_in_ring()).then_some(bed)
    })
    .flatten()
}

impl Bed {
    /// Returns whether completions of the ring end the sleep.
    pub(crate) fn is_in_ring(&self) -> bool {
        matches!(self.rest, Rest::InRing(_))
    }

    /// Sleeps until the driver has something to do, or until the deadline, without the driver.
    pub(crate) fn sleep(self, deadline: Option<Instant>) {
        let latest = self.latest.into_iter().chain(deadline).min();
        let at_most = latest.map(|latest| latest.saturating_duration_since(Instant::now()));
        match &self.rest {
            // The caller looks in any case.
            Rest::InRing(ring) => match ring.sleep(at_most).map_err(|error| error.raw_os_error()) {
                Ok(()) | Err(Some(libc::EINTR | libc::ETIME)) => {}
                // The ring cannot be entered, for instance since a sandbox forbids it now.
                Err(_) => std::thread::sleep(PAUSE),
            },
            Rest::On(wakeup) => {
                let timeout = at_most.and_then(|at_most| Timespec::try_from(at_most).ok());
                let _ = poll(&mut [PollFd::new(wakeup, PollFlags::IN)], timeout.as_ref());
                // Before the next look, which finds all that was signalled.
                self.shared.reset_wakeup();
            }
            Rest::Briefly => std::thread::sleep(at_most.unwrap_or(PAUSE).min(PAUSE)),
        }
        self.shared.sleep.woke();
    }
}
