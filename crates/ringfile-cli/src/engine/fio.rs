//! Carries out the same job with fio, for comparison.
//!
//! Invariants: fio gets the same file, blocks, threads, depth, direct flag and read-ahead advice. It visits the same
//! blocks as often: each thread has its own part with a random map if each block is visited once, else `norandommap`.
//! It does the same amount of work, and finds the page cache in the same state (`invalidate=0`). CPU time is that of
//! `wait4` for the whole fio process, kernel workers included, without that of its main thread, which only sets up and
//! reports, and calibrates fio's clock for 0.15 s.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::Deserialize;

use super::bench::{Bench, Fio};
use super::outcome::Outcome;
use crate::error::{Failure, errno_text};
use crate::interrupt::Interrupt;
use crate::job::Job;
use crate::latency::Latency;
use crate::model::{Access, Buffers, Engine};
use crate::sys;
use crate::values;

/// How often a running fio is checked.
const POLL: Duration = Duration::from_millis(20);

/// The most operations that fio can have in flight: its ring has an entry for each, and the kernel makes no larger one.
pub const MOST_IN_FLIGHT: usize = 32768;

/// Carries out a job.
pub fn run(
    fio: &Fio,
    engine: Engine,
    job: &Job,
    bench: &Bench<'_>,
    tick: &mut dyn FnMut(),
) -> Result<Outcome, Failure> {
    let mut arguments = common_arguments(bench.path);
    let job_arguments = if bench.namespace { on_namespace(engine, job) } else { job_arguments(engine, job) };
    arguments.extend(job_arguments.into_iter().map(OsString::from));
    arguments.extend(sections(job).into_iter().map(OsString::from));
    let (stats, cpu) = execute(&fio.version, &arguments, bench.interrupt, tick)?;
    // The middle of fio's histogram bins, which may lie beyond the longest.
    let percentile = |key: &str| stats.lat_ns.percentile.get(key).copied().unwrap_or(0).min(stats.lat_ns.max);
    Ok(Outcome {
        ops: stats.total_ios,
        duration: Duration::from_millis(stats.runtime.max(1)),
        latency: (stats.total_ios > 0).then(|| Latency {
            mean: stats.lat_ns.mean as u64,
            stddev: stats.lat_ns.stddev as u64,
            min: stats.lat_ns.min,
            p50: percentile("50.000000"),
            p90: percentile("90.000000"),
            p95: percentile("95.000000"),
            p99: percentile("99.000000"),
            p999: percentile("99.900000"),
            p9999: percentile("99.990000"),
            max: stats.lat_ns.max,
        }),
        cpu,
        ..Outcome::default()
    })
}

/// Returns the options that differ from job to job, as one line for the notes.
pub fn describe(engine: Engine) -> &'static str {
    match engine {
        Engine::FioPsync => "ioengine=psync",
        Engine::FioBatch => {
            "ioengine=io_uring, iodepth_batch_submit and iodepth_batch_complete_max at the depth; fixed: fixedbufs, \
             registerfiles"
        }
        _ => "ioengine=io_uring; fixed: fixedbufs, registerfiles",
    }
}

fn common_arguments(path: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = [
        "--name=global",
        "--thread",
        "--group_reporting",
        "--output-format=json",
        "--eta=never",
        "--invalidate=0",
        "--fallocate=none",
        "--allow_file_create=0",
        "--unified_rw_reporting=mixed",
        "--lat_percentiles=1",
        "--clat_percentiles=0",
        "--percentile_list=50:90:95:99:99.9:99.99",
    ]
    .map(OsString::from)
    .into();
    arguments.push(filename_argument(path));
    arguments
}

/// fio separates several names by colons; one in a name is escaped.
fn filename_argument(path: &Path) -> OsString {
    let mut argument = b"--filename=".to_vec();
    for &byte in path.as_os_str().as_bytes() {
        if byte == b':' {
            argument.push(b'\\');
        }
        argument.push(byte);
    }
    OsString::from_vec(argument)
}

fn job_arguments(engine: Engine, job: &Job) -> Vec<String> {
    let mut arguments = vec![
        format!("--rw={}", values::name(&job.setup.rw)),
        format!("--bs={}", job.setup.block),
        format!("--direct={}", u8::from(job.setup.direct)),
    ];
    // As the thread that it is measured beside.
    if let Some(core) = sys::allowed_cores().first().filter(|_| job.pinned) {
        arguments.push(format!("--cpus_allowed={core}"));
    }
    arguments.push(format!("--runtime={}ms", job.duration.as_millis()));
    // Without `time_based` fio stops when it has done as much as the file has.
    if job.access == Access::Any {
        arguments.push("--time_based".into());
    }
    if job.setup.rw.random() && job.access == Access::Any {
        arguments.push("--norandommap".into());
    }
    if engine == Engine::FioPsync {
        arguments.push("--ioengine=psync".into());
        return arguments;
    }
    arguments.extend(["--ioengine=io_uring".into(), format!("--iodepth={}", job.setup.iodepth)]);
    if engine == Engine::FioBatch {
        arguments.extend([
            format!("--iodepth_batch_submit={}", job.setup.iodepth),
            "--iodepth_batch_complete_min=1".into(),
            format!("--iodepth_batch_complete_max={}", job.setup.iodepth),
        ]);
    }
    if job.setup.buffers == Buffers::Fixed {
        arguments.extend(["--fixedbufs=1".into(), "--registerfiles=1".into()]);
    }
    arguments
}

/// Returns the same job with NVMe commands: fio has an engine for them, which ignores O_DIRECT.
fn on_namespace(engine: Engine, job: &Job) -> Vec<String> {
    let arguments =
        job_arguments(engine, job).into_iter().filter(|argument| !argument.starts_with("--direct="));
    let commands = |argument: String| match argument.as_str() {
        "--ioengine=io_uring" => "--ioengine=io_uring_cmd".into(),
        _ => argument,
    };
    arguments.map(commands).chain(["--cmd_type=nvme".into()]).collect()
}

/// Returns the job's threads and their parts of the file. All threads of a section have as much, so there is a second
/// section if the blocks do not divide evenly. fio reports all sections together.
fn sections(job: &Job) -> Vec<String> {
    // Each thread has its own part, as with the other engines.
    let parts = !job.setup.rw.random() || job.access == Access::Once;
    let length = |thread| {
        let part = if parts { job.part(thread) } else { 0..job.blocks };
        (part.end - part.start) * job.setup.block
    };
    let mut arguments = Vec::new();
    let mut thread = 0;
    while thread < job.setup.numjobs {
        let size = length(thread);
        let same = (thread..job.setup.numjobs).take_while(|&other| length(other) == size).count();
        arguments.extend([
            format!("--name=ringfile-{thread}"),
            format!("--numjobs={same}"),
            format!("--size={size}"),
        ]);
        if parts {
            let offset = job.part(thread).start * job.setup.block;
            arguments.extend([format!("--offset={offset}"), format!("--offset_increment={size}")]);
        }
        thread += same;
    }
    arguments
}

/// Runs fio to its end, or kills it when interrupted; returns its figures, and the CPU time of all its threads but the
/// main one. It is the only child of this process meanwhile, so the CPU time of all children grows by its own.
fn execute(
    version: &str,
    arguments: &[OsString],
    interrupt: &Interrupt,
    tick: &mut dyn FnMut(),
) -> Result<(Stats, Option<Duration>), Failure> {
    let failed = |error: io::Error| Failure::Io(format!("fio can't be run: {}", errno_text(&error)));
    // Files rather than pipes, because they need not be read while fio runs.
    let (mut output, mut complaints) =
        (tempfile::tempfile().map_err(failed)?, tempfile::tempfile().map_err(failed)?);
    let cpu_before = sys::children_cpu().map_err(failed)?;
    let mut child = Command::new("fio")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(output.try_clone().map_err(failed)?)
        .stderr(complaints.try_clone().map_err(failed)?)
        // Ctrl-C on the terminal is for this process only, which then ends fio.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    loop {
        // Not waited for before the main thread's CPU time is read, which would be gone.
        if sys::has_ended(&child).map_err(failed)? {
            break;
        }
        if interrupt.asked() {
            child.kill().map_err(failed)?;
            child.wait().map_err(failed)?;
            return Err(Failure::Interrupted);
        }
        std::thread::sleep(POLL);
        tick();
    }
    let main_thread = sys::main_thread_cpu(&child);
    let status = child.wait().map_err(failed)?;
    let total = sys::children_cpu().map_err(failed)?.saturating_sub(cpu_before);
    let cpu = main_thread.map(|main_thread| total.saturating_sub(main_thread));
    let stats = parse(&text_of(&mut output), status).map_err(|why| {
        let complaint = text_of(&mut complaints);
        let complaint =
            complaint.lines().find(|line| !line.trim().is_empty()).unwrap_or(&why).trim().to_string();
        Failure::Io(format!("{version} failed: {complaint}"))
    })?;
    Ok((stats, cpu))
}

fn text_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // The caller reports text that can't be read as missing.
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The part of fio's JSON that is used.
#[derive(Deserialize)]
struct Output {
    jobs: Vec<JobOutput>,
}

#[derive(Deserialize)]
struct JobOutput {
    error: i32,
    mixed: Stats,
}

#[derive(Deserialize)]
struct Stats {
    total_ios: u64,
    /// Milliseconds.
    runtime: u64,
    lat_ns: LatencyStats,
}

#[derive(Deserialize)]
struct LatencyStats {
    max: u64,
    mean: f64,
    #[serde(default)]
    stddev: f64,
    #[serde(default)]
    min: u64,
    #[serde(default)]
    percentile: BTreeMap<String, u64>,
}

fn parse(text: &str, status: ExitStatus) -> Result<Stats, String> {
    // Warnings may stand before the JSON.
    let json = text.find('{').map(|start| &text[start..]).ok_or_else(|| format!("no output, {status}"))?;
    let output: Output =
        serde_json::from_str(json).map_err(|error| format!("its output is not known: {error}"))?;
    match <[JobOutput; 1]>::try_from(output.jobs) {
        Ok([job]) if job.error == 0 && status.success() => Ok(job.mixed),
        Ok([job]) if job.error != 0 => Err(errno_text(&io::Error::from_raw_os_error(job.error))),
        Ok(_) => Err(status.to_string()),
        Err(jobs) => Err(format!("{} groups in its output, not one", jobs.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Rw, Setup};
    use std::os::unix::process::ExitStatusExt;

    fn job(rw: Rw, numjobs: usize, buffers: Buffers) -> Job {
        let setup = Setup { numjobs, iodepth: 16, rw, buffers, direct: true, ..Setup::default() };
        let (warmup, duration) = (Duration::from_secs(1), Duration::from_millis(250));
        Job { setup, warmup, duration, ..crate::job::tests::job(rw, numjobs, 16, 101, false) }
    }

    /// Returns all that differs from job to job.
    fn arguments(engine: Engine, job: &Job) -> Vec<String> {
        [job_arguments(engine, job), sections(job)].concat()
    }

    #[track_caller]
    fn assert_has(arguments: &[String], expected: &[&str]) {
        for expected in expected {
            assert!(arguments.iter().any(|argument| argument == expected), "{expected} in {arguments:?}");
        }
    }

    #[test]
    fn the_job_is_the_same() {
        let fixed = arguments(Engine::Fio, &job(Rw::RandRead, 2, Buffers::Fixed));
        assert_has(&fixed, &["--rw=randread", "--bs=4096", "--size=413696", "--iodepth=16", "--numjobs=2"]);
        assert_has(&fixed, &["--direct=1", "--fixedbufs=1"]);
        assert_has(&fixed, &["--time_based", "--runtime=250ms"]);
        let plain = arguments(Engine::Fio, &job(Rw::RandRead, 2, Buffers::Normal));
        let registers =
            |argument: &String| argument.contains("fixedbufs") || argument.contains("registerfiles");
        assert!(!plain.iter().any(registers), "{plain:?}");
    }

    #[test]
    fn random_offsets_with_repetition_use_no_random_map() {
        for engine in [Engine::Fio, Engine::FioBatch, Engine::FioPsync] {
            let any = arguments(engine, &job(Rw::RandRead, 2, Buffers::Normal));
            assert_has(&any, &["--norandommap", "--time_based"]);
            assert!(!any.iter().any(|argument| argument.contains("offset")), "{any:?}");
            let once = Job { access: Access::Once, ..job(Rw::RandRead, 2, Buffers::Normal) };
            let once = arguments(engine, &once);
            let not = |argument: &String| argument.contains("norandommap") || argument.contains("time_based");
            assert!(!once.iter().any(not), "{once:?}");
            assert_has(&once, &["--runtime=250ms"]);
        }
    }

    #[test]
    fn each_block_once_is_a_part_for_each_thread_that_cover_the_file() {
        let job = |numjobs| Job { access: Access::Once, ..job(Rw::RandRead, numjobs, Buffers::Normal) };
        assert_eq!(
            sections(&job(2)).join(" "),
            "--name=ringfile-0 --numjobs=1 --size=208896 --offset=0 --offset_increment=208896 \
             --name=ringfile-1 --numjobs=1 --size=204800 --offset=208896 --offset_increment=204800"
        );
        assert_eq!(
            sections(&job(1)).join(" "),
            "--name=ringfile-0 --numjobs=1 --size=413696 --offset=0 --offset_increment=413696"
        );
    }

    #[test]
    fn sequential_threads_have_parts_of_their_own() {
        let arguments = arguments(Engine::FioPsync, &job(Rw::Write, 2, Buffers::Normal));
        assert_has(&arguments, &["--size=208896", "--offset=208896", "--offset_increment=204800"]);
        assert!(!arguments.iter().any(|argument| argument.contains("iodepth")), "{arguments:?}");
    }

    #[test]
    fn a_colon_in_the_name_is_escaped() {
        assert_eq!(filename_argument(Path::new("/tmp/a:b")), "--filename=/tmp/a\\:b");
    }

    #[test]
    fn output_after_a_warning_is_read_and_errors_are_reported() {
        let success = ExitStatus::from_raw(0);
        let json = r#"note: something
            {"jobs":[{"error":0,"mixed":{"total_ios":7,"runtime":200,"lat_ns":{"max":9,"mean":4.5,
            "percentile":{"50.000000":4}}}}]}"#;
        let stats = parse(json, success).expect("fio's output");
        assert_eq!((stats.total_ios, stats.lat_ns.max, stats.lat_ns.percentile["50.000000"]), (7, 9, 4));
        assert!(parse(&json.replace("\"error\":0", "\"error\":5"), success).is_err());
        assert!(parse("", ExitStatus::from_raw(256)).is_err());
        assert!(parse("{}", success).is_err());
    }
}
