//! What is varied and what is measured: the vocabulary that every other part of the program shares.
//!
//! A [`Setup`] is the value of every factor of one run, a [`Run`] is a setup with what was measured, and [`Results`] are
//! all runs of one command, as the JSON has them. [`Factor`] and [`Metric`] are the catalogues of both: how each is
//! called, and how it is read from a run; [`columns`] lists where each metric is shown. Nothing here knows the command line, an engine, or how anything is shown.

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

pub use choices::{Access, Buffers, Cache, Engine, Executor, Memory, Open, RingFlags, Route, Rw, Side};
pub use factor::{Factor, differing, telling, words};
pub use metric::{Better, Metric};
pub use profile::{Hot, Profile};
pub use results::{Behind, Kind, Machine, Params, Results, SCHEMA};
pub use run::{Actor, EnterSizes, MixedRun, PoolFigures, PoolRun, Role, RouteOps, Run, WholeMachine};
pub use setup::{Batching, Setup, Way};
pub use spread::{Spread, by, distinct, groups};
