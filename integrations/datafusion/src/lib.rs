//! DataFusion and Ballista on [`RingfileStore`](ringfile_object_store::RingfileStore): what the programs of this package share.

pub mod bench;
pub mod rows;
pub mod side;
pub mod tables;
pub mod tpch;
pub mod usage;

/// Compiles the example in README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
