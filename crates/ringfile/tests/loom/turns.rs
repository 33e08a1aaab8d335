//! A loom model of threads that use a driver in turn: every interleaving of two threads that send something and a keeper
//! that waits. What is sent and never done is a failed assertion; a keeper that waits in vain is a deadlock.
//!
//! It compiles `turns.rs` and `sleep.rs` unchanged, with loom's atomics and locks instead of std's.

#[path = "../../src/driver/sleep.rs"]
mod sleep;
#[path = "../../src/driver/turns.rs"]
mod turns;

/// Stands in for `src/driver/sync.rs`.
mod sync {
    /// `try_lock` of loom's own lock synchronizes more than std's does, so this one has only what std promises.
    pub(crate) use super::lock::{Mutex, TryLockError};
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
}

mod lock {
    use std::ops::{Deref, DerefMut};

    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicBool, Ordering};

    pub(crate) struct Mutex<T> {
        is_taken: AtomicBool,
        value: UnsafeCell<T>,
    }

    // SAFETY: the value is used only by the thread that has set the flag.
    unsafe impl<T: Send> Sync for Mutex<T> {}

    pub(crate) enum TryLockError<G> {
        WouldBlock,
        #[allow(dead_code, reason = "a model does not panic")]
        Poisoned(Poisoned<G>),
    }

    pub(crate) struct Poisoned<G>(G);

    impl<G> Poisoned<G> {
        pub(crate) fn into_inner(self) -> G {
            self.0
        }
    }

    pub(crate) struct Guard<'a, T>(&'a Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { is_taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
        }

        pub(crate) fn try_lock(&self) -> Result<Guard<'_, T>, TryLockError<Guard<'_, T>>> {
            let taken = self.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
            taken.map(|_| Guard(self)).map_err(|_| TryLockError::WouldBlock)
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: the flag is ours.
            self.0.value.with(|value| unsafe { &*value })
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: the flag is ours.
            self.0.value.with_mut(|value| unsafe { &mut *value })
        }
    }

    impl<T> Drop for Guard<'_, T> {
        fn drop(&mut self) {
            self.0.is_taken.store(false, Ordering::Release);
        }
    }
}

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sleep::{Asleep, Sleep};
use turns::Turns;

/// As `driver/joint.rs` has it.
struct Joint {
    /// How many requests were carried out.
    turns: Turns<u32>,
    sleep: Sleep,
    /// Requests that were sent.
    mail: Mutex<u32>,
    /// Wakes the keeper.
    bell: (Mutex<bool>, Condvar),
}

impl Joint {
    fn send(&self, at_once: bool) {
        *self.mail.lock().unwrap() += 1;
        self.sleep.mail_came();
        if at_once {
            self.work();
        } else if self.sleep.notify() == Asleep::InRing {
            *self.bell.0.lock().unwrap() = true;
            self.bell.1.notify_one();
        }
    }

    fn work(&self) {
        let turn = |done: &mut u32| {
            if self.sleep.take_mail_flag() {
                *done += std::mem::take(&mut *self.mail.lock().unwrap());
            }
        };
        assert!(self.turns.take(4, turn, || (), || !self.sleep.has_mail()));
    }

    fn done(&self) -> u32 {
        self.turns.with(|done| *done).unwrap()
    }
}

fn joint() -> Arc<Joint> {
    let bell = (Mutex::new(false), Condvar::new());
    Arc::new(Joint { turns: Turns::new(0), sleep: Sleep::new(), mail: Mutex::new(0), bell })
}

#[test]
fn what_one_thread_leaves_another_does() {
    loom::model(|| {
        let joint = joint();
        let others = [(); 2].map(|()| {
            let joint = Arc::clone(&joint);
            thread::spawn(move || joint.send(true))
        });
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(joint.done(), 2);
    });
}

#[test]
fn a_keeper_that_was_told_does_not_wait() {
    loom::model(|| {
        let joint = joint();
        let keeper = {
            let joint = Arc::clone(&joint);
            thread::spawn(move || {
                loop {
                    joint.sleep.woke();
                    joint.sleep.take_notification();
                    joint.work();
                    if joint.turns.with(|done| *done) == Some(2) {
                        return;
                    }
                    if joint.sleep.about_to_wait() {
                        let mut rung = joint.bell.0.lock().unwrap();
                        while !*rung {
                            rung = joint.bell.1.wait(rung).unwrap();
                        }
                        *rung = false;
                    }
                }
            })
        };
        joint.send(false);
        joint.send(false);
        keeper.join().unwrap();
        assert_eq!(joint.done(), 2);
    });
}
