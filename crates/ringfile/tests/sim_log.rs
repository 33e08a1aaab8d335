//! A log that is cut back again and again, on a simulated disk: after a power cut its valid records are those of the log as
//! it was, and no record that was cut off comes back behind them.

#![allow(clippy::unwrap_used, reason = "a test panics on anything unexpected")]

#[path = "support/seeds.rs"]
mod seeds;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ringfile::sim::{Disk, Faults, Simulation, Strictness, for_each_seed};
use ringfile::{Appender, File, OpenOptions, Pool, fs};
use seeds::seeds;

const USE: u64 = 2;

/// A record: the use of the file, a number that no other record has, its length, and a checksum.
fn record(number: u64, of: u64) -> Vec<u8> {
    let len = 32 + number.wrapping_mul(7919) % 600 / 8 * 8;
    let sum = (number ^ of.rotate_left(32) ^ len).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes: Vec<u8> = [of, number, len, sum].iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.resize(len as usize, number as u8 | 1);
    bytes
}

/// Returns the valid records at the start of some bytes.
fn parse(mut bytes: &[u8]) -> Vec<u64> {
    let mut found = Vec::new();
    while bytes.len() >= 32 {
        let number = u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
        let expected = record(number, USE);
        if !bytes.starts_with(&expected) {
            break;
        }
        found.push(number);
        bytes = &bytes[expected.len()..];
    }
    found
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Buffered,
    Direct,
    Recycled,
    DirectRecycled,
}

/// What may be found after a cut.
#[derive(Default)]
struct Model {
    log: Vec<u64>,
    /// How many of its records are durable.
    durable: usize,
    /// The same of the log as it was before the cutting that is on its way.
    before: Option<(Vec<u64>, usize)>,
}

fn options(kind: Kind) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(matches!(kind, Kind::Direct | Kind::DirectRecycled));
    options
}

async fn program(kind: Kind, disk: Disk, model: Rc<RefCell<Model>>) {
    let recycles = matches!(kind, Kind::Recycled | Kind::DirectRecycled);
    let file = fs::open("log", &options(kind)).await.unwrap();
    if recycles {
        let old: Vec<u8> = (0..200).flat_map(|number| record(number, USE - 1)).collect();
        let old = old[..old.len() / 512 * 512].to_vec();
        file.write_at(old, 0).await.unwrap();
    }
    file.sync_all().await.unwrap();
    fs::sync_dir("/").await.unwrap();
    let opening = Appender::open(&file, &Pool::new(4 << 20), 0).block(8192).recycle(recycles);
    let log = opening.await.unwrap();
    let mut ends = vec![0];
    for number in 0.. {
        model.borrow_mut().log.push(number);
        log.append(&record(number, USE)).await.unwrap();
        ends.push(log.len());
        match disk.random_below(12) {
            0..3 => {
                let synced = model.borrow().log.len();
                log.sync().await.unwrap();
                model.borrow_mut().durable = synced;
            }
            3 => {
                let left = disk.random_below(ends.len() as u64) as usize;
                {
                    let model = &mut *model.borrow_mut();
                    model.before = Some((model.log.clone(), model.durable));
                    model.log.truncate(left);
                    model.durable = model.durable.min(left);
                }
                ends.truncate(left + 1);
                log.truncate(ends[left]).await.unwrap();
                let model = &mut *model.borrow_mut();
                (model.before, model.durable) = (None, left);
            }
            4 => log.flush().await.unwrap(),
            _ => {}
        }
    }
}

async fn check(kind: Kind, model: Model) {
    let Ok(file) = File::open("log") else {
        return assert_eq!(model.durable, 0);
    };
    let found = parse(&file.read_at(Vec::with_capacity(1 << 20), 0).await.unwrap());
    // While it is cut, it has one end or the other.
    let is_one = |log: &[u64], durable: usize| log.starts_with(&found) && found.len() >= durable;
    assert!(
        is_one(&model.log, model.durable)
            || model.before.as_ref().is_some_and(|(log, durable)| is_one(log, *durable)),
        "{kind:?}: found {found:?}, of {:?}, {} durable; before the cutting that was on its way: {:?}",
        model.log,
        model.durable,
        model.before
    );
}

#[test]
fn a_log_that_is_cut_back_has_no_old_records_behind_its_end() {
    for kind in [Kind::Buffered, Kind::Direct, Kind::Recycled, Kind::DirectRecycled] {
        for_each_seed(seeds(), |seed| {
            let harmless =
                Faults::none().short_transfers(0.05).interrupted(0.05).stuck(0.01, Duration::from_millis(20));
            let strictness = if seed % 2 == 0 { Strictness::Journal } else { Strictness::Posix };
            let simulation = Simulation::new(seed).faults(harmless).strictness(strictness);
            let model = Rc::new(RefCell::new(Model::default()));
            let told = Rc::clone(&model);
            let outcome = simulation.power_cut_within(1500).run(|disk| program(kind, disk, told));
            assert!(outcome.result().is_none());
            outcome.disk().run(|_| check(kind, model.take())).into_result().unwrap();
        });
    }
}
