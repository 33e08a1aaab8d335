//! The files that trials use.

use std::fs::File;
use std::io;

/// The files that trials use.
#[derive(Debug, Default)]
pub struct Subjects {
    /// What reads are tried on, or why they are not.
    pub reads_tried: String,
    /// What writes are tried on, or why they are not.
    pub writes_tried: String,
    /// For reads: PATH itself; if that is a folder, the file for writes.
    pub reads: Option<File>,
    /// The same for direct I/O, or the error.
    pub direct_reads: Option<io::Result<File>>,
    /// For writes: a file without a name.
    pub writes: Option<File>,
    /// The same for direct I/O, or the error.
    pub direct_writes: Option<io::Result<File>>,
}

/// Bytes in the file for writes, and the most that is read of a file.
pub const TRIED: usize = 64 << 10;
