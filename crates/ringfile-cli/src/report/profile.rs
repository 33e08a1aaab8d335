//! Where CPU time went, as `--profile` finds it: types of the JSON, and the table.

use serde::{Deserialize, Serialize};

use super::table::{Table, figure};
use crate::cli::{Buffers, Rw};
use crate::values::{self, short_size};

/// How many functions are named of each side.
pub const HOTTEST: usize = 10;

/// The profile of one kind of buffers in one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Buffers.
    pub buffers: Buffers,
    /// Access.
    pub rw: Rw,
    /// Bytes of an operation.
    pub block_size_bytes: u64,
    /// Operations in flight.
    pub iodepth: usize,
    /// What the samples were taken by: `cycles`, or `cpu-clock` where the machine has no counters.
    pub event: String,
    /// Samples that were taken.
    pub samples: u64,
    /// Per cent of them in the kernel; 0 where this user may not look into it.
    pub kernel_percent: f64,
    /// The most expensive functions of the kernel, by their own time.
    pub kernel: Vec<Hot>,
    /// The most expensive functions in user space.
    pub user: Vec<Hot>,
    /// The flame graph, an SVG.
    pub flame_graph: String,
}

/// An expensive function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hot {
    /// Its name.
    pub function: String,
    /// Per cent of all samples, in the function itself.
    pub percent: f64,
}

/// The functions of all kinds, most expensive first.
pub fn table(profiles: &[Profile]) -> Table {
    let mut table = Table::default().text("profile").text("space").end_keys().number("%").text("function");
    for profile in profiles {
        let mut name = format!(
            "{} {} {} depth {}, {} samples",
            values::name(&profile.buffers),
            values::name(&profile.rw),
            short_size(profile.block_size_bytes),
            profile.iodepth,
            profile.samples
        );
        for (space, functions) in [("kernel", &profile.kernel), ("user", &profile.user)] {
            let mut space = space.to_string();
            for hot in functions {
                let cells = [std::mem::take(&mut name), std::mem::take(&mut space)];
                let [name, space] = cells;
                table.row(vec![name, space, figure(hot.percent), shortened(&hot.function)]);
            }
        }
    }
    table
}

/// So much of a function's name that a table stays readable.
fn shortened(name: &str) -> String {
    const LONGEST: usize = 60;
    if name.chars().count() <= LONGEST {
        return name.to_string();
    }
    format!("{}…", name.chars().take(LONGEST - 1).collect::<String>())
}
