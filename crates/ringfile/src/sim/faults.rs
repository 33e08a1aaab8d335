//! What goes wrong on a simulated disk, and how often.

use std::fmt;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use super::seed::Random;
use crate::latency::OperationKind;

/// What goes wrong on a simulated disk. Rates are probabilities for each operation, from 0 to 1.
///
/// ```
/// use std::time::Duration;
/// use ringfile::sim::Faults;
/// let slow_and_unreliable = Faults::none().write_errors(0.01).stuck(0.001, Duration::from_secs(60));
/// # let _ = slow_and_unreliable;
/// ```
#[derive(Clone, Debug, Default)]
pub struct Faults {
    latency: Latency,
    stuck: (f64, Duration),
    short: f64,
    interrupted: f64,
    read_errors: f64,
    write_errors: f64,
    sync_errors: f64,
    flips: f64,
    failing: Vec<(DiskCall, u64)>,
    lost_writes: f64,
    misdirected_writes: f64,
    memory_errors: f64,
    /// Zero: operations take no longer than `latency`.
    longest: Duration,
    pub(super) bad_sectors: Vec<(Vec<u8>, Range<u64>)>,
    pub(super) room: Option<u64>,
}

/// How long operations take.
#[derive(Clone)]
struct Latency(Range<Duration>);

impl Default for Latency {
    fn default() -> Self {
        Self(Duration::from_micros(10)..Duration::from_millis(1))
    }
}

impl fmt::Debug for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Faults {
    /// Nothing goes wrong: operations take 10 µs to 1 ms, and end in any order.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// What the kernel and a failing drive do, without lies: short transfers, interrupted and stuck operations, and errors
    /// of reads, writes and syncs, also for want of memory. Not a full disk or bad sectors, whose size and place one must
    /// choose, and no flipped bits, lost writes or misdirected writes. One read or write in 15 is short or interrupted, and one
    /// in 300 fails; one sync in 500 fails, and one operation in 1000 is stuck for 30 s.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            stuck: (0.001, Duration::from_secs(30)),
            short: 0.05,
            interrupted: 0.02,
            read_errors: 0.002,
            write_errors: 0.002,
            sync_errors: 0.002,
            memory_errors: 0.001,
            ..Self::none()
        }
    }

    /// Sets how long operations take.
    #[must_use]
    pub fn latency(self, latency: Range<Duration>) -> Self {
        Self { latency: Latency(latency), ..self }
    }

    /// Makes a few operations take much longer, as on a real drive: one in ten takes ten times as long as
    /// [`latency`](Self::latency) says, or longer, one in a hundred a hundred times, and so on, but none longer than
    /// `longest`.
    #[must_use]
    pub fn long_tail(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    /// Makes some operations take this much longer.
    #[must_use]
    pub fn stuck(self, rate: f64, longer: Duration) -> Self {
        Self { stuck: (rate, longer), ..self }
    }

    /// Makes the kernel move a part of the bytes, once for some of its calls. The library continues such operations.
    #[must_use]
    pub fn short_transfers(self, rate: f64) -> Self {
        Self { short: rate, ..self }
    }

    /// Makes the kernel answer `EINTR` or `EAGAIN` to reads, writes and copies. The library tries such operations again.
    #[must_use]
    pub fn interrupted(self, rate: f64) -> Self {
        Self { interrupted: rate, ..self }
    }

    /// Makes reads, writes and copies fail with `ENOMEM`, as when the kernel has no memory left. Nothing is read or written.
    #[must_use]
    pub fn memory_errors(self, rate: f64) -> Self {
        Self { memory_errors: rate, ..self }
    }

    /// Breaks the sectors, of 512 bytes, in which these bytes of a file are, before the program begins. Reads and copies
    /// from them fail with `EIO`, and so do writes of a part of a sector, until a write has covered all of it, or its space
    /// was freed. Until then they stay broken, also in [runs on what this one leaves](super::Outcome::disk). Nothing is
    /// broken if there is no such file, or only from its end on. Can be called several times.
    ///
    /// ```
    /// use ringfile::{File, OpenOptions, fs, sim};
    /// let written = sim::Simulation::new(1).run(|_| async {
    ///     let file = OpenOptions::new().write(true).create(true).open("log").await.unwrap();
    ///     file.write_at(vec![1; 2000], 0).await.unwrap();
    /// });
    /// let broken = sim::Faults::none().bad_sectors("log", 512..513);
    /// written.disk().faults(broken).run(|_| async {
    ///     let failed = File::open("log").await.unwrap().read_at(Vec::with_capacity(2000), 0).await.unwrap_err();
    ///     assert_eq!(failed.done(), 512);
    /// });
    /// ```
    #[must_use]
    pub fn bad_sectors(mut self, path: impl AsRef<Path>, bytes: Range<u64>) -> Self {
        if !bytes.is_empty() {
            self.bad_sectors.push((path.as_ref().as_os_str().as_bytes().to_vec(), bytes));
        }
        self
    }

    /// Makes reads fail with `EIO`.
    #[must_use]
    pub fn read_errors(self, rate: f64) -> Self {
        Self { read_errors: rate, ..self }
    }

    /// Makes writes fail with `EIO`, after any part of them.
    #[must_use]
    pub fn write_errors(self, rate: f64) -> Self {
        Self { write_errors: rate, ..self }
    }

    /// Makes syncs and durable writes fail with `EIO` as on Linux: any part of what they should have made durable is lost,
    /// reads still return it, each file that was open then fails once, and syncs of a file that is opened later succeed.
    #[must_use]
    pub fn sync_errors(self, rate: f64) -> Self {
        Self { sync_errors: rate, ..self }
    }

    /// Makes one read, write or sync of the run fail with `EIO`, as [`read_errors`](Self::read_errors) and so on do: the
    /// `number`-th of its kind, from 1. A read or write that the kernel moves in pieces counts once for each piece, and a
    /// durable write also as a sync. Other kinds of operations do not fail.
    #[must_use]
    pub fn failing(mut self, kind: OperationKind, number: u64) -> Self {
        let call = match kind {
            OperationKind::Read => Some(DiskCall::Read),
            OperationKind::Write => Some(DiskCall::Write),
            OperationKind::Sync => Some(DiskCall::Sync),
            OperationKind::Other => None,
        };
        self.failing.extend(call.map(|call| (call, number)));
        self
    }

    /// Makes the drive lose some writes that it has reported as done: the file has its new size, and the old bytes, or zeros.
    /// Reads find that at once, as direct ones do. For programs whose checksums cover where and when something was written.
    #[must_use]
    pub fn lost_writes(self, rate: f64) -> Self {
        Self { lost_writes: rate, ..self }
    }

    /// Makes the drive write to the wrong place: the place that was meant keeps what it has, as in
    /// [`lost_writes`](Self::lost_writes), and the first page of the data overwrites a page of 4 KiB of any file.
    #[must_use]
    pub fn misdirected_writes(self, rate: f64) -> Self {
        Self { misdirected_writes: rate, ..self }
    }

    /// Flips a bit in what a read returns. For programs with checksums.
    #[must_use]
    pub fn flipped_bits(self, rate: f64) -> Self {
        Self { flips: rate, ..self }
    }

    /// Makes writes, copies and [`File::allocate`](crate::File::allocate) fail with `ENOSPC` once this many more bytes are
    /// allocated, in pages of 4 KiB. Of writes and copies, what fits is written before. Removed files and holes give their
    /// room back, and a write to room that was preallocated always fits.
    #[must_use]
    pub fn full_after(self, bytes: u64) -> Self {
        Self { room: Some(bytes), ..self }
    }

    /// Draws how long an operation takes.
    pub(super) fn draw_latency(&self, random: &mut Random) -> Duration {
        let Range { start, end } = self.latency.0;
        let span = end.saturating_sub(start).as_nanos() as u64;
        let usual = start + Duration::from_nanos(random.below(span.max(1)));
        if self.longest <= usual {
            return usual;
        }
        // From above 0 to 1.
        let part = (random.below(1 << 53) + 1) as f64 / (1_u64 << 53) as f64;
        Duration::from_nanos((usual.as_nanos() as f64 / part) as u64).min(self.longest)
    }

    /// Draws whether an operation is stuck, and for how long.
    pub(super) fn draw_stuck(&self, random: &mut Random) -> Option<Duration> {
        random.happens(self.stuck.0).then_some(self.stuck.1)
    }

    /// Draws whether a write misses its place.
    pub(super) fn draw_misplaced(&self, random: &mut Random) -> Option<Misplaced> {
        if random.happens(self.lost_writes) {
            return Some(Misplaced::Lost);
        }
        random.happens(self.misdirected_writes).then_some(Misplaced::Elsewhere)
    }

    /// Draws how the call with this number, for `len` bytes, goes: how many of them are moved, or the errno.
    pub(super) fn draw(&self, what: DiskCall, number: u64, len: usize, random: &mut Random) -> Drawn {
        let broken = match what {
            DiskCall::Read => self.read_errors,
            DiskCall::Write => self.write_errors,
            DiskCall::Sync => self.sync_errors,
        };
        if self.failing.contains(&(what, number)) || random.happens(broken) {
            let done = if what == DiskCall::Write && len > 1 { random.below(len as u64) as usize } else { 0 };
            return Drawn::Fails { errno: libc::EIO, after: done };
        }
        if what != DiskCall::Sync && random.happens(self.interrupted) {
            let errno = if random.happens(0.5) { libc::EINTR } else { libc::EAGAIN };
            return Drawn::Fails { errno, after: 0 };
        }
        if what != DiskCall::Sync && random.happens(self.memory_errors) {
            return Drawn::Fails { errno: libc::ENOMEM, after: 0 };
        }
        if len > 1 && random.happens(self.short) {
            return Drawn::Moves(1 + random.below(len as u64 - 1) as usize);
        }
        Drawn::Moves(len)
    }

    /// Returns the bytes with a bit flipped, if that is to happen.
    pub(super) fn flipped(&self, bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
        let flips = !bytes.is_empty() && random.happens(self.flips);
        flips.then(|| {
            let (mut bytes, bit) = (bytes.to_vec(), random.below(bytes.len() as u64 * 8));
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            bytes
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DiskCall {
    Read,
    Write,
    Sync,
}

/// How a write misses its place.
pub(super) enum Misplaced {
    Lost,
    Elsewhere,
}

/// How a call goes.
pub(super) enum Drawn {
    Moves(usize),
    /// A part of the write may have reached the file.
    Fails {
        errno: i32,
        after: usize,
    },
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moves(len) => write!(f, "moves only {len} bytes"),
            Self::Fails { errno, after: 0 } => write!(f, "fails with errno {errno}"),
            Self::Fails { errno, after } => write!(f, "fails with errno {errno} after {after} bytes"),
        }
    }
}
