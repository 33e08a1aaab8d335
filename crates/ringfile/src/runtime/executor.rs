//! One thread's loop: run ready tasks, submit once, wait once.
//!
//! Knows the driver and tasks, but no operations. Tasks are numbers into a table of this thread, so that a completion makes its
//! task ready by putting a number into a queue. Invariants:
//!
//! - a task runs only on the thread that it was spawned on;
//! - a wake-up from another thread is queued before the thread is notified, and a notified thread does not sleep;
//! - when the loop ends, its tasks are dropped first, then the driver is drained.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use pin_project_lite::pin_project;

use crate::caught::caught;
use crate::driver::{self, Deferred, PostedCall, Shared, TaskNumber};
use crate::ring::RingOptions;

/// The task number of the future of `block_on`.
const MAIN: TaskNumber = 0;

thread_local! {
    /// The number of the driver of the loop that this thread is in; 0 outside a loop.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    /// Whether a task has started I/O without waiting, since the loop turned.
    static STARTED: Cell<bool> = const { Cell::new(false) };
    /// Never destroyed, so that an ending thread can have a loop, which leaves it empty.
    static TASKS: ManuallyDrop<RefCell<Tasks>> = const { ManuallyDrop::new(RefCell::new(Tasks::new())) };
}

/// The tasks of a thread, by number; number 0 is the future of `block_on`.
struct Tasks {
    places: Vec<TaskSlot>,
    free: Vec<TaskNumber>,
    ready: Vec<TaskNumber>,
    /// The thread, while it is in a loop.
    shared: Option<Arc<Shared>>,
    command: Command,
}

#[derive(Default)]
struct TaskSlot {
    /// `None` also while the task is being polled.
    task: Option<Task>,
    queued: bool,
}

pin_project! {
    /// A future and its waker, which is created once and lent to every poll. Both are in one allocation, next to each other.
    struct TaskCell<F> {
        waker: Waker,
        #[pin]
        future: F,
    }
}

/// A task, with any future.
trait Run {
    /// Polls the task. Returns whether it is still pending. The caller calls [`driver::polled`] before it drops the task,
    /// or after the last one.
    fn run(self: Pin<&mut Self>, number: TaskNumber) -> bool;
}

type Task = Pin<Box<dyn Run>>;

impl<F: Future<Output = ()>> Run for TaskCell<F> {
    #[inline]
    fn run(self: Pin<&mut Self>, number: TaskNumber) -> bool {
        let cell = self.project();
        driver::polling(number, cell.waker);
        cell.future.poll(&mut Context::from_waker(cell.waker)).is_pending()
    }
}

#[inline]
fn poll<F: Future>(future: Pin<&mut F>, number: TaskNumber, waker: &Waker) -> Poll<F::Output> {
    driver::polling(number, waker);
    let polled = future.poll(&mut Context::from_waker(waker));
    driver::polled();
    polled
}

impl Tasks {
    const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new(), ready: Vec::new(), shared: None, command: Command::Run }
    }

    /// Puts a task into the queue, unless it is there already.
    #[inline]
    fn make_ready(&mut self, number: TaskNumber) {
        if let Some(place) = self.places.get_mut(number as usize)
            && !place.queued
        {
            place.queued = true;
            self.ready.push(number);
        }
    }

    /// Takes out a task to poll it, after putting back the previous one.
    #[inline]
    fn exchange(&mut self, ran: Option<(TaskNumber, Task)>, next: TaskNumber) -> Option<Task> {
        self.put_back(ran);
        let place = self.places.get_mut(next as usize)?;
        place.queued = false;
        place.task.take()
    }

    #[inline]
    fn put_back(&mut self, ran: Option<(TaskNumber, Task)>) {
        if let Some((number, task)) = ran
            && let Some(place) = self.places.get_mut(number as usize)
        {
            // The place is empty; forgetting its content avoids a check.
            std::mem::forget(place.task.replace(task));
        }
    }

    fn count(&self) -> usize {
        // One place belongs to the main future.
        self.places.len().saturating_sub(1 + self.free.len())
    }
}

fn with_tasks<T>(look: impl FnOnce(&mut Tasks) -> T) -> T {
    TASKS.with(|tasks| look(&mut tasks.borrow_mut()))
}

/// Commands of a runtime to a loop.
#[derive(Clone, Copy)]
pub(super) enum Command {
    Run,
    /// End after the last task.
    Finish,
    /// End now.
    Stop,
}

/// Makes the loop of a thread run a function soon; see [`Shared::post_to_loop`].
pub(super) fn call_on(thread: &Shared, call: PostedCall) {
    thread.post_to_loop(|inbox| inbox.calls.push(call));
}

/// Gives the loop of a thread a command.
pub(super) fn command(thread: &Shared, command: Command) {
    call_on(thread, Box::new(move || with_tasks(|tasks| tasks.command = command)));
}

/// The data of a task's waker. If the number was reassigned meanwhile, the other task gets a spurious wake-up.
struct TaskWaker {
    shared: Arc<Shared>,
    number: TaskNumber,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if CURRENT.get() == self.shared.id {
            with_tasks(|tasks| tasks.make_ready(self.number));
        } else {
            self.shared.post_to_loop(|inbox| inbox.woken.push(self.number));
        }
    }
}

/// Returns the calling thread, if it is in a loop that runs tasks.
pub(super) fn current() -> Option<Arc<Shared>> {
    with_tasks(|tasks| tasks.shared.clone())
}

/// Returns whether this thread must not wait, because it is in a loop or is an I/O thread.
pub(crate) fn is_in_loop() -> bool {
    crate::sim::is_here() || CURRENT.get() != 0 || driver::is_io_thread()
}

/// Notes that a task of this loop has started I/O, and may go on without waiting: nothing is submitted before the loop turns.
pub(crate) fn note_started() {
    STARTED.set(true);
}

/// Returns whether the loop should turn before this task does more, because I/O was started since the last turn. A task
/// that yields for this is polled again in the order of the others that do.
pub(crate) fn should_turn() -> bool {
    CURRENT.get() != 0 && STARTED.get()
}

/// Starts a task on this thread, which is `shared`.
pub(super) fn add_task(future: impl Future<Output = ()> + 'static, shared: Arc<Shared>) {
    let number = with_tasks(|tasks| {
        tasks.free.pop().unwrap_or_else(|| {
            tasks.places.push(TaskSlot::default());
            (tasks.places.len() - 1) as TaskNumber
        })
    });
    let waker = Waker::from(Arc::new(TaskWaker { shared, number }));
    with_tasks(|tasks| {
        tasks.places[number as usize].task = Some(Box::pin(TaskCell { waker, future }));
        tasks.make_ready(number);
    });
}

/// A loop that the calling thread is in.
pub(super) struct Loop {
    pub(super) shared: Arc<Shared>,
    /// The tasks of one round; kept, so that a round allocates nothing.
    batch: Vec<TaskNumber>,
    deferred: Deferred,
}

impl Loop {
    /// Enters a loop on this thread; `None` if it is already in one.
    pub(super) fn enter(options: RingOptions) -> Option<Self> {
        if is_in_loop() {
            return None;
        }
        let shared = driver::enter(options);
        CURRENT.set(shared.id);
        crate::memory::set_thread_must_not_block(true);
        // A waker of an earlier loop's task may have left a wake-up, which has no effect.
        shared.tasks().closed = false;
        let (places, thread) = (vec![TaskSlot::default()], Some(Arc::clone(&shared)));
        with_tasks(|tasks| *tasks = Tasks { places, shared: thread, ..Tasks::new() });
        Some(Self { shared, batch: Vec::new(), deferred: Deferred::default() })
    }

    pub(super) fn run_until<F: Future>(&mut self, mut future: Pin<&mut F>) -> F::Output {
        let waker = Waker::from(Arc::new(TaskWaker { shared: Arc::clone(&self.shared), number: MAIN }));
        let mut main_is_ready = true;
        loop {
            if main_is_ready && let Poll::Ready(output) = poll(future.as_mut(), MAIN, &waker) {
                return output;
            }
            main_is_ready = self.run_ready();
            // Another task may be woken at any time, and must not wait for a sync.
            let is_alone = with_tasks(|tasks| tasks.count()) == 0;
            self.turn(!main_is_ready, is_alone);
        }
    }

    pub(super) fn run_commands(&mut self) {
        while self.goes_on() {
            self.run_ready();
            // Read again: a command may have come just now.
            let may_sleep = self.goes_on();
            self.turn(may_sleep, false);
        }
    }

    /// Returns whether the command is to continue.
    fn goes_on(&self) -> bool {
        match with_tasks(|tasks| tasks.command) {
            Command::Run => true,
            Command::Finish => !self.is_idle(),
            Command::Stop => false,
        }
    }

    /// Returns whether there is neither a task, nor a posted function that might spawn one.
    fn is_idle(&self) -> bool {
        let inbox = self.shared.tasks();
        inbox.calls.is_empty() && with_tasks(|tasks| tasks.count()) == 0
    }

    /// Runs each task that is ready now once. Tasks that become ready meanwhile run after the I/O. Returns whether the
    /// main future is ready.
    fn run_ready(&mut self) -> bool {
        if self.shared.sleep.take_notification() {
            self.fetch();
            if with_tasks(|tasks| matches!(tasks.command, Command::Stop)) {
                return false;
            }
        }
        let mut main_is_ready = false;
        let mut batch = std::mem::take(&mut self.batch);
        with_tasks(|tasks| std::mem::swap(&mut batch, &mut tasks.ready));
        let mut ran = None;
        for &number in &batch {
            match with_tasks(|tasks| tasks.exchange(ran.take(), number)) {
                Some(mut task) => {
                    if task.as_mut().run(number) {
                        ran = Some((number, task));
                    } else {
                        driver::polled();
                        drop_task(task);
                        with_tasks(|tasks| tasks.free.push(number));
                    }
                }
                None => main_is_ready |= number == MAIN,
            }
        }
        driver::polled();
        with_tasks(|tasks| tasks.put_back(ran));
        batch.clear();
        self.batch = batch;
        main_is_ready
    }

    /// Fetches tasks that other threads woke, and runs the functions that they posted.
    fn fetch(&mut self) {
        let calls = {
            let mut inbox = self.shared.tasks();
            with_tasks(|tasks| inbox.woken.drain(..).for_each(|number| tasks.make_ready(number)));
            std::mem::take(&mut inbox.calls)
        };
        for call in calls {
            caught("the waker of a task's handle panicked", call);
        }
    }

    /// Submits and collects operations. `is_alone`: no task waits for anything else than the operations in flight.
    fn turn(&mut self, may_sleep: bool, is_alone: bool) {
        STARTED.set(false);
        // A panic in the last turn may have left work undone.
        let idle = with_tasks(|tasks| tasks.ready.is_empty()) && !self.deferred.may_wake_someone();
        let may_sleep = may_sleep && idle && !(is_alone && driver::call_alone(&mut self.deferred));
        driver::turn(may_sleep, &mut self.deferred);
        let woken = &mut self.deferred.tasks;
        with_tasks(|tasks| woken.drain(..).for_each(|number| tasks.make_ready(number)));
    }

    /// Drops every task that has not ended, including tasks spawned by those drops.
    fn drop_tasks(&mut self) {
        loop {
            self.fetch();
            let places = with_tasks(|tasks| {
                tasks.ready.clear();
                tasks.free.clear();
                std::mem::replace(&mut tasks.places, vec![TaskSlot::default()])
            });
            let tasks: Vec<Task> = places.into_iter().filter_map(|place| place.task).collect();
            if tasks.is_empty() {
                return;
            }
            tasks.into_iter().for_each(drop_task);
        }
    }
}

/// Drops a task. A panic of its destructor must not keep the loop from dropping its other tasks and draining its
/// driver.
fn drop_task(task: Task) {
    caught("a task panicked while it was dropped", || drop(task));
}

impl Drop for Loop {
    fn drop(&mut self) {
        // This is not reset if the main future has panicked; its waker is gone, and another one may get its address.
        driver::polled();
        self.drop_tasks();
        // A user's waker or buffer that panics is lost; other operations in flight must still be waited for.
        const PANICKED: &str = "a waker or a buffer panicked while its thread left its loop";
        while caught(PANICKED, || driver::leave(&mut self.deferred)).is_none() {}
        // Tasks woken while draining no longer exist; tasks spawned meanwhile are dropped too.
        self.deferred.tasks.clear();
        self.shared.tasks().closed = true;
        self.drop_tasks();
        let empty = with_tasks(|tasks| std::mem::replace(tasks, Tasks::new()));
        crate::memory::set_thread_must_not_block(false);
        drop(empty);
        CURRENT.set(0);
    }
}
