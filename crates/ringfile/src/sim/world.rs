//! A simulation that runs: its tasks, its clock, and the operations in flight.
//!
//! Knows of an operation, which the driver hands over instead of giving it to a worker, that it can be carried out, and
//! knows the disk. Everything is on one thread. Invariants: the same seed gives the same order of everything; no user
//! code runs while the world is borrowed; an operation takes effect at one moment between its start and its end, when
//! it ends.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::disk::Contents;
use super::fate::{Fates, Touched};
use super::faults::{DiskCall, Drawn, Faults};
use super::file_state::Mark;
use super::script::{self, FaultPlace, Moment, Script};
use super::seed::Random;
use super::trace::{Description, Trace};
use super::tree::Inode;
use crate::lock::Lock;

/// A number of an open file. No two files of a process have the same: one that outlives its simulation is not open in
/// another.
pub(crate) type OpenNumber = u64;

/// 0 is that of paths.
pub(super) static NEXT_OPEN: AtomicU64 = AtomicU64::new(1);

pub(super) struct OpenFile {
    pub(super) inode: Inode,
    pub(super) flags: i32,
    /// For reports.
    pub(super) path: Rc<str>,
    /// How many of the file's failed syncs it has reported.
    pub(super) reported: u64,
}

/// An open file, held by its target; 0 for the stand-in of a path. Dropping it closes the file; where it says that it
/// was dropped on another thread.
pub(crate) struct OpenRef(pub(crate) OpenNumber, Option<Arc<Dropped>>);

/// Open files that were dropped on other threads.
type Dropped = Lock<Vec<OpenNumber>>;

impl OpenRef {
    pub(super) fn new(number: OpenNumber, dropped: &Arc<Dropped>) -> Self {
        Self(number, Some(Arc::clone(dropped)))
    }
}

impl Drop for OpenRef {
    fn drop(&mut self) {
        if let Some(dropped) = &self.1
            && with(|world| world.close(self.0)) != Some(true)
        {
            dropped.lock().push(self.0);
        }
    }
}

/// An operation in flight, which ends once.
pub(crate) trait PendingOperation {
    /// Returns whether somebody still waits for it.
    fn is_wanted(&self) -> bool;
    /// Says what it is, for a report.
    fn describe(&self, world: &World) -> Description;
    /// Carries it out on this thread, by the calls of this simulation; calls `note` before it tells how it has ended.
    fn carry_out(self: Box<Self>, note: fn(CarriedOut));
    /// Ends it without carrying it out.
    fn refuse(self: Box<Self>, errno: i32);
}

/// What an operation was asked, and what it has done.
#[derive(Clone, Copy)]
pub(crate) struct CarriedOut {
    pub kind: u8,
    pub offset: u64,
    /// Bytes that were asked for.
    pub want: usize,
    pub done: usize,
    /// 0 after success.
    pub errno: i32,
}

/// The places of a run at which something may go wrong.
pub(super) struct Places {
    /// The number of the run in its test; 0 if what goes wrong is not noted.
    pub(super) run: u64,
    only: Option<Rc<Script>>,
    /// From which the chances of each place follow.
    first: Random,
    counts: [u64; Moment::COUNT],
}

enum Event {
    /// An operation ends; the mark is what a sync covers.
    Operation(Box<dyn PendingOperation>, Mark),
    Timer(Waker),
}

type SimTask = Pin<Box<dyn Future<Output = ()>>>;

pub(crate) struct World {
    pub(crate) disk: Contents,
    pub(super) random: Random,
    pub(super) faults: Faults,
    pub(super) places: Places,
    /// The time since the simulation began.
    pub(super) now: Duration,
    began: Instant,
    next: u64,
    /// What happens later, in its order.
    queue: BTreeMap<(Duration, u64), Event>,
    /// By number, each with its waker; `None` for the main future, those that have ended, and the one that runs.
    tasks: Vec<Option<(SimTask, Waker)>>,
    woken: Arc<Woken>,
    pub(super) open: BTreeMap<OpenNumber, OpenFile>,
    /// The open files, by the descriptors that stand for them.
    pub(super) stand_ins: BTreeMap<RawFd, OpenNumber>,
    pub(super) dropped: Arc<Dropped>,
    /// The event before which the power is cut.
    pub(super) cut_at: u64,
    /// Whether it is cut: what is carried out now was in flight, and is not durable.
    pub(super) is_off: bool,
    pub(super) events: u64,
    pub(super) fingerprint: u64,
    pub(super) trace: Trace,
    /// What the sync that is carried out covers.
    pub(super) mark: Mark,
    /// What a power cut has left, and what it has made of what was not durable.
    pub(super) left: Option<(Contents, Fates)>,
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

/// Longer than any wait, and short enough to be added to a time.
pub(super) const FOR_EVER: Duration = Duration::from_secs(1 << 32);

/// The number of the future that `run` was given.
const MAIN: usize = 0;

/// Tasks that are ready, in the order in which they were woken.
struct Woken(Lock<Vec<usize>>);

impl Woken {
    fn add(&self, task: usize) {
        let mut woken = self.0.lock();
        if !woken.contains(&task) {
            woken.push(task);
        }
    }

    fn take(&self, random: &mut Random) -> Option<usize> {
        let mut woken = self.0.lock();
        let at = match woken.len() {
            0 => return None,
            1 => 0,
            many => random.below(many as u64) as usize,
        };
        Some(woken.remove(at))
    }
}

struct SimTaskWaker {
    woken: Arc<Woken>,
    task: usize,
}

impl SimTaskWaker {
    fn of(woken: &Arc<Woken>, task: usize) -> Waker {
        Waker::from(Arc::new(Self { woken: Arc::clone(woken), task }))
    }
}

impl Wake for SimTaskWaker {
    fn wake(self: Arc<Self>) {
        self.woken.add(self.task);
    }
}

impl World {
    pub(super) fn new(disk: Contents, random: Random, faults: Faults) -> Self {
        let plan = script::with(|plan| {
            plan.runs += 1;
            (plan.runs, plan.only.clone())
        });
        let (run, only) = plan.unwrap_or_default();
        Self {
            places: Places { run, only, first: random.clone(), counts: [0; Moment::COUNT] },
            disk,
            random,
            faults,
            now: Duration::ZERO,
            began: Instant::now(),
            next: 0,
            queue: BTreeMap::new(),
            tasks: vec![None],
            woken: Arc::new(Woken(Lock::new(vec![MAIN]))),
            open: BTreeMap::new(),
            stand_ins: BTreeMap::new(),
            dropped: Arc::default(),
            cut_at: u64::MAX,
            is_off: false,
            events: 0,
            fingerprint: 0xcbf2_9ce4_8422_2325,
            trace: Trace::default(),
            mark: Mark::default(),
            left: None,
        }
    }

    /// Returns the path by which a file was opened; of one that is not open, an empty one.
    pub(crate) fn path_of(&self, file: Option<OpenNumber>) -> Rc<str> {
        let open = file.and_then(|file| self.open.get(&file));
        open.map_or_else(|| "".into(), |open| Rc::clone(&open.path))
    }

    /// Returns the path of the open file that a descriptor stands for.
    pub(crate) fn path_behind(&self, stand_in: RawFd) -> Rc<str> {
        self.path_of(self.stand_ins.get(&stand_in).copied())
    }

    /// Notes that an operation is carried out. `is_in_flight`: since the run ends.
    fn begins(&mut self, what: Description, is_in_flight: bool) {
        // What the program does after the power cut has no effect.
        if self.left.is_none() {
            self.disk.touched = Touched::default();
            self.trace.begins((!is_in_flight).then_some(self.events), what);
        }
    }

    /// Notes how the operation has ended.
    fn ended(&mut self, done: usize, errno: i32) {
        if self.left.is_none() {
            self.trace.ended(done, errno, std::mem::take(&mut self.disk.touched));
        }
    }

    /// Sets that the power is cut within this many events, or at the end.
    pub(super) fn cut_within(&mut self, events: u64) {
        let chosen = self.random.of_any_size(events);
        let Places { run, only, .. } = &self.places;
        // A cut that is left out is the latest possible one, which is not noted: a program may end only by a cut.
        let scripted = only.as_ref().map(|only| only.cut(*run));
        self.cut_at = scripted.unwrap_or(Some(chosen)).unwrap_or(events).min(u64::MAX - 1);
        if scripted != Some(None) {
            let place = FaultPlace { run: *run, moment: Moment::Cut, number: self.cut_at };
            script::note(place, format!("the power is cut after event {}", self.cut_at));
        }
    }

    /// Counts a moment. Returns its place and its chances, if something may go wrong there.
    pub(super) fn chance(&mut self, moment: Moment) -> Option<(FaultPlace, Random)> {
        let Places { run, only, first, counts, .. } = &mut self.places;
        let count = &mut counts[moment as usize];
        *count += 1;
        let place = FaultPlace { run: *run, moment, number: *count };
        if only.as_ref().is_some_and(|only| !only.0.contains(&place)) {
            return None;
        }
        Some((place, first.at(moment as u64, *count)))
    }

    /// Returns the chances of what the failing sync that was drawn last loses.
    pub(super) fn loss(&self) -> Random {
        let syncs = self.places.counts[Moment::Sync as usize];
        self.places.first.at(Moment::Sync as u64 | 1 << 4, syncs)
    }

    /// Notes that something goes wrong, if that is wanted.
    pub(super) fn went_wrong(&self, place: FaultPlace, what: impl FnOnce() -> String) {
        if self.places.run > 0 {
            script::note(place, format!("{} in event {}", what(), self.events));
        }
    }

    /// Draws how a call for `len` bytes goes.
    pub(super) fn draw(&mut self, call: DiskCall, file: OpenNumber, offset: u64, len: usize) -> Drawn {
        let moment = match call {
            DiskCall::Read => Moment::Read,
            DiskCall::Write => Moment::Write,
            DiskCall::Sync => Moment::Sync,
        };
        let Some((place, mut random)) = self.chance(moment) else { return Drawn::Moves(len) };
        let drawn = self.faults.draw(call, place.number, len, &mut random);
        if !matches!(drawn, Drawn::Moves(all) if all == len) {
            self.went_wrong(place, || {
                let path = self.path_of(Some(file));
                match call {
                    DiskCall::Sync => format!("the sync of {path} {drawn}"),
                    DiskCall::Read => format!("the read of {len} bytes at {offset} of {path} {drawn}"),
                    DiskCall::Write => format!("the write of {len} bytes at {offset} of {path} {drawn}"),
                }
            });
        }
        drawn
    }

    /// Draws how long an operation takes.
    fn draw_latency(&mut self, operation: &dyn PendingOperation) -> Duration {
        let usual = self.faults.draw_latency(&mut self.random);
        let stuck = self.chance(Moment::Start).and_then(|(place, mut random)| {
            let longer = self.faults.draw_stuck(&mut random)?;
            self.went_wrong(place, || format!("{} takes {longer:?} longer", operation.describe(self)));
            Some(longer)
        });
        usual.saturating_add(stuck.unwrap_or_default())
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn note(&mut self, what: u64) {
        self.fingerprint = (self.fingerprint ^ what).wrapping_mul(0x0100_0000_01b3);
    }

    /// Forgets a file that has neither a name nor a handle.
    pub(super) fn forget_unused(&mut self, inode: Inode) {
        if self.open.values().all(|open| open.inode != inode) && self.disk.links(inode) == 0 {
            self.disk.forget(inode);
        }
    }

    /// Closes a file. Returns false if it is not open here.
    fn close(&mut self, file: OpenNumber) -> bool {
        let closed = self.open.remove(&file);
        if let Some(closed) = &closed {
            self.forget_unused(closed.inode);
        }
        closed.is_some()
    }

    /// Does what the kernel does by itself between operations.
    fn tidy(&mut self) {
        let dropped = std::mem::take(&mut *self.dropped.lock());
        dropped.into_iter().for_each(|file| _ = self.close(file));
        self.disk.write_back(&mut self.random);
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
        let ((at, _), event) = self.queue.pop_first()?;
        self.now = self.now.max(at);
        self.note(at.as_nanos() as u64);
        Some(event)
    }
}

/// Runs the main future and its tasks until it returns, or the power is cut: then returns `None`.
///
/// # Panics
/// If nothing can go on any more.
pub(super) fn run<F: Future>(mut main: Pin<&mut F>) -> Option<F::Output> {
    let waker = with(|world| SimTaskWaker::of(&world.woken, MAIN)).expect("a world is in place");
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
            return None;
        };
        match (ready, taken) {
            (Some(MAIN), _) => {
                if let Poll::Ready(output) = main.as_mut().poll(&mut Context::from_waker(&waker)) {
                    if with(|world| world.cut_at < u64::MAX) == Some(true) {
                        cut_power();
                    }
                    return Some(output);
                }
            }
            (Some(number), Some((mut task, waker))) => {
                if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                    with(|world| world.tasks[number] = Some((task, waker)));
                }
            }
            // It has ended.
            (Some(_), None) => {}
            (None, _) => match with(World::next_event).flatten() {
                Some(Event::Operation(operation, mark)) => carry_out(operation, mark, false),
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
    while with(|world| !world.tasks.is_empty() || !world.queue.is_empty()) == Some(true) {
        let tasks = with(|world| {
            world.woken.0.lock().clear();
            std::mem::take(&mut world.tasks)
        });
        drop(tasks);
        drop(end_operations());
    }
}

/// Cuts the power: what the program does when it is dropped has no effect.
fn cut_power() {
    with(|world| {
        world.is_off = true;
        // What is lost does not depend on what was drawn before.
        world.random = world.places.first.at(Moment::Cut as u64, 0);
    });
    let timers = end_operations();
    with(|world| {
        world.queue.extend(timers);
        world.left = Some(world.disk.cut(&mut world.random));
    });
}

/// Ends the operations in flight: each has reached the disk or not. Returns the timers.
fn end_operations() -> Vec<((Duration, u64), Event)> {
    let mut timers = Vec::new();
    for (at, event) in with(|world| std::mem::take(&mut world.queue)).unwrap_or_default() {
        match event {
            Event::Timer(_) => timers.push((at, event)),
            Event::Operation(operation, mark) if with(|world| world.random.happens(0.5)) == Some(true) => {
                carry_out(operation, mark, true);
            }
            Event::Operation(operation, _) => cancel(operation, true),
        }
    }
    timers
}

fn cancel(operation: Box<dyn PendingOperation>, is_in_flight: bool) {
    with(|world| world.begins(operation.describe(world), is_in_flight));
    operation.refuse(libc::ECANCELED);
}

fn carry_out(operation: Box<dyn PendingOperation>, mark: Mark, is_in_flight: bool) {
    // Cancelled: as on a ring, it may have been carried out or not.
    if !operation.is_wanted() && with(|world| world.random.happens(0.5)) != Some(false) {
        return cancel(operation, is_in_flight);
    }
    with(|world| {
        world.tidy();
        world.mark = mark;
        world.begins(operation.describe(world), is_in_flight);
    });
    operation.carry_out(|CarriedOut { kind, offset, want, done, errno }| {
        with(|world| {
            for word in [u64::from(kind), offset, want as u64, done as u64, errno as u64] {
                world.note(word);
            }
            world.ended(done, errno);
        });
    });
}

// ---- What the rest of the library calls ----

/// Returns whether the calling thread runs a simulation.
pub(crate) fn is_here() -> bool {
    WORLD.try_with(|world| world.try_borrow().map_or(true, |world| world.is_some())) == Ok(true)
}

/// Returns the number of an open file.
pub(crate) fn number_of(file: &OpenRef) -> OpenNumber {
    file.0
}

/// Returns the stand-in of a path in operations that name it; `None` outside a simulation.
pub(crate) fn open_path() -> Option<OpenRef> {
    is_here().then_some(OpenRef(0, None))
}

/// Returns the size of a file in bytes.
pub(crate) fn size(file: OpenNumber) -> Result<u64, i32> {
    ask(|world| world.size(file))
}

/// Makes a call to this thread's simulation; `EBADF` outside one.
pub(crate) fn ask<R>(act: impl FnOnce(&mut World) -> Result<R, i32>) -> Result<R, i32> {
    with(act).unwrap_or(Err(libc::EBADF))
}

/// Makes a call to this thread's simulation that is no operation, and traces it; `EBADF` outside one.
pub(crate) fn ask_at_once<R>(
    what: Description,
    act: impl FnOnce(&mut World) -> Result<R, i32>,
) -> Result<R, i32> {
    ask(|world| {
        world.begins(what, false);
        let result = act(world);
        world.ended(0, result.as_ref().err().copied().unwrap_or(0));
        result
    })
}

/// Starts an operation, on a file or, with number 0, on paths.
pub(crate) fn start(file: OpenNumber, operation: Box<dyn PendingOperation>) {
    let mut operation = Some(operation);
    with(|world| {
        let mark = world.open.get(&file).map_or(Mark::default(), |open| world.disk.mark(open.inode));
        if let Some(operation) = operation.take() {
            let at = world.now + world.draw_latency(&*operation).min(FOR_EVER);
            let number = world.number();
            world.queue.insert((at, number), Event::Operation(operation, mark));
        }
    });
    if let Some(operation) = operation {
        operation.refuse(libc::EBADF);
    }
}

/// Starts a task.
pub(crate) fn spawn(task: SimTask) {
    with(|world| {
        let number = world.tasks.len();
        world.tasks.push(Some((task, SimTaskWaker::of(&world.woken, number))));
        world.woken.add(number);
    });
}

/// Returns the simulated time; `None` outside a simulation.
pub(crate) fn now() -> Option<Instant> {
    with(|world| world.began + world.now)
}

/// Calls a waker at that time. Returns a number that makes equal times differ, or the waker outside a simulation.
pub(crate) fn wake_at(at: Instant, waker: Waker) -> Result<u64, Waker> {
    if !is_here() {
        return Err(waker);
    }
    let number = with(|world| {
        let number = world.number();
        world.queue.insert((at.saturating_duration_since(world.began), number), Event::Timer(waker));
        number
    });
    Ok(number.unwrap_or_default())
}

/// Forgets a timer. Returns whether it was one of this thread's simulation.
pub(crate) fn forget_timer(key: &(Instant, u64)) -> bool {
    let removed = with(|world| {
        let after = key.0.saturating_duration_since(world.began);
        let key = (after, key.1);
        matches!(world.queue.get(&key), Some(Event::Timer(_))).then(|| world.queue.remove(&key))
    });
    // Dropped while the world is not borrowed.
    removed.flatten().flatten().is_some()
}
