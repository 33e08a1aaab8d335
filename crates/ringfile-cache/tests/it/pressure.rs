//! The budget under the pressure of memory of a control group of version 2. The test moves this process into the group,
//! so it is the only one of its program.

use std::fs;
use std::hint::black_box;
use std::io::{self, Error};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{PAGE, bytes, skip};
use ringfile::{OpenOptions, block_on};
use ringfile_cache::{Cache, CachedFile};

const GROUPS: &str = "/sys/fs/cgroup";
const BUDGET: usize = 64 << 20;
const PAGES: u64 = (BUDGET / PAGE) as u64;
/// What the group may have beyond the full cache, and what is allocated beside it.
const ROOM: usize = 8 << 20;
const OTHERS: usize = 40 << 20;
/// What the process's other memory may grow by.
const SLACK: usize = 4 << 20;

/// A new control group with this process in it, which leaves it when this is dropped.
struct Group {
    path: PathBuf,
    before: PathBuf,
}

impl Group {
    /// Makes a group and enters it; the error says what this machine lacks.
    fn enter() -> Result<Self, String> {
        let of_children = fs::read_to_string(Path::new(GROUPS).join("cgroup.subtree_control"));
        let of_children = of_children.map_err(|error| format!("no control groups of version 2: {error}"))?;
        if !of_children.split_whitespace().any(|controller| controller == "memory") {
            return Err("control groups have no controller for memory".into());
        }
        fs::read_to_string("/proc/pressure/memory")
            .map_err(|error| format!("no reports of pressure: {error}"))?;
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let before = own.lines().find_map(|line| line.strip_prefix("0::/")).ok_or("not in a group")?;
        let path = Path::new(GROUPS).join(format!("ringfile-cache-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("cannot make a control group: {error}"))?;
        let group = Self { path, before: Path::new(GROUPS).join(before) };
        group.set("cgroup.procs", "0").map_err(|error| format!("cannot enter a control group: {error}"))?;
        Ok(group)
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.path.join(file), value)
    }

    /// Returns the memory of all its processes that is no file's, in bytes.
    fn memory(&self) -> io::Result<usize> {
        let stat = fs::read_to_string(self.path.join("memory.stat"))?;
        let bytes = stat.lines().find_map(|line| line.strip_prefix("anon ")?.parse().ok());
        bytes.ok_or_else(|| Error::other("memory.stat has no anon"))
    }

    fn leave(&self) -> io::Result<()> {
        fs::write(self.before.join("cgroup.procs"), "0")?;
        fs::remove_dir(&self.path)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.leave();
    }
}

/// Uses `OTHERS` bytes again and again until `until` holds.
fn press(until: impl Fn() -> bool) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let mut others = vec![0_u8; OTHERS];
                for page in others.chunks_mut(PAGE) {
                    page[0] = 1;
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                black_box(&others);
            }
        });
        let came = wait(until);
        is_over.store(true, Ordering::Relaxed);
        assert!(came, "the budget did not fall");
    });
}

/// Waits, for two minutes at most, and returns whether `until` holds.
fn wait(until: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(120);
    while !until() && Instant::now() < end {
        thread::sleep(Duration::from_millis(100));
    }
    until()
}

fn check(pages: &CachedFile) -> io::Result<()> {
    (0..PAGES).try_for_each(|page| {
        assert!(*block_on(pages.read(page))? == *bytes(page, 1), "page {page}");
        Ok(())
    })
}

#[test]
fn the_budget_follows_the_pressure_of_the_control_group() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    fs::write(&path, (0..PAGES).flat_map(|page| bytes(page, 1)).collect::<Vec<_>>())?;
    fs::File::open(&path)?.sync_all()?;
    let group = match Group::enter() {
        Ok(group) => group,
        Err(why) => {
            skip("the_budget_follows_the_pressure_of_the_control_group", why);
            return Ok(());
        }
    };
    let cache = Cache::builder(BUDGET).pressure(true).build()?;
    let file = OpenOptions::new().read(true).direct(true).buffered_fallback(true).open_blocking(&path)?;
    let pages = cache.open(file, PAGE)?;
    check(&pages)?;
    assert_eq!((cache.budget(), cache.metrics().bytes), (BUDGET, BUDGET));
    let filled = group.memory()?;
    assert!(filled >= BUDGET, "{filled}");

    group.set("memory.high", &(filled + ROOM).to_string())?;
    // Then the group is still above `memory.high` with the rest.
    press(|| cache.budget() <= BUDGET * 3 / 4);
    let low = cache.budget();
    assert!(cache.metrics().bytes <= low, "{:?}", cache.metrics());
    let left = group.memory()?;
    assert!(left <= filled - (BUDGET - low) + SLACK, "{left} of {filled} with a budget of {low}");
    check(&pages)?;

    assert!(wait(|| cache.budget() > low), "the budget stays at {low}");
    check(&pages)?;
    // Elsewhere it follows the pressure of the next group.
    group.leave()?;
    let before = cache.budget();
    assert!(before == BUDGET || wait(|| cache.budget() > before), "the budget stays at {before}");
    check(&pages)
}
