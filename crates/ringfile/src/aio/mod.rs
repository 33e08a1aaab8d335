//! The only code that talks to Linux AIO, the kernel's older interface for asynchronous direct I/O.
//!
//! An [`Aio`] is the context of one thread. It accepts the same entries as a [`Ring`](crate::ring::Ring), but only
//! reads and writes, and returns the same completions; it does not know what an operation means, or which task waits
//! for it. Invariants:
//!
//! - there are never more operations than the context was made for, so the kernel has room for every completion;
//! - an operation that was not submitted can be withdrawn; a submitted one belongs to the kernel until its completion:
//!   `io_cancel` cannot end a read or write of a file (the kernel can cancel only polls);
//! - after a `fork` the child never touches the parent's completion ring, which it shares
//!   ([`fork`]).
//!
//! Completions are read from the ring in memory, without a system call. The kernel fills in an event, and moves the
//! tail behind it after a write barrier; it reuses the event's place once the head has passed it.

mod abi;
#[cfg(test)]
mod tests;

use std::cell::UnsafeCell;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::Duration;

use linux_raw_sys::io_uring::io_uring_op as op;

use crate::ring::{Cqe, Sqe};
use abi::{Header, IoEvent, Iocb};
use ringfile_buffer::internal::fork;

/// The smallest number of operations for which a context is worthwhile.
const FEWEST: u32 = 16;

/// Operations on files, submitted together and collected as they end.
pub(crate) struct Aio {
    context: abi::ContextId,
    ring: Option<CompletionRing>,
    /// The records: one for each operation, and the last one for the wake-up. They never move, because the kernel
    /// identifies operations by their addresses.
    iocbs: Box<[UnsafeCell<Iocb>]>,
    /// Indices of the records that are not in use.
    free: Vec<u32>,
    /// Records that were not submitted, oldest first, but the poll of the wake-up before all operations.
    queued: Vec<*mut Iocb>,
    /// How many open operations signal no descriptor when they complete.
    silent: u32,
    /// Events from `io_getevents`. Those from `next` to `fetched` have not been taken yet.
    events: Box<[IoEvent]>,
    next: usize,
    fetched: usize,
    /// The poll of the descriptor with which other threads wake this one.
    wakeup: Iocb,
    is_armed: bool,
    /// How often the kernel was called to submit, or for completions.
    pub(crate) calls: u64,
    fork_mark: fork::Mark,
    /// For tests: the next submission fails with this errno, or accepts at most this many.
    #[cfg(test)]
    pub(crate) next_submission: Option<Result<usize, i32>>,
}

// SAFETY: the context belongs to the process, and the records to this value, which alone uses them.
unsafe impl Send for Aio {}

struct CompletionRing {
    header: NonNull<Header>,
    events: NonNull<IoEvent>,
    /// The number of events that it has room for.
    len: u32,
}

impl CompletionRing {
    /// Returns the completion ring of a context; `None` if its layout is unknown. `io_getevents` is used then.
    fn of(context: abi::ContextId) -> Option<Self> {
        let header = NonNull::new(std::ptr::with_exposed_provenance_mut::<Header>(context.0 as usize))?;
        // SAFETY: a context's name is the address of its ring, which is mapped, readable and writable, until the
        // context is destroyed, and at least a page long.
        let facts = unsafe { header.as_ref() };
        let is_known = facts.magic == abi::MAGIC
            && facts.incompatible == 0
            && facts.header_len as usize == size_of::<Header>()
            && facts.events > 0;
        // SAFETY: the events follow the header.
        is_known.then(|| Self { header, events: unsafe { header.add(1) }.cast(), len: facts.events })
    }

    fn header(&self) -> &Header {
        // SAFETY: as in `of`; only the two atomic fields change.
        unsafe { self.header.as_ref() }
    }

    #[inline]
    fn has_events(&self) -> bool {
        self.header().head.load(Ordering::Relaxed) != self.header().tail.load(Ordering::Acquire)
    }

    #[inline]
    fn take(&self) -> Option<IoEvent> {
        let head = self.header().head.load(Ordering::Relaxed);
        // Acquire: the kernel wrote the event before it moved the tail.
        if head == self.header().tail.load(Ordering::Acquire) || head >= self.len {
            return None;
        }
        // SAFETY: an index below the number of events; the kernel does not write to an event between head and tail.
        let event = unsafe { self.events.add(head as usize).read() };
        let next = if head + 1 == self.len { 0 } else { head + 1 };
        // Release: the event was read before the kernel may write another in its place.
        self.header().head.store(next, Ordering::Release);
        Some(event)
    }
}

impl Aio {
    /// Creates a context for this many operations at once, or for fewer if the system's limit, `fs.aio-max-nr`, allows
    /// no more. `wakeup` is a descriptor whose readiness completes with `user_data` after
    /// [`arm_wakeup`](Self::arm_wakeup). This function arms it once itself, and so finds out whether operations can be
    /// submitted at all.
    ///
    /// # Errors
    /// Those of `io_setup(2)` and `io_submit(2)`: `EAGAIN` if the limit is used up, `ENOSYS` or `EPERM` if a filter or
    /// the kernel refuses AIO, `EINVAL` if it has no polls (before Linux 4.19).
    pub(crate) fn new(operations: u32, wakeup: i32, user_data: u64) -> io::Result<Self> {
        let mut operations = operations.max(FEWEST);
        let context = loop {
            // One more for the wake-up.
            match abi::setup(operations + 1) {
                Ok(context) => break context,
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM))
                        && operations > FEWEST =>
                {
                    operations = (operations / 2).max(FEWEST);
                }
                Err(error) => return Err(error),
            }
        };
        let places = operations as usize + 1;
        let (fd, events) = (wakeup.cast_unsigned(), libc::POLLIN as u64);
        let wakeup = Iocb { data: user_data, opcode: abi::POLL, fd, addr: events, ..Iocb::default() };
        let mut aio = Self {
            context,
            ring: CompletionRing::of(context),
            iocbs: (0..places).map(|_| UnsafeCell::default()).collect(),
            free: (0..operations).rev().collect(),
            queued: Vec::with_capacity(places),
            silent: 0,
            events: vec![IoEvent::default(); places].into(),
            next: 0,
            fetched: 0,
            wakeup,
            is_armed: false,
            calls: 0,
            fork_mark: fork::Mark::current(),
            #[cfg(test)]
            next_submission: None,
        };
        aio.arm_wakeup();
        aio.submit(1)?;
        abi::get_events(context, 0, &mut [], Some(Duration::ZERO))?;
        Ok(aio)
    }

    /// Returns the number of operations that were pushed, and whose completions have not been taken.
    #[inline]
    pub(crate) fn open(&self) -> u32 {
        (self.iocbs.len() - 1 - self.free.len()) as u32
    }

    /// Returns the number of these whose completion signals no descriptor.
    #[inline]
    pub(crate) fn silent(&self) -> u32 {
        self.silent
    }

    /// Returns whether the context accepts another operation.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns how many operations the kernel has.
    pub(crate) fn at_work(&self) -> u32 {
        self.open() - (self.queued.len() - usize::from(self.is_wakeup_queued())) as u32
    }

    /// Returns whether there are operations that were pushed but not submitted.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Returns whether the context answers when the wake-up descriptor is written to.
    pub(crate) fn is_wakeup_armed(&self) -> bool {
        self.is_armed && !self.is_wakeup_queued()
    }

    /// Returns whether the kernel does not have the poll of the wake-up descriptor yet. It is always the first in the
    /// queue.
    fn is_wakeup_queued(&self) -> bool {
        self.queued.first().copied() == self.iocbs.last().map(UnsafeCell::get)
    }

    /// Puts an operation into the queue and returns its position, or `None` if the context is full. The kernel adds 1
    /// to the eventfd `signal` when the operation has ended.
    ///
    /// # Safety
    /// The entry is a read or a write without registered memory or files. Memory that it names must stay valid, and, if
    /// the kernel writes to it, must not be accessed otherwise, until the operation was withdrawn or its completion was
    /// seen.
    pub(crate) unsafe fn push(&mut self, sqe: &Sqe, signal: Option<i32>) -> Option<u32> {
        let position = self.free.pop()?;
        let opcode = match sqe.opcode {
            code if code == op::IORING_OP_READ as u8 => abi::PREAD,
            code if code == op::IORING_OP_READV as u8 => abi::PREADV,
            code if code == op::IORING_OP_WRITE as u8 => abi::PWRITE,
            _ => abi::PWRITEV,
        };
        self.silent += u32::from(signal.is_none());
        let place = self.fill(
            position,
            Iocb {
                data: sqe.user_data,
                rw_flags: sqe.op_flags,
                opcode,
                fd: sqe.fd.cast_unsigned(),
                addr: sqe.addr,
                len: sqe.len.into(),
                offset: sqe.offset,
                flags: if signal.is_some() { abi::SIGNALS } else { 0 },
                signal: signal.unwrap_or(0).cast_unsigned(),
                ..Iocb::default()
            },
        );
        self.queued.push(place);
        Some(position)
    }

    /// Makes the context complete once when the wake-up descriptor is written to. Submitted before all operations, so
    /// that one which the kernel refuses does not keep other threads from waking this one.
    pub(crate) fn arm_wakeup(&mut self) {
        if !std::mem::replace(&mut self.is_armed, true) {
            let last = self.iocbs.len() as u32 - 1;
            let place = self.fill(last, self.wakeup);
            self.queued.insert(0, place);
        }
    }

    fn fill(&mut self, position: u32, iocb: Iocb) -> *mut Iocb {
        let place = self.iocbs[position as usize].get();
        // SAFETY: the kernel does not use a record that is not in use here.
        unsafe { place.write(iocb) };
        place
    }

    /// Withdraws the operation at `position`, unless the kernel has it.
    pub(crate) fn withdraw(&mut self, position: u32) -> bool {
        let place = self.iocbs[position as usize].get();
        let queued = self.queued.iter().position(|&queued| queued == place);
        if let Some(index) = queued {
            self.queued.remove(index);
            self.is_over(position);
        }
        queued.is_some()
    }

    /// Submits queued operations, at most `most`, in one system call. Returns whether the kernel took all of them; if
    /// not, the next call fails with the reason for the first of the rest.
    ///
    /// # Errors
    /// `EAGAIN` and `ENOMEM` (collect completions first); otherwise the errno for the first operation of the queue, or
    /// for all. Nothing was submitted.
    pub(crate) fn submit(&mut self, most: u32) -> io::Result<bool> {
        let given = self.queued.len().min(most as usize);
        if given == 0 {
            return Ok(true);
        }
        #[cfg(test)]
        let given = match self.next_submission.take() {
            Some(Err(errno)) => return Err(io::Error::from_raw_os_error(errno)),
            Some(Ok(most)) => given.min(most),
            None => given,
        };
        self.calls += 1;
        // SAFETY: each is the address of a record of ours, put there by `push`, whose contract is the one required
        // here, or it names no memory.
        let taken = unsafe { abi::submit(self.context, &self.queued[..given]) }? as usize;
        self.queued.drain(..taken);
        Ok(taken == given)
    }

    /// Withdraws the first operation of the queue, which the kernel did not take. Returns its `user_data`, or none for
    /// the wake-up, which is withdrawn if it is alone: it is armed again with each turn.
    #[cold]
    pub(crate) fn take_back(&mut self) -> Option<u64> {
        let first = usize::from(self.is_wakeup_queued() && self.queued.len() > 1);
        let place = (!self.queued.is_empty()).then(|| self.queued.remove(first))?;
        // SAFETY: it is one of our records, and not in use by the kernel.
        let user_data = unsafe { place.read() }.data;
        let is_operation = self.position_of(place.expose_provenance() as u64).is_some_and(|position| {
            self.is_over(position);
            position as usize + 1 < self.iocbs.len()
        });
        is_operation.then_some(user_data)
    }

    /// Asks the kernel to cancel an operation. Whatever the answer, its completion still arrives.
    #[cold]
    pub(crate) fn cancel(&mut self, position: u32) {
        // SAFETY: it is one of our records.
        unsafe { abi::cancel(self.context, self.iocbs[position as usize].get()) };
    }

    /// Returns whether a completion is available, as far as is known without asking the kernel.
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        self.next < self.fetched || self.ring.as_ref().is_some_and(CompletionRing::has_events)
    }

    /// Waits until there are this many completions, including those of the wake-up, but not longer than `at_most`.
    /// Called when there are none.
    ///
    /// # Errors
    /// Those of `io_getevents(2)`: `EINTR` (a signal; nothing is lost).
    pub(crate) fn wait(&mut self, wanted: u32, at_most: Option<Duration>) -> io::Result<()> {
        self.fetch(wanted.min(self.at_work()).max(1), at_most)
    }

    /// Collects completions with `io_getevents`, if they cannot be read from memory.
    #[inline]
    pub(crate) fn look(&mut self) {
        if self.ring.is_none() && self.open() > 0 && self.next == self.fetched {
            // An error here is reported the next time.
            let _ = self.fetch(0, Some(Duration::ZERO));
        }
    }

    fn fetch(&mut self, at_least: u32, at_most: Option<Duration>) -> io::Result<()> {
        debug_assert!(self.next == self.fetched, "events that were not taken");
        (self.next, self.fetched) = (0, 0);
        self.calls += 1;
        self.fetched = abi::get_events(self.context, at_least, &mut self.events, at_most)? as usize;
        Ok(())
    }

    #[inline]
    pub(crate) fn complete(&mut self) -> Option<Cqe> {
        let event = match self.events[self.next..self.fetched].first() {
            Some(event) => {
                self.next += 1;
                *event
            }
            None => self.ring.as_ref()?.take()?,
        };
        if let Some(position) = self.position_of(event.iocb) {
            // SAFETY: it is one of our records, of which the kernel writes only the key.
            let data = unsafe { &raw const (*self.iocbs[position as usize].get()).data };
            // SAFETY: as above.
            if unsafe { data.read() } == event.data {
                self.is_over(position);
            }
        }
        // No operation moves more than an `i32` counts, and errnos are small.
        Some(Cqe { user_data: event.data, result: event.result as i32, flags: 0 })
    }

    /// Returns the position of our record with this address.
    #[inline]
    fn position_of(&self, address: u64) -> Option<u32> {
        let first = self.iocbs.as_ptr().addr() as u64;
        let index = address.checked_sub(first)? / size_of::<Iocb>() as u64;
        (index < self.iocbs.len() as u64).then_some(index as u32)
    }

    /// Frees a record that the kernel no longer uses.
    #[inline]
    fn is_over(&mut self, position: u32) {
        if position as usize + 1 == self.iocbs.len() {
            self.is_armed = false;
            return;
        }
        let place = self.iocbs[position as usize].get();
        // SAFETY: it is one of our records, and not in use by the kernel.
        let flags = unsafe { place.replace(Iocb::default()) }.flags;
        self.silent -= u32::from(flags & abi::SIGNALS == 0);
        self.free.push(position);
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // In a forked child the context belongs to the parent.
        if self.fork_mark.is_current() {
            abi::destroy(self.context);
        }
    }
}
