//! Operations by plain system calls, on the calling thread: what an inline call and a worker do.
//!
//! Invariants: the same rules as on the ring ([`super::progress`]). The calls name memory of `held` alone, which the
//! caller owns throughout.

use linux_raw_sys::general::RWF_NOWAIT;

use super::{Ended, Progress, Request, Step, call};
use crate::driver::target::Target;
use crate::memory::Held;

/// What an attempt that must not wait came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::driver) enum Attempt {
    Over(Ended),
    /// It would have to wait, or a part of it; do all of it another way.
    WouldWait,
    /// The file has no non-blocking I/O of that kind.
    NotOffered,
}

/// Carries an operation out, and waits for it. Where it is not wanted any more, it is not tried again.
pub(in crate::driver) fn run(
    target: &Target,
    request: &Request,
    held: &mut Held,
    is_wanted: impl Fn() -> bool,
) -> Ended {
    match go(target, request, held, 0, is_wanted) {
        Attempt::Over(ended) => ended,
        // Not said without RWF_NOWAIT.
        Attempt::WouldWait | Attempt::NotOffered => Ended { done: 0, errno: libc::EAGAIN },
    }
}

/// Carries an operation out where it need not wait.
pub(in crate::driver) fn attempt(target: &Target, request: &Request, held: &mut Held) -> Attempt {
    go(target, request, held, RWF_NOWAIT, || true)
}

fn go(
    target: &Target,
    request: &Request,
    held: &mut Held,
    nowait: u32,
    is_wanted: impl Fn() -> bool,
) -> Attempt {
    let mut progress = Progress::default();
    let mut errno = loop {
        let answer = call(target, request, held, progress.began(request, target), nowait);
        match answer {
            Err(libc::EAGAIN) if nowait != 0 => return Attempt::WouldWait,
            Err(libc::EOPNOTSUPP) if nowait != 0 && progress.done() == 0 => return Attempt::NotOffered,
            Ok(_) | Err(_) => {}
        }
        if let Step::Over(errno) = progress.answered(request, target, answer, &is_wanted) {
            break errno;
        }
    };
    if request.kind.is_read() {
        // SAFETY: the kernel has written `done` bytes from `start` on; what comes before was there already, since only
        // the library's own reads begin past 0, and they fill memory in order.
        unsafe { held.filled(request.start + progress.done()) };
    }
    if !request.kind.moves_data() {
        target.may_be_shorter();
    }
    if request.is_sync() {
        errno = target.settle_sync(errno);
    }
    Attempt::Over(Ended { done: progress.done(), errno })
}
