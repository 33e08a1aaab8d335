//! One measurement inside tokio, in its own process.

use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ringfile::{Buffer, File, OpenOptions, Pool, Route};
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;

use super::driven::Ring;
use super::{Flavor, Way};
use crate::data::PAGE;
use crate::job::{Job, Stream, Tally};
use crate::rounds::in_process;

/// Threads of the multi-thread runtime.
const WORKERS: usize = 2;

/// What a process measures; passed to it as an argument, in JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct One {
    way: Way,
    flavor: Flavor,
    job: Job,
}

/// Starts a process that does the job in this way, and returns the counts that it prints.
pub fn run(way: Way, flavor: Flavor, job: &Job) -> io::Result<Tally> {
    in_process("in-tokio", &One { way, flavor, job: job.clone() })
}

/// Does one measurement in such a process, and prints its counts as JSON.
pub fn measure(one: &One) -> io::Result<()> {
    let job = &one.job;
    if one.way == Way::TwoIoThreads {
        ringfile::runtime::set_io_threads(2);
    }
    let runtime = match one.flavor {
        Flavor::Current => Some(Builder::new_current_thread().enable_io().build()?),
        Flavor::Multi => Some(Builder::new_multi_thread().worker_threads(WORKERS).enable_io().build()?),
        Flavor::Threads => None,
    };
    let tally = match (runtime, one.way) {
        (None, Way::Pread) => in_threads(job, false, |buffer, stream| preads(job, buffer, stream)),
        (None, way) => with_ringfile(job, Route::Ring, |job, file| {
            in_threads(job, true, |buffer, stream| {
                let reads = read(file.clone(), buffer, stream);
                if way == Way::OwnLoop {
                    ringfile::block_on(reads)
                } else {
                    futures::executor::block_on(reads)
                }
            })
        }),
        (Some(runtime), Way::SpawnBlocking) => runtime.block_on(with_preads(job)),
        (Some(runtime), Way::Driven) => runtime.block_on(with_ring(job, one.flavor, false)),
        (Some(runtime), Way::DrivenAtOnce) => runtime.block_on(with_ring(job, one.flavor, true)),
        (Some(runtime), way) => {
            let _inside = runtime.enter();
            let route = if way == Way::Auto { Route::Auto } else { Route::Ring };
            if way == Way::Auto {
                ringfile::attach_to_tokio().map_err(io::Error::from)?;
            }
            with_ringfile(job, route, |job, file| {
                let read = |_, buffer, stream| read(file.clone(), buffer, stream);
                runtime.block_on(sum(buffers(job, true)?, job, read))
            })
        }
    }?;
    println!("{}", serde_json::to_string(&tally)?);
    Ok(())
}

/// Allocates page-aligned memory for each task.
fn buffers(job: &Job, registered: bool) -> io::Result<Vec<Buffer>> {
    let pool = Pool::builder().capacity(64 << 20).registered(registered).build()?;
    Ok((0..job.depth).map(|_| pool.get(job.block)).collect::<Result<Vec<_>, _>>()?)
}

/// Spawns a task for each buffer, and adds up what they did.
async fn sum<F>(
    buffers: Vec<Buffer>,
    job: &Job,
    task: impl Fn(usize, Buffer, Stream) -> F,
) -> io::Result<Tally>
where
    F: Future<Output = io::Result<Tally>> + Send + 'static,
{
    let window = job.start();
    let spawned: Vec<_> = buffers
        .into_iter()
        .enumerate()
        .map(|(index, buffer)| tokio::spawn(task(index, buffer, window.stream(index))))
        .collect();
    // Waits for every task, even if one has failed: the others may have reads in flight.
    let mut tallies = Vec::with_capacity(spawned.len());
    for task in spawned {
        tallies.push(task.await.unwrap_or_else(|error| Err(io::Error::other(error))));
    }
    Tally::sum(tallies)
}

/// Does the work of each task in a thread, and adds up what they did.
fn in_threads(
    job: &Job,
    registered: bool,
    task: impl Fn(Buffer, Stream) -> io::Result<Tally> + Sync,
) -> io::Result<Tally> {
    let buffers = buffers(job, registered)?;
    let window = job.start();
    let (task, window) = (&task, &window);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (buffers.into_iter().enumerate())
            .map(|(index, buffer)| scope.spawn(move || task(buffer, window.stream(index))))
            .collect();
        Tally::sum(threads.into_iter().map(|thread| thread.join().expect("no task panics")))
    })
}

fn with_ringfile(
    job: &Job,
    route: Route,
    work: impl FnOnce(&Job, &File) -> io::Result<Tally>,
) -> io::Result<Tally> {
    let file = OpenOptions::new().read(true).direct(job.direct).route(route).open_blocking(&job.path)?;
    job.advise(&file)?;
    let tally = work(job, &file)?;
    // An I/O thread publishes its counts at its next turn, so one more read on each makes it do so.
    let counts = ringfile::metrics();
    let near = counts.ops + job.depth as u64 >= tally.all_ops && counts.ops <= tally.all_ops;
    if !near || counts.failed > 0 || (route == Route::Ring && counts.inline_ops > 0) {
        return Err(io::Error::other(format!("{} reads, counted {counts:?}", tally.all_ops)));
    }
    Ok(tally)
}

async fn read(file: File, mut buffer: Buffer, mut stream: Stream) -> io::Result<Tally> {
    while let Some(offset) = stream.next() {
        buffer = file.read_at(buffer, offset).await?;
        stream.done(&buffer)?;
    }
    Ok(stream.into_tally())
}

async fn with_preads(job: &Job) -> io::Result<Tally> {
    let file = Arc::new(job.open()?);
    sum(buffers(job, false)?, job, |_, buffer, stream| pread(Arc::clone(&file), buffer, stream)).await
}

async fn pread(file: Arc<std::fs::File>, mut buffer: Buffer, mut stream: Stream) -> io::Result<Tally> {
    buffer.resize(PAGE, 0);
    while let Some(offset) = stream.next() {
        let file = Arc::clone(&file);
        let call = move || {
            let result = file.read_exact_at(&mut buffer, offset);
            (result, buffer)
        };
        let (result, back) = tokio::task::spawn_blocking(call).await.map_err(io::Error::other)?;
        buffer = back;
        result?;
        stream.done(&buffer)?;
    }
    Ok(stream.into_tally())
}

fn preads(job: &Job, mut buffer: Buffer, mut stream: Stream) -> io::Result<Tally> {
    let file = job.open()?;
    buffer.resize(PAGE, 0);
    while let Some(offset) = stream.next() {
        file.read_exact_at(&mut buffer, offset)?;
        stream.done(&buffer)?;
    }
    Ok(stream.into_tally())
}

async fn with_ring(job: &Job, flavor: Flavor, at_once: bool) -> io::Result<Tally> {
    let mut buffers = buffers(job, false)?;
    for buffer in &mut buffers {
        buffer.resize(job.block, 0);
    }
    let ring = Ring::new(job.open()?, &mut buffers, flavor, at_once)?;
    let driver = tokio::spawn(Arc::clone(&ring).drive());
    let tally =
        sum(buffers, job, |slot, buffer, stream| driven(Arc::clone(&ring), slot, buffer, stream)).await;
    ring.stop();
    driver.await.map_err(io::Error::other)??;
    let (tally, completed) = (tally?, ring.completed());
    if completed == tally.all_ops {
        Ok(tally)
    } else {
        Err(io::Error::other(format!("{} reads, {completed} completions", tally.all_ops)))
    }
}

async fn driven(ring: Arc<Ring>, slot: usize, mut buffer: Buffer, mut stream: Stream) -> io::Result<Tally> {
    while let Some(offset) = stream.next() {
        let (result, back) = ring.read(slot, buffer, offset).await;
        buffer = back;
        let bytes = result?;
        stream.done(&buffer[..bytes])?;
    }
    Ok(stream.into_tally())
}
