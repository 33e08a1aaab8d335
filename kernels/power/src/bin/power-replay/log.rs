//! The log that qemu's blklogwrites writes, in the format of Linux's dm-log-writes.
//!
//! qemu adds an entry when the data of a write is in the drive's cache, and when a flush begins (the file behind the
//! drive ignores flushes, so that nothing happens in between). So a flush covers the entries before it, and a write
//! that was in flight when it began comes after it.

use std::ops::Range;
use std::path::Path;

use ringfile_power::promise::{self, Promise};
use ringfile_power::stamp::SECTOR;

use crate::Outcome;

pub const MAGIC: u64 = 0x006a_7366_7773_6872;
pub const FLUSH: u64 = 1;
pub const FUA: u64 = 2;
const DISCARD: u64 = 4;

/// The offset of the file system on the drive; the reports come after it.
pub const FIRST: usize = 1 << 20;

/// What happened to the drive.
pub enum Entry {
    Flush,
    /// A write to the file system.
    Write {
        /// Offset in the file system, in bytes.
        at: usize,
        data: Range<usize>,
        /// Whether the write was durable when it ended, without a flush (forced unit access).
        fua: bool,
    },
    Report(u64, Vec<Promise>),
}

/// The log; see the module.
pub struct Log {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl Log {
    /// Reads the log of a drive whose file system has a size of `filesystem` bytes.
    pub fn read(path: &Path, filesystem: usize) -> Outcome<Self> {
        let failed = |why| format!("{}: {why}", path.display());
        let bytes = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
        Self::of(bytes, filesystem).map_err(failed)
    }

    /// As [`read`](Self::read), from the bytes of the log.
    pub fn of(bytes: Vec<u8>, filesystem: usize) -> Outcome<Self> {
        let mut log = Self { bytes, entries: Vec::new() };
        if log.word(0, 0) != Some(MAGIC) {
            return Err("not a log of dm-log-writes".into());
        }
        let mut place = SECTOR;
        // The header counts only the entries up to the last flush. The file ends after the last entry.
        while let Some([sector, sectors, flags]) = log.header(place) {
            place += SECTOR;
            let len = sectors as usize * SECTOR;
            let data = place..place + len;
            place = data.end;
            if flags & DISCARD != 0 || flags & !(FLUSH | FUA) != 0 || data.end > log.bytes.len() {
                return Err(format!("entry {} has flags {flags:#x}", log.entries.len()));
            }
            if flags & FLUSH != 0 {
                log.entries.push(Entry::Flush);
            } else if let Some(at) = (sector as usize * SECTOR).checked_sub(FIRST) {
                let entry = match at < filesystem {
                    true => Entry::Write { at, data, fua: flags & FUA != 0 },
                    false => log.report(data)?,
                };
                log.entries.push(entry);
            } else {
                return Err("there is a write before the first partition".into());
            }
        }
        Ok(log)
    }

    fn word(&self, place: usize, number: usize) -> Option<u64> {
        let bytes = self.bytes.get(place + 8 * number..place + 8 * number + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Returns sector, sectors and flags of this entry.
    fn header(&self, place: usize) -> Option<[u64; 3]> {
        let header = [self.word(place, 0)?, self.word(place, 1)?, self.word(place, 2)?];
        (header != [0; 3]).then_some(header)
    }

    fn report(&self, data: Range<usize>) -> Outcome<Entry> {
        let report = promise::of(&self.bytes[data]).ok_or("a report cannot be read")?;
        Ok(Entry::Report(report.0, report.1))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the positions of the reports.
    pub fn reports(&self) -> Vec<usize> {
        self.places(|entry| matches!(entry, Entry::Report(..)))
    }

    /// Returns the positions of the writes to the file system.
    pub fn writes(&self) -> Vec<usize> {
        self.places(|entry| matches!(entry, Entry::Write { .. }))
    }

    /// Returns the positions of the flushes.
    pub fn flushes(&self) -> Vec<usize> {
        self.places(|entry| matches!(entry, Entry::Flush))
    }

    fn places(&self, is: impl Fn(&Entry) -> bool) -> Vec<usize> {
        let places = self.entries.iter().enumerate();
        places.filter(|(_, entry)| is(entry)).map(|(place, _)| place).collect()
    }

    pub fn reports_in(&self, range: Range<usize>) -> impl Iterator<Item = (u64, &[Promise])> {
        self.entries[range].iter().filter_map(|entry| match entry {
            Entry::Report(number, promises) => Some((*number, &promises[..])),
            Entry::Flush | Entry::Write { .. } => None,
        })
    }

    /// Returns the writes to the file system among these entries: offset, data, and whether they are durable without a
    /// flush.
    pub fn writes_in(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &[u8], bool)> {
        self.entries[range].iter().filter_map(|entry| match entry {
            Entry::Write { at, data, fua } => Some((*at, &self.bytes[data.clone()], *fua)),
            Entry::Flush | Entry::Report(..) => None,
        })
    }

    /// Returns the position of the last flush before `moment`; 0 if there is none.
    pub fn last_flush_before(&self, moment: usize) -> usize {
        self.entries[..moment].iter().rposition(|entry| matches!(entry, Entry::Flush)).unwrap_or(0)
    }
}
