//! What goes wrong in a test, each by its place: so that a run can be repeated with a part of its faults.
//!
//! Whether something goes wrong at a place follows from the seed and the place alone, so that a fault that is left out moves
//! no other one. Knows no test and no world.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use super::trace::{End, Past};

/// What a run can do wrong at one of its moments. The moments of each kind are numbered from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Moment {
    Read,
    Write,
    Sync,
    /// A bit of a read is flipped.
    Flip,
    /// The drive loses a write, or writes elsewhere.
    Drive,
    /// An operation begins, and is stuck.
    Start,
    /// The number is that of the event after which the power is cut.
    Cut,
}

impl Moment {
    const ALL: [(Self, &str); 7] = [
        (Self::Read, "read"),
        (Self::Write, "write"),
        (Self::Sync, "sync"),
        (Self::Flip, "flip"),
        (Self::Drive, "drive"),
        (Self::Start, "start"),
        (Self::Cut, "cut"),
    ];
    pub(super) const COUNT: usize = Self::ALL.len();
}

/// A moment of a test. The simulations that it runs are numbered from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct FaultPlace {
    pub(super) run: u64,
    pub(super) moment: Moment,
    pub(super) number: u64,
}

impl fmt::Display for FaultPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Moment::ALL[self.moment as usize].1;
        write!(f, "{}:{name}{}", self.run, self.number)
    }
}

/// The places at which something may go wrong, in words: `1:write17 1:cut532`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Script(pub(super) BTreeSet<FaultPlace>);

impl Script {
    /// Reads a script; `None` if a word of it is no place.
    pub(super) fn parse(words: &str) -> Option<Self> {
        let place = |word: &str| {
            let (run, at) = word.split_once(':')?;
            let (moment, number) =
                Moment::ALL.iter().find_map(|(moment, name)| Some((*moment, at.strip_prefix(name)?)))?;
            Some(FaultPlace { run: run.parse().ok()?, moment, number: number.parse().ok()? })
        };
        words.split_whitespace().map(place).collect::<Option<_>>().map(Self)
    }

    /// Returns the event after which the power is cut in a run.
    pub(super) fn cut(&self, run: u64) -> Option<u64> {
        self.0.iter().find(|place| place.run == run && place.moment == Moment::Cut).map(|place| place.number)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&words.join(" "))
    }
}

/// How the simulations of a test are to be run, and what went wrong in them.
#[derive(Default)]
pub(super) struct FaultPlan {
    /// How many simulations have begun.
    pub(super) runs: u64,
    /// All that may go wrong; `None`: what the seed and the rates say.
    pub(super) only: Option<Rc<Script>>,
    /// What went wrong, in words.
    pub(super) happened: Vec<(FaultPlace, String)>,
    /// The runs in which the power was cut, and that which has panicked.
    pub(super) pasts: Vec<Rc<Past>>,
}

impl FaultPlan {
    pub(super) fn new(only: Option<Script>) -> Self {
        Self { only: only.map(Rc::new), ..Self::default() }
    }
}

thread_local! {
    static PLAN: RefCell<Option<FaultPlan>> = const { RefCell::new(None) };
}

/// Puts a plan in place for the calling thread, or takes it away.
pub(super) fn set(plan: Option<FaultPlan>) -> Option<FaultPlan> {
    PLAN.replace(plan)
}

/// Runs `act` on the calling thread's plan; `None` without one.
pub(super) fn with<R>(act: impl FnOnce(&mut FaultPlan) -> R) -> Option<R> {
    PLAN.with_borrow_mut(|plan| plan.as_mut().map(act))
}

/// Notes that a run has ended, if the power was cut or it has panicked.
pub(super) fn note_end(past: &Rc<Past>) {
    let is_told = past.end != End::Returned;
    with(|plan| plan.pasts.extend(is_told.then(|| Rc::clone(past))));
}

/// Notes that something goes wrong.
pub(super) fn note(place: FaultPlace, what: String) {
    with(|plan| plan.happened.push((place, what)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_as_it_is_written() {
        let words = "1:write17 1:cut532 2:read3 2:flip4 2:start5 10:sync1 10:drive7";
        let script = Script::parse(words).expect("it is right");
        assert_eq!(Script::parse(&script.to_string()), Some(script.clone()));
        assert_eq!((script.0.len(), script.cut(1), script.cut(2)), (7, Some(532), None));
        for wrong in ["write17", "1:write", "1:17", "x:write1", "1:writes1", "1:write-1"] {
            assert_eq!(Script::parse(wrong), None, "{wrong}");
        }
    }
}
