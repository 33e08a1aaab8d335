//! What a queue of one thread keeps of its last operations: their files, and the registered memory that they used.
//!
//! So an operation in the steady state executes one locked instruction, and that on a line of the queue's own: it takes its
//! [`Recent`]. Does not know how files and memory are looked up. Invariants: what a queue keeps is open or registered, because
//! closing a file, unregistering memory and asking whether it is in use make all queues forget it first; the thread that has
//! taken a `Recent` waits for the locks of look-ups and for nothing else, and calls nothing of the program.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ringfile::buf::Shares;
use ringfile::{AnyBuffer, Buffer, Completion, File};

use crate::error::Result;
use crate::fork::{self, Lock};

/// Those of all queues.
static ALL: Mutex<Vec<Weak<Recent>>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<Weak<Recent>>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a queue has found: its thread takes it for each operation, other threads take it to make the queue forget.
pub(crate) struct Recent {
    is_taken: AtomicBool,
    found: UnsafeCell<Found>,
    /// The process in which it was made, by [`fork::generation`].
    process: u32,
}

// SAFETY: `found` is used by the thread that has set `is_taken`, and can be sent.
unsafe impl Sync for Recent {}

/// See the module.
#[derive(Default)]
pub(crate) struct Found {
    /// Files by their handles, each at the place that its handle gives it.
    files: [Option<(usize, File)>; 8],
    memory: [Option<Shares>; 2],
}

impl Recent {
    pub(crate) fn new() -> Arc<Self> {
        fork::heed(Lock::Recent, || Some(Box::new(all())));
        let process = fork::generation();
        let (is_taken, found) = (AtomicBool::new(false), UnsafeCell::default());
        let new = Arc::new(Self { is_taken, found, process });
        let mut all = all();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&new));
        new
    }

    /// Uses what was found. Not inside itself.
    #[inline]
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Found) -> R) -> R {
        while self.is_taken.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        let _taken = Taken(&self.is_taken);
        // SAFETY: this thread has taken it, and nothing else uses it until that is undone.
        act(unsafe { &mut *self.found.get() })
    }
}

/// Gives a [`Recent`] back.
struct Taken<'a>(&'a AtomicBool);

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Takes something from all queues, to be dropped by the caller. A forked child does not wait for threads that are not there.
fn forget<R>(act: impl Fn(&mut Found) -> Option<R>) -> Vec<R> {
    // The list is not locked while a queue is waited for: its thread may wait for a thread that forks.
    let queues: Vec<_> = all().iter().filter_map(Weak::upgrade).collect();
    let can_wait =
        |queue: &&Arc<Recent>| queue.process == fork::generation() || !queue.is_taken.load(Ordering::Relaxed);
    queues.iter().filter(can_wait).filter_map(|queue| queue.with(&act)).collect()
}

/// Makes all queues forget a file, which must have no handle any more.
pub(crate) fn forget_file(handle: usize) -> Vec<File> {
    forget(|found| found.files[place(handle)].take_if(|(of, _)| *of == handle).map(|(_, file)| file))
}

/// Makes all queues forget the registered memory at an address; operations keep what they use.
pub(crate) fn forget_memory(start: usize) -> Vec<Shares> {
    forget(|found| {
        let mut kept = found.memory.iter_mut();
        kept.find_map(|one| one.take_if(|shares| shares.range().0.addr() == start))
    })
}

#[inline]
fn place(handle: usize) -> usize {
    (handle >> crate::table::TAG_BITS) % 8
}

impl Found {
    /// Finds a file by its handle, and memory for an operation, either of which is looked up if it is not among those kept.
    /// `share` returns a buffer over a part of kept memory, and `look_up` one over any memory, and what to keep.
    #[inline(always)]
    pub(crate) fn find(
        &mut self,
        handle: usize,
        open: impl FnOnce() -> Result<File>,
        (data, len): (usize, usize),
        share: impl FnOnce(&mut Shares, usize) -> Buffer,
        look_up: impl FnOnce() -> (Buffer, Option<Shares>),
    ) -> Result<(&File, Buffer)> {
        let Self { files, memory } = self;
        let file = &mut files[place(handle)];
        if file.as_ref().is_none_or(|(of, _)| *of != handle) {
            *file = Some((handle, open()?));
        }
        let Some((_, file)) = file else { unreachable!("it was set") };
        for shares in memory.iter_mut().flatten() {
            let (start, size) = shares.range();
            let at = data.wrapping_sub(start.addr());
            // Memory of no bytes is in no piece.
            if at < size && len.wrapping_sub(1) < size - at {
                return Ok((file, share(shares, at)));
            }
        }
        let (buffer, keep) = look_up();
        if keep.is_some() {
            memory.swap(0, 1);
            memory[0] = keep;
        }
        Ok((file, buffer))
    }

    /// Takes the memory of results, to be used again, if it is among that which is kept.
    pub(crate) fn take_back(&mut self, results: &mut [Completion]) {
        for shares in self.memory.iter_mut().flatten() {
            for result in &mut *results {
                let is_of =
                    |buffer: &mut AnyBuffer| matches!(buffer, AnyBuffer::Pooled(one) if shares.has(one));
                if let Some(AnyBuffer::Pooled(buffer)) = result.buffer.take_if(is_of) {
                    shares.take_back(buffer);
                }
            }
        }
    }

    /// Returns whether results may have memory to take back.
    #[inline]
    pub(crate) fn has_memory(&self) -> bool {
        self.memory[0].is_some()
    }
}
