//! F49: an adaptive file is read, past the page cache and through it, while it is written, truncated or replaced, buffered
//! and directly, by this file, by another, by another process. A read sees every write that had returned before it began.
//!
//! `RINGFILE_STRESS_SECONDS` says how long the random part takes; 2 by default.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod support;

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringfile::{AllocateMode, Batch, File, OpenOptions, Pool, block_on};
use support::cache::drop_cache;
use support::{Folder, Random, skip};

const BLOCK: usize = 4096;
const BLOCKS: usize = 2048;
const LEN: usize = BLOCK * BLOCKS;

/// Each word of a block says which block it is, and its version.
fn word(block: usize, version: u64) -> u64 {
    (block as u64 + 1) << 40 | version
}

fn blocks(first: usize, count: usize, version: u64) -> Vec<u8> {
    let words = (first..first + count).flat_map(|block| [word(block, version); BLOCK / 8]);
    words.flat_map(u64::to_le_bytes).collect()
}

fn folder() -> Folder {
    Folder::inside(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

fn new_file(folder: &Folder) -> PathBuf {
    folder.file("data", &blocks(0, BLOCKS, 1))
}

fn open(path: &Path, write: bool) -> File {
    OpenOptions::new().read(true).write(write).adaptive(true).open(path).unwrap()
}

/// The ways to write.
enum Writer {
    /// By the file that is read, where that is the same, or by another adaptive or buffered one, or a direct one.
    Own(File),
    Plain(std::fs::File),
    Process {
        child: Child,
        stream: UnixStream,
    },
}

const CHILD: &str = "RINGFILE_COHERENCE_CHILD";

impl Writer {
    fn process(folder: &Folder, path: &Path) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let socket = folder.path().join(format!("socket-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let listener = UnixListener::bind(&socket).unwrap();
        let child = Command::new("/proc/self/exe")
            .args(["the_process_that_writes", "--exact"])
            .env(CHILD, format!("{}\n{}", socket.display(), path.display()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let stream = listener.accept().unwrap().0;
        Self::Process { child, stream }
    }

    fn direct(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).direct(true).buffered_fallback(true).open(path);
        Self::Own(file.unwrap())
    }

    fn plain(path: &Path) -> Self {
        Self::Plain(std::fs::OpenOptions::new().write(true).open(path).unwrap())
    }

    /// Writes whole blocks of one version, and returns when that has returned.
    fn write(&mut self, first: usize, count: usize, version: u64) {
        let offset = (first * BLOCK) as u64;
        match self {
            Self::Own(file) => {
                let mut buffer = Pool::new(1 << 20).get(count * BLOCK).unwrap();
                buffer.extend_from_slice(&blocks(first, count, version));
                block_on(file.write_at(buffer, offset)).unwrap();
            }
            Self::Plain(file) => file.write_all_at(&blocks(first, count, version), offset).unwrap(),
            Self::Process { stream, .. } => {
                let order = [first as u64, count as u64, version].map(u64::to_le_bytes).concat();
                stream.write_all(&order).unwrap();
                stream.read_exact(&mut [0]).unwrap();
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Self::Process { child, stream } = self {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            let _ = child.wait();
        }
    }
}

/// Not a test: what [`Writer::process`] starts. Writes as it is told to until nobody tells it any more, buffered and
/// directly in turn.
#[test]
fn the_process_that_writes() {
    let Ok(names) = std::env::var(CHILD) else { return };
    let (socket, path) = names.split_once('\n').unwrap();
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut writers = [Writer::plain(Path::new(path)), Writer::direct(Path::new(path))];
    let mut order = [0; 24];
    while stream.read_exact(&mut order).is_ok() {
        let [first, count, version] =
            [0, 8, 16].map(|at| u64::from_le_bytes(order[at..at + 8].try_into().unwrap()));
        writers[version as usize % 2].write(first as usize, count as usize, version);
        stream.write_all(&[1]).unwrap();
    }
}

/// Reads blocks and asserts that all are of this version.
fn assert_version(file: &File, first: usize, count: usize, version: u64) {
    let buffer =
        block_on(file.read_exact_at(Vec::with_capacity(count * BLOCK), (first * BLOCK) as u64)).unwrap();
    assert!(
        buffer == blocks(first, count, version),
        "blocks {first} to {} are not of version {version}",
        first + count
    );
}

#[test]
fn a_read_sees_every_write_that_has_returned() {
    let folder = folder();
    let path = new_file(&folder);
    for own_may_write in [true, false] {
        let file = open(&path, own_may_write);
        if !file.is_adaptive() {
            return skip("a_read_sees_every_write", "this kernel or file system has no adaptive files");
        }
        let mut writers = vec![
            Writer::plain(&path),
            Writer::direct(&path),
            Writer::Own(open(&path, true)),
            Writer::process(&folder, &path),
        ];
        if own_may_write {
            writers.push(Writer::Own(file.clone()));
        }
        for first in [0, 512] {
            // The first few are one stream; then what is ahead of it is written.
            for writer in &mut writers {
                writer.write(first, 128, 2);
                drop_cache(&path);
                (0..4).for_each(|at| assert_version(&file, first + at * 8, 8, 2));
                writer.write(first, 128, 3);
                (4..16).for_each(|at| assert_version(&file, first + at * 8, 8, 3));
                (0..3).for_each(|_| assert_version(&file, first, 128, 3));
                writer.write(first + 7, 1, 4);
                assert_version(&file, first + 7, 1, 4);
                assert_version(&file, first + 8, 100, 3);
            }
        }
    }
}

#[test]
fn a_read_sees_truncation_holes_and_growth() {
    let folder = folder();
    let path = new_file(&folder);
    for round in 0..2 {
        std::fs::write(&path, blocks(0, BLOCKS, 1)).unwrap();
        drop_cache(&path);
        let file = open(&path, true);
        let other = OpenOptions::new().write(true).open(&path).unwrap();
        let by = if round == 0 { &file } else { &other };
        let read = |first: usize, count: usize| {
            block_on(file.read_at(Vec::with_capacity(count * BLOCK), (first * BLOCK) as u64)).unwrap()
        };
        (0..8).for_each(|at| assert_version(&file, at * 16, 16, 1));
        block_on(by.allocate(AllocateMode::PunchHole, 130 * BLOCK as u64, 10 * BLOCK as u64)).unwrap();
        assert_eq!(read(128, 16)[..2 * BLOCK], blocks(128, 2, 1));
        assert_eq!(read(128, 16)[2 * BLOCK..12 * BLOCK], [0; 10 * BLOCK]);
        block_on(by.set_len((150 * BLOCK + 100) as u64)).unwrap();
        assert_eq!(read(144, 16), blocks(144, 7, 1)[..6 * BLOCK + 100]);
        assert_eq!(read(160, 16), b"");
        block_on(by.set_len(LEN as u64)).unwrap();
        assert_eq!(read(160, 16), [0; 16 * BLOCK]);
        let mut batch = Batch::new();
        batch.set_len(by, (140 * BLOCK) as u64);
        batch.barrier();
        batch.write(by, blocks(140, 4, 2), (140 * BLOCK) as u64);
        batch.run().into_iter().for_each(|done| assert!(done.result.is_ok()));
        assert_eq!(read(140, 16), blocks(140, 4, 2));
        // A file that replaces it is another one.
        let beside = folder.file("beside", &blocks(0, BLOCKS, 3));
        std::fs::rename(beside, &path).unwrap();
        assert_version(&file, 0, 100, 1);
        assert_version(&open(&path, false), 0, 100, 3);
    }
}

/// What may be in a block.
#[derive(Default)]
struct Known {
    /// The last write that has begun, and the last that has returned; a truncation counts as both.
    begun: AtomicU64,
    returned: AtomicU64,
    /// The truncation that made it zeros last.
    zeroed: AtomicU64,
}

/// What the writers of a stress share.
struct Model {
    blocks: Vec<Known>,
    version: AtomicU64,
    /// Writers write 64 blocks at most, in one of these.
    regions: Vec<Mutex<()>>,
    /// Odd while the file is truncated, when nothing is told of what reads give.
    truncations: AtomicU64,
    over: AtomicBool,
}

const REGION: usize = 64;

impl Model {
    fn new() -> Self {
        let known = || Known { begun: 1.into(), returned: 1.into(), zeroed: 0.into() };
        Self {
            blocks: (0..BLOCKS).map(|_| known()).collect(),
            version: AtomicU64::new(2),
            regions: (0..BLOCKS / REGION).map(|_| Mutex::default()).collect(),
            truncations: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || std::thread::panicking()
    }

    fn write(&self, random: &mut Random, writer: &mut Writer) {
        let region = random.below(self.regions.len() as u64) as usize;
        let _alone = self.regions[region].lock().unwrap_or_else(PoisonError::into_inner);
        let first = random.below(REGION as u64) as usize;
        let count = 1 + random.below((REGION - first) as u64) as usize;
        let first = region * REGION + first;
        let version = self.version.fetch_add(1, Ordering::SeqCst);
        let known = &self.blocks[first..first + count];
        known.iter().for_each(|block| block.begun.store(version, Ordering::SeqCst));
        writer.write(first, count, version);
        known.iter().for_each(|block| block.returned.store(version, Ordering::SeqCst));
    }

    fn truncate(&self, random: &mut Random, file: &File) {
        let _alone: Vec<_> =
            self.regions.iter().map(|region| region.lock().unwrap_or_else(PoisonError::into_inner)).collect();
        self.truncations.fetch_add(1, Ordering::SeqCst);
        let cut = random.below(BLOCKS as u64) as usize;
        block_on(file.set_len((cut * BLOCK) as u64)).unwrap();
        block_on(file.set_len(LEN as u64)).unwrap();
        let version = self.version.fetch_add(1, Ordering::SeqCst);
        for block in &self.blocks[cut..] {
            for at in [&block.begun, &block.returned, &block.zeroed] {
                at.store(version, Ordering::SeqCst);
            }
        }
        self.truncations.fetch_add(1, Ordering::SeqCst);
    }

    /// Reads by `read`, and looks at each word of what that gave.
    fn read(&self, first: usize, count: usize, read: impl FnOnce() -> Vec<u8>) {
        let truncations = self.truncations.load(Ordering::SeqCst);
        let before: Vec<u64> = self.blocks[first..first + count]
            .iter()
            .map(|block| block.returned.load(Ordering::SeqCst))
            .collect();
        let got = read();
        let after: Vec<[u64; 2]> = self.blocks[first..first + count]
            .iter()
            .map(|block| [&block.begun, &block.zeroed].map(|at| at.load(Ordering::SeqCst)))
            .collect();
        if truncations % 2 == 1 || truncations != self.truncations.load(Ordering::SeqCst) {
            return;
        }
        assert_eq!(got.len(), count * BLOCK);
        for (at, bytes) in got.chunks_exact(8).enumerate() {
            let index = at * 8 / BLOCK;
            let got = u64::from_le_bytes(bytes.try_into().unwrap());
            let version = match got {
                0 => after[index][1],
                got => got & 0xff_ffff_ffff,
            };
            let block = first + index;
            assert!(got == 0 || got >> 40 == block as u64 + 1, "{got:#x} in block {block}");
            let (before, after) = (before[index], after[index][0]);
            assert!(
                before <= version && version <= after,
                "block {block}, word {}: version {version} ({got:#x}); {before} had returned before, {after} had begun",
                at % (BLOCK / 8)
            );
        }
    }
}

fn seconds() -> u64 {
    std::env::var("RINGFILE_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

#[test]
fn readers_of_all_kinds_see_what_writers_of_all_kinds_have_written() {
    let folder = folder();
    let path = new_file(&folder);
    drop_cache(&path);
    let (for_writing, for_reading) = (open(&path, true), open(&path, false));
    let seed = Random::new().below(1 << 32);
    let model = Model::new();
    let mut writers = [
        Writer::plain(&path),
        Writer::direct(&path),
        Writer::Own(for_writing.clone()),
        Writer::process(&folder, &path),
    ];
    let end = Instant::now() + Duration::from_secs(seconds());
    let began = Instant::now();
    // Time and again nobody writes for so long that what was read ahead is trusted.
    let is_quiet = || began.elapsed().as_secs() % 12 >= 2;
    std::thread::scope(|scope| {
        let (model, path) = (&model, &path);
        for (number, writer) in writers.iter_mut().enumerate() {
            let mut random = Random::from_seed(seed + number as u64);
            let truncator = open(path, true);
            scope.spawn(move || {
                while !model.is_over() {
                    if is_quiet() {
                        std::thread::sleep(Duration::from_millis(10));
                        // Now and then one write after all.
                        if random.below(2000) > 0 {
                            continue;
                        }
                    }
                    match random.below(100) {
                        0 if number == 0 => model.truncate(&mut random, &truncator),
                        1 => drop_cache(path),
                        _ => model.write(&mut random, writer),
                    }
                }
            });
        }
        for (number, file) in [&for_writing, &for_reading, &for_reading].into_iter().enumerate() {
            let mut random = Random::from_seed(seed + 100 + number as u64);
            scope.spawn(move || {
                let pool = Pool::new(16 << 20);
                let mut next = 0;
                while !model.is_over() {
                    let count = 1 + random.below(32) as usize;
                    // Streams, with jumps.
                    if random.below(20) == 0 || next + count > BLOCKS {
                        next = random.below((BLOCKS - count) as u64 + 1) as usize;
                    }
                    let (first, offset, len) = (next, (next * BLOCK) as u64, count * BLOCK);
                    next += count;
                    model.read(first, count, || match random.below(4) {
                        0 => {
                            let mut batch = Batch::new();
                            batch.read(file, pool.get(len).unwrap(), offset);
                            let done = batch.run().pop().unwrap();
                            assert!(done.result.is_ok(), "{:?}", done.result);
                            done.buffer.unwrap().to_vec()
                        }
                        1 => futures::executor::block_on(file.read_at(Vec::with_capacity(len), offset))
                            .unwrap(),
                        _ => block_on(file.read_at(Vec::with_capacity(len), offset)).unwrap(),
                    });
                }
            });
        }
        while Instant::now() < end && !model.is_over() {
            std::thread::sleep(Duration::from_millis(20));
        }
        model.over.store(true, Ordering::Relaxed);
    });
    let counts = ringfile::metrics();
    println!("{} bytes that were read ahead were used, {} were not", counts.ahead_used, counts.ahead_unused);
}
