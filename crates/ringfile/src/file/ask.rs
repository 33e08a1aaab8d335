//! Operations that were not started, as batches and queues take them.

use std::future::Future;

use bytes::Bytes;

use super::durability::AfterWrite;
use super::{File, OpenOptions};
use crate::driver::Request;
use crate::memory::{AnyBuffer, Buffer, Held, IoBuf};

/// An operation that was not started: what the calls of [`File`] and of [`fs`](crate::fs) return.
///
/// Await it, or add it to a [`Batch`](crate::Batch) or a [`Queue`](crate::Queue). Everywhere it obeys the same options of
/// the file, and ends with the same results and errors.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use ringfile::{Batch, File, block_on};
/// let file = File::open("/proc/self/exe")?;
/// let head = block_on(file.read_at(Vec::with_capacity(4), 0))?;
///
/// let mut batch = Batch::new();
/// let again = batch.add(file.read_at(Vec::with_capacity(4), 0));
/// assert_eq!(batch.run()[again].buffer.as_deref(), Some(&head[..]));
/// # Ok(())
/// # }
/// ```
///
/// A batch and a queue take reads and writes of a [`Buffer`], a `Vec<u8>`, [`Bytes`] or an [`AnyBuffer`], and vectored ones
/// of [`Buffer`]s. An operation that was polled cannot be added, and that does not compile, because polling needs a pinned
/// future:
///
/// ```compile_fail
/// # use std::{pin::pin, task::{Context, Waker}};
/// # let file = ringfile::File::open("/proc/self/exe").unwrap();
/// # let mut batch = ringfile::Batch::new();
/// let mut read = pin!(file.read_at(Vec::with_capacity(4), 0));
/// let _ = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
/// batch.add(read);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be added to a batch or a queue",
    label = "not an operation that was not started, with a buffer of a type that batches and queues take",
    note = "they take what the calls of `File` and `fs` return, with a `Buffer`, a `Vec<u8>`, `Bytes` or an `AnyBuffer`"
)]
pub trait Operation: Future + Ask {}

impl<O: Future + Ask> Operation for O {}

/// The part of [`Operation`] that only this library implements.
pub trait Ask: Sized {
    /// Calls `add` with the file and the operation.
    fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R;
}

/// Memory of one operation of a batch or a queue.
pub trait AnyMemory: IoBuf {}

impl AnyMemory for Buffer {}
impl AnyMemory for Vec<u8> {}
impl AnyMemory for Bytes {}
impl AnyMemory for AnyBuffer {}

/// What the user has asked for, before it becomes an operation of a batch or a queue.
pub struct Asked {
    pub(crate) request: Request,
    pub(crate) held: Held,
    /// What a durable write leaves to do.
    pub(crate) rest: AfterWrite,
    /// The options of a file to open.
    pub(crate) opens: Option<Box<OpenOptions>>,
}
