//! The tests that use caches as a program does. `support` is what they share.

#![allow(clippy::unwrap_used, reason = "a test panics on anything unexpected")]

mod churn;
mod faults;
mod forks;
mod held;
mod model;
mod pages;
mod passages;
mod pressure;
mod races;
mod sandbox;
#[cfg(feature = "sim")]
mod sim;
mod sizes;
mod support;
mod threads;
mod waits;
