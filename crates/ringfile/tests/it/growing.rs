//! Buffers that grow when more is appended than fits, `BufMut`, and memory outside a pool.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Random, Subscriber, TempPath, is_warning, must_end, page_size, ring_options};
use bytes::{Buf, BufMut, Bytes};
use ringfile::buf::PoolError;
use ringfile::{Buffer, Pool, RegisteredMemory, WhenFull, block_on};

const PAGE: usize = 4096;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

fn panics(run: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
}

#[test]
fn appended_data_stays_the_same_while_the_buffer_grows() {
    let mut rng = Random::new();
    for align in [512, PAGE, 16 << 10] {
        let pool = Pool::builder().capacity(64 << 20).alignment(align).build().unwrap();
        for _ in 0..50 {
            let mut model: Vec<u8> = Vec::new();
            let mut buffer = pool.get(rng.index(3 * PAGE)).unwrap();
            for _ in 0..20 {
                let most = 1 << rng.index(17);
                let n = rng.index(most);
                let data = rng.bytes(n);
                match rng.index(6) {
                    0 => buffer.extend_from_slice(&data),
                    1 => buffer.put_slice(&data),
                    2 => buffer.try_extend_from_slice(&data).unwrap(),
                    3 => buffer.put(Bytes::from(data.clone()).chain(&[][..])),
                    4 => BufMut::writer(&mut buffer).write_all(&data).unwrap(),
                    _ => {
                        // In chunks, as a serialiser does.
                        let mut rest = &data[..];
                        while !rest.is_empty() {
                            let chunk = buffer.chunk_mut();
                            let n = chunk.len().min(rest.len());
                            chunk[..n].copy_from_slice(&rest[..n]);
                            // SAFETY: just written.
                            unsafe { buffer.advance_mut(n) };
                            rest = &rest[n..];
                        }
                    }
                }
                model.extend_from_slice(&data);
                buffer.put_u64(0x0102_0304_0506_0708);
                model.put_u64(0x0102_0304_0506_0708);
                buffer.put_bytes(9, n % 5);
                model.put_bytes(9, n % 5);
                assert!(buffer.capacity() >= model.len());
                assert_eq!(buffer.as_ptr().addr() % align, 0);
            }
            assert_eq!(buffer[..], model[..]);
        }
        assert_eq!(pool.metrics().in_use, 0);
    }
}

#[test]
fn a_buffer_takes_the_rest_of_its_block_and_then_a_larger_one() {
    let pool = Pool::new(8 << 20);
    let mut buffer = pool.get(5000).unwrap();
    buffer.extend_from_slice(&pattern(5000));
    let start = buffer.as_ptr();
    buffer.reserve(1);
    assert_eq!((buffer.as_ptr(), buffer.capacity(), pool.metrics().growths), (start, 8192, 0), "the rest");
    buffer.try_reserve(3192).unwrap();
    assert_eq!((buffer.as_ptr(), pool.metrics().growths), (start, 0), "there is room");
    buffer.reserve(3193);
    assert_eq!((buffer.capacity(), pool.metrics().growths, pool.metrics().in_use), (16384, 1, 16384));
    assert_eq!(buffer[..], pattern(5000)[..]);
    buffer.resize(100_000, 1);
    assert_eq!((pool.metrics().growths, buffer[99_999]), (2, 1));
    // A thousand appends move it only a few times.
    for _ in 0..1000 {
        buffer.extend_from_slice(&[2; 1000]);
    }
    assert!(pool.metrics().growths <= 2 + 5, "{}", pool.metrics().growths);
    drop(buffer);
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn parts_of_a_buffer_grow_apart() {
    let pool = Pool::new(8 << 20);
    let mut whole = pool.get(2 * PAGE).unwrap();
    whole.extend_from_slice(&pattern(2 * PAGE));
    let mut first = whole.split_to(PAGE);
    let (first_start, second_start) = (first.as_ptr(), whole.as_ptr());
    first.put_slice(&[1; 10]);
    assert_ne!(first.as_ptr(), first_start, "what is behind it is the other part's");
    assert_eq!((&first[..PAGE], &first[PAGE..]), (&pattern(PAGE)[..], &[1; 10][..]));
    assert_eq!((whole.as_ptr(), &whole[..]), (second_start, &pattern(2 * PAGE)[PAGE..]));
    assert_eq!(pool.metrics().growths, 1);
    // Beside frozen bytes, and then beside nothing.
    let mut third = pool.get(8192).unwrap();
    third.resize(8192, 3);
    let frozen = third.split_off(PAGE).freeze();
    let start = third.as_ptr();
    third.put_u8(4);
    assert_ne!(third.as_ptr(), start);
    assert!(frozen.iter().all(|&byte| byte == 3));
    let mut fourth = pool.get(8192).unwrap();
    fourth.resize(8192, 4);
    drop(fourth.split_off(PAGE));
    let start = fourth.as_ptr();
    fourth.put_u8(5);
    assert_eq!(
        (fourth.as_ptr(), fourth.len(), fourth.capacity()),
        (start, PAGE + 1, 8192),
        "it is alone again"
    );
    // Once thawed, it has the rest of its block too.
    let start = frozen.as_ptr();
    let mut thawed = pool.thaw(frozen).unwrap();
    thawed.put_slice(&[6; 100]);
    assert_ne!(thawed.as_ptr(), start, "its block ends there");
    assert_eq!(thawed[PAGE..], [6; 100]);
    drop((first, whole, third, fourth, thawed));
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn a_buffer_that_may_not_grow_fails_with_a_reason_and_stays_as_it_is() {
    let fixed = Pool::builder().capacity(1 << 20).growing(false).build().unwrap();
    let gone = Pool::new(1 << 20);
    let memory = RegisteredMemory::new(vec![0; 512]);
    let mut raw = [0_u8; 512];
    // SAFETY: the memory outlives the buffer, which alone touches it.
    let foreign = unsafe { Buffer::from_raw(raw.as_mut_ptr(), 512) };
    let buffers = [fixed.get(512).unwrap(), gone.get(512).unwrap(), memory.lend(..).unwrap(), foreign];
    drop(gone);
    for mut buffer in buffers {
        buffer.clear();
        buffer.put_slice(&pattern(500));
        assert_eq!((buffer.remaining_mut(), buffer.chunk_mut().len()), (12, 12));
        let start = buffer.as_ptr();
        assert!(matches!(buffer.try_set_len(513), Err(PoolError::NoRoom { requested: 513, .. })));
        for result in
            [buffer.try_reserve(13), buffer.try_extend_from_slice(&[1; 13]), buffer.try_resize(513, 1)]
        {
            let error = result.unwrap_err();
            assert!(matches!(error, PoolError::NoRoom { requested: 513, capacity: 512, .. }), "{error:?}");
            assert!(error.to_string().contains("does not grow: its "), "{error}");
            assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::WriteZero);
        }
        assert!(panics(|| buffer.reserve(13)) && panics(|| buffer.extend_from_slice(&[1; 13])));
        assert!(panics(|| buffer.put_slice(&[1; 13])) && panics(|| buffer.put_bytes(1, 13)));
        assert!(panics(|| buffer.put(&[1; 13][..])) && panics(|| buffer.resize(513, 1)));
        assert_eq!((buffer.as_ptr(), buffer.capacity(), &buffer[..]), (start, 512, &pattern(500)[..]));
        assert_eq!(buffer.write(&[1; 20]).unwrap(), 12, "what fits");
        assert_eq!((buffer.remaining_mut(), buffer.chunk_mut().len()), (0, 0));
        assert!(panics(|| buffer.put_u8(1)));
        buffer.put_slice(&[]);
    }
}

#[test]
fn a_full_pool_is_an_error_and_growing_does_not_wait() {
    for when_full in [WhenFull::Error, WhenFull::Wait] {
        let pool = Pool::builder().capacity(64 << 10).when_full(when_full).build().unwrap();
        let mut buffer = pool.get(32 << 10).unwrap();
        assert_eq!(buffer.remaining_mut(), isize::MAX as usize);
        buffer.extend_from_slice(&pattern(32 << 10));
        let error = buffer.try_reserve(1 << 10).unwrap_err();
        assert!(
            matches!(error, PoolError::Full { .. }),
            "twice as much is not there, nor is a little more: {error}"
        );
        assert!(matches!(buffer.try_reserve(1 << 20), Err(PoolError::TooLarge { .. })));
        assert!(matches!(buffer.try_reserve(usize::MAX), Err(PoolError::TooLarge { .. })));
        assert!(panics(|| buffer.put_u8(1)));
        assert_eq!(buffer[..], pattern(32 << 10)[..]);
        let metrics = pool.metrics();
        assert_eq!((metrics.growths, metrics.failures), (0, 4));
        // If the pool cannot double the size, it may still have the size that is needed.
        let mut buffer = {
            drop(buffer);
            let mut buffer = pool.get(24 << 10).unwrap();
            buffer.extend_from_slice(&pattern(24 << 10));
            buffer
        };
        buffer.put_slice(&[1; 8 << 10]);
        assert_eq!((buffer.len(), pool.metrics().growths), (32 << 10, 1));
        assert_eq!(buffer[..24 << 10], pattern(24 << 10)[..]);
    }
}

#[test]
fn a_buffer_that_has_grown_is_written_and_read_like_any_other() {
    must_end("a_buffer_that_has_grown_is_written_and_read_like_any_other", || {
        let path = TempPath::on_disk("growing");
        let file = ring_options().read(true).write(true).create(true).open_blocking(&path).unwrap();
        let pool = Pool::new(8 << 20);
        let mut message = pool.get(512).unwrap();
        for number in 0..5000_u32 {
            message.put_u32_le(number);
        }
        let mut back = block_on(async {
            let message = file.write_at(message, 0).await.unwrap();
            let back = pool.get(message.len()).unwrap();
            drop(message);
            file.read_exact_at(back, 0).await.unwrap()
        });
        assert_eq!(back.len(), 20_000);
        assert!(back.chunks(4).zip(0..5000_u32).all(|(got, number)| got == number.to_le_bytes()));
        back.reserve(100_000);
        let frozen = back.freeze();
        assert_eq!((&frozen[..]).get_u32_le(), 0);
        assert_eq!(pool.thaw(frozen).unwrap().len(), 20_000);
    });
}

#[test]
fn threads_grow_parts_of_one_buffer_while_the_pool_goes() {
    for round in 0..50 {
        let pool = Pool::new(16 << 20);
        let mut whole = pool.get(8 * PAGE).unwrap();
        whole.resize(8 * PAGE, 7);
        let parts: Vec<_> = (0..8).map(|_| whole.split_to(PAGE)).collect();
        drop(whole);
        std::thread::scope(|scope| {
            for mut part in parts {
                scope.spawn(move || {
                    while part.len() < 20 * PAGE {
                        if part.try_extend_from_slice(&[7; 1000]).is_err() {
                            break;
                        }
                    }
                    assert!(part.iter().all(|&byte| byte == 7));
                });
            }
            if round % 2 == 0 {
                drop(pool);
            }
        });
    }
}

#[test]
fn memory_from_outside_is_warned_of_once_for_each_pool() {
    // A subscriber counts warnings, and takes memory from the pool while it receives one.
    static WARNINGS: AtomicUsize = AtomicUsize::new(0);
    static POOL: Mutex<Option<Pool>> = Mutex::new(None);
    let subscriber = Subscriber(|event: &tracing::Event<'_>| {
        if is_warning(event) {
            WARNINGS.fetch_add(1, Ordering::SeqCst);
            let pool = POOL.lock().unwrap().clone();
            drop(pool.map(|pool| (pool.metrics(), pool.get(PAGE))));
        }
    });
    let warnings = || WARNINGS.load(Ordering::SeqCst);
    let full = |limit| {
        let when_full = WhenFull::Outside { limit };
        Pool::builder().capacity(64 << 10).when_full(when_full).build().unwrap()
    };
    // On this thread alone: those of other tests do not get it.
    tracing::subscriber::with_default(subscriber, || {
        let first = full(1 << 20);
        *POOL.lock().unwrap() = Some(first.clone());
        let inside = first.get(64 << 10).unwrap();
        assert_eq!(warnings(), 0);
        let outside: Vec<_> = (0..10).map(|_| first.get(PAGE).unwrap()).collect();
        assert_eq!(
            (warnings(), first.metrics().outside_allocations),
            (1, 11),
            "one of the allocations is the listener's"
        );
        drop((inside, outside));
        // Waiting: by a future, and by growing.
        let second = full(1 << 20);
        let _inside = second.get(64 << 10).unwrap();
        drop(futures::executor::block_on(second.get_async(PAGE)).unwrap());
        assert_eq!(warnings(), 2);
        let third = full(1 << 20);
        let mut buffer = third.get(64 << 10).unwrap();
        buffer.resize((64 << 10) + 1, 0);
        assert_eq!((warnings(), third.metrics().growths, third.metrics().in_use), (3, 1, 0));
        // No warning for memory that is meant to be outside.
        let unpooled = Pool::builder().capacity(1 << 20).pooling(false).build().unwrap();
        drop(unpooled.get(PAGE).unwrap());
        assert_eq!(warnings(), 3);
        *POOL.lock().unwrap() = None;
    });
}

#[test]
fn without_pooling_each_buffer_is_mapped_for_itself_up_to_the_limits() {
    let page = page_size();
    let pool = Pool::builder().capacity(16 * page).pooling(false).when_full(WhenFull::Wait).build().unwrap();
    let buffers: Vec<_> = (0..16).map(|_| pool.get(page).unwrap()).collect();
    let metrics = pool.metrics();
    assert_eq!((metrics.capacity, metrics.reserved, metrics.outside_bytes), (0, 0, 16 * page));
    assert!(matches!(pool.get(1), Err(PoolError::Full { .. })));
    assert!(buffers.iter().all(|buffer| buffer.as_ptr().addr() % 4096 == 0));
    drop(buffers);
    assert_eq!((pool.metrics().outside_bytes, pool.metrics().outside_allocations), (0, 16));
    let mut buffer = pool.get(100).unwrap();
    buffer.extend_from_slice(&pattern(20_000));
    assert_eq!((&buffer[..], pool.metrics().growths), (&pattern(20_000)[..], 1));
    let outside = WhenFull::Outside { limit: 64 << 10 };
    let both = Pool::builder().capacity(64 << 10).pooling(false).when_full(outside).build().unwrap();
    assert_eq!(both.get(128 << 10).unwrap().capacity(), 128 << 10);
    assert!(Pool::builder().capacity(100).pooling(false).build().is_err());
}
