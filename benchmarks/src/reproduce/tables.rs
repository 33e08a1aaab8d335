//! Figures from tables that programs print as Markdown.

use std::io;

use ringfile_cli::shared::Spread;

/// The tables of one output, each with the line before it.
pub struct Tables {
    tables: Vec<Table>,
    text: String,
}

struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Tables {
    /// Finds the tables.
    pub fn parse(text: &str) -> Tables {
        let mut tables = Vec::new();
        let mut title = String::new();
        let mut open: Option<Table> = None;
        for line in text.lines().map(str::trim).chain([""]) {
            if let Some(cells) = cells(line) {
                match &mut open {
                    None => open = Some(Table { title: title.clone(), columns: cells, rows: Vec::new() }),
                    Some(_) if cells.iter().all(|cell| cell.trim_matches(['-', ':', ' ']).is_empty()) => {}
                    Some(table) => table.rows.push(inherited(cells, table.rows.last())),
                }
            } else {
                tables.extend(open.take());
                if !line.is_empty() {
                    line.clone_into(&mut title);
                }
            }
        }
        Tables { tables, text: text.to_owned() }
    }

    /// Returns the cell in this column of the first row with these cells, in a table with this in its title; both may be
    /// empty.
    pub fn cell(&self, title: &str, row: &[&str], column: &str) -> io::Result<&str> {
        let tables = || self.tables.iter().filter(|table| table.title.contains(title));
        let found = tables().find_map(|table| {
            let at = table.columns.iter().position(|name| name == column)?;
            table.rows.iter().find(|cells| has(cells, row))?.get(at)
        });
        found.map(String::as_str).ok_or_else(|| {
            io::Error::other(format!(
                "no column {column:?} and row {row:?} in a table titled {title:?}: what was printed has changed"
            ))
        })
    }

    /// Returns the rest of the first line after this title that begins with these words, without its full stop.
    pub fn after(&self, title: &str, words: &str) -> io::Result<&str> {
        let rest = self.text.split_once(title).map(|(_, rest)| rest);
        let line = rest.and_then(|rest| rest.lines().find_map(|line| line.strip_prefix(words)));
        line.map(|line| line.trim_end_matches('.')).ok_or_else(|| {
            io::Error::other(format!("no line {words:?} below {title:?}: what was printed has changed"))
        })
    }
}

fn has(cells: &[String], row: &[&str]) -> bool {
    row.iter().all(|wanted| cells.iter().any(|cell| cell == wanted))
}

/// Returns the cells of a line of a table; `None` for another line.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(|cell| cell.trim().to_owned()).collect())
}

/// Fills the cells that a row does not repeat, from the first, with those of the row before.
fn inherited(mut cells: Vec<String>, before: Option<&Vec<String>>) -> Vec<String> {
    let empty = cells.iter_mut().take_while(|cell| cell.is_empty());
    empty.zip(before.into_iter().flatten()).for_each(|(cell, above)| cell.clone_from(above));
    cells
}

/// Reads `1.23 [1.10..1.31]`.
pub fn spread(cell: &str) -> io::Result<Spread> {
    let read = || {
        let (median, rest) = cell.split_once(" [")?;
        let (min, max) = rest.strip_suffix(']')?.split_once("..")?;
        Some(Spread { median: median.parse().ok()?, min: min.parse().ok()?, max: max.parse().ok()? })
    };
    read().ok_or_else(|| io::Error::other(format!("{cell:?} is not a median with its range")))
}

/// Reads changes in per cent, the median `+37` and the range `-6.0..+41`, as ratios.
pub fn changes(median: &str, range: &str) -> io::Result<Spread> {
    let ratio = |percent: &str| Some(1.0 + percent.parse::<f64>().ok()? / 100.0);
    let read = || {
        let (min, max) = range.split_once("..")?;
        Some(Spread { median: ratio(median)?, min: ratio(min)?, max: ratio(max)? })
    };
    read().ok_or_else(|| io::Error::other(format!("{median:?} and {range:?} are not changes in per cent")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "### Reads, depth 16\n\n| side | rate / side |\n|---|--:|\n| a | 1.50 [1.25..2.00] |\n\n\
                        |change|depth|figure|%|least..most|\n|---|---:|---|---:|---:|\n\
                        |a/fio|  16|IOPS| +37| -6.0..+41|\n|    |    |CPU| -31| -50..-3.4|\n";

    #[test]
    fn figures_are_found_by_title_row_and_column() {
        let tables = Tables::parse(TEXT);
        let found = spread(tables.cell("depth 16", &["a"], "rate / side").unwrap()).unwrap();
        assert_eq!((found.median, found.min, found.max), (1.5, 1.25, 2.0));
        let cpu = |column| tables.cell("", &["a/fio", "16", "CPU"], column).unwrap();
        let found = changes(cpu("%"), cpu("least..most")).unwrap();
        assert!([found.median - 0.69, found.min - 0.5, found.max - 0.966].iter().all(|off| off.abs() < 1e-9));
        assert_eq!(tables.after("depth 16", "| a | ").unwrap(), "1.50 [1.25..2.00] |");
        assert!(tables.after("depth 16", "### Reads").is_err());
        assert!(tables.cell("depth 128", &["a"], "rate / side").is_err());
        assert!(tables.cell("", &["b"], "rate / side").is_err());
    }
}
