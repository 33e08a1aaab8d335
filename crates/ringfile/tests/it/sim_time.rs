//! What waits for time or for something slow, on a simulated disk: the clock is simulated too, so each test says exactly when
//! something happens, and none of them waits.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use ringfile::sim::{Disk, Faults, Simulation, for_each_seed, sleep};
use ringfile::{Appender, Batch, Buffer, Config, Durability, File, JoinHandle, OpenOptions, Pool, Queue};

const PAGE: usize = 4096;
const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

fn content(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| (at % 251) as u8 + 1).collect()
}

async fn open(options: &mut OpenOptions) -> File {
    options.read(true).write(true).create(true).open("file").await.unwrap()
}

/// A disk whose operations take a millisecond each.
fn steady() -> Simulation {
    Simulation::new(1).faults(Faults::none().latency(MS..MS))
}

/// Returns what a future returns within that time.
async fn within<F: IntoFuture>(time: Duration, future: F) -> Option<F::Output> {
    let (mut future, mut timer) = (pin!(future.into_future()), pin!(sleep(time)));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => timer.as_mut().poll(context).map(|()| None),
    })
    .await
}

async fn join<T>(tasks: Vec<JoinHandle<T>>) {
    for task in tasks {
        task.await.unwrap();
    }
}

/// Reads 40 pages by a batch, and returns how long that took.
async fn read_pages(disk: &Disk, mut batch: Batch) -> Duration {
    let file = open(&mut OpenOptions::new()).await;
    file.write_at(content(0, 40 * PAGE), 0).await.unwrap();
    let (pool, began) = (Pool::new(1 << 20), disk.elapsed());
    for page in 0..40 {
        batch.add(file.read_at(pool.get(PAGE).unwrap(), (page * PAGE) as u64));
    }
    for (page, done) in batch.await.into_iter().enumerate() {
        assert_eq!(done.take::<Buffer>().unwrap()[..], content((page * PAGE) as u64, PAGE));
    }
    disk.elapsed() - began
}

#[test]
fn as_many_operations_are_in_flight_as_a_batch_allows() {
    for most in 1..50_u32 {
        let took =
            steady().run(|disk| async move { read_pages(&disk, Batch::new().depth(most as usize)).await });
        assert_eq!(took.into_result(), Some(40_u32.div_ceil(most) * MS), "{most} in flight");
    }
}

#[test]
fn the_depth_setting_applies_to_batches() {
    let config = Config::parse("depth = 3").unwrap();
    let took = steady().run(|disk| async move { read_pages(&disk, config.batch()).await });
    assert_eq!(took.into_result(), Some(14 * MS));
}

#[test]
fn a_dropped_batch_starts_nothing_more_and_gives_its_memory_back_when_the_disk_has_ended() {
    steady().run(|_| async {
        let file = open(&mut OpenOptions::new()).await;
        let (pool, mut batch) = (Pool::new(1 << 20), Batch::new().depth(4));
        for page in 0..20 {
            let mut buffer = pool.get(PAGE).unwrap();
            buffer.extend_from_slice(&content((page * PAGE) as u64, PAGE));
            batch.add(file.write_at(buffer, (page * PAGE) as u64));
        }
        assert!(within(MS / 2, batch).await.is_none());
        assert_eq!(pool.metrics().in_use, 4 * PAGE, "of what is in flight");
        sleep(MS / 4).await;
        assert_eq!(pool.metrics().in_use, 4 * PAGE);
        sleep(MS / 2).await;
        assert_eq!(pool.metrics().in_use, 0);
        sleep(HOUR).await;
        assert!(file.size().unwrap() <= 4 * PAGE as u64, "more was started");
    });
}

#[test]
fn a_wait_for_a_queue_that_is_given_up_changes_nothing() {
    let stuck = Faults::none().latency(MS..MS).stuck(1.0, HOUR);
    Simulation::new(1).faults(stuck).run(|disk| async move {
        let file = open(&mut OpenOptions::new()).await;
        let (mut queue, began) = (Queue::new(), disk.elapsed());
        let token = queue.add(file.write_at(content(0, PAGE), 0), 7);
        for second in 1..=10 {
            assert!(within(Duration::from_secs(1), queue.ready()).await.is_none());
            assert_eq!(disk.elapsed() - began, Duration::from_secs(second));
            assert!(!queue.is_done(token) && queue.len() == 1);
        }
        assert_eq!(queue.ready().await, 1);
        assert_eq!(disk.elapsed() - began, HOUR + MS);
        let done = queue.next().unwrap();
        let number = done.user_data;
        assert_eq!((number, done.result.unwrap()), (7, PAGE));
    });
}

#[test]
fn a_stream_waits_for_memory_that_others_have() {
    steady().run(|disk| async move {
        let file = open(&mut OpenOptions::new()).await;
        let bytes = content(0, 50_000);
        file.write_at(bytes.clone(), 0).await.unwrap();
        let page = Pool::new(1).metrics().capacity;
        let pool = Pool::new(2 * page);
        let all = [pool.get(page).unwrap(), pool.get(page).unwrap()];
        let mut reader = file.reader(&pool).block(page).depth(4);
        assert!(within(HOUR, reader.next()).await.is_none());
        assert!(pool.metrics().waits > 0);
        drop(all);
        let (mut read, began) = (Vec::new(), disk.elapsed());
        while let Some(piece) = reader.next().await {
            read.extend_from_slice(&piece.unwrap());
        }
        assert!(read == bytes);
        // As many reads are in flight as there are blocks.
        let reads = bytes.len().div_ceil(page) as u32;
        assert!(disk.elapsed() - began <= (reads + 1) * MS);
    });
}

async fn log(options: &mut OpenOptions, interval: Duration) -> Appender {
    let file = open(options).await;
    Appender::open(&file, &Pool::new(1 << 20), 0).block(PAGE).sync_interval(interval).await.unwrap()
}

/// Appends 100 bytes so many times, and syncs after each.
async fn append(log: Appender, times: u64) {
    for _ in 0..times {
        let end = log.append(&[7; 100]).await.unwrap() + 100;
        log.sync().await.unwrap();
        assert!(log.durable() >= end);
    }
}

#[test]
fn syncs_that_wait_share_one() {
    for durability in [Durability::Dsync, Durability::Fsync] {
        steady().run(|disk| async move {
            let log = log(OpenOptions::new().durability(durability), Duration::ZERO).await;
            let (before, began) = (log.metrics(), disk.elapsed());
            let first = ringfile::spawn(append(log.clone(), 1));
            sleep(MS / 2).await;
            let others = (0..20).map(|_| ringfile::spawn(append(log.clone(), 1))).collect();
            sleep(MS / 4).await;
            assert_eq!(
                (log.len(), log.written()),
                (2100, 0),
                "all have appended, and the first write is in flight"
            );
            join(others).await;
            first.await.unwrap();
            let counts = log.metrics();
            assert_eq!(
                (counts.appends, counts.writes, counts.syncs - before.syncs),
                (21, 2, 2),
                "{durability:?}"
            );
            let each = if durability == Durability::Fsync { 2 } else { 1 };
            assert_eq!(disk.elapsed() - began, 2 * each * MS, "{durability:?}");
            assert_eq!(log.file().read_at(vec![0; 3000], 0).await.unwrap(), [7; 2100]);
        });
    }
}

#[test]
fn a_block_is_not_written_again_while_a_write_of_it_is_in_flight() {
    steady().run(|_| async move {
        let log = log(OpenOptions::new().direct(true), Duration::ZERO).await;
        let flush = |from: u64| {
            let log = log.clone();
            ringfile::spawn(async move {
                log.append(&content(from, 100)).await.unwrap();
                log.flush().await.unwrap();
            })
        };
        let first = flush(0);
        sleep(MS / 4).await;
        let second = flush(100);
        sleep(MS / 2).await;
        assert_eq!((log.metrics().writes, log.len(), log.written()), (1, 200, 0));
        first.await.unwrap();
        assert_eq!(log.written(), 100);
        second.await.unwrap();
        assert_eq!((log.metrics().writes, log.written()), (2, 200));
        let found = log.file().read_at(vec![0; PAGE], 0).await.unwrap();
        assert_eq!(found[..200], content(0, 200));
        assert!(found[200..].iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_failure_is_reported_once_nothing_is_in_flight() {
    let failed = std::sync::atomic::AtomicUsize::new(0);
    for_each_seed(0..300, |seed| {
        let faults = Faults::none().write_errors(0.2).stuck(0.3, Duration::from_secs(1));
        let outcome = Simulation::new(seed).faults(faults).run(|_| async {
            let log = log(&mut OpenOptions::new(), Duration::ZERO).await;
            let file = log.file().clone();
            if log.append(&content(0, 4 * PAGE)).await.is_ok() && log.flush().await.is_ok() {
                return false;
            }
            let read = || file.read_at(vec![0; 5 * PAGE], 0);
            let before = read().await.unwrap();
            for refused in [log.append(b"more").await.map(drop), log.sync().await, log.close().await] {
                assert_eq!(refused.unwrap_err().errno(), Some(libc::EIO));
            }
            assert!(content(0, 4 * PAGE).starts_with(&before[..log.written() as usize]));
            sleep(HOUR).await;
            assert!(read().await.unwrap() == before, "a write was in flight");
            true
        });
        failed.fetch_add(usize::from(outcome.into_result().unwrap()), std::sync::atomic::Ordering::Relaxed);
    });
    assert!(failed.into_inner() > 100, "few have failed");
}

#[test]
fn syncs_start_no_earlier_than_the_interval_allows() {
    const INTERVAL: Duration = Duration::from_millis(20);
    for_each_seed(0..100, |seed| {
        Simulation::new(seed).run(|disk| async move {
            let log = log(&mut OpenOptions::new(), INTERVAL).await;
            let (before, began) = (log.metrics().syncs, disk.elapsed());
            let counts = || u128::from(log.metrics().syncs - before);
            let tasks: Vec<_> = (0..4).map(|_| ringfile::spawn(append(log.clone(), 5))).collect();
            // From the first sync on, each interval has one at most. Every task needs five.
            while counts() == 0 {
                sleep(MS / 100).await;
            }
            let first = disk.elapsed();
            join(tasks).await;
            let syncs = counts();
            let most = (disk.elapsed() - began).as_nanos() / INTERVAL.as_nanos() + 1;
            assert!(syncs <= most && (5..=20).contains(&syncs), "{syncs} syncs, at most {most}");
            let took = disk.elapsed() - first;
            assert!(took >= (syncs as u32 - 1) * INTERVAL - 3 * MS, "{syncs} syncs in {took:?}");
            log.close().await.unwrap();
            assert_eq!(log.file().read_at(vec![0; 3000], 0).await.unwrap(), [7; 2000]);
        });
    });
}

#[test]
fn only_syncs_wait_for_the_interval() {
    steady().run(|disk| async move {
        let log = log(&mut OpenOptions::new(), HOUR).await;
        let before = log.metrics().syncs;
        append(log.clone(), 1).await;
        let began = disk.elapsed();
        let bytes = content(100, 10 * PAGE);
        let mut waits = pin!(log.sync());
        assert_eq!(log.append(&bytes).await.unwrap(), 100);
        assert!(within(Duration::ZERO, waits.as_mut()).await.is_none());
        // Full blocks are written while the sync waits: there is room for more than the appender holds.
        for part in 1..10 {
            log.append(&content(100 + part * bytes.len() as u64, bytes.len())).await.unwrap();
        }
        log.flush().await.unwrap();
        assert!(disk.elapsed() - began < Duration::from_secs(1));
        assert!(within(HOUR / 2, waits.as_mut()).await.is_none());
        assert_eq!((log.written(), log.durable()), (log.len(), 100));
        let found = log.file().read_at(vec![0; 101 * PAGE], 0).await.unwrap();
        assert!(found[100..] == content(100, log.len() as usize - 100));
        assert_eq!(log.metrics().syncs - before, 1);
        log.close().await.unwrap();
        assert!(disk.elapsed() - began < HOUR / 2 + Duration::from_secs(1), "closing does not wait");
        waits.await.unwrap();
        assert_eq!(log.durable(), log.len());
    });
}

#[test]
fn a_sync_that_waits_for_the_interval_starts_when_it_is_over() {
    steady().run(|disk| async move {
        let log = log(&mut OpenOptions::new(), HOUR).await;
        let began = disk.elapsed();
        append(log.clone(), 3).await;
        let took = disk.elapsed() - began;
        assert!(2 * HOUR <= took && took <= 2 * HOUR + 10 * MS, "{took:?}");
    });
}

#[test]
fn f51_a_failure_is_reported_though_a_sync_waits() {
    let failed = std::sync::atomic::AtomicUsize::new(0);
    for_each_seed(0..200, |seed| {
        let failed = &failed;
        Simulation::new(seed).faults(Faults::none().write_errors(0.4)).run(|disk| async move {
            let log = log(&mut OpenOptions::new(), HOUR).await;
            if log.append(&[7; 100]).await.is_err() || log.sync().await.is_err() {
                return;
            }
            let began = disk.elapsed();
            log.append(&[7; 100]).await.unwrap();
            let mut waits = pin!(log.sync());
            assert!(within(MS, waits.as_mut()).await.is_none());
            let Err(error) = log.flush().await else { return };
            assert_eq!(error.errno(), Some(libc::EIO));
            assert_eq!(waits.await.unwrap_err().errno(), Some(libc::EIO));
            assert_eq!(log.durable(), 100);
            assert!(disk.elapsed() - began < Duration::from_secs(1), "it waits for the interval");
            failed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
    });
    assert!(failed.into_inner() > 20, "few have failed");
}

#[test]
fn f61_close_ends_with_the_last_operation_of_another_task() {
    let took = steady().run(|disk| async move {
        let file = open(&mut OpenOptions::new()).await;
        let (other, began) = (file.clone(), disk.elapsed());
        let write = ringfile::spawn(async move { other.write_at(content(0, PAGE), 0).await.is_ok() });
        file.close().await.unwrap();
        let took = disk.elapsed() - began;
        assert!(write.await.unwrap());
        took
    });
    assert_eq!(took.into_result(), Some(MS));
}
