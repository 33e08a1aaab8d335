//! A loom model of the pool's concurrent kernel: every interleaving of a few threads, with all that the memory model
//! allows them to see.
//!
//! Run it with `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile --test loom_pool`; without the flag there is
//! nothing here. It compiles `kernel.rs` as it is, with loom's atomics in place of std's.

#![cfg(loom)]

#[path = "../src/memory/kernel.rs"]
#[allow(dead_code)]
mod kernel;

/// Stands in for `src/memory/sync.rs`.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

    /// Loom takes sequentially consistent operations for acquire and release, but knows the fence.
    pub(crate) fn store_load_fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

use std::collections::VecDeque;
use std::ptr::NonNull;

use kernel::{Cell, Gate, Links, Remaining};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicUsize};
use loom::sync::{Arc, Mutex};
use loom::thread;
use sync::{AtomicU32, Ordering};

struct Next(Vec<AtomicU32>);

impl Links for Next {
    fn next(&self, index: u32) -> &AtomicU32 {
        &self.0[index as usize]
    }
}

fn links(n: usize) -> Next {
    Next((0..n).map(|_| AtomicU32::new(0)).collect())
}

fn model(preemptions: Option<usize>, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(run);
}

/// Three threads over one stack: a block is never with two of them, and none is lost.
#[test]
fn a_popped_block_has_one_owner() {
    struct Shared {
        cell: Cell,
        links: Next,
        // Loom fails the test when two threads are in one of these at a time, or without an order between them.
        memory: Vec<UnsafeCell<u32>>,
    }
    model(Some(3), || {
        const BLOCKS: usize = 2;
        let shared = Arc::new(Shared {
            cell: Cell::new(),
            links: links(BLOCKS),
            memory: (0..BLOCKS).map(|_| UnsafeCell::new(0)).collect(),
        });
        for index in 0..BLOCKS as u32 {
            shared.cell.push(&shared.links, index);
        }
        let pass = |shared: &Shared, times: usize| {
            for _ in 0..times {
                if let Some(index) = shared.cell.pop(&shared.links) {
                    // SAFETY: the block is this thread's; loom checks just that.
                    shared.memory[index as usize].with_mut(|used| unsafe { *used += 1 });
                    shared.cell.push(&shared.links, index);
                }
            }
        };
        let threads: Vec<_> = [2, 1]
            .into_iter()
            .map(|times| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || pass(&shared, times))
            })
            .collect();
        // This one keeps a block while it takes the other: the order on the stack changes (ABA).
        let held: Vec<_> = (0..BLOCKS).filter_map(|_| shared.cell.pop(&shared.links)).collect();
        for index in held {
            // SAFETY: as above.
            shared.memory[index as usize].with_mut(|used| unsafe { *used += 1 });
            shared.cell.push(&shared.links, index);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        let mut left: Vec<_> = std::iter::from_fn(|| shared.cell.pop(&shared.links)).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1], "all blocks are there once");
    });
}

/// A core as in `core.rs`: two cells, freed by whoever is last.
struct Core {
    cells: [Cell; 2],
    links: Next,
    remaining: Remaining,
    /// Stands for the regions: whoever frees the core has it alone.
    memory: UnsafeCell<bool>,
}

/// A raw pointer that a thread may take along.
#[derive(Clone, Copy)]
struct Handle(NonNull<Core>, &'static AtomicUsize);

// SAFETY: what the model is to show.
unsafe impl Send for Handle {}

impl Handle {
    /// As `Core::give_back`.
    fn give_back(self, cell: usize, index: u32) {
        let cell: *const Cell = {
            // SAFETY: our return is not counted yet.
            let core = unsafe { self.0.as_ref() };
            // SAFETY: read only, and loom checks that nobody frees it meanwhile.
            core.memory.with(|alive| unsafe { assert!(*alive) });
            core.cells[cell].push(&core.links, index);
            &core.cells[cell]
        };
        // SAFETY: the last touch.
        if unsafe { Cell::count_return(cell) } {
            self.settle(-1);
        }
    }

    /// As the end of `Core::drop_handle`.
    fn close(self) {
        let outstanding = {
            // SAFETY: the closer's part is not settled yet.
            let core = unsafe { self.0.as_ref() };
            core.cells.iter().map(Cell::close).sum()
        };
        self.settle(outstanding);
    }

    /// As `Core::settle`.
    fn settle(self, delta: i64) {
        let core = self.0.as_ptr();
        // SAFETY: our step is not counted yet.
        if unsafe { Remaining::settle(&raw const (*core).remaining, delta) } {
            // SAFETY: nobody else is left. Loom checks it: the cell fails if another access is not ordered before,
            // and its atomics if one is used after they are gone.
            let core = unsafe { Box::from_raw(core) };
            core.memory.with_mut(|alive| unsafe { *alive = false });
            self.1.fetch_add(1, Ordering::Relaxed);
            drop(core);
        }
    }
}

/// Two blocks come back while the last handle goes: the core is freed once, after all touches of it.
#[test]
fn a_closed_pool_is_freed_once_by_the_last() {
    model(None, || {
        let freed: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
        let core = Box::new(Core {
            cells: [Cell::new(), Cell::new()],
            links: links(2),
            remaining: Remaining::new(),
            memory: UnsafeCell::new(true),
        });
        // Both got from the first cell, and given back to different ones, as by threads of two shards.
        core.cells[0].count_get();
        core.cells[0].count_get();
        let handle = Handle(NonNull::from(Box::leak(core)), freed);
        let threads = [0, 1].map(|at| thread::spawn(move || handle.give_back(at, at as u32)));
        handle.close();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(freed.load(Ordering::Relaxed), 1, "freed once");
        // SAFETY: made above, and no thread is left.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(freed).cast_mut()) });
    });
}

/// A waiter comes while a block goes back: it is served, whoever was first. Two waiters are served in turn.
#[test]
fn a_waiter_never_misses_a_return() {
    struct Pool {
        cell: Cell,
        links: Next,
        gate: Gate,
        queue: Mutex<VecDeque<Arc<Served>>>,
    }
    struct Served {
        yes: AtomicBool,
    }
    impl Pool {
        /// As `Core::serve_queue`.
        fn serve(&self, queue: &mut VecDeque<Arc<Served>>) {
            while !queue.is_empty() {
                let Some(_block) = self.cell.pop(&self.links) else { break };
                if let Some(first) = queue.pop_front() {
                    self.gate.leave();
                    first.yes.store(true, Ordering::Release);
                }
            }
        }

        /// As `Core::give_back`.
        fn give_back(&self, index: u32) {
            self.cell.push(&self.links, index);
            if self.gate.anyone_after_push() {
                self.serve(&mut self.queue.lock().unwrap());
            }
        }

        /// As `Core::poll_first`, after nothing was found.
        fn wait(&self) -> Arc<Served> {
            let mine = Arc::new(Served { yes: AtomicBool::new(false) });
            let mut queue = self.queue.lock().unwrap();
            queue.push_back(Arc::clone(&mine));
            self.gate.announce();
            self.serve(&mut queue);
            mine
        }
    }
    model(Some(4), || {
        let pool = Arc::new(Pool {
            cell: Cell::new(),
            links: links(2),
            gate: Gate::new(),
            queue: Mutex::new(VecDeque::new()),
        });
        let returners: Vec<_> = [0, 1]
            .into_iter()
            .map(|index| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || pool.give_back(index))
            })
            .collect();
        let waiters = [pool.wait(), pool.wait()];
        for returner in returners {
            returner.join().unwrap();
        }
        for waiter in waiters {
            assert!(waiter.yes.load(Ordering::Acquire), "a block lies there while somebody waits for it");
        }
        assert!(!pool.gate.anyone());
        assert!(pool.cell.pop(&pool.links).is_none());
    });
}
