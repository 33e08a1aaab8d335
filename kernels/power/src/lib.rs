//! Shared by the guest of the power-cut harness and the replay of its drive's log: what is written, what is reported as
//! durable, and where; and the programs that are compared with simulations. `kernels/power-cuts` runs both.

pub mod programs;
pub mod promise;
pub mod stamp;

/// A file of slots that are overwritten repeatedly.
#[derive(Clone, Copy, Debug)]
pub struct SlotFile {
    /// Its number in stamps and promises.
    pub number: u32,
    /// Its name in the folder.
    pub name: &'static str,
    /// Bytes of a slot.
    pub slot: usize,
    /// The number of slots.
    pub slots: u32,
    /// Whether writes are atomic, so that a slot never has parts of two versions.
    pub atomic: bool,
}

/// Buffered `write_durable_at` with `RWF_DSYNC`.
pub const DSYNC: SlotFile = SlotFile { number: 1, name: "dsync", slot: 1536, slots: 64, atomic: false };
/// Direct `write_durable_at` with a linked `fdatasync`.
pub const FSYNC: SlotFile = SlotFile { number: 2, name: "fsync", slot: 4096, slots: 64, atomic: false };
/// Buffered `write_at`, and `sync_data`.
pub const SYNC_DATA: SlotFile =
    SlotFile { number: 3, name: "sync-data", slot: 2560, slots: 64, atomic: false };
/// Batches of direct writes, a barrier and an `fdatasync`.
pub const BATCH: SlotFile = SlotFile { number: 4, name: "batch", slot: 8192, slots: 64, atomic: false };
/// Buffered `write_at` at the end of the file, and `sync_all`; each slot is written once.
pub const SYNC_ALL: SlotFile =
    SlotFile { number: 5, name: "sync-all", slot: 2048, slots: 4096, atomic: false };
/// `write_atomic_at` and `sync_data`.
pub const ATOMIC: SlotFile = SlotFile { number: 6, name: "atomic", slot: 16384, slots: 32, atomic: true };
/// All files of slots.
pub const SLOT_FILES: [SlotFile; 6] = [DSYNC, FSYNC, SYNC_DATA, BATCH, SYNC_ALL, ATOMIC];

/// How many files are created, renamed and removed.
pub const NAMED: u32 = 7;
/// The size of each of these files, in bytes.
pub const NAMED_BYTES: usize = 3 * stamp::SECTOR;
/// The files of the appenders, one buffered and one direct.
pub const LOGS: [&str; 2] = ["log-buffered", "log-direct"];

/// Returns the name of a file that is created, renamed and removed.
pub fn named(number: u64) -> String {
    format!("named-{number}")
}

/// Returns the name of the folder in which a program runs.
pub fn run_folder(run: u64) -> String {
    format!("run-{run}")
}

/// A generator of random numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns the next number, below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end.max(1)
    }
}

/// Scatters the bits of a number.
pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
