//! Parses and formats the values of options: sizes, durations, lists of words.
//!
//! k, m and g are powers of 1024 in both directions; the library parses sizes, as in its settings. A list is separated by
//! commas, never empty, and contains nothing twice.

use std::ffi::OsStr;
use std::fmt;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;

/// Values from one option, separated by commas: at least one, none twice, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(Vec<T>);

impl<T> List<T> {
    /// Returns the values, in the order given.
    pub fn values(&self) -> &[T] {
        &self.0
    }
}

impl<T: PartialEq> List<T> {
    fn parse(text: &str, parse_one: impl Fn(&str) -> Result<T, String>) -> Result<List<T>, String> {
        if text.trim().is_empty() {
            return Err("the list is empty; name at least one, separated by commas".into());
        }
        let mut values = Vec::new();
        for part in text.split(',') {
            if part.trim().is_empty() {
                return Err("a value is missing between the commas".into());
            }
            let value = parse_one(part.trim())?;
            if !values.contains(&value) {
                values.push(value);
            }
        }
        Ok(List(values))
    }
}

/// Parses a list of sizes in bytes.
pub fn sizes(text: &str) -> Result<List<u64>, String> {
    List::parse(text, size)
}

/// Parses a list of words from a fixed set.
pub fn words<T: ValueEnum + PartialEq>(text: &str) -> Result<List<T>, String> {
    words_of(T::value_variants(), text)
}

/// Parses a list of some of these words.
pub fn words_of<T: ValueEnum + PartialEq>(known: &[T], text: &str) -> Result<List<T>, String> {
    List::parse(text, |word| {
        known.iter().find(|value| name(*value) == word).cloned().ok_or_else(|| {
            let known: Vec<_> = known.iter().map(name).collect();
            format!("'{word}' is not known; choose from {}", known.join(", "))
        })
    })
}

/// Parses a list of counts from 1 to `MAX`.
pub fn counts<const MAX: usize>(text: &str) -> Result<List<usize>, String> {
    List::parse(text, |number| whole(number, 1..=MAX))
}

/// Parses a count from 1 to `MAX`.
pub fn count<const MAX: u32>(text: &str) -> Result<u32, String> {
    whole(text, 1..=MAX)
}

/// Parses a count from 0 to `MAX`.
pub fn count_or_none<const MAX: u32>(text: &str) -> Result<u32, String> {
    whole(text, 0..=MAX)
}

fn whole<T: FromStr + PartialOrd + fmt::Display>(text: &str, range: RangeInclusive<T>) -> Result<T, String> {
    let number = text.trim().parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("'{text}' is not a whole number from {} to {}", range.start(), range.end()))
}

/// Returns the values of an option, or the default if it was not given.
pub fn listed<T: Clone>(asked: &Option<List<T>>, default: &[T]) -> Vec<T> {
    asked.as_ref().map_or(default, List::values).to_vec()
}

/// Returns the word for a value of a fixed set, as the command line and the JSON spell it.
pub fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map(|word| word.get_name().to_string()).unwrap_or_default()
}

/// Parses a size in bytes, more than 0, in the units of [`ringfile::Config::parse_size`].
pub fn size(text: &str) -> Result<u64, String> {
    match ringfile::Config::parse_size(text) {
        Ok(0) => Err("a size of 0 measures nothing; give at least 1".into()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

/// The highest accepted rate: a higher one, faster than memory, is a typing error. Times computed at this rate still
/// fit 128 bits.
const FASTEST: u64 = 1 << 40;

/// Parses a rate in bytes per second, more than 0: `500MB`, `500m`, `500MiB/s`.
pub fn rate(text: &str) -> Result<u64, String> {
    match size(text.strip_suffix("/s").unwrap_or(text)) {
        Ok(fast) if fast > FASTEST => Err("more than any disk does; give at most 1t".into()),
        Ok(rate) => Ok(rate),
        Err(_) => {
            Err("not a rate above 0; write bytes a second, as in 500MB or 100m, or leave it out".into())
        }
    }
}

/// The longest accepted time of one run, so that sums over all runs and times in the future cannot overflow.
pub const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Parses a duration of at most a day, which may be 0: `2s`, `500ms`, `1m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(long) if long > LONGEST => Err("too long; give at most 24h".into()),
        Ok(time) => Ok(time),
        Err(_) => Err("not a duration; write a unit, as in 2s, 500ms or 1m".into()),
    }
}

/// Parses a duration of at least a millisecond.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < Duration::from_millis(1) => Err("too short to measure; give at least 1ms".into()),
        long => Ok(long),
    }
}

/// Quotes a word for a shell: as `$'…'` if it has bytes that can't be printed.
pub fn shell_word(word: &OsStr) -> String {
    let Some(text) = word.to_str().filter(|text| !text.chars().any(char::is_control)) else {
        return format!("$'{}'", word.as_bytes().escape_ascii());
    };
    let plain = |c: char| c.is_alphanumeric() || "-_./,=:+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Formats a size as the command line accepts it, in few characters: `4k`, `1m`.
pub fn short_size(bytes: u64) -> String {
    match [(30, "g"), (20, "m"), (10, "k")].iter().find(|(shift, _)| bytes.is_multiple_of(1 << shift)) {
        Some((shift, unit)) if bytes > 0 => format!("{}{unit}", bytes >> shift),
        _ => bytes.to_string(),
    }
}

/// Formats a size in bytes for people.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        // Small sizes matter exactly, for instance as alignments: 4097 bytes must not become 4.0 KiB.
        if self.0 < 1 << 20 && !self.0.is_multiple_of(512) {
            return write!(f, "{} byte{}", self.0, if self.0 == 1 { "" } else { "s" });
        }
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if value.fract() == 0.0 {
            write!(f, "{value} {}", UNITS[unit])
        } else {
            write!(f, "{value:.1} {}", UNITS[unit])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_every_word() {
        for word in [&b"/plain/\xc3\xa4.bin"[..], b"", b"a b", b"it's", b"a\xffb'c\"\\", b"two\nlines\x01a"] {
            let quoted = shell_word(OsStr::from_bytes(word));
            assert!(!quoted.chars().any(char::is_control), "{quoted}");
            let printed =
                std::process::Command::new("bash").arg("-c").arg(format!("printf %s {quoted}")).output();
            assert_eq!(printed.expect("bash").stdout, word, "{quoted}");
        }
    }

    #[test]
    fn letters_are_powers_of_1024_and_units_in_bytes_powers_of_1000() {
        for (text, bytes) in [("4096", 4096), ("4k", 4096), ("4K", 4096), ("4KiB", 4096), ("1g", 1 << 30)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for (text, bytes) in
            [("4096B", 4096), ("4kB", 4000), ("4KB", 4000), ("4 kb", 4000), ("2MB", 2_000_000)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        assert_eq!((size("1GB"), size("1GiB"), size("1gib")), (Ok(1_000_000_000), Ok(1 << 30), Ok(1 << 30)));
        for text in ["", "0", "0k", "k", "-1", "4x", "four"] {
            assert!(size(text).is_err(), "{text:?}");
        }
        assert!(size("99999999999G").is_err_and(|error| error.contains("too large")));
    }

    #[test]
    fn rates_are_sizes_with_or_without_the_second() {
        for text in ["500m", "500MiB", "500MiB/s"] {
            assert_eq!(rate(text), Ok(500 << 20), "{text}");
        }
        assert_eq!((rate("500MB"), rate("500MB/s")), (Ok(500_000_000), Ok(500_000_000)));
        for text in ["", "0", "0MB", "/s", "-1", "fast"] {
            assert!(rate(text).is_err_and(|error| error.contains("500MB")), "{text:?}");
        }
        assert!(rate("2t").is_err_and(|error| error.contains("1t")) && rate("1t").is_ok());
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for text in ["", "2", "s", "-1s"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
        assert!(positive_duration("0s").is_err());
        assert_eq!(duration("24h"), Ok(LONGEST));
        for text in ["25h", "500y", "99999999999y"] {
            assert!(duration(text).is_err_and(|error| error.contains("24h")), "{text:?}");
        }
        assert!(positive_duration("1us").is_err());
    }

    #[test]
    fn a_list_keeps_its_order_and_drops_repeats() {
        assert_eq!(counts::<64>("16,1,16").map(|list| list.0), Ok(vec![16, 1]));
        for text in ["", " ", "1,,2", "1,", "0", "65", "one", "-1"] {
            assert!(counts::<64>(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_count_is_whole_and_in_its_range() {
        assert_eq!(count::<1000>("1000"), Ok(1000));
        for text in ["", "0", "1001", "-1", "1,2", "1.5"] {
            assert!(count::<1000>(text).is_err_and(|error| error.contains("1 to 1000")), "{text:?}");
        }
    }

    #[test]
    fn bytes_are_short() {
        for (bytes, text) in [
            (1, "1 byte"),
            (0, "0 bytes"),
            (4096, "4 KiB"),
            (4097, "4097 bytes"),
            (1 << 30, "1 GiB"),
            (1536 << 10, "1.5 MiB"),
            (15 << 60, "15 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
