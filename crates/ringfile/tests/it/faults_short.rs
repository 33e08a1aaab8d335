//! Operations that stop before their end: interrupted, short, at the end of the file, on a full disk, on a bad device
//! (F11 to F15, F30).

use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support;
use crate::support::forms::{Form, routes};
use crate::support::fuse::{Act, Op, Server};
use crate::support::mounts::{Loop, Mount};
use crate::support::{
    Folder, all, assert_content, byte_at, content, in_child, is_without_ring, open_on_ring, ring_options,
    skip, yield_until,
};
use ringfile::{Durability, File, OpenOptions, Pool, block_on, thread_metrics};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const EVERYWHERE: std::ops::Range<u64> = 0..u64::MAX;

fn open(server: &Server) -> File {
    ring_options().read(true).write(true).open_blocking(server.path()).unwrap()
}

static ALARMS: AtomicU64 = AtomicU64::new(0);

extern "C" fn alarm(_: libc::c_int) {
    ALARMS.fetch_add(1, Ordering::Relaxed);
}

/// Sends this thread a signal every 100 µs, whose handler makes no system call restart.
fn storm() {
    // SAFETY: the records are valid and zero where not set; the handler only adds to an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = alarm as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
        let every = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };
        let times = libc::itimerspec { it_interval: every, it_value: every };
        assert_eq!(libc::timer_settime(timer, 0, &times, std::ptr::null_mut()), 0);
    }
}

#[test]
fn f11_a_storm_of_signals_disturbs_no_operation() {
    let name = "f11_a_storm_of_signals_disturbs_no_operation";
    if !in_child(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
    server.rule(Op::Read, EVERYWHERE, usize::MAX, Act::Delay(std::time::Duration::from_millis(20)));
    let folder = Folder::new();
    let cached = open_on_ring(folder.file("data", &content(0, 64 * PAGE)));
    let slow = open_on_ring(server.path());
    let pool = Pool::new(MIB);
    block_on(async {
        storm();
        let before = thread_metrics();
        for page in 0..8u64 {
            // The thread sleeps in the ring for 20 ms.
            let offset = page * PAGE as u64;
            assert_content(&slow.read_exact_at(pool.get(PAGE).unwrap(), offset).await.unwrap(), offset);
        }
        // Until there were enough signals: a busy machine delivers few of them.
        let began = std::time::Instant::now();
        let mut rounds = 0_u64;
        while rounds < 2000 || ALARMS.load(Ordering::Relaxed) <= 100 && began.elapsed() < support::patience()
        {
            let offset = rounds % 64 * PAGE as u64;
            rounds += 1;
            assert_content(&cached.read_exact_at(pool.get(PAGE).unwrap(), offset).await.unwrap(), offset);
        }
        let counts = thread_metrics() - before;
        let alarms = ALARMS.load(Ordering::Relaxed);
        assert!(alarms > 100, "{alarms} signals came");
        let ops = if is_without_ring() { 0 } else { rounds + 8 };
        assert_eq!((counts.ops, counts.failed, counts.stray), (ops, 0, 0));
        // An interrupted wait starts again once, and must not turn into a spin.
        assert!(counts.enters <= 4 * (rounds + 8) + 4 * alarms, "{} enters, {alarms} signals", counts.enters);
    });
}

#[test]
fn f11_interrupted_completions_are_submitted_again() {
    let name = "f11_interrupted_completions_are_submitted_again";
    let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
    server.rule(Op::Read, EVERYWHERE, 20, Act::Fail(libc::EINTR));
    server.rule(Op::Write, EVERYWHERE, 20, Act::Fail(libc::EINTR));
    let file = open(&server);
    let pool = Pool::new(MIB);
    block_on(async {
        assert_content(&file.read_exact_at(pool.get(4 * PAGE).unwrap(), 0).await.unwrap(), 0);
        file.write_at(vec![7; 4 * PAGE], 0).await.unwrap();
        assert!(thread_metrics().resubmitted >= 40 || is_without_ring());
    });
    assert_eq!(server.data()[..4 * PAGE], vec![7; 4 * PAGE]);
}

#[test]
fn f11_an_operation_that_is_always_interrupted_fails_in_the_end() {
    let name = "f11_an_operation_that_is_always_interrupted_fails_in_the_end";
    for errno in [libc::EINTR, libc::EAGAIN] {
        let Some(server) = Server::blocking_or_skip(name, content(0, 64 * PAGE)) else { return };
        server.rule(Op::Read, EVERYWHERE, usize::MAX, Act::Fail(errno));
        let file = open(&server);
        let failed = block_on(file.read_at(Vec::with_capacity(PAGE), 0)).unwrap_err();
        assert_eq!((failed.errno(), failed.done()), (Some(errno), 0));
    }
}

#[test]
fn f12_eagain_completions_are_submitted_again() {
    let name = "f12_eagain_completions_are_submitted_again";
    // If an answer with EAGAIN comes later, the kernel itself asks again, without end.
    let Some(server) = Server::blocking_or_skip(name, content(0, 64 * PAGE)) else { return };
    let times = 200;
    server.rule(Op::Read, EVERYWHERE, times, Act::Fail(libc::EAGAIN));
    let file = open(&server);
    block_on(async {
        let before = thread_metrics();
        assert_content(&file.read_exact_at(Vec::with_capacity(4 * PAGE), 0).await.unwrap(), 0);
        assert!((thread_metrics() - before).resubmitted > 0 || is_without_ring());
    });
    assert!(server.log().len() > times);
}

#[test]
fn f12_a_large_direct_read_that_stops_half_way_continues_there() {
    let name = "f12_a_large_direct_read_that_stops_half_way_continues_there";
    let Some(server) = Server::or_skip(name, content(0, 5 * MIB)) else { return };
    let file = ring_options().read(true).direct(true).open_blocking(server.path()).unwrap();
    assert_eq!(file.alignment().bytes, 4096);
    let pool = Pool::new(16 * MIB);
    let half = (3 * MIB / 2) as u64;
    // Ends between two blocks, within one, and at a block.
    let may_answer_eagain = server.may_answer_eagain(name);
    for cut in [PAGE + 1, 17, 2 * PAGE, 0] {
        if cut == 0 && !may_answer_eagain {
            continue;
        }
        if cut == 0 {
            server.rule(Op::Read, half..half + 1, 1, Act::Fail(libc::EAGAIN));
        } else {
            server.rule(Op::Read, half..half + 1, 1, Act::Short(cut));
        }
        let buffer = block_on(file.read_exact_at(pool.get(4 * MIB).unwrap(), 0)).unwrap();
        assert_eq!(buffer.len(), 4 * MIB);
        assert_content(&buffer, 0);
    }
    assert!(server.log().iter().all(|&(_, offset, _)| offset % PAGE as u64 == 0), "an unaligned direct read");
}

#[test]
fn f13_reads_that_end_early_are_continued() {
    let name = "f13_reads_that_end_early_are_continued";
    let Some(server) = Server::or_skip(name, content(0, 16 * PAGE)) else { return };
    let file = open(&server);
    let pool = Pool::new(MIB);
    for most in [1, 100, PAGE - 1, PAGE, 3 * PAGE] {
        server.rule(Op::Read, EVERYWHERE, 10, Act::Short(most));
        let buffer = block_on(file.read_exact_at(pool.get(16 * PAGE).unwrap(), 0)).unwrap();
        assert_eq!(buffer.len(), 16 * PAGE);
        assert_content(&buffer, 0);
    }
    server.rule(Op::Read, EVERYWHERE, 10, Act::Short(1000));
    let parts: Vec<_> = (0..7).map(|_| pool.get(1234).unwrap()).collect();
    let parts = block_on(file.read_exact_vectored_at(parts, 5)).unwrap();
    let joined: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
    assert_eq!(joined.len(), 7 * 1234);
    assert_content(&joined, 5);
}

#[test]
fn f13_a_stream_gives_what_was_read_before_the_error() {
    let name = "f13_a_stream_gives_what_was_read_before_the_error";
    for depth in [1, 4] {
        let Some(server) = Server::or_skip(name, content(0, 16 * PAGE)) else { return };
        let bad = 6 * PAGE as u64;
        // The read of the second block stops in its middle, and cannot go on there.
        server.rule(Op::Read, bad - 1..bad, 1, Act::Short(2 * PAGE));
        server.rule(Op::Read, bad..bad + 1, usize::MAX, Act::Fail(libc::EIO));
        let (file, pool) = (open(&server), Pool::new(MIB));
        block_on(async {
            let (mut reader, mut read) = (file.reader(&pool).block(4 * PAGE).depth(depth), Vec::new());
            let error = loop {
                match reader.next().await.unwrap() {
                    Ok(piece) => read.extend_from_slice(&piece),
                    Err(error) => break error,
                }
            };
            assert_eq!((read.len() as u64, error.errno()), (bad, Some(libc::EIO)));
            assert_content(&read, 0);
            assert!(reader.next().await.is_none());
        });
        assert_eq!(pool.metrics().in_use, 0);
    }
}

#[test]
fn f13_the_tail_of_a_file_is_a_short_result_and_exact_is_an_error() {
    let folder = Folder::new();
    for len in [0, 1, 511, 512, 4095, 4096, 4097, 10_000] {
        let path = folder.file("data", &content(0, len));
        for direct in [false, true] {
            let file = ring_options()
                .read(true)
                .direct(direct)
                .buffered_fallback(true)
                .open_blocking(&path)
                .unwrap();
            for offset in [0, 1, 512, 4096, 4095, 9_999, 10_000, 1 << 40] {
                let expected = len.saturating_sub(offset).min(8192);
                // Filled with a byte that the file does not have.
                let mut buffer = vec![0xEE; 8192];
                buffer.clear();
                let got = block_on(file.read_at(buffer, offset as u64)).unwrap();
                assert_eq!(got.len(), expected, "{len} bytes, offset {offset}, direct {direct}");
                assert_content(&got, offset as u64);
                let exact = block_on(file.read_exact_at(Vec::with_capacity(8192), offset as u64));
                match exact {
                    Ok(buffer) => assert_eq!((buffer.len(), expected), (8192, 8192)),
                    Err(failed) => {
                        assert_eq!((failed.kind(), failed.done()), (ErrorKind::UnexpectedEof, expected));
                        assert_content(&failed.into_buffer(), offset as u64);
                    }
                }
            }
        }
    }
}

#[test]
fn f13_a_file_that_shrinks_during_a_read_gives_what_is_left() {
    let name = "f13_a_file_that_shrinks_during_a_read_gives_what_is_left";
    for direct in [false, true] {
        let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
        let file = ring_options().read(true).direct(direct).open_blocking(server.path()).unwrap();
        let pool = Pool::new(MIB);
        server.rule(Op::Read, EVERYWHERE, 1, Act::Short(3 * PAGE));
        server.rule(Op::Read, EVERYWHERE, 1, Act::Hold);
        block_on(async {
            let mut read = Box::pin(file.read_exact_at(pool.get(8 * PAGE).unwrap(), 0));
            assert!(support::poll_once(&mut read).await.is_pending());
            yield_until("a request at the server", || server.held() > 0).await;
            server.cut(5 * PAGE + 100);
            server.release();
            let failed = read.await.unwrap_err();
            assert_eq!((failed.kind(), failed.done()), (ErrorKind::UnexpectedEof, 5 * PAGE + 100));
            let buffer = failed.into_buffer();
            assert_eq!(buffer.len(), 5 * PAGE + 100);
            assert_content(&buffer, 0);
        });
    }
}

#[test]
fn f13_a_file_shorter_than_its_size_says_is_no_endless_read() {
    let name = "f13_a_file_shorter_than_its_size_says_is_no_endless_read";
    for direct in [false, true] {
        let Some(server) = Server::or_skip(name, content(0, 2 * PAGE + 100)) else { return };
        server.show_size(16 * PAGE as u64);
        let file = ring_options().read(true).direct(direct).open_blocking(server.path()).unwrap();
        let pool = Pool::new(MIB);
        let buffer = block_on(file.read_at(pool.get(4 * PAGE).unwrap(), 0)).unwrap();
        assert_eq!(buffer.len(), 2 * PAGE + 100, "direct {direct}");
        assert_content(&buffer, 0);
    }
}

#[test]
fn f14_a_full_disk_is_reported_with_the_bytes_written() {
    let name = "f14_a_full_disk_is_reported_with_the_bytes_written";
    let Some(disk) = Mount::tmpfs(name, MIB as u64) else { return };
    let path = disk.path().join("data");
    let pool = Pool::new(8 * MIB);
    block_on(async {
        let file = ring_options().read(true).write(true).create(true).open_blocking(&path).unwrap();
        let mut buffer = pool.get(4 * MIB).unwrap();
        buffer.extend_from_slice(&content(0, 4 * MIB));
        let failed = file.write_at(buffer, 0).await.unwrap_err();
        assert_eq!(failed.errno(), Some(libc::ENOSPC));
        assert!(failed.done() > 0 && failed.done() <= MIB, "{} bytes", failed.done());
        let (done, text) = (failed.done(), failed.to_string());
        assert!(text.contains("data") && text.contains(&done.to_string()), "{text}");
        assert_eq!(failed.into_buffer().len(), 4 * MIB, "the buffer comes back whole");
        let written = file.read_at(pool.get(4 * MIB).unwrap(), 0).await.unwrap();
        assert_eq!(written.len(), done);
        assert_content(&written, 0);
        // The next error is reported too, and the file is as usable as before.
        let failed = file.write_at(vec![1; PAGE], 2 * MIB as u64).await.unwrap_err();
        assert_eq!((failed.errno(), failed.done()), (Some(libc::ENOSPC), 0));
        file.write_at(vec![1; PAGE], 0).await.unwrap();
    });
}

#[test]
fn f14_short_writes_are_continued_until_all_is_written() {
    let name = "f14_short_writes_are_continued_until_all_is_written";
    let Some(server) = Server::blocking_or_skip(name, vec![0; 16 * PAGE]) else { return };
    let file = open(&server);
    let pool = Pool::new(MIB);
    server.rule(Op::Write, EVERYWHERE, 12, Act::Short(1000));
    let mut buffer = pool.get(8 * PAGE).unwrap();
    buffer.extend_from_slice(&content(0, 8 * PAGE));
    block_on(file.write_at(buffer, 0)).unwrap();
    assert_content(&server.data()[..8 * PAGE], 0);
    server.rule(Op::Write, EVERYWHERE, 12, Act::Short(777));
    let parts = (0..5).map(|i| content(8 * PAGE as u64 + i * 3000, 3000)).collect();
    block_on(file.write_vectored_at(parts, 8 * PAGE as u64)).unwrap();
    assert_content(&server.data()[..8 * PAGE + 15_000], 0);
}

/// On a server that answers later, io_uring itself continues with the rest.
#[test]
fn f14_a_short_direct_write_continues_where_it_stopped() {
    let name = "f14_a_short_direct_write_continues_where_it_stopped";
    for cut in [PAGE, 2 * PAGE, 1000] {
        let Some(server) = Server::blocking_or_skip(name, vec![0; 16 * PAGE]) else { return };
        let file = ring_options().write(true).direct(true).open_blocking(server.path()).unwrap();
        let pool = Pool::new(MIB);
        server.rule(Op::Write, EVERYWHERE, 3, Act::Short(cut));
        let mut buffer = pool.get(8 * PAGE).unwrap();
        buffer.extend_from_slice(&content(PAGE as u64, 8 * PAGE));
        let written = block_on(file.write_at(buffer, PAGE as u64));
        assert!(written.is_ok(), "cut at {cut}: {:?}, {:?}", written.map(drop), server.log());
        let data = server.data();
        assert!(data[PAGE..9 * PAGE] == content(PAGE as u64, 8 * PAGE), "cut at {cut}: {:?}", server.log());
        assert!(data[..PAGE] == [0; PAGE] && data[9 * PAGE..] == [0; 7 * PAGE], "{:?}", server.log());
    }
}

#[test]
fn f14_a_short_durable_write_is_synced_after_its_last_part() {
    let name = "f14_a_short_durable_write_is_synced_after_its_last_part";
    let Some(server) = Server::blocking_or_skip(name, vec![0; 16 * PAGE]) else { return };
    let mut options = ring_options();
    let file = options.write(true).durability(Durability::Fsync).open_blocking(server.path()).unwrap();
    server.rule(Op::Write, EVERYWHERE, 3, Act::Short(1000));
    server.rule(Op::Write, EVERYWHERE, 1, Act::Fail(libc::EINTR));
    block_on(file.write_durable_at(content(0, 4 * PAGE), 0)).unwrap();
    assert_content(&server.data()[..4 * PAGE], 0);
    assert_eq!(server.log().last(), Some(&(Op::Sync, 0, 0)), "{:?}", server.log());
    // If the sync is not supported, the write is not reported as durable.
    server.rule(Op::Sync, EVERYWHERE, 1, Act::Fail(libc::EIO));
    let failed = block_on(file.write_durable_at(content(0, PAGE), 0)).unwrap_err();
    assert_eq!(failed.errno(), Some(libc::EIO));
}

#[test]
fn f14_durable_writes_around_a_full_queue_are_synced_after_their_own_write() {
    let name = "f14_durable_writes_around_a_full_queue_are_synced_after_their_own_write";
    let Some(server) = Server::or_skip(name, vec![0; 1024 * PAGE]) else { return };
    let mut options = ring_options();
    let file =
        options.read(true).write(true).durability(Durability::Fsync).open_blocking(server.path()).unwrap();
    let entries = 8;
    for ahead in 0..entries + 2 {
        let server_log = server.log().len();
        let runtime = ringfile::Runtime::builder().threads(1).entries(entries).build().unwrap();
        let file = file.clone();
        let task = runtime.spawn(async move {
            // This number of reads takes places in the queue; then a write and its sync need two adjacent ones.
            let mut reads: Vec<_> =
                (0..ahead).map(|_| Box::pin(file.read_at(Vec::with_capacity(16), 0))).collect();
            for read in &mut reads {
                assert!(support::poll_once(read).await.is_pending());
            }
            let mut writes: Vec<_> = (0..20u64)
                .map(|i| Box::pin(file.write_durable_at(content(i * PAGE as u64, PAGE), i * PAGE as u64)))
                .collect();
            for write in &mut writes {
                assert!(support::poll_once(write).await.is_pending());
            }
            assert!(all(writes).await.into_iter().all(|result| result.is_ok()));
            assert!(all(reads).await.into_iter().all(|result| result.is_ok()));
        });
        support::must_end("durable writes around a full queue", move || task.join().unwrap());
        runtime.shutdown();
        let log = server.log().split_off(server_log);
        let (mut writes, mut syncs) = (0, 0);
        for (op, _, _) in log {
            match op {
                Op::Write => writes += 1,
                Op::Sync => {
                    syncs += 1;
                    assert!(syncs <= writes, "a sync before its write");
                }
                Op::Read | Op::Flush => {}
            }
        }
        assert_eq!((writes, syncs), (20, 20));
    }
}

#[test]
fn f15_a_write_of_more_than_4_gib_is_split_and_not_cut() {
    // /dev/null reads no byte, so the memory is never populated.
    let len = (4 << 30) + 12_345;
    let file = ring_options().write(true).open_blocking("/dev/null").unwrap();
    block_on(async {
        let before = thread_metrics();
        let buffer = file.write_at(vec![0_u8; len], 0).await.unwrap();
        assert_eq!(buffer.len(), len);
        let counts = thread_metrics() - before;
        if !is_without_ring() {
            assert_eq!((counts.ops, counts.bytes_written), (1, len as u64));
            assert!(counts.resubmitted >= 4);
        }
    });
}

#[test]
fn f15_a_read_of_more_than_4_gib_gets_every_byte() {
    let name = "f15_a_read_of_more_than_4_gib_gets_every_byte";
    const MARK: usize = 64 << 10;
    let len = (4 << 30) + MARK;
    let folder = Folder::new();
    let path = folder.path().join("data");
    let holes = std::fs::File::create(&path).unwrap();
    // One mark at the end, and one where a length that was cut to 32 bits would end.
    let marks = [MARK, 4 << 30];
    for at in marks {
        std::os::unix::fs::FileExt::write_all_at(&holes, &content(at as u64, MARK), at as u64).unwrap();
    }
    let file = ring_options().read(true).direct(true).buffered_fallback(true).open_blocking(&path).unwrap();
    if !file.is_direct() {
        return skip(name, "the temporary folder has no direct I/O, and 4 GiB of page cache are too much");
    }
    let Some(memory) = Folded::new(len) else { return skip(name, "4 GiB of addresses are not available") };
    let memory = block_on(file.read_exact_at(memory, 0)).unwrap();
    assert_eq!(memory.len, len);
    // The mapping repeats one MiB, so each place has the bytes that were written to it last.
    let seen = memory.first(MARK);
    assert_content(seen, marks[1] as u64);
    assert_eq!(seen[0], byte_at(4 << 30));
}

#[test]
fn f15_more_than_4_gib_in_every_form() {
    let name = "f15_more_than_4_gib_in_every_form";
    const MARK: usize = 64 << 10;
    let len = (4 << 30) + MARK;
    let folder = Folder::new();
    let path = folder.path().join("data");
    let holes = std::fs::File::create(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&holes, &content(4 << 30, MARK), 4 << 30).unwrap();
    let Some(mut memory) = Folded::new(len) else {
        return skip(name, "4 GiB of addresses are not available");
    };
    let base = ringfile::IoBufMut::as_mut_ptr(&mut memory);
    // SAFETY: the mapping belongs to the owner, and only lent buffers are used. One byte has several addresses, which
    // is harmless since it is only accessed after the read.
    let memory = unsafe { ringfile::RegisteredMemory::from_raw(base, len, memory) };
    for route in routes() {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .direct(true)
            .buffered_fallback(true)
            .route(route)
            .open_blocking(&path)
            .unwrap();
        if !file.is_direct() {
            return skip(
                name,
                "the temporary folder has no direct I/O, and 4 GiB of page cache are too much",
            );
        }
        let null = OpenOptions::new().write(true).route(route).open_blocking("/dev/null").unwrap();
        for form in [Form::Blocking, Form::Awaited, Form::Handles] {
            let (mut buffer, error) = form.read(&file, vec![(memory.lend(..).unwrap(), 0)]).remove(0);
            assert!(error.is_none(), "{form:?}, {route:?}: {}", error.unwrap());
            assert_eq!(buffer.len(), len, "{form:?}, {route:?}");
            // Each place has the bytes that were written to it last.
            assert_content(&buffer[..MARK], 4 << 30);
            buffer[..MARK].fill(0);
            if form != Form::Handles {
                let (buffer, error) = form.write(&null, vec![(buffer, 0)]).remove(0);
                assert!(error.is_none(), "{form:?}, {route:?}: {}", error.unwrap());
                assert_eq!(buffer.len(), len);
            }
        }
    }
}

/// Maps the same MiB again and again: much address space over little memory.
struct Folded {
    base: *mut u8,
    room: usize,
    len: usize,
}

// SAFETY: the mapping is this value's alone, and may be unmapped on any thread.
unsafe impl Send for Folded {}
// SAFETY: a shared reference only gives access to memory that is no longer written.
unsafe impl Sync for Folded {}

impl Folded {
    fn new(room: usize) -> Option<Self> {
        const CHUNK: usize = 64 << 20;
        let room_mapped = room.next_multiple_of(CHUNK);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of reserved addresses, over which parts are mapped of a new file of memory.
        unsafe {
            let memory = libc::memfd_create(c"folded".as_ptr(), 0);
            if memory < 0 || libc::ftruncate(memory, CHUNK as i64) != 0 {
                return None;
            }
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let base = libc::mmap(std::ptr::null_mut(), room_mapped, libc::PROT_NONE, flags, -1, 0);
            if base == libc::MAP_FAILED {
                return None;
            }
            for at in (0..room_mapped).step_by(CHUNK) {
                let part =
                    libc::mmap(base.add(at), CHUNK, access, libc::MAP_SHARED | libc::MAP_FIXED, memory, 0);
                assert_ne!(part, libc::MAP_FAILED);
            }
            libc::close(memory);
            Some(Self { base: base.cast(), room, len: 0 })
        }
    }

    fn first(&self, bytes: usize) -> &[u8] {
        // SAFETY: mapped readable, and nobody writes any more.
        unsafe { std::slice::from_raw_parts(self.base, bytes) }
    }
}

impl Drop for Folded {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's alone.
        unsafe { libc::munmap(self.base.cast(), self.room) };
    }
}

// SAFETY: the mapping stays where it is until the value is dropped.
unsafe impl ringfile::IoBuf for Folded {
    fn as_ptr(&self) -> *const u8 {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: as above; one byte has several addresses, which is harmless since it is only accessed after the read.
unsafe impl ringfile::IoBufMut for Folded {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.base
    }

    fn capacity(&self) -> usize {
        self.room
    }

    unsafe fn set_len(&mut self, len: usize) {
        self.len = len;
    }
}

#[test]
fn f30_an_error_of_one_operation_is_its_own() {
    let name = "f30_an_error_of_one_operation_is_its_own";
    let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
    let bad = 13 * PAGE as u64;
    server.rule(Op::Read, bad..bad + PAGE as u64, usize::MAX, Act::Fail(libc::EIO));
    server.rule(Op::Write, bad..bad + PAGE as u64, usize::MAX, Act::Fail(libc::EIO));
    let file = open(&server);
    let pool = Pool::new(MIB);
    block_on(async {
        let reads = (0..64).map(|page| file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64)).collect();
        for (page, result) in all(reads).await.into_iter().enumerate() {
            let offset = (page * PAGE) as u64;
            match result {
                Ok(buffer) => assert_content(&buffer, offset),
                Err(failed) => {
                    assert_eq!((offset, failed.errno(), failed.done()), (bad, Some(libc::EIO), 0));
                    assert_eq!(
                        (failed.error().offset(), failed.error().path()),
                        (Some(bad), Some(&*server.path()))
                    );
                }
            }
        }
        let writes = (0..64).map(|page| file.write_at(vec![9; PAGE], page * PAGE as u64)).collect();
        for (page, result) in all(writes).await.into_iter().enumerate() {
            assert_eq!(result.map_err(|failed| failed.errno()).is_err(), page == 13);
        }
        // A read that spans the bad page reports how far it got.
        let failed = file.read_exact_at(pool.get(64 * PAGE).unwrap(), 0).await.unwrap_err();
        assert_eq!(failed.errno(), Some(libc::EIO));
        assert!(failed.done() <= bad as usize);
    });
}

#[test]
fn f30_a_device_that_fails_in_part_gives_the_rest() {
    let name = "f30_a_device_that_fails_in_part_gives_the_rest";
    let Some(device) = Loop::over(name, &content(0, 4 * MIB)) else { return };
    let pool = Pool::new(8 * MIB);
    // The device keeps its size; reads beyond the end of its file fail.
    std::fs::File::options().write(true).open(&device.backing).unwrap().set_len(2 * MIB as u64).unwrap();
    if !device.fails_at(2 * MIB as u64) {
        return support::skip(name, "on this kernel (before 6.12) a loop device reads zeros beyond its file");
    }
    let file = ring_options().read(true).direct(true).open_blocking(device.device()).unwrap();
    block_on(async {
        let reads =
            (0..64u64).map(|i| file.read_at(pool.get(PAGE).unwrap(), i * (MIB as u64 / 16))).collect();
        for (i, result) in all(reads).await.into_iter().enumerate() {
            let offset = i as u64 * (MIB as u64 / 16);
            match result {
                Ok(buffer) => {
                    assert!(offset < 2 * MIB as u64, "offset {offset} lies beyond the file");
                    assert_eq!(buffer.len(), PAGE);
                    assert_content(&buffer, offset);
                }
                Err(failed) => {
                    assert!(offset >= 2 * MIB as u64, "offset {offset} lies within the file");
                    assert_eq!((failed.errno(), failed.done()), (Some(libc::EIO), 0));
                }
            }
        }
    });
}
