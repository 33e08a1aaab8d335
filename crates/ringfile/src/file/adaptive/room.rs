//! How much memory the page cache may have for this process, and whether some of it is free.
//!
//! Reads no file for a read: [`is_free`] is one atomic load, and [`look`], which is called for a few reads, looks again
//! only when the last look was long enough ago. No thread waits for another one's look.

use std::fs;
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use crate::memory::meminfo;
use once_cell::race::OnceBox;

const TOTAL: &str = "MemTotal:";
const FREE: &str = "MemFree:";

/// Memory becomes full when less than this part of a limit is free. A cache that is full stays so, since the kernel
/// evicts only a little more than it needs.
const FULL_BELOW: u64 = 32;
/// Memory becomes free again when this part of every limit is free. With the usual settings, the kernel stops evicting
/// long before (`watermark_scale_factor`).
const FREE_ABOVE: u64 = 16;
/// The pause after a look lasts this many times as long as the look, so that looking takes 0.3 % of one processor.
const PAUSE: u64 = 300;
const MOST_PAUSE: u64 = 1_000_000_000;

const UNKNOWN: u8 = 0;
const IS_FULL: u8 = 1;
const IS_FREE: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
/// When to look again, in nanoseconds since [`now`] was first called.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// The state that a test has set, instead of the one that was found.
static ASSUMED: AtomicU8 = AtomicU8::new(UNKNOWN);

/// A limit on memory, and how much of it is not used, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Limit {
    bytes: u64,
    free: u64,
}

/// Returns half of the memory that this process may use, in bytes: the process itself needs the rest. Read once.
pub(super) fn bytes() -> u64 {
    static ROOM: OnceBox<u64> = OnceBox::new();
    *ROOM.get_or_init(|| {
        let mut least = None;
        MemoryLimits::new().of_process(|limit| least = Some(least.unwrap_or(u64::MAX).min(limit.bytes)));
        Box::new(least.unwrap_or(1 << 30) / 2)
    })
}

/// Returns whether the page cache can grow without evicting anything, as the last look has found it.
#[inline]
pub(super) fn is_free() -> bool {
    match STATE.load(Ordering::Relaxed) {
        UNKNOWN => look(),
        state => state == IS_FREE,
    }
}

/// Looks whether memory is free, unless the last look was just now. Returns what [`is_free`] does.
pub(super) fn look() -> bool {
    static LIMITS: Mutex<MemoryLimits> = Mutex::new(MemoryLimits::new());
    let (now, was_free) = (now(), STATE.load(Ordering::Relaxed) == IS_FREE);
    if now < NEXT.load(Ordering::Relaxed) {
        return was_free;
    }
    // One thread looks; the others, and a child that was forked meanwhile, go on with what was found before.
    let Ok(mut limits) = LIMITS.try_lock() else { return was_free };
    let assumed = ASSUMED.load(Ordering::Relaxed);
    let (mut known, mut is_free) = (false, assumed != IS_FULL);
    if assumed == UNKNOWN {
        limits.of_process(|limit| (known, is_free) = (true, is_free && has_free(limit, was_free)));
        is_free &= known;
    }
    STATE.store(if is_free { IS_FREE } else { IS_FULL }, Ordering::Relaxed);
    let after = self::now();
    NEXT.store(after + ((after - now) * PAUSE).min(MOST_PAUSE), Ordering::Relaxed);
    is_free
}

/// For this project's tests: sets whether memory is free, or lets it be found out again.
pub fn assume_memory_is_free(is_free: Option<bool>) {
    let assumed = is_free.map_or(UNKNOWN, |is_free| if is_free { IS_FREE } else { IS_FULL });
    ASSUMED.store(assumed, Ordering::Relaxed);
    STATE.store(assumed, Ordering::Relaxed);
    NEXT.store(0, Ordering::Relaxed);
}

fn now() -> u64 {
    static BEGAN: OnceBox<Instant> = OnceBox::new();
    BEGAN.get_or_init(|| Box::new(Instant::now())).elapsed().as_nanos() as u64
}

/// Returns whether enough is free of a limit that memory is free, or stays so.
fn has_free(limit: Limit, was_free: bool) -> bool {
    limit.free >= limit.bytes / if was_free { FULL_BELOW } else { FREE_ABOVE }
}

/// Finds the limits on this process's memory. Its strings are used again, so that a look does not allocate.
struct MemoryLimits {
    groups: String,
    path: String,
    text: String,
}

impl MemoryLimits {
    const fn new() -> Self {
        Self { groups: String::new(), path: String::new(), text: String::new() }
    }

    /// Calls `note` for the machine's limit and those of the process's control groups, to which it may have been moved
    /// meanwhile.
    fn of_process(&mut self, mut note: impl FnMut(Limit)) {
        let machine = read("/proc/meminfo", &mut self.text).and_then(|()| of_machine(&self.text));
        machine.into_iter().for_each(&mut note);
        let mut groups = std::mem::take(&mut self.groups);
        if read("/proc/self/cgroup", &mut groups).is_some() {
            self.of_groups(&groups, read, note);
        }
        self.groups = groups;
    }

    /// Calls `note` for the limits of these control groups, of either version, and of the groups that contain them.
    fn of_groups(
        &mut self,
        groups: &str,
        mut read: impl FnMut(&str, &mut String) -> Option<()>,
        mut note: impl FnMut(Limit),
    ) {
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':');
            let (root, names, used, own) = match (parts.next(), parts.next(), parts.next()) {
                (Some("0"), Some(""), Some(own)) => {
                    ("/sys/fs/cgroup", &["memory.max", "memory.high"][..], "memory.current", own)
                }
                (_, Some("memory"), Some(own)) => {
                    let used = "memory.usage_in_bytes";
                    ("/sys/fs/cgroup/memory", &["memory.limit_in_bytes"][..], used, own)
                }
                _ => continue,
            };
            let mut folder = Some(own.trim_end_matches('/'));
            while let Some(own) = folder {
                let mut figure = |name: &str| -> Option<u64> {
                    self.path.clear();
                    [root, own, "/", name].into_iter().for_each(|part| self.path.push_str(part));
                    read(&self.path, &mut self.text)?;
                    self.text.trim().parse().ok()
                };
                let least = names.iter().filter_map(|name| figure(name)).min();
                // Version 1 has a number of this size where there is no limit.
                if let Some(bytes) = least.filter(|&bytes| bytes < 1 << 62) {
                    note(Limit { bytes, free: bytes.saturating_sub(figure(used).unwrap_or(0)) });
                }
                folder = own.rfind('/').map(|end| &own[..end]);
            }
        }
    }
}

fn of_machine(text: &str) -> Option<Limit> {
    Some(Limit { bytes: meminfo(text, TOTAL)?, free: meminfo(text, FREE)? })
}

fn read(path: &str, text: &mut String) -> Option<()> {
    text.clear();
    // Enough for all that is read, which the kernel gives no length of.
    text.reserve(4096);
    fs::File::open(path).ok()?.read_to_string(text).ok().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_limits_of_all_groups_count() {
        let read = |path: &str, text: &mut String| {
            *text = match path {
                "/sys/fs/cgroup/a/b/memory.max" => "max\n".to_owned(),
                "/sys/fs/cgroup/a/memory.max" => "1048576\n".to_owned(),
                "/sys/fs/cgroup/a/memory.high" => "524288\n".to_owned(),
                "/sys/fs/cgroup/a/memory.current" => "500000\n".to_owned(),
                "/sys/fs/cgroup/memory.max" => "1000\n".to_owned(),
                "/sys/fs/cgroup/memory/memory.limit_in_bytes" => "9223372036854771712\n".to_owned(),
                "/sys/fs/cgroup/memory/y/memory.limit_in_bytes" => "4096\n".to_owned(),
                "/sys/fs/cgroup/memory/y/memory.usage_in_bytes" => "8192\n".to_owned(),
                _ => return None,
            };
            Some(())
        };
        let found = |groups: &str| {
            let mut found = Vec::new();
            MemoryLimits::new().of_groups(groups, read, |limit| found.push((limit.bytes, limit.free)));
            found
        };
        assert_eq!(found("4:memory:/y\n0::/\n"), [(4096, 0), (1000, 1000)]);
        assert_eq!(found("1:name=x:/y\n0::/a/b\n"), [(524_288, 24_288), (1000, 1000)]);
        assert_eq!(found("4:memory:/y/z:1\n"), [(4096, 0)]);
        assert_eq!(found(""), []);
    }

    #[test]
    fn memory_that_is_full_becomes_free_only_when_twice_as_much_is_free() {
        let is_free = |free: u64, was_free| has_free(Limit { bytes: 64 * MIB, free: free * MIB }, was_free);
        assert!(is_free(2, true) && !is_free(2, false));
        assert!(is_free(4, false) && !is_free(1, true));
    }

    #[test]
    fn the_machines_memory_is_read() {
        let text = "MemTotal:       24684728 kB\nMemFree: 1 kB\n";
        assert_eq!(of_machine(text), Some(Limit { bytes: 24_684_728 << 10, free: 1024 }));
        assert!(bytes() > 1 << 20);
    }
}
