//! The passages of docs/adopting.md: each is a part, line for line, of an example that runs.

#![allow(clippy::unwrap_used, reason = "a test's helpers")]

use std::io::Write;
use std::path::Path;

/// The lines of a text without their indentation.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn every_passage_of_adopting_is_in_its_example() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    if !root.join("docs").is_dir() {
        let _ = writeln!(
            std::io::stderr(),
            "skipped every_passage_of_adopting_is_in_its_example: a package has no docs"
        );
        return;
    }
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let page = read("docs/adopting.md");
    for (language, example, count) in [
        ("c", "crates/ringfile-capi/examples/c/block_reader.c", 10),
        ("cpp", "crates/ringfile-capi/examples/cpp/block_reader.cpp", 3),
        ("rust", "crates/ringfile/examples/block_reader.rs", 6),
    ] {
        assert!(page.contains(&format!("](../{example})")), "no link to {example}");
        let example = read(example);
        let here = lines(&example);
        let begin = format!("```{language}\n");
        let passages = page.split(&begin).skip(1).filter_map(|rest| rest.split("```").next());
        let passages: Vec<&str> = passages.collect();
        assert_eq!(passages.len(), count, "a passage in {language} came or went");
        for passage in passages {
            let wanted = lines(passage);
            assert!(
                here.windows(wanted.len()).any(|window| window == wanted),
                "not in its example:\n{passage}"
            );
        }
    }
}
