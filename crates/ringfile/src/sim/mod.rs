//! A simulated disk, on which a program's storage code runs: every fault, every order, every power cut, from one number.
//!
//! A [`Simulation`] runs a future on the calling thread, with files and folders in memory and a clock of its own. The code
//! under test is the program's own, unchanged: [`File`](crate::File), [`fs`](crate::fs), [`Batch`](crate::Batch),
//! [`Queue`](crate::Queue), [`Appender`](crate::Appender), [`spawn`](crate::spawn). Where it would wait for the kernel,
//! the simulation chooses what happens next: which operation ends, after what time, with which error, and when the power is
//! cut. All of it follows from a seed, so that a failure can be repeated.
//!
//! ```
//! use ringfile::{OpenOptions, fs, sim::Simulation};
//! for seed in 0..100 {
//!     let outcome = Simulation::new(seed).power_cuts(true).run(|_| async {
//!         let mut options = OpenOptions::new();
//!         let file = options.write(true).create(true).open("config.new").await?;
//!         file.write_at(b"new".to_vec(), 0).await?;
//!         file.sync_all().await?; // without this line, some seed finds an empty file
//!         fs::rename("config.new", "config").await?;
//!         fs::sync_dir(".").await
//!     });
//!     let is_done = outcome.result().is_some();
//!     outcome.disk().run(|_| async move {
//!         match OpenOptions::new().read(true).open("config").await {
//!             Ok(file) => assert_eq!(file.read_at(Vec::with_capacity(10), 0).await.unwrap(), b"new"),
//!             Err(_) => assert!(!is_done),
//!         }
//!     });
//! }
//! ```
//!
//! # What is simulated
//!
//! Files, folders and symbolic links, and all operations on them. The program is root: permissions are kept as they were
//! given, without a umask, and nothing is refused for their sake. Files have no times: each is the epoch. A copy takes
//! effect at one moment, as other operations do. A file that is opened for direct I/O refuses offsets and lengths that are
//! not multiples of 512 bytes, but takes memory at any address: addresses are not repeatable. An adaptive file is a
//! buffered one. [`spawn`](crate::spawn) runs tasks in an order that the seed chooses, and [`sleep`] takes no real time.
//! [`Pool`](crate::Pool)s have real memory, which is overwritten when a buffer returns.
//!
//! What cannot be simulated fails: a file that was opened elsewhere (`EOPNOTSUPP`), the descriptor of a simulated file
//! (`AsFd` panics), its [`File::metadata`](crate::File::metadata) (use [`fs::metadata_of`](crate::fs::metadata_of)), a
//! [`Runtime`](crate::Runtime), and operations on other threads (`EBADF`). Races between threads are for
//! [loom](https://docs.rs/loom).
//!
//! Operations and tasks end only once the program has returned to the simulation. An executor inside the program that
//! blocks the thread until then waits for ever. With the feature `tokio`, what is started or awaited in a tokio runtime
//! inside the program fails instead, also while the program only holds the guard of its `enter`: operations, the handles
//! of [`spawn`](crate::spawn) ([`JoinError::WouldBlock`](crate::runtime::JoinError::WouldBlock)), and [`sleep`], which panics. An
//! operation that was polled before the runtime began still waits for ever there.
//!
//! # The disk
//!
//! What was written is volatile until a sync that began after it; a durable write makes only itself durable. A power cut
//! keeps what is durable, and any part of the rest, in sectors of 512 bytes: later writes without earlier ones, and a new
//! size without its data, which are zeros then. As a kernel writes back by itself, so does this one: when a file, or all names
//! together, have more than 8192 changes since the last sync, the oldest become durable; how many, the seed chooses.
//! [`Strictness`] says what is promised for names and permissions, and for sizes that are set.

mod backend;
mod calls;
mod content;
mod disk;
mod fate;
mod faults;
mod file_state;
mod names;
mod port;
mod ranges;
mod script;
mod seed;
mod seeds;
mod trace;
mod tree;
mod world;

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

pub(crate) use backend::{call, open_at_once, transfer};
use disk::Contents;
pub use faults::Faults;
pub use file_state::Strictness;
pub(crate) use port::{is_in_another_runtime, take};
use ringfile_buffer::internal::set_thread_poisons;
use seed::Random;
pub use seeds::{for_each_seed, replay};
use trace::{End, Past};
use world::World;
pub(crate) use world::{
    OpenNumber, OpenRef, forget_timer, is_here, now, number_of, open_path, size, spawn, wake_at,
};

/// By default, the power is cut after at most this many events. So many operations a trace has.
const USUAL_EVENTS: u64 = trace::KEPT as u64;

/// A run of a program on a simulated disk: see [the module](self).
#[derive(Clone)]
pub struct Simulation {
    seed: u64,
    /// How many runs there were on this disk.
    run: u64,
    disk: Rc<Contents>,
    faults: Faults,
    cut_within: u64,
    /// The last run on this disk in which the power was cut.
    before: Option<Rc<Past>>,
}

impl Simulation {
    /// Creates a simulation with an empty disk, without faults and power cuts.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let disk = Rc::new(Contents::new());
        Self { seed, run: 0, disk, faults: Faults::none(), cut_within: 0, before: None }
    }

    /// Cuts the power once, at a place that the seed chooses, within the first 10,000 events: early places and late ones. If
    /// the program ends before, it is cut then.
    #[must_use]
    pub fn power_cuts(self, cuts: bool) -> Self {
        self.power_cut_within(if cuts { USUAL_EVENTS } else { 0 })
    }

    /// Cuts the power within this many events, or when the program ends; 0 for never. An event is a task that runs, an
    /// operation that ends, or a timer.
    #[must_use]
    pub fn power_cut_within(self, events: u64) -> Self {
        Self { cut_within: events, ..self }
    }

    /// Sets what goes wrong.
    #[must_use]
    pub fn faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// Sets what the file system promises for names and sizes: [`Strictness::Journal`] by default, with which a program
    /// passes that would lose names on other file systems than ext4 and XFS. [`Outcome::disk`] keeps it.
    #[must_use]
    pub fn strictness(mut self, strictness: Strictness) -> Self {
        Rc::make_mut(&mut self.disk).strictness = strictness;
        self
    }

    /// Runs a program until it returns, or the power is cut; then its tasks are dropped.
    ///
    /// # Panics
    /// With the program's panic, after lines on standard error that name the seed and the last operations, also those before
    /// an earlier power cut, and what that has left of them. If the program waits for something that never comes; while a
    /// timer runs again and again, it waits for ever. With the panic of a task of [`spawn`](crate::spawn) whose handle is
    /// gone; otherwise that is the handle's result. Inside another simulation, or on a ringfile thread.
    pub fn run<F: Future>(self, program: impl FnOnce(Disk) -> F) -> Outcome<F::Output> {
        assert!(
            !crate::runtime::is_in_loop(),
            "a simulation was begun inside another one, or on a ringfile thread"
        );
        port::begins();
        let Self { seed, run, disk, faults, cut_within, before } = self;
        let mut disk = Rc::unwrap_or_clone(disk);
        disk.begin(&faults);
        let mut world = World::new(disk, Random::of_run(seed, run), faults);
        if cut_within > 0 {
            world.cut_within(cut_within);
        }
        world::set(Some(world));
        let mut running = RunningSimulation { seed, run: run + 1, before };
        crate::memory::set_thread_must_not_block(true);
        set_thread_poisons(true);
        let result = world::run(pin!(program(Disk(()))));
        let world = take_world().expect("a world is in place");
        let (fingerprint, events) = (world.fingerprint, world.events);
        let (past, left) = running.past(world, if result.is_some() { End::Returned } else { End::Cut });
        let before = running.before.take();
        std::mem::forget(running);
        let is_cut = past.fates.is_some();
        seeds::note_disk(past.disk.strictness, is_cut);
        let before = if is_cut { Some(Rc::clone(&past)) } else { before };
        let next = Self { seed, run: run + 1, disk: left, faults: Faults::none(), cut_within: 0, before };
        Outcome { next, result, past, fingerprint, events }
    }
}

/// Takes the world away in any case.
struct RunningSimulation {
    seed: u64,
    /// Its number on its disk, from 1.
    run: u64,
    before: Option<Rc<Past>>,
}

impl RunningSimulation {
    /// Returns what there is to tell of the run, and the disk that it has left.
    fn past(&self, mut world: World, end: End) -> (Rc<Past>, Rc<Contents>) {
        world.disk.room = None;
        let disk = Rc::new(world.disk);
        let (left, fates) = match world.left {
            Some((left, fates)) => (Rc::new(left), Some(fates)),
            None => (Rc::clone(&disk), None),
        };
        let end = if end == End::Returned && fates.is_some() { End::CutAfterwards } else { end };
        // The event before which the power was cut did not come.
        let event = world.events - u64::from(end == End::Cut);
        let (run, place, trace) = (self.run, world.places.run, world.trace);
        let past = Rc::new(Past { run, place, end, event, trace, disk, fates });
        script::note_end(&past);
        (past, left)
    }
}

impl Drop for RunningSimulation {
    /// The program has panicked.
    fn drop(&mut self) {
        let Some(world) = take_world() else { return };
        let now = world.now;
        let (past, _) = self.past(world, End::Panicked);
        seeds::tell_failure(self.seed, now, &past, self.before.as_deref());
    }
}

/// Ends what the program has left, and takes the world away.
fn take_world() -> Option<World> {
    world::end_tasks();
    crate::memory::set_thread_must_not_block(false);
    set_thread_poisons(false);
    world::set(None)
}

/// The disk of a simulation that runs, for its program.
#[derive(Clone, Debug)]
pub struct Disk(());

impl Disk {
    /// Returns the disk of the simulation that the calling thread runs. For libraries, which a program does not pass it to
    /// and which use threads, clocks or chance elsewhere.
    ///
    /// ```
    /// use ringfile::sim::{Disk, Simulation};
    /// assert!(Disk::current().is_none());
    /// let outcome = Simulation::new(1).run(|_| async { Disk::current().is_some() });
    /// assert_eq!(outcome.result(), Some(&true));
    /// ```
    #[must_use]
    pub fn current() -> Option<Self> {
        is_here().then_some(Self(()))
    }

    /// Returns the simulated time since the program began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        world::with(|world| world.now).unwrap_or_default()
    }

    /// Cuts the power before the next event, also in a simulation without [`power_cuts`](Simulation::power_cuts): at the
    /// next `await` that waits.
    pub fn cut_power(&self) {
        world::with(|world| world.cut_at = world.events);
    }

    /// Returns a number below `limit` that the seed chooses, for a program that does random things.
    ///
    /// # Panics
    /// If `limit` is 0.
    #[must_use]
    pub fn random_below(&self, limit: u64) -> u64 {
        assert!(limit > 0, "there is no number below 0");
        world::with(|world| world.random.below(limit)).unwrap_or_default()
    }
}

/// How a simulation ended.
pub struct Outcome<T> {
    /// Of what is on the disk now.
    next: Simulation,
    result: Option<T>,
    past: Rc<Past>,
    fingerprint: u64,
    events: u64,
}

impl<T> Outcome<T> {
    /// Returns what the program has returned; `None` if the power was cut before.
    pub fn result(&self) -> Option<&T> {
        self.result.as_ref()
    }

    /// Returns what the program has returned; `None` if the power was cut before.
    pub fn into_result(self) -> Option<T> {
        self.result
    }

    /// Returns a simulation of what is on the disk now (without a power cut, of what the page cache has), without faults and
    /// power cuts; its time begins at 0. Its chances too follow from the seed, but are not those of the run before.
    #[must_use]
    pub fn disk(&self) -> Simulation {
        self.next.clone()
    }

    /// Returns what was done, up to the last 10,000 operations, each in a line: in which event, to which file, by the path
    /// by which it was opened, with which result; of changes, whether they are durable, and what a power cut has made of
    /// them. The last line says which [`Strictness`] the disk has. Allocates nothing before it is written.
    ///
    /// ```
    /// use ringfile::{OpenOptions, fs, sim::Simulation};
    /// let outcome = Simulation::new(1).run(|_| async {
    ///     let file = OpenOptions::new().write(true).create(true).open("x").await.unwrap();
    ///     file.write_at(vec![7; 100], 0).await.unwrap();
    /// });
    /// let trace = outcome.trace().to_string();
    /// assert!(trace.contains("write of 100 bytes at 0 of x: not durable"), "{trace}");
    /// ```
    #[must_use]
    pub fn trace(&self) -> impl fmt::Display {
        &*self.past
    }

    /// Returns a number that is the same for two runs if the same happened in both, in the same order. Of what is written, the
    /// first eight bytes count.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns how many events there were: tasks that ran, operations that ended, timers.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }
}

impl<T> fmt::Debug for Outcome<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_cut = self.result.is_none();
        f.debug_struct("Outcome")
            .field("seed", &self.next.seed)
            .field("strictness", &self.past.disk.strictness)
            .field("is_cut", &is_cut)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

/// Waits for a simulated time, which takes no real time.
///
/// # Panics
/// Outside a simulation, where nothing would wake it. When awaited in a tokio runtime inside the simulated program, with
/// the feature `tokio`.
pub fn sleep(time: Duration) -> Sleep {
    let now = now().expect("ringfile::sim::sleep was called outside a simulation");
    Sleep { until: now + time.min(world::FOR_EVER), timer: None }
}

/// A wait for a simulated time: see [`sleep`].
#[must_use = "nothing waits until it is awaited"]
pub struct Sleep {
    until: std::time::Instant,
    timer: Option<crate::timer::Timer>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if crate::timer::now() >= self.until {
            return Poll::Ready(());
        }
        assert!(
            !is_in_another_runtime(),
            "a tokio runtime inside the simulated program would wait for ever for ringfile::sim::sleep"
        );
        self.timer = crate::timer::wake_at(self.until, context.waker().clone());
        Poll::Pending
    }
}
