//! Which runs `perf file` makes, and in which order.
//!
//! Within a cell every round runs all engines in turn, so that what is compared was measured next to each
//! other; the A/A run, the first one once more, ends the round.

use std::time::Duration;

use crate::cli::{Against, Buffers, Cache, Executor, Route, Rw};
use crate::engine::Engine;
use crate::report::results::Role;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Grid {
    /// Threads.
    pub numjobs: Vec<usize>,
    /// Operations in flight for each thread.
    pub iodepth: Vec<usize>,
    /// Access.
    pub rw: Vec<Rw>,
    /// Buffers; never empty.
    pub buffers: Vec<Buffers>,
    /// Page cache.
    pub cache: Vec<Cache>,
    /// Ways of ringfile's operations; never empty.
    pub route: Vec<Route>,
    /// Who runs ringfile's tasks; never empty.
    pub executor: Vec<Executor>,
    /// Comparisons.
    pub against: Vec<Against>,
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
    /// Access.
    pub rw: Rw,
    /// Page cache.
    pub cache: Cache,
    /// Way of ringfile's operations; the first one asked for, where another engine does it.
    pub route: Route,
    /// Who runs ringfile's tasks; the first one asked for, where another engine does it.
    pub executor: Executor,
}

impl Grid {
    /// All runs, in order.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for &cache in &self.cache {
            for &numjobs in &self.numjobs {
                for &rw in &self.rw {
                    for (index, &iodepth) in self.iodepth.iter().enumerate() {
                        self.cell(&mut steps, (numjobs, iodepth, rw, cache), index == 0);
                    }
                }
            }
        }
        steps
    }

    fn cell(
        &self,
        steps: &mut Vec<Step>,
        (numjobs, iodepth, rw, cache): (usize, usize, Rw, Cache),
        first_depth: bool,
    ) {
        let first = (self.executor[0], self.route[0]);
        let mut add = |engine: Engine, buffers, role, round, (executor, route)| {
            let iodepth = if engine.one_at_a_time() { 1 } else { iodepth };
            steps.push(Step { engine, buffers, role, round, numjobs, iodepth, rw, cache, route, executor });
        };
        for round in 1..=self.rounds {
            for &executor in &self.executor {
                for &route in &self.route {
                    for &buffers in &self.buffers {
                        add(Engine::Ringfile, buffers, Role::Measure, round, (executor, route));
                    }
                }
            }
            for &against in &self.against {
                let engine = engine_of(against);
                if engine.one_at_a_time() && !first_depth {
                    continue;
                }
                for &buffers in engine.buffers() {
                    add(engine, buffers, Role::Measure, round, first);
                }
            }
            add(Engine::Ringfile, self.buffers[0], Role::Aa, round, first);
        }
    }
}

fn engine_of(against: Against) -> Engine {
    match against {
        Against::Fio => Engine::Fio,
        Against::FioBatch => Engine::FioBatch,
        Against::FioPsync => Engine::FioPsync,
        Against::Pread => Engine::Pread,
    }
}

impl Step {
    /// About how long it takes.
    pub fn length(&self, warmup: Duration, duration: Duration) -> Duration {
        // fio sets itself up for 0.3 s, and has no warm-up.
        if self.engine.is_fio() { duration + Duration::from_millis(350) } else { warmup + duration }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(against: &[Against], rounds: u32) -> Grid {
        Grid {
            numjobs: vec![1, 2],
            iodepth: vec![1, 16],
            rw: vec![Rw::RandRead, Rw::RandWrite],
            buffers: vec![Buffers::Normal, Buffers::Fixed],
            cache: vec![Cache::Warm],
            route: vec![Route::Auto],
            executor: vec![Executor::Ringfile],
            against: against.to_vec(),
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
        let steps = grid(&[Against::Pread, Against::FioPsync], 3).steps();
        for engine in [Engine::Pread, Engine::FioPsync] {
            let of_engine: Vec<_> = steps.iter().filter(|step| step.engine == engine).collect();
            assert_eq!(of_engine.len(), 2 * 2 * 3, "{engine:?}");
            assert!(of_engine.iter().all(|step| step.iodepth == 1 && step.buffers == Buffers::Normal));
        }
    }

    #[test]
    fn routes_and_executors_multiply_ringfile_alone() {
        let mut grid = grid(&[Against::Fio], 1);
        grid.route = vec![Route::Auto, Route::Ring, Route::Inline];
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
        let steps = grid(&[Against::Fio], 2).steps();
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
}
