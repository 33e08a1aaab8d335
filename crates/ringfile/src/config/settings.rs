//! The settings: their names, allowed values, and spelling.
//!
//! Pure functions of values. Invariant: `set` accepts what `get` writes, and restores the same value.

use std::ops::RangeInclusive;

use super::values::{BufferMode, Config};
use crate::buf::HugePages;
use crate::many::MAX_DEPTH;
use crate::memory::LARGEST;
use crate::{Route, WhenFull};

/// A pool needs at least the smallest page, and more than half the address space cannot be mapped.
pub(super) const CAPACITIES: RangeInclusive<usize> = 4096..=isize::MAX as usize / 2;
pub(super) const BLOCK_SIZES: RangeInclusive<usize> = 1..=LARGEST;
pub(super) const ALIGNMENTS: RangeInclusive<usize> = 512..=LARGEST;
pub(super) const DEPTHS: RangeInclusive<usize> = 1..=MAX_DEPTH;
/// More threads would have nothing to do.
pub(super) const WORKERS: RangeInclusive<usize> = 0..=MAX_DEPTH;
/// Microseconds; the longest is more than an hour.
pub(super) const SLOW_AFTER: RangeInclusive<usize> = 1..=u32::MAX as usize;

const HUGE_PAGES: [(&str, HugePages); 3] =
    [("auto", HugePages::Auto), ("never", HugePages::Never), ("require", HugePages::Require)];
/// The setting for memory outside the pool if no limit is set.
pub(super) const NO_LIMIT: WhenFull = WhenFull::Outside { limit: usize::MAX };
const WHEN_FULL: [(&str, WhenFull); 3] =
    [("error", WhenFull::Error), ("wait", WhenFull::Wait), ("outside", NO_LIMIT)];
const BUFFERS: [(&str, BufferMode); 4] = [
    ("normal", BufferMode::Normal),
    ("fixed", BufferMode::Fixed),
    ("vectored", BufferMode::Vectored),
    ("vectored-fixed", BufferMode::VectoredFixed),
];
const ROUTES: [(&str, Route); 5] = [
    ("auto", Route::Auto),
    ("ring", Route::Ring),
    ("inline", Route::Inline),
    ("workers", Route::Workers),
    ("aio", Route::Aio),
];

/// A value as it was written, before it is checked.
#[derive(Clone, Copy)]
pub(super) enum Written<'a> {
    Number(u64),
    Switch(bool),
    Text(&'a str),
    /// A value that no setting accepts: a date, a list, a negative number.
    Other,
}

pub(super) struct Setting {
    pub(super) name: &'static str,
    /// What the setting means, for readers of the file.
    pub(super) about: &'static str,
    /// The allowed values in TOML, for error messages.
    pub(super) allowed: &'static str,
    /// Sets the value. Returns false if it is not allowed.
    pub(super) set: fn(&mut Config, Written<'_>) -> bool,
    /// Returns the value as TOML, if there is one.
    pub(super) get: fn(&Config) -> Option<String>,
}

pub(super) static SETTINGS: [Setting; 14] = [
    Setting {
        name: "capacity",
        about: "The most memory that a pool may have.",
        allowed: r#"4096 bytes or more, such as 67108864 or "64MiB""#,
        set: |config, value| put(&mut config.capacity, size(value, &CAPACITIES)),
        get: |config| config.capacity.map(written_size),
    },
    Setting {
        name: "huge_pages",
        about: "Huge pages for a pool's memory: auto, never or require.",
        allowed: r#""auto", "never" or "require""#,
        set: |config, value| put(&mut config.huge_pages, word(value, &HUGE_PAGES)),
        get: |config| written_word(config.huge_pages, &HUGE_PAGES),
    },
    Setting {
        name: "alignment",
        about: "Alignment of each buffer of a pool.",
        allowed: r#"a power of two from 512 bytes to 1 GiB, such as 4096 or "4KiB""#,
        set: |config, value| {
            let bytes = size(value, &ALIGNMENTS).filter(|bytes| bytes.is_power_of_two());
            put(&mut config.alignment, bytes)
        },
        get: |config| config.alignment.map(written_size),
    },
    Setting {
        name: "when_full",
        about: "What a full pool does: error, wait, or outside (allocate outside the pool).",
        allowed: r#""error", "wait" or "outside""#,
        set: |config, value| put(&mut config.when_full, word(value, &WHEN_FULL)),
        get: |config| written_word(config.when_full, &WHEN_FULL),
    },
    Setting {
        name: "outside_limit",
        about: "The most memory outside the pool, if when_full is outside.",
        allowed: r#"4096 bytes or more, such as 16777216 or "16MiB""#,
        set: |config, value| put(&mut config.outside_limit, size(value, &CAPACITIES)),
        get: |config| config.outside_limit.map(written_size),
    },
    Setting {
        name: "pooling",
        about: "Whether memory comes from a pool, or is mapped for each buffer.",
        allowed: "true or false",
        set: |config, value| put(&mut config.pooling, switch(value)),
        get: |config| config.pooling.map(|pooling| pooling.to_string()),
    },
    Setting {
        name: "depth",
        about: "The most operations in flight.",
        allowed: "a whole number from 1 to 4096",
        set: |config, value| put(&mut config.depth, count(value, &DEPTHS)),
        get: |config| config.depth.map(|depth| depth.to_string()),
    },
    Setting {
        name: "block_size",
        about: "The size of one read or write in bytes.",
        allowed: r#"1 byte to 1 GiB, such as 16384 or "16KiB""#,
        set: |config, value| put(&mut config.block_size, size(value, &BLOCK_SIZES)),
        get: |config| config.block_size.map(written_size),
    },
    Setting {
        name: "buffers",
        about: "The kind of buffers: normal, fixed (registered with the kernel), vectored or vectored-fixed.",
        allowed: r#""normal", "fixed", "vectored" or "vectored-fixed""#,
        set: |config, value| put(&mut config.buffers, word(value, &BUFFERS)),
        get: |config| written_word(config.buffers, &BUFFERS),
    },
    Setting {
        name: "direct",
        about: "Whether I/O bypasses the page cache (O_DIRECT).",
        allowed: "true or false",
        set: |config, value| put(&mut config.direct, switch(value)),
        get: |config| config.direct.map(|direct| direct.to_string()),
    },
    Setting {
        name: "route",
        about: "The route of operations: auto, ring, inline, workers or aio.",
        allowed: r#""auto", "ring", "inline", "workers" or "aio""#,
        set: |config, value| put(&mut config.route, word(value, &ROUTES)),
        get: |config| written_word(config.route, &ROUTES),
    },
    Setting {
        name: "workers",
        about: "The most worker threads; 0 for the default.",
        allowed: "a whole number from 0 to 4096",
        set: |config, value| put(&mut config.workers, count(value, &WORKERS)),
        get: |config| config.workers.map(|threads| threads.to_string()),
    },
    Setting {
        name: "latencies",
        about: "Whether histograms count how long operations take.",
        allowed: "true or false",
        set: |config, value| put(&mut config.latencies, switch(value)),
        get: |config| config.latencies.map(|latencies| latencies.to_string()),
    },
    Setting {
        name: "slow_after_us",
        about: "Operations that take longer, in microseconds, are reported through tracing.",
        allowed: "a whole number from 1 to 4294967295",
        set: |config, value| put(&mut config.slow_after_us, count(value, &SLOW_AFTER)),
        get: |config| config.slow_after_us.map(|micros| micros.to_string()),
    },
];

/// What the names of all variables of the environment begin with.
pub(super) const PREFIX: &str = "RINGFILE_";

/// Returns the variable of the environment for the setting with this name.
pub(super) fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.to_uppercase())
}

impl Setting {
    pub(super) fn variable(&self) -> String {
        variable(self.name)
    }
}

fn put<T>(place: &mut Option<T>, value: Option<T>) -> bool {
    let is_allowed = value.is_some();
    *place = value.or(place.take());
    is_allowed
}

fn count(value: Written<'_>, allowed: &RangeInclusive<usize>) -> Option<usize> {
    let Written::Number(number) = value else { return None };
    usize::try_from(number).ok().filter(|number| allowed.contains(number))
}

fn size(value: Written<'_>, allowed: &RangeInclusive<usize>) -> Option<usize> {
    match value {
        Written::Text(text) => count(Written::Number(Config::parse_size(text).ok()?), allowed),
        _ => count(value, allowed),
    }
}

fn switch(value: Written<'_>) -> Option<bool> {
    if let Written::Switch(on) = value { Some(on) } else { None }
}

fn word<T: Copy>(value: Written<'_>, words: &[(&str, T)]) -> Option<T> {
    let Written::Text(text) = value else { return None };
    words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning)
}

fn written_word<T: Copy + PartialEq>(value: Option<T>, words: &[(&str, T)]) -> Option<String> {
    let (word, _) = words.iter().find(|(_, meaning)| Some(*meaning) == value)?;
    Some(format!("\"{word}\""))
}

/// Formats a size in the largest unit that leaves no remainder.
fn written_size(bytes: usize) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes.trailing_zeros() >= shift {
            return format!("\"{}{unit}\"", bytes >> shift);
        }
    }
    bytes.to_string()
}
