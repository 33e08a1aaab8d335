//! One operation of a batch or a queue: its request, its progress, its result.
//!
//! Knows files, and the requests of a driver; starts nothing itself. Invariant: the buffer is either here or with a
//! driver, never both.

use std::io::ErrorKind;
use std::sync::Arc;

use super::files::Files;
use super::{Done, OnPath};
use crate::driver::{Ended, Finished, Kind, Place, PlaceOfRead, Request, Target};
use crate::error::Error;
use crate::file::adaptive::{self, Descriptor, Way};
use crate::file::ask::Asked;
use crate::file::durable::{self, AfterWrite};
use crate::file::unaligned::Pieces;
use crate::file::{File, OpenOptions, check};
use crate::fs::{self, Metadata};
use crate::memory::{AnyBuffer, Borrowed, Held};

pub(super) const NONE: u32 = u32::MAX;

pub(super) enum Stage {
    Waiting,
    /// The first operation of its group carries it out.
    Merged,
    Begun(At),
    Over(Ended),
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
    Ring(Place),
    /// Another thread is carrying it out.
    Elsewhere,
}

/// The state of an operation that opens a file.
pub(super) struct Opening {
    options: Box<OpenOptions>,
    /// The file is open, but not truncated yet, or the operation has ended.
    file: Option<File>,
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
    /// The operation that is started in its place.
    pub detour: Option<Box<Detour>>,
    fell_back: bool,
    pub descriptor: Descriptor,
    /// What is left to do for a durable write. While its sync is carried out, [`request`](Self::request) has that kind.
    durable: AfterWrite,
}

// Two cache lines: a larger value is copied by a function call.
const _: () = assert!(size_of::<Op>() <= 128);

/// The operation that is started in place of the user's: a piece of a read (see [`Pieces`]), the one read of a group,
/// or a step of opening a file.
pub(super) struct Detour {
    pub request: Request,
    pub held: Held,
    /// The progress of a read in pieces.
    pieces: Pieces,
    opening: Option<Opening>,
}

impl Detour {
    pub(super) fn new(request: Request, held: Held, pieces: Pieces) -> Box<Self> {
        Box::new(Self { request, held, pieces, opening: None })
    }
}

impl Op {
    /// No operation; it becomes one in place, since building one elsewhere and copying it takes several times as long.
    pub(super) const NOTHING: Self = Self {
        file: 0,
        request: Request::of(Kind::Read),
        held: Held::None,
        stage: Stage::Waiting,
        next: NONE,
        detour: None,
        fell_back: false,
        descriptor: Descriptor::Open,
        durable: AfterWrite::NOTHING,
    };

    /// Becomes an operation on a file, which has this number among [`Files`].
    #[inline(always)]
    pub(super) fn ask(&mut self, number: u32, mut asked: Asked) {
        self.file = number;
        self.request = asked.request;
        self.durable = asked.rest;
        asked.held.move_to(&mut self.held);
        match asked.opens.take() {
            None => {}
            Some(options) => self.opens_with(options),
        }
        // Nothing is left to drop; dropping it would call drop code out of line.
        std::mem::forget(asked);
    }

    #[cold]
    fn opens_with(&mut self, options: Box<OpenOptions>) {
        let detour = Detour::new(self.request, std::mem::take(&mut self.held), Pieces::default());
        self.detour.insert(detour).opening = Some(Opening { options, file: None });
    }

    /// Begins the operation; false if it has ended without being started.
    #[inline]
    pub(super) fn begin(&mut self, files: &Files) -> bool {
        let file = self.descriptor.of(files.get(self.file));
        self.stage = Stage::Begun(At::Nowhere);
        if self.durable != AfterWrite::NOTHING {
            self.durable.begin();
        }
        if !self.request.kind.moves_data() {
            return self.begin_without_data(file);
        }
        if self.detour.is_some() {
            return self.begin_piece(file);
        }
        match check::fits(file, &self.request, &self.held) {
            Ok(_) if self.request.want == 0 => {
                self.end_empty(file);
                false
            }
            Ok(true) if self.descriptor == Descriptor::Open && file.has_two_ways(&self.request) => {
                self.choose(file);
                self.begin(files)
            }
            Ok(true) => true,
            Ok(false) => self.begin_piece(file),
            Err(error) => {
                self.refuse(error);
                false
            }
        }
    }

    /// Chooses the descriptors for a read of an adaptive file.
    fn choose(&mut self, file: &File) {
        self.go(adaptive::choose(file, &self.request, &self.held, false));
    }

    /// Sets the descriptors for a read of an adaptive file, which was not begun.
    pub(super) fn go(&mut self, way: Way) {
        self.descriptor = match way {
            Way::By(descriptor) => descriptor,
            Way::CachedBeginning(cached) => {
                let pieces = Pieces::with_cached_beginning(cached);
                let descriptor = pieces.descriptor();
                self.detour = Some(Detour::new(self.request, Held::None, pieces));
                descriptor
            }
            // With many reads in flight, no stream is followed.
            Way::Stream(_) => Descriptor::Direct,
        };
    }

    /// Begins an operation that moves no data.
    fn begin_without_data(&mut self, file: &File) -> bool {
        let (request, held) = match &self.detour {
            None => (&self.request, &self.held),
            Some(detour) => (&detour.request, &detour.held),
        };
        let options = self.opening().map_or(Ok(()), |opening| opening.options.check());
        let fits = options
            .map_err(|error| error.on(file.path()))
            .and_then(|()| check::fits_without_data(file, request, held));
        fits.map_err(|error| self.refuse(error)).is_ok()
    }

    /// Returns the file being opened, if that is the operation.
    fn opening(&self) -> Option<&Opening> {
        self.detour.as_ref()?.opening.as_ref()
    }

    /// Ends an operation that moves nothing.
    #[cold]
    fn end_empty(&mut self, file: &File) {
        match check::moves_nothing(file, &self.request, &self.held) {
            Ok(ended) => self.end_with(ended),
            Err(error) => self.refuse(error),
        }
    }

    /// Begins the next piece of a read that goes in pieces.
    #[cold]
    fn begin_piece(&mut self, file: &File) -> bool {
        let (request, descriptor) = (self.request, self.descriptor);
        let in_pieces = || Detour::new(request, Held::None, Pieces::by(descriptor));
        let detour = self.detour.get_or_insert_with(in_pieces);
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
    pub(super) fn begun<'a>(&'a mut self, files: &'a Files) -> (&'a Arc<Target>, &'a Request, &'a mut Held) {
        let file = self.descriptor.of(files.get(self.file));
        match &mut self.detour {
            None => (file.target(), &self.request, &mut self.held),
            Some(detour) => {
                let Detour { request, held, opening, .. } = &mut **detour;
                let opened = opening.as_ref().and_then(|opening| opening.file.as_ref());
                (opened.unwrap_or(file).target(), request, held)
            }
        }
    }

    /// Takes a driver's result. Returns false if the operation must begin again, to do the rest.
    #[inline]
    pub(super) fn end(&mut self, files: &Files, finished: &mut Finished) -> bool {
        if self.detour.is_some() || finished.ended.errno != 0 || self.durable != AfterWrite::NOTHING {
            let finished = std::mem::replace(finished, Finished::NOTHING);
            return self.end_otherwise(self.descriptor.of(files.get(self.file)), finished);
        }
        finished.held.move_to(&mut self.held);
        self.end_with(finished.ended);
        true
    }

    #[cold]
    fn end_otherwise(&mut self, file: &File, finished: Finished) -> bool {
        let ended = finished.ended;
        if self.opening().is_some() {
            return self.end_opening(file, finished);
        }
        if self.durable != AfterWrite::NOTHING && (ended.errno == 0 || self.request.kind == Kind::Sync) {
            return self.end_durable(file, finished);
        }
        if ended.errno == libc::EINVAL && !self.fell_back && check::falls_back(file, &self.request, ended) {
            self.fell_back = true;
            self.take_back(finished.held);
            self.stage = Stage::Waiting;
            return false;
        }
        let over = match &mut self.detour {
            Some(detour) => {
                let over = detour.pieces.end(&self.request, &mut self.held, finished);
                self.descriptor = detour.pieces.descriptor();
                over
            }
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

    /// Ends a durable write, or its sync. If the sync must follow, the operation begins again.
    fn end_durable(&mut self, file: &File, finished: Finished) -> bool {
        let Finished { held, ended } = finished;
        self.held = held;
        let want = self.request.want;
        if self.request.kind == Kind::Write && self.request.synced && ended.done == want {
            self.request.kind = Kind::Sync;
            self.request.op_flags = durable::SYNC.op_flags;
            self.stage = Stage::Waiting;
            return false;
        }
        let done = if self.request.kind == Kind::Sync { want } else { ended.done };
        self.request.kind = Kind::Write;
        if done == want && ended.errno == 0 {
            file.durability().note(&self.request, self.durable);
        }
        self.end_with(Ended { done, ..ended });
        true
    }

    /// Makes a file of the opened descriptor. If it must be truncated, the operation begins again.
    fn end_opening(&mut self, path: &File, finished: Finished) -> bool {
        let Finished { held, ended } = finished;
        if let Some(detour) = &mut self.detour
            && let Some(opening) = &mut detour.opening
            && opening.file.is_none()
            && ended.errno == 0
        {
            match fs::opened(&opening.options, path, held) {
                Ok(file) => opening.file = Some(file),
                Err(error) => {
                    self.refuse(error);
                    return true;
                }
            }
            if opening.options.truncates() {
                detour.request = fs::TRUNCATION;
                self.stage = Stage::Waiting;
                return false;
            }
        }
        self.end_with(ended);
        true
    }

    /// Takes back the memory of an operation that was not carried out.
    fn take_back(&mut self, held: Held) {
        match &self.detour {
            Some(detour) => detour.pieces.give_back(&self.request, &mut self.held, held),
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

    /// Takes back an operation that could not be carried out.
    #[cold]
    pub(super) fn refuse_with(&mut self, error: Error, files: &Files) {
        let held = std::mem::take(self.begun(files).2);
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

    /// After a read that did not finish, the buffer's length shows what was read.
    fn show_done(&mut self) {
        if self.request.kind.is_read() {
            self.held.copy_in(self.detour.as_ref().map_or(0, |detour| detour.pieces.done()), &[]);
        }
    }

    /// After a read without data, the buffer's length is 0.
    fn show_nothing(&mut self) {
        if self.request.kind.is_read() {
            self.held.copy_in(0, &[]);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over(_) | Stage::Refused(_) | Stage::Cancelled(_))
    }

    /// Returns whether the kernel cancelled it, or a driver before the kernel had it.
    pub(super) fn was_cancelled(&self) -> bool {
        matches!(self.stage, Stage::Over(Ended { errno: libc::ECANCELED, .. }))
    }

    /// Returns whether it has failed. A read that ends at the end of its file has not, unless it is exact.
    pub(super) fn has_failed(&self) -> bool {
        match &self.stage {
            Stage::Over(ended) => {
                let short = self.request.exact && ended.done < self.request.want;
                ended.errno != 0 || short
            }
            Stage::Refused(_) | Stage::Cancelled(_) => true,
            _ => false,
        }
    }

    /// Returns the result, and becomes [`NOTHING`](Self::NOTHING), which needs no drop.
    #[inline(always)]
    pub(super) fn give(&mut self, files: &Files) -> Done {
        if self.detour.is_none()
            && !self.has_failed()
            && let (&Stage::Over(ended), Held::Pooled(_)) = (&self.stage, &self.held)
            && let Held::Pooled(buffer) = std::mem::take(&mut self.held)
        {
            self.stage = Stage::Waiting;
            let buffer = Some(AnyBuffer::Pooled(buffer));
            return Done { result: Ok(ended.done), buffer, buffers: Vec::new(), on_path: None };
        }
        self.give_otherwise(files)
    }

    #[inline(never)]
    fn give_otherwise(&mut self, files: &Files) -> Done {
        let op = std::mem::replace(self, Self::NOTHING);
        if !op.has_failed()
            && let Stage::Over(ended) = op.stage
        {
            let Self { held, detour, .. } = op;
            if detour.is_some() || matches!(held, Held::Paths(_)) {
                return done_otherwise(ended, held, detour);
            }
            return done(Ok(ended.done), held);
        }
        let file = op.descriptor.of(files.get(op.file));
        op.into_failure(file)
    }

    #[cold]
    fn into_failure(self, file: &File) -> Done {
        let result = match self.stage {
            Stage::Over(ended) if self.request.kind.moves_data() => {
                Err(check::failure(file, &self.request, ended))
            }
            Stage::Over(ended) => {
                let request = self.detour.as_ref().map_or(&self.request, |detour| &detour.request);
                Err(check::why_not_done(file, request, &self.held, ended.errno))
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

    /// Returns the error of an operation whose caller must not wait here.
    pub(super) fn would_block(&self, files: &Files, why: &'static str) -> Error {
        let path = files.get(self.file).path();
        Error::new(ErrorKind::WouldBlock, self.what()).on(path).because(why)
    }

    /// Returns whether it is a read that was not begun and can be submitted as it is, see
    /// [`InPlace`](crate::driver::InPlace). Chooses the descriptor of a read that may be, if the file is adaptive.
    #[inline(always)]
    pub(super) fn can_stay_in_place(&mut self, file: &File, is_adaptive: bool) -> bool {
        if is_adaptive { self.chooses_to_stay_in_place(file) } else { self.fits_in_place(file) }
    }

    #[inline(never)]
    fn chooses_to_stay_in_place(&mut self, file: &File) -> bool {
        if self.descriptor == Descriptor::Open && self.fits_in_place(file) {
            self.choose(file);
        }
        self.fits_in_place(self.descriptor.of(file))
    }

    #[inline(always)]
    fn fits_in_place(&self, file: &File) -> bool {
        match &self.held {
            Held::Pooled(buffer) => {
                self.request.kind == Kind::Read
                    && matches!(self.stage, Stage::Waiting)
                    && self.detour.is_none()
                    && {
                        let start = buffer.as_ptr().cast_mut();
                        check::fits_in_place(file, self.request.offset, start, buffer.capacity())
                    }
            }
            _ => false,
        }
    }

    #[inline]
    pub(super) fn begin_in_place(&mut self) -> Option<PlaceOfRead<'_>> {
        let Held::Pooled(buffer) = &mut self.held else { return None };
        let (offset, target) = (self.request.offset, self.descriptor.index());
        Some(PlaceOfRead { memory: Borrowed::of_buffer(buffer), offset, target })
    }

    #[inline]
    pub(super) fn end_in_place(&mut self, ended: Ended) {
        if let Held::Pooled(buffer) = &mut self.held {
            buffer.set_len(ended.done);
        }
        self.end_with(ended);
    }
}

#[inline]
fn done(result: Result<usize, Error>, held: Held) -> Done {
    let (buffer, buffers) = match held {
        Held::Pooled(buffer) => (Some(AnyBuffer::Pooled(buffer)), Vec::new()),
        Held::Vec(vec) => (Some(AnyBuffer::Vec(vec)), Vec::new()),
        Held::Bytes(bytes) => (Some(AnyBuffer::Bytes(bytes)), Vec::new()),
        Held::Buffers(buffers) => (None, buffers),
        Held::None | Held::Vecs(_) | Held::ManyBytes(_) | Held::Other(_) | Held::Paths(_) => {
            (None, Vec::new())
        }
    };
    Done { result, buffer, buffers, on_path: None }
}

/// Returns the result of an operation on paths, or of one that was started in pieces.
#[cold]
fn done_otherwise(ended: Ended, held: Held, detour: Option<Box<Detour>>) -> Done {
    let file = detour.and_then(|detour| detour.opening?.file);
    let (metadata, held) = match held {
        held @ Held::Paths(_) => (Metadata::of(held), Held::None),
        held => (None, held),
    };
    let has_more = file.is_some() || metadata.is_some();
    let on_path = has_more.then(|| Box::new(OnPath { file, metadata }));
    Done { on_path, ..done(Ok(ended.done), held) }
}
