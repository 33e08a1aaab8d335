//! Operations that move no data: syncing, allocating, truncating, advising.
//!
//! The kernel carries them out on its worker threads, and can cancel those that have not begun.

use super::request::{DISCARD, PUNCH_HOLE};
use super::request::{Kind, Request, last_errno};
use crate::driver::target::Target;
use crate::ring::Sqe;

/// Fills the fields of a submission entry that depend on the kind of operation.
#[cold]
pub(super) fn fill(request: &Request, sqe: &mut Sqe) {
    sqe.opcode = request.kind.opcode();
    sqe.op_flags = request.op_flags;
    match request.kind {
        // With an offset and no length, the kernel would sync the one page there (`io_fsync` in io_uring/sync.c). The sync of
        // a durable write has the offset of the write.
        Kind::Sync => sqe.offset = 0,
        Kind::Truncate => {}
        // The length has 32 bits: longer ranges are synced to the end of the file. Longer advice does not come here, see
        // `Request::fits_an_entry`.
        Kind::SyncRange | Kind::Advise => sqe.len = u32::try_from(request.want).unwrap_or(0),
        Kind::Allocate => {
            sqe.addr = request.want as u64;
            sqe.len = mode(std::mem::take(&mut sqe.op_flags));
        }
        Kind::Read | Kind::Write | Kind::ReadVectored | Kind::WriteVectored | Kind::WriteAtomic => {}
        Kind::Open | Kind::Rename | Kind::Remove | Kind::CreateDir | Kind::Stat | Kind::Copy => {}
    }
}

/// Returns the kernel's mode of an allocation: discarding punches a hole.
fn mode(op_flags: u32) -> u32 {
    if op_flags == DISCARD { PUNCH_HOLE } else { op_flags }
}

/// Makes the plain call.
pub(super) fn call(target: &Target, request: &Request) -> Result<(), i32> {
    let (fd, offset, want) = (target.raw_fd(), request.offset.cast_signed(), request.want as i64);
    let flags = request.op_flags.cast_signed();
    // SAFETY: none of these calls takes memory.
    let answer = unsafe {
        match request.kind {
            Kind::Sync if flags == 0 => libc::fsync(fd),
            Kind::Sync => libc::fdatasync(fd),
            Kind::SyncRange => libc::sync_file_range(fd, offset, want, request.op_flags),
            Kind::Allocate => libc::fallocate(fd, mode(request.op_flags).cast_signed(), offset, want),
            Kind::Truncate => libc::ftruncate(fd, offset),
            Kind::Advise => return errno(libc::posix_fadvise(fd, offset, want, flags)),
            Kind::Read
            | Kind::Write
            | Kind::ReadVectored
            | Kind::WriteVectored
            | Kind::WriteAtomic
            | Kind::Open
            | Kind::Rename
            | Kind::Remove
            | Kind::CreateDir
            | Kind::Stat
            | Kind::Copy => return Err(libc::EINVAL),
        }
    };
    if answer < 0 { Err(last_errno()) } else { Ok(()) }
}

fn errno(errno: i32) -> Result<(), i32> {
    if errno == 0 { Ok(()) } else { Err(errno) }
}
