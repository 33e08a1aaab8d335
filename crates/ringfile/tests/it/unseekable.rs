//! Sockets, pipes and terminals: they have no offsets, and may never end.

use std::future::Future as _;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::support::handles::Handles as _;
use crate::support::{
    Folder, assert_content, content, in_child, is_without_ring, must_end, poll_once, skip, wait_for,
};
use ringfile::{Batch, File, Pool, Queue, Route, block_on};

const PAGE: usize = 4096;
const LARGE: usize = 1 << 20;

/// Opens `fd` with the default route.
fn file(fd: impl Into<OwnedFd>) -> File {
    File::from(std::fs::File::from(fd.into()))
}

/// Runs `test` with each route as the default one. In its own process, because the default is global.
fn on_each_route(name: &str, test: impl Fn(Route)) {
    if !in_child(name) {
        return;
    }
    for route in [Route::Auto, Route::Ring, Route::Inline, Route::Workers] {
        if route != Route::Ring || !is_without_ring() {
            ringfile::set_default_route(route);
            test(route);
        }
    }
}

/// Receives `len` bytes on its own thread.
fn taking_in(mut from: impl Read + Send + 'static, len: usize) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut got = vec![0; len];
        from.read_exact(&mut got).unwrap();
        got
    })
}

#[test]
fn large_writes_arrive_whole_and_in_order_whatever_their_offset() {
    on_each_route("large_writes_arrive_whole_and_in_order_whatever_their_offset", |route| {
        for offset in [0, 77] {
            let (socket, theirs) = UnixStream::pair().unwrap();
            let (reader, writer) = std::io::pipe().unwrap();
            for (file, thread) in
                [(file(socket), taking_in(theirs, LARGE)), (file(writer), taking_in(reader, LARGE))]
            {
                let written = block_on(file.write_at(content(0, LARGE), offset));
                assert_eq!(written.unwrap().len(), LARGE, "{route:?}, offset {offset}");
                assert_content(&thread.join().unwrap(), 0);
            }
            let (socket, theirs) = UnixStream::pair().unwrap();
            let (file, thread) = (file(socket), taking_in(theirs, LARGE));
            let mut batch = Batch::new();
            batch.add(file.write_at(content(0, LARGE), offset));
            assert_eq!(*batch.run()[0].result.as_ref().unwrap(), LARGE, "{route:?}, a batch");
            assert_content(&thread.join().unwrap(), 0);
        }
    });
}

#[test]
fn reads_of_a_stream_ignore_their_offset() {
    on_each_route("reads_of_a_stream_ignore_their_offset", |route| {
        let (socket, mut theirs) = UnixStream::pair().unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        for (file, other) in [(file(socket), &mut theirs as &mut dyn Write), (file(reader), &mut writer)] {
            for offset in [0, 5, 1 << 40] {
                other.write_all(b"hello").unwrap();
                let got = block_on(file.read_at(Vec::with_capacity(10), offset)).unwrap();
                assert_eq!(got, b"hello", "{route:?}, offset {offset}");
                other.write_all(b"in two parts").unwrap();
                let parts = vec![Vec::with_capacity(3), Vec::with_capacity(100)];
                let got = block_on(file.read_vectored_at(parts, offset)).unwrap().concat();
                assert_eq!(got, b"in two parts", "{route:?}, offset {offset}");
            }
        }
    });
}

/// Recent kernels let these be sought, which changes nothing, but have no reads at an offset for them.
#[test]
fn timers_and_counters_are_streams() {
    on_each_route("timers_and_counters_are_streams", |route| {
        let own = |fd: i32| {
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            // SAFETY: the descriptor was just made.
            file(unsafe { OwnedFd::from_raw_fd(fd) })
        };
        let soon = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        let once = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: soon };
        // SAFETY: these make descriptors, and set one that was just made to a valid time.
        let (timer, counter) = unsafe {
            let timer = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC);
            assert_eq!(libc::timerfd_settime(timer, 0, &raw const once, std::ptr::null_mut()), 0);
            (own(timer), own(libc::eventfd(3, libc::EFD_CLOEXEC)))
        };
        for (file, expected) in [(timer, 1_u64), (counter, 3)] {
            let read =
                block_on(file.read_at(vec![0; 8], 0)).unwrap_or_else(|error| panic!("{route:?}: {error}"));
            assert_eq!(read, expected.to_ne_bytes(), "{route:?}");
        }
    });
}

#[test]
fn an_exact_read_of_a_stream_distinguishes_a_short_read_from_the_end() {
    on_each_route("an_exact_read_of_a_stream_distinguishes_a_short_read_from_the_end", |route| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let file = file(reader);
        writer.write_all(b"word").unwrap();
        let failed = block_on(file.read_exact_at(vec![0; 10], 0)).unwrap_err();
        assert_eq!((failed.kind(), failed.done()), (std::io::ErrorKind::UnexpectedEof, 4), "{route:?}");
        assert!(failed.to_string().contains("one read gave less"), "{route:?}: {failed}");
        assert_eq!(failed.into_buffer(), b"word");
        drop(writer);
        let failed = block_on(file.read_exact_at(vec![0; 10], 0)).unwrap_err();
        assert!(failed.to_string().contains("too short"), "{route:?}: {failed}");
    });
}

#[test]
fn dropped_reads_of_pipes_leave_the_workers_to_others() {
    let name = "dropped_reads_of_pipes_leave_the_workers_to_others";
    if !in_child(name) {
        return;
    }
    ringfile::runtime::set_worker_threads(2);
    ringfile::set_default_route(Route::Workers);
    must_end("a read beside pipes that wait", || {
        let folder = Folder::new();
        let pool = Pool::new(1 << 20);
        let (reader, _writer) = std::io::pipe().unwrap();
        let pipe = file(reader);
        let file = File::open_blocking(folder.file("data", &content(0, PAGE))).unwrap();
        for _ in 0..6 {
            let mut read = Box::pin(pipe.read_at(pool.get(10).unwrap(), 0));
            assert!(futures::executor::block_on(poll_once(&mut read)).is_pending());
            // Long enough for a worker to have started it.
            std::thread::sleep(Duration::from_millis(20));
            drop(read);
        }
        let read = file.read_exact_at(vec![0; PAGE], 0);
        assert_content(&futures::executor::block_on(read).unwrap(), 0);
        wait_for("the memory of dropped reads", || pool.metrics().in_use == 0);
    });
}

/// Returns a pipe in packet mode: a read takes one packet.
fn packets() -> (File, std::fs::File) {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_DIRECT | libc::O_CLOEXEC) }, 0);
    // SAFETY: both are open, and nobody else's.
    unsafe { (file(OwnedFd::from_raw_fd(ends[0])), std::fs::File::from_raw_fd(ends[1])) }
}

#[test]
fn a_stream_gives_everything_in_order_until_the_other_end_closes() {
    on_each_route("a_stream_gives_everything_in_order_until_the_other_end_closes", |route| {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let (packet_reader, packet_writer) = packets();
        let pairs: [(File, Box<dyn Write>); 3] = [
            (file(socket), Box::new(theirs)),
            (file(reader), Box::new(writer)),
            (packet_reader, Box::new(packet_writer)),
        ];
        for (file, mut other) in pairs {
            let pool = Pool::new(4 << 20);
            block_on(async {
                let mut stream = file.reader(&pool).block(1000).depth(4);
                for at in 0..20 {
                    // A plain call would wait here, on this thread.
                    if route != Route::Inline {
                        let polled = poll_once(&mut stream.next()).await;
                        assert!(polled.is_pending(), "{route:?}, piece {at}");
                    }
                    other.write_all(&content(at * 700, 700)).unwrap();
                    assert_content(&stream.next().await.unwrap().unwrap(), at * 700);
                }
                drop(other);
                assert!(stream.next().await.is_none());
                assert!(stream.next().await.is_none());
            });
        }
    });
}

#[test]
fn a_stream_of_a_pipe_leaves_what_is_beyond_its_range() {
    on_each_route("a_stream_of_a_pipe_leaves_what_is_beyond_its_range", |route| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let file = file(reader);
        writer.write_all(&content(0, 3000)).unwrap();
        let pool = Pool::new(4 << 20);
        block_on(async {
            let mut stream = file.reader(&pool).block(1000).range(500..3000);
            for (at, len) in [(0, 1000), (1000, 1000), (2000, 500)] {
                let piece = stream.next().await.unwrap().unwrap();
                assert_eq!(piece.len(), len, "{route:?}");
                assert_content(&piece, at);
            }
            assert!(stream.next().await.is_none());
            assert_content(&file.read_at(vec![0; 1000], 0).await.unwrap(), 2500);
        });
        let zeros = File::open_blocking("/dev/zero").unwrap();
        let read = block_on(async {
            let (mut stream, mut read) = (zeros.reader(&pool).block(PAGE).range(100..10_000), 0);
            while let Some(piece) = stream.next().await {
                read += piece.unwrap().len();
            }
            read
        });
        assert_eq!(read, 9900, "{route:?}");
    });
}

/// Returns a terminal: the end that types, and the end that receives lines.
fn terminal() -> (std::fs::File, File) {
    let (mut typed_at, mut gets) = (-1, -1);
    let (name, termios, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
    // SAFETY: two numbers to write to; the rest may be null.
    assert_eq!(unsafe { libc::openpty(&mut typed_at, &mut gets, name, termios, size) }, 0);
    // SAFETY: both are open, and nobody else's.
    unsafe { (std::fs::File::from_raw_fd(typed_at), file(OwnedFd::from_raw_fd(gets))) }
}

/// Several readers at once: one gets the data, although the others were also told that there is some.
const ONE_LINE: &[u8] = b"line\n";
const READERS: usize = 4;

/// Returns whether a waiting read can be cancelled: a worker in this situation blocks in its call, where nothing
/// reaches it.
fn can_be_called_back(test: &str) -> bool {
    if is_without_ring() {
        skip(test, "a worker's read of a terminal can't be called back once another took the line");
    }
    !is_without_ring()
}

#[test]
fn reads_of_a_terminal_that_gets_no_more_lines_are_aborted() {
    if !can_be_called_back("reads_of_a_terminal_that_gets_no_more_lines_are_aborted") {
        return;
    }
    must_end("the abort", || {
        let (mut typed_at, file) = terminal();
        let mut reads = Queue::new();
        typed_at.write_all(ONE_LINE).unwrap();
        let handles = [(); READERS].map(|()| reads.start(&file, Vec::with_capacity(100), 0));
        reads.settle(1);
        for handle in handles {
            let has_it = reads.is_done(handle);
            let done = reads.abort(handle).unwrap();
            let buffer = done.buffer.unwrap();
            if has_it {
                assert_eq!(&buffer[..done.result.unwrap()], ONE_LINE);
            } else {
                assert_eq!(done.result.unwrap_err().errno(), Some(libc::ECANCELED));
                assert_eq!(buffer.len(), 0);
            }
        }
    });
}

#[test]
fn reads_of_a_terminal_that_gets_no_more_lines_are_dropped() {
    if !can_be_called_back("reads_of_a_terminal_that_gets_no_more_lines_are_dropped") {
        return;
    }
    must_end("the drop", || {
        let (mut typed_at, file) = terminal();
        let pool = Pool::new(1 << 20);
        let mut one_gets_it = async || {
            typed_at.write_all(ONE_LINE).unwrap();
            let reads = [(); READERS].map(|()| Box::pin(file.read_at(pool.get(100).unwrap(), 0)));
            let (got, ..) = futures::future::select_all(reads).await;
            assert_eq!(&got.unwrap()[..], ONE_LINE);
        };
        block_on(one_gets_it());
        assert_eq!(pool.metrics().in_use, 0, "a loop is not left before");
        futures::executor::block_on(one_gets_it());
        wait_for("the memory", || pool.metrics().in_use == 0);
    });
}

/// A worker that waited 20 ms for each of them in turn would get to a file's operation every 1.3 seconds.
#[test]
fn reads_that_wait_for_pipes_keep_no_worker_from_other_operations() {
    if !in_child("reads_that_wait_for_pipes_keep_no_worker_from_other_operations") {
        return;
    }
    ringfile::set_default_route(Route::Workers);
    ringfile::runtime::set_worker_threads(1);
    let (pipes, mut writers): (Vec<File>, Vec<_>) = std::iter::repeat_with(|| std::io::pipe().unwrap())
        .map(|(reader, writer)| (file(reader), writer))
        .take(64)
        .unzip();
    let folder = Folder::new();
    let regular = File::open_blocking(folder.file("data", &content(0, PAGE))).unwrap();
    must_end("the reads of a file", move || {
        block_on(async {
            let mut waiting: Vec<_> =
                pipes.iter().map(|pipe| Box::pin(pipe.read_at(vec![0; 1], 0).into_future())).collect();
            for read in &mut waiting {
                assert!(poll_once(read).await.is_pending());
            }
            for _ in 0..200 {
                assert_content(&regular.read_at(vec![0; PAGE], 0).await.unwrap(), 0);
            }
            // Dropped reads are given up, and the others get what arrives.
            waiting.truncate(32);
            for (number, writer) in writers.iter_mut().enumerate().rev() {
                writer.write_all(&[number as u8]).unwrap();
            }
            for (number, read) in waiting.into_iter().enumerate() {
                assert_eq!(read.await.unwrap(), [number as u8]);
            }
            for (number, pipe) in pipes.iter().enumerate().skip(32) {
                assert_eq!(pipe.read_at(vec![0; 1], 0).await.unwrap(), [number as u8]);
            }
        });
    });
}

#[test]
fn writes_that_wait_for_pipes_keep_no_worker_and_no_thread_and_continue_where_they_were() {
    if !in_child("writes_that_wait_for_pipes_keep_no_worker_and_no_thread_and_continue_where_they_were") {
        return;
    }
    ringfile::set_default_route(Route::Workers);
    ringfile::runtime::set_worker_threads(2);
    let folder = Folder::new();
    let regular = File::open_blocking(folder.file("data", &content(0, PAGE))).unwrap();
    must_end("the reads of a file, and the writes", move || {
        let (pipes, mut readers): (Vec<File>, Vec<_>) = std::iter::repeat_with(|| std::io::pipe().unwrap())
            .map(|(reader, writer)| (file(writer), reader))
            .take(8)
            .unzip();
        // A thread leaves its loop though its writes have been begun and can't go on.
        block_on(async {
            let mut dropped: Vec<_> = pipes[4..]
                .iter()
                .map(|pipe| Box::pin(pipe.write_at(vec![1; LARGE], 0).into_future()))
                .collect();
            for write in &mut dropped {
                assert!(poll_once(write).await.is_pending());
            }
            for _ in 0..20 {
                assert_content(&regular.read_at(vec![0; PAGE], 0).await.unwrap(), 0);
            }
        });
        block_on(async {
            let writes = pipes[..4].iter().map(|pipe| pipe.write_at(content(7, LARGE), 0).into_future());
            let mut writes: Vec<_> = writes.map(Box::pin).collect();
            for write in &mut writes {
                assert!(poll_once(write).await.is_pending());
            }
            for _ in 0..20 {
                assert_content(&regular.read_at(vec![0; PAGE], 0).await.unwrap(), 0);
            }
            readers.truncate(4);
            let taking: Vec<_> = readers.drain(..).map(|reader| taking_in(reader, LARGE)).collect();
            for write in writes {
                assert_eq!(write.await.unwrap().len(), LARGE);
            }
            for taken in taking {
                assert_content(&taken.join().unwrap(), 7);
            }
        });
    });
}

#[test]
fn a_write_to_a_full_pipe_that_is_cancelled_says_what_has_arrived() {
    on_each_route("a_write_to_a_full_pipe_that_is_cancelled_says_what_has_arrived", |route| {
        if route == Route::Inline {
            // Blocks the thread until all has been written.
            return;
        }
        let (mut theirs, ours) = std::io::pipe().unwrap();
        let (file, mut queue) = (file(ours), Queue::new());
        let token = queue.add(file.write_at(vec![5; LARGE], 0), 0);
        while rustix::io::ioctl_fionread(&theirs).unwrap() == 0 {
            assert_eq!(queue.wait(1..=1, Some(Duration::from_millis(10)), &mut Vec::new()), 0);
        }
        assert!(queue.cancel(token), "{route:?}: the pipe is full");
        let error = queue.wait_for(token).unwrap().result.unwrap_err();
        drop((queue, file));
        let mut arrived = Vec::new();
        theirs.read_to_end(&mut arrived).unwrap();
        assert_eq!((error.errno(), error.done()), (Some(libc::ECANCELED), arrived.len()), "{route:?}");
        assert!(!arrived.is_empty(), "{route:?}");
    });
}

#[test]
fn a_large_write_to_a_socket_of_messages_stays_one_message() {
    on_each_route("a_large_write_to_a_socket_of_messages_stays_one_message", |route| {
        let (socket, theirs) = UnixDatagram::pair().unwrap();
        let written = block_on(file(socket).write_at(content(0, 3 * PAGE), 0));
        assert_eq!(written.unwrap().len(), 3 * PAGE, "{route:?}");
        let mut got = vec![0; 4 * PAGE];
        assert_eq!(theirs.recv(&mut got).unwrap(), 3 * PAGE, "{route:?}");
        assert_content(&got[..3 * PAGE], 0);
    });
}

/// The thread that polls calls a waker only if no worker runs and none can be started.
#[test]
fn a_waker_that_panics_on_the_thread_that_polls_does_not_end_that_thread() {
    struct Panics;

    impl std::task::Wake for Panics {
        fn wake(self: std::sync::Arc<Self>) {
            panic!("a waker that panics");
        }
    }

    let name = "a_waker_that_panics_on_the_thread_that_polls_does_not_end_that_thread";
    if !in_child(name) {
        return;
    }
    ringfile::set_default_route(Route::Workers);
    let begin = |waker: &Waker| {
        let (reader, writer) = std::io::pipe().unwrap();
        let pipe = file(reader);
        let mut read = Box::pin(async move { pipe.read_at(vec![0; 1], 0).await });
        assert!(read.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        (read, writer)
    };
    let (read, mut writer) = begin(&Waker::from(std::sync::Arc::new(Panics)));
    // Idle workers end after 10 s.
    std::thread::sleep(Duration::from_millis(11_500));
    // SAFETY: the call takes no memory.
    if unsafe { libc::setresuid(65534, 65534, 65534) } != 0 {
        return skip(name, "it needs root, to become a user with a limit on threads");
    }
    let mut usual = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read and write only these values.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NPROC, &raw mut usual);
        libc::setrlimit(libc::RLIMIT_NPROC, &libc::rlimit { rlim_cur: 1, ..usual });
    }
    let can_start = std::thread::Builder::new().spawn(|| ()).is_ok();
    writer.write_all(b"x").unwrap();
    // Time in which the poller must not end, though no worker can start.
    std::thread::sleep(Duration::from_millis(300));
    // SAFETY: as above.
    unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const usual) };
    if can_start {
        return skip(name, "threads can be started in spite of the limit");
    }
    drop(read);
    let (mut read, mut writer) = begin(Waker::noop());
    // Time for the poller to have the pipe; the kernel is not simulated.
    std::thread::sleep(Duration::from_millis(100));
    writer.write_all(b"y").unwrap();
    wait_for("a read of another pipe", || {
        read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    });
}

/// `poll` tells two workers of the same data, and one gets it. The other must not wait in a call, which nothing could end.
#[test]
fn a_read_of_a_named_pipe_that_another_has_emptied_can_be_cancelled() {
    let folder = Folder::new();
    let path = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let mut options = ringfile::OpenOptions::new();
    let pipe = options.read(true).write(true).route(Route::Workers).open_blocking(&path).unwrap();
    let mut writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let pool = Pool::new(1 << 20);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..100 {
        let mut reads: Vec<_> = (0..2).map(|_| Box::pin(pipe.read_at(pool.get(7).unwrap(), 0))).collect();
        for read in &mut reads {
            assert!(read.as_mut().poll(&mut context).is_pending());
        }
        writer.write_all(b"content").unwrap();
        wait_for("a read", || {
            let ended = reads.iter_mut().position(|read| read.as_mut().poll(&mut context).is_ready());
            ended.inspect(|&at| drop(reads.swap_remove(at))).is_some()
        });
        drop(reads);
        wait_for("the other read, which is cancelled", || pool.metrics().in_use == 0);
    }
}
