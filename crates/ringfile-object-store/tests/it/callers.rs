//! Whatever callers and other processes do to a store, no call blocks its thread, waits forever, or leaves anything
//! behind.

use std::fs;
use std::slice::from_ref;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use crate::support::{patience, skip};
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store_014::path::Path;
use object_store_014::{Error, ObjectStore, ObjectStoreExt, UploadPart};
use ringfile::{Pool, WhenFull};
use ringfile_object_store::{Caching, RingfileStore};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn store(folder: &TempDir, caching: Caching) -> RingfileStore {
    RingfileStore::builder().prefix(folder.path()).caching(caching).build().unwrap()
}

const LONG: usize = 8 << 20;

/// A write may wait for the disk, and a caller may stop polling a part that it abandons.
#[tokio::test]
async fn a_part_is_not_written_by_its_callers_thread_and_aborting_does_not_wait_for_it() {
    let folder = folder();
    let store = store(&folder, Caching::Buffered);
    let mut upload = store.put_multipart(&Path::from("object")).await.unwrap();
    let mut part = upload.put_part(vec![7; LONG].into());
    assert!(futures::poll!(&mut part).is_pending());
    let aborted = tokio::time::timeout(patience(), upload.abort()).await;
    aborted.expect("it does not wait").unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let _ = part.await;
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn completing_an_upload_finishes_the_parts_that_its_caller_holds() {
    let folder = folder();
    let store = store(&folder, Caching::Buffered);
    let path = Path::from("object");
    let mut upload = store.put_multipart(&path).await.unwrap();
    let mut polled_once = upload.put_part(vec![1; LONG].into());
    assert!(futures::poll!(&mut polled_once).is_pending());
    let never_polled = upload.put_part(vec![2; LONG].into());
    let polled = tokio::spawn(upload.put_part(vec![3; LONG].into()));
    let completed = tokio::time::timeout(patience(), upload.complete()).await;
    completed.expect("it does not wait for its caller").unwrap();
    let content = store.get(&path).await.unwrap().bytes().await.unwrap();
    assert!(content == [vec![1; LONG], vec![2; LONG], vec![3; LONG]].concat());
    polled_once.await.unwrap();
    never_polled.await.unwrap();
    polled.await.unwrap().unwrap();
}

/// A waker that polls its part inside the wake-up, or panics.
struct Rude {
    part: Mutex<Option<UploadPart>>,
    panics: bool,
}

impl Wake for Rude {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        if let Ok(mut part) = self.part.try_lock()
            && let Some(polled) = part.as_mut()
            && polled.poll_unpin(&mut Context::from_waker(&waker)).is_ready()
        {
            *part = None;
        }
        assert!(!self.panics, "a waker of the caller's");
    }
}

#[test]
fn an_upload_is_completed_whatever_the_wakers_of_its_parts_do() {
    for panics in [false, true] {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let folder = folder();
            let store = store(&folder, Caching::Buffered);
            let path = Path::from("object");
            futures::executor::block_on(async {
                let mut upload = store.put_multipart(&path).await.unwrap();
                let rude: Vec<_> = [1, 2, 3]
                    .map(|byte| {
                        let part = Mutex::new(Some(upload.put_part(vec![byte; LONG].into())));
                        let rude = Arc::new(Rude { part, panics });
                        let waker = Waker::from(Arc::clone(&rude));
                        let mut part = rude.part.lock().unwrap();
                        let polled = part.as_mut().unwrap().poll_unpin(&mut Context::from_waker(&waker));
                        assert!(polled.is_pending());
                        drop(part);
                        rude
                    })
                    .into();
                upload.complete().await.unwrap();
                let content = store.get(&path).await.unwrap().bytes().await.unwrap();
                assert!(content == [vec![1; LONG], vec![2; LONG], vec![3; LONG]].concat());
                drop(rude);
            });
            tell.send(()).unwrap();
        });
        told.recv_timeout(patience()).expect("complete waits forever, or has panicked");
    }
}

/// Copies are hard links, and renaming one to another does nothing (`rename(2)`).
#[tokio::test]
async fn copying_again_leaves_no_temporary_name_and_renaming_to_a_copy_removes_the_old_one() {
    let folder = folder();
    let store = store(&folder, Caching::Buffered);
    let names = || {
        let entries = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let (one, two) = (Path::from("1"), Path::from("2"));
    store.put(&one, "content".into()).await.unwrap();
    store.copy(&one, &one).await.unwrap();
    store.rename(&one, &one).await.unwrap();
    assert_eq!(names(), ["1"]);
    store.copy(&one, &two).await.unwrap();
    store.copy(&one, &two).await.unwrap();
    assert_eq!(names(), ["1", "2"]);
    assert!(matches!(store.rename_if_not_exists(&one, &two).await, Err(Error::AlreadyExists { .. })));
    store.rename(&one, &two).await.unwrap();
    assert_eq!(names(), ["2"]);
    // A rename to the same name by another path removes nothing.
    std::os::unix::fs::symlink(".", folder.path().join("way")).unwrap();
    store.copy(&two, &one).await.unwrap();
    store.rename(&two, &Path::from("way/2")).await.unwrap();
    assert_eq!(names(), ["1", "2", "way"]);
    assert_eq!(store.get(&two).await.unwrap().bytes().await.unwrap(), "content");
}

#[tokio::test]
async fn a_full_pool_of_the_users_does_not_block_the_thread() {
    let folder = folder();
    let path = Path::from("object");
    let pool = Pool::builder().capacity(1 << 20).when_full(WhenFull::Wait).build().unwrap();
    let store = RingfileStore::builder().prefix(folder.path()).pool(pool.clone()).build().unwrap();
    store.put(&path, "content".into()).await.unwrap();
    let held = pool.get(1 << 20).unwrap();
    let (sender, done) = tokio::sync::oneshot::channel();
    std::thread::spawn({
        let (store, path) = (store.clone(), path.clone());
        move || sender.send(futures::executor::block_on(store.get_ranges(&path, from_ref(&(0..3)))).is_err())
    });
    let fails = tokio::time::timeout(patience(), done).await;
    assert!(fails.expect("it does not block").unwrap());
    drop(held);
    assert_eq!(store.get_ranges(&path, from_ref(&(0..3))).await.unwrap()[0], "con");
}

/// A file that is not adaptive has nothing to remember.
#[tokio::test]
async fn files_that_are_not_adaptive_do_not_stay_open() {
    // Usually a tmpfs.
    let Ok(folder) = TempDir::new_in("/dev/shm") else {
        skip("files_that_are_not_adaptive_do_not_stay_open", "no /dev/shm");
        return;
    };
    let store = store(&folder, Caching::Adaptive);
    let path = Path::from("object");
    store.put(&path, "content".into()).await.unwrap();
    store.get(&path).await.unwrap().bytes().await.unwrap();
    // The worker that wrote it may be about to close it.
    let is_open = || {
        let open = fs::read_dir("/proc/self/fd").unwrap();
        let mut names = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        names.any(|name| name.starts_with(folder.path()))
    };
    let began = Instant::now();
    while is_open() {
        assert!(began.elapsed() < patience(), "it stays open");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Without O_NONBLOCK, with which io_uring carries out reads one after the other on file systems without non-blocking
/// reads.
#[tokio::test]
async fn objects_are_opened_as_usual_and_leases_are_waited_for() {
    let folder = folder();
    let store = store(&folder, Caching::Buffered);
    let path = Path::from("object");
    store.put(&path, "content".into()).await.unwrap();
    for _ in 0..2 {
        let got = store.get(&path).await.unwrap();
        let open = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap());
        let at = open
            .filter(|entry| {
                fs::read_link(entry.path()).is_ok_and(|name| name == folder.path().join("object"))
            })
            .map(|entry| entry.file_name().into_string().unwrap());
        for number in at.collect::<Vec<_>>() {
            let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}"));
            let now = fs::read_link(format!("/proc/self/fd/{number}"));
            if info.is_err() || !now.is_ok_and(|name| name == folder.path().join("object")) {
                // The descriptor that `put` has written with was closed meanwhile.
                continue;
            }
            let info = info.unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
            assert_eq!(flags & rustix::fs::OFlags::NONBLOCK.bits(), 0, "{info}");
        }
        drop(got);
    }
    let holder = std::process::Command::new("python3")
        .args(["-c", LEASE])
        .arg(folder.path().join("object"))
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut holder) = holder else {
        skip("objects_are_opened_as_usual_and_leases_are_waited_for", "no Python to hold a lease");
        return;
    };
    let ready = std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0]);
    if ready.is_err() {
        holder.wait().unwrap();
        skip(
            "objects_are_opened_as_usual_and_leases_are_waited_for",
            "no lease can be had in the target folder",
        );
        return;
    }
    let got = store.get_ranges(&path, from_ref(&(0..3))).await;
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(got.unwrap()[0], "con");
}

/// A durable copy that another call removes at once was there, and its caller is told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_copy_may_be_removed_at_once() {
    let folder = folder();
    let store = RingfileStore::builder().prefix(folder.path()).sync(true).build().unwrap();
    let (one, two) = (Path::from("1"), Path::from("2"));
    store.put(&one, "content".into()).await.unwrap();
    let remover = tokio::spawn({
        let (store, two) = (store.clone(), two.clone());
        async move {
            loop {
                let _ = store.delete(&two).await;
            }
        }
    });
    for _ in 0..300 {
        store.copy(&one, &two).await.unwrap();
    }
    remover.abort();
}

/// Streams that nobody polls hold what they have read ahead.
#[tokio::test]
async fn many_slow_streams_read_ahead_no_more_than_the_store_may() {
    let folder = folder();
    let store = RingfileStore::builder().prefix(folder.path()).memory(16 << 20).build().unwrap();
    let path = Path::from("object");
    let content: Vec<u8> = (0..LONG + 1000).map(|at| (at / 1000) as u8).collect();
    store.put(&path, content.clone().into()).await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..200 {
        let mut stream = store.get(&path).await.unwrap().into_stream();
        let first = stream.next().await.unwrap().unwrap();
        streams.push((first, stream));
    }
    let metrics = store.pool().metrics();
    let held = metrics.in_use + metrics.outside_bytes;
    assert!(held < 48 << 20, "{} MiB", held >> 20);
    // All streams continue, whichever has read ahead.
    for (first, stream) in streams.into_iter().rev().step_by(50) {
        let rest: Vec<_> = stream.try_collect().await.unwrap();
        assert!([vec![first], rest].concat().concat() == content);
    }
}

/// Holds a lease on a file until the kernel asks for it, as a file server may.
const LEASE: &str = "
import fcntl, os, signal, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
signal.signal(signal.SIGIO, lambda *_: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK))
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('.', flush=True)
time.sleep(20)
";

#[tokio::test]
async fn a_stream_of_a_file_that_was_cut_ends_after_its_error() {
    let folder = folder();
    let file = folder.path().join("object");
    for caching in [Caching::Buffered, Caching::Direct, Caching::Adaptive] {
        fs::write(&file, vec![1; 32 << 20]).unwrap();
        let mut pieces = store(&folder, caching).get(&Path::from("object")).await.unwrap().into_stream();
        pieces.next().await.unwrap().unwrap();
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(2 << 20).unwrap();
        let rest: Vec<_> = pieces.collect().await;
        assert!(rest.len() < 31, "{caching:?}");
        let (error, read) = rest.split_last().unwrap();
        assert!(read.iter().all(Result::is_ok), "{caching:?}");
        let error = error.as_ref().unwrap_err().to_string();
        assert!(error.contains("at or before"), "{error}");
    }
}
