//! Reads sizes and durations from the command line.

use std::time::Duration;

/// Reads `4k`, `1g`, `512`: k, m and g are powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, shift) = match lower.strip_suffix(['k', 'm', 'g']) {
        Some(digits) => (digits, [('k', 10), ('m', 20), ('g', 30)]),
        None => (lower.as_str(), [('k', 0), ('m', 0), ('g', 0)]),
    };
    let shift = shift.iter().find(|(unit, _)| lower.ends_with(*unit)).map_or(0, |(_, shift)| *shift);
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a size such as 4k or 1g"))?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(format!("{text:?} is not a usable size")),
    }
}

/// Reads `1s`, `500ms`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a duration such as 500ms or 1s");
    let (digits, millis) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1),
        None => (text.strip_suffix('s').ok_or_else(bad)?, 1000),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    Ok(Duration::from_millis(number.saturating_mul(millis)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("1G"), Ok(1 << 30));
        assert_eq!(size("512"), Ok(512));
        for bad in ["", "k", "0", "4kb", "-1", "99999999999g"] {
            assert!(size(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        for bad in ["", "2", "s", "1m", "-1s"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
