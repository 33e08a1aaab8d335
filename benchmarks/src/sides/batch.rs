//! ringfile's blocking batches: a plain thread builds a batch, runs it, goes through its results, and starts again.

use std::io;
use std::path::Path;

use ringfile::{AnyBuffer, Batch, Buffer, Completion, File, OpenOptions, Pool, Route};

use crate::allocations;
use crate::data::{self, PAGE};
use crate::job::{Job, Stream, Tally};

/// Reads batches of `job.depth` until the time is over.
pub fn run(route: Route, job: &Job) -> io::Result<Tally> {
    let (file, mut buffers) = open(&job.path, job.direct, route, job.depth)?;
    let before = ringfile::thread_metrics();
    let window = job.start();
    let mut streams: Vec<Stream> = (0..job.depth).map(|task| window.stream(task)).collect();
    let mut reading = Vec::with_capacity(job.depth);
    loop {
        let mut batch = Batch::with_capacity(job.depth).depth(job.in_flight.unwrap_or(job.depth));
        for (index, stream) in streams.iter_mut().enumerate() {
            if let Some(offset) = stream.next() {
                batch.add(file.read_at(buffers.pop().ok_or_else(too_few)?, offset));
                reading.push(index);
            }
        }
        if batch.is_empty() {
            break;
        }
        for (done, index) in batch.run().into_iter().zip(reading.drain(..)) {
            let buffer = buffer_of(done)?;
            streams[index].done(&buffer)?;
            buffers.push(buffer);
        }
    }
    let counts = ringfile::thread_metrics() - before;
    let tally = Tally::sum(streams.into_iter().map(|stream| Ok(stream.into_tally())))?;
    let on_ring = counts.inline_ops == 0 && counts.fixed_ops == tally.all_ops;
    if counts.ops != tally.all_ops || (route == Route::Ring && !on_ring) {
        return Err(io::Error::other(format!("{} reads, counted {counts:?}", tally.all_ops)));
    }
    Ok(tally)
}

/// Counts the heap allocations of building one batch and of running it, on all threads, once other batches like it have
/// run.
pub fn allocations(
    path: &Path,
    direct: bool,
    route: Route,
    reads: usize,
    in_flight: usize,
) -> io::Result<(u64, u64)> {
    const WARM: usize = 64;
    let (file, mut buffers) = open(path, direct, route, reads)?;
    let mut seen = (0, 0);
    for _ in 0..=WARM {
        let start = allocations::everywhere();
        let mut batch = Batch::with_capacity(reads).depth(in_flight);
        for (page, buffer) in buffers.drain(..).enumerate() {
            batch.add(file.read_at(buffer, (page * PAGE) as u64));
        }
        let built = allocations::everywhere();
        let done = batch.run();
        seen = (built - start, allocations::everywhere() - built);
        for (page, done) in done.into_iter().enumerate() {
            let buffer = buffer_of(done)?;
            if buffer.len() != PAGE || !data::is_right((page * PAGE) as u64, &buffer) {
                return Err(io::Error::other(format!("page {page} does not match the file")));
            }
            buffers.push(buffer);
        }
    }
    Ok(seen)
}

fn open(path: &Path, direct: bool, route: Route, reads: usize) -> io::Result<(File, Vec<Buffer>)> {
    let pool = Pool::builder().capacity(64 << 20).build()?;
    let file = OpenOptions::new().read(true).direct(direct).route(route).open_blocking(path)?;
    let buffers = (0..reads).map(|_| pool.get(PAGE)).collect::<Result<Vec<_>, _>>()?;
    Ok((file, buffers))
}

fn buffer_of(done: Completion) -> io::Result<Buffer> {
    done.result?;
    done.buffer.and_then(AnyBuffer::into_pooled).ok_or_else(too_few)
}

fn too_few() -> io::Error {
    io::Error::other("a buffer did not come back")
}
