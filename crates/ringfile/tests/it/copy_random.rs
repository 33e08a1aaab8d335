//! Copies, reads, writes and holes at random, on files that are open in several ways at once, compared with a model: in
//! batches and queues, awaited, cancelled, and moved to other threads after their first poll (F02, F04, F05, F49).

use crate::support::handles::Handles as _;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::forms::routes;
use crate::support::{Folder, Random, all, must_end};
use ringfile::fs::AllocateMode;
use ringfile::{
    AnyBuffer, Batch, BufError, Buffer, Completion, Error, File, IoBuf, OpenOptions, Pool, Queue, Token,
    block_on,
};

const PAGE: usize = 4096;
const SIZE: usize = 96 * PAGE;

/// How long the test lasts; longer with `RINGFILE_TEST_STRESS_SECONDS`.
fn lasts() -> Duration {
    let given = std::env::var("RINGFILE_TEST_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(3))
}

/// A file, open in several ways, and what it contains.
struct Modelled {
    path: PathBuf,
    handles: Vec<File>,
    content: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Kind {
    Read { exact: bool },
    Vectored,
    Write { skipped: usize, data: Vec<u8>, durable: bool },
    Copy { from: usize, offset: usize },
    Punch,
    SetLen,
}

/// An operation on `len` bytes at `at` of the file with this number.
#[derive(Clone, Debug)]
struct Job {
    kind: Kind,
    file: usize,
    handle: usize,
    other: usize,
    at: usize,
    len: usize,
}

/// How it ended: the bytes that were done, or the error; and what was read.
type Ended = (Result<usize, Error>, Vec<u8>);

fn of_done(mut done: Completion) -> Ended {
    let mut read = done.buffer.take().map_or_else(Vec::new, |buffer| buffer.to_vec());
    done.buffers.iter().for_each(|buffer| read.extend_from_slice(buffer));
    (done.result, read)
}

fn of_future(result: Result<Buffer, BufError<Buffer>>) -> Ended {
    match result {
        Ok(buffer) => (Ok(buffer.len()), buffer.to_vec()),
        Err(error) => {
            let (error, buffer) = error.into_parts();
            (Err(error), buffer.to_vec())
        }
    }
}

enum To<'a> {
    Batch(&'a mut Batch),
    Queue(&'a mut Queue, u64),
}

struct World {
    files: Vec<Modelled>,
    pool: Pool,
}

impl World {
    fn buffer(&self, len: usize) -> Buffer {
        self.pool.get(len).unwrap()
    }

    fn filled(&self, data: &[u8]) -> Buffer {
        let mut buffer = self.buffer(data.len());
        buffer.extend_from_slice(data);
        buffer
    }

    fn parts(&self, len: usize) -> Vec<Buffer> {
        [len / 3, len - len / 3].map(|len| self.buffer(len)).into()
    }

    fn handle(&self, job: &Job) -> File {
        self.files[job.file].handles[job.handle].clone()
    }

    fn add(&self, to: To<'_>, job: &Job) -> Option<Token> {
        let file = self.handle(job);
        let (at, len) = (job.at as u64, job.len);
        // Each operation has a type of its own.
        macro_rules! add {
            ($operation:expr) => {
                match to {
                    To::Batch(batch) => {
                        batch.add($operation);
                        None
                    }
                    To::Queue(queue, number) => Some(queue.add($operation, number)),
                }
            };
        }
        match &job.kind {
            Kind::Read { exact: false } => add!(file.read_at(AnyBuffer::from(self.buffer(len)), at)),
            Kind::Read { exact: true } => add!(file.read_exact_at(self.buffer(len), at)),
            Kind::Vectored => add!(file.read_vectored_at(self.parts(len), at)),
            Kind::Write { skipped, data, durable: false } => {
                add!(file.write_at(self.filled(data).slice(*skipped..), at))
            }
            Kind::Write { data, durable: true, .. } => add!(file.write_durable_at(self.filled(data), at)),
            Kind::Copy { from, offset } => {
                add!(self.files[*from].handles[job.other].copy_range(*offset as u64, &file, at, len as u64))
            }
            Kind::Punch => add!(file.allocate(AllocateMode::PunchHole, at, len as u64)),
            Kind::SetLen => add!(file.set_len(at)),
        }
    }

    fn future(&self, job: &Job) -> Pin<Box<dyn Future<Output = Ended> + Send>> {
        let file = self.handle(job);
        let (at, len) = (job.at as u64, job.len);
        match job.kind.clone() {
            Kind::Read { exact } => {
                let buffer = self.buffer(len);
                Box::pin(async move {
                    of_future(match exact {
                        true => file.read_exact_at(buffer, at).await,
                        false => file.read_at(buffer, at).await,
                    })
                })
            }
            Kind::Vectored => {
                let parts = self.parts(len);
                Box::pin(async move {
                    let parts = file.read_vectored_at(parts, at).await.unwrap();
                    let read: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
                    (Ok(read.len()), read)
                })
            }
            Kind::Write { skipped, data, durable } => {
                let buffer = self.filled(&data);
                Box::pin(async move {
                    let part = buffer.slice(if durable { 0 } else { skipped }..);
                    let written = match durable {
                        true => file.write_durable_at(part, at).await,
                        false => file.write_at(part, at).await,
                    };
                    let (result, buffer) = match written {
                        Ok(part) => (Ok(part.len()), part.into_inner()),
                        Err(error) => {
                            let (error, part) = error.into_parts();
                            (Err(error), part.into_inner())
                        }
                    };
                    assert_eq!(buffer[..], data[..], "the buffer of a write");
                    (result, Vec::new())
                })
            }
            Kind::Copy { from, offset } => {
                let from = self.files[from].handles[job.other].clone();
                Box::pin(async move {
                    let copied = from.copy_range(offset as u64, &file, at, len as u64).await;
                    (copied.map(|copied| copied as usize), Vec::new())
                })
            }
            Kind::Punch => Box::pin(async move {
                (file.allocate(AllocateMode::PunchHole, at, len as u64).await.map(|()| 0), Vec::new())
            }),
            Kind::SetLen => Box::pin(async move { (file.set_len(at).await.map(|()| 0), Vec::new()) }),
        }
    }

    /// Compares a result with the model, and does to the model what was done to the file.
    fn settle(&mut self, job: &Job, (result, read): Ended, may_be_cancelled: bool) {
        let len = self.files[job.file].content.len();
        let there = job.at.min(len)..(job.at + job.len).min(len).max(job.at.min(len));
        if may_be_cancelled {
            return self.settle_cancelled(job, result, &read);
        }
        match &job.kind {
            Kind::Read { .. } | Kind::Vectored => {
                let expected = &self.files[job.file].content[there];
                let short = matches!(job.kind, Kind::Read { exact: true }) && expected.len() < job.len;
                match result {
                    Ok(done) => assert!(!short && done == expected.len(), "{job:?}: {done}"),
                    Err(error) => assert!(short && error.done() == expected.len(), "{job:?}: {error}"),
                }
                assert!(read == expected, "{job:?}: other bytes");
            }
            Kind::Write { skipped, data, .. } => {
                let data = &data[*skipped..];
                assert_eq!(result.unwrap(), data.len(), "{}", brief(job));
                write(&mut self.files[job.file].content, job.at, data);
            }
            Kind::Copy { .. } => {
                let data = self.copied(job);
                match result {
                    Ok(done) => assert_eq!(done, data.len(), "{job:?}"),
                    Err(error) => panic!("{job:?}: {error}"),
                }
                write(&mut self.files[job.file].content, job.at, &data);
            }
            Kind::Punch => {
                result.unwrap();
                self.files[job.file].content[there].fill(0);
            }
            Kind::SetLen => {
                result.unwrap();
                self.files[job.file].content.resize(job.at, 0);
            }
        }
    }

    fn copied(&self, job: &Job) -> Vec<u8> {
        let Kind::Copy { from, offset } = job.kind else { unreachable!() };
        let source = &self.files[from].content;
        source.get(offset..(offset + job.len).min(source.len())).unwrap_or_default().to_vec()
    }

    /// As [`settle`](Self::settle), of one that was perhaps cancelled: it was done up to some byte, which the result tells.
    fn settle_cancelled(&mut self, job: &Job, result: Result<usize, Error>, read: &[u8]) {
        let is_ok = result.is_ok();
        let done = result.unwrap_or_else(|error| error.done());
        let now = std::fs::read(&self.files[job.file].path).unwrap();
        match &job.kind {
            Kind::Read { .. } | Kind::Vectored => {
                let content = &self.files[job.file].content;
                let expected = content.get(job.at..).unwrap_or_default();
                assert!(read.len() <= expected.len() && *read == expected[..read.len()], "{}", brief(job));
            }
            Kind::Write { skipped, data, durable } => {
                let data = &data[*skipped..];
                // A durable one may have been cancelled before its sync.
                let done = if *durable && now.get(job.at..job.at + data.len()) == Some(data) {
                    data.len()
                } else {
                    done
                };
                assert!(!is_ok || done == data.len(), "{}", brief(job));
                write(&mut self.files[job.file].content, job.at, &data[..done]);
            }
            Kind::Copy { .. } => {
                let data = self.copied(job);
                assert!(!is_ok || done == data.len(), "{}", brief(job));
                let before = self.files[job.file].content.len();
                write(&mut self.files[job.file].content, job.at, &data[..done]);
                if !is_ok {
                    // It may end before a hole.
                    let content = &mut self.files[job.file].content;
                    let len = now.len().max(before).min(content.len());
                    assert!(content[len..].iter().all(|&byte| byte == 0), "{}", brief(job));
                    content.truncate(len);
                }
            }
            Kind::Punch | Kind::SetLen => {
                let mut after = self.files[job.file].content.clone();
                match job.kind {
                    Kind::SetLen => after.resize(job.at, 0),
                    _ => {
                        let end = (job.at + job.len).min(after.len());
                        after[job.at..end].fill(0);
                    }
                }
                let range = if let Kind::SetLen = job.kind {
                    0..now.len()
                } else {
                    job.at..(job.at + job.len).min(now.len())
                };
                if is_ok || now.get(range.clone()) == after.get(range) && now.len() == after.len() {
                    self.files[job.file].content = after;
                }
            }
        }
    }

    fn check(&self, what: &str) {
        for file in &self.files {
            let got = std::fs::read(&file.path).unwrap();
            assert_eq!(got.len(), file.content.len(), "{what}: the length of {}", file.path.display());
            if let Some(at) = (0..got.len()).find(|&at| got[at] != file.content[at]) {
                panic!(
                    "{what}: byte {at} of {}: {} instead of {}",
                    file.path.display(),
                    got[at],
                    file.content[at]
                );
            }
        }
    }
}

fn write(content: &mut Vec<u8>, at: usize, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    if content.len() < at + data.len() {
        content.resize(at + data.len(), 0);
    }
    content[at..at + data.len()].copy_from_slice(data);
}

/// Which pages of which files the jobs of a round use, and whether they change them.
#[derive(Default)]
struct Claims(Vec<(usize, usize, usize, bool)>);

impl Claims {
    /// Returns false if another job is in the way. One that changes the length needs the whole file.
    fn claim(&mut self, wanted: &[(usize, usize, usize, bool)]) -> bool {
        let is_in_way = |&(file, start, end, changes): &(usize, usize, usize, bool)| {
            let meets = |other: &(usize, usize, usize, bool)| {
                other.0 == file && other.1 < end && start < other.2 && (changes || other.3)
            };
            self.0.iter().any(meets)
        };
        if wanted.iter().any(is_in_way) {
            return false;
        }
        self.0.extend_from_slice(wanted);
        true
    }
}

fn pages(file: usize, at: usize, len: usize, changes: bool) -> (usize, usize, usize, bool) {
    (file, at / PAGE, (at + len).div_ceil(PAGE).max(at / PAGE + 1), changes)
}

fn job(random: &mut Random, world: &World, claims: &mut Claims) -> Option<Job> {
    let file = random.index(world.files.len());
    let modelled = &world.files[file];
    let (handle, mut other) = (random.index(modelled.handles.len()), 0);
    let is_direct = modelled.handles[handle].is_direct();
    let is_aligned = is_direct || random.chance(2);
    let multiple = |number: usize| if is_aligned { number / PAGE * PAGE } else { number };
    let at = multiple(random.index(SIZE));
    let most = [PAGE, 8 * PAGE, 40 * PAGE][random.index(3)];
    let len = multiple(1 + random.index(most) + if is_aligned { PAGE } else { 0 });
    let size = modelled.content.len();
    let whole = (file, 0, usize::MAX, true);
    let changed = if at + len > size { whole } else { pages(file, at, len, true) };
    let (kind, wanted) = match random.below(12) {
        0..=3 => {
            let exact = random.chance(2);
            (
                if random.chance(4) { Kind::Vectored } else { Kind::Read { exact } },
                vec![pages(file, at, len, false)],
            )
        }
        4..=6 => {
            let skipped = if is_direct || random.chance(2) { 0 } else { random.index(100) };
            let data = random.bytes(len + skipped);
            let durable = skipped == 0 && random.chance(5);
            (Kind::Write { skipped, data, durable }, vec![changed])
        }
        7..=9 => {
            let from = random.index(world.files.len());
            other = random.index(world.files[from].handles.len());
            let offset = multiple(random.index(SIZE));
            // Where the kernel cannot copy, direct I/O must fit.
            let fits = |file: &File| !file.is_direct() || is_aligned;
            if !fits(&world.files[from].handles[other])
                || (from == file && offset.abs_diff(at) < len)
                || ((is_direct || world.files[from].handles[other].is_direct())
                    && !world.files[from].content.len().is_multiple_of(PAGE))
            {
                return None;
            }
            (Kind::Copy { from, offset }, vec![changed, pages(from, offset, len, false)])
        }
        10 => {
            let end = (at + len).min(size);
            if at >= end {
                return None;
            }
            (Kind::Punch, vec![pages(file, at, len, true)])
        }
        _ => (Kind::SetLen, vec![whole]),
    };
    let mut all = wanted;
    // Of one file, both ranges of a copy.
    if let [changed, read] = all[..]
        && changed.0 == read.0
        && changed.1 < read.2
        && read.1 < changed.2
    {
        all = vec![whole];
    }
    // Two handles of one file may be direct and buffered: pages at the end have neighbours.
    claims.claim(&all).then_some(Job { kind, file, handle, other, at, len })
}

fn carry_out(random: &mut Random, world: &World, jobs: &[Job], how: u64) -> (Vec<Ended>, bool) {
    let poll_first = |futures: &mut [Pin<Box<dyn Future<Output = Ended> + Send>>]| {
        let mut ready = Vec::new();
        for future in futures {
            let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            ready.push(if let std::task::Poll::Ready(ended) = polled { Some(ended) } else { None });
        }
        ready
    };
    let finish = |ready: Vec<Option<Ended>>, futures: Vec<Pin<Box<dyn Future<Output = Ended> + Send>>>| {
        let rest = futures.into_iter().zip(ready).map(|(future, ready)| async move {
            match ready {
                Some(ended) => ended,
                None => future.await,
            }
        });
        all(rest.collect())
    };
    match how {
        0 | 1 => {
            let mut batch = Batch::new().depth(1 + random.index(8));
            if random.chance(2) {
                batch = batch.merge_reads(random.index(3 * PAGE));
            }
            jobs.iter().for_each(|job| _ = world.add(To::Batch(&mut batch), job));
            let done = match (how, random.chance(2)) {
                (0, _) => batch.run(),
                (_, true) => block_on(async { batch.await }),
                (_, false) => futures::executor::block_on(async { batch.await }),
            };
            (done.into_iter().map(of_done).collect(), false)
        }
        2 | 3 => {
            let mut queue = Queue::new();
            let mut ended: Vec<Option<Ended>> = jobs.iter().map(|_| None).collect();
            let mut tokens = Vec::new();
            for (number, job) in jobs.iter().enumerate() {
                tokens.extend(world.add(To::Queue(&mut queue, number as u64), job));
                if random.chance(3) {
                    queue.submit();
                }
            }
            queue.submit();
            if how == 3 {
                if random.chance(2) {
                    std::thread::sleep(Duration::from_micros(random.below(300)));
                }
                tokens.retain(|_| random.chance(2));
                for token in tokens {
                    queue.cancel(token);
                }
            }
            while !queue.is_empty() {
                for done in queue.ends(1) {
                    let number = done.user_data;
                    assert!(ended[number as usize].replace(of_done(done)).is_none(), "two results");
                }
            }
            (ended.into_iter().map(Option::unwrap).collect(), how == 3)
        }
        4 => (block_on(all(jobs.iter().map(|job| world.future(job)).collect())), false),
        5 => (futures::executor::block_on(all(jobs.iter().map(|job| world.future(job)).collect())), false),
        6 => {
            // First polled in a loop that is left then, awaited on another thread.
            let mut futures: Vec<_> = jobs.iter().map(|job| world.future(job)).collect();
            let ready = block_on(async { poll_first(&mut futures) });
            let thread = std::thread::spawn(move || futures::executor::block_on(finish(ready, futures)));
            (thread.join().unwrap(), false)
        }
        7 => {
            // First polled outside of any loop, awaited in one of another thread.
            let mut futures: Vec<_> = jobs.iter().map(|job| world.future(job)).collect();
            let ready = poll_first(&mut futures);
            let thread = std::thread::spawn(move || block_on(finish(ready, futures)));
            (thread.join().unwrap(), false)
        }
        _ => {
            // Polled in a loop that goes on, on another thread; dropped reads on the way.
            let (sends, receives) = std::sync::mpsc::channel();
            let (ends, end) = futures::channel::oneshot::channel::<()>();
            let mut futures: Vec<_> = jobs.iter().map(|job| world.future(job)).collect();
            let mut dropped: Vec<_> = jobs
                .iter()
                .filter(|job| matches!(job.kind, Kind::Read { .. }))
                .map(|job| world.future(job))
                .collect();
            let thread = std::thread::spawn(move || {
                block_on(async move {
                    let ready = poll_first(&mut futures);
                    _ = poll_first(&mut dropped);
                    sends.send((ready, futures, dropped)).unwrap();
                    _ = end.await;
                });
            });
            let (ready, futures, dropped) = receives.recv().unwrap();
            drop(dropped);
            let ended = futures::executor::block_on(finish(ready, futures));
            ends.send(()).unwrap();
            thread.join().unwrap();
            (ended, false)
        }
    }
}

#[test]
fn random_operations_on_files_that_are_open_in_several_ways_leave_the_bytes_of_a_model() {
    let run = || {
        let mut random = Random::new();
        let folder = Folder::new();
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut files = Vec::new();
        for (number, place) in [folder.path(), folder.path(), memory.path(), memory.path()].iter().enumerate()
        {
            let path = place.join(format!("file {number}"));
            let content = random.bytes(SIZE / (1 + number % 2));
            std::fs::write(&path, &content).unwrap();
            let mut handles = Vec::new();
            for route in routes() {
                let mut options = OpenOptions::new();
                options.read(true).write(true).route(route);
                handles.push(options.open_blocking(&path).unwrap());
                handles.push(options.direct(true).buffered_fallback(true).open_blocking(&path).unwrap());
                handles.push(
                    options
                        .direct(false)
                        .buffered_fallback(false)
                        .adaptive(true)
                        .open_blocking(&path)
                        .unwrap(),
                );
            }
            files.push(Modelled { path, handles, content });
        }
        let mut world = World { files, pool: Pool::new(256 << 20) };
        let began = Instant::now();
        let mut rounds = 0;
        while began.elapsed() < lasts() {
            rounds += 1;
            let (mut claims, mut jobs) = (Claims::default(), Vec::new());
            for _ in 0..1 + random.index(16) {
                jobs.extend(job(&mut random, &world, &mut claims));
            }
            let how = random.below(9);
            let (ended, may_be_cancelled) = carry_out(&mut random, &world, &jobs, how);
            assert_eq!(ended.len(), jobs.len());
            for (job, ended) in jobs.iter().zip(ended) {
                world.settle(job, ended, may_be_cancelled);
            }
            world.check(&format!(
                "round {rounds}, way {how}: {:?}",
                jobs.iter().map(brief).collect::<Vec<_>>()
            ));
        }
        println!("{rounds} rounds");
        let pool = world.pool.clone();
        drop(world);
        support::wait_for("all buffers to come back", || pool.metrics().in_use == 0);
    };
    if lasts() > Duration::from_secs(10) { run() } else { must_end("random operations", run) }
}

/// A job without its data.
fn brief(job: &Job) -> String {
    let kind = match &job.kind {
        Kind::Write { skipped, data, durable } => format!("Write {skipped}.. of {} {durable}", data.len()),
        kind => format!("{kind:?}"),
    };
    format!("{kind} of {} by {} ({}): {}+{}", job.file, job.handle, job.other, job.at, job.len)
}
