//! Adaptive files: what is in the page cache is read from it, the rest past it.
//!
//! An adaptive [`File`] has a second descriptor, with O_DIRECT. This decides for each read which of the two it uses; it
//! starts none itself. [`sketch`] says what is worth caching, [`room`] how much memory there may be for that. What always
//! holds: either way a read gives what was written before it began, since the kernel writes dirty pages back before a
//! direct read; so what is decided here, and what is skipped because another thread has the lock, changes only how fast
//! a read is.

mod room;
mod sketch;

use std::cell::Cell;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use self::sketch::Sketch;
use super::io::Operation;
use super::{File, unaligned};
use crate::driver::{self, Ended, Kind, Request, Target, cached_pages};
use crate::error::Result;
use crate::memory::{Held, page_size};
use crate::metrics::CacheEvent;

/// Reads in a row that were found in the cache before only some are looked at.
const WARM: u32 = 32;
/// Of these, one in so many: to look costs 0.15 µs and more, and a cached read of 4 KiB takes 0.5.
const LOOKS: u32 = 16;

/// File systems that keep what they cache where `cachestat` does not see it (include/uapi/linux/magic.h; ZFS: its own).
const UNSEEN: [u32; 2] = [0x794c_7630, 0x2fc1_2fc1];

/// Which descriptor a read uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Descriptor {
    /// To be decided, where the file is adaptive.
    #[default]
    Open,
    /// The file's own.
    Own,
    /// That of the file's direct twin.
    Direct,
}

impl Descriptor {
    /// The file to read.
    #[inline]
    pub(crate) fn of(self, file: &File) -> &File {
        match (self, &file.0.adaptive) {
            (Self::Direct, Some(adaptive)) => &adaptive.direct,
            (Self::Open | Self::Own | Self::Direct, _) => file,
        }
    }
}

/// How a read goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// All of it by one descriptor.
    By(Descriptor),
    /// So many bytes are in the cache; the rest past it.
    CachedBeginning(usize),
}

/// What an adaptive file has besides.
pub(crate) struct Adaptive {
    direct: File,
    /// How many reads in a row were found in the cache, up to [`WARM`].
    hits: AtomicU32,
    /// Made when the first read misses the cache. Where another thread has it, nothing is noted.
    sketch: Mutex<Option<Sketch>>,
}

/// Opens the same file once more, with O_DIRECT, for reading. `None` where that can't be, or what the cache holds can't be
/// seen.
pub(super) fn open_again(own: &impl AsFd) -> Option<std::fs::File> {
    let fd = own.as_fd();
    let flags = rustix::fs::fcntl_getfl(fd).ok()?;
    let magic = rustix::fs::fstatfs(fd).map_or(0, |facts| facts.f_type as u32);
    if flags & OFlags::RWMODE == OFlags::WRONLY || UNSEEN.contains(&magic) {
        return None;
    }
    let again = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | (flags & OFlags::NOATIME);
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let opened = retry_on_intr(|| rustix::fs::open(&path, again, Mode::empty()));
    opened
        .inspect_err(|errno: &Errno| tracing::debug!(%errno, "no second descriptor, going on buffered"))
        .ok()
        .map(Into::into)
}

/// Decides which way a read goes that is not empty; by the file's own descriptor, where that is not adaptive.
#[cold]
pub(crate) fn choose(file: &File, request: &Request, held: &Held) -> Way {
    let Some(adaptive) = &file.0.adaptive else { return Way::By(Descriptor::Own) };
    let way = adaptive.choose(&file.0.target, request);
    if request.kind == Kind::Read || way == Way::By(Descriptor::Own) {
        return way;
    }
    // Several buffers go past the cache as they are, or not.
    let direct = adaptive.direct.0.target.direct();
    let fits = direct.is_none_or(|direct| unaligned::fits(request, held, direct));
    Way::By(if fits { Descriptor::Direct } else { Descriptor::Own })
}

/// Reads the beginning of a range from the cache, of which so many bytes are there, and the rest past it.
pub(super) async fn read_rest(
    file: impl Deref<Target = File>,
    cached: usize,
    request: Request,
    held: Held,
) -> (Held, Result<Ended>) {
    let beginning = Request { want: cached, ..request };
    let (held, result) = read_by(&file, Descriptor::Own, beginning, held).await;
    match result {
        Ok(Ended { done, errno: 0 }) if done == cached => {}
        over => return (held, over),
    }
    let (offset, start) = (request.offset + cached as u64, request.start + cached);
    let rest = Request { offset, start, want: request.want - cached, ..request };
    let (held, result) = read_by(&file, Descriptor::Direct, rest, held).await;
    let add = |ended: Ended| Ended { done: cached + ended.done, ..ended };
    (held, result.map(add).map_err(|error| error.after(cached)))
}

async fn read_by(file: &File, descriptor: Descriptor, request: Request, held: Held) -> (Held, Result<Ended>) {
    let mut read = Operation::new(file, request, held).by(descriptor);
    let result = (&mut read).await;
    (read.take_held(), result)
}

thread_local! {
    /// Reads of warm files since this thread last looked.
    static UNSEEN_READS: Cell<u32> = const { Cell::new(0) };
}

impl Adaptive {
    /// `None` where the kernel does not say what of `own` is in the cache.
    pub(super) fn new(own: &Target, direct: File) -> Option<Self> {
        let seen = cached_pages(own, 0, 1);
        if let Err(errno) = seen {
            tracing::debug!(errno, "what the cache holds can't be seen, going on buffered");
        }
        seen.ok().map(|_| Self { direct, hits: AtomicU32::new(0), sketch: Mutex::new(None) })
    }

    /// Decides which way a read goes. `own` is the adaptive file's own target.
    fn choose(&self, own: &Target, request: &Request) -> Way {
        const OWN: Way = Way::By(Descriptor::Own);
        let is_warm = self.hits.load(Ordering::Relaxed) >= WARM;
        if is_warm && UNSEEN_READS.replace(UNSEEN_READS.get() + 1) + 1 < LOOKS {
            return OWN;
        }
        UNSEEN_READS.set(0);
        if !self.is_direct() {
            return OWN;
        }
        let cached = self.cached_bytes(own, request);
        if cached == request.want {
            self.hit(is_warm);
            return OWN;
        }
        self.miss();
        if self.is_worth_caching(own, request) {
            driver::count_cache(CacheEvent::Admitted, 1);
            return OWN;
        }
        if cached > 0 { Way::CachedBeginning(cached) } else { Way::By(Descriptor::Direct) }
    }

    /// Whether reads can go past the cache, as far as is known by now.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_direct()
    }

    fn hit(&self, is_warm: bool) {
        if is_warm {
            driver::count_cache(CacheEvent::Hit, LOOKS.into());
            return;
        }
        driver::count_cache(CacheEvent::Hit, 1);
        // Two threads at a time may count one read instead of two.
        let hits = self.hits.load(Ordering::Relaxed);
        self.hits.store(hits + 1, Ordering::Relaxed);
    }

    fn miss(&self) {
        driver::count_cache(CacheEvent::Miss, 1);
        if self.hits.load(Ordering::Relaxed) > 0 {
            self.hits.store(0, Ordering::Relaxed);
        }
    }

    /// How many bytes of a read, from its beginning, are in the page cache. All of them where that holds all there is.
    fn cached_bytes(&self, own: &Target, request: &Request) -> usize {
        let page = page_size() as u64;
        let (start, end) = (request.offset, request.offset + request.want as u64);
        let first = start / page;
        let pages = end.div_ceil(page) - first;
        let cached = |pages: u64| cached_pages(own, first * page, pages * page).unwrap_or(0);
        let all = cached(pages);
        if all == 0 || all == pages {
            return if all == 0 { 0 } else { request.want };
        }
        // The file may end before.
        let size = own.size().unwrap_or(u64::MAX);
        let pages = pages.min(size.div_ceil(page).saturating_sub(first));
        if all == pages {
            return request.want;
        }
        let (mut known, mut most) = (0, pages - 1);
        while known < most {
            let middle = (known + most).div_ceil(2);
            if cached(middle) == middle { known = middle } else { most = middle - 1 }
        }
        ((first + known) * page).saturating_sub(start) as usize
    }

    /// Notes a read that missed the cache. Whether it is to be read through it, since it was read before.
    fn is_worth_caching(&self, own: &Target, request: &Request) -> bool {
        let Ok(mut sketch) = self.sketch.try_lock() else { return false };
        let make = || Sketch::new(own.size().unwrap_or(0), room::bytes());
        let range = request.offset..request.offset + request.want as u64;
        sketch.get_or_insert_with(make).note(range)
    }
}
