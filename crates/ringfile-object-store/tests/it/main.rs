//! The tests that use stores as a program does. `support` is what they share.

#![allow(clippy::unwrap_used, reason = "a test panics on anything unexpected")]

#[cfg(feature = "object-store-014")]
mod cache;
#[cfg(feature = "object-store-014")]
mod callers;
#[cfg(feature = "object-store-014")]
mod closing;
#[cfg(feature = "object-store-014")]
mod descriptors;
#[cfg(feature = "object-store-014")]
mod folders;
#[cfg(feature = "object-store-014")]
mod handles;
mod integration;
#[cfg(feature = "object-store-014")]
mod names;
#[cfg(feature = "object-store-014")]
mod renaming;
#[cfg(all(feature = "sim", feature = "object-store-014"))]
mod simulated;
#[cfg(feature = "object-store-014")]
mod stalled;
mod support;
