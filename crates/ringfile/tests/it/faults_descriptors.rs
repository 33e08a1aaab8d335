//! A program that has closed its standard input, output and error: the library leaves these numbers alone (F65).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use crate::support::{Folder, content, in_child, is_without_ring, poll_once};
use ringfile::{Appender, Batch, File, OpenOptions, Pool, Queue, Route, SharedQueue, block_on, fs};

const PAGE: usize = 4096;

/// Standard input, output and error while they are closed. Dropping this opens them again.
struct Closed([OwnedFd; 3]);

impl Closed {
    fn new() -> Self {
        let kept = [0, 1, 2].map(|number| {
            // SAFETY: the calls take numbers, and the new descriptor belongs to nobody else. No code of the test uses the
            // standard ones until they are open again.
            unsafe {
                let kept = OwnedFd::from_raw_fd(libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 100));
                assert!(kept.as_raw_fd() >= 100);
                kept
            }
        });
        for number in 0..3 {
            // SAFETY: as above.
            unsafe { libc::close(number) };
        }
        Self(kept)
    }

    /// Returns those of the three numbers that are open again.
    fn taken() -> Vec<i32> {
        // SAFETY: takes a number.
        (0..3).filter(|&number| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0).collect()
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        for (number, kept) in self.0.iter().enumerate() {
            // SAFETY: what has that number now is replaced.
            unsafe { libc::dup2(kept.as_raw_fd(), number as i32) };
        }
    }
}

/// What the steps below leave open.
type Open = Vec<Box<dyn std::any::Any>>;
type Step = (&'static str, fn(&Folder, &mut Open));

fn path(folder: &Folder) -> PathBuf {
    folder.path().join("data")
}

fn both() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
}

/// Each ends with descriptors of another kind open.
const STEPS: [Step; 13] = [
    ("a file", |folder, open| open.push(Box::new(both().open_blocking(path(folder)).unwrap()))),
    ("one descriptor", |folder, open| {
        open.push(Box::new(both().dup(false).open_blocking(path(folder)).unwrap()));
    }),
    ("an adopted file", |folder, open| {
        let file = std::fs::File::open(path(folder)).unwrap();
        // The program's own descriptor may have such a number: it is moved here, and the library's duplicate is looked at.
        let high = rustix::io::fcntl_dupfd_cloexec(&file, 50).unwrap();
        drop(file);
        open.push(Box::new(File::from(std::fs::File::from(high))));
    }),
    ("direct and adaptive files", |folder, open| {
        open.push(Box::new(both().direct(true).buffered_fallback(true).open_blocking(path(folder)).unwrap()));
        let file = both().adaptive(true).open_blocking(path(folder)).unwrap();
        block_on(file.read_at(Vec::with_capacity(PAGE), 0)).unwrap();
        open.push(Box::new(file));
    }),
    ("the ring of a loop", |folder, _| {
        let route = if is_without_ring() { Route::Auto } else { Route::Ring };
        let file = both().route(route).open_blocking(path(folder)).unwrap();
        block_on(file.read_at(Pool::new(1 << 20).get(PAGE).unwrap(), 0)).unwrap();
    }),
    ("a file that a loop opens", |folder, open| {
        open.push(Box::new(block_on(both().open(path(folder))).unwrap()));
    }),
    ("a file that is opened in another executor", |folder, open| {
        open.push(Box::new(futures::executor::block_on(both().open(path(folder))).unwrap()));
    }),
    ("a queue", |folder, open| {
        let mut queue = Queue::new();
        open.push(Box::new(queue.descriptor().unwrap()));
        let opened = queue.add(both().open(path(folder)), 0);
        open.push(Box::new(queue.wait_for(opened).unwrap()));
        open.push(Box::new(queue));
    }),
    ("a shared queue", |folder, open| {
        let queue = SharedQueue::new();
        let file = File::open_blocking(path(folder)).unwrap();
        let token = queue.add(file.read_at(Vec::with_capacity(PAGE), 0), 0);
        queue.wait_for(token).unwrap();
        open.push(Box::new(queue));
    }),
    ("a started batch", |folder, _| {
        let file = both().route(Route::Workers).open_blocking(path(folder)).unwrap();
        let mut batch = Batch::new();
        batch.add(file.read_at(Vec::with_capacity(PAGE), 0));
        let (tell, told) = std::sync::mpsc::channel();
        batch.start(move |_| tell.send(()).unwrap()).unwrap();
        told.recv().unwrap();
    }),
    ("a folder", |folder, open| {
        // More names than are read at once.
        (0..1100).for_each(|at| std::fs::write(folder.path().join(at.to_string()), b"").unwrap());
        let mut names = fs::read_dir(folder.path());
        let first = block_on(std::future::poll_fn(|context| {
            futures::Stream::poll_next(std::pin::Pin::new(&mut names), context)
        }));
        first.unwrap().unwrap();
        open.push(Box::new(names));
    }),
    ("a copy of a file with holes", |folder, open| {
        let from = both().open_blocking(folder.path().join("sparse")).unwrap();
        let to = both().open_blocking(folder.path().join("copied")).unwrap();
        std::fs::OpenOptions::new()
            .write(true)
            .open(folder.path().join("sparse"))
            .unwrap()
            .set_len(1 << 20)
            .unwrap();
        assert_eq!(block_on(from.copy_range(0, &to, 0, 1 << 20)).unwrap(), 1 << 20);
        open.push(Box::new(from));
    }),
    ("a pipe and an appender", |folder, open| {
        let (reader, writer) = std::io::pipe().unwrap();
        let [reader, writer]: [OwnedFd; 2] = [reader.into(), writer.into()]
            .map(|end: OwnedFd| rustix::io::fcntl_dupfd_cloexec(end, 50).unwrap());
        let reader = OpenOptions::new().route(Route::Workers).from_std(reader.into()).unwrap();
        block_on(async {
            assert!(poll_once(&mut Box::pin(reader.read_at(vec![0; 1], 0))).await.is_pending());
            let log = both().open_blocking(folder.path().join("log")).unwrap();
            let log = Appender::open(&log, &Pool::new(1 << 20), 0).await.unwrap();
            log.append(&[7; 100]).await.unwrap();
            log.sync().await.unwrap();
        });
        open.push(Box::new((reader, writer)));
    }),
];

#[test]
fn f65_nothing_of_the_library_has_the_number_of_a_closed_standard_descriptor() {
    let name = "f65_nothing_of_the_library_has_the_number_of_a_closed_standard_descriptor";
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    folder.file("data", &content(0, 16 * PAGE));
    // Nothing can be printed while they are closed.
    let closed = Closed::new();
    let (mut open, mut found) = (Open::new(), Vec::new());
    for (what, step) in STEPS {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step(&folder, &mut open)));
        let why = ran.err().map(|panic| panic.downcast_ref::<String>().cloned());
        let taken = Closed::taken();
        if why.is_some() || !taken.is_empty() {
            found.push((what, taken, why));
        }
    }
    drop(open);
    drop(closed);
    assert!(found.is_empty(), "descriptors that are taken: {found:?}");
}
