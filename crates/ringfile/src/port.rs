//! The way to a simulated disk: what is called instead of the kernel while the calling thread runs a simulation.
//!
//! Knows neither the driver, which calls it, nor the simulation, which puts its calls in place. Without the feature `sim`
//! it does not exist.

use std::cell::Cell;
use std::future::Future;
use std::os::fd::{OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Instant;

/// A number of an open file. No two files of a process have the same: one that outlives its simulation is not open in another.
pub(crate) type OpenNumber = u64;

/// What a call returns, or an errno.
type Answer<T> = Result<T, i32>;
/// A function that gets the bytes of a read, a piece after the other.
pub(crate) type Take<'a> = dyn FnMut(&[u8]) + 'a;
/// A function that gives the bytes of a write, a piece after the other.
pub(crate) type Fill<'a> = dyn FnMut(&mut [u8]) + 'a;

/// The descriptor that stands for an open file, and the file.
type Opened = (OwnedFd, OpenRef);
/// A name in a folder, and the kind of what it leads to: `S_IF…`.
type Name = (Vec<u8>, u32);

/// The calls of a simulation. Paths are bytes, without a NUL.
pub(crate) struct Port {
    /// Starts an operation, on a file or, with number 0, on paths.
    pub start: fn(OpenNumber, Box<dyn Operation>),
    /// Starts a task.
    pub spawn: fn(Pin<Box<dyn Future<Output = ()>>>),
    /// Returns the time of the simulated clock.
    pub now: fn() -> Instant,
    /// Calls a waker at that time. Returns a number that makes equal times differ.
    pub wake_at: fn(Instant, Waker) -> u64,
    /// Forgets a timer. Returns whether there was one.
    pub forget_timer: fn(&(Instant, u64)) -> bool,
    /// Opens a file with flags (`O_…`), and permissions for a new one.
    pub open: fn(&[u8], i32, u32) -> Answer<Opened>,
    /// Closes a file. Returns whether it was open in this simulation.
    pub close: fn(OpenNumber) -> bool,
    /// Reads at an offset up to a number of bytes.
    pub read: fn(OpenNumber, u64, usize, &mut Take<'_>) -> Answer<usize>,
    /// Writes at an offset a number of bytes.
    pub write: fn(OpenNumber, u64, usize, &mut Fill<'_>, HowToWrite) -> Answer<usize>,
    /// Checks a copy from an offset of a file to one of the file that a descriptor stands for, and returns where the source
    /// ends.
    pub begin_copy: fn(OpenNumber, u64, RawFd, u64, u64) -> Answer<u64>,
    /// Copies a part of these bytes.
    pub copy: fn(OpenNumber, u64, RawFd, u64, usize) -> Answer<usize>,
    /// Makes the file durable, or only its data.
    pub sync: fn(OpenNumber, bool) -> Answer<()>,
    pub resize: fn(OpenNumber, u64) -> Answer<()>,
    /// Allocates, zeroes or frees a range, with the mode of `fallocate(2)`.
    pub allocate: fn(OpenNumber, i32, u64, u64) -> Answer<()>,
    pub size: fn(OpenNumber) -> Answer<u64>,
    /// Renames, with the flags of `renameat2(2)`.
    pub rename: fn(&[u8], &[u8], u32) -> Answer<()>,
    pub link: fn(&[u8], &[u8]) -> Answer<()>,
    /// Makes a symbolic link that points to the first, at the second path.
    pub symlink: fn(&[u8], &[u8]) -> Answer<()>,
    pub read_link: fn(&[u8]) -> Answer<Vec<u8>>,
    pub set_mode: fn(&[u8], u32) -> Answer<()>,
    /// Removes a file, or a folder.
    pub remove: fn(&[u8], bool) -> Answer<()>,
    pub create_dir: fn(&[u8], u32) -> Answer<()>,
    /// Creates a folder and those above it.
    pub create_dirs: fn(&[u8], u32) -> Answer<()>,
    pub list: fn(&[u8]) -> Answer<Vec<Name>>,
    /// Returns the status of the file at a path, with the flags of `statx(2)`; without a path, of the open file that a
    /// descriptor stands for.
    pub status: fn(RawFd, &[u8], i32) -> Answer<Status>,
}

/// What is asked of a write.
#[derive(Clone, Copy)]
pub(crate) struct HowToWrite {
    /// It is durable when it has ended.
    pub is_durable: bool,
    /// A power cut leaves all of it or nothing.
    pub is_atomic: bool,
}

/// What `statx(2)` tells of a file.
pub(crate) struct Status {
    pub inode: u64,
    pub size: u64,
    pub allocated: u64,
    pub links: u32,
    /// As `st_mode`.
    pub mode: u32,
}

/// An operation in flight, which ends once.
pub(crate) trait Operation {
    /// Returns whether somebody still waits for it.
    fn is_wanted(&self) -> bool;
    /// Says what it is, for a report: "write of log at byte 512".
    fn describe(&self) -> String;
    /// Carries it out on this thread, by this port's calls.
    fn carry_out(&mut self) -> CarriedOut;
    /// Tells how it has ended, once it was carried out.
    fn end(self: Box<Self>);
    /// Ends it without carrying it out.
    fn refuse(self: Box<Self>, errno: i32);
}

/// What an operation was asked, and what it has done.
#[derive(Clone, Copy)]
pub(crate) struct CarriedOut {
    pub verb: &'static str,
    pub kind: u8,
    pub offset: u64,
    /// Bytes that were asked for.
    pub want: usize,
    pub done: usize,
    /// 0 after success.
    pub errno: i32,
}

thread_local! {
    static HERE: Cell<Option<&'static Port>> = const { Cell::new(None) };
}

/// Returns the port of the simulation that the calling thread runs.
pub(crate) fn here() -> Option<&'static Port> {
    HERE.try_with(Cell::get).ok().flatten()
}

/// Puts a port in place for the calling thread, or takes it away.
pub(crate) fn set(port: Option<&'static Port>) {
    HERE.set(port);
}

/// An open file of a simulation, held by its target; 0 for the stand-in of a path. Dropping it closes the file; where it says
/// that it was dropped on another thread.
pub(crate) struct OpenRef(pub(crate) OpenNumber, Option<Arc<Dropped>>);

/// Open files that were dropped on other threads.
pub(crate) type Dropped = Mutex<Vec<OpenNumber>>;

impl OpenRef {
    pub(crate) const PATH: Self = Self(0, None);

    pub(crate) fn new(number: OpenNumber, dropped: Arc<Dropped>) -> Self {
        Self(number, Some(dropped))
    }
}

impl Drop for OpenRef {
    fn drop(&mut self) {
        let Some(dropped) = &self.1 else { return };
        if !here().is_some_and(|port| (port.close)(self.0)) {
            dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
        }
    }
}
