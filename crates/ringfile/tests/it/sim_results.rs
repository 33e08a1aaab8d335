//! What batches, queues and readers say of their operations, on a simulated disk with errors: each result tells what has
//! happened, a barrier and the first error stop what they should, and cancelling leaves no half result.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::RangeFrom;
use std::time::Duration;

use crate::support::seeds::seeds;
use ringfile::sim::{Disk, Faults, Simulation, for_each_seed, sleep};
use ringfile::{Batch, Completion, Durability, File, OpenOptions, Pool, Queue, Token};

const BLOCK: u64 = 512;
/// The file that is read.
const SIZE: u64 = 60 * BLOCK;
/// Each write has a place of its own in the other file, with zeros until then.
const PLACE: u64 = 8 * BLOCK;

/// The bytes of both files: no zeros.
fn content(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| ((at * 31) >> 3) as u8 ^ at as u8 | 1).collect()
}

fn options(is_direct: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(is_direct);
    options.durability(if is_direct { Durability::Fsync } else { Durability::Dsync });
    options
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    /// Fails if the file ends earlier.
    ReadExact,
    Write,
    WriteDurable,
    Sync,
}

/// An operation of a program.
#[derive(Clone, Copy, Debug)]
struct Asked {
    kind: Kind,
    offset: u64,
    len: usize,
    /// The number of barriers before it.
    part: usize,
}

impl Asked {
    /// Draws one; `number` is that of its place.
    fn draw(disk: &Disk, number: u64, part: usize) -> Self {
        let kind = match disk.random_below(8) {
            0..4 => Kind::Read,
            4 => Kind::ReadExact,
            5 => Kind::Write,
            6 => Kind::WriteDurable,
            _ => Kind::Sync,
        };
        let blocks = 1 + disk.random_below(8);
        let offset = match kind {
            Kind::Read | Kind::ReadExact => disk.random_below(SIZE / BLOCK + 1) * BLOCK,
            _ => number * PLACE,
        };
        Self { kind, offset, len: (blocks * BLOCK) as usize, part }
    }

    fn is_read(self) -> bool {
        matches!(self.kind, Kind::Read | Kind::ReadExact)
    }

    /// The bytes that a read finds.
    fn there(self) -> usize {
        self.len.min(SIZE.saturating_sub(self.offset) as usize)
    }

    /// Checks a result, and notes what a write has filled.
    fn note(self, done: Completion, filled: &mut Filled) {
        let len = self.check(done);
        if matches!(self.kind, Kind::Write | Kind::WriteDurable) {
            filled.insert(self.offset, len);
        }
    }

    /// Fails if the result is none of what may have happened. Returns how much of its place a write has filled; `None` if that
    /// is not known.
    fn check(self, done: Completion) -> Option<usize> {
        let Completion { result, buffer, .. } = done;
        let read = |len: usize| {
            let buffer = buffer.as_ref().unwrap();
            assert_eq!(buffer.len(), len, "{self:?}: the length of the buffer");
            assert!(buffer[..] == content(self.offset, len), "{self:?}: other bytes");
        };
        match (result, self.kind) {
            (Ok(len), Kind::Read) => {
                assert_eq!(len, self.there(), "{self:?}");
                read(len);
            }
            (Ok(len), Kind::ReadExact) => {
                assert_eq!((len, len), (self.len, self.there()), "{self:?}");
                read(len);
            }
            (Ok(len), Kind::Write | Kind::WriteDurable) => {
                assert_eq!(len, self.len, "{self:?}");
                return Some(len);
            }
            (Ok(len), Kind::Sync) => assert_eq!(len, 0),
            (Err(error), kind) => {
                let len = error.done();
                assert!(len <= self.len, "{self:?}: {error}");
                if self.is_read() {
                    read(len);
                }
                let is_short = error.kind() == ErrorKind::UnexpectedEof;
                assert!(
                    !is_short || matches!(kind, Kind::ReadExact) && len == self.there() && len < self.len
                );
                if error.errno() == Some(libc::ECANCELED) {
                    return Some(len);
                }
                assert!(is_short || error.errno() == Some(libc::EIO), "{self:?}: {error}");
                return None;
            }
        }
        Some(0)
    }
}

struct Place {
    read: File,
    written: File,
    pool: Pool,
}

impl Place {
    async fn new(is_direct: bool) -> Self {
        let read = options(is_direct).open("read").await.unwrap();
        let written = options(is_direct).open("written").await.unwrap();
        Self { read, written, pool: Pool::new(8 << 20) }
    }

    /// Adds an operation to a batch or a queue.
    fn add<R>(&self, asked: Asked, add: impl Add<R>) -> R {
        let Asked { offset, len, .. } = asked;
        let mut buffer = self.pool.get(len).unwrap();
        if !asked.is_read() {
            buffer.extend_from_slice(&content(offset, len));
        }
        match asked.kind {
            Kind::Read => add.add(self.read.read_at(buffer, offset)),
            Kind::ReadExact => add.add(self.read.read_exact_at(buffer, offset)),
            Kind::Write => add.add(self.written.write_at(buffer, offset)),
            Kind::WriteDurable => add.add(self.written.write_durable_at(buffer, offset)),
            Kind::Sync => add.add(self.written.sync_data()),
        }
    }
}

trait Add<R> {
    fn add(self, op: ringfile::Op<'_, impl ringfile::Output>) -> R;
}

impl Add<usize> for &mut Batch {
    fn add(self, op: ringfile::Op<'_, impl ringfile::Output>) -> usize {
        Batch::add(self, op)
    }
}

impl Add<Token> for (&mut Queue, u64) {
    fn add(self, op: ringfile::Op<'_, impl ringfile::Output>) -> Token {
        self.0.add(op, self.1)
    }
}

/// How much of a write's place is filled; `None` if nobody knows.
type Filled = BTreeMap<u64, Option<usize>>;

fn was_cancelled(done: &Completion) -> bool {
    done.result.as_ref().is_err_and(|error| error.errno() == Some(libc::ECANCELED))
}

/// Runs a random batch. The names of operations are their indices.
async fn batch(disk: &Disk, place: &Place, numbers: &mut RangeFrom<u64>, filled: &mut Filled) {
    let (stops, merges) = (disk.random_below(2) == 0, disk.random_below(2) == 0);
    let most = 1 + disk.random_below(4) as usize;
    let mut batch = Batch::new().stop_on_error(stops).depth(most);
    if merges {
        batch = batch.merge_reads(disk.random_below(4 * BLOCK) as usize);
    }
    let (mut all, mut part) = (Vec::new(), 0);
    for number in numbers.by_ref().take(1 + disk.random_below(16) as usize) {
        if disk.random_below(5) == 0 {
            batch.barrier();
            part += 1;
        }
        let asked = Asked::draw(disk, number, part);
        assert_eq!(place.add(asked, &mut batch), all.len());
        all.push(asked);
    }
    let results = batch.await;
    assert_eq!(results.len(), all.len());
    let failed = |index: &usize| results[*index].result.is_err() && !was_cancelled(&results[*index]);
    let failed: Vec<usize> = (0..all.len()).filter(failed).collect();
    let first_part = failed.iter().map(|&failed| all[failed].part).min();
    for (index, (asked, done)) in all.into_iter().zip(results).enumerate() {
        let is_behind = first_part.is_some_and(|part| part < asked.part);
        let must_stop = stops && most == 1 && !merges && failed.first().is_some_and(|&failed| failed < index);
        if was_cancelled(&done) {
            assert!(is_behind || stops && !failed.is_empty(), "{asked:?} was cancelled for no reason");
            assert_eq!(done.result.as_ref().unwrap_err().done(), 0, "{asked:?} was started");
        } else {
            assert!(!is_behind, "{asked:?} was started behind a barrier, after a failure before it");
            assert!(!must_stop, "{asked:?} was started after a failure");
        }
        asked.note(done, filled);
    }
}

/// What a program knows of an operation that it has added to a queue.
struct Open {
    token: Token,
    number: u64,
    asked: Asked,
    is_cancelled: bool,
    /// The step at which it was first seen to have ended.
    ended: Option<u64>,
}

/// Uses a queue at random. The numbers of operations are their user data.
async fn queue(disk: &Disk, place: &Place, numbers: &mut RangeFrom<u64>, filled: &mut Filled) {
    let (mut queue, mut all) = (Queue::new(), Vec::<Open>::new());
    let last = disk.random_below(100);
    for step in 0.. {
        let is_last = step >= last;
        if is_last && all.is_empty() {
            break;
        }
        for open in &mut all {
            let is_done = queue.is_done(open.token);
            assert!(queue.contains(open.token) && (is_done || open.ended.is_none()), "{:?}", open.asked);
            open.ended = open.ended.or(is_done.then_some(step));
        }
        let chosen = (!all.is_empty()).then(|| disk.random_below(all.len() as u64) as usize);
        let first = all.iter().filter_map(|open| open.ended).min();
        let taken = match (if is_last { 7 } else { disk.random_below(8) }, chosen) {
            (0..3, _) | (_, None) => {
                let number = numbers.next().unwrap();
                let asked = Asked::draw(disk, number, 0);
                let token = place.add(asked, (&mut queue, number));
                all.push(Open { token, number, asked, is_cancelled: false, ended: None });
                None
            }
            (3, Some(chosen)) => {
                let open = &mut all[chosen];
                let is_cancelled = queue.cancel(open.token);
                assert_eq!(is_cancelled, open.ended.is_none(), "{:?}", open.asked);
                open.is_cancelled |= is_cancelled;
                None
            }
            (4, _) => {
                queue.submit();
                None
            }
            (5, _) => {
                sleep(Duration::from_micros(disk.random_below(1000))).await;
                None
            }
            (6, Some(chosen)) => {
                let token = all[chosen].token;
                let is_done = queue.is_done(token);
                assert!(is_done || all[chosen].ended.is_none());
                is_done.then(|| (chosen, queue.wait_for(token).unwrap()))
            }
            (_, Some(_)) => {
                assert!(queue.ready().await > 0);
                let done = queue.next().unwrap();
                let at =
                    all.iter().position(|open| open.token == done.token).expect("it was not taken before");
                assert_eq!(done.user_data, all[at].number);
                assert!(first.is_none() || all[at].ended == first, "{:?} was not the first", all[at].asked);
                Some((at, done))
            }
        };
        if let Some((at, done)) = taken {
            let Open { token, asked, is_cancelled, .. } = all.swap_remove(at);
            assert!(!queue.contains(token) && !queue.is_done(token));
            assert!(is_cancelled || !was_cancelled(&done), "{asked:?} was cancelled for no reason");
            asked.note(done, filled);
        }
        assert_eq!(queue.len(), all.len());
    }
}

/// Reads a range as a stream.
async fn reader(disk: &Disk, place: &Place) {
    let [start, end] = [(); 2].map(|()| disk.random_below(SIZE + SIZE / 4));
    let reader = place.read.reader(&place.pool).range(start..end);
    let mut reader =
        reader.block(1 + disk.random_below(4000) as usize).depth(1 + disk.random_below(5) as usize);
    let mut read = Vec::new();
    let until = loop {
        match reader.next().await {
            Some(Ok(piece)) => read.extend_from_slice(&piece),
            Some(Err(error)) => {
                assert_eq!(error.errno(), Some(libc::EIO));
                // It may have read whole blocks.
                break (error.offset().unwrap() + error.done() as u64).min(end);
            }
            None => break end.min(SIZE),
        }
    };
    assert!(reader.next().await.is_none());
    assert!(read == content(start, until.saturating_sub(start) as usize), "{start}..{end}, until {until}");
}

async fn program(disk: Disk, is_direct: bool) -> Filled {
    let (place, mut filled, mut numbers) = (Place::new(is_direct).await, Filled::new(), 0..);
    for _ in 0..5 {
        batch(&disk, &place, &mut numbers, &mut filled).await;
        queue(&disk, &place, &mut numbers, &mut filled).await;
        reader(&disk, &place).await;
    }
    // What was cancelled ends.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(place.pool.metrics().in_use, 0);
    filled
}

/// Checks what writes have left.
async fn check(filled: Filled) {
    let file = File::open_blocking("written").unwrap();
    for (offset, len) in filled {
        let mut found = file.read_at(vec![0; PLACE as usize], offset).await.unwrap();
        found.resize(PLACE as usize, 0);
        let len = len.unwrap_or_else(|| found.iter().take_while(|byte| **byte != 0).count());
        assert!(found[..len] == content(offset, len), "what was written at {offset}");
        assert!(found[len..].iter().all(|byte| *byte == 0), "more than {len} bytes were written at {offset}");
    }
}

#[test]
fn each_result_tells_what_has_happened() {
    for_each_seed(seeds(), |seed| {
        let is_direct = seed % 2 == 0;
        let prepared = Simulation::new(seed).run(|_| async move {
            let file = options(is_direct).open("read").await.unwrap();
            file.write_at(content(0, SIZE as usize), 0).await.unwrap();
        });
        let faults =
            Faults::none().short_transfers(0.1).interrupted(0.1).stuck(0.01, Duration::from_millis(20));
        let faults = faults.read_errors(0.02).write_errors(0.02).sync_errors(0.01);
        let outcome = prepared.disk().faults(faults).run(|disk| program(disk, is_direct));
        let disk = outcome.disk();
        let filled = outcome.into_result().unwrap();
        disk.run(|_| check(filled)).into_result().unwrap();
    });
}
