//! The page cache before a run: brings it into the state asked for, and reads how much of the file it holds.

use std::os::unix::fs::FileExt;

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
                sys::drop_cache(&self.buffered)
                    .map_err(|error| io_on("can't drop from the page cache", &self.path, &error))?;
            }
            Cache::Warm if self.cached() == Some(1.0) => {}
            Cache::Warm => self.read_in()?,
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
