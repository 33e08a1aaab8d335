//! What a terminal needs that a file or pipe does not: lines that fit its width, and a progress bar that stays on one
//! line when the terminal echoes Ctrl-C beside it.

use std::io;

use console::Term;
use indicatif::TermLike;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

use crate::error::one_line;

/// Columns of the terminal that standard output is; `None` where it is none.
pub fn width() -> Option<usize> {
    let term = Term::stdout();
    let (_, columns) = term.is_term().then(|| term.size_checked()).flatten()?;
    // Some say 0 when they do not know.
    Some(usize::from(columns)).filter(|&columns| columns > 0)
}

/// Breaks a text between words into lines of at most `width` characters; all but the first begin with `indent`. A word
/// that is longer has a line of its own.
pub fn wrap(text: &str, width: usize, indent: &str) -> String {
    let options = Options::new(width).subsequent_indent(indent).break_words(false);
    let options =
        options.word_separator(WordSeparator::AsciiSpace).word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(text, options.wrap_algorithm(WrapAlgorithm::FirstFit))
}

/// Notes for standard output, each on lines of its own.
pub fn notes(notes: &[String], width: Option<usize>) -> String {
    let line = |note: &String| {
        let note = format!("- {}", one_line(note));
        width.map_or_else(|| note.clone(), |width| wrap(&note, width, "  ")) + "\n"
    };
    notes.iter().map(line).collect()
}

/// Standard error as a terminal that is a little narrower than it is. Progress bars fill their line to the last column;
/// what the terminal echoes then, `^C`, would begin a new line, and the bar's own would never be cleared.
#[derive(Debug)]
pub struct BarTerminal(Term);

impl BarTerminal {
    /// Columns that are left free: `^C` twice.
    const FREE: u16 = 4;

    /// Standard error, drawn to at once.
    pub fn stderr() -> BarTerminal {
        BarTerminal(Term::buffered_stderr())
    }

    /// Columns that there are for the bar.
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
