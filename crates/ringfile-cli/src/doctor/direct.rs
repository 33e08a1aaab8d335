//! Tries direct I/O: opens, writes, reads back, compares, and checks whether it bypassed the page cache.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, StatxFlags, statx};
use serde::{Deserialize, Serialize};

use super::place::Medium;
use super::subjects::{Subjects, TRIED};
use crate::error::errno_text;
use crate::memory::zeroed;
use crate::sys;

/// The result of trying direct I/O on a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Direct {
    /// Whether it could be opened and read, and written if that was tried.
    pub usable: bool,
    /// What was tried, and the result.
    pub why: String,
    /// Bytes that offsets and lengths must be multiples of, by statx; `null` if it does not tell.
    pub offset_alignment: Option<u32>,
    /// Bytes that addresses must be multiples of, by statx.
    pub memory_alignment: Option<u32>,
    /// The shortest and the longest atomic write (RWF_ATOMIC) in bytes, by statx; `null` if it takes none.
    pub atomic_writes: Option<[u32; 2]>,
    /// Whether it bypassed the page cache; `null` if the kernel does not report that, or if nothing could be written.
    pub past_cache: Option<bool>,
    /// Median of some reads of 4 KiB, or of one block where that is larger, in µs.
    pub read_us: Option<f64>,
}

/// The time for all reads.
const BUDGET: Duration = Duration::from_millis(40);

/// Tries direct I/O; returns `None` if there is no file to try it on.
pub fn look(subjects: &Subjects, medium: Medium) -> Option<Direct> {
    let opened = subjects.direct_reads.as_ref().or(subjects.direct_writes.as_ref())?;
    let refused = |why: String| Some(Direct { why, ..Direct::default() });
    if medium == Medium::Memory {
        return refused("memory has no direct I/O: O_DIRECT is refused, or has no effect".into());
    }
    let file = match opened {
        Ok(file) => file,
        Err(error) => return refused(format!("opening with O_DIRECT: {}", errno_text(error))),
    };
    let mut direct = Direct::default();
    (direct.offset_alignment, direct.memory_alignment) = alignment(file);
    direct.atomic_writes = atomic_writes(file);
    let block = block(direct.offset_alignment);
    let writes = subjects.direct(true);
    match (writes.map(write_and_compare), timed_reads(file, block)) {
        (Some(Err(error)), _) => direct.why = format!("a direct write: {}", errno_text(&error)),
        (_, Err(error)) => direct.why = format!("a direct read of {block} bytes: {}", errno_text(&error)),
        (written, Ok(median)) => {
            direct.usable = true;
            direct.read_us = median;
            let cached = writes.and_then(|file| sys::cached_fraction(file, TRIED as u64));
            direct.past_cache = cached.map(|fraction| fraction == 0.0);
            let wrote = if written.is_some() { "written, read back and compared" } else { "read" };
            direct.why = format!("opened with O_DIRECT, {wrote}");
        }
    }
    Some(direct)
}

/// Returns whether the library reads the file adaptively; `None` if it can't be opened at all.
pub fn is_adaptive(file: &File) -> Option<bool> {
    let adopted = ringfile::OpenOptions::new().adaptive(true).from_std(file.try_clone().ok()?);
    adopted.ok().map(|file| file.is_adaptive())
}

/// Returns the bytes of a direct operation: 4 KiB, or the alignment that the file needs.
pub fn block(offset_alignment: Option<u32>) -> usize {
    (offset_alignment.unwrap_or(0) as usize).clamp(4096, TRIED)
}

fn alignment(file: &File) -> (Option<u32>, Option<u32>) {
    match statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(facts) if facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            (Some(facts.stx_dio_offset_align), Some(facts.stx_dio_mem_align))
        }
        _ => (None, None),
    }
}

fn atomic_writes(file: &File) -> Option<[u32; 2]> {
    // Kernels that do not know it (before Linux 6.11) leave the fields 0.
    let asked = StatxFlags::from_bits_retain(libc::STATX_WRITE_ATOMIC);
    let facts = statx(file, "", AtFlags::EMPTY_PATH, asked).ok()?;
    (facts.stx_atomic_write_unit_min != 0)
        .then_some([facts.stx_atomic_write_unit_min, facts.stx_atomic_write_unit_max])
}

fn write_and_compare(file: &File) -> io::Result<()> {
    let mut memory = zeroed(TRIED);
    memory.fill(9);
    file.write_all_at(&memory, 0)?;
    memory.fill(0);
    file.read_exact_at(&mut memory, 0)?;
    match memory.iter().all(|&byte| byte == 9) {
        true => Ok(()),
        false => Err(io::Error::other("the bytes read are not those written")),
    }
}

/// Returns the median of a few reads; `None` if the file is too short to say anything.
fn timed_reads(file: &File, block: usize) -> io::Result<Option<f64>> {
    let mut memory = zeroed(block);
    let (began, mut times) = (Instant::now(), Vec::new());
    for place in (0..TRIED as u64).step_by(block).cycle().take(16) {
        let before = Instant::now();
        let count = file.read_at(&mut memory, place)?;
        if count == block {
            times.push(before.elapsed());
        }
        if began.elapsed() > BUDGET {
            break;
        }
    }
    Ok(median_us(&mut times))
}

/// Returns the median in µs, to a tenth.
pub fn median_us(times: &mut [Duration]) -> Option<f64> {
    times.sort_unstable();
    times.get(times.len() / 2).map(|median| us(*median))
}

/// Returns a time in µs, to a tenth.
pub fn us(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e7).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_microseconds() {
        let mut times = [30, 10, 20].map(Duration::from_micros);
        assert_eq!(median_us(&mut times), Some(20.0));
        assert_eq!(median_us(&mut []), None);
        assert_eq!(median_us(&mut [Duration::from_nanos(1234)]), Some(1.2));
    }

    #[test]
    fn blocks_are_those_that_the_file_needs() {
        assert_eq!(
            [None, Some(0), Some(512), Some(16384), Some(1 << 30)].map(block),
            [4096, 4096, 4096, 16384, TRIED]
        );
    }
}
