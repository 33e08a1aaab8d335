//! The disk as a power cut may leave it, with its file system mounted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfile_power::Random;
use ringfile_power::stamp::SECTOR;

use crate::Outcome;
use crate::log::{FIRST, Log};

const BLOCK: usize = 4096;

/// How much of the unflushed data survives a cut, in percent.
#[derive(Clone, Copy)]
pub struct Chances {
    /// The percentage of writes that survive, at least in part.
    kept: u64,
    /// The percentage of these of which only some sectors survive.
    torn: u64,
}

impl Chances {
    /// Chooses the chances at random, between everything and nothing.
    pub fn any(random: &mut Random) -> Self {
        let kept = [0, 10, 50, 90, 100][random.below(5) as usize];
        Self { kept, torn: [0, 50][random.below(2) as usize] }
    }
}

/// The writes since the last flush that survive, in full or in part.
#[derive(Default)]
pub struct Kept<'a> {
    pieces: Vec<(usize, &'a [u8])>,
    pub left_out: usize,
    pub torn: usize,
}

/// The file system with everything that was flushed.
pub struct Disk {
    bytes: Vec<u8>,
    /// Blocks that are not all zeros.
    filled: Vec<bool>,
    /// The number of log entries that were applied.
    advanced: usize,
}

impl Disk {
    pub fn read(image: &Path) -> Outcome<Self> {
        let bytes = std::fs::read(image).map_err(|error| format!("{}: {error}", image.display()))?;
        Ok(Self::of(bytes))
    }

    /// Creates a disk with this content.
    pub fn of(bytes: Vec<u8>) -> Self {
        let filled = bytes.chunks(BLOCK).map(|block| block.iter().any(|&byte| byte != 0)).collect();
        Self { bytes, filled, advanced: 0 }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Applies all entries before `flushed`.
    pub fn advance(&mut self, log: &Log, flushed: usize) -> Outcome<()> {
        for (at, data, _) in log.writes_in(self.advanced..flushed.max(self.advanced)) {
            let to = self.bytes.get_mut(at..at + data.len()).ok_or("a write beyond the file system")?;
            to.copy_from_slice(data);
            self.filled[at / BLOCK..(at + data.len()).div_ceil(BLOCK)].fill(true);
        }
        self.advanced = flushed.max(self.advanced);
        Ok(())
    }

    /// Checks that replaying the whole log yields the same bytes as the drive has after the run. If not, the log is
    /// incomplete, or was read wrongly.
    pub fn becomes(&self, log: &Log, drive: &Path) -> Outcome<()> {
        let mut all = self.bytes.clone();
        for (at, data, _) in log.writes_in(0..log.len()) {
            all[at..at + data.len()].copy_from_slice(data);
        }
        let failed = |error| format!("{}: {error}", drive.display());
        let left = std::fs::read(drive).map_err(failed)?;
        let left = left.get(FIRST..FIRST + all.len()).ok_or("the drive is too short")?;
        match left.iter().zip(&all).position(|(left, made)| left != made) {
            None => Ok(()),
            Some(at) => Err(format!("the log does not yield the drive: byte {at} differs")),
        }
    }

    /// Chooses which of the writes between the last flush and the cut survive. A drive may carry them out in any order,
    /// and tear each at any sector.
    pub fn cut<'a>(&self, log: &'a Log, moment: usize, chances: Chances, random: &mut Random) -> Kept<'a> {
        let mut kept = Kept::default();
        for (at, data, fua) in log.writes_in(self.advanced..moment) {
            if fua {
                kept.pieces.push((at, data));
            } else if random.below(100) >= chances.kept {
                kept.left_out += 1;
            } else if data.len() > SECTOR && random.below(100) < chances.torn {
                kept.torn += 1;
                let sectors = data.chunks(SECTOR).enumerate();
                let there = sectors.filter(|_| random.below(2) == 0);
                kept.pieces.extend(there.map(|(index, sector)| (at + index * SECTOR, sector)));
            } else {
                kept.pieces.push((at, data));
            }
        }
        kept
    }

    /// Writes the disk, including the surviving writes, to a file.
    pub fn write(&self, kept: &Kept<'_>, path: &Path) -> std::io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.bytes.len() as u64)?;
        let mut block = 0;
        while let Some(first) = self.filled[block..].iter().position(|&filled| filled) {
            let from = block + first;
            let count = self.filled[from..].iter().position(|&filled| !filled);
            block = count.map_or(self.filled.len(), |count| from + count);
            let bytes = &self.bytes[from * BLOCK..self.bytes.len().min(block * BLOCK)];
            file.write_all_at(bytes, (from * BLOCK) as u64)?;
        }
        kept.pieces.iter().try_for_each(|(at, data)| file.write_all_at(data, *at as u64))
    }
}

/// A mounted disk, unmounted when it is dropped.
pub struct Mounted {
    image: PathBuf,
    folder: PathBuf,
}

impl Mounted {
    /// Writes the disk to a file and mounts it, which makes the file system replay its journal.
    pub fn new(disk: &Disk, kept: &Kept<'_>, filesystem: &str, scratch: &Path) -> Outcome<Self> {
        let (image, folder) = (scratch.join("cut"), scratch.join("mounted"));
        let made = disk.write(kept, &image).and_then(|()| std::fs::create_dir_all(&folder));
        made.map_err(|error| format!("{}: {error}", image.display()))?;
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop", "-t", filesystem]).args([&image, &folder]);
        run(&mut mount).inspect_err(|_| drop(std::fs::remove_file(&image)))?;
        Ok(Self { image, folder })
    }

    pub fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(why) = run(Command::new("umount").arg(&self.folder)) {
            eprintln!("power-replay: {why}");
        }
        let _ = std::fs::remove_file(&self.image);
    }
}

fn run(command: &mut Command) -> Outcome<()> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
