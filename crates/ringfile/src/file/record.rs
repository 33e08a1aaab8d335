//! The record of one operation: what was asked, its buffer, what was done, and every rule that leads from one step to the
//! next. Futures, batches, queues, readers and the appender drive it, and none of them repeats a rule.
//!
//! Does no I/O: its driver starts what [`OperationRecord::begun`] returns, puts the memory back and calls
//! [`OperationRecord::end`]. Invariant: the buffer is either here or with a driver, never both.

use std::sync::Arc;

use super::adaptive::{Adaptive, Descriptor, Follow, Id, Way};
use super::ask::Asked;
use super::durability::{AfterWrite, SYNC};
use super::unaligned::ReadInPieces;
use super::{File, OpenOptions, check};
use crate::driver::{Ended, Finished, Kind, Lend, Request, Target};
use crate::error::{Error, Result};
use crate::memory::{Held, Left};

/// See the module. `M` keeps the buffer.
pub(crate) struct OperationRecord<M = Held> {
    pub(crate) request: Request,
    /// The buffer, before and after.
    pub(crate) held: M,
    /// The operation that is started in place of this one.
    detour: Option<Box<Detour<M>>>,
    /// What is left to do for a durable write. While its sync is carried out, [`request`](Self::request) has that kind.
    pub(super) rest: AfterWrite,
    pub(crate) descriptor: Descriptor,
    /// Whether the operation was repeated after direct I/O was refused.
    fell_back: bool,
}

/// The operation that is started in place of the user's: a piece of a read (see [`ReadInPieces`]), the one read of a
/// group, or a step of opening a file.
pub(crate) struct Detour<M> {
    request: Request,
    held: M,
    /// The progress of a read in pieces.
    pieces: ReadInPieces,
    /// Marks the read as one of a stream.
    follow: Option<Box<Follow>>,
    opening: Option<Opening>,
}

/// The state of an operation that opens a file.
struct Opening {
    options: Box<OpenOptions>,
    /// The file is open, but not truncated yet, or the operation has ended.
    file: Option<File>,
}

/// What an operation that begins needs.
pub(crate) enum Begun {
    /// Its driver starts it.
    Start,
    /// Nothing: it has ended.
    Over(Ended),
    /// Nothing: it has failed.
    Refused(Error),
    /// It continues a stream: its driver [follows](Follow) it, then reads the [rest](OperationRecord::read_rest).
    Stream(Id),
}

impl OperationRecord {
    /// No operation; it becomes one in place, since building one elsewhere and copying it takes several times as long.
    pub(crate) const NOTHING: Self = Self::over(Request::of(Kind::Read), Held::None);

    #[inline(always)]
    pub(crate) fn ask(&mut self, mut asked: Asked) {
        self.request = asked.request;
        self.rest = asked.rest;
        asked.held.move_to(&mut self.held);
        if let Some(options) = asked.opens.take() {
            self.opens_with(options);
        }
        // Nothing is left to drop; dropping it would call drop code out of line.
        std::mem::forget(asked);
    }
}

impl<M> OperationRecord<M> {
    /// Creates the record of an operation on this memory.
    #[inline]
    pub(crate) const fn over(request: Request, held: M) -> Self {
        Self {
            request,
            held,
            detour: None,
            rest: AfterWrite::NOTHING,
            descriptor: Descriptor::Open,
            fell_back: false,
        }
    }

    /// Returns the memory of what was started, to be put back before [`end`](Self::end).
    #[inline]
    pub(crate) fn memory(&mut self) -> &mut M {
        match &mut self.detour {
            None => &mut self.held,
            Some(detour) => &mut detour.held,
        }
    }

    /// Returns whether the operation is one step, which ends when it has succeeded.
    #[inline]
    pub(crate) fn is_one_step(&self) -> bool {
        self.detour.is_none() && self.rest == AfterWrite::NOTHING
    }

    /// Returns whether another operation is started in place of this one.
    #[inline]
    pub(crate) fn has_detour(&self) -> bool {
        self.detour.is_some()
    }

    /// Takes the file that was opened.
    #[cold]
    pub(crate) fn take_file(&mut self) -> Option<File> {
        self.detour.as_mut()?.opening.as_mut()?.file.take()
    }

    /// Returns whether an operation that ended this way has failed. A read that ends at the end of its file has not, unless
    /// it is exact.
    #[inline]
    pub(crate) fn has_failed(&self, ended: Ended) -> bool {
        ended.errno != 0 || (self.request.exact && ended.done < self.request.want)
    }
}

impl<M: Lend> OperationRecord<M> {
    /// Returns what to add to a batch or a queue, of an operation that was not begun.
    #[inline(always)]
    pub(super) fn into_asked(mut self) -> Asked {
        if self.detour.is_some() {
            return self.into_opening();
        }
        Asked { request: self.request, held: self.held.lend(), rest: self.rest, opens: None }
    }

    #[cold]
    fn into_opening(mut self) -> Asked {
        let (request, rest, held) = (self.request, self.rest, self.memory().lend());
        let opens = self.detour.and_then(|detour| detour.opening).map(|opening| opening.options);
        Asked { request, held, rest, opens }
    }

    /// Sets the options with which the operation, which was not begun, opens its file.
    #[cold]
    pub(crate) fn opens_with(&mut self, options: Box<OpenOptions>) {
        let held = self.held.lend();
        self.go_by(self.request, held, ReadInPieces::default()).opening =
            Some(Opening { options, file: None });
    }

    /// Starts another request in place of this one; the buffer stays here.
    pub(crate) fn go_by(&mut self, request: Request, held: Held, pieces: ReadInPieces) -> &mut Detour<M> {
        let held = M::of(held, request.kind.is_read());
        self.detour.insert(Box::new(Detour { request, held, pieces, follow: None, opening: None }))
    }

    /// Returns the request to this operation itself, and what was to be started in its place is forgotten.
    pub(crate) fn go_itself(&mut self) {
        self.detour = None;
    }

    /// Begins the operation, or begins it again; `follows`: whether its driver can read streams.
    #[inline(always)]
    pub(crate) fn begin(&mut self, file: &File, follows: bool) -> Begun {
        let is_usual = self.is_one_step()
            && self.request.kind.moves_data()
            && self.request.want > 0
            && check::fits_as_it_is(file.target_of(self.descriptor), &self.request, self.held.get());
        if !is_usual {
            return self.begin_otherwise(file).unwrap_or_else(|error| self.refuse(error));
        }
        if self.descriptor == Descriptor::Open
            && self.request.kind.is_read()
            && let Some(adaptive) = file.adaptive()
        {
            if !adaptive.is_own_unchecked(file.target(), &self.request) {
                return self.begin_adaptive(file, adaptive, follows);
            }
            self.descriptor = Descriptor::Own;
        }
        Begun::Start
    }

    /// Begins an operation that is not one step, moves no data, or cannot be submitted as it is.
    #[inline(never)]
    fn begin_otherwise(&mut self, file: &File) -> Result<Begun> {
        let on = file.target_of(self.descriptor);
        if !self.request.kind.moves_data() {
            return self.begin_without_data(on);
        }
        if self.detour.is_some() {
            return self.begin_piece(on);
        }
        self.rest.begin();
        match self.fits(file)? {
            _ if self.request.want == 0 => self.begin_empty(on),
            true => Ok(Begun::Start),
            false => self.begin_piece(on),
        }
    }

    /// Returns whether the operation can be submitted as it is, see [`check::fits`].
    #[inline(always)]
    pub(super) fn fits(&self, file: &File) -> Result<bool> {
        check::fits(file.target_of(self.descriptor), &self.request, self.held.get())
    }

    /// Begins a read of an adaptive file.
    #[inline(never)]
    fn begin_adaptive(&mut self, file: &File, adaptive: &Adaptive, follows: bool) -> Begun {
        match adaptive.choose(file.target(), &self.request, self.held.get(), follows) {
            Way::Stream(id) if follows => Begun::Stream(id),
            way => {
                self.go(way);
                self.begin(file, follows)
            }
        }
    }

    /// Sets the descriptors for a read of an adaptive file, which was not begun.
    pub(crate) fn go(&mut self, way: Way) {
        self.descriptor = match way {
            Way::By(descriptor) => descriptor,
            Way::CachedBeginning(cached) => {
                let pieces = ReadInPieces::new(0, cached, Descriptor::Direct);
                let descriptor = pieces.descriptor();
                self.go_by(self.request, Held::None, pieces);
                descriptor
            }
            // With many reads in flight, no stream is followed.
            Way::Stream(_) => Descriptor::Direct,
        };
    }

    /// Reads what follows the first `done` bytes directly, until then as a read of the stream.
    #[cold]
    pub(super) fn read_rest(&mut self, done: usize, follow: Box<Follow>) {
        self.descriptor = Descriptor::Direct;
        self.go_by(self.request, Held::None, ReadInPieces::new(done, 0, Descriptor::Direct)).follow =
            Some(follow);
    }

    /// Begins an operation that moves no data.
    fn begin_without_data(&self, file: &Target) -> Result<Begun> {
        let (request, held, opening) = match &self.detour {
            None => (&self.request, &self.held, None),
            Some(detour) => (&detour.request, &detour.held, detour.opening.as_ref()),
        };
        if let Some(opening) = opening {
            opening.options.check().map_err(|error| error.on(file.path()))?;
        }
        check::fits_without_data(file, request, held.get()).map(|()| Begun::Start)
    }

    /// Ends an operation that moves nothing.
    fn begin_empty(&mut self, file: &Target) -> Result<Begun> {
        let ended = check::moves_nothing(file, &self.request, self.held.get())?;
        self.show_nothing();
        Ok(Begun::Over(ended))
    }

    /// Begins the next piece of a read that goes in pieces.
    fn begin_piece(&mut self, file: &Target) -> Result<Begun> {
        if self.detour.is_none() {
            self.go_by(self.request, Held::None, ReadInPieces::new(0, 0, self.descriptor));
        }
        if let Some(detour) = &mut self.detour {
            let (request, held) = detour.pieces.begin(&self.request, file.alignment(), self.held.own())?;
            (detour.request, detour.held) = (request, M::of(held, true));
        }
        Ok(Begun::Start)
    }

    /// Returns what a driver starts for a begun operation: the file, the request and the memory.
    #[inline]
    pub(crate) fn begun<'a>(&'a mut self, file: &'a File) -> (&'a Arc<Target>, &'a Request, &'a mut M) {
        let target = file.target_of(self.descriptor);
        match &mut self.detour {
            None => (target, &self.request, &mut self.held),
            Some(detour) => {
                let Detour { request, held, opening, .. } = &mut **detour;
                let opened = opening.as_ref().and_then(|opening| opening.file.as_ref());
                (opened.map_or(target, File::target), request, held)
            }
        }
    }

    /// Takes the result of what was started, whose memory was put back. Returns that of the whole operation; `None` if it
    /// must begin again, to do the rest. Not needed after success if it [is one step](Self::is_one_step).
    #[cold]
    pub(crate) fn end(&mut self, file: &File, ended: Ended) -> Option<Result<Ended>> {
        let over = self.end_step(file, ended)?;
        if let Some(detour) = &mut self.detour {
            detour.follow = None;
        }
        if let Ok(Ended { done: 0, .. }) = over {
            self.show_nothing();
        }
        Some(over)
    }

    fn end_step(&mut self, file: &File, ended: Ended) -> Option<Result<Ended>> {
        if self.detour.as_ref().is_some_and(|detour| detour.opening.is_some()) {
            return self.end_opening(file, ended);
        }
        if self.rest != AfterWrite::NOTHING && (ended.errno == 0 || self.request.kind == Kind::Sync) {
            return self.end_durable(file, ended).map(Ok);
        }
        if ended.errno == libc::EINVAL
            && !self.fell_back
            && check::falls_back(file.target_of(self.descriptor), &self.request, ended)
        {
            self.fell_back = true;
            if let Some(detour) = &mut self.detour {
                let memory = std::mem::take(detour.held.own());
                detour.pieces.give_back(&self.request, self.held.own(), memory);
            }
            return None;
        }
        let Some(detour) = &mut self.detour else { return Some(Ok(ended)) };
        let finished = Finished { held: std::mem::take(detour.held.own()), ended };
        let over = detour.pieces.end(&self.request, self.held.own(), finished);
        self.descriptor = detour.pieces.descriptor();
        over.map(Ok)
    }

    /// Ends a durable write, or its sync. If the sync must follow, the operation begins again.
    fn end_durable(&mut self, file: &File, ended: Ended) -> Option<Ended> {
        let want = self.request.want;
        if self.request.kind == Kind::Write && self.request.synced && ended.done == want {
            self.request.kind = Kind::Sync;
            self.request.op_flags = SYNC.op_flags;
            return None;
        }
        let done = if self.request.kind == Kind::Sync { want } else { ended.done };
        self.request.kind = Kind::Write;
        if done == want && ended.errno == 0 {
            file.durability().note(&self.request, self.rest);
        }
        Some(Ended { done, ..ended })
    }

    /// Ends a durable write that is cancelled after it was written and before its sync; `None` if the operation is none.
    pub(crate) fn cancelled_before_sync(&mut self) -> Option<Ended> {
        if self.request.kind != Kind::Sync || self.rest == AfterWrite::NOTHING {
            return None;
        }
        self.request.kind = Kind::Write;
        Some(Ended { done: self.request.want, errno: libc::ECANCELED })
    }

    /// Makes a file of the opened descriptor. If it must be truncated, the operation begins again.
    fn end_opening(&mut self, path: &File, ended: Ended) -> Option<Result<Ended>> {
        if let Some(detour) = &mut self.detour
            && let Some(opening) = &mut detour.opening
            && opening.file.is_none()
            && ended.errno == 0
        {
            match opened(&opening.options, path, std::mem::take(detour.held.own())) {
                Ok(file) => opening.file = Some(file),
                Err(error) => return Some(Err(error)),
            }
            if opening.options.truncates() {
                detour.request = Request::of(Kind::Truncate);
                return None;
            }
        }
        Some(Ok(ended))
    }

    /// Ends an operation that could not be started, for this reason, and returns why, as its user sees it.
    #[cold]
    pub(crate) fn not_started(&mut self, file: &File, error: Error) -> Error {
        let mut error = error.on(file.path());
        if let Some(detour) = &mut self.detour {
            let memory = std::mem::take(detour.held.own());
            detour.pieces.give_back(&self.request, self.held.own(), memory);
            error = error.after(detour.pieces.done());
        }
        self.show_done();
        if self.request.kind.moves_data() { error.at(self.request.offset) } else { error }
    }

    #[cold]
    fn refuse(&mut self, error: Error) -> Begun {
        self.show_done();
        Begun::Refused(error)
    }

    /// After a read that did not finish, the buffer's length shows what was read. A stream has read what comes before the
    /// start.
    pub(crate) fn show_done(&mut self) {
        self.show(self.detour.as_ref().map_or(0, |detour| detour.pieces.done()));
    }

    /// After a read without data, the buffer's length is what was there before.
    #[cold]
    pub(crate) fn show_nothing(&mut self) {
        self.show(0);
    }

    fn show(&mut self, done: usize) {
        if self.request.kind.is_read() {
            self.held.own().copy_in(self.request.start + done, &[]);
        }
    }

    /// Returns why the operation, which ended this way, did not do all that was requested.
    #[cold]
    pub(crate) fn failure(&self, file: &File, ended: Ended) -> Error {
        let detour = self.detour.as_ref().filter(|_| !self.request.kind.moves_data());
        let request = detour.map_or(&self.request, |detour| &detour.request);
        check::failure(file.target_of(self.descriptor), request, self.held.get(), ended)
    }
}

/// Makes a [`File`] from the descriptor of an open, not yet truncated.
fn opened(options: &OpenOptions, path: &File, held: Held) -> Result<File> {
    let left = held.into_paths().map_or(Left::Nothing, |paths| paths.left);
    match (left, path.path()) {
        (Left::File(opened), Some(path)) => options.finish(opened, path),
        #[cfg(feature = "sim")]
        (Left::Simulated(stand_in, opened), Some(path)) => Ok(options.simulated(stand_in, opened, path)),
        // A successful open has left a descriptor.
        (_, path) => Err(Error::from_errno(libc::EBADF, "opening").on(path)),
    }
}
