//! A worker process: carries out one run of `perf buffers`, pinned to a core.
//!
//! It reads the job as one line of JSON from standard input and answers with one line of JSON. It ends with the process
//! that started it.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::engine::{self, Bench, Outcome};
use crate::error::{Failure, errno_text};
use crate::interrupt::Interrupt;
use crate::job::Job;
use crate::latency::Recorder;
use crate::model::Engine;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

/// What the process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerOrder {
    /// The path that leads to the file.
    pub path: PathBuf,
    /// The measurement.
    pub job: Job,
    /// The core to run on.
    pub core: usize,
}

/// What the process did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    /// What the engine measured.
    pub outcome: Outcome,
    /// All latencies, to be merged with those of other processes.
    pub latencies: Recorder,
    /// Why memory was not registered, if it was refused.
    pub refused: Option<String>,
}

/// Reads an order from standard input and carries it out.
pub fn run() -> Result<(), Failure> {
    let went_away = |error: std::io::Error| Failure::Io(format!("no order: {}", errno_text(&error)));
    // If this fails, the parent process has ended, and the answer has no reader.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let interrupt = Interrupt::catch_signals()?;
    writeln!(std::io::stdout(), "ready").map_err(went_away)?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(went_away)?;
    let order: WorkerOrder = serde_json::from_str(&line).map_err(|error| {
        Failure::Usage(format!("only ringfile perf buffers may start this command: {error}"))
    })?;
    let mut cores = CpuSet::new();
    cores.set(order.core);
    sched_setaffinity(None, &cores)
        .map_err(|error| Failure::Io(format!("can't be pinned to core {}: {error}", order.core)))?;
    let answer = carry_out(&order, &interrupt)?;
    let text = serde_json::to_string(&answer).map_err(|error| Failure::Io(error.to_string()))?;
    writeln!(std::io::stdout(), "{text}").map_err(went_away)
}

fn carry_out(order: &WorkerOrder, interrupt: &Interrupt) -> Result<Answer, Failure> {
    let bench = Bench { path: &order.path, namespace: false, interrupt, fio: None };
    let run =
        if order.job.setup.engine == Engine::ByHand { engine::hand_loop::run } else { engine::ringfile::run };
    let (outcome, latencies) = run(&order.job, &bench, &mut || {})?;
    let refused = ringfile::buf::refused_registration().map(|refused| refused.to_string());
    Ok(Answer { outcome, latencies, refused })
}
