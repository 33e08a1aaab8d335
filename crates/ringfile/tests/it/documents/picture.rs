//! The pictures of the README and of docs/results.md, drawn from the tables of docs/measurements that they show, so that
//! they cannot differ from them.
//!
//! To draw them anew: `RINGFILE_WRITE_PICTURE=1 cargo test -p ringfile --test it the_pictures`.

use std::fmt::Write;
use std::path::Path;

/// Panels side by side, in a file of docs/.
struct Picture {
    file: &'static str,
    says: &'static str,
    panels: &'static [Panel],
}

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

const PICTURES: [Picture; 4] = [
    Picture {
        file: "worth.svg",
        says: "Reads a second and CPU time for one read: ringfile beside spawn_blocking, a hand-written ring and fio",
        panels: &WORTH,
    },
    Picture {
        file: "objects.svg",
        says: "MiB a second and CPU time: ringfile's object store beside LocalFileSystem",
        panels: &OBJECTS,
    },
    Picture {
        file: "batches.svg",
        says: "Reads a second and CPU time for one: batches of ringfile beside fio, hand-written rings and pread",
        panels: &BATCHES,
    },
    Picture {
        file: "log.svg",
        says: "Microseconds for a batch of a message log: ringfile beside buffered writes and reads",
        panels: &LOG,
    },
];

const WORTH: [Panel; 3] = [
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

const GET_RANGES: &str = "## Adaptive files";
const COLD: &[(&str, &str)] = &[
    ("ringfile, adaptive", "| cold | ringfile adaptive |"),
    ("ringfile, direct", "| cold | ringfile direct |"),
    ("ringfile, buffered", "| cold | ringfile buffered |"),
    ("LocalFileSystem", "| cold | LocalFileSystem |"),
];
const OBJECTS: [Panel; 3] = [
    Panel {
        title: "get_ranges, nothing cached",
        unit: "MiB a second, more is better",
        file: "2026-11-22.md",
        heading: GET_RANGES,
        column: 2,
        bars: COLD,
    },
    Panel {
        title: "The same: CPU time",
        unit: "ms for a GB, less is better",
        file: "2026-11-22.md",
        heading: GET_RANGES,
        column: 3,
        bars: COLD,
    },
    Panel {
        title: "get_ranges, all cached",
        unit: "MiB a second, more is better",
        file: "2026-11-22.md",
        heading: GET_RANGES,
        column: 2,
        bars: &[
            ("ringfile, adaptive", "| warm | ringfile adaptive |"),
            ("ringfile, direct", "| warm | ringfile direct |"),
            ("ringfile, buffered", "| warm | ringfile buffered |"),
            ("LocalFileSystem", "| warm | LocalFileSystem |"),
        ],
    },
];

const MULTIREAD: &[(&str, &str)] = &[
    ("ringfile", "|ringfile   |   4|  250|"),
    ("fio", "|fio        |   4|  250|"),
    ("a ring for a batch", "|submit-only|   4|  250|"),
    ("pread", "|pread      |   4|  250|"),
];
const BATCHES: [Panel; 2] = [
    Panel {
        title: "4 threads, direct, batches of 250",
        unit: "reads of 16 KiB a second, more is better",
        file: "2026-11-21.md",
        heading: "## Batches",
        column: 3,
        bars: MULTIREAD,
    },
    Panel {
        title: "The same: CPU time",
        unit: "µs for one read, less is better",
        file: "2026-11-21.md",
        heading: "## Batches",
        column: 12,
        bars: MULTIREAD,
    },
];

const LOG_TABLES: &str = "## A log beside plain memory and buffered writes";
const LOG: [Panel; 3] = [
    Panel {
        title: "A log at 250 MB/s, durable: producers",
        unit: "µs for a batch (median), less is better",
        file: "2026-11-28.md",
        heading: LOG_TABLES,
        column: 1,
        bars: &[
            ("ringfile, Appender", "| 250 MB a second each way, each batch durable"),
            ("write, fdatasync", "| vec | 1,082"),
        ],
    },
    Panel {
        title: "The same: consumers",
        unit: "µs for a batch (median), less is better",
        file: "2026-11-28.md",
        heading: LOG_TABLES,
        column: 3,
        bars: &[
            ("ringfile, its tail", "| 250 MB a second each way, each batch durable"),
            ("read", "| vec | 1,082"),
        ],
    },
    Panel {
        title: "Not durable: producers",
        unit: "µs for a batch (median), less is better",
        file: "2026-11-28.md",
        heading: LOG_TABLES,
        column: 1,
        bars: &[
            ("ringfile, Appender", "| 250 MB a second each way, 3 rounds: pool"),
            ("write", "| vec | 475"),
            ("RWF_DONTCACHE", "| vec-uncached | 744"),
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
        cell.split_whitespace().next().expect(row).trim_end_matches(',').to_string()
    }

    fn draw(&self, measurements: &Path, svg: &mut String, left: usize) {
        let figures: Vec<String> = self.bars.iter().map(|(_, row)| self.figure(measurements, row)).collect();
        let values: Vec<f64> = figures.iter().map(|figure| value(figure)).collect();
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

/// Returns the value of a figure such as `83.9k` or `1,082`.
fn value(figure: &str) -> f64 {
    let (number, scale) = figure.strip_suffix('k').map_or((figure, 1.0), |number| (number, 1000.0));
    scale * number.replace(',', "").parse::<f64>().expect("a number")
}

impl Picture {
    fn drawn(&self, measurements: &Path) -> String {
        let width = self.panels.len() * (WIDTH + 24) + 8;
        let bars = self.panels.iter().map(|panel| panel.bars.len()).max().unwrap();
        let height = 74 + bars * ROW;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             role=\"img\" aria-label=\"{}\">\
             <style>{STYLE}</style>\n<rect class=\"paper\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n",
            self.says
        );
        for (index, panel) in self.panels.iter().enumerate() {
            panel.draw(measurements, &mut svg, 16 + index * (WIDTH + 24));
        }
        svg + "</svg>\n"
    }
}

#[test]
fn the_pictures_show_what_was_recorded() {
    let Some(root) = super::root() else { return };
    for picture in PICTURES {
        let path = root.join("docs").join(picture.file);
        let wanted = picture.drawn(&root.join("docs/measurements"));
        if std::env::var_os("RINGFILE_WRITE_PICTURE").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == wanted,
            "docs/{} is not what is recorded: run this with RINGFILE_WRITE_PICTURE=1",
            picture.file
        );
    }
}
