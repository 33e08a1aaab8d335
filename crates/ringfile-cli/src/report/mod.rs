//! What comes out of a command: results as data (JSON), and as tables to read.

pub mod batches;
pub mod change;
mod columns;
pub mod output;
pub mod pool;
pub mod results;
pub mod statistics;
pub mod summary;
pub mod table;
