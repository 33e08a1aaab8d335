//! The mounts of this machine, from /proc/self/mountinfo.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount ID that statx reports for files in it.
    pub id: u64,
    /// Major and minor number of the device, as `8:1`.
    pub device: String,
    /// Where it is mounted.
    pub point: PathBuf,
    /// `ext4`, `tmpfs`, …
    pub filesystem: String,
    /// What is mounted: a device, a server, or a label.
    pub source: String,
    /// Options of the mount and of the file system, in that order, each once.
    pub options: Vec<String>,
}

/// Returns all mounts this process sees, in the order they were made; none if /proc is unavailable.
pub fn all() -> Vec<Mount> {
    parse(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
}

/// Returns the mount that a path which exists lies in.
pub fn of(path: &Path) -> Option<Mount> {
    let (mut all, path) = (all(), path.canonicalize().ok()?);
    let index = place(&all, &path)?;
    Some(all.swap_remove(index))
}

fn place(mounts: &[Mount], path: &Path) -> Option<usize> {
    // A later mount on the same point hides the earlier one.
    let depth = |&index: &usize| mounts[index].point.components().count();
    (0..mounts.len()).filter(|&index| path.starts_with(&mounts[index].point)).max_by_key(depth)
}

/// Reads the text of mountinfo.
pub fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /mnt rw,noatime shared:1 - ext4 /dev/vda rw`, with any number of fields before the dash.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let text =
        |index: usize| fields.get(index).map(|field| String::from_utf8_lossy(&unescape(field)).into_owned());
    let mut options: Vec<String> = Vec::new();
    for option in [text(5), text(dash + 3)].iter().flatten().flat_map(|list| list.split(',')) {
        if !options.iter().any(|known| known == option) {
            options.push(option.to_string());
        }
    }
    Some(Mount {
        id: text(0)?.parse().ok()?,
        device: String::from_utf8_lossy(fields.get(2)?).into_owned(),
        point: PathBuf::from(OsString::from_vec(unescape(fields.get(4)?))),
        filesystem: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: text(dash + 2).unwrap_or_default(),
        options,
    })
}

/// Decodes the three octal digits that blanks and backslashes are written as.
pub(super) fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| std::str::from_utf8(after.get(..3)?).ok()).flatten();
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"21 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw\n\
        22 21 0:20 / /dev/shm rw - tmpfs tmpfs rw\n\
        23 21 7:0 / /mnt/with\\040blank rw - xfs /dev/loop0 rw\n\
        24 21 0:30 / /dev/shm rw - ramfs none rw\n";

    #[test]
    fn lines_with_optional_fields_and_escapes() {
        let mounts = parse(SAMPLE);
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[2].point, Path::new("/mnt/with blank"));
        assert_eq!((mounts[0].device.as_str(), mounts[0].filesystem.as_str()), ("254:0", "ext4"));
        assert_eq!((mounts[0].id, mounts[0].source.as_str()), (21, "/dev/vda"));
        assert_eq!(mounts[0].options, ["rw", "relatime"]);
    }

    #[test]
    fn the_longest_and_latest_mount_holds_the_path() {
        let mounts = parse(SAMPLE);
        let filesystem =
            |path: &str| place(&mounts, Path::new(path)).map(|index| mounts[index].filesystem.as_str());
        assert_eq!(filesystem("/dev/shm/x"), Some("ramfs"));
        assert_eq!(filesystem("/dev/shmx"), Some("ext4"));
        assert_eq!(filesystem("/mnt/with blank/x"), Some("xfs"));
    }
}
