//! The test suite of the `object_store` crate, and further tests, on both versions of the trait.

macro_rules! suite {
    ($name:ident, $api:ident) => {
        mod $name {
            use std::fs;
            use std::ops::Range;
            use std::sync::Arc;
            use std::time::{Duration, Instant};

            use futures::{StreamExt, TryStreamExt};
            use ringfile::Pool;
            use ringfile_object_store::{Caching, RingfileStore};
            use tempfile::TempDir;
            use $api::integration::*;
            use $api::path::Path;
            use $api::{Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode};
            use $api::{RenameOptions, RenameTargetMode};

            use crate::support::{patience, skip};

            const CACHINGS: [Caching; 3] = [Caching::Buffered, Caching::Direct, Caching::Adaptive];

            fn content(range: Range<usize>) -> Vec<u8> {
                range.map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
            }

            /// Makes a folder in the build folder, where O_DIRECT works, unlike on a tmpfs.
            fn folder() -> TempDir {
                tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
            }

            fn store(folder: &TempDir, caching: Caching) -> RingfileStore {
                RingfileStore::builder().prefix(folder.path()).caching(caching).build().unwrap()
            }

            /// Runs all tests that `LocalFileSystem` has.
            #[tokio::test]
            async fn the_suite_of_object_store() {
                let all = CACHINGS.map(|caching| [0, 1 << 20].map(|cache| (caching, cache)));
                for (caching, cache) in all.into_iter().flatten() {
                    let folder = folder();
                    let sync = caching == Caching::Buffered;
                    let store = RingfileStore::builder().prefix(folder.path()).caching(caching).sync(sync);
                    let store = store.cache(cache).build().unwrap();
                    put_get_delete_list(&store).await;
                    list_with_offset_exclusivity(&store).await;
                    get_opts(&store).await;
                    list_uses_directories_correctly(&store).await;
                    list_with_delimiter(&store).await;
                    rename_and_copy(&store).await;
                    copy_if_not_exists(&store).await;
                    copy_rename_nonexistent_object(&store).await;
                    stream_get(&store).await;
                    put_opts(&store, false).await;
                }
            }

            #[test]
            fn without_tokio() {
                let folder = folder();
                let store = store(&folder, Caching::Buffered);
                futures::executor::block_on(async {
                    put_get_delete_list(&store).await;
                    list_uses_directories_correctly(&store).await;
                    list_with_delimiter(&store).await;
                    let path = Path::from("by_hand");
                    let mut upload = store.put_multipart(&path).await.unwrap();
                    let (first, second) = (upload.put_part("123".into()), upload.put_part("45678".into()));
                    second.await.unwrap();
                    first.await.unwrap();
                    let put = upload.complete().await.unwrap();
                    assert!(upload.complete().await.is_err());
                    assert!(upload.put_part("9".into()).await.is_err());
                    let got = store.get(&path).await.unwrap();
                    assert_eq!(got.meta.e_tag, put.e_tag);
                    assert_eq!(got.bytes().await.unwrap(), "12345678");
                });
            }

            #[tokio::test]
            async fn ranges_are_the_bytes_asked_for() {
                let size = 3_000_001;
                for caching in CACHINGS {
                    let folder = folder();
                    let store = store(&folder, caching);
                    let path = Path::from("deep/in/here");
                    store.put(&path, content(0..size).into()).await.unwrap();
                    let end = size as u64;
                    let ranges = [
                        5..9,
                        0..1,
                        2_000_000..2_900_000,
                        8..4096,
                        4096..8192,
                        end - 1..end,
                        7..7,
                        100_000..100_000,
                    ];
                    let got = store.get_ranges(&path, &ranges).await.unwrap();
                    for (range, got) in ranges.iter().zip(&got) {
                        assert_eq!(got, &content(range.start as usize..range.end as usize), "{range:?}");
                    }
                    let beyond = store.get_ranges(&path, &[end - 2..end + 100]).await.unwrap();
                    assert_eq!(beyond[0], content(size - 2..size));
                    assert!(store.get_ranges(&path, &[end..end + 1]).await.is_err());
                    assert!(store.get_ranges(&path, &[Range { start: 9, end: 5 }]).await.is_err());
                    assert!(store.get_ranges(&Path::from("deep"), &[0..1]).await.is_err());
                    assert!(matches!(
                        store.get_ranges(&Path::from("none"), &[0..1]).await,
                        Err(Error::NotFound { .. })
                    ));
                    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), content(0..size));
                    let suffix = GetOptions { range: Some(GetRange::Suffix(10)), ..GetOptions::default() };
                    let got = store.get_opts(&path, suffix).await.unwrap();
                    assert_eq!(got.range, end - 10..end);
                    assert_eq!(got.bytes().await.unwrap(), content(size - 10..size));
                }
            }

            /// `GetResult::bytes` copies if there are several.
            #[tokio::test]
            async fn a_range_of_at_most_a_mebibyte_is_one_piece() {
                let folder = folder();
                let store = store(&folder, Caching::Direct);
                let path = Path::from("object");
                store.put(&path, content(0..3 << 20).into()).await.unwrap();
                for (range, pieces) in [(500_000..500_000 + (1 << 20), 1), (500_000..2_500_000, 3)] {
                    let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
                    let got = store.get_opts(&path, options).await.unwrap().into_stream();
                    let got: Vec<_> = got.try_collect().await.unwrap();
                    assert_eq!(got.len(), pieces);
                    assert_eq!(got.concat(), content(range.start as usize..range.end as usize));
                }
            }

            #[tokio::test]
            async fn a_full_pool_is_exceeded_and_all_memory_comes_back() {
                let folder = folder();
                let store = RingfileStore::builder().prefix(folder.path()).memory(1 << 20).build().unwrap();
                let path = Path::from("object");
                store.put(&path, content(0..4 << 20).into()).await.unwrap();
                // The consumer holds more than the pool has.
                let mut held = Vec::new();
                for start in 0..8_u64 {
                    let range = start << 19..(start + 1) << 19;
                    held.extend(store.get_ranges(&path, &[range]).await.unwrap());
                }
                assert_eq!(held.concat(), content(0..4 << 20));
                assert!(store.pool().metrics().outside_bytes > 0);
                drop(held);
                assert_eq!((store.pool().metrics().in_use, store.pool().metrics().outside_bytes), (0, 0));
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_thousand_calls_on_a_small_pool_end_and_memory_stays_bounded() {
                let folder = folder();
                let store = RingfileStore::builder().prefix(folder.path()).memory(16 << 20).build().unwrap();
                let path = Path::from("object");
                store.put(&path, content(0..8 << 20).into()).await.unwrap();
                let whole = Arc::new(content(0..8 << 20));
                let calls = (0..1000_u64).map(|call| {
                    let (store, path, whole) = (store.clone(), path.clone(), Arc::clone(&whole));
                    tokio::spawn(async move {
                        let ranges: Vec<_> = (0..8)
                            .map(|at| (call * 7919 + at * 999_983) % (7 << 20))
                            .map(|at| at..at + 100_000)
                            .collect();
                        let got = store.get_ranges(&path, &ranges).await.unwrap();
                        for (range, got) in ranges.iter().zip(got) {
                            assert!(got == whole[range.start as usize..range.end as usize]);
                        }
                    })
                });
                let (mut most, pool) = (0, store.pool().clone());
                for call in calls.collect::<Vec<_>>() {
                    call.await.unwrap();
                    let metrics = pool.metrics();
                    most = most.max(metrics.in_use + metrics.outside_bytes);
                }
                // The setting limits the memory of reads in flight; each thread also holds the results of one call.
                assert!(most <= 40 << 20, "{most} bytes");
            }

            #[tokio::test]
            async fn a_call_that_nobody_polls_keeps_no_other_waiting_for_ever() {
                let folder = folder();
                let store = RingfileStore::builder().prefix(folder.path()).memory(64 << 10).build().unwrap();
                let path = Path::from("object");
                store.put(&path, content(0..1 << 20).into()).await.unwrap();
                let ranges = [0..60_000];
                let mut calls: Vec<_> = (0..4).map(|_| store.get_ranges(&path, &ranges)).collect();
                for call in &mut calls {
                    let _ = futures::poll!(call);
                }
                let got = store.get_ranges(&path, &ranges).await.unwrap();
                assert_eq!(got[0], content(0..60_000));
            }

            /// F50: objects that are replaced, removed or truncated while they are read.
            #[tokio::test]
            async fn f50_a_get_gives_the_whole_old_object_or_the_whole_new_one() {
                for caching in CACHINGS {
                    let folder = folder();
                    let store = store(&folder, caching);
                    let path = Path::from("object");
                    let (old, new) = (vec![1; 6 << 20], vec![2; 5 << 20]);
                    store.put(&path, old.clone().into()).await.unwrap();
                    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
                    let mut stream = store.get(&path).await.unwrap().into_stream();
                    let first = stream.next().await.unwrap().unwrap();
                    store.put(&path, new.clone().into()).await.unwrap();
                    let rest: Vec<_> = stream.try_collect().await.unwrap();
                    assert!([vec![first], rest].concat().concat() == old, "the old one to its end");
                    assert!(store.get(&path).await.unwrap().bytes().await.unwrap() == new);
                    let if_same = GetOptions { if_match: listed[0].e_tag.clone(), ..GetOptions::default() };
                    assert!(matches!(store.get_opts(&path, if_same).await, Err(Error::Precondition { .. })));

                    let stream = store.get(&path).await.unwrap();
                    store.delete(&path).await.unwrap();
                    assert!(stream.bytes().await.unwrap() == new, "though it is gone");
                    assert!(matches!(store.get(&path).await, Err(Error::NotFound { .. })));

                    // Truncated in place, which only others do: an error, and no invented bytes.
                    store.put(&path, old.into()).await.unwrap();
                    let stream = store.get(&path).await.unwrap();
                    fs::OpenOptions::new()
                        .write(true)
                        .open(folder.path().join("object"))
                        .unwrap()
                        .set_len(5)
                        .unwrap();
                    let error = stream.bytes().await.unwrap_err().to_string();
                    assert!(error.contains("it was truncated meanwhile"), "{error}");
                }
            }

            /// F50 with permanent writers: a mixture of old and new content would be noticed.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn f50_readers_beside_writers_see_no_mix() {
                let folder = folder();
                let store = store(&folder, Caching::Direct);
                let path = Path::from("object");
                let put = |store: RingfileStore, path: Path, round: u8| async move {
                    let len = 300_000 + usize::from(round) * 1000;
                    store.put(&path, vec![round; len].into()).await.unwrap();
                };
                put(store.clone(), path.clone(), 0).await;
                let writer = {
                    let (store, path) = (store.clone(), path.clone());
                    tokio::spawn(async move {
                        for round in 1..100 {
                            put(store.clone(), path.clone(), round).await;
                        }
                    })
                };
                while !writer.is_finished() {
                    let whole = store.get(&path).await.unwrap().bytes().await.unwrap();
                    assert_eq!(whole.len(), 300_000 + usize::from(whole[0]) * 1000);
                    assert!(whole.iter().all(|&byte| byte == whole[0]));
                    let parts =
                        store.get_ranges(&path, &[0..10, 150_000..150_010, 299_990..300_000]).await.unwrap();
                    assert!(parts.iter().flatten().all(|&byte| byte == parts[0][0]));
                }
                writer.await.unwrap();
                assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
            }

            #[tokio::test]
            async fn uploads_that_are_given_up_leave_nothing() {
                let folder = folder();
                let store = store(&folder, Caching::Buffered);
                let path = Path::from("new/object");
                let mut upload = store.put_multipart(&path).await.unwrap();
                upload.put_part(content(0..100).into()).await.unwrap();
                assert_eq!(store.list(None).count().await, 0, "not before it is complete");
                upload.abort().await.unwrap();
                assert!(upload.abort().await.is_err());
                drop(store.put_multipart(&path).await.unwrap());
                // Another thread removes it.
                let left = || fs::read_dir(folder.path().join("new")).unwrap().count();
                let began = Instant::now();
                while left() > 0 {
                    assert!(began.elapsed() < patience(), "what was uploaded is left");
                    std::thread::sleep(Duration::from_millis(10));
                }
                store.put_opts(&path, "first".into(), PutMode::Create.into()).await.unwrap();
                let again = store.put_opts(&path, "second".into(), PutMode::Create.into()).await;
                assert!(matches!(again, Err(Error::AlreadyExists { .. })));
                assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "first");
            }

            /// An object never has holes, and is never cut short, if a part failed or was dropped.
            #[tokio::test]
            async fn an_upload_without_all_of_its_parts_is_not_completed() {
                let folder = folder();
                let store = store(&folder, Caching::Buffered);
                let path = Path::from("new/object");
                for is_last in [false, true] {
                    let mut upload = store.put_multipart(&path).await.unwrap();
                    let first = upload.put_part(content(0..4096).into());
                    let second = upload.put_part(content(0..4096).into());
                    // Dropped before it is written, as after a timeout.
                    let (given_up, written) = if is_last { (second, first) } else { (first, second) };
                    drop(given_up);
                    written.await.unwrap();
                    let error = upload.complete().await.unwrap_err().to_string();
                    assert!(error.contains("4096 of its 8192 bytes"), "{error}");
                    assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 0);
                    assert!(upload.complete().await.is_err());
                    // What `WriteMultipart` does before it returns the error.
                    upload.abort().await.unwrap();
                    assert!(matches!(store.get(&path).await, Err(Error::NotFound { .. })));
                }
                let mut upload = store.put_multipart(&path).await.unwrap();
                upload.put_part(Vec::new().into()).await.unwrap();
                upload.put_part(content(0..10).into()).await.unwrap();
                drop(upload.put_part(Vec::new().into()));
                upload.complete().await.unwrap();
                assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), content(0..10));
            }

            #[tokio::test]
            async fn deleting_and_renaming_with_their_folders_is_made_durable() {
                let folder = folder();
                let store = RingfileStore::builder().prefix(folder.path()).sync(true);
                let store = store.removes_empty_folders(true).build().unwrap();
                let (from, to) = (Path::from("a/b/c"), Path::from("d/e"));
                for mode in [RenameTargetMode::Create, RenameTargetMode::Overwrite] {
                    store.put(&from, "1".into()).await.unwrap();
                    let options = RenameOptions::new().with_target_mode(mode);
                    store.rename_opts(&from, &to, options).await.unwrap();
                    store.delete(&to).await.unwrap();
                    assert!(!folder.path().join("d").exists());
                }
                assert!(matches!(store.delete(&to).await, Err(Error::NotFound { .. })));
                assert!(folder.path().exists());
            }

            /// No descriptor of a removed object stays open, and data that several calls read gets cached, although the
            /// calls know nothing of each other.
            #[tokio::test]
            async fn an_adaptive_store_remembers_what_was_read_and_forgets_what_is_gone() {
                let folder = folder();
                ringfile::internal::assume_memory_is_free(Some(false));
                let store = store(&folder, Caching::Adaptive);
                let count = || {
                    let open = fs::read_dir("/proc/self/fd").unwrap();
                    let names = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
                    names.filter(|name| name.starts_with(folder.path())).count()
                };
                // Another thread may close them.
                let open_files = |expected: usize| {
                    let began = Instant::now();
                    while count() != expected && began.elapsed() < patience() {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    count()
                };
                let file = folder.path().join("object");
                fs::write(&file, content(0..1 << 20)).unwrap();
                if !ringfile::OpenOptions::new()
                    .read(true)
                    .adaptive(true)
                    .open_blocking(&file)
                    .unwrap()
                    .is_adaptive()
                {
                    skip(
                        "an_adaptive_store_remembers_what_was_read_and_forgets_what_is_gone",
                        "no adaptive files here",
                    );
                    return;
                }
                let path = Path::from("object");
                for _ in 0..6 {
                    // Not in the cache, so that each read counts.
                    let file = fs::File::open(&file).unwrap();
                    file.sync_all().unwrap();
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                    let got = store.get_ranges(&path, &[0..1 << 20]).await.unwrap();
                    assert_eq!(got[0], content(0..1 << 20));
                }
                assert_eq!(open_files(2), 2, "with and without O_DIRECT");
                let mut page = [0; 4096];
                let mut into = [std::io::IoSliceMut::new(&mut page)];
                let cached = rustix::io::preadv2(
                    fs::File::open(&file).unwrap(),
                    &mut into,
                    512 << 10,
                    rustix::io::ReadWriteFlags::NOWAIT,
                );
                assert_eq!(cached, Ok(4096), "the sixth read has left it in the cache");

                store.put(&path, "new".into()).await.unwrap();
                assert_eq!(open_files(0), 0, "what was replaced");
                assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "new");
                let other = Path::from("other");
                store.rename(&path, &other).await.unwrap();
                assert_eq!(store.get(&other).await.unwrap().bytes().await.unwrap(), "new");
                assert_eq!(open_files(2), 2, "it has another name");
                store.delete(&other).await.unwrap();
                assert_eq!(open_files(0), 0, "what was deleted");

                // A file that others remove is closed by reads of another object that is already open.
                fs::write(&file, "short").unwrap();
                store.get(&path).await.unwrap().bytes().await.unwrap();
                fs::write(folder.path().join("next"), "next").unwrap();
                let next = Path::from("next");
                store.get(&next).await.unwrap().bytes().await.unwrap();
                assert_eq!(open_files(4), 4, "both");
                fs::remove_file(&file).unwrap();
                let began = Instant::now();
                while count() != 2 && began.elapsed() < patience() {
                    store.get(&next).await.unwrap().bytes().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                assert_eq!(count(), 2, "the next");

                // And so is one that is removed when nothing is read any more.
                fs::remove_file(folder.path().join("next")).unwrap();
                assert_eq!(open_files(0), 0, "all are gone");
            }

            #[cfg(unix)]
            #[tokio::test]
            async fn names_links_and_folders_are_those_of_local_file_system() {
                let folder = folder();
                let store = store(&folder, Caching::Buffered);
                fs::write(folder.path().join("a%2Fb"), "percent").unwrap();
                fs::write(folder.path().join("plain"), "plain").unwrap();
                std::os::unix::fs::symlink(folder.path().join("plain"), folder.path().join("link")).unwrap();
                std::os::unix::fs::symlink("/nowhere", folder.path().join("broken")).unwrap();
                fs::write(folder.path().join("object#1"), "on its way").unwrap();
                let local = $api::local::LocalFileSystem::new_with_prefix(folder.path()).unwrap();
                let names = |store: Arc<dyn ObjectStore>| async move {
                    let mut all: Vec<_> = store.list(None).try_collect().await.unwrap();
                    all.sort_by(|a, b| a.location.cmp(&b.location));
                    all
                };
                let listed = names(Arc::new(store.clone())).await;
                assert_eq!(listed, names(Arc::new(local)).await);
                for meta in &listed {
                    let got = store.get(&meta.location).await.unwrap();
                    assert_eq!(got.meta, *meta);
                    assert_eq!(got.bytes().await.unwrap().len() as u64, meta.size);
                }
                // `..` leads nowhere: the path type does not allow it, and such a text is a plain name.
                let outside = Path::from("../outside");
                store.put(&outside, "inside".into()).await.unwrap();
                assert!(!folder.path().parent().unwrap().join("outside").exists());
                assert!(Path::parse("a/../../b").is_err());
                assert!(matches!(
                    store.put(&Path::parse("name#7").unwrap(), "x".into()).await,
                    Err(Error::Generic { .. })
                ));
            }

            #[tokio::test]
            async fn a_pool_of_the_users_and_no_folder() {
                let pool = Pool::new(1 << 20);
                let folder = folder();
                fs::write(folder.path().join("data"), content(0..100_000)).unwrap();
                let store = RingfileStore::builder().pool(pool.clone()).build().unwrap();
                let path = Path::from_absolute_path(folder.path().join("data")).unwrap();
                let got = store.get_ranges(&path, &[10..90_000]).await.unwrap();
                assert!(pool.metrics().in_use >= 90_000);
                assert_eq!(got[0], content(10..90_000));
                let nowhere = RingfileStore::new_with_prefix(folder.path().join("none"));
                assert_eq!(nowhere.unwrap_err().kind(), std::io::ErrorKind::NotFound);
            }
        }
    };
}

#[cfg(feature = "object-store-013")]
suite!(v013, object_store_013);
#[cfg(feature = "object-store-014")]
suite!(v014, object_store_014);
