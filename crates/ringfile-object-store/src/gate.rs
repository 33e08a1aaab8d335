//! Limits how much memory reading calls hold at once, and how many of them run: each has its object open, so a thousand
//! calls could use up memory or descriptors.
//!
//! A call waits here for other calls' reads, never for memory that a consumer holds. Invariants: together, calls get no
//! more than the limit, even while a drive does not answer; and no call waits for one that is no longer polled. Such a
//! call keeps its share, so the limit is raised by it until the call ends. It is recognized by its waker: a call that
//! was woken, and not polled since, does not wait for a drive.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use ringfile::internal::start_thread;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::disk;

/// Calls do not wait for a call that was woken and then not polled for one to two of these periods.
const PATIENCE: Duration = Duration::from_millis(500);
/// The bytes of memory for one permit.
const UNIT: usize = 4096;
/// The largest number of calls at once, however little they read: the number of tokio's threads for blocking work,
/// which limits `LocalFileSystem` in the same way, and half of the usual limit on descriptors.
const MOST_CALLS: usize = 512;

pub(crate) struct Gate {
    permits: Arc<Semaphore>,
    most: usize,
    inner: Mutex<GateState>,
}

#[derive(Default)]
struct GateState {
    /// The calls that wait or have their share, by number.
    calls: HashMap<u64, AdmittedCall>,
    /// The number of calls so far.
    count: u64,
    waiting: usize,
    is_watched: bool,
    /// Permits that were added for calls that have ended, to be removed as others end.
    owed: usize,
}

struct AdmittedCall {
    call: Arc<Call>,
    units: usize,
    /// Whether the limit was raised by this call's units.
    is_left: bool,
}

/// Whether a call is polled when it is woken.
struct Call {
    task: AtomicWaker,
    /// [`RUNNING`], [`WOKEN`] and [`SEEN`], or none of them.
    state: AtomicU8,
}

/// The call is being polled now, and may be waiting for a drive in its poll.
const RUNNING: u8 = 1;
/// The call was woken since it was last polled.
const WOKEN: u8 = 2;
/// The call was in that state when the watch last looked.
const SEEN: u8 = 4;

impl Call {
    fn poll<F: Future>(&self, task: &Waker, reads: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
        // Relaxed: the poll sees everything that a wake-up before this could report.
        self.state.store(RUNNING, Ordering::Relaxed);
        self.task.register(task);
        let polled = reads.poll(&mut Context::from_waker(waker));
        self.state.fetch_and(!RUNNING, Ordering::Relaxed);
        polled
    }

    /// Returns whether the call had been woken when the watch last looked, and has not been polled since.
    fn is_left(&self) -> bool {
        let seen = self.state.compare_exchange(WOKEN, WOKEN | SEEN, Ordering::Relaxed, Ordering::Relaxed);
        seen == Err(WOKEN | SEEN)
    }
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.state.fetch_or(WOKEN, Ordering::Relaxed);
        self.task.wake();
    }
}

impl Gate {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        let most = (bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Arc::new(Self { permits: Arc::new(Semaphore::new(most)), most, inner: Mutex::default() })
    }

    /// Waits for a share of this many bytes, or of the limit if that is smaller, and then does `reads`.
    pub(crate) async fn run<T>(self: &Arc<Self>, bytes: usize, reads: impl Future<Output = T>) -> T {
        let call = Arc::new(Call { task: AtomicWaker::new(), state: AtomicU8::new(0) });
        let waker = Waker::from(Arc::clone(&call));
        let mut share = Share::new(self, Arc::clone(&call), bytes);
        let mut reads = pin!(async move {
            share.wait().await;
            reads.await
        });
        poll_fn(|context| call.poll(context.waker(), reads.as_mut(), &waker)).await
    }

    /// Raises the limit by the shares of calls that are no longer polled. Returns false when the watch is over, since no
    /// call waits.
    fn look(&self) -> bool {
        let mut inner = self.inner();
        if inner.waiting == 0 {
            inner.is_watched = false;
            return false;
        }
        let mut units = 0;
        for entry in inner.calls.values_mut().filter(|entry| !entry.is_left) {
            entry.is_left = entry.call.is_left();
            units += if entry.is_left { entry.units } else { 0 };
        }
        drop(inner);
        // Wakes calls.
        self.permits.add_permits(units);
        true
    }

    fn inner(&self) -> MutexGuard<'_, GateState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call's share. It exists from the call's beginning until it is dropped, and has permits once it got them.
struct Share {
    gate: Arc<Gate>,
    number: u64,
    units: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl Share {
    fn new(gate: &Arc<Gate>, call: Arc<Call>, bytes: usize) -> Self {
        let least = gate.most.div_ceil(MOST_CALLS);
        let units = bytes.div_ceil(UNIT).clamp(least, gate.most);
        let mut inner = gate.inner();
        inner.count += 1;
        let number = inner.count;
        inner.calls.insert(number, AdmittedCall { call, units, is_left: false });
        Self { gate: Arc::clone(gate), number, units, permit: None }
    }

    /// Waits for the permits.
    async fn wait(&mut self) {
        let (permits, units) = (&self.gate.permits, self.units as u32);
        self.permit = match Arc::clone(permits).try_acquire_many_owned(units) {
            Ok(permit) => Some(permit),
            Err(_) => match Waiting::new(&self.gate) {
                // Fails only if the semaphore is closed, which never happens.
                Some(_waiting) => Arc::clone(permits).acquire_many_owned(units).await.ok(),
                // Without a watch, this call might wait for a call that is not polled.
                None => None,
            },
        };
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut inner = self.gate.inner();
        let entry = inner.calls.remove(&self.number);
        inner.owed += entry.as_ref().filter(|entry| entry.is_left).map_or(0, |entry| entry.units);
        let back = self.permit.as_ref().map_or(0, |permit| permit.num_permits().min(inner.owed));
        inner.owed -= back;
        drop(inner);
        if let Some(part) = self.permit.as_mut().and_then(|permit| permit.split(back)) {
            part.forget();
        }
    }
}

/// Counts a call that waits, and ensures that other calls are watched meanwhile.
struct Waiting<'a>(&'a Gate);

impl<'a> Waiting<'a> {
    fn new(gate: &'a Arc<Gate>) -> Option<Self> {
        let mut inner = gate.inner();
        inner.is_watched = inner.is_watched || watch(gate);
        inner.waiting += usize::from(inner.is_watched);
        inner.is_watched.then_some(Self(gate))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.inner().waiting -= 1;
    }
}

/// Starts the thread that watches the calls while one waits, in a simulation a task; it ends when none does.
fn watch(gate: &Arc<Gate>) -> bool {
    let weak = Arc::downgrade(gate);
    let watch = async move || {
        while weak.upgrade().is_some_and(|gate| gate.look()) {
            disk::pause(PATIENCE).await;
        }
        Ok(())
    };
    #[cfg(feature = "sim")]
    if disk::is_simulated() {
        drop(ringfile::spawn(async move { watch().await }));
        return true;
    }
    start_thread("ringfile-gate", move || disk::wait(watch())).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::channel::oneshot;
    use futures::executor::block_on;
    use std::future::{Pending, pending, ready};

    type Running = futures::future::BoxFuture<'static, ()>;

    /// Begins a call, which then runs or waits.
    fn begin(gate: &Arc<Gate>, units: usize, reads: impl Future<Output = ()> + Send + 'static) -> Running {
        let gate = Arc::clone(gate);
        let mut call = async move { gate.run(units * UNIT, reads).await }.boxed();
        assert!(is_pending(&mut call));
        call
    }

    fn is_pending(call: &mut Running) -> bool {
        call.as_mut().now_or_never().is_none()
    }

    fn never() -> Pending<()> {
        pending()
    }

    /// A read that ends when the sender says so.
    fn read() -> (oneshot::Sender<()>, impl Future<Output = ()> + Send + 'static) {
        let (sender, receiver) = oneshot::channel();
        (sender, receiver.map(|_| ()))
    }

    fn assert_as_at_first(gate: &Gate) {
        let inner = gate.inner();
        assert_eq!((inner.calls.len(), inner.waiting, inner.owed), (0, 0, 0));
        assert_eq!(gate.permits.available_permits(), gate.most);
    }

    #[test]
    fn calls_wait_for_each_other_and_ask_for_no_more_than_there_is() {
        let gate = Gate::new(8 * UNIT);
        let first = begin(&gate, 5, never());
        let second = begin(&gate, 3, never());
        let mut third = begin(&gate, 100, ready(()));
        drop(first);
        assert!(is_pending(&mut third), "it needs all");
        drop(second);
        block_on(third);
        assert_as_at_first(&gate);
    }

    #[test]
    fn calls_that_read_little_are_limited_by_their_number() {
        let gate = Gate::new(10 * MOST_CALLS * UNIT);
        let all: Vec<_> = (0..MOST_CALLS).map(|_| begin(&gate, 1, never())).collect();
        let mut next = begin(&gate, 1, ready(()));
        drop(all);
        assert!(!is_pending(&mut next));
        assert_as_at_first(&gate);
    }

    #[test]
    fn nobody_waits_for_ever_for_a_call_that_is_not_polled() {
        let gate = Gate::new(8 * UNIT);
        let (end, reads) = read();
        let mut forgotten = begin(&gate, 8, reads);
        end.send(()).expect("it is read");
        let second = begin(&gate, 8, ready(()));
        // The watch lets it in.
        block_on(second);
        assert!(!is_pending(&mut forgotten));
        assert_as_at_first(&gate);
    }

    #[test]
    fn however_long_a_drive_takes_no_more_calls_are_let_in() {
        let gate = Gate::new(8 * UNIT);
        let stalled = begin(&gate, 8, never());
        let (end, reads) = read();
        let mut next = begin(&gate, 8, reads);
        for _ in 0..5 {
            assert!(gate.look(), "a call waits");
            assert!(is_pending(&mut next));
        }
        assert_eq!((gate.permits.available_permits(), gate.inner().waiting), (0, 1));
        drop(stalled);
        assert!(is_pending(&mut next), "it has its share, and reads");
        // A call that is polled whenever it is woken is waited for, even if it takes long.
        let mut last = begin(&gate, 8, ready(()));
        end.send(()).expect("it is read");
        gate.look();
        assert!(!is_pending(&mut next));
        assert!(!is_pending(&mut last));
        assert_as_at_first(&gate);
    }

    #[test]
    fn a_call_that_waits_inside_its_poll_is_not_left() {
        let gate = Gate::new(8 * UNIT);
        let calls = Arc::clone(&gate);
        let reads = poll_fn(move |context| {
            context.waker().wake_by_ref();
            let inner = calls.inner();
            assert!((0..3).all(|_| inner.calls.values().all(|entry| !entry.call.is_left())));
            Poll::Pending
        });
        drop(begin(&gate, 8, reads));
        assert_as_at_first(&gate);
    }

    #[test]
    fn a_call_that_is_not_polled_when_its_share_arrives_stops_nobody() {
        let gate = Gate::new(8 * UNIT);
        let first = begin(&gate, 8, never());
        let forgotten = begin(&gate, 8, never());
        let last = begin(&gate, 8, ready(()));
        drop(first);
        block_on(last);
        drop(forgotten);
        // As calls end, the limit is lowered again.
        block_on(gate.run(UNIT, ready(())));
        block_on(gate.run(8 * UNIT, ready(())));
        assert_as_at_first(&gate);
    }
}
