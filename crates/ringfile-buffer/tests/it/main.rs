//! The tests that use pools and buffers as a program does.

#![allow(clippy::unwrap_used, reason = "a test panics on anything unexpected")]

mod pool;
mod traits;
