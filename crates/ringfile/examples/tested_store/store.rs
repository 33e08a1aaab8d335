//! A small store with a write-ahead log and a B-tree, on the library's public interface.
//!
//! The file `log` has a record for each transaction. The file `pages` has the nodes of the tree as they were at the last
//! checkpoint; the program keeps them in memory. A checkpoint writes the changed pages to the log, so that a page that is
//! torn in its place can be written again, then to their places, and empties the log.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, Result};
use std::path::Path;

use ringfile::{Batch, File, OpenOptions, fs};

/// Keys and values.
pub type Pairs = Vec<[u64; 2]>;

const PAGE_WORDS: usize = 512;
/// The entries of a page: few, so that small tests have deep trees.
const MOST_ENTRIES: usize = 8;
const CHECKPOINT_AFTER: usize = 10;
const TRANSACTION: u64 = 1;
const PAGES: u64 = 2;

/// Mistakes for the test to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    AcknowledgesBeforeSync,
    LogsNoPages,
    EmptiesLogTooEarly,
}

// ---- Records: a checksum, a number, a kind, a length, and as many words ----

fn checksum(words: &[u64]) -> u64 {
    let mix = |sum: u64, word: &u64| (sum ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    words.iter().fold(0xcbf2_9ce4_8422_2325, mix) // not 0: zeros must not be valid
}

fn seal(number: u64, kind: u64, body: &[u64]) -> Vec<u64> {
    let mut words = [&[0, number, kind, body.len() as u64], body].concat();
    words[0] = checksum(&words[1..]);
    words
}

/// Returns the number, the kind and the body of the record at the beginning, if there is a valid one.
fn unseal(words: &[u64]) -> Option<(u64, u64, &[u64])> {
    let [sum, number, kind, len, body @ ..] = words else { return None };
    let body = body.get(..usize::try_from(*len).ok()?)?;
    (*sum == checksum(&words[1..4 + body.len()])).then_some((*number, *kind, body))
}

fn to_bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

async fn read_words(file: &File) -> Result<Vec<u64>> {
    let bytes = file.read_exact_at(vec![0; file.size()? as usize], 0).await?;
    Ok(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// Returns where a page that is sealed with its number lies.
fn place(page: &[u64]) -> u64 {
    page[1] * 8 * PAGE_WORDS as u64
}

// ---- The tree ----

/// Keys with values, or, above level 0, keys with the numbers of pages: the first of these stands for all smaller keys.
#[derive(Default)]
struct Page {
    level: u64,
    entries: Pairs,
}

#[derive(Default)]
struct Tree {
    /// The first is the root.
    pages: Vec<Page>,
    changed: BTreeSet<usize>,
}

impl Tree {
    fn put(&mut self, [key, value]: [u64; 2]) {
        if let Some(right) = self.put_below(0, key, value) {
            let left = std::mem::take(&mut self.pages[0]);
            self.pages[0] = Page { level: left.level + 1, entries: vec![[0, self.add(left)], right] };
        }
    }

    /// Fails unless each page is there that another one names. Makes the root of an empty tree.
    fn check(&mut self) -> Result<()> {
        if self.pages.is_empty() {
            self.add(Page::default());
        }
        let level = |page: u64| self.pages.get(page as usize).map(|page| page.level);
        for Page { entries, level: above } in self.pages.iter().filter(|page| page.level > 0) {
            if entries.iter().any(|[_, page]| level(*page) != Some(above - 1)) {
                return Err(Error::other("a page is missing"));
            }
        }
        Ok(())
    }

    fn add(&mut self, page: Page) -> u64 {
        self.changed.insert(self.pages.len());
        self.pages.push(page);
        self.pages.len() as u64 - 1
    }

    /// If the page is split, returns the first key and the number of the new one.
    fn put_below(&mut self, page: usize, mut key: u64, mut value: u64) -> Option<[u64; 2]> {
        let Page { level, entries } = &self.pages[page];
        if *level > 0 {
            let child = entries.partition_point(|[first, _]| *first <= key).saturating_sub(1);
            [key, value] = self.put_below(entries[child][1] as usize, key, value)?;
        }
        self.changed.insert(page);
        let Page { level, entries } = &mut self.pages[page];
        match entries.binary_search_by_key(&key, |entry| entry[0]) {
            Ok(at) => entries[at][1] = value,
            Err(at) => entries.insert(at, [key, value]),
        }
        if entries.len() <= MOST_ENTRIES {
            return None;
        }
        let right = Page { level: *level, entries: entries.split_off(MOST_ENTRIES / 2) };
        Some([right.entries[0][0], self.add(right)])
    }

    fn pairs_below(&self, page: usize) -> Pairs {
        match &self.pages[page] {
            Page { level: 0, entries } => entries.clone(),
            Page { entries, .. } => {
                entries.iter().flat_map(|[_, page]| self.pairs_below(*page as usize)).collect()
            }
        }
    }
}

// ---- The store ----

pub struct Store {
    log: File,
    pages: File,
    tree: Tree,
    /// The words in the log.
    end: usize,
    /// The number of the last record. Each has the next one, so that what an emptied log has had is not part of it again.
    number: u64,
    /// The transactions in the log.
    logged: usize,
    /// After an error, only opening the store again tells what is in its files.
    has_failed: bool,
    bug: Option<Bug>,
}

impl Store {
    /// Opens or creates a store in a folder, and recovers what is in its log.
    pub async fn open(folder: &Path, bug: Option<Bug>) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let log = options.open(folder.join("log")).await?;
        let pages = options.open(folder.join("pages")).await?;
        fs::sync_dir(folder).await?;

        let found = read_words(&log).await?;
        let (mut end, mut number, mut records) = (0, 0, Vec::new());
        while let Some((next, kind, body)) = unseal(&found[end..])
            && (end == 0 || next == number + 1)
        {
            (end, number) = (end + 4 + body.len(), next);
            records.push((kind, body));
        }
        // If a sync has failed before, what was read may be in the page cache alone.
        log.write_at(to_bytes(&found[..end]), 0).await?;
        log.set_len(8 * end as u64).await?;
        log.sync_all().await?;

        for (_, body) in records.iter().filter(|(kind, _)| *kind == PAGES) {
            for page in body.chunks(PAGE_WORDS) {
                pages.write_at(to_bytes(page), place(page)).await?;
            }
        }
        pages.sync_all().await?;
        let mut tree = Tree::default();
        for page in read_words(&pages).await?.chunks(PAGE_WORDS) {
            let (_, level, entries) = unseal(page).ok_or_else(|| Error::other("a page is damaged"))?;
            tree.pages.push(Page { level, entries: entries.as_chunks().0.to_vec() });
        }
        tree.check()?;
        records.retain(|(kind, _)| *kind == TRANSACTION);
        records.iter().flat_map(|(_, body)| body.as_chunks().0).for_each(|pair| tree.put(*pair));
        Ok(Self { log, pages, tree, end, number, logged: records.len(), has_failed: false, bug })
    }

    pub fn pairs(&self) -> BTreeMap<u64, u64> {
        self.tree.pairs_below(0).into_iter().map(<(u64, u64)>::from).collect()
    }

    /// Puts all these pairs. They are durable when this returns; after an error or a power cut, all are there or none.
    pub async fn commit(&mut self, pairs: &[[u64; 2]]) -> Result<()> {
        // A future that is dropped half-way has failed too.
        if std::mem::replace(&mut self.has_failed, true) {
            return Err(Error::other("an earlier transaction has failed"));
        }
        self.append(TRANSACTION, pairs.as_flattened()).await?;
        if self.bug != Some(Bug::AcknowledgesBeforeSync) {
            self.log.sync_data().await?;
        }
        pairs.iter().for_each(|pair| self.tree.put(*pair));
        self.logged += 1;
        if self.logged >= CHECKPOINT_AFTER {
            self.checkpoint().await?;
        }
        self.has_failed = false;
        Ok(())
    }

    async fn append(&mut self, kind: u64, body: &[u64]) -> Result<()> {
        self.number += 1;
        let record = seal(self.number, kind, body);
        self.log.write_at(to_bytes(&record), 8 * self.end as u64).await?;
        self.end += record.len();
        Ok(())
    }

    /// Writes the changed pages, and empties the log.
    async fn checkpoint(&mut self) -> Result<()> {
        let mut images = Vec::new();
        for page in std::mem::take(&mut self.tree.changed) {
            let Page { level, entries } = &self.tree.pages[page];
            images.extend(seal(page as u64, *level, entries.as_flattened()));
            images.resize(images.len().next_multiple_of(PAGE_WORDS), 0);
        }
        if self.bug != Some(Bug::LogsNoPages) {
            self.append(PAGES, &images).await?;
            self.log.sync_data().await?;
        }
        if self.bug == Some(Bug::EmptiesLogTooEarly) {
            self.log.set_len(0).await?;
        }
        let mut batch = Batch::new();
        for page in images.chunks(PAGE_WORDS) {
            batch.add(self.pages.write_at(to_bytes(page), place(page)));
        }
        batch.barrier();
        batch.add(self.pages.sync_data());
        for done in batch.await {
            done.result?;
        }
        self.log.set_len(0).await?;
        (self.end, self.logged) = (0, 0);
        Ok(())
    }
}
