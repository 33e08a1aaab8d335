//! Operations on a namespace of an NVMe drive: the command for each, and the meaning of its answer.
//!
//! Each submission sends one command. An operation that is too long for one command continues with the next, as after a
//! short count. Invariants: a command names as many blocks as it names bytes of memory, since the drive, not the
//! kernel, decides how much it moves; the memory is that of `memory`, or of `parts`, which stay until the answer.

use linux_raw_sys::general::RWF_DSYNC;
use linux_raw_sys::io_uring::{IORING_URING_CMD_FIXED, io_uring_op as op};

use super::control::{ControlKind, DISCARD, PUNCH_HOLE, WRITTEN};
use super::parts::{PartsOf, Range};
use super::request::{Family, Request};
use super::transfer::{self, gather};
use crate::driver::target::namespace::{Namespace, Status};
use crate::memory::IoMemory;
use crate::ring::{CommandSqe, NvmeCommand};

const NVME_URING_CMD_IO: u32 = rustix::ioctl::opcode::read_write::<NvmeCommand>(b'N', 0x80);
const NVME_URING_CMD_IO_VEC: u32 = rustix::ioctl::opcode::read_write::<NvmeCommand>(b'N', 0x81);

const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const WRITE_ZEROS: u8 = 0x08;
const DATASET_MANAGEMENT: u8 = 0x09;

/// In `cdw12`: the write is durable when it is answered.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// In `cdw12`: deallocate the zeroed blocks.
const DEALLOCATE_ZEROS: u32 = 1 << 25;
/// In `cdw11`: deallocate the ranges.
const DEALLOCATE: u32 = 1 << 2;

const ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE.cast_unsigned();

/// The next command of an operation, and the number of bytes that it covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CommandStep {
    /// No command: the answer is already known.
    Answer(Result<usize, i32>),
    Move(usize),
    Flush,
    Discard(usize),
    Zero {
        bytes: usize,
        deallocates: bool,
    },
}

/// Returns the command for `request` from byte `began` on. Called once for the submission and once for its answer. If a
/// command's limit has shrunk in between, the second result is shorter, and some bytes are moved twice.
fn step(request: &Request, memory: &IoMemory, began: usize, namespace: &Namespace) -> CommandStep {
    let limits = namespace.limits;
    let offset = request.offset.saturating_add(began as u64);
    let left = request.want.saturating_sub(began);
    let answer = |errno| CommandStep::Answer(Err(errno));
    let is_read = request.kind.is_read();
    let may = if is_read { namespace.access.read } else { namespace.access.write };
    let is_whole = |bytes: usize| (offset | bytes as u64) & (namespace.block() as u64 - 1) == 0;
    match request.kind.family() {
        Family::Control(ControlKind::Sync) => CommandStep::Flush,
        Family::Write if request.is_atomic() => answer(libc::EOPNOTSUPP),
        Family::Read | Family::Write if !may => answer(libc::EBADF),
        Family::Read | Family::Write => {
            let mut room = left.min(namespace.most());
            if is_read {
                // A read ends with the namespace, as with any file. The drive would refuse the whole command.
                let to_end = namespace.size().saturating_sub(offset);
                room = room.min(usize::try_from(to_end).unwrap_or(usize::MAX));
            }
            let bytes = transfer::len(memory, is_read, request.start + began, room);
            match bytes {
                0 => CommandStep::Answer(Ok(0)),
                _ if !is_whole(bytes) => answer(libc::EINVAL),
                _ if request.op_flags & !RWF_DSYNC != 0 => answer(libc::EOPNOTSUPP),
                _ => CommandStep::Move(bytes),
            }
        }
        Family::Control(ControlKind::Allocate) if !may => answer(libc::EBADF),
        Family::Control(ControlKind::Allocate) if left == 0 || !is_whole(left) => answer(libc::EINVAL),
        Family::Control(ControlKind::Allocate) => match request.op_flags {
            DISCARD if limits.discard > 0 => CommandStep::Discard(left.min(limits.discard)),
            ZERO_RANGE | WRITTEN | PUNCH_HOLE if limits.zeros > 0 => CommandStep::Zero {
                bytes: left.min(limits.zeros),
                deallocates: request.op_flags == PUNCH_HOLE,
            },
            _ => answer(libc::EOPNOTSUPP),
        },
        Family::Control(ControlKind::SyncRange | ControlKind::Truncate | ControlKind::Advise)
        | Family::Path(_)
        | Family::Copy => answer(libc::EOPNOTSUPP),
    }
}

/// Interprets the kernel's answer to a submission: the bytes that it moved, or the errno, which may be a [`Status`].
pub(crate) fn answer(
    request: &Request,
    memory: &IoMemory,
    began: usize,
    namespace: &Namespace,
    result: i32,
) -> Result<usize, i32> {
    match (step(request, memory, began, namespace), result) {
        (CommandStep::Answer(answer), 0) => answer,
        (_, ..0) => Err(result.saturating_neg()),
        (_, 1..) => Err(Status::to_errno(result)),
        (CommandStep::Flush, 0) => Ok(0),
        (CommandStep::Move(bytes) | CommandStep::Discard(bytes) | CommandStep::Zero { bytes, .. }, 0) => {
            Ok(bytes)
        }
    }
}

/// Completes a submission entry that has its descriptor and user data; see [`super::fill`]. Returns whether it is the
/// fixed form.
pub(crate) fn fill(
    request: &Request,
    memory: &IoMemory,
    began: usize,
    index: Option<u16>,
    namespace: &Namespace,
    parts: PartsOf<'_>,
    sqe: &mut CommandSqe,
) -> bool {
    let first = request.offset.saturating_add(began as u64) >> namespace.shift;
    sqe.opcode = op::IORING_OP_URING_CMD as u8;
    sqe.command_op = NVME_URING_CMD_IO;
    let command = &mut sqe.command;
    command.namespace = namespace.id;
    // A command has the number of its first block in two words, and the number of blocks minus one.
    let blocks = |bytes: usize, command: &mut NvmeCommand| {
        (command.cdw10, command.cdw11) = (first as u32, (first >> 32) as u32);
        command.cdw12 = (bytes >> namespace.shift) as u32 - 1;
    };
    match step(request, memory, began, namespace) {
        CommandStep::Answer(_) => {
            // No command is needed. The known answer arrives with the completion of a no-op.
            sqe.opcode = op::IORING_OP_NOP as u8;
            sqe.command_op = 0;
        }
        CommandStep::Flush => command.opcode = FLUSH,
        CommandStep::Move(bytes) => {
            command.opcode = if request.kind.is_read() { READ } else { WRITE };
            blocks(bytes, command);
            command.cdw12 |= if request.op_flags & RWF_DSYNC != 0 { FORCE_UNIT_ACCESS } else { 0 };
            let start = request.start + began;
            if memory.count() == 1 {
                command.addr = transfer::start_of(memory).wrapping_add(start).expose_provenance() as u64;
                command.data_len = bytes as u32;
                sqe.buf_index = index.unwrap_or(0);
                sqe.command_flags = if index.is_some() { IORING_URING_CMD_FIXED } else { 0 };
                return index.is_some();
            }
            let parts = parts.get();
            gather(memory, request.kind.is_read(), start, bytes, &mut parts.addresses);
            sqe.command_op = NVME_URING_CMD_IO_VEC;
            command.addr = parts.addresses.as_ptr().expose_provenance() as u64;
            command.data_len = parts.addresses.len() as u32;
        }
        CommandStep::Discard(bytes) => {
            let ranges = &mut parts.get().ranges;
            let blocks = ((bytes >> namespace.shift) as u32).to_le();
            ranges.clear();
            ranges.push(Range { attributes: 0, blocks, first: first.to_le() });
            command.opcode = DATASET_MANAGEMENT;
            command.addr = ranges.as_ptr().expose_provenance() as u64;
            command.data_len = size_of::<Range>() as u32;
            // One range: the field holds the number of ranges minus one.
            (command.cdw10, command.cdw11) = (0, DEALLOCATE);
        }
        CommandStep::Zero { bytes, deallocates } => {
            command.opcode = WRITE_ZEROS;
            blocks(bytes, command);
            command.cdw12 |= if deallocates { DEALLOCATE_ZEROS } else { 0 };
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Access;
    use crate::driver::op::{Kind, SlotParts};
    use crate::driver::target::namespace::testing::{BOTH, LIMITS, namespace};

    const END: u64 = 1000 * 4096;

    fn request(kind: Kind, offset: u64, want: usize, op_flags: u32) -> Request {
        Request { op_flags, offset, want, ..Request::of(kind) }
    }

    /// Returns the command for the rest of a request from `began` on, with its entry and the memory that it points to.
    fn filled(
        request: &Request,
        memory: &IoMemory,
        began: usize,
        index: Option<u16>,
    ) -> (CommandSqe, SlotParts, bool) {
        let (mut sqe, mut all) = (CommandSqe::default(), vec![SlotParts::default()]);
        let parts = PartsOf { all: &mut all, index: 0 };
        let fixed = fill(request, memory, began, index, &namespace(BOTH), parts, &mut sqe);
        (sqe, all.remove(0), fixed)
    }

    fn memory(len: usize) -> (IoMemory, u64) {
        let memory = vec![1; len];
        let at = memory.as_ptr().expose_provenance() as u64;
        (IoMemory::Vec(memory), at)
    }

    #[test]
    fn f48_reads_and_writes_name_as_many_blocks_as_bytes() {
        let (memory, at) = memory(20 << 12);
        let read = request(Kind::Read, 5 << 12, 20 << 12, 0);
        let (sqe, _, fixed) = filled(&read, &memory, 0, None);
        assert_eq!((sqe.opcode, sqe.command_op), (op::IORING_OP_URING_CMD as u8, 0xc048_4e80));
        let expected = NvmeCommand {
            opcode: 2,
            namespace: 3,
            addr: at,
            data_len: LIMITS.most as u32,
            cdw10: 5,
            cdw12: 15,
            ..NvmeCommand::default()
        };
        assert_eq!((sqe.command, fixed, sqe.command_flags), (expected, false, 0));
        assert_eq!(answer(&read, &memory, 0, &namespace(BOTH), 0), Ok(LIMITS.most), "the rest goes on");
        let (sqe, ..) = filled(&read, &memory, LIMITS.most, Some(7));
        assert_eq!((sqe.command.addr, sqe.command.data_len), (at + 65536, 4 << 12));
        assert_eq!((sqe.command.cdw10, sqe.command.cdw12, sqe.buf_index, sqe.command_flags), (21, 3, 7, 1));
        assert_eq!(answer(&read, &memory, LIMITS.most, &namespace(BOTH), 0), Ok(4 << 12));
        let far = request(Kind::Write, 0x12_3456_7890_u64 << 12, 4096, RWF_DSYNC);
        let (sqe, ..) = filled(&far, &memory, 0, None);
        assert_eq!((sqe.command.opcode, sqe.command.cdw12), (1, FORCE_UNIT_ACCESS));
        assert_eq!(
            (sqe.command.cdw10, sqe.command.cdw11),
            (0x3456_7890, 0x12),
            "beyond the end, as the drive reports"
        );
    }

    #[test]
    fn f48_a_read_ends_with_the_namespace() {
        let (memory, _) = memory(8 << 12);
        let across = request(Kind::Read, END - (2 << 12), 8 << 12, 0);
        assert_eq!(step(&across, &memory, 0, &namespace(BOTH)), CommandStep::Move(2 << 12));
        for (offset, began) in [(END - (2 << 12), 2 << 12), (END, 0), (END + 4096, 0), (1 << 60, 0)] {
            let read = request(Kind::Read, offset, 8 << 12, 0);
            let (sqe, ..) = filled(&read, &memory, began, Some(1));
            assert_eq!(sqe.opcode, op::IORING_OP_NOP as u8, "no command is sent");
            assert_eq!(answer(&read, &memory, began, &namespace(BOTH), 0), Ok(0));
        }
    }

    #[test]
    fn f48_memory_in_parts_is_listed_and_limited() {
        let memory = IoMemory::Vecs((0..2000).map(|_| vec![0; 4096]).collect());
        let write = request(Kind::WriteVectored, 0, 2000 << 12, 0);
        let (sqe, parts, fixed) = filled(&write, &memory, 4096, Some(7));
        assert_eq!((sqe.command_op, sqe.command_flags, fixed), (0xc048_4e81, 0, false));
        assert_eq!(sqe.command.addr, parts.addresses.as_ptr().expose_provenance() as u64);
        assert_eq!((sqe.command.data_len, sqe.command.cdw10, sqe.command.cdw12), (16, 1, 15));
        let listed: usize = parts.addresses.iter().map(|part| part.iov_len).sum();
        assert_eq!(listed, LIMITS.most);
        assert_eq!(parts.addresses[0].iov_base.cast_const().cast(), memory.part(1).unwrap().ptr.cast_const());
        assert_eq!(answer(&write, &memory, 4096, &namespace(BOTH), 0), Ok(LIMITS.most));
        // More parts than one call accepts, each shorter than a block, so the length is not a multiple of a block.
        let memory = IoMemory::Vecs((0..2000).map(|_| vec![0; 30]).collect());
        let odd = request(Kind::WriteVectored, 0, 60000, 0);
        assert_eq!(step(&odd, &memory, 0, &namespace(BOTH)), CommandStep::Answer(Err(libc::EINVAL)));
    }

    #[test]
    fn f48_flush_discard_and_zero_become_commands() {
        let (sqe, ..) = filled(&request(Kind::Sync, 0, 0, 0), &IoMemory::None, 0, None);
        let flush = NvmeCommand { namespace: 3, ..NvmeCommand::default() };
        assert_eq!((sqe.command, sqe.opcode), (flush, op::IORING_OP_URING_CMD as u8));
        let discard = request(Kind::Allocate, 2 << 12, 600 << 12, DISCARD);
        let (sqe, parts, _) = filled(&discard, &IoMemory::None, 256 << 12, None);
        let address = parts.ranges.as_ptr().expose_provenance() as u64;
        assert_eq!(parts.ranges, [Range { attributes: 0, blocks: 256, first: 258 }]);
        assert_eq!((sqe.command.opcode, sqe.command.cdw10, sqe.command.cdw11), (9, 0, 4));
        assert_eq!((sqe.command.addr, sqe.command.data_len), (address, 16));
        assert_eq!(answer(&discard, &IoMemory::None, 512 << 12, &namespace(BOTH), 0), Ok(88 << 12));
        for (flags, bits) in [(ZERO_RANGE, 0), (PUNCH_HOLE, DEALLOCATE_ZEROS)] {
            let zero = request(Kind::Allocate, 2 << 12, 600 << 12, flags);
            let (sqe, ..) = filled(&zero, &IoMemory::None, 0, None);
            assert_eq!((sqe.command.opcode, sqe.command.cdw10, sqe.command.cdw12), (8, 2, 255 | bits));
            assert_eq!((sqe.command.addr, sqe.command.data_len), (0, 0));
        }
    }

    #[test]
    fn f48_invalid_operations_fail_without_a_command() {
        let (memory, _) = memory(4096);
        let reader = namespace(Access { read: true, write: false });
        let writer = namespace(Access { read: false, write: true });
        let cases = [
            (&reader, request(Kind::Write, 0, 4096, 0), libc::EBADF),
            (&reader, request(Kind::Allocate, 0, 4096, DISCARD), libc::EBADF),
            (&writer, request(Kind::Read, 0, 4096, 0), libc::EBADF),
            (&writer, request(Kind::Write, 1, 4096, 0), libc::EINVAL),
            (&writer, request(Kind::Write, 0, 4095, 0), libc::EINVAL),
            (&writer, request(Kind::Write, 0, 4096, linux_raw_sys::general::RWF_APPEND), libc::EOPNOTSUPP),
            (&writer, request(Kind::Allocate, 512, 4096, DISCARD), libc::EINVAL),
            (&writer, request(Kind::Allocate, 0, 0, DISCARD), libc::EINVAL),
            (&writer, request(Kind::Allocate, 0, 4096, 0), libc::EOPNOTSUPP),
            (&writer, request(Kind::Truncate, 0, 0, 0), libc::EOPNOTSUPP),
            (&writer, request(Kind::Advise, 0, 4096, 0), libc::EOPNOTSUPP),
            (&writer, request(Kind::SyncRange, 0, 4096, 0), libc::EOPNOTSUPP),
        ];
        for (namespace, request, errno) in cases {
            let mut sqe = CommandSqe::default();
            let parts = PartsOf { all: &mut Vec::new(), index: 0 };
            fill(&request, &memory, 0, None, namespace, parts, &mut sqe);
            assert_eq!(sqe.opcode, op::IORING_OP_NOP as u8, "{request:?}");
            assert_eq!(answer(&request, &memory, 0, namespace, 0), Err(errno), "{request:?}");
        }
    }

    #[test]
    fn f48_an_answer_is_a_status_an_errno_or_the_whole_length() {
        let (memory, _) = memory(4096);
        let read = request(Kind::Read, 0, 4096, 0);
        let answered = |result| answer(&read, &memory, 0, &namespace(BOTH), result);
        assert_eq!(answered(0), Ok(4096));
        assert_eq!(answered(-libc::EINTR), Err(libc::EINTR));
        // A status is not a count, whatever its number.
        for status in [0x80, 512, 4096, 0x4281] {
            assert_eq!(answered(status), Err(Status::to_errno(status)));
        }
    }
}
