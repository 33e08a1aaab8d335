//! The table of settings against itself; what a user sees is in `tests/config.rs`.

use std::ffi::OsString;

use super::settings::SETTINGS;
use super::{Buffers, Config, reading};
use crate::{HugePages, Route, WhenFull};

fn full() -> Config {
    Config::new()
        .with_capacity(1 << 30)
        .with_huge_pages(HugePages::Never)
        .with_alignment(8192)
        .with_when_full(WhenFull::Outside { limit: 16 << 20 })
        .with_pooling(false)
        .with_depth(64)
        .with_block_size(12345)
        .with_buffers(Buffers::VectoredFixed)
        .with_direct(true)
        .with_route(Route::Inline)
        .with_workers(0)
}

#[test]
fn every_setting_is_in_the_table_the_docs_and_the_environment() {
    let docs = include_str!("mod.rs");
    for setting in &SETTINGS {
        let written = (setting.get)(&full()).unwrap();
        assert!(docs.contains(&format!("/// {} = ", setting.name)), "{}", setting.name);
        assert!(docs.contains(&format!("`{}`", setting.variable())), "{}", setting.variable());
        let mut config = Config::new();
        let value = OsString::from(written.trim_matches('"'));
        reading::environment(&mut config, |name| (name == setting.variable()).then(|| value.clone()))
            .unwrap();
        assert_eq!((setting.get)(&config), Some(written), "{}", setting.name);
        let others = SETTINGS.iter().filter(|other| other.name != setting.name);
        assert!(others.map(|other| (other.get)(&config)).all(|value| value.is_none()), "{}", setting.name);
    }
}

#[test]
fn every_word_of_a_setting_is_taken_and_written_again() {
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
    let taken = ["capacity = 4096", "capacity = 4611686018427387903", "depth = 1", "depth = 4096"];
    let more = [
        "block_size = 1",
        "block_size = \"1g\"",
        "alignment = 512",
        "alignment = \"1g\"",
        "workers = 0",
        "workers = 4096",
        "depth = 0x10",
    ];
    for line in taken.iter().chain(&more) {
        let config = Config::parse(line).unwrap();
        assert_eq!(Config::parse(&config.to_string()).unwrap(), config, "{line}");
    }
    let refused = ["capacity = 4095", "capacity = 4611686018427387904", "depth = 0", "depth = 4097"];
    let more = [
        "block_size = 0",
        "block_size = 1073741825",
        "alignment = 1024.5",
        "alignment = 4097",
        "alignment = 256",
        "workers = 4097",
        "workers = -1",
    ];
    let other =
        ["depth = 99999999999999999999999", "capacity = \"64 parsecs\"", "capacity = \"1e999999999\""];
    for line in refused.iter().chain(&more).chain(&other) {
        let text = Config::parse(line).unwrap_err().to_string();
        assert!(text.contains("can't be") && text.contains(": give "), "{text}");
    }
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
    let environment = |value: &str| {
        let mut config = Config::new();
        let value = OsString::from(value);
        reading::environment(&mut config, |name| (name == "RINGFILE_ROUTE").then(|| value.clone()))
            .map(|()| config)
    };
    assert_eq!(environment("").unwrap(), Config::new());
    assert_eq!(environment("inline").unwrap().route(), Some(Route::Inline));
    assert_eq!(
        environment("rong").unwrap_err().to_string(),
        "reading the environment: `RINGFILE_ROUTE` can't be rong: give auto, ring, inline, workers or aio"
    );
}
