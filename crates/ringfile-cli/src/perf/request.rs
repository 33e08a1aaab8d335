//! What a command wants measured.

use std::time::Duration;

use super::plan::{Grid, Step, Timing};
use crate::cli::{OutputArgs, RunArgs, TestFileArgs};
use crate::model::{Access, Cache, Kind};

/// What a command wants measured.
pub struct Request<'a> {
    /// The command.
    pub kind: Kind,
    /// The file.
    pub test_file: TestFileArgs,
    /// How long each run is.
    pub timing: Timing,
    /// Where results go.
    pub output: &'a OutputArgs,
    /// Whether contents are checked.
    pub verify: bool,
    /// The runs to make.
    pub grid: Grid,
}

impl<'a> Request<'a> {
    /// Returns the request of a command line.
    pub fn new(kind: Kind, args: &'a RunArgs, grid: Grid) -> Self {
        let (test_file, timing) = (args.test_file.clone(), Timing::of(&args.timing));
        Request { kind, test_file, timing, output: &args.output, verify: false, grid }
    }

    /// Returns which blocks random operations visit in runs with this state of the page cache: a second read of a block
    /// would not be cold.
    pub fn access(&self, cache: Cache) -> Access {
        let once = cache == Cache::Cold && self.kind != Kind::Buffers && !self.verify;
        if once { Access::Once } else { Access::Any }
    }

    /// Returns about how long some runs take together.
    pub fn length(&self, steps: &[Step]) -> Duration {
        steps.iter().map(|step| self.timing.length(step)).sum()
    }
}
