//! How a command fails: the one line the user gets, and the exit code.
//!
//! Exit codes: 2 for input that can't be carried out (found before any I/O), 1 for I/O that failed while
//! measuring, 130 when interrupted. Every message is one line and says what to do, or what failed where.

use std::fmt;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Why a command did not do all it was asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Failure {
    /// The input can't be carried out as given; nothing was measured.
    Usage(String),
    /// I/O failed while the command ran.
    Io(String),
    /// SIGINT or SIGTERM.
    Interrupted,
}

impl Failure {
    /// What the process exits with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Io(_) => 1,
            Failure::Interrupted => 130,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(what) | Failure::Io(what) => f.write_str(&one_line(what)),
            Failure::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// Shorthand for input that can't be carried out.
pub fn usage<T>(what: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Usage(what.into()))
}

/// An error text with the errno in it, in one wording everywhere.
pub fn errno_text(error: &io::Error) -> String {
    error.to_string().replace("(os error ", "(errno ")
}

/// A text as one line that moves no cursor: names of files, and what other programs say, may hold any character.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

/// An operation on a place in a file that failed: what, where, errno.
pub fn io_at(what: &str, path: &Path, offset: u64, error: &io::Error) -> Failure {
    Failure::Io(format!("{what} at offset {offset} of {} failed: {}", path.display(), errno_text(error)))
}

/// An operation on a whole file that failed.
pub fn io_on(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::Io(format!("{what} {}: {}", path.display(), errno_text(error)))
}

/// The same of a file that the user named, with what to do about it.
pub fn cant(what: &str, path: &Path, error: &io::Error, advice: &str) -> Failure {
    Failure::Usage(format!("can't {what} {}: {}; {advice}", path.display(), errno_text(error)))
}

/// A read or write that moved fewer bytes than were asked, which inside the file is an error.
pub fn short(what: &str, path: &Path, offset: u64, moved: usize, asked: usize) -> Failure {
    Failure::Io(format!(
        "{what} at offset {offset} of {} moved {moved} of {asked} bytes: did the file get shorter meanwhile?",
        path.display()
    ))
}

/// A block that does not hold what was written to it.
pub fn mismatch(path: &Path, offset: u64, wrong: &str) -> Failure {
    Failure::Io(format!(
        "the block at offset {offset} of {} is not what was written: {wrong}",
        path.display()
    ))
}

/// An error of the library, which names file, offset and errno itself.
pub fn library(error: &ringfile::Error) -> Failure {
    Failure::Io(error.to_string().replace("(os error ", "(errno "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_whatever_a_file_is_called() {
        let failure = io_on("can't open", Path::new("a\nb\u{1b}[2Jc·ö"), &io::Error::from_raw_os_error(2));
        assert_eq!(failure.to_string(), "can't open a\\nb\\u{1b}[2Jc·ö: No such file or directory (errno 2)");
    }
}
