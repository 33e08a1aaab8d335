//! Threads of the library that do what the calling thread must not wait for: workers, and I/O threads with rings.

pub(super) mod iothreads;
pub(super) mod own_threads;
pub(super) mod remote_operation;
pub(super) mod rights;
pub(super) mod worker_queue;
pub(super) mod workers;
