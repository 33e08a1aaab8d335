//! A loom model of how a batch ends: every interleaving of the thread that ends its operations and a task that polls it,
//! also without having been woken, with all that the memory model allows them to see. A lost wake-up is a deadlock, which
//! loom reports; an operation that starts after the results were taken panics.
//!
//! Run it with `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile --test loom_batch`; without the flag there is
//! nothing here. It compiles `progress.rs` as it is, with loom's lock in place of std's.

#![cfg(loom)]

#[path = "../src/batch/progress.rs"]
#[allow(dead_code)]
mod progress;

/// Stands in for `src/batch/sync.rs`.
mod sync {
    pub(super) use loom::sync::{Mutex, MutexGuard};
}

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use progress::{Progress, Work};
use std::sync::Arc as Shared;
use std::task::{Wake, Waker};

/// How often the task polls without having been woken.
#[derive(Clone, Copy)]
enum Polls {
    OnlyWoken,
    OnceMore,
}

/// The operations of a batch as `run.rs` has them: merged ones end with the first, and are looked at one by one after it.
struct Plan {
    ended: Vec<bool>,
    next: usize,
    in_flight: usize,
    most: usize,
    merged: bool,
}

impl Plan {
    fn next(&mut self) -> Option<usize> {
        while self.in_flight < self.most && self.next < self.ended.len() {
            self.next += 1;
            let index = self.next - 1;
            // As `ops[index]`: panics once the results were taken.
            if !self.ended[index] && !(self.merged && index > 0) {
                self.in_flight += 1;
                return Some(index);
            }
        }
        None
    }

    fn end(&mut self, index: usize) {
        self.in_flight -= 1;
        if self.merged {
            self.ended.fill(true);
        } else {
            self.ended[index] = true;
        }
    }
}

impl Work for Plan {
    fn is_over(&self) -> bool {
        self.ended.iter().all(|&ended| ended)
    }
}

struct Batch {
    progress: Progress<Plan>,
    /// What the other thread has to carry out.
    orders: Mutex<Vec<usize>>,
    came: Condvar,
}

impl Batch {
    fn start(&self) {
        if self.progress.begin_starting() {
            while let Some(index) = self.progress.next(Plan::next) {
                self.orders.lock().unwrap().push(index);
                self.came.notify_one();
            }
        }
    }

    fn poll(&self, waker: &Waker) -> Option<Plan> {
        self.progress.register(waker);
        self.start();
        self.progress.take()
    }

    /// As a worker, or an I/O thread, which ends so many operations.
    fn carry_out(&self, count: usize) {
        for _ in 0..count {
            let mut orders = self.orders.lock().unwrap();
            let index = loop {
                match orders.pop() {
                    Some(index) => break index,
                    None => orders = self.came.wait(orders).unwrap(),
                }
            };
            drop(orders);
            self.progress.end(|plan| plan.end(index));
            self.start();
        }
    }
}

/// The task: asleep until it is woken.
struct Task {
    woken: Mutex<bool>,
    wakes: Condvar,
}

impl Wake for Task {
    fn wake(self: Shared<Self>) {
        *self.woken.lock().unwrap() = true;
        self.wakes.notify_one();
    }
}

impl Task {
    fn sleep(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.wakes.wait(woken).unwrap();
        }
        *woken = false;
    }
}

fn model(operations: usize, most: usize, merged: bool, polls: Polls) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let plan = Plan { ended: vec![false; operations], next: 0, in_flight: 0, most, merged };
        let batch = Arc::new(Batch {
            progress: Progress::new(plan),
            orders: Mutex::new(Vec::new()),
            came: Condvar::new(),
        });
        let task = Shared::new(Task { woken: Mutex::new(false), wakes: Condvar::new() });
        let waker = Waker::from(Shared::clone(&task));
        let orders = if merged { 1 } else { operations };
        let other = Arc::clone(&batch);
        let carrier = thread::spawn(move || other.carry_out(orders));
        let mut unasked = match polls {
            Polls::OnlyWoken => 0,
            Polls::OnceMore => 1,
        };
        let plan = loop {
            match batch.poll(&waker) {
                Some(plan) => break plan,
                None if unasked > 0 => unasked -= 1,
                None => task.sleep(),
            }
        };
        assert_eq!((plan.ended, plan.in_flight), (vec![true; operations], 0));
        carrier.join().unwrap();
        assert!(batch.progress.close().is_none(), "the results were taken once");
    });
}

#[test]
fn f35_a_batch_whose_operations_end_one_by_one_is_over_once() {
    model(2, 1, false, Polls::OnlyWoken);
}

#[test]
fn f35_a_batch_whose_operations_go_together_is_over_once() {
    model(2, 2, false, Polls::OnlyWoken);
}

#[test]
fn f35_a_poll_that_was_not_asked_for_takes_the_results_before_the_next_start() {
    model(2, 1, false, Polls::OnceMore);
}

#[test]
fn f35_a_poll_that_was_not_asked_for_takes_the_results_of_merged_reads() {
    model(3, 1, true, Polls::OnceMore);
}
