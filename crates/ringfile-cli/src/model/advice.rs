//! What to set for a file on a machine, as the JSON has it.

use std::fmt;

use serde::{Deserialize, Serialize};

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
    /// Advice on one setting.
    pub fn new(name: Setting, value: Value, because: String, sure: Sure) -> Advice {
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
