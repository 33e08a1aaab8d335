//! The store's cache: what it gives out again, what it drops, and that no call ever gets what was there before.

#![allow(clippy::single_range_in_vec_init, reason = "`get_ranges` takes one range in this way too")]

use std::collections::HashMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use crate::support::{patience, skip};
use bytes::Bytes;
use futures::TryStreamExt;
use futures::executor::block_on;
use object_store_014::path::Path;
use object_store_014::{Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode};
use ringfile::Pool;
use ringfile_object_store::{Builder, Caching, RingfileStore};
use tempfile::TempDir;

const CACHINGS: [Caching; 3] = [Caching::Buffered, Caching::Direct, Caching::Adaptive];
const MIB: usize = 1 << 20;

fn content(range: Range<u64>) -> Vec<u8> {
    range.map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

/// Makes a folder in the build folder, or returns `None` where its file system is not one of those whose objects are kept.
fn folder() -> Option<TempDir> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let kind = rustix::fs::statfs(folder.path()).unwrap().f_type as u32;
    let is_known = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010].contains(&kind);
    if !is_known {
        let thread = std::thread::current();
        skip(
            thread.name().unwrap_or("a test of the cache"),
            "nothing is kept of objects on this file system",
        );
    }
    is_known.then_some(folder)
}

fn store(folder: &TempDir, options: impl FnOnce(Builder) -> Builder) -> RingfileStore {
    options(RingfileStore::builder().prefix(folder.path()).cache(64 * MIB)).build().unwrap()
}

/// Gets a range, again until something is kept of it: its object must not have changed just now.
async fn kept(store: &RingfileStore, path: &Path, range: Range<u64>) -> Bytes {
    let began = Instant::now();
    loop {
        let hits = store.cache_metrics().hits;
        let got = store.get_range(path, range.clone()).await.unwrap();
        if store.cache_metrics().hits > hits {
            return got;
        }
        assert!(began.elapsed() < patience(), "{path} is not kept");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_was_read_is_given_out_again_without_a_copy() {
    let Some(folder) = folder() else { return };
    for caching in CACHINGS {
        let store = store(&folder, |builder| builder.caching(caching));
        let (path, size) = (Path::from("object"), 4_000_000);
        let put = store.put(&path, content(0..size).into()).await.unwrap();
        let first = kept(&store, &path, 1000..900_000).await;
        assert_eq!(first, content(1000..900_000), "{caching:?}");
        let before = store.cache_metrics();
        let again = store.get_range(&path, 1000..900_000).await.unwrap();
        let inside = store.get_ranges(&path, &[700_000..800_000, 5000..6000, 9..9]).await.unwrap();
        assert_eq!((again.as_ptr(), again.len()), (first.as_ptr(), first.len()));
        assert_eq!(inside[0].as_ptr(), first[699_000..].as_ptr());
        assert_eq!(inside[1].as_ptr(), first[4000..].as_ptr());
        assert_eq!(inside.iter().map(Bytes::len).collect::<Vec<_>>(), [100_000, 1000, 0]);
        let after = store.cache_metrics();
        assert_eq!((after.hits, after.misses, after.bytes), (before.hits + 3, before.misses, before.bytes));

        // A part of what is asked for is kept.
        let ranges = [3_000_000..3_500_000, 2000..3000, 1_500_000..1_600_000];
        let some = store.get_ranges(&path, &ranges).await.unwrap();
        for (range, got) in ranges.iter().zip(&some) {
            assert_eq!(got, &content(range.clone()));
        }
        assert_eq!(some[1].as_ptr(), first[1000..].as_ptr());
        let beyond = store.get_ranges(&path, &[3_400_000..9_000_000]).await.unwrap();
        assert_eq!(beyond[0], content(3_400_000..size));

        // The whole object, in pieces.
        let pieces = async || {
            let stream = store.get(&path).await.unwrap().into_stream();
            stream.try_collect::<Vec<Bytes>>().await.unwrap()
        };
        let (one, other) = (pieces().await, pieces().await);
        assert_eq!(one.concat(), content(0..size));
        let places = |pieces: &[Bytes]| pieces.iter().map(|piece| piece.as_ptr()).collect::<Vec<_>>();
        assert_eq!(places(&one), places(&other));

        let options = GetOptions { if_none_match: put.e_tag, ..GetOptions::default() };
        let refused = store.get_opts(&path, options).await;
        assert!(matches!(refused, Err(Error::NotModified { .. })), "the conditions are checked");
    }
}

#[tokio::test]
async fn without_a_cache_nothing_is_kept() {
    let Some(folder) = folder() else { return };
    let (other, store) = (store(&folder, |builder| builder), store(&folder, |builder| builder.cache(0)));
    let path = Path::from("object");
    store.put(&path, content(0..1000).into()).await.unwrap();
    kept(&other, &path, 0..1000).await;
    for _ in 0..3 {
        drop(store.get_range(&path, 0..1000).await.unwrap());
    }
    assert_eq!(store.cache_metrics(), Default::default());
    assert_eq!(store.pool().metrics().in_use, 0);
}

/// What keeps memory after a change is gone at once, not when the object is read next.
#[tokio::test]
async fn changes_through_the_store_drop_what_was_kept() {
    let Some(folder) = folder() else { return };
    let store = store(&folder, |builder| builder);
    let (path, other) = (Path::from("a/object"), Path::from("b/other"));
    let put = async |path: &Path, byte: u8| drop(store.put(path, vec![byte; 5000].into()).await.unwrap());
    let holds = async |path: &Path, byte: u8| {
        assert_eq!(kept(&store, path, 0..5000).await, vec![byte; 5000]);
        assert!(store.cache_metrics().bytes > 0);
    };
    let nothing = || assert_eq!((store.cache_metrics().bytes, store.pool().metrics().in_use), (0, 0));
    put(&path, 1).await;
    holds(&path, 1).await;
    put(&path, 2).await;
    nothing();
    holds(&path, 2).await;

    let mut upload = store.put_multipart(&path).await.unwrap();
    upload.put_part(vec![3; 5000].into()).await.unwrap();
    holds(&path, 2).await;
    upload.complete().await.unwrap();
    nothing();
    holds(&path, 3).await;

    store.delete(&path).await.unwrap();
    nothing();
    assert!(matches!(store.get(&path).await, Err(Error::NotFound { .. })));

    put(&path, 4).await;
    put(&other, 5).await;
    holds(&other, 5).await;
    store.copy(&path, &other).await.unwrap();
    nothing();
    holds(&other, 4).await;
    store.delete(&other).await.unwrap();

    holds(&path, 4).await;
    store.rename(&path, &other).await.unwrap();
    nothing();
    assert!(matches!(store.get(&path).await, Err(Error::NotFound { .. })));
    holds(&other, 4).await;
    put(&path, 6).await;
    store.rename(&path, &other).await.unwrap();
    nothing();

    // A get that began before the put goes on after it.
    store.put(&path, content(0..6 * MIB as u64).into()).await.unwrap();
    let len = kept(&store, &path, 0..1).await.len();
    let mut stream = store.get(&path).await.unwrap().into_stream();
    let first = stream.try_next().await.unwrap().unwrap();
    put(&path, 7).await;
    let rest: Vec<Bytes> = stream.try_collect().await.unwrap();
    assert_eq!(len + first.len() + rest.concat().len(), 6 * MIB + 1, "it reads what it has opened");
    drop((first, rest));
    nothing();

    holds(&other, 6).await;

    // A change that fails may be half done.
    let refused = store.put_opts(&other, "new".into(), PutMode::Create.into()).await;
    assert!(matches!(refused, Err(Error::AlreadyExists { .. })));
    holds(&other, 6).await;
}

#[tokio::test]
async fn changes_by_others_are_seen() {
    let Some(folder) = folder() else { return };
    for caching in CACHINGS {
        let store = store(&folder, |builder| builder.caching(caching));
        let (path, file) = (Path::from("object"), folder.path().join("object"));
        fs::write(&file, [0; 8192]).unwrap();
        kept(&store, &path, 0..8192).await;
        for round in 1..20 {
            // Of equal length and with equal times, as an archive is unpacked, and soon with an inode that was there before.
            let (new, time) = (folder.path().join("new"), fs::metadata(&file).unwrap().modified().unwrap());
            fs::write(&new, [round; 8192]).unwrap();
            fs::File::options().write(true).open(&new).unwrap().set_modified(time).unwrap();
            match round % 3 {
                0 => fs::rename(&new, &file).unwrap(),
                1 => {
                    fs::remove_file(&file).unwrap();
                    fs::rename(&new, &file).unwrap();
                }
                _ => {
                    fs::write(&file, [round; 8192]).unwrap();
                    fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
                }
            }
            for _ in 0..3 {
                assert!(store.get_range(&path, 0..8192).await.unwrap() == vec![round; 8192], "{caching:?}");
            }
            if round < 4 {
                assert!(kept(&store, &path, 0..8192).await == vec![round; 8192]);
            }
        }
        let metrics = store.cache_metrics();
        assert!(metrics.bytes <= 8192, "what is kept of other versions is dropped: {metrics:?}");
        fs::remove_file(&file).unwrap();
        assert!(matches!(store.get_range(&path, 0..10).await, Err(Error::NotFound { .. })));
    }
}

/// The kernel sets the file's time at the first store to a page since it was written back, and at no other.
#[tokio::test]
async fn stores_to_a_mapping_are_seen_once_the_time_was_set() {
    let Some(folder) = folder() else { return };
    let store = store(&folder, |builder| builder);
    let (path, file) = (Path::from("object"), folder.path().join("object"));
    fs::write(&file, [0; 4096]).unwrap();
    let opened = fs::File::options().read(true).write(true).open(&file).unwrap();
    opened.sync_all().unwrap();
    // SAFETY: a new mapping of the whole file.
    let mapped = unsafe {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        libc::mmap(std::ptr::null_mut(), 4096, access, kind, opened.as_raw_fd(), 0)
    };
    assert_ne!(mapped, libc::MAP_FAILED);
    let change = |byte| {
        // SAFETY: within the mapping, to which no reference is made.
        unsafe { mapped.cast::<u8>().write_volatile(byte) };
    };
    assert_eq!(kept(&store, &path, 0..4096).await[0], 0);
    change(1);
    assert_eq!(store.get_range(&path, 0..4096).await.unwrap()[0], 1, "the first store sets the time");
    for round in 2..5 {
        kept(&store, &path, 0..4096).await;
        change(round);
        opened.set_modified(std::time::SystemTime::now()).unwrap();
        assert_eq!(store.get_range(&path, 0..4096).await.unwrap()[0], round);
    }
    // SAFETY: nothing uses the mapping any more.
    assert_eq!(unsafe { libc::munmap(mapped, 4096) }, 0);
}

/// The memory is that of the pool's blocks, and the pool has room for it.
#[tokio::test]
async fn the_limit_holds_and_leaves_the_memory_for_reads_alone() {
    let Some(folder) = folder() else { return };
    let store = store(&folder, |builder| builder.cache(4 * MIB).memory(2 * MIB));
    assert_eq!(store.pool().metrics().capacity, 6 * MIB);
    let path = Path::from("object");
    store.put(&path, content(0..32 * MIB as u64).into()).await.unwrap();
    kept(&store, &path, 0..1).await;
    let mut seed = 1_u64;
    for _ in 0..500 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let start = (seed >> 33) % (31 << 20);
        let ranges =
            [start..start + 1 + (seed >> 20) % 100_000, start + 110_000..start + 110_000 + seed % 40_000];
        let got = store.get_ranges(&path, &ranges).await.unwrap();
        for (range, got) in ranges.iter().zip(&got) {
            assert!(*got == content(range.clone()), "{range:?}");
        }
        drop(got);
        let (cache, pool) = (store.cache_metrics(), store.pool().metrics());
        assert!(cache.bytes <= 4 * MIB as u64 && pool.in_use as u64 <= cache.bytes, "{cache:?}, {pool:?}");
        assert_eq!(pool.outside_allocations, 0);
    }
    assert!(store.cache_metrics().bytes > 3 * MIB as u64, "it is used");

    // Longer than a quarter: a get, whose pieces would fit, and a read.
    let before = store.cache_metrics().bytes;
    store.put(&path, content(0..32 * MIB as u64).into()).await.unwrap();
    kept(&store, &path, 0..1).await;
    let small = store.cache_metrics().bytes;
    store.get(&path).await.unwrap().bytes().await.unwrap();
    store.get_range(&path, 0..MIB as u64 + 1).await.unwrap();
    store.get_ranges(&path, &[MIB as u64..3 * MIB as u64]).await.unwrap();
    assert_eq!(store.cache_metrics().bytes, small);
    assert!(small < before);
}

/// As a pool of the user's may be.
#[tokio::test]
async fn a_full_pool_empties_the_cache() {
    let Some(folder) = folder() else { return };
    let pool = Pool::new(MIB);
    let store = store(&folder, |builder| builder.pool(pool.clone()));
    let path = Path::from("object");
    store.put(&path, content(0..8 * MIB as u64).into()).await.unwrap();
    kept(&store, &path, 0..1).await;
    for start in (0..8 * MIB as u64).step_by(200_000).take(40) {
        let got = store.get_range(&path, start..start + 150_000).await.unwrap();
        assert!(got == content(start..start + 150_000));
    }
    assert!(pool.metrics().in_use > 0, "and keeps what is read then");
}

/// What one object may be: the last version that was put before a get began, or a later one.
#[derive(Default)]
struct Model {
    /// Of each object, the number of the last version whose put has ended.
    ended: HashMap<u64, AtomicUsize>,
}

/// Counts a thread less, also after a panic.
struct Ends<'a>(&'a AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Many threads get ranges of a few objects, while others change them in every way.
#[test]
fn no_get_that_begins_after_a_change_has_ended_gets_what_was_there_before() {
    const OBJECTS: u64 = 24;
    const LEN: u64 = 20_000;
    let Some(folder) = folder() else { return };
    let seed = std::env::var("RINGFILE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("RINGFILE_TEST_SEED={seed}");
    // Not all objects fit.
    let store = store(&folder, |builder| builder.cache(16 * LEN as usize).memory(MIB));
    let model = Model { ended: (0..OBJECTS).map(|object| (object, AtomicUsize::new(0))).collect() };
    // One change at a time for each object, so that it is known which one was the last.
    let locks: Vec<_> = (0..OBJECTS).map(|_| Mutex::new(0_usize)).collect();
    let renames = RwLock::new(());
    let path = |object: u64| Path::from(format!("objects/{object}"));
    let change = |object: u64, way: u64| {
        let mut last = locks[object as usize].lock().unwrap();
        *last += 1;
        let (path, version) = (path(object), *last);
        let text = version.to_ne_bytes().repeat(LEN as usize / 8);
        let _alone = (way == 4).then(|| renames.write().unwrap());
        let done = block_on(async {
            let staged = Path::from(format!("staged/{object}"));
            match way {
                0 => drop(store.put(&path, text.into()).await?),
                1 => {
                    store.put(&staged, text.into()).await?;
                    store.rename(&staged, &path).await?;
                }
                2 => {
                    store.put(&staged, text.into()).await?;
                    store.copy(&staged, &path).await?;
                }
                3 => {
                    let mut upload = store.put_multipart(&path).await?;
                    upload.put_part(text.into()).await?;
                    upload.complete().await?;
                }
                4 => {
                    store.delete(&path).await?;
                    store.put(&path, text.into()).await?;
                }
                _ => {
                    // Another program.
                    let new = folder.path().join(format!("foreign-{object}"));
                    fs::write(&new, text).unwrap();
                    fs::rename(new, folder.path().join(path.as_ref())).unwrap();
                }
            }
            Ok::<_, Error>(())
        });
        done.unwrap();
        model.ended[&object].store(version, Ordering::SeqCst);
    };
    fs::create_dir(folder.path().join("objects")).unwrap();
    (0..OBJECTS).for_each(|object| change(object, object % 4));
    let readers = AtomicUsize::new(5);
    let is_used = |store: &RingfileStore| {
        let metrics = store.cache_metrics();
        metrics.hits > 1000 && metrics.misses > 100
    };
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (store, model, change, path, renames, readers, is_used) =
                (&store, &model, &change, &path, &renames, &readers, &is_used);
            scope.spawn(move || {
                let mut random = seed ^ u64::wrapping_mul(thread, 0x9e37_79b9_7f4a_7c15);
                let mut below = |most: u64| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 33) % most
                };
                if thread == 0 {
                    while readers.load(Ordering::Relaxed) > 0 {
                        change(below(OBJECTS), below(6));
                        // Objects that change all the time are not kept.
                        std::thread::sleep(Duration::from_millis(below(15)));
                    }
                    return;
                }
                let _ends = Ends(readers);
                let began = Instant::now();
                // An object is kept once it has not changed for a while, so fast reads need more rounds to find some kept.
                for round in 0.. {
                    if round >= 4000 && is_used(store) {
                        break;
                    }
                    assert!(
                        began.elapsed() < 2 * patience(),
                        "the cache is not used: {:?}",
                        store.cache_metrics()
                    );
                    let _there = renames.read().unwrap();
                    let (object, start) = (below(OBJECTS) * below(OBJECTS) / OBJECTS, below(LEN / 8 - 1) * 8);
                    let range = start..start + 8 * (1 + below(LEN / 8 - start / 8));
                    let least = model.ended[&object].load(Ordering::SeqCst);
                    let parts = match below(3) {
                        0 => block_on(store.get_range(&path(object), range.clone())).map(|bytes| vec![bytes]),
                        1 => block_on(store.get_ranges(&path(object), &[range.clone(), 0..16])),
                        _ => block_on(async { Ok(vec![store.get(&path(object)).await?.bytes().await?]) }),
                    };
                    let parts = parts.unwrap();
                    let words: Vec<usize> = parts
                        .iter()
                        .flat_map(|part| part.chunks(8))
                        .map(|word| usize::from_ne_bytes(word.try_into().unwrap()))
                        .collect();
                    assert!(words[0] >= least, "version {} of object {object}, after {least}", words[0]);
                    assert!(
                        words.iter().all(|word| *word == words[0]),
                        "a mix of versions of object {object}"
                    );
                }
            });
        }
    });
    let metrics = store.cache_metrics();
    println!("{metrics:?}, {} changes", locks.iter().map(|last| *last.lock().unwrap()).sum::<usize>());
    assert!(is_used(&store) && metrics.bytes <= 16 * LEN, "{metrics:?}");
}
