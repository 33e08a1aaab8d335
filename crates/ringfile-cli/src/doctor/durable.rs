//! Times the ways to write 4 KiB durably, on a file without a name.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::io::{ReadWriteFlags, pwritev2};
use serde::{Deserialize, Serialize};

use super::direct::{median_us, us};
use super::subjects::{Subjects, TRIED};
use crate::memory::zeroed;
use crate::sys::ring::{Op, TrialRing};

/// One way to write durably, and its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Durable {
    /// The way.
    pub way: DurableWay,
    /// The median of the rounds, in µs.
    pub median_us: f64,
    /// The quickest round.
    pub least_us: f64,
    /// The slowest round.
    pub most_us: f64,
    /// How many rounds there was time for.
    pub rounds: usize,
}

/// How a write is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DurableWay {
    /// A write, then `fdatasync`.
    WriteFdatasync,
    /// One write with RWF_DSYNC.
    Dsync,
    /// A write and an fdatasync linked in the ring.
    RingLinked,
    /// One direct write with RWF_DSYNC.
    DirectDsync,
}

impl DurableWay {
    /// Returns the name of the way in words.
    pub fn text(self) -> &'static str {
        match self {
            DurableWay::WriteFdatasync => "write, then fdatasync",
            DurableWay::Dsync => "RWF_DSYNC",
            DurableWay::RingLinked => "write and fdatasync linked in the ring",
            DurableWay::DirectDsync => "direct with RWF_DSYNC",
        }
    }
}

/// The time for all rounds of all ways. One write to a slow disk may take longer; the caller has a deadline of its own.
const BUDGET: Duration = Duration::from_millis(150);

/// Rounds of each way, if the disk is fast enough.
const ROUNDS: usize = 9;

const BLOCK: usize = 4096;

/// Times all ways in turn, and returns them fastest first; none if writes can't be tried.
pub fn look(subjects: &Subjects) -> Vec<Durable> {
    let Some(file) = &subjects.writes else { return Vec::new() };
    // Otherwise the first way would also write the file's earlier content.
    if file.sync_all().is_err() {
        return Vec::new();
    }
    let mut ring = TrialRing::new(8).ok();
    let memory = zeroed(BLOCK);
    let all =
        [DurableWay::WriteFdatasync, DurableWay::Dsync, DurableWay::RingLinked, DurableWay::DirectDsync];
    let mut times: [Vec<Duration>; 4] = Default::default();
    let began = Instant::now();
    'rounds: for round in 0..ROUNDS {
        // Each round starts with another way, because work that one way leaves to the disk slows the next.
        for turn in 0..all.len() {
            let way = (round + turn) % all.len();
            let (way, times) = (all[way], &mut times[way]);
            if began.elapsed() > BUDGET {
                break 'rounds;
            }
            let place = (round * BLOCK % TRIED) as u64;
            let before = Instant::now();
            if write(way, subjects, file, ring.as_mut(), &memory, place).is_ok() {
                times.push(before.elapsed());
            }
        }
    }
    let mut found: Vec<Durable> =
        all.into_iter().zip(&mut times).filter_map(|(way, times)| Durable::of(way, times)).collect();
    found.sort_by(|a, b| a.median_us.total_cmp(&b.median_us));
    found
}

impl Durable {
    fn of(way: DurableWay, times: &mut [Duration]) -> Option<Durable> {
        let median_us = median_us(times)?;
        let tenths = |time: Option<&Duration>| time.map_or(median_us, |time| us(*time));
        // Sorted by now.
        let (least_us, most_us) = (tenths(times.first()), tenths(times.last()));
        Some(Durable { way, median_us, least_us, most_us, rounds: times.len() })
    }
}

fn write(
    way: DurableWay,
    subjects: &Subjects,
    file: &File,
    ring: Option<&mut TrialRing>,
    bytes: &[u8],
    place: u64,
) -> io::Result<()> {
    let dsync = |file: &File| match pwritev2(file, &[IoSlice::new(bytes)], place, ReadWriteFlags::DSYNC)? {
        BLOCK => Ok(()),
        _ => Err(io::Error::from(io::ErrorKind::WriteZero)),
    };
    match way {
        DurableWay::WriteFdatasync => file.write_all_at(bytes, place).and_then(|()| file.sync_data()),
        DurableWay::Dsync => dsync(file),
        DurableWay::DirectDsync => dsync(subjects.direct(true).ok_or(io::ErrorKind::Unsupported)?),
        DurableWay::RingLinked => {
            let ring = ring.ok_or(io::ErrorKind::Unsupported)?;
            match ring.run(file, &[Op::WriteLinked(BLOCK as u32, place), Op::Fdatasync])?[..] {
                [count, 0] if count == BLOCK as i32 => Ok(()),
                _ => Err(io::Error::from(io::ErrorKind::WriteZero)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_that_there_is_was_timed() {
        let file = tempfile::tempfile().expect("temporary file");
        file.write_all_at(&[1; TRIED], 0).expect("write");
        let subjects = Subjects { writes: Some(file), ..Subjects::default() };
        let found = look(&subjects);
        assert!(found.len() >= 2 && found.iter().all(|way| way.rounds >= 1), "{found:?}");
        assert!(found.is_sorted_by(|a, b| a.median_us <= b.median_us), "{found:?}");
        assert!(!found.iter().any(|way| way.way == DurableWay::DirectDsync), "there is no file for it");
        assert!(look(&Subjects::default()).is_empty());
    }
}
