//! The record of one operation: what was asked, its buffer, what was done, and every rule that leads from one step to the
//! next. Futures, batches, queues, readers and the appender drive it, and none of them repeats a rule.
//!
//! Does no I/O: its driver starts what [`OperationRecord::begun`] returns, puts the memory back and calls
//! [`OperationRecord::end`]. Invariant: the buffer is either here or with a driver, never both.

use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use super::adaptive::{Adaptive, Descriptor, Follow, Id, Way};
use super::durability::{AfterWrite, SYNC};
use super::open::OpenAttempt;
use super::unaligned::ReadInPieces;
use super::{File, OpenOptions, check};
use crate::driver::{Finished, Kind, Lend, OpResult, Request, Rights, Target};
use crate::error::{Error, Result};
use crate::memory::{IoMemory, Left, Paths};

/// What the user has asked for, before it becomes an operation of a batch or a queue.
pub struct Asked {
    pub(crate) request: Request,
    pub(crate) memory: IoMemory,
    /// What a durable write leaves to do.
    pub(crate) rest: AfterWrite,
    /// The options of a file to open.
    pub(crate) opens: Option<Box<OpenOptions>>,
}

/// See the module. `M` keeps the buffer.
pub(crate) struct OperationRecord<M = IoMemory> {
    pub(crate) request: Request,
    /// The buffer, before and after.
    pub(crate) memory: M,
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
    memory: M,
    /// The progress of a read in pieces.
    pieces: ReadInPieces,
    /// Marks the read as one of a stream.
    follow: Option<Box<Follow>>,
    opening: Option<Opening>,
}

/// The state of an operation that opens a file.
struct Opening {
    options: Box<OpenOptions>,
    attempt: OpenAttempt,
    /// Those of the thread that began the first of several attempts; `None` if they are unknown.
    rights: OnceLock<Option<Rights>>,
    /// The file is open, but not truncated yet, or the operation has ended.
    file: Option<File>,
}

/// What an operation that begins needs.
pub(crate) enum Begun {
    /// Its driver starts it.
    Start,
    /// Nothing: it has ended.
    Done(OpResult),
    /// Nothing: it has failed.
    Refused(Error),
    /// It continues a stream: its driver [follows](Follow) it, then reads the [rest](OperationRecord::read_rest).
    Stream(Id),
}

impl OperationRecord {
    /// No operation; it becomes one in place, since building one elsewhere and copying it takes several times as long.
    pub(crate) const NOTHING: Self = Self::over(Request::of(Kind::Read), IoMemory::None);

    #[inline(always)]
    pub(crate) fn ask(&mut self, mut asked: Asked) {
        self.request = asked.request;
        self.rest = asked.rest;
        asked.memory.move_to(&mut self.memory);
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
    pub(crate) const fn over(request: Request, memory: M) -> Self {
        Self {
            request,
            memory,
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
            None => &mut self.memory,
            Some(detour) => &mut detour.memory,
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
    pub(crate) fn has_failed(&self, ended: OpResult) -> bool {
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
        Asked { request: self.request, memory: self.memory.lend(), rest: self.rest, opens: None }
    }

    #[cold]
    fn into_opening(mut self) -> Asked {
        let (request, rest, memory) = (self.request, self.rest, self.memory().lend());
        let opens = self.detour.and_then(|detour| detour.opening).map(|opening| opening.options);
        Asked { request, memory, rest, opens }
    }

    /// Sets the options with which the operation, which was not begun, opens its file.
    #[cold]
    pub(crate) fn opens_with(&mut self, options: Box<OpenOptions>) {
        let memory = self.memory.lend();
        let attempt = options.first_attempt();
        self.go_by(self.request, memory, ReadInPieces::default()).opening =
            Some(Opening { options, attempt, rights: OnceLock::new(), file: None });
    }

    /// Starts another request in place of this one; the buffer stays here.
    pub(crate) fn go_by(
        &mut self,
        request: Request,
        memory: IoMemory,
        pieces: ReadInPieces,
    ) -> &mut Detour<M> {
        let memory = M::of(memory, request.kind.is_read());
        self.detour.insert(Box::new(Detour { request, memory, pieces, follow: None, opening: None }))
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
            && check::fits_as_it_is(file.target_of(self.descriptor), &self.request, self.memory.get());
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
        check::fits(file.target_of(self.descriptor), &self.request, self.memory.get())
    }

    /// Begins a read of an adaptive file.
    #[inline(never)]
    fn begin_adaptive(&mut self, file: &File, adaptive: &Adaptive, follows: bool) -> Begun {
        match adaptive.choose(file.target(), &self.request, self.memory.get(), follows) {
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
                self.go_by(self.request, IoMemory::None, pieces);
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
        self.go_by(self.request, IoMemory::None, ReadInPieces::new(done, 0, Descriptor::Direct)).follow =
            Some(follow);
    }

    /// Begins an operation that moves no data.
    fn begin_without_data(&self, file: &Target) -> Result<Begun> {
        let (request, memory, opening) = match &self.detour {
            None => (&self.request, &self.memory, None),
            Some(detour) => (&detour.request, &detour.memory, detour.opening.as_ref()),
        };
        if let Some(opening) = opening {
            opening
                .options
                .check()
                .and_then(|()| opening.check_rights())
                .map_err(|error| error.on(file.path()))?;
        }
        check::fits_without_data(file, request, memory.get()).map(|()| Begun::Start)
    }

    /// Ends an operation that moves nothing.
    fn begin_empty(&mut self, file: &Target) -> Result<Begun> {
        let ended = check::moves_nothing(file, &self.request, self.memory.get())?;
        self.show_nothing();
        Ok(Begun::Done(ended))
    }

    /// Begins the next piece of a read that goes in pieces.
    fn begin_piece(&mut self, file: &Target) -> Result<Begun> {
        if self.detour.is_none() {
            self.go_by(self.request, IoMemory::None, ReadInPieces::new(0, 0, self.descriptor));
        }
        if let Some(detour) = &mut self.detour {
            let (request, memory) =
                detour.pieces.begin(&self.request, file.alignment(), self.memory.own())?;
            (detour.request, detour.memory) = (request, M::of(memory, true));
        }
        Ok(Begun::Start)
    }

    /// Returns what a driver starts for a begun operation: the file, the request and the memory.
    #[inline]
    pub(crate) fn begun<'a>(&'a mut self, file: &'a File) -> (&'a Arc<Target>, &'a Request, &'a mut M) {
        let target = file.target_of(self.descriptor);
        match &mut self.detour {
            None => (target, &self.request, &mut self.memory),
            Some(detour) => {
                let Detour { request, memory, opening, .. } = &mut **detour;
                let opened = opening.as_ref().and_then(|opening| opening.file.as_ref());
                (opened.map_or(target, File::target), request, memory)
            }
        }
    }

    /// Takes the result of a step; its memory is back in the record. Returns the operation's result, or `None` if another
    /// step must begin. Not needed after success if it [is one step](Self::is_one_step).
    #[cold]
    pub(crate) fn end(&mut self, file: &File, ended: OpResult) -> Option<Result<OpResult>> {
        let over = self.end_step(file, ended)?;
        if let Some(detour) = &mut self.detour {
            detour.follow = None;
        }
        if let Ok(OpResult { done: 0, .. }) = over {
            self.show_nothing();
        }
        Some(over)
    }

    fn end_step(&mut self, file: &File, ended: OpResult) -> Option<Result<OpResult>> {
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
                let piece_memory = std::mem::take(detour.memory.own());
                detour.pieces.give_back(&self.request, self.memory.own(), piece_memory);
            }
            return None;
        }
        let Some(detour) = &mut self.detour else { return Some(Ok(ended)) };
        let finished = Finished { memory: std::mem::take(detour.memory.own()), ended };
        let over = detour.pieces.end(&self.request, self.memory.own(), finished);
        self.descriptor = detour.pieces.descriptor();
        over.map(Ok)
    }

    /// Ends a durable write, or its sync. If the sync must follow, the operation begins again.
    fn end_durable(&mut self, file: &File, ended: OpResult) -> Option<OpResult> {
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
        Some(OpResult { done, ..ended })
    }

    /// Ends a durable write that is cancelled after it was written and before its sync; `None` if the operation is none.
    pub(crate) fn cancelled_before_sync(&mut self) -> Option<OpResult> {
        if self.request.kind != Kind::Sync || self.rest == AfterWrite::NOTHING {
            return None;
        }
        self.request.kind = Kind::Write;
        Some(OpResult { done: self.request.want, errno: libc::ECANCELED })
    }

    /// Makes a file of the opened descriptor. If there is another attempt, or it must be truncated, the operation begins
    /// again.
    fn end_opening(&mut self, path: &File, ended: OpResult) -> Option<Result<OpResult>> {
        if let Some(detour) = &mut self.detour
            && let Some(opening) = &mut detour.opening
            && opening.file.is_none()
        {
            match opening.next_attempt(path, detour.memory.own(), ended.errno) {
                Ok(None) if ended.errno == 0 => {}
                Ok(None) => return Some(Ok(ended)),
                Ok(Some(flags)) => {
                    detour.request.op_flags = flags;
                    return None;
                }
                Err(error) => return Some(Err(error)),
            }
            let truncates = match opened(&opening.options, path, std::mem::take(detour.memory.own())) {
                Ok(file) => opening.options.truncates(opening.file.insert(file)),
                Err(error) => return Some(Err(error)),
            };
            if truncates {
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
            let piece_memory = std::mem::take(detour.memory.own());
            detour.pieces.give_back(&self.request, self.memory.own(), piece_memory);
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
            self.memory.own().copy_in(self.request.start + done, &[]);
        }
    }

    /// Returns why the operation, which ended this way, did not do all that was requested.
    #[cold]
    pub(crate) fn failure(&self, file: &File, ended: OpResult) -> Error {
        let detour = self.detour.as_ref().filter(|_| !self.request.kind.moves_data());
        let request = detour.map_or(&self.request, |detour| &detour.request);
        check::failure(file.target_of(self.descriptor), request, self.memory.get(), ended)
    }
}

impl Opening {
    /// Fails if this thread has other rights on paths than the one that began the first of several attempts.
    fn check_rights(&self) -> Result<()> {
        if self.options.first_attempt() == OpenAttempt::Whole || self.file.is_some() {
            return Ok(());
        }
        match self.rights.get() {
            None => _ = self.rights.set(Rights::of_this_thread()),
            Some(Some(first)) if first.are_of_this_thread() => {}
            Some(_) => {
                let why = "another thread, with other rights, goes on with it";
                return Err(Error::from_errno(libc::EACCES, "opening").because(why));
            }
        }
        Ok(())
    }

    /// Prepares the next attempt, and returns its flags; `None` if the last one is over.
    fn next_attempt(&mut self, path: &File, memory: &mut IoMemory, errno: i32) -> Result<Option<u32>> {
        let (Some(path), IoMemory::Paths(paths)) = (path.path(), memory) else { return Ok(None) };
        let opened = match &paths.left {
            Left::File(opened) if errno == 0 => {
                opened.as_ref().map(AsFd::as_fd).map_err(|errno| errno.raw_os_error())
            }
            _ => Err(errno),
        };
        let Some(next) = self.options.next_attempt(self.attempt, path, opened)? else { return Ok(None) };
        let (at, flags) = self.options.attempt(next, path);
        let Some(again) = Paths::new(&at) else { return Ok(None) };
        *paths = again.with_mode(self.options.permissions());
        self.attempt = next;
        Ok(Some(flags))
    }
}

/// Makes a [`File`] from the descriptor of an open, not yet truncated.
fn opened(options: &OpenOptions, path: &File, memory: IoMemory) -> Result<File> {
    let left = memory.into_paths().map_or(Left::Nothing, |paths| paths.left);
    match (left, path.path()) {
        (Left::File(Ok(opened)), Some(path)) => options.finish(opened, path),
        (Left::File(Err(errno)), path) => Err(Error::from_errno(errno.raw_os_error(), "opening").on(path)),
        (Left::Simulated(stand_in, opened), Some(path)) => Ok(options.simulated(stand_in, opened, path)),
        // A successful open has left a descriptor.
        (_, path) => Err(Error::from_errno(libc::EBADF, "opening").on(path)),
    }
}
