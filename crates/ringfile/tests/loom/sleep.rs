//! A loom model of how a driver's thread goes to sleep and wakes up: every interleaving of the thread and two
//! notifiers, with everything that the memory model allows them to see. A lost wake-up is a deadlock, which loom
//! reports.
//!
//! It compiles `sleep.rs` unchanged, with loom's atomics instead of std's.

#[path = "../../src/driver/mail/sleep.rs"]
mod sleep;

/// Stands in for `src/driver/mail/sync.rs`.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
}

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sleep::{Asleep, SleepState};

/// A thread's loop, as in `runtime/executor.rs` and `driver/turn/complete.rs`, with what other threads may access.
struct Loop {
    sleep: SleepState,
    /// Tasks that other threads woke; the loop checks them when it takes a notification.
    woken: Mutex<u32>,
    /// Messages between drivers; the loop checks them at the end of every turn.
    mail: Mutex<u32>,
    /// The eventfd.
    bell: (Mutex<bool>, Condvar),
    sleeper: thread::Thread,
}

impl Loop {
    fn notify(&self) {
        match self.sleep.notify() {
            Asleep::InRing => {
                *self.bell.0.lock().unwrap() = true;
                self.bell.1.notify_one();
            }
            Asleep::Parked => self.sleeper.unpark(),
            Asleep::None => {}
        }
    }

    fn wake_a_task(&self) {
        *self.woken.lock().unwrap() += 1;
        self.notify();
    }

    fn send_mail(&self) {
        let mut mail = self.mail.lock().unwrap();
        *mail += 1;
        self.sleep.mail_came();
        self.notify();
    }

    /// Sleeps in the ring until the eventfd is signalled, as `Ring::enter` does.
    fn sleep_in_ring(&self) {
        if self.sleep.about_to_sleep_in_ring() {
            let mut rung = self.bell.0.lock().unwrap();
            while !*rung {
                rung = self.bell.1.wait(rung).unwrap();
            }
            *rung = false;
            drop(rung);
            self.sleep.woke();
        }
    }

    fn park(&self) {
        if self.sleep.about_to_park() {
            while self.sleep.is_parked() {
                thread::park();
            }
        }
    }

    /// Runs turns until it has seen this number of wake-ups and messages.
    fn run(&self, tasks: u32, letters: u32, sleep: impl Fn(&Self)) {
        let (mut woken, mut read) = (0, 0);
        loop {
            if self.sleep.take_notification() {
                woken += std::mem::take(&mut *self.woken.lock().unwrap());
            }
            if woken == tasks && read == letters {
                return;
            }
            sleep(self);
            if self.sleep.take_mail_flag() {
                read += std::mem::take(&mut *self.mail.lock().unwrap());
            }
        }
    }
}

/// Runs the loop on this thread, and the two notifiers beside it.
fn model(
    letters: u32,
    first: impl Fn(&Loop) + Copy + Send + Sync + 'static,
    second: impl Fn(&Loop) + Copy + Send + Sync + 'static,
    sleep: impl Fn(&Loop) + Copy + Send + Sync + 'static,
) {
    let mut builder = loom::model::Builder::new();
    // Without a bound this takes hours. Three preemptions find every defect that was built into the loop on purpose.
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let it = Arc::new(Loop {
            sleep: SleepState::new(),
            woken: Mutex::new(0),
            mail: Mutex::new(0),
            bell: (Mutex::new(false), Condvar::new()),
            sleeper: thread::current(),
        });
        let (one, other) = (Arc::clone(&it), Arc::clone(&it));
        let threads = [thread::spawn(move || first(&one)), thread::spawn(move || second(&other))];
        it.run(2 - letters, letters, sleep);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn f24_two_wake_ups_reach_a_thread_that_sleeps_in_its_ring() {
    model(0, Loop::wake_a_task, Loop::wake_a_task, Loop::sleep_in_ring);
}

#[test]
fn f24_a_wake_up_and_a_letter_reach_a_thread_that_sleeps_in_its_ring() {
    model(1, Loop::wake_a_task, Loop::send_mail, Loop::sleep_in_ring);
}

#[test]
fn f24_two_letters_reach_a_thread_that_sleeps_in_its_ring() {
    model(2, Loop::send_mail, Loop::send_mail, Loop::sleep_in_ring);
}

#[test]
fn f24_two_wake_ups_reach_a_thread_that_parks() {
    model(0, Loop::wake_a_task, Loop::wake_a_task, Loop::park);
}

#[test]
fn f24_a_wake_up_and_a_letter_reach_a_thread_that_parks() {
    model(1, Loop::wake_a_task, Loop::send_mail, Loop::park);
}
