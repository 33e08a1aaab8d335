//! Operations in flight: each in a slot that owns its record, its buffer and its receiver, found by a key.

pub(super) mod files;
pub(super) mod handler;
pub(super) mod key;
pub(super) mod loan;
pub(super) mod slot;
pub(super) mod wake;
