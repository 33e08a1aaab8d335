//! A log that is cut back again and again, on a simulated disk: after a power cut its valid records are those of the log as
//! it was, and no record that was cut off comes back behind them. If it fails, what it has reported holds. Readers of its tail
//! see what was appended.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use crate::support::seeds::seeds;
use ringfile::sim::{Disk, Faults, Simulation, Strictness, for_each_seed, sleep};
use ringfile::{Appender, File, OpenOptions, Pool, Result, fs};

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
    /// The same of the log as it was before the cutting that is on its way, or has failed.
    before: Option<(Vec<u64>, usize)>,
    /// The bytes of the log, or of the log before it was cut, which is longer.
    content: Vec<u8>,
    /// How many bytes the appender has last said to be durable.
    told: usize,
}

impl Model {
    /// Fails if the log has other bytes there.
    fn has(&self, at: usize, bytes: &[u8]) {
        assert!(
            self.content.get(at..at + bytes.len()) == Some(bytes),
            "{} bytes at {at} are others",
            bytes.len()
        );
    }
}

type Shared = Rc<RefCell<Model>>;

fn options(kind: Kind) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(matches!(kind, Kind::Direct | Kind::DirectRecycled));
    options
}

/// Reads the log's tail, more slowly or faster than it grows, until the log has failed.
async fn follow(disk: Disk, log: Appender, model: Shared) {
    let (mut start, mut failures) = (0, 0);
    loop {
        let mut tail = log.tail().from(start).durable(disk.random_below(3) == 0);
        let error = loop {
            sleep(Duration::from_micros(disk.random_below(3000))).await;
            match tail.next().await.expect("the log is not closed") {
                Ok(piece) => model.borrow().has(tail.position() as usize - piece.len(), &piece),
                Err(error) => break error,
            }
        };
        assert!(tail.next().await.is_none());
        if error.kind() == ErrorKind::InvalidData {
            // It was cut.
            start = disk.random_below(log.len() + 1);
            continue;
        }
        assert_eq!(error.errno(), Some(libc::EIO), "{error}");
        if tail.position() >= log.durable() && log.flush().await.is_err() {
            return;
        }
        // A read has failed, and not the log.
        (start, failures) = (tail.position(), failures + 1);
        assert!(failures < 20, "durable bytes are missing");
    }
}

/// Appends, syncs and cuts until something fails.
async fn use_log(disk: &Disk, log: &Appender, model: &Shared) -> Result<()> {
    let mut ends = vec![0];
    for number in 0.. {
        {
            let model = &mut *model.borrow_mut();
            model.log.push(number);
            model.content.extend(record(number, USE));
        }
        log.append(&record(number, USE)).await?;
        ends.push(log.len());
        match disk.random_below(12) {
            0..3 => {
                let synced = model.borrow().log.len();
                log.sync().await?;
                model.borrow_mut().durable = synced;
            }
            3 => {
                let left = disk.random_below(ends.len() as u64) as usize;
                {
                    let model = &mut *model.borrow_mut();
                    model.before = Some((model.log.clone(), model.durable));
                    model.log.truncate(left);
                    model.durable = model.durable.min(left);
                    model.told = model.told.min(ends[left] as usize);
                }
                ends.truncate(left + 1);
                log.truncate(ends[left]).await?;
                let model = &mut *model.borrow_mut();
                (model.before, model.durable) = (None, left);
                model.content.truncate(ends[left] as usize);
            }
            4 => log.flush().await?,
            _ => {}
        }
        model.borrow_mut().told = log.durable() as usize;
    }
    Ok(())
}

async fn program(kind: Kind, has_errors: bool, disk: Disk, model: Shared) {
    let recycles = matches!(kind, Kind::Recycled | Kind::DirectRecycled);
    let file = options(kind).open("log").await.unwrap();
    let prepare = async {
        if recycles {
            let old: Vec<u8> = (0..200).flat_map(|number| record(number, USE - 1)).collect();
            let old = old[..old.len() / 512 * 512].to_vec();
            file.write_at(old, 0).await?;
        }
        file.sync_all().await?;
        fs::sync_dir("/").await?;
        let kept = disk.random_below(2) as usize * 20_000;
        let opening = Appender::open(&file, &Pool::new(4 << 20), 0).block(8192).recycle(recycles);
        opening.keep_tail(kept).await
    };
    let log = match prepare.await {
        Ok(log) => log,
        Err(_) => return assert!(has_errors),
    };
    let follow = |_| ringfile::spawn(follow(disk.clone(), log.clone(), Rc::clone(&model)));
    let readers: Vec<_> = (0..2).map(follow).collect();
    let error = use_log(&disk, &log, &model).await.unwrap_err();
    assert!(has_errors && error.errno() == Some(libc::EIO), "{error}");
    model.borrow_mut().told = log.durable() as usize;
    for failed in
        [log.append(b"x").await.map(drop), log.sync().await, log.truncate(0).await, log.close().await]
    {
        assert_eq!(failed.unwrap_err().errno(), Some(libc::EIO));
    }
    let written = loop {
        match file.read_exact_at(vec![0; log.written() as usize], 0).await {
            Ok(written) => break written,
            Err(error) => assert_eq!(error.errno(), Some(libc::EIO), "{}", error.error()),
        }
    };
    model.borrow().has(0, &written);
    for reader in readers {
        reader.await.unwrap();
    }
}

async fn check(kind: Kind, model: Model) {
    let Ok(file) = File::open_blocking("log") else {
        return assert_eq!(model.durable, 0);
    };
    let bytes = file.read_at(Vec::with_capacity(1 << 20), 0).await.unwrap();
    model.has(0, bytes.get(..model.told).expect("what was durable is there"));
    let found = parse(&bytes);
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

/// Cuts the power of a program with each seed.
fn cut_power(has_errors: bool) {
    for kind in [Kind::Buffered, Kind::Direct, Kind::Recycled, Kind::DirectRecycled] {
        for_each_seed(seeds(), |seed| {
            let mut faults =
                Faults::none().short_transfers(0.05).interrupted(0.05).stuck(0.01, Duration::from_millis(20));
            if has_errors {
                faults = faults.read_errors(0.005).write_errors(0.005).sync_errors(0.005);
            }
            let strictness = if seed % 2 == 0 { Strictness::Journal } else { Strictness::Posix };
            let simulation = Simulation::new(seed).faults(faults).strictness(strictness);
            let model = Shared::default();
            let told = Rc::clone(&model);
            let outcome = simulation.power_cut_within(1500).run(|disk| program(kind, has_errors, disk, told));
            assert!(has_errors || outcome.result().is_none());
            outcome.disk().run(|_| check(kind, model.take())).into_result().unwrap();
        });
    }
}

#[test]
fn a_log_that_is_cut_back_has_no_old_records_behind_its_end() {
    cut_power(false);
}

#[test]
fn a_log_that_fails_keeps_what_it_has_reported() {
    cut_power(true);
}
