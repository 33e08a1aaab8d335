//! Leaving a loop or a thread, after all operations in flight have ended.
//!
//! Invariants: when [`leave`] returns, no operation of the loop is in flight, on this thread or another.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use super::deferred::Deferred;
use super::state::{Driver, drop_driver, is_ending, with};
use super::turn;
use crate::driver::mail::shared::{self, Mail, Shared};
use crate::driver::slots::handler::Finished;
use crate::driver::slots::key::Key;
use crate::memory::wake_all;

thread_local! {
    /// How many [`ThreadRing`](crate::driver::ThreadRing)s the thread has.
    pub(super) static THREAD_RINGS: Cell<usize> = const { Cell::new(0) };
}

fn has_thread_ring() -> bool {
    THREAD_RINGS.try_with(|count| count.get() > 0) == Ok(true)
}

/// Ends the loop of this thread. It waits for every operation, cancels those on pipes, sockets and terminals, which
/// might wait forever, keeps results that were not taken for their futures, and gives up its shares of registered memory.
/// A thread that ends also releases its driver.
pub(crate) fn leave(deferred: &mut Deferred) {
    if let Some(shared) = with(|driver| Arc::clone(&driver.shared)) {
        shared.leaving.store(true, Ordering::Relaxed);
        if shared.has_remotes() {
            shared::everyone().iter().for_each(|other| other.post(Mail::CancelGuarded(shared.id)));
        }
        wait_for_all(&shared, deferred);
        shared.leaving.store(false, Ordering::Relaxed);
    }
    let wakers = with(|driver| driver.deactivate(deferred)).unwrap_or_default();
    deferred.settle();
    if is_ending() {
        drop_driver();
    }
    wake_all(wakers.into_iter());
}

/// Turns the driver until nothing of the loop is in flight: each turn may call a waker that starts an operation.
fn wait_for_all(shared: &Shared, deferred: &mut Deferred) {
    loop {
        // The notification is cleared before its causes are checked.
        shared.sleep.take_notification();
        // Whether all operations in flight belong to queues, which outlive the loop.
        let only_lasting =
            |driver: &mut Driver| driver.slots.of_loop(&driver.local_handlers).next().is_none();
        if with(Driver::must_drain) == Some(true) && !(has_thread_ring() && with(only_lasting) == Some(true))
        {
            with(|driver| {
                driver.cancel_on_streams(deferred);
                driver.turn(true, None, 1, deferred);
            });
            deferred.settle();
        } else if shared.has_remotes() {
            // Operations that other threads carry out for this one hold its buffers too.
            turn(true, deferred);
        } else if with(|driver| driver.must_turn_again()) == Some(true) {
            // A queue's operation has a rest to submit. Perhaps no other call turns the driver for it.
            turn(false, deferred);
            with(|driver| driver.ports.pause_if_refused());
        } else {
            return;
        }
    }
}

impl Driver {
    /// Returns whether the thread must wait for operations before it leaves.
    fn must_drain(&mut self) -> bool {
        let ours = !self.shared.is_inherited();
        if ours {
            // The waiting operations may all have been withdrawn or have ended: no completion would arrive for them.
            self.submit_waiting();
        }
        ours && !self.is_idle()
    }

    /// Releases everything that the thread need not keep until its next loop. Returns the wakers of futures on other
    /// threads, which now find their results.
    fn deactivate(&mut self, deferred: &mut Deferred) -> Vec<Waker> {
        self.disown(deferred);
        self.read_mail(deferred);
        let done: Vec<Key> = self.slots.done().collect();
        let results: Vec<(Key, Finished)> =
            done.into_iter().map(|key| (key, self.slots.take(key.slot()))).collect();
        self.in_loop = false;
        let (mail, wakers) = {
            let mut inner = self.shared.lock();
            inner.in_loop = false;
            inner.finished.extend(results);
            let wakers = inner.wakers.drain().map(|(_, waker)| waker).collect();
            (std::mem::take(&mut inner.mail), wakers)
        };
        // Handles mail that was posted since: the result of a dropped future is in `finished` by now.
        mail.into_iter().for_each(|letter| self.read_letter(letter, deferred));
        // An entry that was not submitted yet names memory by its registered index.
        let may_forget = self.in_flight == 0;
        let uses = self.counts.ops - self.ops_at_entry;
        if may_forget {
            self.ports.forget_buffers(uses);
        }
        self.shared.counters.publish(self.current_counts());
        wakers
    }

    /// Ends the parent's operations in a forked child: the kernel completes them in the parent, and writes to the
    /// parent's memory, of which this process has a copy. Does nothing in the process that made the driver.
    #[cold]
    pub(super) fn disown(&mut self, deferred: &mut Deferred) {
        if !self.shared.is_inherited() {
            return;
        }
        self.waiting.clear();
        let open: Vec<Key> = self.slots.unanswered().collect();
        for key in open {
            self.slots.at(key.slot()).errno = libc::ECANCELED as u16;
            self.end(key, deferred);
        }
    }

    /// Cancels all operations, if the kernel still can, and waits for them. Called for a thread that ends while an
    /// operation's owner was leaked, or outlives the driver.
    pub(super) fn drain(&mut self) {
        if !self.must_drain() {
            return;
        }
        let mut deferred = Deferred::default();
        let open: Vec<Key> = self.slots.unanswered().collect();
        open.into_iter().for_each(|key| self.cancel_queued(key, &mut deferred));
        while self.must_drain() {
            self.shared.sleep.take_notification();
            self.turn(true, None, 1, &mut deferred);
            deferred.settle();
        }
        deferred.settle();
    }
}
