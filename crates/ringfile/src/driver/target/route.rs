//! The routes of a file's operations, and what is known of how each of them does.
//!
//! A file's first operations decide, separately for reads and writes: they carry `RWF_NOWAIT`. If the kernel accepts
//! that (`EAGAIN` counts), the ring does such operations without kernel threads. If not (`EOPNOTSUPP`), the ring would
//! pass each to a kernel thread, which costs 7 to 60 µs; a plain call is then cheaper if it is only a memory copy. That
//! is known for tmpfs and ramfs; elsewhere the calls are timed. A read that a server must answer, on FUSE or a network
//! file system, is never an inline call (`Target::choose`): the first one might already wait for ever.
//!
//! Invariant: inline calls that turn out slow cost a loop at most a few per cent of its time ([`Lane::note`]).

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::copy_time;
use super::timing::is_one_in;
use crate::driver::op::Kind;
use once_cell::race::OnceBox;
use ringfile_buffer::internal::event;

/// Selects the route of a file's operations: io_uring, plain calls, worker threads, or Linux AIO.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("ringfile-doc-route-{}", std::process::id()));
/// # std::fs::write(&path, "content")?;
/// use ringfile::{OpenOptions, Route};
/// // A plain call on this thread, whatever the file is.
/// let file = OpenOptions::new().read(true).route(Route::Inline).open_blocking(&path)?;
/// let buffer = ringfile::block_on(file.read_at(Vec::with_capacity(100), 0))?;
/// assert_eq!(buffer, b"content");
/// # if std::env::var_os("RINGFILE_DISABLE").is_none() {
/// assert_eq!(ringfile::thread_metrics().inline_ops, 1);
/// # }
/// # std::fs::remove_file(&path)
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum Route {
    /// The cheapest route, learned from the file's first operations, separately for reads and writes.
    #[default]
    Auto,
    /// Through io_uring. Without it, operations fail with an error that says why. Operations that this kernel's rings do not
    /// offer go to workers, and so do direct writes on FUSE: io_uring may write the rest of a short write in the wrong place.
    Ring,
    /// A plain call on the thread that polls. Operations do not overlap, and a slow file blocks the thread's other
    /// tasks. A write to a frozen file system (`fsfreeze`, a snapshot) waits until it is thawed, also with `Auto` if the
    /// file's writes were plain calls until then; [`Ring`](Self::Ring) and [`Workers`](Self::Workers) let other tasks run.
    Inline,
    /// A plain call on one of a small pool of worker threads.
    Workers,
    /// Through Linux AIO, for files opened for direct I/O; reads and writes of other files fail. Writes that make the
    /// file longer go to workers, since AIO would block the thread until they have finished; syncs and other operations
    /// go to the ring, or to workers. Without AIO, operations fail with an error that says why. `Auto` uses AIO for
    /// direct I/O when there is no io_uring.
    Aio,
}

/// What to do with an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// Use the ring, or AIO if there is no ring or if the route requires it.
    Ring,
    /// Make a call that must not wait; if it would have to, use the ring.
    Attempt,
    Inline,
    Workers,
}

/// Nothing is known yet.
const UNKNOWN: u8 = 0;
/// The file supports non-blocking I/O through the page cache.
const OFFERED: u8 = 1;
/// It has non-blocking direct I/O: the ring keeps the device's queue filled.
const QUEUED: u8 = 4;
/// It has no non-blocking I/O; its files are memory.
const MEMORY: u8 = 2;
/// It has no non-blocking I/O, and its calls must be timed.
const TIMED: u8 = 3;

/// Time limits are in units of a copy of 4 KiB ([`copy_time`]), which took 0.23 µs on the machine where they were
/// found.
///
/// A call that takes at most this long, plus [`FOR_A_COPY`] for its length, counts as a memory copy. Cached reads took
/// 4 to 9 copies on every file system, and the cheapest hand-over to a kernel thread 30. With a limit of 87, reads that
/// a fast FUSE server answered in 78 stayed inline, although the ring does three of them in the time of one.
const QUICK: u64 = 35;
/// For buffered writes: if the cache uses large pieces (folios), marking a page dirty on ext4 took as long as 122
/// copies, and the ring's workers are no faster at it. A write that waits for a read or for the disk's throttling takes
/// longer.
const QUICK_WRITE: u64 = 435;
/// For direct I/O: longer than zram takes, and shorter than any drive takes that gains from a filled queue.
const QUICK_DIRECT: u64 = 22;
/// The time added for each 4 KiB that is moved, since the memory may not be in the processor's cache (2 GB/s where a copy
/// took 0.23 µs).
const FOR_A_COPY: u64 = 9;

/// The score of a lane at first, and when it returns from the ring: a file whose calls wait 1 ms leaves for the ring
/// with the second call, one whose calls wait 70 µs within 10 calls. A single slow call means nothing: the first access
/// to a pool's memory may make the kernel clear a huge page, which takes 150 to 440 µs.
const ON_TRIAL: u32 = FULL - 64;
/// The score at which a lane leaves for the ring. A slow call adds the factor by which it was slower than quick; a
/// quick call subtracts one. So a thread that was preempted for a few milliseconds has no effect, but calls that wait
/// repeatedly do.
const FULL: u32 = 512;
/// One call adds at most this much, unless it took longer than [`STALL`].
const MOST_FOR_ONE: u32 = 256;
/// A call this long has waited: preemption does not explain it.
const STALL: Duration = Duration::from_millis(20);

/// The minimum time for which a lane stays on the ring (100 ms where a copy took 0.23 µs). It stays for a hundred times
/// as long as the slow call took, so that a retry costs one per cent. The time doubles with each time that it leaves,
/// until [`FORGIVEN_AFTER`] calls in a row were quick.
const AWAY: u32 = 435_000;
const LONGEST_AWAY: Duration = Duration::from_secs(60);
/// After this many operations in a row whose attempt would have had to wait, most go to the ring without an attempt:
/// with reads that are not cached, attempts took a tenth of the CPU time.
const COLD: u32 = 8;
/// Among those, one in this many is still attempted.
const LOOKS: u32 = 8;

/// After this many attempts in a row that did not have to wait, a thread that does nothing else calls without
/// `RWF_NOWAIT`, which costs the kernel 30 to 40 ns, 5 % of a cached read.
const FOUND_CACHED: u32 = 64;
/// One in this many of its reads is still an attempt.
const ATTEMPTS: u64 = 8;

/// Once a lane's score is 0, one in this many reads is timed, and counts for all: two looks at the clock cost 50 ns. Writes are
/// all timed, since a single one may stall until the disk has written what others made dirty.
const TIMINGS: u64 = 4;

/// Whether the next simple operation may be a plain call without asking `choose`. Here: no.
const NOT_SETTLED: u8 = 0;
/// Yes.
const SETTLED: u8 = 1;
/// Yes, except for one in [`TIMINGS`], which is timed.
const SETTLED_AND_TIMED: u8 = 2;
/// Yes, since what it needs is cached, except for one in [`ATTEMPTS`].
const SETTLED_AS_CACHED: u8 = 3;

/// After this many quick calls in a row, a lane forgets how often it has left.
const FORGIVEN_AFTER: u32 = 4096;

/// The limits for inline calls of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// The longest time of a call that does not wait.
    quick: Duration,
    /// The minimum time for which a lane stays on the ring.
    away: Duration,
    /// How many calls a timed one counts for while the lane's score is 0.
    calls: u32,
}

impl Limits {
    /// Returns the limits for a call that moved `len` bytes on this machine.
    pub(crate) fn of(kind: Kind, direct: bool, len: usize) -> Self {
        Self::with(copy_time::get(), kind, direct, len)
    }

    /// Returns whether a call that took this long is slow.
    pub(crate) fn is_slow(self, took: Duration) -> bool {
        took > self.quick
    }

    /// Returns what [`of`](Self::of) returns on a machine on which a copy takes this long.
    fn with(copy: Duration, kind: Kind, direct: bool, len: usize) -> Self {
        let quick = match (direct, kind.is_write()) {
            (true, _) => QUICK_DIRECT,
            (false, true) => QUICK_WRITE,
            (false, false) => QUICK,
        };
        let copy_nanos = copy.as_nanos() as u64;
        let moved = copy_nanos * FOR_A_COPY * len as u64 / copy_time::BYTES as u64;
        let calls = if kind.is_write() { 1 } else { TIMINGS as u32 };
        Self { quick: Duration::from_nanos(copy_nanos * quick + moved), away: copy * AWAY, calls }
    }
}

/// One direction of one file.
#[derive(Default)]
pub(crate) struct Lane {
    state: AtomicU8,
    score: AtomicU32,
    times_away: AtomicU32,
    quick: AtomicU32,
    /// How many operations in a row would have had to wait, up to [`COLD`]. From there on it counts operations modulo
    /// [`LOOKS`], one of which is attempted.
    waited: AtomicU32,
    /// The attempts in a row that did not have to wait, up to [`FOUND_CACHED`].
    found: AtomicU32,
    /// The time until which the lane stays on the ring, in nanoseconds of [`now`]; 0 if it is not on the ring.
    away_until: AtomicU64,
    settled: AtomicU8,
}

/// A call that carries out an operation of a settled lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SettledCall {
    /// It may take as long as it takes.
    Any,
    /// What it needs is cached. Unless the thread has nothing else to do, it must not wait.
    Cached,
}

/// Returns the nanoseconds since the first call.
fn now() -> u64 {
    static START: OnceBox<Instant> = OnceBox::new();
    START.get_or_init(|| Box::new(Instant::now())).elapsed().as_nanos() as u64 + 1
}

impl Lane {
    pub(crate) fn new() -> Self {
        Self { score: AtomicU32::new(ON_TRIAL), ..Self::default() }
    }

    /// Forgets what was learned, because the file has changed its kind of I/O.
    pub(crate) fn reset(&self) {
        self.state.store(UNKNOWN, Ordering::Relaxed);
        self.score.store(ON_TRIAL, Ordering::Relaxed);
        self.waited.store(0, Ordering::Relaxed);
        self.found.store(0, Ordering::Relaxed);
        self.away_until.store(0, Ordering::Relaxed);
        self.settled.store(NOT_SETTLED, Ordering::Relaxed);
    }

    /// Notes whether the next operations may be plain calls without another decision, until one of those that are decided
    /// shows something else.
    pub(crate) fn settle(&self, kind: Kind, is_simple: bool) {
        let settled = match self.state.load(Ordering::Relaxed) {
            _ if !is_simple => NOT_SETTLED,
            MEMORY => SETTLED,
            TIMED if kind.is_read() && self.score.load(Ordering::Relaxed) == 0 => SETTLED_AND_TIMED,
            OFFERED if self.found.load(Ordering::Relaxed) >= FOUND_CACHED => SETTLED_AS_CACHED,
            _ => NOT_SETTLED,
        };
        // Checked first, as in `is_offered`.
        if self.settled.load(Ordering::Relaxed) != settled {
            self.settled.store(settled, Ordering::Relaxed);
        }
    }

    /// Returns whether some operations may be plain calls without a decision.
    #[inline(always)]
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed) != NOT_SETTLED
    }

    /// Returns by which call the operation of this number is carried out without a decision.
    #[inline(always)]
    pub(crate) fn settled_call(&self, number: impl FnOnce() -> u64) -> Option<SettledCall> {
        match self.settled.load(Ordering::Relaxed) {
            NOT_SETTLED => None,
            SETTLED => Some(SettledCall::Any),
            SETTLED_AND_TIMED => (!is_one_in(TIMINGS, number())).then_some(SettledCall::Any),
            _ => (!is_one_in(ATTEMPTS, number())).then_some(SettledCall::Cached),
        }
    }

    /// Notes that an operation went to the ring because its attempt would have had to wait.
    pub(crate) fn would_wait(&self) {
        let waited = self.waited.load(Ordering::Relaxed);
        if waited < COLD {
            self.waited.store(waited + 1, Ordering::Relaxed);
        }
    }

    /// Notes that an operation did not have to wait.
    #[inline]
    pub(crate) fn did_not_wait(&self) {
        // Checked first, as in `is_offered`.
        if self.waited.load(Ordering::Relaxed) != 0 {
            self.waited.store(0, Ordering::Relaxed);
        }
        let found = self.found.load(Ordering::Relaxed);
        if found < FOUND_CACHED {
            self.found.store(found + 1, Ordering::Relaxed);
        }
    }

    /// Notes that an attempt would have had to wait.
    pub(crate) fn was_not_cached(&self) {
        self.found.store(0, Ordering::Relaxed);
    }

    /// Returns whether an operation probably need not wait, so that a thread which would do nothing meanwhile makes the
    /// plain call.
    #[inline]
    pub(crate) fn is_found_cached(&self, number: u64) -> bool {
        self.found.load(Ordering::Relaxed) >= FOUND_CACHED && !is_one_in(ATTEMPTS, number)
    }

    /// Returns whether the next operation goes to the ring without an attempt.
    fn is_cold(&self) -> bool {
        let waited = self.waited.load(Ordering::Relaxed);
        if waited < COLD {
            return false;
        }
        self.waited.store(COLD + (waited - COLD + 1) % LOOKS, Ordering::Relaxed);
        waited - COLD != LOOKS - 1
    }

    /// Notes that the kernel accepted `RWF_NOWAIT`, or returned `EAGAIN`.
    pub(crate) fn is_offered(&self, direct: bool) {
        let state = if direct { QUEUED } else { OFFERED };
        // Checked first: it is noted with each operation, and a store would take the cache line from other threads.
        if self.state.load(Ordering::Relaxed) != state {
            self.state.store(state, Ordering::Relaxed);
        }
    }

    /// Notes that the kernel has no non-blocking I/O here.
    pub(crate) fn is_not_offered(&self, file_system: FileSystem) {
        let state = match file_system {
            FileSystem::Memory => MEMORY,
            FileSystem::Fuse | FileSystem::Network | FileSystem::Other => TIMED,
        };
        self.state.store(state, Ordering::Relaxed);
    }

    /// Returns whether this inline call must be timed.
    #[inline]
    pub(crate) fn is_timed(&self, kind: Kind, number: u64) -> bool {
        self.state.load(Ordering::Relaxed) == TIMED
            && (kind.is_write() || self.score.load(Ordering::Relaxed) > 0 || is_one_in(TIMINGS, number))
    }

    fn is_away(&self) -> bool {
        let until = self.away_until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        if now() < until {
            return true;
        }
        // Back on trial: a few slow calls send it away again.
        self.score.store(ON_TRIAL, Ordering::Relaxed);
        self.away_until.store(0, Ordering::Relaxed);
        false
    }

    /// Chooses by what is known of earlier operations.
    pub(super) fn choose(&self) -> Choice {
        match self.state.load(Ordering::Relaxed) {
            UNKNOWN => Choice::Attempt,
            MEMORY => Choice::Inline,
            TIMED if self.is_away() => Choice::Ring,
            TIMED => Choice::Inline,
            QUEUED => Choice::Ring,
            OFFERED if self.is_cold() => Choice::Ring,
            // A call that need not wait is a memory copy, and cheaper than a ring's entry and completion (by itself:
            // see `goes_together`); one that would have to costs less than 1 µs before the ring does it.
            _ => Choice::Attempt,
        }
    }

    /// Notes how long an inline call took.
    pub(crate) fn note(&self, took: Duration, limits: Limits) {
        let Limits { quick, away, calls } = limits;
        if !limits.is_slow(took) {
            let score = self.score.load(Ordering::Relaxed);
            if score > 0 {
                self.score.store(score - 1, Ordering::Relaxed);
            }
            if self.times_away.load(Ordering::Relaxed) > 0
                && self.quick.fetch_add(1, Ordering::Relaxed) >= FORGIVEN_AFTER
            {
                self.times_away.store(0, Ordering::Relaxed);
            }
            return;
        }
        self.quick.store(0, Ordering::Relaxed);
        let before = self.score.load(Ordering::Relaxed);
        let calls = if before == 0 { calls.into() } else { 1 };
        let times = (took.as_nanos() / quick.as_nanos().max(1) * calls).min(MOST_FOR_ONE.into()) as u32;
        let weight = if took >= STALL { FULL } else { times };
        let score = before.saturating_add(weight);
        self.score.store(score.min(FULL), Ordering::Relaxed);
        if score >= FULL {
            self.leave(took, away);
        }
    }

    #[cold]
    fn leave(&self, took: Duration, at_least: Duration) {
        let times = self.times_away.fetch_add(1, Ordering::Relaxed).min(9);
        let away = at_least.max(took.saturating_mul(100)).saturating_mul(1 << times).min(LONGEST_AWAY);
        event::defer(move || {
            tracing::debug!(
                ?took,
                ?away,
                "inline calls are slow for this file, operations go through the ring for a while"
            );
        });
        self.away_until.store(now() + away.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// The file system, as far as routes depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileSystem {
    /// Its files are memory.
    Memory,
    /// A FUSE server answers. Where it bypasses the page cache (`FOPEN_DIRECT_IO`), Linux waits for its answer to a
    /// buffered read within `io_uring_enter` (5.10, 6.1 and 6.12 do, 6.18 does not). The reason: FUSE can be polled,
    /// which counts as not having to wait (`io_file_supports_nowait`), but only its reads with `O_DIRECT` were
    /// asynchronous.
    Fuse,
    /// Another machine answers.
    Network,
    Other,
}

impl FileSystem {
    /// Returns whether what is not cached comes from a server, whose answer may take any length of time.
    #[inline]
    pub(crate) fn has_a_server(self) -> bool {
        match self {
            Self::Fuse | Self::Network => true,
            Self::Memory | Self::Other => false,
        }
    }
}

/// The lanes of a file, and its user's settings.
pub(crate) struct Lanes {
    pub route: Route,
    pub file_system: FileSystem,
    read: Lane,
    write: Lane,
}

/// If at least this many operations are submitted together, all go to the ring, even if each alone would be a plain
/// call that does not wait. With 2 to 4 operations, both ways took the same time.
pub(crate) const MANY: usize = 8;

impl Lanes {
    pub(crate) fn new(route: Route, file_system: FileSystem) -> Self {
        Self { route, file_system, read: Lane::new(), write: Lane::new() }
    }

    pub(crate) fn lane(&self, kind: Kind) -> &Lane {
        if kind.is_read() { &self.read } else { &self.write }
    }

    pub(crate) fn reset(&self) {
        self.read.reset();
        self.write.reset();
    }

    /// Returns whether an operation goes to its thread's ring; `are_many`: whether others are submitted with it.
    #[inline(always)]
    pub(crate) fn is_for_ring(&self, kind: Kind, are_many: impl FnOnce() -> bool) -> bool {
        self.goes_to_ring(kind) || self.goes_together(kind) && are_many()
    }

    /// Returns whether an operation goes to its thread's ring without further checks.
    #[inline]
    pub(crate) fn goes_to_ring(&self, kind: Kind) -> bool {
        matches!(self.route, Route::Ring | Route::Aio)
            || self.route == Route::Auto
                && (self.lane(kind).state.load(Ordering::Relaxed) == QUEUED || !kind.moves_data())
    }

    /// Returns whether an operation of this kind fails if the file's route is not available to it.
    pub(crate) fn insists(&self, kind: Kind) -> bool {
        match self.route {
            Route::Ring => true,
            Route::Aio => kind.moves_data(),
            Route::Auto | Route::Inline | Route::Workers => false,
        }
    }

    /// Returns whether AIO may carry out an operation that moves data. Not if the file has no non-blocking I/O:
    /// `io_submit` would wait, as the plain call does.
    pub(crate) fn lets_aio(&self, kind: Kind) -> bool {
        match self.route {
            Route::Aio => true,
            Route::Auto => matches!(self.lane(kind).state.load(Ordering::Relaxed), UNKNOWN | QUEUED),
            Route::Ring | Route::Inline | Route::Workers => false,
        }
    }

    /// Returns whether an operation goes to the ring if it is submitted with many others: the kernel takes them all
    /// with one system call, and needs no kernel thread for operations that do not wait. 8 cached reads of 4 KiB took
    /// 0.87 of the time of as many calls with `RWF_NOWAIT`, 64 took 0.8; inside of fio, 0.92.
    #[inline]
    pub(crate) fn goes_together(&self, kind: Kind) -> bool {
        self.route == Route::Auto && self.lane(kind).state.load(Ordering::Relaxed) == OFFERED
    }
}

/// The backends that `RINGFILE_DISABLE` allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Backend {
    /// Whatever is available.
    Any = 1,
    /// No io_uring, and no AIO.
    Workers,
    /// No io_uring.
    Aio,
}

/// Returns the backends that may be used. The environment is read once.
#[inline]
pub(crate) fn backend() -> Backend {
    /// 0 if it has not been read yet. This is not a `OnceLock`, which a forked child might find half initialised.
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        1 => Backend::Any,
        2 => Backend::Workers,
        3 => Backend::Aio,
        _ => read_backend(&KNOWN),
    }
}

/// Returns whether `RINGFILE_DISABLE=io_uring,aio` is set.
#[inline]
pub(crate) fn workers_are_forced() -> bool {
    backend() == Backend::Workers
}

#[cold]
fn read_backend(known: &AtomicU8) -> Backend {
    let value = std::env::var("RINGFILE_DISABLE").unwrap_or_default();
    let backend = match value.as_str() {
        "io_uring,aio" => Backend::Workers,
        "io_uring" => Backend::Aio,
        _ => Backend::Any,
    };
    let is_first = known.swap(backend as u8, Ordering::Relaxed) == 0;
    if is_first && backend == Backend::Any && !value.is_empty() {
        event::defer(move || {
            tracing::warn!(
                value,
                "ignoring RINGFILE_DISABLE: it must be `io_uring`, `io_uring,aio` or empty"
            );
        });
    }
    backend
}

static DEFAULT: AtomicU8 = AtomicU8::new(Route::Auto as u8);

/// Sets the route of files that are opened from now on without a route of their own
/// ([`OpenOptions::route`](crate::OpenOptions::route)).
pub fn set_default_route(route: Route) {
    DEFAULT.store(route as u8, Ordering::Relaxed);
}

pub(crate) fn default_route() -> Route {
    // In the order of their numbers.
    const ALL: [Route; 5] = [Route::Auto, Route::Ring, Route::Inline, Route::Workers, Route::Aio];
    ALL[usize::from(DEFAULT.load(Ordering::Relaxed))]
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: Duration = Duration::from_nanos(230);
    /// The limits for a buffered read of 4 KiB.
    const READ: Limits = Limits {
        quick: Duration::from_nanos(230 * (QUICK + FOR_A_COPY)),
        away: Duration::from_millis(100),
        calls: TIMINGS as u32,
    };

    fn timed() -> Lane {
        let lane = Lane::new();
        lane.is_not_offered(FileSystem::Other);
        lane
    }

    #[test]
    fn one_stall_sends_a_new_lane_to_the_ring_and_one_page_fault_does_not() {
        let lane = timed();
        assert!(!lane.is_away());
        lane.note(Duration::from_millis(100), READ);
        assert!(lane.is_away());
        let lane = timed();
        lane.note(Duration::from_micros(440), READ);
        assert!(!lane.is_away());
        (0..21).for_each(|_| lane.note(Duration::from_micros(70), READ));
        assert!(lane.is_away(), "a device's time over and over");
    }

    #[test]
    fn after_quick_calls_a_preempted_call_changes_nothing_and_a_stall_does() {
        let lane = timed();
        (0..600).for_each(|_| lane.note(Duration::from_micros(2), READ));
        lane.note(Duration::from_millis(4), READ);
        assert!(!lane.is_away(), "a scheduler's slice");
        lane.note(Duration::from_millis(100), READ);
        assert!(lane.is_away(), "a stall");
        let until = lane.away_until.load(Ordering::Relaxed) - now();
        assert!(until > 9_000_000_000, "a hundred times the stall, {until} ns");
    }

    #[test]
    fn a_lane_whose_calls_keep_waiting_leaves_for_longer_each_time() {
        let lane = timed();
        (0..600).for_each(|_| lane.note(Duration::from_micros(2), READ));
        let slow = (0..1000).position(|_| {
            lane.note(Duration::from_micros(120), READ);
            lane.is_away()
        });
        assert!(slow.is_some_and(|calls| calls < 200), "{slow:?}");
        let mut last = 0;
        for _ in 0..20 {
            lane.away_until.store(1, Ordering::Relaxed);
            assert!(!lane.is_away(), "tried again");
            let slow = (0..64).position(|_| {
                lane.note(Duration::from_micros(120), READ);
                lane.is_away()
            });
            assert!(slow.is_some_and(|calls| calls < 16), "{slow:?} on trial");
            let away = lane.away_until.load(Ordering::Relaxed).saturating_sub(now());
            // The thread may have been stopped for a while since.
            assert!(away * 4 > last * 3, "{away} after {last}");
            last = away.min(LONGEST_AWAY.as_nanos() as u64 - 2_000_000_000);
        }
        (0..=FORGIVEN_AFTER).for_each(|_| lane.note(Duration::from_micros(2), READ));
        assert_eq!(lane.times_away.load(Ordering::Relaxed), 0, "forgiven");
    }

    #[test]
    fn after_waiting_operations_few_are_attempted_until_one_does_not_wait() {
        let lane = Lane::new();
        lane.is_offered(false);
        let cold = |lane: &Lane, times: u32| (0..times).filter(|_| lane.is_cold()).count();
        for _ in 0..COLD {
            assert_eq!(cold(&lane, 10), 0);
            lane.would_wait();
        }
        assert_eq!(cold(&lane, 10 * LOOKS), 10 * (LOOKS as usize - 1));
        lane.would_wait();
        assert_eq!(cold(&lane, 10 * LOOKS), 10 * (LOOKS as usize - 1));
        lane.did_not_wait();
        assert_eq!(cold(&lane, 10), 0);
    }

    #[test]
    fn one_call_in_eight_is_sampled_whatever_the_distance_of_their_offsets() {
        for step in [1, 512, 4097, 32 << 10, 1 << 20, 12_345] {
            let looks = (0..8000).filter(|n| is_one_in(8, n * step)).count();
            assert!((800..1200).contains(&looks), "{looks} of 8000 at a distance of {step}");
        }
    }

    #[test]
    fn a_file_is_found_cached_until_one_attempt_would_have_had_to_wait() {
        let lane = Lane::new();
        lane.is_offered(false);
        let asked = |lane: &Lane| (0..800).filter(|number| !lane.is_found_cached(*number)).count();
        (1..FOUND_CACHED).for_each(|_| lane.did_not_wait());
        assert_eq!(asked(&lane), 800);
        lane.did_not_wait();
        assert!((80..120).contains(&asked(&lane)), "{}", asked(&lane));
        lane.was_not_cached();
        assert_eq!(asked(&lane), 800);
    }

    #[test]
    fn a_long_copy_is_not_a_slow_call() {
        let lane = timed();
        lane.note(Duration::from_micros(400), Limits::with(COPY, Kind::Read, false, 1 << 20));
        assert!(!lane.is_away());
    }

    #[test]
    fn limits_are_relative_to_what_a_copy_takes() {
        assert_eq!(Limits::with(COPY, Kind::Read, false, 4096).quick, READ.quick);
        for (kind, direct) in [(Kind::Read, false), (Kind::Write, false), (Kind::Read, true)] {
            for len in [0, 4096, 1 << 20, 1 << 30] {
                let [here, slower] = [COPY, 10 * COPY].map(|copy| Limits::with(copy, kind, direct, len));
                assert_eq!(slower.quick, 10 * here.quick, "{kind:?} {direct} {len}");
                assert_eq!(slower.away, 10 * here.away);
            }
        }
        // Cached reads of an emulated machine, whose copies take 2.3 µs and whose calls on an overlay 30.
        let (took, lane) = (Duration::from_micros(30), timed());
        (0..1000).for_each(|_| lane.note(took, Limits::with(10 * COPY, Kind::Read, false, 4096)));
        assert!(!lane.is_away());
        (0..1000).for_each(|_| lane.note(took, READ));
        assert!(lane.is_away(), "on a fast machine such a read has waited");
    }
}
