//! The traits of `BytesMut` on `Buffer`: each does what the one of `BytesMut` does.

use std::collections::{BTreeSet, HashSet};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ringfile_buffer::internal::page_size;
use ringfile_buffer::{Buffer, Pool, PoolError, RegisteredMemory};

/// What both types can do, in any order, with the same results.
fn acts<B: Buf + BufMut + Extend<u8> + Extend<Bytes> + std::fmt::Write + AsRef<[u8]>>(
    mut both: B,
) -> Vec<Vec<u8>> {
    let mut seen = Vec::new();
    let mut see = |both: &B| seen.push(both.as_ref().to_vec());
    both.put_u32(7);
    both.extend(*b"bytes");
    both.extend([Bytes::from_static(b"one"), Bytes::from_static(b"two")]);
    write!(both, "text {}", 3).unwrap();
    see(&both);
    assert_eq!(both.get_u32(), 7);
    see(&both);
    let taken = both.copy_to_bytes(5);
    assert_eq!(taken, "bytes");
    both.advance(3);
    see(&both);
    both.put_bytes(b'x', 10_000);
    assert_eq!(taken, "bytes", "is not touched by what grew");
    see(&both);
    let len = both.remaining();
    assert_eq!(both.copy_to_bytes(len).len(), len);
    both.put_slice(b"again");
    see(&both);
    seen
}

#[test]
fn a_buffer_does_what_bytes_mut_does() {
    let expected = acts(BytesMut::new());
    assert_eq!(acts(Buffer::default()), expected);
    let pool = Pool::new(1 << 20);
    assert_eq!(acts(pool.get(0).unwrap()), expected);
    assert_eq!(acts(pool.get(4096).unwrap()), expected);
    assert_eq!(pool.metrics().in_use, 0, "all memory came back");
}

#[test]
fn buffers_are_made_of_bytes_and_turned_into_them() {
    let text = "some text";
    let all = [
        Buffer::from(text),
        Buffer::from(text.as_bytes()),
        Buffer::from(text.as_bytes().to_vec()),
        text.bytes().collect(),
        text.as_bytes().iter().collect(),
    ];
    for buffer in all {
        assert_eq!(buffer, *text.as_bytes());
        assert_eq!(buffer.iter().copied().collect::<Vec<_>>(), text.as_bytes());
        assert_eq!((&buffer).into_iter().count(), text.len());
        assert_eq!(Vec::from(Buffer::from(text)), text.as_bytes());
        assert_eq!(Buffer::from(text).into_iter().collect::<Vec<_>>(), text.as_bytes());
        let address = buffer.as_ptr();
        let bytes = Bytes::from(buffer);
        assert_eq!((bytes.as_ptr(), &bytes[..]), (address, text.as_bytes()), "without a copy");
    }
    assert!(Buffer::from("").is_empty());
}

#[test]
fn buffers_compare_by_their_content() {
    let (one, same, other) = (Buffer::from("a"), Pool::new(1 << 20).get(4096).unwrap(), Buffer::from("b"));
    let mut same = same;
    same.extend_from_slice(b"a");
    assert!(one == same && one != other && one < other);
    assert!(one == b"a"[..] && one == b"a".to_vec() && one == Bytes::from_static(b"a"));
    assert!(b"a"[..] == one && Bytes::from_static(b"a") == one);
    assert_eq!(BTreeSet::from([one, same, other]).len(), 2);
    // As `[u8]` hashes, which `Borrow` promises.
    let set = HashSet::from([Buffer::from("key")]);
    assert!(set.contains(&b"key"[..]));
}

#[test]
fn an_empty_buffer_grows_and_lent_memory_does_not() {
    let mut buffer = Buffer::default();
    assert_eq!((buffer.capacity(), buffer.remaining_mut()), (0, isize::MAX as usize));
    buffer.extend_from_slice(&[7; 100_000]);
    assert_eq!(buffer.len(), 100_000);
    // Larger than the pool that such buffers share, and all at once.
    let many: Vec<Buffer> = (0..10).map(|at| Buffer::from(vec![at; 10 << 20])).collect();
    for (at, buffer) in many.iter().enumerate() {
        assert!(buffer.len() == 10 << 20 && buffer.iter().all(|&byte| usize::from(byte) == at));
    }
    let lent = RegisteredMemory::new(vec![0_u8; 8]);
    let mut lent = lent.lend(..).unwrap();
    assert!(matches!(lent.try_reserve(9), Err(PoolError::NoRoom { .. })));
    let taken = std::mem::take(&mut lent);
    assert_eq!((taken.capacity(), lent.capacity()), (8, 0));
}

#[test]
fn what_was_taken_from_the_front_is_room_again() {
    let pool = Pool::new(page_size());
    // What a larger page has more.
    let _rest = (page_size() > 4096).then(|| pool.get(page_size() - 4096).unwrap());
    let mut buffer = pool.get(4096).unwrap();
    for round in 0..100_u8 {
        buffer.resize(4096, round);
        buffer.advance(4000);
        buffer.extend_from_slice(&[round + 1; 200]);
        assert_eq!((buffer.len(), buffer[0], buffer[96]), (296, round, round + 1));
        buffer.advance(296);
        buffer.reserve(4096);
        assert_eq!((buffer.capacity(), buffer.as_ptr().addr() % 4096), (4096, 0));
    }
    // Little was taken, and the pool has no more: better moved than refused.
    buffer.resize(4096, 7);
    buffer.advance(100);
    buffer.extend_from_slice(&[8; 100]);
    assert!(buffer[..3996].iter().all(|&byte| byte == 7) && buffer[3996..] == [8; 100]);
    // Another part keeps its bytes.
    let front = buffer.split_to(2000);
    buffer.advance(2000);
    assert!(buffer.try_reserve(4000).is_err());
    assert!(front.iter().all(|&byte| byte == 7));
    drop(front);
    buffer.try_reserve(4000).unwrap();
    assert_eq!((buffer.len(), buffer[95]), (96, 8));
}

#[test]
#[should_panic(expected = "can't advance by 3 bytes: the buffer has 2")]
fn advancing_beyond_the_content_panics() {
    Buffer::from("ab").advance(3);
}
