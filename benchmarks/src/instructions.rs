//! The reads whose instructions `instructions.sh` counts: a cached file, one thread, without checks; without clock reads
//! too, unless `--latencies` measures latencies.

use std::error::Error;
use std::io::Write;

use ringfile::metrics::{Latencies, OperationKind};
use ringfile::{AnyBuffer, Batch, File, OpenOptions, Pool, Queue, Route, block_on, spawn, thread_metrics};

const PAGE: usize = 4096;
const PAGES: u64 = 4096;

/// Offsets of pages, by xorshift64.
struct Offsets(u64);

impl Offsets {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % PAGES * PAGE as u64
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ([how, depth, count, path], timed) = (match arguments.as_slice() {
        [first @ .., last] if last == "--latencies" => (first, true),
        all => (all, false),
    }) else {
        return Err("usage: instructions async|batch|queue|inline DEPTH COUNT FILE [--latencies]".into());
    };
    let (depth, count): (usize, usize) = (depth.parse()?, count.parse()?);
    if std::fs::metadata(path).map_or(true, |metadata| metadata.len() != PAGES * PAGE as u64) {
        std::fs::write(path, vec![7; PAGES as usize * PAGE])?;
    }
    std::fs::read(path)?;
    let mut options = OpenOptions::new();
    options.read(true).route(if how == "inline" { Route::Inline } else { Route::Ring });
    let latencies = Latencies::new();
    if timed {
        options.latencies(&latencies);
    }
    let file = options.open_blocking(path)?;
    let pool = Pool::new(64 << 20);
    match how.as_str() {
        "async" | "inline" => in_tasks(&file, &pool, depth, count)?,
        "batch" => in_batches(&file, &pool, depth, count)?,
        "queue" => in_a_queue(&file, &pool, depth, count)?,
        other => return Err(format!("{other}: must be async, batch, queue or inline").into()),
    }
    let counts = thread_metrics();
    writeln!(std::io::stderr(), "{} reads, {} of them fixed", counts.ops, counts.fixed_ops)?;
    if timed {
        let reads = latencies.histogram(OperationKind::Read);
        writeln!(std::io::stderr(), "{} counted, median {:?}", reads.count(), reads.quantile(0.5))?;
    }
    if how == "inline" {
        return Ok(());
    }
    if counts.fixed_ops < count as u64 / depth as u64 * depth as u64 {
        return Err("not every read went through the ring with a registered buffer".into());
    }
    Ok(())
}

/// Reads with one task for each read in flight.
fn in_tasks(file: &File, pool: &Pool, depth: usize, count: usize) -> Result<(), Box<dyn Error>> {
    block_on(async {
        let tasks: Vec<_> = (0..depth)
            .map(|task| {
                let (file, pool) = (file.clone(), pool.clone());
                spawn(async move {
                    let mut buffer = pool.get(PAGE)?;
                    let mut offsets = Offsets(task as u64 + 1);
                    for _ in 0..count / depth {
                        buffer = file.read_at(buffer, offsets.next()).await?;
                    }
                    std::io::Result::Ok(())
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        Ok(())
    })
}

/// Reads with one blocking batch after another.
fn in_batches(file: &File, pool: &Pool, depth: usize, count: usize) -> Result<(), Box<dyn Error>> {
    let mut offsets = Offsets(1);
    let mut buffers = Vec::with_capacity(depth);
    for _ in 0..depth {
        buffers.push(AnyBuffer::from(pool.get(PAGE)?));
    }
    for _ in 0..count / depth {
        let mut batch = Batch::with_capacity(depth).depth(depth);
        for buffer in buffers.drain(..) {
            batch.add(file.read_at(buffer, offsets.next()));
        }
        for done in batch.run() {
            done.result?;
            buffers.extend(done.buffer);
        }
    }
    Ok(())
}

/// Reads with a queue that is kept full.
fn in_a_queue(file: &File, pool: &Pool, depth: usize, count: usize) -> Result<(), Box<dyn Error>> {
    let mut offsets = Offsets(1);
    let mut queue = Queue::with_capacity(depth);
    for _ in 0..depth {
        queue.add(file.read_at(pool.get(PAGE)?, offsets.next()), 0);
    }
    let (mut ended, mut completions) = (0, Vec::with_capacity(depth));
    while ended < count {
        queue.wait(1..=depth, None, &mut completions);
        for done in completions.drain(..) {
            done.result?;
            ended += 1;
            if let Some(buffer) = done.buffer {
                queue.add(file.read_at(buffer, offsets.next()), 0);
            }
        }
    }
    Ok(())
}
