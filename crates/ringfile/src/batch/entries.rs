//! The operations that a thread has open: what was asked for, how far each is, and in which order they ended.
//!
//! Knows operations and where they are; starts none. What always holds: an operation is to be started, begun, or over, and is
//! counted as that; no other thread, and no driver, looks at it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Done;
use super::op::Op;
use super::reads::ReadHandle;
use crate::driver::{Ended, Finished, Place, Request, Target};
use crate::memory::Held;

const ABORTED: &str = "it was aborted";

/// See the module.
#[derive(Default)]
pub(super) struct Entries {
    list: Vec<Entry>,
    free: Vec<u32>,
    /// To be started, or started once more.
    pub(super) to_start: VecDeque<u32>,
    /// What has ended and was not taken, in that order; kept for a [`super::Queue`] only.
    ended: VecDeque<u32>,
    in_order: bool,
    /// Ended and not taken.
    pub(super) done: usize,
    /// Neither ended nor taken.
    pub(super) open: usize,
    /// Those of the open ones that other threads have.
    pub(super) elsewhere: usize,
}

#[derive(Default)]
pub(super) struct Entry {
    generation: u32,
    op: Option<Op>,
    pub(super) place: Option<Place>,
    pub(super) is_elsewhere: bool,
    pub(super) aborted: bool,
    user_data: u64,
}

impl Entries {
    /// What to hand to a driver for the next operation that is to be started; ends those that need none.
    #[inline]
    pub(super) fn begin_next(&mut self) -> Option<(u32, Request, Held)> {
        while let Some(index) = self.to_start.pop_front() {
            let entry = &mut self.list[index as usize];
            let Some(op) = entry.op.as_mut() else { continue };
            if entry.aborted {
                op.cancel(ABORTED);
            } else if let Some((request, held)) = op.begin() {
                return Some((index, request, held));
            }
            self.is_over(index);
        }
        None
    }

    /// Takes what a driver gave, of an operation that was begun.
    pub(super) fn end(&mut self, index: u32, finished: Finished) {
        let entry = &mut self.list[index as usize];
        entry.place = None;
        self.elsewhere -= usize::from(std::mem::take(&mut entry.is_elsewhere));
        let aborted = entry.aborted;
        let Some(op) = entry.op.as_mut() else { return };
        let mut over = op.end(finished);
        if aborted && (!over || op.was_cancelled()) {
            op.cancel(ABORTED);
            over = true;
        }
        if over {
            self.is_over(index);
        } else {
            self.to_start.push_back(index);
        }
    }

    /// Notes that an operation which was open is over.
    fn is_over(&mut self, index: u32) {
        self.open -= 1;
        self.has_ended(index);
    }

    fn has_ended(&mut self, index: u32) {
        self.done += 1;
        if self.in_order {
            self.ended.push_back(index);
        }
    }

    #[inline]
    pub(super) fn add(&mut self, op: Op, generation: u32, user_data: u64) -> u32 {
        let is_over = op.is_over();
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        // In place: an entry that is made elsewhere and copied, over one that must be dropped, takes as long as a lock.
        let entry = &mut self.list[index as usize];
        entry.generation = generation;
        entry.op = Some(op);
        entry.aborted = false;
        entry.user_data = user_data;
        if is_over {
            self.has_ended(index);
        } else {
            self.open += 1;
            self.to_start.push_back(index);
        }
        index
    }

    pub(super) fn in_order(operations: usize) -> Self {
        Self {
            list: Vec::with_capacity(operations),
            free: Vec::with_capacity(operations),
            to_start: VecDeque::with_capacity(operations),
            ended: VecDeque::with_capacity(operations),
            in_order: true,
            ..Self::default()
        }
    }

    /// How many more must end until so many have that were not taken, or all.
    #[inline]
    pub(super) fn left_until(&self, at_least: usize) -> usize {
        at_least.saturating_sub(self.done).min(self.open)
    }

    /// The file of an operation that was begun.
    #[inline]
    pub(super) fn target(&self, index: u32) -> Option<&Arc<Target>> {
        self.list[index as usize].op.as_ref().map(|op| op.file.target())
    }

    /// Says where an operation is that was begun: on this thread's ring, or with another thread.
    #[inline]
    pub(super) fn is_at(&mut self, index: u32, place: Option<Place>) {
        let entry = &mut self.list[index as usize];
        entry.place = place;
        entry.is_elsewhere = place.is_none();
        self.elsewhere += usize::from(entry.is_elsewhere);
    }

    /// Ends what other threads have, in a forked child: it has none of them, and its result comes in the parent.
    #[cold]
    pub(super) fn give_up_elsewhere(&mut self) {
        for index in 0..self.list.len() {
            if self.list[index].is_elsewhere {
                let ended = Ended { done: 0, errno: libc::ECANCELED };
                self.end(index as u32, Finished { held: Held::None, ended });
            }
        }
    }

    /// Names all there are, and some more.
    pub(super) fn handles(&self) -> Vec<ReadHandle> {
        let handle = |(index, entry): (usize, &Entry)| ReadHandle::new(index as u32, entry.generation);
        self.list.iter().enumerate().map(handle).collect()
    }

    /// Takes the result of what has ended first, with its number.
    #[inline]
    pub(super) fn take_first(&mut self) -> Option<(u64, Done)> {
        let index = self.ended.pop_front()?;
        self.done -= 1;
        self.free.push(index);
        let entry = &mut self.list[index as usize];
        Some((entry.user_data, entry.op.take()?.into_done()))
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let index = self.list.len() as u32;
        self.list.push(Entry::default());
        index
    }

    pub(super) fn entry(&mut self, handle: ReadHandle) -> Option<&mut Entry> {
        let entry = self.list.get_mut(handle.index())?;
        (entry.generation == handle.generation() && entry.op.is_some()).then_some(entry)
    }

    pub(super) fn is_done(&mut self, handle: ReadHandle) -> Option<bool> {
        self.entry(handle)?.op.as_ref().map(Op::is_over)
    }

    pub(super) fn take(&mut self, handle: ReadHandle) -> Option<Op> {
        let op = self.entry(handle)?.op.take_if(|op| op.is_over())?;
        self.done -= 1;
        self.free.push(handle.index() as u32);
        Some(op)
    }
}
