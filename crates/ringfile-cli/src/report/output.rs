//! Files that a command writes. An existing file is replaced only with `--force`, and a file is written whole or not at
//! all.

use std::cell::Cell;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tempfile::NamedTempFile;

use crate::error::{Failure, errno_text, io_on, one_line, refuse, usage};

/// An output file that was checked before the measurement.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    replace: bool,
    /// Whether this command wrote the file that is there now.
    written: Cell<bool>,
}

impl OutputFile {
    /// Checks that the file may and can be written, before anything is measured.
    pub fn check(path: &Path, replace: bool) -> Result<OutputFile, Failure> {
        if path == Path::new("-") {
            return refuse(path, "is not taken for standard output, where the tables go: name a file");
        }
        if path.is_dir() {
            return refuse(path, "is a folder: name a file");
        }
        if let Ok(metadata) = path.symlink_metadata() {
            // The rename that puts the file in place would replace a device node or link, such as /dev/null as root.
            if !metadata.is_file() {
                return refuse(path, "is a device, pipe or link, which is never replaced: name a file");
            }
            if !replace {
                return refuse(path, "exists already: add --force to replace it, or name another");
            }
        }
        let output = OutputFile { path: path.to_path_buf(), replace, written: Cell::new(false) };
        check_folder(output.folder(), "another")?;
        let folder = output.folder().display();
        // Dozens of runs take as much as this, so a full disk is reported before the measurement.
        let written = output.temporary().and_then(|mut file| file.as_file_mut().write_all(&[b' '; 64 << 10]));
        match written {
            Ok(()) => Ok(output),
            Err(error) if error.kind() == io::ErrorKind::StorageFull => usage(format!(
                "the folder {folder} has no room for results: make room there, or name another"
            )),
            Err(error) => {
                usage(format!("can't write to the folder {folder}: {}; name another", error.kind()))
            }
        }
    }

    /// Writes a value as JSON.
    pub fn write_json(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(value).map_err(io::Error::from);
        let text = text.map_err(|error| io_on("can't write", &self.path, &error))?;
        self.write_text(&(text + "\n"))
    }

    /// Writes a text, replacing one that was written before.
    pub fn write_text(&self, text: &str) -> Result<(), Failure> {
        let written = self.temporary().and_then(|mut file| {
            // Through the plain file: its errors do not name the temporary file, which the user never sees.
            file.as_file_mut().write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            let replace = self.replace || self.written.get();
            let placed = if replace { file.persist(&self.path) } else { file.persist_noclobber(&self.path) };
            self.written.set(placed.is_ok());
            placed.map(drop).map_err(io::Error::from)
        });
        written.map_err(|error| io_on("can't write", &self.path, &error))
    }

    /// Refuses a path that leads to the file that is measured, whether or not either exists yet.
    pub fn check_apart_from(&self, other: &Path) -> Result<(), Failure> {
        self.check_apart(other, "the file that is measured: name another for the results")
    }

    /// Refuses a path that leads to another file of the command; `what` describes that file.
    pub fn check_apart(&self, other: &Path, what: &str) -> Result<(), Failure> {
        match (place(&self.path), place(other)) {
            (Some(own), Some(other)) if own == other => refuse(&self.path, format!("is {what}")),
            _ => Ok(()),
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether this command wrote the file that is there now.
    pub fn is_written(&self) -> bool {
        self.written.get()
    }

    fn folder(&self) -> &Path {
        folder_of(&self.path)
    }

    /// Creates a temporary file in the same folder, so that a rename puts it in place in one step.
    fn temporary(&self) -> io::Result<NamedTempFile> {
        // The umask applies, as to any file.
        let permissions = std::fs::Permissions::from_mode(0o666);
        tempfile::Builder::new().prefix(".ringfile-").permissions(permissions).tempfile_in(self.folder())
    }
}

/// Names those of the files that were written, on standard error: standard output may go to another program.
pub fn tell<'a>(files: impl IntoIterator<Item = &'a OutputFile>) {
    for file in files.into_iter().filter(|file| file.is_written()) {
        // If standard error is closed, nobody reads it.
        let _ = writeln!(io::stderr(), "wrote {}", one_line(&file.path.display().to_string()));
    }
}

/// Returns the folder that a file of this path is in.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Refuses a folder that does not exist; `another` is what the user may name instead.
pub fn check_folder(folder: &Path, another: &str) -> Result<(), Failure> {
    if folder.is_dir() {
        return Ok(());
    }
    let what = if folder.exists() { "is not a folder: name" } else { "does not exist: create it, or name" };
    refuse(folder, format!("{what} {another}"))
}

/// Returns where a path leads, or will lead once there is a file.
fn place(path: &Path) -> Option<PathBuf> {
    let yet_to_be = || Some(folder_of(path).canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(yet_to_be)
}

/// Prints to standard output. A closed pipe is not an error.
pub fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Io(format!("can't write to standard output: {}", errno_text(&error))))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_folder() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let refused = check_folder(file.path(), "another").expect_err("no folder").to_string();
        assert!(refused.contains("is not a folder"), "{refused}");
    }

    #[test]
    fn an_existing_file_stays_without_force() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("out.json");
        std::fs::write(&path, "mine").expect("write");
        assert!(matches!(OutputFile::check(&path, false), Err(Failure::Usage(_))));
        let output = OutputFile::check(&path, true).expect("replaceable");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "mine");
        output.write_json(&[1, 2]).expect("written");
        assert_eq!(
            std::fs::read_to_string(&path).expect("read").split_whitespace().collect::<String>(),
            "[1,2]"
        );
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 1, "a temporary file is left");
    }

    #[test]
    fn only_files_are_replaced() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("file");
        let link = folder.path().join("link");
        let pipe = folder.path().join("pipe");
        let nowhere = folder.path().join("nowhere");
        std::fs::write(&file, "mine").expect("write");
        std::os::unix::fs::symlink(&file, &link).expect("link");
        std::os::unix::fs::symlink(folder.path().join("missing"), &nowhere).expect("link");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("pipe");
        for path in [&link, &pipe, &nowhere, Path::new("/dev/null")] {
            for replace in [true, false] {
                let refused = OutputFile::check(path, replace);
                assert!(matches!(refused, Err(Failure::Usage(_))), "{}", path.display());
            }
        }
        assert_eq!(std::fs::read_to_string(&link).expect("read"), "mine");
    }

    #[test]
    fn a_file_that_appeared_meanwhile_stays() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("out.json");
        let output = OutputFile::check(&path, false).expect("writable");
        std::fs::write(&path, "mine").expect("write");
        assert!(matches!(output.write_json(&1), Err(Failure::Io(_))));
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "mine");
        std::fs::remove_file(&path).expect("removed");
        for result in [1, 2] {
            output.write_json(&result).expect("what was written here is replaced");
        }
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "2\n");
    }
}
