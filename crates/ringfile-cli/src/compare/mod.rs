//! `ringfile report`: shows saved results as a page, and compares several.
//!
//! Invariants: all errors in the arguments are reported before anything is written, and the results that are read are
//! never written to.

pub mod differences;
pub mod facts;
pub mod load;
pub mod text;

use crate::cli::ReportArgs;
use crate::error::{Failure, usage};
use crate::html;
use crate::report::output::{self, OutputFile};
use crate::terminal;

use differences::SessionComparison;
use load::Saved;

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let out = args.out.as_deref().map(|path| OutputFile::check(path, args.force)).transpose()?;
    for (out, read) in out.iter().flat_map(|out| args.results.iter().map(move |read| (out, read))) {
        out.check_apart(read, "one of the results that are read: name another to write to")?;
    }
    let all = args.results.iter().map(|path| load::read(path)).collect::<Result<Vec<Saved>, Failure>>()?;
    let (first, others) = all.split_first().ok_or_else(|| Failure::Usage("name a JSON".into()))?;
    match &out {
        None if others.is_empty() => {
            usage("nothing to do with one JSON: add --out FILE.html, or another JSON to compare")
        }
        None => compare(first, others),
        Some(_) if !others.is_empty() => usage("--out shows one JSON: leave the others out, or leave it out"),
        Some(out) => {
            out.write_text(&html::write(&first.results))?;
            output::tell([out]);
            Ok(())
        }
    }
}

fn compare(first: &Saved, others: &[Saved]) -> Result<(), Failure> {
    let compared = |other| Ok(text::of(&SessionComparison::of(first, other)?, terminal::width()));
    output::print(&others.iter().map(compared).collect::<Result<Vec<String>, Failure>>()?.join("\n"))
}

/// Returns what the command shows of a JSON: its page, and how it compares with itself.
///
/// # Errors
/// Why it holds no results, in one line.
pub fn shown(json: &[u8]) -> Result<String, String> {
    let saved = || load::parse(json).map_err(|failure| failure.to_string());
    let (first, other) = (saved()?, saved()?);
    let comparison = SessionComparison::of(&first, &other).map_err(|failure| failure.to_string())?;
    Ok(html::write(&first.results) + &text::of(&comparison, Some(100)))
}
