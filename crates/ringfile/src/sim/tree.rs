//! Names and permissions on a simulated disk, and changes of them.

use std::collections::{BTreeMap, BTreeSet};

/// The number of a file or a folder.
pub(super) type Inode = u64;

/// A name in a folder. An empty name is the folder itself.
pub(super) type Name = (Inode, Vec<u8>);

/// All names, and the permissions of what they lead to.
#[derive(Clone, Default)]
pub(super) struct Tree {
    pub(super) names: BTreeMap<Name, Inode>,
    pub(super) modes: BTreeMap<Inode, u32>,
}

impl Tree {
    /// Returns the names in a folder, and where they lead.
    pub(super) fn in_folder(&self, folder: Inode) -> impl Iterator<Item = (&Vec<u8>, &Inode)> {
        let names = self.names.range((folder, Vec::new())..).take_while(move |((of, _), _)| *of == folder);
        names.map(|((_, name), inode)| (name, inode))
    }
}

/// A change of names, in one step, or of permissions.
#[derive(Clone)]
pub(super) struct NameChange {
    pub(super) number: u64,
    /// Where the names lead afterwards; `None`: nowhere.
    names: Vec<(Name, Option<Inode>)>,
    mode: Option<(Inode, u32)>,
    /// The files and folders whose metadata it changes.
    pub(super) inodes: Vec<Inode>,
}

impl NameChange {
    pub(super) fn new(
        number: u64,
        names: Vec<(Name, Option<Inode>)>,
        mode: Option<(Inode, u32)>,
        before: &Tree,
    ) -> Self {
        let named = names.iter().flat_map(|(name, to)| [Some(name.0), before.names.get(name).copied(), *to]);
        let inodes = named.flatten().chain(mode.map(|(inode, _)| inode)).collect();
        Self { number, names, mode, inodes }
    }

    /// Returns what has one of the names afterwards.
    pub(super) fn named(&self) -> impl Iterator<Item = Inode> + '_ {
        self.names.iter().filter_map(|(_, to)| *to)
    }

    /// Returns whether it changes the names in a folder, or the permissions of a file or folder.
    pub(super) fn is_of(&self, inode: Inode) -> bool {
        self.mode.is_some_and(|(of, _)| of == inode)
            || self.names.iter().any(|((folder, _), _)| *folder == inode)
    }

    pub(super) fn apply(&self, tree: &mut Tree) {
        for (name, to) in &self.names {
            match to {
                Some(inode) => tree.names.insert(name.clone(), *inode),
                None => tree.names.remove(name),
            };
        }
        tree.modes.extend(self.mode);
    }
}

/// Returns which changes become durable if all that are wanted do: also those on whose outcome a later one depends.
pub(super) fn with_earlier(
    changes: &[NameChange],
    mut is_wanted: impl FnMut(&NameChange) -> bool,
) -> Vec<bool> {
    let mut needed = BTreeSet::new();
    let mut chosen: Vec<bool> = changes
        .iter()
        .rev()
        .map(|change| {
            let mut names = change.names.iter().map(|(name, _)| name);
            let is_chosen = is_wanted(change) || names.any(|name| needed.contains(name));
            if is_chosen {
                needed.extend(change.names.iter().map(|(name, _)| name));
            }
            is_chosen
        })
        .collect();
    chosen.reverse();
    chosen
}
