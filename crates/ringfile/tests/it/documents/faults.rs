//! docs/faults.md has a row for each fault that tests are named after, and each row leads to tests of that fault or to
//! a command that shows it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{files, root};

/// Endings of sources that may have tests. A script has none.
const SOURCES: [&str; 8] = ["rs", "go", "hs", "py", "c", "cc", "cpp", "sh"];
/// Commands that show a fault without a test of its name.
const COMMANDS: [&str; 2] = ["../kernels/matrix", "../kernels/power-cuts"];

/// A row of docs/faults.md: the fault's number, and the links of the last column.
struct Row {
    fault: u32,
    links: Vec<String>,
}

/// Returns the rows of docs/faults.md.
fn rows(root: &Path) -> Vec<Row> {
    let document = std::fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let lines = document.lines().filter(|line| line.starts_with("| F"));
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            assert_eq!(cells.len(), 6, "four columns: {line}");
            let links = cells[4].split("](").skip(1).filter_map(|rest| rest.split(')').next());
            Row { fault: cells[1][1..].parse().unwrap(), links: links.map(str::to_owned).collect() }
        })
        .collect()
}

/// Returns the sources and scripts of the repository.
fn sources(root: &Path) -> Vec<PathBuf> {
    let is_source = |path: &PathBuf| match path.extension() {
        Some(ending) => SOURCES.iter().any(|known| ending == *known),
        None => std::fs::read(path).unwrap().starts_with(b"#!"),
    };
    files(root, "").into_iter().filter(is_source).collect()
}

/// Returns the faults that tests in a file are named after.
fn faults_in(path: &Path) -> BTreeSet<u32> {
    faults_of_names(&String::from_utf8_lossy(&std::fs::read(path).unwrap()))
}

/// Returns the faults of all words that begin as a test's name: `fNN_…`, in Go `TestFNN_…`, in Python `test_fNN_…`.
/// A name may have several (`fNN_fNN_…`).
fn faults_of_names(text: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for word in text.split(|c: char| !c.is_alphanumeric() && c != '_') {
        let mut name = word.strip_prefix("Test").or(word.strip_prefix("test_")).unwrap_or(word);
        while let Some((fault, rest)) = first_fault(name) {
            found.insert(fault);
            name = rest;
        }
    }
    found
}

/// Returns the fault with which a name begins, and the rest of the name.
fn first_fault(name: &str) -> Option<(u32, &str)> {
    let (first, rest) = name.split_once('_')?;
    let digits = first.strip_prefix(['f', 'F']).filter(|digits| digits.len() == 2)?;
    Some((digits.parse().ok()?, rest))
}

#[test]
fn each_fault_that_a_test_is_named_after_is_explained() {
    let Some(root) = root() else { return };
    let explained: BTreeSet<u32> = rows(root).iter().map(|row| row.fault).collect();
    let (mut seen, mut missing) = (BTreeSet::new(), Vec::new());
    for path in sources(root) {
        let faults = faults_in(&path);
        for fault in faults.difference(&explained) {
            missing.push(format!("F{fault:02}, in {}", path.strip_prefix(root).unwrap().display()));
        }
        seen.extend(faults);
    }
    assert!(seen.len() > 50, "tests are named after {} faults only", seen.len());
    assert!(missing.is_empty(), "docs/faults.md has no row for\n{}", missing.join("\n"));
}

#[test]
fn each_fault_has_a_test_or_a_command_that_shows_it() {
    let Some(root) = root() else { return };
    let mut wrong = Vec::new();
    for Row { fault, links } in rows(root) {
        if links.is_empty() {
            wrong.push(format!("F{fault:02} has no test and no command"));
        }
        for link in links {
            let path = root.join("docs").join(&link);
            let is_command = COMMANDS.contains(&link.as_str());
            if !path.is_file() || !is_command && !faults_in(&path).contains(&fault) {
                wrong.push(format!("F{fault:02} has no test in {link}"));
            }
        }
    }
    assert!(wrong.is_empty(), "docs/faults.md:\n{}", wrong.join("\n"));
}

#[test]
fn faults_are_explained_in_order_and_once() {
    let Some(root) = root() else { return };
    let faults: Vec<u32> = rows(root).iter().map(|row| row.fault).collect();
    assert!(faults.len() >= 60, "docs/faults.md has {} faults only", faults.len());
    for pair in faults.windows(2) {
        assert!(pair[0] < pair[1], "docs/faults.md has F{:02} before F{:02}", pair[0], pair[1]);
    }
}

#[test]
fn names_of_tests_in_every_language_have_their_faults() {
    // Without the numbers, so that no test in this file is taken for one of them.
    let found = |text: &str| faults_of_names(&text.replace("AA", "71").replace("BB", "72"));
    for text in [
        "fn fAA_fBB_a_name() {",
        "func TestFAA_AName(t *testing.T) {}\nfunc TestFBB_Other(t *testing.T) {}",
        "test \"fAA_a_name\" $ do\ntest \"fBB_other\"",
        "def test_fAA_a_name():\n    pass\ndef test_fBB_other():",
        "fAA_a_name() { :; }; fBB_other",
    ] {
        assert_eq!(found(text), BTreeSet::from([71, 72]), "{text}");
    }
    for text in ["FAA", "fAA", "bufAA_a", "xfBB_", "fAA1_a", "f_AA", "fA_b"] {
        assert_eq!(found(text), BTreeSet::new(), "{text}");
    }
}
