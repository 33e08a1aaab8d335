//! The tables and notes that commands print, and how differences are judged.

pub mod batches;
pub mod behind;
pub mod buffers;
pub mod change;
pub mod cold;
pub mod judge;
pub mod medians;
pub mod mixed;
pub mod output;
pub mod pool;
pub mod profile;
pub mod routes;
pub mod saved;
pub mod table;
pub mod verdict;

use crate::model::{Kind, Results};
use table::Table;

/// Returns the tables that a command prints; none is empty.
pub fn tables(results: &Results) -> Vec<Table> {
    let runs = &results.runs;
    let mut tables = match results.kind {
        Some(Kind::Buffers) => {
            buffers::tables(results).into_iter().chain([profile::table(&results.profile)]).collect()
        }
        Some(Kind::Pool) => vec![pool::table(runs), pool::changes(runs)],
        Some(Kind::Batch | Kind::Multiread) => vec![batches::table(runs), change::table(runs)],
        Some(Kind::Mixed) => mixed::tables(runs),
        Some(Kind::File) | None => vec![medians::table(runs), change::table(runs)],
    };
    tables.retain(|table| !table.is_empty());
    tables
}
