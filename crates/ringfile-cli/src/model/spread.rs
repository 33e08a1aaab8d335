//! Medians and ranges over rounds, and grouping of runs.

use super::{Role, Run};

/// Median, minimum and maximum of several figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median; with an even number of figures, the mean of the middle two.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Spread {
    /// Computes the spread of some figures; `None` if there are none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Spread { median, min, max })
    }
}

/// Runs of the same setup, over their rounds.
pub type Group<'a> = Vec<&'a Run>;

/// Returns the runs of each setup over all rounds, without A/A runs, in the order they were made.
pub fn groups(runs: &[Run]) -> Vec<Group<'_>> {
    let measured: Vec<&Run> = runs.iter().filter(|run| run.role == Role::Measure).collect();
    by(&measured, |run| run.setup).into_iter().map(|(_, group)| group).collect()
}

/// Groups things by name, in the order in which the names first occur.
pub fn by<T: Copy, N: PartialEq>(things: &[T], name: impl Fn(T) -> N) -> Vec<(N, Vec<T>)> {
    let mut groups: Vec<(N, Vec<T>)> = Vec::new();
    for &thing in things {
        let name = name(thing);
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, group)) => group.push(thing),
            None => groups.push((name, vec![thing])),
        }
    }
    groups
}

/// Returns each value once, in the order in which the values first occur.
pub fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_odd_even_one_and_none() {
        let spread = |figures: &[f64]| Spread::of(figures.iter().copied());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(spread(&[4.0, 1.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(spread(&[5.0]), Some(Spread { median: 5.0, min: 5.0, max: 5.0 }));
        assert_eq!(spread(&[]), None);
    }
}
