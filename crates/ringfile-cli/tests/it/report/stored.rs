//! Results that an earlier version wrote: files that lie beside this one and are never written anew.

use std::path::PathBuf;

use super::pages::report;
use crate::support::{folder, run};

/// A stored file, how many figures it has in common with itself, and figures of its first row.
type Stored = (&'static str, usize, &'static [&'static str]);

const STORED: [Stored; 3] = [("file", 28, FILE), ("buffers", 110, BUFFERS), ("pool", 24, POOL)];

const FILE: &[&str] =
    &["ringfile", "78.0k", "305", "12.8", "167", "4.83", "5.40", "5.79", "7.93", "2,384", "5,202", "5.05"];
const BUFFERS: &[&str] =
    &["4k", "normal", "6.5k", "25.4", "153", "318", "82.5", "165", "310", "1,045", "3,416", "49.3"];
const POOL: &[&str] =
    &["pool", "producer", "13.0k", "815", "611", "1,139", "306", "3,058", "5,128", "9,222", "13.2"];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/report/stored").join(format!("{name}.json"))
}

#[test]
fn results_of_an_earlier_version_are_shown_with_their_figures() {
    let folder = folder();
    for (name, _, figures) in STORED {
        let out = folder.path().join(format!("{name}.html"));
        run(report().arg(path(name)).arg("--out").arg(&out)).ok();
        let page = std::fs::read_to_string(&out).expect("the page is there");
        let table = page.split("Speed and latency").nth(1).expect("the table of speed");
        let row = table.split("<tbody><tr>").nth(1).and_then(|rows| rows.split("</tr>").next());
        let row = row.expect("a first row");
        for figure in figures {
            assert!(row.contains(&format!(">{figure}</td>")), "{name}: {figure} in {row}");
        }
    }
}

#[test]
fn results_are_read_behind_a_byte_order_mark() {
    let folder = folder();
    let marked = folder.path().join("marked.json");
    let text = std::fs::read(path("file")).expect("read");
    std::fs::write(&marked, ["\u{feff}".as_bytes(), &text].concat()).expect("write");
    let said = run(report().arg(path("file")).arg(&marked)).ok().stdout;
    assert!(said.starts_with("marked beside file: 0 of 28 figures differ"), "{said}");
}

#[test]
fn results_of_an_earlier_version_are_compared_figure_by_figure() {
    let folder = folder();
    for (name, figures, _) in STORED {
        let again = folder.path().join("again.json");
        std::fs::copy(path(name), &again).expect("copied");
        let said = run(report().arg(path(name)).arg(&again)).ok().stdout;
        let expected = format!("again beside {name}: 0 of {figures} figures differ outside the spread");
        assert!(said.starts_with(&expected), "{said}");
    }
}
