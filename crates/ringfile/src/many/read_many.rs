//! Reads and writes of many blocks by a thread that waits for all of them. Their memory stays in the requests: buffers,
//! or slices that the caller only borrows.
//!
//! Knows queues, and starts nothing itself. Invariant: when [`Queue::read_many`] or [`Queue::write_many`] returns or
//! unwinds, each buffer is back in its request, or the request's result says why it is not, and no operation uses
//! borrowed memory ([`Lending`] ends the process otherwise).

use std::io::ErrorKind;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::done::{Completion, Token};
use super::engine::Source;
use super::queue::Queue;
use crate::driver::{InPlace, Kind, OpResult, ReadInPlace, Request, Target};
use crate::error::{Error, Result};
use crate::file::adaptive::{Descriptor, Way};
use crate::file::{File, check};
use crate::memory::{AnyBuffer, Buffer, IoMemory, Lending, ReadMemory, RequestMemory, WriteMemory};

/// The maximum number of operations in flight that do not stay in place.
const AT_ONCE: usize = 256;

/// One read of [`Queue::read_many`]: into a [`Buffer`], or into a `&mut [u8]` that the caller only borrows.
#[derive(Debug)]
pub struct ReadRequest<M = Buffer> {
    /// The memory to fill: all of a slice, or all of a buffer's capacity. A read sets a buffer's length.
    pub buffer: M,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The number of bytes read, fewer than the memory holds only at the end of the file, or the error. 0 before the
    /// call.
    pub result: Result<usize>,
    stage: RequestStage,
}

/// One write of [`Queue::write_many`]: of a [`Buffer`], or of a `&[u8]` that the caller only borrows.
#[derive(Debug)]
pub struct WriteRequest<M = Buffer> {
    /// The memory to write: all of a slice, or a buffer up to its length.
    pub buffer: M,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The number of bytes written, which is all, or the error. 0 before the call.
    pub result: Result<usize>,
    stage: RequestStage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestStage {
    /// It can be read in place, through this descriptor.
    InPlace(Descriptor),
    /// It must become an operation of the queue, in this way if that was chosen.
    Otherwise(Way),
    /// It is an operation of the queue, with this token.
    Open(Token),
    /// It has failed in place, with this errno; its error is not made yet.
    Failed(Descriptor, i32),
    Done,
}

/// The way of a request for which none was chosen.
const NOT_CHOSEN: Way = Way::By(Descriptor::Open);

impl<M: ReadMemory> ReadRequest<M> {
    /// Creates a request to fill the memory from `offset`.
    #[must_use]
    pub fn new(buffer: M, offset: u64) -> Self {
        Self { buffer, offset, result: Ok(0), stage: RequestStage::Otherwise(NOT_CHOSEN) }
    }

    /// Makes the error of a read that has failed in place.
    fn explain(&mut self, file: &File) {
        if let RequestStage::Failed(descriptor, errno) = self.stage {
            let request = self.request();
            let ended = OpResult { done: 0, errno };
            self.result = Err(check::failure(file.target_of(descriptor), &request, &IoMemory::None, ended));
            self.stage = RequestStage::Done;
        }
    }

    fn request(&mut self) -> Request {
        Request { offset: self.offset, want: self.buffer.place().len(), ..Request::of(Kind::Read) }
    }

    /// Decides whether it is read in place, and chooses the descriptors of a read of an adaptive file.
    #[inline]
    fn choose(&mut self, file: &File, is_adaptive: bool) {
        let mut way = NOT_CHOSEN;
        if is_adaptive && self.fits_in_place(file.target()) {
            way = file.choose(&self.request(), &IoMemory::None, false);
        }
        self.stage = match way {
            Way::By(descriptor) if self.fits_in_place(file.target_of(descriptor)) => {
                RequestStage::InPlace(descriptor)
            }
            way => RequestStage::Otherwise(way),
        };
    }

    #[inline]
    fn fits_in_place(&mut self, file: &Target) -> bool {
        let place = self.buffer.place();
        check::fits_in_place(file, self.offset, place.start(), place.len())
    }
}

impl<M: WriteMemory> WriteRequest<M> {
    /// Creates a request to write the memory at `offset`.
    #[must_use]
    pub fn new(buffer: M, offset: u64) -> Self {
        Self { buffer, offset, result: Ok(0), stage: RequestStage::Otherwise(NOT_CHOSEN) }
    }
}

/// A request, of either direction.
trait OneOfMany {
    type Memory: RequestMemory;

    const DOING: &'static str;

    fn parts(&mut self) -> Parts<'_, Self::Memory>;

    /// Adds the operation to a queue.
    fn add(queue: &mut Queue, file: &File, buffer: Buffer, offset: u64) -> Token;
}

struct Parts<'a, M> {
    memory: &'a mut M,
    offset: u64,
    result: &'a mut Result<usize>,
    stage: &'a mut RequestStage,
}

impl<M: ReadMemory> OneOfMany for ReadRequest<M> {
    type Memory = M;

    const DOING: &'static str = "reading";

    fn parts(&mut self) -> Parts<'_, M> {
        let Self { buffer, offset, result, stage } = self;
        Parts { memory: buffer, offset: *offset, result, stage }
    }

    fn add(queue: &mut Queue, file: &File, buffer: Buffer, offset: u64) -> Token {
        queue.add(file.read_at(buffer, offset), 0)
    }
}

impl<M: WriteMemory> OneOfMany for WriteRequest<M> {
    type Memory = M;

    const DOING: &'static str = "writing";

    fn parts(&mut self) -> Parts<'_, M> {
        let Self { buffer, offset, result, stage } = self;
        Parts { memory: buffer, offset: *offset, result, stage }
    }

    fn add(queue: &mut Queue, file: &File, buffer: Buffer, offset: u64) -> Token {
        queue.add(file.write_at(buffer, offset), 0)
    }
}

impl<M: ReadMemory> InPlace for [ReadRequest<M>] {
    #[inline]
    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn begin(&mut self, at: usize) -> Option<ReadInPlace<'_>> {
        let request = &mut self[at];
        let RequestStage::InPlace(descriptor) = request.stage else { return None };
        let (offset, target) = (request.offset, descriptor.index());
        Some(ReadInPlace { memory: request.buffer.place(), offset, target })
    }

    #[inline]
    fn end(&mut self, at: usize, ended: OpResult) {
        let request = &mut self[at];
        let RequestStage::InPlace(descriptor) = request.stage else { return };
        request.buffer.set_len(ended.done);
        (request.result, request.stage) = match ended.errno {
            0 => (Ok(ended.done), RequestStage::Done),
            errno => (Ok(0), RequestStage::Failed(descriptor, errno)),
        };
    }
}

impl Queue {
    /// Reads many blocks of a file into memory that stays in its requests (a [`Buffer`], or a borrowed `&mut [u8]`),
    /// and waits for all of them. Each request gets its own result. This is the cheapest way to read blocks for a
    /// thread that waits for them: one system call submits all and waits, up to the size of the ring.
    ///
    /// Short reads are continued. The call neither returns nor unwinds while the kernel may write to the memory; a
    /// panic of user code that runs meanwhile continues afterwards. It cannot be cancelled: a read of a pipe waits for
    /// data. It also submits what was added to the queue before. Allocates nothing once the thread has done as many
    /// reads at once.
    ///
    /// # Errors
    /// `WouldBlock` inside ringfile's loop, and nothing was read: use a [`Batch`](crate::Batch) there. An error of one
    /// read is in its request. In a forked child, or if the thread is ending, its buffer may be replaced by one
    /// without capacity.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, vec![7; 1 << 20])?;
    /// use ringfile::queue::ReadRequest;
    /// use ringfile::{File, Pool, Queue};
    /// let (pool, file) = (Pool::new(1 << 20), File::open_blocking(&path)?);
    /// let mut queue = Queue::new();
    /// let mut pages = Vec::new();
    /// for page in [3, 1, 8] {
    ///     pages.push(ReadRequest::new(pool.get(4096)?, page * 4096));
    /// }
    /// queue.read_many(&file, &mut pages)?;
    /// for page in &pages {
    ///     assert!(page.result.as_ref().is_ok_and(|&read| read == 4096));
    ///     assert_eq!(page.buffer[..], [7; 4096]);
    /// }
    ///
    /// let mut memory = vec![0; 2 * 4096];
    /// let (first, second) = memory.split_at_mut(4096);
    /// queue.read_many(&file, &mut [ReadRequest::new(first, 8192), ReadRequest::new(second, 0)])?;
    /// assert_eq!(memory, [7; 2 * 4096]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_many<M: ReadMemory>(&mut self, file: &File, requests: &mut [ReadRequest<M>]) -> Result<()> {
        may_wait(file, "reading many blocks")?;
        let is_adaptive = file.has_adaptive_reads();
        requests.iter_mut().for_each(|request| request.choose(file, is_adaptive));
        let in_place = requests.iter().filter_map(|request| match request.stage {
            RequestStage::InPlace(descriptor) => Some(descriptor),
            _ => None,
        });
        let targets = file.targets(in_place);
        let must_turn = self.state.engine.read_in_place(targets, requests, usize::MAX);
        if requests.iter().any(|request| request.stage != RequestStage::Done) {
            requests.iter_mut().for_each(|request| request.explain(file));
            self.carry_out(file, requests);
        }
        if must_turn || self.state.entries.open > 0 {
            // Operations of this or another queue may have ended, or must go on.
            self.submit();
        }
        Ok(())
    }

    /// Writes many blocks of a file from memory that stays in its requests, and waits for all of them: the counterpart
    /// of [`read_many`](Self::read_many), for [`Buffer`]s and for `&[u8]` that the caller only borrows.
    ///
    /// The writes may be carried out in any order. A short write is continued. What was written is durable only after a
    /// [`File::sync_data`]. A direct write must be aligned, as for [`File::write_at`].
    ///
    /// Blocks, allocates and behaves after a panic as `read_many` does. At most 256 writes are in flight.
    ///
    /// # Errors
    /// As for `read_many`. After an error of one write, a part of it may have been written.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// use ringfile::queue::WriteRequest;
    /// use ringfile::{File, Queue};
    /// let (file, page) = (File::create_blocking(&path)?, vec![7; 4096]);
    /// let mut pages = [WriteRequest::new(&page[..], 4096), WriteRequest::new(&page[..100], 0)];
    /// Queue::new().write_many(&file, &mut pages)?;
    /// assert!(pages.iter().all(|page| page.result.is_ok()));
    /// assert_eq!(std::fs::read(&path)?[4096..], page);
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_many<M: WriteMemory>(
        &mut self,
        file: &File,
        requests: &mut [WriteRequest<M>],
    ) -> Result<()> {
        may_wait(file, "writing many blocks")?;
        requests.iter_mut().for_each(|request| request.stage = RequestStage::Otherwise(NOT_CHOSEN));
        self.carry_out(file, requests);
        if self.state.entries.open > 0 {
            self.submit();
        }
        Ok(())
    }

    /// Carries out the requests that have not ended, as operations of the queue.
    #[cold]
    fn carry_out<R: OneOfMany>(&mut self, file: &File, requests: &mut [R]) {
        let mut window = Window { begun: 0..0, open: 0, last: requests.len() };
        let mut lending = Lending::new(requests, self.counter.take());
        let mut panic = None;
        while window.begun.start < window.last {
            // User code that runs meanwhile may panic. The memory is not given up before the kernel has answered.
            let some = AssertUnwindSafe(|| self.carry_out_some(file, &mut lending, &mut window));
            if let Err(payload) = catch_unwind(some) {
                window.last = window.begun.end;
                match panic {
                    None => panic = Some(payload),
                    // The payload of a second panic is leaked: dropping it might panic here.
                    Some(_) => std::mem::forget(payload),
                }
            }
        }
        self.counter = lending.end();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Starts further operations, and waits for a part of those in flight.
    fn carry_out_some<R: OneOfMany>(
        &mut self,
        file: &File,
        lending: &mut Lending<'_, R>,
        Window { begun, open, last }: &mut Window,
    ) {
        while *open < AT_ONCE && begun.end < *last {
            let at = begun.end;
            begun.end += 1;
            let Parts { offset, stage, .. } = lending.requests()[at].parts();
            let way = match *stage {
                RequestStage::InPlace(descriptor) => Way::By(descriptor),
                RequestStage::Otherwise(way) => way,
                RequestStage::Open(_) | RequestStage::Failed(..) | RequestStage::Done => continue,
            };
            let buffer = lending.lend(at, |request| request.parts().memory);
            let token = R::add(self, file, buffer, offset);
            if way != NOT_CHOSEN {
                self.state.entries.op(token.index()).0.record.go(way);
            }
            *lending.requests()[at].parts().stage = RequestStage::Open(token);
            *open += 1;
        }
        let requests = &mut lending.requests()[begun.clone()];
        // Waits for only a part of them, so that the device always has many in flight.
        let enough = if begun.end == *last { *open } else { open.div_ceil(4) };
        if enough > 0 {
            self.state.engine.wait(&mut self.state.entries, None, |entries| {
                let ended = requests.iter_mut().filter_map(token_of).filter(|&token| !entries.is_open(token));
                enough.saturating_sub(ended.count())
            });
        }
        let before = *open;
        for request in &mut *requests {
            if let Some(done) = token_of(request).and_then(|token| self.state.take(token)) {
                *open -= 1;
                finish(request, done);
            }
        }
        if before > 0 && *open == before {
            // Nothing ends here any more.
            for request in &mut *requests {
                if let Some(token) = token_of(request) {
                    // An operation that was not started gives its memory back.
                    self.cancel(token);
                    self.state.take(token).into_iter().for_each(|done| finish(request, done));
                    lose(request, file);
                }
            }
            *open = 0;
        }
        // A request that a panic has kept from being added counts as ended too.
        begun.start += requests.iter_mut().map(token_of).take_while(Option::is_none).count();
    }
}

/// The requests that [`Queue::carry_out`] works on.
struct Window {
    /// All requests before these have ended, and none behind them has begun.
    begun: Range<usize>,
    /// The number of these that are operations of the queue.
    open: usize,
    /// No request from here on will begin.
    last: usize,
}

fn may_wait(file: &File, what: &'static str) -> Result<()> {
    if !crate::runtime::is_in_loop() {
        return Ok(());
    }
    let why = "waiting would block a ringfile thread: await a batch there";
    Err(Error::new(ErrorKind::WouldBlock, what).on(file.path()).because(why))
}

/// Returns the token of a request that is an operation of the queue.
fn token_of(request: &mut impl OneOfMany) -> Option<Token> {
    if let RequestStage::Open(token) = *request.parts().stage { Some(token) } else { None }
}

fn finish(request: &mut impl OneOfMany, done: Completion) {
    let Parts { memory, result, stage, .. } = request.parts();
    if let Some(AnyBuffer::Pooled(buffer)) = done.buffer {
        memory.take_back(buffer);
    }
    (*result, *stage) = (done.result, RequestStage::Done);
}

/// Gives up waiting: the queue keeps the buffer of an operation that was started.
fn lose<R: OneOfMany>(request: &mut R, file: &File) {
    let Parts { offset, result, stage, .. } = request.parts();
    let error = Error::new(ErrorKind::Unsupported, R::DOING).on(file.path()).at(offset);
    let why = "cannot wait for the operation: this is a forked child, or the thread is ending";
    (*result, *stage) = (Err(error.because(why)), RequestStage::Done);
}
