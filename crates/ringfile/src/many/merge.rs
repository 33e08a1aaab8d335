//! Merges neighbouring reads into one.
//!
//! Reads of one file with small gaps become one vectored read, into their own buffers and, for the gaps, into scratch
//! memory from the library's reserve. Invariants: the first read of a group carries it out, the others are
//! [`Stage::Merged`] until it ends; a group that fails is split, and each read is done separately.

use std::ops::Range;

use super::files::Files;
use super::item::{At, Item, NONE, Stage};
use super::plan::{BatchPlan, List};
use crate::driver::{FileKind, Finished, Kind, OpResult, Request};
use crate::file::adaptive::{Descriptor, Way};
use crate::file::check;
use crate::file::unaligned::ReadInPieces;
use crate::memory::{IoMemory, reserve};

/// The limits of a group, in bytes and in reads. Longer groups gain nothing, and the device cannot overlap them.
const MOST_BYTES: u64 = 1 << 20;
const MOST_READS: usize = 128;

/// Returns where a read ends. Other operations may have any offset.
fn end_of(op: &Item) -> u64 {
    op.record.request.offset.wrapping_add(op.record.request.want as u64)
}

/// Returns whether a read may be part of a group. All others are carried out separately.
fn may_merge(op: &Item, files: &Files) -> bool {
    let file = files.get(op.file);
    op.record.request.kind == Kind::Read
        && op.record.request.want > 0
        && matches!(&op.record.memory, IoMemory::Pooled(buffer) if buffer.capacity() == op.record.request.want)
        && matches!(file.target().kind, FileKind::Regular | FileKind::Block)
        && file.target().ring.announces()
        // An adaptive file may use either descriptor.
        && matches!(check::fits(file.target(), &op.record.request, &op.record.memory), Ok(true))
        && matches!(check::fits(file.target_of(Descriptor::Direct), &op.record.request, &op.record.memory), Ok(true))
}

/// Visits the members of a group in the order of their offsets, each with its index and the length of the gap before
/// it. Returns how many there are. `look` may take any of them out of the group.
fn for_each(ops: &mut [Item], first: u32, mut look: impl FnMut(&mut Item, u32, usize)) -> usize {
    let (mut index, mut count, mut end) = (first, 0, ops[first as usize].record.request.offset);
    while index != NONE {
        let op = &mut ops[index as usize];
        let (next, gap) = (op.next, op.record.request.offset - end);
        end = end_of(op);
        look(op, index, gap as usize);
        index = next;
        count += 1;
    }
    count
}

impl BatchPlan {
    /// Puts the reads of a range into groups.
    pub(super) fn group_reads(&mut self, range: Range<u32>, gap: usize) {
        let List { ops, files, .. } = &mut self.batch;
        let mut reads: Vec<u32> = range.filter(|&index| may_merge(&ops[index as usize], files)).collect();
        reads.sort_unstable_by_key(|&index| {
            let op = &ops[index as usize];
            (op.file, op.record.request.offset)
        });
        let mut rest = &reads[..];
        while let [first, ..] = rest {
            let first = &ops[*first as usize];
            let joins = |pair: &&[u32]| {
                let [last, next] = [pair[0], pair[1]].map(|index| &ops[index as usize]);
                let distance = next.record.request.offset.checked_sub(end_of(last));
                first.file == next.file
                    && distance.is_some_and(|distance| distance <= gap as u64)
                    && end_of(next) - first.record.request.offset <= MOST_BYTES
            };
            let joined = rest.windows(2).take(MOST_READS - 1).take_while(joins).count();
            let (group, others) = rest.split_at(1 + joined);
            for pair in group.windows(2) {
                ops[pair[0] as usize].next = pair[1];
                ops[pair[1] as usize].stage = Stage::Merged;
            }
            rest = others;
        }
    }

    /// Begins the merged read of a group. Returns false if there is no memory for its gaps: the reads are then done one
    /// by one.
    pub(super) fn begin_group(&mut self, first: u32) -> bool {
        let List { ops, files, .. } = &mut self.batch;
        let (mut scratch, mut fits) = (Vec::new(), true);
        for_each(ops, first, |_, _, gap| {
            if gap > 0 {
                reserve().try_get(gap).map_or_else(|_| fits = false, |buffer| scratch.push(buffer));
            }
        });
        if !fits {
            self.take_apart(first);
            return false;
        }
        let (mut parts, mut scratch, mut want) = (Vec::new(), scratch.into_iter(), 0);
        for_each(ops, first, |op, _, gap| {
            if gap > 0 {
                parts.extend(scratch.next());
            }
            if let IoMemory::Pooled(buffer) = std::mem::take(&mut op.record.memory) {
                parts.push(buffer);
            }
            want += gap + op.record.request.want;
        });
        let leader = &mut ops[first as usize];
        leader.stage = Stage::Begun(At::Nowhere);
        let request = Request { kind: Kind::ReadVectored, want, ..leader.record.request };
        let (file, memory) = (files.get(leader.file), IoMemory::Buffers(parts));
        if let Way::By(descriptor) = file.choose(&request, &memory, false) {
            leader.record.descriptor = descriptor;
        }
        leader.record.go_by(request, memory, ReadInPieces::default());
        true
    }

    fn take_apart(&mut self, first: u32) {
        for_each(&mut self.batch.ops, first, |op, index, _| {
            op.next = NONE;
            op.stage = Stage::Waiting;
            op.record.descriptor = Descriptor::Open;
            self.again.push(index);
        });
    }

    /// Gives the reads of a group their buffers back. They begin again, one by one.
    pub(super) fn split_group(&mut self, first: u32, memory: IoMemory) {
        self.give_parts(first, memory);
        self.take_apart(first);
    }

    /// Gives the reads of a group their buffers back, and drops those of the gaps.
    fn give_parts(&mut self, first: u32, memory: IoMemory) {
        let parts = if let IoMemory::Buffers(parts) = memory { parts } else { Vec::new() };
        let mut parts = parts.into_iter();
        self.batch.ops[first as usize].record.go_itself();
        for_each(&mut self.batch.ops, first, |op, _, gap| {
            if gap > 0 {
                drop(parts.next());
            }
            op.record.memory = parts.next().map_or(IoMemory::None, IoMemory::Pooled);
        });
    }

    /// Distributes the result to the reads of a group. Returns how many have ended, and whether any of them has failed.
    /// After an error they are done one by one instead.
    pub(super) fn end_group(&mut self, first: u32, finished: Finished) -> (usize, bool) {
        let Finished { memory, ended: OpResult { mut done, errno } } = finished;
        if errno != 0 {
            self.split_group(first, memory);
            return (0, false);
        }
        self.give_parts(first, memory);
        let mut any_failed = false;
        let ended = for_each(&mut self.batch.ops, first, |op, _, gap| {
            op.next = NONE;
            // The driver has continued short reads, except at the end of the file.
            done = done.saturating_sub(gap);
            let read = done.min(op.record.request.want);
            done -= read;
            op.end_with(OpResult { done: read, errno: 0 });
            any_failed |= op.has_failed();
        });
        (ended, any_failed)
    }

    /// Cancels an operation that was not begun, and those merged with it.
    pub(super) fn cancel_waiting(&mut self, index: u32, why: &'static str) {
        if matches!(self.batch.ops[index as usize].stage, Stage::Waiting) {
            self.ended += for_each(&mut self.batch.ops, index, |op, _, _| {
                op.next = NONE;
                op.cancel(why);
            });
        }
    }
}
