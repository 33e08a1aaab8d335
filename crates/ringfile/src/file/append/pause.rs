//! The time between two syncs of an appender: a timer that is read like a file, in any executor and on every route.

use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::error::{Error, Result};
use crate::file::File;

/// The timer of an appender with a least time between syncs.
pub(super) struct Pause {
    timer: File,
    interval: Duration,
    /// When the last sync started.
    synced: Option<Instant>,
}

impl Pause {
    pub fn new(interval: Duration) -> Result<Self> {
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)
            .map_err(|errno| Error::from_errno(errno.raw_os_error(), "making an appender's timer"))?;
        Ok(Self { timer: std::fs::File::from(timer).into(), interval, synced: None })
    }

    /// Returns the timer, which is readable when the pause is over.
    pub fn timer(&self) -> &File {
        &self.timer
    }

    /// Notes that a sync starts now.
    pub fn sync_starts(&mut self) {
        self.synced = Some(Instant::now());
    }

    /// Sets the timer. Returns false if the pause is over already.
    pub fn begin(&self) -> bool {
        let left =
            self.synced.map_or(Duration::ZERO, |synced| self.interval.saturating_sub(synced.elapsed()));
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let setting = Itimerspec { it_interval: never, it_value: once };
        // Setting a timer that exists to a valid time does not fail; if it did, the sync would come early.
        !left.is_zero()
            && rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting).is_ok()
    }
}
