//! Disk I/O over Linux io_uring, for programs that keep their own data: databases, message logs, caches, query
//! engines.
//!
//! Aligned memory for O_DIRECT, buffer registration, ring set-up for many kernels, continuing short and interrupted
//! I/O, and cancellation that never frees memory under the kernel are ringfile's work; the caller says what to read
//! or write.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("data.bin");
//! # std::fs::write(&path, vec![7; 2 << 20])?;
//! use ringfile::{OpenOptions, Pool};
//!
//! let pool = Pool::new(64 << 20);
//! ringfile::block_on(async {
//!     let mut options = OpenOptions::new();
//!     let file = options.read(true).direct(true).buffered_fallback(true).open(&path)?;
//!     let page = file.read_at(pool.get(16 << 10)?, 1 << 20).await?;
//!     assert_eq!((page.len(), page[0]), (16 << 10, 7));
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # The parts
//!
//! - [`File`] and [`OpenOptions`]: positional reads and writes with owned buffers, [vectored](File::read_vectored_at)
//!   and [durable](File::write_durable_at) ones, syncing, allocating; [`Reader`] streams a file as
//!   [`Bytes`](bytes::Bytes), [`Appender`] appends to one from many tasks.
//! - [`fs`]: opening, renaming, removing and more by path, without blocking a thread.
//! - [`Pool`] and [`Buffer`]: aligned memory with a hard limit, registered with the kernel by itself. A buffer
//!   [freezes](Buffer::freeze) to `Bytes` without a copy, and [grows](Buffer#growing) as a [`bytes::BufMut`].
//!   [`RegisteredMemory`] takes memory that the program has already. `Vec<u8>` and other [owned memory](IoBuf) works too,
//!   unregistered.
//! - [`Batch`]: many operations at once, from any thread, blocking or awaited. [`Queue`]: submissions and completions
//!   apart, with cancelling and a descriptor to wait on, for a program with a loop of its own.
//! - [`block_on`], [`spawn`] and [`Runtime`]: who runs the futures. A thread's loop runs what is ready, submits all
//!   I/O that came of it with one system call, and waits in that same call.
//! - [`thread_metrics`], [`metrics`], [`Pool::metrics`] and [`ring_features`]: where operations went, and what the
//!   kernel has.
//! - The buffer traits of other runtimes, for [`Buffer`]: of compio 0.19 (feature `compio-buf-08`), monoio 0.2 (`monoio-02`) and
//!   tokio-uring 0.5 (`tokio-uring-05`). Each needs the Rust that its runtime needs.
//! - `Config`: what was found best on a machine, from a TOML file and the environment (feature `config`, on by default).
//!
//! # Buffers and cancellation
//!
//! An operation takes its buffer and gives it back with the result, its length set, also inside an error. Futures are
//! lazy: nothing happens before the first poll. From then on the buffer is the driver's until the kernel has
//! answered. Dropping the future withdraws what was not submitted and asks the kernel to cancel the rest, which most
//! disks can't; the buffer is kept until the completion, and what was written by then is written. Leaving
//! [`block_on`], or dropping a [`Runtime`], waits for everything in flight, but for a pipe
//! that a worker waits on.
//!
//! # Threads
//!
//! An operation belongs to the thread that first polled it. On a ringfile thread it goes to that thread's own ring. On
//! any other, in tokio or another executor, a buffered read of what is cached is done at once, and everything that
//! would wait goes to a thread of the library's that has a ring ([`set_io_threads`]). A future may move to another
//! thread: it is `Send` where its buffer is, and polling it there costs a message between the two. Files, pools and
//! buffers are `Send + Sync`. Tasks stay on their thread.
//!
//! A waker is called on the thread where its operation has ended, which may be one of the library's, and never under a lock. It
//! may start, poll and drop operations. It must not wait for one to end: the thread that calls it may be the one that would
//! end it. The wakers of executors only leave a message.
//!
//! # Routes
//!
//! The kernel hands some I/O to threads of its own, which costs many times what the I/O does: tmpfs, overlayfs,
//! buffered writes on most file systems. ringfile finds out from a file's own first operations, for reads and writes
//! apart, and makes a plain call instead where that is cheaper ([`Route`]). Where there is no io_uring (an old kernel, a
//! container's seccomp profile, the sysctl `kernel.io_uring_disabled`), Linux AIO carries out direct I/O and worker threads
//! all else, with one warning through `tracing`; where AIO can't be had either, worker threads carry out everything.
//! `RINGFILE_BACKEND=aio` in the environment makes the library do without io_uring on purpose, `RINGFILE_BACKEND=workers`
//! without AIO as well.
//!
//! After a `fork`, pool memory can be read in the child. Threads that had used the library before make plain calls there,
//! for what these do without waiting for another process; the rest, and operations that were in flight, are errors.
//!
//! # Errors
//!
//! [`Error`] says what was being done to which file, why it failed and what to try; it keeps the errno and the number
//! of bytes done. Operations with a buffer give a [`BufError`], which carries the buffer. `?` turns both into
//! [`std::io::Error`]. [`IntoParts`] gives the `(result, buffer)` that other io_uring libraries return.
//!
//! A short read is continued; a short result of [`File::read_at`] means the end of the file. A write is complete or
//! an error.
//!
//! # Kernels
//!
//! Versions are never compared: what is refused is given up, piece by piece. Linux 5.6 has what is needed at least;
//! 5.19 brings registered buffers, 6.1 deferred task work, 6.13 registrations that all threads share, 6.15 vectored
//! I/O on registered memory. Registering counts against `RLIMIT_MEMLOCK`; where it is refused, I/O goes on
//! unregistered, with one warning through `tracing`; [`refused_registration`] gives the cause.

#[cfg(not(target_os = "linux"))]
compile_error!("ringfile needs Linux: it is a layer over io_uring, which other systems do not have");

mod aio;
#[cfg(feature = "config")]
mod config;
mod driver;
mod error;
mod event;
mod file;
pub mod fs;
mod many;
mod memory;
mod metrics;
mod ring;
mod runtime;

#[cfg(feature = "config")]
pub use config::{Buffers, Config};
pub use driver::{AtomicLimits, Route, set_default_route};
pub use error::{BufError, BufResult, Error, IntoParts, Result};
pub use file::{
    Advice, Alignment, AllocateMode, Append, Appender, AppenderMetrics, Control, Durability, File, Io,
    IoVectored, Next, OpenAppender, OpenOptions, RangeSync, Reader, Settle, WriteDurable,
};
#[doc(no_inline)]
pub use fs::sync_dir;
pub use many::{AnyBuffer, Batch, BatchRun, Done, Queue, StartedBatch, Token};
pub use memory::{
    Buffer, ClassMetrics, GetBuffer, HugePages, IoBuf, IoBufMut, Pool, PoolBuilder, PoolError, PoolMetrics,
    RegisteredMemory, StableMemory, WhenFull,
};
pub use metrics::{ENTER_BUCKETS, Metrics, metrics, thread_metrics};
pub use ring::{Completions, RegistrationRefused, refused_registration};
pub use runtime::{JoinError, JoinHandle, Panic, Runtime, RuntimeBuilder, block_on, spawn};

/// Sets how many threads carry out operations that threads without a ring of their own await: those of other executors.
/// One by default. No effect once they were made, with the first such operation.
pub fn set_io_threads(threads: usize) {
    driver::set_io_threads(threads);
}

/// Sets how many [workers](Route::Workers) there may be at most; 0 for the usual number, four a core and 16 at least.
pub fn set_worker_threads(threads: usize) {
    driver::set_worker_threads(threads);
}

/// What io_uring offers here, as a ring of this process gets it: set-up flags, what can be registered, entries.
///
/// Of the calling thread's ring, or of one made to look at.
///
/// # Errors
/// Where no ring can be made; the error says what is in the way.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// println!("{}", ringfile::ring_features()?.join(" "));
/// # Ok(())
/// # }
/// ```
pub fn ring_features() -> Result<Vec<String>> {
    driver::features()
}
