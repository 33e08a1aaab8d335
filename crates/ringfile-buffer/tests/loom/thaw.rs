//! A loom model of a block's reference count: buffers that are split and dropped, and frozen bytes whose clones are
//! read, dropped and thawed on several threads. Every interleaving of them, with everything that the memory model
//! allows them to see.
//!
//! It compiles `count.rs` unchanged, with loom's atomics instead of std's.

#[path = "../../src/count.rs"]
#[allow(dead_code)]
mod count;

/// Stands in for `src/sync.rs`.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
}

use count::Count;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// A block. Loom fails the test if one thread writes to the memory while another accesses it, or without an order
/// between them.
struct Block {
    refs: Count,
    memory: UnsafeCell<u32>,
    given_back: AtomicBool,
    thawed: AtomicU32,
    /// Stands for what the pool notes about a part that was frozen while the block had other references: its owners.
    part: Mutex<usize>,
}

// SAFETY: what the model is to show.
unsafe impl Sync for Block {}

impl Block {
    /// Returns a block with one reference, held by a buffer.
    fn new() -> Arc<Block> {
        let block = Block {
            refs: Count::new(),
            memory: UnsafeCell::new(0),
            given_back: AtomicBool::new(false),
            thawed: AtomicU32::new(0),
            part: Mutex::new(0),
        };
        block.refs.set_one();
        Arc::new(block)
    }

    fn write(&self) {
        // SAFETY: loom checks it.
        self.memory.with_mut(|memory| unsafe { *memory += 1 });
    }

    fn read(&self) -> u32 {
        // SAFETY: loom checks it.
        self.memory.with(|memory| unsafe { *memory })
    }

    /// Models `block::release`; the next owner of the block writes to it.
    fn release(&self) {
        if self.refs.drop_one() {
            assert!(!self.given_back.swap(true, Ordering::Relaxed), "given back twice");
            self.write();
        }
    }

    #[track_caller]
    fn assert_given_back(&self) {
        assert!(self.given_back.load(Ordering::Relaxed), "still out");
    }
}

/// Models an owner in `frozen.rs`.
struct Owner {
    block: Arc<Block>,
    is_part: bool,
    /// Whether its reference became a buffer's.
    is_over: bool,
}

/// Models `bytes::Bytes`: clones share an owner.
type Bytes = Arc<Owner>;

impl Drop for Owner {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if self.is_part {
            *self.block.part.lock().unwrap() -= 1;
        }
        self.block.release();
    }
}

fn freeze(block: &Arc<Block>) -> Bytes {
    let is_part = !block.refs.is_one();
    if is_part {
        *block.part.lock().unwrap() = 1;
    } else {
        block.refs.freeze();
    }
    Arc::new(Owner { block: Arc::clone(block), is_part, is_over: false })
}

/// Models `Pool::thaw`: returns the bytes, or none if the block became a buffer, which is written to and dropped.
fn thaw(bytes: Bytes) -> Option<Bytes> {
    let block = Arc::clone(&bytes.block);
    let is_part = !block.refs.is_frozen();
    if is_part {
        let mut owners = block.part.lock().unwrap();
        if *owners != 1 {
            return Some(bytes);
        }
        *owners += 1;
        block.refs.add();
    } else if !block.refs.join() {
        return Some(bytes);
    }
    let mut owner = Owner { block: Arc::clone(&block), is_part, is_over: false };
    drop(bytes);
    let is_only = if is_part {
        let mut owners = block.part.lock().unwrap();
        let is_only = *owners == 1;
        if is_only {
            *owners = 0;
        }
        is_only
    } else {
        block.refs.thaw()
    };
    if !is_only {
        return Some(Arc::new(owner));
    }
    owner.is_over = true;
    block.thawed.fetch_add(1, Ordering::Relaxed);
    block.write();
    block.release();
    None
}

fn model(preemptions: Option<usize>, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(run);
}

/// Several threads drop parts of a buffer: the last one gives the block back, after everything the others did to it.
#[test]
fn the_last_part_gives_the_block_back() {
    model(None, || {
        let block = Block::new();
        block.write();
        let parts = [0, 1].map(|_| {
            block.refs.add();
            let block = Arc::clone(&block);
            thread::spawn(move || {
                block.read();
                block.release();
            })
        });
        block.read();
        block.release();
        for part in parts {
            part.join().unwrap();
        }
        block.assert_given_back();
    });
}

/// Two threads thaw clones of the same bytes: at most one of them gets the buffer.
fn two_thaw(is_part: bool) {
    model(Some(3), move || {
        let block = Block::new();
        block.write();
        if is_part {
            block.refs.add();
        }
        let first = freeze(&block);
        let second = Arc::clone(&first);
        let other = thread::spawn(move || drop(thaw(second)));
        let mine = thaw(first);
        if let Some(bytes) = &mine {
            bytes.block.read();
        }
        other.join().unwrap();
        // Now this is the only clone, so it can be thawed.
        let again = mine.map(thaw);
        assert!(again.is_none_or(|bytes| bytes.is_none()), "the last was not thawed");
        assert!(block.thawed.load(Ordering::Relaxed) <= 2);
        if is_part {
            block.release();
        }
        block.assert_given_back();
    });
}

#[test]
fn two_threads_thaw_clones() {
    two_thaw(false);
}

#[test]
fn two_threads_thaw_clones_of_a_part() {
    two_thaw(true);
}

/// One thread thaws while another reads a clone and drops it, and a third one clones that clone first.
#[test]
fn a_thaw_races_with_readers_and_the_last_drop() {
    model(Some(3), || {
        let block = Block::new();
        block.write();
        let mine = freeze(&block);
        let theirs = Arc::clone(&mine);
        let reader = thread::spawn(move || {
            let clone = Arc::clone(&theirs);
            drop(theirs);
            clone.block.read();
            drop(clone);
        });
        let left = thaw(mine);
        if let Some(bytes) = &left {
            bytes.block.read();
            assert!(!block.given_back.load(Ordering::Relaxed));
        }
        reader.join().unwrap();
        drop(left);
        block.assert_given_back();
    });
}

/// A part is thawed while the other part of its block, a buffer, is written to and dropped.
#[test]
fn a_part_is_thawed_while_the_other_is_dropped() {
    model(Some(3), || {
        let block = Block::new();
        block.refs.add();
        let bytes = freeze(&block);
        let other = {
            let block = Arc::clone(&block);
            thread::spawn(move || block.release())
        };
        assert!(thaw(bytes).is_none(), "other parts do not matter");
        other.join().unwrap();
        block.assert_given_back();
    });
}
