//! What the whole machine does during a run, on behalf of any process: CPU time and interrupts from /proc/stat.
//!
//! The figures of the measuring processes do not include all costs: interrupts run on any core, and a loop device or a
//! file system has kernel threads.

use std::time::Duration;

use crate::model::WholeMachine;

/// What the machine has done on all cores, since it started or during an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Whole {
    /// CPU time: in user space; in the kernel without interrupts; of hardware and software interrupts; idle, including
    /// time waiting for I/O; stolen by other guests of the host.
    pub times: [Duration; 5],
    /// Number of interrupts.
    pub interrupt_count: u64,
}

impl Whole {
    /// Returns the totals so far; `None` if /proc does not have them.
    pub fn so_far() -> Option<Whole> {
        parse(&std::fs::read_to_string("/proc/stat").ok()?, rustix::param::clock_ticks_per_second())
    }

    /// Returns what was done since an earlier call. Idle and stolen time may decrease a little in the kernel's
    /// counters.
    pub fn since(&self, earlier: &Whole) -> Whole {
        Whole {
            times: std::array::from_fn(|kind| self.times[kind].saturating_sub(earlier.times[kind])),
            interrupt_count: self.interrupt_count.saturating_sub(earlier.interrupt_count),
        }
    }

    /// Converts it for the results, as done in this many seconds.
    pub fn in_time(&self, seconds: f64) -> WholeMachine {
        let [user_percent, system_percent, interrupts_percent, idle_percent, stolen_percent] =
            self.times.map(|time| time.as_secs_f64() * 100.0 / seconds);
        WholeMachine {
            user_percent,
            system_percent,
            interrupts_percent,
            idle_percent,
            stolen_percent,
            interrupts: self.interrupt_count,
        }
    }
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
        times: [time(&[0, 1]), time(&[2]), time(&[5, 6]), time(&[3, 4]), time(&[7])],
        interrupt_count: line("intr")?.split_whitespace().next()?.parse().ok()?,
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
        assert_eq!(whole.times, [21, 300, 7_600_000, 54_000, 80_000_000].map(ticks));
        assert_eq!(whole.interrupt_count, 77);
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
        assert!(passed.times.iter().sum::<Duration>() > Duration::from_millis(20), "{passed:?}");
    }
}
