//! The expected value of every byte of a file, for pages that any thread may use.
//!
//! Does no I/O. A program claims pages before it uses them: many may read a page, one may write it. So the bytes of
//! each read are known exactly, on any thread and route. A page is lost while a write that nobody waits for may still
//! reach it, and unsure once that write has ended: each of its words then has one version or another, until the next
//! write.
//!
//! Content consists of words of 8 bytes: 48 bits that depend only on the file and the offset, and 16 bits of version.
//! Version 0 is zeros.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use ringfile::File;

use crate::support::Random;

pub const PAGE: usize = 4096;
/// Pages of each file.
pub const PAGES: usize = 512;

/// Returns the word at `offset`, a multiple of 8.
fn word(seed: u64, offset: u64, version: u16) -> u64 {
    if version == 0 {
        return 0;
    }
    let place = (seed ^ offset).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (place ^ place >> 31).wrapping_mul(0xD6E8_FEB8_6659_FD93) & !0xFFFF | u64::from(version)
}

/// Returns a page of one version, from a byte offset on.
pub fn page(seed: u64, offset: u64, version: u16) -> impl Iterator<Item = u8> {
    (0..PAGE as u64 / 8).flat_map(move |i| word(seed, offset + 8 * i, version).to_le_bytes())
}

/// Asserts that each of these bytes is zero or was written there, in any version. `offset` and length are multiples of 8.
/// A word need not be of one version: the kernel promises that of no byte next to another while somebody else writes.
#[track_caller]
pub fn assert_written(seed: u64, offset: u64, bytes: &[u8], what: &str) {
    for (i, bytes) in bytes.chunks_exact(8).enumerate() {
        let is = u64::from_le_bytes(bytes.try_into().unwrap());
        let at = offset + 8 * i as u64;
        let written = word(seed, at, u16::MAX).to_le_bytes();
        let may_be = bytes.iter().zip(written).skip(2).all(|(&is, written)| is == 0 || is == written);
        assert!(may_be, "{what}: {is:#x} at {at}, which nobody wrote");
    }
}

#[derive(Default)]
struct Page {
    readers: u32,
    writer: bool,
    /// Whether a write may still reach this page.
    lost: bool,
    version: u16,
    /// Other versions that its words may have.
    or: Vec<u16>,
}

/// A file, and its content.
pub struct Place {
    pub file: File,
    /// The same file, not open for reading.
    pub write_only: File,
    pub name: String,
    seed: u64,
    pages: Mutex<Vec<Page>>,
}

impl Place {
    /// Makes a model of a file whose pages are all in version 1.
    pub fn new(file: File, write_only: File, name: String, seed: u64) -> Arc<Self> {
        let pages = (0..PAGES).map(|_| Page { version: 1, ..Page::default() }).collect();
        Arc::new(Self { file, write_only, name, seed, pages: Mutex::new(pages) })
    }

    pub fn content(seed: u64) -> Vec<u8> {
        (0..PAGES).flat_map(|index| page(seed, (index * PAGE) as u64, 1)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Page>> {
        self.pages.lock().unwrap()
    }

    /// Claims a run of up to `most` pages for reading; none if somebody writes there.
    pub fn read(self: &Arc<Self>, random: &mut Random, most: usize) -> Option<Reading> {
        self.read_these(run(random, most))
    }

    pub fn read_these(self: &Arc<Self>, pages: Range<usize>) -> Option<Reading> {
        let mut all = self.lock();
        let known = |page: &Page| !page.writer && !page.lost && page.or.is_empty();
        if !all[pages.clone()].iter().all(known) {
            return None;
        }
        all[pages.clone()].iter_mut().for_each(|page| page.readers += 1);
        let versions = all[pages.clone()].iter().map(|page| page.version).collect();
        Some(Reading { place: Arc::clone(self), pages, versions })
    }

    /// Claims a run of up to `most` pages for writing.
    pub fn write(self: &Arc<Self>, random: &mut Random, most: usize) -> Option<Writing> {
        self.claim(run(random, most), |page| {
            let mut next = page.version;
            // A version that no dropped write may have left.
            while next == page.version || next == 0 || page.or.contains(&next) {
                next = next.wrapping_add(1);
            }
            next
        })
    }

    /// Claims a run of up to `most` pages for turning them into zeros.
    pub fn clear(self: &Arc<Self>, random: &mut Random, most: usize) -> Option<Writing> {
        self.claim(run(random, most), |_| 0)
    }

    fn claim(self: &Arc<Self>, pages: Range<usize>, next: fn(&Page) -> u16) -> Option<Writing> {
        let mut all = self.lock();
        if !all[pages.clone()].iter().all(|page| page.readers == 0 && !page.writer && !page.lost) {
            return None;
        }
        let claim = |page: &mut Page| {
            page.writer = true;
            next(page)
        };
        let versions = all[pages.clone()].iter_mut().map(claim).collect();
        drop(all);
        let fate = Arc::new(Fate { place: Arc::clone(self), pages, versions, state: Mutex::default() });
        Some(Writing { fate, is_settled: false, is_tracked: false })
    }

    /// Fails if any word of the file has a version that it may not have. Nothing may be in flight.
    pub fn assert_all(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), PAGES * PAGE, "{}", self.name);
        for (index, (page, bytes)) in self.lock().iter().zip(bytes.chunks_exact(PAGE)).enumerate() {
            assert!(page.readers == 0 && !page.writer, "{}: page {index} is claimed at the end", self.name);
            for (i, bytes) in bytes.chunks_exact(8).enumerate() {
                let is = u64::from_le_bytes(bytes.try_into().unwrap());
                let at = (index * PAGE + 8 * i) as u64;
                let may_be = |version| is == word(self.seed, at, version);
                assert!(
                    may_be(page.version) || page.or.iter().any(|&version| may_be(version)),
                    "{}: {is:#x} at {at}, not of version {} or {:?}",
                    self.name,
                    page.version,
                    page.or
                );
            }
        }
    }
}

fn run(random: &mut Random, most: usize) -> Range<usize> {
    let len = 1 + random.below(most as u64) as usize;
    let first = random.below((PAGES - len + 1) as u64) as usize;
    first..first + len
}

/// Pages that nobody writes meanwhile.
pub struct Reading {
    pub place: Arc<Place>,
    pages: Range<usize>,
    versions: Vec<u16>,
}

impl Reading {
    /// Returns the range of the pages in the file, in bytes.
    pub fn bytes(&self) -> Range<u64> {
        (self.pages.start * PAGE) as u64..(self.pages.end * PAGE) as u64
    }

    /// Returns a part of them: offset and length.
    pub fn some(&self, random: &mut Random) -> (u64, usize) {
        let bytes = self.bytes();
        let all = bytes.end - bytes.start;
        let len = 1 + random.below(all);
        (bytes.start + random.below(all - len + 1), len as usize)
    }

    /// Fails with the first wrong byte. `offset` is in the file.
    #[track_caller]
    pub fn assert(&self, offset: u64, bytes: &[u8], what: &str) {
        let mut at = offset;
        let end = offset + bytes.len() as u64;
        assert!(offset >= self.bytes().start && end <= self.bytes().end);
        while at < end {
            let from = at & !7;
            let version = self.versions[at as usize / PAGE - self.pages.start];
            let expected = word(self.place.seed, from, version).to_le_bytes();
            let to = (from + 8).min(end);
            let got = &bytes[(at - offset) as usize..(to - offset) as usize];
            assert_eq!(
                got,
                &expected[(at - from) as usize..(to - from) as usize],
                "{what} of {}: byte {at}, version {version}, of {} read from {offset}",
                self.place.name,
                bytes.len()
            );
            at = to;
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.place.lock()[self.pages.clone()].iter_mut().for_each(|page| page.readers -= 1);
    }
}

/// The state of a write, between its claim and its memory, which may be dropped in either order.
pub struct Fate {
    place: Arc<Place>,
    pages: Range<usize>,
    versions: Vec<u16>,
    state: Mutex<Ends>,
}

#[derive(Default)]
struct Ends {
    memory_is_gone: bool,
    /// Whether no thread waits for the write.
    is_abandoned: bool,
}

impl Fate {
    /// Notes that the memory of the write was dropped: from now on the write cannot reach the file.
    pub fn memory_is_gone(&self) {
        let mut state = self.state.lock().unwrap();
        assert!(!state.memory_is_gone, "memory was dropped twice");
        state.memory_is_gone = true;
        if state.is_abandoned {
            self.place.lock()[self.pages.clone()].iter_mut().for_each(|page| page.lost = false);
        }
    }

    fn give_up(&self, is_over: bool) {
        let mut pages = self.place.lock();
        for (page, &version) in pages[self.pages.clone()].iter_mut().zip(&self.versions) {
            page.writer = false;
            page.lost = !is_over;
            page.or.push(version);
        }
    }
}

/// Pages that nobody else uses meanwhile. They are lost if this is dropped before the outcome of the write is known.
pub struct Writing {
    fate: Arc<Fate>,
    is_settled: bool,
    is_tracked: bool,
}

impl Writing {
    pub fn place(&self) -> &Arc<Place> {
        &self.fate.place
    }

    pub fn offset(&self) -> u64 {
        (self.fate.pages.start * PAGE) as u64
    }

    pub fn len(&self) -> usize {
        self.fate.pages.len() * PAGE
    }

    /// Returns the bytes to write.
    pub fn content(&self) -> Vec<u8> {
        let pages = self.fate.pages.clone().zip(&self.fate.versions);
        pages
            .flat_map(|(index, &version)| page(self.fate.place.seed, (index * PAGE) as u64, version))
            .collect()
    }

    /// Returns the object to notify when the memory of the write is dropped.
    pub fn track(&mut self) -> Arc<Fate> {
        self.is_tracked = true;
        Arc::clone(&self.fate)
    }

    /// Notes that the write succeeded. Returns a claim to read it.
    pub fn into_reading(mut self) -> Reading {
        // Both steps are under one lock, so that no other thread writes in between.
        self.settle(|page, version| {
            page.version = version;
            page.or.clear();
            page.readers += 1;
        });
        let Fate { place, pages, versions, .. } = &*self.fate;
        Reading { place: Arc::clone(place), pages: pages.clone(), versions: versions.clone() }
    }

    /// Notes that the write never started: everything is as before.
    pub fn undo(mut self) {
        self.settle(|_, _| ());
    }

    /// Notes that the write has ended, and that parts of it may have been written.
    pub fn give_up(mut self) {
        self.is_settled = true;
        self.fate.give_up(true);
    }

    fn settle(&mut self, mut settle: impl FnMut(&mut Page, u16)) {
        self.is_settled = true;
        let mut pages = self.fate.place.lock();
        for (page, &version) in pages[self.fate.pages.clone()].iter_mut().zip(&self.fate.versions) {
            page.writer = false;
            settle(page, version);
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let mut state = self.fate.state.lock().unwrap();
        let is_over = self.is_tracked && state.memory_is_gone;
        state.is_abandoned = true;
        self.fate.give_up(is_over);
    }
}
