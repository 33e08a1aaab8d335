//! What the cache's lock guards: which pages have frames, in which order they are evicted, and who waits for a frame.
//!
//! A page that is loaded or busy has a slot. Slots stand in two queues, the small one for pages that are new and the
//! main one for pages that came back or were visited (S3-FIFO). An evicted page leaves the tick of its eviction in its
//! word, which tells at its next miss whether it comes back early.
//!
//! Invariants: a slot with a frame belongs to a page whose word holds that frame, or to a page that is busy; a slot
//! stands in a queue once, except one of a page that is busy and was not loaded before, which stands in none. A slot
//! whose page has gone stays in its queue until it is reached there. A frame that was pinned when it left its word is
//! in `detached` until the last pin is gone, and the file that the pins refer to with it; one that was not is in
//! `leaving` until the threads were looked at, which may hold it. Nothing here calls a waker, drops a `Page`, or the
//! last reference to a file's record: one that ends here is in `ended` until the lock is released. The caller keeps the
//! cache alive, so that such a record does not end the lock.

mod evict;

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Waker;

use crate::budget::Budget;
use crate::inner::FileInner;
use crate::memory::{Frame, Memory, SMALLEST_PAGE};
use crate::pending::Pending;
use crate::threads::{self, FrameOwner};
use crate::word::{Key, Taken, Word, since};

/// The share of the small queue: 5 %.
const SMALL: usize = 20;
/// How many pages leave their words before all threads are looked at.
const MOST_AT_ONCE: usize = 32;

/// One page that is loaded or busy.
pub(crate) struct Slot {
    /// `None` if the page has gone.
    pub(crate) file: Option<Arc<FileInner>>,
    pub(crate) page: u64,
    pub(crate) frame: Option<Frame>,
    pub(crate) pending: Option<Arc<Pending>>,
    place: QueuePlace,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum QueuePlace {
    /// In no queue yet; the queue that it goes to.
    Nowhere(Queue),
    In(Queue),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Queue {
    Small,
    Main,
}

struct Detached {
    pins: u64,
    frame: Frame,
    size: usize,
    file: Arc<FileInner>,
}

/// See the top of this file.
pub(crate) struct Core {
    pub(crate) memory: Memory,
    budget: Budget,
    /// What is told when threads have freed their holds: the cache.
    listener: Weak<dyn FrameOwner>,
    slots: Vec<Slot>,
    /// Slots that can be used again.
    free: Vec<u32>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    small_bytes: usize,
    /// Slots in queues whose pages have gone.
    gone: usize,
    /// How many pages were evicted from the small queue.
    ticks: u64,
    /// Frames that have left their words without pins that are counted. Threads may hold them.
    leaving: Vec<Detached>,
    /// By the frame's address: frames that have left their words and are in use.
    detached: HashMap<NonZeroUsize, Detached>,
    /// The records of files that have ended under the lock. `Locked` drops them without it.
    pub(crate) ended: Vec<FileInner>,
    /// Who waits for a frame, or for the turn.
    starved: Vec<Waker>,
    /// The number of the one of those who wait for several frames that keeps what it has meanwhile; 0 if there is none.
    turn: u64,
    /// How many turns there were.
    turns: u64,
    /// Frames that are to be given back are still in use.
    owes_memory: bool,
}

impl Core {
    pub(crate) fn new(memory: Memory, listener: Weak<dyn FrameOwner>) -> Self {
        Self {
            budget: Budget::new(memory.budget()),
            memory,
            listener,
            slots: Vec::new(),
            free: Vec::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            small_bytes: 0,
            gone: 0,
            ticks: 0,
            leaving: Vec::new(),
            detached: HashMap::new(),
            ended: Vec::new(),
            starved: Vec::new(),
            turn: 0,
            turns: 0,
            owes_memory: false,
        }
    }

    // ---- Slots ----

    pub(crate) fn slot(&mut self, file: &FileInner, page: u64) -> &mut Slot {
        let number = file.entry(page).1.load(Ordering::Relaxed);
        &mut self.slots[number as usize]
    }

    /// Makes a page busy with a read or write.
    pub(crate) fn make_busy(&mut self, file: &Arc<FileInner>, page: u64, pending: Arc<Pending>) {
        let (word, its_slot) = file.entry(page);
        word.set_busy();
        if word.is_loaded() {
            self.slot(file, page).pending = Some(pending);
            return;
        }
        let queue = if self.comes_back(word.tick(), file.page_size) { Queue::Main } else { Queue::Small };
        let slot = Slot {
            file: Some(Arc::clone(file)),
            page,
            frame: None,
            pending: Some(pending),
            place: QueuePlace::Nowhere(queue),
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.slots[number as usize] = slot;
                number
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).expect("fewer pages than addresses in a word")
            }
        };
        its_slot.store(number, Ordering::Relaxed);
    }

    /// Returns whether a page that was evicted at that tick comes back before the main queue would have forgotten it.
    fn comes_back(&self, tick: u64, page_size: usize) -> bool {
        let budget = self.memory.budget();
        let remembered = (budget - budget / SMALL) / page_size;
        tick != 0 && since(self.ticks, tick) < remembered as u64
    }

    /// Puts the slot into the queue that it was meant for.
    fn enqueue(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        if let QueuePlace::Nowhere(queue) = slot.place {
            slot.place = QueuePlace::In(queue);
            self.push(number, queue);
        }
    }

    fn push(&mut self, number: u32, queue: Queue) {
        match queue {
            Queue::Small => {
                self.small_bytes += self.size_of(number);
                self.small.push_back(number);
            }
            Queue::Main => self.main.push_back(number),
        }
    }

    fn size_of(&self, number: u32) -> usize {
        self.slots[number as usize].file.as_ref().map_or(0, |file| file.page_size)
    }

    /// Ends a page that is neither loaded nor busy any more.
    fn end_slot(&mut self, number: u32) {
        let size = self.size_of(number);
        let slot = &mut self.slots[number as usize];
        let file = slot.file.take();
        slot.pending = None;
        match slot.place {
            QueuePlace::Nowhere(_) => self.free.push(number),
            QueuePlace::In(queue) => {
                if queue == Queue::Small {
                    self.small_bytes -= size;
                }
                self.gone += 1;
                self.sweep();
            }
        }
        file.into_iter().for_each(|file| self.let_go(file));
    }

    /// Lets go of a file's record. If that was the last reference, keeps the record until the lock is released.
    fn let_go(&mut self, file: Arc<FileInner>) {
        self.ended.extend(Arc::into_inner(file));
    }

    /// Frees the slots of pages that have gone, once most are.
    fn sweep(&mut self) {
        if self.gone <= 64 + (self.small.len() + self.main.len()) / 2 {
            return;
        }
        let Self { slots, free, small, main, .. } = self;
        for queue in [small, main] {
            queue.retain(|&number| {
                let stays = slots[number as usize].file.is_some();
                if !stays {
                    free.push(number);
                }
                stays
            });
        }
        self.gone = 0;
    }

    // ---- Frames (`evict.rs` has where they come from) ----

    /// Takes the frame from a slot.
    fn take_frame(&mut self, number: u32) -> Option<Frame> {
        let frame = self.slots[number as usize].frame.take();
        frame.inspect(|frame| frame.note_slot(None))
    }

    /// Gives a frame to a slot.
    fn put_frame(&mut self, number: u32, frame: Frame) {
        frame.note_slot(Some(number));
        self.slots[number as usize].frame = Some(frame);
    }

    /// Notes who waits for a frame, if there is one who is not known.
    pub(crate) fn wait_for_frame(&mut self, waker: &mut Option<Waker>) {
        let is_known = |waker: &Waker| self.starved.iter().any(|known| known.will_wake(waker));
        if !waker.as_ref().is_none_or(is_known) {
            self.starved.extend(waker.take());
        }
    }

    /// Returns who waits for a frame. He is woken, without the lock, and tries again.
    pub(crate) fn take_starved(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.starved)
    }

    /// Takes the turn if it is free, and returns its number: see [`Turn`](crate::turn::Turn).
    pub(crate) fn take_turn(&mut self) -> Option<u64> {
        if self.turn != 0 {
            return None;
        }
        self.turns += 1;
        self.turn = self.turns;
        Some(self.turn)
    }

    /// Ends the turn of this number, and returns who may wait for it.
    pub(crate) fn end_turn(&mut self, number: u64) -> Vec<Waker> {
        if self.turn != number {
            return Vec::new();
        }
        self.turn = 0;
        self.take_starved()
    }

    // ---- What becomes of a page ----

    /// Puts a frame with the page's content into the word of a busy page, pinned `pins` times, and ends its being busy.
    /// If it may not stay, the frame is detached at once, with those pins.
    pub(crate) fn publish(&mut self, file: &Arc<FileInner>, page: u64, frame: Frame, how: Publish) {
        let start = frame.start();
        let is_above = self.memory.used() > self.memory.budget();
        let stays = how.stays && !is_above && !frame.piece.is_given_up();
        if !stays {
            self.forget(file, page);
            return self.detach(file, frame, Taken { frame: start, pins: how.pins });
        }
        let (word, its_slot) = file.entry(page);
        let number = its_slot.load(Ordering::Relaxed);
        let old = word.publish(start, how.is_short, how.pins);
        self.slots[number as usize].pending = None;
        let old_frame = self.take_frame(number);
        self.put_frame(number, frame);
        self.enqueue(number);
        if let (Some(taken), Some(old)) = (old, old_frame) {
            self.detach(file, old, taken);
        }
        if self.leaving.len() >= MOST_AT_ONCE {
            self.settle();
        }
    }

    /// Takes a page that is loaded or busy out of the cache, and ends its being busy.
    pub(crate) fn forget(&mut self, file: &Arc<FileInner>, page: u64) {
        self.forget_old(file, page);
        let (word, its_slot) = file.entry(page);
        word.clear_busy();
        self.end_slot(its_slot.load(Ordering::Relaxed));
    }

    /// Takes the frame of a page out of the cache if it is loaded. If it is busy, it stays so.
    pub(crate) fn forget_old(&mut self, file: &Arc<FileInner>, page: u64) {
        let (word, its_slot) = file.entry(page);
        let taken = word.take();
        let frame = self.take_frame(its_slot.load(Ordering::Relaxed));
        if let (Some(taken), Some(frame)) = (taken, frame) {
            self.detach(file, frame, taken);
        }
    }

    /// Frees a frame that has left its word, when next settled or after its last pin.
    fn detach(&mut self, file: &Arc<FileInner>, frame: Frame, taken: Taken) {
        let detached = Detached { pins: taken.pins, frame, size: file.page_size, file: Arc::clone(file) };
        if taken.pins == 0 {
            self.leaving.push(detached);
        } else {
            self.detached.insert(taken.frame.addr(), detached);
        }
    }

    /// Frees those of the leaving frames that no thread holds. Returns whether there were any.
    fn settle(&mut self) -> bool {
        let leaving = std::mem::take(&mut self.leaving);
        if leaving.is_empty() {
            return false;
        }
        let mut held = threads::held_for_good();
        if leaving.iter().any(|detached| held.has(detached.frame.start())) {
            let is_leaving = |key| leaving.iter().any(|detached| Key::of(detached.frame.start()) == key);
            held = threads::ask(&self.listener, is_leaving);
        }
        let used = self.memory.used();
        for detached in leaving {
            let start = detached.frame.start();
            if held.has(start) {
                self.detached.insert(start.addr(), detached);
            } else {
                self.memory.put(detached.frame, detached.size);
                self.let_go(detached.file);
            }
        }
        self.memory.used() < used
    }

    /// Looks again at the frames that threads held. Who waits for a frame is to be woken.
    pub(crate) fn holds_are_free(&mut self) {
        let Self { leaving, detached, .. } = self;
        leaving.extend(detached.extract_if(|_, detached| detached.pins == 0).map(|(_, detached)| detached));
        self.settle();
        if self.owes_memory {
            self.give_back();
        }
    }

    /// Counts a pin more of a frame that the caller has pinned, in its word or here.
    pub(crate) fn pin_again(&mut self, word: &Word, frame: NonNull<u8>) {
        if !word.pin_again(frame) {
            self.settle();
            let detached = self.detached.get_mut(&frame.addr());
            detached.expect("a frame that is in use is in its word or here").pins += 1;
        }
    }

    /// Takes a counted pin away, wherever its frame is. Returns whether the frame is free for others now.
    pub(crate) fn unpin(&mut self, word: &Word, frame: NonNull<u8>) -> bool {
        if let Some(left) = word.unpin_wanted(frame) {
            if left == 0 && self.owes_memory {
                self.give_back();
            }
            return left == 0;
        }
        let Entry::Occupied(mut entry) = self.detached.entry(frame.addr()) else { return false };
        entry.get_mut().pins -= 1;
        if entry.get().pins > 0 {
            return false;
        }
        self.leaving.push(entry.remove());
        self.settle()
    }

    // ---- Pages as a whole ----

    /// Takes the pages that `matches` accepts out of the cache. What is in flight there is not kept when it ends.
    pub(crate) fn forget_all(&mut self, matches: impl Fn(&Arc<FileInner>, u64) -> bool) {
        for number in 0..self.slots.len() {
            let slot = &self.slots[number];
            let page = slot.page;
            let Some(file) = slot.file.as_ref().filter(|file| matches(file, page)).cloned() else { continue };
            self.forget_one(&file, page);
            self.let_go(file);
        }
        self.settle();
    }

    /// Does that for one page.
    pub(crate) fn forget_one(&mut self, file: &Arc<FileInner>, page: u64) {
        let Some(word) = file.table.word(page) else { return };
        if word.is_busy() {
            if let Some(pending) = &self.slot(file, page).pending {
                pending.doom();
            }
            self.forget_old(file, page);
        } else if word.is_loaded() {
            self.forget(file, page);
        }
    }

    /// Changes the budget, and evicts what is above it and not in use. Returns the one that is in force if it is another
    /// one.
    pub(crate) fn change_budget(
        &mut self,
        change: impl FnOnce(&mut Budget),
    ) -> ringfile::Result<Option<usize>> {
        let mut budget = self.budget;
        change(&mut budget);
        let next = budget.in_force();
        let is_another = next != self.memory.budget();
        if is_another {
            self.memory.set_budget(next)?;
            self.give_back();
        }
        self.budget = budget;
        Ok(is_another.then_some(next))
    }

    /// Evicts the pages in segments that were given up, and others that are above the budget.
    fn give_back(&mut self) {
        self.owes_memory = false;
        for number in 0..self.slots.len() {
            let slot = &self.slots[number];
            let is_given_up = slot.frame.as_ref().is_some_and(|frame| frame.piece.is_given_up());
            let Some(file) = slot.file.as_ref().filter(|_| is_given_up).cloned() else { continue };
            let page = slot.page;
            // What is busy does not stay when it ends.
            if !file.word(page).is_busy() {
                file.counts.evicted();
                self.forget(&file, page);
            }
            self.let_go(file);
        }
        self.settle();
        while self.memory.used() > self.memory.budget() {
            if !self.evict(SMALLEST_PAGE, false) && !self.evict(SMALLEST_PAGE, true) {
                self.owes_memory = true;
                return;
            }
        }
    }

    /// Returns how many frames are pinned, and the bytes of those that hold pages of `file`, or of all files.
    pub(crate) fn count(&self, file: Option<&Arc<FileInner>>) -> (usize, usize) {
        let is_of = |of: &Arc<FileInner>| file.is_none_or(|file| Arc::ptr_eq(file, of));
        let held = threads::held();
        let slots = self.slots.iter().filter_map(|slot| {
            let file = slot.file.as_ref().filter(|of| is_of(of))?;
            let frame = slot.frame.as_ref()?;
            let is_pinned = file.word(slot.page).is_pinned() || held.has(frame.start());
            Some((is_pinned, file.page_size))
        });
        let left = self.detached.values().chain(&self.leaving).filter(|left| is_of(&left.file));
        let left = left.map(|left| (left.pins > 0 || held.has(left.frame.start()), left.size));
        slots.chain(left).fold((0, 0), |(pinned, bytes), (is_pinned, size)| {
            (pinned + usize::from(is_pinned), bytes + size)
        })
    }
}

/// How a page is published.
#[derive(Clone, Copy)]
pub(crate) struct Publish {
    pub(crate) is_short: bool,
    pub(crate) pins: u64,
    /// Whether others may find it.
    pub(crate) stays: bool,
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::Core;
    use crate::memory::Memory;
    use ringfile::buf::HugePages;

    #[test]
    fn a_page_comes_back_also_when_more_were_evicted_than_a_word_can_count() -> ringfile::Result<()> {
        let mut core =
            Core::new(Memory::new(100 * 4096, HugePages::default())?, Weak::<crate::shared::Shared>::new());
        for ticks in [50, (1 << 36) + 50, (5 << 36) + 3] {
            core.ticks = ticks;
            let in_word = |tick: u64| tick % (1 << 36);
            assert!(core.comes_back(in_word(ticks - 20), 4096), "20 of {ticks} ago");
            assert!(ticks < 1 << 36 || !core.comes_back(in_word(ticks - 200), 4096), "200 of {ticks} ago");
        }
        Ok(())
    }
}
