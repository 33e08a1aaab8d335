//! Batches and reads with handles at random, compared with their expected results: on every route, with barriers,
//! merged, failing, dropped half way and moved to other threads (F02, F04, F05, F08).

use std::future::{Future, IntoFuture};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use crate::support::forms::routes;
use crate::support::handles::Handles as _;
use crate::support::{Folder, Random, assert_content, byte_at, content, must_end, poll_once, wait_for};
use ringfile::queue::BatchRun;
use ringfile::{Batch, Completion, File, OpenOptions, Pool, Queue, block_on, metrics};

const PAGE: usize = 4096;
const LASTS: Duration = Duration::from_secs(3);

/// Opens the file once for each route that is available here.
fn files(path: &Path, options: &mut OpenOptions) -> Vec<File> {
    routes().map(|route| options.route(route).open_blocking(path).unwrap()).collect()
}

fn one_of<'a, T>(random: &mut Random, list: &'a [T]) -> &'a T {
    &list[random.below(list.len() as u64) as usize]
}

/// A read in a random batch.
struct Asked {
    /// Reads a file that is not open for reading.
    is_bad: bool,
    offset: u64,
    len: usize,
    /// The number of barriers before it.
    part: usize,
}

const SIZE: usize = 256 * PAGE;

fn ask(random: &mut Random, part: usize) -> Asked {
    let len = if random.below(20) == 0 { 0 } else { random.below(9000) as usize };
    Asked { is_bad: len > 0 && random.below(60) == 0, offset: random.below(SIZE as u64 + 5000), len, part }
}

/// Fails if a result differs from the expected one.
fn check(asked: &[Asked], results: Vec<Completion>, stops: bool) {
    assert_eq!(results.len(), asked.len());
    let failed_part = asked.iter().find(|asked| asked.is_bad).map(|asked| asked.part);
    for (i, (done, asked)) in results.into_iter().zip(asked).enumerate() {
        let buffer = done.buffer.unwrap();
        let is_after = failed_part.is_some_and(|part| part < asked.part);
        match done.result {
            Ok(len) => {
                assert!(!asked.is_bad && !is_after, "{i}: a barrier was not kept");
                let there = asked.len.min(SIZE.saturating_sub(asked.offset as usize));
                // A vector may have more capacity than was requested.
                assert!(len == buffer.len() && len >= there, "{i}: {len} of {there}");
                assert!(asked.offset as usize + len <= SIZE.max(asked.offset as usize), "{i}");
                assert_content(&buffer, asked.offset);
            }
            Err(error) => {
                assert!(buffer.is_empty(), "{i}: a failed read shows bytes");
                if error.errno() == Some(libc::EBADF) {
                    assert!(asked.is_bad && !is_after, "{i}: {error}");
                } else {
                    assert_eq!(error.errno(), Some(libc::ECANCELED), "{i}: {error}");
                    assert!(is_after || stops && failed_part.is_some(), "{i}: {error}");
                }
            }
        }
    }
}

#[test]
fn random_batches_return_their_bytes_keep_barriers_and_stop_on_request() {
    must_end("random batches", || {
        let folder = Folder::new();
        let path = folder.file("data", &content(0, SIZE));
        let good = files(&path, OpenOptions::new().read(true));
        let bad = files(&path, OpenOptions::new().write(true));
        let pool = Pool::new(64 << 20);
        let mut random = Random::new();
        let began = Instant::now();
        while began.elapsed() < LASTS {
            let stops = random.below(3) == 0;
            let mut batch = Batch::new().depth(1 + random.below(40) as usize).stop_on_error(stops);
            if random.below(2) == 0 {
                batch = batch.merge_reads(random.below(20_000) as usize);
            }
            let (mut asked, mut part) = (Vec::new(), 0);
            for _ in 0..random.below(120) {
                if random.below(15) == 0 {
                    batch.barrier();
                    part += 1;
                }
                let read = ask(&mut random, part);
                let file = one_of(&mut random, if read.is_bad { &bad } else { &good });
                match random.below(8) {
                    0 => batch.add(file.read_at(Vec::with_capacity(read.len), read.offset)),
                    _ if read.len == 0 => batch.add(file.read_at(Vec::new(), read.offset)),
                    _ => batch.add(file.read_at(pool.get(read.len).unwrap(), read.offset)),
                };
                asked.push(read);
            }
            let results = match random.below(3) {
                0 => batch.run(),
                1 => futures::executor::block_on(batch.into_future()),
                _ => block_on(batch.into_future()),
            };
            check(&asked, results, stops);
            assert_eq!(pool.metrics().in_use, 0);
        }
        assert_eq!(metrics().stray, 0);
    });
}

/// Asserts that a file which others truncate and rewrite gives its own bytes, or zeros of a page that was just cut off.
#[track_caller]
fn assert_own(done: Completion, offset: u64) {
    let buffer = done.buffer.unwrap();
    match done.result {
        Ok(len) => {
            assert_eq!(len, buffer.len());
            let is_own = |(i, &byte): (usize, &u8)| byte == 0 || byte == byte_at(offset + i as u64);
            assert!(buffer.iter().enumerate().all(is_own), "wrong bytes at {offset}");
        }
        Err(error) => {
            assert_eq!(error.errno(), Some(libc::ECANCELED), "{error}");
            assert!(buffer.is_empty());
        }
    }
}

fn begin(run: &mut BatchRun) -> bool {
    Pin::new(run).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Ends a batch in one of several ways. Returns the results if there are any.
fn end(batch: Batch, random: &mut Random) -> Vec<Completion> {
    let way = random.below(4);
    if way == 0 {
        return batch.run();
    }
    let mut run = batch.into_future();
    let is_over = match way {
        1 => block_on(async { poll_once(&mut run).await.is_ready() }),
        _ => begin(&mut run),
    };
    if is_over {
        return Vec::new();
    }
    match random.below(3) {
        0 => futures::executor::block_on(run),
        1 => std::thread::scope(|scope| scope.spawn(|| futures::executor::block_on(run)).join().unwrap()),
        _ => {
            (0..random.below(1000)).for_each(|_| std::hint::spin_loop());
            drop(run);
            Vec::new()
        }
    }
}

/// Runs batches and reads on one thread, until `is_over`.
fn disturb(files: &[File], pool: &Pool, random: &mut Random, mut is_over: impl FnMut() -> bool) {
    let mut open = Queue::new();
    while !is_over() {
        let mut batch = Batch::new().depth(1 + random.below(20) as usize);
        if random.below(2) == 0 {
            batch = batch.merge_reads(5000);
        }
        let offsets: Vec<u64> = (0..random.below(30)).map(|_| random.below(64 * PAGE as u64)).collect();
        for &offset in &offsets {
            let (file, len) = (one_of(random, files), 1 + random.below(9000) as usize);
            match random.below(3) {
                // Filled with a byte that the file does not have.
                0 => batch.add(file.read_at(vec![0xEE; len], offset)),
                _ => batch.add(file.read_at(pool.get(len).unwrap(), offset)),
            };
        }
        for (done, offset) in end(batch, random).into_iter().zip(offsets) {
            assert_own(done, offset);
        }
        if random.below(4) > 0 {
            continue;
        }
        let handles: Vec<_> = (0..10)
            .map(|_| {
                let buffer = pool.get(1 + random.below(5000) as usize).unwrap();
                let offset = random.below(64 * PAGE as u64);
                (open.start(one_of(random, files), buffer, offset), offset)
            })
            .collect();
        for (handle, offset) in handles {
            match random.below(3) {
                0 => assert_own(open.wait_for(handle).unwrap(), offset),
                1 => assert_own(open.abort(handle).unwrap(), offset),
                _ => {}
            }
        }
        if random.below(4) == 0 {
            open = Queue::new();
        }
    }
}

#[test]
fn batches_dropped_and_moved_over_a_shrinking_file_return_their_own_bytes() {
    must_end("batches dropped and moved", || {
        let folder = Folder::new();
        let all = content(0, 64 * PAGE);
        let path = folder.file("data", &all);
        let pool = Pool::new(64 << 20);
        let mut random = Random::new();
        let began = Instant::now();
        let is_over = || began.elapsed() > LASTS;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (path, pool, seed) = (&path, &pool, random.below(u64::from(u32::MAX)));
                scope.spawn(move || {
                    let files = files(path, OpenOptions::new().read(true));
                    disturb(&files, pool, &mut Random::from_seed(seed), is_over);
                });
            }
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            while !is_over() {
                file.set_len(10 * PAGE as u64 + 77).unwrap();
                std::thread::sleep(Duration::from_micros(300));
                file.set_len(0).unwrap();
                file.write_all_at(&all, 0).unwrap();
            }
        });
        wait_for("the memory", || pool.metrics().in_use == 0);
        assert_eq!(metrics().stray, 0);
    });
}
