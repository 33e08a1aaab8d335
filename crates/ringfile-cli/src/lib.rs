//! The `ringfile` command: measures on this machine what each disk I/O choice is worth.
//!
//! This file parses the command line, runs the command, and reports an error as one line on standard error and an exit
//! code.

mod advice;
mod cli;
mod compare;
mod content;
mod doctor;
mod engine;
mod error;
mod events;
mod html;
mod interrupt;
mod job;
mod latency;
mod machine;
mod memory;
mod memory_group;
mod model;
mod numbers;
mod pages;
mod perf;
mod progress;
mod report;
mod share;
mod shuffle;
#[cfg(test)]
#[path = "../../ringfile/tests/it/support/skip.rs"]
#[allow(dead_code, reason = "unit tests need a part of it")]
mod skip;
mod sys;
mod terminal;
mod testfile;
mod values;
mod verify;
mod whole;

/// What `benchmarks/` and `fuzz/` share with the command: hand-written rings, figures, tables, pages, and what the kernel
/// is asked about files. No interface for anybody else: it changes without notice.
#[doc(hidden)]
pub mod shared {
    pub use crate::compare::shown;
    pub use crate::engine::hand_ring::HandRing;
    pub use crate::memory::zeroed_at;
    pub use crate::memory_group::MemoryGroup;
    pub use crate::model::{Buffers, RouteOps, Spread};
    pub use crate::report::table::Table;
    pub use crate::sys::{advise_order, cached_fraction, children_cpu, drop_cache, own_usage};
    pub use crate::testfile::device::check_unused;
    pub use crate::values::{duration, size};
    pub use crate::whole::Whole;
}

use std::ffi::OsStr;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ErrorKind};

use cli::{Cli, Command, PerfCommand};
use error::Failure;

/// Runs the command with this process's arguments, and returns its exit code.
pub fn run() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() == Some(OsStr::new(doctor::LOOKER)) {
        return ended(doctor::run_looker(arguments));
    }
    let result = match Cli::try_parse() {
        Ok(Cli { command: Command::Report(args) }) => compare::run(&args),
        Ok(Cli { command: Command::Doctor(args) }) => doctor::run(&args),
        Ok(Cli { command: Command::Completions { shell } }) => pages::completions(shell),
        Ok(Cli { command: Command::Man(args) }) => pages::man(&args),
        Ok(Cli { command: Command::Perf(command) }) => match *command {
            PerfCommand::Buffers(args) => perf::buffers::run(&args),
            PerfCommand::File(args) => perf::file::run(&args),
            PerfCommand::Batch(args) => perf::batch::run(&args),
            PerfCommand::Multiread(args) => perf::batch::run_multiread(&args),
            PerfCommand::Pool(args) => perf::pool::run(&args),
        },
        // Without a command, the help is shown too.
        Err(error)
            if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =>
        {
            return help(&error);
        }
        Err(error) => Err(Failure::Usage(one_line(&harmless(error).to_string()))),
    };
    ended(result)
}

fn ended(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // If standard error is closed, only the exit code can report it.
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Prints the help or the version; a closed pipe is not an error.
fn help(asked: &clap::Error) -> ExitCode {
    match asked.print() {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "error: can't print: {}", error::errno_text(&error));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(asked.exit_code()).unwrap_or(2)),
    }
}

/// Removes the tip to use `--overwrite`, which destroys data: clap gives it for `--rw`, where a command only reads.
fn harmless(mut error: clap::Error) -> clap::Error {
    if error.get(ContextKind::SuggestedArg).is_some_and(|tip| tip.to_string() == "--overwrite") {
        error.remove(ContextKind::SuggestedArg);
    }
    error
}

/// Returns clap's message of several lines as one: the error and its tips, without the usage.
fn one_line(text: &str) -> String {
    let text = text.split("\nUsage:").next().unwrap_or(text);
    let text = text.split("\nFor more information").next().unwrap_or(text);
    let parts: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let line = parts.join(" ").replace(" tip: ", "; tip: ");
    format!("{}; see --help", line.trim_start_matches("error: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tip_stands_apart_from_the_error() {
        let error = Cli::try_parse_from(["ringfile", "perf", "file", "--sise", "1g"]).expect_err("wrong use");
        let line = one_line(&error.to_string());
        assert!(line.contains("'--sise' found; tip: ") && line.contains("'--size'"), "{line}");
        let error =
            Cli::try_parse_from(["ringfile", "perf", "batch", "--rw", "read"]).expect_err("wrong use");
        let line = one_line(&harmless(error).to_string());
        assert!(line.contains("'--rw' found") && !line.contains("--overwrite"), "{line}");
    }
}
