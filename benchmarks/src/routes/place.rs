//! Where the measurements run: on a new file in a folder, or on a file or device that the user named.
//!
//! Invariants: a file that this module created is removed at the end, and nothing else is overwritten without permission.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use crate::data::{self, PAGE};
use crate::device;

/// NAME=PATH.
#[derive(Debug, Clone)]
pub struct Named {
    /// The name in the table.
    pub name: String,
    path: PathBuf,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() && !name.contains('/') => {
                Ok(Named { name: name.to_owned(), path: path.into() })
            }
            _ => Err(format!("{text:?} is not NAME=PATH")),
        }
    }
}

/// A filled file or device.
#[derive(Debug)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// How many of its bytes to use.
    pub size: u64,
    made: bool,
}

impl Place {
    /// Creates the file in a folder, or takes the named file or device, and fills it.
    pub fn make(named: &Named, size: u64, may_overwrite: bool) -> io::Result<Place> {
        let made = named.path.is_dir();
        let path = if made {
            named.path.join(format!("ringfile-routes-{}.bin", std::process::id()))
        } else {
            named.path.clone()
        };
        if !made && !may_overwrite {
            return Err(io::Error::other(format!(
                "{} would be overwritten: --fill allows it",
                path.display()
            )));
        }
        if !made && !path.exists() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{} does not exist", path.display()),
            ));
        }
        eprintln!("filling {}", path.display());
        let file = device::open_for_fill(&path)?;
        let mut place = Place { path, size, made };
        if !made {
            let length = device::length(&file)?;
            place.size = if length == 0 { size } else { size.min(length) };
        }
        place.size = place.size / PAGE as u64 * PAGE as u64;
        if place.size == 0 {
            return Err(io::Error::other("too small"));
        }
        data::fill(&file, place.size)?;
        Ok(place)
    }

    /// Opens the file for the work between measurements.
    pub fn open(&self) -> io::Result<File> {
        File::options().read(true).write(true).open(&self.path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.made {
            // If this fails, nothing can be done, and nothing depends on it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
