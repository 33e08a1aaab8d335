//! The vocabulary that every other part of the program shares: what is varied, and what is measured.
//!
//! A [`Setup`] holds the value of every factor of one run, a [`Run`] a setup and its measured figures, and [`Results`]
//! all runs of one command, as the JSON has them. [`Factor`] and [`Metric`] are catalogues of what a setup and a run
//! contain, with names and access; [`columns`] lists which tables show each metric. Nothing here knows the command line,
//! an engine, or how anything is displayed.

pub mod advice;
mod choices;
pub mod columns;
mod factor;
mod metric;
mod profile;
mod results;
mod run;
mod setup;
mod spread;

pub use choices::{Access, Buffers, Cache, Engine, Memory, Open, RingFlags, Route, Rw, Side};
pub use factor::{Factor, differing, telling, words};
pub use metric::Metric;
pub use profile::{Hot, Profile};
pub use results::{Behind, Kind, Machine, Params, Results, SCHEMA};
pub use run::{MixedRun, PoolFigures, PoolRun, Role, RouteOps, Run, WholeMachine};
pub use setup::{Batching, Setup, Way};
pub use spread::{Group, Spread, by, distinct, groups};
