//! Where a frame comes from: memory that is free, or that of pages which are evicted.
//!
//! A page that is smaller than the frame that is needed leaves together with those around it, where the frame will be.
//! Invariant: a call that gets no frame has evicted no page, and if it asked for that, whoever ends the use of a page
//! that was in its way wakes those who wait.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Core, MOST_AT_ONCE, Queue, QueuePlace, SMALL, Slot};
use crate::holds::Held;
use crate::inner::FileInner;
use crate::memory::{Frame, SMALLEST_PAGE, Use};
use crate::threads;
use crate::word::Evicted;

/// What threads hold: see [`Core::look`].
struct Look {
    held: Held,
    asks: bool,
    /// Places in memory that pages in use keep from becoming a larger frame.
    blocked: HashSet<u64>,
}

/// A page that was taken out of its word, to be evicted.
struct Out {
    number: u32,
    frame: Frame,
    is_short: bool,
}

impl Slot {
    /// Returns whether its page cannot be evicted.
    fn is_in_use(&self, look: &Look) -> bool {
        // Without a frame, it is being read.
        let (Some(file), Some(frame)) = (&self.file, &self.frame) else { return true };
        let word = file.word(self.page);
        word.is_busy()
            || look.held.has(frame.start())
            || if look.asks { word.want() } else { word.is_pinned() }
    }
}

impl Core {
    /// Returns a frame of `size` bytes: a new one, or that of evicted pages. `None` if those in use leave no room for one;
    /// then those that end their use wake who waits.
    ///
    /// # Errors
    /// If the system has no memory, and no page can be evicted.
    pub(crate) fn get_frame(&mut self, size: usize) -> ringfile::Result<Option<Frame>> {
        if size > self.memory.budget() {
            return Ok(None);
        }
        let mut asks = false;
        loop {
            let refused = match self.memory.get(size) {
                Ok(Some(frame)) => return Ok(Some(frame)),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            };
            if self.settle() || self.evict(size, asks) {
                continue;
            }
            if asks {
                return refused;
            }
            asks = true;
        }
    }

    /// Returns several frames of `size` bytes, or none if there are not enough beside the pages that `is_wanted` accepts;
    /// then no page was evicted for that, and those that end their use of a page wake who waits.
    pub(crate) fn get_frames(
        &mut self,
        size: usize,
        count: usize,
        is_wanted: impl Fn(&Arc<FileInner>, u64) -> bool,
    ) -> ringfile::Result<Option<Vec<Frame>>> {
        let fits = self.has_places(size, count, &is_wanted, false) || {
            self.settle();
            self.has_places(size, count, &is_wanted, true)
        };
        if !fits {
            return Ok(None);
        }
        let mut frames = Vec::with_capacity(count);
        while frames.len() < count {
            match self.get_frame(size) {
                Ok(Some(frame)) => frames.push(frame),
                without => {
                    frames.into_iter().for_each(|frame| self.memory.put(frame, size));
                    return without.map(|_| None);
                }
            }
        }
        Ok(Some(frames))
    }

    /// Returns whether that many bytes are free, or of pages that can be evicted and that `is_wanted` does not accept.
    /// If `asks` is set and they are not, those that end their use of a page wake who waits.
    pub(crate) fn has_room(
        &self,
        bytes: usize,
        is_wanted: impl Fn(&Arc<FileInner>, u64) -> bool,
        asks: bool,
    ) -> bool {
        let mut room = self.memory.budget().saturating_sub(self.memory.used());
        if room >= bytes {
            return true;
        }
        let look = self.look(asks);
        self.slots.iter().any(|slot| {
            if let Some(file) = &slot.file
                && !is_wanted(file, slot.page)
                && !slot.is_in_use(&look)
            {
                room += file.page_size;
            }
            room >= bytes
        })
    }

    /// Returns whether that many frames of `size` bytes are free, or would be without pages that can be evicted and that
    /// `is_wanted` does not accept. If `asks` is set and they are not, those that end their use of a page wake who waits.
    fn has_places(
        &mut self,
        size: usize,
        count: usize,
        is_wanted: impl Fn(&Arc<FileInner>, u64) -> bool,
        asks: bool,
    ) -> bool {
        if size == SMALLEST_PAGE {
            // Each byte that is free is in a place for such a frame.
            return self.has_room(size * count, is_wanted, asks);
        }
        let mut places = self.memory.free_places(size);
        let mut room = self.memory.budget().saturating_sub(self.memory.used());
        let has_both = |places, room| places >= count && room >= size * count;
        if has_both(places, room) {
            return true;
        }
        let mut look = self.look(asks);
        // Slots in places that were counted.
        let mut counted = vec![false; self.slots.len()];
        (0..).zip(&self.slots).any(|(number, slot)| {
            let (Some(file), Some(frame)) = (&slot.file, &slot.frame) else { return false };
            // `is_wanted` accepts only pages of this size, so none of those around one.
            if counted[number as usize] || is_wanted(file, slot.page) || frame.piece.is_given_up() {
                return false;
            }
            let Some(others) = self.around(number, size, &mut look) else { return false };
            places += (file.page_size / size).max(1);
            room += file.page_size;
            for other in others {
                counted[other as usize] = true;
                room += self.size_of(other);
            }
            has_both(places, room)
        })
    }

    /// Looks at what threads hold. If `asks` is set, those that end their use of a page that is found in use wake who
    /// waits.
    fn look(&self, asks: bool) -> Look {
        let held = if asks { threads::ask(&self.listener, |_| true) } else { threads::held() };
        Look { held, asks, blocked: HashSet::new() }
    }

    /// Evicts some pages, since looking at what threads hold takes long, so that a frame of `size` bytes is free. Returns
    /// false, and evicts none, if pages in use are in the way everywhere.
    pub(super) fn evict(&mut self, size: usize, asks: bool) -> bool {
        let most = ((self.small.len() + self.main.len()) / 64).clamp(1, MOST_AT_ONCE);
        let mut look = self.look(asks);
        let mut out = Vec::with_capacity(most);
        let mut frames = 0;
        while out.len() < most && frames < most {
            let Some(frame_size) = self.take_out(size, &mut look, &mut out) else { break };
            frames += frame_size / size;
        }
        if out.is_empty() {
            return false;
        }
        let held = threads::held_for_good();
        for Out { number, frame, is_short } in out {
            let slot = &self.slots[number as usize];
            let Some(file) = slot.file.as_ref() else { continue };
            if held.has(frame.start()) {
                // A thread has found it meanwhile.
                file.word(slot.page).publish(frame.start(), is_short, 0);
                self.put_frame(number, frame);
                self.enqueue(number);
                continue;
            }
            file.counts.evicted();
            let size = file.page_size;
            self.end_slot(number);
            self.memory.put(frame, size);
        }
        true
    }

    /// Takes one page out of its word and its queue, and if it is smaller than a frame of `size` bytes, those around it
    /// where such a frame could be. Returns how large the frame is that this frees.
    fn take_out(&mut self, size: usize, look: &mut Look, out: &mut Vec<Out>) -> Option<usize> {
        // How many pages of each queue were found in use since the last that was not.
        let (mut small_in_use, mut main_in_use) = (0, 0);
        loop {
            let (has_small, has_main) = (small_in_use < self.small.len(), main_in_use < self.main.len());
            let is_small = has_small && (!has_main || self.small_bytes > self.memory.budget() / SMALL);
            let (queue, in_use) = match is_small {
                true => (Queue::Small, &mut small_in_use),
                false if has_main => (Queue::Main, &mut main_in_use),
                false => return None,
            };
            let number = match queue {
                Queue::Small => self.small.pop_front(),
                Queue::Main => self.main.pop_front(),
            }?;
            let slot = &self.slots[number as usize];
            let Some(file) = &slot.file else {
                self.gone -= 1;
                self.free.push(number);
                continue;
            };
            let (word, its_size) = (file.word(slot.page), file.page_size);
            let around = self.around(number, size, look);
            let tick = if queue == Queue::Small { self.ticks + 1 } else { 0 };
            let evicted = if around.is_some() { word.evict(tick) } else { Evicted::InUse };
            if evicted == Evicted::Visited && queue == Queue::Small {
                word.clear_visits();
            }
            if queue == Queue::Small {
                self.small_bytes -= its_size;
            }
            let slot = &mut self.slots[number as usize];
            match evicted {
                Evicted::Done { is_short } => {
                    self.ticks += u64::from(queue == Queue::Small);
                    slot.place = QueuePlace::Nowhere(Queue::Main);
                    out.extend(self.take_frame(number).map(|frame| Out { number, frame, is_short }));
                    around.into_iter().flatten().for_each(|number| out.extend(self.take_out_now(number)));
                    return Some(its_size.max(size));
                }
                Evicted::Visited => {
                    slot.place = QueuePlace::In(Queue::Main);
                    self.push(number, Queue::Main);
                    main_in_use = 0;
                }
                Evicted::InUse => {
                    // One that was taken at this moment is looked at again: its user was not asked to tell.
                    *in_use += usize::from(around.is_none());
                    self.push(number, queue);
                }
            }
        }
    }

    /// Takes a page out of its word, however often it was visited, and leaves it in its queue.
    fn take_out_now(&mut self, number: u32) -> Option<Out> {
        let slot = &self.slots[number as usize];
        let word = slot.file.as_ref()?.word(slot.page);
        let is_short = loop {
            match word.evict(self.ticks) {
                Evicted::Done { is_short } => break is_short,
                Evicted::Visited => {}
                Evicted::InUse => return None,
            }
        };
        Some(Out { number, frame: self.take_frame(number)?, is_short })
    }

    /// Returns the other pages that lie where a frame of `size` bytes could be around this one. `None` if one of them, or
    /// this one, is in use, or there is no room for such a frame.
    fn around(&self, number: u32, size: usize, look: &mut Look) -> Option<Vec<u32>> {
        let slot = &self.slots[number as usize];
        if slot.is_in_use(look) {
            return None;
        }
        let mut others = Vec::new();
        if self.size_of(number) >= size {
            return Some(others);
        }
        let frame = slot.frame.as_ref()?;
        let units = frame.around(size)?;
        let place = frame.piece.place(units.start);
        if look.blocked.contains(&place) {
            return None;
        }
        let mut unit = units.start;
        while unit < units.end {
            unit += match frame.piece.use_of(unit) {
                Use::Slot(other) if !self.slots[other as usize].is_in_use(look) => {
                    others.push(other);
                    self.size_of(other) / SMALLEST_PAGE
                }
                Use::Free => 1,
                Use::Slot(_) | Use::Other => {
                    look.blocked.insert(place);
                    return None;
                }
            };
        }
        others.retain(|&other| other != number);
        Some(others)
    }
}
