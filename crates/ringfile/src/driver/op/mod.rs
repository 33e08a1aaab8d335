//! Operations: for each family, its submission entry and its plain call side by side, and the meaning of a short count.
//!
//! Knows files as [`Target`](super::target::Target)s, memory as [`Held`](crate::memory::Held), and no ring, slot or thread.

mod cached;
pub(super) mod command;
mod control;
mod copy;
mod dispatch;
mod parts;
mod path;
pub(super) mod plain;
mod progress;
mod request;
#[cfg(feature = "sim")]
mod simulated;
mod transfer;

pub(crate) use cached::{cached_pages, is_cached};
pub(crate) use control::DISCARD;
pub(super) use dispatch::{fill, keep_opened};
pub(crate) use parts::MOST_AT_ONCE;
pub(super) use parts::{Parts, PartsOf};
pub(super) use progress::{NO_THREAD, Progress, Rules, Step};
pub(crate) use request::{Ended, Kind, RWF_ATOMIC, Request};
pub(super) use transfer::piece;
