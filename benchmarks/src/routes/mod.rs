//! `compare routes`: the same random I/O on each route, and with `Route::Auto`, which chooses one.
//!
//! Knows the command line and the order of the measurements. Prints each row of the table when it is complete; rows
//! that this machine cannot measure are listed below the table, each with the reason.

mod pages;
mod place;
mod row;
mod run;
mod table;

use std::io;
use std::time::Duration;

use clap::Args;
use ringfile::Route;
use ringfile_cli::shared;

use place::{Named, Place};
use row::{Pattern, Row};
use run::{Outcome, Refused};

use crate::rounds::in_turn;

/// The columns. The last one is `auto` once more (A/A): how far it is from the column before it shows the noise.
const SIDES: &[(&str, Route)] = &[
    ("ring", Route::Ring),
    ("inline", Route::Inline),
    ("workers", Route::Workers),
    ("aio", Route::Aio),
    ("auto", Route::Auto),
    ("A/A", Route::Auto),
];
/// The number of columns that are single routes.
const SINGLE: usize = 4;

/// The command line.
#[derive(Debug, Args)]
pub struct Options {
    /// NAME=PATH, given once for each place: a folder, in which a file is created and later removed, or a file or block
    /// device whose contents may be lost
    #[arg(long = "place", required = true)]
    places: Vec<Named>,
    /// Allow overwriting the files and devices that --place names
    #[arg(long)]
    fill: bool,
    /// Only rows that match one of these: parts of place/mode/direction/depth, such as ext4/direct or cached/read/16
    #[arg(long, value_delimiter = ',')]
    only: Vec<Pattern>,
    /// Bytes of the file
    #[arg(long, default_value = "256m", value_parser = shared::size)]
    size: u64,
    /// Operations in flight
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    depth: Vec<usize>,
    /// Counted seconds of one run
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Length of the warm-up before each run, which is not counted
    #[arg(long, default_value = "200ms", value_parser = shared::duration)]
    warmup: Duration,
    /// Rounds of all routes in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seed of the offsets
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Measures, and prints the table.
pub fn compare(options: &Options) -> io::Result<()> {
    if options.rounds == 0 || options.depth.contains(&0) {
        return Err(io::Error::other("rounds and depth: must be at least 1"));
    }
    let duration = Duration::try_from_secs_f64(options.seconds).map_err(io::Error::other)?;
    let mut skipped = Vec::new();
    table::header();
    let mut runs = run::Runs::new(duration, options.warmup, options.seed);
    for named in &options.places {
        let rows: Vec<Row> = Row::all(&named.name, &options.depth)
            .filter(|row| options.only.is_empty() || options.only.iter().any(|only| only.matches(row)))
            .collect();
        if rows.is_empty() {
            continue;
        }
        let place = Place::make(named, options.size, options.fill)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", named.name)))?;
        for row in &rows {
            match measure(&mut runs, &place, row, options.rounds) {
                Ok(outcomes) => table::row(row, &outcomes),
                Err(Refused::Skipped(why)) => skipped.push(format!("{row}: {why}")),
                Err(Refused::Failed(error)) => {
                    return Err(io::Error::new(error.kind(), format!("{row}: {error}")));
                }
            }
        }
    }
    table::footer(options.rounds, duration, runs.checked(), &skipped);
    Ok(())
}

/// Returns the outcomes of one row, for each side in the order of [`SIDES`].
fn measure(
    runs: &mut run::Runs,
    place: &Place,
    row: &Row,
    rounds: usize,
) -> Result<Vec<Vec<Outcome>>, Refused> {
    in_turn(rounds, SIDES.len(), |round, side| {
        let (name, route) = SIDES[side];
        if route == Route::Aio && row.mode != row::Mode::Direct {
            return Ok(None);
        }
        let outcome = runs.run(place, row, route)?;
        eprintln!("round {round}/{rounds} {row} {name:<8} {:>9.1} kIOPS", outcome.kiops);
        Ok(Some(outcome))
    })
}
