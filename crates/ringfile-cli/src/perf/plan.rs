//! The runs of a measurement, and their order.
//!
//! The runs that are compared with each other form a cell. Within a cell, each round makes all runs in turn, so that
//! compared runs are close together in time. Each round begins with a different setup, since the first position differs
//! from the others (the page cache was just prepared, the processor was idle). The A/A run, which repeats the first
//! setup, ends the round.

use std::time::Duration;

use crate::cli::TimingArgs;
use crate::model::{
    Batching, Buffers, Cache, Engine, Open, Params, RingFlags, Role, Route, Rw, Setup, distinct,
};

/// Depths at which `perf buffers` measures the choices other than buffers.
const CHOICE_DEPTHS: [usize; 2] = [1, 16];

/// The depth at which `perf buffers` also measures adaptive files and fio.
const OVERVIEW_DEPTH: usize = 16;

/// The smallest part of a vectored block.
const SMALLEST_PART: u64 = 512;

/// Time that fio needs to start.
const FIO_SET_UP: Duration = Duration::from_millis(350);

/// The values of every factor to measure. Each list has at least one value.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// Page cache before each run.
    pub cache: Vec<Cache>,
    /// Threads.
    pub numjobs: Vec<usize>,
    /// Reads or writes.
    pub rw: Vec<Rw>,
    /// Bytes of an operation.
    pub blocks: Vec<u64>,
    /// Operations in flight for each thread.
    pub depths: Vec<Depth>,
    /// How ringfile opens the file. Other engines open it in the first way, which must not be adaptive then.
    pub open: Vec<Open>,
    /// The engines to compare; the first one is repeated at the end of each round.
    pub engines: Vec<Engine>,
    /// Setup flags of the rings; only `None` if none were requested.
    pub ring_flags: Vec<Option<RingFlags>>,
    /// Routes of ringfile's operations, each with a kind of buffers.
    pub ways: Vec<(Route, Buffers)>,
    /// Parts of a vectored block, at most.
    pub parts: usize,
    /// Parts and blocks must be multiples of this.
    pub alignment: u64,
    /// Whether to compare page cache and route too, in cells of the smallest block.
    pub choices: bool,
    /// Whether to measure fio beside these choices.
    pub fio: bool,
    /// Whether io_uring is available.
    pub has_ring: bool,
    /// Rounds.
    pub rounds: u32,
}

/// One run to make.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The value of every factor.
    pub setup: Setup,
    /// Parts of each operation's memory, if it is vectored.
    pub parts: Option<usize>,
    /// Why.
    pub role: Role,
    /// Round, from 1.
    pub round: u32,
}

/// How many operations are in flight for each thread, and how they are submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    /// Operations.
    pub iodepth: usize,
    /// How they are grouped into batches, if they are.
    pub batching: Option<Batching>,
}

impl Depth {
    /// Returns a depth of operations that are submitted one by one.
    pub fn of(iodepth: usize) -> Depth {
        Depth { iodepth, batching: None }
    }

    /// Returns a depth of operations in batches.
    pub fn of_batches(size: usize, inflight: usize) -> Depth {
        Depth { iodepth: size * inflight, batching: Some(Batching { size, inflight }) }
    }
}

/// How long runs are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Warm-up before each run.
    pub warmup: Duration,
    /// Length of each run.
    pub duration: Duration,
}

impl Timing {
    /// Takes the timing from the command line.
    pub fn of(args: &TimingArgs) -> Timing {
        Timing { warmup: args.warmup, duration: args.duration }
    }

    /// Returns the warm-up before a run: none with a cold page cache, which it would fill.
    pub fn warmup_of(&self, setup: &Setup) -> Duration {
        if setup.cache == Cache::Cold { Duration::ZERO } else { self.warmup }
    }

    /// Returns about how long a step takes.
    pub fn length(&self, step: &Step) -> Duration {
        // fio has no warm-up.
        let before = if step.setup.engine.is_fio() { FIO_SET_UP } else { self.warmup_of(&step.setup) };
        before + self.duration
    }
}

/// Returns every route with every kind of buffers.
pub fn every_way(routes: &[Route], buffers: &[Buffers]) -> Vec<(Route, Buffers)> {
    routes.iter().flat_map(|&route| buffers.iter().map(move |&buffers| (route, buffers))).collect()
}

/// Returns the setups of a cell for all rounds, in order, each with its round.
pub fn in_rounds<T: Copy>(mut setups: Vec<T>, rounds: u32) -> Vec<(T, Role, u32)> {
    let Some(&again) = setups.first() else { return Vec::new() };
    let mut steps = Vec::new();
    for round in 1..=rounds {
        steps.extend(setups.iter().map(|&setup| (setup, Role::Measure, round)));
        steps.push((again, Role::Aa, round));
        setups.rotate_left(1);
    }
    steps
}

impl Grid {
    /// Returns the values that most commands share: one thread, one block, one operation at a time, only this library.
    pub fn plain() -> Grid {
        Grid {
            cache: vec![Cache::Keep],
            numjobs: vec![1],
            rw: vec![Rw::RandRead],
            blocks: vec![4096],
            depths: vec![Depth::of(1)],
            open: vec![Open::Buffered],
            engines: vec![Engine::Ringfile],
            ring_flags: vec![None],
            ways: vec![(Route::Auto, Buffers::Normal)],
            parts: 1,
            alignment: 1,
            choices: false,
            fio: false,
            has_ring: false,
            rounds: 1,
        }
    }

    /// Returns the largest number of threads, and the largest depth of one of them.
    pub fn most(&self) -> (u64, u64) {
        let threads = self.numjobs.iter().max();
        let depths = self.depths.iter().map(|depth| depth.iodepth).max();
        (threads.copied().unwrap_or(1) as u64, depths.unwrap_or(1) as u64)
    }

    /// Returns whether some runs bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.open.contains(&Open::Direct)
    }

    /// Returns the largest block.
    pub fn largest_block(&self) -> u64 {
        self.blocks.iter().max().copied().unwrap_or(1)
    }

    /// Returns the largest amount of memory in flight at once.
    pub fn memory(&self) -> u64 {
        let (threads, depth) = self.most();
        self.largest_block().saturating_mul(threads.saturating_mul(depth))
    }

    /// Returns the kinds of buffers, each once.
    pub fn buffers(&self) -> Vec<Buffers> {
        distinct(self.ways.iter().map(|&(_, buffers)| buffers))
    }

    /// Returns the number of parts of a vectored block of this size; `None` if it cannot have two.
    pub fn parts_of(&self, block: u64) -> Option<usize> {
        let smallest = self.alignment.max(SMALLEST_PART);
        (2..=self.parts as u64)
            .rev()
            .find(|&parts| block.is_multiple_of(parts) && (block / parts).is_multiple_of(smallest))
            .map(|parts| parts as usize)
    }

    /// Returns the parameters that the results have of it.
    pub fn params(&self) -> Params {
        let batches = || self.depths.iter().filter_map(|depth| depth.batching);
        Params {
            block_size_bytes: self.blocks[0],
            block_sizes_bytes: self.blocks.clone(),
            parts: self.choices.then_some(self.parts),
            numjobs: self.numjobs.clone(),
            iodepth: distinct(self.depths.iter().map(|depth| depth.iodepth)),
            batch: distinct(batches().map(|batch| batch.size)),
            inflight: distinct(batches().map(|batch| batch.inflight)),
            rw: self.rw.clone(),
            buffers: self.buffers(),
            direct: self.is_direct(),
            cache: self.cache.clone(),
            route: distinct(self.ways.iter().map(|&(route, _)| route)),
            ring_flags: self.ring_flags.iter().flatten().copied().collect(),
            rounds: self.rounds,
            ..Params::default()
        }
    }

    /// Returns all runs, in order.
    pub fn steps(&self) -> Vec<Step> {
        let step = |(setup, role, round): (Setup, Role, u32)| {
            let parts = setup.buffers.vectored().then(|| self.parts_of(setup.block)).flatten();
            Step { setup, parts, role, round }
        };
        let cells = self.cells().into_iter();
        cells.flat_map(|cell| in_rounds(self.setups(cell), self.rounds)).map(step).collect()
    }

    /// Returns what the runs of each cell have in common.
    fn cells(&self) -> Vec<Setup> {
        let mut cells = vec![Setup::default()];
        cells = each(cells, &self.cache, |cell, &cache| Setup { cache, ..cell });
        cells = each(cells, &self.numjobs, |cell, &numjobs| Setup { numjobs, ..cell });
        cells = each(cells, &self.rw, |cell, &rw| Setup { rw, ..cell });
        cells = each(cells, &self.blocks, |cell, &block| Setup { block, ..cell });
        each(cells, &self.depths, |cell, depth| Setup {
            iodepth: depth.iodepth,
            batch: depth.batching.map(|batch| batch.size),
            inflight: depth.batching.map(|batch| batch.inflight),
            ..cell
        })
    }

    /// Returns the setups that are compared in a cell.
    fn setups(&self, cell: Setup) -> Vec<Setup> {
        let mut setups: Vec<Setup> =
            self.engines.iter().flat_map(|&engine| self.of_engine(engine, cell)).collect();
        // There may be no setups, if only vectored ones were requested and the block cannot be divided.
        if self.choices && !setups.is_empty() {
            let choices = self.choices_in(cell).into_iter().filter(|choice| !setups.contains(choice));
            setups.extend(choices.collect::<Vec<_>>());
        }
        setups
    }

    fn of_engine(&self, engine: Engine, cell: Setup) -> Vec<Setup> {
        let cell = Setup { engine, ..cell };
        if engine.is_ours() || (engine == Engine::ByHand && cell.batch.is_none()) {
            let mut setups = each(vec![cell], &self.open, |cell, &open| cell.opened(open));
            setups = each(setups, &self.ring_flags, |cell, &ring_flags| Setup { ring_flags, ..cell });
            setups = each(setups, &self.ways, |cell, &(route, buffers)| Setup {
                route: engine.is_ours().then_some(route),
                buffers,
                ..cell
            });
            setups.retain(|setup| engine.buffers().contains(&setup.buffers));
            setups.retain(|setup| !setup.buffers.vectored() || self.parts_of(setup.block).is_some());
            return setups;
        }
        let open = if self.open[0] == Open::Direct { Open::Direct } else { Open::Buffered };
        let cell = Setup { route: None, ..cell }.opened(open);
        if engine.one_at_a_time() {
            // These are measured once for all depths, in the cell of the first depth, but for each batch size.
            let repeated = cell.batch.is_none() && cell.iodepth != self.depths[0].iodepth;
            return if repeated { Vec::new() } else { vec![Setup { iodepth: 1, ..cell }] };
        }
        // Batches are only compared with the plain job.
        let kinds = if cell.batch.is_some() { &[Buffers::Normal] } else { engine.buffers() };
        each(vec![cell], kinds, |cell, &buffers| Setup { buffers, ..cell })
    }

    /// Returns the other ways to read the same block with normal buffers.
    fn choices_in(&self, cell: Setup) -> Vec<Setup> {
        let smallest = self.blocks.iter().min() == Some(&cell.block);
        let measured = cell.numjobs == 1 && cell.rw == Rw::RandRead && smallest;
        if !measured || !CHOICE_DEPTHS.contains(&cell.iodepth) {
            return Vec::new();
        }
        let plain = |open, cache, route| {
            Setup { ring_flags: self.ring_flags[0], cache, route: Some(route), ..cell }.opened(open)
        };
        let mut choices = Vec::new();
        if self.is_direct() {
            choices.push(plain(Open::Direct, Cache::Keep, Route::Inline));
            choices.push(plain(Open::Buffered, Cache::Cold, Route::Auto));
            choices.push(plain(Open::Buffered, Cache::Cold, Route::Ring));
        }
        for route in [Route::Auto, Route::Ring, Route::Inline] {
            choices.push(plain(Open::Buffered, Cache::Warm, route));
        }
        choices.retain(|choice| self.has_ring || choice.route != Some(Route::Ring));
        if cell.iodepth == OVERVIEW_DEPTH {
            self.add_overview(&mut choices, plain);
        }
        choices
    }

    /// Adds adaptive files and fio, each where the page cache already is as it needs it.
    fn add_overview(&self, choices: &mut Vec<Setup>, plain: impl Fn(Open, Cache, Route) -> Setup) {
        let by_fio = |open, cache| Setup {
            engine: Engine::Fio,
            route: None,
            ring_flags: None,
            ..plain(open, cache, Route::Ring)
        };
        let direct = [(Open::Direct, Cache::Keep), (Open::Buffered, Cache::Cold)];
        let of_fio = direct.into_iter().filter(|_| self.is_direct()).chain([(Open::Buffered, Cache::Warm)]);
        let of_fio = of_fio.filter(|_| self.fio).map(|(open, cache)| by_fio(open, cache));
        let adaptive = [Cache::Cold, Cache::Warm].into_iter().filter(|_| self.is_direct());
        let adaptive = adaptive.map(|cache| plain(Open::Adaptive, cache, Route::Auto));
        choices.extend(adaptive.chain(of_fio));
        // Filling the page cache or dropping it takes longer than a run.
        choices.sort_by_key(|choice| match choice.cache {
            Cache::Keep | Cache::Mixed => 0,
            Cache::Cold => 1,
            Cache::Warm => 2,
        });
    }
}

/// Returns each setup with each value of a factor.
fn each<T>(setups: Vec<Setup>, values: &[T], with: impl Fn(Setup, &T) -> Setup) -> Vec<Setup> {
    setups
        .into_iter()
        .flat_map(|setup| values.iter().map(|value| with(setup, value)).collect::<Vec<_>>())
        .collect()
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
            engines: [&[Engine::Ringfile], against].concat(),
            rounds,
            ..Grid::plain()
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
            let of_engine: Vec<_> = steps.iter().filter(|step| step.setup.engine == engine).collect();
            assert_eq!(of_engine.len(), 2 * 2 * 3, "{engine:?}");
            assert!(
                of_engine.iter().all(|step| step.setup.iodepth == 1 && step.setup.buffers == Buffers::Normal)
            );
        }
    }

    #[test]
    fn batches_are_compared_with_plain_jobs_of_their_depth() {
        let mut grid = grid(&[Engine::Fio, Engine::Pread], 1);
        grid.depths = vec![Depth::of_batches(10, 1), Depth::of_batches(64, 4)];
        let steps = grid.steps();
        let of = |engine| steps.iter().filter(move |step| step.setup.engine == engine);
        assert!(of(Engine::Fio).all(|step| step.setup.buffers == Buffers::Normal));
        assert!(
            of(Engine::Fio).any(|step| step.setup.iodepth == 256)
                && of(Engine::Fio).any(|step| step.setup.iodepth == 10)
        );
        let batches: Vec<_> = of(Engine::Pread).filter_map(|step| step.setup.batch).collect();
        assert_eq!(batches, [10, 64, 10, 64, 10, 64, 10, 64], "once for each size of batches");
        assert!(of(Engine::Pread).all(|step| step.setup.iodepth == 1));
    }

    #[test]
    fn routes_multiply_ringfile_alone() {
        let mut grid = grid(&[Engine::Fio], 1);
        grid.ways = every_way(&[Route::Auto, Route::Ring, Route::Inline], &Buffers::WHOLE);
        let steps = grid.steps();
        let count = |engine, role| {
            steps.iter().filter(|step| step.setup.engine == engine && step.role == role).count()
        };
        assert_eq!(count(Engine::Ringfile, Role::Measure), 8 * 2 * 3);
        assert_eq!(count(Engine::Fio, Role::Measure), 8 * 2);
        assert_eq!(count(Engine::Ringfile, Role::Aa), 8, "of the first alone");
    }

    #[test]
    fn all_engines_take_turns_within_a_round() {
        let steps = grid(&[Engine::Fio], 2).steps();
        let round: Vec<_> =
            steps[..5].iter().map(|step| (step.setup.engine, step.setup.buffers, step.role)).collect();
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
    fn over_the_rounds_each_run_has_each_position() {
        let steps = grid(&[Engine::Fio], 4).steps();
        let kind = |step: &Step| (step.setup.engine, step.setup.buffers);
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

    fn of_buffers() -> Grid {
        Grid {
            blocks: vec![4096, 131_072],
            depths: vec![Depth::of(1), Depth::of(128)],
            ways: every_way(&[Route::Ring], &Buffers::ALL),
            parts: 32,
            alignment: 512,
            numjobs: vec![1, 2],
            open: vec![Open::Direct],
            choices: true,
            has_ring: true,
            rounds: 3,
            ..Grid::plain()
        }
    }

    #[track_caller]
    fn assert_made_once(steps: &[Step]) {
        for (index, step) in steps.iter().enumerate() {
            let is_same =
                |other: &Step| (other.setup, other.role, other.round) == (step.setup, step.role, step.round);
            assert_eq!(steps.iter().position(is_same), Some(index), "{step:?}");
        }
    }

    #[test]
    fn every_run_is_made_once() {
        let steps = of_buffers().steps();
        assert_made_once(&steps);
        // 8 cells of 4 kinds and A/A, and 6 choices in one of them.
        assert_eq!(steps.len(), 3 * (8 * 5 + 6));
    }

    #[test]
    fn fio_and_adaptive_files_are_measured_at_one_depth() {
        let depths = vec![Depth::of(1), Depth::of(16), Depth::of(128)];
        let grid = Grid { fio: true, depths, ..of_buffers() };
        let cell: Vec<Setup> = grid.steps().into_iter().map(|step| step.setup).collect();
        let of = |is: &dyn Fn(&Setup) -> bool| -> Vec<(Open, Cache)> {
            let setups = distinct(cell.iter().copied().filter(|setup| is(setup)));
            assert!(setups.iter().all(|setup| (setup.iodepth, setup.block) == (16, 4096)), "{setups:?}");
            setups.iter().map(|setup| (setup.open(), setup.cache)).collect()
        };
        use {Cache::*, Open::*};
        assert_eq!(of(&|setup| setup.adaptive), [(Adaptive, Cold), (Adaptive, Warm)]);
        assert_eq!(
            of(&|setup| setup.engine == Engine::Fio),
            [(Direct, Keep), (Buffered, Cold), (Buffered, Warm)]
        );
        let buffered = Grid { open: vec![Buffered], cache: vec![Warm], ..grid };
        let setups: Vec<Setup> = buffered.steps().into_iter().map(|step| step.setup).collect();
        assert!(setups.iter().all(|setup| setup.open() == Buffered && setup.cache == Warm));
        assert!(setups.iter().any(|setup| setup.engine == Engine::Fio));
    }

    #[test]
    fn flags_and_rings_by_hand_are_measured_in_the_rounds_of_the_grid() {
        let ring_flags = vec![Some(RingFlags::None), Some(RingFlags::Coop)];
        let grid = Grid { ring_flags, engines: vec![Engine::Ringfile, Engine::ByHand], ..of_buffers() };
        let steps = grid.steps();
        // Four kinds of buffers, two of flags and two of rings, A/A; the choices with the first flags alone.
        assert_eq!(steps.len(), 3 * (8 * (4 * 4 + 1) + 6));
        assert_made_once(&steps);
        let again = steps.iter().filter(|step| step.role == Role::Aa);
        assert!(again.clone().all(|step| step.setup.engine == Engine::Ringfile));
        assert!(again.clone().all(|step| step.setup.ring_flags == Some(RingFlags::None)));
    }

    #[test]
    fn blocks_are_split_as_far_as_the_alignment_allows() {
        let parts = |alignment, block| Grid { alignment, ..of_buffers() }.parts_of(block);
        assert_eq!((parts(512, 4096), parts(512, 131_072)), (Some(8), Some(32)));
        assert_eq!((parts(4096, 4096), parts(4096, 131_072)), (None, Some(32)));
        assert_eq!((parts(1, 4096), parts(4096, 16_384)), (Some(8), Some(4)));
        assert_eq!(parts(512, 3 * 512), Some(3));
    }

    #[test]
    fn a_file_without_direct_io_or_a_machine_without_a_ring_has_fewer_choices() {
        let cells = |grid: Grid| grid.steps().iter().filter(|step| step.round == 1).count();
        let buffered = Grid { open: vec![Open::Buffered], cache: vec![Cache::Warm], ..of_buffers() };
        assert!(buffered.steps().iter().all(|step| !step.setup.direct && step.setup.cache == Cache::Warm));
        // Route ring with a warm cache is in the grid already.
        assert_eq!(cells(buffered), 8 * 5 + 2);
        let workers =
            Grid { has_ring: false, ways: every_way(&[Route::Auto], &Buffers::ALL), ..of_buffers() };
        assert!(workers.steps().iter().all(|step| step.setup.route != Some(Route::Ring)));
        assert_eq!(cells(workers), 8 * 5 + 4);
    }

    #[test]
    fn kinds_without_parts_leave_no_empty_cell() {
        let grid = Grid {
            alignment: 4096,
            ways: vec![(Route::Ring, Buffers::Vectored)],
            blocks: vec![4096],
            ..of_buffers()
        };
        assert!(grid.steps().is_empty());
    }
}
