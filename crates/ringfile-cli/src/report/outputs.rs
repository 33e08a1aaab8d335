//! Where results go beside the terminal: `--json` and `--report`.
//!
//! What always holds: both are checked before anything is measured, neither takes the place of the other or of what is
//! measured, and a failure to write one does not keep the other from being written.

use std::path::Path;

use super::output::OutputFile;
use super::results::Results;
use crate::cli::OutputArgs;
use crate::error::Failure;
use crate::html;

/// The files that were asked for.
#[derive(Debug)]
pub struct Outputs {
    json: Option<OutputFile>,
    report: Option<OutputFile>,
}

impl Outputs {
    /// Checks that they can be written, and are not the file that is measured.
    pub fn check(output: &OutputArgs, measured: Option<&Path>) -> Result<Outputs, Failure> {
        let check = |path: &Option<_>| {
            let path: Option<&std::path::PathBuf> = path.as_ref();
            let file = path.map(|path| OutputFile::check(path, output.force)).transpose()?;
            if let (Some(file), Some(measured)) = (&file, measured) {
                file.check_apart_from(measured)?;
            }
            Ok(file)
        };
        let outputs = Outputs { json: check(&output.json)?, report: check(&output.report)? };
        if let (Some(json), Some(report)) = (&outputs.json, &outputs.report) {
            report.check_apart(json.path(), "where --json goes: name another for --report")?;
        }
        Ok(outputs)
    }

    /// Writes what was measured.
    pub fn write(&self, results: &Results) -> Result<(), Failure> {
        let json = self.json.as_ref().map_or(Ok(()), |file| file.write_json(results));
        let report = self.report.as_ref().map_or(Ok(()), |file| file.write_text(&html::write(results)));
        json.and(report)
    }
}
