//! Time slices: how long a thread goes on with operations that are plain calls before its other tasks, and other threads,
//! run.
//!
//! Also tells a call that waited from one whose thread had to let others run: on a busy machine, a thread may be preempted for
//! tens of milliseconds in the middle of a call that only copies memory. The clock alone shows no difference, but the kernel
//! counts both kinds of context switches of a thread.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use super::op::Request;

/// How long a task may continue with operations that end at once, before the thread's other tasks run. With 16 tasks in
/// tokio that read cached blocks of 4 KiB, 99 of 100 reads take less than 40 µs; with 14 µs it was 170, at the same rate.
/// Yielding costs 0.2 µs.
const SLICE: Duration = Duration::from_nanos(2500);
/// A task that comes back after its time slice seems to be alone: each of its slices is twice as long as the one before, up to
/// this many times (0.16 ms). Yielding may cost it much: where the executor has several threads, another thread takes
/// the task over, and must be woken. In tokio, that took a third of the time of a lone task that read cached blocks.
const MOST_DOUBLED: u32 = 6;
/// The same for a thread in no loop, which yields only to other threads, from time to time.
const SLICE_OF_THREAD: Duration = Duration::from_micros(14);
/// The clock is read only once for this many operations, and for four times as many in long slices: reading it costs 25 ns, and
/// the shortest operation takes 500.
const LOOK_AT_CLOCK: u32 = 4;
/// Compared with an operation this long, a yield costs little, so other tasks run after each.
const LONG: Duration = Duration::from_micros(8);
/// The number of bytes that a thread copies in about that time.
const LONG_COPY: usize = 32 << 10;

/// The number of a task that is not known.
pub(super) const NO_TASK: usize = 0;

/// The inline operations since this thread's last yield.
struct TimeSlice {
    operations: u32,
    /// The inline operations of this thread, in all slices.
    total: u32,
    began: Option<Instant>,
    /// Whether the next operation waits for the other tasks.
    is_over: bool,
    /// The task of the last operation, and how many of its slices have ended in a row, up to [`MOST_DOUBLED`].
    task: usize,
    alone: u32,
}

impl TimeSlice {
    const NEW: Self = Self { operations: 0, total: 0, began: None, is_over: false, task: NO_TASK, alone: 0 };

    /// Counts an operation of a task. Returns whether [`is_at_end`](Self::is_at_end) must be asked.
    #[inline(always)]
    fn count(&mut self, task: usize) -> bool {
        self.operations += 1;
        self.total = self.total.wrapping_add(1);
        self.operations == 1 || self.task != task || self.looks()
    }

    /// Returns whether the clock is looked at for the operation that was counted.
    #[inline(always)]
    fn looks(&self) -> bool {
        self.operations.is_multiple_of(self.look_at_clock()) || self.is_over
    }

    /// A power of two.
    #[inline(always)]
    fn look_at_clock(&self) -> u32 {
        LOOK_AT_CLOCK << ((self.alone >> 2) << 1)
    }

    /// Returns whether the slice has ended with the operation that was counted; the next one then begins.
    fn is_at_end(&mut self, task: usize) -> bool {
        if self.task != task {
            (self.task, self.alone) = (task, 0);
        }
        let is_time = self.looks() && self.began.get_or_insert_with(Instant::now).elapsed() >= self.length();
        if self.operations == 1 {
            self.began = Some(Instant::now());
        }
        let is_at_end = is_time || (self.is_over && self.alone == 0);
        if is_at_end {
            let alone = if task == NO_TASK { 0 } else { (self.alone + 1).min(MOST_DOUBLED) };
            *self = Self { total: self.total, task, alone, ..Self::NEW };
        }
        is_at_end
    }

    fn length(&self) -> Duration {
        if self.task == NO_TASK { SLICE_OF_THREAD } else { SLICE * (1 << self.alone) }
    }

    /// Returns the number by which an operation is sampled. It differs by offset and by time, so that reads of several
    /// files in turn, or of the same few blocks over and over, are sampled too.
    #[inline]
    fn number_of(&self, request: &Request) -> u64 {
        request.offset.wrapping_add(self.total.into())
    }
}

thread_local! {
    static INLINE: RefCell<TimeSlice> = const { RefCell::new(TimeSlice::NEW) };
}

/// Counts an inline operation of a task, or of [`NO_TASK`]. Returns false if the thread's other tasks must run first; the next
/// slice then begins.
#[inline(always)]
pub(super) fn goes_on(task: usize, request: &Request) -> bool {
    INLINE.with(|slice| {
        let mut slice = slice.borrow_mut();
        !slice.count(task) || !is_at_end(&mut slice, task, request)
    })
}

#[inline(never)]
fn is_at_end(slice: &mut TimeSlice, task: usize, request: &Request) -> bool {
    let length = slice.length();
    let is_at_end = slice.is_at_end(task);
    if is_at_end && !request.kind.is_read() {
        let_others_run(length);
    }
    is_at_end
}

/// Returns the number by which an operation is sampled.
#[inline]
pub(super) fn number_of(request: &Request) -> u64 {
    INLINE.with_borrow(|slice| slice.number_of(request))
}

/// Notes how many bytes a plain call has moved. After many, the next one waits for the other tasks.
#[inline]
pub(super) fn has_copied(bytes: usize) {
    if bytes >= LONG_COPY {
        yield_next();
    }
}

/// Notes how long a plain call took, as [`has_copied`] does.
#[inline]
pub(super) fn has_taken(took: Duration) {
    if took >= LONG {
        yield_next();
    }
}

/// Makes the thread's next inline operation wait for the other tasks.
fn yield_next() {
    INLINE.with_borrow_mut(|slice| slice.is_over = true);
}

/// A thread looks after so much time in slices of plain calls whether others wait for its processor: the look and the
/// switch to another process cost 4 µs.
const INTERVAL: Duration = Duration::from_micros(110);

/// Whether a thread shares its processor.
#[derive(Clone, Copy)]
struct Crowd {
    /// How long the slices since the last look have lasted, at least.
    ran: Duration,
    /// The involuntary switches when they were last looked at.
    seen: i64,
    /// How many more times to yield.
    yields: u32,
}

/// How often a thread yields after another one has run. The scheduler may not take a yield of a thread that has run less
/// than others, until it has caught up with them: one that gave up then would use the whole of its next time slice.
const YIELDS: u32 = 64;

thread_local! {
    static CROWD: Cell<Crowd> = const { Cell::new(Crowd { ran: Duration::ZERO, seen: 0, yields: 0 }) };
    /// This thread's voluntary and involuntary context switches when they were last looked at.
    static SEEN: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

/// Returns whether this thread was preempted since the last call of this function, and has not waited for anything.
/// Takes a system call.
#[cold]
pub(super) fn was_only_preempted() -> bool {
    let Some(now) = look() else { return false };
    let before = SEEN.replace(now);
    now.0 == before.0 && now.1 != before.1
}

/// Lets other threads run, now and then, if there are more than processors: if this one was preempted, and as long as
/// another one runs when it yields. Otherwise each would use up its time slice, and what the others have in flight would
/// wait for several slices. Called at the end of a slice of plain calls that write, which has lasted that long: 16 processes
/// on two processors had a p99.9 of 14 ms instead of 49, at the same rate. With reads it fell from 32 to 4 ms, but the rate
/// fell by 4 %, and p99 rose from 0.1 to 3 ms, since more operations were under way when a thread yielded.
fn let_others_run(slice: Duration) {
    let crowd = CROWD.get();
    let ran = crowd.ran + slice;
    CROWD.set(if ran < INTERVAL { Crowd { ran, ..crowd } } else { yield_to(crowd) });
}

#[cold]
fn yield_to(crowd: Crowd) -> Crowd {
    if crowd.yields > 0 {
        std::thread::yield_now();
    }
    // A yield to another thread counts as a preemption.
    let seen = look().map_or(crowd.seen, |(_, preempted)| preempted);
    let yields = if seen == crowd.seen { crowd.yields.saturating_sub(1) } else { YIELDS };
    Crowd { ran: Duration::ZERO, seen, yields }
}

/// Returns this thread's voluntary and involuntary context switches.
fn look() -> Option<(i64, i64)> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: `usage` has room for what the call writes.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: a call that succeeds has filled it.
    (answer == 0).then(|| unsafe { usage.assume_init() }).map(|usage| (usage.ru_nvcsw, usage.ru_nivcsw))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goes_on(slice: &mut TimeSlice, task: usize) -> bool {
        !slice.count(task) || !slice.is_at_end(task)
    }

    #[test]
    fn slices_grow_while_the_same_task_comes_back() {
        let mut slice = TimeSlice::NEW;
        let mut end = |task| {
            // The slice has used up its time.
            slice.began = Instant::now().checked_sub(Duration::from_secs(1));
            slice.operations = slice.look_at_clock() - 1;
            assert!(!goes_on(&mut slice, task));
            slice.length().as_micros() as u64
        };
        assert_eq!([1, 1, 1, 1, 1, 1, 1, 2, 1, 1].map(&mut end), [5, 10, 20, 40, 80, 160, 160, 5, 5, 10]);
        assert_eq!([NO_TASK, NO_TASK].map(end), [14, 14], "of any task");
    }

    #[test]
    fn a_long_operation_ends_the_slice_of_a_task_unless_it_seems_to_be_alone() {
        let mut slice =
            TimeSlice { began: Some(Instant::now()), operations: 1, is_over: true, ..TimeSlice::NEW };
        assert!(!goes_on(&mut slice, 1));
        slice =
            TimeSlice { began: Instant::now().checked_add(Duration::from_secs(1)), is_over: true, ..slice };
        assert!(goes_on(&mut slice, 1), "it came back");
        assert!(!goes_on(&mut slice, 2));
    }

    #[test]
    fn a_thread_that_has_waited_was_not_only_preempted() {
        for _ in 0..3 {
            was_only_preempted();
            std::thread::sleep(Duration::from_millis(1));
            assert!(!was_only_preempted());
        }
    }

    #[test]
    fn a_thread_yields_while_another_one_runs_meanwhile() {
        let alone = Crowd { ran: INTERVAL, seen: look().unwrap().1, yields: 0 };
        let preempted = yield_to(Crowd { seen: alone.seen - 1, ..alone });
        assert_eq!(preempted.yields, YIELDS);
        // It ends once no other thread wants the processor.
        let mut crowd = preempted;
        while crowd.yields > 0 {
            crowd = yield_to(crowd);
        }
    }

    #[test]
    fn a_thread_that_others_preempt_was_only_preempted() {
        // Three threads on one processor, and this one does not wait.
        let cpu = rustix::thread::sched_getcpu();
        let mut only = rustix::thread::CpuSet::new();
        only.set(cpu);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let _ = rustix::thread::sched_setaffinity(None, &only);
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let own = rustix::thread::sched_getaffinity(None).unwrap();
            rustix::thread::sched_setaffinity(None, &only).unwrap();
            was_only_preempted();
            let before = look().unwrap();
            while look().unwrap().1 == before.1 {}
            let (only_preempted, after) = (was_only_preempted(), look().unwrap());
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            rustix::thread::sched_setaffinity(None, &own).unwrap();
            assert_eq!(only_preempted, after.0 == before.0, "{before:?} {after:?}");
        });
    }
}
