//! The replay of a log: the content of the disk, and the promises, at each moment of the run.
//!
//! This module knows the log, the disk and the promises, and does not mount anything. Invariants: a promise counts from the
//! moment right after its report, and everything before the last flush is on the disk.

use ringfile_power::Random;

use crate::Outcome;
use crate::check::Expected;
use crate::disk::{Chances, Disk, Kept};
use crate::log::Log;

/// The state of a replay; see the module.
pub struct Replay<'a> {
    log: &'a Log,
    /// The disk with everything that was flushed before the last cut.
    pub disk: Disk,
    /// Everything that was reported before the last cut.
    pub expected: Expected,
    at: usize,
}

impl<'a> Replay<'a> {
    pub fn new(log: &'a Log, disk: Disk) -> Self {
        Self { log, disk, expected: Expected::default(), at: 0 }
    }

    /// Continues to a moment, which must not be before the last one, and cuts the power there. Returns the writes after the
    /// last flush that are on the disk too.
    pub fn cut_at(&mut self, moment: usize, random: &mut Random) -> Outcome<Kept<'a>> {
        for (_, promises) in self.log.reports_in(self.at..moment) {
            promises.iter().for_each(|&promise| self.expected.add(promise));
        }
        self.at = moment;
        self.disk.advance(self.log, self.log.last_flush_before(moment))?;
        Ok(self.disk.cut(self.log, moment, Chances::any(random), random))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test panics on anything unexpected")]

    use ringfile_power::promise::{self, Promise};
    use ringfile_power::stamp::{SECTOR, record};
    use ringfile_power::{ATOMIC, FSYNC, SlotFile};

    use super::*;
    use crate::log::{FIRST, FLUSH, FUA, MAGIC};

    /// The number of slots. The disk has no file system: it is one file of slots.
    const SLOTS: u64 = 2;
    const ROUNDS: u64 = 3;

    /// A log in the form in which qemu writes it.
    struct Written(Vec<u8>);

    impl Written {
        fn new() -> Self {
            let mut log = Self(Vec::new());
            log.sector(&[MAGIC]);
            log
        }

        fn sector(&mut self, words: &[u64]) {
            let end = self.0.len() + SECTOR;
            words.iter().for_each(|word| self.0.extend(word.to_le_bytes()));
            self.0.resize(end, 0);
        }

        fn write(&mut self, at: usize, data: &[u8], flags: u64) {
            self.sector(&[((FIRST + at) / SECTOR) as u64, (data.len() / SECTOR) as u64, flags]);
            self.0.extend(data);
        }

        fn slot(&mut self, of: SlotFile, slot: u64, version: u64, flags: u64) {
            self.write(slot as usize * of.slot, &record(of.number, slot, version, of.slot), flags);
        }

        fn flush(&mut self) {
            self.sector(&[0, 0, FLUSH]);
        }

        fn report(&mut self, of: SlotFile, slot: u64, version: u64) {
            let promise = Promise::Slot { file: of.number, slot, version };
            self.write(size(of), &promise::sector(version * SLOTS + slot, &[promise]), 0);
        }
    }

    fn size(of: SlotFile) -> usize {
        SLOTS as usize * of.slot
    }

    /// Creates the log of a run in which `round` writes a version of a slot and reports it.
    fn run(of: SlotFile, round: impl Fn(&mut Written, u64, u64)) -> Vec<u8> {
        let mut log = Written::new();
        for slot in 0..SLOTS {
            log.slot(of, slot, 0, 0);
        }
        log.flush();
        for version in 1..=ROUNDS {
            (0..SLOTS).for_each(|slot| round(&mut log, slot, version));
        }
        log.0
    }

    /// Cuts the power at every moment of a log, with 30 seeds. Returns all losses.
    fn losses(of: SlotFile, log: Vec<u8>) -> Vec<String> {
        let log = Log::of(log, size(of)).unwrap();
        let folder = std::env::temp_dir().join(format!("ringfile-f47-{}-{:p}", std::process::id(), &log));
        std::fs::create_dir_all(&folder).unwrap();
        let (mut losses, mut checked) = (Vec::new(), 0);
        for seed in 0..30 {
            let (mut replay, mut random) = (Replay::new(&log, Disk::of(vec![0; size(of)])), Random(seed));
            for moment in 0..=log.len() {
                let kept = replay.cut_at(moment, &mut random).unwrap();
                replay.disk.write(&kept, &folder.join(of.name)).unwrap();
                losses.extend(replay.expected.check(&folder, &mut checked));
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(checked > 0);
        losses
    }

    #[test]
    fn f47_data_flushed_before_its_report_survives_every_cut() {
        let log = run(FSYNC, |log, slot, version| {
            log.slot(FSYNC, slot, version, 0);
            log.flush();
            log.report(FSYNC, slot, version);
        });
        assert_eq!(losses(FSYNC, log), [""; 0]);
    }

    #[test]
    fn f47_a_write_with_forced_unit_access_needs_no_flush() {
        let log = run(FSYNC, |log, slot, version| {
            log.slot(FSYNC, slot, version, FUA);
            log.report(FSYNC, slot, version);
        });
        assert_eq!(losses(FSYNC, log), [""; 0]);
    }

    #[test]
    fn f47_a_report_without_a_flush_or_with_one_that_came_too_early_is_found_out() {
        let without = run(FSYNC, |log, slot, version| {
            log.slot(FSYNC, slot, version, 0);
            log.report(FSYNC, slot, version);
        });
        let losses_without = losses(FSYNC, without);
        assert!(losses_without.iter().any(|loss| loss.contains("was durable")), "{losses_without:?}");
        // The write was still on its way when the flush began.
        let early = run(FSYNC, |log, slot, version| {
            log.flush();
            log.slot(FSYNC, slot, version, 0);
            log.report(FSYNC, slot, version);
        });
        assert!(!losses(FSYNC, early).is_empty());
    }

    #[test]
    fn f47_a_torn_write_is_a_loss_where_it_was_atomic_and_else_none() {
        let torn = |of: SlotFile| {
            run(of, |log, slot, version| {
                // Two versions in one slot, which the flush makes permanent.
                let (old, new) = (
                    record(of.number, slot, version, of.slot),
                    record(of.number, slot, version + 1, of.slot),
                );
                log.write(slot as usize * of.slot, &[&new[..SECTOR], &old[SECTOR..]].concat(), 0);
                log.flush();
                log.report(of, slot, version);
            })
        };
        assert_eq!(losses(FSYNC, torn(FSYNC)), [""; 0]);
        assert!(losses(ATOMIC, torn(ATOMIC)).iter().all(|loss| loss.contains("was written in part")));
        assert!(!losses(ATOMIC, torn(ATOMIC)).is_empty());
    }

    #[test]
    fn f47_a_log_that_was_cut_short_or_has_unknown_records_is_refused() {
        let log = run(FSYNC, |log, slot, version| log.report(FSYNC, slot, version));
        assert!(Log::of(log[..log.len() - 1].to_vec(), size(FSYNC)).is_err());
        assert!(Log::of(vec![0; SECTOR], size(FSYNC)).is_err());
        let mut unknown = Written(log);
        unknown.sector(&[0, 0, 1 << 10]);
        assert!(Log::of(unknown.0, size(FSYNC)).is_err());
    }
}
