//! SlateDB on ringfile's object store: fills a database, reads it through each store in turn, and checks every value.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use ringfile_object_store::{Caching, RingfileStore};
use rustix::fs::{Advice, fadvise};
use rustix::time::{ClockId, clock_gettime};
use slatedb::config::{ReadOptions, ScanOptions};
use slatedb::db_cache::{SplitCache, foyer::FoyerCache};
use slatedb::object_store::{ObjectStore, local::LocalFileSystem};
use slatedb::{Db, Settings};

/// Reads a SlateDB database through LocalFileSystem and through ringfile.
///
/// SlateDB keeps indexes and filters in memory, but no blocks of data, so each value comes from the store.
#[derive(Debug, Parser)]
struct Arguments {
    /// The folder of the database, which is created and filled if it does not exist; on a disk, not in a tmpfs
    folder: PathBuf,
    /// How many values the database has
    #[arg(long, default_value_t = 500_000)]
    keys: u64,
    /// Size of a value in bytes
    #[arg(long, default_value_t = 1000)]
    value: usize,
    /// How many values to read at random, and then once more
    #[arg(long, default_value_t = 20_000)]
    gets: u64,
    /// How many tasks read them
    #[arg(long, default_value_t = 16)]
    tasks: u64,
}

/// The stores; `None` stands for LocalFileSystem. It is listed twice: the difference between its two results is noise.
const STORES: [(&str, Option<Caching>); 5] = [
    ("LocalFileSystem", None),
    ("adaptive", Some(Caching::Adaptive)),
    ("buffered", Some(Caching::Buffered)),
    ("direct", Some(Caching::Direct)),
    ("LocalFileSystem again", None),
];

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arc::new(Arguments::parse());
    // If that fails, reads that have to wait go to a thread of the library.
    let _ = ringfile_object_store::attach_to_tokio();
    fill(&arguments).await?;
    println!(
        "{} values of {} bytes; {} gets by {} tasks. Each cell: seconds, in parentheses of processor time.\n\n\
         | store | gets, cold | the same again | scan, cold |\n|---|--:|--:|--:|",
        arguments.keys, arguments.value, arguments.gets, arguments.tasks
    );
    for (name, caching) in STORES {
        let before = ringfile::metrics().bytes_read;
        let row = measure(&arguments, caching).await.with_context(|| name.to_owned())?;
        let read = ringfile::metrics().bytes_read - before;
        ensure!((read > 0) == caching.is_some(), "{name}: ringfile read {read} bytes");
        println!("| {name} | {} |", row.join(" | "));
    }
    Ok(())
}

fn store(folder: &Path, caching: Option<Caching>) -> Result<Arc<dyn ObjectStore>> {
    Ok(match caching {
        None => Arc::new(LocalFileSystem::new_with_prefix(folder)?),
        Some(caching) => Arc::new(RingfileStore::builder().prefix(folder).caching(caching).build()?),
    })
}

/// Returns the key of a value, which is also the start of its bytes.
fn mixed(number: u64) -> [u8; 8] {
    // The factor is odd, so no two results are the same.
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn value(number: u64, len: usize) -> Vec<u8> {
    let words = (0..).map(|at: u64| mixed(number + (at << 32)));
    words.flatten().take(len).collect()
}

async fn open(folder: &Path, caching: Option<Caching>, settings: Settings) -> Result<Db> {
    let meta = SplitCache::new().with_meta_cache(Some(Arc::new(FoyerCache::new()))).build();
    let db = Db::builder("db", store(folder, caching)?).with_settings(settings);
    Ok(db.with_db_cache(Arc::new(meta), 0).build().await?)
}

/// Writes the database through ringfile, unless it exists.
async fn fill(arguments: &Arguments) -> Result<()> {
    let done = arguments.folder.join(format!("{}x{}", arguments.keys, arguments.value));
    if done.exists() {
        return Ok(());
    }
    let folder = &arguments.folder;
    ensure!(!folder.join("db").exists(), "{} has a database of another size", folder.display());
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    eprintln!("filling {}", folder.display());
    let db = open(folder, Some(Caching::Adaptive), Settings::default()).await?;
    for number in 0..arguments.keys {
        db.put(mixed(number), value(number, arguments.value)).await?;
    }
    db.close().await?;
    fs::write(done, "")?;
    Ok(())
}

async fn measure(arguments: &Arc<Arguments>, caching: Option<Caching>) -> Result<[String; 3]> {
    // No compaction or flush runs during the reads, and each store reads the same files.
    let settings =
        Settings { compactor_options: None, garbage_collector_options: None, ..Settings::default() };
    let db = open(&arguments.folder, caching, settings).await?;
    drop_from_cache(&arguments.folder)?;
    let cold = timed(get_all(arguments, &db)).await?;
    let again = timed(get_all(arguments, &db)).await?;
    drop_from_cache(&arguments.folder)?;
    let scan = timed(scan(arguments, &db)).await?;
    db.close().await?;
    Ok([cold, again, scan])
}

async fn timed(work: impl Future<Output = Result<()>>) -> Result<String> {
    let (cpu, began) = (cpu(), Instant::now());
    work.await?;
    Ok(format!("{:.2} ({:.2})", began.elapsed().as_secs_f64(), (self::cpu() - cpu).as_secs_f64()))
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

async fn get_all(arguments: &Arc<Arguments>, db: &Db) -> Result<()> {
    let tasks: Vec<_> = (0..arguments.tasks)
        .map(|task| {
            let (arguments, db) = (Arc::clone(arguments), db.clone());
            tokio::spawn(async move {
                let options = ReadOptions::default().with_cache_blocks(false);
                for get in (task..arguments.gets).step_by(arguments.tasks as usize) {
                    let number = u64::from_be_bytes(mixed(get)) % arguments.keys;
                    let got = db.get_with_options(mixed(number), &options).await?;
                    let got = got.with_context(|| format!("value {number} is missing"))?;
                    ensure!(got == value(number, arguments.value), "value {number} has the wrong content");
                }
                Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn scan(arguments: &Arguments, db: &Db) -> Result<()> {
    let options = ScanOptions::default().with_cache_blocks(false).with_read_ahead_bytes(4 << 20);
    let mut values = db.scan_with_options::<std::ops::RangeFull>(.., &options).await?;
    let (mut count, mut last) = (0, None);
    while let Some(entry) = values.next().await? {
        ensure!(Some(&entry.key) > last.as_ref(), "the keys are not in order");
        ensure!(entry.value.len() == arguments.value, "a value has the wrong length");
        count += 1;
        last = Some(entry.key);
    }
    ensure!(count == arguments.keys, "{count} of {} values", arguments.keys);
    Ok(())
}

/// Drops the files below a folder from the page cache.
fn drop_from_cache(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            drop_from_cache(&path)?;
            continue;
        }
        let file = File::open(&path)?;
        // Dirty pages cannot be dropped.
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}
