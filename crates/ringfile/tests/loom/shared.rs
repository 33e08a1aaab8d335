//! A loom model of a driver that several threads use: every interleaving of two threads, the kernel, and a thread that sleeps
//! for all. What is left to another thread and never done is a failed assertion; a lost wake-up is a deadlock, which loom
//! reports.
//!
//! It compiles `exclusive.rs` and `sleep.rs` unchanged, with loom's atomics and locks instead of std's.

#[path = "../../src/driver/shared/exclusive.rs"]
mod exclusive;
// `sleep.rs` knows the atomics by this name, and `exclusive.rs` the locks.
#[allow(dead_code)]
#[path = "../../src/driver/mail/sleep.rs"]
mod sleep;

/// Stands in for `src/driver/mail/sync.rs`.
mod sync {
    pub(crate) use super::lock::{Condvar, Mutex, MutexGuard};
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
    pub(crate) use std::sync::{PoisonError, TryLockError};
}

/// `try_lock` of loom's own lock synchronizes more than std's does, so this one has only what std promises.
mod lock {
    use std::ops::{Deref, DerefMut};
    use std::sync::{LockResult, TryLockError};
    use std::time::Duration;

    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicBool, Ordering};

    pub(crate) struct Mutex<T> {
        is_taken: AtomicBool,
        value: UnsafeCell<T>,
    }

    // SAFETY: the value is used only by the thread that has set the flag.
    unsafe impl<T: Send> Sync for Mutex<T> {}

    pub(crate) struct MutexGuard<'a, T>(&'a Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { is_taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
        }

        pub(crate) fn try_lock(&self) -> Result<MutexGuard<'_, T>, TryLockError<MutexGuard<'_, T>>> {
            let taken = self.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
            taken.map(|_| MutexGuard(self)).map_err(|_| TryLockError::WouldBlock)
        }

        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            loop {
                if let Ok(guard) = self.try_lock() {
                    return Ok(guard);
                }
                loom::thread::yield_now();
            }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: the flag is ours.
            self.0.value.with(|value| unsafe { &*value })
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: the flag is ours.
            self.0.value.with_mut(|value| unsafe { &mut *value })
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            self.0.is_taken.store(false, Ordering::Release);
        }
    }

    pub(crate) struct Condvar {
        /// Held by a thread from before it releases its lock until it waits, and by one that notifies.
        gate: loom::sync::Mutex<()>,
        changed: loom::sync::Condvar,
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self { gate: loom::sync::Mutex::new(()), changed: loom::sync::Condvar::new() }
        }

        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            let lock = guard.0;
            let gate = self.gate.lock().unwrap();
            drop(guard);
            drop(self.changed.wait(gate).unwrap());
            lock.lock()
        }

        /// The models have no deadlines.
        pub(crate) fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            _: Duration,
        ) -> LockResult<(MutexGuard<'a, T>, ())> {
            self.wait(guard).map(|guard| (guard, ())).map_err(|_| unreachable!("a model does not panic"))
        }

        pub(crate) fn notify_one(&self) {
            let _gate = self.gate.lock().unwrap();
            self.changed.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            let _gate = self.gate.lock().unwrap();
            self.changed.notify_all();
        }
    }
}

use exclusive::{Exclusive, Outside, Subject};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sleep::{Asleep, SleepState};
use std::time::Instant;

/// What the kernel knows of the ring.
#[derive(Default)]
struct Ring {
    /// How many operations were submitted.
    submitted: u32,
    /// Which have ended, a bit for each, and were not collected.
    ended: u32,
    /// The completion of the eventfd's poll.
    wakeup: bool,
}

struct Kernel {
    ring: Mutex<Ring>,
    changed: Condvar,
    sleep: SleepState,
}

impl Kernel {
    /// Ends each operation when it was submitted.
    fn run(&self, operations: u32) {
        for operation in 0..operations {
            let mut ring = self.ring.lock().unwrap();
            while ring.submitted <= operation {
                ring = self.changed.wait(ring).unwrap();
            }
            ring.ended |= 1 << operation;
            self.changed.notify_all();
        }
    }

    fn ring_wakeup(&self) {
        self.ring.lock().unwrap().wakeup = true;
        self.changed.notify_all();
    }

    /// Ends an operation on a worker, which leaves its result as mail.
    fn end_by_mail(&self, mail: &Mutex<u32>, operation: u32) {
        *mail.lock().unwrap() |= 1 << operation;
        if self.sleep.notify() == Asleep::InRing {
            self.ring_wakeup();
        }
    }
}

/// Stands in for a queue with its driver.
struct Queue {
    kernel: Arc<Kernel>,
    mail: Arc<Mutex<u32>>,
    added: u32,
    open: usize,
    /// Which operations have ended, and were not taken.
    done: u32,
}

impl Queue {
    fn look(&mut self) {
        let mut ring = self.kernel.ring.lock().unwrap();
        if ring.submitted != self.added {
            ring.submitted = self.added;
            self.kernel.changed.notify_all();
        }
        let ended = std::mem::take(&mut ring.ended);
        ring.wakeup = false;
        drop(ring);
        self.collect(ended);
        let ended = std::mem::take(&mut *self.mail.lock().unwrap());
        self.collect(ended);
    }

    fn collect(&mut self, ended: u32) {
        self.open -= ended.count_ones() as usize;
        self.done |= ended;
    }

    fn take(&mut self, which: u32) -> Option<u32> {
        let taken = self.done & which;
        let first = (taken != 0).then(|| taken.trailing_zeros())?;
        self.done &= !(1 << first);
        Some(first)
    }
}

impl Subject for Queue {
    type Outside = Arc<Kernel>;
    type Sleep = Arc<Kernel>;

    fn open(&self) -> usize {
        self.open
    }

    /// The kernel's completions are counted from here on: what another thread collects wakes the leader only if
    /// that has begun to sleep.
    fn prepare_sleep(&mut self) -> Option<Arc<Kernel>> {
        let has_completions = {
            let ring = self.kernel.ring.lock().unwrap();
            ring.ended != 0 || ring.wakeup
        };
        (!has_completions && self.kernel.sleep.about_to_sleep_in_ring()).then(|| Arc::clone(&self.kernel))
    }

    fn must_look(&self) -> bool {
        false
    }

    fn sleep(kernel: Arc<Kernel>, _deadline: Option<Instant>) {
        let mut ring = kernel.ring.lock().unwrap();
        while ring.ended == 0 && !ring.wakeup {
            ring = kernel.changed.wait(ring).unwrap();
        }
        drop(ring);
        kernel.sleep.woke();
    }
}

impl Outside for Arc<Kernel> {
    fn assert_may_block(&self) {}

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

struct Model {
    queue: Exclusive<Queue, Arc<Kernel>>,
    kernel: Arc<Kernel>,
    mail: Arc<Mutex<u32>>,
}

impl Model {
    fn new(open: usize) -> Arc<Self> {
        let (ring, changed) = (Mutex::new(Ring::default()), Condvar::new());
        let kernel = Arc::new(Kernel { ring, changed, sleep: SleepState::new() });
        let mail = Arc::new(Mutex::new(0));
        let queue = Queue { kernel: Arc::clone(&kernel), mail: Arc::clone(&mail), added: 0, open, done: 0 };
        Arc::new(Self { queue: Exclusive::new(queue, Arc::clone(&kernel)), kernel, mail })
    }

    fn add(&self) {
        let mut state = self.queue.lock();
        state.subject.added += 1;
        state.subject.open += 1;
    }

    fn submit(&self) {
        let mut state = self.queue.lock();
        self.queue.collect(&mut state, Queue::look);
    }

    /// Waits for one of these operations, a bit for each.
    fn wait(&self, which: u32) -> u32 {
        let taken = self.queue.wait_until(true, None, |queue| {
            queue.look();
            queue.take(which)
        });
        taken.unwrap()
    }
}

/// Runs this on another thread.
fn beside<R: 'static>(model: &Arc<Model>, act: impl FnOnce(&Model) -> R + 'static) -> thread::JoinHandle<R> {
    let model = Arc::clone(model);
    thread::spawn(move || act(&model))
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn f24_each_of_two_threads_gets_a_result() {
    check(|| {
        let model = Model::new(0);
        model.add();
        let other = beside(&model, |model| {
            model.add();
            model.wait(3)
        });
        let kernel = beside(&model, |model| model.kernel.run(2));
        let taken = [model.wait(3), other.join().unwrap()];
        assert!(taken == [0, 1] || taken == [1, 0]);
        kernel.join().unwrap();
    });
}

/// The second thread may collect the first one's result, and take the wake-up that it has sent itself.
#[test]
fn f24_a_thread_gets_what_another_collects() {
    check(|| {
        let model = Model::new(0);
        model.add();
        model.submit();
        let other = beside(&model, |model| {
            model.submit();
            model.submit();
        });
        let kernel = beside(&model, |model| model.kernel.run(1));
        assert_eq!(model.wait(1), 0);
        other.join().unwrap();
        kernel.join().unwrap();
    });
}

/// Each waits for its own operation, and the one that sleeps leaves while the other waits.
#[test]
fn f24_a_thread_that_leaves_hands_over_the_lead() {
    check(|| {
        let model = Model::new(0);
        model.add();
        model.add();
        let other = beside(&model, |model| model.wait(2));
        let kernel = beside(&model, |model| model.kernel.run(2));
        assert_eq!((model.wait(1), other.join().unwrap()), (0, 1));
        kernel.join().unwrap();
    });
}

#[test]
fn f24_an_end_on_a_worker_reaches_the_thread_that_sleeps() {
    check(|| {
        let model = Model::new(2);
        let other = beside(&model, |model| model.wait(2));
        let worker = beside(&model, |model| {
            model.kernel.end_by_mail(&model.mail, 0);
            model.kernel.end_by_mail(&model.mail, 1);
        });
        assert_eq!((model.wait(1), other.join().unwrap()), (0, 1));
        worker.join().unwrap();
    });
}

/// Stands in for the driver of a tokio runtime, as `driver/shared/tokio_driver.rs` has it.
struct Collected {
    /// How many requests were carried out.
    driver: Exclusive<u32, ()>,
    sleep: SleepState,
    /// Requests that were sent.
    mail: Mutex<u32>,
    /// Wakes the collector.
    bell: (Mutex<bool>, Condvar),
}

impl Collected {
    fn send(&self, at_once: bool) {
        let mut request = Some(1);
        if at_once {
            self.work_with(&mut request);
        }
        let Some(request) = request else { return };
        *self.mail.lock().unwrap() += request;
        self.sleep.mail_came();
        if at_once {
            self.work();
        } else if self.sleep.notify() == Asleep::InRing {
            *self.bell.0.lock().unwrap() = true;
            self.bell.1.notify_one();
        }
    }

    fn work(&self) {
        self.work_with(&mut None);
    }

    fn work_with(&self, request: &mut Option<u32>) {
        let turn = |done: &mut u32| {
            *done += request.take().unwrap_or(0);
            if self.sleep.take_mail_flag() {
                *done += std::mem::take(&mut *self.mail.lock().unwrap());
            }
        };
        assert!(self.driver.try_each(4, turn, || (), || !self.sleep.has_mail()));
    }

    fn done(&self) -> u32 {
        self.driver.try_lock().unwrap().subject
    }
}

fn collected() -> Arc<Collected> {
    let bell = (Mutex::new(false), Condvar::new());
    Arc::new(Collected { driver: Exclusive::new(0, ()), sleep: SleepState::new(), mail: Mutex::new(0), bell })
}

#[test]
fn what_one_thread_leaves_another_does() {
    loom::model(|| {
        let driver = collected();
        let others = [(); 2].map(|()| {
            let driver = Arc::clone(&driver);
            thread::spawn(move || driver.send(true))
        });
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(driver.done(), 2);
    });
}

#[test]
fn a_collector_that_was_told_does_not_wait() {
    loom::model(|| {
        let driver = collected();
        let collector = {
            let driver = Arc::clone(&driver);
            thread::spawn(move || {
                loop {
                    driver.sleep.woke();
                    driver.sleep.take_notification();
                    driver.work();
                    if driver.driver.try_lock().map(|done| done.subject) == Some(2) {
                        return;
                    }
                    if driver.sleep.about_to_wait() {
                        let mut rung = driver.bell.0.lock().unwrap();
                        while !*rung {
                            rung = driver.bell.1.wait(rung).unwrap();
                        }
                        *rung = false;
                    }
                }
            })
        };
        driver.send(false);
        driver.send(false);
        collector.join().unwrap();
        assert_eq!(driver.done(), 2);
    });
}
