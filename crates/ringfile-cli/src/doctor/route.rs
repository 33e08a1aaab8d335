//! The routes that the library's own operations take on the files at hand, by its own counts.

use std::fs::File;

use ringfile::Pool;
use serde::{Deserialize, Serialize};

use crate::model::RouteOps;

use super::direct::Direct;
use super::subjects::{Subjects, TRIED};

/// A few operations of one kind, and the routes they took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// `buffered reads`, `buffered writes`, `direct reads`, `direct writes`.
    pub what: String,
    /// Operations by route.
    #[serde(flatten)]
    pub ops: RouteOps,
    /// Operations that ended with an error.
    pub failed: u64,
}

const BLOCK: usize = 4096;

/// Does the operations; kinds without a file are left out.
pub fn look(subjects: &Subjects, direct: Option<&Direct>) -> Vec<Taken> {
    let direct = direct.filter(|direct| direct.usable && direct.offset_alignment <= Some(BLOCK as u32));
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

/// Does sixteen operations one after the other. The first discovers what the file supports.
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
    (counts.ops > 0).then(|| Taken { what: what.into(), ops: RouteOps::of(&counts), failed: counts.failed })
}

impl Taken {
    /// Returns the route of most operations, in words.
    pub fn most(&self) -> &'static str {
        // The last of several maxima counts.
        let RouteOps { ring, inline, workers, aio } = self.ops;
        let ways =
            [(aio, "Linux AIO"), (workers, "worker threads"), (inline, "plain calls"), (ring, "io_uring")];
        ways.into_iter().max_by_key(|(ops, _)| *ops).map_or("io_uring", |(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_counted_on_some_route() {
        let file = tempfile::tempfile().expect("temporary file");
        let taken = taken("buffered writes", file, true).expect("they were counted");
        // Other tests' operations count too.
        assert!(taken.ops.total() >= 16, "{taken:?}");
    }

    #[test]
    fn the_route_of_most_operations_is_named() {
        for ([ring, inline, workers, aio], most) in [
            ([15, 1, 0, 0], "io_uring"),
            ([8, 8, 0, 0], "io_uring"),
            ([1, 15, 0, 0], "plain calls"),
            ([0, 1, 15, 0], "worker threads"),
            ([0, 1, 0, 15], "Linux AIO"),
        ] {
            let ops = RouteOps { ring, inline, workers, aio };
            assert_eq!(Taken { what: String::new(), ops, failed: 0 }.most(), most);
        }
    }
}
