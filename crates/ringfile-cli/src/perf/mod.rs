//! `ringfile perf`: measurements.

pub mod file;
mod notes;
mod plan;
