//! Whatever calls do to an object's names at the same time, no acknowledged object is lost, and no temporary name is left or
//! seen.

use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use crate::support::skip;
use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt};
use object_store_014::local::LocalFileSystem;
use object_store_014::path::Path;
use object_store_014::{Error, GetOptions, ObjectStore, ObjectStoreExt};
use ringfile_object_store::RingfileStore;
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn store(folder: &TempDir) -> RingfileStore {
    RingfileStore::new_with_prefix(folder.path()).unwrap()
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// tmpfs holds any time of 64 bits, chrono only years of six digits.
#[tokio::test]
async fn objects_have_any_time_that_their_file_system_holds() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = store(&folder);
    let (path, file) = (Path::from("object"), folder.path().join("object"));
    store.put(&path, "content".into()).await.unwrap();
    let opened = fs::File::options().write(true).open(&file).unwrap();
    let far = Duration::from_secs(1 << 43);
    let cases = [
        (UNIX_EPOCH + far, Some(DateTime::<Utc>::MAX_UTC)),
        (UNIX_EPOCH - far, Some(DateTime::<Utc>::MIN_UTC)),
        (UNIX_EPOCH - Duration::from_millis(1), DateTime::from_timestamp_millis(-1)),
    ];
    for (time, shown) in cases {
        opened.set_modified(time).unwrap();
        if fs::metadata(&file).unwrap().modified().unwrap() != time {
            skip("objects_have_any_time_that_their_file_system_holds", "/dev/shm holds no such times");
            continue;
        }
        assert_eq!(Some(store.head(&path).await.unwrap().last_modified), shown);
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "content");
        let new = GetOptions { if_modified_since: DateTime::from_timestamp(0, 0), ..GetOptions::default() };
        assert_eq!(store.get_opts(&path, new).await.is_ok(), time > UNIX_EPOCH);
        let mut listed: Vec<_> = store.list(None).try_collect().await.unwrap();
        listed.extend(store.list_with_offset(None, &Path::from("a")).try_collect::<Vec<_>>().await.unwrap());
        listed.extend(store.list_with_delimiter(None).await.unwrap().objects);
        assert_eq!(listed.iter().map(|object| Some(object.last_modified)).collect::<Vec<_>>(), [shown; 3]);
    }
}

/// In every way, over a tree with what the other store does not list.
#[tokio::test]
async fn listings_are_those_of_the_local_file_system() {
    let folder = folder();
    let store = store(&folder);
    let other = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let root = folder.path();
    for path in ["b/c/d", "b/c!/d", "b!/x", "b/c0", "empty/e/f", "with space/ü%20", "b#1/y", "z"] {
        fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        fs::write(root.join(path), path).unwrap();
    }
    // Temporary names, links, and what is no file.
    for path in ["z#17", "b/c#04"] {
        fs::write(root.join(path), path).unwrap();
    }
    fs::remove_file(root.join("empty/e/f")).unwrap();
    use std::os::unix::fs::symlink;
    symlink("b", root.join("linked")).unwrap();
    symlink("b/c/d", root.join("linked file")).unwrap();
    symlink("nowhere", root.join("broken")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();

    // No object, with a name that no object has.
    symlink("nowhere", root.join("line\nbreak")).unwrap();

    let prefixes = ["", "b", "b/c", "b/c/d", "empty", "linked", "none", "with space", "b!"];
    for prefix in prefixes.map(Path::from) {
        let all = async |store: &dyn ObjectStore, offset: Option<&Path>| {
            let listed = match offset {
                None => store.list(Some(&prefix)),
                Some(offset) => store.list_with_offset(Some(&prefix), offset),
            };
            let mut listed: Vec<_> = listed.try_collect().await.unwrap();
            listed.sort_by(|one, other| one.location.cmp(&other.location));
            listed
        };
        assert_eq!(all(&store, None).await, all(&other, None).await, "{prefix}");
        for offset in ["a", "b", "b!", "b/c", "b/c!", "b/c!/d", "b/c/d", "b0", "linked/c/d", "zz"] {
            let offset = Path::from(offset);
            assert_eq!(
                all(&store, Some(&offset)).await,
                all(&other, Some(&offset)).await,
                "{prefix} {offset}"
            );
        }
        let one = async |store: &dyn ObjectStore| {
            let mut listed = store.list_with_delimiter(Some(&prefix)).await.unwrap();
            listed.objects.sort_by(|one, other| one.location.cmp(&other.location));
            (listed.common_prefixes, listed.objects)
        };
        assert_eq!(one(&store).await, one(&other).await, "{prefix}");
    }

    // A name that is no text, a link to itself, and a folder in itself.
    use std::os::unix::ffi::OsStrExt;
    let odd = root.join("b").join(std::ffi::OsStr::from_bytes(b"\xff"));
    fs::write(&odd, b"").unwrap();
    let fails = async |store: &dyn ObjectStore| store.list(None).try_collect::<Vec<_>>().await.is_err();
    assert!(fails(&store).await && fails(&other).await);
    fs::remove_file(odd).unwrap();
    assert!(!fails(&store).await && !fails(&other).await);
    symlink("itself", root.join("itself")).unwrap();
    assert!(fails(&store).await && fails(&other).await);
    fs::remove_file(root.join("itself")).unwrap();
    symlink("../../b", root.join("b/c/loop")).unwrap();
    assert!(fails(&store).await && fails(&other).await);
}

/// Both names are links to one file, so `rename(2)` does nothing, and the old name has to be removed in another way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_while_its_name_is_renamed_is_not_lost() {
    let folder = folder();
    let store = store(&folder);
    let (a, b) = (Path::from("a"), Path::from("b"));
    for round in 0..4000 {
        let replaces = round % 2 == 0;
        store.put(&a, "old".into()).await.unwrap();
        if replaces {
            store.copy(&a, &b).await.unwrap();
        }
        let renaming = tokio::spawn({
            let (store, a, b) = (store.clone(), a.clone(), b.clone());
            async move {
                let renamed = if replaces {
                    store.rename(&a, &b).await
                } else {
                    store.rename_if_not_exists(&a, &b).await
                };
                renamed.unwrap();
            }
        });
        store.put(&a, "new".into()).await.unwrap();
        renaming.await.unwrap();
        let content = |name| fs::read(folder.path().join(name)).unwrap_or_default();
        assert!([content("a"), content("b")].contains(&b"new".to_vec()), "round {round}");
        for name in names(&folder) {
            assert!(["a", "b"].contains(&&name[..]), "{name} is left in round {round}");
            fs::remove_file(folder.path().join(name)).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_copies_at_the_same_time_leave_no_temporary_name() {
    let folder = folder();
    let store = store(&folder);
    let (from, to) = (Path::parse("a#x").unwrap(), Path::parse("b#x").unwrap());
    for _ in 0..300 {
        store.put(&from, "content".into()).await.unwrap();
        let copies = [0; 3].map(|_| {
            let (store, from, to) = (store.clone(), from.clone(), to.clone());
            tokio::spawn(async move { store.copy(&from, &to).await.unwrap() })
        });
        for copied in copies {
            copied.await.unwrap();
        }
        assert_eq!(names(&folder), ["a#x", "b#x"]);
        store.delete(&to).await.unwrap();
    }
}

/// `LocalFileSystem` hides names of which only digits follow the first `#`.
#[tokio::test]
async fn an_upload_takes_no_name_that_an_object_may_have() {
    let folder = folder();
    let store = store(&folder);
    for name in ["a#b", "#b", "a#b#c", &"long".repeat(63)] {
        let (path, numbered) = (Path::parse(name).unwrap(), format!("{}#b#1", &name[..1]));
        let other = Path::parse(numbered).unwrap();
        let mut upload = store.put_multipart(&path).await.unwrap();
        upload.put_part("content".into()).await.unwrap();
        assert_eq!(store.list(None).count().await, 0);
        store.put(&other, "other".into()).await.unwrap();
        store.put(&Path::from("a"), "third".into()).await.unwrap();
        upload.complete().await.unwrap();
        store.copy(&path, &Path::from("copy")).await.unwrap();
        store.copy(&Path::from("copy"), &path).await.unwrap();
        for (path, content) in [(&path, "content"), (&other, "other"), (&Path::from("a"), "third")] {
            assert_eq!(store.get(path).await.unwrap().bytes().await.unwrap(), content);
        }
        let all: Vec<_> = store.list(None).try_collect().await.unwrap();
        assert_eq!((all.len(), names(&folder).len()), (4, 4));
        for meta in all {
            store.delete(&meta.location).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_created_is_not_an_object_that_exists() {
    let folder = folder();
    let store = store(&folder);
    std::os::unix::fs::symlink("nowhere", folder.path().join("broken")).unwrap();
    let (object, below) = (Path::from("object"), Path::from("broken/object"));
    store.put(&object, "content".into()).await.unwrap();
    for failed in [
        store.put(&below, "content".into()).await.map(drop),
        store.copy(&object, &below).await,
        store.copy_if_not_exists(&object, &below).await,
        store.rename(&object, &below).await,
        store.rename_if_not_exists(&object, &below).await,
    ] {
        let error = failed.unwrap_err();
        assert!(matches!(error, Error::Generic { .. }), "{error:?}");
        assert!(error.to_string().contains("broken"), "{error}");
    }
    assert_eq!(names(&folder), ["broken", "object"]);
}

#[tokio::test]
async fn only_files_and_symbolic_links_are_replaced() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let folder = folder();
    let store = store(&folder);
    let (object, pipe) = (Path::from("object"), Path::from("pipe"));
    mknodat(CWD, folder.path().join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    store.put(&object, "content".into()).await.unwrap();
    for failed in [
        store.put(&pipe, "content".into()).await.map(drop),
        store.copy(&object, &pipe).await,
        store.rename(&object, &pipe).await,
    ] {
        let error = failed.unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
    std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
    store.put(&Path::from("link"), "content".into()).await.unwrap();
    assert_eq!(names(&folder), ["link", "object", "pipe"]);
}

#[tokio::test]
async fn a_renamed_object_leaves_no_empty_folder() {
    let folder = folder();
    let store = RingfileStore::builder().prefix(folder.path()).removes_empty_folders(true).build().unwrap();
    let (from, to) = (Path::from("a/b/c"), Path::from("d/e"));
    for replaces in [false, true] {
        store.put(&from, "content".into()).await.unwrap();
        if replaces {
            store.rename(&from, &to).await.unwrap();
        } else {
            store.rename_if_not_exists(&from, &to).await.unwrap();
        }
        assert_eq!(names(&folder), ["d"]);
        store.delete(&to).await.unwrap();
    }
}
