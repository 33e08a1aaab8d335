//! ringfile: as many spawned tasks as reads in flight, each with a buffer from the side's pool.
//!
//! On the ring with a registered pool, every read must have used a registered buffer; with an unregistered pool, none.
//! The library's own counters are checked, so that the two sides of "fixed over normal" really differ.

use std::io;

use ringfile::{Buffer, File, OpenOptions, Pool, Route};

use crate::job::{Job, Stream, Tally};

/// How the file and the pool are set up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The default: each read takes the route that the library finds.
    Auto,
    /// The ring, with registered memory.
    Fixed,
    /// The ring, with the same memory unregistered.
    Normal,
}

/// Reads at `job.depth` until the time is over.
pub fn run(form: Form, job: &Job) -> io::Result<Tally> {
    let before = ringfile::thread_metrics();
    let tally = ringfile::block_on(read_all(form, job))?;
    let counts = ringfile::thread_metrics() - before;
    let right = match form {
        Form::Auto => counts.ops == tally.all_ops,
        Form::Fixed => counts.fixed_ops == tally.all_ops,
        Form::Normal => counts.fixed_ops == 0 && counts.inline_ops == 0,
    };
    if right {
        Ok(tally)
    } else {
        Err(io::Error::other(format!("{} reads, counted {counts:?}", tally.all_ops)))
    }
}

async fn read_all(form: Form, job: &Job) -> io::Result<Tally> {
    let pool = Pool::builder().capacity(64 << 20).registered(form != Form::Normal).build()?;
    let route = if form == Form::Auto { Route::Auto } else { Route::Ring };
    let file = OpenOptions::new().read(true).direct(job.direct).route(route).open_blocking(&job.path)?;
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
