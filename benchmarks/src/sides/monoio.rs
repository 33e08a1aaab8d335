//! monoio: as many spawned tasks as reads in flight, each with its own page-aligned buffer.

use std::io;
use std::rc::Rc;

use monoio::buf::IoBufMut;
use monoio::fs::File;
use monoio::{IoUringDriver, RuntimeBuilder};

use crate::buffer::AlignedBuf;
use crate::job::{Job, Stream, Tally};

/// How the runtime is built.
#[derive(Debug, Clone, Copy)]
pub enum Settings {
    /// `RuntimeBuilder::<IoUringDriver>::new()`.
    Default,
    /// SINGLE_ISSUER and DEFER_TASKRUN by `uring_builder`.
    Defer,
}

// SAFETY: the memory doesn't move while the value lives, is `capacity` bytes long and initialised from the start.
unsafe impl IoBufMut for AlignedBuf {
    fn write_ptr(&mut self) -> *mut u8 {
        self.start()
    }

    fn bytes_total(&mut self) -> usize {
        self.capacity()
    }

    unsafe fn set_init(&mut self, pos: usize) {
        self.set_filled(pos);
    }
}

/// Reads at `job.depth` until the time is over.
pub fn run(settings: Settings, job: &Job) -> io::Result<Tally> {
    let mut builder = RuntimeBuilder::<IoUringDriver>::new();
    if let Settings::Defer = settings {
        let mut ring = io_uring_06::IoUring::builder();
        ring.setup_single_issuer().setup_defer_taskrun();
        builder = builder.uring_builder(ring);
    }
    builder.build()?.block_on(async {
        let file = Rc::new(File::from_std(job.open()?)?);
        let window = job.start();
        let tasks: Vec<_> = (0..job.depth)
            .map(|task| {
                let buffer = AlignedBuf::new(job.block);
                monoio::spawn(read(Rc::clone(&file), buffer, window.stream(task)))
            })
            .collect();
        let mut tallies = Vec::with_capacity(job.depth);
        for task in tasks {
            tallies.push(task.await);
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
