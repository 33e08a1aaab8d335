//! An actor without an executor: blocking batches, and reads with handles that are polled, waited for, cancelled and
//! dropped.

use std::sync::atomic::Ordering;

use ringfile::{AnyBuffer, Batch, Completion, Queue, Token};

use super::actor::{Actor, run_of_pages};
use super::model::{OWNED, PAGE, Region};
use crate::support::handles::Handles as _;

impl Actor {
    /// Acts on the calling thread until the round is over.
    pub fn run_plain(mut self) {
        let mut reads = Queue::new();
        while !self.shared.over.load(Ordering::Relaxed) {
            let number = self.random.below(self.regions.len() as u64) as usize;
            let mut region = self.regions.swap_remove(number);
            match self.random.below(3) {
                0 => self.blocking_batch(&mut region),
                1 => self.handles(&mut region, &mut reads),
                _ => {
                    let mut others = Queue::new();
                    self.handles(&mut region, &mut others);
                    // Now and then the thread has no reads, and releases its ring.
                    if self.random.below(8) == 0 {
                        reads = Queue::new();
                    }
                }
            }
            self.regions.push(region);
            self.shared.steps.fetch_add(1, Ordering::Relaxed);
        }
        for region in &self.regions {
            let mut batch = Batch::new();
            for page in 0..OWNED {
                batch.add(region.file.read_at(Vec::with_capacity(PAGE), region.at(page)));
            }
            for (page, done) in batch.run().into_iter().enumerate() {
                assert_read(region, done, region.at(page), "the last look");
            }
        }
    }

    fn blocking_batch(&mut self, region: &mut Region) {
        let mut batch = Batch::new().depth(1 + self.random.below(200) as usize);
        if self.random.below(3) == 0 {
            batch = batch.merge_reads(self.random.below(3 * PAGE as u64) as usize);
        }
        let (written, mut reads) = (run_of_pages(&mut self.random, 16), Vec::new());
        let offset = region.at(written.start);
        let content = region.renew(written.clone());
        let mut buffer = self.shared.pool.get(content.len()).unwrap();
        buffer.extend_from_slice(&content);
        let write = batch.add(region.file.write_at(buffer, offset));
        for page in (0..OWNED).filter(|page| !written.contains(page)) {
            let buffer: AnyBuffer = match self.random.below(2) {
                0 => self.shared.pool.get(PAGE).unwrap().into(),
                _ => Vec::with_capacity(PAGE).into(),
            };
            reads.push((batch.add(region.file.read_at(buffer, region.at(page))), page));
        }
        batch.barrier();
        let again = batch.add(region.file.read_at(self.shared.pool.get(content.len()).unwrap(), offset));
        let mut results: Vec<Option<Completion>> = batch.run().into_iter().map(Some).collect();
        assert_eq!(results[write].take().unwrap().result.unwrap(), content.len());
        for (index, page) in reads {
            assert_read(
                region,
                results[index].take().unwrap(),
                region.at(page),
                "a read of a blocking batch",
            );
        }
        assert_read(region, results[again].take().unwrap(), offset, "a read after a write");
    }

    fn handles(&mut self, region: &mut Region, reads: &mut Queue) {
        let mut open: Vec<(Token, u64)> = Vec::new();
        for _ in 0..1 + self.random.below(30) {
            let offset = region.at(self.random.below(OWNED as u64) as usize);
            open.push((reads.start(&region.file, self.shared.pool.get(PAGE).unwrap(), offset), offset));
        }
        let wait = self.random.below(2) == 0;
        let at_least = self.random.below(open.len() as u64 + 1) as usize;
        reads.settle(if wait { at_least } else { 0 });
        let done = open.iter().filter(|&&(handle, _)| reads.is_done(handle)).count();
        assert!(!wait || done >= at_least, "{done} of {at_least}");
        // A batch in between, which collects the completions of the others too.
        if self.random.below(3) == 0 {
            self.blocking_batch_of_reads(region);
        }
        for (handle, offset) in open {
            let done = match self.random.below(2) {
                0 => reads.abort(handle).unwrap(),
                _ => reads.wait_for(handle).unwrap(),
            };
            match done.result {
                Err(error) if error.errno() == Some(libc::ECANCELED) => {
                    assert!(done.buffer.is_some_and(|buffer| buffer.is_empty()));
                }
                _ => assert_read(region, done, offset, "a read with a handle"),
            }
        }
        // Dropping the reads cancels those that are still open.
        if self.random.below(4) == 0 {
            let mut others = Queue::new();
            for page in 0..8 {
                others.start(&region.file, self.shared.pool.get(PAGE).unwrap(), region.at(page));
            }
        }
    }

    fn blocking_batch_of_reads(&mut self, region: &Region) {
        let mut batch = Batch::new();
        for page in 0..8 {
            batch.add(region.file.read_at(self.shared.pool.get(PAGE).unwrap(), region.at(page)));
        }
        for (page, done) in batch.run().into_iter().enumerate() {
            assert_read(region, done, region.at(page), "a batch between reads with handles");
        }
    }
}

#[track_caller]
fn assert_read(region: &Region, done: Completion, offset: u64, what: &str) {
    let buffer = done.buffer.unwrap();
    match done.result {
        Ok(len) => assert_eq!((len, len % PAGE), (buffer.len(), 0), "{what} of {}", region.name),
        Err(error) => panic!("{what} of {}: {error}", region.name),
    }
    region.assert(offset, &buffer, what);
}
