//! Sessions as `perf buffers` would record them on machines whose truth is known: for tests.

use crate::latency::Latency;
use crate::model::{
    Buffers, Cache, Kind, Machine, Open, Params, Results, Role, Route, RouteOps, Run, Rw, Setup,
};
use crate::perf::plan::{Depth, Grid, Step, every_way};
use fastrand::Rng;

/// What the machine would do if it were always the same.
#[derive(Debug, Clone, Copy)]
pub struct Truth {
    pub iops: f64,
    pub cpu_us: f64,
}

/// A machine.
pub struct World {
    pub filesystem: &'static str,
    /// Whether the grid is of direct I/O.
    pub direct: bool,
    pub has_ring: bool,
    pub fio: bool,
    pub truth: fn(Setup) -> Truth,
    /// Standard deviation of a run, of its logarithm, from the quietest cell to the noisiest.
    pub noise: (f64, f64),
    /// One run in so many is an outlier, 40 % slower; 0 for none.
    pub outliers: u64,
    /// One round of a cell in so many is a bad one: each of its runs is up to six times as slow; 0 for none.
    pub bad_rounds: u64,
    pub rounds: u32,
    pub blocks: Vec<u64>,
    pub depths: Vec<usize>,
    pub numjobs: Vec<usize>,
}

impl World {
    /// Returns a machine with a quiet disk, and the whole grid.
    pub fn new(truth: fn(Setup) -> Truth) -> World {
        World {
            filesystem: "ext4",
            direct: true,
            has_ring: true,
            fio: false,
            truth,
            noise: (0.02, 0.05),
            outliers: 0,
            bad_rounds: 0,
            rounds: 3,
            blocks: vec![4 << 10, 16 << 10, 32 << 10, 128 << 10, 512 << 10],
            depths: vec![1, 4, 16, 64, 128],
            numjobs: vec![1, 2],
        }
    }

    /// One with the small grid.
    pub fn quick(self) -> World {
        World {
            rounds: 5,
            blocks: vec![4 << 10, 128 << 10],
            depths: vec![1, 16, 128],
            numjobs: vec![1],
            ..self
        }
    }

    /// Returns a session of it.
    pub fn session(&self, seed: u64) -> Results {
        let mut random = Rng::with_seed(seed);
        // Of their own, so that the runs that advice rests on do not depend on whether these are made.
        let mut of_others = Rng::with_seed(!seed);
        let cell = |step: &Step| (step.setup.numjobs, step.setup.rw, step.setup.block, step.setup.iodepth);
        let (low, high) = self.noise;
        let mut runs = Vec::new();
        for cell in self.grid().steps().chunk_by(|one, other| cell(one) == cell(other)) {
            let noise = low + (high - low) * random.f64();
            for round in cell.chunk_by(|one, other| one.round == other.round) {
                let drift = 0.1 * normal(&mut random);
                let is_bad = self.bad_rounds > 0 && random.u64(..self.bad_rounds) == 0;
                for step in round {
                    let is_other = step.setup.adaptive || step.setup.engine.is_fio();
                    let random = if is_other { &mut of_others } else { &mut random };
                    let outlier = self.outliers > 0 && random.u64(..self.outliers) == 0;
                    let stalled = if is_bad { 6.0_f64.ln() * random.f64() } else { 0.0 };
                    let slow = if outlier { 0.6_f64.ln() } else { 0.0 } - stalled;
                    let Truth { iops, cpu_us } = (self.truth)(step.setup);
                    let iops = iops * (drift + noise * normal(random) + slow).exp();
                    let less = drift / 4.0 + slow / 4.0;
                    let cpu_us = cpu_us * (noise / 2.0 * normal(random) - less).exp();
                    runs.push(run(step.setup, step.role, step.round, iops, cpu_us));
                }
            }
        }
        self.results(runs)
    }

    fn grid(&self) -> Grid {
        let route = if self.has_ring { Route::Ring } else { Route::Auto };
        Grid {
            cache: vec![if self.direct { Cache::Keep } else { Cache::Warm }],
            numjobs: self.numjobs.clone(),
            rw: vec![Rw::RandRead, Rw::RandWrite],
            blocks: self.blocks.clone(),
            depths: self.depths.iter().copied().map(Depth::of).collect(),
            open: vec![if self.direct { Open::Direct } else { Open::Buffered }],
            ways: every_way(&[route], &Buffers::ALL),
            parts: 32,
            choices: true,
            has_ring: self.has_ring,
            fio: self.fio,
            rounds: self.rounds,
            ..Grid::plain()
        }
    }

    fn results(&self, runs: Vec<Run>) -> Results {
        let machine = Machine { cpus: 2, filesystem: self.filesystem.into(), ..Machine::default() };
        let params = Params {
            file: "/data/file.bin".into(),
            size_bytes: 1 << 30,
            duration_s: 1.0,
            warmup_s: 0.2,
            ..self.grid().params()
        };
        Results::new(Kind::Buffers, "ringfile perf buffers".into(), machine, params, runs)
    }
}

fn run(job: Setup, role: Role, round: u32, iops: f64, cpu_us: f64) -> Run {
    let nanos = (job.iodepth as f64 / iops * 1e9) as u64;
    let ops = iops as u64;
    let cold = job.cache == Cache::Cold;
    Run {
        parts: job.buffers.vectored().then_some(8),
        ops,
        duration_s: 1.0,
        iops,
        bw_bytes: iops * job.block as f64,
        latency_ns: Some(Latency {
            mean: nanos,
            p50: nanos,
            p99: nanos * 2,
            max: nanos * 9,
            ..Latency::default()
        }),
        cpu_us_per_io: Some(cpu_us),
        user_us_per_io: Some(cpu_us / 4.0),
        system_us_per_io: Some(cpu_us * 0.75),
        fixed_ops: Some(if job.buffers.registered() { ops } else { 0 }),
        route_ops: Some(RouteOps { ring: ops, ..RouteOps::default() }),
        cached_before: (!job.direct).then_some(if cold { 0.0 } else { 1.0 }),
        cached_after: (!job.direct).then_some(if cold { 0.01 } else { 1.0 }),
        ..Run::new(job, round, role)
    }
}

/// Box and Muller's.
fn normal(random: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

/// IOPS of a device that takes `latency_us` for one operation and can do so many at once, and so many bytes a second.
fn device(job: Setup, latency_us: f64, most_iops: f64, most_bytes: f64) -> f64 {
    let jobs = if job.route == Some(Route::Inline) { 1 } else { job.iodepth } * job.numjobs;
    let bandwidth = most_bytes / job.block as f64;
    (jobs as f64 * 1e6 / latency_us).min(most_iops).min(bandwidth)
}

/// Registered memory saves CPU time, more so in parts; IOPS stay the same, since the device is the bottleneck.
fn ring_cpu(job: Setup) -> f64 {
    let pages = (job.block >> 12) as f64;
    match job.buffers {
        Buffers::Normal => 4.0 + 0.4 * pages,
        Buffers::Fixed => 3.7 + 0.35 * pages,
        Buffers::Vectored => 6.0 + 0.8 * pages,
        Buffers::VectoredFixed => 4.0 + 0.4 * pages,
    }
}

/// Returns a virtio disk with ext4: a queue, 140k IOPS, 2 GB/s.
pub fn disk(job: Setup) -> Truth {
    let cpu_us = ring_cpu(job);
    match (job.direct, job.cache) {
        (true, _) => Truth { iops: device(job, 70.0, 140_000.0, 2e9), cpu_us },
        (false, Cache::Cold) => Truth { iops: device(job, 80.0, 100_000.0, 1e9), cpu_us: cpu_us * 1.8 },
        (false, _) => {
            Truth { iops: if job.route == Some(Route::Inline) { 1.2e6 } else { 1.3e6 }, cpu_us: 0.8 }
        }
    }
}

/// tmpfs: no direct I/O, and the ring hands every operation to a worker.
pub fn tmpfs(job: Setup) -> Truth {
    let pages = (job.block >> 12) as f64;
    let memory = |base_us: f64| 1e6 / (base_us + 0.25 * pages);
    match job.route {
        Some(Route::Ring) if job.iodepth == 1 => Truth { iops: memory(25.0), cpu_us: 9.0 },
        Some(Route::Ring) => Truth { iops: memory(2.0), cpu_us: 3.5 },
        _ => Truth { iops: memory(0.9), cpu_us: 1.1 },
    }
}

/// overlayfs through the page cache, as in a container.
pub fn overlay(job: Setup) -> Truth {
    match job.route {
        Some(Route::Ring) if job.iodepth == 1 => Truth { iops: 20_000.0, cpu_us: 9.0 },
        Some(Route::Ring) => Truth { iops: 450_000.0, cpu_us: 3.5 },
        _ => Truth { iops: 1_000_000.0, cpu_us: 1.0 },
    }
}

/// Returns a loop device: a real queue, quick, and CPU for each operation decides; registered memory is worth
/// something.
pub fn loop_device(job: Setup) -> Truth {
    let gain = match job.buffers {
        Buffers::Normal => 1.0,
        Buffers::Fixed => 1.06,
        Buffers::Vectored => 0.7,
        Buffers::VectoredFixed => 0.95,
    };
    match (job.direct, job.cache) {
        (true, _) => Truth { iops: device(job, 29.0, 495_000.0, 8e9) * gain, cpu_us: 2.0 / gain },
        (false, Cache::Cold) => Truth { iops: device(job, 60.0, 120_000.0, 2e9), cpu_us: 9.0 },
        (false, _) => Truth { iops: 1.3e6, cpu_us: 0.8 },
    }
}

/// Nothing makes a difference, whatever is done.
pub fn all_the_same(_: Setup) -> Truth {
    Truth { iops: 100_000.0, cpu_us: 5.0 }
}
