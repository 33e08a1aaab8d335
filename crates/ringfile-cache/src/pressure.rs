//! Lowers a cache's budget while the kernel reports that memory is short.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ringfile::internal::{above_standard, start_thread};
use rustix::event::{PollFd, PollFlags, poll};

use crate::budget::Budget;
use crate::shared::Shared;

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
    start_thread("ringfile-pressure", move || run(file, &cache))
}

/// Opens the reports for this process's control group if there are any, otherwise for the machine, and asks for them.
fn reports() -> io::Result<std::fs::File> {
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::/"));
    let of_group = group.map(|group| PathBuf::from("/sys/fs/cgroup").join(group).join("memory.pressure"));
    let open = |path: &PathBuf| {
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
        io::Result::Ok(std::fs::File::from(above_standard(opened.into())?))
    };
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

/// Changes the budget after a report, or after a turn without one. `quiet` is for how long there was none.
fn follow(cache: &Shared, is_short: bool, quiet: &mut Duration) {
    *quiet = if is_short { Duration::ZERO } else { *quiet + TURN };
    let change = match is_short {
        true => Budget::lower,
        false if *quiet >= QUIET => Budget::raise,
        false => return,
    };
    *quiet = Duration::ZERO;
    match cache.change_budget(change) {
        Ok(None) => {}
        Ok(Some(budget)) => {
            tracing::debug!(budget, is_short, "the cache's budget follows the pressure of memory");
        }
        Err(error) => tracing::warn!(%error, "the cache's budget cannot be changed"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use tracing::span;

    use super::*;
    use crate::Cache;

    #[test]
    fn the_budget_rises_when_there_was_no_report_for_ten_seconds() -> io::Result<()> {
        let cache = Cache::new(64 << 20)?;
        let mut quiet = Duration::ZERO;
        let mut turn = |is_short| {
            follow(&cache.shared, is_short, &mut quiet);
            cache.budget()
        };
        assert_eq!(turn(true), 56 << 20);
        (0..9).for_each(|_| assert_eq!(turn(false), 56 << 20));
        assert_eq!(turn(false), 60 << 20);
        (0..9).for_each(|_| assert_eq!(turn(false), 60 << 20, "ten more seconds"));
        assert_eq!(turn(false), 64 << 20);
        Ok(())
    }

    #[test]
    fn a_lower_budget_stays_although_there_is_no_pressure() -> io::Result<()> {
        let cache = Cache::new(64 << 20)?;
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
    fn f72_a_budget_that_was_set_is_not_overwritten_by_a_report() {
        let cache = Cache::new(64 << 20).expect("a cache");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Reports, and long times without one, in turn.
                for is_short in [true, false, false].into_iter().cycle() {
                    follow(&cache.shared, is_short, &mut { QUIET });
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let wrong = (0..3000).find_map(|round| {
                let bytes = [4 << 20, 32 << 20, 64 << 20][round % 3];
                let set = cache.set_budget(bytes);
                let mut budgets = std::iter::repeat_with(|| cache.budget()).take(20);
                let wrong = budgets.find(|budget| !(bytes / 8..=bytes).contains(budget));
                (set.is_err() || wrong.is_some()).then_some((bytes, set, wrong))
            });
            is_over.store(true, Ordering::Relaxed);
            assert!(wrong.is_none(), "{wrong:?}");
        });
    }

    /// Counts warnings.
    #[derive(Default)]
    struct Warnings(AtomicUsize);

    impl tracing::Subscriber for &'static Warnings {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn f72_a_small_budget_follows_the_pressure_without_a_warning() -> io::Result<()> {
        static WARNINGS: Warnings = Warnings(AtomicUsize::new(0));
        tracing::subscriber::with_default(&WARNINGS, || {
            for bytes in [4096, 8192, 16384, 28672, 32768] {
                let cache = Cache::new(bytes)?;
                (0..30).for_each(|_| follow(&cache.shared, true, &mut Duration::default()));
                assert_eq!((cache.budget(), WARNINGS.0.load(Ordering::Relaxed)), (4096, 0), "of {bytes}");
            }
            Ok(())
        })
    }

    #[test]
    fn a_cache_watches_the_pressure_where_the_kernel_reports_it() {
        match Cache::builder(1 << 20).pressure(true).build() {
            Ok(cache) => assert_eq!(cache.budget(), 1 << 20),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}"),
        }
    }
}
