//! Which runs a measurement makes, and in which order.
//!
//! Within a cell every round runs all engines in turn, so that what is compared was measured next to each
//! other; each round begins with another one, for the first place is not like the others (the file was just
//! settled, the processor rested). The A/A run, the first engine once more, ends the round.

use std::time::Duration;

use crate::cli::{Buffers, Cache, Executor, Route, Rw};
use crate::engine::Engine;
use crate::job::Batching;
use crate::report::results::Role;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Grid {
    /// Threads.
    pub numjobs: Vec<usize>,
    /// What is in flight for each thread.
    pub depths: Vec<Depth>,
    /// Access.
    pub rw: Vec<Rw>,
    /// Page cache.
    pub cache: Vec<Cache>,
    /// Ways of ringfile's operations, each with the buffers that it is measured with; never empty.
    pub ways: Vec<(Route, Buffers)>,
    /// Who runs ringfile's tasks; never empty.
    pub executor: Vec<Executor>,
    /// What is measured, the first once more at the end of each round; never empty.
    pub engines: Vec<Engine>,
    /// Rounds.
    pub rounds: u32,
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What does it.
    pub engine: Engine,
    /// Buffers.
    pub buffers: Buffers,
    /// Why.
    pub role: Role,
    /// Round, from 1.
    pub round: u32,
    /// Threads.
    pub numjobs: usize,
    /// Operations in flight for each thread.
    pub iodepth: usize,
    /// Their batches.
    pub batching: Option<Batching>,
    /// Access.
    pub rw: Rw,
    /// Page cache.
    pub cache: Cache,
    /// Way of ringfile's operations; the first one asked for, where another engine does it.
    pub route: Route,
    /// Who runs ringfile's tasks; the first one asked for, where another engine does it.
    pub executor: Executor,
}

/// How much is in flight for each thread, and how it is handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    /// Operations.
    pub iodepth: usize,
    /// Their batches, where they go in batches.
    pub batching: Option<Batching>,
}

impl Depth {
    /// Operations one by one.
    pub fn of(iodepth: usize) -> Depth {
        Depth { iodepth, batching: None }
    }

    /// Operations in batches.
    pub fn of_batches(size: usize, inflight: usize) -> Depth {
        Depth { iodepth: size * inflight, batching: Some(Batching { size, inflight }) }
    }
}

/// What all runs of a cell have in common.
#[derive(Clone, Copy)]
struct Cell {
    numjobs: usize,
    depth: Depth,
    rw: Rw,
    cache: Cache,
    /// Whether what knows no depth has had its turn, in the cell with the first one.
    repeated: bool,
}

impl Grid {
    /// The most threads, and the most operations in flight for one.
    pub fn most(&self) -> (u64, u64) {
        let most = |counts: &mut dyn Iterator<Item = usize>| counts.max().unwrap_or(1) as u64;
        (most(&mut self.numjobs.iter().copied()), most(&mut self.depths.iter().map(|depth| depth.iodepth)))
    }

    /// All runs, in order.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for &cache in &self.cache {
            for &numjobs in &self.numjobs {
                for &rw in &self.rw {
                    for (index, &depth) in self.depths.iter().enumerate() {
                        let repeated = index > 0 && depth.batching.is_none();
                        self.cell(&mut steps, Cell { numjobs, depth, rw, cache, repeated });
                    }
                }
            }
        }
        steps
    }

    fn cell(&self, steps: &mut Vec<Step>, cell: Cell) {
        let Cell { numjobs, depth: Depth { iodepth, batching }, rw, cache, .. } = cell;
        let mut add = |Entry { engine, buffers, executor, route }, role, round| {
            let iodepth = if engine.one_at_a_time() { 1 } else { iodepth };
            steps.push(Step {
                engine,
                buffers,
                role,
                round,
                numjobs,
                iodepth,
                batching,
                rw,
                cache,
                route,
                executor,
            });
        };
        let mut entries = self.entries(cell);
        let again = entries[0];
        for round in 1..=self.rounds {
            entries.iter().for_each(|&entry| add(entry, Role::Measure, round));
            add(again, Role::Aa, round);
            entries.rotate_left(1);
        }
    }

    /// What is compared in a cell; never empty.
    fn entries(&self, cell: Cell) -> Vec<Entry> {
        let mut entries = Vec::new();
        for &engine in &self.engines {
            if engine.is_ours() {
                for &executor in &self.executor {
                    let way = |&(route, buffers)| Entry { engine, buffers, executor, route };
                    entries.extend(self.ways.iter().map(way));
                }
            } else if !(engine.one_at_a_time() && cell.repeated) {
                let (executor, (route, _)) = (self.executor[0], self.ways[0]);
                // Batches are compared with the plain job alone.
                let kinds = if cell.depth.batching.is_some() { &[Buffers::Normal] } else { engine.buffers() };
                entries.extend(kinds.iter().map(|&buffers| Entry { engine, buffers, executor, route }));
            }
        }
        entries
    }
}

/// One of those that are compared in a cell.
#[derive(Clone, Copy)]
struct Entry {
    engine: Engine,
    buffers: Buffers,
    executor: Executor,
    route: Route,
}

/// Every route with every kind of buffers.
pub fn every_way(routes: &[Route], buffers: &[Buffers]) -> Vec<(Route, Buffers)> {
    routes.iter().flat_map(|&route| buffers.iter().map(move |&buffers| (route, buffers))).collect()
}

impl Step {
    /// About how long it takes.
    pub fn length(&self, warmup: Duration, duration: Duration) -> Duration {
        // fio sets itself up for 0.3 s, and has no warm-up.
        match (self.engine.is_fio(), self.cache) {
            (true, _) => duration + Duration::from_millis(350),
            (false, Cache::Cold) => duration,
            (false, _) => warmup + duration,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(against: &[Engine], rounds: u32) -> Grid {
        Grid {
            numjobs: vec![1, 2],
            depths: vec![Depth::of(1), Depth::of(16)],
            rw: vec![Rw::RandRead, Rw::RandWrite],
            cache: vec![Cache::Warm],
            ways: every_way(&[Route::Auto], &Buffers::WHOLE),
            executor: vec![Executor::Ringfile],
            engines: [&[Engine::Ringfile], against].concat(),
            rounds,
        }
    }

    #[test]
    fn the_default_is_sixteen_cells_and_the_noise_of_each_pair() {
        let steps = grid(&[], 1).steps();
        assert_eq!(steps.iter().filter(|step| step.role == Role::Measure).count(), 16);
        assert_eq!(steps.iter().filter(|step| step.role == Role::Aa).count(), 8);
    }

    #[test]
    fn plain_calls_are_measured_once_for_all_depths() {
        let steps = grid(&[Engine::Pread, Engine::FioPsync], 3).steps();
        for engine in [Engine::Pread, Engine::FioPsync] {
            let of_engine: Vec<_> = steps.iter().filter(|step| step.engine == engine).collect();
            assert_eq!(of_engine.len(), 2 * 2 * 3, "{engine:?}");
            assert!(of_engine.iter().all(|step| step.iodepth == 1 && step.buffers == Buffers::Normal));
        }
    }

    #[test]
    fn batches_are_compared_with_plain_jobs_of_their_depth() {
        let mut grid = grid(&[Engine::Fio, Engine::Pread], 1);
        grid.depths = vec![Depth::of_batches(10, 1), Depth::of_batches(64, 4)];
        let steps = grid.steps();
        let of = |engine| steps.iter().filter(move |step| step.engine == engine);
        assert!(of(Engine::Fio).all(|step| step.buffers == Buffers::Normal));
        assert!(
            of(Engine::Fio).any(|step| step.iodepth == 256) && of(Engine::Fio).any(|step| step.iodepth == 10)
        );
        let batches: Vec<_> =
            of(Engine::Pread).filter_map(|step| step.batching).map(|batch| batch.size).collect();
        assert_eq!(batches, [10, 64, 10, 64, 10, 64, 10, 64], "once for each size of batches");
        assert!(of(Engine::Pread).all(|step| step.iodepth == 1));
    }

    #[test]
    fn routes_and_executors_multiply_ringfile_alone() {
        let mut grid = grid(&[Engine::Fio], 1);
        grid.ways = every_way(&[Route::Auto, Route::Ring, Route::Inline], &Buffers::WHOLE);
        grid.executor = vec![Executor::Ringfile, Executor::Tokio];
        let steps = grid.steps();
        let count =
            |engine, role| steps.iter().filter(|step| step.engine == engine && step.role == role).count();
        assert_eq!(count(Engine::Ringfile, Role::Measure), 8 * 2 * 3 * 2);
        assert_eq!(count(Engine::Fio, Role::Measure), 8 * 2);
        assert_eq!(count(Engine::Ringfile, Role::Aa), 8, "of the first alone");
    }

    #[test]
    fn all_engines_take_turns_within_a_round() {
        let steps = grid(&[Engine::Fio], 2).steps();
        let round: Vec<_> = steps[..5].iter().map(|step| (step.engine, step.buffers, step.role)).collect();
        use {Buffers::*, Engine::*, Role::*};
        assert_eq!(
            round,
            [
                (Ringfile, Normal, Measure),
                (Ringfile, Fixed, Measure),
                (Fio, Normal, Measure),
                (Fio, Fixed, Measure),
                (Ringfile, Normal, Aa)
            ]
        );
        assert_eq!((steps[4].round, steps[5].round), (1, 2));
    }

    #[test]
    fn over_the_rounds_each_has_each_place() {
        let steps = grid(&[Engine::Fio], 4).steps();
        let kind = |step: &Step| (step.engine, step.buffers);
        for cell in steps.chunks(4 * 5) {
            for place in 0..4 {
                let mut seen: Vec<_> = cell.chunks(5).map(|round| kind(&round[place])).collect();
                seen.dedup();
                let all: Vec<_> = (0..4).map(|engine| kind(&cell[engine])).collect();
                assert!(seen.len() == 4 && all.iter().all(|kind| seen.contains(kind)), "{place}: {seen:?}");
            }
            for round in cell.chunks(5) {
                assert_eq!((round[4].role, kind(&round[4])), (Role::Aa, kind(&cell[0])));
            }
        }
    }
}
