//! The files of a round: on a disk and in memory, direct and buffered, on every route.

use std::path::{Path, PathBuf};

use ringfile::{File, OpenOptions, Route};

use super::model::{PAGE, Region, STRIDE};
use crate::support::Folder;
use crate::support::forms::routes;

/// Files that are removed when this is dropped.
pub struct Places {
    files: Vec<(File, u64, String)>,
    pub disk: Folder,
    _memory: Option<Folder>,
}

fn options(route: Route, direct: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(direct).buffered_fallback(true).route(route);
    options
}

impl Places {
    /// Makes files with room for this number of actors in each.
    pub fn new(actors: usize) -> Self {
        let disk = Folder::new();
        let memory = Path::new("/dev/shm").is_dir().then(|| Folder::inside(Path::new("/dev/shm")));
        let mut files: Vec<(File, u64, String)> = Vec::new();
        let mut add = |path: PathBuf, route, direct| {
            let file = options(route, direct).open_blocking(&path).unwrap();
            std::fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len((actors * STRIDE * PAGE) as u64)
                .unwrap();
            let name = format!("{} ({route:?}, direct {})", path.display(), file.is_direct());
            let seed = files.len() as u64 + 1;
            files.push((file, seed << 40, name));
        };
        for route in routes() {
            add(disk.path().join(format!("buffered-{route:?}")), route, false);
            add(disk.path().join(format!("direct-{route:?}")), route, true);
            if let Some(memory) = &memory {
                add(memory.path().join(format!("memory-{route:?}")), route, false);
            }
        }
        Self { files, disk, _memory: memory }
    }

    /// Returns the pieces of one actor, of every file.
    pub fn regions(&self, actor: usize) -> Vec<Region> {
        let piece =
            |(file, seed, name): &(File, u64, String)| Region::new(file.clone(), *seed, name.clone(), actor);
        self.files.iter().map(piece).collect()
    }
}
