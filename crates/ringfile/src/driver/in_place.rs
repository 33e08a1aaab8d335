//! Reads into buffers that stay with their caller, who waits for all of them: each needs no slot, and its buffer does
//! not move.
//!
//! A slot keeps the memory of every other operation until the kernel has answered. Here the buffers are borrowed until
//! then. Invariant: [`read`] neither returns nor unwinds before the kernel has answered every read that it took.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use super::op::read_into;
use super::start::{MANY, is_for_ring};
use super::submit::{ASYNC, FIXED_FILE};
use super::target::ClosedFile;
use super::{Deferred, Driver, Kind, Request, RingGuard, RingKind, Target, with};
use crate::memory::Buffer;
use crate::ring::Sqe;

/// One read.
pub(crate) trait InPlace {
    /// Returns the buffer, all of whose capacity is read, and the offset in the file; `None` if it must be read
    /// otherwise.
    fn begin(&mut self) -> Option<(&mut Buffer, u64)>;

    /// Takes the kernel's answer, bytes or a negative errno. Returns whether it ends the read.
    fn end(&mut self, answer: i32) -> bool;
}

/// The answers to all such reads of a thread. A call that user code makes within a turn of another one appends its own,
/// and removes them before the other one continues.
#[derive(Default)]
pub(super) struct Answers(Vec<Answer>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Answer {
    number: i32,
    is_fixed: bool,
}

impl Answer {
    const NOT_BEGUN: Self = Self { number: i32::MIN, is_fixed: false };
    const IN_FLIGHT: i32 = i32::MIN + 1;
}

/// The user data of the first read. As no operation with a slot, these have generation 0, in the upper half.
const FIRST: u64 = 1 << 16;

/// Returns the index among all answers of the read whose entry has this user data.
#[inline]
pub(super) fn index(user_data: u64) -> Option<usize> {
    (FIRST..=u32::MAX.into()).contains(&user_data).then(|| (user_data - FIRST) as usize)
}

/// Reads those that the file's route sends to this thread's ring, at most `most` at a time, and waits for them. The
/// caller carries out the others, and those that the kernel's answer did not end.
pub(crate) fn read(
    guard: &RingGuard<'_>,
    deferred: &mut Deferred,
    target: &Arc<Target>,
    reads: &mut [impl InPlace],
    most: usize,
) {
    let Some(first) = with(|driver| driver.prepare_in_place(target, reads.len())).flatten() else { return };
    let (mut next, mut panic) = (0, None);
    loop {
        // User code that a turn calls may panic. The buffers are not given up before the kernel has answered.
        let waited = catch_unwind(AssertUnwindSafe(|| {
            guard.wait(deferred, None, |_| {
                let go_on = |driver: &mut Driver| driver.read_in_place(target, reads, most, first, &mut next);
                with(go_on).unwrap_or(Some(1))
            });
        }));
        match waited {
            Ok(()) => break,
            Err(payload) => {
                next = reads.len();
                // Another one is leaked: dropping it might panic here.
                if panic.is_none() {
                    panic = Some(payload);
                } else {
                    std::mem::forget(payload);
                }
            }
        }
    }
    let closed = with(|driver| driver.end_in_place(target, reads, first));
    drop(closed);
    if let Some(payload) = panic {
        resume_unwind(payload);
    }
}

impl Driver {
    /// Returns where the answers of so many reads begin; `None` if they do not go to this thread's ring.
    fn prepare_in_place(&mut self, target: &Arc<Target>, count: usize) -> Option<usize> {
        let request = Request { want: 1, ..Request::of(Kind::Read) };
        let first = self.answers.0.len();
        let is_for_ring = is_for_ring(&target.lanes, Kind::Read, || count >= MANY);
        let may_be_a_call = count == 1 && target.lanes.may_wait_inline(target, &request);
        let has_indices = first + count < (u32::MAX - FIRST as u32) as usize;
        if !is_for_ring || may_be_a_call || !has_indices || target.may_wait_forever(Kind::Read) {
            return None;
        }
        self.may_start(target, &request, true).ok().filter(|&ring| ring == RingKind::Main)?;
        self.files.enter(target, self.id);
        self.answers.0.resize(first + count, Answer::NOT_BEGUN);
        Some(first)
    }

    /// Submits further reads from `next` on. Returns how many completions to wait for; `None` if all were answered.
    fn read_in_place(
        &mut self,
        target: &Target,
        reads: &mut [impl InPlace],
        most: usize,
        first: usize,
        next: &mut usize,
    ) -> Option<u32> {
        if self.shared.is_inherited() {
            // A forked child: the answers go to the parent, into the parent's memory.
            self.disown_in_place(first);
            return None;
        }
        let is_open = |answer: &&Answer| answer.number == Answer::IN_FLIGHT;
        let before = self.in_flight - self.answers.0[first..].iter().filter(is_open).count();
        while *next < reads.len()
            && self.in_flight - before < most
            && self.push_in_place(target, &mut reads[*next], first + *next)
        {
            *next += 1;
        }
        let open = self.in_flight - before;
        // The device always has many in flight.
        let enough = if *next < reads.len() { open.div_ceil(4).max(1) } else { open };
        (enough > 0).then_some(enough as u32)
    }

    /// Returns false if there is no room.
    #[inline]
    fn push_in_place(&mut self, target: &Target, read: &mut impl InPlace, at: usize) -> bool {
        let (Some(rings), Some(file)) = (self.rings.as_mut(), self.files.entry(target.number)) else {
            return false;
        };
        // The thread cannot sleep without an entry that polls its wake-up descriptor.
        let kept_free = u32::from(!*rings.wakeup_of(RingKind::Main));
        let ring = &mut rings.main;
        if ring.space() <= kept_free {
            return false;
        }
        let Some((buffer, offset)) = read.begin() else { return true };
        let (start, len) = (buffer.as_mut_ptr(), buffer.capacity());
        let index = match ring.recent_fixed_index(start, len) {
            None => buffer.region().and_then(|region| ring.fixed_index(region)),
            recent => recent,
        };
        let (fd, registered) = file.descriptor(RingKind::Main, ring);
        let base = Sqe {
            flags: if registered { FIXED_FILE } else { 0 }
                | if target.waits_in_submission() { ASYNC } else { 0 },
            fd,
            offset,
            op_flags: target.cache_flags(),
            user_data: FIRST + at as u64,
            ..Sqe::default()
        };
        let Some(sqe) = ring.vacant() else { return false };
        *sqe = read_into(start, len, index, base);
        // SAFETY: the entry names the buffer's memory, which the caller of `read` lends until the answer.
        unsafe { ring.commit() };
        self.answers.0[at] = Answer { number: Answer::IN_FLIGHT, is_fixed: index.is_some() };
        self.in_flight += 1;
        true
    }

    /// Notes the kernel's answer. Returns whether there was such a read.
    #[inline]
    pub(super) fn answered_in_place(&mut self, index: usize, number: i32) -> bool {
        let answer = self.answers.0.get_mut(index);
        let Some(answer) = answer.filter(|answer| answer.number == Answer::IN_FLIGHT) else { return false };
        answer.number = number;
        self.in_flight -= 1;
        true
    }

    /// Passes the answers on, and removes them.
    fn end_in_place(
        &mut self,
        target: &Target,
        reads: &mut [impl InPlace],
        first: usize,
    ) -> Option<ClosedFile> {
        for (read, answer) in reads.iter_mut().zip(&self.answers.0[first..]) {
            if *answer != Answer::NOT_BEGUN && read.end(answer.number) {
                self.counts.ops += 1;
                self.counts.fixed_ops += u64::from(answer.is_fixed);
                self.counts.bytes_read += answer.number.unsigned_abs() as u64;
            }
        }
        self.answers.0.truncate(first);
        self.leave_file(target.number)
    }

    #[cold]
    fn disown_in_place(&mut self, first: usize) {
        for answer in &mut self.answers.0[first..] {
            if answer.number == Answer::IN_FLIGHT {
                answer.number = -libc::ECANCELED;
                self.in_flight -= 1;
            }
        }
    }
}
