//! Writes in every way that the library calls durable, and reports the successes.
//!
//! `power-guest FOLDER REPORTS ROUNDS [all|WAY|programs]`
//!
//! FOLDER is on the file system under test, REPORTS is a partition of the same drive. Each way first runs alone, so that
//! another way's flush cannot hide a missing one; then all run at once. With the last argument, the program leaves out the
//! syncs of that way, or of all ways, on purpose (for atomic writes, their flag). With `programs` it runs the programs that
//! are compared with simulations instead.

mod compare;

use std::error::Error;
use std::fs::File as StdFile;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ringfile::{Appender, Batch, Durability, File, OpenOptions, Pool, block_on, fs, spawn};
use ringfile_power::promise::{self, Promise};
use ringfile_power::stamp::{SECTOR, record, stream};
use ringfile_power::{
    ATOMIC, BATCH, DSYNC, FSYNC, LOGS, NAMED, NAMED_BYTES, Random, SYNC_ALL, SYNC_DATA, SlotFile, named,
};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;
/// One round of a way to write.
type Way = Box<dyn FnMut() -> Outcome + Send>;

const O_DIRECT: i32 = 0o40000;

/// Memory for one report, aligned for direct I/O.
#[repr(align(4096))]
struct Sector([u8; SECTOR]);

struct Reports {
    drive: StdFile,
    number: u64,
    room: u64,
}

/// Shared by all ways to write.
struct Place {
    folder: PathBuf,
    pool: Pool,
    reports: Mutex<Reports>,
    /// The way, or `all`, whose syncs are left out although success is reported.
    without: Option<String>,
}

impl Place {
    fn open(folder: &str, reports: &str, without: Option<String>) -> Outcome<Self> {
        let drive = StdFile::options().read(true).write(true).custom_flags(O_DIRECT).open(reports)?;
        let room = std::io::Seek::seek(&mut &drive, std::io::SeekFrom::End(0))? / SECTOR as u64;
        let reports = Mutex::new(Reports { drive, number: 0, room });
        Ok(Self { folder: folder.into(), pool: Pool::new(16 << 20), reports, without })
    }

    /// Reports on the console and on the drive. The line on the console comes first, so the entry in the log is never
    /// earlier than the promise.
    fn promise(&self, promises: &[Promise]) -> Outcome {
        for promises in promises.chunks(promise::MOST) {
            let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
            reports.number += 1;
            println!("durable {}", reports.number);
            let sector = Sector(promise::sector(reports.number, promises));
            let at = reports.number % reports.room * SECTOR as u64;
            reports.drive.write_all_at(&sector.0, at)?;
        }
        Ok(())
    }

    fn file(&self, name: &str, direct: bool, durability: Durability) -> Outcome<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).direct(direct).durability(durability);
        Ok(options.open_blocking(self.folder.join(name))?)
    }

    /// Creates a file whose slots all have version 0.
    fn slots(&self, of: SlotFile, direct: bool, durability: Durability) -> Outcome<File> {
        let file = self.file(of.name, direct, durability)?;
        block_on(async {
            for slot in 0..u64::from(of.slots) {
                let first = self.buffer(&record(of.number, slot, 0, of.slot))?;
                file.write_at(first, slot * of.slot as u64).await?;
            }
            file.sync_all().await
        })?;
        self.sync_folder()?;
        let all = (0..u64::from(of.slots)).map(|slot| Promise::Slot { file: of.number, slot, version: 0 });
        self.promise(&all.collect::<Vec<_>>())?;
        Ok(file)
    }

    fn sync_folder(&self) -> ringfile::Result<()> {
        block_on(fs::sync_dir(&self.folder))
    }

    fn leaves_out(&self, way: &str) -> bool {
        self.without.as_deref().is_some_and(|without| without == "all" || without == way)
    }

    fn buffer(&self, bytes: &[u8]) -> ringfile::Result<ringfile::Buffer> {
        let mut buffer = self.pool.get(bytes.len())?;
        buffer.extend_from_slice(bytes);
        Ok(buffer)
    }
}

/// Writes slots in a new version each round.
struct Slots {
    place: Arc<Place>,
    of: SlotFile,
    file: File,
    version: u64,
    random: Random,
    left_out: bool,
}

impl Slots {
    fn new(place: &Arc<Place>, of: SlotFile, direct: bool, durability: Durability) -> Outcome<Self> {
        let file = place.slots(of, direct, durability)?;
        let (place, random) = (Arc::clone(place), Random(of.number.into()));
        let left_out = place.leaves_out(of.name);
        Ok(Self { place, of, file, version: 0, random, left_out })
    }

    /// Chooses different slots for the next round; returns each with its new content, its offset, and its promise.
    fn next(&mut self, count: u64) -> Outcome<Vec<(ringfile::Buffer, u64, Promise)>> {
        self.version += 1;
        let (version, file) = (self.version, self.of.number);
        let first = self.random.number();
        let all = u64::from(self.of.slots);
        let one = |at: u64| {
            let slot = first.wrapping_add(at * 7) % all;
            let buffer = self.place.buffer(&record(file, slot, version, self.of.slot))?;
            Ok((buffer, slot * self.of.slot as u64, Promise::Slot { file, slot, version }))
        };
        (0..count).map(one).collect()
    }

    /// Makes two durable writes at once, and reports each as soon as it has finished.
    fn durable(&mut self) -> Outcome {
        let writes = self.next(2)?;
        block_on(async {
            let mut tasks = Vec::new();
            for (buffer, offset, promise) in writes {
                let (file, place, left_out) = (self.file.clone(), Arc::clone(&self.place), self.left_out);
                tasks.push(spawn(async move {
                    if left_out {
                        file.write_at(buffer, offset).await?;
                    } else {
                        file.write_durable_at(buffer, offset).await?;
                    }
                    place.promise(&[promise])
                }));
            }
            for task in tasks {
                task.await??;
            }
            Ok(())
        })
    }

    /// Makes several writes at once, and then a sync; atomic writes are synced only in every fourth round.
    fn then_sync(&mut self) -> Outcome {
        let (writes, mut promises) = (self.next(3)?, Vec::new());
        let is_reported = !self.of.atomic || self.version.is_multiple_of(4);
        let is_synced = is_reported && (self.of.atomic || !self.left_out);
        let atomic = self.of.atomic && !self.left_out;
        block_on(async {
            let mut tasks = Vec::new();
            for (buffer, offset, promise) in writes {
                promises.push(promise);
                let file = self.file.clone();
                tasks.push(spawn(async move {
                    let write = match atomic {
                        true => file.write_atomic_at(buffer, offset),
                        false => file.write_at(buffer, offset),
                    };
                    write.await.map(drop)
                }));
            }
            for task in tasks {
                task.await??;
            }
            if is_synced {
                self.file.sync_data().await?;
            }
            Outcome::Ok(())
        })?;
        if is_reported { self.place.promise(&promises) } else { Ok(()) }
    }

    /// Does the same as a batch with a barrier.
    fn batch(&mut self) -> Outcome {
        let mut batch = Batch::new();
        let mut promises = Vec::new();
        for (buffer, offset, promise) in self.next(4)? {
            batch.add(self.file.write_at(buffer, offset));
            promises.push(promise);
        }
        if !self.left_out {
            batch.barrier();
            batch.add(self.file.sync_data());
        }
        for done in batch.run() {
            done.result?;
        }
        self.place.promise(&promises)
    }
}

/// Appends a slot to the file, and calls `sync_all`.
fn growing(place: &Arc<Place>) -> Outcome<Way> {
    let (place, mut slot, left_out) = (Arc::clone(place), 0, place.leaves_out(SYNC_ALL.name));
    let file = place.file(SYNC_ALL.name, false, Durability::Auto)?;
    place.sync_folder()?;
    Ok(Box::new(move || {
        let version = 1;
        let buffer = place.buffer(&record(SYNC_ALL.number, slot, version, SYNC_ALL.slot))?;
        block_on(async {
            file.write_at(buffer, slot * SYNC_ALL.slot as u64).await?;
            if left_out { Ok(()) } else { file.sync_all().await }
        })?;
        place.promise(&[Promise::Slot { file: SYNC_ALL.number, slot, version }])?;
        slot += 1;
        Ok(())
    }))
}

/// Creates files under their final name, or renames them to it, and removes them some rounds later.
fn names(place: &Arc<Place>) -> Outcome<Way> {
    const KEPT: u64 = 6;
    let (place, mut number, left_out) = (Arc::clone(place), 0, place.leaves_out("sync-dir"));
    let sync_folder = move |place: &Place| if left_out { Ok(()) } else { place.sync_folder() };
    Ok(Box::new(move || {
        let path = place.folder.join(named(number));
        let first = if number % 2 == 0 { path.clone() } else { place.folder.join("unnamed") };
        block_on(async {
            let mut options = OpenOptions::new();
            let file = options.write(true).create_new(true).open(&first).await?;
            file.write_at(place.buffer(&record(NAMED, number, number, NAMED_BYTES))?, 0).await?;
            file.sync_all().await?;
            if first != path {
                fs::rename(&first, &path).await?;
            }
            ringfile::Result::Ok(())
        })?;
        sync_folder(&place)?;
        place.promise(&[Promise::Created(number)])?;
        if let Some(old) = number.checked_sub(KEPT) {
            place.promise(&[Promise::Removing(old)])?;
            block_on(fs::remove_file(place.folder.join(named(old))))?;
            sync_folder(&place)?;
            place.promise(&[Promise::Removed(old)])?;
        }
        number += 1;
        Ok(())
    }))
}

/// Appends records of any length. A sync covers the records that were appended before it; more are appended meanwhile.
fn appending(place: &Arc<Place>, log: usize) -> Outcome<Way> {
    let (place, mut random) = (Arc::clone(place), Random(log as u64 + 1));
    let left_out = place.leaves_out(LOGS[log]);
    let file = place.file(LOGS[log], log == 1, Durability::Auto)?;
    let appender = block_on(async { Appender::open(&file, &place.pool, 0).await })?;
    place.sync_folder()?;
    Ok(Box::new(move || {
        block_on(async {
            for _ in 0..1 + random.below(3) {
                appender.append(&stream(appender.len(), 1 + random.below(3000) as usize)).await?;
            }
            let (syncing, covered) = (appender.clone(), appender.len());
            let reporting = Arc::clone(&place);
            let synced = spawn(async move {
                if left_out {
                    syncing.flush().await?;
                } else {
                    syncing.sync().await?;
                }
                reporting.promise(&[Promise::Appended { log: log as u64, len: covered }])
            });
            appender.append(&stream(appender.len(), 1 + random.below(300) as usize)).await?;
            synced.await?
        })
    }))
}

fn ways(place: &Arc<Place>) -> Outcome<Vec<(&'static str, Way)>> {
    let mut dsync = Slots::new(place, DSYNC, false, Durability::Dsync)?;
    let mut fsync = Slots::new(place, FSYNC, true, Durability::Fsync)?;
    let mut sync_data = Slots::new(place, SYNC_DATA, false, Durability::Auto)?;
    let mut batch = Slots::new(place, BATCH, true, Durability::Auto)?;
    let mut ways: Vec<(&'static str, Way)> = vec![
        (DSYNC.name, Box::new(move || dsync.durable())),
        (FSYNC.name, Box::new(move || fsync.durable())),
        (SYNC_DATA.name, Box::new(move || sync_data.then_sync())),
        (BATCH.name, Box::new(move || batch.batch())),
        (SYNC_ALL.name, growing(place)?),
        ("sync-dir", names(place)?),
        (LOGS[0], appending(place, 0)?),
        (LOGS[1], appending(place, 1)?),
    ];
    let limits = place.file("probe", true, Durability::Auto)?.alignment().atomic;
    if limits.is_some_and(|limits| (limits.min..=limits.max).contains(&ATOMIC.slot)) {
        let mut atomic = Slots::new(place, ATOMIC, true, Durability::Auto)?;
        ways.push((ATOMIC.name, Box::new(move || atomic.then_sync())));
    } else {
        println!("atomic: skipped, this file system does not support atomic writes of {} bytes", ATOMIC.slot);
    }
    Ok(ways)
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, reports, rounds, rest) = match &arguments[..] {
        [folder, reports, rounds, rest @ ..] => (folder, reports, rounds.parse::<u64>()?, rest),
        _ => return Err("usage: power-guest FOLDER REPORTS ROUNDS [all|WAY|programs]".into()),
    };
    let place = Arc::new(Place::open(folder, reports, rest.first().cloned())?);
    if rest.first().is_some_and(|argument| argument == "programs") {
        return compare::run(&place, rounds);
    }
    let mut ways = ways(&place)?;
    if let Some(way) = place.without.as_deref().filter(|&way| way != "all")
        && !ways.iter().any(|&(name, _)| name == way)
    {
        return Err(format!("{way}: there is no such way to write here").into());
    }
    for (name, way) in &mut ways {
        println!("alone: {name}");
        // This way reports only in every fourth round.
        let times = if *name == ATOMIC.name { 4 } else { 1 };
        for _ in 0..times * rounds {
            way()?;
        }
    }
    println!("all at once");
    std::thread::scope(|scope| {
        let all = ways.iter_mut().map(|(_, way)| scope.spawn(move || (0..rounds).try_for_each(|_| way())));
        let all: Vec<_> = all.collect();
        all.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    })?;
    println!("reports {}", place.reports.lock().unwrap_or_else(PoisonError::into_inner).number);
    Ok(())
}
