//! The picture of the README, drawn from the tables of docs/measurements that it shows, so that it cannot differ from
//! them.
//!
//! To draw it anew: `RINGFILE_WRITE_PICTURE=1 cargo test -p ringfile --test documents the_picture`.

use std::fmt::Write;
use std::path::Path;

/// Bars of one table.
struct Panel {
    title: &'static str,
    unit: &'static str,
    file: &'static str,
    heading: &'static str,
    /// The column of the figures, from 0.
    column: usize,
    /// The label of each bar, and how its row begins.
    bars: &'static [(&'static str, &'static str)],
}

const IN_TOKIO: &str = "## A third of the reads wait, in tokio";
const WAYS: &[(&str, &str)] = &[
    ("ringfile, attached", "| `attach_to_tokio` |"),
    ("ringfile, I/O thread", "| an I/O thread |"),
    ("spawn_blocking, pread", "| `spawn_blocking` |"),
    ("io_uring by hand", "| driven |"),
];

const PANELS: [Panel; 3] = [
    Panel {
        title: "In tokio, every third read waits for the disk",
        unit: "thousand reads a second, more is better",
        file: "2026-11-27.md",
        heading: IN_TOKIO,
        column: 4,
        bars: WAYS,
    },
    Panel {
        title: "The same: CPU time",
        unit: "µs for one read, less is better",
        file: "2026-11-27.md",
        heading: IN_TOKIO,
        column: 6,
        bars: WAYS,
    },
    Panel {
        title: "Direct, 128 in flight, equal rates: CPU time",
        unit: "µs for one read, less is better",
        file: "2026-11-21.md",
        heading: "## Against fio, disk with O_DIRECT",
        column: 13,
        bars: &[
            ("ringfile, registered", "|ringfile|   1|  128|randread|fixed  |"),
            ("ringfile", "|ringfile|   1|  128|randread|normal |"),
            ("fio, registered", "|fio     |   1|  128|randread|fixed  |"),
            ("fio", "|fio     |   1|  128|randread|normal |"),
        ],
    },
];

const WIDTH: usize = 340;
const LEFT: f64 = 142.0;
const ROW: usize = 24;
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#57606a}.h{font-size:13px;font-weight:600;fill:#1b1f24}\
    .ours{fill:#0067a5}.other{fill:#6e7781}.paper{fill:#fff}\
    @media(prefers-color-scheme:dark){text{fill:#a3adb8}.h{fill:#e6e9ec}.ours{fill:#58b4f0}.other{fill:#9aa4ae}.paper{fill:#14171b}}";

impl Panel {
    /// Returns the figure of a row: the median, in front of its range.
    fn figure(&self, measurements: &Path, row: &str) -> String {
        let text = std::fs::read_to_string(measurements.join(self.file)).unwrap();
        let (_, section) = text.split_once(&format!("{}\n", self.heading)).expect(self.heading);
        let section = section.split("\n## ").next().unwrap();
        let found = section.lines().find(|line| line.starts_with(row)).expect(row);
        let cell = found.trim_matches('|').split('|').nth(self.column).expect(row);
        cell.split_whitespace().next().expect(row).to_string()
    }

    fn draw(&self, measurements: &Path, svg: &mut String, left: usize) {
        let figures: Vec<String> = self.bars.iter().map(|(_, row)| self.figure(measurements, row)).collect();
        let values: Vec<f64> = figures.iter().map(|figure| figure.parse().expect("a number")).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        let _ = writeln!(
            svg,
            "<g transform=\"translate({left} 0)\"><text class=\"h\" y=\"28\">{}</text>",
            self.title
        );
        let _ = writeln!(svg, "<text y=\"46\">{}</text>", self.unit);
        for (index, ((label, _), (figure, value))) in
            self.bars.iter().zip(figures.iter().zip(values)).enumerate()
        {
            let (top, width) = (60 + index * ROW, value / most * (WIDTH as f64 - LEFT - 46.0));
            let class = if label.starts_with("ringfile") { "ours" } else { "other" };
            let _ = writeln!(
                svg,
                "<text y=\"{}\">{label}</text><rect class=\"{class}\" x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"16\"/>\
                 <text x=\"{:.1}\" y=\"{}\">{figure}</text>",
                top + 12,
                LEFT + width + 6.0,
                top + 12
            );
        }
        svg.push_str("</g>\n");
    }
}

fn drawn(measurements: &Path) -> String {
    let width = PANELS.len() * (WIDTH + 24) + 8;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"170\" viewBox=\"0 0 {width} 170\" role=\"img\" \
         aria-label=\"Reads a second and CPU time for one read: ringfile beside spawn_blocking, a hand-written ring and fio\">\
         <style>{STYLE}</style>\n<rect class=\"paper\" width=\"{width}\" height=\"170\" rx=\"8\"/>\n"
    );
    for (index, panel) in PANELS.iter().enumerate() {
        panel.draw(measurements, &mut svg, 16 + index * (WIDTH + 24));
    }
    svg + "</svg>\n"
}

#[test]
fn the_picture_shows_what_was_recorded() {
    let Some(root) = super::root() else { return };
    let path = root.join("docs/worth.svg");
    let wanted = drawn(&root.join("docs/measurements"));
    if std::env::var_os("RINGFILE_WRITE_PICTURE").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/worth.svg is not what is recorded: run this with RINGFILE_WRITE_PICTURE=1"
    );
}
