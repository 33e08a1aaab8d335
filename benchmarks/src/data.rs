//! The content of the file, and how a reader checks it.
//!
//! Every 4 KiB page begins with its own offset, as 8 little-endian bytes, and continues with a stream that depends on
//! the offset and cannot be compressed (zram stores a page of equal words as one word, and does no work for it).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use fastrand::Rng;
use ringfile_cli::shared;

use crate::device;

/// The bytes that hold one offset.
pub const PAGE: usize = 4096;

const CHUNK: usize = 1 << 20;

/// The file under test, and how often it is measured.
#[derive(Debug, Args)]
pub struct Place {
    /// The file, or a block device if the command accepts one; a file that does not exist is created and filled
    #[arg(long)]
    pub file: PathBuf,
    /// How many of its bytes to use
    #[arg(long, default_value = "1g", value_parser = shared::size)]
    pub size: u64,
    /// Overwrite the content of the file or the device; a mounted device is refused
    #[arg(long)]
    pub fill: bool,
    /// Remove the file at the end; never a device
    #[arg(long)]
    pub remove: bool,
    /// Rounds of all sides in turn
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Seed of the offsets
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Place {
    /// Makes sure that the file holds what the checks expect. Returns how many of its bytes to use, a multiple of `block`.
    pub fn prepare(&self, block: u64) -> io::Result<u64> {
        if self.rounds == 0 {
            return Err(io::Error::other("rounds: must be at least 1"));
        }
        prepare(&self.file, self.size, self.fill, block)
    }

    /// Removes the file if requested, whatever the result is.
    pub fn clean_up_after(&self, result: io::Result<()>) -> io::Result<()> {
        if self.remove && self.file.is_file() {
            return result.and(std::fs::remove_file(&self.file));
        }
        result
    }
}

/// The numbers below `count`, in an order that depends on the seed alone.
pub fn shuffled(count: u64, seed: u64) -> Arc<[u64]> {
    let mut numbers: Vec<u64> = (0..count).collect();
    Rng::with_seed(seed).shuffle(&mut numbers);
    numbers.into()
}

fn words(offset: u64) -> impl Iterator<Item = u64> {
    let mut rest = Rng::with_seed(offset);
    std::iter::once(offset).chain(std::iter::repeat_with(move || rest.u64(..)))
}

/// Writes the page that belongs at `offset`.
fn write_page(offset: u64, page: &mut [u8]) {
    for (bytes, word) in page.chunks_exact_mut(8).zip(words(offset)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// Returns the offset that a page claims to have; `None` if there are not even 8 bytes.
pub fn claimed_offset(page: &[u8]) -> Option<u64> {
    page.first_chunk().map(|first| u64::from_le_bytes(*first))
}

/// Returns whether every one of `bytes`, which were read at `offset`, is right.
pub fn is_right(offset: u64, bytes: &[u8]) -> bool {
    bytes.chunks(PAGE).enumerate().all(|(page, bytes)| {
        let offset = offset + (page * PAGE) as u64;
        bytes.len().is_multiple_of(8)
            && bytes.chunks_exact(8).zip(words(offset)).all(|(bytes, word)| *bytes == word.to_le_bytes())
    })
}

/// Fills the first `size` bytes, writes them to the device and drops them from the page cache, so that later reads
/// fill the cache with folios of the same sizes for every side.
pub fn fill(file: &File, size: u64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut at = 0;
    while at < size {
        let len = CHUNK.min((size - at) as usize);
        for (page, bytes) in chunk[..len].chunks_mut(PAGE).enumerate() {
            write_page(at + (page * PAGE) as u64, bytes);
        }
        file.write_all_at(&chunk[..len], at)?;
        at += len as u64;
    }
    file.sync_all()?;
    shared::drop_cache(file)
}

/// Returns whether some pages, including the first and the last, hold what [`fill`] writes.
pub fn looks_filled(file: &File, size: u64) -> io::Result<bool> {
    let pages = size / PAGE as u64;
    let mut random = Rng::with_seed(size);
    let mut page = [0; PAGE];
    let probes = [0, pages - 1].into_iter().chain(std::iter::repeat_with(|| random.u64(..pages)).take(62));
    for probe in probes {
        let offset = probe * PAGE as u64;
        match file.read_exact_at(&mut page, offset) {
            Ok(()) if is_right(offset, &page) => {}
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Makes sure that the file holds what the checks expect. Returns how many of its bytes to use, at most `wanted`, a
/// multiple of `block`. Fills a file that does not exist; overwrites one that does only if `may_fill` is set.
pub fn prepare(path: &Path, wanted: u64, may_fill: bool, block: u64) -> io::Result<u64> {
    if may_fill || !path.exists() {
        eprintln!("filling {}", path.display());
        let file = device::open_for_fill(path)?;
        let size = usable(path, wanted, device::length(&file)?, block, may_fill)?;
        fill(&file, size)?;
    }
    let file = File::open(path)?;
    if !path.metadata()?.is_file() && !device::is_block_device(&path.metadata()?) {
        return Err(io::Error::other(format!("{} is neither a file nor a block device", path.display())));
    }
    let size = usable(path, wanted, device::length(&file)?, block, false)?;
    let filled = looks_filled(&file, size)?;
    shared::drop_cache(&file)?;
    if filled {
        return Ok(size);
    }
    Err(io::Error::other(format!(
        "{} does not have the expected content: --fill overwrites it",
        path.display()
    )))
}

fn usable(path: &Path, wanted: u64, length: u64, block: u64, may_grow: bool) -> io::Result<u64> {
    let fixed = device::is_block_device(&path.metadata()?);
    let size = if fixed || (!may_grow && length > 0) { wanted.min(length) } else { wanted };
    let size = size / block * block;
    if size > 0 { Ok(size) } else { Err(io::Error::other(format!("{} is too small", path.display()))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_right_at_its_own_offset_only() {
        let mut pages = [0; 2 * PAGE];
        write_page(8192, &mut pages[..PAGE]);
        write_page(12288, &mut pages[PAGE..]);
        assert_eq!(claimed_offset(&pages), Some(8192));
        assert!(is_right(8192, &pages));
        assert!(!is_right(4096, &pages));
        pages[2 * PAGE - 1] ^= 1;
        assert!(!is_right(8192, &pages));
        assert!(is_right(8192, &pages[..PAGE]));
    }
}
