//! Threads with a ring each, for operations of threads that have none: those of other executors, and batches.
//!
//! Made with the first such operation, and there until the process ends. Knows drivers and orders.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};

use super::order::Order;
use super::{Aftermath, Shared};
use crate::event;
use crate::ring::{RingOptions, fork};

/// How many there are to be; 0 is for the usual number.
static WANTED: AtomicUsize = AtomicUsize::new(0);

struct IoThreads {
    threads: Vec<Arc<Shared>>,
    next: AtomicUsize,
    process: fork::Mark,
}

/// Sets how many threads there are to be; 0 for the usual number. No effect once they are there.
pub(crate) fn set_wanted(threads: usize) {
    WANTED.store(threads, Ordering::Relaxed);
}

fn io_threads() -> &'static IoThreads {
    static THREADS: OnceLock<IoThreads> = OnceLock::new();
    THREADS.get_or_init(|| {
        let wanted = match WANTED.load(Ordering::Relaxed) {
            0 => 1,
            wanted => wanted,
        };
        let threads = (0..wanted).map_while(start).collect();
        IoThreads { threads, next: AtomicUsize::new(0), process: fork::Mark::current() }
    })
}

fn start(index: usize) -> Option<Arc<Shared>> {
    let (started, starts) = mpsc::sync_channel(1);
    let run = move || {
        let shared = super::enter(RingOptions::default());
        let _ = started.send(Arc::clone(&shared));
        let mut after = Aftermath::default();
        let mut may_sleep = true;
        loop {
            // Before its causes are looked at; and a thread that was notified would not sleep.
            shared.sleep.take_notification();
            let turn = std::panic::AssertUnwindSafe(|| super::turn(may_sleep, &mut after));
            // What the panic kept from others is made up for before the thread sleeps.
            may_sleep = std::panic::catch_unwind(turn).is_ok();
            if !may_sleep {
                tracing::error!("a waker or a buffer panicked on an I/O thread");
            }
        }
    };
    let spawned = std::thread::Builder::new().name(format!("ringfile-io-{index}")).spawn(run);
    if let Err(error) = spawned {
        event::defer(move || tracing::warn!(%error, "an I/O thread could not be started"));
        return None;
    }
    starts.recv().ok()
}

/// Has an I/O thread carry out an order, and says which. Gives it back where there is none, as in a forked child.
pub(crate) fn send(order: Order) -> Result<Arc<Shared>, Order> {
    let io = io_threads();
    if io.threads.is_empty() || !io.process.is_current() {
        return Err(order);
    }
    let next = io.next.fetch_add(1, Ordering::Relaxed) % io.threads.len();
    io.threads[next].post_order(order);
    Ok(Arc::clone(&io.threads[next]))
}
