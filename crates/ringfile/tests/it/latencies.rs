//! Histograms of latencies, and reports of slow operations, as a user of the library sees them.

use crate::support::handles::Handles as _;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::forms::routes;
use crate::support::{Folder, content, in_child, on_events, skip, workers_are_forced};
use ringfile::metrics::{Latencies, OperationKind};
use ringfile::queue::ReadRequest;
use ringfile::{Batch, File, OpenOptions, Pool, Queue, Route, block_on};

const PAGE: usize = 4096;
/// So long that nothing is reported; but each operation is timed.
const NEVER: Duration = Duration::from_secs(86400);

fn counts(latencies: &Latencies) -> [u64; 4] {
    OperationKind::ALL.map(|kind| latencies.histogram(kind).count())
}

/// Makes 3 reads, 2 writes, 2 syncs and 1 truncation, in each of the three ways.
fn operate(file: &File, pool: &Pool) {
    let buffer = || {
        let mut buffer = pool.get(PAGE).unwrap();
        buffer.resize(PAGE, 7);
        buffer
    };
    block_on(async {
        file.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap();
        file.write_at(buffer(), 0).await.unwrap();
        file.sync_data().await.unwrap();
    });
    let mut batch = Batch::new();
    batch.add(file.read_at(pool.get(PAGE).unwrap(), 0));
    batch.add(file.write_at(buffer(), 4096));
    batch.run().into_iter().for_each(|done| _ = done.result.unwrap());
    let mut queue = Queue::new();
    queue.add(file.read_at(pool.get(PAGE).unwrap(), 0), 1);
    queue.add(file.sync_all(), 2);
    queue.add(file.set_len(1 << 20), 3);
    let mut left = 3;
    while left > 0 {
        for done in queue.ends(1) {
            done.result.unwrap();
            left -= 1;
        }
    }
}

#[test]
fn each_operation_counts_once_on_each_route() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 1 << 20));
    let pool = Pool::new(4 << 20);
    let each = routes().flat_map(|route| [(route, false), (route, true)]);
    let aio = (!workers_are_forced()).then_some((Route::Aio, true));
    for (route, direct) in each.chain(aio) {
        let latencies = Latencies::new();
        let mut options = OpenOptions::new();
        options.read(true).write(true).route(route).direct(direct).latencies(&latencies).slow_after(NEVER);
        let Ok(file) = options.open_blocking(&path) else {
            skip("each_operation_counts_once_on_each_route", "a route that needs direct I/O");
            continue;
        };
        operate(&file, &pool);
        assert_eq!(counts(&latencies), [3, 2, 2, 1], "{route:?}, direct: {direct}");
        let reads = latencies.histogram(OperationKind::Read);
        assert!(reads.quantile(1.0) > Duration::ZERO && reads.sum() > Duration::ZERO);
        assert!(reads.sum() <= reads.quantile(1.0) * 3);
    }
}

/// Opens a file to read it by this route; `latencies` counts.
fn timed(path: &Path, route: Route, latencies: &Latencies) -> File {
    let mut options = OpenOptions::new();
    options.read(true).route(route).latencies(latencies).slow_after(NEVER).open_blocking(path).unwrap()
}

/// Reads the first pages together, and returns how many bytes each read has moved.
fn read_pages(queue: &mut Queue, file: &File, pool: &Pool, pages: u64) -> Vec<usize> {
    let offsets = (0..pages).map(|page| page * PAGE as u64);
    let mut requests: Vec<_> =
        offsets.map(|offset| ReadRequest::new(pool.get(PAGE).unwrap(), offset)).collect();
    queue.read_many(file, &mut requests).unwrap();
    requests.into_iter().map(|request| request.result.unwrap()).collect()
}

#[test]
fn reads_in_place_count_once_each() {
    const READS: u64 = 300;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, READS as usize * PAGE));
    let pool = Pool::new(4 << 20);
    for route in routes() {
        let latencies = Latencies::new();
        let file = timed(&path, route, &latencies);
        let mut queue = Queue::new();
        for round in 1..=3 {
            let moved = read_pages(&mut queue, &file, &pool, READS);
            assert_eq!(moved, vec![PAGE; READS as usize]);
            assert_eq!(counts(&latencies), [round * READS, 0, 0, 0], "{route:?}");
        }
    }
}

#[test]
fn a_read_in_place_that_meets_the_end_of_the_file_counts_once() {
    const READS: u64 = 40;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 10 * PAGE + 100));
    let pool = Pool::new(4 << 20);
    for route in routes() {
        let latencies = Latencies::new();
        let file = timed(&path, route, &latencies);
        let moved = read_pages(&mut Queue::new(), &file, &pool, READS);
        assert_eq!(moved.iter().sum::<usize>(), 10 * PAGE + 100);
        assert_eq!(counts(&latencies), [READS, 0, 0, 0], "{route:?}");
    }
}

#[test]
fn short_operations_of_many_threads_are_sampled_as_those_of_one() {
    const THREADS: u64 = 480;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let latencies = Latencies::new();
    let file = OpenOptions::new()
        .read(true)
        .route(Route::Inline)
        .latencies(&latencies)
        .open_blocking(&path)
        .unwrap();
    let read = || _ = block_on(file.read_at(Vec::with_capacity(512), 0)).unwrap();
    // The first ones show that they are short.
    (0..100).for_each(|_| read());
    let before = latencies.histogram(OperationKind::Read);
    for _ in 0..THREADS {
        std::thread::scope(|scope| _ = scope.spawn(read));
    }
    let counted = (latencies.histogram(OperationKind::Read) - before).count();
    assert!((THREADS / 2..=THREADS * 2).contains(&counted), "{counted} of {THREADS}");
}

#[test]
fn copies_do_not_count() {
    let folder = Folder::new();
    let paths = ["a", "b"].map(|name| folder.file(name, &content(0, 64 * PAGE)));
    for route in routes() {
        let latencies = Latencies::new();
        let mut options = OpenOptions::new();
        options.read(true).write(true).route(route).latencies(&latencies).slow_after(NEVER);
        let files = [options.open_blocking(&paths[0]).unwrap(), options.open_blocking(&paths[1]).unwrap()];
        assert_eq!(
            block_on(files[0].copy_range(0, &files[1], 0, 64 * PAGE as u64)).unwrap(),
            64 * PAGE as u64
        );
        assert_eq!(counts(&latencies), [0; 4], "{route:?}");
    }
}

#[test]
fn of_short_operations_a_sample_stands_for_all() {
    const READS: u64 = 40_000;
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let pool = Pool::new(4 << 20);
    for route in routes() {
        let latencies = Latencies::new();
        let file =
            OpenOptions::new().read(true).route(route).latencies(&latencies).open_blocking(&path).unwrap();
        for _ in 0..READS / 50 {
            let mut batch = Batch::new();
            for page in 0..50 {
                batch.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
            }
            batch.run().into_iter().for_each(|done| assert_eq!(done.result.unwrap(), PAGE));
        }
        let counted = latencies.histogram(OperationKind::Read).count();
        // With 2500 samples, five standard deviations are 10 %.
        assert!((READS * 9 / 10..=READS * 11 / 10).contains(&counted), "{route:?}: {counted}");
    }
}

#[test]
fn files_share_histograms_and_those_without_have_none() {
    let folder = Folder::new();
    let paths = ["a", "b"].map(|name| folder.file(name, &content(0, PAGE)));
    let latencies = Latencies::new();
    let mut options = OpenOptions::new();
    options.read(true).latencies(&latencies).slow_after(NEVER);
    // Also the direct descriptor of an adaptive file counts there.
    let files =
        [options.open_blocking(&paths[0]).unwrap(), options.adaptive(true).open_blocking(&paths[1]).unwrap()];
    for file in &files {
        block_on(file.read_at(Vec::with_capacity(PAGE), 0)).unwrap();
        assert!(file.latencies().is_some());
    }
    drop(files);
    assert_eq!(counts(&latencies), [2, 0, 0, 0], "they outlive the files");
    assert!(File::open_blocking(&paths[0]).unwrap().latencies().is_none());
}

#[test]
fn waiting_for_a_pipe_is_not_measured() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let reader = std::fs::File::from(OwnedFd::from(reader));
    let latencies = Latencies::new();
    let mut options = OpenOptions::new();
    let reader = options.latencies(&latencies).slow_after(Duration::ZERO).from_std(reader).unwrap();
    std::io::Write::write_all(&mut writer, b"content").unwrap();
    assert_eq!(block_on(reader.read_at(Vec::with_capacity(7), 0)).unwrap(), b"content");
    assert_eq!((counts(&latencies), reader.latencies().is_some()), ([0; 4], false));
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

/// In a process of its own, which has one subscriber.
#[test]
fn slow_operations_are_reported_with_file_kind_bytes_offset_and_time() {
    if !in_child("slow_operations_are_reported_with_file_kind_bytes_offset_and_time") {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 1 << 20));
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&events);
    on_events(move |event| {
        if event.metadata().target() == "ringfile::slow" {
            let mut fields = Fields::default();
            event.record(&mut fields);
            seen.lock().unwrap().push(fields.0);
        }
    });
    let pool = Pool::new(4 << 20);
    for route in routes() {
        let mut options = OpenOptions::new();
        options.read(true).write(true).route(route);
        operate(&options.clone().slow_after(NEVER).open_blocking(&path).unwrap(), &pool);
        assert!(events.lock().unwrap().is_empty(), "{route:?}: none was slow");
        operate(&options.slow_after(Duration::ZERO).open_blocking(&path).unwrap(), &pool);
        let events = std::mem::take(&mut *events.lock().unwrap());
        let mut kinds = BTreeMap::new();
        for event in &events {
            *kinds.entry(&*event["kind"]).or_insert(0) += 1;
            assert_eq!((&*event["file"], &*event["errno"]), (path.to_str().unwrap(), "0"), "{route:?}");
            assert!(event["micros"].parse::<u64>().unwrap() < 600_000_000);
        }
        let wanted = [("other", 1), ("read", 3), ("sync", 2), ("write", 2)];
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), wanted, "{route:?}");
        let moved = |kind| {
            let of_kind = events.iter().filter(move |event| event["kind"] == kind);
            of_kind.map(|event| (&*event["bytes"], &*event["offset"])).collect::<Vec<_>>()
        };
        assert_eq!(moved("write"), [("4096", "0"), ("4096", "4096")], "{route:?}");
        assert_eq!(moved("read"), [("4096", "0"); 3], "{route:?}");
    }
}

/// In a process of its own, which has one subscriber and one worker.
#[test]
fn a_subscriber_may_use_the_only_worker() {
    if !in_child("a_subscriber_may_use_the_only_worker") {
        return;
    }
    ringfile::runtime::set_worker_threads(1);
    let folder = Folder::new();
    let path = folder.file("data", &content(0, PAGE));
    let mut options = OpenOptions::new();
    options.route(Route::Workers);
    let log = options.clone().write(true).create(true).open_blocking(folder.path().join("log")).unwrap();
    on_events(move |event| {
        if event.metadata().target() == "ringfile::slow" {
            block_on(log.write_at(b"slow".to_vec(), 0)).unwrap();
        }
    });
    let file = options.read(true).slow_after(Duration::ZERO).open_blocking(&path).unwrap();
    for _ in 0..3 {
        assert_eq!(block_on(file.read_at(Vec::with_capacity(PAGE), 0)).unwrap().len(), PAGE);
    }
    assert_eq!(std::fs::read(folder.path().join("log")).unwrap(), b"slow");
}
