//! Merges neighbouring reads into one.
//!
//! Reads of one file with small gaps become one vectored read, into their own buffers and, for the gaps, into scratch
//! memory from the library's reserve. Invariants: the first read of a group carries it out, the others are
//! [`Stage::Merged`] until it ends; a group that fails is split, and each read is done separately.

use std::ops::Range;

use super::files::Files;
use super::op::{At, NONE, Op, Stage};
use crate::driver::{Ended, FileKind, Finished, Kind, Request};
use crate::file::adaptive::{Descriptor, Way};
use crate::file::check;
use crate::file::unaligned::ReadInPieces;
use crate::memory::{Buffer, Held, reserve};

/// The limits of a group, in bytes and in reads. Longer groups gain nothing, and the device cannot overlap them.
const MOST_BYTES: u64 = 1 << 20;
const MOST_READS: usize = 128;

fn end_of(op: &Op) -> u64 {
    op.record.request.offset + op.record.request.want as u64
}

/// Returns whether a read may be part of a group. All others are carried out separately.
fn may_merge(op: &Op, files: &Files) -> bool {
    let file = files.get(op.file);
    op.record.request.kind == Kind::Read
        && op.record.request.want > 0
        && matches!(op.record.held, Held::Pooled(_))
        && matches!(file.target().kind, FileKind::Regular | FileKind::Block)
        && file.target().ring.announces()
        // An adaptive file may use either descriptor.
        && matches!(check::fits(file.target(), &op.record.request, &op.record.held), Ok(true))
        && matches!(check::fits(file.target_of(Descriptor::Direct), &op.record.request, &op.record.held), Ok(true))
}

/// Puts the reads of a range into groups.
pub(super) fn plan(ops: &mut [Op], files: &Files, range: Range<u32>, gap: usize) {
    let mut reads: Vec<u32> = range.filter(|&index| may_merge(&ops[index as usize], files)).collect();
    reads.sort_unstable_by_key(|&index| {
        let op = &ops[index as usize];
        (op.file, op.record.request.offset)
    });
    let mut at = 0;
    while at < reads.len() {
        let mut behind = at + 1;
        while behind < reads.len() && behind - at < MOST_READS {
            let [first, last, next] = [at, behind - 1, behind].map(|at| &ops[reads[at] as usize]);
            let same = first.file == next.file;
            let distance = next.record.request.offset.checked_sub(end_of(last));
            let near = distance.is_some_and(|distance| distance <= gap as u64);
            if !same || !near || end_of(next) - first.record.request.offset > MOST_BYTES {
                break;
            }
            behind += 1;
        }
        for pair in reads[at..behind].windows(2) {
            ops[pair[0] as usize].next = pair[1];
            ops[pair[1] as usize].stage = Stage::Merged;
        }
        at = behind;
    }
}

/// Visits the members of a group in the order of their offsets, and returns how many there are. `look` may take any of
/// them out of the group.
fn for_each(ops: &mut [Op], first: u32, mut look: impl FnMut(&mut Op, u32)) -> usize {
    let (mut index, mut count) = (first, 0);
    while index != NONE {
        let op = &mut ops[index as usize];
        let next = op.next;
        look(op, index);
        index = next;
        count += 1;
    }
    count
}

/// Begins the merged read of a group. Returns false if there is no memory for its gaps: the reads are then done one by
/// one.
pub(super) fn begin(ops: &mut [Op], files: &Files, first: u32, again: &mut Vec<u32>) -> bool {
    let start = ops[first as usize].record.request.offset;
    let (mut parts, mut at, mut fits) = (Vec::<Buffer>::new(), start, true);
    let mut scratch = Vec::new();
    for_each(ops, first, |op, _| {
        let gap = (op.record.request.offset - at) as usize;
        if gap > 0 {
            reserve().try_get(gap).map_or_else(|_| fits = false, |buffer| scratch.push(buffer));
        }
        at = end_of(op);
    });
    if !fits {
        take_apart(ops, first, again);
        return false;
    }
    let want = (at - start) as usize;
    let (mut scratch, mut at) = (scratch.into_iter(), start);
    for_each(ops, first, |op, _| {
        if op.record.request.offset > at {
            parts.extend(scratch.next());
        }
        if let Held::Pooled(buffer) = std::mem::take(&mut op.record.held) {
            parts.push(buffer);
        }
        at = end_of(op);
    });
    let leader = &mut ops[first as usize];
    leader.stage = Stage::Begun(At::Nowhere);
    let request = Request { kind: Kind::ReadVectored, want, ..leader.record.request };
    let (file, held) = (files.get(leader.file), Held::Buffers(parts));
    if let Way::By(descriptor) = file.choose(&request, &held, false) {
        leader.record.descriptor = descriptor;
    }
    leader.record.go_by(request, held, ReadInPieces::default());
    true
}

fn take_apart(ops: &mut [Op], first: u32, again: &mut Vec<u32>) {
    for_each(ops, first, |op, index| {
        op.next = NONE;
        op.stage = Stage::Waiting;
        op.record.descriptor = Descriptor::Open;
        again.push(index);
    });
}

/// Gives the reads of a group their buffers back. They begin again, one by one.
pub(super) fn take_back(ops: &mut [Op], first: u32, held: Held, again: &mut Vec<u32>) {
    give_parts(ops, first, held);
    take_apart(ops, first, again);
}

/// Gives the reads of a group their buffers back, and drops those of the gaps.
fn give_parts(ops: &mut [Op], first: u32, held: Held) {
    let parts = if let Held::Buffers(parts) = held { parts } else { Vec::new() };
    ops[first as usize].record.go_itself();
    let (mut parts, mut at) = (parts.into_iter(), ops[first as usize].record.request.offset);
    for_each(ops, first, |op, _| {
        if op.record.request.offset > at {
            drop(parts.next());
        }
        op.record.held = parts.next().map_or(Held::None, Held::Pooled);
        at = end_of(op);
    });
}

/// Distributes the result to the reads of a group, and calls `over` for each, which has ended. After an error they are done
/// one by one instead.
pub(super) fn end(
    ops: &mut [Op],
    first: u32,
    finished: Finished,
    again: &mut Vec<u32>,
    mut over: impl FnMut(&Op),
) {
    let Finished { held, ended: Ended { done, errno } } = finished;
    if errno != 0 {
        return take_back(ops, first, held, again);
    }
    give_parts(ops, first, held);
    let start = ops[first as usize].record.request.offset;
    for_each(ops, first, |op, _| {
        op.next = NONE;
        // The driver has continued short reads, except at the end of the file.
        let before = (op.record.request.offset - start) as usize;
        op.end_with(Ended { done: done.saturating_sub(before).min(op.record.request.want), errno: 0 });
        over(op);
    });
}

/// Cancels an operation that was not begun, and those merged with it. Returns how many ended.
pub(super) fn cancel(ops: &mut [Op], index: u32, why: &'static str) -> usize {
    if !matches!(ops[index as usize].stage, Stage::Waiting) {
        return 0;
    }
    for_each(ops, index, |op, _| {
        op.next = NONE;
        op.cancel(why);
    })
}
