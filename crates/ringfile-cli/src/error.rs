//! How a command fails: one line for the user, and the exit code.
//!
//! Exit codes: 2 for input that cannot be carried out (found before any I/O), 1 for I/O that failed while measuring,
//! 130 after an interrupt. Every message is one line and says what to do, or what failed where.

use std::fmt;
use std::io;
use std::path::Path;

/// Why a command did not complete.
#[derive(Debug, Clone)]
pub enum Failure {
    /// The input cannot be carried out as given; nothing was measured.
    Usage(String),
    /// I/O failed while the command ran.
    Io(String),
    /// SIGINT or SIGTERM.
    Interrupted,
}

impl Failure {
    /// Returns the exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Io(_) => 1,
            Failure::Interrupted => 130,
        }
    }

    /// Returns the failure with another path in its text.
    pub fn naming(self, path: &Path, instead: &Path) -> Failure {
        let named = |text: String| text.replace(&*path.to_string_lossy(), &instead.to_string_lossy());
        match self {
            Failure::Usage(what) => Failure::Usage(named(what)),
            Failure::Io(what) => Failure::Io(named(what)),
            Failure::Interrupted => Failure::Interrupted,
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

/// Returns a [`Failure::Usage`].
pub fn usage<T>(what: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Usage(what.into()))
}

/// Refuses a file or folder: returns a [`Failure::Usage`] that begins with its path.
pub fn refuse<T>(path: &Path, why: impl fmt::Display) -> Result<T, Failure> {
    usage(format!("{} {why}", path.display()))
}

/// Returns the text of an error with its errno, worded the same everywhere.
pub fn errno_text(error: &io::Error) -> String {
    worded(error.to_string(), error.raw_os_error())
}

fn worded(text: String, errno: Option<i32>) -> String {
    let text = text.replace("(os error ", "(errno ");
    if errno == Some(libc::EMFILE) && !text.contains("ulimit -n") {
        text + ": raise `ulimit -n`"
    } else {
        text
    }
}

/// Returns a text as one line without control characters: file names and other programs' output may contain any.
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

/// Returns the failure of an operation at an offset: what was done, where, and the errno.
pub fn io_at(what: &str, path: &Path, offset: u64, error: &io::Error) -> Failure {
    Failure::Io(format!("{what} at offset {offset} of {} failed: {}", path.display(), errno_text(error)))
}

/// Returns the failure of an operation on a whole file.
pub fn io_on(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::Io(format!("{what} {}: {}", path.display(), errno_text(error)))
}

/// Returns the error for a file that the user named, with advice.
pub fn cant(what: &str, path: &Path, error: &io::Error, advice: &str) -> Failure {
    Failure::Usage(format!("can't {what} {}: {}; {advice}", path.display(), errno_text(error)))
}

/// Returns the failure of a read or write that moved fewer bytes than requested; inside the file that is an error.
pub fn short(what: &str, path: &Path, offset: u64, moved: usize, asked: usize) -> Failure {
    Failure::Io(format!(
        "{what} at offset {offset} of {} moved {moved} of {asked} bytes: was the file truncated meanwhile?",
        path.display()
    ))
}

/// Returns the failure of a block whose content is not what was written to it.
pub fn mismatch(path: &Path, offset: u64, wrong: &str) -> Failure {
    let path = path.display();
    Failure::Io(format!("the block at offset {offset} of {path} is not what was written: {wrong}"))
}

/// Converts an error of the library, whose text already names file, offset and errno.
pub fn library(error: &ringfile::Error) -> Failure {
    Failure::Io(worded(error.to_string(), error.errno()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_open_files_come_with_advice() {
        let error = io_on("can't open", Path::new("x"), &io::Error::from_raw_os_error(libc::EMFILE));
        assert!(error.to_string().contains("ulimit -n"), "{error}");
    }

    #[test]
    fn a_failure_is_one_line_whatever_a_file_is_called() {
        let failure = io_on("can't open", Path::new("a\nb\u{1b}[2Jc·ö"), &io::Error::from_raw_os_error(2));
        assert_eq!(failure.to_string(), "can't open a\\nb\\u{1b}[2Jc·ö: No such file or directory (errno 2)");
    }
}
