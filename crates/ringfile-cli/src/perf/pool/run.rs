//! One run: producers and consumers with one kind of memory, from their start until all written blocks are read.
//!
//! Each producer and consumer is a thread with its own ring and loop of the library. On a machine with fewer cores than
//! threads, the kernel then divides time among them. As tasks on few loops, each would wait for the copies and
//! checksums of the others, which would be measured as latency of the disk.
//!
//! Invariants: at the end no operation is in flight and no buffer is in use; unless the run was stopped, every written
//! block was checked.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use ringfile::Pool;
use ringfile::buf::PoolMetrics;

use super::consumer::Consumer;
use super::ledger::Ledger;
use super::memory::{Malloc, MemorySource, Plain};
use super::messages;
use super::producer::Producer;
use super::shared::{PoolJob, Shared};
use crate::engine::ringfile::capacity_of;
use crate::engine::window::{MeasuredWindow, Member, Until, Window};
use crate::error::{Failure, library};
use crate::interrupt::Interrupt;
use crate::model::Memory;

/// The outcome of a run.
pub struct PoolOutcome {
    /// What its threads counted, warm-up included.
    pub shared: Arc<Shared>,
    /// The record of all producers.
    pub producers: Ledger,
    /// The record of all consumers.
    pub consumers: Ledger,
    /// What was measured of the whole process.
    pub measured: MeasuredWindow,
    /// The pool at the end.
    pub pool: Option<PoolMetrics>,
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
            let outcome = run_with(job, &pool, memory, interrupt, tick);
            Ok(PoolOutcome { pool: Some(pool.metrics()), ..outcome })
        }
        Memory::Malloc => Ok(run_with(job, &Malloc, memory, interrupt, tick)),
        Memory::Vec | Memory::VecUncached => Ok(run_with(job, &Plain, memory, interrupt, tick)),
    }
}

/// Returns room for all buffers that can be in use at once.
fn pool_capacity(job: &PoolJob) -> usize {
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
) -> PoolOutcome {
    let shared = Shared::new(job, memory);
    let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..job.consumers).map(|_| mpsc::channel()).unzip();
    let inboxes = Mutex::new(inboxes);
    let threads = (job.producers + job.consumers) as usize;
    let window = Window::new(threads, (job.warmup, job.duration), Vec::new());
    let (measured, ledgers) = window.run_threads((interrupt, tick), "log", |number, member| {
        // The kernel delays wake-ups by up to 50 µs to save power, which would count as latency. If it refuses to
        // change that, the delay shows as lateness.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let (number, source) = (number as u32, source.clone());
        if number < job.producers {
            let mut producer = Producer::new(&shared, source, number, outboxes.clone());
            return (true, phases(job, &member, async |until, ledger| producer.phase(until, ledger).await));
        }
        let inbox = inboxes.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let inbox = inbox.expect("there is one for each consumer");
        let mut consumer = Consumer::new(&shared, source, inbox);
        (false, phases(job, &member, async |until, ledger| consumer.phase(until, ledger).await))
    });
    let (producers, consumers): (Vec<_>, Vec<_>) = ledgers.into_iter().partition(|(writes, _)| *writes);
    let all = |ledgers: Vec<(bool, Ledger)>| {
        Ledger::of_all(ledgers.into_iter().map(|(_, ledger)| ledger), measured.start)
    };
    PoolOutcome { shared, producers: all(producers), consumers: all(consumers), measured, pool: None }
}

/// Lets a thread work through the warm-up and the measured time, and returns its record of the latter.
fn phases(
    job: &PoolJob,
    member: &Member,
    mut work: impl AsyncFnMut(&Until, &mut Ledger) -> Result<(), Failure>,
) -> Ledger {
    let mut phase = |until: &Until, length: Duration| {
        let work = |ledger: &mut Ledger| ringfile::block_on(work(until, ledger));
        let (ledger, done) = Ledger::of_thread(until.end() - length, work);
        done.unwrap_or_else(|failure| member.window().fail(failure));
        ledger
    };
    phase(&member.ready(), job.warmup);
    let ledger = phase(&member.warmed_up(), job.duration);
    member.finished();
    ledger
}

#[cfg(test)]
pub mod tests {
    use std::path::Path;
    use std::time::Instant;

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
        let measured = &outcome.measured;
        assert!(measured.failure.is_none() && !measured.stopped, "{:?}", measured.failure);
        outcome
    }

    #[track_caller]
    fn check(job: &PoolJob, memory: Memory) -> PoolOutcome {
        let outcome = done(job, memory);
        let (written, checked) = (outcome.shared.written(), outcome.shared.checked());
        assert!(written > 0 && written == checked, "{written} written, {checked} checked");
        let (produced, consumed) = (outcome.producers.latency.count(), outcome.consumers.latency.count());
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
            assert_eq!((outcome.pool.is_some(), outcome.producers.backlog), (memory.is_pooled(), None));
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
            let (mut all, now) = (Vec::new(), Instant::now());
            let mut ledger = Ledger::begin(now);
            for _ in 0..2 * 40 {
                all.extend(producer.write(now, &|| false, &mut ledger).await.expect("written"));
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
                assert!(written > 0 && checked == 0);
                let (produced, read) = (&produced.producers.latency, &produced.consumers.latency);
                assert!(produced.count() > 0 && read.count() == 0);
            }
        }
    }

    #[test]
    fn at_a_rate_nothing_is_skipped() {
        let folder = tempfile::tempdir().expect("temporary folder");
        // 100 batches a second of all producers, for half a second.
        let (rate, warmup) = (Some(100 * 8192), Duration::ZERO);
        let job = PoolJob { rate, warmup, duration: Duration::from_millis(500), ..job(folder.path()) };
        let outcome = check(&job, Memory::Vec);
        let done = outcome.producers.latency.count();
        assert_eq!(done + outcome.producers.backlog.expect("at a rate"), 2 * 50);
    }

    #[test]
    fn a_rate_that_no_machine_carries_leaves_a_backlog() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = PoolJob { rate: Some(1 << 40), ..job(folder.path()) };
        let outcome = check(&job, Memory::Vec);
        let due = (u128::from(job.rate.expect("a rate")) / 10 / 8192) as u64 * 2;
        let backlog = outcome.producers.backlog.expect("at a rate");
        let done = outcome.producers.latency.count() + backlog;
        assert!(done.abs_diff(due) <= 2 * 2 && backlog > 0, "{done} of {due}");
        let latency = outcome.producers.latency.summary().expect("recorded");
        assert!(latency.max > 90_000_000, "what was begun last was due long before: {latency:?}");
    }

    #[test]
    fn a_folder_that_goes_away_is_an_error_and_ends_the_run() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = PoolJob { duration: Duration::from_secs(60), ..job(&folder.path().join("gone")) };
        let outcome = run(&job, Memory::Vec, &Interrupt::default(), &mut || {}).expect("it can be started");
        let error = outcome.measured.failure.expect("there is no folder").to_string();
        assert!(outcome.measured.stopped && error.contains("gone") && error.contains("errno 2"), "{error}");
    }
}
