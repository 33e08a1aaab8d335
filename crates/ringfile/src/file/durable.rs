//! Durable writes: `RWF_DSYNC`, or a write and an fdatasync after it.
//!
//! Which is cheaper depends on the device: forced unit access is faster than flushing the whole cache on data-centre
//! drives, and slower on consumer drives. `Auto` measures the file's first writes, many of one kind and many of the other
//! in turns, and how many of each end in the same time: where many are in flight, one flush serves many of them.
//! [`Choice`] decides for futures, batches and queues; it does not know which of them asks.

use std::future::Future;
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use linux_raw_sys::general::RWF_DSYNC;
use linux_raw_sys::io_uring::IORING_FSYNC_DATASYNC;
use pin_project_lite::pin_project;

use super::File;
use super::ask::{AnyMemory, Ask, Asked};
use super::io::{Operation, Transfer};
use crate::driver::{Kind, Request};
use crate::error::{BufError, BufResult, Result};
use crate::memory::IoBuf;
use crate::once::Value;

/// Selects how durable writes ([`File::write_durable_at`], awaited or added to a batch or a queue) make their data
/// durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// The one with which more writes end in the same time. The file's first 128 durable writes try both.
    #[default]
    Auto,
    /// Each write is durable by itself (`RWF_DSYNC`).
    Dsync,
    /// Each write is followed by an `fdatasync`. Awaited on a ringfile thread, the two are submitted
    /// together; a batch or a queue submits the `fdatasync` when the write has finished.
    Fsync,
}

/// Writes of each kind that `Auto` measures.
const TRIALS: u64 = 64;
/// How many of a kind follow each other. Those that are in flight when the kind changes blur the measurement, so they should be
/// few of all.
const BLOCK: u64 = 32;

/// The `fdatasync` after a write.
pub(crate) const SYNC: Request = Request { op_flags: IORING_FSYNC_DATASYNC, ..Request::of(Kind::Sync) };

/// The choice for one file, and its measurements of each kind.
pub(crate) struct Choice {
    fixed: Durability,
    started: AtomicU64,
    dsync: Measured,
    fsync: Measured,
}

/// Writes of one kind that have become durable, and the time in which at least one of them was in flight. In units of
/// 256 ns.
#[derive(Default)]
struct Measured {
    writes: AtomicU64,
    time: AtomicU64,
    /// When the last one ended.
    last: AtomicU32,
}

impl Measured {
    /// Adds a write. What it took while others of its kind had not ended yet is counted once.
    fn add(&self, began: u32, now: u32) {
        let since_last = now.wrapping_sub(self.last.swap(now, Ordering::Relaxed));
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.time.fetch_add(now.wrapping_sub(began).min(since_last).into(), Ordering::Relaxed);
    }

    /// Returns the time for a thousand writes. Writes that never succeeded, such as those with an `fdatasync` of a
    /// pipe, are the dearest.
    fn dearness(&self) -> u64 {
        let time = self.time.load(Ordering::Relaxed).saturating_mul(1000);
        time.checked_div(self.writes.load(Ordering::Relaxed)).unwrap_or(u64::MAX)
    }
}

impl Choice {
    pub(super) fn new(fixed: Durability) -> Self {
        let (dsync, fsync) = (Measured::default(), Measured::default());
        Self { fixed, started: AtomicU64::new(0), dsync, fsync }
    }

    /// Makes a write durable: with `RWF_DSYNC`, or `synced`, which the caller then carries out with [`SYNC`]. Returns
    /// what is left to do for it.
    pub(crate) fn decide(&self, request: &mut Request) -> AfterWrite {
        let started = self.started.load(Ordering::Relaxed);
        let is_measured = self.fixed == Durability::Auto && started < 2 * TRIALS;
        request.synced = match self.fixed {
            Durability::Dsync => false,
            Durability::Fsync => true,
            Durability::Auto if is_measured => {
                self.started.fetch_add(1, Ordering::Relaxed);
                !(started / BLOCK).is_multiple_of(2)
            }
            Durability::Auto => self.fsync.dearness() < self.dsync.dearness(),
        };
        if !request.synced {
            request.op_flags |= RWF_DSYNC;
        }
        match (is_measured, request.synced) {
            (true, _) => AfterWrite::MEASURED,
            (false, true) => AfterWrite::SYNCED,
            (false, false) => AfterWrite::NOTHING,
        }
    }

    /// Notes that a write has become durable, if it is measured.
    pub(crate) fn note(&self, request: &Request, rest: AfterWrite) {
        if rest.0 > AfterWrite::MEASURED.0 {
            let measured = if request.synced { &self.fsync } else { &self.dsync };
            measured.add(rest.0, AfterWrite::now());
        }
    }
}

/// What is left to do for a durable write besides the write: to sync, or to measure it. Otherwise the time when it
/// began, in units of 256 ns.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AfterWrite(u32);

/// 32 bits of the units hold 18 minutes.
const SHIFT: u32 = 8;

impl AfterWrite {
    pub(crate) const NOTHING: Self = Self(0);
    const SYNCED: Self = Self(1);
    const MEASURED: Self = Self(2);

    /// Notes that the write begins.
    pub(crate) fn begin(&mut self) {
        if *self == Self::MEASURED {
            self.0 = Self::now().max(Self::MEASURED.0 + 1);
        }
    }

    fn now() -> u32 {
        static BEGAN: Value<Instant> = Value::new();
        (BEGAN.get_or(Instant::now).elapsed().as_nanos() >> SHIFT) as u32
    }
}

pin_project! {
    /// A durable write: see [`File::write_durable_at`]. Await it, or [add](crate::Operation) it to a batch or a queue.
    #[must_use = "nothing is written until it is awaited, or added to a batch or a queue"]
    pub struct WriteDurable<'a, B> {
        steps: Steps<'a, B>,
        #[pin]
        pinned: PhantomPinned,
    }
}

/// The write, and the sync that was submitted with it.
struct Steps<'a, B> {
    write: Transfer<'a, B>,
    has_begun: bool,
    linked: Option<Linked<'a, B>>,
}

/// A sync that began when the write had ended, or was cancelled because the write was short.
struct Linked<'a, B> {
    sync: Operation<'a>,
    /// The sync's result, if it ended before the write's result was seen.
    synced: Option<Result<usize>>,
    /// Whether the sync was submitted again.
    is_again: bool,
    /// The write's result, while the sync is in flight.
    written: Option<B>,
    rest: AfterWrite,
}

impl<'a, B: IoBuf> WriteDurable<'a, B> {
    pub(super) fn new(mut write: Transfer<'a, B>) -> Self {
        let file = write.file();
        let rest = file.durability().decide(write.request());
        *write.rest() = rest;
        Self { steps: Steps { write, has_begun: false, linked: None }, pinned: PhantomPinned }
    }
}

impl<'a, B: IoBuf> Steps<'a, B> {
    /// Submits the write and its sync together, if both go to this thread's ring. Otherwise the sync follows when the write
    /// has ended, as the write's record says.
    fn link(&mut self, context: &Context<'_>) {
        if self.write.request().synced {
            let mut sync = self.write.file().sync_data().into_operation();
            if self.write.start_with(&mut sync, context) {
                let mut rest = std::mem::take(self.write.rest());
                rest.begin();
                self.linked = Some(Linked { sync, synced: None, is_again: false, written: None, rest });
            }
        }
    }
}

impl<'a, B: IoBuf> Linked<'a, B> {
    fn poll(&mut self, write: &mut Transfer<'a, B>, context: &mut Context<'_>) -> Poll<BufResult<B>> {
        if self.written.is_none() {
            match write.poll(context) {
                Poll::Ready(written) => self.written = Some(written?),
                Poll::Pending => {
                    if self.synced.is_none()
                        && let Poll::Ready(synced) = self.sync.poll_control(context)
                    {
                        self.synced = Some(synced);
                    }
                    return Poll::Pending;
                }
            }
        }
        loop {
            let synced = match self.synced.take() {
                Some(synced) => synced,
                None => ready!(self.sync.poll_control(context)),
            };
            match synced {
                Err(error) if error.errno() == Some(libc::ECANCELED) && !self.is_again => {
                    self.is_again = true;
                    self.sync = write.file().sync_data().into_operation();
                }
                synced => {
                    let Some(buffer) = self.written.take() else { return Poll::Pending };
                    return Poll::Ready(match synced {
                        Ok(_) => {
                            write.file().durability().note(write.request(), self.rest);
                            Ok(buffer)
                        }
                        Err(error) => Err(BufError::new(error, buffer)),
                    });
                }
            }
        }
    }
}

impl<B: IoBuf> Future for WriteDurable<'_, B> {
    type Output = BufResult<B>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let steps = self.project().steps;
        if !std::mem::replace(&mut steps.has_begun, true) {
            steps.link(context);
        }
        match &mut steps.linked {
            Some(linked) => linked.poll(&mut steps.write, context),
            None => steps.write.poll(context),
        }
    }
}

impl<B: AnyMemory> Ask for WriteDurable<'_, B> {
    fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        self.steps.write.ask(add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_that_serves_many_writes_is_cheaper_than_one_for_each() {
        let choice = Choice::new(Durability::Auto);
        // Sixteen at once: each of the first kind flushes by itself, in turn; one flush serves all of the second kind,
        // which are as long under way as most of the first.
        (1..=16).for_each(|at| choice.dsync.add(1000, 1000 + at * 10));
        (1..=16).for_each(|_| choice.fsync.add(2000, 2120));
        let mut request = Request::of(Kind::Write);
        choice.started.store(2 * TRIALS, Ordering::Relaxed);
        choice.decide(&mut request);
        assert!(request.synced);
        assert_eq!((choice.dsync.dearness(), choice.fsync.dearness()), (10_000, 7500));
        // One at a time, with pauses between them, which cost nothing.
        let alone = Measured::default();
        (1..=16).for_each(|at| alone.add(at * 1000, at * 1000 + 10));
        assert_eq!(alone.dearness(), 10_000);
    }

    #[test]
    fn a_kind_of_write_that_never_succeeded_is_not_chosen() {
        for fails in [true, false] {
            let choice = Choice::new(Durability::Auto);
            let write = |is_measured| {
                let mut request = Request::of(Kind::Write);
                let mut rest = choice.decide(&mut request);
                rest.begin();
                assert_eq!(rest.0 > AfterWrite::MEASURED.0, is_measured);
                if request.synced != fails {
                    std::thread::sleep(std::time::Duration::from_micros(1));
                    choice.note(&request, rest);
                }
                request.synced
            };
            let synced = (0..2 * TRIALS).filter(|_| write(true)).count() as u64;
            assert_eq!(synced, TRIALS);
            assert_eq!(write(false), !fails, "with an fdatasync");
        }
    }
}
