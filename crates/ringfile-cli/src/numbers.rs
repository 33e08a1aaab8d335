//! Short numbers for tables and sentences.

/// Formats a rate per second in at most six characters: `830`, `12.3k`, `1,204k`.
pub fn rate(value: f64) -> String {
    if value < 1000.0 {
        format!("{value:.0}")
    } else if value < 99_950.0 {
        format!("{:.1}k", value / 1000.0)
    } else {
        format!("{}k", count(value / 1000.0))
    }
}

/// Formats a figure with about three digits: `0.72`, `12.3`, `1,204`.
pub fn figure(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        count(value)
    }
}

/// Formats a change in per cent, with its sign: `+3.2`, `-41`, `+4.5k`.
pub fn change(value: f64) -> String {
    match value.abs() {
        size if size < 9.95 => format!("{value:+.1}"),
        size if size < 999.5 => format!("{value:+.0}"),
        size if size < 9_950.0 => format!("{:+.1}k", value / 1000.0),
        _ => format!("{:+.0}k", value / 1000.0),
    }
}

/// Formats a whole number with separated thousands: `12`, `1,204`.
pub fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with its noun: `1 round`, `3 rounds`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Formats a fraction in per cent: `4.2 %`, `13 %`.
pub fn per_cent(fraction: f64) -> String {
    let value = fraction * 100.0;
    if value.abs() < 9.95 { format!("{value:.1} %") } else { format!("{value:.0} %") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (830.2, "830"), (12_345.0, "12.3k"), (99_960.0, "100k"), (1.2e6, "1,200k")]
        {
            assert_eq!(rate(value), text);
        }
        for (value, text) in
            [(0.724, "0.72"), (9.999, "10.0"), (12.34, "12.3"), (99.96, "100"), (1234567.0, "1,234,567")]
        {
            assert_eq!(figure(value), text);
        }
        for (value, text) in [
            (3.21, "+3.2"),
            (-41.4, "-41"),
            (0.0, "+0.0"),
            (250.0, "+250"),
            (4470.0, "+4.5k"),
            (53_443.0, "+53k"),
        ] {
            assert_eq!(change(value), text);
        }
    }
}
