//! Keeps what was read from objects, up to a limit in bytes, and gives the same memory out again.
//!
//! Opens no file and reads none. Invariants: a call is given only what was read from the version of the object that it has
//! found when it opened the object; nothing is kept that was read before the store changed the object's path; `objects`
//! lists exactly what `reads` has, none of it inside another; and memory is freed outside of the lock, since that may wake
//! tasks.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, DefaultHasher, Hasher};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use quick_cache::{Lifecycle, Weighter, unsync};
use ringfile::fs::Metadata;

use crate::{disk, names};

/// Reads, and gets of a stream, that are longer than this part of the limit are not kept: they would displace too much.
const SHARE: u64 = 4;
/// A file that has not changed for this long has another time of change after its next change, unless the file system stores
/// whole seconds. The kernel's clock for files ticks every 10 ms or more often; a virtual machine may be late.
const TICK: Duration = Duration::from_millis(100);
/// The changes of paths are counted in so many groups.
const GROUPS: usize = 256;

/// How the store's cache was used: see [`Builder::cache`](crate::Builder::cache).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CacheMetrics {
    /// The number of ranges, and pieces of streams, that came from the cache.
    pub hits: u64,
    /// The number of those that were read.
    pub misses: u64,
    /// The memory that the cache keeps now, in bytes.
    pub bytes: u64,
}

/// See the module.
pub(crate) struct Cache(Mutex<CacheState>);

struct CacheState {
    objects: HashMap<Arc<Path>, Object, Hashing>,
    // Not its `sync` variant, which would divide the limit among shards, and could not change together with `objects`.
    reads: unsync::Cache<Key, Read, Weight, Hashing, Evicted>,
    /// How often the store has changed paths, by the group of the path.
    changes: [u64; GROUPS],
    hits: u64,
    misses: u64,
}

/// Hashes with a key: a random one, or one that the seed of a simulation repeats, since the hash decides which paths share a
/// group.
#[derive(Clone, Copy)]
struct Hashing(u64);

impl BuildHasher for Hashing {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}

struct Object {
    version: Version,
    /// The beginning and end of each read. No read is inside another, so both grow.
    spans: BTreeMap<u64, u64>,
}

/// What tells the versions of an object apart: what its ETag consists of, and the time that only the kernel can set.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Version {
    device: u64,
    inode: u64,
    size: u64,
    modified: SystemTime,
    changed: SystemTime,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    path: Arc<Path>,
    version: Version,
    start: u64,
}

struct Read {
    bytes: Bytes,
    /// The memory in which they are.
    memory: u64,
}

struct Weight;

impl Weighter<Key, Read> for Weight {
    fn weight(&self, _: &Key, read: &Read) -> u64 {
        read.memory
    }
}

struct Evicted;

impl Lifecycle<Key, Read> for Evicted {
    type RequestState = Vec<(Key, Read)>;

    fn on_evict(&self, evicted: &mut Self::RequestState, key: Key, read: Read) {
        evicted.push((key, read));
    }
}

impl Cache {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        // For the number of evicted reads that it remembers.
        let usual_read = 64 << 10;
        let hashing = Hashing(disk::new_number());
        let reads = unsync::Cache::with(limit / usual_read, limit as u64, Weight, hashing, Evicted);
        let (objects, changes) = (HashMap::with_hasher(hashing), [0; GROUPS]);
        Arc::new(Self(Mutex::new(CacheState { objects, reads, changes, hits: 0, misses: 0 })))
    }

    /// Begins to watch a path that is about to be opened. The returned function takes what the open file shows, and drops
    /// what is kept of another version.
    pub(crate) fn watch(self: &Arc<Self>, path: &Path) -> impl FnOnce(&Metadata) -> Cached + use<> {
        let (cache, path) = (Arc::clone(self), Arc::from(path));
        let changes = self.inner().changes_of(&path);
        move |metadata| {
            let version = Version::of(metadata);
            let keeps = is_settled(metadata.changed, SystemTime::now());
            let mut inner = cache.inner();
            let is_other = inner.objects.get(&path).is_some_and(|object| object.version != version);
            let freed = if is_other { inner.remove(&path) } else { Vec::new() };
            drop(inner);
            drop(freed);
            Cached { cache, path, changes, version, keeps }
        }
    }

    /// Drops what is kept of an object that the store has changed, and of any version that is being read.
    pub(crate) fn forget(&self, path: &Path) {
        let mut inner = self.inner();
        let group = inner.group(path);
        inner.changes[group] += 1;
        let freed = inner.remove(path);
        drop(inner);
        drop(freed);
    }

    /// Drops everything, and returns whether there was something.
    pub(crate) fn clear(&self) -> bool {
        let mut inner = self.inner();
        inner.objects.clear();
        let freed: Vec<_> = inner.reads.drain().collect();
        drop(inner);
        !freed.is_empty()
    }

    pub(crate) fn metrics(&self) -> CacheMetrics {
        let inner = self.inner();
        CacheMetrics { hits: inner.hits, misses: inner.misses, bytes: inner.reads.weight() }
    }

    fn inner(&self) -> MutexGuard<'_, CacheState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheState {
    fn group(&self, path: &Path) -> usize {
        self.objects.hasher().hash_one(path) as usize % GROUPS
    }

    fn changes_of(&self, path: &Path) -> u64 {
        self.changes[self.group(path)]
    }

    /// Removes what is kept of an object, which the caller drops outside of the lock.
    fn remove(&mut self, path: &Path) -> Vec<(Key, Read)> {
        let Some((path, object)) = self.objects.remove_entry(path) else { return Vec::new() };
        let key = |start| Key { path: Arc::clone(&path), version: object.version, start };
        object.spans.into_keys().filter_map(|start| self.reads.remove(&key(start))).collect()
    }

    /// Returns what is kept of a range of this version.
    fn find(&self, object: &Cached, range: &Range<u64>) -> Option<Bytes> {
        let known = self.objects.get(&object.path)?;
        let (&start, _) =
            known.spans.range(..=range.start).next_back().filter(|(_, end)| **end >= range.end)?;
        let read = self.reads.get(&object.key(start))?;
        Some(read.bytes.slice((range.start - start) as usize..(range.end - start) as usize))
    }

    /// Lists a read, which is not kept yet, in place of those inside it; the caller drops these. Returns `None` if there is
    /// no use in keeping it.
    fn list(&mut self, object: &Cached, span: Range<u64>) -> Option<Vec<(Key, Read)>> {
        let new = || Object { version: object.version, spans: BTreeMap::new() };
        let known = self.objects.entry(Arc::clone(&object.path)).or_insert_with(new);
        let before = known.spans.range(..=span.start).next_back();
        if known.version != object.version || before.is_some_and(|(_, end)| *end >= span.end) {
            return None;
        }
        let inside = known.spans.range(span.clone()).take_while(|(_, end)| **end <= span.end);
        let inside: Vec<_> = inside.map(|(start, _)| *start).collect();
        inside.iter().for_each(|start| _ = known.spans.remove(start));
        known.spans.insert(span.start, span.end);
        Some(inside.into_iter().filter_map(|start| self.reads.remove(&object.key(start))).collect())
    }

    fn unlist(&mut self, key: &Key) {
        if let Some(object) = self.objects.get_mut(&key.path) {
            object.spans.remove(&key.start);
            if object.spans.is_empty() {
                self.objects.remove(&key.path);
            }
        }
    }
}

/// An object that a call has opened.
pub(crate) struct Cached {
    cache: Arc<Cache>,
    path: Arc<Path>,
    /// The number of changes before it was opened.
    changes: u64,
    version: Version,
    keeps: bool,
}

impl Cached {
    /// Gives out the ranges that are kept, and leaves empty ranges in their place.
    pub(crate) fn take(&self, ranges: &mut [Range<u64>], given: &mut [Bytes]) {
        let mut inner = self.cache.inner();
        for (range, given) in ranges.iter_mut().zip(given).filter(|(range, _)| !range.is_empty()) {
            match inner.find(self, range) {
                Some(bytes) => {
                    (*given, range.end) = (bytes, range.start);
                    inner.hits += 1;
                }
                None => inner.misses += 1,
            }
        }
    }

    /// Returns whether what this call reads may be kept. `file_system`: whether the metadata of its files show each change.
    pub(crate) fn keeps(&self, file_system: impl FnOnce() -> bool) -> bool {
        self.keeps && file_system()
    }

    /// Keeps nothing of a get of this length if that is too long.
    pub(crate) fn limit(&mut self, len: u64) {
        self.keeps &= len <= self.cache.inner().reads.capacity() / SHARE;
    }

    /// Keeps what was read from `start` on into a buffer for `len` bytes.
    pub(crate) fn keep(&self, start: u64, bytes: &Bytes, len: u64) {
        let memory = memory_of(len);
        let end = start + bytes.len() as u64;
        let mut inner = self.cache.inner();
        let is_new = inner.changes_of(&self.path) == self.changes;
        if !is_new || end == start || memory > inner.reads.capacity() / SHARE {
            return;
        }
        let Some(freed) = inner.list(self, start..end) else { return };
        let mut evicted = Vec::new();
        inner.reads.insert_with_lifecycle(
            self.key(start),
            Read { bytes: bytes.clone(), memory },
            &mut evicted,
        );
        evicted.iter().for_each(|(key, _)| inner.unlist(key));
        drop(inner);
        drop((freed, evicted));
    }

    fn key(&self, start: u64) -> Key {
        Key { path: Arc::clone(&self.path), version: self.version, start }
    }
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        let Metadata { device, inode, size, modified, changed, .. } = *metadata;
        Self { device, inode, size, modified, changed }
    }
}

/// Returns whether the next change of a file that was changed then gives it another time of change.
fn is_settled(changed: SystemTime, now: SystemTime) -> bool {
    let since = changed.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let tick = if since.subsec_nanos() == 0 { names::SETTLED } else { TICK };
    now.duration_since(changed).is_ok_and(|age| age > tick)
}

/// Returns the size of the pool's block that a buffer of this length has, or more.
fn memory_of(len: u64) -> u64 {
    // Four sizes for each doubling, and whole pages.
    len.next_multiple_of((len.next_power_of_two() / 8).max(4096))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The metadata of an object, as if found long after it was changed.
    fn metadata(version: u64) -> Metadata {
        let mut metadata = Metadata::from(&std::fs::metadata("/").expect("there is a root"));
        (metadata.inode, metadata.changed) = (version, SystemTime::UNIX_EPOCH);
        metadata
    }

    fn opened(cache: &Arc<Cache>, path: &str, version: u64) -> Cached {
        cache.watch(Path::new(path))(&metadata(version))
    }

    fn content(version: u64, range: Range<u64>) -> Bytes {
        range.map(|at| (at * 31 + version * 7) as u8).collect()
    }

    fn take(cached: &Cached, range: Range<u64>) -> Option<Bytes> {
        let (mut left, mut given) = ([range], [Bytes::new()]);
        cached.take(&mut left, &mut given);
        left[0].is_empty().then(|| std::mem::take(&mut given[0]))
    }

    /// Checks that what is listed is what is kept.
    fn check(cache: &Cache) {
        let inner = cache.inner();
        assert!(inner.reads.weight() <= inner.reads.capacity());
        let mut listed = 0;
        for (path, object) in &inner.objects {
            let mut last = None;
            for (&start, &end) in &object.spans {
                let key = Key { path: Arc::clone(path), version: object.version, start };
                let read = inner.reads.peek(&key).expect("what is listed is kept");
                assert_eq!(start + read.bytes.len() as u64, end);
                assert!(last.is_none_or(|last| last < end), "no read is inside another");
                last = Some(end);
            }
            assert!(last.is_some(), "an object is listed only if something of it is kept");
            listed += object.spans.len();
        }
        assert_eq!(inner.reads.len(), listed);
    }

    #[test]
    fn whatever_is_read_changed_and_evicted_the_bytes_are_right_and_the_limit_holds() {
        let mut seed = 7_u64;
        let mut below = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % most
        };
        let cache = Cache::new(400_000);
        let paths = ["a", "b", "c", "d/e"];
        let (mut versions, mut given, mut calls) = ([1; 4], 0, Vec::new());
        for _ in 0..20_000 {
            let at = below(4) as usize;
            match below(100) {
                0 => {
                    versions[at] += 1;
                    cache.forget(Path::new(paths[at]));
                }
                // By others.
                1 => versions[at] += 1,
                2 => {
                    let is_used = cache.metrics().bytes > 0;
                    assert_eq!((cache.clear(), cache.metrics().bytes), (is_used, 0));
                }
                // A call of which another one is ahead.
                3..30 => calls.push((versions[at], opened(&cache, paths[at], versions[at]))),
                _ => {
                    let one = (versions[at], opened(&cache, paths[at], versions[at]));
                    let few = calls.len() > 20;
                    let (version, cached) = if few { calls.swap_remove(below(20) as usize) } else { one };
                    let start = below(100_000);
                    let range = start..start + 1 + below(30_000);
                    match take(&cached, range.clone()) {
                        Some(bytes) => {
                            assert_eq!(bytes, content(version, range));
                            given += 1;
                        }
                        None => {
                            let span = start / 4096 * 4096..range.end;
                            let len = span.end - span.start;
                            cached.keep(span.start, &content(version, span), len);
                        }
                    }
                }
            }
            check(&cache);
        }
        assert!(given > 1000, "{given}");
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept_after_it() {
        let cache = Cache::new(1 << 20);
        let before = opened(&cache, "object", 1);
        before.keep(0, &content(1, 0..10), 10);
        cache.forget(Path::new("object"));
        before.keep(0, &content(1, 0..10), 10);
        assert_eq!(cache.metrics().bytes, 0);

        // Others change it: the last one who has opened it decides.
        let (old, new) = (opened(&cache, "object", 1), opened(&cache, "object", 2));
        new.keep(0, &content(2, 0..10), 10);
        old.keep(10, &content(1, 10..20), 10);
        assert_eq!((take(&old, 0..10), take(&new, 0..10)), (None, Some(content(2, 0..10))));
        opened(&cache, "object", 3);
        assert_eq!(cache.metrics().bytes, 0);
    }

    #[test]
    fn a_file_is_kept_once_its_time_would_show_the_next_change() {
        let changed = SystemTime::UNIX_EPOCH + Duration::from_millis(5500);
        let whole = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        let is_settled = |changed, age| super::is_settled(changed, changed + age);
        assert!(!is_settled(changed, TICK) && is_settled(changed, TICK + Duration::from_millis(1)));
        assert!(!is_settled(whole, Duration::from_secs(1)) && is_settled(whole, Duration::from_secs(3)));
        assert!(!super::is_settled(changed, whole), "the clock was set back");
    }

    #[test]
    fn the_memory_of_a_read_is_at_least_that_of_its_block() {
        let pool = crate::store::pool(64 << 20).expect("a pool");
        for len in (1..200).chain((1..2000).map(|step| step * step * 5)) {
            let buffer = pool.get(len).expect("memory");
            let (block, memory) = (pool.metrics().in_use as u64, memory_of(len as u64));
            assert!(memory >= block && memory <= block + 4096, "{len} bytes in {block}, counted as {memory}");
            drop(buffer);
        }
    }
}
