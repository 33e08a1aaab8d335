//! Checks that the header in the repository is the one that cbindgen generates from the sources.

use std::path::Path;

#[test]
fn the_header_is_that_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    cbindgen::generate_with_config(folder, config).unwrap().write(&mut made);
    let path = folder.join("include/ringfile.h");
    if std::env::var_os("RINGFILE_TEST_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let there = std::fs::read(&path).unwrap();
    assert!(
        there == made,
        "include/ringfile.h is stale: RINGFILE_TEST_WRITE_HEADER=1 cargo test -p ringfile-capi the_header, and commit it"
    );
}
