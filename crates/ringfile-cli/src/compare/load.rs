//! Reads saved results and names them.

use std::path::{Path, PathBuf};

use crate::error::{Failure, refuse};
use crate::model::Results;
use crate::report::saved;

/// Results, and the file that they come from.
#[derive(Debug)]
pub struct Saved {
    /// The file.
    pub path: PathBuf,
    /// A short name, from the file's name.
    pub name: String,
    /// Its content.
    pub results: Results,
}

/// Reads a file that has runs in it.
pub fn read(path: &Path) -> Result<Saved, Failure> {
    named(path, saved::read(path)?)
}

/// Reads the text of such a file.
pub fn parse(json: &[u8]) -> Result<Saved, Failure> {
    let path = Path::new("results.json");
    named(path, saved::parse(json).or_else(|why| refuse(path, why))?)
}

fn named(path: &Path, results: Results) -> Result<Saved, Failure> {
    if results.runs.is_empty() {
        return refuse(path, "has no runs, since it was interrupted before the first: measure again");
    }
    let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(Saved { path: path.to_path_buf(), name, results })
}
