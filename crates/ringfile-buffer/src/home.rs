//! Homes: where the memory of a block belongs, and returns to with the last reference.
//!
//! Knows both homes, a pool's core and a lender; no other file distinguishes them. Invariants: a block's home lives while
//! the block has references; the memory returns once, with the last of them.

use std::ptr::NonNull;

use once_cell::race::OnceBox;

use super::block::{Block, BlockKind};
use super::buffer::Buffer;
use super::core::{Core, WhenFull};
use super::lend::Lender;
use super::pool::Pool;
use super::region::Region;

/// Returns the pool of buffers that were made without one.
fn common() -> &'static Pool {
    static COMMON: OnceBox<Pool> = OnceBox::new();
    COMMON.get_or_init(|| {
        let builder = Pool::builder().capacity(64 << 20).registered(false);
        Box::new(builder.quiet(WhenFull::Outside { limit: usize::MAX }))
    })
}

/// Drops one reference. The last one returns the memory to its home.
///
/// # Safety
/// The caller owns the reference and gives it up: it touches neither header nor memory any more.
#[inline]
pub(super) unsafe fn release(block: NonNull<Block>) {
    // SAFETY: the reference that is given up has kept the header and its home alive.
    let header = unsafe { block.as_ref() };
    if header.kind() == BlockKind::Nobodys || !header.refs.drop_one() {
        return;
    }
    match header.kind() {
        // SAFETY: a lent block's home is its lender, and this was the last reference.
        BlockKind::Lent => unsafe { Lender::take_back(block) },
        BlockKind::Nobodys | BlockKind::Borrowed => {}
        // SAFETY: any other block's home is a pool's core, and this was the last reference.
        _ => unsafe { Core::give_back(block) },
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the buffer's own reference, given up once.
        unsafe { release(self.block) }
    }
}

/// Returns the region that contains a buffer; none for memory outside a pool, or across two regions of lent memory.
#[inline]
pub fn region(buffer: &Buffer) -> Option<&Region> {
    buffer.region()
}

/// What a buffer knows of the home of its block.
impl Buffer {
    /// As the function `region`.
    #[inline]
    pub(crate) fn region(&self) -> Option<&Region> {
        let header = self.header();
        // SAFETY: a block's region outlives all references of the block, of which `self` has one.
        let region = unsafe { header.region().as_ref() };
        if region.is_none() && header.kind() == BlockKind::Lent {
            let (start, len) = self.span();
            // SAFETY: the kind says so, and our reference is there.
            return unsafe { Lender::region_of_part(header, start, len) };
        }
        region
    }

    /// Returns the core of the pool that may provide a larger block, or why none may.
    pub(super) fn may_grow(&self) -> Result<&Core, &'static str> {
        if self.capacity() == 0 && self.header().kind() == BlockKind::Nobodys {
            return Ok(common().core());
        }
        self.core().ok_or("its memory does not come from a pool")?.lets_buffers_grow()
    }

    /// Returns the core of the pool that the memory comes from, if any.
    pub(super) fn core(&self) -> Option<&Core> {
        match self.header().kind() {
            // SAFETY: the home of such a block is a core, which our reference keeps.
            BlockKind::Cached | BlockKind::Exact | BlockKind::Outside => unsafe {
                self.header().home().cast::<Core>().as_ref()
            },
            BlockKind::Lent | BlockKind::Nobodys | BlockKind::Borrowed => None,
        }
    }
}
