//! Pools, and the buffers that come from them.
//!
//! Invariant: from the time when a buffer is handed out until it is released, `memory.rs` finds its memory by address.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringfile::buf::HugePages;
use ringfile::{Pool, WhenFull};

use crate::error::{Fault, Result, call, done};
use crate::fork::Lock;
use crate::memory;
use crate::raw::{self, Growing};
use crate::table::Table;

/// A pool of aligned memory for I/O, with a hard limit.
pub struct ringfile_pool {
    _opaque: [u8; 0],
}

/// A piece of a pool's memory.
pub struct ringfile_buffer {
    _opaque: [u8; 0],
}

static POOLS: Table<Pool> = Table::new("ringfile_pool", 1, Lock::Pools, || POOLS.hold());
static BUFFERS: Table<Arc<Known>> = Table::new("ringfile_buffer", 5, Lock::Buffers, || BUFFERS.hold());

/// Returns the pool behind a handle.
pub(crate) fn get(pool: *const ringfile_pool) -> Result<Pool> {
    POOLS.get(pool)
}

struct Known {
    start: usize,
    capacity: usize,
    length: AtomicUsize,
}

/// ringfile_pool_options.huge_pages, and that of a cache: huge pages if the system provides them transparently.
pub const RINGFILE_HUGE_PAGES_AUTO: u32 = 0;
/// Ordinary pages only.
pub const RINGFILE_HUGE_PAGES_NEVER: u32 = 1;
/// Huge pages that the administrator has reserved (vm.nr_hugepages), or an error.
pub const RINGFILE_HUGE_PAGES_REQUIRE: u32 = 2;

/// ringfile_pool_options.when_full: ringfile_buffer_get fails at once with -ENOMEM.
pub const RINGFILE_WHEN_FULL_ERROR: u32 = 0;
/// ringfile_buffer_get blocks until its turn has come, first come, first served.
pub const RINGFILE_WHEN_FULL_WAIT: u32 = 1;
/// Memory is allocated outside the pool, up to `outside_limit` bytes at any time; it is never registered.
pub const RINGFILE_WHEN_FULL_OUTSIDE: u32 = 2;

/// Options of a pool. A field that is 0 selects the default; only `size` and `capacity` must be set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_pool_options {
    /// sizeof(ringfile_pool_options).
    pub size: usize,
    /// The hard limit of the pool in bytes. Memory is mapped as it is needed.
    pub capacity: usize,
    /// The alignment of buffers, a power of two; 0 for 4096.
    pub alignment: usize,
    /// RINGFILE_HUGE_PAGES_...
    pub huge_pages: u32,
    /// RINGFILE_WHEN_FULL_...
    pub when_full: u32,
    /// The most bytes outside the pool, with RINGFILE_WHEN_FULL_OUTSIDE.
    pub outside_limit: usize,
    /// Not 0: the memory is not registered with io_uring, and does not count against RLIMIT_MEMLOCK.
    pub unregistered: u32,
    /// Not 0: the memory is zero in forked children (MADV_WIPEONFORK); not with RINGFILE_HUGE_PAGES_REQUIRE.
    pub dont_fork: u32,
}

// SAFETY: it consists of integers only, with the size first.
unsafe impl Growing for ringfile_pool_options {}

/// Counters of a pool. Filled by ringfile_pool_metrics.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ringfile_pool_counts {
    /// sizeof(ringfile_pool_counts), set by the caller.
    pub size: usize,
    /// The hard limit, in bytes.
    pub capacity: u64,
    /// Bytes of memory mapped for the pool, in use or not.
    pub reserved: u64,
    /// The most that `reserved` ever was.
    pub reserved_high_water: u64,
    /// Bytes in use, as whole blocks.
    pub in_use: u64,
    /// Gets that found nothing cached and took the pool's lock.
    pub misses: u64,
    /// Buffers that were allocated outside the pool, since it was made.
    pub outside_allocations: u64,
    /// Bytes outside the pool, in use now.
    pub outside_bytes: u64,
    /// Gets that had to wait for memory to come back.
    pub waits: u64,
    /// Gets that failed because the pool was full.
    pub failures: u64,
    /// The pool's regions of memory.
    pub regions: u64,
    /// Regions that are registered with io_uring.
    pub registered_regions: u64,
    /// Bytes in registered regions.
    pub registered_bytes: u64,
    /// Regions that could not be registered (RLIMIT_MEMLOCK, an old kernel), since the pool was made.
    pub refused_registrations: u64,
}

// SAFETY: it consists of integers only, with the size first.
unsafe impl Growing for ringfile_pool_counts {}

/// Returns the kind of pages that a number stands for.
pub(crate) fn huge_pages(number: u32) -> Result<HugePages> {
    Ok(match number {
        RINGFILE_HUGE_PAGES_AUTO => HugePages::Auto,
        RINGFILE_HUGE_PAGES_NEVER => HugePages::Never,
        RINGFILE_HUGE_PAGES_REQUIRE => HugePages::Require,
        other => {
            return Err(Fault::invalid(format!("huge_pages is {other}: use one of RINGFILE_HUGE_PAGES_...")));
        }
    })
}

fn build(options: &ringfile_pool_options) -> Result<Pool> {
    let huge_pages = huge_pages(options.huge_pages)?;
    let when_full = match options.when_full {
        RINGFILE_WHEN_FULL_ERROR => WhenFull::Error,
        RINGFILE_WHEN_FULL_WAIT => WhenFull::Wait,
        RINGFILE_WHEN_FULL_OUTSIDE => WhenFull::Outside { limit: options.outside_limit },
        other => {
            return Err(Fault::invalid(format!("when_full is {other}: use one of RINGFILE_WHEN_FULL_...")));
        }
    };
    if options.capacity == 0 {
        return Err(Fault::invalid("capacity is 0: set it to the pool's limit in bytes"));
    }
    let mut builder = Pool::builder()
        .capacity(options.capacity)
        .huge_pages(huge_pages)
        .when_full(when_full)
        .dont_fork(options.dont_fork != 0)
        .registered(options.unregistered == 0);
    if options.alignment != 0 {
        builder = builder.alignment(options.alignment);
    }
    Ok(builder.build()?)
}

/// Creates a pool. `*pool` gets the handle, to be closed with ringfile_pool_free.
///
/// Any thread. Does not block. -EINVAL: invalid options; -ENOMEM: the system has no memory, or no huge pages.
///
/// Pointers: `options` points to a struct whose `size` is set, and `pool` to memory for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_pool_create(
    options: *const ringfile_pool_options,
    pool: *mut *mut ringfile_pool,
) -> c_int {
    done(|| {
        // SAFETY: by the contract in the header.
        let options = unsafe { raw::options(options, "ringfile_pool_options") }?;
        if pool.is_null() {
            return Err(Fault::null("the pointer to the pool's handle"));
        }
        let handle = POOLS.add(build(&options)?)?;
        // SAFETY: by the contract in the header.
        unsafe { raw::put(pool, handle, "the pointer to the pool's handle") }
    })
}

/// Closes a pool. Its buffers stay valid until they are released; then the memory returns to the system.
///
/// Any thread. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_pool_free(pool: *mut ringfile_pool) -> c_int {
    done(|| POOLS.remove(pool).map(drop))
}

/// Stores the counters of a pool.
///
/// Any thread. Takes the pool's lock for a moment.
///
/// Pointers: `counts` points to a struct whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_pool_metrics(
    pool: *const ringfile_pool,
    counts: *mut ringfile_pool_counts,
) -> c_int {
    done(|| {
        let metrics = POOLS.get(pool)?.metrics();
        let known = ringfile_pool_counts {
            size: 0,
            capacity: metrics.capacity as u64,
            reserved: metrics.reserved as u64,
            reserved_high_water: metrics.reserved_high_water as u64,
            in_use: metrics.in_use as u64,
            misses: metrics.misses,
            outside_allocations: metrics.outside_allocations,
            outside_bytes: metrics.outside_bytes as u64,
            waits: metrics.waits,
            failures: metrics.failures,
            regions: metrics.regions as u64,
            registered_regions: metrics.registered_regions as u64,
            registered_bytes: metrics.registered_bytes as u64,
            refused_registrations: metrics.refused_registrations as u64,
        };
        // SAFETY: by the contract in the header.
        unsafe { raw::give(counts, &known, "ringfile_pool_counts") }
    })
}

/// Gets a buffer of a pool, with that capacity and length 0. `*buffer` gets the handle, to be closed with
/// ringfile_buffer_release.
///
/// Any thread. Blocks only if the pool is full and set to wait. -ENOMEM: the pool is full, or can never provide that
/// much.
///
/// Pointers: `buffer` points to memory for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringfile_buffer_get(
    pool: *const ringfile_pool,
    capacity: usize,
    buffer: *mut *mut ringfile_buffer,
) -> c_int {
    done(|| {
        if buffer.is_null() {
            return Err(Fault::null("the pointer to the buffer's handle"));
        }
        if capacity == 0 {
            return Err(Fault::invalid("a buffer of 0 bytes was requested: request at least 1"));
        }
        let memory = POOLS.get(pool)?.get(capacity)?;
        let known = Known { start: memory.as_ptr().addr(), capacity, length: AtomicUsize::new(0) };
        let start = known.start;
        if memory::add(memory, false).is_err() {
            return Err(Fault::new(
                libc::EEXIST,
                "the pool's memory overlaps memory that was registered with ringfile_memory_register",
            ));
        }
        let handle = BUFFERS.add(Arc::new(known)).inspect_err(|_| drop(memory::remove(start)))?;
        // SAFETY: by the contract in the header.
        unsafe { raw::put(buffer, handle, "the pointer to the buffer's handle") }
    })
}

/// Returns the address of a buffer's memory, which never changes. NULL if the handle is not an open buffer.
///
/// Any thread. Does not block. The memory holds what this process wrote there before, or zeros.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_buffer_data(buffer: *const ringfile_buffer) -> *mut c_void {
    let start = call(|| BUFFERS.with(buffer, |known| known.start as i64));
    if start > 0 { std::ptr::with_exposed_provenance_mut(start as usize) } else { std::ptr::null_mut() }
}

/// Returns a buffer's capacity in bytes: what was asked for. Any thread; does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_buffer_capacity(buffer: *const ringfile_buffer) -> i64 {
    call(|| BUFFERS.with(buffer, |known| known.capacity as i64))
}

/// Returns a buffer's length in bytes, as ringfile_buffer_set_length or ringfile_buffer_read last set it. Any thread;
/// does not block.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_buffer_length(buffer: *const ringfile_buffer) -> i64 {
    call(|| BUFFERS.with(buffer, |known| known.length.load(Ordering::Acquire) as i64))
}

/// Sets a buffer's length: the bytes that ringfile_buffer_write writes. Any thread; does not block. -EINVAL if it is
/// above the capacity.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_buffer_set_length(buffer: *mut ringfile_buffer, length: usize) -> c_int {
    done(|| set_length(buffer, length))
}

pub(crate) fn set_length(buffer: *const ringfile_buffer, length: usize) -> Result<()> {
    let known = BUFFERS.get(buffer)?;
    if length > known.capacity {
        let Known { capacity, .. } = *known;
        return Err(Fault::invalid(format!("length {length} is above the buffer's capacity {capacity}")));
    }
    known.length.store(length, Ordering::Release);
    Ok(())
}

/// Returns a buffer's memory, capacity and length.
pub(crate) fn extent(buffer: *const ringfile_buffer) -> Result<(*mut c_void, usize, usize)> {
    let known = BUFFERS.get(buffer)?;
    let start = std::ptr::with_exposed_provenance_mut(known.start);
    Ok((start, known.capacity, known.length.load(Ordering::Acquire)))
}

/// Closes a buffer. Its memory returns to the pool at once, or after the operations on it have finished.
///
/// Any thread. Does not block. The memory must not be accessed afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_buffer_release(buffer: *mut ringfile_buffer) -> c_int {
    done(|| {
        let known = BUFFERS.remove(buffer)?;
        drop(memory::remove(known.start));
        Ok(())
    })
}
