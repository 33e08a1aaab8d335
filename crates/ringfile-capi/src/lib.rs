//! ringfile for C and C++: the library's own types behind handles, one file for each kind.
//!
//! Knows only the public interfaces of ringfile and its page cache. Invariants: no panic crosses the boundary (`error.rs`); a handle that
//! is closed, null or of another kind is detected (`table.rs`, `local.rs`); all access through the caller's pointers is
//! in `raw.rs` and `memory.rs`. The documentation of each function is also that in the header, which cbindgen generates
//! from these files.

#![allow(non_camel_case_types, reason = "names of C")]

mod append;
mod batch;
mod cache;
mod cancel;
mod control;
mod error;
mod file;
mod fork;
mod info;
mod io;
mod local;
mod log;
mod memory;
mod op;
mod path;
mod pool;
mod queue;
mod raw;
mod recent;
mod shared;
#[cfg(test)]
#[path = "../../ringfile/tests/it/support/skip.rs"]
#[allow(dead_code, reason = "unit tests need a part of it")]
mod skip;
mod table;
#[cfg(test)]
mod tests;
