//! Tries flags of single reads and writes (`RWF_…`), and polled reads, on the file at hand.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};

use io_uring::IoUring;
use rustix::io::{ReadWriteFlags, preadv2, pwritev2};
use serde::{Deserialize, Serialize};

use super::direct;
use super::direct::Direct;
use super::features::{Feature, meaning};
use super::subjects::Subjects;
use crate::memory::zeroed;
use crate::sys::ring::{Op, TrialRing};

/// Whether reads and writes can be done without blocking; `null` if that was not tried.
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

/// Tries RWF_NOWAIT on each kind of file.
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
    /// Returns the file for direct I/O, if there is one.
    pub fn direct(&self, writes: bool) -> Option<&File> {
        let reads = self.direct_reads.as_ref().or(self.direct_writes.as_ref());
        let file = if writes { self.direct_writes.as_ref() } else { reads };
        file.and_then(|opened| opened.as_ref().ok())
    }
}

/// Returns whether RWF_NOWAIT is supported. EAGAIN means so too: the kernel knows that it would block now.
fn takes_nowait(done: &io::Result<usize>) -> Option<bool> {
    match done.as_ref().map_err(io::Error::raw_os_error) {
        Ok(_) | Err(Some(libc::EAGAIN)) => Some(true),
        Err(Some(libc::EOPNOTSUPP)) => Some(false),
        Err(_) => None,
    }
}

/// Reads or writes one block at the file's start.
fn transfer(file: &File, writes: bool, flags: ReadWriteFlags) -> io::Result<usize> {
    let mut memory = zeroed(BLOCK);
    match writes {
        true => Ok(pwritev2(file, &[IoSlice::new(&memory)], 0, flags)?),
        false => Ok(preadv2(file, &mut [IoSliceMut::new(&mut memory)], 0, flags)?),
    }
}

/// Returns the flags as features, each with the result on this file, given what was found without and with direct I/O. `has_poll_queues` is what the device below
/// reports.
pub fn features(
    subjects: &Subjects,
    told: &NonBlocking,
    direct: Option<&Direct>,
    has_poll_queues: Option<bool>,
) -> Vec<Feature> {
    let handed = "io_uring hands each to a kernel thread";
    let (reads, writes) = (&subjects.reads_tried, &subjects.writes_tried);
    let dsync = subjects.writes.as_ref().map(|file| transfer(file, true, ReadWriteFlags::DSYNC).is_ok());
    let uncached = subjects.reads.as_ref().map(|file| transfer(file, false, DONTCACHE).is_ok());
    let all = [
        ("rwf_nowait_read", reads, "a buffered read with RWF_NOWAIT", told.buffered_reads, handed),
        ("rwf_nowait_write", writes, "a buffered write with RWF_NOWAIT", told.buffered_writes, handed),
        ("rwf_nowait_direct_read", reads, "a direct read with RWF_NOWAIT", told.direct_reads, handed),
        ("rwf_nowait_direct_write", writes, "a direct write with RWF_NOWAIT", told.direct_writes, handed),
        ("rwf_dsync", writes, "a write with RWF_DSYNC", dsync, "a durable write is a write and a sync"),
        (
            "rwf_dontcache",
            reads,
            "a read with RWF_DONTCACHE",
            uncached,
            "streams push other data out of the page cache",
        ),
    ];
    let tried = all.map(|(name, on, what, usable, without)| {
        let why = match usable {
            Some(true) => format!("tried: {what} on {on}"),
            Some(false) => {
                format!("tried: {what} on {on}: not supported there (EOPNOTSUPP); without it {without}")
            }
            None => on.clone(),
        };
        Feature::new(name, usable, why)
    });
    tried.into_iter().chain([polled(subjects, direct, has_poll_queues)]).collect()
}

/// Tries a direct read whose completion is polled from the device. Success alone says little: older kernels (such as
/// 5.10) accept a polled read without poll queues too, and complete it by interrupt.
fn polled(subjects: &Subjects, facts: Option<&Direct>, has_poll_queues: Option<bool>) -> Feature {
    let feature = |usable, why| Feature::new("iopoll", usable, why);
    let usable = facts.is_some_and(|direct| direct.usable);
    let Some(file) = subjects.direct(false).filter(|_| usable) else {
        return feature(None, "a polled read needs direct I/O, which is not available here".into());
    };
    let block = direct::block(facts.and_then(|direct| direct.offset_alignment)) as u32;
    let done = TrialRing::built(8, IoUring::builder().setup_iopoll())
        .and_then(|mut ring| ring.run(file, &[Op::Read(block, 0)]));
    let tried = format!("a direct read on a ring with IORING_SETUP_IOPOLL, on {}", subjects.reads_tried);
    let by_interrupt = match done.as_ref().map(|results| results[0]) {
        Err(error) => return feature(None, format!("{tried}: {}", meaning(error, "5.1"))),
        Ok(count) if count >= 0 && has_poll_queues == Some(false) => {
            "accepted, but the device has no poll queues (io_poll is 0), so the completion came by interrupt"
                .into()
        }
        Ok(count) if count >= 0 => return feature(Some(true), format!("tried: {tried}")),
        Ok(errno) if errno == -libc::EOPNOTSUPP => {
            "the device has no poll queues (EOPNOTSUPP); without it completions come by interrupt".into()
        }
        Ok(errno) => meaning(&io::Error::from_raw_os_error(-errno), "5.1"),
    };
    feature(Some(false), format!("tried: {tried}: {by_interrupt}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eagain_shows_support_of_nowait_and_eopnotsupp_shows_its_absence() {
        let of = |errno| takes_nowait(&Err(io::Error::from_raw_os_error(errno)));
        assert_eq!(takes_nowait(&Ok(0)), Some(true));
        assert_eq!(of(libc::EAGAIN), Some(true));
        assert_eq!(of(libc::EOPNOTSUPP), Some(false));
        assert_eq!(of(libc::EIO), None);
    }
}
