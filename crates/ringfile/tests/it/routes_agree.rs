//! Every route returns the same bytes, counts and errors, for usual and for odd operations.

use std::fmt::Debug;
use std::future::IntoFuture;
use std::io::Write;
use std::path::Path;

use crate::support::forms::routes;
use crate::support::mounts::Mount;
use crate::support::{Folder, all, content, in_child_with};
use ringfile::fs::{Advice, AllocateMode, RangeSync};
use ringfile::{Batch, BufError, Error, File, OpenOptions, Queue, Route, block_on};

const PAGE: usize = 4096;
const SIZE: u64 = 3 * PAGE as u64 + 17;
/// The largest offset that Linux knows.
const MAX: u64 = i64::MAX as u64;

/// Ranges to sync; all but the first two end beyond the last offset.
const RANGES: [(&str, u64, u64); 6] = [
    ("up to the last offset", MAX - 10, 10),
    ("from the last offset on", MAX, 0),
    ("over the last offset", MAX, 1),
    ("a length beyond", 0, u64::MAX),
    ("a length just beyond", 0, MAX + 1),
    ("beyond", u64::MAX, 0),
];

/// The outcome of each operation, by name.
#[derive(Default)]
struct Outcomes(Vec<(String, String)>);

impl Outcomes {
    fn note(&mut self, name: impl Into<String>, outcome: impl Debug) {
        self.0.push((name.into(), format!("{outcome:?}")));
    }

    /// Records the length that the buffer shows, the bytes done, and the error.
    fn buffer(&mut self, name: impl Into<String>, result: Result<Vec<u8>, BufError<Vec<u8>>>) {
        match result {
            Ok(buffer) => self.note(name, Ok::<_, ()>(buffer.len())),
            Err(failed) => {
                let (error, buffer) = failed.into_parts();
                self.note(name, (error.errno(), error.kind(), error.done(), buffer.len()));
            }
        }
    }

    fn unit(&mut self, name: impl Into<String>, result: Result<(), Error>) {
        self.note(name, result.map_err(|error| (error.errno(), error.kind())));
    }

    #[track_caller]
    fn assert(&self, name: &str, expected: impl Debug) {
        let (_, outcome) = self.0.iter().find(|(known, _)| known == name).unwrap();
        assert_eq!(*outcome, format!("{expected:?}"), "{name}");
    }
}

/// Opens files of many kinds, with one route.
struct Files {
    usual: File,
    read_only: File,
    write_only: File,
    folder: File,
    null: File,
    full: File,
    process: File,
}

impl Files {
    fn open(path: &Path, route: Route) -> Self {
        let open = |path: &Path, read, write, flags| {
            let mut options = OpenOptions::new();
            options.read(read).write(write).custom_flags(flags).route(route).open_blocking(path).unwrap()
        };
        Self {
            usual: open(path, true, true, 0),
            read_only: open(path, true, false, 0),
            write_only: open(path, false, true, 0),
            folder: open(path.parent().unwrap(), true, false, libc::O_DIRECTORY),
            null: open(Path::new("/dev/null"), true, true, 0),
            full: open(Path::new("/dev/full"), true, true, 0),
            process: open(Path::new("/proc/cpuinfo"), true, false, 0),
        }
    }

    async fn reads(&self, outcomes: &mut Outcomes) {
        for (name, file, len, offset) in [
            ("the tail", &self.usual, 2 * PAGE, 2 * PAGE as u64 + 5),
            ("at the end", &self.usual, 10, SIZE),
            ("beyond the end", &self.usual, 10, 1 << 40),
            ("up to the last offset", &self.usual, 10, MAX - 10),
            ("a page before it", &self.usual, 10, MAX - PAGE as u64),
            ("over it", &self.usual, 10, MAX),
            ("nothing, far beyond it", &self.usual, 0, u64::MAX),
            ("write-only", &self.write_only, 10, 0),
            ("nothing, write-only", &self.write_only, 0, 0),
            ("a folder", &self.folder, 10, 0),
            ("/dev/null", &self.null, 10, 5),
            ("/dev/full", &self.full, 10, 5),
            ("/proc", &self.process, 1, 10),
            ("/proc, beyond", &self.process, 10, 1 << 30),
        ] {
            let result = file.read_at(vec![1; len], offset).await;
            outcomes.buffer(format!("read: {name}"), result);
            outcomes.buffer(format!("exact: {name}"), file.read_exact_at(vec![1; len], offset).await);
        }
        for parts in [0, 1, 1024, 1025, 3000] {
            let buffers: Vec<_> = (0..parts).map(|i| Vec::with_capacity(i % 3 * 7)).collect();
            let read = self.usual.read_vectored_at(buffers, 3).await;
            let lens = read.map(|buffers| buffers.iter().map(Vec::len).collect::<Vec<_>>());
            outcomes.note(format!("vectored: {parts}"), lens.map_err(|failed| failed.errno()));
        }
    }

    async fn writes(&self, outcomes: &mut Outcomes) {
        for (name, file, len, offset) in [
            ("read-only", &self.read_only, 10, 0),
            ("nothing, read-only", &self.read_only, 0, 0),
            ("up to the last offset", &self.usual, 10, MAX - 10),
            ("a page before it", &self.usual, 10, MAX - 2 * PAGE as u64),
            ("over it", &self.usual, 10, MAX),
            ("/dev/null", &self.null, 10, 9),
            ("/dev/full", &self.full, 10, 9),
            ("a folder", &self.folder, 10, 0),
        ] {
            outcomes.buffer(format!("write: {name}"), file.write_at(vec![1; len], offset).await);
        }
    }

    async fn controls(&self, outcomes: &mut Outcomes) {
        outcomes.unit("cut: far beyond", self.usual.set_len(u64::MAX).await);
        outcomes.unit("cut: the last offset", self.usual.set_len(MAX).await);
        outcomes.unit("cut: a folder", self.folder.set_len(0).await);
        outcomes.unit("cut: read-only", self.read_only.set_len(5).await);
        outcomes.unit("advise: a length beyond", self.usual.advise(0, u64::MAX, Advice::Normal).await);
        outcomes.unit("advise: beyond", self.usual.advise(u64::MAX, 1, Advice::Normal).await);
        outcomes.unit("advise: /dev/null", self.null.advise(0, 1, Advice::Normal).await);
        outcomes.unit("advise: a folder", self.folder.advise(0, 1, Advice::Normal).await);
        let keep = AllocateMode::KeepSize;
        outcomes.unit("allocate: nothing", self.usual.allocate(keep, 0, 0).await);
        outcomes.unit("allocate: far beyond", self.usual.allocate(keep, u64::MAX, 10).await);
        outcomes.unit("allocate: a length beyond", self.usual.allocate(keep, 0, u64::MAX).await);
        outcomes.unit("allocate: over the last offset", self.usual.allocate(keep, MAX, MAX).await);
        outcomes.unit("allocate: /dev/null", self.null.allocate(keep, 0, 10).await);
        outcomes.unit("allocate: a folder", self.folder.allocate(keep, 0, 10).await);
        outcomes.unit("sync: /dev/null", self.null.sync_all().await);
        outcomes.unit("sync: a folder", self.folder.sync_data().await);
        outcomes.unit("sync: write-only", self.write_only.sync_data().await);
    }

    fn ranges(&self, outcomes: &mut Outcomes) {
        for (name, offset, len) in RANGES {
            for what in [RangeSync::Start, RangeSync::Finish] {
                let name = |form: &str| format!("sync {name}: {what:?}, {form}");
                outcomes.unit(name("future"), block_on(self.usual.sync_range(offset, len, what)));
                let (mut batch, mut queue) = (Batch::new(), Queue::new());
                batch.add(self.usual.sync_range(offset, len, what));
                let done = batch.run().into_iter().next().unwrap();
                outcomes.unit(name("batch"), done.result.map(drop));
                let token = queue.add(self.usual.sync_range(offset, len, what), 0);
                outcomes.unit(name("queue"), queue.wait_for(token).unwrap().result.map(drop));
            }
        }
    }
}

/// Checks the operations for which all kernels and file systems agree.
fn assert_usual(outcomes: &Outcomes) {
    use std::io::ErrorKind::{InvalidInput, IsADirectory, UnexpectedEof};
    let ok = Ok::<_, ()>;
    outcomes.assert("read: the tail", ok(PAGE + 12));
    outcomes.assert("exact: the tail", (None::<i32>, UnexpectedEof, PAGE + 12, PAGE + 12));
    for nothing in ["at the end", "beyond the end", "up to the last offset", "/dev/null", "/proc, beyond"] {
        outcomes.assert(&format!("read: {nothing}"), ok(0));
        outcomes.assert(&format!("exact: {nothing}"), (None::<i32>, UnexpectedEof, 0, 0));
    }
    for over in ["over it", "nothing, far beyond it"] {
        outcomes.assert(&format!("read: {over}"), (None::<i32>, InvalidInput, 0, 0));
    }
    outcomes.assert("read: nothing, write-only", ok(0));
    outcomes.assert("read: a folder", (Some(libc::EISDIR), IsADirectory, 0, 0));
    outcomes.assert("read: /dev/full", ok(10));
    outcomes.assert("write: over it", (None::<i32>, InvalidInput, 0, 10));
    outcomes.assert("write: /dev/null", ok(10));
    outcomes.assert("write: nothing, read-only", ok(0));
    let is_error = |name: &str, errno: i32| {
        let (_, outcome) = outcomes.0.iter().find(|(known, _)| known == name).unwrap();
        assert!(outcome.contains(&format!("Some({errno})")), "{name}: {outcome}");
    };
    is_error("read: write-only", libc::EBADF);
    is_error("write: read-only", libc::EBADF);
    is_error("write: a folder", libc::EBADF);
    is_error("write: /dev/full", libc::ENOSPC);
    is_error("cut: far beyond", libc::EINVAL);
    is_error("cut: read-only", libc::EINVAL);
    is_error("allocate: nothing", libc::EINVAL);
    for (at, (name, ..)) in RANGES.into_iter().enumerate() {
        for how in ["Start", "Finish"] {
            for form in ["future", "batch", "queue"] {
                let name = format!("sync {name}: {how}, {form}");
                let expected = if at < 2 { Ok(()) } else { Err((None::<i32>, InvalidInput)) };
                outcomes.assert(&name, expected);
            }
        }
    }
    is_error("sync: /dev/null", libc::EINVAL);
}

/// Makes a folder on the disk, and one on tmpfs.
fn folders() -> [Folder; 2] {
    [Folder::new(), Folder::inside(Path::new("/dev/shm"))]
}

#[test]
fn unusual_operations_end_the_same_on_every_route() {
    for folder in folders() {
        let mut first: Option<(Route, Outcomes)> = None;
        for route in routes() {
            let path = folder.file("data", &content(0, SIZE as usize));
            let files = Files::open(&path, route);
            let mut outcomes = Outcomes::default();
            block_on(async {
                files.reads(&mut outcomes).await;
                files.writes(&mut outcomes).await;
                files.controls(&mut outcomes).await;
            });
            files.ranges(&mut outcomes);
            assert_usual(&outcomes);
            match &first {
                None => first = Some((route, outcomes)),
                Some((before, expected)) => {
                    for (is, was) in outcomes.0.iter().zip(&expected.0) {
                        assert_eq!(is, was, "{route:?}, and {before:?} before, in {:?}", folder.path());
                    }
                    assert_eq!(outcomes.0.len(), expected.0.len());
                }
            }
        }
    }
}

#[test]
fn a_read_that_is_refused_shows_no_bytes() {
    let name = "a_read_that_is_refused_shows_no_bytes";
    // Without rings, this route refuses each operation.
    let without_ring = |child: &mut std::process::Command| {
        child.env("RINGFILE_DISABLE", "io_uring,aio");
    };
    if !in_child_with(name, without_ring) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let file = OpenOptions::new().read(true).route(Route::Ring).open_blocking(&path).unwrap();
    let failed = block_on(file.read_at(vec![1; 100], 0)).unwrap_err();
    assert_eq!(failed.into_buffer(), [], "on a ringfile thread");
    let failed = futures::executor::block_on(file.read_at(vec![1; 100], 0)).unwrap_err();
    assert_eq!(failed.into_buffer(), [], "in another executor");
    let parts = vec![vec![1; 50], vec![1; 50]];
    let failed = futures::executor::block_on(file.read_vectored_at(parts, 0)).unwrap_err();
    assert!(failed.into_buffer().iter().all(Vec::is_empty), "in parts");
    let mut batch = Batch::new();
    batch.add(file.read_at(vec![1; 100], 0));
    let done = batch.run().remove(0);
    assert!(done.result.is_err() && done.buffer.unwrap().is_empty(), "in a batch");
}

/// Returns a piece that consists of one byte value, which identifies it.
fn piece(number: u8, len: usize) -> Vec<u8> {
    vec![number; len]
}

#[test]
fn appended_data_is_there_once_on_every_route() {
    const LARGE: usize = 2 << 20;
    for folder in folders() {
        for route in routes() {
            let path = folder.file("data", b"");
            let mut options = OpenOptions::new();
            options.write(true).custom_flags(libc::O_APPEND).route(route);
            let file = options.open_blocking(&path).unwrap();
            let mut expected = Vec::new();
            let mut append = |number, len| {
                expected.extend(piece(number, len));
                piece(number, len)
            };
            // One after the other, small and large, at any offset: with O_APPEND they go to the end of the file.
            block_on(async {
                for number in 0..20 {
                    let len = if number % 5 == 1 { LARGE } else { 100 };
                    file.write_at(append(number, len), u64::from(number) * 7).await.unwrap();
                }
            });
            for number in 20..40 {
                let len = if number % 5 == 1 { LARGE } else { 100 };
                futures::executor::block_on(file.write_at(append(number, len), 0)).unwrap();
            }
            let mut batch = Batch::new();
            for number in 40..50 {
                batch.add(file.write_at(append(number, 1000), 0));
                batch.barrier();
            }
            assert!(batch.run().iter().all(|done| *done.result.as_ref().unwrap() == 1000));
            let written = std::fs::read(&path).unwrap();
            assert_eq!(written.len(), expected.len(), "{route:?}");
            assert!(written == expected, "{route:?}: bytes");
            // At once, in any order: each is there once, and complete.
            let writes = (50..80).map(|number| file.write_at(piece(number, 1000), 0));
            block_on(all(writes.collect())).into_iter().for_each(|result| drop(result.unwrap()));
            let mut batch = Batch::new();
            for number in 80..110 {
                batch.add(file.write_at(piece(number, 1000), 0));
            }
            let results = futures::executor::block_on(batch.into_future());
            assert!(results.iter().all(|done| done.result.is_ok()));
            let written = std::fs::read(&path).unwrap();
            let mut seen: Vec<u8> = written[expected.len()..].chunks(1000).map(|chunk| chunk[0]).collect();
            assert!(written[expected.len()..].chunks(1000).all(|chunk| chunk == piece(chunk[0], 1000)));
            seen.sort_unstable();
            assert_eq!(seen, (50..110).collect::<Vec<u8>>(), "{route:?}");
        }
    }
}

/// XFS accepts only a part of a write that must not wait: the part that fits into the blocks it reserved at the
/// previous write. The rest goes to the ring, which must not write that part again.
#[test]
fn data_that_was_appended_in_part_is_not_written_again() {
    const FIRST: usize = 100;
    const LARGE: usize = 3 << 20;
    let name = "data_that_was_appended_in_part_is_not_written_again";
    let Some(disk) = Mount::on_loop(name, "xfs", 320 << 20) else { return };
    let bytes = content(0, FIRST + LARGE);
    for route in routes() {
        for round in 0..10 {
            let path = disk.path().join("data");
            // Open to the end: closing a file releases the reserved blocks.
            let mut before = std::fs::File::create(&path).unwrap();
            let mut options = OpenOptions::new();
            let file =
                options.write(true).custom_flags(libc::O_APPEND).route(route).open_blocking(&path).unwrap();
            let write = file.write_at(bytes[FIRST..].to_vec(), 0);
            // At once, because a file whose timestamps must change accepts nothing.
            before.write_all(&bytes[..FIRST]).unwrap();
            if round % 2 == 0 { block_on(write) } else { futures::executor::block_on(write) }.unwrap();
            let written = std::fs::read(&path).unwrap();
            assert_eq!(written.len(), bytes.len(), "{route:?}");
            assert!(written == bytes, "{route:?}: bytes");
            std::fs::remove_file(&path).unwrap();
        }
    }
}
