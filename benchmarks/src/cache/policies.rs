//! What is evicted: the optimum and three policies, simulated with pages of one size that are read one after another.

use std::collections::{BTreeSet, VecDeque};

/// A cache that only notes which pages it holds.
pub trait Policy {
    /// Reads a page. Returns whether it was in the cache.
    fn read(&mut self, page: u32) -> bool;
}

/// Returns the share of hits among the reads after the first `skip`.
pub fn hit_rate(policy: &mut dyn Policy, trace: &[u32], skip: usize) -> f64 {
    for &page in &trace[..skip] {
        policy.read(page);
    }
    let hits = trace[skip..].iter().filter(|&&page| policy.read(page)).count();
    hits as f64 / (trace.len() - skip) as f64
}

/// How many pages a trace names at most.
pub fn pages_of(trace: &[u32]) -> usize {
    trace.iter().max().map_or(0, |&page| page as usize + 1)
}

/// Evicts the page whose next read is the farthest away (Belady). It knows the trace.
pub struct Optimum {
    cache: usize,
    /// For each read, when the page is read next.
    next: Vec<usize>,
    at: usize,
    /// When the page is read next, if it is in the cache.
    held: Vec<Option<usize>>,
    order: BTreeSet<(usize, u32)>,
}

impl Optimum {
    /// Makes an empty cache of `cache` pages for this trace.
    pub fn new(trace: &[u32], cache: usize) -> Optimum {
        let pages = pages_of(trace);
        let mut last = vec![usize::MAX; pages];
        let mut next: Vec<usize> = trace
            .iter()
            .enumerate()
            .rev()
            .map(|(at, &page)| std::mem::replace(&mut last[page as usize], at))
            .collect();
        next.reverse();
        Optimum { cache, next, at: 0, held: vec![None; pages], order: BTreeSet::new() }
    }
}

impl Policy for Optimum {
    fn read(&mut self, page: u32) -> bool {
        let next = self.next[self.at];
        self.at += 1;
        let before = self.held[page as usize].replace(next);
        match before {
            Some(now) => {
                self.order.remove(&(now, page));
            }
            None if self.order.len() == self.cache => {
                if let Some((_, farthest)) = self.order.pop_last() {
                    self.held[farthest as usize] = None;
                }
            }
            None => {}
        }
        self.order.insert((next, page));
        before.is_some()
    }
}

/// No page.
const NONE: u32 = u32::MAX;

/// Pages in an order, each at most once.
struct List {
    /// The neighbours of each page: towards the front, and towards the back.
    links: Vec<[u32; 2]>,
    /// The front and the back.
    ends: [u32; 2],
    len: usize,
}

impl List {
    fn new(pages: usize) -> List {
        List { links: vec![[NONE; 2]; pages], ends: [NONE; 2], len: 0 }
    }

    fn push_front(&mut self, page: u32) {
        self.links[page as usize] = [NONE, self.ends[0]];
        match self.ends[0] {
            NONE => self.ends[1] = page,
            first => self.links[first as usize][0] = page,
        }
        self.ends[0] = page;
        self.len += 1;
    }

    fn remove(&mut self, page: u32) {
        let [before, after] = self.links[page as usize];
        match before {
            NONE => self.ends[0] = after,
            before => self.links[before as usize][1] = after,
        }
        match after {
            NONE => self.ends[1] = before,
            after => self.links[after as usize][0] = before,
        }
        self.len -= 1;
    }

    fn pop_back(&mut self) -> u32 {
        let last = self.ends[1];
        self.remove(last);
        last
    }
}

/// Evicts the page that was not read for longest.
pub struct Lru {
    cache: usize,
    list: List,
    held: Vec<bool>,
}

impl Lru {
    /// Makes an empty cache of `cache` pages, for pages below `pages`.
    pub fn new(pages: usize, cache: usize) -> Lru {
        Lru { cache, list: List::new(pages), held: vec![false; pages] }
    }
}

impl Policy for Lru {
    fn read(&mut self, page: u32) -> bool {
        let hit = std::mem::replace(&mut self.held[page as usize], true);
        if hit {
            self.list.remove(page);
        } else if self.list.len == self.cache {
            let out = self.list.pop_back();
            self.held[out as usize] = false;
        }
        self.list.push_front(page);
        hit
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Out,
    First,
    Second,
    Third,
}

/// S3-FIFO with the paper's settings: a small queue of a tenth, from which pages that were read twice more move to the
/// main queue, and a memory of as many evicted pages as the main queue has.
pub struct S3Fifo {
    cache: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// `First` is the small queue, `Second` the main one.
    place: Vec<Place>,
    visits: Vec<u8>,
    /// The number of evictions from the small queue, and what it was when the page was evicted there.
    evictions: usize,
    evicted: Vec<Option<usize>>,
}

impl S3Fifo {
    /// Makes an empty cache of `cache` pages, for pages below `pages`.
    pub fn new(pages: usize, cache: usize) -> S3Fifo {
        S3Fifo {
            cache,
            small: VecDeque::new(),
            main: VecDeque::new(),
            place: vec![Place::Out; pages],
            visits: vec![0; pages],
            evictions: 0,
            evicted: vec![None; pages],
        }
    }

    fn small_share(&self) -> usize {
        (self.cache / 10).max(1)
    }

    fn evict(&mut self) {
        loop {
            let is_small = self.small.len() >= self.small_share() || self.main.is_empty();
            let queue = if is_small { &mut self.small } else { &mut self.main };
            let Some(page) = queue.pop_front() else { return };
            let own = page as usize;
            match (is_small, self.visits[own]) {
                (true, 2..) => {
                    self.visits[own] = 0;
                    self.place[own] = Place::Second;
                    self.main.push_back(page);
                }
                (false, 1..) => {
                    self.visits[own] -= 1;
                    self.main.push_back(page);
                }
                _ => {
                    self.place[own] = Place::Out;
                    self.evicted[own] = is_small.then_some(self.evictions);
                    self.evictions += usize::from(is_small);
                    return;
                }
            }
        }
    }
}

impl Policy for S3Fifo {
    fn read(&mut self, page: u32) -> bool {
        let own = page as usize;
        if self.place[own] != Place::Out {
            self.visits[own] = (self.visits[own] + 1).min(3);
            return true;
        }
        let remembered = self.cache - self.small_share();
        let comes_back = self.evicted[own].is_some_and(|then| self.evictions - then <= remembered);
        if self.small.len() + self.main.len() == self.cache {
            self.evict();
        }
        self.visits[own] = 0;
        if comes_back {
            self.place[own] = Place::Second;
            self.main.push_back(page);
        } else {
            self.place[own] = Place::First;
            self.small.push_back(page);
        }
        false
    }
}

/// W-TinyLFU, with exact counts in place of a sketch: a window of one in a hundred; of the rest, four fifths are
/// protected. A page from the window takes the place of one that is not protected if it was read more often.
pub struct TinyLfu {
    cache: usize,
    window: List,
    probation: List,
    protected: List,
    /// `First` is the window, `Second` probation, `Third` protected.
    place: Vec<Place>,
    /// Reads of each page, at most 15, halved after ten times as many reads as the cache has pages.
    counts: Vec<u8>,
    reads: usize,
}

impl TinyLfu {
    /// Makes an empty cache of `cache` pages, for pages below `pages`.
    pub fn new(pages: usize, cache: usize) -> TinyLfu {
        TinyLfu {
            cache,
            window: List::new(pages),
            probation: List::new(pages),
            protected: List::new(pages),
            place: vec![Place::Out; pages],
            counts: vec![0; pages],
            reads: 0,
        }
    }

    fn window_share(&self) -> usize {
        (self.cache / 100).max(1)
    }

    fn count(&mut self, page: u32) {
        let count = &mut self.counts[page as usize];
        *count = (*count + 1).min(15);
        self.reads += 1;
        if self.reads == 10 * self.cache {
            self.reads /= 2;
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
    }

    fn move_to(&mut self, page: u32, place: Place) {
        match self.place[page as usize] {
            Place::Out => {}
            Place::First => self.window.remove(page),
            Place::Second => self.probation.remove(page),
            Place::Third => self.protected.remove(page),
        }
        match place {
            Place::Out => {}
            Place::First => self.window.push_front(page),
            Place::Second => self.probation.push_front(page),
            Place::Third => self.protected.push_front(page),
        }
        self.place[page as usize] = place;
    }

    /// Lets the window's oldest page and the oldest that is not protected compete, if there are too many.
    fn evict(&mut self) {
        if self.window.len <= self.window_share() {
            return;
        }
        let candidate = self.window.ends[1];
        let victim = if self.probation.len > 0 { self.probation.ends[1] } else { self.protected.ends[1] };
        if self.window.len + self.probation.len + self.protected.len <= self.cache {
            self.move_to(candidate, Place::Second);
        } else if victim != NONE && self.counts[candidate as usize] > self.counts[victim as usize] {
            self.move_to(victim, Place::Out);
            self.move_to(candidate, Place::Second);
        } else {
            self.move_to(candidate, Place::Out);
        }
    }
}

impl Policy for TinyLfu {
    fn read(&mut self, page: u32) -> bool {
        self.count(page);
        let place = self.place[page as usize];
        match place {
            Place::Out | Place::First => self.move_to(page, Place::First),
            Place::Second | Place::Third => self.move_to(page, Place::Third),
        }
        if self.protected.len > (self.cache - self.window_share()) * 4 / 5 {
            let oldest = self.protected.ends[1];
            self.move_to(oldest, Place::Second);
        }
        if place == Place::Out {
            self.evict();
        }
        place != Place::Out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns for each read whether it is a hit.
    fn hits(policy: &mut dyn Policy, trace: &[u32]) -> Vec<u8> {
        trace.iter().map(|&page| u8::from(policy.read(page))).collect()
    }

    #[test]
    fn the_optimum_evicts_what_is_read_last() {
        // At 3, page 2 goes, which is read after 1; at 4, page 3, which is not read again.
        let trace = [1, 2, 3, 1, 4, 1, 2];
        assert_eq!(hits(&mut Optimum::new(&trace, 2), &trace), [0, 0, 0, 1, 0, 1, 0]);
        assert_eq!(hits(&mut Optimum::new(&trace, 3), &trace), [0, 0, 0, 1, 0, 1, 1]);
    }

    #[test]
    fn no_policy_is_better_than_the_optimum() {
        let mut random = fastrand::Rng::with_seed(5);
        for cache in [2, 7, 20] {
            let trace: Vec<u32> = (0..2000).map(|_| random.u32(..30).min(random.u32(..30))).collect();
            let best = hit_rate(&mut Optimum::new(&trace, cache), &trace, 100);
            let mut lru = Lru::new(30, cache);
            let mut s3 = S3Fifo::new(30, cache);
            let mut lfu = TinyLfu::new(30, cache);
            for policy in [&mut lru as &mut dyn Policy, &mut s3, &mut lfu] {
                let rate = hit_rate(policy, &trace, 100);
                assert!(rate > 0.0 && rate <= best, "{rate} {best} with {cache}");
            }
            assert!(lru.held.iter().filter(|&&held| held).count() <= cache);
            assert!(s3.place.iter().filter(|&&place| place != Place::Out).count() <= cache);
            assert!(lfu.place.iter().filter(|&&place| place != Place::Out).count() <= cache);
        }
    }

    #[test]
    fn lru_evicts_what_was_not_read_for_longest() {
        assert_eq!(hits(&mut Lru::new(5, 2), &[1, 2, 1, 3, 1, 2]), [0, 0, 1, 0, 1, 0]);
    }

    #[test]
    fn s3_fifo_keeps_a_page_that_was_read_thrice_and_one_that_comes_back() {
        // The small queue holds one page. Page 1 was read twice more, so it moves to the main queue, and 2 is evicted.
        let mut cache = S3Fifo::new(20, 10);
        let filling: Vec<u32> = (1..=10).collect();
        assert_eq!(hits(&mut cache, &filling), [0; 10]);
        assert_eq!(hits(&mut cache, &[1, 1, 11, 1]), [1, 1, 0, 1]);
        // Page 2 comes back, into the main queue; many others pass meanwhile.
        assert!(!cache.read(2));
        assert!(cache.place[2] == Place::Second && cache.place[3] == Place::Out);
        for page in 12..20 {
            cache.read(page);
        }
        assert_eq!(hits(&mut cache, &[1, 2, 4]), [1, 1, 0]);
    }

    #[test]
    fn tiny_lfu_keeps_what_was_read_more_often() {
        let mut cache = TinyLfu::new(200, 100);
        for page in 0..100 {
            cache.read(page);
        }
        (0..100).for_each(|page| assert!(cache.read(page)));
        // Each of these was read once, the others twice.
        (100..200).for_each(|page| assert!(!cache.read(page)));
        let held = (0..99).filter(|&page| cache.place[page] != Place::Out).count();
        assert_eq!(held, 99);
    }
}
