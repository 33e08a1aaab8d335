//! Operations by plain system calls on the calling thread, for inline calls and workers.
//!
//! Invariants: the same rules as on the ring ([`super::progress`]). The calls name only memory of `memory`, which the
//! caller owns throughout.

use linux_raw_sys::general::{RWF_DSYNC, RWF_NOWAIT};

use super::dispatch::call;
use super::parts::{Bounds, MOST_AT_ONCE};
use super::progress::{Progress, Step};
use super::request::{OpResult, Request};
use crate::driver::target::{FileKind, Target};
use crate::memory::IoMemory;

/// The result of an attempt that must not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallOutcome {
    Done(OpResult),
    /// All or a part of it would have to wait: the whole operation must be done another way, or the rest later.
    WouldWait,
    /// The file has no non-blocking I/O of that kind.
    NotOffered,
}

const WAITS: Bounds = Bounds { nowait: 0, most: MOST_AT_ONCE };
const WAITS_NOT: Bounds = Bounds { nowait: RWF_NOWAIT, most: MOST_AT_ONCE };
/// One call. A pipe that `poll` calls writable takes at least a page (`pipe(7)`), and a socket more.
const A_PAGE: Bounds = Bounds { nowait: 0, most: libc::PIPE_BUF };

/// Carries an operation out, and waits for it. If it is no longer wanted, it is not retried.
pub(crate) fn run(
    target: &Target,
    request: &Request,
    memory: &mut IoMemory,
    is_wanted: impl Fn() -> bool,
) -> OpResult {
    match go(target, request, memory, &mut Progress::default(), WAITS, is_wanted) {
        CallOutcome::Done(ended) => ended,
        // This errno does not occur without RWF_NOWAIT.
        CallOutcome::WouldWait | CallOutcome::NotOffered => OpResult { done: 0, errno: libc::EAGAIN },
    }
}

/// Carries an operation out if that needs no waiting.
pub(crate) fn attempt(target: &Target, request: &Request, memory: &mut IoMemory) -> CallOutcome {
    attempt_rest(target, request, memory, &mut Progress::default())
}

/// Carries out what is left of an operation if that needs no waiting. If a part of it was done before it would have to
/// wait, `progress` tells where to continue.
pub(crate) fn attempt_rest(
    target: &Target,
    request: &Request,
    memory: &mut IoMemory,
    progress: &mut Progress,
) -> CallOutcome {
    go(target, request, memory, progress, WAITS_NOT, || true)
}

/// Makes one call for what is left of a copy, or of a write to a pipe or a stream socket that is ready for it: of a
/// write at most a page, so that it waits only if another writer takes the room first. Returns [`CallOutcome::WouldWait`]
/// if more is left.
pub(crate) fn call_once(
    target: &Target,
    request: &Request,
    memory: &mut IoMemory,
    progress: &mut Progress,
    is_wanted: impl Fn() -> bool,
) -> CallOutcome {
    go(target, request, memory, progress, A_PAGE, is_wanted)
}

#[inline]
fn go(
    target: &Target,
    request: &Request,
    memory: &mut IoMemory,
    progress: &mut Progress,
    bounds: Bounds,
    is_wanted: impl Fn() -> bool,
) -> CallOutcome {
    if target.has_extra() {
        return go_with_extra(target, request, memory, progress, bounds, is_wanted);
    }
    go_by::<false>(target, request, memory, progress, bounds, is_wanted)
}

/// Refuses plain calls on a namespace, and times those on a file whose latencies are measured.
#[cold]
#[inline(never)]
fn go_with_extra(
    target: &Target,
    request: &Request,
    memory: &mut IoMemory,
    progress: &mut Progress,
    bounds: Bounds,
    is_wanted: impl Fn() -> bool,
) -> CallOutcome {
    if target.namespace().is_some() {
        return go_by::<true>(target, request, memory, progress, bounds, is_wanted);
    }
    let timed = target.begin_timed(request, 1);
    let attempt = go_by::<false>(target, request, memory, progress, bounds, is_wanted);
    if let (Some(timed), CallOutcome::Done(ended)) = (timed, attempt) {
        target.end_timed(timed, request, ended, 1);
    }
    attempt
}

/// Carries an operation out as far as `bounds` allows; `REFUSES`: without a call, since the file has none.
#[inline(always)]
fn go_by<const REFUSES: bool>(
    target: &Target,
    request: &Request,
    memory: &mut IoMemory,
    progress: &mut Progress,
    bounds: Bounds,
    is_wanted: impl Fn() -> bool,
) -> CallOutcome {
    let must_not_wait = bounds.nowait != 0;
    let mut errno = loop {
        let answer = if REFUSES {
            Err(libc::EOPNOTSUPP)
        } else {
            call(target, request, memory, progress.began(request, target), bounds)
        };
        match answer {
            Err(libc::EAGAIN) if must_not_wait => return CallOutcome::WouldWait,
            // A part of an operation on a stream may have been done by calls of another form.
            Err(libc::EOPNOTSUPP)
                if must_not_wait && (progress.done() == 0 || target.kind == FileKind::Other) =>
            {
                return CallOutcome::NotOffered;
            }
            // On Linux 5.9 and 5.10 this is also the answer if the next page must not be read ahead (`IOCB_NOIO` in
            // generic_file_buffered_read), not only at the end of the file.
            Ok(0) if must_not_wait && goes_on(target, request, progress.done()) => {
                return CallOutcome::WouldWait;
            }
            Ok(_) | Err(_) => {}
        }
        if let Step::Done(errno) = progress.answered(request, target, answer, &is_wanted) {
            break errno;
        }
        if bounds.most < MOST_AT_ONCE {
            return CallOutcome::WouldWait;
        }
    };
    if request.kind.is_read() {
        // SAFETY: the kernel has written `done` bytes from `start` on; what comes before was there already, since only
        // the library's own reads begin past 0, and they fill memory in order.
        unsafe { memory.filled(request.start + progress.done()) };
    }
    if !request.kind.moves_data() {
        target.may_be_shorter();
    }
    if request.is_sync() {
        errno = settle_sync(target, request, memory, *progress, errno);
    }
    CallOutcome::Done(OpResult { done: progress.done(), errno })
}

/// Makes the file remember a failed sync, and returns the errno for its caller: see [`Target::settle_sync`]. May make a
/// call that waits, to find out why a durable write has failed.
#[cold]
pub(crate) fn settle_sync(
    target: &Target,
    request: &Request,
    memory: &mut IoMemory,
    progress: Progress,
    errno: i32,
) -> i32 {
    let fails_alike = || {
        let write = Request { op_flags: request.op_flags & !RWF_DSYNC, ..*request };
        loop {
            match call(target, &write, memory, progress.began(&write, target), WAITS) {
                Err(libc::EINTR) => {}
                answer => return answer == Err(errno),
            }
        }
    };
    target.settle_sync(request, OpResult { done: progress.done(), errno }, fails_alike)
}

/// Returns whether a read that seems to have met the end of the file, after `done` bytes, has not met it.
#[cold]
fn goes_on(target: &Target, request: &Request, done: usize) -> bool {
    let at = request.offset.saturating_add(done as u64);
    request.kind.is_read() && done < request.want && target.size().is_ok_and(|size| at < size)
}
