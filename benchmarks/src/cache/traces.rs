//! Orders in which pages are read, as the papers on S3-FIFO and CacheLib describe them. They depend on the seed alone.

use fastrand::Rng;

use crate::data;

/// The exponent of Zipf's law where a kind names none.
const EXPONENT: f64 = 0.99;
/// A page of [`Kind::TwiceBesideZipf`] is read again after this many reads.
const AGAIN_AFTER: usize = 4;

/// Draws ranks from 0, the most popular, by Zipf's law with any exponent.
pub struct Zipf {
    /// The probability of each rank and all before it.
    up_to: Vec<f64>,
}

impl Zipf {
    /// Prepares to draw from `count` ranks.
    pub fn new(count: usize, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let mut up_to: Vec<f64> = Vec::with_capacity(count);
        for rank in 1..=count {
            sum += (rank as f64).powf(-exponent);
            up_to.push(sum);
        }
        up_to.iter_mut().for_each(|weight| *weight /= sum);
        Zipf { up_to }
    }

    /// Draws a rank.
    pub fn draw(&self, random: &mut Rng) -> usize {
        let uniform = random.f64();
        self.up_to.partition_point(|&up_to| up_to <= uniform).min(self.up_to.len() - 1)
    }
}

/// How pages follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// By Zipf's law with this exponent.
    Zipf(f64),
    /// Zipf, but every so many reads the next page of a scan of all pages.
    ScanBesideZipf(usize),
    /// Zipf, interrupted by scans of a quarter of the pages.
    ScansBetweenZipf,
    /// Zipf, and every second pair of reads is of a scan, which reads each page again four reads later.
    TwiceBesideZipf,
    /// Pages that are never read again, every second read, and Zipf.
    OnceBesideZipf,
    /// Round and round through this many hundredths of what the cache holds.
    Loop(usize),
    /// Every second read of a loop over 1.1 times what the cache holds, and Zipf.
    LoopBesideZipf,
    /// Zipf; this many times in a trace all ranks move to other pages.
    ZipfMoves(usize),
    /// Zipf; each time after so many reads, each rank moves to the page before its own.
    ZipfDrifts(usize),
}

impl Kind {
    /// Says what it does in a few words.
    pub fn name(self) -> String {
        match self {
            Kind::Zipf(exponent) => format!("Zipf {exponent:.1}"),
            Kind::ScanBesideZipf(every) => format!("1 of {every} reads a scan"),
            Kind::ScansBetweenZipf => "scans now and then".into(),
            Kind::TwiceBesideZipf => "scan reads pages twice".into(),
            Kind::OnceBesideZipf => "half is read once".into(),
            Kind::Loop(hundredths) => format!("loop over {:.1} caches", hundredths as f64 / 100.0),
            Kind::LoopBesideZipf => "half a loop over 1.1 caches".into(),
            Kind::ZipfMoves(times) => format!("moves {times} times"),
            Kind::ZipfDrifts(reads) => format!("drifts every {reads} reads"),
        }
    }

    /// All kinds that are compared.
    pub fn all() -> Vec<Kind> {
        use Kind::*;
        let mut kinds = [0.6, 0.8, 1.0, 1.2].map(Zipf).to_vec();
        kinds.extend([
            ScanBesideZipf(8),
            ScanBesideZipf(2),
            ScansBetweenZipf,
            TwiceBesideZipf,
            OnceBesideZipf,
        ]);
        kinds.extend([Loop(110), Loop(150), LoopBesideZipf, ZipfMoves(8), ZipfMoves(40)]);
        kinds.extend([4, 16, 64].map(ZipfDrifts));
        kinds
    }
}

/// Returns `length` pages in their order: numbers below `pages`, but those that are read once are above. The cache
/// holds `cache` of them.
pub fn trace(kind: Kind, pages: usize, cache: usize, length: usize, seed: u64) -> Vec<u32> {
    let mut random = Rng::with_seed(seed);
    let page_of = data::shuffled(pages as u64, seed);
    let zipf = Zipf::new(pages, if let Kind::Zipf(exponent) = kind { exponent } else { EXPONENT });
    let mut popular = |moved: usize| page_of[(zipf.draw(&mut random) + moved) % pages] as u32;
    // The number of the scan's or loop's next page.
    let mut scanned = 0;
    let mut scan = |count: usize| {
        scanned += 1;
        ((scanned - 1) % count.max(1)) as u32
    };
    let mut out: Vec<u32> = Vec::with_capacity(length);
    for at in 0..length {
        let page = match kind {
            Kind::Zipf(_) => popular(0),
            Kind::ScanBesideZipf(every) if at % every == every - 1 => scan(pages),
            Kind::ScansBetweenZipf if at % (2 * pages) >= 2 * pages - pages / 4 => scan(pages),
            Kind::TwiceBesideZipf if at % (2 * AGAIN_AFTER) == 0 => scan(pages),
            Kind::TwiceBesideZipf if at % (2 * AGAIN_AFTER) == AGAIN_AFTER => out[at - AGAIN_AFTER],
            Kind::OnceBesideZipf if at % 2 == 0 => (pages + at / 2) as u32,
            Kind::Loop(hundredths) => scan(cache * hundredths / 100),
            Kind::LoopBesideZipf if at % 2 == 0 => scan(cache * 11 / 10),
            Kind::ZipfMoves(times) => popular(at * times / length * (pages / 7)),
            // Backwards: the next page to become popular was the least popular.
            Kind::ZipfDrifts(reads) => popular(pages - at / reads % pages),
            Kind::ScanBesideZipf(_)
            | Kind::ScansBetweenZipf
            | Kind::TwiceBesideZipf
            | Kind::OnceBesideZipf
            | Kind::LoopBesideZipf => popular(0),
        };
        out.push(page);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_drawn_as_often_as_the_law_says() {
        let (zipf, mut random) = (Zipf::new(4, 1.0), Rng::with_seed(7));
        let mut counts = [0.0_f64; 4];
        (0..100_000).for_each(|_| counts[zipf.draw(&mut random)] += 1.0);
        // 1 + 1/2 + 1/3 + 1/4 = 25/12.
        for (count, share) in counts.into_iter().zip([12.0, 6.0, 4.0, 3.0]) {
            let expected = 100_000.0 * share / 25.0;
            assert!((count - expected).abs() < expected * 0.05, "{counts:?}");
        }
    }

    #[test]
    fn loops_and_scans_take_the_next_page() {
        assert_eq!(trace(Kind::Loop(150), 100, 2, 7, 1), [0, 1, 2, 0, 1, 2, 0]);
        let every_second =
            |kind| -> Vec<u32> { trace(kind, 3, 1, 9, 1).into_iter().skip(1).step_by(2).collect() };
        assert_eq!(every_second(Kind::ScanBesideZipf(2)), [0, 1, 2, 0]);
        let twice = trace(Kind::TwiceBesideZipf, 100, 10, 17, 1);
        assert_eq!([twice[0], twice[4], twice[8], twice[12], twice[16]], [0, 0, 1, 1, 2]);
        let once = trace(Kind::OnceBesideZipf, 100, 10, 5, 1);
        assert_eq!([once[0], once[2], once[4]], [100, 101, 102]);
        let scans = trace(Kind::ScansBetweenZipf, 8, 2, 34, 1);
        assert_eq!((&scans[14..16], &scans[30..32]), (&[0, 1][..], &[2, 3][..]));
    }

    #[test]
    fn the_most_popular_page_moves_and_drifts() {
        let most =
            |reads: &[u32]| (0..70).max_by_key(|page| reads.iter().filter(|read| *read == page).count());
        let place_of = |page: Option<u32>| {
            let page_of = data::shuffled(70, 1);
            page.and_then(|page| page_of.iter().position(|&own| own == u64::from(page)))
        };
        let moves = trace(Kind::ZipfMoves(2), 70, 7, 20_000, 1);
        assert_eq!((place_of(most(&moves[..10_000])), place_of(most(&moves[10_000..]))), (Some(0), Some(10)));
        let drifts = trace(Kind::ZipfDrifts(10_000), 70, 7, 20_000, 1);
        assert_eq!(
            (place_of(most(&drifts[..10_000])), place_of(most(&drifts[10_000..]))),
            (Some(0), Some(69))
        );
    }

    #[test]
    fn all_kinds_stay_within_the_pages_and_repeat_with_the_seed() {
        for kind in Kind::all() {
            let pages = trace(kind, 50, 5, 1000, 3);
            assert_eq!(pages, trace(kind, 50, 5, 1000, 3));
            assert_eq!(pages.len(), 1000);
            let most = if kind == Kind::OnceBesideZipf { 550 } else { 50 };
            assert!(pages.iter().all(|&page| page < most), "{}", kind.name());
        }
    }
}
