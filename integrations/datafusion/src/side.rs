//! The stores that the programs can read with.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::ValueEnum;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use ringfile_object_store::{Caching, RingfileStore};

/// A store for `file://` URLs, and how it uses the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// `object_store`'s own `LocalFileSystem`.
    Local,
    /// ringfile, with buffered I/O.
    Buffered,
    /// ringfile, with direct I/O.
    Direct,
    /// ringfile; cached data comes from the page cache, and other data directly from the drive.
    Adaptive,
    /// ringfile, with direct I/O, and a cache of this many bytes in the store.
    Cached(usize),
}

impl Side {
    /// All stores; the first is the one that the others are compared with.
    pub const ALL: [Self; 5] =
        [Self::Local, Self::Adaptive, Self::Buffered, Self::Direct, Self::Cached(256 << 20)];

    /// Creates the store.
    ///
    /// # Errors
    /// If ringfile's pool cannot be created.
    pub fn open(self) -> Result<Arc<dyn ObjectStore>> {
        let (caching, cache) = match self {
            Self::Local => return Ok(Arc::new(LocalFileSystem::new())),
            Self::Buffered => (Caching::Buffered, 0),
            Self::Direct => (Caching::Direct, 0),
            Self::Adaptive => (Caching::Adaptive, 0),
            Self::Cached(bytes) => (Caching::Direct, bytes),
        };
        let store = RingfileStore::builder().caching(caching).cache(cache).build();
        Ok(Arc::new(store.context("cannot create ringfile's store")?))
    }

    /// Makes all `file://` URLs of a runtime go through a new store of this kind.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn register(self, runtime: &RuntimeEnv) -> Result<()> {
        register(runtime, self.open()?);
        Ok(())
    }
}

/// Makes all `file://` URLs of a runtime go through a store.
pub fn register(runtime: &RuntimeEnv, store: Arc<dyn ObjectStore>) {
    runtime.register_object_store(ObjectStoreUrl::local_filesystem().as_ref(), store);
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Local => "local",
            Self::Buffered => "buffered",
            Self::Direct => "direct",
            Self::Adaptive => "adaptive",
            Self::Cached(_) => "cached",
        })
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StoreName {
    /// ringfile
    Ringfile,
    /// LocalFileSystem, DataFusion's own
    Local,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CacheName {
    /// Read cached data from the page cache, and other data directly from the drive
    Adaptive,
    /// Read through the page cache
    Buffered,
    /// Read directly from the drive (O_DIRECT)
    Direct,
}

/// The arguments that choose a [`Side`].
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct SideArgs {
    /// The store that reads the files
    #[arg(long, value_enum, default_value = "ringfile")]
    store: StoreName,
    /// How ringfile uses the page cache [default: adaptive]
    #[arg(long, value_enum)]
    cache: Option<CacheName>,
}

impl SideArgs {
    /// Returns the chosen store.
    ///
    /// # Errors
    /// If `--cache` was given for a store that has no such setting.
    pub fn side(self) -> Result<Side> {
        match (self.store, self.cache) {
            (StoreName::Local, None) => Ok(Side::Local),
            (StoreName::Local, Some(_)) => anyhow::bail!("--cache is a setting of --store ringfile"),
            (StoreName::Ringfile, None | Some(CacheName::Adaptive)) => Ok(Side::Adaptive),
            (StoreName::Ringfile, Some(CacheName::Buffered)) => Ok(Side::Buffered),
            (StoreName::Ringfile, Some(CacheName::Direct)) => Ok(Side::Direct),
        }
    }
}
