//! One operation of a batch or a queue: what was asked for, how far it is, what it gives.
//!
//! Knows files, and what a driver takes; starts nothing itself. What always holds: the buffer is here, or in the order
//! that was begun, never in both.

use std::path::Path;
use std::sync::Arc;

use linux_raw_sys::general::RWF_DSYNC;
use linux_raw_sys::io_uring::IORING_FSYNC_DATASYNC;

use super::files::Files;
use super::{AnyBuffer, Done};
use crate::driver::{Ended, Finished, Kind, Place, Request, Target};
use crate::error::Error;
use crate::file::unaligned::Pieces;
use crate::file::{Advice, AllocateMode, File, OpenOptions, RangeSync, check};
use crate::fs::{self, Metadata, PathRequest};
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
    opening: Option<Box<Opening>>,
}

/// A file that an operation opens.
struct Opening {
    options: OpenOptions,
    /// It is open, and not truncated yet, or the operation is over.
    file: Option<File>,
}

impl Asked {
    #[inline]
    pub(super) fn read(buffer: AnyBuffer, offset: u64) -> Self {
        let held = match buffer {
            AnyBuffer::Pooled(buffer) => buffer.hold_mut(),
            AnyBuffer::Vec(vec) => vec.hold_mut(),
        };
        let want = held.part(0).map_or(0, |part| part.capacity);
        Self { kind: Kind::Read, op_flags: 0, offset, want, held, opening: None }
    }

    #[inline]
    pub(super) fn write(buffer: AnyBuffer, offset: u64) -> Self {
        let held = match buffer {
            AnyBuffer::Pooled(buffer) => buffer.hold(),
            AnyBuffer::Vec(vec) => vec.hold(),
        };
        let want = held.part(0).map_or(0, |part| part.len);
        Self { kind: Kind::Write, op_flags: 0, offset, want, held, opening: None }
    }

    /// A write that is durable when it ends.
    pub(super) fn write_durable(buffer: AnyBuffer, offset: u64) -> Self {
        Self { op_flags: RWF_DSYNC, ..Self::write(buffer, offset) }
    }

    pub(super) fn read_vectored(buffers: Vec<Buffer>, offset: u64) -> Self {
        let want = buffers.iter().map(Buffer::capacity).sum();
        let held = Buffer::hold_many_mut(buffers);
        Self { kind: Kind::ReadVectored, op_flags: 0, offset, want, held, opening: None }
    }

    pub(super) fn write_vectored(buffers: Vec<Buffer>, offset: u64) -> Self {
        let want = buffers.iter().map(|buffer| buffer.len()).sum();
        let held = Buffer::hold_many(buffers);
        Self { kind: Kind::WriteVectored, op_flags: 0, offset, want, held, opening: None }
    }

    fn control(kind: Kind, op_flags: u32, offset: u64, want: u64) -> Self {
        Self { kind, op_flags, offset, want: want as usize, held: Held::None, opening: None }
    }

    /// What an operation on paths asks for, and what stands for its file.
    pub(super) fn path(asked: PathRequest) -> (File, Self) {
        let PathRequest { path, request, held } = asked;
        (path, Self { held, ..Self::control(request.kind, request.op_flags, 0, 0) })
    }

    pub(super) fn open(path: &Path, options: &OpenOptions) -> (File, Self) {
        let (path, asked) = Self::path(PathRequest::open(path, options));
        let opening = Some(Box::new(Opening { options: options.clone(), file: None }));
        (path, Self { opening, ..asked })
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
    opening: Option<Box<Opening>>,
}

impl Op {
    #[inline]
    pub(super) fn new(file: u32, asked: Asked) -> Self {
        let Asked { kind, op_flags, offset, want, held, opening } = asked;
        Self {
            file,
            request: Request { kind, op_flags, offset, start: 0, want, linked: false },
            held,
            stage: Stage::Waiting,
            at: At::Nowhere,
            next: NONE,
            pieces: None,
            fell_back: false,
            opening,
        }
    }

    /// What to hand to a driver; nothing where the operation is over without one.
    pub(super) fn begin(&mut self, files: &Files) -> Option<(Request, Held)> {
        let file = files.get(self.file);
        self.stage = Stage::Begun;
        if !self.request.kind.moves_data() {
            return self.begin_without_data(file);
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

    /// Begins what moves no data.
    fn begin_without_data(&mut self, file: &File) -> Option<(Request, Held)> {
        let options = self.opening.as_ref().map_or(Ok(()), |opening| opening.options.check());
        let fit = options.map_err(|error| error.on(file.path())).and_then(|()| {
            match self.request.kind.names_paths() {
                true => fs::check(file, &self.request, &self.held),
                false => Ok(()),
            }
        });
        fit.map_err(|error| self.refuse(error)).ok()?;
        Some((self.request, std::mem::take(&mut self.held)))
    }

    /// The file that the operation is on now, for the driver.
    #[inline]
    pub(super) fn target<'a>(&'a self, files: &'a Files) -> &'a Arc<Target> {
        match self.opening.as_ref().and_then(|opening| opening.file.as_ref()) {
            Some(opened) => opened.target(),
            None => files.get(self.file).target(),
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
        if self.pieces.is_some() || finished.ended.errno != 0 || self.opening.is_some() {
            return self.end_otherwise(files.get(self.file), finished);
        }
        self.held = finished.held;
        self.end_with(finished.ended);
        true
    }

    #[cold]
    fn end_otherwise(&mut self, file: &File, finished: Finished) -> bool {
        let ended = finished.ended;
        if ended.errno == 0 && self.opening.is_some() {
            return self.end_opening(file, finished.held);
        }
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

    /// Makes a file of what was opened; one that is to be truncated begins again, for that.
    fn end_opening(&mut self, path: &File, held: Held) -> bool {
        let Some(opening) = &mut self.opening else { return true };
        if opening.file.is_none() {
            match fs::opened(&opening.options, path, held) {
                Ok(file) => opening.file = Some(file),
                Err(error) => {
                    self.refuse(error);
                    return true;
                }
            }
            if opening.options.truncates() {
                (self.request, self.stage) = (fs::TRUNCATION, Stage::Waiting);
                return false;
            }
        }
        self.end_with(Ended { done: 0, errno: 0 });
        true
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
            return done(Ok(ended.done), self.held, self.opening);
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
            Stage::Over(ended) => Err(check::why_not_done(file, &self.request, &self.held, ended.errno)),
            Stage::Refused(error) => Err(error),
            Stage::Cancelled(why) => Err(self.unbegun(file).because(why)),
            Stage::Waiting | Stage::Merged | Stage::Begun => Err(self.unbegun(file)),
        };
        done(result, self.held, None)
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
fn done(result: Result<usize, Error>, held: Held, opening: Option<Box<Opening>>) -> Done {
    let (mut buffer, mut buffers, mut metadata) = (None, Vec::new(), None);
    match held {
        Held::Pooled(pooled) => buffer = Some(AnyBuffer::Pooled(pooled)),
        Held::Vec(vec) => buffer = Some(AnyBuffer::Vec(vec)),
        Held::Buffers(all) => buffers = all,
        held @ Held::Paths(_) if result.is_ok() => metadata = Metadata::of(held).map(Box::new),
        Held::None | Held::Vecs(_) | Held::Other(_) | Held::Paths(_) => {}
    }
    let file = opening.and_then(|opening| opening.file);
    Done { result, buffer, buffers, file, metadata }
}
