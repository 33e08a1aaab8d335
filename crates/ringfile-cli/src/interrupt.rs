//! Handles Ctrl-C, SIGTERM and SIGHUP: the first signal asks the run to end, a later one ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Failure, errno_text};
use crate::machine::field;

/// Signals that arrive within this time of the first one belong to the same request: timeout(1), for example, sends
/// each signal twice, to the process and to its group.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// Tells whether the user asked the run to end; cheap to clone and to query.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the signal handlers of this process.
    pub fn catch_signals() -> Result<Interrupt, Failure> {
        Self::try_catch().map_err(|error| Failure::Io(format!("can't catch signals: {}", errno_text(&error))))
    }

    fn try_catch() -> io::Result<Interrupt> {
        let interrupt = Interrupt::default();
        // A write beyond RLIMIT_FSIZE then fails with EFBIG, where the signal would end the process and leave its file.
        signal_hook::flag::register(libc::SIGXFSZ, Arc::default())?;
        let mut caught = vec![SIGINT, SIGTERM, SIGQUIT];
        // Under nohup a closed terminal must not end the run.
        if !ignored_from_the_start(SIGHUP) {
            caught.push(SIGHUP);
        }
        let mut signals = Signals::new(caught)?;
        let own = interrupt.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut first = None;
            for _ in signals.forever() {
                own.0.store(true, Ordering::Relaxed);
                if first.get_or_insert_with(Instant::now).elapsed() >= SAME_REQUEST {
                    std::process::exit(130);
                }
            }
        })?;
        Ok(interrupt)
    }

    /// Returns whether the user asked the run to end.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns whether the process was started with this signal ignored, as nohup does.
fn ignored_from_the_start(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = field(&status, "SigIgn").and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}
