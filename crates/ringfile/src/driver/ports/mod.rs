//! The ports of a driver: its ways to the kernel.
//!
//! A port takes submissions, gives completions, cancels, and is where the thread may sleep: the main ring ([`RingPort`](ring::RingPort)),
//! a ring of each other kind, made when it is first needed, and Linux AIO ([`AioPort`](aio::AioPort)). Knows slots, whose memory
//! entries name, and files; knows no future, handler or result. Invariants:
//!
//! - an entry names only memory that its slot owns (`memory`, and `parts`, which lists addresses inside `memory`), and a slot
//!   releases that memory only when the operation was withdrawn or answered ([`super::slots::slot`]). A buffer's address does
//!   not change when the buffer moves (the contract of [`IoBuf`](crate::IoBuf));
//! - whatever the kernel answers to a system call, the ports remain usable, and an operation that it did not take is
//!   [`Rejected`].

mod aio;
mod commands;
mod enter;
pub(super) mod entry;
mod make;
mod ring;
mod set;
mod signals;

pub(super) use commands::answer;
pub(super) use enter::{EnterArgs, SleepIn};
pub(super) use set::{Ports, Rejected};
pub(crate) use signals::CompletionSignals;
