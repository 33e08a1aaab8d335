//! One driver per thread: operations in flight, their buffers, retries, cancellation.
//!
//! Knows files as [`Target`]s and buffers as [`IoMemory`](crate::memory::IoMemory); knows nothing of futures' types, nor of
//! tasks. Invariants:
//!
//! - a slot owns its buffer from [`start`](start()) until the completion was seen, whatever was dropped meanwhile
//!   (reads [in place](turn::in_place) have no slot, and borrow their buffers for as long);
//! - each operation gets its own result, with its errno and how many bytes were done; a completion that matches no
//!   operation is counted and never used;
//! - wakers are called, and users' buffers dropped, only while the driver is not borrowed: both may call the driver;
//! - when the thread has left its loop ([`leave`](leave())) nothing of that loop is in flight.

mod elsewhere;
pub(crate) mod mail;
pub(crate) mod op;
mod ports;
pub(crate) mod refused;
mod register;
mod shared;
mod slots;
mod start;
mod target;
mod time_slice;
mod turn;

pub use elsewhere::iothreads::set_io_threads;
pub(crate) use elsewhere::iothreads::{
    call as call_on, choose as choose_io_thread, is_this_one as is_io_thread, rights_in_common, still_has,
};
pub use elsewhere::own_threads::start_thread;
pub(crate) use elsewhere::remote_operation::RemoteOperation;
pub(crate) use elsewhere::rights::Rights;
pub use elsewhere::workers::set_worker_threads;
pub(crate) use elsewhere::workers::withdraw;
pub(crate) use mail::shared::{PostedCall, Shared};
pub(crate) use op::cached_pages;
pub(crate) use op::{DISCARD, Kind, MOST_AT_ONCE, OpResult, RWF_ATOMIC, Request, WRITTEN, Zeros};
pub(crate) use ports::CompletionSignals;
pub(crate) use refused::{TOO_MANY_FILES, aio_is_for_direct_io};
pub use register::register;
pub(crate) use shared::driver::{SharedDriver, User};
#[cfg(feature = "tokio")]
pub use shared::tokio::attach_to_tokio;
pub(crate) use slots::handler::{Finished, Handler};
pub(crate) use slots::key::{LocalHandler, OperationId, Started, SubmitHint};
pub(crate) use slots::loan::{Lend, Loan};
pub(crate) use slots::wake::{TaskNumber, is_main_polled, polled, polling};
pub(crate) use start::{HandlerOf, call_settled, start};
pub use target::alignment::{Alignment, AtomicLimits};
#[cfg(fuzzing)]
pub use target::namespace::fuzzing;
pub(crate) use target::namespace::{Access, Namespace, Status, errno_of, look as look_for_namespace};
pub(crate) use target::port_kind::PortKind;
pub(crate) use target::route::{FileSystem, Lanes, default_route};
pub use target::route::{Route, set_default_route};
pub(crate) use target::timing::Timing;
pub(crate) use target::{FileKind, Target};
pub(crate) use turn::alone::call_alone;
pub(crate) use turn::cancel::{cancel, cancel_on_rings};
pub(crate) use turn::counts::{count_cache, publish_counts};
pub use turn::counts::{metrics, ring_features, thread_metrics};
pub(crate) use turn::deferred::Deferred;
pub(crate) use turn::forks::{hold_over_forks, why_refused};
pub(crate) use turn::in_place::{InPlace, ReadInPlace, Targets, read as read_in_place};
pub(crate) use turn::leave::leave;
pub(crate) use turn::linked::start_linked;
pub(crate) use turn::thread_ring::{AfterUse, RingGuard, ThreadRing, completion_signals};
pub(crate) use turn::ticket::{Ticket, disown};
pub(crate) use turn::{add_local, enter, remove_local, turn};
