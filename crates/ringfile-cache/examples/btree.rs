//! Looks keys up in a B-tree whose pages of 4 KiB are read through a page cache. The tree is built in a file first, from
//! the leaves up. A node is an array of pairs: key and value, or the first key of a child and its page.

use std::io::{self, BufWriter, Write};

use ringfile::{OpenOptions, block_on};
use ringfile_cache::{Cache, CachedFile};

const PAGE: usize = 4096;
const PAIRS: usize = PAGE / 16;
const KEYS: u64 = 200_000;
const LOOK_UPS: u64 = 20_000;

/// Writes the nodes of one level after another. Returns the root's page, which is the last, and the number of levels.
fn build(mut file: impl Write) -> io::Result<(u64, usize)> {
    let mut level: Vec<(u64, u64)> = (0..KEYS).map(|number| (number * 3, number)).collect();
    let (mut page, mut height) = (0, 0);
    while height == 0 || level.len() > 1 {
        let mut parents = Vec::new();
        for node in level.chunks(PAIRS) {
            let mut bytes = [0xff; PAGE]; // behind the last pair, keys are larger than any that is looked up
            for (place, (key, value)) in bytes.chunks_exact_mut(16).zip(node) {
                place[..8].copy_from_slice(&key.to_le_bytes());
                place[8..].copy_from_slice(&value.to_le_bytes());
            }
            file.write_all(&bytes)?;
            parents.push((node[0].0, page));
            page += 1;
        }
        (level, height) = (parents, height + 1);
    }
    file.flush()?;
    Ok((page - 1, height))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Returns the value of a key.
fn look_up(tree: &CachedFile, (mut page, height): (u64, usize), key: u64) -> io::Result<Option<u64>> {
    let mut found = 0;
    for _ in 0..height {
        // In memory: no lock, no system call, no copy.
        let node = tree.get(page).map_or_else(|| block_on(tree.read(page)), Ok)?;
        let (pairs, _) = node.as_chunks::<16>();
        let place = pairs.partition_point(|pair| number(&pair[..8]) <= key).saturating_sub(1);
        (found, page) = (number(&pairs[place][..8]), number(&pairs[place][8..]));
    }
    Ok((found == key).then_some(page))
}

fn main() -> io::Result<()> {
    let folder = tempfile::tempdir_in(".")?;
    let path = folder.path().join("btree.bin");
    let (root, height) = build(BufWriter::new(std::fs::File::create(&path)?))?;
    let cache = Cache::new(root as usize * PAGE / 2)?; // half of the tree fits
    let file = OpenOptions::new().read(true).direct(true).buffered_fallback(true).open_blocking(&path)?;
    let tree = cache.open(file, PAGE)?;
    let mut random = 1_u64;
    for _ in 0..LOOK_UPS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (random >> 33) % KEYS;
        let key = at * at / KEYS * 3 + (random >> 20) % 2; // small ones more often; half of them are not there
        assert_eq!(look_up(&tree, (root, height), key)?, key.is_multiple_of(3).then_some(key / 3));
    }
    let metrics = tree.metrics();
    println!(
        "{} pages in {height} levels, {LOOK_UPS} look-ups: {} hits, {} misses",
        root + 1,
        metrics.hits,
        metrics.misses
    );
    Ok(())
}
