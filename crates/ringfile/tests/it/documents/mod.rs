//! The Markdown files of the repository: each passage of code is part of a program that runs, each command works, and
//! each link has a target.

mod commands;
mod dependencies;
mod faults;
mod figures;
mod picture;
mod shell;
mod type_names;
mod versions;

use std::path::{Path, PathBuf};

use crate::support::skip;

/// The files in which a passage must be found, word for word, by the passage's language.
const RUNS: [(&str, &[&str]); 3] = [
    (
        "rust",
        &[
            "crates/ringfile/tests/it/passages.rs",
            "crates/ringfile/examples",
            "crates/ringfile-cache/tests/it/passages.rs",
        ],
    ),
    ("c", &["crates/ringfile-capi/examples/c"]),
    ("cpp", &["crates/ringfile-capi/examples/cpp", "integrations/rocksdb/check"]),
];
/// Documents whose passages are doc tests of their crate.
const TESTED_ELSEWHERE: &str = "crates/ringfile-object-store/README.md";

/// Returns the root of the repository; `None` in a package, which has no documents.
pub fn root() -> Option<&'static Path> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let found = root.join("docs/guide").is_dir();
    if !found {
        skip("the tests of documents", "a package has no docs");
    }
    found.then_some(root)
}

/// Returns the files below `path` whose names end in `ending`, or the file itself, sorted. Skips build folders.
fn files(path: &Path, ending: &str) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            if !name.starts_with("target") && (!name.starts_with('.') || name == ".github") {
                found.extend(files(&path, ending));
            }
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Returns the documents and their texts, except those about the past.
fn documents(root: &Path) -> Vec<(PathBuf, String)> {
    let all = files(root, ".md").into_iter();
    let present = all
        .filter(|path| !path.starts_with(root.join("docs/measurements")) && !path.ends_with("CHANGELOG.md"));
    present.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// Returns the lines of a text without their indentation, and without the `pub` that only the test's file needs.
fn lines(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| line.strip_prefix("pub ").unwrap_or(line)).collect()
}

/// Returns a document without its passages of code, where `[a](b)` is not a link.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// Returns the anchor that most sites give a heading: lower case, hyphens for spaces, no punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_passage_runs_somewhere() {
    let Some(root) = root() else { return };
    for (language, places) in RUNS {
        let running: Vec<String> = places
            .iter()
            .flat_map(|place| files(&root.join(place), ""))
            .map(|path| std::fs::read_to_string(path).unwrap())
            .collect();
        let running: Vec<Vec<&str>> = running.iter().map(|text| lines(text)).collect();
        let begin = format!("```{language}\n");
        let mut seen = 0;
        for document in files(root, ".md") {
            if document.ends_with(TESTED_ELSEWHERE) || !is_for_users(root, &document) {
                continue;
            }
            let text = std::fs::read_to_string(&document).unwrap();
            for passage in text.split(&begin).skip(1).filter_map(|rest| rest.split("```").next()) {
                let wanted = lines(passage);
                let found = running.iter().any(|text| text.windows(wanted.len()).any(|part| part == wanted));
                assert!(found, "{}: this passage is in none of {places:?}:\n{passage}", document.display());
                seen += 1;
            }
        }
        assert!(seen > 2, "only {seen} passages in {language}");
    }
}

#[test]
fn the_gallery_lists_every_example() {
    let Some(root) = root() else { return };
    let gallery = std::fs::read_to_string(root.join("docs/gallery.md")).unwrap();
    let is_source = |path: &PathBuf| {
        path.extension()
            .is_some_and(|ending| ["rs", "c", "cpp", "go", "hs"].iter().any(|known| ending == *known))
    };
    // In a folder of examples, or with a name that says so, as in Go and Haskell.
    let is_example = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().to_lowercase();
        path.parent().unwrap().components().any(|part| part.as_os_str() == "examples")
            || name.contains("example")
    };
    let folders =
        ["ringfile", "ringfile-cache", "ringfile-capi"].map(|name| format!("crates/{name}/examples"));
    let folders = folders.into_iter().chain(["integrations".to_owned()]);
    let all = folders.flat_map(|folder| files(&root.join(folder), ""));
    let examples: Vec<String> = all
        .filter(|path| is_source(path) && is_example(path))
        .map(|path| format!("](../{})", path.strip_prefix(root).unwrap().display()))
        .collect();
    assert!(examples.len() > 20, "only {} examples", examples.len());
    let missing: Vec<&String> = examples.iter().filter(|link| !gallery.contains(*link)).collect();
    assert!(missing.is_empty(), "docs/gallery.md has no links to {missing:?}");
}

/// Returns whether a document is for users: the README, the packages' READMEs, or the guide.
fn is_for_users(root: &Path, document: &Path) -> bool {
    let path = document.strip_prefix(root).unwrap();
    path.starts_with("docs/guide") || path.starts_with("crates") || path == Path::new("README.md")
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let Some(root) = root() else { return };
    let mut broken = Vec::new();
    let documents = files(root, ".md");
    assert!(documents.len() > 20, "only {} documents", documents.len());
    for document in documents {
        let text = prose(&std::fs::read_to_string(&document).unwrap());
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            // If a README is a link to that of another folder, its links are relative to that folder.
            let here = std::fs::canonicalize(&document).unwrap();
            let target = if file.is_empty() { here } else { here.parent().unwrap().join(file) };
            let is_there = match target.extension() {
                Some(extension) if extension == "md" && !fragment.is_empty() => {
                    let text = std::fs::read_to_string(&target).map(|text| prose(&text)).unwrap_or_default();
                    text.lines().filter(|line| line.starts_with('#')).any(|line| {
                        let heading = line.trim_start_matches('#');
                        anchor(heading) == fragment
                    })
                }
                _ => target.exists(),
            };
            if !is_there {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links without a target:\n{}", broken.join("\n"));
}
