//! Many operations at once, from any thread and in any executor.
//!
//! [`Batch`] collects operations and carries them out together; a [`Queue`] returns results in the order in which they
//! arrive, to one thread, and a [`SharedQueue`], with the same methods, to any. All use one engine, and differ in the source of its operations: a
//! plan, or a queue's entries. Knows files and the driver; single futures of a file do not use it. Invariants: every
//! operation has its own result; a failing operation does not affect others unless that was requested.

mod batch;
mod done;
mod engine;
mod entries;
mod files;
mod item;
mod mailbox;
mod merge;
mod plan;
mod queue;
mod queue_state;
mod read_many;
mod remote;
mod shared_queue;
mod started;
mod sync;

pub use batch::{Batch, BatchRun};
pub use done::{Completion, Token};
pub use queue::{Canceller, Queue};
pub use read_many::{ReadRequest, WriteRequest};
pub use shared_queue::SharedQueue;
pub use started::StartedBatch;

#[cfg(feature = "config")]
pub(crate) use batch::MAX_DEPTH;
