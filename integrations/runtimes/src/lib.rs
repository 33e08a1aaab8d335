//! Buffers of ringfile's pool in other runtimes. The examples below run as tests; `tests/` has tests with each runtime.
//!
//! compio 0.19 (feature `compio-buf-08` of ringfile), whose reads take a `CompioBuffer`:
//!
//! ```
//! use compio::io::{AsyncReadAtExt, AsyncWriteAtExt};
//! use ringfile::buf::CompioBuffer;
//! # fn main() -> std::io::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("log");
//! let pool = ringfile::Pool::new(64 << 20);
//! compio::runtime::Runtime::new()?.block_on(async {
//!     let mut message = pool.get(4096)?;
//!     message.extend_from_slice(b"from the pool");
//!     let mut file = compio::fs::File::create(&path).await?;
//!     file.write_all_at(message, 0).await.0?;
//!     // SAFETY: compio's read of a file writes nothing uninitialised to the buffer, and nothing else writes to it.
//!     let page = unsafe { CompioBuffer::new(pool.get(13)?) };
//!     let (read, page) = compio::fs::File::open(&path).await?.read_exact_at(page, 0).await.into();
//!     read?;
//!     assert_eq!(&page[..], b"from the pool");
//!     Ok(())
//! })
//! # }
//! ```
//!
//! A `Buffer` itself does not compile there, since safe code could then make a part of it uninitialised:
//!
//! ```compile_fail,E0277
//! use compio::buf::IoBufMut;
//! let mut buffer = ringfile::Pool::new(1 << 20).get(512).expect("memory");
//! IoBufMut::as_uninit(&mut buffer)[0] = std::mem::MaybeUninit::uninit();
//! buffer.set_len(1);
//! println!("{}", buffer[0]);
//! ```
//!
//! monoio 0.2 (feature `monoio-02`):
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # if ringfile::metrics::ring_features().is_err() { return Ok(()); }
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
//! # if ringfile::metrics::ring_features().is_err() { return Ok(()); }
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
