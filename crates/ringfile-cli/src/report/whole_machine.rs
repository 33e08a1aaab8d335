//! What the whole machine did during a run, as the JSON has it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::whole::Whole;

/// What the whole machine did during a run. CPU time is in per cent of one core, so all of it together is 100 for each core.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WholeMachine {
    /// CPU time in user space.
    pub user_percent: f64,
    /// CPU time in the kernel, without interrupts.
    pub system_percent: f64,
    /// CPU time of interrupts, and of what they leave to do.
    pub interrupts_percent: f64,
    /// Time without work, waiting for I/O included.
    pub idle_percent: f64,
    /// Time that other guests of a virtual machine's host had.
    pub stolen_percent: f64,
    /// How many interrupts there were.
    pub interrupts: u64,
    /// Bytes that memory moved in a second; null where the machine does not count them.
    pub memory_bw_bytes: Option<f64>,
}

impl WholeMachine {
    /// Of what was done in so many seconds.
    pub fn of(whole: &Whole, seconds: f64) -> WholeMachine {
        let per_cent = |time: Duration| time.as_secs_f64() * 100.0 / seconds;
        WholeMachine {
            user_percent: per_cent(whole.user),
            system_percent: per_cent(whole.system),
            interrupts_percent: per_cent(whole.interrupts),
            idle_percent: per_cent(whole.idle),
            stolen_percent: per_cent(whole.stolen),
            interrupts: whole.interrupt_count,
            memory_bw_bytes: whole.memory_bytes.map(|bytes| bytes as f64 / seconds),
        }
    }
}
