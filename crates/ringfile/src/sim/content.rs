//! The bytes of a simulated file, and changes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use super::fate::Fate;
use super::ranges::Ranges;
use super::seed::Random;

/// The unit of a drive: after a power cut, each has its content of before or after a write.
const SECTOR: u64 = 512;
pub(super) const PAGE: u64 = 4096;
type ContentPage = [u8; PAGE as usize];
static ZEROS: ContentPage = [0; PAGE as usize];

/// The bytes of a file. Cloning it copies no page.
#[derive(Clone, Default)]
pub(super) struct FileContent {
    pub(super) size: u64,
    /// By number; pages that are missing are zeros.
    pub(super) pages: BTreeMap<u64, Rc<ContentPage>>,
    /// Numbers of pages that have room on the disk and were not written.
    reserved: Ranges,
    /// Numbers of sectors that the drive cannot read until they are written again.
    bad: Ranges,
}

impl FileContent {
    /// Passes the bytes on, a piece after the other.
    pub(super) fn read(&self, offset: u64, len: usize, mut take: impl FnMut(&[u8])) {
        for (page, part) in split(offset..offset + len as u64, PAGE) {
            let page: &ContentPage = self.pages.get(&page).map_or(&ZEROS, |page| page);
            take(&page[in_page(&part)]);
        }
    }

    /// Returns how many bytes of the disk it takes.
    pub(super) fn allocated(&self) -> u64 {
        (self.pages.len() as u64 + self.reserved.len()) * PAGE
    }

    pub(super) fn has_room_for(&self, page: u64) -> bool {
        self.pages.contains_key(&page) || self.reserved.contains(page)
    }

    /// Returns how many bytes of the disk it would take to reserve a range.
    pub(super) fn missing(&self, range: &Range<u64>) -> u64 {
        let pages = units(range, PAGE);
        let reserved: u64 = self.reserved.within(pages.clone()).map(|range| range.end - range.start).sum();
        let written = self.pages.range(pages.clone()).count() as u64;
        (pages.end - pages.start - reserved - written) * PAGE
    }

    fn reserve(&mut self, range: &Range<u64>) {
        let pages = units(range, PAGE);
        self.reserved.add(pages.clone());
        for (page, _) in self.pages.range(pages) {
            self.reserved.remove(*page..page + 1);
        }
    }

    /// Returns the lengths of the hole at an offset, and of the data behind it, within `most` bytes and the file.
    pub(super) fn hole_at(&self, offset: u64, most: usize) -> (usize, usize) {
        let end = self.size.min(offset.saturating_add(most as u64)).max(offset);
        let first = self.pages.range(offset / PAGE..).next();
        let data = first.map_or(end, |(page, _)| (page * PAGE).clamp(offset, end));
        let mut behind = data;
        while behind < end && self.pages.contains_key(&(behind / PAGE)) {
            behind = end.min((behind / PAGE + 1) * PAGE);
        }
        ((data - offset) as usize, (behind - data) as usize)
    }

    /// Returns how many bytes at an offset the drive can read.
    pub(super) fn readable(&self, offset: u64, len: usize) -> usize {
        let bad = self.bad.within(units(&(offset..offset.saturating_add(len as u64)), SECTOR)).next();
        bad.map_or(len, |bad| (bad.start * SECTOR).saturating_sub(offset) as usize)
    }

    /// Returns how many bytes at an offset can be written: a part of a sector needs the rest, which must be read.
    pub(super) fn writable(&self, range: &Range<u64>) -> usize {
        let len = (range.end - range.start) as usize;
        match (range.start.is_multiple_of(SECTOR), range.end.is_multiple_of(SECTOR)) {
            (false, _) if self.bad.contains(range.start / SECTOR) => 0,
            (_, false) if self.bad.contains(range.end / SECTOR) => len - (range.end % SECTOR) as usize,
            _ => len,
        }
    }

    /// Writes a part of some data, and leaves the size as it is. A whole page is shared, and not copied.
    pub(super) fn put(&mut self, data: &Data, part: Range<u64>) {
        self.reserved.remove(units(&part, PAGE));
        self.bad.remove(part.start.div_ceil(SECTOR)..part.end / SECTOR);
        for (number, part) in split(part, PAGE) {
            let from = &data.pages[(number - data.offset / PAGE) as usize];
            if part.end - part.start == PAGE {
                self.pages.insert(number, Rc::clone(from));
                continue;
            }
            let page = self.pages.entry(number).or_insert_with(|| Rc::new(ZEROS));
            Rc::make_mut(page)[in_page(&part)].copy_from_slice(&from[in_page(&part)]);
        }
    }

    /// Returns the parts of a range that are in pages.
    fn in_pages(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let pages = self.pages.range(range.start / PAGE..).map(|(page, _)| page * PAGE);
        let touched = pages.take_while(|page| *page < range.end);
        touched.map(|page| range.start.max(page)..range.end.min(page + PAGE)).collect()
    }

    /// Returns data that this content has already, with the rest of the sectors of which it is a part.
    pub(super) fn whole_sectors(&self, data: Data) -> Data {
        let Range { start, end } = data.range();
        let sectors = start / SECTOR * SECTOR..end.next_multiple_of(SECTOR).min(self.size).max(end);
        if sectors == data.range() {
            return data;
        }
        let Data { is_atomic, is_durable, .. } = data;
        Data { is_atomic, is_durable, ..self.data(sectors) }
    }

    /// Returns what it has in a range; zeros behind its end.
    pub(super) fn data(&self, range: Range<u64>) -> Data {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        self.read(range.start, bytes.capacity(), |piece| bytes.extend_from_slice(piece));
        Data::of(range.start, &bytes)
    }

    pub(super) fn zero(&mut self, range: Range<u64>) {
        for part in self.in_pages(range.clone()) {
            let page = part.start / PAGE;
            if part.end - part.start == PAGE {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                Rc::make_mut(bytes)[in_page(&part)].fill(0);
            }
        }
        self.reserved.remove(range.start.div_ceil(PAGE)..range.end / PAGE);
        self.bad.remove(range.start.div_ceil(SECTOR)..range.end / SECTOR);
    }

    pub(super) fn resize(&mut self, size: u64) {
        if size < self.size {
            self.zero(size..self.size.next_multiple_of(PAGE));
        }
        if size <= self.size {
            // What was reserved behind the end is cut too (`ext4_truncate`).
            self.reserved.remove(size.div_ceil(PAGE)..u64::MAX);
        }
        self.size = size;
    }

    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Write(data) => {
                self.put(data, data.range());
                self.size = self.size.max(data.range().end);
            }
            Change::Size(size) => self.resize(*size),
            Change::Zero(range) => self.zero(range.clone()),
            Change::Reserve(range) => self.reserve(range),
            Change::Break(range) => {
                self.bad.add(units(&(range.start..range.end.min(self.size)), SECTOR));
            }
        }
    }
}

/// Bytes that are written at some place, in the pages that they will be in.
#[derive(Clone)]
pub(super) struct Data {
    offset: u64,
    len: usize,
    pages: Vec<Rc<ContentPage>>,
    /// Whether a power cut leaves all of it or nothing.
    pub(super) is_atomic: bool,
    /// As with `RWF_DSYNC`: this write is durable. It says nothing of earlier ones, which stay in the list before it.
    pub(super) is_durable: bool,
}

impl Data {
    /// Makes the data for a place; `fill` gives the bytes, a piece after the other.
    pub(super) fn new(offset: u64, len: usize, mut fill: impl FnMut(&mut [u8])) -> Self {
        let page = |(_, part): (u64, Range<u64>)| {
            let mut page = ZEROS;
            fill(&mut page[in_page(&part)]);
            Rc::new(page)
        };
        let pages = split(offset..offset + len as u64, PAGE).map(page).collect();
        Self { offset, len, pages, is_atomic: false, is_durable: false }
    }

    /// Makes the data of these bytes.
    pub(super) fn of(offset: u64, bytes: &[u8]) -> Self {
        let mut rest = bytes;
        Self::new(offset, bytes.len(), |piece| {
            let (here, behind) = rest.split_at(piece.len());
            piece.copy_from_slice(here);
            rest = behind;
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns eight of its first bytes, for a trace.
    pub(super) fn sample(&self) -> u64 {
        let at = (self.offset % PAGE).min(PAGE - 8) as usize;
        let bytes = self.pages.first().and_then(|page| page[at..].first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    pub(super) fn truncate(&mut self, len: usize) {
        *self = self.part(self.offset..self.offset + self.len.min(len) as u64);
    }

    /// Returns all of it, nothing, or any of its sectors.
    pub(super) fn any_parts(&self, random: &mut Random) -> Vec<Self> {
        let probability = [0.0, 0.5, 1.0][random.below(3) as usize];
        let parts: Vec<Range<u64>> = match self.is_atomic {
            true => vec![self.range()],
            false => split(self.range(), SECTOR).map(|(_, part)| part).collect(),
        };
        let kept = parts.into_iter().filter(|_| random.happens(probability));
        kept.map(|part| Self { is_durable: false, ..self.part(part) }).collect()
    }

    /// Returns a part of it.
    fn part(&self, part: Range<u64>) -> Self {
        let first = (part.start / PAGE - self.offset / PAGE) as usize;
        let pages = split(part.clone(), PAGE).zip(&self.pages[first..]).map(|(_, page)| Rc::clone(page));
        let (offset, len) = (part.start, (part.end - part.start) as usize);
        Self { offset, len, pages: pages.collect(), ..*self }
    }

    /// Returns its part in the first page, moved to another page, as far as that lies before `end`.
    pub(super) fn moved_to(&self, page: u64, end: u64) -> Self {
        let offset = page * PAGE + self.offset % PAGE;
        let len = self.len.min((PAGE - self.offset % PAGE) as usize).min(end.saturating_sub(offset) as usize);
        Self { offset, len, pages: self.pages[..1].to_vec(), ..*self }
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len as u64
    }
}

/// Returns the numbers of the units of which a range has a part.
fn units(range: &Range<u64>, unit: u64) -> Range<u64> {
    range.start / unit..range.end.div_ceil(unit)
}

/// Returns the parts of a range in the units of which it has a part, with the number of each.
pub(super) fn split(range: Range<u64>, unit: u64) -> impl Iterator<Item = (u64, Range<u64>)> {
    let numbers = if range.is_empty() { 0..0 } else { units(&range, unit) };
    numbers.map(move |number| (number, range.start.max(number * unit)..range.end.min((number + 1) * unit)))
}

/// Returns where in its page a part of it lies.
fn in_page(part: &Range<u64>) -> Range<usize> {
    let start = (part.start % PAGE) as usize;
    start..start + (part.end - part.start) as usize
}

/// A change of a file that is not known to be durable, or comes after one that is not.
#[derive(Clone)]
pub(super) enum Change {
    Write(Data),
    Size(u64),
    /// A hole, or a range that was zeroed.
    Zero(Range<u64>),
    /// Room for a range.
    Reserve(Range<u64>),
    /// The drive can no longer read these bytes. It comes after what is written back by then, and no power cut undoes it.
    Break(Range<u64>),
}

impl Change {
    pub(super) fn is_durable(&self) -> bool {
        matches!(self, Self::Write(data) if data.is_durable)
    }
}

/// Which part of some changes is kept, one after the other.
pub(super) struct TornParts<'a> {
    pub(super) content: &'a mut FileContent,
    pub(super) random: &'a mut Random,
    /// Sectors that have lost a change. The page cache has each change on top of the ones before, so that what comes later
    /// is lost too, unless it covers all of the sector.
    lost: BTreeSet<u64>,
}

impl<'a> TornParts<'a> {
    pub(super) fn new(content: &'a mut FileContent, random: &'a mut Random) -> Self {
        Self { content, random, lost: BTreeSet::new() }
    }

    /// Writes any part of some data, in whole sectors, and those that `must` names in any case. The size may be ahead of what
    /// is written, which is then zeros: ext4 changes the size when it submits a write (`mpage_map_and_submit_extent`), and
    /// its journal does not wait for the data. Nothing is written from `limit` on, and of an atomic write all or nothing.
    pub(super) fn put(&mut self, data: &Data, limit: u64, part: f64, must: impl Fn(u64) -> bool) -> Fate {
        let Range { start, end: wanted } = data.range();
        let (end, size) = (wanted.min(limit).max(start), self.content.size);
        if data.is_atomic {
            let is_kept = end == wanted && self.random.happens(part);
            if is_kept {
                self.content.put(data, start..end);
                self.content.size = size.max(end);
            }
            return if is_kept { Fate::Kept } else { Fate::Lost };
        }
        let kept = self.any_sectors(start..end, part, must, |content, piece| {
            content.size = content.size.max(piece.end);
            content.put(data, piece);
        });
        if end > size && self.random.happens(part) {
            self.content.size = self.content.size.max(end);
        }
        match kept {
            Some(kept) if end < wanted => kept.and(Fate::Lost),
            None if end < wanted => Fate::Lost,
            kept => kept.unwrap_or(Fate::Kept),
        }
    }

    /// Zeros any part of a range, in whole sectors.
    pub(super) fn zero(&mut self, range: Range<u64>, part: f64) -> Fate {
        let parts = self.content.in_pages(range).into_iter();
        let kept = parts.filter_map(|page| self.any_sectors(page, part, |_| false, FileContent::zero));
        kept.reduce(Fate::and).unwrap_or(Fate::Kept)
    }

    /// Keeps any part of a change of a range, in whole sectors, and those that `must` names in any case. Returns what has
    /// become of it; `None` for an empty range.
    fn any_sectors(
        &mut self,
        range: Range<u64>,
        part: f64,
        must: impl Fn(u64) -> bool,
        keep: impl Fn(&mut FileContent, Range<u64>),
    ) -> Option<Fate> {
        let mut fate: Option<Fate> = None;
        for (sector, piece) in split(range, SECTOR) {
            let is_whole = piece.end - piece.start == SECTOR;
            let is_kept = self.random.happens(part) && (is_whole || !self.lost.contains(&sector));
            let here = if is_kept || must(sector) {
                keep(self.content, piece);
                self.lost.remove(&sector);
                Fate::Kept
            } else {
                self.lost.insert(sector);
                Fate::Lost
            };
            fate = Some(fate.map_or(here, |fate| fate.and(here)));
        }
        fate
    }
}

impl Data {
    /// Returns the sectors of which it covers a part.
    pub(super) fn partial_sectors(&self) -> impl Iterator<Item = u64> {
        let Range { start, end } = self.range();
        [start, end].into_iter().filter(|at| !at.is_multiple_of(SECTOR)).map(|at| at / SECTOR)
    }
}
