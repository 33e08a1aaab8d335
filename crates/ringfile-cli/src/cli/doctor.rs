//! The command line of `ringfile doctor`.

use std::path::PathBuf;

use clap::Args;

/// `ringfile doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// File, folder or block device to examine: the one that your program will use
    #[arg(value_name = "PATH", default_value = ".")]
    pub path: PathBuf,
    /// Print all findings as JSON (schema 1) instead of text
    #[arg(long)]
    pub json: bool,
}

/// The text at the start of the long help.
pub const LONG: &str = "\
Find out what makes I/O slow here, and what to do about it.

Examines four things by trying them, in at most a second:

  features   every feature of io_uring that ringfile uses, tried on rings of this process
  process    restrictions: memlock, seccomp, kernel.io_uring_disabled, cgroup limits, memory
  file       PATH's file system: direct I/O and its alignment, non-blocking reads and writes, the
             time of each way to write durably, and the route that ringfile takes
  device     the disk below it, through partitions, loop, md and dm: queue, scheduler, write cache

Findings are listed with the most costly first, each with a figure and the command or setting that \
changes it. The doctor itself changes nothing.

PATH and the device below it are only read. Writes are tried on an unnamed file (O_TMPFILE) in PATH, or \
in the folder that contains PATH; the kernel removes that file in any case. If it cannot be created, writes \
are not tried. A file system that does not answer within 500 ms is skipped.";

/// The text at the end of the long help.
pub const AFTER: &str = "\
Severity:
  costly   I/O takes a multiple of the possible time, or does not go the intended way
  notable  costs something in some workloads, or prevents a feature
  fine     as it should be; nothing to do

Examples:
  ringfile doctor                        the current folder
  ringfile doctor /var/lib/postgresql    where a database keeps its data
  ringfile doctor /dev/nvme0n1           a block device, which is only read
  ringfile doctor --json . | jq '.findings[] | select(.severity == \"costly\")'

Exit codes:
  0  everything was examined, whatever was found
  1  the result could not be printed
  2  wrong arguments, or PATH does not exist, may not be reached by this user, or is a file
     or device that this user may not read";
