//! Entering the ports: the one place that decides in which of them a thread sleeps, and whether.
//!
//! A thread sleeps in the main ring, unless it has nothing but NVMe commands in flight: then it sleeps in their ring, and
//! one system call submits and waits, as on the main ring. Without a ring it sleeps in AIO. The other ports wake it there:
//!
//! - the ring for commands through a signal that the main ring polls. If a queue's user waits for the main ring's
//!   descriptor, both rings signal that one: a descriptor that is signalled through another is not signalled twice
//!   (`io_eventfd_do_signal` in Linux 6.12);
//! - AIO through the wake-up descriptor, which the ring polls and every operation signals that ends;
//! - polled rings not at all: while they have operations, the thread does not sleep.
//!
//! Invariant: a completion of any port, and a notification of another thread, wakes a thread that sleeps in one of them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use super::entry::{COMMANDS, IGNORED, SLICE, WAKEUP};
use super::ring::RingPort;
use super::set::{Ports, Rejected, of_kind};
use crate::aio::Aio;
use crate::driver::target::port_kind::PortKind;
use crate::ring::{Sleeper, Until};
use ringfile_buffer::internal::event;

/// What a thread that enters its ports wants.
pub(crate) struct EnterArgs {
    /// The completions that end its sleep; 0 if it must not sleep.
    pub(crate) wanted: u32,
    /// The entries that it submits at most.
    pub(crate) most: u32,
    pub(crate) deadline: Option<Instant>,
    /// Operations in flight, including those that wait for room.
    pub(crate) in_flight: usize,
    /// Whether operations wait for room.
    pub(crate) has_waiting: bool,
}

/// Where a thread sleeps that leaves the driver to others meanwhile.
pub(crate) enum SleepIn {
    /// Completions of the main ring wake it.
    Ring(Sleeper),
    /// The wake-up descriptor wakes it, which AIO and other threads signal.
    Poll(Arc<OwnedFd>),
    /// Nothing wakes it: it only pauses.
    Pause,
}

impl Ports {
    /// Submits what is queued, and sleeps until there are the wanted completions, if there are none yet.
    #[inline]
    pub(crate) fn enter(&mut self, mut args: EnterArgs) {
        let mut refused = false;
        if self.aio.context.is_some() {
            refused = self.submit_to_aio(args.most);
            if !self.rejected.is_empty() {
                // No completion announces a refused entry: its task must be woken first.
                args.wanted = 0;
            }
        }
        let Some(main) = &self.main else {
            if !refused {
                self.refusals = None;
            }
            return self.aio.wait(args.wanted, args.deadline, args.has_waiting, &self.shared.sleep);
        };
        if self.aio.keeps_awake() {
            args.wanted = 0;
        } else if self.aio.open() > 0 {
            // One completion here may announce several finished operations there.
            args.wanted = args.wanted.min(1);
        }
        // Reset before the kernel is asked for the completions that it holds back, so that later ones signal again.
        main.ring.reset_completion_signal();
        let mut home = PortKind::Main;
        if self.has_extra {
            refused |= self.enter_extra(&mut args, &mut home);
        }
        refused |= self.enter_home(home, &args);
        if !refused {
            self.refusals = None;
        }
    }

    /// Submits what is queued in AIO, at most `most` operations in one system call. One that the kernel refuses is rejected.
    /// Returns whether the kernel refuses operations for now.
    fn submit_to_aio(&mut self, most: u32) -> bool {
        if self.aio.signals {
            // Reset before completions are collected, so that one that arrives meanwhile signals again.
            self.reset_wakeup();
        }
        self.aio.is_full = false;
        while let Some(aio) = self.aio.context.as_mut().filter(|aio| aio.has_queued()) {
            let errno = match aio.submit(most) {
                Ok(true) => return false,
                // The next call returns why the kernel stopped there.
                Ok(false) => continue,
                Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            match errno {
                libc::EINTR => return true,
                libc::EAGAIN | libc::ENOMEM if aio.at_work() > 0 => {
                    self.aio.is_full = true;
                    return false;
                }
                libc::EAGAIN | libc::ENOMEM if self.may_ask_again() => return true,
                _ => {}
            }
            self.refusals = None;
            let taken_back = self.aio.context.as_mut().and_then(Aio::take_back);
            self.rejected.extend(taken_back.map(|user_data| Rejected {
                kind: PortKind::Aio,
                user_data,
                errno,
            }));
        }
        false
    }

    /// Enters the ring in which the thread may sleep. Returns whether the kernel refused its entries.
    #[inline(always)]
    fn enter_home(&mut self, home: PortKind, args: &EnterArgs) -> bool {
        let is_stuck = self.aio.is_out_of_room();
        // A thread that sleeps forgets no released memory.
        let has_released = args.wanted > 0 && self.has_released();
        let Self { main, extra, shared, .. } = &mut *self;
        let Some(port) = of_kind(main, extra, home) else { return false };
        // If the queue was too full to poll the wake-up descriptor, no thread could wake this one.
        let awaited = port.wakeup_armed && !has_released;
        let ring = &mut port.ring;
        let idle = !ring.has_completions() && (!args.has_waiting || is_stuck);
        let sleeps = args.wanted > 0 && idle && awaited && shared.sleep.about_to_sleep_in_ring();
        let until = if sleeps {
            // Waiting for more completions than there are operations would never end.
            Until::Completed(args.wanted.min(args.in_flight as u32).max(1))
        } else if ring.has_deferred() || ring.waiting() > 0 {
            Until::Collected
        } else {
            Until::Submitted
        };
        let before = ring.enters;
        let at_most = args.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let answer = ring.enter(until, args.most, at_most);
        let entered = ring.enters != before;
        if entered {
            let (submitted, completed) = ring.enter_sizes();
            shared.counters.entered(submitted, completed);
        }
        let cut_off = ring.take_cut_off(IGNORED);
        if sleeps {
            shared.sleep.woke();
        }
        self.shut &= answer.is_err() || !entered;
        if let Some(user_data) = cut_off {
            self.reject_cut_off(home, user_data);
        }
        self.was_refused(home, answer)
    }

    /// Ends the second of two linked operations, if the kernel took only the first. Submitted now, it would not wait
    /// for the first, and a sync could succeed before its write. It ends as if the first had cancelled it, and a
    /// durable write then syncs again when the write has ended. The kernel takes entries in order, so it never takes
    /// the second without the first.
    #[cold]
    fn reject_cut_off(&mut self, kind: PortKind, user_data: u64) {
        self.rejected.push(Rejected { kind, user_data, errno: libc::ECANCELED });
    }

    /// Enters all rings except the one in which the thread may sleep, and does not wait. Returns whether the kernel refused
    /// entries.
    #[cold]
    pub(super) fn enter_extra(&mut self, args: &mut EnterArgs, home: &mut PortKind) -> bool {
        let spins = self.in_flight(PortKind::Polled) + self.in_flight(PortKind::PolledCommands);
        let commands = self.in_flight(PortKind::Commands);
        let on_main = args.in_flight - spins - commands;
        let signal = self.main.as_ref().and_then(|main| main.ring.signal());
        let shares = self.ring(PortKind::Commands).map_or(Ok(false), |port| port.ring.signal_as(signal));
        // If the signal has just changed, the main ring still polls the previous one.
        self.commands_announced &= !matches!(shares, Ok(true));
        let only_commands = commands > 0 && on_main == 0;
        *home = if only_commands { PortKind::Commands } else { PortKind::Main };
        let mixed = commands > 0 && !only_commands;
        if mixed && !self.commands_announced {
            // Reset before completions are collected, so that one that arrives meanwhile signals again.
            self.ring(PortKind::Commands).into_iter().for_each(|port| port.ring.reset_completion_signal());
        }
        let mut refused = false;
        for kind in home.others() {
            let answer = self.ring(kind).map_or(Ok(()), |RingPort { ring, .. }| {
                let polls = spins > 0 && !kind.announces();
                let collects = polls || ring.has_deferred() || ring.waiting() > 0;
                ring.enter(if collects { Until::Collected } else { Until::Submitted }, SLICE, None)
            });
            refused |= self.was_refused(kind, answer);
        }
        if only_commands {
            self.arm_wakeup(PortKind::Commands);
        }
        let is_told = shares.is_ok() && (!mixed || args.wanted == 0 || self.announce_commands());
        let is_some = home.others().any(|kind| {
            self.ring(kind).is_some_and(|port| port.ring.has_completions() || port.ring.has_deferred())
        });
        // A refused entry has ended without a completion, or must be submitted again: the thread must not sleep.
        if !is_told || spins > 0 || is_some || refused {
            args.wanted = 0;
        } else if mixed {
            // One completion on the main ring announces any number of commands.
            args.wanted = args.wanted.min(1);
        }
        refused
    }

    /// Returns the number of operations in flight on the ring of a kind, except the main one.
    fn in_flight(&self, kind: PortKind) -> usize {
        let port = kind.extra().and_then(|place| self.extra[place].as_ref());
        port.map_or(0, |port| port.in_flight)
    }

    /// Makes the main ring poll the signal of the ring for commands. Returns false if it cannot.
    fn announce_commands(&mut self) -> bool {
        if !self.commands_announced
            && let Some(commands) = self.ring(PortKind::Commands)
            && let Ok(signal) = commands.ring.completion_signal()
            && let Some(main) = &mut self.main
        {
            self.commands_announced = main.poll(signal.as_raw_fd(), 0, COMMANDS);
        }
        self.commands_announced
    }

    /// Makes the ring of a kind, or AIO without a ring, answer when another thread writes to the wake-up descriptor.
    #[inline]
    pub(crate) fn arm_wakeup(&mut self, kind: PortKind) {
        if self.main.is_none() {
            return self.aio.arm_wakeup();
        }
        if self.ring(kind).is_some_and(|port| !port.wakeup_armed)
            && let Ok(wakeup) = self.shared.eventfd(&mut self.wakeup)
        {
            self.ring(kind).into_iter().for_each(|port| port.arm_wakeup(wakeup));
        }
    }

    /// Makes the main ring wait for messages again, if the thread has collected the last one that it was told to wait for.
    /// If the kernel refuses, the next turn does.
    #[inline]
    pub(crate) fn listen(&mut self) {
        if self.main.as_ref().is_some_and(|main| !main.wakeup_armed) {
            self.arm_wakeup(PortKind::Main);
            let _ = self.main.as_mut().map(|main| main.ring.enter(Until::Submitted, SLICE, None));
        }
    }

    /// Returns whether the thread may sleep in a ring, or in the AIO context: not in the parent's ring after a fork, not in
    /// a ring that the kernel refuses to enter while the driver `is_idle`, and in the AIO context only while it has
    /// operations.
    #[inline]
    pub(crate) fn can_sleep(&self, is_idle: bool) -> bool {
        match &self.main {
            Some(main) => main.ring.is_ours() && !(self.shut && is_idle),
            None => self.aio.open() > 0 && !self.shared.is_inherited(),
        }
    }

    /// Returns where to sleep without the driver, after a turn; `None` if there is something to do first.
    pub(crate) fn sleep_in(&self, has_waiting: bool) -> Option<SleepIn> {
        if self.are_refused() {
            return Some(SleepIn::Pause);
        }
        if self.must_turn_again(has_waiting) || self.aio.keeps_awake() {
            return None;
        }
        match &self.main {
            Some(main) if main.ring.has_completions() => None,
            Some(main) if main.wakeup_armed => Some(SleepIn::Ring(main.ring.sleeper())),
            Some(_) => Some(SleepIn::Pause),
            None => Some(self.wakeup.clone().map_or(SleepIn::Pause, SleepIn::Poll)),
        }
    }

    /// Returns whether the kernel refused entries. After EINTR, and for a while if the kernel lacks a resource, the
    /// next turn tries again. Any other errno is the answer to every operation that was not taken.
    #[inline]
    fn was_refused(&mut self, kind: PortKind, answer: io::Result<()>) -> bool {
        answer.map_err(|error| self.refused(kind, error)).is_err()
    }

    #[cold]
    fn refused(&mut self, kind: PortKind, error: io::Error) {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        match errno {
            libc::EINTR | libc::ETIME => return,
            libc::EBUSY | libc::EAGAIN | libc::ENOMEM if self.may_ask_again() => return,
            _ => {}
        }
        if kind != PortKind::Main || !std::mem::replace(&mut self.shut, true) {
            event::defer(move || {
                tracing::warn!(%error, "io_uring_enter failed, and so do the operations that it did not accept");
            });
        }
        self.refusals = None;
        let mut taken_back = Vec::new();
        self.ring(kind).into_iter().for_each(|port| port.ring.take_back(|own| taken_back.push(own)));
        for user_data in taken_back {
            match user_data {
                WAKEUP => self.ring(kind).into_iter().for_each(|port| port.wakeup_armed = false),
                COMMANDS => self.commands_announced = false,
                IGNORED => {}
                _ => self.rejected.push(Rejected { kind, user_data, errno }),
            }
        }
    }
}
