//! The pages of one file: a word for each, and the number of its slot, found by the page's number.
//!
//! Invariant: a leaf of the table is never freed or moved while the table exists, so a word stays where it is.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::word::Word;

const BITS: u32 = 9;
const FAN: usize = 1 << BITS;
/// The levels above the leaves.
const LEVELS: u32 = 3;
/// How many pages a file may have.
pub(crate) const MOST_PAGES: u64 = 1 << (BITS * (LEVELS + 1));

/// A level of the table: pointers to the next, which are made when a page below them is first used.
struct Node<T>([AtomicPtr<T>; FAN]);

/// The pages themselves: 512 of them. It begins at a multiple of its size, so that a word tells where it is.
#[repr(C, align(8192))]
struct Leaf {
    words: [Word; FAN],
    /// Read and written under the cache's lock.
    slots: [AtomicU32; FAN],
    /// The address of what the table belongs to.
    owner: usize,
}

const _: () = assert!(size_of::<Leaf>() == align_of::<Leaf>());

/// See the top of this file.
pub(crate) struct Table(Box<Node<Node<Node<Leaf>>>>);

trait Level: Sized {
    fn empty(owner: usize) -> Self;
}

impl<T> Level for Node<T> {
    fn empty(_owner: usize) -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; FAN])
    }
}

impl Level for Leaf {
    fn empty(owner: usize) -> Self {
        let words = std::array::from_fn(|_| Word::new());
        Self { words, slots: [const { AtomicU32::new(0) }; FAN], owner }
    }
}

impl<T: Level> Node<T> {
    #[inline(always)]
    fn get(&self, page: u64, level: u32) -> Option<&T> {
        let child = self.0[at(page, level)].load(Ordering::Acquire);
        // SAFETY: null, or made below, and freed only when this node is dropped.
        unsafe { child.as_ref() }
    }

    fn get_or_make(&self, page: u64, level: u32, owner: usize) -> &T {
        if let Some(child) = self.get(page, level) {
            return child;
        }
        let new = Box::into_raw(Box::new(T::empty(owner)));
        let place = &self.0[at(page, level)];
        match place.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: as in `get`.
            Ok(_) => unsafe { &*new },
            Err(there) => {
                // SAFETY: made above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: as in `get`; it is not null, or the exchange would not have failed.
                unsafe { &*there }
            }
        }
    }
}

impl<T> Drop for Node<T> {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let child = *child.get_mut();
            if !child.is_null() {
                // SAFETY: made from a box, and no reference to it outlives one to this node.
                drop(unsafe { Box::from_raw(child) });
            }
        }
    }
}

#[inline(always)]
fn at(page: u64, level: u32) -> usize {
    (page >> (BITS * level)) as usize % FAN
}

impl Table {
    pub(crate) fn new() -> Self {
        Self(Box::new(Node::empty(0)))
    }

    /// Returns the word of a page, or `None` if none near it was ever used.
    #[inline(always)]
    pub(crate) fn word(&self, page: u64) -> Option<&Word> {
        if page >= MOST_PAGES {
            return None;
        }
        Some(&self.0.get(page, 3)?.get(page, 2)?.get(page, 1)?.words[at(page, 0)])
    }

    /// Returns the word of a page and the number of its slot, which is read and written under the cache's lock, and
    /// means something while the page is loaded or busy. All calls give the same owner, which has this table.
    pub(crate) fn entry<T>(&self, page: u64, owner: &T) -> (&Word, &AtomicU32) {
        assert!(page < MOST_PAGES, "the page was checked when its read or write began");
        let owner = ptr::from_ref(owner).expose_provenance();
        let node = self.0.get_or_make(page, 3, owner).get_or_make(page, 2, owner);
        let leaf = node.get_or_make(page, 1, owner);
        ptr::from_ref(leaf).expose_provenance();
        (&leaf.words[at(page, 0)], &leaf.slots[at(page, 0)])
    }
}

/// Returns the owner of the table that has this word.
///
/// # Safety
/// The word is in a table, which exists, and whose owner has this type and is shared with nobody who changes it.
pub(crate) unsafe fn owner_of<'a, T>(word: NonNull<Word>) -> &'a T {
    let leaf = ptr::with_exposed_provenance::<Leaf>(word.addr().get() & !(align_of::<Leaf>() - 1));
    // SAFETY: by this function's contract and the leaf's alignment.
    unsafe { &*ptr::with_exposed_provenance::<T>((*leaf).owner) }
}
