//! What the guest reports, and the sector that holds the report.
//!
//! A report is one sector, which is written to another partition of the same drive after the library has reported that the
//! data is durable. So its entry in the drive's log comes after that moment: a power cut after the report's entry is also
//! after the library's answer.

use crate::mix;
use crate::stamp::SECTOR;

const MAGIC: u64 = 0x6d6f_7270_6569_7365;
/// The number of words in a promise.
const WORDS: usize = 4;
/// The largest number of promises that fit into a sector, after its header.
pub const MOST: usize = (SECTOR / 8 - 4) / WORDS;

/// What must be true from the report on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Promise {
    /// The slot of this file has this version or a later one.
    Slot {
        /// The file's number.
        file: u32,
        /// The number of the slot.
        slot: u64,
        /// The version.
        version: u64,
    },
    /// The file with this number in its name exists and is complete.
    Created(u64),
    /// The file may no longer exist.
    Removing(u64),
    /// The file no longer exists.
    Removed(u64),
    /// The log has this many valid bytes.
    Appended {
        /// The number of the log.
        log: u64,
        /// The number of valid bytes.
        len: u64,
    },
    /// Nothing is promised: this many steps of a program have returned.
    Returned {
        /// The number of the run of a program.
        run: u64,
        /// The number of the program.
        program: u64,
        /// The number of steps.
        steps: u64,
    },
}

impl Promise {
    fn words(self) -> [u64; WORDS] {
        match self {
            Self::Slot { file, slot, version } => [1, file.into(), slot, version],
            Self::Created(number) => [2, number, 0, 0],
            Self::Removing(number) => [3, number, 0, 0],
            Self::Removed(number) => [4, number, 0, 0],
            Self::Appended { log, len } => [5, log, len, 0],
            Self::Returned { run, program, steps } => [6, run, program, steps],
        }
    }

    fn of(words: &[u64]) -> Option<Self> {
        Some(match *words {
            [1, file, slot, version] => Self::Slot { file: file.try_into().ok()?, slot, version },
            [2, number, ..] => Self::Created(number),
            [3, number, ..] => Self::Removing(number),
            [4, number, ..] => Self::Removed(number),
            [5, log, len, _] => Self::Appended { log, len },
            [6, run, program, steps] => Self::Returned { run, program, steps },
            _ => return None,
        })
    }
}

/// Returns the sector of a report. At most [`MOST`] promises fit.
pub fn sector(number: u64, promises: &[Promise]) -> [u8; SECTOR] {
    let mut words = vec![MAGIC, number, promises.len() as u64, 0];
    words.extend(promises.iter().flat_map(|promise| promise.words()));
    words[3] = checksum(&words);
    let mut sector = [0; SECTOR];
    for (to, word) in sector.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    sector
}

/// Returns the report in a sector: its number, and its promises. `None` if it is not a report.
pub fn of(sector: &[u8]) -> Option<(u64, Vec<Promise>)> {
    let mut words = Vec::new();
    for word in sector.chunks_exact(8) {
        words.push(u64::from_le_bytes(word.try_into().ok()?));
    }
    let &[MAGIC, number, count, sum, ..] = &words[..] else { return None };
    words.truncate(4 + usize::try_from(count).ok()?.checked_mul(WORDS)?);
    *words.get_mut(3)? = 0;
    (checksum(&words) == sum).then_some(())?;
    let promises = words[4..].chunks(WORDS).map(Promise::of).collect::<Option<Vec<_>>>()?;
    Some((number, promises))
}

fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| mix(sum ^ word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_back() {
        let mut promises = vec![
            Promise::Slot { file: 1, slot: 2, version: 3 },
            Promise::Created(4),
            Promise::Removing(4),
            Promise::Removed(4),
            Promise::Appended { log: 1, len: 5 },
            Promise::Returned { run: 3, program: 2, steps: 1 },
        ];
        promises.resize(MOST, Promise::Created(9));
        let mut made = sector(42, &promises);
        assert_eq!(of(&made), Some((42, promises)));
        made[100] ^= 1;
        assert_eq!(of(&made), None);
        assert_eq!(of(&[0; SECTOR]), None);
    }
}
