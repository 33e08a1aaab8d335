//! The command line of `ringfile doctor`.

use std::path::PathBuf;

use clap::Args;

/// `ringfile doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// File, folder or block device to examine: the one that your program will use
    #[arg(value_name = "PATH", default_value = ".")]
    pub path: PathBuf,
    /// Print everything that was found as JSON (schema 1) instead of text
    #[arg(long)]
    pub json: bool,
}

/// What the help says first.
pub const LONG: &str = "\
Find what makes I/O slow here, and what to do about it.

Examines four things and tries each for real, in a second at most:

  features   every part of io_uring that ringfile uses: tried on rings of this process
  process    limits and bans: memlock, seccomp, kernel.io_uring_disabled, cgroup limits, memory
  file       PATH's file system: direct I/O and its alignment, non-blocking reads and writes, the
             ways to write durably, timed, and the route that ringfile takes there
  device     the disk below, down through partitions, loop, md and dm: queue, scheduler, write cache

The most costly finding comes first, each with its figure and the command or setting that changes \
it. The doctor itself changes nothing.

What it touches: PATH and what is below it are only read. Writes are tried on a file without a name \
(O_TMPFILE) in PATH, or in the folder that PATH is in, which the kernel removes whatever happens; without \
such a file, writes are not tried. A file system that does not answer within 500 ms is left alone.";

/// What the help says last.
pub const AFTER: &str = "\
Severity:
  costly   I/O takes a multiple of the possible time, or does not use the intended way
  notable  costs something in some workloads, or prevents a feature
  fine     as it should be, nothing to do

Examples:
  ringfile doctor                        the current folder
  ringfile doctor /var/lib/postgresql    where a database keeps its data
  ringfile doctor /dev/nvme0n1           a block device, which is only read
  ringfile doctor --json . | jq '.findings[] | select(.severity == \"costly\")'

Exit codes:
  0  it has examined everything, whatever it found
  1  the result could not be printed
  2  wrong use, or PATH is missing or closed to this user";
