//! The Rust passages of the README and the guide run here, word for word. `documents.rs` checks that none is missing.

use inside_tokio::look_up;
use ringfile::{File, OpenOptions, Pool};

use crate::support::{in_child, skip};

/// Only one test, because the passages name `data.bin` in the working folder, and a process has only one such folder.
#[test]
fn every_passage_runs() {
    if !in_child("every_passage_runs") {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::env::set_current_dir(folder.path()).unwrap();
    std::fs::write("data.bin", vec![7; 2 << 20]).unwrap();
    std::fs::write("ringfile.toml", "block_size = '64KiB'\ndepth = 2").unwrap();
    quick_start::main().unwrap();
    let pool = Pool::new(16 << 20);
    let file = OpenOptions::new().read(true).write(true).open_blocking("data.bin").unwrap();
    ringfile::block_on(async {
        write_durably(&pool, &file).await.unwrap();
        assert_eq!(std::fs::read("data.bin").unwrap()[..4096], [1; 4096]);
        many_at_once(&pool, &file).await.unwrap();
        a_batch(&pool, file.clone()).await.unwrap();
        share(&pool, &file).await.unwrap();
        own_memory(&file).await.unwrap();
        split(&pool, &file).await.unwrap();
        stream(pool.clone(), &file).await.unwrap();
        adaptive(&pool).await.unwrap();
        append(pool.clone()).await.unwrap();
        tail(pool.clone()).await.unwrap();
        errors(&file).await.unwrap();
        open(&pool).await.unwrap();
        a_part(&pool, &file).await.unwrap();
        paths().await.unwrap();
        more_paths().await.unwrap();
        a_pool(&file).await.unwrap();
        atomic(&pool).await.unwrap();
        why_slow(&pool, &file).await.unwrap();
        in_operation(&pool).await.unwrap();
        set_once().await.unwrap();
    });
    buffers_alone::run().unwrap();
    pinned_at_once();
    blocking_log(pool.clone()).unwrap();
    iterate(pool.clone()).unwrap();
    own_loop(&pool, file.clone()).unwrap();
    several_threads(&pool, file.clone()).unwrap();
    many_blocks(&pool, file.clone()).unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    tokio.block_on(in_tokio(pool.clone(), file)).unwrap();
    // This passage needs a drive without a file system, so it is only compiled.
    let _ = nvme;
    // On its own thread, whose counts start at 0.
    let counted = std::thread::spawn(move || ringfile::block_on(one_route(&pool)));
    if let Err(error) = counted.join().unwrap() {
        skip("one_route of every_passage_runs", error);
    }
    std::env::set_current_dir("/").unwrap();
}

async fn a_batch(pool: &Pool, file: File) -> std::io::Result<()> {
    let mut batch = ringfile::Batch::new().depth(64);
    for page in 0..100 {
        batch.add(file.read_at(pool.get(4096)?, page * 4096));
    }
    for done in batch.await {
        let page = done.take::<ringfile::Buffer>()?;
        println!("first {:?}", page.get(..8));
    }
    Ok(())
}

fn own_loop(pool: &Pool, file: File) -> std::io::Result<()> {
    let mut queue = ringfile::Queue::new();
    let token = queue.add(file.read_at(pool.get(4096)?, 8192), 7); // 7 is a number of yours
    queue.submit();
    let mut completions = Vec::new();
    queue.wait(1..=100, None, &mut completions); // or wait until queue.descriptor()? is readable
    let completion = completions.remove(0);
    assert_eq!((completion.user_data, completion.result?), (7, 4096));
    assert!(!queue.cancel(token)); // it has ended; earlier, the kernel would have been asked to cancel it
    Ok(())
}

fn several_threads(pool: &Pool, file: File) -> std::io::Result<()> {
    let queue = ringfile::SharedQueue::new();
    let token = queue.add(file.read_at(pool.get(4096)?, 8192), 7);
    queue.submit(); // the calling thread enters the kernel
    let others = queue.clone();
    let waits = std::thread::spawn(move || others.wait_for(token)); // or `wait`, for whichever ends first
    let done = waits.join().expect("no panic")?;
    assert_eq!(done.result?, 4096);
    Ok(())
}

fn many_blocks(pool: &Pool, file: File) -> std::io::Result<()> {
    let mut queue = ringfile::Queue::new();
    let mut pages = Vec::new();
    for page in [3, 1, 8] {
        pages.push(ringfile::queue::ReadRequest::new(pool.get(4096)?, page * 4096));
    }
    queue.read_many(&file, &mut pages)?;
    assert!(pages.iter().all(|page| page.buffer.len() == 4096));
    Ok(())
}

async fn one_route(pool: &Pool) -> std::io::Result<()> {
    use ringfile::Route;
    let file = OpenOptions::new().read(true).route(Route::Ring).open("data.bin").await?; // whatever the file is
    let before = ringfile::thread_metrics();
    file.read_at(pool.get(4096)?, 0).await?;
    assert_eq!((ringfile::thread_metrics() - before).inline_ops, 0);
    Ok(())
}

mod quick_start {
    use ringfile::{OpenOptions, Pool};

    pub fn main() -> ringfile::Result<()> {
        let pool = Pool::new(64 << 20);
        ringfile::block_on(async {
            let file = OpenOptions::new().read(true).adaptive(true).open("data.bin").await?;
            let page = file.read_at(pool.get(16 << 10)?, 1 << 20).await?;
            println!("{} bytes, first {:?}", page.len(), &page[..8]);
            Ok(())
        })
    }
}

async fn write_durably(pool: &Pool, file: &File) -> std::io::Result<()> {
    let mut record = pool.get(4096)?;
    record.resize(4096, 1);
    let record = file.write_durable_at(record, 0).await?; // on stable storage now
    assert_eq!(record.len(), 4096);
    Ok(())
}

async fn many_at_once(pool: &Pool, file: &File) -> std::io::Result<()> {
    let reads: Vec<_> = (0..100)
        .map(|page| {
            let (file, pool) = (file.clone(), pool.clone());
            ringfile::spawn(async move {
                let buffer = pool.get_async(4096).await?;
                ringfile::Result::Ok(file.read_at(buffer, page * 4096).await?)
            })
        })
        .collect();
    for read in reads {
        assert_eq!(read.await??.len(), 4096);
    }
    Ok(())
}

async fn adaptive(pool: &Pool) -> std::io::Result<()> {
    std::fs::write("table.parquet", vec![7; 5 << 20])?;
    use ringfile::OpenOptions;

    let table = OpenOptions::new().read(true).adaptive(true).open("table.parquet").await?;
    let page = table.read_at(pool.get(128 << 10)?, 4 << 20).await?; // any offset and length
    assert_eq!(page[..], [7; 128 << 10]);
    Ok(())
}

async fn share(pool: &Pool, file: &File) -> std::io::Result<()> {
    let page = file.read_at(pool.get(4096)?, 0).await?.freeze(); // bytes::Bytes, not copied
    let header = page.slice(..16);
    drop(page);
    assert_eq!(pool.metrics().in_use, 4096);
    drop(header); // the last clone: the memory returns to the pool
    assert_eq!(pool.metrics().in_use, 0);
    Ok(())
}

async fn own_memory(file: &File) -> std::io::Result<()> {
    let frames = ringfile::RegisteredMemory::new(vec![0_u8; 64 << 20]);
    let frame = frames.lend(8192..16384)?; // fails while a part of it is lent
    let frame = file.read_at(frame, 0).await?; // in place, as a fixed operation
    assert_eq!(frame.len(), 8192);
    Ok(())
}

async fn split(pool: &Pool, file: &File) -> std::io::Result<()> {
    let mut rest = pool.get(8 * 4096)?;
    let pages: Vec<_> = (0..8).map(|_| rest.split_to(4096)).collect();
    let pages = file.read_vectored_at(pages, 0).await?; // one fixed operation
    assert_eq!(pages.len(), 8);
    Ok(())
}

async fn stream(pool: Pool, file: &File) -> std::io::Result<()> {
    let mut reader = file.reader(&pool).block(256 << 10).depth(8);
    while let Some(piece) = reader.next().await {
        println!("{} bytes", piece?.len());
    }
    Ok(())
}

fn iterate(pool: Pool) -> std::io::Result<()> {
    std::fs::write("lines.txt", "a line of text\n".repeat(100_000))?;
    let (file, mut lines) = (File::open_blocking("lines.txt")?, 0);
    for piece in file.reader(&pool).block(256 << 10).depth(16) {
        lines += piece?.iter().filter(|&&byte| byte == b'\n').count();
    }
    assert_eq!(lines, 100_000);
    Ok(())
}

async fn append(pool: Pool) -> std::io::Result<()> {
    use ringfile::{Appender, OpenOptions};

    let file = OpenOptions::new().read(true).write(true).create_new(true).open("log.bin").await?; // direct or not
    ringfile::fs::sync_dir(".").await?; // or a power cut may take the new file
    let log = Appender::open(&file, &pool, 0).await?; // 0: how much of the file is known to be valid
    let writers = (0..8).map(|writer| {
        let log = log.clone();
        ringfile::spawn(async move {
            let offset = log.append(format!("record of {writer}\n").as_bytes()).await?;
            log.sync().await?; // durable now
            ringfile::Result::Ok(offset)
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        assert_eq!(writer.await?? % 12, 0);
    }
    log.close().await?; // all is durable, and the file has its exact length
    assert_eq!(file.size()?, 8 * 12);
    Ok(())
}

async fn tail(pool: Pool) -> std::io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).create(true).open("tail.bin").await?;
    let log = ringfile::Appender::open(&file, &pool, 0).keep_tail(8 << 20).await?; // memory of the pool
    let mut tail = log.tail().from(0);
    let consumer = ringfile::spawn(async move {
        let mut bytes = 0;
        while let Some(piece) = tail.next().await {
            bytes += piece?.len(); // `Bytes`: the appender's memory, not a copy
        }
        ringfile::Result::Ok(bytes)
    });
    for record in 0..100 {
        log.append(format!("{record:09}\n").as_bytes()).await?;
    }
    log.close().await?; // ends the readers, after the last record
    assert_eq!(consumer.await??, 1000);
    Ok(())
}

fn blocking_log(pool: Pool) -> std::io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).create(true).open_blocking("blocking.bin")?;
    let (valid, record) = (0, b"a record");
    let log = ringfile::block_on(ringfile::Appender::open(&file, &pool, valid))?; // once
    // In any thread:
    let offset = ringfile::block_on(async {
        let offset = log.append(record).await?;
        log.sync().await?; // shared with the other threads
        ringfile::Result::Ok(offset)
    })?;
    assert_eq!((offset, log.durable()), (0, 8));
    Ok(())
}

async fn errors(file: &File) -> std::io::Result<()> {
    use ringfile::buf::IntoParts;
    if let Err(failed) = file.read_exact_at(vec![0; 4096], 1 << 40).await {
        println!("{failed}"); // read of 4096 bytes at offset 1099511627776 of data.bin: the file is too short
        let (error, buffer) = failed.into_parts();
        assert_eq!((error.done(), buffer.capacity()), (0, 4096));
    }
    let (result, buffer) = file.read_at(vec![0; 4096], 0).await.into_parts();
    assert_eq!((result?, buffer.len()), (4096, 4096));
    Ok(())
}

async fn why_slow(pool: &Pool, file: &File) -> std::io::Result<()> {
    let before = ringfile::thread_metrics(); // ringfile::metrics() is the whole process
    file.read_at(pool.get(4096)?, 0).await?;
    let counts = ringfile::thread_metrics() - before;
    println!(
        "{} operations, {} on registered memory, {} system calls",
        counts.ops, counts.fixed_ops, counts.enters
    );
    let memory = pool.metrics();
    println!(
        "{} gets waited, {} regions could not be registered",
        memory.waits, memory.refused_registrations
    );
    Ok(())
}

async fn in_operation(pool: &Pool) -> std::io::Result<()> {
    use std::time::Duration;

    use ringfile::OpenOptions;
    use ringfile::metrics::{Latencies, OperationKind};

    let latencies = Latencies::new();
    let mut options = OpenOptions::new();
    options.read(true).write(true).latencies(&latencies);
    options.slow_after(Duration::from_millis(50)); // reports operations that take longer
    let log = options.open("data.bin").await?;
    log.read_at(pool.get(4096)?, 0).await?;
    let reads = latencies.histogram(OperationKind::Read);
    println!("{} reads, median {:?}, p99.9 {:?}", reads.count(), reads.quantile(0.5), reads.quantile(0.999));
    assert_eq!(reads.count(), 1);
    Ok(())
}

async fn set_once() -> std::io::Result<()> {
    let config = ringfile::Config::load("ringfile.toml")?; // the environment wins over the file
    config.apply(); // default route and number of workers
    let pool = config.pool().capacity(1 << 30).build()?; // a call wins over both
    let file = config.open_options().read(true).open("data.bin").await?; // direct, route
    let mut reader = config.reader(&file, &pool); // block size, depth
    assert_eq!(reader.next().await.map(|piece| piece.map(|piece| piece.len())).transpose()?, Some(64 << 10));
    Ok(())
}

async fn open(pool: &Pool) -> std::io::Result<()> {
    use ringfile::OpenOptions;

    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .direct(true) // past the page cache
        .buffered_fallback(true) // where the file system has no O_DIRECT (tmpfs), open it with buffered I/O
        .open("pages.bin")
        .await?;
    let mut page = pool.get(4096)?;
    page.resize(4096, 7);
    let page = file.write_at(page, 0).await?; // writes all of it, or fails
    let page = file.read_at(page, 0).await?; // fewer bytes only at the end of the file
    assert_eq!((page.len(), page[0]), (4096, 7));
    Ok(())
}

async fn a_part(pool: &Pool, file: &File) -> std::io::Result<()> {
    use ringfile::IoBuf; // with it, the method of `Bytes` is `Bytes::slice(&page, ..16)`
    let mut log = file.read_at(pool.get(8192)?, 0).await?;
    log[5000..6000].fill(8);
    let log = file.write_at(log.slice(4096..8192), 4096).await?.into_inner();
    assert_eq!(log.len(), 8192);
    Ok(())
}

async fn paths() -> std::io::Result<()> {
    use ringfile::{OpenOptions, fs};

    let file = OpenOptions::new().write(true).create(true).truncate(true).open("table.new").await?;
    file.write_at(b"content".to_vec(), 0).await?;
    file.sync_all().await?;
    fs::rename("table.new", "table").await?; // after a crash there is either the old file or the new one
    fs::sync_dir(".").await?;
    assert_eq!(std::fs::read("table")?, b"content");
    Ok(())
}

async fn more_paths() -> std::io::Result<()> {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use ringfile::fs;

    fs::create_dir_all("parts/2026").await?;
    std::fs::write("part.new", "content")?;
    fs::rename_no_replace("part.new", "parts/2026/part-7").await?;
    fs::symlink("part-7", "parts/2026/current").await?;
    assert_eq!(fs::read_link("parts/2026/current").await?, Path::new("part-7"));
    fs::set_permissions("parts/2026/part-7", Permissions::from_mode(0o440)).await?;
    let mut entries = fs::read_dir("parts/2026"); // a stream, in no particular order
    while let Some(entry) = entries.next().await {
        let entry = entry?;
        println!("{} is a {:?}", entry.name.display(), entry.file_type);
    }
    assert_eq!(std::fs::metadata("parts/2026/current")?.permissions().mode() & 0o777, 0o440);
    Ok(())
}

async fn a_pool(file: &File) -> std::io::Result<()> {
    use ringfile::{Pool, WhenFull};

    let pool = Pool::builder().capacity(64 << 20).when_full(WhenFull::Wait).build()?;
    let mut buffer = pool.get(16 << 10)?; // capacity 16 KiB, length 0, aligned to 4096 bytes
    buffer.extend_from_slice(b"hello");
    buffer.resize(4096, 0);
    let buffer = file.write_at(buffer, 0).await?;
    assert_eq!(&buffer[..5], b"hello");
    Ok(())
}

async fn atomic(pool: &Pool) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(true).buffered_fallback(true);
    let file = options.open("atomic.bin").await?;
    let mut page = pool.get(4096)?;
    page.resize(4096, 7);
    let atomic = match file.alignment().atomic {
        Some(limits) if (limits.min..=limits.max).contains(&4096) => true,
        _ => false, // write a copy elsewhere first: a power cut may leave a part
    };
    let page = if atomic { file.write_atomic_at(page, 0).await? } else { file.write_at(page, 0).await? };
    file.sync_data().await?; // an atomic write is not durable by itself
    assert_eq!((page.len(), std::fs::read("atomic.bin")?), (4096, vec![7; 4096]));
    Ok(())
}

mod inside_tokio {
    use ringfile::{Buffer, File, Pool};

    pub async fn look_up(file: File, pool: Pool, number: u64) -> ringfile::Result<Buffer> {
        let block = pool.get_async(4096).await?;
        Ok(file.read_exact_at(block, number * 4096).await?)
    }
}

async fn in_tokio(pool: Pool, file: File) -> std::io::Result<()> {
    #[cfg(feature = "tokio")]
    {
        // An error says that there is no ring for this: the I/O thread goes on then.
        let _ = ringfile::attach_to_tokio();
    }
    let block = tokio::spawn(look_up(file.clone(), pool.clone(), 7)).await.expect("no panic")?;
    assert_eq!((block.len(), block[0]), (4096, 7));
    Ok(())
}

async fn nvme(pool: &Pool) -> std::io::Result<()> {
    use ringfile::OpenOptions;
    use ringfile::fs::AllocateMode;

    let drive =
        OpenOptions::new().read(true).write(true).allow_raw_nvme_writes(true).open("/dev/ng0n1").await?;
    let block = drive.read_at(pool.get(drive.alignment().bytes)?, 0).await?;
    drive.write_at(block, 1 << 20).await?;
    drive.sync_data().await?; // Flush
    drive.allocate(AllocateMode::Discard, 0, 1 << 30).await?; // Dataset Management: deallocate
    Ok(())
}

fn pinned_at_once() {
    let frames = ringfile::RegisteredMemory::new(vec![0_u8; 64 << 20]);
    if let Err(error) = ringfile::buf::register(&frames) {
        eprintln!("I/O on the frames will take more CPU time: {error}"); // "…: RLIMIT_MEMLOCK leaves no room: raise it"
    }
}

/// The README of ringfile-buffer.
mod buffers_alone {
    pub(super) fn run() -> Result<(), ringfile_buffer::PoolError> {
        use ringfile_buffer::Pool;

        let pool = Pool::new(64 << 20); // at most 64 MiB
        let mut buffer = pool.get(4096)?; // aligned for direct I/O
        buffer.extend_from_slice(b"message");
        let bytes = buffer.freeze(); // `Bytes`: the memory returns when the last clone is dropped

        assert_eq!(&bytes[..], b"message");
        Ok(())
    }
}
