//! Collects what the promises up to a moment require of the file system, and checks it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use ringfile_power::promise::Promise;
use ringfile_power::stamp::{SECTOR, Stamp, record, stream};
use ringfile_power::{LOGS, NAMED, NAMED_BYTES, SLOT_FILES, SlotFile, named};

/// The required state of a file that is created and removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    There,
    /// It exists and is complete, or it was removed.
    Either,
    Gone,
}

/// The state that the promises require; see the module.
#[derive(Default)]
pub struct Expected {
    /// The required version by file and slot.
    slots: BTreeMap<(u32, u64), u64>,
    named: BTreeMap<u64, Named>,
    /// The required length of each log.
    logs: BTreeMap<u64, u64>,
}

impl Expected {
    pub fn add(&mut self, promise: Promise) {
        match promise {
            Promise::Slot { file, slot, version } => {
                // Reports about one slot may overtake each other.
                let known = self.slots.entry((file, slot)).or_insert(version);
                *known = version.max(*known);
            }
            Promise::Created(number) => drop(self.named.insert(number, Named::There)),
            Promise::Removing(number) => drop(self.named.insert(number, Named::Either)),
            Promise::Removed(number) => drop(self.named.insert(number, Named::Gone)),
            Promise::Appended { log, len } => {
                let known = self.logs.entry(log).or_insert(len);
                *known = len.max(*known);
            }
            Promise::Returned { .. } => {}
        }
    }

    /// Returns descriptions of everything that is missing or wrong. Adds the number of promises to `checked`.
    pub fn check(&self, folder: &Path, checked: &mut usize) -> Vec<String> {
        let mut losses = Vec::new();
        *checked += self.slots.len() + self.named.len() + self.logs.len();
        for of in SLOT_FILES {
            self.check_slots(of, folder, &mut losses);
        }
        for (&number, &named) in &self.named {
            losses.extend(check_named(number, named, folder));
        }
        for (&log, &len) in &self.logs {
            losses.extend(check_log(LOGS[log as usize % LOGS.len()], len, folder));
        }
        losses
    }

    fn check_slots(&self, of: SlotFile, folder: &Path, losses: &mut Vec<String>) {
        let slots = self.slots.range((of.number, 0)..(of.number + 1, 0));
        if slots.clone().next().is_none() {
            return;
        }
        let content = match fs::read(folder.join(of.name)) {
            Ok(content) => content,
            Err(error) => return losses.push(format!("{}: {error}", of.name)),
        };
        for (&(_, slot), &version) in slots {
            let from = slot as usize * of.slot;
            let Some(there) = content.get(from..from + of.slot) else {
                losses.push(format!("{}: slot {slot} is beyond the end of the file", of.name));
                continue;
            };
            losses.extend(
                check_slot(of, slot, version, there).map(|why| format!("{}: slot {slot} {why}", of.name)),
            );
        }
    }
}

/// Checks one slot. It may have a part of a later version, unless its writes are atomic.
fn check_slot(of: SlotFile, slot: u64, version: u64, there: &[u8]) -> Option<String> {
    let mut versions = Vec::new();
    for (index, sector) in (0..).zip(there.chunks(SECTOR)) {
        match Stamp::of(sector) {
            Some(stamp) if (stamp.file, stamp.slot, stamp.index) == (of.number, slot, index) => {
                versions.push(stamp.version);
            }
            Some(stamp) => return Some(format!("has {stamp:?} in its sector {index}")),
            None if sector.iter().all(|&byte| byte == 0) => {
                return Some(format!("has zeros in its sector {index}"));
            }
            None => return Some(format!("has bytes in its sector {index} that were never written")),
        }
    }
    if let Some(old) = versions.iter().find(|&&there| there < version) {
        return Some(format!("has version {old}, but {version} was durable"));
    }
    versions.sort_unstable();
    versions.dedup();
    (of.atomic && versions.len() > 1).then(|| format!("was written in part: it has versions {versions:?}"))
}

fn check_named(number: u64, named_is: Named, folder: &Path) -> Option<String> {
    let name = named(number);
    match (fs::read(folder.join(&name)), named_is) {
        (Ok(_), Named::Gone) => Some(format!("{name} exists, but its removal was durable")),
        (Ok(there), Named::There | Named::Either) => (there != record(NAMED, number, number, NAMED_BYTES))
            .then(|| format!("{name} has the wrong content")),
        (Err(error), Named::Gone | Named::Either) if error.kind() == io::ErrorKind::NotFound => None,
        (Err(error), _) => Some(format!("{name}: {error}")),
    }
}

fn check_log(name: &str, len: u64, folder: &Path) -> Option<String> {
    match fs::read(folder.join(name)) {
        Err(error) => Some(format!("{name}: {error}")),
        Ok(there) if (there.len() as u64) < len => {
            Some(format!("{name} has {} bytes, but {len} were durable", there.len()))
        }
        Ok(there) => {
            let wrong = stream(0, len as usize).iter().zip(&there).position(|(byte, there)| byte != there);
            wrong.map(|at| format!("{name} is wrong from byte {at} of {len} on"))
        }
    }
}
