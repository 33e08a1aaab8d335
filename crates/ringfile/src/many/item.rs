//! One operation of a batch or a queue: its record, where it stands, and its result.
//!
//! Starts nothing itself.

use std::io::ErrorKind;
use std::sync::Arc;

use super::done::{Completion, Token};
use super::files::Files;
use crate::driver::{Finished, Kind, OpResult, OperationId, ReadInPlace, Request, Target};
use crate::error::Error;
use crate::file::adaptive::Descriptor;
use crate::file::op::Product;
use crate::file::record::{Asked, Begun, OperationRecord};
use crate::file::{File, check};
use crate::memory::{AnyBuffer, Borrowed, IoMemory};

pub(super) const NONE: u32 = u32::MAX;

pub(super) enum Stage {
    Waiting,
    /// The first operation of its group carries it out.
    Merged,
    Begun(At),
    Done(OpResult),
    Refused(Error),
    /// It was cancelled before it began, for this reason.
    Cancelled(&'static str),
}

/// The place of a started operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum At {
    /// It was not started, or its result has arrived.
    #[default]
    Nowhere,
    /// A ring is carrying it out.
    Ring(OperationId),
    /// Another thread is carrying it out.
    Elsewhere,
}

/// See the module.
pub(super) struct Item {
    pub record: OperationRecord,
    pub stage: Stage,
    /// The number of its file among [`Files`].
    pub file: u32,
    /// The next operation of its group.
    pub next: u32,
}

// Two cache lines: a larger value is copied by a function call.
const _: () = assert!(size_of::<Item>() <= 128);

impl Item {
    /// No operation; it becomes one in place, see [`OperationRecord::NOTHING`].
    pub(super) const NOTHING: Self =
        Self { record: OperationRecord::NOTHING, stage: Stage::Waiting, file: 0, next: NONE };

    /// Becomes an operation on a file, which has this number among [`Files`].
    #[inline(always)]
    pub(super) fn ask(&mut self, number: u32, asked: Asked) {
        self.file = number;
        self.record.ask(asked);
    }

    /// Sets the stage of an operation that has not ended: that one needs no drop.
    #[inline(always)]
    fn go_to(&mut self, stage: Stage) {
        debug_assert!(!self.is_over());
        std::mem::forget(std::mem::replace(&mut self.stage, stage));
    }

    /// Begins the operation; false if it has ended without being started.
    #[inline]
    pub(super) fn begin(&mut self, files: &Files) -> bool {
        let begun = self.record.begin(files.get(self.file), false);
        // With many reads in flight, no stream is followed.
        if let Begun::Start | Begun::Stream(_) = begun {
            // There is nothing to drop.
            std::mem::forget(begun);
            self.go_to(Stage::Begun(At::Nowhere));
            return true;
        }
        self.begin_no_further(begun);
        false
    }

    #[cold]
    fn begin_no_further(&mut self, begun: Begun) {
        match begun {
            Begun::Start | Begun::Stream(_) => {}
            Begun::Done(ended) => self.stage = Stage::Done(ended),
            Begun::Refused(error) => self.stage = Stage::Refused(error),
        }
    }

    /// Returns the place of the begun operation.
    #[inline]
    pub(super) fn at(&self) -> At {
        if let Stage::Begun(at) = self.stage { at } else { At::Nowhere }
    }

    /// Sets the place of the begun operation, and returns the previous one.
    #[inline]
    pub(super) fn set_at(&mut self, now: At) -> At {
        if let Stage::Begun(at) = &mut self.stage { std::mem::replace(at, now) } else { At::Nowhere }
    }

    /// Returns what a driver starts for a begun operation: the file, the request and the memory.
    #[inline]
    pub(super) fn begun<'a>(
        &'a mut self,
        files: &'a Files,
    ) -> (&'a Arc<Target>, &'a Request, &'a mut IoMemory) {
        self.record.begun(files.get(self.file))
    }

    /// Takes a driver's result. Returns false if the operation must begin again, to do the rest.
    #[inline]
    pub(super) fn end(&mut self, files: &Files, finished: &mut Finished) -> bool {
        if finished.ended.errno == 0 && self.record.is_one_step() {
            finished.memory.move_to(&mut self.record.memory);
            self.end_with(finished.ended);
            return true;
        }
        self.end_otherwise(files, finished)
    }

    #[cold]
    fn end_otherwise(&mut self, files: &Files, finished: &mut Finished) -> bool {
        finished.memory.move_to(self.record.memory());
        let over = self.record.end(files.get(self.file), finished.ended);
        self.stage = match over {
            Some(Ok(ended)) => Stage::Done(ended),
            Some(Err(error)) => Stage::Refused(error),
            None => Stage::Waiting,
        };
        self.is_over()
    }

    /// Returns whether the kernel looks up a path for the operation, which was not begun.
    pub(super) fn looks_up_paths(&self) -> bool {
        self.record.request.looks_up_paths(&self.record.memory)
    }

    /// Ends an operation whose caller must not wait here.
    pub(super) fn refuse_to_wait(&mut self, files: &Files, why: &'static str) {
        let error = Error::new(ErrorKind::WouldBlock, what(&self.record.request));
        self.record.show_done();
        self.stage = Stage::Refused(error.on(files.get(self.file).path()).because(why));
    }

    #[inline]
    pub(super) fn end_with(&mut self, ended: OpResult) {
        if ended.done == 0 {
            self.record.show_nothing();
        }
        self.go_to(Stage::Done(ended));
    }

    /// Takes back an operation that could not be carried out.
    #[cold]
    pub(super) fn refuse_with(&mut self, error: Error, files: &Files) {
        self.stage = Stage::Refused(self.record.not_started(files.get(self.file), error));
    }

    /// Cancels an operation that is not in flight.
    pub(super) fn cancel(&mut self, why: &'static str) {
        self.record.show_nothing();
        self.stage = self.record.cancelled_before_sync().map_or(Stage::Cancelled(why), Stage::Done);
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Done(_) | Stage::Refused(_) | Stage::Cancelled(_))
    }

    /// Returns whether it was cancelled, by the kernel or before the kernel had it, and has done nothing that its
    /// caller must learn of.
    pub(super) fn was_cancelled(&self) -> bool {
        let is_told = |done| done > 0 && !self.record.request.kind.is_read();
        matches!(self.stage, Stage::Done(OpResult { errno: libc::ECANCELED, done }) if !is_told(done))
    }

    /// Returns whether it has failed, see [`OperationRecord::has_failed`].
    pub(super) fn has_failed(&self) -> bool {
        match self.stage {
            Stage::Done(ended) => self.record.has_failed(ended),
            Stage::Refused(_) | Stage::Cancelled(_) => true,
            _ => false,
        }
    }

    /// Appends the result to a list, and becomes [`NOTHING`](Self::NOTHING), which needs no drop.
    #[inline(always)]
    pub(super) fn give_to(
        &mut self,
        list: &mut Vec<Completion>,
        files: &Files,
        token: Token,
        user_data: u64,
    ) {
        if let Stage::Done(ended) = self.stage
            && !self.record.has_detour()
            && !self.record.has_failed(ended)
            && let Some(buffer) = self.record.memory.take_pooled()
        {
            // There is nothing to drop.
            std::mem::forget(std::mem::replace(&mut self.stage, Stage::Waiting));
            let (result, buffer) = (Ok(ended.done), Some(AnyBuffer::Pooled(buffer)));
            // Made where it stays: a value that could also be that of the call below would be copied.
            list.push(Completion { token, user_data, result, buffer, buffers: Vec::new(), other: None });
        } else {
            self.give_otherwise_to(list, files, token, user_data);
        }
    }

    #[inline(never)]
    fn give_otherwise_to(&mut self, list: &mut Vec<Completion>, files: &Files, token: Token, user_data: u64) {
        list.push(Completion { token, user_data, ..self.give(files) });
    }

    /// Returns the result, and becomes [`NOTHING`](Self::NOTHING).
    pub(super) fn give(&mut self, files: &Files) -> Completion {
        let mut op = std::mem::replace(self, Self::NOTHING);
        let file = files.get(op.file);
        let result = match op.stage {
            Stage::Done(ended) if !op.record.has_failed(ended) => Ok(ended.done),
            Stage::Done(ended) => Err(op.record.failure(file, ended)),
            Stage::Refused(error) => Err(error),
            Stage::Cancelled(why) => Err(unbegun(&op.record, file).because(why)),
            Stage::Waiting | Stage::Merged | Stage::Begun(_) => Err(unbegun(&op.record, file)),
        };
        let file = if result.is_ok() { op.record.take_file() } else { None };
        let is_short = matches!(result, Ok(done) if done < op.record.request.want);
        Completion::new(result, Product { done: 0, is_short, file, memory: op.record.memory })
    }

    /// Returns whether it is a read that was not begun and can be carried out in place, see
    /// [`InPlace`](crate::driver::InPlace). If the file is adaptive, first chooses the read's descriptor.
    #[inline(always)]
    pub(super) fn can_stay_in_place(&mut self, file: &File, is_adaptive: bool) -> bool {
        if is_adaptive { self.chooses_to_stay_in_place(file) } else { self.fits_in_place(file.target()) }
    }

    #[inline(never)]
    fn chooses_to_stay_in_place(&mut self, file: &File) -> bool {
        if self.record.descriptor == Descriptor::Open && self.fits_in_place(file.target()) {
            self.record.go(file.choose(&self.record.request, &self.record.memory, false));
        }
        self.fits_in_place(file.target_of(self.record.descriptor))
    }

    #[inline(always)]
    fn fits_in_place(&self, file: &Target) -> bool {
        let IoMemory::Pooled(buffer) = &self.record.memory else { return false };
        let (offset, start) = (self.record.request.offset, buffer.as_ptr().cast_mut());
        self.record.request.kind == Kind::Read
            // Not a part of the buffer.
            && self.record.request.want == buffer.capacity()
            && matches!(self.stage, Stage::Waiting)
            && !self.record.has_detour()
            && check::fits_in_place(file, offset, start, buffer.capacity())
    }

    #[inline]
    pub(super) fn begin_in_place(&mut self) -> Option<ReadInPlace<'_>> {
        let IoMemory::Pooled(buffer) = &mut self.record.memory else { return None };
        let (offset, target) = (self.record.request.offset, self.record.descriptor.index());
        Some(ReadInPlace { memory: Borrowed::of_buffer(buffer), offset, target })
    }

    #[inline]
    pub(super) fn end_in_place(&mut self, ended: OpResult) {
        if let IoMemory::Pooled(buffer) = &mut self.record.memory {
            buffer.set_len(ended.done);
        }
        self.go_to(Stage::Done(ended));
    }
}

fn what(request: &Request) -> &'static str {
    request.kind.verb(request.op_flags)
}

/// Returns the error of an operation that was not begun.
fn unbegun(record: &OperationRecord, file: &File) -> Error {
    let error = Error::from_errno(libc::ECANCELED, what(&record.request)).on(file.path());
    if record.request.kind.moves_data() { error.at(record.request.offset) } else { error }
}
