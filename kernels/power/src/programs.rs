//! Small programs that run both on a real file system whose power is cut and in a simulation, and what either has left.
//!
//! A program is a list of steps, each one call of ringfile. Every 8 bytes that it writes name the step and the place, so
//! that whatever is found is known to be of one step, zeros, or something else.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use ringfile::fs::{self, AllocateMode};
use ringfile::{Buffer, Durability, File, OpenOptions, Pool, Result, spawn};

use Step::*;

/// How a step ends.
pub type Outcome = std::result::Result<(), Box<dyn Error + Send + Sync>>;

/// One call of ringfile, with names in the program's folder, offsets and lengths.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Creates a file.
    Create(&'static str),
    /// Opens a file with `O_TRUNC`.
    Truncate(&'static str),
    /// Writes to the page cache.
    Write(&'static str, u64, usize),
    /// Writes past the page cache.
    Direct(&'static str, u64, usize),
    /// `write_durable_at` of a buffered file, with `RWF_DSYNC`.
    Durable(&'static str, u64, usize),
    /// `sync_data`.
    SyncData(&'static str),
    /// `sync_all`.
    SyncAll(&'static str),
    /// `set_len`.
    SetLen(&'static str, u64),
    /// `allocate`.
    Allocate(&'static str, AllocateMode, u64, u64),
    /// `rename`, also over a file.
    Rename(&'static str, &'static str),
    /// `rename_exchange`.
    Exchange(&'static str, &'static str),
    /// `hard_link`.
    Link(&'static str, &'static str),
    /// `remove_file`.
    Remove(&'static str),
    /// `create_dir`.
    CreateDir(&'static str),
    /// `remove_dir`.
    RemoveDir(&'static str),
    /// `sync_dir`; `"."` is the program's folder.
    SyncDir(&'static str),
    /// All at once, as tasks.
    Together(&'static [Step]),
}

/// Steps, one after the other.
#[derive(Debug)]
pub struct Program {
    /// What it is called in tables.
    pub name: &'static str,
    /// The steps.
    pub steps: &'static [Step],
}

const S: usize = 512;

/// The programs, which cover what ringfile promises of files, sizes and names. Few sectors are not durable at a time, so
/// that a simulation meets each combination of them within some thousands of seeds.
pub const PROGRAMS: &[Program] = &[
    Program {
        name: "overwrite",
        steps: &[
            Create("a"),
            Write("a", 0, 3 * S),
            SyncAll("a"),
            SyncDir("."),
            Write("a", 512, S),
            Write("a", 0, 3 * S),
            SyncData("a"),
            Write("a", 0, 1000),
        ],
    },
    Program {
        name: "extend",
        steps: &[
            Create("a"),
            Write("a", 0, S),
            SyncAll("a"),
            SyncDir("."),
            Write("a", 512, 1000),
            Write("a", 4096, S),
            SyncData("a"),
            Write("a", 2048, S),
            Write("a", 8192, S),
        ],
    },
    Program {
        name: "new file, folder first",
        steps: &[Create("a"), Write("a", 0, 2 * S), SyncDir("."), Write("a", 1024, S), SyncData("a")],
    },
    Program {
        name: "new file, file alone",
        steps: &[Create("a"), Write("a", 0, S), SyncData("a"), Create("b"), Write("b", 0, S), SyncAll("b")],
    },
    Program {
        name: "rename into place",
        steps: &[
            Create("new"),
            Write("new", 0, 2 * S),
            SyncAll("new"),
            Rename("new", "a"),
            SyncDir("."),
            Write("a", 0, S),
        ],
    },
    Program {
        name: "replace without a sync",
        steps: &[
            Create("a"),
            Write("a", 0, 2 * S),
            SyncAll("a"),
            SyncDir("."),
            Create("new"),
            Write("new", 0, 3 * S),
            Rename("new", "a"),
            SyncDir("."),
        ],
    },
    Program {
        name: "replace",
        steps: &[
            Create("a"),
            Write("a", 0, 2 * S),
            SyncAll("a"),
            Create("new"),
            Write("new", 0, 3 * S),
            SyncData("new"),
            Rename("new", "a"),
            SyncDir("."),
        ],
    },
    Program {
        name: "exchange",
        steps: &[
            Create("a"),
            Write("a", 0, S),
            Create("b"),
            Write("b", 0, 2 * S),
            SyncAll("a"),
            SyncAll("b"),
            Exchange("a", "b"),
            Write("a", 0, S),
            SyncAll("a"),
            Exchange("b", "a"),
            SyncDir("."),
        ],
    },
    Program {
        name: "hard link",
        steps: &[
            Create("a"),
            Write("a", 0, S),
            SyncAll("a"),
            SyncDir("."),
            Link("a", "b"),
            Write("b", 512, S),
            SyncData("b"),
            Remove("a"),
            Rename("b", "c"),
            SyncAll("c"),
        ],
    },
    Program {
        name: "remove and create again",
        steps: &[
            Create("a"),
            Write("a", 0, 2 * S),
            SyncAll("a"),
            SyncDir("."),
            Remove("a"),
            Create("a"),
            Write("a", 0, S),
            SyncAll("a"),
            Remove("a"),
            SyncDir("."),
        ],
    },
    Program {
        name: "truncate and write again",
        steps: &[
            Create("a"),
            Write("a", 0, 3 * S),
            SyncAll("a"),
            SyncDir("."),
            Truncate("a"),
            Write("a", 0, 2 * S),
            SyncData("a"),
            SetLen("a", 0),
            Write("a", 512, S),
        ],
    },
    Program {
        name: "shrink and grow",
        steps: &[
            Create("a"),
            Write("a", 0, 3 * S),
            SyncAll("a"),
            SyncDir("."),
            SetLen("a", 1000),
            Write("a", 2048, S),
            SyncData("a"),
            SetLen("a", 512),
            SetLen("a", 5000),
            SyncAll("a"),
        ],
    },
    Program {
        name: "size ahead",
        steps: &[
            Create("a"),
            SetLen("a", 12288),
            Write("a", 4096, S),
            SyncData("a"),
            SyncDir("."),
            Write("a", 0, S),
            Write("a", 8192, S),
            SetLen("a", 6000),
            SyncData("a"),
        ],
    },
    Program {
        name: "allocate",
        steps: &[
            Create("a"),
            Allocate("a", AllocateMode::Extend, 0, 12288),
            Write("a", 512, S),
            SyncData("a"),
            SyncDir("."),
            Allocate("a", AllocateMode::KeepSize, 12288, 8192),
            Write("a", 12288, S),
            SyncData("a"),
            Write("a", 4096, S),
        ],
    },
    Program {
        name: "holes",
        steps: &[
            Create("a"),
            Write("a", 0, 2 * S),
            Write("a", 4096, S),
            SyncAll("a"),
            SyncDir("."),
            Allocate("a", AllocateMode::PunchHole, 0, 4096),
            Write("a", 512, S),
            SyncData("a"),
            Allocate("a", AllocateMode::ZeroRange, 0, 4608),
            Write("a", 4096, S),
            SyncData("a"),
        ],
    },
    Program {
        name: "durable writes",
        steps: &[
            Create("a"),
            Write("a", 0, S),
            SyncAll("a"),
            SyncDir("."),
            Write("a", 0, S),
            Durable("a", 512, S),
            Write("a", 1024, S),
            Durable("a", 512, S),
            Rename("a", "b"),
            Durable("b", 4096, S),
        ],
    },
    Program {
        name: "direct writes",
        steps: &[
            Create("a"),
            Direct("a", 0, 2 * S),
            SyncData("a"),
            SyncDir("."),
            Direct("a", 512, S),
            Direct("a", 4096, S),
            SyncData("a"),
            Direct("a", 0, S),
        ],
    },
    Program {
        name: "folders",
        steps: &[
            CreateDir("d"),
            Create("d/a"),
            Write("d/a", 0, S),
            SyncAll("d/a"),
            Rename("d", "e"),
            Create("e/b"),
            SyncDir("e"),
            Remove("e/a"),
            Remove("e/b"),
            RemoveDir("e"),
            SyncDir("."),
        ],
    },
    Program {
        name: "between folders",
        steps: &[
            CreateDir("d"),
            CreateDir("e"),
            SyncDir("."),
            Create("d/a"),
            Write("d/a", 0, S),
            SyncAll("d/a"),
            Rename("d/a", "e/b"),
            SyncDir("d"),
            Create("d/c"),
            SyncDir("e"),
        ],
    },
    Program {
        name: "sync of another file",
        steps: &[
            Create("a"),
            Create("b"),
            Write("b", 0, S),
            SyncAll("a"),
            SyncAll("b"),
            SyncDir("."),
            Rename("a", "c"),
            SyncAll("b"),
            Write("b", 0, S),
            SyncAll("b"),
            Write("b", 512, S),
            SyncData("b"),
        ],
    },
    Program {
        name: "sync of another folder",
        steps: &[
            CreateDir("d"),
            CreateDir("e"),
            Create("d/a"),
            SyncDir("d"),
            SyncDir("e"),
            SyncDir("."),
            Rename("d/a", "d/b"),
            SyncDir("e"),
            Create("d/c"),
            SyncDir("."),
            Create("e/f"),
            SyncDir("e"),
        ],
    },
    Program {
        name: "sync after a rename",
        steps: &[
            Create("a"),
            Create("x"),
            SyncDir("."),
            Write("a", 0, S),
            Rename("x", "y"),
            SyncData("a"),
            SetLen("a", 2048),
            Rename("y", "z"),
            SyncAll("a"),
        ],
    },
    Program {
        name: "several files",
        steps: &[
            Create("a"),
            Create("b"),
            SyncDir("."),
            Write("a", 0, S),
            Write("b", 0, S),
            SyncData("b"),
            Write("a", 512, S),
            Rename("a", "c"),
            Write("b", 512, S),
            SyncAll("c"),
        ],
    },
    Program {
        name: "at once",
        steps: &[
            Create("a"),
            Create("b"),
            SyncDir("."),
            Together(&[Write("a", 0, S), Write("a", 4096, S), Write("b", 0, S)]),
            Together(&[SyncAll("a"), Write("a", 0, S), Rename("b", "c")]),
            Together(&[SyncData("a"), SyncDir("."), Write("c", 512, S)]),
        ],
    },
];

/// Where a program runs.
#[derive(Clone, Debug)]
pub struct Place {
    /// The program's folder.
    pub folder: PathBuf,
    /// Memory for what it writes.
    pub pool: Pool,
}

impl Place {
    /// Opens a file of the program.
    ///
    /// # Errors
    /// Those of the library.
    pub async fn open(&self, name: &str, set: impl FnOnce(&mut OpenOptions)) -> Result<File> {
        let mut options = OpenOptions::new();
        set(options.read(true).write(true).durability(Durability::Dsync));
        options.open(self.folder.join(name)).await
    }

    fn data(&self, step: usize, offset: u64, len: usize) -> Result<Buffer> {
        let mut buffer = self.pool.get(len)?;
        for at in (offset..offset + len as u64).step_by(8) {
            buffer.extend_from_slice(&word(step, at).to_le_bytes());
        }
        Ok(buffer)
    }
}

const MARK: u64 = 0xa5 << 56;

/// Returns what a step writes to these 8 bytes of a file.
fn word(step: usize, offset: u64) -> u64 {
    MARK | (step as u64) << 32 | offset
}

impl Step {
    /// Takes the step, whose number in its program is given: the first is 1.
    ///
    /// # Errors
    /// Those of the library.
    pub async fn perform(self, number: usize, at: &Place) -> Outcome {
        let path = |name| at.folder.join(name);
        let data = |offset, len| at.data(number, offset, len);
        match self {
            Create(name) => at.open(name, |options| _ = options.create_new(true)).await.map(drop)?,
            Truncate(name) => at.open(name, |options| _ = options.truncate(true)).await.map(drop)?,
            Write(name, offset, len) => {
                at.open(name, |_| ()).await?.write_at(data(offset, len)?, offset).await?;
            }
            Direct(name, offset, len) => {
                let file = at.open(name, |options| _ = options.direct(true)).await?;
                file.write_at(data(offset, len)?, offset).await?;
            }
            Durable(name, offset, len) => {
                at.open(name, |_| ()).await?.write_durable_at(data(offset, len)?, offset).await?;
            }
            SyncData(name) => at.open(name, |_| ()).await?.sync_data().await?,
            SyncAll(name) => at.open(name, |_| ()).await?.sync_all().await?,
            SetLen(name, len) => at.open(name, |_| ()).await?.set_len(len).await?,
            Allocate(name, mode, offset, len) => {
                at.open(name, |_| ()).await?.allocate(mode, offset, len).await?;
            }
            Rename(from, to) => fs::rename(path(from), path(to)).await?,
            Exchange(one, other) => fs::rename_exchange(path(one), path(other)).await?,
            Link(from, to) => fs::hard_link(path(from), path(to)).await?,
            Remove(name) => fs::remove_file(path(name)).await?,
            CreateDir(name) => fs::create_dir(path(name)).await?,
            RemoveDir(name) => fs::remove_dir(path(name)).await?,
            SyncDir(name) => fs::sync_dir(path(name)).await?,
            Together(steps) => {
                let start = |step: &Step| {
                    let (step, at) = (*step, at.clone());
                    spawn(async move { Box::pin(step.perform(number, &at)).await })
                };
                for task in steps.iter().map(start).collect::<Vec<_>>() {
                    task.await??;
                }
            }
        }
        Ok(())
    }
}

/// What some bytes of a file are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// Nothing but zeros.
    Zeros,
    /// What this step has written there.
    Of(usize),
    /// Neither.
    Other,
}

/// What a name leads to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thing {
    /// A folder.
    Folder,
    /// A file: how many bytes of what it has.
    File(Vec<(u64, Content)>),
    /// Another name of the file with this name.
    Link(String),
}

/// What there is after a power cut, by name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Found(BTreeMap<String, Thing>);

impl Found {
    /// Looks at all that is in a folder.
    ///
    /// # Errors
    /// Those of the library.
    pub async fn look(at: &Place) -> Result<Self> {
        let (mut found, mut files) = (BTreeMap::new(), BTreeMap::new());
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            let (mut entries, mut names) = (fs::read_dir(at.folder.join(&folder)), Vec::new());
            while let Some(entry) = entries.next().await {
                names.push(entry?);
            }
            names.sort_by(|one, other| one.name.cmp(&other.name));
            for entry in names {
                let name = format!("{folder}{}", entry.name.to_string_lossy());
                let thing = match entry.file_type {
                    fs::FileType::Directory => {
                        folders.push(format!("{name}/"));
                        Thing::Folder
                    }
                    _ => {
                        let file = at.open(&name, |_| ()).await?;
                        let inode = fs::metadata_of(&file).await?.inode;
                        match files.insert(inode, name.clone()) {
                            Some(same) => Thing::Link(same),
                            None => Thing::File(contents(&file).await?),
                        }
                    }
                };
                found.insert(name, thing);
            }
        }
        Ok(Self(found))
    }
}

async fn contents(file: &File) -> Result<Vec<(u64, Content)>> {
    let bytes = file.read_at(Vec::with_capacity(1 << 16), 0).await?;
    let mut runs: Vec<(u64, Content)> = Vec::new();
    for (at, bytes) in (0..).step_by(8).zip(bytes.chunks(8)) {
        let found = bytes.try_into().map_or(1, u64::from_le_bytes);
        let step = (found >> 32 & 0xff_ffff) as usize;
        let content = match found {
            0 => Content::Zeros,
            _ if found == word(step, at) => Content::Of(step),
            _ => Content::Other,
        };
        match runs.last_mut() {
            Some((len, last)) if *last == content => *len += bytes.len() as u64,
            _ => runs.push((bytes.len() as u64, content)),
        }
    }
    Ok(runs)
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        for (number, (name, thing)) in self.0.iter().enumerate() {
            f.write_str(if number > 0 { "; " } else { "" })?;
            match thing {
                Thing::Folder => write!(f, "{name}/")?,
                Thing::Link(other) => write!(f, "{name} is {other}")?,
                Thing::File(runs) if runs.is_empty() => write!(f, "{name} is empty")?,
                Thing::File(runs) => {
                    write!(f, "{name} has")?;
                    for (number, (len, content)) in runs.iter().enumerate() {
                        f.write_str(if number > 0 { ", " } else { " " })?;
                        match content {
                            Content::Zeros => write!(f, "{len} zeros")?,
                            Content::Of(step) => write!(f, "{len} bytes of step {step}")?,
                            Content::Other => write!(f, "{len} other bytes")?,
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
