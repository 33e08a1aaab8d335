//! The threads of this process, as `/proc` shows them. The tests of other crates include this file too.

use std::io::BufRead;
use std::time::{Duration, Instant};

use super::patience::patience;

/// What the kernel has of a thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Thread {
    pub id: i32,
    /// At most 15 bytes.
    pub name: String,
    /// The signals that it blocks: bit 0 is signal 1.
    pub blocked: u64,
    /// The cores on which it may run, such as `0-1`.
    pub cores: String,
    pub nice: i32,
    /// `SCHED_…`.
    pub class: i32,
    /// In nanoseconds; `None` where only root may know it.
    pub timer_slack: Option<u64>,
    /// Such as `default`; `None` if the kernel has no memory policies.
    pub memory_policy: Option<String>,
}

impl Thread {
    /// Returns a thread of this process; `None` if it has ended.
    pub fn of(id: i32) -> Option<Self> {
        let read = |what: &str| std::fs::read_to_string(format!("/proc/self/task/{id}/{what}")).ok();
        let (status, stat) = (read("status")?, read("stat")?);
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(|value| value.trim().to_owned())
        };
        // The name, which comes second, may have blanks and brackets: the third field follows the last bracket.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse().ok();
        let slack = std::fs::read_to_string(format!("/proc/{id}/timerslack_ns"));
        let mut mapping = String::new();
        let maps = std::fs::File::open(format!("/proc/{id}/numa_maps"));
        let _ = maps.map(|maps| std::io::BufReader::new(maps).read_line(&mut mapping));
        Some(Self {
            id,
            name: field("Name")?,
            blocked: u64::from_str_radix(&field("SigBlk")?, 16).ok()?,
            cores: field("Cpus_allowed_list")?,
            nice: number(19)?,
            class: number(41)?,
            timer_slack: slack.ok().and_then(|slack| slack.trim().parse().ok()),
            memory_policy: mapping.split(' ').nth(1).map(str::to_owned),
        })
    }

    /// Returns the first thread of this process.
    pub fn first() -> Self {
        Self::of(std::process::id().cast_signed()).unwrap()
    }

    /// Returns all threads of this process.
    pub fn all() -> impl Iterator<Item = Self> {
        let all = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        all.filter_map(|entry| Self::of(entry.file_name().to_str()?.parse().ok()?))
    }

    /// Waits until there is a thread whose name begins so, and `is` is true of it.
    #[track_caller]
    pub fn wait_for(name: &str, is: impl Fn(&Self) -> bool) -> Self {
        let began = Instant::now();
        loop {
            let found = Self::all().find(|thread| thread.name.starts_with(name));
            if let Some(thread) = found.as_ref().filter(|thread| is(thread)) {
                return thread.clone();
            }
            assert!(began.elapsed() < patience(), "waited in vain: {found:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns whether it blocks all signals but those that report its own faults.
    pub fn blocks_all_but_faults(&self) -> bool {
        let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
        // Nobody can block the first two; the C library keeps some of the others for itself.
        let not_blocked = [libc::SIGKILL, libc::SIGSTOP].into_iter().chain(32..libc::SIGRTMIN());
        let bits = |signals: &mut dyn Iterator<Item = i32>| {
            signals.fold(0_u64, |all, signal| all | 1 << (signal - 1))
        };
        self.blocked | bits(&mut not_blocked.into_iter()) == !bits(&mut faults.into_iter())
    }
}
