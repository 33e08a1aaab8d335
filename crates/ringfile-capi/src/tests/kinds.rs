//! Every kind of operation, blocking, in a queue and in a batch; and records that are not right.

use std::ffi::CStr;
use std::os::unix::fs::MetadataExt;
use std::ptr;

use libc::iovec;

use super::ops::{op, ringfile_op_copy_range};
use super::*;
use crate::batch::*;
use crate::control::*;
use crate::file::*;
use crate::op::*;
use crate::path::ringfile_metadata;
use crate::queue::*;

/// How an operation is carried out.
#[derive(Clone, Copy, Debug)]
enum Way {
    Blocking,
    Queue(*mut ringfile_queue),
    Token(*mut ringfile_queue),
    Batch(*mut ringfile_batch),
    Started(*mut ringfile_batch),
}

impl Way {
    /// Carries out an operation, and returns its result. Panics if it is refused.
    fn carry_out(self, op: ringfile_op) -> i64 {
        let (mut result, mut token) = (ringfile_result { user_data: 0, result: 0 }, 0);
        // SAFETY: each test keeps what the record names until this returns.
        unsafe {
            match self {
                Self::Blocking => return ringfile_run(op),
                Self::Queue(queue) => {
                    well(ringfile_queue_add(queue, op, 7, ptr::null_mut()));
                    assert_eq!(well(ringfile_queue_wait(queue, &mut result, 1, 1, -1)), 1);
                }
                Self::Token(queue) => {
                    well(ringfile_queue_add(queue, op, 7, &mut token));
                    return ringfile_queue_wait_for(queue, token);
                }
                Self::Batch(batch) | Self::Started(batch) => {
                    assert_eq!(well(ringfile_batch_add(batch, op, 7)), 0);
                    let failed =
                        if let Self::Batch(_) = self { ringfile_batch_run(batch) } else { start(batch) };
                    let mut results = ptr::null();
                    assert_eq!(well(ringfile_batch_results(batch, &mut results)), 1);
                    result = results.read();
                    assert_eq!(failed, i64::from(result.result < 0));
                    let text = CStr::from_ptr(ringfile_batch_error(batch, 0));
                    assert_eq!(text.is_empty(), result.result >= 0);
                    // Another thread may have had the error.
                    crate::error::remember(text.to_bytes());
                }
            }
        }
        assert_eq!(result.user_data, 7);
        result.result
    }

    /// Tries to carry out an operation that is refused, and returns the error.
    fn refuse(self, op: ringfile_op) -> i64 {
        let mut token = 9;
        // SAFETY: as above.
        let refused = unsafe {
            match self {
                Self::Blocking => ringfile_run(op),
                Self::Queue(queue) | Self::Token(queue) => {
                    let refused = i64::from(ringfile_queue_add(queue, op, 7, &mut token));
                    assert_eq!(ringfile_queue_len(queue), 0, "nothing was added, but {refused}");
                    refused
                }
                Self::Batch(batch) | Self::Started(batch) => {
                    let refused = ringfile_batch_add(batch, op, 7);
                    assert_eq!(ringfile_batch_run(batch), 0);
                    assert_eq!(ringfile_batch_results(batch, &mut ptr::null()), 0, "nothing was added");
                    refused
                }
            }
        };
        assert_eq!(token, 9, "no token");
        refused
    }
}

/// Starts a batch, and waits for its end. Returns how many operations failed.
fn start(batch: *mut ringfile_batch) -> i64 {
    use std::sync::mpsc::{Sender, channel};
    unsafe extern "C" fn tell(context: *mut c_void, failed: i64) {
        // SAFETY: the sender is kept until it has sent.
        unsafe { &*context.cast::<Sender<i64>>() }.clone().send(failed).unwrap();
    }
    let (ends, ended) = channel::<i64>();
    // SAFETY: the sender outlives the end.
    well(unsafe { ringfile_batch_start(batch, Some(tell), (&raw const ends).cast_mut().cast()) });
    ended.recv().unwrap()
}

/// Runs a test in every way.
fn in_every_way(test: impl Fn(Way)) {
    let (mut queue, mut batch) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the pointers are to local values.
    unsafe {
        well(ringfile_queue_create(4, 0, &mut queue));
        well(ringfile_batch_create(ptr::null(), &mut batch));
    }
    for way in [Way::Blocking, Way::Queue(queue), Way::Token(queue), Way::Batch(batch), Way::Started(batch)] {
        test(way);
    }
    well(ringfile_batch_free(batch));
    well(ringfile_queue_free(queue));
}

fn metadata() -> ringfile_metadata {
    // SAFETY: it consists of integers only.
    let empty: ringfile_metadata = unsafe { std::mem::zeroed() };
    ringfile_metadata { size: size_of::<ringfile_metadata>(), ..empty }
}

fn text(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

#[test]
fn every_kind_on_a_file_has_the_same_result_in_every_way() {
    let page = PAGE as u64;
    in_every_way(|way| {
        let folder = tempfile::tempdir().unwrap();
        let [path, copied] = ["data", "copied"].map(|name| folder.path().join(name));
        std::fs::write(&path, content(4)).unwrap();
        let flags = RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE;
        let (file, to) = (open(&path, flags, ring()), open(&copied, flags, ring()));
        let (mut memory, mut written) = (vec![99; 2 * PAGE], content(10));
        let there = || std::fs::read(&path).unwrap();
        let on_file = |kind| ringfile_op { file, ..op(kind) };
        let done = |op: ringfile_op| way.carry_out(op);

        let read = ringfile_op { data: place(&mut memory, 0), ..on_file(RINGFILE_OP_READ) };
        let (length, offset) = (2 * page, 3 * page);
        assert_eq!(done(ringfile_op { length, offset, ..read }), PAGE as i64, "the file ends");
        assert!(is_page(&memory[..PAGE], 3) && is_page(&memory[PAGE..], 99));
        assert_eq!(done(ringfile_op { length: page, offset: page, ..read }), PAGE as i64);
        assert!(is_page(&memory[..PAGE], 1));

        for (kind, number) in [(RINGFILE_OP_WRITE, 5), (RINGFILE_OP_WRITE_DURABLE, 6)] {
            let data = place(&mut written, number * PAGE);
            let write = ringfile_op { data, length: page, offset: page, ..on_file(kind) };
            assert_eq!(done(write), PAGE as i64);
            assert!(is_page(&there()[PAGE..2 * PAGE], number));
        }
        let data = place(&mut written, 7 * PAGE);
        let atomic = ringfile_op { data, length: page, ..on_file(RINGFILE_OP_WRITE_ATOMIC) };
        assert_eq!(done(atomic), -i64::from(libc::EOPNOTSUPP), "a buffered file takes none");

        let part = |memory: &mut [u8], at: usize| iovec { iov_base: place(memory, at * PAGE), iov_len: PAGE };
        let from = [part(&mut written, 8), part(&mut written, 9)];
        let parts = from.as_ptr();
        let writes =
            ringfile_op { data: parts.cast(), length: 2, offset: 2 * page, ..on_file(RINGFILE_OP_WRITEV) };
        assert_eq!(done(writes), 2 * PAGE as i64);
        let into = [part(&mut memory, 1), part(&mut memory, 0)];
        let parts = into.as_ptr();
        let reads =
            ringfile_op { data: parts.cast(), length: 2, offset: 2 * page, ..on_file(RINGFILE_OP_READV) };
        assert_eq!(done(reads), 2 * PAGE as i64);
        assert!(is_page(&memory[PAGE..], 8) && is_page(&memory[..PAGE], 9));

        for kind in [RINGFILE_OP_SYNC_DATA, RINGFILE_OP_SYNC_ALL] {
            assert_eq!(done(on_file(kind)), 0);
        }
        for flags in [RINGFILE_SYNC_RANGE_WRITE, 7] {
            let sync = ringfile_op { length: page, flags, ..on_file(RINGFILE_OP_SYNC_RANGE) };
            assert_eq!(done(sync), 0);
        }
        let allocate = ringfile_op { offset: 4 * page, length: page, ..on_file(RINGFILE_OP_ALLOCATE) };
        assert_eq!(done(allocate), 0);
        assert_eq!(there().len(), 5 * PAGE);
        let written = ringfile_op { offset: 5 * page, flags: RINGFILE_ALLOCATE_WRITTEN, ..allocate };
        assert_eq!(done(written), 0);
        assert!(there().len() == 6 * PAGE && is_page(&there()[5 * PAGE..], 0));
        assert_eq!(done(ringfile_op { length: 4 * page, ..on_file(RINGFILE_OP_TRUNCATE) }), 0);
        assert_eq!(there().len(), 4 * PAGE);
        let flags = RINGFILE_ADVICE_RANDOM;
        assert_eq!(done(ringfile_op { length: page, flags, ..on_file(RINGFILE_OP_ADVISE) }), 0);

        let copy = ringfile_op { other: to.cast(), to_offset: page, ..on_file(RINGFILE_OP_COPY_RANGE) };
        let (offset, length) = (2 * page, 8 * page);
        assert_eq!(done(ringfile_op { offset, length, ..copy }), 2 * PAGE as i64, "the file ends");
        let copied = std::fs::read(&copied).unwrap();
        assert!(is_page(&copied[..PAGE], 0) && is_page(&copied[PAGE..2 * PAGE], 8));
        assert!(is_page(&copied[2 * PAGE..], 9));
        let overlaps = ringfile_op { length: 2 * page, other: file.cast(), ..copy };
        assert_eq!(done(overlaps), -i64::from(libc::EINVAL), "{way:?}");
        assert!(said().contains("overlap"), "{}", said());

        let length = i64::MAX as u64;
        assert_eq!(done(ringfile_op { length, ..on_file(RINGFILE_OP_ALLOCATE) }), -i64::from(libc::EFBIG));
        well(ringfile_close(to));
        well(ringfile_close(file));
    });
}

#[test]
fn every_kind_on_a_path_has_the_same_result_in_every_way() {
    in_every_way(|way| {
        let folder = tempfile::tempdir().unwrap();
        let [data, moved, directory] = ["data", "moved", "directory"].map(|name| folder.path().join(name));
        std::fs::write(&data, content(1)).unwrap();
        let (data_text, moved_text, directory_text) = (text(&data), text(&moved), text(&directory));
        let expected = std::fs::metadata(&data).unwrap();
        let on_path = |kind| ringfile_op { data: data_text.as_ptr().cast(), ..op(kind) };
        let done = |op: ringfile_op| way.carry_out(op);

        let (mut file, mut known, options) =
            (ptr::null_mut::<ringfile_file>(), metadata(), options(RINGFILE_READ, ring()));
        let opening = ringfile_op {
            other: (&raw const options).cast(),
            result: (&raw mut file).cast(),
            ..on_path(RINGFILE_OP_OPEN)
        };
        assert_eq!(done(opening), 0);
        assert_eq!(well(ringfile_size(file)), PAGE as i64);
        well(ringfile_close(file));
        file = ptr::null_mut();
        let missing =
            ringfile_op { data: moved_text.as_ptr().cast(), result: (&raw mut file).cast(), ..opening };
        assert_eq!(done(missing), -i64::from(libc::ENOENT));
        assert!(file.is_null() && said().contains("moved"), "{}", said());

        assert_eq!(done(ringfile_op { result: (&raw mut known).cast(), ..on_path(RINGFILE_OP_STATX) }), 0);
        assert_eq!((known.length, known.inode), (PAGE as u64, expected.ino()));
        let mkdir = ringfile_op { data: directory_text.as_ptr().cast(), ..op(RINGFILE_OP_MKDIR) };
        assert_eq!(done(mkdir), 0);
        assert!(directory.is_dir());
        assert_eq!(done(mkdir), -i64::from(libc::EEXIST));
        assert_eq!(done(ringfile_op { other: moved_text.as_ptr().cast(), ..on_path(RINGFILE_OP_RENAME) }), 0);
        assert!(moved.exists() && !data.exists());
        let back = ringfile_op {
            data: moved_text.as_ptr().cast(),
            other: data_text.as_ptr().cast(),
            ..op(RINGFILE_OP_RENAME)
        };
        let flags = RINGFILE_RENAME_NO_REPLACE;
        assert_eq!(done(ringfile_op { flags, ..back }), 0);
        let link = ringfile_op { other: moved_text.as_ptr().cast(), ..on_path(RINGFILE_OP_LINK) };
        assert_eq!(done(link), 0);
        assert_eq!(std::fs::metadata(&moved).unwrap().ino(), expected.ino());
        assert_eq!(done(link), -i64::from(libc::EEXIST));
        assert_eq!(done(ringfile_op { flags, ..back }), -i64::from(libc::EEXIST));
        let exchange = ringfile_op {
            other: directory_text.as_ptr().cast(),
            flags: RINGFILE_RENAME_EXCHANGE,
            ..on_path(RINGFILE_OP_RENAME)
        };
        assert_eq!(done(exchange), 0);
        assert!(data.is_dir() && directory.is_file());
        assert_eq!(done(exchange), 0);
        let chmod = ringfile_op { flags: 0o4600, ..on_path(RINGFILE_OP_CHMOD) };
        assert_eq!(done(chmod), 0);
        assert_eq!(std::fs::metadata(&moved).unwrap().mode() & 0o7777, 0o4600);
        assert_eq!(done(ringfile_op { kind: RINGFILE_OP_UNLINK, flags: 0, ..chmod }), 0);
        let symlink = ringfile_op { other: c"moved".as_ptr().cast(), ..on_path(RINGFILE_OP_SYMLINK) };
        assert_eq!(done(symlink), 0);
        assert_eq!(std::fs::read_link(&data).unwrap(), Path::new("moved"));
        assert_eq!(done(symlink), -i64::from(libc::EEXIST));
        assert_eq!(done(on_path(RINGFILE_OP_UNLINK)), 0);
        let deep = directory.join("deep");
        let deep_text = text(&deep);
        let create = ringfile_op { data: deep_text.as_ptr().cast(), ..op(RINGFILE_OP_MKDIR_ALL) };
        assert_eq!((done(create), done(create)), (0, 0));
        assert_eq!(done(ringfile_op { kind: RINGFILE_OP_RMDIR, ..create }), 0);
        assert_eq!(done(ringfile_op { kind: RINGFILE_OP_RMDIR, ..mkdir }), 0);
        assert_eq!(done(ringfile_op { kind: RINGFILE_OP_MKDIR_ALL, ..create }), 0);
        std::fs::remove_dir_all(&directory).unwrap();
        let unlink = ringfile_op { data: moved_text.as_ptr().cast(), ..op(RINGFILE_OP_UNLINK) };
        assert_eq!(done(unlink), 0);
        assert_eq!(done(unlink), -i64::from(libc::ENOENT));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    });
}

#[test]
fn a_record_that_is_not_right_is_refused_and_nothing_is_added() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(1)).unwrap();
    let file = open(&path, RINGFILE_READ | RINGFILE_WRITE, ring());
    let (mut memory, path, options) = (vec![99; PAGE], text(&path), options(RINGFILE_READ, 0));
    let (mut opened, known, mut unsized_metadata) =
        (ptr::null_mut::<ringfile_file>(), metadata(), metadata());
    unsized_metadata.size = 0;
    let part = iovec { iov_base: place(&mut memory, 0), iov_len: PAGE };
    let nowhere = iovec { iov_base: ptr::null_mut(), iov_len: PAGE };
    let too_long = iovec { iov_len: isize::MAX as usize, ..part };
    let read = ringfile_op { file, data: place(&mut memory, 0), length: PAGE as u64, ..op(RINGFILE_OP_READ) };
    let copy = ringfile_op_copy_range(file, 0, file, 1, 1);
    let opening = ringfile_op {
        data: path.as_ptr().cast(),
        other: (&raw const options).cast(),
        result: (&raw mut opened).cast(),
        ..op(RINGFILE_OP_OPEN)
    };
    let on_path = |kind| ringfile_op { data: path.as_ptr().cast(), ..op(kind) };
    let on_file = |kind| ringfile_op { file, ..op(kind) };
    let closed = open(Path::new(path.to_str().unwrap()), RINGFILE_READ, 0);
    well(ringfile_close(closed));
    let two = [too_long; 3];
    let (none, other): (*const ringfile_file, _) = (ptr::null(), ptr::without_provenance(8));
    #[rustfmt::skip]
    let wrong = [
        (ringfile_op { kind: 0, ..read }, libc::EINVAL, "kind is 0: use one of RINGFILE_OP_"),
        (ringfile_op { kind: RINGFILE_OP_CHMOD + 1, ..op(0) }, libc::EINVAL, "kind is 24: use one of RINGFILE_OP_"),
        (ringfile_op { kind: u32::MAX, ..op(0) }, libc::EINVAL, "use one of RINGFILE_OP_"),
        (ringfile_op { file: none, ..read }, libc::EBADF, "ringfile_file: it is NULL"),
        (ringfile_op { file: other, ..read }, libc::EBADF, "of another kind, or no handle"),
        (ringfile_op { file: closed, ..read }, libc::EBADF, "the handle was closed"),
        (ringfile_op { data: ptr::null_mut(), ..read }, libc::EFAULT, "the memory of the operation is NULL"),
        (ringfile_op { length: u64::MAX, ..read }, libc::EINVAL, "more than any memory has"),
        (on_file(RINGFILE_OP_SYNC_RANGE), libc::EINVAL, "SYNC_RANGE_WRITE"),
        (ringfile_op { flags: 9, ..on_file(RINGFILE_OP_ALLOCATE) }, libc::EINVAL, "ALLOCATE_"),
        (ringfile_op { flags: 9, ..on_file(RINGFILE_OP_ADVISE) }, libc::EINVAL, "ADVICE_"),
        (ringfile_op { length: 1, ..on_file(RINGFILE_OP_READV) }, libc::EFAULT, "the parts is NULL"),
        (ringfile_op { length: 1, data: (&raw const nowhere).cast(), ..on_file(RINGFILE_OP_WRITEV) }, libc::EFAULT, "the memory of the operation"),
        (ringfile_op { length: 3, data: two.as_ptr().cast(), ..on_file(RINGFILE_OP_WRITEV) }, libc::EINVAL, "longer than any file"),
        (ringfile_op { other: none.cast(), ..copy }, libc::EBADF, "ringfile_file: it is NULL"),
        (ringfile_op { other: closed.cast(), ..copy }, libc::EBADF, "the handle was closed"),
        (ringfile_op { file: none, ..copy }, libc::EBADF, "ringfile_file: it is NULL"),
        (op(RINGFILE_OP_UNLINK), libc::EFAULT, "the path is NULL"),
        (on_path(RINGFILE_OP_RENAME), libc::EFAULT, "the path is NULL"),
        (on_path(RINGFILE_OP_LINK), libc::EFAULT, "the path is NULL"),
        (on_path(RINGFILE_OP_SYMLINK), libc::EFAULT, "the path is NULL"),
        (ringfile_op { flags: 3, other: path.as_ptr().cast(), ..on_path(RINGFILE_OP_RENAME) }, libc::EINVAL, "RENAME_"),
        (ringfile_op { flags: 0o10000, ..on_path(RINGFILE_OP_CHMOD) }, libc::EINVAL, "at most 07777"),
        (ringfile_op { result: ptr::null_mut(), ..opening }, libc::EFAULT, "the file's handle is NULL"),
        (on_path(RINGFILE_OP_STATX), libc::EFAULT, "ringfile_metadata is NULL"),
        (ringfile_op { result: (&raw mut unsized_metadata).cast(), ..on_path(RINGFILE_OP_STATX) }, libc::EINVAL, "sizeof"),
        // Fields of other kinds.
        (ringfile_op { flags: 1, ..read }, libc::EINVAL, "`flags` of ringfile_op is not 0: an operation of kind 1 does"),
        (ringfile_op { other: file.cast(), ..read }, libc::EINVAL, "`other` of"),
        (ringfile_op { result: (&raw mut opened).cast(), ..read }, libc::EINVAL, "`result` of"),
        (ringfile_op { to_offset: 1, ..read }, libc::EINVAL, "`to_offset` of"),
        (ringfile_op { kind: RINGFILE_OP_WRITEV, flags: 1, ..read }, libc::EINVAL, "`flags` of"),
        (ringfile_op { kind: RINGFILE_OP_RENAME, result: (&raw mut opened).cast(), ..on_path(0) }, libc::EINVAL, "`result` of"),
        (ringfile_op { kind: RINGFILE_OP_MKDIR, other: (&raw const options).cast(), ..on_path(0) }, libc::EINVAL, "`other` of"),
        (ringfile_op { kind: RINGFILE_OP_SYNC_DATA, ..read }, libc::EINVAL, "`data` of"),
        (ringfile_op { kind: RINGFILE_OP_SYNC_ALL, data: ptr::null_mut(), ..read }, libc::EINVAL, "`length` of"),
        (ringfile_op { offset: 1, ..on_file(RINGFILE_OP_TRUNCATE) }, libc::EINVAL, "`offset` of"),
        (ringfile_op { data: read.data, ..on_file(RINGFILE_OP_ADVISE) }, libc::EINVAL, "`data` of"),
        (ringfile_op { data: read.data, ..on_file(RINGFILE_OP_ALLOCATE) }, libc::EINVAL, "`data` of"),
        (ringfile_op { data: read.data, ..on_file(RINGFILE_OP_SYNC_RANGE) }, libc::EINVAL, "`data` of"),
        (ringfile_op { flags: 1, ..copy }, libc::EINVAL, "`flags` of"),
        (ringfile_op { file, ..opening }, libc::EINVAL, "`file` of"),
        (ringfile_op { file, ..on_path(RINGFILE_OP_UNLINK) }, libc::EINVAL, "`file` of"),
        (ringfile_op { flags: 1, ..on_path(RINGFILE_OP_RMDIR) }, libc::EINVAL, "`flags` of"),
        (ringfile_op { flags: 1, ..on_path(RINGFILE_OP_LINK) }, libc::EINVAL, "`flags` of"),
        (ringfile_op { other: path.as_ptr().cast(), ..on_path(RINGFILE_OP_CHMOD) }, libc::EINVAL, "`other` of"),
        (ringfile_op { other: path.as_ptr().cast(), ..on_path(RINGFILE_OP_STATX) }, libc::EINVAL, "`other` of"),
    ];
    in_every_way(|way| {
        for (op, errno, why) in wrong {
            fails(way.refuse(op), errno, why);
        }
    });
    assert!(is_page(&memory, 99) && opened.is_null() && known.length == 0);
    well(ringfile_close(file));
}

#[test]
fn a_batch_copies_records_and_writes_additional_results_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, content(2)).unwrap();
    let (mut batch, mut opened, mut known) =
        (ptr::null_mut(), [ptr::null_mut::<ringfile_file>(); 3], metadata());
    // SAFETY: the pointer is to a local value.
    well(unsafe { ringfile_batch_create(ptr::null(), &mut batch) });
    for (number, opened) in opened.iter_mut().enumerate() {
        // These are gone when the batch runs.
        let name = if number == 1 { folder.path().join("none") } else { path.clone() };
        let (name, options) = (text(&name), options(RINGFILE_READ, ring()));
        let op = ringfile_op {
            data: name.as_ptr().cast(),
            other: (&raw const options).cast(),
            result: ptr::from_mut(opened).cast(),
            ..op(RINGFILE_OP_OPEN)
        };
        // SAFETY: the handles stay until the batch has ended.
        assert_eq!(well(unsafe { ringfile_batch_add(batch, op, 0) }), number as i64);
    }
    let name = text(&path);
    let stat =
        ringfile_op { data: name.as_ptr().cast(), result: (&raw mut known).cast(), ..op(RINGFILE_OP_STATX) };
    // SAFETY: as above.
    well(unsafe { ringfile_batch_add(batch, stat, 0) });
    well(ringfile_batch_barrier(batch));
    assert!(opened.iter().all(|file| file.is_null()) && known.length == 0, "nothing was begun");
    assert_eq!(ringfile_batch_run(batch), 1);
    assert!(!opened[0].is_null() && opened[1].is_null() && !opened[2].is_null());
    assert_eq!(known.length, 2 * PAGE as u64);
    let [first, _, third] = opened;
    for file in [first, third] {
        assert_eq!(well(ringfile_size(file)), 2 * PAGE as i64);
        well(ringfile_close(file));
    }
    // A result that cannot be written is an error of its operation.
    // SAFETY: as above.
    unsafe {
        assert_eq!(well(ringfile_batch_add(batch, stat, 0)), 0);
        (*stat.result.cast::<ringfile_metadata>()).size = 0;
    }
    assert_eq!(ringfile_batch_run(batch), 1);
    // SAFETY: a NUL-terminated string.
    let why = unsafe { CStr::from_ptr(ringfile_batch_error(batch, 0)) }.to_str().unwrap();
    assert!(why.contains("sizeof") && said() == why, "{why}");
    // What was removed before a run is not written.
    opened = [ptr::null_mut(); 3];
    let options = options(RINGFILE_READ, ring());
    let opening = ringfile_op {
        data: name.as_ptr().cast(),
        other: (&raw const options).cast(),
        result: (&raw mut opened[0]).cast(),
        ..op(RINGFILE_OP_OPEN)
    };
    // SAFETY: as above.
    well(unsafe { ringfile_batch_add(batch, opening, 0) });
    well(ringfile_batch_reset(batch));
    assert_eq!(ringfile_batch_run(batch), 0);
    assert!(opened[0].is_null());
    well(ringfile_batch_free(batch));
}

#[test]
fn a_copy_is_cancelled_and_keeps_its_files_open() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    std::fs::write(&from, content(2)).unwrap();
    let flags = RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE;
    let (file, to) = (open(&from, flags, ring()), open(&to, flags, ring()));
    let (mut queue, mut token) = (ptr::null_mut(), 0);
    let copy = ringfile_op { file, other: to.cast(), length: PAGE as u64, ..op(RINGFILE_OP_COPY_RANGE) };
    // SAFETY: the pointers are to local values.
    unsafe {
        well(ringfile_queue_create(1, 0, &mut queue));
        well(ringfile_queue_add(queue, copy, 0, &mut token));
    }
    assert_eq!(ringfile_queue_cancel(queue, token), 1);
    fails(ringfile_queue_wait_for(queue, token), libc::ECANCELED, "cancelled");
    assert_eq!(ringfile_size(to), 0, "it was not submitted");
    // The files may be closed while the copy is open.
    // SAFETY: as above.
    well(unsafe { ringfile_queue_add(queue, copy, 0, &mut token) });
    well(ringfile_close(file));
    well(ringfile_close(to));
    assert_eq!(well(ringfile_queue_wait_for(queue, token)), PAGE as i64);
    assert!(is_page(&std::fs::read(folder.path().join("to")).unwrap(), 0));
    well(ringfile_queue_free(queue));
}
