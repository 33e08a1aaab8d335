//! Each operation ends in the same way as a future, in a batch and in a queue, whatever the file was opened with: the same
//! bytes, and the same errors, word for word.

use crate::support::handles::Handles as _;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::forms::routes;
use crate::support::{Folder, content};
use ringfile::buf::Slice;
use ringfile::fs::{self, Metadata};
use ringfile::fs::{Advice, AllocateMode, RangeSync};
use ringfile::{
    AnyBuffer, Batch, BufResult, Buffer, Completion, Durability, File, IoBuf, Op, OpenOptions, Output, Pool,
    Queue, Result, block_on,
};

const PAGE: usize = 4096;
/// The file ends within a page.
const SIZE: usize = 4 * PAGE + 100;

/// How an operation ended: what it returned, and its error.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    memory: Vec<Vec<u8>>,
    other: Option<String>,
    error: Option<String>,
}

/// What an awaited operation returns.
trait Returned {
    fn outcome(self) -> Outcome;
}

fn outcome(memory: Vec<Vec<u8>>, other: Option<String>, error: Option<String>) -> Outcome {
    // An adaptive file reads through either descriptor.
    let error = error.map(|error| error.replace("direct read of", "read of"));
    Outcome { memory, other, error }
}

fn of_memory<B>(result: BufResult<B>, show: impl Fn(B) -> Vec<Vec<u8>>) -> Outcome {
    match result {
        Ok(memory) => outcome(show(memory), None, None),
        Err(failed) => {
            let error = failed.error().to_string();
            outcome(show(failed.into_buffer()), None, Some(error))
        }
    }
}

impl Returned for BufResult<Vec<u8>> {
    fn outcome(self) -> Outcome {
        of_memory(self, |vec| vec![vec])
    }
}

impl Returned for BufResult<Buffer> {
    fn outcome(self) -> Outcome {
        of_memory(self, |buffer| vec![buffer.to_vec()])
    }
}

impl Returned for BufResult<Slice<Buffer>> {
    fn outcome(self) -> Outcome {
        of_memory(self, |part| vec![part.into_inner().to_vec()])
    }
}

impl Returned for BufResult<Vec<Buffer>> {
    fn outcome(self) -> Outcome {
        of_memory(self, |all| all.iter().map(|buffer| buffer.to_vec()).collect())
    }
}

impl Returned for BufResult<AnyBuffer> {
    fn outcome(self) -> Outcome {
        of_memory(self, |buffer| vec![buffer.to_vec()])
    }
}

/// Returns what an operation has given besides memory.
fn of_other<T>(result: Result<T>, show: impl Fn(T) -> Option<String>) -> Outcome {
    match result {
        Ok(other) => outcome(Vec::new(), show(other), None),
        Err(error) => outcome(Vec::new(), None, Some(error.to_string())),
    }
}

impl Returned for Result<()> {
    fn outcome(self) -> Outcome {
        of_other(self, |()| None)
    }
}

fn show_file(file: &File) -> String {
    format!("{:?} of {} bytes", file.path(), file.size().unwrap())
}

fn show_metadata(metadata: &Metadata) -> String {
    format!("{} bytes", metadata.size)
}

impl Returned for Result<u64> {
    fn outcome(self) -> Outcome {
        of_other(self, |_| None)
    }
}

impl Returned for Result<File> {
    fn outcome(self) -> Outcome {
        of_other(self, |file| Some(show_file(&file)))
    }
}

impl Returned for Result<PathBuf> {
    fn outcome(self) -> Outcome {
        of_other(self, |link| Some(format!("{link:?}")))
    }
}

impl Returned for Result<Metadata> {
    fn outcome(self) -> Outcome {
        of_other(self, |metadata| Some(show_metadata(&metadata)))
    }
}

impl Returned for Completion {
    fn outcome(self) -> Outcome {
        let mut memory: Vec<Vec<u8>> = self.buffers.iter().map(|buffer| buffer.to_vec()).collect();
        memory.extend(self.buffer.as_deref().map(<[u8]>::to_vec));
        // Each gives the result back if it has none.
        let other = self
            .take::<File>()
            .map(|file| show_file(&file))
            .or_else(|done| done.take::<Metadata>().map(|metadata| show_metadata(&metadata)))
            .or_else(|done| done.take::<PathBuf>().map(|link| format!("{link:?}")));
        match other {
            Ok(other) => outcome(memory, Some(other), None),
            Err(done) => outcome(memory, None, done.result.err().map(|error| error.to_string())),
        }
    }
}

fn in_a_batch(op: Op<'_, impl Output>) -> Batch {
    let mut batch = Batch::new();
    assert_eq!(batch.add(op), 0);
    batch
}

fn one(mut all: Vec<Completion>) -> Completion {
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// Carries the operation out in every way, and asserts that it always ends as the first time. `before` comes before each.
#[track_caller]
fn every_way<'f, T: Output<Result: Returned>>(
    what: &str,
    before: impl Fn(),
    operation: impl Fn() -> Op<'f, T>,
) -> Outcome {
    before();
    let first = block_on(operation()).outcome();
    let same = |way, now: Outcome| assert_eq!(now, first, "{what} {way}");
    before();
    same("in another executor", futures::executor::block_on(operation()).outcome());
    before();
    same("on a thread that waits", operation().wait().outcome());
    before();
    same("in a batch", one(in_a_batch(operation()).run()).outcome());
    before();
    same("in an awaited batch", one(block_on(async { in_a_batch(operation()).await })).outcome());
    before();
    let elsewhere = futures::executor::block_on(async { in_a_batch(operation()).await });
    same("in a batch that another executor awaits", one(elsewhere).outcome());
    before();
    let mut queue = Queue::new();
    let token = queue.add(operation(), 7);
    same("in a queue", queue.wait_for(token).unwrap().outcome());
    before();
    queue.add(operation(), 8);
    let done = queue.end();
    let user_data = done.user_data;
    assert_eq!(user_data, 8);
    same("in a queue that is waited for", done.outcome());
    first
}

/// The ways to open a file, each with a name.
fn options() -> Vec<(String, OpenOptions)> {
    let mut all = Vec::new();
    let mut add = |name: &str, set: &dyn Fn(&mut OpenOptions)| {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        set(&mut options);
        all.push((name.to_owned(), options));
    };
    for route in routes() {
        add(&format!("{route:?}"), &|options| _ = options.route(route));
        add(&format!("direct {route:?}"), &|options| {
            options.route(route).direct(true).buffered_fallback(true);
        });
    }
    for durability in [Durability::Auto, Durability::Dsync, Durability::Fsync] {
        add(&format!("{durability:?}"), &|options| _ = options.durability(durability));
    }
    add("adaptive", &|options| _ = options.adaptive(true));
    add("dont_cache", &|options| _ = options.dont_cache(true));
    add("one_descriptor", &|options| _ = options.dup(false));
    add("read only", &|options| _ = options.write(false));
    add("O_DSYNC", &|options| _ = options.custom_flags(libc::O_DSYNC));
    all
}

/// Carries out all operations on a file that was opened in one way.
fn all_operations(name: &str, file: &File, path: &Path, pool: &Pool) {
    let fill = || std::fs::write(path, content(0, SIZE)).unwrap();
    let pooled = |len: usize, byte: u8| {
        let mut buffer = pool.get(len).unwrap();
        buffer.resize(len, byte);
        buffer
    };
    let run = |what: &str| format!("{name}: {what}");
    for (offset, len) in
        [(0, PAGE), (PAGE, 2 * PAGE), (100, 5000), (4 * PAGE, PAGE), (9 * PAGE, PAGE), (8, 0)]
    {
        let at = offset as u64;
        let what = run(&format!("read of {len} at {offset}"));
        let read = every_way(&what, fill, || file.read_at(pool.get(len.max(1)).unwrap(), at));
        let there = content(0, SIZE);
        let expected = &there[offset.min(SIZE)..(offset + len.max(1)).min(SIZE)];
        assert_eq!((&read.memory[0][..], &read.error), (expected, &None), "{what}");
        let exact = every_way(&what, fill, || file.read_exact_at(Vec::with_capacity(len), at));
        assert_eq!(exact.error.is_some(), offset + len > SIZE, "{what}: {exact:?}");
        every_way(&what, fill, || file.read_at(AnyBuffer::from(Vec::with_capacity(len)), at));
        let parts = || vec![pool.get(PAGE).unwrap(), pool.get(PAGE).unwrap()];
        every_way(&what, fill, || file.read_vectored_at(parts(), at));
        every_way(&what, fill, || file.read_exact_vectored_at(parts(), at));
        every_way(&what, fill, || file.read_at(pooled(2 * PAGE, 9).slice(PAGE..), at));
        every_way(&what, fill, || file.read_exact_at(pooled(2 * PAGE, 9).slice(100..PAGE), at));
        every_way(&what, fill, || file.read_at(pooled(PAGE, 9).slice(PAGE + 1..), at));
    }
    every_way(&run("read beyond"), fill, || file.read_at(Vec::with_capacity(9), u64::MAX - 3));
    let shared = || AnyBuffer::from(bytes::Bytes::from_static(b"shared"));
    let refused = every_way(&run("read into shared bytes"), fill, || file.read_at(shared(), 0));
    assert!(refused.error.is_some());
    for offset in [0, PAGE as u64, 100] {
        let what = run(&format!("write at {offset}"));
        every_way(&what, fill, || file.write_at(pooled(PAGE, 1), offset));
        every_way(&what, fill, || file.write_at(shared(), offset));
        every_way(&what, fill, || file.write_at(pooled(2 * PAGE, 2).slice(PAGE..), offset));
        every_way(&what, fill, || file.write_at(pooled(PAGE, 2).slice(1..PAGE + 1), offset));
        every_way(&what, fill, || file.write_vectored_at(vec![pooled(PAGE, 3), pooled(PAGE, 4)], offset));
        every_way(&what, fill, || file.write_durable_at(pooled(PAGE, 5), offset));
        every_way(&what, fill, || file.write_durable_at(pooled(2 * PAGE, 6).slice(PAGE..), offset));
        every_way(&what, fill, || file.write_atomic_at(pooled(PAGE, 7), offset));
    }
    every_way(&run("fsync"), fill, || file.sync_all());
    every_way(&run("fdatasync"), fill, || file.sync_data());
    every_way(&run("sync_file_range"), fill, || file.sync_range(0, PAGE as u64, RangeSync::Finish));
    every_way(&run("sync beyond"), fill, || file.sync_range(1, u64::MAX, RangeSync::Start));
    every_way(&run("fallocate"), fill, || file.allocate(AllocateMode::Extend, 0, 1 << 16));
    every_way(&run("fallocate nothing"), fill, || file.allocate(AllocateMode::Extend, 0, 0));
    every_way(&run("ftruncate"), fill, || file.set_len(PAGE as u64));
    every_way(&run("ftruncate beyond"), fill, || file.set_len(u64::MAX));
    every_way(&run("copy"), fill, || file.copy_range(0, file, 1 << 20, 5 * PAGE as u64));
    every_way(&run("copy over itself"), fill, || file.copy_range(0, file, 1, 5 * PAGE as u64));
    every_way(&run("fadvise"), fill, || file.advise(0, 0, Advice::Sequential));
}

#[test]
fn an_operation_on_a_file_ends_the_same_in_every_way_and_with_every_option() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, SIZE));
    let pool = Pool::new(4 << 20);
    for (name, options) in options() {
        let file = options.open_blocking(&path).unwrap();
        all_operations(&name, &file, &path, &pool);
    }
}

#[test]
fn an_operation_on_paths_ends_the_same_in_every_way() {
    let folder = Folder::new();
    let old = folder.file("old", b"content");
    let name = |name: &str| old.with_file_name(name);
    let (new, there, directory) = (name("new"), name("there"), name("directory"));
    let clear = || {
        _ = std::fs::remove_file(&new);
        _ = std::fs::remove_dir(&directory);
        std::fs::write(&old, b"content").unwrap();
        std::fs::write(&there, b"there").unwrap();
    };
    let mut reading = OpenOptions::new();
    reading.read(true);
    let opened = every_way("open", clear, || reading.open(&old));
    assert!(opened.other.unwrap().ends_with("of 7 bytes"));
    every_way("open what is not there", clear, || reading.open(&new));
    every_way("open with a NUL", clear, || reading.open("with\0nul"));
    every_way("open with nothing to do", clear, || OpenOptions::new().open(&old));
    let mut truncating = OpenOptions::new();
    truncating.write(true).create(true).truncate(true);
    let truncated = every_way("truncate", clear, || truncating.open(&there));
    assert!(truncated.other.unwrap().ends_with("of 0 bytes"));
    every_way("create", clear, || truncating.open(&new));
    every_way("rename", clear, || fs::rename(&old, &new));
    assert!(every_way("rename nothing", clear, || fs::rename(&new, &old)).error.unwrap().contains("old"));
    every_way("remove", clear, || fs::remove_file(&there));
    every_way("remove nothing", clear, || fs::remove_file(&new));
    every_way("create a directory", clear, || fs::create_dir(&directory));
    every_way("create it again", clear, || fs::create_dir(&there));
    every_way(
        "remove a directory",
        || (clear(), std::fs::create_dir(&directory)).1.unwrap(),
        || fs::remove_dir(&directory),
    );
    assert_eq!(every_way("metadata", clear, || fs::metadata(&old)).other.unwrap(), "7 bytes");
    every_way("metadata of nothing", clear, || fs::metadata(&new));
    let open = ringfile::File::open_blocking(&old).unwrap();
    assert_eq!(
        every_way("metadata of an open file", clear, || fs::metadata_of(&open)).other.unwrap(),
        "7 bytes"
    );
}

#[test]
fn linking_exchanging_and_changing_permissions_end_the_same_in_every_way() {
    let folder = Folder::new();
    let name = |name: &str| folder.path().join(name);
    let (old, new, there, link, directory) =
        (name("old"), name("new"), name("there"), name("link"), name("directory"));
    let deep = directory.join("a/b");
    let clear = || {
        _ = std::fs::remove_file(&new);
        _ = std::fs::remove_file(&link);
        _ = std::fs::remove_dir_all(&directory);
        std::fs::write(&old, b"content").unwrap();
        std::fs::write(&there, b"there").unwrap();
    };
    let linked = || (clear(), std::os::unix::fs::symlink("old", &link).unwrap()).1;
    let fails = |outcome: Outcome, parts: &[&str]| {
        let error = outcome.error.unwrap();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    let succeeds = |outcome: Outcome| assert_eq!(outcome.error, None);
    succeeds(every_way("link", clear, || fs::hard_link(&old, &new)));
    fails(every_way("link over", clear, || fs::hard_link(&old, &there)), &["linking", "old", "there"]);
    fails(every_way("link nothing", clear, || fs::hard_link(&new, &link)), &["linking", "new", "link"]);
    succeeds(every_way("symlink", clear, || fs::symlink("old", &link)));
    let over = every_way("symlink over", linked, || fs::symlink("other", &link));
    fails(over, &["making the symbolic link", "link", "point to other"]);
    let read = every_way("read a link", linked, || fs::read_link(&link));
    assert_eq!(read.other.unwrap(), "\"old\"");
    fails(every_way("read no link", clear, || fs::read_link(&old)), &["reading the symbolic link", "old"]);
    succeeds(every_way("rename", clear, || fs::rename_no_replace(&old, &new)));
    let over = every_way("rename over", clear, || fs::rename_no_replace(&old, &there));
    fails(over, &["renaming", "old", "there"]);
    assert_eq!(std::fs::read(&there).unwrap(), b"there");
    succeeds(every_way("exchange", clear, || fs::rename_exchange(&old, &there)));
    assert_eq!(std::fs::read(&there).unwrap(), b"content");
    let nothing = every_way("exchange with nothing", clear, || fs::rename_exchange(&old, &new));
    fails(nothing, &["exchanging", "old", "new"]);
    let private = || Permissions::from_mode(0o600);
    succeeds(every_way("permissions", clear, || fs::set_permissions(&old, private())));
    let nothing = every_way("of nothing", clear, || fs::set_permissions(&new, private()));
    fails(nothing, &["setting the permissions", "new"]);
    succeeds(every_way("directories", clear, || fs::create_dir_all(&deep)));
    assert!(deep.is_dir());
    succeeds(every_way("again", || (), || fs::create_dir_all(&deep)));
    let below = every_way("below a file", clear, || fs::create_dir_all(old.join("a/b")));
    fails(below, &["making the directory", "old/a/b"]);
    let of_link = every_way("metadata of a link", linked, || fs::symlink_metadata(&link));
    assert_eq!(of_link.other.unwrap(), "3 bytes");
    for nul in [fs::hard_link(&old, "a\0b"), fs::symlink("a\0b", &link), fs::create_dir_all("a\0b")] {
        assert_eq!(block_on(nul).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    }
}
