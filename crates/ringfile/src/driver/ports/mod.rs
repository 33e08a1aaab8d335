//! The ports of a driver: its ways to the kernel.
//!
//! A port takes submissions, gives completions, cancels, and is where the thread may sleep: the main ring ([`RingPort`]),
//! a ring of each other kind, made when it is first needed, and Linux AIO ([`AioPort`]). Knows slots, whose memory
//! entries name, and files; knows no future, handler or result. Invariants:
//!
//! - an entry names only memory that its slot owns (`held`, and `parts`, which lists addresses inside `held`), and a slot
//!   releases that memory only when the operation was withdrawn or answered ([`super::slot`]). A buffer's address does
//!   not change when the buffer moves (the contract of [`IoBuf`](crate::IoBuf));
//! - whatever the kernel answers to a system call, the ports remain usable, and an operation that it did not take is
//!   [`Lost`].

mod aio;
mod commands;
mod enter;
mod entry;
mod kind;
mod make;
mod ring;
mod set;
mod signals;

pub(super) use commands::answer;
pub(super) use enter::{Rest, Turn};
pub(crate) use kind::PortKind;
pub(super) use set::{Lost, Ports};
pub(crate) use signals::CompletionSignals;
