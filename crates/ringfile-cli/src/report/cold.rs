//! Cache hits in runs with a cold page cache, and whether such a run may be compared with other engines.
//!
//! Invariants: if more than 1 % of the reads of either side came from the page cache, no table compares the two
//! sides, and a note says why.

use crate::model::{Access, Cache, Run};
use crate::values;

/// The largest fraction of cache hits in a run that counts as cold.
const MOST_HITS: f64 = 0.01;

/// Returns the fraction of a run's page reads that came from the page cache.
///
/// `brought_in` is the number of pages that entered the cache during the run, including those evicted since. `None` if
/// there were no reads.
pub fn hits(ops: u64, block: u64, page: u64, brought_in: u64) -> Option<f64> {
    let read = ops.checked_mul(block.div_ceil(page.max(1)))?;
    (read > 0).then(|| read.saturating_sub(brought_in) as f64 / read as f64)
}

/// Returns whether a run asked for a cold page cache had too many cache hits.
fn was_warm(run: &Run) -> bool {
    run.setup.cache == Cache::Cold && run.cache_hits.is_some_and(|hits| hits > MOST_HITS)
}

/// Returns whether a run of this library and a run of another engine may be compared. Runs of the same side always may.
pub fn are_comparable(one: &Run, other: &Run) -> bool {
    one.setup.engine.is_ours() == other.setup.engine.is_ours() || !(was_warm(one) || was_warm(other))
}

/// Explains why comparisons with other engines are missing, if any is.
pub fn note(runs: &[Run]) -> Option<String> {
    let more =
        |one: &&Run, other: &&Run| one.cache_hits.unwrap_or(0.0).total_cmp(&other.cache_hits.unwrap_or(0.0));
    let warmest = runs.iter().filter(|run| was_warm(run)).max_by(more)?;
    let hits = warmest.cache_hits.unwrap_or(0.0) * 100.0;
    let kept = warmest.cached_before.is_some_and(|fraction| fraction > MOST_HITS);
    let why = match (kept, warmest.access) {
        (true, _) => "the file system kept the file in the page cache; name a --file on a disk",
        (false, Some(Access::Any)) => {
            "operations picked blocks again; use a larger --size or a shorter --duration"
        }
        (false, _) => "something else read the file, or several blocks share a page",
    };
    Some(format!(
        "cold: up to {hits:.1} % of a run's reads ({}) came from the page cache. Runs with more than 1 % are not compared with \
         other engines. Cause: {why}",
        values::name(&warmest.setup.engine)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_what_was_read_and_not_brought_in() {
        assert_eq!(hits(100, 4096, 4096, 100), Some(0.0));
        assert_eq!(hits(100, 4096, 4096, 45), Some(0.55));
        assert_eq!(hits(100, 16384, 4096, 300), Some(0.25));
        assert_eq!(hits(64, 512, 4096, 8), Some(0.875), "eight blocks to a page");
        assert_eq!(hits(10, 4096, 4096, 500), Some(0.0), "read ahead");
        assert_eq!(hits(0, 4096, 4096, 0), None);
    }
}
