//! F48: namespaces of NVMe drives, used with the drive's own commands. The test destroys their content.
//!
//! Needs drives, which kernels/nvme gives a guest under qemu. A variable names each of them; tests whose variable is
//! not set are skipped and listed: `RINGFILE_TEST_NVME` (`/dev/ng0n1`: blocks of 512 bytes, 64 MiB or more),
//! `RINGFILE_TEST_NVME_SMALL` (a drive with MDTS 3, so commands of 32 KiB; blocks of 4096 bytes), `RINGFILE_TEST_NVME_METADATA`
//! (8 bytes with each block), `RINGFILE_TEST_NVME_READONLY`, `RINGFILE_TEST_NVME_GONE` (a separate drive, which is removed).

use crate::support::handles::Handles as _;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::support;
use crate::support::{again, all, assert_content, content, poll_once, skip, wait_for};
use ringfile::fs::AllocateMode;
use ringfile::{Batch, Buffer, Durability, File, OpenOptions, Pool, Queue, Route, block_on, thread_metrics};

const PAGE: usize = 4096;

/// Makes the tests run one at a time: only one may have a namespace open for writing.
struct Drive {
    path: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Drive {
    fn of(variable: &str, test: &str) -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let Some(path) = std::env::var_os(variable).map(PathBuf::from) else {
            skip(test, format!("{variable} names no namespace"));
            return None;
        };
        if support::is_without_ring() {
            skip(test, "RINGFILE_DISABLE=io_uring,aio switches the ring off");
            return None;
        }
        if !path.exists() {
            skip(test, format!("{} is not there", path.display()));
            return None;
        }
        Some(Self { path, _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner) })
    }

    fn main(test: &str) -> Option<Self> {
        Self::of("RINGFILE_TEST_NVME", test)
    }

    fn open(&self) -> File {
        self.options().open_blocking(&self.path).unwrap()
    }

    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(true).allow_raw_nvme_writes(true);
        options
    }

    /// Returns the block device of the same namespace: nvme0n1 for ng0n1.
    fn block_device(&self) -> PathBuf {
        let name = self.path.file_name().unwrap().to_str().unwrap();
        Path::new("/dev").join(format!("nvme{}", name.strip_prefix("ng").unwrap()))
    }

    /// Opens the block device past the page cache, which does not notice what commands have written.
    fn block_layer(&self) -> BlockLayer {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        BlockLayer(options.open(self.block_device()).unwrap(), Pool::new(8 << 20))
    }
}

struct BlockLayer(fs::File, Pool);

impl BlockLayer {
    fn read(&self, offset: u64, len: usize) -> Buffer {
        let mut buffer = self.1.get(len).unwrap();
        buffer.resize(len, 0);
        self.0.read_exact_at(&mut buffer, offset).unwrap();
        buffer
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let mut buffer = self.1.get(bytes.len()).unwrap();
        buffer.resize(bytes.len(), 0);
        buffer.copy_from_slice(bytes);
        self.0.write_all_at(&buffer, offset).unwrap();
    }
}

fn filled(pool: &Pool, offset: u64, len: usize) -> Buffer {
    let mut buffer = pool.get(len).unwrap();
    buffer.resize(len, 0);
    buffer.copy_from_slice(&content(offset, len));
    buffer
}

/// Takes buffers of one page each.
fn pages(pool: &Pool, count: usize) -> Vec<Buffer> {
    (0..count).map(|_| pool.get(PAGE).unwrap()).collect()
}

#[test]
fn f48_reads_give_what_the_block_device_shows() {
    let Some(drive) = Drive::main("f48_reads_give_what_the_block_device_shows") else { return };
    let block_layer = drive.block_layer();
    block_layer.write(0, &content(0, 2 << 20));
    let file = OpenOptions::new().read(true).open_blocking(&drive.path).unwrap();
    assert_eq!((file.is_direct(), file.alignment().bytes), (true, 512));
    assert_eq!(
        file.size().unwrap(),
        fs::read_to_string(sysfs(&drive, "size")).unwrap().trim().parse::<u64>().unwrap() * 512
    );
    let pool = Pool::new(16 << 20);
    block_on(async {
        let before = thread_metrics();
        let (mut fixed, mut count) = (0, 0);
        for (offset, len) in
            [(0, 512), (512, 4096), (4096, 65536), (PAGE as u64, 2 << 19), (7 * 512, 3 * 512)]
        {
            assert_content(&file.read_at(pool.get(len).unwrap(), offset).await.unwrap()[..len], offset);
            assert_content(&file.read_at(vec![0; len], offset).await.unwrap(), offset);
            count += 2;
            fixed += 1;
        }
        let counts = thread_metrics() - before;
        assert_eq!((counts.ops, counts.passthrough_ops, counts.failed), (count, count, 0));
        // Before Linux 6.12, the kernel accepts registered memory only for whole registrations.
        assert!(counts.fixed_ops <= fixed && counts.refused_registrations == 0, "{counts:?}");
        println!("registered: {} of {fixed}", counts.fixed_ops);
        let read = file.read_vectored_at(pages(&pool, 50), 3 * 512).await.unwrap();
        read.iter().enumerate().for_each(|(i, page)| assert_content(page, (3 * 512 + i * PAGE) as u64));
        let odd = file.read_at(vec![0; 1000], 100).await.unwrap();
        assert_content(&odd, 100);
    });
    let mut batch = Batch::new();
    for i in 0..200 {
        batch.add(file.read_at(pool.get(PAGE).unwrap(), i * 512));
    }
    for (i, done) in batch.run().into_iter().enumerate() {
        assert_eq!(done.result.unwrap(), PAGE);
        assert_content(&done.buffer.unwrap(), i as u64 * 512);
    }
    // From a thread without a ring: an I/O thread sends the commands.
    let elsewhere = file.clone();
    let read = futures_block_on(async move { elsewhere.read_at(vec![0; 8 * PAGE], 512).await });
    assert_content(&read.unwrap(), 512);
}

/// Returns an executor that knows nothing of ringfile.
fn futures_block_on<F: Future + Send + 'static>(future: F) -> F::Output
where
    F::Output: Send + 'static,
{
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    std::thread::spawn(move || {
        let mut future = Box::pin(future);
        let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
        let mut context = std::task::Context::from_waker(&waker);
        loop {
            match future.as_mut().poll(&mut context) {
                std::task::Poll::Ready(output) => return output,
                std::task::Poll::Pending => std::thread::park(),
            }
        }
    })
    .join()
    .unwrap()
}

fn sysfs(drive: &Drive, name: &str) -> PathBuf {
    Path::new("/sys/class/block").join(drive.block_device().file_name().unwrap()).join(name)
}

#[test]
fn f48_writes_are_what_the_block_device_shows() {
    let Some(drive) = Drive::main("f48_writes_are_what_the_block_device_shows") else { return };
    let (file, block_layer, pool) = (drive.open(), drive.block_layer(), Pool::new(16 << 20));
    block_layer.write(0, &vec![0; 4 << 20]);
    block_on(async {
        file.write_at(filled(&pool, 512, 4096), 512).await.unwrap();
        file.write_at(content(8192, 2 << 19), 8192).await.unwrap();
        file.sync_data().await.unwrap();
        let parts = (0..40).map(|i| filled(&pool, (2 << 20) + i * PAGE as u64, PAGE)).collect();
        file.write_vectored_at(parts, 2 << 20).await.unwrap();
        file.write_durable_at(filled(&pool, 3 << 20, PAGE), 3 << 20).await.unwrap();
        file.sync_all().await.unwrap();
        let short = file.write_at(vec![1; 100], 0).await.unwrap_err();
        assert!(short.to_string().contains("multiples of 512"), "{short}");
    });
    assert_content(&block_layer.read(512, 4096), 512);
    assert_eq!(block_layer.read(0, 512)[..], [0; 512]);
    assert_content(&block_layer.read(8192, 2 << 19), 8192);
    assert_content(&block_layer.read(2 << 20, 40 * PAGE), 2 << 20);
    assert_eq!(block_layer.read((2 << 20) + 40 * PAGE as u64, PAGE)[..], [0; PAGE]);
    assert_content(&block_layer.read(3 << 20, PAGE), 3 << 20);
    drop(file);
    for durability in [Durability::Dsync, Durability::Fsync] {
        let file = drive.options().durability(durability).open_blocking(&drive.path).unwrap();
        block_on(file.write_durable_at(vec![9; 512], 1024)).unwrap();
        assert_eq!(block_layer.read(1024, 512)[..], [9; 512]);
        block_on(file.write_durable_at(vec![0; 512], 1024)).unwrap();
    }
}

#[test]
fn f48_queues_and_their_descriptors_work_with_commands() {
    let Some(drive) = Drive::main("f48_queues_and_their_descriptors_work_with_commands") else { return };
    let (file, pool) = (drive.open(), Pool::new(8 << 20));
    drive.block_layer().write(0, &content(0, 1 << 20));
    let mut queue = Queue::new();
    for i in 0..100_u64 {
        queue.add(file.read_at(pool.get(PAGE).unwrap(), i * 512), i);
    }
    for done in queue.end_all(100) {
        let i = done.user_data;
        assert_eq!(done.result.unwrap(), PAGE);
        assert_content(&done.buffer.unwrap(), i * 512);
    }
    let descriptor = queue.descriptor().unwrap();
    for i in 0..20_u64 {
        queue.add(file.read_at(pool.get(PAGE).unwrap(), i * PAGE as u64), i);
        queue.submit();
        let done = loop {
            if let Some(taken) = queue.next() {
                break taken;
            }
            assert!(is_readable(&descriptor), "nothing announces the completion of read {i}");
            queue.submit();
        };
        assert_eq!(done.user_data, i);
        assert_content(&done.buffer.unwrap(), i * PAGE as u64);
    }
}

/// Waits for 20 s at most.
fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut poll =
        libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(descriptor), events: libc::POLLIN, revents: 0 };
    // SAFETY: one record, for the time of the call.
    unsafe { libc::poll(&raw mut poll, 1, 20_000) == 1 }
}

#[test]
fn f48_commands_wake_a_thread_that_waits_for_other_things_too() {
    let Some(drive) = Drive::main("f48_commands_wake_a_thread_that_waits_for_other_things_too") else {
        return;
    };
    drive.block_layer().write(0, &content(0, 1 << 20));
    let file = drive.open();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let pipe = OpenOptions::new().route(Route::Ring).from_std(fs::File::from(OwnedFd::from(reader))).unwrap();
    block_on(async {
        let waits = ringfile::spawn(async move { pipe.read_at(vec![0; 4], 0).await });
        // The only operation on the thread's main ring is a read that never ends.
        for i in 0..50 {
            assert_content(&file.read_at(vec![0; PAGE], i * 512).await.unwrap(), i * 512);
        }
        std::io::Write::write_all(&mut writer, b"word").unwrap();
        assert_eq!(waits.await.unwrap().unwrap(), b"word");
        for i in 0..50 {
            assert_content(&file.read_at(vec![0; PAGE], i * 512).await.unwrap(), i * 512);
        }
        // Cached reads and commands in turn, and both at once.
        let cached =
            OpenOptions::new().read(true).route(Route::Ring).open_blocking("/proc/self/exe").unwrap();
        for i in 0..50 {
            let other = ringfile::spawn({
                let cached = cached.clone();
                async move { cached.read_at(vec![0; 4], 0).await }
            });
            assert_content(&file.read_at(vec![0; PAGE], i * 512).await.unwrap(), i * 512);
            assert_eq!(other.await.unwrap().unwrap(), b"\x7fELF");
        }
    });
}

#[test]
fn f48_another_thread_wakes_one_that_waits_for_commands_alone() {
    let Some(drive) = Drive::main("f48_another_thread_wakes_one_that_waits_for_commands_alone") else {
        return;
    };
    let file = drive.open();
    block_on(async {
        for _ in 0..20 {
            let long = ringfile::spawn({
                let file = file.clone();
                async move { file.write_at(vec![3; 4 << 20], 0).await }
            });
            // Started, so that the thread waits for nothing else.
            support::yield_now().await;
            let wakes = std::sync::Arc::new(Mutex::new((false, None::<std::task::Waker>)));
            let waker = std::sync::Arc::clone(&wakes);
            let other = std::thread::spawn(move || {
                let mut inner = waker.lock().unwrap();
                inner.0 = true;
                inner.1.take().into_iter().for_each(std::task::Waker::wake);
            });
            std::future::poll_fn(|context| {
                let mut inner = wakes.lock().unwrap();
                inner.1 = Some(context.waker().clone());
                if inner.0 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
            other.join().unwrap();
            long.await.unwrap().unwrap();
        }
    });
}

#[test]
fn f48_an_operation_longer_than_a_command_takes_several() {
    let Some(drive) =
        Drive::of("RINGFILE_TEST_NVME_SMALL", "f48_an_operation_longer_than_a_command_takes_several")
    else {
        return;
    };
    let (file, block_layer, pool) = (drive.open(), drive.block_layer(), Pool::new(32 << 20));
    assert_eq!(file.alignment().bytes, 4096);
    let len = 3 << 20;
    block_on(async {
        let before = thread_metrics();
        file.write_at(filled(&pool, 4096, len), 4096).await.unwrap();
        file.write_at(content(4 << 20, len), 4 << 20).await.unwrap();
        let counts = thread_metrics() - before;
        assert_eq!((counts.ops, counts.failed, counts.bytes_written), (2, 0, 2 * len as u64));
        assert!(counts.resubmitted >= 2 * (96 - 1), "commands of 32 KiB: {}", counts.resubmitted);
        assert_content(&file.read_at(pool.get(len).unwrap(), 4096).await.unwrap()[..len], 4096);
        let parts = file.read_vectored_at(pages(&pool, 700), 4 << 20).await.unwrap();
        parts.iter().enumerate().for_each(|(i, page)| assert_content(page, ((4 << 20) + i * PAGE) as u64));
        let error = file.write_at(vec![1; 512], 0).await.unwrap_err();
        assert!(error.to_string().contains("multiples of 4096"), "{error}");
    });
    assert_content(&block_layer.read(4096, len), 4096);
    assert_content(&block_layer.read(4 << 20, len), 4 << 20);
}

#[test]
fn f48_discarding_and_zeroing_a_range_touches_no_other() {
    let Some(drive) = Drive::main("f48_discarding_and_zeroing_a_range_touches_no_other") else { return };
    let (file, block_layer) = (drive.open(), drive.block_layer());
    let modes = [AllocateMode::Discard, AllocateMode::PunchHole, AllocateMode::ZeroRange];
    for (i, mode) in modes.into_iter().enumerate() {
        let start = (i as u64 + 1) << 20;
        block_layer.write(start, &content(start, 1 << 20));
        block_on(file.allocate(mode, start + 4096, 8192)).unwrap();
        assert_content(&block_layer.read(start, 4096), start);
        assert_content(&block_layer.read(start + 12288, 4096), start + 12288);
        let got = block_layer.read(start + 4096, 8192);
        let is_zero = got.iter().all(|&byte| byte == 0);
        assert!(is_zero || mode == AllocateMode::Discard, "{mode:?}");
        println!("{mode:?}: reads as zeros: {is_zero}");
    }
    // 48 MiB are more than one Write Zeroes command covers.
    block_layer.write(40 << 20, &content(0, 4096));
    block_on(file.allocate(AllocateMode::ZeroRange, 0, 48 << 20)).unwrap();
    assert_eq!(block_layer.read(40 << 20, 4096)[..], [0; 4096]);
    let mut batch = Batch::new();
    batch.add(file.allocate(AllocateMode::Discard, 0, 1 << 20));
    batch.add(file.sync_data());
    batch.add(file.allocate(AllocateMode::Extend, 0, 1 << 20));
    batch.add(file.allocate(AllocateMode::Discard, 100, 1 << 20));
    batch.add(file.set_len(4096));
    let done = batch.run();
    assert!(done[0].result.is_ok() && done[1].result.is_ok(), "{done:?}");
    let errnos = [libc::EOPNOTSUPP, libc::EINVAL, libc::EOPNOTSUPP];
    for (done, errno) in done[2..].iter().zip(errnos) {
        let error = done.result.as_ref().unwrap_err();
        assert_eq!(error.errno(), Some(errno), "{error}");
        assert!(error.to_string().contains("namespace"), "{error}");
    }
}

#[test]
fn f48_a_write_beyond_the_end_fails_with_the_drives_status_and_the_ring_stays_usable() {
    let Some(drive) =
        Drive::main("f48_a_write_beyond_the_end_fails_with_the_drives_status_and_the_ring_stays_usable")
    else {
        return;
    };
    let file = drive.open();
    let size = file.size().unwrap();
    block_on(async {
        for _ in 0..3 {
            let error = file.write_at(vec![1; 4096], size - 512).await.unwrap_err();
            assert_eq!((error.errno(), error.done()), (Some(libc::ENOSPC), 0));
            assert!(error.to_string().contains("LBA out of range (NVMe status 0x0/0x80)"), "{error}");
            assert!(error.to_string().contains(drive.path.to_str().unwrap()), "{error}");
            file.write_at(vec![5; 4096], size - 4096).await.unwrap();
            let read = file.read_at(Vec::with_capacity(8192), size - 4096).await.unwrap();
            assert_eq!(read, [5; 4096], "a read ends with the namespace");
            assert_eq!(file.read_at(vec![0; 4096], size).await.unwrap(), []);
            let short = file.read_exact_at(vec![0; 8192], size - 512).await.unwrap_err();
            assert_eq!((short.kind(), short.done()), (std::io::ErrorKind::UnexpectedEof, 512));
        }
        let mut batch = Batch::new();
        batch.add(file.write_at(vec![1; 512], size));
        batch.add(file.write_at(vec![6; 512], size - 512));
        let done = batch.await;
        assert_eq!(done[0].result.as_ref().unwrap_err().errno(), Some(libc::ENOSPC));
        assert_eq!(*done[1].result.as_ref().unwrap(), 512);
    });
}

#[test]
fn f48_dropped_operations_keep_their_memory_until_the_drive_has_answered() {
    let Some(drive) = Drive::main("f48_dropped_operations_keep_their_memory_until_the_drive_has_answered")
    else {
        return;
    };
    let (file, pool) = (drive.open(), Pool::new(16 << 20));
    drive.block_layer().write(0, &content(0, 1 << 20));
    block_on(async {
        for round in 0..20 {
            let mut reads: Vec<_> =
                (0..20).map(|i| Box::pin(file.read_at(pool.get(PAGE).unwrap(), i * 512))).collect();
            for read in &mut reads {
                let _ = poll_once(read).await;
            }
            if round % 2 == 0 {
                support::yield_now().await;
            }
            reads.truncate(5);
            for (i, read) in all(reads).await.into_iter().enumerate() {
                assert_content(&read.unwrap(), i as u64 * 512);
            }
        }
        let mut long = Box::pin(file.write_at(filled(&pool, 0, 8 << 20), 1 << 20));
        let _ = poll_once(&mut long).await;
        drop(long);
    });
    wait_for("the memory of what was dropped", || pool.metrics().in_use == 0);
    let mut queue = Queue::new();
    for i in 0..50 {
        queue.add(file.read_at(pool.get(PAGE).unwrap(), i * 512), i);
    }
    queue.submit();
    drop(queue);
    wait_for("the memory of a dropped queue", || pool.metrics().in_use == 0);
    assert_content(&drive.block_layer().read(0, 1 << 20), 0);
}

#[test]
fn f48_completions_are_polled_for_on_request() {
    let Some(drive) = Drive::main("f48_completions_are_polled_for_on_request") else { return };
    drive.block_layer().write(0, &content(0, 1 << 20));
    let file = drive.options().direct(true).iopoll(true).open_blocking(&drive.path).unwrap();
    let pool = Pool::new(4 << 20);
    block_on(async {
        let before = thread_metrics();
        let reads = (0..64).map(|i| file.read_at(pool.get(PAGE).unwrap(), i * 512)).collect();
        for (i, read) in all(reads).await.into_iter().enumerate() {
            assert_content(&read.unwrap(), i as u64 * 512);
        }
        file.write_at(filled(&pool, 0, PAGE), 2 << 20).await.unwrap();
        file.sync_data().await.unwrap();
        file.allocate(AllocateMode::Discard, 3 << 20, 4096).await.unwrap();
        assert_eq!((thread_metrics() - before).passthrough_ops, 67);
    });
    let mut batch = Batch::new();
    for i in 0..100 {
        batch.add(file.read_at(pool.get(PAGE).unwrap(), i * 512));
    }
    for (i, done) in batch.run().into_iter().enumerate() {
        assert_content(&done.buffer.unwrap(), i as u64 * 512);
    }
    assert_content(&drive.block_layer().read(2 << 20, PAGE), 0);
}

#[test]
fn f48_an_open_that_fails_names_the_cause() {
    let Some(drive) = Drive::main("f48_an_open_that_fails_names_the_cause") else { return };
    let error = OpenOptions::new().write(true).open_blocking(&drive.path).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("allow_raw_nvme_writes(true)"), "{error}");
    for route in [Route::Inline, Route::Workers] {
        let error = OpenOptions::new().read(true).route(route).open_blocking(&drive.path).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    }
    let error = drive.options().truncate(true).open_blocking(&drive.path).unwrap_err();
    assert!(error.to_string().contains("fixed size"), "{error}");
    // While it is open for writing, nobody else can open it for writing, and nobody can mount it.
    let busy = |what: &str| {
        let error = drive.options().open_blocking(&drive.path).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EBUSY), "{what}: {error}");
        assert!(error.to_string().contains("is in use"), "{what}: {error}");
    };
    let file = drive.open();
    busy("it is open for writing");
    let reader = OpenOptions::new().read(true).open_blocking(&drive.path).unwrap();
    let error = block_on(reader.write_at(vec![0; 4096], 0)).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EBADF));
    let mut exclusive = fs::OpenOptions::new();
    exclusive.read(true).custom_flags(libc::O_EXCL);
    assert_eq!(exclusive.open(drive.block_device()).unwrap_err().raw_os_error(), Some(libc::EBUSY));
    drop((file, reader));
    let holder = exclusive.open(drive.block_device()).unwrap();
    busy("it is held");
    drop(holder);
    let device = drive.block_device();
    let made = std::process::Command::new("mkfs.ext2").arg(&device).output();
    if !made.is_ok_and(|made| made.status.success()) {
        return skip("f48_an_open_that_fails_names_the_cause (mounted)", "there is no mkfs.ext2");
    }
    let folder = support::Folder::new();
    let mounted =
        std::process::Command::new("mount").args(["-t", "ext4"]).arg(&device).arg(folder.path()).status();
    assert!(mounted.unwrap().success());
    busy("it is mounted");
    assert!(std::process::Command::new("umount").arg(folder.path()).status().unwrap().success());
    drive.open();
}

#[test]
fn f48_opening_a_namespace_on_an_old_kernel_fails_with_a_reason() {
    let Some(path) = std::env::var_os("RINGFILE_TEST_NVME").map(PathBuf::from).filter(|path| !path.exists())
    else {
        return skip(
            "f48_opening_a_namespace_on_an_old_kernel_fails_with_a_reason",
            "this kernel has them, or none is named",
        );
    };
    let error = OpenOptions::new().read(true).open_blocking(&path).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOENT));
    assert!(error.to_string().contains("Linux 5.13"), "{error}");
}

#[test]
fn f48_a_format_with_metadata_is_refused() {
    let Some(drive) = Drive::of("RINGFILE_TEST_NVME_METADATA", "f48_a_format_with_metadata_is_refused")
    else {
        return;
    };
    let error = OpenOptions::new().read(true).open_blocking(&drive.path).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    assert!(error.to_string().contains("8 bytes of metadata"), "{error}");
}

#[test]
fn f48_a_write_to_a_protected_namespace_fails_with_the_drives_status() {
    let test = "f48_a_write_to_a_protected_namespace_fails_with_the_drives_status";
    let Some(drive) = Drive::of("RINGFILE_TEST_NVME_READONLY", test) else { return };
    let file = drive.open();
    block_on(async {
        let error = file.write_at(vec![1; 4096], 0).await.unwrap_err();
        assert!(error.to_string().contains("NVMe status"), "{error}");
        println!("{error}");
        let read = file.read_at(vec![1; 4096], 0).await.unwrap();
        assert_eq!(read.len(), 4096, "the ring goes on");
    });
}

#[test]
fn f48_a_drive_that_goes_away_ends_its_operations_and_no_others() {
    let test = "f48_a_drive_that_goes_away_ends_its_operations_and_no_others";
    let Some(drive) = Drive::of("RINGFILE_TEST_NVME_GONE", test) else { return };
    let (file, pool) = (drive.open(), Pool::new(4 << 20));
    let name = drive.path.file_name().unwrap().to_str().unwrap();
    let controller = format!("/sys/class/nvme/nvme{}/device/remove", name[2..].split('n').next().unwrap());
    block_on(async {
        file.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap();
        fs::write(controller, "1").unwrap();
        let error = file.read_at(pool.get(PAGE).unwrap(), 0).await.unwrap_err();
        println!("{error}");
        let error = file.sync_data().await.unwrap_err();
        println!("{error}");
        let text = OpenOptions::new().read(true).route(Route::Ring).open_blocking("/proc/self/exe").unwrap();
        assert_eq!(text.read_at(vec![0; 4], 0).await.unwrap(), b"\x7fELF");
    });
    assert_eq!(pool.metrics().in_use, 0);
}

/// Returns how many read and write commands the drive has carried out, from its SMART log.
fn commands(drive: &Drive) -> u64 {
    /// `struct nvme_admin_cmd`: the opcode, the namespace, the address and length of the data, and `cdw10`.
    #[repr(C)]
    struct Command([u32; 18]);
    let file = fs::File::open(&drive.path).unwrap();
    let mut log = Box::new([0_u8; 512]);
    let mut command = Command([0; 18]);
    let address = log.as_mut_ptr().expose_provenance() as u64;
    command.0[0] = 0x02;
    command.0[1] = u32::MAX;
    (command.0[6], command.0[7]) = (address as u32, (address >> 32) as u32);
    command.0[9] = 512;
    command.0[10] = 127 << 16 | 0x02;
    // SAFETY: the record has the 72 bytes that the request number encodes, and the log the 512 bytes that the record
    // names.
    let answer = unsafe {
        libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&file), 0xc048_4e41_u32 as libc::Ioctl, &raw mut command)
    };
    assert_eq!(answer, 0, "the SMART log");
    let count = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().unwrap());
    count(64) + count(80)
}

/// Measures the system calls (for fio, only those that submit and wait) and commands per operation, from two runs of
/// which one does twice as many operations.
fn cost_of_one(drive: &Drive, run: impl Fn(usize) -> std::process::Command) -> (f64, f64) {
    let folder = support::Folder::new();
    let counts = [400, 800].map(|ops| {
        let (output, program) = (folder.path().join("calls"), run(ops));
        let mut traced = std::process::Command::new("strace");
        traced.args(["-f", "-c", "-U", "name,calls", "-o"]).arg(&output).arg(program.get_program());
        traced.args(program.get_args());
        for (name, value) in program.get_envs() {
            traced.env(name, value.unwrap());
        }
        let ran_fio = program.get_program() == "fio";
        let before = commands(drive);
        let ran = traced.output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let commands = commands(drive) - before;
        let calls = fs::read_to_string(output).unwrap();
        // fio's threads for statistics make calls as time passes; only the calls that its operations make count here.
        let counted = if ran_fio { "io_uring_enter" } else { "total" };
        let total = calls.lines().find_map(|line| line.trim().strip_prefix(counted)).unwrap();
        (total.trim().parse::<f64>().unwrap(), commands as f64)
    });
    let [once, twice] = counts;
    ((twice.0 - once.0) / 400.0, (twice.1 - once.1) / 400.0)
}

#[test]
fn f48_one_operation_takes_no_more_calls_and_commands_than_elsewhere() {
    let test = "f48_one_operation_takes_no_more_calls_and_commands_than_elsewhere";
    if let Some(asked) = std::env::var_os("RINGFILE_TEST_NVME_READS") {
        return reads(&asked.into_string().unwrap());
    }
    let Some(drive) = Drive::main(test) else { return };
    for program in ["strace", "fio"] {
        if std::process::Command::new(program).arg("--version").output().is_err() {
            return skip(test, format!("{program} is not installed"));
        }
    }
    let ours = |path: PathBuf, depth: usize| {
        move |ops: usize| {
            let again = again(test);
            // Under strace, /proc/self/exe would be strace.
            let mut program = std::process::Command::new(std::env::current_exe().unwrap());
            program.args(again.get_args());
            program.env("RINGFILE_TEST_NVME_READS", format!("{} {depth} {ops}", path.display()));
            program
        }
    };
    let fio = |path: PathBuf, depth: usize, engine: &'static str| {
        move |ops: usize| {
            let mut program = std::process::Command::new("fio");
            program.args([
                "--name=reads",
                "--rw=randread",
                "--bs=4k",
                "--size=64M",
                "--norandommap",
                "--thread",
            ]);
            program.args([format!("--filename={}", path.display()), format!("--number_ios={ops}")]);
            program.args([format!("--iodepth={depth}"), format!("--ioengine={engine}")]);
            program.arg(if engine == "io_uring_cmd" { "--cmd_type=nvme" } else { "--direct=1" });
            program
        }
    };
    println!("\n| reads of 4 KiB | depth | system calls | commands |\n|---|---|---|---|");
    for depth in [1, 16] {
        let rows = [
            ("ringfile, namespace", cost_of_one(&drive, ours(drive.path.clone(), depth))),
            ("ringfile, block device", cost_of_one(&drive, ours(drive.block_device(), depth))),
            ("fio io_uring_cmd", cost_of_one(&drive, fio(drive.path.clone(), depth, "io_uring_cmd"))),
            ("fio io_uring, block device", cost_of_one(&drive, fio(drive.block_device(), depth, "io_uring"))),
        ];
        for (what, (calls, commands)) in rows {
            println!("| {what} | {depth} | {calls:.2} | {commands:.2} |");
        }
        let (calls, commands) = rows[0].1;
        for (what, (others_calls, others_commands)) in &rows[1..] {
            assert!(calls <= others_calls + 0.1, "{what}: {calls} calls against {others_calls}");
            assert!(
                commands <= others_commands + 0.01,
                "{what}: {commands} commands against {others_commands}"
            );
        }
    }
}

/// Reads a number of blocks: "path depth operations".
fn reads(asked: &str) {
    let [path, depth, ops] = asked.split(' ').collect::<Vec<_>>()[..] else { panic!("{asked}") };
    let (depth, ops) = (depth.parse::<usize>().unwrap(), ops.parse::<usize>().unwrap());
    let file = OpenOptions::new().read(true).direct(true).route(Route::Ring).open_blocking(path).unwrap();
    let pool = Pool::new(4 << 20);
    block_on(async {
        let tasks = (0..depth).map(|task| {
            let (file, pool) = (file.clone(), pool.clone());
            ringfile::spawn(async move {
                let mut buffer = pool.get(PAGE).unwrap();
                for i in 0..ops / depth {
                    // Never adjacent ones, which the block layer would merge into one command.
                    let block = ((i * depth + task) * 1237 % 4096) as u64;
                    buffer = file.read_at(buffer, block * PAGE as u64).await.unwrap();
                }
            })
        });
        let tasks: Vec<_> = tasks.collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}
