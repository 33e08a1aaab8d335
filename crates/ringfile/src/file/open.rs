//! Opening files.
//!
//! Direct I/O is switched on after the file was opened and checked for it, and truncation comes last, so that a file
//! system without direct I/O costs no data. Nor is a file created there for it: see [`OpenAttempt`]. Invariant: the descriptor
//! that I/O uses is a duplicate that is known only here.

use std::borrow::Cow;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::adaptive::{self, Adaptive};
use super::durability::Durability;
use super::handle::File;
use super::probe::{FOR_DIRECT, NO_DIRECT, alignment, file_system, kind_of, no_direct};
use crate::descriptor;
use crate::driver::{self, Access, Alignment, FileKind, Lanes, Namespace, PortKind, Route, Target, Timing};
use crate::error::{Error, Result};
use crate::latency::Latencies;
#[cfg(doc)]
use crate::latency::OperationKind;
use ringfile_buffer::internal::event;

/// What is opened next. A file that may have to be created, and must be direct, takes up to three attempts, since it would
/// stay behind if it was created and direct I/O is refused then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpenAttempt {
    /// The file, if it exists.
    Existing,
    /// A file without a name in its folder, which shows whether the file system has direct I/O.
    Nameless,
    /// The file, by all options.
    Whole,
}

/// Options for opening a file: those of [`std::fs::OpenOptions`], and ringfile's own.
///
/// There is no `append`, since every operation has an offset.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("ringfile-doc-open-{}", std::process::id()));
/// let file = ringfile::OpenOptions::new().read(true).write(true).create(true).open_blocking(&path)?;
/// assert!(!file.is_direct());
/// # std::fs::remove_file(&path)
/// # }
/// ```
#[derive(Clone, Default, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    create: bool,
    create_new: bool,
    truncate: bool,
    /// `None`: the usual ones.
    mode: Option<u32>,
    custom_flags: i32,
    direct: bool,
    buffered_fallback: bool,
    iopoll: bool,
    durability: Durability,
    route: Option<Route>,
    dont_cache: bool,
    adaptive: bool,
    one_descriptor: bool,
    allow_raw_nvme_writes: bool,
    latencies: Option<Latencies>,
    slow_after: Option<Duration>,
}

impl OpenOptions {
    /// Creates options that allow neither reading nor writing: set `read` or `write`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows reading.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// Allows writing.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// Creates the file if it does not exist. Needs `write`.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Creates the file, and fails if it exists. Needs `write`.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Empties the file, unless it is a device or a pipe. Needs `write`. If opening fails, nothing is lost.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Sets the permission bits of a file that is created; `0o666` by default. The umask applies.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    /// Sets further `O_…` flags. `O_DIRECT` is ignored here: use [`direct`](Self::direct).
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.custom_flags = flags & !libc::O_DIRECT;
        self
    }

    /// Bypasses the page cache (`O_DIRECT`). [`File::alignment`] returns the required multiples. Reads that are not
    /// aligned go through an aligned buffer of the library; writes that are not aligned fail.
    ///
    /// Opening fails with [`ErrorKind::Unsupported`](std::io::ErrorKind::Unsupported) if the file system refuses direct
    /// I/O, or accepts and ignores it (tmpfs), unless [`buffered_fallback`](Self::buffered_fallback) is set. No file is created
    /// then, provided that the file system has files without names (`O_TMPFILE`), which show this before.
    pub fn direct(&mut self, direct: bool) -> &mut Self {
        self.direct = direct;
        self
    }

    /// Uses buffered I/O if direct I/O does not work, whether opening or the first operation finds out.
    /// [`File::is_direct`] returns which it is.
    pub fn buffered_fallback(&mut self, allowed: bool) -> &mut Self {
        self.buffered_fallback = allowed;
        self
    }

    /// Polls the device for completions (`IORING_SETUP_IOPOLL`), in a ring of its own. Needs [`direct`](Self::direct)
    /// and a device with poll queues; operations fail with `EOPNOTSUPP` if the file system does not support it. A
    /// thread with such operations in flight does not sleep.
    pub fn iopoll(&mut self, iopoll: bool) -> &mut Self {
        self.iopoll = iopoll;
        self
    }

    /// Sets how durable writes make their data durable: those of futures ([`File::write_durable_at`]), batches and queues.
    pub fn durability(&mut self, durability: Durability) -> &mut Self {
        self.durability = durability;
        self
    }

    /// Sets the route of the file's operations. The default is that of [`set_default_route`](crate::set_default_route),
    /// which is `Auto` at first.
    pub fn route(&mut self, route: Route) -> &mut Self {
        self.route = Some(route);
        self
    }

    /// Drops the pages of buffered operations from the page cache (`RWF_DONTCACHE`), for streams that would evict
    /// more useful data. Written pages go to the disk at once, and are dropped then. Has no effect on direct I/O,
    /// before Linux 6.14, and on file systems without support: see [`File::is_uncached`].
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("stream");
    /// # std::fs::write(&path, vec![7; 1 << 20])?;
    /// let file = ringfile::OpenOptions::new().read(true).dont_cache(true).open_blocking(&path)?;
    /// let buffer = ringfile::block_on(file.read_at(Vec::with_capacity(1 << 20), 0))?;
    /// assert_eq!(buffer.len(), 1 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn dont_cache(&mut self, dont_cache: bool) -> &mut Self {
        self.dont_cache = dont_cache;
        self
    }

    /// Reads cached data from the page cache, and other data directly from the drive (`O_DIRECT`). Data that is read
    /// again gets cached; when memory is short, only data that is read repeatedly. A scan does not evict the data of
    /// others, and sequential reads are read ahead. Writes are buffered. Any offset and length works.
    ///
    /// A read sees every write that had returned before it began. Of data that was read ahead it may miss stores to
    /// mapped memory, and a direct write by another descriptor that takes seconds. Do not write buffered and direct at
    /// the same time within 2 MiB of each other: the kernel may keep old data in the cache, and the next sync fails
    /// (`EIO`).
    ///
    /// The file is simply buffered where there is no direct I/O or no `/proc`, or the kernel does not say what is
    /// cached (before Linux 6.5; overlayfs, ZFS; since 6.14 another user's file). [`File::is_adaptive`] returns which
    /// it is, and [`Metrics`](crate::metrics::Metrics) counts hits, misses and admissions. Closing the file drops the
    /// record locks (`fcntl(2)`) of this process on it. A cached read does not allocate; a direct one may.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("table");
    /// # std::fs::write(&path, vec![7; 1 << 20])?;
    /// let file = ringfile::OpenOptions::new().read(true).adaptive(true).open_blocking(&path)?;
    /// let buffer = ringfile::block_on(file.read_exact_at(Vec::with_capacity(1000), 77))?;
    /// assert_eq!(buffer, [7; 1000]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn adaptive(&mut self, adaptive: bool) -> &mut Self {
        self.adaptive = adaptive;
        self
    }

    /// Sets whether the file has a second descriptor of its own, a duplicate, for I/O: it has by default. `dup(false)` is for programs with tens of thousands of files and a limit on descriptors.
    /// I/O then uses the descriptor that [`as_fd`](File::as_fd) lends: no code may put another file in its place
    /// (`dup2`).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("table");
    /// # std::fs::write(&path, b"content")?;
    /// let file = ringfile::OpenOptions::new().read(true).dup(false).open_blocking(&path)?;
    /// let buffer = ringfile::block_on(file.read_at(Vec::with_capacity(16), 0))?;
    /// assert_eq!(buffer, b"content");
    /// # Ok(())
    /// # }
    /// ```
    pub fn dup(&mut self, dup: bool) -> &mut Self {
        self.one_descriptor = !dup;
        self
    }

    /// Allows writing to a namespace of an NVMe drive that is opened by its character device (`/dev/ng0n1`), besides
    /// [`write`](Self::write). **Writing destroys** what users of the block device have stored, so that device is
    /// claimed (`O_EXCL`) while the file is open: `EBUSY` if it, or a partition, is mounted or in use.
    ///
    /// Reads, writes, syncs, [`Discard`](crate::fs::AllocateMode::Discard), `PunchHole` and `ZeroRange` are NVMe
    /// commands through io_uring (Linux 5.19), past the block layer; everything else is `EOPNOTSUPP`. I/O is direct. A
    /// long write is several commands, and not atomic. There is no other route, and no I/O in a forked child. Do not
    /// format a namespace that is open: size and format are read when it is opened.
    ///
    /// Opening fails with `Unsupported` without io_uring's commands, and if the namespace has metadata, protection
    /// information, zones, or anything else that ringfile does not know. Before Linux 6.2 it needs `CAP_SYS_ADMIN`.
    ///
    /// ```no_run
    /// # fn main() -> std::io::Result<()> {
    /// let drive = ringfile::OpenOptions::new().read(true).write(true).allow_raw_nvme_writes(true).open_blocking("/dev/ng0n1")?;
    /// let pool = ringfile::Pool::new(1 << 20);
    /// ringfile::block_on(async {
    ///     let mut block = pool.get(drive.alignment().bytes)?;
    ///     block.resize(block.capacity(), 7);
    ///     drive.write_at(block, 0).await?;
    ///     drive.sync_data().await?;
    ///     std::io::Result::Ok(())
    /// })
    /// # }
    /// ```
    pub fn allow_raw_nvme_writes(&mut self, allowed: bool) -> &mut Self {
        self.allow_raw_nvme_writes = allowed;
        self
    }

    /// Counts how long the file's operations take, in these histograms, which several files may share. Off by default.
    /// [`Latencies`] says what counts, and which operations are timed. Pipes, sockets and terminals are not measured.
    pub fn latencies(&mut self, latencies: &Latencies) -> &mut Self {
        self.latencies = Some(latencies.clone());
        self
    }

    /// Reports each operation on the file that takes longer than `limit` with a `tracing` event of level `WARN` and target
    /// `ringfile::slow`. Its fields are `file` (the path; empty for a file that was adopted), `kind` (the
    /// [name](OperationKind::name) of it), `bytes` (moved), `offset`, `micros` and `errno` (0 for success). The time is that
    /// which [`Latencies`] count. Off by default.
    ///
    /// Every operation is timed then, which takes about 0.1 µs of each. An event allocates.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, "content")?;
    /// use std::time::Duration;
    /// let file = ringfile::OpenOptions::new().read(true).slow_after(Duration::from_millis(20)).open_blocking(&path)?;
    /// # ringfile::block_on(file.read_at(Vec::with_capacity(7), 0))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn slow_after(&mut self, limit: Duration) -> &mut Self {
        self.slow_after = Some(limit);
        self
    }

    /// Opens the file on the calling thread, for programs without an executor. Blocks while the path is looked up, which
    /// takes a microsecond or two if its directories are cached, and while the file is truncated.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_blocking(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        self.check().map_err(|error| error.on(Some(path)))?;
        let (bytes, flags) = (path.as_os_str().as_bytes(), self.flags().cast_signed());
        if let Some(opened) = crate::sim::open_at_once(bytes, flags, self.permissions(), self.truncate) {
            let failed = |(errno, what)| Error::from_errno(errno, what).on(Some(path));
            return opened.map(|(stand_in, file)| self.simulated(stand_in, file, path)).map_err(failed);
        }
        let mode = Mode::from_bits_retain(self.permissions());
        let failed = |errno: Errno, what| Error::from_errno(errno.raw_os_error(), what).on(Some(path));
        let mut attempt = self.first_attempt();
        let opened = loop {
            let (at, flags) = self.attempt(attempt, path);
            let opened = descriptor::open(&at, OFlags::from_bits_retain(flags), mode);
            let found = opened.as_ref().map(AsFd::as_fd).map_err(|errno| errno.raw_os_error());
            match self.next_attempt(attempt, path, found)? {
                Some(next) => attempt = next,
                None => break opened,
            }
        };
        let opened = opened.map_err(|errno| with_namespace_hint(path, failed(errno, "opening")))?;
        let file = self.finish(opened, path)?;
        if self.truncates(&file) {
            let truncated = retry_on_intr(|| rustix::fs::ftruncate(file.target(), 0));
            truncated.map_err(|errno| failed(errno, "truncating"))?;
        }
        Ok(file)
    }

    /// Returns what to open first.
    pub(crate) fn first_attempt(&self) -> OpenAttempt {
        let flags = self.flags().cast_signed();
        let is_named = flags & libc::O_TMPFILE != libc::O_TMPFILE;
        let is_refused_later =
            self.direct && !self.buffered_fallback && flags & libc::O_CREAT != 0 && is_named;
        let is_refused_later = is_refused_later && !crate::sim::is_here();
        if is_refused_later { OpenAttempt::Existing } else { OpenAttempt::Whole }
    }

    /// Returns the path and the `O_…` flags of an attempt to open the file at `path`.
    pub(crate) fn attempt<'a>(&self, attempt: OpenAttempt, path: &'a Path) -> (Cow<'a, Path>, u32) {
        let flags = self.flags().cast_signed();
        let (path, flags) = match attempt {
            OpenAttempt::Existing if flags & libc::O_EXCL != 0 => {
                (path.into(), libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC)
            }
            OpenAttempt::Existing => (path.into(), flags & !libc::O_CREAT),
            OpenAttempt::Nameless => {
                (folder_of(path).into(), libc::O_TMPFILE | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC)
            }
            OpenAttempt::Whole => (path.into(), flags),
        };
        (path, flags.cast_unsigned())
    }

    /// Returns what to open after an attempt that has opened this file or failed with this errno; `None` if its result is
    /// that of the whole.
    ///
    /// # Errors
    /// If direct I/O would be refused.
    pub(crate) fn next_attempt(
        &self,
        attempt: OpenAttempt,
        path: &Path,
        opened: std::result::Result<BorrowedFd<'_>, i32>,
    ) -> Result<Option<OpenAttempt>> {
        let is_exclusive = self.flags().cast_signed() & libc::O_EXCL != 0;
        Ok(match (attempt, opened) {
            (OpenAttempt::Existing, Err(libc::ENOENT)) => Some(OpenAttempt::Nameless),
            // It fails with the errno for that.
            (OpenAttempt::Existing, Ok(_)) if is_exclusive => Some(OpenAttempt::Whole),
            (OpenAttempt::Nameless, Ok(nameless)) => {
                self.direct_of(nameless).map_err(|error| error.on(Some(path)))?;
                Some(OpenAttempt::Whole)
            }
            // The file system has no such files, or creating the file fails too, and says why.
            (OpenAttempt::Nameless, Err(errno)) if errno != libc::ECANCELED => Some(OpenAttempt::Whole),
            (OpenAttempt::Existing | OpenAttempt::Nameless | OpenAttempt::Whole, _) => None,
        })
    }

    /// Returns the `O_…` flags to open with. Direct I/O and truncation come later.
    fn flags(&self) -> u32 {
        let access = match (self.read, self.write) {
            (true, true) => libc::O_RDWR,
            (false, true) => libc::O_WRONLY,
            (_, false) => libc::O_RDONLY,
        };
        let creation = if self.create || self.create_new { libc::O_CREAT } else { 0 };
        let exclusion = if self.create_new { libc::O_EXCL } else { 0 };
        let custom = self.custom_flags & !libc::O_ACCMODE;
        (access | creation | exclusion | custom | libc::O_CLOEXEC | libc::O_LARGEFILE).cast_unsigned()
    }

    /// Returns the permission bits for a file that is created.
    pub(crate) fn permissions(&self) -> u32 {
        self.mode.unwrap_or(0o666)
    }

    /// Returns whether the file, which is open, must be truncated. As for `O_TRUNC`, only regular files are.
    pub(crate) fn truncates(&self, file: &File) -> bool {
        self.truncate && file.target().kind == FileKind::Regular
    }

    /// Makes a [`File`] of the file just opened by `path`, which is not yet truncated. A few system calls examine the
    /// open file; they block only if the file system must ask a server, or the kernel an NVMe drive.
    pub(crate) fn finish(&self, opened: OwnedFd, path: &Path) -> Result<File> {
        let access = Access { read: self.read, write: self.write };
        self.file(opened.into(), access, false, Some(path)).map_err(|error| error.on(Some(path)))
    }

    /// Makes the file of a simulation that was opened: an adaptive one is buffered, and durable writes are so by
    /// themselves, unless the options say otherwise.
    pub(crate) fn simulated(&self, stand_in: OwnedFd, file: crate::sim::OpenRef, path: &Path) -> File {
        // Memory at any address: addresses differ from run to run, and a seed must not.
        let atomic = driver::AtomicLimits::of_statx(512, 64 << 10, 1);
        let direct = self.direct.then_some(Alignment { bytes: 512, memory: 1, atomic });
        let durability =
            if self.durability == Durability::Auto { Durability::Dsync } else { self.durability };
        let memory = driver::hold_over_forks();
        let target = Target::of_simulated(stand_in, file, direct, self.custom_flags, path.to_owned(), memory);
        File::new(Arc::new(target), None, durability, None)
    }

    /// Makes a [`File`] of a namespace of an NVMe drive whose character device was opened.
    pub(crate) fn file_of_namespace(
        &self,
        opened: fs::File,
        namespace: Namespace,
        path: Option<&Path>,
    ) -> Result<File> {
        if self.truncate {
            return wrong("an NVMe namespace has a fixed size; open it without truncate");
        }
        if !matches!(self.route, None | Some(Route::Auto | Route::Ring)) {
            return wrong(
                "NVMe commands need io_uring; open the namespace without a route, or with Route::Ring",
            );
        }
        let ring = if self.iopoll { PortKind::PolledCommands } else { PortKind::Commands };
        let (own, user) = self.descriptors(opened.into())?;
        let path = path.map(Path::to_owned);
        let mut target = Target::of_namespace(own, namespace, ring, path, driver::hold_over_forks());
        self.time(&mut target);
        Ok(File::new(Arc::new(target), user, self.durability, None))
    }

    /// Measures the latencies of the target's operations, if the options say so.
    fn time(&self, target: &mut Target) {
        let is_timed = self.latencies.is_some() || self.slow_after.is_some();
        if is_timed && target.kind != FileKind::Other {
            target.set_timing(Timing { latencies: self.latencies.clone(), slow_after: self.slow_after });
        }
    }

    /// Creates a [`File`] from a file that is already open, as [`From<std::fs::File>`](File) does, and applies the options that
    /// affect I/O: [`route`](Self::route), [`iopoll`](Self::iopoll), [`durability`](Self::durability),
    /// [`dont_cache`](Self::dont_cache), [`buffered_fallback`](Self::buffered_fallback). The file's access mode, and
    /// O_DIRECT, stay as it was opened; `direct(true)` switches direct I/O on if it is off.
    ///
    /// # Errors
    /// Those of [`open`](Self::open) if direct I/O is not available; `EMFILE` if there is no descriptor for the
    /// duplicate.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.bin");
    /// # std::fs::write(&path, b"content")?;
    /// use ringfile::{OpenOptions, Route};
    /// let file = OpenOptions::new().route(Route::Workers).from_std(std::fs::File::open(&path)?)?;
    /// assert_eq!(file.size()?, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_std(&self, file: fs::File) -> Result<File> {
        let flags = rustix::fs::fcntl_getfl(&file).unwrap_or(OFlags::empty());
        let mode = flags & OFlags::ACCMODE;
        let access = Access { read: mode != OFlags::WRONLY, write: mode != OFlags::RDONLY };
        self.file(file, access, flags.contains(OFlags::DIRECT), None)
    }

    /// Checks that the options do not contradict each other.
    pub(crate) fn check(&self) -> Result<()> {
        let creates = self.create || self.create_new || self.truncate;
        let contradictions = [
            (!self.read && !self.write, "neither read(true) nor write(true) was set; set one or both"),
            (creates && !self.write, "create, create_new and truncate need write(true)"),
            (self.iopoll && !self.direct, "poll(true) needs direct(true)"),
            (
                self.adaptive && (self.direct || self.dont_cache),
                "adaptive(true) chooses by itself; open without direct and dont_cache",
            ),
            (
                self.iopoll && self.route == Some(Route::Aio),
                "poll(true) needs io_uring, which Route::Aio is not",
            ),
        ];
        contradictions.iter().find(|(is_met, _)| *is_met).map_or(Ok(()), |(_, why)| wrong(why))
    }

    /// Switches direct I/O on if it was requested, and returns the alignment that it needs; `None` for buffered I/O.
    fn direct_of(&self, file: BorrowedFd<'_>) -> Result<Option<Alignment>> {
        if !self.direct {
            return Ok(None);
        }
        let failed = |error| no_direct(Error::from_io(&error, FOR_DIRECT), NO_DIRECT);
        let switched_on = |multiples| set_direct(file).map(|()| Some(multiples)).map_err(failed);
        match alignment(file).and_then(switched_on) {
            Err(error) if self.buffered_fallback => {
                event::emit(|| tracing::debug!(%error, "direct I/O is not available, using buffered I/O"));
                Ok(None)
            }
            Err(error) => Err(error.of_kind(std::io::ErrorKind::Unsupported)),
            done => done,
        }
    }

    /// Makes a [`File`] of one that is open for `access`; `is_direct`: with O_DIRECT.
    fn file(&self, opened: fs::File, access: Access, is_direct: bool, path: Option<&Path>) -> Result<File> {
        if let Some(namespace) = driver::look_for_namespace(&opened, access, self.allow_raw_nvme_writes)? {
            return self.file_of_namespace(opened, namespace, path);
        }
        let direct = if is_direct { alignment(&opened).ok() } else { self.direct_of(opened.as_fd())? };
        if self.route == Some(Route::Aio) && direct.is_none() {
            return Err(driver::aio_is_for_direct_io());
        }
        let (own, user) = self.descriptors(opened.into())?;
        Ok(self.file_of(own, user, direct, path))
    }

    /// Returns the descriptor for I/O, and the one for the user, if they differ.
    fn descriptors(&self, opened: OwnedFd) -> Result<(OwnedFd, Option<OwnedFd>)> {
        if self.one_descriptor {
            return Ok((opened, None));
        }
        Ok((duplicate(&opened)?, Some(opened)))
    }

    /// Makes the file: `own` is the descriptor for I/O; `user` is the one for the user, if it differs.
    fn file_of(
        &self,
        own: OwnedFd,
        user: Option<OwnedFd>,
        direct: Option<Alignment>,
        path: Option<&Path>,
    ) -> File {
        let target = self.target_of(own, direct, path);
        let is_adaptive = self.adaptive && direct.is_none() && target.kind != FileKind::Other;
        let adaptive = is_adaptive.then(|| self.adaptive_of(&target)).flatten();
        File::new(target, user, self.durability, adaptive)
    }

    /// Makes the target of a descriptor for I/O.
    fn target_of(&self, own: OwnedFd, direct: Option<Alignment>, path: Option<&Path>) -> Arc<Target> {
        let kind = kind_of(&own);
        let route = self.route.unwrap_or_else(driver::default_route);
        let ring = match route {
            Route::Aio => PortKind::Aio,
            _ if self.iopoll && direct.is_some() => PortKind::Polled,
            _ => PortKind::Main,
        };
        let lanes = Lanes::new(route, file_system(&own));
        let path = path.map(Path::to_owned);
        let mut target = Target::new(own, kind, direct, ring, path, lanes, driver::hold_over_forks());
        target.falls_back = self.buffered_fallback;
        if self.dont_cache && direct.is_none() && kind != FileKind::Other {
            target.do_not_cache();
        }
        self.time(&mut target);
        Arc::new(target)
    }

    /// Returns the additional state of an adaptive file; `None` if it is simply buffered.
    fn adaptive_of(&self, own: &Target) -> Option<Box<Adaptive>> {
        // Everything that can be checked before opening has been checked: see `adaptive::is_possible`.
        let multiples = alignment(own).ok().filter(|_| adaptive::is_possible(own))?;
        let again = adaptive::open_again(own)?;
        let (latencies, slow_after) = (self.latencies.clone(), self.slow_after);
        let options =
            Self { buffered_fallback: true, route: self.route, latencies, slow_after, ..Self::new() };
        let direct = options.target_of(again, Some(multiples), own.path());
        Some(Box::new(Adaptive::new(own, direct)))
    }
}

/// Returns the folder in which a file at this path is created: if the path is that of a symbolic link, where that points.
fn folder_of(path: &Path) -> PathBuf {
    /// How many links the kernel follows.
    const MOST: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST {
        let Ok(to) = fs::read_link(&path) else { break };
        path.pop();
        path.push(to);
    }
    path.pop();
    if path.as_os_str().is_empty() { ".".into() } else { path }
}

fn wrong<T>(why: &'static str) -> Result<T> {
    Err(Error::new(std::io::ErrorKind::InvalidInput, "opening").because(why))
}

/// Explains why the character device of an NVMe namespace may be missing.
#[cold]
fn with_namespace_hint(path: &Path, error: Error) -> Error {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    let numbers = name.strip_prefix("ng").and_then(|numbers| numbers.split_once('n'));
    let is_namespace = path.starts_with("/dev")
        && numbers.is_some_and(|(drive, namespace)| is_number(drive) && is_number(namespace));
    match error.errno() {
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) if is_namespace => error.because(
            "this NVMe namespace does not exist, or the kernel has no character devices for namespaces (it needs \
             Linux 5.13)",
        ),
        _ => error,
    }
}

fn set_direct(file: BorrowedFd<'_>) -> std::io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT)?)
}

fn duplicate(file: impl AsFd) -> Result<OwnedFd> {
    descriptor::duplicate(file)
        .map_err(|errno| Error::from_errno(errno.raw_os_error(), "duplicating the descriptor"))
}

/// Takes a file that was opened elsewhere. It is direct if its descriptor has O_DIRECT.
///
/// I/O uses a duplicate of the descriptor, so that closing or replacing the descriptor elsewhere does not affect it. If
/// no duplicate can be made (too many open files), the file's own descriptor is used.
impl From<fs::File> for File {
    fn from(file: fs::File) -> Self {
        let is_direct = rustix::fs::fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
        let direct = if is_direct { alignment(&file).ok() } else { None };
        let given: OwnedFd = file.into();
        let (own, user) = match duplicate(&given) {
            Ok(own) => (own, Some(given)),
            Err(error) => {
                event::emit(|| {
                    tracing::warn!(%error, "could not duplicate the descriptor, using the given one");
                });
                (given, None)
            }
        };
        OpenOptions::new().file_of(own, user, direct, None)
    }
}
