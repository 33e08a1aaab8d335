//! The hand-written loop: what a good engineer writes for exactly this job.
//!
//! In one turn it checks every read that has completed and prepares the next one in its slot. Then one system call
//! submits all of them and waits for the next completion.

use std::fs::File;
use std::io;

use io_uring::IoUring;
use ringfile_cli::shared::{Buffers, HandRing};

use crate::buffer::region;
use crate::job::{Job, Stream, Tally};

/// Creates the ring that both loops use, for this many reads in flight.
fn ring(in_flight: usize) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_no_sqarray()
        .setup_submit_all()
        .build(in_flight.next_power_of_two() as u32)
}

/// Registers the ring, the file, and the memory if it is of such a kind.
fn driven<'a>(
    ring: &'a mut IoUring,
    file: &'a File,
    buffers: Buffers,
    job: &Job,
) -> io::Result<HandRing<'a>> {
    let memory = region(job.depth * job.block);
    let mut ring = HandRing::new(ring, file, memory, buffers, (job.block, job.parts));
    ring.register_file()?;
    ring.register_memory()?;
    Ok(ring)
}

/// Passes a completed slot's bytes to its stream.
fn finish(
    ring: &HandRing<'_>,
    job: &Job,
    (slot, result): (usize, i32),
    stream: &mut Stream,
) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: the slot's only read has completed, and the next is pushed after this slice is gone.
    let bytes = unsafe { ring.block(slot) };
    stream.done_parts(bytes[..(result as usize).min(job.block)].chunks(job.part()))
}

/// Reads at `job.depth` until the time is over.
pub fn run(buffers: Buffers, job: &Job) -> io::Result<Tally> {
    let (file, mut ring) = (job.open()?, ring(job.depth)?);
    let mut ring = driven(&mut ring, &file, buffers, job)?;
    let window = job.start();
    let mut streams: Vec<Stream> = (0..job.depth).map(|slot| window.stream(slot)).collect();
    let mut failure = None;
    let push = |ring: &mut HandRing<'_>, slot: usize, stream: &mut Stream| {
        let Some(offset) = stream.next() else { return };
        // SAFETY: the slot's last read has completed.
        unsafe { ring.push(slot, offset, false) }.expect("as many entries as slots");
    };
    for (slot, stream) in streams.iter_mut().enumerate() {
        push(&mut ring, slot, stream);
    }
    while ring.in_flight() > 0 {
        ring.enter(1)?;
        while let Some((slot, result)) = ring.completed() {
            match finish(&ring, job, (slot, result), &mut streams[slot]) {
                Err(error) => failure = failure.or(Some(error)),
                Ok(()) if failure.is_some() => {}
                Ok(()) => push(&mut ring, slot, &mut streams[slot]),
            }
        }
    }
    match failure {
        Some(error) => Err(error),
        None => Tally::sum(streams.into_iter().map(|stream| Ok(stream.into_tally()))),
    }
}

/// Reads batches of `job.depth` with at most `in_flight` at once, one batch after another, until the time is over.
pub fn run_batches(in_flight: usize, job: &Job) -> io::Result<Tally> {
    let (file, mut ring) = (job.open()?, ring(in_flight.min(job.depth))?);
    let mut ring = driven(&mut ring, &file, Buffers::Fixed, job)?;
    let window = job.start();
    let mut streams: Vec<Stream> = (0..job.depth).map(|slot| window.stream(slot)).collect();
    let mut reads = Vec::with_capacity(job.depth);
    let mut results = vec![0; job.depth];
    loop {
        let offsets = streams.iter_mut().enumerate();
        reads.extend(offsets.filter_map(|(slot, stream)| Some((slot, stream.next()?))));
        if reads.is_empty() {
            break;
        }
        let mut next = 0;
        while next < reads.len() || ring.in_flight() > 0 {
            while next < reads.len() && ring.in_flight() < in_flight {
                let (slot, offset) = reads[next];
                // SAFETY: a batch has one read for each slot, and the last batch has ended.
                unsafe { ring.push(slot, offset, false) }.expect("as many entries as reads in flight");
                next += 1;
            }
            // When every read of the batch has been submitted, one call waits for all that are left.
            ring.enter(if next < reads.len() { 1 } else { ring.in_flight() })?;
            while let Some((slot, result)) = ring.completed() {
                results[slot] = result;
            }
        }
        for (slot, _) in reads.drain(..) {
            finish(&ring, job, (slot, results[slot]), &mut streams[slot])?;
        }
    }
    Tally::sum(streams.into_iter().map(|stream| Ok(stream.into_tally())))
}
