//! The worker processes of one run: starts them, sends their orders at the same time, and adds up their answers.
//!
//! Invariant: no worker process outlives the run, however that ends.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::worker::Answer;
pub use super::worker::WorkerOrder;
use crate::engine::window::{self, TICK};
use crate::engine::{Counted, Outcome};
use crate::error::{Failure, errno_text};
use crate::interrupt::Interrupt;
use crate::latency::Recorder;
use crate::sys::{self, Usage};

/// The first argument of a worker process. It is not a command for users.
pub const WORKER: &str = "perf-worker";

/// Returns a command that starts this program as a worker process.
pub fn command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(WORKER);
    command
}

/// Carries out one order with each command, all at the same time, and calls `tick` now and then. Returns what the
/// processes did together, and why memory was not registered, if that was refused to one of them.
pub fn run(
    orders: Vec<(Command, WorkerOrder)>,
    interrupt: &Interrupt,
    tick: &mut dyn FnMut(),
) -> Result<(Outcome, Option<String>), Failure> {
    let mut workers = Workers { workers: Vec::new(), interrupt, told: false };
    match workers.carry_out(orders, tick) {
        Ok(answers) => Ok((sum(&answers), answers.into_iter().find_map(|answer| answer.refused))),
        // Ctrl-C on the terminal also ends the worker processes, perhaps before they have started.
        Err(_) if interrupt.asked() => Err(Failure::Interrupted),
        Err(failure) => Err(failure),
    }
}

/// The worker processes of a run.
struct Workers<'a> {
    workers: Vec<WorkerProcess>,
    interrupt: &'a Interrupt,
    /// Whether the processes were asked to end.
    told: bool,
}

/// One worker process, and the lines that it prints.
struct WorkerProcess {
    child: Child,
    lines: Receiver<String>,
}

impl Workers<'_> {
    fn carry_out(
        &mut self,
        orders: Vec<(Command, WorkerOrder)>,
        tick: &mut dyn FnMut(),
    ) -> Result<Vec<Answer>, Failure> {
        let mut all = Vec::new();
        for (command, order) in orders {
            self.workers.push(WorkerProcess::start(command)?);
            all.push(order);
        }
        for index in 0..all.len() {
            self.line(index, tick)?;
        }
        for (worker, order) in self.workers.iter_mut().zip(&all) {
            worker.give(order)?;
        }
        let mut answers = Vec::new();
        for index in 0..all.len() {
            let line = self.line(index, tick)?;
            let answer = serde_json::from_str(&line);
            answers
                .push(answer.map_err(|error| Failure::Io(format!("a process answered {line:?}: {error}")))?);
        }
        self.workers.iter_mut().try_for_each(WorkerProcess::end)?;
        Ok(answers)
    }

    /// Waits for the next line of one process.
    fn line(&mut self, index: usize, tick: &mut dyn FnMut()) -> Result<String, Failure> {
        loop {
            if self.interrupt.asked() && !self.told {
                self.told = true;
                for worker in &self.workers {
                    // The process may already have ended.
                    let _ = kill_process(Pid::from_child(&worker.child), Signal::TERM);
                }
            }
            match self.workers[index].lines.recv_timeout(TICK) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) => tick(),
                Err(RecvTimeoutError::Disconnected) => return Err(self.workers[index].complaint()),
            }
        }
    }
}

impl WorkerProcess {
    fn start(mut command: Command) -> Result<WorkerProcess, Failure> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            let (program, error) = (command.get_program().to_string_lossy(), errno_text(&error));
            Failure::Io(format!("can't start the process {program}: {error}"))
        })?;
        let lines = sys::lines_of(child.stdout.take()).map_err(|error| window::no_thread(&error))?;
        Ok(WorkerProcess { child, lines })
    }

    fn give(&mut self, order: &WorkerOrder) -> Result<(), Failure> {
        let lost = |error: std::io::Error| Failure::Io(format!("a process was lost: {}", errno_text(&error)));
        let text = serde_json::to_string(order).map_err(|error| Failure::Io(error.to_string()))?;
        let Some(stdin) = self.child.stdin.as_mut() else { return Ok(()) };
        writeln!(stdin, "{text}").and_then(|()| stdin.flush()).map_err(lost)
    }

    /// Waits for the process to end by itself.
    fn end(&mut self) -> Result<(), Failure> {
        drop(self.child.stdin.take());
        self.child
            .wait()
            .map(drop)
            .map_err(|error| Failure::Io(format!("can't wait for a process: {}", errno_text(&error))))
    }

    /// Returns why the process stopped printing.
    fn complaint(&mut self) -> Failure {
        let status = self.child.wait();
        let mut text = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            // If this fails, the error has no text.
            let _ = stderr.read_to_string(&mut text);
        }
        let line = text.lines().find(|line| !line.trim().is_empty()).map(str::trim);
        match (line, status) {
            (Some(line), _) => Failure::Io(line.trim_start_matches("error: ").to_string()),
            (None, Ok(status)) => Failure::Io(format!("a process that measured ended early: {status}")),
            (None, Err(error)) => Failure::Io(format!("a process was lost: {}", errno_text(&error))),
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // If the process has already been waited for, both calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Adds up the figures of processes that worked at the same time.
fn sum(answers: &[Answer]) -> Outcome {
    let outcomes = || answers.iter().map(|answer| &answer.outcome);
    let (mut recorder, mut counted) = (Recorder::new(), Counted::default());
    answers.iter().for_each(|answer| recorder.merge(&answer.latencies));
    outcomes().filter_map(|outcome| outcome.counted).for_each(|more| counted += more);
    let usages: Option<Vec<Usage>> = outcomes().map(|outcome| outcome.usage).collect();
    let usage = usages.and_then(|usages| usages.into_iter().reduce(|sum, usage| sum.and(&usage)));
    Outcome {
        ops: outcomes().map(|outcome| outcome.ops).sum(),
        errors: outcomes().map(|outcome| outcome.errors).sum(),
        duration: together(answers),
        latency: recorder.summary(),
        cpu: usage.map(|usage| usage.cpu()),
        usage,
        // All processes measured during about the same time.
        whole: outcomes().find_map(|outcome| outcome.whole),
        counted: Some(counted),
        mixed: None,
        failure: outcomes().find_map(|outcome| outcome.failure.clone()),
    }
}

/// Returns a common length of time, chosen so that the processes' rates add up although their measurements do not end
/// at the same moment.
fn together(answers: &[Answer]) -> Duration {
    let outcomes = || answers.iter().map(|answer| &answer.outcome);
    let ops: u64 = outcomes().map(|outcome| outcome.ops).sum();
    let rate: f64 = outcomes().map(|outcome| outcome.ops as f64 / outcome.duration.as_secs_f64()).sum();
    let longest = outcomes().map(|outcome| outcome.duration).max().unwrap_or_default();
    if rate > 0.0 { Duration::from_secs_f64(ops as f64 / rate) } else { longest.max(Duration::from_nanos(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RouteOps;

    fn answer(ops: u64, millis: u64) -> Answer {
        let mut latencies = Recorder::new();
        latencies.record_many(Duration::from_micros(ops), ops);
        let usage =
            Usage { user: Duration::from_millis(1), system: Duration::from_millis(2), context_switches: 3 };
        let outcome = Outcome {
            ops,
            duration: Duration::from_millis(millis),
            usage: Some(usage),
            counted: Some(Counted { enters: 5, fixed_ops: ops, routes: RouteOps::default() }),
            ..Outcome::default()
        };
        Answer { outcome, latencies, refused: None }
    }

    #[test]
    fn rates_add_up() {
        let outcome = sum(&[answer(100, 1000), answer(300, 1500)]);
        let counted = outcome.counted.expect("both have it");
        assert_eq!((outcome.ops, counted.enters, counted.fixed_ops), (400, 10, 400));
        let rate = outcome.ops as f64 / outcome.duration.as_secs_f64();
        assert!((rate - 300.0).abs() < 1e-6, "{rate}");
        let usage = outcome.usage.expect("both have it");
        assert_eq!((usage.cpu(), usage.context_switches), (Duration::from_millis(6), 6));
        assert_eq!(outcome.latency.expect("operations").max, 300_000);
    }

    #[test]
    fn a_process_without_a_result_is_reported_with_its_error_output() {
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let worker = WorkerProcess::start(command).expect("sh");
            let mut workers =
                Workers { workers: vec![worker], interrupt: &Interrupt::default(), told: false };
            workers.line(0, &mut || {}).expect_err("no line").to_string()
        };
        assert_eq!(run("echo 'error: no disk' >&2; exit 1"), "no disk");
        assert!(run("exit 7").contains("exit status: 7"));
    }
}
