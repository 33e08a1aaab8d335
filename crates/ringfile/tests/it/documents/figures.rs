//! Figures in documents: each number that was measured must be in a section of docs/measurements that a link beside it
//! names.
//!
//! Beside it means in the same paragraph, list item or row of a table; for a row without such links, in the paragraph
//! right before or right after its table. The section must have the same digits. A test cannot know whether they say the
//! same there.

use super::anchor;

/// What makes a whole number a figure if it follows it. A number with a decimal point or with separators of thousands is
/// one without.
const UNITS: &[&str] = &[
    "%",
    "ns",
    "µs",
    "ms",
    "times",
    "thousand",
    "million",
    "k",
    "IOPS",
    "calls",
    "system calls",
    "instructions",
    "OS threads",
];
/// What joins whole numbers of which only the last has a unit ("72 and 76 %"), and versions ("6.1 and 7.2").
const JOINTS: &[&str] = &[" to ", " and ", " or ", ", ", " / ", "/", "..", "–"];
/// Words in front of a version.
const PROGRAMS: &[&str] = &[
    "license",
    "linux",
    "kernels",
    "rust",
    "go",
    "fio",
    "rocksdb",
    "debian's",
    "release",
    "under",
    "compio-buf",
    "monoio",
    "tokio-uring",
];
/// Words in front of a version of Linux, if the number also looks like one.
const SINCE: &[&str] = &["before", "since", "up to", "on", "of"];
/// Words shortly before a goal or a setting.
const GOALS: &[&str] = &["target", "targets", "every"];
/// Headings of columns with numbers that were not measured.
const FOREIGN: &[&str] = &["target", "kernel", "the studies", "what its author does"];
/// Begins a list of settings, limits and figures of others, which are no figures in this paragraph, or in the table
/// beside it.
const EXEMPT: &str = "<!-- not measured:";

/// A number in a text, without separators of thousands.
struct Number {
    digits: String,
    start: usize,
    end: usize,
}

impl Number {
    fn decimals(&self) -> usize {
        self.digits.split_once('.').map_or(0, |(_, decimals)| decimals.len())
    }

    fn has_point(&self) -> bool {
        self.decimals() > 0
    }

    /// Returns whether `recorded` rounds to this number.
    fn is_rounded(&self, recorded: f64) -> bool {
        let wanted: f64 = self.digits.parse().unwrap_or(f64::NAN);
        (recorded - wanted).abs() <= 0.5 / 10_f64.powi(self.decimals() as i32) + 1e-9
    }
}

/// Returns the numbers of a text, without those in names (`v2`, `io-4`), dates and versions of three parts.
fn numbers(text: &str) -> Vec<Number> {
    let byte = |at: usize| text.as_bytes().get(at).copied().unwrap_or(b' ');
    let digit = |at: usize| byte(at).is_ascii_digit();
    let thousands = |at: usize| byte(at) == b',' && (1..4).all(|n| digit(at + n)) && !digit(at + 4);
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let (start, mut points) = (at, 0);
        while digit(at) || at > start && (thousands(at) || byte(at) == b'.' && digit(at + 1)) {
            points += usize::from(byte(at) == b'.');
            at += 1;
        }
        if at == start {
            at += 1;
            continue;
        }
        let mut before = text[..start].chars().rev();
        let in_name = match before.next() {
            Some('-') => before.next().is_some_and(char::is_alphanumeric),
            Some(c) => c.is_alphanumeric() || c == '_' || c == '#',
            None => false,
        };
        let in_date = byte(at) == b'-' && digit(at + 1);
        if !in_name && !in_date && points < 2 {
            found.push(Number { digits: text[start..at].replace(',', ""), start, end: at });
        }
    }
    found
}

/// Returns a text with blanks in the place of code, the targets of links, and comments, which have no figures.
fn words(text: &str) -> String {
    let mut text = text.replace('\n', " ");
    for (begin, end) in [("<!--", "-->"), ("`", "`"), ("](", ")")] {
        while let Some(start) = text.find(begin) {
            let from = start + begin.len();
            let end = text[from..].find(end).map_or(text.len(), |length| from + length + end.len());
            text.replace_range(start..end, &" ".repeat(end - start));
        }
    }
    text
}

fn begins_with_unit(rest: &str) -> bool {
    let apart = rest.trim_start_matches(['*', ' ']);
    UNITS.iter().any(|unit| {
        let ends = |behind: &str| *unit == "%" || !behind.starts_with(char::is_alphanumeric);
        // "4k" is a block size, "151 k" a rate.
        apart.strip_prefix(unit).is_some_and(ends) && (*unit != "k" || rest.starts_with(' '))
    })
}

/// Returns the figures of a text, which has no code and no links any more.
fn figures(text: &str) -> Vec<Number> {
    let all = numbers(text);
    let joins = |left: &Number, right: &Number| {
        let between = text[left.end..right.start].replace(['+', '-', '−', '*'], "");
        JOINTS.contains(&between.as_str())
    };
    let mut is_version = vec![false; all.len()];
    let mut is_figure = vec![false; all.len()];
    for (at, number) in all.iter().enumerate() {
        let before = text[..number.start].trim_end_matches(['(', ' ']).to_lowercase();
        let follows = |word: &&str| {
            let rest = before.strip_suffix(word);
            rest.is_some_and(|rest| !rest.ends_with(|c: char| c.is_alphanumeric() || c == '-'))
        };
        let like_linux = ["5.", "6.", "7."].iter().any(|begin| number.digits.starts_with(begin));
        let goes_on = at > 0 && is_version[at - 1] && joins(&all[at - 1], number);
        is_version[at] = number.has_point()
            && (goes_on || PROGRAMS.iter().any(follows) || like_linux && SINCE.iter().any(follows));
        let is_goal = before.rsplit([' ', '(', '|']).take(3).any(|word| GOALS.contains(&word));
        let is_plain = number.digits.len() == number.end - number.start && !number.has_point();
        is_figure[at] = !is_version[at] && !is_goal && (!is_plain || begins_with_unit(&text[number.end..]));
    }
    for at in (1..all.len()).rev() {
        let (left, right) = (&all[at - 1], &all[at]);
        is_figure[at - 1] |= is_figure[at] && !left.has_point() && !right.has_point() && joins(left, right);
    }
    all.into_iter().zip(is_figure).filter_map(|(number, is)| is.then_some(number)).collect()
}

/// Returns whether a section has a figure of a text. It may have more decimals than the text, and 150,790 where the
/// text has "151 k" or "151 thousand".
fn holds(section: &str, text: &str, figure: &Number) -> bool {
    let unit = text[figure.end..].trim_start();
    let thousands = unit.starts_with("k ") || unit.starts_with("thousand");
    numbers(section).iter().any(|number| {
        let recorded: f64 = number.digits.parse().unwrap_or(f64::NAN);
        let is_finer = figure.has_point() && number.decimals() > figure.decimals();
        number.digits == figure.digits
            || is_finer && figure.is_rounded(recorded)
            || thousands && figure.is_rounded(recorded / 1e3)
    })
}

/// Returns the text below the heading with this anchor, up to the next heading that is not below it. The heading of the
/// whole file has only the text up to the first section.
fn section(file: &str, fragment: &str) -> Option<String> {
    let level = |line: &str| line.bytes().take_while(|byte| *byte == b'#').count();
    let is_it = |line: &str| level(line) > 0 && anchor(line.trim_start_matches('#')) == fragment;
    let mut lines = file.lines().skip_while(|line| !is_it(line));
    let top = level(lines.next()?);
    let text = lines.take_while(|line| level(line) == 0 || level(line) > top && top > 1);
    Some(text.collect::<Vec<_>>().join("\n"))
}

/// A paragraph, a list item or a table; a heading is an empty one.
struct Block {
    first_line: usize,
    lines: Vec<String>,
    is_table: bool,
}

/// Returns the blocks of a document, without passages of code.
fn blocks(document: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut in_code, mut continues) = (false, false);
    for (number, line) in document.lines().enumerate() {
        let text = line.trim_start();
        let is_fence = text.starts_with("```");
        in_code ^= is_fence;
        if in_code || is_fence || text.is_empty() || line.starts_with("    ") && !continues {
            continues = false;
            continue;
        }
        let (is_heading, is_table) = (text.starts_with('#'), text.starts_with('|'));
        let begins = is_heading || text.starts_with("- ") || !continues;
        if begins || blocks.last().is_none_or(|last| last.is_table != is_table) {
            blocks.push(Block { first_line: number + 1, lines: Vec::new(), is_table });
        }
        if let (false, Some(block)) = (is_heading, blocks.last_mut()) {
            block.lines.push(text.to_owned());
        }
        continues = !is_heading;
    }
    blocks
}

/// Returns the figures of a text that are neither exempt nor in a section that `beside` links.
fn unrecorded_in(text: &str, beside: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let parts = |begin: &'static str, end: &'static str| {
        beside.split(begin).skip(1).filter_map(move |rest| rest.split(end).next())
    };
    let links = parts("](", ")").filter_map(|link| link.split_once('#'));
    let sections: Vec<String> =
        links.filter_map(|(file, fragment)| section(&read(file)?, fragment)).collect();
    let exempt: Vec<Number> = parts(EXEMPT, "-->").flat_map(numbers).collect();
    let text = words(text);
    let is_missing = |figure: &Number| {
        !exempt.iter().any(|number| number.digits == figure.digits)
            && !sections.iter().any(|section| holds(section, &text, figure))
    };
    let missing = figures(&text).into_iter().filter(is_missing);
    missing.map(|figure| text[figure.start..].chars().take(25).collect()).collect()
}

/// Returns the figures of a document that no section linked beside them has, each after its block's or row's line.
fn unrecorded(document: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let blocks = blocks(document);
    let mut found = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        let mut report = |row: usize, missing: Vec<String>| {
            found.extend(missing.iter().map(|figure| format!("{}: {figure}", block.first_line + row)));
        };
        if !block.is_table {
            let text = block.lines.join("\n");
            report(0, unrecorded_in(&text, &text, read));
            continue;
        }
        let neighbours =
            [at.checked_sub(1), Some(at + 1)].into_iter().flatten().filter_map(|at| blocks.get(at));
        let paragraphs = neighbours.filter(|block| !block.is_table);
        let beside = paragraphs.map(|block| block.lines.join("\n")).collect::<Vec<_>>().join("\n");
        let headings: Vec<&str> = block.lines[0].split('|').map(str::trim).collect();
        for (row, line) in block.lines.iter().enumerate() {
            let cells = line.split('|').zip(&headings).filter(|(_, heading)| !FOREIGN.contains(heading));
            let text = cells.map(|(cell, _)| cell).collect::<Vec<_>>().join("|");
            let beside = if line.contains("measurements/") { line } else { &beside };
            report(row, unrecorded_in(&text, beside, read));
        }
    }
    found
}

#[test]
fn every_figure_is_in_a_section_that_is_linked_beside_it() {
    let Some(root) = super::root() else { return };
    let mut found = Vec::new();
    for page in [super::files(&root.join("README.md"), ""), super::files(&root.join("docs"), ".md")].concat()
    {
        let name = page.strip_prefix(root).unwrap().display().to_string();
        if name.starts_with("docs/measurements") {
            continue;
        }
        let read = |link: &str| {
            let file = std::fs::canonicalize(page.parent()?.join(link)).ok()?;
            let is_record = file.parent()?.ends_with("docs/measurements");
            is_record.then(|| std::fs::read_to_string(file).ok())?
        };
        let text = std::fs::read_to_string(&page).unwrap();
        found.extend(unrecorded(&text, &read).into_iter().map(|figure| format!("{name}:{figure}")));
    }
    assert!(
        found.is_empty(),
        "{} figures are in no section of docs/measurements that is linked beside them; `{EXEMPT} 30 -->` exempts a \
         setting:\n{}",
        found.len(),
        found.join("\n")
    );
}

/// Returns the numbers that are reported of a text, with a record of one section.
fn reported(text: &str, record: &str) -> Vec<String> {
    let read = |link: &str| {
        (link == "measurements/day.md")
            .then(|| format!("# Day\n\n9.9\n\n## Here\n\n{record}\n\n## There\n\n8.8\n"))
    };
    let digits = |found: String| numbers(&found).into_iter().nth(1).unwrap().digits;
    unrecorded(text, &read).into_iter().map(digits).collect()
}

#[test]
fn figures_without_a_record_are_reported() {
    for (text, figures) in [
        (
            "At depth 16 silk had 0.56 to 0.67 of fio's IOPS; ringfile has 1.51 times fio's IOPS and more.",
            "0.56 0.67 1.51",
        ),
        ("1000 goroutines with a batch of 32 each need 17 OS threads.", "17"),
        (
            "Medians of earlier runs ranged from 69 to 122 %; 78 % is on the\nlibrary's one I/O thread.",
            "69 122 78",
        ),
        (
            "For a seek with 28 reads `strace` counted 56 calls, for 1.72 to 1.79 ms of CPU time.",
            "56 1.72 1.79",
        ),
        ("| | appender |\n|---|--:|\n| producers, p50 | 264 µs |\n| CPU | 0.43 / 0.19 µs |", "264 0.43 0.19"),
        ("| | here |\n|---|---|\n| fixed over plain, 4 KiB | +10 to 12 % on zram |", "10 12"),
        (
            "- one\n- producers only, 0.82 to 0.91 in [another section](measurements/day.md#there)",
            "0.82 0.91",
        ),
        ("345 thousand reads, 151 k, 136,000 to 142,000 operations per second", "345 151 136000 142000"),
    ] {
        assert_eq!(reported(text, "4.4").join(" "), figures, "{text}");
    }
}

#[test]
fn settings_sizes_and_versions_are_no_figures() {
    for text in [
        "Blocks of 4 KiB and 4k, a pool of 64 MiB, depth 128, 7 rounds of 10 s, 9000 keys.",
        "Linux 6.18, Debian's 5.10, 6.1 and 6.12, before 6.13; RocksDB 11.8, raft-engine 0.4.2 on 2026-11-22.",
        "The target of 0.95 is short. With a signal every 200 µs. `0.5 ns` is code.",
        "```text\n1.5 times\n```\n\n    0.7 of it",
        "At most 25 % are wasted.<!-- not measured: 25 -->",
        "| what | target |\n|---|--:|\n| speed | 1.2 |",
    ] {
        assert!(reported(text, "").is_empty(), "{text}: {:?}", reported(text, ""));
    }
}

#[test]
fn a_figure_needs_a_link_to_the_section_that_has_it() {
    let record = "| 1.138 | 0.995 | 150,790 | 36 |";
    for text in [
        "It takes 36 µs, 1.14 times as long ([measured](measurements/day.md#here)).",
        "[1.00](measurements/day.md#here) at 151 k and 151 thousand",
        "| | |\n|---|--:|\n| rate | 1.138 |\n\nAs [measured](measurements/day.md#here).",
        "As [measured](measurements/day.md#here):\n\n| | |\n|---|--:|\n| rate | 1.138 |",
        "| | |\n|---|--:|\n| [rate](measurements/day.md#here) | 1.138 |",
    ] {
        assert!(reported(text, record).is_empty(), "{text}: {:?}", reported(text, record));
    }
    for text in [
        "| | |\n|---|--:|\n| [rate](measurements/other.md#there) | 1.138 |\n\nAs [measured](measurements/day.md#here).",
        "It takes 36 µs ([measured](measurements/day.md)).",
        "It takes 36 µs ([measured](measurements/day.md#there)).",
        "It takes 36 µs ([measured](measurements/day.md#day)).",
        "It takes 36 µs ([said](measurements/other.md#here)).",
        "It takes 36 µs.\n\nAs [measured](measurements/day.md#here).",
        "It takes 35 µs ([measured](measurements/day.md#here)).",
        "| | |\n|---|--:|\n| [rate](measurements/day.md#here) | 1.138 |\n| time | 36 µs |",
    ] {
        assert_eq!(reported(text, record).len(), 1, "{text}");
    }
}
