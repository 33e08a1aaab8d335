//! A loom model of threads that wait together for the operations of one queue: every interleaving of two threads and the
//! kernel. A lost wake-up is a deadlock, which loom reports.
//!
//! It compiles `visits.rs` and `sleep.rs` unchanged, with loom's atomics and locks instead of std's.

// `sleep.rs` knows the atomics by this name, and `visits.rs` the locks.
#[allow(dead_code)]
#[path = "../../src/driver/sleep.rs"]
mod sleep;
#[allow(dead_code)]
#[path = "../../src/many/visits.rs"]
mod visits;

/// Stands in for `src/driver/sync.rs` and `src/many/sync.rs`.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::{PoisonError, TryLockError};
}

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use sleep::{Asleep, Sleep};
use std::time::Instant;
use visits::{Outside, Visited, Visits};

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
    sleep: Sleep,
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

impl Visited for Queue {
    type Outside = Arc<Kernel>;
    type Bed = Arc<Kernel>;

    fn open(&self) -> usize {
        self.open
    }

    /// The kernel's completions are counted from here on: what another thread collects wakes the one that sleeps only
    /// if that one has begun to.
    fn make_bed(&mut self) -> Option<Arc<Kernel>> {
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
    visits: Visits<Queue>,
    kernel: Arc<Kernel>,
    mail: Arc<Mutex<u32>>,
}

impl Model {
    fn new(open: usize) -> Arc<Self> {
        let (ring, changed) = (Mutex::new(Ring::default()), Condvar::new());
        let kernel = Arc::new(Kernel { ring, changed, sleep: Sleep::new() });
        let mail = Arc::new(Mutex::new(0));
        let queue = Queue { kernel: Arc::clone(&kernel), mail: Arc::clone(&mail), added: 0, open, done: 0 };
        Arc::new(Self { visits: Visits::new(queue, Arc::clone(&kernel)), kernel, mail })
    }

    fn add(&self) {
        let mut state = self.visits.lock();
        state.subject.added += 1;
        state.subject.open += 1;
    }

    fn submit(&self) {
        let mut state = self.visits.lock();
        self.visits.visit(&mut state, Queue::look);
    }

    /// Waits for one of these operations, a bit for each.
    fn wait(&self, which: u32) -> u32 {
        let taken = self.visits.wait_until(true, None, |queue| {
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
fn f24_a_thread_that_leaves_hands_over_its_bed() {
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
