//! Loom models: each tries every interleaving of a few threads over code of the library that is compiled unchanged, with
//! loom's atomics and locks instead of std's.
//!
//! Run them with `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile --test loom`; without the flag this program is empty.

#![cfg(loom)]

mod mailbox;
mod shared;
mod sleep;
