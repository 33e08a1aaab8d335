//! What names the version besides `Cargo.toml` names the present one.

use super::{files, root};

/// Files, and what stands before the version in each. The headers and the binary interface have tests of their own.
const NAMES: [(&str, &str); 5] = [
    ("crates/ringfile/README.md", "ringfile = \""),
    ("crates/ringfile-capi/src/info.rs", "version, such as \""),
    ("crates/ringfile-capi/include/ringfile.hpp", "version, such as \""),
    ("integrations/haskell/ringfile.cabal", "\nversion:         "),
    ("CHANGELOG.md", "\n## "),
];

#[test]
fn every_file_names_the_present_version() {
    let Some(root) = root() else { return };
    let (whole, minor) = (env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0);
    for (file, before) in NAMES {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{file} has no {before:?}"));
        let named = rest.split(['"', '\n']).next().unwrap();
        let unreleased = file == "CHANGELOG.md" && named == "[Unreleased]";
        assert!(
            named == whole || named == minor || unreleased,
            "{file} names version {named}, but Cargo.toml {whole}"
        );
    }
}

#[test]
fn every_lock_file_has_the_present_version() {
    let Some(root) = root() else { return };
    let mut found = 0;
    for path in files(root, "Cargo.lock") {
        let text = std::fs::read_to_string(&path).unwrap();
        for package in text.split("[[package]]\n") {
            let Some((name, rest)) = package.split_once('\n') else { continue };
            // The crates of this workspace come from no registry. The programs beside it have versions of their own.
            let published = [
                "ringfile",
                "ringfile-buffer",
                "ringfile-cache",
                "ringfile-capi",
                "ringfile-cli",
                "ringfile-object-store",
            ];
            if !published.iter().any(|crate_name| name == format!("name = \"{crate_name}\"")) {
                continue;
            }
            let version = concat!("version = \"", env!("CARGO_PKG_VERSION"), "\"");
            assert_eq!(
                rest.lines().next(),
                Some(version),
                "{}: {name}; run cargo metadata there",
                path.display()
            );
            found += 1;
        }
    }
    assert!(found > 5, "the lock files name ringfile's crates {found} times only");
}
