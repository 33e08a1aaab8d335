//! One run: producers and consumers with one kind of memory, from their start until all written blocks are read.
//!
//! Each producer and consumer is a thread with its own ring and loop of the library. On a machine with fewer cores than
//! threads, the kernel then divides time among them. As tasks on few loops, each would wait for the copies and
//! checksums of the others, which would be measured as latency of the disk.
//!
//! Invariants: at the end no operation is in flight and no buffer is in use; unless the run was stopped, every written
//! block was checked.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use ringfile::Pool;
use ringfile::buf::PoolMetrics;

use super::consumer::Consumer;
use super::ledger::Ledger;
use super::memory::{Copied, Malloc, MemorySource, Plain};
use super::messages;
use super::producer::{Produced, Producer, Written};
use super::segments::TICK;
use super::shared::{PoolJob, Shared};
use crate::engine::ringfile::capacity_of;
use crate::engine::window;
use crate::error::{Failure, io_on, library};
use crate::interrupt::Interrupt;
use crate::model::Memory;
use crate::sys::{self, Usage};

/// The outcome of a run.
#[derive(Debug)]
pub struct PoolOutcome {
    /// What its threads shared: the times, and what they counted.
    pub shared: Arc<Shared>,
    /// The record of each producer.
    pub producers: Vec<Ledger>,
    /// The record of each consumer.
    pub consumers: Vec<Ledger>,
    /// Operations that were due but not begun when the producers gave up; `None` without a rate, or if it was stopped.
    pub backlog: Option<u64>,
    /// What the whole process used.
    pub usage: Option<Usage>,
    /// The pool at the end.
    pub pool: Option<PoolMetrics>,
    /// The first failure.
    pub failure: Option<Failure>,
}

impl PoolOutcome {
    /// Returns the record of each thread.
    pub fn ledgers(&self) -> impl Iterator<Item = &Ledger> {
        self.producers.iter().chain(&self.consumers)
    }
}

/// Carries out a run; `tick` is called now and then meanwhile.
pub fn run(
    job: &PoolJob,
    memory: Memory,
    interrupt: &Interrupt,
    tick: &mut dyn FnMut(),
) -> Result<PoolOutcome, Failure> {
    match memory {
        Memory::Pool | Memory::PoolBuffered => {
            let pool = Pool::builder().capacity(pool_capacity(job)).build();
            let pool = pool.map_err(|error| library(&error.into()))?;
            let mut outcome = run_with(job, &pool, memory, interrupt, tick)?;
            outcome.pool = Some(pool.metrics());
            Ok(outcome)
        }
        Memory::Malloc => run_with(job, &Malloc, memory, interrupt, tick),
        Memory::Vec | Memory::VecUncached => run_with(job, &Plain, memory, interrupt, tick),
        Memory::VecDirect => run_with(job, &Copied, memory, interrupt, tick),
    }
}

/// Returns room for all buffers that can be in use at once.
pub fn pool_capacity(job: &PoolJob) -> usize {
    let (threads, writers) = (u64::from(job.producers + job.consumers), u64::from(job.producers));
    if job.messages {
        let each = (job.batch_bytes() + (8 << 10)) * threads + messages::memory(job) * writers;
        return usize::try_from(each.saturating_mul(2).saturating_add(4 << 20)).unwrap_or(usize::MAX);
    }
    capacity_of(threads * u64::from(job.batch), job.block)
}

fn run_with<S: MemorySource>(
    job: &PoolJob,
    source: &S,
    memory: Memory,
    interrupt: &Interrupt,
    tick: &mut dyn FnMut(),
) -> Result<PoolOutcome, Failure> {
    let mut shared = Shared::new(job, memory);
    if job.drop_caches {
        sys::drop_all_caches()
            .map_err(|error| io_on("can't write to", Path::new(sys::DROP_CACHES), &error))?;
        // The measurement begins now.
        shared = Shared::with(job, shared.store.clone());
    }
    let (mut producers, mut consumers) = (Vec::new(), Vec::new());
    let mut backlog: Option<u64> = None;
    let usage = std::thread::scope(|scope| {
        let threads = Threads::start(scope, &shared, source);
        let before = threads.conduct(&shared, interrupt, tick);
        for producer in threads.producers.into_iter().filter_map(window::joined) {
            let operations = producer.backlog.map(|batches| batches.saturating_mul(u64::from(job.batch)));
            backlog = operations
                .map_or(backlog, |operations| Some(backlog.unwrap_or(0).saturating_add(operations)));
            producers.push(producer.ledger);
        }
        consumers.extend(threads.consumers.into_iter().filter_map(window::joined));
        before.and_then(|before| Some(sys::own_usage().ok()?.since(&before)))
    });
    let failure = shared.take_failure();
    let backlog = backlog.filter(|_| !shared.stopped());
    Ok(PoolOutcome { shared, producers, consumers, backlog, usage, pool: None, failure })
}

/// The threads of a run.
struct Threads<'scope> {
    producers: Vec<ScopedJoinHandle<'scope, Option<Produced>>>,
    consumers: Vec<ScopedJoinHandle<'scope, Option<Ledger>>>,
}

impl<'scope> Threads<'scope> {
    fn start<S: MemorySource>(
        scope: &'scope Scope<'scope, '_>,
        shared: &Arc<Shared>,
        source: &S,
    ) -> Threads<'scope> {
        let mut threads = Threads { producers: Vec::new(), consumers: Vec::new() };
        let mut outboxes: Vec<mpsc::Sender<Written>> = Vec::new();
        for number in 0..shared.job.consumers {
            let (outbox, inbox) = mpsc::channel();
            outboxes.push(outbox);
            let source = source.clone();
            threads.consumers.extend(spawn(scope, shared, format!("consumer-{number}"), move |shared| {
                ringfile::block_on(Consumer::new(shared, source, inbox).run())
            }));
        }
        for number in 0..shared.job.producers {
            let (outboxes, source) = (outboxes.clone(), source.clone());
            threads.producers.extend(spawn(scope, shared, format!("producer-{number}"), move |shared| {
                ringfile::block_on(Producer::new(shared, source, number, outboxes).run())
            }));
        }
        threads
    }

    /// Waits for all threads to end, and checks for Ctrl-C meanwhile. Returns what the process had used when the
    /// measured time began.
    fn conduct(&self, shared: &Shared, interrupt: &Interrupt, tick: &mut dyn FnMut()) -> Option<Usage> {
        let mut before = None;
        let over = || {
            self.producers.iter().all(ScopedJoinHandle::is_finished)
                && self.consumers.iter().all(ScopedJoinHandle::is_finished)
        };
        while !over() {
            let now = Instant::now();
            if before.is_none() && now >= shared.timeline.measured {
                before = sys::own_usage().ok();
            }
            let next = if before.is_none() { shared.timeline.measured } else { shared.timeline.end };
            // Short pauses near the beginning and the end of the measured time; otherwise it takes no time from the
            // threads.
            let pause = next.saturating_duration_since(now).clamp(Duration::from_millis(2), TICK);
            std::thread::sleep(pause);
            if interrupt.asked() {
                shared.stop();
            }
            tick();
        }
        before
    }
}

/// Starts a thread of a run. Its failure ends the run, as does a panic: otherwise other threads would wait for it.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &Arc<Shared>,
    name: String,
    work: impl FnOnce(&Arc<Shared>) -> Result<T, Failure> + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, Option<T>>> {
    let its_own = shared.clone();
    let body = move || {
        let _stop = StopOnPanic(&its_own);
        // The kernel delays wake-ups by up to 50 µs to save power, which would count as latency. If it refuses to
        // change that, the delay shows as lateness.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        work(&its_own).map_err(|failure| its_own.fail(failure)).ok()
    };
    let started = Builder::new().name(name).spawn_scoped(scope, body);
    started.map_err(|error| shared.fail(window::no_thread(&error))).ok()
}

struct StopOnPanic<'a>(&'a Shared);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

#[cfg(test)]
pub mod tests {
    use clap::ValueEnum;

    use super::super::segments::check_folder;
    use super::*;
    use crate::testfile::DefaultPlace;

    fn job(folder: &Path) -> PoolJob {
        PoolJob {
            folder: folder.to_path_buf(),
            size: 64 << 10,
            segment: 16 << 10,
            block: 4096,
            messages: false,
            sync: false,
            batch: 2,
            producers: 2,
            consumers: 3,
            rate: None,
            drop_caches: false,
            warmup: Duration::from_millis(5),
            duration: Duration::from_millis(100),
        }
    }

    /// What threads of a run with two blocks of 4 KiB in a batch share.
    pub fn shared(folder: &Path) -> Arc<Shared> {
        Shared::new(&job(folder), Memory::Vec)
    }

    /// Returns the outcome of a run that must succeed.
    #[track_caller]
    fn done(job: &PoolJob, memory: Memory) -> PoolOutcome {
        let outcome = run(job, memory, &Interrupt::default(), &mut || {}).expect("it can be run");
        assert!(outcome.failure.is_none() && !outcome.shared.stopped(), "{:?}", outcome.failure);
        outcome
    }

    /// Returns how many operations some threads measured.
    fn measured(ledgers: &[Ledger]) -> u64 {
        ledgers.iter().map(|ledger| ledger.latency.count()).sum()
    }

    #[track_caller]
    fn check(job: &PoolJob, memory: Memory) -> PoolOutcome {
        let outcome = done(job, memory);
        let (written, checked) = (outcome.shared.written(), outcome.shared.checked());
        assert!(written > 0 && written == checked, "{written} written, {checked} checked");
        let (produced, consumed) = (measured(&outcome.producers), measured(&outcome.consumers));
        assert!(produced > 0 && produced == consumed, "{produced} measured, {consumed} of them read");
        outcome
    }

    #[test]
    fn every_block_is_checked_and_every_buffer_comes_back() {
        let folder = tempfile::tempdir_in(DefaultPlace::Disk.folder()).expect("temporary folder");
        if let Err(why) = check_folder(folder.path(), Memory::Pool) {
            return crate::skip::skip("every_block_is_checked_and_every_buffer_comes_back", why);
        }
        for &memory in Memory::value_variants() {
            let outcome = check(&job(folder.path()), memory);
            assert_eq!((outcome.pool.is_some(), outcome.backlog), (memory.is_pooled(), None));
            if let Some(pool) = outcome.pool {
                assert_eq!((pool.in_use, pool.outside_allocations, pool.failures), (0, 0, 0), "{pool:?}");
            }
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 0);
    }

    #[test]
    fn every_message_of_a_log_is_checked() {
        let folder = tempfile::tempdir_in(DefaultPlace::Disk.folder()).expect("temporary folder");
        let direct = check_folder(folder.path(), Memory::Pool).is_ok();
        for memory in [Memory::Pool, Memory::PoolBuffered, Memory::Vec, Memory::VecUncached] {
            if memory.is_direct() && !direct {
                continue;
            }
            for sync in [false, true] {
                let batch = 7;
                let job = PoolJob {
                    messages: true,
                    block: 1000,
                    batch,
                    segment: 14_000,
                    sync,
                    ..job(folder.path())
                };
                let outcome = check(&job, memory);
                if let Some(pool) = outcome.pool {
                    assert_eq!((pool.in_use, pool.outside_allocations, pool.failures), (0, 0, 0), "{pool:?}");
                }
            }
        }
    }

    #[test]
    fn segments_that_nobody_reads_do_not_use_up_the_pool() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let small = PoolJob {
            messages: true,
            block: 1000,
            batch: 7,
            segment: 14_000,
            size: 4 << 20,
            ..job(folder.path())
        };
        let (shared, pool) = (Shared::new(&small, Memory::PoolBuffered), Pool::new(64 << 20));
        ringfile::block_on(async {
            let mut producer = Producer::new(&shared, pool, 0, Vec::new());
            let mut all = Vec::new();
            for _ in 0..2 * 40 {
                all.extend(producer.write(Instant::now()).await.expect("written"));
            }
            let kept = all.iter().filter(|written| written.log.strong_count() > 0).count();
            assert!(all.len() == 80 && kept <= 2 * 2, "{kept} batches are kept");
            producer.finish().await.expect("written");
        });
    }

    #[test]
    fn producers_alone() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for messages in [false, true] {
            for memory in [Memory::PoolBuffered, Memory::Vec] {
                let job = PoolJob { messages, ..job(folder.path()) };
                let produced = done(&PoolJob { producers: 2, consumers: 0, ..job }, memory);
                let (written, checked) = (produced.shared.written(), produced.shared.checked());
                assert!(written > 0 && checked == 0 && produced.producers.len() == 2);
                assert!(measured(&produced.producers) > 0 && measured(&produced.consumers) == 0);
            }
        }
    }

    #[test]
    fn at_a_rate_nothing_is_skipped() {
        let folder = tempfile::tempdir().expect("temporary folder");
        // 100 batches a second of all producers, for half a second with the warm-up.
        let rate = Some(100 * 8192);
        let times = (Duration::from_millis(100), Duration::from_millis(400));
        let job = PoolJob { rate, warmup: times.0, duration: times.1, ..job(folder.path()) };
        let outcome = check(&job, Memory::Vec);
        assert_eq!(outcome.shared.written() + outcome.backlog.expect("at a rate"), 2 * 50);
    }

    #[test]
    fn a_rate_that_no_machine_carries_leaves_a_backlog() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = PoolJob { rate: Some(1 << 40), ..job(folder.path()) };
        let outcome = check(&job, Memory::Vec);
        let due = (u128::from(job.rate.expect("a rate")) * 105 / 1000 / 8192) as u64 * 2;
        let done = outcome.shared.written() + outcome.backlog.expect("at a rate");
        assert!(done.abs_diff(due) <= 2 * 2, "{done} of {due}");
        assert!(outcome.backlog > Some(0));
        let latencies = outcome.producers.iter().filter_map(|ledger| ledger.latency.summary());
        let latency = latencies.max_by_key(|latency| latency.max).expect("recorded");
        assert!(latency.max > 90_000_000, "what was begun last was due long before: {latency:?}");
    }

    #[test]
    fn a_folder_that_goes_away_is_an_error_and_ends_the_run() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = PoolJob { duration: Duration::from_secs(60), ..job(&folder.path().join("gone")) };
        let outcome = run(&job, Memory::Vec, &Interrupt::default(), &mut || {}).expect("it can be started");
        let error = outcome.failure.expect("there is no folder").to_string();
        assert!(outcome.shared.stopped() && error.contains("gone") && error.contains("errno 2"), "{error}");
    }
}
