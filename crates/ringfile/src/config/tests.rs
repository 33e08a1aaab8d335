//! The table of settings against itself; what a user sees is in `tests/it/config.rs`.

use super::settings::SETTINGS;
use super::{BufferMode, Config, reading};
use crate::buf::HugePages;
use crate::{Route, WhenFull};

fn full() -> Config {
    Config::new()
        .with_capacity(1 << 30)
        .with_huge_pages(HugePages::Never)
        .with_alignment(8192)
        .with_when_full(WhenFull::Outside { limit: 16 << 20 })
        .with_pooling(false)
        .with_depth(64)
        .with_block_size(12345)
        .with_buffers(BufferMode::VectoredFixed)
        .with_direct(true)
        .with_route(Route::Inline)
        .with_workers(0)
        .with_latencies(true)
        .with_slow_after(std::time::Duration::from_millis(50))
}

/// Reads an environment that has one variable.
fn with_variable(only: &str, value: &str) -> crate::Result<Config> {
    let mut config = Config::new();
    reading::environment(&mut config, |name| (name == only).then(|| value.into())).map(|()| config)
}

#[test]
fn every_setting_is_in_the_table_the_docs_and_the_environment() {
    let docs = include_str!("values.rs");
    for setting in &SETTINGS {
        let written = (setting.get)(&full()).unwrap();
        assert!(docs.contains(&format!("/// {} = ", setting.name)), "{}", setting.name);
        assert!(docs.contains(&format!("`{}`", setting.variable())), "{}", setting.variable());
        let config = with_variable(&setting.variable(), written.trim_matches('"')).unwrap();
        assert_eq!((setting.get)(&config), Some(written), "{}", setting.name);
        let others = SETTINGS.iter().filter(|other| other.name != setting.name);
        assert!(others.map(|other| (other.get)(&config)).all(|value| value.is_none()), "{}", setting.name);
    }
}

#[test]
fn every_word_of_a_setting_is_accepted_and_written_back() {
    for setting in &SETTINGS {
        for word in setting.allowed.split('"').skip(1).step_by(2).filter(|word| !word.contains("iB")) {
            let line = format!("{} = \"{word}\"", setting.name);
            let config = Config::parse(&line).unwrap();
            assert!(config.to_string().contains(&line), "{line}");
        }
    }
}

#[test]
fn the_limits_of_ranges_are_accepted_and_values_beyond_are_not() {
    let settings: [(&str, &[&str], &[&str]); 6] = [
        ("alignment", &["512", "\"1g\""], &["1024.5", "4097", "256"]),
        ("block_size", &["1", "\"1g\""], &["0", "1073741825"]),
        (
            "capacity",
            &["4096", "4611686018427387903"],
            &["4095", "4611686018427387904", "\"64 parsecs\"", "\"1e999999999\""],
        ),
        ("depth", &["1", "4096", "0x10"], &["0", "4097", "99999999999999999999999"]),
        ("workers", &["0", "4096"], &["4097", "-1"]),
        ("slow_after_us", &["1", "4294967295"], &["0", "4294967296"]),
    ];
    for (name, allowed, refused) in settings {
        for value in allowed {
            let config = Config::parse(&format!("{name} = {value}")).unwrap();
            assert_eq!(Config::parse(&config.to_string()).unwrap(), config, "{name} = {value}");
        }
        for value in refused {
            let text = Config::parse(&format!("{name} = {value}")).unwrap_err().to_string();
            assert!(text.contains("can't be") && text.contains(": give "), "{text}");
        }
    }
}

#[test]
fn letters_are_powers_of_1024_and_units_in_bytes_powers_of_1000() {
    for (text, bytes) in [("64m", 64 << 20), ("64M", 64 << 20), ("64MiB", 64 << 20), ("64mib", 64 << 20)] {
        assert_eq!(Config::parse(&format!("capacity = '{text}'")).unwrap().capacity(), Some(bytes), "{text}");
    }
    for (text, bytes) in [("64MB", 64_000_000), ("64 mb", 64_000_000), ("8kB", 8000), ("8192B", 8192)] {
        assert_eq!(with_variable("RINGFILE_CAPACITY", text).unwrap().capacity(), Some(bytes), "{text}");
    }
    let kibibytes_only = Config::parse("alignment = '4KB'").unwrap_err().to_string();
    assert!(kibibytes_only.contains("a power of two"), "{kibibytes_only}");
}

#[test]
fn values_out_of_range_become_the_nearest_allowed_one() {
    let low = Config::new().with_capacity(0).with_depth(0).with_block_size(0);
    assert_eq!((low.capacity(), low.depth(), low.block_size()), (Some(4096), Some(1), Some(1)));
    let most = usize::MAX;
    let high = low.with_capacity(most).with_depth(most).with_block_size(most).with_workers(most);
    assert_eq!((high.depth(), high.block_size(), high.workers()), (Some(4096), Some(1 << 30), Some(4096)));
    assert_eq!(Config::parse(&high.to_string()).unwrap(), high);
}

#[test]
fn an_empty_variable_is_none_and_a_wrong_one_is_named() {
    let environment = |value| with_variable("RINGFILE_ROUTE", value);
    assert_eq!(environment("").unwrap(), Config::new());
    assert_eq!(environment("inline").unwrap().route(), Some(Route::Inline));
    assert_eq!(
        environment("rong").unwrap_err().to_string(),
        "reading the environment: `RINGFILE_ROUTE` can't be rong: give auto, ring, inline, workers or aio"
    );
}
