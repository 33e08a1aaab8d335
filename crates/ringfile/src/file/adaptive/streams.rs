//! Detects sequential reads, and decides how far to read ahead of them.
//!
//! Pure functions of offsets, without buffers or time. A file may have several streams. Invariants: each piece of a
//! stream is planned once, in order, and ends at most [`MOST_AHEAD`] behind the stream's last read. A stream that
//! passes through the page cache leaves it region by region, in order, and no region of which something was cached
//! before.

use std::ops::Range;

use crate::memory::page_size;

/// How many streams are followed; a new one replaces the one that was read least recently.
pub(super) const STREAMS: usize = 16;
/// A stream that was continued keeps its place for this many reads longer, because every random read begins a stream
/// that is never continued.
const KEPT: u64 = 512;
/// A read that begins at most this many bytes behind the end of the previous one still continues its stream.
const MOST_SKIPPED: u64 = 128 << 10;
/// How far to read ahead at most: 8 pieces in flight reach the throughput of the drives that were measured.
pub(super) const MOST_AHEAD: u64 = 2 << 20;
/// The longest piece. All pieces but the first ones begin and end at a multiple of it.
pub(super) const PIECE: u64 = 256 << 10;
const ALIGNMENT: u64 = 4 << 10;
/// How many reads in a row must come before reading ahead begins. Doubled each time that data was read ahead in vain.
const READS_BEFORE: u32 = 3;
/// The unit in which streams pass through the page cache, in bytes.
pub(super) const REGION: u64 = 1 << 20;
/// How many regions behind the one that is read must not be cached, for a stream to pass through the cache: more than
/// the kernel reads ahead itself (`read_ahead_kb`), which is 128 KiB by default, and 8 MiB on one machine that was
/// measured.
const REGIONS_AHEAD: u64 = 16;
/// After so many regions, a stream shows again whether several of its reads are in flight.
const MOST_REGIONS: u64 = 1024;
/// After so many reads in a row that belong to none, the streams that pass through the cache have ended.
const MOST_OTHERS: u32 = 512;
/// From this length on, a read is large. To follow one until it ends takes 0.6 µs of CPU time, where a direct read of
/// 128 KiB takes 3 µs.
const LARGE: u64 = 64 << 10;
/// After a large read that began while another one of its stream was in flight, this many are not followed.
const UNFOLLOWED: u8 = 32;
/// How often [`READS_BEFORE`] may be doubled.
const MOST_CAUTION: u32 = 5;

/// See the module.
#[derive(Default)]
pub(super) struct Streams {
    list: [Option<Stream>; STREAMS],
    /// The number of reads so far. It orders streams by age, and identifies them.
    clock: u64,
    /// How often [`READS_BEFORE`] is doubled now.
    caution: u32,
    /// Reads in a row that belong to no stream that passes through the cache.
    others: u32,
}

/// A stream, for as long as it is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Id {
    at: usize,
    began: u64,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Stream {
    id: Id,
    /// Where the last read ended.
    end: u64,
    /// Reads in a row.
    run: u32,
    has_gone_on: bool,
    /// How many bytes to read ahead.
    window: u64,
    /// The end of the planned pieces.
    planned: u64,
    /// Reads of this stream that are in flight.
    reading: u32,
    used: u64,
    /// How many of the next reads are not followed, because several were in flight.
    unfollowed: u8,
    passing: Option<Passing>,
    /// The last region in which it was to pass through the cache.
    asked: Option<u64>,
}

/// How a stream passes through the page cache.
#[derive(Clone, Copy)]
struct Passing {
    /// The first region of which nothing was cached.
    first: u64,
    /// The region of the last read.
    region: u64,
    /// The end of the regions of which nothing was cached when they were looked at.
    clear: u64,
    /// Whether its reads go past the cache up to `clear`: what the kernel reads ahead at this moment cannot leave the cache
    /// yet, and would make it read on.
    ends: bool,
}

/// Whether a read belongs to a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Membership {
    /// To none that is known; it may begin one.
    Alone,
    /// To this one, in which it is in flight until [`Streams::ended`]; and whether reading ahead of it is worthwhile.
    InStream(Id, bool),
    /// To one of large reads of which several are in flight, so that it needs no read-ahead. Its end is not recorded.
    OneOfSeveral,
}

impl Stream {
    /// Returns whether several of its reads are in flight.
    pub(super) fn has_several(&self) -> bool {
        self.reading > 1
    }
}

impl Passing {
    /// Returns what is to leave the cache, up to the region `end`. The kernel drops no folio that reaches beyond the
    /// bytes that it is told, so a region is named again until the largest folio that may contain it is complete.
    fn leaves(&self, end: u64) -> Range<u64> {
        let regions = largest_folio(page_size() as u64) / REGION;
        let first = self.first.max(self.region.saturating_sub(regions + 1));
        first * REGION..end.max(first) * REGION
    }
}

/// Returns the size of the largest folio that the kernel makes when it reads ahead, for pages of this size: a huge page,
/// which one page of page table entries maps, but at most 2^11 pages (`MAX_XAS_ORDER` in include/linux/pagemap.h).
fn largest_folio(page: u64) -> u64 {
    (page / 8 * page).min(page << 11)
}

/// How a read relates to the streams that pass through the page cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Passes {
    /// It belongs to none.
    No,
    /// It belongs to one.
    Goes,
    /// It belongs to one that no longer does, and goes past the cache.
    Past,
    /// It is the first one behind such a stream, and belongs to none any more. This is to leave the cache.
    Ended { leaves: Range<u64> },
    /// It belongs to this one, and is the first in its region. Then `leaves` is to leave the cache, and the stream goes
    /// on passing only if nothing of `ahead` is cached.
    Enters { id: Id, ahead: Option<Range<u64>>, leaves: Range<u64> },
}

impl Streams {
    /// Returns what must not be cached, for a stream to pass through the cache from the next region on, if several of its
    /// reads are in flight, and that was not asked in this region.
    pub(super) fn may_pass(&mut self, id: Id) -> Option<Range<u64>> {
        let stream = self.get(id).filter(|stream| stream.has_several())?;
        let region = stream.end / REGION;
        if stream.asked.replace(region) == Some(region) {
            return None;
        }
        Some((region + 1) * REGION..(region + 1 + REGIONS_AHEAD) * REGION)
    }

    /// Lets a stream pass through the cache, of which nothing of `ahead` is cached (see [`Streams::may_pass`]).
    pub(super) fn pass(&mut self, id: Id, ahead: &Range<u64>) {
        self.others = 0;
        let (first, clear) = (ahead.start / REGION, ahead.end / REGION);
        if let Some(stream) = self.get(id) {
            stream.passing = Some(Passing { first, region: first - 1, clear, ends: false });
        }
    }

    /// Lets a stream go on as others do, as soon as it is behind what the kernel may have read ahead. Returns what is to
    /// leave the cache.
    pub(super) fn pass_no_more(&mut self, id: Id) -> Range<u64> {
        let Some(passing) = self.get(id).and_then(|stream| stream.passing.as_mut()) else { return 0..0 };
        passing.ends = true;
        passing.leaves(passing.clear)
    }

    /// Returns whether any stream passes through the cache.
    pub(super) fn any_passes(&self) -> bool {
        self.list.iter().flatten().any(|stream| stream.passing.is_some())
    }

    /// Records a read if it belongs to a stream that passes through the cache. Several threads may read the stream, a
    /// little out of order.
    pub(super) fn passes(&mut self, range: &Range<u64>) -> Passes {
        let clock = self.clock;
        let near = |stream: &Stream| {
            range.end + REGION > stream.end && range.start <= stream.end.saturating_add(MOST_SKIPPED)
        };
        let mut streams = self.list.iter_mut().flatten().filter(|stream| near(stream));
        let Some((passing, stream)) = streams.find_map(|stream| Some((stream.passing?, stream))) else {
            self.others += 1;
            if self.others > MOST_OTHERS {
                self.list.iter_mut().flatten().for_each(|stream| stream.passing = None);
            }
            return Passes::No;
        };
        self.others = 0;
        (stream.end, stream.used) = (stream.end.max(range.end), clock);
        let region = range.start / REGION;
        if passing.ends {
            if region < passing.clear {
                return Passes::Past;
            }
            stream.passing = None;
            return Passes::Ended { leaves: passing.leaves(passing.clear) };
        }
        if region <= passing.region {
            return Passes::Goes;
        }
        // Of what had to be clear for the last region, which may not have been the one before.
        let clear = passing.region + 1 + REGIONS_AHEAD;
        let passing = Passing { region, clear, ..passing };
        stream.passing = Some(passing);
        let ahead = clear * REGION..(region + 1 + REGIONS_AHEAD) * REGION;
        Passes::Enters {
            id: stream.id,
            ahead: Some(ahead).filter(|_| region < passing.first + MOST_REGIONS),
            // Not what is just behind, which reads in flight may need.
            leaves: passing.leaves(region - 1),
        }
    }

    /// Records a read. Also returns the stream that it has replaced, whose pieces are not wanted any more.
    pub(super) fn note(&mut self, range: &Range<u64>) -> (Membership, Option<Id>) {
        self.clock += 1;
        let (used, wanted) = (self.clock, self.reads_before());
        if let Some(stream) = self.find(range) {
            // A reader with several reads in flight needs no read-ahead.
            stream.run = if stream.reading > 0 { 1 } else { stream.run.saturating_add(1) };
            stream.has_gone_on = true;
            (stream.end, stream.used) = (range.end, used);
            let is_large = range.end - range.start >= LARGE;
            if is_large && stream.reading > 0 && stream.planned <= range.start {
                stream.unfollowed = UNFOLLOWED;
            }
            if is_large && stream.unfollowed > 0 {
                (stream.run, stream.unfollowed) = (1, stream.unfollowed - 1);
                return (Membership::OneOfSeveral, None);
            }
            stream.reading += 1;
            return (Membership::InStream(stream.id, stream.run >= wanted), None);
        }
        let at = self.least_recent();
        let stream = Stream { id: Id { at, began: used }, end: range.end, run: 1, used, ..Stream::default() };
        let gone = self.list[at].replace(stream).map(|gone| gone.id);
        (Membership::Alone, gone)
    }

    fn find(&mut self, range: &Range<u64>) -> Option<&mut Stream> {
        self.list.iter_mut().flatten().find(|stream| {
            range.start >= stream.end && range.start - stream.end <= MOST_SKIPPED && range.end > stream.end
        })
    }

    fn least_recent(&self) -> usize {
        let until = |stream: Stream| stream.used + if stream.has_gone_on { KEPT } else { 0 };
        let used = |at: &usize| self.list[*at].map_or(0, until);
        (0..STREAMS).min_by_key(used).unwrap_or(0)
    }

    /// Returns a stream that is still followed, so that no other one has taken its place.
    pub(super) fn get(&mut self, id: Id) -> Option<&mut Stream> {
        self.list[id.at].as_mut().filter(|stream| stream.id == id)
    }

    /// Records that a read of a stream has ended.
    pub(super) fn ended(&mut self, id: Id) {
        if let Some(stream) = self.get(id) {
            stream.reading = stream.reading.saturating_sub(1);
        }
    }

    /// Returns whether a stream is long enough to read ahead of it.
    pub(super) fn is_steady(&mut self, id: Id) -> bool {
        let wanted = self.reads_before();
        self.get(id).is_some_and(|stream| stream.run >= wanted)
    }

    fn reads_before(&self) -> u32 {
        READS_BEFORE << self.caution
    }

    /// Widens the window of a stream whose last read had `len` bytes: first to twice that length, then doubles it each
    /// time.
    pub(super) fn widen(&mut self, id: Id, len: u64) {
        if let Some(stream) = self.get(id) {
            let first = (2 * len).next_multiple_of(ALIGNMENT);
            stream.window = (2 * stream.window).max(first).min(MOST_AHEAD);
        }
    }

    /// Returns the next piece to read ahead, in a file of `len` bytes: of full length if the window has room for it; a
    /// shorter one only if nothing is ahead. It consists of whole blocks of `block` bytes, and of whole pages.
    pub(super) fn next_piece(&mut self, id: Id, len: u64, block: u64) -> Option<Range<u64>> {
        let stream = self.get(id)?;
        let block = block.max(ALIGNMENT);
        let start = stream.planned.max(stream.end / block * block);
        let border = (start + 1).next_multiple_of(PIECE);
        let wanted = (stream.end + stream.window).next_multiple_of(block);
        let has_room = wanted >= border || start <= stream.end;
        let end = border.min(wanted).min(len.next_multiple_of(block));
        if !has_room || start >= end || start >= len {
            return None;
        }
        stream.planned = end;
        Some(start..end)
    }

    /// Forgets the pieces planned from `start` on, which will not arrive, so that they are planned again.
    pub(super) fn give_back(&mut self, id: Id, start: u64) {
        if let Some(stream) = self.get(id) {
            stream.planned = stream.planned.min(start);
        }
    }

    /// Records whether data that was read ahead was used.
    pub(super) fn judge(&mut self, was_wanted: bool) {
        self.caution =
            if was_wanted { self.caution.saturating_sub(1) } else { (self.caution + 1).min(MOST_CAUTION) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::random::Random;

    const KIB: u64 = 1 << 10;
    const LONG: u64 = 1 << 30;

    /// Notes a read of `range`; returns what to read ahead then.
    fn read(streams: &mut Streams, range: Range<u64>, len: u64) -> Vec<Range<u64>> {
        read_blocks(streams, range, len, 512)
    }

    fn read_blocks(streams: &mut Streams, range: Range<u64>, len: u64, block: u64) -> Vec<Range<u64>> {
        let Membership::InStream(id, _) = streams.note(&range).0 else { return Vec::new() };
        let mut pieces = Vec::new();
        if streams.is_steady(id) {
            streams.widen(id, range.end - range.start);
            while let Some(piece) = streams.next_piece(id, len, block) {
                pieces.push(piece);
            }
        }
        streams.ended(id);
        pieces
    }

    #[test]
    fn a_stream_is_read_ahead_further_and_further_each_byte_once() {
        let mut streams = Streams::default();
        let (mut end, mut most) = (0, 0);
        for at in 0..200 {
            let range = at * 64 * KIB..(at + 1) * 64 * KIB;
            for piece in read(&mut streams, range.clone(), LONG) {
                assert!(end == 0 || piece.start == end, "a gap before {piece:?}");
                assert!(piece.end - piece.start <= PIECE && piece.start >= range.start);
                end = piece.end;
                assert!(end <= range.end + MOST_AHEAD);
                most = most.max(end - range.end);
            }
            assert!(at < 2 || end >= range.end + 64 * KIB, "nothing is ahead of {range:?}");
        }
        assert!(most > MOST_AHEAD - PIECE);
    }

    #[test]
    fn random_reads_are_no_stream() {
        let (mut random, mut streams) = (Random::new(), Streams::default());
        for _ in 0..2000 {
            let start = random.below(1 << 20) * 64 * KIB;
            assert_eq!(read(&mut streams, start..start + 4 * KIB, 1 << 40), []);
        }
    }

    #[test]
    fn several_streams_continue_beside_random_reads() {
        let (mut random, mut streams) = (Random::new(), Streams::default());
        let mut ends = [0; 6];
        for round in 0..100 {
            for (number, end) in ends.iter_mut().enumerate() {
                let start = (number as u64 + 1) * LONG + round * 64 * KIB;
                let pieces = read(&mut streams, start..start + 64 * KIB, 10 * LONG);
                *end = pieces.last().map_or(*end, |last| last.end);
                assert!(round < 3 || *end > start + 64 * KIB);
            }
            // While the streams begin, their second reads come soon after the first.
            for _ in 0..if round < 2 { 1 } else { 30 } {
                let start = random.below(1 << 12) * MOST_AHEAD + 20 * LONG;
                assert_eq!(read(&mut streams, start..start + 1, LONG), []);
            }
        }
    }

    #[test]
    fn nothing_is_planned_beyond_the_end_of_the_file() {
        let mut streams = Streams::default();
        let len = 1000 * KIB + 17;
        let mut last = 0;
        for at in 0..16 {
            let range = at * 64 * KIB..((at + 1) * 64 * KIB).min(len);
            last = read(&mut streams, range, len).last().map_or(last, |piece| piece.end);
        }
        assert_eq!(last, len.next_multiple_of(4 * KIB));
    }

    #[test]
    fn a_reader_with_several_reads_in_flight_gets_no_read_ahead() {
        let mut streams = Streams::default();
        for at in 0..50 {
            let place = streams.note(&(at * 64 * KIB..(at + 1) * 64 * KIB)).0;
            assert!(!matches!(place, Membership::InStream(_, true)));
        }
    }

    #[test]
    fn most_large_reads_of_a_stream_with_several_in_flight_are_not_followed_until_they_come_one_at_a_time() {
        let mut streams = Streams::default();
        let mut at = 0;
        let mut note = |streams: &mut Streams, len: u64| {
            at += len;
            streams.note(&(at - len..at)).0
        };
        note(&mut streams, LARGE);
        let mut in_flight = VecDeque::new();
        let mut followed = 0;
        for _ in 0..330 {
            match note(&mut streams, LARGE) {
                Membership::InStream(id, is_steady) => {
                    assert!(!is_steady);
                    followed += 1;
                    in_flight.push_back(Some(id));
                }
                Membership::OneOfSeveral => in_flight.push_back(None),
                Membership::Alone => panic!("the stream was lost"),
            }
            if in_flight.len() > 4
                && let Some(Some(id)) = in_flight.pop_front()
            {
                streams.ended(id);
            }
        }
        assert!((10..=20).contains(&followed), "{followed}");
        in_flight.into_iter().flatten().for_each(|id| streams.ended(id));
        // From now on, one at a time.
        let mut is_steady = |streams: &mut Streams| match note(streams, LARGE) {
            Membership::InStream(id, is_steady) => {
                streams.ended(id);
                is_steady
            }
            _ => false,
        };
        let before = (0..100).take_while(|_| !is_steady(&mut streams)).count();
        assert!(before <= UNFOLLOWED as usize + 2, "{before} reads");
        // Small ones are all followed: they may pass through the cache.
        let mut small = Streams::default();
        assert!((1..50).all(|at| {
            matches!(small.note(&(at * KIB..(at + 1) * KIB)).0, Membership::InStream(..)) || at == 1
        }));
    }

    #[test]
    fn read_ahead_starts_later_after_wrong_guesses_and_earlier_after_right_ones() {
        let mut streams = Streams::default();
        (0..3).for_each(|_| streams.judge(false));
        let begins = |streams: &mut Streams, from: u64| {
            (0..100).find(|at| !read(streams, from + at * KIB..from + (at + 1) * KIB, LONG).is_empty())
        };
        assert_eq!(begins(&mut streams, 0), Some(23));
        (0..3).for_each(|_| streams.judge(true));
        assert_eq!(begins(&mut streams, LONG / 2), Some(2));
    }

    /// Reads a stream in pieces of 4 KiB, and lets it pass wherever nothing is cached. Returns the reads that passed,
    /// and what left the cache.
    fn pass(
        streams: &mut Streams,
        range: Range<u64>,
        is_clear: impl Fn(&Range<u64>) -> bool,
    ) -> (u64, Vec<Range<u64>>) {
        let (mut passed, mut left) = (0, Vec::new());
        for start in range.step_by(4 << 10) {
            let range = start..start + 4 * KIB;
            match streams.passes(&range) {
                Passes::No => {
                    let Membership::InStream(id, _) = streams.note(&range).0 else { continue };
                    if let Some(ahead) = streams.may_pass(id).filter(|ahead| is_clear(ahead)) {
                        streams.pass(id, &ahead);
                        passed += 1;
                        streams.ended(id);
                    }
                    // The others stay in flight.
                }
                Passes::Goes => passed += 1,
                Passes::Enters { id, ahead, leaves } => {
                    passed += 1;
                    assert!(leaves.is_empty() || leaves.end + REGION <= range.start);
                    let goes_on = ahead.is_some_and(|ahead| {
                        assert!(ahead.start > range.start + (REGIONS_AHEAD - 1) * REGION);
                        is_clear(&ahead)
                    });
                    left.push(if goes_on { leaves } else { streams.pass_no_more(id) });
                }
                Passes::Past => {}
                Passes::Ended { leaves } => left.push(leaves),
            }
        }
        (passed, left)
    }

    #[test]
    fn a_stream_removes_from_the_cache_all_that_it_has_brought_there() {
        let mut streams = Streams::default();
        let regions = 3 * MOST_REGIONS;
        let (passed, left) = pass(&mut streams, 0..regions * REGION, |_| true);
        // It has shown three times that several of its reads are in flight.
        assert!(passed > (regions - 1 - 3 * REGIONS_AHEAD) * 256, "{passed} reads");
        let mut is_left = vec![false; (regions + 2 * REGIONS_AHEAD) as usize];
        for range in left {
            (range.start / REGION..range.end / REGION).for_each(|region| is_left[region as usize] = true);
        }
        // The first and the last ones stay, and those in which it began to pass again.
        let stays = is_left[..regions as usize].iter().filter(|is_left| !**is_left).count();
        assert!(!is_left[0] && stays <= 5, "{stays} stay");
    }

    #[test]
    fn the_largest_folio_is_a_huge_page_up_to_2_to_the_11th_pages() {
        let mib = [4 << 10, 16 << 10, 64 << 10].map(|page| largest_folio(page) >> 20);
        assert_eq!(mib, [2, 32, 128]);
    }

    #[test]
    fn a_stream_does_not_pass_through_a_region_that_was_partly_cached() {
        let mut streams = Streams::default();
        let cached = 20 * REGION..30 * REGION;
        let is_clear = |range: &Range<u64>| range.end <= cached.start || range.start >= cached.end;
        let (passed, left) = pass(&mut streams, 0..60 * REGION, is_clear);
        assert!((30 * 256..36 * 256).contains(&passed), "{passed} reads");
        let touches = |range: &Range<u64>| range.start < cached.end && range.end > cached.start;
        assert!(!left.is_empty() && !left.iter().any(touches), "{left:?}");
    }

    #[test]
    fn a_stream_that_skips_regions_checks_each_one_that_it_may_leave() {
        let mut streams = Streams::default();
        pass(&mut streams, 0..10 * REGION, |_| true);
        // Longer reads have continued the stream meanwhile.
        assert_eq!(streams.note(&(10 * REGION..15 * REGION)).0, Membership::OneOfSeveral);
        let Passes::Enters { id, ahead, .. } = streams.passes(&(15 * REGION..15 * REGION + 1)) else {
            panic!("it does not pass")
        };
        assert_eq!(ahead, Some((10 + REGIONS_AHEAD) * REGION..(16 + REGIONS_AHEAD) * REGION));
        assert_eq!(streams.pass_no_more(id).end, (10 + REGIONS_AHEAD) * REGION);
    }

    #[test]
    fn a_stream_that_ends_goes_past_what_the_kernel_may_have_read_ahead_which_leaves_then() {
        let mut streams = Streams::default();
        let clear = 40 * REGION;
        let (_, left) = pass(&mut streams, 0..24 * REGION, |range| range.end <= clear);
        assert!(left.iter().all(|range| range.end < 24 * REGION), "{left:?}");
        let page = |at: u64| at..at + 4 * KIB;
        let Passes::Enters { id, ahead, .. } = streams.passes(&page(24 * REGION)) else {
            panic!("it does not pass")
        };
        assert_eq!(ahead, Some(clear..clear + REGION));
        assert_eq!(streams.pass_no_more(id).end, clear);
        for at in (24 * REGION + 4 * KIB..clear).step_by(4 << 10) {
            assert_eq!(streams.passes(&page(at)), Passes::Past);
        }
        let Passes::Ended { leaves } = streams.passes(&page(clear)) else { panic!("it has not ended") };
        assert_eq!(leaves.end, clear);
        assert!(leaves.start <= 24 * REGION);
        assert_eq!(streams.passes(&page(clear + 4 * KIB)), Passes::No);
        assert!(!streams.any_passes());
    }

    #[test]
    fn other_reads_end_a_stream_that_passes() {
        let mut streams = Streams::default();
        pass(&mut streams, 0..2 * REGION, |_| true);
        assert!(streams.any_passes());
        (0..=MOST_OTHERS.into()).for_each(|at| {
            streams.passes(&(LONG + at..LONG + at + 1));
        });
        assert!(!streams.any_passes());
    }

    #[test]
    fn a_piece_that_was_given_back_is_planned_again() {
        let mut streams = Streams::default();
        read(&mut streams, 0..64 * KIB, LONG);
        let Membership::InStream(id, _) = streams.note(&(64 * KIB..128 * KIB)).0 else { panic!("no stream") };
        streams.widen(id, 64 * KIB);
        let piece = streams.next_piece(id, LONG, 512).unwrap();
        streams.give_back(id, piece.start);
        assert_eq!(streams.next_piece(id, LONG, 512), Some(piece));
    }

    #[test]
    fn pieces_on_a_drive_with_large_blocks_are_whole_blocks_and_overlap_nowhere() {
        let (mut streams, block) = (Streams::default(), 64 * KIB);
        let reads = (12 * KIB..2000 * KIB).step_by(20 << 10).map(|at| at..at + 20 * KIB);
        let planned: Vec<_> =
            reads.flat_map(|range| read_blocks(&mut streams, range, 1999 * KIB, block)).collect();
        assert!(planned.len() > 4, "{planned:?}");
        assert!(
            planned.iter().all(|piece| [piece.start, piece.end].iter().all(|at| at.is_multiple_of(block)))
        );
        assert!(planned.windows(2).all(|pair| pair[0].end == pair[1].start), "{planned:?}");
        assert_eq!(
            planned.last().map(|piece| piece.end),
            Some(2048 * KIB),
            "the block in which the file ends"
        );
    }
}
