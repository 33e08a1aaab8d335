//! Examines PATH in a separate process, which may be left behind.
//!
//! If the server of a file system is gone, every access blocks, out of reach of signals, and a process does not end
//! while one of its threads is blocked. So this command runs itself again for that part, reads its output line by line,
//! and kills it when the time is up. Invariants: nothing here waits longer than [`ANSWER`].

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::device::{self, Device};
use super::features::Feature;
use super::file::FileFacts;
use super::{direct, durable, flags, place, process, route};
use crate::error::{Failure, usage};
use crate::report::output;
use crate::sys::{self, ring};

/// How long the whole examination of PATH may take.
pub const ANSWER: Duration = Duration::from_millis(500);

/// The facts about PATH so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Looked {
    /// PATH and its file system.
    pub file: FileFacts,
    /// The device below it.
    pub device: Option<Device>,
    /// Flags that were tried on it.
    pub features: Vec<Feature>,
}

/// A line of the other process's output.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    /// All facts so far.
    Known(Box<Looked>),
    /// PATH can't be examined.
    Refused(String),
}

/// The first argument of the process that examines PATH; it is not a command for users.
pub const LOOKER: &str = "doctor-looker";

/// The parts of the work that another process does.
mod part {
    /// Makes a ring, and ends: the kernel may kill the process for it.
    pub const TRY_RING: &str = "try-ring";
    /// Examines PATH, and prints the facts as a line of JSON at each stage.
    pub const LOOK: &str = "look";
    /// The same without a ring, for which the kernel would kill the process.
    pub const LOOK_WITHOUT_RINGS: &str = "look-without-rings";
}

/// Does the part of the work that the arguments name, in the separate process.
pub fn run_looker(mut arguments: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    let (part, path) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    match part.to_str() {
        Some(part::TRY_RING) => {
            let _ = ring::try_setup(0);
            return Ok(());
        }
        Some(part::LOOK_WITHOUT_RINGS) => ring::forbid(),
        Some(part::LOOK) => {}
        _ => return usage("only ringfile doctor itself uses this command"),
    }
    say(Path::new(&path))
}

/// Returns the command that runs this program again for a part of the work.
fn again(part: &str) -> Command {
    // This finds the program even if its file was replaced or removed since it started.
    let mut command = Command::new("/proc/self/exe");
    command.args([LOOKER, part]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Returns whether the kernel kills a process that makes a ring, as filters of systemd and some containers do.
pub fn kills() -> bool {
    // Only filtered processes are killed, and starting a process takes time.
    let ended =
        || again(part::TRY_RING).stdout(Stdio::null()).status().ok().and_then(|status| status.signal());
    process::is_filtered() && ended() == Some(libc::SIGSYS)
}

/// Examines PATH for at most [`ANSWER`], with rings, or with the backend of the library that `instead` names.
pub fn look(path: &Path, instead: Option<&str>) -> Result<Looked, Failure> {
    let mut command = again(if instead.is_none() { part::LOOK } else { part::LOOK_WITHOUT_RINGS });
    if let Some(backend) = instead
        && std::env::var_os("RINGFILE_DISABLE").is_none_or(|own| own != "io_uring,aio")
    {
        command.env("RINGFILE_DISABLE", backend);
    }
    command.arg(path);
    let until = Instant::now() + ANSWER;
    // Without /proc, or the right to start a program, this process does it, without a deadline.
    let Ok(mut child) = command.spawn() else { return here(path) };
    let Ok(lines) = sys::lines_of(child.stdout.take()) else {
        let _ = child.kill();
        return here(path);
    };
    let (path, stage) = (path.display().to_string(), "finding PATH".into());
    let mut looked = Looked { file: FileFacts { path, stage, ..FileFacts::default() }, ..Looked::default() };
    while let Ok(line) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
        match serde_json::from_str(&line) {
            Ok(Line::Known(known)) => looked = *known,
            Ok(Line::Refused(why)) => return Err(Failure::Usage(why)),
            Err(_) => {}
        }
    }
    // Not waited for, because a process that is blocked in the kernel does not end. Init adopts it.
    let _ = child.kill();
    let _ = child.try_wait();
    Ok(looked)
}

fn here(path: &Path) -> Result<Looked, Failure> {
    let mut looked = Looked::default();
    each_stage(path, &mut |known| looked = known.clone())?;
    Ok(looked)
}

/// Prints the facts at each stage, in the separate process.
fn say(path: &Path) -> Result<(), Failure> {
    // The reader has a deadline, and may be gone.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let said = each_stage(path, &mut |known| print(&Line::Known(Box::new(known.clone()))));
    if let Err(failure) = said {
        print(&Line::Refused(failure.to_string()));
    }
    Ok(())
}

fn print(line: &Line) {
    // If the reader is gone, nobody needs the line.
    if let Ok(text) = serde_json::to_string(line) {
        let _ = output::print(&format!("{text}\n"));
    }
}

/// Examines PATH in stages; calls `tell` with the facts so far before each.
fn each_stage(path: &Path, tell: &mut dyn FnMut(&Looked)) -> Result<(), Failure> {
    let mut known = Looked { file: FileFacts::of(path)?, ..Looked::default() };
    let place = place::of(path);
    known.file.mounted(path, &place);
    let mut stage = |known: &mut Looked, what: &str| {
        known.file.stage = what.into();
        tell(known);
    };
    stage(&mut known, "reading about the device");
    let lies = |path: &Path| {
        let place = place::of(path);
        (place.mount.map(|mount| mount.filesystem), place.number)
    };
    known.device = place.number.and_then(|number| device::look(Path::new("/sys"), &number, &lies));
    stage(&mut known, "opening");
    let subjects = known.file.open(path)?;
    stage(&mut known, "direct I/O");
    known.file.direct = direct::look(&subjects, known.file.medium);
    known.file.adaptive = subjects.reads.as_ref().and_then(direct::is_adaptive);
    stage(&mut known, "non-blocking I/O");
    known.file.nonblocking = flags::nonblocking(&subjects);
    let has_poll_queues = known.device.as_ref().and_then(|device| device.queue.polling);
    known.features =
        flags::features(&subjects, &known.file.nonblocking, known.file.direct.as_ref(), has_poll_queues);
    stage(&mut known, "I/O of the library");
    known.file.routes = route::look(&subjects, known.file.direct.as_ref());
    stage(&mut known, "durable writes");
    known.file.durable = durable::look(&subjects);
    known.file.answered = true;
    stage(&mut known, "done");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::file::PathKind;

    #[test]
    fn a_folder_is_looked_at_to_the_end_and_left_as_it_was() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut stages = Vec::new();
        each_stage(folder.path(), &mut |known| stages.push(known.clone())).expect("it is there");
        let Looked { file, features, .. } = stages.last().expect("it was reported");
        assert!(file.answered && file.kind == Some(PathKind::Folder), "{stages:?}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 0);
        assert!(features.iter().any(|feature| feature.name == "rwf_dsync"));
    }

    #[test]
    fn a_message_between_processes_is_read_back() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let looked = here(folder.path()).expect("it is there");
        let text = serde_json::to_string(&Line::Known(Box::new(looked.clone()))).expect("JSON");
        assert!(!text.contains('\n'));
        match serde_json::from_str(&text).expect("it is what was written") {
            Line::Known(known) => assert_eq!(*known, looked),
            Line::Refused(why) => panic!("{why}"),
        }
    }
}
