//! `RegisteredMemory`: memory that the user already has, lent out as buffers.
//!
//! Knows regions, block headers and buffers. Invariants: no byte is in two lent ranges; the owner is dropped
//! after the registration, when the `RegisteredMemory` and all lent buffers are gone.

use std::any::Any;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::block::{Block, BlockKind};
use super::buffer::Buffer;
use super::error::PoolError;
use super::locks::{self, HasLock};
use super::region::{REGION_MAX, Region};

/// The maximum number of headers kept for reuse; each costs 64 bytes.
const MOST_SPARE: usize = 1024;

/// Memory that can be registered: its bytes never move.
///
/// # Safety
/// From the call of [`as_mut_ptr`](StableMemory::as_mut_ptr) until the value is dropped, `len` bytes at that address
/// must be initialised, readable and writable, and nothing else may access them, as long as no other method of the
/// value is called. Moving the box that holds the value changes nothing.
pub unsafe trait StableMemory: Send + Sync + 'static {
    /// Returns the address of the memory.
    fn as_mut_ptr(&mut self) -> *mut u8;

    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

// SAFETY: a vector's elements are on the heap, initialised up to its length, and its own.
unsafe impl StableMemory for Vec<u8> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        Vec::as_mut_ptr(self)
    }

    fn len(&self) -> usize {
        Vec::len(self)
    }
}

// SAFETY: a box's bytes are on the heap, initialised, and its own.
unsafe impl StableMemory for Box<[u8]> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        <[u8]>::as_mut_ptr(self)
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

/// Memory of the program, such as a database's pages, registered with io_uring and lent as [`Buffer`]s.
///
/// The memory is registered when it is first used for I/O, in regions of at most 1 GiB; if the system refuses, I/O
/// continues unregistered. Cheap to clone.
///
/// ```
/// use ringfile_buffer::RegisteredMemory;
/// let pages = RegisteredMemory::new(vec![7_u8; 1 << 20]);
/// let page = pages.lend(8192..16384)?;
/// assert_eq!(page[0], 7);
/// assert!(pages.lend(0..8193).is_err(), "the last byte is lent");
/// drop(page);
/// assert!(pages.lend(..).is_ok());
/// # Ok::<(), ringfile_buffer::PoolError>(())
/// ```
#[derive(Clone)]
pub struct RegisteredMemory {
    lender: Arc<Lender>,
}

/// The state that a `RegisteredMemory` and its lent buffers share.
pub(crate) struct Lender {
    // Dropped before the owner: fields are dropped in this order.
    regions: Box<[Region]>,
    base: NonNull<u8>,
    len: usize,
    lent: Mutex<Lent>,
    /// Keeps the memory, and is never touched.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: lent ranges decide who uses the memory, and everything else is Send and Sync.
unsafe impl Send for Lender {}
// SAFETY: as above; the owner is not reachable.
unsafe impl Sync for Lender {}

impl HasLock for Lender {
    type State = Lent;

    fn mutex(&self) -> &Mutex<Lent> {
        &self.lent
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        locks::remove(NonNull::from(&*self));
    }
}

/// Which ranges are lent.
#[derive(Default)]
pub(super) struct Lent {
    /// Pairs of start and end, in order, without overlap. There are few, so a vector is enough; it allocates only when
    /// it grows.
    ranges: Vec<(usize, usize)>,
    /// Headers of ranges that were returned.
    #[expect(clippy::vec_box, reason = "lent buffers point at headers, which must not move")]
    spare: Vec<Box<Block>>,
}

impl RegisteredMemory {
    /// Registers memory on first use. Its owner is dropped when this, its clones and all lent buffers are gone.
    ///
    /// ```
    /// let memory = ringfile_buffer::RegisteredMemory::new(vec![0_u8; 4096].into_boxed_slice());
    /// assert_eq!(memory.len(), 4096);
    /// ```
    pub fn new(owner: impl StableMemory) -> Self {
        // The value is boxed first, since it must be in its final place when its address is taken.
        let mut owner = Box::new(owner);
        let (base, len) = (owner.as_mut_ptr(), owner.len());
        // SAFETY: what `StableMemory` promises.
        unsafe { RegisteredMemory::from_raw(base, len, owner) }
    }

    /// Registers memory given by its address. `owner` keeps it alive, and is dropped at the end.
    ///
    /// # Panics
    /// If `base` is null.
    ///
    /// # Safety
    /// Until `owner` is dropped, the `len` bytes at `base` must be valid and initialised, and only buffers lent from
    /// here may access them. The caller may access parts that are not lent at the time.
    pub unsafe fn from_raw(base: *mut u8, len: usize, owner: impl Any + Send + Sync) -> Self {
        let base = NonNull::new(base).expect("memory to register must not be at address 0");
        let region = |at: usize| {
            // SAFETY: `at` is within the memory.
            Region::foreign(unsafe { base.add(at) }, REGION_MAX.min(len - at))
        };
        let regions = (0..len).step_by(REGION_MAX).map(region).collect();
        RegisteredMemory { lender: Lender::new(base, len, regions, Box::new(owner)) }
    }

    /// Returns the memory's length in bytes.
    pub fn len(&self) -> usize {
        self.lender.len
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.lender.len == 0
    }

    /// Returns how many bytes are lent now.
    pub fn lent(&self) -> usize {
        self.lender.lock().ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// Lends a range of bytes, counted from the start of the memory, as a buffer with this content and length.
    ///
    /// Dropping the buffer, or all its parts, or the last `Bytes` made of it, returns the range. I/O across a multiple
    /// of 1 GiB works, but is unregistered, since it touches two regions. Takes a lock for a moment, and allocates only
    /// when more ranges are lent than ever before.
    ///
    /// # Errors
    /// [`PoolError::Lent`] if a part of the range is lent already; [`PoolError::Invalid`] if it is empty or not within
    /// the memory.
    ///
    /// ```
    /// let memory = ringfile_buffer::RegisteredMemory::new(vec![0_u8; 4096]);
    /// let mut first = memory.lend(..1024)?;
    /// first[0] = 1;
    /// let second = memory.lend(1024..)?;
    /// assert_eq!((first.len(), second.len(), memory.lent()), (1024, 3072, 4096));
    /// drop(first);
    /// assert_eq!(memory.lend(0..1)?[0], 1);
    /// # Ok::<(), ringfile_buffer::PoolError>(())
    /// ```
    pub fn lend(&self, range: impl RangeBounds<usize>) -> Result<Buffer, PoolError> {
        let lender = &self.lender;
        let (start, end) = lender.check(&range)?;
        let mut lent = lender.lock();
        let place = lent.ranges.partition_point(|&(_, lent_end)| lent_end <= start);
        if let Some(&overlapped) = lent.ranges.get(place)
            && overlapped.0 < end
        {
            return Err(PoolError::Lent { requested: (start, end), lent: overlapped });
        }
        lent.ranges.insert(place, (start, end));
        let header = lent.spare.pop();
        drop(lent);
        // SAFETY: the range was checked, and is in no other lent range. The bytes are the owner's, who promised that they
        // are initialised and stay; the block's reference is this buffer's.
        Ok(unsafe {
            Buffer::new(lender.base.add(start), end - start, end - start, lender.lend(start, end, header))
        })
    }
}

/// Returns the regions of the memory, in order.
pub fn regions(memory: &RegisteredMemory) -> &[Region] {
    &memory.lender.regions
}

impl Buffer {
    /// Creates a buffer over memory that `owner` keeps alive, with that capacity and length. `owner` is dropped when the
    /// buffer, all parts of it and all `Bytes` made of it are gone. I/O on it is unregistered. Allocates. For memory
    /// that is used repeatedly, [`RegisteredMemory`](crate::RegisteredMemory) is faster.
    ///
    /// # Safety
    /// Until `owner` is dropped, the `len` bytes at `start` must be valid and initialised, and nothing else may access
    /// them; if the buffer is only written to files, others may read them.
    ///
    /// ```
    /// let mut memory = vec![7_u8; 512];
    /// let start = memory.as_mut_ptr();
    /// // SAFETY: the vector keeps the memory, and is not touched any more.
    /// let buffer = unsafe { ringfile_buffer::Buffer::from_raw_with_owner(start, 512, memory) };
    /// assert_eq!((buffer.len(), buffer[511]), (512, 7));
    /// ```
    ///
    /// # Panics
    /// If `start` is null.
    #[inline]
    pub unsafe fn from_raw_with_owner(start: *mut u8, len: usize, owner: impl Any + Send + Sync) -> Buffer {
        let start = NonNull::new(start).expect("memory for I/O must not be at address 0");
        let lender = Lender::new(start, len, Box::default(), Box::new(owner));
        // SAFETY: by this function's contract; nobody else can lend any of the memory. The block's reference is this
        // buffer's.
        unsafe { Buffer::new(start, len, len, lender.lend(0, len, None)) }
    }
}

impl Lender {
    /// Creates the state for memory that `owner` keeps, and that is in these regions, or in none.
    pub(super) fn new(
        base: NonNull<u8>,
        len: usize,
        regions: Box<[Region]>,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Arc<Lender> {
        let lender = Arc::new(Lender { regions, base, len, lent: Mutex::default(), _owner: owner });
        locks::add(NonNull::from(&*lender));
        lender
    }

    /// Makes a header for a range, reused if there is one, and returns it with its first reference.
    ///
    /// # Safety
    /// The range lies within the memory, and no other buffer has any of it.
    pub(super) unsafe fn lend(
        self: &Arc<Self>,
        start: usize,
        end: usize,
        header: Option<Box<Block>>,
    ) -> NonNull<Block> {
        let header = header.unwrap_or_else(|| Box::new(Block::new(ptr::null_mut(), 0)));
        // SAFETY: the range lies within the memory.
        let base = unsafe { self.base.add(start) };
        let region = self.region(start, end).map_or(ptr::null(), ptr::from_ref);
        header.describe(BlockKind::Lent, 0, base.as_ptr(), end - start, region);
        header.set_home(Arc::into_raw(Arc::clone(self)).cast_mut().cast());
        header.refs.set_one();
        NonNull::from(Box::leak(header))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, range: &impl RangeBounds<usize>) -> Result<(usize, usize), PoolError> {
        let start = match range.start_bound() {
            Bound::Included(&at) => Some(at),
            Bound::Excluded(&at) => at.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(&at) => at.checked_add(1),
            Bound::Excluded(&at) => Some(at),
            Bound::Unbounded => Some(self.len),
        };
        match (start, end) {
            (Some(start), Some(end)) if start < end && end <= self.len => Ok((start, end)),
            _ => Err(PoolError::invalid(format!(
                "bytes {:?} to {:?} can't be lent: give a range that is not empty, within the memory's {} bytes",
                range.start_bound(),
                range.end_bound(),
                self.len
            ))),
        }
    }

    /// Returns the region that contains a range; none if it touches two, or is never registered.
    fn region(&self, start: usize, end: usize) -> Option<&Region> {
        let (first, last) = (start / REGION_MAX, end.saturating_sub(1) / REGION_MAX);
        if first == last { self.regions.get(first) } else { None }
    }

    /// Returns the region of a part of a lent range that touches two.
    ///
    /// # Safety
    /// The block was made by `lend`, and has a reference for as long as the region is used.
    #[cold]
    pub(super) unsafe fn region_of_part<'a>(
        block: &'a Block,
        part: NonNull<u8>,
        len: usize,
    ) -> Option<&'a Region> {
        // SAFETY: `lend` has stored a reference to the lender there, which is dropped with the block's last reference.
        let lender: &'a Lender = unsafe { &*block.home().cast_const().cast::<Lender>() };
        let start = part.addr().get() - lender.base.addr().get();
        lender.region(start, start + len)
    }

    /// Takes back a lent range with the last reference to it.
    ///
    /// # Safety
    /// The block was made by `lend`, and nobody refers to it.
    #[cold]
    pub(super) unsafe fn take_back(block: NonNull<Block>) {
        // SAFETY: made by `lend` from a box; this is the last pointer to it.
        let header = unsafe { Box::from_raw(block.as_ptr()) };
        // SAFETY: `lend` has stored a reference to the lender there.
        let lender = unsafe { Arc::from_raw(header.home().cast_const().cast::<Lender>()) };
        let start = header.base().addr() - lender.base.addr().get();
        let mut lent = lender.lock();
        if let Ok(place) = lent.ranges.binary_search_by_key(&start, |range| range.0) {
            lent.ranges.remove(place);
        }
        if lent.spare.len() < MOST_SPARE {
            lent.spare.push(header);
        }
        drop(lent);
        // This may drop the lender, which contains the lock, so it runs without the lock.
        drop(lender);
    }
}

impl fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredMemory").field("len", &self.len()).field("lent", &self.lent()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f21_more_than_a_region_is_split_and_a_range_over_the_border_is_lent_unregistered() {
        // Zeroed and never touched, so it takes no memory.
        let memory = RegisteredMemory::new(vec![0_u8; REGION_MAX + 8192]);
        let (first, over, second) = (
            memory.lend(REGION_MAX - 8192..REGION_MAX - 4096).unwrap(),
            memory.lend(REGION_MAX - 4096..REGION_MAX + 4096).unwrap(),
            memory.lend(REGION_MAX + 4096..).unwrap(),
        );
        assert_eq!(first.region().map(Region::len), Some(REGION_MAX));
        assert!(over.region().is_none());
        // Each of its parts lies in one region.
        let mut low = over;
        let high = low.split_off(4096);
        assert_eq!(low.region().map(Region::len), Some(REGION_MAX));
        assert_eq!(high.region().map(Region::len), Some(8192));
        assert_eq!(second.region().map(Region::len), Some(8192));
        for buffer in [&first, &second] {
            let (region, at) = (buffer.region().unwrap(), buffer.as_ptr() as usize);
            let start = region.base().as_ptr() as usize;
            assert!(start <= at && at + buffer.len() <= start + region.len());
        }
    }

    #[test]
    fn lending_again_uses_the_headers_that_came_back() {
        let memory = RegisteredMemory::new(vec![0_u8; 8192]);
        let header = |buffer: &Buffer| ptr::from_ref(buffer.header());
        let (one, two) = (memory.lend(..4096).unwrap(), memory.lend(4096..).unwrap());
        let before = [header(&one), header(&two)];
        drop((one, two));
        let (one, two) = (memory.lend(1..10).unwrap(), memory.lend(10..20).unwrap());
        assert!(before.contains(&header(&one)) && before.contains(&header(&two)));
    }
}
