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
//!         let file = fs::open("config.new", options.write(true).create(true)).await?;
//!         file.write_at(b"new".to_vec(), 0).await?;
//!         file.sync_all().await?; // without this line, some seed finds an empty file
//!         fs::rename("config.new", "config").await?;
//!         fs::sync_dir(".").await
//!     });
//!     let is_done = outcome.result().is_some();
//!     outcome.disk().run(|_| async move {
//!         match fs::open("config", OpenOptions::new().read(true)).await {
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
//! (`AsFd` panics), its [`File::metadata`](crate::File::metadata) (use [`fs::metadata_of`](crate::fs::metadata_of)), other
//! runtimes, and other threads. Races between threads are for [loom](https://docs.rs/loom).
//!
//! # The disk
//!
//! What was written is volatile until a sync that began after it; a durable write makes only itself durable. A power cut
//! keeps what is durable, and any part of the rest, in sectors of 512 bytes: later writes without earlier ones, and a new
//! size without its data, which are zeros then. As a kernel writes back by itself, so does this one: when a file, or all names
//! together, have more than 8192 changes since the last sync, the oldest become durable; how many, the seed chooses.
//! [`Strictness`] says what is promised for names and permissions, and for sizes that are set.

mod calls;
mod content;
mod disk;
mod faults;
mod file_state;
mod names;
mod ranges;
mod script;
mod seed;
mod seeds;
mod tree;
mod world;

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use disk::Contents;
pub use faults::Faults;
pub use file_state::Strictness;
use ringfile_buffer::internal::set_thread_poisons;
use seed::Random;
pub use seeds::{for_each_seed, replay};
use world::World;
pub(crate) use world::{
    CarriedOut, OpenNumber, OpenRef, Operation, ask, forget_timer, is_here, now, spawn, start, wake_at,
};

/// By default, the power is cut before at most this many events.
const USUAL_EVENTS: u64 = 10_000;

/// A run of a program on a simulated disk: see [the module](self).
#[derive(Clone)]
pub struct Simulation {
    seed: u64,
    /// How many runs there were on this disk.
    run: u64,
    disk: Contents,
    faults: Faults,
    cut_within: u64,
}

impl Simulation {
    /// Creates a simulation with an empty disk, without faults and power cuts.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, run: 0, disk: Contents::new(), faults: Faults::none(), cut_within: 0 }
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

    /// Sets what the file system promises for names and sizes: [`Strictness::Journal`] by default. [`Outcome::disk`] keeps it.
    #[must_use]
    pub fn strictness(mut self, strictness: Strictness) -> Self {
        self.disk.strictness = strictness;
        self
    }

    /// Runs a program until it returns, or the power is cut; then its tasks are dropped.
    ///
    /// # Panics
    /// With the program's panic, after a line on standard error that names the seed and the last operation. If the program
    /// waits for something that never comes; while a timer runs again and again, it waits for ever. With the panic of a task of
    /// [`spawn`](crate::spawn) whose handle is gone; otherwise that is the handle's result. Inside another simulation, or on a
    /// ringfile thread.
    pub fn run<F: Future>(self, program: impl FnOnce(Disk) -> F) -> Outcome<F::Output> {
        assert!(
            !crate::runtime::is_in_loop(),
            "a simulation was begun inside another one, or on a ringfile thread"
        );
        let Self { seed, run, mut disk, faults, cut_within } = self;
        disk.begin(&faults);
        let mut world = World::new(disk, Random::of_run(seed, run), faults);
        if cut_within > 0 {
            world.cut_within(cut_within);
        }
        world::set(Some(world));
        let running = Running { seed, run };
        crate::memory::set_thread_must_not_block(true);
        set_thread_poisons(true);
        let result = world::run(pin!(program(Disk(()))));
        let World { left, disk, trace, events, .. } = running.end();
        let mut disk = left.unwrap_or(disk);
        disk.room = None;
        let next = Self { seed, run: run + 1, disk, faults: Faults::none(), cut_within: 0 };
        Outcome { next, result, trace, events }
    }
}

/// Takes the world away in any case.
struct Running {
    seed: u64,
    run: u64,
}

impl Running {
    fn end(self) -> World {
        let world = take_world();
        std::mem::forget(self);
        world.expect("a world is in place")
    }
}

impl Drop for Running {
    /// The program has panicked.
    fn drop(&mut self) {
        if let Some(world) = take_world()
            && !seeds::is_shrinking()
        {
            eprintln!(
                "a simulation failed: seed {}, run {} on its disk, event {}, {}",
                self.seed,
                self.run + 1,
                world.events,
                world.last_operation()
            );
        }
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
    trace: u64,
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

    /// Returns a number that is the same for two runs if the same happened in both, in the same order. Of what is written, the
    /// first eight bytes count.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.trace
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
            .field("is_cut", &is_cut)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

/// Waits for a simulated time, which takes no real time.
///
/// # Panics
/// Outside a simulation, where nothing would wake it.
pub fn sleep(time: Duration) -> Sleep {
    let now = now().expect("ringfile::sim::sleep was called outside a simulation");
    Sleep { until: now + time.min(world::FOR_EVER), timer: None }
}

/// A wait for a simulated time: see [`sleep`].
#[must_use = "nothing waits until it is awaited"]
pub struct Sleep {
    until: std::time::Instant,
    timer: Option<crate::driver::timer::Timer>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if crate::driver::timer::now() >= self.until {
            return Poll::Ready(());
        }
        self.timer = crate::driver::timer::wake_at(self.until, context.waker().clone());
        Poll::Pending
    }
}
