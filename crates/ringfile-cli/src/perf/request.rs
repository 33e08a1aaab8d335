//! What a command wants measured.

use std::time::Duration;

use super::plan::{Grid, Step, Timing};
use crate::cli::{OutputArgs, RunArgs, TestFileArgs, WorkArgs};
use crate::model::{Access, Cache, Kind};
use crate::testfile::TestFile;
use crate::values::IoSize;

/// What a command wants measured.
pub struct Request<'a> {
    /// The command.
    pub kind: Kind,
    /// The file.
    pub test_file: TestFileArgs,
    /// How long each run is.
    pub timing: Timing,
    /// Which blocks, and how much.
    pub work: WorkArgs,
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
        Request { kind, test_file, timing, work: args.work, output: &args.output, verify: false, grid }
    }

    /// Returns which blocks random operations visit in runs with this state of the page cache.
    pub fn access(&self, cache: Cache) -> Access {
        let once = cache == Cache::Cold || self.work.io_size == Some(IoSize::All);
        match self.work.access {
            Some(access) => access,
            None if once && !self.verify => Access::Once,
            None => Access::Any,
        }
    }

    /// Returns the number of operations of each run, if `--io-size` fixes it.
    pub fn amount(&self, test_file: &TestFile) -> Option<u64> {
        self.work.io_size.map(|io_size| match io_size {
            IoSize::All => test_file.blocks,
            IoSize::Bytes(bytes) => bytes / test_file.block,
        })
    }

    /// Returns the expected timing: a fixed amount is assumed to move at 500 MiB per second.
    pub fn expected(&self, test_file: &TestFile) -> Timing {
        let amount = self.amount(test_file);
        let taken = amount.map(|amount| Duration::from_millis(amount.saturating_mul(test_file.block) >> 19));
        Timing { duration: taken.unwrap_or(self.timing.duration), ..self.timing }
    }

    /// Returns about how long some runs take together.
    pub fn length(&self, steps: &[Step], test_file: &TestFile) -> Duration {
        let timing = self.expected(test_file);
        steps.iter().map(|step| timing.length(step)).sum()
    }
}
