//! Counts heap allocations per operation of ringfile, in the steady state, on all threads.
//!
//! Every kind of operation runs at depth 1 and 16 until nothing new is allocated, and then is counted. Each row shows
//! how many operations it saw and how many of them used a registered buffer. An operation that moves the wrong number
//! of bytes is an error: a row without operations would also show 0.

use std::cell::Cell;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ringfile::{Buffer, File, IoBuf, IoBufMut, OpenOptions, Pool, Route};

use crate::allocations;
use crate::data::PAGE;

const WARM: u64 = 4096;
const COUNTED: u64 = 16384;
const PARTS: usize = 8;
/// Length and offset of an unaligned read, which no device can carry out directly.
const ODD_LEN: usize = 1000;
const ODD_OFFSET: u64 = 100;

/// Operations that all tasks of a row have finished so far.
#[derive(Default)]
struct Progress {
    done: Cell<u64>,
    at_start: Cell<Counts>,
    at_end: Cell<Counts>,
}

/// The counters at one moment.
#[derive(Default, Clone, Copy)]
struct Counts {
    allocations: u64,
    fixed: u64,
}

impl Counts {
    fn now() -> Counts {
        Counts { allocations: allocations::everywhere(), fixed: ringfile::thread_metrics().fixed_ops }
    }
}

impl Progress {
    fn count(&self) {
        let done = self.done.get() + 1;
        self.done.set(done);
        if done == WARM {
            self.at_start.set(Counts::now());
        } else if done == WARM + COUNTED {
            self.at_end.set(Counts::now());
        }
    }

    fn over(&self) -> bool {
        self.done.get() >= WARM + COUNTED
    }
}

/// Runs `one` on all `states` at once, repeatedly, and prints a row of the table.
async fn row<S, F>(name: &str, states: Vec<S>, one: F) -> io::Result<()>
where
    S: 'static,
    F: AsyncFn(S, u64) -> io::Result<S> + Clone + 'static,
{
    let depth = states.len();
    let progress = Rc::new(Progress::default());
    let tasks: Vec<_> = states
        .into_iter()
        .map(|mut state| {
            let (progress, one) = (Rc::clone(&progress), one.clone());
            ringfile::spawn(async move {
                while !progress.over() {
                    state = one(state, progress.done.get()).await?;
                    progress.count();
                }
                io::Result::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await.map_err(|error| io::Error::other(error.to_string()))??;
    }
    let (start, end) = (progress.at_start.get(), progress.at_end.get());
    let allocations = end.allocations - start.allocations;
    let each = allocations as f64 / COUNTED as f64;
    println!("| {name} | {depth} | {COUNTED} | {} | {allocations} | {each:.4} |", end.fixed - start.fixed);
    Ok(())
}

fn expect(len: usize, wanted: usize) -> io::Result<()> {
    if len == wanted { Ok(()) } else { Err(io::Error::other(format!("{len} bytes in place of {wanted}"))) }
}

/// Prints the table. The file at `path` has `size` bytes; a second file beside it receives the writes, and is removed.
pub fn run(path: &Path, size: u64) -> io::Result<()> {
    allocations::count_all_threads();
    let mut name = path.as_os_str().to_owned();
    name.push(".allocs");
    let scratch = Scratch(PathBuf::from(name));
    let target = std::fs::File::options().write(true).create_new(true).open(&scratch.0)?;
    target.set_len(size)?;
    println!("\n### Heap allocations for one operation, after {WARM} of its kind\n");
    println!("| operation | depth | operations | of them fixed | allocations | allocations/op |");
    println!("|---|--:|--:|--:|--:|--:|");
    ringfile::block_on(async {
        for depth in [1, 16] {
            reads(path, size, depth).await?;
            writes(&scratch.0, size, depth).await?;
        }
        Ok(())
    })
}

/// Removes the file that received the writes.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, nothing can be done, and nothing depends on it.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn offset(n: u64, size: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9) % (size / PAGE as u64 - PARTS as u64) * PAGE as u64
}

async fn reads(path: &Path, size: u64, depth: usize) -> io::Result<()> {
    let fixed = Pool::builder().capacity(64 << 20).build()?;
    let normal = Pool::builder().capacity(64 << 20).registered(false).build()?;
    let cached = OpenOptions::new().read(true).open_blocking(path)?;
    let direct = OpenOptions::new().read(true).route(Route::Ring).direct(true).open_blocking(path)?;

    row("read, pooled fixed", buffers(&fixed, depth)?, read(&cached, size)).await?;
    row("read, pooled fixed, O_DIRECT", buffers(&fixed, depth)?, read(&direct, size)).await?;
    row("read, pooled normal", buffers(&normal, depth)?, read(&cached, size)).await?;
    let vecs = (0..depth).map(|_| Vec::with_capacity(PAGE)).collect();
    row("read, Vec<u8>", vecs, read::<Vec<u8>>(&cached, size)).await?;
    row("read into a new pooled buffer each time", vec![(); depth], {
        let (file, pool) = (cached.clone(), fixed.clone());
        async move |(), n| {
            let buffer = file.read_at(pool.get(PAGE)?, offset(n, size)).await?;
            expect(buffer.len(), PAGE)
        }
    })
    .await?;
    let vectors = (0..depth).map(|_| buffers(&fixed, PARTS)).collect::<io::Result<Vec<_>>>()?;
    row("read vectored, 8 pooled fixed", vectors, {
        let file = cached.clone();
        async move |parts: Vec<Buffer>, n| {
            let parts = file.read_vectored_at(parts, offset(n, size)).await?;
            expect(parts.iter().map(|part| part.len()).sum(), PARTS * PAGE)?;
            Ok(parts)
        }
    })
    .await?;
    let odd = (0..depth).map(|_| fixed.get(ODD_LEN)).collect::<Result<Vec<_>, _>>()?;
    row("read, pooled, O_DIRECT unaligned", odd, {
        let file = direct.clone();
        async move |buffer: Buffer, n| {
            let buffer = file.read_at(buffer, offset(n, size) + ODD_OFFSET).await?;
            expect(buffer.len(), ODD_LEN)?;
            Ok(buffer)
        }
    })
    .await
}

async fn writes(path: &Path, size: u64, depth: usize) -> io::Result<()> {
    let pool = Pool::builder().capacity(64 << 20).build()?;
    let file = OpenOptions::new().write(true).open_blocking(path)?;
    let mut full = buffers(&pool, depth)?;
    for buffer in &mut full {
        buffer.resize(PAGE, 1);
    }
    row("write, pooled fixed", full, write(&file, size)).await?;
    row("write, Vec<u8>", vec![vec![2; PAGE]; depth], write(&file, size)).await
}

fn buffers(pool: &Pool, count: usize) -> io::Result<Vec<Buffer>> {
    (0..count).map(|_| Ok(pool.get(PAGE)?)).collect()
}

fn read<B: IoBufMut + Deref<Target = [u8]>>(
    file: &File,
    size: u64,
) -> impl AsyncFn(B, u64) -> io::Result<B> + Clone + 'static {
    let file = file.clone();
    async move |buffer: B, n: u64| {
        let buffer = file.read_at(buffer, offset(n, size)).await?;
        expect(buffer.len(), PAGE)?;
        Ok(buffer)
    }
}

fn write<B: IoBuf + Deref<Target = [u8]>>(
    file: &File,
    size: u64,
) -> impl AsyncFn(B, u64) -> io::Result<B> + Clone + 'static {
    let file = file.clone();
    async move |buffer: B, n: u64| {
        let buffer = file.write_at(buffer, offset(n, size)).await?;
        expect(buffer.len(), PAGE)?;
        Ok(buffer)
    }
}
