//! The figures of docs/figures.toml, which README.md, docs/performance.md, docs/five-systems.md and the pictures show.
//!
//! To write the tables of the pages anew: `RINGFILE_TEST_WRITE_FIGURES=1 cargo test -p ringfile --test it figures`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::{anchor, prose};

/// The pages with tables of figures. A ratio in their other text must be a figure of the file.
const PAGES: [&str; 3] = ["README.md", "docs/performance.md", "docs/five-systems.md"];
/// The line above a table of figures, before the table's name.
const BEGIN: &str = "<!-- figures: ";

/// A ratio of ringfile over another side.
pub struct Figure {
    id: String,
    tables: Vec<String>,
    what: String,
    ratio: String,
    range: Option<String>,
    noise: Option<String>,
    target: Option<String>,
    /// Less is better.
    less: bool,
    record: String,
}

/// Panels side by side, in a file of docs/.
pub struct Picture {
    pub file: String,
    pub says: String,
    pub title: Option<String>,
    pub panels: Vec<Panel>,
}

/// Bars of one record, each with a label and a figure.
pub struct Panel {
    pub title: String,
    pub unit: String,
    pub bars: Vec<(String, String)>,
    record: String,
}

fn value<'a>(table: &'a DeTable<'_>, key: &str) -> Option<&'a DeValue<'a>> {
    table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value.get_ref())
}

fn text(table: &DeTable<'_>, key: &str) -> Option<String> {
    Some(value(table, key)?.as_str().unwrap_or_else(|| panic!("{key}: no text")).to_owned())
}

fn needed(table: &DeTable<'_>, key: &str) -> String {
    text(table, key).unwrap_or_else(|| panic!("docs/figures.toml: no {key} in {table:?}"))
}

fn list<'a>(table: &'a DeTable<'_>, key: &str) -> Vec<&'a DeValue<'a>> {
    let found = value(table, key).and_then(DeValue::as_array);
    found.into_iter().flatten().map(|value| value.get_ref()).collect()
}

fn words(list: &[&DeValue<'_>]) -> Vec<String> {
    list.iter().map(|word| word.as_str().expect("a text").to_owned()).collect()
}

/// Returns the figures and the pictures of docs/figures.toml.
pub fn read(root: &Path) -> (Vec<Figure>, Vec<Picture>) {
    let whole = std::fs::read_to_string(root.join("docs/figures.toml")).unwrap();
    let whole = DeTable::parse(&whole).unwrap();
    let tables = |key| list(whole.get_ref(), key).into_iter().map(|one| one.as_table().expect("a table"));
    let figure = |one: &DeTable<'_>| Figure {
        id: needed(one, "id"),
        tables: words(&list(one, "in")),
        what: needed(one, "what"),
        ratio: needed(one, "ratio"),
        range: text(one, "range"),
        noise: text(one, "noise"),
        target: text(one, "target"),
        less: value(one, "less").is_some(),
        record: needed(one, "record"),
    };
    let panel = |one: &DeTable<'_>| Panel {
        title: needed(one, "title"),
        unit: needed(one, "unit"),
        bars: list(one, "bars").into_iter().map(bar).collect(),
        record: needed(one, "record"),
    };
    let picture = |one: &DeTable<'_>| Picture {
        file: needed(one, "file"),
        says: needed(one, "says"),
        title: text(one, "title"),
        panels: list(one, "panel").into_iter().map(|one| panel(one.as_table().expect("a panel"))).collect(),
    };
    (tables("figure").map(figure).collect(), tables("picture").map(picture).collect())
}

fn bar(bar: &DeValue<'_>) -> (String, String) {
    let both = bar.as_array().expect("a label and a figure");
    let [label, figure] = &words(&both.iter().map(|word| word.get_ref()).collect::<Vec<_>>())[..] else {
        panic!("{bar:?}: a label and a figure");
    };
    (label.clone(), figure.clone())
}

/// Returns the first number of a text such as `0.99 [0.73..1.40]`.
fn number(text: &str) -> f64 {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text[..end].parse().unwrap_or_else(|_| panic!("no number: {text}"))
}

impl Figure {
    /// Says whether ringfile is better, where neither the range nor the noise explains the difference.
    fn side(&self) -> &'static str {
        let ratio = number(&self.ratio);
        let ends = self.range.as_ref().map(|range| range.split_once("..").expect("a range"));
        let (least, most) = ends.map_or((ratio, ratio), |(least, most)| (number(least), number(most)));
        let noise = self.noise.as_ref().map_or(0.0, |noise| (number(noise) - 1.0).abs());
        match (ratio - 1.0).abs() > noise {
            true if least > 1.0 => ["better", "**worse**"][usize::from(self.less)],
            true if most < 1.0 => ["**worse**", "better"][usize::from(self.less)],
            _ => "equal",
        }
    }

    fn target(&self) -> String {
        let Some(target) = &self.target else { return "–".into() };
        let (ratio, wanted) = (number(&self.ratio), number(target));
        let is_reached = if self.less { ratio <= wanted } else { ratio >= wanted };
        format!("{target}, {}", if is_reached { "reached" } else { "**short**" })
    }

    /// Returns the row of a table; the one of README has no column for noise and target.
    fn row(&self, page: &str) -> String {
        let (folder, ratio) = (if page == "README.md" { "docs/" } else { "" }, &self.ratio);
        let record = format!("{folder}measurements/{}", self.record);
        let what = &self.what;
        if page == "README.md" {
            return format!("|{what}|[{ratio}]({record})|");
        }
        let range = self.range.as_ref().map_or_else(String::new, |range| format!(" [{range}]"));
        let noise = self.noise.as_deref().unwrap_or("–");
        format!("|{what}|[{ratio}{range}]({record})|{noise}|{}|{}|", self.target(), self.side())
    }
}

/// Returns a page with its tables of figures as the file has them, and adds the names of the tables.
fn with_tables(page: &str, whole: &str, figures: &[Figure], names: &mut BTreeSet<String>) -> String {
    let mut new = String::new();
    let mut lines = whole.lines().peekable();
    while let Some(line) = lines.next() {
        let _ = writeln!(new, "{line}");
        let Some(name) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        names.insert(name.to_owned());
        while lines.next_if(|line| line.is_empty() || line.starts_with('|')).is_some() {}
        new += match page {
            "README.md" => "\n|what is compared|ratio|\n|---|--:|\n",
            _ => "\n|ringfile over another|ratio|A/A|target||\n|---|--:|--:|---|---|\n",
        };
        for figure in figures.iter().filter(|figure| figure.tables.iter().any(|table| table == name)) {
            let _ = writeln!(new, "{}", figure.row(page));
        }
        new.push('\n');
    }
    format!("{}\n", new.trim_end())
}

/// Returns the ratios, with two decimals, of a page outside of its tables of figures.
fn ratios(page: &str) -> Vec<String> {
    let text = prose(page);
    let mut is_table = false;
    let lines = text.lines().filter(|line| {
        is_table = line.starts_with(BEGIN) || is_table && (line.is_empty() || line.starts_with('|'));
        !is_table
    });
    let words: Vec<&str> = lines.flat_map(|line| line.split([' ', '(', '[', ']', ')', '*', '|'])).collect();
    let is_ratio = |word: &str| {
        word.split_once('.').is_some_and(|(whole, part)| {
            let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits(whole) && digits(part) && part.len() == 2
        })
    };
    let follows = words.windows(2).filter(|pair| !matches!(pair[0], "Linux" | "Rust"));
    let found = follows.map(|pair| pair[1].trim_end_matches([',', '.', ';', ':']));
    found.filter(|word| is_ratio(word)).map(str::to_owned).collect()
}

#[test]
fn the_pages_show_the_figures_of_the_file() {
    let Some(root) = super::root() else { return };
    let (figures, _) = read(root);
    let known: BTreeSet<&str> = figures
        .iter()
        .flat_map(|figure| [Some(&figure.ratio), figure.range.as_ref(), figure.noise.as_ref()])
        .flatten()
        .flat_map(|text| {
            text.split(|c: char| !c.is_ascii_digit() && c != '.').flat_map(|part| part.split(".."))
        })
        .collect();
    let (mut names, mut wrong) = (BTreeSet::new(), Vec::new());
    for page in PAGES {
        let path = root.join(page);
        let text = std::fs::read_to_string(&path).unwrap();
        let wanted = with_tables(page, &text, &figures, &mut names);
        if std::env::var_os("RINGFILE_TEST_WRITE_FIGURES").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        } else if text != wanted {
            wrong.push(format!(
                "{page} is not what docs/figures.toml says: run this with RINGFILE_TEST_WRITE_FIGURES=1"
            ));
        }
        let unknown = ratios(&wanted).into_iter().filter(|ratio| !known.contains(ratio.as_str()));
        wrong.extend(unknown.map(|ratio| format!("{page}: {ratio} is no figure of docs/figures.toml")));
    }
    let mut ids = BTreeSet::new();
    for figure in &figures {
        let (id, tables) = (&figure.id, &figure.tables);
        assert!(ids.insert(id), "{id} twice");
        // A README without the table shows none.
        let is_shown = tables.iter().any(|table| names.contains(table) || table == "README");
        assert!(is_shown, "{id} is in no page: {tables:?}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_figure_is_in_its_record() {
    let Some(root) = super::root() else { return };
    let (figures, pictures) = read(root);
    let panels = pictures.into_iter().flat_map(|picture| picture.panels);
    let bars =
        panels.flat_map(|panel| panel.bars.into_iter().map(move |(_, bar)| (bar, panel.record.clone())));
    let ratios = figures.into_iter().map(|figure| (figure.ratio, figure.record));
    for (digits, record) in ratios.chain(bars) {
        let (file, heading) = record.split_once('#').unwrap();
        let text = std::fs::read_to_string(root.join("docs/measurements").join(file)).unwrap();
        let mut sections = text.split("\n## ").skip(1);
        let section = sections.find(|section| anchor(section.lines().next().unwrap()) == heading);
        let section = section.unwrap_or_else(|| panic!("docs/measurements/{file} has no {heading}"));
        let mut numbers = section.split(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ',' | 'k'));
        let is_it = |number: &str| number.trim_matches(['.', ',']) == digits;
        assert!(numbers.any(is_it), "{record} has no {digits}");
    }
}

#[test]
fn a_figure_says_what_it_shows() {
    let figure = |ratio: &str, range: &str, noise: &str, less| Figure {
        id: String::new(),
        tables: Vec::new(),
        what: "this".into(),
        ratio: ratio.into(),
        range: Some(range.into()).filter(|range: &String| !range.is_empty()),
        noise: Some(noise.into()),
        target: Some("1.1".into()),
        less,
        record: "day.md#here".into(),
    };
    let better = figure("1.30", "1.10..1.40", "1.02 [0.9..1.1]", false);
    assert_eq!(
        better.row("docs/performance.md"),
        "|this|[1.30 [1.10..1.40]](measurements/day.md#here)|1.02 [0.9..1.1]|1.1, reached|better|"
    );
    assert_eq!(better.row("README.md"), "|this|[1.30](docs/measurements/day.md#here)|");
    let sides =
        [("1.30", "0.90..1.40", "1.02", false), ("1.03", "", "1.04", false), ("0.80", "", "1.04", false)];
    assert_eq!(sides.map(|(a, b, c, d)| figure(a, b, c, d).side()), ["equal", "equal", "**worse**"]);
    assert_eq!(figure("0.80", "0.70..0.90", "1.04", true).side(), "better");
    assert_eq!(figure("1.20", "", "1.04", true).target(), "1.1, **short**");
    let page = "On Linux 6.18 it has 1.23, [0.98](a) of 4.5 and 0.123.\n<!-- figures: a -->\n\n| 9.99 |\n\nAnd\n\n| 8.88 |";
    assert_eq!(ratios(page), ["1.23", "0.98", "8.88"]);
}
