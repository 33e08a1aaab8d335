//! Links, renames that do not replace or that exchange, permissions, and directories that are created with those above them
//! and synced: their effect, their errors, and which thread carries them out.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::support::{Folder, all, assert_passed, fork, in_child, poll_once, skip, wait_closed, yield_now};
use ringfile::fs::{self, FileType, Metadata};
use ringfile::{Batch, Error, Op, Queue, block_on, metrics};

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

fn errno(change: Op<'static, ()>) -> Option<i32> {
    block_on(change).unwrap_err().errno()
}

/// Does each change once, and checks its effect. Names and targets are no UTF-8.
async fn every_change(folder: &Path) {
    let name = |bytes: &[u8]| folder.join(OsStr::from_bytes(bytes));
    let (file, linked, link) = (name(b"\xff-file"), name(b"linked-\xfe"), name(b"\x80"));
    std::fs::write(&file, b"content").unwrap();
    fs::hard_link(&file, &linked).await.unwrap();
    let (one, other) = (std::fs::metadata(&file).unwrap(), std::fs::metadata(&linked).unwrap());
    assert_eq!((one.ino(), one.nlink()), (other.ino(), 2));

    fs::symlink(OsStr::from_bytes(b"\xff-file"), &link).await.unwrap();
    assert_eq!(std::fs::read(&link).unwrap(), b"content");
    assert_eq!(fs::read_link(&link).await.unwrap().as_os_str().as_bytes(), b"\xff-file");
    assert_eq!(fs::symlink_metadata(&link).await.unwrap().file_type, FileType::Symlink);
    assert_eq!(fs::metadata(&link).await.unwrap().file_type, FileType::File);
    // The link gets the name, not what it points to.
    fs::hard_link(&link, name(b"second link")).await.unwrap();
    assert!(name(b"second link").is_symlink());

    fs::set_permissions(&link, Permissions::from_mode(0o4751)).await.unwrap();
    assert_eq!(mode(&file), 0o4751);
    let copied = std::fs::metadata(&file).unwrap().permissions();
    fs::set_permissions(folder, Permissions::from_mode(0o700)).await.unwrap();
    fs::set_permissions(&file, copied).await.unwrap();
    assert_eq!((mode(folder), mode(&file)), (0o700, 0o4751));

    let deep = name(b"a/\xff/b/../c//d/");
    // As in std, `..` needs the directory before it.
    fs::create_dir_all(&deep).await.unwrap();
    fs::create_dir_all(&deep).await.unwrap();
    assert!(name(b"a/\xff/c/d").is_dir());
    fs::rename_exchange(&file, name(b"a")).await.unwrap();
    assert!(file.is_dir() && std::fs::read(name(b"a")).unwrap() == b"content");
    fs::rename_no_replace(name(b"a"), name(b"free")).await.unwrap();
    assert!(!name(b"a").exists() && std::fs::read(name(b"free")).unwrap() == b"content");
    fs::sync_dir(folder).await.unwrap();
}

#[test]
fn every_change_works_in_a_loop_and_in_other_executors() {
    block_on(every_change(Folder::new().path()));
    futures::executor::block_on(every_change(Folder::new().path()));
    // On tmpfs too.
    block_on(every_change(Folder::inside(Path::new("/dev/shm")).path()));
}

/// The polling thread makes none of the calls, since each may wait for the disk; the ring carries links out where it has
/// directories, which came with the same kernel, and workers do what no ring has.
#[test]
fn changes_go_to_the_ring_where_it_has_them_and_never_to_the_polling_thread() {
    if !in_child("changes_go_to_the_ring_where_it_has_them_and_never_to_the_polling_thread") {
        return;
    }
    let folder = Folder::new();
    let name = |name: &str| folder.path().join(name);
    std::fs::write(name("file"), b"").unwrap();
    let by_workers = |change: Op<'static, ()>| {
        let before = metrics();
        block_on(change).unwrap();
        let after = metrics();
        assert_eq!(after.inline_ops, before.inline_ops);
        after.worker_ops - before.worker_ops
    };
    let created = by_workers(fs::create_dir(name("directory")));
    assert_eq!(by_workers(fs::hard_link(name("file"), name("linked"))), created);
    assert_eq!(by_workers(fs::symlink("file", name("link"))), created);
    let renamed = by_workers(fs::rename(name("linked"), name("renamed")));
    assert_eq!(by_workers(fs::rename_no_replace(name("renamed"), name("linked"))), renamed);
    assert_eq!(by_workers(fs::rename_exchange(name("linked"), name("directory"))), renamed);
    assert_eq!(by_workers(fs::create_dir_all(name("new/new"))), 1);
    assert_eq!(by_workers(fs::set_permissions(name("file"), Permissions::from_mode(0o600))), 1);
}

#[test]
fn a_name_that_is_taken_or_missing_is_an_error_that_changes_nothing() {
    let folder = Folder::new();
    let (file, there) = (folder.file("file", b"content"), folder.file("there", b"there"));
    let missing = folder.path().join("missing");
    let below = missing.join("deep");
    assert_eq!(errno(fs::hard_link(&file, &there)), Some(libc::EEXIST));
    assert_eq!(errno(fs::symlink(&file, &there)), Some(libc::EEXIST));
    assert_eq!(errno(fs::rename_no_replace(&file, &there)), Some(libc::EEXIST));
    assert_eq!(errno(fs::create_dir_all(&there)), Some(libc::EEXIST));
    assert_eq!(errno(fs::create_dir_all(there.join("below"))), Some(libc::ENOTDIR));
    for change in [
        fs::hard_link(&missing, &below),
        fs::hard_link(&file, &below),
        fs::symlink("anywhere", &below),
        fs::rename_no_replace(&missing, &below),
        fs::rename_exchange(&file, &missing),
        fs::set_permissions(&missing, Permissions::from_mode(0o600)),
    ] {
        assert_eq!(errno(change), Some(libc::ENOENT));
    }
    assert_eq!(block_on(fs::read_link(&file)).unwrap_err().errno(), Some(libc::EINVAL));
    assert_eq!(block_on(fs::read_link(&missing)).unwrap_err().errno(), Some(libc::ENOENT));
    assert_eq!(block_on(fs::symlink_metadata(&missing)).unwrap_err().errno(), Some(libc::ENOENT));
    let error = block_on(fs::symlink("anywhere", &there)).unwrap_err();
    assert_eq!(error.path(), Some(there.as_path()));
    assert_eq!(std::fs::read(&file).unwrap(), b"content");
    assert_eq!(std::fs::read(&there).unwrap(), b"there");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn neither_a_link_nor_a_rename_leads_to_another_file_system() {
    let (here, other) = (Folder::new(), Folder::inside(Path::new("/dev/shm")));
    let device = |folder: &Folder| std::fs::metadata(folder.path()).unwrap().dev();
    if device(&here) == device(&other) {
        return skip(
            "neither_a_link_nor_a_rename_leads_to_another_file_system",
            "the temporary folder is on /dev/shm",
        );
    }
    let (file, away) = (here.file("file", b"content"), other.file("away", b"away"));
    assert_eq!(errno(fs::hard_link(&file, other.path().join("new"))), Some(libc::EXDEV));
    assert_eq!(errno(fs::rename_no_replace(&file, other.path().join("new"))), Some(libc::EXDEV));
    assert_eq!(errno(fs::rename_exchange(&file, &away)), Some(libc::EXDEV));
    assert_eq!(
        (std::fs::read(&file).unwrap(), std::fs::read(&away).unwrap()),
        (b"content".into(), b"away".into())
    );
}

#[test]
fn of_many_that_publish_under_one_name_one_succeeds() {
    let folder = Folder::new();
    let to = folder.path().join("published");
    let parts: Vec<_> = (0..32_u8).map(|number| folder.file(&format!("part-{number}"), &[number])).collect();
    let results = block_on(all(parts.iter().map(|part| fs::rename_no_replace(part, &to)).collect()));
    let (renamed, refused): (Vec<_>, Vec<_>) =
        results.into_iter().enumerate().partition(|(_, result)| result.is_ok());
    assert_eq!(renamed.len(), 1);
    assert_eq!(std::fs::read(&to).unwrap(), [renamed[0].0 as u8]);
    assert!(refused.iter().all(|(_, result)| result.as_ref().unwrap_err().errno() == Some(libc::EEXIST)));
    assert!(refused.iter().all(|(number, _)| parts[*number].exists()));
}

#[test]
fn directories_that_many_create_at_once_are_there() {
    let folder = Folder::new();
    let path = |number: u8| folder.path().join(format!("a/b/c/{}", number % 4));
    for result in block_on(all((0..64).map(|number| fs::create_dir_all(path(number))).collect())) {
        result.unwrap();
    }
    assert!((0..4).all(|number| path(number).is_dir()));
}

#[test]
fn a_batch_and_a_queue_have_every_change() {
    let folder = Folder::new();
    let name = |name: &str| folder.path().join(name);
    let mut batch = Batch::new();
    batch.add(fs::create_dir_all(name("a/b")));
    batch.barrier();
    batch.add(fs::symlink("b", name("a/link")));
    batch.barrier();
    let link = batch.add(fs::read_link(name("a/link")));
    let metadata = batch.add(fs::symlink_metadata(name("a/link")));
    batch.add(fs::set_permissions(name("a/b"), Permissions::from_mode(0o500)));
    batch.add(fs::hard_link(name("a/link"), name("a/linked")));
    batch.barrier();
    batch.add(fs::rename_exchange(name("a/link"), name("a/b")));
    let mut done = batch.run();
    assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
    assert_eq!(done.remove(metadata).take::<Metadata>().unwrap().file_type, FileType::Symlink);
    assert_eq!(done.swap_remove(link).take::<PathBuf>().unwrap(), Path::new("b"));
    assert!(name("a/b").is_symlink() && mode(&name("a/link")) == 0o500);

    let mut queue = Queue::new();
    let tokens = [
        queue.add(fs::create_dir_all(name("a")), 0),
        queue.add(fs::rename_no_replace(name("a/linked"), name("a/b")), 1),
        queue.add(fs::read_link(name("a/link")), 2),
    ];
    let errors = tokens
        .map(|token| queue.wait_for(token).unwrap().take::<PathBuf>().map_err(Error::from).unwrap_err());
    assert_eq!(errors[0].kind(), std::io::ErrorKind::InvalidInput, "it read no link");
    assert_eq!(errors[1].errno(), Some(libc::EEXIST));
    assert_eq!(errors[2].errno(), Some(libc::EINVAL));
}

#[test]
fn a_change_that_is_cancelled_before_its_submission_is_not_carried_out() {
    let folder = Folder::new();
    let (file, new) = (folder.file("file", b"content"), folder.path().join("new"));
    let mut queue = Queue::new();
    let tokens = [
        queue.add(fs::hard_link(&file, &new), 0),
        queue.add(fs::symlink(&file, &new), 0),
        queue.add(fs::rename_no_replace(&file, &new), 0),
        queue.add(fs::create_dir_all(&new), 0),
        queue.add(fs::set_permissions(&file, Permissions::from_mode(0o000)), 0),
    ];
    assert!(tokens.iter().all(|&token| queue.cancel(token)));
    for token in tokens {
        assert_eq!(queue.wait_for(token).unwrap().result.unwrap_err().errno(), Some(libc::ECANCELED));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_ne!(mode(&file), 0);
}

/// A dropped future has changed all or nothing, and leaves no descriptor open.
#[test]
fn a_dropped_change_is_carried_out_or_not_and_leaves_nothing_open() {
    let folder = Folder::new();
    let file = folder.file("file", b"content");
    for turns in 0..20 {
        let new = folder.path().join(format!("link-{turns}"));
        block_on(async {
            let mut sync = Box::pin(fs::sync_dir(folder.path()));
            let mut link = Box::pin(fs::hard_link(&file, &new));
            let mut read = Box::pin(fs::read_link("/proc/self/exe"));
            let _ = (poll_once(&mut sync).await, poll_once(&mut link).await, poll_once(&mut read).await);
            for _ in 0..turns {
                yield_now().await;
            }
        });
        // Leaving the loop waited for them.
        assert!(!new.exists() || std::fs::read(&new).unwrap() == b"content");
    }
    let links = std::fs::metadata(&file).unwrap().nlink();
    assert_eq!(links as usize, std::fs::read_dir(folder.path()).unwrap().count());
    wait_closed(folder.path());
}

#[test]
fn a_forked_child_changes_paths_by_plain_calls() {
    if !in_child("a_forked_child_changes_paths_by_plain_calls") {
        return;
    }
    let folder = Folder::new();
    block_on(fs::sync_dir(folder.path())).unwrap();
    assert_passed(fork(|| block_on(every_change(folder.path()))));
}
