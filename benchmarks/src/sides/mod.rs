//! The sides of the comparison, one file each, behind one function that does a job and returns its counts.
//!
//! Each run of a side has a new thread, which ends with the run, so no ring or thread-local cache outlives it.

mod batch;
mod compio;
mod glommio;
mod hand;
mod monoio;
mod ringfile;
mod tokio_uring;

use std::io;

use crate::job::{Job, Tally};

use ::ringfile::Route;
use ringfile_cli::shared::Buffers;

use ringfile::Form;

pub use batch::allocations as batch_allocations;

/// One contender.
#[derive(Clone, Copy)]
pub struct Side {
    /// The name on the command line and in the tables.
    pub name: &'static str,
    /// The settings that differ from the defaults, in a few words.
    pub settings: &'static str,
    /// Does the work on the calling thread.
    pub run: fn(&Job) -> io::Result<Tally>,
}

/// All contenders for plain reads, in the order of the table.
pub const SIDES: &[Side] = &[
    Side { name: "ringfile", settings: "a pool, defaults", run: |job| ringfile::run(Form::Auto, job) },
    Side {
        name: "ringfile-ring",
        settings: "a pool, Route::Ring",
        run: |job| ringfile::run(Form::Fixed, job),
    },
    Side {
        name: "ringfile-normal",
        settings: "a pool that is not registered",
        run: |job| ringfile::run(Form::Normal, job),
    },
    Side {
        name: "hand",
        settings: "SINGLE_ISSUER DEFER_TASKRUN NO_SQARRAY, registered ring, file and buffers",
        run: |job| hand::run(Buffers::Fixed, job),
    },
    Side {
        name: "hand-normal",
        settings: "the same, buffers not registered",
        run: |job| hand::run(Buffers::Normal, job),
    },
    Side { name: "compio", settings: "defaults", run: |job| compio::run(compio::Settings::Default, job) },
    Side {
        name: "compio-tuned",
        settings: "COOP_TASKRUN TASKRUN_FLAG SINGLE_ISSUER, event_interval 1024",
        run: |job| compio::run(compio::Settings::Coop, job),
    },
    Side {
        name: "compio-defer",
        settings: "SINGLE_ISSUER DEFER_TASKRUN TASKRUN_FLAG, event_interval 1024",
        run: |job| compio::run(compio::Settings::Defer, job),
    },
    Side { name: "monoio", settings: "defaults", run: |job| monoio::run(monoio::Settings::Default, job) },
    Side {
        name: "monoio-tuned",
        settings: "SINGLE_ISSUER DEFER_TASKRUN",
        run: |job| monoio::run(monoio::Settings::Defer, job),
    },
    Side {
        name: "tokio-uring",
        settings: "defaults",
        run: |job| tokio_uring::run(tokio_uring::Settings::Default, job),
    },
    Side {
        name: "tokio-uring-tuned",
        settings: "COOP_TASKRUN SINGLE_ISSUER, 1024 entries, registered buffers",
        run: |job| tokio_uring::run(tokio_uring::Settings::Coop, job),
    },
    Side { name: "glommio", settings: "defaults", run: |job| glommio::run(glommio::Settings::Default, job) },
    Side {
        name: "glommio-tuned",
        settings: "ring_depth 1024, io_memory 64 MiB",
        run: |job| glommio::run(glommio::Settings::Deep, job),
    },
    Side {
        name: "glommio-spin",
        settings: "the same, spin_before_park 10 ms",
        run: |job| glommio::run(glommio::Settings::DeepSpinning, job),
    },
];

/// The two forms of a vectored read, by ringfile and hand-written.
pub const VECTORED: &[Side] = &[
    Side {
        name: "ringfile",
        settings: "READV_FIXED: a pool, Route::Ring",
        run: |job| ringfile::run(Form::Fixed, job),
    },
    Side {
        name: "ringfile-normal",
        settings: "READV: a pool that is not registered",
        run: |job| ringfile::run(Form::Normal, job),
    },
    Side {
        name: "hand-readv-fixed",
        settings: "READV_FIXED",
        run: |job| hand::run(Buffers::VectoredFixed, job),
    },
    Side { name: "hand-readv", settings: "READV", run: |job| hand::run(Buffers::Vectored, job) },
];

/// Blocking batches, by ringfile and hand-written.
pub const BATCHES: &[Side] = &[
    Side { name: "ringfile", settings: "a pool, `Batch::run`", run: |job| batch::run(Route::Auto, job) },
    Side {
        name: "ringfile-ring",
        settings: "the same, Route::Ring",
        run: |job| batch::run(Route::Ring, job),
    },
    Side {
        name: "hand",
        settings: "SINGLE_ISSUER DEFER_TASKRUN NO_SQARRAY, registered ring, file and buffers",
        run: |job| hand::run_batches(job.in_flight.unwrap_or(job.depth), job),
    },
];
