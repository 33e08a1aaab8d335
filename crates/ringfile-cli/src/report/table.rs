//! Markdown tables that are readable in a terminal too, and the short numbers in them.

use std::fmt;

/// A table: titles and rows of cells, text to the left, numbers to the right.
#[derive(Debug, Default)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

#[derive(Debug)]
struct Column {
    title: &'static str,
    number: bool,
}

impl Table {
    /// Adds a column of text.
    pub fn text(mut self, title: &'static str) -> Table {
        self.columns.push(Column { title, number: false });
        self
    }

    /// Adds a column of numbers.
    pub fn number(mut self, title: &'static str) -> Table {
        self.columns.push(Column { title, number: true });
        self
    }

    /// Adds a row, one cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn widths(&self) -> Vec<usize> {
        let width = |text: &str| text.chars().count();
        let cells = |index: usize| self.rows.iter().filter_map(move |row| row.get(index));
        let columns = self.columns.iter().enumerate();
        columns
            .map(|(index, column)| {
                // Three is the least that Markdown takes for the line below the titles.
                cells(index).map(|cell| width(cell)).max().unwrap_or(0).max(width(column.title)).max(3)
            })
            .collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let line = |f: &mut fmt::Formatter<'_>, cells: &mut dyn Iterator<Item = &str>| {
            for ((cell, column), width) in cells.zip(&self.columns).zip(&widths) {
                // One blank is enough: with two the usual table would not fit into 100 columns.
                if column.number {
                    write!(f, "|{cell:>width$}")?;
                } else {
                    write!(f, "|{cell:<width$}")?;
                }
            }
            writeln!(f, "|")
        };
        line(f, &mut self.columns.iter().map(|column| column.title))?;
        let rules: Vec<String> = self
            .columns
            .iter()
            .zip(&widths)
            .map(
                |(column, &width)| {
                    if column.number { "-".repeat(width - 1) + ":" } else { "-".repeat(width) }
                },
            )
            .collect();
        line(f, &mut rules.iter().map(String::as_str))?;
        for row in &self.rows {
            line(f, &mut row.iter().map(String::as_str))?;
        }
        Ok(())
    }
}

/// A count for each second in at most six characters: `830`, `12.3k`, `1,204k`.
pub fn rate(value: f64) -> String {
    if value < 1000.0 {
        format!("{value:.0}")
    } else if value < 99_950.0 {
        format!("{:.1}k", value / 1000.0)
    } else {
        format!("{}k", grouped(value / 1000.0))
    }
}

/// Any other figure, with about three digits: `0.72`, `12.3`, `1,204`.
pub fn figure(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        grouped(value)
    }
}

/// A change in per cent, with its sign: `+3.2`, `-41`.
pub fn change(value: f64) -> String {
    if value.abs() < 9.95 { format!("{value:+.1}") } else { format!("{value:+.0}") }
}

/// A whole number with its thousands apart.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (830.2, "830"), (12_345.0, "12.3k"), (99_960.0, "100k"), (1.2e6, "1,200k")]
        {
            assert_eq!(rate(value), text);
        }
        for (value, text) in
            [(0.724, "0.72"), (9.999, "10.0"), (12.34, "12.3"), (99.96, "100"), (1234567.0, "1,234,567")]
        {
            assert_eq!(figure(value), text);
        }
        for (value, text) in [(3.21, "+3.2"), (-41.4, "-41"), (0.0, "+0.0"), (250.0, "+250")] {
            assert_eq!(change(value), text);
        }
    }

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
}
