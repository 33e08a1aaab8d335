//! A loom model of the pool's concurrent kernel: every interleaving of a few threads, with everything that the memory
//! model allows them to see.
//!
//! It compiles `kernel.rs` unchanged, with loom's atomics instead of std's.

#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test's helpers")]

#[path = "../../src/kernel.rs"]
#[allow(dead_code)]
mod kernel;

/// Stands in for `src/sync.rs`.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};
}

use std::collections::VecDeque;
use std::ptr::NonNull;

use kernel::{Anchors, Blocks, Cell, Linked};
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicBool;
use loom::sync::{Arc, Mutex};
use loom::thread;
use sync::{AtomicU64, Ordering};

/// A block: its number, link, and memory. Loom fails the test if two threads access the memory at the same time, or
/// without an order between them.
struct Node {
    number: u32,
    link: AtomicU64,
    memory: UnsafeCell<u32>,
}

struct Nodes(Vec<Node>);

impl Linked for Node {
    fn link(&self) -> &AtomicU64 {
        &self.link
    }

    fn number(&self) -> u32 {
        self.number
    }
}

impl Blocks for Nodes {
    type Block = Node;

    fn block(&self, index: u32) -> NonNull<Node> {
        NonNull::from(&self.0[index as usize])
    }
}

fn nodes(n: u32) -> Nodes {
    Nodes((0..n).map(|number| Node { number, link: AtomicU64::new(0), memory: UnsafeCell::new(0) }).collect())
}

/// Writes to the memory of a block that this thread has popped or got.
fn touch(block: NonNull<Node>) {
    // SAFETY: nodes outlive the threads; that the block is this thread's alone, loom checks.
    unsafe { block.as_ref() }.memory.with_mut(|memory| unsafe { *memory += 1 });
}

fn number(block: NonNull<Node>) -> u32 {
    // SAFETY: nodes outlive the threads.
    unsafe { block.as_ref() }.number
}

fn model(preemptions: Option<usize>, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(run);
}

/// Three threads over one stack: a block is never with two of them, and none is lost.
#[test]
fn a_popped_block_has_one_owner() {
    model(Some(2), || {
        let shared = Arc::new((Cell::new(), nodes(2)));
        let push = |shared: &(Cell, Nodes), block| {
            // SAFETY: all of it outlives the call.
            unsafe { Cell::push(&shared.0, &shared.1, block) }.unwrap();
        };
        for index in 0..2 {
            push(&shared, shared.1.block(index));
        }
        let threads: Vec<_> = [2, 1]
            .into_iter()
            .map(|times| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    for _ in 0..times {
                        if let Some(block) = shared.0.pop(&shared.1) {
                            touch(block);
                            push(&shared, block);
                        }
                    }
                })
            })
            .collect();
        // This thread keeps one block while it takes the other, which changes the order on the stack (ABA).
        let held: Vec<_> = (0..2).filter_map(|_| shared.0.pop(&shared.1)).collect();
        for block in held {
            touch(block);
            push(&shared, block);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(shared.0.counts(&shared.1).1, 2, "the height is right");
        let mut left: Vec<_> = std::iter::from_fn(|| shared.0.pop(&shared.1)).map(number).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1], "all blocks are there once");
    });
}

/// The data under the pool's lock, as far as it matters for the order of events.
#[derive(Default)]
struct Inner {
    /// Blocks that are in use or on a stack.
    existing: i64,
    /// Blocks that were dissolved into free memory.
    free: Vec<NonNull<Node>>,
    queue: VecDeque<Arc<AtomicBool>>,
    closed: bool,
}

/// A core as in `core.rs` and `slow.rs`, with two shards.
struct Core {
    cells: [Cell; 2],
    blocks: Nodes,
    anchors: Anchors,
    inner: Mutex<Inner>,
    /// Stands for the regions: the thread that frees the core is the only one to access it.
    alive: UnsafeCell<bool>,
    freed: Arc<AtomicBool>,
}

/// The core's address, which buffers and pools on each thread have.
#[derive(Clone, Copy)]
struct Handle(NonNull<Core>);

// SAFETY: what the model is to show.
unsafe impl Send for Handle {}

impl Handle {
    /// Returns a core whose blocks are all in use.
    fn new(blocks: u32) -> (Handle, Arc<AtomicBool>) {
        let freed = Arc::new(AtomicBool::new(false));
        let core = Core {
            cells: [Cell::new(), Cell::new()],
            blocks: nodes(blocks),
            anchors: Anchors::new(),
            inner: Mutex::new(Inner { existing: i64::from(blocks), ..Inner::default() }),
            alive: UnsafeCell::new(true),
            freed: Arc::clone(&freed),
        };
        (Handle(NonNull::from(Box::leak(Box::new(core)))), freed)
    }

    /// Models `Core::give_back`.
    fn give_back(self, shard: usize, index: u32) {
        let core = self.0.as_ptr();
        // SAFETY: the block is out until the push, which is the last touch unless it is refused.
        let refused = unsafe {
            let block = (*core).blocks.block(index);
            touch(block);
            (*core).alive.with(|alive| assert!(*alive));
            Cell::push(&raw const (*core).cells[shard], &raw const (*core).blocks, block).is_err()
        };
        if refused {
            self.give_back_locked(index);
        }
    }

    /// Models `Core::give_back_locked` and `Core::dissolve_and_serve`.
    fn give_back_locked(self, index: u32) {
        let anchors = {
            // SAFETY: the block is out; then our anchor keeps the core.
            let core = unsafe { self.0.as_ref() };
            core.anchors.add(1);
            let mut inner = core.inner.lock().unwrap();
            inner.existing -= 1;
            inner.free.push(core.blocks.block(index));
            self.serve(&mut inner);
            1 + i64::from(inner.closed)
        };
        self.release(anchors);
    }

    /// Models `Core::serve_queue` with `Core::find`.
    fn serve(self, inner: &mut Inner) {
        // SAFETY: the caller keeps the core.
        let core = unsafe { self.0.as_ref() };
        let had = !inner.queue.is_empty();
        while !inner.queue.is_empty() {
            let cached = core.cells.iter().find_map(|cell| cell.take(&core.blocks));
            let Some(block) = cached.or_else(|| inner.free.pop()) else { break };
            if cached.is_none() {
                inner.existing += 1;
            }
            touch(block);
            // The block stays in use: the model's waiters keep it.
            if let Some(first) = inner.queue.pop_front() {
                first.store(true, Ordering::Release);
            }
        }
        if had && inner.queue.is_empty() {
            core.cells.iter().for_each(Cell::unmark_waiting);
        }
    }

    /// Models `Core::poll_first` when it finds nothing.
    fn wait(self) -> Arc<AtomicBool> {
        // SAFETY: a waiter has a handle, which keeps the core.
        let core = unsafe { self.0.as_ref() };
        let mut inner = core.inner.lock().unwrap();
        if inner.queue.is_empty() {
            core.cells.iter().for_each(Cell::mark_waiting);
        }
        let mine = Arc::new(AtomicBool::new(false));
        inner.queue.push_back(Arc::clone(&mine));
        self.serve(&mut inner);
        mine
    }

    /// Models `Core::drop_handle` and `Core::close`.
    fn close(self) {
        {
            // SAFETY: the handles' anchor keeps the core.
            let core = unsafe { self.0.as_ref() };
            let mut inner = core.inner.lock().unwrap();
            core.cells.iter().for_each(Cell::close);
            for cell in &core.cells {
                while let Some(block) = cell.take(&core.blocks) {
                    touch(block);
                    inner.existing -= 1;
                }
            }
            inner.closed = true;
            core.anchors.add(inner.existing);
        }
        self.release(1);
    }

    /// Models `Core::release`.
    fn release(self, anchors: i64) {
        let core = self.0.as_ptr();
        // SAFETY: our anchors keep the core until they are taken away.
        if unsafe { Anchors::release(&raw const (*core).anchors, anchors) } {
            // SAFETY: nobody else is left. Loom checks that: a cell fails if an access to it is not ordered before this
            // one, and an object of loom's if it is used after it was dropped.
            let core = unsafe { Box::from_raw(core) };
            core.alive.with_mut(|alive| unsafe { *alive = false });
            core.blocks.0.iter().for_each(|node| touch(NonNull::from(node)));
            assert!(!core.freed.swap(true, Ordering::AcqRel), "freed once");
        }
    }
}

/// Two blocks return to two shards while the last handle is dropped: the core is freed once, after all accesses.
#[test]
fn a_closed_pool_is_freed_once_by_the_last() {
    model(None, || {
        let (core, freed) = Handle::new(2);
        let threads = [0, 1].map(|at| thread::spawn(move || core.give_back(at, at as u32)));
        core.close();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(freed.load(Ordering::Acquire), "freed");
    });
}

/// The same while a return is in progress, because a waiter was served or gave up.
#[test]
fn a_return_under_the_lock_keeps_the_pool() {
    model(Some(3), || {
        let (core, freed) = Handle::new(2);
        // Marked as if there were a waiter, which has given up meanwhile.
        // SAFETY: not closed yet.
        unsafe { core.0.as_ref() }.cells[0].mark_waiting();
        let threads = [0, 1].map(|at| thread::spawn(move || core.give_back(at, at as u32)));
        core.close();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(freed.load(Ordering::Acquire), "freed");
    });
}

/// Waiters arrive while blocks return: they are served, whichever came first, and later returns need no lock.
#[test]
fn a_waiter_never_misses_a_return() {
    model(Some(3), || {
        let (core, _freed) = Handle::new(2);
        let returners = [0, 1].map(|at| thread::spawn(move || core.give_back(at, at as u32)));
        let waiters = [core.wait(), core.wait()];
        for returner in returners {
            returner.join().unwrap();
        }
        for waiter in waiters {
            assert!(waiter.load(Ordering::Acquire), "a block lies there while somebody waits for it");
        }
        // SAFETY: never closed, and no thread is left.
        let core = unsafe { Box::from_raw(core.0.as_ptr()) };
        assert!(core.cells.iter().all(|cell| cell.take(&core.blocks).is_none()));
        let block = core.blocks.block(0);
        // SAFETY: all of it outlives the call.
        assert!(unsafe { Cell::push(&core.cells[0], &core.blocks, block) }.is_ok(), "unmarked");
    });
}
