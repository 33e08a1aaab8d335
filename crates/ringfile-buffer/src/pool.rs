//! `Pool` and its builder: the handle that users hold, and the checks of their settings.
//!
//! Knows the core. Invariants: a `Pool` is one counted handle of a core.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::buffer::Buffer;
use super::class::UNIT;
use super::core::{Core, Options, WhenFull};
use super::error::PoolError;
use super::mapping::{HugePages, MapOptions, page_size};
use super::metrics::PoolMetrics;
use super::region::REGION_MAX;
use crate::event;

/// A pool of aligned memory for I/O, with a hard limit, shared by all its clones.
///
/// A pool hands out [`Buffer`]s. Getting and dropping one of a size that was used before takes no lock and no system
/// call. Memory is mapped when first needed, and registered with io_uring on first use, if the system allows it.
/// Buffers, and `Bytes` made of them, may outlive the pool: the memory is freed with the last of them.
///
/// ```
/// let pool = ringfile_buffer::Pool::new(64 << 20);
/// let mut page = pool.get(16 << 10)?;
/// page.extend_from_slice(b"hello");
/// assert_eq!(page.as_ptr() as usize % 4096, 0);
/// assert_eq!(page.capacity(), 16 << 10);
/// assert_eq!(&page[..], b"hello");
/// # Ok::<(), ringfile_buffer::PoolError>(())
/// ```
pub struct Pool {
    core: NonNull<Core>,
}

// SAFETY: a core is shared by threads through atomics and a lock; a handle is a counted pointer to it.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Creates a pool of at most `capacity` bytes with default settings; see [`PoolBuilder`].
    ///
    /// The capacity is rounded down to whole pages, whose size depends on the machine: 4, 16 or 64 KiB. A smaller one is
    /// rounded up to one page, except 0, which allows no buffer. Maps nothing yet, so it cannot fail.
    ///
    /// ```
    /// let pool = ringfile_buffer::Pool::new(1 << 20);
    /// assert_eq!(pool.metrics().reserved, 0);
    /// assert!(ringfile_buffer::Pool::new(100).get(100).is_ok());
    /// ```
    pub fn new(capacity: usize) -> Pool {
        Pool { core: Core::new(Pool::builder().capacity(capacity).options()) }
    }

    /// Returns a builder for a pool with other settings.
    ///
    /// ```
    /// use ringfile_buffer::{Pool, WhenFull};
    /// let pool = Pool::builder().capacity(8 << 20).alignment(8192).when_full(WhenFull::Wait).build()?;
    /// assert_eq!(pool.get(100)?.as_ptr() as usize % 8192, 0);
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    pub fn builder() -> PoolBuilder {
        let options = Options {
            capacity: 64 << 20,
            map: MapOptions { align: UNIT, huge_pages: HugePages::Auto, dont_fork: false },
            when_full: WhenFull::Error,
            registered: true,
            growing: true,
            warns: true,
        };
        PoolBuilder { options, pooling: true }
    }

    /// Returns a buffer with a capacity of exactly `n` bytes and length 0.
    ///
    /// Buffers of 4096 bytes and more are aligned to 4096, smaller ones to 512, 1024 or 2048, the smallest of these that
    /// is not less than `n`; with [`PoolBuilder::alignment`] all are aligned to that. The bytes may be those of an earlier buffer
    /// of this process.
    ///
    /// # Errors
    /// If the pool is full, [`WhenFull`] decides: [`PoolError::Full`] at once, or after the memory outside the pool was
    /// used up; with [`WhenFull::Wait`] it blocks instead, or fails with [`PoolError::WouldDeadlock`] on a thread that
    /// runs ringfile's tasks. [`PoolError::TooLarge`] if `n` is above the capacity or 1 GiB. [`PoolError::System`] or
    /// [`PoolError::NoHugePages`] if the system has no memory.
    ///
    /// ```
    /// let pool = ringfile_buffer::Pool::new(1 << 20);
    /// let buffers: Vec<_> = (0..256).map(|_| pool.get(4096)).collect::<Result<_, _>>()?;
    /// assert!(pool.get(4096).is_err());
    /// drop(buffers);
    /// assert!(pool.get(1 << 20).is_ok());
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    // Without this attribute the compiler does not inline it, and passing 32 bytes through memory takes a fifth of the
    // time.
    #[inline(always)]
    pub fn get(&self, n: usize) -> Result<Buffer, PoolError> {
        let core = self.core();
        let block = match core.get_cached(n) {
            Some(block) => block,
            None => core.get_slow(self, n)?,
        };
        // SAFETY: the block is free, has room for `n` bytes, and belongs to this call.
        Ok(unsafe { Buffer::first(block, n) })
    }

    /// Returns a buffer as [`Pool::get`] does, but never waits, whatever [`WhenFull`] says. For a `poll`, which must not block
    /// the executor's thread: the task that holds the memory may run there.
    ///
    /// # Errors
    /// Those of [`Pool::get`], and [`PoolError::Full`] where that would wait.
    ///
    /// ```
    /// use ringfile_buffer::{Pool, PoolError, WhenFull};
    /// let pool = Pool::builder().capacity(64 << 10).when_full(WhenFull::Wait).build()?;
    /// let only = pool.try_get(64 << 10)?;
    /// assert!(matches!(pool.try_get(1), Err(PoolError::Full { .. })));
    /// drop(only);
    /// assert!(pool.try_get(1).is_ok());
    /// # Ok::<(), PoolError>(())
    /// ```
    pub fn try_get(&self, n: usize) -> Result<Buffer, PoolError> {
        let core = self.core();
        let block = core.get_cached(n).map_or_else(|| core.try_get_slow(n), Ok)?;
        // SAFETY: the block is free, has room for `n` bytes, and belongs to this call.
        Ok(unsafe { Buffer::first(block, n) })
    }

    /// Returns the pool's counters. Takes the pool's lock for a moment.
    ///
    /// ```
    /// let pool = ringfile_buffer::Pool::new(1 << 20);
    /// let buffer = pool.get(5000)?;
    /// let metrics = pool.metrics();
    /// assert_eq!((metrics.in_use, metrics.classes[0].size), (8192, 8192));
    /// assert!(metrics.reserved <= metrics.capacity);
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    pub fn metrics(&self) -> PoolMetrics {
        self.core().metrics()
    }

    /// Returns a larger buffer for a buffer of this pool that must grow: of `wanted` bytes, or else of `needed`. Never waits.
    pub(super) fn get_to_grow(&self, needed: usize, wanted: usize) -> Result<Buffer, PoolError> {
        let counters = &self.core().counters;
        let larger = if wanted > needed { self.try_get(wanted).ok() } else { None };
        let got = larger.map_or_else(|| self.try_get(needed), Ok);
        let count = if got.is_ok() { &counters.growths } else { &counters.failures };
        count.fetch_add(1, Ordering::Relaxed);
        event::emit_deferred();
        got
    }

    /// Returns a handle of this core's pool, if there still is another one. The caller holds a block, which keeps the
    /// core alive.
    pub(super) fn of_core(core: &Core) -> Option<Pool> {
        core.add_handle_if_any().then(|| Pool { core: NonNull::from(core) })
    }

    #[inline]
    pub(super) fn core(&self) -> &Core {
        // SAFETY: a handle keeps its core alive.
        unsafe { self.core.as_ref() }
    }
}

impl Clone for Pool {
    /// Returns another handle of the same pool.
    fn clone(&self) -> Self {
        self.core().add_handle();
        Pool { core: self.core }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: each handle is dropped once.
        unsafe { Core::drop_handle(self.core) }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metrics = self.metrics();
        f.debug_struct("Pool")
            .field("capacity", &metrics.capacity)
            .field("reserved", &metrics.reserved)
            .field("in_use", &metrics.in_use)
            .finish_non_exhaustive()
    }
}

/// Settings of a pool, from [`Pool::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until `build`"]
pub struct PoolBuilder {
    /// As the user has set them, not checked.
    options: Options,
    pooling: bool,
}

impl PoolBuilder {
    /// Sets the hard limit in bytes, rounded down to whole pages; 64 MiB by default. Memory is mapped as it is needed.
    /// [`build`](Self::build) refuses less than one page, which is 4, 16 or 64 KiB, depending on the machine.
    pub fn capacity(mut self, bytes: usize) -> Self {
        self.options.capacity = bytes;
        self
    }

    /// Aligns every buffer to `bytes`, a power of two up to 1 GiB, and rounds its size up to a multiple of it.
    ///
    /// By default, buffers of 4096 bytes and more are aligned to 4096, and smaller ones to the smallest power of two from 512
    /// on that is not less than their size.
    pub fn alignment(mut self, bytes: usize) -> Self {
        self.options.map.align = bytes;
        self
    }

    /// Sets which page sizes to use; [`HugePages::Auto`] by default.
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.options.map.huge_pages = huge_pages;
        self
    }

    /// Sets what happens when the pool is full; [`WhenFull::Error`] by default.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.options.when_full = when_full;
        self
    }

    /// Keeps the memory's content out of forked children (MADV_WIPEONFORK), and makes forks cheaper, since no page of
    /// it is copied. Off by default: children can read it.
    ///
    /// In a child, the pool works as before, and all of its memory is zero: buffers and `Bytes` from before the fork
    /// keep their lengths, and lose their content. Cannot be combined with [`HugePages::Require`], whose pages the kernel
    /// does not wipe.
    pub fn dont_fork(mut self, dont_fork: bool) -> Self {
        self.options.map.dont_fork = dont_fork;
        self
    }

    /// Sets whether the memory is registered with io_uring; on by default. Switch it off to measure what registration
    /// is worth.
    pub fn registered(mut self, registered: bool) -> Self {
        self.options.registered = registered;
        self
    }

    /// Sets whether buffers grow when more is appended than fits; on by default. If off, appending fails instead, so
    /// that no buffer uses more memory than was requested.
    pub fn growing(mut self, growing: bool) -> Self {
        self.options.growing = growing;
        self
    }

    /// Sets whether memory is kept for the next buffer; on by default. If off, each buffer is mapped separately,
    /// unregistered, and unmapped when it is dropped, up to the capacity and what [`WhenFull::Outside`] allows;
    /// [`Pool::get`] fails beyond that, even with [`WhenFull::Wait`]. Use it to measure what the pool is worth, without
    /// other changes to the program.
    ///
    /// ```
    /// let pool = ringfile_buffer::Pool::builder().capacity(1 << 20).pooling(false).build()?;
    /// let buffer = pool.get(64 << 10)?;
    /// assert_eq!((pool.metrics().reserved, pool.metrics().outside_bytes), (0, 64 << 10));
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    pub fn pooling(mut self, pooling: bool) -> Self {
        self.pooling = pooling;
        self
    }

    /// Creates the pool. With [`HugePages::Require`] the first huge pages are mapped now, otherwise nothing.
    ///
    /// # Errors
    /// [`PoolError::Invalid`] if the alignment is not a power of two or is above 1 GiB, if the capacity is below a page
    /// or the alignment, if [`dont_fork`](Self::dont_fork) is combined with [`HugePages::Require`], or if the [platform](crate#platforms) lacks one
    /// of these; [`PoolError::NoHugePages`] if huge pages are required but not available.
    ///
    /// ```
    /// let error = ringfile_buffer::Pool::builder().alignment(1000).build().unwrap_err();
    /// assert!(error.to_string().contains("power of two"));
    /// ```
    pub fn build(self) -> Result<Pool, PoolError> {
        let (asked, align, pooling) = (self.options.capacity, self.options.map.align, self.pooling);
        if !align.is_power_of_two() || align > REGION_MAX {
            return Err(PoolError::invalid(format!(
                "a pool cannot be aligned to {align} bytes: use a power of two up to 1 GiB"
            )));
        }
        let options = self.options();
        let (require, least) =
            (options.map.huge_pages == HugePages::Require, options.map.granule().max(align));
        if asked < least {
            return Err(PoolError::invalid(format!(
                "a pool of {asked} bytes is too small for one page and its alignment: give it a capacity of at least \
                 {least} bytes"
            )));
        }
        if let Some(what) = options.map.unsupported() {
            return Err(PoolError::invalid(what));
        }
        let pool = Pool { core: Core::new(options) };
        if require && pooling {
            // Now, so that a lack of huge pages is reported here.
            pool.core().grow(&mut pool.core().lock(), 1)?;
        }
        Ok(pool)
    }

    /// Creates a pool that emits no warning when it is full, since users cannot change its settings.
    pub(super) fn quiet(self, when_full: WhenFull) -> Pool {
        let options = self.when_full(when_full).options();
        Pool { core: Core::new(Options { warns: false, ..options }) }
    }

    /// Returns the settings, rounded to what can be mapped.
    fn options(self) -> Options {
        let mut options = self.options;
        options.map.align = options.map.align.max(UNIT);
        // A process cannot map more, and sums below this limit cannot overflow.
        let (asked, page) = (options.capacity.min(isize::MAX as usize / 2), options.map.granule());
        options.capacity = if asked == 0 { 0 } else { (asked & !(page - 1)).max(page) };
        if self.pooling {
            return options;
        }
        let limit = options.capacity.saturating_add(options.when_full.outside_limit());
        Options { capacity: 0, when_full: WhenFull::Outside { limit }, warns: false, ..options }
    }
}

/// Makes a page-aligned pool for a library's own use, without warnings.
pub fn quiet(capacity: usize, when_full: WhenFull) -> Pool {
    Pool::builder().capacity(capacity).alignment(page_size()).quiet(when_full)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::region::Registration;
    use super::super::waiters::set_thread_must_not_block;
    use super::*;

    #[test]
    fn a_thread_that_runs_tasks_gets_an_error_instead_of_waiting() {
        let page = page_size();
        let pool = Pool::builder().capacity(page).when_full(WhenFull::Wait).build().unwrap();
        let before = set_thread_must_not_block(true);
        let only = pool.get(page).unwrap();
        let error = pool.get(page).unwrap_err();
        assert!(matches!(error, PoolError::WouldDeadlock { .. }));
        assert!(error.to_string().contains("get_async"), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::WouldBlock);
        drop(only);
        assert!(pool.get(4096).is_ok());
        set_thread_must_not_block(before);
    }

    #[test]
    fn registrations_are_counted_and_released_before_the_memory_goes() {
        static RELEASED: AtomicU64 = AtomicU64::new(0);
        fn on_release(_index: u32, serial: u64) {
            RELEASED.fetch_add(serial, Ordering::SeqCst);
        }
        let register = |serial| move |_, _| Some(Registration { index: 0, serial, on_release });
        let pool = Pool::new(8 << 20);
        let small = pool.get(4096).unwrap();
        let large = pool.get(3 << 20).unwrap();
        let last = pool.get(2 << 20).unwrap();
        for buffer in [&small, &large, &last] {
            let (region, at) = (buffer.region().unwrap(), buffer.as_ptr() as usize);
            let start = region.base().as_ptr() as usize;
            assert!(start <= at && at + buffer.capacity() <= start + region.len());
        }
        assert!(small.region().unwrap().register(register(1)).is_some());
        assert!(large.region().unwrap().register(register(10)).is_some());
        assert!(last.region().unwrap().register(|_, _| None).is_none());
        let metrics = pool.metrics();
        assert_eq!((metrics.regions, metrics.registered_regions, metrics.refused_registrations), (3, 2, 1));
        assert_eq!(metrics.registered_bytes, 6 << 20);
        drop((small, large, last));
        assert_eq!(RELEASED.load(Ordering::SeqCst), 0, "free regions stay registered");
        let whole = pool.get(8 << 20).unwrap();
        assert_eq!(RELEASED.load(Ordering::SeqCst), 11, "all free regions were released for one large one");
        assert_eq!(pool.metrics().refused_registrations, 1, "is not forgotten");
        assert!(whole.region().unwrap().register(register(100)).is_some());
        drop(pool);
        assert_eq!(RELEASED.load(Ordering::SeqCst), 11);
        drop(whole);
        assert_eq!(RELEASED.load(Ordering::SeqCst), 111, "with the last buffer");
    }

    #[test]
    fn unregistered_pools_and_outside_memory_never_register() {
        let pool = Pool::builder().registered(false).build().unwrap();
        let buffer = pool.get(4096).unwrap();
        assert!(buffer.region().unwrap().register(|_, _| unreachable!()).is_none());
        let page = page_size();
        let outside =
            Pool::builder().capacity(page).when_full(WhenFull::Outside { limit: 2 * page }).build().unwrap();
        assert!(outside.get(2 * page).unwrap().region().is_none());
    }
}
