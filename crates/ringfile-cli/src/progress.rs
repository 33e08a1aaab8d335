//! How far a command is, on a terminal's standard error; nothing anywhere else.
//!
//! It costs next to no CPU time, for that would be counted as the measurement's.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::error::one_line;
use crate::events;

/// Progress through steps of known length, and the place for remarks meanwhile.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    total: Duration,
    done: Duration,
    step: Duration,
    step_start: Instant,
}

impl Progress {
    /// For steps that take `total` together. Shows the library's warnings too, unless `quiet`.
    pub fn new(total: Duration, quiet: bool) -> Progress {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(millis(total));
            // Two a second: drawing is the only thing beside the measurement that takes CPU time.
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(2));
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}%  {msg}") {
                bar.set_style(style);
            }
            bar
        });
        if !quiet {
            events::show(bar.clone());
        }
        Progress { bar, quiet, total, done: Duration::ZERO, step: Duration::ZERO, step_start: Instant::now() }
    }

    /// Begins a step that takes about `length`; the one before it is done.
    pub fn begin(&mut self, length: Duration) {
        self.done += self.step;
        self.step = length;
        self.step_start = Instant::now();
    }

    /// Shows how far the step is.
    pub fn tick(&self, label: &str) {
        let Some(bar) = &self.bar else { return };
        let position = self.done + self.step_start.elapsed().min(self.step);
        let left = Duration::from_secs(self.total.saturating_sub(position).as_secs());
        bar.set_position(millis(position));
        bar.set_message(format!("{} left  {label}", humantime::format_duration(left)));
    }

    /// Says something that the user should know now, in a line of its own.
    pub fn warn(&self, text: &str) {
        if self.quiet {
            return;
        }
        let write = || {
            // Nobody is left to be told when standard error is gone.
            let _ = writeln!(std::io::stderr(), "warning: {}", one_line(text));
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
