//! Disk I/O for Linux over io_uring, for programs that manage their own data: databases, message logs, caches, query
//! engines.
//!
//! A program opens a [`File`], takes aligned memory from a [`Pool`], and awaits reads and writes. The library registers
//! the memory with the kernel, finds the alignment that O_DIRECT needs, continues short and interrupted operations, and
//! keeps every buffer alive until the kernel has finished with it.
//!
//! # First program
//!
//! This reads 16 KiB at offset 1 MiB directly from the drive. [`block_on`] runs the future on this thread, which gets its
//! own ring. `direct(true)` means O_DIRECT; `buffered_fallback(true)` lets the program also run on file systems without
//! it (tmpfs).
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("data.bin");
//! # std::fs::write(&path, vec![7; 2 << 20])?;
//! use ringfile::{OpenOptions, Pool};
//!
//! let pool = Pool::new(64 << 20); // at most 64 MiB
//! ringfile::block_on(async {
//!     let mut options = OpenOptions::new();
//!     let file = options.read(true).direct(true).buffered_fallback(true).open(&path).await?;
//!     let page = file.read_at(pool.get(16 << 10)?, 1 << 20).await?;
//!     assert_eq!((page.len(), page[0]), (16 << 10, 7));
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # What to use
//!
//! | to | use |
//! |---|---|
//! | open, read, write and sync a file | [`OpenOptions`], [`File`] |
//! | open, rename, link, remove or list files without blocking a thread | [`fs`] |
//! | get aligned, registered memory | [`Pool`], [`Buffer`] |
//! | do I/O on memory that the program already has | [`RegisteredMemory`] ([`buf::register`]), or any [owned memory](IoBuf) such as `Vec<u8>` |
//! | do many operations in one call, on any thread | [`Batch`] |
//! | add file I/O to an event loop | [`Queue`], or, if several threads share it, [`SharedQueue`] |
//! | read a whole file | [`Reader`], a stream of [`Bytes`](bytes::Bytes) |
//! | append to a log, durably, from many tasks | [`Appender`] |
//! | test that nothing is lost in a power cut | `sim`, simulated disks (feature `sim`) |
//! | make a write survive a power cut | [`File::write_durable_at`], [`File::write_atomic_at`], [`File::sync_data`] |
//! | read cached data from the cache and the rest from the drive | [`OpenOptions::adaptive`] |
//! | run futures with a ring per thread | [`block_on`], [`spawn`], [`Runtime`] |
//! | see where operations went | [`metrics()`], [`thread_metrics`], [`Pool::metrics`], [`metrics::ring_features`] |
//! | take settings from a file and the environment | `Config` (feature `config`, on by default) |
//!
//! # Buffers and cancellation
//!
//! An operation takes its buffer and returns it with the result, its length set; an error holds the buffer too. Nothing
//! happens before a future is first polled. From then on the driver owns the buffer until the kernel has answered.
//! Dropping the future withdraws an operation that was not submitted, and asks the kernel to cancel one that was. Most
//! disks cannot cancel; the buffer is then kept until the completion, and what a write has written stays in the file. Leaving
//! [`block_on`], or dropping a [`Runtime`], waits for everything in flight, except for a worker that waits for a pipe.
//!
//! # Threads and executors
//!
//! Futures work in every executor. On a ringfile thread (inside [`block_on`] or a [`Runtime`]) an operation goes to the
//! thread's own ring: the loop runs every ready task, submits all their I/O with one system call, and waits in the same
//! call. In tokio or another executor, a buffered read of cached data is done at once on the executor's thread; every
//! operation that would wait goes to an I/O thread of the library ([`set_io_threads`](runtime::set_io_threads)), or, with the feature `tokio` and after
//! `attach_to_tokio`, to a ring that the threads of the tokio runtime use themselves.
//!
//! An operation belongs to the thread that polled it first. A future may move to another thread: it is `Send` if its
//! buffer is, and polling it there costs a message between the two threads. Files, pools and buffers are `Send + Sync`.
//! Tasks stay on their thread.
//!
//! Threads that the library starts block all signals, so that the program's own threads get them, except for faults such as
//! SIGSEGV. They have the affinity, scheduling class, nice value and I/O priority of the process's first thread, but no
//! real-time class. Threads of a [`Runtime`] take after the one that builds it.
//!
//! A waker is called on the thread where its operation has ended, which may be one of the library's, and never under a
//! lock. It may start, poll and drop operations. It must not wait for an operation to end: the thread that
//! calls the waker may be the one that would end it. (Executors' wakers only post a message.)
//!
//! # Routes
//!
//! io_uring passes some I/O to kernel threads, which costs many times as much as the I/O itself: on tmpfs and
//! overlayfs, and for buffered writes on most file systems. ringfile learns this from each file's first operations,
//! separately for reads and writes, and makes plain calls where they are cheaper. [`Route`] selects a route.
//!
//! Without io_uring (an old kernel, a container's seccomp profile, the sysctl `kernel.io_uring_disabled`), direct I/O uses
//! Linux AIO and worker threads carry out everything else; without AIO, worker threads do everything. One warning through
//! `tracing` names the cause. `RINGFILE_DISABLE=io_uring` in the environment switches io_uring off,
//! `RINGFILE_DISABLE=io_uring,aio` AIO as well.
//!
//! # Errors
//!
//! [`Error`] names the operation, the file, the cause and what to try; it keeps the errno and the number of bytes done.
//! Operations with a buffer return a [`BufError`], which holds the buffer. `?` turns both into [`std::io::Error`].
//! [`IntoParts`](buf::IntoParts) gives the `(result, buffer)` of other io_uring libraries.
//!
//! A short read is continued; a short result of [`File::read_at`] means the end of the file. A write is complete or an
//! error.
//!
//! # After a fork
//!
//! Rings and threads belong to the parent, whose I/O continues. Pool memory can be read in the child; with
//! [`PoolBuilder::dont_fork`](buf::PoolBuilder::dont_fork) it is zero there. Threads that had used the library before the fork can make plain calls
//! there, as long as these do not wait for another process; other operations, and operations that were in flight, fail.
//! New threads of the child get rings of their own.
//!
//! # Kernels
//!
//! Linux 5.6 is the oldest version that can work. The library never compares versions: it tries each
//! feature, and works without those that the kernel refuses. 5.19 brings registered buffers, 6.1 deferred task work, 6.13 registrations that all threads share,
//! 6.15 vectored I/O on registered memory. Registered memory counts against `RLIMIT_MEMLOCK`; if the limit refuses it, I/O
//! continues unregistered, with one warning through `tracing`, and [`refused_registration`](buf::refused_registration) returns the cause.
//!
//! # Other runtimes' buffers
//!
//! [`Buffer`] implements the buffer traits of compio 0.19 (feature `compio-buf-08`), monoio 0.2 (`monoio-02`) and
//! tokio-uring 0.5 (`tokio-uring-05`). compio reads into a `CompioBuffer`, which is unsafe to create, since compio's trait
//! lets safe code write uninitialised bytes. Each feature needs the Rust version that its runtime needs.

mod aio;
mod caught;
#[cfg(feature = "config")]
pub mod config;
mod counters;
mod descriptor;
mod driver;
mod error;
mod file;
pub mod fs;
mod latency;
mod lock;
mod many;
mod memory;
#[cfg(test)]
#[path = "../tests/it/support/patience.rs"]
mod patience;
#[cfg(test)]
#[path = "../tests/it/support/random.rs"]
#[expect(dead_code, reason = "unit tests need a part of it")]
mod random;
mod ring;
pub mod runtime;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(not(feature = "sim"))]
#[path = "sim/absent.rs"]
mod sim;
#[cfg(test)]
#[path = "../tests/it/support/skip.rs"]
#[allow(dead_code, reason = "unit tests need a part of it")]
mod skip;
mod timer;

#[cfg(feature = "config")]
pub use config::Config;
#[cfg(feature = "tokio")]
pub use driver::attach_to_tokio;
#[cfg(fuzzing)]
pub use driver::fuzzing;
pub use driver::{Route, metrics, set_default_route, thread_metrics};
pub use error::{BufError, BufResult, Error, Result};
pub use file::{Appender, Durability, File, Op, OpenOptions, Output, Reader};
pub use many::{Batch, Completion, Queue, SharedQueue, Token};
#[doc(inline)]
pub use memory::{AnyBuffer, Buffer, IoBuf, IoBufMut, Pool, RegisteredMemory, WhenFull};
pub use runtime::{JoinHandle, Runtime, block_on, spawn};

/// Memory for I/O: settings and counts of pools, traits of buffers, and registration.
pub mod buf {
    pub use crate::driver::register;
    pub use crate::error::IntoParts;
    #[cfg(feature = "compio-buf-08")]
    #[doc(inline)]
    pub use crate::memory::CompioBuffer;
    #[doc(inline)]
    pub use crate::memory::{
        ClassMetrics, GetBuffer, HugePages, PoolBuilder, PoolError, PoolMetrics, ReadMemory, RequestMemory,
        Shares, Slice, StableMemory, WriteMemory,
    };
    pub use crate::ring::{RegistrationRefused, refused_registration};
}

/// What belongs to an [`Appender`]: its settings, its records, its counts, and readers of its end.
pub mod log {
    pub use crate::file::{AppenderMetrics, OpenAppender, Reservation, TailReader};
}

/// Counters of operations, per thread and for the process, and histograms of their latencies.
///
/// A driver counts in plain integers and publishes them once per turn of its loop, so that counting has no visible
/// cost. Process-wide counters are the sum over running and ended threads.
pub mod metrics {
    pub use crate::counters::{ENTER_BUCKETS, Metrics};
    pub use crate::driver::ring_features;
    pub use crate::latency::{Histogram, Latencies, OperationKind};
}

/// What belongs to a [`Queue`] or a [`Batch`]: requests of many blocks, and what runs or
/// cancels operations.
pub mod queue {
    pub use crate::many::{BatchRun, Canceller, ReadRequest, StartedBatch, WriteRequest};
}

/// What other crates of this repository, and its tests, need of this one. It may change with each version.
pub mod internal {
    pub use crate::descriptor::{above_standard, close};
    pub use crate::driver::start_thread;
    pub use crate::file::assume_memory_is_free;
    pub use crate::timer::{Timer, now, wake_at};
}
