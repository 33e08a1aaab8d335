//! The store's work, for either version of the trait: opening, reading ranges and streams, writing.

use std::borrow::Cow;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{self, FuturesOrdered, Stream, StreamExt};
use ringfile::buf::PoolError;
use ringfile::fs::{FileType, Metadata};
use ringfile::{AnyBuffer, Batch, File, OpenOptions, Pool, Route, WhenFull};

use crate::cache::{Cache, Cached};
use crate::disk::{self, blocking, has_exact_inodes, in_background, open_cached, open_to_read};
use crate::gate::Gate;
use crate::names::{DurableNames, Step};
use crate::ranges::{self, Piece};
use crate::recent::Recent;
use crate::staged::{self, Staged};

/// The maximum length of a read that merges ranges.
const MOST_MERGED: u64 = 8 << 20;
/// The largest alignment that direct I/O needs on usual file systems.
const LARGEST_BLOCK: u64 = 4 << 10;
/// The length of one piece of a stream.
const CHUNK: u64 = 1 << 20;
/// The length of one piece of a stream that has no share, and so does not read ahead.
const SHORT_CHUNK: u64 = 128 << 10;
/// How many pieces of a stream are read ahead.
const AHEAD: usize = 4;

/// How reads use the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Caching {
    /// Reads through the page cache: best for data that is read repeatedly and fits into it.
    #[default]
    Buffered,
    /// Reads directly from the drive (O_DIRECT) if the file system supports that, otherwise through the page cache: best for
    /// data that is larger than memory, or read only once.
    Direct,
    /// Reads cached data from the page cache, and other data directly from the drive; data that is read repeatedly gets
    /// cached ([`ringfile::OpenOptions::adaptive`]). The store keeps the 64 files that it read last open, with two descriptors
    /// each, if they are on ext4, XFS, Btrfs or F2FS; elsewhere each call opens its object again, and remembers nothing.
    /// It closes a file at once if the store itself replaces or deletes the object. If another process does, it closes the
    /// file within about a second, or a minute if nothing was read for long. The space of a removed file is freed only then.
    Adaptive,
}

/// See the module.
pub(crate) struct Store {
    pub(crate) pool: Pool,
    pub(crate) caching: Caching,
    pub(crate) depth: usize,
    pub(crate) merge_gap: u64,
    /// What makes names durable, if the store syncs.
    pub(crate) names: Option<Arc<DurableNames>>,
    pub(crate) removes_empty_folders: bool,
    pub(crate) gate: Arc<Gate>,
    pub(crate) recent: Arc<Recent>,
    pub(crate) cache: Option<Arc<Cache>>,
    /// The shares of streams, and their limit.
    pub(crate) pieces: AtomicUsize,
    pub(crate) most_pieces: usize,
}

/// The number of pieces that all streams together may have: half of the memory.
pub(crate) fn most_pieces(memory: usize) -> usize {
    memory / 2 / CHUNK as usize
}

/// An open object, with metadata read from the open file.
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) metadata: Metadata,
    /// If the store has a cache.
    cached: Option<Cached>,
}

/// Creates the store's pool. If it is full, memory comes from outside: a call must not wait for memory that its own
/// query holds.
pub(crate) fn pool(capacity: usize) -> Result<Pool, PoolError> {
    Pool::builder().capacity(capacity).when_full(WhenFull::Outside { limit: usize::MAX }).build()
}

/// Returns the middle of an ETag, computed as in `LocalFileSystem`, so that an object has the same ETag in both.
pub(crate) fn etag(metadata: &Metadata) -> String {
    let since = metadata.modified.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}-{:x}", metadata.inode, since.as_micros(), metadata.size)
}

impl Store {
    /// Opens an object for reading. Does not block if the directory entries are cached.
    pub(crate) async fn open(&self, path: PathBuf) -> io::Result<Opened> {
        let watch = self.cache.as_ref().map(|cache| cache.watch(&path));
        let (file, metadata) = self.open_file(path).await?;
        let cached = watch.map(|found| found(&metadata));
        Ok(Opened { file, metadata, cached })
    }

    async fn open_file(&self, path: PathBuf) -> io::Result<(File, Metadata)> {
        if disk::is_simulated() {
            let file = disk::open(&path, &self.options()).await?;
            let metadata = object_of(disk::metadata_of(&file).await?)?;
            return Ok((file, metadata));
        }
        let opened = match open_cached(&path) {
            Some(opened) => opened?,
            None => blocking(move || async move { open_to_read(&path) }).await?,
        };
        let metadata = object_of((&opened.metadata()?).into())?;
        let file = match self.caching {
            Caching::Buffered | Caching::Direct => self.options().from_std(opened)?,
            Caching::Adaptive => match self.recent.find(&metadata) {
                Some(file) => file,
                None => {
                    let is_known = has_exact_inodes(&opened);
                    let file = self.options().from_std(opened)?;
                    if is_known && file.is_adaptive() { self.recent.keep(&metadata, file) } else { file }
                }
            },
        };
        Ok((file, metadata))
    }

    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        // No other code sees the descriptor.
        options.read(true).dup(false);
        match self.caching {
            Caching::Buffered => {}
            Caching::Direct => {
                options.direct(true).buffered_fallback(true);
            }
            Caching::Adaptive => {
                options.adaptive(true);
            }
        }
        options
    }

    /// Reads ranges of an object, all in flight together. A range that begins at the object's end or beyond is an error;
    /// one that extends beyond it is cut.
    pub(crate) async fn read_ranges(&self, path: PathBuf, asked: &[Range<u64>]) -> io::Result<Vec<Bytes>> {
        // Waits before opening the file, so that a waiting call has no descriptor; the file's block is not known yet.
        let pieces = ranges::plan(asked, LARGEST_BLOCK, self.merge_gap, MOST_MERGED);
        let lengths = pieces.iter().map(|piece| piece.span.end - piece.span.start);
        let bytes = lengths.fold(0, u64::saturating_add);
        let read = async {
            let opened = self.open(path).await?;
            let size = opened.metadata.size;
            let ranges = asked.iter().map(|range| cut(range, size)).collect::<io::Result<Vec<_>>>()?;
            self.read_all(&opened, &ranges).await
        };
        self.gate.run(usize::try_from(bytes).unwrap_or(usize::MAX), read).await
    }

    /// Reads ranges of an open object that are inside it, or takes them from the cache.
    async fn read_all(&self, opened: &Opened, ranges: &[Range<u64>]) -> io::Result<Vec<Bytes>> {
        let Opened { file, cached, .. } = opened;
        let (mut left, mut given) = (Cow::Borrowed(ranges), vec![Bytes::new(); ranges.len()]);
        if let Some(cached) = cached {
            cached.take(left.to_mut(), &mut given);
        }
        let pieces = ranges::plan(&left, self.block(file), self.merge_gap, MOST_MERGED);
        if pieces.is_empty() {
            return Ok(given);
        }
        let shows_changes = || disk::is_simulated() || has_exact_inodes(file);
        let cached = cached.as_ref().filter(|cached| cached.keeps(shows_changes));
        let mut batch = Batch::with_capacity(pieces.len()).depth(self.depth);
        for Piece { span, .. } in &pieces {
            batch.add(file.read_at(self.memory(span)?, span.start));
        }
        let results = batch.await;
        for (Piece { span, wanted }, done) in pieces.into_iter().zip(results) {
            let read = done.result?;
            let bytes = done.buffer.map(frozen).unwrap_or_default();
            for at in wanted {
                let range = &ranges[at];
                let inside = (range.start - span.start) as usize..(range.end - span.start) as usize;
                if inside.end > read {
                    return Err(shrunk(range, span.start + read as u64));
                }
                given[at] = bytes.slice(inside);
            }
            if let Some(cached) = cached {
                cached.keep(span.start, &bytes, span.end - span.start);
            }
        }
        Ok(given)
    }

    /// Returns a stream of a range, which reads ahead of the consumer as far as the limit for all streams allows,
    /// and ends after an error.
    pub(crate) fn stream(
        self: &Arc<Self>,
        mut opened: Opened,
        range: Range<u64>,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        if let Some(cached) = &mut opened.cached {
            cached.limit(range.end - range.start);
        }
        let state = (Arc::clone(self), Arc::new(opened), range, FuturesOrdered::new(), None);
        let pieces = stream::unfold(state, |(store, opened, mut left, mut reads, given)| async move {
            // The consumer has asked for the next piece, so it has probably used this one.
            drop(given);
            while reads.len() < AHEAD && !left.is_empty() {
                let share = PieceShare::new(&store);
                if share.is_none() && !reads.is_empty() {
                    break;
                }
                let piece = first_piece(&left, if share.is_some() { CHUNK } else { SHORT_CHUNK });
                left.start = piece.end;
                let (store, opened) = (Arc::clone(&store), Arc::clone(&opened));
                reads.push_back(async move { (store.read_piece(&opened, piece).await, share) });
            }
            let (read, share) = reads.next().await?;
            if read.is_err() {
                left.start = left.end;
                reads.clear();
            }
            Some((read, (store, opened, left, reads, share)))
        });
        pieces.fuse()
    }

    /// Reads one piece of a stream. Takes no share of the gate, which a stream that is not polled would keep.
    async fn read_piece(&self, opened: &Opened, range: Range<u64>) -> io::Result<Bytes> {
        let read = self.read_all(opened, &[range]).await?;
        Ok(read.into_iter().next().unwrap_or_default())
    }

    /// Returns the alignment of reads. It applies to adaptive files too, whose unaligned reads past the cache would be
    /// copied.
    fn block(&self, file: &File) -> u64 {
        let least = if file.is_adaptive() { 4096 } else { 1 };
        file.alignment().bytes.max(least) as u64
    }

    /// Returns memory for a read. If there is none, drops what the cache keeps of it.
    fn memory(&self, span: &Range<u64>) -> io::Result<AnyBuffer> {
        let len = usize::try_from(span.end - span.start).map_err(io::Error::other)?;
        match self.free_memory(len) {
            Err(_) if self.cache.as_ref().is_some_and(|cache| cache.clear()) => self.free_memory(len),
            memory => memory,
        }
    }

    /// Returns memory from the pool, or from outside of it.
    fn free_memory(&self, len: usize) -> io::Result<AnyBuffer> {
        // Not `get`: with a pool of the user's that has `WhenFull::Wait`, it blocks the thread.
        match self.pool.get_async(len).now_or_never() {
            Some(Ok(buffer)) => Ok(buffer.into()),
            Some(Err(PoolError::TooLarge { .. })) => {
                let mut memory = Vec::new();
                memory.try_reserve_exact(len).map_err(|_| ErrorKind::OutOfMemory)?;
                Ok(memory.into())
            }
            Some(Err(error)) => Err(error.into()),
            None => {
                let why = format!(
                    "the pool has no {len} free bytes, and its settings allow no memory outside of it"
                );
                Err(io::Error::new(ErrorKind::OutOfMemory, why))
            }
        }
    }

    /// Begins an object, as a temporary file.
    pub(crate) async fn stage(&self, target: PathBuf) -> io::Result<Upload> {
        let mut options = OpenOptions::new();
        // Not on the caller's thread: each object is a new file, and whether its first, long write would block is not
        // known. No other code sees the descriptor.
        options.route(Route::Workers).dont_cache(self.caching == Caching::Direct).dup(false);
        let cached = self.cache.clone().map(|cache| (cache, target.clone()));
        let (staged, file) =
            blocking(move || async move { Staged::create(&target, &mut options).await }).await?;
        let (names, recent) = (self.names.clone(), Arc::clone(&self.recent));
        Ok(Upload { unfinished: Some(staged), file, names, recent, cached })
    }

    /// Copies an object. With `replace` this replaces an existing one, otherwise that is an error.
    pub(crate) async fn copy(&self, from: PathBuf, to: PathBuf, replace: bool) -> io::Result<()> {
        let (names, cache) = (self.names.clone(), self.cache.clone());
        let copy = move || async move {
            let copied = staged::copy(&from, &to, replace, names.as_deref()).await;
            forget(cache.as_deref(), &[&to]);
            copied
        };
        self.change_names(copy).await
    }

    /// Renames an object. With `replace` this replaces an existing one, otherwise that is an error.
    pub(crate) async fn rename(
        &self,
        from: PathBuf,
        to: PathBuf,
        root: PathBuf,
        replace: bool,
    ) -> io::Result<()> {
        let (names, root) = (self.names.clone(), self.removes_empty_folders.then_some(root));
        let cache = self.cache.clone();
        let rename = move || async move {
            let renamed = staged::rename(&from, &to, replace, names.as_deref()).await;
            forget(cache.as_deref(), &[&from, &to]);
            renamed?;
            staged::settle(&from, root.as_deref(), names.as_deref(), Step::OldName).await
        };
        self.change_names(rename).await
    }

    /// Removes an object.
    pub(crate) async fn remove(&self, path: PathBuf, root: PathBuf) -> io::Result<()> {
        let (names, root) = (self.names.clone(), self.removes_empty_folders.then_some(root));
        let cache = self.cache.clone();
        let remove = move || async move {
            let removed = disk::remove_file(&path).await;
            forget(cache.as_deref(), &[&path]);
            removed?;
            staged::settle(&path, root.as_deref(), names.as_deref(), Step::Removal).await
        };
        self.change_names(remove).await
    }

    /// Runs a function that changes names, and closes files that have none any more.
    async fn change_names<F: Future<Output = io::Result<()>> + 'static>(
        &self,
        change: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<()> {
        let recent = Arc::clone(&self.recent);
        blocking(move || async move {
            let changed = change().await;
            recent.close_removed();
            changed
        })
        .await
    }
}

/// A stream's permission to have one piece of full length, which is in flight, read ahead, or with the consumer.
struct PieceShare(Arc<Store>);

impl PieceShare {
    /// Returns `None` if the limit is reached.
    fn new(store: &Arc<Store>) -> Option<Self> {
        let share = Self(Arc::clone(store));
        // Relaxed: it only counts.
        let before = store.pieces.fetch_add(1, Ordering::Relaxed);
        (before < store.most_pieces).then_some(share)
    }
}

impl Drop for PieceShare {
    fn drop(&mut self) {
        self.0.pieces.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An object that is being written. Removed when dropped, on a thread for blocking work: freeing a large file takes long.
pub(crate) struct Upload {
    /// `None` when it is published or removed.
    unfinished: Option<Staged>,
    pub(crate) file: File,
    names: Option<Arc<DurableNames>>,
    recent: Arc<Recent>,
    /// What keeps the object that it replaces, and that object's path.
    cached: Option<(Arc<Cache>, PathBuf)>,
}

impl Upload {
    /// Moves the object to its place, and returns the middle of its ETag. Continues if the future is dropped.
    pub(crate) async fn publish(mut self, replace: bool) -> io::Result<String> {
        let Some(staged) = self.unfinished.take() else { return Err(ErrorKind::NotFound.into()) };
        blocking(move || async move {
            let published = staged.publish(&self.file, replace, self.names.as_deref()).await;
            if let Some((cache, path)) = &self.cached {
                cache.forget(path);
            }
            let metadata = published?;
            self.recent.close_removed();
            Ok(etag(&metadata))
        })
        .await
    }

    /// Removes the object's file. Continues if the future is dropped.
    pub(crate) async fn remove(mut self) -> io::Result<()> {
        let Some(staged) = self.unfinished.take() else { return Ok(()) };
        blocking(move || async move {
            staged.remove().await;
            drop(self);
            Ok(())
        })
        .await
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(staged) = self.unfinished.take() {
            let file = self.file.clone();
            in_background(move || async move {
                staged.remove().await;
                drop(file);
            });
        }
    }
}

/// Drops what is kept of objects that were changed, or may have been: a change that fails may be half done.
fn forget(cache: Option<&Cache>, paths: &[&Path]) {
    if let Some(cache) = cache {
        paths.iter().for_each(|path| cache.forget(path));
    }
}

/// Writes chunks one after another from `offset` on, without a copy.
pub(crate) async fn write_all(file: &File, chunks: Vec<Bytes>, offset: u64) -> io::Result<()> {
    let chunks: Vec<Bytes> = chunks.into_iter().filter(|chunk| !chunk.is_empty()).collect();
    if !chunks.is_empty() {
        file.write_vectored_at(chunks, offset).await?;
    }
    Ok(())
}

/// Returns the metadata unless they are of a folder, which is no object.
fn object_of(metadata: Metadata) -> io::Result<Metadata> {
    if metadata.file_type == FileType::Directory { Err(ErrorKind::NotFound.into()) } else { Ok(metadata) }
}

/// Returns the part of a range that an object of this size has.
fn cut(range: &Range<u64>, size: u64) -> io::Result<Range<u64>> {
    if range.start > range.end {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the range ends before it starts"));
    }
    if range.start >= size && !range.is_empty() {
        let why = format!("the range {}..{} begins beyond the object's {size} bytes", range.start, range.end);
        return Err(io::Error::new(ErrorKind::InvalidInput, why));
    }
    Ok(range.start..range.end.min(size).max(range.start))
}

/// Returns the first piece of the rest of a stream. Unless it is all of the rest, it ends at a multiple of `most`, and so of
/// any block.
fn first_piece(left: &Range<u64>, most: u64) -> Range<u64> {
    let is_one = left.end - left.start <= most;
    left.start..if is_one { left.end } else { (left.start / most + 1) * most }
}

fn frozen(buffer: AnyBuffer) -> Bytes {
    match buffer {
        AnyBuffer::Pooled(buffer) => buffer.freeze(),
        AnyBuffer::Vec(vec) => vec.into(),
        AnyBuffer::Bytes(bytes) => bytes,
        _ => Bytes::new(),
    }
}

/// Returns the error for an object that has become shorter since it was opened.
#[cold]
fn shrunk(range: &Range<u64>, end: u64) -> io::Error {
    let why = format!(
        "the file ended at or before byte {end} while bytes {}..{} were read: it was truncated meanwhile",
        range.start, range.end
    );
    io::Error::new(ErrorKind::UnexpectedEof, why)
}
