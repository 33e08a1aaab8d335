//! Reads of many blocks into buffers that stay with their caller, who waits for all of them.
//!
//! Knows queues, and starts nothing itself. Invariant: when [`Queue::read_many`] returns, each buffer is back in its
//! request, or the request's result says why it is not.

use std::io::ErrorKind;

use super::entries::Token;
use super::queue::Queue;
use super::{AnyBuffer, Done};
use crate::driver::{Ended, InPlace, Kind, Request};
use crate::error::{Error, Result};
use crate::file::{File, check};
use crate::memory::Buffer;

/// The maximum number of reads in flight that do not stay in place.
const AT_ONCE: usize = 256;

/// One read of [`Queue::read_many`].
#[derive(Debug)]
pub struct ReadRequest {
    /// The buffer to fill: all of its capacity is read. A read sets its length.
    pub buffer: Buffer,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The number of bytes read, fewer than the buffer's capacity only at the end of the file, or the error. 0 before
    /// the call.
    pub result: Result<usize>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It can be read in place.
    InPlace,
    /// It must become an operation of the queue.
    Otherwise,
    /// It is an operation of the queue.
    Open(Token),
    /// It has failed in place; its error is not made yet.
    Failed(i32),
    Over,
}

impl ReadRequest {
    /// Creates a request to fill all of a buffer's capacity from `offset`.
    #[must_use]
    pub fn new(buffer: Buffer, offset: u64) -> Self {
        Self { buffer, offset, result: Ok(0), stage: Stage::Otherwise }
    }
}

impl InPlace for [ReadRequest] {
    #[inline]
    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn begin(&mut self, at: usize) -> Option<(&mut Buffer, u64)> {
        let request = &mut self[at];
        (request.stage == Stage::InPlace).then_some((&mut request.buffer, request.offset))
    }

    #[inline]
    fn end(&mut self, at: usize, ended: Ended) {
        let request = &mut self[at];
        (request.result, request.stage) = match ended.errno {
            0 => (Ok(ended.done), Stage::Over),
            errno => (Ok(0), Stage::Failed(errno)),
        };
    }
}

impl Queue {
    /// Reads many blocks of a file into buffers that stay in their requests, and waits for all of them. Each request
    /// gets its own result; one that fails does not affect the others.
    ///
    /// This is the cheapest way to read blocks for a thread that waits for them: no buffer changes hands, and one
    /// system call submits all and waits, up to the size of the ring. Reads that do not go to the thread's ring take
    /// their [`Route`](crate::Route) as [`read`](Self::read) does. Operations that were added to the queue before are
    /// submitted too; their results are taken as always.
    ///
    /// A read that is short, or fails in a way that may pass, is repeated as an operation of the queue. If user code that
    /// runs meanwhile panics, such operations stay in the queue, with 0 as their `user_data`.
    ///
    /// Blocks until every read has ended, and cannot be cancelled. Allocates nothing once the thread has done as many
    /// reads at once.
    ///
    /// # Errors
    /// `WouldBlock` inside ringfile's loop, and nothing was read: use a [`Batch`](crate::Batch) there. An error of one
    /// read is in its request. If the operation cannot be waited for, since the thread is ending or this is a forked
    /// child, its result is an error, and its buffer is replaced by one without capacity.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, vec![7; 1 << 20])?;
    /// use ringfile::{File, Pool, Queue, ReadRequest};
    /// let (pool, file) = (Pool::new(1 << 20), File::open(&path)?);
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
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_many(&mut self, file: &File, requests: &mut [ReadRequest]) -> Result<()> {
        let what = "reading many blocks";
        if crate::runtime::is_in_loop() {
            let why = "waiting would block a ringfile thread: await a batch there";
            return Err(Error::new(ErrorKind::WouldBlock, what).on(file.path()).because(why));
        }
        let may_stay = !file.has_adaptive_reads();
        for request in &mut *requests {
            let stays = may_stay && check::fits_in_place(file, request.offset, &request.buffer);
            request.stage = if stays { Stage::InPlace } else { Stage::Otherwise };
        }
        let must_turn = may_stay && self.engine.read_in_place(file.target(), requests, usize::MAX);
        if requests.iter().any(|request| request.stage != Stage::Over) {
            requests.iter_mut().for_each(|request| request.explain(file));
            self.read_otherwise(file, requests);
        }
        if must_turn || self.entries.open > 0 {
            // Operations of this or another queue may have ended, or must go on.
            self.submit();
        }
        Ok(())
    }

    /// Carries out the reads that have not ended, as operations of the queue.
    #[cold]
    fn read_otherwise(&mut self, file: &File, requests: &mut [ReadRequest]) {
        // All before `first` have ended, and none behind `next` has begun.
        let (mut first, mut next, mut open) = (0, 0, 0);
        loop {
            while open < AT_ONCE
                && let Some(request) = requests.get_mut(next)
            {
                next += 1;
                if request.stage != Stage::Over {
                    let buffer = std::mem::replace(&mut request.buffer, Buffer::nothing());
                    request.stage = Stage::Open(self.read(file, buffer, request.offset, 0));
                    open += 1;
                }
            }
            if open == 0 {
                return;
            }
            // Only a part is waited for, so that the device always has many in flight.
            let enough = if next == requests.len() { open } else { open.div_ceil(4) };
            self.engine.wait(&mut self.entries, None, |entries| {
                let has_ended = |request: &&ReadRequest| {
                    matches!(request.stage, Stage::Open(token) if entries.is_done(token) == Some(true))
                };
                enough.saturating_sub(requests[first..next].iter().filter(has_ended).count())
            });
            let before = open;
            for request in &mut requests[first..next] {
                if let Stage::Open(token) = request.stage
                    && self.is_done(token)
                    && let Some(done) = self.take_by(token)
                {
                    open -= 1;
                    request.finish(done);
                }
            }
            first += requests[first..next].iter().take_while(|request| request.stage == Stage::Over).count();
            if open == before {
                requests.iter_mut().for_each(|request| request.lose(file));
                open = 0;
            }
        }
    }
}

impl ReadRequest {
    /// Makes the error of a read that has failed in place.
    fn explain(&mut self, file: &File) {
        if let Stage::Failed(errno) = self.stage {
            let request =
                Request { offset: self.offset, want: self.buffer.capacity(), ..Request::of(Kind::Read) };
            self.result = Err(check::failure(file, &request, Ended { done: 0, errno }));
            self.stage = Stage::Over;
        }
    }

    fn finish(&mut self, done: Done) {
        self.stage = Stage::Over;
        self.result = done.result;
        if let Some(AnyBuffer::Pooled(buffer)) = done.buffer {
            self.buffer = buffer;
        }
    }

    /// Gives up waiting: the queue keeps the buffer.
    fn lose(&mut self, file: &File) {
        if matches!(self.stage, Stage::Open(_)) {
            self.stage = Stage::Over;
            let error = Error::new(ErrorKind::Unsupported, "reading").on(file.path()).at(self.offset);
            let why = "cannot wait for the operation: this is a forked child, or the thread is ending";
            self.result = Err(error.because(why));
        }
    }
}
