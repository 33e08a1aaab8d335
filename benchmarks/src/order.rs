//! The order in which the tasks of a job read the file's blocks. It depends only on the seed and the number of tasks; for
//! scans that several tasks share, also on the order in which their reads end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::data;

/// The exponent of Zipf's law.
const EXPONENT: f64 = 0.99;
/// Beside Zipf reads, one read in this many is the next block of the scan.
const SCAN_EVERY: u64 = 8;

/// The order in which blocks are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// At random.
    Random,
    /// At random, no block twice: the work ends early if every block was read.
    ShuffledOnce,
    /// At random, each block three times in all; then the work ends.
    ShuffledThrice,
    /// From the file's first block to its last; then the work ends.
    InOrderOnce,
    /// At random by Zipf's law: few blocks, scattered over the file, are read often.
    Zipf,
    /// From the first block to the last, again and again; the tasks take the next block in turn.
    Scan,
    /// [`Order::Zipf`], but every eighth read of each task is the next block of a scan.
    ScanBesideZipf,
}

impl Order {
    /// Returns whether the work ends when each block was read as often as the order says.
    pub fn ends(self) -> bool {
        matches!(self, Order::ShuffledOnce | Order::ShuffledThrice | Order::InOrderOnce)
    }
}

/// The order for all tasks of a job.
#[derive(Debug, Clone)]
pub struct Plan {
    order: Order,
    blocks: u64,
    seed: u64,
    tasks: usize,
    /// The blocks in their order, or by their rank in Zipf's law.
    list: Arc<[u64]>,
    zipf: Zipf,
    scanned: Arc<AtomicU64>,
}

impl Plan {
    /// Prepares the order of this many blocks for this many tasks.
    pub fn new(order: Order, blocks: u64, seed: u64, tasks: usize) -> Plan {
        let list = match order {
            Order::Random | Order::Scan => Arc::default(),
            Order::InOrderOnce => (0..blocks).collect(),
            Order::ShuffledOnce | Order::Zipf | Order::ScanBesideZipf => data::shuffled(blocks, seed),
            Order::ShuffledThrice => {
                data::shuffled(3 * blocks, seed).iter().map(|place| place % blocks).collect()
            }
        };
        let zipf = match order {
            Order::Zipf | Order::ScanBesideZipf => Zipf::new(blocks),
            _ => Zipf::default(),
        };
        Plan { order, blocks, seed, tasks, list, zipf, scanned: Arc::default() }
    }

    /// Returns the blocks that one task reads.
    pub fn of_task(&self, task: usize) -> Blocks {
        let random = Rng::with_seed(self.seed.wrapping_mul(0x1_0000).wrapping_add(task as u64));
        Blocks { plan: self.clone(), random, next: task as u64 }
    }
}

/// Draws ranks by Zipf's law, as YCSB does (Gray and others, "Quickly Generating Billion-Record Synthetic Databases",
/// 1994).
#[derive(Debug, Clone, Copy, Default)]
struct Zipf {
    blocks: f64,
    /// The weight of the first two blocks, and of all.
    of_two: f64,
    of_all: f64,
    eta: f64,
}

impl Zipf {
    fn new(blocks: u64) -> Zipf {
        let of_two = 1.0 + 0.5_f64.powf(EXPONENT);
        let of_all: f64 = (1..=blocks).map(|rank| (rank as f64).powf(-EXPONENT)).sum();
        let eta = (1.0 - (2.0 / blocks as f64).powf(1.0 - EXPONENT)) / (1.0 - of_two / of_all);
        Zipf { blocks: blocks as f64, of_two, of_all, eta }
    }

    /// Returns the rank, from 0, of a number from 0 to 1.
    fn rank(&self, uniform: f64) -> usize {
        match uniform * self.of_all {
            weight if weight < 1.0 => 0,
            weight if weight < self.of_two => 1,
            _ => (self.blocks * (self.eta * uniform - self.eta + 1.0).powf(1.0 / (1.0 - EXPONENT))) as usize,
        }
    }
}

/// The blocks of one task.
#[derive(Debug)]
pub struct Blocks {
    plan: Plan,
    random: Rng,
    /// The task's next place in the list; with Zipf reads, how many blocks the task has read, beginning with its number.
    next: u64,
}

impl Blocks {
    /// Returns the next block; `None` if the task has read all of its blocks.
    #[inline]
    pub fn next(&mut self) -> Option<u64> {
        match self.plan.order {
            Order::Random => Some(self.random.u64(..self.plan.blocks)),
            Order::ShuffledOnce | Order::ShuffledThrice | Order::InOrderOnce => {
                let block = self.plan.list.get(self.next as usize).copied();
                self.next += self.plan.tasks as u64;
                block
            }
            Order::Zipf => Some(self.zipf()),
            Order::Scan => Some(self.scan()),
            Order::ScanBesideZipf => {
                self.next += 1;
                Some(if self.next.is_multiple_of(SCAN_EVERY) { self.scan() } else { self.zipf() })
            }
        }
    }

    fn scan(&self) -> u64 {
        self.plan.scanned.fetch_add(1, Ordering::Relaxed) % self.plan.blocks
    }

    fn zipf(&mut self) -> u64 {
        let rank = self.plan.zipf.rank(self.random.f64());
        self.plan.list[rank.min(self.plan.list.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(plan: &Plan, task: usize, count: usize) -> Vec<u64> {
        let mut blocks = plan.of_task(task);
        std::iter::from_fn(|| blocks.next()).take(count).collect()
    }

    #[test]
    fn zipf_reads_repeat_with_the_seed_and_prefer_few_blocks() {
        let plan = Plan::new(Order::Zipf, 10_000, 3, 16);
        let blocks = taken(&plan, 0, 20_000);
        assert_eq!(blocks, taken(&Plan::new(Order::Zipf, 10_000, 3, 16), 0, 20_000));
        let reads_of = |ranks: &[u64]| blocks.iter().filter(|block| ranks.contains(block)).count();
        let (hottest, hundred) = (reads_of(&plan.list[..1]), reads_of(&plan.list[..100]));
        // By the law 1 / 10.2, and 5.3 / 10.2.
        assert!((1_700..2_300).contains(&hottest), "{hottest} of 20000");
        assert!((9_600..11_400).contains(&hundred), "{hundred} of 20000");
    }

    #[test]
    fn a_scan_goes_round_and_is_an_eighth_beside_zipf_reads() {
        let plan = Plan::new(Order::Scan, 5, 1, 2);
        assert_eq!(taken(&plan, 0, 7), [0, 1, 2, 3, 4, 0, 1]);
        assert_eq!(taken(&plan, 1, 2), [2, 3], "the tasks share the scan");
        let plan = Plan::new(Order::ScanBesideZipf, 1000, 1, 1);
        taken(&plan, 0, 800);
        assert_eq!(plan.scanned.load(Ordering::Relaxed), 100);
    }
}
