//! Tables, printed as Markdown that is readable in a terminal too, and used by pages.
//!
//! Invariants: nothing is cut off. A table wider than the terminal is folded into several, each with the columns that
//! name its rows; if not even those fit, every row becomes a list.

use std::borrow::Cow;
use std::fmt;

use crate::terminal;

/// A table of titled columns: text is aligned left, numbers right.
#[derive(Debug, Default)]
pub struct Table {
    columns: Vec<Column>,
    /// How many of the columns, from the first, name the rows.
    keys: usize,
    rows: Vec<Vec<String>>,
}

/// The title of a column.
type Title = Cow<'static, str>;

#[derive(Debug)]
struct Column {
    title: Title,
    number: bool,
}

impl Table {
    /// Adds a column of text.
    pub fn text(mut self, title: impl Into<Title>) -> Table {
        self.columns.push(Column { title: title.into(), number: false });
        self
    }

    /// Adds a column of numbers.
    pub fn number(mut self, title: impl Into<Title>) -> Table {
        self.columns.push(Column { title: title.into(), number: true });
        self
    }

    /// Makes the columns added so far those that name the rows.
    pub fn end_keys(mut self) -> Table {
        self.keys = self.columns.len();
        self
    }

    /// Inserts a column of text before the others, which names the rows too.
    pub fn first(mut self, title: &'static str) -> Table {
        self.columns.insert(0, Column { title: title.into(), number: false });
        self.keys += 1;
        self
    }

    /// Changes the title of the last column that names the rows to say what the table is about.
    pub fn titled(mut self, title: &'static str) -> Table {
        if let Some(column) = self.keys.checked_sub(1).and_then(|last| self.columns.get_mut(last)) {
            column.title = title.into();
        }
        self
    }

    /// Adds a row, one cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Returns each column's title, whether it holds numbers, and whether it names the rows.
    pub fn columns(&self) -> impl Iterator<Item = (&str, bool, bool)> {
        self.columns
            .iter()
            .enumerate()
            .map(|(index, column)| (&*column.title, column.number, index < self.keys))
    }

    /// Returns the cells.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Returns whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the table as text, folded to a width in characters if one is given.
    pub fn text_of_width(&self, width: Option<usize>) -> String {
        let widths = self.widths();
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let line = |columns: &[usize]| columns.iter().map(|&column| widths[column] + 1).sum::<usize>() + 1;
        let Some(width) = width.filter(|&width| line(&all) > width) else { return self.to_string() };
        let keys = &all[..self.keys];
        let mut folds: Vec<Vec<usize>> = Vec::new();
        for &column in &all[self.keys..] {
            match folds.last_mut() {
                Some(fold) if line(fold) + widths[column] < width => fold.push(column),
                _ => folds.push([keys, &[column]].concat()),
            }
        }
        if folds.iter().any(|fold| line(fold) > width) {
            return self.lists(width);
        }
        let folds: Vec<String> = folds.iter().map(|fold| self.text_of(fold, &widths)).collect();
        folds.join("\n")
    }

    /// Returns every row as a list of `title cell` items.
    fn lists(&self, width: usize) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&self.columns).enumerate().filter(|(_, (cell, _))| !cell.is_empty());
            let items: Vec<String> = cells
                .map(|(index, (cell, column))| {
                    let item = format!("{} {cell}", column.title);
                    // A no-break space keeps a title with its cell; the first may be too long for that.
                    if index == 0 { item } else { item.replace(' ', "\u{a0}") }
                })
                .collect();
            text += &terminal::wrap(&format!("- {}", items.join(", ")), width, "  ").replace('\u{a0}', " ");
            text.push('\n');
        }
        text
    }

    /// Returns some of the columns as text; `widths` are those of all columns.
    fn text_of(&self, columns: &[usize], widths: &[usize]) -> String {
        let line = |cell_of: &dyn Fn(usize) -> String| {
            let cells = columns.iter().map(|&index| {
                let (cell, width) = (cell_of(index), widths[index]);
                // No padding around cells: with it the usual table would not fit into 100 columns.
                if self.columns[index].number {
                    format!("|{cell:>width$}")
                } else {
                    format!("|{cell:<width$}")
                }
            });
            cells.collect::<String>() + "|\n"
        };
        let dashes = |index: usize| match self.columns[index].number {
            true => "-".repeat(widths[index] - 1) + ":",
            false => "-".repeat(widths[index]),
        };
        let rows = self.rows.iter().map(|row| line(&|index| row[index].clone()));
        line(&|index| self.columns[index].title.to_string()) + &line(&dashes) + &rows.collect::<String>()
    }

    fn widths(&self) -> Vec<usize> {
        let width = |text: &str| text.chars().count();
        let cells = |index: usize| self.rows.iter().filter_map(move |row| row.get(index));
        let columns = self.columns.iter().enumerate();
        columns
            .map(|(index, column)| {
                // Markdown needs at least three dashes below a title.
                cells(index).map(|cell| width(cell)).max().unwrap_or(0).max(width(&column.title)).max(3)
            })
            .collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<usize> = (0..self.columns.len()).collect();
        f.write_str(&self.text_of(&columns, &self.widths()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_markdown() {
        let mut table = Table::default().text("engine").number("IOPS");
        table.row(vec!["ringfile".into(), "1,204k".into()]);
        table.row(vec!["fio".into(), "1".into()]);
        assert_eq!(
            table.to_string(),
            "|engine  |  IOPS|\n|--------|-----:|\n|ringfile|1,204k|\n|fio     |     1|\n"
        );
    }

    #[test]
    fn a_table_that_is_too_wide_is_folded_with_its_keys_and_loses_nothing() {
        let mut table = Table::default().text("engine").number("jobs").end_keys();
        table = table.number("IOPS").number("mean µs").number("p50");
        table.row(vec!["ringfile".into(), "2".into(), "1,204k".into(), "12.3".into(), "9.9".into()]);
        assert_eq!(table.text_of_width(None), table.to_string());
        assert_eq!(table.text_of_width(Some(34)), table.to_string());
        assert_eq!(
            table.text_of_width(Some(33)),
            "|engine  |jobs|  IOPS|mean µs|\n|--------|---:|-----:|------:|\n|ringfile|   2|1,204k|   12.3|\n\n\
             |engine  |jobs|p50|\n|--------|---:|--:|\n|ringfile|   2|9.9|\n"
        );
        assert_eq!(
            table.text_of_width(Some(20)),
            "- engine ringfile,\n  jobs 2,\n  IOPS 1,204k,\n  mean µs 12.3,\n  p50 9.9\n"
        );
    }
}
