//! What a run has done, operation by operation, and what of it is on the disk: for those who look for the cause of a failure.
//!
//! Knows the disk, and neither how operations are carried out nor when. Invariant: tracing changes nothing of a run.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::Rc;

use super::disk::Contents;
use super::fate::{Fate, Fates, Touched};
use super::file_state::Strictness;

/// How many operations a trace has, the last ones.
pub(super) const KEPT: usize = 10_000;
/// A report has so many of the last operations, and so many of those before whose changes were lost.
const REPORTED: usize = 10;

/// What an operation was asked, in words: "write of 100 bytes at 0 of store.new".
pub(crate) struct Description {
    pub(crate) verb: &'static str,
    /// The path that it names, or by which its file was opened.
    pub(crate) path: Rc<str>,
    /// The second path, or the new size.
    pub(crate) to: Option<Rc<str>>,
    pub(crate) offset: u64,
    /// The number of bytes that it is about; 0 if it is about none.
    pub(crate) want: usize,
}

impl Description {
    /// Describes what is done to the file at a path.
    pub(crate) fn of(verb: &'static str, path: &[u8]) -> Self {
        Self { verb, path: String::from_utf8_lossy(path).into(), to: None, offset: 0, want: 0 }
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, path, to, offset, want } = self;
        let names_an_object = verb.ends_with("directory") || verb.ends_with("link");
        match want {
            0 if names_an_object => write!(f, "{verb} {path}")?,
            0 => write!(f, "{verb} of {path}")?,
            want => write!(f, "{verb} of {want} bytes at {offset} of {path}")?,
        }
        match to {
            Some(to) if *verb == "exchanging" => write!(f, " with {to}"),
            Some(to) => write!(f, " to {to}"),
            None => Ok(()),
        }
    }
}

struct TraceLine {
    /// `None` if it was in flight when the run ended.
    event: Option<u64>,
    what: Description,
    /// The number of bytes moved, and the errno; `None` if it was not carried out.
    ended: Option<(usize, i32)>,
    touched: Touched,
}

impl fmt::Display for TraceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { event, what, ended, .. } = self;
        match event {
            Some(event) => write!(f, "event {event}: {what}")?,
            None => write!(f, "in flight: {what}")?,
        }
        match *ended {
            None => f.write_str(": not carried out"),
            Some((done, 0)) if done == what.want || done == 0 && what.verb != "read" => Ok(()),
            Some((done, 0)) => write!(f, ": {done} bytes"),
            Some((done, errno)) => {
                write!(f, ": {}", io::Error::from_raw_os_error(errno))?;
                if done > 0 { write!(f, " after {done} bytes") } else { Ok(()) }
            }
        }
    }
}

/// The last operations of a run.
#[derive(Default)]
pub(super) struct Trace {
    entries: VecDeque<TraceLine>,
    /// How many there were before.
    earlier: usize,
}

impl Trace {
    /// Notes an operation that ends in this event; `None`: it is in flight when the run ends.
    pub(super) fn begins(&mut self, event: Option<u64>, what: Description) {
        if self.entries.len() == KEPT {
            self.entries.pop_front();
            self.earlier += 1;
        }
        self.entries.push_back(TraceLine { event, what, ended: None, touched: Touched::default() });
    }

    /// Notes how the operation that began last has ended.
    pub(super) fn ended(&mut self, done: usize, errno: i32, touched: Touched) {
        if let Some(entry) = self.entries.back_mut() {
            (entry.ended, entry.touched) = (Some((done, errno)), touched);
        }
    }
}

/// How a run has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Returned,
    /// The power was cut.
    Cut,
    /// The program has returned, and then the power was cut.
    CutAfterwards,
    Panicked,
}

/// A run that has ended.
pub(super) struct Past {
    /// Its number on its disk, from 1.
    pub(super) run: u64,
    /// Its number in its test; 0 if they are not counted.
    pub(super) place: u64,
    pub(super) end: End,
    /// The last event.
    pub(super) event: u64,
    pub(super) trace: Trace,
    /// Its disk, before the power was cut.
    pub(super) disk: Rc<Contents>,
    /// What the power cut has made of it.
    pub(super) fates: Option<Fates>,
}

impl Past {
    fn fate(&self, entry: &TraceLine) -> Option<Fate> {
        self.disk.fate(&entry.touched, self.fates.as_ref())
    }

    /// Returns the last operations, and those before that were lost, each in a line that begins with `indent`.
    pub(super) fn report(&self, indent: &str) -> String {
        let all = self.trace.entries.len();
        let last = all.saturating_sub(REPORTED);
        let is_lost = |at: &usize| self.fate(&self.trace.entries[*at]).is_some_and(Fate::is_lost);
        let mut told: Vec<usize> =
            (last..all).rev().chain((0..last).rev().filter(is_lost).take(REPORTED)).collect();
        told.reverse();
        let mut report = String::new();
        // A string takes all that is written to it.
        let _ = self.tell(&mut report, indent, told.into_iter());
        if self.fates.is_some() {
            report += &format!("{indent}{}\n", self.how_strict());
        }
        report
    }

    /// Tells these operations, each in a line.
    fn tell(&self, to: &mut impl fmt::Write, indent: &str, told: impl Iterator<Item = usize>) -> fmt::Result {
        let Trace { entries, earlier } = &self.trace;
        let (mut next, mut left_out) = (0, *earlier);
        for at in told {
            left_out += at - next;
            if left_out > 0 {
                writeln!(to, "{indent}({left_out} others)")?;
            }
            (next, left_out) = (at + 1, 0);
            write!(to, "{indent}{}", entries[at])?;
            match self.fate(&entries[at]) {
                Some(fate) => writeln!(to, ": {fate}")?,
                None => writeln!(to)?,
            }
        }
        Ok(())
    }

    fn how_strict(&self) -> &'static str {
        match self.disk.strictness {
            Strictness::Journal => "(the disk has Strictness::Journal; Strictness::Posix promises less)",
            Strictness::Posix => "(the disk has Strictness::Posix)",
        }
    }
}

impl fmt::Display for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tell(f, "", 0..self.trace.entries.len())?;
        writeln!(f, "{}", self.how_strict())
    }
}
