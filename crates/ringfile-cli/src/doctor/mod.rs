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
mod route;
mod text;

pub use look::{LOOKER, run_looker};

use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::error::Failure;
use crate::report::output;
use crate::{machine, terminal};

use device::Device;
use features::Feature;
use file::FileFacts;
use findings::Finding;
use process::Process;

/// The version of the JSON's form. New fields keep it; changes of existing ones raise it.
const SCHEMA: u32 = 1;

/// The whole report: the JSON's outermost object.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The form of this JSON: 1.
    pub schema: u32,
    /// The release of the running kernel.
    pub kernel: Option<String>,
    /// Parts of io_uring, and flags of reads and writes, each tried.
    pub features: Vec<Feature>,
    /// What this process may do.
    pub process: Process,
    /// PATH and its file system.
    pub file: FileFacts,
    /// The block device below; `null` if there is none, or it is unknown.
    pub device: Option<Device>,
    /// The conclusions, most costly first.
    pub findings: Vec<Finding>,
}

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
    let found = features::look();
    let process = process::look(&found);
    let instead = match found.refused {
        // A filter that kills a program for io_uring may do so for AIO.
        _ if found.kills => Some("workers"),
        Some(_) => Some("aio"),
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
