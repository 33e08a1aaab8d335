//! A loom model of a page's word: every interleaving of threads that use a page with one that evicts it, or replaces
//! it, and then writes to the frame. A frame that is written while someone reads it is a data race, which loom reports;
//! a frame that is never free again is a failed assertion.
//!
//! Run it with `RUSTFLAGS="--cfg loom" cargo test --release -p ringfile-cache --test loom`; without the flag this
//! file is empty. It compiles `word.rs` and `holds.rs` unchanged, with loom's atomics instead of std's, and with a full
//! fence for both halves of the barrier. What `core.rs` does under the cache's lock with what they tell is written
//! again here, as short as it can be.

#![cfg(loom)]

#[path = "../src/holds.rs"]
mod holds;
#[path = "../src/word.rs"]
#[allow(dead_code, reason = "the model needs a part of it")]
mod word;

/// Stands in for `src/sync.rs`.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

    pub(crate) fn light_barrier() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

use std::ptr::NonNull;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64};
use loom::sync::{Arc, Mutex};
use loom::thread;

use holds::{Held, Holds, Took};
use sync::light_barrier as heavy_barrier;
use word::{Evicted, Key, Unpinned, Word};

#[repr(align(4096))]
struct Frame(UnsafeCell<u64>);

struct Cache {
    word: Word,
    frames: [Frame; 2],
    /// Those of the thread that holds pages.
    holds: Holds,
    lock: Mutex<Core>,
}

// SAFETY: the frames are used as the word allows, which is what the model checks.
unsafe impl Send for Cache {}
// SAFETY: as above.
unsafe impl Sync for Cache {}

#[derive(Default)]
struct Core {
    /// The pins of each frame that has left the word.
    detached: [Option<u64>; 2],
    woken: u32,
}

impl Cache {
    /// Frame 0 holds the page, with content 1.
    fn new() -> Arc<Self> {
        let frame = || Frame(UnsafeCell::new(0));
        let holds = Holds {
            asked: std::array::from_fn(|_| AtomicU8::new(0)),
            frames: std::array::from_fn(|_| AtomicU64::new(0)),
            words: std::array::from_fn(|_| AtomicPtr::default()),
        };
        let (word, frames) = (Word::new(), [frame(), frame()]);
        let cache = Arc::new(Self { word, frames, holds, lock: Mutex::default() });
        cache.write(0, 1);
        cache.word.publish(cache.address(0), false, 0);
        cache
    }

    fn address(&self, frame: usize) -> NonNull<u8> {
        NonNull::from(&self.frames[frame]).cast()
    }

    fn number(&self, frame: NonNull<u8>) -> usize {
        (0..2).find(|&number| self.address(number) == frame).expect("one of the two")
    }

    /// Only for who owns the frame.
    fn write(&self, frame: usize, content: u64) {
        // SAFETY: that nobody reads it is what loom checks.
        self.frames[frame].0.with_mut(|frame| unsafe { *frame = content });
    }

    /// Uses the page as `Page` does. Returns its content if it is loaded.
    fn use_page(&self, clones: bool) -> Option<u64> {
        let pinned = self.word.pin()?;
        let frame = self.number(pinned.frame);
        // SAFETY: pinned, so that nobody writes it, which is what loom checks.
        let read = || self.frames[frame].0.with(|frame| unsafe { *frame });
        let content = read();
        if clones {
            if !self.word.pin_again(pinned.frame) {
                let mut core = self.lock.lock().expect("no panic");
                *core.detached[frame].as_mut().expect("it is pinned") += 1;
            }
            self.unpin(frame);
        }
        assert_eq!(read(), content);
        self.unpin(frame);
        Some(content)
    }

    fn unpin(&self, frame: usize) {
        let address = self.address(frame);
        if self.word.unpin(address) == Unpinned::Done {
            return;
        }
        let mut core = self.lock.lock().expect("no panic");
        if let Some(left) = self.word.unpin_wanted(address) {
            core.woken += u32::from(left == 0);
            return;
        }
        let pins = core.detached[frame].expect("it has left the word, and is pinned") - 1;
        core.detached[frame] = (pins > 0).then_some(pins);
        if pins == 0 {
            core.woken += 1;
            self.write(frame, 99);
        }
    }
}

impl Cache {
    /// Uses the page as a `Page` in a hold. Returns its content if it is loaded and no other changes it meanwhile.
    fn hold_page(&self) -> Option<u64> {
        let (hold, pinned) = match self.holds.take(&self.word) {
            Took::In(hold, pinned) => (hold, pinned),
            Took::No => return None,
            Took::Asked => {
                self.hear();
                return None;
            }
        };
        let frame = self.number(pinned.frame);
        // SAFETY: held, so that nobody writes it, which is what loom checks.
        let read = || self.frames[frame].0.with(|frame| unsafe { *frame });
        let content = read();
        assert_eq!(read(), content);
        if self.holds.release(hold) {
            self.hear();
        }
        Some(content)
    }

    /// What all caches do when a hold is free that was asked for.
    fn hear(&self) {
        let mut core = self.lock.lock().expect("no panic");
        for frame in 0..2 {
            if core.detached[frame] == Some(0) {
                core.detached[frame] = None;
                self.leave(&mut core, frame);
            }
        }
    }

    /// Frees a frame that has left its word, now or when the hold is free.
    fn leave(&self, core: &mut Core, frame: usize) {
        let is_held = || {
            heavy_barrier();
            Held::look([&self.holds].into_iter()).has(self.address(frame))
        };
        let is_asked = || {
            self.holds.ask(|key| key == Key::of(self.address(frame)));
            is_held()
        };
        if is_held() && is_asked() {
            core.detached[frame] = Some(0);
        } else {
            self.write(frame, 99);
        }
    }
}

/// Runs a model with every interleaving of up to three preemptions: all of them would take hours, since each change of
/// the word may be tried again.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_frame_is_reused_only_when_nobody_uses_the_page() {
    check(|| {
        let cache = Cache::new();
        let users = [true, false].map(|clones| {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                if let Some(content) = cache.use_page(clones) {
                    assert!(content == 1 || content == 2);
                }
            })
        });
        let core = cache.lock.lock().expect("no panic");
        // Twice for the visits.
        for _ in 0..3 {
            if let Evicted::Done { .. } = cache.word.evict(5) {
                assert_eq!(cache.word.tick(), 5);
                cache.write(0, 2);
                cache.word.publish(cache.address(0), false, 0);
                break;
            }
        }
        drop(core);
        for user in users {
            user.join().expect("no panic");
        }
        assert!(!cache.word.is_pinned());
    });
}

#[test]
fn a_page_is_replaced_while_it_is_used() {
    check(|| {
        let cache = Cache::new();
        let user = Arc::clone(&cache);
        let user = thread::spawn(move || user.use_page(true));
        cache.write(1, 2);
        let mut core = cache.lock.lock().expect("no panic");
        cache.word.set_busy();
        let old = cache.word.publish(cache.address(1), false, 0).expect("it was loaded");
        assert_eq!(cache.number(old.frame), 0);
        if old.pins > 0 {
            core.detached[0] = Some(old.pins);
        } else {
            cache.write(0, 99);
        }
        drop(core);
        assert_eq!(cache.use_page(false), Some(2), "after the write, only the new page");
        let content = user.join().expect("no panic");
        assert!(content == Some(1) || content == Some(2));
        let core = cache.lock.lock().expect("no panic");
        assert_eq!(core.detached, [None, None], "both frames are free");
        assert!(!cache.word.is_pinned());
    });
}

#[test]
fn whoever_wants_a_frame_hears_of_the_last_unpin() {
    check(|| {
        let cache = Cache::new();
        let wants = Arc::clone(&cache);
        let wants = thread::spawn(move || {
            let _core = wants.lock.lock().expect("no panic");
            wants.word.want()
        });
        cache.use_page(false);
        let is_wanted = wants.join().expect("no panic");
        let core = cache.lock.lock().expect("no panic");
        assert_eq!(core.woken, u32::from(is_wanted));
        let mut evicted = cache.word.evict(1);
        if evicted == Evicted::Visited {
            evicted = cache.word.evict(1);
        }
        assert_eq!(evicted, Evicted::Done { is_short: false });
    });
}

#[test]
fn a_frame_is_reused_only_when_no_thread_holds_it() {
    check(|| {
        let cache = Cache::new();
        let user = Arc::clone(&cache);
        let user = thread::spawn(move || {
            for _ in 0..2 {
                let content = user.hold_page();
                assert!(matches!(content, None | Some(1 | 2)), "{content:?}");
            }
        });
        let core = cache.lock.lock().expect("no panic");
        // Twice for the visits.
        for _ in 0..3 {
            if let Evicted::Done { is_short } = cache.word.evict(5) {
                heavy_barrier();
                if Held::look([&cache.holds].into_iter()).has(cache.address(0)) {
                    cache.word.publish(cache.address(0), is_short, 0);
                } else {
                    cache.write(0, 2);
                    cache.word.publish(cache.address(0), false, 0);
                }
                break;
            }
        }
        drop(core);
        user.join().expect("no panic");
    });
}

#[test]
fn a_frame_that_was_replaced_is_free_once_no_thread_holds_it() {
    check(|| {
        let cache = Cache::new();
        let user = Arc::clone(&cache);
        let user = thread::spawn(move || user.hold_page());
        cache.write(1, 2);
        let mut core = cache.lock.lock().expect("no panic");
        let old = cache.word.publish(cache.address(1), false, 0).expect("it was loaded");
        assert_eq!((cache.number(old.frame), old.pins), (0, 0));
        cache.leave(&mut core, 0);
        drop(core);
        let content = user.join().expect("no panic");
        assert!(matches!(content, None | Some(1 | 2)), "{content:?}");
        let detached = cache.lock.lock().expect("no panic").detached;
        assert_eq!(detached, [None, None], "the frame is free, since its user was asked to tell");
        assert_eq!(cache.hold_page(), Some(2));
    });
}

#[test]
fn a_page_may_be_dropped_by_another_thread_than_holds_it() {
    check(|| {
        let cache = Cache::new();
        let Took::In(hold, pinned) = cache.holds.take(&cache.word) else { panic!("it is loaded") };
        assert_eq!(cache.number(pinned.frame), 0);
        let other = Arc::clone(&cache);
        let other = thread::spawn(move || {
            // SAFETY: held.
            other.frames[0].0.with(|frame| assert_eq!(unsafe { *frame }, 1));
            if other.holds.release(hold) {
                other.hear();
            }
        });
        cache.write(1, 2);
        let mut core = cache.lock.lock().expect("no panic");
        cache.word.publish(cache.address(1), false, 0);
        drop(core);
        // The owner holds another frame in the same place, if it is free.
        assert_eq!(cache.hold_page(), Some(2));
        core = cache.lock.lock().expect("no panic");
        cache.leave(&mut core, 0);
        drop(core);
        other.join().expect("no panic");
        assert_eq!(cache.lock.lock().expect("no panic").detached, [None, None]);
    });
}
