//! Flags of single reads and writes (`RWF_…`) and polled reads, tried on the file at hand.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};

use rustix::io::{ReadWriteFlags, preadv2, pwritev2};
use serde::{Deserialize, Serialize};

use super::direct;
use super::features::{Feature, meaning};
use super::file::{FileFacts, Subjects};
use crate::memory::AlignedBytes;
use crate::sys::ring::{Op, TrialRing};

/// Whether reads and writes can be done without ever waiting; `null` where it was not tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NonBlocking {
    /// Through the page cache.
    pub buffered_reads: Option<bool>,
    /// Through the page cache.
    pub buffered_writes: Option<bool>,
    /// Past it.
    pub direct_reads: Option<bool>,
    /// Past it.
    pub direct_writes: Option<bool>,
}

/// RWF_DONTCACHE, which is newer than the crate.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Bytes of each trial.
const BLOCK: usize = 4096;

/// Tries RWF_NOWAIT.
pub fn nonblocking(subjects: &Subjects) -> NonBlocking {
    let known = |file: Option<&File>, writes: bool| {
        file.and_then(|file| takes_nowait(&transfer(file, writes, ReadWriteFlags::NOWAIT)))
    };
    NonBlocking {
        buffered_reads: known(subjects.reads.as_ref(), false),
        buffered_writes: known(subjects.writes.as_ref(), true),
        direct_reads: known(subjects.direct(false), false),
        direct_writes: known(subjects.direct(true), true),
    }
}

impl Subjects {
    /// The file for direct I/O, where there is one.
    pub fn direct(&self, writes: bool) -> Option<&File> {
        let reads = self.direct_reads.as_ref().or(self.direct_writes.as_ref());
        let file = if writes { self.direct_writes.as_ref() } else { reads };
        file.and_then(|opened| opened.as_ref().ok())
    }
}

/// EAGAIN is an answer too: it would have to wait now, and knows.
fn takes_nowait(done: &io::Result<usize>) -> Option<bool> {
    match done.as_ref().map_err(io::Error::raw_os_error) {
        Ok(_) | Err(Some(libc::EAGAIN)) => Some(true),
        Err(Some(libc::EOPNOTSUPP)) => Some(false),
        Err(_) => None,
    }
}

/// One block at the file's start.
fn transfer(file: &File, writes: bool, flags: ReadWriteFlags) -> io::Result<usize> {
    let mut memory = AlignedBytes::zeroed(BLOCK);
    let memory = memory.as_mut_slice();
    match writes {
        true => Ok(pwritev2(file, &[IoSlice::new(memory)], 0, flags)?),
        false => Ok(preadv2(file, &mut [IoSliceMut::new(memory)], 0, flags)?),
    }
}

/// The flags as features, each with what this file said to it. `has_poll_queues` is what the device below says of itself.
pub fn features(subjects: &Subjects, facts: &FileFacts, has_poll_queues: Option<bool>) -> Vec<Feature> {
    let on = |reads: bool| if reads { &facts.reads_tried } else { &facts.writes_tried };
    let able = |name: &str, what: &str, reads: bool, usable: Option<bool>, without: &str| {
        let why = match usable {
            Some(true) => format!("tried: {what} on {}", on(reads)),
            Some(false) => format!(
                "tried: {what} on {}: not supported there (EOPNOTSUPP); without it {without}",
                on(reads)
            ),
            None => on(reads).clone(),
        };
        Feature { name: name.into(), usable, why }
    };
    let handed = "io_uring hands each to a kernel thread";
    let nonblocking = &facts.nonblocking;
    let dsync = subjects.writes.as_ref().map(|file| transfer(file, true, ReadWriteFlags::DSYNC).is_ok());
    let uncached = subjects.reads.as_ref().map(|file| transfer(file, false, DONTCACHE).is_ok());
    vec![
        able("rwf_nowait_read", "a buffered read with RWF_NOWAIT", true, nonblocking.buffered_reads, handed),
        able(
            "rwf_nowait_write",
            "a buffered write with RWF_NOWAIT",
            false,
            nonblocking.buffered_writes,
            handed,
        ),
        able(
            "rwf_nowait_direct_read",
            "a direct read with RWF_NOWAIT",
            true,
            nonblocking.direct_reads,
            handed,
        ),
        able(
            "rwf_nowait_direct_write",
            "a direct write with RWF_NOWAIT",
            false,
            nonblocking.direct_writes,
            handed,
        ),
        able("rwf_dsync", "a write with RWF_DSYNC", false, dsync, "a durable write is a write and a sync"),
        able(
            "rwf_dontcache",
            "a read with RWF_DONTCACHE",
            true,
            uncached,
            "streams push other data out of the page cache",
        ),
        polled(subjects, facts, has_poll_queues),
    ]
}

/// A direct read whose completion is polled from the device. That it succeeds says little by itself: older kernels (5.10 does)
/// take a polled read without poll queues too, and let an interrupt end it.
fn polled(subjects: &Subjects, facts: &FileFacts, has_poll_queues: Option<bool>) -> Feature {
    let feature = |usable, why| Feature { name: "iopoll".into(), usable, why };
    let usable = facts.direct.as_ref().is_some_and(|direct| direct.usable);
    let Some(file) = subjects.direct(false).filter(|_| usable) else {
        return feature(None, "a polled read needs direct I/O, which is not to be had here".into());
    };
    let block = direct::block(facts.direct.as_ref().and_then(|direct| direct.offset_alignment)) as u32;
    let done = TrialRing::polled().and_then(|mut ring| ring.run(file, &[Op::Read(block, 0, 0)]));
    let tried = format!("a direct read on a ring with IORING_SETUP_IOPOLL, on {}", facts.reads_tried);
    match done {
        Ok(results) if results[0] >= 0 && has_poll_queues == Some(false) => feature(
            Some(false),
            format!(
                "tried: {tried}: taken, but the device has no poll queues (io_poll is 0), so the completion \
                 came by interrupt"
            ),
        ),
        Ok(results) if results[0] >= 0 => feature(Some(true), format!("tried: {tried}")),
        Ok(results) if results[0] == -libc::EOPNOTSUPP => feature(
            Some(false),
            format!(
                "tried: {tried}: the device has no poll queues (EOPNOTSUPP); without it completions \
                 come by interrupt"
            ),
        ),
        Ok(results) => {
            let error = io::Error::from_raw_os_error(-results[0]);
            feature(Some(false), format!("tried: {tried}: {}", meaning(&error, "5.1")))
        }
        Err(error) => feature(None, format!("{tried}: {}", meaning(&error, "5.1"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_told_apart_from_not_knowing_how() {
        let of = |errno| takes_nowait(&Err(io::Error::from_raw_os_error(errno)));
        assert_eq!(takes_nowait(&Ok(0)), Some(true));
        assert_eq!(of(libc::EAGAIN), Some(true));
        assert_eq!(of(libc::EOPNOTSUPP), Some(false));
        assert_eq!(of(libc::EIO), None);
    }
}
