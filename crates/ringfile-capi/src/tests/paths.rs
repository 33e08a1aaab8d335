//! Operations on paths in queues: their results, and the time of their effects.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::ops::*;
use super::*;
use crate::file::*;
use crate::op::{RINGFILE_OP_MKDIR, RINGFILE_OP_RMDIR, RINGFILE_OP_UNLINK, ringfile_result};
use crate::path::*;
use crate::queue::*;

fn queue() -> *mut ringfile_queue {
    let mut queue = ptr::null_mut();
    // SAFETY: the pointer is to a local value.
    well(unsafe { ringfile_queue_create(8, 0, &mut queue) });
    queue
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn metadata() -> ringfile_metadata {
    // SAFETY: it consists of integers only.
    let empty: ringfile_metadata = unsafe { std::mem::zeroed() };
    ringfile_metadata { size: size_of::<ringfile_metadata>(), ..empty }
}

/// Returns a folder with a file of one page.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(1)).unwrap();
    (folder, path)
}

#[test]
fn paths_are_opened_renamed_removed_and_looked_at() {
    let (folder, path) = folder();
    let (queue, mut token) = (queue(), 0);
    let [data, moved, directory] =
        [path.clone(), folder.path().join("moved"), folder.path().join("directory")];
    let expected = std::fs::metadata(&path).unwrap();
    let (mut file, mut known) = (ptr::null_mut(), metadata());
    let open_options = options(RINGFILE_READ | RINGFILE_WRITE, ring());
    // SAFETY: everything that is pointed to stays valid until the results were taken.
    unsafe {
        well(ringfile_queue_add(
            queue,
            ringfile_op_open(text(&data).as_ptr(), &open_options, &mut file),
            1,
            &mut token,
        ));
        assert!(file.is_null(), "nothing was begun");
        assert_eq!(ringfile_queue_wait_for(queue, token), 0);
        let mut page = vec![0; PAGE];
        assert_eq!(crate::io::ringfile_read(file, page.as_mut_ptr().cast(), PAGE, 0), PAGE as i64);
        assert!(is_page(&page, 0));
        well(ringfile_close(file));

        let mut results = [ringfile_result { user_data: 0, result: 1 }; 4];
        well(ringfile_queue_add(
            queue,
            ringfile_op_statx(text(&data).as_ptr(), &mut known),
            2,
            ptr::null_mut(),
        ));
        well(ringfile_queue_add(
            queue,
            ringfile_op_path(RINGFILE_OP_MKDIR, text(&directory).as_ptr()),
            3,
            ptr::null_mut(),
        ));
        well(ringfile_queue_add(
            queue,
            ringfile_op_statx(text(&moved).as_ptr(), &mut known),
            4,
            ptr::null_mut(),
        ));
        assert_eq!(ringfile_queue_wait(queue, results.as_mut_ptr(), 4, 3, -1), 3);
        results[..3].sort_by_key(|result| result.user_data);
        let results = results.map(|result| (result.user_data, result.result));
        assert_eq!(results[..3], [(2, 0), (3, 0), (4, -i64::from(libc::ENOENT))]);
        assert_eq!((known.length, known.inode, known.mode), (PAGE as u64, expected.ino(), expected.mode()));
        assert_eq!(known.modified, expected.mtime() * 1_000_000_000 + expected.mtime_nsec());

        let mut open_file = metadata();
        file = super::open(&data, RINGFILE_READ, ring());
        let stat = ringfile_op_stat(file, &mut open_file);
        well(ringfile_queue_add(queue, stat, 0, &mut token));
        well(ringfile_close(file));
        assert_eq!(ringfile_queue_wait_for(queue, token), 0, "the operation keeps the file open");
        assert_eq!((open_file.inode, open_file.allocated), (known.inode, expected.blocks() * 512));
        fails(ringfile_queue_add(queue, stat, 0, &mut token), libc::EBADF, "was closed");

        well(ringfile_queue_add(
            queue,
            ringfile_op_rename(text(&data).as_ptr(), text(&moved).as_ptr(), 0),
            0,
            &mut token,
        ));
        assert_eq!(ringfile_queue_wait_for(queue, token), 0);
        assert!(moved.exists() && !data.exists());
        well(ringfile_queue_add(
            queue,
            ringfile_op_path(RINGFILE_OP_RMDIR, text(&directory).as_ptr()),
            0,
            &mut token,
        ));
        assert_eq!(ringfile_queue_wait_for(queue, token), 0);
        well(ringfile_queue_add(
            queue,
            ringfile_op_path(RINGFILE_OP_UNLINK, text(&moved).as_ptr()),
            0,
            &mut token,
        ));
        assert_eq!(ringfile_queue_wait_for(queue, token), 0);
        well(ringfile_queue_add(
            queue,
            ringfile_op_path(RINGFILE_OP_UNLINK, text(&moved).as_ptr()),
            0,
            &mut token,
        ));
        fails(ringfile_queue_wait_for(queue, token), libc::ENOENT, "removing");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    well(ringfile_queue_free(queue));
}

#[test]
fn bad_arguments_of_operations_on_paths_are_errors() {
    let (_folder, path) = folder();
    let (queue, mut file, mut unsized_metadata) = (queue(), ptr::null_mut(), metadata());
    unsized_metadata.size = 0;
    let (path, none, no_token) = (text(&path), ptr::null(), ptr::null_mut());
    let (good, bad) = (options(RINGFILE_READ, 0), options(1 << 30, 0));
    // SAFETY: the pointers are null, or to local values.
    unsafe {
        fails(
            ringfile_queue_add(queue, ringfile_op_path(RINGFILE_OP_UNLINK, none), 0, no_token),
            libc::EFAULT,
            "NULL",
        );
        fails(
            ringfile_queue_add(queue, ringfile_op_rename(path.as_ptr(), none, 0), 0, no_token),
            libc::EFAULT,
            "NULL",
        );
        let no_file = ptr::null_mut();
        fails(
            ringfile_queue_add(queue, ringfile_op_open(path.as_ptr(), &good, no_file), 0, no_token),
            libc::EFAULT,
            "file",
        );
        fails(
            ringfile_queue_add(queue, ringfile_op_open(path.as_ptr(), &bad, &mut file), 0, no_token),
            libc::EINVAL,
            "flags",
        );
        let no_metadata = ptr::null_mut();
        fails(
            ringfile_queue_add(queue, ringfile_op_statx(path.as_ptr(), no_metadata), 0, no_token),
            libc::EFAULT,
            "NULL",
        );
        fails(
            ringfile_queue_add(queue, ringfile_op_statx(path.as_ptr(), &mut unsized_metadata), 0, no_token),
            libc::EINVAL,
            "sizeof",
        );
        fails(
            ringfile_queue_add(
                ptr::null_mut(),
                ringfile_op_path(RINGFILE_OP_MKDIR, path.as_ptr()),
                0,
                no_token,
            ),
            libc::EBADF,
            "NULL",
        );
    }
    assert_eq!(ringfile_queue_len(queue), 0, "none was added");
    well(ringfile_queue_free(queue));
}

#[test]
fn a_queue_that_is_freed_closes_what_it_has_opened_and_writes_nothing() {
    let (_folder, path) = folder();
    let descriptors = || {
        let names = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        names.filter(|name| std::fs::read_link(name.path()).is_ok_and(|target| target == path)).count()
    };
    let (queue, mut files, mut known) = (queue(), [ptr::null_mut(); 8], metadata());
    let good = options(RINGFILE_READ, 0);
    // SAFETY: everything that is pointed to stays valid until the queue is freed.
    unsafe {
        for file in &mut files {
            well(ringfile_queue_add(
                queue,
                ringfile_op_open(text(&path).as_ptr(), &good, file),
                0,
                ptr::null_mut(),
            ));
        }
        well(ringfile_queue_add(
            queue,
            ringfile_op_statx(text(&path).as_ptr(), &mut known),
            0,
            ptr::null_mut(),
        ));
        assert_eq!(ringfile_queue_wait(queue, ptr::null_mut(), 0, 9, -1), 0);
    }
    well(ringfile_queue_submit(queue));
    well(ringfile_queue_free(queue));
    assert_eq!(descriptors(), 0);
    assert!(files.iter().all(|file| file.is_null()) && known.length == 0);
}
