//! The kinds of port that an operation may go to.

use crate::ring::RingOptions;

/// The kind of port that an operation goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PortKind {
    /// The kernel announces completions.
    Main,
    /// Completions are polled from the device (`IORING_SETUP_IOPOLL`).
    Polled,
    /// Entries have room for NVMe commands.
    Commands,
    /// Entries have room for NVMe commands, and completions are polled.
    PolledCommands,
    /// The thread's AIO context, `ports/aio.rs`; all others are rings.
    Aio,
}

impl PortKind {
    /// Returns every other kind of ring.
    pub(crate) fn others(self) -> impl Iterator<Item = Self> {
        let all = [Self::Main, Self::Polled, Self::Commands, Self::PolledCommands];
        all.into_iter().filter(move |&kind| kind != self)
    }

    /// Returns the place of a ring of this kind in the list of extra rings, those besides the main one; `None` if it is not in it.
    pub(crate) fn extra(self) -> Option<usize> {
        match self {
            Self::Main | Self::Aio => None,
            Self::Polled => Some(0),
            Self::Commands => Some(1),
            Self::PolledCommands => Some(2),
        }
    }

    /// Returns whether a completion wakes a sleeping thread; otherwise the thread must poll.
    pub(crate) fn announces(self) -> bool {
        match self {
            Self::Main | Self::Commands | Self::Aio => true,
            Self::Polled | Self::PolledCommands => false,
        }
    }

    /// Returns whether submissions are NVMe commands.
    #[inline]
    pub(crate) fn takes_commands(self) -> bool {
        match self {
            Self::Main | Self::Polled | Self::Aio => false,
            Self::Commands | Self::PolledCommands => true,
        }
    }

    /// Returns the kind of ring for operations without data of a file whose reads and writes go to this kind.
    pub(crate) fn without_data(self) -> Self {
        match self {
            Self::Main | Self::Polled | Self::Aio => Self::Main,
            Self::Commands | Self::PolledCommands => Self::Commands,
        }
    }

    /// Returns the options of a ring of this kind, given those of the main one.
    pub(crate) fn options(self, options: &RingOptions) -> RingOptions {
        let (iopoll, commands) = (!self.announces(), self.takes_commands());
        RingOptions { iopoll, commands, sqpoll_idle: None, ..*options }
    }
}
