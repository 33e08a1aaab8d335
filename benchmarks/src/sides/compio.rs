//! compio: as many spawned tasks as reads in flight, each with its own page-aligned buffer.

use std::io;
use std::mem::MaybeUninit;

use compio::BufResult;
use compio::buf::{IoBuf, IoBufMut, SetLen};
use compio::driver::ProactorBuilder;
use compio::fs::OpenOptions;
use compio::io::AsyncReadAt;
use compio::runtime::RuntimeBuilder;

use crate::buffer::AlignedBuf;
use crate::job::{Job, Stream, Tally};

/// How the runtime is built.
#[derive(Debug, Clone, Copy)]
pub enum Settings {
    /// `RuntimeBuilder::new()`.
    Default,
    /// COOP_TASKRUN with TASKRUN_FLAG and SINGLE_ISSUER.
    Coop,
    /// DEFER_TASKRUN with TASKRUN_FLAG and SINGLE_ISSUER.
    Defer,
}

impl IoBuf for AlignedBuf {
    fn as_init(&self) -> &[u8] {
        self
    }
}

impl SetLen for AlignedBuf {
    unsafe fn set_len(&mut self, len: usize) {
        self.set_filled(len);
    }
}

impl IoBufMut for AlignedBuf {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: this value alone owns the memory, which is `capacity` bytes long and borrowed mutably here.
        unsafe { std::slice::from_raw_parts_mut(self.start().cast(), self.capacity()) }
    }
}

/// Reads at `job.depth` until the time is over.
pub fn run(settings: Settings, job: &Job) -> io::Result<Tally> {
    let mut proactor = ProactorBuilder::new();
    let mut builder = RuntimeBuilder::new();
    match settings {
        Settings::Default => {}
        Settings::Coop => {
            proactor.coop_taskrun(true).taskrun_flag(true).single_issuer(true);
        }
        Settings::Defer => {
            proactor.defer_taskrun(true).taskrun_flag(true).single_issuer(true);
        }
    }
    if !matches!(settings, Settings::Default) {
        // More than the queue depth, so that one turn of the executor runs every ready task.
        builder.event_interval(1024);
    }
    let runtime = builder.with_proactor(proactor).build()?;
    runtime.block_on(async {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(job.open_flags());
        let file = options.open(&job.path).await?;
        let window = job.start();
        let tasks: Vec<_> = (0..job.depth)
            .map(|task| {
                let buffer = AlignedBuf::new(job.block);
                compio::runtime::spawn(read(file.clone(), buffer, window.stream(task)))
            })
            .collect();
        let mut tallies = Vec::with_capacity(job.depth);
        for task in tasks {
            tallies.push(task.await.map_err(|_| io::Error::other("a task panicked"))?);
        }
        Tally::sum(tallies)
    })
}

async fn read(file: compio::fs::File, mut buffer: AlignedBuf, mut stream: Stream) -> io::Result<Tally> {
    while let Some(offset) = stream.next() {
        buffer.set_filled(0);
        let BufResult(result, back) = file.read_at(buffer, offset).await;
        buffer = back;
        let n = result?;
        stream.done(&buffer[..n])?;
    }
    Ok(stream.into_tally())
}
