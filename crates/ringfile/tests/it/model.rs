//! Compares every call of `File` with a model: random offsets, lengths, alignments and kinds of buffer, direct and
//! buffered, on several file systems. The model is a vector of bytes; at the end the standard library reads the file
//! again.
//!
//! `RINGFILE_TEST_SEED` repeats a run, `RINGFILE_TEST_MODEL_STEPS` makes it longer.

use std::future::Future;
use std::io::ErrorKind;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::LazyLock;

use crate::support;
use crate::support::mounts::Mount;
use crate::support::{Random, TempPath, must_end, page_size};
use bytes::{Bytes, BytesMut};
use ringfile::fs::{Advice, AllocateMode};
use ringfile::{
    BufResult, Buffer, Durability, Error, File, IoBuf, IoBufMut, OpenOptions, Pool, RegisteredMemory, Route,
    WhenFull, block_on, spawn,
};

/// Files grow to about this size.
const LARGE: usize = 1 << 20;

/// The pattern from which writes take pieces at any alignment.
static PATTERN: LazyLock<&'static [u8]> = LazyLock::new(|| {
    let mut rng = Random::new();
    Box::leak(rng.bytes(2 * LARGE).into_boxed_slice())
});

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Pooled,
    Unregistered,
    Outside,
    SplitOff,
    SplitTo,
    Lent,
    Vec,
    Boxed,
    BytesMut,
    Frozen,
    Static,
    Buffers,
    Vecs,
    ManyBytes,
}

const READABLE: [Kind; 11] = [
    Kind::Pooled,
    Kind::Unregistered,
    Kind::Outside,
    Kind::SplitOff,
    Kind::SplitTo,
    Kind::Lent,
    Kind::Vec,
    Kind::Boxed,
    Kind::BytesMut,
    Kind::Buffers,
    Kind::Vecs,
];
const WRITABLE: [Kind; 14] = [
    Kind::Pooled,
    Kind::Unregistered,
    Kind::Outside,
    Kind::SplitOff,
    Kind::SplitTo,
    Kind::Lent,
    Kind::Vec,
    Kind::Boxed,
    Kind::BytesMut,
    Kind::Frozen,
    Kind::Static,
    Kind::Buffers,
    Kind::Vecs,
    Kind::ManyBytes,
];

/// The kinds of buffers.
struct Memory {
    pool: Pool,
    unregistered: Pool,
    full: Pool,
    lender: RegisteredMemory,
    /// The distance of the lender's memory from the next multiple of 4096.
    to_aligned: usize,
}

impl Memory {
    fn new() -> Self {
        let lender = RegisteredMemory::new(vec![0_u8; 2 * LARGE]);
        let to_aligned = lender.lend(..).unwrap().as_ptr().align_offset(4096);
        let outside = WhenFull::Outside { limit: 64 << 20 };
        Self {
            pool: Pool::new(64 << 20),
            unregistered: Pool::builder().capacity(64 << 20).registered(false).build().unwrap(),
            full: Pool::builder().capacity(page_size()).when_full(outside).build().unwrap(),
            lender,
            to_aligned,
        }
    }

    /// Makes a buffer of exactly `n` bytes; aligned to 4096 if requested and if the kind can be.
    fn buffer(&self, rng: &mut Random, kind: Kind, n: usize, aligned: bool) -> Buffer {
        let skip = if aligned { 4096 * rng.index(3) } else { rng.index(5000) };
        match kind {
            Kind::Unregistered => self.unregistered.get(n).unwrap(),
            Kind::Outside => self.full.get(n.max(page_size() + 1)).unwrap().split_to(n),
            Kind::SplitOff => self.pool.get(n + skip).unwrap().split_off(skip),
            Kind::SplitTo => {
                let mut whole = self.pool.get(skip + n + 100).unwrap();
                drop(whole.split_to(skip));
                whole.split_to(n)
            }
            // Lent memory is never empty.
            Kind::Lent if n > 0 => {
                let start = if aligned { self.to_aligned + skip } else { skip };
                match self.lender.lend(start..start + n) {
                    Ok(mut buffer) => {
                        buffer.clear();
                        buffer
                    }
                    // Another operation is using it.
                    Err(_) => self.pool.get(n).unwrap(),
                }
            }
            _ => self.pool.get(n).unwrap(),
        }
    }

    fn assert_unused(&self) {
        for pool in [&self.pool, &self.unregistered, &self.full] {
            let metrics = pool.metrics();
            assert_eq!((metrics.in_use, metrics.outside_bytes), (0, 0), "all buffers came back");
        }
        assert_eq!(self.lender.lent(), 0);
    }
}

/// Cuts `data` into pieces, some of them empty if they need not be aligned.
fn cut<'a>(rng: &mut Random, mut data: &'a [u8], block: usize) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let most = 2 + data.len() / 3;
    while !data.is_empty() {
        let least = usize::from(block > 1);
        let len = ((rng.index(most) + least) / block * block).max(least * block).min(data.len());
        let (piece, rest) = data.split_at(len);
        pieces.push(piece);
        data = rest;
    }
    pieces
}

fn fill(mut buffer: Buffer, data: &[u8]) -> Buffer {
    buffer.clear();
    buffer.extend_from_slice(data);
    buffer
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Plain,
    /// A read must get all bytes, and a write must be durable when it ends.
    Strict,
}

/// Returns the write, and whether every piece of memory is aligned to `block`.
async fn write_one<B: IoBuf + AsRef<[u8]>>(
    file: &File,
    how: How,
    buffer: B,
    data: &[u8],
    offset: u64,
) -> (Result<(), Error>, usize) {
    let address = buffer.as_ptr().addr();
    let result = match how {
        How::Plain => file.write_at(buffer, offset).await,
        How::Strict => file.write_durable_at(buffer, offset).await,
    };
    (checked(result, |buffer| assert!(buffer.as_ref() == data, "the buffer comes back as it was")), address)
}

async fn write_many<B: IoBuf + AsRef<[u8]>>(
    file: &File,
    buffers: Vec<B>,
    pieces: &[&[u8]],
    offset: u64,
) -> (Result<(), Error>, usize) {
    let addresses = buffers.iter().fold(0, |all, buffer| all | buffer.as_ptr().addr() | buffer.len());
    let result = file.write_vectored_at(buffers, offset).await;
    let same = |buffers: &Vec<B>| {
        assert!(
            buffers.iter().map(AsRef::as_ref).eq(pieces.iter().copied()),
            "the buffers come back as they were"
        );
    };
    (checked(result, same), addresses)
}

fn checked<B>(result: BufResult<B>, check: impl FnOnce(&B)) -> Result<(), Error> {
    match result {
        Ok(buffer) => {
            check(&buffer);
            Ok(())
        }
        Err(failed) => {
            let (error, buffer) = failed.into_parts();
            check(&buffer);
            Err(error)
        }
    }
}

/// Writes a piece of the pattern, and returns the addresses of its memory.
async fn write(
    file: &File,
    memory: &Memory,
    rng: &mut Random,
    (kind, how): (Kind, How),
    data: &'static [u8],
    offset: u64,
) -> (Result<(), Error>, usize) {
    let block = file.alignment().bytes;
    let aligned = file.is_direct();
    let n = data.len();
    match kind {
        Kind::Vec => write_one(file, how, data.to_vec(), data, offset).await,
        Kind::Boxed => write_one(file, how, Box::<[u8]>::from(data), data, offset).await,
        Kind::BytesMut => write_one(file, how, BytesMut::from(data), data, offset).await,
        Kind::Static => write_one(file, how, data, data, offset).await,
        Kind::Frozen => {
            let bytes = fill(memory.buffer(rng, Kind::Pooled, n, aligned), data).freeze();
            let clone = bytes.clone();
            let result = write_one(file, how, bytes, data, offset).await;
            assert!(clone == data);
            result
        }
        Kind::Vecs => {
            let pieces = cut(rng, data, 1);
            write_many(file, pieces.iter().map(|piece| piece.to_vec()).collect(), &pieces, offset).await
        }
        Kind::ManyBytes => {
            let pieces = cut(rng, data, 1);
            write_many(
                file,
                pieces.iter().map(|piece| Bytes::copy_from_slice(piece)).collect(),
                &pieces,
                offset,
            )
            .await
        }
        Kind::Buffers => {
            let pieces = cut(rng, data, block);
            let kinds = [Kind::Pooled, Kind::Unregistered, Kind::SplitOff];
            // Buffers of one kind, possibly in one region, or of mixed kinds.
            let (mixed, one) = (rng.chance(2), kinds[rng.index(3)]);
            let mut buffers = Vec::new();
            for piece in &pieces {
                let kind = if mixed { kinds[rng.index(3)] } else { one };
                buffers.push(fill(memory.buffer(rng, kind, piece.len(), aligned), piece));
            }
            write_many(file, buffers, &pieces, offset).await
        }
        kind => {
            let buffer = fill(memory.buffer(rng, kind, n, aligned), data);
            write_one(file, how, buffer, data, offset).await
        }
    }
}

async fn read_one<B: IoBufMut + AsRef<[u8]>>(file: &File, how: How, buffer: B, offset: u64, expected: &[u8]) {
    let capacity = buffer.capacity();
    let result = match how {
        How::Plain => file.read_at(buffer, offset).await,
        How::Strict => file.read_exact_at(buffer, offset).await,
    };
    let there = expected.get(offset as usize..).unwrap_or_default();
    let there = &there[..there.len().min(capacity)];
    match result {
        Ok(buffer) => {
            assert!(how == How::Plain || there.len() == capacity);
            same(buffer.as_ref(), there);
        }
        Err(failed) => {
            assert_eq!(failed.kind(), ErrorKind::UnexpectedEof, "{failed}");
            assert_eq!(failed.done(), there.len());
            assert!(there.len() < capacity);
            let buffer = failed.into_buffer();
            // A box keeps its length, so its length does not tell how much was read.
            assert!(how == How::Strict || buffer.len() == capacity);
            same(&buffer.as_ref()[..there.len()], there);
        }
    }
}

async fn read_many<B: IoBufMut + AsRef<[u8]>>(
    file: &File,
    how: How,
    buffers: Vec<B>,
    offset: u64,
    expected: &[u8],
) {
    let capacities: Vec<usize> = buffers.iter().map(IoBufMut::capacity).collect();
    let capacity: usize = capacities.iter().sum();
    let result = match how {
        How::Plain => file.read_vectored_at(buffers, offset).await,
        How::Strict => file.read_exact_vectored_at(buffers, offset).await,
    };
    let there = expected.get(offset as usize..).unwrap_or_default();
    let mut there = &there[..there.len().min(capacity)];
    let buffers = match result {
        Ok(buffers) => buffers,
        Err(failed) => {
            assert_eq!((how, failed.kind()), (How::Strict, ErrorKind::UnexpectedEof), "{failed}");
            assert_eq!(failed.done(), there.len());
            failed.into_buffer()
        }
    };
    if capacity == 0 {
        return;
    }
    for (buffer, capacity) in buffers.iter().zip(capacities) {
        let (here, rest) = there.split_at(there.len().min(capacity));
        same(buffer.as_ref(), here);
        there = rest;
    }
}

#[track_caller]
fn same(read: &[u8], expected: &[u8]) {
    assert_eq!(read.len(), expected.len(), "bytes read");
    if read != expected {
        let at = read.iter().zip(expected).position(|(a, b)| a != b);
        panic!("of {} bytes, byte {at:?} is the first that is wrong", read.len());
    }
}

/// Reads `n` bytes and compares them.
async fn read(
    file: &File,
    memory: &Memory,
    rng: &mut Random,
    (kind, how): (Kind, How),
    n: usize,
    offset: u64,
    expected: &[u8],
) {
    let aligned = file.is_direct() && !rng.chance(3);
    match kind {
        // The previous content must not matter.
        Kind::Vec => {
            let mut vec = Vec::with_capacity(n);
            vec.resize(rng.index(n + 1), 0xaa);
            read_one(file, how, vec, offset, expected).await;
        }
        Kind::Boxed => read_one(file, how, vec![0xaa; n].into_boxed_slice(), offset, expected).await,
        Kind::BytesMut => read_one(file, how, BytesMut::with_capacity(n), offset, expected).await,
        Kind::Vecs | Kind::Buffers => {
            let block = if aligned { file.alignment().bytes } else { 1 };
            let lens: Vec<usize> = cut(rng, &PATTERN[..n], block).iter().map(|piece| piece.len()).collect();
            if kind == Kind::Vecs {
                let vecs = lens.into_iter().map(Vec::with_capacity).collect::<Vec<Vec<u8>>>();
                return read_many(file, how, vecs, offset, expected).await;
            }
            let kinds = [Kind::Pooled, Kind::Unregistered, Kind::SplitOff];
            let one = kinds[rng.index(3)];
            let buffers = lens.into_iter().map(|len| memory.buffer(rng, one, len, aligned)).collect();
            read_many(file, how, buffers, offset, expected).await;
        }
        kind => {
            let buffer = memory.buffer(rng, kind, n, aligned);
            read_one(file, how, buffer, offset, expected).await;
        }
    }
}

/// Returns a length or offset: often one at which errors are likely.
fn number(rng: &mut Random, most: usize, block: usize) -> usize {
    let n = match rng.index(10) {
        0 => [0, 1, 511, 512, 513, 4095, 4096, 4097][rng.index(8)],
        1..5 => rng.index(9000),
        5..9 => rng.index(1 + most / 8),
        _ => rng.index(1 + most),
    };
    n.min(most) / block * block
}

struct Run {
    file: File,
    memory: Memory,
    content: Vec<u8>,
    rng: Random,
    folder: &'static str,
}

impl Run {
    fn offset_and_len(&mut self, block: usize) -> (usize, usize) {
        let offset = match self.rng.index(6) {
            // Around the end of the file.
            0 => (self.content.len() + 4096).saturating_sub(self.rng.index(8192)) / block * block,
            1 => 0,
            _ => number(&mut self.rng, LARGE, block),
        };
        (offset, number(&mut self.rng, LARGE, block))
    }

    fn grow(&mut self, len: usize) {
        if self.content.len() < len {
            self.content.resize(len, 0);
        }
    }

    /// Records what was written.
    fn put(&mut self, offset: usize, data: &[u8]) {
        if !data.is_empty() {
            self.grow(offset + data.len());
            self.content[offset..offset + data.len()].copy_from_slice(data);
        }
    }

    fn pattern(&mut self, len: usize) -> &'static [u8] {
        let start = self.rng.index(LARGE);
        &PATTERN[start..start + len]
    }

    async fn write(&mut self) {
        let block = self.file.alignment().bytes;
        // Unaligned direct writes are refused, so most of them must be aligned.
        let unit = if self.rng.chance(6) { 1 } else { block };
        let (offset, len) = self.offset_and_len(unit);
        let data = self.pattern(len);
        let how = if self.rng.chance(12) { How::Strict } else { How::Plain };
        let kind = match block {
            1 => WRITABLE[self.rng.index(WRITABLE.len())],
            _ => {
                let fitting = [
                    Kind::Pooled,
                    Kind::Unregistered,
                    Kind::SplitOff,
                    Kind::Lent,
                    Kind::Frozen,
                    Kind::Buffers,
                ];
                if self.rng.chance(6) {
                    WRITABLE[self.rng.index(WRITABLE.len())]
                } else {
                    fitting[self.rng.index(6)]
                }
            }
        };
        let (result, address) =
            write(&self.file, &self.memory, &mut self.rng, (kind, how), data, offset as u64).await;
        let fits = len == 0 || (address | offset | len) % block == 0;
        match result {
            Ok(()) => {
                assert!(fits, "{kind:?} at {address:#x}: {len} bytes at {offset} were not refused");
                self.put(offset, data);
            }
            Err(error) => {
                assert!(!fits, "{kind:?} {how:?}: {error}");
                assert_eq!((error.kind(), error.done()), (ErrorKind::InvalidInput, 0));
                assert!(error.to_string().contains(&block.to_string()), "{error}");
            }
        }
    }

    async fn read(&mut self) {
        let block = self.file.alignment().bytes;
        let unit = if self.rng.chance(2) { 1 } else { block };
        let (offset, len) = self.offset_and_len(unit);
        let kind = READABLE[self.rng.index(READABLE.len())];
        let how = if self.rng.chance(4) { How::Strict } else { How::Plain };
        let (file, memory) = (&self.file, &self.memory);
        read(file, memory, &mut self.rng, (kind, how), len, offset as u64, &self.content).await;
    }

    async fn control(&mut self) {
        let (offset, len) = self.offset_and_len(1);
        let file = self.file.clone();
        match self.rng.index(9) {
            0 | 1 => {
                let size = number(&mut self.rng, LARGE, 1);
                file.set_len(size as u64).await.unwrap();
                self.content.resize(size, 0);
            }
            2 => file.sync_all().await.unwrap(),
            3 => file.sync_data().await.unwrap(),
            4 | 5 => self.allocate(&file, offset, len).await,
            6 => {
                let all =
                    [Advice::Normal, Advice::Sequential, Advice::Random, Advice::WillNeed, Advice::DontNeed];
                let len = [0, len as u64, u64::from(u32::MAX) + 2][self.rng.index(3)];
                file.advise(offset as u64, len, all[self.rng.index(5)]).await.unwrap();
            }
            7 => assert_eq!(file.metadata().unwrap().len(), self.content.len() as u64),
            _ => assert_eq!(file.size().unwrap(), self.content.len() as u64),
        }
        assert_eq!(file.size().unwrap(), self.content.len() as u64);
    }

    async fn allocate(&mut self, file: &File, offset: usize, len: usize) {
        let modes =
            [AllocateMode::Extend, AllocateMode::KeepSize, AllocateMode::PunchHole, AllocateMode::ZeroRange];
        let mode = modes[self.rng.index(4)];
        if let Err(error) = file.allocate(mode, offset as u64, len as u64).await {
            let not_there = self.folder == "tmpfs" && mode == AllocateMode::ZeroRange;
            assert!(
                (len == 0 && error.errno() == Some(libc::EINVAL))
                    || (not_there && error.errno() == Some(libc::EOPNOTSUPP)),
                "{mode:?} of {len} bytes at {offset}: {error}"
            );
            return;
        }
        if matches!(mode, AllocateMode::Extend | AllocateMode::ZeroRange) {
            self.grow(offset + len);
        }
        if matches!(mode, AllocateMode::PunchHole | AllocateMode::ZeroRange) {
            let end = (offset + len).min(self.content.len());
            self.content[offset.min(end)..end].fill(0);
        }
    }

    /// Runs several operations at once, on ranges that do not overlap, each in its own task or not.
    async fn at_once(&mut self) {
        let block = self.file.alignment().bytes;
        let count = 2 + self.rng.index(40);
        let size = (count * 2 * block).max(number(&mut self.rng, LARGE, 1));
        self.file.set_len(size as u64).await.unwrap();
        self.content.resize(size, 0);
        let each = size / count / block * block;
        let (mut tasks, mut futures) = (Vec::new(), Vec::new());
        let mut written = Vec::new();
        let before = Rc::new(self.content.clone());
        let memory = Rc::new(Memory::new());
        for index in 0..count {
            let (start, len) = (index * each, number(&mut self.rng, each, block));
            let (file, memory, mut rng) = (self.file.clone(), Rc::clone(&memory), self.rng.clone());
            // The generator is advanced, since otherwise each operation would get the same numbers.
            (0..=index).for_each(|_| _ = self.rng.below(2));
            let one: Pin<Box<dyn Future<Output = ()>>> = if self.rng.chance(2) {
                let data = self.pattern(len);
                written.push((start, data));
                let kind =
                    [Kind::Pooled, Kind::Unregistered, Kind::SplitOff, Kind::Buffers][self.rng.index(4)];
                Box::pin(async move {
                    let what = (kind, How::Plain);
                    write(&file, &memory, &mut rng, what, data, start as u64).await.0.unwrap();
                })
            } else {
                let (kind, before) = (READABLE[self.rng.index(READABLE.len())], Rc::clone(&before));
                let range_end = start + each;
                Box::pin(async move {
                    // A direct read of a part of a block reads the whole block, but returns only what was requested.
                    let what = (kind, How::Strict);
                    read(&file, &memory, &mut rng, what, len, start as u64, &before[..range_end]).await;
                })
            };
            if self.rng.chance(2) { tasks.push(spawn(one)) } else { futures.push(one) }
        }
        support::all(futures).await;
        for task in tasks {
            task.await.unwrap();
        }
        for (start, data) in written {
            self.put(start, data);
        }
        memory.assert_unused();
    }

    /// Reads the file as a stream, from a pool that may be too small for the requested read-ahead.
    async fn stream(&mut self) {
        let block = 1 + number(&mut self.rng, 100_000, 1);
        let depth = 1 + self.rng.index(8);
        let alignment = self.file.alignment().bytes;
        let rounded = block.next_multiple_of(alignment);
        // Two blocks, and the difference to their size class: one to read into while the user has the other.
        let room = (rounded + rounded / 4).next_multiple_of(page_size()) * 2 + 2 * page_size();
        let pool = match self.rng.index(3) {
            0 => Pool::new(room),
            1 => Pool::builder().capacity(room).when_full(WhenFull::Wait).build().unwrap(),
            _ => Pool::new(32 << 20),
        };
        let (start, end) = match self.rng.index(3) {
            0 => (0, u64::MAX),
            _ => {
                let (offset, len) = self.offset_and_len(1);
                (offset as u64, (offset + len) as u64)
            }
        };
        let mut reader = self.file.reader(&pool).block(block).depth(depth).range(start..end);
        let until = self.content.len().min(usize::try_from(end).unwrap_or(usize::MAX));
        let mut expected = self.content.get(start as usize..until).unwrap_or_default();
        let mut kept = Vec::new();
        while let Some(piece) = reader.next().await {
            let piece = piece.unwrap();
            same(&piece, &expected[..piece.len().min(expected.len())]);
            expected = &expected[piece.len()..];
            assert!(piece.len() <= rounded && !piece.is_empty());
            let is_first = kept.is_empty() && expected.len() + piece.len() == until - start as usize;
            assert!(
                is_first || expected.is_empty() || piece.len() == rounded,
                "{} of {rounded}",
                piece.len()
            );
            kept.push(piece);
            if self.rng.chance(2) {
                kept.clear();
            }
            if self.rng.chance(20) {
                return;
            }
            // Never keeps more than the pool can spare.
            kept.truncate(1);
        }
        assert!(expected.is_empty(), "{} bytes are missing", expected.len());
        assert!(reader.next().await.is_none(), "it stays at its end");
    }

    async fn step(&mut self) {
        match self.rng.index(20) {
            0..8 => self.write().await,
            8..15 => self.read().await,
            15..18 => self.control().await,
            18 => self.at_once().await,
            _ => self.stream().await,
        }
    }
}

/// Takes some hundred random steps on a file in `folder`.
fn model(folder: impl AsRef<Path>, name: &'static str, direct: bool, durability: Durability) {
    for route in [Route::Auto, Route::Ring, Route::Inline, Route::Workers] {
        if route != Route::Ring || !support::is_without_ring() {
            model_on(route, folder.as_ref(), name, direct, durability);
        }
    }
}

fn model_on(route: Route, folder: &Path, name: &'static str, direct: bool, durability: Durability) {
    let path = TempPath::new(folder, &format!("model-{name}-{direct}"));
    println!("on {name}, {}, {route:?}:", if direct { "direct" } else { "buffered" });
    must_end("model_on", move || {
        let file = OpenOptions::new()
            .route(route)
            .read(true)
            .write(true)
            .create_new(true)
            .direct(direct)
            .durability(durability)
            .open_blocking(&path)
            .unwrap();
        assert_eq!(file.is_direct(), direct);
        let steps =
            std::env::var("RINGFILE_TEST_MODEL_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
        let (memory, rng) = (Memory::new(), Random::new());
        let mut run = Run { file, memory, content: Vec::new(), rng, folder: name };
        // In several loops, so that a ring is also reused.
        for _ in 0..4 {
            block_on(async {
                for _ in 0..steps / 4 {
                    run.step().await;
                }
            });
        }
        run.memory.assert_unused();
        same(&std::fs::read(&path).unwrap(), &run.content);
        assert_eq!(ringfile::metrics().stray, 0);
    });
}

#[test]
fn buffered_on_disk() {
    model(env!("CARGO_TARGET_TMPDIR"), "disk", false, Durability::Auto);
}

#[test]
fn direct_on_disk() {
    model(env!("CARGO_TARGET_TMPDIR"), "disk", true, Durability::Fsync);
}

#[test]
fn buffered_on_tmpfs() {
    model("/dev/shm", "tmpfs", false, Durability::Dsync);
}

#[test]
fn direct_on_tmpfs_is_refused_or_buffered() {
    let path = TempPath::new("/dev/shm", "no-direct");
    std::fs::write(&path, b"not direct").unwrap();
    let mut options = OpenOptions::new();
    let error = options.read(true).direct(true).open_blocking(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("tmpfs"), "{error}");
    let file = options.buffered_fallback(true).open_blocking(&path).unwrap();
    assert!(!file.is_direct());
    assert_eq!(block_on(file.read_at(Vec::with_capacity(7), 4)).unwrap(), b"direct");
}

fn on_a_loop_device(kind: &'static str, size: u64) {
    let Some(mounted) = Mount::on_loop(&format!("on_{kind}"), kind, size) else { return };
    model(mounted.path(), kind, false, Durability::Fsync);
    model(mounted.path(), kind, true, Durability::Auto);
}

#[test]
fn on_xfs() {
    on_a_loop_device("xfs", 400 << 20);
}

#[test]
fn on_btrfs() {
    on_a_loop_device("btrfs", 400 << 20);
}

#[test]
fn a_short_read_into_a_box_says_how_much_it_is() {
    let path = TempPath::on_disk("boxed");
    std::fs::write(&path, b"short").unwrap();
    let file = File::open_blocking(&path).unwrap();
    block_on(async {
        let failed = file.read_at(vec![b'-'; 8].into_boxed_slice(), 0).await.unwrap_err();
        assert_eq!((failed.kind(), failed.done()), (ErrorKind::UnexpectedEof, 5));
        assert_eq!(&*failed.into_buffer(), b"short---");
        let whole = file.read_at(vec![0; 5].into_boxed_slice(), 0).await.unwrap();
        assert_eq!(&*whole, b"short");
        let boxes = vec![vec![0; 2].into_boxed_slice(), vec![0; 2].into_boxed_slice()];
        let failed = file.read_vectored_at(boxes, 2).await.unwrap_err();
        assert_eq!((failed.kind(), failed.done()), (ErrorKind::UnexpectedEof, 3));
    });
}

#[test]
fn a_stream_whose_pool_is_too_small_fails_with_a_reason() {
    let path = TempPath::on_disk("too-small");
    std::fs::write(&path, vec![1; 100_000]).unwrap();
    let file = File::open_blocking(&path).unwrap();
    block_on(async {
        let mut reader = file.reader(&Pool::new(page_size())).block(2 * page_size());
        let error = reader.next().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("pool"), "{error}");
        assert!(reader.next().await.is_none());
    });
}

#[test]
fn a_stream_for_which_the_pool_becomes_too_small_gives_what_was_read_before() {
    let path = TempPath::on_disk("becomes-too-small");
    std::fs::write(&path, [[1; 4096], [2; 4096], [3; 4096]].concat()).unwrap();
    let file = File::open_blocking(&path).unwrap();
    block_on(async {
        let mut reader = file.reader(&Pool::new(16384)).block(4096).depth(2);
        assert_eq!(reader.next().await.unwrap().unwrap()[..], [1; 4096]);
        reader = reader.block(65536);
        // Begun before the change.
        assert_eq!(reader.next().await.unwrap().unwrap()[..], [2; 4096]);
        let error = reader.next().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("pool"), "{error}");
        assert!(reader.next().await.is_none());
    });
}

#[test]
fn a_directory_can_be_synced() {
    block_on(async {
        ringfile::fs::sync_dir(env!("CARGO_TARGET_TMPDIR")).await.unwrap();
        let error = ringfile::fs::sync_dir(file!()).await.unwrap_err();
        assert!(error.errno().is_some());
    });
}
