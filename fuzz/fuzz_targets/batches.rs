//! Operations in batches and queues, with barriers, cancels and drops: what is read is what a model says, or the
//! operation was cancelled.
//!
//! A file has a few cells. Operations between two barriers run in any order, so each cell has one of them there. A write
//! that was cancelled leaves its cell unknown, until it is written again.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ringfile::{Batch, Buffer, Completion, File, OpenOptions, Pool, Queue, Route};
use tempfile::TempDir;

const CELL: usize = 512;
const CELLS: usize = 16;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| TempDir::new_in("/dev/shm").expect("a folder"));
static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(16 << 20));

#[derive(Arbitrary, Debug)]
struct Input {
    route: u8,
    adaptive: bool,
    rounds: Vec<Round>,
}

#[derive(Arbitrary, Debug)]
enum Round {
    /// Runs all steps in a batch.
    Batch { steps: Vec<Step>, in_flight: u8, merge: Option<u16> },
    /// Starts a batch, and cancels it or not.
    Started { steps: Vec<Step>, cancel: bool },
    /// Adds steps to a queue; what was not taken when it is dropped is lost.
    Queue { steps: Vec<Step>, take: u8, cancel: Option<u8> },
    /// Waits for each result by its token, in another order.
    Tokens { steps: Vec<Step>, first: u8 },
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Step {
    Read(u8),
    Write(u8, u8),
    WriteDurable(u8, u8),
    /// A read at or beyond the end.
    Beyond(u16),
    Sync,
    Barrier,
}

/// What an operation should have found or done.
#[derive(Clone, Copy)]
enum Expected {
    Cell(usize),
    Written(usize, u8),
    End,
    Synced,
}

struct Model {
    file: File,
    /// The byte of which each cell consists; `None` if that is unknown.
    cells: [Option<u8>; CELLS],
}

fuzz_target!(|input: Input| {
    let path = FOLDER.path().join("cells");
    std::fs::write(&path, [0; CELL * CELLS]).expect("a file");
    let routes = [Route::Auto, Route::Ring, Route::Inline, Route::Workers];
    let mut options = OpenOptions::new();
    options.read(true).write(true).adaptive(input.adaptive);
    options.route(routes[usize::from(input.route) % routes.len()]);
    let mut model = Model { file: options.open_blocking(&path).expect("it exists"), cells: [Some(0); CELLS] };
    for round in input.rounds.iter().take(8) {
        model.carry_out(round);
    }
    drop(model.file);
    let bytes = std::fs::read(&path).expect("it exists");
    assert_eq!(bytes.len(), CELL * CELLS);
    for (cell, known) in bytes.chunks(CELL).zip(model.cells) {
        assert!(known.is_none_or(|known| cell.iter().all(|&byte| byte == known)));
    }
});

impl Model {
    /// Splits steps at barriers, and leaves out those of cells that have one already.
    fn phases(&self, steps: &[Step]) -> Vec<Vec<Step>> {
        let mut phases = vec![(0_u32, Vec::new())];
        for &step in steps.iter().take(64) {
            let (used, phase) = phases.last_mut().expect("never empty");
            match step {
                Step::Barrier => phases.push((0, Vec::new())),
                Step::Read(cell) | Step::Write(cell, _) | Step::WriteDurable(cell, _) => {
                    let bit = 1 << (usize::from(cell) % CELLS);
                    if *used & bit == 0 {
                        *used |= bit;
                        phase.push(step);
                    }
                }
                Step::Beyond(_) | Step::Sync => phase.push(step),
            }
        }
        phases.into_iter().map(|(_, phase)| phase).collect()
    }

    /// Makes a step an operation, and gives it to a batch or a queue.
    fn add(&self, step: Step, to: &mut impl Adds) -> Expected {
        let filled = |byte| {
            let mut buffer = POOL.get(CELL).expect("memory");
            buffer.resize(CELL, byte);
            buffer
        };
        let at = |cell: u8| usize::from(cell) % CELLS;
        match step {
            Step::Read(cell) => {
                to.add(self.file.read_at(POOL.get(CELL).expect("memory"), (at(cell) * CELL) as u64));
                Expected::Cell(at(cell))
            }
            Step::Write(cell, byte) => {
                to.add(self.file.write_at(filled(byte), (at(cell) * CELL) as u64));
                Expected::Written(at(cell), byte)
            }
            Step::WriteDurable(cell, byte) => {
                to.add(self.file.write_durable_at(filled(byte), (at(cell) * CELL) as u64));
                Expected::Written(at(cell), byte)
            }
            Step::Beyond(more) => {
                to.add(
                    self.file
                        .read_at(POOL.get(CELL).expect("memory"), (CELL * CELLS) as u64 + u64::from(more)),
                );
                Expected::End
            }
            Step::Sync | Step::Barrier => {
                to.add(self.file.sync_data());
                Expected::Synced
            }
        }
    }

    fn check(&mut self, expected: Expected, done: Completion, may_be_cancelled: bool) {
        let count = match done.result {
            Ok(count) => Some(count),
            Err(error) => {
                let is_cancel = error.errno() == Some(libc::ECANCELED);
                assert!(may_be_cancelled && is_cancel, "{error}");
                None
            }
        };
        match (expected, count) {
            (Expected::Cell(cell), Some(count)) => {
                let bytes: Buffer = done.buffer.expect("its memory").into_pooled().expect("of the pool");
                assert_eq!((count, bytes.len()), (CELL, CELL));
                let known = self.cells[cell];
                assert!(known.is_none_or(|known| bytes.iter().all(|&byte| byte == known)));
            }
            (Expected::Written(cell, byte), Some(count)) => {
                assert_eq!(count, CELL);
                self.cells[cell] = Some(byte);
            }
            (Expected::Written(cell, _), None) => self.cells[cell] = None,
            (Expected::End | Expected::Synced, count) => assert!(count.is_none_or(|count| count == 0)),
            (Expected::Cell(_), None) => {}
        }
    }

    fn carry_out(&mut self, round: &Round) {
        match round {
            Round::Batch { steps, in_flight, merge } => {
                let (batch, expected) = self.batch(steps);
                let batch = batch.depth(1 + usize::from(*in_flight));
                let batch = if let Some(gap) = merge { batch.merge_reads(usize::from(*gap)) } else { batch };
                self.check_all(expected, batch.run(), false);
            }
            Round::Started { steps, cancel } => {
                let (batch, expected) = self.batch(steps);
                let (sender, receiver) = std::sync::mpsc::channel();
                let started = batch.start(move |results| drop(sender.send(results))).expect("started");
                if *cancel {
                    started.cancel();
                }
                self.check_all(expected, receiver.recv().expect("it ends"), *cancel);
            }
            Round::Queue { steps, take, cancel } => {
                for phase in self.phases(steps) {
                    let mut queue = Queue::new();
                    let mut tokens = Tokens(&mut queue, Vec::new());
                    let mut expected: Vec<_> =
                        phase.iter().map(|&step| Some(self.add(step, &mut tokens))).collect();
                    let tokens = tokens.1;
                    let cancelled = cancel.filter(|_| !tokens.is_empty());
                    if let Some(index) = cancelled {
                        queue.cancel(tokens[usize::from(index) % tokens.len()]);
                    }
                    for _ in 0..usize::from(*take).min(tokens.len()) {
                        let mut ended = Vec::new();
                        assert_eq!(queue.wait(1..=1, None, &mut ended), 1);
                        let done = ended.remove(0);
                        let index = done.user_data as usize;
                        assert!(tokens[index] == done.token);
                        self.check(expected[index].take().expect("once"), done, cancelled.is_some());
                    }
                    drop(queue);
                    for left in expected.into_iter().flatten() {
                        if let Expected::Written(cell, _) = left {
                            self.cells[cell] = None;
                        }
                    }
                }
            }
            Round::Tokens { steps, first } => {
                for phase in self.phases(steps) {
                    let mut queue = Queue::with_capacity(4);
                    let mut tokens = Tokens(&mut queue, Vec::new());
                    let mut expected: Vec<_> =
                        phase.iter().map(|&step| self.add(step, &mut tokens)).collect();
                    let mut tokens = tokens.1;
                    if !tokens.is_empty() {
                        let by = usize::from(*first) % tokens.len();
                        (tokens.rotate_left(by), expected.rotate_left(by));
                    }
                    for (token, expected) in tokens.into_iter().zip(expected) {
                        let done = queue.wait_for(token).expect("it was not taken");
                        self.check(expected, done, false);
                        assert!(!queue.contains(token));
                    }
                    assert!(queue.is_empty());
                }
            }
        }
    }

    fn batch(&self, steps: &[Step]) -> (Batch, Vec<Expected>) {
        let (mut batch, mut expected) = (Batch::new(), Vec::new());
        for phase in self.phases(steps) {
            expected.extend(phase.into_iter().map(|step| self.add(step, &mut batch)));
            batch.barrier();
        }
        (batch, expected)
    }

    fn check_all(&mut self, expected: Vec<Expected>, results: Vec<Completion>, may_be_cancelled: bool) {
        assert_eq!(expected.len(), results.len());
        for (expected, done) in expected.into_iter().zip(results) {
            self.check(expected, done, may_be_cancelled);
        }
    }
}

/// Takes operations.
trait Adds {
    fn add(&mut self, op: ringfile::Op<'_, impl ringfile::Output>);
}

impl Adds for Batch {
    fn add(&mut self, op: ringfile::Op<'_, impl ringfile::Output>) {
        Self::add(self, op);
    }
}

/// A queue, and the tokens of what was added to it; each operation's number is its place among them.
struct Tokens<'a>(&'a mut Queue, Vec<ringfile::Token>);

impl Adds for Tokens<'_> {
    fn add(&mut self, op: ringfile::Op<'_, impl ringfile::Output>) {
        let number = self.1.len() as u64;
        self.1.push(self.0.add(op, number));
    }
}
