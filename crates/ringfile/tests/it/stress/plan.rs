//! A batch, and the expected result of each of its operations.

use std::ops::Range;
use std::sync::Arc;

use ringfile::{AnyBuffer, Batch, Completion};

use super::World;
use super::model::{PAGE, Place, Reading, Writing};
use crate::support::Random;

/// A batch and its expected results; see the module.
pub struct Plan {
    steps: Vec<Step>,
    /// Ranges of steps between barriers: each range ends before the next one starts.
    parts: Vec<Range<usize>>,
    stops: bool,
}

enum Step {
    Read {
        claim: Reading,
        offset: u64,
        len: usize,
    },
    Write(Writing),
    /// Reads pages that a step before a barrier has written.
    ReadAfter {
        write: usize,
    },
    Sync,
    /// An operation that fails.
    Bad,
}

/// What has happened to a step.
enum Outcome {
    Written(Reading),
    /// It has not started.
    Cancelled,
    Other,
}

impl Plan {
    /// Adds at least one operation if the pages are free; possibly none.
    pub fn new(world: &World, place: &Arc<Place>, random: &mut Random) -> (Self, Batch) {
        let stops = random.below(6) == 0;
        let most = [1, 2, 7, 128, 5000][random.below(5) as usize];
        let mut batch = Batch::new().depth(most).stop_on_error(stops);
        if random.below(2) == 0 {
            let gaps = [0, 1, PAGE, 3 * PAGE, usize::MAX];
            batch = batch.merge_reads(gaps[random.below(gaps.len() as u64) as usize]);
        }
        let mut plan = Self { steps: Vec::new(), parts: Vec::new(), stops };
        let reads_only = random.below(3) > 0;
        for _ in 0..1 + random.below(3) {
            let start = plan.steps.len();
            for _ in 0..random.below(14) {
                plan.add(world, place, &mut batch, reads_only, random);
            }
            plan.parts.push(start..plan.steps.len());
            batch.barrier();
        }
        assert_eq!(batch.len(), plan.steps.len());
        (plan, batch)
    }

    fn add(
        &mut self,
        world: &World,
        place: &Arc<Place>,
        batch: &mut Batch,
        reads: bool,
        random: &mut Random,
    ) {
        let index = match random.below(if reads { 17 } else { 24 }) {
            0..12 => {
                let Some(claim) = place.read(random, 3) else { return };
                self.add_neighbours(world, batch, claim, random);
                return;
            }
            12..16 => {
                let Some(claim) = place.read(random, 4) else { return };
                let (offset, len) = claim.some(random);
                let index = batch.add(place.file.read_at(memory(world, len, random), offset));
                self.steps.push(Step::Read { claim, offset, len });
                index
            }
            16 => {
                self.steps.push(Step::Bad);
                let buffer = memory(world, PAGE, random);
                match random.below(2) {
                    0 => batch.add(place.write_only.read_at(buffer, 0)),
                    _ => batch.add(place.file.read_at(buffer, u64::MAX - 5)),
                }
            }
            17..20 => {
                let Some(claim) = place.write(random, 2) else { return };
                let content = claim.content();
                let mut buffer = world.pool.get(content.len()).unwrap();
                buffer.extend_from_slice(&content);
                let index = batch.add(place.file.write_at(buffer, claim.offset()));
                self.steps.push(Step::Write(claim));
                index
            }
            20 if random.below(20) == 0 => {
                self.steps.push(Step::Sync);
                batch.add(place.file.sync_data())
            }
            _ => {
                let before = self.parts.last().map_or(0, |part| part.end);
                let mut writes = (0..before).filter(|&at| matches!(self.steps[at], Step::Write(_)));
                let Some(write) = writes.next_back() else { return };
                let Step::Write(claim) = &self.steps[write] else { return };
                let index = batch.add(place.file.read_at(Vec::with_capacity(claim.len()), claim.offset()));
                self.steps.push(Step::ReadAfter { write });
                index
            }
        };
        assert_eq!(index, self.steps.len() - 1);
    }

    /// Adds reads of adjacent pages, with gaps, in any order.
    fn add_neighbours(&mut self, world: &World, batch: &mut Batch, claim: Reading, random: &mut Random) {
        let Range { start, end } = claim.bytes();
        let mut reads = Vec::new();
        let mut at = start;
        while at < end {
            let len = 512.max(random.below(PAGE as u64)) / 512 * 512;
            reads.push((at, len.min(end - at) as usize));
            at += len + 512 * random.below(3);
        }
        if random.below(2) == 0 {
            reads.reverse();
        }
        for (offset, len) in reads {
            batch.add(claim.place.file.read_at(memory(world, len, random), offset));
            let pages = (offset as usize / PAGE)..(offset as usize + len).div_ceil(PAGE);
            let claim = claim.place.read_these(pages).expect("they are claimed to be read");
            self.steps.push(Step::Read { claim, offset, len });
        }
    }

    pub fn writes(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Write(_)))
    }

    /// Fails if a result is not the expected one.
    pub fn assert(self, results: Vec<Completion>) {
        assert_eq!(results.len(), self.steps.len(), "each operation has one result");
        let is_bad = |step: &Step| matches!(step, Step::Bad);
        let any_bad = self.steps.iter().any(is_bad);
        // The part whose failure does not stop the batch: the parts behind it do not start.
        let failing = self.parts.iter().position(|part| self.steps[part.clone()].iter().any(is_bad));
        let after = failing.map_or(self.steps.len(), |part| self.parts[part].end);
        let may_stop = self.stops && any_bad;
        let mut outcomes: Vec<Outcome> = Vec::new();
        for (index, (step, done)) in self.steps.into_iter().zip(results).enumerate() {
            let cancelled = matches!(&done.result, Err(error) if error.errno() == Some(libc::ECANCELED));
            assert!(!cancelled || may_stop || index >= after, "{index} of {after}: {:?}", done.result);
            assert!(cancelled || index < after, "it is behind a barrier and a failure: {:?}", done.result);
            let outcome = end(step, done, cancelled, &outcomes);
            outcomes.push(outcome);
        }
    }
}

fn memory(world: &World, len: usize, random: &mut Random) -> AnyBuffer {
    match random.below(3) {
        0 => Vec::with_capacity(len).into(),
        _ => world.pool.get(len).unwrap().into(),
    }
}

fn end(step: Step, done: Completion, cancelled: bool, before: &[Outcome]) -> Outcome {
    match step {
        Step::Write(claim) if cancelled => {
            claim.undo();
            return Outcome::Cancelled;
        }
        Step::Bad => assert!(done.result.is_err(), "{:?}", done.result),
        _ if cancelled => {}
        Step::Write(claim) => {
            assert_eq!(done.result.unwrap(), claim.len());
            return Outcome::Written(claim.into_reading());
        }
        Step::Read { claim, offset, len } => {
            let buffer = done.buffer.unwrap();
            assert_eq!((done.result.unwrap(), buffer.len()), (len, len));
            claim.assert(offset, &buffer, "a read of a batch");
            return Outcome::Other;
        }
        Step::ReadAfter { write } => match &before[write] {
            Outcome::Written(claim) => {
                claim.assert(claim.bytes().start, &done.buffer.unwrap(), "a read behind a barrier");
                return Outcome::Other;
            }
            _ => panic!("a step behind a barrier was begun, and the one before was not"),
        },
        Step::Sync => assert_eq!(done.result.unwrap(), 0),
    }
    let Some(buffer) = done.buffer else { return Outcome::Cancelled };
    assert!(buffer.is_empty(), "nothing was read");
    Outcome::Cancelled
}
