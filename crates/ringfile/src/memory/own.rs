//! The library's own pools.

use once_cell::race::OnceBox;
use ringfile_buffer::internal::quiet;
use ringfile_buffer::{Pool, WhenFull};

/// Returns the pool for direct I/O on memory that is not aligned; the user's pool is never used, since it may be full.
/// If it is used up, memory comes from outside of it. Operations cannot wait for it: its memory returns when the futures
/// that hold it are polled, and the waiting task may be the one that must poll them.
pub(crate) fn reserve() -> &'static Pool {
    static RESERVE: OnceBox<Pool> = OnceBox::new();
    RESERVE.get_or_init(|| Box::new(quiet(8 << 20, WhenFull::Outside { limit: usize::MAX })))
}

/// Returns the pool for read-ahead, with room for 16 streams with the largest window. If it is full, nothing is read ahead.
pub(crate) fn ahead() -> &'static Pool {
    static AHEAD: OnceBox<Pool> = OnceBox::new();
    AHEAD.get_or_init(|| Box::new(quiet(32 << 20, WhenFull::Error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::page_size;

    #[test]
    fn there_is_one_reserve_and_it_is_aligned() {
        let buffer = reserve().get(100).unwrap();
        assert_eq!(buffer.as_ptr() as usize % page_size(), 0);
        assert!(std::ptr::eq(reserve(), reserve()));
    }
}
