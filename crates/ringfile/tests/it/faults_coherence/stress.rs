//! The random part: several files that are read in all ways while they are written in all ways.
//!
//! Data that was read ahead is trusted only once the file has been unchanged for 5 seconds. So each file goes through
//! cycles: it is written, then left alone, then read by streams, which continue into the writes of the next cycle.

use crate::support::handles::Handles as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringfile::metrics::Metrics;
use ringfile::queue::ReadRequest;
use ringfile::{Batch, File, Pool, Queue, block_on, metrics};

use super::model::Model;
use super::writer::Writer;
use super::{BLOCK, BLOCKS, folder, new_file, open};
use crate::support::cache::{cache, drop_cache, is_read_ahead};
use crate::support::{Folder, Random, in_child, patience, skip};

/// Their cycles are staggered, so that streams always read one of them.
const FILES: u64 = 4;
const CYCLE: u64 = 8000;
const WRITTEN_UNTIL: u64 = 1200;
const STREAMS_FROM: u64 = 6800;
const READERS: u64 = 3;
/// The number of blocks that are read again and again.
const HOT: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Written,
    LeftAlone,
    Streams,
}

struct Shared {
    files: Vec<Stressed>,
    began: Instant,
    over: AtomicBool,
}

/// A stream that continues in a later cycle: data ahead of it was read before that cycle's writes.
struct Paused {
    cycle: u64,
    file: File,
    next: usize,
}

struct Stressed {
    number: u64,
    path: PathBuf,
    model: Model,
    /// A handle that is also used for writing.
    for_writing: File,
    /// A handle that several readers share, until one of them opens the file again, which restarts admission.
    for_reading: Mutex<File>,
}

impl Shared {
    fn new(folder: &Folder) -> Self {
        let file = |number| {
            let path = new_file(folder, &format!("data-{number}"));
            let (for_writing, for_reading) = (open(&path, true), Mutex::new(open(&path, false)));
            Stressed { number, path, model: Model::new(), for_writing, for_reading }
        };
        let files = (0..FILES).map(file).collect();
        Self { files, began: Instant::now(), over: AtomicBool::new(false) }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || std::thread::panicking()
    }

    fn phase(&self, file: &Stressed) -> Phase {
        self.cycle_and_phase(file).1
    }

    fn cycle_and_phase(&self, file: &Stressed) -> (u64, Phase) {
        let elapsed = self.began.elapsed().as_millis() as u64 + file.number * CYCLE / FILES;
        let phase = match elapsed % CYCLE {
            0..WRITTEN_UNTIL => Phase::Written,
            STREAMS_FROM.. => Phase::Streams,
            _ => Phase::LeftAlone,
        };
        (elapsed / CYCLE, phase)
    }

    /// Writes files that are in their writing phase, each time in one way.
    fn write(&self, number: u64, writers: &mut [Writer], mut random: Random) {
        let truncators: Vec<File> = self.files.iter().map(|file| open(&file.path, true)).collect();
        while !self.is_over() {
            let at = random.below(FILES) as usize;
            let file = &self.files[at];
            if self.phase(file) != Phase::Written {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            match random.below(100) {
                0 if number == 0 => file.model.truncate(&mut random, &truncators[at]),
                1 => drop_cache(&file.path),
                _ => file.model.write(&mut random, &mut writers[at]),
            }
        }
    }

    fn read(&self, mut random: Random) {
        let pool = Pool::new(16 << 20);
        let mut paused: Vec<Option<Paused>> = self.files.iter().map(|_| None).collect();
        while !self.is_over() {
            let at = random.below(FILES) as usize;
            let (file, paused) = (&self.files[at], &mut paused[at]);
            match self.cycle_and_phase(file) {
                (cycle, Phase::Streams) if random.below(4) == 0 => {
                    file.pause_or_go_on(&mut random, cycle, paused, &pool);
                }
                (_, Phase::LeftAlone) => {
                    // Reads blocks that other threads have read too, so that they get cached.
                    let handle = file.handle(&mut random);
                    for _ in 0..16 {
                        let first = random.below(HOT as u64 / 4) as usize * 4;
                        file.read(&handle, first, 4, random.below(6), &pool);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                (_, Phase::Written | Phase::Streams) => {
                    file.read_stream(&mut random, &pool, || self.is_over());
                }
            }
        }
    }
}

impl Stressed {
    fn handle(&self, random: &mut Random) -> File {
        if random.below(6) == 0 {
            return self.for_writing.clone();
        }
        let mut handle = self.for_reading.lock().unwrap_or_else(PoisonError::into_inner);
        if random.below(3) == 0 {
            *handle = open(&self.path, false);
        }
        handle.clone()
    }

    /// Reads a stream from some offset, usually to the end of the file.
    fn read_stream(&self, random: &mut Random, pool: &Pool, is_over: impl Fn() -> bool) {
        let handle = self.handle(random);
        match random.below(4) {
            0 | 1 => drop_cache(&self.path),
            2 => cache(&self.path, random.below(BLOCKS as u64 - 64) as usize * BLOCK, 64 * BLOCK),
            _ => {}
        }
        let way = if random.below(2) == 0 { Some(random.below(2)) } else { None };
        let mut next = random.below(BLOCKS as u64 / 2) as usize;
        while next < BLOCKS && !is_over() {
            let count = (1 + random.below(32) as usize).min(BLOCKS - next);
            self.read(&handle, next, count, way.unwrap_or_else(|| random.below(7)), pool);
            next += count;
            if random.below(200) == 0 {
                next = random.below(BLOCKS as u64) as usize;
            }
        }
    }

    fn pause_or_go_on(&self, random: &mut Random, cycle: u64, paused: &mut Option<Paused>, pool: &Pool) {
        drop_cache(&self.path);
        let (file, mut next) = match paused.take_if(|paused| paused.cycle < cycle) {
            Some(Paused { file, next, .. }) => (file, next),
            None => (open(&self.path, false), random.below(BLOCKS as u64 / 2) as usize),
        };
        for _ in 0..16 {
            self.read(&file, next, 16, random.below(2), pool);
            next += 16;
        }
        *paused = Some(Paused { cycle, file, next }).filter(|paused| paused.next + 256 <= BLOCKS);
    }

    /// Reads in one of several ways, and asserts that the model allows the result.
    fn read(&self, file: &File, first: usize, count: usize, way: u64, pool: &Pool) {
        let (offset, len) = ((first * BLOCK) as u64, count * BLOCK);
        self.model.read(first, count, || match way {
            0 => futures::executor::block_on(file.read_at(Vec::with_capacity(len), offset)).unwrap(),
            1 | 2 => block_on(file.read_at(pool.get(len).unwrap(), offset)).unwrap().to_vec(),
            3 => {
                let buffers = (0..count).map(|_| pool.get(BLOCK).unwrap()).collect();
                let buffers = block_on(file.read_vectored_at(buffers, offset)).unwrap();
                buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect()
            }
            4 => {
                let mut batch = Batch::new();
                batch.add(file.read_at(pool.get(len).unwrap(), offset));
                let done = batch.run().pop().unwrap();
                assert!(done.result.is_ok(), "{:?}", done.result);
                done.buffer.unwrap().to_vec()
            }
            5 => {
                // One of them may be cached, and another one not.
                let blocks = first..first + count;
                let read = |block| ReadRequest::new(pool.get(BLOCK).unwrap(), (block * BLOCK) as u64);
                let mut requests: Vec<_> = blocks.map(read).collect();
                Queue::new().read_many(file, &mut requests).unwrap();
                let read = |request: ReadRequest| {
                    assert!(request.result.is_ok(), "{:?}", request.result);
                    request.buffer.to_vec()
                };
                requests.into_iter().flat_map(read).collect()
            }
            _ => {
                let mut queue = Queue::new();
                queue.add(file.read_at(pool.get(len).unwrap(), offset), 0);
                let done = queue.end();
                assert!(done.result.is_ok(), "{:?}", done.result);
                done.buffer.unwrap().to_vec()
            }
        });
    }
}

fn seconds() -> u64 {
    std::env::var("RINGFILE_TEST_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

#[test]
fn f49_readers_of_all_kinds_see_what_writers_of_all_kinds_have_written() {
    if !in_child("f49_readers_of_all_kinds_see_what_writers_of_all_kinds_have_written") {
        return;
    }
    let folder = folder();
    let shared = Shared::new(&folder);
    let first = &shared.files[0];
    if !first.for_writing.is_adaptive() {
        return skip("f49_readers_of_all_kinds", "this kernel or file system has no adaptive files");
    }
    let seed = Random::new().below(1 << 32);
    let before = metrics();
    let each = |make: &dyn Fn(&Stressed) -> Writer| shared.files.iter().map(make).collect::<Vec<_>>();
    let mut writers = [
        each(&|file| Writer::plain(&file.path)),
        each(&|file| Writer::direct(&file.path)),
        each(&|file| Writer::Own(file.for_writing.clone())),
        each(&|file| Writer::process(&folder, &file.path)),
    ];
    let expects_ahead = is_read_ahead(folder.path()) && seconds() * 1000 > CYCLE;
    let end = shared.began + Duration::from_secs(seconds());
    let latest = end + 3 * patience();
    std::thread::scope(|scope| {
        let shared = &shared;
        for (writers, number) in writers.iter_mut().zip(0..) {
            scope.spawn(move || shared.write(number, writers, Random::from_seed(seed + number)));
        }
        for number in 0..READERS {
            scope.spawn(move || shared.read(Random::from_seed(seed + 100 + number)));
        }
        // Continues for longer on a machine that is too slow to have taken every way by then.
        let is_enough =
            |now| now >= latest || now >= end && has_taken_each_way(metrics() - before, expects_ahead);
        while !is_enough(Instant::now()) && !shared.is_over() {
            std::thread::sleep(Duration::from_millis(20));
        }
        shared.over.store(true, Ordering::Relaxed);
    });
    drop(shared);
    let counts = metrics() - before;
    println!(
        "{} hits, {} misses, {} in part, {} admitted; {} bytes read ahead were used, {} were not",
        counts.cache_hits,
        counts.cache_misses,
        counts.cache_partial,
        counts.cache_admitted,
        counts.ahead_used,
        counts.ahead_unused
    );
    assert!(has_taken_each_way(counts, expects_ahead));
}

/// Returns whether reads have taken every possible way. A read of data that nobody had read before only counts as a
/// miss.
fn has_taken_each_way(counts: Metrics, expects_ahead: bool) -> bool {
    let Metrics { cache_hits, cache_partial, cache_misses, cache_admitted, ahead_used, ahead_unused, .. } =
        counts;
    cache_hits > 0
        && cache_admitted > 0
        && cache_partial > 0
        && cache_misses > cache_partial + cache_admitted
        && (!expects_ahead || ahead_used > 0 && ahead_unused > 0)
}
