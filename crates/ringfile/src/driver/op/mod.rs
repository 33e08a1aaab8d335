//! Operations: for each family, its submission entry and its plain call side by side, and the meaning of a short count.
//!
//! Knows files as [`Target`](super::target::Target)s, memory as [`IoMemory`](crate::memory::IoMemory), and no ring, slot or thread.

mod cached;
pub(super) mod command;
pub(crate) mod control;
pub(crate) mod copy;
mod dispatch;
mod parts;
pub(crate) mod path;
pub(crate) mod plain;
mod progress;
pub(crate) mod request;
pub(super) mod transfer;

pub(crate) use cached::{cached_pages, is_cached};
pub(crate) use control::{DISCARD, WRITTEN, Zeros};
pub(super) use dispatch::{fill, keep_opened};
pub(crate) use parts::MOST_AT_ONCE;
pub(super) use parts::{PartsOf, SlotParts};
pub(super) use progress::{NO_THREAD, Progress, Rules, Step};
pub(crate) use request::{Kind, OpResult, RWF_ATOMIC, Request};
pub(super) use transfer::piece;
