//! When batches are due, and when a thread has done enough: the open loop.
//!
//! Invariants: the time at which a batch is due depends only on the rate and its number, never on earlier batches. So a
//! stall delays all batches that are due meanwhile, and shows in their latencies; a loop that begins each batch after the
//! last one would count it once.

use std::time::{Duration, Instant};

use super::segments::TICK;
use super::shared::PoolJob;
use crate::engine::window::Until;

const NANOS: u128 = 1_000_000_000;

/// The longest time that producers continue after the end, for batches that were due before.
const MOST_GRACE: Duration = Duration::from_secs(1);

/// The pace of one thread in a phase: at a rate, or as fast as possible.
pub struct Pace<'a> {
    schedule: Option<Schedule>,
    begin: Instant,
    until: &'a Until,
}

impl Pace<'_> {
    /// Returns the pace of producer `number`, which shares the rate with the others, from `begin` on.
    pub fn of<'a>(job: &PoolJob, number: u32, begin: Instant, until: &'a Until) -> Pace<'a> {
        let schedule = job.rate.map(|rate| Schedule {
            rate,
            batch_bytes: job.batch_bytes(),
            producers: u64::from(job.producers),
            producer: u64::from(number),
        });
        Pace { schedule, begin, until }
    }

    /// Waits until a batch is due, and returns when that was; `None` after the last. Batches are never skipped.
    pub fn wait_for(&self, batch: u64) -> Option<Instant> {
        // Unless the run is stopped, each thread does a batch, however late it starts or the disk responds: otherwise
        // the longest stalls would have no figures.
        let (end, has_some) = (self.until.end(), batch > 0);
        let now = Instant::now();
        let due = match self.schedule {
            Some(schedule) => self.begin.checked_add(schedule.due(batch)?).filter(|&due| due < end)?,
            None if now >= end && has_some => return None,
            None => now,
        };
        loop {
            let now = Instant::now();
            let given_up = self.schedule.is_some() && now >= self.give_up() && has_some;
            if self.until.stopped() || given_up {
                return None;
            }
            match due.saturating_duration_since(now) {
                Duration::ZERO => return Some(due),
                left => std::thread::sleep(left.min(TICK)),
            }
        }
    }

    /// Returns when producers give up on overdue batches: a tenth of the phase after its end. A producer that needs
    /// longer does not reach the rate.
    fn give_up(&self) -> Instant {
        let end = self.until.end();
        end + ((end - self.begin) / 10).min(MOST_GRACE)
    }

    /// Returns the batches that were due but not begun when the thread gave up after so many; `None` without a rate, or
    /// if it was stopped.
    pub fn backlog(&self, batches: u64) -> Option<u64> {
        // The rest of a stopped run is no backlog.
        let schedule = self.schedule.filter(|_| !self.until.stopped())?;
        Some(schedule.due_before(self.until.end() - self.begin).saturating_sub(batches))
    }
}

/// The times at which one producer's batches are due. Those of all producers together are spread evenly.
#[derive(Debug, Clone, Copy)]
struct Schedule {
    /// Bytes a second, of all producers together.
    rate: u64,
    batch_bytes: u64,
    producers: u64,
    /// The number of this one, from 0.
    producer: u64,
}

impl Schedule {
    /// Returns how long after the beginning this producer's batch is due, counted from 0; `None` if that is centuries
    /// away.
    fn due(&self, number: u64) -> Option<Duration> {
        let of_all = u128::from(number) * u128::from(self.producers) + u128::from(self.producer);
        let nanos = of_all * u128::from(self.batch_bytes) * NANOS / u128::from(self.rate);
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    }

    /// Returns how many of this producer's batches are due before so much time has passed.
    fn due_before(&self, time: Duration) -> u64 {
        let of_all = (time.as_nanos() * u128::from(self.rate)).div_ceil(u128::from(self.batch_bytes) * NANOS);
        let own = of_all.saturating_sub(u128::from(self.producer)).div_ceil(u128::from(self.producers));
        u64::try_from(own).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Ledger;
    use super::*;

    fn schedule(rate: u64, producers: u64, producer: u64) -> Schedule {
        Schedule { rate, batch_bytes: 1000, producers, producer }
    }

    #[test]
    fn batches_of_all_producers_are_spread_evenly() {
        let due = |producer, number| schedule(1_000_000, 4, producer).due(number);
        assert_eq!(due(0, 0), Some(Duration::ZERO));
        assert_eq!(due(3, 0), Some(Duration::from_millis(3)));
        assert_eq!(due(1, 2), Some(Duration::from_millis(9)));
        assert_eq!(schedule(1, 1, 0).due(u64::MAX), None);
    }

    #[test]
    fn the_number_due_before_a_time_matches_the_due_times() {
        for (rate, producers) in [(1_000_000, 1), (999_983, 3), (7, 5), (1 << 40, 1024)] {
            for producer in [0, producers - 1] {
                let schedule = schedule(rate, producers, producer);
                for time in [Duration::from_nanos(1), Duration::from_micros(1500), Duration::from_secs(3)] {
                    let count = schedule.due_before(time);
                    assert!(schedule.due(count).is_none_or(|due| due >= time), "{schedule:?} {time:?}");
                    assert!(count == 0 || schedule.due(count - 1).is_some_and(|due| due < time));
                }
            }
        }
    }

    /// Returns the record of a disk at 1000 batches a second, of which one takes 100 ms and each other one `usual`.
    fn with_a_stall(batches: u64, stalled: u64, usual: Duration) -> Ledger {
        let begin = Instant::now();
        let (schedule, mut ledger) = (schedule(1_000_000, 1, 0), Ledger::begin(begin));
        let mut now = begin;
        for number in 0..batches {
            let due = begin + schedule.due(number).expect("soon");
            let began = now.max(due);
            now = began + if number == stalled { Duration::from_millis(100) } else { usual };
            ledger.record(due, began, now, 1);
        }
        ledger
    }

    #[test]
    fn a_stall_is_not_hidden() {
        let ledger = with_a_stall(10_000, 5000, Duration::from_micros(50));
        let latency = ledger.latency.summary().expect("recorded");
        assert_eq!(ledger.latency.count(), 10_000, "none is skipped");
        // About 105 batches were due before all was caught up: one in a hundred, each with its own wait.
        let near = |nanos: u64, millis: u64| nanos.abs_diff(millis * 1_000_000) < 2_000_000;
        assert!(near(latency.p999, 90) && near(latency.p9999, 99) && near(latency.max, 100), "{latency:?}");
        assert!(latency.p99 > 1_000_000 && latency.p50 < 60_000, "{latency:?}");
        let late = ledger.late.summary().expect("recorded");
        assert!(near(late.max, 99), "and the lateness shows where it came from: {late:?}");
    }

    #[test]
    fn a_second_with_a_stall_shows_it_in_the_99th_percentile() {
        let ledger = with_a_stall(1000, 500, Duration::ZERO);
        let latency = ledger.latency.summary().expect("recorded");
        assert!(latency.p99 > 85_000_000 && latency.p95 > 45_000_000, "{latency:?}");
    }
}
