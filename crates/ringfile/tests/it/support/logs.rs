//! Where the tests of appenders keep their logs, and how they open them.

use std::path::Path;

use ringfile::{OpenOptions, Route};

use super::{Folder, skip};

/// Makes a folder in the build folder, whose file system supports direct I/O more often than the temporary folder's.
pub fn folder() -> Folder {
    Folder::inside(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

pub fn options(route: Route, direct: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).route(route).direct(direct);
    options
}

/// Returns buffered, and direct if that is available.
pub fn kinds(test: &str, folder: &Folder) -> Vec<bool> {
    let path = folder.file("probe", b"");
    match options(Route::Auto, true).open_blocking(&path) {
        Ok(_) => vec![false, true],
        Err(error) => {
            skip(&format!("the direct half of {test}"), error);
            vec![false]
        }
    }
}
