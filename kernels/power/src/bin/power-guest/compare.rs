//! Runs the programs that are compared with simulations, and reports which of their steps have returned.
//!
//! Between the steps the drive gets what a kernel writes by itself at some time: parts of files, or the file system's
//! journal, which the sync of another file writes. Otherwise nothing would reach it before a program's own syncs.

use std::fs::File as StdFile;
use std::io::Write;
use std::thread::JoinHandle;
use std::time::Duration;

use ringfile::fs::{self, RangeSync};
use ringfile::{File, block_on};
use ringfile_power::programs::{self, PROGRAMS};
use ringfile_power::promise::Promise;
use ringfile_power::{Random, run_folder};

use crate::{Outcome, Place};

/// Runs each program once in each round, in a new folder.
pub fn run(place: &Place, rounds: u64) -> Outcome {
    let mut random = Random(1);
    let mut others = Others { file: StdFile::create(place.folder.join("other"))?, syncing: None };
    for run in 0..rounds * PROGRAMS.len() as u64 {
        let number = run % PROGRAMS.len() as u64;
        let at = programs::Place { folder: place.folder.join(run_folder(run)), pool: place.pool.clone() };
        block_on(fs::create_dir(&at.folder))?;
        place.sync_folder()?;
        place.promise(&[Promise::Returned { run, program: number, steps: 0 }])?;
        let program = &PROGRAMS[number as usize];
        for (steps, step) in (1..).zip(program.steps) {
            others.write(&at, &mut random)?;
            let done = block_on(step.perform(steps, &at));
            done.map_err(|error| format!("{}, step {steps}, {step:?}: {error}", program.name))?;
            place.promise(&[Promise::Returned { run, program: number, steps: steps as u64 }])?;
        }
        others.write(&at, &mut random)?;
        others.wait()?;
    }
    Ok(())
}

/// What reaches the drive beside the program's own syncs.
struct Others {
    file: StdFile,
    syncing: Option<JoinHandle<std::io::Result<()>>>,
}

impl Others {
    /// Makes some of it reach the drive, or nothing.
    fn write(&mut self, at: &programs::Place, random: &mut Random) -> Outcome {
        (0..random.below(3)).try_for_each(|_| self.write_some(at, random))
    }

    fn write_some(&mut self, at: &programs::Place, random: &mut Random) -> Outcome {
        match random.below(6) {
            // The kernel writes what has been dirty for long: see kernels/power-cuts.
            0 => std::thread::sleep(Duration::from_millis(100)),
            1 | 2 => self.sync()?,
            3 => {
                self.sync()?;
                self.wait()?;
            }
            _ => {
                let mut names = Vec::new();
                for entry in std::fs::read_dir(&at.folder)? {
                    let entry = entry?;
                    names.extend(entry.file_type()?.is_file().then(|| entry.file_name()));
                }
                names.sort();
                if let Some(name) = names.get(random.below(names.len() as u64) as usize) {
                    let file = File::open_blocking(at.folder.join(name))?;
                    let (offset, len) = (random.below(3) * 4096, 4096 << (random.below(2) * 10));
                    block_on(file.sync_range(offset, len, RangeSync::Start))?;
                }
            }
        }
        Ok(())
    }

    /// Starts to sync another file, while the program goes on.
    fn sync(&mut self) -> Outcome {
        self.wait()?;
        self.file.write_all(&[1; 8])?;
        let file = self.file.try_clone()?;
        self.syncing = Some(std::thread::spawn(move || file.sync_all()));
        Ok(())
    }

    fn wait(&mut self) -> Outcome {
        match self.syncing.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(_)) => Err("a thread panicked".into()),
        }
    }
}
