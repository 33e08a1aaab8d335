//! Linux AIO (F45): direct I/O where io_uring is not available, or with `Route::Aio`.

use crate::support::handles::Handles as _;
use std::future::IntoFuture;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::support;
use crate::support::filters::{deny, filter};
use crate::support::forms::{READING, WRITING};
use crate::support::fuse::{Act, Op, Server};
use crate::support::{
    Folder, Random, again, all, assert_content, assert_passed, byte_at, content, fork, in_child,
    in_child_with, is_child, is_without_ring, must_end, poll_once, reads_without_waiting, record_warnings,
    skip, wait_for, workers_are_forced,
};
use ringfile::{
    AnyBuffer, Batch, Buffer, File, OpenOptions, Pool, Queue, Route, Runtime, block_on, metrics,
    set_default_route, spawn, thread_metrics,
};

const PAGE: usize = 4096;
const PAGES: u64 = 64;

const RING: [libc::c_long; 3] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Makes the tests run one at a time, because the number of AIO contexts is limited for the whole system.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether AIO may be used; prints that `test` is skipped if `RINGFILE_DISABLE=io_uring,aio` forbids it.
fn needs_aio(test: &str) -> bool {
    if workers_are_forced() {
        skip(test, "RINGFILE_DISABLE=io_uring,aio forbids AIO");
    }
    !workers_are_forced()
}

fn direct(route: Route) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).direct(true).route(route);
    options
}

/// Makes a folder on a file system with direct I/O that does not wait (not an overlay), and in it a file of [`PAGES`]
/// pages; `None` without such a file system.
fn on_disk(test: &str) -> Option<(Folder, std::path::PathBuf)> {
    let mut why = None;
    for parent in [&std::env::temp_dir(), Path::new(env!("CARGO_TARGET_TMPDIR"))] {
        let folder = Folder::inside(parent);
        let path = folder.file("data", &content(0, PAGES as usize * PAGE));
        let file = OpenOptions::new().read(true).direct(true).open_blocking(&path);
        match file.map_err(|error| error.to_string()).and_then(|file| reads_without_waiting(&file)) {
            Ok(()) => return Some((folder, path)),
            Err(error) => why = Some(error),
        }
    }
    skip(test, why.unwrap_or_default());
    None
}

/// Reads all pages, in every form.
fn read_in_every_form(file: &File, pool: &Pool) {
    for form in READING {
        let reads = (0..PAGES).map(|page| (pool.get(PAGE).unwrap(), page * PAGE as u64)).collect();
        for (page, (buffer, error)) in form.read(file, reads).into_iter().enumerate() {
            assert!(error.is_none(), "{form:?}: {}", error.unwrap());
            assert_eq!(buffer.len(), PAGE);
            assert_content(&buffer, (page * PAGE) as u64);
        }
    }
}

/// Rewrites all pages with their own content, in every form.
fn write_in_every_form(path: &Path, file: &File, pool: &Pool) {
    for form in WRITING {
        std::fs::write(path, vec![0; PAGES as usize * PAGE]).unwrap();
        let page = |page| {
            let mut buffer = pool.get(PAGE).unwrap();
            buffer.extend_from_slice(&content(page * PAGE as u64, PAGE));
            (buffer, page * PAGE as u64)
        };
        for (buffer, error) in form.write(file, (0..PAGES).map(page).collect()) {
            assert!(error.is_none(), "{form:?}: {}", error.unwrap());
            assert_eq!(buffer.len(), PAGE);
        }
        assert_content(&std::fs::read(path).unwrap(), 0);
    }
}

/// Does all operations that are not single reads and writes.
fn other_operations(path: &Path, file: &File, pool: &Pool) {
    let end = PAGES * PAGE as u64;
    block_on(async {
        let parts = (0..9).map(|part| pool.get(PAGE + part * PAGE).unwrap()).collect();
        let parts = file.read_vectored_at(parts, PAGE as u64).await.unwrap();
        assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), 45 * PAGE);
        assert_content(&parts.iter().flat_map(|part| part.to_vec()).collect::<Vec<u8>>(), PAGE as u64);
        file.write_vectored_at(parts, PAGE as u64).await.unwrap();
        // At the end, beyond it, and at unaligned offsets.
        let last = file.read_at(pool.get(8 * PAGE).unwrap(), end - PAGE as u64).await.unwrap();
        assert_eq!(last.len(), PAGE);
        assert_eq!(file.read_at(pool.get(PAGE).unwrap(), end).await.unwrap().len(), 0);
        assert_content(&file.read_at(Vec::with_capacity(3000), 1234).await.unwrap(), 1234);
        let failed = file.read_exact_at(vec![0; PAGE], end).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::UnexpectedEof);
        let mut page = pool.get(PAGE).unwrap();
        page.extend_from_slice(&content(0, PAGE));
        let page = file.write_durable_at(page, 0).await.unwrap();
        file.sync_data().await.unwrap();
        // Makes the file longer, and shorter again.
        let page = file.write_at(page, end).await.unwrap();
        assert_eq!(file.size().unwrap(), end + PAGE as u64);
        file.set_len(end).await.unwrap();
        let page = file.write_at(page, end + PAGE as u64).await.unwrap();
        assert_eq!(file.size().unwrap(), end + 2 * PAGE as u64);
        file.set_len(end).await.unwrap();
        drop(page);
    });
    assert_content(&std::fs::read(path).unwrap(), 0);
}

#[test]
fn f45_aio_carries_every_form_and_workers_carry_writes_that_make_the_file_longer() {
    let name = "f45_aio_carries_every_form_and_workers_carry_writes_that_make_the_file_longer";
    let _alone = alone();
    if !needs_aio(name) || !in_child(name) {
        return;
    }
    let Some((_folder, path)) = on_disk(name) else { return };
    let (pool, file) = (Pool::new(4 << 20), direct(Route::Aio).open_blocking(&path).unwrap());
    read_in_every_form(&file, &pool);
    write_in_every_form(&path, &file, &pool);
    let counts = metrics();
    let operations = PAGES * (READING.len() + WRITING.len()) as u64;
    assert_eq!((counts.aio_ops, counts.ops), (operations, operations), "{counts:?}");
    assert_eq!((counts.enters, counts.failed, counts.stray), (0, 0, 0), "{counts:?}");
    // io_uring truncates files since Linux 6.9.
    block_on(file.set_len(PAGES * PAGE as u64)).unwrap();
    let before = metrics();
    let for_a_cut = (before - counts).worker_ops;
    assert!(for_a_cut == 1 || for_a_cut == 0 && !is_without_ring(), "{before:?}");
    other_operations(&path, &file, &pool);
    let counts = metrics() - before;
    // Two writes that make the file longer, one sync, and two truncations.
    let expected = 2 + u64::from(is_without_ring()) + 2 * for_a_cut;
    assert_eq!(counts.worker_ops, expected, "{counts:?}");
    assert_eq!(pool.metrics().in_use, 0);
}

/// Does what Docker's default profile does: refuses io_uring and allows AIO.
#[test]
fn f45_where_io_uring_is_refused_aio_carries_direct_io_and_workers_the_rest() {
    let name = "f45_where_io_uring_is_refused_aio_carries_direct_io_and_workers_the_rest";
    let _alone = alone();
    if is_without_ring() {
        return skip(name, "RINGFILE_DISABLE says what is refused");
    }
    if !in_child(name) {
        return;
    }
    let warnings = record_warnings();
    let Some((_folder, path)) = on_disk(name) else { return };
    let (pool, file) = (Pool::new(4 << 20), direct(Route::Auto).open_blocking(&path).unwrap());
    let forced = direct(Route::Ring).open_blocking(&path).unwrap();
    let buffered = OpenOptions::new().read(true).write(true).open_blocking(&path).unwrap();
    std::thread::spawn(move || {
        RING.iter().for_each(|&call| deny(call, libc::EPERM));
        read_in_every_form(&file, &pool);
        write_in_every_form(&path, &file, &pool);
        let counts = metrics();
        let operations = PAGES * (READING.len() + WRITING.len()) as u64;
        // The first operation of each kind may be a call that finds out whether the file supports non-blocking I/O.
        assert!(counts.aio_ops + 8 >= operations && counts.ops == operations, "{counts:?}");
        assert_eq!((counts.worker_ops, counts.enters, counts.refused_contexts), (0, 0, 0), "{counts:?}");
        other_operations(&path, &file, &pool);
        read_in_every_form(&buffered, &pool);
        write_in_every_form(&path, &buffered, &pool);
        let failed = block_on(forced.read_at(pool.get(PAGE).unwrap(), 0)).unwrap_err();
        assert_eq!((failed.kind(), failed.errno()), (ErrorKind::Unsupported, Some(libc::EPERM)), "{failed}");
    })
    .join()
    .unwrap();
    assert_eq!(metrics().enters, 0);
    let warnings = warnings.lock().unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for word in ["AIO", "worker threads", "kernel.io_uring_disabled"] {
        assert!(warnings[0].contains(word), "{warnings:?}");
    }
}

/// Asserts what must hold if neither io_uring nor AIO is available: the same results, and errors that name the cause.
fn without_either(calls: &[libc::c_long], errno: i32, cause: &str) {
    let warnings = record_warnings();
    let Some((_folder, path)) = on_disk(cause) else { return };
    let (pool, file) = (Pool::new(4 << 20), direct(Route::Auto).open_blocking(&path).unwrap());
    let forced = direct(Route::Aio).open_blocking(&path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            calls.iter().for_each(|&call| deny(call, errno));
            read_in_every_form(&file, &pool);
            write_in_every_form(&path, &file, &pool);
            other_operations(&path, &file, &pool);
            let here = block_on(forced.read_at(pool.get(PAGE).unwrap(), 0)).unwrap_err();
            let elsewhere =
                futures::executor::block_on(forced.read_at(pool.get(PAGE).unwrap(), 0)).unwrap_err();
            for failed in [here, elsewhere] {
                assert_eq!(failed.errno(), Some(errno), "{failed}");
                assert!(failed.to_string().contains(cause), "{failed}");
            }
        });
    });
    let counts = metrics();
    assert!(counts.aio_ops == 0 && counts.worker_ops > 0 && counts.refused_contexts > 0, "{counts:?}");
    let warnings = warnings.lock().unwrap();
    let expected = if is_without_ring() { 1 } else { 2 };
    assert_eq!(warnings.len(), expected, "{warnings:?}");
    assert!(warnings.iter().any(|warning| warning.contains(cause)), "{warnings:?}");
}

#[test]
fn f45_where_aio_is_refused_too_workers_carry_everything() {
    let name = "f45_where_aio_is_refused_too_workers_carry_everything";
    let _alone = alone();
    if needs_aio(name) && in_child(name) {
        without_either(&[&RING[..], &[libc::SYS_io_setup]].concat(), libc::EPERM, "AIO is not allowed here");
    }
}

#[test]
fn f45_where_operations_can_not_be_submitted_workers_carry_everything() {
    let name = "f45_where_operations_can_not_be_submitted_workers_carry_everything";
    let _alone = alone();
    if needs_aio(name) && in_child(name) {
        without_either(&[&RING[..], &[libc::SYS_io_submit]].concat(), libc::ENOSYS, "has no AIO");
    }
}

#[test]
fn f45_where_completions_can_not_be_waited_for_workers_carry_everything() {
    let name = "f45_where_completions_can_not_be_waited_for_workers_carry_everything";
    let _alone = alone();
    if needs_aio(name) && in_child(name) {
        without_either(
            &[&RING[..], &[libc::SYS_io_getevents]].concat(),
            libc::EPERM,
            "AIO is not allowed here",
        );
    }
}

/// Installs the filter when the context already exists, as a program does that drops its rights late.
#[test]
fn f45_a_filter_installed_later_fails_no_operation() {
    let name = "f45_a_filter_installed_later_fails_no_operation";
    let _alone = alone();
    if !needs_aio(name) || !in_child(name) {
        return;
    }
    let warnings = record_warnings();
    let Some((_folder, path)) = on_disk(name) else { return };
    let (pool, file) = (Pool::new(4 << 20), direct(Route::Auto).open_blocking(&path).unwrap());
    let forced = direct(Route::Aio).open_blocking(&path).unwrap();
    std::thread::spawn(move || {
        if !is_without_ring() {
            RING.iter().for_each(|&call| deny(call, libc::EPERM));
        }
        let read = |page: u64| file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64);
        let write = |page: u64| {
            let mut buffer = pool.get(PAGE).unwrap();
            buffer.extend_from_slice(&content(page * PAGE as u64, PAGE));
            file.write_at(buffer, page * PAGE as u64)
        };
        block_on(async {
            for page in 0..4 {
                assert_content(&read(page).await.unwrap(), page * PAGE as u64);
                write(page).await.unwrap();
            }
            let before = thread_metrics();
            assert!(before.aio_ops > 0, "{before:?}");
            let mut reads: Vec<_> = (0..8).map(|page| Box::pin(read(page))).collect();
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
            deny(libc::SYS_io_submit, libc::EPERM);
            for (page, read) in (0..).zip(all(reads).await) {
                assert_content(&read.unwrap(), page * PAGE as u64);
            }
            let counts = thread_metrics() - before;
            assert_eq!((counts.ops, counts.aio_ops, counts.failed), (8, 0, 0), "{counts:?}");
            let before = metrics();
            for (page, read) in (0..).zip(all((0..PAGES).map(read).collect()).await) {
                assert_content(&read.unwrap(), page * PAGE as u64);
            }
            assert!(all((0..PAGES).map(write).collect()).await.into_iter().all(|done| done.is_ok()));
            let counts = metrics() - before;
            assert_eq!((counts.ops, counts.worker_ops), (2 * PAGES, 2 * PAGES), "{counts:?}");
            let failed = forced.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap_err();
            assert!(failed.to_string().contains("AIO is not allowed here"), "{failed}");
        });
    })
    .join()
    .unwrap();
    assert_content(&std::fs::read(&path).unwrap(), 0);
    let warnings = warnings.lock().unwrap();
    assert_eq!(
        warnings.iter().filter(|warning| warning.contains("AIO is not allowed")).count(),
        1,
        "{warnings:?}"
    );
}

/// Another process that uses up `fs.aio-max-nr`, except for a given number of operations, until it is dropped.
struct Hoarder(std::process::Child);

impl Hoarder {
    fn start(leaves: u64) -> Self {
        let mut command = again("hoards_when_asked");
        command.env("RINGFILE_TEST_AIO_HOARDER", leaves.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        while !said.contains("hoarded") {
            let mut byte = [0];
            child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
            said.push(byte[0].into());
        }
        Self(child)
    }
}

impl Drop for Hoarder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn sysctl(name: &str) -> u64 {
    std::fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap().trim().parse().unwrap()
}

/// Runs only in the other process; does nothing in this one.
#[test]
fn hoards_when_asked() {
    let Ok(leaves) = std::env::var("RINGFILE_TEST_AIO_HOARDER") else { return };
    let leaves: u64 = leaves.parse().unwrap();
    let mut step = 1 << 14;
    while step > 0 {
        let free = sysctl("aio-max-nr").saturating_sub(sysctl("aio-nr"));
        let take = step.min(free.saturating_sub(leaves));
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one number of this type.
        let answer = unsafe { libc::syscall(libc::SYS_io_setup, take as u32, &raw mut context) };
        if take == 0 || answer != 0 {
            step /= 2;
        }
    }
    println!("hoarded");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn f45_a_small_context_is_used_and_workers_replace_a_missing_one() {
    let name = "f45_a_small_context_is_used_and_workers_replace_a_missing_one";
    let alone = alone();
    if !needs_aio(name) || !in_child(name) {
        return;
    }
    let warnings = record_warnings();
    let Some((_folder, path)) = on_disk(name) else { return };
    let (pool, file) = (Pool::new(4 << 20), direct(Route::Auto).open_blocking(&path).unwrap());
    let forced = direct(Route::Aio).open_blocking(&path).unwrap();
    // Each on its own thread, because a thread's context is freed when the thread ends.
    std::thread::scope(|scope| {
        let few = Hoarder::start(40);
        scope
            .spawn(|| {
                let before = metrics();
                // More reads than such a context accepts at once.
                let reads =
                    (0..PAGES).map(|page| forced.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
                for (page, result) in block_on(all(reads.collect())).into_iter().enumerate() {
                    assert_content(&result.unwrap(), (page * PAGE) as u64);
                }
                let counts = metrics() - before;
                assert_eq!((counts.aio_ops, counts.refused_contexts), (PAGES, 0), "{counts:?}");
            })
            .join()
            .unwrap();
        drop(few);
    });
    let none = Hoarder::start(0);
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                if !is_without_ring() {
                    RING.iter().for_each(|&call| deny(call, libc::EPERM));
                }
                read_in_every_form(&file, &pool);
                write_in_every_form(&path, &file, &pool);
                other_operations(&path, &file, &pool);
                let failed = block_on(forced.read_at(pool.get(PAGE).unwrap(), 0)).unwrap_err();
                assert!(failed.to_string().contains("fs.aio-max-nr"), "{failed}");
            })
            .join()
            .unwrap();
    });
    assert!(metrics().refused_contexts > 0 && metrics().worker_ops > 0, "{:?}", metrics());
    drop(none);
    let warnings = warnings.lock().unwrap();
    let of_aio = warnings.iter().filter(|warning| warning.contains("fs.aio-max-nr")).count();
    assert_eq!(of_aio, 1, "{warnings:?}");
    drop(alone);
}

#[test]
fn the_route_is_an_error_on_a_buffered_file() {
    let name = "the_route_is_an_error_on_a_buffered_file";
    if !needs_aio(name) || !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", b"content");
    let mut options = OpenOptions::new();
    let failed = options.read(true).route(Route::Aio).open_blocking(&path).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::InvalidInput, "{failed}");
    assert!(failed.to_string().contains("direct(true)"), "{failed}");
    assert!(options.from_std(std::fs::File::open(&path).unwrap()).is_err());
    let failed = options.direct(true).iopoll(true).open_blocking(&path).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::InvalidInput, "{failed}");

    set_default_route(Route::Aio);
    let file = File::from(std::fs::File::options().read(true).write(true).open(&path).unwrap());
    let here = block_on(file.read_at(vec![1; 7], 0)).unwrap_err();
    let elsewhere = futures::executor::block_on(file.read_at(vec![1; 7], 0)).unwrap_err();
    for failed in [here, elsewhere] {
        assert!(failed.to_string().contains("direct(true)"), "{failed}");
        assert_eq!(failed.into_buffer(), [], "nothing was read");
    }
    let mut batch = Batch::new();
    batch.add(file.write_at(vec![1; 7], 0));
    let done = batch.run().pop().unwrap();
    assert!(done.result.unwrap_err().to_string().contains("direct(true)"));
    assert_eq!(done.buffer.and_then(AnyBuffer::into_vec).unwrap(), [1; 7]);
    // The route does not matter to operations that move no data.
    block_on(file.sync_all()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"content");
}

#[test]
fn f45_a_dropped_future_keeps_its_memory_until_the_kernel_is_done() {
    let name = "f45_a_dropped_future_keeps_its_memory_until_the_kernel_is_done";
    let _alone = alone();
    if !needs_aio(name) {
        return;
    }
    let Some((_folder, path)) = on_disk(name) else { return };
    let (pool, file) = (Pool::new(PAGES as usize * PAGE), direct(Route::Aio).open_blocking(&path).unwrap());
    for round in 0..20 {
        block_on(async {
            let read = |page| Box::pin(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
            let mut reads: Vec<_> = (0..PAGES).map(read).collect();
            for read in &mut reads {
                assert!(poll_once(read).await.is_pending());
            }
            if round % 2 == 0 {
                // One turn of the loop submits them.
                spawn(async {}).await.unwrap();
            }
            drop(reads);
            // All memory that comes back from here on belongs to this test alone.
            let mut own: Vec<Buffer> = Vec::new();
            wait_for_in_loop(|| {
                while let Ok(mut buffer) = pool.get(PAGE) {
                    buffer.extend_from_slice(&[0xEE; PAGE]);
                    own.push(buffer);
                }
                own.len() == PAGES as usize
            })
            .await;
            assert!(own.iter().all(|buffer| buffer.iter().all(|&byte| byte == 0xEE)), "round {round}");
        });
        assert_eq!(pool.metrics().in_use, 0);
    }
    assert_eq!(metrics().stray, 0);
}

async fn wait_for_in_loop(mut done: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !done() {
        assert!(began.elapsed() < support::patience(), "waited in vain");
        support::yield_now().await;
    }
}

#[test]
fn f45_a_cancelled_operation_ends_once_and_is_done_or_untouched() {
    let name = "f45_a_cancelled_operation_ends_once_and_is_done_or_untouched";
    let _alone = alone();
    if !needs_aio(name) {
        return;
    }
    let Some((_folder, path)) = on_disk(name) else { return };
    let (pool, file) = (Pool::new(4 << 20), direct(Route::Aio).open_blocking(&path).unwrap());
    let mut random = Random::new();
    let mut queue = Queue::new();
    let (mut cancelled, mut read) = (0, 0);
    for _ in 0..50 {
        let tokens: Vec<_> = (0..PAGES)
            .map(|page| queue.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64), page))
            .collect();
        if random.below(2) == 0 {
            queue.submit();
        }
        tokens.iter().filter(|_| random.below(2) == 0).for_each(|&token| {
            queue.cancel(token);
        });
        let mut seen = vec![false; PAGES as usize];
        for done in queue.ends(PAGES as usize) {
            let page = done.user_data;
            assert!(!std::mem::replace(&mut seen[page as usize], true), "page {page} twice");
            match done.result {
                Ok(len) => {
                    assert_eq!(len, PAGE);
                    assert_content(&done.buffer.unwrap(), page * PAGE as u64);
                    read += 1;
                }
                Err(error) => {
                    assert_eq!(error.errno(), Some(libc::ECANCELED), "{error}");
                    cancelled += 1;
                }
            }
        }
        assert!(seen.into_iter().all(|seen| seen));
    }
    assert!(read > 0 && cancelled > 0, "{read} read, {cancelled} cancelled");
    drop(queue);
    assert_eq!(pool.metrics().in_use, 0);
}

/// The length of a read that takes the disk so long that the thread has to wait.
const LONG: usize = 1 << 20;
/// The number of such reads in a file.
const LONG_READS: u64 = 24;

/// Makes a file of [`LONG_READS`] equal pieces; returns its path and one piece.
fn long_file(folder: &Folder) -> (std::path::PathBuf, Vec<u8>) {
    let piece = content(0, LONG);
    let path = folder.file("long", &piece.repeat(LONG_READS as usize));
    // Otherwise `io_submit` waits until the page cache has been written.
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    (path, piece)
}

/// Waits only with `poll` on a queue's descriptor.
fn collect_by_descriptor(queue: &mut Queue, expected: usize, mut each: impl FnMut(u64, &[u8])) {
    let descriptor = queue.descriptor().unwrap();
    let mut ended = 0;
    while ended < expected {
        let mut polled = [libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        // SAFETY: one valid record.
        let answer = unsafe { libc::poll(polled.as_mut_ptr(), 1, support::patience().as_millis() as i32) };
        assert_eq!(answer, 1, "nothing announces the {} remaining operations", expected - ended);
        queue.submit();
        while let Some(done) = queue.next() {
            let number = done.user_data;
            assert_eq!(done.result.unwrap(), LONG);
            each(number, &done.buffer.unwrap());
            ended += 1;
        }
    }
}

#[test]
fn f45_a_queues_descriptor_announces_completions_of_aio_and_of_the_ring() {
    let name = "f45_a_queues_descriptor_announces_completions_of_aio_and_of_the_ring";
    let _alone = alone();
    if !needs_aio(name) {
        return;
    }
    let Some((folder, _)) = on_disk(name) else { return };
    let (path, piece) = long_file(&folder);
    let (pool, file) = (Pool::new(64 << 20), direct(Route::Aio).open_blocking(&path).unwrap());
    let other = if is_without_ring() { Route::Workers } else { Route::Ring };
    let other = direct(other).open_blocking(&path).unwrap();
    for both in [false, true] {
        let mut queue = Queue::new();
        // Submits before and after the descriptor is made: an operation in flight then has no descriptor to signal.
        for early in [true, false] {
            let mut descriptor = None;
            if !early {
                descriptor = Some(queue.descriptor().unwrap());
            }
            for page in 0..LONG_READS {
                let file = if both && page % 3 == 0 { &other } else { &file };
                queue.add(file.read_at(pool.get(LONG).unwrap(), page * LONG as u64), page);
            }
            queue.submit();
            let mut seen = 0;
            collect_by_descriptor(&mut queue, LONG_READS as usize, |page, bytes| {
                assert!(bytes == piece, "read {page}");
                seen += 1;
            });
            assert_eq!(seen, LONG_READS);
            // Afterwards the descriptor must not signal.
            let idle = || {
                let fd = queue.descriptor().unwrap();
                let mut polled = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
                queue.submit();
                queue.submit();
                // SAFETY: one valid record.
                unsafe { libc::poll(polled.as_mut_ptr(), 1, 0) == 0 }
            };
            wait_for("the descriptor to be silent", idle);
            drop(descriptor);
        }
    }
}

#[test]
fn f45_a_thread_with_a_ring_and_aio_is_woken_by_both_and_by_others() {
    let name = "f45_a_thread_with_a_ring_and_aio_is_woken_by_both_and_by_others";
    let _alone = alone();
    if !needs_aio(name) {
        return;
    }
    let Some((folder, _)) = on_disk(name) else { return };
    let (path, piece) = long_file(&folder);
    let (pool, piece) = (Pool::new(32 << 20), std::sync::Arc::new(piece));
    let beside = if is_without_ring() { Route::Workers } else { Route::Ring };
    for routes in [vec![Route::Aio], vec![beside, Route::Aio]] {
        let files: Vec<_> = routes.iter().map(|&route| direct(route).open_blocking(&path).unwrap()).collect();
        let (pool, piece) = (pool.clone(), piece.clone());
        support::must_end("reads while another thread wakes this one", move || {
            let (send, receive) = std::sync::mpsc::channel::<std::task::Waker>();
            let waking = std::thread::spawn(move || receive.iter().for_each(|waker| waker.wake()));
            block_on(async {
                let woken = spawn(async move {
                    for _ in 0..100 {
                        let mut asked = false;
                        std::future::poll_fn(|context| {
                            if std::mem::replace(&mut asked, true) {
                                return std::task::Poll::Ready(());
                            }
                            send.send(context.waker().clone()).unwrap();
                            std::task::Poll::Pending
                        })
                        .await;
                    }
                });
                let tasks: Vec<_> = (0..8_u64)
                    .map(|task| {
                        let (files, pool, piece) = (files.clone(), pool.clone(), piece.clone());
                        spawn(async move {
                            for turn in 0..40_u64 {
                                let place = (task * 13 + turn) % LONG_READS * LONG as u64;
                                let file = &files[(turn % files.len() as u64) as usize];
                                let buffer = file.read_at(pool.get(LONG).unwrap(), place).await;
                                assert!(buffer.unwrap()[..] == piece[..]);
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
                woken.await.unwrap();
            });
            waking.join().unwrap();
        });
    }
    assert_eq!(metrics().stray, 0);
}

/// Counts the contexts of this process, each of which is a mapping. `fs.aio-nr` has those of all processes.
fn contexts() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/[aio]")).count()
}

#[test]
fn f45_threads_that_end_leave_no_context() {
    let name = "f45_threads_that_end_leave_no_context";
    let _alone = alone();
    if !needs_aio(name) || !in_child(name) {
        return;
    }
    let Some((_folder, path)) = on_disk(name) else { return };
    let before = contexts();
    let (pool, file) = (Pool::new(4 << 20), direct(Route::Aio).open_blocking(&path).unwrap());
    let (pool, file) = (&pool, &file);
    let read = |page: u64| Box::pin(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
    std::thread::scope(|scope| {
        let run = |thread: u64| {
            let mut reads: Vec<_> = (0..8).map(|page| read(thread * 8 + page)).collect();
            block_on(async {
                for read in &mut reads {
                    assert!(poll_once(read).await.is_pending());
                }
                support::yield_now().await;
                assert!(contexts() > 0, "this thread's");
            });
            // Half of the reads are forgotten; another thread waits for the others.
            if thread.is_multiple_of(2) {
                support::keep(reads);
                None
            } else {
                Some((thread, reads))
            }
        };
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || run(thread))).collect();
        for (thread, reads) in threads.into_iter().filter_map(|thread| thread.join().unwrap()) {
            for (page, result) in futures::executor::block_on(all(reads)).into_iter().enumerate() {
                assert_content(&result.unwrap(), (thread * 8 + page as u64) * PAGE as u64);
            }
        }
    });
    wait_for("the contexts to go", || contexts() <= before);
}

#[test]
fn f45_a_forked_child_does_not_use_its_parents_context() {
    let name = "f45_a_forked_child_does_not_use_its_parents_context";
    let _alone = alone();
    if !needs_aio(name) || !in_child(name) {
        return;
    }
    let Some((_folder, path)) = on_disk(name) else { return };
    let (pool, file) = (Pool::new(4 << 20), direct(Route::Aio).open_blocking(&path).unwrap());
    let anyhow = direct(Route::Auto).open_blocking(&path).unwrap();
    block_on(async {
        assert_content(&anyhow.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap(), 0);
        let read = |page: u64| Box::pin(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
        let mut reads: Vec<_> = (0..PAGES).map(read).collect();
        for read in &mut reads {
            assert!(poll_once(read).await.is_pending());
        }
        assert_passed(fork(|| {
            assert!(futures::executor::block_on(read(0)).is_err());
            let buffer = futures::executor::block_on(anyhow.read_at(vec![0; PAGE], 0)).unwrap();
            assert_content(&buffer, 0);
            for read in std::mem::take(&mut reads) {
                assert_eq!(futures::executor::block_on(read).unwrap_err().errno(), Some(libc::ECANCELED));
            }
        }));
        for (page, result) in all(reads).await.into_iter().enumerate() {
            assert_content(&result.unwrap(), (page * PAGE) as u64);
        }
    });
    assert_eq!((metrics().stray, pool.metrics().in_use), (0, 0));
}

#[test]
fn f45_an_operation_that_the_kernel_refuses_at_once_fails_alone() {
    let name = "f45_an_operation_that_the_kernel_refuses_at_once_fails_alone";
    let _alone = alone();
    if !needs_aio(name) {
        return;
    }
    let Some((_folder, path)) = on_disk(name) else { return };
    let (pool, file) = (Pool::new(4 << 20), direct(Route::Aio).open_blocking(&path).unwrap());
    let write_only =
        OpenOptions::new().write(true).direct(true).route(Route::Aio).open_blocking(&path).unwrap();
    let mut batch = Batch::new();
    for page in 0..PAGES {
        let file = if page % 5 == 2 { &write_only } else { &file };
        batch.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
    }
    for (page, done) in batch.run().into_iter().enumerate() {
        if page % 5 == 2 {
            assert_eq!(done.result.unwrap_err().errno(), Some(libc::EBADF));
            assert_eq!(done.buffer.unwrap().len(), 0, "nothing was read");
        } else {
            assert_eq!(done.result.unwrap(), PAGE);
            assert_content(&done.buffer.unwrap(), (page * PAGE) as u64);
        }
    }
}

/// The thread also has a ring, on which nothing is in flight that would wake it.
#[test]
fn f45_an_operation_that_the_kernel_refuses_at_once_wakes_a_thread_with_a_ring() {
    let name = "f45_an_operation_that_the_kernel_refuses_at_once_wakes_a_thread_with_a_ring";
    let _alone = alone();
    if !needs_aio(name) {
        return;
    }
    let Some((folder, path)) = on_disk(name) else { return };
    let write_only =
        OpenOptions::new().write(true).direct(true).route(Route::Aio).open_blocking(&path).unwrap();
    let pool = Pool::new(4 << 20);
    must_end("reads of a file that was opened for writing", move || {
        let _folder = folder;
        block_on(async {
            write_only.sync_data().await.unwrap();
            for _ in 0..3 {
                let failed = write_only.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap_err();
                assert_eq!(failed.errno(), Some(libc::EBADF), "{failed}");
            }
        });
        let mut queue = Queue::new();
        queue.add(write_only.read_at(pool.get(PAGE).unwrap(), 0), 0);
        assert_eq!(queue.end().result.unwrap_err().errno(), Some(libc::EBADF));
    });
}

/// Reads and writes at random, in many tasks, some dropped half way, and compares with a model of the file.
#[test]
fn f45_random_operations_agree_with_a_model() {
    let name = "f45_random_operations_agree_with_a_model";
    let _alone = alone();
    if !needs_aio(name) {
        return;
    }
    let Some((folder, _)) = on_disk(name) else { return };
    let seeds = [Random::new().below(1 << 32), 1, 2, 3];
    let folder = &folder;
    std::thread::scope(|scope| {
        for (thread, seed) in seeds.into_iter().enumerate() {
            scope.spawn(move || random_operations(&folder.path().join(format!("random-{thread}")), seed));
        }
    });
    assert_eq!(metrics().stray, 0);
}

/// Each of [`LANES`] tasks has its own pages, so that the expected content of the file is known.
fn random_operations(path: &Path, seed: u64) {
    const LANES: u64 = 16;
    let (pool, file) = (Pool::new(8 << 20), direct(Route::Aio).create(true).open_blocking(path).unwrap());
    let lane = |lane: u64| {
        let (pool, file) = (pool.clone(), file.clone());
        async move {
            let mut random = Random::from_seed(seed + lane);
            // For each page of this task: the offset whose content it holds, if any.
            let mut pages: Vec<Option<u64>> = vec![None; 8];
            for _ in 0..150 {
                let (index, own) = (random.below(8), random.below(1 << 20));
                let offset = (index * LANES + lane) * PAGE as u64;
                let mut buffer = pool.get(PAGE).unwrap();
                match random.below(8) {
                    0..3 => {
                        buffer.extend_from_slice(&content(own, PAGE));
                        file.write_at(buffer, offset).await.unwrap();
                        pages[index as usize] = Some(own);
                    }
                    3 => {
                        let parts = vec![buffer, pool.get(PAGE).unwrap()];
                        let parts = file.read_vectored_at(parts, offset).await.unwrap();
                        is_as_written(&parts[0], pages[index as usize]);
                    }
                    4 => {
                        // Dropped at once, or after the kernel has received it.
                        let mut read = Box::pin(file.read_at(buffer, offset));
                        let _ = poll_once(&mut read).await;
                        if random.below(2) == 0 {
                            support::yield_now().await;
                        }
                    }
                    5 => file.sync_data().await.unwrap(),
                    _ => is_as_written(&file.read_at(buffer, offset).await.unwrap(), pages[index as usize]),
                }
            }
            (lane, pages)
        }
    };
    let lanes = block_on(async {
        let tasks: Vec<_> = (0..LANES).map(|number| spawn(lane(number))).collect();
        let mut lanes = Vec::new();
        for task in tasks {
            lanes.push(task.await.unwrap());
        }
        lanes
    });
    assert!(thread_metrics().aio_ops > 0);
    assert_eq!(pool.metrics().in_use, 0);
    let mut written = std::fs::read(path).unwrap();
    written.resize(8 * LANES as usize * PAGE, 0);
    for (lane, pages) in lanes {
        for (index, page) in pages.into_iter().enumerate() {
            let start = (index * LANES as usize + lane as usize) * PAGE;
            is_as_written(&written[start..start + PAGE], page);
        }
    }
}

#[track_caller]
fn is_as_written(got: &[u8], written: Option<u64>) {
    match written {
        Some(offset) => {
            assert_eq!(got.len(), PAGE);
            assert!(got.iter().zip(offset..).all(|(&byte, offset)| byte == byte_at(offset)));
        }
        None => assert!(got.iter().all(|&byte| byte == 0), "a page that nobody wrote"),
    }
}

/// I/O threads use AIO for operations of other executors and for batches that are started.
#[test]
fn f45_io_threads_use_it_for_other_executors_and_started_batches() {
    let name = "f45_io_threads_use_it_for_other_executors_and_started_batches";
    let _alone = alone();
    if !needs_aio(name)
        || !in_child_with(name, |command| {
            command.env("RINGFILE_DISABLE", "io_uring");
        })
    {
        return;
    }
    assert!(is_child(name));
    let Some((_folder, path)) = on_disk(name) else { return };
    let (pool, file) = (Pool::new(4 << 20), direct(Route::Auto).open_blocking(&path).unwrap());
    let batch = || {
        let mut batch = Batch::new();
        for page in 0..PAGES {
            batch.add(file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64));
        }
        batch
    };
    let (tell, told) = std::sync::mpsc::channel();
    batch().start(move |done| tell.send(done).unwrap()).unwrap();
    let started = told.recv_timeout(support::patience()).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let awaited = tokio.block_on(batch().into_future());
    let runtime = Runtime::builder().threads(2).build().unwrap();
    let own = batch();
    let in_runtime = runtime.spawn(async move { own.await }).join().unwrap();
    runtime.shutdown();
    for done in [started, awaited, in_runtime] {
        for (page, done) in done.into_iter().enumerate() {
            assert_eq!(done.result.unwrap(), PAGE);
            assert_content(&done.buffer.unwrap(), (page * PAGE) as u64);
        }
    }
    let counts = metrics();
    assert!(counts.aio_ops + 4 >= 3 * PAGES, "{counts:?}");
    assert_eq!((counts.worker_ops, counts.enters), (0, 0), "{counts:?}");
}

/// With two reads at the kernel, and with one: the poll of the wake-up descriptor is none.
#[test]
fn f45_messages_arrive_though_the_kernel_takes_no_operations_for_now() {
    let name = "f45_messages_arrive_though_the_kernel_takes_no_operations_for_now";
    let _alone = alone();
    if !needs_aio(name) || !in_child(name) {
        return;
    }
    for held in [2, 1] {
        let Some(server) = Server::or_skip(name, content(0, 8 * PAGE)) else { return };
        let file = direct(Route::Aio).open_blocking(server.path()).unwrap();
        must_end("a message to a thread whose operations the kernel refuses", move || {
            RING.iter().for_each(|&call| deny(call, libc::EPERM));
            // A task, which runs before the thread submits anything.
            block_on(async { spawn(messages(server, file, held)).await.unwrap() });
        });
    }
}

async fn messages(server: Server, file: File, held: usize) {
    let pool = Pool::new(8 * PAGE);
    let begin = async |pages: std::ops::Range<usize>| {
        let mut reads = Vec::new();
        for page in pages {
            let mut read = Box::pin(file.read_at(pool.get(PAGE).unwrap(), (page * PAGE) as u64));
            assert!(poll_once(&mut read).await.is_pending());
            reads.push(read);
        }
        reads
    };
    server.rule(Op::Read, 0..u64::MAX, held, Act::Hold);
    let mut reads = begin(0..held).await;
    wait_for_in_loop(|| server.held() == held).await;
    // Refuses two reads that are submitted together with the poll of the wake-up descriptor.
    filter(&[(0, libc::SYS_io_submit as u32), (24, 3)], libc::EAGAIN);
    // Sent when this thread sleeps: the descriptor must be polled again afterwards.
    let message = |after: u64| {
        let (sends, received) = futures::channel::oneshot::channel();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(after));
            sends.send(()).unwrap();
        });
        received
    };
    message(200).await.unwrap();
    reads.extend(begin(held..held + 2).await);
    let calls = thread_metrics().aio_calls;
    // Longer than the kernel is asked again if no operation can end meanwhile.
    message(1500).await.unwrap();
    let calls = thread_metrics().aio_calls - calls;
    assert!(calls < 10_000, "{calls} calls in 1.5 s");
    // The kernel takes four.
    reads.extend(begin(held + 2..held + 3).await);
    server.release();
    for (page, read) in (0..).zip(reads) {
        let read = read.await.unwrap_or_else(|error| panic!("page {page} of {held} + 3: {error}"));
        assert_content(&read, page * PAGE as u64);
    }
    // If the kernel takes nothing any more, operations end once nothing could make room.
    deny(libc::SYS_io_submit, libc::EAGAIN);
    for read in begin(0..2).await {
        assert_eq!(read.await.unwrap_err().errno(), Some(libc::EAGAIN));
    }
}

/// The ring of the thread takes operations all the time.
#[test]
fn f07_operations_that_aio_does_not_take_end_on_a_thread_with_a_ring() {
    let name = "f07_operations_that_aio_does_not_take_end_on_a_thread_with_a_ring";
    let _alone = alone();
    if !needs_aio(name) || is_without_ring() || !in_child(name) {
        return;
    }
    let Some((_folder, path)) = on_disk(name) else { return };
    let (pool, file) = (Pool::new(8 * PAGE), direct(Route::Aio).open_blocking(&path).unwrap());
    must_end("reads that the kernel does not take", move || {
        block_on(async {
            file.sync_data().await.unwrap();
            assert_content(&file.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap(), 0);
            deny(libc::SYS_io_submit, libc::EAGAIN);
            let calls = thread_metrics().aio_calls;
            for page in 0..2 {
                let failed = file.read_at(pool.get(PAGE).unwrap(), page * PAGE as u64).await.unwrap_err();
                assert_eq!(failed.errno(), Some(libc::EAGAIN));
            }
            let calls = thread_metrics().aio_calls - calls;
            assert!(calls <= 2200, "{calls} calls within two seconds");
        });
        let mut queue = Queue::new();
        queue.add(file.read_at(pool.get(PAGE).unwrap(), 0), 0);
        queue.submit();
        assert!(queue.next().is_none(), "submitting does not wait");
        assert_eq!(queue.end().result.unwrap_err().errno(), Some(libc::EAGAIN));
    });
}
