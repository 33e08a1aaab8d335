//! What to set for a file on a machine, from what `perf buffers` measured there.
//!
//! Pure functions of results: one file for each question, and none knows how anything was measured. Invariants: advice
//! rests only on what was measured, each piece with its figure; if nothing is
//! beyond the noise, it says so, and a setting is the default, or what the rounds lean to.

mod block_size;
mod buffers;
mod depth;
mod direct;
mod measured;
mod pool;
mod route;
pub mod text;

#[cfg(test)]
pub mod recorded;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::report::results::Results;
use measured::Measured;

/// What is said first of a choice that the measurement can't tell from none.
const NO_DIFFERENCE: &str = "no difference beyond the noise: ";

/// What to set for the file that was measured, in the order in which one piece follows from the other.
pub fn advise(results: &Results) -> Vec<Advice> {
    let measured = Measured::of(results);
    if measured.access().is_none() {
        return Vec::new();
    }
    let (direct_advice, direct) = direct::advise(&measured);
    let (route_advice, route) = route::advise(&measured, direct);
    let (buffers_advice, kind) = buffers::advise(&measured, direct, route);
    let depth = depth::advise(&measured, direct, route, kind);
    let at_depth = depth.as_ref().map_or(1, |(_, depth)| *depth);
    let block = block_size::advise(&measured, direct, route, at_depth, kind);
    let of_block = block.as_ref().map(|(_, block)| *block);
    let mut advice: Vec<Advice> =
        [direct_advice, route_advice, buffers_advice].into_iter().flatten().collect();
    advice.extend(depth.map(|(advice, _)| advice));
    advice.extend(block.map(|(advice, _)| advice));
    let capacity =
        of_block.map(|block| pool::capacity(&results.params, at_depth, block, results.machine.cpus));
    advice.extend(capacity);
    advice.push(pool::huge_pages());
    advice.extend(pool::workers(route, at_depth));
    advice
}

/// One setting, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What to set: the key of the configuration file.
    pub name: Setting,
    /// What to.
    pub value: Value,
    /// The figure that says so, in one sentence or two.
    pub because: String,
    /// How sure that is.
    pub sure: Sure,
}

impl Advice {
    fn new(name: Setting, value: Value, because: String, sure: Sure) -> Advice {
        Advice { name, value, because, sure }
    }
}

/// A key of the library's configuration file, in the order of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// O_DIRECT or the page cache.
    Direct,
    /// Which way operations go.
    Route,
    /// Registered memory or not.
    Buffers,
    /// Operations in flight.
    Depth,
    /// Bytes of an operation, for reads of much.
    BlockSize,
    /// Bytes of the pool.
    Capacity,
    /// Huge pages for the pool.
    HugePages,
    /// Threads that make plain calls.
    Workers,
}

impl Setting {
    /// The key.
    pub fn key(self) -> &'static str {
        match self {
            Setting::Direct => "direct",
            Setting::Route => "route",
            Setting::Buffers => "buffers",
            Setting::Depth => "depth",
            Setting::BlockSize => "block_size",
            Setting::Capacity => "capacity",
            Setting::HugePages => "huge_pages",
            Setting::Workers => "workers",
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

/// What a setting is set to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// Yes or no.
    Flag(bool),
    /// A count or a number of bytes.
    Number(u64),
    /// A word, or a size with its unit.
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(flag) => flag.fmt(f),
            Value::Number(number) => number.fmt(f),
            Value::Text(text) => f.write_str(text),
        }
    }
}

/// How sure a piece of advice is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sure {
    /// The difference that decides is outside the noise.
    OutsideNoise,
    /// No difference beyond the noise: the default is as good.
    InsideNoise,
    /// It follows from the rest, or too few rounds were made to judge.
    NotCompared,
}

impl fmt::Display for Sure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sure::OutsideNoise => "outside the noise",
            Sure::InsideNoise => "inside the noise",
            Sure::NotCompared => "not compared",
        })
    }
}

/// A size as the configuration file has it, in the largest unit that leaves no remainder.
fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}
