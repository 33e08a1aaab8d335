//! A queue that is used for single reads, by their tokens.

use ringfile::{AnyBuffer, Done, File, Queue, Result, Token};

pub trait Handles {
    /// Adds a read and submits it.
    fn start(&mut self, file: &File, buffer: impl Into<AnyBuffer>, offset: u64) -> Token;

    /// Cancels an operation, and waits until the kernel has finished with its memory.
    fn abort(&mut self, token: Token) -> Result<Done>;
}

impl Handles for Queue {
    fn start(&mut self, file: &File, buffer: impl Into<AnyBuffer>, offset: u64) -> Token {
        let token = self.add(file.read_at(buffer.into(), offset), 0);
        self.submit();
        token
    }

    fn abort(&mut self, token: Token) -> Result<Done> {
        self.cancel(token);
        self.wait_by(token)
    }
}
