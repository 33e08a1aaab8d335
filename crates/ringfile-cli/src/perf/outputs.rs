//! The outputs of a command: the terminal, and the files of `--json` and `--report`.
//!
//! Invariants: both files are checked before anything is measured; neither is the other one or the measured file; if
//! one cannot be written, the other still is.

use std::path::{Path, PathBuf};

use crate::advice::text;
use crate::cli::OutputArgs;
use crate::error::Failure;
use crate::html;
use crate::model::Results;
use crate::report::output::{self, OutputFile};
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

/// Prints the advice and, if they are asked for or there is no advice, the tables and the notes.
fn print(output: &OutputArgs, results: &Results) -> Result<(), Failure> {
    if results.runs.is_empty() {
        return Ok(());
    }
    let width = terminal::width();
    let mut parts = vec![text::block(results, width)];
    if output.tables || results.advice.is_empty() {
        parts.extend(report::tables(results).iter().map(|table| table.text_of_width(width)));
        parts.extend((!output.quiet).then(|| terminal::notes(&results.notes, width)));
    } else if !output.quiet {
        parts.push(terminal::lines([more(output.report.as_deref())], width));
    }
    parts.retain(|part| !part.is_empty());
    output::print(&parts.join("\n"))
}

/// Returns where the rest of the results is.
fn more(report: Option<&Path>) -> String {
    let page = match report {
        Some(page) => format!("{} draws them", values::shell_word(page.as_os_str())),
        None => "--report FILE.html draws them".into(),
    };
    format!("All figures: --tables prints them, and says what they mean; {page}.")
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
    /// Checks that the output files can be written, and are not the measured file. The results of a resumed measurement
    /// replace the file that it resumes.
    pub fn check(
        output: &OutputArgs,
        resumed: Option<&Path>,
        measured: Option<&Path>,
    ) -> Result<Outputs, Failure> {
        let named = |path: &Option<PathBuf>| {
            path.as_deref().map(|path| OutputFile::check(path, output.force)).transpose()
        };
        let json = match resumed {
            Some(resumed) => Some(OutputFile::check(resumed, true)?),
            None => named(&output.json)?,
        };
        let report = named(&output.report)?;
        let outputs = Outputs { json, report };
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
