//! One driver per thread: operations in flight, their buffers, retries, cancellation.
//!
//! Knows files as [`Target`]s and buffers as [`Held`](crate::memory::Held); knows nothing of futures' types, nor of
//! tasks. Invariants:
//!
//! - a slot owns its buffer from [`start`](start()) until the completion was seen, whatever was dropped meanwhile
//!   (reads [in place](in_place) have no slot, and borrow their buffers for as long);
//! - each operation gets its own result, with its errno and how many bytes were done; a completion that matches no
//!   operation is counted and never used;
//! - wakers are called, and users' buffers dropped, only while the driver is not borrowed: both may call the driver;
//! - when the thread has left its loop ([`leave`](leave())) nothing of that loop is in flight.

mod alignment;
mod alone;
mod cancel;
mod choice;
mod complete;
mod copy_time;
mod counts;
mod deferred;
mod files;
pub(crate) mod filler;
mod forks;
mod in_place;
#[cfg(feature = "tokio")]
mod in_tokio;
mod iothreads;
#[cfg(feature = "tokio")]
mod joint;
mod kept;
mod key;
mod leave;
mod local;
mod mail;
mod marks;
mod namespace;
mod op;
mod ports;
mod refused;
mod register;
mod remote;
mod remote_operation;
mod result;
mod route;
mod roving;
mod shared;
#[cfg(feature = "sim")]
mod simulated;
mod sleep;
mod slot;
mod start;
mod state;
mod submit;
mod switches;
mod sync;
mod target;
#[cfg(test)]
mod tests;
mod thread_ring;
mod ticket;
pub(crate) mod timer;
mod timing;
mod turn;
#[cfg(feature = "tokio")]
mod turns;
mod wake;
mod worker_queue;
mod workers;

pub use alignment::{Alignment, AtomicLimits};
pub(crate) use alone::call_alone;
pub(crate) use cancel::{cancel, cancel_on_rings};
pub(crate) use counts::{count_cache, publish_counts};
pub use counts::{metrics, ring_features, thread_metrics};
pub(crate) use deferred::Deferred;
pub(crate) use forks::{hold_over_forks, why_refused};
pub(crate) use in_place::{InPlace, ReadInPlace, Targets, read as read_in_place};
#[cfg(feature = "tokio")]
pub use in_tokio::attach_to_tokio;
pub use iothreads::set_io_threads;
pub(crate) use iothreads::{call as call_on, choose as choose_io_thread, is_this_one as is_io_thread};
pub(crate) use kept::{Kept, Lend};
pub(crate) use key::{LocalHandler, Place, Started, SubmitHint};
pub(crate) use leave::leave;
#[cfg(fuzzing)]
pub use namespace::fuzzing;
pub(crate) use namespace::{Access, Namespace, Status, errno_of, look as look_for_namespace};
pub(crate) use op::cached_pages;
pub(crate) use op::{DISCARD, Ended, Kind, MOST_AT_ONCE, RWF_ATOMIC, Request};
pub(crate) use ports::{CompletionSignals, PortKind};
pub(crate) use refused::{TOO_MANY_FILES, aio_is_for_direct_io};
pub use register::register_now;
pub(crate) use remote_operation::RemoteOperation;
pub(crate) use result::{Finished, Handler};
pub(crate) use route::{FileSystem, Lanes, default_route};
pub use route::{Route, set_default_route};
pub(crate) use roving::{Bed, RovingDriver, make_bed};
pub(crate) use shared::{Call, Shared};
pub(crate) use start::{HandlerOf, add_local, remove_local, start, start_linked};
pub(crate) use target::{FileKind, Target};
pub(crate) use thread_ring::{AfterUse, RingGuard, ThreadRing, completion_signals};
pub(crate) use ticket::{Ticket, disown};
pub(crate) use timing::Timing;
pub(crate) use turn::{close, enter, turn};
pub(crate) use wake::{TaskNumber, is_main_polled, polled, polling};
pub use workers::set_worker_threads;
pub(crate) use workers::withdraw;
