//! Programs on threads without an executor: queues, reads with handles, blocking batches, and jobs polled by hand.

use crate::support::handles::one_of;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfile::{AnyBuffer, Completion, Op, Output, Queue, SharedQueue, Token};

use super::World;
use super::job;
use super::model::{Reading, Writing};
use super::plan::Plan;
use crate::support::Random;
use crate::support::handles::Handles as _;

/// Runs on the calling thread until the round is over.
pub fn run(world: &Arc<World>, mut random: Random) {
    let (mut queue, mut reads) = (Submissions::new(), Handles::new());
    while !world.is_over() {
        match random.below(10) {
            0..3 => queue.step(world, &mut random),
            3..5 => reads.step(world, &mut random),
            5 if random.below(2) == 0 => world.shared.step(world, &mut random),
            5 => {
                let (plan, batch) = Plan::new(world, world.place(&mut random), &mut random);
                plan.assert(batch.run());
            }
            6 => poll_by_hand(world, &mut random),
            7 => {
                if let Some(job) = job::any(world, &mut random) {
                    futures::executor::block_on(job);
                }
            }
            8 => {
                if let Some(job) = world.bag.take(&mut random) {
                    ringfile::block_on(job);
                }
            }
            _ if random.below(10) == 0 => queue.give_up(),
            _ if random.below(10) == 0 => reads = Handles::new(),
            _ => {}
        }
        world.counts.steps.fetch_add(1, Ordering::Relaxed);
    }
    queue.wait(world, usize::MAX, None);
    assert!(queue.open.is_empty() && queue.queue.is_empty());
    while world.shared.wait(world, None) {}
}

/// Polls jobs that other threads have started, and starts some.
pub fn poll_by_hand(world: &Arc<World>, random: &mut Random) {
    let job = if random.below(4) == 0 { job::any(world, random) } else { world.bag.take(random) };
    let Some(mut job) = job else { return };
    // Sometimes many times in a row, so that one poll comes just when the last operation ends.
    let polls = if random.below(4) == 0 { 200 } else { 1 + random.below(3) };
    for _ in 0..polls {
        if job.poll_alone(world, random) {
            return;
        }
    }
    if job.may_be_dropped && random.below(6) == 0 {
        world.counts.dropped.fetch_add(1, Ordering::Relaxed);
        return drop(job);
    }
    world.bag.put(job);
}

/// Does little else until the round is over.
pub fn only_poll(world: &Arc<World>, mut random: Random) {
    while !world.is_over() {
        poll_by_hand(world, &mut random);
        if random.below(16) == 0 {
            world.shared.step(world, &mut random);
        }
        if random.below(16) == 0 {
            std::thread::yield_now();
        }
    }
    while world.shared.wait(world, None) {}
}

/// An operation of a queue.
enum Open {
    Read { claim: Reading, offset: u64, len: usize },
    Write(Writing),
    Sync,
}

impl Open {
    fn assert(self, world: &World, done: Completion) {
        world.counts.results.fetch_add(1, Ordering::Relaxed);
        match self {
            Self::Sync => assert_eq!(done.result.unwrap(), 0),
            Self::Write(claim) => {
                assert_eq!(done.result.unwrap(), claim.len());
                drop(claim.into_reading());
            }
            Self::Read { claim, offset, len } => assert_read(&claim, offset, len, done),
        }
    }
}

/// A queue, of a thread or of all, and the number of an operation for it.
trait Add {
    fn add(self, op: Op<'_, impl Output>);
}

impl Add for (&mut Queue, u64) {
    fn add(self, op: Op<'_, impl Output>) {
        self.0.add(op, self.1);
    }
}

impl Add for (&SharedQueue, u64) {
    fn add(self, op: Op<'_, impl Output>) {
        self.0.add(op, self.1);
    }
}

/// Adds an operation to the queue that `to` returns, after it was noted there.
fn add_to<A: Add>(world: &World, random: &mut Random, to: impl FnOnce(Open) -> A) {
    let place = world.place(random);
    match random.below(300) {
        0 => to(Open::Sync).add(place.file.sync_data()),
        1..90 => {
            let Some(claim) = place.write(random, 2) else { return };
            let mut buffer = world.pool.get(claim.len()).unwrap();
            buffer.extend_from_slice(&claim.content());
            let offset = claim.offset();
            to(Open::Write(claim)).add(place.file.write_at(buffer, offset));
        }
        _ => {
            let Some(claim) = place.read(random, 3) else { return };
            let (offset, len) = claim.some(random);
            let buffer = memory(world, len, random);
            to(Open::Read { claim, offset, len }).add(place.file.read_at(buffer, offset));
        }
    }
}

/// A queue that threads share, and its operations by number.
#[derive(Default)]
pub struct Shared {
    queue: SharedQueue,
    open: Mutex<HashMap<u64, Open>>,
    next: AtomicU64,
}

impl Shared {
    fn step(&self, world: &World, random: &mut Random) {
        for _ in 0..random.below(12) {
            add_to(world, random, |operation| {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                self.open.lock().unwrap().insert(number, operation);
                (&self.queue, number)
            });
        }
        match random.below(3) {
            0 => self.queue.submit(),
            1 => _ = self.wait(world, Some(Duration::from_micros(random.below(300)))),
            _ => (0..random.below(20)).for_each(|_| _ = self.wait(world, None)),
        }
    }

    /// Waits for any operation. Returns false if none is open, or has ended in time.
    fn wait(&self, world: &World, timeout: Option<Duration>) -> bool {
        let Some(done) = one_of(&self.queue, timeout) else { return false };
        let open = self.open.lock().unwrap().remove(&done.user_data);
        open.expect("each result comes once").assert(world, done);
        true
    }
}

/// A queue of one thread, and its operations by number.
struct Submissions {
    queue: Queue,
    open: HashMap<u64, Open>,
    next: u64,
}

fn memory(world: &World, len: usize, random: &mut Random) -> AnyBuffer {
    match random.below(2) {
        0 => Vec::with_capacity(len).into(),
        _ => world.pool.get(len).unwrap().into(),
    }
}

impl Submissions {
    fn new() -> Self {
        Self { queue: Queue::new(), open: HashMap::new(), next: 0 }
    }

    fn step(&mut self, world: &Arc<World>, random: &mut Random) {
        for _ in 0..random.below(12) {
            self.add(world, random);
        }
        match random.below(4) {
            0 => self.queue.submit(),
            1 => self.wait(world, random.below(6) as usize, None),
            2 => self.wait(world, 1, Some(Duration::from_micros(random.below(300)))),
            _ => self.wait(world, usize::MAX, None),
        }
        assert_eq!(self.queue.len(), self.open.len());
    }

    fn add(&mut self, world: &Arc<World>, random: &mut Random) {
        let (queue, open, next) = (&mut self.queue, &mut self.open, &mut self.next);
        add_to(world, random, |operation| {
            let number = *next;
            *next += 1;
            open.insert(number, operation);
            (&mut *queue, number)
        });
    }

    fn wait(&mut self, world: &World, at_least: usize, timeout: Option<Duration>) {
        let mut completions = Vec::new();
        let ended = self.queue.wait(at_least..=usize::MAX, timeout, &mut completions);
        assert!(timeout.is_some() || ended >= at_least.min(self.open.len()), "{ended} of {at_least}");
        for done in completions {
            self.open.remove(&done.user_data).expect("each result comes once").assert(world, done);
        }
    }

    /// Drops the queue with everything in flight, which has ended afterwards.
    fn give_up(&mut self) {
        drop(std::mem::take(&mut self.queue));
        for (_, open) in self.open.drain() {
            if let Open::Write(claim) = open {
                claim.give_up();
            }
        }
    }
}

#[track_caller]
fn assert_read(claim: &Reading, offset: u64, len: usize, done: Completion) {
    let buffer = done.buffer.unwrap();
    assert_eq!((done.result.unwrap(), buffer.len()), (len, len), "{}", claim.place.name);
    claim.assert(offset, &buffer, "a read");
}

/// Reads with handles.
struct Handles {
    reads: Queue,
    open: Vec<(Token, Reading, u64, usize)>,
}

impl Handles {
    fn new() -> Self {
        Self { reads: Queue::new(), open: Vec::new() }
    }

    fn step(&mut self, world: &Arc<World>, random: &mut Random) {
        for _ in 0..random.below(8) {
            let place = world.place(random);
            let Some(claim) = place.read(random, 3) else { continue };
            let (offset, len) = claim.some(random);
            let handle = self.reads.start(&place.file, memory(world, len, random), offset);
            self.open.push((handle, claim, offset, len));
        }
        let at_least = random.below(self.open.len() as u64 + 1) as usize;
        self.reads.settle(if random.below(2) == 0 { at_least } else { 0 });
        for _ in 0..random.below(self.open.len() as u64 + 1) {
            let at = random.below(self.open.len() as u64) as usize;
            let (handle, claim, offset, len) = self.open.swap_remove(at);
            let done = match random.below(3) {
                0 => self.reads.is_done(handle).then(|| self.reads.wait_for(handle).unwrap()),
                1 => Some(self.reads.abort(handle).unwrap()),
                _ => Some(self.reads.wait_for(handle).unwrap()),
            };
            let Some(done) = done else {
                self.open.push((handle, claim, offset, len));
                continue;
            };
            assert!(self.reads.wait_for(handle).is_err(), "a result is taken once");
            world.counts.results.fetch_add(1, Ordering::Relaxed);
            match &done.result {
                Err(error) if error.errno() == Some(libc::ECANCELED) => {
                    assert!(done.buffer.is_some_and(|buffer| buffer.is_empty()));
                }
                _ => assert_read(&claim, offset, len, done),
            }
        }
    }
}
