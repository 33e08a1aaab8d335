//! The settings as values: each in its range, or missing.
//!
//! Knows no other file of this folder.

use crate::driver::Route;
use crate::memory::{HugePages, WhenFull};

/// Holds settings for a machine, from a TOML file and the environment. A setting that is missing has the library's
/// default.
///
/// `ringfile perf buffers --emit-config FILE.toml` writes such a file with what it measured as best. It can also be
/// written by hand:
///
/// ```toml
/// capacity = "64MiB"      # of a pool; or bytes as a number
/// huge_pages = "auto"     # "auto", "never", "require"
/// alignment = "4KiB"      # of each buffer: a power of two
/// when_full = "outside"   # "error", "wait", "outside"
/// outside_limit = "16MiB" # of memory outside of the pool, with when_full = "outside"; without it, there is none
/// pooling = true          # false maps each buffer for itself
/// depth = 64              # operations in flight, 1 to 4096
/// block_size = "16KiB"    # of one read
/// buffers = "fixed"       # "normal", "fixed", "vectored", "vectored-fixed"
/// direct = true           # past the page cache
/// route = "auto"          # "auto", "ring", "inline", "workers", "aio"
/// workers = 0             # threads at most, up to 4096; 0 for the default
/// latencies = true        # histograms of how long operations take
/// slow_after_us = 50000   # operations that take longer are reported
/// ```
///
/// In sizes, `64m` and `64MiB` are powers of 1024, `64MB` is 64 million bytes ([`parse_size`](Self::parse_size)). The
/// environment has the same settings, without quotes, as `RINGFILE_CAPACITY`, `RINGFILE_HUGE_PAGES`,
/// `RINGFILE_ALIGNMENT`, `RINGFILE_WHEN_FULL`, `RINGFILE_OUTSIDE_LIMIT`, `RINGFILE_POOLING`, `RINGFILE_DEPTH`,
/// `RINGFILE_BLOCK_SIZE`, `RINGFILE_BUFFERS`, `RINGFILE_DIRECT`, `RINGFILE_ROUTE`, `RINGFILE_WORKERS`,
/// `RINGFILE_LATENCIES` and `RINGFILE_SLOW_AFTER_US`; an empty one counts as missing. Only
/// [`load`](Self::load), [`load_table`](Self::load_table), [`from_env`](Self::from_env) and [`with_env`](Self::with_env)
/// read them.
/// (`RINGFILE_DISABLE=io_uring,aio` and `RINGFILE_DISABLE=io_uring`, which switch io_uring off, work in every program.)
///
/// **What wins**: calls on a builder over the environment, the environment over the file.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let (settings, data) = (folder.path().join("ringfile.toml"), folder.path().join("data.bin"));
/// # std::fs::write(&settings, "depth = 8\nblock_size = '64KiB'\ncapacity = '1MiB'")?;
/// # std::fs::write(&data, vec![7; 1 << 20])?;
/// let config = ringfile::Config::load(&settings)?;
/// config.apply();
/// let pool = config.pool().capacity(16 << 20).build()?;
/// let file = config.open_options().read(true).open_blocking(&data)?;
/// let mut reader = config.reader(&file, &pool);
/// ringfile::block_on(async {
///     let piece = reader.next().await.expect("not empty")?;
///     assert_eq!((piece.len(), pool.metrics().capacity), (64 << 10, 16 << 20));
///     assert_eq!(pool.metrics().in_use, 8 * (64 << 10));
///     Ok(())
/// })
/// # }
/// ```
///
/// [`Display`](std::fmt::Display) writes such a file again, with a comment for each setting; see also
/// [`to_toml_with`](Self::to_toml_with).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Config {
    pub(super) capacity: Option<usize>,
    pub(super) huge_pages: Option<HugePages>,
    pub(super) alignment: Option<usize>,
    /// The limit of `WhenFull::Outside` is in `outside_limit`.
    pub(super) when_full: Option<WhenFull>,
    pub(super) outside_limit: Option<usize>,
    pub(super) pooling: Option<bool>,
    pub(super) depth: Option<usize>,
    pub(super) block_size: Option<usize>,
    pub(super) buffers: Option<BufferMode>,
    pub(super) direct: Option<bool>,
    pub(super) route: Option<Route>,
    pub(super) workers: Option<usize>,
    pub(super) latencies: Option<bool>,
    pub(super) slow_after_us: Option<usize>,
}

/// Selects the buffers that I/O uses: registered or not, one at a time or several at once.
///
/// ```
/// use ringfile::config::BufferMode;
/// assert!(BufferMode::VectoredFixed.is_registered() && BufferMode::VectoredFixed.is_vectored());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BufferMode {
    /// Buffers of a pool that is not registered.
    Normal,
    /// Buffers of a registered pool: operations are fixed ones.
    Fixed,
    /// Buffers of a pool that is not registered. The program should read into several buffers per operation
    /// ([`File::read_vectored_at`](crate::File::read_vectored_at)).
    Vectored,
    /// Buffers of a registered pool. The program should read into several buffers per operation.
    VectoredFixed,
}

impl BufferMode {
    /// Returns whether the pool is registered.
    #[must_use]
    pub fn is_registered(self) -> bool {
        matches!(self, Self::Fixed | Self::VectoredFixed)
    }

    /// Returns whether several buffers per operation were found best.
    #[must_use]
    pub fn is_vectored(self) -> bool {
        matches!(self, Self::Vectored | Self::VectoredFixed)
    }
}
