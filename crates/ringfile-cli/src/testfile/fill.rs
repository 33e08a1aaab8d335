//! Fills the file before it is measured, in the same way for every engine: large writes in order.
//!
//! The size of the writes determines the size of the folios in the page cache, and so the speed of all buffered I/O.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::TestFile;
use crate::error::{Failure, io_at, io_on};
use crate::memory::zeroed;
use crate::sys;
use crate::verify::Verifier;
use fastrand::Rng;

/// The approximate number of bytes of each write.
const CHUNK: u64 = 1 << 20;

/// Writes all blocks of the test file, and calls `tick` with the number of bytes written.
pub fn fill(
    test_file: &TestFile,
    direct: bool,
    verifier: Option<&Verifier>,
    tick: &mut dyn FnMut(u64),
) -> Result<(), Failure> {
    // A namespace is filled through its block device, which was checked to be unused.
    let path = &test_file.path;
    let mut options = OpenOptions::new();
    options.write(true);
    if direct {
        options.custom_flags(libc::O_DIRECT);
    }
    let file = sys::path_of(&test_file.buffered).and_then(|reopened| options.open(reopened));
    let file = file.map_err(|error| io_on("can't open", path, &error))?;
    let block = test_file.block;
    let chunk = (CHUNK / block).max(1) * block;
    let mut memory = zeroed(chunk as usize);
    let mut random = Rng::with_seed(0);
    let mut offset = 0;
    while offset < test_file.size() {
        if test_file.interrupt.asked() {
            return Err(Failure::Interrupted);
        }
        let length = chunk.min(test_file.size() - offset);
        let bytes = &mut memory[..length as usize];
        match verifier {
            None => random.fill(bytes),
            Some(verifier) => {
                for (at, bytes) in (offset..).step_by(block as usize).zip(bytes.chunks_mut(block as usize)) {
                    verifier.stamp(bytes, at);
                    verifier.written(at);
                }
            }
        }
        file.write_all_at(bytes, offset).map_err(|error| io_at("filling: write", path, offset, &error))?;
        offset += length;
        tick(offset);
    }
    file.sync_all().map_err(|error| io_on("filling: can't sync", path, &error))
}
