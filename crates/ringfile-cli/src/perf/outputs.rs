//! The outputs of a command: the terminal, and the files of `--json` and `--report`.
//!
//! Invariants: both files are checked before anything is measured; neither is the other one or the measured file; if
//! one cannot be written, the other still is.

use std::path::{Path, PathBuf};

use crate::advice::text;
use crate::cli::OutputArgs;
use crate::error::Failure;
use crate::html;
use crate::model::{Kind, Results};
use crate::report::output::{self, OutputFile};
use crate::report::verdict;
use crate::{report, terminal, values};

/// Prints and saves what was measured, whether or not the command was interrupted.
pub fn conclude(
    ended: Result<(), Failure>,
    args: &OutputArgs,
    outputs: &Outputs,
    results: &Results,
) -> Result<(), Failure> {
    let printed = print(args, results);
    let saved = outputs.write(results);
    output::tell(outputs.files().filter(|_| !args.quiet));
    ended.and(printed).and(saved)
}

/// Prints the verdict or the advice, and the tables and notes if they are asked for.
fn print(output: &OutputArgs, results: &Results) -> Result<(), Failure> {
    if results.runs.is_empty() {
        return Ok(());
    }
    let width = terminal::width();
    let mut parts =
        vec![terminal::lines(verdict::lines(results), width), text::block(results, width, output.explain)];
    if output.tables || results.kind == Some(Kind::Mixed) {
        parts.extend(report::tables(results).iter().map(|table| table.text_of_width(width)));
        parts.extend((!output.quiet).then(|| terminal::notes(&results.notes, width)));
    } else if !output.quiet {
        let warnings: Vec<String> = results.notes.iter().filter(|note| is_warning(note)).cloned().collect();
        parts.push(terminal::notes(&warnings, width));
        parts.push(terminal::lines([more(output, results)], width));
    }
    parts.retain(|part| !part.is_empty());
    output::print(&parts.join("\n"))
}

/// Returns whether a note says that the figures are not what was asked for.
fn is_warning(note: &str) -> bool {
    ["auto is behind", "auto may be behind", "the rate was NOT carried"]
        .iter()
        .any(|begin| note.starts_with(begin))
}

/// Returns where the rest of the results is.
fn more(output: &OutputArgs, results: &Results) -> String {
    let page = match output.report.as_deref() {
        Some(page) => format!("{} draws them", values::shell_word(page.as_os_str())),
        None => "--report FILE.html draws them".into(),
    };
    let reasons = if results.advice.is_empty() || output.explain { "" } else { " --explain: the reasons." };
    format!("--tables: all figures, and what they mean; {page}.{reasons}")
}

/// Returns the command line, quoted for a shell.
pub fn command_line() -> String {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| values::shell_word(&argument)).collect();
    format!("ringfile {}", arguments.join(" "))
}

/// The output files.
#[derive(Debug)]
pub struct Outputs {
    /// The file for the JSON.
    pub json: Option<OutputFile>,
    report: Option<OutputFile>,
}

impl Outputs {
    /// Checks that the output files can be written, and are not the measured file.
    pub fn check(output: &OutputArgs, measured: Option<&Path>) -> Result<Outputs, Failure> {
        let named = |path: &Option<PathBuf>| {
            path.as_deref().map(|path| OutputFile::check(path, output.force)).transpose()
        };
        let outputs = Outputs { json: named(&output.json)?, report: named(&output.report)? };
        if let Some(measured) = measured {
            outputs.files().try_for_each(|file| file.check_apart_from(measured))?;
        }
        if let (Some(json), Some(report)) = (&outputs.json, &outputs.report) {
            report.check_apart(json.path(), "also the file for --json: name another for --report")?;
        }
        Ok(outputs)
    }

    /// Checks that another output file is not one of these.
    pub fn check_apart(&self, other: &OutputFile, why: &str) -> Result<(), Failure> {
        self.files().try_for_each(|file| other.check_apart(file.path(), why))
    }

    fn files(&self) -> impl Iterator<Item = &OutputFile> {
        self.json.iter().chain(&self.report)
    }

    /// Writes the results to the files.
    pub fn write(&self, results: &Results) -> Result<(), Failure> {
        let json = self.json.as_ref().map_or(Ok(()), |file| file.write_json(results));
        let report = self.report.as_ref().map_or(Ok(()), |file| file.write_text(&html::write(results)));
        json.and(report)
    }
}
