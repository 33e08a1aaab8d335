//! Each dependency of a published crate is in docs/dependencies.md: in the crate's own table, or for those of tests
//! anywhere.

use super::root;

#[test]
fn every_dependency_has_a_reason() {
    let Some(root) = root() else { return };
    let document = std::fs::read_to_string(root.join("docs/dependencies.md")).unwrap();
    let crates = [
        "ringfile",
        "ringfile-buffer",
        "ringfile-cache",
        "ringfile-capi",
        "ringfile-object-store",
        "ringfile-cli",
    ];
    let mut missing = Vec::new();
    for crate_name in crates {
        let (_, section) = document.split_once(&format!("\n**{crate_name}**\n")).unwrap();
        let own = section.split("\n**").next().unwrap();
        let manifest = root.join("crates").join(crate_name).join("Cargo.toml");
        for (name, only_tests) in dependencies(&std::fs::read_to_string(manifest).unwrap()) {
            let place = if only_tests { document.as_str() } else { own };
            let mut words = place.split(|c: char| !c.is_alphanumeric() && !matches!(c, '-' | '_'));
            if !crates.contains(&name.as_str()) && !words.any(|word| word == name) {
                missing.push(format!("{crate_name}: {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "docs/dependencies.md says nothing about {missing:?}");
}

/// Returns the name of each crate in a manifest's tables of dependencies, and whether it is for tests only.
fn dependencies(manifest: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let mut table = "";
    for line in manifest.lines() {
        if line.starts_with('[') {
            table = line;
        } else if table.ends_with("dependencies]") && line.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let name = match line.split_once("package = \"") {
                Some((_, renamed)) => renamed.split('"').next(),
                None => line.split([' ', '.']).next(),
            };
            found.push((name.unwrap().to_owned(), table.ends_with("dev-dependencies]")));
        }
    }
    assert!(found.len() > 3, "{found:?}");
    found
}
