//! The progress bar, on standard error if that is a terminal; otherwise nothing.
//!
//! It must take next to no CPU time, since that would be counted as the measurement's.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::error::one_line;
use crate::events;
use crate::terminal::BarTerminal;

/// Shows the progress through steps of known length, and prints messages without tearing the bar.
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
    /// Returns a progress bar for steps that take `total` together. Also shows the library's warnings, unless `quiet`.
    pub fn new(total: Duration, quiet: bool) -> Progress {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let bar = (!quiet && !dumb && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(millis(total));
            // Draws twice a second: apart from the measurement, only drawing takes CPU time.
            let terminal = Box::new(BarTerminal::stderr());
            bar.set_draw_target(ProgressDrawTarget::term_like_with_hz(terminal, 2));
            if let Ok(style) = ProgressStyle::with_template("{percent:>3}%  {msg}  {wide_bar}") {
                bar.set_style(style);
            }
            bar
        });
        if !quiet {
            events::show(bar.clone());
        }
        Progress { bar, quiet, total, done: Duration::ZERO, step: Duration::ZERO, step_start: Instant::now() }
    }

    /// Ends the previous step, and begins one that takes about `length`.
    pub fn begin(&mut self, length: Duration) {
        self.done += self.step;
        self.step = length;
        self.step_start = Instant::now();
    }

    /// Shows the progress of the step, and as many parts of its label as there is room for.
    pub fn tick(&self, label: &[String]) {
        let Some(bar) = &self.bar else { return };
        let position = self.done + self.step_start.elapsed().min(self.step);
        let left = Duration::from_secs(self.total.saturating_sub(position).as_secs());
        bar.set_position(millis(position));
        // The percentage and the blanks after it take six columns, the blanks before the bar two.
        let room = usize::from(BarTerminal::stderr().columns()).saturating_sub(8);
        bar.set_message(message(&format!("{} left", humantime::format_duration(left)), label, room));
    }

    /// Prints a warning on its own line.
    pub fn warn(&self, text: &str) {
        self.say(&format!("warning: {text}"));
    }

    /// Prints what is about to be done.
    pub fn say(&self, text: &str) {
        if self.quiet {
            return;
        }
        let write = || {
            // If standard error is closed, nobody can be told.
            let _ = writeln!(std::io::stderr(), "{}", one_line(text));
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Returns the text beside the bar, in at most `room` columns if the first part of the label fits.
fn message(left: &str, label: &[String], room: usize) -> String {
    let mut message = left.to_string();
    for (index, part) in label.iter().enumerate() {
        let next = format!("{}{part}", if index == 0 { "  " } else { ", " });
        if message.chars().count() + next.chars().count() > room {
            break;
        }
        message += &next;
    }
    message
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_do_not_fit_are_left_out_whole() {
        let label = ["ringfile".to_string(), "jobs 2".to_string(), "depth 16".to_string()];
        assert_eq!(message("3s left", &label, 80), "3s left  ringfile, jobs 2, depth 16");
        assert_eq!(message("3s left", &label, 30), "3s left  ringfile, jobs 2");
        assert_eq!(message("3s left", &label, 10), "3s left");
    }
}
