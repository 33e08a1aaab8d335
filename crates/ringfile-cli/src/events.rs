//! Shows the library's warnings on standard error, one line each, without tearing the progress bar.

use std::fmt;
use std::io::{self, Write};

use indicatif::ProgressBar;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::error::one_line;

/// Shows warnings from now on; `bar` is hidden while one is written.
pub fn show(bar: Option<ProgressBar>) {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(Level::WARN)
        .event_format(OneLine)
        .with_writer(move || Line { bar: bar.clone() })
        .finish();
    // Fails only if there is another subscriber, as in tests that run in one process; that one shows the warnings then.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Formats an event as `warning: ` and its message.
struct OneLine;

impl<S, N> FormatEvent<S, N> for OneLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        writer.write_str("warning: ")?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Writes to standard error while the progress bar is hidden. The subscriber writes whole lines.
struct Line {
    bar: Option<ProgressBar>,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let line = one_line(text.trim_end_matches('\n')) + "\n";
        let write = || io::stderr().write_all(line.as_bytes());
        self.bar.as_ref().map_or_else(write, |bar| bar.suspend(write))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
