//! Wakers like those of executors, and unusual ones.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, RawWaker, RawWakerVTable, Wake, Waker};

use super::World;
use crate::support::Random;

#[derive(Default)]
struct Counted(AtomicU64);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A waker that calls the library from its clone, its wake and its drop.
struct CallsBack(Arc<World>, usize);

impl CallsBack {
    fn call(&self) {
        drop(self.0.pool.get(100));
        drop(self.0.pools[0].get(5000));
        assert!(self.0.small.metrics().in_use <= self.0.small.metrics().capacity);
        // Starts an operation, and drops it half way.
        let place = &self.0.places[self.1 % self.0.places.len()];
        let mut read = Box::pin(place.file.read_at(Vec::with_capacity(64), 0));
        let _ = Pin::new(&mut read).poll(&mut Context::from_waker(Waker::noop()));
        drop(read);
        let counts = ringfile::thread_metrics();
        assert_eq!(counts.stray, 0);
        let _ = ringfile::metrics();
    }
}

const FUNCTIONS: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, release);

fn raw(of: Arc<CallsBack>) -> RawWaker {
    RawWaker::new(Arc::into_raw(of).cast(), &FUNCTIONS)
}

/// The functions receive the pointer that `raw` made.
unsafe fn of(data: *const ()) -> Arc<CallsBack> {
    // SAFETY: as above; each waker has one reference, which it gives up with its wake or its drop.
    unsafe { Arc::from_raw(data.cast::<CallsBack>()) }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: it is the data of a waker, which keeps its reference.
    let this = std::mem::ManuallyDrop::new(unsafe { of(data) });
    this.call();
    raw(Arc::clone(&this))
}

unsafe fn wake(data: *const ()) {
    // SAFETY: it is the data of a waker, which gives up its reference.
    unsafe { of(data) }.call();
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: as in `clone`.
    std::mem::ManuallyDrop::new(unsafe { of(data) }).call();
}

unsafe fn release(data: *const ()) {
    // SAFETY: as in `wake`.
    unsafe { of(data) }.call();
}

/// Returns a waker that wakes nobody: its owner polls again.
pub fn any(world: &Arc<World>, random: &mut Random) -> Waker {
    let place = random.below(1 << 20) as usize;
    match random.below(3) {
        0 => Waker::noop().clone(),
        1 => Waker::from(Arc::new(Counted::default())),
        // SAFETY: the functions keep the contract of wakers: the reference count is that of an `Arc`, and what it
        // points to is Send and Sync.
        _ => unsafe { Waker::from_raw(raw(Arc::new(CallsBack(Arc::clone(world), place)))) },
    }
}
