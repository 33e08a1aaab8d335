//! `ringfile report`: shows saved results as a page, and compares several.
//!
//! Invariants: all errors in the arguments are reported before anything is written, and the results that are read are
//! never written to.

pub mod differences;
pub mod facts;
pub mod load;
pub mod text;

use crate::cli::ReportArgs;
use crate::error::{Failure, refuse, usage};
use crate::html::{self, standalone};
use crate::report::output::{self, OutputFile};
use crate::terminal;
use crate::values;

use differences::SessionComparison;
use load::Saved;

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let out = check(args, args.out.as_ref())?;
    let svg = check(args, args.svg.as_ref())?;
    if let (Some(out), Some(svg)) = (&out, &svg) {
        svg.check_apart(out.path(), "where --out goes: name another for --svg")?;
    }
    let all = args.results.iter().map(|path| load::read(path)).collect::<Result<Vec<Saved>, Failure>>()?;
    let (first, others) = all.split_first().ok_or_else(|| Failure::Usage("name a JSON".into()))?;
    if others.is_empty() && out.is_none() && svg.is_none() {
        return usage(
            "nothing to do with one JSON: add --out FILE.html, --svg FILE.svg, or another JSON to compare",
        );
    }
    if !others.is_empty() && svg.is_some() {
        return usage("--svg draws one JSON: leave the others out, or use --out");
    }
    let compared = others
        .iter()
        .map(|other| SessionComparison::of(first, other))
        .collect::<Result<Vec<SessionComparison<'_>>, _>>()?;
    if let Some(svg) = &svg {
        let Some(drawing) = standalone::svg(&first.results, args.plot) else {
            let plot = values::name(&args.plot);
            let why = format!("has nothing to plot for --plot {plot}: choose another plot");
            return refuse(&first.path, why);
        };
        svg.write_text(&drawing)?;
    }
    let page =
        || if compared.is_empty() { html::write(&first.results) } else { html::compare::write(&compared) };
    let written = out.as_ref().map_or(Ok(()), |out| out.write_text(&page()));
    let texts: Vec<String> =
        compared.iter().map(|comparison| text::of(comparison, terminal::width())).collect();
    let printed = output::print(&texts.join("\n"));
    output::tell(out.iter().chain(&svg));
    printed.and(written)
}

/// Returns what the command shows of a JSON: its page, and how it compares with itself.
///
/// # Errors
/// Why it holds no results, in one line.
pub fn shown(json: &[u8]) -> Result<String, String> {
    let saved = || load::parse(json).map_err(|failure| failure.to_string());
    let (first, other) = (saved()?, saved()?);
    let comparison = SessionComparison::of(&first, &other).map_err(|failure| failure.to_string())?;
    Ok(html::write(&first.results) + &text::of(&comparison, Some(100)) + &html::compare::write(&[comparison]))
}

/// Checks that an output file is none of the files that are read.
fn check(args: &ReportArgs, path: Option<&std::path::PathBuf>) -> Result<Option<OutputFile>, Failure> {
    let file = path.map(|path| OutputFile::check(path, args.force)).transpose()?;
    for (file, read) in file.iter().flat_map(|file| args.results.iter().map(move |read| (file, read))) {
        file.check_apart(read, "one of the results that are read: name another to write to")?;
    }
    Ok(file)
}
