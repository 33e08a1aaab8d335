//! The files that a driver has in use.
//!
//! A driver keeps the target of every operation in flight alive with its own count, without touching a shared
//! reference count for each operation, and registers a file with its ring after it was used a few times.

use std::sync::Arc;

use super::ports::PortKind;
use super::target::{FileKind, Target};
use crate::ring::Ring;

/// Registering costs about as much as it saves in this many operations.
const USES_BEFORE_REGISTERING: u32 = 8;

/// A file in use.
pub(crate) struct FileInUse {
    pub target: Arc<Target>,
    in_flight: u32,
    uses: u32,
    /// The kind of ring with which it is registered.
    registered: Option<PortKind>,
    /// A pipe, a socket, a terminal or another device.
    pub is_stream: bool,
    closing: bool,
}

/// The files that one driver has in use, by number.
#[derive(Default)]
pub(crate) struct FilesInUse(Vec<Option<FileInUse>>);

impl FilesInUse {
    /// Notes an operation on `target`.
    #[inline]
    pub(crate) fn enter(&mut self, target: &Arc<Target>, driver: u64) -> &mut FileInUse {
        let index = target.number as usize;
        if self.0.get(index).is_none_or(Option::is_none) {
            return self.add(target, driver);
        }
        let Some(entry) = &mut self.0[index] else { unreachable!("it was checked") };
        debug_assert!(Arc::ptr_eq(&entry.target, target));
        entry.in_flight += 1;
        entry
    }

    #[cold]
    fn add(&mut self, target: &Arc<Target>, driver: u64) -> &mut FileInUse {
        let index = target.number as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        if let Some(mut users) = target.lock_users() {
            users.push(driver);
        }
        self.0[index].insert(FileInUse {
            target: Arc::clone(target),
            in_flight: 1,
            uses: 0,
            registered: None,
            is_stream: target.kind == FileKind::Other,
            closing: false,
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

    /// Notes that an operation has ended. A file whose last handle was dropped meanwhile is released.
    #[inline]
    pub(crate) fn leave(&mut self, number: u32) -> Option<ClosedFile> {
        let entry = self.entry(number)?;
        entry.in_flight -= 1;
        if entry.closing { self.release(number) } else { None }
    }

    /// Releases a file whose last handle was dropped, now or when its last operation ends.
    pub(crate) fn close(&mut self, number: u32) -> Option<ClosedFile> {
        self.entry(number)?.closing = true;
        self.release(number)
    }

    /// Releases a file, if no operation uses it.
    #[cold]
    pub(super) fn release(&mut self, number: u32) -> Option<ClosedFile> {
        let place = self.0.get_mut(number as usize)?;
        let entry = place.take_if(|entry| entry.in_flight == 0)?;
        Some(ClosedFile { registered: entry.registered.map(|_| number), target: entry.target })
    }

    /// Returns a number above those of all files in use.
    pub(super) fn end(&self) -> u32 {
        self.0.len() as u32
    }
}

impl FileInUse {
    /// Returns how many operations on the file its driver has in flight.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the file number for an entry of `ring`, and whether it is registered.
    #[inline]
    pub(super) fn descriptor(&mut self, kind: PortKind, ring: &mut Ring) -> (i32, bool) {
        if self.registered == Some(kind) {
            return (self.target.number as i32, true);
        }
        self.register_if_it_pays(kind, ring);
        (self.target.raw_fd(), false)
    }

    #[cold]
    fn register_if_it_pays(&mut self, kind: PortKind, ring: &mut Ring) {
        let has_none = !self.target.has_fd();
        if has_none || self.target.ring != kind || self.uses > USES_BEFORE_REGISTERING {
            return;
        }
        self.uses += 1;
        if self.uses == USES_BEFORE_REGISTERING {
            let is_registered = ring.set_file(self.target.number, Some(self.target.raw_fd()));
            self.registered = is_registered.then_some(kind);
            self.uses += 1;
        }
    }
}

/// A file that a driver has released; its ring must end the registration before the target is dropped.
pub(crate) struct ClosedFile {
    pub registered: Option<u32>,
    pub target: Arc<Target>,
}
