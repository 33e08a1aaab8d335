//! What comes out of a command: results as data (JSON), and as tables to read.

pub mod batches;
pub mod behind;
pub mod buffers;
pub mod change;
pub mod cold;
mod columns;
pub mod enters;
pub mod judge;
pub mod output;
pub mod outputs;
pub mod pool;
pub mod profile;
pub mod results;
pub mod saved;
pub mod statistics;
pub mod summary;
pub mod table;
pub mod whole_machine;
