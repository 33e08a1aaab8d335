//! The share of a job that one thread does: its blocks, and the number of its operations.
//!
//! All tasks and batches of the thread take their operations from one [`Share`], even if they run on other threads.
//! Invariants: a phase hands out no more operations than the limit, and with [`Access::Once`](crate::model::Access::Once) no block twice. The
//! shares of all threads cover all blocks and do not overlap.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::shuffle::Shuffle;
use fastrand::Rng;

/// One thread's share of a job.
#[derive(Debug)]
pub struct Share {
    first: u64,
    shuffle: Shuffle,
    seed: u64,
    /// Operations of a phase; `None` if only time ends the phase.
    limit: Option<u64>,
    /// Operations handed out in this phase.
    taken: AtomicU64,
    /// 0 for the warm-up, 1 for the measurement, which visits the blocks in another order.
    phase: AtomicU64,
}

impl Share {
    /// Returns a share of `blocks`, of which a phase takes `limit` operations, if there is a limit.
    pub fn new(blocks: Range<u64>, seed: u64, limit: Option<u64>) -> Share {
        Share {
            first: blocks.start,
            shuffle: Shuffle::new(blocks.end - blocks.start),
            seed,
            limit,
            taken: AtomicU64::new(0),
            phase: AtomicU64::new(0),
        }
    }

    /// Begins the next phase. No thread may call [`take`](Self::take) meanwhile.
    pub fn restart(&self) {
        self.taken.store(0, Ordering::Relaxed);
        self.phase.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes up to `count` operations and returns their numbers within the phase; an empty range if none is left. Without a
    /// limit the numbers are not unique.
    pub fn take(&self, count: u64) -> Range<u64> {
        let Some(limit) = self.limit else { return 0..count };
        let begin = self.taken.fetch_add(count, Ordering::Relaxed).min(limit);
        begin..begin.saturating_add(count).min(limit)
    }

    /// Returns the block of the operation with that number, for [`Access::Once`](crate::model::Access::Once).
    pub fn block(&self, number: u64) -> u64 {
        let key = Rng::with_seed(self.seed ^ self.phase.load(Ordering::Relaxed)).u64(..);
        self.first + self.shuffle.at(number, key)
    }
}

/// Divides `all` among threads and returns one thread's part. If it does not divide evenly, the first threads get one more;
/// fio's job is written with the same parts.
pub fn part_of(all: u64, threads: usize, thread: usize) -> Range<u64> {
    let (threads, thread) = (threads as u64, thread as u64);
    let (each, more) = (all / threads, all % threads);
    let start = thread * each + thread.min(more);
    start..start + each + u64::from(thread < more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;
    use crate::job::tests::job;
    use crate::model::Access;
    use crate::model::Rw;

    /// Returns the blocks that all shares hand out in a phase, `count` at a time in turn.
    fn blocks_of(shares: &[Share], count: u64) -> Vec<u64> {
        let mut blocks = Vec::new();
        loop {
            let before = blocks.len();
            for share in shares {
                blocks.extend(share.take(count).map(|number| share.block(number)));
            }
            if blocks.len() == before {
                return blocks;
            }
        }
    }

    #[test]
    fn parts_cover_all_and_differ_by_one_at_most() {
        for (all, threads) in [(1, 1), (7, 3), (8, 4), (101, 2), (5, 5), (3, 4), (0, 2)] {
            let parts: Vec<Range<u64>> = (0..threads).map(|thread| part_of(all, threads, thread)).collect();
            assert_eq!((parts[0].start, parts[threads - 1].end), (0, all));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
            let lengths: Vec<u64> = parts.iter().map(|part| part.end - part.start).collect();
            assert!(lengths[0] - lengths[threads - 1] <= 1 && lengths.is_sorted_by(|one, next| one >= next));
        }
    }

    #[test]
    fn all_threads_together_take_each_block_once_in_each_phase() {
        for (blocks, numjobs) in [(1, 1), (37, 1), (101, 2), (1000, 3), (1024, 4), (7, 7)] {
            let job = Job { access: Access::Once, ..job(Rw::RandRead, numjobs, 4, blocks, false) };
            let shares = job.shares();
            let mut orders = Vec::new();
            for count in [1, 16] {
                let order = blocks_of(&shares, count);
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..blocks).collect::<Vec<_>>(), "{blocks} blocks, {numjobs} threads");
                assert!(shares.iter().all(|share| share.take(1).is_empty()));
                orders.push(order);
                shares.iter().for_each(Share::restart);
            }
            assert!(blocks < 1000 || orders[0] != orders[1], "the measurement has a different order");
        }
    }

    #[test]
    fn threads_that_take_from_one_share_at_once_get_no_number_twice() {
        let job = Job { access: Access::Once, ..job(Rw::RandRead, 1, 4, 10_007, false) };
        let share = &job.shares()[0];
        let mut blocks: Vec<u64> = std::thread::scope(|scope| {
            let all = || {
                let taken = std::iter::from_fn(|| Some(share.take(7)).filter(|taken| !taken.is_empty()));
                taken.flatten().map(|number| share.block(number)).collect::<Vec<_>>()
            };
            let handles: Vec<_> = (0..4).map(|_| scope.spawn(all)).collect();
            handles.into_iter().flat_map(|handle| handle.join().expect("it ends")).collect()
        });
        blocks.sort_unstable();
        assert_eq!(blocks, (0..10_007).collect::<Vec<_>>());
    }

    #[test]
    fn without_a_limit_there_is_always_more() {
        let shares = job(Rw::RandRead, 1, 4, 8, false).shares();
        assert!((0..1000).all(|_| shares[0].take(5) == (0..5)));
    }
}
