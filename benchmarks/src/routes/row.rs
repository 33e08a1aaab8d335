//! The rows of the table, and how they are chosen by name.

use std::fmt;
use std::str::FromStr;

/// How the operations use the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Every page is in the cache.
    Cached,
    /// No page is in the cache, and none is used twice.
    Uncached,
    /// O_DIRECT.
    Direct,
}

/// Reading or writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the file.
    Read,
    /// To it.
    Write,
}

/// One row.
#[derive(Debug, Clone)]
pub struct Row {
    /// Name of the place.
    pub place: String,
    /// See [`Mode`].
    pub mode: Mode,
    /// See [`Direction`].
    pub direction: Direction,
    /// Operations in flight.
    pub depth: usize,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Cached => "cached",
            Mode::Uncached => "uncached",
            Mode::Direct => "direct",
        }
    }
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}

impl Row {
    /// Returns all rows of a place. Reads come first, because writes leave pages that reads do not expect.
    pub fn all(place: &str, depths: &[usize]) -> impl Iterator<Item = Row> {
        let directions = [Direction::Read, Direction::Write];
        let modes = [Mode::Cached, Mode::Uncached, Mode::Direct];
        directions.into_iter().flat_map(move |direction| {
            modes.into_iter().flat_map(move |mode| {
                depths.iter().map(move |&depth| Row { place: place.to_owned(), mode, direction, depth })
            })
        })
    }

    /// Returns the mode and the direction as text.
    pub fn work(&self) -> String {
        format!("{} {}", self.mode.name(), self.direction.name())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.place, self.mode.name(), self.direction.name(), self.depth)
    }
}

/// Parts of a row's name: a chosen row must have all of them.
#[derive(Debug, Clone)]
pub struct Pattern(Vec<String>);

impl Pattern {
    /// Returns whether the row's name has all of these parts.
    pub fn matches(&self, row: &Row) -> bool {
        let name = row.to_string();
        self.0.iter().all(|part| name.split('/').any(|own| own == part))
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        if text.is_empty() {
            return Err("the name of a row is empty".to_owned());
        }
        Ok(Pattern(text.split('/').map(str::to_owned).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_parts_of_their_name() {
        let rows: Vec<Row> = Row::all("ext4", &[1, 16]).collect();
        assert_eq!(rows.len(), 12);
        let count = |text: &str| {
            let pattern: Pattern = text.parse().unwrap();
            rows.iter().filter(|row| pattern.matches(row)).count()
        };
        assert_eq!(
            ["ext4", "direct", "read/cached", "cached/read/16", "xfs", "1"].map(count),
            [12, 4, 2, 1, 0, 6]
        );
    }
}
