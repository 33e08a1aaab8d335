//! The same reads and writes in every form that the library has, on every route. All must behave the same.

use std::future::IntoFuture;

use super::handles::Handles as _;
use ringfile::queue::ReadRequest;
use ringfile::{AnyBuffer, Batch, Buffer, Completion, Error, File, Queue, Route, block_on};

use super::{all, is_without_ring};

/// How operations are started and waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Futures of the file, on a ringfile thread.
    Loop,
    /// Futures of the file, in an executor that knows nothing of ringfile.
    Executor,
    /// Futures of the file, as tasks of tokio on several threads.
    Tokio,
    /// A batch that blocks its thread.
    Blocking,
    /// [`Queue::read_many`]. There are no such writes.
    Many,
    /// A batch that is awaited on a ringfile thread.
    AwaitedInLoop,
    /// A batch that is awaited in another executor.
    Awaited,
    /// Reads with handles. There are no such writes.
    Handles,
}

pub const READING: [Form; 8] = [
    Form::Loop,
    Form::Executor,
    Form::Tokio,
    Form::Blocking,
    Form::Many,
    Form::AwaitedInLoop,
    Form::Awaited,
    Form::Handles,
];

pub const WRITING: [Form; 6] =
    [Form::Loop, Form::Executor, Form::Tokio, Form::Blocking, Form::AwaitedInLoop, Form::Awaited];

/// Returns the routes that are available here.
pub fn routes() -> impl Iterator<Item = Route> {
    let every = [Route::Auto, Route::Ring, Route::Inline, Route::Workers];
    every.into_iter().filter(|&route| route != Route::Ring || !is_without_ring())
}

/// How one operation ended: its buffer, and its error if it failed.
pub type Ended = (Buffer, Option<Error>);

impl Form {
    /// Reads into each buffer from its offset. Returns results in order.
    pub fn read(self, file: &File, reads: Vec<(Buffer, u64)>) -> Vec<Ended> {
        let futures = |reads: Vec<(Buffer, u64)>| {
            reads.into_iter().map(|(buffer, offset)| file.read_at(buffer, offset)).collect::<Vec<_>>()
        };
        let batch = |reads: Vec<(Buffer, u64)>| {
            let mut batch = Batch::new();
            for (buffer, offset) in reads {
                batch.add(file.read_at(buffer, offset));
            }
            batch
        };
        match self {
            Self::Loop => each(block_on(all(futures(reads)))),
            Self::Executor => each(futures::executor::block_on(all(futures(reads)))),
            Self::Tokio => {
                let read = |(buffer, offset)| {
                    let file = file.clone();
                    async move { file.read_at(buffer, offset).await }
                };
                each(in_tokio(reads.into_iter().map(read)))
            }
            Self::Blocking => of_batch(batch(reads).run()),
            Self::Many => many(file, reads),
            Self::AwaitedInLoop => of_batch(block_on(batch(reads).into_future())),
            Self::Awaited => of_batch(futures::executor::block_on(batch(reads).into_future())),
            Self::Handles => {
                let mut open = Queue::new();
                let handles: Vec<_> =
                    reads.into_iter().map(|(buffer, offset)| open.start(file, buffer, offset)).collect();
                open.settle(handles.len() / 2);
                of_batch(handles.into_iter().map(|handle| open.wait_for(handle).unwrap()).collect())
            }
        }
    }

    /// Writes each buffer at its offset. Returns results in order.
    pub fn write(self, file: &File, writes: Vec<(Buffer, u64)>) -> Vec<Ended> {
        let futures = |writes: Vec<(Buffer, u64)>| {
            writes.into_iter().map(|(buffer, offset)| file.write_at(buffer, offset)).collect::<Vec<_>>()
        };
        let batch = |writes: Vec<(Buffer, u64)>| {
            let mut batch = Batch::new();
            for (buffer, offset) in writes {
                batch.add(file.write_at(buffer, offset));
            }
            batch
        };
        match self {
            Self::Loop => each(block_on(all(futures(writes)))),
            Self::Executor => each(futures::executor::block_on(all(futures(writes)))),
            Self::Tokio => {
                let write = |(buffer, offset)| {
                    let file = file.clone();
                    async move { file.write_at(buffer, offset).await }
                };
                each(in_tokio(writes.into_iter().map(write)))
            }
            Self::Blocking => of_batch(batch(writes).run()),
            Self::AwaitedInLoop => of_batch(block_on(batch(writes).into_future())),
            Self::Awaited => of_batch(futures::executor::block_on(batch(writes).into_future())),
            Self::Many | Self::Handles => unreachable!("there are no such writes"),
        }
    }
}

fn in_tokio<F>(tasks: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let tasks: Vec<_> = tasks.map(|task| tokio.spawn(task)).collect();
    tokio.block_on(async {
        let mut ended = Vec::new();
        for task in tasks {
            ended.push(task.await.unwrap());
        }
        ended
    })
}

fn each(results: Vec<ringfile::BufResult<Buffer>>) -> Vec<Ended> {
    let ended = |result: ringfile::BufResult<Buffer>| match result {
        Ok(buffer) => (buffer, None),
        Err(failed) => {
            let (error, buffer) = failed.into_parts();
            (buffer, Some(error))
        }
    };
    results.into_iter().map(ended).collect()
}

fn many(file: &File, reads: Vec<(Buffer, u64)>) -> Vec<Ended> {
    let mut requests: Vec<_> =
        reads.into_iter().map(|(buffer, offset)| ReadRequest::new(buffer, offset)).collect();
    Queue::new().read_many(file, &mut requests).unwrap();
    let ended = |ReadRequest { buffer, result, .. }: ReadRequest| {
        if let Ok(len) = result {
            assert_eq!(buffer.len(), len);
        }
        (buffer, result.err())
    };
    requests.into_iter().map(ended).collect()
}

fn of_batch(results: Vec<Completion>) -> Vec<Ended> {
    let ended = |done: Completion| {
        let buffer = done.buffer.and_then(AnyBuffer::into_pooled).unwrap();
        if let Ok(len) = done.result {
            assert_eq!(len, buffer.len(), "the length is that of the result");
        }
        (buffer, done.result.err())
    };
    results.into_iter().map(ended).collect()
}
