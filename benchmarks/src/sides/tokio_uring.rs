//! tokio-uring: as many spawned tasks as reads in flight, each with its own page-aligned buffer.
//!
//! It is not measured with DEFER_TASKRUN: it waits for the ring's descriptor in epoll, and a ring with that flag does not
//! wake epoll.

use std::io;
use std::rc::Rc;

use tokio_uring::buf::fixed::{FixedBuf, FixedBufRegistry};
use tokio_uring::buf::{IoBuf, IoBufMut};
use tokio_uring::fs::File;

use crate::buffer::AlignedBuf;
use crate::job::{Job, Stream, Tally};

/// How the runtime is built, and which call reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settings {
    /// `tokio_uring::builder()`, `read_at`.
    Default,
    /// COOP_TASKRUN and SINGLE_ISSUER by `uring_builder`, `read_fixed_at` on a registered collection.
    Coop,
}

// SAFETY: the memory doesn't move while the value lives, is `capacity` bytes long and initialised from the start.
unsafe impl IoBuf for AlignedBuf {
    fn stable_ptr(&self) -> *const u8 {
        self.start()
    }

    fn bytes_init(&self) -> usize {
        self.len()
    }

    fn bytes_total(&self) -> usize {
        self.capacity()
    }
}

// SAFETY: as for `IoBuf`; the value alone owns its memory, so a `&mut` to it may return a pointer for writing.
unsafe impl IoBufMut for AlignedBuf {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.start()
    }

    unsafe fn set_init(&mut self, pos: usize) {
        self.set_filled(pos.max(self.len()));
    }
}

/// Reads at `job.depth` until the time is over.
pub fn run(settings: Settings, job: &Job) -> io::Result<Tally> {
    let mut builder = tokio_uring::builder();
    if settings == Settings::Coop {
        let mut ring = tokio_uring::uring_builder();
        ring.setup_coop_taskrun().setup_single_issuer();
        builder.uring_builder(&ring).entries(1024);
    }
    builder.start(async {
        let file = Rc::new(File::from_std(job.open()?));
        let registry = FixedBufRegistry::new((0..job.depth).map(|_| AlignedBuf::new(job.block)));
        if settings == Settings::Coop {
            registry.register()?;
        }
        let window = job.start();
        let tasks: Vec<_> = (0..job.depth)
            .map(|task| {
                let stream = window.stream(task);
                match settings {
                    Settings::Default => {
                        tokio_uring::spawn(read(Rc::clone(&file), AlignedBuf::new(job.block), stream))
                    }
                    Settings::Coop => {
                        let buffer = registry.check_out(task).expect("as many buffers as tasks");
                        tokio_uring::spawn(read_fixed(Rc::clone(&file), buffer, stream))
                    }
                }
            })
            .collect();
        let mut tallies = Vec::with_capacity(job.depth);
        for task in tasks {
            tallies.push(task.await.map_err(io::Error::other)?);
        }
        Tally::sum(tallies)
    })
}

async fn read(file: Rc<File>, mut buffer: AlignedBuf, mut stream: Stream) -> io::Result<Tally> {
    while let Some(offset) = stream.next() {
        let (result, back) = file.read_at(buffer, offset).await;
        buffer = back;
        let n = result?;
        stream.done(&buffer[..n])?;
    }
    Ok(stream.into_tally())
}

async fn read_fixed(file: Rc<File>, mut buffer: FixedBuf, mut stream: Stream) -> io::Result<Tally> {
    while let Some(offset) = stream.next() {
        let (result, back) = file.read_fixed_at(buffer, offset).await;
        buffer = back;
        let n = result?;
        stream.done(&buffer[..n])?;
    }
    Ok(stream.into_tally())
}
