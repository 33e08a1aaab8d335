//! What `perf buffers` measures, and in which order.
//!
//! A cell is what all kinds of buffers have in common. Within it every round runs all kinds in turn, so that what is
//! compared was measured next to each other, and begins with another one; the A/A run, the first kind once more, ends the
//! round. The cells of the smallest block at depths 1 and 16 hold beside the buffers the other choices: page cache
//! or not, and route.

use std::time::Duration;

use crate::cli::{Buffers, Cache, Executor, RingFlags, Route, Rw};
use crate::engine::Engine;
use crate::report::results::{Key, Role, Run};

/// Depths at which the choices beside the buffers are measured.
const CHOICE_DEPTHS: [usize; 2] = [1, 16];

/// The smallest part of a vectored block.
const SMALLEST_PART: u64 = 512;

/// A process to start and to end, and its pool to register.
const SET_UP: Duration = Duration::from_millis(40);

/// The whole of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// Bytes of an operation.
    pub block_sizes: Vec<u64>,
    /// Operations in flight for each process.
    pub depths: Vec<usize>,
    /// Kinds of buffers.
    pub buffers: Vec<Buffers>,
    /// Parts of a vectored block, at most.
    pub parts: usize,
    /// What parts and blocks must be multiples of.
    pub alignment: u64,
    /// Processes.
    pub processes: Vec<usize>,
    /// Access.
    pub rw: Vec<Rw>,
    /// O_DIRECT.
    pub direct: bool,
    /// Way of the operations.
    pub route: Route,
    /// Flags of the rings; never empty, and `None` alone where none were asked for.
    pub ring_flags: Vec<Option<RingFlags>>,
    /// Whether rings by hand are measured as well.
    pub by_hand: bool,
    /// Whether there is a ring to choose.
    pub has_ring: bool,
    /// Length of a run.
    pub duration: Duration,
    /// Time before it.
    pub warmup: Duration,
    /// Rounds.
    pub rounds: u32,
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Processes.
    pub processes: usize,
    /// Access.
    pub rw: Rw,
    /// Bytes of an operation.
    pub block: u64,
    /// Operations in flight for each process.
    pub depth: usize,
    /// What is compared.
    pub kind: Kind,
    /// Why.
    pub role: Role,
    /// Round, from 1.
    pub round: u32,
}

/// What is compared in a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kind {
    /// What carries it out.
    pub engine: Engine,
    /// Flags of its ring.
    pub ring_flags: Option<RingFlags>,
    /// Buffers.
    pub buffers: Buffers,
    /// Parts of each.
    pub parts: usize,
    /// O_DIRECT.
    pub direct: bool,
    /// Page cache.
    pub cache: Cache,
    /// Way of the operations.
    pub route: Route,
}

/// What all runs of a cell have in common.
#[derive(Clone, Copy)]
struct Cell {
    processes: usize,
    rw: Rw,
    block: u64,
    depth: usize,
}

impl Grid {
    /// All runs, in order.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for &processes in &self.processes {
            for &rw in &self.rw {
                for &block in &self.block_sizes {
                    for &depth in &self.depths {
                        self.cell(&mut steps, Cell { processes, rw, block, depth });
                    }
                }
            }
        }
        steps
    }

    /// The most memory that is in flight at once.
    pub fn memory(&self) -> u64 {
        let most = |counts: &[usize]| counts.iter().max().copied().unwrap_or(1) as u64;
        self.largest_block().saturating_mul(most(&self.depths)).saturating_mul(most(&self.processes))
    }

    /// The largest block.
    pub fn largest_block(&self) -> u64 {
        self.block_sizes.iter().max().copied().unwrap_or(1)
    }

    /// The smallest block.
    pub fn smallest_block(&self) -> u64 {
        self.block_sizes.iter().min().copied().unwrap_or(1)
    }

    /// Parts of a vectored block of this size; `None` where there can't be two.
    pub fn parts_of(&self, block: u64) -> Option<usize> {
        let smallest = self.alignment.max(SMALLEST_PART);
        (2..=self.parts as u64)
            .rev()
            .find(|&parts| block.is_multiple_of(parts) && (block / parts).is_multiple_of(smallest))
            .map(|parts| parts as usize)
    }

    /// About how long a step takes.
    pub fn length(&self, step: &Step) -> Duration {
        self.warmup_of(step) + self.duration + SET_UP
    }

    /// Time before a run that is not counted: none where it would warm the page cache too.
    pub fn warmup_of(&self, step: &Step) -> Duration {
        if step.kind.cache == Cache::Cold { Duration::ZERO } else { self.warmup }
    }

    fn cell(&self, steps: &mut Vec<Step>, cell: Cell) {
        let Cell { processes, rw, block, depth } = cell;
        let mut kinds = self.kinds(cell);
        let Some(&again) = kinds.first() else { return };
        for round in 1..=self.rounds {
            let mut add = |kind, role| steps.push(Step { processes, rw, block, depth, kind, role, round });
            kinds.iter().for_each(|&kind| add(kind, Role::Measure));
            add(again, Role::Aa);
            kinds.rotate_left(1);
        }
    }

    fn kinds(&self, cell: Cell) -> Vec<Kind> {
        let cache = if self.direct { Cache::Keep } else { Cache::Warm };
        let mut kinds = Vec::new();
        for (engine, ring_flags) in self.rings() {
            for &buffers in &self.buffers {
                let parts = if buffers.vectored() { self.parts_of(cell.block) } else { Some(1) };
                let Some(parts) = parts else { continue };
                let (direct, route) = (self.direct, self.route);
                kinds.push(Kind { engine, ring_flags, buffers, parts, direct, cache, route });
            }
        }
        let others = cell.processes == 1
            && cell.rw == Rw::RandRead
            && cell.block == self.smallest_block()
            && CHOICE_DEPTHS.contains(&cell.depth);
        if others && !kinds.is_empty() {
            let choices = self.choices().into_iter();
            kinds.extend(choices.filter(|choice| !kinds.contains(choice)).collect::<Vec<_>>());
        }
        kinds
    }

    /// What the grid is measured with: the library first, each with all flags.
    fn rings(&self) -> Vec<(Engine, Option<RingFlags>)> {
        let engines =
            if self.by_hand { &[Engine::Ringfile, Engine::ByHand][..] } else { &[Engine::Ringfile] };
        let with = |&engine| self.ring_flags.iter().map(move |&flags| (engine, flags));
        engines.iter().flat_map(with).collect()
    }

    /// Ways to read the same block with the plainest buffers.
    fn choices(&self) -> Vec<Kind> {
        let (engine, ring_flags) = (Engine::Ringfile, self.ring_flags[0]);
        let plain = |direct, cache, route| Kind {
            engine,
            ring_flags,
            buffers: Buffers::Normal,
            parts: 1,
            direct,
            cache,
            route,
        };
        let mut choices = Vec::new();
        if self.direct {
            choices.push(plain(true, Cache::Keep, Route::Inline));
            choices.push(plain(false, Cache::Cold, Route::Auto));
            choices.push(plain(false, Cache::Cold, Route::Ring));
        }
        for route in [Route::Auto, Route::Ring, Route::Inline] {
            choices.push(plain(false, Cache::Warm, route));
        }
        choices.retain(|choice| self.has_ring || choice.route != Route::Ring);
        choices
    }
}

impl Step {
    /// The key of the run that it makes.
    pub fn key(&self) -> Key {
        let ours = self.kind.engine.is_ours();
        Key {
            engine: self.kind.engine,
            numjobs: 1,
            processes: Some(self.processes),
            iodepth: self.depth,
            batch: None,
            inflight: None,
            rw: self.rw,
            buffers: self.kind.buffers,
            side: None,
            memory: None,
            direct: self.kind.direct,
            cache: self.kind.cache,
            route: ours.then_some(self.kind.route),
            ring_flags: self.kind.ring_flags,
            executor: ours.then_some(Executor::Ringfile),
            block_size_bytes: self.block,
        }
    }

    /// Whether a run is what this step makes.
    pub fn made(&self, run: &Run) -> bool {
        run.key() == self.key() && (run.role, run.round) == (self.role, self.round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        Grid {
            block_sizes: vec![4096, 131_072],
            depths: vec![1, 128],
            buffers: vec![Buffers::Normal, Buffers::Fixed, Buffers::Vectored, Buffers::VectoredFixed],
            parts: 32,
            alignment: 512,
            processes: vec![1, 2],
            rw: vec![Rw::RandRead],
            direct: true,
            route: Route::Ring,
            ring_flags: vec![None],
            by_hand: false,
            has_ring: true,
            duration: Duration::from_secs(1),
            warmup: Duration::ZERO,
            rounds: 3,
        }
    }

    #[test]
    fn every_run_is_made_once() {
        let steps = grid().steps();
        for (index, step) in steps.iter().enumerate() {
            let same =
                |other: &Step| (other.key(), other.role, other.round) == (step.key(), step.role, step.round);
            assert_eq!(steps.iter().position(same), Some(index), "{step:?}");
        }
        // 8 cells of 4 kinds and A/A, and 6 choices in one of them.
        assert_eq!(steps.len(), 3 * (8 * 5 + 6));
    }

    #[test]
    fn flags_and_rings_by_hand_are_measured_in_the_rounds_of_the_grid() {
        let ring_flags = vec![Some(RingFlags::None), Some(RingFlags::Coop)];
        let grid = Grid { ring_flags, by_hand: true, ..grid() };
        let steps = grid.steps();
        // Four kinds of buffers, two of flags and two of rings, A/A; the choices with the first flags alone.
        assert_eq!(steps.len(), 3 * (8 * (4 * 4 + 1) + 6));
        for (index, step) in steps.iter().enumerate() {
            let same =
                |other: &Step| (other.key(), other.role, other.round) == (step.key(), step.role, step.round);
            assert_eq!(steps.iter().position(same), Some(index), "{step:?}");
        }
        let again = steps.iter().filter(|step| step.role == Role::Aa);
        assert!(again.clone().all(|step| step.kind.engine == Engine::Ringfile));
        assert!(again.clone().all(|step| step.kind.ring_flags == Some(RingFlags::None)));
    }

    #[test]
    fn blocks_are_split_as_far_as_the_alignment_allows() {
        let parts = |alignment, block| Grid { alignment, ..grid() }.parts_of(block);
        assert_eq!((parts(512, 4096), parts(512, 131_072)), (Some(8), Some(32)));
        assert_eq!((parts(4096, 4096), parts(4096, 131_072)), (None, Some(32)));
        assert_eq!((parts(1, 4096), parts(4096, 16_384)), (Some(8), Some(4)));
        assert_eq!(parts(512, 3 * 512), Some(3));
    }

    #[test]
    fn a_file_without_direct_io_or_a_machine_without_a_ring_has_fewer_choices() {
        let cells = |grid: Grid| grid.steps().iter().filter(|step| step.round == 1).count();
        let buffered = Grid { direct: false, ..grid() };
        assert!(buffered.steps().iter().all(|step| !step.kind.direct && step.kind.cache == Cache::Warm));
        // Route ring with a warm cache is in the grid already.
        assert_eq!(cells(buffered), 8 * 5 + 2);
        let workers = Grid { has_ring: false, route: Route::Auto, ..grid() };
        assert!(workers.steps().iter().all(|step| step.kind.route != Route::Ring));
        assert_eq!(cells(workers), 8 * 5 + 4);
    }

    #[test]
    fn kinds_without_parts_leave_no_empty_cell() {
        let grid =
            Grid { alignment: 4096, buffers: vec![Buffers::Vectored], block_sizes: vec![4096], ..grid() };
        assert!(grid.steps().is_empty());
    }
}
