//! The identity of a started operation, and the outcome of starting one.

use crate::driver::op::OpResult;

/// Identifies an operation: a slot, and its generation (never 0). One number, as in the kernel's entries: if two halves
/// are stored and then loaded as one, the load waits until the stores have reached the cache, which took 15 ns of an
/// operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key(u64);

impl Key {
    /// The key of no operation.
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) fn new(slot: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(slot))
    }

    #[inline]
    pub(crate) fn slot(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    pub(crate) fn to_user_data(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn from_user_data(user_data: u64) -> Self {
        Self(user_data)
    }
}

/// The identity of an operation on some thread's ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OperationId {
    pub(crate) driver: u64,
    pub(crate) key: Key,
}

/// The outcome of starting an operation. `R` represents an operation that another thread carries out.
pub(crate) enum Started<R> {
    /// A plain call has done it.
    Done(OpResult),
    /// This thread's ring has the operation and its buffer.
    Queued(OperationId),
    /// Another thread has the operation and its buffer.
    Elsewhere(R),
    /// It was not started: this thread's other tasks run first.
    Yield,
}

/// A completion handler that the driver of this thread knows by a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LocalHandler(pub(crate) u32);

/// What the caller knows about the operations that are submitted together with this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubmitHint {
    /// Operations that are started together, this one among them.
    pub together: usize,
    /// Whether the thread has no other operation, and does nothing until this one has ended.
    pub waits_for_one: bool,
}

impl SubmitHint {
    /// One operation of a task.
    pub(crate) const ONE: Self = Self { together: 1, waits_for_one: false };
}
