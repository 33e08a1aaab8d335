//! Columns that a table has only where they say something: page cache, route, executor.
//!
//! Knows runs. Invariant: titles and cells are the same columns in the same order.

use super::results::Run;
use super::table::Table;
use crate::cli::{Cache, Executor, Route};
use crate::values;

/// What tells runs apart beside what every table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extra {
    /// Page cache before the run.
    pub cache: Cache,
    /// Way of ringfile's operations.
    pub route: Option<Route>,
    /// Who ran ringfile's tasks.
    pub executor: Option<Executor>,
}

impl Extra {
    /// That of a run.
    pub fn of(run: &Run) -> Extra {
        Extra { cache: run.cache, route: run.route, executor: run.executor }
    }
}

/// Which of them a table shows.
#[derive(Debug, Clone, Copy)]
pub struct Columns {
    cache: bool,
    route: bool,
    executor: bool,
}

impl Columns {
    /// Those that these runs differ in, or in which they are not as usual.
    pub fn of(runs: &[Run]) -> Columns {
        let cache = runs.iter().any(|run| run.cache != runs[0].cache);
        let routes: Vec<Route> = runs.iter().filter_map(|run| run.route).collect();
        let usual = |run: &Run| if run.direct && run.batch.is_none() { Route::Ring } else { Route::Auto };
        let route = routes.iter().any(|&route| route != routes[0])
            || runs.iter().any(|run| run.route.is_some_and(|route| route != usual(run)));
        let executor = runs.iter().any(|run| run.batch.is_none() && run.executor == Some(Executor::Tokio));
        Columns { cache, route, executor }
    }

    /// Adds the columns.
    pub fn titles(self, mut table: Table) -> Table {
        for (shown, title) in [(self.cache, "cache"), (self.route, "route"), (self.executor, "executor")] {
            if shown {
                table = table.text(title);
            }
        }
        table
    }

    /// The cells under them.
    pub fn cells(self, extra: Extra) -> impl Iterator<Item = String> {
        let or_none = |word: Option<String>| word.unwrap_or_else(|| "-".into());
        [
            (self.cache, values::name(&extra.cache)),
            (self.route, or_none(extra.route.as_ref().map(values::name))),
            (self.executor, or_none(extra.executor.as_ref().map(values::name))),
        ]
        .into_iter()
        .filter_map(|(shown, cell)| shown.then_some(cell))
    }
}
