//! The rows of a result, for comparisons that ignore their order.

use std::cmp::Ordering;

use anyhow::{Result, bail};
use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float64Type};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// Sums of floating-point numbers depend on the order of summing, but differ by less than this fraction.
const TOLERANCE: f64 = 1e-9;

#[derive(Clone, PartialEq, Debug)]
enum Cell {
    /// A value with exactly one text, including decimals, which are exact.
    Exact(String),
    Float(f64),
}

/// The rows of a result, sorted.
#[derive(Clone, Debug)]
pub struct Rows(Vec<Vec<Cell>>);

impl Rows {
    /// Creates it from the rows of a result.
    ///
    /// # Errors
    /// If a value cannot be shown as text.
    pub fn new(batches: &[RecordBatch]) -> Result<Self> {
        let mut rows = Vec::new();
        for batch in batches {
            let columns: Vec<_> =
                batch.columns().iter().map(|column| cells(column)).collect::<Result<_>>()?;
            rows.extend(
                (0..batch.num_rows()).map(|row| columns.iter().map(|column| column[row].clone()).collect()),
            );
        }
        rows.sort_by(|one: &Vec<Cell>, other| order(one, other));
        Ok(Self(rows))
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that these rows are the expected ones.
    ///
    /// # Errors
    /// If they differ; the error names the first row that does.
    pub fn expect(&self, expected: &Self) -> Result<()> {
        if self.len() != expected.len() {
            bail!("{} rows instead of {}", self.len(), expected.len());
        }
        for (number, (row, expected)) in self.0.iter().zip(&expected.0).enumerate() {
            if !same(row, expected) {
                bail!("row {number} is {row:?} instead of {expected:?}");
            }
        }
        Ok(())
    }
}

fn cells(column: &dyn Array) -> Result<Vec<Cell>> {
    if matches!(column.data_type(), DataType::Float16 | DataType::Float32 | DataType::Float64) {
        let floats = cast(column, &DataType::Float64)?;
        let floats = floats.as_primitive::<Float64Type>().iter();
        return Ok(floats.map(|float| float.map_or(Cell::Exact("NULL".into()), Cell::Float)).collect());
    }
    let options = FormatOptions::default().with_null("NULL");
    let formatter = ArrayFormatter::try_new(column, &options)?;
    (0..column.len()).map(|row| Ok(Cell::Exact(formatter.value(row).try_to_string()?))).collect()
}

/// Compares the exact cells of two rows first, so that rows with nearly equal floats are in the same order on both sides.
fn order(one: &[Cell], other: &[Cell]) -> Ordering {
    let exact = |row: &[Cell]| -> Vec<String> {
        row.iter()
            .filter_map(|cell| if let Cell::Exact(text) = cell { Some(text.clone()) } else { None })
            .collect()
    };
    let floats = |row: &[Cell]| -> Vec<f64> {
        row.iter()
            .filter_map(|cell| if let Cell::Float(float) = cell { Some(*float) } else { None })
            .collect()
    };
    exact(one).cmp(&exact(other)).then_with(|| {
        let (one, other) = (floats(one), floats(other));
        one.iter()
            .zip(&other)
            .map(|(one, other)| one.total_cmp(other))
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    })
}

fn same(row: &[Cell], expected: &[Cell]) -> bool {
    row.len() == expected.len()
        && row.iter().zip(expected).all(|cells| match cells {
            (Cell::Exact(one), Cell::Exact(other)) => one == other,
            (Cell::Float(one), Cell::Float(other)) => {
                one == other
                    || one.is_nan() && other.is_nan()
                    || (one - other).abs() <= TOLERANCE * one.abs().max(other.abs())
            }
            (Cell::Exact(_), Cell::Float(_)) | (Cell::Float(_), Cell::Exact(_)) => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{ArrayRef, Decimal128Array, Float64Array, StringArray};
    use std::sync::Arc;

    fn rows(names: &[Option<&str>], floats: &[f64], decimals: &[i128]) -> Rows {
        let names: ArrayRef = Arc::new(StringArray::from(names.to_vec()));
        let floats: ArrayRef = Arc::new(Float64Array::from(floats.to_vec()));
        let decimals: ArrayRef = Arc::new(Decimal128Array::from(decimals.to_vec()));
        Rows::new(&[RecordBatch::try_from_iter([("n", names), ("f", floats), ("d", decimals)]).unwrap()])
            .unwrap()
    }

    #[test]
    fn rows_are_equal_but_for_order_and_rounding() {
        let expected = rows(&[Some("a"), Some("b"), None], &[1.0, 2.0, 3.0], &[1, 2, 3]);
        let same = rows(&[None, Some("a"), Some("b")], &[3.0 + 1e-12, 1.0, 2.0], &[3, 1, 2]);
        same.expect(&expected).unwrap();
        for other in [
            rows(&[Some("a"), Some("b"), None], &[1.0, 2.0, 3.001], &[1, 2, 3]),
            rows(&[Some("a"), Some("b"), None], &[1.0, 2.0, 3.0], &[1, 2, 4]),
            rows(&[Some("a"), Some("b"), Some("")], &[1.0, 2.0, 3.0], &[1, 2, 3]),
            rows(&[Some("a"), Some("b")], &[1.0, 2.0], &[1, 2]),
        ] {
            other.expect(&expected).unwrap_err();
        }
    }
}
