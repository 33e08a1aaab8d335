//! File systems on loop devices, for as long as a test runs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system; unmounted and removed at the end.
pub struct Mounted {
    image: PathBuf,
    folder: PathBuf,
    mounted: bool,
}

impl Mounted {
    /// Makes one of this kind, of `size` bytes (sparse); or says why it can't be.
    pub fn new(kind: &str, size: u64) -> Result<Self, String> {
        let user = run(Command::new("id").arg("-u"))?;
        if user.trim() != "0" {
            return Err("mounting needs root".into());
        }
        let name = format!("ringfile-test-{kind}-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        let mut it = Self { image: folder.with_extension("img"), folder, mounted: false };
        let why = |error: std::io::Error| error.to_string();
        std::fs::create_dir_all(&it.folder).map_err(why)?;
        std::fs::File::create(&it.image).and_then(|file| file.set_len(size)).map_err(why)?;
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&it.image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&it.image).arg(&it.folder))?;
        it.mounted = true;
        Ok(it)
    }

    pub fn path(&self) -> &Path {
        &self.folder
    }
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted
            && let Err(error) = run(Command::new("umount").arg(&self.folder))
        {
            eprintln!("{error}");
        }
        let _ = std::fs::remove_file(&self.image);
        let _ = std::fs::remove_dir(&self.folder);
    }
}
