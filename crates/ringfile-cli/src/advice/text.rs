//! Advice as a person reads it on the terminal, and as the library's configuration file.

use std::fmt::Write;

use super::{Advice, Setting, Value};
use crate::report::results::Results;
use crate::terminal;

/// Columns of a comment in the configuration file.
const COMMENT_WIDTH: usize = 100;

/// A block of one item for each piece of advice, for so many columns if any number is given; empty without advice.
pub fn block(results: &Results, width: Option<usize>) -> String {
    if results.advice.is_empty() {
        return String::new();
    }
    let mut lines = vec![header(results)];
    for Advice { name, value, because, .. } in &results.advice {
        lines.push(format!("- {name} = {value}: {because}"));
    }
    let wrapped = lines.iter().map(|line| match width {
        Some(width) => terminal::wrap(line, width, "  "),
        None => line.clone(),
    });
    wrapped.fold(String::new(), |text, line| text + &line + "\n")
}

fn header(results: &Results) -> String {
    let incomplete =
        if results.interrupted { ", from what was measured before it was interrupted" } else { "" };
    format!("Advice for {} on {}{incomplete}:", results.params.file, results.machine.filesystem)
}

/// The configuration file, with the figure that decided above each key.
pub fn config(results: &Results) -> String {
    let mut text = comment(header(results).trim_end_matches(':'));
    text += &comment(&format!("Measured with: {}", results.command));
    for Advice { name, value, because, sure } in &results.advice {
        let value = match value {
            Value::Text(word) => format!("\"{word}\""),
            other => other.to_string(),
        };
        let because = match name {
            Setting::Capacity | Setting::HugePages | Setting::Workers => because.clone(),
            _ => format!("{because} ({sure})"),
        };
        write!(text, "\n{}{name} = {value}\n", comment(&because))
            .expect("a String takes all that is written");
    }
    text
}

/// A comment of several lines; a file's name may hold anything, also line ends.
fn comment(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("# {}\n", terminal::wrap(&plain, COMMENT_WIDTH, "# "))
}
