//! glommio: as many spawned tasks as reads in flight. It has its own memory, in an arena that it registers: `DmaFile`
//! reads into it with READ_FIXED, `BufferedFile` with READ.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use glommio::io::{BufferedFile, DmaFile};
use glommio::{LocalExecutorBuilder, Placement};

use crate::device::is_block_device;
use crate::job::{Job, Stream, Tally};

/// How the executor is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settings {
    /// `LocalExecutorBuilder::default()`.
    Default,
    /// Deeper rings, more registered memory.
    Deep,
    /// As `Deep`, and the executor spins before it parks.
    DeepSpinning,
}

/// Reads at `job.depth` until the time is over.
pub fn run(settings: Settings, job: &Job) -> io::Result<Tally> {
    let mut builder = LocalExecutorBuilder::new(Placement::Unbound);
    if settings != Settings::Default {
        builder = builder.ring_depth(1024).io_memory(64 << 20);
    }
    if settings == Settings::DeepSpinning {
        builder = builder.spin_before_park(Duration::from_millis(10));
    }
    // `io::Error` requires `Sync`, which glommio's error is not, so only its text is kept.
    let executor = builder.make().map_err(|error| io::Error::other(error.to_string()))?;
    if job.direct { executor.run(read_direct(job)) } else { executor.run(read_buffered(job)) }
}

async fn read_direct(job: &Job) -> io::Result<Tally> {
    let node = Node::for_device(&job.path)?;
    let path = node.as_ref().map_or(job.path.as_path(), |node| node.0.as_path());
    let file = Rc::new(DmaFile::open(path).await?);
    let window = job.start();
    let tasks: Vec<_> = (0..job.depth)
        .map(|task| {
            let (file, mut stream, block) = (Rc::clone(&file), window.stream(task), job.block);
            glommio::spawn_local(async move {
                while let Some(offset) = stream.next() {
                    let bytes = file.read_at_aligned(offset, block).await?;
                    stream.done(&bytes)?;
                }
                Ok(stream.into_tally())
            })
        })
        .collect();
    let total = join(tasks).await;
    if let Ok(file) = Rc::try_unwrap(file) {
        file.close().await?;
    }
    total
}

async fn read_buffered(job: &Job) -> io::Result<Tally> {
    let file = Rc::new(BufferedFile::open(&job.path).await?);
    let window = job.start();
    let tasks: Vec<_> = (0..job.depth)
        .map(|task| {
            let (file, stream, block) = (Rc::clone(&file), window.stream(task), job.block);
            glommio::spawn_local(read_cached(file, stream, block))
        })
        .collect();
    let total = join(tasks).await;
    if let Ok(file) = Rc::try_unwrap(file) {
        file.close().await?;
    }
    total
}

async fn read_cached(file: Rc<BufferedFile>, mut stream: Stream, block: usize) -> io::Result<Tally> {
    while let Some(offset) = stream.next() {
        let bytes = file.read_at(offset, block).await?;
        stream.done(&bytes)?;
    }
    Ok(stream.into_tally())
}

async fn join(tasks: Vec<glommio::Task<io::Result<Tally>>>) -> io::Result<Tally> {
    let mut tallies = Vec::with_capacity(tasks.len());
    for task in tasks {
        tallies.push(task.await);
    }
    Tally::sum(tallies)
}

/// A second name for a block device, on a disk file system, removed on drop.
///
/// `DmaFile` derives a file's properties from the file system of its *path* (dma_file.rs:132 and 140). /dev is tmpfs or
/// devtmpfs, both with the magic number of tmpfs, for which `DmaFile` omits O_DIRECT and READ_FIXED: it would read a
/// device through the page cache. Under another name it uses both.
struct Node(PathBuf);

impl Node {
    fn for_device(device: &Path) -> io::Result<Option<Node>> {
        let metadata = device.metadata()?;
        if !is_block_device(&metadata) {
            return Ok(None);
        }
        let path = PathBuf::from(format!("/var/tmp/ringfile-compare-{}", std::process::id()));
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: `name` is a C string that outlives the call.
        if unsafe { libc::mknod(name.as_ptr(), libc::S_IFBLK | 0o600, metadata.rdev()) } != 0 {
            let error = io::Error::last_os_error();
            return Err(io::Error::new(error.kind(), format!("a device node {}: {error}", path.display())));
        }
        Ok(Some(Node(path)))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // If this fails, nothing can be done, and nothing depends on it.
        let _ = std::fs::remove_file(&self.0);
    }
}
