//! What a pool's lock guards.
//!
//! Knows regions, extents, headers and the queue, and nothing of the core; `slow.rs` works on it and keeps its
//! invariants.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::block::Numbers;
use super::class::CLASSES;
use super::extents::Extents;
use super::parts::FrozenParts;
use super::queue::WaitingGets;
use super::region::Region;

/// A region, and which of its bytes are in no block.
pub(super) struct Tract {
    pub(super) region: Arc<Region>,
    pub(super) extents: Extents,
}

/// Counters of one size class, besides those of its stacks.
#[derive(Default)]
pub(super) struct ClassBook {
    /// Blocks that exist, cached or in use.
    pub(super) existing: u64,
    /// Blocks that were handed out directly after they were made.
    pub(super) fresh: u64,
    /// Blocks that were taken from stacks but not handed out.
    pub(super) drained: u64,
}

/// Something that keeps memory of a pool which it can do without.
pub trait Spare: Send + Sync {
    /// Gives memory back if it can. Returns whether it did. Called with no lock of the pool held, when a request would fail or
    /// wait.
    fn give_up(&self) -> bool;
}

/// The data that a pool's lock guards.
#[derive(Default)]
pub(crate) struct PoolInner {
    /// The regions, oldest first.
    pub(super) tracts: Vec<Tract>,
    /// All blocks that exist, by address: in use, cached or outside.
    pub(super) blocks: BTreeMap<usize, u32>,
    pub(super) numbers: Numbers,
    pub(super) frozen: FrozenParts,
    /// One for each class.
    pub(super) classes: Box<[ClassBook]>,
    pub(super) waiters: WaitingGets,
    /// What keeps memory that it can do without.
    pub(super) spares: Vec<Weak<dyn Spare>>,
    /// Whether the last handle is gone; then all blocks that were in use at that time are anchors.
    pub(super) closed: bool,
    pub(super) reserved: usize,
    pub(super) reserved_high_water: usize,
    /// The number of bytes by which blocks in use are smaller than their class.
    pub(super) below_class: usize,
    pub(super) outside_bytes: usize,
    pub(super) outside_allocations: u64,
    /// The number of refused registrations of regions that no longer exist.
    pub(super) refused_before: usize,
}

impl PoolInner {
    pub(super) fn new() -> Self {
        PoolInner { classes: (0..CLASSES).map(|_| ClassBook::default()).collect(), ..PoolInner::default() }
    }
}
