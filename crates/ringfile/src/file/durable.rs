//! Durable writes: `RWF_DSYNC`, or a write and an fdatasync linked to it.
//!
//! Which is cheaper depends on the device: forced unit access is faster than flushing the whole cache on data-centre
//! drives, and slower on consumer drives. `Auto` measures the file's first writes.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use linux_raw_sys::general::RWF_DSYNC;

use super::single::Single;
use super::{File, Io};
use crate::error::{BufError, BufResult, Result};
use crate::memory::{Held, IoBuf};

/// Selects how [`File::write_durable_at`] makes its data durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// The cheaper of the two. The file's first durable writes try both in turn.
    #[default]
    Auto,
    /// Each write is durable by itself (`RWF_DSYNC`).
    Dsync,
    /// Each write is followed by an `fdatasync` that is submitted with it.
    Fsync,
}

/// Writes of each kind that `Auto` measures.
const TRIALS: u64 = 8;

/// The choice for one file, and its measurements: count and nanoseconds for each kind.
pub(super) struct Choice {
    fixed: Durability,
    started: AtomicU64,
    dsync: [AtomicU64; 2],
    fsync: [AtomicU64; 2],
}

impl Choice {
    pub(super) fn new(fixed: Durability) -> Self {
        let zeros = || [AtomicU64::new(0), AtomicU64::new(0)];
        Self { fixed, started: AtomicU64::new(0), dsync: zeros(), fsync: zeros() }
    }

    /// Returns the kind for the next write, and whether to measure it.
    fn next(&self) -> (Durability, bool) {
        if self.fixed != Durability::Auto {
            return (self.fixed, false);
        }
        let started = self.started.load(Ordering::Relaxed);
        if started < 2 * TRIALS {
            self.started.fetch_add(1, Ordering::Relaxed);
            let kind = if started.is_multiple_of(2) { Durability::Dsync } else { Durability::Fsync };
            return (kind, true);
        }
        (if mean(&self.fsync) < mean(&self.dsync) { Durability::Fsync } else { Durability::Dsync }, false)
    }

    fn note(&self, kind: Durability, began: Instant) {
        let sums = if kind == Durability::Dsync { &self.dsync } else { &self.fsync };
        sums[0].fetch_add(1, Ordering::Relaxed);
        sums[1].fetch_add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

fn mean(sums: &[AtomicU64; 2]) -> u64 {
    sums[1].load(Ordering::Relaxed) / sums[0].load(Ordering::Relaxed).max(1)
}

/// The future of [`File::write_durable_at`].
#[must_use = "nothing is written until the future is awaited"]
pub struct WriteDurable<'a, B> {
    file: &'a File,
    /// The kind of the write, if it is measured.
    measured: Option<Durability>,
    measured_from: Option<Instant>,
    write: Io<'a, B>,
    /// The write's result, while the sync is in flight.
    written: Option<B>,
    sync: Option<Single<'a>>,
    /// The sync's result, if it ended before the write's result was seen.
    synced: Option<Result<Held>>,
    /// Whether the sync was submitted with the write, not after it.
    linked: bool,
    /// Whether the sync was submitted again, because the write was short, which cancelled it.
    synced_again: bool,
}

impl<B> Unpin for WriteDurable<'_, B> {}

impl<'a, B: IoBuf> WriteDurable<'a, B> {
    pub(super) fn new(file: &'a File, buffer: B, offset: u64) -> Self {
        let (kind, measured) = file.0.durable.next();
        let write = Io::write(file, buffer, offset);
        let (write, sync) = match kind {
            Durability::Fsync => (write.and_sync(), Some(file.sync_data().0)),
            _ => (write.with_flags(RWF_DSYNC), None),
        };
        Self {
            file,
            measured: measured.then_some(kind),
            measured_from: None,
            write,
            written: None,
            sync,
            synced: None,
            linked: false,
            synced_again: false,
        }
    }
}

impl<B: IoBuf> Future for WriteDurable<'_, B> {
    type Output = BufResult<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.measured_from.is_none() {
            this.measured_from = Some(Instant::now());
            // If the write does not go to this thread's ring, the sync follows when it has ended.
            if let Some(sync) = &mut this.sync {
                this.linked = this.write.start_with(sync, context);
            }
        }
        if this.written.is_none() {
            match Pin::new(&mut this.write).poll(context) {
                Poll::Ready(Ok(buffer)) => this.written = Some(buffer),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    if let Some(sync) = this.sync.as_mut().filter(|_| this.linked)
                        && let Poll::Ready(result) = sync.poll(context)
                    {
                        this.synced = Some(result);
                    }
                    return Poll::Pending;
                }
            }
        }
        while let Some(sync) = this.sync.as_mut() {
            let result = match this.synced.take() {
                Some(result) => result,
                None => ready!(sync.poll(context)),
            };
            this.sync = None;
            match result {
                Err(error) if error.errno() == Some(libc::ECANCELED) && !this.synced_again => {
                    this.synced_again = true;
                    this.sync = Some(this.file.sync_data().0);
                }
                Err(error) => {
                    if let Some(buffer) = this.written.take() {
                        return Poll::Ready(Err(BufError::new(error, buffer)));
                    }
                }
                Ok(_) => {}
            }
        }
        let Some(buffer) = this.written.take() else { return Poll::Pending };
        if let Some((kind, began)) = this.measured.zip(this.measured_from) {
            this.file.0.durable.note(kind, began);
        }
        Poll::Ready(Ok(buffer))
    }
}
