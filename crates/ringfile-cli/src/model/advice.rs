//! Advice on what to set for a file on a machine, as the JSON has it.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::values;

/// One setting, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// The key in the configuration file.
    pub name: Setting,
    /// The value to set.
    pub value: Value,
    /// The figure that decided it, in one or two sentences.
    pub because: String,
    /// How certain the advice is.
    pub sure: Sure,
    /// What it was compared with, if that was one thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Over>,
}

/// What a setting was compared with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Over {
    /// The other value.
    pub instead_of: String,
    /// How many times its figure was reached, such as `IOPS × 1.21 [1.15..1.30]`.
    pub gain: String,
    /// The noise, such as `4.0 %`; none if it was not measured.
    pub noise: Option<String>,
}

impl Advice {
    /// Returns advice on one setting.
    pub fn new(name: Setting, value: Value, because: String, sure: Sure) -> Advice {
        Advice { name, value, because, sure, over: None }
    }

    /// Returns it with what the value was compared with.
    pub fn over(self, over: Option<Over>) -> Advice {
        Advice { over, ..self }
    }
}

/// A key of the library's configuration file, in the order in which the file has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Setting {
    /// O_DIRECT or the page cache.
    Direct,
    /// The route of operations.
    Route,
    /// Whether memory is registered.
    Buffers,
    /// Operations in flight.
    Depth,
    /// Bytes of an operation, for large sequential reads.
    BlockSize,
    /// Bytes of the pool.
    Capacity,
    /// Huge pages for the pool.
    HugePages,
    /// Threads that make plain calls.
    Workers,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&values::name(self))
    }
}

/// The value of a setting.
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

/// How certain a piece of advice is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sure {
    /// The deciding difference is outside the noise.
    OutsideNoise,
    /// No difference beyond the noise: the default is as good.
    InsideNoise,
    /// It follows from other advice, or there were too few rounds to judge.
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
