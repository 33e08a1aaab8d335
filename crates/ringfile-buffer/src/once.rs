//! Values that are computed once for the whole process.
//!
//! A `OnceLock` would not do: a child that is forked while another thread initialises one would wait for it forever.
//! Here no thread waits for another. Several may compute a value at the same time; all use the same one.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that is never dropped.
pub struct Value<T>(AtomicPtr<T>);

// SAFETY: threads share the value, and the thread that drops a surplus value may not be the one that created it.
unsafe impl<T: Send + Sync> Sync for Value<T> {}

impl<T: Send + Sync> Value<T> {
    /// Returns one without a value.
    #[expect(clippy::new_without_default, reason = "all are statics")]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the value, if there is one.
    #[inline]
    pub fn get(&'static self) -> Option<&'static T> {
        // SAFETY: the value was put here completely, and is never dropped or changed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the value; calls `find` if there is none yet. If another thread was quicker, its value is used and ours
    /// is dropped.
    #[inline]
    pub fn get_or(&'static self, find: impl FnOnce() -> T) -> &'static T {
        self.get().unwrap_or_else(|| self.set(find()))
    }

    #[cold]
    fn set(&'static self, found: T) -> &'static T {
        let ours = Box::into_raw(Box::new(found));
        match self.0.compare_exchange(ptr::null_mut(), ours, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the value is never dropped from now on.
            Ok(_) => unsafe { &*ours },
            Err(theirs) => {
                // SAFETY: made above from a box, and nobody else has seen it.
                drop(unsafe { Box::from_raw(ours) });
                // SAFETY: as in `get`.
                unsafe { &*theirs }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn all_threads_get_the_same() {
        static VALUE: Value<String> = Value::new();
        let together = Barrier::new(8);
        let found = std::thread::scope(|scope| {
            let threads = (1..=8_u64).map(|at| {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    ptr::from_ref(VALUE.get_or(|| at.to_string())).addr()
                })
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(found.iter().all(|other| *other == found[0]), "{found:?}");
        assert!(VALUE.get_or(|| unreachable!()).parse::<u64>().is_ok_and(|at| (1..=8).contains(&at)));
    }

    #[test]
    fn f38_a_child_does_not_wait_for_a_thread_that_it_lacks() {
        static OUTER: Value<u64> = Value::new();
        static VALUE: Value<u64> = Value::new();
        let (found, finds) = std::sync::mpsc::channel();
        let go_on = Barrier::new(2);
        std::thread::scope(|scope| {
            let go_on = &go_on;
            scope.spawn(move || {
                OUTER.get_or(|| {
                    VALUE.get_or(|| {
                        found.send(()).unwrap();
                        go_on.wait();
                        1
                    });
                    1
                })
            });
            finds.recv().unwrap();
            // SAFETY: the child calls nothing that takes a lock: `Box` allocates, and glibc's allocator can after a fork.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends a child that waits, by a signal.
                unsafe { libc::alarm(180) };
                let sum = OUTER.get_or(|| 2) + VALUE.get_or(|| 3);
                // SAFETY: ends the child without running anything else.
                unsafe { libc::_exit(sum as i32) };
            }
            let mut status = 0;
            // SAFETY: waits for the child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            go_on.wait();
            assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 5));
        });
        assert_eq!((OUTER.get_or(|| 4), VALUE.get_or(|| 4)), (&1, &1));
    }
}
