//! Advice as a person reads it on the terminal, and as the library's configuration file.

use super::measured::Measured;
use crate::model::Results;
use crate::model::advice::{Advice, Setting, Value};
use crate::numbers::per_cent;
use crate::terminal;

/// Columns of a comment in the configuration file.
const COMMENT_WIDTH: usize = 100;

/// Returns one item for each piece of advice, wrapped to this many columns if a number is given; empty without advice.
pub fn block(results: &Results, width: Option<usize>) -> String {
    if results.advice.is_empty() {
        return String::new();
    }
    let mut lines = vec![header(results)];
    lines.extend(unquiet(results).map(|warning| format!("- {warning}")));
    for Advice { name, value, because, .. } in &results.advice {
        lines.push(format!("- {name} = {value}: {because}"));
    }
    let wrapped = lines.iter().map(|line| match width {
        // A no-break space keeps a number with its unit.
        Some(width) => terminal::wrap(&line.replace(" %", "\u{a0}%"), width, "  ").replace('\u{a0}', " "),
        None => line.clone(),
    });
    wrapped.fold(String::new(), |text, line| text + &line + "\n")
}

fn header(results: &Results) -> String {
    let incomplete =
        if results.interrupted { ", from what was measured before it was interrupted" } else { "" };
    format!("Advice for {} on {}{incomplete}:", results.params.file, results.machine.filesystem)
}

/// The median A/A difference above which the machine counts as busy.
const QUIET: f64 = 0.15;

/// Says that the machine did other work during the measurement, if the figures show it.
fn unquiet(results: &Results) -> Option<String> {
    let noise = Measured::of(results).usual_noise().filter(|&noise| noise > QUIET)?;
    Some(format!(
        "the machine was not quiet: a run usually differed from itself by {}; measure again when it is, for much of this \
         can't be told so",
        per_cent(noise)
    ))
}

/// Returns the configuration file, with the figure that decided above each key.
pub fn config(results: &Results) -> String {
    let plain: String = results.advice.iter().map(|Advice { name, value, .. }| line(*name, value)).collect();
    // The library reads and writes its own settings; what it would not take is shown as it is.
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

/// Returns the figure for a key, and how sure it is.
fn why(results: &Results, key: &str) -> Option<String> {
    let advice = results.advice.iter().find(|advice| advice.name.key() == key)?;
    Some(terminal::wrap(&advice.because, COMMENT_WIDTH, ""))
}

/// Returns a comment of several lines; a file's name may hold anything, also line ends.
fn comment(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("# {}\n", terminal::wrap(&plain, COMMENT_WIDTH, "# "))
}
