//! Output for a terminal: lines that fit its width, and a progress bar that stays on one line even when the terminal
//! echoes Ctrl-C beside it.

use std::io;

use console::Term;
use indicatif::TermLike;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

use crate::error::one_line;

/// Returns the columns of standard output's terminal; `None` if it is not a terminal.
pub fn width() -> Option<usize> {
    let term = Term::stdout();
    let (_, columns) = term.is_term().then(|| term.size_checked()).flatten()?;
    // Some terminals report 0 if they do not know their width.
    Some(usize::from(columns)).filter(|&columns| columns > 0)
}

/// Breaks a text between words into lines of at most `width` characters; all but the first begin with `indent`. A
/// longer word gets its own line.
pub fn wrap(text: &str, width: usize, indent: &str) -> String {
    let options = Options::new(width).subsequent_indent(indent).break_words(false);
    let options =
        options.word_separator(WordSeparator::AsciiSpace).word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(text, options.wrap_algorithm(WrapAlgorithm::FirstFit))
}

/// Returns the notes for standard output, each on its own lines.
pub fn notes(notes: &[String], width: Option<usize>) -> String {
    lines(notes.iter().map(|note| format!("- {}", one_line(note))), width)
}

/// Returns each text on its own lines, broken at a width if one is given.
pub fn lines(texts: impl IntoIterator<Item = String>, width: Option<usize>) -> String {
    let broken = |text: String| width.map_or_else(|| text.clone(), |width| wrap(&text, width, "  ")) + "\n";
    texts.into_iter().map(broken).collect()
}

/// Standard error, reported as a little narrower than it is. A progress bar fills its line to the last column; the
/// terminal's echo of `^C` would then start a new line, and the bar's line would never be cleared.
#[derive(Debug)]
pub struct BarTerminal(Term);

impl BarTerminal {
    /// Columns left free, for `^C` twice.
    const FREE: u16 = 4;

    /// Returns standard error, drawn without a delay.
    pub fn stderr() -> BarTerminal {
        BarTerminal(Term::buffered_stderr())
    }

    /// Returns the columns available to the bar.
    pub fn columns(&self) -> u16 {
        self.0.size().1.saturating_sub(Self::FREE).max(1)
    }
}

impl TermLike for BarTerminal {
    fn width(&self) -> u16 {
        self.columns()
    }

    fn height(&self) -> u16 {
        self.0.size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_up(n)
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_down(n)
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_right(n)
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_left(n)
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.0.write_line(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.write_str(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("- one two three", 9, "  "), "- one two\n  three");
        assert_eq!(wrap("- one", 80, "  "), "- one");
        assert_eq!(wrap("- /a/path/that/is/long here", 10, "  "), "-\n  /a/path/that/is/long\n  here");
    }
}
