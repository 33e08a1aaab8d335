//! Buffers of ringfile's pool in other runtimes: examples that run, and in `tests/` what each runtime does with them.
//!
//! compio 0.19 (feature `compio-buf-08` of ringfile):
//!
//! ```
//! use compio::io::{AsyncReadAtExt, AsyncWriteAtExt};
//! # fn main() -> std::io::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("log");
//! let pool = ringfile::Pool::new(64 << 20);
//! compio::runtime::Runtime::new()?.block_on(async {
//!     let mut message = pool.get(4096)?;
//!     message.extend_from_slice(b"from the pool");
//!     let mut file = compio::fs::File::create(&path).await?;
//!     file.write_all_at(message, 0).await.0?;
//!     let (read, page) = compio::fs::File::open(&path).await?.read_exact_at(pool.get(13)?, 0).await.into();
//!     read?;
//!     assert_eq!(&page[..], b"from the pool");
//!     Ok(())
//! })
//! # }
//! ```
//!
//! monoio 0.2 (feature `monoio-02`):
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # if ringfile::ring_features().is_err() { return Ok(()); }
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("log");
//! let pool = ringfile::Pool::new(64 << 20);
//! let mut runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().build()?;
//! runtime.block_on(async {
//!     let mut message = pool.get(4096)?;
//!     message.extend_from_slice(b"from the pool");
//!     let file = monoio::fs::File::create(&path).await?;
//!     file.write_all_at(message, 0).await.0?;
//!     let (read, page) = monoio::fs::File::open(&path).await?.read_at(pool.get(4096)?, 0).await;
//!     assert_eq!((read?, &page[..]), (13, &b"from the pool"[..]));
//!     Ok(())
//! })
//! # }
//! ```
//!
//! tokio-uring 0.5 (feature `tokio-uring-05`):
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # if ringfile::ring_features().is_err() { return Ok(()); }
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("log");
//! let pool = ringfile::Pool::new(64 << 20);
//! tokio_uring::start(async {
//!     let mut message = pool.get(4096)?;
//!     message.extend_from_slice(b"from the pool");
//!     let file = tokio_uring::fs::File::create(&path).await?;
//!     file.write_all_at(message, 0).await.0?;
//!     let (read, page) = tokio_uring::fs::File::open(&path).await?.read_at(pool.get(4096)?, 0).await;
//!     assert_eq!((read?, &page[..]), (13, &b"from the pool"[..]));
//!     Ok(())
//! })
//! # }
//! ```
