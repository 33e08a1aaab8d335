//! Operations on paths: futures inside and outside of loops, queues and batches; descriptors that nobody takes.

use crate::support::handles::Handles as _;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::support::{
    Folder, all, assert_passed, descriptors_of, fork, in_child, is_without_ring, open_descriptors, poll_once,
    wait_for, yield_now,
};
use ringfile::fs::AllocateMode;
use ringfile::fs::{self, FileType, Metadata};
use ringfile::{Batch, File, OpenOptions, Queue, block_on, metrics, thread_metrics};

fn reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    options
}

/// Options for reading and writing a file that may not exist yet.
fn creating() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
}

/// Does each operation once, and checks its effect.
async fn every_operation(folder: &Path) {
    let directory = folder.join("directory");
    fs::create_dir(&directory).await.unwrap();
    assert!(directory.is_dir());
    let (first, second) = (directory.join("first"), directory.join("second"));
    let file = creating().mode(0o640).open(&first).await.unwrap();
    assert_eq!(file.path(), Some(first.as_path()));
    file.write_at(b"content".to_vec(), 0).await.unwrap();
    assert_eq!(std::fs::metadata(&first).unwrap().permissions().mode() & 0o777, 0o640);

    let metadata = fs::metadata(&first).await.unwrap();
    let expected = std::fs::metadata(&first).unwrap();
    assert_eq!((metadata.size, metadata.file_type), (7, FileType::File));
    assert_eq!((metadata.inode, metadata.device), (expected.ino(), expected.dev()));
    assert_eq!((metadata.uid, metadata.gid, metadata.links), (expected.uid(), expected.gid(), 1));
    assert_eq!((metadata.mode, metadata.allocated), (expected.mode(), expected.blocks() * 512));
    assert_eq!(metadata.modified, expected.modified().unwrap());
    let changed = metadata.changed.duration_since(UNIX_EPOCH).unwrap();
    assert_eq!(
        (changed.as_secs(), changed.subsec_nanos()),
        (expected.ctime() as u64, expected.ctime_nsec() as u32)
    );
    assert_eq!(metadata.created, expected.created().ok());
    assert_eq!(fs::metadata(&directory).await.unwrap().file_type, FileType::Directory);
    assert_eq!(fs::metadata("/dev/null").await.unwrap().file_type, FileType::CharacterDevice);

    fs::rename(&first, &second).await.unwrap();
    assert!(!first.exists());
    let read = reading().open(&second).await.unwrap().read_at(vec![0; 16], 0).await.unwrap();
    assert_eq!(read, b"content");
    let truncated = creating().truncate(true).open(&second).await.unwrap();
    assert_eq!(truncated.size().unwrap(), 0);
    assert_eq!(fs::metadata_of(&file).await.unwrap(), fs::metadata(&second).await.unwrap());
    assert_eq!(fs::remove_dir(&directory).await.unwrap_err().errno(), Some(libc::ENOTEMPTY));
    fs::remove_file(&second).await.unwrap();
    let metadata = fs::metadata_of(&file).await.unwrap();
    assert_eq!((metadata.inode, metadata.links), (expected.ino(), 0));
    fs::sync_dir(&directory).await.unwrap();
    fs::remove_dir(&directory).await.unwrap();
    assert!(!directory.exists());
}

#[test]
fn every_operation_works_in_a_loop() {
    let folder = Folder::new();
    block_on(every_operation(folder.path()));
    let counts = thread_metrics();
    assert_eq!(counts.stray, 0);
}

#[test]
fn every_operation_works_in_other_executors_and_moves_between_threads() {
    let folder = Folder::new();
    futures::executor::block_on(every_operation(folder.path()));
    let mut opening = Box::pin(reading().open("/proc/self/exe"));
    block_on(async { assert!(poll_once(&mut opening).await.is_pending()) });
    let file = std::thread::spawn(move || futures::executor::block_on(opening)).join().unwrap().unwrap();
    assert!(file.size().unwrap() > 0);
}

/// Opening a cached path must not be a plain call of the polling thread, since an uncached one would block it.
#[test]
fn operations_on_paths_are_never_calls_of_the_polling_thread() {
    let name = "operations_on_paths_are_never_calls_of_the_polling_thread";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", b"content");
    block_on(async {
        for _ in 0..10 {
            drop(reading().open(&path).await.unwrap());
            fs::metadata(&path).await.unwrap();
        }
    });
    let counts = metrics();
    assert_eq!((counts.inline_ops, counts.ops), (0, 20));
    let by_workers = if is_without_ring() { 20 } else { 0 };
    assert_eq!(counts.worker_ops, by_workers);
}

#[test]
fn errors_keep_the_errno_and_say_what_was_being_done_to_which_path() {
    let folder = Folder::new();
    let missing = folder.path().join("missing");
    let there = folder.file("there", b"content");
    block_on(async {
        let check = |error: ringfile::Error, errno: i32, what: &str| {
            assert_eq!(error.errno(), Some(errno), "{error}");
            assert_eq!(error.path(), Some(missing.as_path()), "{error}");
            let text = error.to_string();
            assert!(text.starts_with(what) && text.contains(missing.to_str().unwrap()), "{text}");
        };
        check(fs::metadata(&missing).await.unwrap_err(), libc::ENOENT, "reading the metadata");
        check(reading().open(&missing).await.unwrap_err(), libc::ENOENT, "opening");
        check(fs::remove_file(&missing).await.unwrap_err(), libc::ENOENT, "removing");
        check(fs::remove_dir(&missing).await.unwrap_err(), libc::ENOENT, "removing the directory");
        let error = fs::rename(&missing, &there).await.unwrap_err();
        assert!(error.to_string().contains(there.to_str().unwrap()), "{error}");
        check(error, libc::ENOENT, "renaming");
        let error = fs::create_dir(&there).await.unwrap_err();
        assert_eq!((error.errno(), error.path()), (Some(libc::EEXIST), Some(there.as_path())));
        assert_eq!(fs::sync_dir(&there).await.unwrap_err().errno(), Some(libc::ENOTDIR));

        for error in [
            reading().open("a\0b").await.unwrap_err(),
            fs::metadata("a\0b").await.unwrap_err(),
            fs::rename("a\0b", "c").await.unwrap_err(),
            fs::rename(&there, "a\0b").await.unwrap_err(),
            OpenOptions::new().open(&there).await.unwrap_err(),
            reading().truncate(true).open(&there).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
    });
    assert_eq!(std::fs::read(&there).unwrap(), b"content");
}

#[test]
fn a_rename_that_fails_keeps_both() {
    let folder = Folder::new();
    let file = folder.file("file", b"content");
    let directory = folder.path().join("directory");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("inside"), b"inside").unwrap();
    let error = block_on(fs::rename(&file, &directory)).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EISDIR), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"content");
    assert_eq!(std::fs::read(directory.join("inside")).unwrap(), b"inside");
    let replaced = folder.file("replaced", b"old");
    block_on(fs::rename(&file, &replaced)).unwrap();
    assert_eq!(std::fs::read(&replaced).unwrap(), b"content");
}

#[test]
fn an_open_that_fails_loses_nothing() {
    // tmpfs accepts O_DIRECT and ignores it, which is known only once the file is open.
    let folder = Folder::inside(Path::new("/dev/shm"));
    let path = folder.file("data", b"content");
    let mut options = creating();
    options.direct(true).truncate(true);
    let error = block_on(options.open(&path)).unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::Unsupported, Some(path.as_path())), "{error}");
    let mut queue = Queue::new();
    let token = queue.add(options.open(&path), 0);
    let done = queue.wait_for(token).unwrap().take::<File>().unwrap_err();
    assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(std::fs::read(&path).unwrap(), b"content");
    let file = block_on(options.buffered_fallback(true).open(&path)).unwrap();
    assert_eq!((file.is_direct(), file.size().unwrap()), (false, 0));
}

#[test]
fn a_device_is_opened_although_it_cannot_be_truncated() {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    for file in [options.open_blocking("/dev/null").unwrap(), block_on(options.open("/dev/null")).unwrap()] {
        assert_eq!(block_on(file.write_at(b"content".to_vec(), 0)).unwrap(), b"content");
    }
}

#[test]
fn a_file_of_many_extents_is_removed_with_its_blocks() {
    let folder = Folder::inside(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let path = folder.path().join("holes");
    block_on(async {
        let file = creating().open(&path).await.unwrap();
        file.write_at(vec![7; 8 << 20], 0).await.unwrap();
        file.sync_data().await.unwrap();
        for hole in (0..8 << 20).step_by(16 << 10) {
            file.allocate(AllocateMode::PunchHole, hole, 8 << 10).await.unwrap();
        }
        let metadata = fs::metadata(&path).await.unwrap();
        assert_eq!(metadata.size, 8 << 20);
        assert!(metadata.allocated <= 5 << 20, "{} bytes", metadata.allocated);
        drop(file);
        fs::remove_file(&path).await.unwrap();
    });
    assert!(!path.exists());
}

#[test]
fn zeros_that_are_written_replace_what_was_there_and_have_blocks() {
    let folder = Folder::inside(Path::new(env!("CARGO_TARGET_TMPDIR")));
    for (name, is_direct) in [("buffered", false), ("direct", true)] {
        let mut options = creating();
        options.read(true).direct(is_direct).buffered_fallback(true);
        let path = folder.path().join(name);
        block_on(async {
            let file = options.open(&path).await.unwrap();
            let block = || {
                ringfile::Pool::new(1 << 20).get(8192).map(|mut block| {
                    block.resize(8192, 7);
                    block
                })
            };
            file.write_at(block().unwrap(), 0).await.unwrap();
            file.allocate(AllocateMode::Written, 4096, 3 << 20).await.unwrap();
            file.sync_all().await.unwrap();
            let metadata = fs::metadata(&path).await.unwrap();
            assert_eq!(metadata.size, 4096 + (3 << 20));
            assert!(metadata.allocated >= metadata.size, "{} bytes", metadata.allocated);
            let error = file.allocate(AllocateMode::Written, 4096, 0).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        });
        let content = std::fs::read(&path).unwrap();
        assert!(
            content[..4096].iter().all(|&byte| byte == 7) && content[4096..].iter().all(|&byte| byte == 0)
        );
    }
    // Where every write goes to the end, the range would stay as it is.
    let path = folder.path().join("appended");
    std::fs::write(&path, b"content").unwrap();
    let file = File::from(std::fs::File::options().append(true).open(&path).unwrap());
    let done = block_on(file.allocate(AllocateMode::Written, 0, 3));
    let wanted = if done.is_ok() { b"\0\0\0tent" } else { b"content" };
    assert_eq!(std::fs::read(&path).unwrap(), wanted, "{done:?}");
}

#[test]
fn an_open_that_nobody_takes_is_closed() {
    let folder = Folder::new();
    let path = folder.file("data", b"content");
    let some = || (0..40).map(|_| Box::pin(reading().open(&path))).collect::<Vec<_>>();
    // Dropped before and after they end.
    block_on(async {
        for turns in [0, 1, 3, 100] {
            let mut opening = some();
            for one in &mut opening {
                let _ = poll_once(one).await;
            }
            for _ in 0..turns {
                yield_now().await;
            }
        }
        let mut opening = some();
        assert!(poll_once(&mut opening[0]).await.is_pending());
        // The loop's end drops them.
        opening.into_iter().for_each(|one| drop(ringfile::spawn(async move { one.await.unwrap() })));
    });
    wait_for("all are closed", || descriptors_of(&path) == 0);
    // In another executor.
    for late in [false, true] {
        let mut opening = some();
        futures::executor::block_on(async {
            for one in &mut opening {
                let _ = poll_once(one).await;
            }
        });
        if late {
            wait_for("all are open", || descriptors_of(&path) >= 40);
        }
        drop(opening);
        wait_for("all are closed", || descriptors_of(&path) == 0);
    }
    // The results are taken, but never used. Another thread may still be closing files of the last round.
    let files = block_on(all(some()));
    wait_for("two descriptors for each file", || descriptors_of(&path) == 80);
    drop(files);
    assert_eq!(descriptors_of(&path), 0);
}

#[test]
fn a_queue_that_is_dropped_closes_what_it_has_opened() {
    let folder = Folder::new();
    let path = folder.file("data", b"content");
    for submitted in [false, true] {
        let mut queue = Queue::new();
        (0..40).for_each(|number| _ = queue.add(reading().open(&path), number));
        if submitted {
            queue.submit();
        }
        drop(queue);
        assert_eq!(descriptors_of(&path), 0);
    }
    let mut queue = Queue::new();
    (0..40).for_each(|number| _ = queue.add(reading().open(&path), number));
    queue.settle(40);
    assert_eq!(descriptors_of(&path), 80);
    let taken = queue.next().unwrap();
    drop(taken);
    assert_eq!(descriptors_of(&path), 78);
    drop(queue);
    assert_eq!(descriptors_of(&path), 0);
}

#[test]
fn a_queue_has_every_operation_with_tokens_and_user_data() {
    let folder = Folder::new();
    let in_folder = |name: &str| folder.path().join(name);
    let mut queue = Queue::new();
    let token = queue.add(ringfile::fs::create_dir(in_folder("directory")), 1);
    assert!(queue.wait_for(token).unwrap().result.is_ok());
    assert!(in_folder("directory").is_dir());

    let mut options = creating();
    let opening = queue.add(options.open(in_folder("data")), 2);
    let opened = queue.wait_for(opening).unwrap();
    assert_eq!(*opened.result.as_ref().unwrap(), 0);
    let file = opened.take::<File>().unwrap();
    let writing = queue.add(file.write_at(b"content".to_vec(), 0), 3);
    assert_eq!(queue.wait_for(writing).unwrap().result.unwrap(), 7);

    // Together; the number given with each tells the results apart.
    queue.add(ringfile::fs::metadata(in_folder("data")), 10);
    queue.add(ringfile::fs::metadata(in_folder("missing")), 11);
    queue.add(ringfile::fs::remove_dir(in_folder("directory")), 12);
    queue.add(options.open("a\0b"), 13);
    queue.add(ringfile::fs::rename("a", "a\0b"), 14);
    let mut results = queue.end_all(5);
    results.sort_by_key(|done| done.user_data);
    let [known, missing, removed, bad_path, bad_target] = <[_; 5]>::try_from(results).unwrap();
    let known = known.take::<File>().unwrap_err();
    assert_eq!((known.user_data, known.take::<Metadata>().unwrap().size), (10, 7), "it opened no file");
    let missing = missing.take::<Metadata>().unwrap_err();
    assert_eq!((missing.user_data, missing.result.unwrap_err().errno()), (11, Some(libc::ENOENT)));
    assert!(removed.result.is_ok() && !in_folder("directory").exists());
    for done in [bad_path, bad_target] {
        assert_eq!(done.result.unwrap_err().kind(), ErrorKind::InvalidInput, "{}", done.user_data);
    }

    let renaming = queue.add(ringfile::fs::rename(in_folder("data"), in_folder("renamed")), 20);
    assert!(queue.wait_for(renaming).unwrap().result.is_ok());
    let truncating = queue.add(options.truncate(true).open(in_folder("renamed")), 21);
    let truncated = queue.wait_for(truncating).unwrap();
    assert_eq!(truncated.take::<File>().unwrap().size().unwrap(), 0);
    assert_eq!(file.size().unwrap(), 0, "the same file");
    let removing = queue.add(ringfile::fs::remove_file(in_folder("renamed")), 22);
    assert!(queue.wait_for(removing).unwrap().result.is_ok());
    assert!(!in_folder("renamed").exists() && queue.is_empty());
}

#[test]
fn a_loop_waits_for_files_that_a_dropped_queue_was_opening() {
    let folder = Folder::new();
    let path = folder.file("data", b"content");
    block_on(async {
        let mut queue = Queue::new();
        (0..8).for_each(|number| _ = queue.add(creating().truncate(true).open(&path), number));
        let mut opened = Vec::new();
        while queue.ready().await > 0 {
            opened.extend(queue.next().map(|done| done.take::<File>().unwrap()));
        }
        assert_eq!(opened.len(), 8);
        (0..8).for_each(|number| _ = queue.add(reading().open(&path), number));
        queue.submit();
    });
    wait_for("all are closed", || descriptors_of(&path) == 0);
    assert_eq!(std::fs::read(&path).unwrap(), b"");
}

#[test]
fn an_operation_cancelled_before_its_submission_is_not_carried_out() {
    let folder = Folder::new();
    let (made, path) = (folder.path().join("made"), folder.file("data", b"content"));
    let mut queue = Queue::new();
    let tokens = [
        queue.add(creating().open(&made), 0),
        queue.add(ringfile::fs::remove_file(&path), 0),
        queue.add(ringfile::fs::rename(&path, &made), 0),
        queue.add(creating().truncate(true).open(&path), 0),
    ];
    assert!(tokens.iter().all(|&token| queue.cancel(token)));
    for token in tokens {
        let done = queue.wait_for(token).unwrap().take::<File>().unwrap_err();
        assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED));
    }
    assert!(!made.exists());
    assert_eq!(std::fs::read(&path).unwrap(), b"content");
}

/// A cancelled operation still reports a result, whatever it is, and no descriptor stays open.
#[test]
fn an_operation_cancelled_in_flight_reports_its_outcome() {
    let folder = Folder::new();
    let mut queue = Queue::new();
    for round in 0..50 {
        let path = folder.path().join(format!("file-{round}"));
        let token = queue.add(creating().open(&path), round);
        queue.submit();
        queue.cancel(token);
        match queue.wait_for(token).unwrap().take::<File>() {
            Ok(file) => assert_eq!(file.size().unwrap(), 0),
            Err(done) => assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED)),
        }
        assert_eq!(descriptors_of(&path), 0);
    }
}

#[test]
fn a_batch_opens_renames_and_removes_in_the_order_of_its_barriers() {
    let folder = Folder::new();
    let in_folder = |name: &str| folder.path().join(name);
    let batch = || {
        let mut batch = Batch::new();
        batch.add(ringfile::fs::create_dir(in_folder("directory")));
        batch.barrier();
        batch.add(creating().truncate(true).open(in_folder("directory/data")));
        batch.barrier();
        batch.add(ringfile::fs::rename(in_folder("directory/data"), in_folder("data")));
        batch.barrier();
        batch.add(ringfile::fs::metadata(in_folder("data")));
        batch.add(ringfile::fs::remove_dir(in_folder("directory")));
        batch.barrier();
        batch.add(ringfile::fs::remove_file(in_folder("data")));
        batch.barrier();
        batch.add(ringfile::fs::metadata(in_folder("data")));
        batch
    };
    for mut done in [
        batch().run(),
        block_on(async { batch().await }),
        futures::executor::block_on(async { batch().await }),
    ] {
        assert_eq!(done.len(), 7);
        assert!(done[..6].iter().all(|done| done.result.is_ok()));
        assert_eq!(done[6].result.as_ref().unwrap_err().errno(), Some(libc::ENOENT));
        assert_eq!(done.swap_remove(3).take::<Metadata>().unwrap().size, 0);
        let file = done.swap_remove(1).take::<File>().unwrap();
        assert_eq!(file.path(), Some(in_folder("directory/data").as_path()));
    }
}

/// Operations leave neither a descriptor nor a file of the driver behind.
#[test]
fn thousands_of_paths_leave_nothing_behind() {
    let name = "thousands_of_paths_leave_nothing_behind";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", b"content");
    let mut queue = Queue::new();
    let mut round = |count: u64| {
        for number in 0..count {
            queue.add(ringfile::fs::metadata(&path), number);
            queue.add(reading().open(&path), number);
        }
        for done in queue.end_all(2 * count as usize) {
            assert!(done.result.is_ok());
        }
    };
    round(10);
    let before = open_descriptors();
    (0..20).for_each(|_| round(100));
    assert_eq!(open_descriptors(), before);
    // Descriptor numbers are small, and are reused.
    let file = File::open_blocking(&path).unwrap();
    let read = block_on(file.read_at(vec![0; 16], 0)).unwrap();
    assert_eq!(read, b"content");
}

#[test]
fn a_relative_path_begins_at_the_working_directory() {
    if !in_child("a_relative_path_begins_at_the_working_directory") {
        return;
    }
    let folder = Folder::new();
    folder.file("data", b"content");
    let opening = reading().open("data");
    std::env::set_current_dir(folder.path()).unwrap();
    let file = block_on(opening).unwrap();
    assert_eq!(file.size().unwrap(), 7);
    std::env::set_current_dir("/").unwrap();
}

#[test]
fn a_forked_child_makes_plain_calls() {
    if !in_child("a_forked_child_makes_plain_calls") {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", b"content");
    // The parent has a ring or workers, and an operation whose result was not taken.
    block_on(async { fs::metadata(&path).await }).unwrap();
    let mut queue = Queue::new();
    let open = queue.add(reading().open(&path), 0);
    queue.submit();
    assert_passed(fork(|| {
        let renamed = folder.path().join("renamed");
        block_on(async {
            fs::rename(&path, &renamed).await.unwrap();
            let file = reading().open(&renamed).await.unwrap();
            assert_eq!(fs::metadata(&renamed).await.unwrap().size, file.size().unwrap());
            fs::rename(&renamed, &path).await.unwrap();
            let new = folder.path().join("truncated");
            std::fs::write(&new, b"content").unwrap();
            let truncated = creating().truncate(true).open(&new).await.unwrap();
            assert_eq!(truncated.size().unwrap(), 0);
            fs::sync_dir(folder.path()).await.unwrap();
        });
        let mut queue = Queue::new();
        let token = queue.add(reading().open(&path), 0);
        let mut bytes = [0; 7];
        std::os::fd::AsFd::as_fd(&queue.wait_for(token).unwrap().take::<File>().unwrap())
            .try_clone_to_owned()
            .map(std::fs::File::from)
            .and_then(|file| file.read_exact_at(&mut bytes, 0))
            .unwrap();
        assert_eq!(&bytes, b"content");
    }));
    assert_eq!(queue.wait_for(open).unwrap().take::<File>().unwrap().size().unwrap(), 7);
}
