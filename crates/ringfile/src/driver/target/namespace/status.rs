//! A drive's status of a failed command, as an errno and in words.
//!
//! A status is passed in place of an errno, as a number that no errno has. Invariant: the errno is the one that the
//! block layer would return (`nvme_error_status` and `blk_errors` in Linux), if that has one for the failure.

/// Numbers from here on encode a status: Linux has no errno above 4095.
const FIRST: i32 = 0x8000;

/// The status code and its type. The drive's other flags (more information, do not retry) are left out.
const CODE: i32 = 0x7ff;

/// The status of a command that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Status(u16);

impl Status {
    /// Returns the number that replaces the errno for a non-zero answer of the kernel.
    pub(crate) fn to_errno(answer: i32) -> i32 {
        FIRST | answer & CODE
    }

    /// Returns the status that a number encodes.
    pub(crate) fn of_errno(errno: i32) -> Option<Self> {
        (errno >= FIRST).then_some(Self((errno & CODE) as u16))
    }

    /// Returns the errno that it means.
    pub(crate) fn errno(self) -> i32 {
        self.known().map_or(libc::EIO, |(_, errno, _)| *errno)
    }

    fn known(self) -> Option<&'static (u16, i32, &'static str)> {
        KNOWN.iter().find(|(code, ..)| *code == self.0)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let meaning = self.known().map_or("see the NVMe specification", |(.., meaning)| meaning);
        write!(f, "the drive says: {meaning} (NVMe status {:#x}/{:#04x})", self.0 >> 8, self.0 & 0xff)
    }
}

/// Status code type and code, the errno, the meaning.
const KNOWN: [(u16, i32, &str); 39] = [
    (0x001, libc::EOPNOTSUPP, "invalid command opcode"),
    (0x002, libc::EINVAL, "invalid field in the command"),
    (0x004, libc::EIO, "data transfer error"),
    (0x005, libc::EIO, "aborted because of a power loss"),
    (0x006, libc::EIO, "internal error"),
    (0x007, libc::EIO, "aborted on request"),
    (0x008, libc::EIO, "aborted because its queue was deleted"),
    (0x009, libc::EIO, "a fused command failed"),
    (0x00a, libc::EIO, "a fused command is missing"),
    (0x00b, libc::ENODEV, "invalid namespace or format: the namespace is gone"),
    (0x00c, libc::EIO, "command sequence error"),
    (0x012, libc::EIO, "invalid use of the controller memory buffer"),
    (0x013, libc::EINVAL, "invalid offset of a PRP entry"),
    (0x014, libc::EIO, "atomic write unit exceeded"),
    (0x015, libc::EACCES, "operation denied"),
    (0x01c, libc::EIO, "sanitize failed"),
    (0x01d, libc::EBUSY, "sanitize in progress"),
    (0x020, libc::EROFS, "namespace is write protected"),
    (0x021, libc::EREMOTEIO, "command interrupted; try again"),
    (0x022, libc::EREMOTEIO, "transient transport error; try again"),
    (0x023, libc::EROFS, "prohibited by command and feature lockdown"),
    (0x080, libc::ENOSPC, "LBA out of range"),
    (0x081, libc::ENOSPC, "capacity exceeded"),
    (0x082, libc::EREMOTEIO, "namespace not ready; try again"),
    (0x083, libc::EBADE, "reservation conflict"),
    (0x084, libc::EBUSY, "format in progress"),
    (0x180, libc::EINVAL, "conflicting attributes"),
    (0x181, libc::EINVAL, "invalid protection information"),
    (0x182, libc::EROFS, "attempted write to a read-only range"),
    (0x183, libc::EINVAL, "command size limit exceeded"),
    (0x280, libc::ENODATA, "write fault"),
    (0x281, libc::ENODATA, "unrecovered read error"),
    (0x282, libc::EILSEQ, "end-to-end guard check error"),
    (0x283, libc::EILSEQ, "end-to-end application tag check error"),
    (0x284, libc::EILSEQ, "end-to-end reference tag check error"),
    (0x286, libc::EACCES, "access denied"),
    (0x287, libc::ENODATA, "deallocated or unwritten logical block"),
    (0x370, libc::ENOLINK, "host pathing error: no path to the drive"),
    (0x371, libc::ENOLINK, "the host aborted the command"),
];

/// Returns the errno of a failed operation, whose number may encode a drive's [`Status`].
pub(crate) fn errno_of(errno: i32) -> i32 {
    Status::of_errno(errno).map_or(errno, Status::errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f48_a_status_is_passed_as_a_number_that_is_no_errno() {
        // The flags "do not retry", "more information" and "command retry delay" do not change its meaning.
        for answer in [0x080, 0x4080, 0x6080, 0x7880] {
            let errno = Status::to_errno(answer);
            assert!(
                errno > 4095 && u16::try_from(errno).is_ok(),
                "{errno:#x} must fit a slot, and be no errno"
            );
            let status = Status::of_errno(errno).unwrap();
            assert_eq!(status.errno(), libc::ENOSPC);
            assert_eq!(status.to_string(), "the drive says: LBA out of range (NVMe status 0x0/0x80)");
        }
        for errno in [0, libc::EIO, libc::EINVAL, libc::ECANCELED, 4095] {
            assert_eq!(Status::of_errno(errno), None);
        }
    }

    #[test]
    fn f48_every_status_has_an_errno_and_words() {
        let mut last = 0;
        for (code, errno, meaning) in KNOWN {
            assert!(code > last, "{code:#x} is in order and there once");
            last = code;
            let status = Status::of_errno(Status::to_errno(code.into())).unwrap();
            assert_eq!(status.errno(), errno);
            assert!(status.to_string().contains(meaning));
        }
        let unknown = Status::of_errno(Status::to_errno(0x7c5)).unwrap();
        assert_eq!(unknown.errno(), libc::EIO);
        assert!(unknown.to_string().contains("0x7/0xc5"), "{unknown}");
    }
}
