//! Page caches: files whose pages are found in memory, without a lock.
//!
//! A thread keeps the pages of the files that it used last ([`RecentFiles`]), so that a page that is in memory costs no lock of
//! the table of handles. Invariants: what a thread keeps is not used once a file was closed, by whichever thread, and keeps no
//! file open. A forked child
//! takes no lock of its parent's caches, which another thread may have had at the fork: it leaks what it would have to
//! drop.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use ::ringfile_cache::{Cache, CachedFile, CachedPages, Metrics, Page, WhenPinned};

use crate::error::{Fault, Result, call, done};
use crate::file::{self, ringfile_file};
use crate::fork::{self, Lock};
use crate::local::{Ending, block_on};
use crate::pool;
use crate::raw::{self, Growing};
use crate::table::{TAG_BITS, Table};

/// A budget of memory for pages of files.
pub struct ringfile_cache {
    _opaque: [u8; 0],
}

/// A file whose pages are cached.
pub struct ringfile_cached_file {
    _opaque: [u8; 0],
}

static CACHES: Table<ProcessOwned<Cache>> = Table::new("ringfile_cache", 17, Lock::Caches, || CACHES.hold());
static FILES: Table<Cached> = Table::new("ringfile_cached_file", 19, Lock::CachedFiles, || FILES.hold());
/// How many cached files were closed.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// Something that only the process uses up that made it: a forked child leaks it.
struct ProcessOwned<T> {
    value: Option<T>,
    process: u32,
}

impl<T> ProcessOwned<T> {
    fn new(value: T) -> Self {
        Self { value: Some(value), process: fork::generation() }
    }

    /// Makes something of it that is as little for a child to use up.
    fn map<U>(&self, make: impl FnOnce(&T) -> U) -> ProcessOwned<U> {
        ProcessOwned { value: self.value.as_ref().map(make), process: self.process }
    }

    fn is_of_this_process(&self) -> bool {
        self.process == fork::generation()
    }

    /// Returns the value, unless a forked child must not use it.
    fn get(&self) -> Result<&T> {
        let own = self.value.as_ref().filter(|_| self.is_of_this_process());
        own.ok_or_else(|| {
            Fault::new(
                libc::EOPNOTSUPP,
                "the cache belongs to the process that forked this one: a forked child finds pages that are in memory \
                there, and makes a cache of its own for all else",
            )
        })
    }
}

impl<T: Clone> Clone for ProcessOwned<T> {
    fn clone(&self) -> Self {
        // A clone may be made in a child, and is as little the child's as the original.
        Self { value: self.value.clone(), process: self.process }
    }
}

impl<T> Drop for ProcessOwned<T> {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            mem::forget(self.value.take());
        }
    }
}

#[derive(Clone)]
struct Cached {
    file: ProcessOwned<CachedFile>,
    /// The handle of its cache.
    cache: usize,
}

/// Files that a thread used: each at the place that its handle gives it.
struct RecentFiles {
    /// [`CLOSED`], when the first of these was looked up.
    closed: u64,
    files: [Option<(usize, ProcessOwned<CachedPages>)>; 8],
}

impl RecentFiles {
    const NOTHING: Self = Self { closed: 0, files: [const { None }; 8] };
}

impl Default for RecentFiles {
    fn default() -> Self {
        Self::NOTHING
    }
}

thread_local! {
    static KNOWN: Ending<RecentFiles> = const { Ending(RefCell::new(RecentFiles::NOTHING)) };
}

fn place(handle: *const ringfile_cached_file) -> usize {
    (handle.addr() >> TAG_BITS) % 8
}

/// Uses the pages of the file behind a handle if the thread keeps them. Takes no lock.
#[inline(always)]
fn with_known<R>(
    handle: *const ringfile_cached_file,
    act: impl FnOnce(&CachedPages) -> Option<R>,
) -> Option<R> {
    let used = KNOWN.try_with(|known| {
        let known = known.0.try_borrow().ok()?;
        match &known.files[place(handle)] {
            Some((number, file))
                if *number == handle.addr() && known.closed == CLOSED.load(Ordering::Acquire) =>
            {
                act(file.value.as_ref()?)
            }
            _ => None,
        }
    });
    used.unwrap_or_default()
}

/// Uses the file behind a handle.
fn with<R>(
    handle: *const ringfile_cached_file,
    act: impl FnOnce(&ProcessOwned<CachedFile>) -> R,
) -> Result<R> {
    let file = FILES.with(handle, |cached| cached.file.clone())?;
    Ok(act(&file))
}

/// Returns the pages of the file behind a handle, and keeps them for the thread's next call.
#[cold]
fn look_up(handle: *const ringfile_cached_file) -> Result<ProcessOwned<CachedPages>> {
    let closed = CLOSED.load(Ordering::Acquire);
    let pages = FILES.with(handle, |cached| cached.file.map(CachedFile::pages))?;
    let replaced = KNOWN.try_with(|known| {
        let mut known = known.0.try_borrow_mut().ok()?;
        let before = if known.closed == closed { RecentFiles::default() } else { mem::take(&mut *known) };
        known.closed = closed;
        let one = known.files[place(handle)].replace((handle.addr(), pages.clone()));
        Some((before, one))
    });
    // While nothing is borrowed.
    drop(replaced);
    Ok(pages)
}

/// Drops what the thread keeps.
pub(crate) fn rest() {
    drop(KNOWN.try_with(|known| known.0.try_borrow_mut().ok().map(|mut known| mem::take(&mut *known))));
}

/// ringfile_cache_options.when_pinned: a call that needs memory while all pages are in use waits for it.
pub const RINGFILE_WHEN_PINNED_WAIT: u32 = 0;
/// It fails with -ENOMEM.
pub const RINGFILE_WHEN_PINNED_FAIL: u32 = 1;

/// Options of a cache. A field that is 0 selects the default; only `size` and `bytes` must be set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_cache_options {
    /// sizeof(ringfile_cache_options).
    pub size: usize,
    /// The memory for pages, in bytes, at least 4096. It is mapped as it is needed, and registered with io_uring.
    pub bytes: usize,
    /// RINGFILE_WHEN_PINNED_...
    pub when_pinned: u32,
    /// RINGFILE_HUGE_PAGES_...
    pub huge_pages: u32,
    /// Not 0: a thread lowers the budget, down to an eighth of it, while the kernel reports that memory is short
    /// (pressure stall information), and raises it again afterwards.
    pub pressure: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: it consists of integers only, with the size first.
unsafe impl Growing for ringfile_cache_options {}

/// Counters of a cache or of one of its files. Filled by ringfile_cache_metrics.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_cache_counts {
    /// sizeof(ringfile_cache_counts), set by the caller.
    pub size: usize,
    /// The budget of the whole cache, in bytes.
    pub budget: u64,
    /// Bytes of memory that hold pages now, without those that are being read.
    pub bytes: u64,
    /// Pages that are in use now.
    pub pinned: u64,
    /// Pages that were found in memory.
    pub hits: u64,
    /// Pages that were read from the file, prefetched ones too.
    pub misses: u64,
    /// Calls that waited for the read of another one.
    pub shared_misses: u64,
    /// Pages whose memory was taken for others, or given back.
    pub evictions: u64,
}

// SAFETY: it consists of integers only, with the size first.
unsafe impl Growing for ringfile_cache_counts {}

/// A page in use: `length` bytes at `data`, which do not change, and whose memory is used for nothing else until
/// ringfile_cache_release. A struct of zeros is no page.
///
/// The struct may be moved (copied, if the original is not used any more), also to another thread, and released there.
/// It has to be released once.
#[repr(C)]
pub struct ringfile_cached_page {
    /// The page's bytes.
    pub data: *const c_void,
    /// Their number: the page size, fewer for the last page of a file, 0 behind its end.
    pub length: usize,
    /// The library's own.
    pub opaque: [*const c_void; 3],
}

/// A page as it lies in the first words of `opaque`; the last one has the process.
type Words = [*const c_void; 2];

const _: () = assert!(size_of::<Page>() == size_of::<Words>() && align_of::<Page>() <= align_of::<Words>());

impl ringfile_cached_page {
    const NONE: Self = Self { data: ptr::null(), length: 0, opaque: [ptr::null(); 3] };

    #[inline]
    fn new(page: Page) -> Self {
        let (data, length) = (page.as_ptr().cast(), page.len());
        // SAFETY: the sizes are equal, a page has no padding between its two words, and any word is a raw pointer.
        let [a, b] = unsafe { mem::transmute::<Page, Words>(page) };
        let process = ptr::without_provenance(fork::generation() as usize);
        Self { data, length, opaque: [a, b, process] }
    }

    fn is_none(&self) -> bool {
        // The first word of a page is not 0.
        self.opaque[0].is_null()
    }

    /// Takes the page out of the struct, with the process that had got it.
    ///
    /// # Safety The struct is one that [`new`](Self::new) has made, whose page was not taken out before, or of zeros.
    #[inline]
    unsafe fn take(&mut self) -> Option<(Page, u32)> {
        if self.is_none() {
            return None;
        }
        let [a, b, process] = mem::replace(self, Self::NONE).opaque;
        // SAFETY: these are the words of a page, by this function's contract.
        let page = unsafe { mem::transmute::<Words, Page>([a, b]) };
        Some((page, process.addr() as u32))
    }
}

/// Makes a cache. `*cache` gets the handle, to be closed with ringfile_cache_free.
///
/// Which pages stay is decided by S3-FIFO: pages that are read once, as in a scan, leave before those that are read
/// again.
///
/// Any thread. Does not block. -EINVAL: unknown options, or `bytes` is below 4096; -EOPNOTSUPP: `pressure` is set, and
/// the kernel does not report it here.
///
/// Pointers: `options` points to a struct whose `size` is set; `cache` to memory for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_cache_create(
    options: *const ringfile_cache_options,
    cache: *mut *mut ringfile_cache,
) -> c_int {
    done(|| {
        // SAFETY: by the contract in the header.
        let options = unsafe { raw::options(options, "ringfile_cache_options") }?;
        if cache.is_null() {
            return Err(Fault::null("the pointer to the cache's handle"));
        }
        if options.reserved != 0 {
            let text = "`reserved` is not 0: this version knows no option there, so use a newer library";
            return Err(Fault::new(libc::E2BIG, text));
        }
        let when_pinned = match options.when_pinned {
            RINGFILE_WHEN_PINNED_WAIT => WhenPinned::Wait,
            RINGFILE_WHEN_PINNED_FAIL => WhenPinned::Fail,
            other => {
                let text = format!("when_pinned is {other}: use one of RINGFILE_WHEN_PINNED_...");
                return Err(Fault::invalid(text));
            }
        };
        let builder = Cache::builder(options.bytes)
            .when_pinned(when_pinned)
            .huge_pages(pool::huge_pages(options.huge_pages)?)
            .pressure(options.pressure != 0);
        CACHES.heed();
        let handle = CACHES.add(ProcessOwned::new(builder.build()?))?;
        // SAFETY: by the contract in the header.
        unsafe { raw::put(cache, handle, "the pointer to the cache's handle") }
    })
}

/// Closes a cache. Its files can be used until they are closed, and its pages until they are released; then the memory
/// returns to the system.
///
/// Any thread. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_cache_free(cache: *mut ringfile_cache) -> c_int {
    done(|| CACHES.remove(cache).map(drop))
}

/// Caches the pages of a file: page n is the `page_size` bytes from n * `page_size` on. `*cached` gets the handle, to
/// be closed with ringfile_cache_close. `file` may be closed before.
///
/// `page_size` is a power of two from 4096 to 2 MiB. Files with pages of different sizes may share a cache. Open the
/// file with RINGFILE_DIRECT, or its pages are in the kernel's page cache as well. A file that is opened twice in a
/// cache has its pages there twice, and neither handle sees what is written through the other.
///
/// Any thread. Does not block. -EINVAL: the page size is none of these, above the cache's budget, or not a multiple of
/// what direct I/O on the file requires.
///
/// Pointers: `cached` points to memory for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_cache_open(
    cache: *const ringfile_cache,
    file: *const ringfile_file,
    page_size: usize,
    cached: *mut *mut ringfile_cached_file,
) -> c_int {
    done(|| {
        if cached.is_null() {
            return Err(Fault::null("the pointer to the cached file's handle"));
        }
        let open = CACHES.get(cache)?.get()?.open(file::get(file)?, page_size)?;
        let handle = FILES.add(Cached { file: ProcessOwned::new(open), cache: cache.addr() })?;
        // SAFETY: by the contract in the header.
        unsafe { raw::put(cached, handle, "the pointer to the cached file's handle") }
    })
}

/// Closes a cached file. Its pages leave the cache; those in use stay until they are released. Reads and writes in
/// flight continue.
///
/// Any thread. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_cache_close(cached: *mut ringfile_cached_file) -> c_int {
    done(|| {
        let removed = FILES.remove(cached)?;
        CLOSED.fetch_add(1, Ordering::Release);
        drop(removed);
        rest();
        Ok(())
    })
}

/// Gets a page that is in memory. Returns 1 and fills `*page`, which is then to be released with
/// ringfile_cache_release; or returns 0 if the page is not in memory.
///
/// Any thread, several at once. Does not block, takes no lock, and allocates nothing, except for a thread's first call
/// for a file and the first one after any cached file was closed, and if the page leaves memory at this moment while
/// others wait for memory: then it wakes these. If the result is not 1, `*page` is filled with zeros.
/// 2,097,152 unreleased gets of one page end the process.
///
/// Pointers: `page` points to a struct, whose content does not matter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_cache_get(
    cached: *const ringfile_cached_file,
    number: u64,
    page: *mut ringfile_cached_page,
) -> c_int {
    if !page.is_null()
        && let Some(found) = with_known(cached, |pages| pages.get(number))
    {
        // SAFETY: by the contract in the header.
        unsafe { page.write(ringfile_cached_page::new(found)) };
        return 1;
    }
    get_slowly(cached, number, page)
}

/// Gets a page that is not in memory, or of a file that the thread does not keep.
#[cold]
#[inline(never)]
fn get_slowly(cached: *const ringfile_cached_file, number: u64, page: *mut ringfile_cached_page) -> c_int {
    call(|| {
        // SAFETY: by the contract in the header.
        unsafe { raw::put(page, ringfile_cached_page::NONE, "the page") }?;
        let found = look_up(cached)?.value.as_ref().and_then(|pages| pages.get(number));
        let Some(found) = found else { return Ok(0) };
        // SAFETY: as above.
        unsafe { page.write(ringfile_cached_page::new(found)) };
        Ok(1)
    }) as c_int
}

/// Releases a page, and fills the struct with zeros. Does nothing for a struct of zeros.
///
/// Any thread. Does not block. Takes a lock only if another thread waits for memory, or the page was written, evicted
/// by ringfile_cache_invalidate or its file closed meanwhile.
///
/// Pointers: `page` points to a struct that ringfile_cache_get or ringfile_cache_read_many has filled, or of zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_cache_release(page: *mut ringfile_cached_page) -> c_int {
    // SAFETY: by the contract in the header.
    match unsafe { page.as_mut() } {
        Some(page) => release(page),
        None => done(|| Err(Fault::null("the page"))),
    }
}

/// Releases a page, and leaves no page.
#[inline(always)]
fn release(page: &mut ringfile_cached_page) -> c_int {
    // SAFETY: by the contract in the header, programs leave the structs that `new` has made as they are.
    let Some((page, process)) = (unsafe { page.take() }) else { return 0 };
    match page.try_drop() {
        Ok(()) => 0,
        Err(page) => release_slowly(page, process),
    }
}

#[cold]
#[inline(never)]
fn release_slowly(page: Page, process: u32) -> c_int {
    done(|| {
        if process == fork::generation() {
            drop(page);
        } else {
            mem::forget(page);
        }
        Ok(())
    })
}

/// Gets `count` pages, in this order, and reads those that are not in memory, all together. Each is then to be released
/// with ringfile_cache_release.
///
/// All threads that wait for a page share one read. After an error no page is got, and all structs are filled with
/// zeros. The next call tries again. ringfile_cache_read, in ringfile_ops.h, gets one page.
///
/// `pages` NULL: begins to read those pages that are not in memory, and returns at once (ringfile_cache_prefetch, in
/// ringfile_ops.h). Begins fewer if all memory is in use. Errors of these reads are not reported.
///
/// Any thread, several at once. Blocks and allocates if a page is not in memory. Errors are those of pread(2). -EINVAL:
/// the pages do not fit in the cache at once. -ENOMEM: all memory is in use, with RINGFILE_WHEN_PINNED_FAIL; without
/// it, threads that have pages in use while they wait for more may wait for each other for ever.
///
/// Pointers: `count` numbers at `numbers`; `pages` is NULL, or points to as many structs, whose content does not
/// matter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_cache_read_many(
    cached: *const ringfile_cached_file,
    numbers: *const u64,
    count: usize,
    pages: *mut ringfile_cached_page,
) -> c_int {
    done(|| {
        // SAFETY: by the contract in the header.
        let numbers = unsafe { raw::array(numbers, count, "the page numbers") }?;
        if pages.is_null() {
            return with(cached, |file| file.get().map(|file| file.prefetch(numbers)))?;
        }
        // SAFETY: by the contract in the header; nothing is read from the structs.
        let room = unsafe { raw::array_mut(pages.cast::<MaybeUninit<_>>(), count, "the pages") }?;
        room.fill_with(|| MaybeUninit::new(ringfile_cached_page::NONE));
        // SAFETY: as above; they are filled now.
        let pages = unsafe { raw::array_mut(pages, count, "the pages") }?;
        read_many(cached, numbers, pages).inspect_err(|_| {
            pages.iter_mut().for_each(|page| {
                release(page);
            })
        })
    })
}

/// Fills in the pages. Leaves some filled in after an error.
fn read_many(
    cached: *const ringfile_cached_file,
    numbers: &[u64],
    pages: &mut [ringfile_cached_page],
) -> Result<()> {
    let known = match with_known(cached, |pages| Some(pages.clone())) {
        Some(known) => Some(known),
        None => look_up(cached)?.value.clone(),
    };
    let got = numbers.iter().zip(&mut *pages).all(|(number, page)| {
        let found = known.as_ref().and_then(|pages| pages.get(*number));
        found.is_some_and(|found| {
            *page = ringfile_cached_page::new(found);
            true
        })
    });
    if got {
        return Ok(());
    }
    // Those that are there are not kept while others are waited for: another call may wait for their memory.
    pages.iter_mut().for_each(|page| {
        release(page);
    });
    let file = with(cached, ProcessOwned::clone)?;
    let read = block_on(file.get()?.read_many(numbers))??;
    pages.iter_mut().zip(read).for_each(|(page, found)| *page = ringfile_cached_page::new(found));
    Ok(())
}

/// Writes a whole page to the file and to the cache.
///
/// Until this has returned, readers get either the old page or the new one, and after it the new one. Pages that are in
/// use keep their bytes. Durable after ringfile_sync_data of the file.
///
/// Any thread, several at once; writes of one page are carried out one after the other. Blocks. Allocates. -EINVAL:
/// `length` is not the page size; -ENOMEM: as ringfile_cache_read_many. Other errors are those of pwrite(2).
///
/// Pointers: `length` bytes at `data`, which do not change until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_cache_write(
    cached: *const ringfile_cached_file,
    number: u64,
    data: *const c_void,
    length: usize,
) -> c_int {
    done(|| {
        // SAFETY: by the contract in the header.
        let data = unsafe { raw::array(data.cast::<u8>(), length, "the page's data") }?;
        with(cached, |file| Ok(block_on(file.get()?.write(number, data))??))?
    })
}

/// Takes `count` pages from `first` on out of the cache; UINT64_MAX stands for all behind `first`. A read that begins
/// after this returns what is in the file: call it after others (other processes, ringfile_write) have written to the
/// file. Pages in use keep their bytes.
///
/// Any thread. Does not block. Looks at every page of the cache.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_cache_invalidate(
    cached: *const ringfile_cached_file,
    first: u64,
    count: u64,
) -> c_int {
    done(|| {
        let pages = first..first.saturating_add(count);
        with(cached, |file| file.get().map(|file| file.invalidate(pages)))?
    })
}

/// Changes the budget to `bytes`, at least 4096. If that is less than before, pages leave the cache, and their memory
/// returns to the system, in pieces of at least 2 MiB; what is in use, after its release.
///
/// Any thread. Blocks for as long as the system needs for that.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_cache_set_budget(cache: *const ringfile_cache, bytes: usize) -> c_int {
    done(|| Ok(CACHES.get(cache)?.get()?.set_budget(bytes)?))
}

/// Stores the counters of one file of a cache, or, with `cached` NULL, of all files that it has and had.
///
/// Any thread. Does not block. Looks at every page of the cache. -EINVAL: the file is of another cache.
///
/// Pointers: `counts` points to a struct whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_cache_metrics(
    cache: *const ringfile_cache,
    cached: *const ringfile_cached_file,
    counts: *mut ringfile_cache_counts,
) -> c_int {
    done(|| {
        let of = CACHES.get(cache)?;
        let of = of.get()?;
        let metrics = if cached.is_null() {
            of.metrics()
        } else {
            let file = FILES.get(cached)?;
            if file.cache != cache.addr() {
                return Err(Fault::invalid("the file is open in another cache"));
            }
            file.file.get()?.metrics()
        };
        let Metrics { hits, misses, shared_misses, evictions, pinned, bytes, .. } = metrics;
        let known = ringfile_cache_counts {
            size: 0,
            budget: of.budget() as u64,
            bytes: bytes as u64,
            pinned: pinned as u64,
            hits,
            misses,
            shared_misses,
            evictions,
        };
        // SAFETY: by the contract in the header.
        unsafe { raw::give(counts, &known, "ringfile_cache_counts") }
    })
}
