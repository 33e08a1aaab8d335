//! What the whole machine does during a run, on behalf of any process: CPU time and interrupts from /proc/stat, and the
//! bytes moved to and from memory, if the machine counts them.
//!
//! The figures of the measuring processes do not include all costs: interrupts run on any core, and a loop device or a
//! file system has kernel threads.

mod memory;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::WholeMachine;

pub use memory::why_not as why_no_memory_bandwidth;

/// What the machine has done on all cores, since it started or during an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Whole {
    /// CPU time in user space.
    pub user: Duration,
    /// CPU time in the kernel, without interrupts.
    pub system: Duration,
    /// CPU time of hardware and software interrupts.
    pub interrupts: Duration,
    /// Idle time, including time waiting for I/O.
    pub idle: Duration,
    /// Time stolen by other guests of the host.
    pub stolen: Duration,
    /// Number of interrupts.
    pub interrupt_count: u64,
    /// Bytes moved to and from memory.
    pub memory_bytes: Option<u64>,
}

impl Whole {
    /// Returns the totals so far; `None` if /proc does not have them.
    pub fn so_far() -> Option<Whole> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        Some(Whole { memory_bytes: memory::bytes_so_far(), ..parse(&text, ticks_per_second()?)? })
    }

    /// Returns what was done since an earlier call. Idle and stolen time may decrease a little in the kernel's
    /// counters.
    pub fn since(&self, earlier: &Whole) -> Whole {
        Whole {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            idle: self.idle.saturating_sub(earlier.idle),
            stolen: self.stolen.saturating_sub(earlier.stolen),
            interrupt_count: self.interrupt_count.saturating_sub(earlier.interrupt_count),
            memory_bytes: self
                .memory_bytes
                .zip(earlier.memory_bytes)
                .map(|(now, then)| now.saturating_sub(then)),
        }
    }

    /// Converts it for the results, as done in this many seconds.
    pub fn in_time(&self, seconds: f64) -> WholeMachine {
        let per_cent = |time: Duration| time.as_secs_f64() * 100.0 / seconds;
        WholeMachine {
            user_percent: per_cent(self.user),
            system_percent: per_cent(self.system),
            interrupts_percent: per_cent(self.interrupts),
            idle_percent: per_cent(self.idle),
            stolen_percent: per_cent(self.stolen),
            interrupts: self.interrupt_count,
            memory_bw_bytes: self.memory_bytes.map(|bytes| bytes as f64 / seconds),
        }
    }
}

fn ticks_per_second() -> Option<u64> {
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
    u64::try_from(ticks).ok().filter(|&ticks| ticks > 0)
}

/// proc(5): `cpu user nice system idle iowait irq softirq steal …` in ticks, `intr` with the sum of all first. Time of guests is
/// in user and nice already.
fn parse(text: &str, ticks_per_second: u64) -> Option<Whole> {
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let ticks: Vec<u64> = line("cpu")?.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let time = |columns: &[usize]| {
        let sum: u64 = columns.iter().filter_map(|&column| ticks.get(column)).sum();
        Duration::from_micros(sum * 1_000_000 / ticks_per_second)
    };
    Some(Whole {
        user: time(&[0, 1]),
        system: time(&[2]),
        idle: time(&[3, 4]),
        interrupts: time(&[5, 6]),
        stolen: time(&[7]),
        interrupt_count: line("intr")?.split_whitespace().next()?.parse().ok()?,
        memory_bytes: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_is_counted_once() {
        let text = "cpu  1 20 300 4000 50000 600000 7000000 80000000 9 9\ncpu0 5 5 5\nintr 77 1 2\nctxt 3\n";
        let whole = parse(text, 100).expect("it is complete");
        let ticks = |count: u64| Duration::from_millis(count * 10);
        assert_eq!((whole.user, whole.system, whole.idle), (ticks(21), ticks(300), ticks(54_000)));
        assert_eq!((whole.interrupts, whole.stolen), (ticks(7_600_000), ticks(80_000_000)));
        assert_eq!((whole.interrupt_count, whole.memory_bytes), (77, None));
        assert!(parse("intr 5\n", 100).is_none() && parse("cpu 1 2 3 4\n", 100).is_none());
    }

    #[test]
    fn the_time_of_all_cores_passes() {
        let Some(before) = Whole::so_far() else {
            eprintln!("asserts nothing: there is no /proc/stat here");
            return;
        };
        std::thread::sleep(Duration::from_millis(100));
        let passed = Whole::so_far().expect("as before").since(&before);
        let all = passed.user + passed.system + passed.interrupts + passed.idle + passed.stolen;
        assert!(all > Duration::from_millis(20), "{passed:?}");
    }
}
