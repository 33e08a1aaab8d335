//! One driver that several threads use: those of a [shared queue](crate::SharedQueue), or of a tokio runtime.

pub(super) mod driver;
mod exclusive;
#[cfg(feature = "tokio")]
pub(super) mod tokio;
#[cfg(feature = "tokio")]
mod tokio_driver;

use super::mail::sync;
