//! What a drive reports about itself and a namespace (Identify), through the kernel's `ioctl`.
//!
//! Offsets are those of the NVM command set specification. Invariant: anything unknown is an error.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;

use crate::ring::NvmeCommand;

/// `_IO('N', 0x40)`: the number of the namespace.
const NVME_IOCTL_ID: libc::Ioctl = 0x4e40;
const NVME_IOCTL_ADMIN_CMD: u32 = rustix::ioctl::opcode::read_write::<NvmeCommand>(b'N', 0x41);

const IDENTIFY: u8 = 6;
const PAGE: usize = 4096;

/// One answer to Identify.
pub(super) type Page = [u8; PAGE];

/// Which page of Identify to request (CNS).
#[derive(Clone, Copy)]
pub(super) enum About {
    Namespace = 0,
    Controller = 1,
}

/// Returns the number of the device's namespace.
pub(super) fn number(file: &fs::File) -> io::Result<u32> {
    // SAFETY: this call takes no memory.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ID) };
    u32::try_from(answer).ok().filter(|&number| number > 0).ok_or_else(io::Error::last_os_error)
}

/// Sends the command. A status of the drive becomes an errno without a particular meaning here.
pub(super) fn identify(file: &fs::File, namespace: u32, about: About) -> io::Result<Box<Page>> {
    let mut page = Box::new([0; PAGE]);
    let mut command = NvmeCommand {
        opcode: IDENTIFY,
        namespace: if let About::Namespace = about { namespace } else { 0 },
        addr: page.as_mut_ptr().expose_provenance() as u64,
        data_len: PAGE as u32,
        cdw10: about as u32,
        ..NvmeCommand::default()
    };
    // SAFETY: the record has the size that the request number encodes, and the page has the length that the record
    // names; both are ours during the call.
    let answer =
        unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ADMIN_CMD as libc::Ioctl, &raw mut command) };
    match answer {
        0 => Ok(page),
        1.. => Err(io::Error::from_raw_os_error(libc::EIO)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn u16_at(page: &Page, at: usize) -> u16 {
    u16::from_le_bytes([page[at], page[at + 1]])
}

/// The used part of a drive's report about itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Controller {
    /// The largest number of bytes that one command moves. The drive counts in its smallest pages, which are 4 KiB or
    /// more.
    pub most: usize,
    pub discards: bool,
    pub writes_zeros: bool,
}

impl Controller {
    pub(super) fn read(page: &Page) -> Self {
        let commands = u16_at(page, 520);
        // 2^12 bytes times 2^most, and none for 0: beyond 2^63 there is no limit that memory could reach.
        let shift = if page[77] == 0 { u32::MAX } else { 12 + u32::from(page[77]) };
        Self {
            most: 1_usize.checked_shl(shift).unwrap_or(usize::MAX),
            discards: commands & 1 << 2 != 0,
            writes_zeros: commands & 1 << 3 != 0,
        }
    }
}

/// How a namespace is formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Format {
    pub blocks: u64,
    /// Bytes in a block: 2 to the power of this.
    pub shift: u32,
}

impl Format {
    /// # Errors
    /// The reason why the format is not supported.
    pub(super) fn read(page: &Page) -> Result<Self, String> {
        let blocks = u64::from_le_bytes(page[..8].try_into().unwrap_or_default());
        let (used, formats) = (page[26], page[25]);
        // The number of the format in use is in two parts where a drive has more than 16.
        let index = usize::from(used & 0xf | if formats >= 16 { (used >> 5 & 3) << 4 } else { 0 });
        let at = 128 + 4 * index;
        let (metadata, shift) = (u16_at(page, at), u32::from(page[at + 2]));
        if blocks == 0 {
            return Err("the namespace is not active: it has no blocks".into());
        }
        if metadata != 0 {
            return Err(format!("its format has {metadata} bytes of metadata with each block"));
        }
        if page[29] & 7 != 0 {
            return Err("its format has protection information".into());
        }
        if !(9..=16).contains(&shift) || blocks.checked_shl(shift).is_none_or(|size| size >> shift != blocks)
        {
            return Err(format!("its format has {blocks} blocks of 2^{shift} bytes"));
        }
        Ok(Self { blocks, shift })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a namespace with blocks of 512 (format 0) and 4096 bytes (1 and 17), and one with metadata (2).
    fn page(used: u8, formats: u8) -> Page {
        let mut page = [0; PAGE];
        page[..8].copy_from_slice(&1_000_000_u64.to_le_bytes());
        (page[25], page[26]) = (formats, used);
        for (index, metadata, shift) in [(0, 0, 9), (1, 0, 12), (2, 8, 9), (17, 0, 12), (3, 0, 3)] {
            let at = 128 + 4 * index;
            (page[at], page[at + 2]) = (metadata, shift);
        }
        page
    }

    #[test]
    fn f48_f58_known_formats_are_read_and_unknown_ones_are_refused() {
        assert_eq!(Format::read(&page(0, 4)), Ok(Format { blocks: 1_000_000, shift: 9 }));
        assert_eq!(Format::read(&page(1, 4)).unwrap().shift, 12);
        assert_eq!(Format::read(&page(0x21, 20)).unwrap().shift, 12, "format 17");
        assert_eq!(
            Format::read(&page(0x21, 4)).unwrap().shift,
            12,
            "those bits mean nothing with this few formats"
        );
        assert!(Format::read(&page(2, 4)).unwrap_err().contains("8 bytes of metadata"));
        assert!(Format::read(&page(3, 4)).unwrap_err().contains("blocks of 2^3"));
        let mut protected = page(0, 4);
        protected[29] = 1;
        assert!(Format::read(&protected).unwrap_err().contains("protection information"));
        let mut inactive = page(0, 4);
        inactive[..8].fill(0);
        assert!(Format::read(&inactive).unwrap_err().contains("not active"));
        inactive[..8].fill(0xff);
        assert!(Format::read(&inactive).is_err(), "a size beyond 2^64 bytes");
    }

    #[test]
    fn f48_the_limits_of_the_drive_are_read() {
        let mut page = [0; PAGE];
        assert_eq!(
            Controller::read(&page),
            Controller { most: usize::MAX, discards: false, writes_zeros: false }
        );
        (page[77], page[520]) = (7, 0b1100);
        assert_eq!(
            Controller::read(&page),
            Controller { most: 512 << 10, discards: true, writes_zeros: true }
        );
        for beyond_memory in [52, 63, 64, 255] {
            page[77] = beyond_memory;
            assert_eq!(Controller::read(&page).most, usize::MAX, "2^{beyond_memory} pages");
        }
        page[77] = 51;
        assert_eq!(Controller::read(&page).most, 1 << 63);
    }
}
