//! How much memory the page cache is expected to have for this process.

use std::fs;
use std::path::Path;

use crate::memory::meminfo;
use crate::once::Value;

const TOTAL: &str = "MemTotal:";

/// Returns half of the memory that this process may use, in bytes: the process itself needs the rest. Read once.
pub(super) fn bytes() -> u64 {
    static ROOM: Value<u64> = Value::new();
    *ROOM.get_or(|| {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let machine = meminfo(&text, TOTAL).unwrap_or(1 << 30);
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = limit(&groups, |path| fs::read_to_string(path).ok()).unwrap_or(machine);
        machine.min(group) / 2
    })
}

/// Returns the lowest limit of the process's control groups, of either version.
fn limit(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let (root, name, own) = match line.split(':').collect::<Vec<_>>()[..] {
            ["0", "", own] => ("/sys/fs/cgroup", "memory.max", own),
            [_, "memory", own] => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", own),
            _ => return None,
        };
        let folder = Path::new(root).join(own.trim_start_matches('/'));
        let all = folder.ancestors().take_while(|folder| folder.starts_with(root));
        all.filter_map(|folder| read(&folder.join(name))?.trim().parse().ok()).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_all_groups_counts() {
        let read = |path: &Path| match path.to_str()? {
            "/sys/fs/cgroup/a/b/memory.max" => Some("max\n".to_owned()),
            "/sys/fs/cgroup/a/memory.max" => Some("1048576\n".to_owned()),
            "/sys/fs/cgroup/memory/y/memory.limit_in_bytes" => Some("4096\n".to_owned()),
            _ => None,
        };
        assert_eq!(limit("4:memory:/y\n0::/\n", read), Some(4096));
        assert_eq!(limit("1:name=x:/y\n0::/a/b\n", read), Some(1 << 20));
        assert_eq!(limit("0::/\n", read), None);
        assert_eq!(limit("", read), None);
    }

    #[test]
    fn the_machines_memory_is_read() {
        let text = "MemTotal:       24684728 kB\nMemFree: 1 kB\n";
        assert_eq!(meminfo(text, TOTAL), Some(24_684_728 << 10));
        assert!(bytes() > 1 << 20);
    }
}
