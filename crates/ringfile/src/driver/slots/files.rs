//! The files on which a driver has operations in flight.
//!
//! A driver keeps a target for as long, with one count for all of these operations, so that no shared count is touched for
//! each. Invariant: when the last operation on a file has ended, neither the driver nor its rings keep the file, whatever
//! the thread does next: the descriptor is closed as soon as the last handle is gone.

use std::sync::Arc;

use crate::driver::target::port_kind::PortKind;
use crate::driver::target::{FileKind, Target};
use crate::ring::Ring;

/// Registering a file, and ending that, costs as much as it saves in about 20 operations. Who submits a batch and waits for
/// all of it would pay this with each batch, so a file is registered only after more operations than batches usually have.
const USES_BEFORE_REGISTERING: u32 = 1024;

/// A file in use.
pub(crate) struct FileInUse {
    pub target: Arc<Target>,
    in_flight: u32,
    /// How many operations were submitted since none was in flight.
    uses: u32,
    /// The kind of ring with which it is registered.
    pub registered: Option<PortKind>,
    /// A pipe, a socket, a terminal or another device.
    pub is_stream: bool,
}

/// The files that one driver has in use, by number.
#[derive(Default)]
pub(crate) struct FilesInUse(Vec<Option<FileInUse>>);

impl FilesInUse {
    /// Notes an operation on `target`.
    #[inline]
    pub(crate) fn enter(&mut self, target: &Arc<Target>) -> &mut FileInUse {
        let index = target.number as usize;
        if self.0.get(index).is_none_or(Option::is_none) {
            return self.add(target);
        }
        let Some(entry) = &mut self.0[index] else { unreachable!("it was checked") };
        debug_assert!(Arc::ptr_eq(&entry.target, target));
        entry.in_flight += 1;
        entry
    }

    #[inline(never)]
    fn add(&mut self, target: &Arc<Target>) -> &mut FileInUse {
        let index = target.number as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index].insert(FileInUse {
            target: Arc::clone(target),
            in_flight: 1,
            uses: 0,
            registered: None,
            is_stream: target.kind == FileKind::Other,
        })
    }

    /// Returns the file with this number, if it is in use.
    #[inline]
    pub(crate) fn target(&self, number: u32) -> Option<&Target> {
        Some(&self.0.get(number as usize)?.as_ref()?.target)
    }

    /// Returns the file with this number, to submit an operation on it.
    #[inline]
    pub(crate) fn entry(&mut self, number: u32) -> Option<&mut FileInUse> {
        self.0.get_mut(number as usize)?.as_mut()
    }

    /// Notes that an operation has ended. Returns the file if that was the last one in flight.
    #[inline]
    pub(crate) fn leave(&mut self, number: u32) -> Option<FileInUse> {
        let place = self.0.get_mut(number as usize)?;
        place.as_mut()?.in_flight -= 1;
        place.take_if(|entry| entry.in_flight == 0)
    }
}

impl FileInUse {
    /// Returns how many operations on the file its driver has in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the file number for an entry of `ring`, and whether it is registered.
    #[inline]
    pub(crate) fn descriptor(&mut self, kind: PortKind, ring: &mut Ring) -> (i32, bool) {
        if self.registered == Some(kind) {
            return (self.target.number as i32, true);
        }
        self.uses = self.uses.wrapping_add(1);
        if self.uses == USES_BEFORE_REGISTERING {
            self.register(kind, ring);
        }
        (self.target.raw_fd(), false)
    }

    #[cold]
    fn register(&mut self, kind: PortKind, ring: &mut Ring) {
        if self.target.has_fd() && self.target.ring == kind {
            let is_registered = ring.set_file(self.target.number, Some(self.target.raw_fd()));
            self.registered = is_registered.then_some(kind);
        }
    }
}
