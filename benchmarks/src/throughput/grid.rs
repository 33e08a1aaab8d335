//! `compare adaptive --grid`: adaptive files against buffered and direct ones, with each size of read, pattern, memory and
//! start of the cache.
//!
//! Each run is a process of its own (this program again), because a process determines only once how much memory it may
//! use. A run with a file four times as large as memory is in a control group, and moves itself there. All sides of a cell read
//! the same blocks.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use ringfile::block_on;
use ringfile_cli::shared::{MemoryGroup, Table, Whole};
use serde::{Deserialize, Serialize};

use super::adaptive::{Side, open, read_all, wait_until_trusted};
use crate::data::{self, PAGE, Place};
use crate::device::{self, ReadCounter};
use crate::job::Job;
use crate::order::Order;
use crate::rounds::{cpu_time, in_process, in_turn, spread_of};

const DEPTH: usize = 16;
/// The file is this many times as large as the one that fits in memory, and as the memory that the others may use.
const LARGE: u64 = 2;
const TIMES_MEMORY: u64 = 4;
/// What adaptive files must reach of the better of the others.
const GOAL: f64 = 0.95;
/// The last side is adaptive again: A/A.
const SIDES: [Side; 4] = [Side::Adaptive, Side::Buffered, Side::Direct, Side::Adaptive];
const BUFFERED: usize = 1;
const DIRECT: usize = 2;
const AGAIN: usize = 3;
/// A pass over the file ends by itself.
const UNTIL_ITS_END: Duration = Duration::from_secs(3600);

/// How long the grid takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Form {
    /// All cells, three rounds of 20 s
    Long,
    /// Two rounds of 2.5 s, without 16 KiB and without a warm start where memory is short
    Short,
}

impl Form {
    fn rounds(self) -> usize {
        match self {
            Form::Long => 3,
            Form::Short => 2,
        }
    }

    fn duration(self) -> Duration {
        match self {
            Form::Long => Duration::from_secs(20),
            Form::Short => Duration::from_millis(2500),
        }
    }

    fn has(self, cell: &Cell) -> bool {
        self == Form::Long
            || cell.order == Order::InOrderOnce
            || (cell.block != 16 << 10 && !(cell.is_warm && cell.is_large))
    }
}

/// What the runs of a cell have in common.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Cell {
    block: usize,
    order: Order,
    is_large: bool,
    is_warm: bool,
}

impl Cell {
    /// Returns all cells, with the passes of a single reader at the end.
    fn all() -> Vec<Cell> {
        let mut cells = Vec::new();
        for block in [4 << 10, 16 << 10, 128 << 10] {
            for order in [Order::Random, Order::Zipf, Order::Scan, Order::ScanBesideZipf] {
                for (is_large, is_warm) in [(false, false), (false, true), (true, false), (true, true)] {
                    cells.push(Cell { block, order, is_large, is_warm });
                }
            }
        }
        let pass = |block| Cell { block, order: Order::InOrderOnce, is_large: false, is_warm: false };
        cells.extend([16 << 10, 128 << 10].map(pass));
        cells
    }

    fn name(&self) -> String {
        let order = match self.order {
            Order::Random => "uniform",
            Order::Zipf => "zipf",
            Order::Scan => "scan",
            Order::ScanBesideZipf => "scan+zipf",
            Order::InOrderOnce => "pass",
            Order::ShuffledOnce => "shuffled",
            Order::ShuffledThrice => "thrice",
        };
        let memory = if self.is_large { "4x" } else { "fits" };
        let start = if self.is_warm { "warm" } else { "cold" };
        format!("{}k/{order}/{memory}/{start}", self.block >> 10)
    }

    /// Returns whether the name contains all parts of one of these selections.
    fn is_among(&self, selections: &[String]) -> bool {
        let name = self.name();
        let has = |part: &str| name.split('/').any(|own| own == part);
        selections.is_empty() || selections.iter().any(|selection| selection.split('/').all(has))
    }
}

/// One run: passed to its process as an argument, in JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct One {
    job: Job,
    side: Side,
    is_warm: bool,
    /// The limit on memory, in bytes.
    memory: Option<u64>,
}

/// What a run did.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Done {
    requests: u64,
    seconds: f64,
    /// CPU time in seconds: of the process with its kernel workers, and of the whole machine.
    cpu: f64,
    machine_cpu: f64,
    /// Bytes that the device read, for any program.
    device_bytes: u64,
    /// How much of what is read was in the page cache at the start, as a fraction.
    cached: f64,
}

impl Done {
    fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    fn cpu_us(&self) -> f64 {
        self.cpu / self.requests as f64 * 1e6
    }

    fn machine_us(&self) -> f64 {
        self.machine_cpu / self.requests as f64 * 1e6
    }

    fn device_mib(&self) -> f64 {
        super::mib(self.device_bytes)
    }
}

/// A cell that was measured: a line of the file that saves them.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Measured {
    cell: String,
    form: Form,
    size: u64,
    seed: u64,
    /// The runs of each side.
    runs: Vec<Vec<Done>>,
}

/// Does one measurement, and prints what it did as JSON.
pub fn measure(one: &One) -> io::Result<()> {
    let job = &one.job;
    let counter = ReadCounter::of(&job.path)?;
    let counter = counter.ok_or_else(|| io::Error::other("no block device counts this file's reads"))?;
    let plain = File::open(&job.path)?;
    super::drop_cache(&plain, job.size, one.memory)?;
    let group = one.memory.map(MemoryGroup::enter).transpose()?;
    if one.is_warm {
        device::read_in(&plain, job.size)?;
    }
    let cached = device::resident_share(&plain, job.size)?;
    let (file, buffers) = open(one.side, job)?;
    let machine_cpu = || {
        let whole = Whole::so_far().ok_or_else(|| io::Error::other("/proc/stat can't be read"))?;
        io::Result::Ok(whole.times[..3].iter().sum::<Duration>())
    };
    let (device, machine, cpu, began) = (counter.bytes()?, machine_cpu()?, cpu_time()?, Instant::now());
    let tally = block_on(read_all(&file, buffers, job))?;
    let done = Done {
        requests: tally.all_ops,
        seconds: began.elapsed().as_secs_f64(),
        cpu: (cpu_time()? - cpu).as_secs_f64(),
        machine_cpu: (machine_cpu()? - machine).as_secs_f64(),
        device_bytes: counter.bytes()? - device,
        cached,
    };
    drop(group);
    if job.order == Order::InOrderOnce && tally.all_bytes != job.size {
        return Err(io::Error::other(format!("{} of {} bytes were read", tally.all_bytes, job.size)));
    }
    if one.side == Side::Direct && done.device_bytes < tally.all_bytes {
        let device = done.device_bytes;
        return Err(io::Error::other(format!("{} bytes were read, {device} by the device", tally.all_bytes)));
    }
    println!("{}", serde_json::to_string(&done)?);
    Ok(())
}

/// Measures the cells that are not saved yet, and prints the table.
pub fn compare(place: &Place, form: Form, selections: &[String], saved: Option<&Path>) -> io::Result<()> {
    let cells: Vec<Cell> =
        Cell::all().into_iter().filter(|cell| form.has(cell) && cell.is_among(selections)).collect();
    if cells.is_empty() {
        return Err(io::Error::other("no cell of the grid has such a name"));
    }
    let large = data::prepare(&place.file, place.size * LARGE, place.fill, 128 << 10)?;
    if large < place.size * LARGE {
        return Err(io::Error::other("the file must have twice as many bytes as --size says"));
    }
    wait_until_trusted(&place.file)?;
    let mut known = saved.map_or_else(|| Ok(Vec::new()), load)?;
    known.retain(|saved: &Measured| (saved.form, saved.size, saved.seed) == (form, place.size, place.seed));
    let mut measured = Vec::new();
    for cell in &cells {
        let before = known.iter().find(|saved| saved.cell == cell.name());
        measured.push(match before {
            Some(before) => before.clone(),
            None => measure_cell(place, form, cell)?,
        });
        if let (None, Some(path)) = (before, saved) {
            save(path, &measured[measured.len() - 1])?;
        }
    }
    print(form, &measured);
    Ok(())
}

fn measure_cell(place: &Place, form: Form, cell: &Cell) -> io::Result<Measured> {
    let size = if cell.is_large { place.size * LARGE } else { place.size };
    let is_pass = cell.order == Order::InOrderOnce;
    let runs = in_turn(form.rounds(), SIDES.len(), |round, side| {
        let job = Job {
            path: place.file.clone(),
            size,
            direct: SIDES[side] == Side::Direct,
            block: cell.block,
            parts: cell.block / PAGE,
            depth: if is_pass { 1 } else { DEPTH },
            in_flight: None,
            warmup: Duration::ZERO,
            duration: if is_pass { UNTIL_ITS_END } else { form.duration() },
            seed: place.seed.wrapping_add(round as u64),
            order: cell.order,
        };
        let memory = cell.is_large.then_some(size / TIMES_MEMORY);
        let done: Done =
            in_process("in-grid", &One { job, side: SIDES[side], is_warm: cell.is_warm, memory })?;
        let (name, rate) = (SIDES[side].name(), done.rate() / 1e3);
        eprintln!("{:<24} round {round} {name:<9} {rate:>8.1} kIOPS {:>7.2} µs", cell.name(), done.cpu_us());
        io::Result::Ok(Some(done))
    })?;
    Ok(Measured { cell: cell.name(), form, size: place.size, seed: place.seed, runs })
}

fn load(path: &Path) -> io::Result<Vec<Measured>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let lines = io::BufReader::new(File::open(path)?).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

fn save(path: &Path, measured: &Measured) -> io::Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    file.write_all(format!("{}\n", serde_json::to_string(measured)?).as_bytes())?;
    file.sync_data()
}

/// Adaptive over the better side in one figure, with the noise that its A/A runs show.
struct Ratio {
    value: f64,
    noise: f64,
}

impl Ratio {
    /// Compares by medians of the ratios within a round. A larger figure must be better.
    fn of(runs: &[Vec<Done>], better: usize, figure: impl Fn(&Done) -> f64) -> Ratio {
        let over = |side: usize| {
            runs[0]
                .iter()
                .zip(&runs[side])
                .map(|(one, other)| figure(one) / figure(other))
                .collect::<Vec<_>>()
        };
        let noise = over(AGAIN).into_iter().map(|ratio| (ratio.ln()).abs());
        Ratio { value: spread_of(over(better)).median, noise: spread_of(noise).median }
    }

    fn holds(&self) -> bool {
        self.value >= GOAL * (-self.noise).exp()
    }
}

fn print(form: Form, cells: &[Measured]) {
    let table = Table::default().text("cell").number("thousand requests/s: adaptive").number("buffered");
    let table =
        table.number("direct").number("adaptive / better").number("A/A noise").number("CPU µs: adaptive");
    let table = table.number("buffered").number("direct").number("better / adaptive").number("A/A noise");
    let table =
        table.number("machine CPU: better / adaptive").number("device MiB: adaptive").number("buffered");
    let mut table = table.number("cached at start").text("holds");
    let mut short = Vec::new();
    for Measured { cell, runs, .. } in cells {
        let median = |side: usize, figure: fn(&Done) -> f64| spread_of(runs[side].iter().map(figure)).median;
        let better =
            if median(BUFFERED, Done::rate) >= median(DIRECT, Done::rate) { BUFFERED } else { DIRECT };
        let rate = Ratio::of(runs, better, Done::rate);
        let cpu = Ratio::of(runs, better, |done| 1.0 / done.cpu_us());
        let machine = Ratio::of(runs, better, |done| 1.0 / done.machine_us());
        let holds = match (rate.holds(), cpu.holds()) {
            (true, true) => "yes",
            (true, false) => "**CPU short**",
            (false, true) => "**requests short**",
            (false, false) => "**both short**",
        };
        if holds != "yes" {
            short.push(cell.as_str());
        }
        let thousands = |side| format!("{:.1}", median(side, Done::rate) / 1e3);
        let cpu_us = |side| format!("{:.2}", median(side, Done::cpu_us));
        table.row(vec![
            cell.clone(),
            thousands(0),
            thousands(BUFFERED),
            thousands(DIRECT),
            format!("{:.2}", rate.value),
            format!("{:.0} %", rate.noise * 100.0),
            cpu_us(0),
            cpu_us(BUFFERED),
            cpu_us(DIRECT),
            format!("{:.2}", cpu.value),
            format!("{:.0} %", cpu.noise * 100.0),
            format!("{:.2}", machine.value),
            format!("{:.0}", median(0, Done::device_mib)),
            format!("{:.0}", median(BUFFERED, Done::device_mib)),
            format!("{:.0} %", median(0, |done| done.cached) * 100.0),
            holds.into(),
        ]);
    }
    print!("{table}");
    println!(
        "\n{} rounds of {:?}; \"better\" is the side with more requests, of buffered and direct; a cell holds if both \
         ratios are at least {GOAL}, less their A/A noise. {} of {} cells hold.",
        form.rounds(),
        form.duration(),
        cells.len() - short.len(),
        cells.len()
    );
    if !short.is_empty() {
        println!("Short: {}.", short.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_selected_by_parts_of_their_names() {
        let among = |selections: &[&str]| {
            let selections: Vec<String> = selections.iter().map(|&part| part.to_owned()).collect();
            Cell::all().iter().filter(|cell| cell.is_among(&selections)).count()
        };
        assert_eq!((among(&[]), among(&["4k"]), among(&["pass"])), (50, 16, 2));
        assert_eq!(among(&["scan/128k/fits"]), 2, "without the cells of scan+zipf");
        assert_eq!(among(&["pass", "4k/zipf/4x/cold", "8k"]), 3);
    }

    #[test]
    fn a_saved_cell_is_read_back_and_judged_beyond_its_noise() {
        let done = |requests| Done {
            requests,
            seconds: 1.0,
            cpu: 1.0,
            machine_cpu: 1.0,
            device_bytes: 1,
            cached: 0.0,
        };
        let side = |requests| vec![done(requests); 3];
        let runs = vec![side(90), side(100), side(50), side(90)];
        let measured = Measured { cell: "a".into(), form: Form::Short, size: 1, seed: 1, runs };
        let path = std::env::temp_dir().join(format!("ringfile-grid-test-{}", std::process::id()));
        save(&path, &measured).unwrap();
        save(&path, &measured).unwrap();
        let loaded = load(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(loaded.len(), 2);
        let rate = |runs: &[Vec<Done>]| Ratio::of(runs, BUFFERED, Done::rate);
        assert!(!rate(&loaded[0].runs).holds(), "0.9 without noise");
        let noisy = vec![side(90), side(100), side(50), side(100)];
        assert!(rate(&noisy).holds(), "0.9, and the same side differs by a tenth");
    }
}
