//! The core of a pool: the state that all its handles and buffers share, and the lock-free paths for getting and
//! returning blocks.
//!
//! Knows the stacks and anchors (`kernel.rs`), the headers, and the state under the lock (`inner.rs`). Invariants: a
//! core is freed when its last handle and the last reference to one of its blocks are gone, whichever comes last; no
//! get runs without a handle; a push without the lock is the last access by the returning thread.

use std::cell::Cell as ThreadCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::block::{Arena, Block, BlockKind};
use super::class::{self, CLASSES};
use super::inner::PoolInner;
use super::kernel::{Anchors, Cell};
use super::locks::{self, HasLock};
use super::mapping::MapOptions;

/// The maximum number of shards. More would only make stealing slower.
const MOST_SHARDS: usize = 16;
/// Why a buffer whose pool was dropped does not grow.
pub(super) const GONE: &str = "its pool is gone";

/// Selects what a pool does when a request finds it full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// [`Pool::get`](crate::Pool::get) fails at once with [`PoolError::Full`](crate::PoolError::Full).
    #[default]
    Error,
    /// [`Pool::get`](crate::Pool::get) blocks the calling thread until its turn has come, first come, first served. On
    /// a thread that runs ringfile's tasks it fails instead, since it could wait forever; use
    /// [`Pool::get_async`](crate::Pool::get_async) there.
    Wait,
    /// Allocates memory outside the pool, up to `limit` bytes at any time, and unmaps it when the buffer is dropped. It
    /// is never registered, and each such buffer costs system calls. Beyond the limit requests fail as with `Error`.
    Outside {
        /// A hard limit, in bytes. Each buffer takes whole pages.
        limit: usize,
    },
}

impl WhenFull {
    /// Returns how many bytes may be outside the pool.
    pub(super) fn outside_limit(self) -> usize {
        if let WhenFull::Outside { limit } = self { limit } else { 0 }
    }
}

/// A pool's settings.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The capacity: in a pool, a multiple of the mapping granule.
    pub(super) capacity: usize,
    /// Each size is rounded up to the alignment: in a pool, a power of two, at least the unit.
    pub(super) map: MapOptions,
    pub(super) when_full: WhenFull,
    pub(super) registered: bool,
    /// Whether buffers may move to larger blocks.
    pub(super) growing: bool,
    /// Whether to warn when memory outside the pool is used.
    pub(super) warns: bool,
}

/// The cached blocks of one group of threads. Aligned to two cache lines, since processors fetch them in pairs.
#[repr(align(128))]
struct Shard {
    cells: [Cell; CLASSES],
}

/// Counters for events off the fast path.
#[derive(Default)]
pub(super) struct PoolCounters {
    pub(super) misses: AtomicU64,
    pub(super) waits: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) growths: AtomicU64,
}

pub(crate) struct Core {
    shards: Box<[Shard]>,
    pub(super) arena: Arena,
    pub(super) anchors: Anchors,
    handles: AtomicUsize,
    pub(super) options: Options,
    pub(super) counters: PoolCounters,
    inner: Mutex<PoolInner>,
}

impl HasLock for Core {
    type State = PoolInner;

    fn mutex(&self) -> &Mutex<PoolInner> {
        &self.inner
    }
}

/// Returns this thread's number, assigned on first use, modulo the number of shards.
#[inline]
fn thread_number() -> usize {
    thread_local! {
        static NUMBER: ThreadCell<usize> = const { ThreadCell::new(usize::MAX) };
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.get();
    if number != usize::MAX {
        return number;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

#[cfg(feature = "poison")]
thread_local! {
    static POISONS: ThreadCell<bool> = const { ThreadCell::new(false) };
}

/// What overwrites memory that is returned.
#[cfg(feature = "poison")]
const POISON: u8 = 0xdb;

/// Sets whether memory of pools that this thread returns is overwritten.
#[cfg(feature = "poison")]
pub fn set_thread_poisons(poisons: bool) {
    POISONS.set(poisons);
}

impl Core {
    /// Creates a core with one handle.
    pub(super) fn new(options: Options) -> NonNull<Core> {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let shard = || Shard { cells: std::array::from_fn(|_| Cell::new()) };
        let shards = (0..cpus.next_power_of_two().min(MOST_SHARDS)).map(|_| shard()).collect();
        let core = Core {
            shards,
            arena: Arena::new(),
            anchors: Anchors::new(),
            handles: AtomicUsize::new(1),
            options,
            counters: PoolCounters::default(),
            inner: Mutex::new(PoolInner::new()),
        };
        let core = NonNull::from(Box::leak(Box::new(core)));
        locks::add(core);
        core
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, PoolInner> {
        // No code that can panic runs while the state under the lock is inconsistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn shard(&self) -> &Shard {
        // The number of shards is a power of two, so the index is in bounds.
        &self.shards[thread_number() & (self.shards.len() - 1)]
    }

    /// Returns the class that serves `n` bytes in this pool.
    #[inline]
    pub(super) fn class_of(&self, n: usize) -> Option<usize> {
        let mask = self.options.map.align - 1;
        class::of(n.max(1).saturating_add(mask) & !mask)
    }

    /// Takes a cached block for `n` bytes without a lock; none if a request is waiting.
    #[inline]
    pub(super) fn get_cached(&self, n: usize) -> Option<NonNull<Block>> {
        let class = self.class_of(n)?;
        match self.shard().cells[class].pop(&self.arena) {
            Some(block) => Some(block),
            None => self.steal(class),
        }
    }

    /// Takes a cached block of another shard.
    #[cold]
    fn steal(&self, class: usize) -> Option<NonNull<Block>> {
        let own = thread_number();
        (1..self.shards.len()).find_map(|step| {
            let shard = &self.shards[(own + step) & (self.shards.len() - 1)];
            shard.cells[class].pop(&self.arena)
        })
    }

    /// Takes a cached block of any shard, even if a request is waiting. Under the lock.
    pub(super) fn take_cached(&self, class: usize) -> Option<NonNull<Block>> {
        self.cells(class).find_map(|cell| cell.take(&self.arena))
    }

    /// Caches a block without references. Under the lock; false if a request is waiting.
    pub(super) fn cache(&self, class: usize, block: NonNull<Block>) -> bool {
        // SAFETY: all are parts of `self`, which outlives the call.
        unsafe { Cell::push(&self.shard().cells[class], &self.arena, block).is_ok() }
    }

    /// Returns the stacks of a class, one per shard.
    pub(super) fn cells(&self, class: usize) -> impl Iterator<Item = &Cell> {
        self.shards.iter().map(move |shard| &shard.cells[class])
    }

    /// Takes back a block with the last reference to it.
    ///
    /// # Safety
    /// The block belongs to a core, was taken and not returned, and has no references.
    #[inline]
    pub(super) unsafe fn give_back(block: NonNull<Block>) {
        // SAFETY: a block in use keeps its header and core alive; these borrows end before the push.
        let (core, kind, class) = unsafe {
            let header = block.as_ref();
            (header.home().cast::<Core>(), header.kind(), header.class())
        };
        #[cfg(feature = "poison")]
        if let BlockKind::Cached | BlockKind::Exact | BlockKind::Outside = kind
            && POISONS.try_with(ThreadCell::get) == Ok(true)
        {
            // SAFETY: the memory belongs to the pool, and nobody refers to it any more.
            unsafe { block.as_ref().base().write_bytes(POISON, block.as_ref().size()) }
        }
        // SAFETY: as above. The push is the last access, unless it is refused; then the block is still in use.
        let pushed = kind == BlockKind::Cached
            && unsafe {
                let cell = &raw const (&(*core).shard().cells)[class];
                Cell::push(cell, &raw const (*core).arena, block).is_ok()
            };
        if !pushed {
            // SAFETY: the block is in use, and the caller owns its last reference.
            unsafe { Core::give_back_locked(core, block) }
        }
    }

    /// Takes back a block that cannot be pushed.
    ///
    /// # Safety
    /// As [`Core::give_back`].
    #[cold]
    unsafe fn give_back_locked(core: *mut Core, block: NonNull<Block>) {
        let anchors = {
            // SAFETY: the block is in use and keeps the core alive; from the next line on, our anchor does.
            let core = unsafe { &*core };
            core.anchors.add(1);
            let was_closed = core.dissolve_and_serve(block);
            1 + i64::from(was_closed)
        };
        // SAFETY: our own anchor, and that of the block if closing the pool has made it one.
        unsafe { Core::release(core, anchors) }
    }

    /// Removes anchors, and frees the core with the last one.
    ///
    /// # Safety
    /// The caller owns the anchors, and does not access the core afterwards.
    unsafe fn release(core: *mut Core, anchors: i64) {
        // SAFETY: until then they keep the core.
        if unsafe { Anchors::release(&raw const (*core).anchors, anchors) } {
            // SAFETY: no handle, no block and no other thread is left, and the core came from a leaked box. A thread that
            // forks is in it only as long as `remove` waits.
            unsafe {
                locks::remove(NonNull::new_unchecked(core));
                drop(Box::from_raw(core));
            }
        }
    }

    pub(super) fn add_handle(&self) {
        if self.handles.fetch_add(1, Ordering::Relaxed) > isize::MAX as usize {
            // As with `Arc`, leaked handles must not overflow the count.
            std::process::abort();
        }
    }

    /// Returns the core if buffers may move to larger blocks now, or why not.
    pub(super) fn lets_buffers_grow(&self) -> Result<&Self, &'static str> {
        if !self.options.growing {
            return Err("its pool was built with growing(false)");
        }
        if self.handles.load(Ordering::Relaxed) == 0 { Err(GONE) } else { Ok(self) }
    }

    /// Adds a handle if there still is one. The caller holds a block, which keeps the core alive.
    pub(super) fn add_handle_if_any(&self) -> bool {
        let one_more = |handles| match handles {
            0 => None,
            // As `add_handle`.
            _ if handles > isize::MAX as usize => std::process::abort(),
            _ => Some(handles + 1),
        };
        self.handles.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more).is_ok()
    }

    /// Drops a handle. The last one closes the pool, which is freed with its last buffer.
    ///
    /// # Safety
    /// The caller owns the handle, and does not use it afterwards.
    pub(super) unsafe fn drop_handle(core: NonNull<Core>) {
        {
            // SAFETY: the handle that is given up keeps the core, and its anchor does until the end of this.
            let core = unsafe { core.as_ref() };
            if core.handles.fetch_sub(1, Ordering::AcqRel) != 1 {
                return;
            }
            core.dismiss_waiters();
            core.close();
        }
        // SAFETY: the handles' own anchor, once.
        unsafe { Core::release(core.as_ptr(), 1) }
    }
}
