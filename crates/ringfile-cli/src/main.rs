//! The `ringfile` command; all of it is in the library beside this file.

use std::process::ExitCode;

fn main() -> ExitCode {
    ringfile_cli::run()
}
