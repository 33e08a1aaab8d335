//! What the engines share before a run.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::{Failure, errno_text};
use crate::interrupt::Interrupt;

/// What an engine needs in addition to the job.
pub struct Bench<'a> {
    /// The path that leads to the file.
    pub path: &'a Path,
    /// Whether it is the character device of an NVMe namespace.
    pub namespace: bool,
    /// Ctrl-C.
    pub interrupt: &'a Interrupt,
    /// fio, if it is requested and installed.
    pub fio: Option<&'a Fio>,
}

/// An installed fio that works.
#[derive(Debug)]
pub struct Fio {
    /// The version that fio reports.
    pub version: String,
}

impl Fio {
    /// Looks for fio; `Ok(None)` if it is not installed.
    pub fn find() -> Result<Option<Fio>, Failure> {
        match Command::new("fio").arg("--version").stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => {
                let said = String::from_utf8_lossy(&output.stdout);
                let version = said.trim().lines().next().unwrap_or("fio of no version").trim().to_string();
                Ok(Some(Fio { version }))
            }
            Ok(output) => Err(Failure::Io(format!("fio --version failed: {}", output.status))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::Io(format!("fio can't be run: {}", errno_text(&error)))),
        }
    }
}
