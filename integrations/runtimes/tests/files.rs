//! Each runtime writes buffers of a pool to a file and reads the file into other buffers: all of it, a part, beyond its end,
//! and with O_DIRECT.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bytes::BufMut;
use ringfile::buf::{CompioBuffer, PoolError};
use ringfile::{Buffer, Pool};

const PAGE: usize = 4096;

/// A runtime's file.
trait Files {
    /// Writes the whole buffer at `offset`, and returns it.
    fn write(&self, path: &Path, direct: bool, buffer: Buffer, offset: u64) -> Buffer;

    /// Reads once from `offset`; also returns the number of bytes that the runtime reported.
    fn read(&self, path: &Path, direct: bool, buffer: Buffer, offset: u64) -> (usize, Buffer);

    /// Reads several times into parts of one buffer, until it is full.
    fn read_exact(&self, path: &Path, buffer: Buffer, offset: u64) -> Buffer;
}

fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped {test}: {why}");
}

/// Returns whether the runtime's ring is available; prints that the test is skipped if not.
fn has_ring(test: &str) -> bool {
    let ring = ringfile::metrics::ring_features();
    if let Err(error) = &ring {
        skip(test, &error.to_string());
    }
    ring.is_ok()
}

fn options(direct: bool) -> std::fs::OpenOptions {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    if direct {
        options.custom_flags(libc::O_DIRECT);
    }
    options
}

fn check(name: &str, files: &impl Files) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("data");
    let pool = Pool::new(8 << 20);
    // Appends without knowing the final length.
    let mut message = pool.get(512).unwrap();
    for number in 0..4096_u32 {
        message.put_u32_le(number);
    }
    assert!(pool.metrics().growths > 0);
    let (start, content) = (message.as_ptr(), message.to_vec());
    let message = files.write(&path, false, message, 0);
    assert_eq!((message.as_ptr(), &message[..]), (start, &content[..]));
    assert_eq!(std::fs::read(&path).unwrap(), content);

    let page = pool.get(PAGE).unwrap();
    let start = page.as_ptr();
    let (read, page) = files.read(&path, false, page, 100);
    assert_eq!((read, page.as_ptr(), &page[..]), (PAGE, start, &content[100..100 + PAGE]));
    // A read that reaches the end of the file, and one beyond it.
    let (read, short) = files.read(&path, false, pool.get(PAGE).unwrap(), content.len() as u64 - 10);
    assert_eq!((read, &short[..]), (10, &content[content.len() - 10..]));
    let (read, none) = files.read(&path, false, pool.get(PAGE).unwrap(), 1 << 20);
    assert_eq!((read, none.len()), (0, 0));
    let all = files.read_exact(&path, pool.get(content.len()).unwrap(), 0);
    assert_eq!(all[..], content[..]);
    // Frozen, and thawed.
    let frozen = all.freeze();
    assert_eq!(frozen[..], content[..]);
    drop(pool.thaw(frozen).unwrap());

    match options(true).open(&path) {
        Err(error) => skip(&format!("{name}, direct"), &error.to_string()),
        Ok(_) => {
            let mut blocks = pool.get(4 * PAGE).unwrap();
            blocks.resize(4 * PAGE, 7);
            drop(files.write(&path, true, blocks, PAGE as u64));
            let (read, back) = files.read(&path, true, pool.get(4 * PAGE).unwrap(), PAGE as u64);
            assert_eq!(read, 4 * PAGE);
            assert!(back.iter().all(|&byte| byte == 7));
        }
    }
    drop((message, page, short, none));
    assert_eq!(pool.metrics().in_use, 0, "all memory was returned");
}

struct Compio;

fn for_compio(buffer: Buffer) -> CompioBuffer {
    // SAFETY: only compio's reads and its `extend_from_slice` write to it, and they write only initialised bytes.
    unsafe { CompioBuffer::new(buffer) }
}

fn in_compio<T>(run: impl Future<Output = T>) -> T {
    compio::runtime::Runtime::new().unwrap().block_on(run)
}

async fn compio_file(path: &Path, direct: bool) -> compio::fs::File {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let mut options = compio::fs::OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(flags).open(path).await.unwrap()
}

impl Files for Compio {
    fn write(&self, path: &Path, direct: bool, buffer: Buffer, offset: u64) -> Buffer {
        use compio::io::AsyncWriteAtExt;
        in_compio(async {
            let (result, buffer) = compio_file(path, direct).await.write_all_at(buffer, offset).await.into();
            result.unwrap();
            buffer
        })
    }

    fn read(&self, path: &Path, direct: bool, buffer: Buffer, offset: u64) -> (usize, Buffer) {
        use compio::io::AsyncReadAt;
        in_compio(async {
            let file = compio_file(path, direct).await;
            let (result, buffer) = file.read_at(for_compio(buffer), offset).await.into();
            (result.unwrap(), buffer.into())
        })
    }

    fn read_exact(&self, path: &Path, buffer: Buffer, offset: u64) -> Buffer {
        use compio::io::AsyncReadAtExt;
        in_compio(async {
            let file = compio_file(path, false).await;
            let (result, buffer) = file.read_exact_at(for_compio(buffer), offset).await.into();
            result.unwrap();
            buffer.into()
        })
    }
}

#[test]
fn compio_reads_and_writes_pool_buffers() {
    check("compio", &Compio);
}

#[test]
fn compio_makes_pool_buffers_grow() {
    use compio::buf::{IoBufMut, ReserveError};
    let pool = Pool::new(8 << 20);
    let mut buffer = for_compio(pool.get(10).unwrap());
    for _ in 0..100 {
        IoBufMut::extend_from_slice(&mut buffer, &[9; 1000]).unwrap();
    }
    assert_eq!(buffer[..], [9; 100_000]);
    assert!(pool.metrics().growths > 0);
    let fixed = Pool::builder().capacity(1 << 20).growing(false).build().unwrap();
    let mut buffer = for_compio(fixed.get(512).unwrap());
    assert!(IoBufMut::reserve(&mut buffer, 512).is_ok());
    assert!(matches!(IoBufMut::reserve(&mut buffer, 513), Err(ReserveError::NotSupported)));
    let mut buffer = for_compio(pool.get(512).unwrap());
    let Err(ReserveError::ReserveFailed(why)) = IoBufMut::reserve(&mut buffer, 1 << 30) else {
        panic!("no room")
    };
    assert!(matches!(why.downcast_ref(), Some(PoolError::TooLarge { .. })), "{why}");
}

struct Monoio;

fn in_monoio<T>(run: impl Future<Output = T>) -> T {
    monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().build().unwrap().block_on(run)
}

fn monoio_file(path: &Path, direct: bool) -> monoio::fs::File {
    monoio::fs::File::from_std(options(direct).open(path).unwrap()).unwrap()
}

impl Files for Monoio {
    fn write(&self, path: &Path, direct: bool, buffer: Buffer, offset: u64) -> Buffer {
        in_monoio(async {
            let (result, buffer) = monoio_file(path, direct).write_all_at(buffer, offset).await;
            result.unwrap();
            buffer
        })
    }

    fn read(&self, path: &Path, direct: bool, buffer: Buffer, offset: u64) -> (usize, Buffer) {
        in_monoio(async {
            let (result, buffer) = monoio_file(path, direct).read_at(buffer, offset).await;
            (result.unwrap(), buffer)
        })
    }

    fn read_exact(&self, path: &Path, buffer: Buffer, offset: u64) -> Buffer {
        in_monoio(async {
            let (result, buffer) = monoio_file(path, false).read_exact_at(buffer, offset).await;
            result.unwrap();
            buffer
        })
    }
}

#[test]
fn monoio_reads_and_writes_pool_buffers() {
    if has_ring("monoio_reads_and_writes_pool_buffers") {
        check("monoio", &Monoio);
    }
}

struct TokioUring;

fn tokio_uring_file(path: &Path, direct: bool) -> tokio_uring::fs::File {
    tokio_uring::fs::File::from_std(options(direct).open(path).unwrap())
}

impl Files for TokioUring {
    fn write(&self, path: &Path, direct: bool, buffer: Buffer, offset: u64) -> Buffer {
        tokio_uring::start(async {
            let (result, buffer) = tokio_uring_file(path, direct).write_all_at(buffer, offset).await;
            result.unwrap();
            buffer
        })
    }

    fn read(&self, path: &Path, direct: bool, buffer: Buffer, offset: u64) -> (usize, Buffer) {
        tokio_uring::start(async {
            let (result, buffer) = tokio_uring_file(path, direct).read_at(buffer, offset).await;
            (result.unwrap(), buffer)
        })
    }

    fn read_exact(&self, path: &Path, buffer: Buffer, offset: u64) -> Buffer {
        tokio_uring::start(async {
            let (result, buffer) = tokio_uring_file(path, false).read_exact_at(buffer, offset).await;
            result.unwrap();
            buffer
        })
    }
}

#[test]
fn tokio_uring_reads_and_writes_pool_buffers() {
    if has_ring("tokio_uring_reads_and_writes_pool_buffers") {
        check("tokio-uring", &TokioUring);
    }
}
