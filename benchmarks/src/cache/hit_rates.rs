//! `compare cache hit-rates`: how many reads find their page, in generated orders. Nothing is timed.
//!
//! ringfile's cache is used through its public interface, on an empty file as long as the trace needs; the others are
//! simulated.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use ringfile::{OpenOptions, block_on};
use ringfile_cache::CachedFile;
use ringfile_cli::shared::Table;

use super::policies::{Lru, Optimum, Policy, S3Fifo, TinyLfu, hit_rate, pages_of};
use super::traces::{Kind, trace};
use crate::data::PAGE;

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    /// An existing folder; an empty file is created there, and removed at the end
    #[arg(long)]
    folder: PathBuf,
    /// Pages of the file (a longer comparison: 65536)
    #[arg(long, default_value_t = 8192)]
    pages: usize,
    /// Reads for each page
    #[arg(long, default_value_t = 40)]
    reads: usize,
    /// Memory, in hundredths of the file
    #[arg(long, value_delimiter = ',', default_value = "2,10,25")]
    memory: Vec<usize>,
    /// Seed of the orders
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The policies, in the order of the table.
const POLICIES: [&str; 5] = ["optimum", "LRU", "S3-FIFO", "W-TinyLFU", "ringfile-cache"];

/// Prints the tables.
pub fn compare(options: &Options) -> io::Result<()> {
    let path = options.folder.join(format!("ringfile-hit-rates-{}", std::process::id()));
    let result = compare_all(options, &path);
    match path.exists() {
        true => result.and(std::fs::remove_file(&path)),
        false => result,
    }
}

fn compare_all(options: &Options, path: &Path) -> io::Result<()> {
    let length = options.pages * options.reads;
    let skip = length / 4;
    let mut all = Vec::new();
    for &memory in &options.memory {
        let cache = options.pages * memory / 100;
        if cache < 100 {
            return Err(io::Error::other(format!("a cache of {cache} pages is too small: at least 100")));
        }
        println!("\n### Hit rates in %, memory for {memory} % of {} pages\n", options.pages);
        let mut table =
            POLICIES.iter().fold(Table::default().text("reads"), |table, name| table.number(*name));
        for kind in Kind::all() {
            let trace = trace(kind, options.pages, cache, length, options.seed);
            let rates = rates(&trace, cache, skip, path)?;
            eprintln!("{memory} % {:<28} {rates:.3?}", kind.name());
            let cells = rates.iter().map(|rate| format!("{:.1}", rate * 100.0));
            table.row(std::iter::once(kind.name()).chain(cells).collect());
            all.push(rates);
        }
        print!("{table}");
    }
    summarize(&all);
    println!(
        "\n{} traces of {length} reads, of which the first quarter is not counted; Zipf 0.99 where no exponent is named.",
        all.len()
    );
    Ok(())
}

fn rates(trace: &[u32], cache: usize, skip: usize, path: &Path) -> io::Result<[f64; POLICIES.len()]> {
    let pages = pages_of(trace);
    let mut own = Own::open(path, pages, cache)?;
    let rates = [
        hit_rate(&mut Optimum::new(trace, cache), trace, skip),
        hit_rate(&mut Lru::new(pages, cache), trace, skip),
        hit_rate(&mut S3Fifo::new(pages, cache), trace, skip),
        hit_rate(&mut TinyLfu::new(pages, cache), trace, skip),
        hit_rate(&mut own, trace, skip),
    ];
    own.checked(trace.len() as u64)?;
    Ok(rates)
}

/// Prints the mean over all traces, and the worst of them beside the best other policy.
fn summarize(all: &[[f64; POLICIES.len()]]) {
    println!("\n### All traces\n");
    let table = Table::default().text("policy").number("mean hit rate in %").number("of the optimum's");
    let mut table = table.number("points below LRU, worst trace").number("traces in which it is the best");
    for (policy, name) in POLICIES.iter().enumerate() {
        let mean = |of: &dyn Fn(&[f64; 5]) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        let below = all.iter().map(|rates| rates[1] - rates[policy]).fold(0.0, f64::max);
        let best = all.iter().filter(|rates| rates[1..].iter().all(|&other| rates[policy] >= other)).count();
        table.row(vec![
            (*name).into(),
            format!("{:.1}", mean(&|rates| rates[policy]) * 100.0),
            format!("{:.3}", mean(&|rates| rates[policy] / rates[0])),
            format!("{:.1}", below * 100.0),
            best.to_string(),
        ]);
    }
    print!("{table}");
}

/// ringfile's cache over a file of zeros.
struct Own {
    cache: ringfile_cache::Cache,
    file: CachedFile,
    hits: u64,
    error: Option<io::Error>,
}

impl Own {
    fn open(path: &Path, pages: usize, cache: usize) -> io::Result<Own> {
        File::create(path)?.set_len((pages * PAGE) as u64)?;
        let file = OpenOptions::new().read(true).direct(true).buffered_fallback(true).open_blocking(path)?;
        let cache = ringfile_cache::Cache::new(cache * PAGE)?;
        Ok(Own { file: cache.open(file, PAGE)?, cache, hits: 0, error: None })
    }

    /// Returns an error if a read failed, or if the cache has counted other hits than were seen.
    fn checked(self, reads: u64) -> io::Result<()> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let counted = self.cache.metrics();
        match (counted.hits, counted.misses) == (self.hits, reads - self.hits) {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "{} of {reads} reads were hits, counted {counted:?}",
                self.hits
            ))),
        }
    }
}

impl Policy for Own {
    fn read(&mut self, page: u32) -> bool {
        let hit = self.file.get(u64::from(page)).is_some();
        self.hits += u64::from(hit);
        if !hit && let Err(error) = block_on(self.file.read(u64::from(page))) {
            self.error.get_or_insert(error);
        }
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_itself_is_between_nothing_and_the_optimum() {
        let path = std::env::temp_dir().join(format!("ringfile-hit-rates-test-{}", std::process::id()));
        let trace = trace(Kind::Zipf(1.0), 1000, 100, 20_000, 1);
        let rates = rates(&trace, 100, 5000, &path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(rates.iter().all(|&rate| rate > 0.5 && rate <= rates[0]), "{rates:?}");
        assert!(rates[4] > rates[1], "better than LRU: {rates:?}");
    }
}
