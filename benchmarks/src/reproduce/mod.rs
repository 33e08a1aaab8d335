//! `compare reproduce`: measures published figures on this machine, and prints them beside those of docs/figures.toml.
//!
//! The commands of each figure are those of its record.

mod tables;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use ringfile_cli::shared::{Spread, Table};
use serde::Deserialize;

use crate::table::spread;
use tables::Tables;

/// The published figures, at the time when the program was built.
const PUBLISHED: &str = include_str!("../../../docs/figures.toml");

#[derive(Deserialize)]
struct Figures {
    figure: Vec<Published>,
}

#[derive(Deserialize)]
struct Published {
    id: String,
    what: String,
    ratio: String,
}

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    /// A folder on the disk to measure, on ext4 or xfs, with 3 GiB free; files there are removed at the end
    #[arg(long, default_value = "/var/tmp")]
    folder: PathBuf,
    /// A new folder for the table and for everything that the commands print
    #[arg(long)]
    out: PathBuf,
    /// The `ringfile` command
    #[arg(long, default_value = "ringfile")]
    ringfile: PathBuf,
    /// Only figures whose name in docs/figures.toml contains one of these
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// A figure of this machine: a ratio, and the same ratio of two runs that do not differ (A/A).
struct Figure {
    ratio: Spread,
    noise: Spread,
}

impl Figure {
    /// Says how the published figure differs, where this machine's rounds and noise do not explain it.
    fn against(&self, published: f64) -> &'static str {
        let noise = [self.noise.min, self.noise.max].map(|ratio| (ratio - 1.0).abs());
        let beyond = (published / self.ratio.median - 1.0).abs() > noise[0].max(noise[1]);
        match published {
            p if beyond && p < self.ratio.min => "higher here",
            p if beyond && p > self.ratio.max => "lower here",
            _ => "within the noise",
        }
    }
}

/// What stands in place of a figure that is not measured.
type Measured = Result<Figure, String>;

/// Figures that are measured together: their names in docs/figures.toml, and how.
struct Row {
    ids: &'static [&'static str],
    measure: fn(&Bench<'_>) -> io::Result<Vec<Measured>>,
}

static ROWS: &[Row] = &[
    Row {
        ids: &["fio-cached", "fio-cached-batch"],
        measure: |bench| {
            bench.needs_fio(2, || {
                let tables = bench.perf_file(
                    true,
                    &["--route=auto", "--iodepth=16", "--rounds=5", "--against=fio,fio-batch"],
                )?;
                Ok(vec![
                    tables.over("fixed/fio", "16", "IOPS")?,
                    tables.over("fixed/fio-batch", "16", "IOPS")?,
                ])
            })
        },
    },
    Row {
        ids: &["fio-disk", "fio-disk-cpu"],
        measure: |bench| {
            bench.needs_fio(2, || {
                let tables =
                    bench.perf_file(true, &["--direct", "--iodepth=128", "--rounds=15", "--against=fio"])?;
                Ok(vec![tables.over("fixed/fio", "128", "IOPS")?, tables.over("fixed/fio", "128", "CPU µs")?])
            })
        },
    },
    Row {
        ids: &["fio-memory-1", "fio-memory-16"],
        measure: |bench| {
            bench.needs_fio(2, || {
                let tables = with_busy_cores(|| bench.perf_file(false, MEMORY))?;
                Ok(vec![tables.over("normal/fio", "1", "IOPS")?, tables.over("normal/fio", "16", "IOPS")?])
            })
        },
    },
    Row {
        ids: &["fio-memory-16-idle", "c-memory-reads"],
        measure: |bench| {
            let mut figures = bench.needs_fio(1, || {
                Ok(vec![bench.perf_file(false, MEMORY)?.over("normal/fio", "16", "IOPS")?])
            })?;
            figures.push(Err("integrations/fio/compare".into()));
            Ok(figures)
        },
    },
    Row {
        ids: &["tokio-16", "tokio-128"],
        measure: |bench| {
            let tables = bench.compare(&["tokio", "--size=256m", "--duration=400ms"])?;
            ["16 tasks", "128 tasks"]
                .map(|tasks| {
                    let title = format!("In tokio (multi-thread, 2 workers), {tasks}");
                    let ratio = tables.spread(&title, &["ringfile"], "side / spawn-blocking")?;
                    let noise = tables::spread(tables.after(&title, "ringfile over itself (A/A): ")?)?;
                    Ok(Ok(Figure { ratio, noise }))
                })
                .into_iter()
                .collect()
        },
    },
    Row {
        ids: &["multiread"],
        measure: |bench| {
            bench.needs_fio(1, || {
                let file = format!("--file={}", bench.file("multiread").display());
                let tables = bench.ringfile(&[
                    "multiread",
                    "--direct",
                    "--batch=250",
                    "--size=2g",
                    "--rounds=5",
                    &file,
                ])?;
                Ok(vec![tables.over("ringfile/fio", "250", "IOPS")?])
            })
        },
    },
    Row {
        ids: &["loop-16", "monoio-16"],
        measure: |bench| {
            let tables =
                bench.compare(&["--depth=16", "--duration=400ms", "--sides=ringfile,hand,monoio-tuned"])?;
            let of = |side| tables.spread("cached, depth 16", &[side], "ringfile / side");
            ["hand", "monoio-tuned"]
                .map(|side| Ok(Ok(Figure { ratio: of(side)?, noise: of("A/A")? })))
                .into_iter()
                .collect()
        },
    },
    Row {
        ids: &["get-ranges-cold", "get-ranges-warm"],
        measure: |bench| {
            let tables = bench.compare(&["get-ranges"])?;
            ["cold", "warm"]
                .map(|cache| {
                    let of = |side| tables.spread("", &[cache, side], "over LocalFileSystem");
                    Ok(Ok(Figure { ratio: of("ringfile adaptive")?, noise: of("A/A")? }))
                })
                .into_iter()
                .collect()
        },
    },
    Row {
        ids: &["tpch-cold", "tpch-warm"],
        measure: |_| Ok(["integrations/datafusion"; 2].map(|place| Err(place.into())).into()),
    },
    Row {
        ids: &["pool"],
        measure: |bench| {
            let tables = bench.pool()?;
            let of = |what| tables.spread("", &["64 KiB", "1", what], "pool / this: median [min..max]");
            Ok(vec![Ok(Figure { ratio: of("posix_memalign, free")?, noise: of("the same again (A/A)")? })])
        },
    },
];

const MEMORY: &[&str] =
    &["--route=auto", "--buffers=normal", "--iodepth=1,16", "--rounds=5", "--against=fio"];

/// Where the commands find and leave their files.
struct Bench<'a> {
    options: &'a Options,
    fio: bool,
}

impl Bench<'_> {
    fn needs_fio(
        &self,
        figures: usize,
        measure: impl FnOnce() -> io::Result<Vec<Figure>>,
    ) -> io::Result<Vec<Measured>> {
        if self.fio {
            return Ok(measure()?.into_iter().map(Ok).collect());
        }
        Ok((0..figures).map(|_| Err("fio is not installed".into())).collect())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.options.folder.join(format!("ringfile-reproduce-{name}-{}.bin", std::process::id()))
    }

    /// Measures random reads by one job, of a file on the disk or in memory.
    fn perf_file(&self, on_disk: bool, arguments: &[&str]) -> io::Result<Tables> {
        let file = on_disk.then(|| format!("--file={}", self.file("perf").display()));
        let common = ["file", "--numjobs=1", "--rw=randread", "--duration=1s"];
        let all = common.into_iter().chain(file.as_deref()).chain(arguments.iter().copied());
        self.ringfile(&all.collect::<Vec<_>>())
    }

    fn ringfile(&self, arguments: &[&str]) -> io::Result<Tables> {
        self.output(Command::new(&self.options.ringfile).arg("perf").args(arguments))
    }

    fn compare(&self, arguments: &[&str]) -> io::Result<Tables> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).arg("--file").arg(self.file("compare")).arg("--remove");
        self.output(&mut command)
    }

    fn pool(&self) -> io::Result<Tables> {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
        let bench = ["bench", "-q", "-p", "ringfile-buffer", "--bench", "pool", "--manifest-path", manifest];
        self.output(Command::new("cargo").args(bench))
    }

    /// Runs a command, keeps what it prints, and returns its tables.
    fn output(&self, command: &mut Command) -> io::Result<Tables> {
        let shown = format!("{command:?}").replace('"', "");
        eprintln!("{shown}");
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        keep(&self.options.out, &format!("$ {shown}\n\n{text}\n"))?;
        if output.status.success() { Ok(Tables::parse(&text)) } else { Err(io::Error::other(shown)) }
    }
}

impl Tables {
    /// A figure of a comparison of `ringfile perf`, at this depth or with these batches.
    fn over(&self, name: &str, depth: &str, figure: &str) -> io::Result<Figure> {
        let of = |name| {
            let cell = |column| self.cell("", &[name, depth, figure], column);
            tables::changes(cell("%")?, cell("least..most")?)
        };
        Ok(Figure { ratio: of(name)?, noise: of("A/A")? })
    }

    fn spread(&self, title: &str, row: &[&str], column: &str) -> io::Result<Spread> {
        tables::spread(self.cell(title, row, column)?)
    }
}

fn keep(out: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    fs::File::options().append(true).create(true).open(out.join("commands.txt"))?.write_all(text.as_bytes())
}

/// Calls `measure` while a thread keeps each core but one busy.
fn with_busy_cores<T>(measure: impl FnOnce() -> T) -> T {
    let ended = AtomicBool::new(false);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..cores {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = measure();
        ended.store(true, Ordering::Relaxed);
        result
    })
}

/// Measures, and prints the table; progress is on standard error.
pub fn run(options: &Options) -> io::Result<()> {
    fs::create_dir(&options.out)
        .map_err(|error| io::Error::new(error.kind(), format!("--out {}: {error}", options.out.display())))?;
    let fio = Command::new("fio").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let bench = Bench { options, fio: fio.is_ok_and(|status| status.success()) };
    let table = Table::default().text("what is compared").number("published").number("here");
    let mut table = table.number("A/A here").text("difference");
    let mut failed = false;
    let published = published()?;
    for row in ROWS {
        let only = |words: &String| row.ids.iter().any(|id| id.contains(words.as_str()));
        let instead = |reason: String| row.ids.iter().map(|_| Err(reason.clone())).collect();
        let chosen = options.only.is_empty() || options.only.iter().any(only);
        let measured = match chosen.then(|| (row.measure)(&bench)) {
            None => instead("not chosen".into()),
            Some(Ok(measured)) => measured,
            Some(Err(error)) => {
                failed = true;
                instead(error.to_string())
            }
        };
        for (id, measured) in row.ids.iter().zip(&measured) {
            let figure = figure_of(&published, id)?;
            let ratio = figure.ratio.parse().map_err(|_| unreadable(id))?;
            let [here, noise, difference] = match measured {
                Ok(here) => {
                    let words = here.against(ratio).to_owned();
                    [spread(here.ratio, 2), spread(here.noise, 2), words]
                }
                Err(reason) => ["–".into(), "–".into(), format!("not measured: {reason}")],
            };
            let name = format!("{id}: {}", figure.what);
            table.row(vec![name, figure.ratio.clone(), here, noise, difference]);
        }
    }
    let text = table.to_string();
    print!("{text}");
    fs::write(options.out.join("table.md"), text)?;
    if failed { Err(io::Error::other("not every row could be measured: the table says why")) } else { Ok(()) }
}

fn published() -> io::Result<Vec<Published>> {
    let file: Figures = toml::from_str(PUBLISHED).map_err(io::Error::other)?;
    Ok(file.figure)
}

fn figure_of<'a>(published: &'a [Published], id: &str) -> io::Result<&'a Published> {
    published.iter().find(|figure| figure.id == id).ok_or_else(|| unreadable(id))
}

fn unreadable(id: &str) -> io::Error {
    io::Error::other(format!("docs/figures.toml has no figure {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_that_is_measured_was_published() {
        let published = published().unwrap();
        for id in ROWS.iter().flat_map(|row| row.ids) {
            assert!(figure_of(&published, id).unwrap().ratio.parse::<f64>().is_ok(), "{id}");
        }
    }

    #[test]
    fn a_difference_is_beyond_both_the_range_and_the_noise() {
        let spread = |median, min, max| Spread { median, min, max };
        let figure = Figure { ratio: spread(1.0, 0.9, 1.1), noise: spread(1.0, 0.8, 1.05) };
        assert_eq!(figure.against(1.15), "within the noise");
        assert_eq!(figure.against(1.3), "lower here");
        assert_eq!(figure.against(0.7), "higher here");
    }
}
