//! How long this machine takes to copy 4 KiB with a system call: the unit of the time limits in [`super::route`].
//!
//! Speed depends on the machine: such a copy takes 0.23 µs on a server of 2024, and ten times that on an emulated
//! processor or in a sandbox that inspects each call. Measured once per process, in 10 µs.

use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{pread, pwrite};

use crate::descriptor::above_standard;
use once_cell::race::OnceBox;

/// The number of bytes that are copied.
pub(super) const BYTES: usize = 4096;
/// The fastest of this many copies counts: others may have been interrupted, or have found the memory cold.
const TRIES: u32 = 16;
/// Used if the time cannot be measured.
const USUAL: Duration = Duration::from_nanos(230);
/// Times outside this range cannot be those of a copy.
const AT_LEAST: Duration = Duration::from_nanos(100);
const AT_MOST: Duration = Duration::from_micros(20);

/// Returns how long a copy takes on this machine.
pub(super) fn get() -> Duration {
    static TIME: OnceBox<Duration> = OnceBox::new();
    *TIME.get_or_init(|| Box::new(believable(measure())))
}

fn believable(measured: Option<Duration>) -> Duration {
    measured.map_or(USUAL, |shortest| shortest.clamp(AT_LEAST, AT_MOST))
}

/// Measures reading from a file in memory; `None` if there is no descriptor or no memory for one.
#[cold]
fn measure() -> Option<Duration> {
    let file = memfd_create(c"ringfile-copy-time", MemfdFlags::CLOEXEC).and_then(above_standard).ok()?;
    let mut bytes = [0; BYTES];
    pwrite(&file, &bytes, 0).ok().filter(|&written| written == BYTES)?;
    (0..TRIES)
        .map(|_| {
            let began = Instant::now();
            pread(&file, &mut bytes[..], 0).ok().filter(|&read| read == BYTES)?;
            Some(began.elapsed())
        })
        .min()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_time_is_limited_and_a_missing_one_is_replaced() {
        assert_eq!(believable(None), USUAL);
        assert_eq!(believable(Some(Duration::ZERO)), AT_LEAST, "a clock that stands still");
        assert_eq!(believable(Some(Duration::from_secs(1))), AT_MOST, "a process that was stopped");
        assert_eq!(believable(Some(Duration::from_micros(2))), Duration::from_micros(2));
    }

    #[test]
    fn the_time_of_a_copy_is_measured_once() {
        assert!(measure().is_some());
        assert_eq!(get(), get());
    }
}
