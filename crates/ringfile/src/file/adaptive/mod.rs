//! Adaptive files: cached data is read from the page cache, other data by direct I/O.
//!
//! An adaptive [`File`](super::File) has a second descriptor, with O_DIRECT. This module decides which of the two each
//! read uses; it starts no read itself. [`room`] tells whether memory is free: then all reads go through the cache,
//! except those of a file that is much larger than memory which read nothing again. If it is full, [`sketch`] decides what is worth
//! caching; [`streams`] finds sequential reads, and [`ahead`] reads ahead of them, or lets them pass through the cache
//! and removes what they have brought. After a series of hits, most reads are decided in
//! [`Adaptive::is_own_unchecked`], by a few loads. Invariant: through either descriptor, a read returns what was
//! written before it began, since the kernel writes dirty pages back before a direct read. So the decisions here
//! affect only the speed of a read, even those that are skipped because another thread holds the lock.

mod ahead;
mod follow;
mod piece;
mod room;
mod sketch;
mod streams;

use std::cell::Cell;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::OFlags;
use rustix::io::Errno;

use self::ahead::ReadAhead;
pub(super) use self::follow::Follow;
pub use self::room::assume_memory_is_free;
use self::sketch::{BLOCK, RANDOM_READS_BEFORE, READS_BEFORE, Sketch};
pub(crate) use self::streams::Id;
use self::streams::Membership;
use super::probe::magic;
use crate::counters::CacheEvent;
use crate::descriptor;
use crate::driver::{self, Kind, Request, Target, cached_pages};
use crate::memory::{IoMemory, page_size};
use ringfile_buffer::internal::event;

/// After this many hits in a row, only some reads are checked.
const WARM: i32 = 32;
/// After [`WARM`] hits, one in this many reads is checked: a check costs 0.15 µs or more, and a cached read of 4 KiB
/// takes 0.5 µs.
const LOOKS: u8 = 16;
/// After this many checks in a row that found all of a read cached, one in [`HOT_LOOKS`] reads is checked: checking one in
/// 16 took 3 % of the time of cached reads of 4 KiB.
const HOT: i32 = WARM + 64;
const HOT_LOOKS: u8 = 64;
/// After this many reads in a row that found nothing cached, only some are checked. If one read in ten is a hit, such a
/// series is rare.
const COLD: i32 = 64;
/// After [`COLD`] misses, one in this many reads is checked. The others read from the drive, even if data is cached.
const COLD_LOOKS: u8 = 8;

/// The share of reads that read data again is an average in which a read weighs one part in so many.
const REREADS_OVER: u32 = 64;
/// All reads, as a share.
const ALL: u32 = 1 << 16;
/// From this share on, sequential reads that read data again are admitted: the sketch may take one in ten for others.
const MANY: u32 = ALL / 4;

/// While memory is free, a random read that reads data again is admitted from this share on: then the program is about to
/// read all again. Below it, as if memory were full. Of a program's ranges at random, a third is repeated when it has read
/// half of the file, and few of these a third time: on a machine where the cache takes four times the time of a direct read of
/// 128 KiB to fill, admitting each of them made it 0.57 as fast as direct reads.
const MOST: u32 = ALL / 3 * 2;

/// Reads of a file this many times as large as memory are admitted as if memory were full, even if it is free. If all
/// are admitted, most leave the cache before they are read again. In a control group of 512 MiB, a read of 128 KiB that is
/// admitted took 45 µs of CPU time, one that hit 20 µs, and a direct one 5 µs; of 4 KiB 15, 1.5 and 6 µs.
const VAST: u64 = 2;
/// From this share on, small reads of a vast file are admitted like those of others: of uniform random reads of a file four
/// times as large as memory, a quarter reads data again that was kept.
const LIKELY: u32 = ALL / 8 * 3;

/// Random reads shorter than this are admitted at once while memory is free: through the cache, cold ones are about as fast
/// (0.86 to 1.0 of the rate of direct ones at 4 KiB). Longer ones are admitted when their own data is read again: of 16 KiB
/// 0.62, and data that is read once gains nothing.
const AT_ONCE: usize = 16 << 10;

/// Whether the file is [`VAST`].
const UNKNOWN: u8 = 0;
const IS_NOT_VAST: u8 = 1;
const IS_VAST: u8 = 2;

/// A thread reads in order after so many reads of which each began where the one before ended.
const IN_ORDER: u8 = 4;
/// The count of a thread that has not read yet.
const NO_READ: u8 = u8::MAX;

/// A read longer than this is counted only as far as the file goes, which costs a system call.
const ASK_SIZE: usize = 1 << 20;

/// File systems whose cache `cachestat` does not see (include/uapi/linux/magic.h; the number of ZFS is its own):
/// overlayfs and ZFS.
const UNSEEN: [u32; 2] = [0x794c_7630, 0x2fc1_2fc1];

/// Which descriptor a read uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Descriptor {
    /// Not decided yet, if the file is adaptive.
    #[default]
    Open,
    /// The file's own descriptor.
    Own,
    /// The descriptor of the file's direct twin.
    Direct,
}

impl Descriptor {
    /// Returns its index among the file's [`targets`](super::File::targets).
    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self == Self::Direct)
    }
}

/// How a read is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Reads the whole range through one descriptor.
    By(Descriptor),
    /// Reads this many bytes from the cache, if they are still there, and the rest directly, in pieces (see
    /// [`unaligned`](super::unaligned)).
    CachedBeginning(usize),
    /// The read continues a stream, and its data may have been read ahead: see [`Follow`].
    Stream(Id),
}

/// How much of a read's range is in the page cache.
enum Cached {
    All,
    Nothing,
    /// A part of it, of which this many bytes are at the beginning.
    Some(usize),
}

pub(super) const OWN: Way = Way::By(Descriptor::Own);
const DIRECT: Way = Way::By(Descriptor::Direct);

/// The additional state of an adaptive file.
pub(crate) struct Adaptive {
    /// The second descriptor. It may turn out not to be direct.
    pub(super) direct: Arc<Target>,
    /// If positive, how many checks in a row found all in the cache, up to [`HOT`]; if negative, how many found nothing
    /// there, up to [`COLD`].
    streak: AtomicI32,
    /// Which share of the recent reads read data again, in parts of [`ALL`]: of those that do not go through the cache
    /// at once because they are small.
    rereads: AtomicU32,
    /// Created when the first read misses the cache. If another thread holds the lock, the read is not counted.
    sketch: Mutex<Option<Sketch>>,
    /// Whether the file was [`VAST`] times as large as the memory that this process may use, when it was first read.
    vast: AtomicU8,
    ahead: Arc<ReadAhead>,
}

/// Returns whether the file can be read, and the kernel reports what the cache holds of it. Checked before the second
/// descriptor is opened: closing that one again would drop the process's record locks on the file (`fcntl(2)`).
pub(super) fn is_possible(own: &Target) -> bool {
    let fd = own.as_fd();
    let is_readable = rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags & OFlags::RWMODE != OFlags::WRONLY);
    if !is_readable || UNSEEN.contains(&magic(fd)) {
        return false;
    }
    let seen = cached_pages(own, 0, 1);
    if let Err(errno) = seen {
        event::emit(|| {
            tracing::debug!(errno, "the kernel does not report what is cached, using buffered I/O")
        });
    }
    seen.is_ok()
}

/// Opens the same file once more, for reading with O_DIRECT. `None` if that fails.
pub(super) fn open_again(own: &impl AsFd) -> Option<OwnedFd> {
    let fd = own.as_fd();
    let flags = rustix::fs::fcntl_getfl(fd).ok()?;
    descriptor::open_again(fd, OFlags::RDONLY | OFlags::DIRECT | (flags & OFlags::NOATIME))
        .inspect_err(|errno: &Errno| {
            event::emit(|| {
                tracing::debug!(%errno, "could not open a second descriptor for direct I/O, using buffered I/O");
            });
        })
        .ok()
}

/// What a thread remembers of its reads of a file.
#[derive(Clone, Copy)]
struct RecentReads {
    /// Reads since it last checked the cache, or [`NO_READ`].
    unseen: u8,
    /// How many reads in a row began where the one before ended, up to [`IN_ORDER`].
    run: u8,
    /// Where the last one ended.
    end: u64,
}

thread_local! {
    /// By the low bits of the file's number. With a single count, a file might never be checked if two files are read
    /// in turn.
    static RECENT: [Cell<RecentReads>; 32] =
        const { [const { Cell::new(RecentReads { unseen: NO_READ, run: 0, end: 0 }) }; 32] };
}

/// Counts a read. Returns how many were counted since the last one that was checked, if this one is to be checked
/// because one in `every` reads is, and [`RecentReads::run`]. A thread's first read is checked, since a thread may end
/// soon.
fn recent_reads(own: &Target, range: &Range<u64>, every: u8) -> (Option<u64>, u8) {
    with_recent(own, |file| {
        let recent = file.get();
        let (checks, run) = (recent.checks(every), recent.run_with(range.start));
        let counted = if recent.unseen == NO_READ { 1 } else { recent.unseen + 1 };
        file.set(RecentReads { unseen: if checks { 0 } else { counted }, run, end: range.end });
        (checks.then_some(counted.into()), run)
    })
}

#[inline]
fn with_recent<R>(own: &Target, with: impl FnOnce(&Cell<RecentReads>) -> R) -> R {
    RECENT.with(|files| with(&files[own.number as usize % files.len()]))
}

impl RecentReads {
    /// Returns whether the next read is checked, if one in `every` is.
    #[inline]
    fn checks(self, every: u8) -> bool {
        self.unseen >= every - 1
    }

    /// Returns the run with a read at `offset`.
    #[inline]
    fn run_with(self, offset: u64) -> u8 {
        if offset == self.end { (self.run + 1).min(IN_ORDER) } else { 0 }
    }
}

impl Adaptive {
    pub(super) fn new(own: &Target, direct: Arc<Target>) -> Self {
        Self {
            direct,
            streak: AtomicI32::new(0),
            rereads: AtomicU32::new(0),
            sketch: Mutex::new(None),
            vast: AtomicU8::new(UNKNOWN),
            ahead: ReadAhead::new(own),
        }
    }

    /// Returns whether a non-empty read uses the file's own descriptor without a check, as most do if the last ones
    /// have hit. Counts the read if it returns true; then [`Adaptive::choose`], which decides otherwise, would return
    /// [`OWN`].
    #[inline]
    pub(super) fn is_own_unchecked(&self, own: &Target, request: &Request) -> bool {
        let streak = self.streak.load(Ordering::Relaxed);
        let is_warm = streak >= WARM;
        let is_quick = || request.want < AT_ONCE && room::is_free() && self.admits_small();
        let may_be_own = is_warm || is_quick();
        if !may_be_own || self.ahead.any_passes() {
            return false;
        }
        with_recent(own, |file| {
            let recent = file.get();
            let run = recent.run_with(request.offset);
            // One that is not warm may begin or continue a stream.
            let is_unchecked =
                !recent.checks(looks_after(streak)) && (is_warm || (run == 0 && request.offset != 0));
            if is_unchecked {
                let end = request.offset + request.want as u64;
                file.set(RecentReads { unseen: recent.unseen + 1, run, end });
            }
            is_unchecked
        })
    }

    /// Decides how a read is carried out: see [`File::choose`](super::File::choose). `own` is the adaptive file's own
    /// target.
    #[cold]
    pub(super) fn choose(&self, own: &Target, request: &Request, memory: &IoMemory, alone: bool) -> Way {
        let way = self.decide(own, request, alone && request.kind == Kind::Read);
        if let (Kind::Read, Way::CachedBeginning(_)) = (request.kind, way) {
            driver::count_cache(CacheEvent::Partial, 1);
        }
        if request.kind == Kind::Read || way == OWN {
            return way;
        }
        // A vectored read either bypasses the cache as a whole, or not at all.
        let fits = self.direct.direct().is_none_or(|direct| direct.fits(request, memory));
        Way::By(if fits { Descriptor::Direct } else { Descriptor::Own })
    }

    /// Begins to take the data of a read of `want` bytes, which continues this stream, from what was read ahead, and
    /// starts reading ahead of it.
    pub(super) fn follow(&self, own: &Target, id: Id, want: usize) -> Box<Follow> {
        let has_started = self.ahead.go_on(own, &self.direct, id, want as u64);
        Box::new(Follow::new(Arc::clone(&self.ahead), id, has_started))
    }

    fn decide(&self, own: &Target, request: &Request, follows: bool) -> Way {
        if self.direct.direct().is_none() {
            return OWN;
        }
        let is_small = is_small(request);
        let range = request.offset..request.offset + request.want as u64;
        if follows
            && is_small
            && self.ahead.any_passes()
            && let Some(through) = self.ahead.passes(own, &range)
        {
            return if through { OWN } else { DIRECT };
        }
        if self.vast.load(Ordering::Relaxed) == UNKNOWN {
            self.find_size(own);
        }
        let is_free = room::is_free()
            && if is_small { self.admits_small() } else { self.vast.load(Ordering::Relaxed) != IS_VAST };
        // Goes through the cache. It is not counted, and `cachestat` is asked for a sample only, unless it belongs to a stream.
        let is_quick = is_free && request.want < AT_ONCE;
        let streak = self.streak.load(Ordering::Relaxed);
        let (is_warm, is_cold) = (streak >= WARM, streak <= -COLD);
        let every = match (is_warm || is_quick, is_cold) {
            (true, _) => looks_after(streak),
            (_, true) => COLD_LOOKS,
            (false, false) => 1,
        };
        let (unseen, run) = recent_reads(own, &range, every);
        let looks = unseen.is_some();
        if looks {
            room::look();
        } else if is_warm {
            return OWN;
        }
        // What is admitted is followed too: read ahead, a stream takes a fifth of the time that the cache needs for it.
        // Finding out that a small read that does not continue this thread's last one belongs to no stream costs up to
        // a tenth of the read.
        let may_follow = follows && (!is_quick || looks || run > 0);
        let place = if is_free && may_follow { self.ahead.note(&range) } else { Membership::Alone };
        let stream_of = |place| {
            if let Membership::InStream(id, is_steady) = place { Some((id, is_steady)) } else { None }
        };
        let mut stream = stream_of(place);
        // The kernel would read ahead of a file's first byte.
        let mut is_random = place == Membership::Alone && !(follows && (request.offset == 0 || run > 0));
        // The kernel's read-ahead is faster than small direct reads, even several at once.
        if is_quick && let Some((id, _)) = stream.take_if(|(id, _)| self.ahead.has_several(*id)) {
            self.ahead.ended(id);
            is_random = true;
        }
        let cached = if looks || (is_free && !is_random && place != Membership::OneOfSeveral) {
            self.cached(own, request)
        } else {
            Cached::Nothing
        };
        if looks || !is_quick {
            let reads = if is_warm || is_quick { unseen.unwrap_or(1) } else { 1 };
            self.count(&cached, streak, reads);
            if is_quick && is_random && !matches!(cached, Cached::All) {
                driver::count_cache(CacheEvent::Admitted, reads);
            }
            if is_quick && self.vast.load(Ordering::Relaxed) == IS_VAST {
                // This one stands for those that were not checked.
                (0..reads).for_each(|_| self.note_reread(matches!(cached, Cached::All)));
            }
        }
        let is_own = match cached {
            Cached::All => {
                if !is_quick {
                    self.note_reread(true);
                }
                if run == IN_ORDER && !is_free && streak >= WARM - 1 {
                    self.stay_warm(own, request, looks_after(streak + 1));
                }
                true
            }
            Cached::Nothing | Cached::Some(_) => {
                (is_quick && is_random) || self.admits(own, request, is_free, is_random, run)
            }
        };
        if is_own || matches!(cached, Cached::Some(_)) {
            stream.inspect(|(id, _)| self.ahead.ended(*id));
        }
        match cached {
            _ if is_own => return OWN,
            Cached::Some(bytes) if bytes > 0 => return Way::CachedBeginning(bytes),
            Cached::All | Cached::Nothing if follows => {}
            Cached::All | Cached::Nothing | Cached::Some(_) => return DIRECT,
        }
        let stream = if is_free { stream } else { stream_of(self.ahead.note(&range)) };
        let Some((id, is_steady)) = stream else { return DIRECT };
        let way = if is_small && self.ahead.lets_pass(own, id) {
            // The kernel's read-ahead is faster than small direct reads, and what it has brought leaves the cache
            // again.
            OWN
        } else if is_steady && !self.ahead.is_quiet(own) {
            // Data that was read ahead could not be trusted here, so the kernel reads ahead into the cache.
            self.ahead.drop_pieces();
            OWN
        } else if !looks && !is_free && !matches!(self.cached(own, request), Cached::Nothing) {
            // If data is cached, data that was read ahead must not be used, since it may be older.
            DIRECT
        } else {
            return Way::Stream(id);
        };
        self.ahead.ended(id);
        way
    }

    /// Decides whether a read that has missed goes through the cache, so that its data stays there. A small read gets
    /// here if it begins or continues a stream, or if memory is full.
    fn admits(&self, own: &Target, request: &Request, is_free: bool, is_random: bool, run: u8) -> bool {
        let (is_small, rereads) = (is_small(request), self.rereads.load(Ordering::Relaxed));
        let is_likely = if is_random { rereads >= MOST } else { !is_small };
        let enough = match (is_small && self.admits_small()) || run > 0 {
            _ if is_free && is_likely => 1,
            true => READS_BEFORE,
            false => RANDOM_READS_BEFORE,
        };
        let times = self.times_read(own, request);
        let was_read = times >= enough;
        self.note_reread(times >= if is_free { 1 } else { enough });
        // Two reads in a row make the kernel read ahead, and all that follows is then found in the cache. So a few wrong counts
        // must not admit any.
        let is_admitted = was_read && (!is_free || is_random || rereads >= MANY);
        if is_admitted {
            driver::count_cache(CacheEvent::Admitted, 1);
        }
        is_admitted
    }

    /// Lets the next reads of a thread that reads in order be checked if they leave what is cached: one that was not
    /// checked would go through the cache, and make the kernel read ahead, so that all that follows would be found in
    /// the cache.
    fn stay_warm(&self, own: &Target, request: &Request, every: u8) {
        let end = request.offset + request.want as u64;
        let next = Request { offset: end, want: request.want.saturating_mul(every.into()), ..*request };
        if !matches!(self.cached(own, &next), Cached::All) {
            self.streak.store(0, Ordering::Relaxed);
        }
    }

    /// Records whether a read read data again. Two threads at once may count one read instead of two.
    fn note_reread(&self, is_one: bool) {
        let share = self.rereads.load(Ordering::Relaxed);
        let part = if is_one { ALL / REREADS_OVER } else { 0 };
        let now = share - share / REREADS_OVER + part;
        if now != share {
            self.rereads.store(now, Ordering::Relaxed);
        }
    }

    /// Adds the result of a check, which counts for so many reads, to the streak, which was `streak`. Two threads at
    /// once may count one read instead of two.
    fn count(&self, found: &Cached, streak: i32, reads: u64) {
        let (event, reads, now) = match found {
            Cached::All => (CacheEvent::Hit, reads, (streak.max(0) + 1).min(HOT)),
            Cached::Nothing => (CacheEvent::Miss, reads, streak.clamp(1 - COLD, 0) - 1),
            Cached::Some(_) => (CacheEvent::Miss, reads, 0),
        };
        driver::count_cache(event, reads);
        if now != streak {
            self.streak.store(now, Ordering::Relaxed);
        }
    }

    /// Returns how much of a read's range is cached. A range that reaches beyond the file counts up to its end.
    fn cached(&self, own: &Target, request: &Request) -> Cached {
        let page = page_size() as u64;
        let (start, end) = (request.offset, request.offset + request.want as u64);
        let first = start / page;
        let pages = end.div_ceil(page) - first;
        let cached = |pages: u64| cached_pages(own, first * page, pages * page).unwrap_or(0);
        let all = cached(pages);
        if all == 0 || all == pages {
            return if all == 0 { Cached::Nothing } else { Cached::All };
        }
        // The file may end earlier.
        let size = own.size().unwrap_or(u64::MAX);
        let pages = pages.min(size.div_ceil(page).saturating_sub(first));
        if all == pages {
            return Cached::All;
        }
        let (mut known, mut most) = (0, pages.saturating_sub(1));
        while known < most {
            let middle = (known + most).div_ceil(2);
            if cached(middle) == middle { known = middle } else { most = middle - 1 }
        }
        Cached::Some(((first + known) * page).saturating_sub(start) as usize)
    }

    /// Returns whether small reads are admitted at once while memory is free, and when they come again while it is not.
    #[inline]
    fn admits_small(&self) -> bool {
        match self.vast.load(Ordering::Relaxed) {
            IS_NOT_VAST => true,
            IS_VAST => self.rereads.load(Ordering::Relaxed) >= LIKELY,
            _ => false,
        }
    }

    #[cold]
    fn find_size(&self, own: &Target) {
        let is_vast = own.size().unwrap_or(0) / VAST >= room::bytes().saturating_mul(2);
        self.vast.store(if is_vast { IS_VAST } else { IS_NOT_VAST }, Ordering::Relaxed);
    }

    /// Records a read that missed the cache. Returns how often its data was read before.
    fn times_read(&self, own: &Target, request: &Request) -> u8 {
        let Ok(mut sketch) = self.sketch.try_lock() else { return 0 };
        let make = || {
            let (len, room) = (own.size().unwrap_or(0), room::bytes());
            Sketch::new(len, room)
        };
        let mut range = request.offset..request.offset + request.want as u64;
        if request.want > ASK_SIZE {
            // A long read may end far beyond the file, where there is nothing to count.
            range.end = range.end.min(own.size().unwrap_or(0));
        }
        if range.is_empty() { 0 } else { sketch.get_or_insert_with(make).note(range) }
    }
}

/// Returns whether the read is shorter than a block of the sketch.
#[inline]
fn is_small(request: &Request) -> bool {
    request.want < BLOCK as usize
}

/// Returns N where one in N reads is checked, for a streak of hits, and for small reads while memory is free.
#[inline]
fn looks_after(streak: i32) -> u8 {
    if streak >= HOT { HOT_LOOKS } else { LOOKS }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenOptions;

    #[test]
    fn the_longer_the_streak_of_hits_the_fewer_reads_are_checked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, [1; 4096]).unwrap();
        let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&file).unwrap();
        let Some(adaptive) = file.adaptive() else { return };
        // Large, so that the result does not depend on free memory.
        let read = |at| Request { offset: at << 20, want: BLOCK as usize, ..Request::of(Kind::Read) };
        for (streak, every) in [(-COLD, 1), (0, 1), (WARM - 1, 1), (WARM, 16), (HOT - 1, 16), (HOT, 64)] {
            adaptive.streak.store(streak, Ordering::Relaxed);
            // The next read is checked, so that counting begins with it.
            recent_reads(file.target(), &(0..1), 1);
            let unchecked = |at: &u64| adaptive.is_own_unchecked(file.target(), &read(*at));
            assert_eq!((1..1000).take_while(unchecked).count(), every - 1, "after {streak} hits");
            adaptive.count(&Cached::All, streak, 1);
            assert_eq!(adaptive.streak.load(Ordering::Relaxed), (streak.max(0) + 1).min(HOT));
        }
    }

    #[test]
    fn a_read_far_beyond_the_file_is_counted_as_far_as_the_file_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, vec![1; 3 << 20]).unwrap();
        let file = OpenOptions::new().read(true).adaptive(true).open_blocking(&path).unwrap();
        let Some(adaptive) = file.adaptive() else { return };
        let read = |offset, want| Request { offset, want, ..Request::of(Kind::Read) };
        let expected = [(0, [0, 1, 2, 3]), (2 << 20, [4, 5, 6, 7]), (1 << 50, [0; 4])];
        for (offset, before) in expected {
            let times = [(); 4].map(|()| adaptive.times_read(file.target(), &read(offset, 1 << 50)));
            assert_eq!(times, before, "{offset}");
        }
    }
}
