//! The progress of an operation, and what each answer of the kernel means for it: the same rules for rings and plain
//! calls.
//!
//! Pure: it asks about the file through [`Rules`]. Invariants: `done` never falls, and never exceeds what is wanted; an
//! operation that makes no progress ends after a bounded number of attempts.

use super::request::{Kind, Request};

/// The number of attempts without progress (EINTR, EAGAIN) after which the operation ends with the errno.
const ATTEMPTS: u8 = 250;

/// The errno for an operation that the ring ended because it could not create a thread for it. Linux has no such errno.
pub(crate) const NO_THREAD: i32 = 4096;

/// The number of attempts after [`NO_THREAD`]. The kernel itself tries three times if a signal came, so the cause is
/// mostly a limit on threads (RLIMIT_NPROC, or pids.max of the cgroup), which more attempts would not lift.
const THREAD_ATTEMPTS: u8 = 8;

/// `ERESTARTSYS` and its like. No call returns them, but rings of Linux 6.1 do, for a read of a terminal that a signal
/// ends.
const INTERRUPTED: [i32; 4] = [512, 513, 514, 516];

/// Properties of a file that decide how an operation continues.
pub(crate) trait Rules {
    /// Returns the byte at which an operation continues after `done` bytes.
    fn goes_on_at(&self, kind: Kind, done: usize) -> usize;

    /// Returns whether an operation that stopped short after `done` bytes has ended.
    fn is_at_end(&self, kind: Kind, offset: u64, done: usize) -> bool;

    /// Returns whether to retry in a simpler form (without a flag, or in smaller pieces) an operation with `left` bytes
    /// left, which failed `attempts` times in a row.
    fn asks_less(&self, errno: i32, left: usize, attempts: u8) -> bool;

    /// Returns whether an operation that moves no data continues after it was done in part.
    fn is_done_in_parts(&self) -> bool;
}

/// The most that an operation can have done. No address space holds more, and a copy, whose source may be a longer hole,
/// ends there.
pub(super) const MOST_DONE: usize = usize::MAX >> 8;

/// See the module. Packed into 64 bits, so that a slot stays two cache lines: the bytes done in the upper 56 bits, and the
/// attempts without progress since the last success in the lower 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Progress(u64);

/// What to do after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The operation has ended, with this errno, or 0 for success.
    Done(i32),
    /// The rest, from [`Progress::began`] on, is to be submitted or called again.
    GoOn,
}

impl Progress {
    /// Returns the bytes that are done.
    #[inline]
    pub(crate) fn done(self) -> usize {
        (self.0 >> 8) as usize
    }

    /// Notes that an operation has ended with `done` bytes.
    #[inline]
    pub(crate) fn end(&mut self, done: usize) {
        self.set(done, 0);
    }

    #[inline]
    fn set(&mut self, done: usize, attempts: u8) {
        debug_assert!(done <= MOST_DONE);
        self.0 = (done as u64) << 8 | u64::from(attempts);
    }

    fn attempts(self) -> u8 {
        self.0 as u8
    }

    /// Returns the byte at which the next submission starts, or, after an answer, at which that submission had started.
    #[inline]
    pub(crate) fn began(self, request: &Request, rules: &impl Rules) -> usize {
        if self.done() == 0 { 0 } else { rules.goes_on_at(request.kind, self.done()) }
    }

    /// Returns whether [`NO_THREAD`] would lead to another attempt.
    #[cold]
    pub(crate) fn may_lack_a_thread(self) -> bool {
        self.attempts() + 1 < THREAD_ATTEMPTS
    }

    /// Takes an answer: the bytes moved, or the errno. An operation that is no longer wanted is not retried.
    // Inlined in plain calls, which saves 12 instructions for each.
    #[inline(always)]
    pub(crate) fn answered(
        &mut self,
        request: &Request,
        rules: &impl Rules,
        answer: Result<usize, i32>,
        is_wanted: impl FnOnce() -> bool,
    ) -> Step {
        match answer {
            Err(errno) => self.failed(request, rules, errno, is_wanted),
            Ok(_) if !request.kind.moves_data() && !request.kind.is_copy() && !rules.is_done_in_parts() => {
                Step::Done(0)
            }
            Ok(moved) => self.moved(request, rules, moved, is_wanted),
        }
    }

    fn failed(
        &mut self,
        request: &Request,
        rules: &impl Rules,
        errno: i32,
        is_wanted: impl FnOnce() -> bool,
    ) -> Step {
        let (errno, most) = match errno {
            // The errno of `clone(2)`.
            NO_THREAD => (libc::EAGAIN, THREAD_ATTEMPTS),
            errno if INTERRUPTED.contains(&errno) => (libc::EINTR, ATTEMPTS),
            errno => (errno, ATTEMPTS),
        };
        let attempts = self.attempts().saturating_add(1);
        self.set(self.done(), attempts);
        let left = request.want.saturating_sub(self.done());
        let is_passing = match errno {
            libc::EINTR | libc::EAGAIN => true,
            _ => {
                let may_ask_less = request.kind.moves_data() && !request.is_atomic();
                may_ask_less && rules.asks_less(errno, left, attempts)
            }
        };
        if !is_passing || attempts >= most {
            return Step::Done(errno);
        }
        if is_wanted() { Step::GoOn } else { Step::Done(libc::ECANCELED) }
    }

    #[inline(always)]
    fn moved(
        &mut self,
        request: &Request,
        rules: &impl Rules,
        moved: usize,
        is_wanted: impl FnOnce() -> bool,
    ) -> Step {
        let before = self.done();
        let done = (self.began(request, rules) + moved).max(before).min(request.want);
        let attempts = if done > before { 0 } else { self.attempts().saturating_add(1) };
        self.set(done, attempts);
        if done == request.want || moved == 0 {
            return Step::Done(0);
        }
        // The rest of an atomic write would be a second write.
        let is_over = attempts >= ATTEMPTS
            || request.is_atomic()
            || rules.is_at_end(request.kind, request.offset, done);
        if is_over {
            Step::Done(0)
        } else if is_wanted() {
            Step::GoOn
        } else {
            // If a part looked like success, a read would seem to end with its file.
            Step::Done(libc::ECANCELED)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with blocks of 512 bytes, which is `len` bytes long.
    struct File {
        direct: bool,
        len: u64,
        drops: bool,
    }

    impl Rules for File {
        fn goes_on_at(&self, _: Kind, done: usize) -> usize {
            if self.direct { done - done % 512 } else { done }
        }

        fn is_at_end(&self, kind: Kind, offset: u64, done: usize) -> bool {
            kind.is_read() && self.direct && !done.is_multiple_of(512) && offset + done as u64 >= self.len
        }

        fn asks_less(&self, errno: i32, _: usize, _: u8) -> bool {
            self.drops && errno == libc::EOPNOTSUPP
        }

        fn is_done_in_parts(&self) -> bool {
            false
        }
    }

    const BUFFERED: File = File { direct: false, len: u64::MAX, drops: false };

    fn request(kind: Kind, want: usize) -> Request {
        Request { want, ..Request::of(kind) }
    }

    /// Gives the kernel's answers in turn. Returns where each submission started, what the last answer led to, and the
    /// bytes done.
    fn run(request: &Request, file: &File, answers: &[Result<usize, i32>]) -> (Vec<usize>, Step, usize) {
        let (mut progress, mut began, mut step) = (Progress::default(), Vec::new(), Step::GoOn);
        for &answer in answers {
            assert_eq!(step, Step::GoOn, "an answer after the end");
            began.push(progress.began(request, file));
            step = progress.answered(request, file, answer, || true);
        }
        (began, step, progress.done())
    }

    #[test]
    fn a_short_count_continues_where_it_stopped() {
        let read = request(Kind::Read, 1000);
        assert_eq!(run(&read, &BUFFERED, &[Ok(1000)]), (vec![0], Step::Done(0), 1000));
        assert_eq!(
            run(&read, &BUFFERED, &[Ok(300), Ok(200), Ok(500)]),
            (vec![0, 300, 500], Step::Done(0), 1000)
        );
        assert_eq!(run(&read, &BUFFERED, &[Ok(300), Ok(0)]), (vec![0, 300], Step::Done(0), 300), "the end");
        let write = request(Kind::WriteVectored, 1000);
        assert_eq!(
            run(&write, &BUFFERED, &[Ok(300), Err(libc::ENOSPC)]),
            (vec![0, 300], Step::Done(libc::ENOSPC), 300)
        );
    }

    #[test]
    fn an_atomic_write_is_never_continued_and_never_retried_without_its_flag() {
        let file = File { direct: true, len: u64::MAX, drops: true };
        let write = request(Kind::WriteAtomic, 4096);
        assert_eq!(run(&write, &file, &[Ok(4096)]), (vec![0], Step::Done(0), 4096));
        assert_eq!(run(&write, &file, &[Ok(512)]), (vec![0], Step::Done(0), 512));
        assert_eq!(run(&write, &file, &[Err(libc::EAGAIN), Ok(4096)]), (vec![0, 0], Step::Done(0), 4096));
        let refused = [Err(libc::EOPNOTSUPP)];
        assert_eq!(run(&write, &file, &refused), (vec![0], Step::Done(libc::EOPNOTSUPP), 0));
    }

    #[test]
    fn direct_io_continues_at_a_whole_block_and_ends_with_the_file() {
        let file = File { direct: true, len: 700, drops: false };
        let read = request(Kind::Read, 2048);
        assert_eq!(run(&read, &file, &[Ok(600), Ok(188)]), (vec![0, 512], Step::Done(0), 700));
        assert_eq!(run(&read, &file, &[Ok(600), Ok(50)]).1, Step::GoOn, "less than before is no progress");
        let write = request(Kind::Write, 2048);
        assert_eq!(run(&write, &file, &[Ok(600), Ok(1536)]), (vec![0, 512], Step::Done(0), 2048));
    }

    #[test]
    fn temporary_errors_are_retried_up_to_a_limit_since_the_last_progress() {
        let read = request(Kind::Read, 10);
        let mut answers = vec![Err(libc::EINTR); usize::from(ATTEMPTS) - 1];
        answers.push(Ok(5));
        answers.extend(vec![Err(libc::EAGAIN); usize::from(ATTEMPTS)]);
        let (_, step, done) = run(&read, &BUFFERED, &answers);
        assert_eq!((step, done), (Step::Done(libc::EAGAIN), 5));
        assert_eq!(run(&read, &BUFFERED, &[Err(libc::EOPNOTSUPP)]).1, Step::Done(libc::EOPNOTSUPP));
        assert_eq!(run(&read, &BUFFERED, &[Err(512), Ok(10)]).1, Step::Done(0));
        let file = File { drops: true, ..BUFFERED };
        assert_eq!(run(&read, &file, &[Err(libc::EOPNOTSUPP), Ok(10)]).1, Step::Done(0));
        let sync = request(Kind::Sync, 0);
        assert_eq!(run(&sync, &file, &[Err(libc::EINTR), Ok(0)]).1, Step::Done(0));
        assert_eq!(run(&sync, &file, &[Err(libc::EIO)]).1, Step::Done(libc::EIO));
    }

    #[test]
    fn a_missing_kernel_thread_is_retried_a_few_times_and_reported_as_eagain() {
        let allocate = request(Kind::Allocate, 10);
        let mut answers = vec![Err(NO_THREAD); usize::from(THREAD_ATTEMPTS)];
        assert_eq!(run(&allocate, &BUFFERED, &answers).1, Step::Done(libc::EAGAIN));
        answers.pop();
        answers.push(Ok(0));
        assert_eq!(run(&allocate, &BUFFERED, &answers).1, Step::Done(0));
    }

    #[test]
    fn an_unwanted_operation_is_not_retried() {
        let read = request(Kind::Read, 10);
        let mut progress = Progress::default();
        let cancelled = Step::Done(libc::ECANCELED);
        assert_eq!(progress.answered(&read, &BUFFERED, Err(libc::EINTR), || false), cancelled);
        assert_eq!(
            progress.answered(&read, &BUFFERED, Ok(5), || false),
            cancelled,
            "a part is not the end of the file"
        );
        assert_eq!(progress.done(), 5);
        assert_eq!(progress.answered(&read, &BUFFERED, Ok(5), || false), Step::Done(0), "all of it");
        let (mut progress, direct) = (Progress::default(), File { direct: true, len: 5, drops: false });
        assert_eq!(progress.answered(&read, &direct, Ok(5), || false), Step::Done(0), "the end of the file");
    }
}
