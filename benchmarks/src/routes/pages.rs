//! The pages that writes leave behind, and the check that all of them arrived.
//!
//! A written page begins with its own offset, as every page does, continues with the number of the run, and is filled
//! with bytes that depend on that number only. So two writes of one run to one page write the same bytes, and a page
//! that this run should have overwritten differs from one of an earlier run.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use fastrand::Rng;

use crate::data::{self, PAGE};

const CHUNK: usize = 1 << 20;

/// Returns a page of run `run`, without its offset.
pub fn blank(run: u64) -> [u8; PAGE] {
    let mut random = Rng::with_seed(run);
    let mut page = [0; PAGE];
    for (index, bytes) in page.chunks_exact_mut(8).enumerate() {
        let word = if index == 1 { run } else { random.u64(..) };
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    page
}

/// Stores the page's offset in the page.
#[inline]
pub fn stamp(page: &mut [u8], offset: u64) {
    page[..8].copy_from_slice(&offset.to_le_bytes());
}

/// Records which pages were written.
#[derive(Debug, Clone)]
pub struct Written(Vec<u64>);

impl Written {
    /// Creates an empty record for a file of `size` bytes.
    pub fn none(size: u64) -> Written {
        Written(vec![0; (size as usize / PAGE).div_ceil(64)])
    }

    /// Records the page at this offset.
    #[inline]
    pub fn set(&mut self, offset: u64) {
        let page = offset as usize / PAGE;
        self.0[page / 64] |= 1 << (page % 64);
    }

    /// Adds the pages that another task wrote.
    pub fn add(&mut self, other: &Written) {
        self.0.iter_mut().zip(&other.0).for_each(|(all, more)| *all |= more);
    }

    fn has(&self, offset: u64) -> bool {
        let page = offset as usize / PAGE;
        self.0[page / 64] >> (page % 64) & 1 != 0
    }
}

/// Reads the whole file, and returns the number of written pages. Every byte of a written page must be this run's; the
/// other pages must not be this run's.
pub fn check(file: &File, size: u64, run: u64, written: &Written) -> io::Result<u64> {
    let mut expected = blank(run);
    let mut chunk = vec![0; CHUNK];
    let (mut at, mut checked) = (0, 0);
    while at < size {
        let len = CHUNK.min((size - at) as usize);
        file.read_exact_at(&mut chunk[..len], at)?;
        for (index, page) in chunk[..len].chunks_exact(PAGE).enumerate() {
            let offset = at + (index * PAGE) as u64;
            stamp(&mut expected, offset);
            let is_of_run = page == expected;
            if is_of_run != written.has(offset) || data::claimed_offset(page) != Some(offset) {
                return Err(io::Error::other(format!(
                    "the page at {offset} is wrong: this run wrote it: {}; it has this run's content: {is_of_run}",
                    written.has(offset)
                )));
            }
            checked += u64::from(is_of_run);
        }
        at += len as u64;
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_got_lost_or_went_astray_is_noticed() {
        let path = std::env::temp_dir().join(format!("ringfile-pages-test-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let size = 16 * PAGE as u64;
        data::fill(&file, size).unwrap();
        let mut written = Written::none(size);
        assert_eq!(check(&file, size, 9, &written).unwrap(), 0);

        let offset = 3 * PAGE as u64;
        written.set(offset);
        assert!(check(&file, size, 9, &written).is_err(), "lost");
        let mut page = blank(9);
        stamp(&mut page, offset);
        file.write_all_at(&page, offset).unwrap();
        assert_eq!(check(&file, size, 9, &written).unwrap(), 1);
        assert!(check(&file, size, 10, &written).is_err(), "another run's");
        assert!(check(&file, size, 9, &Written::none(size)).is_err(), "not asked for");

        file.write_all_at(&page, 2 * offset).unwrap();
        assert!(check(&file, size, 9, &written).is_err(), "astray");
    }
}
