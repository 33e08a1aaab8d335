//! CPU cycles and instructions of this process, if the machine has counters for them.
//!
//! Counting starts once, before the process has threads, and covers all threads that start later, kernel workers
//! included.

use std::sync::{Mutex, OnceLock, PoisonError};

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

use crate::error::errno_text;

/// Of cycles and of instructions.
type Counters = [Counter; 2];

static COUNTERS: OnceLock<Option<Mutex<Counters>>> = OnceLock::new();

/// Starts counting in this process; if that fails, [`so_far`] returns `None`.
pub fn begin() {
    COUNTERS.get_or_init(|| open().ok().map(Mutex::new));
}

/// Returns the cycles and instructions so far, in user space, and in the kernel if this user may count those; `None` if
/// nothing is counted.
pub fn so_far() -> Option<[u64; 2]> {
    let mut counters = COUNTERS.get()?.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
    let [cycles, instructions] = &mut *counters;
    Some([cycles.read().ok()?, instructions.read().ok()?])
}

/// Returns why nothing is counted; `None` if counting works.
pub fn why_not() -> Option<String> {
    let error = open().err()?;
    Some(match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "this machine has no counters for cycles and instructions (a virtual machine often has none)"
                .into()
        }
        Some(libc::EACCES | libc::EPERM) => {
            "this user may not count: run as root, or lower the sysctl kernel.perf_event_paranoid".into()
        }
        _ => format!("counters can't be opened: {}", errno_text(&error)),
    })
}

fn open() -> std::io::Result<Counters> {
    // An unprivileged user may only count user space.
    counters(true).or_else(|error| match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => counters(false),
        _ => Err(error),
    })
}

fn counters(kernel: bool) -> std::io::Result<Counters> {
    let open = |event: Hardware| {
        let mut counter =
            Builder::new(event).observe_self().any_cpu().inherit(true).exclude_kernel(!kernel).build()?;
        counter.enable()?;
        std::io::Result::Ok(counter)
    };
    Ok([open(Hardware::CPU_CYCLES)?, open(Hardware::INSTRUCTIONS)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_grows_or_gives_the_reason_why_it_cannot_count() {
        begin();
        let Some(before) = so_far() else {
            let why = why_not().expect("a reason");
            assert!(!why.contains('\n') && why.len() > 20, "{why}");
            return;
        };
        let sum: u64 = (0..1000_u64).map(std::hint::black_box).sum();
        let after = so_far().expect("it counted before");
        assert!(sum > 0 && after[1] > before[1] + 1000, "{before:?} {after:?}");
    }
}
