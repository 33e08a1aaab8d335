//! Shows the library's warnings on standard error, one line each, without tearing the progress bar.

use std::io::{self, Write};

use indicatif::ProgressBar;
use tracing::Level;

use crate::error::one_line;

/// Shows warnings from now on; `bar` is hidden while one is written.
pub fn show(bar: Option<ProgressBar>) {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(Level::WARN)
        .without_time()
        .with_level(false)
        .with_target(false)
        .with_ansi(false)
        .with_writer(move || EventLine { bar: bar.clone() })
        .finish();
    // Fails only if there is another subscriber, as in tests that run in one process; that one shows the warnings then.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Writes warnings to standard error while the progress bar is hidden. The subscriber writes whole lines.
struct EventLine {
    bar: Option<ProgressBar>,
}

impl Write for EventLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let line = format!("warning: {}\n", one_line(text.trim_end_matches('\n')));
        let write = || io::stderr().write_all(line.as_bytes());
        self.bar.as_ref().map_or_else(write, |bar| bar.suspend(write))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
