//! A page cache of the program's own.
//!
//! For programs that read pages of files again and again and know better than the kernel how much memory they may have
//! for that: databases, vector and full-text search, key-value stores. A page in memory costs little more than with
//! mmap; one that is not is one direct read, through io_uring, into registered memory.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("index");
//! # std::fs::write(&path, vec![7; 1 << 20])?;
//! use ringfile::OpenOptions;
//! use ringfile_cache::Cache;
//!
//! let cache = Cache::new(256 << 20)?; // at most 256 MiB, for all files together
//! let file = OpenOptions::new().read(true).direct(true).buffered_fallback(true).open_blocking(&path)?;
//! let pages = cache.open(file, 4096)?;
//! ringfile::block_on(async {
//!     let page = match pages.get(42) {
//!         Some(page) => page,                // in memory: no lock, no wait
//!         None => pages.read(42).await?,     // shared by all who wait for it
//!     };
//!     assert_eq!(page[0], 7);                // its memory stays while `page` exists
//!     Ok(())
//! })
//! # }
//! ```
//!
//! [`CachedFile::read`] alone does the same. The guide's page "Keeping pages in memory" tells when the kernel's page
//! cache, [adaptive files](ringfile::OpenOptions::adaptive) or this is the right choice.
//!
//! # How it works
//!
//! ```text
//!  page number ──▶ table ──▶ word: frame, pins, visits, state   (word, table, page: no lock)
//!                              │          the frames that each thread uses   (holds, threads)
//!                              │
//!                              ▼
//!                            frame in registered memory          (memory)
//!
//!  a miss ──▶ under a lock: a free frame, or that of the page that S3-FIFO evicts   (core)
//!         ──▶ one read, which all who miss the page wait for                        (pending)
//! ```
//!
//! # After a fork
//!
//! A child finds the pages that were in memory, and its copies of their bytes. Fork only while no other thread uses the
//! cache: a lock that another thread held stays locked in the child. What a child may read and write, and from which
//! threads, says the documentation of the crate `ringfile`. A page that was being read at the fork is never there in
//! the child: its read ends in the parent, so do not wait for it.

// Files import each other downwards only: `cache`, `read` and `file` (what users call); `transfer`, which fills frames; `shared`,
// which has the lock; `core`, which is what the lock guards; `pending` and `page`; `inner`, what is kept of a file;
// `budget`, `memory`, `table`, `counts`; `threads`, `holds`, `word`; and `background`, `sync`, `wake`, `error`.

mod background;
mod budget;
mod cache;
mod core;
mod counts;
mod error;
mod file;
mod holds;
mod inner;
mod memory;
mod page;
mod pending;
mod pressure;
mod read;
mod shared;
mod sync;
mod table;
mod threads;
mod transfer;
mod turn;
mod wake;
mod word;

pub use cache::{Cache, CacheBuilder};
pub use counts::Metrics;
pub use file::CachedPages;
pub use page::Page;
pub use read::Read;
pub use shared::CachedFile;
pub use shared::WhenPinned;
