//! One operation of a batch or a queue: what was asked for, how far it is, what it gives.
//!
//! Knows files, and what a driver takes; starts nothing itself. What always holds: the buffer is here, or in the order
//! that was begun, never in both.

use linux_raw_sys::general::RWF_DSYNC;
use linux_raw_sys::io_uring::IORING_FSYNC_DATASYNC;

use super::files::Files;
use super::{AnyBuffer, Done};
use crate::driver::{self, Ended, Finished, Kind, Place, Request};
use crate::error::Error;
use crate::file::unaligned::Pieces;
use crate::file::{Advice, AllocateMode, File, RangeSync, check};
use crate::memory::{Buffer, Held, IoBuf, IoBufMut};

pub(super) const NONE: u32 = u32::MAX;

pub(super) enum Stage {
    Waiting,
    /// The operation that is first in its group carries it out too.
    Merged,
    Begun,
    Over(Ended),
    Refused(Error),
    /// It was not begun, and why.
    Cancelled(&'static str),
}

/// Where an operation is that was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum At {
    /// It was not started, or its result is here.
    #[default]
    Nowhere,
    /// A ring has it.
    Ring(Place),
    /// Another thread has it.
    Elsewhere,
}

/// What is asked for, before it becomes an operation of a file.
pub(super) struct Asked {
    kind: Kind,
    op_flags: u32,
    offset: u64,
    want: usize,
    held: Held,
}

impl Asked {
    #[inline]
    pub(super) fn read(buffer: AnyBuffer, offset: u64) -> Self {
        let held = match buffer {
            AnyBuffer::Pooled(buffer) => buffer.hold_mut(),
            AnyBuffer::Vec(vec) => vec.hold_mut(),
        };
        let want = held.part(0).map_or(0, |part| part.capacity);
        Self { kind: Kind::Read, op_flags: 0, offset, want, held }
    }

    #[inline]
    pub(super) fn write(buffer: AnyBuffer, offset: u64) -> Self {
        let held = match buffer {
            AnyBuffer::Pooled(buffer) => buffer.hold(),
            AnyBuffer::Vec(vec) => vec.hold(),
        };
        let want = held.part(0).map_or(0, |part| part.len);
        Self { kind: Kind::Write, op_flags: 0, offset, want, held }
    }

    /// A write that is durable when it ends.
    pub(super) fn write_durable(buffer: AnyBuffer, offset: u64) -> Self {
        Self { op_flags: RWF_DSYNC, ..Self::write(buffer, offset) }
    }

    pub(super) fn read_vectored(buffers: Vec<Buffer>, offset: u64) -> Self {
        let want = buffers.iter().map(Buffer::capacity).sum();
        Self { kind: Kind::ReadVectored, op_flags: 0, offset, want, held: Buffer::hold_many_mut(buffers) }
    }

    pub(super) fn write_vectored(buffers: Vec<Buffer>, offset: u64) -> Self {
        let want = buffers.iter().map(|buffer| buffer.len()).sum();
        Self { kind: Kind::WriteVectored, op_flags: 0, offset, want, held: Buffer::hold_many(buffers) }
    }

    fn control(kind: Kind, op_flags: u32, offset: u64, want: u64) -> Self {
        Self { kind, op_flags, offset, want: want as usize, held: Held::None }
    }

    pub(super) fn sync_data() -> Self {
        Self::control(Kind::Sync, IORING_FSYNC_DATASYNC, 0, 0)
    }

    pub(super) fn sync_all() -> Self {
        Self::control(Kind::Sync, 0, 0, 0)
    }

    pub(super) fn sync_range(offset: u64, len: u64, what: RangeSync) -> Self {
        Self::control(Kind::SyncRange, what.flags(), offset, len)
    }

    pub(super) fn allocate(mode: AllocateMode, offset: u64, len: u64) -> Self {
        Self::control(Kind::Allocate, mode.flags(), offset, len)
    }

    pub(super) fn set_len(len: u64) -> Self {
        Self::control(Kind::Truncate, 0, len, 0)
    }

    pub(super) fn advise(offset: u64, len: u64, advice: Advice) -> Self {
        Self::control(Kind::Advise, advice.number(), offset, len)
    }
}

/// See the module.
pub(super) struct Op {
    /// The number of its file among [`Files`].
    pub file: u32,
    pub request: Request,
    pub held: Held,
    pub stage: Stage,
    pub at: At,
    /// The next operation of its group.
    pub next: u32,
    /// How far a direct read is that does not fit.
    pieces: Option<Pieces>,
    fell_back: bool,
}

impl Op {
    #[inline]
    pub(super) fn new(file: u32, asked: Asked) -> Self {
        let Asked { kind, op_flags, offset, want, held } = asked;
        Self {
            file,
            request: Request { kind, op_flags, offset, start: 0, want, linked: false },
            held,
            stage: Stage::Waiting,
            at: At::Nowhere,
            next: NONE,
            pieces: None,
            fell_back: false,
        }
    }

    /// What to hand to a driver; nothing where the operation is over without one.
    pub(super) fn begin(&mut self, files: &Files) -> Option<(Request, Held)> {
        let file = files.get(self.file);
        self.stage = Stage::Begun;
        if !self.request.kind.moves_data() {
            return Some((self.request, Held::None));
        }
        if self.request.want == 0 {
            self.end_with(Ended { done: 0, errno: 0 });
        } else if self.pieces.is_some() {
            return self.begin_piece(file);
        }
        match check::fits(file, &self.request, &self.held) {
            Ok(_) if self.is_over() => None,
            Ok(true) => Some((self.request, std::mem::take(&mut self.held))),
            Ok(false) => self.begin_piece(file),
            Err(error) => {
                self.refuse(error);
                None
            }
        }
    }

    /// Begins the next piece of a direct read that does not fit.
    #[cold]
    fn begin_piece(&mut self, file: &File) -> Option<(Request, Held)> {
        let pieces = self.pieces.get_or_insert_default();
        pieces.begin(&self.request, file.alignment(), &mut self.held).map_err(|error| self.refuse(error)).ok()
    }

    /// Takes what a driver gave. False where the operation must begin again, for the rest of it.
    #[inline]
    pub(super) fn end(&mut self, files: &Files, finished: Finished) -> bool {
        if self.pieces.is_some() || finished.ended.errno != 0 {
            return self.end_otherwise(files.get(self.file), finished);
        }
        self.held = finished.held;
        self.end_with(finished.ended);
        true
    }

    #[cold]
    fn end_otherwise(&mut self, file: &File, finished: Finished) -> bool {
        let ended = finished.ended;
        if ended.errno == libc::EINVAL && !self.fell_back && check::falls_back(file, ended) {
            self.fell_back = true;
            self.take_back(finished.held);
            self.stage = Stage::Waiting;
            return false;
        }
        let over = match &mut self.pieces {
            Some(pieces) => pieces.end(&self.request, &mut self.held, finished),
            None => {
                self.held = finished.held;
                Some(ended)
            }
        };
        match over {
            Some(ended) => self.end_with(ended),
            None => self.stage = Stage::Waiting,
        }
        over.is_some()
    }

    /// Takes back the memory of what was not carried out.
    fn take_back(&mut self, held: Held) {
        match &self.pieces {
            Some(pieces) => pieces.give_back(&mut self.held, held),
            None => self.held = held,
        }
    }

    #[inline]
    pub(super) fn end_with(&mut self, ended: Ended) {
        if ended.done == 0 {
            self.show_nothing();
        }
        self.stage = Stage::Over(ended);
    }

    pub(super) fn refuse(&mut self, error: Error) {
        self.show_done();
        self.stage = Stage::Refused(error);
    }

    /// Takes back what could not be carried out.
    #[cold]
    pub(super) fn refuse_with(&mut self, held: Held, error: Error, files: &Files) {
        self.take_back(held);
        let error = error.on(files.get(self.file).path());
        let error = match &self.pieces {
            Some(pieces) => error.after(pieces.done()),
            None => error,
        };
        self.refuse(if self.request.kind.moves_data() { error.at(self.request.offset) } else { error });
    }

    pub(super) fn cancel(&mut self, why: &'static str) {
        self.show_nothing();
        self.stage = Stage::Cancelled(why);
    }

    /// A read that did not come to its end leaves a buffer that shows what it gave.
    fn show_done(&mut self) {
        if self.request.kind.is_read() {
            self.held.copy_in(self.pieces.as_ref().map_or(0, Pieces::done), &[]);
        }
    }

    /// A read that gave nothing leaves a buffer that shows nothing.
    fn show_nothing(&mut self) {
        if self.request.kind.is_read() {
            self.held.copy_in(0, &[]);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over(_) | Stage::Refused(_) | Stage::Cancelled(_))
    }

    /// Whether the kernel cancelled it, or a driver before the kernel had it.
    pub(super) fn was_cancelled(&self) -> bool {
        matches!(self.stage, Stage::Over(Ended { errno: libc::ECANCELED, .. }))
    }

    /// Whether it is over, and not with what was asked for. A read that ends with its file is.
    pub(super) fn has_failed(&self) -> bool {
        match &self.stage {
            Stage::Over(ended) => {
                let short = self.request.kind.is_write() && ended.done < self.request.want;
                ended.errno != 0 || short
            }
            Stage::Refused(_) | Stage::Cancelled(_) => true,
            _ => false,
        }
    }

    #[inline]
    pub(super) fn into_done(self, files: &Files) -> Done {
        if !self.has_failed()
            && let Stage::Over(ended) = self.stage
        {
            return done(Ok(ended.done), self.held);
        }
        let file = files.get(self.file);
        self.into_failure(file)
    }

    #[cold]
    fn into_failure(self, file: &File) -> Done {
        let result = match self.stage {
            Stage::Over(ended) if self.request.kind.moves_data() => {
                Err(check::failure(file, &self.request, ended))
            }
            Stage::Over(ended) => {
                let refused = driver::why_refused(file.target(), ended.errno);
                let error = refused.unwrap_or_else(|| Error::from_errno(ended.errno, self.what()));
                let error = match ended.errno {
                    libc::ECANCELED => check::cancelled(error),
                    _ => check::explain_sync(file, &self.request, ended.errno, error),
                };
                Err(error.on(file.path()))
            }
            Stage::Refused(error) => Err(error),
            Stage::Cancelled(why) => Err(self.unbegun(file).because(why)),
            Stage::Waiting | Stage::Merged | Stage::Begun => Err(self.unbegun(file)),
        };
        done(result, self.held)
    }

    fn unbegun(&self, file: &File) -> Error {
        let error = Error::from_errno(libc::ECANCELED, self.what()).on(file.path());
        if self.request.kind.moves_data() { error.at(self.request.offset) } else { error }
    }

    fn what(&self) -> &'static str {
        self.request.kind.verb(self.request.op_flags)
    }

    /// The error of an operation whose caller may not wait here.
    pub(super) fn would_block(&self, files: &Files, why: &'static str) -> Error {
        let path = files.get(self.file).path();
        Error::new(std::io::ErrorKind::WouldBlock, self.what()).on(path).because(why)
    }
}

#[inline]
fn done(result: Result<usize, Error>, held: Held) -> Done {
    let (buffer, buffers) = match held {
        Held::Pooled(buffer) => (Some(AnyBuffer::Pooled(buffer)), Vec::new()),
        Held::Vec(vec) => (Some(AnyBuffer::Vec(vec)), Vec::new()),
        Held::Buffers(buffers) => (None, buffers),
        Held::None | Held::Vecs(_) | Held::Other(_) | Held::Paths(_) => (None, Vec::new()),
    };
    Done { result, buffer, buffers }
}
