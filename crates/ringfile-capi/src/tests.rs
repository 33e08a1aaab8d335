//! The interface as a C program uses it, from Rust.
