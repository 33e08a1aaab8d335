//! Pool memory that safe code tries to get hold of twice: `Bytes` of other owners (F33). F34 needs the inside of a block:
//! `src/memory/block.rs`.

#![allow(clippy::unwrap_used, reason = "a test's helpers")]

use std::sync::Arc;

use bytes::Bytes;
use ringfile::{Buffer, Pool};

const PAGE: usize = 4096;

/// A buffer of one page, full of `byte`.
fn page(pool: &Pool, byte: u8) -> Buffer {
    let mut buffer = pool.get(PAGE).unwrap();
    buffer.resize(PAGE, byte);
    buffer
}

/// An owner of a user's, which shares what it owns with the user.
struct Shared<T>(Arc<T>);

impl<T: AsRef<[u8]>> AsRef<[u8]> for Shared<T> {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

#[test]
fn f33_bytes_of_a_foreign_owner_come_back_untouched() {
    let pool = Pool::new(1 << 20);
    let buffer = Arc::new(page(&pool, 1));
    let foreign = Bytes::from_owner(Shared(Arc::clone(&buffer)));
    let address = foreign.as_ptr();
    let foreign = pool.thaw(foreign).unwrap_err();
    assert_eq!((foreign.as_ptr(), foreign.len()), (address, PAGE));
    assert_eq!(Arc::strong_count(&buffer), 2, "their owner is there still");
    let buffer = Arc::try_unwrap(buffer).unwrap_err();
    drop(foreign);
    let mut buffer = Arc::try_unwrap(buffer).unwrap();
    buffer.fill(2);

    // An owner that is a buffer itself.
    let foreign = pool.thaw(Bytes::from_owner(buffer)).unwrap_err();
    assert_eq!((foreign.as_ptr(), foreign.len(), foreign[0]), (address, PAGE, 2));
    drop(foreign);
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn f33_a_buffer_behind_a_foreign_owner_is_told_from_frozen_parts_beside_it() {
    let pool = Pool::new(1 << 20);
    let mut middle = pool.get(3 * PAGE).unwrap();
    middle.resize(3 * PAGE, 3);
    let before = middle.split_to(PAGE);
    let after = middle.split_off(PAGE);
    let frozen = [before.freeze(), after.freeze()];
    let middle = Arc::new(middle);
    let foreign = Bytes::from_owner(Shared(Arc::clone(&middle)));
    let foreign = pool.thaw(foreign).unwrap_err();
    assert_eq!(Arc::strong_count(&middle), 2);
    drop(foreign);
    Arc::try_unwrap(middle).unwrap().fill(4);
    for bytes in frozen {
        let address = bytes.as_ptr();
        let buffer = pool.thaw(bytes).unwrap();
        assert_eq!((buffer.as_ptr(), buffer.len(), buffer[0]), (address, PAGE, 3));
    }
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn f33_frozen_bytes_behind_a_foreign_owner_are_never_writable_beside_it() {
    let pool = Pool::new(1 << 20);
    let frozen = page(&pool, 5).freeze();
    let foreign = Bytes::from_owner(Shared(Arc::new(frozen.clone())));
    let view = pool.thaw(foreign).unwrap_err();
    assert_eq!((view.as_ptr(), view.len()), (frozen.as_ptr(), PAGE));
    // Each keeps the other from being written to.
    let frozen = pool.thaw(frozen).unwrap_err();
    let view = pool.thaw(view).unwrap_err();
    drop(frozen);
    assert_eq!(pool.thaw(view).unwrap()[..], [5; PAGE]);
    assert_eq!(pool.metrics().in_use, 0);
}
