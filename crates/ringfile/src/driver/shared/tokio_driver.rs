//! A shared driver in place of an I/O thread: the thread that starts an operation submits it.
//!
//! Knows drivers and remote requests, and no executor: a *collector* waits for [`TokioDriver::signal`], and calls
//! [`TokioDriver::work`] when that is readable, so that completions are collected while no thread starts anything.
//! Invariants:
//!
//! - no user code runs while a thread uses the driver, and no thread waits for it: it leaves its request as mail, for the
//!   thread that has the driver;
//! - while an operation is in flight, a timer checks at intervals whether anybody collects completions, and does so if
//!   not: the collector may be unable to run for long, or have ended. While that happens time and again, the runtime's threads
//!   compute, and operations go elsewhere;
//! - a forked child has neither the operations nor the collector, and never uses the driver.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering::{Equal, Greater, Less};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use super::exclusive::Exclusive;
use crate::caught::caught;
use crate::driver::mail::shared::{RemoteRequest, Shared};
use crate::driver::mail::sleep::Asleep;
use crate::driver::op::Request;
use crate::driver::target::Target;
use crate::driver::target::port_kind::PortKind;
use crate::driver::turn::deferred::Deferred;
use crate::driver::turn::state::Driver;
use crate::error::Error;
use crate::lock::Lock;
use crate::timer::wake_at;

/// How long completions may lie uncollected.
const PATIENCE: Duration = Duration::from_millis(1);
/// Backs off: after so many looks without a completion the interval grows by one [`PATIENCE`], up to [`MOST_PATIENCE`].
const VAIN_LOOKS: u32 = 8;
/// The longest interval, in [`PATIENCE`].
const MOST_PATIENCE: u32 = 4;
/// After this many looks in a row that found nothing in flight, the timer is not set again. Setting it later takes a lock,
/// and may wake a thread.
const IDLE_LOOKS: u32 = 8;
/// After this many turns in a row, a thread leaves the rest to the collector: others may add work all the time.
const MOST_TURNS: usize = 8;
/// How many operations go elsewhere at most before one is tried here again: of so many, a runtime whose threads always compute
/// sees one late.
const LONGEST_DETOUR: u32 = 1024;
/// While at least this many operations are in flight, the collector submits those that are started, together: the device has
/// enough to do meanwhile. With 16 tasks, a quarter of the rate was lost when the collector submitted all of them.
const ENOUGH_IN_FLIGHT: usize = 16;

/// See the module.
pub(super) struct TokioDriver {
    driver: Exclusive<Box<Driver>, Arc<Shared>>,
    pub(super) shared: Arc<Shared>,
    /// The wake-up descriptor, which the ring's completions signal too: it is readable when there is something to do.
    /// It is never read, so wait for edges.
    pub(super) signal: Arc<OwnedFd>,
    collector: Lock<Option<Waker>>,
    /// How many turns the driver has made.
    turns: AtomicU32,
    /// How many operations were in flight after the last one.
    in_flight: AtomicUsize,
    /// How many of the next operations go elsewhere.
    detour: AtomicU32,
    watch: Watch,
}

/// The timer; see the module.
#[derive(Default)]
struct Watch {
    is_set: AtomicBool,
    /// How many turns the driver had made at the last look.
    seen: AtomicU32,
    /// How many looks in a row found nothing in flight.
    idle: AtomicU32,
    /// How many looks in a row found that nobody had collected, and nothing to collect.
    vain: AtomicU32,
    /// How long the last detour was: twice as long as the one before, unless threads of the runtime have collected since.
    detour: AtomicU32,
}

impl TokioDriver {
    /// Makes the driver and its ring.
    ///
    /// # Errors
    /// Those of [`Driver::make_collected`].
    pub(super) fn new() -> Result<Arc<Self>, Error> {
        let mut driver = Driver::for_threads();
        let signal = driver.make_collected()?;
        let shared = Arc::clone(driver.shared());
        Ok(Arc::new(Self {
            driver: Exclusive::new(driver, Arc::clone(&shared)),
            shared,
            signal,
            collector: Lock::default(),
            turns: AtomicU32::new(0),
            in_flight: AtomicUsize::new(0),
            detour: AtomicU32::new(0),
            watch: Watch::default(),
        }))
    }

    /// Returns whether an operation is to be sent here: not if it may wait forever, since its cancellation may have to be
    /// repeated, nor if its ring does not announce completions, nor while operations go elsewhere.
    pub(super) fn takes(&self, target: &Target, request: &Request) -> bool {
        !self.shared.is_inherited()
            && target.ring_for(request.kind) == PortKind::Main
            && !target.may_wait_forever(request.kind)
            && !self.makes_a_detour()
    }

    /// Returns whether the next operation goes elsewhere. Threads that ask at once may make the detour longer.
    fn makes_a_detour(&self) -> bool {
        let left = self.detour.load(Ordering::Relaxed);
        if left > 0 {
            self.detour.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// Submits a remote request `at_once`, or lets the collector submit it together with others that follow. Returns the shared
    /// part of the driver. Returns the request if no timer can be set, so that nobody might collect.
    pub(super) fn send(
        self: &Arc<Self>,
        remote: RemoteRequest,
        at_once: bool,
    ) -> Result<Arc<Shared>, RemoteRequest> {
        if !self.is_watched() {
            return Err(remote);
        }
        let mut remote = Some(remote);
        let submits = at_once && !self.has_enough();
        if submits {
            self.work_with(&mut remote);
        }
        if let Some(remote) = remote {
            self.shared.lock().remotes.push(remote);
            self.shared.sleep.mail_came();
            if submits || !self.wake_collector() {
                self.work();
            }
        }
        fence(Ordering::SeqCst);
        // The watch may have ended since, when it saw nothing in flight.
        self.is_watched();
        Ok(Arc::clone(&self.shared))
    }

    /// Sets the timer, unless it is set. Returns false if it cannot be set.
    fn is_watched(self: &Arc<Self>) -> bool {
        let is_set = &self.watch.is_set;
        is_set.load(Ordering::SeqCst) || is_set.swap(true, Ordering::SeqCst) || self.set_timer()
    }

    /// Returns whether so much is in flight that the collector submits, after other tasks.
    pub(super) fn has_enough(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) >= ENOUGH_IN_FLIGHT
    }

    /// Returns false if there is no collector.
    fn wake_collector(&self) -> bool {
        if self.shared.sleep.notify() == Asleep::InRing {
            let collector = self.collector.lock().clone();
            let has_one = collector.is_some();
            collector.into_iter().for_each(Waker::wake);
            return has_one;
        }
        self.collector.lock().is_some()
    }

    /// Starts and submits what was sent, and collects completions, unless another thread does. Wakes tasks.
    pub(super) fn work(&self) {
        self.work_with(&mut None);
    }

    /// Does what [`work`](Self::work) does, and starts this request first. Leaves it if another thread has the driver.
    fn work_with(&self, remote: &mut Option<RemoteRequest>) {
        if self.shared.is_inherited() {
            return;
        }
        thread_local! {
            static SPARE: Cell<Option<Box<Deferred>>> = const { Cell::new(None) };
        }
        let deferred = RefCell::new(SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default());
        let must_turn = Cell::new(false);
        let turn = |driver: &mut Box<Driver>| {
            self.turns.fetch_add(1, Ordering::Relaxed);
            let mut deferred = deferred.borrow_mut();
            let (in_flight, must_turn_again, has_collected) =
                driver.turn_with_mail(remote.take(), &mut deferred);
            self.in_flight.store(in_flight, Ordering::Relaxed);
            if has_collected && self.watch.detour.load(Ordering::Relaxed) > 0 {
                self.watch.detour.store(0, Ordering::Relaxed);
            }
            must_turn.set(must_turn_again);
        };
        // A task must not fail for the waker of another.
        let settle = || {
            const PANICKED: &str = "a waker or a buffer panicked on a thread of a tokio runtime";
            while caught(PANICKED, || deferred.borrow_mut().settle()).is_none() {}
        };
        let is_done = || !must_turn.get() && !self.shared.sleep.has_mail();
        if !self.driver.try_each(MOST_TURNS, turn, settle, is_done) {
            self.wake_collector();
        }
        let _ = SPARE.try_with(|spare| spare.set(Some(deferred.into_inner())));
    }

    /// Called by the collector before it works; `waker` wakes it.
    pub(super) fn collector_runs(&self, waker: &Waker) {
        let is_known = self.collector.lock().as_ref().is_some_and(|known| known.will_wake(waker));
        if !is_known {
            self.set_collector(Some(waker.clone()));
        }
        self.shared.sleep.woke();
        self.shared.sleep.take_notification();
    }

    /// Changes the waker of the collector. Without one, only threads that send something and the timer collect.
    pub(super) fn set_collector(&self, collector: Option<Waker>) {
        let before = std::mem::replace(&mut *self.collector.lock(), collector);
        // Dropped without the lock, since that may run user code.
        drop(before);
    }

    /// Sets the timer, which is set once at a time. It holds the driver until then. Returns false if no thread can be started.
    fn set_timer(self: &Arc<Self>) -> bool {
        let vain = self.watch.vain.load(Ordering::Relaxed);
        let patience = PATIENCE * (1 + vain / VAIN_LOOKS).min(MOST_PATIENCE);
        let timer = wake_at(Instant::now() + patience, Waker::from(Arc::clone(self)));
        if timer.is_none() {
            self.watch.is_set.store(false, Ordering::SeqCst);
        }
        let is_set = timer.is_some();
        // Dropping it would cancel it.
        std::mem::forget(timer);
        is_set
    }

    /// Works if nobody has since the last look, or a request came while this thread looked.
    fn collect_for_others(&self) {
        let Watch { seen, idle, vain, detour, .. } = &self.watch;
        idle.store(0, Ordering::Relaxed);
        let has_mail = self.shared.sleep.has_mail();
        let mut looks = 0;
        if has_mail || seen.load(Ordering::Relaxed) == self.turns.load(Ordering::Relaxed) {
            let before = self.in_flight.load(Ordering::Relaxed);
            let last = detour.load(Ordering::Relaxed);
            self.work();
            match self.in_flight.load(Ordering::Relaxed).cmp(&before) {
                Less => {
                    let length = (last * 2).clamp(1, LONGEST_DETOUR);
                    detour.store(length, Ordering::Relaxed);
                    // Not the first time: any thread may be late once.
                    self.detour.store(length - 1, Ordering::Relaxed);
                }
                Equal => looks = vain.load(Ordering::Relaxed).saturating_add(1),
                Greater => {}
            }
        }
        vain.store(looks, Ordering::Relaxed);
        seen.store(self.turns.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns whether nothing is in flight; `None` if a thread uses the driver.
    fn is_idle(&self) -> Option<bool> {
        self.driver.try_lock().map(|state| state.subject.is_idle() && !self.shared.sleep.has_mail())
    }

    /// Returns whether the timer need not be set again.
    fn may_end_watch(&self) -> bool {
        if self.watch.idle.fetch_add(1, Ordering::Relaxed) < IDLE_LOOKS {
            return false;
        }
        self.watch.idle.store(0, Ordering::Relaxed);
        // A thread that sends something sees this afterwards, or has sent it before the next look.
        self.watch.is_set.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.is_idle() == Some(true) || self.watch.is_set.swap(true, Ordering::SeqCst)
    }
}

impl Wake for TokioDriver {
    /// Called when the time of the [watch](Watch) has come.
    fn wake(self: Arc<Self>) {
        if self.shared.is_inherited() {
            return;
        }
        let is_idle = self.is_idle();
        if is_idle == Some(true) && self.may_end_watch() {
            return;
        }
        self.set_timer();
        match is_idle {
            None => {}
            Some(true) => self.watch.vain.store(0, Ordering::Relaxed),
            Some(false) => self.collect_for_others(),
        }
    }
}
