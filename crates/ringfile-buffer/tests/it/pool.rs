//! The pool as a user sees it: its hard limit, how memory returns to it, waiting, splitting, freezing and thawing, from
//! many threads.

use std::collections::HashMap;
use std::future::Future;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use ringfile_buffer::internal::page_size;
use ringfile_buffer::{Buffer, HugePages, Pool, PoolError, RegisteredMemory, StableMemory, WhenFull};

/// A random generator (xorshift64*), seeded by `RINGFILE_TEST_SEED` or the time; a failing test shows the seed.
struct Rng(u64);

impl Rng {
    fn new() -> Self {
        let time =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = std::env::var("RINGFILE_TEST_SEED").map_or(time, |text| text.parse().unwrap());
        println!("RINGFILE_TEST_SEED={seed}");
        Rng(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns another generator, for a thread.
    fn split(&mut self) -> Rng {
        Rng(self.next() | 1)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Counts its wake-ups.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Bell {
    fn rung(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn poll<F: Future + Unpin>(future: &mut F, bell: &Arc<Bell>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(bell));
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// Takes buffers of `n` bytes until the pool refuses.
fn take_all(pool: &Pool, n: usize) -> Vec<Buffer> {
    std::iter::from_fn(|| pool.get(n).ok()).collect()
}

#[test]
fn the_hard_limit_holds_exactly_with_racing_threads() {
    for (n, threads) in [(4096_usize, 16), (512, 8), (100, 4), (2048, 16), (16 << 10, 16)] {
        let size = n.next_power_of_two().max(512);
        let pool = Pool::new(1 << 20);
        for _round in 0..20 {
            let start = Barrier::new(threads);
            let taken: Vec<Buffer> = thread::scope(|scope| {
                let one = || {
                    start.wait();
                    take_all(&pool, n)
                };
                let all: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
                all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(taken.len(), (1 << 20) / size, "buffers of {n}");
            assert_eq!(pool.metrics().in_use, 1 << 20);
            no_overlaps(&taken);
            // Other threads drop them, so that the next round finds them in all shards.
            thread::scope(|scope| {
                let mut taken = taken;
                while !taken.is_empty() {
                    let some = taken.split_off(taken.len().saturating_sub(40));
                    scope.spawn(move || drop(some));
                }
            });
            assert_eq!(pool.metrics().in_use, 0);
        }
        assert_eq!(pool.metrics().reserved_high_water, 1 << 20);
    }
}

fn no_overlaps(buffers: &[Buffer]) {
    let mut spans: Vec<_> =
        buffers.iter().map(|buffer| (buffer.as_ptr() as usize, buffer.capacity())).collect();
    spans.sort_unstable();
    for pair in spans.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?} overlap");
    }
}

#[test]
fn f26_the_limit_holds_and_waiters_are_served_in_turn() {
    let pool = Pool::builder().capacity(64 << 10).when_full(WhenFull::Wait).build().unwrap();
    let mut all = take_all_waiting(&pool, 4096, 16);
    let bells: Vec<_> = (0..6).map(|_| Arc::new(Bell::default())).collect();
    let mut waiting: Vec<_> = (0..6).map(|_| Some(pool.get_async(4096))).collect();
    for (future, bell) in waiting.iter_mut().zip(&bells) {
        assert!(poll(future.as_mut().unwrap(), bell).is_pending());
    }
    assert_eq!(pool.metrics().waits, 6);

    // A waiter is dropped: its turn goes to the next one.
    waiting[0] = None;
    all.pop();
    assert_eq!(bells.iter().map(|bell| bell.rung()).collect::<Vec<_>>(), [0, 1, 0, 0, 0, 0]);
    assert!(poll(waiting[2].as_mut().unwrap(), &bells[2]).is_pending(), "not its turn");

    // A waiter that was served is dropped before it is polled: its buffer goes to the next one.
    waiting[1] = None;
    assert_eq!(bells.iter().map(|bell| bell.rung()).collect::<Vec<_>>(), [0, 1, 1, 0, 0, 0]);
    let Poll::Ready(Ok(second)) = poll(waiting[2].as_mut().unwrap(), &bells[2]) else { panic!("its turn") };
    waiting[2] = None;

    // A thread that blocks queues behind earlier waiters, and later ones behind it.
    thread::scope(|scope| {
        let blocked = scope.spawn(|| pool.get(4096).unwrap());
        while pool.metrics().waits < 7 {
            thread::yield_now();
        }
        let late = Arc::new(Bell::default());
        let mut later = pool.get_async(4096);
        assert!(poll(&mut later, &late).is_pending());
        let mut served = Vec::new();
        for at in 3..6 {
            all.pop();
            assert_eq!(bells[at].rung(), 1, "waiter {at}");
            let Poll::Ready(Ok(buffer)) = poll(waiting[at].as_mut().unwrap(), &bells[at]) else {
                panic!("its turn")
            };
            served.push(buffer);
        }
        assert_eq!(late.rung(), 0);
        drop(second);
        let got = blocked.join().unwrap();
        assert_eq!(late.rung(), 0, "the buffer went to the thread");
        drop(got);
        assert_eq!(late.rung(), 1);
        assert!(poll(&mut later, &late).is_ready());
    });
    drop((all, waiting));
    assert_eq!(pool.metrics().in_use, 0);
}

/// Takes all memory as `take_all` does, from a pool that would wait at the end.
fn take_all_waiting(pool: &Pool, n: usize, count: usize) -> Vec<Buffer> {
    (0..count).map(|_| pool.get(n).unwrap()).collect()
}

#[test]
fn f26_no_waiter_is_lost_when_futures_are_dropped_at_any_time() {
    let pool = Pool::builder().capacity(32 << 10).when_full(WhenFull::Wait).build().unwrap();
    let in_use = AtomicUsize::new(0);
    let mut seeds = Rng::new();
    thread::scope(|scope| {
        for _ in 0..8 {
            let (pool, in_use, mut rng) = (&pool, &in_use, seeds.split());
            scope.spawn(move || {
                let bell = Arc::new(Bell::default());
                for _ in 0..4000 {
                    let n = [4096, 4096, 8192, 512, 16384][rng.below(5)];
                    let buffer = match rng.below(4) {
                        0 => pool.get(n),
                        1 => {
                            // Dropped at once, or after a while.
                            let mut future = pool.get_async(n);
                            let answer = poll(&mut future, &bell);
                            if rng.below(2) == 0 {
                                thread::yield_now();
                            }
                            match answer {
                                Poll::Ready(answer) => answer,
                                Poll::Pending => continue,
                            }
                        }
                        _ => block_on(pool.get_async(n)),
                    };
                    let buffer = buffer.unwrap();
                    assert!(in_use.fetch_add(n, Ordering::SeqCst) + n <= 32 << 10, "over the limit");
                    if rng.below(3) == 0 {
                        thread::yield_now();
                    }
                    in_use.fetch_sub(n, Ordering::SeqCst);
                    drop(buffer);
                }
            });
        }
    });
    let metrics = pool.metrics();
    assert_eq!(metrics.in_use, 0);
    assert!(metrics.waits > 0, "no request had to wait, so the test shows nothing");
    assert!(metrics.classes.iter().all(|class| class.gets == class.returns && class.in_use == 0));
    // Nobody is left in the queue, so `get` needs no lock again.
    drop(pool.get(4096).unwrap());
    let misses = pool.metrics().misses;
    drop(pool.get(4096).unwrap());
    assert_eq!(pool.metrics().misses, misses);
}

#[test]
fn nobody_overtakes_a_waiter() {
    let pool = Pool::new(16 << 10);
    let mut all = take_all(&pool, 4096);
    let bell = Arc::new(Bell::default());
    let mut large = pool.get_async(12 << 10);
    assert!(poll(&mut large, &bell).is_pending());
    let mut small = pool.get_async(512);
    assert!(poll(&mut small, &bell).is_pending());
    all.pop();
    assert!(matches!(pool.get(4096), Err(PoolError::Full { .. })), "a get that does not wait overtakes");
    assert!(poll(&mut small, &bell).is_pending(), "a later and smaller one overtakes");
    assert!(poll(&mut large, &bell).is_pending());
    all.clear();
    assert_eq!(bell.rung(), 2);
    let Poll::Ready(Ok(large)) = poll(&mut large, &bell) else { panic!("its turn") };
    assert_eq!(large.capacity(), 12 << 10);
    assert!(poll(&mut small, &bell).is_ready());
}

#[test]
fn a_leaked_future_does_not_hold_up_the_end_of_the_pool() {
    let page = page_size();
    let pool = Pool::new(page);
    let only = pool.get(page).unwrap();
    let bell = Arc::new(Bell::default());
    let mut future = pool.get_async(page);
    assert!(poll(&mut future, &bell).is_pending());
    std::mem::forget(future);
    drop(pool);
    assert_eq!(Arc::strong_count(&bell), 1, "its place in the queue is gone");
    drop(only);
    assert_eq!(bell.rung(), 0);
}

/// Returns whether memory of a [`lone_pool`] is mapped at the address: such memory is not copied when the process
/// forks. Threads of other tests may map something there as soon as it is free.
fn is_mapped(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_there = false;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let parse = |text| usize::from_str_radix(text, 16);
        if let Some((start, end)) = range
            && let (Ok(start), Ok(end)) = (parse(start), parse(end))
        {
            is_there = (start..end).contains(&address);
        }
        if is_there && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.split(' ').any(|flag| flag == "wf");
        }
    }
    false
}

/// Makes a pool whose memory the kernel refuses to merge with adjacent mappings.
fn lone_pool() -> Pool {
    Pool::builder().capacity(2 << 20).dont_fork(true).build().unwrap()
}

#[test]
fn f27_bytes_outlive_the_pool_and_its_memory_is_freed_once() {
    let pool = lone_pool();
    let mut buffer = pool.get(10_000).unwrap();
    for at in 0..10_000 {
        buffer.extend_from_slice(&[at as u8]);
    }
    let address = buffer.as_ptr() as usize;
    assert!(is_mapped(address));
    let bytes = buffer.freeze();
    assert_eq!(bytes.as_ptr() as usize, address, "not copied");
    drop(pool);
    let clones: Vec<_> = (0..8).map(|at| bytes.slice(at * 1000..)).collect();
    drop(bytes);
    thread::scope(|scope| {
        for (at, clone) in clones.into_iter().enumerate() {
            scope.spawn(move || {
                for (offset, &byte) in clone.iter().enumerate() {
                    assert_eq!(byte, (at * 1000 + offset) as u8);
                }
            });
        }
    });
    // Another test's thread may have mapped something there since, so this checks more than once before failing.
    let gone = (0..50).any(|_| {
        thread::sleep(Duration::from_millis(2));
        !is_mapped(address)
    });
    assert!(gone, "the memory is still mapped after the last clone is gone");
}

#[test]
fn f27_bytes_dropped_on_another_thread_come_back_to_the_pool() {
    let pool = Pool::new(4096);
    for round in 0..1000_u32 {
        let mut buffer = pool.get(page_size()).unwrap();
        buffer.extend_from_slice(&round.to_le_bytes());
        let bytes = buffer.freeze();
        let clone = bytes.clone();
        assert!(pool.get(1).is_err(), "the memory is not free while bytes of it are there");
        let other = thread::spawn(move || assert_eq!(clone[..], round.to_le_bytes()));
        drop(bytes);
        other.join().unwrap();
    }
    let class = pool.metrics().classes[0];
    assert_eq!((class.gets, class.returns, class.in_use), (1000, 1000, 0));
}

#[test]
fn many_threads_get_split_freeze_and_thaw_and_no_two_live_buffers_overlap() {
    const THREADS: usize = 6;
    /// A live piece: each byte of it holds its own stamp.
    enum Piece {
        Buffer(Buffer, u8),
        Bytes(Bytes, u8),
    }
    fn check(piece: &Piece) {
        let (content, stamp) = match piece {
            Piece::Buffer(buffer, stamp) => (&buffer[..], *stamp),
            Piece::Bytes(bytes, stamp) => (&bytes[..], *stamp),
        };
        assert!(content.iter().all(|byte| *byte == stamp), "somebody else wrote to live memory");
    }
    let pool = Pool::new(3 << 20);
    let exchange = Mutex::new(Vec::new());
    let (mut seeds, thawed, refused) = (Rng::new(), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (pool, exchange, thawed, refused) = (&pool, &exchange, &thawed, &refused);
            let mut rng = seeds.split();
            scope.spawn(move || {
                let mut live = Vec::new();
                for _ in 0..20_000 {
                    if live.len() < 30 {
                        let most = [300, 3000, 5000, 70_000][rng.below(4)];
                        let n = 1 + rng.below(most);
                        if let Ok(mut buffer) = pool.get(n) {
                            let stamp = rng.next() as u8;
                            buffer.resize(n, stamp);
                            live.push(Piece::Buffer(buffer, stamp));
                        }
                    }
                    if live.is_empty() {
                        continue;
                    }
                    let at = rng.below(live.len());
                    let piece = live.swap_remove(at);
                    check(&piece);
                    match (piece, rng.below(5)) {
                        (Piece::Buffer(mut buffer, stamp), 0) => {
                            let at = rng.below(buffer.capacity() + 1);
                            let mut rest = buffer.split_off(at);
                            let other = rng.next() as u8;
                            rest.fill(other);
                            live.push(Piece::Buffer(buffer, stamp));
                            live.push(Piece::Buffer(rest, other));
                        }
                        (Piece::Buffer(buffer, stamp), 1 | 2) => {
                            let bytes = buffer.freeze();
                            if rng.below(2) == 0 {
                                live.push(Piece::Bytes(bytes.slice(bytes.len() / 2..), stamp));
                            }
                            live.push(Piece::Bytes(bytes, stamp));
                        }
                        (Piece::Bytes(bytes, stamp), 0..=2) => match pool.thaw(bytes) {
                            Ok(mut buffer) => {
                                thawed.fetch_add(1, Ordering::Relaxed);
                                assert!(buffer.iter().all(|byte| *byte == stamp));
                                // The memory is exclusive again: writing to it shows whether a clone still exists.
                                let stamp = stamp.wrapping_add(1);
                                let capacity = buffer.capacity();
                                buffer.clear();
                                buffer.resize(capacity, stamp);
                                live.push(Piece::Buffer(buffer, stamp));
                            }
                            Err(bytes) => {
                                refused.fetch_add(1, Ordering::Relaxed);
                                live.push(Piece::Bytes(bytes, stamp));
                            }
                        },
                        (piece, 3) => {
                            let mut exchange = exchange.lock().unwrap();
                            exchange.push(piece);
                            if exchange.len() > 20 {
                                let at = rng.below(exchange.len());
                                let taken = exchange.swap_remove(at);
                                live.push(taken);
                            }
                        }
                        (piece, _) => drop(piece),
                    }
                }
                live.iter().for_each(check);
            });
        }
    });
    exchange.lock().unwrap().iter().for_each(check);
    exchange.lock().unwrap().clear();
    assert!(thawed.into_inner() > 100 && refused.into_inner() > 100);
    let metrics = pool.metrics();
    assert_eq!(metrics.in_use, 0);
    assert!(metrics.classes.iter().all(|class| class.gets == class.returns && class.in_use == 0));
    assert_eq!(pool.get(2 << 20).unwrap().capacity(), 2 << 20, "all of it is one piece again");
}

#[test]
fn two_threads_thaw_clones_of_the_same_bytes() {
    let pool = Pool::new(1 << 20);
    let mut successes = 0;
    for round in 0..3000_u32 {
        let mut buffer = pool.get(8192).unwrap();
        let mut neighbour = buffer.split_off(4096);
        buffer.extend_from_slice(&round.to_le_bytes());
        neighbour.extend_from_slice(b"neighbour");
        let first = buffer.freeze();
        let second = first.clone();
        let start = Barrier::new(2);
        let thaw = |bytes| {
            start.wait();
            let result = pool.thaw(bytes);
            match &result {
                Ok(buffer) => assert_eq!(buffer[..], round.to_le_bytes()),
                Err(bytes) => assert_eq!(bytes[..], round.to_le_bytes()),
            }
            result
        };
        let (one, two) = thread::scope(|scope| {
            let other = scope.spawn(|| thaw(second));
            (thaw(first), other.join().unwrap())
        });
        assert!(one.is_err() || two.is_err(), "two buffers over the same bytes");
        successes += usize::from(one.is_ok() || two.is_ok());
        assert_eq!(neighbour[..], *b"neighbour");
        drop((one, two));
    }
    println!("{successes} of 3000 rounds had a winner");
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn only_the_last_bytes_thaw_and_others_come_back_unchanged() {
    let pool = Pool::new(1 << 20);
    let mut buffer = pool.get(8192).unwrap();
    buffer.resize(8192, 5);
    let address = buffer.as_ptr() as usize;
    let other_part = buffer.split_off(4096);

    // The last view of its part: other parts of the same memory do not matter, and the spare capacity is back.
    buffer.truncate(100);
    let bytes = buffer.freeze();
    let buffer = pool.thaw(bytes).unwrap();
    assert_eq!((buffer.as_ptr() as usize, buffer.len(), buffer.capacity()), (address, 100, 4096));

    // A slice: the buffer starts where it does.
    let bytes = buffer.freeze().slice(10..20);
    let buffer = pool.thaw(bytes).unwrap();
    assert_eq!((buffer.as_ptr() as usize, buffer.len(), buffer.capacity()), (address + 10, 10, 4086));

    // Not the last view: thawing returns the same bytes, in place, until all other views are gone.
    let bytes = buffer.freeze();
    let clone = bytes.clone();
    let bytes = pool.thaw(bytes).unwrap_err();
    assert_eq!((bytes.as_ptr() as usize, &bytes[..]), (address + 10, &[5; 10][..]));
    let clone = pool.thaw(clone).unwrap_err();
    drop(clone);
    let buffer = pool.thaw(bytes).unwrap();
    drop(other_part);
    assert_eq!(&buffer[..], &[5; 10]);
    drop(buffer);
    assert_eq!(pool.metrics().in_use, 0);

    // Not from this pool.
    for foreign in [Bytes::new(), Bytes::from_static(b"static"), Bytes::from(vec![1, 2]), {
        let mut other = Pool::new(4096).get(10).unwrap();
        other.extend_from_slice(b"foreign");
        other.freeze()
    }] {
        let before = (foreign.as_ptr(), foreign.to_vec());
        let after = pool.thaw(foreign).unwrap_err();
        assert_eq!((after.as_ptr(), after.to_vec()), before);
    }
}

#[test]
fn an_owner_that_panics_when_dropped_leaves_thaw_usable() {
    struct Panics(Bytes);
    impl AsRef<[u8]> for Panics {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    let pool = Pool::new(1 << 20);
    let frozen = |content: &[u8]| {
        let mut buffer = pool.get(content.len()).unwrap();
        buffer.extend_from_slice(content);
        buffer.freeze()
    };
    let outer = Bytes::from_owner(Panics(frozen(b"inner")));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.thaw(outer)));
    assert!(panicked.is_err());
    assert_eq!(&pool.thaw(frozen(b"next")).unwrap()[..], b"next");
    assert_eq!(pool.metrics().in_use, 0);
}

#[test]
fn mixed_sizes_become_one_piece_again() {
    let pool = Pool::new(8 << 20);
    for n in [4096, 512, 20_000, 100_000, 2048, 1 << 20] {
        let mut all = take_all(&pool, n);
        assert!(!all.is_empty());
        // In an order that leaves gaps first.
        let mut rng = Rng::new();
        while !all.is_empty() {
            let at = rng.below(all.len());
            drop(all.swap_remove(at));
        }
        let whole = pool.get(8 << 20).unwrap();
        assert_eq!(whole.capacity(), 8 << 20);
        assert!(pool.get(1).is_err());
    }
    assert_eq!(pool.metrics().reserved_high_water, 8 << 20, "never above the capacity");
}

#[test]
fn a_request_that_only_fits_without_its_class_is_served() {
    // 50 MiB take a block of 56 MiB.
    let pool = Pool::new(50 << 20);
    let buffer = pool.get(50 << 20).unwrap();
    assert_eq!((buffer.capacity(), pool.metrics().in_use), (50 << 20, 50 << 20));
    drop(buffer);
    let class = pool.metrics().classes[0];
    assert_eq!((class.size, class.gets, class.returns, class.in_use), (56 << 20, 1, 1, 0));
    assert!(pool.get((50 << 20) - 5000).is_ok());
}

#[test]
fn the_first_regions_are_small_and_a_large_request_has_one_of_its_own() {
    let pool = Pool::new(1 << 30);
    let mut held = vec![pool.get(4096).unwrap()];
    assert_eq!((pool.metrics().regions, pool.metrics().reserved), (1, 2 << 20));
    held.push(pool.get(2 << 20).unwrap());
    assert_eq!((pool.metrics().regions, pool.metrics().reserved), (2, 6 << 20));
    held.push(pool.get(512 << 20).unwrap());
    assert_eq!((pool.metrics().regions, pool.metrics().reserved), (3, 518 << 20));
    held.clear();
    // All regions are dissolved for one buffer that takes everything.
    assert_eq!(pool.get(1 << 30).unwrap().capacity(), 1 << 30);
    assert_eq!((pool.metrics().regions, pool.metrics().reserved), (1, 1 << 30));
}

#[test]
fn buffers_are_aligned_and_have_exactly_the_requested_capacity() {
    let mut rng = Rng::new();
    for alignment in [None, Some(512), Some(4096), Some(64 << 10)] {
        let builder = Pool::builder().capacity(32 << 20);
        let pool = alignment.map_or(builder.clone(), |bytes| builder.alignment(bytes)).build().unwrap();
        let mut held = Vec::new();
        for _ in 0..500 {
            let most = 2 << rng.below(19);
            let n = rng.below(most);
            let Ok(buffer) = pool.get(n) else {
                held.clear();
                continue;
            };
            let least =
                alignment.unwrap_or(512).max(if n > 2048 { 4096 } else { n.next_power_of_two().max(512) });
            assert_eq!(buffer.as_ptr() as usize % least, 0, "{n} aligned to {least}");
            assert_eq!((buffer.len(), buffer.capacity()), (0, n));
            held.push(buffer);
        }
        no_overlaps(&held);
    }
}

#[test]
fn memory_outside_the_pool_has_a_hard_limit_too() {
    let page = page_size();
    let when_full = WhenFull::Outside { limit: 16 * page };
    let pool = Pool::builder().capacity(16 * page).when_full(when_full).build().unwrap();
    let taken: Vec<Buffer> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| take_all(&pool, page))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(taken.len(), 32);
    no_overlaps(&taken);
    let metrics = pool.metrics();
    assert_eq!(
        (metrics.in_use, metrics.outside_bytes, metrics.outside_allocations),
        (16 * page, 16 * page, 16)
    );
    assert_eq!(metrics.failures, 8, "one for each thread");
    let text = pool.get(page).unwrap_err().to_string();
    assert!(text.contains(&format!("{} bytes are in use", 16 * page)) && text.contains("outside"), "{text}");
    // A waiter gets the first memory that returns, and all of it returns, even as bytes that outlive the pool.
    let bell = Arc::new(Bell::default());
    let mut future = pool.get_async(page);
    assert!(poll(&mut future, &bell).is_pending());
    let mut frozen = Vec::new();
    for mut buffer in taken {
        buffer.resize(page, 9);
        frozen.push(buffer.freeze());
    }
    drop(frozen.pop());
    assert!(poll(&mut future, &bell).is_ready());
    drop(future);
    // Chance decides which thread got the last memory of the pool itself, so the remaining buffer may be inside or
    // outside the pool.
    let last = frozen.pop().unwrap();
    drop(frozen);
    let left = pool.metrics();
    assert_eq!(left.in_use + left.outside_bytes, page);
    let mut last = pool.thaw(last).unwrap();
    drop(pool);
    last.fill(1);
}

#[test]
fn requests_that_can_never_be_met_fail_at_once() {
    for when_full in [WhenFull::Error, WhenFull::Wait, WhenFull::Outside { limit: 8192 }] {
        let pool = Pool::builder().capacity(64 << 10).when_full(when_full).build().unwrap();
        for n in [(64 << 10) + 1, 1 << 40, usize::MAX] {
            assert!(matches!(pool.get(n), Err(PoolError::TooLarge { requested, .. }) if requested == n));
            let error = block_on(pool.get_async(n)).unwrap_err();
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
        }
    }
    assert!(Pool::new(0).get(1).is_err());
    // A buffer that does not fit into the pool may fit outside.
    let pool = Pool::builder()
        .capacity(page_size())
        .when_full(WhenFull::Outside { limit: 1 << 20 })
        .build()
        .unwrap();
    assert_eq!(pool.get(1 << 20).unwrap().capacity(), 1 << 20);
}

#[test]
fn a_capacity_below_a_page_is_rounded_up_to_one() {
    for capacity in [1, 512, page_size() - 1] {
        let pool = Pool::new(capacity);
        assert_eq!(pool.metrics().capacity, page_size());
        assert_eq!(pool.get(page_size()).unwrap().capacity(), page_size());
    }
    assert_eq!(Pool::new(page_size() + 1).metrics().capacity, page_size());
}

#[test]
fn wrong_settings_are_refused_with_the_allowed_values() {
    for (builder, says) in [
        (Pool::builder().alignment(0), "power of two"),
        (Pool::builder().alignment(1000), "power of two"),
        (Pool::builder().alignment(2 << 30), "1 GiB"),
        (Pool::builder().capacity(page_size() - 1), &format!("at least {}", page_size())),
        (Pool::builder().capacity(64 << 10).alignment(1 << 20), "at least 1048576"),
    ] {
        let error = builder.build().unwrap_err();
        assert!(matches!(error, PoolError::Invalid { .. }));
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn required_huge_pages_are_there_or_an_error_says_how_to_get_them() {
    let free = std::fs::read_to_string("/proc/meminfo").unwrap();
    let free = free
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:"))
        .map_or(0, |n| n.trim().parse().unwrap());
    // More than the system has, even if some are reserved.
    let capacity = (free + 1) << 30;
    let built = Pool::builder().capacity(capacity).huge_pages(HugePages::Require).build();
    let mut held = Vec::new();
    let mut take_until_refused = |pool: Pool| {
        loop {
            match pool.get(64 << 20) {
                Ok(buffer) => held.push(buffer),
                Err(error) => return error,
            }
        }
    };
    let error = built.map_or_else(|error| error, &mut take_until_refused);
    assert!(matches!(error, PoolError::NoHugePages { .. }), "{error:?}");
    assert!(error.to_string().contains("vm.nr_hugepages"), "{error}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::OutOfMemory);
}

#[test]
fn new_memory_is_zero_and_every_setting_of_huge_pages_and_forks_works() {
    for huge_pages in [HugePages::Auto, HugePages::Never] {
        for dont_fork in [false, true] {
            let builder = Pool::builder().capacity(8 << 20).huge_pages(huge_pages).dont_fork(dont_fork);
            let pool = builder.build().unwrap();
            let mut buffer = pool.get(3 << 20).unwrap();
            buffer.set_len(3 << 20);
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn a_buffer_that_may_not_grow_keeps_to_its_capacity() {
    let pool = Pool::builder().capacity(1 << 20).growing(false).build().unwrap();
    let mut buffer = pool.get(10).unwrap();
    assert_eq!(buffer.write(b"0123456789abc").unwrap(), 10);
    assert_eq!(buffer.write(b"x").unwrap(), 0);
    assert_eq!(buffer.write_all(b"x").unwrap_err().kind(), io::ErrorKind::WriteZero);
    assert_eq!(&buffer[..], b"0123456789");
    for wrong in [
        |buffer: &mut Buffer| buffer.extend_from_slice(b"x"),
        |buffer: &mut Buffer| buffer.resize(11, 0),
        |buffer: &mut Buffer| buffer.set_len(11),
        |buffer: &mut Buffer| drop(buffer.split_off(11)),
        |buffer: &mut Buffer| drop(buffer.split_to(11)),
    ] {
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wrong(&mut buffer)));
        assert!(panicked.is_err());
        assert_eq!(&buffer[..], b"0123456789", "unchanged");
    }
    buffer.truncate(3);
    buffer.truncate(7);
    assert_eq!(&buffer[..], b"012");
    buffer.resize(5, b'!');
    assert_eq!(&buffer[..], b"012!!");
    let tail = buffer.split_off(4);
    assert_eq!((&buffer[..], buffer.capacity()), (&b"012!"[..], 4));
    assert_eq!((&tail[..], tail.capacity()), (&b"!"[..], 6));
    drop(buffer);
    assert_eq!(pool.metrics().in_use, 512, "a part keeps the memory");
    drop(tail);
    assert_eq!(pool.metrics().in_use, 0);
    assert!(pool.get(0).unwrap().freeze().is_empty());
    assert_eq!(pool.metrics().in_use, 0, "empty bytes keep nothing");
}

#[test]
fn a_get_of_a_size_that_was_used_takes_no_lock() {
    let pool = Pool::new(8 << 20);
    let classes = [512, 4096, 5000, 64 << 10, 1 << 20];
    for n in classes {
        drop(pool.get(n).unwrap());
    }
    let misses = pool.metrics().misses;
    for _ in 0..1000 {
        for n in classes {
            drop(pool.get(n).unwrap());
        }
    }
    // Another thread steals memory that this one has cached.
    thread::scope(|scope| scope.spawn(|| drop(pool.get(4096).unwrap())).join().unwrap());
    assert_eq!(pool.metrics().misses, misses);
    let by_size: HashMap<_, _> =
        pool.metrics().classes.iter().map(|class| (class.size, class.gets)).collect();
    assert_eq!(
        by_size,
        HashMap::from([(512, 1001), (4096, 1002), (8192, 1001), (64 << 10, 1001), (1 << 20, 1001)])
    );
}

/// Memory that reports when it is dropped.
struct Owner(Vec<u8>, Arc<AtomicBool>);

// SAFETY: a vector's bytes stay where they are, and nothing else touches them.
unsafe impl StableMemory for Owner {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
fn lent_ranges_never_overlap_and_the_owner_goes_last() {
    const LEN: usize = 64 << 10;
    let dropped = Arc::new(AtomicBool::new(false));
    let memory = RegisteredMemory::new(Owner((0..LEN).map(|at| at as u8).collect(), Arc::clone(&dropped)));
    let mut rng = Rng::new();
    let mut lent: Vec<(usize, usize, Buffer)> = Vec::new();
    for _ in 0..20_000 {
        let start = rng.below(LEN);
        let end = start + 1 + rng.below((LEN - start).min(2000));
        let free = lent.iter().all(|&(from, to, _)| end <= from || to <= start);
        match memory.lend(start..end) {
            Ok(buffer) => {
                assert!(free, "{start}..{end} was lent already");
                assert!(
                    buffer.iter().enumerate().all(|(at, byte)| *byte == (start + at) as u8),
                    "its content"
                );
                lent.push((start, end, buffer));
            }
            Err(error) => {
                assert!(!free && matches!(error, PoolError::Lent { .. }), "{error}");
                let at = rng.below(lent.len());
                drop(lent.swap_remove(at));
            }
        }
        assert_eq!(memory.lent(), lent.iter().map(|(start, end, _)| end - start).sum::<usize>());
    }
    for wrong in [0..0, LEN..LEN + 1, 5..LEN + 1, usize::MAX..usize::MAX] {
        assert!(matches!(memory.lend(wrong), Err(PoolError::Invalid { .. })));
    }
    assert!(memory.lend(..=usize::MAX).is_err());
    lent.clear();
    // A part, and bytes, keep the range and the owner.
    let mut page = memory.lend(0..8192).unwrap();
    let part = page.split_off(4096);
    drop(page);
    assert!(memory.lend(0..1).is_err(), "a part keeps the whole range");
    let bytes = part.freeze();
    drop(memory);
    assert!(!dropped.load(Ordering::SeqCst));
    thread::spawn(move || assert_eq!(bytes[0], 4096_usize as u8)).join().unwrap();
    assert!(dropped.load(Ordering::SeqCst), "the owner is dropped with the last buffer");
}

#[test]
fn ranges_are_lent_to_many_threads() {
    let memory = RegisteredMemory::new(vec![0_u8; 64 << 10].into_boxed_slice());
    thread::scope(|scope| {
        for _ in 0..4 {
            let memory = memory.clone();
            scope.spawn(move || {
                let mut rng = Rng::new();
                for _ in 0..5000 {
                    let page = rng.below(16);
                    if let Ok(mut buffer) = memory.lend(page * 4096..(page + 1) * 4096) {
                        let count = buffer[0].wrapping_add(1);
                        buffer.fill(count);
                        assert!(buffer.iter().all(|byte| *byte == count));
                    }
                }
            });
        }
    });
    assert_eq!(memory.lent(), 0);
}

#[test]
fn pools_end_in_any_order_of_threads() {
    for _ in 0..300 {
        let pool = Pool::new(1 << 20);
        let (send, receive) = mpsc::channel::<Buffer>();
        let drops = thread::spawn(move || receive.into_iter().for_each(drop));
        let clone = pool.clone();
        let other = thread::spawn(move || drop(take_all(&clone, 60_000)));
        for _ in 0..20 {
            if let Ok(buffer) = pool.get(4096) {
                send.send(buffer).unwrap();
            }
        }
        drop(pool);
        drop(send);
        drops.join().unwrap();
        other.join().unwrap();
    }
}

/// Returns whether a forked child that reads the buffer ends normally.
fn child_can_read(buffer: &Buffer, expected: u8) -> bool {
    // SAFETY: the child calls only what may be called after a fork of many threads: it reads memory and exits.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let same = buffer.iter().all(|byte| *byte == expected);
            libc::_exit(if same { 0 } else { 1 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

#[test]
fn f22_pool_memory_stays_readable_in_a_forked_child() {
    let pool = Pool::new(1 << 20);
    let mut buffer = pool.get(10_000).unwrap();
    buffer.resize(10_000, 7);
    assert!(child_can_read(&buffer, 7));
    assert!(buffer.iter().all(|byte| *byte == 7), "the parent's memory is unchanged");
}

#[test]
fn memory_is_kept_out_of_forked_children_if_asked() {
    // Checks the kernel's flag; `faults_fork.rs` checks what a child finds.
    let flags = |buffer: &Buffer| {
        let (maps, at) = (std::fs::read_to_string("/proc/self/smaps").unwrap(), buffer.as_ptr() as usize);
        let mut inside = false;
        maps.lines()
            .find_map(|line| {
                if let Some((range, _)) = line.split_once(' ')
                    && let Some((start, end)) = range.split_once('-')
                    && let (Ok(start), Ok(end)) =
                        (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
                {
                    inside = (start..end).contains(&at);
                }
                line.strip_prefix("VmFlags:").filter(|_| inside).map(str::to_owned)
            })
            .unwrap()
    };
    for dont_fork in [false, true] {
        let pool = Pool::builder().dont_fork(dont_fork).build().unwrap();
        let flags = flags(&pool.get(4096).unwrap());
        assert_eq!(flags.split_whitespace().any(|flag| flag == "wf"), dont_fork, "{flags}");
    }
    let reserved = Pool::builder().huge_pages(HugePages::Require).capacity(1 << 30).dont_fork(true);
    let error = reserved.build().unwrap_err();
    assert!(matches!(error, PoolError::Invalid { .. }) && error.to_string().contains("dont_fork"), "{error}");
}
