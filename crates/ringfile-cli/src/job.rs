//! The description of one run that every engine receives, and the sequence of operations that each of its tasks carries
//! out.
//!
//! Invariants: with `--verify` no two tasks ever touch the same block, so that a block's contents are always known;
//! without it the tasks of a thread take their operations from the thread's [`Share`].

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::model::{Access, Route, Rw, Setup};
use crate::share::{Share, part_of};
use crate::verify::Verifier;
use fastrand::Rng;

/// One run: what to do, how much in parallel, how long.
#[derive(Debug, Clone)]
pub struct Job {
    /// The value of each factor.
    pub setup: Setup,
    /// Parts of each operation's memory; 1 if it is not vectored.
    pub parts: usize,
    /// Blocks in the part of the file that is used, which begins at offset 0.
    pub blocks: u64,
    /// Warm-up, which is not counted.
    pub warmup: Duration,
    /// The longest measured time. A run with [`Access::Once`] ends earlier when all blocks were visited.
    pub duration: Duration,
    /// Which blocks operations visit.
    pub access: Access,
    /// Whether each thread has a core of its own.
    pub pinned: bool,
    /// Checks contents.
    pub verify: Option<Arc<Verifier>>,
}

impl Job {
    /// Returns the blocks of one thread. Threads have separate parts in sequential access and with [`Access::Once`].
    pub fn part(&self, thread: usize) -> Range<u64> {
        part_of(self.blocks, self.setup.numjobs, thread)
    }

    /// Returns the shares of all threads.
    pub fn shares(&self) -> Vec<Share> {
        let of_thread = |thread| {
            let blocks = self.part(thread);
            let limit = (self.access == Access::Once).then_some(blocks.end - blocks.start);
            Share::new(blocks, self.random(thread as u64).u64(..), limit)
        };
        (0..self.setup.numjobs).map(of_thread).collect()
    }

    /// Returns the number of reads in a batch; 1 if reads are submitted one by one.
    pub fn batch_size(&self) -> usize {
        self.setup.batch.unwrap_or(1)
    }

    /// Batches in flight for each thread.
    pub fn batches_in_flight(&self) -> usize {
        self.setup.inflight.unwrap_or(1)
    }

    /// Returns the route of the library's operations.
    pub fn route(&self) -> Route {
        self.setup.route.unwrap_or(Route::Auto)
    }

    /// Returns a task of random reads that takes them from a share: a different sequence for each number.
    pub fn reads(&self, number: usize, share: &Arc<Share>) -> Task {
        self.numbered(number as u64, self.all_blocks(), share)
    }

    /// Returns a random number generator, seeded differently for each number.
    pub fn random(&self, number: u64) -> Rng {
        Rng::with_seed(number + 1)
    }

    /// Returns the tasks of one thread, which take their operations from its share.
    pub fn tasks(&self, thread: usize, share: &Arc<Share>) -> Vec<Task> {
        let shared_position = Arc::default();
        (0..self.setup.iodepth).map(|index| self.task(thread, index, share, &shared_position)).collect()
    }

    fn task(
        &self,
        thread: usize,
        index: usize,
        share: &Arc<Share>,
        shared_position: &Arc<AtomicU64>,
    ) -> Task {
        let part = self.part(thread);
        let per_thread = part.end - part.start;
        let (thread, index, depth) = (thread as u64, index as u64, self.setup.iodepth as u64);
        let (number, tasks) = (thread * depth + index, self.setup.numjobs as u64 * depth);
        let position = || if self.verify.is_some() { Arc::default() } else { shared_position.clone() };
        let blocks = match (self.setup.rw.random(), self.verify.is_some()) {
            (true, false) => self.all_blocks(),
            (true, true) => (
                Blocks { first: number, step: tasks, count: (self.blocks - number).div_ceil(tasks) },
                Order::Random,
            ),
            (false, false) => {
                (Blocks { first: part.start, step: 1, count: per_thread }, Order::InTurn(position()))
            }
            (false, true) => {
                let count = (per_thread - index).div_ceil(depth);
                (Blocks { first: part.start + index, step: depth, count }, Order::InTurn(position()))
            }
        };
        self.numbered(number, blocks, share)
    }

    /// Returns all blocks in random order, each once if that was asked for.
    fn all_blocks(&self) -> (Blocks, Order) {
        let order = if self.access == Access::Once { Order::Once } else { Order::Random };
        (Blocks { first: 0, step: 1, count: self.blocks }, order)
    }

    fn numbered(&self, number: u64, (range, order): (Blocks, Order), share: &Arc<Share>) -> Task {
        Task {
            rw: self.setup.rw,
            block: self.setup.block,
            range,
            order,
            random: self.random(number),
            share: share.clone(),
            verify: self.verify.clone(),
        }
    }
}

/// The blocks `first`, `first + step`, … of which there are `count`.
#[derive(Debug)]
struct Blocks {
    first: u64,
    step: u64,
    count: u64,
}

#[derive(Debug)]
enum Order {
    /// Any of the blocks.
    Random,
    /// The order of the share, which contains each block once.
    Once,
    /// The next position, shared by the tasks of one thread and by no others.
    InTurn(Arc<AtomicU64>),
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Offset in bytes.
    pub offset: u64,
    /// Whether it is a write; otherwise it is a read.
    pub write: bool,
}

impl Operation {
    /// Returns its name in error messages.
    pub fn verb(&self) -> &'static str {
        if self.write { "write" } else { "read" }
    }
}

/// The operations that one task carries out, one after another.
#[derive(Debug)]
pub struct Task {
    rw: Rw,
    block: u64,
    range: Blocks,
    order: Order,
    random: Rng,
    share: Arc<Share>,
    verify: Option<Arc<Verifier>>,
}

impl Task {
    /// Returns the next operation; `None` at the end of the work.
    pub fn next(&mut self) -> Option<Operation> {
        let number = self.share.take(1).next()?;
        Some(self.operation(number))
    }

    /// Replaces `offsets` by those of the next `count` operations in bytes, or of fewer at the end of the work.
    pub fn take(&mut self, count: usize, offsets: &mut Vec<u64>) {
        offsets.clear();
        for number in self.share.take(count as u64) {
            offsets.push(self.operation(number).offset);
        }
    }

    /// Returns the operation with this number in the share.
    fn operation(&mut self, number: u64) -> Operation {
        let index = match &self.order {
            Order::Random => self.random.u64(..self.range.count),
            Order::Once => self.share.block(number),
            Order::InTurn(position) => {
                let index = position.load(Ordering::Relaxed);
                let next = if index + 1 < self.range.count { index + 1 } else { 0 };
                position.store(next, Ordering::Relaxed);
                index
            }
        };
        let write = match self.rw {
            Rw::Read | Rw::RandRead => false,
            Rw::Write | Rw::RandWrite => true,
            Rw::RandRw => self.random.u64(..) >> 63 == 1,
        };
        Operation { offset: (self.range.first + index * self.range.step) * self.block, write }
    }

    /// Fills a buffer with the random bytes that are written when contents are not checked.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.random.fill(bytes);
    }

    /// Returns whether contents are checked; that takes time that counts for no operation's latency.
    pub fn verifies(&self) -> bool {
        self.verify.is_some()
    }

    /// Prepares the buffer of an operation: a checked write gets its content.
    pub fn before(&self, operation: Operation, bytes: &mut [u8]) {
        if let (Some(verify), true) = (&self.verify, operation.write) {
            verify.stamp(bytes, operation.offset);
        }
    }

    /// Records a write, or checks the content of a read.
    pub fn after(&self, operation: Operation, bytes: &[u8]) -> Result<(), String> {
        match &self.verify {
            None => Ok(()),
            Some(verify) if operation.write => {
                verify.written(operation.offset);
                Ok(())
            }
            Some(verify) => verify.check(bytes, operation.offset),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Returns a job with blocks of 512 bytes.
    pub fn job(rw: Rw, numjobs: usize, iodepth: usize, blocks: u64, verify: bool) -> Job {
        let setup = Setup { numjobs, iodepth, rw, block: 512, ..Setup::default() };
        Job {
            setup,
            parts: 1,
            blocks,
            warmup: Duration::ZERO,
            duration: Duration::from_secs(1),
            access: Access::Any,
            pinned: false,
            verify: verify.then(|| Arc::new(Verifier::new(512, blocks))),
        }
    }

    fn tasks(job: &Job, thread: usize) -> Vec<Task> {
        job.tasks(thread, &Arc::new(job.shares().swap_remove(thread)))
    }

    fn offsets(task: &mut Task, count: usize) -> Vec<u64> {
        (0..count).map_while(|_| task.next()).map(|operation| operation.offset / 512).collect()
    }

    #[test]
    fn threads_read_their_own_part_in_order() {
        let job = job(Rw::Read, 2, 2, 8, false);
        let mut tasks = tasks(&job, 1);
        let mut seen = Vec::new();
        for turn in 0..6 {
            seen.extend(offsets(&mut tasks[turn % 2], 1));
        }
        assert_eq!(seen, [4, 5, 6, 7, 4, 5]);
    }

    #[test]
    fn verified_tasks_share_no_block_and_leave_none_out() {
        for (rw, blocks) in [(Rw::RandRw, 37), (Rw::Write, 36)] {
            let job = job(rw, 2, 3, blocks, true);
            let mut owners: Vec<HashSet<u64>> = Vec::new();
            for thread in 0..2 {
                for mut task in tasks(&job, thread) {
                    owners.push(offsets(&mut task, 1000).into_iter().collect());
                }
            }
            let all: HashSet<u64> = owners.iter().flatten().copied().collect();
            assert_eq!(
                all.len(),
                owners.iter().map(HashSet::len).sum::<usize>(),
                "{rw:?}: a block has two owners"
            );
            assert_eq!(all, (0..blocks).collect(), "{rw:?}: a block has none");
        }
    }

    #[test]
    fn random_tasks_cover_the_file_and_differ() {
        let job = job(Rw::RandRead, 1, 2, 16, false);
        let mut tasks = tasks(&job, 0);
        let (one, two) = (offsets(&mut tasks[0], 500), offsets(&mut tasks[1], 500));
        assert_ne!(one, two);
        assert_eq!(one.into_iter().collect::<HashSet<_>>(), (0..16).collect());
    }

    #[test]
    fn tasks_and_batches_of_all_threads_take_each_block_once() {
        for rw in [Rw::RandRead, Rw::Read] {
            let job = Job { access: Access::Once, ..job(rw, 3, 4, 101, false) };
            let mut tasks: Vec<Task> = (0..3).flat_map(|thread| tasks(&job, thread)).collect();
            // Each task in turn takes one, for one turn more than there can be.
            let mut blocks: Vec<u64> = (0..102)
                .flat_map(|_| tasks.iter_mut().flat_map(|task| offsets(task, 1)).collect::<Vec<_>>())
                .collect();
            blocks.sort_unstable();
            assert_eq!(blocks, (0..101).collect::<Vec<_>>(), "{rw:?}");
        }
        let job = Job { access: Access::Once, ..job(Rw::RandRead, 2, 4, 101, false) };
        let mut blocks = Vec::new();
        for (number, share) in job.shares().into_iter().enumerate() {
            let share = Arc::new(share);
            let (mut one, mut other) = (job.reads(2 * number, &share), job.reads(2 * number + 1, &share));
            let mut taken = Vec::new();
            for _ in 0..101 {
                one.take(7, &mut taken);
                blocks.append(&mut taken);
                blocks.extend(other.next().map(|operation| operation.offset));
            }
        }
        blocks.sort_unstable();
        assert_eq!(blocks, (0..101).map(|block| block * 512).collect::<Vec<_>>());
    }

    #[test]
    fn half_of_randrw_writes() {
        let job = job(Rw::RandRw, 1, 1, 16, false);
        let mut task = tasks(&job, 0).remove(0);
        let writes = (0..10_000).filter_map(|_| task.next()).filter(|operation| operation.write).count();
        assert!((4500..5500).contains(&writes), "{writes}");
    }
}
