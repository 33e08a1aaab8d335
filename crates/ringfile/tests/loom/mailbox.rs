//! A loom model of how results reach the thread or task that waits for them: every interleaving of threads that deliver
//! results and a task that fetches them, even without a wake-up, with everything that the memory model allows them to
//! see. A lost wake-up is a deadlock, which loom reports.
//!
//! Run it with `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile --test loom mailbox`; without the flag this
//! file is empty. It compiles `mailbox.rs` unchanged, with loom's lock and flag instead of std's.

#[path = "../../src/many/mailbox.rs"]
#[allow(dead_code)]
mod mailbox;

/// Stands in for `src/many/sync.rs`.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
    pub(super) use loom::sync::{Mutex, MutexGuard};
}

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use mailbox::{Mailbox, Raised};
use std::sync::Arc as Shared;
use std::task::{Wake, Waker};
use sync::{AtomicBool, Ordering};

/// A task's wake-up.
struct Woken {
    woken: Mutex<bool>,
    came: Condvar,
}

impl Woken {
    fn new() -> Shared<Self> {
        Shared::new(Self { woken: Mutex::new(false), came: Condvar::new() })
    }

    fn wait(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.came.wait(woken).unwrap();
        }
        *woken = false;
    }
}

impl Wake for Woken {
    fn wake(self: Shared<Self>) {
        *self.woken.lock().unwrap() = true;
        self.came.notify_one();
    }
}

/// Fetches until there are `all` results, each once. `unasked`: polls once more often than it was woken.
fn task(
    mailbox: &Mailbox<u32>,
    all: usize,
    at_least: impl Fn(usize) -> usize,
    mut unasked: bool,
) -> Vec<u32> {
    let woken = Woken::new();
    let waker = Waker::from(Shared::clone(&woken));
    let (mut results, mut fetched) = (Vec::new(), Vec::new());
    loop {
        if mailbox.has_some() {
            mailbox.fetch(&mut fetched);
            results.append(&mut fetched);
        }
        if results.len() == all {
            return results;
        }
        if mailbox.wake(&waker, at_least(all - results.len())) && !std::mem::take(&mut unasked) {
            woken.wait();
        }
    }
}

fn model(threads: u32, each: u32, at_least: fn(usize) -> usize, unasked: bool) {
    let mut builder = loom::model::Builder::new();
    // Three preemptions cover every way in which three threads can miss each other here, and take seconds.
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let mailbox = Arc::new(Mailbox::new());
        let putters: Vec<_> = (0..threads)
            .map(|number| {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || {
                    (0..each).for_each(|i| mailbox.put(number * each + i, || {}).unwrap());
                })
            })
            .collect();
        let mut results = task(&mailbox, (threads * each) as usize, at_least, unasked);
        results.sort_unstable();
        assert!(results.into_iter().eq(0..threads * each));
        putters.into_iter().for_each(|putter| putter.join().unwrap());
    });
}

#[test]
fn every_result_arrives_once_and_no_wake_up_is_lost() {
    for unasked in [false, true] {
        model(1, 2, |_| 1, unasked);
        model(2, 1, |_| 1, unasked);
    }
}

#[test]
fn a_task_that_waits_for_all_is_woken_when_all_have_come() {
    for unasked in [false, true] {
        model(1, 3, |left| left, unasked);
        model(2, 1, |left| left, unasked);
    }
}

#[test]
fn results_after_the_mailbox_was_closed_are_given_back() {
    loom::model(|| {
        let mailbox = Arc::new(Mailbox::new());
        let putter = {
            let mailbox = Arc::clone(&mailbox);
            thread::spawn(move || mailbox.put(7, || {}).is_ok())
        };
        mailbox.close();
        let was_put = putter.join().unwrap();
        let mut fetched = Vec::new();
        mailbox.fetch(&mut fetched);
        assert!(fetched.is_empty(), "it was dropped, or given back: {was_put}");
        assert_eq!(mailbox.put(8, || {}), Err(8));
    });
}

/// A descriptor of `eventfd(2)`, and the flag beside it.
struct Signal {
    raised: Raised,
    count: Mutex<u64>,
    readable: Condvar,
}

impl Signal {
    fn new() -> Self {
        Self { raised: Raised::new(), count: Mutex::new(0), readable: Condvar::new() }
    }

    fn raise(&self) {
        self.raised.raise(|| {
            *self.count.lock().unwrap() += 1;
            self.readable.notify_one();
        });
    }

    fn set(&self, mailbox: &Mailbox<u32>) {
        self.raised.lower(|| *self.count.lock().unwrap() = 0);
        if mailbox.has_some() {
            self.raise();
        }
    }

    fn wait(&self) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.readable.wait(count).unwrap();
        }
    }
}

#[test]
fn a_descriptor_that_is_made_while_a_result_arrives_announces_it() {
    loom::model(|| {
        let shared = Arc::new((Mailbox::new(), Signal::new(), AtomicBool::new(false)));
        let putter = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (mailbox, signal, is_made) = &*shared;
                let raise = || {
                    if is_made.load(Ordering::Acquire) {
                        signal.raise();
                    }
                };
                mailbox.put(1, raise).unwrap();
            }
        });
        let (mailbox, signal, is_made) = &*shared;
        is_made.store(true, Ordering::Release);
        mailbox.let_others_pass();
        signal.set(mailbox);
        signal.wait();
        putter.join().unwrap();
    });
}

#[test]
fn a_descriptor_is_readable_while_there_are_results_and_only_then() {
    for (threads, each) in [(1, 2), (1, 3), (2, 1)] {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let shared = Arc::new((Mailbox::new(), Signal::new()));
            let putters: Vec<_> = (0..threads)
                .map(|number| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        let (mailbox, signal) = &*shared;
                        (0..each).for_each(|i| mailbox.put(number * each + i, || signal.raise()).unwrap());
                    })
                })
                .collect();
            let (mailbox, signal) = &*shared;
            let (mut results, mut fetched) = (Vec::new(), Vec::new());
            while results.len() < (threads * each) as usize {
                signal.wait();
                mailbox.fetch(&mut fetched);
                if fetched.is_empty() {
                    // Another thread has the lock, and must run.
                    thread::yield_now();
                }
                results.append(&mut fetched);
                signal.set(mailbox);
            }
            putters.into_iter().for_each(|putter| putter.join().unwrap());
            results.sort_unstable();
            assert!(results.into_iter().eq(0..threads * each));
            assert_eq!(*signal.count.lock().unwrap(), 0, "nothing is left");
        });
    }
}
