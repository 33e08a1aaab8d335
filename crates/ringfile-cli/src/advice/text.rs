//! Advice as text for a terminal, and as the library's configuration file.

use super::measured::Measured;
use crate::model::Results;
use crate::model::advice::{Advice, Setting, Sure, Value};
use crate::numbers::per_cent;
use crate::report::table::Table;
use crate::terminal;

/// Columns of a comment in the configuration file.
const COMMENT_WIDTH: usize = 100;

/// Returns a line with all measured settings, a table of them, and the reasons if they are to be explained, wrapped to `width`
/// columns if that is given; empty without advice.
pub fn block(results: &Results, width: Option<usize>, explains: bool) -> String {
    if results.advice.is_empty() {
        return String::new();
    }
    let mut lines = vec![headline(results), header(results)];
    lines.extend(results.behind.iter().map(|behind| format!("- {}", behind.note)));
    lines.extend(unquiet(results).map(|warning| format!("- {warning}")));
    let mut parts = vec![wrapped(lines, width), table(&results.advice).text_of_width(width)];
    if explains {
        let reason = |advice: &Advice| format!("- {} = {}: {}", advice.name, advice.value, advice.because);
        parts.push(wrapped(results.advice.iter().map(reason).collect(), width));
    }
    parts.join("\n")
}

fn wrapped(lines: Vec<String>, width: Option<usize>) -> String {
    // A no-break space keeps a number with its unit.
    let lines = lines.into_iter().map(|line| line.replace(" %", "\u{a0}%"));
    terminal::lines(lines, width).replace('\u{a0}', " ")
}

/// Returns the advice as a table.
pub fn table(advice: &[Advice]) -> Table {
    let table = Table::default().text("setting").text("here").end_keys();
    let mut table = table.text("instead of").text("gain").number("noise").text("sure");
    for Advice { name, value, sure, over, .. } in advice {
        let none = || "-".to_string();
        let (instead_of, gain, noise) = match over {
            Some(over) => (over.instead_of.clone(), over.gain.clone(), over.noise.clone()),
            None => (none(), none(), None),
        };
        let sure = sure.to_string();
        table.row(vec![
            name.to_string(),
            value.to_string(),
            instead_of,
            gain,
            noise.unwrap_or_else(none),
            sure,
        ]);
    }
    table
}

/// Returns the settings that rest on figures in one line, those that make a difference first. The others follow from
/// them.
fn headline(results: &Results) -> String {
    use Setting::{BlockSize, Buffers, Capacity, Depth, Direct, HugePages, Route, Workers};
    let is_measured = |advice: &&Advice| match advice.name {
        Direct | Route | Buffers | Depth | BlockSize => true,
        Capacity | HugePages | Workers => false,
    };
    let (equal, better): (Vec<&Advice>, Vec<&Advice>) =
        results.advice.iter().filter(is_measured).partition(|advice| advice.sure == Sure::InsideNoise);
    let list = |beginning: &str, advice: &[&Advice]| {
        let settings: Vec<String> =
            advice.iter().map(|Advice { name, value, .. }| format!("{name} = {value}")).collect();
        (!advice.is_empty()).then(|| format!("{beginning}: {}", settings.join(", ")))
    };
    let lists = [list("Best here", &better), list("Without a difference beyond the noise", &equal)];
    lists.into_iter().flatten().collect::<Vec<_>>().join(". ")
}

fn header(results: &Results) -> String {
    let incomplete = if results.interrupted { ", from the runs before it was interrupted" } else { "" };
    format!("Advice for {} on {}{incomplete}:", results.params.file, results.machine.filesystem)
}

/// The median A/A difference above which the machine counts as busy.
const QUIET: f64 = 0.15;

/// Returns a warning if the figures show that the machine did other work during the measurement.
pub fn unquiet(results: &Results) -> Option<String> {
    let noise = Measured::of(results).usual_noise().filter(|&noise| noise > QUIET)?;
    Some(format!(
        "the machine was busy: repeated runs usually differed by {}. Measure again when it is quiet, because this noise \
         hides differences",
        per_cent(noise)
    ))
}

/// Returns the configuration file, with the deciding figure above each key.
pub fn config(results: &Results) -> String {
    let plain: String = results.advice.iter().map(|Advice { name, value, .. }| line(*name, value)).collect();
    // The library formats its own settings; those that it would refuse are written as they are.
    let settings = ringfile::Config::parse(&plain).map(|config| config.to_toml_with(|key| why(results, key)));
    let command = format!("Measured with: {}", results.command);
    let warning = unquiet(results).map(|warning| comment(&warning)).unwrap_or_default();
    format!(
        "{}{}{warning}\n{}",
        comment(header(results).trim_end_matches(':')),
        comment(&command),
        settings.unwrap_or(plain)
    )
}

fn line(name: Setting, value: &Value) -> String {
    match value {
        Value::Text(word) => format!("{name} = \"{word}\"\n"),
        other => format!("{name} = {other}\n"),
    }
}

/// Returns the reason for the value of a key.
fn why(results: &Results, key: &str) -> Option<String> {
    let advice = results.advice.iter().find(|advice| advice.name.to_string() == key)?;
    Some(terminal::wrap(&advice.because, COMMENT_WIDTH, ""))
}

/// Returns a comment of several lines. A file's name may contain anything, even line breaks.
fn comment(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("# {}\n", terminal::wrap(&plain, COMMENT_WIDTH, "# "))
}
