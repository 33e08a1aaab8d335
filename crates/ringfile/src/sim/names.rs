//! The names on a simulated disk, and changes of them.

use std::collections::{BTreeMap, BTreeSet};

use super::disk::Inode;

/// A name in a folder.
pub(super) type Name = (Inode, Vec<u8>);

/// All names.
pub(super) type Names = BTreeMap<Name, Inode>;

/// A change of a name.
#[derive(Clone)]
pub(super) enum NameChange {
    /// The file or folder has this name too.
    Add(Name, Inode),
    Remove(Name),
    /// In one step.
    Rename {
        from: Name,
        to: Name,
    },
    /// In one step.
    Exchange(Name, Name),
}

impl NameChange {
    fn names(&self) -> [&Name; 2] {
        match self {
            Self::Add(name, _) | Self::Remove(name) => [name; 2],
            Self::Rename { from: one, to: other } | Self::Exchange(one, other) => [one, other],
        }
    }

    /// Returns the files and folders whose metadata it changes.
    fn inodes(&self, before: &Names) -> Vec<Inode> {
        let added = if let Self::Add(_, inode) = self { Some(*inode) } else { None };
        let named = self.names().into_iter().flat_map(|name| [Some(name.0), before.get(name).copied()]);
        named.flatten().chain(added).collect()
    }

    pub(super) fn is_in(&self, folder: Inode) -> bool {
        self.names().iter().any(|(of, _)| *of == folder)
    }

    pub(super) fn apply(&self, names: &mut Names) {
        match self {
            Self::Add(name, inode) => _ = names.insert(name.clone(), *inode),
            Self::Remove(name) => _ = names.remove(name),
            Self::Rename { from, to } => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Self::Exchange(one, other) => {
                if let (Some(&first), Some(&second)) = (names.get(one), names.get(other)) {
                    names.insert(one.clone(), second);
                    names.insert(other.clone(), first);
                }
            }
        }
    }
}

/// A change of a name.
#[derive(Clone)]
pub(super) struct Numbered {
    pub(super) number: u64,
    pub(super) change: NameChange,
    /// The files and folders whose metadata it changes.
    pub(super) inodes: Vec<Inode>,
}

impl Numbered {
    pub(super) fn new(number: u64, change: NameChange, before: &Names) -> Self {
        Self { number, inodes: change.inodes(before), change }
    }
}

/// Returns which changes become durable if all that are wanted do: also those on whose outcome a later one depends.
pub(super) fn with_earlier(
    changes: &[Numbered],
    mut is_wanted: impl FnMut(&NameChange) -> bool,
) -> Vec<bool> {
    let mut needed = BTreeSet::new();
    let mut chosen: Vec<bool> = changes
        .iter()
        .rev()
        .map(|Numbered { change, .. }| {
            let is_chosen = is_wanted(change) || change.names().iter().any(|name| needed.contains(name));
            if is_chosen {
                needed.extend(change.names());
            }
            is_chosen
        })
        .collect();
    chosen.reverse();
    chosen
}
