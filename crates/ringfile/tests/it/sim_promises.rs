//! What docs/guide/durability.md promises, on a simulated disk whose power is cut: each promise holds for all seeds, and
//! is found broken if what it rests on is left out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::support::seeds::seeds;
use ringfile::sim::{Disk, Faults, Simulation, Strictness, for_each_seed};
use ringfile::{Appender, Buffer, Durability, File, OpenOptions, Pool, fs};

const SLOT: usize = 2048;
const SLOTS: u64 = 8;

/// How data is made durable, as in docs/reliability.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Dsync,
    Fsync,
    SyncData,
    Batch,
    SyncAll,
    Atomic,
    SyncDir,
    Log,
    DirectLog,
    LogWithInterval,
}

use Way::*;
const ALL: [Way; 10] =
    [Dsync, Fsync, SyncData, Batch, SyncAll, Atomic, SyncDir, Log, DirectLog, LogWithInterval];

/// What the library has reported: by slot its version, by name whether it exists, or the length of a log.
type Promises = Rc<RefCell<BTreeMap<u64, u64>>>;

fn options(way: Way) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options.direct(matches!(way, Fsync | Batch | Atomic | DirectLog));
    options.durability(if way == Fsync { Durability::Fsync } else { Durability::Dsync });
    options
}

fn slot(pool: &Pool, version: u64) -> Buffer {
    let mut buffer = pool.get(SLOT).unwrap();
    buffer.extend_from_slice(&version.to_ne_bytes().repeat(SLOT / 8));
    buffer
}

fn record(number: u64) -> Vec<u8> {
    (number + 1).to_ne_bytes().repeat(1 + (number % 50) as usize)
}

/// Writes for ever. `keeps`: does what the promise rests on.
async fn write(way: Way, keeps: bool, disk: Disk, told: Promises) {
    match way {
        SyncDir => names(keeps, told).await,
        Log | DirectLog | LogWithInterval => log(way, keeps, told).await,
        Dsync | Fsync | SyncData | Batch | SyncAll | Atomic => slots(way, keeps, disk, told).await,
    }
}

async fn slots(way: Way, keeps: bool, disk: Disk, told: Promises) {
    let pool = Pool::new(1 << 20);
    let file = options(way).open("slots").await.unwrap();
    if way != SyncAll {
        file.set_len(SLOTS * SLOT as u64).await.unwrap();
    }
    file.sync_all().await.unwrap();
    fs::sync_dir("/").await.unwrap();
    for version in 1.. {
        let place = |slot: u64| if way == SyncAll { (version - 1) * 2 + slot } else { slot };
        let mut chosen: Vec<u64> = (0..3).map(|_| place(disk.random_below(SLOTS))).collect();
        if way == SyncAll {
            chosen = vec![place(0), place(1)];
        }
        chosen.sort_unstable();
        chosen.dedup();
        let at = |slot: u64| slot * SLOT as u64;
        let is_durable_by_itself = matches!(way, Dsync | Fsync);
        if way == Way::Batch {
            let mut batch = ringfile::Batch::new();
            for slot_number in &chosen {
                batch.add(file.write_at(slot(&pool, version), at(*slot_number)));
            }
            batch.barrier();
            if keeps {
                batch.add(file.sync_data());
            }
            for done in batch.await {
                done.result.unwrap();
            }
        } else {
            let writes = chosen.iter().map(|&slot_number| {
                let (file, pool) = (file.clone(), pool.clone());
                ringfile::spawn(async move {
                    let (data, at) = (slot(&pool, version), at(slot_number));
                    match way {
                        Dsync | Fsync if keeps => file.write_durable_at(data, at).await,
                        Atomic if keeps => file.write_atomic_at(data, at).await,
                        _ => file.write_at(data, at).await,
                    }
                })
            });
            for written in writes.collect::<Vec<_>>() {
                written.await.unwrap().unwrap();
            }
        }
        match way {
            SyncAll if keeps => file.sync_all().await.unwrap(),
            SyncData if keeps => file.sync_data().await.unwrap(),
            Atomic => file.sync_data().await.unwrap(),
            _ => assert!(is_durable_by_itself || way == Way::Batch || !keeps),
        }
        for slot in chosen {
            told.borrow_mut().insert(slot, version);
        }
    }
}

async fn names(keeps: bool, told: Promises) {
    for number in 0_u64.. {
        let file = options(SyncDir).open("new").await.unwrap();
        file.write_at(number.to_ne_bytes().repeat(200), 0).await.unwrap();
        file.sync_all().await.unwrap();
        fs::rename("new", format!("name-{number}")).await.unwrap();
        if keeps {
            fs::sync_dir("/").await.unwrap();
        }
        told.borrow_mut().insert(number, 1);
        if let Some(old) = number.checked_sub(5) {
            told.borrow_mut().remove(&old); // it may be there or not
            fs::remove_file(format!("name-{old}")).await.unwrap();
            if keeps {
                fs::sync_dir("/").await.unwrap();
            }
            told.borrow_mut().insert(old, 0);
        }
    }
}

async fn log(way: Way, keeps: bool, told: Promises) {
    let file = options(way).open("log").await.unwrap();
    fs::sync_dir("/").await.unwrap();
    let mut opening = Appender::open(&file, &Pool::new(4 << 20), 0).block(8192);
    if way == LogWithInterval {
        opening = opening.sync_interval(Duration::from_millis(2));
    }
    let log = opening.await.unwrap();
    for number in 0_u64.. {
        log.append(&record(number)).await.unwrap();
        let length = log.len();
        if number % 4 == 3 {
            // While more is appended.
            let (log, told) = (log.clone(), Rc::clone(&told));
            let synced = ringfile::spawn(async move {
                if keeps {
                    log.sync().await.unwrap()
                } else {
                    log.flush().await.unwrap()
                };
                let mut told = told.borrow_mut();
                let before = told.get(&0).copied().unwrap_or(0);
                told.insert(0, before.max(length));
            });
            if number % 16 == 15 {
                synced.await.unwrap();
            }
        }
    }
}

/// Returns whether all that was promised is on the disk.
async fn is_kept(way: Way, promises: BTreeMap<u64, u64>) -> bool {
    match way {
        SyncDir => {
            for (number, exists) in promises {
                let found = match File::open_blocking(format!("name-{number}")) {
                    Ok(file) => file.read_at(Vec::with_capacity(4000), 0).await.unwrap(),
                    Err(_) => Vec::new(),
                };
                let wanted = if exists == 1 { number.to_ne_bytes().repeat(200) } else { Vec::new() };
                if found != wanted {
                    return false;
                }
            }
            true
        }
        Log | DirectLog | LogWithInterval => {
            let length = promises.get(&0).copied().unwrap_or(0) as usize;
            let Ok(file) = File::open_blocking("log") else { return length == 0 };
            let found = file.read_at(Vec::with_capacity(4 << 20), 0).await.unwrap();
            let wanted: Vec<u8> = (0..).flat_map(record).take(length).collect();
            found.starts_with(&wanted)
        }
        Dsync | Fsync | SyncData | Batch | SyncAll | Atomic => {
            let Ok(file) = File::open_blocking("slots") else { return promises.is_empty() };
            for slot in 0..SLOTS.max(promises.keys().max().map_or(0, |last| last + 1)) {
                let found = file.read_at(Vec::with_capacity(SLOT), slot * SLOT as u64).await.unwrap();
                let words: Vec<u64> =
                    found.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
                let least = promises.get(&slot).copied().unwrap_or(0);
                if least > 0 && found.len() < SLOT || words.iter().any(|version| *version < least) {
                    return false;
                }
                if way == Atomic && words.iter().any(|version| *version != words[0]) {
                    return false;
                }
            }
            true
        }
    }
}

/// Runs a way until the power is cut. Returns whether its promises were kept, how many there were, and the fingerprint.
fn try_way(way: Way, keeps: bool, seed: u64, strictness: Strictness) -> (bool, usize, u64) {
    let promises = Promises::default();
    let told = Rc::clone(&promises);
    let harmless =
        Faults::none().short_transfers(0.05).interrupted(0.05).stuck(0.01, Duration::from_millis(20));
    let simulation = Simulation::new(seed).faults(harmless).power_cut_within(1500).strictness(strictness);
    let outcome = simulation.run(|disk| write(way, keeps, disk, told));
    assert!(outcome.result().is_none());
    let promises = promises.take();
    let count = promises.len();
    let is_kept = outcome.disk().run(|_| is_kept(way, promises)).into_result().unwrap();
    (is_kept, count, outcome.fingerprint())
}

#[test]
fn promises_hold_whenever_the_power_is_cut() {
    let promised = std::sync::atomic::AtomicUsize::new(0);
    for way in ALL {
        for_each_seed(seeds(), |seed| {
            for strictness in [Strictness::Journal, Strictness::Posix] {
                let (is_kept, count, _) = try_way(way, true, seed, strictness);
                assert!(is_kept, "{way:?}, {strictness:?}");
                promised.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
            }
        });
    }
    assert!(promised.into_inner() as u64 > seeds().end * 20, "few promises were made");
}

#[test]
fn each_sync_that_is_left_out_is_found_within_a_thousand_seeds() {
    for way in ALL {
        let found = (0..1000).find(|seed| !try_way(way, false, *seed, Strictness::Journal).0);
        println!("{way:?}: seed {found:?}");
        assert!(found.is_some(), "{way:?}");
    }
}

#[test]
fn each_way_runs_in_the_same_order_again() {
    for way in ALL {
        let run = |seed| try_way(way, true, seed, Strictness::Posix).2;
        let (first, again): (Vec<u64>, Vec<u64>) = ((0..20).map(run).collect(), (0..20).map(run).collect());
        assert_eq!(first, again, "{way:?}");
    }
}
