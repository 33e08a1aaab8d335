//! ringfile: as many spawned tasks as reads in flight, each with one buffer of a pool of its own.
//!
//! With a registered pool nearly every read must have been a fixed one, with an unregistered one none: it is checked
//! by the library's own counters, so that "fixed over normal" never compares a thing with itself.

use std::io;

use ringfile::{Buffer, File, OpenOptions, Pool};

use crate::job::{Job, Stream, Tally};

/// Reads at `job.depth` until the time is over.
pub fn run(registered: bool, job: &Job) -> io::Result<Tally> {
    let before = ringfile::thread_metrics().fixed_ops;
    let tally = ringfile::block_on(read_all(registered, job))?;
    let fixed = ringfile::thread_metrics().fixed_ops - before;
    match (registered, fixed) {
        (true, fixed) if fixed == tally.all_ops => Ok(tally),
        (false, 0) => Ok(tally),
        _ => Err(io::Error::other(format!("{fixed} of {} reads were fixed ones", tally.all_ops))),
    }
}

async fn read_all(registered: bool, job: &Job) -> io::Result<Tally> {
    let pool = Pool::builder().capacity(64 << 20).registered(registered).build()?;
    let file = OpenOptions::new().read(true).direct(job.direct).open(&job.path)?;
    let window = job.start();
    let mut tasks = Vec::with_capacity(job.depth);
    for task in 0..job.depth {
        let stream = window.stream(task);
        tasks.push(if job.parts == 1 {
            ringfile::spawn(read(file.clone(), pool.get(job.block)?, stream))
        } else {
            let parts = (0..job.parts).map(|_| pool.get(job.part())).collect::<Result<Vec<_>, _>>()?;
            ringfile::spawn(read_vectored(file.clone(), parts, stream))
        });
    }
    let mut tallies = Vec::with_capacity(job.depth);
    for task in tasks {
        tallies.push(task.await.map_err(|error| io::Error::other(error.to_string()))?);
    }
    Tally::sum(tallies)
}

async fn read(file: File, mut buffer: Buffer, mut stream: Stream) -> io::Result<Tally> {
    while let Some(offset) = stream.next() {
        buffer = file.read_at(buffer, offset).await?;
        stream.done(&buffer)?;
    }
    Ok(stream.into_tally())
}

async fn read_vectored(file: File, mut parts: Vec<Buffer>, mut stream: Stream) -> io::Result<Tally> {
    while let Some(offset) = stream.next() {
        parts = file.read_vectored_at(parts, offset).await?;
        stream.done_parts(parts.iter().map(|part| &part[..]))?;
    }
    Ok(stream.into_tally())
}
