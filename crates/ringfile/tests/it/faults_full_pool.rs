//! Futures that need pool memory while others hold all of it (F36).

use std::future::poll_fn;
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::support;
use crate::support::forms::routes;
use crate::support::{Folder, assert_content, content, must_end, poll_once};
use ringfile::buf::PoolError;
use ringfile::{Buffer, File, OpenOptions, Pool, WhenFull, block_on};

const PAGE: usize = 4096;
const PAGES: usize = 16;

fn full_pool(when_full: WhenFull) -> (Pool, Vec<Buffer>) {
    let pool = Pool::builder().capacity(4 * PAGE).when_full(when_full).build().unwrap();
    let all = (0..4).map(|_| pool.get(PAGE).unwrap()).collect();
    (pool, all)
}

fn each_way(mut run: impl FnMut(File, WhenFull)) {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGES * PAGE));
    for route in routes() {
        for direct in [false, true] {
            for when_full in [WhenFull::Wait, WhenFull::Error] {
                let mut options = OpenOptions::new();
                options.read(true).route(route).direct(direct).buffered_fallback(true);
                run(options.open_blocking(&path).unwrap(), when_full);
            }
        }
    }
}

/// Reads the whole file with a reader that finds the pool empty at first.
async fn read_all(file: File, pool: Pool, waits: Arc<AtomicBool>) -> usize {
    let mut reader = file.reader(&pool).block(PAGE).depth(2);
    let mut next = 0;
    {
        let mut first = reader.next();
        let piece = poll_fn(|context| {
            let polled = Pin::new(&mut first).poll(context);
            waits.fetch_or(polled.is_pending(), Ordering::SeqCst);
            polled
        })
        .await;
        let piece = piece.unwrap().unwrap();
        assert_content(&piece, 0);
        next += piece.len();
    }
    while let Some(piece) = reader.next().await {
        let piece = piece.unwrap();
        assert_content(&piece, next as u64);
        next += piece.len();
    }
    next
}

#[test]
fn f36_a_reader_without_memory_lets_the_task_that_has_it_run() {
    each_way(|file, when_full| {
        must_end("a reader beside the task that holds the pool's memory", move || {
            let (pool, all) = full_pool(when_full);
            let waits = Arc::new(AtomicBool::new(false));
            let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let read = tokio.block_on(async {
                let reader = tokio::spawn(read_all(file, pool.clone(), Arc::clone(&waits)));
                let holder = tokio::spawn(async move {
                    while !waits.load(Ordering::SeqCst) {
                        tokio::task::yield_now().await;
                    }
                    drop(all);
                });
                holder.await.unwrap();
                reader.await.unwrap()
            });
            assert_eq!(read, PAGES * PAGE);
            support::wait_for("the memory", || pool.metrics().in_use == 0);
        });
    });
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn f36_a_reader_that_waits_is_woken_by_returned_memory_and_gives_up_its_place_when_dropped() {
    each_way(|file, when_full| {
        must_end("a reader that waits for memory", move || {
            let (pool, mut all) = full_pool(when_full);
            let count = Arc::new(Count::default());
            let waker = Waker::from(Arc::clone(&count));
            let mut context = Context::from_waker(&waker);
            let mut dropped = file.reader(&pool).block(PAGE);
            let mut reader = file.reader(&pool).block(PAGE);
            for _ in 0..3 {
                assert!(Pin::new(&mut dropped.next()).poll(&mut context).is_pending());
                assert!(Pin::new(&mut reader.next()).poll(&mut context).is_pending());
            }
            assert_eq!(count.0.load(Ordering::SeqCst), 0);
            drop(dropped);
            drop(all.pop());
            assert!(count.0.load(Ordering::SeqCst) > 0, "memory came back and nobody was woken");
            // The pool has one block only: no second read is started, and the poll waits for none.
            let piece = loop {
                match Pin::new(&mut reader.next()).poll(&mut context) {
                    Poll::Ready(piece) => break piece.unwrap().unwrap(),
                    Poll::Pending => std::thread::yield_now(),
                }
            };
            assert_content(&piece, 0);
            assert_eq!(piece.len(), PAGE);
            drop((reader, piece, all));
            support::wait_for("the memory", || pool.metrics().in_use == 0);
        });
    });
}

#[test]
fn f36_unaligned_direct_reads_need_none_of_the_users_memory() {
    each_way(|file, when_full| {
        must_end("an unaligned direct read beside a full pool", move || {
            let (pool, all) = full_pool(when_full);
            let read = futures::executor::block_on(file.read_at(vec![0; 1000], 17)).unwrap();
            assert_content(&read, 17);
            let mut batch = ringfile::Batch::new();
            batch.add(file.read_at(vec![0; 3 * PAGE], 5));
            let done = futures::executor::block_on(std::future::IntoFuture::into_future(batch));
            assert_content(done[0].buffer.as_ref().unwrap(), 5);
            assert!(when_full != WhenFull::Error || matches!(pool.get(PAGE), Err(PoolError::Full { .. })));
            drop(all);
        });
    });
}

/// A reader that gets the memory it asked for before its block grew must not read beyond the end of that memory.
#[test]
fn f36_a_reader_whose_block_grows_while_it_waits_for_memory_asks_again() {
    const LONG: usize = 16 * PAGE;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, LONG));
    for is_pipe in [false, true] {
        let (reads, mut writes) = std::io::pipe().unwrap();
        let file = if is_pipe {
            writes.write_all(&content(0, LONG)).unwrap();
            File::from(std::fs::File::from(std::os::fd::OwnedFd::from(reads)))
        } else {
            File::open_blocking(&path).unwrap()
        };
        drop(writes);
        let pool = Pool::new(1 << 20);
        let mut all: Vec<Buffer> = std::iter::from_fn(|| pool.get(PAGE).ok()).collect();
        all.iter_mut().for_each(|page| page.resize(PAGE, 7));
        all.sort_by_key(|page| page.as_ptr().addr());
        let mut reader = file.reader(&pool).block(PAGE).depth(1);
        block_on(async {
            assert!(poll_once(&mut reader.next()).await.is_pending(), "the pool is full");
            let mut reader = reader.block(LONG);
            drop(all.remove(3));
            assert!(poll_once(&mut reader.next()).await.is_pending(), "a page is too small");
            assert!(all.iter().all(|page| page.iter().all(|&byte| byte == 7)));
            all.clear();
            let mut offset = 0;
            while let Some(piece) = reader.next().await {
                let piece = piece.unwrap();
                assert_content(&piece, offset);
                offset += piece.len() as u64;
            }
            assert_eq!(offset, LONG as u64);
        });
    }
}

#[test]
fn a_range_that_is_set_after_reads_have_begun_is_read_alone() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 16 * PAGE));
    let (file, pool) = (File::open_blocking(&path).unwrap(), Pool::new(1 << 20));
    let mut reader = file.reader(&pool).block(PAGE);
    block_on(async {
        assert_content(&reader.next().await.unwrap().unwrap(), 0);
        let mut reader = reader.range(8 * PAGE as u64..10 * PAGE as u64);
        for page in [8, 9] {
            assert_content(&reader.next().await.unwrap().unwrap(), page * PAGE as u64);
        }
        assert!(reader.next().await.is_none());
    });
}
