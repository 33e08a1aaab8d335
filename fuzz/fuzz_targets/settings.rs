//! Settings in TOML: whatever is accepted is written and read back equal, and an error has words.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ringfile::Config;

fuzz_target!(|text: &str| match Config::parse(text) {
    Ok(config) => {
        assert_eq!(Config::parse(&config.to_string()).expect("what it wrote"), config);
        // Builders check what they are given; they must not panic.
        drop((config.pool(), config.open_options(), config.batch()));
    }
    Err(error) => assert!(!error.to_string().is_empty()),
});
