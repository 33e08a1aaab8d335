//! `ringfile doctor`: reports what makes I/O slow here, and what to do about it.
//!
//! Facts come first (features, process, file, device), one kind in each file of this folder. `findings` draws
//! conclusions from the facts alone; `text` shows both to people, and serde to programs.

mod device;
mod direct;
mod durable;
mod features;
mod file;
mod findings;
mod flags;
mod look;
mod place;
mod process;
mod report;
mod route;
mod subjects;
mod text;

pub use look::{LOOKER, run_looker};

use crate::cli::DoctorArgs;
use crate::error::Failure;
use crate::report::output;
use crate::{machine, terminal};

use report::{Report, SCHEMA};

/// Carries out the command.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let mut report = gather(args)?;
    report.findings = findings::of(&report);
    if !args.json {
        return output::print(&text::of(&report, terminal::width().unwrap_or(text::WIDTH)));
    }
    let json = serde_json::to_string_pretty(&report)
        .map_err(|error| Failure::Io(format!("can't write the result as JSON: {error}")))?;
    output::print(&format!("{json}\n"))
}

fn gather(args: &DoctorArgs) -> Result<Report, Failure> {
    let found = features::look(look::kills());
    let process = process::look(&found);
    let instead = match found.refused {
        // A filter that kills a program for io_uring may do so for AIO.
        _ if found.kills => Some("io_uring,aio"),
        Some(_) => Some("io_uring"),
        None => None,
    };
    let looked = look::look(&args.path, instead)?;
    Ok(Report {
        schema: SCHEMA,
        kernel: machine::kernel(),
        features: [found.features, looked.features].concat(),
        process,
        file: looked.file,
        device: looked.device,
        findings: Vec::new(),
    })
}
