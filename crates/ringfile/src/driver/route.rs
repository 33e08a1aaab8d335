//! Which way an operation goes: the ring (or AIO in its place), an inline call, or a worker.
//!
//! A file's own first operations tell, for reads and writes apart: they carry `RWF_NOWAIT`. Where the kernel takes that
//! (`EAGAIN` counts), the ring does such operations without its workers. Where it has none (`EOPNOTSUPP`), the ring would
//! hand each to a kernel thread, which costs 7 to 60 µs; a plain call then is cheaper if what it does is a memory copy.
//! That is known for tmpfs and ramfs; elsewhere the time of the calls tells.
//!
//! What always holds: inline calls that turn out slow cost a loop a few per cent of its time at most ([`Lane::note`]).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::copy_time;
use super::op::{Kind, Request};
use super::target::{FileKind, Target};
use crate::event;

/// Which way a file's operations go.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("ringfile-doc-route-{}", std::process::id()));
/// # std::fs::write(&path, "content")?;
/// use ringfile::{OpenOptions, Route};
/// // A plain call on this thread, whatever the file is.
/// let file = OpenOptions::new().read(true).route(Route::Inline).open(&path)?;
/// let buffer = ringfile::block_on(file.read_at(Vec::with_capacity(100), 0))?;
/// assert_eq!(buffer, b"content");
/// # if std::env::var_os("RINGFILE_BACKEND").is_none() {
/// assert_eq!(ringfile::thread_metrics().inline_ops, 1);
/// # }
/// # std::fs::remove_file(&path)
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
#[repr(u8)]
pub enum Route {
    /// The cheapest, found from the file's own first operations, for reads and writes apart.
    #[default]
    Auto,
    /// io_uring. Where no ring can be had, operations fail with an error that says why. What this kernel's rings do not have goes
    /// to workers, and so do direct writes on FUSE: io_uring may write the rest of a short one in the wrong place.
    Ring,
    /// A plain call on the thread that polls: nothing overlaps, and a slow file holds up the thread's other tasks.
    Inline,
    /// A plain call on a thread of a small pool.
    Workers,
    /// Linux AIO, for files opened for direct I/O; reads and writes of others fail. Writes that make the file longer go to
    /// workers, since AIO would hold the thread up until they are over; syncs and the like go to the ring, or to workers.
    /// Where no AIO can be had, operations fail with an error that says why. `Auto` takes AIO for direct I/O where no ring
    /// can be had.
    Aio,
}

/// The route that an operation took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    Inline,
    Workers,
}

/// What to do with an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// The ring, or AIO where there is none, or where the route says so.
    Ring,
    /// A call that must not wait; if it would, the ring.
    Attempt,
    Inline,
    Workers,
}

/// Nothing was found out yet.
const UNKNOWN: u8 = 0;
/// The file has non-blocking I/O through the page cache.
const OFFERED: u8 = 1;
/// It has non-blocking direct I/O: the ring keeps the device's queue filled.
const QUEUED: u8 = 4;
/// It has none; its files are memory.
const MEMORY: u8 = 2;
/// It has none, and what its calls take has to be seen.
const TIMED: u8 = 3;

/// Limits on time are in copies of 4 KiB ([`copy_time`]), which took 0.23 µs where they were found.
///
/// A call this quick is a memory copy, with a copy's time ([`FOR_A_COPY`]) added. Cached reads took 4 to 9 copies on every
/// file system, and the cheapest hand-over to a kernel thread 30. With a limit of 87, reads that a quick FUSE server
/// answered in 78 stayed inline, where the ring has three of them in the time of one.
const QUICK: u64 = 35;
/// For buffered writes: where the cache lies in large pieces (folios), marking a page dirty took 122 copies of pure work on
/// ext4, which the ring's workers do no faster. What a write waits for, a read or the disk's throttling, takes longer.
const QUICK_WRITE: u64 = 435;
/// For direct I/O: less than any drive takes that has a queue worth keeping filled, and more than zram does.
const QUICK_DIRECT: u64 = 22;
/// What is added for each 4 KiB that are moved: memory may be cold (2 GB/s where a copy took 0.23 µs).
const FOR_A_COPY: u64 = 9;

/// Where a lane's score begins, and begins again: a file that waits 1 ms each time leaves with the second call, one that
/// waits 70 µs within 10. One such call tells nothing: the first touch of a pool's memory may have the kernel clear a huge
/// page, which takes 150 to 440 µs.
const ON_TRIAL: u32 = FULL - 64;
/// The score at which a lane leaves for the ring. A slow call adds how many times slower than quick it was, a quick one
/// takes one away: a thread that was preempted for a few milliseconds does not show, calls that wait over and over do.
const FULL: u32 = 512;
/// One call adds no more than this, unless it took longer than [`STALL`].
const MOST_FOR_ONE: u32 = 256;
/// No scheduler's doing: the call waited.
const STALL: Duration = Duration::from_millis(20);

/// How long a lane keeps to the ring: a hundred times what the slow call took, so that trying again costs one per cent,
/// but at least this (100 ms where a copy took 0.23 µs), doubled each time that the first call afterwards is slow again.
const AWAY: u32 = 435_000;
const LONGEST_AWAY: Duration = Duration::from_secs(60);
/// Quick calls after which a lane's past is forgotten.
const FORGIVEN_AFTER: u32 = 4096;

/// What inline calls of a kind are measured by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// What a call takes at most that does not wait.
    quick: Duration,
    /// How long a lane keeps to the ring at least.
    away: Duration,
}

impl Limits {
    /// For a call that moved `len` bytes on this machine.
    pub(crate) fn of(kind: Kind, direct: bool, len: usize) -> Self {
        Self::with(copy_time::get(), kind, direct, len)
    }

    /// As [`of`](Self::of), where a copy takes this long.
    fn with(copy: Duration, kind: Kind, direct: bool, len: usize) -> Self {
        let quick = match (direct, kind.is_write()) {
            (true, _) => QUICK_DIRECT,
            (false, true) => QUICK_WRITE,
            (false, false) => QUICK,
        };
        let copy_nanos = copy.as_nanos() as u64;
        let moved = copy_nanos * FOR_A_COPY * len as u64 / copy_time::BYTES as u64;
        Self { quick: Duration::from_nanos(copy_nanos * quick + moved), away: copy * AWAY }
    }
}

/// One direction of one file.
pub(crate) struct Lane {
    state: AtomicU8,
    score: AtomicU32,
    times_away: AtomicU32,
    quick: AtomicU32,
    /// Until when it keeps to the ring, in nanoseconds of [`now`]; 0 where it does not.
    away_until: AtomicU64,
}

/// Nanoseconds since the first call.
fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

/// Sets what [`now`] counts from, so that no thread is at it in a fork.
pub(super) fn prepare_clock() {
    now();
}

impl Lane {
    pub(crate) const fn new() -> Self {
        Self {
            state: AtomicU8::new(UNKNOWN),
            score: AtomicU32::new(ON_TRIAL),
            times_away: AtomicU32::new(0),
            quick: AtomicU32::new(0),
            away_until: AtomicU64::new(0),
        }
    }

    /// Forgets everything: the file is not what it was.
    pub(crate) fn reset(&self) {
        self.state.store(UNKNOWN, Ordering::Relaxed);
        self.score.store(ON_TRIAL, Ordering::Relaxed);
        self.away_until.store(0, Ordering::Relaxed);
    }

    /// Notes that the kernel took `RWF_NOWAIT`, or said `EAGAIN`.
    pub(crate) fn is_offered(&self, direct: bool) {
        let state = if direct { QUEUED } else { OFFERED };
        // Noted with each operation, and a store would take the line from the other threads that read it.
        if self.state.load(Ordering::Relaxed) != state {
            self.state.store(state, Ordering::Relaxed);
        }
    }

    /// Notes that the kernel has no non-blocking I/O here.
    pub(crate) fn is_not_offered(&self, file_system: FileSystem) {
        let state = match file_system {
            FileSystem::Memory => MEMORY,
            FileSystem::Fuse | FileSystem::Other => TIMED,
        };
        self.state.store(state, Ordering::Relaxed);
    }

    /// Whether inline calls must be timed.
    pub(crate) fn is_timed(&self) -> bool {
        self.state.load(Ordering::Relaxed) == TIMED
    }

    fn is_away(&self) -> bool {
        let until = self.away_until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        if now() < until {
            return true;
        }
        // Back, on trial: few slow calls send it away again.
        self.score.store(ON_TRIAL, Ordering::Relaxed);
        self.away_until.store(0, Ordering::Relaxed);
        false
    }

    /// Notes how long an inline call took.
    pub(crate) fn note(&self, took: Duration, limits: Limits) {
        let Limits { quick, away } = limits;
        if took <= quick {
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
        let times = (took.as_nanos() / quick.as_nanos().max(1)).min(MOST_FOR_ONE.into()) as u32;
        let weight = if took >= STALL { FULL } else { times };
        let score = self.score.load(Ordering::Relaxed).saturating_add(weight);
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
                "inline calls are slow here, operations go to the ring for a while"
            );
        });
        self.away_until.store(now() + away.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// What of a file's file system its routes depend on, besides what its first operations show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileSystem {
    /// Its files are memory.
    Memory,
    /// A program answers. Where that bypasses the page cache (`FOPEN_DIRECT_IO`), Linux waits for its answer to a buffered
    /// read within `io_uring_enter` (5.10, 6.1 and 6.12 do, 6.18 does not): FUSE can be polled, which counts as not having
    /// to wait (`io_file_supports_nowait`), and its reads were asynchronous with `O_DIRECT` alone.
    Fuse,
    Other,
}

/// The lanes of a file, and what its user wants.
pub(crate) struct Lanes {
    route: Route,
    file_system: FileSystem,
    read: Lane,
    write: Lane,
}

impl Lanes {
    pub(crate) fn new(route: Route, file_system: FileSystem) -> Self {
        Self { route, file_system, read: Lane::new(), write: Lane::new() }
    }

    pub(crate) fn route(&self) -> Route {
        self.route
    }

    pub(crate) fn lane(&self, kind: Kind) -> &Lane {
        if kind.is_read() { &self.read } else { &self.write }
    }

    pub(crate) fn file_system(&self) -> FileSystem {
        self.file_system
    }

    pub(crate) fn reset(&self) {
        self.read.reset();
        self.write.reset();
    }

    /// Whether an operation goes to the ring of its own thread without further thought.
    #[inline]
    pub(crate) fn goes_to_ring(&self, kind: Kind) -> bool {
        match self.route {
            Route::Auto => self.lane(kind).state.load(Ordering::Relaxed) == QUEUED || !kind.moves_data(),
            Route::Ring | Route::Aio => true,
            Route::Inline | Route::Workers => false,
        }
    }

    /// Whether such an operation fails where what the route names can't be had.
    pub(crate) fn insists(&self, kind: Kind) -> bool {
        match self.route {
            Route::Ring => true,
            Route::Aio => kind.moves_data(),
            Route::Auto | Route::Inline | Route::Workers => false,
        }
    }

    /// Whether AIO may have an operation that moves data. Not where the file has no non-blocking I/O: `io_submit` would wait
    /// there, as the plain call does.
    pub(crate) fn lets_aio(&self, kind: Kind) -> bool {
        match self.route {
            Route::Aio => true,
            Route::Auto => matches!(self.lane(kind).state.load(Ordering::Relaxed), UNKNOWN | QUEUED),
            Route::Ring | Route::Inline | Route::Workers => false,
        }
    }

    /// Whether an operation goes to the ring where it is submitted with many others: the kernel takes them all with one
    /// system call, and does without a worker what needs not wait. 8 cached reads of 4 KiB took 0.87 of the time of as many
    /// calls with `RWF_NOWAIT`, 64 took 0.8; inside of fio, 0.92.
    #[inline]
    pub(crate) fn goes_together(&self, kind: Kind) -> bool {
        self.route == Route::Auto && self.lane(kind).state.load(Ordering::Relaxed) == OFFERED
    }

    /// Whether an operation that goes to the ring may be a plain call where its thread does nothing but wait for it: one
    /// direct read of 4 KiB took 17 to 18 µs of CPU time by the call, and 19 to 22 by the ring. A pipe is not waited for in
    /// a call, which nobody could end.
    pub(crate) fn may_wait_inline(&self, target: &Target, request: &Request) -> bool {
        let plain = request.kind.moves_data() && request.op_flags == 0 && !request.linked;
        self.route == Route::Auto
            && plain
            && target.kind != FileKind::Other
            && target.ring.announces()
            && !workers_are_forced()
    }

    /// Which way an operation goes.
    pub(crate) fn choose(&self, target: &Target, request: &Request) -> Choice {
        if workers_are_forced() && !self.insists(request.kind) {
            return Choice::Workers;
        }
        match self.route {
            Route::Ring | Route::Aio => return Choice::Ring,
            Route::Inline => return Choice::Inline,
            Route::Workers => return Choice::Workers,
            Route::Auto => {}
        }
        // A pipe may keep its reader waiting for ever.
        let waits = target.kind == FileKind::Other || !target.ring.announces() || request.linked;
        if waits || !request.kind.moves_data() {
            return Choice::Ring;
        }
        // Flags for a write alone have it wait until it is durable.
        if (request.op_flags != 0 || target.cache_flags() != 0) && self.file_system != FileSystem::Memory {
            return Choice::Ring;
        }
        // What an attempt has appended before it would have to wait would be appended again.
        if target.appends && request.kind.is_write() {
            return Choice::Ring;
        }
        let lane = self.lane(request.kind);
        match lane.state.load(Ordering::Relaxed) {
            UNKNOWN => Choice::Attempt,
            MEMORY => Choice::Inline,
            TIMED if lane.is_away() => Choice::Ring,
            TIMED => Choice::Inline,
            QUEUED => Choice::Ring,
            // A call that need not wait is a memory copy, and cheaper than a ring's entry and completion (by itself: see
            // `goes_together`); one that would have to costs less than 1 µs before the ring does it.
            _ => Choice::Attempt,
        }
    }
}

/// What the process may use, as `RINGFILE_BACKEND` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Backend {
    /// What there is.
    Any = 1,
    /// No io_uring, and no AIO.
    Workers,
    /// No io_uring.
    Aio,
}

/// Read once.
#[inline]
pub(crate) fn backend() -> Backend {
    /// 0: not read yet. No `OnceLock`: a forked child might find it half done.
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        1 => Backend::Any,
        2 => Backend::Workers,
        3 => Backend::Aio,
        _ => read_backend(&KNOWN),
    }
}

/// Whether `RINGFILE_BACKEND=workers` is set.
#[inline]
pub(crate) fn workers_are_forced() -> bool {
    backend() == Backend::Workers
}

#[cold]
fn read_backend(known: &AtomicU8) -> Backend {
    let value = std::env::var("RINGFILE_BACKEND").unwrap_or_default();
    let backend = match value.as_str() {
        "workers" => Backend::Workers,
        "aio" => Backend::Aio,
        _ => Backend::Any,
    };
    let is_first = known.swap(backend as u8, Ordering::Relaxed) == 0;
    if is_first && backend == Backend::Any && !value.is_empty() {
        event::defer(move || {
            tracing::warn!(value, "RINGFILE_BACKEND is neither empty nor `workers` nor `aio`, and ignored");
        });
    }
    backend
}

static DEFAULT: AtomicU8 = AtomicU8::new(Route::Auto as u8);

/// Sets the route of files that are opened from now on without one of their own ([`OpenOptions::route`](crate::OpenOptions::route)).
pub fn set_default_route(route: Route) {
    DEFAULT.store(route as u8, Ordering::Relaxed);
}

pub(crate) fn default_route() -> Route {
    match DEFAULT.load(Ordering::Relaxed) {
        1 => Route::Ring,
        2 => Route::Inline,
        3 => Route::Workers,
        4 => Route::Aio,
        _ => Route::Auto,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: Duration = Duration::from_nanos(230);
    /// Those of a buffered read of 4 KiB.
    const READ: Limits =
        Limits { quick: Duration::from_nanos(230 * (QUICK + FOR_A_COPY)), away: Duration::from_millis(100) };

    fn timed() -> Lane {
        let lane = Lane::new();
        lane.is_not_offered(FileSystem::Other);
        lane
    }

    #[test]
    fn a_stall_at_first_is_enough_and_a_page_fault_is_not() {
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
    fn after_quick_calls_a_preempted_one_changes_nothing_and_a_stall_does() {
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
    fn calls_that_wait_over_and_over_leave_and_each_time_for_longer() {
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
            assert!(away + 1_000_000 > last, "{away} after {last}");
            last = away.min(LONGEST_AWAY.as_nanos() as u64 - 2_000_000_000);
        }
        (0..=FORGIVEN_AFTER).for_each(|_| lane.note(Duration::from_micros(2), READ));
        assert_eq!(lane.times_away.load(Ordering::Relaxed), 0, "forgiven");
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
