//! Which way the library's own operations go on the files at hand, by its own counts.

use std::fs::File;

use ringfile::{Metrics, Pool};
use serde::{Deserialize, Serialize};

use crate::model::RouteOps;

use super::file::{FileFacts, Subjects, TRIED};

/// A few operations of one kind, and the ways they went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// `buffered reads`, `buffered writes`, `direct reads`, `direct writes`.
    pub what: String,
    /// Through io_uring.
    pub ring: u64,
    /// Plain calls on the thread itself.
    pub inline: u64,
    /// Plain calls on worker threads.
    pub workers: u64,
    /// By Linux AIO.
    #[serde(default)]
    pub aio: u64,
    /// Ended with an error.
    pub failed: u64,
}

const BLOCK: usize = 4096;

/// Does them; what was not tried is left out.
pub fn look(subjects: &Subjects, facts: &FileFacts) -> Vec<Taken> {
    let direct =
        facts.direct.as_ref().filter(|direct| direct.usable && direct.offset_alignment <= Some(BLOCK as u32));
    let all = [
        ("buffered reads", subjects.reads.as_ref(), false),
        ("buffered writes", subjects.writes.as_ref(), true),
        ("direct reads", direct.and_then(|_| subjects.direct(false)), false),
        ("direct writes", direct.and_then(|_| subjects.direct(true)), true),
    ];
    let took =
        |(what, file, writes): (&str, Option<&File>, bool)| taken(what, file?.try_clone().ok()?, writes);
    all.into_iter().filter_map(took).collect()
}

/// Sixteen operations one after the other. The first finds out what the file can do.
fn taken(what: &str, file: File, writes: bool) -> Option<Taken> {
    let file = ringfile::File::from(file);
    let pool = Pool::new(2 << 20);
    let before = ringfile::metrics();
    ringfile::block_on(async {
        for place in (0..TRIED as u64).step_by(BLOCK) {
            let Ok(mut buffer) = pool.get(BLOCK) else { return };
            // An operation that fails is counted.
            if writes {
                buffer.resize(BLOCK, 5);
                let _ = file.write_at(buffer, place).await;
            } else {
                let _ = file.read_at(buffer, place).await;
            }
        }
    });
    let counts = ringfile::metrics() - before;
    (counts.ops > 0).then(|| Taken::of(what, &counts))
}

impl Taken {
    fn of(what: &str, counts: &Metrics) -> Taken {
        let RouteOps { ring, inline, workers, aio } = RouteOps::of(counts);
        Taken { what: what.into(), ring, inline, workers, aio, failed: counts.failed }
    }

    /// Returns the route of most operations, in words.
    pub fn most(&self) -> &'static str {
        // Of equals, the last.
        let ways = [
            (self.aio, "Linux AIO"),
            (self.workers, "worker threads"),
            (self.inline, "plain calls"),
            (self.ring, "io_uring"),
        ];
        ways.into_iter().max_by_key(|(ops, _)| *ops).map_or("io_uring", |(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_went_some_way() {
        let file = tempfile::tempfile().expect("temporary file");
        let taken = taken("buffered writes", file, true).expect("they were counted");
        // Other tests' operations count too.
        assert!(taken.ring + taken.inline + taken.workers + taken.aio >= 16, "{taken:?}");
    }

    #[test]
    fn the_way_that_most_went() {
        let taken =
            |ring, inline, workers, aio| Taken { what: String::new(), ring, inline, workers, aio, failed: 0 };
        assert_eq!(taken(15, 1, 0, 0).most(), "io_uring");
        assert_eq!(taken(8, 8, 0, 0).most(), "io_uring");
        assert_eq!(taken(1, 15, 0, 0).most(), "plain calls");
        assert_eq!(taken(0, 1, 15, 0).most(), "worker threads");
        assert_eq!(taken(0, 1, 0, 15).most(), "Linux AIO");
    }
}
