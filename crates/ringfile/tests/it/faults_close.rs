//! Files whose last handle is dropped while the threads that have used them idle, compute or sleep, and the end of a file
//! that somebody waits for (F61).

use crate::support::handles::Handles as _;
use crate::support::handles::one_of;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Waker};

use crate::support::fuse::{Act, Op, Server};
use crate::support::{
    Folder, Random, all, assert_content, both, content, descriptors_of, in_child, must_end, open_on_ring,
    poll_once, ring_options, sent, wait_for, yield_until, yields,
};
use ringfile::{Batch, File, OpenOptions, Pool, Queue, Route, Runtime, SharedQueue, block_on};
use rustix::fs::{FlockOperation, flock};

pub const PAGE: usize = 4096;
pub const PAGES: u64 = 16;
/// A lone read, and so many that a ring has the file registered.
const COUNTS: [u64; 2] = [1, 2000];
/// How many of them are in flight together.
const DEEP: u64 = 16;

/// A file that only one open description can have locked.
struct Locked {
    path: PathBuf,
    _folder: Folder,
}

impl Locked {
    /// Makes one, and opens it with a lock of each kind.
    fn open(options: &OpenOptions) -> (Self, File) {
        let folder = Folder::new();
        let path = folder.file("data", &content(0, PAGES as usize * PAGE));
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(lock_description(&file));
        (Self { path, _folder: folder }, options.from_std(file).unwrap())
    }

    /// Returns whether the file is closed, so that others get its locks. Other tests fork: a child has each descriptor until
    /// it runs another program.
    fn is_free(&self) -> bool {
        let other = std::fs::File::options().read(true).write(true).open(&self.path).unwrap();
        flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok() && lock_description(&other)
    }
}

/// Locks the whole file for its open description; returns false if another one has the lock.
fn lock_description(file: &impl AsFd) -> bool {
    // SAFETY: all zeros is a valid record.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: the descriptor is open, and the record is valid.
    unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &lock) == 0 }
}

/// Told by a thread when it has used the file.
pub struct Idle {
    used: mpsc::Sender<()>,
    end: mpsc::Receiver<()>,
}

impl Idle {
    /// Keeps the thread from doing anything until the file is found to be closed.
    pub fn stop_here(&self) {
        self.used.send(()).unwrap();
        let _ = self.end.recv();
    }

    /// The same, while the thread's loop goes on, or sleeps.
    pub async fn go_on(self) {
        let (tell, told) = sent();
        let Self { used, end } = self;
        std::thread::spawn(move || {
            let _ = end.recv();
            tell.send(());
        });
        used.send(()).unwrap();
        told.await;
    }
}

/// Asserts that a file is closed with its last handle, while a thread that `act` has used it on does what `act` makes it do.
#[track_caller]
fn assert_closes_with(options: &OpenOptions, what: &str, act: impl FnOnce(File, Idle) + Send + 'static) {
    let (locked, file) = Locked::open(options);
    assert_closes_once(what, file, act, || locked.is_free());
}

/// As [`assert_closes_with`], for a file that `is_free` looks at.
#[track_caller]
pub fn assert_closes_once(
    what: &str,
    file: File,
    act: impl FnOnce(File, Idle) + Send + 'static,
    is_free: impl Fn() -> bool,
) {
    let ((used, uses), (ends, end)) = (mpsc::channel(), mpsc::channel());
    let user = file.clone();
    let thread = std::thread::spawn(move || act(user, Idle { used, end }));
    if uses.recv().is_err() {
        thread.join().unwrap();
        panic!("the thread has ended: {what}");
    }
    assert!(!is_free(), "there is a handle: {what}");
    drop(file);
    wait_for(&format!("the file to be closed: {what}"), is_free);
    drop(ends);
    thread.join().unwrap();
}

#[track_caller]
fn assert_closes(what: &str, act: impl FnOnce(File, Idle) + Send + 'static) {
    assert_closes_with(&ring_options(), what, act);
}

fn page(number: u64) -> u64 {
    number % PAGES * PAGE as u64
}

/// Reads through a queue, with many in flight all the time.
pub fn read_in_queue(queue: &mut Queue, file: &File, count: u64) {
    let pool = Pool::new(1 << 20);
    let (mut added, mut taken) = (0, 0);
    while taken < count {
        while added < count && added - taken < DEEP {
            queue.add(file.read_at(pool.get(PAGE).unwrap(), page(added)), added);
            added += 1;
        }
        let done = queue.end();
        assert_content(&done.buffer.unwrap(), page(done.user_data));
        taken += 1;
    }
}

/// Reads a page in a batch that goes on by itself, and drops the file before that has ended. Returns the batch.
pub fn read_in_a_started_batch(file: File) -> ringfile::queue::StartedBatch {
    let mut batch = Batch::new();
    batch.add(file.read_at(Vec::with_capacity(PAGE), 0));
    drop(file);
    let (tell, told) = mpsc::channel();
    let started = batch.start(move |_| tell.send(()).unwrap()).unwrap();
    told.recv().unwrap();
    started
}

/// Reads in any executor, with many in flight.
pub async fn read_in_tasks(file: &File, count: u64) {
    let pool = &Pool::new(1 << 20);
    let task = |task: u64| async move {
        for number in (task..count).step_by(DEEP as usize) {
            let buffer = file.read_at(pool.get(PAGE).unwrap(), page(number)).await.unwrap();
            assert_content(&buffer, page(number));
        }
    };
    all((0..DEEP.min(count)).map(task).collect()).await;
}

#[test]
fn f61_a_thread_that_keeps_an_idle_queue_keeps_no_file() {
    for count in COUNTS {
        assert_closes("a queue", move |file, idle| {
            let mut queue = Queue::new();
            read_in_queue(&mut queue, &file, count);
            drop(file);
            idle.stop_here();
        });
        assert_closes("a queue with another operation in flight", move |file, idle| {
            let (waiting, _silent) = crate::support::pipe();
            let mut queue = Queue::new();
            let token = queue.add(waiting.read_at(Vec::with_capacity(1), 0), 0);
            queue.submit();
            let mut reads = Queue::new();
            read_in_queue(&mut reads, &file, count);
            drop(file);
            idle.stop_here();
            assert!(queue.cancel(token));
        });
        assert_closes("a shared queue", move |file, idle| {
            let queue = SharedQueue::new();
            for number in 0..count {
                queue.add(file.read_at(Vec::with_capacity(PAGE), page(number)), number);
                if queue.len() as u64 == DEEP || number == count - 1 {
                    while one_of(&queue, None).is_some() {}
                }
            }
            drop(file);
            idle.stop_here();
        });
        assert_closes("a batch that has ended", move |file, idle| {
            let mut batch = Batch::new();
            for number in 0..count {
                batch.add(file.read_at(Vec::with_capacity(PAGE), page(number)));
            }
            assert_eq!(batch.run().len() as u64, count);
            drop(file);
            idle.stop_here();
        });
    }
}

#[test]
fn f61_a_loop_that_computes_or_sleeps_keeps_no_file() {
    for count in COUNTS {
        assert_closes("a loop that computes", move |file, idle| {
            block_on(async move {
                read_in_tasks(&file, count).await;
                drop(file);
                idle.stop_here();
            });
        });
        assert_closes("a loop that sleeps", move |file, idle| {
            block_on(async move {
                read_in_tasks(&file, count).await;
                drop(file);
                idle.go_on().await;
            });
        });
        assert_closes("a loop that has ended", move |file, idle| {
            block_on(read_in_tasks(&file, count));
            drop(file);
            idle.stop_here();
        });
        assert_closes("a runtime", move |file, idle| {
            let runtime = Runtime::builder().threads(2).build().unwrap();
            runtime.spawn(async move { read_in_tasks(&file, count).await }).join().unwrap();
            idle.stop_here();
        });
        assert_closes("a loop with another operation in flight", move |file, idle| {
            let (waiting, _silent) = crate::support::pipe();
            block_on(async move {
                let mut read = Box::pin(waiting.read_at(Vec::with_capacity(1), 0));
                assert!(poll_once(&mut read).await.is_pending());
                read_in_tasks(&file, count).await;
                drop(file);
                idle.go_on().await;
            });
        });
    }
}

#[test]
fn f61_a_thread_that_works_for_others_keeps_no_file() {
    for count in COUNTS {
        assert_closes("another executor", move |file, idle| {
            futures::executor::block_on(read_in_tasks(&file, count));
            drop(file);
            idle.stop_here();
        });
        let workers = OpenOptions::new().route(Route::Workers).clone();
        assert_closes_with(&workers, "workers", move |file, idle| {
            futures::executor::block_on(read_in_tasks(&file, count));
            drop(file);
            idle.stop_here();
        });
        assert_closes("a started batch", move |file, idle| {
            let mut batch = Batch::new();
            for number in 0..count {
                batch.add(file.read_at(Vec::with_capacity(PAGE), page(number)));
            }
            drop(file);
            let started = batch.start(move |_| idle.stop_here()).unwrap();
            // The function has the thread of the library until the file is closed.
            drop(started);
        });
    }
    assert_closes("a copy", |file, idle| {
        let other = File::from(tempfile::tempfile().unwrap());
        block_on(async {
            assert_eq!(other.write_at(vec![7; PAGE], 0).await.unwrap().len(), PAGE);
            assert_eq!(other.copy_range(0, &file, 0, PAGE as u64).await.unwrap(), PAGE as u64);
            assert_eq!(file.copy_range(0, &other, 0, PAGE as u64).await.unwrap(), PAGE as u64);
        });
        drop(file);
        idle.stop_here();
    });
    assert_closes("cancelled operations", |file, idle| {
        block_on(async {
            let read = |number| Box::pin(file.read_at(Vec::with_capacity(PAGE), page(number)));
            let mut reads: Vec<_> = (0..100).map(read).collect();
            for read in &mut reads {
                let _ = poll_once(read).await;
            }
            drop(reads);
            drop(file);
            idle.go_on().await;
        });
    });
}

#[cfg(feature = "tokio")]
#[test]
fn f61_a_runtime_of_tokio_keeps_no_file() {
    use tokio::runtime::Builder;
    for (attached, count) in [(false, 1), (false, 2000), (true, 1), (true, 2000)] {
        assert_closes(if attached { "an attached runtime" } else { "tokio" }, move |file, idle| {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async move {
                if attached {
                    // Without a ring there is nothing to attach, and the reads go another way.
                    let _ = ringfile::attach_to_tokio();
                }
                tokio::spawn(async move { read_in_tasks(&file, count).await }).await.unwrap();
                idle.go_on().await;
            });
        });
    }
}

/// Reads a page, gives the last handle up, and asserts that the file is closed then.
#[track_caller]
fn assert_closes_at_once(what: &str, options: &OpenOptions, read: impl Fn(File)) {
    for round in 0..50 {
        let (locked, file) = Locked::open(options);
        read(file);
        assert!(locked.is_free(), "the file is open in round {round}: {what}");
    }
}

#[test]
fn f61_a_file_is_closed_before_its_last_result_is_there() {
    let name = "f61_a_file_is_closed_before_its_last_result_is_there";
    // A child of another test would have the descriptors too.
    if !in_child(name) {
        return;
    }
    let ring = ring_options();
    let workers = OpenOptions::new().route(Route::Workers).clone();
    assert_closes_at_once("an I/O thread", &ring, |file| {
        futures::executor::block_on(read_in_tasks(&file, 1));
    });
    assert_closes_at_once("a worker", &workers, |file| block_on(read_in_tasks(&file, 1)));
    assert_closes_at_once("a started batch", &workers, |file| drop(read_in_a_started_batch(file)));
    let runtime = Runtime::builder().threads(2).build().unwrap();
    for options in [&ring, &workers] {
        assert_closes_at_once("a runtime", options, |file| {
            let reads = {
                let file = file.clone();
                runtime.spawn(async move { read_in_tasks(&file, 1).await })
            };
            reads.join().unwrap();
        });
    }
    #[cfg(feature = "tokio")]
    for attached in [false, true] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // Without a ring there is nothing to attach, and the reads go another way.
            let _ = attached && ringfile::attach_to_tokio().is_ok();
        });
        assert_closes_at_once(if attached { "attached" } else { "tokio" }, &ring, |file| {
            runtime.block_on(read_in_tasks(&file, 1));
        });
    }
}

#[test]
fn f61_both_descriptors_of_an_adaptive_file_are_closed() {
    let options = ring_options().adaptive(true).clone();
    for count in COUNTS {
        assert_closes_with(&options, "an adaptive file", move |file, idle| {
            let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())).unwrap();
            block_on(async move {
                read_in_tasks(&file, count).await;
                drop(file);
                idle.used.send(()).unwrap();
                wait_for("all descriptors to be closed", || descriptors_of(&path) == 0);
                let _ = idle.end.recv();
            });
        });
    }
}

#[test]
fn f61_no_operation_reaches_a_file_that_took_the_number_of_a_closed_one() {
    const FILES: u64 = 12;
    let folder = Folder::new();
    let paths: Vec<_> = (0..FILES)
        .map(|number| folder.file(&number.to_string(), &content(number * 1000, 4 * PAGE)))
        .collect();
    must_end("files that are opened, used and closed", move || {
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let paths = &paths;
                scope.spawn(move || {
                    let mut random = Random::from_seed(thread);
                    let mut queue = Queue::new();
                    for _ in 0..150 {
                        let number = random.below(FILES);
                        let file = open_on_ring(&paths[number as usize]);
                        let reads = [1, 10, 400][random.below(3) as usize];
                        for read in 0..reads {
                            let offset = random.below(3 * PAGE as u64);
                            let token = queue
                                .add(file.read_at(Vec::with_capacity(512), offset), number * 1000 + offset);
                            if read % 8 == 7 {
                                queue.submit();
                            }
                            if random.below(10) == 0 {
                                queue.cancel(token);
                            }
                        }
                        // On this thread or on another, before or after the operations end.
                        match random.below(3) {
                            0 => drop(file),
                            1 => _ = scope.spawn(move || drop(file)),
                            _ => {
                                queue.settle(usize::MAX);
                                drop(file);
                            }
                        }
                        while !queue.is_empty() {
                            for done in queue.ends(1) {
                                let at = done.user_data;
                                if done.result.is_ok() {
                                    assert_content(&done.buffer.unwrap(), at);
                                }
                            }
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn f61_close_tells_what_the_file_system_says() {
    let name = "f61_close_tells_what_the_file_system_says";
    let Some(server) = Server::flushing_or_skip(name, content(0, 8 * PAGE)) else { return };
    for (errno, reads) in [(libc::EIO, 0), (libc::ENOSPC, 1), (libc::EDQUOT, 400), (0, 1)] {
        let file = open_on_ring(server.path());
        let closed = server.closed();
        if errno != 0 {
            server.rule(Op::Flush, 0..u64::MAX, 1, Act::Fail(errno));
        }
        let end = block_on(async {
            read_in_tasks_of(&file, reads).await;
            file.close().await
        });
        match end {
            Ok(()) => assert_eq!(errno, 0),
            Err(error) => {
                assert_eq!(error.errno(), Some(errno), "{error}");
                let text = error.to_string();
                assert!(text.contains("closing") && text.contains("data"), "{text}");
            }
        }
        assert_eq!(server.faults_left(), 0);
        wait_for("the server to hear of it", || server.closed() == closed + 1);
    }
}

async fn read_in_tasks_of(file: &File, count: u64) {
    all((0..count).map(|number| file.read_at(Vec::with_capacity(PAGE), number % 8 * PAGE as u64)).collect())
        .await
        .into_iter()
        .for_each(|read| _ = read.unwrap());
}

#[test]
fn f61_close_ends_after_the_last_operation_and_the_last_clone() {
    let name = "f61_close_ends_after_the_last_operation_and_the_last_clone";
    let Some(server) = Server::or_skip(name, content(0, 8 * PAGE)) else { return };
    block_on(async {
        let file = open_on_ring(server.path());
        server.rule(Op::Read, 0..1, 1, Act::Hold);
        let reader = file.clone();
        let mut read = Box::pin(async move { reader.read_at(Vec::with_capacity(PAGE), 0).await });
        assert!(poll_once(&mut read).await.is_pending());
        yield_until("the read to reach the server", || server.held() == 1).await;
        let mut closes = [Box::pin(file.clone().close()), Box::pin(file.close())];
        for close in &mut closes {
            assert!(poll_once(close).await.is_pending());
            assert!(poll_once(close).await.is_pending());
        }
        // The operation is dropped, and in flight.
        drop(read);
        yields(10).await;
        assert!(poll_once(&mut closes[0]).await.is_pending());
        assert_eq!(server.closed(), 0);
        server.release();
        let [first, second] = closes;
        let ends = both(first, second).await;
        assert!(ends.0.is_ok() && ends.1.is_ok());
        wait_for("the server to hear of it", || server.closed() == 1);
    });
}

#[test]
fn f61_close_waits_for_another_threads_handle() {
    let (locked, file) = Locked::open(&ring_options());
    let (clone, close) = (file.clone(), file.close());
    let ((give, given), (ends, end)) = (mpsc::channel(), mpsc::channel::<()>());
    let holder = std::thread::spawn(move || {
        given.recv().unwrap();
        let mut queue = Queue::new();
        read_in_queue(&mut queue, &clone, 50);
        drop(clone);
        let _ = end.recv();
    });
    let mut close = Box::pin(close);
    block_on(async {
        assert!(poll_once(&mut close).await.is_pending());
        give.send(()).unwrap();
    });
    // Woken from another thread, in a loop of any kind.
    must_end("waiting for the end of a file", move || futures::executor::block_on(close)).unwrap();
    wait_for("the locks", || locked.is_free());
    drop(ends);
    holder.join().unwrap();
}

#[test]
fn f22_a_forked_child_does_not_wait_for_the_end_of_its_parents_operations() {
    let name = "f22_a_forked_child_does_not_wait_for_the_end_of_its_parents_operations";
    if !in_child(name) {
        return;
    }
    let (waiting, _silent) = crate::support::pipe();
    let mut queue = Queue::new();
    let token = queue.add(waiting.read_at(Vec::with_capacity(1), 0), 0);
    queue.submit();
    let is_over = |close: &mut Pin<Box<dyn Future<Output = _>>>| {
        close.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    let mut begun: Pin<Box<dyn Future<Output = _>>> = Box::pin(waiting.clone().close());
    let mut unbegun: Pin<Box<dyn Future<Output = _>>> = Box::pin(waiting.close());
    for had_begun in [false, true] {
        assert!(!had_begun || !is_over(&mut begun), "the operation is in flight");
        crate::support::assert_passed(crate::support::fork(|| {
            assert!(!had_begun || is_over(&mut begun), "a wait that the parent began");
            assert!(is_over(&mut unbegun), "a wait that the child begins");
        }));
    }
    assert!(queue.cancel(token));
}

#[test]
fn f61_a_close_that_is_not_awaited_closes_as_well() {
    let (locked, file) = Locked::open(&ring_options());
    let close = file.close();
    assert!(!locked.is_free());
    drop(close);
    wait_for("the locks", || locked.is_free());
}
