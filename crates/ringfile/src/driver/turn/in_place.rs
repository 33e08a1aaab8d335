//! Reads into buffers that stay with their caller, which waits for all of them. Such a read has no slot, and its buffer
//! does not move.
//!
//! A slot keeps the memory of every other operation until the kernel has answered. Here the buffers are borrowed until
//! then. Invariant: [`read`] neither returns nor unwinds before the kernel has answered every read that it took.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::counts::count_end;
use super::deferred::Deferred;
use super::state::{Answer, Answers, CallInPlace, Driver, with};
use super::thread_ring::RingGuard;
use crate::driver::op::{Kind, OpResult, Request, piece};
use crate::driver::ports::entry::{ASYNC, FIRST, FIXED_FILE};
use crate::driver::target::Target;
use crate::driver::target::port_kind::PortKind;
use crate::driver::target::route::MANY;
use crate::memory::Borrowed;
use crate::ring::Sqe;

/// A list of reads.
pub(crate) trait InPlace {
    /// Returns the number of reads.
    fn count(&self) -> usize;

    /// Returns the memory and the position of the read with this index; `None` if it cannot be read in place.
    fn begin(&mut self, at: usize) -> Option<ReadInPlace<'_>>;

    /// Takes a read's result, and sets its buffer's length. Not called for a read that was short, or failed with an
    /// errno after which it may succeed if it is tried again: the caller carries it out.
    fn end(&mut self, at: usize, ended: OpResult);
}

/// The memory and the position of a read.
pub(crate) struct ReadInPlace<'a> {
    /// The memory to fill.
    pub memory: Borrowed<'a>,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The index of its target among those of the call.
    pub target: usize,
}

/// The targets of a call: that of a file, or the two of an adaptive file. `None` in place of one that no read uses.
pub(crate) type Targets<'a> = [Option<&'a Arc<Target>>; 2];

/// Carries out the reads that their file's route sends to this thread's ring, at most `most` at a time, and waits for
/// them. The caller carries out the others, and those that the kernel's answer did not end.
pub(crate) fn read(
    guard: &RingGuard<'_>,
    deferred: &mut Deferred,
    mut targets: Targets<'_>,
    reads: &mut (impl InPlace + ?Sized),
    most: usize,
) {
    let prepared = with(|driver| driver.prepare_in_place(&mut targets, reads.count()));
    let Some(id) = prepared.flatten() else { return };
    let (mut next, mut panic) = (0, None);
    loop {
        // User code that a turn calls may panic. The buffers are not given up before the kernel has answered.
        let waited = catch_unwind(AssertUnwindSafe(|| {
            guard.wait(deferred, None, |_| {
                // On a thread that is ending, user code may have dropped the driver, which has then waited for the
                // kernel.
                with(|driver| driver.read_in_place(id, &targets, reads, most, &mut next)).flatten()
            });
        }));
        match waited {
            Ok(()) => break,
            Err(payload) => {
                next = reads.count();
                // The payload of a second panic is leaked: dropping it might panic here.
                if panic.is_none() {
                    panic = Some(payload);
                } else {
                    std::mem::forget(payload);
                }
            }
        }
    }
    let closed = with(|driver| driver.end_in_place(id, targets, reads));
    drop(closed);
    if let Some(payload) = panic {
        resume_unwind(payload);
    }
}

impl Driver {
    /// Makes room for the answers to `count` reads, and returns this driver's id. Removes the targets whose reads do
    /// not go to this thread's ring. `None` if no target is left.
    fn prepare_in_place(&mut self, targets: &mut Targets<'_>, count: usize) -> Option<u64> {
        let first = self.answers.list.len();
        let has_indices = first + count < (u32::MAX - FIRST as u32) as usize;
        // If reads through one descriptor of an adaptive file go to the ring, reads through the other one join them
        // there without a system call of their own. Otherwise they would be plain calls, made only after the ring's
        // reads have ended.
        let is_submitted = targets.iter().flatten().any(|target| target.lanes.goes_to_ring(Kind::Read));
        let are_many = count >= MANY || (is_submitted && count > 1);
        for target in &mut *targets {
            *target = target.filter(|target| has_indices && self.may_read_in_place(target, count, are_many));
        }
        targets.iter().flatten().next()?;
        for target in targets.iter().flatten() {
            self.files.enter(target);
        }
        self.answers.list.resize(first + count, Answer::NOT_BEGUN);
        self.answers.calls.push(CallInPlace { first, open: 0 });
        Some(self.id)
    }

    /// Returns whether a target's reads go to this thread's ring. The call has `count` reads; `are_many` says whether
    /// these are enough to be submitted together.
    fn may_read_in_place(&mut self, target: &Target, count: usize, are_many: bool) -> bool {
        let request = Request { want: 1, ..Request::of(Kind::Read) };
        let may_be_a_call = count == 1 && target.may_wait_inline(&request);
        target.lanes.is_for_ring(Kind::Read, || are_many)
            && !may_be_a_call
            && !target.may_wait_forever(Kind::Read)
            && matches!(self.may_start(target, &request, true), Ok(PortKind::Main))
    }

    /// Submits further reads from `next` on. Returns how many completions to wait for; `None` if all were answered.
    fn read_in_place(
        &mut self,
        id: u64,
        targets: &Targets<'_>,
        reads: &mut (impl InPlace + ?Sized),
        most: usize,
        next: &mut usize,
    ) -> Option<u32> {
        if self.id != id {
            return None;
        }
        if self.shared.is_inherited() {
            self.disown_in_place();
            return None;
        }
        let CallInPlace { first, mut open } = *self.answers.calls.last()?;
        let count = reads.count();
        while *next < count
            && open < most
            && let Some(pushed) = self.push_in_place(targets, reads.begin(*next), first + *next)
        {
            *next += 1;
            open += usize::from(pushed);
        }
        self.answers.calls.last_mut()?.open = open;
        // Waits for a quarter only, so that the device always has many in flight.
        let enough = if *next < count { open.div_ceil(4).max(1) } else { open };
        (enough > 0).then_some(enough as u32)
    }

    /// Puts a read into the queue. Returns false if it is left to the caller instead; `None` if there is no room.
    #[inline(always)]
    fn push_in_place(
        &mut self,
        targets: &Targets<'_>,
        read: Option<ReadInPlace<'_>>,
        at: usize,
    ) -> Option<bool> {
        let main = self.ports.main.as_mut()?;
        // The thread cannot sleep without an entry that polls its wake-up descriptor.
        if main.ring.space() <= u32::from(!main.wakeup_armed) {
            return None;
        }
        let ring = &mut main.ring;
        let Some(ReadInPlace { memory, offset, target }) = read else { return Some(false) };
        let Some(target) = targets[target] else { return Some(false) };
        let file = self.files.entry(target.number)?;
        let (start, len) = (memory.start(), memory.len());
        // The region of the last operation is known without reading the buffer's header.
        let index = ring.buffers.recent_index_of(start, len).or_else(|| match memory.region() {
            Some(region) => region.and_then(|region| ring.buffers.index_of(region)),
            // SAFETY: the read borrows its memory.
            None => unsafe { ring.buffers.index_of_borrowed(start, len) },
        });
        let (fd, registered) = file.descriptor(PortKind::Main, ring);
        let base = Sqe {
            flags: if registered { FIXED_FILE } else { 0 },
            fd,
            offset,
            op_flags: target.cache_flags(),
            user_data: FIRST + at as u64,
            ..Sqe::default()
        };
        let sqe = ring.vacant()?;
        *sqe = piece(true, start, len, index, base);
        self.answers.list[at] = Answer { number: Answer::IN_FLIGHT, is_fixed: index.is_some() };
        if target.has_extra() {
            sqe.flags |= if target.waits_in_submission() { ASYNC } else { 0 };
            let in_flight = self.in_flight as u32 + 1;
            self.answers.begin(
                at,
                target,
                in_flight,
                Request { offset, want: len, ..Request::of(Kind::Read) },
            );
        }
        // SAFETY: the entry names the read's memory, which the caller of `read` lends until the answer.
        unsafe { ring.commit() };
        self.in_flight += 1;
        Some(true)
    }

    /// Notes the kernel's answer. Returns whether there was such a read.
    #[inline]
    pub(super) fn answered_in_place(&mut self, index: usize, number: i32) -> bool {
        let Answers { list, calls, .. } = &mut self.answers;
        let Some(answer) = list.get_mut(index).filter(|answer| answer.number == Answer::IN_FLIGHT) else {
            return self.answered_timed_in_place(index, number);
        };
        answer.number = number;
        if let Some(call) = calls.iter_mut().rfind(|call| call.first <= index) {
            call.open -= 1;
        }
        self.in_flight -= 1;
        true
    }

    /// Does what [`answered_in_place`](Self::answered_in_place) does, for a read that is timed.
    #[cold]
    #[inline(never)]
    fn answered_timed_in_place(&mut self, index: usize, number: i32) -> bool {
        let Answers { list, timed, .. } = &mut self.answers;
        let Some(answer) = list.get_mut(index).filter(|answer| answer.number == Answer::TIMED) else {
            return false;
        };
        answer.number = Answer::IN_FLIGHT;
        if let Some((timed, file, request)) = timed.get_mut(index).and_then(Option::take)
            && let Some(target) = self.files.target(file)
            && let Some(ended) = end_of(number, request.want)
        {
            target.end_timed(timed, &request, ended, self.in_flight);
        }
        self.answered_in_place(index, number)
    }

    /// Passes the answers to the caller, and removes them.
    fn end_in_place(
        &mut self,
        id: u64,
        targets: Targets<'_>,
        reads: &mut (impl InPlace + ?Sized),
    ) -> Option<[Option<Box<Target>>; 2]> {
        if self.id != id {
            return None;
        }
        let CallInPlace { first, .. } = self.answers.calls.pop()?;
        let mut counts = self.counts;
        for (at, answer) in self.answers.list[first..].iter().enumerate() {
            let Some(place) = reads.begin(at).filter(|_| *answer != Answer::NOT_BEGUN) else {
                continue;
            };
            let Some(ended) = end_of(answer.number, place.memory.len()) else { continue };
            reads.end(at, ended);
            count_end(&mut counts, Kind::Read, ended);
            counts.fixed_ops += u64::from(answer.is_fixed);
        }
        self.counts = counts;
        self.answers.list.truncate(first);
        Some(targets.map(|target| self.leave_file(target?.number)))
    }

    /// Ends the open reads in a forked child: the kernel answers the parent, and writes to the parent's memory.
    #[cold]
    fn disown_in_place(&mut self) {
        let first = self.answers.calls.last().map_or(0, |call| call.first);
        for index in first..self.answers.list.len() {
            self.answered_in_place(index, -libc::ECANCELED);
        }
    }
}

/// Returns how the kernel's answer ends a read of `len` bytes. `None` if it is left to the caller, which carries it out.
#[inline]
fn end_of(answer: i32, len: usize) -> Option<OpResult> {
    if usize::try_from(answer) == Ok(len) {
        return Some(OpResult { done: len, errno: 0 });
    }
    // Not left to the caller, which would try again: a failing device may take long to answer.
    (answer == -libc::EIO).then_some(OpResult { done: 0, errno: libc::EIO })
}
