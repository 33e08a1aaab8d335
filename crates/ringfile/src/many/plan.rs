//! The plan of a batch: when each operation may start, and how it ended. Limits, barriers, merging, stop-on-error.
//!
//! Pure: starts nothing, and knows no thread. Invariant: an operation is waiting, begun or ended, and is counted in
//! exactly one of these states.

use super::done::{Completion, Token};
use super::engine::{Source, ThreadEngine};
use super::files::Files;
use super::item::{At, Item, NONE, Stage};
use crate::driver::{Finished, InPlace, OpResult, ReadInPlace};
use crate::error::Error;
use crate::file::File;

const STOPPED: &str = "an operation of the batch failed, and the batch stops on errors";
const BARRIER: &str = "an operation before the barrier failed";

/// What a batch was asked to do.
#[derive(Default)]
pub(super) struct List {
    pub ops: Vec<Item>,
    pub files: Files,
    /// Empty, with room reserved for the results, so that no result is lost for lack of memory.
    pub results: Vec<Completion>,
    /// The number of further operations, for which there was no memory.
    pub refused: usize,
    pub barriers: Vec<u32>,
    pub most: usize,
    pub stop_on_error: bool,
    pub merge: Option<usize>,
}

/// See the module.
#[derive(Default)]
pub(super) struct BatchPlan {
    pub(super) batch: List,
    /// The operations before which all earlier ones must have ended, the next one first.
    barriers: std::vec::IntoIter<u32>,
    /// The position of the next barrier, or the end.
    border: u32,
    /// The next operation to consider.
    next: u32,
    /// Operations to begin again.
    pub(super) again: Vec<u32>,
    /// An operation that was begun, and returned to be started later.
    given_back: Option<u32>,
    pub(super) ended: usize,
    failed: bool,
    stopped: Option<&'static str>,
    cancelled: Option<&'static str>,
}

impl BatchPlan {
    pub(super) fn new(mut batch: List) -> Self {
        let mut plan =
            Self { barriers: std::mem::take(&mut batch.barriers).into_iter(), batch, ..Self::default() };
        plan.pass_border();
        plan
    }

    /// If the plan is nothing but reads of one file, in any order, carries out those that go to this thread's ring.
    /// Their buffers stay in the operations, which takes half the instructions.
    pub(super) fn read_in_place(&mut self, engine: &mut ThreadEngine) {
        let Some(number) = self.batch.ops.first().map(|op| op.file) else { return };
        let file = self.batch.files.get(number);
        let in_any_order = self.batch.merge.is_none()
            && !self.batch.stop_on_error
            && self.border as usize == self.batch.ops.len();
        let is_adaptive = file.has_adaptive_reads();
        if in_any_order && can_stay_in_place(&mut self.batch.ops, number, file, is_adaptive) {
            let targets = file.targets(self.batch.ops.iter().map(|op| op.record.descriptor));
            engine.read_in_place(targets, &mut self.batch.ops[..], self.batch.most);
            self.ended += self.batch.ops.iter().filter(|op| op.is_over()).count();
            if self.is_over() {
                self.next = self.border;
            }
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended == self.batch.ops.len()
    }

    /// Cancels operations that are not in flight, including those that would begin again.
    #[cold]
    pub(super) fn cancel(&mut self, why: &'static str) {
        self.stopped = Some(why);
        self.cancelled = Some(why);
    }

    /// Ends the remaining operations, which cannot be carried out, with `end`.
    #[cold]
    pub(super) fn end_all(&mut self, end: impl Fn(&mut Item, &Files)) {
        if let Some(index) = self.given_back.take() {
            self.end_unstarted(index);
        }
        self.batch.ops.iter_mut().filter(|op| !op.is_over()).for_each(|op| end(op, &self.batch.files));
        self.ended = self.batch.ops.len();
    }

    /// Returns the results of a finished plan.
    pub(super) fn into_results(self) -> Vec<Completion> {
        let List { mut ops, files, mut results, refused, .. } = self.batch;
        ops.iter_mut().for_each(|op| op.give_to(&mut results, &files, Token::NONE, 0));
        // The operations are empty by now, and dropping them would check each one.
        ops.into_iter().for_each(std::mem::forget);
        let refuse = |_| Completion { result: Err(Error::no_memory()), ..Completion::NOTHING };
        results.extend((0..refused).map(refuse));
        results
    }

    /// Continues with the operations behind a barrier.
    fn pass_border(&mut self) {
        let end = self.batch.ops.len() as u32;
        self.border = self.barriers.find(|&barrier| barrier > self.next).unwrap_or(end);
        if let Some(gap) = self.batch.merge {
            self.group_reads(self.next..self.border, gap);
        }
    }

    fn next_index(&mut self) -> Option<u32> {
        while let Some(index) = self.again.pop() {
            let Some(why) = self.cancelled else { return Some(index) };
            self.cancel_waiting(index, why);
        }
        if let Some(why) = self.stopped {
            self.cancel_rest(why);
            return None;
        }
        if self.next == self.border {
            if self.next as usize >= self.batch.ops.len() || self.ended < self.next as usize {
                return None;
            }
            if self.failed {
                self.cancel_rest(BARRIER);
                return None;
            }
            self.pass_border();
        }
        self.next += 1;
        Some(self.next - 1)
    }

    /// Begins an operation; false if it has ended without being started.
    #[inline]
    fn begin(&mut self, index: u32) -> bool {
        let op = &mut self.batch.ops[index as usize];
        match op.stage {
            Stage::Waiting if op.next != NONE => self.begin_group(index),
            Stage::Waiting => {
                let begun = op.begin(&self.batch.files);
                if !begun {
                    self.count(index);
                }
                begun
            }
            // It was begun or has ended with its group, or is listed twice in `again`.
            Stage::Merged | Stage::Begun(_) | Stage::Done(_) | Stage::Refused(_) | Stage::Cancelled(_) => {
                false
            }
        }
    }

    /// Counts an ended operation.
    #[inline]
    fn count(&mut self, index: u32) {
        self.count_ended(1, self.batch.ops[index as usize].has_failed());
    }

    /// Counts so many ended operations; `any_failed`: at least one of them has failed.
    #[inline]
    fn count_ended(&mut self, ended: usize, any_failed: bool) {
        self.ended += ended;
        if any_failed {
            self.failed = true;
            if self.batch.stop_on_error {
                self.stopped = Some(STOPPED);
            }
        }
    }

    /// Cancels operations that were not begun. Those merged with a begun operation end with it.
    fn cancel_rest(&mut self, why: &'static str) {
        let from = std::mem::replace(&mut self.next, self.batch.ops.len() as u32);
        self.border = self.next;
        (from..self.next).for_each(|index| self.cancel_waiting(index, why));
    }
}

/// Returns whether all are reads of this file that can be carried out in place.
// Not inlined: a long function would read the address of the list again for each field.
#[inline(never)]
fn can_stay_in_place(ops: &mut [Item], number: u32, file: &File, is_adaptive: bool) -> bool {
    ops.iter_mut().all(|op| op.file == number && op.can_stay_in_place(file, is_adaptive))
}

impl InPlace for [Item] {
    #[inline]
    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn begin(&mut self, at: usize) -> Option<ReadInPlace<'_>> {
        self[at].begin_in_place()
    }

    #[inline]
    fn end(&mut self, at: usize, ended: OpResult) {
        self[at].end_in_place(ended);
    }
}

impl Source for BatchPlan {
    #[inline]
    fn next(&mut self, in_flight: usize) -> Option<u32> {
        if let Some(index) = self.given_back.take() {
            if self.cancelled.is_none() {
                return Some(index);
            }
            self.end_unstarted(index);
        }
        while in_flight < self.batch.most {
            let index = self.next_index()?;
            if self.begin(index) {
                return Some(index);
            }
        }
        None
    }

    #[inline]
    fn op(&mut self, index: u32) -> (&mut Item, &Files) {
        (&mut self.batch.ops[index as usize], &self.batch.files)
    }

    #[inline]
    fn end(&mut self, index: u32, finished: &mut Finished) {
        if self.batch.ops[index as usize].next != NONE {
            let finished = std::mem::replace(finished, Finished::NOTHING);
            let (ended, any_failed) = self.end_group(index, finished);
            self.count_ended(ended, any_failed);
        } else if self.batch.ops[index as usize].end(&self.batch.files, finished) {
            self.count(index);
        } else {
            self.again.push(index);
        }
    }

    #[cold]
    fn refuse(&mut self, index: u32, error: Error) {
        if self.batch.ops[index as usize].next != NONE {
            // Each read of the group is started by itself, and gets its own error.
            let memory = std::mem::take(self.batch.ops[index as usize].begun(&self.batch.files).2);
            self.split_group(index, memory);
        } else {
            self.batch.ops[index as usize].refuse_with(error, &self.batch.files);
            self.count(index);
        }
    }

    #[cold]
    fn give_back(&mut self, index: u32) {
        self.given_back = Some(index);
    }

    fn startable(&self, in_flight: usize) -> usize {
        let left = self.border - self.next;
        let known = left as usize + self.again.len() + usize::from(self.given_back.is_some());
        let room = self.batch.most - in_flight;
        // At a barrier, or after an error, the next call of `next` decides what may start.
        let at_border = self.next == self.border && !self.is_over();
        known.max(usize::from(at_border || self.stopped.is_some())).min(room)
    }

    fn has_more(&self) -> bool {
        self.next < self.border || !self.again.is_empty() || self.given_back.is_some()
    }

    fn open(&self) -> usize {
        self.batch.ops.len() - self.ended
    }

    fn in_flight(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.batch.ops).filter(|(_, op)| op.at() != At::Nowhere).map(|(index, _)| index)
    }
}
