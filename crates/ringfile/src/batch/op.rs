//! One operation of a batch, or of [`super::AsyncReads`]: what was asked for, how far it is, what it gives.
//!
//! Knows files, and what a driver takes; starts nothing itself. What always holds: the buffer is here, or in the order
//! that was begun, never in both.

use crate::driver::{self, Ended, Finished, Kind, Request};
use crate::error::Error;
use crate::file::{File, check};
use crate::memory::{Held, IoBuf, IoBufMut, reserve};

use super::{AnyBuffer, Done};

/// What one pass through aligned memory covers at most; the reserve keeps 8 MiB.
const CHUNK: usize = 256 << 10;

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

/// See the module.
pub(super) struct Op {
    pub file: File,
    pub request: Request,
    pub held: Held,
    pub stage: Stage,
    /// The next operation of its group.
    pub next: u32,
    /// Bytes that came through aligned memory so far.
    done: usize,
    through_reserve: bool,
    /// Bytes at the beginning of the chunk that nobody asked for. Kept, as the file may turn buffered meanwhile.
    skipped: usize,
    fell_back: bool,
}

impl Op {
    pub(super) fn read(file: &File, buffer: AnyBuffer, offset: u64) -> Self {
        let held = match buffer {
            AnyBuffer::Pooled(buffer) => buffer.hold_mut(),
            AnyBuffer::Vec(vec) => vec.hold_mut(),
        };
        let want = held.part(0).map_or(0, |part| part.capacity);
        Self::new(file, Kind::Read, 0, offset, want, held)
    }

    pub(super) fn write(file: &File, buffer: AnyBuffer, offset: u64) -> Self {
        let held = match buffer {
            AnyBuffer::Pooled(buffer) => buffer.hold(),
            AnyBuffer::Vec(vec) => vec.hold(),
        };
        let want = held.part(0).map_or(0, |part| part.len);
        Self::new(file, Kind::Write, 0, offset, want, held)
    }

    /// `op_flags`: as for [`Kind::Sync`].
    pub(super) fn sync(file: &File, op_flags: u32) -> Self {
        Self::new(file, Kind::Sync, op_flags, 0, 0, Held::None)
    }

    fn new(file: &File, kind: Kind, op_flags: u32, offset: u64, want: usize, held: Held) -> Self {
        let request = Request { kind, op_flags, offset, start: 0, want, linked: false };
        let file = file.clone();
        let (done, through_reserve, skipped, fell_back) = (0, false, 0, false);
        Self {
            file,
            request,
            held,
            stage: Stage::Waiting,
            next: NONE,
            done,
            through_reserve,
            skipped,
            fell_back,
        }
    }

    /// What to hand to a driver; nothing where the operation is over without one.
    pub(super) fn begin(&mut self) -> Option<(Request, Held)> {
        self.stage = Stage::Begun;
        if let Some(ended) = check::failed_before(&self.file, &self.request) {
            self.end_with(ended);
            return None;
        }
        if !self.request.kind.moves_data() {
            return Some((self.request, Held::None));
        }
        if self.request.want == 0 {
            self.end_with(Ended { done: 0, errno: 0 });
        } else if self.through_reserve {
            return self.begin_chunk();
        }
        match check::fits(&self.file, &self.request, &self.held) {
            Ok(_) if self.is_over() => None,
            Ok(true) => Some((self.request, std::mem::take(&mut self.held))),
            Ok(false) => self.begin_chunk(),
            Err(error) => {
                self.refuse(error);
                None
            }
        }
    }

    /// The next blocks of a direct read that does not fit, into memory that does.
    #[cold]
    fn begin_chunk(&mut self) -> Option<(Request, Held)> {
        self.through_reserve = true;
        let block = self.file.alignment().bytes;
        let at = self.request.offset + self.done as u64;
        let skipped = (at % block as u64) as usize;
        self.skipped = skipped;
        let want = (skipped + self.request.want - self.done).next_multiple_of(block).min(CHUNK.max(block));
        match reserve().try_get(want) {
            Ok(scratch) => {
                let request = Request { offset: at - skipped as u64, want, ..self.request };
                Some((request, Held::Pooled(scratch)))
            }
            Err(error) => {
                self.refuse(Error::from(error).after(self.done));
                None
            }
        }
    }

    /// Takes what a driver gave. False where the operation must begin again, for the rest of it.
    #[inline]
    pub(super) fn end(&mut self, finished: Finished) -> bool {
        if self.through_reserve || finished.ended.errno != 0 {
            return self.end_otherwise(finished);
        }
        self.held = finished.held;
        self.end_with(finished.ended);
        true
    }

    #[cold]
    fn end_otherwise(&mut self, Finished { held, ended }: Finished) -> bool {
        let scratch = if self.through_reserve {
            Some(held)
        } else {
            self.held = held;
            None
        };
        if ended.errno == libc::EINVAL && !self.fell_back && check::falls_back(&self.file, ended) {
            self.fell_back = true;
            (self.through_reserve, self.done) = (false, 0);
            self.stage = Stage::Waiting;
            return false;
        }
        if let Some(scratch) = scratch {
            return self.end_chunk(&scratch, ended);
        }
        self.end_with(ended);
        true
    }

    #[cold]
    fn end_chunk(&mut self, scratch: &Held, ended: Ended) -> bool {
        let (mut moved, mut is_last) = (0, true);
        if let Held::Pooled(scratch) = scratch {
            let got = scratch.get(self.skipped..).unwrap_or_default();
            moved = got.len().min(self.request.want - self.done);
            self.held.copy_in(self.done, &got[..moved]);
            is_last = scratch.len() < scratch.capacity();
        }
        self.done += moved;
        if ended.errno != 0 || is_last || self.done == self.request.want {
            self.end_with(Ended { done: self.done, errno: ended.errno });
            return true;
        }
        self.stage = Stage::Waiting;
        false
    }

    #[inline]
    pub(super) fn end_with(&mut self, ended: Ended) {
        if ended.done == 0 {
            self.show_nothing();
        }
        self.stage = Stage::Over(ended);
    }

    pub(super) fn refuse(&mut self, error: Error) {
        self.show_nothing();
        self.stage = Stage::Refused(error);
    }

    pub(super) fn cancel(&mut self, why: &'static str) {
        self.show_nothing();
        self.stage = Stage::Cancelled(why);
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
    pub(super) fn into_done(self) -> Done {
        if !self.has_failed()
            && let Stage::Over(ended) = self.stage
        {
            return Done { result: Ok(ended.done), buffer: buffer_of(self.held) };
        }
        self.into_failure()
    }

    #[cold]
    fn into_failure(self) -> Done {
        let result = match self.stage {
            Stage::Over(ended) if self.request.kind.moves_data() => {
                Err(check::failure(&self.file, &self.request, ended))
            }
            Stage::Over(ended) => {
                let refused = driver::why_refused(self.file.target(), ended.errno);
                let error = refused.unwrap_or_else(|| Error::from_errno(ended.errno, self.what()));
                let error = check::explain_sync(&self.file, &self.request, ended.errno, error);
                Err(error.on(self.file.path()))
            }
            Stage::Refused(error) => Err(error),
            Stage::Cancelled(why) => Err(self.unbegun(libc::ECANCELED).because(why)),
            _ => Err(self.unbegun(libc::ECANCELED)),
        };
        Done { result, buffer: buffer_of(self.held) }
    }

    fn what(&self) -> &'static str {
        match (self.request.kind, self.request.op_flags) {
            (Kind::Sync, 0) => "syncing",
            (Kind::Sync, _) => "syncing the data",
            (Kind::Write, _) => "write",
            _ => "read",
        }
    }

    fn unbegun(&self, errno: i32) -> Error {
        let error = Error::from_errno(errno, self.what()).on(self.file.path());
        if self.request.kind.moves_data() { error.at(self.request.offset) } else { error }
    }

    /// The error of an operation whose caller may not wait here.
    pub(super) fn would_block(&self, why: &'static str) -> Error {
        Error::new(std::io::ErrorKind::WouldBlock, self.what()).on(self.file.path()).because(why)
    }
}

#[inline]
fn buffer_of(held: Held) -> Option<AnyBuffer> {
    match held {
        Held::Pooled(buffer) => Some(AnyBuffer::Pooled(buffer)),
        Held::Vec(vec) => Some(AnyBuffer::Vec(vec)),
        _ => None,
    }
}
