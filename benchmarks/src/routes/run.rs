//! One measurement: prepare the cache, do the work on a separate thread, and check it.
//!
//! Invariants: each operation in the result had the right bytes, and ringfile's own counters show it on the requested
//! route. A run that breaks one of them ends the benchmark.

use std::fs::File as StdFile;
use std::io;
use std::time::Duration;

use ringfile::{Buffer, File, OpenOptions, Pool, Route};
use ringfile_cli::shared::{self, RouteOps};

use super::pages::{self, Written};
use super::place::Place;
use super::row::{Direction, Mode, Row};
use crate::data::PAGE;
use crate::device::{self, ReadCounter};
use crate::job::{Job, Stream, Tally};
use crate::order::Order;

/// A file counts as dropped from the cache if at most this fraction of its pages is left there.
const DROPPED: f64 = 0.02;
/// How far the device's count of direct reads may be below the benchmark's, as a fraction.
const COUNT_TOLERANCE: f64 = 0.02;

/// Why a run has no outcome.
pub enum Refused {
    /// The place does not support this I/O.
    Skipped(String),
    /// An error, or a failed check.
    Failed(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        Refused::Failed(error)
    }
}

/// The result of one run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Thousands of operations per second.
    pub kiops: f64,
    /// Operations by route, including those of the warm-up.
    pub went: RouteOps,
    /// The fraction of the file in the page cache before and after; `None` for a direct run.
    pub cached: Option<(f64, f64)>,
}

/// Returns whether all operations took the requested route.
fn is_right(went: &RouteOps, route: Route, ops: u64) -> bool {
    let asked = match route {
        Route::Ring => went.ring,
        Route::Inline => went.inline,
        Route::Workers => went.workers,
        Route::Aio => went.aio,
        _ => went.total(),
    };
    asked == ops && went.total() == ops
}

/// All runs of a comparison.
pub struct Runs {
    duration: Duration,
    warmup: Duration,
    seed: u64,
    number: u64,
    checked: u64,
}

impl Runs {
    /// Prepares runs of this length, with offsets that depend on `seed`.
    pub fn new(duration: Duration, warmup: Duration, seed: u64) -> Runs {
        Runs { duration, warmup, seed, number: 0, checked: 0 }
    }

    /// Returns how many reads and written pages were checked to the last byte.
    pub fn checked(&self) -> u64 {
        self.checked
    }

    /// Measures one route once.
    pub fn run(&mut self, place: &Place, row: &Row, route: Route) -> Result<Outcome, Refused> {
        self.number += 1;
        let file = place.open()?;
        let cached_before = prepare(&file, place.size, row.mode)?;
        let job = self.job(place, row);
        let device = match row.mode {
            Mode::Direct => device_reads(place)?,
            _ => None,
        };
        let before = ringfile::metrics();
        let (tally, written) = self.on_a_thread(&job, row, route)?;
        let went = RouteOps::of(&(ringfile::metrics() - before));

        if !is_right(&went, route, tally.all_ops) {
            let all = tally.all_ops;
            return Err(io::Error::other(format!("{route:?}, {all} operations, counted {went:?}")).into());
        }
        if tally.ops == 0 || tally.all_bytes != tally.all_ops * PAGE as u64 {
            let (ops, bytes) = (tally.ops, tally.all_bytes);
            return Err(io::Error::other(format!("{ops} operations in time, {bytes} bytes")).into());
        }
        if let (Direction::Read, Some((counter, before))) = (row.direction, device) {
            check_device(&tally, counter.read()? - before)?;
        }
        let cached_after = device::resident_share(&file, place.size)?;
        self.checked += match row.direction {
            Direction::Read => tally.checked_whole,
            Direction::Write => pages::check(&file, place.size, self.number, &written)?,
        };
        Ok(Outcome {
            kiops: tally.ops as f64 / tally.span.as_secs_f64() / 1e3,
            went,
            cached: (row.mode != Mode::Direct).then_some((cached_before, cached_after)),
        })
    }

    fn job(&self, place: &Place, row: &Row) -> Job {
        let once = row.mode == Mode::Uncached;
        Job {
            path: place.path.clone(),
            size: place.size,
            direct: row.mode == Mode::Direct,
            block: PAGE,
            parts: 1,
            depth: row.depth,
            in_flight: None,
            // A warm-up would bring pages into the cache, which must not have them.
            warmup: if once { Duration::ZERO } else { self.warmup },
            duration: self.duration,
            seed: self.seed,
            order: if once { Order::ShuffledOnce } else { Order::Random },
        }
    }

    fn on_a_thread(&self, job: &Job, row: &Row, route: Route) -> Result<(Tally, Written), Refused> {
        let run = || ringfile::block_on(work(job, row.direction, route, self.number));
        std::thread::scope(|scope| scope.spawn(run).join())
            .map_err(|_| Refused::Failed(io::Error::other("panicked")))?
    }
}

/// Brings the page cache into the state that the mode needs; returns the cached fraction afterwards.
fn prepare(file: &StdFile, size: u64, mode: Mode) -> Result<f64, Refused> {
    // Dirty pages cannot be dropped, and would be written back during the next run.
    file.sync_all()?;
    if mode == Mode::Cached {
        if device::resident_share(file, size)? < 1.0 {
            device::read_in(file, size)?;
        }
        return Ok(device::resident_share(file, size)?);
    }
    shared::drop_cache(file)?;
    let share = device::resident_share(file, size)?;
    if mode == Mode::Uncached && share > DROPPED {
        return Err(Refused::Skipped(format!(
            "{:.0} % of the file stays in the page cache when it is dropped",
            share * 100.0
        )));
    }
    Ok(share)
}

/// Returns the counter of the device that holds the file, with its present count; `None` if there is no such device.
fn device_reads(place: &Place) -> io::Result<Option<(ReadCounter, u64)>> {
    let Some(counter) = ReadCounter::of(&place.path)? else { return Ok(None) };
    let now = counter.read()?;
    Ok(Some((counter, now)))
}

fn check_device(tally: &Tally, device: u64) -> io::Result<()> {
    if device as f64 >= tally.all_ops as f64 * (1.0 - COUNT_TOLERANCE) {
        return Ok(());
    }
    let all = tally.all_ops;
    Err(io::Error::other(format!("ringfile counted {all} direct reads, the device {device}")))
}

async fn work(job: &Job, direction: Direction, route: Route, run: u64) -> Result<(Tally, Written), Refused> {
    let pool = Pool::builder().capacity(64 << 20).build().map_err(io::Error::from)?;
    let writes = direction == Direction::Write;
    let opened =
        OpenOptions::new().read(true).write(writes).direct(job.direct).route(route).open_blocking(&job.path);
    let file = match opened {
        Err(error) if job.direct && error.kind() == io::ErrorKind::Unsupported => {
            return Err(Refused::Skipped(error.to_string()));
        }
        opened => opened.map_err(io::Error::from)?,
    };
    if job.order == Order::ShuffledOnce {
        shared::advise_order(&file, true)?;
    }
    let buffers =
        (0..job.depth).map(|_| pool.get(PAGE)).collect::<Result<Vec<_>, _>>().map_err(io::Error::from)?;
    let window = job.start();
    let tasks: Vec<_> = buffers
        .into_iter()
        .enumerate()
        .map(|(task, buffer)| {
            let (file, stream, size) = (file.clone(), window.stream(task), job.size);
            ringfile::spawn(async move {
                match direction {
                    Direction::Read => Ok((read(file, buffer, stream).await?, Written::none(size))),
                    Direction::Write => write(file, buffer, stream, Written::none(size), run).await,
                }
            })
        })
        .collect();
    let (mut total, mut written) = (Tally::default(), Written::none(job.size));
    for task in tasks {
        let done: io::Result<_> = task.await.map_err(|error| io::Error::other(error.to_string()))?;
        let (tally, pages) = done?;
        total.add(&tally);
        written.add(&pages);
    }
    Ok((total, written))
}

async fn read(file: File, mut buffer: Buffer, mut stream: Stream) -> io::Result<Tally> {
    while let Some(offset) = stream.next() {
        buffer = file.read_at(buffer, offset).await?;
        stream.done(&buffer)?;
    }
    Ok(stream.into_tally())
}

async fn write(
    file: File,
    mut buffer: Buffer,
    mut stream: Stream,
    mut written: Written,
    run: u64,
) -> io::Result<(Tally, Written)> {
    buffer.extend_from_slice(&pages::blank(run));
    while let Some(offset) = stream.next() {
        pages::stamp(&mut buffer, offset);
        buffer = file.write_at(buffer, offset).await?;
        written.set(offset);
        stream.wrote();
    }
    Ok((stream.into_tally(), written))
}
