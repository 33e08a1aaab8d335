//! Directories, read as a stream: every entry once, whatever the executor, the number of entries and what happens meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::support;
use crate::support::{Folder, assert_passed, descriptors_of, fork, in_child, poll_once, wait_closed};
use futures::StreamExt;
use ringfile::fs::{self, DirEntry, FileType, ReadDir, read_dir};
use ringfile::{block_on, metrics};

/// More than workers read at once, several times.
const MANY: usize = 10_000;

fn fill(folder: &Path, entries: usize) -> BTreeSet<OsString> {
    let names: BTreeSet<_> = (0..entries).map(|number| OsString::from(format!("entry-{number}"))).collect();
    names.iter().for_each(|name| std::fs::write(folder.join(name), b"").unwrap());
    names
}

async fn rest(mut entries: ReadDir) -> Vec<DirEntry> {
    let mut all = Vec::new();
    while let Some(entry) = entries.next().await {
        all.push(entry.unwrap());
    }
    assert!(entries.next().await.is_none());
    all
}

/// Returns the names; fails if one is there twice.
fn names(entries: Vec<DirEntry>) -> BTreeSet<OsString> {
    let count = entries.len();
    let names: BTreeSet<_> = entries.into_iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), count);
    names
}

#[test]
fn every_kind_and_name_of_entry_is_reported() {
    let folder = Folder::new();
    let name = |bytes: &[u8]| folder.path().join(OsStr::from_bytes(bytes));
    let odd = b"\xff\xfe new\nline".to_vec();
    std::fs::write(name(&odd), b"").unwrap();
    std::fs::create_dir(name(b"directory")).unwrap();
    std::os::unix::fs::symlink("nowhere", name(b"link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(name(b"socket")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        name(b"fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let entries = block_on(rest(read_dir(folder.path())));
    let kinds: BTreeMap<_, _> = entries.into_iter().map(|entry| (entry.name, entry.file_type)).collect();
    let expected = [
        (&odd[..], FileType::File),
        (b"directory", FileType::Directory),
        (b"link", FileType::Symlink),
        (b"socket", FileType::Socket),
        (b"fifo", FileType::Fifo),
    ];
    assert_eq!(kinds, expected.map(|(name, kind)| (OsStr::from_bytes(name).to_owned(), kind)).into());
    let null = block_on(rest(read_dir("/dev"))).into_iter().find(|entry| entry.name == "null").unwrap();
    assert_eq!(null.file_type, FileType::CharacterDevice);
}

#[test]
fn each_of_ten_thousand_entries_is_there_once_in_every_executor() {
    let folder = Folder::new();
    let expected = fill(folder.path(), MANY);
    assert_eq!(names(block_on(rest(read_dir(folder.path())))), expected);
    assert_eq!(names(futures::executor::block_on(rest(read_dir(folder.path())))), expected);
    // As a `Stream`, and on several threads one after another.
    let mut entries = read_dir(folder.path());
    let mut all = Vec::new();
    while all.len() < MANY {
        let (taken, left) = std::thread::spawn(move || {
            let mut entries = entries;
            let taken: Vec<_> = futures::executor::block_on(entries.by_ref().take(3000).collect());
            (taken, entries)
        })
        .join()
        .unwrap();
        entries = left;
        all.extend(taken.into_iter().map(|entry| entry.unwrap()));
    }
    assert_eq!(names(all), expected);
    assert!(block_on(entries.next()).is_none());
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let path = folder.path().to_owned();
    let read = tokio.block_on(async { tokio::spawn(async { rest(read_dir(path)).await }).await }).unwrap();
    assert_eq!(names(read), expected);
}

/// Reading a directory waits for the disk, which neither the polling thread nor a loop must do. A worker reads many
/// entries each time.
#[test]
fn workers_read_many_entries_at_once() {
    if !in_child("workers_read_many_entries_at_once") {
        return;
    }
    if !in_child("workers_read_many_entries_at_once") {
        return;
    }
    let folder = Folder::new();
    fill(folder.path(), MANY);
    block_on(rest(read_dir(folder.path())));
    let counts = metrics();
    assert_eq!((counts.inline_ops, counts.ops), (0, counts.worker_ops));
    assert!((2..=20).contains(&counts.worker_ops), "{}", counts.worker_ops);
}

#[test]
fn an_empty_directory_and_those_of_just_as_many_as_are_read_at_once_end() {
    for entries in [0, 1, 1023, 1024, 1025, 2048] {
        let folder = Folder::new();
        let expected = fill(folder.path(), entries);
        assert_eq!(names(block_on(rest(read_dir(folder.path())))), expected, "{entries}");
    }
}

#[test]
fn a_directory_that_cannot_be_read_is_one_error() {
    let folder = Folder::new();
    let file = folder.file("file", b"");
    let missing = folder.path().join("missing");
    for (path, errno) in [(&file, libc::ENOTDIR), (&missing, libc::ENOENT)] {
        let mut entries = read_dir(path);
        let error = block_on(entries.next()).unwrap().unwrap_err();
        assert_eq!((error.errno(), error.path()), (Some(errno), Some(path.as_path())), "{error}");
        assert!(error.to_string().starts_with("reading the directory"), "{error}");
        assert!(block_on(entries.next()).is_none());
    }
    let nul = block_on(read_dir("a\0b").next()).unwrap().unwrap_err();
    assert_eq!(nul.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn entries_removed_and_created_meanwhile_spoil_no_others() {
    let folder = Folder::new();
    let all = fill(folder.path(), MANY);
    let (read, gone) = block_on(async {
        let mut entries = read_dir(folder.path());
        let first = entries.next().await.unwrap().unwrap();
        let gone: BTreeSet<_> = all.iter().filter(|name| **name != first.name).step_by(2).cloned().collect();
        for name in &gone {
            fs::remove_file(folder.path().join(name)).await.unwrap();
        }
        std::fs::write(folder.path().join("new"), b"").unwrap();
        let mut read = rest(entries).await;
        read.push(first);
        (read, gone)
    });
    let read = names(read);
    assert!(all.difference(&gone).all(|name| read.contains(name)), "an entry that stayed is missing");
    assert!(read.iter().all(|name| all.contains(name) || name == "new"), "an entry that never was");
    // Those that were read before are still reported, the others are not.
    assert!(read.intersection(&gone).count() < gone.len());
    assert_eq!(block_on(rest(read_dir(folder.path()))).len(), MANY - gone.len() + 1);
}

#[test]
fn dropping_the_future_of_an_entry_loses_none() {
    let folder = Folder::new();
    let expected = fill(folder.path(), 3000);
    let read = block_on(async {
        let (mut entries, mut all) = (read_dir(folder.path()), Vec::new());
        loop {
            // Most of these are dropped while a worker reads.
            let polled = poll_once(&mut Box::pin(entries.next())).await;
            match polled {
                std::task::Poll::Ready(Some(entry)) => all.push(entry.unwrap()),
                std::task::Poll::Ready(None) => break all,
                std::task::Poll::Pending => support::yield_now().await,
            }
        }
    });
    assert_eq!(names(read), expected);
}

#[test]
fn a_dropped_stream_closes_its_directory() {
    let folder = Folder::new();
    fill(folder.path(), 3000);
    drop(read_dir(folder.path()));
    for entries_taken in [0, 1, 1500] {
        for in_loop in [true, false] {
            let take = async {
                let mut entries = read_dir(folder.path());
                // A worker opens or reads it.
                let _ = poll_once(&mut Box::pin(entries.next())).await;
                for _ in 0..entries_taken {
                    entries.next().await.unwrap().unwrap();
                }
            };
            if in_loop {
                block_on(take)
            } else {
                futures::executor::block_on(take)
            }
            wait_closed(folder.path());
        }
    }
    // At the end it is closed, although the stream is still there.
    let mut entries = read_dir(folder.path());
    assert!(block_on(entries.next()).is_some() && descriptors_of(folder.path()) == 1);
    while block_on(entries.next()).is_some() {}
    wait_closed(folder.path());
    drop(entries);
}

#[test]
fn a_forked_child_reads_a_directory() {
    if !in_child("a_forked_child_reads_a_directory") {
        return;
    }
    let folder = Folder::new();
    let expected = fill(folder.path(), 2000);
    block_on(rest(read_dir(folder.path())));
    assert_passed(fork(|| assert_eq!(names(block_on(rest(read_dir(folder.path())))), expected)));
}
