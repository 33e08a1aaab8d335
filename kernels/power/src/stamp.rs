//! The data that is written: sectors that name their record, version and part, and a stream whose bytes are derived
//! from their offset.
//!
//! Every byte of a sector is derived from its stamp, so that no other content can be mistaken for it.

use crate::mix;

/// The size of a sector in bytes. A drive never tears a sector.
pub const SECTOR: usize = 512;

const MAGIC: u64 = 0x7069_6d61_7473_3031;
const HEADER: usize = 40;

/// Says which part of which record a sector is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The file's number.
    pub file: u32,
    /// The record's position in the file.
    pub slot: u64,
    /// How often the record was written before.
    pub version: u64,
    /// The sector's number in the record.
    pub index: u32,
}

impl Stamp {
    /// Returns the sector: a header, its checksum, and bytes that are derived from it.
    pub fn sector(self) -> [u8; SECTOR] {
        let place = u64::from(self.file) << 32 | u64::from(self.index);
        let words = [MAGIC, place, self.slot, self.version];
        let checksum = words.iter().fold(0, |sum, word| mix(sum ^ word));
        let mut sector = [0; SECTOR];
        let numbers = words.into_iter().chain([checksum]);
        let filling = (HEADER..SECTOR).step_by(8).map(|at| mix(checksum ^ at as u64));
        for (to, number) in sector.chunks_exact_mut(8).zip(numbers.chain(filling)) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        sector
    }

    /// Returns the stamp of a sector; `None` if any byte differs.
    pub fn of(sector: &[u8]) -> Option<Self> {
        let word = |number: usize| {
            let bytes = sector.get(8 * number..8 * number + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let place = word(1)?;
        let stamp =
            Self { file: (place >> 32) as u32, slot: word(2)?, version: word(3)?, index: place as u32 };
        (sector == stamp.sector()).then_some(stamp)
    }
}

/// Returns a record of `len` bytes, which are whole sectors.
pub fn record(file: u32, slot: u64, version: u64, len: usize) -> Vec<u8> {
    let sectors = (0..(len / SECTOR) as u32).map(|index| Stamp { file, slot, version, index }.sector());
    sectors.flatten().collect()
}

/// Returns the bytes of a stream from `at` on.
pub fn stream(at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|at| mix(at / 8).to_le_bytes()[(at % 8) as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_read_back_and_no_other_content_passes_for_one() {
        let stamp = Stamp { file: 3, slot: 9, version: 77, index: 1 };
        let mut sector = stamp.sector();
        assert_eq!(Stamp::of(&sector), Some(stamp));
        for at in 0..SECTOR {
            sector[at] ^= 1;
            assert_eq!(Stamp::of(&sector), None, "byte {at}");
            sector[at] ^= 1;
        }
        assert_eq!(Stamp::of(&[0; SECTOR]), None);
        assert_eq!(record(3, 9, 77, 3 * SECTOR)[SECTOR..2 * SECTOR], sector);
    }

    #[test]
    fn a_stream_is_the_same_in_pieces() {
        let whole = stream(0, 100);
        assert_eq!(stream(33, 50), whole[33..83]);
    }
}
