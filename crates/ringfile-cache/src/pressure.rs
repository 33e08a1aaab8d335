//! Lowers a cache's budget while the kernel reports that memory is short.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::cache::Shared;

/// Tasks that waited for memory for 100 ms within two seconds: the shortest window that a process without privileges
/// may ask for.
const TRIGGER: &[u8] = b"some 100000 2000000\0";
/// For how long there must be no report before the budget is raised.
const QUIET: Duration = Duration::from_secs(10);

/// Short, so that the thread ends soon after the cache.
const TURN: Duration = Duration::from_secs(1);

/// Starts a thread that changes the budget, from what was set down to an eighth of it, as long as the cache exists.
pub(crate) fn watch(cache: &Arc<Shared>) -> io::Result<()> {
    let file = reports().map_err(|error| {
        let what = format!(
            "the kernel does not report memory pressure here ({error}): make the cache without `pressure`"
        );
        io::Error::new(io::ErrorKind::Unsupported, what)
    })?;
    let cache = Arc::downgrade(cache);
    std::thread::Builder::new().name("ringfile-pressure".into()).spawn(move || run(file, &cache))?;
    Ok(())
}

/// Opens the reports for this process's control group if there are any, otherwise for the machine, and asks for them.
fn reports() -> io::Result<std::fs::File> {
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::/"));
    let of_group = group.map(|group| PathBuf::from("/sys/fs/cgroup").join(group).join("memory.pressure"));
    let open = |path: &PathBuf| std::fs::OpenOptions::new().read(true).write(true).open(path);
    let mut file = match of_group.as_ref().map(open) {
        Some(Ok(file)) => file,
        _ => open(&"/proc/pressure/memory".into())?,
    };
    file.write_all(TRIGGER)?;
    Ok(file)
}

fn run(mut file: std::fs::File, cache: &Weak<Shared>) {
    let mut quiet = Duration::ZERO;
    loop {
        let mut descriptors = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::PRI)];
        let timeout = TURN.try_into().ok();
        let is_short = match poll(&mut descriptors, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => false,
            // The control group is gone, so this process is in another one. The kernel may set `PRI` too, at each call.
            Ok(_) if descriptors[0].revents().contains(PollFlags::ERR) => match reports() {
                Ok(next) => {
                    file = next;
                    false
                }
                Err(error) => {
                    return tracing::warn!(%error, "the cache's budget no longer follows the pressure");
                }
            },
            Ok(_) => true,
            Err(_) => return,
        };
        let Some(cache) = cache.upgrade() else { return };
        follow(&cache, is_short, &mut quiet);
    }
}

/// Changes the budget after a report, or after a turn without one.
fn follow(cache: &Shared, is_short: bool, quiet: &mut Duration) {
    let (most, budget) = (cache.wanted_budget(), cache.lock().memory.budget());
    let next = next_budget(budget, most, is_short, quiet);
    if next != budget {
        tracing::debug!(budget, next, is_short, "the cache's budget follows the pressure of memory");
        if let Err(error) = cache.set_budget(next) {
            tracing::warn!(%error, "the cache's budget cannot be changed");
        }
    }
}

/// Returns the budget after a report, or after a turn without one. `quiet` is for how long there was none.
fn next_budget(budget: usize, most: usize, is_short: bool, quiet: &mut Duration) -> usize {
    *quiet = if is_short { Duration::ZERO } else { *quiet + TURN };
    if is_short {
        return (budget - budget / 8).max(most / 8);
    }
    if *quiet < QUIET || budget == most {
        return budget;
    }
    *quiet = Duration::ZERO;
    (budget + most / 16).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_falls_with_each_report_and_rises_when_there_was_none_for_ten_seconds() {
        let most = 160 << 20;
        let mut quiet = Duration::ZERO;
        let mut budget = most;
        let reports = (1..).take_while(|_| {
            let before = budget;
            budget = next_budget(budget, most, true, &mut quiet);
            budget < before
        });
        assert_eq!(reports.count(), 16);
        assert_eq!(budget, 20 << 20, "not below an eighth");
        for _ in 0..9 {
            assert_eq!(next_budget(budget, most, false, &mut quiet), budget);
        }
        assert_eq!(next_budget(budget, most, false, &mut quiet), 30 << 20);
        assert_eq!(next_budget(30 << 20, most, false, &mut quiet), 30 << 20, "ten more seconds");
        quiet = QUIET;
        assert_eq!(next_budget(most - 1, most, false, &mut quiet), most, "not above what was set");
    }

    #[test]
    fn a_lower_budget_stays_although_there_is_no_pressure() -> io::Result<()> {
        let cache = crate::Cache::new(64 << 20)?;
        let mut quiet = Duration::ZERO;
        let mut turn = |is_short| follow(&cache.shared, is_short, &mut quiet);
        cache.set_budget(16 << 20)?;
        (0..20).for_each(|_| turn(false));
        assert_eq!(cache.budget(), 16 << 20);
        turn(true);
        assert!(cache.budget() < 16 << 20);
        // The budget is raised after ten seconds without pressure, up to what was set.
        (0..40).for_each(|_| turn(false));
        assert_eq!(cache.budget(), 16 << 20);
        Ok(())
    }

    #[test]
    fn a_cache_watches_the_pressure_where_the_kernel_reports_it() {
        match crate::Cache::builder(1 << 20).pressure(true).build() {
            Ok(cache) => assert_eq!(cache.budget(), 1 << 20),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}"),
        }
    }
}
