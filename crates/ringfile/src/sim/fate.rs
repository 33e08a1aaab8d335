//! What becomes of changes on a simulated disk: which are durable, and which of the others a power cut keeps.
//!
//! Changes have numbers, those of each file and those of names. Knows no disk and no operation.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use super::tree::Inode;

/// What has become of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Durable,
    /// It is not durable, and no power cut has come.
    Volatile,
    /// It was not durable, as in all that follow, and the power cut has kept it.
    Kept,
    /// The power cut has kept a part of it.
    Part,
    Lost,
    /// A sync of it has failed: any part of it is on the disk.
    Unsynced,
    /// Durable or not, no name leads to the file after the power cut.
    Nameless,
    /// The program has removed the file.
    Removed,
}

impl Fate {
    /// Returns what has become of two changes together.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::Nameless, _) | (_, Self::Nameless) => Self::Nameless,
            (Self::Unsynced, _) | (_, Self::Unsynced) => Self::Unsynced,
            (Self::Durable | Self::Kept, Self::Kept | Self::Durable) => Self::Kept,
            (Self::Durable, Self::Volatile) | (Self::Volatile, Self::Durable) => Self::Volatile,
            (Self::Removed, other) | (other, Self::Removed) => other,
            _ => Self::Part,
        }
    }

    /// Returns whether something of it is missing on the disk.
    pub(super) fn is_lost(self) -> bool {
        match self {
            Self::Part | Self::Lost | Self::Unsynced | Self::Nameless => true,
            Self::Durable | Self::Volatile | Self::Kept | Self::Removed => false,
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Durable => "durable",
            Self::Volatile => "not durable",
            Self::Kept => "not durable, kept",
            Self::Part => "not durable, kept in part",
            Self::Lost => "not durable, lost",
            Self::Unsynced => "not durable, since its sync has failed",
            Self::Nameless => "lost, since no name leads to the file",
            Self::Removed => "removed later",
        })
    }
}

/// The changes that an operation has made, by their numbers.
#[derive(Clone, Default)]
pub(super) struct Touched {
    /// Those of the file that it has changed last.
    pub(super) file: Option<(Inode, Range<u64>)>,
    pub(super) names: Range<u64>,
}

impl Touched {
    pub(super) fn add_to_file(&mut self, inode: Inode, number: u64) {
        match &mut self.file {
            Some((same, numbers)) if *same == inode => numbers.end = number + 1,
            other => *other = Some((inode, number..number + 1)),
        }
    }

    pub(super) fn add_to_names(&mut self, number: u64) {
        let start = if self.names.is_empty() { number } else { self.names.start };
        self.names = start..number + 1;
    }
}

/// What a power cut has made of what was not durable.
#[derive(Default)]
pub(super) struct Fates {
    /// Of each change of names.
    pub(super) names: Vec<Fate>,
    /// Of each change of the files to which names lead.
    pub(super) files: BTreeMap<Inode, Vec<Fate>>,
}
