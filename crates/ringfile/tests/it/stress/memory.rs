//! Programs that only use memory: buffers and `Bytes` that are split, frozen, thawed, and passed from thread to thread,
//! each with its own pattern, which must not change.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use ringfile::buf::PoolError;
use ringfile::{Buffer, Pool, RegisteredMemory};

use super::World;
use crate::support::{Random, poll_once};

/// The largest number of things that wait for any thread to take them.
const MOST: usize = 200;

/// Memory, the number that its pattern follows from, and its offset in the pattern.
pub struct Thing {
    memory: Memory,
    stamp: u64,
    at: usize,
}

enum Memory {
    Buffer(Buffer),
    Bytes(Bytes),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Bytes(bytes) => bytes,
        }
    }
}

fn byte(stamp: u64, at: usize) -> u8 {
    let word = (stamp ^ (at as u64 / 8)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (word >> (8 * (at as u64 % 8))) as u8
}

impl Thing {
    fn new(mut buffer: Buffer, random: &mut Random) -> Self {
        let stamp = random.below(u64::MAX);
        buffer.set_len(buffer.capacity());
        buffer.iter_mut().enumerate().for_each(|(at, to)| *to = byte(stamp, at));
        Self { memory: Memory::Buffer(buffer), stamp, at: 0 }
    }

    /// Fails at the first wrong byte.
    #[track_caller]
    pub fn assert(&self) {
        let bytes = self.memory.bytes();
        let wrong = (0..bytes.len()).find(|&i| bytes[i] != byte(self.stamp, self.at + i));
        assert!(wrong.is_none(), "byte {wrong:?} of {} was changed by somebody", bytes.len());
    }

    /// Checks like [`Thing::assert`] in a forked child, which must not panic.
    pub fn is_whole(&self) -> bool {
        let bytes = self.memory.bytes();
        (0..bytes.len()).all(|i| bytes[i] == byte(self.stamp, self.at + i))
    }
}

/// Things that any thread may take.
#[derive(Default)]
pub struct Things(Mutex<Vec<Thing>>);

impl Things {
    pub fn put(&self, thing: Thing, random: &mut Random) {
        let rest = {
            let mut things = self.0.lock().unwrap();
            things.push(thing);
            let at = random.below(things.len() as u64) as usize;
            (things.len() > MOST).then(|| things.swap_remove(at))
        };
        drop(rest);
    }

    pub fn take(&self, random: &mut Random) -> Option<Thing> {
        let mut things = self.0.lock().unwrap();
        let at = random.below(things.len().max(1) as u64) as usize;
        (at < things.len()).then(|| things.swap_remove(at))
    }

    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap());
        all.iter().for_each(Thing::assert);
    }
}

/// Runs on the calling thread until the round is over.
pub fn run(world: &World, mut random: Random) {
    let mut own = RegisteredMemory::new(vec![0; LENT]);
    while !world.is_over() {
        match random.below(12) {
            0..4 => make(world, &mut random),
            4..9 => change(world, &mut random),
            9 => wait(world, &mut random),
            10 => lend(&own, &mut random),
            _ if random.below(50) == 0 => own = RegisteredMemory::new(vec![0; LENT]),
            _ => foreign(world, &mut random),
        }
        world.counts.memory.fetch_add(1, Ordering::Relaxed);
    }
}

fn any_pool<'a>(world: &'a World, random: &mut Random) -> &'a Pool {
    &world.pools[random.below(world.pools.len() as u64) as usize]
}

fn any_size(random: &mut Random) -> usize {
    match random.below(4) {
        0 => random.below(600) as usize,
        1 => 4096,
        _ => 1 << (9 + random.below(8)) | random.below(512) as usize,
    }
}

fn make(world: &World, random: &mut Random) {
    let size = any_size(random);
    match any_pool(world, random).get(size) {
        Ok(buffer) => {
            assert!(buffer.is_empty() && buffer.capacity() == size);
            let thing = Thing::new(buffer, random);
            world.things.put(thing, random);
        }
        Err(PoolError::Full { .. }) => {}
        Err(error) => panic!("{size} bytes: {error}"),
    }
}

fn change(world: &World, random: &mut Random) {
    let Some(thing) = world.things.take(random) else { return };
    thing.assert();
    let Thing { memory, stamp, at } = thing;
    let thing = |memory, at| Thing { memory, stamp, at };
    match memory {
        Memory::Buffer(mut buffer) => match random.below(5) {
            0 => {
                let middle = random.below(buffer.capacity() as u64 + 1) as usize;
                let rest = if random.below(2) == 0 {
                    buffer.split_off(middle)
                } else {
                    let first = buffer.split_to(middle);
                    std::mem::replace(&mut buffer, first)
                };
                assert_eq!(buffer.capacity(), middle);
                world.things.put(thing(Memory::Buffer(buffer), at), random);
                world.things.put(thing(Memory::Buffer(rest), at + middle), random);
            }
            1 | 2 => {
                let (start, len) = (buffer.as_ptr(), buffer.len());
                let bytes = buffer.freeze();
                assert!(bytes.len() == len && (len == 0 || bytes.as_ptr() == start));
                world.things.put(thing(Memory::Bytes(bytes), at), random);
            }
            3 => drop(buffer),
            _ => world.things.put(Thing::new(buffer, random), random),
        },
        Memory::Bytes(bytes) => match random.below(6) {
            0 => {
                let from = random.below(bytes.len() as u64 + 1) as usize;
                world.things.put(thing(Memory::Bytes(bytes.slice(from..)), at + from), random);
                world.things.put(thing(Memory::Bytes(bytes), at), random);
            }
            1 => {
                world.things.put(thing(Memory::Bytes(bytes.clone()), at), random);
                world.things.put(thing(Memory::Bytes(bytes), at), random);
            }
            2 => drop(bytes),
            _ => {
                let (start, len) = (bytes.as_ptr(), bytes.len());
                let memory = match any_pool(world, random).thaw(bytes) {
                    Ok(buffer) => {
                        assert!(len > 0 && (buffer.as_ptr(), buffer.len()) == (start, len));
                        Memory::Buffer(buffer)
                    }
                    Err(bytes) => {
                        assert_eq!((bytes.as_ptr(), bytes.len()), (start, len));
                        Memory::Bytes(bytes)
                    }
                };
                let thawed = thing(memory, at);
                thawed.assert();
                world.things.put(thawed, random);
            }
        },
    }
}

/// Uses memory of a pool that is full most of the time, with and without waiting.
fn wait(world: &World, random: &mut Random) {
    let size = any_size(random).min(16 << 10);
    if random.below(2) == 0 {
        let buffer = world.small.get(size).unwrap();
        let thing = Thing::new(buffer, random);
        std::thread::yield_now();
        return thing.assert();
    }
    futures::executor::block_on(async {
        let mut get = world.small.get_async(size);
        let polls = random.below(4);
        for _ in 0..polls {
            if let std::task::Poll::Ready(buffer) = poll_once(&mut get).await {
                return assert_eq!(buffer.unwrap().capacity(), size);
            }
            std::thread::yield_now();
        }
    });
}

const LENT: usize = 64 << 10;

/// Asserts that no byte is lent twice.
fn lend(memory: &RegisteredMemory, random: &mut Random) {
    let from = random.below(LENT as u64 - 1) as usize;
    let len = 1 + random.below((LENT - from) as u64) as usize;
    let mut lent = memory.lend(from..from + len).unwrap();
    assert_eq!((lent.len(), memory.lent()), (len, len));
    let inside = from + random.below(len as u64) as usize;
    assert!(matches!(memory.lend(inside..=inside), Err(PoolError::Lent { .. })));
    let stamp = random.below(256) as u8;
    lent.fill(stamp);
    let middle = random.below(len as u64 + 1) as usize;
    let rest = lent.split_off(middle);
    let bytes = rest.freeze();
    drop(lent);
    assert!(bytes.iter().all(|&byte| byte == stamp));
    assert_eq!(
        memory.lent(),
        if bytes.is_empty() { 0 } else { len },
        "all of it, until the last part is dropped"
    );
    drop(bytes);
    assert_eq!(memory.lent(), 0);
}

/// An owner outside the library, whose bytes come back unchanged.
fn foreign(world: &World, random: &mut Random) {
    struct Shared(std::sync::Arc<Buffer>);
    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let pool = any_pool(world, random);
    let Ok(mut buffer) = pool.get(1 + any_size(random)) else { return };
    buffer.resize(buffer.capacity(), 1);
    let shared = std::sync::Arc::new(buffer);
    let bytes = Bytes::from_owner(Shared(std::sync::Arc::clone(&shared)));
    let bytes = pool.thaw(bytes).expect_err("the owner is not the pool's");
    match std::sync::Arc::try_unwrap(shared) {
        Ok(mut buffer) => {
            buffer.fill(2);
            panic!("{} bytes of another owner have lost it", bytes.len());
        }
        Err(shared) => assert!(shared.iter().all(|&byte| byte == 1) && bytes.iter().all(|&byte| byte == 1)),
    }
}
