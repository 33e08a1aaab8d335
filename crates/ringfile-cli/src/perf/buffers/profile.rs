//! Where CPU time goes with each kind of buffers: one run of each under `perf record`.
//!
//! Knows perf's command line and output; inferno folds and draws the stacks. Invariant: without perf, or without
//! permission to use it, the command only prints a note.

use std::io::Cursor;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options as FoldOptions};
use inferno::flamegraph::{self, Options as GraphOptions};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::super::plan::{Grid, Step};
use super::super::session::Session;
use crate::error::errno_text;
use crate::job::Job;
use crate::model::{Engine, Hot, Profile, Role, Setup};
use crate::values::{self, Bytes, short_size};

/// Samples per second: an odd number, so as not to run in step with a timer.
const FREQUENCY: &str = "997";

/// The shortest time to profile each kind of buffers, for several hundred samples.
const PROFILED: Duration = Duration::from_secs(2);

/// The shortest warm-up, in which perf attaches to this process.
const ATTACHING: Duration = Duration::from_millis(500);

/// The number of functions to list for the kernel and for user space.
const HOTTEST: usize = 10;

/// The suffix that inferno adds to the kernel's functions.
const KERNEL: &str = "_[k]";

/// The perf program, usable on this machine by this user.
struct Profiler {
    folder: TempDir,
}

impl Profiler {
    /// Tries perf, and returns why if it cannot be used.
    fn find() -> Result<Profiler, String> {
        let folder = tempfile::tempdir()
            .map_err(|error| format!("no folder for perf's data can be made: {}", errno_text(&error)))?;
        let profiler = Profiler { folder };
        let tried = profiler.record().args(["--", "true"]).output();
        match tried {
            Ok(output) if output.status.success() => Ok(profiler),
            Ok(output) => Err(refused(&output)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(
                "perf is not installed; get it with apt-get install linux-perf (Debian), linux-tools-generic (Ubuntu) or \
                 dnf install perf"
                    .into(),
            ),
            Err(error) => Err(format!("perf can't be run: {}", errno_text(&error))),
        }
    }

    /// Returns a `perf record` command, to which what it samples is appended.
    fn record(&self) -> Command {
        let mut command = Command::new("perf");
        command.args(["record", "-q", "-g", "-F", FREQUENCY, "-o"]).arg(self.data());
        command
    }

    /// Returns the profile of the last recording, of this many operations with the step's kind of buffers.
    fn profile(&self, step: &Step, ops: u64) -> Result<Profile, String> {
        let mut script = Command::new("perf");
        script.args(["script", "-F", "comm,pid,tid,time,event,ip,sym,dso", "-i"]).arg(self.data());
        let output = script
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("perf can't be run: {}", errno_text(&error)))?;
        if !output.status.success() {
            return Err(refused(&output));
        }
        of_script(&output.stdout, step, ops)
    }

    fn data(&self) -> std::path::PathBuf {
        Path::new(self.folder.path()).join("perf.data")
    }
}

/// Profiles each kind of buffers; an obstacle becomes a note, not a failure.
pub fn of(session: &mut Session<'_>) -> Vec<Profile> {
    let mut profiles = Vec::new();
    let profiler = match Profiler::find() {
        Ok(profiler) => profiler,
        Err(why) => {
            session.note(format!("no profile: {why}"));
            return profiles;
        }
    };
    for step in steps(&session.request.grid) {
        match profile(session, &step, &profiler) {
            Ok(profile) => profiles.push(profile),
            Err(_) if session.interrupt.asked() => return profiles,
            Err(why) => {
                let Setup { buffers, block, .. } = step.setup;
                session.note(format!("no profile: {} {}: {why}", values::name(&buffers), Bytes(block)));
            }
        }
    }
    profiles
}

fn profile(session: &mut Session<'_>, step: &Step, profiler: &Profiler) -> Result<Profile, String> {
    session.settle(step).map_err(|failure| failure.to_string())?;
    let job = session.job(step);
    let job = Job { duration: job.duration.max(PROFILED), warmup: job.warmup.max(ATTACHING), ..job };
    let mut command = profiler.record();
    command.args(["-p", &std::process::id().to_string()]).stdin(Stdio::null()).stderr(Stdio::null());
    let mut perf = command.spawn().map_err(|error| format!("perf can't be run: {}", errno_text(&error)))?;
    let ran = session.carry_out(step, &job);
    // It writes what it has sampled, and ends. If it has ended already, its data says so.
    let _ = kill_process(Pid::from_child(&perf), Signal::INT);
    let _ = perf.wait();
    let (outcome, _) = ran.map_err(|failure| failure.to_string())?;
    profiler.profile(step, outcome.ops)
}

/// Returns the runs to profile: each kind of buffers with each block size, at the largest depth, by
/// one thread.
fn steps(grid: &Grid) -> Vec<Step> {
    let depth = grid.depths.iter().map(|depth| depth.iodepth).max();
    let is_of = |setup: &Setup| {
        Some(setup.iodepth) == depth
            && (setup.engine, setup.rw) == (Engine::Ringfile, grid.rw[0])
            && setup.numjobs == 1
            && (setup.ring_flags, setup.route) == (grid.ring_flags[0], Some(grid.ways[0].0))
            && setup.direct == grid.is_direct()
    };
    let all = grid.steps();
    let first = all.iter().filter(|step| is_of(&step.setup) && (step.role, step.round) == (Role::Measure, 1));
    first.copied().collect()
}

/// Returns why perf failed, in its own words.
fn refused(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("perf_event_paranoid") || text.contains("Permission") || text.contains("permitted") {
        return "this user may not use perf: run as root, or lower the sysctl kernel.perf_event_paranoid"
            .into();
    }
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it said nothing");
    format!("perf failed: {line}")
}

/// Reads the output of `perf script`.
fn of_script(script: &[u8], step: &Step, ops: u64) -> Result<Profile, String> {
    let text = String::from_utf8_lossy(script);
    let mut folding = FoldOptions::default();
    folding.annotate_kernel = true;
    let mut folded = Vec::new();
    Folder::from(folding)
        .collapse(Cursor::new(text.as_bytes()), &mut folded)
        .map_err(|error| format!("what perf printed can't be read: {error}"))?;
    let folded = String::from_utf8_lossy(&folded).into_owned();
    let stacks: Vec<Stack<'_>> = folded.lines().filter_map(Stack::parse).collect();
    let samples: u64 = stacks.iter().map(|stack| stack.count).sum();
    if samples == 0 {
        return Err("perf took no samples".into());
    }
    let per_cent = |count: u64| count as f64 * 100.0 / samples as f64;
    let in_kernel: u64 = stacks.iter().filter(|stack| stack.in_kernel()).map(|stack| stack.count).sum();
    let functions = |kernel: bool| -> Vec<Hot> {
        let all = functions(stacks.iter().filter(|stack| stack.in_kernel() == kernel));
        all.into_iter().map(|(function, count)| Hot { function, percent: per_cent(count) }).collect()
    };
    let (kernel_all, user_all) = (functions(true), functions(false));
    let hottest = |all: &[Hot]| all.iter().take(HOTTEST).cloned().collect();
    Ok(Profile {
        buffers: step.setup.buffers,
        rw: step.setup.rw,
        block_size_bytes: step.setup.block,
        iodepth: step.setup.iodepth,
        event: event(&text).unwrap_or_else(|| "unknown".into()),
        samples,
        ops,
        kernel_percent: per_cent(in_kernel),
        kernel: hottest(&kernel_all),
        user: hottest(&user_all),
        kernel_all,
        user_all,
        flame_graph: draw(&folded, step)?,
    })
}

/// A stack, and how often it was sampled.
struct Stack<'a> {
    leaf: &'a str,
    count: u64,
}

impl<'a> Stack<'a> {
    fn parse(line: &'a str) -> Option<Stack<'a>> {
        let (frames, count) = line.rsplit_once(' ')?;
        Some(Stack { leaf: frames.rsplit(';').next()?, count: count.parse().ok()? })
    }

    fn in_kernel(&self) -> bool {
        self.leaf.ends_with(KERNEL)
    }
}

/// Returns the functions in which samples were taken, the most expensive first.
fn functions<'a>(stacks: impl Iterator<Item = &'a Stack<'a>>) -> Vec<(String, u64)> {
    let mut counts = std::collections::BTreeMap::<&str, u64>::new();
    for stack in stacks {
        *counts.entry(stack.leaf.trim_end_matches(KERNEL)).or_default() += stack.count;
    }
    let mut sorted: Vec<(String, u64)> =
        counts.into_iter().map(|(function, count)| (function.to_string(), count)).collect();
    sorted.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    sorted
}

/// Returns the event that perf sampled by: the word before the colon at the end of a sample's first line.
fn event(script: &str) -> Option<String> {
    let line = script.lines().find(|line| line.trim_end().ends_with(':'))?;
    let event = line.trim_end().trim_end_matches(':').split_whitespace().next_back()?;
    Some(event.trim_end_matches(':').to_string())
}

fn draw(folded: &str, step: &Step) -> Result<String, String> {
    let mut options = GraphOptions::default();
    options.title = format!(
        "{}, {} of {}, depth {}",
        values::name(&step.setup.buffers),
        values::name(&step.setup.rw),
        short_size(step.setup.block),
        step.setup.iodepth
    );
    options.no_javascript = true;
    options.deterministic = true;
    options.min_width = 0.3;
    options.image_width = Some(1200);
    let mut drawn = Vec::new();
    flamegraph::from_lines(&mut options, folded.lines(), &mut drawn)
        .map_err(|error| format!("the flame graph can't be drawn: {error}"))?;
    String::from_utf8(drawn).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Buffers;

    fn step() -> Step {
        let setup = Setup { buffers: Buffers::Fixed, iodepth: 16, direct: true, ..Setup::default() };
        Step { setup, parts: None, role: Role::Measure, round: 1 }
    }

    const SCRIPT: &str = "\
ringfile-0  100/101   10.000001: cpu-clock:pppH:
\tffffffff81000010 blk_mq_submit_bio ([kernel.kallsyms])
\tffffffff81000020 io_submit_sqes ([kernel.kallsyms])
\t    55d000000010 ringfile::ring::enter (/usr/bin/ringfile)

ringfile-0  100/101   10.002001: cpu-clock:pppH:
\t    55d000000010 ringfile::ring::enter (/usr/bin/ringfile)

ringfile-0  100/101   10.003001: cpu-clock:pppH:
\tffffffff81000010 blk_mq_submit_bio ([kernel.kallsyms])
\t    55d000000010 ringfile::ring::enter (/usr/bin/ringfile)

";

    #[test]
    fn functions_are_counted_by_their_own_time() {
        let profile = of_script(SCRIPT.as_bytes(), &step(), 10).expect("a profile");
        assert_eq!((profile.samples, profile.event.as_str()), (3, "cpu-clock:pppH"));
        assert!((profile.kernel_percent - 66.67).abs() < 0.01, "{}", profile.kernel_percent);
        assert_eq!(profile.kernel[0].function, "blk_mq_submit_bio");
        assert_eq!((profile.kernel.len(), profile.user.len()), (1, 1));
        assert_eq!((&profile.kernel_all, &profile.user_all), (&profile.kernel, &profile.user));
        assert!(profile.user[0].function.contains("ringfile::ring::enter"), "{:?}", profile.user);
        assert!(profile.flame_graph.contains("io_submit_sqes"));
    }

    #[test]
    fn an_empty_profile_is_reported() {
        assert!(of_script(b"", &step(), 10).is_err());
    }
}
