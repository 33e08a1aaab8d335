//! The memory of one operation of this library's engine: a buffer, a list of parts, or one of many places.
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

    /// Gets memory for each of a thread's tasks.
    fn get_all(pool: &Pool, job: &Job, tasks: &mut [Task]) -> Result<Vec<Self>, Failure> {
        tasks.iter_mut().map(|task| Self::get(pool, job, task)).collect()
    }

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

/// Places of one operation each, spread over a large buffer. Each operation takes one of them at random.
pub struct Scattered {
    places: Vec<Buffer>,
    random: fastrand::Rng,
}

impl Scattered {
    /// Bytes of a thread's large buffer: more than the caches of a processor hold.
    pub const BYTES: u64 = 256 << 20;

    /// Returns the number of places of each of a thread's tasks.
    pub fn places(job: &Job) -> usize {
        (Scattered::BYTES / job.setup.block / job.setup.iodepth as u64).max(1) as usize
    }
}

impl OperationMemory for Scattered {
    fn get(pool: &Pool, job: &Job, task: &mut Task) -> Result<Self, Failure> {
        let mut all = Scattered::get_all(pool, job, std::slice::from_mut(task))?;
        Ok(all.remove(0))
    }

    fn get_all(pool: &Pool, job: &Job, tasks: &mut [Task]) -> Result<Vec<Self>, Failure> {
        let (block, each) = (job.setup.block as usize, Scattered::places(job));
        let length = block * each * tasks.len();
        let mut rest = pool.get(length).map_err(|error| library(&error.into()))?;
        rest.resize(length, 0);
        let new = |index| Scattered { places: Vec::with_capacity(each), random: job.random(index as u64) };
        let mut all: Vec<Scattered> = (0..tasks.len()).map(new).collect();
        for _ in 0..each {
            for (memory, task) in all.iter_mut().zip(&mut *tasks) {
                let mut place = rest.split_to(block);
                task.fill(&mut place);
                memory.places.push(place);
            }
        }
        Ok(all)
    }

    async fn transfer(mut self, file: &File, operation: Operation) -> Done<Self> {
        let place = self.places.swap_remove(self.random.usize(..self.places.len()));
        let (moved, place) = place.transfer(file, operation).await;
        self.places.push(place);
        (moved, self)
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
    let mut tasks = job.tasks(thread, window.share(thread));
    let got = M::get_all(pool, job, &mut tasks);
    got.map(|memory| tasks.into_iter().zip(memory).collect()).unwrap_or_else(|failure| {
        window.fail(failure);
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::ringfile::pool;
    use super::*;
    use crate::model::{Buffers, Rw};

    #[test]
    fn scattered_operations_use_all_of_one_large_buffer() {
        let mut job = crate::job::tests::job(Rw::RandRead, 1, 16, 101, false);
        // Few places, so that they are quickly filled.
        (job.setup.buffers, job.setup.block) = (Buffers::Scattered, 1 << 20);
        let pool = pool(&job).expect("a pool");
        let share = std::sync::Arc::new(job.shares().remove(0));
        let mut tasks = job.tasks(0, &share);
        let memory = Scattered::get_all(&pool, &job, &mut tasks).expect("memory");
        assert_eq!(
            (memory.len(), pool.metrics().regions),
            (16, 1),
            "a task each, all in one registered buffer"
        );
        let data = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(data.path(), vec![7; 1 << 20]).expect("written");
        let file = ringfile::OpenOptions::new().read(true).open_blocking(data.path()).expect("opened");
        let all = memory.iter().flat_map(|memory| &memory.places).map(|place| place.as_ptr() as usize);
        let all: BTreeSet<usize> = all.collect();
        let (first, last) = (all.first().expect("places"), all.last().expect("places"));
        assert_eq!((all.len(), last - first), (256, 255 << 20));
        let used = ringfile::block_on(async {
            let (mut memory, mut used) = (memory.into_iter().next().expect("a task"), BTreeSet::new());
            for _ in 0..200 {
                let (moved, back) = memory.transfer(&file, Operation { offset: 0, write: false }).await;
                assert_eq!(moved.expect("read"), 1 << 20);
                used.insert(back.places.last().expect("just used").as_ptr() as usize);
                memory = back;
            }
            used
        });
        assert_eq!(used.len(), 16, "200 operations of one task use each of its 16 places");
    }
}
