//! One operation of a batch or a queue: what was asked for, how far it is, what it gives.
//!
//! Knows files, and what a driver takes; starts nothing itself. What always holds: the buffer is here, or a driver has it,
//! never both.

use std::io::ErrorKind;

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
    Begun(At),
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
            // Refused when it begins.
            AnyBuffer::Bytes(bytes) => bytes.hold(),
        };
        let want = held.part(0).map_or(0, |part| part.capacity);
        Self { kind: Kind::Read, op_flags: 0, offset, want, held }
    }

    #[inline]
    pub(super) fn write(buffer: AnyBuffer, offset: u64) -> Self {
        let held = match buffer {
            AnyBuffer::Pooled(buffer) => buffer.hold(),
            AnyBuffer::Vec(vec) => vec.hold(),
            AnyBuffer::Bytes(bytes) => bytes.hold(),
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
    /// The next operation of its group.
    pub next: u32,
    /// What is started in its place.
    pub detour: Option<Box<Detour>>,
    fell_back: bool,
}

// Two cache lines: more is copied by a call.
const _: () = assert!(size_of::<Op>() <= 128);

/// What is started in an operation's place: a piece of a direct read that does not fit, or the one read of a group.
pub(super) struct Detour {
    pub request: Request,
    pub held: Held,
    /// How far a direct read is that does not fit.
    pieces: Pieces,
}

impl Detour {
    pub(super) fn new(request: Request, held: Held) -> Box<Self> {
        Box::new(Self { request, held, pieces: Pieces::default() })
    }
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
            next: NONE,
            detour: None,
            fell_back: false,
        }
    }

    /// Begins the operation; false where it is over without being started.
    #[inline]
    pub(super) fn begin(&mut self, files: &Files) -> bool {
        let file = files.get(self.file);
        self.stage = Stage::Begun(At::Nowhere);
        if !self.request.kind.moves_data() {
            return true;
        }
        if self.request.want == 0 {
            self.end_empty(file);
        } else if self.detour.is_some() {
            return self.begin_piece(file);
        }
        match check::fits(file, &self.request, &self.held) {
            Ok(fits) if fits || self.is_over() => !self.is_over(),
            Ok(_) => self.begin_piece(file),
            Err(error) => {
                self.refuse(error);
                false
            }
        }
    }

    /// Ends an operation that moves nothing.
    #[cold]
    fn end_empty(&mut self, file: &File) {
        if self.request.kind.is_read() && matches!(self.held, Held::Bytes(_)) {
            let why = "shared bytes can't be read into; read into a buffer of a Pool or a vector";
            self.refuse(check::error(file, &self.request, ErrorKind::InvalidInput, why));
        } else {
            self.end_with(Ended { done: 0, errno: 0 });
        }
    }

    /// Begins the next piece of a direct read that does not fit.
    #[cold]
    fn begin_piece(&mut self, file: &File) -> bool {
        let detour = self.detour.get_or_insert_with(|| Detour::new(self.request, Held::None));
        match detour.pieces.begin(&self.request, file.alignment(), &mut self.held) {
            Ok((request, held)) => {
                (detour.request, detour.held) = (request, held);
                true
            }
            Err(error) => {
                self.refuse(error);
                false
            }
        }
    }

    /// Where the operation is that was begun.
    #[inline]
    pub(super) fn at(&self) -> At {
        if let Stage::Begun(at) = self.stage { at } else { At::Nowhere }
    }

    /// Notes where the operation is that was begun, and returns where it was.
    #[inline]
    pub(super) fn set_at(&mut self, now: At) -> At {
        if let Stage::Begun(at) = &mut self.stage { std::mem::replace(at, now) } else { At::Nowhere }
    }

    /// What a driver is to start for an operation that was begun, and the memory for it.
    #[inline]
    pub(super) fn begun(&mut self) -> (&Request, &mut Held) {
        match &mut self.detour {
            None => (&self.request, &mut self.held),
            Some(detour) => (&detour.request, &mut detour.held),
        }
    }

    /// Takes what a driver gave. False where the operation must begin again, for the rest of it.
    #[inline]
    pub(super) fn end(&mut self, files: &Files, finished: Finished) -> bool {
        if self.detour.is_some() || finished.ended.errno != 0 {
            return self.end_otherwise(files.get(self.file), finished);
        }
        self.held.put(finished.held);
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
        let over = match &mut self.detour {
            Some(detour) => detour.pieces.end(&self.request, &mut self.held, finished),
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
        match &self.detour {
            Some(detour) => detour.pieces.give_back(&mut self.held, held),
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
    pub(super) fn refuse_with(&mut self, error: Error, files: &Files) {
        let held = std::mem::take(self.begun().1);
        self.take_back(held);
        let error = error.on(files.get(self.file).path());
        let error = match &self.detour {
            Some(detour) => error.after(detour.pieces.done()),
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
            self.held.copy_in(self.detour.as_ref().map_or(0, |detour| detour.pieces.done()), &[]);
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
            Stage::Waiting | Stage::Merged | Stage::Begun(_) => Err(self.unbegun(file)),
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
        Error::new(ErrorKind::WouldBlock, self.what()).on(path).because(why)
    }
}

#[inline]
fn done(result: Result<usize, Error>, held: Held) -> Done {
    let (buffer, buffers) = match held {
        Held::Pooled(buffer) => (Some(AnyBuffer::Pooled(buffer)), Vec::new()),
        Held::Vec(vec) => (Some(AnyBuffer::Vec(vec)), Vec::new()),
        Held::Bytes(bytes) => (Some(AnyBuffer::Bytes(bytes)), Vec::new()),
        Held::Buffers(buffers) => (None, buffers),
        Held::None | Held::Vecs(_) | Held::ManyBytes(_) | Held::Other(_) => (None, Vec::new()),
    };
    Done { result, buffer, buffers }
}
