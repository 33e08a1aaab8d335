//! Batches over direct files that turn buffered while their operations are under way (F16, F18).

use std::future::IntoFuture;

use crate::support::fuse::{Act, Op, Server};
use crate::support::{assert_content, content, in_child, must_end, ring_options, wait_for};
use ringfile::{Batch, File, OpenOptions, Pool, Route};

const PAGE: usize = 4096;
const EVERYWHERE: std::ops::Range<u64> = 0..u64::MAX;

/// Returns a direct file that may turn buffered.
fn open(mut options: OpenOptions, server: &Server) -> File {
    let file = options.read(true).direct(true).buffered_fallback(true).open_blocking(server.path()).unwrap();
    assert!(file.is_direct());
    file
}

#[track_caller]
fn assert_read(done: &ringfile::Completion, offset: u64, len: usize) {
    assert_eq!(*done.result.as_ref().unwrap(), len);
    let buffer = done.buffer.as_ref().unwrap();
    assert_eq!(buffer.len(), len);
    assert_content(buffer, offset);
}

#[test]
fn f16_an_unaligned_read_in_flight_while_the_file_turns_buffered_gives_its_own_bytes() {
    let name = "f16_an_unaligned_read_in_flight_while_the_file_turns_buffered_gives_its_own_bytes";
    let Some(server) = Server::or_skip(name, content(0, 8 * PAGE)) else { return };
    // One refusal makes the file buffered while a chunk of the other read is at the server.
    server.direct_rule(Op::Read, 0..PAGE as u64, 1, Act::Fail(libc::EINVAL));
    server.rule(Op::Read, PAGE as u64..2 * PAGE as u64, 1, Act::Hold);
    let file = open(ring_options(), &server);
    std::thread::scope(|scope| {
        let (server, file) = (&server, &file);
        let batch = scope.spawn(move || {
            let mut batch = Batch::new();
            batch.add(file.read_at(Pool::new(1 << 20).get(PAGE).unwrap(), 0));
            batch.add(file.read_at(Vec::with_capacity(100), PAGE as u64 + 300));
            batch.run()
        });
        server.wait_held(1);
        // Its batch may wait for both reads before it handles either.
        wait_for("the refusal", || server.log().contains(&(Op::Read, 0, 0)));
        server.release();
        let results = batch.join().unwrap();
        assert!(!file.is_direct());
        assert_read(&results[0], 0, PAGE);
        assert_read(&results[1], PAGE as u64 + 300, 100);
    });
}

/// The reads are done by one worker, which begins the second after the first has made the file buffered.
#[test]
fn f16_an_unaligned_read_that_waits_while_the_file_turns_buffered_gives_its_own_bytes() {
    let name = "f16_an_unaligned_read_that_waits_while_the_file_turns_buffered_gives_its_own_bytes";
    if !in_child(name) {
        return;
    }
    let Some(server) = Server::or_skip(name, content(0, 8 * PAGE)) else { return };
    server.direct_rule(Op::Read, EVERYWHERE, usize::MAX, Act::Fail(libc::EINVAL));
    ringfile::runtime::set_worker_threads(1);
    let mut options = OpenOptions::new();
    options.route(Route::Workers);
    let file = open(options, &server);
    let mut batch = Batch::new();
    batch.add(file.read_at(Pool::new(1 << 20).get(PAGE).unwrap(), 0));
    batch.add(file.read_at(Vec::with_capacity(100), 300));
    let results = batch.run();
    assert_read(&results[0], 0, PAGE);
    assert_read(&results[1], 300, 100);
    assert!(!file.is_direct());
}

#[test]
fn f16_unaligned_reads_of_a_batch_turn_buffered_where_allowed() {
    let name = "f16_unaligned_reads_of_a_batch_turn_buffered_where_allowed";
    for merged in [false, true] {
        for run in [Batch::run, |batch: Batch| futures::executor::block_on(batch.into_future())] {
            let Some(server) = Server::or_skip(name, content(0, 64 * PAGE)) else { return };
            server.direct_rule(Op::Read, EVERYWHERE, usize::MAX, Act::Fail(libc::EINVAL));
            let file = open(ring_options(), &server);
            let pool = Pool::new(1 << 20);
            let mut batch = if merged { Batch::new().merge_reads(PAGE) } else { Batch::new() };
            for i in 0..8 {
                batch.add(file.read_at(pool.get(10_000).unwrap(), i * 7777 + 1));
            }
            let results = must_end("a batch that turns buffered", move || run(batch));
            for (i, done) in results.iter().enumerate() {
                assert_read(done, i as u64 * 7777 + 1, 10_000);
            }
            assert!(!file.is_direct());
        }
    }
}
