//! A storage engine's block reader, before and after: `cargo run --example block_reader`.
//!
//! `read_exact_at` of the standard library first, then the same blocks by ringfile: one at a time, many at once, ahead
//! of a scan, by the engine's own loop, by futures, into the engine's own cache, and written back. docs/guide/storage-engine.md
//! explains it. Each step checks the bytes of every block.

use std::io::{ErrorKind, Result};
use std::os::unix::fs::FileExt;

use ringfile::{Batch, Buffer, File, OpenOptions, Pool, Queue, RegisteredMemory};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;

/// The engine's reader before the change.
fn read_before(file: &std::fs::File, block: &mut [u8], number: u64) -> Result<()> {
    file.read_exact_at(block, number * BLOCK as u64)
}

/// Step 1: one block with one call. The call takes the buffer and returns it, with length `BLOCK`.
fn read_block(file: &File, block: Buffer, number: u64) -> Result<Buffer> {
    Ok(ringfile::block_on(file.read_exact_at(block, number * BLOCK as u64))?)
}

/// Step 2: all blocks that are needed soon, with one call, from any thread.
fn read_blocks(file: &File, pool: &Pool, numbers: &[u64]) -> Result<Vec<Buffer>> {
    let mut batch = Batch::with_capacity(numbers.len());
    for number in numbers {
        batch.add(file.read_exact_at(pool.get(BLOCK)?, number * BLOCK as u64));
    }
    batch.run().into_iter().map(|done| Ok(done.take::<Buffer>()?)).collect()
}

/// Step 3: a scan that reads the next blocks while it uses the current one.
fn scan(file: &File, pool: &Pool, ahead: u64, mut consume: impl FnMut(u64, &[u8])) -> Result<()> {
    let mut queue = Queue::new();
    let mut under_way = std::collections::VecDeque::new();
    let mut next = 0;
    for number in 0..BLOCKS {
        while next < BLOCKS.min(number + ahead) {
            under_way.push_back(queue.add(file.read_exact_at(pool.get(BLOCK)?, next * BLOCK as u64), next));
            next += 1;
        }
        let Some(token) = under_way.pop_front() else { break };
        consume(number, &queue.wait_for(token)?.take::<Buffer>()?);
    }
    Ok(())
}

/// Step 4: the engine's own loop, which keeps `depth` reads in flight.
fn serve(
    file: &File,
    pool: &Pool,
    depth: usize,
    total: u64,
    mut consume: impl FnMut(u64, &[u8]),
) -> Result<()> {
    let mut queue = Queue::with_capacity(depth);
    let mut wanted = (0..total).map(|step| step * 7 % BLOCKS);
    for number in wanted.by_ref().take(depth) {
        queue.add(file.read_exact_at(pool.get(BLOCK)?, number * BLOCK as u64), number);
    }
    let mut completions = Vec::with_capacity(depth);
    while queue.wait(1..=depth, None, &mut completions) > 0 {
        for completion in completions.drain(..) {
            let number = completion.user_data;
            let block = completion.take::<Buffer>()?;
            consume(number, &block);
            if let Some(number) = wanted.next() {
                queue.add(file.read_exact_at(block, number * BLOCK as u64), number);
            }
        }
    }
    Ok(())
}

/// Step 5: in an executor, ringfile's or another's. Blocks only the task.
async fn look_up(file: &File, pool: &Pool, number: u64) -> Result<Buffer> {
    let block = pool.get_async(BLOCK).await?;
    Ok(file.read_exact_at(block, number * BLOCK as u64).await?)
}

/// Step 6: the engine's own cache. A frame is lent to a read, and can't be lent twice.
struct Cache {
    memory: RegisteredMemory,
    first: usize,
}

impl Cache {
    fn new(frames: usize) -> Self {
        let memory = vec![0_u8; (frames + 1) * BLOCK];
        // A vector's memory stays where it is when the vector moves: frames begin at a multiple of the block, which
        // direct I/O reads in place.
        let first = memory.as_ptr().align_offset(BLOCK);
        Self { memory: RegisteredMemory::new(memory), first }
    }

    fn load(&self, file: &File, number: u64, frame: usize) -> Result<Buffer> {
        let start = self.first + frame * BLOCK;
        read_block(file, self.memory.lend(start..start + BLOCK)?, number)
    }
}

/// Step 7: dirty blocks, and one fdatasync for all of them.
fn write_blocks(file: &File, blocks: Vec<(u64, Buffer)>) -> Result<()> {
    let mut batch = Batch::with_capacity(blocks.len() + 1);
    for (number, block) in blocks {
        batch.add(file.write_at(block, number * BLOCK as u64));
    }
    batch.barrier();
    batch.add(file.sync_data());
    for done in batch.run() {
        done.result?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("blocks");
    let blocks: Vec<u8> = (0..BLOCKS).flat_map(|number| content(number, 0)).collect();
    std::fs::write(&path, blocks)?;

    let pool = Pool::new(4 << 20);
    let before = std::fs::File::open(&path)?;
    // The engine can continue to use its own descriptor.
    let lent = File::from(before.try_clone()?);
    let mut options = OpenOptions::new();
    let direct = options.read(true).write(true).direct(true).buffered_fallback(true).open_blocking(&path)?;
    assert!(BLOCK.is_multiple_of(direct.alignment().bytes), "a block can be written directly");

    for version in 0..2 {
        if version == 1 {
            let dirty = (0..BLOCKS).map(|number| Ok((number, new_block(&pool, number)?)));
            write_blocks(&direct, dirty.collect::<Result<_>>()?)?;
            // For a log: the data is on stable storage when it returns.
            ringfile::block_on(direct.write_durable_at(new_block(&pool, 5)?, 5 * BLOCK as u64))?;
        }
        let is_right = |number: u64, block: &[u8]| assert_eq!(block, content(number, version), "{number}");
        for file in [&lent, &direct] {
            let mut block = vec![0; BLOCK];
            read_before(&before, &mut block, 9)?;
            is_right(9, &block);
            is_right(9, &read_block(file, pool.get(BLOCK)?, 9)?);
            let end = read_block(file, pool.get(BLOCK)?, BLOCKS).map_err(|error| error.kind());
            assert_eq!(end.err(), Some(ErrorKind::UnexpectedEof));

            let numbers: Vec<u64> = (0..64).map(|step| step * 37 % BLOCKS).collect();
            for (&number, block) in numbers.iter().zip(read_blocks(file, &pool, &numbers)?) {
                is_right(number, &block);
            }
            scan(file, &pool, 8, is_right)?;
            serve(file, &pool, 32, 1000, is_right)?;
            is_right(10, &ringfile::block_on(look_up(file, &pool, 10))?);
            is_right(11, &futures::executor::block_on(look_up(file, &pool, 11))?);

            let cache = Cache::new(2);
            let frame = cache.load(file, 12, 1)?;
            is_right(12, &frame);
            assert!(cache.load(file, 13, 1).is_err(), "the frame is lent");
            drop(frame);
            is_right(13, &cache.load(file, 13, 1)?);
        }
    }
    let counts = ringfile::metrics();
    println!(
        "{} operations, {} by plain calls, {} on registered memory, {} system calls for the ring",
        counts.ops, counts.inline_ops, counts.fixed_ops, counts.enters
    );
    Ok(())
}

fn new_block(pool: &Pool, number: u64) -> Result<Buffer> {
    let mut block = pool.get(BLOCK)?;
    block.extend_from_slice(&content(number, 1));
    Ok(block)
}

/// Returns bytes that differ from those of other blocks, and of other versions of this block.
fn content(number: u64, version: u64) -> Vec<u8> {
    (0..BLOCK as u64).map(|at| (number * 31 + at / 16 + version) as u8).collect()
}
