//! Batches that do not run to their end: dropped half way, larger than memory, or run while their thread ends.

use std::cell::RefCell;
use std::future::{Future, IntoFuture};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::support::{Folder, content, must_end, open_on_ring, wait_for, yield_now, yield_until};
use ringfile::queue::BatchRun;
use ringfile::{Batch, Completion, File, Pool, block_on};

/// Makes a batch that waits for a pipe without data.
fn waits_for_ever(pool: &Pool) -> (BatchRun, std::io::PipeWriter) {
    let (theirs, ours) = std::io::pipe().unwrap();
    let pipe = File::from(std::fs::File::from(OwnedFd::from(theirs)));
    let mut batch = Batch::new().depth(3);
    for _ in 0..10 {
        batch.add(pipe.read_at(pool.get(4096).unwrap(), 0));
    }
    (batch.into_future(), ours)
}

fn is_pending(run: &mut BatchRun, context: &mut Context<'_>) {
    assert!(matches!(Pin::new(run).poll(context), Poll::Pending));
}

#[test]
fn a_dropped_batch_cancels_its_operations_in_flight() {
    must_end("the drop of a batch", || {
        let pool = Pool::new(1 << 20);
        // I/O threads carry out the batch.
        let (mut run, pipe) = waits_for_ever(&pool);
        is_pending(&mut run, &mut Context::from_waker(Waker::noop()));
        drop(run);
        wait_for("the memory's return from the I/O threads", || pool.metrics().in_use == 0);
        drop(pipe);
        // This thread's own ring carries it out; leaving the loop waits for it.
        let _pipe = block_on(async {
            let (mut run, pipe) = waits_for_ever(&pool);
            std::future::poll_fn(|context| {
                is_pending(&mut run, context);
                Poll::Ready(())
            })
            .await;
            yield_now().await;
            drop(run);
            pipe
        });
        wait_for("the memory's return from the loop", || pool.metrics().in_use == 0);
    });
}

#[test]
fn a_batch_that_was_begun_in_a_loop_and_dropped_elsewhere_is_cancelled_too() {
    must_end("the drop of a batch elsewhere", || {
        let pool = Pool::new(1 << 20);
        let (mut run, _pipe) = waits_for_ever(&pool);
        block_on(async {
            std::future::poll_fn(|context| {
                is_pending(&mut run, context);
                Poll::Ready(())
            })
            .await;
            yield_now().await;
            std::thread::spawn(move || drop(run)).join().unwrap();
            yield_until("the memory", || pool.metrics().in_use == 0).await;
        });
    });
}

/// Runs a batch when its thread ends, and sends the result.
struct AtTheEnd(File, std::sync::mpsc::Sender<Completion>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        let mut batch = Batch::new();
        batch.add(self.0.read_at(Vec::with_capacity(10), 0));
        let _ = self.1.send(batch.run().remove(0));
    }
}

thread_local! {
    static BEFORE: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
    static AFTER: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
}

#[test]
fn a_batch_that_is_run_while_its_thread_ends_is_done_or_refused() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 4096));
    for file in [File::open_blocking(&path).unwrap(), open_on_ring(&path)] {
        let (ended, ends) = std::sync::mpsc::channel();
        must_end("a thread that runs batches as it ends", move || {
            let at_the_end = || AtTheEnd(file.clone(), ended.clone());
            // The order in which a thread drops its thread-locals is not specified: here before and after the driver's.
            BEFORE.set(Some(at_the_end()));
            let mut batch = Batch::new();
            batch.add(file.read_at(Vec::with_capacity(10), 0));
            assert_eq!(*batch.run()[0].result.as_ref().unwrap(), 10);
            AFTER.set(Some(at_the_end()));
        });
        let results: Vec<Completion> = ends.iter().collect();
        assert_eq!(results.len(), 2);
        for done in results {
            let buffer = done.buffer.unwrap();
            match done.result {
                Ok(len) => assert_eq!((len, &buffer[..]), (10, &content(0, 10)[..])),
                Err(error) => {
                    assert!(error.to_string().contains("the thread is ending"), "{error}");
                    assert!(buffer.is_empty());
                }
            }
        }
    }
}
