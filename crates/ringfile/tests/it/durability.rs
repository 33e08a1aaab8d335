//! Each way to write durably obeys `OpenOptions::durability`, which the number of operations shows.

use crate::support::handles::Handles as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Folder, in_child, patience};
use ringfile::{Batch, Completion, Durability, File, OpenOptions, Queue, Route, block_on};

const PAGE: usize = 4096;
/// The writes of each kind that `Auto` measures.
const TRIALS: u64 = 64;

/// The ways to write durably.
#[derive(Clone, Copy, Debug)]
enum Way {
    Future,
    FutureElsewhere,
    Run,
    Awaited,
    AwaitedElsewhere,
    Started,
    Wait,
    WaitBy,
    Ready,
}

const WAYS: [Way; 9] = [
    Way::Future,
    Way::FutureElsewhere,
    Way::Run,
    Way::Awaited,
    Way::AwaitedElsewhere,
    Way::Started,
    Way::Wait,
    Way::WaitBy,
    Way::Ready,
];

fn batch_of_one(file: &File, page: Vec<u8>, offset: u64) -> Batch {
    let mut batch = Batch::new();
    batch.add(file.write_durable_at(page, offset));
    batch
}

impl Way {
    fn write(self, file: &File, page: Vec<u8>, offset: u64) {
        let only = |mut results: Vec<Completion>| {
            assert_eq!(results.len(), 1);
            results.remove(0)
        };
        let done = match self {
            Self::Future => return drop(block_on(file.write_durable_at(page, offset)).unwrap()),
            Self::FutureElsewhere => {
                return drop(futures::executor::block_on(file.write_durable_at(page, offset)).unwrap());
            }
            Self::Run => only(batch_of_one(file, page, offset).run()),
            Self::Awaited => only(block_on(batch_of_one(file, page, offset).into_future())),
            Self::AwaitedElsewhere => {
                only(futures::executor::block_on(batch_of_one(file, page, offset).into_future()))
            }
            Self::Started => {
                let (ends, end) = std::sync::mpsc::channel();
                let batch = batch_of_one(file, page, offset);
                let _started = batch.start(move |results| ends.send(results).unwrap());
                only(end.recv_timeout(patience()).unwrap())
            }
            Self::Wait | Self::WaitBy => {
                let mut queue = Queue::new();
                let token = queue.add(file.write_durable_at(page, offset), 7);
                if let Self::WaitBy = self { queue.wait_for(token).unwrap() } else { queue.end() }
            }
            Self::Ready => block_on(async {
                let mut queue = Queue::new();
                queue.add(file.write_durable_at(page, offset), 7);
                assert_eq!(queue.ready().await, 1);
                queue.next().unwrap()
            }),
        };
        assert_eq!(done.result.unwrap(), PAGE);
        assert_eq!(done.buffer.unwrap().len(), PAGE);
    }
}

/// Returns how many operations `run` has carried out. An I/O thread may count the last ones later.
fn counted(at_least: u64, run: impl FnOnce()) -> u64 {
    let before = ringfile::metrics();
    run();
    let (began, count) = (Instant::now(), || (ringfile::metrics() - before).ops);
    while count() < at_least && began.elapsed() < patience() {
        std::thread::sleep(Duration::from_millis(1));
    }
    count()
}

#[test]
fn each_way_to_write_durably_obeys_the_files_durability() {
    // Counts the operations of the whole process.
    if !in_child("each_way_to_write_durably_obeys_the_files_durability") {
        return;
    }
    // Counts, and so needs no disk, which would take 3 ms for each of 6,000 syncs.
    let folder = Folder::inside(Path::new("/dev/shm"));
    for route in [Route::Auto, Route::Ring, Route::Inline, Route::Workers] {
        if route == Route::Ring && support::is_without_ring() {
            support::skip("each_way_to_write_durably_obeys_the_files_durability", "no ring, for one route");
            continue;
        }
        for way in WAYS {
            for durability in [Durability::Dsync, Durability::Fsync, Durability::Auto] {
                let path = folder.path().join(format!("{route:?}-{way:?}-{durability:?}"));
                let file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .route(route)
                    .durability(durability)
                    .open_blocking(&path)
                    .unwrap();
                // One operation for a write with RWF_DSYNC, two for a write and its fdatasync.
                let expected = match durability {
                    Durability::Dsync => 2 * TRIALS,
                    Durability::Fsync => 4 * TRIALS,
                    _ => 3 * TRIALS,
                };
                let pages = 0..2 * TRIALS;
                let write = |page: u64| way.write(&file, vec![page as u8; PAGE], page * PAGE as u64);
                let ops = counted(expected, || pages.clone().for_each(write));
                assert_eq!(ops, expected, "{route:?}, {way:?}, {durability:?}");
                let content: Vec<u8> = pages.flat_map(|page| [page as u8; PAGE]).collect();
                assert!(std::fs::read(&path).unwrap() == content, "{route:?}, {way:?}, {durability:?}");
                if durability == Durability::Auto {
                    let ops = counted(4, || (0..4).for_each(write));
                    assert!(ops == 4 || ops == 8, "it has settled on one of them: {ops} for four writes");
                }
            }
        }
    }
}
