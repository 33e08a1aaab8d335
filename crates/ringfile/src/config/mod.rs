//! Settings for a machine, from a TOML file and from the environment. The environment wins.
//!
//! [`Config`] returns builders of pools, files, batches and readers with those settings, so that a program's calls on a
//! builder win. It uses only the public interface. `values.rs` has the values themselves, `settings.rs` each setting's
//! name, range and words; `reading.rs` reads the file. Invariants: every value is in its range, so a written file is
//! read back equal.

mod reading;
mod settings;
#[cfg(test)]
mod tests;
mod values;

use std::fmt;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use crate::buf::{HugePages, PoolBuilder};
use crate::error::{Error, Result};
use crate::latency::Latencies;
use crate::log::OpenAppender;
use crate::{Appender, Batch, File, OpenOptions, Pool, Reader, Route, WhenFull};
use reading::SettingsText;
use settings::{ALIGNMENTS, BLOCK_SIZES, CAPACITIES, DEPTHS, NO_LIMIT, SETTINGS, SLOW_AFTER, WORKERS};
pub use values::{BufferMode, Config};

/// Constructors, from files, the environment and text. Creating a configuration changes nothing else.
impl Config {
    /// Creates a configuration without any settings, so all defaults apply.
    ///
    /// ```
    /// use ringfile::config::BufferMode;
    /// use ringfile::Config;
    /// let config = Config::new().with_depth(64).with_buffers(BufferMode::Fixed);
    /// assert_eq!(Config::parse(&config.to_string())?, config);
    /// # Ok::<(), ringfile::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the settings of a TOML file, and those of the environment, which win. Blocks.
    ///
    /// # Errors
    /// Those of `open(2)` and `read(2)`: of [kind](crate::Error::kind) `NotFound` if there is no such file.
    /// `InvalidData` if it is not TOML, has an unknown or misspelt setting, or a value that is not allowed; the error
    /// names the line and what is allowed. Also the errors of [`with_env`](Self::with_env).
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_from(path.as_ref(), None)
    }

    /// Reads the settings of one table of a TOML file that has others too, and those of the environment, which win.
    /// Blocks. `"storage.io"` names the table `[storage.io]`. The rest of the file only has to be TOML.
    ///
    /// # Errors
    /// Those of [`load`](Self::load), and `InvalidData` if the file has no such table.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("server.toml");
    /// std::fs::write(&path, "port = 8090\n[system.memory_pool]\ncapacity = '4GiB'")?;
    /// let config = ringfile::Config::load_table(&path, "system.memory_pool")?;
    /// assert_eq!(config.capacity(), Some(4 << 30));
    /// # Ok(())
    /// # }
    /// ```
    pub fn load_table(path: impl AsRef<Path>, table: &str) -> Result<Self> {
        Self::load_from(path.as_ref(), Some(table))
    }

    fn load_from(path: &Path, table: Option<&str>) -> Result<Self> {
        SettingsText { text: &reading::text_of(path)?, path: Some(path), table }.settings()?.with_env()
    }

    /// Parses settings from TOML text, without the environment.
    ///
    /// # Errors
    /// `InvalidData`, as for [`load`](Self::load).
    ///
    /// ```
    /// let error = ringfile::Config::parse("direct = true\ndepht = 4").unwrap_err().to_string();
    /// assert!(error.starts_with(
    ///     "reading line 2 of the settings: unknown field `depht`: did you mean `depth`? known: capacity, huge_pages"
    /// ));
    /// ```
    pub fn parse(text: &str) -> Result<Self> {
        SettingsText { text, path: None, table: None }.settings()
    }

    /// Parses a size in bytes as the settings write it, for a program's own options: `4096`, `4k` or `4KiB`, `4KB`. Bare
    /// letters, as in fio, and units with `iB` are powers of 1024; units with `B` alone are powers of 1000. Ignores case.
    ///
    /// # Errors
    /// `InvalidInput` if it is not a size, or 16 EiB and more.
    ///
    /// ```
    /// use ringfile::Config;
    /// assert_eq!((Config::parse_size("64m")?, Config::parse_size("64MiB")?), (64 << 20, 64 << 20));
    /// assert_eq!(Config::parse_size("64MB")?, 64_000_000);
    /// # Ok::<(), ringfile::Error>(())
    /// ```
    pub fn parse_size(text: &str) -> Result<u64> {
        let is_decimal = text.ends_with(['b', 'B']);
        let units = parse_size::Config::new();
        let units = if is_decimal { units.with_decimal() } else { units.with_binary() };
        units.parse_size(text).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, "reading a size").because(match error {
                parse_size::Error::PosOverflow => "too large; give less than 16 EiB",
                _ => {
                    "not a size: write bytes, k, m, g or KiB, MiB, GiB (powers of 1024), or KB, MB, GB (powers of \
                     1000), as in 4k"
                }
            })
        })
    }

    /// Reads the settings of the environment only.
    ///
    /// # Errors
    /// Those of [`with_env`](Self::with_env).
    pub fn from_env() -> Result<Self> {
        Self::new().with_env()
    }

    /// Replaces settings by those that the environment has. The first call in a process warns through `tracing` of each
    /// variable with a name that is close to a setting's.
    ///
    /// # Errors
    /// `InvalidInput` for a variable with a value that is not allowed; the error names it, and what is allowed.
    pub fn with_env(mut self) -> Result<Self> {
        reading::warn_of_misspelt();
        reading::environment(&mut self, |name| std::env::var_os(name))?;
        Ok(self)
    }

    /// Returns what is wrong with variables of the environment, a sentence for each. For `ringfile doctor`.
    #[doc(hidden)]
    pub fn wrong_variables() -> Vec<String> {
        reading::wrong_variables(&std::env::vars_os().collect::<Vec<_>>())
    }
}

/// Builders with these settings. A call on a returned builder overrides the setting.
impl Config {
    /// Returns a builder of a pool, with `capacity`, `huge_pages`, `alignment`, `when_full` and its `outside_limit`,
    /// [`pooling`](PoolBuilder::pooling), and registration (`buffers`).
    ///
    /// ```
    /// let config = ringfile::Config::parse("capacity = '1MiB'\nbuffers = 'normal'")?;
    /// assert_eq!(config.pool().build()?.metrics().capacity, 1 << 20);
    /// assert_eq!(config.pool().capacity(8 << 20).build()?.metrics().capacity, 8 << 20);
    /// # Ok::<(), ringfile::Error>(())
    /// ```
    pub fn pool(&self) -> PoolBuilder {
        let pool = with(Pool::builder(), self.capacity, PoolBuilder::capacity);
        let pool = with(pool, self.huge_pages, PoolBuilder::huge_pages);
        let pool = with(pool, self.alignment, PoolBuilder::alignment);
        let pool = with(pool, self.when_full(), PoolBuilder::when_full);
        let pool = with(pool, self.pooling, PoolBuilder::pooling);
        with(pool, self.buffers.map(BufferMode::is_registered), PoolBuilder::registered)
    }

    /// Returns options to open a file, with `direct`, `route`, `slow_after_us`, and `latencies`: files that are opened
    /// with the same options, or clones of them, share histograms, and [`File::latencies`] returns them. Opening with
    /// `direct = true` fails on file systems without direct I/O, unless
    /// [`buffered_fallback`](OpenOptions::buffered_fallback) is set.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, "content")?;
    /// let config = ringfile::Config::parse("direct = true\nroute = 'inline'")?;
    /// let file = config.open_options().read(true).direct(false).open_blocking(&path)?;
    /// assert!(!file.is_direct());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn open_options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        let changed = with(&mut options, self.direct, OpenOptions::direct);
        let changed = with(changed, self.route, OpenOptions::route);
        with(changed, self.slow_after(), OpenOptions::slow_after);
        if self.latencies == Some(true) {
            options.latencies(&Latencies::new());
        }
        options
    }

    /// Creates a stream of the file, with `block_size` and `depth`.
    #[must_use]
    pub fn reader(&self, file: &File, pool: &Pool) -> Reader {
        let reader = with(file.reader(pool), self.block_size, Reader::block);
        with(reader, self.depth, Reader::depth)
    }

    /// Opens an appender for the file, with `block_size` and `depth`; see [`Appender::open`].
    pub fn appender(&self, file: &File, pool: &Pool, valid: u64) -> OpenAppender {
        let appender = with(Appender::open(file, pool, valid), self.block_size, OpenAppender::block);
        with(appender, self.depth, OpenAppender::depth)
    }

    /// Creates an empty batch, with at most `depth` operations [in flight](Batch::depth).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, "content")?;
    /// let config = ringfile::Config::new().with_depth(4);
    /// let file = config.open_options().read(true).open_blocking(&path)?;
    /// let mut batch = config.batch();
    /// batch.add(file.read_at(Vec::with_capacity(7), 0));
    /// assert_eq!(batch.run().remove(0).result?, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch(&self) -> Batch {
        with(Batch::new(), self.depth, Batch::depth)
    }

    /// Applies the settings of the process: `route`, for files that are opened from now on without a route of their own
    /// ([`set_default_route`](crate::set_default_route)), and `workers`
    /// ([`set_worker_threads`](crate::runtime::set_worker_threads)). Missing settings change nothing.
    pub fn apply(&self) {
        if let Some(route) = self.route {
            crate::set_default_route(route);
        }
        if let Some(threads) = self.workers {
            crate::runtime::set_worker_threads(threads);
        }
    }
}

/// Calls a setter of a builder if there is a value.
fn with<B, T>(builder: B, value: Option<T>, set: fn(B, T) -> B) -> B {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

fn nearest(value: usize, allowed: &RangeInclusive<usize>) -> usize {
    value.clamp(*allowed.start(), *allowed.end())
}

/// Setters, which win over loaded settings. A value out of range becomes the nearest allowed one.
impl Config {
    /// Sets the capacity of pools in bytes, at least 4096. Where pages are larger, making a pool of less than one page fails.
    pub fn with_capacity(self, bytes: usize) -> Self {
        Self { capacity: Some(nearest(bytes, &CAPACITIES)), ..self }
    }

    /// Sets whether pools use huge pages.
    pub fn with_huge_pages(self, huge_pages: HugePages) -> Self {
        Self { huge_pages: Some(huge_pages), ..self }
    }

    /// Sets the alignment of each buffer of pools: a power of two from 512 to 1 GiB; other values are rounded up.
    pub fn with_alignment(self, bytes: usize) -> Self {
        Self { alignment: Some(nearest(bytes, &ALIGNMENTS).next_power_of_two()), ..self }
    }

    /// Sets what pools do when they are full.
    pub fn with_when_full(self, when_full: WhenFull) -> Self {
        let (when_full, outside_limit) = match when_full {
            WhenFull::Outside { limit } => {
                let limit = (limit <= *CAPACITIES.end()).then_some(limit.max(*CAPACITIES.start()));
                (Some(NO_LIMIT), limit)
            }
            when_full => (Some(when_full), None),
        };
        Self { when_full, outside_limit, ..self }
    }

    /// Sets whether memory is pooled, or mapped for each buffer: [`PoolBuilder::pooling`].
    pub fn with_pooling(self, pooling: bool) -> Self {
        Self { pooling: Some(pooling), ..self }
    }

    /// Sets how many operations may be in flight, 1 to 4096.
    pub fn with_depth(self, operations: usize) -> Self {
        Self { depth: Some(nearest(operations, &DEPTHS)), ..self }
    }

    /// Sets the size of one read or write, 1 byte to 1 GiB.
    pub fn with_block_size(self, bytes: usize) -> Self {
        Self { block_size: Some(nearest(bytes, &BLOCK_SIZES)), ..self }
    }

    /// Sets which buffers to use.
    pub fn with_buffers(self, buffers: BufferMode) -> Self {
        Self { buffers: Some(buffers), ..self }
    }

    /// Sets whether I/O bypasses the page cache.
    pub fn with_direct(self, direct: bool) -> Self {
        Self { direct: Some(direct), ..self }
    }

    /// Sets the route of operations.
    pub fn with_route(self, route: Route) -> Self {
        Self { route: Some(route), ..self }
    }

    /// Sets how many worker threads there may be, up to 4096; 0 for the default.
    pub fn with_workers(self, threads: usize) -> Self {
        Self { workers: Some(nearest(threads, &WORKERS)), ..self }
    }

    /// Sets whether histograms count how long operations take.
    pub fn with_latencies(self, latencies: bool) -> Self {
        Self { latencies: Some(latencies), ..self }
    }

    /// Sets the time after which operations are reported as slow, in whole microseconds, from 1 to 2<sup>32</sup> - 1.
    pub fn with_slow_after(self, limit: Duration) -> Self {
        let micros = usize::try_from(limit.as_micros()).unwrap_or(usize::MAX);
        Self { slow_after_us: Some(nearest(micros, &SLOW_AFTER)), ..self }
    }
}

/// Getters, for code that needs more than the builders. `None` means the default.
impl Config {
    /// Returns the capacity of pools, in bytes.
    #[must_use]
    pub fn capacity(&self) -> Option<usize> {
        self.capacity
    }

    /// Returns whether pools use huge pages.
    #[must_use]
    pub fn huge_pages(&self) -> Option<HugePages> {
        self.huge_pages
    }

    /// Returns the alignment of each buffer of pools, in bytes.
    #[must_use]
    pub fn alignment(&self) -> Option<usize> {
        self.alignment
    }

    /// Returns what pools do when they are full. The limit of [`WhenFull::Outside`] is `usize::MAX` if none is set.
    #[must_use]
    pub fn when_full(&self) -> Option<WhenFull> {
        match (self.when_full?, self.outside_limit) {
            (WhenFull::Outside { .. }, Some(limit)) => Some(WhenFull::Outside { limit }),
            (when_full, _) => Some(when_full),
        }
    }

    /// Returns whether memory is pooled.
    #[must_use]
    pub fn pooling(&self) -> Option<bool> {
        self.pooling
    }

    /// Returns how many operations may be in flight.
    #[must_use]
    pub fn depth(&self) -> Option<usize> {
        self.depth
    }

    /// Returns the size of one read or write, in bytes.
    #[must_use]
    pub fn block_size(&self) -> Option<usize> {
        self.block_size
    }

    /// Returns which buffers to use.
    #[must_use]
    pub fn buffers(&self) -> Option<BufferMode> {
        self.buffers
    }

    /// Returns whether I/O bypasses the page cache.
    #[must_use]
    pub fn direct(&self) -> Option<bool> {
        self.direct
    }

    /// Returns the route of operations.
    #[must_use]
    pub fn route(&self) -> Option<Route> {
        self.route
    }

    /// Returns how many worker threads there may be; 0 is the default.
    #[must_use]
    pub fn workers(&self) -> Option<usize> {
        self.workers
    }

    /// Returns whether histograms count how long operations take.
    #[must_use]
    pub fn latencies(&self) -> Option<bool> {
        self.latencies
    }

    /// Returns the time after which operations are reported as slow.
    #[must_use]
    pub fn slow_after(&self) -> Option<Duration> {
        Some(Duration::from_micros(self.slow_after_us? as u64))
    }
}

/// Returns the settings as TOML, each below a comment that explains it. Settings without a value are left out.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_toml_with(|_| None))
    }
}

impl Config {
    /// Writes the settings as TOML, as [`Display`](fmt::Display) does, with additional comments: `comment` is called
    /// with the name of each setting that is present, and may return any text, for instance the measurement behind the
    /// value.
    ///
    /// ```
    /// let config = ringfile::Config::new().with_depth(64).with_direct(true);
    /// let text = config.to_toml_with(|name| match name {
    ///     "depth" => Some("128 gave 1 % more, inside the spread.".into()),
    ///     _ => None,
    /// });
    /// let lines: Vec<&str> = text.lines().collect();
    /// assert_eq!(lines[1..4], ["# 128 gave 1 % more, inside the spread.", "depth = 64", ""]);
    /// assert_eq!(ringfile::Config::parse(&text)?, config);
    /// # Ok::<(), ringfile::Error>(())
    /// ```
    #[must_use]
    pub fn to_toml_with(&self, comment: impl Fn(&str) -> Option<String>) -> String {
        let mut text = String::new();
        for setting in &SETTINGS {
            let Some(value) = (setting.get)(self) else { continue };
            if !text.is_empty() {
                text.push('\n');
            }
            add_comment(&mut text, setting.about);
            if let Some(further) = comment(setting.name) {
                add_comment(&mut text, &further);
            }
            text.push_str(&format!("{} = {value}\n", setting.name));
        }
        text
    }
}

/// TOML has no control characters in comments.
fn add_comment(text: &mut String, comment: &str) {
    for line in comment.lines() {
        text.push_str("# ");
        text.extend(line.chars().map(|c| if c.is_control() { ' ' } else { c }));
        text.push('\n');
    }
}
