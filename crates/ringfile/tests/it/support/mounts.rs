//! File systems and devices made for a test, and removed at its end. All need root.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Folder, is_root, skip};

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program} can't be run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("{program} {arguments:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Makes an empty file system of this kind in a file or a device.
fn make_in(kind: &str, image: &str) -> Result<String, String> {
    let force = if kind.starts_with("ext") { "-F" } else { "-f" };
    run(&format!("mkfs.{kind}"), &["-q", force, image])
}

/// A mounted file system.
pub struct Mount {
    folder: Folder,
    /// The device that it is on, if nothing else detaches that. Declared last, so that it is detached last.
    _device: Option<Loop>,
}

impl From<Folder> for Mount {
    fn from(folder: Folder) -> Self {
        Self { folder, _device: None }
    }
}

impl Mount {
    /// Mounts a tmpfs of this many bytes; prints that `test` is skipped if that is not possible.
    pub fn tmpfs(test: &str, bytes: u64) -> Option<Self> {
        if !is_root() {
            skip(test, "mounting a tmpfs needs root");
            return None;
        }
        let folder = Folder::new();
        let path = folder.path().to_string_lossy().into_owned();
        match run("mount", &["-t", "tmpfs", "-o", &format!("size={bytes}"), "ringfile-fault", &path]) {
            Ok(_) => Some(folder.into()),
            Err(why) => {
                skip(test, why);
                None
            }
        }
    }

    /// Mounts an ext4 of this many bytes; prints that `test` is skipped if that is not possible.
    pub fn ext4(test: &str, bytes: u64) -> Option<Self> {
        Self::on_loop(test, "ext4", bytes)
    }

    /// Mounts a file system of this kind and this many bytes, in a file in memory, or on the disk if it is large; prints that
    /// `test` is skipped if that is not possible.
    pub fn on_loop(test: &str, kind: &str, bytes: u64) -> Option<Self> {
        Self::on_loop_with(test, kind, bytes, "loop")
    }

    /// As [`on_loop`](Self::on_loop), with these options of `mount`.
    pub fn on_loop_with(test: &str, kind: &str, bytes: u64, options: &str) -> Option<Self> {
        if !is_root() {
            skip(test, format!("mounting an {kind} needs root"));
            return None;
        }
        // In memory, thousands of syncs take no time, however busy the disk is.
        let images = if bytes <= 64 << 20 { Folder::inside(Path::new("/dev/shm")) } else { Folder::new() };
        let folder = Folder::new();
        let image = images.file("image", b"");
        std::fs::File::options().write(true).open(&image).unwrap().set_len(bytes).unwrap();
        let (image, path) = (image.to_string_lossy(), folder.path().to_string_lossy());
        let made =
            make_in(kind, &image).and_then(|_| run("mount", &["-o", options, "-t", kind, &image, &path]));
        match made {
            // The image's name can go: the loop device holds the file until it is unmounted.
            Ok(_) => Some(folder.into()),
            Err(why) => {
                skip(test, why);
                None
            }
        }
    }

    /// Mounts a file system of this kind in an existing file, which is read and written directly, as a drive is: a write
    /// of the file system that the file holds back is in flight. Prints that `test` is skipped if that is not possible.
    pub fn over_file(test: &str, kind: &str, file: &Path) -> Option<Self> {
        let device = Loop::attach(test, file, &["--direct-io=on"], Folder::new())?;
        let folder = Folder::new();
        let (name, path) = (device.device().to_string_lossy(), folder.path().to_string_lossy());
        let made = make_in(kind, &name).and_then(|_| run("mount", &["-t", kind, &name, &path]));
        match made {
            Ok(_) => Some(Self { folder, _device: Some(device) }),
            Err(why) => {
                skip(test, why);
                None
            }
        }
    }

    /// Mounts an overlay, as containers have it: over a folder with a file `below` of this content, with changes in
    /// another folder. Prints that `test` is skipped if that is not possible.
    pub fn overlay(test: &str, below: &[u8], layers: &Folder) -> Option<Self> {
        if !is_root() {
            skip(test, "mounting an overlay needs root");
            return None;
        }
        let folder = Folder::new();
        for layer in ["lower", "upper", "work"] {
            std::fs::create_dir(layers.path().join(layer)).unwrap();
        }
        std::fs::write(layers.path().join("lower/below"), below).unwrap();
        let layers = layers.path().to_string_lossy();
        let options = format!("lowerdir={layers}/lower,upperdir={layers}/upper,workdir={layers}/work");
        match run("mount", &["-t", "overlay", "-o", &options, "overlay", &folder.path().to_string_lossy()]) {
            Ok(_) => Some(folder.into()),
            Err(why) => {
                skip(test, why);
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Unmounts it if nothing uses it.
    pub fn unmounts(&self) -> bool {
        run("umount", &[&self.folder.path().to_string_lossy()]).is_ok()
    }

    /// Limits dirty pages in the page cache to `bytes`, as if the device were overloaded, so that a thread that writes
    /// more has to wait. Returns why if that is not possible.
    pub fn throttle(&self, bytes: u64) -> Result<(), String> {
        use std::os::unix::fs::MetadataExt;
        let device = std::fs::metadata(self.path()).map_err(|error| error.to_string())?.dev();
        let settings = format!("/sys/class/bdi/{}:{}", libc::major(device), libc::minor(device));
        for (name, value) in [("strict_limit", 1), ("max_bytes", bytes)] {
            let path = format!("{settings}/{name}");
            std::fs::write(&path, value.to_string()).map_err(|error| format!("{path}: {error}"))?;
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let path = self.folder.path().to_string_lossy().into_owned();
        if run("umount", &[&path]).is_err() {
            let _ = run("umount", &["-l", &path]);
        }
    }
}

/// Fills a file system, except for about this number of bytes.
pub fn fill_up(path: &Path, but: u64) {
    let file = std::fs::File::create(path).unwrap();
    let free = rustix::fs::fstatvfs(&file).unwrap();
    let len = (free.f_bfree * free.f_frsize).saturating_sub(but);
    let mut at = 0;
    for step in [1 << 20, 4096] {
        while at + step <= len
            && rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), at, step).is_ok()
        {
            at += step;
        }
    }
    file.sync_all().unwrap();
}

/// A block device over a file.
pub struct Loop {
    device: PathBuf,
    /// The file behind it.
    pub backing: PathBuf,
    _folder: Folder,
}

impl Loop {
    /// Makes one over a file with this content; prints that `test` is skipped if that is not possible.
    pub fn over(test: &str, content: &[u8]) -> Option<Self> {
        Self::with(test, content, &[])
    }

    /// Returns whether reads fail, as they do on Linux 6.12 once the file has become shorter.
    pub fn fails_at(&self, offset: u64) -> bool {
        use std::os::unix::fs::FileExt;
        std::fs::File::open(&self.device).unwrap().read_at(&mut [0; 512], offset).is_err()
    }

    /// Makes one as [`over`](Self::over) does, with blocks of this many bytes; blocks larger than a page need Linux
    /// 6.15.
    pub fn with_blocks(test: &str, content: &[u8], bytes: usize) -> Option<Self> {
        Self::with(test, content, &["--sector-size", &bytes.to_string()])
    }

    fn with(test: &str, content: &[u8], options: &[&str]) -> Option<Self> {
        let folder = Folder::new();
        let backing = folder.file("backing", content);
        Self::attach(test, &backing, options, folder)
    }

    /// Makes one over an existing file; the folder is kept as long.
    fn attach(test: &str, backing: &Path, options: &[&str], folder: Folder) -> Option<Self> {
        if !is_root() {
            skip(test, "making a loop device needs root");
            return None;
        }
        let backing_name = backing.to_string_lossy();
        match run("losetup", &[options, &["--find", "--show", &backing_name]].concat()) {
            Ok(device) => Some(Self { device: device.into(), backing: backing.into(), _folder: folder }),
            Err(why) => {
                skip(test, why);
                None
            }
        }
    }

    pub fn device(&self) -> &Path {
        &self.device
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.device.to_string_lossy()]);
    }
}
