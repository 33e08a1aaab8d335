//! What tests do with a queue in one call.

use std::ops::RangeInclusive;
use std::time::Duration;

use ringfile::{AnyBuffer, Completion, File, Queue, Result, SharedQueue, Token};

pub trait Handles {
    /// Adds a read and submits it.
    fn start(&mut self, file: &File, buffer: impl Into<AnyBuffer>, offset: u64) -> Token;

    /// Cancels an operation, and waits until the kernel has finished with its memory.
    fn abort(&mut self, token: Token) -> Result<Completion>;

    /// Waits until so many results are available, and takes none.
    fn settle(&mut self, at_least: usize);

    /// Waits for so many results, and takes all that are there.
    fn ends(&mut self, at_least: usize) -> Vec<Completion>;

    /// Waits for so many results, which are all.
    #[track_caller]
    fn end_all(&mut self, count: usize) -> Vec<Completion> {
        let completions = self.ends(count);
        assert_eq!(completions.len(), count);
        completions
    }

    /// Waits for a result.
    fn end(&mut self) -> Completion;
}

impl Handles for Queue {
    fn start(&mut self, file: &File, buffer: impl Into<AnyBuffer>, offset: u64) -> Token {
        let token = self.add(file.read_at(buffer.into(), offset), 0);
        self.submit();
        token
    }

    fn abort(&mut self, token: Token) -> Result<Completion> {
        self.cancel(token);
        self.wait_for(token)
    }

    fn settle(&mut self, at_least: usize) {
        self.wait(RangeInclusive::new(at_least, 0), None, &mut Vec::new());
    }

    fn ends(&mut self, at_least: usize) -> Vec<Completion> {
        let mut completions = Vec::new();
        self.wait(at_least..=usize::MAX, None, &mut completions);
        completions
    }

    #[track_caller]
    fn end(&mut self) -> Completion {
        let mut completions = Vec::new();
        assert_eq!(self.wait(1..=1, None, &mut completions), 1);
        completions.remove(0)
    }
}

/// Waits for one result of a shared queue; `None` if no operation is open, or the timeout has passed.
pub fn one_of(queue: &SharedQueue, timeout: Option<Duration>) -> Option<Completion> {
    let mut completions = Vec::new();
    queue.wait(1..=1, timeout, &mut completions);
    completions.pop()
}
