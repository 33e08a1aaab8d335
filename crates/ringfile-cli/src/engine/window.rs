//! The measured window of an engine that runs inside this process.
//!
//! Invariants: at both ends of the window nothing is in flight, so that operations, kernel counters and CPU time cover
//! the same work. All threads warm up, drain, wait for each other while CPU time is read, run, drain, and wait again.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::interrupt::Interrupt;
use crate::job::Job;
use crate::latency::Recorder;
use crate::share::Share;
use crate::sys;
use crate::whole::Whole;

/// How often the waiting thread checks for Ctrl-C and moves the progress bar.
pub const TICK: Duration = Duration::from_millis(50);

/// Synchronises the threads of a run with the one that conducts them.
pub struct Window {
    meeting: Meeting,
    stop: AtomicBool,
    ends: Mutex<Ends>,
    errors: AtomicU64,
    first_failure: Mutex<Option<Failure>>,
    /// Threads besides the conducting one.
    threads: usize,
    /// The length of the warm-up, and that of the measurement.
    lengths: (Duration, Duration),
    /// The shares of the job's threads.
    shares: Vec<Arc<Share>>,
}

struct Ends {
    warmup: Instant,
    measured: Instant,
}

/// What the conducting thread measured.
pub struct MeasuredWindow {
    /// When the operations began.
    pub start: Instant,
    /// What the process used within the window.
    pub usage: Option<sys::Usage>,
    /// What the whole machine did within the window.
    pub whole: Option<Whole>,
    /// What the library counted in the process within the window. Threads in a loop of its own publish with each
    /// turn only, and wait here outside one: theirs is to be had from them.
    pub counted: ringfile::metrics::Metrics,
    /// Operations that failed.
    pub errors: u64,
    /// The first of them.
    pub failure: Option<Failure>,
    /// Whether a failure or the user ended the window early.
    pub stopped: bool,
}

impl Window {
    /// Makes a window for a job with this many threads besides the conducting one.
    pub fn of(job: &Job, threads: usize) -> Arc<Window> {
        Window::new(threads, (job.warmup, job.duration), job.shares())
    }

    /// Makes a window of these lengths for so many threads.
    pub fn new(threads: usize, lengths: (Duration, Duration), shares: Vec<Share>) -> Arc<Window> {
        let now = Instant::now();
        Arc::new(Window {
            meeting: Meeting::new(threads + 1),
            stop: AtomicBool::new(false),
            ends: Mutex::new(Ends { warmup: now, measured: now }),
            errors: AtomicU64::new(0),
            first_failure: Mutex::new(None),
            threads,
            lengths,
            shares: shares.into_iter().map(Arc::new).collect(),
        })
    }

    /// Returns the share of one of the job's threads.
    pub fn share(&self, thread: usize) -> &Arc<Share> {
        &self.shares[thread]
    }

    /// Returns a thread's place in the meeting. The caller takes it before the thread starts; the thread drops it.
    pub fn member(self: &Arc<Self>) -> Member {
        Member { window: self.clone() }
    }

    /// Counts an operation that failed, and ends the run.
    pub fn fail(&self, failure: Failure) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        lock(&self.first_failure).get_or_insert(failure);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Leads the threads through warm-up and measurement; `tick` is called now and then meanwhile.
    pub fn conduct(&self, interrupt: &Interrupt, tick: &mut dyn FnMut()) -> MeasuredWindow {
        let mut idle = || {
            if interrupt.asked() {
                self.stop.store(true, Ordering::Relaxed);
            }
            tick();
        };
        let warmup = Instant::now() + self.lengths.0;
        lock(&self.ends).warmup = warmup;
        self.meeting.wait();
        self.wait_until(warmup, &mut idle);
        self.meeting.wait_and(&mut idle);
        self.shares.iter().for_each(|share| share.restart());
        let whole_before = Whole::so_far();
        let usage_before = sys::own_usage();
        let counts_before = ringfile::metrics();
        let start = Instant::now();
        lock(&self.ends).measured = start + self.lengths.1;
        self.meeting.wait();
        self.wait_until(start + self.lengths.1, &mut idle);
        self.meeting.wait_and(&mut idle);
        MeasuredWindow {
            start,
            counted: ringfile::metrics() - counts_before,
            usage: usage_before.and_then(|before| Ok(sys::own_usage()?.since(&before))).ok(),
            whole: whole_before.and_then(|before| Some(Whole::so_far()?.since(&before))),
            errors: self.errors.load(Ordering::Relaxed),
            failure: lock(&self.first_failure).take(),
            stopped: self.stop.load(Ordering::Relaxed),
        }
    }

    /// Runs `work` on threads named `name-0` and so on, conducts them, and returns their results.
    pub fn run_threads<T: Send>(
        self: &Arc<Self>,
        (interrupt, tick): (&Interrupt, &mut dyn FnMut()),
        name: &str,
        work: impl Fn(usize, Member) -> T + Sync,
    ) -> (MeasuredWindow, Vec<T>) {
        let work = &work;
        std::thread::scope(|scope| {
            let mut handles = Vec::new();
            for thread in 0..self.threads {
                let member = self.member();
                let builder = std::thread::Builder::new().name(format!("{name}-{thread}"));
                // A thread that does not start drops its member, so the others do not wait for it.
                match builder.spawn_scoped(scope, move || work(thread, member)) {
                    Ok(handle) => handles.push(handle),
                    Err(error) => self.fail(no_thread(&error)),
                }
            }
            let measured = self.conduct(interrupt, tick);
            (measured, handles.into_iter().map(joined).collect())
        })
    }

    /// Waits for the end of a phase: its time is over, all threads have finished their share, or the run is stopped.
    fn wait_until(&self, end: Instant, idle: &mut impl FnMut()) {
        while !self.stop.load(Ordering::Relaxed) && !self.meeting.awaits_one() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(TICK));
            idle();
        }
    }
}

/// One thread's place in the meeting. Dropping it, even in a panic, never leaves the others waiting.
pub struct Member {
    window: Arc<Window>,
}

impl Member {
    /// Returns the window it belongs to.
    pub fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// Waits for all threads to be set up; returns the end of the warm-up.
    pub fn ready(&self) -> Until {
        self.window.meeting.wait();
        Until { end: lock(&self.window.ends).warmup, window: self.window.clone() }
    }

    /// Waits for all threads to have nothing in flight; returns the end of the measurement.
    pub fn warmed_up(&self) -> Until {
        self.window.meeting.wait();
        self.window.meeting.wait();
        Until { end: lock(&self.window.ends).measured, window: self.window.clone() }
    }

    /// Lets a thread operate through warm-up and measurement; returns the latencies that `operate` recorded in the
    /// measurement, and the time of its last completion.
    pub fn phases(&self, mut operate: impl FnMut(&Until, &mut Recorder) -> Instant) -> (Recorder, Instant) {
        let mut recorder = Recorder::new();
        operate(&self.ready(), &mut recorder);
        recorder = Recorder::new();
        let last = operate(&self.warmed_up(), &mut recorder);
        self.finished();
        (recorder, last)
    }

    /// Announces that this thread's last operation is done, and waits for the others.
    pub fn finished(&self) {
        self.window.meeting.wait();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.window.stop.store(true, Ordering::Relaxed);
        }
        self.window.meeting.leave();
    }
}

/// When a phase is over: at its end, or when all threads are to stop.
#[derive(Clone)]
pub struct Until {
    end: Instant,
    window: Arc<Window>,
}

impl Until {
    /// Returns the end of the phase, if nothing stops it before.
    pub fn end(&self) -> Instant {
        self.end
    }

    /// Returns whether no further operation may begin.
    pub fn over(&self, now: Instant) -> bool {
        now >= self.end || self.stopped()
    }

    /// Returns whether not even a first operation may begin. Otherwise each thread does one, however late it starts: on
    /// a busy machine a short phase may be over by then, and a run without operations has no figures.
    pub fn stopped(&self) -> bool {
        self.window.stop.load(Ordering::Relaxed)
    }
}

/// A barrier that members can leave.
struct Meeting {
    state: Mutex<MeetingState>,
    changed: Condvar,
}

struct MeetingState {
    members: usize,
    arrived: usize,
    round: u64,
}

impl Meeting {
    fn new(members: usize) -> Meeting {
        Meeting { state: Mutex::new(MeetingState { members, arrived: 0, round: 0 }), changed: Condvar::new() }
    }

    fn wait(&self) {
        self.wait_and(&mut || {});
    }

    /// Waits for all members, and calls `idle` now and then meanwhile.
    fn wait_and(&self, idle: &mut impl FnMut()) {
        let mut state = lock(&self.state);
        state.arrived += 1;
        if state.arrived == state.members {
            return self.open(state);
        }
        let round = state.round;
        while state.round == round {
            let waited = self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            if waited.1.timed_out() {
                drop(state);
                idle();
                state = lock(&self.state);
            }
        }
    }

    /// Returns whether all but one have arrived.
    fn awaits_one(&self) -> bool {
        let state = lock(&self.state);
        state.arrived + 1 >= state.members
    }

    fn leave(&self) {
        let mut state = lock(&self.state);
        state.members -= 1;
        if state.arrived > 0 && state.arrived == state.members {
            self.open(state);
        }
    }

    fn open(&self, mut state: MutexGuard<'_, MeetingState>) {
        state.arrived = 0;
        state.round += 1;
        self.changed.notify_all();
    }
}

/// Returns the result of a thread, or continues its panic.
pub fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns the failure to start a thread.
pub fn no_thread(error: &io::Error) -> Failure {
    let errno = crate::error::errno_text(error);
    Failure::Io(format!("a thread can't be started: {errno}; ask for fewer, or raise the limit (ulimit -u)"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Continues the panic of a task, which is a defect of this program.
pub fn raise(error: ::ringfile::runtime::JoinError) -> ! {
    match error {
        ::ringfile::runtime::JoinError::Panicked(panic) => std::panic::resume_unwind(panic.into_payload()),
        other => panic!("a task of the measurement ended early: {other}"),
    }
}

/// Waits for tokio's tasks, and returns their results. Only a panic ends a task early, and continues here.
pub async fn join_all<T>(handles: Vec<tokio::task::JoinHandle<T>>) -> Vec<T> {
    let mut results = Vec::with_capacity(handles.len());
    for handle in handles {
        let joined = handle.await.map_err(tokio::task::JoinError::into_panic);
        results.push(joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_panics_leaves_nobody_waiting() {
        let meeting = Meeting::new(3);
        std::thread::scope(|scope| {
            scope.spawn(|| meeting.wait());
            scope.spawn(|| meeting.wait());
            meeting.leave();
        });
        assert_eq!(lock(&meeting.state).round, 1);
    }

    #[test]
    fn phases_are_over_at_their_end_or_on_stop() {
        let window = Window::of(&crate::job::tests::job(crate::model::Rw::Read, 1, 1, 8, false), 1);
        let now = Instant::now();
        let until = Until { end: now + Duration::from_secs(60), window: window.clone() };
        assert!(!until.over(now));
        assert!(until.over(now + Duration::from_secs(61)) && !until.stopped());
        window.fail(Failure::Interrupted);
        assert!(until.over(now) && until.stopped());
    }
}
