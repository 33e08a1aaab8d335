//! The tool's JSON: what is accepted becomes a page, tables and a comparison with itself; the rest is refused in words.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|json: &[u8]| match ringfile_cli::shared::shown(json) {
    Ok(shown) => assert!(shown.contains("<html")),
    Err(why) => assert!(!why.is_empty() && !why.contains('\n'), "{why}"),
});
