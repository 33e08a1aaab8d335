//! Operations by plain system calls, on the calling thread: what an inline call and a worker do.
//!
//! What always holds: the same semantics as on the ring ([`super::complete`]). Short counts are continued, EINTR and
//! EAGAIN tried again with a bound, direct I/O goes on from a whole block, and the end of a file is a short result. The
//! calls name memory of `held` alone, which the caller owns throughout.

use std::cell::RefCell;

use linux_raw_sys::general::RWF_NOWAIT;

use super::prepare::{MOST_AT_ONCE, gather};
use super::slot::{Kind, Request, is_durable};
use super::target::Target;
use super::{ATTEMPTS, Ended};
use crate::memory::Held;

thread_local! {
    /// The addresses of a vectored call's parts.
    static PARTS: RefCell<Vec<libc::iovec>> = const { RefCell::new(Vec::new()) };
}

/// What an attempt that must not wait came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attempt {
    Over(Ended),
    /// It would have to wait, or a part of it; do all of it another way.
    WouldWait,
    /// The file has no non-blocking I/O of that kind.
    NotOffered,
}

/// Carries an operation out, and waits for it. Where it is not wanted any more, it is not tried again.
pub(crate) fn run(
    target: &Target,
    request: &Request,
    held: &mut Held,
    is_wanted: impl Fn() -> bool,
) -> Ended {
    match go(target, request, held, 0, is_wanted) {
        Attempt::Over(ended) => ended,
        // Not said without RWF_NOWAIT.
        _ => Ended { done: 0, errno: libc::EAGAIN },
    }
}

/// Carries an operation out where it need not wait.
pub(crate) fn attempt(target: &Target, request: &Request, held: &mut Held) -> Attempt {
    go(target, request, held, RWF_NOWAIT, || true)
}

fn go(
    target: &Target,
    request: &Request,
    held: &mut Held,
    nowait: u32,
    is_wanted: impl Fn() -> bool,
) -> Attempt {
    let attempt = if request.kind.moves_data() {
        transfer(target, request, held, nowait, is_wanted)
    } else {
        Attempt::Over(control(target, request))
    };
    match attempt {
        Attempt::Over(ended) if is_durable(request.kind, request.op_flags) => {
            Attempt::Over(Ended { errno: target.settle_sync(ended.errno), ..ended })
        }
        attempt => attempt,
    }
}

fn transfer(
    target: &Target,
    request: &Request,
    held: &mut Held,
    nowait: u32,
    is_wanted: impl Fn() -> bool,
) -> Attempt {
    let is_read = request.kind.is_read();
    let (mut done, mut attempts, mut errno) = (0, 0, 0);
    loop {
        let began = target.goes_on_at(request.kind, done);
        match once(target, request, held, began, nowait) {
            Ok(moved) => {
                let before = done;
                done = (began + moved).max(done).min(request.want);
                if done == request.want || moved == 0 {
                    break;
                }
                attempts = if done > before { 0 } else { attempts + 1 };
                if attempts >= ATTEMPTS
                    || target.is_at_end(request.kind, request.offset, done)
                    || !is_wanted()
                {
                    break;
                }
            }
            Err(libc::EAGAIN) if nowait != 0 => return Attempt::WouldWait,
            Err(libc::EOPNOTSUPP) if nowait != 0 && done == 0 => return Attempt::NotOffered,
            Err(failed) => {
                attempts += 1;
                let is_passing =
                    matches!(failed, libc::EINTR | libc::EAGAIN) || target.caches_after_all(failed);
                if !is_passing || attempts >= ATTEMPTS {
                    errno = failed;
                    break;
                }
                if !is_wanted() {
                    errno = libc::ECANCELED;
                    break;
                }
            }
        }
    }
    if is_read {
        // SAFETY: the kernel has written `done` bytes from `start` on; what comes before was there already, since only
        // the library's own reads begin past 0, and they fill memory in order.
        unsafe { held.filled(request.start + done) };
    }
    Attempt::Over(Ended { done, errno })
}

/// One call; the bytes it moved, or the errno.
fn once(target: &Target, request: &Request, held: &Held, began: usize, nowait: u32) -> Result<usize, i32> {
    let is_read = request.kind.is_read();
    if let (Kind::Read | Kind::Write, Some(part)) = (request.kind, held.part(0)) {
        let start = part.ptr.wrapping_add(request.start + began);
        let len = (request.want - began).min(MOST_AT_ONCE);
        let part = [libc::iovec { iov_base: start.cast(), iov_len: len }];
        return call(target, request, began, nowait, is_read, &part);
    }
    let gather_and_call = |parts: &mut Vec<libc::iovec>| {
        gather(held, is_read, request.start + began, parts);
        call(target, request, began, nowait, is_read, parts)
    };
    // A thread that ends has no list that it keeps.
    let kept = PARTS.try_with(|parts| gather_and_call(&mut parts.borrow_mut()));
    kept.unwrap_or_else(|_| gather_and_call(&mut Vec::new()))
}

fn call(
    target: &Target,
    request: &Request,
    began: usize,
    nowait: u32,
    is_read: bool,
    parts: &[libc::iovec],
) -> Result<usize, i32> {
    let flags = (request.op_flags | target.cache_flags() | nowait).cast_signed();
    let offset = target.offset(request.offset + began as u64).cast_signed();
    let (fd, count) = (target.raw_fd(), parts.len() as i32);
    // SAFETY: the parts lie in memory that `held` owns, and the caller owns `held` during the call; reads write to it
    // no further than its capacity.
    let moved = unsafe {
        match parts {
            // The simpler calls spare the kernel the reading of the list.
            [part] if flags == 0 && offset >= 0 && is_read => {
                libc::pread64(fd, part.iov_base, part.iov_len, offset)
            }
            [part] if flags == 0 && offset >= 0 => libc::pwrite64(fd, part.iov_base, part.iov_len, offset),
            _ if is_read => libc::preadv2(fd, parts.as_ptr(), count, offset, flags),
            _ => libc::pwritev2(fd, parts.as_ptr(), count, offset, flags),
        }
    };
    usize::try_from(moved).map_err(|_| last_errno())
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// What moves no data.
fn control(target: &Target, request: &Request) -> Ended {
    let (fd, offset, want) = (target.raw_fd(), request.offset.cast_signed(), request.want as i64);
    let flags = request.op_flags.cast_signed();
    for _ in 0..ATTEMPTS {
        // SAFETY: none of these calls takes memory.
        let errno = unsafe {
            let answer = match request.kind {
                Kind::Sync if flags == 0 => libc::fsync(fd),
                Kind::Sync => libc::fdatasync(fd),
                Kind::Allocate => libc::fallocate(fd, flags, offset, want),
                Kind::Truncate => libc::ftruncate(fd, offset),
                _ => 0,
            };
            match request.kind {
                Kind::Advise => libc::posix_fadvise(fd, offset, want, flags),
                _ if answer < 0 => last_errno(),
                _ => 0,
            }
        };
        if errno != libc::EINTR {
            return Ended { done: 0, errno };
        }
    }
    Ended { done: 0, errno: libc::EINTR }
}
