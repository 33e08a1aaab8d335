//! Memory of a pool, inside a `poll`: it waits only if the pool is full, and allocates only then.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::memory::{Buffer, Pool, PoolError};

type MemoryFuture = dyn Future<Output = Result<Buffer, PoolError>> + Send;

/// A wait for memory, if there is one.
#[derive(Default)]
pub(super) struct WaitForMemory {
    /// How many bytes it waits for.
    len: usize,
    memory: Option<Pin<Box<MemoryFuture>>>,
}

impl WaitForMemory {
    pub(super) fn is_waiting(&self) -> bool {
        self.memory.is_some()
    }

    /// Returns whether it waits for at least `len` bytes.
    pub(super) fn waits_for(&self, len: usize) -> bool {
        self.is_waiting() && self.len >= len
    }

    /// Gets at least `len` bytes; `None` if the pool has none now and a wake-up will follow.
    pub(super) fn poll(
        &mut self,
        pool: &Pool,
        len: usize,
        context: &mut Context<'_>,
    ) -> Result<Option<Buffer>, PoolError> {
        if !self.waits_for(len) {
            self.memory = None;
            match pool.try_get(len) {
                Err(PoolError::Full { .. }) => {
                    let pool = pool.clone();
                    let memory = Box::pin(async move { pool.get_async(len).await });
                    *self = Self { len, memory: Some(memory) };
                }
                got => return got.map(Some),
            }
        }
        let Some(memory) = &mut self.memory else { return Ok(None) };
        let Poll::Ready(got) = memory.as_mut().poll(context) else { return Ok(None) };
        self.memory = None;
        got.map(Some)
    }
}
