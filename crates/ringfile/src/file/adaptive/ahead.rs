//! Read-ahead for adaptive files: the pieces that were read, and when they may be used.
//!
//! A piece is a direct read into memory of the library's own pool. It has no task: the read after which it is likely
//! to be needed starts it, and the read that needs its data polls it to its end. Invariants:
//!
//! - A piece is used only if nothing was written since before it was read: the file's change time is the same, it was
//!   at least [`QUIET`] old then, and the page cache does not have the data (which [`super`] checks first). A write
//!   sets the change time before it changes the first byte. A write that took longer than `QUIET`, and was in progress
//!   when the piece was read, would go unnoticed, so that time is long. If writes took no time, two ticks of the clock
//!   would be enough.
//! - Only files that were opened for reading alone are read ahead, on file systems that are known to record that time.
//! - Pieces are started, driven and dropped without the lock, which is held for a few instructions.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Advice, OFlags};

use super::piece::{AheadPiece, Changed};
use super::room;
use super::streams::{Id, Membership, Passes, Streams};
use crate::descriptor;
use crate::driver::{FileKind, Target, cached_pages};
use crate::file::probe::magic;
use crate::memory;
use ringfile_buffer::internal::fork;

/// A file is read ahead only if it has not changed for this time, which is longer than a write takes.
const QUIET: Duration = Duration::from_secs(5);

/// Local file systems that set the change time with each write of any process, and never carry out a direct read during
/// a buffered write (both take the inode's lock): ext2 to 4, XFS, Btrfs (include/uapi/linux/magic.h). Not F2FS: it
/// reads directly during a buffered write (`f2fs_dio_read_iter`), and its atomic writes set the time before the data
/// changes, at the commit.
const KEEP_TIMES: [u32; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// See the module.
pub(super) struct ReadAhead {
    /// Whether the file may be read ahead at all.
    is_allowed: bool,
    state: Mutex<AheadState>,
    /// Whether a stream passes through the page cache.
    any_passes: AtomicBool,
    process: fork::Mark,
}

#[derive(Default)]
struct AheadState {
    streams: Streams,
    pieces: Vec<AheadPiece>,
    /// Whether the file is among [`FILES`].
    is_listed: bool,
}

/// The files that may have pieces, in the order in which they got them.
static FILES: Mutex<VecDeque<Weak<ReadAhead>>> = Mutex::new(VecDeque::new());

impl ReadAhead {
    pub(super) fn new(own: &Target) -> Arc<Self> {
        let flags = rustix::fs::fcntl_getfl(own.as_fd()).unwrap_or(OFlags::RDWR);
        let is_allowed = own.kind == FileKind::Regular
            && flags & OFlags::RWMODE == OFlags::RDONLY
            && KEEP_TIMES.contains(&magic(own.as_fd()));
        Arc::new(Self {
            is_allowed,
            state: Mutex::default(),
            any_passes: AtomicBool::new(false),
            process: fork::Mark::current(),
        })
    }

    /// Takes the lock; `None` if another thread holds it, or held it when this process was forked.
    fn try_lock(&self) -> Option<MutexGuard<'_, AheadState>> {
        match self.state.try_lock() {
            _ if !self.process.is_current() => None,
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes the lock, which is held for a few instructions, and never taken in a forked child.
    fn lock(&self) -> MutexGuard<'_, AheadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a direct read.
    pub(super) fn note(&self, range: &Range<u64>) -> Membership {
        let Some(mut state) = self.try_lock() else { return Membership::Alone };
        let (place, gone) = state.streams.note(range);
        let pieces = gone.map(|gone| state.take_of(gone));
        drop(state);
        drop(pieces);
        place
    }

    /// Returns whether several reads of a stream are in flight, so that the library does not read ahead.
    pub(super) fn has_several(&self, id: Id) -> bool {
        self.try_lock()
            .is_some_and(|mut state| state.streams.get(id).is_some_and(|stream| stream.has_several()))
    }

    /// Lets a stream pass through the page cache, for the kernel to read ahead of it: if several of its reads are in
    /// flight, the file is not being written, and nothing of what comes next is cached. Asks once in each region.
    pub(super) fn lets_pass(&self, own: &Target, id: Id) -> bool {
        let ahead = self.try_lock().and_then(|mut state| state.streams.may_pass(id));
        let is_clear = |ahead: &Range<u64>| is_uncached(own, ahead) && self.is_quiet(own);
        let Some(ahead) = ahead.filter(is_clear) else { return false };
        let Some(mut state) = self.try_lock() else { return false };
        state.streams.pass(id, &ahead);
        self.any_passes.store(true, Ordering::Relaxed);
        true
    }

    /// Returns whether any stream passes through the page cache.
    #[inline]
    pub(super) fn any_passes(&self) -> bool {
        self.any_passes.load(Ordering::Relaxed)
    }

    /// Returns whether a read goes through the page cache, if it belongs to a stream that passes through it, or has just
    /// stopped to. What the stream has passed leaves the cache again.
    pub(super) fn passes(&self, own: &Target, range: &Range<u64>) -> Option<bool> {
        let mut state = self.try_lock()?;
        match state.streams.passes(range) {
            Passes::No => {
                self.any_passes.store(state.streams.any_passes(), Ordering::Relaxed);
                None
            }
            Passes::Goes => Some(true),
            Passes::Past => Some(false),
            Passes::Ended { leaves } => {
                drop(state);
                leave(own, leaves);
                None
            }
            Passes::Enters { id, ahead, leaves } => {
                drop(state);
                let goes_on = ahead.is_some_and(|ahead| is_uncached(own, &ahead))
                    && self.is_quiet(own)
                    && !room::look();
                leave(own, if goes_on { leaves } else { self.lock().streams.pass_no_more(id) });
                Some(goes_on)
            }
        }
    }

    /// Returns whether data that is read ahead now could be used later.
    pub(super) fn is_quiet(&self, own: &Target) -> bool {
        self.is_allowed && state_of(own).is_some_and(|(changed, _)| is_long_ago(changed))
    }

    /// Notes that a read of a stream has finished.
    pub(super) fn ended(&self, id: Id) {
        if self.process.is_current() {
            self.lock().streams.ended(id);
        }
    }

    /// Takes the piece that has the byte at `offset`.
    pub(super) fn take(&self, offset: u64) -> Option<AheadPiece> {
        let mut state = self.try_lock()?;
        let at = state.pieces.iter().position(|piece| piece.range.contains(&offset))?;
        let wanted = state.pieces.swap_remove(at);
        let is_behind = |piece: &mut AheadPiece| piece.stream == wanted.stream && piece.range.end <= offset;
        let passed_over: Vec<AheadPiece> = state.pieces.extract_if(.., is_behind).collect();
        drop(state);
        drop(passed_over);
        Some(wanted)
    }

    /// Puts back a piece that was used up to `end`, or drops it if nothing is left. In a forked child, which may have the
    /// piece of a read that was in flight at the fork, it drops the piece.
    pub(super) fn put_back(self: &Arc<Self>, piece: AheadPiece, end: u64) {
        if !self.process.is_current() {
            return;
        }
        if end < piece.range.end {
            return self.keep(piece);
        }
        self.lock().streams.judge(true);
    }

    /// Keeps a piece, unless its stream was replaced meanwhile, so that no read would ask for it.
    fn keep(self: &Arc<Self>, piece: AheadPiece) {
        let mut state = self.lock();
        if state.streams.get(piece.stream).is_none() {
            return drop(state);
        }
        state.pieces.push(piece);
        let is_new = !std::mem::replace(&mut state.is_listed, true);
        drop(state);
        if is_new && !self.list() {
            // The file is listed again with its next piece.
            self.lock().is_listed = false;
        }
    }

    /// Returns whether a piece still matches the file. If not, all pieces are dropped.
    pub(super) fn is_trusted(&self, piece: &AheadPiece, own: &Target) -> bool {
        let is_same = state_of(own).is_some_and(|(changed, _)| changed == piece.changed);
        if !is_same {
            self.drop_pieces();
        }
        is_same
    }

    /// Forgets what was read ahead.
    pub(super) fn drop_pieces(&self) {
        let pieces = self.try_lock().map(|mut state| state.take_all());
        drop(pieces);
    }

    /// Starts reading ahead of a stream whose last read had `len` bytes. Returns whether any read was started.
    pub(super) fn go_on(self: &Arc<Self>, own: &Target, direct: &Arc<Target>, id: Id, len: u64) -> bool {
        if !self.is_allowed || !self.process.is_current() {
            return false;
        }
        let Some((changed, size)) = state_of(own).filter(|(changed, _)| is_long_ago(*changed)) else {
            return false;
        };
        let mut started = false;
        let mut may_steal = true;
        loop {
            let Some(mut state) = self.try_lock() else { return started };
            if !state.streams.is_steady(id) {
                return started;
            }
            if !started {
                state.streams.widen(id, len);
            }
            let block = direct.alignment().bytes as u64;
            let Some(range) = state.streams.next_piece(id, size, block) else { return started };
            drop(state);
            let Ok(memory) = memory::ahead().try_get((range.end - range.start) as usize) else {
                self.lock().streams.give_back(id, range.start);
                if !std::mem::take(&mut may_steal) || !self.steal() {
                    return started;
                }
                continue;
            };
            let mut piece = AheadPiece::new(direct, id, range, changed, memory);
            // No task waits for the piece yet.
            let _ = piece.poll(&mut Context::from_waker(Waker::noop()));
            self.keep(piece);
            started = true;
        }
    }

    /// Adds the file to those that may have pieces. Returns false if another thread holds the list's lock, or held it
    /// when this process was forked.
    fn list(self: &Arc<Self>) -> bool {
        let Ok(mut files) = FILES.try_lock() else { return false };
        if files.len().is_power_of_two() {
            files.retain(|file| file.strong_count() > 0);
        }
        files.push_back(Arc::downgrade(self));
        true
    }

    /// Drops the pieces of the file that has been in the list longest. Returns whether there was one.
    fn steal(&self) -> bool {
        let Ok(mut files) = FILES.try_lock() else { return false };
        let Some(oldest) = files.pop_front() else { return false };
        drop(files);
        // A forked child cannot take its parent's pieces.
        if let Some(oldest) = oldest.upgrade().filter(|oldest| oldest.process.is_current()) {
            // Waits if the lock is busy: a file that left the list with pieces would keep them until it is closed.
            let mut state = oldest.lock();
            state.is_listed = false;
            let pieces = state.take_all();
            drop(state);
            drop(pieces);
        }
        true
    }
}

impl AheadState {
    /// Takes all pieces, so that the caller can drop them without the lock.
    fn take_all(&mut self) -> Vec<AheadPiece> {
        let pieces = std::mem::take(&mut self.pieces);
        for piece in &pieces {
            self.streams.give_back(piece.stream, piece.range.start);
        }
        pieces
    }

    /// Takes the pieces of a stream, so that the caller can drop them without the lock.
    fn take_of(&mut self, id: Id) -> Vec<AheadPiece> {
        let pieces: Vec<AheadPiece> = self.pieces.extract_if(.., |piece| piece.stream == id).collect();
        if !pieces.is_empty() {
            self.streams.judge(false);
        }
        pieces
    }
}

/// Returns whether a file that was changed then has been quiet long enough.
fn is_long_ago(Changed(seconds, nanoseconds): Changed) -> bool {
    let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) else { return false };
    let changed = Duration::new(u64::try_from(seconds).unwrap_or(0), nanoseconds as u32);
    now.checked_sub(changed).is_some_and(|age| age >= QUIET)
}

/// Drops a range from the page cache, except what is being read, written or mapped.
fn leave(own: &Target, range: Range<u64>) {
    if let Some(len) = NonZeroU64::new(range.end - range.start) {
        let _ = rustix::fs::fadvise(own.as_fd(), range.start, Some(len), Advice::DontNeed);
    }
}

/// Returns whether nothing of a range is in the page cache.
fn is_uncached(own: &Target, range: &Range<u64>) -> bool {
    cached_pages(own, range.start, range.end - range.start) == Ok(0)
}

/// Returns the file's change time and size now.
fn state_of(own: &Target) -> Option<(Changed, u64)> {
    let stat = descriptor::status(own).ok()?;
    Some((Changed(stat.st_ctime as i64, stat.st_ctime_nsec as u64), stat.st_size as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::File;

    const PAGE: u64 = 4096;

    /// Returns a file of which the second page was read ahead.
    fn read_ahead() -> Arc<ReadAhead> {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&path, [7; 4096]).unwrap();
        let file = File::open_blocking(&path).unwrap();
        let ahead = ReadAhead::new(file.target());
        assert_eq!(ahead.note(&(0..PAGE)), Membership::Alone);
        let Membership::InStream(id, _) = ahead.note(&(PAGE..PAGE + 1)) else { panic!("no stream") };
        let memory = memory::ahead().try_get(PAGE as usize).unwrap();
        let piece = AheadPiece::new(file.target(), id, PAGE..2 * PAGE, Changed(0, 0), memory);
        let mut state = ahead.lock();
        state.pieces.push(piece);
        state.is_listed = true;
        drop(state);
        assert!(ahead.list());
        ahead
    }

    fn is_in_list(ahead: &Arc<ReadAhead>) -> bool {
        let files = FILES.lock().unwrap();
        files.iter().any(|file| std::ptr::eq(file.as_ptr(), Arc::as_ptr(ahead)))
    }

    /// Other tests may have files in the list.
    fn steal_from(ahead: &Arc<ReadAhead>) {
        while is_in_list(ahead) {
            ahead.steal();
        }
    }

    /// The list belongs to the whole process, so these tests run one at a time.
    fn alone() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        ONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pieces(ahead: &ReadAhead) -> usize {
        ahead.lock().pieces.len()
    }

    #[test]
    fn pieces_are_given_up_even_if_the_lock_of_their_file_is_busy() {
        let _alone = alone();
        let ahead = read_ahead();
        let busy = ahead.lock();
        let thief = std::thread::spawn({
            let ahead = Arc::clone(&ahead);
            move || steal_from(&ahead)
        });
        while is_in_list(&ahead) {
            std::thread::yield_now();
        }
        // Long enough for the thread to find the lock busy.
        std::thread::sleep(Duration::from_millis(20));
        drop(busy);
        thief.join().unwrap();
        assert_eq!(pieces(&ahead), 0);
        assert!(!ahead.lock().is_listed, "its next piece would put it into the list");
    }

    #[test]
    fn a_piece_that_is_put_back_is_in_the_list_or_goes_with_its_stream() {
        let _alone = alone();
        let ahead = read_ahead();
        let piece = ahead.take(PAGE).unwrap();
        steal_from(&ahead);
        ahead.put_back(piece, PAGE + 1);
        assert!(is_in_list(&ahead) && ahead.lock().is_listed);
        assert_eq!(pieces(&ahead), 1);

        let piece = ahead.take(PAGE).unwrap();
        // Random reads, until one takes the stream's place.
        for read in 1..1000 {
            ahead.note(&(read << 30..(read << 30) + 1));
        }
        ahead.put_back(piece, PAGE + 1);
        assert_eq!(pieces(&ahead), 0, "nobody will ask for it");
        steal_from(&ahead);
    }

    #[test]
    fn a_forked_child_puts_no_piece_back_since_a_thread_that_it_lacks_may_have_the_lock() {
        let _alone = alone();
        let ahead = read_ahead();
        let piece = ahead.take(PAGE).unwrap();
        let busy = ahead.lock();
        // SAFETY: the child takes no lock but those that are held over forks, and ends without running destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends a child that waits, by a signal.
            unsafe { libc::alarm(20) };
            ahead.put_back(piece, PAGE + 1);
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: one valid number to write to.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child waited for the lock (14), or failed");
        drop(busy);
        steal_from(&ahead);
    }
}
