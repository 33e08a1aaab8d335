//! The hand-written loop: what a good engineer writes for exactly this job.
//!
//! In one turn it checks every read that has completed and prepares the next one in its slot. Then one system call
//! submits all of them and waits for the next completion. Invariants: each slot owns one part of the region and has at
//! most one read in flight, and the memory is freed only when every read has completed.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, squeue, types};

use crate::buffer::Region;
use crate::job::{Job, Stream, Tally};

/// The opcode that the loop uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// READ_FIXED into registered memory.
    ReadFixed,
    /// READ.
    Read,
    /// READV_FIXED into registered memory.
    ReadvFixed,
    /// READV.
    Readv,
}

impl Operation {
    fn registered(self) -> bool {
        matches!(self, Operation::ReadFixed | Operation::ReadvFixed)
    }
}

/// The memory and the I/O vectors of all slots.
struct Slots {
    operation: Operation,
    region: Region,
    vectors: Vec<libc::iovec>,
    block: usize,
    parts: usize,
}

impl Slots {
    fn new(operation: Operation, job: &Job) -> Slots {
        let region = Region::new(job.depth * job.block);
        let part = job.part();
        let vectors = (0..job.depth * job.parts)
            .map(|n| libc::iovec { iov_base: region.at(n * part).cast(), iov_len: part })
            .collect();
        Slots { operation, region, vectors, block: job.block, parts: job.parts }
    }

    /// Returns the entry that reads at `offset` into the slot's memory.
    fn entry(&self, slot: usize, offset: u64) -> squeue::Entry {
        let file = types::Fixed(0);
        let start = self.region.at(slot * self.block);
        let vector = self.vectors[slot * self.parts..].as_ptr();
        let entry = match self.operation {
            Operation::ReadFixed => {
                opcode::ReadFixed::new(file, start, self.block as u32, 0).offset(offset).build()
            }
            Operation::Read => opcode::Read::new(file, start, self.block as u32).offset(offset).build(),
            Operation::ReadvFixed => {
                opcode::ReadvFixed::new(file, vector, self.parts as u32, 0).offset(offset).build()
            }
            Operation::Readv => opcode::Readv::new(file, vector, self.parts as u32).offset(offset).build(),
        };
        entry.user_data(slot as u64)
    }

    /// Passes a completed slot's bytes to its stream.
    fn finish(&self, slot: usize, result: i32, stream: &mut Stream) -> io::Result<()> {
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        // SAFETY: the slot's only read has just completed, and the next is pushed after this slice is gone.
        let bytes = unsafe { self.region.slice(slot * self.block, (result as usize).min(self.block)) };
        stream.done_parts(bytes.chunks(self.block / self.parts))
    }
}

/// Creates the ring that both loops use, for this many reads in flight.
fn ring(in_flight: usize) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_no_sqarray()
        .setup_submit_all()
        .build(in_flight.next_power_of_two() as u32)
}

/// Reads at `job.depth` until the time is over.
pub fn run(operation: Operation, job: &Job) -> io::Result<Tally> {
    let file = job.open()?;
    // Freed at the end, when nothing is in flight. An error before that leaks it, because the kernel may still write to
    // it.
    let slots = ManuallyDrop::new(Slots::new(operation, job));
    let mut ring = ring(job.depth)?;
    // `IoUring::submit` makes a new `Submitter` each time and forgets the registered ring, so this one is kept.
    let (mut submitter, mut submissions, mut completions) = ring.split();
    submitter.register_ring_fd()?;
    submitter.register_files(&[file.as_raw_fd()])?;
    if operation.registered() {
        // SAFETY: the kernel keeps references to the pages, and nothing uses the registration after the region is freed.
        unsafe { submitter.register_buffers(&[slots.region.iovec()])? };
    }

    let window = job.start();
    let mut streams: Vec<Stream> = (0..job.depth).map(|slot| window.stream(slot)).collect();
    let mut failure = None;
    let mut in_flight = 0;
    let push = |slot: usize, stream: &mut Stream, submissions: &mut squeue::SubmissionQueue<'_>| {
        let Some(offset) = stream.next() else { return false };
        // SAFETY: memory, vectors and file live until nothing is in flight; the queue has room for an entry of every slot.
        unsafe { submissions.push(&slots.entry(slot, offset)) }.expect("as many entries as slots");
        true
    };
    for (slot, stream) in streams.iter_mut().enumerate() {
        in_flight += usize::from(push(slot, stream, &mut submissions));
    }
    while in_flight > 0 {
        submissions.sync();
        match submitter.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        submissions.sync();
        completions.sync();
        for completion in &mut completions {
            let slot = completion.user_data() as usize;
            in_flight -= 1;
            match slots.finish(slot, completion.result(), &mut streams[slot]) {
                Err(error) => failure = failure.or(Some(error)),
                Ok(()) if failure.is_some() => {}
                Ok(()) => in_flight += usize::from(push(slot, &mut streams[slot], &mut submissions)),
            }
        }
        completions.sync();
    }
    drop(ManuallyDrop::into_inner(slots));
    match failure {
        Some(error) => Err(error),
        None => Tally::sum(streams.into_iter().map(|stream| Ok(stream.into_tally()))),
    }
}

/// Reads batches of `job.depth` with at most `in_flight` at once, one batch after another, until the time is over.
pub fn run_batches(in_flight: usize, job: &Job) -> io::Result<Tally> {
    let file = job.open()?;
    // As in `run`.
    let slots = ManuallyDrop::new(Slots::new(Operation::ReadFixed, job));
    let mut ring = ring(in_flight.min(job.depth))?;
    let (mut submitter, mut submissions, mut completions) = ring.split();
    submitter.register_ring_fd()?;
    submitter.register_files(&[file.as_raw_fd()])?;
    // SAFETY: the kernel keeps references to the pages, and nothing uses the registration after the region is freed.
    unsafe { submitter.register_buffers(&[slots.region.iovec()])? };

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
        let (mut next, mut flying) = (0, 0);
        while next < reads.len() || flying > 0 {
            while next < reads.len() && flying < in_flight {
                let (slot, offset) = reads[next];
                // SAFETY: memory, vectors and file live until nothing is in flight; the queue has room for every read in flight.
                unsafe { submissions.push(&slots.entry(slot, offset)) }
                    .expect("as many entries as reads in flight");
                (next, flying) = (next + 1, flying + 1);
            }
            submissions.sync();
            // When every read of the batch has been submitted, one call waits for all that are left.
            match submitter.submit_and_wait(if next < reads.len() { 1 } else { flying }) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            submissions.sync();
            completions.sync();
            for completion in &mut completions {
                results[completion.user_data() as usize] = completion.result();
                flying -= 1;
            }
            completions.sync();
        }
        for (slot, _) in reads.drain(..) {
            slots.finish(slot, results[slot], &mut streams[slot])?;
        }
    }
    drop(ManuallyDrop::into_inner(slots));
    Tally::sum(streams.into_iter().map(|stream| Ok(stream.into_tally())))
}
