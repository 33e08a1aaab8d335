//! A simulation that runs: its tasks, its clock, and the operations in flight.
//!
//! Knows remote requests, which the driver hands over instead of sending them to a worker, and the disk. Everything is
//! on one thread. Invariants: the same seed gives the same order of everything; no user code runs while the world is
//! borrowed; an operation takes effect at one moment between its start and its end, when it ends.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::disk::{Contents, Inode};
use super::faults::Faults;
use super::file_state::Mark;
use super::seed::Random;
use crate::driver::{Ended, RemoteRequest, Request};

/// A number of an open file. No two files of a process have the same: one that outlives its simulation is not open in another.
pub(crate) type OpenNumber = u64;

/// 0 is that of [`OpenRef::PATH`].
pub(super) static NEXT_OPEN: AtomicU64 = AtomicU64::new(1);

pub(super) struct OpenFile {
    pub(super) inode: Inode,
    pub(super) flags: i32,
    /// How many of the file's failed syncs it has reported.
    pub(super) reported: u64,
}

struct Pending {
    remote: RemoteRequest,
    /// What a sync covers.
    mark: Mark,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

pub(super) struct World {
    pub(super) disk: Contents,
    pub(super) random: Random,
    pub(super) faults: Faults,
    /// The time since the simulation began.
    now: Duration,
    began: Instant,
    next: u64,
    pending: BTreeMap<(Duration, u64), Pending>,
    timers: BTreeMap<(Duration, u64), Waker>,
    tasks: Vec<Option<Task>>,
    woken: Arc<Woken>,
    pub(super) open: BTreeMap<OpenNumber, OpenFile>,
    /// The open files, by the descriptors that stand for them.
    pub(super) stand_ins: BTreeMap<RawFd, OpenNumber>,
    /// The event before which the power is cut.
    pub(super) cut_at: u64,
    /// Whether it is cut: what is carried out now was in flight, and is not durable.
    pub(super) is_off: bool,
    pub(super) events: u64,
    pub(super) trace: u64,
    /// The last operation that has ended.
    pub(super) last: Option<(Request, Ended)>,
    /// What the sync that is carried out covers.
    pub(super) mark: Mark,
    /// What a power cut has left.
    pub(super) left: Option<Contents>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Runs `act` on this thread's world; `None` if there is none.
pub(super) fn with<R>(act: impl FnOnce(&mut World) -> R) -> Option<R> {
    WORLD.try_with(|world| world.try_borrow_mut().ok()?.as_mut().map(act)).ok().flatten()
}

/// Puts a world in place, or takes it away.
pub(super) fn set(world: Option<World>) -> Option<World> {
    WORLD.with(|place| std::mem::replace(&mut *place.borrow_mut(), world))
}

/// Returns whether the calling thread runs a simulation.
pub(crate) fn is_here() -> bool {
    WORLD.try_with(|world| world.try_borrow().map_or(true, |world| world.is_some())).unwrap_or(false)
}

/// The number of the future that `run` was given.
const MAIN: usize = 0;

/// Tasks that are ready, in the order in which they were woken.
struct Woken(Mutex<Vec<usize>>);

impl Woken {
    fn lock(&self) -> MutexGuard<'_, Vec<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, task: usize) {
        let mut woken = self.lock();
        if !woken.contains(&task) {
            woken.push(task);
        }
    }

    fn take(&self, random: &mut Random) -> Option<usize> {
        let mut woken = self.lock();
        let at = match woken.len() {
            0 => return None,
            1 => 0,
            many => random.below(many as u64) as usize,
        };
        Some(woken.remove(at))
    }
}

struct TaskWaker {
    woken: Arc<Woken>,
    task: usize,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.woken.add(self.task);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.add(self.task);
    }
}

/// Why a simulation ended.
pub(super) enum End<T> {
    Returned(T),
    PowerCut,
}

impl World {
    pub(super) fn new(disk: Contents, random: Random, faults: Faults) -> Self {
        Self {
            disk,
            random,
            faults,
            now: Duration::ZERO,
            began: Instant::now(),
            next: 0,
            pending: BTreeMap::new(),
            timers: BTreeMap::new(),
            tasks: vec![None],
            woken: Arc::new(Woken(Mutex::new(vec![MAIN]))),
            open: BTreeMap::new(),
            stand_ins: BTreeMap::new(),
            cut_at: u64::MAX,
            is_off: false,
            events: 0,
            trace: 0xcbf2_9ce4_8422_2325,
            last: None,
            mark: Mark::default(),
            left: None,
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.now
    }

    /// Describes the last operation, for a report.
    pub(super) fn last_operation(&self) -> String {
        match &self.last {
            Some((request, ended)) => format!(
                "{:?} after the {} at byte {} ({} bytes, errno {})",
                self.now,
                request.kind.verb(request.op_flags),
                request.offset,
                ended.done,
                ended.errno
            ),
            None => "before the first operation".to_owned(),
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn note(&mut self, what: u64) {
        self.trace = (self.trace ^ what).wrapping_mul(0x0100_0000_01b3);
    }

    /// Forgets a file that has neither a name nor a handle.
    pub(super) fn forget_unused(&mut self, inode: Inode) {
        if self.open.values().all(|open| open.inode != inode) && self.disk.links(inode) == 0 {
            self.disk.forget(inode);
        }
    }

    /// Returns whether a sync of the file has failed that this open file has not reported yet: each reports each once.
    pub(super) fn report_failures(&mut self, file: OpenNumber) -> bool {
        let Some(open) = self.open.get_mut(&file) else { return false };
        let failures = self.disk.failures(open.inode);
        std::mem::replace(&mut open.reported, failures) < failures
    }

    fn is_cut(&mut self) -> bool {
        self.events += 1;
        self.events > self.cut_at
    }

    /// Takes the next thing that happens after the present.
    fn next_event(&mut self) -> Option<Event> {
        let operation = self.pending.first_key_value().map(|(key, _)| *key);
        let timer = self.timers.first_key_value().map(|(key, _)| *key);
        let first = operation.into_iter().chain(timer).min()?;
        self.now = self.now.max(first.0);
        self.note(first.0.as_nanos() as u64);
        if timer == Some(first) {
            return self.timers.remove(&first).map(Event::Timer);
        }
        self.pending.remove(&first).map(Event::Operation)
    }
}

enum Event {
    Operation(Pending),
    Timer(Waker),
}

/// Runs the main future and its tasks until it returns, or the power is cut.
///
/// # Panics
/// If nothing can go on any more.
pub(super) fn run<F: Future>(mut main: Pin<&mut F>) -> End<F::Output> {
    let waker = |task: usize| {
        let woken = with(|world| Arc::clone(&world.woken)).expect("a world is in place");
        Waker::from(Arc::new(TaskWaker { woken, task }))
    };
    let mut wakers = vec![waker(MAIN)];
    loop {
        let ready = with(|world| {
            let ready = world.woken.take(&mut world.random);
            if let Some(task) = ready {
                world.note(task as u64);
            }
            let taken = ready.and_then(|task| world.tasks.get_mut(task)?.take());
            (ready, taken, world.is_cut())
        });
        let Some((ready, taken, false)) = ready else {
            cut_power();
            return End::PowerCut;
        };
        match (ready, taken) {
            (Some(MAIN), _) => {
                if let Poll::Ready(output) = main.as_mut().poll(&mut Context::from_waker(&wakers[MAIN])) {
                    if with(|world| world.cut_at < u64::MAX) == Some(true) {
                        cut_power();
                    }
                    return End::Returned(output);
                }
            }
            (Some(number), Some(mut task)) => {
                while wakers.len() <= number {
                    wakers.push(waker(wakers.len()));
                }
                if task.as_mut().poll(&mut Context::from_waker(&wakers[number])).is_pending() {
                    with(|world| world.tasks[number] = Some(task));
                }
            }
            // It has ended.
            (Some(_), None) => {}
            (None, _) => match with(World::next_event).flatten() {
                Some(Event::Operation(pending)) => carry_out(pending),
                Some(Event::Timer(waker)) => waker.wake(),
                None => panic!(
                    "the simulated program waits for something that never comes: no operation is in flight, no timer \
                     runs, and no task is ready"
                ),
            },
        }
    }
}

/// Drops the tasks, ends the operations in flight, and drops the timers; also those that destructors begin: without a
/// world, what they do would be real.
pub(super) fn end_tasks() {
    let is_left =
        |world: &mut World| !(world.tasks.is_empty() && world.pending.is_empty() && world.timers.is_empty());
    while with(is_left) == Some(true) {
        let tasks = with(|world| {
            world.woken.lock().clear();
            std::mem::take(&mut world.tasks)
        });
        drop(tasks);
        end_operations();
        let timers = with(|world| std::mem::take(&mut world.timers));
        drop(timers);
    }
}

/// Cuts the power: what the program does when it is dropped has no effect.
fn cut_power() {
    with(|world| world.is_off = true);
    end_operations();
    with(|world| world.left = Some(world.disk.after_cut(&mut world.random)));
}

/// Ends the operations in flight: each has reached the disk or not.
fn end_operations() {
    let pending = with(|world| std::mem::take(&mut world.pending)).unwrap_or_default();
    for pending in pending.into_values() {
        if with(|world| world.random.happens(0.5)) == Some(true) {
            carry_out(pending);
        } else {
            pending.remote.refuse(libc::ECANCELED);
        }
    }
}

fn carry_out(pending: Pending) {
    let Pending { mut remote, mark } = pending;
    // Cancelled: as on a ring, it may have been carried out or not.
    if !remote.is_wanted() && with(|world| world.random.happens(0.5)) != Some(false) {
        return remote.refuse(libc::ECANCELED);
    }
    with(|world| world.mark = mark);
    let ended = remote.carry_out();
    with(|world| {
        let request = remote.request;
        for word in
            [request.kind as u64, request.offset, request.want as u64, ended.done as u64, ended.errno as u64]
        {
            world.note(word);
        }
        world.last = Some((request, ended));
    });
    remote.end(ended);
}

// ---- What the rest of the library calls ----

/// Takes an operation over; returns it if the thread runs no simulation.
pub(crate) fn take(remote: RemoteRequest) -> Result<(), RemoteRequest> {
    let Some(file) = remote.target.simulated() else {
        if !is_here() {
            return Err(remote);
        }
        remote.refuse(libc::EOPNOTSUPP);
        return Ok(());
    };
    let mut remote = Some(remote);
    with(|world| {
        let mark = world.open.get(&file).map_or(Mark::default(), |open| world.disk.mark(open.inode));
        let at = world.now + world.faults.draw_latency(&mut world.random);
        let number = world.number();
        if let Some(remote) = remote.take() {
            world.pending.insert((at, number), Pending { remote, mark });
        }
    });
    if let Some(remote) = remote {
        // The simulation of this file is over, or is another thread's.
        remote.refuse(libc::EBADF);
    }
    Ok(())
}

/// Starts a task.
pub(crate) fn spawn(future: impl Future<Output = ()> + 'static) {
    let task: Task = Box::pin(future);
    with(|world| {
        world.tasks.push(Some(task));
        world.woken.add(world.tasks.len() - 1);
    });
}

/// Returns the time of this thread's simulation.
pub(crate) fn now() -> Option<Instant> {
    with(|world| world.began + world.now)
}

/// Calls a waker at that time; returns it if the thread runs no simulation.
pub(crate) fn wake_at(at: Instant, waker: Waker) -> Result<(Instant, u64), Waker> {
    let mut waker = Some(waker);
    let key = with(|world| {
        let number = world.number();
        let after = at.saturating_duration_since(world.began);
        waker.take().map(|waker| world.timers.insert((after, number), waker));
        (at, number)
    });
    match (key, waker) {
        (Some(key), None) => Ok(key),
        (_, Some(waker)) => Err(waker),
        (None, None) => unreachable!("the waker is taken only by a world"),
    }
}

/// Forgets a timer. Returns whether it was one of this thread's simulation.
pub(crate) fn forget_timer(key: &(Instant, u64)) -> bool {
    let removed = with(|world| {
        let after = key.0.saturating_duration_since(world.began);
        world.timers.remove(&(after, key.1))
    });
    // Dropped while the world is not borrowed.
    removed.flatten().is_some()
}

/// An open file of a simulation, held by its target; 0 for the stand-in of a path.
pub(crate) struct OpenRef(pub(crate) OpenNumber);

impl OpenRef {
    pub(crate) const PATH: Self = Self(0);
}

impl Drop for OpenRef {
    fn drop(&mut self) {
        with(|world| {
            if let Some(closed) = world.open.remove(&self.0) {
                world.forget_unused(closed.inode);
            }
        });
    }
}
