//! The engines that carry out a job: ringfile itself, and those that it is compared with.
//!
//! Every engine gets the same [`Job`] and file, and returns the same [`Outcome`]; only this folder knows how one works.

mod batches;
mod bench;
pub mod fio;
mod hand_loop;
pub mod hand_ring;
pub mod memory;
pub mod mixed;
mod outcome;
mod pread;
mod queue;
pub mod ringfile;
pub mod window;

pub use bench::{Bench, Fio};
pub use outcome::{Counted, Outcome, rated};
pub use window::raise;

use crate::error::Failure;
use crate::job::Job;
use crate::model::{Cache, Engine};

impl Bench<'_> {
    /// Carries out one job; `tick` is called now and then meanwhile. An error means that the job could not be
    /// carried out at all; operations that failed are in the outcome.
    pub fn run(&self, engine: Engine, job: &Job, tick: &mut dyn FnMut()) -> Result<Outcome, Failure> {
        match engine {
            Engine::Ringfile if job.setup.cache == Cache::Mixed => mixed::run(job, self, tick),
            Engine::Ringfile if job.setup.batch.is_none() => ringfile::run(job, self, tick),
            Engine::Ringfile | Engine::RingfileBlocking => batches::run_blocking(job, self, tick),
            Engine::RingfileTokio => batches::run_in_tokio(job, self, tick),
            Engine::RingfileQueue => queue::run(job, self, tick),
            Engine::Pread => pread::run(job, self, tick),
            Engine::ByHand => hand_loop::run(job, self, tick),
            Engine::Fio | Engine::FioBatch | Engine::FioPsync => match self.fio {
                Some(fio) => fio::run(fio, engine, job, self, tick),
                None => Err(Failure::Io("fio is not there".into())),
            },
        }
    }
}
