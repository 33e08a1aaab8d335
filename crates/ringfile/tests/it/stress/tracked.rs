//! Memory that notices when the library drops it, and finds out whether somebody writes to it afterwards.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use ringfile::buf::StableMemory;
use ringfile::{IoBuf, IoBufMut};

use super::model::Fate;

const DEAD: u8 = 0xDD;
/// The number of pieces that are kept before they are checked and freed.
const KEPT: usize = 256;

/// Where dropped memory is kept for a while. No kernel may write to it.
#[derive(Default)]
pub struct Graves(Mutex<VecDeque<Vec<u8>>>);

impl Graves {
    fn bury(&self, mut memory: Vec<u8>) {
        memory.resize(memory.capacity(), 0);
        memory.fill(DEAD);
        let oldest = {
            let mut graves = self.0.lock().unwrap();
            graves.push_back(memory);
            if graves.len() > KEPT { graves.pop_front() } else { None }
        };
        oldest.iter().for_each(|memory| assert_dead(memory));
    }

    pub fn assert_all(&self) {
        self.0.lock().unwrap().drain(..).for_each(|memory| assert_dead(&memory));
    }
}

fn assert_dead(memory: &[u8]) {
    let touched = memory.iter().position(|&byte| byte != DEAD);
    assert!(
        touched.is_none(),
        "memory was written to after it was dropped, at {touched:?} of {}",
        memory.len()
    );
}

/// A buffer of a type that the library does not know.
pub struct Tracked {
    memory: Vec<u8>,
    fate: Option<Arc<Fate>>,
    graves: Arc<Graves>,
}

impl Tracked {
    pub fn new(memory: Vec<u8>, fate: Option<Arc<Fate>>, graves: &Arc<Graves>) -> Self {
        Self { memory, fate, graves: Arc::clone(graves) }
    }
}

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.graves.bury(std::mem::take(&mut self.memory));
        if let Some(fate) = self.fate.take() {
            fate.memory_is_gone();
        }
    }
}

// SAFETY: a vector's bytes are on the heap and don't move with it.
unsafe impl IoBuf for Tracked {
    fn as_ptr(&self) -> *const u8 {
        self.memory.as_ptr()
    }

    fn len(&self) -> usize {
        self.memory.len()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Tracked {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    unsafe fn set_len(&mut self, len: usize) {
        // SAFETY: by this function's contract.
        unsafe { self.memory.set_len(len) }
    }
}

/// Memory to register.
pub struct Lendable {
    memory: Vec<u8>,
    graves: Arc<Graves>,
}

impl Lendable {
    pub fn new(len: usize, graves: &Arc<Graves>) -> Self {
        Self { memory: vec![0; len], graves: Arc::clone(graves) }
    }
}

impl Drop for Lendable {
    fn drop(&mut self) {
        self.graves.bury(std::mem::take(&mut self.memory));
    }
}

// SAFETY: a vector's bytes are on the heap, initialised up to its length, and its own; nobody else has the value.
unsafe impl StableMemory for Lendable {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.memory.len()
    }
}
