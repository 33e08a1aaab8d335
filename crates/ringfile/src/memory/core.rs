//! The inside of a pool: what all its handles and buffers share, and the lock-free way of getting and giving back.
//!
//! Knows the kernel of stacks and counts, the headers, and what lies under the lock (`slow.rs`). What always holds:
//! a core is freed when its last handle and the last reference to one of its blocks are gone, whichever comes
//! last; no get runs without a handle; a returner's last touch is its count.

use std::cell::Cell as ThreadCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::block::{Arena, Block, Kind};
use super::buffer::Buffer;
use super::class::{self, CLASSES};
use super::kernel::{Cell, Gate, Remaining};
use super::mapping::MapOptions;
use super::slow::Inner;

/// More shards than this only make stealing slower.
const MOST_SHARDS: usize = 16;

/// Where blocks outside the pool are counted, after the size classes.
pub(super) const OUTSIDE: usize = CLASSES;

/// What a pool does when a request finds it full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// [`Pool::get`](crate::Pool::get) fails at once with [`PoolError::Full`](crate::PoolError::Full).
    #[default]
    Error,
    /// [`Pool::get`](crate::Pool::get) blocks the calling thread until its turn has come, first come, first served.
    /// On a thread that runs ringfile's tasks it fails instead, as that could never end; use
    /// [`Pool::get_async`](crate::Pool::get_async) there.
    Wait,
    /// Memory is allocated outside the pool, up to `limit` bytes at a time, and unmapped when dropped. It is never
    /// registered, and each such buffer costs system calls. Past the limit it is as with `Error`.
    Outside {
        /// A hard limit, in bytes.
        limit: usize,
    },
}

/// A pool's settings, checked.
pub(crate) struct Options {
    /// A multiple of the mapping granule.
    pub(super) capacity: usize,
    /// Each size is rounded up to it; a power of two, at least the unit.
    pub(super) align: usize,
    pub(super) map: MapOptions,
    pub(super) when_full: WhenFull,
    pub(super) registered: bool,
}

/// What one group of threads keeps at hand. Its own cache lines, two each, as processors fetch them in pairs.
#[repr(align(128))]
struct Shard {
    cells: [Cell; CLASSES + 1],
}

/// What happens off the fast path, counted.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) misses: AtomicU64,
    pub(super) waits: AtomicU64,
    pub(super) failures: AtomicU64,
}

/// The inside of a pool.
pub(crate) struct Core {
    shards: Box<[Shard]>,
    pub(super) arena: Arena,
    pub(super) gate: Gate,
    remaining: Remaining,
    handles: AtomicUsize,
    pub(super) options: Options,
    pub(super) counters: Counters,
    inner: Mutex<Inner>,
}

/// This thread's number, given on first use; taken modulo the shards.
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

impl Core {
    /// A core with one handle.
    pub(super) fn new(options: Options) -> NonNull<Core> {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let shard = || Shard { cells: std::array::from_fn(|_| Cell::new()) };
        let shards = (0..cpus.next_power_of_two().min(MOST_SHARDS)).map(|_| shard()).collect();
        let core = Core {
            shards,
            arena: Arena::new(),
            gate: Gate::new(),
            remaining: Remaining::new(),
            handles: AtomicUsize::new(1),
            options,
            counters: Counters::default(),
            inner: Mutex::new(Inner::default()),
        };
        NonNull::from(Box::leak(Box::new(core)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that can panic runs between two states of what the lock guards.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn shard(&self) -> &Shard {
        // Their number is a power of two, so the index is within.
        &self.shards[thread_number() & (self.shards.len() - 1)]
    }

    /// The class whose blocks serve `n` bytes of this pool.
    #[inline]
    pub(super) fn class_of(&self, n: usize) -> Option<usize> {
        let mask = self.options.align - 1;
        class::of(n.max(1).saturating_add(mask) & !mask)
    }

    /// A buffer from what is cached, without a lock.
    #[inline]
    pub(super) fn get_cached(&self, n: usize) -> Option<Buffer> {
        let class = self.class_of(n)?;
        if self.gate.anyone() {
            return None;
        }
        let own = &self.shard().cells[class];
        let index = own.pop(&self.arena).or_else(|| self.steal(class))?;
        own.count_get();
        Some(self.buffer(index, n))
    }

    /// A cached block of another shard.
    #[cold]
    fn steal(&self, class: usize) -> Option<u32> {
        let own = thread_number();
        (1..self.shards.len()).find_map(|step| {
            let shard = &self.shards[(own + step) & (self.shards.len() - 1)];
            shard.cells[class].pop(&self.arena)
        })
    }

    /// A cached block of any shard.
    pub(super) fn pop_any(&self, class: usize) -> Option<u32> {
        self.shard().cells[class].pop(&self.arena).or_else(|| self.steal(class))
    }

    /// Caches a block that nobody refers to.
    pub(super) fn cache(&self, class: usize, index: u32) {
        self.shard().cells[class].push(&self.arena, index);
    }

    /// Takes all that is cached, of all classes and shards.
    pub(super) fn drain_cached(&self, mut each: impl FnMut(u32)) {
        for shard in &self.shards {
            for cell in &shard.cells[..CLASSES] {
                while let Some(index) = cell.pop(&self.arena) {
                    each(index);
                }
            }
        }
    }

    /// Counts a get and makes the block's first reference.
    pub(super) fn hand_out(&self, index: u32, n: usize) -> Buffer {
        self.shard().cells[self.arena.header(index).class()].count_get();
        self.buffer(index, n)
    }

    #[inline]
    fn buffer(&self, index: u32, n: usize) -> Buffer {
        let block = self.arena.get(index);
        let header = self.arena.header(index);
        debug_assert!(n <= header.size());
        header.refs.store(1, Ordering::Relaxed);
        // SAFETY: the block was free and is now the caller's alone; its memory has `size >= n` bytes, and memory
        // of the system's is initialised.
        unsafe { Buffer::new(NonNull::new_unchecked(header.base()), 0, n, block) }
    }

    /// Takes back a block with the last reference to it.
    ///
    /// # Safety
    /// The block is of a core, got and not given back, and nobody refers to it.
    #[inline]
    pub(super) unsafe fn give_back(block: NonNull<Block>) {
        // SAFETY: until its return is counted, a block that was got keeps its header and core alive.
        let header = unsafe { block.as_ref() };
        let core = header.home().cast::<Core>();
        let cell: *const Cell = {
            // SAFETY: as above; this borrow ends before the count.
            let core = unsafe { &*core };
            let cell = &core.shard().cells[header.class()];
            if header.kind() == Kind::Cached {
                cell.push(&core.arena, header.index());
            } else {
                core.give_back_slow(header);
            }
            if core.gate.anyone_after_push() {
                core.serve();
            }
            cell
        };
        // SAFETY: the last touch of the core, made once for this block.
        if unsafe { Cell::count_return(cell) } {
            // SAFETY: this return came after the close, so it is the caller's to settle, once.
            unsafe { Core::settle(core, -1) }
        }
    }

    /// Takes part in finding who frees the core; frees it if that is the caller.
    ///
    /// # Safety
    /// Called once by the closer and once for each block returned after the close.
    #[cold]
    unsafe fn settle(core: *mut Core, delta: i64) {
        // SAFETY: the caller's step is not yet counted, so the core is there.
        if unsafe { Remaining::settle(&raw const (*core).remaining, delta) } {
            // SAFETY: no handle, no block and no other settler is left, and the core came from a leaked box.
            drop(unsafe { Box::from_raw(core) });
        }
    }

    pub(super) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops a handle; with the last one the pool is closed, and freed when its last buffer is gone.
    ///
    /// # Safety
    /// The caller owns the handle and uses it no more.
    pub(super) unsafe fn drop_handle(core: NonNull<Core>) {
        let outstanding = {
            // SAFETY: the handle that is given up keeps the core alive.
            let core = unsafe { core.as_ref() };
            if core.handles.fetch_sub(1, Ordering::AcqRel) != 1 {
                return;
            }
            // A future that was leaked may have left its place in the queue: nobody is to be served any more.
            core.dismiss_waiters();
            let cells = core.shards.iter().flat_map(|shard| &shard.cells);
            cells.map(Cell::close).sum()
        };
        // SAFETY: the only closer, once.
        unsafe { Core::settle(core.as_ptr(), outstanding) }
    }

    /// (gets, returns) of a class over all shards.
    pub(super) fn counts(&self, class: usize) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |sum, shard| {
            let (gets, returns) = shard.cells[class].counts();
            (sum.0 + gets, sum.1 + returns)
        })
    }
}
