//! A name has one meaning: no two modules of a crate define a type of the same name, and the glossary is short.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, root};

const CRATES: [&str; 6] = [
    "ringfile",
    "ringfile-buffer",
    "ringfile-cache",
    "ringfile-capi",
    "ringfile-cli",
    "ringfile-object-store",
];

#[test]
fn no_two_modules_of_a_crate_define_one_type_name() {
    let Some(root) = root() else { return };
    let mut twice = Vec::new();
    for crate_name in CRATES {
        let mut modules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let source = root.join("crates").join(crate_name).join("src");
        for path in files(&source, ".rs") {
            let module = path.strip_prefix(&source).unwrap().display().to_string();
            if module.ends_with("tests.rs") || module.contains("tests/") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod ").next().unwrap();
            for name in text.lines().filter_map(type_name) {
                modules.entry(name.to_owned()).or_default().insert(module.clone());
            }
        }
        assert!(modules.len() > 10, "{crate_name}: {modules:?}");
        twice.extend(modules.into_iter().filter(|(_, modules)| modules.len() > 1));
    }
    assert!(twice.is_empty(), "give one of these types another name: {twice:#?}");
}

/// Returns the name of the type that a line defines.
fn type_name(line: &str) -> Option<&str> {
    let bare = line.trim_start();
    let rest = match bare.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => bare,
    };
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (kind, rest) = rest.split_once(' ')?;
    // An indented alias is an associated type.
    let defines = matches!(kind, "struct" | "enum" | "union" | "trait") || (kind == "type" && bare == line);
    defines.then(|| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap())
}

#[test]
fn the_glossary_has_30_words_at_most_with_one_meaning_each() {
    let Some(root) = root() else { return };
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let (_, glossary) = text.split_once("## Glossary").unwrap();
    let rows: Vec<_> =
        glossary.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")).collect();
    let [("word", _), rows @ ..] = &rows[..] else { panic!("{rows:?}") };
    assert!((10..=30).contains(&rows.len()), "{} words", rows.len());
    let words: BTreeSet<_> = rows.iter().map(|(word, _)| word).collect();
    assert_eq!(words.len(), rows.len(), "a word has two rows");
    for (word, meaning) in rows {
        assert!(!word.contains(','), "{word}: give each word a row of its own");
        assert!(!meaning.contains(';'), "{word}: two meanings? {meaning}");
    }
}
