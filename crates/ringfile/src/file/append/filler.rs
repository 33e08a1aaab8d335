//! A thread that fills appenders' files with zeros ahead, by plain system calls.
//!
//! It starts with the first request, serves files in turn, one piece at a time, and ends after being idle for a while.
//! Invariants: no waker is called or dropped under the lock; a file is `current` while a piece of it may be written,
//! and `waiting` between its pieces. So the next appender of the file can wait for the end of the writes, even if the
//! appender that asked for them was dropped.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::caught::caught;
use crate::driver::{Target, Zeros, start_thread};
use crate::lock::Lock;
use ringfile_buffer::internal::{fork, panics};

const IDLE: Duration = Duration::from_secs(10);
/// The maximum size of one write.
pub(super) const PIECE: usize = 256 << 10;

/// What to write: zeros, in a range of whole blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FillPiece {
    /// Space to allocate first. It begins where the file is complete, so that an append never lacks space that the
    /// space behind it has taken.
    pub allocate: Option<Range<u64>>,
    /// At most [`PIECE`] bytes.
    pub zeros: Range<u64>,
}

/// An appender whose file is filled.
pub(super) trait Filled: Send + Sync {
    /// Starts the next piece, of this file; `None` if nothing more is to be filled.
    fn begin_piece(&self) -> Option<(Arc<Target>, FillPiece)>;

    /// Ends the piece that was started, with the number of zeros written. Returns whether there are more.
    fn end_piece(&self, result: rustix::io::Result<u64>) -> bool;
}

/// The device and the number of a file.
pub(super) type FileId = (u64, u64);

struct FillQueue {
    waiting: VecDeque<(FileId, Weak<dyn Filled>)>,
    current: Option<FileId>,
    /// The wakers of tasks that wait for a file. All are called when a piece has ended.
    wakers: Vec<Waker>,
    /// The process in which the thread runs.
    runs: Option<fork::Mark>,
}

static QUEUE: Lock<FillQueue> =
    Lock::new(FillQueue { waiting: VecDeque::new(), current: None, wakers: Vec::new(), runs: None });
/// Notified when a request was added.
static CAME: Condvar = Condvar::new();

impl FillQueue {
    fn is_ours(&self) -> bool {
        self.runs.is_some_and(fork::Mark::is_current)
    }

    /// Returns whether a piece of this file is being written, or may follow.
    fn is_filled(&self, inode: FileId) -> bool {
        let may_follow =
            |(other, filled): &(FileId, Weak<dyn Filled>)| *other == inode && filled.strong_count() > 0;
        self.current == Some(inode) || self.waiting.iter().any(may_follow)
    }
}

/// Locks the queue, which a thread that forks holds from then on.
fn queue() -> MutexGuard<'static, FillQueue> {
    fork::hold_over_forks(&fork::FILLER, || Box::new(QUEUE.lock()));
    QUEUE.lock()
}

/// Makes the thread fill pieces of a file until there are no more. Returns false if no thread can be started. Called
/// with no lock held.
pub(super) fn ask(inode: FileId, filled: Weak<dyn Filled>) -> bool {
    let mut queue = queue();
    if !queue.is_ours() {
        if queue.runs.take().is_some() {
            // A forked child has none of its parent's threads. The parent's requests and wakers are leaked there.
            std::mem::forget((std::mem::take(&mut queue.waiting), std::mem::take(&mut queue.wakers)));
            queue.current = None;
        }
        if start_thread("ringfile-filler", run).is_err() {
            return false;
        }
        queue.runs = Some(fork::Mark::current());
    }
    queue.waiting.push_back((inode, filled));
    drop(queue);
    CAME.notify_one();
    true
}

/// Waits until no piece of this file is being written, or will be. An earlier appender may have asked for the pieces
/// and still exist without handles: a thread that wakes one of its tasks keeps it, or its last handle was leaked.
pub(super) fn poll_idle(inode: FileId, context: &Context<'_>) -> Poll<()> {
    let waker = context.waker().clone();
    let mut queue = queue();
    if queue.is_filled(inode) && queue.is_ours() {
        queue.wakers.push(waker);
        return Poll::Pending;
    }
    drop(queue);
    drop(waker);
    Poll::Ready(())
}

/// Carries out one piece. Returns whether there are more.
fn fill(filled: &Weak<dyn Filled>, zeros: &Zeros) -> bool {
    // This thread does not keep the appender during the write: dropping its last handle drops it at once.
    let begun = filled.upgrade().and_then(|filled| filled.begin_piece());
    let Some((target, piece)) = begun else { return false };
    let result = write(&target, &piece, zeros);
    filled.upgrade().is_some_and(|filled| filled.end_piece(result))
}

fn write(target: &Target, piece: &FillPiece, zeros: &Zeros) -> rustix::io::Result<u64> {
    let fd = target.as_fd();
    // Beyond this limit the kernel sends SIGXFSZ, which ends the program.
    let most = rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX);
    if piece.allocate.as_ref().map_or(piece.zeros.end, |space| space.end) > most {
        return Err(Errno::FBIG);
    }
    if let Some(Range { start, end }) = piece.allocate {
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(fd, FallocateFlags::empty(), start, end - start))?;
    }
    zeros.write(fd, piece.zeros.clone())?;
    Ok(piece.zeros.end - piece.zeros.start)
}

fn run() {
    let zeros = Zeros::new();
    let mut queue = QUEUE.lock();
    loop {
        if let Some((inode, filled)) = queue.waiting.pop_front() {
            queue.current = Some(inode);
            drop(queue);
            let more = panics::catch(|| fill(&filled, &zeros)).unwrap_or(false);
            queue = QUEUE.lock();
            queue.current = None;
            let wakers = std::mem::take(&mut queue.wakers);
            if more {
                queue.waiting.push_back((inode, filled));
            }
            drop(queue);
            for waker in wakers {
                caught("a waker panicked on the thread that fills files", || waker.wake());
            }
            queue = QUEUE.lock();
            continue;
        }
        let (woken, waited) = CAME.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
        queue = woken;
        if waited.timed_out() && queue.waiting.is_empty() {
            queue.runs = None;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::task::Wake;

    use super::*;

    /// Reports that a piece begins, then blocks until the test lets it end.
    struct Held(Mutex<(Sender<()>, Receiver<()>)>);

    impl Filled for Held {
        fn begin_piece(&self) -> Option<(Arc<Target>, FillPiece)> {
            let ends = self.0.lock().unwrap();
            ends.0.send(()).unwrap();
            ends.1.recv().unwrap();
            None
        }

        fn end_piece(&self, _: rustix::io::Result<u64>) -> bool {
            false
        }
    }

    struct Woken(Mutex<Sender<()>>);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.lock().unwrap().send(()).unwrap();
        }
    }

    #[test]
    fn a_file_is_waited_for_until_its_piece_has_ended() {
        let ((begins, began), (end, ends), (wake, woken)) = (channel(), channel(), channel());
        let (file, other) = ((u64::MAX, 1), (u64::MAX, 2));
        let waker = Waker::from(Arc::new(Woken(Mutex::new(wake))));
        let context = Context::from_waker(&waker);
        let memory: Arc<dyn Filled> = Arc::new(Held(Mutex::new((begins, ends))));
        assert!(ask(file, Arc::downgrade(&memory)));
        began.recv().unwrap();
        assert!(poll_idle(file, &context).is_pending());
        assert!(poll_idle(other, &context).is_ready());
        end.send(()).unwrap();
        woken.recv().unwrap();
        assert!(poll_idle(file, &context).is_ready());
        // No piece begins for an appender that was dropped.
        let gone = Arc::downgrade(&memory);
        drop(memory);
        assert!(ask(other, gone));
        let (begins, began) = channel();
        let (end, ends) = channel();
        let memory: Arc<dyn Filled> = Arc::new(Held(Mutex::new((begins, ends))));
        assert!(ask(file, Arc::downgrade(&memory)));
        began.recv().unwrap();
        assert!(poll_idle(other, &context).is_ready());
        end.send(()).unwrap();
    }

    #[test]
    fn a_file_is_waited_for_between_its_pieces_too_unless_its_appender_is_gone() {
        let ((begins, began), (end, ends), (wake, woken)) = (channel(), channel(), channel());
        let (busy, file) = ((u64::MAX, 3), (u64::MAX, 4));
        let waker = Waker::from(Arc::new(Woken(Mutex::new(wake))));
        let context = Context::from_waker(&waker);
        let memory: Arc<dyn Filled> = Arc::new(Held(Mutex::new((begins, ends))));
        assert!(ask(busy, Arc::downgrade(&memory)));
        began.recv().unwrap();
        // The thread fills another file. This appender has no handle any more, but a thread that wakes one of its tasks
        // keeps it.
        let kept: Arc<dyn Filled> = Arc::new(Held(Mutex::new((channel().0, channel().1))));
        assert!(ask(file, Arc::downgrade(&kept)));
        assert!(poll_idle(file, &context).is_pending());
        drop(kept);
        assert!(poll_idle(file, &context).is_ready());
        end.send(()).unwrap();
        woken.recv().unwrap();
    }
}
