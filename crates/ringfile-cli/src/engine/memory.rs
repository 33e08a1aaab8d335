//! The memory of one operation of this library's engine: a buffer, or a list of parts.
//!
//! Invariants: all parts are in one registered region, so that the kernel accepts them in the fixed form, and no part
//! is followed by its neighbour in memory, so that the kernel can't join them.

use ringfile::{BufResult, Buffer, Error, File, Pool};

use super::window::Window;
use crate::error::{Failure, library};
use crate::job::{Job, Operation, Task};

/// The result of a transfer: the number of bytes, and the memory.
pub type Done<M> = (Result<usize, Error>, M);

/// Memory that operations move to and from.
pub trait OperationMemory: Sized + 'static {
    /// Gets memory with random contents.
    fn get(pool: &Pool, job: &Job, task: &mut Task) -> Result<Self, Failure>;

    /// Carries an operation out.
    fn transfer(self, file: &File, operation: Operation) -> impl Future<Output = Done<Self>>;

    /// Returns the memory if it is in one piece; only then are contents checked.
    fn whole(&mut self) -> Option<&mut [u8]>;
}

impl OperationMemory for Buffer {
    fn get(pool: &Pool, job: &Job, task: &mut Task) -> Result<Self, Failure> {
        let block = job.setup.block as usize;
        let mut buffer = pool.get(block).map_err(|error| library(&error.into()))?;
        buffer.resize(block, 0);
        task.fill(&mut buffer);
        Ok(buffer)
    }

    async fn transfer(self, file: &File, operation: Operation) -> Done<Self> {
        let done = if operation.write {
            file.write_at(self, operation.offset).await
        } else {
            file.read_at(self, operation.offset).await
        };
        apart(done, |buffer| buffer.len())
    }

    fn whole(&mut self) -> Option<&mut [u8]> {
        Some(self)
    }
}

impl OperationMemory for Vec<Buffer> {
    fn get(pool: &Pool, job: &Job, task: &mut Task) -> Result<Self, Failure> {
        let mut rest = Buffer::get(pool, job, task)?;
        let part = job.setup.block as usize / job.parts;
        let mut parts: Vec<Buffer> = (1..job.parts).map(|_| rest.split_to(part)).collect();
        parts.push(rest);
        parts.reverse();
        Ok(parts)
    }

    async fn transfer(self, file: &File, operation: Operation) -> Done<Self> {
        let done = if operation.write {
            file.write_vectored_at(self, operation.offset).await
        } else {
            file.read_vectored_at(self, operation.offset).await
        };
        apart(done, |parts| parts.iter().map(|part| part.len()).sum())
    }

    fn whole(&mut self) -> Option<&mut [u8]> {
        None
    }
}

#[inline]
fn apart<M>(done: BufResult<M>, length: impl Fn(&M) -> usize) -> Done<M> {
    match done {
        Ok(memory) => (Ok(length(&memory)), memory),
        Err(failed) => {
            let (error, memory) = failed.into_parts();
            (Err(error), memory)
        }
    }
}

/// Returns the memory of each of a thread's tasks. Ends the run if there is not enough.
pub fn of_tasks<M: OperationMemory>(
    job: &Job,
    thread: usize,
    pool: &Pool,
    window: &Window,
) -> Vec<(Task, M)> {
    let tasks = job.tasks(thread, window.share(thread)).into_iter();
    let got = tasks.map(|mut task| M::get(pool, job, &mut task).map(|memory| (task, memory)));
    got.collect::<Result<_, _>>().unwrap_or_else(|failure| {
        window.fail(failure);
        Vec::new()
    })
}
