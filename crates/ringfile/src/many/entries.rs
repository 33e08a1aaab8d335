//! The operations of a queue: their requests, their progress, and the order in which they ended.
//!
//! Starts none itself. Invariants: an operation is waiting, started, or ended, and is counted in exactly one of these
//! states; a token names one operation, and none once its result was taken.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use super::done::{Completion, Token};
use super::engine::{Source, ThreadEngine};
use super::files::Files;
use super::item::{At, Item};
use crate::driver::{Finished, InPlace, OpResult, ReadInPlace};
use crate::error::Error;
use crate::file::File;
use crate::file::record::Asked;

const CANCELLED: &str = "it was cancelled";
const KEPT: &str = "an operation is kept until its result was taken";
/// The list of ended operations may keep this many that were taken by token, besides twice the number of those that
/// were not taken.
const TAKEN_BY_TOKEN: usize = 64;

/// Returns the first generation of a queue, chosen so that those of another queue are unlikely to be the same.
fn first_generation() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(0x9e37_79b9, Ordering::Relaxed) | 1
}

/// See the module.
#[derive(Default)]
pub(super) struct Entries {
    list: Vec<Entry>,
    files: Files,
    free: Vec<u32>,
    next_generation: u32,
    /// The operations that wait to be started, or to be started again.
    to_start: VecDeque<u32>,
    given_back: Option<u32>,
    /// Whether started operations must start again, to do the rest.
    pub(super) begins_again: bool,
    /// Ended operations in order. Some may have been taken by token meanwhile.
    ended: VecDeque<Token>,
    /// The number of operations that have ended and were not taken.
    pub(super) done: usize,
    /// The number of operations that have not ended.
    pub(super) open: usize,
    /// The number of open operations whose completions must be polled for.
    pub(super) polled: usize,
}

#[derive(Default)]
struct Entry {
    generation: u32,
    op: Option<Item>,
    cancelled: bool,
    user_data: u64,
}

impl Entry {
    fn is_open(&self) -> bool {
        self.op.as_ref().is_some_and(|op| !op.is_over())
    }
}

impl Entries {
    pub(super) fn with_capacity(operations: usize) -> Self {
        Self {
            list: Vec::with_capacity(operations),
            free: Vec::with_capacity(operations),
            next_generation: first_generation(),
            to_start: VecDeque::with_capacity(operations),
            ended: VecDeque::with_capacity(operations),
            ..Self::default()
        }
    }

    #[inline]
    pub(super) fn add(&mut self, file: &File, asked: Asked, user_data: u64) -> Token {
        let number = self.files.enter(file);
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1).max(1);
        // Filled in place: copying an entry over one that must be dropped takes as long as a lock.
        let entry = &mut self.list[index as usize];
        entry.generation = generation;
        entry.op.insert(Item::NOTHING).ask(number, asked);
        entry.cancelled = false;
        entry.user_data = user_data;
        self.open += 1;
        self.polled += usize::from(!file.target().ring.announces());
        self.to_start.push_back(index);
        Token::new(index, generation)
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let index = self.list.len() as u32;
        self.list.push(Entry::default());
        index
    }

    /// Notes that an open operation has ended.
    #[inline(always)]
    fn is_over(&mut self, index: u32) {
        let entry = &self.list[index as usize];
        self.open -= 1;
        self.done += 1;
        if self.polled > 0
            && let Some(op) = &entry.op
        {
            self.polled -= usize::from(!self.files.get(op.file).target().ring.announces());
        }
        self.ended.push_back(Token::new(index, entry.generation));
    }

    /// Returns how many more must end until `at_least` untaken results are available, or all have ended.
    #[inline]
    pub(super) fn left_until(&self, at_least: usize) -> usize {
        at_least.saturating_sub(self.done).min(self.open)
    }

    /// Finds the operation of a token.
    #[inline]
    pub(super) fn find(&self, token: Token) -> Option<u32> {
        let entry = self.list.get(token.index() as usize)?;
        (entry.generation == token.generation() && entry.op.is_some()).then_some(token.index())
    }

    /// Returns whether a token names an operation that has not ended.
    pub(super) fn is_open(&self, token: Token) -> bool {
        self.find(token).is_some_and(|index| self.list[index as usize].is_open())
    }

    /// Marks an operation as cancelled. Returns false if there is none, or it has ended.
    fn cancel(&mut self, index: u32) -> bool {
        let entry = &mut self.list[index as usize];
        let is_open = entry.is_open();
        entry.cancelled |= is_open;
        is_open
    }

    /// Marks all open operations as cancelled, and returns them.
    pub(super) fn mark_all_cancelled(&mut self) -> Vec<u32> {
        (0..self.list.len() as u32).filter(|&index| self.cancel(index)).collect()
    }

    /// Returns the first ended operation that was not taken. The caller takes it.
    #[inline]
    fn next_ended(&mut self) -> Option<Token> {
        while let Some(token) = self.ended.pop_front() {
            if self.find(token).is_some() {
                return Some(token);
            }
        }
        None
    }

    /// Takes the result of an operation, if it has ended.
    pub(super) fn take(&mut self, token: Token) -> Option<Completion> {
        let index = self.find(token)?;
        let is_open = self.list[index as usize].is_open();
        (!is_open).then(|| {
            self.take_ended(token, |op, files, user_data| Completion { token, user_data, ..op.give(files) })
        })
    }

    /// Takes the result of the operation that ended first.
    pub(super) fn take_first(&mut self) -> Option<Completion> {
        let first = self.next_ended()?;
        self.take(first)
    }

    /// Appends the results of the operations that ended first to a list: as many as were not taken, and at most so many.
    #[inline(always)]
    pub(super) fn take_first_to(&mut self, at_most: usize, list: &mut Vec<Completion>) {
        let some = self.done.min(at_most);
        list.reserve(some);
        for _ in 0..some {
            let Some(token) = self.next_ended() else { return };
            self.take_ended(token, |op, files, user_data| op.give_to(list, files, token, user_data));
        }
    }

    /// Takes the result of an ended operation, whose token the caller has found, by `give`.
    #[inline(always)]
    fn take_ended<R>(&mut self, token: Token, give: impl FnOnce(&mut Item, &Files, u64) -> R) -> R {
        let index = token.index();
        let entry = &mut self.list[index as usize];
        let Some(op) = &mut entry.op else { unreachable!("{KEPT}") };
        let number = op.file;
        let given = give(op, &self.files, entry.user_data);
        // The value is empty now; dropping it would call drop code out of line.
        std::mem::forget(entry.op.take());
        self.done -= 1;
        if self.done == 0 {
            // All remaining ones were taken by token.
            self.ended.clear();
        } else if self.ended.len() > 2 * self.done + TAKEN_BY_TOKEN {
            self.forget_taken();
        }
        self.free.push(index);
        self.files.leave(number);
        given
    }
}

/// The operations that wait to be started, all of which are reads.
struct WaitingReads<'a> {
    list: &'a mut [Entry],
    to_start: &'a VecDeque<u32>,
}

impl InPlace for WaitingReads<'_> {
    #[inline]
    fn count(&self) -> usize {
        self.to_start.len()
    }

    #[inline]
    fn begin(&mut self, at: usize) -> Option<ReadInPlace<'_>> {
        self.list[self.to_start[at] as usize].op.as_mut()?.begin_in_place()
    }

    #[inline]
    fn end(&mut self, at: usize, ended: OpResult) {
        if let Some(op) = &mut self.list[self.to_start[at] as usize].op {
            op.end_in_place(ended);
        }
    }
}

impl Entries {
    /// If all open operations are reads of one file that were not started, carries out those that go to this thread's
    /// ring, in place. Returns the payload if user code has panicked meanwhile; the reads that were begun have ended
    /// even then.
    pub(super) fn read_in_place(&mut self, engine: &mut ThreadEngine) -> std::thread::Result<()> {
        let Some(&first) = self.to_start.front().filter(|_| self.to_start.len() == self.open) else {
            return Ok(());
        };
        let Some(number) = self.list[first as usize].op.as_ref().map(|op| op.file) else { return Ok(()) };
        let file = self.files.get(number);
        let is_adaptive = file.has_adaptive_reads();
        let can_stay = |&index: &u32| {
            let entry = &mut self.list[index as usize];
            let fits = |op: &mut Item| op.file == number && op.can_stay_in_place(file, is_adaptive);
            !entry.cancelled && entry.op.as_mut().is_some_and(fits)
        };
        if !self.to_start.iter().all(can_stay) {
            return Ok(());
        }
        let ops = self.to_start.iter().filter_map(|&index| self.list[index as usize].op.as_ref());
        let targets = file.targets(ops.map(|op| op.record.descriptor));
        let mut reads = WaitingReads { list: &mut self.list, to_start: &self.to_start };
        let all = AssertUnwindSafe(|| engine.read_in_place(targets, &mut reads, usize::MAX));
        let read = catch_unwind(all);
        for _ in 0..self.to_start.len() {
            let Some(index) = self.to_start.pop_front() else { break };
            if self.list[index as usize].op.as_ref().is_some_and(Item::is_over) {
                self.is_over(index);
            } else {
                self.to_start.push_back(index);
            }
        }
        self.begins_again &= !self.to_start.is_empty();
        read.map(drop)
    }

    /// Removes operations that were taken by token from the list, where an untaken result in front of them keeps them.
    #[cold]
    fn forget_taken(&mut self) {
        let mut ended = std::mem::take(&mut self.ended);
        ended.retain(|&token| self.find(token).is_some());
        self.ended = ended;
    }
}

impl Source for Entries {
    #[inline]
    fn next(&mut self, _: usize) -> Option<u32> {
        if self.given_back.is_some()
            && let Some(index) = self.given_back.take()
        {
            if !self.list[index as usize].cancelled {
                return Some(index);
            }
            self.end_unstarted(index);
        }
        while let Some(index) = self.to_start.pop_front() {
            let entry = &mut self.list[index as usize];
            let Some(op) = entry.op.as_mut().filter(|op| !op.is_over()) else { continue };
            if entry.cancelled {
                op.cancel(CANCELLED);
            } else if op.begin(&self.files) {
                return Some(index);
            }
            self.is_over(index);
        }
        self.begins_again = false;
        None
    }

    /// # Panics
    /// If it was taken.
    #[inline]
    fn op(&mut self, index: u32) -> (&mut Item, &Files) {
        match &mut self.list[index as usize].op {
            Some(op) => (op, &self.files),
            None => unreachable!("{KEPT}"),
        }
    }

    #[inline(always)]
    fn end(&mut self, index: u32, finished: &mut Finished) {
        let entry = &mut self.list[index as usize];
        let cancelled = entry.cancelled;
        let Some(op) = entry.op.as_mut() else { return };
        let mut over = op.end(&self.files, finished);
        if cancelled && (!over || op.was_cancelled()) {
            op.cancel(CANCELLED);
            over = true;
        }
        if over {
            self.is_over(index);
        } else {
            self.to_start.push_back(index);
            self.begins_again = true;
        }
    }

    #[cold]
    fn refuse(&mut self, index: u32, error: Error) {
        if let Some(op) = self.list[index as usize].op.as_mut() {
            op.refuse_with(error, &self.files);
            self.is_over(index);
        }
    }

    #[cold]
    fn give_back(&mut self, index: u32) {
        self.given_back = Some(index);
    }

    #[inline]
    fn startable(&self, _: usize) -> usize {
        self.to_start.len() + usize::from(self.given_back.is_some())
    }

    fn has_more(&self) -> bool {
        self.startable(0) > 0
    }

    #[inline]
    fn open(&self) -> usize {
        self.open
    }

    fn mark_cancelled(&mut self, token: Token) -> Option<u32> {
        self.find(token).filter(|&index| self.cancel(index))
    }

    fn in_flight(&self) -> impl Iterator<Item = u32> {
        let is_started = |entry: &Entry| entry.op.as_ref().is_some_and(|op| op.at() != At::Nowhere);
        (0..).zip(&self.list).filter(move |(_, entry)| is_started(entry)).map(|(index, _)| index)
    }
}
