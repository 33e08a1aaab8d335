//! Looking at PATH in a process of its own, which may be left behind.
//!
//! A file system whose server is gone holds whoever asks it anything, beyond the reach of signals, and a process does
//! not end while one of its threads is held. So this command runs itself once more for that part, reads what it says
//! line by line, and ends it when the time is up. Invariants: nothing here waits longer than [`ANSWER`].

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::device::{self, Device};
use super::features::Feature;
use super::file::{FileFacts, Kind};
use super::{direct, durable, flags, place, process, route};
use crate::error::{Failure, usage};
use crate::report::output;
use crate::sys::{self, ring};

/// How long the whole examination of PATH may take.
pub const ANSWER: Duration = Duration::from_millis(500);

/// What is known of PATH so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Looked {
    /// PATH and its file system.
    pub file: FileFacts,
    /// What is below.
    pub device: Option<Device>,
    /// Flags that were tried on it.
    pub features: Vec<Feature>,
}

/// A line of what the other process says.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    /// All that is known by now.
    Known(Box<Looked>),
    /// PATH can't be looked at.
    Refused(String),
}

/// The first argument of the process that looks, which is no command for users.
pub const LOOKER: &str = "doctor-looker";

/// A part of the work that another process does.
mod part {
    /// Make a ring and end: the answer is whether the process lives on.
    pub const TRY_RING: &str = "try-ring";
    /// Look at PATH, and say each step as a line of JSON.
    pub const LOOK: &str = "look";
    /// The same without a ring: the kernel would end the process.
    pub const LOOK_WITHOUT_RINGS: &str = "look-without-rings";
}

/// Does, in a process of its own, the part of the work that the arguments name.
pub fn run_looker(mut arguments: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    let (part, path) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    match part.to_str() {
        Some(part::TRY_RING) => {
            let _ = ring::try_setup(0);
            return Ok(());
        }
        Some(part::LOOK_WITHOUT_RINGS) => ring::forbid(),
        Some(part::LOOK) => {}
        _ => return usage("this command is for ringfile doctor alone, which starts it"),
    }
    say(Path::new(&path))
}

/// This program, about to be run once more for a part of the work.
fn again(part: &str) -> Command {
    // The program's own file may have been replaced or removed since it started; this finds it all the same.
    let mut command = Command::new("/proc/self/exe");
    command.args([LOOKER, part]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Returns whether the kernel ends a process that makes a ring: what filters of systemd and some containers do.
pub fn kills() -> bool {
    // Nobody else does, and starting a process takes time.
    let ended =
        || again(part::TRY_RING).stdout(Stdio::null()).status().ok().and_then(|status| status.signal());
    process::is_filtered() && ended() == Some(libc::SIGSYS)
}

/// Looks at PATH for as long as [`ANSWER`], with rings or, as the library does, with what `instead` names.
pub fn look(path: &Path, instead: Option<&str>) -> Result<Looked, Failure> {
    let mut command = again(if instead.is_none() { part::LOOK } else { part::LOOK_WITHOUT_RINGS });
    if let Some(backend) = instead
        && std::env::var_os("RINGFILE_BACKEND").is_none_or(|own| own != "workers")
    {
        command.env("RINGFILE_BACKEND", backend);
    }
    command.arg(path);
    let until = Instant::now() + ANSWER;
    let spawned = command.spawn().ok().and_then(|mut child| Some((child.stdout.take()?, child)));
    let Some((stdout, mut child)) = spawned else {
        // No /proc, or no right to start a program: then here, and without a deadline.
        return here(path);
    };
    let (send, lines) = mpsc::channel();
    let read = move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    };
    // Ends with the other process, or with this one.
    if std::thread::Builder::new().spawn(read).is_err() {
        let _ = child.kill();
        return here(path);
    }
    let mut looked = Looked { file: unanswered(path), ..Looked::default() };
    while let Ok(line) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
        match serde_json::from_str(&line) {
            Ok(Line::Known(known)) => looked = *known,
            Ok(Line::Refused(why)) => return Err(Failure::Usage(why)),
            Err(_) => {}
        }
    }
    // Not waited for: what is held in the kernel does not end. The system takes it over when this process is gone.
    let _ = child.kill();
    let _ = child.try_wait();
    Ok(looked)
}

fn unanswered(path: &Path) -> FileFacts {
    FileFacts { path: path.display().to_string(), stage: "finding PATH".into(), ..FileFacts::default() }
}

fn here(path: &Path) -> Result<Looked, Failure> {
    let mut looked = Looked::default();
    each_stage(path, &mut |known| looked = known.clone())?;
    Ok(looked)
}

/// Returns the other process: says what is known whenever that is more.
fn say(path: &Path) -> Result<(), Failure> {
    // Whoever reads this has a deadline and may be gone.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let said = each_stage(path, &mut |known| print(&Line::Known(Box::new(known.clone()))));
    if let Err(failure) = said {
        print(&Line::Refused(failure.to_string()));
    }
    Ok(())
}

fn print(line: &Line) {
    // Nobody to read it is nobody to tell.
    if let Ok(text) = serde_json::to_string(line) {
        let _ = output::print(&format!("{text}\n"));
    }
}

/// Looks at PATH stage by stage; `tell` is told what is known before each.
fn each_stage(path: &Path, tell: &mut dyn FnMut(&Looked)) -> Result<(), Failure> {
    let mut known = Looked { file: FileFacts::of(path)?, ..Looked::default() };
    let place = place::of(path);
    known.file.mounted(path, &place);
    let mut stage = |known: &mut Looked, what: &str| {
        known.file.stage = what.into();
        tell(known);
    };
    stage(&mut known, "looking at the device");
    let lies = |path: &Path| {
        let place = place::of(path);
        (place.mount.map(|mount| mount.filesystem), place.number)
    };
    known.device = place.number.and_then(|number| device::look(Path::new("/sys"), &number, &lies));
    stage(&mut known, "opening");
    let subjects = known.file.open(path);
    stage(&mut known, "direct I/O");
    known.file.direct = direct::look(&subjects, known.file.medium);
    known.file.adaptive = subjects.reads.as_ref().and_then(direct::is_adaptive);
    stage(&mut known, "non-blocking I/O");
    known.file.nonblocking = flags::nonblocking(&subjects);
    let has_poll_queues = known.device.as_ref().and_then(|device| device.queue.polling);
    known.features = flags::features(&subjects, &known.file, has_poll_queues);
    stage(&mut known, "I/O of the library");
    known.file.routes = route::look(&subjects, &known.file);
    stage(&mut known, "durable writes");
    known.file.durable = durable::look(&subjects);
    stage(&mut known, "pieces of the file");
    let file = subjects.reads.as_ref().filter(|_| known.file.kind == Some(Kind::File));
    known.file.extents = file.and_then(sys::extents);
    known.file.answered = true;
    stage(&mut known, "done");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_looked_at_to_the_end_and_left_as_it_was() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut stages = Vec::new();
        each_stage(folder.path(), &mut |known| stages.push(known.clone())).expect("it is there");
        let Looked { file, features, .. } = stages.last().expect("it was reported");
        assert!(file.answered && file.kind == Some(Kind::Folder), "{stages:?}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 0);
        assert!(features.iter().any(|feature| feature.name == "rwf_dsync"));
    }

    #[test]
    fn what_is_no_file_is_refused() {
        for path in ["/dev/null", "/nonexistent"] {
            let refused = each_stage(Path::new(path), &mut |_| {});
            assert!(matches!(refused, Err(Failure::Usage(_))), "{path}");
        }
    }

    #[test]
    fn what_one_process_says_the_other_understands() {
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
