//! `compare cache hits`: what a read of a page costs that is in memory, by one thread and by two.
//!
//! All sides read the same pages in the same order, which is computed before. The sum of what they touch is compared
//! with what plain reads of the file have found there.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use clap::Args;
use fastrand::Rng;
use ringfile::{OpenOptions, Pool, block_on};
use ringfile_cli::shared::{self, Table};

use super::Mapping;
use super::sides::{Cache, Own, Quick};
use super::traces::Zipf;
use crate::data::{self, PAGE, Place};
use crate::device;
use crate::rounds::{in_turn, spread_of};
use crate::table::spread;

/// Reads between two looks at the clock.
const TURN: usize = 4096;
/// Turns until an order repeats: with 4 KiB pages, 8 GiB are read meanwhile.
const TURNS: usize = 512;
/// The exponent of Zipf's law.
const EXPONENT: f64 = 0.99;

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
    /// Time of one run
    #[arg(long, default_value = "500ms", value_parser = shared::duration)]
    duration: Duration,
}

/// How much of a page is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touch {
    TwoBytes,
    /// Two bytes, before it is known which page is next, as in an index.
    InTurn,
    All,
}

impl Touch {
    fn title(self) -> &'static str {
        match self {
            Touch::TwoBytes => "two bytes of each page",
            Touch::InTurn => "two bytes of each page, which decide the next page",
            Touch::All => "the sum of each page",
        }
    }
}

/// Returns what a read takes from a page. The two bytes lie in different cache lines, and differ between pages.
#[inline(always)]
fn touch<const ALL: bool>(page: &[u8]) -> u64 {
    match ALL {
        true => page
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(*word.first_chunk().unwrap_or(&[0; 8])))
            .fold(0, u64::wrapping_add),
        false => u64::from(page[2]) + u64::from(page[PAGE / 2]),
    }
}

/// What one run did.
#[derive(Clone, Copy, Default)]
struct Done {
    pages: usize,
    seconds: f64,
    sum: u64,
}

impl Done {
    fn ns(&self) -> f64 {
        self.seconds * 1e9 / self.pages as f64
    }

    fn rate(&self) -> f64 {
        self.pages as f64 / self.seconds
    }
}

/// The way to a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Mmap,
    Pread,
    Buffered,
    Quick,
    Own,
}

const SIDES: [(&str, Way); 6] = [
    ("mmap", Way::Mmap),
    ("pread", Way::Pread),
    ("ringfile, buffered", Way::Buffered),
    ("quick_cache", Way::Quick),
    ("ringfile-cache", Way::Own),
    ("A/A (mmap)", Way::Mmap),
];
const BASE: usize = 0;
/// The sides that two threads use; the last is the A/A row.
const BY_TWO: [(&str, Way); 4] = [
    ("mmap", Way::Mmap),
    ("quick_cache", Way::Quick),
    ("ringfile-cache", Way::Own),
    ("A/A (mmap)", Way::Mmap),
];

/// The file in each form.
struct Forms {
    plain: File,
    map: Mapping,
    buffered: ringfile::File,
    pool: Pool,
    quick: Quick,
    own: Own,
    /// What a read of each page takes: two bytes, or all.
    expected: [Vec<u64>; 2],
}

/// Prints the tables.
pub fn compare(options: &Options) -> io::Result<()> {
    options.place.clean_up_after(compare_all(options))
}

fn compare_all(options: &Options) -> io::Result<()> {
    let place = &options.place;
    let size = place.prepare(PAGE as u64)?;
    let forms = Forms::open(place, size)?;
    let pages = size / PAGE as u64;
    let random = uniform(pages, place.seed);
    let cached = device::resident_share(&forms.plain, size)?;
    for touch in [Touch::TwoBytes, Touch::InTurn, Touch::All] {
        let runs = in_turn(place.rounds, SIDES.len(), |round, side| {
            let (name, way) = SIDES[side];
            let done = forms.run(way, touch, &random, options.duration)?;
            eprintln!("round {round} {} {name:<20} {:>7.0} ns", touch.title(), done.ns());
            io::Result::Ok(Some(done))
        })?;
        println!("\n### Hits: random pages, {}, one thread\n", touch.title());
        let table = Table::default().text("side").number("ns a page, median [min..max]");
        let mut table = table.number("time of mmap / side");
        for ((name, _), done) in SIDES.iter().zip(&runs) {
            let ratios = runs[BASE].iter().zip(done).map(|(mmap, side)| mmap.ns() / side.ns());
            let ns = spread_of(done.iter().map(Done::ns));
            table.row(vec![(*name).into(), spread(ns, 0), spread(spread_of(ratios), 2)]);
        }
        print!("{table}");
    }
    two_threads(options, &forms, pages)?;
    let after = device::resident_share(&forms.plain, size)?;
    let least = cached.min(after) * 100.0;
    println!(
        "\n{} rounds of {:?}; {} MiB, {least:.1} % of them in the page cache by mincore(2), and mapped with \
         MAP_POPULATE; every page's sum was checked.",
        place.rounds,
        options.duration,
        size >> 20
    );
    Ok(())
}

/// Measures one thread and two on the same popular pages.
fn two_threads(options: &Options, forms: &Forms, pages: u64) -> io::Result<()> {
    let seed = options.place.seed;
    let orders = [zipf(pages, seed, 0), zipf(pages, seed, 1)];
    let runs = in_turn(options.place.rounds, BY_TWO.len(), |round, side| {
        let (name, way) = BY_TWO[side];
        let run = |order: &[u32]| forms.run(way, Touch::TwoBytes, order, options.duration);
        let alone = run(&orders[0])?;
        let both = std::thread::scope(|scope| {
            let threads = orders.each_ref().map(|order| scope.spawn(|| run(order)));
            threads.map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("panicked"))))
        });
        let [one, other] = both;
        let rate = one?.rate() + other?.rate();
        eprintln!("round {round} {name:<20} {:>6.2} M/s, by two {:>6.2} M/s", alone.rate() / 1e6, rate / 1e6);
        io::Result::Ok(Some((alone.rate(), rate)))
    })?;
    println!("\n### Hits: popular pages (Zipf {EXPONENT}), two bytes of each page, one thread and two\n");
    let table = Table::default().text("side").number("million pages/s: one thread").number("two threads");
    let mut table = table.number("two / one").number("two threads, over mmap");
    for ((name, _), side) in BY_TWO.iter().zip(&runs) {
        let over_one = spread_of(side.iter().map(|(one, two)| two / one));
        let over_mmap = spread_of(side.iter().zip(&runs[BASE]).map(|(side, mmap)| side.1 / mmap.1));
        table.row(vec![
            (*name).into(),
            spread(spread_of(side.iter().map(|(one, _)| one / 1e6)), 2),
            spread(spread_of(side.iter().map(|(_, two)| two / 1e6)), 2),
            spread(over_one, 2),
            spread(over_mmap, 2),
        ]);
    }
    print!("{table}");
    Ok(())
}

fn uniform(pages: u64, seed: u64) -> Vec<u32> {
    let mut random = Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u32(..pages as u32)).take(TURN * TURNS).collect()
}

/// Threads prefer the same pages, which are scattered over the file.
fn zipf(pages: u64, seed: u64, thread: u64) -> Vec<u32> {
    let page_of = data::shuffled(pages, seed);
    let ranks = Zipf::new(pages as usize, EXPONENT);
    let mut random = Rng::with_seed(seed.wrapping_mul(0x1_0000).wrapping_add(thread));
    std::iter::repeat_with(|| page_of[ranks.draw(&mut random)] as u32).take(TURN * TURNS).collect()
}

impl Forms {
    /// Reads the whole file into the page cache and into each cache.
    fn open(place: &Place, size: u64) -> io::Result<Forms> {
        let plain = File::open(&place.file)?;
        let (mut expected, mut page) = ([vec![], vec![]], [0; PAGE]);
        for at in (0..size).step_by(PAGE) {
            plain.read_exact_at(&mut page, at)?;
            expected[0].push(touch::<false>(&page));
            expected[1].push(touch::<true>(&page));
        }
        // More than the file, since the caches' parts are not filled evenly.
        let bytes = (size + size / 4) as usize + (16 << 20);
        let forms = Forms {
            map: Mapping::new(&plain, size, libc::MAP_POPULATE)?,
            buffered: OpenOptions::new().read(true).open_blocking(&place.file)?,
            pool: Pool::new(4 << 20),
            quick: Quick::open(&place.file, PAGE, bytes)?,
            own: Own::open(&place.file, PAGE, bytes)?,
            plain,
            expected,
        };
        block_on(fill(&forms.quick, size))?;
        block_on(fill(&forms.own, size))?;
        Ok(forms)
    }

    fn run(&self, way: Way, touch: Touch, order: &[u32], duration: Duration) -> io::Result<Done> {
        let (done, expected) = match touch {
            Touch::TwoBytes => (self.read::<false, false>(way, order, duration)?, &self.expected[0]),
            Touch::InTurn => (self.read::<false, true>(way, order, duration)?, &self.expected[0]),
            Touch::All => (self.read::<true, false>(way, order, duration)?, &self.expected[1]),
        };
        let read = order.iter().cycle().take(done.pages);
        let sum = read.fold(0_u64, |sum, &page| sum.wrapping_add(expected[page as usize]));
        match sum == done.sum {
            true => Ok(done),
            false => Err(io::Error::other(format!("the sum of {} pages is wrong", done.pages))),
        }
    }

    fn read<const ALL: bool, const IN_TURN: bool>(
        &self,
        way: Way,
        order: &[u32],
        duration: Duration,
    ) -> io::Result<Done> {
        let at = |page: u32| u64::from(page) * PAGE as u64;
        match way {
            Way::Mmap => until::<IN_TURN>(order, duration, |page| {
                let start = page as usize * PAGE;
                Ok(touch::<ALL>(&self.map[start..start + PAGE]))
            }),
            Way::Pread => {
                let mut bytes = [0; PAGE];
                until::<IN_TURN>(order, duration, |page| {
                    self.plain.read_exact_at(&mut bytes, at(page))?;
                    Ok(touch::<ALL>(&bytes))
                })
            }
            Way::Buffered => block_on(async {
                let mut buffer = self.pool.get(PAGE)?;
                let (mut done, began) = (Done::default(), Instant::now());
                for turn in order.chunks(TURN).cycle() {
                    for &page in turn {
                        buffer.clear();
                        buffer = self.buffered.read_exact_at(buffer, at(page)).await?;
                        done.sum = done.sum.wrapping_add(touch::<ALL>(&buffer));
                    }
                    if done.ends_turn(turn, began, duration) {
                        break;
                    }
                }
                Ok(done)
            }),
            Way::Quick => hit::<ALL, IN_TURN>(&self.quick, order, duration),
            Way::Own => hit::<ALL, IN_TURN>(&self.own, order, duration),
        }
    }
}

impl Done {
    /// Counts a turn; returns whether the time is over.
    fn ends_turn(&mut self, turn: &[u32], began: Instant, duration: Duration) -> bool {
        self.pages += turn.len();
        self.seconds = began.elapsed().as_secs_f64();
        began.elapsed() >= duration
    }
}

fn hit<const ALL: bool, const IN_TURN: bool>(
    cache: &impl Cache,
    order: &[u32],
    duration: Duration,
) -> io::Result<Done> {
    until::<IN_TURN>(order, duration, |page| match cache.get(u64::from(page)) {
        Some(bytes) => Ok(touch::<ALL>(&bytes)),
        None => Err(io::Error::other(format!("page {page} is not in the cache"))),
    })
}

/// Reads turns of the order until the time is over.
#[inline(always)]
fn until<const IN_TURN: bool>(
    order: &[u32],
    duration: Duration,
    mut read: impl FnMut(u32) -> io::Result<u64>,
) -> io::Result<Done> {
    let (mut done, mut before, began) = (Done::default(), 0, Instant::now());
    for turn in order.chunks(TURN).cycle() {
        for &page in turn {
            // Two bytes have no such bits; only the compiler and the processor do not know.
            let add = if IN_TURN { (before >> 32) as u32 } else { 0 };
            before = black_box(read(page + add)?);
            done.sum = done.sum.wrapping_add(before);
        }
        if done.ends_turn(turn, began, duration) {
            break;
        }
    }
    Ok(done)
}

/// Reads all blocks once, so that the cache holds them.
async fn fill(cache: &impl Cache, size: u64) -> io::Result<()> {
    for block in 0..size / PAGE as u64 {
        cache.read(block).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_repeat_with_the_seed_and_stay_in_the_file() {
        assert_eq!(uniform(100, 1), uniform(100, 1));
        assert_eq!(zipf(100, 1, 0), zipf(100, 1, 0));
        assert_ne!(zipf(100, 1, 0), zipf(100, 1, 1));
        let mut counts = [[0; 100]; 2];
        for (thread, counts) in counts.iter_mut().enumerate() {
            zipf(100, 1, thread as u64).iter().for_each(|&page| counts[page as usize] += 1);
        }
        let most = counts.map(|counts| (0..100).max_by_key(|&page| counts[page]));
        assert_eq!(most[0], most[1], "both threads prefer the same page");
    }

    #[test]
    fn a_changed_byte_changes_what_is_touched() {
        let mut page = [7; PAGE];
        let before = (touch::<false>(&page), touch::<true>(&page));
        assert_eq!(before, (14, 0x0707_0707_0707_0707_u64.wrapping_mul(512)));
        page[PAGE / 2] = 8;
        assert_eq!(touch::<false>(&page), 15);
        assert_ne!(touch::<true>(&page), before.1);
    }

    #[test]
    fn whole_turns_are_read_until_the_time_is_over() {
        let order: Vec<u32> = (0..10).collect();
        let done = until::<true>(&order, Duration::ZERO, |page| Ok(u64::from(page))).unwrap();
        assert_eq!((done.pages, done.sum), (10, 45));
        assert!(until::<false>(&order, Duration::ZERO, |_| Err(io::Error::other("x"))).is_err());
    }
}
