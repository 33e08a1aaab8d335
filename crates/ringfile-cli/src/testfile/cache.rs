//! The page cache before a run: brings it into the state asked for, and reads how much of the file it holds.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use super::TestFile;
use crate::error::{Failure, io_at, io_on};
use crate::memory::zeroed;
use crate::model::Cache;
use crate::sys;

impl TestFile {
    /// Brings the page cache into the state asked for. Returns the fraction of the file it then holds, or `None` if the
    /// kernel does not report it.
    pub fn settle(&self, cache: Cache) -> Result<Option<f64>, Failure> {
        // One engine's dirty pages must not be written back during the next engine's run, nor throttle it.
        self.buffered.sync_data().map_err(|error| io_on("can't sync", &self.path, &error))?;
        match cache {
            Cache::Keep => {}
            Cache::Cold | Cache::Mixed => {
                self.is_active.store(false, Ordering::Relaxed);
                sys::drop_cache(&self.buffered)
                    .map_err(|error| io_on("can't drop from the page cache", &self.path, &error))?;
            }
            Cache::Warm if self.is_active.load(Ordering::Relaxed) && self.cached() == Some(1.0) => {}
            Cache::Warm => {
                // The second access to a page moves it to the kernel's list of active pages, 31 pages at a time. Left to
                // the first run, that made one read in 31 to 64 take 8 µs instead of 1 (Linux 6.18), whichever route it used.
                self.read_in()?;
                self.read_in()?;
                self.is_active.store(true, Ordering::Relaxed);
            }
        }
        Ok(self.cached())
    }

    /// Returns the fraction of the file that is in the page cache.
    pub fn cached(&self) -> Option<f64> {
        sys::cached_fraction(&self.buffered, self.size())
    }

    /// Returns the number of the file's pages that entered the page cache since it was dropped, including those evicted
    /// again, or `None` if the kernel does not report it.
    pub fn brought_in(&self) -> Option<u64> {
        sys::cached_pages(&self.buffered, self.size()).map(|pages| pages.iter().sum())
    }

    fn read_in(&self) -> Result<(), Failure> {
        let mut memory = zeroed(1 << 20);
        let mut offset = 0;
        while offset < self.size() {
            if self.interrupt.asked() {
                return Err(Failure::Interrupted);
            }
            let length = (self.size() - offset).min(1 << 20) as usize;
            let bytes = &mut memory[..length];
            match self.buffered.read_at(bytes, offset) {
                // The file shrank: the measurement reports it.
                Ok(0) => return Ok(()),
                Ok(count) => offset += count as u64,
                Err(error) => return Err(io_at("reading in: read", &self.path, offset, &error)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::PerfCommand;
    use crate::cli::tests::perf;
    use crate::interrupt::Interrupt;
    use crate::testfile::{DefaultPlace, Intent};

    /// Returns the bytes that this thread has read so far, or `None` if the kernel does not count them.
    fn read_so_far() -> Option<u64> {
        let counts = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        counts.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok())
    }

    #[test]
    fn a_file_is_read_in_twice_before_the_first_warm_run_and_after_a_cold_one() {
        const SIZE: u64 = 4 << 20;
        if read_so_far().is_none() {
            return crate::skip::skip(
                "a_file_is_read_in_twice_before_the_first_warm_run_and_after_a_cold_one",
                "this kernel does not count the bytes that a thread reads",
            );
        }
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; SIZE as usize]).expect("a file");
        let PerfCommand::Buffers(args) = perf(&format!("buffers --file {} --size 4M", path.display())) else {
            panic!("another command")
        };
        let intent = Intent {
            block: 4096,
            writes: false,
            direct: false,
            verify: false,
            default_place: DefaultPlace::Disk,
        };
        let file = TestFile::open(&args.test_file(), intent, &Interrupt::default()).expect("the file");
        let read_for = |cache| {
            let before = read_so_far().expect("counted");
            file.settle(cache).expect("settled");
            read_so_far().expect("counted") - before
        };
        let twice = |bytes: u64| (2 * SIZE..3 * SIZE).contains(&bytes);
        let first = read_for(Cache::Warm);
        assert!(twice(first), "written, so cached, but not active: read {first}");
        let again = read_for(Cache::Warm);
        assert!(again < SIZE || file.cached() != Some(1.0), "as the last run left it: read {again}");
        read_for(Cache::Cold);
        let after = read_for(Cache::Warm);
        assert!(twice(after), "after a cold run: read {after}");
    }
}
